//! The device that the options ask for.

use super::Global;
use super::cache::Pipelines;
use anyhow::{Context, Result};
use wgformer::gpu::{self, Backend, Gpu, Request};

/// The values of `--backend`.
pub const BACKENDS: [&str; 4] = ["vulkan", "metal", "dx12", "gl"];

/// A variable of the environment that is set, and to something.
fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().map(|value| value.trim().to_string()).filter(|value| !value.is_empty())
}

impl Global {
    /// The interface that was asked for.
    pub fn backend(&self) -> Result<Option<Backend>> {
        if let Some(name) = &self.backend {
            return Ok(Some(name.parse()?));
        }
        // Other programs on wgpu take a list here.
        let list = variable("WGPU_BACKEND");
        let first = list.as_deref().and_then(|list| list.split(',').next());
        first.map(|name| name.trim().parse().context("WGPU_BACKEND")).transpose()
    }

    /// The adapter that was asked for.
    pub fn request(&self) -> Result<Request> {
        let name = self.adapter.clone().or_else(|| variable("WGPU_ADAPTER_NAME"));
        Ok(Request { name, backend: self.backend()?, ..Default::default() })
    }

    /// Opens the device that was asked for.
    pub fn gpu(&self) -> Result<Gpu> {
        let gpu = gpu::request(&self.request()?)?.checked(self.checked);
        if !self.no_pipeline_cache
            && let Some(pipelines) = Pipelines::open(&gpu)
        {
            // Only the first device of a run is kept.
            let _ = self.pipelines.set(pipelines);
        }
        Ok(gpu)
    }

    /// Writes the pipelines that were compiled, where that is of use to the next run.
    pub fn keep_pipelines(&self) {
        if let Some(pipelines) = self.pipelines.get() {
            pipelines.keep();
        }
    }
}

//! The device that the options ask for.

use super::Global;
use super::cache::{self, Pipelines};
use super::progress::note;
use anyhow::{Context, Result};
use std::path::{Path, PathBuf};
use wgformer::gpu::{self, Backend, Gpu, Request};
use wgformer::rng::fnv1a;
use wgformer::tuning::{AdapterKey, Tuning, TuningFile};

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
        self.tuned(gpu)
    }

    /// Writes the pipelines that were compiled, where that is of use to the next run.
    pub fn keep_pipelines(&self) {
        if let Some(pipelines) = self.pipelines.get() {
            pipelines.keep();
        }
    }

    /// The device with the variants of kernels that were asked for; says so where they are not the shipped ones.
    pub fn tuned(&self, gpu: Gpu) -> Result<Gpu> {
        let Some((tuning, path)) = self.tuning(&gpu.adapter_key())? else { return Ok(gpu) };
        note(&format!("tuning: {}", path.display()));
        Ok(gpu.tuned(tuning))
    }

    /// The tuning of an adapter, and its file; `None` for the shipped one.
    pub fn tuning(&self, adapter: &AdapterKey) -> Result<Option<(Tuning, PathBuf)>> {
        let read = |path: &Path| -> Result<(Tuning, PathBuf)> {
            let tuning = TuningFile::read(path)?.tuning(adapter);
            Ok((tuning.with_context(|| path.display().to_string())?, path.to_path_buf()))
        };
        match &self.tuning {
            Some(path) if path == Path::new("shipped") => Ok(None),
            Some(path) => read(path).map(Some),
            None => {
                let Some(path) = cached(adapter).filter(|path| path.exists()) else { return Ok(None) };
                // Nobody asked for it, so that it cannot be used is no reason to end.
                let found = read(&path);
                if let Err(error) = &found {
                    note(&format!("{error:#}: not used; run `wgformer tune` again, or remove it"));
                }
                Ok(found.ok())
            }
        }
    }
}

/// The file in the user's folder for caches that belongs to an adapter.
pub fn cached(adapter: &AdapterKey) -> Option<PathBuf> {
    Some(cache::folder()?.join("tuning").join(file_name(adapter)))
}

/// One name for each adapter and driver, in letters that every system takes.
fn file_name(adapter: &AdapterKey) -> String {
    let letter = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
    let name: String = adapter.name.chars().take(32).map(letter).collect();
    format!("{name}-{:016x}.json", fnv1a(adapter.to_string().as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_adapter_and_driver_has_a_file() {
        let key = |name: &str, driver: &str| {
            let [name, backend, driver] = [name, "vulkan", driver].map(String::from);
            AdapterKey { name, backend, driver, driver_version: String::new() }
        };
        let one = file_name(&key("A Card (TM)/../", "1"));
        assert!(one.starts_with("a-card--tm------") && one.ends_with(".json"), "{one}");
        assert_ne!(one, file_name(&key("A Card (TM)/../", "2")));
        assert!(file_name(&key(&"\u{1f5a5}".repeat(1000), "1")).len() < 80);
    }
}

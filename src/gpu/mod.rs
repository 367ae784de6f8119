//! The device: the only module that names `wgpu`, and the only one with `unsafe` (shader modules without runtime
//! checks). It turns plain data (a [`Kernel`], a [`Plan`]) into pipelines, buffers and submissions, and knows no op and
//! no model.
//!
//! A [`Gpu`] is made from the caller's device and queue, or by [`request`]. Nothing is global: two of them live side by
//! side in one process. Errors of a device that is not ours are caught by error scopes, never by a handler.

#![allow(unsafe_code)]

mod compile;
mod executor;
mod memory;
mod profile;
mod request;
mod solo;
mod timing;

pub use executor::{Executor, Fetch};
pub use memory::Memory;
pub use request::{AdapterDescription, Backend, Request, adapters, choose, request, request_async};
pub use solo::{
    GUARD_BYTES, POISON, Solo, SoloBinding, SoloBuffer, SoloDispatch, SoloKind, Trespass, poison,
};

pub use timing::Timed;

use crate::kernel::{Access, Kernel};
use crate::plan::{ALIGN_BYTES, Plan};
use crate::profile::DeviceProfile;
use crate::{Error, Result};
use std::collections::HashMap;
use std::fmt::Display;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

/// How long a wait for the device may take before it counts as hung. A GPU's driver gives up after seconds; software
/// adapters on a busy machine are what needs minutes.
const TIMEOUT: Duration = Duration::from_secs(600);

/// A device that runs plans. Cheap to clone; clones share pipelines.
#[derive(Clone, Debug)]
pub struct Gpu {
    shared: Arc<Shared>,
    checked: bool,
}

/// What the checked and the unchecked side of a device have in common.
#[derive(Debug)]
struct Shared {
    device: wgpu::Device,
    queue: wgpu::Queue,
    info: wgpu::AdapterInfo,
    profile: DeviceProfile,
    params_layout: wgpu::BindGroupLayout,
    layouts: Mutex<HashMap<Vec<bool>, Layout>>,
    /// By [`Gpu::checked`].
    pipelines: [Mutex<HashMap<Kernel, Pipeline>>; 2],
    compiled: AtomicU64,
    compile_nanos: AtomicU64,
    allocated: Arc<Counters>,
    /// Where kernels are compiled at their first dispatch, and the device is ours.
    helpers: Option<compile::Helpers>,
    /// Why the device was lost; only filled on a device that is ours.
    lost: Arc<Mutex<Option<String>>>,
}

/// Explicit layouts for a list of storage bindings; `true` is read-only.
#[derive(Clone, Debug)]
struct Layout {
    storage: wgpu::BindGroupLayout,
    pipeline: wgpu::PipelineLayout,
}

#[derive(Clone, Debug)]
struct Pipeline {
    raw: wgpu::ComputePipeline,
    storage: wgpu::BindGroupLayout,
}

#[derive(Debug, Default)]
struct Counters {
    count: AtomicU64,
    bytes: AtomicU64,
    live: AtomicU64,
}

/// Buffers that were made on a device so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allocations {
    /// How many buffers were ever made.
    pub count: u64,
    /// Their bytes together.
    pub bytes: u64,
    /// The bytes of those that still exist.
    pub live_bytes: u64,
}

/// What compiling kernels has cost so far. lavapipe compiles at the first dispatch; that is counted where the device was made
/// by [`request`], else the first run of a plan takes longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompileStats {
    /// Pipelines made.
    pub pipelines: u64,
    /// Time spent on it, summed over threads.
    pub time: Duration,
}

/// A buffer that counts.
#[derive(Debug)]
struct Buffer {
    raw: wgpu::Buffer,
    bytes: u64,
    counters: Arc<Counters>,
}

impl Drop for Buffer {
    fn drop(&mut self) {
        self.counters.live.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// A panic elsewhere must not become one here: the data behind our locks is valid after every statement.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Runs `f` and turns every error that the device reports meanwhile on this thread into ours.
fn scoped<T>(device: &wgpu::Device, what: &dyn Display, f: impl FnOnce() -> T) -> Result<T> {
    let memory = device.push_error_scope(wgpu::ErrorFilter::OutOfMemory);
    let validation = device.push_error_scope(wgpu::ErrorFilter::Validation);
    let internal = device.push_error_scope(wgpu::ErrorFilter::Internal);
    let out = f();
    let (internal, validation, memory) = (internal.pop(), validation.pop(), memory.pop());
    if let Some(e) = pollster::block_on(memory) {
        let hint = "take a smaller batch or model, or free memory of the device";
        return Err(Error::Device(format!("out of memory for {what}: {hint} ({})", text(&e))));
    }
    if let Some(e) = pollster::block_on(validation).or(pollster::block_on(internal)) {
        return Err(Error::Device(format!("{what}: {}", text(&e))));
    }
    Ok(out)
}

impl Shared {
    /// Runs `f` and turns every error that the device reports meanwhile on this thread into ours.
    fn scoped<T>(&self, what: &dyn Display, f: impl FnOnce() -> T) -> Result<T> {
        self.check_lost()?;
        let out = scoped(&self.device, what, f)?;
        self.check_lost()?;
        Ok(out)
    }

    fn check_lost(&self) -> Result<()> {
        match &*lock(&self.lost) {
            Some(why) => Err(Error::Device(format!("the device was lost ({why}): make a new one"))),
            None => Ok(()),
        }
    }

    fn buffer(&self, what: &str, bytes: u64, usage: wgpu::BufferUsages) -> Result<Arc<Buffer>> {
        let size = bytes.max(4);
        let descriptor = wgpu::BufferDescriptor { label: Some(what), size, usage, mapped_at_creation: false };
        let raw =
            self.scoped(&format_args!("{what} of {size} bytes"), || self.device.create_buffer(&descriptor))?;
        self.allocated.count.fetch_add(1, Ordering::Relaxed);
        self.allocated.bytes.fetch_add(size, Ordering::Relaxed);
        self.allocated.live.fetch_add(size, Ordering::Relaxed);
        Ok(Arc::new(Buffer { raw, bytes: size, counters: self.allocated.clone() }))
    }

    fn layout(&self, bindings: &[Access]) -> Result<Layout> {
        let key: Vec<bool> = bindings.iter().map(|&a| a == Access::Read).collect();
        let mut layouts = lock(&self.layouts);
        if let Some(found) = layouts.get(&key) {
            return Ok(found.clone());
        }
        let made = self.scoped(&"a bind group layout", || {
            let entries: Vec<_> = key
                .iter()
                .enumerate()
                .map(|(i, &read_only)| {
                    entry(i as u32, wgpu::BufferBindingType::Storage { read_only }, false, None)
                })
                .collect();
            let storage = self.device.create_bind_group_layout(&wgpu::BindGroupLayoutDescriptor {
                label: None,
                entries: &entries,
            });
            let pipeline = self.device.create_pipeline_layout(&wgpu::PipelineLayoutDescriptor {
                label: None,
                bind_group_layouts: &[Some(&storage), Some(&self.params_layout)],
                immediate_size: 0,
            });
            Layout { storage, pipeline }
        })?;
        layouts.insert(key, made.clone());
        Ok(made)
    }
}

fn entry(
    binding: u32,
    ty: wgpu::BufferBindingType,
    has_dynamic_offset: bool,
    size: Option<u64>,
) -> wgpu::BindGroupLayoutEntry {
    wgpu::BindGroupLayoutEntry {
        binding,
        visibility: wgpu::ShaderStages::COMPUTE,
        ty: wgpu::BindingType::Buffer {
            ty,
            has_dynamic_offset,
            min_binding_size: size.and_then(std::num::NonZeroU64::new),
        },
        count: None,
    }
}

/// The message of a device error, in one line unless it shows lines of a shader.
fn text(error: &wgpu::Error) -> String {
    let text = match error {
        wgpu::Error::OutOfMemory { source } => source.to_string(),
        wgpu::Error::Validation { description, .. } | wgpu::Error::Internal { description, .. } => {
            description.trim().to_string()
        }
    };
    if text.contains('│') {
        return text;
    }
    let lines: Vec<_> = text.lines().map(str::trim).filter(|l| !l.is_empty() && *l != "Caused by:").collect();
    let mut line = lines.join(": ");
    // What was made without an error turns invalid only by the loss of the device, which a device that is not ours does
    // not tell us otherwise.
    if line.ends_with(" is invalid") {
        line.push_str("; was the device lost or destroyed?");
    }
    line
}

impl Gpu {
    /// Runs on the caller's device. `info` is the adapter's.
    ///
    /// The handles are kept as they are: no error handler and no callback is installed.
    ///
    /// # Errors
    /// When the device does not allow what every kernel needs.
    pub fn new(device: wgpu::Device, queue: wgpu::Queue, info: wgpu::AdapterInfo) -> Result<Gpu> {
        Self::build(device, queue, info, Arc::default(), None)
    }

    fn build(
        device: wgpu::Device,
        queue: wgpu::Queue,
        info: wgpu::AdapterInfo,
        lost: Arc<Mutex<Option<String>>>,
        helpers: Option<compile::Helpers>,
    ) -> Result<Gpu> {
        let profile = profile::of(&device, &info);
        let params_layout = scoped(&device, &"parameters", || {
            device.create_bind_group_layout(&wgpu::BindGroupLayoutDescriptor {
                label: Some("parameters"),
                entries: &[entry(0, wgpu::BufferBindingType::Uniform, true, Some(ALIGN_BYTES))],
            })
        })?;
        let shared = Shared {
            device,
            queue,
            info,
            profile,
            params_layout,
            layouts: Mutex::default(),
            pipelines: Default::default(),
            compiled: AtomicU64::new(0),
            compile_nanos: AtomicU64::new(0),
            allocated: Arc::default(),
            helpers,
            lost,
        };
        Ok(Gpu { shared: Arc::new(shared), checked: false })
    }

    /// What lowering needs to know of the device.
    pub fn profile(&self) -> &DeviceProfile {
        &self.shared.profile
    }

    /// The same device with (or without) runtime checks in its kernels: bounds, divisors, zeroed workgroup memory.
    pub fn checked(&self, checked: bool) -> Gpu {
        Gpu { shared: self.shared.clone(), checked }
    }

    /// The adapter's name.
    pub fn name(&self) -> &str {
        &self.shared.info.name
    }

    /// The adapter's name, interface and driver, for people.
    pub fn description(&self) -> String {
        let info = &self.shared.info;
        let driver = if info.driver_info.is_empty() { &info.driver } else { &info.driver_info };
        [&info.name, &self.backend(), driver]
            .into_iter()
            .filter(|part| !part.is_empty())
            .cloned()
            .collect::<Vec<_>>()
            .join(", ")
    }

    /// The interface: `vulkan`, `metal`, `dx12` or `gl`.
    pub fn backend(&self) -> String {
        format!("{:?}", self.shared.info.backend).to_lowercase()
    }

    /// The driver's name and version; empty where the interface does not tell.
    pub fn driver(&self) -> [&str; 2] {
        [&self.shared.info.driver, &self.shared.info.driver_info]
    }

    /// Whether passes can be timed on the device ([`Gpu::time`]).
    pub fn timestamps(&self) -> bool {
        self.shared.device.features().contains(wgpu::Features::TIMESTAMP_QUERY)
    }

    /// Whether the device is known to be lost. Of a caller's own device that is never known: no callback is installed on it.
    pub fn is_lost(&self) -> bool {
        lock(&self.shared.lost).is_some()
    }

    /// The device, for a caller that shares it.
    pub fn device(&self) -> &wgpu::Device {
        &self.shared.device
    }

    /// The queue, for a caller that shares it.
    pub fn queue(&self) -> &wgpu::Queue {
        &self.shared.queue
    }

    /// The buffers made so far.
    pub fn allocations(&self) -> Allocations {
        let c = &self.shared.allocated;
        Allocations {
            count: c.count.load(Ordering::Relaxed),
            bytes: c.bytes.load(Ordering::Relaxed),
            live_bytes: c.live.load(Ordering::Relaxed),
        }
    }

    /// The kernels compiled so far, and the time it took.
    pub fn compile_stats(&self) -> CompileStats {
        CompileStats {
            pipelines: self.shared.compiled.load(Ordering::Relaxed),
            time: Duration::from_nanos(self.shared.compile_nanos.load(Ordering::Relaxed)),
        }
    }

    /// Compiles a plan's kernels and makes its buffers.
    ///
    /// # Errors
    /// When the device is out of memory or lost, when a kernel does not compile, or when a state of the same name and
    /// another type exists.
    pub fn executor(&self, plan: Plan, memory: &Memory) -> Result<Executor> {
        Executor::new(self, plan, memory)
    }
}

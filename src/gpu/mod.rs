//! The device: the only module that names `wgpu`, and the only one with `unsafe` (shader modules without runtime
//! checks, pipelines that a driver compiled before). It turns plain data (a [`Kernel`], a [`Plan`]) into pipelines, buffers and submissions, and knows no op and
//! no model.
//!
//! A [`Gpu`] is made from the caller's device and queue, or by [`request`]. Nothing is global: two of them live side by
//! side in one process. Errors of a device that is not ours are caught by error scopes, never by a handler.

#![allow(unsafe_code)]

mod cache;
mod compile;
mod executor;
mod memory;
mod profile;
mod request;
mod solo;
mod timing;
mod wait;

pub use cache::MAX_PIPELINE_CACHE_BYTES;
pub use executor::{Executor, Fetch};
pub use memory::{Memory, Read};
pub use profile::{profile_of, profile_with, required_features, required_limits};
pub use request::{AdapterDescription, Backend, Request, adapters, choose, request, request_async};
pub use solo::{
    GUARD_BYTES, POISON, Solo, SoloBinding, SoloBuffer, SoloDispatch, SoloKind, Trespass, poison,
};

pub use timing::Timed;
pub use wait::Running;

use crate::kernel::{Access, Kernel};
use crate::plan::{ALIGN_BYTES, Plan};
use crate::profile::DeviceProfile;
use crate::tuning::{AdapterKey, Tuning};
use crate::{Error, Result};
use std::collections::HashMap;
use std::fmt::Display;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use wait::Watch;

/// A device that runs plans. Cheap to clone; clones share pipelines.
#[derive(Clone, Debug)]
pub struct Gpu {
    shared: Arc<Shared>,
    checked: bool,
    /// The profile, with another table of variants than the shipped one.
    tuned: Option<Arc<DeviceProfile>>,
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
    /// What the driver keeps compiled pipelines in, where the host asked for it.
    pipeline_cache: Mutex<Option<wgpu::PipelineCache>>,
    /// By [`Gpu::checked`].
    pipelines: [Mutex<HashMap<Kernel, Pipeline>>; 2],
    compiled: AtomicU64,
    compile_nanos: AtomicU64,
    allocated: Arc<Counters>,
    /// Where kernels are compiled at their first dispatch, and the device is ours.
    helpers: Option<compile::Helpers>,
    watch: Arc<Watch>,
    /// What [`Shared::look`] maps.
    probe: Mutex<wgpu::Buffer>,
    timeout: Mutex<Duration>,
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
    peak: AtomicU64,
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
    /// The most of these at any time.
    pub peak_bytes: u64,
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

/// A buffer of ours, which counts, or a part of one of the host's, which does not.
#[derive(Debug)]
struct Buffer {
    raw: wgpu::Buffer,
    offset: u64,
    bytes: u64,
    counters: Option<Arc<Counters>>,
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if let Some(counters) = &self.counters {
            counters.live.fetch_sub(self.bytes, Ordering::Relaxed);
        }
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
    // These futures are ready as they come: nothing here waits for the device.
    let (internal, validation, memory) = (internal.pop(), validation.pop(), memory.pop());
    let found =
        pollster::block_on(memory).or(pollster::block_on(validation)).or(pollster::block_on(internal));
    found.map_or(Ok(out), |e| Err(failure(what, &e)))
}

/// An error of wgpu's as ours.
fn failure(what: &dyn Display, error: &wgpu::Error) -> Error {
    match error {
        wgpu::Error::OutOfMemory { .. } => Error::OutOfMemory { what: what.to_string(), bytes: 0 },
        _ => Error::Device(format!("{what}: {}", text(error))),
    }
}

impl Shared {
    /// Runs `f` and turns every error that the device reports meanwhile on this thread into ours.
    fn scoped<T>(&self, what: &dyn Display, f: impl FnOnce() -> T) -> Result<T> {
        self.watch.check()?;
        let out = scoped(&self.device, what, f);
        // What was made without an error turns invalid by the loss of the device.
        if matches!(out, Err(Error::Device(_))) {
            self.look()?;
        }
        self.watch.check()?;
        out
    }

    fn buffer(&self, what: &str, bytes: u64, usage: wgpu::BufferUsages) -> Result<Arc<Buffer>> {
        let size = bytes.max(4);
        let descriptor = wgpu::BufferDescriptor { label: Some(what), size, usage, mapped_at_creation: false };
        let made = self.scoped(&what, || self.device.create_buffer(&descriptor));
        let raw = made.map_err(|e| match e {
            Error::OutOfMemory { what, .. } => Error::OutOfMemory { what, bytes: size },
            e => e,
        })?;
        self.allocated.count.fetch_add(1, Ordering::Relaxed);
        self.allocated.bytes.fetch_add(size, Ordering::Relaxed);
        let before = self.allocated.live.fetch_add(size, Ordering::Relaxed);
        self.allocated.peak.fetch_max(before + size, Ordering::Relaxed);
        Ok(Arc::new(Buffer { raw, offset: 0, bytes: size, counters: Some(self.allocated.clone()) }))
    }

    /// A part of a buffer of the host's, in the place of one of ours of `bytes`.
    fn part(&self, what: &str, bytes: u64, part: wgpu::BufferSlice<'_>) -> Result<Arc<Buffer>> {
        let refuse = |problem: String| Err(Error::config(what, format!("the host's buffer {problem}")));
        let (raw, offset) = (part.buffer().clone(), part.offset());
        if !raw.usage().contains(wgpu::BufferUsages::STORAGE) {
            return refuse(format!("needs the usage STORAGE, it has {:?}", raw.usage()));
        }
        // No device wants more than these 256 bytes, and a host that keeps to them runs on all.
        let align = ALIGN_BYTES.max(self.device.limits().min_storage_buffer_offset_alignment.into());
        if !offset.is_multiple_of(align) {
            return refuse(format!("is to be bound from byte {offset}, which is no multiple of {align}"));
        }
        let size = part.size();
        if size < bytes {
            return refuse(format!("has {size} bytes from byte {offset} on, and {bytes} are needed"));
        }
        Ok(Arc::new(Buffer { raw, offset, bytes, counters: None }))
    }

    /// Writes a buffer from its first byte on.
    fn upload(&self, what: &str, buffer: &Buffer, bytes: &[u8]) -> Result<()> {
        if !buffer.raw.usage().contains(wgpu::BufferUsages::COPY_DST) {
            let problem = "the host's buffer needs the usage COPY_DST to be written from here";
            return Err(Error::config(what, problem));
        }
        self.scoped(&what, || match bytes.len() % 4 {
            0 => self.queue.write_buffer(&buffer.raw, buffer.offset, bytes),
            // An odd number of 16-bit floats.
            rest => {
                let padded = [bytes, &[0; 3][..4 - rest]].concat();
                self.queue.write_buffer(&buffer.raw, buffer.offset, &padded);
            }
        })?;
        self.look()
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
    lines.join(": ")
}

impl Gpu {
    /// Runs on the caller's device. `info` is the adapter's.
    ///
    /// The handles are kept as they are: no error handler and no callback is installed. Errors are caught by scopes, on the
    /// thread of the call; a host with a callback for the loss of its device passes it on with [`Gpu::notice_lost`].
    ///
    /// # Errors
    /// When the device is lost.
    pub fn new(device: wgpu::Device, queue: wgpu::Queue, info: wgpu::AdapterInfo) -> Result<Gpu> {
        Self::build(device, queue, info, None, None)
    }

    fn build(
        device: wgpu::Device,
        queue: wgpu::Queue,
        info: wgpu::AdapterInfo,
        watch: Option<Arc<Watch>>,
        helpers: Option<compile::Helpers>,
    ) -> Result<Gpu> {
        let profile = profile::of(&device, &info);
        let probe = scoped(&device, &"a first buffer", || {
            let usage = wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST;
            let descriptor =
                wgpu::BufferDescriptor { label: None, size: 4, usage, mapped_at_creation: false };
            Mutex::new(device.create_buffer(&descriptor))
        })?;
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
            pipeline_cache: Mutex::default(),
            pipelines: Default::default(),
            compiled: AtomicU64::new(0),
            compile_nanos: AtomicU64::new(0),
            allocated: Arc::default(),
            helpers,
            probe,
            watch: watch.unwrap_or_default(),
            timeout: Mutex::new(wait::TIMEOUT),
        };
        Ok(Gpu { shared: Arc::new(shared), checked: false, tuned: None })
    }

    /// What lowering needs to know of the device.
    pub fn profile(&self) -> &DeviceProfile {
        self.tuned.as_deref().unwrap_or(&self.shared.profile)
    }

    /// The same device, whose plans have the variants of kernels that this table chooses. Results differ within what
    /// rounding allows.
    pub fn tuned(&self, tuning: Tuning) -> Gpu {
        let profile = DeviceProfile { tuning, ..self.shared.profile.clone() };
        Gpu { tuned: Some(Arc::new(profile)), ..self.clone() }
    }

    /// What measurements on this adapter are known by.
    pub fn adapter_key(&self) -> AdapterKey {
        let info = &self.shared.info;
        AdapterKey {
            name: info.name.clone(),
            backend: self.backend(),
            driver: info.driver.clone(),
            driver_version: info.driver_info.clone(),
        }
    }

    /// The same device with (or without) runtime checks in its kernels: bounds, divisors, zeroed workgroup memory.
    pub fn checked(&self, checked: bool) -> Gpu {
        Gpu { checked, ..self.clone() }
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
            peak_bytes: c.peak.load(Ordering::Relaxed),
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
    /// When the plan was made for a device that can do more than this one, when the device is out of memory or lost, when
    /// a kernel does not compile, or when a state of the same name and another type exists.
    pub fn executor(&self, plan: Plan, memory: &Memory) -> Result<Executor> {
        Executor::new(self, plan, memory)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;

    /// Not every driver says so: Mesa's llvmpipe hands out memory until the system stops the program.
    #[test]
    fn out_of_memory_has_a_kind_of_its_own() {
        let full = wgpu::Error::OutOfMemory { source: "Not enough memory left.".into() };
        let error = failure(&"a page", &full);
        assert_eq!(error.kind(), ErrorKind::OutOfMemory);
        assert!(
            error.to_string().starts_with("GPU: out of memory for a page: take a smaller batch"),
            "{error}"
        );
        let sized = Error::OutOfMemory { what: "a page".into(), bytes: 256 };
        assert!(sized.to_string().contains("for a page (256 bytes): take"), "{sized}");
        let description = "Validation Error\n\nCaused by:\n  a is invalid\n".to_string();
        let error = failure(&"a page", &wgpu::Error::Validation { source: "".into(), description });
        assert_eq!(
            (error.kind(), error.to_string().as_str()),
            (ErrorKind::Device, "GPU: a page: Validation Error: a is invalid")
        );
    }
}

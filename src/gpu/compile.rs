//! Kernels become pipelines, on several threads.
//!
//! Most drivers compile when a pipeline is made. Mesa's llvmpipe does at the first dispatch, on the one thread of its
//! queue; but what one device has compiled, all find in Mesa's cache. So on llvmpipe every new kernel is dispatched once
//! with an empty grid, some by the device and some by others that are made for this alone. With every block of parameters
//! that the plan has for it: Mesa puts those that loops end by into the code where that makes it shorter, as zeros would.

use super::{Gpu, Pipeline, Shared, lock};
use crate::kernel::Kernel;
use crate::plan::{ALIGN_BYTES, Plan};
use crate::{Error, Result};
use std::cmp::Reverse;
use std::collections::{BTreeSet, HashSet};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

/// The most threads: drivers lock what they share, so more gain little.
const MOST_THREADS: usize = 8;

/// Devices that only compile, for [`Gpu::pipelines`].
#[derive(Debug)]
pub(super) struct Helpers {
    /// Where to make them.
    adapter: wgpu::Adapter,
    made: Mutex<Vec<Gpu>>,
}

impl Helpers {
    /// For the devices of an adapter; none where drivers compile early enough by themselves.
    pub fn new(adapter: &wgpu::Adapter) -> Option<Helpers> {
        let late = adapter.get_info().driver == "llvmpipe";
        late.then(|| Helpers { adapter: adapter.clone(), made: Mutex::default() })
    }

    /// So many devices. Fewer where the driver does not give them.
    fn take(&self, count: usize) -> Vec<Gpu> {
        let mut made = lock(&self.made);
        while made.len() < count {
            match pollster::block_on(super::request::device(&self.adapter, None)) {
                Ok(gpu) => made.push(gpu),
                Err(_) => break,
            }
        }
        made.iter().take(count).cloned().collect()
    }
}

fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, |n| n.get()).min(MOST_THREADS)
}

/// Calls `f` with each index below `count`, on threads that take the next one in turn, each with an item of `workers`. Ends
/// with the first error.
fn in_parallel<W: Sync>(
    workers: &[W],
    count: usize,
    f: impl Fn(&W, usize) -> Result<()> + Sync,
) -> Result<()> {
    let (next, failed) = (AtomicUsize::new(0), AtomicBool::new(false));
    let work = |worker: &W| {
        while !failed.load(Ordering::Relaxed) {
            let index = next.fetch_add(1, Ordering::Relaxed);
            if index >= count {
                break;
            }
            if let Err(e) = f(worker, index) {
                failed.store(true, Ordering::Relaxed);
                return Err(e);
            }
        }
        Ok(())
    };
    let Some((first, others)) = workers.split_first() else { return Ok(()) };
    std::thread::scope(|scope| {
        let others: Vec<_> = others.iter().map(|worker| scope.spawn(|| work(worker))).collect();
        let mut outcome = work(first);
        for other in others {
            let ended = other.join();
            outcome = outcome.and(ended.unwrap_or_else(|_| Err(Error::Internal("a thread panicked".into()))));
        }
        outcome
    })
}

impl Gpu {
    /// The pipelines of these kernels; those that are new are compiled, and their numbers given.
    pub(super) fn pipelines(&self, kernels: &[Kernel]) -> Result<(Vec<Pipeline>, Vec<usize>)> {
        let cache = &self.shared.pipelines[self.checked as usize];
        let new: Vec<usize> = {
            let (known, mut seen) = (lock(cache), HashSet::new());
            let is_new = |&i: &usize| !known.contains_key(&kernels[i]) && seen.insert(&kernels[i]);
            (0..kernels.len()).filter(is_new).collect()
        };
        let workers = vec![(); threads().min(new.len())];
        in_parallel(&workers, new.len(), |_, i| {
            let kernel = &kernels[new[i]];
            let made = self.shared.compile(kernel, self.checked)?;
            lock(cache).insert(kernel.clone(), made);
            Ok(())
        })?;
        let known = lock(cache);
        let missing = || Error::Internal("a pipeline is missing".into());
        let all = kernels.iter().map(|k| known.get(k).cloned().ok_or_else(missing));
        Ok((all.collect::<Result<_>>()?, new))
    }

    /// The pipelines of a plan's kernels, compiled also where the driver compiles at the first dispatch.
    pub(super) fn pipelines_of(&self, plan: &Plan) -> Result<Vec<Pipeline>> {
        let (pipelines, new) = self.pipelines(&plan.kernels)?;
        self.dispatch_first(plan, &pipelines, new)?;
        Ok(pipelines)
    }

    /// Where the driver compiles at the first dispatch, that of these kernels of a plan.
    fn dispatch_first(&self, plan: &Plan, pipelines: &[Pipeline], mut new: Vec<usize>) -> Result<()> {
        let Some(helpers) = &self.shared.helpers else { return Ok(()) };
        if new.is_empty() {
            return Ok(());
        }
        // What takes longest begins first, so that no worker waits for it at the end; long texts do.
        new.sort_by_key(|&k| Reverse(plan.kernels[k].parts.iter().map(|part| part.len()).sum::<usize>()));
        let start = Instant::now();
        let mut devices = vec![self.clone()];
        devices.extend(helpers.take(threads().min(new.len()) - 1));
        in_parallel(&devices, new.len(), |gpu, i| {
            let kernel = &plan.kernels[new[i]];
            let steps = plan.steps.iter().filter(|step| step.kernel == new[i]);
            let places: BTreeSet<u32> = steps.map(|step| step.params.unwrap_or(0)).collect();
            if Arc::ptr_eq(&gpu.shared, &self.shared) {
                return gpu.shared.dispatch_nothing(kernel, &pipelines[new[i]], &plan.params, &places);
            }
            // A helper forgets what it has compiled: only Mesa's cache is to keep it. Where it fails, the first run compiles.
            let made = gpu.shared.compile(kernel, self.checked);
            let _ = made.and_then(|made| gpu.shared.dispatch_nothing(kernel, &made, &plan.params, &places));
            Ok(())
        })?;
        self.shared.compile_nanos.fetch_add(start.elapsed().as_nanos() as u64, Ordering::Relaxed);
        Ok(())
    }
}

impl Shared {
    /// Makes a pipeline.
    fn compile(&self, kernel: &Kernel, checked: bool) -> Result<Pipeline> {
        let layout = self.layout(&kernel.bindings)?;
        let cache = lock(&self.pipeline_cache).clone();
        let start = Instant::now();
        let raw = self.scoped(&format_args!("kernel {}", kernel.name), || {
            let source = wgpu::ShaderSource::Wgsl(kernel.wgsl().into());
            let descriptor = wgpu::ShaderModuleDescriptor { label: Some(&kernel.name), source };
            // SAFETY: every kernel keeps its indices in bounds and its loops finite by construction; the tests run each
            // of them with and without checks and compare the bits.
            let module =
                unsafe { self.device.create_shader_module_trusted(descriptor, runtime_checks(checked)) };
            self.device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
                label: Some(&kernel.name),
                layout: Some(&layout.pipeline),
                module: &module,
                entry_point: Some(kernel.entry),
                compilation_options: wgpu::PipelineCompilationOptions {
                    constants: &[],
                    zero_initialize_workgroup_memory: checked,
                },
                cache: cache.as_ref(),
            })
        })?;
        self.compiled.fetch_add(1, Ordering::Relaxed);
        self.compile_nanos.fetch_add(start.elapsed().as_nanos() as u64, Ordering::Relaxed);
        Ok(Pipeline { raw, storage: layout.storage })
    }

    /// Dispatches a kernel over an empty grid with the blocks of `params` at these places, and waits.
    fn dispatch_nothing(
        &self,
        kernel: &Kernel,
        pipeline: &Pipeline,
        params: &[u8],
        places: &BTreeSet<u32>,
    ) -> Result<()> {
        self.scoped(&format_args!("kernel {}", kernel.name), || {
            let buffer = |usage, size: u64| {
                let size = size.max(ALIGN_BYTES);
                let nothing = wgpu::BufferDescriptor { label: None, size, usage, mapped_at_creation: false };
                self.device.create_buffer(&nothing)
            };
            let group = |layout: &wgpu::BindGroupLayout, buffers: &[wgpu::Buffer]| {
                let entries: Vec<_> = buffers
                    .iter()
                    .enumerate()
                    .map(|(i, b)| wgpu::BindGroupEntry { binding: i as u32, resource: block(b) })
                    .collect();
                let descriptor = wgpu::BindGroupDescriptor { label: None, layout, entries: &entries };
                self.device.create_bind_group(&descriptor)
            };
            let storage: Vec<_> =
                kernel.bindings.iter().map(|_| buffer(wgpu::BufferUsages::STORAGE, 0)).collect();
            let usage = wgpu::BufferUsages::UNIFORM | wgpu::BufferUsages::COPY_DST;
            let uniform = [buffer(usage, params.len() as u64)];
            self.queue.write_buffer(&uniform[0], 0, params);
            let groups = [group(&pipeline.storage, &storage), group(&self.params_layout, &uniform)];
            let mut encoder = self.device.create_command_encoder(&Default::default());
            let mut pass = encoder.begin_compute_pass(&Default::default());
            pass.set_pipeline(&pipeline.raw);
            pass.set_bind_group(0, &groups[0], &[]);
            for &place in places {
                pass.set_bind_group(1, &groups[1], &[place]);
                pass.dispatch_workgroups(0, 1, 1);
            }
            drop(pass);
            self.queue.submit([encoder.finish()]);
        })?;
        self.wait("compiling")
    }
}

/// What kernels bind of a buffer here.
fn block(buffer: &wgpu::Buffer) -> wgpu::BindingResource<'_> {
    let size = std::num::NonZeroU64::new(ALIGN_BYTES);
    wgpu::BindingResource::Buffer(wgpu::BufferBinding { buffer, offset: 0, size })
}

/// Loops are never bounded: a kernel whose loop does not end hangs with a bound of 2^64 rounds as well, and with the
/// bound's counters Mesa takes five times as long to compile (attention with heads of 64: 51 s instead of 11 s).
fn runtime_checks(checked: bool) -> wgpu::ShaderRuntimeChecks {
    if checked {
        wgpu::ShaderRuntimeChecks { force_loop_bounding: false, ..wgpu::ShaderRuntimeChecks::checked() }
    } else {
        wgpu::ShaderRuntimeChecks::unchecked()
    }
}

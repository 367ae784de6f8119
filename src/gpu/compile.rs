//! Kernels become pipelines, on several threads.
//!
//! Most drivers compile when a pipeline is made. Mesa's llvmpipe does at the first dispatch, on the one thread of its
//! queue; but what one device has compiled, all find in Mesa's cache. So on llvmpipe every new kernel is dispatched once
//! with an empty grid, some by the device and some by others that are made for this alone; and with each block of parameters
//! that is new, since those that branches and loops depend on become constants of the code.

use super::{Gpu, Pipeline, Shared, lock};
use crate::kernel::Kernel;
use crate::plan::{ALIGN_BYTES, Plan};
use crate::{Error, Result};
use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, RandomState};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Instant;

/// The most threads: drivers lock what they share, so more gain little.
const MOST_THREADS: usize = 8;

/// Devices that only compile, for [`Gpu::pipelines`].
#[derive(Debug)]
pub(super) struct Helpers {
    /// Where to make them.
    adapter: wgpu::Adapter,
    made: Mutex<Vec<Gpu>>,
    hasher: RandomState,
    /// Hashes of the kernels with their parameters that were dispatched.
    seen: Mutex<HashSet<u64>>,
}

impl Helpers {
    /// For the devices of an adapter; none where drivers compile early enough by themselves.
    pub fn new(adapter: &wgpu::Adapter) -> Option<Helpers> {
        let late = adapter.get_info().driver == "llvmpipe";
        let adapter = late.then(|| adapter.clone())?;
        Some(Helpers { adapter, made: Mutex::default(), hasher: RandomState::new(), seen: Mutex::default() })
    }

    /// What of a plan was never dispatched: of each kernel the places of parameters.
    fn unseen(&self, plan: &Plan, checked: bool) -> Vec<Vec<u32>> {
        let hashes: Vec<u64> = plan.kernels.iter().map(|k| self.hasher.hash_one((checked, k))).collect();
        let mut places: HashMap<(usize, u32), ()> = HashMap::new();
        let mut found = vec![Vec::new(); plan.kernels.len()];
        let mut seen = lock(&self.seen);
        for step in &plan.steps {
            let at = step.params.unwrap_or(0);
            if places.insert((step.kernel, at), ()).is_none() {
                let block =
                    step.params.and_then(|at| plan.params.get(at as usize..)?.get(..ALIGN_BYTES as usize));
                if seen.insert(self.hasher.hash_one((hashes[step.kernel], block))) {
                    found[step.kernel].push(at);
                }
            }
        }
        found
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
    /// The pipelines of these kernels; those that are new are compiled.
    pub(super) fn pipelines(&self, kernels: &[Kernel]) -> Result<Vec<Pipeline>> {
        let cache = &self.shared.pipelines[self.checked as usize];
        let mut new: Vec<&Kernel> = Vec::new();
        {
            let known = lock(cache);
            let mut seen = HashSet::new();
            new.extend(kernels.iter().filter(|k| !known.contains_key(k) && seen.insert(*k)));
        }
        let workers = vec![(); threads().min(new.len())];
        in_parallel(&workers, new.len(), |_, i| {
            let made = self.shared.compile(new[i], self.checked)?;
            lock(cache).insert(new[i].clone(), made);
            Ok(())
        })?;
        let known = lock(cache);
        let missing = || Error::Internal("a pipeline is missing".into());
        kernels.iter().map(|k| known.get(k).cloned().ok_or_else(missing)).collect()
    }

    /// Where the driver compiles at the first dispatch, the first dispatch of each kernel of a plan with each of its
    /// parameters, `pipelines` being those of the kernels.
    pub(super) fn dispatch_first(&self, plan: &Plan, pipelines: &[Pipeline]) -> Result<()> {
        let Some(helpers) = &self.shared.helpers else { return Ok(()) };
        let places = helpers.unseen(plan, self.checked);
        let mut new: Vec<usize> = (0..plan.kernels.len()).filter(|&k| !places[k].is_empty()).collect();
        if new.is_empty() {
            return Ok(());
        }
        // What takes longest begins first, so that no worker waits for it at the end; long texts do.
        new.sort_by_key(|&k| Reverse(plan.kernels[k].parts.iter().map(|part| part.len()).sum::<usize>()));
        let start = Instant::now();
        let mut devices = vec![self.clone()];
        devices.extend(helpers.take(threads().min(new.len()) - 1));
        in_parallel(&devices, new.len(), |gpu, i| {
            let (kernel, places) = (&plan.kernels[new[i]], &places[new[i]]);
            if std::sync::Arc::ptr_eq(&gpu.shared, &self.shared) {
                return gpu.shared.dispatch_nothing(kernel, &pipelines[new[i]], &plan.params, places);
            }
            // A helper forgets what it has compiled: only Mesa's cache is to keep it. Where it fails, the first run compiles.
            let made = gpu.shared.compile(kernel, self.checked);
            let _ = made.and_then(|made| gpu.shared.dispatch_nothing(kernel, &made, &plan.params, places));
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

    /// Dispatches a kernel over an empty grid with the blocks at these places of `params`, and waits.
    fn dispatch_nothing(
        &self,
        kernel: &Kernel,
        pipeline: &Pipeline,
        params: &[u8],
        places: &[u32],
    ) -> Result<()> {
        self.scoped(&format_args!("kernel {}", kernel.name), || {
            let buffer = |usage, size: u64| {
                let filled = usage == wgpu::BufferUsages::UNIFORM;
                let (label, size) = (None, size.max(ALIGN_BYTES));
                let descriptor = wgpu::BufferDescriptor { label, size, usage, mapped_at_creation: filled };
                self.device.create_buffer(&descriptor)
            };
            let group = |layout: &wgpu::BindGroupLayout, buffers: &[wgpu::Buffer]| {
                let entries: Vec<_> = buffers
                    .iter()
                    .enumerate()
                    .map(|(i, b)| wgpu::BindGroupEntry { binding: i as u32, resource: binding(b) })
                    .collect();
                let descriptor = wgpu::BindGroupDescriptor { label: None, layout, entries: &entries };
                self.device.create_bind_group(&descriptor)
            };
            let storage: Vec<_> =
                kernel.bindings.iter().map(|_| buffer(wgpu::BufferUsages::STORAGE, 0)).collect();
            let uniform = [buffer(wgpu::BufferUsages::UNIFORM, params.len() as u64)];
            if let Ok(mut mapped) = uniform[0].get_mapped_range_mut(..params.len() as u64) {
                mapped.copy_from_slice(params);
            }
            uniform[0].unmap();
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

/// As kernels bind their buffers: of parameters one block.
fn binding(buffer: &wgpu::Buffer) -> wgpu::BindingResource<'_> {
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

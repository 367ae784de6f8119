//! Runs a plan: buffers, pipelines and bind groups are made once; a run records one pass and submits it.

use super::memory::{Part, Reading, Ring, poll, read_one, readback_bytes};
use super::{Buffer, Gpu, Memory, Pipeline, TIMEOUT};
use crate::graph::{Derived, ValueId, argsort};
use crate::kernel::Access;
use crate::plan::{ALIGN_BYTES, BufferKind, Place, Plan};
use crate::{Error, HostTensor, Result, TensorType};
use std::collections::HashMap;
use std::num::NonZeroU64;
use std::sync::Arc;

/// A plan on a device.
#[derive(Debug)]
pub struct Executor {
    gpu: Gpu,
    memory: Memory,
    plan: Plan,
    pipelines: Vec<Pipeline>,
    /// One for each buffer of the plan.
    buffers: Vec<Arc<Buffer>>,
    /// By buffer: an input that was never written.
    missing: Vec<bool>,
    /// The buffers of the plan that are slots, the largest first.
    slots: Vec<usize>,
    generation: u64,
    /// Deduplicated, and for each step its number.
    groups: Vec<wgpu::BindGroup>,
    step_groups: Vec<usize>,
    params: wgpu::BindGroup,
    /// Behind `params`; kept for the count of live bytes.
    _params_buffer: Arc<Buffer>,
    outputs: Arc<[Part]>,
    ring: Ring,
}

impl Executor {
    pub(super) fn new(gpu: &Gpu, plan: Plan, memory: &Memory) -> Result<Executor> {
        let shared = &gpu.shared;
        if !memory.is_on(shared) {
            return Err(Error::config("memory", "belongs to another device than the plan is to run on"));
        }
        let pipelines = gpu.pipelines(&plan.kernels)?;
        let mut slots: Vec<usize> =
            (0..plan.buffers.len()).filter(|&i| matches!(plan.buffers[i].kind, BufferKind::Slot)).collect();
        slots.sort_by_key(|&i| std::cmp::Reverse(plan.buffers[i].bytes));
        let sizes: Vec<u64> = slots.iter().map(|&i| plan.buffers[i].bytes).collect();
        let (pooled, generation) = memory.slots(&sizes)?;
        let mut buffers = Vec::with_capacity(plan.buffers.len());
        for (i, spec) in plan.buffers.iter().enumerate() {
            use wgpu::BufferUsages as Usage;
            buffers.push(match &spec.kind {
                BufferKind::Slot => {
                    let k = slots.iter().position(|&s| s == i).unwrap_or(0);
                    pooled[k].clone()
                }
                BufferKind::Output => {
                    shared.buffer("output", spec.bytes, Usage::STORAGE | Usage::COPY_SRC)?
                }
                BufferKind::Input { name, .. } => {
                    shared.buffer(name, spec.bytes, Usage::STORAGE | Usage::COPY_SRC | Usage::COPY_DST)?
                }
                BufferKind::State { name, ty } => memory.state(name, ty)?,
                BufferKind::Constant(tensor) => {
                    let usage = Usage::STORAGE | Usage::COPY_SRC | Usage::COPY_DST;
                    let buffer = shared.buffer("constant", spec.bytes, usage)?;
                    shared
                        .scoped(&"constant", || shared.queue.write_buffer(&buffer.raw, 0, tensor.bytes()))?;
                    buffer
                }
            });
        }
        let mut block = plan.params.clone();
        block.resize(block.len().max(ALIGN_BYTES as usize), 0);
        let usage = wgpu::BufferUsages::UNIFORM | wgpu::BufferUsages::COPY_DST;
        let params_buffer = shared.buffer("parameters", block.len() as u64, usage)?;
        let params = shared.scoped(&"parameters", || {
            shared.queue.write_buffer(&params_buffer.raw, 0, &block);
            shared.device.create_bind_group(&wgpu::BindGroupDescriptor {
                label: Some("parameters"),
                layout: &shared.params_layout,
                entries: &[wgpu::BindGroupEntry {
                    binding: 0,
                    resource: binding(&params_buffer, 0, ALIGN_BYTES),
                }],
            })
        })?;
        let missing = plan.buffers.iter().map(|b| matches!(b.kind, BufferKind::Input { .. })).collect();
        let mut executor = Executor {
            gpu: gpu.clone(),
            memory: memory.clone(),
            plan,
            pipelines,
            buffers,
            missing,
            slots,
            generation,
            groups: Vec::new(),
            step_groups: Vec::new(),
            params,
            _params_buffer: params_buffer,
            outputs: Arc::default(),
            ring: Ring::default(),
        };
        executor.bind()?;
        executor.outputs =
            executor.plan.outputs.iter().map(|o| executor.part(o.value)).collect::<Result<_>>()?;
        Ok(executor)
    }

    /// The plan.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The device.
    pub fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    /// The memory that its states are in.
    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    /// Makes the bind groups: one for each distinct list of parts of buffers and layout.
    fn bind(&mut self) -> Result<()> {
        let shared = &self.gpu.shared;
        let mut known: HashMap<(&[Place], &[Access]), usize> = HashMap::new();
        let (mut groups, mut step_groups) = (Vec::new(), Vec::new());
        for step in &self.plan.steps {
            let kernel = &self.plan.kernels[step.kernel];
            let next = groups.len();
            let group = *known.entry((&step.bindings, &kernel.bindings)).or_insert(next);
            if group == next {
                let entries: Vec<_> = step
                    .bindings
                    .iter()
                    .enumerate()
                    .map(|(i, p)| wgpu::BindGroupEntry {
                        binding: i as u32,
                        resource: binding(&self.buffers[p.buffer], p.offset, p.bytes),
                    })
                    .collect();
                groups.push(shared.scoped(&step.label, || {
                    shared.device.create_bind_group(&wgpu::BindGroupDescriptor {
                        label: Some(&kernel.name),
                        layout: &self.pipelines[step.kernel].storage,
                        entries: &entries,
                    })
                })?);
            }
            step_groups.push(group);
        }
        self.groups = groups;
        self.step_groups = step_groups;
        Ok(())
    }

    /// Takes over the pool's slots where another plan has replaced some by larger ones.
    fn refresh(&mut self) -> Result<()> {
        if self.memory.generation() == self.generation {
            return Ok(());
        }
        let sizes: Vec<u64> = self.slots.iter().map(|&i| self.plan.buffers[i].bytes).collect();
        let (pooled, generation) = self.memory.slots(&sizes)?;
        for (buffer, &i) in pooled.into_iter().zip(&self.slots) {
            self.buffers[i] = buffer;
        }
        self.bind()?;
        self.generation = generation;
        Ok(())
    }

    /// Writes an input, and the inputs that are derived from it.
    ///
    /// # Errors
    /// When `id` is no input of the graph, or the tensor has another type.
    pub fn write(&mut self, id: ValueId, tensor: &HostTensor) -> Result<()> {
        let Some(input) = self.plan.inputs.iter().find(|i| i.value == id) else {
            return Err(Error::Input(format!("value {} is no input of this plan", id.index())));
        };
        if input.ty != tensor.ty() {
            return Err(Error::shape("input", &input.name, &input.ty, tensor.ty()));
        }
        let mut derived = Vec::new();
        for (i, spec) in self.plan.buffers.iter().enumerate() {
            match &spec.kind {
                BufferKind::Input { value, .. } if *value == id => {
                    self.upload(i, tensor.bytes())?;
                    derived.push(i);
                }
                BufferKind::Input { derived: Some(Derived::Argsort(of)), name, .. } if *of == id => {
                    let order = argsort(tensor.as_u32(name)?);
                    self.upload(i, bytemuck::cast_slice(&order))?;
                    derived.push(i);
                }
                _ => {}
            }
        }
        for i in derived {
            self.missing[i] = false;
        }
        Ok(())
    }

    fn upload(&self, buffer: usize, bytes: &[u8]) -> Result<()> {
        let shared = &self.gpu.shared;
        shared.scoped(&"writing an input", || {
            shared.queue.write_buffer(&self.buffers[buffer].raw, 0, bytes);
        })
    }

    /// Runs the plan once: one encoder, one pass, one submission. Does not wait.
    ///
    /// # Errors
    /// When an input was never written, or the device fails.
    pub fn run(&mut self) -> Result<()> {
        let encoder = self.record()?;
        let shared = &self.gpu.shared;
        shared.scoped(&"a run", || {
            shared.queue.submit([encoder.finish()]);
        })
    }

    /// [`Executor::run`], with a copy of all outputs into a readback buffer in the same submission. Does not wait.
    ///
    /// # Errors
    /// When an input was never written, or the device fails.
    pub fn run_and_fetch(&mut self) -> Result<Fetch> {
        let encoder = self.record()?;
        let bytes = readback_bytes(&self.outputs);
        let reading = Reading::start(&self.gpu.shared, &self.ring, bytes, &self.outputs, Some(encoder))?;
        Ok(Fetch { reading, outputs: self.outputs.clone() })
    }

    /// Checks that the plan can run, and takes over what has changed in the memory.
    pub(super) fn prepare(&mut self) -> Result<()> {
        if let Some(i) = self.missing.iter().position(|&m| m) {
            return Err(self.missing_input(i));
        }
        self.refresh()
    }

    fn record(&mut self) -> Result<wgpu::CommandEncoder> {
        self.prepare()?;
        let device = &self.gpu.shared.device;
        self.gpu.shared.scoped(&"a run", || {
            let mut encoder = device.create_command_encoder(&Default::default());
            let mut pass = encoder.begin_compute_pass(&Default::default());
            let mut bound = Bound::default();
            for step in 0..self.plan.steps.len() {
                self.dispatch(&mut pass, step, &mut bound);
            }
            drop(pass);
            encoder
        })
    }

    pub(super) fn dispatch(&self, pass: &mut wgpu::ComputePass<'_>, index: usize, bound: &mut Bound) {
        let (step, group) = (&self.plan.steps[index], self.step_groups[index]);
        if bound.kernel.replace(step.kernel) != Some(step.kernel) {
            pass.set_pipeline(&self.pipelines[step.kernel].raw);
        }
        if bound.group.replace(group) != Some(group) {
            pass.set_bind_group(0, &self.groups[group], &[]);
        }
        // A kernel without parameters does not look at the block that is bound.
        let params = step.params.or(bound.params).unwrap_or(0);
        if bound.params.replace(params) != Some(params) {
            pass.set_bind_group(1, &self.params, &[params]);
        }
        let [x, y, z] = step.groups;
        pass.dispatch_workgroups(x, y, z);
    }

    fn missing_input(&self, buffer: usize) -> Error {
        let BufferKind::Input { name, derived, .. } = &self.plan.buffers[buffer].kind else {
            return Error::Internal(format!("buffer {buffer} is no input"));
        };
        let source = derived.as_ref().and_then(|Derived::Argsort(of)| {
            self.plan.inputs.iter().find(|i| i.value == *of).map(|i| i.name.as_str())
        });
        Error::Input(format!("input {} was never written; write it before a run", source.unwrap_or(name)))
    }

    fn part(&self, id: ValueId) -> Result<Part> {
        let output = self.plan.outputs.iter().find(|o| o.value == id);
        match (output, self.plan.places.get(&id)) {
            (Some(o), Some(&Place { buffer, offset, .. })) => {
                Ok(Part { buffer: self.buffers[buffer].raw.clone(), offset, ty: o.ty.clone() })
            }
            _ => Err(Error::Input(format!("value {} is no output of this plan", id.index()))),
        }
    }

    /// Reads an output as the last run left it; blocks until that run is done.
    ///
    /// # Errors
    /// When `id` is no output of the plan, or the device fails.
    pub fn read(&self, id: ValueId) -> Result<HostTensor> {
        let part = self.part(id)?;
        read_one(&self.gpu.shared, &self.ring, readback_bytes(&self.outputs), part)
    }

    /// The bytes of all inputs and states as they are now, each with the number of its buffer in the plan: what
    /// [`crate::verify`] starts from. Blocks.
    ///
    /// # Errors
    /// When an input was never written, or the device fails.
    pub fn snapshot(&self) -> Result<Vec<(usize, Vec<u8>)>> {
        let mut all = Vec::new();
        for (i, spec) in self.plan.buffers.iter().enumerate() {
            if self.missing[i] {
                return Err(self.missing_input(i));
            }
            if matches!(spec.kind, BufferKind::Input { .. } | BufferKind::State { .. }) {
                let ty = TensorType::u32([spec.bytes as usize / 4]);
                let part = Part { buffer: self.buffers[i].raw.clone(), offset: 0, ty };
                let bytes = read_one(&self.gpu.shared, &Ring::default(), spec.bytes, part)?;
                all.push((i, bytes.bytes().to_vec()));
            }
        }
        Ok(all)
    }

    /// Blocks until everything submitted so far is done.
    ///
    /// # Errors
    /// When the device fails.
    pub fn wait(&self) -> Result<()> {
        poll(&self.gpu.shared, wgpu::PollType::Wait { submission_index: None, timeout: Some(TIMEOUT) })
    }
}

/// What a pass has bound.
#[derive(Default)]
pub(super) struct Bound {
    kernel: Option<usize>,
    group: Option<usize>,
    params: Option<u32>,
}

fn binding(buffer: &Buffer, offset: u64, bytes: u64) -> wgpu::BindingResource<'_> {
    wgpu::BindingResource::Buffer(wgpu::BufferBinding {
        buffer: &buffer.raw,
        offset,
        size: NonZeroU64::new(bytes),
    })
}

/// Outputs on their way to the host. Dropping it gives them up.
#[derive(Debug)]
pub struct Fetch {
    reading: Reading,
    outputs: Arc<[Part]>,
}

impl Fetch {
    /// Whether [`Fetch::wait`] would return at once.
    ///
    /// # Errors
    /// When the device fails.
    pub fn ready(&self) -> Result<bool> {
        self.reading.ready()
    }

    /// The outputs, in the order in which they were given to the plan; blocks until they are there.
    ///
    /// # Errors
    /// When the device fails, or does not answer for ten minutes.
    pub fn wait(self) -> Result<Vec<HostTensor>> {
        self.reading.wait(&self.outputs)
    }
}

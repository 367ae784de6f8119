//! Runs a plan: buffers, pipelines and bind groups are made once; a run records one pass and submits it, or leaves that to
//! the host.

use super::memory::{Part, Read, Reading, Ring, read_one, readback_bytes};
use super::{Buffer, Gpu, Memory, Pipeline, Running};
use crate::graph::{Derived, ValueId, argsort};
use crate::kernel::Access;
use crate::plan::{ALIGN_BYTES, BufferKind, BufferSpec, Place, Plan, Port};
use crate::{Error, HostTensor, Result, TensorType};
use std::collections::HashMap;
use std::num::NonZeroU64;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

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
    /// One for each distinct list of parts of buffers and layout.
    groups: Vec<wgpu::BindGroup>,
    /// By group: the first step that has it.
    group_steps: Vec<usize>,
    /// By step: its group.
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
        plan.check(gpu.profile())?;
        let pipelines = gpu.pipelines_of(&plan)?;
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
                    shared.upload("constant", &buffer, tensor.bytes())?;
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
        let (group_steps, step_groups) = grouped(&plan);
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
            group_steps,
            step_groups,
            params,
            _params_buffer: params_buffer,
            outputs: Arc::default(),
            ring: Ring::default(),
        };
        executor.groups = executor.make_groups(|_| true)?.into_iter().map(|(_, group)| group).collect();
        executor.outputs = executor.parts()?;
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

    /// The bind groups that have one of these buffers of the plan, with their numbers.
    fn make_groups(&self, of: impl Fn(usize) -> bool) -> Result<Vec<(usize, wgpu::BindGroup)>> {
        let shared = &self.gpu.shared;
        let steps = self.group_steps.iter().map(|&s| &self.plan.steps[s]).enumerate();
        steps
            .filter(|(_, step)| step.bindings.iter().any(|p| of(p.buffer)))
            .map(|(number, step)| {
                let entry = |(i, p): (usize, &Place)| wgpu::BindGroupEntry {
                    binding: i as u32,
                    resource: binding(&self.buffers[p.buffer], p.offset, p.bytes),
                };
                let entries: Vec<_> = step.bindings.iter().enumerate().map(entry).collect();
                let group = shared.scoped(&step.label, || {
                    shared.device.create_bind_group(&wgpu::BindGroupDescriptor {
                        label: Some(&self.plan.kernels[step.kernel].name),
                        layout: &self.pipelines[step.kernel].storage,
                        entries: &entries,
                    })
                })?;
                Ok((number, group))
            })
            .collect()
    }

    /// Other buffers in the place of some of the plan's. Nothing changes where that fails.
    fn replace(&mut self, buffers: Vec<(usize, Arc<Buffer>)>) -> Result<()> {
        let swap =
            |all: &mut Vec<Arc<Buffer>>, new: Vec<(usize, Arc<Buffer>)>| -> Vec<(usize, Arc<Buffer>)> {
                new.into_iter().map(|(i, b)| (i, std::mem::replace(&mut all[i], b))).collect()
            };
        let old = swap(&mut self.buffers, buffers);
        let made = self.make_groups(|b| old.iter().any(|(i, _)| *i == b));
        match made.and_then(|groups| Ok((groups, self.parts()?))) {
            Ok((groups, outputs)) => {
                groups.into_iter().for_each(|(number, group)| self.groups[number] = group);
                self.outputs = outputs;
                Ok(())
            }
            Err(e) => {
                swap(&mut self.buffers, old);
                Err(e)
            }
        }
    }

    /// Takes over the pool's slots where another plan has replaced some by larger ones.
    fn refresh(&mut self) -> Result<()> {
        if self.memory.generation() == self.generation {
            return Ok(());
        }
        let sizes: Vec<u64> = self.slots.iter().map(|&i| self.plan.buffers[i].bytes).collect();
        let (pooled, generation) = self.memory.slots(&sizes)?;
        self.replace(self.slots.iter().copied().zip(pooled).collect())?;
        self.generation = generation;
        Ok(())
    }

    /// Has the plan read an input from a part of the host's own buffer, without a copy: `[..]` of its type, row-major, as it
    /// is at the time of a run. Makes bind groups and nothing else; another part may take its place later.
    /// [`Executor::write`] writes into it from now on.
    ///
    /// # Errors
    /// When `id` is no input of the plan, or an order is derived from it, which the host makes from what is written; when
    /// the buffer lacks the usage STORAGE, the part starts at no multiple of 256 bytes or is shorter than the input, or
    /// overlaps what the plan writes; or when a dispatch would read and write one buffer, which wgpu does not allow, be it
    /// in different parts.
    pub fn bind_input(&mut self, id: ValueId, part: wgpu::BufferSlice<'_>) -> Result<()> {
        let input = self.input(id)?;
        let (name, bytes) = (input.name.clone(), input.ty.bytes());
        let order = Some(Derived::Argsort(id));
        let follows =
            |b: &BufferSpec| matches!(b.kind, BufferKind::Input { derived, .. } if derived == order);
        if self.plan.buffers.iter().any(follows) {
            return Err(Error::Input(format!(
                "input {name} is sorted on the host, for sums in a fixed order, so it cannot be a buffer of the \
                 host's: write it"
            )));
        }
        let is_it = |b: &BufferSpec| matches!(b.kind, BufferKind::Input { value, .. } if value == id);
        // An input that no dispatch reads has no buffer; what is wrong with the host's is said all the same.
        let Some(i) = self.plan.buffers.iter().position(is_it) else {
            return self.gpu.shared.part(&name, bytes, part).map(|_| ());
        };
        self.bind(i, &name, part)?;
        self.missing[i] = false;
        Ok(())
    }

    /// Has the plan write an output into a part of the host's own buffer, without a copy. As [`Executor::bind_input`].
    /// Reading the output from here needs the usage COPY_SRC.
    ///
    /// # Errors
    /// When `id` is no output of the plan, or lies in a buffer with something else: outputs that are inputs, states, or
    /// parts of other values; else as [`Executor::bind_input`].
    pub fn bind_output(&mut self, id: ValueId, part: wgpu::BufferSlice<'_>) -> Result<()> {
        let (output, place) = self.output(id)?;
        let (spec, name) = (&self.plan.buffers[place.buffer], output.name.clone());
        let instead = match spec.kind {
            BufferKind::Output if place.bytes.max(4) == spec.bytes => {
                return self.bind(place.buffer, &name, part);
            }
            BufferKind::Output => "a part of another value: make that an output",
            BufferKind::Input { .. } => "an input: bind that",
            BufferKind::State { .. } => "a state: let the memory adopt it",
            BufferKind::Constant(_) | BufferKind::Slot => "a constant",
        };
        Err(Error::Input(format!("output {name} cannot be a buffer of the host's, it is {instead}")))
    }

    fn bind(&mut self, i: usize, name: &str, part: wgpu::BufferSlice<'_>) -> Result<()> {
        let buffer = self.gpu.shared.part(name, self.plan.buffers[i].bytes, part)?;
        self.check_sharing(i, name, &buffer)?;
        self.replace(vec![(i, buffer)])
    }

    /// Whether the plan can have this buffer of the host's as its buffer `i`, with the others that it has.
    fn check_sharing(&self, i: usize, name: &str, buffer: &Buffer) -> Result<()> {
        let same = |j: usize| j != i && self.buffers[j].raw == buffer.raw;
        let refuse = |j: usize, problem: &str| {
            let other = self.plan.buffer_name(j);
            Err(Error::config(name, format!("the host's buffer also has {other}, {problem}")))
        };
        let mut written = vec![false; self.buffers.len()];
        for step in &self.plan.steps {
            let access = &self.plan.kernels[step.kernel].bindings;
            let uses: Vec<_> =
                step.bindings.iter().zip(access).map(|(p, a)| (p.buffer, *a != Access::Read)).collect();
            uses.iter().filter(|(_, writes)| *writes).for_each(|(j, _)| written[*j] = true);
            for (_, writes) in uses.iter().filter(|(j, _)| *j == i) {
                if let Some((j, _)) = uses.iter().find(|(j, other)| same(*j) && other != writes) {
                    let problem = format!(
                        "and {} reads one and writes the other: wgpu does not allow that within a buffer, take two",
                        step.label
                    );
                    return refuse(*j, &problem);
                }
            }
        }
        for j in (0..self.buffers.len()).filter(|&j| same(j) && (written[i] || written[j])) {
            let other = &self.buffers[j];
            if buffer.offset < other.offset + other.bytes && other.offset < buffer.offset + buffer.bytes {
                return refuse(j, "at the same bytes, and one of them is written: take other parts");
            }
        }
        Ok(())
    }

    /// Writes an input, and the inputs that are derived from it.
    ///
    /// # Errors
    /// When `id` is no input of the graph, or the tensor has another type.
    pub fn write(&mut self, id: ValueId, tensor: &HostTensor) -> Result<()> {
        let input = self.input(id)?;
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
        self.gpu.shared.upload("writing an input", &self.buffers[buffer], bytes)
    }

    /// Runs the plan once: one encoder, one pass, one submission. Does not wait.
    ///
    /// # Errors
    /// When an input was never written, or the device fails.
    pub fn run(&mut self) -> Result<()> {
        let encoder = self.encoded()?;
        let shared = &self.gpu.shared;
        shared.scoped(&"a run", || {
            shared.queue.submit([encoder.finish()]);
        })
    }

    /// [`Executor::run`] with a future that ends when the run is done. The plan is submitted at once, before the future is
    /// polled for the first time; errors until then are the future's result.
    ///
    /// The future belongs to no runtime: whatever polls it is woken by the device's callback, and that comes while somebody
    /// polls the device ([`Gpu::poll`], [`Gpu::wait`] on another thread, or the host's own `wgpu::Device::poll`) or submits
    /// to it.
    pub fn run_async(&mut self) -> Running {
        match self.run() {
            Ok(()) => self.gpu.submitted(),
            Err(e) => Running::failed(e),
        }
    }

    /// Records the plan as one pass into the host's encoder and submits nothing: what the host records before it is done
    /// before, what it records after it, after. In later calls it allocates nothing.
    ///
    /// Inputs are those of the time of the submission, since [`Executor::write`] writes before the next one; to run a plan
    /// with other inputs, submit first. After the host's submission [`Executor::read`] and [`Executor::read_async`] read what
    /// it leaves behind. Errors of the recording are the host's to see, when it finishes the encoder.
    ///
    /// # Errors
    /// When an input was never written, or the device fails.
    pub fn encode(&mut self, encoder: &mut wgpu::CommandEncoder) -> Result<()> {
        self.prepare()?;
        self.gpu.shared.scoped(&"a run", || {
            let mut pass = encoder.begin_compute_pass(&Default::default());
            let mut bound = Bound::default();
            for step in 0..self.plan.steps.len() {
                self.dispatch(&mut pass, step, &mut bound);
            }
        })
    }

    fn encoded(&mut self) -> Result<wgpu::CommandEncoder> {
        let shared = self.gpu.shared.clone();
        let mut encoder =
            shared.scoped(&"a run", || shared.device.create_command_encoder(&Default::default()))?;
        self.encode(&mut encoder)?;
        Ok(encoder)
    }

    /// [`Executor::run`], with a copy of all outputs into a readback buffer in the same submission. Does not wait.
    ///
    /// # Errors
    /// When an input was never written, or the device fails.
    pub fn run_and_fetch(&mut self) -> Result<Fetch> {
        let encoder = self.encoded()?;
        let bytes = readback_bytes(&self.outputs);
        let reading = Reading::start(&self.gpu.shared, &self.ring, bytes, &self.outputs, Some(encoder))?;
        Ok(Fetch { reading, outputs: self.outputs.clone() })
    }

    /// Checks that the plan can run, and takes over what has changed in the memory.
    pub(super) fn prepare(&mut self) -> Result<()> {
        if let Some(i) = self.missing.iter().position(|&m| m) {
            return Err(self.missing_input(i));
        }
        self.gpu.shared.look()?;
        self.refresh()
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

    fn input(&self, id: ValueId) -> Result<&Port> {
        let none = || Error::Input(format!("value {} is no input of this plan", id.index()));
        self.plan.inputs.iter().find(|i| i.value == id).ok_or_else(none)
    }

    fn output(&self, id: ValueId) -> Result<(&Port, Place)> {
        let none = || Error::Input(format!("value {} is no output of this plan", id.index()));
        let port = self.plan.outputs.iter().find(|o| o.value == id).ok_or_else(none)?;
        Ok((port, *self.plan.places.get(&id).ok_or_else(none)?))
    }

    fn part(&self, id: ValueId) -> Result<Part> {
        let (port, place) = self.output(id)?;
        Ok(Part::of(&self.buffers[place.buffer], place.offset, port.ty.clone()))
    }

    /// The parts of all outputs.
    fn parts(&self) -> Result<Arc<[Part]>> {
        self.plan.outputs.iter().map(|o| self.part(o.value)).collect()
    }

    /// Reads an output as the last run left it; blocks until that run is done.
    ///
    /// # Errors
    /// When `id` is no output of the plan, or the device fails.
    pub fn read(&self, id: ValueId) -> Result<HostTensor> {
        self.read_async(id)?.wait()
    }

    /// [`Executor::read`] without blocking: the copy is submitted at once, so it is what the submissions so far leave
    /// behind, the host's included. The future needs somebody who polls the device, as that of [`Executor::run_async`].
    ///
    /// # Errors
    /// When `id` is no output of the plan, or the device fails.
    pub fn read_async(&self, id: ValueId) -> Result<Read> {
        let part = self.part(id)?;
        Read::start(&self.gpu.shared, &self.ring, readback_bytes(&self.outputs), part)
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
                let part = Part::of(&self.buffers[i], 0, ty);
                let bytes = read_one(&self.gpu.shared, &Ring::default(), spec.bytes, part)?;
                all.push((i, bytes.bytes().to_vec()));
            }
        }
        Ok(all)
    }

    /// Blocks until everything submitted so far is done: [`Gpu::wait`].
    ///
    /// # Errors
    /// When the device fails, or does not answer in time.
    pub fn wait(&self) -> Result<()> {
        self.gpu.wait()
    }
}

/// What a pass has bound.
#[derive(Default)]
pub(super) struct Bound {
    kernel: Option<usize>,
    group: Option<usize>,
    params: Option<u32>,
}

/// By group the first step that has it, and by step its group: steps that bind the same parts of buffers in the same way
/// share one.
fn grouped(plan: &Plan) -> (Vec<usize>, Vec<usize>) {
    let mut known: HashMap<(&[Place], &[Access]), usize> = HashMap::new();
    let (mut group_steps, mut step_groups) = (Vec::new(), Vec::new());
    for (number, step) in plan.steps.iter().enumerate() {
        let next = group_steps.len();
        let group = *known.entry((&step.bindings, &plan.kernels[step.kernel].bindings)).or_insert(next);
        if group == next {
            group_steps.push(number);
        }
        step_groups.push(group);
    }
    (group_steps, step_groups)
}

fn binding(buffer: &Buffer, offset: u64, bytes: u64) -> wgpu::BindingResource<'_> {
    wgpu::BindingResource::Buffer(wgpu::BufferBinding {
        buffer: &buffer.raw,
        offset: buffer.offset + offset,
        size: NonZeroU64::new(bytes),
    })
}

/// Outputs on their way to the host: to wait for, or as a future. Dropping it gives them up.
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
    /// When the device fails, or does not answer in time ([`Gpu::set_timeout`]).
    pub fn wait(self) -> Result<Vec<HostTensor>> {
        self.reading.wait(&self.outputs)
    }
}

impl Future for Fetch {
    type Output = Result<Vec<HostTensor>>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.reading.poll(context, &self.outputs)
    }
}

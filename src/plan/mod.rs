//! A plan: a graph lowered for a device profile to a flat list of dispatches over a few buffers. Plain data, printable;
//! `gpu` runs it.

mod liveness;
mod needs;
mod print;

use crate::graph::{Derived, Graph, Layout, Lowering, Role, Uses, ValueId};
use crate::kernel::{Access, Kernel, Operand};
use crate::profile::DeviceProfile;
use crate::tuning::{Choice, Query, Sizes, Variant};
use crate::{Error, HostTensor, Result, TensorType};
use liveness::Lifetime;
use std::collections::HashMap;
use std::sync::Arc;

pub use needs::Need;

/// Parameter blocks and bound parts of buffers start at multiples of this many bytes (WebGPU's default alignments).
pub const ALIGN_BYTES: u64 = 256;

/// What a buffer is for.
#[derive(Clone, Debug)]
pub enum BufferKind {
    /// Holds computed values, one after another; nothing in it outlives a run. May be shared between plans.
    Slot,
    /// Holds values that the caller reads after a run.
    Output,
    /// Written by the caller before a run.
    Input {
        /// Its name.
        name: String,
        /// The value.
        value: ValueId,
        /// Set when the host computes it from another input.
        derived: Option<Derived>,
    },
    /// Lives between runs and across plans.
    State {
        /// Its name, by which plans share it.
        name: String,
        /// Its type, the same in all plans that share it.
        ty: TensorType,
    },
    /// Written once.
    Constant(Arc<HostTensor>),
}

/// A buffer that a plan needs.
#[derive(Clone, Debug)]
pub struct BufferSpec {
    /// What it is for.
    pub kind: BufferKind,
    /// Its size, a multiple of 4.
    pub bytes: u64,
}

/// A part of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Place {
    /// Index into [`Plan::buffers`].
    pub buffer: usize,
    /// The first byte.
    pub offset: u64,
    /// The number of bytes.
    pub bytes: u64,
}

/// One dispatch.
#[derive(Clone, Debug)]
pub struct Step {
    /// Index into [`Plan::kernels`].
    pub kernel: usize,
    /// One for each storage binding of the kernel.
    pub bindings: Vec<Place>,
    /// Byte offset of its parameters in [`Plan::params`]; `None` for a kernel without.
    pub params: Option<u32>,
    /// Workgroups in x, y, z.
    pub groups: [u32; 3],
    /// Scope and op.
    pub label: String,
    /// The node that it belongs to: index into [`Graph::nodes`].
    pub node: usize,
    /// Floating-point operations, by formula.
    pub flops: u64,
    /// Bytes bound: what it reads and writes if each is touched once.
    pub bytes: u64,
}

/// An input or output of a plan.
#[derive(Clone, Debug)]
pub struct Port {
    /// The value.
    pub value: ValueId,
    /// Its name.
    pub name: String,
    /// Shape and element type.
    pub ty: TensorType,
}

/// A graph lowered for a device.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Every input of the graph that the caller writes, whether or not a step binds it (a derived one may instead).
    pub inputs: Vec<Port>,
    /// What the caller reads after a run, in the order in which it was asked for.
    pub outputs: Vec<Port>,
    /// The buffers.
    pub buffers: Vec<BufferSpec>,
    /// The distinct kernels.
    pub kernels: Vec<Kernel>,
    /// The dispatches, in order.
    pub steps: Vec<Step>,
    /// All parameter blocks.
    pub params: Vec<u8>,
    /// Where there are variants of kernels, which were chosen.
    pub choices: Vec<Choice>,
    /// Where values are: inputs, states and fetched outputs before and after a run, all others from the step that
    /// writes them to the last that reads them.
    pub places: HashMap<ValueId, Place>,
    /// Bytes of all computed values together, as if none shared memory.
    pub value_bytes: u64,
}

impl Plan {
    /// Lowers what is needed of `graph` to compute `outputs` and to update its states.
    ///
    /// # Errors
    /// When a tensor is above a limit of the device, or an op cannot be lowered for it.
    pub fn new(graph: &Graph, outputs: &[ValueId], profile: &DeviceProfile) -> Result<Plan> {
        Planner { graph, outputs, profile, overwritten: HashMap::new() }.plan()
    }

    /// Bytes of computed values at the peak: all slots and outputs.
    pub fn peak_bytes(&self) -> u64 {
        let computed = |b: &&BufferSpec| matches!(b.kind, BufferKind::Slot | BufferKind::Output);
        self.buffers.iter().filter(computed).map(|b| b.bytes).sum()
    }

    /// Bytes of all buffers of this plan, states included.
    pub fn total_bytes(&self) -> u64 {
        self.buffers.iter().map(|b| b.bytes).sum::<u64>() + self.params.len() as u64
    }

    /// Bytes of the buffers that it shares with no other plan: inputs, outputs, constants, parameter blocks.
    pub fn own_bytes(&self) -> u64 {
        let own = |b: &&BufferSpec| !matches!(b.kind, BufferKind::Slot | BufferKind::State { .. });
        self.buffers.iter().filter(own).map(|b| b.bytes).sum::<u64>() + self.params.len() as u64
    }

    /// Bytes of its slots, the largest first.
    pub fn slot_bytes(&self) -> Vec<u64> {
        let slots = self.buffers.iter().filter(|b| matches!(b.kind, BufferKind::Slot));
        let mut bytes: Vec<u64> = slots.map(|b| b.bytes).collect();
        bytes.sort_by_key(|&b| std::cmp::Reverse(b));
        bytes
    }

    /// Floating-point operations of a run.
    pub fn flops(&self) -> u64 {
        self.steps.iter().map(|s| s.flops).sum()
    }
}

/// A node after lowering, before memory is assigned.
struct Lowered {
    node: usize,
    dispatches: Vec<crate::kernel::Dispatch>,
    scratch: Vec<usize>,
    choices: Vec<(usize, Query, &'static Variant)>,
}

/// Something that needs memory for a while.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Holder {
    Value(ValueId),
    Scratch { node: usize, index: usize },
}

struct Planner<'a> {
    graph: &'a Graph,
    outputs: &'a [ValueId],
    profile: &'a DeviceProfile,
    /// By value, the one whose memory it takes ([`Lowering::overwrite`]).
    overwritten: HashMap<ValueId, ValueId>,
}

impl Planner<'_> {
    fn plan(mut self) -> Result<Plan> {
        let (needed, uses) = self.needed();
        let lowered = self.lower(&needed, &uses)?;
        let mut buffers = Vec::new();
        let mut places: HashMap<Holder, Place> = HashMap::new();
        self.place_leaves(&lowered, &mut buffers, &mut places)?;
        let (lifetimes, value_bytes) = self.lifetimes(&lowered, &uses.used, &places);
        for (holder, place) in liveness::assign(&lifetimes, &mut buffers) {
            places.insert(holder, place);
        }
        self.check_sizes(&buffers)?;
        let port = |id: ValueId| {
            let v = self.graph.value(id);
            Port { value: id, name: v.name.clone(), ty: v.ty.clone() }
        };
        let written = |id: &ValueId| matches!(self.graph.value(*id).role, Role::Input(None));
        let mut plan = Plan {
            inputs: self.graph.ids().filter(written).map(port).collect(),
            outputs: self.outputs.iter().map(|&id| port(id)).collect(),
            buffers,
            kernels: Vec::new(),
            steps: Vec::new(),
            params: Vec::new(),
            choices: Vec::new(),
            places: HashMap::new(),
            value_bytes,
        };
        self.emit(&lowered, &places, &mut plan)?;
        for id in self.graph.ids() {
            let (root, start) = self.resolve(id);
            if let Some(&p) = places.get(&Holder::Value(root)) {
                let ty = &self.graph.value(id).ty;
                let offset = p.offset + (start * ty.dtype.bytes()) as u64;
                plan.places.insert(id, Place { buffer: p.buffer, offset, bytes: ty.bytes() });
            }
        }
        Ok(plan)
    }

    /// The value that holds the bytes of `id`, and the element at which they start in it.
    fn resolve(&self, id: ValueId) -> (ValueId, usize) {
        let (mut root, start) = self.graph.resolve(id);
        // What takes another's memory is no part of anything, and neither is the other.
        while let Some(&before) = self.overwritten.get(&root) {
            root = before;
        }
        (root, start)
    }

    /// Which nodes must run, and which values anything reads.
    fn needed(&self) -> (Vec<bool>, Uses) {
        let graph = self.graph;
        let mut used = vec![false; graph.values().len()];
        let mut last = vec![0; graph.values().len()];
        for &id in self.outputs {
            used[id.index()] = true;
            last[graph.resolve(id).0.index()] = usize::MAX;
        }
        let mut needed = vec![false; graph.nodes().len()];
        for (n, node) in graph.nodes().iter().enumerate().rev() {
            if !node.op.updates().is_empty() || node.outputs.iter().any(|o| used[o.index()]) {
                needed[n] = true;
                for i in &node.inputs {
                    used[i.index()] = true;
                    let last = &mut last[graph.resolve(*i).0.index()];
                    *last = n.max(*last);
                }
            }
        }
        (needed, Uses { used, last })
    }

    fn lower(&mut self, needed: &[bool], uses: &Uses) -> Result<Vec<Lowered>> {
        let mut lowered = Vec::new();
        for (n, node) in self.graph.nodes().iter().enumerate() {
            let types: Vec<_> = node.inputs.iter().map(|&i| &self.graph.value(i).ty).collect();
            if !needed[n] || node.op.layout(&types) != Layout::Compute {
                continue;
            }
            let mut lowering = Lowering::new(self.graph, node, uses, self.profile);
            node.op.lower(&mut lowering)?;
            let Lowering { dispatches, scratch, choices, overwritten, .. } = lowering;
            self.overwritten.extend(overwritten);
            lowered.push(Lowered { node: n, dispatches, scratch, choices });
        }
        Ok(lowered)
    }

    /// Inputs, states and constants that a dispatch or the caller touches get buffers of their own.
    fn place_leaves(
        &self,
        lowered: &[Lowered],
        buffers: &mut Vec<BufferSpec>,
        places: &mut HashMap<Holder, Place>,
    ) -> Result<()> {
        let mut touched: Vec<ValueId> = self.outputs.to_vec();
        for l in lowered {
            for d in &l.dispatches {
                touched.extend(d.operands.iter().filter_map(|s| match s.operand {
                    Operand::Value(v) => Some(v),
                    Operand::Scratch(_) => None,
                }));
            }
        }
        for id in touched {
            let (root, _) = self.graph.resolve(id);
            let value = self.graph.value(root);
            let kind = match &value.role {
                Role::Input(derived) => {
                    BufferKind::Input { name: value.name.clone(), value: root, derived: *derived }
                }
                Role::State => BufferKind::State { name: value.name.clone(), ty: value.ty.clone() },
                Role::Constant(t) => BufferKind::Constant(t.clone()),
                Role::Computed { .. } => continue,
                Role::View => return Err(Error::Internal(format!("{} is a view of nothing", value.name))),
            };
            places.entry(Holder::Value(root)).or_insert_with(|| {
                let bytes = value.ty.bytes().max(4);
                buffers.push(BufferSpec { kind, bytes });
                Place { buffer: buffers.len() - 1, offset: 0, bytes }
            });
        }
        // A derived input needs its source only on the host; nothing else to place.
        Ok(())
    }

    /// From which step to which each computed value and scratch needs memory.
    fn lifetimes(
        &self,
        lowered: &[Lowered],
        used: &[bool],
        leaves: &HashMap<Holder, Place>,
    ) -> (Vec<(Holder, Lifetime)>, u64) {
        let graph = self.graph;
        let mut order: Vec<Holder> = Vec::new();
        let mut lifetimes: HashMap<Holder, Lifetime> = HashMap::new();
        let mut touch = |holder: Holder, step: usize, bytes: u64| {
            let life = lifetimes.entry(holder).or_insert_with(|| {
                order.push(holder);
                Lifetime { first: step, last: step, bytes, output: false }
            });
            life.last = step;
        };
        let mut step = 0;
        for l in lowered {
            for d in &l.dispatches {
                for s in &d.operands {
                    match s.operand {
                        Operand::Value(v) => {
                            let value = self.resolve(v).0;
                            let root = Holder::Value(value);
                            if !leaves.contains_key(&root) {
                                touch(root, step, graph.value(value).ty.bytes().max(4));
                            }
                        }
                        Operand::Scratch(index) => {
                            touch(Holder::Scratch { node: l.node, index }, step, l.scratch[index] as u64 * 4)
                        }
                    }
                }
                step += 1;
            }
        }
        for &id in self.outputs {
            if let Some(life) = lifetimes.get_mut(&Holder::Value(self.resolve(id).0)) {
                life.output = true;
            }
        }
        // What the values would take if none shared memory: every used computed value that is not a part of another.
        let value_bytes = graph
            .values()
            .iter()
            .enumerate()
            .filter(|(i, v)| used[*i] && v.alias.is_none() && matches!(v.role, Role::Computed { .. }))
            .map(|(_, v)| v.ty.bytes())
            .sum();
        (order.into_iter().map(|h| (h, lifetimes[&h])).collect(), value_bytes)
    }

    fn check_sizes(&self, buffers: &[BufferSpec]) -> Result<()> {
        for b in buffers {
            if b.bytes > self.profile.max_buffer_bytes {
                let tensor = match &b.kind {
                    BufferKind::Input { name, .. } | BufferKind::State { name, .. } => name.clone(),
                    BufferKind::Constant(_) => "a constant".to_string(),
                    BufferKind::Slot | BufferKind::Output => self.largest_computed(),
                };
                let allowed = self.profile.max_buffer_bytes;
                return Err(Error::Limit { limit: "max_buffer_size", needed: b.bytes, allowed, tensor });
            }
        }
        Ok(())
    }

    fn largest_computed(&self) -> String {
        let values = self.graph.values().iter().filter(|v| matches!(v.role, Role::Computed { .. }));
        values.max_by_key(|v| v.ty.bytes()).map_or(String::new(), |v| format!("{} {}", v.name, v.ty))
    }

    fn emit(&self, lowered: &[Lowered], places: &HashMap<Holder, Place>, plan: &mut Plan) -> Result<()> {
        let mut kernel_index: HashMap<Kernel, usize> = HashMap::new();
        let mut params_index: HashMap<Vec<u8>, u32> = HashMap::new();
        for l in lowered {
            let node = &self.graph.nodes()[l.node];
            let first = plan.steps.len();
            for (i, &(from, query, variant)) in l.choices.iter().enumerate() {
                let next = l.choices.get(i + 1).filter(|_| variant.sizes != Sizes::Apart);
                let to = next.map_or(l.dispatches.len(), |next| next.0);
                plan.choices.push(Choice { node: l.node, query, variant, steps: first + from..first + to });
            }
            for d in &l.dispatches {
                let label = if node.scope.is_empty() {
                    d.kernel.name.clone()
                } else {
                    format!("{}/{}", node.scope, d.kernel.name)
                };
                let bindings = self.bind(l.node, d, places, &label)?;
                let kernel = *kernel_index.entry(d.kernel.clone()).or_insert_with(|| {
                    plan.kernels.push(d.kernel.clone());
                    plan.kernels.len() - 1
                });
                let params = if d.params.is_empty() {
                    None
                } else {
                    Some(*params_index.entry(d.params.clone()).or_insert_with(|| {
                        let offset = plan.params.len() as u32;
                        plan.params.extend_from_slice(&d.params);
                        plan.params.resize(plan.params.len().next_multiple_of(ALIGN_BYTES as usize), 0);
                        offset
                    }))
                };
                if let Some(&g) = d.groups.iter().find(|&&g| g > self.profile.max_groups) {
                    return Err(Error::Limit {
                        limit: "max_compute_workgroups_per_dimension",
                        needed: g as u64,
                        allowed: self.profile.max_groups as u64,
                        tensor: label,
                    });
                }
                let bytes = bindings.iter().map(|b: &Place| b.bytes).sum();
                plan.steps.push(Step {
                    kernel,
                    bindings,
                    params,
                    groups: d.groups,
                    label,
                    node: l.node,
                    flops: d.flops,
                    bytes,
                });
            }
        }
        Ok(())
    }

    fn bind(
        &self,
        node: usize,
        d: &crate::kernel::Dispatch,
        places: &HashMap<Holder, Place>,
        label: &str,
    ) -> Result<Vec<Place>> {
        let broken = |what: String| Err(Error::Internal(format!("{label}: {what}")));
        let k = &d.kernel;
        if d.operands.len() != k.bindings.len() {
            return broken(format!("{} operands for {} bindings", d.operands.len(), k.bindings.len()));
        }
        if d.params.len() != 4 * k.params.len() || d.params.len() > ALIGN_BYTES as usize {
            return broken(format!("{} parameter bytes for {} fields", d.params.len(), k.params.len()));
        }
        let r = &d.kernel.requires;
        let p = self.profile;
        if r.subgroup_size.is_some_and(|s| p.subgroup_size() != Some(s)) {
            return broken(format!("needs sub-groups of {:?}", r.subgroup_size));
        }
        if r.f16 {
            p.check_f16(label)?;
        }
        for (limit, needed, allowed) in [
            ("max_storage_buffers_per_shader_stage", d.operands.len() as u64, p.max_storage_buffers as u64),
            ("max_compute_workgroup_storage_size", r.workgroup_bytes as u64, p.max_workgroup_bytes as u64),
            ("max_compute_invocations_per_workgroup", r.invocations as u64, p.max_invocations as u64),
        ] {
            if needed > allowed {
                return Err(Error::Limit { limit, needed, allowed, tensor: label.to_string() });
            }
        }
        let mut bound: Vec<Place> = Vec::new();
        for s in &d.operands {
            let (holder, start, len, size) = match s.operand {
                Operand::Value(v) => {
                    let (root, start) = self.resolve(v);
                    let ty = &self.graph.value(v).ty;
                    (Holder::Value(root), start, ty.shape.elements(), ty.dtype.bytes())
                }
                Operand::Scratch(index) => {
                    let holder = Holder::Scratch { node, index };
                    (holder, 0, places.get(&holder).map_or(0, |p| p.bytes as usize / 4), 4)
                }
            };
            let Some(place) = places.get(&holder) else {
                return broken("binds a value without memory".into());
            };
            let len = s.len.unwrap_or(len.saturating_sub(s.start)).max(1);
            let offset = place.offset + ((start + s.start) * size) as u64;
            let bytes = ((len * size) as u64).next_multiple_of(4);
            if !offset.is_multiple_of(ALIGN_BYTES) {
                return broken(format!("binds at byte {offset}, no multiple of {ALIGN_BYTES}"));
            }
            if bytes > p.max_binding_bytes {
                let tensor = match s.operand {
                    Operand::Value(v) => format!("{} {}", self.graph.value(v).name, self.graph.value(v).ty),
                    Operand::Scratch(_) => format!("scratch of {label}"),
                };
                let allowed = p.max_binding_bytes;
                return Err(Error::Limit {
                    limit: "max_storage_buffer_binding_size",
                    needed: bytes,
                    allowed,
                    tensor,
                });
            }
            bound.push(Place { buffer: place.buffer, offset, bytes });
        }
        // wgpu tracks usage by whole buffers: one must not be read and written in a dispatch. Two parts may be written.
        for (i, a) in bound.iter().enumerate() {
            for (j, b) in bound.iter().enumerate().filter(|(j, b)| *j != i && b.buffer == a.buffer) {
                let access = &d.kernel.bindings;
                let overlap = a.offset < b.offset + b.bytes && b.offset < a.offset + a.bytes;
                if access[i] != Access::Read && (access[j] == Access::Read || overlap) {
                    return broken(format!("bindings {i} and {j} share a buffer that it writes"));
                }
            }
        }
        Ok(bound)
    }
}

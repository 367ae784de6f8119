//! The graph: values and the ops that compute them, append-only, without any device.
//!
//! A value is written once by the node that computes it; only the states an op lists in [`Op::updates`] are updated in
//! place. Nodes run in the order in which they were appended. Gradients and optimiser steps are appended nodes as well
//! ([`Graph::backward`]).

mod autodiff;
mod interpret;

pub use interpret::{Interpreter, argsort, to_host};

use crate::kernel::{Dispatch, Operand};
use crate::profile::DeviceProfile;
use crate::rng::Rng;
use crate::tuning::{Query, Variant};
use crate::{DType, Error, HostTensor, Result, Shape, Tensor64, TensorType};
use std::any::Any;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// A value of a graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ValueId(pub(crate) u32);

impl ValueId {
    /// Its place in [`Graph::values`].
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// Where a value comes from.
#[derive(Clone, Debug)]
pub enum Role {
    /// Given by the caller before a run. A derived input is computed from another one on the host when that one is
    /// written.
    Input(Option<Derived>),
    /// Lives on the device between runs and across plans, found by its name: parameters, optimiser moments, caches.
    State,
    /// Known when the graph is built.
    Constant(Arc<HostTensor>),
    /// The output of this number of this node.
    Computed {
        /// Index into [`Graph::nodes`].
        node: usize,
        /// Which of its outputs.
        output: usize,
    },
    /// A part of a state (see [`Graph::view`]).
    View,
}

/// How a derived input follows from another input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Derived {
    /// The flat indices of an id tensor, sorted by id and, among equal ids, ascending: the order in which a gather's
    /// gradient sums rows, without atomics.
    Argsort(ValueId),
}

/// Where a value's bytes are, when they are a part of another value's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Alias {
    /// The value that holds the bytes, itself possibly an alias.
    pub of: ValueId,
    /// The first element in it.
    pub start: usize,
}

/// One value.
#[derive(Clone, Debug)]
pub struct Value {
    /// Its name, unique for inputs and states; for computed values scope and op.
    pub name: String,
    /// Shape and element type.
    pub ty: TensorType,
    /// Where it comes from.
    pub role: Role,
    /// Set when its bytes are a part of another value.
    pub alias: Option<Alias>,
}

/// One op applied to values.
#[derive(Clone, Debug)]
pub struct Node {
    /// The op.
    pub op: Arc<dyn Op>,
    /// Its inputs.
    pub inputs: Vec<ValueId>,
    /// Its outputs.
    pub outputs: Vec<ValueId>,
    /// Where in the model: `encoder.layers.0.self_attn`.
    pub scope: String,
}

/// What an op that moves no bytes says of its outputs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Layout {
    /// It computes its outputs into memory of their own.
    Compute,
    /// Output `i` is the part of input 0 that starts at element `starts[i]`; nothing runs.
    Split(Vec<usize>),
    /// Input `i` is to be computed directly into output 0, from element `starts[i]`; nothing runs.
    Pack(Vec<usize>),
    /// Input 0 is a state, input `i + 1` is to be computed directly into it, from element `starts[i]`, and output 0 is
    /// the state after that; nothing runs. What lies between the parts keeps its value.
    PackInto(Vec<usize>),
}

/// A smaller computation whose results are some of a node's: see [`Op::excerpts`].
#[derive(Debug)]
pub struct Excerpt {
    /// Its op, of which only [`Op::reference`] and [`Op::rounding`] are asked.
    pub op: Box<dyn Op>,
    /// The op's inputs.
    pub inputs: Vec<Tensor64>,
    /// For each result of the op, which of the node's results it is a part of, and the flat index there of each of its
    /// elements; `None` for a result that is no part of them.
    pub places: Vec<Option<(usize, Vec<usize>)>>,
}

/// An operation: shape rule, reference, gradient and lowering, in one place.
pub trait Op: Any + fmt::Debug + Send + Sync {
    /// The op's name: also that of its file, its shader and its tests.
    fn name(&self) -> &'static str;

    /// The types of the outputs, or an error that names the tensor that does not fit.
    fn outputs(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>>;

    /// How the outputs lie in memory.
    fn layout(&self, _inputs: &[&TensorType]) -> Layout {
        Layout::Compute
    }

    /// The inputs that are updated in place; each must be a state.
    fn updates(&self) -> Vec<usize> {
        Vec::new()
    }

    /// The result in f64 by the plainest loops: the outputs, then the new values of the updated inputs in the order of
    /// [`Op::updates`].
    fn reference(&self, inputs: &[&Tensor64]) -> Vec<Tensor64>;

    /// For each result of [`Op::reference`], element by element, how far the result of a device may be from it because
    /// f32 rounds: in units of 2^-23, to first order (see [`crate::verify`]). Where an op does not say, its results are
    /// exact.
    fn rounding(&self, _inputs: &[&Tensor64], results: &[Tensor64]) -> Vec<Tensor64> {
        results.iter().map(|t| Tensor64::zeros(t.shape.clone())).collect()
    }

    /// Smaller computations of the same kind whose results are some of this op's, to the last bit, and so are their
    /// bounds: for results that are too many to compute all of them in f64. They hold corners, and elements by chance.
    /// None where an op has no such parts.
    fn excerpts(&self, _inputs: &[&Tensor64], _rng: &mut Rng) -> Vec<Excerpt> {
        Vec::new()
    }

    /// Appends the nodes that compute the gradients of the inputs from those of the outputs; `None` is zero. Of the
    /// result, one entry for each input, `None` for an input without gradient.
    fn gradient(
        &self,
        graph: &mut Graph,
        node: &Node,
        d_outputs: &[Option<ValueId>],
    ) -> Result<Vec<Option<ValueId>>> {
        let _ = (graph, d_outputs);
        Err(Error::config(self.name(), format!("has no gradient (in {:?})", node.scope)))
    }

    /// An op that does what this one does, and then what `next` does, of whose inputs number `input` is the one output of
    /// this; the inputs are those of this one and then the others of `next`. `None` where there is no such op.
    fn followed_by(&self, _next: &dyn Op, _input: usize) -> Option<Arc<dyn Op>> {
        None
    }

    /// Pushes the dispatches that compute the outputs.
    fn lower(&self, lowering: &mut Lowering) -> Result<()>;
}

/// What [`Op::lower`] works with: types in, dispatches out.
pub struct Lowering<'a> {
    graph: &'a Graph,
    node: &'a Node,
    uses: &'a Uses,
    /// The device to lower for.
    pub profile: &'a DeviceProfile,
    pub(crate) dispatches: Vec<Dispatch>,
    pub(crate) scratch: Vec<usize>,
    /// Outputs that lie where an input lay.
    pub(crate) overwritten: Vec<(ValueId, ValueId)>,
    /// The variants that were chosen, each with the number of dispatches before it.
    pub(crate) choices: Vec<(usize, Query, &'static Variant)>,
}

/// What of a graph is needed, and until when.
#[derive(Debug)]
pub(crate) struct Uses {
    /// By value: anything reads it.
    pub used: Vec<bool>,
    /// By value that holds bytes: the number of the last node that reads any of them; what the caller reads is never done
    /// with.
    pub last: Vec<usize>,
}

impl<'a> Lowering<'a> {
    pub(crate) fn new(graph: &'a Graph, node: &'a Node, uses: &'a Uses, profile: &'a DeviceProfile) -> Self {
        let (dispatches, scratch, overwritten, choices) = Default::default();
        Lowering { graph, node, uses, profile, dispatches, scratch, overwritten, choices }
    }

    /// The type of input `i`.
    pub fn input_type(&self, i: usize) -> &'a TensorType {
        &self.graph.value(self.node.inputs[i]).ty
    }

    /// The type of output `i`.
    pub fn output_type(&self, i: usize) -> &'a TensorType {
        &self.graph.value(self.node.outputs[i]).ty
    }

    /// How many inputs the node has.
    pub fn input_count(&self) -> usize {
        self.node.inputs.len()
    }

    /// Input `i` as an operand.
    pub fn input(&self, i: usize) -> Operand {
        Operand::Value(self.node.inputs[i])
    }

    /// Output `i` as an operand.
    pub fn output(&self, i: usize) -> Operand {
        Operand::Value(self.node.outputs[i])
    }

    /// Whether anything reads output `i`; an output that nothing reads need not be written.
    pub fn output_used(&self, i: usize) -> bool {
        self.uses.used[self.node.outputs[i].index()]
    }

    /// Lets output `output` take the memory of input `input`, if nothing reads that later: then one binding, updated, is
    /// both. Of the same type; each at most once.
    pub fn overwrite(&mut self, input: usize, output: usize) -> bool {
        let (from, to) = (self.node.inputs[input], self.node.outputs[output]);
        let (old, new) = (self.graph.value(from), self.graph.value(to));
        // Computed by another node: what it holds is needed by this one alone, and once.
        let done = match old.role {
            Role::Computed { node, .. } => {
                self.node.inputs.iter().filter(|&&id| self.graph.resolve(id).0 == from).count() == 1
                    && self.graph.node_of(to).is_some_and(|n| n > node && self.uses.last[from.index()] == n)
            }
            _ => false,
        };
        let fits = old.alias.is_none() && new.alias.is_none() && old.ty == new.ty;
        if done && fits {
            self.overwritten.push((to, from));
        }
        done && fits
    }

    /// Memory of this many elements for the time of this node.
    pub fn scratch(&mut self, elements: usize) -> Operand {
        self.scratch.push(elements.max(1));
        Operand::Scratch(self.scratch.len() - 1)
    }

    /// Appends a dispatch.
    pub fn push(&mut self, dispatch: Dispatch) {
        self.dispatches.push(dispatch);
    }

    /// The variant for the dispatches that follow, by the device's table.
    pub(crate) fn choose(&mut self, query: Query) -> Result<&'static Variant> {
        let variant = self.profile.tuning.choose(self.profile, &query)?;
        self.choices.push((self.dispatches.len(), query, variant));
        Ok(variant)
    }

    /// Workgroup counts for `n` groups in a row, folded into y where x would be too large. The shader takes
    /// `group.y * groups.x + group.x` and leaves when that is not below `n`.
    pub fn groups_1d(&self, n: usize) -> Result<[u32; 3]> {
        let max = self.profile.max_groups as usize;
        let n = n.max(1);
        let y = n.div_ceil(max);
        if y > max {
            return Err(Error::Limit {
                limit: "max_compute_workgroups_per_dimension (squared)",
                needed: n as u64,
                allowed: (max * max) as u64,
                tensor: format!("{} in {:?}", self.node.op.name(), self.node.scope),
            });
        }
        Ok([n.div_ceil(y) as u32, y as u32, 1])
    }
}

/// The graph.
#[derive(Clone, Debug, Default)]
pub struct Graph {
    values: Vec<Value>,
    nodes: Vec<Node>,
    scope: Vec<String>,
    /// What [`Graph::recompute_from`] marked, in order.
    recomputed: Vec<Range<usize>>,
}

impl Graph {
    /// An empty graph.
    pub fn new() -> Self {
        Self::default()
    }

    /// All values, in the order in which they were made.
    pub fn values(&self) -> &[Value] {
        &self.values
    }

    /// All nodes, in the order in which they run.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// One value.
    pub fn value(&self, id: ValueId) -> &Value {
        &self.values[id.index()]
    }

    /// The number of the node that computes a value.
    fn node_of(&self, id: ValueId) -> Option<usize> {
        match self.value(id).role {
            Role::Computed { node, .. } => Some(node),
            _ => None,
        }
    }

    /// The shape of a value.
    pub fn shape(&self, id: ValueId) -> &Shape {
        &self.value(id).ty.shape
    }

    /// The id of every value, in order.
    pub fn ids(&self) -> impl Iterator<Item = ValueId> + use<> {
        (0..self.values.len() as u32).map(ValueId)
    }

    /// The input or state of this name.
    pub fn find(&self, name: &str) -> Option<ValueId> {
        let i = self
            .values
            .iter()
            .position(|v| v.name == name && matches!(v.role, Role::Input(_) | Role::State | Role::View))?;
        Some(ValueId(i as u32))
    }

    fn push(&mut self, name: String, ty: TensorType, role: Role, alias: Option<Alias>) -> ValueId {
        self.values.push(Value { name, ty, role, alias });
        ValueId(self.values.len() as u32 - 1)
    }

    /// A value that the caller writes before a run.
    pub fn input(&mut self, name: impl Into<String>, ty: TensorType) -> ValueId {
        self.push(name.into(), ty, Role::Input(None), None)
    }

    /// An input that follows from another one; the same one when asked twice.
    pub fn derived(&mut self, rule: Derived) -> ValueId {
        let found = self.values.iter().position(|v| matches!(v.role, Role::Input(Some(r)) if r == rule));
        if let Some(i) = found {
            return ValueId(i as u32);
        }
        let (name, ty) = match rule {
            Derived::Argsort(ids) => {
                let v = self.value(ids);
                (format!("{}.order", v.name), TensorType::u32([v.ty.shape.elements()]))
            }
        };
        self.push(name, ty, Role::Input(Some(rule)), None)
    }

    /// A value that lives on the device between runs.
    pub fn state(&mut self, name: impl Into<String>, ty: TensorType) -> ValueId {
        self.push(name.into(), ty, Role::State, None)
    }

    /// A value known now.
    pub fn constant(&mut self, name: impl Into<String>, value: HostTensor) -> ValueId {
        self.push(name.into(), value.ty(), Role::Constant(Arc::new(value)), None)
    }

    /// A part of a state, from element `start`, as a value of its own.
    pub fn view(
        &mut self,
        name: impl Into<String>,
        of: ValueId,
        start: usize,
        ty: TensorType,
    ) -> Result<ValueId> {
        let name = name.into();
        let whole = self.value(of);
        let end = start + ty.shape.elements();
        if !matches!(whole.role, Role::State)
            || whole.ty.dtype != ty.dtype
            || end > whole.ty.shape.elements()
            || !(start * ty.dtype.bytes()).is_multiple_of(ALIGN * 4)
        {
            return Err(Error::Internal(format!(
                "view {name} of elements {start}..{end} of {} {}",
                whole.name, whole.ty
            )));
        }
        Ok(self.push(name, ty, Role::View, Some(Alias { of, start })))
    }

    /// Runs `f` with `name` appended to the scope, which names the nodes that it adds.
    pub fn scoped<T>(&mut self, name: impl Into<String>, f: impl FnOnce(&mut Self) -> T) -> T {
        self.push_scope(name);
        let out = f(self);
        self.pop_scope();
        out
    }

    /// Marks all nodes from this number in [`Graph::nodes`]: [`Graph::backward`] computes them again, from what they
    /// read of others, where it needs their values. So those values need no memory between the passes ('Training Deep
    /// Nets with Sublinear Memory Cost', section 3). The gradients are the same to the last bit. Marks within the range
    /// are forgotten: the widest holds.
    pub fn recompute_from(&mut self, first: usize) {
        self.recomputed.retain(|inner| inner.start < first);
        if self.nodes.len() > first {
            self.recomputed.push(first..self.nodes.len());
        }
    }

    /// Appends a name to the scope until [`Graph::pop_scope`].
    pub fn push_scope(&mut self, name: impl Into<String>) {
        self.scope.push(name.into());
    }

    /// Takes the last name off the scope.
    pub fn pop_scope(&mut self) {
        self.scope.pop();
    }

    /// The scope, joined with dots.
    pub fn scope(&self) -> String {
        self.scope.join(".")
    }

    /// Adds a node.
    pub fn add_node(&mut self, op: impl Op + 'static, inputs: &[ValueId]) -> Result<Vec<ValueId>> {
        self.add_shared(Arc::new(op), inputs)
    }

    /// Adds a node with one output.
    pub fn add(&mut self, op: impl Op + 'static, inputs: &[ValueId]) -> Result<ValueId> {
        let outputs = self.add_node(op, inputs)?;
        match outputs[..] {
            [one] => Ok(one),
            _ => Err(Error::Internal(format!("one output expected, got {}", outputs.len()))),
        }
    }

    pub(crate) fn add_shared(&mut self, op: Arc<dyn Op>, inputs: &[ValueId]) -> Result<Vec<ValueId>> {
        let scope = self.scope();
        let place = |op: &Arc<dyn Op>| {
            if scope.is_empty() { op.name().to_string() } else { format!("{scope}.{}", op.name()) }
        };
        let types: Vec<&TensorType> = inputs.iter().map(|&i| &self.value(i).ty).collect();
        let outputs = op.outputs(&types).map_err(|e| match e {
            Error::Shape { place: _, tensor, expected, got } => {
                Error::Shape { place: place(&op), tensor, expected, got }
            }
            e => e,
        })?;
        let layout = op.layout(&types);
        for i in op.updates() {
            if !matches!(self.value(inputs[i]).role, Role::State | Role::View) {
                return Err(Error::Internal(format!(
                    "{} updates {}, no state",
                    place(&op),
                    self.value(inputs[i]).name
                )));
            }
        }
        let node = self.nodes.len();
        let ids: Vec<ValueId> = outputs
            .into_iter()
            .enumerate()
            .map(|(output, ty)| {
                let alias = match &layout {
                    Layout::Split(starts) => Some(Alias { of: inputs[0], start: starts[output] }),
                    Layout::PackInto(_) => Some(Alias { of: inputs[0], start: 0 }),
                    _ => None,
                };
                let name = if output == 0 { place(&op) } else { format!("{}#{output}", place(&op)) };
                self.push(name, ty, Role::Computed { node, output }, alias)
            })
            .collect();
        let packed = match &layout {
            Layout::Pack(starts) => Some((ids[0], inputs, starts)),
            Layout::PackInto(starts) => Some((inputs[0], &inputs[1..], starts)),
            _ => None,
        };
        if let Some((of, parts, starts)) = packed {
            for (&input, &start) in parts.iter().zip(starts) {
                let v = &mut self.values[input.index()];
                if v.alias.is_some() || !matches!(v.role, Role::Computed { .. }) {
                    return Err(Error::Internal(format!("{} cannot be packed: it lies elsewhere", v.name)));
                }
                v.alias = Some(Alias { of, start });
            }
        }
        self.nodes.push(Node { op, inputs: inputs.to_vec(), outputs: ids.clone(), scope });
        Ok(ids)
    }

    /// Whether a device has the element types of all values: 16-bit floats are not on each ([`DeviceProfile::f16`]).
    pub fn fits(&self, profile: &DeviceProfile) -> bool {
        profile.f16 || self.values.iter().all(|v| v.ty.dtype != DType::F16)
    }

    /// The value that holds the bytes of `id`, and the element at which they start in it.
    pub fn resolve(&self, id: ValueId) -> (ValueId, usize) {
        let (mut id, mut start) = (id, 0);
        while let Some(alias) = self.value(id).alias {
            start += alias.start;
            id = alias.of;
        }
        (id, start)
    }
}

/// Parts of buffers start at multiples of this many elements of four bytes: 256 bytes, WebGPU's default offset alignment.
pub const ALIGN: usize = 64;

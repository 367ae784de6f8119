//! A run of a plan over bytes on the host.

use super::tolerance::{Mismatch, add_storage, bounds, compare_f64, index_of, worst_share};
use crate::gpu::{Gpu, POISON, Solo, SoloBinding, SoloBuffer, SoloDispatch, SoloKind, Trespass, poison};
use crate::graph::{Derived, Graph, Layout, Node, Op, Role, ValueId, argsort, to_host};
use crate::kernel::{Access, Kernel};
use crate::plan::{BufferKind, Place, Plan, Step};
use crate::rng::Rng;
use crate::{DType, Error, HostTensor, Result, Tensor64, TensorType};
use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;

/// Sampled, a node of more operations in f32 than this is compared by its excerpts. An element's f64 reference and its bound
/// take up to some tens of nanoseconds for each of them.
const WHOLE: u64 = 10_000_000;

/// The order in which the workgroups and invocations of a dispatch run, as far as a kernel lets one choose
/// ([`Prepared::controlled`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// As the device has it, in one submission.
    Natural,
    /// The last workgroup and the last invocation first, in up to three submissions of other sizes.
    Reversed,
}

/// A kernel made ready for a replay.
#[derive(Clone, Debug)]
pub struct Prepared {
    /// Its pipeline.
    pub solo: Solo,
    /// Its text was changed to read a block of eight words behind its last binding: the poison for workgroup memory,
    /// whether the order is reversed, the first workgroup in x, y and z, and the number of workgroups in x, y and z.
    pub controlled: bool,
}

/// What is wrong with a step of a plan.
#[derive(Clone, Debug)]
pub struct Trouble {
    /// The labels of the dispatches of the node, joined.
    pub label: String,
    /// The names of their kernels.
    pub kernels: Vec<String>,
    /// The index of the last of them in the plan.
    pub step: usize,
    /// The value or binding.
    pub tensor: String,
    /// What is wrong with it.
    pub problem: Problem,
    /// What the node had read: name and value.
    pub inputs: Vec<(String, HostTensor)>,
}

/// The kinds of trouble.
#[derive(Clone, Debug)]
pub enum Problem {
    /// The result is not what the reference says.
    Wrong(Mismatch),
    /// This many elements of so many were never written, the first of them at this index.
    Unwritten(usize, usize, usize),
    /// A write outside of the buffer.
    Trespass(Trespass),
    /// It has other bits than its node had written there: something else was written over it.
    Overwritten,
    /// A run of the whole plan left other bits in a state than running its steps one by one.
    OtherBits,
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "step {} {}: {}: ", self.step, self.label, self.tensor)?;
        match &self.problem {
            Problem::Wrong(m) => write!(f, "{m}"),
            Problem::Unwritten(n, of, first) => {
                write!(f, "{n} of {of} elements were left unwritten, the first of them [{first}]")
            }
            Problem::Overwritten => write!(f, "is not what was computed: something else was written over it"),
            Problem::OtherBits => write!(f, "a whole run gave other bits than its steps one by one"),
            Problem::Trespass(t) if t.byte < 0 => {
                write!(f, "written {} bytes before the start of the buffer", -t.byte)
            }
            Problem::Trespass(t) => write!(f, "written outside of the buffer, at byte {}", t.byte),
        }
    }
}

/// A plan, and the bytes of its buffers.
#[derive(Debug)]
pub struct Replay<'a> {
    graph: &'a Graph,
    plan: &'a Plan,
    kernels: Vec<Prepared>,
    buffers: Vec<Vec<u8>>,
    /// What the caller gave, for inputs that no dispatch touches.
    given: HashMap<ValueId, HostTensor>,
    /// What computed values were when they were computed, until the last node that reads them.
    known: HashMap<ValueId, HostTensor>,
    /// By value, the last node that reads it, if any; for outputs of the plan one beyond the last of all.
    last_read: Vec<Option<usize>>,
    worst: BTreeMap<String, f64>,
    /// Draws excerpts, where large nodes are sampled.
    sample: Option<Rng>,
    compared: u64,
    elements: u64,
}

/// What elements of a result must be.
struct Expected {
    /// Their flat indices, the values being in a row; without, all are there.
    places: Option<Vec<usize>>,
    values: Tensor64,
    bounds: Vec<f64>,
}

impl<'a> Replay<'a> {
    /// A plan of a graph, with its kernels as they are. States are zero, computed values are poison.
    ///
    /// # Errors
    /// When a kernel does not compile, or the device fails.
    pub fn new(gpu: &Gpu, graph: &'a Graph, plan: &'a Plan) -> Result<Self> {
        let solo = |k: &Kernel| Ok(Prepared { solo: gpu.solo(k)?, controlled: false });
        Self::prepared(graph, plan, plan.kernels.iter().map(solo).collect::<Result<_>>()?)
    }

    /// The same with kernels made ready by the caller, one for each of the plan.
    ///
    /// # Errors
    /// When there is another number of kernels.
    pub fn prepared(graph: &'a Graph, plan: &'a Plan, kernels: Vec<Prepared>) -> Result<Self> {
        if kernels.len() != plan.kernels.len() {
            let problem = format!("{} given for a plan of {}", kernels.len(), plan.kernels.len());
            return Err(Error::config("kernels", problem));
        }
        let content = |spec: &crate::plan::BufferSpec| match &spec.kind {
            BufferKind::Constant(t) => {
                let mut bytes = t.bytes().to_vec();
                bytes.resize(spec.bytes as usize, 0);
                bytes
            }
            BufferKind::State { .. } => vec![0; spec.bytes as usize],
            BufferKind::Slot | BufferKind::Output | BufferKind::Input { .. } => poison(spec.bytes as usize),
        };
        let mut last_read = vec![None; graph.values().len()];
        for (n, node) in graph.nodes().iter().enumerate() {
            node.inputs.iter().for_each(|i| last_read[i.index()] = Some(n));
        }
        plan.outputs.iter().for_each(|o| last_read[o.value.index()] = Some(graph.nodes().len()));
        Ok(Replay {
            graph,
            plan,
            kernels,
            buffers: plan.buffers.iter().map(content).collect(),
            given: HashMap::new(),
            known: HashMap::new(),
            last_read,
            worst: BTreeMap::new(),
            sample: None,
            compared: 0,
            elements: 0,
        })
    }

    /// Of large nodes compares a part alone, chosen by this seed: corners and elements by chance, as far as the op has such
    /// excerpts ([`Op::excerpts`](crate::graph::Op::excerpts)). Guard zones and poison are looked at as a whole.
    #[must_use]
    pub fn sampled(mut self, seed: u64) -> Self {
        self.sample = Some(Rng::new(seed));
        self
    }

    /// How many elements of results were compared with their references, by the last [`Replay::run`]; one that is in two excerpts
    /// counts once.
    pub fn compared(&self) -> u64 {
        self.compared
    }

    /// How many elements there were.
    pub fn elements(&self) -> u64 {
        self.elements
    }

    /// Gives an input (and what is derived from it) or a state its value.
    ///
    /// # Errors
    /// When the tensor has another type.
    pub fn set(&mut self, id: ValueId, tensor: &HostTensor) -> Result<()> {
        let v = self.graph.value(id);
        if v.ty != tensor.ty() {
            return Err(Error::shape("replay", &v.name, &v.ty, tensor.ty()));
        }
        self.put(id, tensor.bytes());
        self.given.insert(id, tensor.clone());
        for other in self.graph.ids() {
            if let Role::Input(Some(Derived::Argsort(of))) = self.graph.value(other).role
                && of == id
            {
                let order = argsort(tensor.as_u32(&v.name)?);
                self.put(other, bytemuck::cast_slice(&order));
            }
        }
        Ok(())
    }

    /// Takes over whole buffers: [`Executor::snapshot`](crate::gpu::Executor::snapshot).
    pub(super) fn load(&mut self, snapshot: Vec<(usize, Vec<u8>)>) {
        for (i, bytes) in snapshot {
            self.buffers[i] = bytes;
        }
    }

    /// The bytes of a buffer of the plan.
    pub(super) fn buffer(&self, number: usize) -> &[u8] {
        &self.buffers[number]
    }

    fn put(&mut self, id: ValueId, bytes: &[u8]) {
        // A value that no step touches has no place.
        if let Some(p) = self.plan.places.get(&id) {
            let start = p.offset as usize;
            self.buffers[p.buffer][start..start + bytes.len()].copy_from_slice(bytes);
        }
    }

    /// A value: an input or state at any time, a computed one from the step that writes it to the last that reads it.
    ///
    /// # Errors
    /// When no step touches it.
    pub fn get(&self, id: ValueId) -> Result<HostTensor> {
        let v = self.graph.value(id);
        if let Role::Constant(t) = &v.role {
            return Ok((**t).clone());
        }
        let place = self.plan.places.get(&id);
        let place = place.ok_or_else(|| Error::Input(format!("no step of the plan touches {}", v.name)))?;
        Ok(HostTensor::from_bytes(&v.ty, self.bytes(place)))
    }

    fn bytes(&self, place: &Place) -> &[u8] {
        &self.buffers[place.buffer][place.offset as usize..(place.offset + place.bytes) as usize]
    }

    /// By the name of a kernel: the largest error so far of the nodes that it belongs to, as a share of the bound.
    pub fn worst(&self) -> &BTreeMap<String, f64> {
        &self.worst
    }

    /// Runs all steps; stops at the first node in trouble and gives all that is wrong with it.
    ///
    /// Where there is none, the whole is right: each node's results are within their bounds on what it read, and what it
    /// read is what was given, or computed by the nodes before it.
    ///
    /// # Errors
    /// When the device fails.
    pub fn run(&mut self, order: Order) -> Result<Vec<Trouble>> {
        let (graph, plan) = (self.graph, self.plan);
        self.known.clear();
        (self.compared, self.elements) = (0, 0);
        let mut first = 0;
        for (n, node) in graph.nodes().iter().enumerate() {
            let count = plan.steps[first..].iter().take_while(|s| s.node == n).count();
            if count > 0 {
                let troubles = self.node(node, first..first + count, order)?;
                if !troubles.is_empty() {
                    return Ok(troubles);
                }
            } else {
                self.move_nothing(node);
            }
            first += count;
            self.known.retain(|id, _| self.last_read[id.index()] > Some(n));
        }
        let outputs: Vec<ValueId> = plan.outputs.iter().map(|o| o.value).collect();
        let values = outputs.iter().map(|&id| self.read_input(id)).collect::<Result<Vec<_>>>()?;
        let trouble = |(tensor, problem)| Trouble {
            label: "the end".to_string(),
            kernels: Vec::new(),
            step: plan.steps.len().saturating_sub(1),
            tensor,
            problem,
            inputs: Vec::new(),
        };
        Ok(self.overwritten(&outputs, &values).into_iter().map(trouble).collect())
    }

    /// Takes note of what the outputs of a node that moves no bytes must be, if its inputs are there.
    fn move_nothing(&mut self, node: &Node) {
        let types: Vec<&TensorType> = node.inputs.iter().map(|&i| &self.graph.value(i).ty).collect();
        let value = |&id: &ValueId| match self.known.get(&id) {
            Some(known) => Ok(known.to_f64()),
            None => self.read_input(id).map(|t| t.to_f64()),
        };
        let inputs: Result<Vec<Tensor64>> = node.inputs.iter().map(value).collect();
        // Of other nodes without steps nobody needs the results.
        if let (true, Ok(inputs)) = (node.op.layout(&types) != Layout::Compute, inputs) {
            let results = node.op.reference(&inputs.iter().collect::<Vec<_>>());
            for (&id, result) in node.outputs.iter().zip(results) {
                self.known.insert(id, to_host(self.graph.value(id).ty.dtype, &result));
            }
        }
    }

    /// Those of these values that are not what they were when they were computed.
    fn overwritten(&self, ids: &[ValueId], values: &[HostTensor]) -> Vec<(String, Problem)> {
        let other = |(id, now): &(&ValueId, &HostTensor)| {
            self.known.get(id).is_some_and(|then| then.bytes() != now.bytes())
        };
        let name = |id: &ValueId| self.graph.value(*id).name.clone();
        ids.iter().zip(values).filter(other).map(|(id, _)| (name(id), Problem::Overwritten)).collect()
    }

    /// Runs the steps of one node and compares its outputs.
    fn node(&mut self, node: &Node, steps: std::ops::Range<usize>, order: Order) -> Result<Vec<Trouble>> {
        let plan = self.plan;
        let inputs = node.inputs.iter().map(|&i| self.read_input(i)).collect::<Result<Vec<_>>>()?;
        let mut found = self.overwritten(&node.inputs, &inputs);
        // What several dispatches of a node write together is poisoned before the first of them.
        let mut begun: HashSet<Place> = HashSet::new();
        for step in steps.clone() {
            let step = &plan.steps[step];
            for (place, access) in step.bindings.iter().zip(&plan.kernels[step.kernel].bindings) {
                if begun.insert(*place) && *access == Access::Write {
                    let (start, bytes) = (place.offset as usize, place.bytes as usize);
                    self.buffers[place.buffer][start..start + bytes].copy_from_slice(&poison(bytes)[..bytes]);
                }
            }
            let problems = self.step(step, order)?;
            found.extend(problems.into_iter().map(|(binding, p)| (format!("binding {binding}"), p)));
        }
        let work = plan.steps[steps.clone()].iter().map(|s| s.flops).sum();
        let (wrong, worst) = self.compare(node, &inputs, work)?;
        found.extend(wrong);
        let mut kernels: Vec<String> =
            plan.steps[steps.clone()].iter().map(|s| plan.kernels[s.kernel].name.clone()).collect();
        kernels.sort();
        kernels.dedup();
        for kernel in &kernels {
            let known = self.worst.entry(kernel.clone()).or_insert(0.0);
            *known = known.max(worst);
        }
        let mut labels: Vec<&str> = plan.steps[steps.clone()].iter().map(|s| s.label.as_str()).collect();
        labels.dedup();
        let trouble = |(tensor, problem)| Trouble {
            label: labels.join(" + "),
            kernels: kernels.clone(),
            step: steps.end - 1,
            tensor,
            problem,
            inputs: self.named(node, &inputs),
        };
        Ok(found.into_iter().map(trouble).collect())
    }

    fn named(&self, node: &Node, inputs: &[HostTensor]) -> Vec<(String, HostTensor)> {
        let names = node.inputs.iter().map(|&i| self.graph.value(i).name.clone());
        let mut seen: HashMap<String, usize> = HashMap::new();
        let mut unique = |name: String| match seen.entry(name.clone()).and_modify(|n| *n += 1).or_insert(0) {
            0 => name,
            n => format!("{name}.{n}"),
        };
        names.map(&mut unique).zip(inputs.iter().cloned()).collect()
    }

    /// The value of a node's input, where no dispatch touches it as the host gave it: the ids, say, whose sorted order is
    /// all that the device needs.
    fn read_input(&self, id: ValueId) -> Result<HostTensor> {
        let (root, start) = self.graph.resolve(id);
        match self.given.get(&root) {
            Some(whole) if !self.plan.places.contains_key(&id) => {
                let ty = &self.graph.value(id).ty;
                Ok(HostTensor::from_bytes(ty, &whole.bytes()[start * ty.dtype.bytes()..]))
            }
            _ => self.get(id),
        }
    }

    /// Runs one step; what is wrong, by binding.
    fn step(&mut self, step: &Step, order: Order) -> Result<Vec<(usize, Problem)>> {
        let kernel = &self.plan.kernels[step.kernel];
        let prepared = &self.kernels[step.kernel];
        let mut buffers = Vec::with_capacity(step.bindings.len() + 2);
        for (i, (place, access)) in step.bindings.iter().zip(&kernel.bindings).enumerate() {
            let at = SoloBinding { group: 0, binding: i as u32, kind: SoloKind::of(*access) };
            buffers.push(SoloBuffer { at, bytes: self.bytes(place).to_vec() });
        }
        let mut dispatches = vec![SoloDispatch { groups: step.groups, replace: None }];
        if prepared.controlled {
            let binding = step.bindings.len() as u32;
            let at = SoloBinding { group: 0, binding, kind: SoloKind::Read };
            dispatches = controlled(step.groups, order, POISON, buffers.len());
            buffers.push(SoloBuffer { at, bytes: vec![0; 32] });
        }
        if let Some(offset) = step.params {
            let start = offset as usize;
            let block = &self.plan.params[start..start + crate::plan::ALIGN_BYTES as usize];
            let at = SoloBinding { group: 1, binding: 0, kind: SoloKind::Uniform };
            buffers.push(SoloBuffer { at, bytes: block.to_vec() });
        }
        let trespasses = prepared.solo.run(&mut buffers, &dispatches)?;
        let problems: Vec<_> =
            trespasses.into_iter().map(|t| (t.at.binding as usize, Problem::Trespass(t))).collect();
        for (i, (place, access)) in step.bindings.iter().zip(&kernel.bindings).enumerate() {
            let bytes = &buffers[i].bytes;
            if *access != Access::Read {
                let start = place.offset as usize;
                self.buffers[place.buffer][start..start + place.bytes as usize]
                    .copy_from_slice(&bytes[..place.bytes as usize]);
            }
        }
        Ok(problems)
    }

    /// Compares a node's results, as they are now, with its reference on `inputs`: what is wrong, and the largest error as
    /// a share of its bound; notes what it wrote. `work` is how many operations it takes.
    fn compare(
        &mut self,
        node: &Node,
        inputs: &[HostTensor],
        work: u64,
    ) -> Result<(Vec<(String, Problem)>, f64)> {
        let graph = self.graph;
        let updated = node.op.updates().into_iter().map(|i| node.inputs[i]);
        let ids: Vec<ValueId> = node.outputs.iter().copied().chain(updated).collect();
        let types: Vec<DType> = ids.iter().map(|&id| graph.value(id).ty.dtype).collect();
        let expected = self.expected(node, inputs, work, &types);
        let (mut found, mut worst) = (Vec::new(), 0.0f64);
        for (id, expected) in ids.iter().zip(expected) {
            // An output that nothing reads need not be written.
            if !self.plan.places.contains_key(id) {
                continue;
            }
            let got = self.get(*id)?;
            let name = &graph.value(*id).name;
            // What is left of the poison that lay there before the node. In scratch memory it may stay, if nobody reads it.
            let unwritten = |w: &[u8]| w == POISON.to_le_bytes();
            if let Some(first) = got.bytes().chunks_exact(4).position(unwritten) {
                let count = got.bytes().chunks_exact(4).filter(|w| unwritten(w)).count();
                found.push((name.clone(), Problem::Unwritten(count, got.bytes().len() / 4, first)));
            }
            let value = got.to_f64();
            // What later nodes must read; a state may change again.
            if node.outputs.contains(id) {
                self.known.insert(*id, got);
            }
            let mut places: HashSet<usize> = HashSet::new();
            for part in &expected {
                let got = match &part.places {
                    Some(places) => Cow::Owned(places.iter().map(|&i| value.data[i]).collect()),
                    None => Cow::Borrowed(&value.data),
                };
                worst = worst.max(worst_share(&part.values, &got, &part.bounds));
                if let Some(mut mismatch) = compare_f64(&part.values, &got, &part.bounds) {
                    // Where it is in the whole.
                    if let Some(places) = &part.places {
                        for w in &mut mismatch.worst {
                            w.index = index_of(&value.shape, places[w.index[0]]);
                        }
                    }
                    found.push((name.clone(), Problem::Wrong(mismatch)));
                }
                places.extend(part.places.iter().flatten());
            }
            let whole = expected.iter().any(|part| part.places.is_none());
            self.compared += if whole { value.data.len() } else { places.len() } as u64;
            self.elements += value.data.len() as u64;
        }
        Ok((found, worst))
    }

    /// What each result of a node must be, as a whole or in parts; `types` are those of the results.
    fn expected(
        &mut self,
        node: &Node,
        inputs: &[HostTensor],
        work: u64,
        types: &[DType],
    ) -> Vec<Vec<Expected>> {
        let inputs: Vec<Tensor64> = inputs.iter().map(HostTensor::to_f64).collect();
        let inputs: Vec<&Tensor64> = inputs.iter().collect();
        let sample = self.sample.as_mut().filter(|_| work > WHOLE);
        let excerpts = sample.map_or(Vec::new(), |rng| node.op.excerpts(&inputs, rng));
        let count = types.len();
        let mut all: Vec<Vec<Expected>> = (0..count).map(|_| Vec::new()).collect();
        // For each result of the op, which result of the node's it is, and where in it.
        type Places = Vec<Option<(usize, Option<Vec<usize>>)>>;
        let mut compute = |op: &dyn Op, inputs: &[&Tensor64], places: Places| {
            let results = op.reference(inputs);
            let bounds = bounds(op, inputs, &results);
            for ((mut values, mut bounds), place) in results.into_iter().zip(bounds).zip(places) {
                if let Some((result, places)) = place {
                    add_storage(types[result], &values, &mut bounds);
                    if places.is_some() {
                        values.shape = values.data.len().into();
                    }
                    all[result].push(Expected { places, values, bounds });
                }
            }
        };
        if excerpts.is_empty() {
            compute(&*node.op, &inputs, (0..count).map(|i| Some((i, None))).collect());
        }
        for e in excerpts {
            let places = e.places.into_iter().map(|p| p.map(|(i, places)| (i, Some(places))));
            compute(&*e.op, &e.inputs.iter().collect::<Vec<_>>(), places.collect());
        }
        all
    }
}

/// The dispatches of a controlled kernel: each comes with the block that it reads, the buffer of number `block`. `fill` is
/// what workgroup memory holds before.
pub(crate) fn controlled(groups: [u32; 3], order: Order, fill: u32, block: usize) -> Vec<SoloDispatch> {
    let one = |start: [u32; 3], count: [u32; 3]| {
        let [x, y, z] = start;
        let words = [fill, (order == Order::Reversed) as u32, x, y, z, groups[0], groups[1], groups[2]];
        SoloDispatch { groups: count, replace: Some((block, bytemuck::cast_slice(&words).to_vec())) }
    };
    if order == Order::Natural {
        return vec![one([0; 3], groups)];
    }
    // Cut where there is most to cut: a third, a half of what is left, the rest.
    let axis = (0..3).max_by_key(|&i| groups[i]).unwrap_or(0);
    let n = groups[axis];
    let cuts = [0, n / 3, n / 3 + (n - n / 3) / 2, n];
    let pieces = cuts.windows(2).filter(|w| w[0] < w[1]).map(|w| {
        let (mut start, mut count) = ([0; 3], groups);
        (start[axis], count[axis]) = (w[0], w[1] - w[0]);
        one(start, count)
    });
    pieces.collect()
}

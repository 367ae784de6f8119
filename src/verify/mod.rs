//! Follows a plan step by step, each kernel by itself over bytes on the host, and compares every node with its f64
//! reference on the very inputs that the device had: so the first dispatch that goes wrong has a name.
//!
//! Around each buffer lie guard zones and what a kernel is to write is poisoned before (see [`crate::gpu::Solo`]): a
//! write outside and an element left unwritten are found as well.

mod replay;
mod tolerance;

#[cfg(feature = "testing")]
pub(crate) use replay::controlled;
pub use replay::{Order, Prepared, Problem, Replay, Trouble};
pub use tolerance::{Mismatch, bounds, compare, reduction_bound};
#[cfg(feature = "testing")]
pub(crate) use tolerance::{compare_f64, worst_share};

use crate::gpu::Executor;
use crate::graph::{Graph, ValueId};
use crate::plan::BufferKind;
use crate::{Error, HostTensor, Result};

/// What following a run step by step has found.
#[derive(Clone, Debug)]
pub struct Verification {
    /// What is wrong with the first node that went wrong; empty if all is well.
    pub troubles: Vec<Trouble>,
    /// The dispatches that were followed.
    pub dispatches: usize,
    /// The largest error as a share of what is allowed.
    pub worst: f64,
    /// How many elements of results were compared with their references.
    pub compared: u64,
    /// How many elements there were.
    pub elements: u64,
    /// By the number of its buffer: a state as it must be after the run.
    states: Vec<(usize, Vec<u8>)>,
    /// What the outputs of the plan must be after it.
    outputs: Vec<(ValueId, HostTensor)>,
}

impl Executor {
    /// Follows the run to come step by step, from the inputs and states as they are: every node's results are compared
    /// with its reference, and guard zones and poison tell of writes outside and of elements left unwritten. Changes
    /// nothing; run the plan afterwards, and then ask [`Verification::compare_states`]. `graph` is the one that the plan
    /// was made from. Takes the time of an f64 computation on one core.
    ///
    /// # Errors
    /// When an input was never written, `graph` is another, or the device fails.
    pub fn verify(&self, graph: &Graph) -> Result<Verification> {
        self.follow(graph, None)
    }

    /// [`Executor::verify`] in seconds where that takes hours: of nodes of more than some ten million operations only
    /// corners are compared, and elements that `seed` chooses, as far as the op can say what some of its results must be
    /// ([`Op::excerpts`](crate::graph::Op::excerpts): products, attention, softmax, LayerNorm).
    ///
    /// Beside its kernels a product of 1024 x 1024 x 1024 takes 4 ms of one core (x86-64), attention with 8 heads of 64
    /// columns over 2048 keys 0.06 s and its gradient 0.2 s, over 8192 keys 0.2 s and 0.6 s.
    ///
    /// # Errors
    /// As [`Executor::verify`].
    pub fn verify_sampled(&self, graph: &Graph, seed: u64) -> Result<Verification> {
        self.follow(graph, Some(seed))
    }

    fn follow(&self, graph: &Graph, seed: Option<u64>) -> Result<Verification> {
        let plan = self.plan();
        let known = |id: &crate::graph::ValueId| id.index() < graph.values().len();
        let nodes = plan.steps.iter().all(|s| s.node < graph.nodes().len());
        if !nodes || !plan.places.keys().all(known) {
            return Err(Error::config("graph", "is not the one that the plan was made from"));
        }
        let mut replay = Replay::new(self.gpu(), graph, plan)?;
        if let Some(seed) = seed {
            replay = replay.sampled(seed);
        }
        replay.load(self.snapshot()?);
        let troubles = replay.run(Order::Natural)?;
        let is_state = |i: &usize| matches!(plan.buffers[*i].kind, BufferKind::State { .. });
        let states = (0..plan.buffers.len()).filter(is_state);
        Ok(Verification {
            dispatches: plan.steps.len(),
            worst: replay.worst().values().copied().fold(0.0, f64::max),
            compared: replay.compared(),
            elements: replay.elements(),
            states: states.map(|i| (i, replay.buffer(i).to_vec())).collect(),
            outputs: match troubles.is_empty() {
                true => {
                    plan.outputs.iter().map(|o| Ok((o.value, replay.get(o.value)?))).collect::<Result<_>>()?
                }
                false => Vec::new(),
            },
            troubles,
        })
    }
}

impl Verification {
    /// After the run that was followed: adds what states have other bits now than step by step.
    ///
    /// # Errors
    /// When the device fails.
    pub fn compare_states(&mut self, executor: &Executor) -> Result<()> {
        // After a step that went wrong the rest was not followed.
        if !self.troubles.is_empty() {
            return Ok(());
        }
        let now = executor.snapshot()?;
        let buffers = &executor.plan().buffers;
        let other =
            |number: &usize, expected: &Vec<u8>| now.iter().any(|(i, b)| i == number && b != expected);
        let changed = self.states.iter().filter(|(number, expected)| other(number, expected));
        let name = |(number, _): &(usize, Vec<u8>)| match &buffers[*number].kind {
            BufferKind::State { name, .. } => Some(name.clone()),
            _ => None,
        };
        let names: Vec<String> = changed.filter_map(name).collect();
        names.into_iter().for_each(|name| self.other_bits(name));
        Ok(())
    }

    /// After a run from the same inputs and states: adds what outputs have other bits than step by step.
    ///
    /// # Errors
    /// When the executor is one of another plan, or the device fails.
    pub fn compare_outputs(&mut self, executor: &Executor) -> Result<()> {
        for i in 0..self.outputs.len() {
            let (id, expected) = &self.outputs[i];
            if executor.read(*id)?.bytes() != expected.bytes() {
                let named = executor.plan().outputs.iter().find(|o| o.value == *id);
                self.other_bits(named.map_or(String::new(), |o| o.name.clone()));
            }
        }
        Ok(())
    }

    fn other_bits(&mut self, tensor: String) {
        self.troubles.push(Trouble {
            label: "whole run".to_string(),
            kernels: Vec::new(),
            step: self.dispatches.saturating_sub(1),
            tensor,
            problem: Problem::OtherBits,
            inputs: Vec::new(),
        });
    }
}

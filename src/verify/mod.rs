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
pub use tolerance::{Mismatch, compare, node_bounds, reduction_bound};
#[cfg(feature = "testing")]
pub(crate) use tolerance::{compare_f64, worst_share};

use crate::gpu::Executor;
use crate::graph::Graph;
use crate::plan::BufferKind;
use crate::{Error, Result};

/// What following a run step by step has found.
#[derive(Clone, Debug)]
pub struct Verification {
    /// What is wrong with the first node that went wrong; empty if all is well.
    pub troubles: Vec<Trouble>,
    /// The dispatches that were followed.
    pub dispatches: usize,
    /// The largest error as a share of what is allowed.
    pub worst: f64,
    /// By the number of its buffer: a state as it must be after the run.
    states: Vec<(usize, Vec<u8>)>,
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
        let plan = self.plan();
        let known = |id: &crate::graph::ValueId| id.index() < graph.values().len();
        let nodes = plan.steps.iter().all(|s| s.node < graph.nodes().len());
        if !nodes || !plan.places.keys().all(known) {
            return Err(Error::config("graph", "is not the one that the plan was made from"));
        }
        let mut replay = Replay::new(self.gpu(), graph, plan)?;
        replay.load(self.snapshot()?);
        let troubles = replay.run(Order::Natural)?;
        let is_state = |i: &usize| matches!(plan.buffers[*i].kind, BufferKind::State { .. });
        let states = (0..plan.buffers.len()).filter(is_state);
        Ok(Verification {
            troubles,
            dispatches: plan.steps.len(),
            worst: replay.worst().values().copied().fold(0.0, f64::max),
            states: states.map(|i| (i, replay.buffer(i).to_vec())).collect(),
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
        for (number, expected) in &self.states {
            if now.iter().any(|(i, bytes)| i == number && bytes != expected)
                && let BufferKind::State { name, .. } = &executor.plan().buffers[*number].kind
            {
                self.troubles.push(Trouble {
                    label: "whole run".to_string(),
                    kernels: Vec::new(),
                    step: self.dispatches.saturating_sub(1),
                    tensor: name.clone(),
                    problem: Problem::OtherBits,
                    inputs: Vec::new(),
                });
            }
        }
        Ok(())
    }
}

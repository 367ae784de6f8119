//! What is timed: graphs around one op, and whole models.

use super::result::{Clock, Pass};
use crate::graph::{Graph, ValueId};
use crate::nn::{BatchShape, Objective, Optimizer, Transformer, page_name};
use crate::rng::Rng;
use crate::tuning::Query;
use crate::{DType, Error, HostTensor, Result, Shape, TensorType};
use std::collections::BTreeMap;

/// What an input holds. It is made when the plan is known to fit the device.
#[derive(Clone, Debug)]
pub(super) enum Fill {
    /// Normally distributed numbers times this.
    Normal(f64),
    /// Ids below this.
    Below(u32),
    /// These.
    Values(HostTensor),
}

impl Fill {
    pub fn make(&self, ty: &TensorType, rng: &mut Rng) -> HostTensor {
        let n = ty.shape.elements();
        match (self, ty.dtype) {
            (Fill::Values(values), _) => values.clone(),
            (Fill::Normal(scale), DType::F16) => {
                let number = |_| half::f16::from_f64(scale * rng.normal());
                HostTensor::f16(ty.shape.clone(), (0..n).map(number).collect())
            }
            (Fill::Normal(scale), _) => {
                HostTensor::f32(ty.shape.clone(), (0..n).map(|_| (scale * rng.normal()) as f32).collect())
            }
            (Fill::Below(most), DType::U32) => {
                let ids = (0..n).map(|_| rng.below(u64::from(*most).max(1)) as u32).collect();
                HostTensor::u32(ty.shape.clone(), ids)
            }
            (Fill::Below(most), DType::F32 | DType::F16) => {
                let numbers = (0..n).map(|_| rng.below(u64::from(*most).max(1)) as f32).collect();
                HostTensor::f32(ty.shape.clone(), numbers)
            }
        }
    }
}

/// A graph, what its inputs and states hold, and which of its nodes count.
#[derive(Debug, Default)]
pub(super) struct Body {
    pub graph: Graph,
    pub outputs: Vec<ValueId>,
    pub given: Vec<(ValueId, Fill)>,
    /// Nodes before it run once and are not timed.
    pub first: usize,
    /// Only what computes this is timed.
    pub only: Option<Query>,
}

impl Body {
    pub fn input(&mut self, name: &str, ty: TensorType, fill: Fill) -> ValueId {
        let id = self.graph.input(name, ty);
        self.given.push((id, fill));
        id
    }

    pub fn normal(&mut self, name: &str, shape: impl Into<Shape>) -> ValueId {
        self.input(name, TensorType::f32(shape), Fill::Normal(1.0))
    }

    pub fn fixed(&mut self, name: &str, values: HostTensor) -> ValueId {
        self.input(name, values.ty(), Fill::Values(values))
    }

    pub fn state(&mut self, name: &str, ty: TensorType, fill: Fill) -> ValueId {
        let id = self.graph.state(name, ty);
        self.given.push((id, fill));
        id
    }

    /// Appends the gradients of `out` by `wrt`, which become the outputs, for a random gradient from outside (one for a
    /// loss). Where `alone`, only these nodes count; what they read of those before stays an output, so that no slot is
    /// written over between two runs of them.
    pub fn backward(&mut self, out: ValueId, wrt: &[ValueId], alone: bool) -> Result<()> {
        let ty = self.graph.value(out).ty.clone();
        let d_out = match ty.shape.elements() {
            1 => self.fixed("d_out", HostTensor::f32(ty.shape, vec![1.0])),
            _ => self.input("d_out", ty, Fill::Normal(1.0)),
        };
        let forward = self.graph.nodes().len();
        let gradients = self.graph.backward(&[(out, d_out)], wrt)?;
        self.outputs = gradients.into_iter().flatten().collect();
        if alone {
            self.first = forward;
            let (before, after) = self.graph.nodes().split_at(forward);
            let made = |id: &ValueId| before.iter().any(|node| node.outputs.contains(id));
            let mut kept: Vec<ValueId> = after.iter().flat_map(|n| n.inputs.clone()).filter(made).collect();
            kept.sort();
            kept.dedup();
            self.outputs.extend(kept);
        }
        Ok(())
    }
}

type Builder = Box<dyn Fn() -> Result<Body> + Send + Sync>;

/// How one repetition is timed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Timing {
    /// Many of them in a pass.
    Pass,
    /// On the host, each with its submission and wait; the work of so many equal parts, of which one counts.
    Submission(u64),
    /// On the host, each with its submission and the reading of its outputs.
    Reading,
    /// On the host, each from a device that has compiled nothing yet.
    Cold,
}

/// One thing to time.
pub struct Work {
    pub(super) family: &'static str,
    pub(super) name: String,
    pub(super) shape: BTreeMap<String, u64>,
    pub(super) pass: Pass,
    pub(super) tokens: Option<u64>,
    /// Where the op's own count, which knows no lengths, is not that of the work.
    pub(super) flops: Option<u64>,
    /// Where less is touched than the tensors have.
    pub(super) bytes: Option<u64>,
    pub(super) timing: Timing,
    pub(super) build: Builder,
}

impl std::fmt::Debug for Work {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Work").field("name", &self.name).field("shape", &self.shape).finish()
    }
}

impl Work {
    pub(super) fn new(
        family: &'static str,
        name: impl Into<String>,
        shape: &[(&str, usize)],
        pass: Pass,
        build: impl Fn() -> Result<Body> + Send + Sync + 'static,
    ) -> Work {
        Work {
            family,
            name: name.into(),
            shape: shape.iter().map(|(name, n)| (name.to_string(), *n as u64)).collect(),
            pass,
            tokens: None,
            flops: None,
            bytes: None,
            timing: Timing::Pass,
            build: Box::new(build),
        }
    }

    /// What it belongs to.
    pub fn family(&self) -> &str {
        self.family
    }

    /// Its name, without sizes.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Which part of it is timed.
    pub fn pass(&self) -> Pass {
        self.pass
    }

    /// Its sizes in words.
    pub fn sizes(&self) -> String {
        super::result::sizes(&self.shape)
    }

    /// The equal parts of a run, of which one counts.
    pub(super) fn parts(&self) -> u64 {
        match self.timing {
            Timing::Submission(parts) => parts,
            _ => 1,
        }
    }

    pub(super) fn clock(&self, timestamps: bool) -> Clock {
        match self.timing {
            Timing::Pass if timestamps => Clock::Device,
            _ => Clock::Host,
        }
    }
}

// ---- Whole models ----

/// The most bytes of a batch's logits, more than any device has.
const MOST_LOGITS: u64 = 1 << 38;

/// A model's parameters as after initialisation, as states.
fn parameters(body: &mut Body, model: &Transformer) {
    for (i, page) in model.layout().initial(1).into_iter().enumerate() {
        if let Some(id) = body.graph.find(&page_name("parameters", i)) {
            body.given.push((id, Fill::Values(HostTensor::f32([page.len()], page))));
        }
    }
}

fn all(rows: usize, length: usize) -> Fill {
    Fill::Values(HostTensor::u32([rows], vec![length as u32; rows]))
}

/// A step of training (with an optimiser), or the loss alone, over sentences of full length.
pub(super) fn loss(model: &Transformer, shape: BatchShape, optimizer: Option<&Optimizer>) -> Result<Body> {
    let config = model.config();
    // Before the graph is made, which has nodes for each 128 MiB of logits.
    let logits = (shape.rows * shape.target_len * config.target_vocabulary) as u64 * 4;
    if logits > MOST_LOGITS {
        let tensor = "logits".to_string();
        return Err(Error::Limit {
            limit: "the bytes of one batch",
            needed: logits,
            allowed: MOST_LOGITS,
            tensor,
        });
    }
    // No more logits at a time than WebGPU's default binding holds.
    let io = model.loss_graph(shape, &Objective::default(), optimizer)?;
    let outputs = io.outputs();
    let mut body = Body { graph: io.graph, outputs, ..Default::default() };
    body.given = vec![
        (io.source, Fill::Below(config.source_vocabulary as u32)),
        (io.source_lengths, all(shape.rows, shape.source_len)),
        (io.decoder_input, Fill::Below(config.target_vocabulary as u32)),
        (io.targets, Fill::Below(config.target_vocabulary as u32)),
    ];
    let values = |x: HostTensor| Fill::Values(x);
    body.given.extend(io.seed.map(|id| (id, values(HostTensor::u32([2], vec![1, 1])))));
    // The first step of a schedule: lr, 1 / (1 - beta1), 1 / (1 - beta2), scale.
    let schedule = || values(HostTensor::f32([4], vec![1e-4, 10.0, 50.0, 1.0]));
    body.given.extend(io.schedule.map(|id| (id, schedule())));
    parameters(&mut body, model);
    Ok(body)
}

/// What the encoder makes of sentences of full length, and the decoder keeps of it.
pub(super) fn encode(model: &Transformer, shape: BatchShape) -> Result<Body> {
    let io = model.encode_graph(shape)?;
    let mut body = Body { graph: io.graph, ..Default::default() };
    body.given = vec![
        (io.source, Fill::Below(model.config().source_vocabulary as u32)),
        (io.source_lengths, all(shape.rows, shape.source_len)),
    ];
    parameters(&mut body, model);
    Ok(body)
}

/// One token more for each row, in the middle of a sentence.
pub(super) fn decode(model: &Transformer, shape: BatchShape) -> Result<Body> {
    let io = model.decode_graph(shape, 1)?;
    let position = shape.target_len as u32 / 2;
    let mut body = Body { graph: io.graph, outputs: vec![io.next], ..Default::default() };
    body.given = vec![
        (io.source_lengths, all(shape.rows, shape.source_len)),
        (io.target_lengths, all(shape.rows, position as usize + 1)),
        (io.position, Fill::Values(HostTensor::u32([1], vec![position]))),
    ];
    // Keys and values of memory and target as an encoding and earlier tokens would have left them.
    let states: Vec<ValueId> = body.graph.ids().filter(|&id| is_state(&body.graph, id)).collect();
    for id in states {
        let value = body.graph.value(id);
        let fill = match value.ty.dtype {
            DType::U32 => Fill::Below(model.config().target_vocabulary as u32),
            DType::F32 | DType::F16 => Fill::Normal(1.0),
        };
        if !value.name.starts_with("parameters") {
            body.given.push((id, fill));
        }
    }
    parameters(&mut body, model);
    Ok(body)
}

pub(super) fn is_state(graph: &Graph, id: ValueId) -> bool {
    matches!(graph.value(id).role, crate::graph::Role::State)
}

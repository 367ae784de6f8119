//! The trainer: parameters and moments on a device, and a step for each batch.

use super::schedule::{Decay, Schedule};
use crate::gpu::{Executor, Fetch, Gpu, Memory};
use crate::ids::{Batch, BatchShape};
use crate::nn::{LossGraph, Objective, Optimizer, Precision, Transformer, page_name};
use crate::ops::optimizer::AdamSettings;
use crate::plan::Plan;
use crate::verify::Verification;
use crate::{Error, HostTensor, Result, Shape, TensorType};
use std::collections::{BTreeSet, HashMap};

/// How a model is trained.
#[derive(Clone, Debug, PartialEq)]
pub struct TrainerSettings {
    /// Seed of first values and dropout.
    pub seed: u64,
    /// Learning rates.
    pub schedule: Schedule,
    /// Adam's settings.
    pub adam: AdamSettings,
    /// Gradients are scaled down to this global norm.
    pub clip_norm: Option<f64>,
    /// The loss.
    pub objective: Objective,
    /// Device memory for parameters, moments and everything that steps compute, in bytes: see [`Trainer::bytes`]. Batches
    /// that would need more are planned with smaller chunks of logits, and with layers that are computed again
    /// ([`Objective::recompute`]). `None` is no bound.
    pub max_bytes: Option<u64>,
}

/// Seed 1, the loss and Adam's settings of 'Attention is all you need', clipping at a norm of 1, and a learning rate that
/// warms up to 1e-3 in 100 steps and then falls with the square root of the step.
impl Default for TrainerSettings {
    fn default() -> Self {
        TrainerSettings {
            seed: 1,
            schedule: Schedule { decay: Decay::InverseSqrt, rate: 1e-3, warmup: 100, steps: 0, width: 0 },
            adam: AdamSettings::transformer(),
            clip_norm: Some(1.0),
            objective: Objective::default(),
            max_bytes: None,
        }
    }
}

/// Numbers of one training step, once the device has computed them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepReport {
    /// The step, from 1.
    pub step: u64,
    /// The learning rate it used.
    pub learning_rate: f64,
    /// Mean loss over its targets.
    pub loss: f64,
    /// Share of targets predicted right.
    pub accuracy: f64,
    /// Number of targets.
    pub targets: u64,
    /// Global norm of the gradients before clipping.
    pub gradient_norm: f64,
}

/// A step that was submitted; its numbers come later.
#[derive(Debug)]
pub struct PendingStep {
    step: u64,
    learning_rate: f64,
    fetch: Fetch,
}

impl PendingStep {
    /// Whether the numbers are there, without waiting.
    ///
    /// # Errors
    /// When the device failed.
    pub fn ready(&self) -> Result<bool> {
        self.fetch.ready()
    }

    /// Waits for the numbers.
    ///
    /// # Errors
    /// When the device failed, or the loss is no number.
    pub fn wait(self) -> Result<StepReport> {
        let values = self.fetch.wait()?;
        let read = |i: usize, j: usize| -> Result<f64> {
            let all = values.get(i).map(|v| v.as_f32("step result")).transpose()?;
            all.and_then(|v| v.get(j))
                .map(|&x| x as f64)
                .ok_or_else(|| Error::Internal("a step result is missing".into()))
        };
        let targets = read(1, 2)?;
        let report = StepReport {
            step: self.step,
            learning_rate: self.learning_rate,
            loss: read(0, 0)?,
            accuracy: read(1, 1)? / targets.max(1.0),
            targets: targets as u64,
            gradient_norm: read(2, 0)?,
        };
        if !report.loss.is_finite() {
            let problem = format!("the loss of step {} is {}: lower it", report.step, report.loss);
            return Err(Error::config("learning_rate", problem));
        }
        Ok(report)
    }
}

/// What an evaluation found.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Evaluation {
    /// Mean loss over all targets.
    pub loss: f64,
    /// Share of targets predicted right, given the right symbols before.
    pub accuracy: f64,
    /// Number of targets.
    pub targets: u64,
}

struct Prepared {
    io: LossGraph,
    loss_rows: usize,
    executor: Executor,
}

/// What a plan is made for: a shape, and how many of its B T places have logits.
type Work = (BatchShape, usize);

fn full(shape: BatchShape) -> Work {
    (shape, shape.rows.saturating_mul(shape.target_len))
}

impl Prepared {
    fn write(&mut self, batch: &Batch) -> Result<()> {
        let BatchShape { rows, source_len, target_len } = batch.shape;
        let e = &mut self.executor;
        e.write(self.io.source, &HostTensor::u32([rows, source_len], batch.source.clone()))?;
        e.write(self.io.source_lengths, &HostTensor::u32([rows], batch.source_lengths.clone()))?;
        e.write(self.io.decoder_input, &HostTensor::u32([rows, target_len], batch.decoder_input.clone()))?;
        let Some(places) = self.io.places else {
            return e.write(self.io.targets, &HostTensor::u32([rows, target_len], batch.targets.clone()));
        };
        let of_loss = batch.loss_places(self.loss_rows);
        let targets = of_loss.iter().map(|&place| batch.targets[place as usize]).collect();
        e.write(places, &HostTensor::u32([self.loss_rows], of_loss))?;
        e.write(self.io.targets, &HostTensor::u32([self.loss_rows], targets))
    }
}

/// Trains a model on a device.
pub struct Trainer {
    gpu: Gpu,
    memory: Memory,
    model: Transformer,
    settings: TrainerSettings,
    step: u64,
    training: HashMap<Work, Prepared>,
    evaluation: HashMap<Work, Prepared>,
    /// Within a budget: what [`Trainer::prepare_for`] found room for.
    partial: BTreeSet<Work>,
    /// The first of [`Trainer::objectives`] that is worth trying.
    way: usize,
}

impl Trainer {
    /// A trainer with the first values of all parameters on the device.
    ///
    /// # Errors
    /// When a setting is impossible or the device too small.
    pub fn new(gpu: &Gpu, model: Transformer, settings: TrainerSettings) -> Result<Self> {
        model.layout().check_limits(gpu.profile())?;
        let memory = Memory::new(gpu);
        for (i, page) in model.layout().initial(settings.seed).into_iter().enumerate() {
            memory.write(&page_name("parameters", i), &HostTensor::f32([page.len()], page))?;
        }
        Self::with_memory(gpu, model, memory, settings)
    }

    /// A trainer of the parameters that are already in this memory, as pages: the states `parameters.0` and so on, of the
    /// lengths that [`ParameterLayout::pages`](crate::nn::ParameterLayout::pages) has.
    ///
    /// # Errors
    /// When a setting is impossible, a page is missing or of another length, or the device too small.
    pub fn with_memory(
        gpu: &Gpu,
        model: Transformer,
        memory: Memory,
        settings: TrainerSettings,
    ) -> Result<Self> {
        if model.precision() != Precision::F32 {
            return Err(Error::config("precision", "f16 is for using a model: train with 32-bit floats"));
        }
        settings.schedule.validate()?;
        let states: HashMap<String, TensorType> = memory.states().into_iter().collect();
        for (i, &n) in model.layout().pages().iter().enumerate() {
            let (name, want) = (page_name("parameters", i), TensorType::f32([n]));
            match states.get(&name) {
                Some(ty) if *ty == want => {}
                other => {
                    let got = other.map_or("nothing".to_string(), |ty| ty.to_string());
                    return Err(Error::shape("memory", name, want, got));
                }
            }
        }
        Ok(Trainer {
            gpu: gpu.clone(),
            memory,
            model,
            settings,
            step: 0,
            training: HashMap::new(),
            evaluation: HashMap::new(),
            partial: BTreeSet::new(),
            way: 0,
        })
    }

    /// The model's settings and parameters' layout.
    pub fn model(&self) -> &Transformer {
        &self.model
    }

    /// The device memory: parameters, gradients and moments by page.
    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    /// Steps done.
    pub fn steps(&self) -> u64 {
        self.step
    }

    /// Plans and compiles for batches of these shapes that have little padding among their targets, so that no step has to.
    /// Best with the largest first. Others have plans of their own: [`Trainer::prepare_for`].
    ///
    /// # Errors
    /// When a shape is impossible or the device too small.
    pub fn prepare(&mut self, shapes: &[BatchShape]) -> Result<()> {
        for &shape in shapes {
            self.training(full(shape))?;
        }
        Ok(())
    }

    /// Plans and compiles for batches of this shape with about so many targets that are no padding; for the others there
    /// are no logits, where that is worth it ([`Transformer::loss_rows`]).
    ///
    /// Within a budget ([`TrainerSettings::max_bytes`]) only batches that were prepared for are computed so, and only where the
    /// budget has room for that plan beside the one for all places: how a step is computed does not depend on the
    /// batches before it.
    ///
    /// # Errors
    /// When the shape is impossible or the device too small.
    pub fn prepare_for(&mut self, shape: BatchShape, targets: usize) -> Result<()> {
        let work = (shape, self.model.loss_rows(shape, targets));
        if self.settings.max_bytes.is_none() || work == full(shape) {
            return self.training(work).map(drop);
        }
        self.training(full(shape))?;
        if !self.partial.contains(&work)
            && let Ok(prepared) = self.fitting(work, Some(&self.optimizer()))?
        {
            self.training.insert(work, prepared);
            self.partial.insert(work);
        }
        Ok(())
    }

    /// What the plan of a batch's training step is made for.
    fn work(&self, batch: &Batch) -> Work {
        let shape = batch.shape;
        let rows = self.model.loss_rows(shape, batch.count_targets());
        match self.settings.max_bytes {
            None => (shape, rows),
            Some(_) => self.partial.range((shape, rows)..full(shape)).next().copied().unwrap_or(full(shape)),
        }
    }

    fn optimizer(&self) -> Optimizer {
        Optimizer { adam: self.settings.adam.clone(), clip_norm: self.settings.clip_norm }
    }

    fn training(&mut self, work: Work) -> Result<&mut Prepared> {
        if !self.training.contains_key(&work) {
            let prepared = self.build(work, Some(&self.optimizer()))?;
            self.training.insert(work, prepared);
        }
        self.training.get_mut(&work).ok_or_else(|| Error::Internal("a plan was lost".into()))
    }

    /// The device memory of its states, slots and of what each of its plans has for itself, in bytes. Buffers for reading
    /// results back, some bytes each, are not in it.
    pub fn bytes(&self) -> u64 {
        self.memory.bytes() + self.own_bytes()
    }

    fn own_bytes(&self) -> u64 {
        let prepared = self.training.values().chain(self.evaluation.values());
        prepared.map(|p| p.executor.plan().own_bytes()).sum()
    }

    /// Plans a batch within the budget: in the fastest way that fits beside the plans that are there. Where none does, those
    /// are given up, and made again in less memory when they are needed.
    fn build(&mut self, work: Work, optimizer: Option<&Optimizer>) -> Result<Prepared> {
        let ways = self.objectives(work, optimizer.is_some()).len();
        let (mut least, before) = (u64::MAX, self.way);
        loop {
            match self.fitting(work, optimizer)? {
                Ok(prepared) => return Ok(prepared),
                Err(needed) => least = least.min(needed),
            }
            if self.way + 1 >= ways {
                break;
            }
            self.way += 1;
            self.training.clear();
            self.evaluation.clear();
            self.memory.release_slots();
        }
        // Other batches may still fit in a faster way.
        self.way = before;
        let BatchShape { rows, source_len, target_len } = work.0;
        let problem = format!(
            "a batch of {rows} x ({source_len} + {target_len}) symbols needs {least} bytes at least, {} are allowed: \
             allow more, or take smaller batches",
            self.settings.max_bytes.unwrap_or(u64::MAX)
        );
        Err(Error::config("max_bytes", problem))
    }

    /// A plan in the fastest way that is worth trying and fits beside the plans that are there, or the bytes that would do.
    fn fitting(&self, work: Work, optimizer: Option<&Optimizer>) -> Result<Result<Prepared, u64>> {
        let ways = self.objectives(work, optimizer.is_some());
        let mut least = u64::MAX;
        for objective in &ways[self.way.min(ways.len() - 1)..] {
            let io = self.model.loss_graph_of(work.0, work.1, objective, optimizer)?;
            let plan = Plan::new(&io.graph, &io.outputs(), self.gpu.profile())?;
            let needed = self.memory.bytes_with_plan(&plan) + self.own_bytes() + plan.own_bytes();
            if self.settings.max_bytes.is_none_or(|most| needed <= most) {
                let executor = self.gpu.executor(plan, &self.memory)?;
                return Ok(Ok(Prepared { io, loss_rows: work.1, executor }));
            }
            least = least.min(needed);
        }
        Ok(Err(least))
    }

    /// How a loss may be computed: the fastest way first, each with less memory.
    fn objectives(&self, (_, loss_rows): Work, training: bool) -> Vec<Objective> {
        let objective = self.settings.objective;
        let row = 4 * self.model.config().target_vocabulary as u64;
        let all = row.saturating_mul(loss_rows as u64);
        let most = objective.max_logits_bytes.min(self.gpu.profile().max_binding_bytes);
        if self.settings.max_bytes.is_none() {
            return vec![Objective { max_logits_bytes: most, ..objective }];
        }
        let again =
            if training && !objective.recompute { vec![false, true] } else { vec![objective.recompute] };
        // The first is what is done without a budget.
        let parts = [most, all / 4, all / 16, all / 64].map(|bytes| most.min(bytes).max(row));
        let with =
            |recompute| parts.map(|bytes| Objective { max_logits_bytes: bytes, recompute, ..objective });
        again.into_iter().flat_map(with).collect()
    }

    /// Submits one training step and does not wait for it.
    ///
    /// # Errors
    /// When the batch does not fit the model, or the device failed.
    pub fn step(&mut self, batch: &Batch) -> Result<PendingStep> {
        let learning_rate = self.write(batch)?;
        let fetch = self.training(self.work(batch))?.executor.run_and_fetch()?;
        self.step += 1;
        Ok(PendingStep { step: self.step, learning_rate, fetch })
    }

    /// [`Trainer::step`], after following it kernel by kernel against the references: see [`Executor::verify`]. Slow.
    ///
    /// # Errors
    /// When the batch does not fit the model, or the device failed.
    pub fn step_verified(&mut self, batch: &Batch) -> Result<(PendingStep, Verification)> {
        let learning_rate = self.write(batch)?;
        let prepared = self.training(self.work(batch))?;
        let mut found = prepared.executor.verify(&prepared.io.graph)?;
        let fetch = prepared.executor.run_and_fetch()?;
        found.compare_states(&prepared.executor)?;
        self.step += 1;
        Ok((PendingStep { step: self.step, learning_rate, fetch }, found))
    }

    /// Writes a batch and the numbers of the next step; its learning rate.
    fn write(&mut self, batch: &Batch) -> Result<f64> {
        let step = self.step + 1;
        let settings = self.settings.clone();
        let learning_rate = settings.schedule.at(step);
        let correction = |beta: f64| (1.0 / (1.0 - beta.powf(step as f64))) as f32;
        let schedule =
            vec![learning_rate as f32, correction(settings.adam.beta1), correction(settings.adam.beta2), 1.0];
        let prepared = self.training(self.work(batch))?;
        prepared.write(batch)?;
        if let Some(id) = prepared.io.seed {
            // Both halves of the seed count.
            let seed = (settings.seed ^ (settings.seed >> 32)) as u32;
            prepared.executor.write(id, &HostTensor::u32([2], vec![seed, step as u32]))?;
        }
        if let Some(id) = prepared.io.schedule {
            prepared.executor.write(id, &HostTensor::f32([4], schedule))?;
        }
        Ok(learning_rate)
    }

    /// Mean loss and accuracy over batches, without dropout.
    ///
    /// # Errors
    /// When a batch does not fit the model, or the device failed.
    pub fn evaluate(&mut self, batches: impl IntoIterator<Item = Batch>) -> Result<Evaluation> {
        let mut sums = [0.0f64; 3];
        for batch in batches {
            let work = match self.settings.max_bytes {
                None => self.work(&batch),
                Some(_) => full(batch.shape),
            };
            if !self.evaluation.contains_key(&work) {
                let prepared = self.build(work, None)?;
                self.evaluation.insert(work, prepared);
            }
            let Some(prepared) = self.evaluation.get_mut(&work) else { continue };
            prepared.write(&batch)?;
            let values = prepared.executor.run_and_fetch()?.wait()?;
            for (sum, &x) in sums.iter_mut().zip(values[1].as_f32("stats")?) {
                *sum += x as f64;
            }
        }
        let n = sums[2].max(1.0);
        Ok(Evaluation { loss: sums[0] / n, accuracy: sums[1] / n, targets: sums[2] as u64 })
    }

    /// The names and lengths of the pages that the next step depends on: parameters and moments.
    pub fn state_layout(&self) -> Vec<(String, usize)> {
        let pages = self.model.layout().pages();
        let names = ["parameters", "adam.m", "adam.v"];
        names
            .iter()
            .flat_map(|what| pages.iter().enumerate().map(|(i, &n)| (page_name(what, i), n)))
            .collect()
    }

    /// All that the next step depends on, beside the settings and [`Trainer::steps`]. Only after [`Trainer::prepare`] or
    /// a step.
    ///
    /// # Errors
    /// When the device failed.
    pub fn state(&self) -> Result<Vec<(String, HostTensor)>> {
        let layout = self.state_layout().into_iter();
        layout.map(|(name, _)| self.memory.read(&name).map(|page| (name, page))).collect()
    }

    /// Goes on from [`Trainer::state`] after `step` steps: the next steps are those that the other trainer would have
    /// done, bit by bit on the same adapter.
    ///
    /// # Errors
    /// When a page is missing or has another length, or the device failed.
    pub fn restore(&mut self, step: u64, state: &HashMap<String, HostTensor>) -> Result<()> {
        for (name, n) in self.state_layout() {
            let want = TensorType::f32([n]);
            match state.get(&name) {
                Some(page) if page.ty() == want => self.memory.write(&name, page)?,
                other => {
                    let got = other.map_or("nothing".to_string(), |page| page.ty().to_string());
                    return Err(Error::shape("training state", name, want, got));
                }
            }
        }
        self.step = step;
        Ok(())
    }

    /// All parameters by name, read from the device.
    ///
    /// # Errors
    /// When the device failed.
    pub fn parameters(&self) -> Result<Vec<(String, HostTensor)>> {
        read_parameters(&self.model, &self.memory)
    }
}

/// All parameters by name, read from the device.
pub(crate) fn read_parameters(model: &Transformer, memory: &Memory) -> Result<Vec<(String, HostTensor)>> {
    let mut pages = Vec::new();
    for i in 0..model.layout().pages().len() {
        pages.push(memory.read(&page_name("parameters", i))?);
    }
    let one = |p: &crate::nn::Parameter| {
        let page = pages[p.page].as_f32(&p.name)?;
        let shape: Shape = p.shape.clone();
        let values = page[p.start..p.start + shape.elements()].to_vec();
        Ok((p.name.clone(), HostTensor::f32(shape, values)))
    };
    model.layout().parameters().iter().map(one).collect()
}

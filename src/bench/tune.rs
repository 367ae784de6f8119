//! Measures which variants of kernels are the fastest for the works of a model on a device: what `wgformer tune` writes.
//!
//! Each work is a node of the model's graphs, alone: with the values that nodes before it of the same op give, and random
//! ones for all others. As in the benchmark, what is timed are the very executors whose results were compared with the
//! reference before, and again after.

use super::measure::{Ready, Settings, executor, row};
use super::stats::median;
use super::work::{Body, Fill, Work, decode, encode, loss};
use super::{Pass, Row};
use crate::gpu::Gpu;
use crate::graph::{Layout, Role, ValueId};
use crate::nn::{BatchShape, Optimizer, Transformer};
use crate::ops::optimizer::AdamSettings;
use crate::plan::Plan;
use crate::tuning::{Choice, Family, Measured, Query, Tuning, TuningFile, Variant};
use crate::{DType, Error, Result, TensorType};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Rounds in which the shipped variant and the others run one after another; fewer where a run is longer than most
/// disturbances.
const ROUNDS: usize = 7;
const FEW_ROUNDS: usize = 3;
const LONG: Duration = Duration::from_millis(200);
/// The most that a variant may take of the shipped one's time to replace it, in the median of the rounds.
const CLEARLY: f64 = 0.95;
/// The share of the rounds in which it must be faster at all.
const MOSTLY: f64 = 0.75;
/// What takes so many times as long as the shipped variant in a first run is not looked at any closer.
const HOPELESS: f64 = 2.0;
/// Nor is one that by the table, whose costs are of one adapter, takes so many times as long as another.
const WASTE: f64 = 2.0;
/// The most of the time left that one work takes to find what to compare.
const SHARE: f64 = 0.2;

/// How to tune.
#[derive(Clone, Copy, Debug)]
pub struct TuneSettings {
    /// The seed of the inputs.
    pub seed: u64,
    /// The time for all works together. What is not reached by then keeps the shipped variants.
    pub budget: Duration,
    /// The most bytes that a work may take on the device, with all its variants.
    pub most_bytes: u64,
}

/// How far a tuning is.
#[derive(Clone, Copy, Debug)]
pub struct TuneProgress<'a> {
    /// Works that are done.
    pub done: usize,
    /// Works in all.
    pub of: usize,
    /// The work at hand.
    pub query: &'a Query,
    /// The variant at hand.
    pub variant: &'static Variant,
}

/// What was found of a work.
#[derive(Clone, Debug)]
pub struct TuneRow {
    /// The best variant, and what it gains over the shipped one.
    pub best: Measured,
    /// The shipped one.
    pub shipped: &'static Variant,
    /// Its time in nanoseconds.
    pub shipped_ns: f64,
    /// How many nodes of the model's graphs are such works.
    pub nodes: usize,
    /// The variants that were compared, the shipped one included.
    pub compared: usize,
    /// Variants that are wrong here or cannot run, with the reason.
    pub refused: Vec<(&'static Variant, String)>,
    /// How many more there were no time for.
    pub untried: usize,
}

/// What a tuning found.
#[derive(Clone, Debug)]
pub struct Tuned {
    /// The works that were measured, those on which most depends first.
    pub rows: Vec<TuneRow>,
    /// Those that were not: time was over, or the shipped variant could not be measured.
    pub left_out: Vec<(Query, String)>,
}

impl Tuned {
    /// The file that holds it.
    pub fn file(&self, gpu: &Gpu) -> TuningFile {
        let measured = self.rows.iter().map(|row| row.best.clone()).collect();
        TuningFile { adapter: gpu.adapter_key(), measured }
    }
}

/// A work, and where it is found.
struct Spot {
    query: Query,
    body: Arc<Body>,
    node: usize,
    nodes: usize,
    weight: f64,
}

/// Measures the variants for the works of a model: those of a step of training and of translating, with batches of this
/// shape. `None` where `go_on` said false.
///
/// # Errors
/// When the model has no such batches, or the device is lost.
pub fn tune(
    gpu: &Gpu,
    model: &Transformer,
    shape: BatchShape,
    settings: &TuneSettings,
    go_on: &mut dyn FnMut(TuneProgress) -> bool,
) -> Result<Option<Tuned>> {
    let begin = Instant::now();
    let gpu = &gpu.tuned(Tuning::default());
    let spots = spots(gpu, model, shape)?;
    let mut out = Tuned { rows: Vec::new(), left_out: Vec::new() };
    for (done, spot) in spots.iter().enumerate() {
        if begin.elapsed() > settings.budget {
            out.left_out.push((spot.query, "time was over".to_string()));
            continue;
        }
        let of = spots.len();
        let query = &spot.query;
        let mut step = |variant| go_on(TuneProgress { done, of, query, variant });
        let (now, left) = (Instant::now(), settings.budget.saturating_sub(begin.elapsed()));
        let in_time = || now.elapsed() <= left.mul_f64(SHARE);
        match best(gpu, spot, settings, &in_time, &mut step) {
            Ok(Some(row)) => out.rows.push(row),
            Ok(None) => return Ok(None),
            Err(e) if gpu.is_lost() => return Err(e),
            Err(e) => out.left_out.push((spot.query, e.to_string())),
        }
    }
    Ok(Some(out))
}

/// The distinct works, those that have most to do first.
fn spots(gpu: &Gpu, model: &Transformer, shape: BatchShape) -> Result<Vec<Spot>> {
    let optimizer = Optimizer { adam: AdamSettings::transformer(), clip_norm: Some(1.0) };
    let bodies = [loss(model, shape, Some(&optimizer))?, encode(model, shape)?, decode(model, shape)?];
    let mut found: BTreeMap<Query, Spot> = BTreeMap::new();
    for body in bodies.map(Arc::new) {
        let plan = Plan::new(&body.graph, &body.outputs, gpu.profile())?;
        for Choice { node, query, steps, .. } in &plan.choices {
            // A byte takes about as long as some operations.
            let weight =
                plan.steps[steps.clone()].iter().map(|s| (s.flops + 8 * s.bytes) as f64).sum::<f64>();
            let spot = found.entry(*query).or_insert_with(|| {
                let (query, body, node) = (*query, body.clone(), *node);
                Spot { query, body, node, nodes: 0, weight: 0.0 }
            });
            spot.nodes += 1;
            spot.weight += weight;
        }
    }
    let mut spots: Vec<Spot> = found.into_values().collect();
    spots.sort_by(|a, b| b.weight.total_cmp(&a.weight));
    Ok(spots)
}

/// A variant that is timed.
struct Candidate {
    variant: &'static Variant,
    gpu: Gpu,
    work: Work,
    ready: Ready,
    repetitions: u64,
    samples: Vec<f64>,
}

impl Candidate {
    fn sample(&mut self, settings: &Settings) -> Result<()> {
        let time = self.ready.sample(&self.gpu, &self.work, settings, self.repetitions)?;
        self.samples.push(time);
        Ok(())
    }
}

/// The best variant for a work; `None` to stop.
fn best(
    gpu: &Gpu,
    spot: &Spot,
    settings: &TuneSettings,
    in_time: &dyn Fn() -> bool,
    go_on: &mut dyn FnMut(&'static Variant) -> bool,
) -> Result<Option<TuneRow>> {
    let profile = gpu.profile();
    let shipped = profile.tuning.choose(profile, &spot.query)?;
    let body = spot.body()?;
    let bench = bench_settings(gpu, settings);
    let (mut refused, mut untried) = (Vec::new(), 0);
    if !go_on(shipped) {
        return Ok(None);
    }
    let first = glance(gpu, &body, settings.seed)?;
    let mut candidates = vec![candidate(gpu.clone(), spot, shipped, &bench)?.map_err(Error::Device)?];
    let mut seen = vec![of_plan(&body, gpu, &spot.query)?];
    for variant in worth_trying(gpu, &spot.query, shipped) {
        if !go_on(variant) {
            return Ok(None);
        }
        if !in_time() {
            untried += 1;
            continue;
        }
        let own = gpu.tuned(Tuning::only(variant, &spot.query));
        let mut one = || -> Result<Option<Result<Candidate, String>>> {
            // The same kernels by another name: a sum that is too short to be split, for one.
            let kernels = of_plan(&body, &own, &spot.query)?;
            if seen.contains(&kernels) {
                return Ok(None);
            }
            seen.push(kernels);
            if glance(&own, &body, settings.seed)? > first.mul_f64(HOPELESS) {
                return Ok(None);
            }
            candidate(own.clone(), spot, variant, &bench).map(Some)
        };
        match one() {
            Ok(Some(Ok(candidate))) => candidates.push(candidate),
            Ok(Some(Err(reason))) => refused.push((variant, reason)),
            Ok(None) => {}
            Err(e) if gpu.is_lost() => return Err(e),
            Err(e) => refused.push((variant, e.to_string())),
        }
    }
    let compared = candidates.len();
    for c in &mut candidates {
        c.repetitions = c.ready.warm_up(&c.gpu, &c.work, &bench)?.1;
    }
    let count = if first > LONG { FEW_ROUNDS } else { ROUNDS };
    loop {
        rounds(&mut candidates, count, &bench)?;
        let (index, _) = fastest(&candidates);
        // The best of several is partly the luckiest: alone with the shipped one it must be as good once more.
        let mut last: Vec<Candidate> = match index {
            0 => candidates.drain(..1).collect(),
            _ => {
                let winner = candidates.remove(index);
                let mut pair = vec![candidates.remove(0), winner];
                rounds(&mut pair, count, &bench)?;
                pair
            }
        };
        let (index, gain) = fastest(&last);
        let still = last[index].ready.still_right()?;
        if let Some(trouble) = still {
            refused.push((last[index].variant, trouble));
            if index == 0 {
                return Err(Error::Device("the shipped variant gave other results after its samples".into()));
            }
            last.truncate(1);
            last.append(&mut candidates);
            candidates = last;
            continue;
        }
        let best = Measured { query: spot.query, variant: last[index].variant, gain };
        let shipped_ns = median(&last[0].samples).unwrap_or(0.0);
        return Ok(Some(TuneRow {
            best,
            shipped,
            shipped_ns,
            nodes: spot.nodes,
            compared,
            refused,
            untried,
        }));
    }
}

/// The variants that a device can run here, the most promising first; not the shipped one, and not those that would mostly
/// compute what nobody wants.
fn worth_trying(gpu: &Gpu, query: &Query, shipped: &'static Variant) -> Vec<&'static Variant> {
    let profile = gpu.profile();
    let work = |v: &&Variant| v.work(profile, query);
    let mut all: Vec<&'static Variant> =
        query.family().variants().filter(|v| v.fits(profile, query)).collect();
    let least = all.iter().map(work).fold(f64::INFINITY, f64::min);
    all.retain(|v| v.name() != shipped.name() && work(v) <= WASTE * least);
    all.sort_by(|a, b| work(a).total_cmp(&work(b)));
    all
}

/// Fresh samples of all, in turn.
fn rounds(candidates: &mut [Candidate], count: usize, settings: &Settings) -> Result<()> {
    candidates.iter_mut().for_each(|c| c.samples.clear());
    for _ in 0..count {
        candidates.iter_mut().try_for_each(|c| c.sample(settings))?;
    }
    Ok(())
}

/// Which candidate is the fastest, and what it gains: the first, which is the shipped one, unless another is clearly faster.
fn fastest(candidates: &[Candidate]) -> (usize, f64) {
    let samples: Vec<&[f64]> = candidates.iter().map(|c| c.samples.as_slice()).collect();
    clearly_fastest(&samples)
}

/// Of samples that were taken in turn, which are clearly less than the first, and by what factor; or the first.
fn clearly_fastest(samples: &[&[f64]]) -> (usize, f64) {
    let Some((first, others)) = samples.split_first() else { return (0, 1.0) };
    let mut best = (0, 1.0);
    for (i, other) in others.iter().enumerate() {
        // Round by round, so that what slows down both does not matter.
        let shares: Vec<f64> = other.iter().zip(*first).map(|(x, y)| x / y).collect();
        let faster = shares.iter().filter(|share| **share < 1.0).count() as f64;
        let Some(share) = median(&shares) else { continue };
        if share <= CLEARLY && faster >= MOSTLY * shares.len() as f64 && 1.0 / share > best.1 {
            best = (i + 1, 1.0 / share);
        }
    }
    best
}

fn bench_settings(gpu: &Gpu, settings: &TuneSettings) -> Settings {
    let gpu = gpu.clone();
    Settings {
        seed: settings.seed,
        rounds: ROUNDS,
        samples: 1,
        warm_up: Duration::from_millis(30),
        budget: settings.budget,
        most_bytes: settings.most_bytes / 16,
        change: None,
        fresh: Box::new(move || Ok(gpu.clone())),
    }
}

/// A variant that is verified, or what is wrong with it.
fn candidate(
    gpu: Gpu,
    spot: &Spot,
    variant: &'static Variant,
    settings: &Settings,
) -> Result<Result<Candidate, String>> {
    let (body, node, query) = (spot.body.clone(), spot.node, spot.query);
    let build = move || alone(&body, node, &query);
    let work = Work::new("tune", spot.query.to_string(), &[], Pass::Forward, build);
    let mut row: Row = row(&work, 0);
    let Some(ready) = Ready::new(&gpu, &work, settings, &mut row)? else {
        return Ok(Err(row.reason.unwrap_or_default()));
    };
    Ok(Ok(Candidate { variant, gpu, work, ready, repetitions: 1, samples: Vec::new() }))
}

/// The kernels and grids of a work, by which variants are told apart.
fn of_plan(body: &Body, gpu: &Gpu, query: &Query) -> Result<Vec<String>> {
    let plan = Plan::new(&body.graph, &body.outputs, gpu.profile())?;
    let choice = plan.choices.iter().find(|c| c.query == *query);
    let steps = choice.map_or(0..0, |c| c.steps.clone());
    Ok(plan.steps[steps].iter().map(|s| format!("{:?} {:?}", s.groups, plan.kernels[s.kernel])).collect())
}

/// The time of a run after the first, with whatever surrounds it: enough to see what is hopeless.
fn glance(gpu: &Gpu, body: &Body, seed: u64) -> Result<Duration> {
    let plan = Plan::new(&body.graph, &body.outputs, gpu.profile())?;
    let mut executor = executor(gpu, body, plan, &body.inputs(seed))?;
    let mut time = Duration::MAX;
    for run in 0..4 {
        let begin = Instant::now();
        executor.run()?;
        executor.wait()?;
        if run > 0 {
            time = time.min(begin.elapsed());
        }
        if time != Duration::MAX && time > LONG {
            break;
        }
    }
    Ok(time)
}

impl Spot {
    fn body(&self) -> Result<Body> {
        alone(&self.body, self.node, &self.query)
    }
}

/// A graph of one node of another, of which the steps of one work count.
fn alone(body: &Body, node: usize, query: &Query) -> Result<Body> {
    let mut excerpt = Excerpt { from: body, out: Body::default(), known: HashMap::new() };
    let outputs = excerpt.node(node, query.family() != Family::MatMul)?;
    let graph = &body.graph;
    let old = &graph.nodes()[node].outputs;
    let read =
        |id: &ValueId| body.outputs.contains(id) || graph.nodes().iter().any(|node| node.inputs.contains(id));
    let used: Vec<ValueId> =
        old.iter().zip(&outputs).filter(|(old, _)| read(old)).map(|(_, new)| *new).collect();
    excerpt.out.outputs = if used.is_empty() { outputs } else { used };
    excerpt.out.only = Some(*query);
    Ok(excerpt.out)
}

struct Excerpt<'a> {
    from: &'a Body,
    out: Body,
    /// What values of the one graph are in the other.
    known: HashMap<ValueId, ValueId>,
}

impl Excerpt<'_> {
    /// Adds a node, with its inputs: those that nodes of the same op compute by them where `deep`, since a gradient may
    /// rely on what the forward pass has kept.
    fn node(&mut self, index: usize, deep: bool) -> Result<Vec<ValueId>> {
        let node = &self.from.graph.nodes()[index];
        let mut inputs = Vec::new();
        for &id in &node.inputs {
            inputs.push(self.value(id, deep.then_some(node.op.name()))?);
        }
        let outputs = self.out.graph.add_shared(node.op.clone(), &inputs)?;
        self.known.extend(node.outputs.iter().copied().zip(outputs.iter().copied()));
        Ok(outputs)
    }

    fn value(&mut self, id: ValueId, op: Option<&str>) -> Result<ValueId> {
        if let Some(known) = self.known.get(&id) {
            return Ok(*known);
        }
        let graph = &self.from.graph;
        let value = graph.value(id);
        if let Role::Computed { node, output } = value.role {
            let producer = &graph.nodes()[node];
            let types: Vec<&TensorType> = producer.inputs.iter().map(|&i| &graph.value(i).ty).collect();
            if op == Some(producer.op.name()) && producer.op.layout(&types) == Layout::Compute {
                return Ok(self.node(node, false)?[output]);
            }
        }
        let given = self.from.given.iter().find(|(given, _)| *given == id);
        let fill = match (given, value.ty.dtype) {
            (Some((_, fill)), _) => fill.clone(),
            (None, DType::F32 | DType::F16) => Fill::Normal(1.0),
            (None, DType::U32) => Fill::Below(1),
        };
        let name = format!("{} {}", id.index(), value.name);
        let new = self.out.input(&name, value.ty.clone(), fill);
        self.known.insert(id, new);
        Ok(new)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nn::TransformerConfig;
    use crate::profile::DeviceProfile;

    fn model() -> Transformer {
        let mut config = TransformerConfig::preset("tiny").unwrap();
        (config.source_vocabulary, config.target_vocabulary) = (50, 60);
        Transformer::new(config).unwrap()
    }

    #[test]
    fn the_fastest_is_the_first_unless_another_is_clearly_faster() {
        let first = [10.0, 20.0, 10.0, 10.0];
        assert_eq!(clearly_fastest(&[&first]), (0, 1.0));
        assert_eq!(clearly_fastest(&[&first, &[9.8, 19.0, 9.8, 9.8]]), (0, 1.0));
        assert_eq!(clearly_fastest(&[&first, &[5.0, 10.0, 5.0, 5.0], &[8.0, 16.0, 8.0, 8.0]]), (1, 2.0));
        // Faster by far in half of the rounds, which is chance.
        assert_eq!(clearly_fastest(&[&first, &[1.0, 1.0, 11.0, 11.0]]), (0, 1.0));
        assert_eq!(clearly_fastest(&[]), (0, 1.0));
    }

    #[test]
    fn each_work_of_a_model_stands_alone() {
        let shape = BatchShape { rows: 3, source_len: 7, target_len: 5 };
        let profile = DeviceProfile::portable();
        let optimizer = Optimizer { adam: AdamSettings::transformer(), clip_norm: Some(1.0) };
        for body in
            [loss(&model(), shape, Some(&optimizer)), encode(&model(), shape), decode(&model(), shape)]
        {
            let body = body.unwrap();
            let plan = Plan::new(&body.graph, &body.outputs, &profile).unwrap();
            assert!(!plan.choices.is_empty());
            for choice in &plan.choices {
                let one = alone(&body, choice.node, &choice.query).unwrap();
                let small = Plan::new(&one.graph, &one.outputs, &profile).unwrap();
                let same = small.choices.iter().find(|c| c.query == choice.query).unwrap();
                assert_eq!(same.variant, choice.variant);
                let kernels = |plan: &Plan, c: &Choice| -> Vec<String> {
                    plan.steps[c.steps.clone()].iter().map(|s| plan.kernels[s.kernel].name.clone()).collect()
                };
                assert_eq!(kernels(&small, same), kernels(&plan, choice), "{}", choice.query);
            }
        }
    }
}

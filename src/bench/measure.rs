//! Times works on a device: each is verified first, and timed in rounds spread over a while, in turn with others, so that
//! what disturbs the machine for a second does not disturb all samples of a row.

use super::list::{COPY, FMA, control};
use super::result::{Adapter, Ceilings, KernelUse, Results, Row, Sampled, Status, Verified};
use super::stats;
use super::work::{Body, Timing, Work, is_state};
use crate::gpu::{Executor, Gpu, Memory};
use crate::kernel::{Const, Kernel};
use crate::plan::Plan;
use crate::rng::Rng;
use crate::verify::Verification;
use crate::{DeviceClass, Error, HostTensor, Result};
use std::ops::Range;
use std::time::{Duration, Instant};

/// A sample lasts at least this long: a hundred times what a submission and its timestamps may add to it.
const SAMPLE: Duration = Duration::from_millis(5);
/// The most runs in one submission: far below what a driver takes for a hang, at [`SAMPLE`] and more.
pub(super) const MOST_REPETITIONS: u64 = 1000;
/// What takes longer than this streams through caches anyway, and is not run more often than it must be.
const LONG: Duration = Duration::from_millis(100);
/// The bytes that inputs used in turn have together, at least: more than the caches of most devices.
const TURN_BYTES: u64 = 64 << 20;
/// The most sets of inputs.
const MOST_SETS: u64 = 4;
/// From so many rounds on, other memory half way through them is worth its time.
const MOVED: usize = 5;
/// The rows that are timed in turn.
const TOGETHER: usize = 16;
/// The share of the time left that goes to sampling; the rest is for making inputs, compilation and verification.
const SAMPLING: f64 = 0.4;

/// A change to a kernel before it is compiled.
pub type Change = dyn Fn(&mut Kernel);

/// How to measure.
pub struct Settings {
    /// The seed of the inputs.
    pub seed: u64,
    /// The rounds that each row is sampled in; at least 10 for [`stats::estimate`] to tell much.
    pub rounds: usize,
    /// The samples of a round. Rows that take long have fewer of both, and at least three rounds of one sample.
    pub samples: usize,
    /// The most time that a row warms up before its samples.
    pub warm_up: Duration,
    /// The time for all rows together. What is not reached by then is left out, and said to be.
    pub budget: Duration,
    /// The most bytes that a row may take on the device.
    pub most_bytes: u64,
    /// A change to every kernel, to see that wrong ones are noticed.
    pub change: Option<Box<Change>>,
    /// Makes a device like the one that is measured, for what is timed from there on.
    pub fresh: Box<dyn Fn() -> Result<Gpu>>,
}

/// How far a run is.
#[derive(Clone, Debug)]
pub struct Progress<'a> {
    /// Works that are done.
    pub done: usize,
    /// Works in all.
    pub of: usize,
    /// The work at hand.
    pub work: &'a Work,
}

/// Measures `works` on a device: a row for each, in their order, of the results' last adapter, which is added. What cannot
/// run, or is wrong, is a row that says so. The ceilings are set where they are among the works.
///
/// # Errors
/// When the device is lost.
pub fn measure(
    gpu: &Gpu,
    works: &[Work],
    settings: &Settings,
    results: &mut Results,
    progress: &mut dyn FnMut(Progress),
) -> Result<()> {
    let begin = Instant::now();
    let index = results.adapters.len();
    let mut rows: Vec<Row> = works.iter().map(|work| row(work, index)).collect();
    let mut control = Control::new(gpu, settings)?;
    let mut waiting: Vec<(usize, Ready)> = Vec::new();
    let mut held = 0;
    for (i, work) in works.iter().enumerate() {
        progress(Progress { done: i, of: works.len(), work });
        if begin.elapsed() > settings.budget {
            let problem = format!("left out: the {} s of the budget were over", settings.budget.as_secs());
            skip(&mut rows[i], problem);
        } else {
            match Ready::new(gpu, work, settings, &mut rows[i]) {
                Ok(Some(ready)) => {
                    held += ready.bytes;
                    waiting.push((i, ready));
                }
                Ok(None) => {}
                Err(e) => fail(gpu, &mut rows[i], e)?,
            }
        }
        if i + 1 == works.len() || waiting.len() == TOGETHER || 2 * held > settings.most_bytes {
            let left = settings.budget.saturating_sub(begin.elapsed()).as_secs_f64();
            let unread = (works.len() - i - 1 + waiting.len()).max(1);
            let each = Duration::from_secs_f64(SAMPLING * left / unread as f64);
            sample(gpu, works, settings, &mut control, &mut waiting, each, &mut rows)?;
            waiting.clear();
            held = 0;
        }
    }
    // What it does at best: by the fastest sample.
    let at_best = |name: &str, amount: fn(&Row) -> u64| {
        let row = rows.iter().find(|row| row.name == name)?;
        Some(amount(row) as f64 / row.time.as_ref()?.min_ns)
    };
    let ceilings = Ceilings {
        copy_gb_s: at_best(COPY, |row| row.bytes).unwrap_or(0.0),
        fma_gflop_s: at_best(FMA, |row| row.flops).unwrap_or(0.0),
    };
    for time in rows.iter_mut().filter_map(|row| row.time.as_mut()) {
        if let Some(estimate) = stats::estimate(&time.rounds, &time.control_ns, control.quiet) {
            time.interval_ns = estimate.interval;
        }
    }
    // JSON has no infinity.
    let control_ns = if control.quiet.is_finite() { control.quiet } else { 0.0 };
    results.adapters.push(Adapter { ceilings, control_ns, ..adapter(gpu) });
    results.rows.extend(rows);
    Ok(())
}

/// What is timed beside every round; nothing where it is wrong on the device, or cannot run.
struct Control {
    work: Work,
    ready: Option<Ready>,
    /// The fastest so far.
    quiet: f64,
}

impl Control {
    fn new(gpu: &Gpu, settings: &Settings) -> Result<Control> {
        let mut usual = Self::of(gpu, settings, false)?;
        // Ten times what it should take.
        match usual.sample(gpu, settings)?.is_some_and(|time| time > 20e6) {
            true => Self::of(gpu, settings, true),
            false => Ok(usual),
        }
    }

    fn of(gpu: &Gpu, settings: &Settings, slow: bool) -> Result<Control> {
        let work = control(gpu.profile().class, slow);
        // The work of the same kernel among the ceilings says why.
        let ready = match Ready::new(gpu, &work, settings, &mut row(&work, 0)) {
            Err(e) if gpu.is_lost() => return Err(e),
            ready => ready.ok().flatten(),
        };
        Ok(Control { work, ready, quiet: f64::INFINITY })
    }

    /// The faster of two samples: one may have waited for something short.
    fn sample(&mut self, gpu: &Gpu, settings: &Settings) -> Result<Option<f64>> {
        let Some(ready) = &mut self.ready else { return Ok(None) };
        let mut one = || ready.sample(gpu, &self.work, settings, 1);
        let time = one()?.min(one()?);
        self.quiet = self.quiet.min(time);
        Ok(Some(time))
    }
}

/// The adapter of a device as the result file has it.
pub fn adapter(gpu: &Gpu) -> Adapter {
    let p = gpu.profile();
    let class = match p.class {
        DeviceClass::Discrete => "discrete",
        DeviceClass::Integrated => "integrated",
        DeviceClass::Cpu => "cpu",
    };
    let [driver, version] = gpu.driver();
    let features = [("subgroups", p.subgroups), ("f16", p.f16), ("timestamps", gpu.timestamps())];
    let limits = [
        ("max_storage_buffers_per_shader_stage", p.max_storage_buffers.into()),
        ("max_compute_workgroup_storage_size", p.max_workgroup_bytes.into()),
        ("max_compute_invocations_per_workgroup", p.max_invocations.into()),
        ("max_compute_workgroups_per_dimension", p.max_groups.into()),
        ("max_storage_buffer_binding_size", p.max_binding_bytes),
        ("max_buffer_size", p.max_buffer_bytes),
    ];
    Adapter {
        name: gpu.name().to_string(),
        class: class.to_string(),
        backend: gpu.backend(),
        driver: driver.to_string(),
        driver_version: version.to_string(),
        subgroup_sizes: [p.subgroup_min, p.subgroup_max],
        features: features.into_iter().filter(|f| f.1).map(|f| f.0.to_string()).collect(),
        limits: limits.into_iter().map(|(name, n)| (name.to_string(), n)).collect(),
        ceilings: Ceilings::default(),
        control_ns: 0.0,
    }
}

/// A row of a work that has not run.
pub fn row(work: &Work, adapter: usize) -> Row {
    Row {
        adapter,
        family: work.family.to_string(),
        name: work.name.clone(),
        shape: work.shape.clone(),
        dtype: "f32".to_string(),
        pass: work.pass,
        status: Status::Skipped,
        reason: None,
        kernels: Vec::new(),
        verified: None,
        flops: 0,
        bytes: 0,
        tokens: work.tokens,
        time: None,
    }
}

fn skip(row: &mut Row, reason: String) {
    row.status = Status::Skipped;
    row.reason = Some(reason);
    row.time = None;
}

/// A row whose work failed. A device that is lost ends everything.
fn fail(gpu: &Gpu, row: &mut Row, error: Error) -> Result<()> {
    if gpu.is_lost() {
        return Err(error);
    }
    skip(row, error.to_string());
    Ok(())
}

fn wrong(row: &mut Row, reason: String) {
    row.status = Status::Wrong;
    row.reason = Some(reason);
    row.time = None;
}

/// A work that is right, ready to be timed.
pub(super) struct Ready {
    body: Body,
    executors: Vec<Executor>,
    steps: Range<usize>,
    bytes: u64,
    /// What the outputs must be again after the samples; `None` where each run changes states.
    right: Option<Verification>,
    /// From the plan to the end of the first run.
    first_run: Duration,
}

impl Ready {
    /// Plans, compiles, runs and verifies; `None` where the row says why there is nothing to time.
    pub fn new(gpu: &Gpu, work: &Work, settings: &Settings, row: &mut Row) -> Result<Option<Ready>> {
        let body = (work.build)()?;
        let mut plan = Plan::new(&body.graph, &body.outputs, gpu.profile())?;
        if let Some(change) = &settings.change {
            plan.kernels.iter_mut().for_each(change);
        }
        let bytes = plan.total_bytes();
        if bytes > settings.most_bytes {
            let allowed = settings.most_bytes;
            let limit = "the memory of the device";
            return Err(Error::Limit { limit, needed: bytes, allowed, tensor: "the whole".to_string() });
        }
        let steps = match &body.only {
            Some(query) => plan.choices.iter().find(|c| c.query == *query).map_or(0..0, |c| c.steps.clone()),
            None => {
                let first = plan.steps.iter().position(|step| step.node >= body.first);
                first.unwrap_or(plan.steps.len())..plan.steps.len()
            }
        };
        describe(row, work, &body, &plan, steps.clone());

        let inputs = body.inputs(settings.seed);
        let begin = Instant::now();
        let mut executors = vec![executor(gpu, &body, plan.clone(), &inputs)?];
        executors[0].run()?;
        executors[0].wait()?;
        let first_run = begin.elapsed();
        // The states are as they were before that run once they are written again.
        write_states(&body, &inputs, &executors[0])?;
        let mut found = executors[0].verify_sampled(&body.graph, settings.seed)?;
        let begin = Instant::now();
        executors[0].run()?;
        executors[0].wait()?;
        let usual_run = begin.elapsed();
        found.compare_states(&executors[0])?;
        let stateful = body.given.iter().any(|(id, _)| is_state(&body.graph, *id));
        let most = (settings.most_bytes / bytes.max(1)).clamp(1, MOST_SETS);
        let sets = if stateful || work.timing != Timing::Pass || usual_run > LONG {
            1
        } else {
            TURN_BYTES.div_ceil(row.bytes.max(1)).clamp(1, most)
        };
        for _ in 1..sets {
            executors.push(executor(gpu, &body, plan.clone(), &inputs)?);
        }
        for executor in &mut executors[1..] {
            executor.run()?;
        }
        executors.iter().try_for_each(|e| found.compare_outputs(e))?;
        row.verified = Some(Verified {
            elements: found.compared,
            of: found.elements,
            worst: if found.worst.is_finite() { found.worst } else { f64::MAX },
        });
        if let Some(trouble) = found.troubles.first() {
            wrong(row, trouble.to_string());
            return Ok(None);
        }
        let right = (!stateful).then_some(found);
        let bytes = bytes * sets;
        Ok(Some(Ready { body, executors, steps, bytes, right, first_run }))
    }

    /// Takes other memory for the same work: how fast a work is depends on where its pages lie, by a quarter for some on a
    /// software adapter.
    fn renew(&mut self, gpu: &Gpu, settings: &Settings) -> Result<()> {
        let inputs = self.body.inputs(settings.seed);
        // The old memory is given back when the new is there, so that it is another.
        let again = |old: &Executor| {
            let mut new = executor(gpu, &self.body, old.plan().clone(), &inputs)?;
            new.run()?;
            new.wait()?;
            Ok(new)
        };
        self.executors = self.executors.iter().map(again).collect::<Result<_>>()?;
        Ok(())
    }

    /// What is wrong with the results after samples, where runs change nothing, so that they must be what was verified.
    pub fn still_right(&mut self) -> Result<Option<String>> {
        let Some(right) = &mut self.right else { return Ok(None) };
        self.executors.iter().try_for_each(|e| right.compare_outputs(e))?;
        Ok(right.troubles.first().map(|trouble| format!("after the samples: {trouble}")))
    }

    /// One sample, in nanoseconds for a repetition.
    pub fn sample(&mut self, gpu: &Gpu, work: &Work, settings: &Settings, repetitions: u64) -> Result<f64> {
        let nanos = |time: Duration, by: u64| time.as_secs_f64() * 1e9 / by as f64;
        match work.timing {
            Timing::Pass => {
                let timed = gpu.time(&mut self.executors, self.steps.clone(), repetitions as usize)?;
                Ok(nanos(timed.device.unwrap_or(timed.host), repetitions))
            }
            Timing::Submission(_) => {
                let timed = gpu.time(&mut self.executors, self.steps.clone(), repetitions as usize)?;
                Ok(nanos(timed.host, repetitions * work.parts()))
            }
            Timing::Reading => {
                let begin = Instant::now();
                for _ in 0..repetitions {
                    self.executors[0].run_and_fetch()?.wait()?;
                }
                Ok(nanos(begin.elapsed(), repetitions))
            }
            Timing::Cold => {
                let begin = Instant::now();
                let gpu = (settings.fresh)()?;
                let body = (work.build)()?;
                let plan = Plan::new(&body.graph, &body.outputs, gpu.profile())?;
                let mut executor = executor(&gpu, &body, plan, &body.inputs(settings.seed))?;
                executor.run_and_fetch()?.wait()?;
                Ok(nanos(begin.elapsed(), 1))
            }
        }
    }
}

impl Body {
    pub fn inputs(&self, seed: u64) -> Vec<HostTensor> {
        let mut rng = Rng::new(seed);
        self.given.iter().map(|(id, fill)| fill.make(&self.graph.value(*id).ty, &mut rng)).collect()
    }
}

/// An executor with a memory of its own.
pub(super) fn executor(gpu: &Gpu, body: &Body, plan: Plan, inputs: &[HostTensor]) -> Result<Executor> {
    let mut executor = gpu.executor(plan, &Memory::new(gpu))?;
    for ((id, _), tensor) in body.given.iter().zip(inputs).filter(|((id, _), _)| !is_state(&body.graph, *id))
    {
        executor.write(*id, tensor)?;
    }
    write_states(body, inputs, &executor)?;
    Ok(executor)
}

fn write_states(body: &Body, inputs: &[HostTensor], executor: &Executor) -> Result<()> {
    for ((id, _), tensor) in body.given.iter().zip(inputs).filter(|((id, _), _)| is_state(&body.graph, *id)) {
        executor.memory().write(&body.graph.value(*id).name, tensor)?;
    }
    Ok(())
}

/// What a row says of its work beside the time.
fn describe(row: &mut Row, work: &Work, body: &Body, plan: &Plan, steps: Range<usize>) {
    let parts = work.parts();
    let counted = &plan.steps[steps];
    row.flops = work.flops.unwrap_or_else(|| counted.iter().map(|s| s.flops).sum::<u64>()) / parts;
    row.bytes = work.bytes.unwrap_or_else(|| touched(body, plan, counted)) / parts;
    let mut uses: Vec<(usize, u64)> = Vec::new();
    for step in counted {
        match uses.iter_mut().find(|(kernel, _)| *kernel == step.kernel) {
            Some((_, n)) => *n += 1,
            None => uses.push((step.kernel, 1)),
        }
    }
    let constant = |c: &Const| match c {
        Const::U32(v) => v.to_string(),
        Const::Bool(v) => v.to_string(),
        Const::F32(v) => v.to_string(),
        Const::Alias(v) => v.to_string(),
    };
    let one = |(kernel, dispatches): (usize, u64)| {
        let kernel = &plan.kernels[kernel];
        let constants = kernel.constants.iter().map(|(name, c)| (name.to_string(), constant(c)));
        let wgsl = format!("{:016x}", crate::rng::fnv1a(kernel.wgsl().as_bytes()));
        KernelUse { name: kernel.name.clone(), dispatches, wgsl, constants: constants.collect() }
    };
    row.kernels = uses.into_iter().map(one).collect();
}

/// The bytes of the operands of these steps' nodes, each counted once a node.
fn touched(body: &Body, plan: &Plan, steps: &[crate::plan::Step]) -> u64 {
    let mut nodes: Vec<usize> = steps.iter().map(|step| step.node).collect();
    nodes.dedup();
    let bytes = |node: usize| {
        let node = &body.graph.nodes()[node];
        let mut values: Vec<_> = node.inputs.iter().chain(&node.outputs).collect();
        // What is updated in place is read and written.
        values.sort();
        values.dedup();
        let updated = node.op.updates().into_iter().map(|i| &node.inputs[i]);
        let there = values.into_iter().chain(updated).filter(|id| plan.places.contains_key(id));
        there.map(|&id| body.graph.value(id).ty.bytes()).sum::<u64>()
    };
    nodes.into_iter().map(bytes).sum()
}

/// Times the works that wait, in turn, about `each` long, and fills their rows.
fn sample(
    gpu: &Gpu,
    works: &[Work],
    settings: &Settings,
    control: &mut Control,
    waiting: &mut [(usize, Ready)],
    each: Duration,
    rows: &mut [Row],
) -> Result<()> {
    struct Course {
        repetitions: u64,
        rounds: usize,
        samples: usize,
        taken: Vec<Vec<f64>>,
        control: Vec<f64>,
    }
    let mut courses = Vec::new();
    for (i, ready) in waiting.iter_mut() {
        let course = ready.warm_up(gpu, &works[*i], settings).map(|(time, repetitions)| {
            let sample = time * (repetitions * works[*i].parts()) as f64;
            let fit = each.as_secs_f64() * 1e9 / sample.max(1.0);
            let rounds = (fit as usize).clamp(3, settings.rounds.max(3));
            let samples = (fit as usize / rounds).clamp(1, settings.samples.max(1));
            Course { repetitions, rounds, samples, taken: Vec::new(), control: Vec::new() }
        });
        match course {
            Ok(course) => courses.push(Some(course)),
            Err(e) => {
                fail(gpu, &mut rows[*i], e)?;
                courses.push(None);
            }
        }
    }
    for round in 0..settings.rounds.max(3) {
        for ((i, ready), course) in waiting.iter_mut().zip(&mut courses) {
            let Some(c) = course.as_mut().filter(|c| round < c.rounds) else { continue };
            if c.rounds >= MOVED
                && round == c.rounds / 2
                && works[*i].timing != Timing::Cold
                && let Err(e) = ready.renew(gpu, settings)
            {
                fail(gpu, &mut rows[*i], e)?;
                *course = None;
                continue;
            }
            c.control.extend(control.sample(gpu, settings)?);
            let mut take = || ready.sample(gpu, &works[*i], settings, c.repetitions);
            match (0..c.samples).map(|_| take()).collect::<Result<Vec<f64>>>() {
                Ok(samples) => c.taken.push(samples),
                Err(e) => {
                    fail(gpu, &mut rows[*i], e)?;
                    *course = None;
                }
            }
        }
    }
    for ((i, ready), course) in waiting.iter_mut().zip(courses) {
        let Some(c) = course else { continue };
        let row = &mut rows[*i];
        match ready.still_right() {
            Ok(None) => {}
            Ok(Some(trouble)) => {
                wrong(row, trouble);
                continue;
            }
            Err(e) => {
                fail(gpu, row, e)?;
                continue;
            }
        }
        // The interval is known when the fastest control of the run is.
        let clock = works[*i].clock(gpu.timestamps());
        let Some(time) = Sampled::new(clock, c.taken, c.control, f64::INFINITY) else { continue };
        row.status = Status::Ok;
        row.time = Some(Sampled {
            compile_ns: (ready.first_run.as_secs_f64() * 1e9 - time.median_ns).max(0.0),
            repetitions: c.repetitions,
            inputs_in_turn: ready.executors.len() as u64,
            ..time
        });
    }
    Ok(())
}

impl Ready {
    /// Runs until two samples in a row agree to a twentieth, or time is over: the time of a repetition in nanoseconds, and
    /// the repetitions that a sample needs.
    pub fn warm_up(&mut self, gpu: &Gpu, work: &Work, settings: &Settings) -> Result<(f64, u64)> {
        if work.timing == Timing::Cold {
            return Ok((self.first_run.as_secs_f64() * 1e9, 1));
        }
        let begin = Instant::now();
        let mut repetitions = 1;
        let mut last = self.sample(gpu, work, settings, repetitions)?;
        while (last as u128) < LONG.as_nanos() {
            let fit = SAMPLE.as_secs_f64() * 1e9 / (last * work.parts() as f64).max(1.0);
            let needed = (fit.ceil() as u64).clamp(1, MOST_REPETITIONS);
            let now = self.sample(gpu, work, settings, needed)?;
            let stable = needed <= 2 * repetitions && (now - last).abs() <= 0.05 * last;
            (repetitions, last) = (needed, now);
            if stable || begin.elapsed() > settings.warm_up {
                break;
            }
        }
        Ok((last, repetitions))
    }
}

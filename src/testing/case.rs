//! Cases for the kernels of this crate: a small graph around one op, with values for its inputs.
//!
//! A case checks its mathematics without a device (each gradient against finite differences, in f64), and its kernels on
//! one: every variant that the adapter can run against the reference, poisoned, in the opposite order and with runtime
//! checks too; on software adapters the last not in every case.

use super::instrument::{Shader, instrument};
use super::profiles::{OWN, SOFTWARE, profiles};
use crate::gpu::{Gpu, Memory};
use crate::graph::{Graph, Interpreter, Role, ValueId, to_host};
use crate::kernel::{Access, Kernel};
use crate::plan::Plan;
use crate::rng::{Rng, fnv1a};
use crate::tuning::{Tuning, Variant};
use crate::verify::{Order, Prepared, Replay};
use crate::{DeviceClass, DeviceProfile, Error, HostTensor, Result, Shape, Tensor64};
use half::f16;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What a case builds: a graph, and values for its inputs and states.
#[derive(Debug)]
pub struct Build {
    graph: Graph,
    rng: Rng,
    given: Vec<(ValueId, Tensor64)>,
    wrt: Vec<ValueId>,
    /// Whether values are wanted, or the graph alone: drawing them is most of the work.
    values: bool,
}

impl Build {
    /// The graph to add to.
    pub fn graph(&mut self) -> &mut Graph {
        &mut self.graph
    }

    /// An input of normally distributed values times `scale`, differentiated by.
    pub fn normal(&mut self, name: &str, shape: impl Into<Shape>, scale: f64) -> ValueId {
        let shape = shape.into();
        let data: Vec<f32> = (0..shape.elements()).map(|_| (self.draw() * scale) as f32).collect();
        self.differentiable(name, HostTensor::f32(shape, data))
    }

    /// An input of 16-bit floats: those nearest to normally distributed values times `scale`. Never differentiated by.
    pub fn half(&mut self, name: &str, shape: impl Into<Shape>, scale: f64) -> ValueId {
        let shape = shape.into();
        let data = (0..shape.elements()).map(|_| f16::from_f64(self.draw() * scale)).collect();
        self.fixed(name, HostTensor::f16(shape, data))
    }

    fn draw(&mut self) -> f64 {
        if self.values { self.rng.normal() } else { 0.0 }
    }

    fn give(&mut self, id: ValueId, value: &HostTensor) {
        if self.values {
            self.given.push((id, value.to_f64()));
        }
    }

    /// An input of these values, differentiated by.
    pub fn differentiable(&mut self, name: &str, value: HostTensor) -> ValueId {
        let id = self.fixed(name, value);
        self.wrt.push(id);
        id
    }

    /// An input of these values, not differentiated by.
    pub fn fixed(&mut self, name: &str, value: HostTensor) -> ValueId {
        let id = self.graph.input(name, value.ty());
        self.give(id, &value);
        id
    }

    /// An input of random ids below `below`.
    pub fn ids(&mut self, name: &str, shape: impl Into<Shape>, below: u32) -> ValueId {
        let shape = shape.into();
        let data = (0..shape.elements()).map(|_| self.rng.below(below as u64) as u32).collect();
        self.fixed(name, HostTensor::u32(shape, data))
    }

    /// An input of these lengths, one a batch row.
    pub fn lengths(&mut self, name: &str, lengths: &[u32]) -> ValueId {
        self.fixed(name, HostTensor::u32([lengths.len()], lengths.to_vec()))
    }

    /// A state with these values before the run.
    pub fn state(&mut self, name: &str, value: HostTensor) -> ValueId {
        let id = self.graph.state(name, value.ty());
        self.give(id, &value);
        id
    }
}

type Builder = Box<dyn Fn(&mut Build) -> Result<Vec<ValueId>> + Send + Sync>;

/// A change to a kernel before it is compiled.
pub type Change = dyn Fn(&mut Kernel) + Send + Sync;

/// One case: a graph around one op, and what to ask of it.
pub struct Case {
    /// Its name, unique among those of its op.
    pub name: String,
    build: Builder,
    seeded: Vec<usize>,
    ones: bool,
    gradient: bool,
    slow: bool,
}

impl Case {
    /// A case of this name; the closure builds the graph and gives its outputs, of which the first is differentiated.
    pub fn new(
        name: impl Into<String>,
        build: impl Fn(&mut Build) -> Result<Vec<ValueId>> + Send + Sync + 'static,
    ) -> Self {
        let build = Box::new(build);
        Case { name: name.into(), build, seeded: vec![0], ones: false, gradient: true, slow: false }
    }

    /// The outputs that gradients come from (the first, unless said).
    pub fn seeds(mut self, outputs: &[usize]) -> Self {
        self.seeded = outputs.to_vec();
        self
    }

    /// The gradient that comes from outside is one, as for a loss.
    pub fn ones(mut self) -> Self {
        self.ones = true;
        self
    }

    /// Nothing is differentiated.
    pub fn values_only(mut self) -> Self {
        self.gradient = false;
        self
    }

    /// Its kernels take long to compile: on software adapters it is thorough only where a kernel is new.
    pub fn slow_to_compile(mut self, slow: bool) -> Self {
        self.slow = slow;
        self
    }

    /// Builds the graph, with its backward nodes where it has any.
    fn built(&self, seed: u64) -> Result<Built> {
        self.built_with(seed, true)
    }

    fn built_with(&self, seed: u64, values: bool) -> Result<Built> {
        let (given, wrt) = (Vec::new(), Vec::new());
        let mut build = Build { graph: Graph::new(), rng: Rng::new(seed), given, wrt, values };
        let outputs = (self.build)(&mut build)?;
        let mut gradients = Vec::new();
        if let Some(o) = self.seeded.iter().find(|&&o| self.gradient && o >= outputs.len()) {
            let problem = format!("output {o} is to be differentiated, but there are {}", outputs.len());
            return Err(Error::config(format!("case {:?}", self.name), problem));
        }
        if self.gradient && !build.wrt.is_empty() {
            gradients = self.differentiate(&mut build, &outputs)?;
        }
        let mut fetched = outputs.clone();
        fetched.extend(gradients.iter().map(|(_, d)| *d));
        Ok(Built { build, outputs, gradients, fetched })
    }

    /// The graph, backward nodes included, and the outputs with the gradients: what a plan is made of.
    ///
    /// # Errors
    /// When the case's graph is wrong.
    pub fn graph(&self, seed: u64) -> Result<(Graph, Vec<ValueId>)> {
        let built = self.built_with(seed, false)?;
        Ok((built.build.graph, built.fetched))
    }

    /// The plan for a device. Values depend on the seed, the plan does not.
    ///
    /// # Errors
    /// When the case's graph is wrong, or too large for the device.
    pub fn plan(&self, profile: &DeviceProfile, seed: u64) -> Result<Plan> {
        let (graph, outputs) = self.graph(seed)?;
        Plan::new(&graph, &outputs, profile)
    }

    /// Whether there is anything to differentiate.
    pub fn has_gradient(&self) -> bool {
        self.gradient
    }

    /// Compares each gradient with finite differences, in f64. The number of inputs differentiated by, or the problems.
    pub fn mathematics(&self, seed: u64) -> std::result::Result<usize, Vec<String>> {
        let mut problems = Vec::new();
        let checked = self.built(seed).and_then(|mut built| {
            let Built { build, outputs, gradients, .. } = &mut built;
            self.finite_differences(build, outputs, gradients, &mut problems)?;
            Ok(gradients.len())
        });
        match checked {
            Ok(0) => Err(vec!["there is nothing to differentiate by".to_string()]),
            Ok(n) if problems.is_empty() => Ok(n),
            Ok(_) => Err(problems),
            Err(e) => Err(vec![e.to_string()]),
        }
    }

    /// Compares every excerpt of its nodes with the whole: results and bounds are to be the same to the last bit. How many
    /// elements were compared, or the problems.
    pub fn excerpts(&self, seed: u64) -> std::result::Result<usize, Vec<String>> {
        let mut problems = Vec::new();
        match self.try_excerpts(seed, &mut problems) {
            Ok(n) if problems.is_empty() => Ok(n),
            Ok(_) => Err(problems),
            Err(e) => Err(vec![e.to_string()]),
        }
    }

    fn try_excerpts(&self, seed: u64, problems: &mut Vec<String>) -> Result<usize> {
        let Build { graph, mut rng, given, .. } = self.built(seed)?.build;
        let mut run = Interpreter::new();
        for (id, value) in given {
            run.set(&graph, id, value)?;
        }
        run.run(&graph)?;
        let mut compared = 0;
        for node in graph.nodes() {
            let inputs = node.inputs.iter().map(|&i| run.get(&graph, i)).collect::<Result<Vec<_>>>()?;
            let inputs: Vec<&Tensor64> = inputs.iter().collect();
            let excerpts = node.op.excerpts(&inputs, &mut rng);
            if excerpts.is_empty() {
                continue;
            }
            let whole = node.op.reference(&inputs);
            let whole_rounding = node.op.rounding(&inputs, &whole);
            for e in excerpts {
                let inputs: Vec<&Tensor64> = e.inputs.iter().collect();
                let part = e.op.reference(&inputs);
                let part_rounding = e.op.rounding(&inputs, &part);
                for (i, place) in e.places.iter().enumerate() {
                    let Some((result, places)) = place else { continue };
                    let pairs = [(&whole, &part, "result"), (&whole_rounding, &part_rounding, "bound")];
                    for (whole, part, what) in pairs {
                        let whole = places.iter().map(|&p| whole[*result].data[p].to_bits());
                        if !whole.eq(part[i].data.iter().map(|x| x.to_bits())) {
                            let name = &graph.value(node.outputs[*result]).name;
                            problems.push(format!("{name}: an excerpt's {what} {i} is not the whole's"));
                        }
                    }
                    compared += places.len();
                }
            }
        }
        Ok(compared)
    }

    /// Runs the kernels.
    pub fn kernels(&self, on: &Runner) -> CaseReport {
        let mut report = CaseReport::default();
        if let Err(e) = self.try_kernels(on, &mut report) {
            report.problems.push(Finding {
                variant: String::new(),
                kernels: Vec::new(),
                text: e.to_string(),
            });
        }
        report
    }

    /// Runs the kernels with a variant of a family wherever it can compute what is asked for; `None` where it nowhere can.
    /// On software adapters they run as they are, without poison in workgroup memory, another order and runtime checks,
    /// since the same text with other sizes has them in other cases.
    pub fn forced(&self, on: &Runner, variant: &'static Variant) -> Option<CaseReport> {
        let mut report = CaseReport::default();
        match self.try_forced(on, variant, &mut report) {
            Ok(false) => return None,
            Ok(true) => {}
            Err(e) => {
                let (variant, text) = (variant.name().to_string(), e.to_string());
                report.problems.push(Finding { variant, kernels: Vec::new(), text });
            }
        }
        Some(report)
    }

    fn try_forced(&self, on: &Runner, variant: &'static Variant, report: &mut CaseReport) -> Result<bool> {
        let built = self.built(on.seed)?;
        let profile = DeviceProfile { tuning: Tuning::forcing(variant), ..on.gpu.profile().clone() };
        let mut plan = Plan::new(&built.build.graph, &built.fetched, &profile)?;
        if !plan.choices.iter().any(|choice| choice.variant == variant) {
            return Ok(false);
        }
        if let Some(change) = &on.change {
            plan.kernels.iter_mut().for_each(change);
        }
        self.try_plan(on, &built, variant.name(), &plan, on.gpu.profile().class == DeviceClass::Cpu, report)?;
        Ok(true)
    }

    /// Whether this is one of those cases, one in `n`, that do something that takes long. By its letters, so that neighbours,
    /// which tend to differ in one option, are not all in or out.
    fn is_one_of(&self, n: u64) -> bool {
        fnv1a(self.name.as_bytes()).is_multiple_of(n)
    }

    fn try_kernels(&self, on: &Runner, report: &mut CaseReport) -> Result<()> {
        let built = self.built(on.seed)?;
        let graph = &built.build.graph;
        let mut seen: Vec<Plan> = Vec::new();
        for (variant, profile) in profiles(&on.gpu) {
            // Such kernels are named by `not_runnable`.
            if !graph.fits(&profile) {
                continue;
            }
            let mut plan = Plan::new(graph, &built.fetched, &profile)?;
            if let Some(change) = &on.change {
                plan.kernels.iter_mut().for_each(change);
            }
            // Where two profiles choose the same kernels for the same grids, one run says all.
            if seen.iter().any(|p| same(p, &plan)) {
                continue;
            }
            let new = || plan.kernels.iter().any(|kernel| !lock(&on.known).contains(&kernel.name));
            // Another software adapter's kernels are that one's own; a GPU's are nobody's where there is no GPU.
            let rare = on.brief || variant == SOFTWARE && on.gpu.profile().class == DeviceClass::Cpu;
            if rare && variant != OWN && !self.is_one_of(THOROUGH) && !new() {
                continue;
            }
            self.try_plan(on, &built, variant, &plan, false, report)?;
            seen.push(plan);
        }
        Ok(())
    }

    fn try_plan(
        &self,
        on: &Runner,
        built: &Built,
        variant: &str,
        plan: &Plan,
        as_it_is: bool,
        report: &mut CaseReport,
    ) -> Result<()> {
        let graph = &built.build.graph;
        let mut find = |kernels: Vec<String>, text: String| {
            report.problems.push(Finding { variant: variant.to_string(), kernels, text });
        };
        let names: Vec<String> = plan.kernels.iter().map(|k| k.name.clone()).collect();
        let results = self.on_gpu(&on.gpu, plan.clone(), built)?;
        let mut runs = 1;
        // What runs as it is has not run with checks.
        let first = !as_it_is && on.has_new(&names);
        let compiles_slowly = on.gpu.profile().class == DeviceClass::Cpu;
        let chosen = !self.slow && self.is_one_of(THOROUGH);
        let all = first || !compiles_slowly || on.change.is_some() || chosen;
        let checks = !on.brief && !as_it_is && all;
        let controlled = checks || variant == OWN && (!compiles_slowly || self.is_one_of(2));
        let kernels = on.prepared(plan, controlled, checks)?;
        if checks {
            report.checked.extend(names.iter().cloned());
        }
        let controlled = kernels.iter().any(|k| k.controlled);
        let orders = [Order::Natural, Order::Reversed];
        for order in orders.into_iter().take(1 + controlled as usize) {
            let mut replay = Replay::prepared(graph, plan, kernels.clone())?;
            for (id, value) in &built.build.given {
                replay.set(*id, &to_host(graph.value(*id).ty.dtype, value))?;
            }
            let troubles = replay.run(order)?;
            runs += 1;
            for (name, worst) in replay.worst() {
                let entry = report.kernels.entry(name.clone()).or_insert(0.0);
                *entry = entry.max(*worst);
            }
            let failed = !troubles.is_empty();
            for t in troubles {
                let kernels = t.kernels.clone();
                find(kernels, format!("{order:?} order: {t}"));
            }
            if failed {
                break;
            }
            for (id, got) in &results {
                if replay.get(*id)?.bytes() != got.bytes() {
                    let name = &graph.value(*id).name;
                    let text = format!(
                        "{name}: other bits when run with poison and {order:?} order, runtime checks {checks}"
                    );
                    find(names.clone(), text);
                }
            }
        }
        report.runs += runs;
        Ok(())
    }

    /// Appends the backward nodes; the inputs with their gradients.
    fn differentiate(&self, build: &mut Build, outputs: &[ValueId]) -> Result<Vec<(ValueId, ValueId)>> {
        let mut seeds = Vec::new();
        for &o in &self.seeded {
            let output = outputs[o];
            let shape = build.graph.shape(output).clone();
            let seed = if self.ones {
                let ones = vec![1.0; shape.elements()];
                build.graph.constant(format!("one {o}"), HostTensor::f32(shape, ones))
            } else {
                let data = (0..shape.elements()).map(|_| build.draw() as f32).collect();
                build.fixed(&format!("d_out {o}"), HostTensor::f32(shape, data))
            };
            seeds.push((output, seed));
        }
        let wrt = build.wrt.clone();
        let gradients = build.graph.backward(&seeds, &wrt)?;
        Ok(wrt.into_iter().zip(gradients).filter_map(|(x, d)| Some((x, d?))).collect())
    }

    /// The derivative of sum(output * seed) along random directions, in f64, against the gradients.
    fn finite_differences(
        &self,
        build: &mut Build,
        outputs: &[ValueId],
        gradients: &[(ValueId, ValueId)],
        problems: &mut Vec<String>,
    ) -> Result<()> {
        let graph = build.graph.clone();
        let given = build.given.clone();
        let loss = |moved: &[(ValueId, Tensor64)]| -> Result<(f64, Interpreter)> {
            let mut run = Interpreter::new();
            for (id, value) in given.iter().chain(moved) {
                run.set(&graph, *id, value.clone())?;
            }
            run.run(&graph)?;
            let mut sum = 0.0;
            for &o in &self.seeded {
                let out = run.get(&graph, outputs[o])?;
                let seed = given.iter().find(|(id, _)| graph.value(*id).name == format!("d_out {o}"));
                sum += out
                    .data
                    .iter()
                    .enumerate()
                    .map(|(i, x)| x * seed.map_or(1.0, |s| s.1.data[i]))
                    .sum::<f64>();
            }
            Ok((sum, run))
        };
        let (_, base) = loss(&[])?;
        for (x, d) in gradients {
            let value = given.iter().find(|(id, _)| id == x).map(|(_, v)| v.clone());
            let value =
                value.ok_or_else(|| Error::Internal("differentiated by what was not given".into()))?;
            let d = base.get(&graph, *d)?;
            let size = value.data.iter().fold(0.0f64, |m, v| m.max(v.abs())).max(1e-30);
            let h = 1e-6 * size.min(1.0);
            for _ in 0..2 {
                let direction: Vec<f64> = value.data.iter().map(|_| build.rng.normal()).collect();
                let along = |h: f64| {
                    Tensor64::new(
                        value.shape.clone(),
                        value.data.iter().zip(&direction).map(|(v, e)| v + h * e).collect(),
                    )
                };
                let (plus, _) = loss(&[(*x, along(h))])?;
                let (minus, _) = loss(&[(*x, along(-h))])?;
                let numeric = (plus - minus) / (2.0 * h);
                let analytic: f64 = d.data.iter().zip(&direction).map(|(a, b)| a * b).sum();
                let magnitude: f64 = d.data.iter().map(|a| a * a).sum::<f64>().sqrt();
                // Central differences err by about h^2 of the third derivative, and by eps |loss| / h.
                let bound = 1e-4 * magnitude + 1e-13 * plus.abs().max(1e-3) / h;
                // NaN is within nothing.
                let within = (numeric - analytic).abs() <= bound;
                if !within {
                    let name = &graph.value(*x).name;
                    problems.push(format!(
                        "reference: d_{name}: finite difference {numeric}, gradient {analytic}"
                    ));
                }
            }
        }
        Ok(())
    }

    fn on_gpu(&self, gpu: &Gpu, plan: Plan, built: &Built) -> Result<Vec<(ValueId, HostTensor)>> {
        let graph = &built.build.graph;
        let memory = Memory::new(gpu);
        let mut executor = gpu.executor(plan, &memory)?;
        let mut states = Vec::new();
        for (id, value) in &built.build.given {
            let v = graph.value(*id);
            let host = to_host(v.ty.dtype, value);
            match v.role {
                Role::State => {
                    memory.write(&v.name, &host)?;
                    states.push(*id);
                }
                _ => executor.write(*id, &host)?,
            }
        }
        executor.run()?;
        let mut out = Vec::new();
        for &id in &built.fetched {
            out.push((id, executor.read(id)?));
        }
        for id in states {
            out.push((id, memory.read(&graph.value(id).name)?));
        }
        Ok(out)
    }
}

struct Built {
    build: Build,
    outputs: Vec<ValueId>,
    gradients: Vec<(ValueId, ValueId)>,
    /// Outputs, then gradients.
    fetched: Vec<ValueId>,
}

fn same(a: &Plan, b: &Plan) -> bool {
    let step = |s: &crate::plan::Step| (s.kernel, s.groups, s.params);
    a.kernels == b.kernels && a.params == b.params && a.steps.iter().map(step).eq(b.steps.iter().map(step))
}

/// On software adapters, where compilation is most of a test's time and runtime checks treble it, one case in so many runs
/// with them, and kernels that are chosen for other devices run there with poison and in another order; the device's own do
/// in one of two. So does each case that has a kernel which no case before had. Other software adapters' kernels run in such
/// cases alone, and all other devices' where little time is to be spent.
const THOROUGH: u64 = 16;

/// What running a case's kernels gave.
#[derive(Clone, Debug, Default)]
pub struct CaseReport {
    /// Runs on the device.
    pub runs: usize,
    /// The kernels that ran, each with its largest error as a share of the bound.
    pub kernels: BTreeMap<String, f64>,
    /// Those of them that ran with runtime checks too.
    pub checked: BTreeSet<String>,
    /// What was wrong.
    pub problems: Vec<Finding>,
}

/// Something wrong.
#[derive(Clone, Debug)]
pub struct Finding {
    /// The name of the profile that the plan was made for.
    pub variant: String,
    /// The kernels that it may be the fault of.
    pub kernels: Vec<String>,
    /// What it is.
    pub text: String,
}

/// What a test that panicked has left there is whole.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Where and how to run cases.
pub struct Runner {
    /// The device.
    pub gpu: Gpu,
    /// The seed of random values.
    pub seed: u64,
    /// A change to every kernel, to see that the tests notice.
    pub change: Option<Box<Change>>,
    /// For a second adapter whose compiler is slow: no runtime checks; kernels that are chosen for other devices run in some
    /// of the cases, and as they are, without poison or another order.
    pub brief: bool,
    /// The names of kernels that ran so far.
    known: Arc<Mutex<BTreeSet<String>>>,
    /// The texts of kernels with workgroup memory as changed for tests; `None` for those without.
    instrumented: Arc<Mutex<HashMap<Kernel, Option<Arc<Kernel>>>>>,
}

impl Runner {
    /// A runner on a device.
    pub fn new(gpu: Gpu, seed: u64) -> Runner {
        Runner { gpu, seed, change: None, brief: false, known: Arc::default(), instrumented: Arc::default() }
    }

    /// A runner on another device that does a part of the same work: what one of them did first, the other need not.
    pub fn beside(&self, gpu: Gpu) -> Runner {
        Runner {
            gpu,
            change: None,
            known: self.known.clone(),
            instrumented: self.instrumented.clone(),
            ..*self
        }
    }

    /// Whether one of these is the first of its name.
    fn has_new(&self, names: &[String]) -> bool {
        let mut known = lock(&self.known);
        names.iter().filter(|name| known.insert(name.to_string())).count() > 0
    }

    /// The kernels of a plan for a replay.
    fn prepared(&self, plan: &Plan, controlled: bool, checks: bool) -> Result<Vec<Prepared>> {
        let checked = self.gpu.checked(checks);
        let one = |kernel| match controlled {
            true => self.prepare(&checked, kernel),
            false => Ok(Prepared { solo: self.gpu.solo(kernel)?, controlled: false }),
        };
        plan.kernels.iter().map(one).collect()
    }

    /// The kernel for a replay: one with workgroup memory is poisoned, and its order can be reversed where it does not
    /// work with sub-groups.
    fn prepare(&self, gpu: &Gpu, kernel: &Kernel) -> Result<Prepared> {
        let known = lock(&self.instrumented).get(kernel).cloned();
        let changed = match known {
            Some(changed) => changed,
            None => {
                let changed = instrumented(kernel)?.map(Arc::new);
                lock(&self.instrumented).insert(kernel.clone(), changed.clone());
                changed
            }
        };
        Ok(match changed {
            Some(changed) => Prepared { solo: gpu.solo(&changed)?, controlled: true },
            None => Prepared { solo: gpu.solo(kernel)?, controlled: false },
        })
    }
}

fn instrumented(kernel: &Kernel) -> Result<Option<Kernel>> {
    let wgsl = kernel.wgsl();
    if !wgsl.contains("var<workgroup>") || !Shader::new(&wgsl, kernel.entry)?.uses_workgroup_memory() {
        return Ok(None);
    }
    let reorder = kernel.requires.subgroup_size.is_none();
    let text = instrument(&wgsl, kernel.entry, kernel.bindings.len() as u32, reorder)?;
    let mut bindings = kernel.bindings.clone();
    bindings.push(Access::Read);
    Ok(Some(Kernel { parts: vec![text.into()], constants: Vec::new(), bindings, ..kernel.clone() }))
}

//! The shader tests: `cargo test --release --test kernels -- [FILTER..] [--layer N] [--seed N] [--cases N] [--list]
//! [--brief]`, and with `--mutations` wrong kernels that they must notice (see mutations.rs).
//!
//! 1. mathematics: the gradient of each f64 reference against finite differences, excerpts against the whole; no device.
//! 2. kernels: every variant that the adapter can run, against the references; on listed cases and, in the group
//!    `properties`, on inputs drawn at random, `--cases` of each op.
//!    In the group `variants` each variant of the table is forced in turn, whatever the device would choose.
//! 3. contract: what each shader and its host side agree on; no device.
//! 4. model: whole models against other software's numbers.
//!
//! On software adapters runtime checks, poison and orders of kernels that are chosen for other devices, and the kernels that
//! another software adapter would choose, are left to one case in sixteen and to the first case of each kernel: compilation
//! takes longest there. The device's own kernels have poison and orders in one case of two.
//!
//! `--brief` is for a second adapter whose compiler is slow: no runtime checks, and kernels that are chosen for other devices
//! run in such cases alone and as they are; the two longest tests are left out.
//!
//! No adapter is a failure, unless `WGFORMER_TEST_ADAPTER=none` says that there is none; any other value is the adapter to
//! take: its number, or a part of its name.

mod cases;
mod contract;
mod golden;
mod model;
mod mutations;
mod properties;
mod variants;

use std::collections::{BTreeMap, BTreeSet};
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use wgformer::DeviceClass;
use wgformer::gpu::{Gpu, Request, request};
use wgformer::testing::{Case, Runner, not_runnable};

/// What a test found: the number of things checked and the kernels that ran, or the problems.
pub type Outcome = Result<Passed, Vec<String>>;

/// What a test that passed did.
#[derive(Default)]
pub struct Passed {
    pub checks: usize,
    /// By name, with the largest error as a share of what is allowed.
    pub kernels: BTreeMap<String, f64>,
    /// Those of them that ran with runtime checks too.
    pub checked: BTreeSet<String>,
    /// The variant that it was about.
    pub forced: Option<variants::Forced>,
}

impl Passed {
    pub fn checks(checks: usize) -> Passed {
        Passed { checks, ..Default::default() }
    }
}

/// What a test needs, and what it does.
pub enum Run {
    OnHost(Box<dyn Fn(u64) -> Outcome + Send + Sync>),
    OnDevice(Box<dyn Fn(&Runner) -> Outcome + Send + Sync>),
}

/// A test of any layer.
pub struct Test {
    pub layer: usize,
    /// The op, or the part of its layer.
    pub group: String,
    pub name: String,
    pub run: Run,
}

/// What `--brief` leaves out: the groups and names. 65,600 workgroups with barriers, whose places in the grid other ops' many
/// groups show too; and a larger model, whose time is that of its reference.
const LONG: [(&str, &str); 2] = [("attention", "many groups"), ("step", "the preset small, node by node")];

const LAYERS: [&str; 4] = ["mathematics", "kernels", "contract", "model"];

/// A case's gradients, where it has any, against finite differences, and its excerpts: the number of checks.
fn on_host(case: &Case, seed: u64) -> Result<usize, Vec<String>> {
    let gradients = if case.has_gradient() { case.mathematics(seed)? } else { 0 };
    Ok(gradients + case.excerpts(seed)?)
}

/// The tests of a case: its mathematics and its kernels.
fn of_case(op: &str, case: Case) -> Vec<Test> {
    let case = std::sync::Arc::new(case);
    let test = |layer, run| Test { layer, group: op.to_string(), name: case.name.clone(), run };
    let again = case.clone();
    let kernels = test(2, Run::OnDevice(Box::new(move |on| kernels(&again, on))));
    let again = case.clone();
    let host = move |seed| on_host(&again, seed).map(Passed::checks);
    vec![test(1, Run::OnHost(Box::new(host))), kernels]
}

fn kernels(case: &Case, on: &Runner) -> Outcome {
    let report = case.kernels(on);
    if report.problems.is_empty() {
        let (checks, kernels, checked) = (report.runs, report.kernels, report.checked);
        return Ok(Passed { checks, kernels, checked, forced: None });
    }
    Err(report.problems.iter().map(|p| format!("{}: {}", p.variant, p.text)).collect())
}

fn tests(draws: Option<u32>) -> Vec<Test> {
    let cases = cases::all().into_iter();
    let mut all: Vec<Test> =
        cases.flat_map(|(op, cases)| cases.into_iter().flat_map(move |c| of_case(op, c))).collect();
    all.extend(variants::tests());
    all.extend(properties::tests(draws));
    all.extend(contract::tests());
    all.extend(model::tests());
    all.extend(golden::tests());
    // What takes longest begins first, so that the other workers do not wait for it at the end.
    all.sort_by_key(|test| test.group != "task");
    all
}

struct Options {
    filter: Vec<String>,
    /// All, if empty.
    layers: Vec<usize>,
    brief: bool,
    seed: u64,
    /// How many inputs each property draws, if not as many as it does by itself.
    draws: Option<u32>,
    list: bool,
    mutations: bool,
}

impl Options {
    fn runs(&self, layer: usize) -> bool {
        self.layers.is_empty() || self.layers.contains(&layer)
    }
}

fn options() -> Result<Options, String> {
    let mut options = Options {
        filter: Vec::new(),
        layers: Vec::new(),
        brief: false,
        seed: 1,
        draws: None,
        list: false,
        mutations: false,
    };
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        let mut number = |what: &str| {
            let value = args.next().and_then(|v| v.parse::<u64>().ok());
            value.ok_or_else(|| format!("{what} needs a number"))
        };
        match arg.as_str() {
            "--layer" => {
                let n = number("--layer")? as usize;
                if !(1..=LAYERS.len()).contains(&n) {
                    return Err(format!("--layer {n}: there are the layers 1 to {}", LAYERS.len()));
                }
                options.layers.push(n);
            }
            "--cases" => options.draws = Some(number("--cases")?.min(u32::MAX as u64) as u32),
            "--seed" => options.seed = number("--seed")?,
            "--brief" => options.brief = true,
            "--list" => options.list = true,
            "--mutations" => options.mutations = true,
            // Cargo and its relatives pass options for their own harness.
            a if a.starts_with('-') => {}
            _ => options.filter.push(arg),
        }
    }
    Ok(options)
}

fn main() -> ExitCode {
    match options().and_then(run) {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("{message}");
            ExitCode::FAILURE
        }
    }
}

/// The device to test on; `None` where the environment says that there is none.
fn device() -> Result<Option<Gpu>, String> {
    let name = std::env::var("WGFORMER_TEST_ADAPTER").ok().filter(|n| !n.is_empty());
    if name.as_deref() == Some("none") {
        return Ok(None);
    }
    let name = name.or_else(|| std::env::var("WGPU_ADAPTER_NAME").ok());
    let gpu = request(&Request { name, ..Default::default() });
    gpu.map(Some).map_err(|e| {
        format!("{e}\nwithout any adapter, WGFORMER_TEST_ADAPTER=none runs the layers that need none")
    })
}

fn run(options: Options) -> Result<(), String> {
    if options.mutations {
        let devices: Vec<Gpu> = runners(&options)?.into_iter().map(|runner| runner.gpu).collect();
        if devices.is_empty() {
            return Err("wrong kernels are noticed on an adapter only".to_string());
        }
        return mutations::run(&devices, options.seed, &options.filter);
    }
    let all = tests(options.draws);
    let long = |t: &Test| t.layer > 1 && LONG.contains(&(t.group.as_str(), t.name.as_str()));
    if all.iter().filter(|t| long(t)).count() != LONG.len() {
        return Err("a test that --brief leaves out is not there".to_string());
    }
    let wanted = |t: &&Test| {
        let text = format!("{} {}", t.group, t.name);
        options.runs(t.layer) && options.filter.iter().all(|f| text.contains(f.as_str()))
    };
    let (left, chosen): (Vec<&Test>, Vec<&Test>) =
        all.iter().filter(wanted).partition(|t| options.brief && long(t));
    if chosen.is_empty() {
        return Err("no test matches the filter; --list shows them all".to_string());
    }
    if options.list {
        chosen.iter().for_each(|t| println!("{} {} {}", t.layer, t.group, t.name));
        return Ok(());
    }
    let runners = runners(&options)?;
    let runner = runners.first();
    let adapter = match runner {
        Some(runner) => runner.gpu.description(),
        None => "none, as WGFORMER_TEST_ADAPTER says".to_string(),
    };
    println!("adapter: {adapter}");
    let start = Instant::now();
    let results = run_all(&chosen, &runners, options.seed);
    println!();
    let (passed, failed) = table(&chosen, &results);
    let unchecked = shares(&results);
    let forced =
        |(outcome, _): &'_ (Option<Outcome>, Duration)| outcome.as_ref()?.as_ref().ok()?.forced.clone();
    variants::table(&results.iter().filter_map(forced).collect::<Vec<_>>());
    slowest(&chosen, &results);
    if runner.is_none() {
        let left: usize = results.iter().filter(|r| r.0.is_none()).count();
        println!("left out for want of an adapter: {left} tests of the layers 2 and 4");
    }
    left.iter().for_each(|t| println!("left out by --brief: {} {}", t.group, t.name));
    if let Some(runner) = runner {
        not_run(&runner.gpu, &options)?;
    }
    println!("{:.1} s on adapter: {adapter}", start.elapsed().as_secs_f64());
    println!("{passed} passed, {failed} failed");
    if failed > 0 {
        return Err(format!("{failed} tests failed"));
    }
    if options.runs(2) && options.filter.is_empty() && !options.brief && !unchecked.is_empty() {
        return Err(format!("no case has run {} with runtime checks", unchecked.join(", ")));
    }
    if passed == 0 { Err("nothing ran".to_string()) } else { Ok(()) }
}

/// Says which kernels did not run and why.
fn not_run(gpu: &Gpu, options: &Options) -> Result<(), String> {
    if options.runs(2) && options.filter.is_empty() {
        let cases: Vec<Case> = cases::all().into_iter().flat_map(|(_, cases)| cases).collect();
        let missing = not_runnable(&cases, gpu).map_err(|e| e.to_string())?;
        println!("kernels not runnable on this adapter: {}", missing.len());
        missing.iter().for_each(|(name, reason)| println!("  {name}: {reason}"));
    }
    Ok(())
}

/// By test: what it found, `None` if it needs a device and there is none, and its time.
type Results = Vec<(Option<Outcome>, Duration)>;

/// One for each core on a software adapter, whose devices compile one kernel at a time; one on a GPU; none without any
/// adapter.
fn runners(options: &Options) -> Result<Vec<Runner>, String> {
    let Some(gpu) = device()? else { return Ok(Vec::new()) };
    let devices = match gpu.profile().class {
        DeviceClass::Cpu => workers(),
        DeviceClass::Discrete | DeviceClass::Integrated => 1,
    };
    let mut first = Runner::new(gpu, options.seed);
    first.brief = options.brief;
    let mut runners = vec![first];
    while runners.len() < devices {
        let another = device()?.map(|gpu| runners[0].beside(gpu));
        runners.extend(another);
    }
    Ok(runners)
}

fn workers() -> usize {
    std::thread::available_parallelism().map_or(1, |n| n.get()).min(4)
}

/// Tests that a worker takes at a time: neighbours share kernels, which a device compiles once.
const TOGETHER: usize = 8;

fn run_all(chosen: &[&Test], runners: &[Runner], seed: u64) -> Results {
    let next = AtomicUsize::new(0);
    let results: Vec<Mutex<(Option<Outcome>, Duration)>> = chosen.iter().map(|_| Mutex::default()).collect();
    let (next, results_of) = (&next, &results);
    std::thread::scope(|scope| {
        for worker in 0..workers() {
            let runner = runners.get(worker % runners.len().max(1));
            scope.spawn(move || {
                loop {
                    let first = next.fetch_add(TOGETHER, Ordering::Relaxed);
                    if first >= chosen.len() {
                        return;
                    }
                    for index in first..chosen.len().min(first + TOGETHER) {
                        let (test, begin) = (chosen[index], Instant::now());
                        let outcome = run_one(test, runner, seed);
                        if let Some(Err(problems)) = &outcome {
                            failure(test, seed, problems);
                        }
                        *results_of[index].lock().unwrap() = (outcome, begin.elapsed());
                    }
                }
            });
        }
    });
    results.into_iter().map(|r| r.into_inner().unwrap()).collect()
}

fn run_one(test: &Test, runner: Option<&Runner>, seed: u64) -> Option<Outcome> {
    let run = || match (&test.run, runner) {
        (Run::OnHost(run), _) => Some(run(seed)),
        (Run::OnDevice(run), Some(runner)) => Some(run(runner)),
        (Run::OnDevice(_), None) => None,
    };
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run));
    outcome.unwrap_or_else(|_| Some(Err(vec!["panicked".to_string()])))
}

fn failure(test: &Test, seed: u64, problems: &[String]) {
    let Test { layer, group, name, .. } = test;
    println!("FAILED layer {layer} ({}), {group}: {name}, seed {seed}", LAYERS[layer - 1]);
    for p in problems {
        println!("    {p}");
    }
    println!(
        "    alone: cargo test --release --test kernels -- --layer {layer} --seed {seed} '{group} {name}'"
    );
}

/// Prints which kernels ran, and how much of what is allowed each of them has needed; those that never ran with runtime
/// checks.
fn shares(results: &Results) -> Vec<String> {
    let mut worst: BTreeMap<&str, f64> = BTreeMap::new();
    let mut checked = BTreeSet::new();
    for passed in results.iter().filter_map(|(outcome, _)| outcome.as_ref()?.as_ref().ok()) {
        checked.extend(passed.checked.iter().map(String::as_str));
        for (kernel, share) in &passed.kernels {
            let known = worst.entry(kernel).or_default();
            *known = known.max(*share);
        }
    }
    println!(
        "kernels run: {}, with runtime checks too: {}; largest error as a share of what is allowed:",
        worst.len(),
        checked.len()
    );
    for (kernel, share) in &worst {
        println!("  {kernel:<36}{share:>8.3}");
    }
    worst.into_keys().filter(|kernel| !checked.contains(kernel)).map(str::to_string).collect()
}

/// Prints which tests took longest.
fn slowest(chosen: &[&Test], results: &Results) {
    let mut times: Vec<(Duration, &Test)> =
        chosen.iter().zip(results).map(|(test, (_, time))| (*time, *test)).collect();
    times.sort_by_key(|(time, _)| std::cmp::Reverse(*time));
    println!("slowest:");
    for (time, test) in times.iter().take(5) {
        println!("{:>8.1} s  {} {}", time.as_secs_f64(), test.group, test.name);
    }
}

/// Prints what ran; the numbers of tests that passed and that failed.
fn table(chosen: &[&Test], results: &Results) -> (usize, usize) {
    println!("{:<14}{:<24}{:>8}{:>8}{:>10}{:>10}", "layer", "group", "tests", "failed", "checks", "seconds");
    let mut groups: BTreeMap<(usize, &str), [f64; 4]> = BTreeMap::new();
    for (test, (outcome, time)) in chosen.iter().zip(results) {
        let Some(outcome) = outcome else { continue };
        let row = groups.entry((test.layer, &test.group)).or_default();
        let checks = outcome.as_ref().map_or(0, |p| p.checks);
        let add = [1.0, outcome.is_err() as usize as f64, checks as f64, time.as_secs_f64()];
        row.iter_mut().zip(add).for_each(|(sum, x)| *sum += x);
    }
    let mut totals = [0.0; 4];
    for ((layer, group), row) in &groups {
        let [tests, failed, checks, seconds] = row;
        println!("{:<14}{group:<24}{tests:>8}{failed:>8}{checks:>10}{seconds:>10.1}", LAYERS[layer - 1]);
        totals.iter_mut().zip(row).for_each(|(sum, x)| *sum += x);
    }
    let [tests, failed, checks, seconds] = totals;
    println!("{:<38}{tests:>8}{failed:>8}{checks:>10}{seconds:>10.1}", "all");
    ((tests - failed) as usize, failed as usize)
}

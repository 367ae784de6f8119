//! Two result files, row by row.

use super::stats::estimate;
use super::{Adapter, Results, Row, Sampled, Status};
use crate::{Error, Result};
use serde::Serialize;
use std::collections::HashMap;

/// The least difference that counts: a smaller one is as likely the machine's as the kernel's (where code and pages lie,
/// which clock rate the processor settled on).
const COUNTS: f64 = 0.03;

/// The least that counts as faster or slower on a software adapter, whose caches and cores are everybody's: of twenty rows
/// of one and the same build, undisturbed by their control, three differed by 8 or 9 % (lavapipe, 2 cores).
const COUNTS_ON_CPU: f64 = 0.1;

/// The least ratio of two runs' controls that says that the machine was not the same.
const OTHER_MACHINE: f64 = 1.1;

/// The same of the adapters' copies, for works bound by memory.
const OTHER_MEMORY: f64 = 1.05;

/// What a comparison says of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Verdict {
    /// Less time: the intervals are disjoint, and the difference counts.
    Faster,
    /// More time: the intervals are disjoint, and the difference counts.
    Slower,
    /// The times differ by less than counts.
    Same,
    /// The times differ, but not by more than the machine may have caused.
    Ambiguous,
    /// The result is wrong in one of the files.
    Wrong,
    /// One of the files has no time.
    Skipped,
}

impl Verdict {
    /// Every verdict.
    pub const ALL: [Verdict; 6] =
        [Self::Faster, Self::Slower, Self::Same, Self::Ambiguous, Self::Wrong, Self::Skipped];

    /// The verdict in capitals.
    pub fn name(self) -> &'static str {
        match self {
            Self::Faster => "FASTER",
            Self::Slower => "SLOWER",
            Self::Same => "SAME",
            Self::Ambiguous => "AMBIGUOUS",
            Self::Wrong => "WRONG",
            Self::Skipped => "SKIPPED",
        }
    }
}

/// An adapter of the first file and the one of the second that it is compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pair {
    /// Index into the first file's adapters.
    pub a: usize,
    /// Index into the second file's adapters.
    pub b: usize,
}

/// What a file says of a row's time, in nanoseconds for one repetition.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Side {
    /// The time of an undisturbed repetition, by [`estimate`].
    pub ns: f64,
    /// The file's interval for it.
    pub interval_ns: [f64; 2],
}

impl Side {
    fn of(time: &Sampled, adapter: Option<&Adapter>) -> Side {
        let quiet = adapter.map_or(1.0, |a| a.control_ns);
        let ns = estimate(&time.rounds, &time.control_ns, quiet).map_or(time.median_ns, |e| e.time);
        Side { ns, interval_ns: time.interval_ns }
    }
}

/// A row that both files have.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Compared {
    /// The adapters that ran it.
    #[serde(skip)]
    pub pair: Pair,
    /// The adapter's name in the first file.
    pub adapter: String,
    /// [`Row::key`].
    pub row: String,
    /// What there is to say.
    pub verdict: Verdict,
    /// Why it is wrong or skipped, or why the times do not compare.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The second time divided by the first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ratio: Option<f64>,
    /// The time in the first file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub a: Option<Side>,
    /// The time in the second file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub b: Option<Side>,
}

/// What two result files say of the same works.
#[derive(Clone, Debug, PartialEq)]
pub struct Comparison {
    /// The adapters that were compared.
    pub pairs: Vec<Pair>,
    /// Whether they differ by name or interface: one of each file, since there was no other.
    pub across: bool,
    /// The rows of both files, in the order of the first.
    pub rows: Vec<Compared>,
    /// The rows of the first file alone: adapter and [`Row::key`].
    pub only_a: Vec<(String, String)>,
    /// The rows of the second file alone.
    pub only_b: Vec<(String, String)>,
}

impl Comparison {
    /// Compares file `b` with file `a`: a row is faster when it takes less time in `b`.
    ///
    /// # Errors
    /// When the files have no adapter or no row in common, when one has a row twice, or when a row is not the same work
    /// in both.
    pub fn new(a: &Results, b: &Results) -> Result<Comparison> {
        let (pairs, across) = pair_adapters(a, b)?;
        let (rows_a, rows_b) = (index(a)?, index(b)?);
        let b_of: HashMap<usize, usize> = pairs.iter().map(|pair| (pair.a, pair.b)).collect();
        let a_of: HashMap<usize, usize> = pairs.iter().map(|pair| (pair.b, pair.a)).collect();
        let name = |results: &Results, row: &Row| {
            (results.adapters.get(row.adapter).map_or(String::new(), |a| a.name.clone()), row.key())
        };
        let mut comparison =
            Comparison { pairs, across, rows: Vec::new(), only_a: Vec::new(), only_b: Vec::new() };
        for row in &a.rows {
            let other = b_of.get(&row.adapter).and_then(|&adapter| rows_b.get(&(adapter, row.key())));
            let (adapter, key) = name(a, row);
            match other {
                Some(other) => {
                    let pair = Pair { a: row.adapter, b: other.adapter };
                    let adapters = [a.adapters.get(row.adapter), b.adapters.get(other.adapter)];
                    let compared = Compared::new(pair, adapter, [row, other], adapters);
                    comparison.rows.push(compared.judge([row, other], adapters, across)?);
                }
                None => comparison.only_a.push((adapter, key)),
            }
        }
        let alone = |row: &&Row| {
            !a_of.get(&row.adapter).is_some_and(|&adapter| rows_a.contains_key(&(adapter, row.key())))
        };
        comparison.only_b = b.rows.iter().filter(alone).map(|row| name(b, row)).collect();
        if comparison.rows.is_empty() {
            return Err(Error::Input(format!(
                "the files have no row in common ({} in the first, {} in the second): compare runs of the same works",
                a.rows.len(),
                b.rows.len()
            )));
        }
        Ok(comparison)
    }

    /// How many rows have a verdict.
    pub fn count(&self, verdict: Verdict) -> usize {
        self.rows.iter().filter(|row| row.verdict == verdict).count()
    }

    /// The geometric mean of the rows' ratios; none where no row has one.
    pub fn mean_ratio(&self) -> Option<f64> {
        let logs: Vec<f64> = self.rows.iter().filter_map(|row| Some(row.ratio?.ln())).collect();
        (!logs.is_empty()).then(|| (logs.iter().sum::<f64>() / logs.len() as f64).exp())
    }
}

/// The rows of a file by adapter and key.
fn index(results: &Results) -> Result<HashMap<(usize, String), &Row>> {
    let mut rows = HashMap::with_capacity(results.rows.len());
    for row in &results.rows {
        if rows.insert((row.adapter, row.key()), row).is_some() {
            return Err(Error::Input(format!("the row {:?} is twice in one file", row.key())));
        }
    }
    Ok(rows)
}

/// Adapters of the same name and interface; the n-th of several such with the n-th. The only adapters of two files are
/// compared whatever they are.
fn pair_adapters(a: &Results, b: &Results) -> Result<(Vec<Pair>, bool)> {
    let same = |x: &Adapter, y: &Adapter| (&x.name, &x.backend) == (&y.name, &y.backend);
    if let ([x], [y]) = (a.adapters.as_slice(), b.adapters.as_slice()) {
        return Ok((vec![Pair { a: 0, b: 0 }], !same(x, y)));
    }
    let mut taken = vec![false; b.adapters.len()];
    let mut pairs = Vec::new();
    for (i, x) in a.adapters.iter().enumerate() {
        let free =
            b.adapters.iter().zip(&mut taken).enumerate().find(|(_, (y, taken))| !**taken && same(x, y));
        if let Some((j, (_, taken))) = free {
            *taken = true;
            pairs.push(Pair { a: i, b: j });
        }
    }
    if pairs.is_empty() {
        let names = |results: &Results| {
            let names: Vec<String> =
                results.adapters.iter().map(|a| format!("{:?} ({})", a.name, a.backend)).collect();
            names.join(", ")
        };
        return Err(Error::Input(format!(
            "the files have no adapter in common: {} in the first, {} in the second; two files of one adapter each \
             compare whatever they are",
            names(a),
            names(b)
        )));
    }
    Ok((pairs, false))
}

impl Compared {
    /// A row of both files, of which nothing is said yet.
    fn new(pair: Pair, adapter: String, rows: [&Row; 2], adapters: [Option<&Adapter>; 2]) -> Compared {
        let side = |i: usize| rows[i].time.as_ref().map(|time| Side::of(time, adapters[i]));
        Compared {
            pair,
            adapter,
            row: rows[0].key(),
            verdict: Verdict::Skipped,
            reason: None,
            ratio: None,
            a: side(0),
            b: side(1),
        }
    }

    /// Says what there is to say.
    fn judge(mut self, [a, b]: [&Row; 2], adapters: [Option<&Adapter>; 2], across: bool) -> Result<Compared> {
        for (file, side) in [("first", a), ("second", b)] {
            let verdict = match side.status {
                Status::Ok => continue,
                Status::Wrong => Verdict::Wrong,
                Status::Skipped => Verdict::Skipped,
            };
            if self.reason.is_none() || verdict < self.verdict {
                self.verdict = verdict;
                let reason = side.reason.as_deref().unwrap_or("no reason given");
                self.reason = Some(format!("in the {file} file: {reason}"));
            }
        }
        let (Some(time_a), Some(time_b), Some(side_a), Some(side_b)) = (&a.time, &b.time, self.a, self.b)
        else {
            return Ok(self);
        };
        for (what, x, y) in [("floating-point operations", a.flops, b.flops), ("bytes", a.bytes, b.bytes)] {
            if x != y {
                return Err(Error::Input(format!(
                    "the row {:?} is not the same work in both files: {x} and {y} {what}",
                    self.row
                )));
            }
        }
        let ratio = side_b.ns / side_a.ns;
        self.ratio = Some(ratio);
        let cpu = adapters.iter().flatten().any(|a| a.class == "cpu");
        self.verdict = verdict(&side_a, &side_b, if cpu { COUNTS_ON_CPU } else { COUNTS });
        if let Some(reason) = incomparable(a, [time_a, time_b], adapters, across) {
            self.verdict = Verdict::Ambiguous;
            self.reason = Some(reason);
        }
        Ok(self)
    }
}

/// Why two times say nothing of the work, if so: other clocks, or a machine that was not the same.
fn incomparable(
    row: &Row,
    times: [&Sampled; 2],
    adapters: [Option<&Adapter>; 2],
    across: bool,
) -> Option<String> {
    if times[0].clock != times[1].clock {
        return Some("one time is by the device's clock, the other by the host's".to_string());
    }
    let [Some(x), Some(y)] = adapters else { return None };
    // Another device, or another driver, may well be faster.
    if across || (&x.driver, &x.driver_version) != (&y.driver, &y.driver_version) {
        return None;
    }
    let slower = |ratio: f64, most: f64, what: &str| {
        let known = ratio.is_finite() && ratio > 0.0 && ratio.max(1.0 / ratio) > most;
        let file = if ratio > 1.0 { "second" } else { "first" };
        let by = 100.0 * (ratio.max(1.0 / ratio) - 1.0);
        known.then(|| format!("{what} was {by:.0} % slower in the {file} file"))
    };
    // What the memory of a machine with other guests gives changes from minute to minute, and with the pages that a
    // process got: it says as much of a work that reads and writes more than it computes.
    let memory_bound = x.class == "cpu"
        && row.bytes as f64 * x.ceilings.fma_gflop_s > row.flops as f64 * x.ceilings.copy_gb_s;
    let memory = x.ceilings.copy_gb_s / y.ceilings.copy_gb_s;
    slower(y.control_ns / x.control_ns, OTHER_MACHINE, "the control")
        .or_else(|| slower(memory, OTHER_MEMORY, "the adapter's own copy").filter(|_| memory_bound))
}

/// What two times of the same work say; differences of less than `counts` make nothing faster or slower, nor do intervals
/// that are less than half of it apart.
fn verdict(a: &Side, b: &Side, counts: f64) -> Verdict {
    let ratio = b.ns / a.ns;
    let apart = |low: &Side, high: &Side| high.interval_ns[0] > (1.0 + 0.5 * counts) * low.interval_ns[1];
    if ratio.max(1.0 / ratio) < 1.0 + COUNTS {
        Verdict::Same
    } else if apart(a, b) && ratio > 1.0 + counts {
        Verdict::Slower
    } else if apart(b, a) && 1.0 / ratio > 1.0 + counts {
        Verdict::Faster
    } else {
        Verdict::Ambiguous
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::{Ceilings, Clock, Environment, Pass, SCHEMA};
    use crate::rng::Rng;

    fn sampled(rounds: Vec<Vec<f64>>) -> Sampled {
        let control = vec![1.0; rounds.len()];
        Sampled::new(Clock::Host, rounds, control, 1.0).unwrap()
    }

    fn adapter(name: &str, backend: &str) -> Adapter {
        Adapter {
            name: name.into(),
            class: "cpu".into(),
            backend: backend.into(),
            driver: String::new(),
            driver_version: String::new(),
            subgroup_sizes: [4, 8],
            features: vec![],
            limits: Default::default(),
            ceilings: Ceilings::default(),
            control_ns: 1.0,
        }
    }

    fn row(adapter: usize, name: &str, ns: f64) -> Row {
        Row {
            adapter,
            family: "matmul".into(),
            name: name.into(),
            shape: [("M".to_string(), 64)].into(),
            dtype: "f32".into(),
            pass: Pass::Forward,
            status: Status::Ok,
            reason: None,
            kernels: vec![],
            verified: None,
            flops: 1000,
            bytes: 100,
            tokens: None,
            time: Some(sampled(vec![vec![ns, 1.01 * ns]; 10])),
        }
    }

    fn results(adapters: &[(&str, &str)], rows: Vec<Row>) -> Results {
        Results {
            schema: SCHEMA.into(),
            environment: Environment {
                started: String::new(),
                version: String::new(),
                commit: None,
                system: String::new(),
                threads: 2,
                arguments: vec![],
                seed: 1,
            },
            adapters: adapters.iter().map(|(name, backend)| adapter(name, backend)).collect(),
            rows,
        }
    }

    fn failed(row: Row, status: Status) -> Row {
        Row { status, time: None, reason: Some("the reason".into()), ..row }
    }

    /// What disturbs a run.
    #[derive(Clone, Copy, Debug)]
    enum Noise {
        /// Nothing but the clock.
        Calm,
        /// The clock rate goes up and down once in a run.
        Drifting,
        /// Other programs take the processor: a share of all rounds, and a fifth of the samples of others.
        Bursty(f64),
    }

    /// A run of ten rounds of five samples: 1 % of noise, and the given.
    fn run(noise: Noise, ns: f64, rng: &mut Rng) -> Sampled {
        let phase = rng.uniform_f64();
        let rounds = (0..10).map(|round| {
            let busy = match noise {
                Noise::Calm => 1.0,
                Noise::Drifting => {
                    1.0 + 0.05 * ((phase + f64::from(round) / 10.0) * std::f64::consts::TAU).sin()
                }
                Noise::Bursty(share) if rng.uniform_f64() < share => 1.2 + rng.uniform_f64(),
                Noise::Bursty(_) => 1.0,
            };
            let sample = |_| {
                let burst = match noise {
                    Noise::Bursty(_) if rng.uniform_f64() < 0.2 => 1.2 + 2.0 * rng.uniform_f64(),
                    _ => 1.0,
                };
                ns * busy * burst * (1.0 + 0.01 * rng.normal())
            };
            (0..5).map(sample).collect()
        });
        sampled(rounds.collect())
    }

    #[test]
    fn noise_is_not_taken_for_a_change_and_does_not_hide_one() {
        const RUNS: usize = 1000;
        // The most wrong verdicts on runs of the same build, and the least right ones on 15 % more and less, of 1000.
        let cases = [
            (Noise::Calm, 0, 1000),
            (Noise::Drifting, 0, 1000),
            (Noise::Bursty(0.3), 10, 950),
            // Half of all rounds and many more samples: few differences can be told from noise, none is made up.
            (Noise::Bursty(0.5), 30, 700),
        ];
        for (i, (noise, wrong, right)) in cases.into_iter().enumerate() {
            let mut rng = Rng::new(i as u64);
            let mut verdicts = |factor: f64, verdict: &[Verdict]| {
                let verdicts = (0..RUNS).map(|_| {
                    let [a, b] = [1e6, factor * 1e6].map(|ns| Side::of(&run(noise, ns, &mut rng), None));
                    super::verdict(&a, &b, COUNTS)
                });
                verdicts.filter(|v| verdict.contains(v)).count()
            };
            let made_up = verdicts(1.0, &[Verdict::Faster, Verdict::Slower]);
            let slower = verdicts(1.15, &[Verdict::Slower]);
            let faster = verdicts(1.0 / 1.15, &[Verdict::Faster]);
            let opposite = verdicts(1.15, &[Verdict::Faster]);
            assert!(
                made_up <= wrong && slower >= right && faster >= right && opposite <= wrong,
                "{noise:?}: of {RUNS}, {made_up} made up, {slower} slower and {faster} faster found, {opposite} opposite"
            );
        }
    }

    #[test]
    fn verdicts_follow_from_intervals_and_times() {
        let side = |ns: f64, low: f64, high: f64| Side { ns, interval_ns: [low, high] };
        let a = side(100.0, 98.0, 104.0);
        let cases = [
            (side(102.0, 101.0, 103.0), Verdict::Same),
            // Apart, but by less than counts.
            (side(102.9, 104.5, 105.0), Verdict::Same),
            (side(110.0, 106.0, 112.0), Verdict::Slower),
            (side(110.0, 103.0, 112.0), Verdict::Ambiguous),
            (side(90.0, 89.0, 96.0), Verdict::Faster),
            (side(90.0, 89.0, 99.0), Verdict::Ambiguous),
            // An interval that contradicts its time decides nothing.
            (side(90.0, 105.0, 106.0), Verdict::Ambiguous),
        ];
        for (b, expected) in cases {
            assert_eq!(verdict(&a, &b, COUNTS), expected, "{b:?}");
        }
    }

    #[test]
    fn rows_meet_by_adapter_and_key() {
        let (one, two) = (("one", "vulkan"), ("two", "vulkan"));
        let a = results(&[one, two], vec![row(0, "x", 100.0), row(1, "x", 100.0), row(1, "y", 100.0)]);
        let b = results(&[two, one], vec![row(0, "x", 200.0), row(1, "x", 50.0), row(1, "z", 100.0)]);
        let found = Comparison::new(&a, &b).unwrap();
        let rows: Vec<_> = found.rows.iter().map(|r| (r.adapter.as_str(), r.verdict, r.ratio)).collect();
        assert_eq!(rows, [("one", Verdict::Faster, Some(0.5)), ("two", Verdict::Slower, Some(2.0))]);
        assert_eq!(found.only_a, [("two".to_string(), "y M 64 f32 forward".to_string())]);
        assert_eq!(found.only_b, [("one".to_string(), "z M 64 f32 forward".to_string())]);
        assert_eq!((found.across, found.count(Verdict::Slower)), (false, 1));
        assert!((found.mean_ratio().unwrap() - 1.0).abs() < 1e-12);
    }

    #[test]
    fn adapters_meet_by_name_and_interface() {
        let rows = || vec![row(0, "x", 100.0)];
        let (vulkan, gl) = (("one", "vulkan"), ("one", "gl"));
        let across = Comparison::new(&results(&[vulkan], rows()), &results(&[gl], rows())).unwrap();
        assert!(across.across && across.count(Verdict::Same) == 1);
        let error = Comparison::new(&results(&[vulkan], rows()), &results(&[gl, gl], rows())).unwrap_err();
        assert!(error.to_string().contains("no adapter in common"), "{error}");
        // Two of one kind: each with its like, in order.
        let twins = results(&[vulkan, vulkan], vec![row(0, "x", 100.0), row(1, "x", 300.0)]);
        assert_eq!(Comparison::new(&twins, &twins).unwrap().count(Verdict::Same), 2);
    }

    #[test]
    fn what_has_no_time_is_said_and_what_is_other_work_refused() {
        let of = |row: Row| results(&[("one", "vulkan")], vec![row]);
        let good = of(row(0, "x", 100.0));
        let wrong = of(failed(row(0, "x", 100.0), Status::Wrong));
        let skipped = of(failed(row(0, "x", 100.0), Status::Skipped));
        for (a, b, verdict, reason) in [
            (&good, &wrong, Verdict::Wrong, "in the second file: the reason"),
            (&wrong, &good, Verdict::Wrong, "in the first file: the reason"),
            (&skipped, &wrong, Verdict::Wrong, "in the second file: the reason"),
            (&wrong, &skipped, Verdict::Wrong, "in the first file: the reason"),
            (&good, &skipped, Verdict::Skipped, "in the second file: the reason"),
        ] {
            let found = Comparison::new(a, b).unwrap();
            let row = &found.rows[0];
            assert_eq!((row.verdict, row.reason.as_deref(), row.ratio), (verdict, Some(reason), None));
            assert_eq!(found.mean_ratio(), None);
        }
        let other_clock = {
            let mut row = row(0, "x", 200.0);
            row.time.as_mut().unwrap().clock = Clock::Device;
            of(row)
        };
        assert_eq!(Comparison::new(&good, &other_clock).unwrap().count(Verdict::Ambiguous), 1);
        let cases = [
            (of(Row { flops: 1001, ..row(0, "x", 100.0) }), "not the same work"),
            (of(Row { bytes: 101, ..row(0, "x", 100.0) }), "not the same work"),
            (of(row(0, "y", 100.0)), "no row in common"),
            (of(Row { dtype: "f16".into(), ..row(0, "x", 100.0) }), "no row in common"),
            (results(&[("one", "vulkan")], vec![row(0, "x", 1.0); 2]), "is twice"),
        ];
        for (other, problem) in cases {
            let error = Comparison::new(&good, &other).unwrap_err().to_string();
            assert!(error.contains(problem), "{error}");
        }
    }
}

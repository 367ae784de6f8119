//! Two result files, row by row.

use super::stats::estimate;
use super::{Adapter, Results, Row, Sampled, Status};
use crate::{Error, Result};
use serde::Serialize;
use std::collections::HashMap;

/// The least difference that counts: a smaller one is as likely the machine's as the kernel's (where code and pages lie,
/// which clock rate the processor settled on).
const COUNTS: f64 = 0.03;

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
    fn of(time: &Sampled) -> Side {
        let ns = estimate(&time.rounds).map_or(time.median_ns, |estimate| estimate.time);
        Side { ns, interval_ns: time.interval_ns }
    }
}

/// A row that both files have.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Compared {
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
                Some(other) => comparison.rows.push(compare(adapter, key, row, other)?),
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

fn compare(adapter: String, key: String, a: &Row, b: &Row) -> Result<Compared> {
    let mut row = Compared {
        adapter,
        row: key,
        verdict: Verdict::Skipped,
        reason: None,
        ratio: None,
        a: a.time.as_ref().map(Side::of),
        b: b.time.as_ref().map(Side::of),
    };
    for (file, side) in [("first", a), ("second", b)] {
        let verdict = match side.status {
            Status::Ok => continue,
            Status::Wrong => Verdict::Wrong,
            Status::Skipped => Verdict::Skipped,
        };
        if row.reason.is_none() || verdict < row.verdict {
            row.verdict = verdict;
            let reason = side.reason.as_deref().unwrap_or("no reason given");
            row.reason = Some(format!("in the {file} file: {reason}"));
        }
    }
    let (Some(time_a), Some(time_b), Some(side_a), Some(side_b)) = (&a.time, &b.time, row.a, row.b) else {
        return Ok(row);
    };
    for (what, x, y) in [("floating-point operations", a.flops, b.flops), ("bytes", a.bytes, b.bytes)] {
        if x != y {
            return Err(Error::Input(format!(
                "the row {:?} is not the same work in both files: {x} and {y} {what}",
                row.row
            )));
        }
    }
    let ratio = side_b.ns / side_a.ns;
    row.ratio = Some(ratio);
    row.verdict = match time_a.clock == time_b.clock {
        true => verdict(&side_a, &side_b),
        false => Verdict::Ambiguous,
    };
    if time_a.clock != time_b.clock {
        row.reason = Some("one time is by the device's clock, the other by the host's".to_string());
    }
    Ok(row)
}

/// What two times of the same work, by clocks of one kind, say.
fn verdict(a: &Side, b: &Side) -> Verdict {
    let ratio = b.ns / a.ns;
    if ratio.max(1.0 / ratio) < 1.0 + COUNTS {
        Verdict::Same
    } else if b.interval_ns[0] > a.interval_ns[1] && ratio > 1.0 {
        Verdict::Slower
    } else if b.interval_ns[1] < a.interval_ns[0] && ratio < 1.0 {
        Verdict::Faster
    } else {
        Verdict::Ambiguous
    }
}

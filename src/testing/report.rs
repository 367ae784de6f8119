//! What a test of a kernel found.

use super::values::Kind;
use crate::Error;
use crate::verify::Mismatch;
use std::fmt;

/// What a [`KernelTest`](super::KernelTest) looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Check {
    /// The outputs are what the reference says, within their tolerances, and inputs are left as they were.
    Reference,
    /// Every element of an output is written. It holds a NaN of its own before.
    Written,
    /// Nothing is written before the start or beyond the end of a buffer, and what lies there does not show in the results.
    Guards,
    /// Running it again gives the same bits.
    Repeated,
    /// Workgroup memory is written before it is read: full of NaN before the kernel begins, it gives the same bits.
    WorkgroupMemory,
    /// The opposite order of workgroups, and of the invocations in each, in other numbers of workgroups a submission, gives
    /// the same bits.
    Order,
}

impl Check {
    /// All of them, in the order of a report.
    pub const ALL: [Check; 6] = [
        Check::Reference,
        Check::Written,
        Check::Guards,
        Check::Repeated,
        Check::WorkgroupMemory,
        Check::Order,
    ];
}

impl fmt::Display for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Check::Reference => "the results are what the reference says",
            Check::Written => "every element of the outputs is written",
            Check::Guards => "nothing is read or written outside of the buffers",
            Check::Repeated => "the same bits in every run",
            Check::WorkgroupMemory => "workgroup memory is written before it is read",
            Check::Order => "the same bits in another order of execution",
        })
    }
}

/// How a check ended.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outcome {
    /// Nothing was found.
    Passed,
    /// Something was; see [`Report::faults`].
    Failed,
    /// Nothing was found by a part of it; the rest was left out, for this reason.
    Partly(String),
    /// It was left out, for this reason.
    LeftOut(String),
    /// There is nothing to look at, for this reason.
    NotNeeded(String),
}

/// Something that is wrong with a kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// What found it.
    pub check: Check,
    /// The name of the buffer that shows it.
    pub buffer: String,
    /// What it is, in one line or several.
    pub text: String,
}

/// What a test found. Its `Display` is a table for people, and its `Debug` too.
#[derive(Clone)]
pub struct Report {
    entry: String,
    adapter: String,
    pub(super) outcomes: Vec<(Check, Outcome)>,
    pub(super) faults: Vec<Fault>,
    pub(super) outputs: Vec<(String, usize, f64)>,
    pub(super) printed: Vec<String>,
    pub(super) lost: u32,
}

/// The lines of [`Report::printed`] that its `Display` shows.
const SHOWN: usize = 40;

impl Report {
    pub(super) fn new(entry: &str, adapter: &str) -> Report {
        Report {
            entry: entry.to_string(),
            adapter: adapter.to_string(),
            outcomes: Vec::new(),
            faults: Vec::new(),
            outputs: Vec::new(),
            printed: Vec::new(),
            lost: 0,
        }
    }

    /// The adapter that it ran on, for people.
    pub fn adapter(&self) -> &str {
        &self.adapter
    }

    /// How each check ended.
    pub fn checks(&self) -> &[(Check, Outcome)] {
        &self.outcomes
    }

    /// The checks that were left out, whole or in part, and why. A test that wants all of them asserts that there is none.
    pub fn left_out(&self) -> impl Iterator<Item = (Check, &str)> {
        self.outcomes.iter().filter_map(|(check, outcome)| match outcome {
            Outcome::LeftOut(why) | Outcome::Partly(why) => Some((*check, why.as_str())),
            _ => None,
        })
    }

    /// What is wrong; empty in the report of a test that passed.
    pub fn faults(&self) -> &[Fault] {
        &self.faults
    }

    /// The largest error of an output as a share of what its tolerance allows; infinite where NaN is, 0 where nothing but
    /// the very value is allowed. `None` where nothing was compared under this name.
    pub fn worst(&self, output: &str) -> Option<f64> {
        self.outputs.iter().find(|(name, ..)| name == output).map(|(.., worst)| *worst)
    }

    /// What the kernel printed ([`KernelTest::printing`](super::KernelTest::printing)): the invocation's global id, and the
    /// message. Ordered by invocation; the messages of one are in the order in which it wrote them.
    pub fn printed(&self) -> &[String] {
        &self.printed
    }

    /// The messages that had no room any more.
    pub fn lost(&self) -> u32 {
        self.lost
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verdict = if self.faults.is_empty() { "right" } else { "WRONG" };
        write!(f, "kernel `{}` is {verdict}, on {}", self.entry, self.adapter)?;
        for (check, outcome) in &self.outcomes {
            let (word, why) = match outcome {
                Outcome::Passed => ("passed", None),
                Outcome::Failed => ("FAILED", None),
                Outcome::Partly(why) => ("in part", Some(why)),
                Outcome::LeftOut(why) => ("left out", Some(why)),
                Outcome::NotNeeded(why) => ("no need", Some(why)),
            };
            write!(f, "\n  {word:<9} {check}")?;
            if let Some(why) = why {
                write!(f, "\n            ({why})")?;
            }
            for fault in self.faults.iter().filter(|x| x.check == *check) {
                write!(f, "\n            {}: {}", fault.buffer, fault.text.replace('\n', "\n            "))?;
            }
            let compared = *check == Check::Reference && *outcome == Outcome::Passed;
            for (name, numbers, worst) in self.outputs.iter().filter(|_| compared) {
                let percent = 100.0 * worst;
                write!(
                    f,
                    "\n            {name}: {numbers} numbers, the worst error is {percent:.0} % of what is allowed"
                )?;
            }
        }
        if !self.printed.is_empty() || self.lost > 0 {
            write!(f, "\n  printed")?;
        }
        for line in self.printed.iter().take(SHOWN) {
            write!(f, "\n            {line}")?;
        }
        if self.printed.len() > SHOWN {
            write!(f, "\n            and {} lines more", self.printed.len() - SHOWN)?;
        }
        if self.lost > 0 {
            write!(f, "\n            and {} messages that had no room", self.lost)?;
        }
        Ok(())
    }
}

impl fmt::Debug for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Why a test failed. `Debug` prints the same as `Display`, so that `unwrap` and a test that returns it are readable.
#[non_exhaustive]
pub enum Failure {
    /// The test could not run: what was given does not fit the text, the text does not compile, or the device failed.
    Setup(Error),
    /// The kernel is wrong.
    Wrong(Box<Report>),
}

impl Failure {
    /// What was found, where the test ran.
    pub fn report(&self) -> Option<&Report> {
        match self {
            Failure::Setup(_) => None,
            Failure::Wrong(report) => Some(report),
        }
    }

    /// What is wrong with the kernel; empty where the test could not run.
    pub fn faults(&self) -> &[Fault] {
        self.report().map_or(&[], Report::faults)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Setup(error) => fmt::Display::fmt(error, f),
            Failure::Wrong(report) => fmt::Display::fmt(report, f),
        }
    }
}

impl fmt::Debug for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for Failure {}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Failure::Setup(error)
    }
}

/// The elements of a mismatch, one a line.
pub(super) fn mismatch(m: &Mismatch, kinds: &[Kind]) -> String {
    let float = kinds.contains(&Kind::F32);
    let mut out = format!("{} of {} elements are wrong", m.wrong, m.total);
    if m.wrong > m.worst.len() {
        out.push_str(&format!("; the {} worst:", m.worst.len()));
    } else {
        out.push(':');
    }
    for w in &m.worst {
        let got = if float { format!("{:?}", w.got as f32) } else { w.got.to_string() };
        let expected = if float { format!("{:?}", rounded(w.expected)) } else { w.expected.to_string() };
        out.push_str(&format!("\n  {:?} is {got}, expected {expected}", w.index));
        if float && w.bound > 0.0 {
            let error = (w.got - w.expected).abs();
            out.push_str(&format!(" (error {error:.1e}, allowed {:.1e})", w.bound));
        }
    }
    out
}

/// To nine digits: what there is of an f32.
fn rounded(x: f64) -> f64 {
    format!("{x:.8e}").parse().unwrap_or(x)
}

//! The result file: JSON of one object [`Results`]. `benches/README.md` describes it; [`SCHEMA`] counts its changes.

use super::stats;
use crate::{Error, Result};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;

/// The version of the file's schema.
pub const SCHEMA: &str = "wgformer-bench-1";

/// The most bytes of a result file.
pub const MAX_FILE_BYTES: u64 = 256 << 20;

/// All that a run of the benchmark found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Results {
    /// [`SCHEMA`].
    pub schema: String,
    /// Where and with what it ran.
    pub environment: Environment,
    /// The adapters, in the order in which they were measured.
    pub adapters: Vec<Adapter>,
    /// A row for each work on each adapter, in the order of the list of works.
    pub rows: Vec<Row>,
}

/// Where and with what a benchmark ran.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Environment {
    /// When it began, in UTC: `2026-01-31T12:00:00Z`.
    pub started: String,
    /// The version of this crate.
    pub version: String,
    /// The commit that it was built from, with `-dirty` behind it where files had changed; none outside of a repository.
    pub commit: Option<String>,
    /// The operating system and the processor's architecture.
    pub system: String,
    /// The threads that the host can run at a time.
    pub threads: usize,
    /// The arguments of the command line.
    pub arguments: Vec<String>,
    /// The seed of the inputs.
    pub seed: u64,
}

/// An adapter, with the driver and what was in force.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Adapter {
    /// Its name.
    pub name: String,
    /// `discrete`, `integrated` or `cpu`.
    pub class: String,
    /// The interface: `vulkan`, `metal`, `dx12` or `gl`.
    pub backend: String,
    /// The driver's name; may be empty.
    pub driver: String,
    /// The driver's version; may be empty.
    pub driver_version: String,
    /// The smallest and largest sub-group.
    pub subgroup_sizes: [u32; 2],
    /// The features that the kernels may use: `subgroups`, `f16`, `timestamps`.
    pub features: Vec<String>,
    /// The limits in force, by WebGPU's names.
    pub limits: BTreeMap<String, u64>,
    /// What the adapter was measured to do at best.
    pub ceilings: Ceilings,
    /// The fastest of all controls ([`Sampled::control_ns`]): how fast the machine was when least disturbed.
    pub control_ns: f64,
}

/// What an adapter does at best, by measurement; 0 where it was not measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Ceilings {
    /// GB/s (10^9 bytes, read and written) of a copy of large buffers.
    pub copy_gb_s: f64,
    /// GFLOP/s of independent fused multiply-adds in f32, each counted as two.
    pub fma_gflop_s: f64,
}

/// Which part of a computation a row times.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Pass {
    /// The results from the inputs.
    Forward,
    /// The gradients, from the inputs and saved results.
    Backward,
    /// A whole step of training: forward, backward, optimiser.
    Step,
}

impl Pass {
    /// As in the file.
    pub fn name(self) -> &'static str {
        match self {
            Pass::Forward => "forward",
            Pass::Backward => "backward",
            Pass::Step => "step",
        }
    }
}

/// Sizes in words: `B 8 H 8 S 128`.
pub(super) fn sizes(shape: &BTreeMap<String, u64>) -> String {
    let sizes: Vec<String> = shape.iter().map(|(name, n)| format!("{name} {n}")).collect();
    sizes.join(" ")
}

/// How a row ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// The result is right; the time counts.
    Ok,
    /// The result is wrong: `reason` says where. There is no time.
    Wrong,
    /// It cannot run here, or was left out: `reason` says why. There is no time.
    Skipped,
}

/// Whose clock timed a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Clock {
    /// Timestamps that the device wrote around a pass.
    Device,
    /// The host's, from the submission to its end.
    Host,
}

/// One work on one adapter.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// Index into [`Results::adapters`].
    pub adapter: usize,
    /// What the work belongs to: `matmul`, `attention`, `model`, ...
    pub family: String,
    /// What is timed, without its sizes: `matmul/nn`, `attention/causal`, `model/small`, ...
    pub name: String,
    /// Its sizes, by name.
    pub shape: BTreeMap<String, u64>,
    /// The element type: `f32` or `f16`.
    pub dtype: String,
    /// Which part is timed.
    pub pass: Pass,
    /// How it ended.
    pub status: Status,
    /// Why it is wrong or skipped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The kernels that ran.
    pub kernels: Vec<KernelUse>,
    /// How the result was compared with the reference.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verified: Option<Verified>,
    /// Floating-point operations, by formula; a multiply-add is two.
    pub flops: u64,
    /// Bytes read and written if each is touched once, by formula.
    pub bytes: u64,
    /// Tokens, for what is counted in tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens: Option<u64>,
    /// The times.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time: Option<Sampled>,
}

/// A kernel of a row.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct KernelUse {
    /// Family, entry and variant.
    pub name: String,
    /// How often it is dispatched in one repetition.
    pub dispatches: u64,
    /// FNV-1a (64 bits, hexadecimal) of its whole WGSL text, constants included.
    pub wgsl: String,
    /// The constants appended to the shader's text.
    pub constants: BTreeMap<String, String>,
}

/// A comparison with the reference.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Verified {
    /// Elements that were compared.
    pub elements: u64,
    /// Elements that there are.
    pub of: u64,
    /// The largest error as a share of what rounding may cause.
    pub worst: f64,
}

/// The times of a row, in nanoseconds for one repetition.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sampled {
    /// Whose clock it was.
    pub clock: Clock,
    /// The median of all samples.
    pub median_ns: f64,
    /// The least.
    pub min_ns: f64,
    /// The median of the samples' distances from the median.
    pub mad_ns: f64,
    /// The interval that holds the true time of an undisturbed repetition with 95 % confidence.
    pub interval_ns: [f64; 2],
    /// From making the pipelines to the end of the first run, less a usual run.
    pub compile_ns: f64,
    /// Every sample, by the rounds of the run that they were taken in.
    pub rounds: Vec<Vec<f64>>,
    /// Beside each round: what one and the same work, the control, took just before it. It tells when the machine did
    /// something else, or changed its clock rate.
    pub control_ns: Vec<f64>,
    /// The repetitions in one sample.
    pub repetitions: u64,
    /// The sets of inputs that were used in turn.
    pub inputs_in_turn: u64,
}

impl Sampled {
    /// What rounds of samples say, in nanoseconds; `quiet` is the fastest control of the run. None without samples. They
    /// are taken to be of one repetition and one set of inputs, compiled in no time.
    pub fn new(clock: Clock, rounds: Vec<Vec<f64>>, control_ns: Vec<f64>, quiet: f64) -> Option<Sampled> {
        let all = rounds.concat();
        Some(Sampled {
            clock,
            median_ns: stats::median(&all)?,
            min_ns: all.iter().copied().min_by(f64::total_cmp)?,
            mad_ns: stats::mad(&all)?,
            interval_ns: stats::estimate(&rounds, &control_ns, quiet)?.interval,
            compile_ns: 0.0,
            rounds,
            control_ns,
            repetitions: 1,
            inputs_in_turn: 1,
        })
    }
}

impl Row {
    /// GFLOP/s by the median.
    pub fn gflop_s(&self) -> Option<f64> {
        self.time.as_ref().filter(|_| self.flops > 0).map(|t| self.flops as f64 / t.median_ns)
    }

    /// GB/s (10^9 bytes) by the median.
    pub fn gb_s(&self) -> Option<f64> {
        self.time.as_ref().filter(|_| self.bytes > 0).map(|t| self.bytes as f64 / t.median_ns)
    }

    /// Tokens a second by the median.
    pub fn tokens_s(&self) -> Option<f64> {
        self.time.as_ref().and_then(|t| Some(self.tokens? as f64 * 1e9 / t.median_ns))
    }

    /// The speed as a share of what the adapter could do at best for this work: the time that its operations or its
    /// bytes need at the ceilings, whichever is more, by the median.
    pub fn share(&self, ceilings: &Ceilings) -> Option<f64> {
        let time = self.time.as_ref()?.median_ns;
        let at = |amount: u64, ceiling: f64| if ceiling > 0.0 { amount as f64 / ceiling } else { 0.0 };
        let least = at(self.flops, ceilings.fma_gflop_s).max(at(self.bytes, ceilings.copy_gb_s));
        (least > 0.0).then_some(least / time)
    }

    /// The shape in words: `B 8 H 8 S 128`.
    pub fn sizes(&self) -> String {
        sizes(&self.shape)
    }

    /// What makes two rows the same work: name, shape, type and pass.
    pub fn key(&self) -> String {
        format!("{} {} {} {}", self.name, self.sizes(), self.dtype, self.pass.name())
    }
}

impl Results {
    /// Reads a result file.
    ///
    /// # Errors
    /// When the file cannot be read, is too large, cut short, of another schema, or contradicts itself.
    pub fn read(path: &Path) -> Result<Results> {
        let bytes = crate::fs::read_bounded(path, MAX_FILE_BYTES)?;
        Self::parse(&bytes).map_err(|problem| Error::file(path, problem))
    }

    fn parse(bytes: &[u8]) -> std::result::Result<Results, String> {
        #[derive(Deserialize)]
        struct Head {
            schema: String,
        }
        let wrong = |e: serde_json::Error| match e.is_eof() {
            true => "is cut short; run the benchmark again".to_string(),
            false => format!("is no result of `wgformer bench run -o json`: {e}"),
        };
        let head: Head = serde_json::from_slice(bytes).map_err(wrong)?;
        if head.schema != SCHEMA {
            return Err(format!(
                "has the schema {:?}, this program reads {SCHEMA:?}; run the benchmark again with this version",
                head.schema
            ));
        }
        let results: Results = serde_json::from_slice(bytes).map_err(wrong)?;
        if let Some(row) = results.rows.iter().find(|r| r.adapter >= results.adapters.len()) {
            return Err(format!("row {:?} names adapter {}, which is not there", row.key(), row.adapter));
        }
        if let Some(row) = results.rows.iter().find(|r| (r.status == Status::Ok) != r.time.is_some()) {
            return Err(format!("row {:?}: only a row with the status ok has a time", row.key()));
        }
        let positive = |x: f64| x.is_finite() && x > 0.0;
        let valid = |t: &Sampled| {
            let [low, high] = t.interval_ns;
            positive(t.median_ns)
                && positive(t.min_ns)
                && positive(low)
                && positive(high)
                && low <= high
                && t.rounds.iter().flatten().copied().all(positive)
        };
        if let Some(row) = results.rows.iter().find(|r| r.time.as_ref().is_some_and(|t| !valid(t))) {
            return Err(format!("row {:?}: its times are no times", row.key()));
        }
        Ok(results)
    }
}

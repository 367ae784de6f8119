//! `metrics.jsonl`: the numbers of a training.

use super::METRICS_FILE;
use super::files::Files;
use crate::{Error, Result};
use serde::{Deserialize, Serialize};

/// The most bytes of the file.
const MAX_FILE_BYTES: u64 = 64 << 20;

/// The numbers of a few steps of a training: one line of `metrics.jsonl`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Metrics {
    /// The last of these steps, from 1.
    pub step: u64,
    /// Mean loss of these steps, by label-smoothed targets.
    pub loss: f64,
    /// Share of targets predicted right in these steps.
    pub accuracy: f64,
    /// Global norm of the gradients of the last of these steps, before clipping.
    pub gradient_norm: f64,
    /// The learning rate of the last of these steps.
    pub learning_rate: f64,
    /// Source and target tokens a second, without padding, and without the time of compilation and validation.
    pub tokens_per_second: f64,
    /// A validation after the step.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub validation: Option<Validation>,
}

/// What a validation found.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Validation {
    /// Mean loss.
    pub loss: f64,
    /// Share of targets predicted right, given the right symbols before.
    pub accuracy: f64,
    /// BLEU of greedy decoding, from 0 to 100.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bleu: Option<f64>,
    /// Share of sentences that greedy decoding got exactly right.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exact_match: Option<f64>,
}

impl Metrics {
    /// Reads the lines of the file up to a step. What is no such line ends it: the file is for people and plots.
    pub fn read(files: &dyn Files, step: u64) -> Vec<Self> {
        let Ok(bytes) = files.read(METRICS_FILE, MAX_FILE_BYTES) else { return Vec::new() };
        let lines =
            bytes.split(|&b| b == b'\n').map_while(|line| serde_json::from_slice::<Metrics>(line).ok());
        lines.take_while(|metrics| metrics.step <= step).collect()
    }

    /// The line of the file, without its end.
    ///
    /// # Errors
    /// Never for numbers that are finite.
    pub fn to_json(&self) -> Result<String> {
        serde_json::to_string(self).map_err(|error| Error::Internal(error.to_string()))
    }
}

//! The benchmark (feature `bench`): what is timed, how, and the file that holds what was found.

use crate::Result;
use std::path::Path;

mod compare;
mod developer;
mod list;
mod measure;
mod result;
pub mod stats;
mod tune;
mod work;

pub use compare::{Compared, Comparison, Pair, Side, Verdict};
pub use developer::Prepared;
pub use list::{Extent, Sizes, works};
pub use measure::{Change, Progress, Settings, adapter, measure, row};
pub use result::{
    Adapter, Ceilings, Clock, Environment, KernelUse, MAX_FILE_BYTES, Pass, Results, Row, SCHEMA, Sampled,
    Status, Verified,
};

pub use tune::{TuneProgress, TuneRow, TuneSettings, Tuned, tune};
pub use work::Work;

/// Writes what was made of results, such as a report: a reader finds the whole old file or the whole new one.
///
/// # Errors
/// When the file cannot be written.
pub fn write_file(path: &Path, bytes: &[u8]) -> Result<()> {
    crate::fs::write_atomically(path, bytes)
}

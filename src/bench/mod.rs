//! The benchmark (feature `bench`): what is timed, how, and the file that holds what was found.

mod compare;
mod result;
pub mod stats;

pub use compare::{Compared, Comparison, Pair, Side, Verdict};
pub use result::{
    Adapter, Ceilings, Clock, Environment, KernelUse, MAX_FILE_BYTES, Pass, Results, Row, SCHEMA, Sampled,
    Status, Verified,
};

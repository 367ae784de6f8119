//! The harness that the kernels of this crate are tested with.

mod case;
mod instrument;

pub use case::{Build, Case, CaseReport, Change, Finding, Runner, profiles};
pub use instrument::{Shader, instrument};

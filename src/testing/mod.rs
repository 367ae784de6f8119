//! The harness that the kernels of this crate are tested with.

mod case;
mod instrument;
mod profiles;

pub use case::{Build, Case, CaseReport, Change, Finding, Runner};
pub use instrument::{Shader, instrument};
pub use profiles::{known_profiles, not_runnable, profiles};

//! The harness that the kernels of this crate are tested with, and one for anybody's: [`KernelTest`].

mod case;
mod device;
mod instrument;
mod kernel_test;
mod layout;
mod printf;
mod profiles;
mod report;
mod run;
mod text;
mod tolerance;
mod values;

pub use case::{Build, Case, CaseReport, Change, Finding, Runner};
pub use device::device;
pub use instrument::{Shader, instrument};
pub use kernel_test::{Given, KernelTest};
pub use printf::without_printf;
pub use profiles::{known_profiles, not_runnable, profiles};
pub use report::{Check, Failure, Fault, Outcome, Report};
pub use tolerance::{Expected, Tolerance};
pub use values::{Numbers, Values};

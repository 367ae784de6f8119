//! The cases, one file an op, named like it.

pub mod elementwise;
pub mod layout;

use crate::harness::Case;

/// Every op with its cases.
pub fn all() -> Vec<(&'static str, Vec<Case>)> {
    vec![("elementwise", elementwise::cases()), ("layout", layout::cases())]
}

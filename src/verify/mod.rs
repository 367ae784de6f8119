//! Follows a plan step by step, each kernel by itself over bytes on the host, and compares every node with its f64
//! reference on the very inputs that the device had: so the first dispatch that goes wrong has a name.
//!
//! Around each buffer lie guard zones and what a kernel is to write is poisoned before (see [`crate::gpu::Solo`]): a
//! write outside and an element left unwritten are found as well.

mod replay;
mod tolerance;

pub use replay::{Order, Prepared, Replay, Trouble};
pub use tolerance::{Mismatch, compare, node_bounds, reduction_bound};

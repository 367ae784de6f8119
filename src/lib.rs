//! wgformer: the encoder-decoder Transformer as WGSL compute kernels, for any GPU that `wgpu` reaches.

#![warn(missing_docs)]
#![deny(unsafe_code)]

#[cfg(feature = "bench")]
pub mod bench;
pub mod check;
mod error;
mod fs;
#[cfg(feature = "io")]
pub mod golden;
pub mod gpu;
pub mod graph;
pub mod infer;
pub mod kernel;
#[cfg(feature = "io")]
pub mod model;
pub mod nn;
pub mod ops;
pub mod plan;
mod profile;
pub mod rng;
mod shape;
mod tensor;
#[cfg(feature = "testing")]
pub mod testing;
pub mod text;
pub mod train;
pub mod verify;

pub use error::{Error, ErrorKind, Result};
pub use profile::{DeviceClass, DeviceProfile, Limit};
pub use shape::{DType, Shape, TensorType};
pub use tensor::{HostTensor, Tensor64};
/// The wgpu that this crate is built on: a host that shares its device needs the same one.
pub use wgpu;

/// The examples of the README, compiled with the documentation's.
#[cfg(all(doctest, feature = "io", feature = "testing"))]
#[doc = include_str!("../README.md")]
struct Readme;

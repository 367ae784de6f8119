//! wgformer: the encoder-decoder Transformer as WGSL compute kernels, for any GPU that `wgpu` reaches.

#![warn(missing_docs)]
#![deny(unsafe_code)]

#[cfg(feature = "bench")]
pub mod bench;
mod error;
#[cfg(any(feature = "bench", feature = "text"))]
mod fs;
#[cfg(feature = "import")]
pub mod golden;
pub mod gpu;
pub mod graph;
pub mod ids;
pub mod infer;
pub mod kernel;
pub mod kernels;
#[cfg(feature = "import")]
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
#[cfg(feature = "text")]
pub mod text;
pub mod train;
pub mod verify;

pub use error::{Error, ErrorKind, Result};
pub use profile::{DeviceClass, DeviceProfile};
pub use shape::{DType, Shape, TensorType};
pub use tensor::{HostTensor, Tensor64};

/// The examples of the README, compiled with the documentation's.
#[cfg(all(doctest, feature = "import", feature = "testing"))]
#[doc = include_str!("../README.md")]
struct Readme;

//! wgformer: the encoder-decoder Transformer as WGSL compute kernels, for any GPU that `wgpu` reaches.

#![warn(missing_docs)]
#![deny(unsafe_code)]

mod error;
#[cfg(any(feature = "io", feature = "text"))]
mod fs;
pub mod gpu;
pub mod graph;
pub mod kernel;
pub mod ops;
pub mod plan;
mod profile;
pub mod rng;
mod shape;
mod tensor;
#[cfg(feature = "text")]
pub mod text;

pub use error::{Error, ErrorKind, Result};
pub use profile::{DeviceClass, DeviceProfile};
pub use shape::{DType, Shape, TensorType};
pub use tensor::{HostTensor, Tensor64};

//! wgformer: the encoder-decoder Transformer as WGSL compute kernels, for any GPU that `wgpu` reaches.

#![warn(missing_docs)]
#![deny(unsafe_code)]

mod error;

pub use error::{Error, ErrorKind, Result};

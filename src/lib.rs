//! wgformer: the encoder-decoder Transformer as WGSL compute kernels, for any GPU that `wgpu` reaches, with a host side
//! that a program embeds: on a device of its own or on the program's.
//!
//! ```
//! use wgformer::kernels::{Computation, Softmax};
//!
//! fn main() -> wgformer::Result<()> {
//!     let gpu = wgformer::gpu::request(&Default::default())?;
//!     let mut softmax = Softmax { rows: 2, width: 3, log: false }.forward(&gpu)?;
//!     let out = softmax.run(&[("x", &[0.0f32, 0.0, 0.0, 1.0, 1.0, 90.0])])?;
//!     println!("on {}: {:?}", gpu.name(), out[0]);
//!     assert!((out[0][0] - 1.0 / 3.0).abs() < 1e-6);
//!     Ok(())
//! }
//! ```
//!
//! # Ways in
//!
//! From the most that is done for a program to the least:
//!
//! - **Text**, with the features `text` and `import`: `model::Translator` translates sentences with a model's folder.
//! - **A model as a value**: [`Transformer`] takes ids and gives logits, training steps and translations; parameters go in
//!   and out by name, as slices. No type of wgpu is needed. Below it are [`train::Trainer`] and [`infer::Decoder`], which
//!   do not wait for the device where a program does not want to.
//! - **Kernels on their own**: [`kernels`] has attention, matmul, LayerNorm and the others as functions of named arrays,
//!   forward and backward.
//! - **A graph**: [`graph::Graph`] takes the ops of [`ops`] and layers of [`nn`], and appends gradients;
//!   [`plan::Plan::new`] lowers it for a device and [`gpu::Gpu::executor`] runs it. A program's own op is an
//!   implementation of [`graph::Op`] with WGSL of its own, like any here: gradients, planner, interpreter
//!   ([`graph::Interpreter`]) and verification ([`verify`]) take it as one of theirs. `examples/custom_op.rs` has one.
//! - **A device of the program's own**: [`gpu::Gpu::new`] takes a device and a queue and leaves error handlers and callbacks
//!   to the program. What runs a plan is a [`gpu::Executor`]; [`kernels::Prepared::executor`] gives that of a kernel.
//!
//! # Kernels of one's own
//!
//! A [`kernel::Kernel`] is WGSL text with one entry point. Its storage buffers are bindings 0, 1, .. of group 0 in the order
//! of [`kernel::Kernel::bindings`], `read` or `read_write`; its parameters, where it has any, are one uniform struct of
//! 4-byte fields at group 1, binding 0. Kernels run without bounds checks and must not read or write outside of their
//! buffers; [`gpu::Gpu::checked`] gives the same device with checks, to find the one that does. [`graph::Op::reference`] is
//! what the interpreter runs, and what [`gpu::Executor::verify`] compares with, within [`graph::Op::rounding`].
//!
//! # Features
//!
//! Without features there are graph, kernels, planner, training and decoding of ids, on a device that the program brings.
//! `vulkan`, `metal`, `dx12` and `gles` are the interfaces through which [`gpu::request`] finds an adapter by itself.
//! `text` adds tokenizers, vocabularies, corpora and BLEU; `import` model folders and safetensors; `testing` a harness for
//! compute shaders; `bench` the benchmark. The defaults are those of the program: `cli`, `plots`, `shipped-model`.
//!
//! # Versions
//!
//! Types of wgpu 30 are a part of the interface of [`gpu`], and of nothing else: another major version of wgpu is another
//! version of this crate. The oldest Rust is 1.88.
//!
//! # Threads, errors, state
//!
//! [`gpu::Gpu`] and [`gpu::Memory`] are cheap to clone and may be used from several threads. What runs something
//! ([`gpu::Executor`], [`kernels::Prepared`], [`Transformer`]) is used by one thread at a time, whichever it is; executors
//! of one memory take turns, since they share what holds intermediate values. Calls that wait say so; `run`, `step` and
//! the like only submit.
//!
//! Everything that can fail gives an [`Error`], which says what went wrong, where, and what to do; [`ErrorKind`] is for
//! programs. The library does not panic, print, read the environment (but for the device that tests share), or keep
//! global state.

#![warn(missing_docs)]
#![deny(unsafe_code)]

#[cfg(feature = "bench")]
pub mod bench;
pub mod check;
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
mod transformer;
pub mod tuning;
pub mod verify;

pub use error::{Error, ErrorKind, Result};
pub use profile::{DeviceClass, DeviceProfile, Limit};
pub use shape::{DType, Shape, TensorType};
pub use tensor::{HostTensor, Tensor64};
pub use transformer::Transformer;
/// The wgpu that this crate is built on: a host that shares its device needs the same one.
pub use wgpu;

/// The examples of the README, compiled with the documentation's.
#[cfg(all(doctest, feature = "import", feature = "testing"))]
#[doc = include_str!("../README.md")]
struct Readme;

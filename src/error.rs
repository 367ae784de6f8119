//! The one error type of the library. An error says what went wrong, where, and what to do.

use std::path::{Path, PathBuf};
use std::time::Duration;

/// The result of everything in this crate that can fail.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What kind of thing went wrong; stable, for programs that decide by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// Shapes or types of tensors do not fit together.
    Shape,
    /// A setting is impossible, alone or together with another.
    Config,
    /// Something is larger than the device allows.
    Limit,
    /// The device or adapter lacks a feature.
    Unsupported,
    /// There is no adapter, or none that fits the request.
    Adapter,
    /// The device or its driver reported an error.
    Device,
    /// The device has no memory left: take less, or free some, and try again.
    OutOfMemory,
    /// The device did not answer in time: wait longer, or take it for lost.
    Timeout,
    /// The device is gone: make a new one, and go on from what was saved.
    DeviceLost,
    /// A file is missing, cannot be read or written, or holds something else than it should.
    File,
    /// Text or ids that were given cannot be used.
    Input,
    /// A broken promise inside this crate: please report it.
    Internal,
}

/// Everything that can go wrong.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A tensor has another shape or type than an operation needs.
    #[error("{place}: {tensor}: expected {expected}, got {got}")]
    Shape {
        /// The operation, with its scope where there is one.
        place: String,
        /// The tensor.
        tensor: String,
        /// What would have been right.
        expected: String,
        /// What was given.
        got: String,
    },
    /// A setting is impossible.
    #[error("{setting}: {problem}")]
    Config {
        /// The setting's name.
        setting: String,
        /// What is wrong, and what to do.
        problem: String,
    },
    /// A tensor or dispatch is larger than the device allows.
    #[error("{tensor} needs {needed} of {limit}, but this device allows {allowed}")]
    Limit {
        /// The name of the limit in WebGPU's terms.
        limit: &'static str,
        /// What was needed.
        needed: u64,
        /// What is allowed.
        allowed: u64,
        /// The tensor, kernel or buffer.
        tensor: String,
    },
    /// The device lacks something.
    #[error("{what} needs {needs}, which this device does not have{remedy}")]
    Unsupported {
        /// The kernel or operation.
        what: String,
        /// What it needs.
        needs: String,
        /// What to do, with punctuation in front, or nothing.
        remedy: String,
    },
    /// No adapter fits the request.
    #[error("{0}")]
    Adapter(String),
    /// The device or its driver reported an error.
    #[error("GPU: {0}")]
    Device(String),
    /// The device has no memory left. It still works.
    #[error(
        "GPU: out of memory for {what}{}: take a smaller batch or model, or free memory of the device",
        match bytes { 0 => String::new(), n => format!(" ({n} bytes)") }
    )]
    OutOfMemory {
        /// What was to be made.
        what: String,
        /// Its size; 0 where the device does not say.
        bytes: u64,
    },
    /// The device did not answer in time: see [`Gpu::set_timeout`](crate::gpu::Gpu::set_timeout).
    #[error(
        "GPU: {what}: no answer within {after:?}: it hangs, or has more to do; wait longer, or make a new device"
    )]
    Timeout {
        /// What was waited for.
        what: String,
        /// How long.
        after: Duration,
    },
    /// The device is gone, and all that was on it.
    #[error("GPU: the device was lost ({0}): make a new one")]
    DeviceLost(String),
    /// A file cannot be used.
    #[error("{}: {problem}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong, and what to do.
        problem: String,
    },
    /// Text or ids that were given cannot be used.
    #[error("{0}")]
    Input(String),
    /// A broken promise inside this crate.
    #[error("internal error: {0} (please report this)")]
    Internal(String),
}

impl Error {
    /// The kind of this error.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Error::Shape { .. } => ErrorKind::Shape,
            Error::Config { .. } => ErrorKind::Config,
            Error::Limit { .. } => ErrorKind::Limit,
            Error::Unsupported { .. } => ErrorKind::Unsupported,
            Error::Adapter(_) => ErrorKind::Adapter,
            Error::Device(_) => ErrorKind::Device,
            Error::OutOfMemory { .. } => ErrorKind::OutOfMemory,
            Error::Timeout { .. } => ErrorKind::Timeout,
            Error::DeviceLost(_) => ErrorKind::DeviceLost,
            Error::File { .. } => ErrorKind::File,
            Error::Input(_) => ErrorKind::Input,
            Error::Internal(_) => ErrorKind::Internal,
        }
    }

    /// A shape error in `place`.
    pub fn shape(
        place: impl Into<String>,
        tensor: impl Into<String>,
        expected: impl ToString,
        got: impl ToString,
    ) -> Self {
        Error::Shape {
            place: place.into(),
            tensor: tensor.into(),
            expected: expected.to_string(),
            got: got.to_string(),
        }
    }

    /// An impossible setting.
    pub fn config(setting: impl Into<String>, problem: impl Into<String>) -> Self {
        Error::Config { setting: setting.into(), problem: problem.into() }
    }

    /// A file that cannot be used.
    pub fn file(path: impl AsRef<Path>, problem: impl ToString) -> Self {
        Error::File { path: path.as_ref().to_path_buf(), problem: problem.to_string() }
    }
}

//! The ops, one file each: bindings, parameters, shape rule, lowering, gradient, reference. The same name stands on the
//! file here, on the shader and on the cases of its tests.

pub mod elementwise;
pub mod layout;
pub mod random;

/// A family of kernels: one file under `shaders/`.
#[derive(Clone, Copy, Debug)]
pub struct Family {
    /// Its name: also that of the file.
    pub name: &'static str,
    /// The text of the file.
    pub source: &'static str,
    /// Its entry points.
    pub entries: &'static [&'static str],
}

/// The one list of kernels.
pub const FAMILIES: &[Family] =
    &[Family { name: "elementwise", source: elementwise::SOURCE, entries: &["unary", "binary"] }];

/// Text shared by shaders: functions only, no bindings, no entry points.
pub mod lib_wgsl {
    /// Activations and their derivatives.
    pub const ACTIVATION: &str = include_str!("../../shaders/lib/activation.wgsl");
    /// Counter-based random numbers and dropout.
    pub const RANDOM: &str = include_str!("../../shaders/lib/random.wgsl");
}

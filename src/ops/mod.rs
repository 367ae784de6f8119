//! The ops, one file each: bindings, parameters, shape rule, lowering, gradient, reference. The same name stands on the
//! file here, on the shader and on the cases of its tests.

pub mod argmax;
pub mod attention;
pub mod cache_write;
pub mod column_sum;
pub mod cross_entropy;
pub mod dropout;
pub mod elementwise;
pub mod embedding;
mod excerpt;
pub mod fma;
pub mod layer_norm;
pub mod layout;
pub mod matmul;
pub mod optimizer;
mod params;
pub mod random;
mod rounding;
mod rows;
pub mod softmax;

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
pub const FAMILIES: &[Family] = &[
    Family { name: "attention", source: attention::SOURCE, entries: attention::ENTRIES },
    Family { name: "attention_whole", source: attention::SOURCE_WHOLE, entries: &["backward_whole"] },
    Family { name: "attention_lanes", source: attention::SOURCE_LANES, entries: attention::ENTRIES_LANES },
    Family { name: "elementwise", source: elementwise::SOURCE, entries: &["unary", "binary"] },
    Family { name: "matmul", source: matmul::SOURCE, entries: &["reduce", "zero"] },
    Family { name: "matmul_subgroup", source: matmul::SUBGROUP, entries: &["subgroup"] },
    Family { name: "matmul_pack", source: matmul::PACK, entries: &["pack"] },
    Family { name: "matmul_plain", source: matmul::PLAIN, entries: &["plain"] },
    Family { name: "matmul_tile", source: matmul::TILE, entries: &["tile"] },
    Family { name: "matmul_vector", source: matmul::VECTOR, entries: &["vector"] },
    Family { name: "column_sum", source: column_sum::SOURCE, entries: &["forward"] },
    Family { name: "fma", source: fma::SOURCE, entries: &["forward"] },
    Family { name: "dropout", source: dropout::SOURCE, entries: &["forward"] },
    Family {
        name: "layer_norm",
        source: layer_norm::SOURCE,
        entries: &["forward", "backward", "backward_params", "reduce_params"],
    },
    Family { name: "softmax", source: softmax::SOURCE, entries: &["forward", "backward"] },
    Family { name: "argmax", source: argmax::SOURCE, entries: &["argmax"] },
    Family { name: "cache_write", source: cache_write::SOURCE, entries: &["cache_write"] },
    Family {
        name: "cross_entropy",
        source: cross_entropy::SOURCE,
        entries: &["row_loss", "row_loss_gradient", "reduce", "count_targets"],
    },
    Family {
        name: "embedding",
        source: embedding::SOURCE,
        entries: &["forward", "backward_table", "backward_positions"],
    },
    Family { name: "optimizer", source: optimizer::SOURCE, entries: &["norm_partial", "norm_final", "adam"] },
];

/// Text shared by shaders: functions only, no bindings, no entry points.
pub mod lib_wgsl {
    /// Activations and their derivatives.
    pub const ACTIVATION: &str = include_str!("../../shaders/lib/activation.wgsl");
    /// An element of a row: four floats.
    pub const ELEM_VEC4: &str = include_str!("../../shaders/lib/elem_vec4.wgsl");
    /// An element of a row: one float.
    pub const ELEM_F32: &str = include_str!("../../shaders/lib/elem_f32.wgsl");
    /// Dropout of an element of four floats.
    pub const DROPOUT_VEC4: &str = include_str!("../../shaders/lib/dropout_vec4.wgsl");
    /// Dropout of an element of one float.
    pub const DROPOUT_F32: &str = include_str!("../../shaders/lib/dropout_f32.wgsl");
    /// Reductions over a row that one invocation works on.
    pub const ROWS_INVOCATION: &str = include_str!("../../shaders/lib/rows_invocation.wgsl");
    /// Reductions over a row that one sub-group works on.
    pub const ROWS_SUBGROUP: &str = include_str!("../../shaders/lib/rows_subgroup.wgsl");
    /// Reductions over a row that one workgroup works on.
    pub const ROWS_WORKGROUP: &str = include_str!("../../shaders/lib/rows_workgroup.wgsl");
    /// Counter-based random numbers and dropout.
    pub const RANDOM: &str = include_str!("../../shaders/lib/random.wgsl");
}

//! The cases, one file an op, named like it.

pub mod argmax;
pub mod attention;
pub mod cache_write;
pub mod column_sum;
pub mod cross_entropy;
pub mod dropout;
pub mod elementwise;
pub mod embedding;
pub mod fma;
pub mod layer_norm;
pub mod layout;
pub mod matmul;
pub mod optimizer;
pub mod softmax;

use wgformer::testing::Case;

/// Every op with its cases.
pub fn all() -> Vec<(&'static str, Vec<Case>)> {
    vec![
        ("attention", attention::cases()),
        ("elementwise", elementwise::cases()),
        ("layout", layout::cases()),
        ("matmul", matmul::cases()),
        ("column_sum", column_sum::cases()),
        ("dropout", dropout::cases()),
        ("layer_norm", layer_norm::cases()),
        ("softmax", softmax::cases()),
        ("argmax", argmax::cases()),
        ("cache_write", cache_write::cases()),
        ("cross_entropy", cross_entropy::cases()),
        ("fma", fma::cases()),
        ("embedding", embedding::cases()),
        ("optimizer", optimizer::cases()),
    ]
}

//! How far results in f32 may be from the exact ones: what [`Op::rounding`](crate::graph::Op::rounding) is written with.
//!
//! All is to first order and in units of eps = 2^-23, an error of 1 being eps: so the rounding of a single operation is
//! its result (WGSL rounds either way). The numbers are those of WGSL's table of accuracies (section 15.7.4); a unit in the
//! last place of x is at most eps |x|. The formulas of all ops are at the head of `src/verify/tolerance.rs`.

use crate::Tensor64;
use crate::graph::Op;

/// 2^-23.
pub(super) const EPS: f64 = f32::EPSILON as f64;

/// eps times it is the smallest normal number: a device may take what is smaller for zero.
pub(super) const TINY: f64 = f32::MIN_POSITIVE as f64 / EPS;

/// A quotient's error, relative to it.
pub(super) const DIVIDE: f64 = 2.5;

/// That of `inverseSqrt`.
pub(super) const INVERSE_SQRT: f64 = 2.0;

/// That of `sqrt`, which may be a quotient by `inverseSqrt`.
pub(super) const SQRT: f64 = INVERSE_SQRT + DIVIDE;

/// The error of `tanh`, absolute: 1e-5.
pub(super) const TANH: f64 = 1e-5 / EPS;

/// The magnitude of an operand, and what is lost where a device takes it for zero.
pub(super) fn size(x: f64) -> f64 {
    x.abs() + TINY
}

/// An op's reference on the magnitudes of these of its inputs: the magnitudes of the terms of each element, added up,
/// where no factor of its own is negative.
pub(super) fn of_sizes(op: &dyn Op, inputs: &[&Tensor64], places: &[usize]) -> Vec<Tensor64> {
    let sizes = |t: &Tensor64| Tensor64::from_fn(t.shape.clone(), |i| size(t.data[i]));
    let sizes: Vec<Tensor64> = places.iter().map(|&i| sizes(inputs[i])).collect();
    let mut inputs = inputs.to_vec();
    places.iter().zip(&sizes).for_each(|(&i, t)| inputs[i] = t);
    op.reference(&inputs)
}

/// The rounding of one operation whose result has this magnitude.
pub(super) fn once(magnitude: f64) -> f64 {
    magnitude + TINY
}

/// A sum of products whose magnitudes add up to `magnitude`, and which is `total`.
///
/// Each addition rounds the partial sum by half a unit, in the worst case always to one side, as it may where the terms are
/// all one number. The partial sum of i terms is about i / terms of the total, and these add up to terms / 2 of it; what is
/// left wanders like the square root of i where the terms have no order, and adds up to sqrt(terms) of the magnitude. That
/// also covers the rounding of the products, and each of four terms rounded by a whole unit.
pub(super) fn sum(terms: usize, magnitude: f64, total: f64) -> f64 {
    let n = terms as f64;
    n.sqrt() * magnitude + n / 4.0 * total.abs() + n * TINY
}

/// The error of `exp(x)` or `exp2(x)`, relative to it, for an x that is the exact difference rounded once.
pub(super) fn exp(x: f64) -> f64 {
    3.0 + 3.0 * x.abs()
}

/// The relative error of an exponential by the absolute error of its argument, which may be too large for first order.
pub(super) fn exp_of(error: f64) -> f64 {
    (error * EPS).exp_m1() / EPS
}

/// The absolute error of a logarithm, in any base, whose value is `y`: 3 units, and 2^-21 near 1.
pub(super) fn log(y: f64) -> f64 {
    3.0 * y.abs() + 4.0
}

/// The relative error of a softmax's denominator over the terms exp(x), the sizes of x being `below` the largest in the
/// exponential's own base: each term is an exponential that another one may have scaled since.
pub(super) fn softmax_sum(shares: &[f64], below: &[f64]) -> f64 {
    let terms = shares.iter().zip(below).map(|(p, x)| p * 2.0 * exp(*x));
    (shares.len() as f64).sqrt() + terms.sum::<f64>()
}

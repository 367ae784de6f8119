//! How far a result may be from the reference, and what to say where it is further away.
//!
//! The bound on the error of an element is eps e, with eps = 2^-23 and e as its op's
//! [`rounding`](crate::graph::Op::rounding) says, which stands beside the op's reference and follows the arithmetic of its
//! kernels to first order:
//!
//! | what | e | reason |
//! |---|---|---|
//! | u32, and f32 that are only moved | 0 | nothing is rounded |
//! | an operand x | counts as abs(x) + 2^-126 / eps | a device may take for zero what is below 2^-126 |
//! | +, -, *: a result y | abs(y) | WGSL rounds to one of the two neighbours |
//! | a sum S of K terms of magnitudes M in all | sqrt(K) M + K / 4 abs(S) | each partial sum rounds by half a unit, at worst to one side; those of i terms are i S / K and what wanders around that, like sqrt(i) |
//! | a quotient, inverseSqrt, sqrt: y | 2.5 y, 2 y, 4.5 y | WGSL's table of accuracies, as all functions |
//! | exp(x), exp2(x): y | (3 + 2 abs(x)) y, and the error of x times y | |
//! | log(x), log2(x): y | 3 abs(y) + 4 | 3 units, and 2^-21 near 1 |
//! | tanh | 84 | 1e-5 |
//! | a result y stored as f16 | (abs(y) + its own error) 2^-11 / eps + 2^-25 / eps, where it is not only moved | the conversion rounds to the nearest of 11 bits, below 2^-14 to a multiple of 2^-24; loads are exact |
//!
//! | op | e, beside the own error of each function |
//! |---|---|
//! | matmul | the sum of alpha a b and the bias, one for alpha, times the activation's steepest slope (1.13), and the activation |
//! | column_sum, gradients of tables, positions, gamma and beta | a sum, K being the longest chain of additions |
//! | embedding, dropout, elementwise | one for each operation |
//! | GELU | x / 2 of (1.5e-7 / eps by its approximation of erf, 16 exp(-x^2 / 2) by the polynomial in it, and exp) |
//! | layer_norm | gamma / std of abs(h - mean) and the mean's own, that of a sum of h - mean; y of half the variance's, a sum too |
//! | its gradient by h | gamma / std of g and of both means, which are sums |
//! | softmax, cross_entropy | y of exp(x - max), and of their sum: sqrt(C) and the mean of exp's over the row |
//! | their gradients | y of abs(d) and of the sum of d y |
//! | attention: a score x | scale times a sum of q k, and 3 abs(bias); in the exponent it is an error relative to p |
//! | its output | a sum of p v, and the errors of p, which are a softmax's |
//! | its gradients | a sum, and the errors of its terms d_x = p (d_p - delta): those of p, and of the sums of d_out v and d_out out |
//! | gradient norm | half of a sum's, K being the longest chain |
//! | Adam | each operation in turn; the change by m / (sqrt(v) + eps) |
//!
//! A factor that only makes room is nowhere among them.

use crate::graph::Op;
use crate::{DType, HostTensor, Shape, Tensor64};
use std::fmt;

/// A bound for sums of `terms` terms whose magnitudes add up to `magnitude` in kernels of which nothing else is known: 4 for
/// the terms' own errors, 16 for a function or two around them; 1e-37 is where numbers begin that a device may take for
/// zero.
pub fn reduction_bound(terms: usize, magnitude: f64) -> f64 {
    f32::EPSILON as f64 * (16.0 + 4.0 * (terms as f64).sqrt()) * magnitude + 1e-37
}

/// The bounds of an op's results (outputs, then updated inputs), element by element, from its inputs and results in f64: the
/// table at the head of this module.
pub fn bounds(op: &dyn Op, inputs: &[&Tensor64], results: &[Tensor64]) -> Vec<Vec<f64>> {
    let bounds = |errors: Tensor64| errors.data.iter().map(|e| f32::EPSILON as f64 * e).collect();
    op.rounding(inputs, results).into_iter().map(bounds).collect()
}

/// Adds to the bounds of a result what storing it as this type rounds; what is only moved was of this type before.
pub(crate) fn add_storage(dtype: DType, values: &Tensor64, bounds: &mut [f64]) {
    if dtype == DType::F16 {
        for (bound, value) in bounds.iter_mut().zip(&values.data).filter(|(bound, _)| **bound > 0.0) {
            *bound += (value.abs() + *bound) * 2f64.powi(-11) + 2f64.powi(-25);
        }
    }
}

/// The largest error as a share of its bound, over the elements that have a bound. An error that is no more than taking
/// something for zero says nothing of how tight the bound is.
pub(crate) fn worst_share(expected: &Tensor64, got: &[f64], bounds: &[f64]) -> f64 {
    let share = |i: usize| match (got[i], expected.data[i]) {
        // Both infinite, too.
        (g, e) if g == e || (g.is_nan() && e.is_nan()) => 0.0,
        (g, e) => ((g - e).abs() - f32::MIN_POSITIVE as f64) / bounds[i],
    };
    let shares = (0..bounds.len()).filter(|&i| bounds[i] > 0.0).map(share);
    shares.fold(0.0, |worst, s| if s.is_nan() { f64::INFINITY } else { worst.max(s) })
}

/// What is wrong with a tensor.
#[derive(Clone, Debug)]
pub struct Mismatch {
    /// Elements whose error is above its bound, or is no number.
    pub wrong: usize,
    /// All elements.
    pub total: usize,
    /// The worst of them by error over bound, at most five.
    pub worst: Vec<WrongElement>,
}

/// An element whose error is above its bound.
#[derive(Clone, Debug)]
pub struct WrongElement {
    /// Where it is, by dimension.
    pub index: Vec<usize>,
    /// What the device computed.
    pub got: f64,
    /// What the reference is.
    pub expected: f64,
    /// The error allowed.
    pub bound: f64,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} elements wrong; worst:", self.wrong, self.total)?;
        for (i, w) in self.worst.iter().enumerate() {
            let (sep, error) = (if i == 0 { "" } else { "," }, (w.got - w.expected).abs());
            write!(
                f,
                "{sep} {:?} got {:e}, expected {:e} (error {error:.1e}, allowed {:.1e})",
                w.index, w.got, w.expected, w.bound
            )?;
        }
        Ok(())
    }
}

/// Where an element is by dimension, from its flat index.
pub(super) fn index_of(shape: &Shape, mut i: usize) -> Vec<usize> {
    let mut index: Vec<usize> = Vec::new();
    for &d in shape.dims().iter().rev() {
        index.insert(0, i % d);
        i /= d;
    }
    index
}

/// Compares `got` with the reference; `bounds` has an entry for each element. NaN is wrong wherever the reference is a
/// number, and right only where that is none; an infinity is right only where the reference is the same one. A bound that
/// is no finite number allows nothing.
pub fn compare(expected: &Tensor64, got: &HostTensor, bounds: &[f64]) -> Option<Mismatch> {
    compare_f64(expected, &got.to_f64().data, bounds)
}

/// [`compare`] for elements of any type, in f64.
pub(crate) fn compare_f64(expected: &Tensor64, got: &[f64], bounds: &[f64]) -> Option<Mismatch> {
    let right = |i: usize| {
        let (g, e) = (got[i], expected.data[i]);
        let close = e.is_finite() && bounds[i].is_finite() && (g - e).abs() <= bounds[i];
        close || g == e || (g.is_nan() && e.is_nan())
    };
    let mut wrong: Vec<usize> = (0..expected.data.len()).filter(|&i| !right(i)).collect();
    if wrong.is_empty() {
        return None;
    }
    let badness = |&i: &usize| {
        let error = (got[i] - expected.data[i]).abs() / bounds[i].max(1e-300);
        if error.is_nan() { f64::INFINITY } else { error }
    };
    wrong.sort_by(|a, b| badness(b).total_cmp(&badness(a)));
    let element = |&i: &usize| WrongElement {
        index: index_of(&expected.shape, i),
        got: got[i],
        expected: expected.data[i],
        bound: bounds[i],
    };
    Some(Mismatch {
        wrong: wrong.len(),
        total: expected.data.len(),
        worst: wrong.iter().take(5).map(element).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_finite_errors_within_finite_bounds_are_right() {
        let (inf, nan) = (f32::INFINITY, f32::NAN);
        let right = |expected: f64, got: f32, bound: f64| {
            compare(&Tensor64::new([1], vec![expected]), &HostTensor::f32([1], vec![got]), &[bound]).is_none()
        };
        assert!(right(1.0, 1.5, 0.5) && right(1.0, 1.0, 0.0));
        assert!(right(inf as f64, inf, 0.0) && right(nan as f64, nan, 0.0));
        for (expected, got, bound) in [
            (1.0, 1.5, 0.25),
            (1.0, nan, 1e9),
            (1.0, inf, 1e9),
            (1.0, 2.0, f64::INFINITY),
            (1.0, 2.0, f64::NAN),
            (f64::INFINITY, 1.0, f64::INFINITY),
            (f64::INFINITY, -inf, 1.0),
            (f64::NAN, 1.0, 1.0),
        ] {
            assert!(!right(expected, got, bound), "{expected} {got} {bound}");
        }
    }
}

//! How far a result may be from the reference, and what to say where it is further away.
//!
//! | values | bound on the error of element i |
//! |---|---|
//! | u32 | 0 |
//! | f32 | eps (16 + 4 sqrt(K)) M_i + 1e-37 |
//!
//! eps is 2^-23. M_i is the sum of the magnitudes of the terms that element i is the sum of
//! ([`Op::magnitudes`](crate::graph::Op::magnitudes)). K is the number of terms of the longest sum: rounding errors that
//! are random add up like sqrt(K) (Higham and Mary, 2019); 4 covers the terms' own errors and the products in them. 16
//! covers the functions: WGSL allows exp2, inverseSqrt, division and their like 2 to 5 ULP each, and exp(x) and tanh
//! 3 + 2 |x| ULP; where |x| is large, M_i has it as a factor. 1e-37 is where denormals, which a device may flush to
//! zero, begin.

use crate::graph::Node;
use crate::{DType, HostTensor, Shape, Tensor64, TensorType};
use std::fmt;

/// The bound for sums of `terms` terms whose magnitudes add up to `magnitude`.
pub fn reduction_bound(terms: usize, magnitude: f64) -> f64 {
    f32::EPSILON as f64 * (16.0 + 4.0 * (terms as f64).sqrt()) * magnitude + 1e-37
}

/// The bounds of a node's results (outputs, then updated inputs), element by element, from its inputs and results in
/// f64: the table at the head of this module.
pub fn node_bounds(
    node: &Node,
    inputs: &[&Tensor64],
    results: &[Tensor64],
    types: &[&TensorType],
) -> Vec<Vec<f64>> {
    // No sum has more terms than the longest row or column of anything that goes in or comes out.
    let longest = |s: &Shape| s.last().max(s.rows());
    let terms = inputs.iter().map(|t| longest(&t.shape)).chain(results.iter().map(|t| longest(&t.shape)));
    let terms = terms.max().unwrap_or(1);
    let magnitudes = node.op.magnitudes(inputs, results);
    let bounds = magnitudes.iter().zip(types).map(|(m, ty)| match ty.dtype {
        DType::U32 => vec![0.0; m.data.len()],
        DType::F32 => m.data.iter().map(|&m| reduction_bound(terms, m)).collect(),
    });
    bounds.collect()
}

/// The largest error as a share of its bound, over the elements that have a bound.
pub(super) fn worst_share(expected: &Tensor64, got: &HostTensor, bounds: &[f64]) -> f64 {
    let got = got.to_f64();
    let share = |i: usize| match (got.data[i], expected.data[i]) {
        // Both infinite, too.
        (g, e) if g == e || (g.is_nan() && e.is_nan()) => 0.0,
        (g, e) => (g - e).abs() / bounds[i],
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

/// Compares `got` with the reference; `bounds` has an entry for each element. NaN is wrong wherever the reference is a
/// number, and right only where that is none.
pub fn compare(expected: &Tensor64, got: &HostTensor, bounds: &[f64]) -> Option<Mismatch> {
    let got = got.to_f64();
    let right = |i: usize| {
        let (g, e) = (got.data[i], expected.data[i]);
        (g - e).abs() <= bounds[i] || g == e || (g.is_nan() && e.is_nan())
    };
    let mut wrong: Vec<usize> = (0..expected.data.len()).filter(|&i| !right(i)).collect();
    if wrong.is_empty() {
        return None;
    }
    let badness = |&i: &usize| {
        let error = (got.data[i] - expected.data[i]).abs() / bounds[i].max(1e-300);
        if error.is_nan() { f64::INFINITY } else { error }
    };
    wrong.sort_by(|a, b| badness(b).total_cmp(&badness(a)));
    let index = |mut i: usize| {
        let mut index: Vec<usize> = Vec::new();
        for &d in expected.shape.dims().iter().rev() {
            index.insert(0, i % d);
            i /= d;
        }
        index
    };
    let element = |&i: &usize| WrongElement {
        index: index(i),
        got: got.data[i],
        expected: expected.data[i],
        bound: bounds[i],
    };
    Some(Mismatch {
        wrong: wrong.len(),
        total: expected.data.len(),
        worst: wrong.iter().take(5).map(element).collect(),
    })
}

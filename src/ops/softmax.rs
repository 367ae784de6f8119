//! Softmax and log-softmax over the innermost dimension.

use super::excerpt;
use super::params::params;
use super::rounding::{DIVIDE, exp, log, once, size, softmax_sum, sum};
use super::rows::Rows;
use crate::graph::{Excerpt, Graph, Lowering, Node, Op, ValueId};
use crate::kernel::{Access, Const, Dispatch, Kernel, Operand, parts};
use crate::rng::Rng;
use crate::{DType, Error, Result, Tensor64, TensorType};

pub(super) const SOURCE: &str = include_str!("../../shaders/softmax.wgsl");

// Elems that a lane holds in registers, and the number it takes at a time where the row is longer than that. With 32 held,
// a kernel takes lavapipe half a second to compile.
const HELD: usize = 16;
const CHUNK: usize = 8;

params! {
    struct Params {
        rows: u32,
    }
}

fn check_f32(name: &str, t: &TensorType) -> Result<()> {
    if t.dtype != DType::F32 || t.shape.elements() == 0 {
        return Err(Error::shape("", name, "f32, not empty", t));
    }
    Ok(())
}

fn push(l: &mut Lowering, backward: bool, log: bool, operands: Vec<Operand>) -> Result<()> {
    let ty = l.output_type(0);
    let (entry, name) = if backward { ("backward", "softmax_backward") } else { ("forward", "softmax") };
    let rows = Rows::new(l, name, ty)?.several();
    let chunk = if rows.steps() <= HELD { rows.steps() } else { CHUNK };
    let mut constants = rows.constants();
    constants.extend([("CHUNK", Const::U32(chunk as u32)), ("LOG", Const::Bool(log))]);
    let mut bindings = vec![Access::Read; operands.len() - 1];
    bindings.push(Access::Write);
    let dispatch = Dispatch {
        kernel: Kernel {
            name: format!("softmax/{entry}_{}", rows.variant()),
            parts: parts([SOURCE].into_iter().chain(rows.parts())),
            entry,
            bindings,
            params: Params::FIELDS,
            constants,
            requires: rows.requires(),
        },
        operands: operands.into_iter().map(Into::into).collect(),
        params: Params { rows: rows.rows as u32 }.bytes(),
        groups: rows.groups(l)?,
        flops: 5 * ty.shape.elements() as u64,
    };
    l.push(dispatch);
    Ok(())
}

/// y = exp(x) / sum(exp(x)) over each row, or its logarithm.
#[derive(Clone, Copy, Debug)]
struct Softmax {
    log: bool,
}

impl Op for Softmax {
    fn name(&self) -> &'static str {
        "softmax"
    }

    fn outputs(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>> {
        check_f32("x", inputs[0])?;
        Ok(vec![inputs[0].clone()])
    }

    fn reference(&self, inputs: &[&Tensor64]) -> Vec<Tensor64> {
        let x = inputs[0];
        let mut y = x.clone();
        for row in y.data.chunks_mut(x.shape.last()) {
            let max = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let sum: f64 = row.iter().map(|v| (v - max).exp()).sum();
            for v in row {
                *v = if self.log { *v - max - sum.ln() } else { (*v - max).exp() / sum };
            }
        }
        vec![y]
    }

    /// Exponentials of x - max, one that another may have scaled since, over their sum; or the logarithm of the sum.
    fn rounding(&self, inputs: &[&Tensor64], results: &[Tensor64]) -> Vec<Tensor64> {
        let x = inputs[0];
        let mut error = results[0].clone();
        for (r, row) in error.data.chunks_mut(x.shape.last()).enumerate() {
            let max = x.row(r).iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let below: Vec<f64> = x.row(r).iter().map(|v| v - max).collect();
            let total: f64 = below.iter().map(|v| v.exp()).sum();
            let shares: Vec<f64> = below.iter().map(|v| v.exp() / total).collect();
            let e_total = softmax_sum(&shares, &below);
            for (e, (p, x)) in row.iter_mut().zip(shares.iter().zip(below)) {
                *e = match self.log {
                    true => size(x) + log(total.ln()) + e_total + e.abs(),
                    false => once(p * (2.0 * exp(x) + e_total + DIVIDE + 1.0)),
                };
            }
        }
        vec![error]
    }

    fn excerpts(&self, inputs: &[&Tensor64], rng: &mut Rng) -> Vec<Excerpt> {
        excerpt::rows(*self, inputs, &[0], &[inputs[0].shape.last()], rng)
    }

    fn gradient(
        &self,
        g: &mut Graph,
        node: &Node,
        d_outputs: &[Option<ValueId>],
    ) -> Result<Vec<Option<ValueId>>> {
        let Some(d) = d_outputs[0] else { return Ok(vec![None]) };
        Ok(vec![Some(g.add(SoftmaxBackward { log: self.log }, &[d, node.outputs[0]])?)])
    }

    fn lower(&self, l: &mut Lowering) -> Result<()> {
        let operands = vec![l.input(0), l.output(0)];
        push(l, false, self.log, operands)
    }
}

/// d_x from d_y and y.
#[derive(Clone, Copy, Debug)]
struct SoftmaxBackward {
    log: bool,
}

impl Op for SoftmaxBackward {
    fn name(&self) -> &'static str {
        "softmax"
    }

    fn outputs(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>> {
        if inputs[0] != inputs[1] {
            return Err(Error::shape("", "d_y", inputs[1], inputs[0]));
        }
        Ok(vec![inputs[0].clone()])
    }

    fn reference(&self, inputs: &[&Tensor64]) -> Vec<Tensor64> {
        let (d_y, y) = (inputs[0], inputs[1]);
        let mut d_x = d_y.clone();
        for (r, row) in d_x.data.chunks_mut(y.shape.last()).enumerate() {
            let (d, y) = (d_y.row(r), y.row(r));
            let dot: f64 = d.iter().zip(y).map(|(d, y)| d * y).sum();
            let sum: f64 = d.iter().sum();
            for (i, v) in row.iter_mut().enumerate() {
                *v = if self.log { d[i] - y[i].exp() * sum } else { y[i] * (d[i] - dot) };
            }
        }
        vec![d_x]
    }

    /// One sum a row; d - sum may cancel, so its parts count.
    fn rounding(&self, inputs: &[&Tensor64], _: &[Tensor64]) -> Vec<Tensor64> {
        let (d_y, y) = (inputs[0], inputs[1]);
        let mut error = d_y.clone();
        let c = y.shape.last();
        for (r, row) in error.data.chunks_mut(c).enumerate() {
            let (d, y) = (d_y.row(r), y.row(r));
            let sizes = |term: fn((&f64, &f64)) -> f64| d.iter().zip(y).map(term).sum::<f64>();
            let (dot, signed_dot) = (sizes(|(d, y)| size(*d) * size(*y)), sizes(|(d, y)| d * y));
            let (total, signed_total) = (sizes(|(d, _)| size(*d)), sizes(|(d, _)| *d));
            for (i, e) in row.iter_mut().enumerate() {
                let d = size(d[i]);
                *e = match self.log {
                    true => 2.0 * d + y[i].exp() * (sum(c, total, signed_total) + total * (exp(y[i]) + 2.0)),
                    false => once(size(y[i]) * (sum(c, dot, signed_dot) + 2.0 * (d + dot))),
                };
            }
        }
        vec![error]
    }

    fn excerpts(&self, inputs: &[&Tensor64], rng: &mut Rng) -> Vec<Excerpt> {
        excerpt::rows(*self, inputs, &[0, 1], &[inputs[0].shape.last()], rng)
    }

    fn lower(&self, l: &mut Lowering) -> Result<()> {
        let operands = vec![l.input(0), l.input(1), l.output(0)];
        push(l, true, self.log, operands)
    }
}

/// Softmax of `x` `f32[.., C]` over its innermost dimension.
///
/// # Errors
/// When `x` is no f32 or empty.
pub fn softmax(g: &mut Graph, x: ValueId) -> Result<ValueId> {
    g.add(Softmax { log: false }, &[x])
}

/// The logarithm of [`softmax`], without its loss of small probabilities.
///
/// # Errors
/// When `x` is no f32 or empty.
pub fn log_softmax(g: &mut Graph, x: ValueId) -> Result<ValueId> {
    g.add(Softmax { log: true }, &[x])
}

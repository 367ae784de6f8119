//! Dropout, alone or before a residual sum.

use super::params::params;
use super::rounding::{once, size};
use super::{elementwise, lib_wgsl};
use crate::graph::{Graph, Lowering, Node, Op, ValueId};
use crate::kernel::{Access, Const, Dispatch, Kernel, Requires, parts};
use crate::ops::random::{Dropout, RandomKey};
use crate::{DType, Error, Result, Tensor64, TensorType};

pub(super) const SOURCE: &str = include_str!("../../shaders/dropout.wgsl");
const GROUP: u32 = 64;

params! {
    struct Params {
        count: u32,
        threshold: u32,
        scale: f32,
        site: u32,
    }
}

/// out = x f, or residual + x f. Inputs: x, seed, and the residual.
#[derive(Clone, Copy, Debug)]
struct DropoutOp {
    dropout: Dropout,
    residual: bool,
}

/// The key of `dropout` at a seed input's value.
pub(super) fn key(dropout: Dropout, seed: &Tensor64) -> RandomKey {
    RandomKey::new([seed.u32(0), seed.u32(1)], dropout.site)
}

impl Op for DropoutOp {
    fn name(&self) -> &'static str {
        "dropout"
    }

    fn outputs(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>> {
        let x = inputs[0];
        if x.dtype != DType::F32 {
            return Err(Error::shape("", "x", "f32", x));
        }
        self.dropout.check(inputs[1])?;
        if self.residual && inputs[2] != x {
            return Err(Error::shape("", "residual", x, inputs[2]));
        }
        Ok(vec![x.clone()])
    }

    fn reference(&self, inputs: &[&Tensor64]) -> Vec<Tensor64> {
        let key = key(self.dropout, inputs[1]);
        vec![Tensor64::from_fn(inputs[0].shape.clone(), |i| {
            let dropped = inputs[0].data[i] * self.dropout.factor(key, i as u32);
            if self.residual { inputs[2].data[i] + dropped } else { dropped }
        })]
    }

    /// The factor's own rounding, the product's and the sum's.
    fn rounding(&self, inputs: &[&Tensor64], results: &[Tensor64]) -> Vec<Tensor64> {
        let key = key(self.dropout, inputs[1]);
        vec![Tensor64::from_fn(inputs[0].shape.clone(), |i| {
            let dropped = size(inputs[0].data[i]) * self.dropout.factor(key, i as u32);
            once(2.0 * dropped + if self.residual { size(results[0].data[i]) } else { 0.0 })
        })]
    }

    fn gradient(
        &self,
        g: &mut Graph,
        node: &Node,
        d_outputs: &[Option<ValueId>],
    ) -> Result<Vec<Option<ValueId>>> {
        let Some(d) = d_outputs[0] else { return Ok(vec![None; node.inputs.len()]) };
        let d_x = g.add(DropoutOp { dropout: self.dropout, residual: false }, &[d, node.inputs[1]])?;
        let mut gradients = vec![Some(d_x), None];
        gradients.extend(self.residual.then_some(Some(d)));
        Ok(gradients)
    }

    fn lower(&self, l: &mut Lowering) -> Result<()> {
        let n = l.output_type(0).shape.elements();
        let vec4 = n.is_multiple_of(4);
        let count = if vec4 { n / 4 } else { n };
        let params = Params {
            count: count as u32,
            threshold: self.dropout.threshold(),
            scale: self.dropout.scale() as f32,
            site: self.dropout.site,
        };
        // Without a residual, x stands in for it and is not read twice.
        let residual = l.input(if self.residual { 2 } else { 0 });
        l.push(Dispatch {
            kernel: Kernel {
                name: "dropout/forward".into(),
                parts: parts([SOURCE].into_iter().chain(dropout_parts(vec4))),
                entry: "forward",
                bindings: vec![Access::Read, Access::Read, Access::Read, Access::Write],
                params: Params::FIELDS,
                constants: vec![("GROUP", Const::U32(GROUP)), ("RESIDUAL", Const::Bool(self.residual))],
                requires: Requires { invocations: GROUP, ..Default::default() },
            },
            operands: vec![l.input(0).into(), residual.into(), l.input(1).into(), l.output(0).into()],
            params: params.bytes(),
            groups: l.groups_1d(count.div_ceil(GROUP as usize))?,
            flops: 2 * n as u64,
        });
        Ok(())
    }
}

/// The shared text of dropout over `elem`, the element type included.
pub(super) fn dropout_parts(vec4: bool) -> [&'static str; 3] {
    match vec4 {
        true => [lib_wgsl::ELEM_VEC4, lib_wgsl::DROPOUT_VEC4, lib_wgsl::RANDOM],
        false => [lib_wgsl::ELEM_F32, lib_wgsl::DROPOUT_F32, lib_wgsl::RANDOM],
    }
}

/// Zeroes each element of `x` with probability p and divides the others by 1 - p (Srivastava et al., 2014). The
/// elements follow from `seed`, an input `u32[2]`, the site and the flat index, in the backward again; no mask is kept.
/// With p = 0 this is `x`.
///
/// # Errors
/// When p is not in 0 <= p < 1, `seed` is no `u32[2]`, or `x` is no f32.
pub fn dropout(g: &mut Graph, x: ValueId, dropout: Dropout, seed: ValueId) -> Result<ValueId> {
    if dropout.p == 0.0 {
        return Ok(x);
    }
    g.add(DropoutOp { dropout, residual: false }, &[x, seed])
}

/// h = residual + dropout(x): the residual connection without a norm. Shapes are equal.
///
/// # Errors
/// As [`dropout`]; when the shapes differ; when there is a dropout and no seed.
pub fn residual_dropout(
    g: &mut Graph,
    residual: ValueId,
    x: ValueId,
    dropout: Option<Dropout>,
    seed: Option<ValueId>,
) -> Result<ValueId> {
    match active(dropout, seed)? {
        None => elementwise::add(g, residual, x),
        Some((dropout, seed)) => g.add(DropoutOp { dropout, residual: true }, &[x, seed, residual]),
    }
}

/// The dropout and its seed, if anything is to be dropped.
pub(super) fn active(dropout: Option<Dropout>, seed: Option<ValueId>) -> Result<Option<(Dropout, ValueId)>> {
    match (dropout.filter(|d| d.p != 0.0), seed) {
        (None, _) => Ok(None),
        (Some(d), Some(seed)) => Ok(Some((d, seed))),
        (Some(_), None) => {
            Err(Error::config("dropout", "needs a seed input u32[2]; give one, or no dropout"))
        }
    }
}

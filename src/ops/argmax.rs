//! The place of the largest element of each row.

use super::params::params;
use super::rows::Rows;
use crate::graph::{Graph, Lowering, Op, ValueId};
use crate::kernel::{Access, Const, Dispatch, Kernel, parts};
use crate::{DType, Error, Result, Shape, Tensor64, TensorType};

pub(super) const SOURCE: &str = include_str!("../../shaders/argmax.wgsl");

params! {
    struct Params {
        rows: u32,
        forbid: u32,
    }
}

#[derive(Debug)]
struct Argmax {
    forbid: u32,
}

impl Op for Argmax {
    fn name(&self) -> &'static str {
        "argmax"
    }

    fn outputs(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>> {
        let x = inputs[0];
        if x.dtype != DType::F32 || x.shape.rank() == 0 || x.shape.elements() == 0 {
            return Err(Error::shape("", "x", "f32[.., V]", x));
        }
        let dims = x.shape.dims();
        Ok(vec![TensorType { shape: Shape::from(&dims[..dims.len() - 1]), dtype: DType::U32 }])
    }

    fn reference(&self, inputs: &[&Tensor64]) -> Vec<Tensor64> {
        let x = inputs[0];
        let allowed = |j: usize| j >= 32 || self.forbid >> j & 1 == 0;
        let dims = x.shape.dims();
        vec![Tensor64::from_fn(&dims[..dims.len() - 1], |n| {
            let mut best: Option<usize> = None;
            for (j, v) in x.row(n).iter().enumerate() {
                if allowed(j) && best.is_none_or(|b| *v > x.row(n)[b]) {
                    best = Some(j);
                }
            }
            best.unwrap_or(0) as f64
        })]
    }

    fn lower(&self, l: &mut Lowering) -> Result<()> {
        let rows = Rows::new(l, "argmax", l.input_type(0))?;
        l.push(Dispatch {
            kernel: Kernel {
                name: format!("argmax/{}", rows.variant()),
                parts: parts([SOURCE].into_iter().chain(rows.parts())),
                entry: "argmax",
                bindings: vec![Access::Read, Access::Write],
                params: Params::FIELDS,
                constants: [rows.constants(), vec![("FORBID", Const::Bool(self.forbid != 0))]].concat(),
                requires: rows.requires(),
            },
            operands: vec![l.input(0).into(), l.output(0).into()],
            params: Params { rows: rows.rows as u32, forbid: self.forbid }.bytes(),
            groups: rows.groups(l)?,
            flops: l.input_type(0).shape.elements() as u64,
        });
        Ok(())
    }
}

/// The place of the largest element of each row: x f32 `[.., V]` -> u32 `[..]`; the lowest of equal ones. Bit j of
/// `forbid` excludes the place j, for j < 32; where all are excluded the result is 0. Values must be finite. No gradient.
///
/// # Errors
/// When `x` is no f32 tensor with rows.
pub fn argmax(g: &mut Graph, x: ValueId, forbid: u32) -> Result<ValueId> {
    g.add(Argmax { forbid }, &[x])
}

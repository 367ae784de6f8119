//! Sums of columns: `out[n] = sum over r of x[r, n]`. The gradient of a bias.

use super::lib_wgsl;
use super::params::params;
use super::rounding::{of_sizes, sum};
use crate::graph::{Graph, Lowering, Node, Op, ValueId};
use crate::kernel::{Access, Const, Dispatch, Kernel, Operand, Requires, parts};
use crate::profile::DeviceClass;
use crate::{DType, Error, HostTensor, Result, Tensor64, TensorType};

pub(super) const SOURCE: &str = include_str!("../../shaders/column_sum.wgsl");

params! {
    struct Params {
        rows: u32,
        columns: u32,
        chunk: u32,
        groups_n: u32,
        count: u32,
    }
}

#[derive(Debug)]
pub(super) struct ColumnSum;

impl Op for ColumnSum {
    fn name(&self) -> &'static str {
        "column_sum"
    }

    fn outputs(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>> {
        let x = inputs[0];
        if x.dtype != DType::F32 || x.shape.rank() == 0 || x.shape.elements() == 0 {
            return Err(Error::shape("", "x", "f32[.., N]", x));
        }
        Ok(vec![TensorType::f32([x.shape.last()])])
    }

    fn reference(&self, inputs: &[&Tensor64]) -> Vec<Tensor64> {
        let x = inputs[0];
        let mut out = Tensor64::zeros([x.shape.last()]);
        for r in 0..x.shape.rows() {
            for (sum, v) in out.data.iter_mut().zip(x.row(r)) {
                *sum += v;
            }
        }
        vec![out]
    }

    /// A sum of sums.
    fn rounding(&self, inputs: &[&Tensor64], results: &[Tensor64]) -> Vec<Tensor64> {
        let rows = inputs[0].shape.rows();
        let chunk = chunk(rows);
        let mut error = of_sizes(self, inputs, &[0]);
        let terms = chunk + rows.div_ceil(chunk);
        error[0].data.iter_mut().zip(&results[0].data).for_each(|(e, y)| *e = sum(terms, *e, *y));
        error
    }

    /// Each row of d_x is d: a column of ones times d.
    fn gradient(
        &self,
        g: &mut Graph,
        node: &Node,
        d_outputs: &[Option<ValueId>],
    ) -> Result<Vec<Option<ValueId>>> {
        let Some(d) = d_outputs[0] else { return Ok(vec![None]) };
        let shape = g.shape(node.inputs[0]).clone();
        let rows = shape.rows();
        let ones = g.constant("ones", HostTensor::f32([rows, 1], vec![1.0; rows]));
        let d = super::layout::reshape(g, d, [1, shape.last()])?;
        let d_x = super::matmul::matmul(g, ones, d, Default::default())?;
        Ok(vec![Some(super::layout::reshape(g, d_x, shape)?)])
    }

    fn lower(&self, l: &mut Lowering) -> Result<()> {
        let shape = &l.input_type(0).shape;
        push_all(l, l.input(0), l.output(0), [shape.rows(), shape.last()])
    }
}

/// All dispatches for the sums of the columns of x [rows, n].
pub(super) fn push_all(l: &mut Lowering, x: Operand, out: Operand, [rows, n]: [usize; 2]) -> Result<()> {
    let chunk = chunk(rows);
    let chunks = rows.div_ceil(chunk);
    if chunks == 1 {
        return push(l, x, out, [rows, n], chunk);
    }
    let partial = l.scratch(chunks * n);
    push(l, x, partial, [rows, n], chunk)?;
    push(l, partial, out, [chunks, n], chunks)
}

/// The rows that are summed at a time. As many chunks as rows in a chunk, about: both passes are as long. The number depends
/// on the shape alone, so every device sums in the same order.
fn chunk(rows: usize) -> usize {
    if rows <= 64 { rows } else { (rows as f64).sqrt().ceil() as usize }
}

fn push(l: &mut Lowering, x: Operand, out: Operand, [rows, n]: [usize; 2], chunk: usize) -> Result<()> {
    let vec4 = n.is_multiple_of(4);
    let columns = if vec4 { n / 4 } else { n };
    // A software adapter runs the sub-groups of a workgroup one after another, so one is enough; it takes long pieces of
    // rows, which its loads are quicker for.
    let (lanes, run) = match (l.profile.class, l.profile.subgroup_size()) {
        (DeviceClass::Cpu, size) => {
            let lanes = size.unwrap_or(8);
            (lanes, (columns as u32 / lanes).clamp(1, 8))
        }
        _ => (64, 1),
    };
    let groups_n = columns.div_ceil((lanes * run) as usize);
    let count = groups_n * rows.div_ceil(chunk);
    let params = Params {
        rows: rows as u32,
        columns: columns as u32,
        chunk: chunk as u32,
        groups_n: groups_n as u32,
        count: count as u32,
    };
    let dispatch = Dispatch {
        kernel: Kernel {
            name: "column_sum/forward".into(),
            parts: parts([SOURCE, if vec4 { lib_wgsl::ELEM_VEC4 } else { lib_wgsl::ELEM_F32 }]),
            entry: "forward",
            bindings: vec![Access::Read, Access::Write],
            params: Params::FIELDS,
            constants: vec![("LANES", Const::U32(lanes)), ("RUN", Const::U32(run))],
            requires: Requires { invocations: lanes, ..Default::default() },
        },
        operands: vec![x.into(), out.into()],
        params: params.bytes(),
        groups: l.groups_1d(count)?,
        flops: (rows * n) as u64,
    };
    l.push(dispatch);
    Ok(())
}

/// The sums of the columns of x `[.., N]`: `[N]`.
///
/// # Errors
/// When x has no dimension or no element.
pub fn column_sum(g: &mut Graph, x: ValueId) -> Result<ValueId> {
    g.add(ColumnSum, &[x])
}

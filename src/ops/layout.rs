//! Ops that move no bytes: reshape, split rows, pack; and `copy`, which does, for values that cannot be packed in place.

use crate::graph::{Graph, Layout, Lowering, Node, Op, ValueId};
use crate::{DType, Error, Result, Shape, Tensor64, TensorType};

/// Another shape over the same elements.
#[derive(Debug)]
struct Reshape(Shape);

impl Op for Reshape {
    fn name(&self) -> &'static str {
        "reshape"
    }

    fn outputs(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>> {
        if inputs[0].shape.elements() != self.0.elements() {
            return Err(Error::shape("", "x", format!("{} elements", self.0.elements()), inputs[0]));
        }
        Ok(vec![TensorType { shape: self.0.clone(), dtype: inputs[0].dtype }])
    }

    fn layout(&self, _inputs: &[&TensorType]) -> Layout {
        Layout::Split(vec![0])
    }

    fn reference(&self, inputs: &[&Tensor64]) -> Vec<Tensor64> {
        vec![Tensor64::new(self.0.clone(), inputs[0].data.clone())]
    }

    fn gradient(
        &self,
        g: &mut Graph,
        node: &Node,
        d_outputs: &[Option<ValueId>],
    ) -> Result<Vec<Option<ValueId>>> {
        let shape = g.shape(node.inputs[0]).clone();
        Ok(vec![d_outputs[0].map(|d| reshape(g, d, shape)).transpose()?])
    }

    fn lower(&self, _: &mut Lowering) -> Result<()> {
        Ok(())
    }
}

/// The same elements in another shape; nothing runs.
pub fn reshape(g: &mut Graph, x: ValueId, shape: impl Into<Shape>) -> Result<ValueId> {
    let shape = shape.into();
    if g.shape(x) == &shape {
        return Ok(x);
    }
    g.add(Reshape(shape), &[x])
}

/// Consecutive groups of outermost rows, as values of their own.
#[derive(Debug)]
struct SplitRows(Vec<usize>);

impl SplitRows {
    fn starts(&self, x: &Shape) -> Vec<usize> {
        let row: usize = x.dims()[1..].iter().product();
        let firsts = self.0.iter().scan(0, |sum, &n| {
            *sum += n;
            Some(*sum - n)
        });
        firsts.map(|r| r * row).collect()
    }
}

fn with_rows(shape: &Shape, rows: usize) -> Shape {
    let mut dims = shape.dims().to_vec();
    dims[0] = rows;
    dims.into()
}

impl Op for SplitRows {
    fn name(&self) -> &'static str {
        "split_rows"
    }

    fn outputs(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>> {
        let shape = &inputs[0].shape;
        let total: usize = self.0.iter().sum();
        if shape.rank() == 0 || shape.dims()[0] != total {
            return Err(Error::shape("", "x", format!("{total} rows"), inputs[0]));
        }
        let part = |&n: &usize| TensorType { shape: with_rows(shape, n), dtype: inputs[0].dtype };
        Ok(self.0.iter().map(part).collect())
    }

    fn layout(&self, inputs: &[&TensorType]) -> Layout {
        Layout::Split(self.starts(&inputs[0].shape))
    }

    fn reference(&self, inputs: &[&Tensor64]) -> Vec<Tensor64> {
        let shape = &inputs[0].shape;
        let part = |(&n, start): (&usize, usize)| {
            let s = with_rows(shape, n);
            Tensor64::new(s.clone(), inputs[0].data[start..start + s.elements()].to_vec())
        };
        self.0.iter().zip(self.starts(shape)).map(part).collect()
    }

    fn gradient(
        &self,
        g: &mut Graph,
        _: &Node,
        d_outputs: &[Option<ValueId>],
    ) -> Result<Vec<Option<ValueId>>> {
        let parts: Option<Vec<ValueId>> = d_outputs.iter().copied().collect();
        match parts {
            Some(parts) => Ok(vec![Some(concat_rows(g, &parts)?)]),
            None => Err(Error::config(
                "split_rows",
                "the gradient of a part is missing: use every part in the loss",
            )),
        }
    }

    fn lower(&self, _: &mut Lowering) -> Result<()> {
        Ok(())
    }
}

/// The outermost rows in consecutive groups of these sizes; nothing runs. Each group must start at a multiple of
/// [`crate::graph::ALIGN`] elements to be bound by a kernel.
pub fn split_rows(g: &mut Graph, x: ValueId, rows: &[usize]) -> Result<Vec<ValueId>> {
    g.add_node(SplitRows(rows.to_vec()), &[x])
}

/// The inverse of `SplitRows`: the inputs are computed directly into their rows of the output.
#[derive(Debug)]
struct ConcatRows;

impl Op for ConcatRows {
    fn name(&self) -> &'static str {
        "concat_rows"
    }

    fn outputs(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>> {
        let first = inputs[0];
        let mut rows = 0;
        for (i, t) in inputs.iter().enumerate() {
            if t.shape.rank() == 0 || t.shape.dims()[1..] != first.shape.dims()[1..] || t.dtype != first.dtype
            {
                return Err(Error::shape("", format!("part {i}"), format!("rows like those of {first}"), t));
            }
            rows += t.shape.dims()[0];
        }
        Ok(vec![TensorType { shape: with_rows(&first.shape, rows), dtype: first.dtype }])
    }

    fn layout(&self, inputs: &[&TensorType]) -> Layout {
        let mut start = 0;
        let starts = inputs.iter().map(|t| {
            start += t.shape.elements();
            start - t.shape.elements()
        });
        Layout::Pack(starts.collect())
    }

    fn reference(&self, inputs: &[&Tensor64]) -> Vec<Tensor64> {
        let rows = inputs.iter().map(|t| t.shape.dims()[0]).sum();
        let data = inputs.iter().flat_map(|t| t.data.iter().copied()).collect();
        vec![Tensor64::new(with_rows(&inputs[0].shape, rows), data)]
    }

    fn gradient(
        &self,
        g: &mut Graph,
        node: &Node,
        d_outputs: &[Option<ValueId>],
    ) -> Result<Vec<Option<ValueId>>> {
        let rows: Vec<usize> = node.inputs.iter().map(|&i| g.shape(i).dims()[0]).collect();
        match d_outputs[0] {
            Some(d) => Ok(split_rows(g, d, &rows)?.into_iter().map(Some).collect()),
            None => Ok(vec![None; rows.len()]),
        }
    }

    fn lower(&self, _: &mut Lowering) -> Result<()> {
        Ok(())
    }
}

/// The parts one after another along the outermost dimension. A part that lies elsewhere is copied, the others are
/// computed in place.
pub fn concat_rows(g: &mut Graph, parts: &[ValueId]) -> Result<ValueId> {
    let parts = packable(g, parts)?;
    g.add(ConcatRows, &parts)
}

/// Values computed directly into parts of a state.
#[derive(Debug)]
struct PackInto(Vec<usize>);

impl Op for PackInto {
    fn name(&self) -> &'static str {
        "pack_into"
    }

    fn outputs(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>> {
        for (i, (t, start)) in inputs[1..].iter().zip(&self.0).enumerate() {
            let end = start + t.shape.elements();
            if end > inputs[0].shape.elements() || t.dtype != DType::F32 {
                return Err(Error::shape(
                    "",
                    format!("part {i}"),
                    format!("an end within {}", inputs[0]),
                    end,
                ));
            }
        }
        Ok(vec![inputs[0].clone()])
    }

    fn layout(&self, _inputs: &[&TensorType]) -> Layout {
        Layout::PackInto(self.0.clone())
    }

    fn reference(&self, inputs: &[&Tensor64]) -> Vec<Tensor64> {
        let mut out = inputs[0].clone();
        for (t, &start) in inputs[1..].iter().zip(&self.0) {
            out.data[start..start + t.data.len()].copy_from_slice(&t.data);
        }
        vec![out.clone(), out]
    }

    fn updates(&self) -> Vec<usize> {
        vec![0]
    }

    fn lower(&self, _: &mut Lowering) -> Result<()> {
        Ok(())
    }
}

/// Has each of `parts` computed into `state` from its element of `starts`; gives the state after that. What lies
/// between the parts keeps its value.
pub fn pack_into(g: &mut Graph, state: ValueId, parts: &[ValueId], starts: &[usize]) -> Result<ValueId> {
    let mut inputs = vec![state];
    inputs.extend(packable(g, parts)?);
    g.add(PackInto(starts.to_vec()), &inputs)
}

/// The values, with a copy in place of each that is already a part of something, is not computed, or occurs twice (a
/// copy may not read the buffer that it writes, so then each is copied).
fn packable(g: &mut Graph, parts: &[ValueId]) -> Result<Vec<ValueId>> {
    let mut out = Vec::new();
    for &p in parts {
        let v = g.value(p);
        let free = v.alias.is_none() && matches!(v.role, crate::graph::Role::Computed { .. });
        let once = parts.iter().filter(|&&q| q == p).count() == 1;
        out.push(if free && once { p } else { super::elementwise::copy(g, p)? });
    }
    Ok(out)
}

//! PyTorch's names and layouts of parameters, and ours. A linear layer's weight is [out, in] there and [in, out] here;
//! there, queries, keys and values are one matrix in cross-attention too.

use super::data::CaseData;
use crate::{Result, Shape};
use std::ops::Range;

/// One of our parameters as a part of one of theirs.
#[derive(Clone, Debug, PartialEq)]
struct Piece {
    ours: String,
    /// The first row of theirs, and how many.
    row: usize,
    rows: usize,
}

/// One of their parameters.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Theirs {
    /// Its name there.
    pub name: String,
    /// Its shape there.
    pub shape: Vec<usize>,
    /// Elements whose gradient is exactly zero: the bias of keys, which adds the same to all scores of a query.
    pub vanishing: Range<usize>,
    transposed: bool,
    pieces: Vec<Piece>,
}

impl Theirs {
    fn whole(name: String, ours: String, shape: &[usize], transposed: bool) -> Self {
        let pieces = vec![Piece { ours, row: 0, rows: shape[0] }];
        Theirs { name, shape: shape.to_vec(), vanishing: 0..0, transposed, pieces }
    }

    fn columns(&self) -> usize {
        self.shape.get(1).copied().unwrap_or(1)
    }

    /// Our parameters with their values.
    pub fn scattered(&self, values: &[f32]) -> Vec<(&str, Shape, Vec<f32>)> {
        let columns = self.columns();
        let mut out = Vec::new();
        for p in &self.pieces {
            let part = &values[p.row * columns..(p.row + p.rows) * columns];
            let (shape, part) = match (self.transposed, self.shape.len()) {
                (true, _) => (Shape::from([columns, p.rows]), transpose(part, p.rows, columns)),
                (false, 1) => (Shape::from([p.rows]), part.to_vec()),
                (false, _) => (Shape::from([p.rows, columns]), part.to_vec()),
            };
            out.push((p.ours.as_str(), shape, part));
        }
        out
    }

    /// Their values, from ours.
    pub fn gathered(&self, mut ours: impl FnMut(&str) -> Result<Vec<f32>>) -> Result<Vec<f32>> {
        let mut out = Vec::new();
        for p in &self.pieces {
            let part = ours(&p.ours)?;
            out.extend(if self.transposed { transpose(&part, self.columns(), p.rows) } else { part });
        }
        Ok(out)
    }
}

/// The transpose of a matrix of this many rows and columns.
fn transpose(matrix: &[f32], rows: usize, columns: usize) -> Vec<f32> {
    debug_assert_eq!(matrix.len(), rows * columns);
    (0..columns).flat_map(|c| (0..rows).map(move |r| matrix[r * columns + c])).collect()
}

/// A linear layer.
pub(super) fn linear(theirs: &str, ours: &str, inputs: usize, outputs: usize) -> Vec<Theirs> {
    vec![
        Theirs::whole(format!("{theirs}.weight"), format!("{ours}.weight"), &[outputs, inputs], true),
        Theirs::whole(format!("{theirs}.bias"), format!("{ours}.bias"), &[outputs], false),
    ]
}

/// A LayerNorm.
pub(super) fn norm(theirs: &str, ours: &str, width: usize) -> Vec<Theirs> {
    ["weight", "bias"]
        .map(|p| Theirs::whole(format!("{theirs}.{p}"), format!("{ours}.{p}"), &[width], false))
        .to_vec()
}

/// An embedding.
pub(super) fn embedding(theirs: &str, ours: &str, vocabulary: usize, width: usize) -> Theirs {
    Theirs::whole(format!("{theirs}.weight"), format!("{ours}.weight"), &[vocabulary, width], false)
}

/// A `MultiheadAttention`. The names are prefixes, with a dot at the end where they are not empty.
pub(super) fn attention(theirs: &str, ours: &str, width: usize, cross: bool) -> Vec<Theirs> {
    let parts: &[(&str, usize)] = if cross { &[("q", 1), ("kv", 2)] } else { &[("qkv", 3)] };
    let packed = |what: &str, shape: Vec<usize>, transposed: bool| {
        let mut row = 0;
        let piece = |&(name, times): &(&str, usize)| {
            let rows = times * width;
            row += rows;
            Piece { ours: format!("{ours}{name}.{what}"), row: row - rows, rows }
        };
        let pieces = parts.iter().map(piece).collect();
        Theirs { name: format!("{theirs}in_proj_{what}"), shape, vanishing: 0..0, transposed, pieces }
    };
    let bias = Theirs { vanishing: width..2 * width, ..packed("bias", vec![3 * width], false) };
    let mut all = vec![packed("weight", vec![3 * width, width], true), bias];
    all.extend(linear(&format!("{theirs}out_proj"), &format!("{ours}out"), width, width));
    all
}

/// A stack of encoder or decoder layers. `theirs` is a prefix with a dot at the end where it is not empty.
pub(super) fn stack(theirs: &str, ours: &str, s: &StackShape) -> Vec<Theirs> {
    let mut all = Vec::new();
    for i in 0..s.layers {
        let (t, o) = (format!("{theirs}layers.{i}"), format!("{ours}.layers.{i}"));
        let mut sublayers = vec!["self_attn"];
        all.extend(attention(&format!("{t}.self_attn."), &format!("{o}.self_attn."), s.width, false));
        if s.decoder {
            sublayers.push("cross_attn");
            all.extend(attention(
                &format!("{t}.multihead_attn."),
                &format!("{o}.cross_attn."),
                s.width,
                true,
            ));
        }
        sublayers.push("feed_forward");
        all.extend(linear(&format!("{t}.linear1"), &format!("{o}.feed_forward.up"), s.width, s.feed_forward));
        all.extend(linear(
            &format!("{t}.linear2"),
            &format!("{o}.feed_forward.down"),
            s.feed_forward,
            s.width,
        ));
        for (n, sublayer) in sublayers.iter().enumerate() {
            all.extend(norm(&format!("{t}.norm{}", n + 1), &format!("{o}.{sublayer}_norm"), s.width));
        }
    }
    if s.final_norm {
        all.extend(norm(&format!("{theirs}norm"), &format!("{ours}.norm"), s.width));
    }
    all
}

/// The shape of a stack.
#[derive(Clone, Copy, Debug)]
pub(super) struct StackShape {
    pub layers: usize,
    pub width: usize,
    pub feed_forward: usize,
    pub decoder: bool,
    pub final_norm: bool,
}

impl StackShape {
    /// The shape that the tensors of a case tell: `prefix` is that of the stack's parameters, as in `p.tr.encoder.`.
    pub fn told(case: &CaseData, prefix: &str, width: usize, decoder: bool) -> Result<Self> {
        let mut layers = 0;
        while case.has(&format!("{prefix}layers.{layers}.linear1.weight")) {
            layers += 1;
        }
        let feed_forward = match layers {
            0 => 1,
            _ => case.shape::<2>(&format!("{prefix}layers.0.linear1.weight"))?[0],
        };
        let final_norm = case.has(&format!("{prefix}norm.weight"));
        Ok(StackShape { layers, width, feed_forward, decoder, final_norm })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_survive_both_ways_and_are_transposed() {
        let s = StackShape { layers: 1, width: 2, feed_forward: 3, decoder: true, final_norm: true };
        let mut seen = Vec::new();
        for theirs in stack("tr.decoder.", "decoder", &s) {
            let n: usize = theirs.shape.iter().product();
            let values: Vec<f32> = (0..n).map(|i| i as f32).collect();
            let ours = theirs.scattered(&values);
            for (name, shape, part) in &ours {
                assert_eq!(shape.elements(), part.len(), "{name}");
                seen.push(name.to_string());
            }
            let back = theirs.gathered(|name| {
                Ok(ours.iter().find(|o| o.0 == name).map(|o| o.2.clone()).unwrap_or_default())
            });
            assert_eq!(back.unwrap(), values, "{}", theirs.name);
        }
        // Self-attention, cross-attention, feed-forward, three LayerNorms, and the last one.
        assert_eq!(seen.len(), 4 + 6 + 4 + 6 + 2);
        let cross = &attention("", "", 2, true)[0];
        let values: Vec<f32> = (0..12).map(|i| i as f32).collect();
        let ours = cross.scattered(&values);
        assert_eq!((ours[0].0, &ours[0].2[..]), ("q.weight", &[0.0, 2.0, 1.0, 3.0][..]));
        assert_eq!((ours[1].0, &ours[1].2[..4]), ("kv.weight", &[4.0, 6.0, 8.0, 10.0][..]));
        assert_eq!(ours[1].1, Shape::from([2, 4]));
    }
}

//! The kernels of a Transformer, each as a struct of its shapes and settings.

use super::{Computation, Ports};
use crate::graph::ValueId;
use crate::ops::attention::{AttentionInputs, attention};
use crate::ops::elementwise::{self, Activation};
use crate::ops::embedding::{EmbeddingInputs, embedding};
use crate::ops::matmul::{self, Form};
use crate::ops::{self, cross_entropy, layer_norm, random, softmax};
use crate::{Error, Result};

/// The dropout of a kernel on its own, and its input `seed`; nothing where p is 0.
fn dropout(ports: &mut Ports, p: f64) -> Result<(Option<random::Dropout>, Option<ValueId>)> {
    if p == 0.0 {
        return Ok((None, None));
    }
    if !(0.0..1.0).contains(&p) {
        return Err(Error::config("dropout", format!("{p} is not at least 0 and below 1")));
    }
    Ok((Some(random::Dropout { p, site: 0 }), Some(ports.integers("seed", [2])?)))
}

/// alpha A B, for each of a batch of pairs.
///
/// Inputs: `a` f32 `[batch, m, k]`, `b` f32 `[batch, k, n]`. Output: `out` f32 `[batch, m, n]`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MatMul {
    /// Products.
    pub batch: usize,
    /// Rows of a product.
    pub m: usize,
    /// Terms of a sum.
    pub k: usize,
    /// Columns of a product.
    pub n: usize,
    /// `a` is stored as `[batch, k, m]`.
    pub transposed_a: bool,
    /// `b` is stored as `[batch, n, k]`.
    pub transposed_b: bool,
    /// The factor.
    pub alpha: f64,
}

impl Default for MatMul {
    fn default() -> Self {
        MatMul { batch: 1, m: 1, k: 1, n: 1, transposed_a: false, transposed_b: false, alpha: 1.0 }
    }
}

impl Computation for MatMul {
    fn build(&self, ports: &mut Ports) -> Result<()> {
        let stored = |transposed, rows, columns| match transposed {
            false => (Form::Plain, [self.batch, rows, columns]),
            true => (Form::Transposed, [self.batch, columns, rows]),
        };
        let (form_a, shape_a) = stored(self.transposed_a, self.m, self.k);
        let (form_b, shape_b) = stored(self.transposed_b, self.k, self.n);
        let a = ports.floats("a", shape_a)?;
        let b = ports.floats("b", shape_b)?;
        let with = matmul::MatMul { a: form_a, b: form_b, alpha: self.alpha, ..Default::default() };
        let out = matmul::matmul(ports.graph(), a, b, with)?;
        ports.output("out", out);
        Ok(())
    }
}

/// act(x W + b): a linear layer.
///
/// Inputs: `x` f32 `[rows, inputs]`, `weight` f32 `[inputs, outputs]`, with a bias `bias` f32 `[outputs]`. Output: `out`
/// f32 `[rows, outputs]`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Linear {
    /// Rows of x.
    pub rows: usize,
    /// Columns of x.
    pub inputs: usize,
    /// Columns of the result.
    pub outputs: usize,
    /// Whether there is a bias.
    pub bias: bool,
    /// Applied at the end.
    pub activation: Activation,
}

impl Default for Linear {
    fn default() -> Self {
        Linear { rows: 1, inputs: 1, outputs: 1, bias: false, activation: Activation::None }
    }
}

impl Computation for Linear {
    fn build(&self, ports: &mut Ports) -> Result<()> {
        let x = ports.floats("x", [self.rows, self.inputs])?;
        let weight = ports.floats("weight", [self.inputs, self.outputs])?;
        let bias = if self.bias { Some(ports.floats("bias", [self.outputs])?) } else { None };
        let out = matmul::linear(ports.graph(), x, weight, bias, self.activation)?;
        ports.output("out", out);
        Ok(())
    }
}

/// Which tensors hold the queries, keys and values of an attention; head h has the columns h D..(h + 1) D of each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Packing {
    /// `q` f32 `[B, T, H D]`, `k` and `v` f32 `[B, S, H D]`.
    #[default]
    Separate,
    /// `q` f32 `[B, T, H D]` and `kv` f32 `[B, S, 2 H D]`, with the columns k, v.
    KeysValues,
    /// `qkv` f32 `[B, T, 3 H D]`, with the columns q, k, v; T and S are one.
    All,
}

/// Scaled dot-product attention with H heads of width D over a batch of B, from T queries to S keys: fused, without the
/// scores in memory. See [`ops::attention::attention`] for the formula. A query that no key is left for gives 0.
///
/// Inputs, in this order: queries, keys and values as [`Attention::packing`] has them, then what is turned on of
/// `key_lengths` u32 `[B]`, `mask` u32 `[B, T, S]`, `bias` f32 `[H, T, S]` and `seed` u32 `[2]`. Output: `out` f32
/// `[B, T, H D]`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Attention {
    /// B.
    pub batch: usize,
    /// H.
    pub heads: usize,
    /// D, at most 256.
    pub head_width: usize,
    /// T, the number of queries.
    pub target: usize,
    /// S, the number of keys and values.
    pub source: usize,
    /// Where queries, keys and values lie.
    pub packing: Packing,
    /// Query t sees only keys s <= t.
    pub causal: bool,
    /// Only keys below `key_lengths` of their row are seen: without the padding.
    pub key_lengths: bool,
    /// Only keys where `mask` is 1 are seen.
    pub mask: bool,
    /// `bias` is added to the scaled scores.
    pub bias: bool,
    /// What scores are multiplied with; `None` is 1 / sqrt(D).
    pub scale: Option<f64>,
    /// Probability of dropout on the probabilities; above 0, `seed` says which (seed of the run, step).
    pub dropout: f64,
}

impl Default for Attention {
    fn default() -> Self {
        Attention {
            batch: 1,
            heads: 1,
            head_width: 1,
            target: 1,
            source: 1,
            packing: Packing::Separate,
            causal: false,
            key_lengths: false,
            mask: false,
            bias: false,
            scale: None,
            dropout: 0.0,
        }
    }
}

impl Computation for Attention {
    fn build(&self, ports: &mut Ports) -> Result<()> {
        let Attention { batch, heads, head_width, target, source, .. } = *self;
        // Absurd numbers are an error of the inputs below, not of this product.
        let width = heads.saturating_mul(head_width);
        let qkv = match self.packing {
            Packing::Separate => ops::attention::Packing::Separate {
                q: ports.floats("q", [batch, target, width])?,
                k: ports.floats("k", [batch, source, width])?,
                v: ports.floats("v", [batch, source, width])?,
            },
            Packing::KeysValues => ops::attention::Packing::Kv {
                q: ports.floats("q", [batch, target, width])?,
                kv: ports.floats("kv", [batch, source, width.saturating_mul(2)])?,
            },
            Packing::All if target != source => {
                let problem = format!("{target} queries and {source} keys cannot be packed in one tensor");
                return Err(Error::config("packing", problem));
            }
            Packing::All => {
                ops::attention::Packing::Qkv(ports.floats("qkv", [batch, target, width.saturating_mul(3)])?)
            }
        };
        let key_lengths = if self.key_lengths { Some(ports.integers("key_lengths", [batch])?) } else { None };
        let mask = if self.mask { Some(ports.integers("mask", [batch, target, source])?) } else { None };
        let bias = if self.bias { Some(ports.floats("bias", [heads, target, source])?) } else { None };
        let (dropout, seed) = dropout(ports, self.dropout)?;
        let settings = ops::attention::Attention { heads, causal: self.causal, scale: self.scale, dropout };
        let inputs = AttentionInputs { qkv, key_lengths, mask, bias, seed };
        let out = attention(ports.graph(), settings, inputs)?;
        ports.output("out", out);
        Ok(())
    }
}

/// LayerNorm over rows, of the sum of a residual and `x` where so set.
///
/// Inputs: `x` f32 `[rows, width]`, `weight` and `bias` f32 `[width]`, with a residual `residual` f32 `[rows, width]` and,
/// with dropout on `x`, `seed` u32 `[2]`. Outputs: `out` f32 `[rows, width]`, and with a residual `sum`, of which `out` is
/// the norm.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LayerNorm {
    /// Rows.
    pub rows: usize,
    /// Elements of a row.
    pub width: usize,
    /// Added to the variance.
    pub epsilon: f64,
    /// Whether a residual is added to `x` before.
    pub residual: bool,
    /// Probability of dropout on `x`; needs the residual.
    pub dropout: f64,
}

impl Default for LayerNorm {
    fn default() -> Self {
        LayerNorm { rows: 1, width: 1, epsilon: 1e-5, residual: false, dropout: 0.0 }
    }
}

impl Computation for LayerNorm {
    fn build(&self, ports: &mut Ports) -> Result<()> {
        let shape = [self.rows, self.width];
        let x = ports.floats("x", shape)?;
        let weight = ports.floats("weight", [self.width])?;
        let bias = ports.floats("bias", [self.width])?;
        if !self.residual {
            if self.dropout != 0.0 {
                return Err(Error::config("dropout", "is only there with a residual"));
            }
            let out = layer_norm::layer_norm(ports.graph(), x, weight, bias, self.epsilon)?;
            ports.output("out", out);
            return Ok(());
        }
        let residual = ports.floats("residual", shape)?;
        let (dropout, seed) = dropout(ports, self.dropout)?;
        let g = ports.graph();
        let (out, sum) = layer_norm::add_norm(g, residual, x, weight, bias, self.epsilon, dropout, seed)?;
        ports.output("out", out);
        ports.output("sum", sum);
        Ok(())
    }
}

/// Softmax over rows.
///
/// Input: `x` f32 `[rows, width]`. Output: `out` of the same shape.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Softmax {
    /// Rows.
    pub rows: usize,
    /// Elements of a row.
    pub width: usize,
    /// Its logarithm instead.
    pub log: bool,
}

impl Default for Softmax {
    fn default() -> Self {
        Softmax { rows: 1, width: 1, log: false }
    }
}

impl Computation for Softmax {
    fn build(&self, ports: &mut Ports) -> Result<()> {
        let x = ports.floats("x", [self.rows, self.width])?;
        let g = ports.graph();
        let out = if self.log { softmax::log_softmax(g, x)? } else { softmax::softmax(g, x)? };
        ports.output("out", out);
        Ok(())
    }
}

/// The mean cross-entropy of rows of logits, over the rows whose target counts.
///
/// Inputs: `logits` f32 `[rows, classes]`, `targets` u32 `[rows]`, below `classes` or [`CrossEntropy::ignore`]. Outputs:
/// `loss` f32 `[1]`, and without a gradient `stats` f32 `[3]`: the sum of the rows' losses, how many are predicted right,
/// how many count.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CrossEntropy {
    /// Rows.
    pub rows: usize,
    /// Logits of a row.
    pub classes: usize,
    /// Rows with this target do not count.
    pub ignore: u32,
    /// Label smoothing, from 0 to 1.
    pub smoothing: f64,
}

/// No target is ignored.
impl Default for CrossEntropy {
    fn default() -> Self {
        CrossEntropy { rows: 1, classes: 1, ignore: u32::MAX, smoothing: 0.0 }
    }
}

impl Computation for CrossEntropy {
    fn build(&self, ports: &mut Ports) -> Result<()> {
        let logits = ports.floats("logits", [self.rows, self.classes])?;
        let targets = ports.integers("targets", [self.rows])?;
        let settings = cross_entropy::CrossEntropy { ignore: self.ignore, smoothing: self.smoothing };
        let g = ports.graph();
        let count = cross_entropy::count_targets(g, targets, self.ignore)?;
        let found = cross_entropy::cross_entropy(g, logits, targets, count, settings)?;
        ports.output("loss", found.loss);
        ports.fixed_output("stats", found.stats);
        Ok(())
    }
}

/// Rows of a table by ids, with positions where so set: scale table\[id\] + position, then dropout.
///
/// Inputs: `ids` u32 `[rows, length]`, each below `vocabulary`; `table` f32 `[vocabulary, width]`; with positions
/// `positions` f32 `[length, width]`; with dropout `seed` u32 `[2]`. Output: `out` f32 `[rows, length, width]`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Embedding {
    /// Rows of ids.
    pub rows: usize,
    /// Ids of a row.
    pub length: usize,
    /// Rows of the table.
    pub vocabulary: usize,
    /// Columns of the table.
    pub width: usize,
    /// What the rows of the table are multiplied with.
    pub scale: f64,
    /// Whether positions are added.
    pub positions: bool,
    /// Probability of dropout.
    pub dropout: f64,
}

impl Default for Embedding {
    fn default() -> Self {
        Embedding { rows: 1, length: 1, vocabulary: 1, width: 1, scale: 1.0, positions: false, dropout: 0.0 }
    }
}

impl Computation for Embedding {
    fn build(&self, ports: &mut Ports) -> Result<()> {
        let ids = ports.integers("ids", [self.rows, self.length])?;
        let table = ports.floats("table", [self.vocabulary, self.width])?;
        let positions =
            if self.positions { Some(ports.floats("positions", [self.length, self.width])?) } else { None };
        let (dropout, seed) = dropout(ports, self.dropout)?;
        let inputs = EmbeddingInputs { ids, table, positions, offset: None, seed };
        let out = embedding(ports.graph(), inputs, self.scale, dropout)?;
        ports.output("out", out);
        Ok(())
    }
}

/// An activation of each element.
///
/// Input: `x` f32 `[elements]`. Output: `out` of the same shape.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Activate {
    /// Elements.
    pub elements: usize,
    /// Which.
    pub activation: Activation,
}

impl Computation for Activate {
    fn build(&self, ports: &mut Ports) -> Result<()> {
        if self.activation == Activation::None {
            return Err(Error::config("activation", "none: there is nothing to compute"));
        }
        let x = ports.floats("x", [self.elements])?;
        let out = elementwise::activate(ports.graph(), self.activation, x)?;
        ports.output("out", out);
        Ok(())
    }
}

/// Dropout: each element becomes 0 with probability p, else it is divided by 1 - p.
///
/// Inputs: `x` f32 `[elements]`, `seed` u32 `[2]` (seed of the run, step). Output: `out` of the shape of `x`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Dropout {
    /// Elements.
    pub elements: usize,
    /// The probability, above 0 and below 1.
    pub p: f64,
}

impl Computation for Dropout {
    fn build(&self, ports: &mut Ports) -> Result<()> {
        let x = ports.floats("x", [self.elements])?;
        let (Some(dropout), Some(seed)) = dropout(ports, self.p)? else {
            return Err(Error::config("p", "0: there is nothing to drop"));
        };
        let out = ops::dropout::dropout(ports.graph(), x, dropout, seed)?;
        ports.output("out", out);
        Ok(())
    }
}

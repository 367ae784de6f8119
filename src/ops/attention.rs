//! Scaled dot-product attention with many heads (Vaswani et al., 2017, section 3.2), fused: the scores never exist in
//! memory. Forward saves one log-sum-exp a row; backward recomputes the probabilities from it (Dao et al., 2022) and sums
//! in a fixed order, without atomics.

mod excerpt;
mod lower;
mod reader;

pub(super) use lower::{ENTRIES, ENTRIES_LANES, SOURCE, SOURCE_LANES, SOURCE_WHOLE};

use super::random::Dropout;
use super::rounding::{TINY, exp, exp_of, once, size, sum};
use crate::graph::{Excerpt, Graph, Lowering, Node, Op, ValueId};
use crate::kernel::{Dispatch, Kernel, Slice};
use crate::rng::Rng;
use crate::{Error, Result, Tensor64, TensorType};
use lower::{Entries, Lowered, R, Tiled, W, WHOLE_APART, WHOLE_JOINT};
use reader::Reader;
use std::f64::consts::{LN_2, LOG2_E};

/// A score at or below this is of a key that may not be attended to; also what a bias may hold to that end.
const MASKED: f64 = -1e30;
/// The largest head dimension.
const MAX_HEAD: usize = 256;

/// Where queries, keys and values lie. Head h of a tensor of width H D has the columns h D..(h + 1) D.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Packing {
    /// Three tensors: q `[B, T, H D]`, k and v `[B, S, H D]`.
    Separate {
        /// The queries.
        q: ValueId,
        /// The keys.
        k: ValueId,
        /// The values.
        v: ValueId,
    },
    /// Self-attention: one tensor `[B, T, 3 H D]` with the columns q, k, v.
    Qkv(ValueId),
    /// Decoding: the queries of one tensor `[B, T, 3 H D]` with the columns q, k, v, over the keys and values of a cache
    /// `[B, S, 3 H D]` of such rows. No gradient.
    Cached {
        /// The new rows, of which only the queries are read.
        qkv: ValueId,
        /// All rows, the new ones included.
        cache: ValueId,
    },
    /// Cross-attention, or a key/value cache: q `[B, T, H D]` and kv `[B, S, 2 H D]` with the columns k, v.
    Kv {
        /// The queries.
        q: ValueId,
        /// The keys and values.
        kv: ValueId,
    },
}

/// The settings of an attention.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Attention {
    /// H, the number of heads; must divide the width.
    pub heads: usize,
    /// Query t attends only to keys s <= t (also where T and S differ).
    pub causal: bool,
    /// What the products of queries and keys are multiplied with; by default 1 / sqrt(D).
    pub scale: Option<f64>,
    /// Dropout on the probabilities; `None` or p = 0 for none. The index of an element is that in `[B, H, T, S]`, modulo
    /// 2^32.
    pub dropout: Option<Dropout>,
}

impl Attention {
    /// Attention with `heads` heads, not causal, with the default scale and no dropout.
    pub fn new(heads: usize) -> Self {
        Attention { heads, causal: false, scale: None, dropout: None }
    }
}

/// The inputs of an attention. A query attends to the keys that all of length, causality and mask allow; where there are
/// none its output is 0, and so are the gradients.
#[derive(Clone, Copy, Debug)]
pub struct AttentionInputs {
    /// Queries, keys and values.
    pub qkv: Packing,
    /// u32 `[B]`: the keys s below it may be attended to.
    pub key_lengths: Option<ValueId>,
    /// u32 `[B, T, S]` or `[T, S]`: 1 where query t may attend to key s, else 0.
    pub mask: Option<ValueId>,
    /// f32 `[H, T, S]`: added to the scaled scores. Must be finite; -1e30 and below mask the key.
    pub bias: Option<ValueId>,
    /// u32 `[2]`, (seed of the run, step): needed with dropout.
    pub seed: Option<ValueId>,
}

impl AttentionInputs {
    /// Without lengths, mask, bias, seed.
    pub fn new(qkv: Packing) -> Self {
        AttentionInputs { qkv, key_lengths: None, mask: None, bias: None, seed: None }
    }
}

/// Attention: `[B, T, H D]`.
///
/// `out[b,t,h] = sum_s P[b,h,t,s] v[b,s,h]`, with
/// `P = dropout(softmax over s of (scale q[b,t,h] . k[b,s,h] + bias[h,t,s]))`.
///
/// # Errors
/// When shapes do not fit, a head is wider than 256, or dropout has no seed.
pub fn attention(g: &mut Graph, settings: Attention, inputs: AttentionInputs) -> Result<ValueId> {
    let (spec, values) = Spec::new(settings, &inputs)?;
    Ok(g.add_node(Forward(spec), &values)?[0])
}

/// The probabilities P `[B, H, T, S]` before dropout, to look at; no gradient.
///
/// # Errors
/// As [`attention`].
pub fn attention_probabilities(
    g: &mut Graph,
    settings: Attention,
    inputs: AttentionInputs,
) -> Result<ValueId> {
    let inputs = AttentionInputs { seed: None, ..inputs };
    let (spec, values) = Spec::new(Attention { dropout: None, ..settings }, &inputs)?;
    g.add(Probabilities(spec), &values)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Separate,
    Qkv,
    Cached,
    Kv,
}

impl Kind {
    /// How many tensors queries, keys and values are.
    fn operands(self) -> usize {
        match self {
            Kind::Separate => 3,
            Kind::Qkv => 1,
            Kind::Cached | Kind::Kv => 2,
        }
    }

    /// For q, k, v: the tensor, the widths of a row, and the width at which the first head begins, in widths of H D.
    fn part(self, i: usize) -> (usize, usize, usize) {
        match self {
            Kind::Separate => (i, 1, 0),
            Kind::Qkv => (0, 3, i),
            Kind::Cached => (usize::from(i > 0), 3, i),
            Kind::Kv if i == 0 => (0, 1, 0),
            Kind::Kv => (1, 2, i - 1),
        }
    }
}

/// What the kernels are specialised by; dropout with p > 0 only.
#[derive(Clone, Copy, Debug)]
struct Spec {
    settings: Attention,
    kind: Kind,
    lengths: bool,
    mask: bool,
    bias: bool,
}

struct Sizes {
    batch: usize,
    t: usize,
    s: usize,
    heads: usize,
    /// D.
    head: usize,
}

impl Sizes {
    fn width(&self) -> usize {
        self.heads * self.head
    }
}

impl Spec {
    /// The spec, and the inputs of the node: q, k, v as they are packed, then lengths, mask, bias, seed, each if there.
    fn new(settings: Attention, inputs: &AttentionInputs) -> Result<(Spec, Vec<ValueId>)> {
        let dropout = settings.dropout.filter(|d| d.p != 0.0);
        let (kind, mut values) = match inputs.qkv {
            Packing::Separate { q, k, v } => (Kind::Separate, vec![q, k, v]),
            Packing::Qkv(qkv) => (Kind::Qkv, vec![qkv]),
            Packing::Cached { qkv, cache } => (Kind::Cached, vec![qkv, cache]),
            Packing::Kv { q, kv } => (Kind::Kv, vec![q, kv]),
        };
        if dropout.is_some() && inputs.seed.is_none() {
            return Err(Error::config("attention", "dropout needs the input `seed`, u32[2]: (seed, step)"));
        }
        let seed = inputs.seed.filter(|_| dropout.is_some());
        values.extend([inputs.key_lengths, inputs.mask, inputs.bias, seed].into_iter().flatten());
        let spec = Spec {
            settings: Attention { dropout, ..settings },
            kind,
            lengths: inputs.key_lengths.is_some(),
            mask: inputs.mask.is_some(),
            bias: inputs.bias.is_some(),
        };
        Ok((spec, values))
    }

    /// The place of the optional inputs among the inputs of a node, if its first one would be at `start`.
    fn optional(&self, start: usize) -> Optional {
        let mut next = start;
        let mut take = |there: bool| {
            next += usize::from(there);
            there.then(|| next - 1)
        };
        Optional {
            lengths: take(self.lengths),
            mask: take(self.mask),
            bias: take(self.bias),
            seed: take(self.settings.dropout.is_some()),
        }
    }

    fn sizes(&self, inputs: &[&TensorType]) -> Sizes {
        let dims = |i: usize| inputs[self.kind.part(i).0].shape.dims();
        let heads = self.settings.heads;
        let (_, widths, _) = self.kind.part(0);
        Sizes {
            batch: dims(0)[0],
            t: dims(0)[1],
            s: dims(1)[1],
            heads,
            head: dims(0)[2] / (heads * widths).max(1),
        }
    }

    /// Checks q, k, v and the optional inputs, which begin at `start`.
    fn check(&self, inputs: &[&TensorType], start: usize) -> Result<Sizes> {
        let heads = self.settings.heads;
        let names = match self.kind {
            Kind::Separate => ["q", "k", "v"],
            Kind::Qkv => ["qkv", "", ""],
            Kind::Cached => ["qkv", "cache", ""],
            Kind::Kv => ["q", "kv", ""],
        };
        for (name, t) in names.iter().zip(&inputs[..self.kind.operands()]) {
            if !t.dtype.is_float() || t.shape.rank() != 3 || t.shape.elements() == 0 {
                return Err(Error::shape("", *name, "f32 or f16 [batch, length, width]", t));
            }
        }
        let (_, widths, _) = self.kind.part(0);
        if heads == 0 || !inputs[0].shape.last().is_multiple_of(heads * widths) {
            let want = format!("a width that is a multiple of {} ({heads} heads)", heads * widths);
            return Err(Error::shape("", names[0], want, inputs[0]));
        }
        let n = self.sizes(inputs);
        if n.head > MAX_HEAD {
            let problem = format!("a head of {} columns is too wide; use at least {} heads", n.head, {
                n.width().div_ceil(MAX_HEAD)
            });
            return Err(Error::config("attention", problem));
        }
        for i in 0..3 {
            let (tensor, widths, _) = self.kind.part(i);
            let rows = if i == 0 { n.t } else { n.s };
            let want = TensorType::new(inputs[0].dtype, [n.batch, rows, widths * n.width()]);
            if *inputs[tensor] != want {
                return Err(Error::shape("", names[tensor], want, inputs[tensor]));
            }
        }
        let at = self.optional(start);
        if let Some(i) = at.lengths {
            let want = TensorType::u32([n.batch]);
            if *inputs[i] != want {
                return Err(Error::shape("", "key_lengths", want, inputs[i]));
            }
        }
        if let Some(i) = at.mask {
            let (one, all) = (TensorType::u32([n.t, n.s]), TensorType::u32([n.batch, n.t, n.s]));
            if *inputs[i] != one && *inputs[i] != all {
                return Err(Error::shape("", "mask", format!("{all} or {one}"), inputs[i]));
            }
        }
        if let Some(i) = at.bias {
            let want = TensorType::f32([n.heads, n.t, n.s]);
            if *inputs[i] != want {
                return Err(Error::shape("", "bias", want, inputs[i]));
            }
        }
        if let (Some(i), Some(dropout)) = (at.seed, self.settings.dropout) {
            dropout.check(inputs[i])?;
        }
        Ok(n)
    }

    fn scale(&self, n: &Sizes) -> f64 {
        self.settings.scale.unwrap_or(1.0 / (n.head as f64).sqrt())
    }
}

struct Optional {
    lengths: Option<usize>,
    mask: Option<usize>,
    bias: Option<usize>,
    seed: Option<usize>,
}

// ---- Forward ----

/// Outputs: out `[B, T, H D]`, and for backward lse `[B, H, T]`, the log-sum-exp of each row of scores, in base 2.
#[derive(Clone, Copy, Debug)]
struct Forward(Spec);

impl Op for Forward {
    fn name(&self) -> &'static str {
        "attention"
    }

    fn outputs(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>> {
        let n = self.0.check(inputs, self.0.kind.operands())?;
        let out = TensorType::new(inputs[0].dtype, [n.batch, n.t, n.width()]);
        Ok(vec![out, TensorType::f32([n.batch, n.heads, n.t])])
    }

    fn reference(&self, inputs: &[&Tensor64]) -> Vec<Tensor64> {
        let x = Reader::new(&self.0, inputs, self.0.kind.operands());
        let n = &x.n;
        let mut out = Tensor64::zeros([n.batch, n.t, n.width()]);
        let mut lse = Tensor64::zeros([n.batch, n.heads, n.t]);
        for (b, h, t) in x.rows() {
            let (p, log) = x.softmax(b, h, t);
            lse.data[(b * n.heads + h) * n.t + t] = log;
            for (s, p) in p.iter().enumerate() {
                for d in 0..n.head {
                    out.data[(b * n.t + t) * n.width() + h * n.head + d] +=
                        p * x.kept(b, h, t, s) * x.get(2, b, s, h, d);
                }
            }
        }
        vec![out, lse]
    }

    /// Sums over the keys, with the probabilities' own errors, or what is lost where one is taken for zero; two for the
    /// dropout.
    fn rounding(&self, inputs: &[&Tensor64], results: &[Tensor64]) -> Vec<Tensor64> {
        let x = Reader::new(&self.0, inputs, self.0.kind.operands());
        let n = &x.n;
        let (mut out, mut lse) = (results[0].clone(), results[1].clone());
        for (b, h, t) in x.rows() {
            let (p, _) = x.softmax(b, h, t);
            let (e_p, e_lse) = x.softmax_rounding(b, h, t);
            lse.data[(b * n.heads + h) * n.t + t] = e_lse;
            for d in 0..n.head {
                let (mut terms, mut errors) = (0.0, 0.0);
                for s in 0..n.s {
                    let factor = x.kept(b, h, t, s) * size(x.get(2, b, s, h, d));
                    terms += p[s] * factor;
                    errors += (p[s] * (e_p[s] + 2.0) + TINY) * factor;
                }
                let y = &mut out.data[(b * n.t + t) * n.width() + h * n.head + d];
                *y = sum(n.s, terms, *y) + errors;
            }
        }
        vec![out, lse]
    }

    fn excerpts(&self, inputs: &[&Tensor64], rng: &mut Rng) -> Vec<Excerpt> {
        excerpt::forward(&self.0, inputs, rng)
    }

    fn gradient(
        &self,
        g: &mut Graph,
        node: &Node,
        d_outputs: &[Option<ValueId>],
    ) -> Result<Vec<Option<ValueId>>> {
        if self.0.kind == Kind::Cached {
            return Err(no_gradient());
        }
        let operands = self.0.kind.operands();
        let mut gradients = vec![None; node.inputs.len()];
        if let Some(d_out) = d_outputs[0] {
            let mut inputs = node.inputs[..operands].to_vec();
            inputs.extend([node.outputs[0], node.outputs[1], d_out]);
            inputs.extend(&node.inputs[operands..]);
            let mut d = g.add_node(Backward(self.0), &inputs)?.into_iter();
            for (gradient, d) in gradients.iter_mut().zip(d.by_ref().take(operands)) {
                *gradient = Some(d);
            }
            if let Some(i) = self.0.optional(operands).bias {
                gradients[i] = d.next();
            }
        }
        Ok(gradients)
    }

    fn lower(&self, l: &mut Lowering) -> Result<()> {
        let x = Lowered::new(&self.0, l, self.0.kind.operands())?;
        let [q, k, v] = x.qkv(l);
        let dummy = q;
        let lengths = x.at.lengths.map_or(dummy, |i| l.input(i).into());
        let seed = x.at.seed.map_or(dummy, |i| l.input(i).into());
        let (n, bindings) = (&x.n, [R, R, R, R, R, R, W, W]);
        let entries = Entries { tiled: "forward", lanes: "forward_lanes", parts: "forward_part" };
        let Tiled { kernel, rows, parts } = x.tiled(l, "forward", entries, &bindings, n.t, n.s)?;
        let (lines, params) = (n.batch * n.heads * n.t, x.params_of_parts(parts));
        let (out, lse): (Slice, Slice) = (l.output(0).into(), l.output(1).into());
        // What each range of keys has found of each row.
        let [sums, found] = match parts.0 {
            1 => [out, lse],
            count => [count * lines * n.head, count * lines * 2].map(|elements| l.scratch(elements).into()),
        };
        l.push(Dispatch {
            kernel,
            operands: vec![q, k, v, x.extra, lengths, seed, sums, found],
            params: params.clone(),
            groups: l.groups_1d(n.batch * n.heads * n.t.div_ceil(rows) * parts.0)?,
            flops: x.flops(2),
        });
        if parts.0 > 1 {
            l.push(Dispatch {
                kernel: x.kernel("merge", &[R, R, W, W]),
                operands: vec![sums, found, out, lse],
                params,
                groups: l.groups_1d((lines * n.head).div_ceil(64))?,
                flops: 0,
            });
        }
        Ok(())
    }
}

fn no_gradient() -> Error {
    Error::config("attention", "attention over a cache has no gradient: train with Packing::Qkv")
}

// ---- Backward ----

/// The text of the kernel that gives every gradient, and the outputs that it writes; `None` where they need too many bindings.
type Whole = Option<(&'static str, &'static [usize])>;

/// Inputs: q, k, v as they are packed, out, lse, d_out, then the optional ones. Outputs: the gradients of q, k, v, packed
/// as they are, and with a bias its gradient.
#[derive(Clone, Copy, Debug)]
struct Backward(Spec);

impl Backward {
    fn start(&self) -> usize {
        self.0.kind.operands() + 3
    }
}

impl Op for Backward {
    fn name(&self) -> &'static str {
        "attention"
    }

    fn outputs(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>> {
        let operands = self.0.kind.operands();
        let n = self.0.check(inputs, self.start())?;
        let width = TensorType::f32([n.batch, n.t, n.width()]);
        for (i, name) in [(operands, "out"), (operands + 2, "d_out")] {
            if *inputs[i] != width {
                return Err(Error::shape("", name, width, inputs[i]));
            }
        }
        let mut outputs: Vec<TensorType> = inputs[..operands].iter().map(|&t| t.clone()).collect();
        if let Some(i) = self.0.optional(self.start()).bias {
            outputs.push(inputs[i].clone());
        }
        Ok(outputs)
    }

    fn reference(&self, inputs: &[&Tensor64]) -> Vec<Tensor64> {
        let operands = self.0.kind.operands();
        let x = Reader::new(&self.0, inputs, self.start());
        let n = &x.n;
        let [out, lse, d_out] = [0, 1, 2].map(|i| inputs[operands + i]);
        let scale = self.0.scale(n);
        let mut d: Vec<Tensor64> =
            inputs[..operands].iter().map(|t| Tensor64::zeros(t.shape.clone())).collect();
        let mut d_bias = Tensor64::zeros([n.heads, n.t, n.s]);
        for (b, h, t) in x.rows() {
            let p = x.probabilities(b, h, t, lse.data[(b * n.heads + h) * n.t + t]);
            let [row, d_row] =
                [out, d_out].map(|y| &y.data[(b * n.t + t) * n.width() + h * n.head..][..n.head]);
            let d_p: Vec<f64> = (0..n.s)
                .map(|s| {
                    let dot: f64 = (0..n.head).map(|c| d_row[c] * x.get(2, b, s, h, c)).sum();
                    dot * x.kept(b, h, t, s)
                })
                .collect();
            let delta: f64 = row.iter().zip(d_row).map(|(y, d)| y * d).sum();
            for s in 0..n.s {
                let d_x = p[s] * (d_p[s] - delta);
                d_bias.data[(h * n.t + t) * n.s + s] += d_x;
                let mut add = |part: usize, row: usize, c: usize, y: f64| {
                    let (tensor, i) = x.place(part, b, row, h, c);
                    d[tensor].data[i] += y;
                };
                for (c, d) in d_row.iter().enumerate() {
                    add(0, t, c, scale * d_x * x.get(1, b, s, h, c));
                    add(1, s, c, scale * d_x * x.get(0, b, t, h, c));
                    add(2, s, c, p[s] * x.kept(b, h, t, s) * d);
                }
            }
        }
        if self.0.bias {
            d.push(d_bias);
        }
        d
    }

    /// Sums over keys or queries of d_x = p (d_p - delta), whose parts may cancel, so their own errors count; p is an
    /// exponential of the score, which may be taken for zero.
    fn rounding(&self, inputs: &[&Tensor64], results: &[Tensor64]) -> Vec<Tensor64> {
        let operands = self.0.kind.operands();
        let x = Reader::new(&self.0, inputs, self.start());
        let n = &x.n;
        let [out, lse, d_out] = [0, 1, 2].map(|i| inputs[operands + i]);
        let scale = self.0.scale(n).abs();
        let zeros = || results.iter().map(|t| Tensor64::zeros(t.shape.clone())).collect::<Vec<_>>();
        // Of each element the magnitudes of its terms, and their errors.
        let (mut sizes, mut errors) = (zeros(), zeros());
        for (b, h, t) in x.rows() {
            let lse = lse.data[(b * n.heads + h) * n.t + t];
            let p = x.probabilities(b, h, t, lse);
            let [row, d_row] =
                [out, d_out].map(|y| &y.data[(b * n.t + t) * n.width() + h * n.head..][..n.head]);
            let delta: f64 = row.iter().zip(d_row).map(|(y, d)| size(*y) * size(*d)).sum();
            let e_delta = sum(n.head, delta, row.iter().zip(d_row).map(|(y, d)| y * d).sum());
            for (s, p) in p.into_iter().enumerate() {
                let Some(score) = x.score(b, h, t, s) else { continue };
                let kept = x.kept(b, h, t, s);
                let e_p = exp_of(LN_2 * x.score_rounding(b, h, t, s)) + exp(score * LOG2_E - lse);
                let pairs = d_row.iter().enumerate().map(|(c, d)| (*d, x.get(2, b, s, h, c)));
                let d_p: f64 = pairs.clone().map(|(d, v)| size(d) * size(v)).sum();
                let e_d_p = sum(n.head, d_p, pairs.map(|(d, v)| d * v).sum()) + 2.0 * d_p;
                let parts = kept * d_p + delta;
                let e_parts = kept * e_d_p + e_delta;
                let e_p = p * (e_p + 2.0) + TINY;
                let (d_x, e_x) = (p * parts, p * e_parts + e_p * parts);
                let mut add = |tensor: usize, i: usize, term: f64, error: f64| {
                    sizes[tensor].data[i] += term;
                    errors[tensor].data[i] += error;
                };
                if self.0.bias {
                    add(operands, (h * n.t + t) * n.s + s, d_x, e_x);
                }
                for (c, d) in d_row.iter().enumerate() {
                    for (part, row, other) in [(0, t, x.get(1, b, s, h, c)), (1, s, x.get(0, b, t, h, c))] {
                        let (tensor, i) = x.place(part, b, row, h, c);
                        let factor = scale * size(other);
                        add(tensor, i, factor * d_x, factor * (e_x + 2.0 * d_x));
                    }
                    let (tensor, i) = x.place(2, b, s, h, c);
                    add(tensor, i, p * kept * size(*d), e_p * kept * size(*d));
                }
            }
        }
        for (tensor, ((error, size), y)) in errors.iter_mut().zip(&sizes).zip(results).enumerate() {
            // Packed together, queries and keys are as many.
            let terms = match tensor {
                0 => n.s,
                i if i < operands => n.t,
                _ => n.batch,
            };
            for (i, e) in error.data.iter_mut().enumerate() {
                *e += sum(terms, size.data[i], y.data[i]);
            }
        }
        errors
    }

    fn excerpts(&self, inputs: &[&Tensor64], rng: &mut Rng) -> Vec<Excerpt> {
        excerpt::backward(&self.0, inputs, rng)
    }

    fn lower(&self, l: &mut Lowering) -> Result<()> {
        let operands = self.0.kind.operands();
        let x = Lowered::new(&self.0, l, self.start())?;
        let n = &x.n;
        let [q, k, v] = x.qkv(l);
        let [out, lse, d_out] = [0, 1, 2].map(|i| Slice::from(l.input(operands + i)));
        let rows = n.batch * n.heads * n.t;
        let saved: Slice = l.scratch(2 * rows + 2 + n.batch).into();
        let lengths = x.at.lengths.map_or(lse, |i| l.input(i).into());
        let seed = x.at.seed.map_or(lse, |i| l.input(i).into());
        l.push(Dispatch {
            kernel: x.kernel("stats", &[R, R, R, R, R, W]),
            operands: vec![out, d_out, lse, lengths, seed, saved],
            params: x.params(),
            groups: l.groups_1d((rows + 2 + n.batch).div_ceil(64))?,
            flops: 2 * (rows * n.head) as u64,
        });
        let push = |l: &mut Lowering, kernel: Kernel, written: &[usize], groups: usize, products: u64| {
            let mut operands = vec![q, k, v, x.extra, d_out, saved];
            operands.extend(written.iter().map(|&i| Slice::from(l.output(i))));
            let (params, groups) = (x.params(), l.groups_1d(groups)?);
            l.push(Dispatch { kernel, operands, params, groups, flops: x.flops(products) });
            Ok::<(), Error>(())
        };
        let bindings = |written: &[usize]| [&[R; 6][..], &vec![W; written.len()]].concat();
        let pairs = n.batch * n.heads;
        // The kernel for all gradients and the outputs that it writes; those of keys and values and theirs.
        const KV_JOINT: [&str; 2] = ["backward_kv_joint", "backward_kv_joint_lanes"];
        let (whole, [tiled, lanes], kv): (Whole, _, &[usize]) = match self.0.kind {
            Kind::Separate => (None, ["backward_kv", "backward_kv_lanes"], &[1, 2]),
            Kind::Kv => (Some((WHOLE_APART, &[0, 1])), KV_JOINT, &[1]),
            Kind::Qkv => (Some((WHOLE_JOINT, &[0])), KV_JOINT, &[0]),
            Kind::Cached => return Err(no_gradient()),
        };
        let mut done = false;
        if let Some((text, all)) = whole.filter(|(_, all)| all.iter().all(|&i| l.output_used(i)))
            && let Some(kernel) = x.whole(l, text, &bindings(all))?
        {
            push(l, kernel, all, pairs, 5)?;
            done = true;
        }
        if !done && l.output_used(0) {
            let entries = Entries { tiled: "backward_q", lanes: "backward_q_lanes", parts: "" };
            let of = x.tiled(l, "backward_q", entries, &bindings(&[0]), n.t, n.s)?;
            push(l, of.kernel, &[0], pairs * n.t.div_ceil(of.rows), 2)?;
        }
        if !done && kv.iter().any(|&i| l.output_used(i)) {
            let entries = Entries { tiled, lanes, parts: "" };
            let of = x.tiled(l, "backward_kv", entries, &bindings(kv), n.s, n.t)?;
            push(l, of.kernel, kv, pairs * n.s.div_ceil(of.rows), 3)?;
        }
        if self.0.bias && l.output_used(operands) {
            let kernel = x.kernel("backward_bias", &bindings(&[operands]));
            push(l, kernel, &[operands], (n.heads * n.t * n.s).div_ceil(64), 0)?;
        }
        Ok(())
    }
}

// ---- Probabilities ----

#[derive(Clone, Copy, Debug)]
struct Probabilities(Spec);

impl Op for Probabilities {
    fn name(&self) -> &'static str {
        "attention"
    }

    fn outputs(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>> {
        let n = self.0.check(inputs, self.0.kind.operands())?;
        Ok(vec![TensorType::f32([n.batch, n.heads, n.t, n.s])])
    }

    fn reference(&self, inputs: &[&Tensor64]) -> Vec<Tensor64> {
        let x = Reader::new(&self.0, inputs, self.0.kind.operands());
        let data = x.rows().flat_map(|(b, h, t)| x.softmax(b, h, t).0).collect();
        vec![Tensor64::new([x.n.batch, x.n.heads, x.n.t, x.n.s], data)]
    }

    /// The probabilities' own.
    fn rounding(&self, inputs: &[&Tensor64], results: &[Tensor64]) -> Vec<Tensor64> {
        let x = Reader::new(&self.0, inputs, self.0.kind.operands());
        let errors = x.rows().flat_map(|(b, h, t)| x.softmax_rounding(b, h, t).0);
        let errors = errors.zip(&results[0].data).map(|(e, p)| once(e * p));
        vec![Tensor64::new(results[0].shape.clone(), errors.collect())]
    }

    fn lower(&self, l: &mut Lowering) -> Result<()> {
        let x = Lowered::new(&self.0, l, self.0.kind.operands())?;
        let [q, k, v] = x.qkv(l);
        let lengths = x.at.lengths.map_or(q, |i| l.input(i).into());
        l.push(Dispatch {
            kernel: x.kernel("plot", &[R, R, R, R, R, W]),
            operands: vec![q, k, v, x.extra, lengths, l.output(0).into()],
            params: x.params(),
            groups: l.groups_1d((x.n.batch * x.n.heads * x.n.t).div_ceil(64))?,
            flops: x.flops(1),
        });
        Ok(())
    }
}

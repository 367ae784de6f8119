//! Scaled dot-product attention with many heads (Vaswani et al., 2017, section 3.2), fused: the scores never exist in
//! memory. Forward saves one log-sum-exp a row; backward recomputes the probabilities from it (Dao et al., 2022) and sums
//! in a fixed order, without atomics.

use super::lib_wgsl;
use super::params::params;
use super::random::{Dropout, RandomKey};
use super::rounding::{DIVIDE, TINY, exp, exp_of, log, once, size, softmax_sum, sum};
use crate::graph::{Graph, Lowering, Node, Op, ValueId};
use crate::kernel::{Access, Const, Dispatch, Kernel, Operand, Requires, Slice, parts};
use crate::{DType, DeviceClass, Error, Result, Tensor64, TensorType};
use std::f64::consts::{LN_2, LOG2_E};

pub(super) const SOURCE: &str = include_str!("../../shaders/attention.wgsl");
pub(super) const SOURCE_LANES: &str = include_str!("../../shaders/attention_lanes.wgsl");
/// The entry points of `shaders/attention_lanes.wgsl`.
pub(super) const ENTRIES_LANES: &[&str] =
    &["forward_lanes", "backward_q_lanes", "backward_kv_lanes", "backward_kv_joint_lanes"];
/// The entry points of `shaders/attention.wgsl`.
pub(super) const ENTRIES: &[&str] =
    &["forward", "plot", "stats", "backward_q", "backward_kv", "backward_kv_joint", "backward_bias", "join"];

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
            if t.dtype != DType::F32 || t.shape.rank() != 3 || t.shape.elements() == 0 {
                return Err(Error::shape("", *name, "f32[batch, length, width]", t));
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
            let want = TensorType::f32([n.batch, rows, widths * n.width()]);
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

// ---- Reference ----

/// The inputs of a node, element by element.
struct Reader<'a> {
    spec: &'a Spec,
    n: Sizes,
    inputs: &'a [&'a Tensor64],
    at: Optional,
    key: RandomKey,
}

impl<'a> Reader<'a> {
    /// `start` is the place of the first optional input.
    fn new(spec: &'a Spec, inputs: &'a [&'a Tensor64], start: usize) -> Self {
        let types: Vec<TensorType> = inputs.iter().map(|t| TensorType::f32(t.shape.clone())).collect();
        let n = spec.sizes(&types.iter().collect::<Vec<_>>());
        let at = spec.optional(start);
        let seed = at.seed.map_or([0, 0], |i| [inputs[i].u32(0), inputs[i].u32(1)]);
        let key = RandomKey::new(seed, spec.settings.dropout.map_or(0, |d| d.site));
        Reader { spec, n, inputs, at, key }
    }

    /// The tensor, and the flat index in it, of an element of q, k or v (part 0, 1, 2).
    fn place(&self, part: usize, b: usize, row: usize, h: usize, d: usize) -> (usize, usize) {
        let (tensor, widths, at) = self.spec.kind.part(part);
        let rows = if part == 0 { self.n.t } else { self.n.s };
        let w = self.n.width();
        (tensor, (b * rows + row) * widths * w + at * w + h * self.n.head + d)
    }

    fn get(&self, part: usize, b: usize, row: usize, h: usize, d: usize) -> f64 {
        let (tensor, i) = self.place(part, b, row, h, d);
        self.inputs[tensor].data[i]
    }

    /// The score of a key in base e, or `None` where the query may not attend to it.
    fn score(&self, b: usize, h: usize, t: usize, s: usize) -> Option<f64> {
        let n = &self.n;
        let length = self.at.lengths.map_or(n.s, |i| self.inputs[i].data[b] as usize);
        if s >= length || (self.spec.settings.causal && s > t) {
            return None;
        }
        if let Some(i) = self.at.mask {
            let mask = self.inputs[i];
            let batch = if mask.shape.rank() == 3 { b * n.t * n.s } else { 0 };
            if mask.data[batch + t * n.s + s] == 0.0 {
                return None;
            }
        }
        let product: f64 = (0..n.head).map(|d| self.get(0, b, t, h, d) * self.get(1, b, s, h, d)).sum();
        let bias = self.at.bias.map_or(0.0, |i| self.inputs[i].data[(h * n.t + t) * n.s + s]);
        (bias > MASKED).then_some(product * self.spec.scale(n) + bias)
    }

    /// The probabilities of a query over all keys, and its log-sum-exp in base 2 (0 where all keys are masked).
    fn softmax(&self, b: usize, h: usize, t: usize) -> (Vec<f64>, f64) {
        let scores: Vec<Option<f64>> = (0..self.n.s).map(|s| self.score(b, h, t, s)).collect();
        let Some(max) = scores.iter().flatten().copied().reduce(f64::max) else {
            return (vec![0.0; self.n.s], 0.0);
        };
        let e: Vec<f64> = scores.iter().map(|x| x.map_or(0.0, |x| (x - max).exp())).collect();
        let sum: f64 = e.iter().sum();
        (e.iter().map(|e| e / sum).collect(), (max + sum.ln()) * LOG2_E)
    }

    /// The same probabilities from a log-sum-exp in base 2.
    fn probabilities(&self, b: usize, h: usize, t: usize, lse: f64) -> Vec<f64> {
        let p = |s| self.score(b, h, t, s).map_or(0.0, |x| (x * LOG2_E - lse).exp2());
        (0..self.n.s).map(p).collect()
    }

    /// The error of a score in base 2: a sum over the columns of a head, times the scale, and the bias.
    fn score_rounding(&self, b: usize, h: usize, t: usize, s: usize) -> f64 {
        let n = &self.n;
        let pairs = (0..n.head).map(|d| (self.get(0, b, t, h, d), self.get(1, b, s, h, d)));
        let products: f64 = pairs.clone().map(|(q, k)| size(q) * size(k)).sum();
        let total = pairs.map(|(q, k)| q * k).sum();
        let bias = self.at.bias.map_or(0.0, |i| self.inputs[i].data[(h * n.t + t) * n.s + s]);
        LOG2_E
            * (self.spec.scale(n).abs() * (sum(n.head, products, total) + 2.0 * products) + 3.0 * bias.abs())
    }

    /// The relative errors of a query's probabilities, 0 for masked keys, and the error of its log-sum-exp in base 2. An
    /// error of the largest score is none of the probabilities.
    fn softmax_rounding(&self, b: usize, h: usize, t: usize) -> (Vec<f64>, f64) {
        let scores: Vec<Option<f64>> = (0..self.n.s).map(|s| self.score(b, h, t, s)).collect();
        let Some(max) = scores.iter().flatten().copied().reduce(f64::max) else {
            return (vec![0.0; self.n.s], 0.0);
        };
        let (p, lse) = self.softmax(b, h, t);
        let below: Vec<f64> = scores.iter().map(|x| x.map_or(0.0, |x| (x - max) * LOG2_E)).collect();
        let error = |s: usize| scores[s].map_or(0.0, |_| self.score_rounding(b, h, t, s));
        let e_scores: Vec<f64> = (0..self.n.s).map(error).collect();
        let mean_of = |f: fn(f64) -> f64| p.iter().zip(&e_scores).map(|(p, e)| p * f(*e)).sum::<f64>();
        let e_total = softmax_sum(&p, &below);
        let relative = e_total + mean_of(|e| exp_of(LN_2 * e)) + DIVIDE + 1.0;
        let visible = scores.iter().map(|x| f64::from(x.is_some()));
        let each = e_scores.iter().zip(below).map(|(e, x)| exp_of(LN_2 * e) + 2.0 * exp(x) + relative);
        let e_lse = mean_of(|e| e) + e_total * LOG2_E + log(lse - max * LOG2_E) + lse.abs();
        (each.zip(visible).map(|(e, v)| e * v).collect(), e_lse)
    }

    /// Dropout's factor.
    fn kept(&self, b: usize, h: usize, t: usize, s: usize) -> f64 {
        let n = &self.n;
        let index = ((b * n.heads + h) * n.t + t) * n.s + s;
        self.spec.settings.dropout.map_or(1.0, |d| d.factor(self.key, index as u32))
    }

    fn rows(&self) -> impl Iterator<Item = (usize, usize, usize)> + use<> {
        let (batch, heads, t) = (self.n.batch, self.n.heads, self.n.t);
        (0..batch * heads * t).map(move |i| (i / t / heads, i / t % heads, i % t))
    }
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
        Ok(vec![TensorType::f32([n.batch, n.t, n.width()]), TensorType::f32([n.batch, n.heads, n.t])])
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
        let (kernel, rows) = x.tiled(["forward", "forward_lanes"], &[R, R, R, R, R, R, W, W], x.n.t, x.n.s);
        let groups = l.groups_1d(x.n.batch * x.n.heads * x.n.t.div_ceil(rows))?;
        l.push(Dispatch {
            kernel,
            operands: vec![q, k, v, x.extra, lengths, seed, l.output(0).into(), l.output(1).into()],
            params: x.params(),
            groups,
            flops: x.flops(2),
        });
        Ok(())
    }
}

fn no_gradient() -> Error {
    Error::config("attention", "attention over a cache has no gradient: train with Packing::Qkv")
}

// ---- Backward ----

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
        let terms = n.s.max(n.t).max(n.batch);
        for ((error, size), y) in errors.iter_mut().zip(&sizes).zip(results) {
            for (i, e) in error.data.iter_mut().enumerate() {
                *e += sum(terms, size.data[i], y.data[i]);
            }
        }
        errors
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
        let one = [R, R, R, R, R, R, W];
        let pairs = n.batch * n.heads;
        if l.output_used(0) {
            let (kernel, rows) = x.tiled(["backward_q", "backward_q_lanes"], &one, n.t, n.s);
            push(l, kernel, &[0], pairs * n.t.div_ceil(rows), 2)?;
        }
        let joint = ["backward_kv_joint", "backward_kv_joint_lanes"];
        let (written, entries, bindings): (&[usize], _, &[Access]) = match self.0.kind {
            Kind::Separate => (&[1, 2], ["backward_kv", "backward_kv_lanes"], &[R, R, R, R, R, R, W, W]),
            Kind::Kv => (&[1], joint, &one),
            Kind::Qkv => (&[0], joint, &one),
            Kind::Cached => return Err(no_gradient()),
        };
        if written.iter().any(|&i| l.output_used(i)) {
            let (kernel, rows) = x.tiled(entries, bindings, n.s, n.t);
            push(l, kernel, written, pairs * n.s.div_ceil(rows), 3)?;
        }
        if self.0.bias && l.output_used(operands) {
            let kernel = x.kernel("backward_bias", &one);
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

// ---- Lowering ----

const R: Access = Access::Read;
const W: Access = Access::Write;

params! {
    struct Params {
        batch: u32,
        t: u32,
        s: u32,
        heads: u32,
        q_row: u32,
        q_at: u32,
        k_row: u32,
        k_at: u32,
        v_row: u32,
        v_at: u32,
        mask_at: u32,
        mask_batch: u32,
        bias_at: u32,
        scale: f32,
        slope: f32,
        threshold: u32,
        keep: f32,
        site: u32,
    }
}

/// The tile of a workgroup; see the shader.
#[derive(Clone, Copy, Debug)]
struct Tile {
    nr: usize,
    nc: usize,
    rt: usize,
    ct: usize,
    dc: usize,
}

impl Tile {
    fn rows(&self) -> usize {
        self.nr * self.rt
    }

    /// Of workgroup memory; `maxima` says whether the kernel finds the maximum of each row, as forward does.
    fn bytes(&self, elem: usize, maxima: bool) -> usize {
        let (rows, cols) = (self.rows(), self.nc * self.ct);
        let maxima = if maxima { rows * self.nc } else { 0 };
        4 * (elem * (rows + cols) * (self.dc + 1) + rows * (cols + 1) + maxima)
    }
}

/// What the dispatches of a node share.
struct Lowered {
    spec: Spec,
    n: Sizes,
    at: Optional,
    /// 4 if the tensors are bound as vec4, else 1.
    elem: usize,
    extra: Slice,
    mask_batch: usize,
    bias_at: usize,
    /// The kernels for a sub-group of 8 lanes.
    lanes: bool,
}

impl Lowered {
    fn new(spec: &Spec, l: &mut Lowering, start: usize) -> Result<Self> {
        let types: Vec<&TensorType> = (0..l.input_count()).map(|i| l.input_type(i)).collect();
        let n = spec.check(&types, start)?;
        let at = spec.optional(start);
        let elem = if n.head.is_multiple_of(4) { 4 } else { 1 };
        let mask_size = at.mask.map_or(0, |i| types[i].shape.elements());
        let mask_batch = match at.mask {
            Some(i) if types[i].shape.rank() == 3 => n.t * n.s,
            _ => 0,
        };
        let bias_size = n.heads * n.t * n.s;
        let (extra, bias_at) = match (at.mask, at.bias) {
            (Some(mask), Some(bias)) => {
                let joined = l.scratch(mask_size + bias_size);
                Self::join(l, mask, bias, joined)?;
                (joined, mask_size)
            }
            (Some(i), None) | (None, Some(i)) => (l.input(i), 0),
            (None, None) => (l.input(0), 0),
        };
        let cpu = l.profile.class == DeviceClass::Cpu && l.profile.subgroup_size() == Some(8);
        let (extra, lanes) = (extra.into(), cpu && elem == 4);
        Ok(Lowered { spec: *spec, n, at, elem, extra, mask_batch, bias_at, lanes })
    }

    /// Mask and bias behind each other, so that eight storage bindings suffice.
    fn join(l: &mut Lowering, mask: usize, bias: usize, joined: Operand) -> Result<()> {
        let count = |i: usize| l.input_type(i).shape.elements() as u32;
        let params = Params { t: count(mask), s: count(bias), ..Params::default() };
        l.push(Dispatch {
            kernel: kernel("join", &[R, R, W], constants(&[])),
            operands: vec![l.input(mask).into(), l.input(bias).into(), joined.into()],
            params: params.bytes(),
            groups: l.groups_1d((count(mask) + count(bias)).div_ceil(64) as usize)?,
            flops: 0,
        });
        Ok(())
    }

    /// q, k and v as operands.
    fn qkv(&self, l: &Lowering) -> [Slice; 3] {
        [0, 1, 2].map(|i| l.input(self.spec.kind.part(i).0).into())
    }

    fn params(&self) -> Vec<u8> {
        let n = &self.n;
        let width = n.width() / self.elem;
        let [q, k, v] = [0, 1, 2].map(|i| {
            let (_, widths, at) = self.spec.kind.part(i);
            ((widths * width) as u32, (at * width) as u32)
        });
        let scale = self.spec.scale(n);
        let dropout = self.spec.settings.dropout;
        let params = Params {
            batch: n.batch as u32,
            t: n.t as u32,
            s: n.s as u32,
            heads: n.heads as u32,
            q_row: q.0,
            q_at: q.1,
            k_row: k.0,
            k_at: k.1,
            v_row: v.0,
            v_at: v.1,
            mask_at: 0,
            mask_batch: self.mask_batch as u32,
            bias_at: self.bias_at as u32,
            scale: (scale * std::f64::consts::LOG2_E) as f32,
            slope: scale as f32,
            threshold: dropout.map_or(0, Dropout::threshold),
            keep: dropout.map_or(1.0, Dropout::scale) as f32,
            site: dropout.map_or(0, |d| d.site),
        };
        params.bytes()
    }

    /// By formula: a product of queries and keys (or probabilities and values) is 2 B H T S D, half of it where causal.
    fn flops(&self, products: u64) -> u64 {
        let n = &self.n;
        let all = products * 2 * (n.batch * n.heads * n.t * n.s * n.head) as u64;
        if self.spec.settings.causal { all / 2 } else { all }
    }

    /// The tile for a workgroup that owns some of `rows` rows.
    fn tile(&self, rows: usize) -> Tile {
        let dv = self.n.head / self.elem;
        let (nr, nc, ct, dc) = match dv {
            0..=4 => (16, 4, 4, 4),
            5..=8 => (8, 8, 4, 8),
            _ => (8, 8, 2, 16),
        };
        // Few rows for short sequences, and where the sums of wide heads would not fit in registers.
        let most = if dv > 32 && self.elem == 4 { 2 } else { 4 };
        let rt = rows.div_ceil(nr).next_power_of_two().min(most);
        Tile { nr, nc, rt, ct, dc }
    }

    /// The kernel that owns some of `owned` rows in each workgroup and walks over `walked` others, and how many it
    /// owns. `entries`: in `attention.wgsl` and in `attention_lanes.wgsl`.
    fn tiled(
        &self,
        entries: [&'static str; 2],
        bindings: &[Access],
        owned: usize,
        walked: usize,
    ) -> (Kernel, usize) {
        let dv = self.n.head / self.elem;
        if self.lanes {
            let rows = lane_rows(owned, dv);
            let mut c = self.constants();
            c.push(("TM", rows));
            c.push(("KN", if walked > 8 { 2 } else { 1 }));
            let mut kernel = self.finish(entries[1], bindings, &c);
            kernel.parts.insert(1, SOURCE_LANES.into());
            kernel.requires = Requires { subgroup_size: Some(8), workgroup_bytes: 0, invocations: 8 };
            return (kernel, rows);
        }
        let tile = self.tile(owned);
        let mut c = self.constants();
        c.extend([("NR", tile.nr), ("NC", tile.nc), ("RT", tile.rt), ("CT", tile.ct), ("DC", tile.dc)]);
        c.extend([("JT", tile.dc / tile.nc), ("NCH", dv.div_ceil(tile.dc))]);
        let mut kernel = self.finish(entries[0], bindings, &c);
        kernel.requires.invocations = (tile.nr * tile.nc) as u32;
        kernel.requires.workgroup_bytes = tile.bytes(self.elem, entries[0] == "forward") as u32;
        (kernel, tile.rows())
    }

    /// A kernel without tiles.
    fn kernel(&self, entry: &'static str, bindings: &[Access]) -> Kernel {
        self.finish(entry, bindings, &self.constants())
    }

    fn constants(&self) -> Vec<(&'static str, usize)> {
        vec![("DV", self.n.head / self.elem)]
    }

    fn finish(&self, entry: &'static str, bindings: &[Access], numbers: &[(&'static str, usize)]) -> Kernel {
        let spec = &self.spec;
        let mut kernel = kernel(entry, bindings, constants(numbers));
        for (name, value) in &mut kernel.constants {
            *value = match *name {
                "LENGTHS" => Const::Bool(spec.lengths),
                "CAUSAL" => Const::Bool(spec.settings.causal),
                "MASK" => Const::Bool(spec.mask),
                "BIAS" => Const::Bool(spec.bias),
                "DROPOUT" => Const::Bool(spec.settings.dropout.is_some()),
                "FOUR" => Const::Bool(self.elem == 4),
                "elem" => Const::Alias(if self.elem == 4 { "vec4<f32>" } else { "f32" }),
                _ => continue,
            };
        }
        kernel
    }
}

/// How many rows a workgroup of `attention_lanes.wgsl` owns. More rows serve more multiply-adds with a load, but cost
/// compile time (which grows with rows times chunks) and waste where `rows` is no multiple.
fn lane_rows(rows: usize, dv: usize) -> usize {
    let most = 64 / dv.div_ceil(8).min(8);
    // The time a row takes, in percent, measured with D 32 on llvmpipe of Mesa 22.3.6.
    let costs = [(32, 100), (24, 105), (16, 115), (8, 145)];
    let fitting = costs.iter().filter(|(tm, _)| *tm <= most);
    fitting.min_by_key(|(tm, cost)| rows.next_multiple_of(*tm) * cost).map_or(8, |(tm, _)| *tm)
}

/// All constants of the shader: every entry point needs them to be there, though not to have any meaning.
fn constants(numbers: &[(&'static str, usize)]) -> Vec<(&'static str, Const)> {
    let names = ["DV", "NR", "NC", "RT", "CT", "DC", "JT", "NCH"];
    let flags = ["LENGTHS", "CAUSAL", "MASK", "BIAS", "DROPOUT", "FOUR"];
    let unused = names.iter().filter(|name| !numbers.iter().any(|(n, _)| n == *name));
    let mut constants: Vec<(&'static str, Const)> = unused.map(|name| (*name, Const::U32(1))).collect();
    constants.extend(numbers.iter().map(|&(name, value)| (name, Const::U32(value as u32))));
    constants.extend(flags.map(|name| (name, Const::Bool(false))));
    constants.push(("elem", Const::Alias("f32")));
    constants
}

fn kernel(entry: &'static str, bindings: &[Access], constants: Vec<(&'static str, Const)>) -> Kernel {
    Kernel {
        name: format!("attention/{entry}"),
        parts: parts([SOURCE, lib_wgsl::RANDOM]),
        entry,
        bindings: bindings.to_vec(),
        params: Params::FIELDS,
        constants,
        requires: Requires { invocations: 64, ..Requires::default() },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiles_fit() {
        let x = |head: usize| Lowered {
            spec: Spec {
                settings: Attention::new(1),
                kind: Kind::Qkv,
                lengths: false,
                mask: false,
                bias: false,
            },
            n: Sizes { batch: 1, t: 1, s: 1, heads: 1, head },
            at: Optional { lengths: None, mask: None, bias: None, seed: None },
            elem: if head.is_multiple_of(4) { 4 } else { 1 },
            extra: Operand::Scratch(0).into(),
            mask_batch: 0,
            bias_at: 0,
            lanes: false,
        };
        for head in 1..=MAX_HEAD {
            for rows in [1, 8, 9, 17, 1000] {
                let tile = x(head).tile(rows);
                assert!(tile.bytes(x(head).elem, true) <= 16384, "{head}: {tile:?}");
            }
        }
    }
}

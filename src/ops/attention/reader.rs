//! The reference's view of attention's inputs, element by element: scores, probabilities, and what f32 may lose of them.

use super::super::random::RandomKey;
use super::super::rounding::{DIVIDE, exp, exp_of, log, size, softmax_sum, sum};
use super::{MASKED, Optional, Sizes, Spec};
use crate::{Tensor64, TensorType};
use std::f64::consts::{LN_2, LOG2_E};

/// The inputs of a node, element by element.
pub(super) struct Reader<'a> {
    spec: &'a Spec,
    pub n: Sizes,
    pub inputs: &'a [&'a Tensor64],
    pub at: Optional,
    key: RandomKey,
    /// Dropout's factors `[B, H, T, S]`: what an excerpt has in the place of the seed.
    factors: Option<&'a Tensor64>,
}

impl<'a> Reader<'a> {
    /// `start` is the place of the first optional input.
    pub fn new(spec: &'a Spec, inputs: &'a [&'a Tensor64], start: usize) -> Self {
        let types: Vec<TensorType> = inputs.iter().map(|t| TensorType::f32(t.shape.clone())).collect();
        let n = spec.sizes(&types.iter().collect::<Vec<_>>());
        let at = spec.optional(start);
        let (factors, seed) = match at.seed.map(|i| inputs[i]) {
            Some(seed) if seed.shape.dims() == [2] => (None, [seed.u32(0), seed.u32(1)]),
            factors => (factors, [0, 0]),
        };
        let key = RandomKey::new(seed, spec.settings.dropout.map_or(0, |d| d.site));
        Reader { spec, n, inputs, at, key, factors }
    }

    /// The tensor, and the flat index in it, of an element of q, k or v (part 0, 1, 2).
    pub fn place(&self, part: usize, b: usize, row: usize, h: usize, d: usize) -> (usize, usize) {
        let (tensor, widths, at) = self.spec.kind.part(part);
        let rows = if part == 0 { self.n.t } else { self.n.s };
        let w = self.n.width();
        (tensor, (b * rows + row) * widths * w + at * w + h * self.n.head + d)
    }

    pub fn get(&self, part: usize, b: usize, row: usize, h: usize, d: usize) -> f64 {
        let (tensor, i) = self.place(part, b, row, h, d);
        self.inputs[tensor].data[i]
    }

    /// Whether length, causality and mask let a query attend to a key.
    pub fn visible(&self, b: usize, t: usize, s: usize) -> bool {
        let n = &self.n;
        let length = self.at.lengths.map_or(n.s, |i| self.inputs[i].data[b] as usize);
        if s >= length || (self.spec.settings.causal && s > t) {
            return false;
        }
        let Some(mask) = self.at.mask.map(|i| self.inputs[i]) else { return true };
        let batch = if mask.shape.rank() == 3 { b * n.t * n.s } else { 0 };
        mask.data[batch + t * n.s + s] != 0.0
    }

    /// What is added to a score.
    pub fn bias(&self, h: usize, t: usize, s: usize) -> f64 {
        self.at.bias.map_or(0.0, |i| self.inputs[i].data[(h * self.n.t + t) * self.n.s + s])
    }

    /// The score of a key in base e, or `None` where the query may not attend to it.
    pub fn score(&self, b: usize, h: usize, t: usize, s: usize) -> Option<f64> {
        let n = &self.n;
        if !self.visible(b, t, s) {
            return None;
        }
        let product: f64 = (0..n.head).map(|d| self.get(0, b, t, h, d) * self.get(1, b, s, h, d)).sum();
        let bias = self.bias(h, t, s);
        (bias > MASKED).then_some(product * self.spec.scale(n) + bias)
    }

    /// The probabilities of a query over all keys, and its log-sum-exp in base 2 (0 where all keys are masked).
    pub fn softmax(&self, b: usize, h: usize, t: usize) -> (Vec<f64>, f64) {
        let scores: Vec<Option<f64>> = (0..self.n.s).map(|s| self.score(b, h, t, s)).collect();
        let Some(max) = scores.iter().flatten().copied().reduce(f64::max) else {
            return (vec![0.0; self.n.s], 0.0);
        };
        let e: Vec<f64> = scores.iter().map(|x| x.map_or(0.0, |x| (x - max).exp())).collect();
        let sum: f64 = e.iter().sum();
        (e.iter().map(|e| e / sum).collect(), (max + sum.ln()) * LOG2_E)
    }

    /// The same probabilities from a log-sum-exp in base 2.
    pub fn probabilities(&self, b: usize, h: usize, t: usize, lse: f64) -> Vec<f64> {
        let p = |s| self.score(b, h, t, s).map_or(0.0, |x| (x * LOG2_E - lse).exp2());
        (0..self.n.s).map(p).collect()
    }

    /// The error of a score in base 2: a sum over the columns of a head, times the scale, and the bias.
    pub fn score_rounding(&self, b: usize, h: usize, t: usize, s: usize) -> f64 {
        let n = &self.n;
        let pairs = (0..n.head).map(|d| (self.get(0, b, t, h, d), self.get(1, b, s, h, d)));
        let products: f64 = pairs.clone().map(|(q, k)| size(q) * size(k)).sum();
        let total = pairs.map(|(q, k)| q * k).sum();
        let bias = self.bias(h, t, s);
        LOG2_E
            * (self.spec.scale(n).abs() * (sum(n.head, products, total) + 2.0 * products) + 3.0 * bias.abs())
    }

    /// The relative errors of a query's probabilities, 0 for masked keys, and the error of its log-sum-exp in base 2. An
    /// error of the largest score is none of the probabilities.
    pub fn softmax_rounding(&self, b: usize, h: usize, t: usize) -> (Vec<f64>, f64) {
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
    pub fn kept(&self, b: usize, h: usize, t: usize, s: usize) -> f64 {
        let n = &self.n;
        let index = ((b * n.heads + h) * n.t + t) * n.s + s;
        match (self.factors, self.spec.settings.dropout) {
            (Some(factors), _) => factors.data[index],
            (None, dropout) => dropout.map_or(1.0, |d| d.factor(self.key, index as u32)),
        }
    }

    pub fn rows(&self) -> impl Iterator<Item = (usize, usize, usize)> + use<> {
        let (batch, heads, t) = (self.n.batch, self.n.heads, self.n.t);
        (0..batch * heads * t).map(move |i| (i / t / heads, i / t % heads, i % t))
    }
}

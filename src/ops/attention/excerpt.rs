//! Some queries of a head over all keys, and some keys over all queries.

use super::super::excerpt::{WORK, some};
use super::reader::Reader;
use super::{Attention, Backward, Forward, Kind, Spec};
use crate::Tensor64;
use crate::graph::Excerpt;
use crate::rng::Rng;

/// The most queries or keys of a head.
const ROWS: usize = 16;

/// A part of an attention: one head of some batch rows, some queries and keys.
struct Part<'a> {
    x: &'a Reader<'a>,
    batches: &'a [usize],
    h: usize,
    queries: &'a [usize],
    keys: &'a [usize],
}

impl Part<'_> {
    /// What is to be attended to is the mask's part, since that of lengths and causality is lost with the places.
    fn spec(&self, spec: &Spec) -> Spec {
        Spec {
            settings: Attention { heads: 1, causal: false, ..spec.settings },
            kind: Kind::Separate,
            lengths: false,
            mask: true,
            bias: spec.bias,
        }
    }

    fn rows(&self, operand: usize) -> &[usize] {
        if operand == 0 { self.queries } else { self.keys }
    }

    /// The tensor that holds q, k or v (operand 0, 1, 2), and where its elements are in it.
    fn places(&self, operand: usize) -> (usize, Vec<usize>) {
        let mut places = Vec::new();
        for &b in self.batches {
            for &row in self.rows(operand) {
                places.extend((0..self.x.n.head).map(|d| self.x.place(operand, b, row, self.h, d).1));
            }
        }
        (self.x.place(operand, 0, 0, 0, 0).0, places)
    }

    /// Where the elements of the output are.
    fn out(&self) -> Vec<usize> {
        let n = &self.x.n;
        let at = |b: usize, t: usize| (b * n.t + t) * n.width() + self.h * n.head;
        let rows = self.batches.iter().flat_map(|&b| self.queries.iter().map(move |&t| at(b, t)));
        rows.flat_map(|i| i..i + n.head).collect()
    }

    /// Where the log-sum-exps are.
    fn lse(&self) -> Vec<usize> {
        let n = &self.x.n;
        let at = |b: usize, t: usize| (b * n.heads + self.h) * n.t + t;
        self.batches.iter().flat_map(|&b| self.queries.iter().map(move |&t| at(b, t))).collect()
    }

    /// Where the bias's gradients are.
    fn d_bias(&self) -> Vec<usize> {
        let at = |t: usize, s: usize| (self.h * self.x.n.t + t) * self.x.n.s + s;
        self.queries.iter().flat_map(|&t| self.keys.iter().map(move |&s| at(t, s))).collect()
    }

    /// q, k and v.
    fn operands(&self) -> Vec<Tensor64> {
        let one = |i: usize| {
            let (tensor, places) = self.places(i);
            self.gathered(self.x.inputs[tensor], &places, self.rows(i).len())
        };
        (0..3).map(one).collect()
    }

    fn gathered(&self, whole: &Tensor64, places: &[usize], rows: usize) -> Tensor64 {
        let width = places.len() / (self.batches.len() * rows);
        Tensor64::from_fn([self.batches.len(), rows, width], |i| whole.data[places[i]])
    }

    /// Mask, bias, and dropout's factors in the place of the seed.
    fn optional(&self) -> Vec<Tensor64> {
        let (t, s, b) = (self.queries.len(), self.keys.len(), self.batches.len());
        let each = |i: usize| (self.batches[i / s / t], self.queries[i / s % t], self.keys[i % s]);
        let x = self.x;
        let mut optional = vec![Tensor64::from_fn([b, t, s], |i| {
            let (b, t, s) = each(i);
            f64::from(x.visible(b, t, s))
        })];
        if x.at.bias.is_some() {
            optional.push(Tensor64::from_fn([1, t, s], |i| x.bias(self.h, each(i).1, each(i).2)));
        }
        if x.at.seed.is_some() {
            optional.push(Tensor64::from_fn([b, 1, t, s], |i| {
                let (b, t, s) = each(i);
                x.kept(b, self.h, t, s)
            }));
        }
        optional
    }
}

/// The first, the last and any head, of the first, the last and any batch row; of all batch rows where `all`.
fn heads(x: &Reader, all: bool, rng: &mut Rng) -> Vec<(Vec<usize>, usize)> {
    let (batch, heads) = (x.n.batch, x.n.heads);
    let any = [batch, heads].map(|n| rng.below(n as u64) as usize);
    let mut pairs = vec![(0, 0), (batch - 1, heads - 1), (any[0], any[1])];
    if all {
        pairs.iter_mut().for_each(|p| p.0 = 0);
    }
    pairs.sort_unstable();
    pairs.dedup();
    pairs.into_iter().map(|(b, h)| (if all { (0..batch).collect() } else { vec![b] }, h)).collect()
}

pub(super) fn forward(spec: &Spec, inputs: &[&Tensor64], rng: &mut Rng) -> Vec<Excerpt> {
    let x = Reader::new(spec, inputs, spec.kind.operands());
    let keys: Vec<usize> = (0..x.n.s).collect();
    let heads = heads(&x, false, rng);
    let count = (WORK / (heads.len() * x.n.s * x.n.head)).min(ROWS);
    let excerpt = |(batches, h): (Vec<usize>, usize)| {
        let queries = some(rng, x.n.t, count);
        let part = Part { x: &x, batches: &batches, h, queries: &queries, keys: &keys };
        let mut inputs = part.operands();
        inputs.extend(part.optional());
        Excerpt {
            op: Box::new(Forward(part.spec(spec))),
            inputs,
            places: vec![Some((0, part.out())), Some((1, part.lse()))],
        }
    };
    heads.into_iter().map(excerpt).collect()
}

/// The gradient of the bias is a sum over the batch: where there is one, all batch rows are in.
pub(super) fn backward(spec: &Spec, inputs: &[&Tensor64], rng: &mut Rng) -> Vec<Excerpt> {
    let operands = spec.kind.operands();
    let x = Reader::new(spec, inputs, operands + 3);
    let (all_queries, all_keys): (Vec<usize>, Vec<usize>) = ((0..x.n.t).collect(), (0..x.n.s).collect());
    let heads = heads(&x, spec.bias, rng);
    let mut excerpts = Vec::new();
    for (batches, h) in &heads {
        let row = heads.len() * batches.len() * x.n.head;
        let queries = some(rng, x.n.t, (WORK / (row * x.n.s)).min(ROWS));
        let keys = some(rng, x.n.s, (WORK / (row * x.n.t)).min(ROWS));
        for (queries, keys, right) in
            [(&queries, &all_keys, [true, false, false]), (&all_queries, &keys, [false, true, true])]
        {
            let part = Part { x: &x, batches, h: *h, queries, keys };
            let [out, lse, d_out] = [0, 1, 2].map(|i| inputs[operands + i]);
            let mut parts = part.operands();
            parts.push(part.gathered(out, &part.out(), queries.len()));
            parts.push(Tensor64::new(
                [batches.len(), 1, queries.len()],
                part.lse().into_iter().map(|i| lse.data[i]).collect(),
            ));
            parts.push(part.gathered(d_out, &part.out(), queries.len()));
            parts.extend(part.optional());
            let mut places: Vec<_> = (0..3).map(|i| right[i].then(|| part.places(i))).collect();
            if spec.bias {
                places.push(Some((operands, part.d_bias())));
            }
            excerpts.push(Excerpt { op: Box::new(Backward(part.spec(spec))), inputs: parts, places });
        }
    }
    excerpts
}

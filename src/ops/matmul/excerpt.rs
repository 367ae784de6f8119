//! Some rows times some columns of a product.

use super::super::excerpt::{WORK, some};
use super::{Form, Product, Strided, View};
use crate::Tensor64;
use crate::graph::Excerpt;
use crate::rng::Rng;

/// The most rows and columns.
const SIDE: usize = 64;

pub(super) fn excerpts(op: &Product, inputs: &[&Tensor64], rng: &mut Rng) -> Vec<Excerpt> {
    // What no product covers must be zero, all of it.
    if !op.covers() {
        return Vec::new();
    }
    let s = &op.at;
    let [outer, inner] = s.batch.map(|extent| some(rng, extent, 3));
    let batch = [outer.len(), inner.len()];
    let side = (WORK / (s.k * batch[0] * batch[1])).isqrt().min(SIDE);
    let (rows, columns) = (some(rng, s.m, side), some(rng, s.n, side));
    let terms: Vec<usize> = (0..s.k).collect();
    let places = |view: &View, form: Form, rows: &[usize], columns: &[usize]| {
        let mut places = Vec::with_capacity(batch[0] * batch[1] * rows.len() * columns.len());
        for &outer in &outer {
            for &inner in &inner {
                for &r in rows {
                    places.extend(columns.iter().map(|&c| view.place(form, [outer, inner], r, c)));
                }
            }
        }
        places
    };
    let dense = |rows: usize, columns: usize| View {
        start: 0,
        row: columns,
        batch: [batch[1] * rows * columns, rows * columns],
    };
    let gathered = |input: &Tensor64, places: &[usize], rows: usize, columns: usize| {
        let data = places.iter().map(|&i| input.data[i]).collect();
        Tensor64::new([batch[0], batch[1], rows, columns], data)
    };
    let (m, n) = (rows.len(), columns.len());
    let out = places(&s.out, Form::Plain, &rows, &columns);
    let mut parts = vec![
        gathered(inputs[0], &places(&s.a, s.form_a, &rows, &terms), m, s.k),
        gathered(inputs[1], &places(&s.b, s.form_b, &terms, &columns), s.k, n),
    ];
    if op.bias {
        parts.push(Tensor64::from_fn([n], |i| inputs[2].data[columns[i]]));
    }
    if op.extra.is_some() {
        parts.push(gathered(inputs[2 + op.bias as usize], &out, m, n));
    }
    let at = Strided {
        m,
        n,
        k: s.k,
        batch,
        form_a: Form::Plain,
        a: dense(m, s.k),
        form_b: Form::Plain,
        b: dense(s.k, n),
        out: dense(m, n),
        shape: [batch[0], batch[1], m, n].into(),
        alpha: s.alpha,
    };
    let mut places = vec![Some((0, out.clone()))];
    places.extend(op.saves_pre().then_some(Some((1, out))));
    places.extend(op.sums.then_some(Some((1, columns))));
    vec![Excerpt { op: Box::new(Product { at, ..*op }), inputs: parts, places }]
}

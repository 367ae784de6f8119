//! What excerpts are made of: see [`Op::excerpts`](crate::graph::Op::excerpts).

use crate::Tensor64;
use crate::graph::{Excerpt, Op};
use crate::rng::Rng;

/// About how many multiply-adds one pass over the excerpts of a node may take; a reference with its rounding makes up to
/// twenty of them.
pub(super) const WORK: usize = 1 << 21;

/// At most `count` (three at least) of `extent` places, ascending: the first, the middle and the last, where a tile begins
/// or ends, and others by chance.
pub(super) fn some(rng: &mut Rng, extent: usize, count: usize) -> Vec<usize> {
    if extent <= count.max(3) {
        return (0..extent).collect();
    }
    let mut places = vec![0, extent / 2, extent - 1];
    places.extend((3..count).map(|_| rng.below(extent as u64) as usize));
    places.sort_unstable();
    places.dedup();
    places
}

/// Some rows for an op whose rows have nothing to do with each other. `by_row` are the inputs that have as many rows as the
/// first (the others are for all rows), `widths` what each result has of a row.
pub(super) fn rows(
    op: impl Op + 'static,
    inputs: &[&Tensor64],
    by_row: &[usize],
    widths: &[usize],
    rng: &mut Rng,
) -> Vec<Excerpt> {
    let shape = &inputs[0].shape;
    // An exponential for a multiply-add.
    let rows = some(rng, shape.rows(), WORK / (8 * shape.last()));
    let excerpt = |(i, input): (usize, &&Tensor64)| match by_row.contains(&i) {
        true => {
            let data = rows.iter().flat_map(|&r| input.row(r)).copied().collect();
            Tensor64::new([rows.len(), input.shape.last()], data)
        }
        false => (*input).clone(),
    };
    let places = |(i, &width): (usize, &usize)| {
        Some((i, rows.iter().flat_map(|r| r * width..(r + 1) * width).collect()))
    };
    vec![Excerpt {
        op: Box::new(op),
        inputs: inputs.iter().enumerate().map(excerpt).collect(),
        places: widths.iter().enumerate().map(places).collect(),
    }]
}

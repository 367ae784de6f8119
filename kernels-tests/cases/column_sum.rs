//! Sums of columns.

use wgformer::ops::column_sum::column_sum;
use wgformer::testing::{Build, Case};

/// Rows and columns: one, primes, one pass and two, long and wide.
const SHAPES: [[usize; 2]; 14] = [
    [1, 1],
    [1, 64],
    [2, 3],
    [13, 7],
    [63, 32],
    [64, 36],
    [65, 256],
    [127, 33],
    [500, 64],
    [997, 5],
    [2500, 128],
    [4099, 4],
    [10, 4100],
    [70_000, 1],
];

pub fn cases() -> Vec<Case> {
    let case = |[rows, n]: [usize; 2]| {
        Case::new(format!("{rows}x{n}"), move |b: &mut Build| {
            let x = b.normal("x", [rows, n], 1.0);
            Ok(vec![column_sum(b.graph(), x)?])
        })
        .reduction(rows)
    };
    let mut cases: Vec<Case> = SHAPES.into_iter().map(case).collect();
    cases.push(Case::new("three dimensions", |b: &mut Build| {
        let x = b.normal("x", [5, 17, 24], 1.0);
        Ok(vec![column_sum(b.graph(), x)?])
    }));
    cases
}

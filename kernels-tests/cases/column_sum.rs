//! Sums of columns.

use wgformer::HostTensor;
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
    };
    let mut cases: Vec<Case> = SHAPES.into_iter().map(case).collect();
    cases.push(Case::new("three dimensions", |b: &mut Build| {
        let x = b.normal("x", [5, 17, 24], 1.0);
        Ok(vec![column_sum(b.graph(), x)?])
    }));
    // Also the same number often, whose rounding errors have one sign, and sums that cancel.
    type Value = fn(f64) -> f64;
    let values: [(&str, Value); 5] = [
        ("large", |i| i.sin() * 1e30),
        ("tiny", |i| i.sin() * 1e-30),
        ("denormal", |i| i.sin() * 1e-39),
        ("constant", |_| 0.1),
        ("cancelling", |i| if i % 10.0 < 5.0 { 1.0 } else { -1.0 + 1e-6 * i.sin() }),
    ];
    for (name, value) in values {
        cases.push(Case::new(name, move |b: &mut Build| {
            let data = (0..997 * 5).map(|i| value(i as f64) as f32).collect();
            let x = b.differentiable("x", HostTensor::f32([997, 5], data));
            Ok(vec![column_sum(b.graph(), x)?])
        }));
    }
    // More than 65,535 workgroups.
    let many = |b: &mut Build| {
        let x = b.normal("x", [1, 65_600 * 64 + 1], 1.0);
        Ok(vec![column_sum(b.graph(), x)?])
    };
    cases.push(Case::new("many groups", many).values_only());
    cases
}

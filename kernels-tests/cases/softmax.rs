//! Softmax and log-softmax.

use wgformer::HostTensor;
use wgformer::ops::softmax;
use wgformer::rng::Rng;
use wgformer::testing::{Build, Case};

/// Rows and width: one element, less than a sub-group, primes, a tile and one more, longer than registers hold, a
/// vocabulary.
const SHAPES: [[usize; 2]; 16] = [
    [1, 1],
    [3, 1],
    [5, 3],
    [3, 7],
    [70, 8],
    [9, 31],
    [3, 33],
    [1, 64],
    [5, 64],
    [130, 100],
    [4, 257],
    [65, 512],
    [2, 1024],
    [3, 1028],
    [3, 4099],
    [2, 32_000],
];

fn case(name: String, log: bool, x: impl Fn() -> HostTensor + Send + Sync + 'static) -> Case {
    let kind = if log { "log_softmax" } else { "softmax" };
    Case::new(format!("{kind} {name}"), move |b: &mut Build| {
        let x = b.differentiable("x", x());
        let g = b.graph();
        Ok(vec![if log { softmax::log_softmax(g, x)? } else { softmax::softmax(g, x)? }])
    })
}

fn normal(base: f64, scale: f64, [rows, c]: [usize; 2]) -> HostTensor {
    let mut rng = Rng::new(3);
    HostTensor::f32([rows, c], (0..rows * c).map(|_| (base + scale * rng.normal()) as f32).collect())
}

pub fn cases() -> Vec<Case> {
    // More rows than workgroups in a dimension.
    let mut cases = vec![case("70000x9".to_string(), false, || normal(0.0, 1.0, [70_000, 9]))];
    for log in [false, true] {
        for shape in SHAPES {
            let [rows, c] = shape;
            cases.push(case(format!("{rows}x{c}"), log, move || normal(0.0, 1.0, shape)));
        }
        for shape in [[3, 7], [5, 64], [2, 4099], [2, 32_000]] {
            let [rows, c] = shape;
            for (name, base, scale) in [
                ("far from zero", 1e4, 1.0),
                ("far below zero", -1e4, 1.0),
                ("tiny", 0.0, 1e-20),
                ("denormal", 0.0, 1e-39),
            ] {
                cases.push(case(format!("{name} {rows}x{c}"), log, move || normal(base, scale, shape)));
            }
            // One probability is nearly 1, and the gradient is a difference of nearly equal numbers.
            for (name, scale) in [("wide", 50.0), ("in the hundreds", 300.0)] {
                cases.push(case(format!("{name} {rows}x{c}"), log, move || normal(0.0, scale, shape)));
            }
            cases.push(case(format!("equal {rows}x{c}"), log, move || normal(3.0, 0.0, shape)));
            // All but a few are masked by a large negative number; the first row has its maximum at the end.
            let masked = move || {
                let mut rng = Rng::new(4);
                let mut x: Vec<f32> = (0..rows * c)
                    .map(|i| if (i % c) % 5 == 3 { rng.normal() as f32 } else { -1e9 })
                    .collect();
                x[c - 1] = 3.0;
                HostTensor::f32([rows, c], x)
            };
            if !log {
                cases.push(case(format!("masked {rows}x{c}"), log, masked));
            }
        }
    }
    cases
}

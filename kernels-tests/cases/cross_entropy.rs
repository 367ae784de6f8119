//! Cross-entropy: loss, statistics and gradient.

use wgformer::ops::cross_entropy::{Chunks, CrossEntropy, chunked, count_targets, cross_entropy};
use wgformer::ops::elementwise as ew;
use wgformer::testing::{Build, Case};
use wgformer::{HostTensor, Result, graph::ValueId};

/// Targets below `v` of which about a third is 0, the padding, and the last is v - 1.
fn some_targets(n: usize, v: usize) -> HostTensor {
    let id = |i: usize| if i % 3 == 2 { 0 } else { (i * 7919 + 1) % v };
    let mut ids: Vec<u32> = (0..n).map(|i| id(i) as u32).collect();
    ids[n - 1] = v as u32 - 1;
    HostTensor::u32([n], ids)
}

fn mean_loss(
    b: &mut Build,
    logits: ValueId,
    targets: HostTensor,
    ignore: u32,
    smoothing: f64,
) -> Result<Vec<ValueId>> {
    let targets = b.fixed("targets", targets);
    let inv = count_targets(b.graph(), targets, ignore)?;
    let out = cross_entropy(b.graph(), logits, targets, inv, CrossEntropy { ignore, smoothing })?;
    Ok(vec![out.loss, out.stats, inv])
}

pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    let shapes = [
        (1, 1),
        (3, 2),
        (7, 3),
        (5, 4),
        (12, 37),
        (9, 64),
        (70, 100),
        (5, 1000),
        (3, 1028),
        (2, 4099),
        (2, 32_000),
        // Enough rows for a sub-group to be given several, were it a kernel that loops over them.
        (300, 260),
        (2100, 72),
    ];
    for (n, v) in shapes {
        for smoothing in [0.0, 0.1, 0.9] {
            let case = move |b: &mut Build| {
                let x = b.normal("x", [n, v], 2.0);
                mean_loss(b, x, some_targets(n, v), 0, smoothing)
            };
            cases.push(Case::new(format!("{n} x {v} smoothing {smoothing}"), case).ones());
        }
        // Another gradient from outside than one, and an ignored id that no target is.
        let case = move |b: &mut Build| {
            let x = b.normal("x", [n, v], 2.0);
            mean_loss(b, x, some_targets(n, v), u32::MAX, 0.1)
        };
        cases.push(Case::new(format!("{n} x {v} nothing ignored"), case));
        // Without the gradient another kernel runs.
        let case = move |b: &mut Build| {
            let x = b.normal("x", [n, v], 2.0);
            mean_loss(b, x, some_targets(n, v), 0, 0.1)
        };
        cases.push(Case::new(format!("{n} x {v} loss only"), case).values_only());
    }
    // Logits that nothing else reads: their gradient takes their place.
    for (n, v) in [(1, 1), (5, 4), (12, 37), (70, 100), (5, 1000), (2, 4099), (2100, 72)] {
        let case = move |b: &mut Build| {
            let x = b.normal("x", [n, v], 2.0);
            let logits = ew::scale(b.graph(), x, 1.5)?;
            mean_loss(b, logits, some_targets(n, v), 0, 0.1)
        };
        cases.push(Case::new(format!("{n} x {v} in place"), case).ones());
    }
    // Logits in the hundreds, spread or all near one large value.
    for (name, scale, shift) in [
        ("large", 300.0, 0.0),
        ("shifted", 1.0, 900.0),
        ("tiny", 1e-6, 0.0),
        ("denormal", 1e-39, 0.0),
        ("equal", 0.0, 7.0),
    ] {
        for v in [37, 100, 1000] {
            let case = move |b: &mut Build| {
                let data = (0..20 * v).map(|i| (i as f32 * 1.7).sin() * scale + shift).collect();
                let x = b.differentiable("x", HostTensor::f32([4, 5, v], data));
                mean_loss(b, x, some_targets(20, v), 0, 0.1)
            };
            cases.push(Case::new(format!("{name} logits of {v}"), case).ones());
        }
    }
    // Equal logits: the first place counts as the largest.
    for v in [3, 4, 100, 257] {
        let case = move |b: &mut Build| {
            let data = (0..64 * v).map(|i| ((i * i / 7 + i / 5) % 3) as f32).collect();
            let x = b.differentiable("x", HostTensor::f32([64, v], data));
            let ids = (0..64).map(|n| {
                (0..v)
                    .find(|j| {
                        let i = n * v + j;
                        (i * i / 7 + i / 5) % 3 == 2
                    })
                    .unwrap_or(0) as u32
            });
            mean_loss(b, x, HostTensor::u32([64], ids.collect()), u32::MAX, 0.0)
        };
        cases.push(Case::new(format!("ties of {v}"), case));
    }
    let case = |b: &mut Build| {
        let x = b.normal("x", [7, 60], 1.0);
        mean_loss(b, x, HostTensor::u32([7], vec![9; 7]), 9, 0.1)
    };
    cases.push(Case::new("all ignored", case).ones());
    let case = |b: &mut Build| {
        let x = b.normal("x", [65_600, 3], 1.0);
        mean_loss(b, x, some_targets(65_600, 3), 0, 0.1)
    };
    cases.push(Case::new("many rows", case).ones());
    // One chunk and several: against the reference, so equal to each other.
    for (n, rows) in [(60, 64), (150, 192), (150, 64), (129, 64), (200, 128)] {
        let case = move |b: &mut Build| {
            let v = 37;
            let x = b.normal("x", [n, v], 1.0);
            let x = ew::scale(b.graph(), x, 1.5)?;
            let targets = b.fixed("targets", some_targets(n, v));
            let out = chunked(
                b,
                x,
                targets,
                Chunks { vocabulary: v, bytes: (rows * v * 4) as u64 },
                CrossEntropy { ignore: 0, smoothing: 0.1 },
                |b| b.graph(),
                |b, x| ew::scale(b.graph(), x, 0.7),
            )?;
            Ok(vec![out.loss, out.stats])
        };
        cases.push(Case::new(format!("{n} rows in chunks of {rows}"), case).ones());
    }
    cases
}

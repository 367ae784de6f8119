//! LayerNorm, plain and after a residual sum with dropout.

use wgformer::graph::ValueId;
use wgformer::ops::{layer_norm as ln, random::Dropout};
use wgformer::rng::Rng;
use wgformer::testing::{Build, Case};
use wgformer::{HostTensor, Result};

const EPS: f64 = 1e-5;

/// Rows and width: one element, less than a sub-group, primes, a tile and one more, longer than registers hold, not a
/// multiple of four, more rows than workgroups in a dimension.
const SHAPES: [[usize; 2]; 17] = [
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
    [1, 16384],
    [70_000, 2],
];

fn parameters(b: &mut Build, c: usize) -> (ValueId, ValueId) {
    (b.normal("gamma", [c], 1.0), b.normal("beta", [c], 1.0))
}

fn plain(b: &mut Build, x: ValueId, c: usize) -> Result<Vec<ValueId>> {
    let (gamma, beta) = parameters(b, c);
    Ok(vec![ln::layer_norm(b.graph(), x, gamma, beta, EPS)?])
}

/// add_norm of two normal tensors: [y, h].
fn fused(b: &mut Build, [rows, c]: [usize; 2], p: Option<f64>) -> Result<Vec<ValueId>> {
    let (residual, x) = (b.normal("residual", [rows, c], 1.0), b.normal("x", [rows, c], 1.0));
    let (gamma, beta) = parameters(b, c);
    let seed = b.fixed("seed", HostTensor::u32([2], vec![7, 3]));
    let dropout = p.map(|p| Dropout { p, site: 11 });
    let (y, h) = ln::add_norm(b.graph(), residual, x, gamma, beta, EPS, dropout, Some(seed))?;
    Ok(vec![y, h])
}

/// Values `base` + normal * `scale`, the same for a whole row where `constant`.
fn rows_around(base: f64, scale: f64, [rows, c]: [usize; 2], constant: bool) -> HostTensor {
    let mut rng = Rng::new(5);
    let mut data = Vec::new();
    for _ in 0..rows {
        let first = rng.normal();
        data.extend((0..c).map(|_| (base + scale * if constant { first } else { rng.normal() }) as f32));
    }
    HostTensor::f32([rows, c], data)
}

pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for shape in SHAPES {
        let [rows, c] = shape;
        cases.push(Case::new(format!("plain {rows}x{c}"), move |b: &mut Build| {
            let x = b.normal("x", [rows, c], 1.0);
            plain(b, x, c)
        }));
    }
    for shape in [[1, 1], [3, 7], [5, 64], [130, 100], [4, 257], [301, 64], [3, 4099], [70_000, 2]] {
        let [rows, c] = shape;
        for p in [None, Some(0.1)] {
            cases.push(
                Case::new(format!("after a sum, dropout {p:?}, {rows}x{c}"), move |b: &mut Build| {
                    fused(b, shape, p)
                })
                .seeds(&[0, 1]),
            );
        }
    }
    // Only y is asked for: h is kept for the backward, or not at all, and has no gradient from elsewhere.
    for (p, shape) in [(None, [3, 7]), (Some(0.1), [5, 64]), (Some(0.1), [3, 4099])] {
        let name = format!("after a sum, dropout {p:?}, {}x{}, y only", shape[0], shape[1]);
        let y = move |b: &mut Build| Ok(fused(b, shape, p)?[..1].to_vec());
        cases.push(Case::new(name.clone(), y));
        cases.push(Case::new(format!("{name}, no gradient"), y).values_only());
    }
    for shape in [[3, 7], [5, 64], [2, 1024]] {
        let c = shape[1];
        for (name, base, scale, constant) in [
            ("constant rows", 0.0, 1.0, true),
            ("constant rows far from zero", 1e4, 1.0, true),
            ("far from zero", 1e4, 1.0, false),
            ("large", 0.0, 1e6, false),
            ("tiny", 0.0, 1e-20, false),
            ("denormal", 0.0, 1e-39, false),
        ] {
            cases.push(Case::new(format!("{name} {}x{c}", shape[0]), move |b: &mut Build| {
                let x = b.differentiable("x", rows_around(base, scale, shape, constant));
                plain(b, x, c)
            }));
        }
    }
    for shape in SHAPES {
        let [rows, c] = shape;
        cases.push(
            Case::new(format!("f16, plain {rows}x{c}"), move |b: &mut Build| {
                let (x, gamma, beta) =
                    (b.half("x", shape, 1.0), b.half("gamma", [c], 1.0), b.half("beta", [c], 1.0));
                Ok(vec![ln::layer_norm(b.graph(), x, gamma, beta, EPS)?])
            })
            .values_only(),
        );
    }
    // The last two are longer than registers hold on some devices: with h, and without.
    for shape in [[1, 1], [3, 7], [5, 64], [301, 64], [4, 257], [3, 4099], [2, 16384]] {
        let [rows, c] = shape;
        for (what, outputs) in [("", 2), (", y only", 1)] {
            cases.push(
                Case::new(format!("f16, after a sum, {rows}x{c}{what}"), move |b: &mut Build| {
                    let (residual, x) = (b.half("residual", shape, 1.0), b.half("x", shape, 1.0));
                    let (gamma, beta) = (b.half("gamma", [c], 1.0), b.half("beta", [c], 1.0));
                    let (y, h) = ln::add_norm(b.graph(), residual, x, gamma, beta, EPS, None, None)?;
                    Ok([y, h][..outputs].to_vec())
                })
                .values_only(),
            );
        }
    }
    for (name, scale) in [("large", 1e4), ("tiny", 1e-3), ("denormal", 1e-6)] {
        cases.push(
            Case::new(format!("f16, {name} values"), move |b: &mut Build| {
                let (x, gamma) = (b.half("x", [5, 64], scale), b.half("gamma", [64], 1.0));
                let beta = b.half("beta", [64], 1.0);
                Ok(vec![ln::layer_norm(b.graph(), x, gamma, beta, EPS)?])
            })
            .values_only(),
        );
    }
    // Only the parameters need gradients, and only the input.
    cases.push(Case::new("fixed input", |b: &mut Build| {
        let x = b.fixed("x", rows_around(0.0, 1.0, [6, 64], false));
        plain(b, x, 64)
    }));
    cases.push(Case::new("h only", |b: &mut Build| Ok(fused(b, [6, 64], Some(0.3))?[1..].to_vec())));
    cases.push(Case::new("three dimensions", |b: &mut Build| {
        let x = b.normal("x", [2, 3, 64], 1.0);
        plain(b, x, 64)
    }));
    cases
}

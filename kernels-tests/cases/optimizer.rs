//! The global norm of gradients, and Adam.

use wgformer::graph::ValueId;
use wgformer::ops::optimizer::{AdamPages, AdamSettings, adam, gradient_norm};
use wgformer::rng::Rng;
use wgformer::testing::{Build, Case};
use wgformer::{HostTensor, Result};

fn values(seed: u64, n: usize, f: impl Fn(f64) -> f64) -> HostTensor {
    let mut rng = Rng::new(seed);
    HostTensor::f32([n], (0..n).map(|_| f(rng.normal()) as f32).collect())
}

/// A page of `n` parameters with moments, and the gradients `grads`; one step at t = 3 with these settings, after a norm
/// with `max_norm`.
fn step(b: &mut Build, grads: HostTensor, max_norm: Option<f64>, settings: AdamSettings) -> Result<ValueId> {
    let n = grads.ty().shape.elements();
    let pages = AdamPages {
        parameters: b.state("p", values(1, n, |x| x)),
        m: b.state("m", values(2, n, |x| 0.1 * x)),
        v: b.state("v", values(3, n, |x| 0.01 * x * x)),
        gradients: b.fixed("gradients", grads),
    };
    let (c1, c2) = (1.0 / (1.0 - settings.beta1.powi(3)), 1.0 / (1.0 - settings.beta2.powi(3)));
    let schedule = b.fixed("schedule", HostTensor::f32([4], vec![0.01, c1 as f32, c2 as f32, 0.5]));
    let norm = gradient_norm(b.graph(), &[pages.gradients], Some(schedule), max_norm)?;
    adam(b.graph(), pages, schedule, norm, settings)?;
    Ok(norm)
}

pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    let plain = AdamSettings::transformer;
    for n in [64, 128, 64 * 63, 64 * 1021, 64 * 4096] {
        cases.push(
            Case::new(format!("adam {n}"), move |b: &mut Build| {
                Ok(vec![step(b, values(4, n, |x| x), None, plain())?])
            })
            .values_only(),
        );
        cases.push(
            Case::new(format!("adam {n} clipped, decay {}..{}", n / 4, n), move |b: &mut Build| {
                let settings =
                    AdamSettings { weight_decay: 0.1, decoupled: true, decay: n / 4..n, ..plain() };
                Ok(vec![step(b, values(4, n, |x| x), Some(1.0), settings)?])
            })
            .values_only(),
        );
        cases.push(
            Case::new(format!("adam {n}, decay in the gradient"), move |b: &mut Build| {
                let settings =
                    AdamSettings { weight_decay: 0.1, decoupled: false, decay: 0..n / 2, ..plain() };
                Ok(vec![step(b, values(4, n, |x| x), Some(1e9), settings)?])
            })
            .values_only(),
        );
    }
    // Nothing changes when a gradient is not finite, or the sum of squares is not.
    for (name, bad) in [("infinity", f32::INFINITY), ("NaN", f32::NAN), ("too large", 1e20)] {
        cases.push(
            Case::new(format!("skipped for {name}"), move |b: &mut Build| {
                let mut grads: Vec<f32> = (0..128).map(|i| i as f32).collect();
                grads[77] = bad;
                step(b, HostTensor::f32([128], grads), Some(1.0), plain())?;
                Ok(Vec::new())
            })
            .values_only(),
        );
    }
    // A first step with zero gradients and moments: padding stays zero.
    cases.push(
        Case::new("zeros stay zero", |b: &mut Build| {
            let zeros = || HostTensor::f32([64], vec![0.0; 64]);
            let pages = AdamPages {
                parameters: b.state("p", zeros()),
                m: b.state("m", zeros()),
                v: b.state("v", zeros()),
                gradients: b.fixed("gradients", zeros()),
            };
            let schedule = b.fixed("schedule", HostTensor::f32([4], vec![0.01, 10.0, 50.0, 1.0]));
            let norm = gradient_norm(b.graph(), &[pages.gradients], None, Some(1.0))?;
            let settings = AdamSettings { weight_decay: 0.1, decay: 0..64, ..AdamSettings::transformer() };
            adam(b.graph(), pages, schedule, norm, settings)?;
            Ok(vec![norm])
        })
        .values_only(),
    );
    // Gradients that are tiny, taken for zero, or so large that their squares just fit.
    for scale in [1e-39, 1e-20, 1e-6, 1e6, 1e15] {
        cases.push(
            Case::new(format!("adam, gradients of {scale:e}"), move |b: &mut Build| {
                Ok(vec![step(b, values(4, 128, |x| x * scale), None, plain())?])
            })
            .values_only(),
        );
    }
    for scale in [1e-39, 1e-12, 1.0, 1e12] {
        cases.push(
            Case::new(format!("norm of three pages, scale {scale:e}"), move |b: &mut Build| {
                let pages: Vec<ValueId> = [64, 64 * 300, 64 * 7]
                    .into_iter()
                    .enumerate()
                    .map(|(i, n)| b.fixed(&format!("page {i}"), values(i as u64, n, |x| x * scale)))
                    .collect();
                Ok(vec![gradient_norm(b.graph(), &pages, None, Some(0.25))?])
            })
            .values_only(),
        );
    }
    cases
}

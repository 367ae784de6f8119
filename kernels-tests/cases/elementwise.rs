//! Element-wise ops.

use wgformer::ops::elementwise::{self as ew, Activation};
use wgformer::testing::{Build, Case};

const ACTIVATIONS: [Activation; 4] =
    [Activation::Relu, Activation::Gelu, Activation::GeluTanh, Activation::Silu];

pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for n in [1, 3, 4, 63, 64, 256, 257, 1021, 4 * 64 * 7 + 4] {
        cases.push(Case::new(format!("add {n}"), move |b: &mut Build| {
            let (x, y) = (b.normal("x", [n], 1.0), b.normal("y", [n], 1.0));
            Ok(vec![ew::add(b.graph(), x, y)?])
        }));
        cases.push(Case::new(format!("multiply {n}"), move |b: &mut Build| {
            let (x, y) = (b.normal("x", [n], 1.0), b.normal("y", [n], 1.0));
            Ok(vec![ew::multiply(b.graph(), x, y)?])
        }));
        cases.push(Case::new(format!("scale {n}"), move |b: &mut Build| {
            let x = b.normal("x", [n], 1.0);
            Ok(vec![ew::scale(b.graph(), x, -0.37)?])
        }));
        cases.push(Case::new(format!("scale_by {n}"), move |b: &mut Build| {
            let x = b.normal("x", [n], 1.0);
            let f = b.fixed("f", wgformer::HostTensor::f32([1], vec![1.7]));
            Ok(vec![ew::scale_by(b.graph(), x, f)?])
        }));
    }
    for act in ACTIVATIONS {
        for (n, scale) in [(257, 1.0), (256, 4.0), (64, 100.0), (64, 1e-6), (64, 1e-39), (64, 1e30)] {
            cases.push(Case::new(format!("{act:?} {n} scale {scale}"), move |b: &mut Build| {
                let x = b.normal("x", [n], scale);
                Ok(vec![ew::activate(b.graph(), act, x)?])
            }));
        }
    }
    for (name, scale) in [("large", 1e18), ("tiny", 1e-20), ("denormal", 1e-39)] {
        cases.push(Case::new(format!("{name} values"), move |b: &mut Build| {
            let (x, y) = (b.normal("x", [257], scale), b.normal("y", [257], scale));
            let product = ew::multiply(b.graph(), x, y)?;
            let sum = ew::add(b.graph(), product, x)?;
            Ok(vec![ew::scale(b.graph(), sum, 3.0)?])
        }));
    }
    for n in [1, 3, 4, 257, 1021, 4 * 64 * 7 + 4] {
        cases.push(
            Case::new(format!("f16 {n}"), move |b: &mut Build| {
                let (x, y) = (b.half("x", [n], 1.0), b.half("y", [n], 1.0));
                let f = b.fixed("f", wgformer::HostTensor::f32([1], vec![1.7]));
                let (sum, product) = (ew::add(b.graph(), x, y)?, ew::multiply(b.graph(), x, y)?);
                let gelu = ew::activate(b.graph(), Activation::Gelu, sum)?;
                Ok(vec![ew::scale(b.graph(), gelu, -0.37)?, ew::scale_by(b.graph(), product, f)?])
            })
            .values_only(),
        );
    }
    for (name, scale) in [("large", 40.0), ("tiny", 1e-3), ("denormal", 1e-6)] {
        cases.push(
            Case::new(format!("f16, {name} values"), move |b: &mut Build| {
                let (x, y) = (b.half("x", [257], scale), b.half("y", [257], scale));
                let product = ew::multiply(b.graph(), x, y)?;
                Ok(vec![ew::add(b.graph(), product, x)?])
            })
            .values_only(),
        );
    }
    // Fan-in: x is used twice, so its gradient is a sum.
    cases.push(Case::new("fan-in", |b: &mut Build| {
        let x = b.normal("x", [5, 7], 1.0);
        let y = ew::multiply(b.graph(), x, x)?;
        Ok(vec![ew::add(b.graph(), y, x)?])
    }));
    // More than 65,535 workgroups: groups fold into y.
    cases.push(Case::new("many groups", |b: &mut Build| {
        let x = b.normal("x", [65_600 * 64 + 1], 1.0);
        Ok(vec![ew::scale(b.graph(), x, 3.0)?])
    }));
    cases
}

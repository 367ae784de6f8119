//! Chains of multiply-adds.

use wgformer::HostTensor;
use wgformer::ops::fma::fma;
use wgformer::testing::{Build, Case};

pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (n, rounds) in [(4, 0), (4, 1), (64, 3), (256, 17), (260, 512), (4 * 1021, 64)] {
        for (a, b) in [(0.5, 1.0), (-0.9, 0.1), (1.0, -0.25)] {
            let case = move |b_: &mut Build| {
                let start = b_.normal("start", [n], 1.0);
                let factors = b_.fixed("factors", HostTensor::f32([2], vec![a, b]));
                Ok(vec![fma(b_.graph(), start, factors, rounds)?])
            };
            cases
                .push(Case::new(format!("{n} elements, {rounds} rounds of {a} x + {b}"), case).values_only());
        }
    }
    // More than 65,535 workgroups.
    let many = |b: &mut Build| {
        let start = b.normal("start", [65_600 * 64 * 4 + 4], 1.0);
        let factors = b.fixed("factors", HostTensor::f32([2], vec![0.5, 1.0]));
        Ok(vec![fma(b.graph(), start, factors, 1)?])
    };
    cases.push(Case::new("many groups", many).values_only());
    cases
}

//! Dropout, alone and before a residual sum.

use wgformer::HostTensor;
use wgformer::ops::{dropout, random::Dropout};
use wgformer::testing::{Build, Case};

fn seed(b: &mut Build) -> wgformer::graph::ValueId {
    b.fixed("seed", HostTensor::u32([2], vec![123, 45]))
}

pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for n in [1, 3, 64, 257, 4096 + 4] {
        for p in [0.0, 0.1, 0.5, 0.999] {
            cases.push(Case::new(format!("{n}, p {p}"), move |b: &mut Build| {
                let (x, seed) = (b.normal("x", [n], 1.0), seed(b));
                Ok(vec![dropout::dropout(b.graph(), x, Dropout { p, site: 2 }, seed)?])
            }));
            cases.push(Case::new(format!("residual {n}, p {p}"), move |b: &mut Build| {
                let (x, residual, seed) = (b.normal("x", [n], 1.0), b.normal("residual", [n], 1.0), seed(b));
                let d = Some(Dropout { p, site: 3 });
                Ok(vec![dropout::residual_dropout(b.graph(), residual, x, d, Some(seed))?])
            }));
        }
    }
    for (name, scale) in [("large", 1e30), ("tiny", 1e-30), ("denormal", 1e-39)] {
        cases.push(Case::new(format!("{name} values"), move |b: &mut Build| {
            let (x, residual, seed) =
                (b.normal("x", [257], scale), b.normal("residual", [257], scale), seed(b));
            let d = Some(Dropout { p: 0.5, site: 3 });
            Ok(vec![dropout::residual_dropout(b.graph(), residual, x, d, Some(seed))?])
        }));
    }
    cases.push(Case::new("no dropout", |b: &mut Build| {
        let (x, residual) = (b.normal("x", [5, 7], 1.0), b.normal("residual", [5, 7], 1.0));
        Ok(vec![dropout::residual_dropout(b.graph(), residual, x, None, None)?])
    }));
    cases.push(
        Case::new("many groups", |b: &mut Build| {
            let (x, seed) = (b.normal("x", [65_600 * 64 + 1], 1.0), seed(b));
            Ok(vec![dropout::dropout(b.graph(), x, Dropout { p: 0.1, site: 0 }, seed)?])
        })
        .values_only(),
    );
    cases
}

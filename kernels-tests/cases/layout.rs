//! Ops that move no bytes, between ops that do.

use wgformer::HostTensor;
use wgformer::ops::{elementwise as ew, layout};
use wgformer::testing::{Build, Case};

pub fn cases() -> Vec<Case> {
    vec![
        Case::new("reshape", |b: &mut Build| {
            let x = b.normal("x", [6, 5], 1.0);
            let y = layout::reshape(b.graph(), x, [3, 10])?;
            Ok(vec![ew::scale(b.graph(), y, 2.0)?])
        }),
        Case::new("split and concat", |b: &mut Build| {
            let x = b.normal("x", [5, 64], 1.0);
            let doubled = ew::scale(b.graph(), x, 2.0)?;
            let parts = layout::split_rows(b.graph(), doubled, &[2, 3])?;
            let first = ew::scale(b.graph(), parts[0], 3.0)?;
            let second = ew::multiply(b.graph(), parts[1], parts[1])?;
            let whole = layout::concat_rows(b.graph(), &[second, first])?;
            Ok(vec![ew::scale(b.graph(), whole, 1.5)?])
        }),
        Case::new("concat of one value twice", |b: &mut Build| {
            let x = b.normal("x", [2, 64], 1.0);
            let y = ew::scale(b.graph(), x, 2.0)?;
            let whole = layout::concat_rows(b.graph(), &[y, y, x])?;
            Ok(vec![ew::scale(b.graph(), whole, 1.5)?])
        }),
        Case::new("pack into a state", |b: &mut Build| {
            let state = b.state("page", HostTensor::f32([256], (0..256).map(|i| i as f32).collect()));
            let x = b.normal("x", [3, 5], 1.0);
            let (y, z) = (ew::scale(b.graph(), x, 2.0)?, ew::scale(b.graph(), x, 3.0)?);
            let page = layout::pack_into(b.graph(), state, &[z, y], &[64, 192])?;
            Ok(vec![ew::scale(b.graph(), page, 1.0)?])
        })
        .values_only(),
    ]
}

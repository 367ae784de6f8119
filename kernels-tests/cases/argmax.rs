//! Argmax: exact, ties to the lowest place.

use wgformer::HostTensor;
use wgformer::ops::argmax::argmax;
use wgformer::testing::{Build, Case};

pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (rows, v) in [
        (1, 1),
        (3, 1),
        (2, 2),
        (5, 7),
        (4, 8),
        (7, 37),
        (3, 64),
        (130, 100),
        (9, 1000),
        (3, 1025),
        (2, 4099),
        (1, 32_000),
        // Enough rows for a sub-group to be given several, were it a kernel that loops over them.
        (300, 260),
        (2100, 72),
    ] {
        for forbid in [0, 1, 0x8000_0005] {
            cases.push(
                Case::new(format!("{rows} x {v} forbid {forbid:x}"), move |b: &mut Build| {
                    let x = b.normal("x", [rows, v], 3.0);
                    Ok(vec![argmax(b.graph(), x, forbid)?])
                })
                .values_only(),
            );
        }
    }
    // Few distinct values: most rows have ties, between lanes and within them.
    for v in [3, 4, 37, 40, 257, 1028] {
        for forbid in [0, 0b1011] {
            cases.push(
                Case::new(format!("ties of {v} forbid {forbid:x}"), move |b: &mut Build| {
                    let data = (0..64 * v).map(|i| ((i * i / 7 + i / 5) % 3) as f32 - 1e6).collect();
                    let x = b.fixed("x", HostTensor::f32([8, 8, v], data));
                    Ok(vec![argmax(b.graph(), x, forbid)?])
                })
                .values_only(),
            );
        }
    }
    cases.push(
        Case::new("all equal", |b: &mut Build| {
            let x = b.fixed("x", HostTensor::f32([3, 100], vec![-7.5; 300]));
            Ok(vec![argmax(b.graph(), x, 0)?, argmax(b.graph(), x, 0xf)?])
        })
        .values_only(),
    );
    cases.push(
        Case::new("all forbidden", |b: &mut Build| {
            let x = b.normal("x", [3, 4], 1.0);
            Ok(vec![argmax(b.graph(), x, 0xf)?])
        })
        .values_only(),
    );
    cases.push(
        Case::new("many rows", |b: &mut Build| {
            let x = b.normal("x", [65_537, 2], 1.0);
            Ok(vec![argmax(b.graph(), x, 0)?])
        })
        .values_only(),
    );
    cases
}

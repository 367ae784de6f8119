//! Embedding: rows, positions, dropout, and the gradients of table and positions.

use wgformer::HostTensor;
use wgformer::ops::elementwise as ew;
use wgformer::ops::embedding::{EmbeddingInputs, embedding, sinusoid_halves, sinusoid_interleaved};
use wgformer::ops::layout::reshape;
use wgformer::ops::random::Dropout;
use wgformer::testing::{Build, Case};

pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (batch, steps, v, c) in [
        (1, 1, 1, 1),
        (1, 1, 5, 4),
        (2, 3, 7, 5),
        (3, 5, 8, 8),
        (4, 9, 37, 12),
        (2, 64, 63, 64),
        (7, 11, 1000, 36),
        (5, 40, 300, 130),
        (3, 7, 4099, 4),
    ] {
        for p in [0.0, 0.3] {
            let name = format!("{batch} x {steps} of {v} x {c}{}", if p > 0.0 { ", dropout" } else { "" });
            let case = move |b: &mut Build| {
                let ids = b.ids("ids", [batch, steps], v);
                let table = b.normal("table", [v as usize, c], 1.0);
                let positions = b.normal("positions", [steps + 2, c], 1.0);
                let seed = b.fixed("seed", HostTensor::u32([2], vec![3, 9]));
                let inputs = EmbeddingInputs {
                    ids,
                    table,
                    positions: Some(positions),
                    offset: None,
                    seed: Some(seed),
                };
                Ok(vec![embedding(b.graph(), inputs, 1.7, Some(Dropout { p, site: 4 }))?])
            };
            cases.push(Case::new(name, case));
        }
        let case = move |b: &mut Build| {
            let ids = b.ids("ids", [batch, steps], v);
            let table = b.normal("table", [v as usize, c], 1.0);
            let inputs = EmbeddingInputs { ids, table, positions: None, offset: None, seed: None };
            Ok(vec![embedding(b.graph(), inputs, 1.0, None)?])
        };
        cases.push(Case::new(format!("{batch} x {steps} of {v} x {c}, no positions"), case));
    }
    // All ids the same: the first, one in the middle, the last; and both ends.
    for (name, ids) in [
        ("first", vec![0; 77]),
        ("middle", vec![19; 77]),
        ("last", vec![36; 77]),
        ("ends", [0, 36].repeat(20)),
    ] {
        for c in [6, 64] {
            let ids = ids.clone();
            let case = move |b: &mut Build| {
                let n = ids.len();
                let ids = b.fixed("ids", HostTensor::u32([1, n], ids.clone()));
                let table = b.normal("table", [37, c], 1.0);
                let inputs = EmbeddingInputs { ids, table, positions: None, offset: None, seed: None };
                Ok(vec![embedding(b.graph(), inputs, 0.5, None)?])
            };
            cases.push(Case::new(format!("ids all {name}, C {c}"), case));
        }
    }
    for (name, scale) in [("large", 1e30), ("tiny", 1e-30), ("denormal", 1e-39)] {
        let case = move |b: &mut Build| {
            let ids = b.ids("ids", [4, 9], 37);
            let table = b.normal("table", [37, 12], scale);
            let positions = Some(b.normal("positions", [11, 12], scale));
            let seed = Some(b.fixed("seed", HostTensor::u32([2], vec![3, 9])));
            let inputs = EmbeddingInputs { ids, table, positions, offset: None, seed };
            Ok(vec![embedding(b.graph(), inputs, 1.7, Some(Dropout { p: 0.3, site: 4 }))?])
        };
        cases.push(Case::new(format!("{name} values"), case));
    }
    // More than 65,535 workgroups: of rows, and of rows of the table. Very frequent ids.
    for (name, batch, v, c) in [
        ("many rows", 65_600, 1000, 5),
        ("many ids", 5, 460_000, 1),
        ("frequent ids", 65_600, 3, 17),
        ("frequent ids of many columns", 9_000, 1, 516),
    ] {
        let case = move |b: &mut Build| {
            let ids = b.ids("ids", [batch, 1], v);
            let table = b.normal("table", [v as usize, c], 1.0);
            let inputs = EmbeddingInputs { ids, table, positions: None, offset: None, seed: None };
            Ok(vec![embedding(b.graph(), inputs, 1.0, None)?])
        };
        cases.push(Case::new(name, case));
    }
    // Decoding: one column of ids at a position.
    for offset in [0, 3, 9, 12] {
        for c in [6, 64] {
            let case = move |b: &mut Build| {
                let ids = b.ids("ids", [5, 1], 37);
                let table = b.normal("table", [37, c], 1.0);
                let positions = b.fixed("positions", sinusoid_interleaved(10, c));
                let offset = b.fixed("offset", HostTensor::u32([1], vec![offset]));
                let inputs = EmbeddingInputs {
                    ids,
                    table,
                    positions: Some(positions),
                    offset: Some(offset),
                    seed: None,
                };
                Ok(vec![embedding(b.graph(), inputs, 8.0, None)?])
            };
            cases.push(Case::new(format!("position {offset}, C {c}"), case));
        }
    }
    for (batch, steps, v, c) in [(1, 1, 1, 1), (2, 3, 7, 5), (3, 5, 8, 8), (4, 9, 37, 12), (7, 11, 1000, 36)]
    {
        for offset in [None, Some(1), Some(12)] {
            cases.push(
                Case::new(
                    format!("f16, {batch} x {steps} of {v} x {c} at {offset:?}"),
                    move |b: &mut Build| {
                        let inputs = EmbeddingInputs {
                            ids: b.ids("ids", [batch, steps], v),
                            table: b.half("table", [v as usize, c], 1.0),
                            positions: Some(b.half("positions", [steps + 2, c], 1.0)),
                            offset: offset.map(|o| b.fixed("offset", HostTensor::u32([1], vec![o]))),
                            seed: None,
                        };
                        Ok(vec![embedding(b.graph(), inputs, 1.7, None)?])
                    },
                )
                .values_only(),
            );
        }
    }
    // The table is used twice, its ids come in another shape, and the positions are a constant.
    cases.push(Case::new("tied", |b: &mut Build| {
        let flat = b.ids("ids", [12], 9);
        let other = b.ids("other", [2, 6], 9);
        let table = b.normal("table", [9, 16], 1.0);
        let table = ew::scale(b.graph(), table, 2.0)?;
        let ids = reshape(b.graph(), flat, [2, 6])?;
        let positions = b.graph().constant("positions", sinusoid_halves(6, 16));
        let inputs = EmbeddingInputs { ids, table, positions: Some(positions), offset: None, seed: None };
        let one = embedding(b.graph(), inputs, 4.0, None)?;
        let two = embedding(b.graph(), EmbeddingInputs { ids: other, ..inputs }, 1.0, None)?;
        Ok(vec![ew::add(b.graph(), one, two)?])
    }));
    cases
}

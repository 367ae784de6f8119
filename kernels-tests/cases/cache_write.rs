//! Writes into a cache: exact, and nothing beyond it.

use wgformer::ops::cache_write::cache_write;
use wgformer::ops::elementwise as ew;
use wgformer::testing::{Build, Case};
use wgformer::{HostTensor, TensorType};

fn counted(n: usize, first: usize) -> Vec<u32> {
    (0..n).map(|i| (first + i) as u32).collect()
}

pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (batch, positions, steps, width) in [
        (1, 1, 1, 1),
        (3, 5, 1, 4),
        (2, 7, 3, 5),
        (4, 16, 16, 8),
        (5, 33, 2, 64),
        (70, 9, 1, 3),
        (2, 4, 6, 4),
    ] {
        for offset in
            [None, Some(0), Some(1), Some(positions as u32 - 1), Some(positions as u32), Some(u32::MAX)]
        {
            cases.push(
                Case::new(
                    format!("{batch} x {positions} x {width}, {steps} at {offset:?}"),
                    move |b: &mut Build| {
                        let n = batch * positions * width;
                        let before = (0..n).map(|i| i as f32).collect();
                        let cache = b.state("cache", HostTensor::f32([batch, positions, width], before));
                        let rows = b.normal("rows", [batch, steps, width], 1.0);
                        let offset = offset.map(|o| b.fixed("offset", HostTensor::u32([1], vec![o])));
                        cache_write(b.graph(), cache, rows, offset)?;
                        Ok(vec![])
                    },
                )
                .values_only(),
            );
        }
    }
    cases.push(
        Case::new("many groups", |b: &mut Build| {
            let cache = b.state("cache", HostTensor::u32([1, 65_600, 65], counted(65_600 * 65, 0)));
            let rows = b.fixed("rows", HostTensor::u32([1, 65_600, 65], counted(65_600 * 65, 7)));
            let offset = b.fixed("offset", HostTensor::u32([1], vec![3]));
            cache_write(b.graph(), cache, rows, Some(offset))?;
            Ok(vec![])
        })
        .values_only(),
    );
    cases.push(
        Case::new("ids", |b: &mut Build| {
            let cache = b.state("cache", HostTensor::u32([5, 6], counted(30, 0)));
            let ids = b.fixed("ids", HostTensor::u32([5], counted(5, 100)));
            let offset = b.fixed("offset", HostTensor::u32([1], vec![4]));
            cache_write(b.graph(), cache, ids, Some(offset))?;
            Ok(vec![])
        })
        .values_only(),
    );
    cases.push(
        Case::new("bits of floats that are no numbers", |b: &mut Build| {
            let cache = b.state("cache", HostTensor::u32([1, 4, 4], counted(16, 0)));
            let ids = b.fixed("ids", HostTensor::u32([1, 1, 4], vec![0x7fc0_1234, 1, 0xff80_0000, u32::MAX]));
            cache_write(b.graph(), cache, ids, None)?;
            Ok(vec![])
        })
        .values_only(),
    );
    // Rows of pairs, of eight, and rows that end within a pair.
    for (batch, positions, steps, width) in
        [(1, 1, 1, 1), (2, 7, 3, 5), (3, 5, 1, 4), (2, 7, 3, 6), (5, 33, 2, 64), (70, 9, 1, 3)]
    {
        for offset in [None, Some(1), Some(positions as u32 - 1), Some(u32::MAX)] {
            cases.push(
                Case::new(
                    format!("f16, {batch} x {positions} x {width}, {steps} at {offset:?}"),
                    move |b: &mut Build| {
                        let shape = [batch, positions, width];
                        let before: Vec<f32> = (0..batch * positions * width).map(|i| i as f32).collect();
                        let cache = b.state("cache", HostTensor::rounded_to_f16(shape, &before, "cache")?);
                        let rows = b.half("rows", [batch, steps, width], 1.0);
                        let offset = offset.map(|o| b.fixed("offset", HostTensor::u32([1], vec![o])));
                        cache_write(b.graph(), cache, rows, offset)?;
                        Ok(vec![])
                    },
                )
                .values_only(),
            );
        }
    }
    // A part of a state, and a node that reads it afterwards.
    cases.push(
        Case::new("view, then read", |b: &mut Build| {
            let page = b.state("page", HostTensor::f32([320], (0..320).map(|i| i as f32).collect()));
            let view = b.graph().view("page.part", page, 64, TensorType::f32([2, 4, 16]))?;
            let rows = b.normal("rows", [2, 2, 16], 1.0);
            let offset = b.fixed("offset", HostTensor::u32([1], vec![1]));
            cache_write(b.graph(), view, rows, Some(offset))?;
            Ok(vec![ew::scale(b.graph(), view, 2.0)?])
        })
        .values_only(),
    );
    cases
}

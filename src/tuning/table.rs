//! The variants that there are, and the rules that are shipped.

use super::{ALL, Bounds, DIMS, Family, Lanes, Rule, Sizes, Tile, Variant};
use crate::profile::DeviceClass;

// Places in a shape: of a product,
pub(super) const M: usize = 0;
pub(super) const N: usize = 1;
pub(super) const BATCH: usize = 3;
// of an attention,
pub(super) const OWNED: usize = 0;
const WALKED: usize = 1;
const HEAD: usize = 2;
const HEAD_UNIT: usize = 3;
pub(super) const PAIRS: usize = 4;
// of rows.
const ROWS: usize = 0;
const SIZE: usize = 1;

/// Bounds of some sizes: place, least, most.
const fn bounds(list: &[(usize, usize, usize)]) -> Bounds {
    let mut all = ALL;
    let mut i = 0;
    while i < list.len() {
        let (place, least, most) = list[i];
        assert!(place < DIMS);
        all[place] = [least, most];
        i += 1;
    }
    all
}

const fn at_most(place: usize, most: usize) -> Bounds {
    bounds(&[(place, 0, most)])
}

const fn at_least(place: usize, least: usize) -> Bounds {
    bounds(&[(place, least, usize::MAX)])
}

// ---- Variants ----

/// The sub-groups that matmul_subgroup.wgsl is for: fewer lanes would waste loads, more have GPUs.
const NARROW: Lanes = Lanes::Of(&[4, 8, 16]);

/// So many workgroups keep a software adapter busy, and a GPU.
const FEW: usize = 8;
const MANY: usize = 64;

/// The kernel moves its last tile up to end at the last row, so a tile has no more rows than the product.
const fn subgroup(name: &'static str, tm: u32, tn: u32, groups: usize, cost: f64) -> Variant {
    let sizes = Sizes::Subgroup { tm, tn, groups };
    Variant { lanes: NARROW, bounds: at_least(M, tm as usize), cost, ..anywhere(Family::MatMul, name, sizes) }
}

const fn anywhere(family: Family, name: &'static str, sizes: Sizes) -> Variant {
    Variant { family, name, kernels: family.kernels(), lanes: Lanes::Any, bounds: ALL, cost: 1.0, sizes }
}

const fn tile(name: &'static str, [tx, ty, rm, rn, slab]: [u32; 5], groups: usize) -> Variant {
    anywhere(Family::MatMul, name, Sizes::Tile { tx, ty, rm, rn, slab, groups, prefetch: false })
}

const fn prefetch(name: &'static str, [tx, ty, rm, rn, slab]: [u32; 5], groups: usize) -> Variant {
    anywhere(Family::MatMul, name, Sizes::Tile { tx, ty, rm, rn, slab, groups, prefetch: true })
}

/// B is read for each few rows, so what many rows would take is by rows a load.
const fn vector(name: &'static str, rows: u32, cost: f64) -> Variant {
    Variant { cost, ..anywhere(Family::MatMul, name, Sizes::Vector { columns: 16, slices: 8, rows }) }
}

/// Those that walk over the other rows block by block.
const BY_BLOCKS: &[&str] = &["forward", "backward_q", "backward_kv"];

const fn sizes([nr, nc, rt, ct, dc]: [usize; 5]) -> Tile {
    Tile { nr, nc, rt, ct, dc }
}

const fn tiled(name: &'static str, tile: [usize; 5]) -> Variant {
    Variant { kernels: BY_BLOCKS, ..anywhere(Family::Attention, name, Sizes::Tiled(sizes(tile))) }
}

const fn split(name: &'static str, tile: [usize; 5]) -> Variant {
    let sizes = Sizes::Parts(sizes(tile), 4 * MANY);
    Variant { kernels: &["forward"], ..anywhere(Family::Attention, name, sizes) }
}

/// One workgroup has all keys; its sums are of two tensors, so heads are narrow.
const fn whole(name: &'static str, tile: [usize; 5]) -> Variant {
    let tile = sizes(tile);
    let bounds = bounds(&[(OWNED, 0, tile.nr * tile.rt), (HEAD, 0, 32)]);
    Variant { kernels: &["backward"], bounds, ..anywhere(Family::Attention, name, Sizes::Whole(tile)) }
}

/// More rows serve more multiply-adds with a load, but cost compile time, which grows with rows times chunks of a head: so
/// heads have `most` elements.
const fn lanes(name: &'static str, rows: usize, most: usize, cost: f64) -> Variant {
    Variant {
        kernels: BY_BLOCKS,
        lanes: Lanes::Of(&[8]),
        bounds: bounds(&[(HEAD_UNIT, 4, 4), (HEAD, 0, most)]),
        cost,
        ..anywhere(Family::Attention, name, Sizes::Lanes { rows })
    }
}

/// A column of four a lane instead of two.
const HALF: f64 = 1.24;

/// The most elements of a row for one invocation: Mesa's software adapter ends all loops of an invocation after 65,535
/// rounds in all, in silence.
const ALONE: usize = 8192;

/// Every variant. Its name says what it shares out: rows x columns of a tile, of `subgroup` with columns by lanes and four.
///
/// What a sub-group's tile computes a second relative to the largest one's was measured on lavapipe (Mesa 22.3.6, 8 lanes,
/// K = 1024), apart from the tiles of less than 4 rows, whose costs are by rows a load. The time that a row of `lanes`
/// takes was measured with D 32 on llvmpipe of Mesa 22.3.6 with AVX-512. With AVX2 the small ones are worse: D 64 with 16
/// rows takes twice the time of 32 rows.
pub(super) static VARIANTS: &[Variant] = &[
    subgroup("subgroup 32x2", 32, 2, FEW, 1.0),
    subgroup("subgroup 32x1", 32, 1, FEW, HALF),
    subgroup("subgroup 16x2", 16, 2, FEW, 1.27),
    subgroup("subgroup 16x1", 16, 1, FEW, 1.27 * HALF),
    subgroup("subgroup 8x2", 8, 2, FEW, 2.0),
    subgroup("subgroup 8x1", 8, 1, FEW, 2.0 * HALF),
    subgroup("subgroup 4x2", 4, 2, FEW, 3.5),
    subgroup("subgroup 4x1", 4, 1, FEW, 3.5 * HALF),
    subgroup("subgroup 3x2", 3, 2, FEW, 4.7),
    subgroup("subgroup 3x1", 3, 1, FEW, 4.7 * HALF),
    subgroup("subgroup 2x2", 2, 2, FEW, 7.0),
    subgroup("subgroup 2x1", 2, 1, FEW, 7.0 * HALF),
    subgroup("subgroup 1x2", 1, 2, FEW, 14.0),
    subgroup("subgroup 1x1", 1, 1, FEW, 14.0 * HALF),
    subgroup("subgroup 32x2 unsplit", 32, 2, 1, 1.0),
    subgroup("subgroup 16x2 unsplit", 16, 2, 1, 1.27),
    tile("tile 128x128", [16, 16, 8, 2, 8], MANY),
    prefetch("tile 128x128 prefetch", [16, 16, 8, 2, 8], MANY),
    tile("tile 64x64", [16, 16, 4, 1, 16], MANY),
    prefetch("tile 64x64 prefetch", [16, 16, 4, 1, 16], MANY),
    // As much a thread as the largest has.
    prefetch("tile 64x64 of 8x8 prefetch", [8, 8, 8, 2, 8], MANY),
    tile("tile 32x32", [8, 8, 4, 1, 16], MANY),
    tile("tile 64x64 unsplit", [16, 16, 4, 1, 16], 1),
    tile("tile 32x32 unsplit", [8, 8, 4, 1, 16], 1),
    tile("tile 64x64 split more", [16, 16, 4, 1, 16], 4 * MANY),
    tile("tile 32x32 split more", [8, 8, 4, 1, 16], 4 * MANY),
    anywhere(Family::MatMul, "plain", Sizes::Plain { across: 4, down: 4, groups: FEW }),
    vector("vector 1", 1, 10.0),
    vector("vector 2", 2, 5.0),
    vector("vector 4", 4, 2.5),
    // Rows and columns of a tile, and what is taken of a head at a time.
    tiled("tiled 64x16x4", [16, 4, 4, 4, 4]),
    tiled("tiled 32x16x4", [16, 4, 2, 4, 4]),
    tiled("tiled 16x16x4", [16, 4, 1, 4, 4]),
    tiled("tiled 32x32x8", [8, 8, 4, 4, 8]),
    tiled("tiled 16x32x8", [8, 8, 2, 4, 8]),
    tiled("tiled 8x32x8", [8, 8, 1, 4, 8]),
    tiled("tiled 32x16x16", [8, 8, 4, 2, 16]),
    tiled("tiled 16x16x16", [8, 8, 2, 2, 16]),
    tiled("tiled 8x16x16", [8, 8, 1, 2, 16]),
    split("split 8x32x8", [8, 8, 1, 4, 8]),
    split("split 4x32x16", [4, 16, 1, 2, 16]),
    whole("whole 32x32x8", [8, 8, 4, 4, 8]),
    whole("whole 16x32x8", [8, 8, 2, 4, 8]),
    Variant { kernels: &["backward"], ..anywhere(Family::Attention, "apart", Sizes::Apart) },
    lanes("lanes 32", 32, 16, 1.0),
    lanes("lanes 24", 24, 16, 1.05),
    lanes("lanes 16", 16, 32, 1.15),
    lanes("lanes 8", 8, usize::MAX, 1.45),
    Variant { bounds: at_most(SIZE, ALONE), ..anywhere(Family::Rows, "invocation", Sizes::Invocation(64)) },
    // Not bounded, since it is what an adapter without sub-groups gets.
    anywhere(Family::Rows, "invocation 8", Sizes::Invocation(8)),
    Variant { lanes: Lanes::One, ..anywhere(Family::Rows, "subgroup", Sizes::OneSubgroup) },
    anywhere(Family::Rows, "workgroup 32", Sizes::Workgroup(32)),
    anywhere(Family::Rows, "workgroup 64", Sizes::Workgroup(64)),
    anywhere(Family::Rows, "workgroup 128", Sizes::Workgroup(128)),
    anywhere(Family::Rows, "workgroup 256", Sizes::Workgroup(256)),
];

// ---- Rules ----

/// Of a family, on every device and for every shape.
const fn rule(family: Family, variants: &'static [&'static str]) -> Rule {
    Rule {
        family,
        kernel: "",
        class: None,
        arrays_in_memory: false,
        lanes: Lanes::Any,
        bounds: ALL,
        groups: 0,
        variants,
    }
}

const fn of_attention(kernel: &'static str, variants: &'static [&'static str]) -> Rule {
    Rule { kernel, ..rule(Family::Attention, variants) }
}

/// On software adapters with these sub-groups.
const fn cpu(family: Family, lanes: Lanes, variants: &'static [&'static str]) -> Rule {
    Rule { class: Some(DeviceClass::Cpu), lanes, ..rule(family, variants) }
}

/// The first that holds chooses.
pub(super) static RULES: &[Rule] = &[
    // On SwiftShader 2 to 8 times as fast as the others (benches/README.md).
    Rule { arrays_in_memory: true, ..rule(Family::MatMul, &["plain"]) },
    Rule {
        bounds: at_least(M, 4),
        ..cpu(
            Family::MatMul,
            NARROW,
            &[
                "subgroup 32x2",
                "subgroup 32x1",
                "subgroup 16x2",
                "subgroup 16x1",
                "subgroup 8x2",
                "subgroup 8x1",
                "subgroup 4x2",
                "subgroup 4x1",
            ],
        )
    },
    cpu(
        Family::MatMul,
        NARROW,
        &["subgroup 3x2", "subgroup 3x1", "subgroup 2x2", "subgroup 2x1", "subgroup 1x2", "subgroup 1x1"],
    ),
    Rule { bounds: at_most(M, 1), ..rule(Family::MatMul, &["vector 1"]) },
    Rule { bounds: at_most(M, 2), ..rule(Family::MatMul, &["vector 2"]) },
    Rule { bounds: at_most(M, 4), ..rule(Family::MatMul, &["vector 4"]) },
    // The largest tile that still gives a GPU enough groups.
    Rule { groups: 128, ..rule(Family::MatMul, &["tile 128x128 prefetch"]) },
    Rule { groups: 64, ..rule(Family::MatMul, &["tile 64x64"]) },
    rule(Family::MatMul, &["tile 32x32"]),
    // Wide heads take long to compile, by rows: forward and backward with 64 columns 7.7 s with 32 rows, 1.2 s with 8, which
    // take 15 instead of 12 ms for 64 queries of 64 pairs. That is one part in a hundred of a model's step, but for 128 queries
    // 49 instead of 31 ms.
    Rule {
        bounds: bounds(&[(OWNED, 0, 64), (HEAD, 9, usize::MAX)]),
        ..cpu(Family::Attention, Lanes::Of(&[8]), &["lanes 8"])
    },
    cpu(Family::Attention, Lanes::Of(&[8]), &["lanes 32", "lanes 24", "lanes 16", "lanes 8"]),
    // On SwiftShader 33 to 39 ms for the backward passes of 32 pairs, T = S = 8, D = 16, forward included.
    Rule { kernel: "backward", ..cpu(Family::Attention, Lanes::Any, &["apart"]) },
    // With fewer pairs too few workgroups would be left.
    Rule { bounds: at_least(PAIRS, 32), ..of_attention("backward", &["whole 16x32x8", "whole 32x32x8"]) },
    of_attention("backward", &["apart"]),
    // Few queries, as in decoding: without ranges of keys there are hardly more workgroups than pairs.
    Rule {
        bounds: bounds(&[(OWNED, 0, 8), (WALKED, 256, usize::MAX), (PAIRS, 0, 128)]),
        ..of_attention("forward", &["split 4x32x16", "split 8x32x8"])
    },
    // Few rows for short sequences, and where the sums of wide heads would not fit in registers.
    Rule { bounds: bounds(&[(HEAD, 0, 4), (OWNED, 0, 16)]), ..rule(Family::Attention, &["tiled 16x16x4"]) },
    Rule { bounds: bounds(&[(HEAD, 0, 4), (OWNED, 0, 32)]), ..rule(Family::Attention, &["tiled 32x16x4"]) },
    Rule { bounds: at_most(HEAD, 4), ..rule(Family::Attention, &["tiled 64x16x4"]) },
    Rule { bounds: bounds(&[(HEAD, 0, 8), (OWNED, 0, 8)]), ..rule(Family::Attention, &["tiled 8x32x8"]) },
    Rule { bounds: bounds(&[(HEAD, 0, 8), (OWNED, 0, 16)]), ..rule(Family::Attention, &["tiled 16x32x8"]) },
    Rule { bounds: at_most(HEAD, 8), ..rule(Family::Attention, &["tiled 32x32x8"]) },
    Rule { bounds: at_most(OWNED, 8), ..rule(Family::Attention, &["tiled 8x16x16"]) },
    Rule { bounds: at_most(OWNED, 16), ..rule(Family::Attention, &["tiled 16x16x16"]) },
    Rule {
        bounds: bounds(&[(HEAD, 33, usize::MAX), (HEAD_UNIT, 4, 4)]),
        ..rule(Family::Attention, &["tiled 16x16x16"])
    },
    rule(Family::Attention, &["tiled 32x16x16"]),
    // Too short to share. On lavapipe one invocation a row is up to 9 times as fast on rows of 8 floats, twice on 64, and
    // no faster on 128.
    Rule { bounds: at_most(SIZE, 16), ..cpu(Family::Rows, Lanes::Any, &["invocation"]) },
    Rule { bounds: at_most(SIZE, 8), ..rule(Family::Rows, &["invocation"]) },
    cpu(Family::Rows, Lanes::Of(&[1, 2, 4, 8, 16]), &["subgroup"]),
    // Barriers cost more than the rest of a row there.
    Rule { bounds: at_least(ROWS, 64), ..cpu(Family::Rows, Lanes::Unknown, &["invocation 8"]) },
    Rule { bounds: at_most(SIZE, 64), ..rule(Family::Rows, &["workgroup 32"]) },
    Rule { bounds: at_most(SIZE, 128), ..rule(Family::Rows, &["workgroup 64"]) },
    Rule { bounds: at_most(SIZE, 256), ..rule(Family::Rows, &["workgroup 128"]) },
    rule(Family::Rows, &["workgroup 256"]),
];

// out[n] = the lowest j with the largest x[n, j], over the j that are not forbidden; 0 where all are.
//
// Grid: WIDTH lanes a row, GROUP / WIDTH rows a workgroup (WIDTH is GROUP or 1), groups folded into y.
// Constants: SIZE, WIDTH, GROUP; FORBID, whether any j is forbidden. Shared text: elem_*, rows_*.

struct Params {
    rows: u32,
    forbid: u32, // bit j forbids j
}

@group(1) @binding(0) var<uniform> params: Params;

@group(0) @binding(0) var<storage, read> x: array<elem>; // [rows, SIZE]
@group(0) @binding(1) var<storage, read_write> out: array<u32>; // [rows]

const LOWEST = -3.4028234e38;

fn load(start: u32, i: u32) -> elem {
    let v = x[start + i];
    if FORBID && i < 32u / ELEM {
        return elem_mask(v, params.forbid >> (i * ELEM), LOWEST);
    }
    return v;
}

@compute @workgroup_size(GROUP)
fn argmax(here: Place) {
    if !as_planned(here) {
        return;
    }
    let index = here.group.y * here.groups.x + here.group.x;
    let place = select(index, index * GROUP + here.local, WIDTH == 1u);
    let lane = here.local % WIDTH;
    // Beyond the last row the last one is read instead: barriers stay in uniform control flow.
    let row = min(place, params.rows - 1u);
    let start = row * SIZE;
    var top = LOWEST;
    var at = SIZE;
    for (var i = lane; i < SIZE; i += WIDTH) {
        let high = elem_max(load(start, i));
        if high > top {
            top = high;
            at = i;
        }
    }
    let row_top = row_max(top, here.local);
    // Within a lane `at` is the first place of its maximum, so the least of them is the row's first. SIZE is below 2^24.
    let best = u32(-row_max(-f32(select(SIZE, at, top == row_top)), here.local));
    if lane == 0u && place < params.rows {
        if best < SIZE {
            out[row] = best * ELEM + elem_find(load(start, best), row_top);
        } else {
            out[row] = 0u;
        }
    }
}

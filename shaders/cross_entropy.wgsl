// Softmax cross-entropy with label smoothing, and its gradient, in two readings of each row of logits.
//
//   lse      = log sum_j exp x[j]
//   loss     = (1 - e) (lse - x[t]) + e (lse - mean_j x[j])                     t the target, e the smoothing
//   d_x[j]   = inv_count (exp(x[j] - lse) - e / V - (1 - e) [j = t])
// Rows whose target is `ignore` have loss 0 and gradient 0.
//
// Grid: `row_loss` and `row_loss_gradient`: WIDTH lanes a row, GROUP / WIDTH rows a workgroup (WIDTH is GROUP or 1), groups
// folded into y; `reduce` and `count_targets`: one workgroup.
// Constants: SIZE, WIDTH, GROUP. Shared text: elem_*, rows_*, and cross_entropy_apart.wgsl or
// cross_entropy_in_place.wgsl, which says where the gradient goes.

struct Params {
    rows: u32,
    ignore: u32,
    smoothing: f32,
}

@group(1) @binding(0) var<uniform> params: Params;

@group(0) @binding(1) var<storage, read> targets: array<u32>; // [rows]
// One a row: loss, 1 if the largest logit is the target's, 1, 0; all 0 where ignored.
@group(0) @binding(2) var<storage, read_write> partials: array<vec4<f32>>; // [rows]
@group(0) @binding(3) var<storage, read> inv_count: array<f32>; // [1]

const VOCABULARY = SIZE * ELEM;

// exp for arguments at most 0; below -100 the result is 0 or a denormal.
fn exp_below(v: elem) -> elem {
    return exp(max(v, elem(-100.0)));
}

struct Row {
    index: u32,
    lane: u32, // of this invocation in the row
    writes: bool, // false beyond the last row, which such invocations read instead: barriers stay in uniform control flow
    counts: bool, // its target is not ignored
    goal: u32, // its target, below VOCABULARY
    top: f32, // its largest logit
    sum: f32, // sum_j exp(x[j] - top)
}

// Reads a row once and writes its partial. Each lane keeps the largest of its logits so far and scales its sum when that
// grows. It starts from the row's first logit, so no sentinel is needed; so does the sum for the mean, which then does not
// cancel when all logits are large.
fn reduce_row(here: Place) -> Row {
    let index = here.group.y * here.groups.x + here.group.x;
    let place = select(index, index * GROUP + here.local, WIDTH == 1u);
    var row: Row;
    row.index = min(place, params.rows - 1u);
    row.lane = here.local % WIDTH;
    row.writes = place < params.rows;
    let id = targets[row.index];
    row.counts = id != params.ignore;
    row.goal = min(id, VOCABULARY - 1u);

    let start = row.index * SIZE;
    let shift = elem_get(logits[start], 0u);
    var top = shift;
    var at = 0u;
    var sum = 0.0;
    var offsets = 0.0;
    for (var i = row.lane; i < select(0u, SIZE, row.counts && row.writes); i += WIDTH) {
        let v = logits[start + i];
        let high = elem_max(v);
        if high > top {
            sum *= exp(max(top - high, -100.0));
            top = high;
            at = i;
        }
        sum += elem_sum(exp_below(v - top));
        offsets += elem_sum(v - shift);
    }
    row.top = row_max(top, here.local);
    // Within a lane `at` is the first place of its maximum, so the least of them is the row's first. SIZE is below 2^24.
    let best = u32(-row_max(-f32(select(SIZE - 1u, at, top == row.top)), here.local));
    // The last readings of logits: the sums are there when all invocations are past them.
    let first = best * ELEM + elem_find(logits[start + best], row.top);
    let nll = row.top - elem_get(logits[start + row.goal / ELEM], row.goal % ELEM);
    let sums = row_sum2(vec2<f32>(sum * exp(max(top - row.top, -100.0)), offsets), here.local);
    row.sum = sums.x;
    if row.lane == 0u && row.writes {
        var partial = vec4<f32>(0.0);
        if row.counts {
            let spread = (row.top - shift) - sums.y / f32(VOCABULARY);
            let loss = log(row.sum) + (nll + params.smoothing * (spread - nll));
            partial = vec4<f32>(loss, select(0.0, 1.0, first == row.goal), 1.0, 0.0);
        }
        partials[row.index] = partial;
    }
    return row;
}

@compute @workgroup_size(GROUP)
fn row_loss(here: Place) {
    if !as_planned(here) {
        return;
    }
    _ = reduce_row(here);
}

@compute @workgroup_size(GROUP)
fn row_loss_gradient(here: Place) {
    if !as_planned(here) {
        return;
    }
    let row = reduce_row(here);
    if !row.writes {
        return;
    }
    let start = row.index * SIZE;
    if !row.counts {
        for (var i = row.lane; i < SIZE; i += WIDTH) {
            store_gradient(start + i, elem(0.0));
        }
        return;
    }
    let scale = inv_count[0] / row.sum;
    let base_rate = inv_count[0] * params.smoothing / f32(VOCABULARY);
    for (var i = row.lane; i < SIZE; i += WIDTH) {
        store_gradient(start + i, exp_below(logits[start + i] - row.top) * scale - base_rate);
    }
    // The lane that wrote the target's element corrects it.
    let g = row.goal / ELEM;
    if g % WIDTH == row.lane {
        let wanted = elem_unit(inv_count[0] * (1.0 - params.smoothing), row.goal % ELEM);
        store_gradient(start + g, load_gradient(start + g) - wanted);
    }
}

@group(0) @binding(0) var<storage, read> row_partials: array<vec4<f32>>; // [rows], as `partials`
@group(0) @binding(1) var<storage, read> inv: array<f32>; // [1], as `inv_count`
@group(0) @binding(2) var<storage, read_write> loss_out: array<f32>; // [1]
@group(0) @binding(3) var<storage, read_write> stats_out: array<f32>; // [3]: sum of losses, correct, count

@compute @workgroup_size(GROUP)
fn reduce(here: Place) {
    if !as_planned(here) {
        return;
    }
    let lane = here.local;
    var part = vec4<f32>(0.0);
    for (var i = lane; i < params.rows; i += GROUP) {
        part += row_partials[i];
    }
    let sums = row_sum2(part.xy, lane);
    let count = row_sum(part.z, lane);
    if lane == 0u {
        loss_out[0] = sums.x * inv[0];
        stats_out[0] = sums.x;
        stats_out[1] = sums.y;
        stats_out[2] = count;
    }
}

@group(0) @binding(0) var<storage, read> all_targets: array<u32>; // [rows]
@group(0) @binding(1) var<storage, read_write> inverse: array<f32>; // [1]: 1 / max(targets that are not ignored, 1)

@compute @workgroup_size(GROUP)
fn count_targets(here: Place) {
    if !as_planned(here) {
        return;
    }
    let lane = here.local;
    var part = 0.0;
    for (var i = lane; i < params.rows; i += GROUP) {
        part += select(1.0, 0.0, all_targets[i] == params.ignore);
    }
    let count = row_sum(part, lane);
    if lane == 0u {
        inverse[0] = 1.0 / max(count, 1.0);
    }
}

// Softmax and its logarithm over rows of SIZE elems:
//   forward   y = exp(x - max) / sum(exp(x - max)), or y = -(log(sum(exp(x - max))) + (max - x))
//   backward  d_x = y (d_y - sum(d_y y)),           or d_x = d_y - exp(y) sum(d_y)
//
// Grid: WIDTH lanes a row, GROUP / WIDTH * ROWS rows a workgroup (WIDTH is GROUP or 1), groups folded into y. A lane takes
// the elems lane, lane + WIDTH, ... of ROWS rows, one row after another, CHUNK elems at a time; where CHUNK covers the row,
// nothing is read twice.
// Constants: SIZE, WIDTH, GROUP, ROWS, CHUNK, LOG. Shared text: elem_*, rows_*.

struct Params {
    rows: u32,
}

@group(1) @binding(0) var<uniform> params: Params;

// The elems of a row that a lane visits, the last one possibly beyond the end of the row.
const STEPS = (SIZE + WIDTH - 1u) / WIDTH;
const ALIGNED = SIZE % WIDTH == 0u && STEPS % CHUNK == 0u;
const ONCE = STEPS <= CHUNK;

// exp for arguments at most 0; below -100 the result is 0 or a denormal, never read as anything else.
fn exp_below(v: elem) -> elem {
    return exp(max(v, elem(-100.0)));
}

fn exp_below_1(v: f32) -> f32 {
    return exp(max(v, -100.0));
}

// The first of the ROWS rows that a lane works on. Rows beyond the last one are read as the last one and not written:
// so barriers stay in uniform control flow.
fn first_row(here: Place) -> u32 {
    let index = here.group.y * here.groups.x + here.group.x;
    return select(index, index * GROUP + here.local, WIDTH == 1u) * ROWS;
}

@group(0) @binding(0) var<storage, read> x: array<elem>; // [rows, SIZE]
@group(0) @binding(1) var<storage, read_write> y: array<elem>; // [rows, SIZE]

@compute @workgroup_size(GROUP)
fn forward(here: Place) {
    if !as_planned(here) {
        return;
    }
    let first = first_row(here);
    let lane = here.local % WIDTH;
    for (var r = 0u; r < ROWS; r++) {
        let row = first + r;
        let writes = row < params.rows;
        let start = min(row, params.rows - 1u) * SIZE;
        // The maximum and the sum of what this lane has seen. Indices beyond the end of the row are clamped to its last
        // elem, which changes no maximum; their exponentials are left out of the sum.
        var best = elem_max(x[start + min(lane, SIZE - 1u)]);
        var sum = 0.0;
        var held: array<elem, CHUNK>;
        for (var chunk = 0u; chunk < STEPS; chunk += CHUNK) {
            var top = elem(best);
            for (var j = 0u; j < CHUNK; j++) {
                let i = (chunk + j) * WIDTH + lane;
                held[j] = x[start + select(min(i, SIZE - 1u), i, ALIGNED)];
                top = max(top, held[j]);
            }
            let new_best = elem_max(top);
            var part = elem(0.0);
            for (var j = 0u; j < CHUNK; j++) {
                let e = exp_below(held[j] - new_best);
                part += select(elem(0.0), e, ALIGNED || (chunk + j) * WIDTH + lane < SIZE);
                if ONCE && !LOG {
                    held[j] = e;
                }
            }
            sum = sum * exp_below_1(best - new_best) + elem_sum(part);
            best = new_best;
        }
        let row_best = row_max(best, here.local);
        let row_total = row_sum(sum * exp_below_1(best - row_best), here.local);
        if writes {
            if LOG {
                let log_total = log(row_total);
                for (var chunk = 0u; chunk < STEPS; chunk += CHUNK) {
                    for (var j = 0u; j < CHUNK; j++) {
                        let i = (chunk + j) * WIDTH + lane;
                        if ALIGNED || i < SIZE {
                            var v: elem;
                            if ONCE {
                                v = held[j];
                            } else {
                                v = x[start + i];
                            }
                            // Not x - (max + log(sum)), which would lose the sum's digits beside a large maximum.
                            y[start + i] = -(log_total + (row_best - v));
                        }
                    }
                }
            } else if ONCE {
                let factor = exp_below_1(best - row_best) / row_total;
                for (var j = 0u; j < CHUNK; j++) {
                    let i = j * WIDTH + lane;
                    if ALIGNED || i < SIZE {
                        y[start + i] = held[j] * factor;
                    }
                }
            } else {
                let factor = 1.0 / row_total;
                for (var step = 0u; step < STEPS; step++) {
                    let i = step * WIDTH + lane;
                    if ALIGNED || i < SIZE {
                        y[start + i] = exp_below(x[start + i] - row_best) * factor;
                    }
                }
            }
        }
    }
}

@group(0) @binding(0) var<storage, read> d_y: array<elem>; // [rows, SIZE]
@group(0) @binding(1) var<storage, read> result: array<elem>; // [rows, SIZE], the forward's y
@group(0) @binding(2) var<storage, read_write> d_x: array<elem>; // [rows, SIZE]

@compute @workgroup_size(GROUP)
fn backward(here: Place) {
    if !as_planned(here) {
        return;
    }
    let first = first_row(here);
    let lane = here.local % WIDTH;
    for (var r = 0u; r < ROWS; r++) {
        let row = first + r;
        let writes = row < params.rows;
        let start = min(row, params.rows - 1u) * SIZE;
        var part = elem(0.0);
        var held_d: array<elem, CHUNK>;
        var held_y: array<elem, CHUNK>;
        for (var chunk = 0u; chunk < STEPS; chunk += CHUNK) {
            for (var j = 0u; j < CHUNK; j++) {
                let i = (chunk + j) * WIDTH + lane;
                if ALIGNED || i < SIZE {
                    let d = d_y[start + i];
                    if ONCE {
                        held_d[j] = d;
                    }
                    if LOG {
                        part += d;
                    } else {
                        let v = result[start + i];
                        if ONCE {
                            held_y[j] = v;
                        }
                        part += d * v;
                    }
                }
            }
        }
        let total = row_sum(elem_sum(part), here.local);
        if writes {
            for (var chunk = 0u; chunk < STEPS; chunk += CHUNK) {
                for (var j = 0u; j < CHUNK; j++) {
                    let i = (chunk + j) * WIDTH + lane;
                    if ALIGNED || i < SIZE {
                        var d: elem;
                        var v: elem;
                        if ONCE {
                            d = held_d[j];
                        } else {
                            d = d_y[start + i];
                        }
                        if ONCE && !LOG {
                            v = held_y[j];
                        } else {
                            v = result[start + i];
                        }
                        if LOG {
                            d_x[start + i] = d - exp_below(v) * total;
                        } else {
                            d_x[start + i] = v * (d - total);
                        }
                    }
                }
            }
        }
    }
}

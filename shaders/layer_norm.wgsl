// LayerNorm over rows of SIZE elems (C floats), plain or after a residual sum with dropout:
//   h = x, or residual + x, or residual + x f, where f is dropout's factor (0 or 1 / (1 - p))
//   forward          mean = sum(h) / C; inv = 1 / sqrt(sum((h - mean)^2) / C + eps); n = (h - mean) inv; y = gamma n + beta
//   backward         g = gamma d_y; d_h = d_h_in + inv (g - sum(g) / C - n sum(g n) / C); d_x = d_h f
//   backward_params  d_gamma = sum over rows of d_y n; d_beta = sum over rows of d_y; by strips of rows, then reduce_params
//
// Grid of forward and backward: WIDTH lanes a row, GROUP / WIDTH * ROWS rows a workgroup (WIDTH is GROUP or 1), groups folded
// into y. A lane takes the elems lane, lane + WIDTH, ... of ROWS rows, one row after another. If KEEP, it keeps them in
// registers, and gamma and beta too, for all its rows; else it reads them again; if AGAIN, it adds up h again, which is
// rounded where it is stored.
// The mean is kept as a sum of two floats, mean + shift: beside values that lie far from zero, the rounding of the mean
// alone would be an error of all results.
// Constants: SIZE, WIDTH, GROUP, ROWS, COLUMNS, KEEP, RESIDUAL, DROPOUT, SECOND, AGAIN; alias stored, as elem but of what forward's
// tensors are stored in. Shared text: elem_*, rows_*, dropout_*, random.

struct Params {
    rows: u32,
    eps: f32,
    threshold: u32, // of the dropout
    scale: f32,
    site: u32,
    strip: u32, // rows a strip, in backward_params
    strips: u32,
}

@group(1) @binding(0) var<uniform> params: Params;

const STEPS = (SIZE + WIDTH - 1u) / WIDTH;
const ALIGNED = SIZE % WIDTH == 0u;
const HELD = select(1u, STEPS, KEEP);
const COUNT = f32(SIZE * ELEM); // C

// The first of the ROWS rows that a lane works on. Rows beyond the last one are read as the last one and not written:
// so barriers stay in uniform control flow.
fn first_row(here: Place) -> u32 {
    let index = here.group.y * here.groups.x + here.group.x;
    return select(index, index * GROUP + here.local, WIDTH == 1u) * ROWS;
}

@group(0) @binding(0) var<storage, read> x: array<stored>; // [rows, SIZE]
@group(0) @binding(1) var<storage, read> gamma: array<stored>; // [SIZE]
@group(0) @binding(2) var<storage, read> beta: array<stored>; // [SIZE]
@group(0) @binding(3) var<storage, read> residual: array<stored>; // [rows, SIZE] if RESIDUAL
@group(0) @binding(4) var<storage, read> seed: array<u32>; // [2] if DROPOUT
@group(0) @binding(5) var<storage, read_write> y: array<stored>; // [rows, SIZE]
@group(0) @binding(6) var<storage, read_write> stats: array<vec4<f32>>; // [rows]: mean, shift, inv, 0
@group(0) @binding(7) var<storage, read_write> h: array<stored>; // [rows, SIZE] if SECOND, which RESIDUAL without KEEP or AGAIN needs

fn sum_at(i: u32, key: vec2<u32>) -> elem {
    var v = elem(x[i]);
    if DROPOUT {
        v *= dropout_elem(key, i, params.threshold, params.scale);
    }
    if RESIDUAL {
        v += elem(residual[i]);
    }
    return v;
}

@compute @workgroup_size(GROUP)
fn forward(here: Place) {
    if !as_planned(here) {
        return;
    }
    let first = first_row(here);
    let lane = here.local % WIDTH;
    var key = vec2<u32>(0u);
    if DROPOUT {
        key = random_key(vec2<u32>(seed[0], seed[1]), params.site);
    }
    var held_gamma: array<elem, HELD>;
    var held_beta: array<elem, HELD>;
    if KEEP {
        for (var step = 0u; step < STEPS; step++) {
            let i = step * WIDTH + lane;
            if ALIGNED || i < SIZE {
                held_gamma[step] = elem(gamma[i]);
                held_beta[step] = elem(beta[i]);
            }
        }
    }
    for (var r = 0u; r < ROWS; r++) {
        let row = first + r;
        let start = min(row, params.rows - 1u) * SIZE;
        let writes = row < params.rows;
        var held: array<elem, HELD>;
        var sum = elem(0.0);
        for (var step = 0u; step < STEPS; step++) {
            let i = step * WIDTH + lane;
            if ALIGNED || i < SIZE {
                let v = sum_at(start + i, key);
                if KEEP {
                    held[step] = v;
                }
                if SECOND && writes {
                    h[start + i] = stored(v);
                }
                sum += v;
            }
        }
        let mean = row_sum(elem_sum(sum), here.local) / COUNT;
        var squares = elem(0.0);
        var rest = elem(0.0);
        for (var step = 0u; step < STEPS; step++) {
            let i = step * WIDTH + lane;
            if ALIGNED || i < SIZE {
                var v: elem;
                if KEEP {
                    v = held[step];
                } else if RESIDUAL && !AGAIN {
                    v = elem(h[start + i]);
                } else {
                    v = sum_at(start + i, key);
                }
                let d = v - mean;
                squares += d * d;
                rest += d;
            }
        }
        let moments = row_sum2(vec2<f32>(elem_sum(squares), elem_sum(rest)), here.local) / COUNT;
        let shift = moments.y;
        let inv = inverseSqrt(max(moments.x - shift * shift, 0.0) + params.eps);
        if writes {
            if lane == 0u {
                stats[row] = vec4<f32>(mean, shift, inv, 0.0);
            }
            for (var step = 0u; step < STEPS; step++) {
                let i = step * WIDTH + lane;
                if ALIGNED || i < SIZE {
                    if KEEP {
                        y[start + i] = stored(((held[step] - mean) - shift) * inv * held_gamma[step] + held_beta[step]);
                    } else {
                        var v: elem;
                        if RESIDUAL && !AGAIN {
                            v = elem(h[start + i]);
                        } else {
                            v = sum_at(start + i, key);
                        }
                        y[start + i] = stored(((v - mean) - shift) * inv * elem(gamma[i]) + elem(beta[i]));
                    }
                }
            }
        }
    }
}

@group(0) @binding(0) var<storage, read> d_y: array<elem>; // [rows, SIZE]
@group(0) @binding(1) var<storage, read> d_h_in: array<elem>; // [rows, SIZE] if RESIDUAL
@group(0) @binding(2) var<storage, read> sums: array<elem>; // [rows, SIZE]: h
@group(0) @binding(3) var<storage, read> saved: array<vec4<f32>>; // [rows]: mean, shift, inv
@group(0) @binding(4) var<storage, read> weight: array<elem>; // [SIZE]: gamma
@group(0) @binding(5) var<storage, read> same_seed: array<u32>; // [2] if DROPOUT
@group(0) @binding(6) var<storage, read_write> d_h: array<elem>; // [rows, SIZE]
@group(0) @binding(7) var<storage, read_write> d_x: array<elem>; // [rows, SIZE] if DROPOUT

// n of one elem, from the row's mean, shift and inv.
fn normalised(v: elem, s: vec4<f32>) -> elem {
    return ((v - s.x) - s.y) * s.z;
}

@compute @workgroup_size(GROUP)
fn backward(here: Place) {
    if !as_planned(here) {
        return;
    }
    let first = first_row(here);
    let lane = here.local % WIDTH;
    var key = vec2<u32>(0u);
    if DROPOUT {
        key = random_key(vec2<u32>(same_seed[0], same_seed[1]), params.site);
    }
    var held_gamma: array<elem, HELD>;
    if KEEP {
        for (var step = 0u; step < STEPS; step++) {
            let i = step * WIDTH + lane;
            if ALIGNED || i < SIZE {
                held_gamma[step] = weight[i];
            }
        }
    }
    for (var r = 0u; r < ROWS; r++) {
        let row = min(first + r, params.rows - 1u);
        let writes = first + r < params.rows;
        let start = row * SIZE;
        let row_stats = saved[row];
        var held_g: array<elem, HELD>;
        var held_n: array<elem, HELD>;
        var sum_g = elem(0.0);
        var sum_gn = elem(0.0);
        for (var step = 0u; step < STEPS; step++) {
            let i = step * WIDTH + lane;
            if ALIGNED || i < SIZE {
                var g = d_y[start + i];
                if KEEP {
                    g *= held_gamma[step];
                } else {
                    g *= weight[i];
                }
                let n = normalised(sums[start + i], row_stats);
                if KEEP {
                    held_g[step] = g;
                    held_n[step] = n;
                }
                sum_g += g;
                sum_gn += g * n;
            }
        }
        let means = row_sum2(vec2<f32>(elem_sum(sum_g), elem_sum(sum_gn)), here.local) / COUNT;
        if writes {
            for (var step = 0u; step < STEPS; step++) {
                let i = step * WIDTH + lane;
                if ALIGNED || i < SIZE {
                    var g: elem;
                    var n: elem;
                    if KEEP {
                        g = held_g[step];
                        n = held_n[step];
                    } else {
                        g = d_y[start + i] * weight[i];
                        n = normalised(sums[start + i], row_stats);
                    }
                    var d = row_stats.z * (g - means.x - n * means.y);
                    if RESIDUAL {
                        d += d_h_in[start + i];
                    }
                    d_h[start + i] = d;
                    if DROPOUT {
                        d_x[start + i] = d * dropout_elem(key, start + i, params.threshold, params.scale);
                    }
                }
            }
        }
    }
}

// Grid: COLUMNS elems of a row an invocation, GROUP apart; x: columns, y: strips of rows.
@group(0) @binding(1) var<storage, read> strip_stats: array<vec4<f32>>; // [rows]: mean, shift, inv
@group(0) @binding(3) var<storage, read_write> partials: array<elem>; // [strips, 2, SIZE]: of d_gamma, of d_beta

@compute @workgroup_size(GROUP)
fn backward_params(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let column = group.x * GROUP * COLUMNS + lane;
    let first = group.y * params.strip;
    let end = min(first + params.strip, params.rows);
    var d_gamma_part: array<elem, COLUMNS>;
    var d_beta_part: array<elem, COLUMNS>;
    for (var j = 0u; j < COLUMNS; j++) {
        d_gamma_part[j] = elem(0.0);
        d_beta_part[j] = elem(0.0);
    }
    for (var row = first; row < end; row++) {
        let s = strip_stats[row];
        for (var j = 0u; j < COLUMNS; j++) {
            // A column beyond the last one repeats it and is not written.
            let at = row * SIZE + min(column + j * GROUP, SIZE - 1u);
            let d = d_y[at];
            d_gamma_part[j] += d * normalised(sums[at], s);
            d_beta_part[j] += d;
        }
    }
    for (var j = 0u; j < COLUMNS; j++) {
        let i = column + j * GROUP;
        if i < SIZE {
            partials[2u * group.y * SIZE + i] = d_gamma_part[j];
            partials[(2u * group.y + 1u) * SIZE + i] = d_beta_part[j];
        }
    }
}

// Grid: one invocation an elem of d_gamma and d_beta.
@group(0) @binding(0) var<storage, read> strip_sums: array<elem>; // [strips, 2, SIZE]
@group(0) @binding(1) var<storage, read_write> d_gamma: array<elem>; // [SIZE]
@group(0) @binding(2) var<storage, read_write> d_beta: array<elem>; // [SIZE]

@compute @workgroup_size(GROUP)
fn reduce_params(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let column = group.x * GROUP + lane;
    if column >= 2u * SIZE {
        return;
    }
    var sum = elem(0.0);
    for (var strip = 0u; strip < params.strips; strip++) {
        sum += strip_sums[strip * 2u * SIZE + column];
    }
    if column < SIZE {
        d_gamma[column] = sum;
    } else {
        d_beta[column - SIZE] = sum;
    }
}

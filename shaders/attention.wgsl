// Scaled dot-product attention (Vaswani et al., 2017, section 3.2.1), tiled so that the scores never reach memory (Dao et
// al., 2022), for any GPU: K and V go through workgroup memory, no sub-groups. For head h of batch row b:
//     x[t,s] = scale q[t].k[s] + bias[h,t,s]             for the keys s that query t may attend to
//     P[t,s] = dropout(exp(x[t,s] - lse[t]))             lse[t] = log(sum_s exp(x[t,s]))
//     out[t] = sum_s P[t,s] v[s]                         0 where t may attend to no key
// Exponents are base 2 throughout: log2(e) is part of params.scale, and lse is stored in base 2.
// A query t may attend to a key s if s < lengths[b] (params.limited), s <= (t | params.future) and mask[b or 0,t,s] != 0 (MASK).
//
// Backward, with delta[t] = sum_c d_out[t,c] out[t,c] (kernel `stats`):
//     d_x[t,s] = P[t,s] d_out[t].v[s] - softmax[t,s] delta[t]
//     d_q[t] = scale sum_s d_x[t,s] k[s]                 (`backward_q`: a workgroup owns queries)
//     d_k[s] = scale sum_t d_x[t,s] q[t]                 (`backward_kv`: a workgroup owns keys)
//     d_v[s] = sum_t P[t,s] d_out[t]
//     d_bias[h,t,s] = sum_b d_x[t,s]                     (`backward_bias`)
// Short keys fit in one workgroup, which has all of d_q, d_k and d_v of its (b, h) then (attention_whole.wgsl).
//
// Grid: a workgroup for each (b, h, block of ROWS rows), blocks fastest, folded into y. The rows that a workgroup owns are
// queries (forward, backward_q) or keys (backward_kv); it walks over the other side in tiles of COLS. An invocation
// (r, c) of its NR x NC has the tile elements (r + i NR, c + j NC) for i < RT, j < CT, and of each owned row r + i NR the
// columns c + j NC of each chunk of DC elems. The head dimension goes through workgroup memory in NCH chunks.
//
// Constants: DV = elems of a head; NR, NC, RT, CT, JT = DC / NC, DC, NCH = ceil(DV / DC); MASK, BIAS, DROPOUT;
// FOUR whether elem is vec4<f32> (else f32). aliases elem, and stored, the same of what q, k, v and
// out are stored in (16-bit floats in `forward` and `plot` only). With lib/random.wgsl.

struct Params {
    batch: u32, // B
    t: u32, // T, queries
    s: u32, // S, keys
    heads: u32, // H
    // In elem: the length of a row, and where the columns of head 0 begin.
    q_row: u32,
    q_at: u32,
    k_row: u32,
    k_at: u32,
    v_row: u32,
    v_at: u32,
    mask_at: u32, // in extra
    mask_batch: u32, // T S, or 0 for one mask for all batch rows
    bias_at: u32, // in extra
    scale: f32, // scale log2(e)
    slope: f32, // scale
    threshold: u32, // see lib/random.wgsl
    keep: f32, // 1 / (1 - p)
    site: u32,
    future: u32, // 0 where keys after a query are hidden from it (causal), else all bits
    limited: u32, // 0 where lengths are not to be read: every row has S keys
    parts: u32, // `forward_part`: ranges of keys,
    span: u32, // each of so many, a multiple of COLS
}

@group(1) @binding(0) var<uniform> params: Params;

const ROWS = NR * RT;
const COLS = NC * CT;
const GROUP = NR * NC;
const STRIDE = DC + 1u; // of tile rows: one more than DC, so that rows start at different banks
const P_STRIDE = COLS + 1u;
const LOG2E = 1.4426950408889634;
const MASKED = -1e30; // the score of a key that may not be attended to
const VISIBLE = -5e29; // scores above are of keys that may

@group(0) @binding(0) var<storage, read> q: array<stored>; // [B, T, H, D] by q_row, q_at
@group(0) @binding(1) var<storage, read> k: array<stored>; // [B, S, H, D] by k_row, k_at
@group(0) @binding(2) var<storage, read> v: array<stored>; // [B, S, H, D] by v_row, v_at
@group(0) @binding(3) var<storage, read> extra: array<u32>; // mask [B or 1, T, S] and bias f32 [H, T, S]

fn q_index(b: u32, t: u32, h: u32) -> u32 {
    return (b * params.t + t) * params.q_row + params.q_at + h * DV;
}

fn k_index(b: u32, s: u32, h: u32) -> u32 {
    return (b * params.s + s) * params.k_row + params.k_at + h * DV;
}

fn v_index(b: u32, s: u32, h: u32) -> u32 {
    return (b * params.s + s) * params.v_row + params.v_at + h * DV;
}

// Of out and d_out [B, T, H, D].
fn out_index(b: u32, t: u32, h: u32) -> u32 {
    return ((b * params.t + t) * params.heads + h) * DV;
}

fn dot_elem(x: elem, y: elem) -> f32 {
    // For f32, vec4 repeats the number four times.
    return dot(vec4<f32>(x), vec4<f32>(y)) * select(0.25, 1.0, FOUR);
}

// The score in base 2, or MASKED. `limit` is the number of keys of this batch row.
fn score(product: f32, b: u32, h: u32, t: u32, s: u32, limit: u32) -> f32 {
    if t >= params.t || s >= limit || s > (t | params.future) {
        return MASKED;
    }
    var x = product * params.scale;
    let i = t * params.s + s;
    if BIAS {
        x += max(bitcast<f32>(extra[params.bias_at + h * params.t * params.s + i]), MASKED) * LOG2E;
    }
    if MASK {
        if extra[params.mask_at + b * params.mask_batch + i] == 0u {
            x = MASKED;
        }
    }
    return x;
}

// 1 / (1 - p) or 0.
fn kept(key: vec2<u32>, b: u32, h: u32, t: u32, s: u32) -> f32 {
    if DROPOUT {
        let i = ((b * params.heads + h) * params.t + t) * params.s + s;
        return dropout_factor(key, i, params.threshold, params.keep);
    }
    return 1.0;
}

struct Place {
    b: u32,
    h: u32,
    first: u32, // of the rows that this workgroup owns
    inside: bool,
}

// Of the workgroup g, where each owns ROWS of `rows`.
fn place(g: u32, rows: u32) -> Place {
    let blocks = (rows + ROWS - 1u) / ROWS;
    let bh = g / blocks;
    return Place(bh / params.heads, bh % params.heads, (g % blocks) * ROWS, bh < params.batch * params.heads);
}

var<workgroup> tile_a: array<elem, ROWS * STRIDE>; // a chunk of the owned rows
var<workgroup> tile_b: array<elem, COLS * STRIDE>; // a chunk of the rows walked over
var<workgroup> tile_p: array<f32, ROWS * P_STRIDE>; // what the products are weighted with
var<workgroup> row_max: array<f32, ROWS * NC>;

const OF_Q = 0u;
const OF_K = 1u;
const OF_V = 2u;
const OF_D_OUT = 3u;

alias Products = array<array<f32, CT>, RT>;
alias Sums = array<array<elem, NCH * JT>, RT>;

// x[i][j] += a[r + i NR] . b[c + j NC] over the chunk in the tiles.
fn multiply_tiles(r: u32, c: u32, x: ptr<function, Products>) {
    for (var e = 0u; e < DC; e++) {
        var b: array<elem, CT>;
        for (var j = 0u; j < CT; j++) {
            b[j] = tile_b[(c + j * NC) * STRIDE + e];
        }
        for (var i = 0u; i < RT; i++) {
            let a = tile_a[(r + i * NR) * STRIDE + e];
            for (var j = 0u; j < CT; j++) {
                (*x)[i][j] += dot_elem(a, b[j]);
            }
        }
    }
}

// sums[i][chunk] += sum over the tile's rows w of p[r + i NR, w] b[w]; `count` is the number of rows of the tile.
fn weigh_tile(r: u32, c: u32, chunk: u32, count: u32, sums: ptr<function, Sums>) {
    for (var w = 0u; w < count; w++) {
        var b: array<elem, JT>;
        for (var j = 0u; j < JT; j++) {
            b[j] = tile_b[w * STRIDE + c + j * NC];
        }
        for (var i = 0u; i < RT; i++) {
            let p = tile_p[(r + i * NR) * P_STRIDE + w];
            for (var j = 0u; j < JT; j++) {
                (*sums)[i][chunk * JT + j] += p * b[j];
            }
        }
    }
}

@group(0) @binding(4) var<storage, read> lengths: array<u32>; // [B]
@group(0) @binding(5) var<storage, read> seed: array<u32>; // [2]
@group(0) @binding(6) var<storage, read_write> out: array<stored>; // [B, T, H, D]
@group(0) @binding(7) var<storage, read_write> lse: array<f32>; // [B, H, T]

fn key_count(b: u32) -> u32 {
    if params.limited != 0u {
        return min(lengths[b], params.s);
    }
    return params.s;
}

// Elem e of a head's row of q, k or v; 0 outside.
fn load(what: u32, b: u32, h: u32, row: u32, e: u32) -> elem {
    let rows = select(params.s, params.t, what == OF_Q);
    if row >= rows || e >= DV {
        return elem();
    }
    if what == OF_Q {
        return elem(q[q_index(b, row, h) + e]);
    }
    if what == OF_K {
        return elem(k[k_index(b, row, h) + e]);
    }
    return elem(v[v_index(b, row, h) + e]);
}

// Puts a chunk of ROWS rows of q from t0 on into tile_a.
fn stage_q(b: u32, h: u32, t0: u32, chunk: u32, lane: u32) {
    for (var i = lane; i < ROWS * DC; i += GROUP) {
        tile_a[i / DC * STRIDE + i % DC] = load(OF_Q, b, h, t0 + i / DC, chunk * DC + i % DC);
    }
}

// Puts a chunk of COLS rows of k or v from s0 on into tile_b.
fn stage_kv(what: u32, b: u32, h: u32, s0: u32, chunk: u32, lane: u32) {
    for (var i = lane; i < COLS * DC; i += GROUP) {
        tile_b[i / DC * STRIDE + i % DC] = load(what, b, h, s0 + i / DC, chunk * DC + i % DC);
    }
}

// What a workgroup has found of its rows when it has walked over some keys.
struct Found {
    sums: Sums, // sum of exp2(score - m) v, by dropout
    m: array<f32, RT>, // the largest score of each row
    l: array<f32, RT>, // each row's sum of exp2(score - m): as walked, this invocation's part of it; after `total` all
}

// Walks over the keys from `first` to `end`, a multiple of COLS apart or the last one.
fn attend(at: Place, first: u32, end: u32, limit: u32, lane: u32) -> Found {
    let b = at.b;
    let h = at.h;
    let t0 = at.first;
    let r = lane / NC;
    let c = lane % NC;
    var key = vec2<u32>();
    if DROPOUT {
        key = random_key(vec2<u32>(seed[0], seed[1]), params.site);
    }
    var sums: Sums;
    var m: array<f32, RT>;
    var l: array<f32, RT>;
    for (var i = 0u; i < RT; i++) {
        m[i] = MASKED;
        l[i] = 0.0;
        for (var j = 0u; j < NCH * JT; j++) {
            sums[i][j] = elem();
        }
    }
    for (var s0 = first; s0 < end; s0 += COLS) {
        var x: Products;
        for (var i = 0u; i < RT; i++) {
            for (var j = 0u; j < CT; j++) {
                x[i][j] = 0.0;
            }
        }
        for (var chunk = 0u; chunk < NCH; chunk++) {
            workgroupBarrier();
            if NCH > 1u || s0 == first {
                stage_q(b, h, t0, chunk, lane);
            }
            stage_kv(OF_K, b, h, s0, chunk, lane);
            workgroupBarrier();
            multiply_tiles(r, c, &x);
        }
        for (var i = 0u; i < RT; i++) {
            var largest = MASKED;
            for (var j = 0u; j < CT; j++) {
                x[i][j] = score(x[i][j], b, h, t0 + r + i * NR, s0 + c + j * NC, limit);
                largest = max(largest, x[i][j]);
            }
            row_max[(r + i * NR) * NC + c] = largest;
        }
        workgroupBarrier();
        for (var i = 0u; i < RT; i++) {
            let row = r + i * NR;
            var largest = m[i];
            for (var n = 0u; n < NC; n++) {
                largest = max(largest, row_max[row * NC + n]);
            }
            let shrink = exp2(m[i] - largest);
            m[i] = largest;
            l[i] *= shrink;
            for (var j = 0u; j < NCH * JT; j++) {
                sums[i][j] *= shrink;
            }
            for (var j = 0u; j < CT; j++) {
                let p = select(0.0, exp2(x[i][j] - largest), x[i][j] > VISIBLE);
                l[i] += p;
                tile_p[row * P_STRIDE + c + j * NC] = p * kept(key, b, h, t0 + row, s0 + c + j * NC);
            }
        }
        for (var chunk = 0u; chunk < NCH; chunk++) {
            if chunk > 0u {
                workgroupBarrier();
            }
            stage_kv(OF_V, b, h, s0, chunk, lane);
            workgroupBarrier();
            weigh_tile(r, c, chunk, min(COLS, end - s0), &sums);
        }
    }
    // The parts of l, summed over the NC invocations of a row.
    workgroupBarrier();
    for (var i = 0u; i < RT; i++) {
        row_max[(r + i * NR) * NC + c] = l[i];
    }
    workgroupBarrier();
    for (var i = 0u; i < RT; i++) {
        l[i] = 0.0;
        for (var n = 0u; n < NC; n++) {
            l[i] += row_max[(r + i * NR) * NC + n];
        }
    }
    return Found(sums, m, l);
}

// The keys that some of the queries from t0 on may attend to end here.
fn last_key(limit: u32, t0: u32) -> u32 {
    return select(limit, min(limit, t0 + ROWS), params.future == 0u);
}

@compute @workgroup_size(GROUP)
fn forward(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
           @builtin(local_invocation_index) lane: u32) {
    let at = place(group.y * groups.x + group.x, params.t);
    if !at.inside {
        return;
    }
    let b = at.b;
    let h = at.h;
    let limit = key_count(b);
    let found = attend(at, 0u, last_key(limit, at.first), limit, lane);
    let c = lane % NC;
    for (var i = 0u; i < RT; i++) {
        let t = at.first + lane / NC + i * NR;
        let total = found.l[i];
        if t < params.t {
            let inverse = select(0.0, 1.0 / max(total, 1e-30), total > 0.0);
            for (var chunk = 0u; chunk < NCH; chunk++) {
                for (var j = 0u; j < JT; j++) {
                    let e = chunk * DC + c + j * NC;
                    if e < DV {
                        out[out_index(b, t, h) + e] = stored(found.sums[i][chunk * JT + j] * inverse);
                    }
                }
            }
            if c == 0u {
                lse[(b * params.heads + h) * params.t + t] = logarithm(found.m[i], total);
            }
        }
    }
}

// Of the sum of exp2(score) that is `total` times exp2(m); 0 where there was no key.
fn logarithm(m: f32, total: f32) -> f32 {
    return select(0.0, m + log2(max(total, 1e-30)), total > 0.0);
}

// For few queries and many keys, whose workgroups would leave a device idle: a workgroup for each block of rows and each of
// `params.parts` ranges of `params.span` keys, ranges fastest. `merge` puts them together.
@group(0) @binding(6) var<storage, read_write> part_sums: array<elem>; // [parts, B, T, H, D]
@group(0) @binding(7) var<storage, read_write> part_rows: array<vec2<f32>>; // (m, l) [parts, B, H, T]

@compute @workgroup_size(GROUP)
fn forward_part(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
                @builtin(local_invocation_index) lane: u32) {
    let g = group.y * groups.x + group.x;
    let part = g % params.parts;
    let at = place(g / params.parts, params.t);
    if !at.inside {
        return;
    }
    let limit = key_count(at.b);
    let first = part * params.span;
    let end = min(last_key(limit, at.first), first + params.span);
    let found = attend(at, first, end, limit, lane);
    let c = lane % NC;
    let rows = params.batch * params.heads * params.t;
    for (var i = 0u; i < RT; i++) {
        let t = at.first + lane / NC + i * NR;
        if t < params.t {
            for (var n = 0u; n < NCH * JT; n++) {
                let e = n / JT * DC + c + n % JT * NC;
                if e < DV {
                    part_sums[part * rows * DV + out_index(at.b, t, at.h) + e] = found.sums[i][n];
                }
            }
            if c == 0u {
                let row = (at.b * params.heads + at.h) * params.t + t;
                part_rows[part * rows + row] = vec2<f32>(found.m[i], found.l[i]);
            }
        }
    }
}

@group(0) @binding(0) var<storage, read> merged_sums: array<elem>; // as part_sums
@group(0) @binding(1) var<storage, read> merged_rows: array<vec2<f32>>; // as part_rows
@group(0) @binding(2) var<storage, read_write> merged_out: array<stored>; // as out
@group(0) @binding(3) var<storage, read_write> merged_lse: array<f32>; // as lse

// An invocation an elem of out; the parts in their order.
@compute @workgroup_size(64)
fn merge(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
         @builtin(local_invocation_index) lane: u32) {
    let rows = params.batch * params.heads * params.t;
    let i = (group.y * groups.x + group.x) * 64u + lane;
    if i >= rows * DV {
        return;
    }
    let h = i / DV % params.heads;
    let t = i / DV / params.heads % params.t;
    let b = i / DV / params.heads / params.t;
    let row = (b * params.heads + h) * params.t + t;
    var m = MASKED;
    for (var part = 0u; part < params.parts; part++) {
        m = max(m, merged_rows[part * rows + row].x);
    }
    var sum = elem();
    var total = 0.0;
    for (var part = 0u; part < params.parts; part++) {
        let found = merged_rows[part * rows + row];
        let weight = exp2(found.x - m);
        total += weight * found.y;
        sum += weight * merged_sums[part * rows * DV + i];
    }
    let inverse = select(0.0, 1.0 / max(total, 1e-30), total > 0.0);
    merged_out[i] = stored(sum * inverse);
    if i % DV == 0u {
        merged_lse[row] = logarithm(m, total);
    }
}

// P without dropout, for plots: an invocation a row, three passes over the keys.
@group(0) @binding(5) var<storage, read_write> probabilities: array<f32>; // [B, H, T, S]

fn product(b: u32, h: u32, t: u32, s: u32) -> f32 {
    let qi = q_index(b, t, h);
    let ki = k_index(b, s, h);
    var x = 0.0;
    for (var e = 0u; e < DV; e++) {
        x += dot_elem(elem(q[qi + e]), elem(k[ki + e]));
    }
    return x;
}

@compute @workgroup_size(64)
fn plot(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) lane: u32) {
    let row = (group.y * groups.x + group.x) * 64u + lane;
    if row >= params.batch * params.heads * params.t {
        return;
    }
    let t = row % params.t;
    let h = row / params.t % params.heads;
    let b = row / params.t / params.heads;
    let limit = key_count(b);
    var m = MASKED;
    for (var s = 0u; s < limit; s++) {
        m = max(m, score(product(b, h, t, s), b, h, t, s, limit));
    }
    var l = 0.0;
    for (var s = 0u; s < limit; s++) {
        let x = score(product(b, h, t, s), b, h, t, s, limit);
        l += select(0.0, exp2(x - m), x > VISIBLE);
    }
    for (var s = 0u; s < params.s; s++) {
        var p = 0.0;
        if s < limit {
            let x = score(product(b, h, t, s), b, h, t, s, limit);
            p = select(0.0, exp2(x - m), x > VISIBLE) / max(l, 1e-30);
        }
        probabilities[row * params.s + s] = p;
    }
}

// What backward needs of each row, and the small inputs, in one buffer, so that eight storage bindings suffice:
// (lse, delta) as bits [B, H, T, 2], then seed [2], then lengths [B].
@group(0) @binding(0) var<storage, read> stats_out: array<elem>; // out [B, T, H, D]
@group(0) @binding(1) var<storage, read> stats_d_out: array<elem>; // d_out [B, T, H, D]
@group(0) @binding(2) var<storage, read> stats_lse: array<f32>; // [B, H, T]
@group(0) @binding(3) var<storage, read> stats_lengths: array<u32>; // [B]
@group(0) @binding(4) var<storage, read> stats_seed: array<u32>; // [2]
@group(0) @binding(5) var<storage, read_write> stats_written: array<u32>;

@compute @workgroup_size(64)
fn stats(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
         @builtin(local_invocation_index) lane: u32) {
    let rows = params.batch * params.heads * params.t;
    let i = (group.y * groups.x + group.x) * 64u + lane;
    if i < rows {
        // Invocations beside each other take heads beside each other: their rows are neighbours in memory.
        let h = i % params.heads;
        let t = i / params.heads % params.t;
        let b = i / params.heads / params.t;
        let row = out_index(b, t, h);
        var delta = 0.0;
        for (var e = 0u; e < DV; e++) {
            delta += dot_elem(stats_out[row + e], stats_d_out[row + e]);
        }
        let at = (b * params.heads + h) * params.t + t;
        stats_written[2u * at] = bitcast<u32>(stats_lse[at]);
        stats_written[2u * at + 1u] = bitcast<u32>(delta);
    } else if i < rows + 2u {
        if DROPOUT {
            stats_written[rows + i] = stats_seed[i - rows];
        }
    } else if i < rows + 2u + params.batch {
        if params.limited != 0u {
            stats_written[rows + i] = stats_lengths[i - rows - 2u];
        }
    }
}

@group(0) @binding(4) var<storage, read> d_out: array<elem>; // [B, T, H, D]
@group(0) @binding(5) var<storage, read> saved: array<u32>; // as `stats` writes it
@group(0) @binding(6) var<storage, read_write> d_q: array<elem>; // as q
@group(0) @binding(6) var<storage, read_write> d_k: array<elem>; // as k
@group(0) @binding(7) var<storage, read_write> d_v: array<elem>; // as v
@group(0) @binding(6) var<storage, read_write> d_kv: array<elem>; // as k and v in one
@group(0) @binding(6) var<storage, read_write> d_bias: array<f32>; // [H, T, S]

fn saved_key() -> vec2<u32> {
    if DROPOUT {
        let at = 2u * params.batch * params.heads * params.t;
        return random_key(vec2<u32>(saved[at], saved[at + 1u]), params.site);
    }
    return vec2<u32>();
}

fn saved_key_count(b: u32) -> u32 {
    if params.limited != 0u {
        return min(saved[2u * params.batch * params.heads * params.t + 2u + b], params.s);
    }
    return params.s;
}

struct Weights {
    p: f32, // what v[s] is weighted with in out[t]
    d_x: f32, // the gradient by the score
}

// (lse, delta) of a query. t < T must hold.
fn saved_row(b: u32, h: u32, t: u32) -> vec2<f32> {
    let at = 2u * ((b * params.heads + h) * params.t + t);
    return vec2<f32>(bitcast<f32>(saved[at]), bitcast<f32>(saved[at + 1u]));
}

// Of query t and key s, from their two products; `row` is saved_row of t.
fn weights(qk: f32, d_out_v: f32, row: vec2<f32>, b: u32, h: u32, t: u32, s: u32, limit: u32,
           key: vec2<u32>) -> Weights {
    let x = score(qk, b, h, t, s, limit);
    let p = select(0.0, exp2(x - row.x), x > VISIBLE);
    let factor = kept(key, b, h, t, s);
    return Weights(p * factor, p * (factor * d_out_v - row.y));
}

fn load_any(what: u32, b: u32, h: u32, row: u32, e: u32) -> elem {
    if what == OF_D_OUT {
        if row >= params.t || e >= DV {
            return elem();
        }
        return d_out[out_index(b, row, h) + e];
    }
    return load(what, b, h, row, e);
}

// Puts a chunk of ROWS rows of q, k, v or d_out from `first` on into tile_a, or (stage_b) of COLS rows into tile_b.
fn stage_a(what: u32, b: u32, h: u32, first: u32, chunk: u32, lane: u32) {
    for (var i = lane; i < ROWS * DC; i += GROUP) {
        tile_a[i / DC * STRIDE + i % DC] = load_any(what, b, h, first + i / DC, chunk * DC + i % DC);
    }
}

fn stage_b(what: u32, b: u32, h: u32, first: u32, chunk: u32, lane: u32) {
    for (var i = lane; i < COLS * DC; i += GROUP) {
        tile_b[i / DC * STRIDE + i % DC] = load_any(what, b, h, first + i / DC, chunk * DC + i % DC);
    }
}

// All products of the owned rows of `a` from `first_a` with COLS rows of `b` from `first_b`.
fn products(a: u32, first_a: u32, b_what: u32, first_b: u32, b: u32, h: u32, lane: u32) -> Products {
    var x: Products;
    for (var i = 0u; i < RT; i++) {
        for (var j = 0u; j < CT; j++) {
            x[i][j] = 0.0;
        }
    }
    for (var chunk = 0u; chunk < NCH; chunk++) {
        workgroupBarrier();
        stage_a(a, b, h, first_a, chunk, lane);
        stage_b(b_what, b, h, first_b, chunk, lane);
        workgroupBarrier();
        multiply_tiles(lane / NC, lane % NC, &x);
    }
    return x;
}

// sums += the weights in tile_p times the rows of `what` from `first`.
fn weigh(what: u32, first: u32, count: u32, b: u32, h: u32, lane: u32, sums: ptr<function, Sums>) {
    for (var chunk = 0u; chunk < NCH; chunk++) {
        workgroupBarrier();
        stage_b(what, b, h, first, chunk, lane);
        workgroupBarrier();
        weigh_tile(lane / NC, lane % NC, chunk, count, sums);
    }
}

fn no_sums() -> Sums {
    var sums: Sums;
    for (var i = 0u; i < RT; i++) {
        for (var j = 0u; j < NCH * JT; j++) {
            sums[i][j] = elem();
        }
    }
    return sums;
}

@compute @workgroup_size(GROUP)
fn backward_q(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
              @builtin(local_invocation_index) lane: u32) {
    let at = place(group.y * groups.x + group.x, params.t);
    if !at.inside {
        return;
    }
    let b = at.b;
    let h = at.h;
    let t0 = at.first;
    let r = lane / NC;
    let c = lane % NC;
    let limit = saved_key_count(b);
    var end = limit;
    if params.future == 0u {
        end = min(end, t0 + ROWS);
    }
    let key = saved_key();
    var sums = no_sums();
    for (var s0 = 0u; s0 < end; s0 += COLS) {
        var qk = products(OF_Q, t0, OF_K, s0, b, h, lane);
        var dv = products(OF_D_OUT, t0, OF_V, s0, b, h, lane);
        for (var i = 0u; i < RT; i++) {
            let t = t0 + r + i * NR;
            let row = saved_row(b, h, min(t, params.t - 1u));
            for (var j = 0u; j < CT; j++) {
                let w = weights(qk[i][j], dv[i][j], row, b, h, t, s0 + c + j * NC, limit, key);
                tile_p[(r + i * NR) * P_STRIDE + c + j * NC] = w.d_x;
            }
        }
        weigh(OF_K, s0, min(COLS, end - s0), b, h, lane, &sums);
    }
    for (var i = 0u; i < RT; i++) {
        let t = t0 + r + i * NR;
        for (var n = 0u; n < NCH * JT; n++) {
            let e = n / JT * DC + c + n % JT * NC;
            if t < params.t && e < DV {
                d_q[q_index(b, t, h) + e] = sums[i][n] * params.slope;
            }
        }
    }
}

// Adds the queries from t0 on, COLS of them, to the sums of the owned keys from s0 on; leaves d_x of each key and query in
// tile_p.
fn add_queries(b: u32, h: u32, s0: u32, t0: u32, lane: u32, sums_k: ptr<function, Sums>, sums_v: ptr<function, Sums>) {
    let r = lane / NC;
    let c = lane % NC;
    let limit = saved_key_count(b);
    let key = saved_key();
    let count = min(COLS, params.t - t0);
    var qk = products(OF_K, s0, OF_Q, t0, b, h, lane);
    var dv = products(OF_V, s0, OF_D_OUT, t0, b, h, lane);
    for (var j = 0u; j < CT; j++) {
        let t = t0 + c + j * NC;
        let row = saved_row(b, h, min(t, params.t - 1u));
        for (var i = 0u; i < RT; i++) {
            let s = s0 + r + i * NR;
            let w = weights(qk[i][j], dv[i][j], row, b, h, t, s, limit, key);
            tile_p[(r + i * NR) * P_STRIDE + c + j * NC] = w.p;
            qk[i][j] = w.d_x;
        }
    }
    weigh(OF_D_OUT, t0, count, b, h, lane, sums_v);
    workgroupBarrier();
    for (var i = 0u; i < RT; i++) {
        for (var j = 0u; j < CT; j++) {
            tile_p[(r + i * NR) * P_STRIDE + c + j * NC] = qk[i][j];
        }
    }
    weigh(OF_Q, t0, count, b, h, lane, sums_k);
}

// The sums of the owned keys from s0 on, d_k still without the scale.
fn sum_queries(b: u32, h: u32, s0: u32, lane: u32, sums_k: ptr<function, Sums>, sums_v: ptr<function, Sums>) {
    var first = 0u;
    if params.future == 0u {
        first = s0; // earlier queries attend to none of the owned keys
    }
    if s0 >= saved_key_count(b) {
        first = params.t;
    }
    for (var t0 = first; t0 < params.t; t0 += COLS) {
        add_queries(b, h, s0, t0, lane, sums_k, sums_v);
    }
}

// Every column of d_k and d_v is written, those of keys that no query attends to with 0.
@compute @workgroup_size(GROUP)
fn backward_kv(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
               @builtin(local_invocation_index) lane: u32) {
    let at = place(group.y * groups.x + group.x, params.s);
    if !at.inside {
        return;
    }
    var sums_k = no_sums();
    var sums_v = no_sums();
    sum_queries(at.b, at.h, at.first, lane, &sums_k, &sums_v);
    for (var i = 0u; i < RT; i++) {
        let s = at.first + lane / NC + i * NR;
        for (var n = 0u; n < NCH * JT; n++) {
            let e = n / JT * DC + lane % NC + n % JT * NC;
            if s < params.s && e < DV {
                d_k[k_index(at.b, s, at.h) + e] = sums_k[i][n] * params.slope;
                d_v[v_index(at.b, s, at.h) + e] = sums_v[i][n];
            }
        }
    }
}

// The same where k and v are columns of one tensor.
@compute @workgroup_size(GROUP)
fn backward_kv_joint(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
                     @builtin(local_invocation_index) lane: u32) {
    let at = place(group.y * groups.x + group.x, params.s);
    if !at.inside {
        return;
    }
    var sums_k = no_sums();
    var sums_v = no_sums();
    sum_queries(at.b, at.h, at.first, lane, &sums_k, &sums_v);
    for (var i = 0u; i < RT; i++) {
        let s = at.first + lane / NC + i * NR;
        for (var n = 0u; n < NCH * JT; n++) {
            let e = n / JT * DC + lane % NC + n % JT * NC;
            if s < params.s && e < DV {
                d_kv[k_index(at.b, s, at.h) + e] = sums_k[i][n] * params.slope;
                d_kv[v_index(at.b, s, at.h) + e] = sums_v[i][n];
            }
        }
    }
}

// An invocation an element of d_bias.
@compute @workgroup_size(64)
fn backward_bias(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
                 @builtin(local_invocation_index) lane: u32) {
    let i = (group.y * groups.x + group.x) * 64u + lane;
    if i >= params.heads * params.t * params.s {
        return;
    }
    let s = i % params.s;
    let t = i / params.s % params.t;
    let h = i / params.s / params.t;
    let key = saved_key();
    var sum = 0.0;
    for (var b = 0u; b < params.batch; b++) {
        let limit = saved_key_count(b);
        let row = out_index(b, t, h);
        let vi = v_index(b, s, h);
        var dv = 0.0;
        for (var e = 0u; e < DV; e++) {
            dv += dot_elem(d_out[row + e], elem(v[vi + e]));
        }
        sum += weights(product(b, h, t, s), dv, saved_row(b, h, t), b, h, t, s, limit, key).d_x;
    }
    d_bias[i] = sum;
}

// Puts two arrays behind each other (mask and bias, where both are given).
@group(0) @binding(0) var<storage, read> join_a: array<u32>; // [params.t]
@group(0) @binding(1) var<storage, read> join_b: array<u32>; // [params.s]
@group(0) @binding(2) var<storage, read_write> joined: array<u32>; // [params.t + params.s]

@compute @workgroup_size(64)
fn join(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) lane: u32) {
    let i = (group.y * groups.x + group.x) * 64u + lane;
    if i < params.t {
        joined[i] = join_a[i];
    } else if i < params.t + params.s {
        joined[i] = join_b[i - params.t];
    }
}

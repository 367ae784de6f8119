// Attention for software adapters, whose sub-groups have 8 lanes: after attention.wgsl, whose formulas, bindings and
// parameters it has. There a load costs as much as 35 multiply-adds (a vec4 twice that), whatever its addresses, and
// workgroup memory is no cheaper; so everything stays in registers, and each load serves many multiply-adds.
//
// Grid: a workgroup of one sub-group for each (b, h, block of TM rows), blocks fastest, folded into y. The rows that a
// workgroup owns are queries (forward_lanes, backward_q_lanes) or keys (backward_kv_lanes); it walks over the other side
// in tiles of 8 KN rows, of which a lane has KN: rows j * 8 + lane. Two kinds of product:
// - x[i][j] = owned row i . the lane's row j: a lane holds 4 columns of an owned row, which the others take by shuffles
//   (`multiply`), and loads its own rows;
// - sums of rows weighted by x (`weigh_pair`): a lane holds 4 columns of the sums, loads those of a row of the tile, and
//   takes the weight from the lane that has it.
// Heads below 32 columns leave lanes free: then LANE_ROWS rows lie side by side in a sub-group, and the sums of `weigh_pair`
// are spread over LANE_ROWS lanes until `together`.
//
// Measured on llvmpipe of Mesa 22.3.6, AVX-512, one core (B8 H8 S128 D64): forward 14 ms, of it a third in loads. Loops
// with a constant bound and arrays of that length are unrolled by Mesa up to 32 rounds; any other index into a private
// array costs 18 instructions to read and 60 to write. What a loop carries is blended with its old value once a round.
// The loops over columns stay loops (`rolled`): unrolled they take no less time, and the kernels a third more to compile.
//
// Constants: DV = elems of a head, TM a multiple of 8 up to 32, KN, and the flags of attention.wgsl.

const LANES = 8u;
const LANE_COLS = select(select(2u, 4u, DV > 2u), 8u, DV > 4u);
const LANE_ROWS = LANES / LANE_COLS;
const CHUNKS = (DV + 7u) / 8u;
const HELD = TM / LANE_ROWS;
const TILE = LANES * KN;

alias Rows = array<vec4<f32>, HELD>; // a chunk of 32 columns of the owned rows
alias LaneRow = array<f32, KN>;
alias Scores = array<LaneRow, TM>; // [owned row][row of the lane]
alias Weight = array<f32, TM>; // one row of the lane
alias Row = array<vec4<f32>, CHUNKS>; // this lane's columns of a row
alias RowSums = array<Row, TM>;
alias Bases = array<u32, KN>; // where the rows of the lane begin
alias Columns = array<vec4<f32>, KN>; // 4 columns of each row of the lane

fn lane_max(x: f32, lane: u32) -> f32 {
    let y = max(x, subgroupShuffle(x, lane ^ 1u));
    let z = max(y, subgroupShuffle(y, lane ^ 2u));
    return max(z, subgroupShuffle(z, lane ^ 4u));
}

fn lane_sum(x: f32, lane: u32) -> f32 {
    let y = x + subgroupShuffle(x, lane ^ 1u);
    let z = y + subgroupShuffle(y, lane ^ 2u);
    return z + subgroupShuffle(z, lane ^ 4u);
}

// Sums over the lanes that have the same columns.
fn together(x: vec4<f32>, lane: u32) -> vec4<f32> {
    var sum = x;
    if LANE_ROWS > 1u {
        sum += subgroupShuffle(sum, lane ^ 4u);
    }
    if LANE_ROWS > 2u {
        sum += subgroupShuffle(sum, lane ^ 2u);
    }
    return sum;
}

fn lane_place(group: vec3<u32>, groups: vec3<u32>, rows: u32) -> Place {
    let blocks = (rows + TM - 1u) / TM;
    let g = group.y * groups.x + group.x;
    let bh = g / blocks;
    return Place(bh / params.heads, bh % params.heads, (g % blocks) * TM, bh < params.batch * params.heads);
}

// The lane's column of a chunk: at most DV - 1, what lies beyond is never used.
fn lane_column(chunk: u32, lane: u32) -> u32 {
    return min(chunk * 8u + lane % LANE_COLS, DV - 1u);
}

// Where the rows of a (b, h) lie in q, k, v or d_out. Taken from the parameters once, outside of all loops: there each
// read of a parameter would cost 25 instructions.
struct Source {
    base: u32, // of row 0
    stride: u32,
    last: u32, // the last row, taken instead of those that are not there: they are masked
}

fn source_of(what: u32, b: u32, h: u32) -> Source {
    if what == OF_Q {
        return Source(q_index(b, 0u, h), params.q_row, params.t - 1u);
    }
    if what == OF_K {
        return Source(k_index(b, 0u, h), params.k_row, params.s - 1u);
    }
    if what == OF_V {
        return Source(v_index(b, 0u, h), params.v_row, params.s - 1u);
    }
    return Source(out_index(b, 0u, h), params.heads * DV, params.t - 1u);
}

fn row_base(x: Source, row: u32) -> u32 {
    return x.base + min(row, x.last) * x.stride;
}

// As score; `scale` and `future` are those of params. t need not be below T where neither mask nor bias is read.
fn lane_score(product: f32, scale: f32, b: u32, h: u32, t: u32, s: u32, limit: u32, future: u32) -> f32 {
    if MASK || BIAS {
        return score(product, b, h, t, s, limit);
    }
    return select(MASKED, product * scale, s < limit && s <= (t | future));
}

fn lane_weights(qk: f32, d_out_v: f32, row: vec2<f32>, scale: f32, b: u32, h: u32, t: u32, s: u32, limit: u32,
                future: u32, key: vec2<u32>) -> Weights {
    let x = lane_score(qk, scale, b, h, t, s, limit, future);
    let p = select(0.0, exp2(x - row.x), x > VISIBLE);
    let factor = kept(key, b, h, t, s);
    return Weights(p * factor, p * (factor * d_out_v - row.y));
}

fn fetch(what: u32, i: u32) -> vec4<f32> {
    if what == OF_Q {
        return vec4<f32>(q[i]);
    }
    if what == OF_K {
        return vec4<f32>(k[i]);
    }
    return vec4<f32>(v[i]);
}

fn fetch_row(what: u32, rows: Source, row: u32, lane: u32) -> Row {
    let base = row_base(rows, row);
    var x: Row;
    for (var c = 0u; c < CHUNKS; c++) {
        x[c] = fetch(what, base + lane_column(c, lane));
    }
    return x;
}

fn hold(what: u32, rows: Source, first: u32, chunk: u32, lane: u32) -> Rows {
    var a: Rows;
    for (var n = 0u; n < HELD; n++) {
        let row = first + n * LANE_ROWS + lane / LANE_COLS;
        a[n] = fetch(what, row_base(rows, row) + lane_column(chunk, lane));
    }
    return a;
}

fn bases(rows: Source, first: u32, lane: u32) -> Bases {
    var x: Bases;
    for (var j = 0u; j < KN; j++) {
        x[j] = row_base(rows, first + j * LANES + lane);
    }
    return x;
}

// x += the products of the owned rows with the lane's rows over the four columns that lane `source` of `a` has.
fn multiply(a: ptr<function, Rows>, source: u32, b: ptr<function, Columns>, x: ptr<function, Scores>) {
    for (var i = 0u; i < TM; i++) {
        let w = subgroupShuffle((*a)[i / LANE_ROWS], i % LANE_ROWS * LANE_COLS + source);
        for (var j = 0u; j < KN; j++) {
            (*x)[i][j] += dot(w, (*b)[j]);
        }
    }
}

// A bound that Mesa does not know, so that it leaves the loop a loop.
fn rolled(count: u32) -> u32 {
    return select(0u, count, params.batch > 0u);
}

// Of two chunks of the owned rows the one of this number.
fn either(first: ptr<function, Rows>, second: ptr<function, Rows>, chunk: u32) -> Rows {
    var a = *first;
    if CHUNKS == 2u {
        for (var n = 0u; n < HELD; n++) {
            a[n] = select((*first)[n], (*second)[n], chunk == 1u);
        }
    }
    return a;
}

fn multiply_chunk(a: ptr<function, Rows>, what: u32, base: ptr<function, Bases>, chunk: u32,
                  x: ptr<function, Scores>) {
    let end = rolled(min(LANE_COLS, DV - chunk * 8u));
    for (var e = 0u; e < end; e++) {
        var b: Columns;
        for (var j = 0u; j < KN; j++) {
            b[j] = fetch(what, (*base)[j] + chunk * 8u + e);
        }
        multiply(a, e, &b, x);
    }
}

fn no_scores() -> Scores {
    var x: Scores;
    for (var i = 0u; i < TM; i++) {
        for (var j = 0u; j < KN; j++) {
            x[i][j] = 0.0;
        }
    }
    return x;
}

fn no_row_sums() -> RowSums {
    var x: RowSums;
    for (var i = 0u; i < TM; i++) {
        for (var c = 0u; c < CHUNKS; c++) {
            x[i][c] = vec4<f32>();
        }
    }
    return x;
}

// The weights of the lane's row j, j not being constant.
fn weight(x: ptr<function, Scores>, j: u32) -> Weight {
    var w: Weight;
    for (var i = 0u; i < TM; i++) {
        w[i] = (*x)[i][0];
        for (var n = 1u; n < KN; n++) {
            w[i] = select(w[i], (*x)[i][n], j == n);
        }
    }
    return w;
}

// sums += two rows, weighted by what lanes `source` and `source` + LANE_ROWS have in w.
fn weigh_pair(w: ptr<function, Weight>, source: u32, row: ptr<function, Row>, next: ptr<function, Row>,
         sums: ptr<function, RowSums>) {
    for (var i = 0u; i < TM; i++) {
        let w0 = subgroupShuffle((*w)[i], source);
        let w1 = subgroupShuffle((*w)[i], source + LANE_ROWS);
        for (var c = 0u; c < CHUNKS; c++) {
            (*sums)[i][c] += w0 * (*row)[c] + w1 * (*next)[c];
        }
    }
}

// sums += the rows of the tile from `first`, weighted by x.
fn weigh_rows(x: ptr<function, Scores>, what: u32, rows: Source, first: u32, lane: u32,
              sums: ptr<function, RowSums>) {
    for (var j = 0u; j < KN; j++) {
        var w = weight(x, j);
        for (var e = 0u; e < LANES; e += 2u * LANE_ROWS) {
            let source = e + lane / LANE_COLS;
            var row = fetch_row(what, rows, first + j * LANES + source, lane);
            var next = fetch_row(what, rows, first + j * LANES + source + LANE_ROWS, lane);
            weigh_pair(&w, source, &row, &next, sums);
        }
    }
}

@compute @workgroup_size(LANES)
fn forward_lanes(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
                 @builtin(local_invocation_index) lane: u32, @builtin(subgroup_size) lanes: u32) {
    let at = lane_place(group, groups, params.t);
    if !at.inside || lanes != LANES {
        return;
    }
    let b = at.b;
    let h = at.h;
    let t0 = at.first;
    let of_q = source_of(OF_Q, b, h);
    let of_k = source_of(OF_K, b, h);
    let of_v = source_of(OF_V, b, h);
    let scale = params.scale;
    let future = params.future;
    let limit = key_count(b);
    var end = limit;
    if future == 0u {
        end = min(end, t0 + TM);
    }
    var key = vec2<u32>();
    if DROPOUT {
        key = random_key(vec2<u32>(seed[0], seed[1]), params.site);
    }
    var sums = no_row_sums();
    var m: Weight; // the largest score of each row so far
    var l: Weight; // this lane's part of each row's sum of exp2(score - m)
    for (var i = 0u; i < TM; i++) {
        m[i] = MASKED;
        l[i] = 0.0;
    }
    var q0: Rows;
    var q1: Rows;
    if CHUNKS <= 2u {
        q0 = hold(OF_Q, of_q, t0, 0u, lane);
        if CHUNKS == 2u {
            q1 = hold(OF_Q, of_q, t0, 1u, lane);
        }
    }
    for (var s0 = 0u; s0 < end; s0 += TILE) {
        var x = no_scores();
        var base = bases(of_k, s0, lane);
        if CHUNKS <= 2u {
            for (var chunk = 0u; chunk < rolled(CHUNKS); chunk++) {
                var a = either(&q0, &q1, chunk);
                multiply_chunk(&a, OF_K, &base, chunk, &x);
            }
        } else {
            for (var chunk = 0u; chunk < CHUNKS; chunk++) {
                var a = hold(OF_Q, of_q, t0, chunk, lane);
                multiply_chunk(&a, OF_K, &base, chunk, &x);
            }
        }
        for (var i = 0u; i < TM; i++) {
            var largest = MASKED;
            for (var j = 0u; j < KN; j++) {
                x[i][j] = lane_score(x[i][j], scale, b, h, t0 + i, s0 + j * LANES + lane, limit, future);
                largest = max(largest, x[i][j]);
            }
            largest = max(m[i], lane_max(largest, lane));
            let shrink = exp2(m[i] - largest);
            m[i] = largest;
            l[i] *= shrink;
            for (var c = 0u; c < CHUNKS; c++) {
                sums[i][c] *= shrink;
            }
            for (var j = 0u; j < KN; j++) {
                let p = select(0.0, exp2(x[i][j] - largest), x[i][j] > VISIBLE);
                l[i] += p;
                x[i][j] = p * kept(key, b, h, t0 + i, s0 + j * LANES + lane);
            }
        }
        weigh_rows(&x, OF_V, of_v, s0, lane, &sums);
    }
    for (var i = 0u; i < TM; i++) {
        let total = lane_sum(l[i], lane);
        let inverse = select(0.0, 1.0 / max(total, 1e-30), total > 0.0);
        let t = t0 + i;
        for (var c = 0u; c < CHUNKS; c++) {
            let sum = together(sums[i][c], lane) * inverse;
            let e = c * 8u + lane % LANE_COLS;
            if t < params.t && lane < LANE_COLS && e < DV {
                out[out_index(b, t, h) + e] = stored(sum);
            }
        }
        if lane == 0u && t < params.t {
            lse[(b * params.heads + h) * params.t + t] =
                select(0.0, m[i] + log2(max(total, 1e-30)), total > 0.0);
        }
    }
}

// As hold, of d_out.
fn hold_d_out(rows: Source, first: u32, chunk: u32, lane: u32) -> Rows {
    var a: Rows;
    for (var n = 0u; n < HELD; n++) {
        let row = first + n * LANE_ROWS + lane / LANE_COLS;
        a[n] = d_out[row_base(rows, row) + lane_column(chunk, lane)];
    }
    return a;
}

// As multiply_chunk, with the lane's rows in d_out.
fn multiply_chunk_d_out(a: ptr<function, Rows>, base: ptr<function, Bases>, chunk: u32, x: ptr<function, Scores>) {
    let end = rolled(min(LANE_COLS, DV - chunk * 8u));
    for (var e = 0u; e < end; e++) {
        var b: Columns;
        for (var j = 0u; j < KN; j++) {
            b[j] = d_out[(*base)[j] + chunk * 8u + e];
        }
        multiply(a, e, &b, x);
    }
}

// As weigh_rows, of d_out.
fn weigh_rows_d_out(x: ptr<function, Scores>, rows: Source, first: u32, lane: u32, sums: ptr<function, RowSums>) {
    for (var j = 0u; j < KN; j++) {
        var w = weight(x, j);
        for (var e = 0u; e < LANES; e += 2u * LANE_ROWS) {
            let source = e + lane / LANE_COLS;
            let base = row_base(rows, first + j * LANES + source);
            let base_next = row_base(rows, first + j * LANES + source + LANE_ROWS);
            var row: Row;
            var next: Row;
            for (var c = 0u; c < CHUNKS; c++) {
                row[c] = d_out[base + lane_column(c, lane)];
                next[c] = d_out[base_next + lane_column(c, lane)];
            }
            weigh_pair(&w, source, &row, &next, sums);
        }
    }
}

@compute @workgroup_size(LANES)
fn backward_q_lanes(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
                    @builtin(local_invocation_index) lane: u32, @builtin(subgroup_size) lanes: u32) {
    let at = lane_place(group, groups, params.t);
    if !at.inside || lanes != LANES {
        return;
    }
    let b = at.b;
    let h = at.h;
    let t0 = at.first;
    let of_q = source_of(OF_Q, b, h);
    let of_k = source_of(OF_K, b, h);
    let of_v = source_of(OF_V, b, h);
    let of_d = source_of(OF_D_OUT, b, h);
    let scale = params.scale;
    let future = params.future;
    let limit = saved_key_count(b);
    var end = limit;
    if future == 0u {
        end = min(end, t0 + TM);
    }
    let key = saved_key();
    var row: array<vec2<f32>, TM>;
    for (var n = 0u; n < TM / LANES; n++) {
        let mine = saved_row(b, h, min(t0 + n * LANES + lane, params.t - 1u));
        for (var i = 0u; i < LANES; i++) {
            row[n * LANES + i] = subgroupShuffle(mine, i);
        }
    }
    var sums = no_row_sums();
    var q0: Rows;
    var q1: Rows;
    var d0: Rows;
    var d1: Rows;
    if CHUNKS <= 2u {
        q0 = hold(OF_Q, of_q, t0, 0u, lane);
        d0 = hold_d_out(of_d, t0, 0u, lane);
        if CHUNKS == 2u {
            q1 = hold(OF_Q, of_q, t0, 1u, lane);
            d1 = hold_d_out(of_d, t0, 1u, lane);
        }
    }
    for (var s0 = 0u; s0 < end; s0 += TILE) {
        var x = no_scores();
        var y = no_scores();
        var k_base = bases(of_k, s0, lane);
        var v_base = bases(of_v, s0, lane);
        if CHUNKS <= 2u {
            for (var chunk = 0u; chunk < rolled(CHUNKS); chunk++) {
                var a = either(&q0, &q1, chunk);
                multiply_chunk(&a, OF_K, &k_base, chunk, &x);
                a = either(&d0, &d1, chunk);
                multiply_chunk(&a, OF_V, &v_base, chunk, &y);
            }
        } else {
            for (var chunk = 0u; chunk < CHUNKS; chunk++) {
                var a = hold(OF_Q, of_q, t0, chunk, lane);
                multiply_chunk(&a, OF_K, &k_base, chunk, &x);
                a = hold_d_out(of_d, t0, chunk, lane);
                multiply_chunk(&a, OF_V, &v_base, chunk, &y);
            }
        }
        for (var i = 0u; i < TM; i++) {
            for (var j = 0u; j < KN; j++) {
                let s = s0 + j * LANES + lane;
                x[i][j] = lane_weights(x[i][j], y[i][j], row[i], scale, b, h, t0 + i, s, limit, future, key).d_x;
            }
        }
        weigh_rows(&x, OF_K, of_k, s0, lane, &sums);
    }
    for (var i = 0u; i < TM; i++) {
        let t = t0 + i;
        for (var c = 0u; c < CHUNKS; c++) {
            let sum = together(sums[i][c], lane) * params.slope;
            let e = c * 8u + lane % LANE_COLS;
            if t < params.t && lane < LANE_COLS && e < DV {
                d_q[q_index(b, t, h) + e] = sum;
            }
        }
    }
}

// The sums of the owned keys from s0 on, d_k still without the scale.
fn sum_queries_lanes(b: u32, h: u32, s0: u32, lane: u32, sums_k: ptr<function, RowSums>,
                     sums_v: ptr<function, RowSums>) {
    let of_q = source_of(OF_Q, b, h);
    let of_k = source_of(OF_K, b, h);
    let of_v = source_of(OF_V, b, h);
    let of_d = source_of(OF_D_OUT, b, h);
    let scale = params.scale;
    let future = params.future;
    let queries = params.t;
    let limit = saved_key_count(b);
    let key = saved_key();
    var first = 0u;
    if future == 0u {
        first = s0; // earlier queries attend to none of the owned keys
    }
    if s0 >= limit {
        first = queries;
    }
    var k0: Rows;
    var k1: Rows;
    var v0: Rows;
    var v1: Rows;
    if CHUNKS <= 2u {
        k0 = hold(OF_K, of_k, s0, 0u, lane);
        v0 = hold(OF_V, of_v, s0, 0u, lane);
        if CHUNKS == 2u {
            k1 = hold(OF_K, of_k, s0, 1u, lane);
            v1 = hold(OF_V, of_v, s0, 1u, lane);
        }
    }
    for (var t0 = first; t0 < queries; t0 += TILE) {
        var x = no_scores();
        var y = no_scores();
        var q_base = bases(of_q, t0, lane);
        var d_base = bases(of_d, t0, lane);
        if CHUNKS <= 2u {
            for (var chunk = 0u; chunk < rolled(CHUNKS); chunk++) {
                var a = either(&k0, &k1, chunk);
                multiply_chunk(&a, OF_Q, &q_base, chunk, &x);
                a = either(&v0, &v1, chunk);
                multiply_chunk_d_out(&a, &d_base, chunk, &y);
            }
        } else {
            for (var chunk = 0u; chunk < CHUNKS; chunk++) {
                var a = hold(OF_K, of_k, s0, chunk, lane);
                multiply_chunk(&a, OF_Q, &q_base, chunk, &x);
                a = hold(OF_V, of_v, s0, chunk, lane);
                multiply_chunk_d_out(&a, &d_base, chunk, &y);
            }
        }
        for (var j = 0u; j < KN; j++) {
            let t = t0 + j * LANES + lane;
            let row = saved_row(b, h, min(t, queries - 1u));
            let lane_limit = select(0u, limit, t < queries);
            for (var i = 0u; i < TM; i++) {
                let w = lane_weights(x[i][j], y[i][j], row, scale, b, h, t, s0 + i, lane_limit, future, key);
                x[i][j] = w.d_x;
                y[i][j] = w.p;
            }
        }
        weigh_rows(&x, OF_Q, of_q, t0, lane, sums_k);
        weigh_rows_d_out(&y, of_d, t0, lane, sums_v);
    }
}

// Every column of d_k and d_v is written, those of keys that no query attends to with 0.
@compute @workgroup_size(LANES)
fn backward_kv_lanes(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
                     @builtin(local_invocation_index) lane: u32, @builtin(subgroup_size) lanes: u32) {
    let at = lane_place(group, groups, params.s);
    if !at.inside || lanes != LANES {
        return;
    }
    var sums_k = no_row_sums();
    var sums_v = no_row_sums();
    sum_queries_lanes(at.b, at.h, at.first, lane, &sums_k, &sums_v);
    for (var i = 0u; i < TM; i++) {
        let s = at.first + i;
        for (var c = 0u; c < CHUNKS; c++) {
            let sum_k = together(sums_k[i][c], lane) * params.slope;
            let sum_v = together(sums_v[i][c], lane);
            let e = c * 8u + lane % LANE_COLS;
            if s < params.s && lane < LANE_COLS && e < DV {
                d_k[k_index(at.b, s, at.h) + e] = sum_k;
                d_v[v_index(at.b, s, at.h) + e] = sum_v;
            }
        }
    }
}

// The same where k and v are columns of one tensor.
@compute @workgroup_size(LANES)
fn backward_kv_joint_lanes(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
                           @builtin(local_invocation_index) lane: u32, @builtin(subgroup_size) lanes: u32) {
    let at = lane_place(group, groups, params.s);
    if !at.inside || lanes != LANES {
        return;
    }
    var sums_k = no_row_sums();
    var sums_v = no_row_sums();
    sum_queries_lanes(at.b, at.h, at.first, lane, &sums_k, &sums_v);
    for (var i = 0u; i < TM; i++) {
        let s = at.first + i;
        for (var c = 0u; c < CHUNKS; c++) {
            let sum_k = together(sums_k[i][c], lane) * params.slope;
            let sum_v = together(sums_v[i][c], lane);
            let e = c * 8u + lane % LANE_COLS;
            if s < params.s && lane < LANE_COLS && e < DV {
                d_kv[k_index(at.b, s, at.h) + e] = sum_k;
                d_kv[v_index(at.b, s, at.h) + e] = sum_v;
            }
        }
    }
}

// The matrix product in tiles of workgroup memory, for GPUs: see matmul.wgsl.
//
// Grid: a workgroup of TX x TY invocations owns TY * RM rows by TX * RN elem columns of out; an invocation owns rows
// ty * RM + i and columns j * TX + tx. A and B pass through workgroup memory in slabs of SLAB k, A k-major; where PREFETCH,
// the next slab is on its way to registers while one is used.
// Constants: TX, TY, RM, RN, SLAB (divides by 4), PREFETCH; A_ALONG: 0 A is read by scalars and any strides, 1 by vec4<f32> along
// k, 2 by vec4<f32> along m; B_ALONG_K: B is [N, K] and read by vec4<f32> along k.

const TILE_M = TY * RM;
const TILE_N = TX * RN; // in elem
const THREADS = TX * TY;
const PITCH = TILE_M + 1u; // odd, so that the transposed stores of a slab of A meet different banks

var<workgroup> a_slab: array<f32, SLAB * PITCH>; // [SLAB, TILE_M]
var<workgroup> b_slab: array<elem, SLAB * TILE_N>; // [SLAB, TILE_N]

// What an invocation loads of a slab: of A vec4<f32>, or scalars as their x; of B elems, four of them at a time where they
// are transposed.
const A_LOADS = SLAB * TILE_M / select(4u, 1u, A_ALONG == 0u);
const A_HELD = (A_LOADS + THREADS - 1u) / THREADS;
const B_RUN = select(1u, 4u, B_ALONG_K);
const B_LOADS = SLAB * TILE_N / B_RUN;
const B_HELD = (B_LOADS + THREADS - 1u) / THREADS;

alias a_part = array<vec4<f32>, A_HELD>;
alias b_part = array<array<elem, B_RUN>, B_HELD>;

// Where a load of A lies in the slab: its first k and its first row.
fn place_a(e: u32) -> vec2<u32> {
    switch A_ALONG {
        case 0u: {
            // Neighbouring lanes take neighbouring k: A's rows are mostly the contiguous ones.
            return vec2(e % SLAB, e / SLAB);
        }
        case 1u: {
            return vec2(e % (SLAB / 4u) * 4u, e / (SLAB / 4u));
        }
        default: {
            return vec2(e / (TILE_M / 4u), e % (TILE_M / 4u) * 4u);
        }
    }
}

// The slab of A from k0 on; zeros beyond the ends.
fn load_a(work: Work, k0: u32, lane: u32) -> a_part {
    var held: a_part;
    for (var q = 0u; q < A_HELD; q++) {
        let e = lane + q * THREADS;
        let place = place_a(e);
        let k = k0 + place.x;
        let row = work.tile_m * TILE_M + place.y;
        if e < A_LOADS && row < params.m && k < work.k_end {
            if A_ALONG == 0u {
                held[q].x = vec4<f32>(a_wide(a[work.a + row * params.a_row + k * params.a_k])).x;
            } else if A_ALONG == 1u {
                held[q] = vec4<f32>(a_wide(a[work.a + row * params.a_row + k / 4u]));
            } else {
                held[q] = vec4<f32>(a_wide(a[work.a + k * params.a_k + row / 4u]));
            }
        }
    }
    return held;
}

fn store_a(held: ptr<function, a_part>, lane: u32) {
    for (var q = 0u; q < A_HELD; q++) {
        let e = lane + q * THREADS;
        let place = place_a(e);
        if e < A_LOADS {
            if A_ALONG == 0u {
                a_slab[place.x * PITCH + place.y] = (*held)[q].x;
            } else if A_ALONG == 1u {
                for (var c = 0u; c < 4u; c++) {
                    a_slab[(place.x + c) * PITCH + place.y] = (*held)[q][c];
                }
            } else {
                for (var c = 0u; c < 4u; c++) {
                    a_slab[place.x * PITCH + place.y + c] = (*held)[q][c];
                }
            }
        }
    }
}

// Where a load of B lies in the slab: its first k and its column.
fn place_b(e: u32) -> vec2<u32> {
    return select(vec2(e / TILE_N, e % TILE_N), vec2(e % (SLAB / 4u) * 4u, e / (SLAB / 4u)), B_ALONG_K);
}

// The slab of B from k0 on; zeros beyond the ends.
fn load_b(work: Work, k0: u32, lane: u32) -> b_part {
    var held: b_part;
    for (var q = 0u; q < B_HELD; q++) {
        let e = lane + q * THREADS;
        let place = place_b(e);
        let k = k0 + place.x;
        let column = work.tile_n * TILE_N + place.y;
        if e < B_LOADS && column < params.n && k < work.k_end {
            if B_ALONG_K {
                // An elem is four rows of the stored matrix: a lane transposes four k of them.
                let at = work.b + column * ELEM * params.b_column + k / 4u;
                let r0 = vec4<f32>(b_wide(b[at]));
                let r1 = vec4<f32>(b_wide(b[at + params.b_column]));
                let r2 = vec4<f32>(b_wide(b[at + 2u * params.b_column]));
                let r3 = vec4<f32>(b_wide(b[at + 3u * params.b_column]));
                for (var c = 0u; c < B_RUN; c++) {
                    held[q][c] = elem_from(vec4(r0[c], r1[c], r2[c], r3[c]));
                }
            } else {
                held[q][0] = b_wide(b[work.b + column * params.b_column + k * params.b_k]);
            }
        }
    }
    return held;
}

fn store_b(held: ptr<function, b_part>, lane: u32) {
    for (var q = 0u; q < B_HELD; q++) {
        let e = lane + q * THREADS;
        let place = place_b(e);
        if e < B_LOADS {
            for (var c = 0u; c < B_RUN; c++) {
                b_slab[(place.x + c) * TILE_N + place.y] = (*held)[q][c];
            }
        }
    }
}

@compute @workgroup_size(TX, TY)
fn tile(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_id) local: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let index = group.y * groups.x + group.x;
    if index >= params.count {
        return;
    }
    let work = work_of(index);
    var acc: array<array<elem, RN>, RM>;
    // The first row of tiles sums the columns of B, each by one invocation: TILE_N is at most THREADS.
    let sums = SUMS && work.tile_m == 0u && lane < TILE_N;
    var column_sum = elem(0.0);
    var next_a: a_part;
    var next_b: b_part;
    if PREFETCH {
        next_a = load_a(work, work.k_first, lane);
        next_b = load_b(work, work.k_first, lane);
    }
    for (var k0 = work.k_first; k0 < work.k_end; k0 += SLAB) {
        if !PREFETCH {
            next_a = load_a(work, k0, lane);
            next_b = load_b(work, k0, lane);
        }
        store_a(&next_a, lane);
        store_b(&next_b, lane);
        workgroupBarrier();
        if PREFETCH {
            next_a = load_a(work, k0 + SLAB, lane);
            next_b = load_b(work, k0 + SLAB, lane);
        }
        for (var k = 0u; k < SLAB; k++) {
            var v: array<elem, RN>;
            for (var j = 0u; j < RN; j++) {
                v[j] = b_slab[k * TILE_N + j * TX + local.x];
            }
            for (var i = 0u; i < RM; i++) {
                let x = elem(a_slab[k * PITCH + local.y * RM + i]);
                for (var j = 0u; j < RN; j++) {
                    acc[i][j] = fma(x, v[j], acc[i][j]);
                }
            }
        }
        if sums {
            for (var k = 0u; k < SLAB; k++) {
                column_sum += b_slab[k * TILE_N + lane];
            }
        }
        workgroupBarrier();
    }

    if sums && work.tile_n * TILE_N + lane < params.n {
        finish_column_sum(column_sum, work.out, work.tile_n * TILE_N + lane);
    }
    for (var i = 0u; i < RM; i++) {
        let row = work.tile_m * TILE_M + local.y * RM + i;
        for (var j = 0u; j < RN; j++) {
            let column = work.tile_n * TILE_N + j * TX + local.x;
            if row < params.m && column < params.n {
                finish(acc[i][j], work.out + row * params.out_row + column, column);
            }
        }
    }
}

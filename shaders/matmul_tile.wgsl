// The matrix product in tiles of workgroup memory, for GPUs: see matmul.wgsl.
//
// Grid: a workgroup of TX x TY invocations owns TY * RM rows by TX * RN elem columns of out; an invocation owns rows
// ty * RM + i and columns j * TX + tx. A and B pass through workgroup memory in slabs of SLAB k, A k-major.
// Constants: TX, TY, RM, RN, SLAB (divides by 4); A_ALONG: 0 A is read by scalars and any strides, 1 by vec4<f32> along
// k, 2 by vec4<f32> along m; B_ALONG_K: B is [N, K] and read by vec4<f32> along k.

const TILE_M = TY * RM;
const TILE_N = TX * RN; // in elem
const THREADS = TX * TY;
const PITCH = TILE_M + 1u; // odd, so that the transposed stores of a slab of A meet different banks

var<workgroup> a_slab: array<f32, SLAB * PITCH>; // [SLAB, TILE_M]
var<workgroup> b_slab: array<elem, SLAB * TILE_N>; // [SLAB, TILE_N]

fn stage_a(work: Work, k0: u32, lane: u32) {
    let row0 = work.tile_m * TILE_M;
    if A_ALONG == 0u {
        // Neighbouring lanes take neighbouring k: A's rows are mostly the contiguous ones.
        for (var e = lane; e < SLAB * TILE_M; e += THREADS) {
            let k = e % SLAB;
            let i = e / SLAB;
            var v = 0.0;
            if row0 + i < params.m && k0 + k < work.k_end {
                v = vec4<f32>(a_wide(a[work.a + (row0 + i) * params.a_row + (k0 + k) * params.a_k])).x;
            }
            a_slab[k * PITCH + i] = v;
        }
    } else if A_ALONG == 1u {
        for (var e = lane; e < (SLAB / 4u) * TILE_M; e += THREADS) {
            let k = e % (SLAB / 4u) * 4u;
            let i = e / (SLAB / 4u);
            var v = vec4(0.0);
            if row0 + i < params.m && k0 + k < work.k_end {
                v = vec4<f32>(a_wide(a[work.a + (row0 + i) * params.a_row + (k0 + k) / 4u]));
            }
            for (var c = 0u; c < 4u; c++) {
                a_slab[(k + c) * PITCH + i] = v[c];
            }
        }
    } else {
        for (var e = lane; e < SLAB * (TILE_M / 4u); e += THREADS) {
            let i = e % (TILE_M / 4u) * 4u;
            let k = e / (TILE_M / 4u);
            var v = vec4(0.0);
            if row0 + i < params.m && k0 + k < work.k_end {
                v = vec4<f32>(a_wide(a[work.a + (k0 + k) * params.a_k + (row0 + i) / 4u]));
            }
            for (var c = 0u; c < 4u; c++) {
                a_slab[k * PITCH + i + c] = v[c];
            }
        }
    }
}

fn stage_b(work: Work, k0: u32, lane: u32) {
    let column0 = work.tile_n * TILE_N;
    if B_ALONG_K {
        // An elem is four rows of the stored matrix: a lane transposes four k of them.
        for (var e = lane; e < (SLAB / 4u) * TILE_N; e += THREADS) {
            let k = e % (SLAB / 4u) * 4u;
            let j = e / (SLAB / 4u);
            var r0 = vec4(0.0);
            var r1 = vec4(0.0);
            var r2 = vec4(0.0);
            var r3 = vec4(0.0);
            if column0 + j < params.n && k0 + k < work.k_end {
                let at = work.b + (column0 + j) * ELEM * params.b_column + (k0 + k) / 4u;
                r0 = vec4<f32>(b_wide(b[at]));
                r1 = vec4<f32>(b_wide(b[at + params.b_column]));
                r2 = vec4<f32>(b_wide(b[at + 2u * params.b_column]));
                r3 = vec4<f32>(b_wide(b[at + 3u * params.b_column]));
            }
            for (var c = 0u; c < 4u; c++) {
                b_slab[(k + c) * TILE_N + j] = elem_from(vec4(r0[c], r1[c], r2[c], r3[c]));
            }
        }
    } else {
        for (var e = lane; e < SLAB * TILE_N; e += THREADS) {
            let j = e % TILE_N;
            let k = e / TILE_N;
            var v = elem(0.0);
            if column0 + j < params.n && k0 + k < work.k_end {
                v = b_wide(b[work.b + (column0 + j) * params.b_column + (k0 + k) * params.b_k]);
            }
            b_slab[e] = v;
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
    for (var k0 = work.k_first; k0 < work.k_end; k0 += SLAB) {
        stage_a(work, k0, lane);
        stage_b(work, k0, lane);
        workgroupBarrier();
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

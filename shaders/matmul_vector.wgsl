// The matrix product for a few rows (decoding), where B is read once and nothing is worth staging: see matmul.wgsl.
//
// Grid: a workgroup of COLUMNS * SLICES invocations owns ROWS rows by COLUMNS elem columns of out. Slice s sums every
// SLICES-th step of k; the slices' sums are added in order. Neighbouring invocations read neighbouring addresses:
// columns of B where it is [K, N], steps of k where it is [N, K].
// Constants: COLUMNS, SLICES, ROWS, ALONG_K: neighbours take steps of k; B_ALONG_K: B is [N, K] and read by vec4<f32>
// along k, a step being four k. tile_m counts ROWS rows.

const TERMS = ROWS + select(0u, 1u, SUMS); // sums of an invocation: its rows, and the column of B itself

var<workgroup> sums: array<elem, SLICES * COLUMNS>;

fn a_at(start: u32, row: u32, k: u32) -> f32 {
    return vec4<f32>(a_wide(a[start + row * params.a_row + k * params.a_k])).x;
}

@compute @workgroup_size(COLUMNS * SLICES)
fn vector(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
          @builtin(local_invocation_index) lane: u32) {
    let index = group.y * groups.x + group.x;
    if index >= params.count {
        return;
    }
    let work = work_of(index);
    let own = select(lane % COLUMNS, lane / SLICES, ALONG_K);
    let slice = select(lane / COLUMNS, lane % SLICES, ALONG_K);
    let column = work.tile_n * COLUMNS + own;
    let safe = min(column, params.n - 1u);
    let row0 = work.tile_m * ROWS;
    var acc: array<elem, TERMS>;
    if B_ALONG_K {
        for (var k = work.k_first + 4u * slice; k < work.k_end; k += 4u * SLICES) {
            let at = work.b + safe * ELEM * params.b_column + k / 4u;
            let r0 = vec4<f32>(b_wide(b[at]));
            let r1 = vec4<f32>(b_wide(b[at + params.b_column]));
            let r2 = vec4<f32>(b_wide(b[at + 2u * params.b_column]));
            let r3 = vec4<f32>(b_wide(b[at + 3u * params.b_column]));
            for (var c = 0u; c < 4u; c++) {
                let v = elem_from(vec4(r0[c], r1[c], r2[c], r3[c]));
                for (var i = 0u; i < ROWS; i++) {
                    let x = elem(a_at(work.a, min(row0 + i, params.m - 1u), k + c));
                    acc[i] = fma(x, v, acc[i]);
                }
            }
        }
    } else {
        for (var k = work.k_first + slice; k < work.k_end; k += SLICES) {
            let v = b_wide(b[work.b + safe * params.b_column + k * params.b_k]);
            if SUMS {
                acc[TERMS - 1u] += v;
            }
            for (var i = 0u; i < ROWS; i++) {
                let x = elem(a_at(work.a, min(row0 + i, params.m - 1u), k));
                acc[i] = fma(x, v, acc[i]);
            }
        }
    }
    for (var i = 0u; i < TERMS; i++) {
        workgroupBarrier();
        sums[slice * COLUMNS + own] = acc[i];
        workgroupBarrier();
        let row = row0 + i;
        let ends = select(work.tile_m == 0u, row < params.m, i < ROWS);
        if slice == 0u && column < params.n && ends {
            var sum = sums[own];
            for (var s = 1u; s < SLICES; s++) {
                sum += sums[s * COLUMNS + own];
            }
            if i < ROWS {
                finish(sum, work.out + row * params.out_row + column, column);
            } else {
                finish_column_sum(sum, work.out, column);
            }
        }
    }
}

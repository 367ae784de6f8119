// The matrix product where a load is dear and a sub-group operation cheap (software adapters): see matmul.wgsl.
//
// Grid: a workgroup is one sub-group of LANES lanes and owns TM rows by TN * LANES elem columns; a lane owns column
// j * LANES + lane for each j. No workgroup memory, no barrier. Each lane loads A's TM values of one k; a value reaches
// all lanes by a shuffle, and every load of B is used for TM rows.
// Needs M >= TM: the last tile is moved up to end at M, and leaves the rows that the one before owns.
// Constants: LANES, TM, TN, STEP (k a loop turn; 4 where B_ALONG_K), A_ALONG_M: A is [K, M] and read as vec4<f32> along m
// (TM divides by 4), B_ALONG_K: B is [N, K] and read as vec4<f32> along k.

// B's elems for k .. k + STEP, in the columns at `starts`. Values of k beyond the end meet zeros of A.
fn load_b(starts: ptr<function, array<u32, TN>>, k: u32, k_end: u32) -> array<array<elem, TN>, STEP> {
    var v: array<array<elem, TN>, STEP>;
    if B_ALONG_K {
        let at = min(k, k_end - 1u) / 4u;
        for (var j = 0u; j < TN; j++) {
            let p = (*starts)[j] + at;
            let r0 = vec4<f32>(b[p]);
            let r1 = vec4<f32>(b[p + params.b_column]);
            let r2 = vec4<f32>(b[p + 2u * params.b_column]);
            let r3 = vec4<f32>(b[p + 3u * params.b_column]);
            for (var s = 0u; s < STEP; s++) {
                v[s][j] = elem_from(vec4(r0[s], r1[s], r2[s], r3[s]));
            }
        }
    } else {
        for (var s = 0u; s < STEP; s++) {
            let at = min(k + s, k_end - 1u) * params.b_k;
            for (var j = 0u; j < TN; j++) {
                v[s][j] = b[(*starts)[j] + at];
            }
        }
    }
    return v;
}

@compute @workgroup_size(LANES)
fn subgroup(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
            @builtin(local_invocation_index) lane: u32) {
    let index = group.y * groups.x + group.x;
    if index >= params.count {
        return;
    }
    let work = work_of(index);
    let first_row = work.tile_m * TM;
    let row0 = min(first_row, params.m - TM);
    let column0 = work.tile_n * (TN * LANES) + lane;
    var b_starts: array<u32, TN>;
    for (var j = 0u; j < TN; j++) {
        let column = min(column0 + j * LANES, params.n - 1u);
        b_starts[j] = work.b + column * (params.b_column * select(1u, ELEM, B_ALONG_K));
    }
    let a_start = work.a + select(row0 * params.a_row, row0 / 4u, A_ALONG_M);

    var acc: array<array<elem, TN>, TM>;
    for (var k0 = work.k_first; k0 < work.k_end; k0 += LANES) {
        // This lane's k, and whether there is one.
        let at = a_start + min(k0 + lane, work.k_end - 1u) * params.a_k;
        let some = select(0.0, 1.0, k0 + lane < work.k_end);
        var own: array<f32, TM>;
        if A_ALONG_M {
            for (var i = 0u; i < TM / 4u; i++) {
                let v = vec4<f32>(a[at + i]) * some;
                own[4u * i] = v.x;
                own[4u * i + 1u] = v.y;
                own[4u * i + 2u] = v.z;
                own[4u * i + 3u] = v.w;
            }
        } else {
            for (var i = 0u; i < TM; i++) {
                own[i] = vec4<f32>(a[at + i * params.a_row]).x * some;
            }
        }
        for (var q = 0u; q < LANES; q += STEP) {
            let v = load_b(&b_starts, k0 + q, work.k_end);
            for (var i = 0u; i < TM; i++) {
                for (var s = 0u; s < STEP; s++) {
                    let x = elem(subgroupShuffle(own[i], q + s));
                    for (var j = 0u; j < TN; j++) {
                        acc[i][j] = fma(x, v[s][j], acc[i][j]);
                    }
                }
            }
        }
    }

    for (var j = 0u; j < TN; j++) {
        let column = column0 + j * LANES;
        if column < params.n {
            for (var i = 0u; i < TM; i++) {
                if row0 + i >= first_row {
                    finish(acc[i][j], work.out + (row0 + i) * params.out_row + column, column);
                }
            }
        }
    }
}

// The matrix product where a load is dear and a sub-group operation cheap (software adapters): see matmul.wgsl.
//
// Grid: a workgroup is one sub-group of LANES lanes and owns TM rows by TN * LANES columns of four; a lane owns column
// j * LANES + lane for each j. No workgroup memory, no barrier. Each lane loads A's TM values of one k; a value reaches
// all lanes by a shuffle, and every load of B is used for TM rows. A and B are read where they lie, or from the tiles
// that matmul_pack.wgsl made.
// Constants: LANES, TM, TN, STEP (k a loop turn; 4 where B_ALONG_K), A_ALONG_M: A is [K, M], or in tiles, and read as
// vec4<f32> along m (TM divides by 4), B_ALONG_K: B is [N, K] and read as vec4<f32> along k,
// LATER: activation and residual take another turn over out. BY_PARAMS: bias, ReLU, residual and the slope of ReLU are in
// the kernel, and params.epilogue says which are done: kernels with wide tiles take long to compile, and so there are few.

const WITH_BIAS = 1u; // bits of params.epilogue
const WITH_RELU = 2u;
const WITH_RESIDUAL = 4u;
const WITH_SLOPE = 8u;

fn does(bits: u32) -> bool {
    return BY_PARAMS && (params.epilogue & bits) != 0u;
}

const QUADS = (TM + 3u) / 4u; // rows of four; what lies beyond TM is never used

// B at k .. k + STEP, in the columns at `starts` (of each of the four rows where B_ALONG_K). Values of k beyond the end
// meet zeros of A.
fn load_b(starts: ptr<function, array<vec4<u32>, TN>>, k: u32, k_end: u32)
    -> array<array<vec4<f32>, TN>, STEP> {
    var v: array<array<vec4<f32>, TN>, STEP>;
    if B_ALONG_K {
        let at = min(k, k_end - 1u) / 4u;
        for (var j = 0u; j < TN; j++) {
            let p = (*starts)[j] + at;
            let r0 = b_wide(b[p.x]);
            let r1 = b_wide(b[p.y]);
            let r2 = b_wide(b[p.z]);
            let r3 = b_wide(b[p.w]);
            for (var s = 0u; s < STEP; s++) {
                v[s][j] = vec4(r0[s], r1[s], r2[s], r3[s]);
            }
        }
    } else {
        for (var s = 0u; s < STEP; s++) {
            let at = min(k + s, k_end - 1u) * params.b_k;
            for (var j = 0u; j < TN; j++) {
                v[s][j] = b_wide(b[(*starts)[j].x + at]);
            }
        }
    }
    return v;
}

@compute @workgroup_size(LANES)
fn subgroup(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
            @builtin(local_invocation_index) lane: u32, @builtin(subgroup_size) lanes: u32) {
    let index = group.y * groups.x + group.x;
    // Where a device runs with other sub-groups than it has told, nothing is written, which is seen.
    if index >= params.count || lanes != LANES {
        return;
    }
    let work = work_of(index);
    // Where A is not in tiles, the last tile is moved up to end at M, and leaves the rows that the one before owns.
    let first_row = work.tile_m * TM;
    let row0 = select(first_row, min(first_row, params.m - min(params.m, TM)), params.a_tile == 0u);
    let in_place = select(0u, row0, params.a_tile == 0u);
    let a_start = work.a + work.tile_m * params.a_tile + select(in_place * params.a_row, in_place / 4u, A_ALONG_M);
    var b_starts: array<vec4<u32>, TN>;
    for (var j = 0u; j < TN; j++) {
        let own = work.tile_n * params.b_first + j * LANES + lane;
        if B_ALONG_K {
            let row = min(vec4(own * 4u) + vec4(0u, 1u, 2u, 3u), vec4(params.n * ELEM - 1u));
            b_starts[j] = work.b + row * params.b_column;
        } else {
            b_starts[j] = vec4(work.b + work.tile_n * params.b_tile + min(own, params.b_columns - 1u));
        }
    }

    var acc: array<array<array<vec4<f32>, TN>, 4>, QUADS>;
    var column_sums: array<vec4<f32>, TN>;
    for (var k0 = work.k_first; k0 < work.k_end; k0 += LANES) {
        // This lane's k, and whether there is one.
        let at = a_start + min(k0 + lane, work.k_end - 1u) * params.a_k;
        let some = select(0.0, 1.0, k0 + lane < work.k_end);
        var own: array<vec4<f32>, QUADS>;
        for (var i = 0u; i < QUADS; i++) {
            if A_ALONG_M {
                own[i] = vec4<f32>(a_wide(a[at + i]));
            } else {
                for (var c = 0u; c < 4u; c++) {
                    if 4u * i + c < TM {
                        own[i][c] = vec4<f32>(a_wide(a[at + (4u * i + c) * params.a_row])).x;
                    }
                }
            }
            own[i] *= some;
        }
        for (var q = 0u; q < LANES; q += STEP) {
            let v = load_b(&b_starts, k0 + q, work.k_end);
            if SUMS {
                for (var s = 0u; s < STEP; s++) {
                    let one = select(0.0, 1.0, k0 + q + s < work.k_end);
                    for (var j = 0u; j < TN; j++) {
                        column_sums[j] = fma(vec4(one), v[s][j], column_sums[j]);
                    }
                }
            }
            for (var i = 0u; i < QUADS; i++) {
                var x: array<vec4<f32>, STEP>;
                for (var s = 0u; s < STEP; s++) {
                    x[s] = subgroupShuffle(own[i], q + s);
                }
                // A row's sums take all steps before the next row's: they stay in registers meanwhile.
                for (var c = 0u; c < 4u; c++) {
                    for (var s = 0u; s < STEP; s++) {
                        for (var j = 0u; j < TN; j++) {
                            acc[i][c][j] = fma(vec4(x[s][c]), v[s][j], acc[i][c][j]);
                        }
                    }
                }
            }
        }
    }

    let column0 = (work.tile_n * (TN * LANES) + lane) * (4u / ELEM);
    for (var j = 0u; j < TN; j++) {
        let column = column0 + j * LANES * (4u / ELEM);
        let add = bias_four(column);
        if SUMS && work.tile_m == 0u {
            for (var c = 0u; c < 4u; c += ELEM) {
                if column + c < params.n {
                    finish_column_sum(elem_at(column_sums[j], c), work.out, column + c);
                }
            }
        }
        for (var i = 0u; i < QUADS; i++) {
            for (var c = 0u; c < 4u; c++) {
                let row = row0 + 4u * i + c;
                if 4u * i + c < TM && row >= first_row && row < params.m {
                    let v = acc[i][c][j] * params.alpha + add;
                    store_four(v, work.out + row * params.out_row + column, column);
                }
            }
        }
    }
    if LATER || BY_PARAMS {
        // In a loop over what was just written: unrolled, this would make the kernel slow to compile.
        let end = select(first_row, min(row0 + TM, params.m), LATER || does(WITH_RESIDUAL | WITH_SLOPE));
        for (var row = first_row; row < end; row++) {
            for (var j = 0u; j < TN * (4u / ELEM); j++) {
                let column = column0 + j % (4u / ELEM) + j / (4u / ELEM) * LANES * (4u / ELEM);
                if column < params.n {
                    finish_later(work.out + row * params.out_row + column);
                }
            }
        }
    }
}

// The bias of four neighbouring columns.
fn bias_four(column: u32) -> vec4<f32> {
    var v = vec4(0.0);
    if BIAS || BY_PARAMS {
        for (var c = 0u; c < 4u; c += ELEM) {
            let own = vec4<f32>(elem(bias[min(column + c, params.n - 1u)]));
            if ELEM == 4u {
                v = own;
            } else {
                v[c] = own.x;
            }
        }
    }
    return select(vec4(0.0), v, BIAS || does(WITH_BIAS));
}

// Of four neighbouring columns those from c on: component c where elem is a scalar.
fn elem_at(v: vec4<f32>, c: u32) -> elem {
    return elem_from(select(v, vec4(v[c]), ELEM == 1u));
}

// Stores four neighbouring columns, as far as they are columns of out.
fn store_four(v: vec4<f32>, index: u32, column: u32) {
    for (var c = 0u; c < 4u; c += ELEM) {
        if column + c < params.n {
            let x = elem_at(v, c);
            if LATER {
                put(index + c, x);
            } else if BY_PARAMS {
                put(index + c, select(x, activate(x, ACT_RELU), does(WITH_RELU)));
            } else {
                finish_biased(x, index + c);
            }
        }
    }
}

// What an element's second turn is for.
fn finish_later(index: u32) {
    let v = elem(out[index]);
    if BY_PARAMS {
        let x = elem(residual[index]);
        put(index, select(v + x, v * activate_slope(x, ACT_RELU), does(WITH_SLOPE)));
    } else {
        finish_biased(v, index);
    }
}

// The matrix product for compilers that keep a function's arrays in memory and unroll no loops (SwiftShader): see
// matmul.wgsl.
//
// Grid: a workgroup of ACROSS * DOWN invocations owns DOWN * 8 rows by ACROSS elem columns of out; an invocation owns eight
// rows of one column, in variables of their own. No workgroup memory, no barrier, no array: there, an index into an array
// costs as much as several multiply-adds, and a load from a buffer no more than one from workgroup memory.
// Constants: ACROSS, DOWN; B_ALONG_K: B is [N, K] and read by vec4<f32> along k, a step being four k.

// The eight sums of a column.
struct Eight {
    s0: elem,
    s1: elem,
    s2: elem,
    s3: elem,
    s4: elem,
    s5: elem,
    s6: elem,
    s7: elem,
}

// Where A's eight rows start.
struct Starts {
    a0: u32,
    a1: u32,
    a2: u32,
    a3: u32,
    a4: u32,
    a5: u32,
    a6: u32,
    a7: u32,
}

fn a_value(index: u32) -> elem {
    return elem(vec4<f32>(a_wide(a[index])).x);
}

// Adds A at `step` from the start of each row times v.
fn add(acc: ptr<function, Eight>, at: Starts, step: u32, v: elem) {
    (*acc).s0 = fma(a_value(at.a0 + step), v, (*acc).s0);
    (*acc).s1 = fma(a_value(at.a1 + step), v, (*acc).s1);
    (*acc).s2 = fma(a_value(at.a2 + step), v, (*acc).s2);
    (*acc).s3 = fma(a_value(at.a3 + step), v, (*acc).s3);
    (*acc).s4 = fma(a_value(at.a4 + step), v, (*acc).s4);
    (*acc).s5 = fma(a_value(at.a5 + step), v, (*acc).s5);
    (*acc).s6 = fma(a_value(at.a6 + step), v, (*acc).s6);
    (*acc).s7 = fma(a_value(at.a7 + step), v, (*acc).s7);
}

// Ends a row.
fn end_row(work: Work, row: u32, column: u32, sum: elem) {
    if row < params.m && column < params.n {
        finish(sum, work.out + row * params.out_row + column, column);
    }
}

@compute @workgroup_size(ACROSS, DOWN)
fn plain(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
         @builtin(local_invocation_id) local: vec3<u32>) {
    let index = group.y * groups.x + group.x;
    if index >= params.count {
        return;
    }
    let work = work_of(index);
    let column = work.tile_n * ACROSS + local.x;
    let safe = min(column, params.n - 1u);
    let row = (work.tile_m * DOWN + local.y) * 8u;
    // Rows beyond the last one are read as that one and not written.
    let last = params.m - 1u;
    let starts = Starts(
        work.a + min(row, last) * params.a_row,
        work.a + min(row + 1u, last) * params.a_row,
        work.a + min(row + 2u, last) * params.a_row,
        work.a + min(row + 3u, last) * params.a_row,
        work.a + min(row + 4u, last) * params.a_row,
        work.a + min(row + 5u, last) * params.a_row,
        work.a + min(row + 6u, last) * params.a_row,
        work.a + min(row + 7u, last) * params.a_row,
    );
    var acc: Eight;
    var column_sum = elem(0.0);
    if B_ALONG_K {
        for (var k = work.k_first; k < work.k_end; k += 4u) {
            let at = work.b + safe * ELEM * params.b_column + k / 4u;
            let r0 = vec4<f32>(b_wide(b[at]));
            let r1 = vec4<f32>(b_wide(b[at + params.b_column]));
            let r2 = vec4<f32>(b_wide(b[at + 2u * params.b_column]));
            let r3 = vec4<f32>(b_wide(b[at + 3u * params.b_column]));
            for (var c = 0u; c < 4u; c++) {
                let v = elem_from(vec4(r0[c], r1[c], r2[c], r3[c]));
                add(&acc, starts, (k + c) * params.a_k, v);
            }
        }
    } else {
        for (var k = work.k_first; k < work.k_end; k++) {
            let v = b_wide(b[work.b + safe * params.b_column + k * params.b_k]);
            add(&acc, starts, k * params.a_k, v);
            if SUMS {
                column_sum += v;
            }
        }
    }
    if SUMS && row == 0u && column < params.n {
        finish_column_sum(column_sum, work.out, column);
    }
    end_row(work, row, column, acc.s0);
    end_row(work, row + 1u, column, acc.s1);
    end_row(work, row + 2u, column, acc.s2);
    end_row(work, row + 3u, column, acc.s3);
    end_row(work, row + 4u, column, acc.s4);
    end_row(work, row + 5u, column, acc.s5);
    end_row(work, row + 6u, column, acc.s6);
    end_row(work, row + 7u, column, acc.s7);
}

// out[z, m, n] = act(alpha sum_k A[z, m, k] B[z, k, n] + bias[n]) + residual[z, m, n], z = (outer, inner).
// Where SLOPE names an activation, the product is multiplied by its derivative at residual instead. Where SUMS, also
// sum_k B[k, n]: a product with one more row of A, all ones.
//
// What all variants share: parameters, bindings, the epilogue, and the second pass of a product whose k is split over
// groups. The variants are matmul_subgroup.wgsl (with matmul_pack.wgsl), matmul_tile.wgsl, matmul_plain.wgsl and
// matmul_vector.wgsl; appended to each is lib/elem_vec4.wgsl or lib/elem_f32.wgsl, which says whether rows of out are
// written by vec4<f32> or by scalars, and one of matmul_pre.wgsl, matmul_sums.wgsl and matmul_one.wgsl, which says what
// the second output is.
// Constants: BIAS, RESIDUAL, ACTIVATION, SLOPE, SUMS, SPLIT: this is a pass over slices of k; those of the variant. Aliases
// of what is stored: a_elem, b_elem, bias_elem, residual_elem, out_elem, of 32-bit or 16-bit floats; a_wide, b_wide and elem
// are the same of f32, which all is computed in.

// Starts and strides count elements of the binding they index: elem of out, bias and residual, a_elem of A, b_elem of B.
struct Params {
    m: u32,
    n: u32, // in elem
    k: u32,
    inner: u32, // extent of the inner batch dimension
    tiles_m: u32,
    tiles_n: u32,
    count: u32, // workgroups that have work; elem of a slice in `reduce`, of out in `zero`
    k_chunk: u32, // k a group sums at most
    k_outer: u32, // first k of outer batch index z: z k_outer
    splits: u32, // slices that `reduce` sums
    alpha: f32,
    a_start: u32,
    a_row: u32,
    a_k: u32,
    a_tile: u32, // from one tile of rows to the next where A is in tiles, else 0
    a_outer: u32,
    a_inner: u32,
    b_start: u32,
    b_k: u32,
    b_column: u32,
    b_tile: u32, // from one tile of columns to the next where B is in tiles, else 0
    b_first: u32, // columns from the start of B, or of a tile of B, to the next tile's
    b_columns: u32, // columns in B, or in a tile of B
    b_outer: u32,
    b_inner: u32,
    out_start: u32,
    out_row: u32,
    out_outer: u32,
    out_inner: u32,
    epilogue: u32, // what BY_PARAMS asks for
}

@group(1) @binding(0) var<uniform> params: Params;

@group(0) @binding(0) var<storage, read> a: array<a_elem>; // [batch, M, K], or [batch, K, M]
@group(0) @binding(1) var<storage, read> b: array<b_elem>; // [batch, K, N], or [batch, N, K]
@group(0) @binding(2) var<storage, read> bias: array<bias_elem>; // [N]
@group(0) @binding(3) var<storage, read> residual: array<residual_elem>; // like out
@group(0) @binding(4) var<storage, read_write> out: array<out_elem>; // [batch, M, N]

// What a workgroup computes: a tile of one matrix of the batch, over a part of k.
struct Work {
    tile_m: u32,
    tile_n: u32,
    k_first: u32,
    k_end: u32,
    a: u32, // where A, B and out of this batch index start
    b: u32,
    out: u32,
}

// The work of group number `index`: tiles along n first, so that a tile of A stays in cache.
fn work_of(index: u32) -> Work {
    let tile_n = index % params.tiles_n;
    let tile_m = (index / params.tiles_n) % params.tiles_m;
    let z = index / (params.tiles_n * params.tiles_m);
    let inner = z % params.inner;
    let outer = z / params.inner;
    let k_first = outer * params.k_outer;
    return Work(
        tile_m,
        tile_n,
        k_first,
        min(params.k, k_first + params.k_chunk),
        params.a_start + outer * params.a_outer + inner * params.a_inner,
        params.b_start + outer * params.b_outer + inner * params.b_inner,
        params.out_start + outer * params.out_outer + inner * params.out_inner,
    );
}

// Writes the element of out at `index`, in column `column`, from its sum over k.
fn finish(sum: elem, index: u32, column: u32) {
    var v = sum * params.alpha;
    if BIAS {
        v += elem(bias[column]);
    }
    finish_biased(v, index);
}

fn put(index: u32, v: elem) {
    out[index] = out_elem(v);
}

// What follows the bias.
fn finish_biased(x: elem, index: u32) {
    save_pre(index, x);
    var v = activate(x, ACTIVATION);
    if SLOPE != ACT_NONE {
        v *= activate_slope(elem(residual[index]), SLOPE);
    } else if RESIDUAL {
        v += elem(residual[index]);
    }
    put(index, v);
}

// Writes the sum of a column of B. Where k is split it is the row after the last of the slice that starts at `start`.
fn finish_column_sum(sum: elem, start: u32, column: u32) {
    if SPLIT {
        out[start + params.m * params.out_row + column] = out_elem(sum);
    } else {
        save_column_sum(column, sum);
    }
}

@group(0) @binding(0) var<storage, read> slices: array<elem>; // [splits, M, N], or [splits, M + 1, N] where SUMS

// The second pass of a product with split k: out = epilogue(sum over slices), slices in order.
// Grid: one invocation an elem, 64 a workgroup, groups folded into y.
@compute @workgroup_size(64)
fn reduce(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
          @builtin(local_invocation_index) lane: u32) {
    let i = (group.y * groups.x + group.x) * 64u + lane;
    if i >= params.count {
        return;
    }
    var sum = slices[i];
    for (var s = 1u; s < params.splits; s++) {
        sum += slices[s * params.count + i];
    }
    let column = i % params.n;
    let row = i / params.n;
    if SUMS && row == params.m {
        save_column_sum(column, sum);
    } else {
        finish(sum, params.out_start + row * params.out_row + column, column);
    }
}

// out = 0, before a product that writes only a part of it. Grid as in `reduce`.
@compute @workgroup_size(64)
fn zero(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) lane: u32) {
    let i = (group.y * groups.x + group.x) * 64u + lane;
    if i < params.count {
        out[i] = out_elem(elem(0.0));
    }
}

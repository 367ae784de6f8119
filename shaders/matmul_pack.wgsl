// Copies a factor of a matrix product into tiles, so that matmul_subgroup.wgsl reads it in order and by vec4<f32>:
// out[z, t, k, w] = x[z][k, t * W + w], w being a row of A or a column of B. What lies beyond w's extent is zero.
//
// Grid: a workgroup of LANES invocations copies CHUNK k of one tile. groups: chunks fastest, then tiles, then z.
// Constants: LANES, W (divides by 4), CHUNK (divides by 4), ALONG: 0 x is read by scalars and any strides, 1 by
// vec4<f32> along w, 2 by vec4<f32> along k (then K divides by 4); alias x_elem, and x_wide,
// which is the same of f32.

// Starts and strides count x_elem.
struct Params {
    k: u32,
    w: u32, // extent of w, in scalars
    start: u32,
    k_stride: u32,
    w_stride: u32,
    outer: u32, // from one matrix to the next
    inner: u32,
    inner_count: u32,
    tiles: u32,
    chunks: u32,
    count: u32, // workgroups that have work
}

@group(1) @binding(0) var<uniform> params: Params;

@group(0) @binding(0) var<storage, read> x: array<x_elem>; // [batch, K, w] or [batch, w, K]
@group(0) @binding(1) var<storage, read_write> out: array<vec4<f32>>; // [batch, tiles, K, W]

@compute @workgroup_size(LANES)
fn pack(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) lane: u32) {
    let index = group.y * groups.x + group.x;
    if index >= params.count {
        return;
    }
    let chunk = index % params.chunks;
    let tile = (index / params.chunks) % params.tiles;
    let z = index / (params.chunks * params.tiles);
    let start = params.start + z / params.inner_count * params.outer + z % params.inner_count * params.inner;
    let out_start = (z * params.tiles + tile) * params.k * (W / 4u);
    let first = chunk * CHUNK;
    let end = min(first + CHUNK, params.k);

    if ALONG == 2u {
        // Four w by four k at a time.
        for (var e = lane; e < (end - first) / 4u * (W / 4u); e += LANES) {
            let k = first + e / (W / 4u) * 4u;
            let own = e % (W / 4u);
            let w = tile * W + own * 4u;
            var r: array<vec4<f32>, 4>;
            for (var c = 0u; c < 4u; c++) {
                r[c] = vec4<f32>(x_wide(x[start + min(w + c, params.w - 1u) * params.w_stride + k / 4u]));
                r[c] *= select(0.0, 1.0, w + c < params.w);
            }
            for (var c = 0u; c < 4u; c++) {
                out[out_start + (k + c) * (W / 4u) + own] = vec4(r[0][c], r[1][c], r[2][c], r[3][c]);
            }
        }
    } else {
        for (var e = lane; e < (end - first) * (W / 4u); e += LANES) {
            let k = first + e / (W / 4u);
            let own = e % (W / 4u);
            let w = tile * W + own * 4u;
            var v: vec4<f32>;
            if ALONG == 1u {
                v = vec4<f32>(x_wide(x[start + k * params.k_stride + min(w, params.w - 1u) / 4u]));
            } else {
                for (var c = 0u; c < 4u; c++) {
                    let at = start + k * params.k_stride + min(w + c, params.w - 1u) * params.w_stride;
                    v[c] = vec4<f32>(x_wide(x[at])).x;
                }
            }
            let inside = vec4(w) + vec4(0u, 1u, 2u, 3u) < vec4(params.w);
            out[out_start + k * (W / 4u) + own] = select(vec4(0.0), v, inside);
        }
    }
}

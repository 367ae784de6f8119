// Dropout, with or without a residual: out[i] = x[i] f(i), or residual[i] + x[i] f(i), where the factor f(i) is 0 or
// 1 / (1 - p), by the counter generator at (seed, site, i). The backward is the same with d_out for x.
//
// Grid: one invocation an elem (f32 or vec4<f32>), GROUP invocations a workgroup, groups folded into y.
// Constants: GROUP, RESIDUAL. Shared text: elem_*, dropout_*, random.

struct Params {
    count: u32, // of elem
    threshold: u32,
    scale: f32,
    site: u32,
}

@group(1) @binding(0) var<uniform> params: Params;

@group(0) @binding(0) var<storage, read> x: array<elem>; // [count]
@group(0) @binding(1) var<storage, read> residual: array<elem>; // [count], or unused
@group(0) @binding(2) var<storage, read> seed: array<u32>; // [2]
@group(0) @binding(3) var<storage, read_write> out: array<elem>; // [count]

@compute @workgroup_size(GROUP)
fn forward(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
           @builtin(local_invocation_index) lane: u32) {
    let i = (group.y * groups.x + group.x) * GROUP + lane;
    if i >= params.count {
        return;
    }
    let key = random_key(vec2<u32>(seed[0], seed[1]), params.site);
    let dropped = x[i] * dropout_elem(key, i, params.threshold, params.scale);
    if RESIDUAL {
        out[i] = residual[i] + dropped;
    } else {
        out[i] = dropped;
    }
}

// cache[b, offset + t, w] = rows[b, t, w] for the positions below Smax; the others are dropped. Bits are copied, so the
// elements may be floats or integers.
//
// Grid: one invocation an element (`elem`: u32, vec4<u32>, or f16, of which bits are kept too) of `rows`, GROUP invocations a workgroup, groups folded into y.
// Constants: GROUP; OFFSET, whether `offset` is given; alias elem.

struct Params {
    count: u32, // of elem in `rows`
    width: u32, // of elem: the row length W
    steps: u32, // T
    positions: u32, // Smax
}

@group(1) @binding(0) var<uniform> params: Params;

@group(0) @binding(0) var<storage, read_write> cache: array<elem>; // [B, Smax, W]
@group(0) @binding(1) var<storage, read> rows: array<elem>; // [B, T, W]
@group(0) @binding(2) var<storage, read> offset: array<u32>; // [1]; anything where OFFSET is false

@compute @workgroup_size(GROUP)
fn cache_write(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
               @builtin(local_invocation_index) lane: u32) {
    let i = (group.y * groups.x + group.x) * GROUP + lane;
    if i >= params.count {
        return;
    }
    let row = i / params.width;
    let t = row % params.steps;
    var first = 0u;
    if OFFSET {
        first = offset[0];
    }
    // Compared before it is added: the sum might wrap around.
    if first < params.positions && t < params.positions - first {
        let to = (row / params.steps) * params.positions + first + t;
        cache[to * params.width + i % params.width] = rows[i];
    }
}

// out[n] = sum over r of x[r, n].
//
// Two passes of the same kernel where there are many rows: the first sums `chunk` rows at a time into partial rows, the
// second sums those. The order is fixed by the shape.
// Grid: a workgroup of LANES invocations owns LANES * RUN elem columns of one chunk of rows, an invocation columns
// j * LANES + lane for j below RUN; columns vary fastest.
// Constants: LANES, RUN; lib/elem_vec4.wgsl or lib/elem_f32.wgsl.

struct Params {
    rows: u32,
    columns: u32, // in elem
    chunk: u32, // rows a group sums
    groups_n: u32, // groups that share a chunk
    count: u32, // groups that have work
}

@group(1) @binding(0) var<uniform> params: Params;

@group(0) @binding(0) var<storage, read> x: array<elem>; // [rows, columns]
@group(0) @binding(1) var<storage, read_write> out: array<elem>; // [chunks, columns]

@compute @workgroup_size(LANES)
fn forward(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
           @builtin(local_invocation_index) lane: u32) {
    let index = group.y * groups.x + group.x;
    if index >= params.count {
        return;
    }
    let column0 = (index % params.groups_n) * (LANES * RUN) + lane;
    let chunk = index / params.groups_n;
    let first = chunk * params.chunk;
    let end = min(first + params.chunk, params.rows);
    var sums: array<elem, RUN>;
    for (var r = first; r < end; r++) {
        for (var j = 0u; j < RUN; j++) {
            sums[j] += x[r * params.columns + min(column0 + j * LANES, params.columns - 1u)];
        }
    }
    for (var j = 0u; j < RUN; j++) {
        if column0 + j * LANES < params.columns {
            out[chunk * params.columns + column0 + j * LANES] = sums[j];
        }
    }
}

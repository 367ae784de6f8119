// out[n] = sum over r of x[r, n].
//
// Two passes of the same kernel where there are many rows: the first sums `chunk` rows at a time into partial rows, the
// second sums those. The order is fixed by the shape.
// Grid: a workgroup of LANES invocations owns LANES elem columns of one chunk of rows; columns vary fastest.
// Constants: LANES; lib/elem_vec4.wgsl or lib/elem_f32.wgsl.

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
    let column = (index % params.groups_n) * LANES + lane;
    let chunk = index / params.groups_n;
    if index >= params.count || column >= params.columns {
        return;
    }
    let first = chunk * params.chunk;
    let end = min(first + params.chunk, params.rows);
    var sum = elem(0.0);
    for (var r = first; r < end; r++) {
        sum += x[r * params.columns + column];
    }
    out[chunk * params.columns + column] = sum;
}

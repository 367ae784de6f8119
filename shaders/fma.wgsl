// Chains of multiply-adds in registers, to see how many of them a device does in a second:
//   out[i] = the sum of the CHAINS values x, each ROUNDS times x = a x + b, that begin as in[i] + 0, in[i] + 1, ..;
//   a = factors[0], b = factors[1]
// A chain waits for its own last result only, so that several of them fill the arithmetic units.
//
// Grid: one invocation a vec4, GROUP invocations a workgroup, groups folded into y.
// Constants: GROUP, CHAINS, ROUNDS.

struct Params {
    count: u32, // of vec4
}

@group(1) @binding(0) var<uniform> params: Params;

@group(0) @binding(0) var<storage, read> start: array<vec4<f32>>; // [count]
@group(0) @binding(1) var<storage, read> factors: array<f32>; // [2]
@group(0) @binding(2) var<storage, read_write> out: array<vec4<f32>>; // [count]

@compute @workgroup_size(GROUP)
fn forward(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
           @builtin(local_invocation_index) local: u32) {
    let i = (group.y * groups.x + group.x) * GROUP + local;
    if i >= params.count {
        return;
    }
    let a = factors[0];
    let b = vec4<f32>(factors[1]);
    var x: array<vec4<f32>, CHAINS>;
    for (var j = 0u; j < CHAINS; j++) {
        x[j] = start[i] + f32(j);
    }
    for (var round = 0u; round < ROUNDS; round++) {
        for (var j = 0u; j < CHAINS; j++) {
            x[j] = a * x[j] + b;
        }
    }
    var sum = x[0];
    for (var j = 1u; j < CHAINS; j++) {
        sum += x[j];
    }
    out[i] = sum;
}

// Element-wise operations: out[i] = f(a[i]) and out[i] = f(a[i], b[i]).
//
// Grid: one invocation an element (`elem`, f32 or vec4<f32>), GROUP invocations a workgroup, groups folded into y.
// Constants: GROUP, FUNCTION, ACTIVATION; aliases stored and stored_b, what is stored, and elem, the same as stored of f32.

struct Params {
    count: u32, // of elem
    factor: f32,
}

@group(1) @binding(0) var<uniform> params: Params;

@group(0) @binding(0) var<storage, read> a: array<stored>; // [count]

const SCALE = 0u; // a * factor
const ACTIVATE = 1u; // act(a)
@group(0) @binding(1) var<storage, read_write> unary_out: array<stored>; // [count]

@compute @workgroup_size(GROUP)
fn unary(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
         @builtin(local_invocation_index) lane: u32) {
    let i = (group.y * groups.x + group.x) * GROUP + lane;
    if i >= params.count {
        return;
    }
    if FUNCTION == SCALE {
        unary_out[i] = stored(elem(a[i]) * params.factor);
    } else {
        unary_out[i] = stored(activate(elem(a[i]), ACTIVATION));
    }
}

const ADD = 0u; // a + b
const ACTIVATE_BACKWARD = 1u; // a * act'(b)
const MULTIPLY = 2u; // a * b
const SCALE_BY = 3u; // a * b[0], b being f32[1]
@group(0) @binding(1) var<storage, read> b: array<stored_b>; // [count], or [1]
@group(0) @binding(2) var<storage, read_write> binary_out: array<stored>; // [count]

@compute @workgroup_size(GROUP)
fn binary(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
          @builtin(local_invocation_index) lane: u32) {
    let i = (group.y * groups.x + group.x) * GROUP + lane;
    if i >= params.count {
        return;
    }
    if FUNCTION == ADD {
        binary_out[i] = stored(elem(a[i]) + elem(b[i]));
    } else if FUNCTION == MULTIPLY {
        binary_out[i] = stored(elem(a[i]) * elem(b[i]));
    } else if FUNCTION == SCALE_BY {
        binary_out[i] = stored(elem(a[i]) * elem(b[0]));
    } else {
        binary_out[i] = stored(elem(a[i]) * activate_slope(elem(b[i]), ACTIVATION));
    }
}

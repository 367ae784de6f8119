// The optimiser, over flat pages of parameters, moments and gradients (floats; lengths are multiples of 64):
//   norm_partial  partials[k] = sum of squares of the k-th share of a page of gradients
//   norm_final    norm = scale sqrt(sum(partials)); factor = min(1, max_norm / (norm + 1e-6)), or 0 where norm is not finite
//   adam          g = grad scale factor (+ weight_decay p, if not DECOUPLED); m = b1 m + (1 - b1) g; v = b2 v + (1 - b2) g^2;
//                 p -= lr (m c1 / (sqrt(v c2) + eps) (+ weight_decay p, if DECOUPLED)); a factor of 0 changes nothing
// (Kingma and Ba, 2015, algorithm 1; Loshchilov and Hutter, 2019, algorithm 2). schedule = lr, c1 = 1 / (1 - b1^t),
// c2 = 1 / (1 - b2^t), scale.
//
// Grid: norm_partial one workgroup a partial; norm_final one workgroup; adam EACH vec4s an
// invocation, GROUP invocations a workgroup, groups folded into y.
// Constants: GROUP, WIDTH (= GROUP), EACH, DECOUPLED, CLIP, SCALED. Shared text: rows_*.

struct Params {
    count: u32, // of vec4, or of partials in norm_final
    max_norm: f32,
    beta1: f32,
    beta2: f32,
    one_minus_beta1: f32,
    one_minus_beta2: f32,
    eps: f32,
    weight_decay: f32,
    decay_start: u32, // weight decay applies to vec4s from decay_start to decay_end
    decay_end: u32,
    share: u32, // vec4s of a page for each partial
}

@group(1) @binding(0) var<uniform> params: Params;

@group(0) @binding(0) var<storage, read> page: array<vec4<f32>>; // [count]
@group(0) @binding(1) var<storage, read_write> partials: array<f32>; // one for each workgroup

@compute @workgroup_size(GROUP)
fn norm_partial(here: Place) {
    if !as_planned(here) {
        return;
    }
    let lane = here.local;
    let first = here.group.x * params.share;
    let end = min(first + params.share, params.count);
    var sum: array<vec4<f32>, EACH>;
    for (var j = 0u; j < EACH; j++) {
        sum[j] = vec4<f32>(0.0);
    }
    // Whole blocks of EACH * GROUP without a test, then the rest.
    let blocks = select(0u, (end - first) / (EACH * GROUP), end > first);
    for (var block = 0u; block < blocks; block++) {
        for (var j = 0u; j < EACH; j++) {
            let g = page[first + (block * EACH + j) * GROUP + lane];
            sum[j] += g * g;
        }
    }
    for (var i = first + blocks * EACH * GROUP + lane; i < end; i += GROUP) {
        let g = page[i];
        sum[0] += g * g;
    }
    var all = sum[0];
    for (var j = 1u; j < EACH; j++) {
        all += sum[j];
    }
    let total = row_sum((all.x + all.y) + (all.z + all.w), lane);
    if lane == 0u {
        partials[here.group.x] = total;
    }
}

@group(0) @binding(0) var<storage, read> shares: array<f32>; // [count]
@group(0) @binding(1) var<storage, read> scales: array<f32>; // [4], the schedule, if SCALED
@group(0) @binding(2) var<storage, read_write> norm_out: array<f32>; // [2]: norm, factor

// WGSL lets a compiler assume that no infinity or NaN occurs, so a comparison may be optimised away; the bits stay.
fn is_finite(v: f32) -> bool {
    return (bitcast<u32>(v) & 0x7f800000u) != 0x7f800000u;
}

@compute @workgroup_size(GROUP)
fn norm_final(here: Place) {
    if !as_planned(here) {
        return;
    }
    let lane = here.local;
    var sum = 0.0;
    for (var i = lane; i < params.count; i += GROUP) {
        sum += shares[i];
    }
    let total = row_sum(sum, lane);
    if lane == 0u {
        var norm = sqrt(total);
        if SCALED {
            norm *= abs(scales[3]);
        }
        var factor = 1.0;
        if CLIP {
            factor = min(1.0, params.max_norm / (norm + 1e-6));
        }
        norm_out[0] = norm;
        norm_out[1] = select(0.0, factor, is_finite(total) && is_finite(norm));
    }
}

@group(0) @binding(0) var<storage, read_write> p: array<vec4<f32>>; // [count]
@group(0) @binding(1) var<storage, read_write> m: array<vec4<f32>>; // [count]
@group(0) @binding(2) var<storage, read_write> v: array<vec4<f32>>; // [count]
@group(0) @binding(3) var<storage, read> grad: array<vec4<f32>>; // [count]
@group(0) @binding(4) var<storage, read> schedule: array<f32>; // [4]
@group(0) @binding(5) var<storage, read> norm: array<f32>; // [2]: norm, factor

struct Rates {
    lr: f32,
    c1: f32,
    c2: f32,
    scale: f32, // of the gradients, clip factor included
}

fn update(i: u32, rates: Rates) {
    let old = p[i];
    let decay = select(0.0, params.weight_decay, i >= params.decay_start && i < params.decay_end);
    var g = grad[i] * rates.scale;
    if !DECOUPLED {
        g += decay * old;
    }
    let new_m = params.beta1 * m[i] + params.one_minus_beta1 * g;
    let new_v = params.beta2 * v[i] + params.one_minus_beta2 * (g * g);
    m[i] = new_m;
    v[i] = new_v;
    var change = new_m * rates.c1 / (sqrt(new_v * rates.c2) + params.eps);
    if DECOUPLED {
        change += decay * old;
    }
    p[i] = old - rates.lr * change;
}

@compute @workgroup_size(GROUP)
fn adam(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) lane: u32) {
    let factor = norm[1];
    // Not by multiplying: 0 times infinity would reach the parameters.
    if factor == 0.0 {
        return;
    }
    let rates = Rates(schedule[0], schedule[1], schedule[2], schedule[3] * factor);
    let first = (group.y * groups.x + group.x) * GROUP * EACH;
    if first + GROUP * EACH <= params.count {
        for (var j = 0u; j < EACH; j++) {
            update(first + j * GROUP + lane, rates);
        }
    } else {
        for (var i = first + lane; i < params.count; i += GROUP) {
            update(i, rates);
        }
    }
}

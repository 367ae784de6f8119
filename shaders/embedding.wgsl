// Rows of a table, scaled, with positions and dropout:
//   out[b, t, c] = mask (scale table[ids[b, t], c] + positions[t + offset, c]),  mask 0 or 1 / (1 - p) by lib/random.wgsl
//   d_table[v, c] = scale sum over (b, t) with ids[b, t] = v of mask d_out[b, t, c]
//   d_positions[p, c] = sum over b of mask d_out[b, p, c] for p < T, else 0
//
// Grid: `forward` and `backward_positions`: one invocation an element (`elem`, f32 or vec4<f32>) of the result, GROUP
// invocations a workgroup, groups folded into y; `backward_table`: a workgroup of GROUP invocations for ROWS < GROUP rows of
// the table.
// Constants: GROUP, ROWS; POSITIONS, OFFSET, DROPOUT: which operands are given. Shared text: elem_*, dropout_*, random.

struct Params {
    rows: u32, // B T
    width: u32, // of elem: the row length C
    steps: u32, // T
    vocabulary: u32, // V
    positions: u32, // P
    scale: f32,
    dropout_site: u32,
    dropout_threshold: u32,
    dropout_scale: f32,
}

@group(1) @binding(0) var<uniform> params: Params;

@group(0) @binding(0) var<storage, read> ids: array<u32>; // [B, T]
@group(0) @binding(1) var<storage, read> seed: array<u32>; // [2]; anything without DROPOUT
@group(0) @binding(2) var<storage, read> table: array<elem>; // [V, C]
@group(0) @binding(3) var<storage, read> positions: array<elem>; // [P, C]; anything without POSITIONS
@group(0) @binding(4) var<storage, read> offset: array<u32>; // [1]; anything without OFFSET
@group(0) @binding(5) var<storage, read_write> out: array<elem>; // [B, T, C]

fn mask_key() -> vec2<u32> {
    return random_key(vec2<u32>(seed[0], seed[1]), params.dropout_site);
}

// v with dropout's factors for element i of elem.
fn masked(v: elem, key: vec2<u32>, i: u32) -> elem {
    return v * dropout_elem(key, i, params.dropout_threshold, params.dropout_scale);
}

@compute @workgroup_size(GROUP)
fn forward(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
           @builtin(local_invocation_index) lane: u32) {
    let i = (group.y * groups.x + group.x) * GROUP + lane;
    let row = i / params.width;
    if row >= params.rows {
        return;
    }
    let c = i % params.width;
    // An id or position that is too large must not be read.
    let id = min(ids[row], params.vocabulary - 1u);
    var v = params.scale * table[id * params.width + c];
    if POSITIONS {
        var p = row % params.steps;
        if OFFSET {
            p += min(offset[0], params.positions);
        }
        v += positions[min(p, params.positions - 1u) * params.width + c];
    }
    if DROPOUT {
        v = masked(v, mask_key(), i);
    }
    out[i] = v;
}

@group(0) @binding(2) var<storage, read> order: array<u32>; // [B T]: places in `ids`, sorted by id, then place
@group(0) @binding(3) var<storage, read> d_out: array<elem>; // [B, T, C]
@group(0) @binding(4) var<storage, read_write> d_table: array<elem>; // [V, C]

var<workgroup> starts: array<u32, GROUP>;

// The first place in `order` whose id is at least v.
fn lower_bound(v: u32) -> u32 {
    var low = 0u;
    var high = params.rows;
    while low < high {
        let middle = (low + high) / 2u;
        if min(ids[order[middle]], params.vocabulary - 1u) < v {
            low = middle + 1u;
        } else {
            high = middle;
        }
    }
    return low;
}

@compute @workgroup_size(GROUP)
fn backward_table(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
                  @builtin(local_invocation_index) lane: u32) {
    let first = (group.y * groups.x + group.x) * ROWS;
    if lane <= ROWS {
        starts[lane] = lower_bound(first + lane);
    }
    workgroupBarrier();
    var key = vec2<u32>(0u);
    if DROPOUT {
        key = mask_key();
    }
    for (var i = lane; i < ROWS * params.width; i += GROUP) {
        let v = i / params.width;
        let c = i % params.width;
        if first + v >= params.vocabulary {
            break;
        }
        let end = starts[v + 1u];
        var sum = elem(0.0);
        for (var n = starts[v]; n < end; n += 1u) {
            let source = order[n] * params.width + c;
            if DROPOUT {
                sum += masked(d_out[source], key, source);
            } else {
                sum += d_out[source];
            }
        }
        d_table[first * params.width + i] = params.scale * sum;
    }
}

@group(0) @binding(0) var<storage, read> d_rows: array<elem>; // [B, T, C]
@group(0) @binding(2) var<storage, read_write> d_positions: array<elem>; // [P, C]

@compute @workgroup_size(GROUP)
fn backward_positions(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
                      @builtin(local_invocation_index) lane: u32) {
    let i = (group.y * groups.x + group.x) * GROUP + lane;
    let p = i / params.width;
    if p >= params.positions {
        return;
    }
    var key = vec2<u32>(0u);
    if DROPOUT {
        key = mask_key();
    }
    var sum = elem(0.0);
    if p < params.steps {
        for (var source = i; source < params.rows * params.width; source += params.steps * params.width) {
            if DROPOUT {
                sum += masked(d_rows[source], key, source);
            } else {
                sum += d_rows[source];
            }
        }
    }
    d_positions[i] = sum;
}

// Rows of a table, scaled, with positions and dropout:
//   out[b, t, c] = mask (scale table[ids[b, t], c] + positions[t + offset, c]),  mask 0 or 1 / (1 - p) by lib/random.wgsl
//   d_table[v, c] = scale sum over (b, t) with ids[b, t] = v of mask d_out[b, t, c]
//   d_positions[p, c] = sum over b of mask d_out[b, p, c] for p < T, else 0
//
// Grid: LANES lanes a row of C, GROUP / LANES rows a workgroup, groups folded into y; a row is one of the result (`forward`,
// `backward_positions`). `backward_table`: ROWS rows of the table a workgroup, and `columns` elems of each; z has the others. Lanes and rows by division with constants:
// dividing by a parameter for each element costs more than the rest of the kernel on a software adapter.
// Constants: GROUP, LANES (powers of two), ROWS < GROUP; AHEAD, how many rows of a frequent id are on the way at a time,
// which does not change the order of the sum; POSITIONS, OFFSET, DROPOUT: which operands are given; alias stored, as elem but
// of what tables and result of `forward` are stored in. Shared text: elem_*, dropout_*, random.

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
    columns: u32, // of elem, that a workgroup of backward_table works on: a multiple of LANES
}

@group(1) @binding(0) var<uniform> params: Params;

@group(0) @binding(0) var<storage, read> ids: array<u32>; // [B, T]
@group(0) @binding(1) var<storage, read> seed: array<u32>; // [2]; anything without DROPOUT
@group(0) @binding(2) var<storage, read> table: array<stored>; // [V, C]
@group(0) @binding(3) var<storage, read> positions: array<stored>; // [P, C]; anything without POSITIONS
@group(0) @binding(4) var<storage, read> offset: array<u32>; // [1]; anything without OFFSET
@group(0) @binding(5) var<storage, read_write> out: array<stored>; // [B, T, C]

fn mask_key() -> vec2<u32> {
    return random_key(vec2<u32>(seed[0], seed[1]), params.dropout_site);
}

// v with dropout's factors for element i of elem.
fn masked(v: elem, key: vec2<u32>, i: u32) -> elem {
    return v * dropout_elem(key, i, params.dropout_threshold, params.dropout_scale);
}

const TEAMS = GROUP / LANES; // rows that a workgroup works on at a time

fn row_of(group: vec3<u32>, groups: vec3<u32>, local: u32) -> u32 {
    return (group.y * groups.x + group.x) * TEAMS + local / LANES;
}

@compute @workgroup_size(GROUP)
fn forward(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
           @builtin(local_invocation_index) local: u32) {
    let row = row_of(group, groups, local);
    if row >= params.rows {
        return;
    }
    // An id or position that is too large must not be read.
    let source = min(ids[row], params.vocabulary - 1u) * params.width;
    var place = 0u;
    if POSITIONS {
        var p = row % params.steps;
        if OFFSET {
            p += min(offset[0], params.positions);
        }
        place = min(p, params.positions - 1u) * params.width;
    }
    var key = vec2<u32>(0u);
    if DROPOUT {
        key = mask_key();
    }
    for (var c = local % LANES; c < params.width; c += LANES) {
        var v = params.scale * elem(table[source + c]);
        if POSITIONS {
            v += elem(positions[place + c]);
        }
        let i = row * params.width + c;
        if DROPOUT {
            v = masked(v, key, i);
        }
        out[i] = stored(v);
    }
}

@group(0) @binding(0) var<storage, read> d_out: array<elem>; // [B, T, C]
@group(0) @binding(2) var<storage, read> said: array<u32>; // [B, T], as `ids`
@group(0) @binding(3) var<storage, read> order: array<u32>; // [B T]: places in `said`, sorted by id, then place
@group(0) @binding(4) var<storage, read_write> d_table: array<elem>; // [V, C]

var<workgroup> starts: array<u32, GROUP>;

// The first place in `order` whose id is at least v.
fn lower_bound(v: u32) -> u32 {
    var low = 0u;
    var high = params.rows;
    while low < high {
        let middle = (low + high) / 2u;
        if min(said[order[middle]], params.vocabulary - 1u) < v {
            low = middle + 1u;
        } else {
            high = middle;
        }
    }
    return low;
}

@compute @workgroup_size(GROUP)
fn backward_table(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
                  @builtin(local_invocation_index) local: u32) {
    let first = (group.y * groups.x + group.x) * ROWS;
    if local <= ROWS {
        starts[local] = lower_bound(first + local);
    }
    workgroupBarrier();
    var key = vec2<u32>(0u);
    if DROPOUT {
        key = mask_key();
    }
    let left = group.z * params.columns;
    let right = min(left + params.columns, params.width);
    for (var v = local / LANES; v < ROWS && first + v < params.vocabulary; v += TEAMS) {
        let start = starts[v];
        let end = starts[v + 1u];
        let to = (first + v) * params.width;
        if start == end {
            for (var c = left + local % LANES; c < right; c += LANES) {
                d_table[to + c] = elem(0.0);
            }
            continue;
        }
        for (var c = left + local % LANES; c < right; c += LANES) {
            var sum = elem(0.0);
            var n = start;
            if AHEAD > 1u {
                for (; n + AHEAD <= end; n += AHEAD) {
                    var held: array<elem, AHEAD>;
                    for (var j = 0u; j < AHEAD; j += 1u) {
                        held[j] = d_row(order[n + j] * params.width + c, key);
                    }
                    for (var j = 0u; j < AHEAD; j += 1u) {
                        sum += held[j];
                    }
                }
            }
            for (; n < end; n += 1u) {
                sum += d_row(order[n] * params.width + c, key);
            }
            d_table[to + c] = params.scale * sum;
        }
    }
}

fn d_row(i: u32, key: vec2<u32>) -> elem {
    if DROPOUT {
        return masked(d_out[i], key, i);
    }
    return d_out[i];
}

@group(0) @binding(2) var<storage, read_write> d_positions: array<elem>; // [P, C]

@compute @workgroup_size(GROUP)
fn backward_positions(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
                      @builtin(local_invocation_index) local: u32) {
    let p = row_of(group, groups, local);
    if p >= params.positions {
        return;
    }
    var key = vec2<u32>(0u);
    if DROPOUT {
        key = mask_key();
    }
    for (var c = local % LANES; c < params.width; c += LANES) {
        var sum = elem(0.0);
        if p < params.steps {
            for (var row = p; row < params.rows; row += params.steps) {
                sum += d_row(row * params.width + c, key);
            }
        }
        d_positions[p * params.width + c] = sum;
    }
}

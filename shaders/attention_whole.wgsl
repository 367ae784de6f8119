// The gradients of attention where one workgroup of a (b, h) can own all keys, S <= ROWS: see attention.wgsl, which this
// continues. What it has of some queries is all that there is, so it writes d_q too. With attention_whole_apart.wgsl or
// attention_whole_joint.wgsl, which say where the gradients lie.
//
// Grid: a workgroup for each (b, h), folded into y. Constants: as attention.wgsl, IT = ceil(DC / NR).

// Of the queries c + j NC of the tile the elems r + i NR of a chunk, still without the scale.
alias Queries = array<array<elem, CT>, IT>;

fn of_queries(b: u32, h: u32, chunk: u32, lane: u32) -> Queries {
    workgroupBarrier();
    stage_a(OF_K, b, h, 0u, chunk, lane);
    workgroupBarrier();
    var sums: Queries;
    for (var i = 0u; i < IT; i++) {
        for (var j = 0u; j < CT; j++) {
            sums[i][j] = elem();
        }
    }
    for (var s = 0u; s < min(ROWS, params.s); s++) {
        for (var i = 0u; i < IT; i++) {
            let k = tile_a[s * STRIDE + min(lane / NC + i * NR, DC - 1u)];
            for (var j = 0u; j < CT; j++) {
                sums[i][j] += tile_p[s * P_STRIDE + lane % NC + j * NC] * k;
            }
        }
    }
    return sums;
}

@compute @workgroup_size(GROUP)
fn backward_whole(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
                  @builtin(local_invocation_index) lane: u32) {
    let at = place(group.y * groups.x + group.x, params.s);
    if !at.inside {
        return;
    }
    var sums_k = no_sums();
    var sums_v = no_sums();
    for (var t0 = 0u; t0 < params.t; t0 += COLS) {
        add_queries(at.b, at.h, 0u, t0, lane, &sums_k, &sums_v);
        for (var chunk = 0u; chunk < NCH; chunk++) {
            let sums = of_queries(at.b, at.h, chunk, lane);
            for (var n = 0u; n < IT * CT; n++) {
                let t = t0 + lane % NC + n % CT * NC;
                let within = lane / NC + n / CT * NR;
                let e = chunk * DC + within;
                if t < params.t && within < DC && e < DV {
                    put_q(q_index(at.b, t, at.h) + e, sums[n / CT][n % CT] * params.slope);
                }
            }
        }
    }
    for (var i = 0u; i < RT; i++) {
        let s = lane / NC + i * NR;
        for (var n = 0u; n < NCH * JT; n++) {
            let e = n / JT * DC + lane % NC + n % JT * NC;
            if s < params.s && e < DV {
                put_kv(k_index(at.b, s, at.h) + e, sums_k[i][n] * params.slope);
                put_kv(v_index(at.b, s, at.h) + e, sums_v[i][n]);
            }
        }
    }
}

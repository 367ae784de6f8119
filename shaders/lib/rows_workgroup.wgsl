// A row belongs to a workgroup (WIDTH = GROUP, a power of two): trees in workgroup memory, 8 * WIDTH bytes. Every
// invocation of the group must call these, in uniform control flow, with `lane` its local invocation index.

struct Place {
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
}

// Whether rows are shared out as the host has planned.
fn as_planned(here: Place) -> bool {
    return true;
}

var<workgroup> row_cells: array<vec2<f32>, WIDTH>;

fn row_sum2(v: vec2<f32>, lane: u32) -> vec2<f32> {
    workgroupBarrier(); // a slower invocation may still read the result of the call before
    row_cells[lane] = v;
    workgroupBarrier();
    for (var half = WIDTH / 2u; half > 0u; half /= 2u) {
        if lane < half {
            row_cells[lane] += row_cells[lane + half];
        }
        workgroupBarrier();
    }
    return row_cells[0];
}

fn row_sum(v: f32, lane: u32) -> f32 {
    return row_sum2(vec2<f32>(v, 0.0), lane).x;
}

fn row_max(v: f32, lane: u32) -> f32 {
    workgroupBarrier();
    row_cells[lane].x = v;
    workgroupBarrier();
    for (var half = WIDTH / 2u; half > 0u; half /= 2u) {
        if lane < half {
            row_cells[lane].x = max(row_cells[lane].x, row_cells[lane + half].x);
        }
        workgroupBarrier();
    }
    return row_cells[0].x;
}

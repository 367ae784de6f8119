// A row belongs to a workgroup that is one whole sub-group (WIDTH = GROUP = its size): reduced without barriers.

struct Place {
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
    @builtin(subgroup_size) lanes: u32,
}

// Whether rows are shared out as the host has planned: where a device runs with other sub-groups than it has told, nothing is
// written, which is seen, rather than a part of a sum.
fn as_planned(here: Place) -> bool {
    return here.lanes == WIDTH;
}

fn row_sum(v: f32, lane: u32) -> f32 {
    return subgroupAdd(v);
}

fn row_sum2(v: vec2<f32>, lane: u32) -> vec2<f32> {
    return subgroupAdd(v);
}

fn row_max(v: f32, lane: u32) -> f32 {
    return subgroupMax(v);
}

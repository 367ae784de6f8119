// A row belongs to a workgroup that is one whole sub-group (WIDTH = GROUP = its size): reduced without barriers.

fn row_sum(v: f32, lane: u32) -> f32 {
    return subgroupAdd(v);
}

fn row_sum2(v: vec2<f32>, lane: u32) -> vec2<f32> {
    return subgroupAdd(v);
}

fn row_max(v: f32, lane: u32) -> f32 {
    return subgroupMax(v);
}

// A row belongs to one invocation (WIDTH = 1): nothing to reduce.

fn row_sum(v: f32, lane: u32) -> f32 {
    return v;
}

fn row_sum2(v: vec2<f32>, lane: u32) -> vec2<f32> {
    return v;
}

fn row_max(v: f32, lane: u32) -> f32 {
    return v;
}

// Dropout of an elem of one float; needs random.wgsl and elem_f32.wgsl.

// The factor of elem `i`, its flat index.
fn dropout_elem(key: vec2<u32>, i: u32, threshold: u32, scale: f32) -> elem {
    return dropout_factor(key, i, threshold, scale);
}

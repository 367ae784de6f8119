// Dropout of an elem of four floats; needs random.wgsl and elem_vec4.wgsl.

// The factors of elem `i`: those of the flat indices 4 i .. 4 i + 3.
fn dropout_elem(key: vec2<u32>, i: u32, threshold: u32, scale: f32) -> elem {
    return elem(
        dropout_factor(key, 4u * i, threshold, scale),
        dropout_factor(key, 4u * i + 1u, threshold, scale),
        dropout_factor(key, 4u * i + 2u, threshold, scale),
        dropout_factor(key, 4u * i + 3u, threshold, scale),
    );
}

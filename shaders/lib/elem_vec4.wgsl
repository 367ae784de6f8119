// An element of a row is four neighbouring floats: rows whose length is a multiple of four.

alias elem = vec4<f32>;
const ELEM = 4u; // floats in an elem

fn elem_sum(v: elem) -> f32 {
    return (v.x + v.y) + (v.z + v.w);
}

fn elem_max(v: elem) -> f32 {
    return max(max(v.x, v.y), max(v.z, v.w));
}

// An element of a row is one float: rows of any length.

alias elem = f32;
const ELEM = 1u; // floats in an elem

fn elem_sum(v: elem) -> f32 {
    return v;
}

fn elem_max(v: elem) -> f32 {
    return v;
}

// The first component that is at least x; 0 where there is none.
fn elem_find(v: elem, x: f32) -> u32 {
    return 0u;
}

fn elem_get(v: elem, component: u32) -> f32 {
    return v;
}

// x in one component, 0 in the others.
fn elem_unit(x: f32, component: u32) -> elem {
    return x;
}

// `low` in each component whose bit is set.
fn elem_mask(v: elem, bits: u32, low: f32) -> elem {
    return select(v, low, (bits & 1u) != 0u);
}

// The first ELEM components.
fn elem_from(v: vec4<f32>) -> elem {
    return v.x;
}

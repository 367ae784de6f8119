// An element of a row is one float: rows of any length.

alias elem = f32;
const ELEM = 1u; // floats in an elem

fn elem_sum(v: elem) -> f32 {
    return v;
}

fn elem_max(v: elem) -> f32 {
    return v;
}

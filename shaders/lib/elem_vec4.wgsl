// An element of a row is four neighbouring floats: rows whose length is a multiple of four.

alias elem = vec4<f32>;
const ELEM = 4u; // floats in an elem

fn elem_sum(v: elem) -> f32 {
    return (v.x + v.y) + (v.z + v.w);
}

fn elem_max(v: elem) -> f32 {
    return max(max(v.x, v.y), max(v.z, v.w));
}

// The first component that is at least x; 0 where there is none.
fn elem_find(v: elem, x: f32) -> u32 {
    if v.x >= x {
        return 0u;
    }
    if v.y >= x {
        return 1u;
    }
    if v.z >= x {
        return 2u;
    }
    return select(0u, 3u, v.w >= x);
}

fn elem_get(v: elem, component: u32) -> f32 {
    return v[component];
}

// x in one component, 0 in the others.
fn elem_unit(x: f32, component: u32) -> elem {
    return select(elem(0.0), elem(x), vec4<u32>(component) == vec4<u32>(0u, 1u, 2u, 3u));
}

// `low` in each component whose bit is set.
fn elem_mask(v: elem, bits: u32, low: f32) -> elem {
    return select(v, elem(low), (vec4<u32>(bits) & vec4<u32>(1u, 2u, 4u, 8u)) != vec4<u32>(0u));
}

// The first ELEM components.
fn elem_from(v: vec4<f32>) -> elem {
    return v;
}

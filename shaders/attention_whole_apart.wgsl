// Where q is a tensor, and k and v are columns of another.

@group(0) @binding(7) var<storage, read_write> apart_kv: array<elem>; // as k and v in one

fn put_q(i: u32, x: elem) {
    d_q[i] = x;
}

fn put_kv(i: u32, x: elem) {
    apart_kv[i] = x;
}

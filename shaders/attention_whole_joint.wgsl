// Where q, k and v are columns of one tensor.

fn put_q(i: u32, x: elem) {
    d_kv[i] = x;
}

fn put_kv(i: u32, x: elem) {
    d_kv[i] = x;
}

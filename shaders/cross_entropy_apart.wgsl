// Appended to cross_entropy.wgsl where the gradient has memory of its own, or is not wanted.

@group(0) @binding(0) var<storage, read> logits: array<elem>; // [rows, SIZE]
@group(0) @binding(4) var<storage, read_write> d_logits: array<elem>; // [rows, SIZE]

fn load_gradient(i: u32) -> elem {
    return d_logits[i];
}

fn store_gradient(i: u32, v: elem) {
    d_logits[i] = v;
}

// Appended to cross_entropy.wgsl where nothing else reads the logits: the gradient takes their place.

@group(0) @binding(0) var<storage, read_write> logits: array<elem>; // [rows, SIZE]; then their gradient

fn load_gradient(i: u32) -> elem {
    return logits[i];
}

fn store_gradient(i: u32, v: elem) {
    logits[i] = v;
}

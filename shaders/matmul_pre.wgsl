// Appended to matmul.wgsl where the value before the activation is the second output.

@group(0) @binding(5) var<storage, read_write> pre: array<out_elem>; // like out

fn save_pre(index: u32, v: elem) {
    pre[index] = out_elem(v);
}

fn save_column_sum(column: u32, v: elem) {
}

// Appended to matmul.wgsl where the sums of the columns of B are the second output.

@group(0) @binding(5) var<storage, read_write> column_sums: array<elem>; // [N]

fn save_pre(index: u32, v: elem) {
}

fn save_column_sum(column: u32, v: elem) {
    column_sums[column] = v;
}

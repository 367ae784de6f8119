// Appended to matmul.wgsl where there is no second output.

fn save_pre(index: u32, v: elem) {
}

fn save_column_sum(column: u32, v: elem) {
}

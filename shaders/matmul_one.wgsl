// Appended to matmul.wgsl where the value before the activation is not wanted.

fn save_pre(index: u32, v: elem) {
}

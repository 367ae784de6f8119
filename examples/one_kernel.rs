//! One fused attention without a model around it, forward and backward.
//!
//! ```sh
//! cargo run --release --example one_kernel
//! ```

use wgformer::Result;
use wgformer::kernels::{Attention, Computation};

fn main() -> Result<()> {
    let gpu = wgformer::gpu::request(&Default::default())?;
    let (heads, head_width, length) = (4, 16, 50);
    let settings =
        Attention { heads, head_width, target: length, source: length, causal: true, ..Default::default() };

    let number = |i: usize| ((i * 37 % 101) as f32 - 50.0) / 50.0;
    let q: Vec<f32> = (0..length * heads * head_width).map(number).collect();
    let k: Vec<f32> = q.iter().rev().copied().collect();
    let v: Vec<f32> = q.iter().map(|x| x * x - 0.5).collect();
    let out = settings.forward(&gpu)?.run(&[("q", &q), ("k", &k), ("v", &v)])?.remove(0);

    // The first query sees the first key only, so its output is the first value.
    let width = heads * head_width;
    let first = out[..width].iter().zip(&v).map(|(o, v)| (o - v).abs()).fold(0.0, f32::max);
    // The gradients by the values of the sum of all outputs: each output is an average, so they add up to their number.
    let ones = vec![1.0; out.len()];
    let gradients = settings.backward(&gpu)?.run(&[("q", &q), ("k", &k), ("v", &v), ("d_out", &ones)])?;
    let sum: f32 = gradients[2].iter().sum();
    let off = (sum / out.len() as f32 - 1.0).abs();
    println!("attention on {}: off by {first:.1e} and {off:.1e}", gpu.description());
    assert!(first < 1e-5 && off < 1e-5, "the kernel is wrong");
    Ok(())
}

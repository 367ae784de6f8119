//! Awaits runs and results under tokio, on one thread that does something else meanwhile.
//!
//! ```sh
//! cargo run --release --example tokio_host
//! ```

use std::sync::atomic::{AtomicU64, Ordering};
use wgformer::gpu::{Gpu, Memory, request_async};
use wgformer::graph::Graph;
use wgformer::ops::matmul::{MatMul, matmul};
use wgformer::plan::Plan;
use wgformer::{HostTensor, Result, TensorType};

const N: usize = 512;

static TICKS: AtomicU64 = AtomicU64::new(0);

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let gpu = request_async(&Default::default()).await?;
    let mut graph = Graph::new();
    let ty = TensorType::f32([N, N]);
    let (a, b) = (graph.input("a", ty.clone()), graph.input("b", ty));
    let product = matmul(&mut graph, a, b, MatMul::default())?;
    let mut executor = gpu.executor(Plan::new(&graph, &[product], gpu.profile())?, &Memory::new(&gpu))?;
    executor.write(a, &HostTensor::f32([N, N], vec![0.5; N * N]))?;
    executor.write(b, &HostTensor::f32([N, N], vec![2.0; N * N]))?;

    // wgpu tells of finished work only to whoever polls the device: a task beside the others.
    let poller = tokio::spawn(poll(gpu.clone()));
    for _ in 0..3 {
        executor.run_async().await?;
    }
    let found = executor.read_async(product)?.await?;
    poller.abort();
    assert!(found.as_f32("product")?.iter().all(|&v| v == N as f32));
    println!("{}: 3 products awaited, {} other turns meanwhile", gpu.name(), TICKS.load(Ordering::Relaxed));
    Ok(())
}

/// A host that has nothing else to do would rather wait on a thread of its own: `spawn_blocking(move || gpu.wait())`.
async fn poll(gpu: Gpu) -> Result<()> {
    loop {
        gpu.poll()?;
        TICKS.fetch_add(1, Ordering::Relaxed);
        tokio::task::yield_now().await;
    }
}

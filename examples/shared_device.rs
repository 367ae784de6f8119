//! A host with a device and buffers of its own: it computes queries, keys and values in a pass of its own, our attention
//! reads them where they are, and another pass of the host goes on with the result. One encoder, one submission, no copies.
//!
//! ```sh
//! cargo run --release --example shared_device
//! ```

use wgformer::TensorType;
use wgformer::gpu::{self, Gpu, Memory};
use wgformer::graph::Graph;
use wgformer::ops::attention::{Attention, AttentionInputs, Packing, attention};
use wgformer::plan::Plan;
use wgformer::wgpu;

const BATCH: usize = 2;
const LENGTH: usize = 48;
const WIDTH: usize = 64;

/// Rows of queries, keys and values. The values of all rows are the same, so their mean by whatever weights is, too.
const BEFORE: &str = "
@group(0) @binding(0) var<storage, read_write> x: array<f32>;  // [BATCH, LENGTH, 3 WIDTH]
@compute @workgroup_size(64) fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    if id.x < arrayLength(&x) {
        let column = id.x % 192u;
        x[id.x] = select(sin(f32(id.x)), f32(column - 128u), column >= 128u);
    }
}";

/// Goes on with the result.
const AFTER: &str = "
@group(0) @binding(0) var<storage, read_write> x: array<f32>;  // [BATCH, LENGTH, WIDTH]
@compute @workgroup_size(64) fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    if id.x < arrayLength(&x) { x[id.x] = 2.0 * x[id.x] + 1.0; }
}";

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // The host chooses an adapter, and makes a plan and a device on it that has just what both of them need.
    let instance = wgpu::Instance::new(wgpu::InstanceDescriptor::new_without_display_handle());
    let adapter = pollster::block_on(instance.request_adapter(&Default::default()))?;
    let mut graph = Graph::new();
    let packed = graph.input("qkv", TensorType::f32([BATCH, LENGTH, 3 * WIDTH]));
    let out = attention(&mut graph, Attention::new(4), AttentionInputs::new(Packing::Qkv(packed)))?;
    let plan = Plan::new(&graph, &[out], &gpu::profile_of(&adapter))?;
    let (device, queue) = pollster::block_on(adapter.request_device(&wgpu::DeviceDescriptor {
        required_features: gpu::required_features(&adapter),
        required_limits: gpu::required_limits(&adapter, &plan)?,
        ..Default::default()
    }))?;

    // Its buffers become the input and the output of the plan.
    let buffer = |floats: usize, usage| {
        let size = 4 * floats as u64;
        device.create_buffer(&wgpu::BufferDescriptor { label: None, size, usage, mapped_at_creation: false })
    };
    let rows = buffer(BATCH * LENGTH * 3 * WIDTH, wgpu::BufferUsages::STORAGE);
    let result = buffer(BATCH * LENGTH * WIDTH, wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_SRC);
    let gpu = Gpu::new(device.clone(), queue.clone(), adapter.get_info())?;
    let mut executor = gpu.executor(plan, &Memory::new(&gpu))?;
    executor.bind_input(packed, rows.slice(..))?;
    executor.bind_output(out, result.slice(..))?;

    let mut encoder = device.create_command_encoder(&Default::default());
    record(&device, &mut encoder, BEFORE, &rows);
    executor.encode(&mut encoder)?;
    record(&device, &mut encoder, AFTER, &result);
    queue.submit([encoder.finish()]);

    // What the last submission left in the output.
    let found = executor.read(out)?;
    let worst = found.as_f32("result")?.iter().enumerate().map(|(i, &v)| {
        let want = 2.0 * (i % WIDTH) as f32 + 1.0;
        (v - want).abs() / want
    });
    let worst = worst.fold(0.0, f32::max);
    assert!(worst < 1e-5, "the result is wrong by {worst:e}");
    println!("{}: {BATCH} x {LENGTH} rows between two passes of the host, right to {worst:.0e}", gpu.name());
    Ok(())
}

/// A pass of the host over a whole buffer.
fn record(device: &wgpu::Device, encoder: &mut wgpu::CommandEncoder, wgsl: &str, buffer: &wgpu::Buffer) {
    let source = wgpu::ShaderSource::Wgsl(wgsl.into());
    let module = device.create_shader_module(wgpu::ShaderModuleDescriptor { label: None, source });
    let pipeline = device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
        label: None,
        layout: None,
        module: &module,
        entry_point: Some("main"),
        compilation_options: Default::default(),
        cache: None,
    });
    let group = device.create_bind_group(&wgpu::BindGroupDescriptor {
        label: None,
        layout: &pipeline.get_bind_group_layout(0),
        entries: &[wgpu::BindGroupEntry { binding: 0, resource: buffer.as_entire_binding() }],
    });
    let mut pass = encoder.begin_compute_pass(&Default::default());
    pass.set_pipeline(&pipeline);
    pass.set_bind_group(0, &group, &[]);
    pass.dispatch_workgroups((buffer.size() as u32 / 4).div_ceil(64), 1, 1);
}

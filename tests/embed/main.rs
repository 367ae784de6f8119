//! A host program with a device of its own: its encoders, its buffers, its waiting, and what becomes of us when the device
//! goes, has no room or can do little.

mod devices;
mod limits;
mod memory;
mod sharing;
mod waiting;

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;
use wgformer::gpu::{self, Executor, Fetch, Gpu, Memory, Request, request};
use wgformer::graph::{Derived, Graph, ValueId};
use wgformer::infer::Decoder;
use wgformer::nn::{BatchShape, Objective, Optimizer, Transformer, TransformerConfig};
use wgformer::ops::attention::{Attention, AttentionInputs, Packing, attention};
use wgformer::ops::matmul::MatMul;
use wgformer::ops::optimizer::AdamSettings;
use wgformer::ops::{FAMILIES, elementwise, layout, matmul};
use wgformer::plan::Plan;
use wgformer::text::Batch;
use wgformer::train::{Decay, Schedule, Trainer, TrainerSettings};
use wgformer::{DeviceProfile, Error, ErrorKind, HostTensor, TensorType, wgpu};

// ---- The host ----

/// The adapter that `request` takes, found by the host itself.
fn adapter_with(thresholds: wgpu::MemoryBudgetThresholds) -> wgpu::Adapter {
    let name = gpu::adapters(None).first().expect("an adapter").name.clone();
    let mut descriptor = wgpu::InstanceDescriptor::new_without_display_handle();
    descriptor.memory_budget_thresholds = thresholds;
    let instance = wgpu::Instance::new(descriptor);
    let native = wgpu::Backends::VULKAN | wgpu::Backends::METAL | wgpu::Backends::DX12;
    let all = pollster::block_on(instance.enumerate_adapters(native));
    all.into_iter().find(|a| a.get_info().name == name).expect("the adapter that requests find")
}

fn adapter() -> wgpu::Adapter {
    adapter_with(Default::default())
}

fn device(
    adapter: &wgpu::Adapter,
    features: wgpu::Features,
    limits: wgpu::Limits,
) -> (wgpu::Device, wgpu::Queue) {
    let descriptor =
        wgpu::DeviceDescriptor { required_features: features, required_limits: limits, ..Default::default() };
    pollster::block_on(adapter.request_device(&descriptor)).expect("a device")
}

fn gpu_on(adapter: &wgpu::Adapter, features: wgpu::Features, limits: wgpu::Limits) -> Gpu {
    let (device, queue) = device(adapter, features, limits);
    Gpu::new(device, queue, adapter.get_info()).expect("a device of the host's")
}

/// A device of the host's own, with all that is of use.
fn hosts() -> Gpu {
    let adapter = adapter();
    gpu_on(&adapter, gpu::required_features(&adapter), adapter.limits())
}

fn own() -> Gpu {
    request(&Request::default()).expect("an adapter")
}

/// The host's own work: x = 2 x + 1, a pass over a whole buffer.
struct Pass {
    pipeline: wgpu::ComputePipeline,
}

impl Pass {
    fn new(device: &wgpu::Device) -> Pass {
        let source = "
            @group(0) @binding(0) var<storage, read_write> x: array<f32>;
            @compute @workgroup_size(64) fn main(@builtin(global_invocation_id) id: vec3<u32>) {
                if id.x < arrayLength(&x) { x[id.x] = 2.0 * x[id.x] + 1.0; }
            }";
        let module = device.create_shader_module(wgpu::ShaderModuleDescriptor {
            label: None,
            source: wgpu::ShaderSource::Wgsl(source.into()),
        });
        let pipeline = device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
            label: None,
            layout: None,
            module: &module,
            entry_point: Some("main"),
            compilation_options: Default::default(),
            cache: None,
        });
        Pass { pipeline }
    }

    fn record(&self, device: &wgpu::Device, encoder: &mut wgpu::CommandEncoder, buffer: &wgpu::Buffer) {
        let group = device.create_bind_group(&wgpu::BindGroupDescriptor {
            label: None,
            layout: &self.pipeline.get_bind_group_layout(0),
            entries: &[wgpu::BindGroupEntry { binding: 0, resource: buffer.as_entire_binding() }],
        });
        let mut pass = encoder.begin_compute_pass(&Default::default());
        pass.set_pipeline(&self.pipeline);
        pass.set_bind_group(0, &group, &[]);
        pass.dispatch_workgroups((buffer.size() as u32 / 4).div_ceil(64), 1, 1);
    }
}

const ALL: wgpu::BufferUsages =
    wgpu::BufferUsages::STORAGE.union(wgpu::BufferUsages::COPY_SRC).union(wgpu::BufferUsages::COPY_DST);

fn buffer(gpu: &Gpu, floats: usize, usage: wgpu::BufferUsages) -> wgpu::Buffer {
    let size = 4 * floats as u64;
    gpu.device().create_buffer(&wgpu::BufferDescriptor {
        label: None,
        size,
        usage,
        mapped_at_creation: false,
    })
}

fn filled(gpu: &Gpu, values: &[f32]) -> wgpu::Buffer {
    let buffer = buffer(gpu, values.len(), ALL);
    gpu.queue().write_buffer(&buffer, 0, bytemuck::cast_slice(values));
    buffer
}

/// The floats of the host's buffer, read by the host.
fn contents(gpu: &Gpu, from: &wgpu::Buffer) -> Vec<f32> {
    let copy =
        buffer(gpu, from.size() as usize / 4, wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST);
    let mut encoder = gpu.device().create_command_encoder(&Default::default());
    encoder.copy_buffer_to_buffer(from, 0, &copy, 0, from.size());
    gpu.queue().submit([encoder.finish()]);
    copy.map_async(wgpu::MapMode::Read, .., |mapped| mapped.expect("a mapping"));
    gpu.wait().unwrap();
    bytemuck::pod_collect_to_vec(&copy.get_mapped_range(..).unwrap())
}

/// Polls the device as a host's loop would, until the future is there.
fn drive<F: Future>(gpu: &Gpu, future: F) -> F::Output {
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                // Of a lost device the futures tell.
                let _ = gpu.poll();
                std::thread::sleep(Duration::from_micros(200));
            }
        });
        let output = pollster::block_on(future);
        done.store(true, Ordering::Relaxed);
        output
    })
}

// ---- Work ----

fn floats(n: usize) -> HostTensor {
    HostTensor::f32([n], (0..n).map(|i| i as f32 * 0.5 - 3.0).collect())
}

fn values(tensor: &HostTensor) -> Vec<f32> {
    tensor.as_f32("a tensor").unwrap().to_vec()
}

/// y = (2 x) + b, x an input, b a state.
fn small(n: usize) -> (Graph, ValueId, ValueId) {
    let mut g = Graph::new();
    let x = g.input("x", TensorType::f32([n]));
    let b = g.state("b", TensorType::f32([n]));
    let twice = elementwise::scale(&mut g, x, 2.0).unwrap();
    let y = elementwise::add(&mut g, twice, b).unwrap();
    (g, x, y)
}

/// y = x + 2 x: one dispatch reads x and writes y.
fn reading_twice(n: usize) -> (Graph, ValueId, ValueId) {
    let mut g = Graph::new();
    let x = g.input("x", TensorType::f32([n]));
    let twice = elementwise::scale(&mut g, x, 2.0).unwrap();
    let y = elementwise::add(&mut g, x, twice).unwrap();
    (g, x, y)
}

fn executor(gpu: &Gpu, memory: &Memory, graph: &Graph, outputs: &[ValueId]) -> Executor {
    gpu.executor(Plan::new(graph, outputs, gpu.profile()).unwrap(), memory).unwrap()
}

/// A written plan of so many floats, ready to run.
fn ready(gpu: &Gpu, n: usize) -> (Executor, ValueId) {
    let (g, x, y) = small(n);
    let mut e = executor(gpu, &Memory::new(gpu), &g, &[y]);
    e.write(x, &floats(n)).unwrap();
    (e, y)
}

/// A plan that takes its time, written.
fn slow(gpu: &Gpu) -> (Executor, ValueId) {
    let mut g = Graph::new();
    let (a, b) = (g.input("a", TensorType::f32([256, 256])), g.input("b", TensorType::f32([256, 256])));
    let product = matmul::matmul(&mut g, a, b, MatMul::default()).unwrap();
    let mut e = executor(gpu, &Memory::new(gpu), &g, &[product]);
    let ones = HostTensor::f32([256, 256], vec![1.0; 256 * 256]);
    e.write(a, &ones).unwrap();
    e.write(b, &ones).unwrap();
    (e, product)
}

fn doubled(n: usize) -> Vec<f32> {
    values(&floats(n)).iter().map(|x| 2.0 * x).collect()
}

/// The least model with every part: on the slowest software adapter a step takes 0.15 s.
fn model() -> Transformer {
    let config = TransformerConfig {
        source_vocabulary: 12,
        target_vocabulary: 12,
        width: 32,
        heads: 2,
        feed_forward: 48,
        encoder_layers: 1,
        decoder_layers: 1,
        max_source: 8,
        max_target: 8,
        ..Default::default()
    };
    Transformer::new(config).unwrap()
}

fn trainer(gpu: &Gpu) -> Trainer {
    let settings = TrainerSettings {
        seed: 7,
        schedule: Schedule { decay: Decay::Constant, rate: 1e-3, warmup: 1, steps: 9, width: 32 },
        adam: AdamSettings::transformer(),
        clip_norm: Some(1.0),
        ..Default::default()
    };
    Trainer::new(gpu, model(), settings).unwrap()
}

/// A batch of 4 rows of 8 and 8; another one for each step.
fn batch(step: u32) -> Batch {
    let (rows, length) = (4, 8);
    let ids: Vec<u32> = (0..rows * length).map(|i| 4 + (7 * i + 3 * step) % 8).collect();
    let size = |n: u32| n as usize;
    Batch {
        shape: BatchShape { rows: size(rows), source_len: size(length), target_len: size(length) },
        source: ids.clone(),
        source_lengths: vec![length; size(rows)],
        decoder_input: ids.iter().map(|i| i ^ 1).collect(),
        targets: ids,
        target_lengths: vec![length; size(rows)],
        tokens: size(rows * length),
        indices: (0..size(rows)).collect(),
    }
}

fn train(trainer: &mut Trainer, steps: std::ops::Range<u32>) {
    for step in steps {
        trainer.step(&batch(step)).unwrap().wait().unwrap();
    }
}

type State = Vec<(String, HostTensor)>;

fn is_lost<T: std::fmt::Debug>(result: Result<T, Error>) {
    let error = result.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::DeviceLost, "{error}");
}

// ---- Threads ----

#[test]
fn what_crosses_threads() {
    fn anywhere<T: Send + Sync>() {}
    fn future<T: Future + Send + Unpin + 'static>() {}
    anywhere::<(Gpu, Memory, Executor, Fetch, Plan, Graph, Trainer, Decoder, Error)>();
    future::<Fetch>();
    future::<gpu::Running>();
    future::<gpu::Read>();
}

//! A host program with a device of its own: its encoders, its buffers, its waiting, and what becomes of us when the device
//! goes, has no room or can do little.

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

// ---- One encoder, one set of buffers ----

#[test]
fn between_two_passes_of_the_host() {
    let gpu = hosts();
    let host = Pass::new(gpu.device());
    let n = 100;
    let (g, x, y) = small(n);
    let memory = Memory::new(&gpu);
    memory.write("b", &HostTensor::f32([n], vec![100.0; n])).unwrap();
    let mut e = executor(&gpu, &memory, &g, &[y]);
    // Both are parts of larger buffers, from byte 256 on.
    let (before, after) = (filled(&gpu, &vec![3.0; 64 + n]), filled(&gpu, &vec![-1.0; 64 + n + 28]));
    e.bind_input(x, before.slice(256..)).unwrap();
    e.bind_output(y, after.slice(256..)).unwrap();
    let allocated = gpu.allocations();
    for round in 0..3 {
        gpu.queue().write_buffer(&before, 0, bytemuck::cast_slice(&vec![3.0 + round as f32; 64 + n]));
        gpu.queue().write_buffer(&after, 0, bytemuck::cast_slice(&vec![-1.0f32; 64 + n + 28]));
        let mut encoder = gpu.device().create_command_encoder(&Default::default());
        host.record(gpu.device(), &mut encoder, &before);
        e.encode(&mut encoder).unwrap();
        host.record(gpu.device(), &mut encoder, &after);
        gpu.queue().submit([encoder.finish()]);
        // 2 (2 (2 x + 1) + 100) + 1, and what is no output has seen the host's passes alone.
        let want = 2.0 * (2.0 * (2.0 * (3.0 + round as f32) + 1.0) + 100.0) + 1.0;
        let found = contents(&gpu, &after);
        assert!(found[..64].iter().chain(&found[64 + n..]).all(|&v| v == -1.0), "{found:?}");
        assert!(found[64..64 + n].iter().all(|&v| v == want), "{want}: {found:?}");
        assert!(contents(&gpu, &before).iter().all(|&v| v == 2.0 * (3.0 + round as f32) + 1.0));
    }
    assert_eq!(gpu.allocations(), allocated, "nothing was made for it");
}

#[test]
fn outputs_are_read_after_the_hosts_submission() {
    let gpu = hosts();
    let (mut e, y) = ready(&gpu, 50);
    let mut encoder = gpu.device().create_command_encoder(&Default::default());
    e.encode(&mut encoder).unwrap();
    assert_eq!(values(&e.read(y).unwrap()), vec![0.0; 50], "nothing is submitted");
    gpu.queue().submit([encoder.finish()]);
    assert_eq!(values(&e.read(y).unwrap()), doubled(50));
    assert_eq!(values(&drive(&gpu, e.read_async(y).unwrap()).unwrap()), doubled(50));
    drive(&gpu, gpu.submitted()).unwrap();
}

#[test]
fn attention_in_the_hosts_buffers_has_the_bits_of_ours() {
    let gpu = hosts();
    let (rows, width) = (24, 32);
    let mut g = Graph::new();
    let packed = g.input("qkv", TensorType::f32([2, rows / 2, 3 * width]));
    let out = attention(&mut g, Attention::new(4), AttentionInputs::new(Packing::Qkv(packed))).unwrap();
    let data: Vec<f32> = (0..rows * 3 * width).map(|i| ((i * 37) % 101) as f32 / 50.0 - 1.0).collect();
    let mut ours = executor(&gpu, &Memory::new(&gpu), &g, &[out]);
    ours.write(packed, &HostTensor::f32([2, rows / 2, 3 * width], data.clone())).unwrap();
    ours.run().unwrap();
    let mut theirs = executor(&gpu, &Memory::new(&gpu), &g, &[out]);
    let (from, to) = (filled(&gpu, &data), buffer(&gpu, rows * width, ALL));
    theirs.bind_input(packed, from.slice(..)).unwrap();
    theirs.bind_output(out, to.slice(..)).unwrap();
    theirs.run().unwrap();
    let want = values(&ours.read(out).unwrap());
    assert!(want.iter().any(|&v| v != 0.0));
    assert_eq!(contents(&gpu, &to), want);
    // What is bound is also what is fetched, followed and kept apart from what is bound next.
    assert_eq!(values(&theirs.run_and_fetch().unwrap().wait().unwrap()[0]), want);
    assert!(theirs.verify(&g).unwrap().troubles.is_empty());
    let next = buffer(&gpu, rows * width, ALL);
    theirs.bind_output(out, next.slice(..)).unwrap();
    gpu.queue().write_buffer(&from, 0, bytemuck::cast_slice(&vec![0.0f32; data.len()]));
    theirs.run().unwrap();
    assert_eq!(contents(&gpu, &next), vec![0.0; rows * width]);
    assert_eq!(contents(&gpu, &to), want);
}

#[test]
fn writing_goes_into_the_hosts_buffer() {
    let gpu = hosts();
    let (g, x, y) = small(10);
    let mut e = executor(&gpu, &Memory::new(&gpu), &g, &[y]);
    let from = filled(&gpu, &[0.0; 10]);
    e.bind_input(x, from.slice(..)).unwrap();
    e.write(x, &floats(10)).unwrap();
    e.run().unwrap();
    assert_eq!(contents(&gpu, &from), values(&floats(10)));
    assert_eq!(values(&e.read(y).unwrap()), doubled(10));
}

#[test]
fn states_live_in_the_hosts_buffer() {
    let gpu = hosts();
    let memory = Memory::new(&gpu);
    let kept = filled(&gpu, &(0..64 + 128).map(|i| i as f32).collect::<Vec<_>>());
    memory.adopt("page", TensorType::f32([128]), kept.slice(256..)).unwrap();
    let mut g = Graph::new();
    let x = g.input("x", TensorType::f32([64]));
    let page = g.state("page", TensorType::f32([128]));
    let view = g.view("view", page, 64, TensorType::f32([64])).unwrap();
    // Two dispatches, since none reads and writes one buffer.
    let half = elementwise::scale(&mut g, view, 0.5).unwrap();
    let sum = elementwise::add(&mut g, half, x).unwrap();
    layout::pack_into(&mut g, page, &[sum], &[0]).unwrap();
    let mut e = executor(&gpu, &memory, &g, &[sum]);
    e.write(x, &HostTensor::f32([64], vec![1000.0; 64])).unwrap();
    e.run().unwrap();
    let after = |i: u8| if i < 64 { 1064.0 + 0.5 * f32::from(i) } else { 64.0 + f32::from(i) };
    let page: Vec<f32> = (0..128).map(after).collect();
    assert_eq!(contents(&gpu, &kept)[64..], page);
    assert_eq!(values(&memory.read("page").unwrap()), page);
    assert_eq!(values(&drive(&gpu, memory.read_async("page").unwrap()).unwrap()), page);
    let again = memory.adopt("page", TensorType::f32([128]), kept.slice(256..)).unwrap_err();
    assert!(again.to_string().starts_with("page: exists already"), "{again}");
}

#[test]
fn buffers_that_cannot_be_bound_are_named() {
    let gpu = hosts();
    let memory = Memory::new(&gpu);
    let (g, x, y) = reading_twice(100);
    let mut e = executor(&gpu, &memory, &g, &[y]);
    let large = buffer(&gpu, 1000, ALL);
    let uniform = buffer(&gpu, 1000, wgpu::BufferUsages::UNIFORM);
    let silent = buffer(&gpu, 1000, wgpu::BufferUsages::STORAGE);
    let mut ids = Graph::new();
    let symbols = ids.input("symbols", TensorType::u32([100]));
    let order = ids.derived(Derived::Argsort(symbols));
    let mut sorting = executor(&gpu, &memory, &ids, &[order]);
    let (a, _, c) = small(64);
    let mut with_state = executor(&gpu, &memory, &a, &[c]);
    let mut kept = Graph::new();
    let state = kept.state("kept", TensorType::f32([64]));
    let states = executor(&gpu, &memory, &kept, &[state]).bind_output(state, large.slice(..)).unwrap_err();
    let mut parts = Graph::new();
    let whole = parts.input("whole", TensorType::f32([128, 64]));
    let whole = elementwise::scale(&mut parts, whole, 2.0).unwrap();
    let half = layout::split_rows(&mut parts, whole, &[64, 64]).unwrap()[1];
    let part = executor(&gpu, &memory, &parts, &[half]).bind_output(half, large.slice(..)).unwrap_err();
    let cases: [(Error, &str); 11] = [
        (e.bind_input(x, uniform.slice(..)).unwrap_err(), "x: the host's buffer needs the usage STORAGE"),
        (e.bind_input(x, large.slice(64..)).unwrap_err(), "from byte 64, which is no multiple of 256"),
        (
            e.bind_input(x, large.slice(..396)).unwrap_err(),
            "has 396 bytes from byte 0 on, and 400 are needed",
        ),
        (e.bind_output(y, large.slice(3840..)).unwrap_err(), "has 160 bytes from byte 3840 on"),
        (e.bind_input(y, large.slice(..)).unwrap_err(), "value 2 is no input of this plan"),
        (e.bind_output(x, large.slice(..)).unwrap_err(), "value 0 is no output of this plan"),
        (sorting.bind_input(symbols, large.slice(..)).unwrap_err(), "symbols is sorted on the host"),
        (states, "it is a state: let the memory adopt it"),
        (part, "it is a part of another value"),
        (
            {
                e.bind_input(x, large.slice(..)).unwrap();
                e.bind_output(y, large.slice(512..)).unwrap_err()
            },
            "the host's buffer also has x, and elementwise/binary reads one and writes the other",
        ),
        (
            {
                let (_, x, y) = small(64);
                with_state.bind_input(x, silent.slice(..)).unwrap();
                with_state.bind_output(y, silent.slice(..)).unwrap_err()
            },
            "at the same bytes, and one of them is written",
        ),
    ];
    for (error, part) in cases {
        assert!(error.to_string().contains(part), "{part}: {error}");
    }
    // No dispatch of this plan reads x and writes y, so in other parts both may be in one buffer.
    let (_, x, y) = small(64);
    with_state.bind_output(y, silent.slice(512..)).unwrap();
    with_state.run().unwrap();
    let unread = with_state.read(y).unwrap_err();
    assert!(unread.to_string().contains("COPY_SRC"), "{unread}");
    let unwritten = with_state.write(x, &floats(64)).unwrap_err();
    assert!(unwritten.to_string().contains("COPY_DST"), "{unwritten}");
    // A refusal changes nothing.
    gpu.queue().write_buffer(&large, 0, bytemuck::cast_slice(&values(&floats(100))));
    e.run().unwrap();
    assert_eq!(values(&e.read(y_of(&e)).unwrap())[99], 3.0 * 46.5);
}

/// The one output of a plan.
fn y_of(e: &Executor) -> ValueId {
    e.plan().outputs[0].value
}

// ---- Waiting ----

#[test]
fn runs_and_results_are_awaited() {
    let gpu = hosts();
    let (mut e, y) = ready(&gpu, 77);
    drive(&gpu, async {
        e.run_async().await.unwrap();
        assert_eq!(values(&e.read_async(y).unwrap().await.unwrap()), doubled(77));
        // Several under way, one of them given up.
        let first = e.run_and_fetch().unwrap();
        drop(e.run_async());
        drop(e.run_and_fetch().unwrap());
        let second = e.run_and_fetch().unwrap();
        assert_eq!(first.await.unwrap(), second.await.unwrap());
    });
    // A blocking wait elsewhere drives futures as well.
    let done = e.run_async();
    std::thread::scope(|scope| {
        scope.spawn(|| gpu.wait().unwrap());
        pollster::block_on(done).unwrap();
    });
}

#[test]
fn errors_before_the_submission_come_with_the_future() {
    let gpu = hosts();
    let (g, _, y) = small(7);
    let mut e = executor(&gpu, &Memory::new(&gpu), &g, &[y]);
    let error = pollster::block_on(e.run_async()).unwrap_err();
    assert_eq!(error.to_string(), "input x was never written; write it before a run");
}

#[derive(Default)]
struct Woken(AtomicUsize);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn futures_end_when_the_host_notices_a_loss() {
    let gpu = hosts();
    let (mut e, _) = slow(&gpu);
    let woken = Arc::new(Woken::default());
    let waker = Waker::from(woken.clone());
    // Nobody polls the device, so nothing but the notice wakes it.
    let mut done = loop {
        (0..5).for_each(|_| e.run().unwrap());
        let mut done = gpu.submitted();
        if Pin::new(&mut done).poll(&mut Context::from_waker(&waker)).is_pending() {
            break done;
        }
    };
    gpu.notice_lost("the host's callback said so");
    assert!(woken.0.load(Ordering::Relaxed) >= 1, "woken by the notice");
    match Pin::new(&mut done).poll(&mut Context::from_waker(&waker)) {
        Poll::Ready(result) => is_lost(result),
        Poll::Pending => panic!("still pending"),
    }
    assert!(gpu.is_lost());
    is_lost(e.run());
    is_lost(gpu.wait());
    is_lost(gpu.poll());
}

#[test]
fn waits_are_bounded() {
    let gpu = own();
    let (mut e, product) = slow(&gpu);
    gpu.set_timeout(Duration::from_nanos(1));
    // A device may be faster than the host's look at it, but not each time.
    let mut late = 0;
    for _ in 0..10 {
        (0..3).for_each(|_| e.run().unwrap());
        match e.wait() {
            Ok(()) => {}
            Err(Error::Timeout { after, .. }) => {
                assert_eq!(after, Duration::from_nanos(1));
                late += 1;
            }
            Err(error) => panic!("{error}"),
        }
    }
    assert!(late > 0, "no wait was cut off");
    let error = e.run_and_fetch().and_then(|f| f.wait());
    assert!(matches!(&error, Err(e) if e.kind() == ErrorKind::Timeout) || error.is_ok());
    // It was slow, not lost.
    gpu.set_timeout(Duration::from_secs(600));
    e.wait().unwrap();
    assert_eq!(values(&e.read(product).unwrap()), vec![256.0; 256 * 256]);
}

// ---- Several devices, and their end ----

#[test]
fn two_devices_on_two_threads_give_equal_bits() {
    let run = || {
        let gpu = own();
        let mut trainer = trainer(&gpu);
        train(&mut trainer, 0..3);
        trainer.state().unwrap()
    };
    let (first, second) = std::thread::scope(|scope| {
        let threads = [scope.spawn(run), scope.spawn(run)];
        let [first, second] = threads.map(|t| t.join().expect("a thread without a panic"));
        (first, second)
    });
    same(&first, &second);
}

fn same(first: &State, second: &State) {
    assert!(!first.is_empty() && first.len() == second.len());
    for ((name, a), (other, b)) in first.iter().zip(second) {
        assert_eq!(name, other);
        assert!(a.bytes() == b.bytes(), "{name} differs");
    }
}

#[test]
fn a_training_goes_on_after_the_device_was_lost() {
    let (k, all) = (2, 4);
    let saved = [own(), hosts()].map(|gpu| {
        let mut first = trainer(&gpu);
        train(&mut first, 0..k);
        let saved = first.state().unwrap();
        // A step is under way when it happens.
        let under_way = first.step(&batch(k)).unwrap();
        gpu.device().destroy();
        if let Err(error) = under_way.wait() {
            assert_eq!(error.kind(), ErrorKind::DeviceLost, "{error}");
        }
        is_lost(first.step(&batch(k)).and_then(|s| s.wait()));
        is_lost(gpu.wait());
        is_lost(first.state());
        is_lost(first.prepare(&[BatchShape { rows: 2, source_len: 8, target_len: 8 }]));
        saved
    });
    let new = own();
    let mut undisturbed = trainer(&new);
    train(&mut undisturbed, 0..all);
    for saved in saved {
        let mut second = trainer(&new);
        second.restore(k.into(), &saved.into_iter().collect::<HashMap<_, _>>()).unwrap();
        train(&mut second, k..all);
        same(&second.state().unwrap(), &undisturbed.state().unwrap());
    }
}

#[test]
fn nothing_hangs_or_panics_on_a_destroyed_device() {
    for gpu in [own(), hosts()] {
        let (mut e, y) = ready(&gpu, 64);
        let under_way = e.run_and_fetch().unwrap();
        let running = e.run_async();
        let reading = e.read_async(y).unwrap();
        gpu.device().destroy();
        // What was under way may have ended before.
        for kind in
            [drive(&gpu, under_way).map(|_| ()), drive(&gpu, running), drive(&gpu, reading).map(|_| ())]
        {
            assert!(!matches!(&kind, Err(e) if e.kind() != ErrorKind::DeviceLost), "{kind:?}");
        }
        is_lost(drive(&gpu, e.run_async()));
        is_lost(e.read_async(y));
        let mut encoder = gpu.device().create_command_encoder(&Default::default());
        is_lost(e.encode(&mut encoder));
        is_lost(e.profile());
        is_lost(e.snapshot());
        is_lost(Memory::new(&gpu).write("b", &floats(4)));
        assert!(gpu.is_lost());
    }
}

#[test]
fn no_handler_of_the_host_is_bothered() {
    let gpu = hosts();
    let heard: Arc<Mutex<Vec<String>>> = Arc::default();
    let cell = heard.clone();
    gpu.device()
        .on_uncaptured_error(Arc::new(move |e: wgpu::Error| cell.lock().unwrap().push(e.to_string())));
    let (mut e, y) = ready(&gpu, 64);
    // The host's own scopes stay in order around ours, in futures too.
    let scope = gpu.device().push_error_scope(wgpu::ErrorFilter::Validation);
    drive(&gpu, async {
        e.run_async().await.unwrap();
        e.read_async(y).unwrap().await.unwrap();
    });
    assert!(pollster::block_on(scope.pop()).is_none());
    gpu.device().destroy();
    is_lost(e.run());
    is_lost(e.read(y));
    is_lost(gpu.wait());
    assert_eq!(*heard.lock().unwrap(), Vec::<String>::new());
}

// ---- Memory ----

/// Set where the test below runs once more, with a bound on its addresses.
const BOUNDED: &str = "WGFORMER_TEST_BOUNDED";

#[test]
fn out_of_memory_is_told_and_survived() {
    // Buffers fail once they would take more than a hundredth of what the driver says there is.
    let thresholds = wgpu::MemoryBudgetThresholds { for_resource_creation: Some(1), for_device_loss: None };
    let adapter = adapter_with(thresholds);
    let gpu = gpu_on(&adapter, gpu::required_features(&adapter), adapter.limits());
    let bytes = gpu.profile().max_buffer_bytes / 4 * 4;
    let mut kept = Vec::new();
    let error = (0..256).find_map(|i| {
        let (g, _, y) = small(64);
        let mut plan = Plan::new(&g, &[y], gpu.profile()).unwrap();
        plan.buffers.iter_mut().for_each(|b| b.bytes = bytes);
        gpu.executor(plan, &Memory::new(&gpu)).map(|e| kept.push((i, e))).err()
    });
    match error {
        Some(error) => {
            assert_eq!(error.kind(), ErrorKind::OutOfMemory, "{error}");
            assert!(matches!(error, Error::OutOfMemory { bytes: told, .. } if told == bytes));
        }
        // It hands out memory that is not there, unless the process may have no more addresses either.
        None => {
            assert_eq!(adapter.get_info().driver, "llvmpipe");
            assert!(std::env::var_os(BOUNDED).is_none(), "no error with 8 GB of addresses");
            let mut again = std::process::Command::new("sh");
            again.args(["-c", "ulimit -v 8000000 && exec \"$0\" \"$@\""]);
            again.arg(std::env::current_exe().unwrap());
            again.args(["--exact", "out_of_memory_is_told_and_survived"]).env(BOUNDED, "1");
            assert!(again.status().unwrap().success());
        }
    }
    drop(kept);
    gpu.wait().unwrap();
    assert!(!gpu.is_lost());
    let (mut e, y) = ready(&gpu, 64);
    e.run().unwrap();
    assert_eq!(values(&e.read(y).unwrap()), doubled(64));
}

/// What the allocator has given out, by wgpu's own account where it has one.
fn taken(gpu: &Gpu) -> (u64, Option<u64>) {
    gpu.wait().unwrap();
    let report = gpu.device().generate_allocator_report();
    (gpu.allocations().live_bytes, report.map(|r| r.total_allocated_bytes))
}

#[test]
fn nothing_grows() {
    let gpu = hosts();
    let memory = Memory::new(&gpu);
    let (g, x, y) = small(256);
    let round = |e: &mut Executor| {
        e.write(x, &floats(256)).unwrap();
        e.run().unwrap();
        e.run_and_fetch().unwrap().wait().unwrap();
        e.read(y).unwrap();
        drop(e.run_async());
    };
    let plan = Plan::new(&g, &[y], gpu.profile()).unwrap();
    let mut e = gpu.executor(plan.clone(), &memory).unwrap();
    (0..10).for_each(|_| round(&mut e));
    let steady = taken(&gpu);
    (0..1000).for_each(|_| round(&mut e));
    assert_eq!(taken(&gpu), steady, "by steps");
    for _ in 0..100 {
        let mut other = gpu.executor(plan.clone(), &memory).unwrap();
        round(&mut other);
    }
    assert_eq!(taken(&gpu), steady, "by executors");
    assert_eq!(gpu.compile_stats().pipelines, 2);
}

// ---- Before the device, and weak devices ----

/// A training step of the least model.
fn training(profile: &DeviceProfile) -> Result<Plan, Error> {
    let optimizer = Optimizer { adam: AdamSettings::transformer(), clip_norm: Some(1.0) };
    let io = model().loss_graph(batch(0).shape, &Objective::default(), Some(&optimizer))?;
    Plan::new(&io.graph, &io.outputs(), profile)
}

/// The losses of a few steps.
fn losses(gpu: &Gpu) -> Vec<f64> {
    let mut trainer = trainer(gpu);
    (0..3).map(|step| trainer.step(&batch(step)).unwrap().wait().unwrap().loss).collect()
}

#[test]
fn a_device_made_for_a_plan_runs_it() {
    let adapter = adapter();
    let profile = gpu::profile_of(&adapter);
    assert_eq!(profile, *hosts().profile());
    let features = gpu::required_features(&adapter);
    let plan = training(&profile).unwrap();
    let limits = gpu::required_limits(&adapter, &plan).unwrap();
    let gpu = gpu_on(&adapter, features, limits.clone());
    assert_eq!(*gpu.profile(), gpu::profile_with(&adapter, features, &limits));
    let need = |limit| plan.needs().into_iter().find(|n| n.limit == limit).unwrap().needed;
    let groups: u64 = need(wgformer::Limit::StorageBuffers);
    assert_eq!(
        u64::from(limits.max_storage_buffers_per_shader_stage),
        groups.max(4),
        "no more than it needs"
    );
    let mut e = gpu.executor(plan, &Memory::new(&gpu)).unwrap();
    for port in e.plan().inputs.clone() {
        let n = port.ty.shape.elements();
        let tensor = match port.ty.dtype {
            wgformer::DType::F32 => HostTensor::f32(port.ty.shape, vec![0.5; n]),
            wgformer::DType::F16 => unreachable!("the plan is one of 32-bit floats"),
            wgformer::DType::U32 => HostTensor::u32(port.ty.shape, vec![4; n]),
        };
        e.write(port.value, &tensor).unwrap();
    }
    let outputs = e.run_and_fetch().unwrap().wait().unwrap();
    // Without parameters every symbol is as likely: ln 12.
    assert!((values(&outputs[0])[0] - 12f32.ln()).abs() < 1e-4, "{outputs:?}");
}

#[test]
fn a_plan_that_the_adapter_cannot_run_is_refused() {
    let adapter = adapter();
    let endless = DeviceProfile {
        max_buffer_bytes: u64::MAX,
        max_binding_bytes: u64::MAX,
        ..gpu::profile_of(&adapter)
    };
    let (g, _, y) = small(1 << 31);
    let plan = Plan::new(&g, &[y], &endless).unwrap();
    for error in [gpu::required_limits(&adapter, &plan).unwrap_err(), {
        let gpu = hosts();
        gpu.executor(plan, &Memory::new(&gpu)).unwrap_err()
    }] {
        let Error::Limit { limit, needed, allowed, tensor } = error else { panic!("{error}") };
        assert_eq!((limit, needed, tensor.as_str()), ("max_buffer_size", 1 << 33, "x"));
        assert!(allowed < needed);
    }
}

#[test]
fn a_weak_device_trains() {
    let adapter = adapter();
    // WebGPU's least, but for storage buffers, of which attention binds eight.
    let limits =
        wgpu::Limits { max_storage_buffers_per_shader_stage: 8, ..wgpu::Limits::downlevel_defaults() };
    let weak = gpu_on(&adapter, wgpu::Features::empty(), limits.clone());
    assert!(!weak.profile().subgroups);
    assert_eq!(*weak.profile(), gpu::profile_with(&adapter, wgpu::Features::empty(), &limits));
    for (a, b) in losses(&weak).into_iter().zip(losses(&hosts())) {
        assert!((a - b).abs() < 1e-4, "{a} instead of {b}");
    }
    // What is too large for it names itself.
    let mut g = Graph::new();
    let x = g.input("x", TensorType::f32([1 << 26]));
    let y = elementwise::scale(&mut g, x, 2.0).unwrap();
    let error = Plan::new(&g, &[y], weak.profile()).unwrap_err();
    let Error::Limit { limit, needed, allowed, tensor } = error else { panic!("{error}") };
    assert_eq!((limit, needed, allowed), ("max_storage_buffer_binding_size", 1 << 28, 1 << 27));
    assert!(tensor.contains("67108864"), "{tensor}");
}

#[test]
fn the_least_device_says_what_it_lacks() {
    let adapter = adapter();
    let least = gpu_on(&adapter, wgpu::Features::empty(), wgpu::Limits::downlevel_defaults());
    let error = training(least.profile()).unwrap_err();
    let Error::Limit { limit, needed, allowed, tensor } = error else { panic!("{error}") };
    assert_eq!((limit, allowed), ("max_storage_buffers_per_shader_stage", 4));
    assert!((5..=8).contains(&needed) && tensor.contains('/'), "{needed} {tensor}");
    // What binds no more than four runs: w = w / 2 + x, twice.
    let gpu = least;
    let mut g = Graph::new();
    let (x, w) = (g.input("x", TensorType::f32([256])), g.state("w", TensorType::f32([256])));
    let half = elementwise::scale(&mut g, w, 0.5).unwrap();
    let next = elementwise::add(&mut g, half, x).unwrap();
    layout::pack_into(&mut g, w, &[next], &[0]).unwrap();
    let memory = Memory::new(&gpu);
    let mut e = executor(&gpu, &memory, &g, &[next]);
    e.write(x, &floats(256)).unwrap();
    (0..2).for_each(|_| e.run().unwrap());
    let want: Vec<f32> = values(&floats(256)).iter().map(|x| 1.5 * x).collect();
    assert_eq!(values(&memory.read("w").unwrap()), want);
}

#[test]
fn every_family_runs_here() {
    let adapter = adapter();
    let weak = gpu_on(&adapter, wgpu::Features::empty(), wgpu::Limits::downlevel_defaults());
    for found in own().check() {
        assert!(found.problem.is_none() && !found.chosen.is_empty(), "{found}");
        assert!(FAMILIES.iter().any(|f| f.name == found.family), "{found}");
    }
    let weak = weak.check();
    assert!(weak.iter().any(|f| f.family == "attention" && f.problem.is_some()), "{weak:?}");
    assert!(weak.iter().any(|f| f.family == "elementwise" && f.problem.is_none()), "{weak:?}");
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

//! The device layer: buffers, states, readback, errors. Runs on whatever adapter there is.

use wgformer::gpu::{Backend, Executor, Gpu, Memory, Request, adapters, request};
use wgformer::graph::{Derived, Graph, ValueId};
use wgformer::kernel::{Access, Kernel, Requires, parts};
use wgformer::plan::Plan;
use wgformer::{Error, ErrorKind, HostTensor, TensorType, ops};

fn gpu() -> Gpu {
    request(&Request::default()).unwrap()
}

fn floats(n: usize) -> HostTensor {
    HostTensor::f32([n], (0..n).map(|i| i as f32 * 0.5 - 3.0).collect())
}

fn times(t: &HostTensor, factor: f32) -> Vec<f32> {
    t.as_f32("t").unwrap().iter().map(|v| v * factor).collect()
}

/// y = (2 x) + b, x an input, b a state.
fn small(n: usize) -> (Graph, ValueId, ValueId) {
    let mut g = Graph::new();
    let x = g.input("x", TensorType::f32([n]));
    let b = g.state(format!("b{n}"), TensorType::f32([n]));
    let twice = ops::elementwise::scale(&mut g, x, 2.0).unwrap();
    let y = ops::elementwise::add(&mut g, twice, b).unwrap();
    (g, x, y)
}

fn executor(gpu: &Gpu, memory: &Memory, graph: &Graph, outputs: &[ValueId]) -> Executor {
    gpu.executor(Plan::new(graph, outputs, gpu.profile()).unwrap(), memory).unwrap()
}

#[test]
fn runs_a_graph() {
    let gpu = gpu();
    let memory = Memory::new(&gpu);
    let (g, x, y) = small(77);
    let mut e = executor(&gpu, &memory, &g, &[y]);
    e.write(x, &floats(77)).unwrap();
    memory.write("b77", &floats(77)).unwrap();
    e.run().unwrap();
    assert_eq!(e.read(y).unwrap().as_f32("y").unwrap(), times(&floats(77), 3.0));
    let fetch = e.run_and_fetch().unwrap();
    e.wait().unwrap();
    assert!(fetch.ready().unwrap());
    assert_eq!(fetch.wait().unwrap()[0].as_f32("y").unwrap(), times(&floats(77), 3.0));
}

#[test]
fn states_start_at_zero_and_are_updated_in_place() {
    let gpu = gpu();
    let memory = Memory::new(&gpu);
    let mut g = Graph::new();
    let x = g.input("x", TensorType::f32([64]));
    let page = g.state("page", TensorType::f32([128]));
    let view = g.view("view", page, 64, TensorType::f32([64])).unwrap();
    let half = ops::elementwise::scale(&mut g, view, 0.5).unwrap();
    let sum = ops::elementwise::add(&mut g, half, x).unwrap();
    let after = ops::layout::pack_into(&mut g, page, &[sum], &[64]).unwrap();
    let mut e = executor(&gpu, &memory, &g, &[after]);
    assert_eq!(memory.read("page").unwrap(), HostTensor::f32([128], vec![0.0; 128]));
    e.write(x, &HostTensor::f32([64], vec![1.0; 64])).unwrap();
    for want in [1.0, 1.5, 1.75] {
        e.run().unwrap();
        let page = memory.read("page").unwrap();
        let page = page.as_f32("page").unwrap();
        assert_eq!((page[0], page[63], page[64], page[127]), (0.0, 0.0, want, want));
    }
    assert_eq!(e.read(after).unwrap(), memory.read("page").unwrap());
}

#[test]
fn plans_share_states_and_slots() {
    let gpu = gpu();
    let memory = Memory::new(&gpu);
    let mut executors = Vec::new();
    // The larger plan comes second and replaces the slot of the first.
    for n in [100, 5000] {
        let (g, x, y) = small(n);
        let mut e = executor(&gpu, &memory, &g, &[y]);
        e.write(x, &floats(n)).unwrap();
        executors.push((n, e, y));
    }
    for _ in 0..2 {
        for (n, e, y) in &mut executors {
            e.run().unwrap();
            assert_eq!(e.read(*y).unwrap().as_f32("y").unwrap(), times(&floats(*n), 2.0), "{n}");
        }
    }
    let before = gpu.allocations();
    let (g, _, y) = small(100);
    let e = executor(&gpu, &memory, &g, &[y]);
    // Its input, output and parameters; neither the state nor the slot.
    assert_eq!(gpu.allocations().count - before.count, 3);
    drop(e);
    assert_eq!(gpu.allocations().live_bytes, before.live_bytes);
}

#[test]
fn steps_allocate_nothing() {
    let gpu = gpu();
    let memory = Memory::new(&gpu);
    let (g, x, y) = small(1000);
    let mut e = executor(&gpu, &memory, &g, &[y]);
    let step = |e: &mut Executor| {
        e.write(x, &floats(1000)).unwrap();
        e.run().unwrap();
        // A result is read two steps later.
        let first = e.run_and_fetch().unwrap();
        let second = e.run_and_fetch().unwrap();
        drop(e.run_and_fetch().unwrap());
        let outputs = (first.wait().unwrap(), second.wait().unwrap(), e.read(y).unwrap());
        assert_eq!(outputs.0, outputs.1);
        assert_eq!(outputs.0[0], outputs.2);
    };
    step(&mut e);
    let before = gpu.allocations();
    for _ in 0..200 {
        step(&mut e);
    }
    assert_eq!(gpu.allocations(), before);
    assert_eq!(gpu.compile_stats().pipelines, 2);
}

#[test]
fn two_devices_and_the_callers_own() {
    let (first, second) = (gpu(), gpu());
    let shared =
        Gpu::new(first.device().clone(), first.queue().clone(), first.device().adapter_info()).unwrap();
    assert_eq!(shared.profile(), first.profile());
    for gpu in [&first, &second, &shared] {
        let (g, x, y) = small(9);
        let mut e = executor(gpu, &Memory::new(gpu), &g, &[y]);
        e.write(x, &floats(9)).unwrap();
        e.run().unwrap();
        assert_eq!(e.read(y).unwrap().as_f32("y").unwrap(), times(&floats(9), 2.0));
    }
    let (g, _, y) = small(9);
    let plan = Plan::new(&g, &[y], first.profile()).unwrap();
    let error = first.executor(plan, &Memory::new(&second)).unwrap_err();
    assert!(error.to_string().contains("another device"), "{error}");
}

#[test]
fn checks_do_not_change_the_bits() {
    let gpu = gpu();
    let memory = Memory::new(&gpu);
    let mut results = Vec::new();
    for gpu in [gpu.checked(false), gpu.checked(true)] {
        let (g, x, y) = small(123);
        let mut e = executor(&gpu, &memory, &g, &[y]);
        e.write(x, &floats(123)).unwrap();
        e.run().unwrap();
        results.push(e.read(y).unwrap());
    }
    assert_eq!(results[0], results[1]);
    assert_eq!(gpu.compile_stats().pipelines, 4);
}

#[test]
fn pipelines_are_kept_and_given_back() {
    let run = |gpu: &Gpu| {
        let (g, x, y) = small(50);
        let mut e = executor(gpu, &Memory::new(gpu), &g, &[y]);
        e.write(x, &floats(50)).unwrap();
        e.run().unwrap();
        assert_eq!(e.read(y).unwrap().as_f32("y").unwrap(), times(&floats(50), 2.0));
    };
    // SAFETY: what is given is what another device of the same adapter gave, or damaged, which is refused.
    let set = |gpu: &Gpu, bytes: Option<&[u8]>| unsafe { gpu.set_pipeline_cache(bytes) };
    let (first, second) = (gpu(), gpu());
    let Some(name) = first.pipeline_cache_name() else {
        let error = set(&first, None).unwrap_err();
        assert!(error.to_string().contains("cannot keep pipelines"), "{error}");
        return;
    };
    assert!(name.chars().all(|c| c.is_ascii_alphanumeric() || "_-".contains(c)), "{name}");
    assert_eq!(second.pipeline_cache_name(), Some(name));
    assert_eq!(first.pipeline_cache(), None);
    set(&first, None).unwrap();
    run(&first);
    let bytes = first.pipeline_cache().unwrap();
    // What is damaged changes nothing.
    for damaged in [&bytes[..bytes.len() - 1], &bytes[1..], b""] {
        let error = set(&second, Some(damaged)).unwrap_err();
        assert!(error.to_string().starts_with("pipeline cache: is "), "{error}");
        assert_eq!(second.pipeline_cache(), None);
    }
    set(&second, Some(&bytes)).unwrap();
    run(&second);
    assert!(second.pipeline_cache().unwrap().len() >= bytes.len());
    first.device().destroy();
    assert_eq!(first.pipeline_cache(), None);
}

#[test]
fn derived_inputs_follow_their_source() {
    let gpu = gpu();
    let mut g = Graph::new();
    let ids = g.input("ids", TensorType::u32([2, 3]));
    let order = g.derived(Derived::Argsort(ids));
    let mut e = executor(&gpu, &Memory::new(&gpu), &g, &[order]);
    let missing = e.run().unwrap_err();
    assert!(missing.to_string().contains("input ids "), "{missing}");
    e.write(ids, &HostTensor::u32([2, 3], vec![7, 2, 7, 0, 2, 9])).unwrap();
    e.run().unwrap();
    assert_eq!(e.read(order).unwrap().as_u32("order").unwrap(), [3, 1, 4, 0, 2, 5]);
}

#[test]
fn profiles_every_step() {
    let gpu = gpu();
    let (g, x, y) = small(50_000);
    let mut e = executor(&gpu, &Memory::new(&gpu), &g, &[y]);
    e.write(x, &floats(50_000)).unwrap();
    let times = e.profile().unwrap();
    let labels: Vec<_> = times.iter().map(|t| t.0.as_str()).collect();
    assert_eq!(labels, ["elementwise/unary", "elementwise/binary"]);
}

#[test]
fn wrong_use_is_named() {
    let gpu = gpu();
    let memory = Memory::new(&gpu);
    let (g, x, y) = small(8);
    let mut e = executor(&gpu, &memory, &g, &[y]);
    let cases: [(Error, ErrorKind, &str); 7] = [
        (e.run().unwrap_err(), ErrorKind::Input, "input x was never written; write it before a run"),
        (e.write(x, &floats(9)).unwrap_err(), ErrorKind::Shape, "input: x: expected f32[8], got f32[9]"),
        (
            e.write(x, &HostTensor::u32([8], vec![0; 8])).unwrap_err(),
            ErrorKind::Shape,
            "input: x: expected f32[8], got u32[8]",
        ),
        (e.write(y, &floats(8)).unwrap_err(), ErrorKind::Input, "value 3 is no input of this plan"),
        (e.read(x).unwrap_err(), ErrorKind::Input, "value 0 is no output of this plan"),
        (
            memory.write("b8", &floats(7)).unwrap_err(),
            ErrorKind::Shape,
            "state: b8: expected f32[8] as it exists, got f32[7]",
        ),
        (
            memory.read("c").unwrap_err(),
            ErrorKind::Config,
            "c: no state of this name has been written or planned",
        ),
    ];
    for (error, kind, text) in cases {
        assert_eq!((error.kind(), error.to_string().as_str()), (kind, text));
    }
}

#[test]
fn a_state_of_another_size_is_refused() {
    let gpu = gpu();
    let memory = Memory::new(&gpu);
    memory.write("b8", &floats(16)).unwrap();
    let (g, _, y) = small(8);
    let plan = Plan::new(&g, &[y], gpu.profile()).unwrap();
    let error = gpu.executor(plan, &memory).unwrap_err();
    assert_eq!(error.to_string(), "state: b8: expected f32[16] as it exists, got f32[8]");
}

#[test]
fn a_kernel_that_does_not_compile_shows_its_line() {
    let gpu = gpu();
    let (g, _, y) = small(8);
    let mut plan = Plan::new(&g, &[y], gpu.profile()).unwrap();
    plan.kernels.push(Kernel {
        name: "broken".into(),
        parts: parts(["@compute @workgroup_size(1) fn main() { let a = b; }"]),
        entry: "main",
        bindings: vec![Access::Read],
        params: &[],
        constants: vec![],
        requires: Requires::default(),
    });
    let error = gpu.executor(plan, &Memory::new(&gpu)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Device);
    assert!(
        error.to_string().contains("kernel broken") && error.to_string().contains("let a = b"),
        "{error}"
    );
}

#[test]
fn a_buffer_that_is_too_large_is_an_error() {
    let gpu = gpu();
    let (g, _, y) = small(8);
    let mut plan = Plan::new(&g, &[y], gpu.profile()).unwrap();
    plan.buffers[0].bytes = 1 << 45;
    assert_eq!(gpu.executor(plan, &Memory::new(&gpu)).unwrap_err().kind(), ErrorKind::Limit);
}

#[test]
fn a_lost_device_is_an_error() {
    let own = gpu();
    let callers = {
        let gpu = gpu();
        Gpu::new(gpu.device().clone(), gpu.queue().clone(), gpu.device().adapter_info()).unwrap()
    };
    for gpu in [own, callers] {
        let memory = Memory::new(&gpu);
        let (g, x, y) = small(8);
        let plan = Plan::new(&g, &[y], gpu.profile()).unwrap();
        let mut e = gpu.executor(plan.clone(), &memory).unwrap();
        e.write(x, &floats(8)).unwrap();
        e.run().unwrap();
        gpu.device().destroy();
        let errors = [
            e.run().unwrap_err(),
            e.write(x, &floats(8)).unwrap_err(),
            e.run_and_fetch().and_then(|f| f.wait()).unwrap_err(),
            e.read(y).unwrap_err(),
            e.profile().unwrap_err(),
            memory.read("b8").unwrap_err(),
            memory.write("new", &floats(8)).unwrap_err(),
            gpu.executor(plan, &memory).unwrap_err(),
        ];
        for error in errors {
            assert_eq!(error.kind(), ErrorKind::DeviceLost, "{error}");
            assert!(error.to_string().contains("lost"), "{error}");
        }
        assert!(gpu.is_lost());
    }
}

#[test]
fn adapters_are_found_by_name_and_number() {
    let list = adapters(None);
    let name = list[0].name.clone();
    let by = |name: &str| request(&Request { name: Some(name.into()), ..Default::default() });
    assert_eq!(by(&name.to_uppercase()).unwrap().name(), name);
    assert_eq!(by("0").unwrap().name(), name);
    let error = by("no such adapter").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Adapter);
    let text = error.to_string();
    assert!(text.contains("\"no such adapter\"") && text.contains(&name) && !text.contains('\n'), "{text}");
    let elsewhere = if cfg!(target_os = "macos") { Backend::Dx12 } else { Backend::Metal };
    let error = request(&Request { backend: Some(elsewhere), ..Default::default() }).unwrap_err();
    assert!(error.to_string().contains("install"), "{error}");
}

#[test]
fn backends_parse() {
    for backend in Backend::ALL {
        assert_eq!(backend.to_string().to_uppercase().parse::<Backend>().unwrap(), backend);
    }
    let error = "cuda".parse::<Backend>().unwrap_err();
    assert_eq!(error.to_string(), "backend: \"cuda\" is none; there are vulkan, metal, dx12, gl");
}

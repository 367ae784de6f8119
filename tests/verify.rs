//! Following a run step by step: a right plan passes, a wrong kernel is named.

use std::sync::OnceLock;
use wgformer::gpu::{Gpu, Memory, Request, request};
use wgformer::graph::{Graph, ValueId};
use wgformer::ops::elementwise::{Activation, activate};
use wgformer::ops::matmul::matmul;
use wgformer::ops::softmax::softmax;
use wgformer::plan::Plan;
use wgformer::verify::{Problem, Verification};
use wgformer::{HostTensor, TensorType};

fn gpu() -> &'static Gpu {
    static GPU: OnceLock<Gpu> = OnceLock::new();
    GPU.get_or_init(|| {
        let name = std::env::var("WGPU_ADAPTER_NAME").ok();
        request(&Request { name, ..Default::default() }).expect("an adapter")
    })
}

/// softmax(gelu(a b)), with a change to the plan before it runs.
fn verify(change: impl FnOnce(&mut Plan)) -> Verification {
    let mut g = Graph::new();
    let a = g.input("a", TensorType::f32([19, 8]));
    let b = g.input("b", TensorType::f32([8, 12]));
    let y: ValueId = g
        .scoped("layer", |g| {
            let x = matmul(g, a, b, Default::default())?;
            let x = activate(g, Activation::Gelu, x)?;
            softmax(g, x)
        })
        .unwrap();
    let mut plan = Plan::new(&g, &[y], gpu().profile()).unwrap();
    change(&mut plan);
    let mut executor = gpu().executor(plan, &Memory::new(gpu())).unwrap();
    let values = |n: usize| (0..n).map(|i| (i as f32 * 0.7).sin()).collect::<Vec<f32>>();
    executor.write(a, &HostTensor::f32([19, 8], values(19 * 8))).unwrap();
    executor.write(b, &HostTensor::f32([8, 12], values(8 * 12))).unwrap();
    let mut found = executor.verify(&g).unwrap();
    executor.run().unwrap();
    found.compare_states(&executor).unwrap();
    found
}

fn replace(plan: &mut Plan, kernel: &str, old: &str, new: &str) {
    let k = plan.kernels.iter_mut().find(|k| k.name.starts_with(kernel)).expect("the kernel");
    let part = k.parts.iter_mut().find(|p| p.contains(old)).expect("the text");
    *part = part.replacen(old, new, 1).into();
}

#[test]
fn a_right_plan_passes() {
    let found = verify(|_| {});
    assert!(found.troubles.is_empty(), "{}", found.troubles[0]);
    assert!(found.dispatches >= 3 && found.worst > 0.0 && found.worst <= 1.0, "{found:?}");
}

#[test]
fn the_first_kernel_that_goes_wrong_is_named_with_what_it_read() {
    let found = verify(|plan| replace(plan, "elementwise", "activate(a[i], ACTIVATION)", "a[i]"));
    let first = &found.troubles[0];
    assert!(first.label.contains("layer/elementwise"), "{first}");
    assert!(matches!(&first.problem, Problem::Wrong(m) if m.total == 19 * 12), "{first}");
    assert_eq!(first.inputs.len(), 1);
    assert_eq!(first.inputs[0].1.ty(), TensorType::f32([19, 12]));
}

#[test]
fn an_element_left_unwritten_is_found() {
    let found =
        verify(|plan| replace(plan, "elementwise", "if i >= params.count {", "if i + 1u >= params.count {"));
    let text: Vec<String> = found.troubles.iter().map(|t| t.to_string()).collect();
    assert!(text.iter().any(|t| t.contains("left unwritten")), "{text:?}");
}

#[test]
fn a_write_outside_is_found() {
    let found = verify(|plan| {
        replace(plan, "elementwise", "let i = (group.y", "unary_out[params.count] = a[0]; let i = (group.y")
    });
    let text: Vec<String> = found.troubles.iter().map(|t| t.to_string()).collect();
    assert!(text.iter().any(|t| t.contains("outside of the buffer")), "{text:?}");
}

#[test]
fn another_graph_is_refused() {
    let mut g = Graph::new();
    let x = g.input("x", TensorType::f32([4]));
    let y = softmax(&mut g, x).unwrap();
    let plan = Plan::new(&g, &[y], gpu().profile()).unwrap();
    let mut executor = gpu().executor(plan, &Memory::new(gpu())).unwrap();
    executor.write(x, &HostTensor::f32([4], vec![0.0; 4])).unwrap();
    let error = executor.verify(&Graph::new()).unwrap_err().to_string();
    assert!(error.contains("is not the one that the plan was made from"), "{error}");
}

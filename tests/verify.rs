//! Following a run step by step: a right plan passes, a wrong kernel is named.

use std::sync::OnceLock;
use wgformer::gpu::{Gpu, Memory, Request, request};
use wgformer::graph::{Graph, Role, ValueId};
use wgformer::ops::attention::{Attention, AttentionInputs, Packing, attention};
use wgformer::ops::elementwise::{Activation, activate, add, scale};
use wgformer::ops::layout::split_rows;
use wgformer::ops::matmul::matmul;
use wgformer::ops::softmax::softmax;
use wgformer::plan::{Place, Plan};
use wgformer::verify::{Order, Problem, Replay, Trouble, Verification};
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
    let kernels = plan.kernels.iter_mut().filter(|k| k.name.starts_with(kernel));
    let parts = kernels.flat_map(|k| &mut k.parts).filter(|p| p.contains(old));
    let changed = parts.map(|p| *p = p.replacen(old, new, 1).into()).count();
    assert!(changed > 0, "{old:?} in {kernel}");
}

#[test]
fn a_right_plan_passes() {
    let found = verify(|_| {});
    assert!(found.troubles.is_empty(), "{}", found.troubles[0]);
    assert!(found.dispatches >= 3 && found.worst > 0.0 && found.worst <= 1.0, "{found:?}");
}

#[test]
fn the_first_kernel_that_goes_wrong_is_named_with_what_it_read() {
    let found = verify(|plan| replace(plan, "elementwise", "activate(elem(a[i]), ACTIVATION)", "elem(a[i])"));
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

#[test]
fn a_value_written_over_too_early_is_found() {
    let mut g = Graph::new();
    let a = g.input("a", TensorType::f32([64]));
    let (x, y) = (scale(&mut g, a, 2.0).unwrap(), scale(&mut g, a, 3.0).unwrap());
    let z = add(&mut g, x, y).unwrap();
    let mut plan = Plan::new(&g, &[z], gpu().profile()).unwrap();
    // y lies where x does, so that the sum is y + y: right for what it reads.
    let (at_x, at_y) = (plan.places[&x], plan.places[&y]);
    plan.places.insert(y, at_x);
    let bindings = plan.steps.iter_mut().flat_map(|s| &mut s.bindings);
    bindings.filter(|p| **p == at_y).for_each(|p| *p = at_x);
    let mut replay = Replay::new(gpu(), &g, &plan).unwrap();
    replay.set(a, &HostTensor::f32([64], vec![1.0; 64])).unwrap();
    let troubles = replay.run(Order::Natural).unwrap();
    assert!(matches!(troubles[..], [Trouble { problem: Problem::Overwritten, step: 2, .. }]), "{troubles:?}");
}

#[test]
fn a_part_that_begins_elsewhere_is_found() {
    let mut g = Graph::new();
    let a = g.input("a", TensorType::f32([3, 64]));
    let x = scale(&mut g, a, 2.0).unwrap();
    let parts = split_rows(&mut g, x, &[1, 2]).unwrap();
    let z = scale(&mut g, parts[1], 3.0).unwrap();
    let mut plan = Plan::new(&g, &[z], gpu().profile()).unwrap();
    let right = plan.places[&parts[1]];
    let wrong = Place { offset: right.offset - 256, ..right };
    plan.places.insert(parts[1], wrong);
    let bindings = plan.steps.iter_mut().flat_map(|s| &mut s.bindings);
    bindings.filter(|p| **p == right).for_each(|p| *p = wrong);
    let mut replay = Replay::new(gpu(), &g, &plan).unwrap();
    replay.set(a, &HostTensor::f32([3, 64], (0..192).map(|i| i as f32).collect())).unwrap();
    let troubles = replay.run(Order::Natural).unwrap();
    assert!(matches!(troubles[..], [Trouble { problem: Problem::Overwritten, step: 1, .. }]), "{troubles:?}");
}

/// Follows a plan of one output, comparing parts of large nodes only, from inputs that are waves.
fn verify_sampled(g: &Graph, y: ValueId, change: impl FnOnce(&mut Plan)) -> Verification {
    let mut plan = Plan::new(g, &[y], gpu().profile()).unwrap();
    change(&mut plan);
    let mut executor = gpu().executor(plan, &Memory::new(gpu())).unwrap();
    for id in g.ids().filter(|&id| matches!(g.value(id).role, Role::Input(None))) {
        let shape = g.shape(id).clone();
        let values = (0..shape.elements()).map(|i| (i as f32 * 0.7).sin()).collect();
        executor.write(id, &HostTensor::f32(shape, values)).unwrap();
    }
    executor.verify_sampled(g, 5).unwrap()
}

#[test]
fn of_large_nodes_parts_are_compared_and_corners_among_them() {
    let n = 301;
    let mut g = Graph::new();
    let (a, b) = (g.input("a", TensorType::f32([n, n])), g.input("b", TensorType::f32([n, n])));
    let y = matmul(&mut g, a, b, Default::default()).unwrap();
    let y = activate(&mut g, Activation::Gelu, y).unwrap();
    let found = verify_sampled(&g, y, |_| {});
    assert!(found.troubles.is_empty(), "{}", found.troubles[0]);
    // The activation is compared as a whole.
    let all = (n * n) as u64;
    assert_eq!(found.elements, 2 * all);
    assert!(found.compared > all && found.compared < all + all / 10, "{found:?}");
    for (index, at) in [(0, [0, 0]), (n * n - 1, [n - 1, n - 1])] {
        let wrong = format!("out[index] = out_elem(v + select(0.0, 1.0, index == {index}u));");
        let found =
            verify_sampled(&g, y, |plan| replace(plan, "matmul", "out[index] = out_elem(v);", &wrong));
        let Problem::Wrong(m) = &found.troubles[0].problem else { panic!("{}", found.troubles[0]) };
        assert_eq!((m.wrong, &m.worst[0].index[..]), (1, &at[..]), "{m}");
    }
    // What is left unwritten is looked for everywhere.
    let hole = "if index != 7777u { out[index] = out_elem(v); }";
    let found = verify_sampled(&g, y, |plan| replace(plan, "matmul", "out[index] = out_elem(v);", hole));
    assert!(matches!(found.troubles[0].problem, Problem::Unwritten(1, _, 7777)), "{}", found.troubles[0]);
}

#[test]
fn of_large_attentions_parts_are_compared_and_the_last_query_among_them() {
    let mut g = Graph::new();
    let qkv = g.input("qkv", TensorType::f32([2, 400, 3 * 64]));
    let settings = Attention { causal: true, ..Attention::new(2) };
    let y = attention(&mut g, settings, AttentionInputs::new(Packing::Qkv(qkv))).unwrap();
    let found = verify_sampled(&g, y, |_| {});
    assert!(found.troubles.is_empty(), "{}", found.troubles[0]);
    assert!(found.compared < found.elements / 10, "{found:?}");
    let old = "out[out_index(b, t, h) + e] = ";
    let new = format!("{old} select(0.0, 1.0, t + 1u == params.t) + ");
    let found = verify_sampled(&g, y, |plan| replace(plan, "attention", old, &new));
    let Problem::Wrong(m) = &found.troubles[0].problem else { panic!("{}", found.troubles[0]) };
    assert_eq!(m.worst[0].index[1], 399, "{m}");
}

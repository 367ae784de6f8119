//! The device layer: buffers, states, readback, errors. Runs on whatever adapter there is.

use wgformer::gpu::{Gpu, Memory, Request, request};
use wgformer::graph::{Graph, ValueId};
use wgformer::plan::Plan;
use wgformer::{ErrorKind, HostTensor, TensorType, ops};

fn gpu() -> Gpu {
    request(&Request::default()).unwrap()
}

fn floats(n: usize) -> HostTensor {
    HostTensor::f32([n], (0..n).map(|i| i as f32 * 0.5 - 3.0).collect())
}

/// y = (2 x) + b, x an input, b a state.
fn small(n: usize) -> (Graph, ValueId, ValueId) {
    let mut g = Graph::new();
    let x = g.input("x", TensorType::f32([n]));
    let b = g.state("b", TensorType::f32([n]));
    let twice = ops::elementwise::scale(&mut g, x, 2.0).unwrap();
    let y = ops::elementwise::add(&mut g, twice, b).unwrap();
    (g, x, y)
}

#[test]
fn runs_a_graph() {
    let gpu = gpu();
    let memory = Memory::new(&gpu);
    let (g, x, y) = small(77);
    let mut e = gpu.executor(Plan::new(&g, &[y], gpu.profile()).unwrap(), &memory).unwrap();
    let input = floats(77);
    e.write(x, &input).unwrap();
    memory.write("b", &floats(77)).unwrap();
    e.run().unwrap();
    let want: Vec<f32> = input.as_f32("x").unwrap().iter().map(|v| v * 3.0).collect();
    assert_eq!(e.read(y).unwrap().as_f32("y").unwrap(), want);
    let fetched = e.run_and_fetch().unwrap().wait().unwrap();
    assert_eq!(fetched[0].as_f32("y").unwrap(), want);
}

#[test]
fn names_an_input_that_is_missing_or_of_another_shape() {
    let gpu = gpu();
    let (g, x, y) = small(8);
    let mut e = gpu.executor(Plan::new(&g, &[y], gpu.profile()).unwrap(), &Memory::new(&gpu)).unwrap();
    let missing = e.run().unwrap_err();
    assert_eq!(missing.kind(), ErrorKind::Input);
    assert!(missing.to_string().contains("input x "), "{missing}");
    let shape = e.write(x, &floats(9)).unwrap_err();
    assert_eq!(shape.to_string(), "input: x: expected f32[8], got f32[9]");
}

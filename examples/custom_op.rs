//! An op of one's own with kernels of one's own: a gate relu(a)^2 b behind a matmul of this crate, differentiated through
//! both, and compared with the interpreter, which runs the references in 64-bit floats.
//!
//! ```sh
//! cargo run --release --example custom_op
//! ```

use wgformer::graph::{Graph, Interpreter, Lowering, Node, Op, ValueId};
use wgformer::kernel::{Access, Dispatch, Field, Kernel, Operand, Requires, parts};
use wgformer::kernels::{Computation, Ports};
use wgformer::ops::{elementwise::Activation, matmul};
use wgformer::{Error, HostTensor, Result, Tensor64, TensorType};

const FORWARD: &str = "
@group(0) @binding(0) var<storage, read> a: array<f32>;
@group(0) @binding(1) var<storage, read> b: array<f32>;
@group(0) @binding(2) var<storage, read_write> out: array<f32>;

fn one(i: u32) {
    let r = max(a[i], 0.0);
    out[i] = r * r * b[i];
}";

const BACKWARD: &str = "
@group(0) @binding(0) var<storage, read> a: array<f32>;
@group(0) @binding(1) var<storage, read> b: array<f32>;
@group(0) @binding(2) var<storage, read> d_out: array<f32>;
@group(0) @binding(3) var<storage, read_write> d_a: array<f32>;
@group(0) @binding(4) var<storage, read_write> d_b: array<f32>;

fn one(i: u32) {
    let r = max(a[i], 0.0);
    d_a[i] = 2.0 * r * b[i] * d_out[i];
    d_b[i] = r * r * d_out[i];
}";

/// What both have in common. Kernels run without bounds checks: the guard is needed.
const MAIN: &str = "
struct Params { elements: u32 }
@group(1) @binding(0) var<uniform> params: Params;

@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let i = 64u * (group.y * groups.x + group.x) + lane;
    if i < params.elements { one(i); }
}";

/// One dispatch over all elements; the operands are those of the bindings, in order.
fn dispatch(
    l: &mut Lowering,
    name: &str,
    wgsl: &'static str,
    reads: usize,
    operands: &[Operand],
) -> Result<()> {
    let elements = l.input_type(0).shape.elements();
    let access = |i| if i < reads { Access::Read } else { Access::Write };
    l.push(Dispatch {
        kernel: Kernel {
            name: name.into(),
            parts: parts([wgsl, MAIN]),
            entry: "main",
            bindings: (0..operands.len()).map(access).collect(),
            params: &[Field { name: "elements", ty: "u32", offset: 0 }],
            constants: vec![],
            requires: Requires::default(),
        },
        operands: operands.iter().map(|&o| o.into()).collect(),
        params: (elements as u32).to_le_bytes().to_vec(),
        groups: l.groups_1d(elements.div_ceil(64))?,
        flops: 3 * elements as u64,
    });
    Ok(())
}

#[derive(Debug)]
struct Gate;

impl Op for Gate {
    fn name(&self) -> &'static str {
        "gate"
    }

    fn outputs(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>> {
        match inputs {
            [a, b] if a == b => Ok(vec![(*a).clone()]),
            [a, b] => Err(Error::shape("", "b", a, b)),
            _ => Err(Error::config("gate", "takes a and b")),
        }
    }

    fn reference(&self, inputs: &[&Tensor64]) -> Vec<Tensor64> {
        let (a, b) = (inputs[0], inputs[1]);
        vec![Tensor64::from_fn(a.shape.clone(), |i| a.data[i].max(0.0).powi(2) * b.data[i])]
    }

    fn gradient(&self, g: &mut Graph, node: &Node, d: &[Option<ValueId>]) -> Result<Vec<Option<ValueId>>> {
        let Some(d_out) = d[0] else { return Ok(vec![None, None]) };
        let gradients = g.add_node(GateBackward, &[node.inputs[0], node.inputs[1], d_out])?;
        Ok(gradients.into_iter().map(Some).collect())
    }

    fn lower(&self, l: &mut Lowering) -> Result<()> {
        let operands = [l.input(0), l.input(1), l.output(0)];
        dispatch(l, "gate/forward", FORWARD, 2, &operands)
    }
}

/// (d_a, d_b) from a, b, d_out.
#[derive(Debug)]
struct GateBackward;

impl Op for GateBackward {
    fn name(&self) -> &'static str {
        "gate_backward"
    }

    fn outputs(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>> {
        Ok(vec![inputs[0].clone(), inputs[1].clone()])
    }

    fn reference(&self, inputs: &[&Tensor64]) -> Vec<Tensor64> {
        let [a, b, d] = [0, 1, 2].map(|i| &inputs[i].data);
        let make = |f: &dyn Fn(usize) -> f64| Tensor64::from_fn(inputs[0].shape.clone(), f);
        vec![make(&|i| 2.0 * a[i].max(0.0) * b[i] * d[i]), make(&|i| a[i].max(0.0).powi(2) * d[i])]
    }

    fn lower(&self, l: &mut Lowering) -> Result<()> {
        let operands = [l.input(0), l.input(1), l.input(2), l.output(0), l.output(1)];
        dispatch(l, "gate/backward", BACKWARD, 3, &operands)
    }
}

/// gate(x W, b): x [30, 40], W [40, 50], b [30, 50].
struct Gated;

impl Computation for Gated {
    fn build(&self, ports: &mut Ports) -> Result<()> {
        let x = ports.floats("x", [30, 40])?;
        let w = ports.floats("w", [40, 50])?;
        let b = ports.floats("b", [30, 50])?;
        let a = matmul::linear(ports.graph(), x, w, None, Activation::None)?;
        let out = ports.graph().add(Gate, &[a, b])?;
        ports.output("out", out);
        Ok(())
    }
}

fn main() -> Result<()> {
    let gpu = wgformer::gpu::request(&Default::default())?;
    let mut worst = 0.0f64;
    for mut prepared in [Gated.forward(&gpu)?, Gated.backward(&gpu)?] {
        // The same numbers for the device and for the interpreter.
        let mut oracle = Interpreter::new();
        for port in prepared.inputs().to_vec() {
            let number = |i: usize| ((i * 7919 + port.name.len() * 31) % 1999) as f32 / 1000.0 - 1.0;
            let values: Vec<f32> = (0..port.ty.shape.elements()).map(number).collect();
            prepared.write(&port.name, &values)?;
            let tensor = HostTensor::f32(port.ty.shape, values);
            oracle.set(prepared.graph(), port.value, tensor.to_f64())?;
        }
        oracle.run(prepared.graph())?;
        let got = prepared.run(&[])?;
        for (port, got) in prepared.outputs().into_iter().zip(got) {
            let want = oracle.get(prepared.graph(), port.value)?;
            let size = want.data.iter().fold(0.0f64, |most, x| most.max(x.abs()));
            let off = got.iter().zip(&want.data).map(|(g, w)| (f64::from(*g) - w).abs()).fold(0.0, f64::max);
            println!("{:4} {}: off by {:.1e} of {size:.2}", port.name, port.ty, off);
            worst = worst.max(off / size);
        }
    }
    assert!(worst < 1e-5, "the op is wrong");
    Ok(())
}

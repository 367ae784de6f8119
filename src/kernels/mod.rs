//! Kernels on their own: one op as a function of arrays, forward or backward, without a model around it.
//!
//! ```no_run
//! use wgformer::kernels::{Attention, Computation};
//!
//! # fn main() -> wgformer::Result<()> {
//! let gpu = wgformer::gpu::request(&Default::default())?;
//! let settings = Attention { heads: 8, head_width: 64, target: 100, source: 100, causal: true, ..Default::default() };
//! let mut attention = settings.forward(&gpu)?;
//! let q = vec![0.5; 100 * 8 * 64];
//! let out = attention.run(&[("q", &q), ("k", &q), ("v", &q)])?;
//! assert_eq!(out[0].len(), q.len());
//!
//! // Inputs and the gradient by each output in, the gradients by the inputs out.
//! let gradients = settings.backward(&gpu)?.run(&[("q", &q), ("k", &q), ("v", &q), ("d_out", &q)])?;
//! assert_eq!(gradients.len(), 3);
//! # Ok(())
//! # }
//! ```
//!
//! Every entry is a struct of shapes and settings that implements [`Computation`]; its documentation names inputs and
//! outputs. A program adds its own in the same way, of ops of this crate and of its own
//! ([`Op`](crate::graph::Op)). A [`Prepared`] gives away its [`Executor`], for a program that keeps its arrays on the
//! device.

mod list;

pub use list::{
    Activate, Attention, CrossEntropy, Dropout, Embedding, LayerNorm, Linear, MatMul, Packing, Softmax,
};

use crate::gpu::{Executor, Gpu, Memory};
use crate::graph::{Graph, ValueId};
use crate::plan::{Plan, Port};
use crate::{DType, Error, HostTensor, Result, Shape, TensorType};

/// Something to compute of named inputs.
pub trait Computation {
    /// Adds the inputs, the ops and the outputs.
    ///
    /// # Errors
    /// When shapes or settings do not fit together.
    fn build(&self, ports: &mut Ports) -> Result<()>;

    /// Makes ready to compute the outputs.
    ///
    /// # Errors
    /// When shapes or settings do not fit together, or the device is too small or fails.
    fn forward(&self, gpu: &Gpu) -> Result<Prepared> {
        let mut ports = Ports::default();
        self.build(&mut ports)?;
        let outputs = std::mem::take(&mut ports.outputs).into_iter().map(|o| (o.name, o.value)).collect();
        Prepared::new(gpu, ports, outputs)
    }

    /// Makes ready to compute the gradients. The inputs are those of [`Computation::forward`], and for each output `y`
    /// that has a gradient an input `d_y` of its shape: the gradient of a loss by it. The outputs are named `d_x`, the
    /// gradient of that loss by `x`, for each input of floats that has one, in order.
    ///
    /// # Errors
    /// As [`Computation::forward`]; when there is no gradient.
    fn backward(&self, gpu: &Gpu) -> Result<Prepared> {
        let mut ports = Ports::default();
        self.build(&mut ports)?;
        let mut seeds = Vec::new();
        for output in std::mem::take(&mut ports.outputs).into_iter().filter(|o| o.differentiable) {
            let shape = ports.graph.shape(output.value).clone();
            seeds.push((output.value, ports.fixed_floats(format!("d_{}", output.name), shape)?));
        }
        let (names, wrt): (Vec<String>, Vec<ValueId>) = std::mem::take(&mut ports.wrt).into_iter().unzip();
        let gradients = ports.graph.backward(&seeds, &wrt)?;
        let named = names.into_iter().zip(gradients);
        let outputs: Vec<_> = named.filter_map(|(name, d)| Some((format!("d_{name}"), d?))).collect();
        if outputs.is_empty() {
            return Err(Error::config("backward", "no input has a gradient"));
        }
        Prepared::new(gpu, ports, outputs)
    }
}

/// The inputs and outputs of a [`Computation`] while it is built.
#[derive(Debug, Default)]
pub struct Ports {
    graph: Graph,
    wrt: Vec<(String, ValueId)>,
    outputs: Vec<Output>,
}

#[derive(Debug)]
struct Output {
    name: String,
    value: ValueId,
    differentiable: bool,
}

impl Ports {
    /// The graph, to add ops to.
    pub fn graph(&mut self) -> &mut Graph {
        &mut self.graph
    }

    /// An input of floats, with a gradient.
    ///
    /// # Errors
    /// When the shape has no elements, or more than there are numbers for.
    pub fn floats(&mut self, name: impl Into<String>, shape: impl Into<Shape>) -> Result<ValueId> {
        let name = name.into();
        let id = self.fixed_floats(name.clone(), shape)?;
        self.wrt.push((name, id));
        Ok(id)
    }

    /// An input of floats, without a gradient.
    ///
    /// # Errors
    /// As [`Ports::floats`].
    pub fn fixed_floats(&mut self, name: impl Into<String>, shape: impl Into<Shape>) -> Result<ValueId> {
        self.input(name.into(), TensorType::f32(shape))
    }

    /// An input of unsigned integers: ids, lengths, masks, seeds.
    ///
    /// # Errors
    /// As [`Ports::floats`].
    pub fn integers(&mut self, name: impl Into<String>, shape: impl Into<Shape>) -> Result<ValueId> {
        self.input(name.into(), TensorType::u32(shape))
    }

    fn input(&mut self, name: String, ty: TensorType) -> Result<ValueId> {
        let elements = ty.shape.dims().iter().try_fold(1usize, |n, &d| n.checked_mul(d));
        match elements {
            Some(1..=0xffff_ffff) => Ok(self.graph.input(name, ty)),
            _ => Err(Error::shape("input", name, "1 to 2^32 - 1 elements", ty)),
        }
    }

    /// Makes a value an output.
    pub fn output(&mut self, name: impl Into<String>, value: ValueId) {
        self.outputs.push(Output { name: name.into(), value, differentiable: true });
    }

    /// Makes a value an output that no gradient comes from: a count, say.
    pub fn fixed_output(&mut self, name: impl Into<String>, value: ValueId) {
        self.outputs.push(Output { name: name.into(), value, differentiable: false });
    }
}

/// Numbers for an input: a slice, array or `Vec` of `f32` or `u32`.
pub trait Numbers {
    /// The elements as a tensor of this shape; their number is that of the shape.
    fn tensor(&self, shape: Shape) -> HostTensor;

    /// How many there are, and of which type.
    fn kind(&self) -> (usize, DType);
}

macro_rules! numbers {
    ($number:ident, $variant:ident) => {
        numbers!($number, $variant, [], [$number]);
        numbers!($number, $variant, [], Vec<$number>);
        numbers!($number, $variant, [const N: usize], [$number; N]);
        numbers!($number, $variant, [], &[$number]);
    };
    ($number:ident, $variant:ident, [$($generic:tt)*], $from:ty) => {
        impl<$($generic)*> Numbers for $from {
            fn tensor(&self, shape: Shape) -> HostTensor {
                HostTensor::$variant(shape, self.to_vec())
            }

            fn kind(&self) -> (usize, DType) {
                (self.len(), DType::$variant)
            }
        }
    };
}

numbers!(f32, F32);
numbers!(u32, U32);

/// A computation that is compiled, with its buffers.
#[derive(Debug)]
pub struct Prepared {
    graph: Graph,
    outputs: Vec<(String, ValueId)>,
    executor: Executor,
}

impl Prepared {
    fn new(gpu: &Gpu, ports: Ports, outputs: Vec<(String, ValueId)>) -> Result<Prepared> {
        let ids: Vec<ValueId> = outputs.iter().map(|(_, id)| *id).collect();
        let plan = Plan::new(&ports.graph, &ids, gpu.profile())?;
        let executor = gpu.executor(plan, &Memory::new(gpu))?;
        Ok(Prepared { graph: ports.graph, outputs, executor })
    }

    /// The graph, gradients included.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// The inputs: names, types, and the ids by which [`Prepared::executor`] knows them.
    pub fn inputs(&self) -> &[Port] {
        &self.executor.plan().inputs
    }

    /// The outputs, likewise.
    pub fn outputs(&self) -> Vec<Port> {
        let port = |(name, id): &(String, ValueId)| {
            let ty = self.graph.value(*id).ty.clone();
            Port { value: *id, name: name.clone(), ty }
        };
        self.outputs.iter().map(port).collect()
    }

    /// The input of this name.
    ///
    /// # Errors
    /// When there is none; the message names those that there are.
    pub fn input(&self, name: &str) -> Result<ValueId> {
        find("input", name, self.inputs())
    }

    /// The output of this name.
    ///
    /// # Errors
    /// When there is none; the message names those that there are.
    pub fn output(&self, name: &str) -> Result<ValueId> {
        find("output", name, &self.outputs())
    }

    /// What runs it, for a program that keeps its arrays on the device.
    pub fn executor(&mut self) -> &mut Executor {
        &mut self.executor
    }

    /// Gives an input its numbers, in row-major order. It keeps them from run to run.
    ///
    /// # Errors
    /// When there is no such input, when it has another number or type of elements, or the device fails.
    pub fn write(&mut self, name: &str, numbers: &dyn Numbers) -> Result<()> {
        let id = self.input(name)?;
        let ty = self.graph.value(id).ty.clone();
        let (count, dtype) = numbers.kind();
        if count != ty.shape.elements() || dtype != ty.dtype {
            let (want, got) = (ty.shape.elements(), format!("{count} {dtype}"));
            return Err(Error::shape("input", name, format!("{want} {} for {}", ty.dtype, ty.shape), got));
        }
        self.executor.write(id, &numbers.tensor(ty.shape))
    }

    /// Writes these inputs by name, runs, and gives back the outputs, each in row-major order. Inputs that are not given
    /// keep what they had. Blocks.
    ///
    /// # Errors
    /// As [`Prepared::write`]; when an input was never given, or an output is not of floats (for those, see
    /// [`Prepared::executor`]).
    pub fn run(&mut self, inputs: &[(&str, &dyn Numbers)]) -> Result<Vec<Vec<f32>>> {
        for (name, numbers) in inputs {
            self.write(name, *numbers)?;
        }
        let outputs = self.executor.run_and_fetch()?.wait()?;
        let named = self.outputs.iter().zip(outputs);
        named.map(|((name, _), tensor)| Ok(tensor.as_f32(name)?.to_vec())).collect()
    }
}

fn find(what: &str, name: &str, ports: &[Port]) -> Result<ValueId> {
    let found = ports.iter().find(|p| p.name == name).map(|p| p.value);
    found.ok_or_else(|| {
        let names: Vec<&str> = ports.iter().map(|p| p.name.as_str()).collect();
        Error::Input(format!("there is no {what} {name:?}; there are {}", names.join(", ")))
    })
}

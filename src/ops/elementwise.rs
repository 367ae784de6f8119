//! Element-wise ops: add, multiply, scale, copy, activations.

use super::lib_wgsl;
use super::matmul::Extra;
use super::params::params;
use super::rounding::{DIVIDE, EPS, TANH, TINY, exp, once, size};
use crate::graph::{Graph, Lowering, Node, Op, ValueId};
use crate::kernel::{Access, Const, Dispatch, Kernel, Requires, parts};
use crate::{DType, Error, Result, Tensor64, TensorType};
use std::any::Any;

pub(super) const SOURCE: &str = include_str!("../../shaders/elementwise.wgsl");
const GROUP: u32 = 64;

/// An activation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(
    feature = "import",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "kebab-case")
)]
pub enum Activation {
    /// The identity.
    None,
    /// max(x, 0).
    Relu,
    /// x Phi(x), by the error function.
    Gelu,
    /// GELU by the tanh approximation (Hendrycks and Gimpel, 2016, section 2).
    GeluTanh,
    /// x sigmoid(x).
    Silu,
}

impl Activation {
    /// The number that the shaders know it by (`shaders/lib/activation.wgsl`).
    pub fn code(self) -> u32 {
        match self {
            Activation::None => 0,
            Activation::Relu => 1,
            Activation::Gelu => 2,
            Activation::GeluTanh => 3,
            Activation::Silu => 4,
        }
    }

    /// Its value at `x`.
    pub fn value(self, x: f64) -> f64 {
        match self {
            Activation::None => x,
            Activation::Relu => x.max(0.0),
            Activation::Gelu => 0.5 * x * erfc(-x * std::f64::consts::FRAC_1_SQRT_2),
            Activation::GeluTanh => 0.5 * x * (1.0 + tanh_argument(x).tanh()),
            Activation::Silu => x / (1.0 + (-x).exp()),
        }
    }

    /// Its derivative at `x`; ReLU's is the same at its result.
    pub fn slope(self, x: f64) -> f64 {
        match self {
            Activation::None => 1.0,
            Activation::Relu => f64::from(x > 0.0),
            Activation::Gelu => {
                let phi = (-0.5 * x * x).exp() / (2.0 * std::f64::consts::PI).sqrt();
                0.5 * erfc(-x * std::f64::consts::FRAC_1_SQRT_2) + x * phi
            }
            Activation::GeluTanh => {
                let t = tanh_argument(x).tanh();
                let dz = (2.0 / std::f64::consts::PI).sqrt() * (1.0 + 3.0 * 0.044715 * x * x);
                0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * dz
            }
            Activation::Silu => {
                let s = 1.0 / (1.0 + (-x).exp());
                s * (1.0 + x * (1.0 - s))
            }
        }
    }

    /// The most that the value changes with x: the largest derivative, between 1.09 and 1.13 for the smooth ones.
    pub(super) fn steepest(self) -> f64 {
        match self {
            Activation::None | Activation::Relu => 1.0,
            Activation::Gelu | Activation::GeluTanh | Activation::Silu => 1.13,
        }
    }

    /// The error of the value at `x`, in units of eps: that of the function that it is made of, and one for each
    /// operation around it.
    pub(super) fn rounding(self, x: f64) -> f64 {
        let y = self.value(x).abs();
        match self {
            Activation::None => 0.0,
            Activation::Relu => TINY,
            Activation::Gelu => size(x) / 2.0 * erf_rounding(x) + 3.0 * y,
            Activation::GeluTanh => size(x) / 2.0 * TANH + 3.0 * y,
            Activation::Silu => y * (sigmoid_rounding(x) + 1.0) + size(x) * SIGMOID_END,
        }
    }

    /// The error of the derivative at `x`, in the same way.
    pub(super) fn slope_rounding(self, x: f64) -> f64 {
        // Where the shaders clamp it, the derivative is constant.
        let c = x.abs().min(15.0);
        match self {
            Activation::None => 0.0,
            // It jumps where x may be taken for zero.
            Activation::Relu if x > 0.0 && x < f32::MIN_POSITIVE as f64 => 1.0 / EPS,
            Activation::Relu => 0.0,
            Activation::Gelu => {
                let phi = (-0.5 * c * c).exp() / (2.0 * std::f64::consts::PI).sqrt();
                erf_rounding(x) / 2.0 + c * phi * (exp(0.5 * c * c) + 4.0) + 1.0
            }
            Activation::GeluTanh => {
                let t = tanh_argument(c).tanh();
                let dz = (2.0 / std::f64::consts::PI).sqrt() * (1.0 + 3.0 * 0.044715 * c * c);
                // That of 1 - t^2 is 2 t times tanh's.
                TANH / 2.0 + c / 2.0 * dz * (2.0 * t * TANH + 1.0 + 4.0 * (1.0 - t * t)) + 1.0
            }
            Activation::Silu => {
                let s = 1.0 / (1.0 + (-x).exp());
                let factor = 1.0 + x.abs() * (1.0 - s);
                s * (factor * (sigmoid_rounding(x) + 3.0) + x.abs() * s * sigmoid_rounding(x))
                    + size(x) * SIGMOID_END
            }
        }
    }

    /// Whether the derivative can be had from the result alone.
    pub fn slope_from_result(self) -> bool {
        matches!(self, Activation::None | Activation::Relu)
    }
}

/// The error of 1 + erf(x / sqrt 2) as the shaders have it: 1.5e-7 by the approximation, and the rounding of its
/// polynomial, whose coefficients add up to 16 when each is counted as often as it is multiplied, times the exponential.
fn erf_rounding(x: f64) -> f64 {
    let square = 0.5 * x * x;
    1.5e-7 / EPS + (16.0 + exp(square)) * (-square).exp() + 1.0
}

/// The relative error of 1 / (1 + exp(-x)).
fn sigmoid_rounding(x: f64) -> f64 {
    let share = 1.0 / (1.0 + x.exp()); // of exp(-x) in the sum
    exp(x) * share + 1.0 + DIVIDE
}

/// Where the shaders clamp the argument of the sigmoid it is exp(-80), here rounded up, in units of eps.
const SIGMOID_END: f64 = 1.81e-35 / EPS;

fn tanh_argument(x: f64) -> f64 {
    (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x)
}

/// The complementary error function in f64: the Taylor series of erf near 0, Lentz's continued fraction of erfc beyond
/// (Abramowitz and Stegun 7.1.5 and 7.1.14).
pub fn erfc(x: f64) -> f64 {
    if x < 0.0 {
        return 2.0 - erfc(-x);
    }
    if x < 2.5 {
        let (mut term, mut sum, mut n) = (x, x, 0.0);
        while term.abs() > 1e-18 * sum.abs() {
            n += 1.0;
            term *= -x * x / n;
            sum += term / (2.0 * n + 1.0);
        }
        return 1.0 - 2.0 / std::f64::consts::PI.sqrt() * sum;
    }
    let mut fraction = 0.0;
    for k in (1..=120).rev() {
        fraction = k as f64 / 2.0 / (x + fraction);
    }
    (-x * x).exp() / std::f64::consts::PI.sqrt() / (x + fraction)
}

params! {
    struct Params {
        count: u32,
        factor: f32,
    }
}

/// Whether arrays are of four numbers an element, and how many elements they have then.
fn elem(count: usize) -> (bool, usize) {
    if count.is_multiple_of(4) { (true, count / 4) } else { (false, count) }
}

/// out = f(a).
#[derive(Clone, Copy, Debug)]
enum Unary {
    Scale(f64),
    Activate(Activation),
}

impl Op for Unary {
    fn name(&self) -> &'static str {
        "elementwise"
    }

    fn outputs(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>> {
        if !inputs[0].dtype.is_float() {
            return Err(Error::shape("", "a", "f32 or f16", inputs[0]));
        }
        Ok(vec![inputs[0].clone()])
    }

    fn reference(&self, inputs: &[&Tensor64]) -> Vec<Tensor64> {
        let f = |&x: &f64| match *self {
            Unary::Scale(factor) => x * factor,
            Unary::Activate(act) => act.value(x),
        };
        vec![Tensor64::new(inputs[0].shape.clone(), inputs[0].data.iter().map(f).collect())]
    }

    /// The factor's own rounding and the product's, or the activation's.
    fn rounding(&self, inputs: &[&Tensor64], _: &[Tensor64]) -> Vec<Tensor64> {
        let f = |&x: &f64| match *self {
            Unary::Scale(factor) => once(2.0 * size(x) * size(factor)),
            Unary::Activate(act) => act.steepest() * TINY + act.rounding(x),
        };
        vec![Tensor64::new(inputs[0].shape.clone(), inputs[0].data.iter().map(f).collect())]
    }

    fn gradient(
        &self,
        g: &mut Graph,
        node: &Node,
        d_outputs: &[Option<ValueId>],
    ) -> Result<Vec<Option<ValueId>>> {
        let Some(d) = d_outputs[0] else { return Ok(vec![None]) };
        Ok(vec![Some(match *self {
            Unary::Scale(factor) => scale(g, d, factor)?,
            Unary::Activate(act) => activate_backward(g, act, d, node.inputs[0])?,
        })])
    }

    fn lower(&self, l: &mut Lowering) -> Result<()> {
        let n = l.output_type(0).shape.elements();
        let (vec4, count) = elem(n);
        let dtype = l.output_type(0).dtype;
        let (function, act, factor) = match *self {
            Unary::Scale(factor) => (0, Activation::None, factor),
            Unary::Activate(act) => (1, act, 1.0),
        };
        l.push(Dispatch {
            kernel: Kernel {
                name: "elementwise/unary".into(),
                parts: parts([SOURCE, lib_wgsl::ACTIVATION]),
                entry: "unary",
                bindings: vec![Access::Read, Access::Write],
                params: Params::FIELDS,
                constants: vec![
                    ("GROUP", Const::U32(GROUP)),
                    ("FUNCTION", Const::U32(function)),
                    ("ACTIVATION", Const::U32(act.code())),
                    ("elem", Const::element(DType::F32, vec4)),
                    ("stored", Const::element(dtype, vec4)),
                    ("stored_b", Const::element(dtype, vec4)),
                ],
                requires: Requires { invocations: GROUP, ..Default::default() },
            }
            .stores_f16(dtype == DType::F16),
            operands: vec![l.input(0).into(), l.output(0).into()],
            params: Params { count: count as u32, factor: factor as f32 }.bytes(),
            groups: l.groups_1d(count.div_ceil(GROUP as usize))?,
            flops: n as u64,
        });
        Ok(())
    }
}

/// out = f(a, b).
#[derive(Clone, Copy, Debug)]
enum Binary {
    Add,
    ActivateBackward(Activation),
    Multiply,
    ScaleBy,
}

impl Op for Binary {
    fn name(&self) -> &'static str {
        "elementwise"
    }

    fn outputs(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>> {
        let (a, b) = (inputs[0], inputs[1]);
        if !a.dtype.is_float() {
            return Err(Error::shape("", "a", "f32 or f16", a));
        }
        let want = if matches!(self, Binary::ScaleBy) { TensorType::f32([1]) } else { a.clone() };
        if *b != want {
            return Err(Error::shape("", "b", want, b));
        }
        Ok(vec![a.clone()])
    }

    fn reference(&self, inputs: &[&Tensor64]) -> Vec<Tensor64> {
        let (a, b) = (inputs[0], inputs[1]);
        vec![Tensor64::from_fn(a.shape.clone(), |i| match *self {
            Binary::Add => a.data[i] + b.data[i],
            Binary::ActivateBackward(act) => a.data[i] * act.slope(b.data[i]),
            Binary::Multiply => a.data[i] * b.data[i],
            Binary::ScaleBy => a.data[i] * b.data[0],
        })]
    }

    /// One operation, and the derivative's own error.
    fn rounding(&self, inputs: &[&Tensor64], results: &[Tensor64]) -> Vec<Tensor64> {
        let (a, b) = (inputs[0], inputs[1]);
        vec![Tensor64::from_fn(a.shape.clone(), |i| match *self {
            Binary::Add => once(results[0].data[i].abs() + TINY),
            Binary::ActivateBackward(act) => {
                let (slope, x) = (act.slope(b.data[i]), b.data[i]);
                once(size(a.data[i]) * (size(slope) + act.slope_rounding(x)))
            }
            Binary::Multiply => once(size(a.data[i]) * size(b.data[i])),
            Binary::ScaleBy => once(size(a.data[i]) * size(b.data[0])),
        })]
    }

    fn gradient(
        &self,
        g: &mut Graph,
        node: &Node,
        d_outputs: &[Option<ValueId>],
    ) -> Result<Vec<Option<ValueId>>> {
        let Some(d) = d_outputs[0] else { return Ok(vec![None, None]) };
        match self {
            Binary::Add => Ok(vec![Some(d), Some(d)]),
            Binary::Multiply => {
                Ok(vec![Some(multiply(g, d, node.inputs[1])?), Some(multiply(g, d, node.inputs[0])?)])
            }
            // The factor is data here, never a parameter.
            Binary::ScaleBy => Ok(vec![Some(scale_by(g, d, node.inputs[1])?), None]),
            Binary::ActivateBackward(_) => {
                Err(Error::config("elementwise", "the gradient of a gradient is not supported"))
            }
        }
    }

    fn lower(&self, l: &mut Lowering) -> Result<()> {
        let n = l.output_type(0).shape.elements();
        let (vec4, count) = elem(n);
        let dtype = l.output_type(0).dtype;
        let (function, act) = match *self {
            Binary::Add => (0, Activation::None),
            Binary::ActivateBackward(act) => (1, act),
            Binary::Multiply => (2, Activation::None),
            Binary::ScaleBy => (3, Activation::None),
        };
        let stored_b = match self {
            Binary::ScaleBy => Const::element(DType::F32, false),
            _ => Const::element(dtype, vec4),
        };
        l.push(Dispatch {
            kernel: Kernel {
                name: "elementwise/binary".into(),
                parts: parts([SOURCE, lib_wgsl::ACTIVATION]),
                entry: "binary",
                bindings: vec![Access::Read, Access::Read, Access::Write],
                params: Params::FIELDS,
                constants: vec![
                    ("GROUP", Const::U32(GROUP)),
                    ("FUNCTION", Const::U32(function)),
                    ("ACTIVATION", Const::U32(act.code())),
                    ("elem", Const::element(DType::F32, vec4)),
                    ("stored", Const::element(dtype, vec4)),
                    ("stored_b", stored_b),
                ],
                requires: Requires { invocations: GROUP, ..Default::default() },
            }
            .stores_f16(dtype == DType::F16),
            operands: vec![l.input(0).into(), l.input(1).into(), l.output(0).into()],
            params: Params { count: count as u32, factor: 1.0 }.bytes(),
            groups: l.groups_1d(count.div_ceil(GROUP as usize))?,
            flops: n as u64,
        });
        Ok(())
    }
}

/// What the other input of an op does to its input of this number, where it is what a product may do at its end.
pub(super) fn as_extra(op: &dyn Op, input: usize) -> Option<Extra> {
    let op: &dyn Any = op;
    match (op.downcast_ref(), input) {
        (Some(Binary::Add), _) => Some(Extra::Added),
        (Some(Binary::ActivateBackward(act)), 0) => Some(Extra::Slope(*act)),
        _ => None,
    }
}

/// a + b, of equal shapes.
pub fn add(g: &mut Graph, a: ValueId, b: ValueId) -> Result<ValueId> {
    g.add(Binary::Add, &[a, b])
}

/// a b, element by element, of equal shapes.
pub fn multiply(g: &mut Graph, a: ValueId, b: ValueId) -> Result<ValueId> {
    g.add(Binary::Multiply, &[a, b])
}

/// factor a.
pub fn scale(g: &mut Graph, a: ValueId, factor: f64) -> Result<ValueId> {
    g.add(Unary::Scale(factor), &[a])
}

/// a times the one element of b `[1]`; no gradient by b.
pub fn scale_by(g: &mut Graph, a: ValueId, b: ValueId) -> Result<ValueId> {
    g.add(Binary::ScaleBy, &[a, b])
}

/// A copy.
pub fn copy(g: &mut Graph, a: ValueId) -> Result<ValueId> {
    scale(g, a, 1.0)
}

/// act(a).
pub fn activate(g: &mut Graph, act: Activation, a: ValueId) -> Result<ValueId> {
    if act == Activation::None { Ok(a) } else { g.add(Unary::Activate(act), &[a]) }
}

/// d act'(x): the gradient by x of act(x), from the gradient `d` of its result. For ReLU, x may be the result.
pub fn activate_backward(g: &mut Graph, act: Activation, d: ValueId, x: ValueId) -> Result<ValueId> {
    if act == Activation::None { Ok(d) } else { g.add(Binary::ActivateBackward(act), &[d, x]) }
}

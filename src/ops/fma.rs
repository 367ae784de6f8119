//! Chains of multiply-adds in registers: no part of any model, but what the benchmark measures a device's arithmetic by.

use super::params::params;
use super::rounding::{once, size};
use crate::graph::{Graph, Lowering, Op, ValueId};
use crate::kernel::{Access, Const, Dispatch, Kernel, Requires, parts};
use crate::{DType, Error, Result, Tensor64, TensorType};

pub(super) const SOURCE: &str = include_str!("../../shaders/fma.wgsl");
const GROUP: u32 = 64;
/// The values of each vec4 that are on the way at a time: eight hide the four or so cycles that each of them takes.
const CHAINS: usize = 8;

params! {
    struct Params {
        count: u32,
    }
}

/// Inputs: the starts `[n]`, and `[2]`: a, b.
#[derive(Clone, Copy, Debug)]
struct Fma {
    rounds: usize,
}

impl Fma {
    /// What `chain` makes of each of the values that a start becomes, added up.
    fn of(inputs: &[&Tensor64], chain: impl Fn(f64, f64, f64) -> f64) -> Tensor64 {
        let [a, b] = [0, 1].map(|i| inputs[1].data[i]);
        let start = inputs[0];
        Tensor64::from_fn(start.shape.clone(), |i| {
            (0..CHAINS).map(|j| chain(start.data[i] + j as f64, a, b)).sum()
        })
    }
}

impl Op for Fma {
    fn name(&self) -> &'static str {
        "fma"
    }

    fn outputs(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>> {
        let start = inputs[0];
        if start.dtype != DType::F32
            || start.shape.elements() == 0
            || !start.shape.elements().is_multiple_of(4)
        {
            return Err(Error::shape("", "start", "f32, a multiple of 4 elements", start));
        }
        let want = TensorType::f32([2]);
        if *inputs[1] != want {
            return Err(Error::shape("", "factors", want, inputs[1]));
        }
        Ok(vec![start.clone()])
    }

    fn reference(&self, inputs: &[&Tensor64]) -> Vec<Tensor64> {
        vec![Fma::of(inputs, |x, a, b| (0..self.rounds).fold(x, |x, _| a * x + b))]
    }

    /// Each round's product and sum, and what is lost before it times a; the start's, and the sum of the chains.
    fn rounding(&self, inputs: &[&Tensor64], _results: &[Tensor64]) -> Vec<Tensor64> {
        vec![Fma::of(inputs, |x, a, b| {
            let mut error = once(x.abs());
            let mut value = size(x);
            for _ in 0..self.rounds {
                let product = size(a) * value;
                value = product + size(b);
                error = size(a) * error + once(product) + once(value);
            }
            error + once(CHAINS as f64 * value)
        })]
    }

    fn lower(&self, l: &mut Lowering) -> Result<()> {
        let count = l.output_type(0).shape.elements() / 4;
        let constants = [("GROUP", GROUP), ("CHAINS", CHAINS as u32), ("ROUNDS", self.rounds as u32)];
        l.push(Dispatch {
            kernel: Kernel {
                name: "fma/forward".into(),
                parts: parts([SOURCE]),
                entry: "forward",
                bindings: vec![Access::Read, Access::Read, Access::Write],
                params: Params::FIELDS,
                constants: constants.map(|(name, n)| (name, Const::U32(n))).to_vec(),
                requires: Requires { invocations: GROUP, ..Default::default() },
            },
            operands: vec![l.input(0).into(), l.input(1).into(), l.output(0).into()],
            params: Params { count: count as u32 }.bytes(),
            groups: l.groups_1d(count.div_ceil(GROUP as usize))?,
            flops: (2 * 4 * count * CHAINS * self.rounds) as u64,
        });
        Ok(())
    }
}

/// Of each element of `start` f32 `[n]`, n a multiple of 4: eight values, x + 0 to x + 7, each of them `rounds` times
/// replaced by a x + b with (a, b) = `factors` f32`[2]`, added up. No gradient.
///
/// # Errors
/// When shapes do not fit.
pub fn fma(g: &mut Graph, start: ValueId, factors: ValueId, rounds: usize) -> Result<ValueId> {
    g.add(Fma { rounds }, &[start, factors])
}

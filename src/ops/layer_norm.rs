//! LayerNorm over the innermost dimension, plain or after a residual sum with dropout.

use super::dropout::{active, dropout_parts, key};
use super::excerpt;
use super::params::params;
use super::random::Dropout;
use super::rounding::{DIVIDE, EPS, INVERSE_SQRT, TINY, once, size, sum};
use super::rows::Rows;
use crate::graph::{Excerpt, Graph, Lowering, Node, Op, ValueId};
use crate::kernel::{Access, Const, Dispatch, Kernel, Requires, parts};
use crate::profile::DeviceClass;
use crate::rng::Rng;
use crate::{DType, Error, Result, Shape, Tensor64, TensorType};

pub(super) const SOURCE: &str = include_str!("../../shaders/layer_norm.wgsl");

// Elems of its row that a lane keeps in registers, and of gamma and beta.
const HELD: usize = 32;
// The fewest rows of a strip.
const STRIP: usize = 8;

params! {
    struct Params {
        rows: u32,
        eps: f32,
        threshold: u32,
        scale: f32,
        site: u32,
        strip: u32,
        strips: u32,
    }
}

impl Params {
    fn new(rows: &Rows, eps: f64, dropout: Option<Dropout>) -> Self {
        let mut params = Params { rows: rows.rows as u32, eps: eps as f32, ..Default::default() };
        if let Some(d) = dropout {
            (params.threshold, params.scale, params.site) = (d.threshold(), d.scale() as f32, d.site);
        }
        params
    }
}

fn kernel(rows: &Rows, entry: &'static str, bindings: Vec<Access>) -> Kernel {
    let texts = [SOURCE, rows.parts()[0]].into_iter().chain(dropout_parts(rows.vec4));
    let mut constants = rows.constants();
    constants.push(("COLUMNS", Const::U32(1)));
    for flag in ["KEEP", "RESIDUAL", "DROPOUT", "SECOND", "AGAIN"] {
        constants.push((flag, Const::Bool(false)));
    }
    constants.push(("stored", Const::element(DType::F32, rows.vec4)));
    Kernel {
        name: format!("layer_norm/{entry}_{}", rows.variant()),
        parts: parts(texts),
        entry,
        bindings,
        params: Params::FIELDS,
        constants,
        requires: rows.requires(),
    }
}

fn set(kernel: &mut Kernel, name: &str, value: Const) {
    for c in &mut kernel.constants {
        if c.0 == name {
            c.1 = value;
        }
    }
}

/// y = LN(h), h = x or residual + dropout(x). Inputs: x, gamma, beta, the residual, the seed. Outputs: y, stats (mean in
/// two floats, 1 / std, 0), and with a residual h.
#[derive(Clone, Copy, Debug)]
struct LayerNorm {
    eps: f64,
    residual: bool,
    dropout: Option<Dropout>,
}

fn stats_type(x: &TensorType) -> TensorType {
    TensorType::f32([x.shape.rows(), 4])
}

fn moments(row: &[f64], eps: f64) -> (f64, f64) {
    let mean = row.iter().sum::<f64>() / row.len() as f64;
    let variance = row.iter().map(|v| (v - mean) * (v - mean)).sum::<f64>() / row.len() as f64;
    (mean, 1.0 / (variance + eps).sqrt())
}

impl Op for LayerNorm {
    fn name(&self) -> &'static str {
        "layer_norm"
    }

    fn outputs(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>> {
        let x = inputs[0];
        if !x.dtype.is_float() || x.shape.elements() == 0 {
            return Err(Error::shape("", "x", "f32 or f16, not empty", x));
        }
        let row = TensorType::new(x.dtype, [x.shape.last()]);
        for (name, t) in [("gamma", inputs[1]), ("beta", inputs[2])] {
            if *t != row {
                return Err(Error::shape("", name, row, t));
            }
        }
        if self.residual && inputs[3] != x {
            return Err(Error::shape("", "residual", x, inputs[3]));
        }
        if let Some(d) = self.dropout {
            d.check(inputs[4])?;
        }
        let mut outputs = vec![x.clone(), stats_type(x)];
        outputs.extend(self.residual.then(|| x.clone()));
        Ok(outputs)
    }

    fn reference(&self, inputs: &[&Tensor64]) -> Vec<Tensor64> {
        let mut h = inputs[0].clone();
        if let Some(d) = self.dropout {
            let key = key(d, inputs[4]);
            h.data.iter_mut().enumerate().for_each(|(i, v)| *v *= d.factor(key, i as u32));
        }
        if self.residual {
            h.data.iter_mut().zip(&inputs[3].data).for_each(|(v, r)| *v += r);
        }
        let (gamma, beta) = (&inputs[1].data, &inputs[2].data);
        let mut y = h.clone();
        let mut stats = Vec::new();
        for row in y.data.chunks_mut(gamma.len()) {
            let (mean, inv) = moments(row, self.eps);
            stats.extend([mean, 0.0, inv, 0.0]);
            for (i, v) in row.iter_mut().enumerate() {
                *v = (*v - mean) * inv * gamma[i] + beta[i];
            }
        }
        let stats = Tensor64::new([stats.len() / 4, 4], stats);
        let mut outputs = vec![y, stats];
        outputs.extend(self.residual.then_some(h));
        outputs
    }

    /// d = h - mean is small where h is far from zero, and the mean is exact up to the rounding of d all the same: the
    /// kernel corrects its first mean by that of its d. So d and its squares carry an offset, the error of the first mean,
    /// the same in the whole row.
    fn rounding(&self, inputs: &[&Tensor64], results: &[Tensor64]) -> Vec<Tensor64> {
        let (gamma, y) = (&inputs[1].data, &results[0]);
        let (c, terms) = (gamma.len() as f64, gamma.len());
        let h = if self.residual { &results[2] } else { inputs[0] };
        // The dropout's product, and the sum.
        let e_h = Tensor64::from_fn(h.shape.clone(), |i| match (self.residual, self.dropout) {
            (false, None) => TINY,
            (true, None) => once(h.data[i].abs()),
            (residual, Some(_)) => {
                let dropped = h.data[i] - if residual { inputs[3].data[i] } else { 0.0 };
                once(2.0 * dropped.abs() + h.data[i].abs())
            }
        });
        let (mut e_y, mut e_stats) = (y.clone(), results[1].clone());
        for (r, e_row) in e_y.data.chunks_mut(terms).enumerate() {
            let (h, e_h) = (h.row(r), e_h.row(r));
            let (mean, inv) = moments(h, self.eps);
            let mean_of = |x: &mut dyn Iterator<Item = f64>| x.sum::<f64>() / c;
            let e_first = sum(terms, mean_of(&mut h.iter().map(|v| v.abs())), mean) + DIVIDE * mean.abs();
            let offset = EPS * e_first;
            let d: Vec<f64> = h.iter().map(|v| size(v - mean) + offset).collect();
            let e_mean =
                sum(terms, mean_of(&mut d.iter().copied()), offset) + mean_of(&mut e_h.iter().copied());
            let e_d: Vec<f64> = d.iter().zip(e_h).map(|(d, e)| d + e + e_mean).collect();
            let variance = mean_of(&mut d.iter().map(|d| d * d));
            let e_variance =
                sum(terms, variance, variance) + 2.0 * mean_of(&mut d.iter().zip(&e_d).map(|(d, e)| d * e));
            // Relative; one for the sum with eps, and one for eps itself.
            let e_inv = 0.5 * (e_variance * inv * inv + 2.0) + INVERSE_SQRT;
            for (i, e) in e_row.iter_mut().enumerate() {
                let n = d[i] * inv;
                *e = size(gamma[i]) * (inv * e_d[i] + n * (e_inv + 2.0)) + once(y.row(r)[i].abs());
            }
            e_stats.data[4 * r..4 * r + 4].copy_from_slice(&[
                e_first + e_mean,
                e_first + e_mean,
                inv * e_inv,
                0.0,
            ]);
        }
        let mut errors = vec![e_y, e_stats];
        errors.extend(self.residual.then_some(e_h));
        errors
    }

    fn excerpts(&self, inputs: &[&Tensor64], rng: &mut Rng) -> Vec<Excerpt> {
        // What is dropped follows from the place in the whole.
        if self.dropout.is_some() {
            return Vec::new();
        }
        let width = inputs[0].shape.last();
        let widths = [width, 4, width];
        excerpt::rows(*self, inputs, &[0, 3], &widths[..2 + self.residual as usize], rng)
    }

    fn gradient(
        &self,
        g: &mut Graph,
        node: &Node,
        d_outputs: &[Option<ValueId>],
    ) -> Result<Vec<Option<ValueId>>> {
        let (x, gamma) = (node.inputs[0], node.inputs[1]);
        let stats = node.outputs[1];
        let h = if self.residual { node.outputs[2] } else { x };
        let d_h_in = if self.residual { d_outputs[2] } else { None };
        let mut gradients = vec![None; node.inputs.len()];
        let seed = node.inputs.get(4).copied();
        let (d_h, d_x) = match (d_outputs[0], d_h_in) {
            (None, None) => return Ok(gradients),
            (None, Some(d)) => {
                let d_x = match (self.dropout, seed) {
                    (Some(dropout), Some(seed)) => super::dropout::dropout(g, d, dropout, seed)?,
                    _ => d,
                };
                (d, d_x)
            }
            (Some(d_y), _) => {
                let params = g.add_node(ParamsBackward, &[d_y, h, stats])?;
                (gradients[1], gradients[2]) = (Some(params[0]), Some(params[1]));
                let mut inputs = vec![d_y, h, stats, gamma];
                inputs.extend(d_h_in);
                inputs.extend(seed.filter(|_| self.dropout.is_some()));
                let op = Backward { residual: d_h_in.is_some(), dropout: self.dropout };
                let outputs = g.add_node(op, &inputs)?;
                (outputs[0], outputs[outputs.len() - 1])
            }
        };
        gradients[0] = Some(d_x);
        if self.residual {
            gradients[3] = Some(d_h);
        }
        Ok(gradients)
    }

    fn lower(&self, l: &mut Lowering) -> Result<()> {
        let rows = Rows::new(l, "layer_norm", l.input_type(0))?.several();
        let keep = rows.steps() <= HELD;
        // Where the row does not fit into registers, the sum is read again from h, or added up again where h is rounded.
        let f16 = l.input_type(0).dtype == DType::F16;
        let again = self.residual && !keep && f16;
        let second = self.residual && (l.output_used(2) || !(keep || again));
        let mut bindings = vec![Access::Read; 5];
        bindings.extend([Access::Write; 3]);
        let mut kernel = kernel(&rows, "forward", bindings);
        set(&mut kernel, "KEEP", Const::Bool(keep));
        set(&mut kernel, "RESIDUAL", Const::Bool(self.residual));
        set(&mut kernel, "DROPOUT", Const::Bool(self.dropout.is_some()));
        set(&mut kernel, "SECOND", Const::Bool(second));
        set(&mut kernel, "AGAIN", Const::Bool(again));
        set(&mut kernel, "stored", Const::element(l.input_type(0).dtype, rows.vec4));
        let kernel = kernel.stores_f16(f16);
        // What a variant does not use is bound all the same.
        let residual = l.input(if self.residual { 3 } else { 0 });
        let seed = l.input(if self.dropout.is_some() { 4 } else { 1 });
        let h = if second { l.output(2) } else { l.scratch(UNUSED) };
        let operands = [l.input(0), l.input(1), l.input(2), residual, seed, l.output(0), l.output(1), h];
        l.push(Dispatch {
            kernel,
            operands: operands.into_iter().map(Into::into).collect(),
            params: Params::new(&rows, self.eps, self.dropout).bytes(),
            groups: rows.groups(l)?,
            flops: 8 * l.output_type(0).shape.elements() as u64,
        });
        Ok(())
    }
}

// Elements that stand in for an output that a variant does not write: more than any element type has.
const UNUSED: usize = 64;

/// The magnitude of n = (v - mean - shift) inv and its error: v - mean is exact where v is near it, so the error is that
/// of what is left. `stats` are mean, shift and inv.
fn normalised(v: f64, stats: &[f64]) -> (f64, f64) {
    let (first, n) = (size(v - stats[0]), size(v - stats[0] - stats[1]));
    (n * size(stats[2]), (first + 2.0 * n) * size(stats[2]))
}

/// The gradients by h and, with dropout, by x. Inputs: d_y, h, stats, gamma, then, where there are such, the gradient
/// that h has from elsewhere, and the seed.
#[derive(Clone, Copy, Debug)]
struct Backward {
    residual: bool,
    dropout: Option<Dropout>,
}

impl Op for Backward {
    fn name(&self) -> &'static str {
        "layer_norm"
    }

    fn outputs(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>> {
        if inputs[0] != inputs[1] {
            return Err(Error::shape("", "d_y", inputs[1], inputs[0]));
        }
        Ok(vec![inputs[0].clone(); 1 + usize::from(self.dropout.is_some())])
    }

    fn reference(&self, inputs: &[&Tensor64]) -> Vec<Tensor64> {
        let (d_y, h, stats, gamma) = (inputs[0], inputs[1], inputs[2], &inputs[3].data);
        let c = gamma.len();
        let mut d_h = d_y.clone();
        for (r, row) in d_h.data.chunks_mut(c).enumerate() {
            let (mean, inv) = (stats.data[4 * r] + stats.data[4 * r + 1], stats.data[4 * r + 2]);
            let n: Vec<f64> = h.row(r).iter().map(|v| (v - mean) * inv).collect();
            let g: Vec<f64> = d_y.row(r).iter().zip(gamma).map(|(d, w)| d * w).collect();
            let mean_g = g.iter().sum::<f64>() / c as f64;
            let mean_gn = g.iter().zip(&n).map(|(g, n)| g * n).sum::<f64>() / c as f64;
            for (i, v) in row.iter_mut().enumerate() {
                *v = inv * (g[i] - mean_g - n[i] * mean_gn);
                if self.residual {
                    *v += inputs[4].row(r)[i];
                }
            }
        }
        match (self.dropout, inputs.last()) {
            (Some(d), Some(seed)) => {
                let key = key(d, seed);
                let masked = |i: usize| d_h.data[i] * d.factor(key, i as u32);
                let d_x = Tensor64::from_fn(d_h.shape.clone(), masked);
                vec![d_h, d_x]
            }
            _ => vec![d_h],
        }
    }

    /// The two means are sums; n rounds as [`normalised`] says, g once.
    fn rounding(&self, inputs: &[&Tensor64], results: &[Tensor64]) -> Vec<Tensor64> {
        let (d_y, h, stats, gamma) = (inputs[0], inputs[1], inputs[2], &inputs[3].data);
        let (c, terms) = (gamma.len() as f64, gamma.len());
        let mut e_h = d_y.clone();
        for (r, row) in e_h.data.chunks_mut(terms).enumerate() {
            let s = &stats.data[4 * r..4 * r + 4];
            let n: Vec<(f64, f64)> = h.row(r).iter().map(|v| normalised(*v, s)).collect();
            let g: Vec<f64> = d_y.row(r).iter().zip(gamma).map(|(d, w)| size(*d) * size(*w)).collect();
            let both = || g.iter().zip(&n);
            let (sum_g, sum_gn) = (g.iter().sum::<f64>(), both().map(|(g, n)| g * n.0).sum::<f64>());
            // As they are, with their signs.
            let signed = |i: usize| d_y.row(r)[i] * gamma[i];
            let total_g = (0..terms).map(signed).sum::<f64>();
            let total_gn = (0..terms).map(|i| signed(i) * (h.row(r)[i] - s[0] - s[1]) * s[2]).sum::<f64>();
            let e_mean_g = (sum(terms, sum_g, total_g) + (1.0 + DIVIDE) * sum_g) / c;
            let e_gn = both().map(|(g, n)| g * n.1).sum::<f64>();
            let e_mean_gn = (sum(terms, sum_gn, total_gn) + e_gn + (1.0 + DIVIDE) * sum_gn) / c;
            for (i, e) in row.iter_mut().enumerate() {
                let (n, e_n) = n[i];
                let parts = g[i] + sum_g / c + n * sum_gn / c;
                *e = size(s[2]) * (4.0 * parts + e_mean_g + n * e_mean_gn + e_n * sum_gn / c);
                *e = once(*e) + if self.residual { results[0].row(r)[i].abs() } else { 0.0 };
            }
        }
        match (self.dropout, inputs.last()) {
            (Some(d), Some(seed)) => {
                let key = key(d, seed);
                let masked =
                    |i: usize| once(2.0 * results[1].data[i].abs()) + e_h.data[i] * d.factor(key, i as u32);
                let e_x = Tensor64::from_fn(e_h.shape.clone(), masked);
                vec![e_h, e_x]
            }
            _ => vec![e_h],
        }
    }

    fn lower(&self, l: &mut Lowering) -> Result<()> {
        let rows = Rows::new(l, "layer_norm_backward", l.input_type(0))?.several();
        let mut bindings = vec![Access::Read; 6];
        bindings.extend([Access::Write; 2]);
        let mut kernel = kernel(&rows, "backward", bindings);
        let keep = rows.steps() <= HELD;
        set(&mut kernel, "KEEP", Const::Bool(keep));
        set(&mut kernel, "RESIDUAL", Const::Bool(self.residual));
        set(&mut kernel, "DROPOUT", Const::Bool(self.dropout.is_some()));
        let d_h_in = l.input(if self.residual { 4 } else { 0 });
        let (seed, d_x) = match self.dropout {
            Some(_) => (l.input(l.input_count() - 1), l.output(1)),
            None => (l.input(2), l.scratch(UNUSED)),
        };
        let operands = [l.input(0), d_h_in, l.input(1), l.input(2), l.input(3), seed, l.output(0), d_x];
        l.push(Dispatch {
            kernel,
            operands: operands.into_iter().map(Into::into).collect(),
            params: Params::new(&rows, 0.0, self.dropout).bytes(),
            groups: rows.groups(l)?,
            flops: 12 * l.output_type(0).shape.elements() as u64,
        });
        Ok(())
    }
}

/// The gradients by gamma and beta, from d_y, h and stats.
#[derive(Clone, Copy, Debug)]
struct ParamsBackward;

impl Op for ParamsBackward {
    fn name(&self) -> &'static str {
        "layer_norm"
    }

    fn outputs(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>> {
        if inputs[0] != inputs[1] {
            return Err(Error::shape("", "d_y", inputs[1], inputs[0]));
        }
        Ok(vec![TensorType::f32([inputs[0].shape.last()]); 2])
    }

    fn reference(&self, inputs: &[&Tensor64]) -> Vec<Tensor64> {
        let (d_y, h, stats) = (inputs[0], inputs[1], inputs[2]);
        let shape = Shape::from([d_y.shape.last()]);
        let (mut d_gamma, mut d_beta) = (Tensor64::zeros(shape.clone()), Tensor64::zeros(shape));
        for r in 0..d_y.shape.rows() {
            let (mean, inv) = (stats.data[4 * r] + stats.data[4 * r + 1], stats.data[4 * r + 2]);
            for (i, (d, v)) in d_y.row(r).iter().zip(h.row(r)).enumerate() {
                d_gamma.data[i] += d * (v - mean) * inv;
                d_beta.data[i] += d;
            }
        }
        vec![d_gamma, d_beta]
    }

    /// Sums over the rows.
    fn rounding(&self, inputs: &[&Tensor64], results: &[Tensor64]) -> Vec<Tensor64> {
        let (d_y, h, stats) = (inputs[0], inputs[1], inputs[2]);
        let (rows, c) = (d_y.shape.rows(), d_y.shape.last());
        let mut sums = vec![[0.0; 3]; c];
        for r in 0..rows {
            for (i, (d, v)) in d_y.row(r).iter().zip(h.row(r)).enumerate() {
                let (n, e_n) = normalised(*v, &stats.data[4 * r..4 * r + 4]);
                let d = size(*d);
                let add = [d * n, d * e_n, d];
                sums[i].iter_mut().zip(add).for_each(|(s, x)| *s += x);
            }
        }
        let e_gamma = Tensor64::from_fn([c], |i| sum(rows, sums[i][0], results[0].data[i]) + sums[i][1]);
        vec![e_gamma, Tensor64::from_fn([c], |i| sum(rows, sums[i][2], results[1].data[i]))]
    }

    fn lower(&self, l: &mut Lowering) -> Result<()> {
        let ty = l.input_type(0);
        let rows = Rows::alone(ty);
        // As many strips as keep the device busy, none shorter than STRIP rows.
        // On lavapipe a sub-group that walks along whole rows is 4 times as fast as one that walks down 8 columns.
        let cpu = l.profile.class == DeviceClass::Cpu;
        let (group, columns) = if cpu { (8, rows.size.div_ceil(8).min(16)) } else { (64, 1) };
        let busy = if cpu { 1024 } else { 16384 };
        let strips = (busy / rows.size).clamp(1, 256).min(rows.rows.div_ceil(STRIP));
        let strip = rows.rows.div_ceil(strips);
        let strips = rows.rows.div_ceil(strip);
        let params = Params { strip: strip as u32, strips: strips as u32, ..Params::new(&rows, 0.0, None) };
        let partials = l.scratch(2 * strips * ty.shape.last());
        let strip_by_strip = [l.input(0), l.input(2), l.input(1), partials];
        let reduce = [partials, l.output(0), l.output(1)];
        let n = ty.shape.elements() as u64;
        let sums = (2 * strips * ty.shape.last()) as u64;
        for (entry, operands, reads, lanes, groups_y, flops) in [
            ("backward_params", &strip_by_strip[..], 3, rows.size.div_ceil(columns), strips as u32, 5 * n),
            ("reduce_params", &reduce[..], 1, 2 * rows.size, 1, sums),
        ] {
            let mut bindings = vec![Access::Read; reads];
            bindings.resize(operands.len(), Access::Write);
            let mut kernel = kernel(&rows, entry, bindings);
            kernel.name = format!("layer_norm/{entry}");
            kernel.parts[1] = super::lib_wgsl::ROWS_INVOCATION.into();
            set(&mut kernel, "WIDTH", Const::U32(1));
            set(&mut kernel, "GROUP", Const::U32(group));
            set(&mut kernel, "COLUMNS", Const::U32(columns as u32));
            kernel.requires = Requires { invocations: group, ..Default::default() };
            l.push(Dispatch {
                kernel,
                operands: operands.iter().map(|&o| o.into()).collect(),
                params: params.bytes(),
                groups: [lanes.div_ceil(group as usize) as u32, groups_y, 1],
                flops,
            });
        }
        Ok(())
    }
}

/// y = gamma (x - mean) / sqrt(variance + eps) + beta over the innermost dimension of `x` `f32[.., C]`; gamma and beta are
/// `f32[C]`. The variance is that of the row itself (divided by C).
///
/// # Errors
/// When shapes do not fit.
pub fn layer_norm(g: &mut Graph, x: ValueId, gamma: ValueId, beta: ValueId, eps: f64) -> Result<ValueId> {
    let op = LayerNorm { eps, residual: false, dropout: None };
    Ok(g.add_node(op, &[x, gamma, beta])?[0])
}

/// (y, h): h = residual + dropout(x), y = `layer_norm(h)`, in one kernel. `x` and `residual` have one shape. `seed` is
/// the input `u32[2]` that a dropout needs.
///
/// # Errors
/// When shapes do not fit, or there is a dropout and no seed.
#[allow(clippy::too_many_arguments)]
pub fn add_norm(
    g: &mut Graph,
    residual: ValueId,
    x: ValueId,
    gamma: ValueId,
    beta: ValueId,
    eps: f64,
    dropout: Option<Dropout>,
    seed: Option<ValueId>,
) -> Result<(ValueId, ValueId)> {
    let active = active(dropout, seed)?;
    let op = LayerNorm { eps, residual: true, dropout: active.map(|a| a.0) };
    let mut inputs = vec![x, gamma, beta, residual];
    inputs.extend(active.map(|a| a.1));
    let outputs = g.add_node(op, &inputs)?;
    Ok((outputs[0], outputs[2]))
}

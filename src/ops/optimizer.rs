//! The optimiser over flat pages: the global norm of the gradients, and Adam.

use super::lib_wgsl;
use super::params::params;
use super::rounding::{DIVIDE, EPS, SQRT, TINY, once, size, sum};
use crate::graph::{Graph, Lowering, Op, ValueId};
use crate::kernel::{Access, Const, Dispatch, Kernel, Operand, Requires, Slice, parts};
use crate::profile::DeviceClass;
use crate::{DType, Error, Result, Tensor64, TensorType};
use std::ops::Range;

pub(super) const SOURCE: &str = include_str!("../../shaders/optimizer.wgsl");

/// Pages have a multiple of this many elements.
const PAGE_UNIT: usize = 64;

params! {
    struct Params {
        count: u32,
        max_norm: f32,
        beta1: f32,
        beta2: f32,
        one_minus_beta1: f32,
        one_minus_beta2: f32,
        eps: f32,
        weight_decay: f32,
        decay_start: u32,
        decay_end: u32,
        share: u32,
    }
}

fn check_page(name: &str, page: &TensorType) -> Result<()> {
    if page.dtype != DType::F32 || page.shape.rank() != 1 || !page.shape.elements().is_multiple_of(PAGE_UNIT)
    {
        return Err(Error::shape("", name, format!("f32[n], n a multiple of {PAGE_UNIT}"), page));
    }
    Ok(())
}

fn check_type(name: &str, want: TensorType, got: &TensorType) -> Result<()> {
    if *got == want { Ok(()) } else { Err(Error::shape("", name, want, got)) }
}

fn kernel(l: &Lowering, entry: &'static str, bindings: Vec<Access>) -> Kernel {
    let (rows, requires, group) = match l.profile.subgroup_size() {
        Some(n) if l.profile.class == DeviceClass::Cpu && n <= 16 => {
            let requires = Requires { subgroup_size: Some(n), invocations: n, ..Default::default() };
            (lib_wgsl::ROWS_SUBGROUP, requires, n)
        }
        _ => {
            let n = l.profile.max_invocations.min(256);
            let requires = Requires { workgroup_bytes: 8 * n, invocations: n, ..Default::default() };
            (lib_wgsl::ROWS_WORKGROUP, requires, n)
        }
    };
    Kernel {
        name: format!("optimizer/{entry}"),
        parts: parts([SOURCE, rows]),
        entry,
        bindings,
        params: Params::FIELDS,
        constants: vec![
            ("GROUP", Const::U32(group)),
            ("WIDTH", Const::U32(group)),
            ("EACH", Const::U32(each(l))),
            ("DECOUPLED", Const::Bool(false)),
            ("CLIP", Const::Bool(false)),
            ("SCALED", Const::Bool(false)),
        ],
        requires,
    }
}

fn set(kernel: &mut Kernel, name: &str, value: bool) {
    for c in &mut kernel.constants {
        if c.0 == name {
            c.1 = Const::Bool(value);
        }
    }
}

/// Partial sums of a page.
const PARTIALS: usize = 256;

/// Vec4s that an invocation takes in a row: on lavapipe (Mesa 22.3.6) Adam on 2 M parameters takes 6.0 ms with 16 and 7.2
/// with 4.
fn each(l: &Lowering) -> u32 {
    if l.profile.class == DeviceClass::Cpu { 16 } else { 4 }
}

/// Global norm and clip factor. Inputs: the schedule if `scaled`, then the pages.
#[derive(Clone, Copy, Debug)]
struct GradientNorm {
    max_norm: Option<f64>,
    scaled: bool,
}

impl Op for GradientNorm {
    fn name(&self) -> &'static str {
        "optimizer"
    }

    fn outputs(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>> {
        let (schedule, pages) = inputs.split_at(usize::from(self.scaled));
        for t in schedule {
            check_type("schedule", TensorType::f32([4]), t)?;
        }
        if pages.is_empty() {
            return Err(Error::config("gradient_norm", "has no page of gradients; give at least one"));
        }
        for (i, page) in pages.iter().enumerate() {
            check_page(&format!("page {i}"), page)?;
        }
        if let Some(max_norm) = self.max_norm.filter(|n| !(*n > 0.0 && n.is_finite())) {
            return Err(Error::config(
                "max_norm",
                format!("{max_norm} is not above 0; None switches it off"),
            ));
        }
        Ok(vec![TensorType::f32([2])])
    }

    fn reference(&self, inputs: &[&Tensor64]) -> Vec<Tensor64> {
        let (schedule, pages) = inputs.split_at(usize::from(self.scaled));
        let squares: f64 = pages.iter().flat_map(|p| &p.data).map(|g| g * g).sum();
        // As on the device, whose sum is infinite where it is too large for f32.
        let squares = if (squares as f32).is_infinite() { f64::INFINITY } else { squares };
        let norm = squares.sqrt() * schedule.first().map_or(1.0, |s| s.data[3].abs());
        let factor = match self.max_norm {
            // What f32 cannot hold on the device is no finite norm.
            _ if !((squares as f32).is_finite() && (norm as f32).is_finite()) => 0.0,
            Some(max_norm) => (max_norm / (norm + 1e-6)).min(1.0),
            None => 1.0,
        };
        vec![Tensor64::new([2], vec![norm, factor])]
    }

    /// The root of a sum of sums, times the scale; the factor is a quotient by it.
    fn rounding(&self, inputs: &[&Tensor64], results: &[Tensor64]) -> Vec<Tensor64> {
        // The longest chain of additions: a page's shares are summed by 256 accumulators or more each (lanes, vec4s and
        // their components), and the partials by 4 lanes or more.
        let (schedule, pages) = inputs.split_at(usize::from(self.scaled));
        let scale = schedule.first().map_or(1.0, |s| s.data[3]);
        let longest = pages.iter().map(|p| p.data.len()).max().unwrap_or(0);
        let terms = longest.div_ceil(256 * PARTIALS) + 8 + pages.len() * PARTIALS / 4;
        let squares: f64 = pages.iter().flat_map(|p| &p.data).map(|g| g * g).sum();
        let count: usize = pages.iter().map(|p| p.data.len()).sum();
        // Each square may be taken for zero.
        let e_squares = sum(terms, squares, squares) + count as f64 * TINY;
        let (norm, factor) = (results[0].data[0], results[0].data[1]);
        if !norm.is_finite() {
            return vec![Tensor64::zeros([2])];
        }
        let e_norm = scale.abs() * root_rounding(squares, e_squares) + once(norm);
        // Nothing to round where there is no clipping.
        let clips = self.max_norm.is_some_and(|max| norm * (1.0 + 1e-3) >= max);
        let e_factor = if clips { factor * (e_norm / (norm + 1e-6) + DIVIDE + 2.0) } else { 0.0 };
        vec![Tensor64::new([2], vec![e_norm, e_factor])]
    }

    fn lower(&self, l: &mut Lowering) -> Result<()> {
        let first = usize::from(self.scaled);
        let pages = l.input_count() - first;
        let partials = l.scratch(pages * PARTIALS);
        for page in 0..pages {
            let n = l.input_type(first + page).shape.elements();
            let share = Slice { operand: partials, start: page * PARTIALS, len: Some(PARTIALS) };
            l.push(Dispatch {
                kernel: kernel(l, "norm_partial", vec![Access::Read, Access::Write]),
                operands: vec![l.input(first + page).into(), share],
                params: params_bytes(Params {
                    count: (n / 4) as u32,
                    share: (n / 4).div_ceil(PARTIALS) as u32,
                    ..Default::default()
                }),
                groups: [PARTIALS as u32, 1, 1],
                flops: 2 * n as u64,
            });
        }
        let mut kernel = kernel(l, "norm_final", vec![Access::Read, Access::Read, Access::Write]);
        set(&mut kernel, "CLIP", self.max_norm.is_some());
        set(&mut kernel, "SCALED", self.scaled);
        let schedule: Operand = if self.scaled { l.input(0) } else { partials };
        l.push(Dispatch {
            kernel,
            operands: vec![partials.into(), schedule.into(), l.output(0).into()],
            params: params_bytes(Params {
                count: (pages * PARTIALS) as u32,
                max_norm: self.max_norm.unwrap_or(0.0) as f32,
                ..Default::default()
            }),
            groups: [1, 1, 1],
            flops: (pages * PARTIALS) as u64,
        });
        Ok(())
    }
}

fn params_bytes(params: Params) -> Vec<u8> {
    params.bytes()
}

/// The settings of Adam.
#[derive(Clone, Debug, PartialEq)]
pub struct AdamSettings {
    /// The decay of the mean of gradients.
    pub beta1: f64,
    /// The decay of the mean of squared gradients.
    pub beta2: f64,
    /// Added to the root of the latter.
    pub eps: f64,
    /// Pulls parameters to zero; 0 switches it off.
    pub weight_decay: f64,
    /// Weight decay beside the gradient (AdamW, Loshchilov and Hutter, 2019) instead of in it.
    pub decoupled: bool,
    /// The elements of the page that weight decay applies to; both ends are multiples of 4 (parameters start at
    /// multiples of 64).
    pub decay: Range<usize>,
}

impl AdamSettings {
    /// Those of "Attention is all you need", section 5.3: beta 0.9 and 0.98, eps 1e-9, no weight decay.
    pub fn transformer() -> Self {
        AdamSettings { beta1: 0.9, beta2: 0.98, eps: 1e-9, weight_decay: 0.0, decoupled: true, decay: 0..0 }
    }
}

/// The error of sqrt(x) for an x with this error: to first order, but where x is tiny the root of the error is less.
fn root_rounding(x: f64, error: f64) -> f64 {
    (0.5 * error / x.sqrt()).min((error / EPS).sqrt()) + SQRT * x.sqrt()
}

/// Inputs: parameters, m, v (updated), gradients, schedule, norm. No outputs.
#[derive(Clone, Debug)]
struct Adam(AdamSettings);

impl Op for Adam {
    fn name(&self) -> &'static str {
        "optimizer"
    }

    fn outputs(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>> {
        let page = inputs[0];
        check_page("parameters", page)?;
        for (name, t) in [("m", inputs[1]), ("v", inputs[2]), ("gradients", inputs[3])] {
            check_type(name, page.clone(), t)?;
        }
        check_type("schedule", TensorType::f32([4]), inputs[4])?;
        check_type("norm", TensorType::f32([2]), inputs[5])?;
        let s = &self.0;
        for (name, beta) in [("beta1", s.beta1), ("beta2", s.beta2)] {
            if !(0.0..1.0).contains(&beta) {
                return Err(Error::config(name, format!("{beta} is not in 0 <= {name} < 1")));
            }
        }
        for (name, v) in [("eps", s.eps), ("weight_decay", s.weight_decay)] {
            if !(v >= 0.0 && v.is_finite()) {
                return Err(Error::config(name, format!("{v} is below 0; give 0 or more")));
            }
        }
        let Range { start, end } = s.decay;
        if !start.is_multiple_of(4) || !end.is_multiple_of(4) || start > end || end > page.shape.elements() {
            let problem = format!("{start}..{end} is no range of multiples of 4 within {page}");
            return Err(Error::config("decay", problem));
        }
        Ok(Vec::new())
    }

    fn updates(&self) -> Vec<usize> {
        vec![0, 1, 2]
    }

    fn reference(&self, inputs: &[&Tensor64]) -> Vec<Tensor64> {
        let s = &self.0;
        let (mut p, mut m, mut v) = (inputs[0].clone(), inputs[1].clone(), inputs[2].clone());
        let [lr, c1, c2, scale] = [0, 1, 2, 3].map(|i| inputs[4].data[i]);
        let factor = inputs[5].data[1];
        if factor == 0.0 {
            return vec![p, m, v];
        }
        for i in 0..p.data.len() {
            let decay = if s.decay.contains(&i) { s.weight_decay * p.data[i] } else { 0.0 };
            let mut g = inputs[3].data[i] * scale * factor;
            if !s.decoupled {
                g += decay;
            }
            m.data[i] = s.beta1 * m.data[i] + (1.0 - s.beta1) * g;
            v.data[i] = s.beta2 * v.data[i] + (1.0 - s.beta2) * g * g;
            let mut change = m.data[i] * c1 / ((v.data[i] * c2).sqrt() + s.eps);
            if s.decoupled {
                change += decay;
            }
            p.data[i] -= lr * change;
        }
        vec![p, m, v]
    }

    /// Every operation in turn: a product with a setting counts twice, since that is rounded too.
    fn rounding(&self, inputs: &[&Tensor64], results: &[Tensor64]) -> Vec<Tensor64> {
        let s = &self.0;
        let mut errors: Vec<Tensor64> = results.iter().map(|t| Tensor64::zeros(t.shape.clone())).collect();
        let [lr, c1, c2, scale] = [0, 1, 2, 3].map(|i| size(inputs[4].data[i]));
        let factor = inputs[5].data[1];
        if factor == 0.0 {
            return errors;
        }
        for i in 0..inputs[0].data.len() {
            let [p, m, v] = [0, 1, 2].map(|j| results[j].data[i]);
            let [old_p, old_m, old_v] = [0, 1, 2].map(|j| size(inputs[j].data[i]));
            let decay = if s.decay.contains(&i) { s.weight_decay * old_p } else { 0.0 };
            let own = size(inputs[3].data[i]) * scale * factor;
            let (mut g, mut e_g) = (own, 2.0 * own);
            if !s.decoupled {
                (g, e_g) = (g + decay, e_g + 2.0 * decay + own + decay);
            }
            let e_m = 2.0 * s.beta1 * old_m + (1.0 - s.beta1) * (e_g + 2.0 * g) + size(m);
            let e_v = 2.0 * s.beta2 * old_v + (1.0 - s.beta2) * (2.0 * g * e_g + 3.0 * g * g) + size(v);
            let root = (v * c2).sqrt();
            let e_square = c2 * (e_v + size(v));
            let e_root = root_rounding(v * c2, e_square);
            let below = root + s.eps;
            let change = m.abs() * c1 / below;
            let mut e_change =
                c1 * (e_m + size(m)) / below + change * ((e_root + 2.0 * below) / below + DIVIDE);
            if s.decoupled {
                e_change += 3.0 * decay + change;
            }
            for (e, x) in errors.iter_mut().zip([lr * (e_change + change + decay) + size(p), e_m, e_v]) {
                e.data[i] = once(x);
            }
        }
        errors
    }

    fn lower(&self, l: &mut Lowering) -> Result<()> {
        let n = l.input_type(0).shape.elements();
        let s = &self.0;
        let mut bindings = vec![Access::Update; 3];
        bindings.extend([Access::Read; 3]);
        let mut kernel = kernel(l, "adam", bindings);
        set(&mut kernel, "DECOUPLED", s.decoupled);
        // Nothing is summed over the workgroup.
        kernel.parts[1] = lib_wgsl::ROWS_INVOCATION.into();
        kernel.requires = Requires { invocations: kernel.requires.invocations, ..Default::default() };
        let per_group = (kernel.requires.invocations * each(l)) as usize;
        l.push(Dispatch {
            kernel,
            operands: (0..6).map(|i| l.input(i).into()).collect(),
            params: params_bytes(Params {
                count: (n / 4) as u32,
                max_norm: 0.0,
                beta1: s.beta1 as f32,
                beta2: s.beta2 as f32,
                one_minus_beta1: (1.0 - s.beta1) as f32,
                one_minus_beta2: (1.0 - s.beta2) as f32,
                eps: s.eps as f32,
                weight_decay: s.weight_decay as f32,
                decay_start: (s.decay.start / 4) as u32,
                decay_end: (s.decay.end / 4) as u32,
                share: 0,
            }),
            groups: l.groups_1d((n / 4).div_ceil(per_group))?,
            flops: 12 * n as u64,
        });
        Ok(())
    }
}

/// `f32[2]`: the L2 norm over all pages of gradients, `f32[n]` each, and the factor to clip them by: min(1, max_norm / (norm +
/// 1e-6)), or 1 without `max_norm`. With a `schedule` (see [`adam`]) the norm is that of the scaled gradients.
///
/// Where the sum of squares is not finite in f32 the factor is 0, and [`adam`] then changes nothing. The order of the
/// sum is fixed.
///
/// # Errors
/// When a length is no multiple of 64, there is no page, or `max_norm` is not positive.
pub fn gradient_norm(
    g: &mut Graph,
    pages: &[ValueId],
    schedule: Option<ValueId>,
    max_norm: Option<f64>,
) -> Result<ValueId> {
    let inputs: Vec<ValueId> = schedule.iter().chain(pages).copied().collect();
    g.add(GradientNorm { max_norm, scaled: schedule.is_some() }, &inputs)
}

/// The pages that [`adam`] works on, `f32[n]` each, n a multiple of 64.
#[derive(Clone, Copy, Debug)]
pub struct AdamPages {
    /// The parameters, a state.
    pub parameters: ValueId,
    /// The mean of gradients, a state.
    pub m: ValueId,
    /// The mean of squared gradients, a state.
    pub v: ValueId,
    /// The gradients.
    pub gradients: ValueId,
}

/// One step of Adam (Kingma and Ba, 2015, algorithm 1) or AdamW on a page, in place, with PyTorch's meaning of the
/// settings: g is the gradient times scale and clip factor (plus weight_decay p, if not decoupled),
///
/// m = beta1 m + (1 - beta1) g; v = beta2 v + (1 - beta2) g^2;
/// p -= lr (m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + eps) (+ weight_decay p, if decoupled)).
///
/// `schedule` is an input `f32[4]` written before each step: lr, 1 / (1 - beta1^t), 1 / (1 - beta2^t), the scale of the
/// gradients. `norm` is that of [`gradient_norm`]; where its factor is 0 the step is skipped. Elements without gradient
/// that are zero stay zero.
///
/// # Errors
/// When lengths differ or are no multiple of 64, or a setting is out of its range.
pub fn adam(
    g: &mut Graph,
    pages: AdamPages,
    schedule: ValueId,
    norm: ValueId,
    settings: AdamSettings,
) -> Result<()> {
    let AdamPages { parameters, m, v, gradients } = pages;
    g.add_node(Adam(settings), &[parameters, m, v, gradients, schedule, norm])?;
    Ok(())
}

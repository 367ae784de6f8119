//! Softmax cross-entropy with label smoothing, its gradient, and what is counted along the way.

use super::params::params;
use super::rounding::{DIVIDE, EPS, exp, log, once, size, softmax_sum, sum};
use super::rows::Rows;
use super::{elementwise, layout};
use crate::DeviceProfile;
use crate::graph::{ALIGN, Graph, Lowering, Node, Op, ValueId};
use crate::kernel::{Access, Dispatch, Kernel, Slice, parts};
use crate::{DType, Error, Result, Tensor64, TensorType};

pub(super) const SOURCE: &str = include_str!("../../shaders/cross_entropy.wgsl");
const APART: &str = include_str!("../../shaders/cross_entropy_apart.wgsl");
const IN_PLACE: &str = include_str!("../../shaders/cross_entropy_in_place.wgsl");

params! {
    struct Params {
        rows: u32,
        ignore: u32,
        smoothing: f32,
    }
}

/// The settings of the loss.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CrossEntropy {
    /// The target id whose rows do not count: the padding.
    pub ignore: u32,
    /// Label smoothing e, in 0 <= e <= 1: the target distribution gives 1 - e to the target and spreads e evenly over the
    /// whole vocabulary (Szegedy et al., 2016, section 7; the same as PyTorch's `label_smoothing`).
    pub smoothing: f64,
}

/// What [`cross_entropy`] computes.
#[derive(Clone, Copy, Debug)]
pub struct Loss {
    /// f32`[1]`: the sum of the rows' losses times `inv_count`; over all chunks together, the mean.
    pub loss: ValueId,
    /// f32`[3]`, no gradient: the sum of the rows' losses, the number of rows whose largest logit (the lowest place among
    /// equal ones) is the target's, and the number of rows that count.
    pub stats: ValueId,
}

/// Inputs: logits [.., V], targets [..], inv_count `[1]`. Outputs: loss `[1]`, stats `[3]`, d_logits like logits.
#[derive(Debug)]
struct CrossEntropyOp(CrossEntropy);

impl Op for CrossEntropyOp {
    fn name(&self) -> &'static str {
        "cross_entropy"
    }

    fn outputs(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>> {
        let [logits, targets, inv_count] = inputs else {
            return Err(Error::Internal("cross_entropy takes three inputs".into()));
        };
        if !(0.0..=1.0).contains(&self.0.smoothing) {
            let problem = format!("{} is outside 0..=1; 0 switches it off", self.0.smoothing);
            return Err(Error::config("label_smoothing", problem));
        }
        if logits.dtype != DType::F32 || logits.shape.rank() == 0 || logits.shape.elements() == 0 {
            return Err(Error::shape("", "logits", "f32[.., V]", logits));
        }
        if targets.dtype != DType::U32 || targets.shape.elements() != logits.shape.rows() {
            return Err(Error::shape("", "targets", format!("{} u32", logits.shape.rows()), targets));
        }
        if **inv_count != TensorType::f32([1]) {
            return Err(Error::shape("", "inv_count", TensorType::f32([1]), inv_count));
        }
        Ok(vec![TensorType::f32([1]), TensorType::f32([3]), (*logits).clone()])
    }

    fn reference(&self, inputs: &[&Tensor64]) -> Vec<Tensor64> {
        let (logits, targets, inv) = (inputs[0], inputs[1], inputs[2].data[0]);
        let (v, e) = (logits.shape.last(), self.0.smoothing);
        let mut stats = [0.0; 3];
        let mut d = Tensor64::zeros(logits.shape.clone());
        for n in 0..logits.shape.rows() {
            let x = logits.row(n);
            if targets.u32(n) == self.0.ignore {
                continue;
            }
            let t = targets.u32(n) as usize;
            let top = x.iter().fold(f64::MIN, |m, &x| m.max(x));
            let sum: f64 = x.iter().map(|x| (x - top).exp()).sum();
            let lse = top + sum.ln();
            let spread: f64 = x.iter().map(|x| lse - x).sum::<f64>() / v as f64;
            stats[0] += (1.0 - e) * (lse - x[t]) + e * spread;
            stats[1] += f64::from(x.iter().position(|&x| x == top) == Some(t));
            stats[2] += 1.0;
            for (j, x) in x.iter().enumerate() {
                let wanted = e / v as f64 + if j == t { 1.0 - e } else { 0.0 };
                d.data[n * v + j] = inv * ((x - lse).exp() - wanted);
            }
        }
        vec![Tensor64::new([1], vec![stats[0] * inv]), Tensor64::new([3], stats.to_vec()), d]
    }

    /// A row's loss is a logarithm and differences of logits; its gradient an exponential over their sum, as a softmax's.
    /// Counts are exact, but which logit is the largest is open where a device may take that for zero.
    fn rounding(&self, inputs: &[&Tensor64], results: &[Tensor64]) -> Vec<Tensor64> {
        let (logits, targets, inv) = (inputs[0], inputs[1], size(inputs[2].data[0]));
        let (v, e) = (logits.shape.last(), self.0.smoothing);
        let (mut e_sum, mut sizes, mut counted, mut open) = (0.0, 0.0, 0usize, 0.0);
        let mut e_d = results[2].clone();
        for (n, row) in e_d.data.chunks_mut(v).enumerate() {
            if targets.u32(n) == self.0.ignore {
                continue;
            }
            let (x, t) = (logits.row(n), targets.u32(n) as usize);
            let top = x.iter().fold(f64::MIN, |m, &x| m.max(x));
            let below: Vec<f64> = x.iter().map(|x| x - top).collect();
            let total: f64 = below.iter().map(|x| x.exp()).sum();
            let shares: Vec<f64> = below.iter().map(|x| x.exp() / total).collect();
            let e_total = softmax_sum(&shares, &below);
            // The mean is that of differences to the first logit.
            let offsets: f64 = x.iter().map(|y| size(y - x[0])).sum();
            let total_offset: f64 = x.iter().map(|y| y - x[0]).sum();
            let spread = size(below[0]) + offsets / v as f64;
            let e_spread =
                (sum(v, offsets, total_offset) + (1.0 + DIVIDE) * offsets) / v as f64 + 2.0 * spread;
            let parts = total.ln() + size(below[t]) + e * (spread + size(below[t]));
            e_sum += log(total.ln()) + e_total + e * e_spread + 3.0 * parts;
            sizes += parts;
            counted += 1;
            open += f64::from(top.abs() < f32::MIN_POSITIVE as f64);
            for (j, d) in row.iter_mut().enumerate() {
                // 1 - e rounds as e does.
                let wanted = e / v as f64 + if j == t { 1.0 } else { 0.0 };
                let p = shares[j] * (2.0 * exp(below[j]) + e_total + DIVIDE + 1.0);
                *d = once(inv * (p + wanted * (2.0 + DIVIDE)) + 2.0 * d.abs());
            }
        }
        // Rows may all have the same loss. Four lanes or more share them.
        let e_sum = e_sum + sum(counted.div_ceil(4) + 2, sizes, sizes);
        let e_loss = once(inv * (e_sum + sizes));
        vec![Tensor64::new([1], vec![e_loss]), Tensor64::new([3], vec![e_sum, open / EPS, 0.0]), e_d]
    }

    fn gradient(
        &self,
        g: &mut Graph,
        node: &Node,
        d_outputs: &[Option<ValueId>],
    ) -> Result<Vec<Option<ValueId>>> {
        if d_outputs[1].is_some() || d_outputs[2].is_some() {
            return Err(Error::config("cross_entropy", "only the loss has a gradient, not the statistics"));
        }
        let d_logits = match d_outputs[0] {
            None => None,
            Some(d_loss) if g.is_one(d_loss) => Some(node.outputs[2]),
            Some(d_loss) => Some(elementwise::scale_by(g, node.outputs[2], d_loss)?),
        };
        Ok(vec![d_logits, None, None])
    }

    fn lower(&self, l: &mut Lowering) -> Result<()> {
        let rows = Rows::new(l, "cross_entropy", l.input_type(0))?;
        let elements = l.input_type(0).shape.elements() as u64;
        let params =
            Params { rows: rows.rows as u32, ignore: self.0.ignore, smoothing: self.0.smoothing as f32 }
                .bytes();
        let partials = l.scratch(rows.rows * 4);
        let mut bindings = vec![Access::Read, Access::Read, Access::Write];
        let mut operands: Vec<Slice> = vec![l.input(0).into(), l.input(1).into(), partials.into()];
        let gradient = l.output_used(2);
        let in_place = gradient && l.overwrite(0, 2);
        if gradient {
            bindings.push(Access::Read);
            operands.push(l.input(2).into());
        }
        if in_place {
            bindings[0] = Access::Update;
            operands[0] = l.output(2).into();
        } else if gradient {
            bindings.push(Access::Write);
            operands.push(l.output(2).into());
        }
        l.push(Dispatch {
            kernel: Kernel {
                name: format!("cross_entropy/{}{}", if gradient { "gradient_" } else { "" }, rows.variant()),
                parts: parts(
                    [SOURCE, if in_place { IN_PLACE } else { APART }].into_iter().chain(rows.parts()),
                ),
                entry: if gradient { "row_loss_gradient" } else { "row_loss" },
                bindings,
                params: Params::FIELDS,
                constants: rows.constants(),
                requires: rows.requires(),
            },
            operands,
            params: params.clone(),
            groups: rows.groups(l)?,
            flops: elements * if gradient { 8 } else { 5 },
        });
        l.push(Dispatch {
            kernel: Kernel {
                bindings: vec![Access::Read, Access::Read, Access::Write, Access::Write],
                ..one_group(l.profile, "reduce")?
            },
            operands: vec![partials.into(), l.input(2).into(), l.output(0).into(), l.output(1).into()],
            params,
            groups: [1, 1, 1],
            flops: rows.rows as u64 * 3,
        });
        Ok(())
    }
}

/// A kernel of one workgroup over all rows, shared out like a row of this length: the number of rows, which changes from
/// batch to batch, is no part of the kernel.
fn one_group(profile: &DeviceProfile, entry: &'static str) -> Result<Kernel> {
    let lanes = Rows::one_group(profile, &TensorType::f32([1, 1024]))?;
    Ok(Kernel {
        name: format!("cross_entropy/{entry}_{}", lanes.variant()),
        parts: parts([SOURCE, APART].into_iter().chain(lanes.parts())),
        entry,
        bindings: Vec::new(),
        params: Params::FIELDS,
        constants: lanes.constants(),
        requires: lanes.requires(),
    })
}

/// Input: targets. Output: `[1]`.
#[derive(Debug)]
struct CountTargets {
    ignore: u32,
}

impl Op for CountTargets {
    fn name(&self) -> &'static str {
        "count_targets"
    }

    fn outputs(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>> {
        if inputs[0].dtype != DType::U32 {
            return Err(Error::shape("", "targets", "u32", inputs[0]));
        }
        Ok(vec![TensorType::f32([1])])
    }

    fn reference(&self, inputs: &[&Tensor64]) -> Vec<Tensor64> {
        let count = (0..inputs[0].data.len()).filter(|&i| inputs[0].u32(i) != self.ignore).count();
        vec![Tensor64::new([1], vec![1.0 / count.max(1) as f64])]
    }

    /// A quotient.
    fn rounding(&self, _: &[&Tensor64], results: &[Tensor64]) -> Vec<Tensor64> {
        vec![Tensor64::new([1], vec![DIVIDE * results[0].data[0]])]
    }

    fn gradient(&self, _: &mut Graph, _: &Node, _: &[Option<ValueId>]) -> Result<Vec<Option<ValueId>>> {
        Ok(vec![None])
    }

    fn lower(&self, l: &mut Lowering) -> Result<()> {
        let rows = l.input_type(0).shape.elements();
        l.push(Dispatch {
            kernel: Kernel {
                bindings: vec![Access::Read, Access::Write],
                ..one_group(l.profile, "count_targets")?
            },
            operands: vec![l.input(0).into(), l.output(0).into()],
            params: Params { rows: rows as u32, ignore: self.ignore, smoothing: 0.0 }.bytes(),
            groups: [1, 1, 1],
            flops: rows as u64,
        });
        Ok(())
    }
}

/// 1 / max(n, 1), f32`[1]`, for the n of the targets (u32, any shape) that are not `ignore`: what makes a mean of
/// [`cross_entropy`]'s sum, over all chunks of a batch.
///
/// # Errors
/// When the targets are no u32.
pub fn count_targets(g: &mut Graph, targets: ValueId, ignore: u32) -> Result<ValueId> {
    g.add(CountTargets { ignore }, &[targets])
}

/// The loss of logits f32 `[.., V]` for targets u32 `[..]`, times `inv_count` f32`[1]` (see [`count_targets`]). Rows whose
/// target is ignored have loss 0 and gradient 0; the others' targets must be below V. Logits must be finite.
///
/// # Errors
/// When shapes do not fit, or the smoothing is outside 0..=1.
pub fn cross_entropy(
    g: &mut Graph,
    logits: ValueId,
    targets: ValueId,
    inv_count: ValueId,
    settings: CrossEntropy,
) -> Result<Loss> {
    let outputs = g.add_node(CrossEntropyOp(settings), &[logits, targets, inv_count])?;
    Ok(Loss { loss: outputs[0], stats: outputs[1] })
}

/// How [`chunked`] cuts the logits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Chunks {
    /// V, the row length of the logits.
    pub vocabulary: usize,
    /// The most bytes of logits in one chunk; a chunk has at least 64 rows, whatever they take.
    pub bytes: u64,
}

/// The mean loss of `project(x)` f32 `[n, V]`, for rows x f32 `[N, C]` and targets u32 `[N]`, with the logits made in chunks
/// of rows, so that no tensor of `[N, V]` need fit a binding. `context` is what `project` works with; `graph` finds the
/// graph in it.
///
/// # Errors
/// When shapes do not fit, or the smoothing is outside 0..=1.
pub fn chunked<B>(
    context: &mut B,
    x: ValueId,
    targets: ValueId,
    chunks: Chunks,
    settings: CrossEntropy,
    graph: impl Fn(&mut B) -> &mut Graph,
    mut project: impl FnMut(&mut B, ValueId) -> Result<ValueId>,
) -> Result<Loss> {
    let g = graph(context);
    let n = g.shape(x).rows();
    if g.shape(x).rank() != 2 || n == 0 || g.shape(targets).dims() != [n] {
        let got = format!("{} and {}", g.value(x).ty, g.value(targets).ty);
        return Err(Error::shape("cross_entropy", "x and targets", "f32[N, C] and u32[N]", got));
    }
    let inv_count = count_targets(g, targets, settings.ignore)?;
    let rows = chunk_rows(n, chunks);
    let (xs, ts) = match rows.len() {
        1 => (vec![x], vec![targets]),
        _ => (layout::split_rows(g, x, &rows)?, layout::split_rows(g, targets, &rows)?),
    };
    let mut parts = Vec::new();
    for (x, t) in xs.into_iter().zip(ts) {
        let logits = project(context, x)?;
        parts.push(cross_entropy(graph(context), logits, t, inv_count, settings)?);
    }
    let g = graph(context);
    let mut sum = parts[0];
    for part in &parts[1..] {
        sum.loss = elementwise::add(g, sum.loss, part.loss)?;
        sum.stats = elementwise::add(g, sum.stats, part.stats)?;
    }
    Ok(sum)
}

/// Chunks of n rows: multiples of ALIGN, so that each starts where a binding may, and of about the same size.
fn chunk_rows(n: usize, chunks: Chunks) -> Vec<usize> {
    let fit = (chunks.bytes / (chunks.vocabulary.max(1) as u64 * 4)) as usize;
    let most = (fit / ALIGN * ALIGN).max(ALIGN);
    let count = n.div_ceil(most);
    let each = n.div_ceil(count).next_multiple_of(ALIGN);
    (0..n).step_by(each).map(|start| each.min(n - start)).collect()
}

#[cfg(test)]
mod tests {
    use super::{Chunks, chunk_rows};

    #[test]
    fn chunks_cover_all_rows_and_fit() {
        for (n, v, bytes) in
            [(1, 1, 0), (64, 10, 64 * 40), (65, 10, 64 * 40), (2500, 8000, 32 << 20), (700, 37, 1)]
        {
            let rows = chunk_rows(n, Chunks { vocabulary: v, bytes });
            assert_eq!(rows.iter().sum::<usize>(), n, "{n} {v} {bytes}: {rows:?}");
            for (i, &r) in rows.iter().enumerate() {
                assert!(r > 0 && (r % 64 == 0 || i + 1 == rows.len()), "{n} {v} {bytes}: {rows:?}");
                assert!(r <= 64 || (r * v * 4) as u64 <= bytes, "{n} {v} {bytes}: {rows:?}");
            }
        }
    }
}

//! The cases of single ops.

use super::data::CaseData;
use super::{Comparison, Device, Run};
use crate::gpu::Memory;
use crate::graph::ALIGN;
use crate::graph::ValueId;
use crate::ops::attention::{self, Attention, AttentionInputs, Packing};
use crate::ops::cross_entropy::{self, CrossEntropy};
use crate::ops::elementwise::{self, Activation};
use crate::ops::optimizer::{self, AdamPages, AdamSettings};
use crate::ops::{layer_norm as norm, softmax as soft};
use crate::{HostTensor, Result, TensorType};

/// Runs y = f(x) and d_x, for cases with the tensors x, dy, y, dx, where `p.*` are the parameters and `g.*` their
/// gradients. `vanishing` names a gradient that is exactly zero, and the magnitude of the terms that cancel in it.
fn pointwise(
    device: &Device,
    case: &CaseData,
    comparison: &mut Comparison,
    parameters: &[&str],
    vanishing: (&str, f64),
    f: impl FnOnce(&mut Run, ValueId, &[ValueId]) -> Result<ValueId>,
) -> Result<()> {
    let (shape, _) = case.floats_of_any_shape("x")?;
    let width = *shape.last().unwrap_or(&1);
    let mut run = Run::default();
    let mut wrt = vec![run.input("x", case.input("x", shape)?)];
    for p in parameters {
        wrt.push(run.input(p, case.input(&format!("p.{p}"), &[width])?));
    }
    let y = f(&mut run, wrt[0], &wrt[1..])?;
    let mut outputs = vec![y];
    outputs.extend(run.backward(y, case.input("dy", shape)?, &wrt)?);
    let got = run.outputs(device, &Memory::new(device.gpu), &outputs)?;
    comparison.tensor("y", case.floats("y", shape)?, &got[0]);
    if let Some(want) = case.floats_if_any("dx", shape)? {
        comparison.tensor("dx", want, &got[1]);
    }
    for (p, got) in parameters.iter().zip(&got[2..]) {
        let name = format!("g.{p}");
        match case.floats_if_any(&name, &[width])? {
            Some(want) if name == vanishing.0 => comparison.zeros(&name, want, got, vanishing.1),
            Some(want) => comparison.tensor(&name, want, got),
            None => {}
        }
    }
    Ok(())
}

pub(super) fn layer_norm(device: &Device, case: &CaseData, comparison: &mut Comparison) -> Result<()> {
    let eps = case.number_between("eps", 1e-30, 1.0, 1e-5)?;
    // One element is its own mean, and normalised it is 0, so the scale has no gradient. PyTorch takes the difference of x
    // and the mean after it has multiplied both by 1 / sqrt(eps).
    let (shape, x) = case.floats_of_any_shape("x")?;
    let dy = case.floats("dy", shape)?;
    let terms = x.iter().zip(dy).map(|(x, dy)| (x * dy).abs() as f64).sum::<f64>() / eps.sqrt();
    let vanishing = if shape.last() == Some(&1) { ("g.weight", terms) } else { ("", 0.0) };
    pointwise(device, case, comparison, &["weight", "bias"], vanishing, |run, x, p| {
        norm::layer_norm(&mut run.graph, x, p[0], p[1], eps)
    })
}

pub(super) fn softmax(device: &Device, case: &CaseData, comparison: &mut Comparison) -> Result<()> {
    pointwise(device, case, comparison, &[], ("", 0.0), |run, x, _| soft::softmax(&mut run.graph, x))
}

pub(super) fn gelu(device: &Device, case: &CaseData, comparison: &mut Comparison) -> Result<()> {
    let act = match case.name.split('_').nth(1) {
        Some("none") => Activation::Gelu,
        Some("tanh") => Activation::GeluTanh,
        _ => {
            let problem = "is it gelu_none or gelu_tanh? The name does not say";
            return Err(case.problem(format!("case {}: {problem}", case.name)));
        }
    };
    pointwise(device, case, comparison, &[], ("", 0.0), |run, x, _| {
        elementwise::activate(&mut run.graph, act, x)
    })
}

/// Stands for an ignored target whose id no vocabulary has, such as PyTorch's -100.
const IGNORED: u32 = u32::MAX;

pub(super) fn cross_entropy(device: &Device, case: &CaseData, comparison: &mut Comparison) -> Result<()> {
    let [rows, vocabulary] = case.shape("logits")?;
    let ignored = case.integer("ignore_index")?.unwrap_or(-100);
    let smoothing = case.number_between("label_smoothing", 0.0, 1.0, 0.0)?;
    let targets = case.ids("target", &[rows], vocabulary, ignored, IGNORED)?;
    let mut run = Run::default();
    let logits = run.input("logits", case.input("logits", &[rows, vocabulary])?);
    let targets = run.input("target", HostTensor::u32([rows], targets));
    let g = &mut run.graph;
    let inv_count = cross_entropy::count_targets(g, targets, IGNORED)?;
    let settings = CrossEntropy { ignore: IGNORED, smoothing };
    let loss = cross_entropy::cross_entropy(g, logits, targets, inv_count, settings)?.loss;
    let one = g.constant("one", HostTensor::f32([1], vec![1.0]));
    let d = g.backward(&[(loss, one)], &[logits])?;
    let outputs: Vec<ValueId> = [loss].into_iter().chain(d.into_iter().flatten()).collect();
    let got = run.outputs(device, &Memory::new(device.gpu), &outputs)?;
    comparison.tensor("loss", case.floats("loss", &[1])?, &got[0]);
    if let (Some(want), Some(got)) = (case.floats_if_any("dlogits", &[rows, vocabulary])?, got.get(1)) {
        comparison.tensor("dlogits", want, got);
    }
    Ok(())
}

/// What a case says of who may attend to whom.
pub(super) struct Masks {
    pub causal: bool,
    /// `u32[B]` or `u32[B, T, S]`.
    keys: Option<HostTensor>,
    bias: Option<HostTensor>,
}

impl Masks {
    /// From `mode`, `key_mask` [B, S] and `bias` [H, T, S].
    pub fn read(case: &CaseData, b: usize, h: usize, t: usize, s: usize) -> Result<Self> {
        let mode = case.text("mode")?.unwrap_or("none");
        let (mut causal, mut pad) = (false, false);
        for part in mode.split('+') {
            match part.trim() {
                "none" => {}
                "causal" => causal = true,
                "pad" => pad = true,
                other => {
                    let known = "expected none, or pad and causal joined by +";
                    return Err(case.problem(format!("case {}: mode {other:?}: {known}", case.name)));
                }
            }
        }
        let mask = case.has("key_mask").then(|| case.integers("key_mask", &[b, s])).transpose()?;
        if pad && mask.is_none() {
            return Err(case.problem(format!("case {}: mode {mode:?} needs the tensor key_mask", case.name)));
        }
        let bias = match case.floats_if_any("bias", &[h, t, s])? {
            // Minus infinity is what PyTorch has for a key that may not be attended to.
            Some(bias) if bias.iter().all(|x| x.is_finite() || *x == f32::NEG_INFINITY) => {
                Some(HostTensor::f32([h, t, s], bias.iter().map(|x| x.max(-1e30)).collect()))
            }
            Some(_) => return Err(case.problem("tensor bias holds what is no number")),
            None => None,
        };
        let keys = mask.map(|mask| match prefix_lengths(mask, s) {
            Some(lengths) => Ok(HostTensor::u32([b], lengths)),
            // Every query of a row has the same keys.
            None if t.checked_mul(b * s).is_some_and(|n| n <= 1 << 26) => {
                let rows = mask.chunks(s).flat_map(|row| std::iter::repeat_n(row, t)).flatten();
                Ok(HostTensor::u32([b, t, s], rows.map(|&x| (x != 0) as u32).collect()))
            }
            None => Err(case.problem("the mask is above 2^26 elements")),
        });
        Ok(Masks { causal, keys: keys.transpose()?, bias })
    }

    /// Attention inputs with these masks, and the bias among them.
    pub fn inputs(&self, run: &mut Run, qkv: Packing) -> AttentionInputs {
        let mut inputs = AttentionInputs::new(qkv);
        if let Some(keys) = &self.keys {
            let id = run.input("key_mask", keys.clone());
            match keys.ty().shape.rank() {
                1 => inputs.key_lengths = Some(id),
                _ => inputs.mask = Some(id),
            }
        }
        inputs.bias = self.bias.clone().map(|bias| run.input("bias", bias));
        inputs
    }
}

/// The lengths, where each row of a mask allows a number of its first elements and no others.
pub(super) fn prefix_lengths(mask: &[i64], width: usize) -> Option<Vec<u32>> {
    let length = |row: &[i64]| {
        let n = row.iter().take_while(|&&x| x != 0).count();
        row[n..].iter().all(|&x| x == 0).then_some(n as u32)
    };
    mask.chunks(width).map(length).collect()
}

/// [B, H, T, D] to [B, T, H D].
fn merge_heads(x: &[f32], [b, h, t, d]: [usize; 4]) -> HostTensor {
    let mut out = Vec::with_capacity(x.len());
    for b in 0..b {
        for t_ in 0..t {
            for h_ in 0..h {
                let start = ((b * h + h_) * t + t_) * d;
                out.extend_from_slice(&x[start..start + d]);
            }
        }
    }
    HostTensor::f32([b, t, h * d], out)
}

/// [B, T, H D] to [B, H, T, D].
fn split_heads(x: &[f32], [b, h, t, d]: [usize; 4]) -> Vec<f32> {
    let mut out = Vec::with_capacity(x.len());
    for b in 0..b {
        for h_ in 0..h {
            for t_ in 0..t {
                let start = ((b * t + t_) * h + h_) * d;
                out.extend_from_slice(&x[start..start + d]);
            }
        }
    }
    out
}

pub(super) fn attention(device: &Device, case: &CaseData, comparison: &mut Comparison) -> Result<()> {
    let of_q: [usize; 4] = case.shape("q")?;
    let [b, h, t, d] = of_q;
    let [_, _, s, _] = case.shape("k")?;
    let of_k = [b, h, s, d];
    let masks = Masks::read(case, b, h, t, s)?;
    let scale = case.number("scale")?;
    let mut run = Run::default();
    let mut wrt = Vec::new();
    for (name, shape) in [("q", of_q), ("k", of_k), ("v", of_k)] {
        case.input(name, &shape)?;
        wrt.push(run.input(name, merge_heads(case.floats(name, &shape)?, shape)));
    }
    let inputs = masks.inputs(&mut run, Packing::Separate { q: wrt[0], k: wrt[1], v: wrt[2] });
    wrt.extend(inputs.bias);
    let settings = Attention { causal: masks.causal, scale, ..Attention::new(h) };
    let o = attention::attention(&mut run.graph, settings, inputs)?;
    let mut outputs = vec![o];
    case.input("do", &of_q)?;
    outputs.extend(run.backward(o, merge_heads(case.floats("do", &of_q)?, of_q), &wrt)?);
    if case.has("attn") {
        outputs.push(attention::attention_probabilities(&mut run.graph, settings, inputs)?);
    }
    let got = run.outputs(device, &Memory::new(device.gpu), &outputs)?;
    comparison.tensor("o", case.floats("o", &of_q)?, &split_heads(&got[0], of_q));
    // The probability of the only key is 1 whatever its score, so the scores have no gradient: it is the difference of two
    // ways to compute do . v.
    let alone = s == 1;
    let largest = |name: &str, shape: &[usize; 4]| -> Result<f64> {
        Ok(super::scale(case.floats(name, shape)?.iter().copied()))
    };
    let terms = d as f64 * largest("do", &of_q)? * largest("v", &of_k)?;
    let factor = terms * scale.unwrap_or(1.0).abs();
    for (name, shape, got) in [("dq", of_q, &got[1]), ("dk", of_k, &got[2]), ("dv", of_k, &got[3])] {
        let got = split_heads(got, shape);
        match case.floats_if_any(name, &shape)? {
            Some(want) if alone && name == "dq" => {
                comparison.zeros(name, want, &got, factor * largest("k", &of_k)?)
            }
            Some(want) if alone && name == "dk" => {
                comparison.zeros(name, want, &got, factor * largest("q", &of_q)?)
            }
            Some(want) => comparison.tensor(name, want, &got),
            None => {}
        }
    }
    if inputs.bias.is_some() {
        match case.floats_if_any("dbias", &[h, t, s])? {
            Some(want) if alone => comparison.zeros("dbias", want, &got[4], terms * b as f64),
            Some(want) => comparison.tensor("dbias", want, &got[4]),
            None => {}
        }
    }
    if let (Some(want), Some(got)) = (case.floats_if_any("attn", &[b, h, t, s])?, got.last()) {
        comparison.tensor("attn", want, got);
    }
    Ok(())
}

/// Steps on one page: p [n] with the gradients g [steps, n]; p after each step, the gradients' norm before clipping, and
/// the moments after the last.
pub(super) fn adam(
    device: &Device,
    case: &CaseData,
    decoupled: bool,
    comparison: &mut Comparison,
) -> Result<()> {
    let [steps, n] = case.shape("g")?;
    let lr = case.number_between("lr", 0.0, 1e6, 1e-3)?;
    let [beta1, beta2] = case.numbers("betas", [0.9, 0.999])?;
    let settings = AdamSettings {
        beta1,
        beta2,
        eps: case.number_between("eps", 0.0, 1.0, 1e-8)?,
        weight_decay: case.number_between("weight_decay", 0.0, 1e6, if decoupled { 1e-2 } else { 0.0 })?,
        decoupled,
        decay: 0..n.next_multiple_of(ALIGN),
    };
    // Pages are padded; what is zero there stays zero.
    let page = |values: &[f32]| {
        let mut page = values.to_vec();
        page.resize(n.next_multiple_of(ALIGN), 0.0);
        HostTensor::f32([page.len()], page)
    };
    let start = page(case.input("p", &[n])?.as_f32("p")?);
    let gradients = case.input("g", &[steps, n])?;
    let mut run = Run::default();
    let g = &mut run.graph;
    let ty: TensorType = start.ty();
    let pages = AdamPages {
        parameters: g.state("p", ty.clone()),
        m: g.state("m", ty.clone()),
        v: g.state("v", ty.clone()),
        gradients: g.input("g", ty.clone()),
    };
    let schedule = g.input("schedule", TensorType::f32([4]));
    let norm = optimizer::gradient_norm(g, &[pages.gradients], None, case.number("clip_norm")?)?;
    optimizer::adam(g, pages, schedule, norm, settings)?;
    let memory = Memory::new(device.gpu);
    memory.write("p", &start)?;
    for moment in ["m", "v"] {
        memory.write(moment, &page(&[]))?;
    }
    let plan = crate::plan::Plan::new(g, &[norm], device.profile)?;
    let mut executor = device.gpu.executor(plan, &memory)?;
    let read = |name: &str| -> Result<Vec<f32>> { Ok(memory.read(name)?.as_f32(name)?[..n].to_vec()) };
    let (mut after, mut norms) = (Vec::new(), Vec::new());
    for (i, gradient) in gradients.as_f32("g")?.chunks(n).enumerate() {
        let correction = |beta: f64| (1.0 / (1.0 - beta.powf(i as f64 + 1.0))) as f32;
        let now = vec![lr as f32, correction(beta1), correction(beta2), 1.0];
        executor.write(schedule, &HostTensor::f32([4], now))?;
        executor.write(pages.gradients, &page(gradient))?;
        executor.run()?;
        after.extend(read("p")?);
        norms.push(executor.read(norm)?.as_f32("norm")?[0]);
    }
    comparison.tensor("after", case.floats("after", &[steps, n])?, &after);
    if let Some(want) = case.floats_if_any("norm", &[steps])? {
        comparison.tensor("norm", want, &norms);
    }
    for moment in ["m", "v"] {
        if let Some(want) = case.floats_if_any(moment, &[n])? {
            comparison.tensor(moment, want, &read(moment)?);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mask_of_first_keys_is_lengths() {
        let cases: [(&[i64], Option<Vec<u32>>); 4] = [
            (&[1, 1, 0, 1, 0, 0], Some(vec![2, 1])),
            (&[1, 1, 1, 0, 0, 0], Some(vec![3, 0])),
            (&[1, 0, 1, 0, 0, 0], None),
            (&[0, 1, 1, 1, 1, 1], None),
        ];
        for (mask, lengths) in cases {
            assert_eq!(prefix_lengths(mask, 3), lengths, "{mask:?}");
        }
    }

    #[test]
    fn heads_come_back_where_they_were() {
        let shape = [2, 3, 4, 5];
        let x: Vec<f32> = (0..120).map(|i| i as f32).collect();
        let merged = merge_heads(&x, shape);
        let merged = merged.as_f32("").unwrap();
        // Batch row 0, position 1, head 2.
        assert_eq!(merged[15 + 10], x[(2 * 4 + 1) * 5]);
        assert_eq!(split_heads(merged, shape), x);
    }
}

//! The cases of layers and whole models.

use super::data::CaseData;
use super::names::{self, StackShape, Theirs};
use super::ops::{Masks, prefix_lengths};
use super::{Comparison, Device, Run, scale};
use crate::gpu::Memory;
use crate::graph::ValueId;
use crate::nn::{
    BatchShape, Builder, NormPlacement, Objective, Optimizer, PAD, ParameterLayout, Parameters, Positions,
    Transformer, TransformerConfig, Tying, page_name,
};
use crate::ops::attention::{self, Attention, Packing};
use crate::ops::elementwise::Activation;
use crate::ops::optimizer::AdamSettings;
use crate::ops::{embedding, matmul};
use crate::plan::Plan;
use crate::{Error, HostTensor, Result, Shape};
use std::collections::HashMap;

const ACTIVATIONS: [(&str, Activation); 2] = [("relu", Activation::Relu), ("gelu", Activation::Gelu)];

/// Compares the gradient of each parameter that the case has one of; `ours` gives the gradients of ours by name.
fn compare_gradients(
    case: &CaseData,
    comparison: &mut Comparison,
    parameters: &[Theirs],
    mut ours: impl FnMut(&str) -> Result<Vec<f32>>,
) -> Result<()> {
    for p in parameters {
        let name = format!("g.{}", p.name);
        if let Some(want) = case.floats_if_any(&name, &p.shape)? {
            comparison.tensor(&name, want, &p.gathered(&mut ours)?);
        }
    }
    Ok(())
}

/// Our parameters with their first values.
fn first_values(case: &CaseData, parameters: &[Theirs]) -> Result<Vec<(String, Shape, Vec<f32>)>> {
    let mut all = Vec::new();
    for p in parameters {
        let values = case.input(&format!("p.{}", p.name), &p.shape)?;
        let ours = p.scattered(values.as_f32(&p.name)?);
        all.extend(ours.into_iter().map(|(name, shape, values)| (name.to_string(), shape, values)));
    }
    Ok(all)
}

fn of_name<'a, T>(all: &'a HashMap<String, T>, name: &str) -> Result<&'a T> {
    all.get(name).ok_or_else(|| Error::Internal(format!("the model has no parameter {name}")))
}

/// `torch.nn.MultiheadAttention` over x, or of x over y, with the attention's probabilities.
pub(super) fn multi_head_attention(
    device: &Device,
    case: &CaseData,
    comparison: &mut Comparison,
) -> Result<()> {
    let [b, t, d]: [usize; 3] = case.shape("x")?;
    case.check_count("d", d)?;
    let heads = case.count("heads")?.unwrap_or(1);
    let of_x = [b, t, d];
    let cross = case.has("y")
        && (case.has("dy_mem") || case.floats_of_any_shape("y")? != case.floats_of_any_shape("x")?);
    let s = if cross { case.shape::<3>("y")?[1] } else { t };
    let masks = Masks::read(case, b, heads, t, s)?;

    let mut run = Run::default();
    let parameters = names::attention("", "", d, cross);
    let mut wrt = vec![run.input("x", case.input("x", &of_x)?)];
    if cross {
        wrt.push(run.input("y", case.input("y", &[b, s, d])?));
    }
    let givens = wrt.len();
    let mut weights = HashMap::new();
    for (name, shape, values) in first_values(case, &parameters)? {
        let id = run.input(&name, HostTensor::f32(shape, values));
        weights.insert(name, (id, wrt.len()));
        wrt.push(id);
    }
    let linear = |run: &mut Run, name: &str, x: ValueId| {
        let (w, _) = *of_name(&weights, &format!("{name}.weight"))?;
        let (b, _) = *of_name(&weights, &format!("{name}.bias"))?;
        matmul::linear(&mut run.graph, x, w, Some(b), Activation::None)
    };
    let packing = if cross {
        Packing::Kv { q: linear(&mut run, "q", wrt[0])?, kv: linear(&mut run, "kv", wrt[1])? }
    } else {
        Packing::Qkv(linear(&mut run, "qkv", wrt[0])?)
    };
    let inputs = masks.inputs(&mut run, packing);
    let settings = Attention { causal: masks.causal, ..Attention::new(heads) };
    let heads_out = attention::attention(&mut run.graph, settings, inputs)?;
    let o = linear(&mut run, "out", heads_out)?;
    let mut outputs = vec![o];
    outputs.extend(run.backward(o, case.input("do", &of_x)?, &wrt)?);
    let probabilities = match case.has("attn") {
        true => Some(attention::attention_probabilities(&mut run.graph, settings, inputs)?),
        false => None,
    };
    outputs.extend(probabilities);

    let got = run.outputs(device, &Memory::new(device.gpu), &outputs)?;
    comparison.tensor("o", case.floats("o", &of_x)?, &got[0]);
    let d_inputs = [("dx", of_x), ("dy_mem", [b, s, d])];
    for ((name, shape), got) in d_inputs.iter().zip(&got[1..1 + givens]) {
        if let Some(want) = case.floats_if_any(name, shape)? {
            comparison.tensor(name, want, got);
        }
    }
    if let (Some(want), Some(got)) = (case.floats_if_any("attn", &[b, heads, t, s])?, got.last()) {
        comparison.tensor("attn", want, got);
    }
    compare_gradients(case, comparison, &parameters, |name| {
        let (_, place) = *of_name(&weights, name)?;
        Ok(got[1 + place].clone())
    })
}

/// The settings that stacks have in common.
fn stack_config(
    case: &CaseData,
    width: usize,
    shape: &StackShape,
    heads: usize,
    act: Activation,
) -> Result<TransformerConfig> {
    case.check_count("d", width)?;
    if shape.layers > 0 {
        case.check_count("ff", shape.feed_forward)?;
    }
    case.check_count("layers", shape.layers)?;
    let final_norm = case.flag("final_norm", shape.final_norm)?;
    if final_norm != shape.final_norm {
        return Err(case.problem(format!("final_norm is {final_norm}, but the tensors say otherwise")));
    }
    Ok(TransformerConfig {
        width,
        heads: case.count("heads")?.unwrap_or(heads),
        feed_forward: shape.feed_forward,
        encoder_layers: shape.layers,
        decoder_layers: shape.layers,
        norm: if case.flag("norm_first", false)? { NormPlacement::Pre } else { NormPlacement::Post },
        final_norm,
        activation: case.one_of("act", &ACTIVATIONS, act)?,
        tying: Tying::Embeddings,
        dropout: 0.0,
        attention_dropout: 0.0,
        norm_epsilon: case.number_between("eps", 1e-30, 1.0, 1e-5)?,
        ..Default::default()
    })
}

/// The pages of a layout with these values.
fn filled_pages(layout: &ParameterLayout, values: Vec<(String, Shape, Vec<f32>)>) -> Result<Vec<HostTensor>> {
    let mut pages: Vec<Vec<f32>> = layout.pages().iter().map(|&n| vec![0.0; n]).collect();
    let values: HashMap<String, (Shape, Vec<f32>)> =
        values.into_iter().map(|(n, s, v)| (n, (s, v))).collect();
    for p in layout.parameters() {
        let (shape, values) = of_name(&values, &p.name)?;
        if *shape != p.shape {
            return Err(Error::shape("parameters", p.name.clone(), &p.shape, shape));
        }
        pages[p.page][p.start..p.start + values.len()].copy_from_slice(values);
    }
    Ok(pages.into_iter().map(|page| HostTensor::f32([page.len()], page)).collect())
}

/// A parameter (or its gradient) out of pages.
fn from_pages(layout: &ParameterLayout, pages: &[HostTensor], name: &str) -> Result<Vec<f32>> {
    let missing = || Error::Internal(format!("the model has no parameter {name}"));
    let p = layout.get(name).ok_or_else(missing)?;
    let page = pages.get(p.page).ok_or_else(missing)?;
    Ok(page.as_f32(name)?[p.start..p.start + p.shape.elements()].to_vec())
}

/// `torch.nn.TransformerEncoder` over embeddings x; `pad` [B, S] is 1 at padding, which must be at the end. Where the index
/// does not say, there are 3 heads, GELU, and LayerNorm after each sub-layer.
pub(super) fn encoder(device: &Device, case: &CaseData, comparison: &mut Comparison) -> Result<()> {
    let of_x: [usize; 3] = case.shape("x")?;
    let [b, s, d] = of_x;
    let shape = StackShape::told(case, "p.", d, false)?;
    let mut config = stack_config(case, d, &shape, 3, Activation::Gelu)?;
    (config.source_vocabulary, config.target_vocabulary) = (1, 1);
    config.validate()?;
    let lengths = match case.has("pad") {
        true => {
            let attend: Vec<i64> = case.integers("pad", &[b, s])?.iter().map(|&p| (p == 0) as i64).collect();
            let lengths = prefix_lengths(&attend, s);
            Some(lengths.ok_or_else(|| case.problem("tensor pad: padding must be at the end of each row"))?)
        }
        false => None,
    };
    let parameters = names::stack("", "encoder", &shape);

    let mut declared = Parameters::declaring();
    {
        let mut run = Run::default();
        let x = run.input("x", case.input("x", &of_x)?);
        Builder::new(&mut run.graph, &mut declared, &config, None).encoder_stack(x, None)?;
    }
    let layout = declared.into_layout();
    let memory = Memory::new(device.gpu);
    for (i, page) in filled_pages(&layout, first_values(case, &parameters)?)?.iter().enumerate() {
        memory.write(&page_name("parameters", i), page)?;
    }
    let mut run = Run::default();
    let x = run.input("x", case.input("x", &of_x)?);
    let lengths_id = lengths.clone().map(|l| run.input("lengths", HostTensor::u32([b], l)));
    let mut given = Parameters::of(&layout, &mut run.graph);
    let y = Builder::new(&mut run.graph, &mut given, &config, None).encoder_stack(x, lengths_id)?;
    let mut wrt = vec![x];
    wrt.extend(layout.parameters().iter().filter_map(|p| given.view(&p.name)));
    let mut outputs = vec![y];
    outputs.extend(run.backward(y, case.input("dy", &of_x)?, &wrt)?);
    let got = run.outputs(device, &memory, &outputs)?;

    // What comes out at padding means nothing, and its incoming gradient is zero.
    let valid = |i: usize| lengths.as_ref().is_none_or(|l| (i / d % s) < l[i / d / s] as usize);
    comparison.elements("y", case.floats("y", &of_x)?, &got[0], valid);
    if let Some(want) = case.floats_if_any("dx", &of_x)? {
        comparison.tensor("dx", want, &got[1]);
    }
    let gradients: HashMap<String, &Vec<f32>> =
        layout.parameters().iter().zip(&got[2..]).map(|(p, g)| (p.name.clone(), g)).collect();
    compare_gradients(case, comparison, &parameters, |name| Ok(of_name(&gradients, name)?.to_vec()))
}

/// The most training steps that a case may ask for.
const MAX_STEPS: usize = 1000;

/// `torch.nn.Transformer` between an embedding that both sides share and a linear layer to the logits; the loss, all
/// gradients, all parameters after one step of Adam, and the losses of more such steps on the same batch.
pub(super) fn transformer(device: &Device, case: &CaseData, comparison: &mut Comparison) -> Result<()> {
    let [vocabulary, d]: [usize; 2] = case.shape("p.emb.weight")?;
    let [rows, s]: [usize; 2] = case.shape("src")?;
    let [_, columns]: [usize; 2] = case.shape("tgt")?;
    if columns < 2 {
        return Err(
            case.problem("tensor tgt: expected two columns at least, of which the last is only predicted")
        );
    }
    let t = columns - 1;
    let encoder = StackShape::told(case, "p.tr.encoder.", d, false)?;
    let decoder = StackShape { decoder: true, ..StackShape::told(case, "p.tr.decoder.", d, true)? };
    for (stack, side) in [(&encoder, "encoder"), (&decoder, "decoder")] {
        case.check_count("layers", stack.layers)?;
        if stack.layers == 0 {
            return Err(case.problem(format!("there is no tensor p.tr.{side}.layers.0.linear1.weight")));
        }
    }
    let mut config = stack_config(case, d, &encoder, 1, Activation::Relu)?;
    config.decoder_layers = decoder.layers;
    if decoder.final_norm != encoder.final_norm || decoder.feed_forward != encoder.feed_forward {
        return Err(case.problem("encoder and decoder differ in width or final LayerNorm"));
    }
    let halves = [("sinusoidal interleaved", false), ("sinusoidal halves", true)];
    let halves = case.one_of("pe", &halves, false)?;
    config.positions = if halves { Positions::SinusoidalHalves } else { Positions::Sinusoidal };
    (config.source_vocabulary, config.target_vocabulary) = (vocabulary, vocabulary);
    (config.max_source, config.max_target) = (s.max(t), s.max(t));
    let smoothing = case.number_between("label_smoothing", 0.0, 1.0, 0.1)?;
    if case.integer("ignore_index")?.is_some_and(|i| i != PAD as i64) {
        return Err(case.problem(format!("the ignored id of a Transformer is {PAD}")));
    }
    let stepped = case.names().any(|n| n.starts_with("adam1."));
    let lr = match case.number("lr")? {
        Some(lr) if (0.0..=1e3).contains(&lr) => lr,
        None if !stepped => 1e-3,
        _ => return Err(case.problem(format!("case {}: lr: expected a number from 0 to 1000", case.name))),
    };

    let mut parameters = names::stack("tr.encoder.", "encoder", &encoder);
    parameters.extend(names::stack("tr.decoder.", "decoder", &decoder));
    parameters.push(names::embedding("emb", "embedding", vocabulary, d));
    parameters.extend(names::linear("head", "output", d, vocabulary));
    let first = first_values(case, &parameters)?;
    let model = Transformer::new(config)?;
    let layout = model.layout();

    let source = case.ids("src", &[rows, s], vocabulary, PAD as i64, PAD)?;
    let attend: Vec<i64> = source.iter().map(|&id| (id != PAD) as i64).collect();
    let lengths = prefix_lengths(&attend, s)
        .ok_or_else(|| case.problem(format!("tensor src: padding ({PAD}) must be at the end of each row")))?;
    let target = case.ids("tgt", &[rows, columns], vocabulary, PAD as i64, PAD)?;
    let side = |from: usize| {
        let ids = target.chunks(columns).flat_map(|row| row[from..from + t].to_vec()).collect();
        HostTensor::u32([rows, t], ids)
    };

    let adam = AdamSettings { beta1: 0.9, beta2: 0.98, eps: 1e-9, ..AdamSettings::transformer() };
    let (beta1, beta2) = (adam.beta1, adam.beta2);
    let defaults = Objective::default();
    let bytes = defaults.max_logits_bytes.min(device.profile.max_binding_bytes);
    let objective = Objective { label_smoothing: smoothing, max_logits_bytes: bytes, ..defaults };
    let batch = BatchShape { rows, source_len: s, target_len: t };
    let io = model.loss_graph(batch, &objective, Some(&Optimizer { adam, clip_norm: None }))?;
    let memory = Memory::new(device.gpu);
    for (i, page) in filled_pages(layout, first)?.iter().enumerate() {
        memory.write(&page_name("parameters", i), page)?;
    }
    let mut outputs = vec![io.loss, io.memory, io.decoded];
    outputs.extend(&io.logits);
    let plan = Plan::new(&io.graph, &outputs, device.profile)?;
    let mut executor = device.gpu.executor(plan, &memory)?;
    executor.write(io.source, &HostTensor::u32([rows, s], source))?;
    executor.write(io.source_lengths, &HostTensor::u32([rows], lengths.clone()))?;
    executor.write(io.decoder_input, &side(0))?;
    executor.write(io.targets, &side(1))?;
    if let Some(seed) = io.seed {
        executor.write(seed, &HostTensor::u32([2], vec![0, 1]))?;
    }
    // The learning rate stays as it is; only the corrections of the moments change from step to step.
    let schedule = |step: i32| {
        let correction = |beta: f64| (1.0 / (1.0 - beta.powi(step))) as f32;
        HostTensor::f32([4], vec![lr as f32, correction(beta1), correction(beta2), 1.0])
    };
    if let Some(id) = io.schedule {
        executor.write(id, &schedule(1))?;
    }
    executor.run()?;
    let read = |id: ValueId| -> Result<Vec<f32>> { Ok(executor.read(id)?.as_f32("a result")?.to_vec()) };

    if case.has("pe") {
        // Only the rows in use: far positions lose digits where they are computed in 32 bits.
        let [positions, _] = case.shape("pe")?;
        let want = case.floats("pe", &[positions, d])?;
        let used = positions.min(s.max(t));
        let table = if halves {
            embedding::sinusoid_halves(used, d)
        } else {
            embedding::sinusoid_interleaved(used, d)
        };
        comparison.tensor("pe", &want[..used * d], table.as_f32("pe")?);
    }
    let valid = |i: usize| (i / d % s) < lengths[i / d / s] as usize;
    if let Some(want) = case.floats_if_any("memory", &[rows, s, d])? {
        comparison.elements("memory", want, &read(io.memory)?, valid);
    }
    if let Some(want) = case.floats_if_any("dec", &[rows, t, d])? {
        comparison.tensor("dec", want, &read(io.decoded)?);
    }
    if let Some(want) = case.floats_if_any("logits", &[rows, t, vocabulary])? {
        let mut logits = Vec::new();
        for &chunk in &io.logits {
            logits.extend(read(chunk)?);
        }
        comparison.tensor("logits", want, &logits);
    }
    comparison.tensor("loss", case.floats("loss", &[1])?, &read(io.loss)?);

    let pages = |what: &str| {
        (0..layout.pages().len()).map(|i| memory.read(&page_name(what, i))).collect::<Result<Vec<_>>>()
    };
    let gradients = pages("gradients")?;
    compare_gradients(case, comparison, &parameters, |name| from_pages(layout, &gradients, name))?;
    let after = pages("parameters")?;
    for p in parameters.iter().filter(|p| case.has(&format!("adam1.{}", p.name))) {
        let got = p.gathered(|name| from_pages(layout, &after, name))?;
        compare_step(case, comparison, p, lr, &got)?;
    }
    if case.has("losses") {
        let [steps] = case.shape("losses")?;
        if !(1..=MAX_STEPS).contains(&steps) {
            return Err(case.problem(format!("tensor losses: expected 1 to {MAX_STEPS} numbers")));
        }
        let mut losses = read(io.loss)?;
        for step in 2..=steps as i32 {
            if let Some(id) = io.schedule {
                executor.write(id, &schedule(step))?;
            }
            executor.run()?;
            losses.extend(executor.read(io.loss)?.as_f32("a loss")?);
        }
        comparison.tensor("losses", case.floats("losses", &[steps])?, &losses);
    }
    Ok(())
}

/// Compares a parameter after Adam's first step. It moves by the learning rate in the direction of the gradient's sign, so
/// where the gradient is zero but for rounding, the direction is noise: there it may only not have moved further. That is
/// where it is below 1e-6 of the largest, and where it must be zero.
fn compare_step(
    case: &CaseData,
    comparison: &mut Comparison,
    p: &Theirs,
    lr: f64,
    got: &[f32],
) -> Result<()> {
    let name = format!("adam1.{}", p.name);
    let before = case.floats(&format!("p.{}", p.name), &p.shape)?;
    let gradient = case.floats(&format!("g.{}", p.name), &p.shape)?;
    let least = 1e-6 * gradient.iter().fold(0.0f64, |m, x| m.max(x.abs() as f64));
    let told = |i: usize| gradient[i].abs() as f64 > least && !p.vanishing.contains(&i);
    comparison.elements(&name, case.floats(&name, &p.shape)?, got, told);
    // The sum of the two rounds, by half a unit of the parameter.
    let most = 1.001 * lr + f32::EPSILON as f64 * scale(before.iter().copied());
    let moved = |i: usize| (got[i] as f64 - before[i] as f64).abs();
    let far = |&i: &usize| moved(i).is_nan() || moved(i) > most;
    if let Some(i) = (0..got.len().min(before.len())).filter(|&i| !told(i)).find(far) {
        comparison.problem(format!(
            "{name}: element {i} went from {} to {}, further than the learning rate {lr}",
            before[i], got[i]
        ));
    }
    Ok(())
}

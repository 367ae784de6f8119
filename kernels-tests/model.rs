//! Whole models: a training step node by node and against the interpreter, a task that is learned without an error, and
//! models of 16-bit floats.

use crate::{Outcome, Passed, Run, Test};
use std::collections::HashMap;
use wgformer::gpu::Memory;
use wgformer::graph::{Interpreter, Role, ValueId};
use wgformer::infer::{DecodeSettings, Decoder, SpecialIds};
use wgformer::nn::{
    BatchShape, ForwardGraph, LossGraph, NormPlacement, Objective, Optimizer, Positions, Precision,
    Transformer, TransformerConfig, Tying, page_name,
};
use wgformer::ops::elementwise::Activation;
use wgformer::ops::optimizer::AdamSettings;
use wgformer::plan::Plan;
use wgformer::rng::Rng;
use wgformer::testing::{Runner, profiles};
use wgformer::text::{BatchOptions, BatchSize, Batches, Example};
use wgformer::train::{Decay, Schedule, Trainer, TrainerSettings};
use wgformer::verify::{Order, Replay, bounds};
use wgformer::{DType, DeviceProfile, ErrorKind, HostTensor, Result, Tensor64};

const VOCABULARY: usize = 13;

fn tiny() -> TransformerConfig {
    TransformerConfig {
        source_vocabulary: VOCABULARY,
        target_vocabulary: VOCABULARY,
        width: 32,
        heads: 4,
        feed_forward: 48,
        encoder_layers: 2,
        decoder_layers: 2,
        max_source: 24,
        max_target: 24,
        ..Default::default()
    }
}

/// Models that differ in every setting, all with dropout, and with the rows of logits that are computed together.
fn models() -> Vec<(&'static str, TransformerConfig, u64)> {
    use {Activation::*, NormPlacement::*};
    let all = 1 << 20;
    let base = |norm, activation, tying, positions| TransformerConfig {
        norm,
        final_norm: norm == Pre,
        activation,
        tying,
        positions,
        ..tiny()
    };
    vec![
        ("post-norm, ReLU", base(Post, Relu, Tying::Output, Positions::Sinusoidal), all),
        ("pre-norm, GELU, one embedding", base(Pre, Gelu, Tying::All, Positions::Learned), all),
        (
            "post-norm, SiLU, no bias, logits in chunks",
            TransformerConfig { bias: false, ..base(Post, Silu, Tying::None, Positions::SinusoidalHalves) },
            1,
        ),
        ("pre-norm, GELU by tanh", base(Pre, GeluTanh, Tying::Embeddings, Positions::Learned), all),
    ]
}

/// The preset `small` with a short vocabulary.
fn small() -> Result<TransformerConfig> {
    let preset = TransformerConfig::preset("small")?;
    Ok(TransformerConfig { source_vocabulary: 500, target_vocabulary: 500, ..preset })
}

fn test(
    group: &str,
    name: String,
    run: impl Fn(&Runner) -> Result<Vec<String>> + Send + Sync + 'static,
) -> Test {
    let run = move |on: &Runner| -> Outcome {
        match run(on) {
            Ok(problems) if problems.is_empty() => Ok(Passed::checks(1)),
            Ok(problems) => Err(problems),
            Err(e) => Err(vec![e.to_string()]),
        }
    };
    Test { layer: 4, group: group.to_string(), name, run: Run::OnDevice(Box::new(run)) }
}

/// The profile of this name: see [`profiles`].
fn profile(on: &Runner, name: &str) -> Result<DeviceProfile> {
    let all = profiles(&on.gpu).into_iter();
    let found = all.into_iter().find(|(n, _)| *n == name).map(|(_, p)| p);
    found.ok_or_else(|| wgformer::Error::Input(format!("there is no profile {name}")))
}

pub fn tests() -> Vec<Test> {
    // The longest first: the others fill the time of the other workers.
    let mut all = vec![test("task", "copying is learned without an error".to_string(), copying)];
    let shape = BatchShape { rows: 5, source_len: 9, target_len: 11 };
    // Enough places for chunks of those that have targets.
    let padded = BatchShape { rows: 16, ..shape };
    for on in ["own", "portable"] {
        for (name, config, chunk) in models() {
            let step = config.clone();
            all.push(test("step", format!("{name}, node by node, {on}"), move |runner| {
                follow(runner, &Step::new(&step, shape, chunk, false)?, &profile(runner, on)?)
            }));
            let step = config.clone();
            all.push(test("step", format!("{name}, interpreter, {on}"), move |runner| {
                let step = Step::new(&step, shape, chunk, false)?;
                compare(runner, &step, &step, &profile(runner, on)?)
            }));
            // What differs is the loss, which reads other places: not by device.
            if on == "own" {
                let step = config.clone();
                all.push(test("step", format!("{name}, without padding, node by node"), move |runner| {
                    follow(runner, &Step::new(&step, padded, chunk, true)?, &profile(runner, on)?)
                }));
            }
            all.push(test(
                "step",
                format!("{name}, without padding, interpreter with, {on}"),
                move |runner| {
                    let [gathered, whole] = [true, false].map(|g| Step::new(&config, padded, chunk, g));
                    compare(runner, &gathered?, &whole?, &profile(runner, on)?)
                },
            ));
        }
        // Each has many kernels of its own to compile, and layers and settings are the f32 steps' part.
        for (name, config, _) in models().into_iter().step_by(if on == "own" { 2 } else { 3 }) {
            all.push(test("f16", format!("{name}, {on}"), move |runner| {
                half(runner, &config, shape, &profile(runner, on)?)
            }));
        }
    }
    all.push(test("step", "the preset small, node by node".to_string(), |runner| {
        let shape = BatchShape { rows: 2, source_len: 17, target_len: 9 };
        follow(runner, &Step::new(&small()?, shape, 1 << 20, false)?, runner.gpu.profile())
    }));
    all
}

/// One training step: its graph, and values for all inputs and parameters.
struct Step {
    model: Transformer,
    io: LossGraph,
    inputs: Vec<(ValueId, HostTensor)>,
    parameters: Vec<(ValueId, HostTensor)>,
}

impl Step {
    /// Rows of all lengths, ids at random; parameters as after some training: gamma is not 1 and no bias 0. Where `gather`,
    /// the loss looks at the places with targets, and at some others.
    fn new(config: &TransformerConfig, shape: BatchShape, chunk_bytes: u64, gather: bool) -> Result<Step> {
        let BatchShape { rows, source_len, target_len } = shape;
        let mut rng = Rng::new(4);
        // The first row is full, the second as short as can be.
        let mut lengths = |most: usize| {
            let length = |r: usize| match r {
                0 => most as u32,
                1 => 1,
                _ => 1 + rng.below(most as u64) as u32,
            };
            (0..rows).map(length).collect::<Vec<_>>()
        };
        let (source_lengths, target_lengths) = (lengths(source_len), lengths(target_len));
        let targets = target_lengths.iter().sum::<u32>() as usize;
        let loss_rows = if gather { targets.next_multiple_of(8) + 8 } else { rows * target_len };

        let model = Transformer::new(config.clone())?;
        let objective = Objective { max_logits_bytes: chunk_bytes, ..Objective::default() };
        let optimizer = Optimizer { adam: AdamSettings::transformer(), clip_norm: Some(0.5) };
        let io = model.loss_graph_of(shape, loss_rows, &objective, Some(&optimizer))?;
        let mut rng = Rng::new(3);
        let mut parameters = Vec::new();
        for (i, page) in model.layout().initial(9).into_iter().enumerate() {
            let page: Vec<f32> = page.iter().map(|x| x + 0.02 * rng.normal() as f32).collect();
            if let Some(id) = io.graph.find(&page_name("parameters", i)) {
                parameters.push((id, HostTensor::f32([page.len()], page)));
            }
        }
        // Ids of a vocabulary, 0 beyond the length.
        let mut ids = |lengths: &[u32], most: usize, vocabulary: usize| {
            let place = (0..rows).flat_map(|r| (0..most as u32).map(move |t| (r, t)));
            let id = place.map(|(r, t)| match t < lengths[r] {
                true => 1 + rng.below(vocabulary as u64 - 1) as u32,
                false => 0,
            });
            id.collect::<Vec<u32>>()
        };
        let source = ids(&source_lengths, source_len, config.source_vocabulary);
        let decoder_input = ids(&target_lengths, target_len, config.target_vocabulary);
        let targets = ids(&target_lengths, target_len, config.target_vocabulary);
        let mut inputs = vec![
            (io.source, HostTensor::u32([rows, source_len], source)),
            (io.decoder_input, HostTensor::u32([rows, target_len], decoder_input)),
            (io.source_lengths, HostTensor::u32([rows], source_lengths)),
        ];
        match io.places {
            None => inputs.push((io.targets, HostTensor::u32([rows, target_len], targets))),
            Some(id) => {
                // Those without a target from the end on, so that they lie between the others.
                let mut places: Vec<usize> = (0..targets.len()).collect();
                places.sort_by_key(|&p| (targets[p] == 0, std::cmp::Reverse(p)));
                places.truncate(loss_rows);
                places.sort_unstable();
                let at = places.iter().map(|&p| targets[p]).collect();
                inputs.push((io.targets, HostTensor::u32([loss_rows], at)));
                let places = places.iter().map(|&p| p as u32).collect();
                inputs.push((id, HostTensor::u32([loss_rows], places)));
            }
        }
        inputs.extend(io.schedule.map(|s| (s, HostTensor::f32([4], vec![1e-2, 10.0, 50.0, 1.0]))));
        inputs.extend(io.seed.map(|s| (s, HostTensor::u32([2], vec![11, 3]))));
        Ok(Step { model, io, inputs, parameters })
    }
}

/// Follows a step node by node, each against its reference on what the device had: none may be further from it than f32
/// explains.
fn follow(on: &Runner, step: &Step, profile: &DeviceProfile) -> Result<Vec<String>> {
    let graph = &step.io.graph;
    let plan = Plan::new(graph, &step.io.outputs(), profile)?;
    let mut replay = Replay::new(&on.gpu, graph, &plan)?;
    for (id, value) in step.parameters.iter().chain(&step.inputs) {
        replay.set(*id, value)?;
    }
    Ok(replay.run(Order::Natural)?.iter().map(|t| t.to_string()).collect())
}

/// A step on the device and in f64 from end to end: loss, logits, every gradient, every parameter and moment after Adam.
/// `oracle` is the step in f64: the same one, or one whose loss looks at other places without a target, and logits differ.
fn compare(on: &Runner, step: &Step, oracle: &Step, profile: &DeviceProfile) -> Result<Vec<String>> {
    let Step { model, io, .. } = step;
    let same = io.places.is_some() == oracle.io.places.is_some();
    let outputs = |io: &LossGraph| {
        let logits = if same { io.logits.clone() } else { Vec::new() };
        [io.outputs(), logits].concat()
    };
    let pairs: Vec<_> = outputs(io).into_iter().zip(outputs(&oracle.io)).collect();
    let memory = Memory::new(&on.gpu);
    for (id, page) in &step.parameters {
        memory.write(&io.graph.value(*id).name, page)?;
    }
    let mut executor = on.gpu.executor(Plan::new(&io.graph, &outputs(io), profile)?, &memory)?;
    for (id, value) in &step.inputs {
        executor.write(*id, value)?;
    }
    executor.run()?;
    let exact = &oracle.io.graph;
    let mut interpreter = Interpreter::new();
    for (id, value) in oracle.parameters.iter().chain(&oracle.inputs) {
        interpreter.set(exact, *id, value.to_f64())?;
    }
    interpreter.run(exact)?;

    let mut problems = Vec::new();
    let mut within = |name: &str, got: &[f32], want: &[f64], bound: f64| {
        let near = |(g, w): (&f32, &f64)| (*g as f64 - w).abs() <= bound;
        if let Some(i) = got.iter().zip(want).position(|pair| !near(pair)) {
            problems
                .push(format!("{name}[{i}]: got {:e}, expected {:e} within {bound:.1e}", got[i], want[i]));
        }
    };
    // Errors pass through all layers here, so the bounds are shares of the largest element, not derived ones.
    let share = |want: &[f64], share: f64| share * want.iter().fold(0.0f64, |m, x| m.max(x.abs())) + 1e-9;
    for (id, of_oracle) in &pairs {
        let (got, want) = (executor.read(*id)?, interpreter.get(exact, *of_oracle)?);
        let name = &io.graph.value(*id).name;
        within(name, got.as_f32(name)?, &want.data, share(&want.data, 2e-5));
    }
    for state in exact.ids().filter(|&id| matches!(exact.value(id).role, Role::State)) {
        let name = exact.value(state).name.clone();
        let (kind, page) = name.split_once('.').unwrap_or((&name, ""));
        let got = memory.read(&name)?;
        let want = interpreter.get(exact, state)?;
        // By parameter, since their magnitudes differ.
        for p in model.layout().parameters().iter().filter(|p| page.ends_with(&p.page.to_string())) {
            let range = p.start..p.start + p.shape.elements();
            let (got, want) = (&got.as_f32(&name)?[range.clone()], &want.data[range]);
            let what = format!("{name} {}", p.name);
            match kind {
                // The key bias has no gradient in exact arithmetic: only rounding. Elsewhere 1e-4 of the largest.
                "gradients" if p.name.contains("qkv.bias") || p.name.contains("kv.bias") => {
                    within(&what, got, want, share(want, 1e-3))
                }
                "gradients" => within(&what, got, want, share(want, 1e-4)),
                // Adam's first step is the learning rate times the gradient's sign: noise where that is rounding only.
                "parameters" => within(&what, got, want, 2.001e-2),
                _ => within(&what, got, want, share(want, 1e-3)),
            }
        }
    }
    Ok(problems)
}

/// A model of 16-bit floats: the logits of a batch, an encoding and three steps of decoding, node by node; and the logits
/// against those of the parameters as they were, in f64.
fn half(
    on: &Runner,
    config: &TransformerConfig,
    shape: BatchShape,
    profile: &DeviceProfile,
) -> Result<Vec<String>> {
    let (full, half) =
        (Transformer::new(config.clone())?, Transformer::with_precision(config.clone(), Precision::F16)?);
    let mut rng = Rng::new(5);
    // As after some training: gamma is not 1 and no bias 0.
    let parameters = full.layout().parameters().iter().map(|p| {
        let values = p.initial(9).into_iter().map(|x| x + 0.02 * rng.normal() as f32).collect();
        (p.name.clone(), HostTensor::f32(p.shape.clone(), values))
    });
    let parameters: HashMap<String, HostTensor> = parameters.collect();
    let decoder = match Decoder::new(&on.gpu, half.clone(), &parameters, SpecialIds::default()) {
        Ok(decoder) if on.gpu.profile().f16 => decoder,
        Ok(_) => return Ok(vec!["a device without 16-bit floats takes them".into()]),
        // Refused is what it must be there.
        Err(e) if e.kind() == ErrorKind::Unsupported && !on.gpu.profile().f16 => return Ok(Vec::new()),
        Err(e) => return Err(e),
    };
    let BatchShape { rows, source_len, target_len } = shape;
    let mut ids = |count: usize, vocabulary: usize| -> Vec<u32> {
        (0..count).map(|_| 1 + rng.below(vocabulary as u64 - 1) as u32).collect()
    };
    let source = HostTensor::u32([rows, source_len], ids(rows * source_len, config.source_vocabulary));
    let target = HostTensor::u32([rows, target_len], ids(rows * target_len, config.target_vocabulary));
    let lengths = (0..rows).map(|r| (source_len - r * source_len / rows) as u32).collect();
    let lengths = HostTensor::u32([rows], lengths);

    let mut problems = Vec::new();
    let io = half.forward_graph(shape)?;
    let plan = Plan::new(&io.graph, &[io.logits], profile)?;
    let mut forward = on.gpu.executor(plan, decoder.memory())?;
    forward.write(io.source, &source)?;
    forward.write(io.source_lengths, &lengths)?;
    forward.write(io.decoder_input, &target)?;
    let mut found = forward.verify(&io.graph)?;
    forward.run()?;
    found.compare_outputs(&forward)?;
    problems.extend(found.troubles.iter().map(|t| format!("logits: {t}")));
    let inputs = [source.clone(), lengths.clone(), target];
    let logits = forward.read(io.logits)?.to_f64();
    problems.extend(near(&full.forward_graph(shape)?, &parameters, &inputs, &logits)?);

    let io = half.encode_graph(shape)?;
    let mut encode = on.gpu.executor(Plan::new(&io.graph, &[], profile)?, decoder.memory())?;
    encode.write(io.source, &source)?;
    encode.write(io.source_lengths, &lengths)?;
    let mut found = encode.verify(&io.graph)?;
    encode.run()?;
    found.compare_states(&encode)?;
    problems.extend(found.troubles.iter().map(|t| format!("encoding: {t}")));
    let io = half.decode_graph(shape, 7)?;
    let mut decode = on.gpu.executor(Plan::new(&io.graph, &[io.next], profile)?, decoder.memory())?;
    decoder.memory().write(&io.token, &HostTensor::u32([rows, 1], vec![1; rows]))?;
    decode.write(io.source_lengths, &lengths)?;
    for position in 0..3 {
        decode.write(io.position, &HostTensor::u32([1], vec![position]))?;
        decode.write(io.target_lengths, &HostTensor::u32([rows], vec![position + 1; rows]))?;
        let mut found = decode.verify(&io.graph)?;
        decode.run()?;
        found.compare_states(&decode)?;
        problems.extend(found.troubles.iter().map(|t| format!("decoding at {position}: {t}")));
    }
    Ok(problems)
}

/// Logits of a model of 16-bit floats against those of the parameters as they were, in f64: some of them, and how far they
/// may be to first order. A logit moves by its derivative by each number that is stored, times the rounding of that number;
/// the derivatives are those of the f32 graph `io`, which has the same nodes. Roundings of many numbers are independent, each
/// anywhere within its bound, so their sum is normally distributed: six standard deviations are allowed.
fn near(
    io: &ForwardGraph,
    parameters: &HashMap<String, HostTensor>,
    inputs: &[HostTensor; 3],
    logits: &Tensor64,
) -> Result<Vec<String>> {
    let mut graph = io.graph.clone();
    let nodes = graph.nodes().len();
    let stored: Vec<ValueId> = graph
        .ids()
        .filter(|&id| graph.value(id).ty.dtype == DType::F32)
        .filter(|&id| !matches!(graph.value(id).role, Role::State))
        .collect();
    let seed = graph.input("seed", graph.value(io.logits).ty.clone());
    let gradients = graph.backward(&[(io.logits, seed)], &stored)?;
    let mut run = Interpreter::new();
    for (id, value) in [io.source, io.source_lengths, io.decoder_input].into_iter().zip(inputs) {
        run.set(&graph, id, value.to_f64())?;
    }
    // Parameters are views of pages.
    let mut pages: HashMap<ValueId, Tensor64> = HashMap::new();
    for id in graph.ids().filter(|&id| matches!(graph.value(id).role, Role::View)) {
        let (page, start) = graph.resolve(id);
        let values = parameters[&graph.value(id).name].to_f64().data;
        let shape = graph.value(page).ty.shape.clone();
        let page = pages.entry(page).or_insert_with(|| Tensor64::zeros(shape));
        page.data[start..start + values.len()].copy_from_slice(&values);
    }
    for (id, page) in pages {
        run.set(&graph, id, page)?;
    }
    let mut problems = Vec::new();
    let mut rng = Rng::new(11);
    for _ in 0..8 {
        let place = rng.below(logits.data.len() as u64) as usize;
        let one = |i| if i == place { 1.0 } else { 0.0 };
        run.set(&graph, seed, Tensor64::from_fn(logits.shape.clone(), one))?;
        run.run(&graph)?;
        // By value, how far its elements may be: what its kernel rounds, and what storing it does.
        let mut errors: HashMap<ValueId, Vec<f64>> = HashMap::new();
        for node in &graph.nodes()[..nodes] {
            let of = |ids: &[ValueId]| ids.iter().map(|&id| run.get(&graph, id)).collect::<Result<Vec<_>>>();
            let (inputs, results) = (of(&node.inputs)?, of(&node.outputs)?);
            let found = bounds(&*node.op, &inputs.iter().collect::<Vec<_>>(), &results);
            errors.extend(node.outputs.iter().copied().zip(found));
        }
        let mut variance = 0.0;
        for (id, gradient) in stored.iter().zip(&gradients) {
            let Some(gradient) = gradient else { continue };
            let (gradient, value) = (run.get(&graph, *gradient)?, run.get(&graph, *id)?);
            for (i, (d, x)) in gradient.data.iter().zip(&value.data).enumerate() {
                let rounded = errors.get(id).map_or(f64::INFINITY, |e| e[i]);
                // What only moves has no error of its own; parameters and constants have that of storing them.
                let own = if rounded.is_finite() { rounded } else { 0.0 };
                let storing = if rounded > 0.0 && *id != io.logits {
                    2f64.powi(-11) * x.abs() + 2f64.powi(-25)
                } else {
                    0.0
                };
                variance += (d * (own + storing)).powi(2) / 3.0;
            }
        }
        let bound = 6.0 * variance.sqrt();
        let (got, want) = (logits.data[place], run.get(&graph, io.logits)?.data[place]);
        let within = (got - want).abs() <= bound;
        if !within {
            problems.push(format!("logit {place}: got {got:e}, expected {want:e} within {bound:.1e}"));
        }
    }
    Ok(problems)
}

/// Sequences of random symbols, to be copied.
fn sequences(count: usize, seed: u64) -> Vec<Example> {
    let mut rng = Rng::new(seed);
    let mut one = |line| {
        let n = 1 + rng.below(5) as usize;
        let source: Vec<u32> = (0..n).map(|_| 4 + rng.below(6) as u32).collect();
        Example { target: source.clone(), source, line }
    };
    (0..count).map(&mut one).collect()
}

/// Learns to copy, then copies 100 sequences that it has not seen: every symbol right.
fn copying(on: &Runner) -> Result<Vec<String>> {
    const STEPS: u64 = 250;
    let config = TransformerConfig {
        dropout: 0.0,
        attention_dropout: 0.0,
        width: 16,
        heads: 2,
        feed_forward: 16,
        positions: Positions::Learned,
        encoder_layers: 1,
        decoder_layers: 1,
        ..tiny()
    };
    let settings = TrainerSettings {
        seed: 7,
        schedule: Schedule { decay: Decay::Cosine, rate: 2e-2, warmup: 50, steps: STEPS, width: 16 },
        adam: AdamSettings::transformer(),
        clip_norm: Some(1.0),
        objective: Objective::default(),
        max_bytes: None,
    };
    let model = Transformer::new(config)?;
    let mut trainer = Trainer::new(&on.gpu, model.clone(), settings)?;
    let options = BatchOptions {
        size: BatchSize::Sentences(16),
        max_buckets: 2,
        max_source: 24,
        max_target: 24,
        ..Default::default()
    };
    let all = Batches::new(sequences(4000, 1), &options)?;
    let epochs = (0..).flat_map(|epoch| all.epoch(3, epoch));
    let mut last = None;
    for rows in epochs.take(STEPS as usize) {
        last = Some(trainer.step(&all.batch(&rows))?);
    }
    let loss = last.map(|step| step.wait()).transpose()?.map_or(f64::NAN, |report| report.loss);
    let special = SpecialIds { pad: 0, begin: 1, end: 2, unknown: 3 };
    let mut decoder = Decoder::with_memory(&on.gpu, model.clone(), trainer.memory().clone(), special);
    let unseen = sequences(100, 2);
    let sources: Vec<Vec<u32>> =
        unseen.iter().map(|e| e.source.iter().copied().chain([2]).collect()).collect();
    let settings = DecodeSettings { batch: 32, max_length: 24 };
    let said = decoder.greedy(&sources, settings)?;
    if on.gpu.profile().f16 {
        let half = Transformer::with_precision(model.config().clone(), Precision::F16)?;
        let parameters = trainer.parameters()?.into_iter().collect();
        let halved = Decoder::new(&on.gpu, half, &parameters, special)?.greedy(&sources, settings)?;
        let other = said.iter().zip(&halved).filter(|(full, half)| full != half).count();
        // Two symbols may be nearly as likely.
        if other > 2 {
            return Ok(vec![format!("{other} of 100 are others with 16-bit floats")]);
        }
    }
    let wrong: Vec<_> = said.iter().zip(&unseen).filter(|(s, e)| **s != e.target).collect();
    Ok(match wrong.first() {
        None => Vec::new(),
        Some((s, e)) => vec![format!(
            "{} of 100 wrong after {STEPS} steps, loss {loss}; the first: {s:?} for {:?}",
            wrong.len(),
            e.target
        )],
    })
}

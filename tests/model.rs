//! The model on a device: the same bits twice, no growth, settings. Its numbers are tested in kernels-tests/model.rs.

use std::collections::HashMap;
use std::sync::OnceLock;
use wgformer::gpu::{Gpu, Request, request};
use wgformer::graph::to_host;
use wgformer::infer::{DecodeSettings, Decoder, SpecialIds};
use wgformer::nn::{BatchShape, Objective, Optimizer, Precision, Transformer, TransformerConfig, Tying};
use wgformer::ops::optimizer::AdamSettings;
use wgformer::plan::Plan;
use wgformer::rng::Rng;
use wgformer::text::{Batch, BatchOptions, BatchSize, Batches, Example};
use wgformer::train::{Decay, Schedule, Trainer, TrainerSettings};
use wgformer::{DeviceProfile, ErrorKind, HostTensor, Tensor64};

/// One device for the whole process; without an adapter every test fails.
fn gpu() -> &'static Gpu {
    static GPU: OnceLock<Gpu> = OnceLock::new();
    GPU.get_or_init(|| {
        let name = std::env::var("WGPU_ADAPTER_NAME").ok();
        request(&Request { name, ..Default::default() }).expect("an adapter")
    })
}

fn tiny(vocabulary: usize) -> TransformerConfig {
    TransformerConfig {
        source_vocabulary: vocabulary,
        target_vocabulary: vocabulary,
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

/// The least model with every part, for tests of many steps: on the slowest software adapter a step takes 0.15 s.
fn least(vocabulary: usize) -> TransformerConfig {
    TransformerConfig { heads: 2, encoder_layers: 1, decoder_layers: 1, ..tiny(vocabulary) }
}

fn settings(rate: f64, steps: u64) -> TrainerSettings {
    TrainerSettings {
        seed: 7,
        schedule: Schedule { decay: Decay::InverseSqrt, rate, warmup: 50, steps, width: 32 },
        adam: AdamSettings::transformer(),
        clip_norm: Some(1.0),
        objective: Objective::default(),
        max_bytes: None,
    }
}

/// Sequences of random symbols, to be copied in reverse.
fn reversals(vocabulary: u64, longest: u64, count: usize, seed: u64) -> Vec<Example> {
    let mut rng = Rng::new(seed);
    let mut one = |line| {
        let n = 1 + rng.below(longest) as usize;
        let source: Vec<u32> = (0..n).map(|_| 4 + rng.below(vocabulary - 4) as u32).collect();
        Example { target: source.iter().rev().copied().collect(), source, line }
    };
    (0..count).map(&mut one).collect()
}

fn batches(examples: Vec<Example>, rows: usize) -> Batches {
    let options = BatchOptions {
        size: BatchSize::Sentences(rows),
        max_buckets: 2,
        max_source: 24,
        max_target: 24,
        ..Default::default()
    };
    Batches::new(examples, &options).unwrap()
}

fn first_batches(all: &Batches, count: usize) -> Vec<Batch> {
    let epochs = (0..).flat_map(|epoch| all.epoch(3, epoch));
    epochs.take(count).map(|rows| all.batch(&rows)).collect()
}

#[test]
fn the_same_seed_gives_the_same_bits() {
    let run = || {
        let model = Transformer::new(tiny(12)).unwrap();
        let mut trainer = Trainer::new(gpu(), model, settings(1e-3, 20)).unwrap();
        for batch in first_batches(&batches(reversals(12, 9, 300, 1), 16), 8) {
            trainer.step(&batch).unwrap();
        }
        trainer.parameters().unwrap()
    };
    let (a, b) = (run(), run());
    assert!(!a.is_empty());
    for ((name, x), (_, y)) in a.iter().zip(&b) {
        assert_eq!(x.bytes(), y.bytes(), "{name}");
    }
}

#[test]
fn two_hundred_steps_allocate_nothing() {
    // A handle of its own, so that other tests' buffers are not counted.
    let gpu = request(&Request { name: Some(gpu().name().to_string()), ..Default::default() }).unwrap();
    let model = Transformer::new(least(12)).unwrap();
    let mut trainer = Trainer::new(&gpu, model, settings(1e-3, 200)).unwrap();
    let batch = first_batches(&batches(reversals(12, 9, 64, 1), 4), 1).remove(0);
    trainer.step(&batch).unwrap().wait().unwrap();
    trainer.step(&batch).unwrap().wait().unwrap();
    let before = gpu.allocations();
    for _ in 0..200 {
        trainer.step(&batch).unwrap().wait().unwrap();
    }
    assert_eq!(gpu.allocations(), before);
}

/// The plan of a training step of a preset, with vocabularies of 8000.
fn step(preset: &str, shape: BatchShape, profile: &DeviceProfile) -> Plan {
    let config = TransformerConfig {
        source_vocabulary: 8000,
        target_vocabulary: 8000,
        ..TransformerConfig::preset(preset).unwrap()
    };
    let optimizer = Optimizer { adam: AdamSettings::transformer(), clip_norm: Some(1.0) };
    let model = Transformer::new(config).unwrap();
    let io = model.loss_graph(shape, &Objective::default(), Some(&optimizer)).unwrap();
    Plan::new(&io.graph, &io.outputs(), profile).unwrap()
}

#[test]
fn the_small_preset_needs_under_60_percent_of_its_values() {
    let shape = BatchShape { rows: 32, source_len: 32, target_len: 32 };
    for profile in [gpu().profile().clone(), DeviceProfile::portable()] {
        let plan = step("small", shape, &profile);
        let share = plan.peak_bytes() as f64 / plan.value_bytes as f64;
        println!("peak {} of {} bytes: {:.1} %", plan.peak_bytes(), plan.value_bytes, 100.0 * share);
        assert!(share < 0.6, "{plan}");
    }
}

#[test]
fn a_step_of_the_base_preset_needs_at_most_420_dispatches() {
    let shape = BatchShape { rows: 8, source_len: 64, target_len: 64 };
    let plan = step("base", shape, &DeviceProfile::portable());
    assert!(plan.steps.len() <= 420, "{} dispatches: {plan}", plan.steps.len());
}

/// The bytes of parameters by name.
type Parameters = Vec<(String, Vec<u8>)>;

/// A model after some steps: parameters, and the bytes that its trainer has on the device.
fn trained(change: impl Fn(&mut TrainerSettings)) -> wgformer::Result<(Parameters, u64)> {
    let mut settings = settings(1e-3, 20);
    change(&mut settings);
    let mut trainer = Trainer::new(gpu(), Transformer::new(tiny(12))?, settings)?;
    for batch in first_batches(&batches(reversals(12, 9, 300, 1), 16), 4) {
        trainer.step(&batch)?.wait()?;
    }
    let all = trainer.parameters()?.into_iter().map(|(name, t)| (name, t.bytes().to_vec()));
    Ok((all.collect(), trainer.bytes()))
}

#[test]
fn layers_computed_again_give_the_same_bits_in_less_memory() -> wgformer::Result<()> {
    let (kept, bytes) = trained(|_| {})?;
    let (again, fewer) = trained(|s| s.objective.recompute = true)?;
    assert!(kept == again);
    assert!(fewer < bytes, "{fewer} of {bytes}");
    // Two layers a stack are few; of the preset with the most, the peak falls by more than half.
    let config = TransformerConfig {
        source_vocabulary: 1000,
        target_vocabulary: 1000,
        ..TransformerConfig::preset("base")?
    };
    let model = Transformer::new(config)?;
    let shape = BatchShape { rows: 8, source_len: 64, target_len: 64 };
    let optimizer = Optimizer { adam: AdamSettings::transformer(), clip_norm: None };
    let peak = |recompute| {
        let objective = Objective { recompute, ..Objective::default() };
        let io = model.loss_graph(shape, &objective, Some(&optimizer))?;
        Ok(Plan::new(&io.graph, &io.outputs(), &DeviceProfile::portable())?.peak_bytes())
    };
    let [kept, again]: [wgformer::Result<u64>; 2] = [peak(false), peak(true)];
    let (kept, again) = (kept?, again?);
    assert!(again < kept / 2, "{again} of {kept}");
    Ok(())
}

#[test]
fn a_budget_is_kept_or_the_least_is_told() -> wgformer::Result<()> {
    let (plain, bytes) = trained(|_| {})?;
    // Enough, exactly: nothing changes.
    let (same, all) = trained(|s| s.max_bytes = Some(bytes))?;
    assert!(same == plain);
    assert_eq!(all, bytes);
    // Too little: what is told to be the least is enough for that batch, until a larger one comes.
    let mut most = 1000;
    let mut told = 0;
    let (values, used) = loop {
        match trained(|s| s.max_bytes = Some(most)) {
            Ok(found) => break found,
            Err(e) => {
                let message = e.to_string();
                assert!(message.starts_with("max_bytes: a batch of 16 x ("), "{message}");
                let least = message.split(" bytes at least").next().and_then(|s| s.rsplit(' ').next());
                let least: u64 = least.unwrap().parse().unwrap();
                assert!(least > most, "{message}");
                (most, told) = (least, told + 1);
            }
        }
    };
    assert!((1..=2).contains(&told), "{told}");
    assert!(most < bytes && used <= most, "{used} of {most}, {bytes} without a bound");
    assert_eq!(values.len(), plain.len());
    Ok(())
}

/// A trainer of a model with a vocabulary that makes it worth to leave padding out of the loss.
fn with_vocabulary(change: impl Fn(&mut TrainerSettings)) -> wgformer::Result<Trainer> {
    let mut settings = settings(1e-3, 20);
    change(&mut settings);
    Trainer::new(gpu(), Transformer::new(least(VOCABULARY))?, settings)
}

const VOCABULARY: usize = 1500;

/// Batches of two shapes, with more and with less padding.
fn padded_batches() -> Vec<Batch> {
    let all = batches(reversals(VOCABULARY as u64, 22, 60, 5), 8);
    let mut found = first_batches(&all, 5);
    let shape = found[0].shape;
    let pairs = [(&[5, 6, 7][..], &[7, 6, 5][..]), (&[8], &[8])];
    found.push(Batch::new(shape, true, pairs));
    found
}

#[test]
fn padding_is_left_out_of_the_loss() -> wgformer::Result<()> {
    let model = Transformer::new(least(VOCABULARY))?;
    let rows = |batch: &Batch| model.loss_rows(batch.shape, batch.tokens);
    let places = |batch: &Batch| batch.shape.rows * batch.shape.target_len;
    let batches = padded_batches();
    let mut shares: Vec<_> = batches.iter().map(|b| 8 * rows(b) / places(b)).collect();
    assert!(batches.iter().all(|b| rows(b) >= b.tokens), "{shares:?}");
    shares.sort_unstable();
    shares.dedup();
    assert!(shares.len() > 2 && shares[0] == 1, "{shares:?}");
    // Without padding, and where a vocabulary is so small that it does not matter, nothing changes.
    let shape = BatchShape { rows: 8, source_len: 8, target_len: 8 };
    assert_eq!(model.loss_rows(shape, 57), 64);
    assert_eq!(Transformer::new(least(12))?.loss_rows(shape, 1), 64);
    assert_eq!((model.loss_rows(shape, 0), model.loss_rows(shape, 30)), (8, 32));
    let objective = Objective::default();
    for rows in [0, 65] {
        let error = model.loss_graph_of(shape, rows, &objective, None).unwrap_err().to_string();
        assert!(error.contains("from 1 to 64"), "{error}");
    }
    // The logits shrink, and with them the work.
    let optimizer = Optimizer { adam: AdamSettings::transformer(), clip_norm: None };
    let flops = |rows| {
        let io = model.loss_graph_of(shape, rows, &objective, Some(&optimizer))?;
        wgformer::Result::Ok(Plan::new(&io.graph, &io.outputs(), gpu().profile())?.flops())
    };
    let saved = 3 * 2 * 32 * 32 * VOCABULARY as u64;
    assert!(flops(32)? < flops(64)? - saved * 9 / 10, "{} of {}", flops(32)?, flops(64)?);
    Ok(())
}

#[test]
fn losses_without_padding_are_those_with_it() -> wgformer::Result<()> {
    // Within a budget nothing is left out unless it was prepared.
    let (mut without, mut with) =
        (with_vocabulary(|_| {})?, with_vocabulary(|s| s.max_bytes = Some(u64::MAX))?);
    for batch in padded_batches().into_iter().step_by(2) {
        let (a, b) = (without.evaluate([batch.clone()])?, with.evaluate([batch.clone()])?);
        // Each row's loss is as exact as its sum over the vocabulary, and their sum as one of so many terms.
        let terms = (VOCABULARY + 3 * 32 + batch.tokens) as f64;
        let bound = terms * f64::from(f32::EPSILON) * b.loss;
        assert!((a.loss - b.loss).abs() <= bound, "{a:?} {b:?}");
        assert_eq!(a.targets, b.targets);
        let (x, y) = (without.step(&batch)?.wait()?, with.step(&batch)?.wait()?);
        assert_eq!((x.step, x.targets), (y.step, y.targets));
        if x.step == 1 {
            // Later steps differ by what Adam makes of rounding.
            assert!((x.loss - y.loss).abs() <= bound, "{x:?} {y:?}");
            let bound = 1e-4 * y.gradient_norm;
            assert!((x.gradient_norm - y.gradient_norm).abs() <= bound, "{x:?} {y:?}");
        }
    }
    Ok(())
}

#[test]
fn without_padding_the_bits_do_not_depend_on_what_was_prepared() -> wgformer::Result<()> {
    let batches = padded_batches();
    let bits = |trainer: &Trainer| -> wgformer::Result<Vec<Vec<u8>>> {
        Ok(trainer.state()?.into_iter().map(|(_, page)| page.bytes().to_vec()).collect())
    };
    let mut plain = with_vocabulary(|_| {})?;
    for batch in &batches {
        plain.step(batch)?;
    }
    let want = bits(&plain)?;
    // Interrupted, and gone on with by another trainer.
    let mut first = with_vocabulary(|_| {})?;
    for batch in &batches[..3] {
        first.step(batch)?;
    }
    let mut second = with_vocabulary(|_| {})?;
    second.restore(first.steps(), &first.state()?.into_iter().collect())?;
    for batch in &batches[3..] {
        second.step(batch)?;
    }
    assert!(bits(&second)? == want);
    // Within a budget that is large enough, prepared.
    let mut within = with_vocabulary(|s| s.max_bytes = Some(1 << 30))?;
    for batch in &batches {
        within.prepare_for(batch.shape, batch.tokens)?;
    }
    for batch in &batches {
        within.step(batch)?;
    }
    assert!(bits(&within)? == want);
    // A step that is verified is the same step.
    let mut verified = with_vocabulary(|_| {})?;
    for batch in &batches {
        let (_, found) = verified.step_verified(batch)?;
        assert!(found.troubles.is_empty(), "{}", found.troubles[0]);
    }
    assert!(bits(&verified)? == want);
    Ok(())
}

#[test]
fn half_precision_needs_half_of_the_memory_or_says_what_it_lacks() {
    // Wide enough for parameters and caches to be nearly all of it.
    let config = TransformerConfig { width: 256, feed_forward: 1024, ..tiny(12) };
    let of = |layout: &wgformer::nn::ParameterLayout| -> HashMap<String, HostTensor> {
        let one =
            |p: &wgformer::nn::Parameter| (p.name.clone(), HostTensor::f32(p.shape.clone(), p.initial(3)));
        layout.parameters().iter().map(one).collect()
    };
    let model = |precision| Transformer::with_precision(config.clone(), precision).unwrap();
    let mut parameters = of(model(Precision::F32).layout());
    let decoder = |precision, parameters: &HashMap<String, HostTensor>| {
        Decoder::new(gpu(), model(precision), parameters, SpecialIds::default())
    };
    if !gpu().profile().f16 {
        let error = decoder(Precision::F16, &parameters).map(|_| ()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains("SHADER_F16"), "{error}");
        return;
    }
    let bytes = |precision| {
        let mut decoder = decoder(precision, &parameters).unwrap();
        let said = decoder.greedy(&[vec![4, 5, 2]], DecodeSettings { batch: 1, max_length: 4 }).unwrap();
        assert_eq!(said.len(), 1);
        decoder.memory().bytes()
    };
    let (full, half) = (bytes(Precision::F32), bytes(Precision::F16));
    println!("{half} of {full} bytes");
    assert!(half as f64 <= 0.51 * full as f64, "{half} of {full}");

    // A number beyond 65504 is named with its parameter; the largest below rounds.
    let name = "decoder.layers.1.feed_forward.up.bias";
    let mut values = parameters[name].as_f32(name).unwrap().to_vec();
    values[5] = 65519.0;
    parameters.insert(name.into(), HostTensor::f32([values.len()], values.clone()));
    assert!(decoder(Precision::F16, &parameters).is_ok());
    values[5] = -65520.0;
    parameters.insert(name.into(), HostTensor::f32([values.len()], values));
    let message = decoder(Precision::F16, &parameters).map(|_| ()).unwrap_err().to_string();
    assert!(message.contains(name) && message.contains("-65520"), "{message}");
    // Such a model is not trained.
    let error = Trainer::new(gpu(), model(Precision::F16), settings(1e-3, 20)).map(|_| ()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config, "{error}");
}

#[test]
fn impossible_settings_are_named() {
    let base = tiny(12);
    let cases = [
        (TransformerConfig { heads: 5, ..base.clone() }, "heads: 5 heads do not divide the width 32"),
        (TransformerConfig { width: 0, ..base.clone() }, "width"),
        (TransformerConfig { dropout: 1.0, ..base.clone() }, "dropout"),
        (TransformerConfig { target_vocabulary: 9, tying: Tying::All, ..base }, "tying"),
    ];
    for (config, part) in cases {
        let message = Transformer::new(config).unwrap_err().to_string();
        assert!(message.starts_with(part), "{message}");
    }
    assert!(to_host(wgformer::DType::U32, &Tensor64::zeros([1])).as_f32("x").is_err());
}

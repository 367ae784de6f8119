//! What a program embeds: kernels on their own, ops from outside, the model as a value.

use std::sync::OnceLock;
use wgformer::gpu::{Gpu, Memory, request};
use wgformer::graph::{Interpreter, Role};
use wgformer::ids::BatchShape;
use wgformer::kernels::{
    Activate, Attention, Computation, CrossEntropy, Dropout, Embedding, LayerNorm, Linear, MatMul, Packing,
    Ports, Prepared, Softmax,
};
use wgformer::nn::{TransformerConfig, page_name};
use wgformer::ops::elementwise::Activation;
use wgformer::rng::Rng;
use wgformer::train::{Decay, Schedule, TrainerSettings};
use wgformer::{DType, ErrorKind, HostTensor, Result, Transformer, nn, ops};

/// One device for the whole process; without an adapter every test fails.
fn gpu() -> &'static Gpu {
    static GPU: OnceLock<Gpu> = OnceLock::new();
    GPU.get_or_init(|| {
        let name = std::env::var("WGPU_ADAPTER_NAME").ok();
        request(&wgformer::gpu::Request { name, ..Default::default() }).expect("an adapter")
    })
}

/// Writes numbers by chance (integers below `below`), runs, and compares every output with the interpreter.
fn agrees(what: &str, mut prepared: Prepared, below: &dyn Fn(&str) -> u32) {
    let mut rng = Rng::new(3);
    let mut oracle = Interpreter::new();
    for port in prepared.inputs().to_vec() {
        let n = port.ty.shape.elements();
        let tensor = match port.ty.dtype {
            DType::F32 => {
                let values: Vec<f32> = (0..n).map(|_| rng.normal() as f32).collect();
                prepared.write(&port.name, &values).unwrap();
                HostTensor::f32(port.ty.shape, values)
            }
            DType::F16 => unreachable!("these kernels are of 32-bit floats"),
            DType::U32 => {
                let most = u64::from(below(&port.name));
                let values: Vec<u32> = (0..n).map(|_| rng.below(most) as u32).collect();
                prepared.write(&port.name, &values).unwrap();
                HostTensor::u32(port.ty.shape, values)
            }
        };
        oracle.set(prepared.graph(), port.value, tensor.to_f64()).unwrap();
    }
    oracle.run(prepared.graph()).unwrap();
    let (got, ports) = (prepared.run(&[]).unwrap(), prepared.outputs());
    assert_eq!(got.len(), ports.len());
    for (port, got) in ports.iter().zip(&got) {
        let want = oracle.get(prepared.graph(), port.value).unwrap().data;
        assert_eq!(got.len(), want.len(), "{what} {}", port.name);
        let size = want.iter().fold(0.0f64, |most, x| most.max(x.abs()));
        assert!(size > 0.0, "{what} {}: nothing but zeros", port.name);
        for (i, (g, w)) in got.iter().zip(&want).enumerate() {
            let off = (f64::from(*g) - w).abs();
            assert!(off <= 1e-5 * size + 1e-6, "{what} {}[{i}]: {g} for {w}", port.name);
        }
    }
}

/// Forward and backward; the inputs and outputs have these names.
fn both(what: &str, computation: &dyn Computation, below: &dyn Fn(&str) -> u32, names: [&str; 3]) {
    let [inputs, outputs, gradients] = names.map(|list| list.split(' ').collect::<Vec<_>>());
    let forward = computation.forward(gpu()).unwrap();
    let list = |ports: &[wgformer::plan::Port]| ports.iter().map(|p| p.name.clone()).collect::<Vec<_>>();
    assert_eq!((list(forward.inputs()), list(&forward.outputs())), (strings(&inputs), strings(&outputs)));
    agrees(what, forward, below);
    let backward = computation.backward(gpu()).unwrap();
    assert_eq!(list(&backward.outputs()), strings(&gradients), "{what}");
    assert!(list(backward.inputs()).starts_with(&strings(&inputs)), "{what}");
    agrees(&format!("{what} backward"), backward, below);
}

fn strings(list: &[&str]) -> Vec<String> {
    list.iter().map(|s| s.to_string()).collect()
}

fn no_integers(name: &str) -> u32 {
    panic!("{name} should be floats")
}

#[test]
fn matmuls_and_linear_layers() {
    let names = ["a b", "out", "d_a d_b"];
    for (transposed_a, transposed_b) in [(false, false), (true, true)] {
        let m = MatMul { batch: 2, m: 5, k: 33, n: 18, transposed_a, transposed_b, alpha: 0.5 };
        both("matmul", &m, &no_integers, names);
    }
    let linear = Linear { rows: 9, inputs: 20, outputs: 31, bias: true, activation: Activation::Gelu };
    both("linear", &linear, &no_integers, ["x weight bias", "out", "d_x d_weight d_bias"]);
    let plain = Linear { bias: false, activation: Activation::None, ..linear };
    both("linear", &plain, &no_integers, ["x weight", "out", "d_x d_weight"]);
}

#[test]
fn attention_in_every_form() {
    let base = Attention { batch: 2, heads: 3, head_width: 8, target: 7, source: 10, ..Default::default() };
    let below = |name: &str| match name {
        "key_lengths" => 11,
        "mask" => 2,
        "seed" => 1000,
        _ => no_integers(name),
    };
    let names = ["q k v", "out", "d_q d_k d_v"];
    both("attention", &base, &below, names);
    both("causal", &Attention { causal: true, scale: Some(0.3), ..base }, &below, names);
    let masked = Attention { key_lengths: true, mask: true, bias: true, ..base };
    both("masked", &masked, &below, ["q k v key_lengths mask bias", "out", "d_q d_k d_v d_bias"]);
    let packed = Attention { packing: Packing::All, source: 7, causal: true, dropout: 0.3, ..base };
    both("packed", &packed, &below, ["qkv seed", "out", "d_qkv"]);
    let cross = Attention { packing: Packing::KeysValues, key_lengths: true, ..base };
    both("keys and values", &cross, &below, ["q kv key_lengths", "out", "d_q d_kv"]);
}

#[test]
fn norms_softmax_and_elementwise() {
    let norm = LayerNorm { rows: 6, width: 40, ..Default::default() };
    both("norm", &norm, &no_integers, ["x weight bias", "out", "d_x d_weight d_bias"]);
    let names = ["x weight bias residual seed", "out sum", "d_x d_weight d_bias d_residual"];
    both("add and norm", &LayerNorm { residual: true, dropout: 0.2, ..norm }, &|_| 1000, names);
    for log in [false, true] {
        let softmax = Softmax { rows: 5, width: 37, log };
        both("softmax", &softmax, &no_integers, ["x", "out", "d_x"]);
    }
    let silu = Activate { elements: 100, activation: Activation::Silu };
    both("silu", &silu, &no_integers, ["x", "out", "d_x"]);
    both("dropout", &Dropout { elements: 100, p: 0.4 }, &|_| 1000, ["x seed", "out", "d_x"]);
}

#[test]
fn losses_and_embeddings() {
    let loss = CrossEntropy { rows: 12, classes: 30, ignore: 0, smoothing: 0.1 };
    both("cross-entropy", &loss, &|_| 30, ["logits targets", "loss stats", "d_logits"]);
    let all = CrossEntropy { ignore: u32::MAX, ..loss };
    both("cross-entropy", &all, &|_| 30, ["logits targets", "loss stats", "d_logits"]);
    let embedding =
        Embedding { rows: 3, length: 5, vocabulary: 11, width: 12, scale: 2.0, ..Default::default() };
    both("embedding", &embedding, &|_| 11, ["ids table", "out", "d_table"]);
    let names = ["ids table positions seed", "out", "d_table d_positions"];
    both("with positions", &Embedding { positions: true, dropout: 0.1, ..embedding }, &|_| 11, names);
}

#[test]
fn a_computation_of_ones_own() {
    struct Twice;
    impl Computation for Twice {
        fn build(&self, ports: &mut Ports) -> Result<()> {
            let (x, factor) = (ports.floats("x", [4])?, ports.fixed_floats("factor", [1])?);
            let twice = ops::elementwise::add(ports.graph(), x, x)?;
            let y = ops::elementwise::scale_by(ports.graph(), twice, factor)?;
            ports.output("y", y);
            Ok(())
        }
    }
    let mut forward = Twice.forward(gpu()).unwrap();
    let y = forward.run(&[("x", &[1.0f32, 2.0, 3.0, 4.0]), ("factor", &[0.5f32])]).unwrap();
    assert_eq!(y, [[1.0, 2.0, 3.0, 4.0]]);
    // Inputs are kept; the executor is there for those who have more in mind.
    let y = forward.run(&[("factor", &vec![1.0f32])]).unwrap();
    assert_eq!(y, [[2.0, 4.0, 6.0, 8.0]]);
    let id = forward.output("y").unwrap();
    assert_eq!(forward.executor().read(id).unwrap().as_f32("y").unwrap(), [2.0, 4.0, 6.0, 8.0]);
    let d = Twice.backward(gpu()).unwrap().run(&[
        ("x", &[0.0f32; 4]),
        ("factor", &[3.0f32]),
        ("d_y", &[1.0f32, 0.0, 0.0, 2.0]),
    ]);
    assert_eq!(d.unwrap(), [[6.0, 0.0, 0.0, 12.0]]);
}

#[test]
fn wrong_arrays_and_settings_are_named() {
    let attention = Attention { heads: 2, head_width: 4, target: 3, source: 3, ..Default::default() };
    let mut forward = attention.forward(gpu()).unwrap();
    let cases = [
        (forward.run(&[("q", &[0.0f32; 24])]), ErrorKind::Input, "input k was never written"),
        (
            forward.run(&[("k", &[0.0f32; 23])]),
            ErrorKind::Shape,
            "k: expected 24 f32 for [1, 3, 8], got 23 f32",
        ),
        (
            forward.run(&[("k", &[0u32; 24])]),
            ErrorKind::Shape,
            "k: expected 24 f32 for [1, 3, 8], got 24 u32",
        ),
        (forward.run(&[("w", &[0.0f32; 1])]), ErrorKind::Input, "no input \"w\"; there are q, k, v"),
    ];
    for (result, kind, text) in cases {
        let error = result.unwrap_err();
        assert!(error.kind() == kind && error.to_string().contains(text), "{error}");
    }
    let wrong: [(&dyn Computation, &str); 9] = [
        (&Attention { heads: 0, ..attention }, "q: expected 1 to"),
        (&Attention { head_width: 257, ..attention }, "a head of 257 columns is too wide"),
        (&Attention { dropout: 1.0, ..attention }, "dropout: 1 is not at least 0 and below 1"),
        (&Attention { dropout: f64::NAN, ..attention }, "dropout: NaN"),
        (&Attention { packing: Packing::All, source: 4, ..attention }, "packing: 3 queries and 4 keys"),
        (&Attention { batch: usize::MAX, heads: usize::MAX, ..attention }, "q: expected 1 to"),
        (&Softmax { rows: 0, width: 3, log: false }, "x: expected 1 to"),
        (&CrossEntropy { rows: 2, classes: 3, smoothing: 2.0, ..Default::default() }, "smoothing"),
        (&LayerNorm { dropout: 0.1, ..Default::default() }, "dropout: is only there with a residual"),
    ];
    for (computation, text) in wrong {
        for error in [computation.forward(gpu()).unwrap_err(), computation.backward(gpu()).unwrap_err()] {
            assert!(error.to_string().contains(text), "{error} should tell of {text}");
        }
    }
}

#[test]
fn what_goes_where_between_threads() {
    fn send<T: Send>() {}
    fn sync<T: Sync>() {}
    let all = [send::<Gpu>, send::<Memory>, send::<Prepared>, send::<Transformer>];
    let shared = [sync::<Gpu>, sync::<Memory>, sync::<Prepared>, sync::<Transformer>];
    all.into_iter().chain(shared).for_each(|holds| holds());
    // Two threads, one device, a kernel each.
    let threads = [1.0f32, 2.0].map(|x| {
        std::thread::spawn(move || {
            let mut softmax = Softmax { rows: 1, width: 2, log: false }.forward(gpu()).unwrap();
            (0..20).map(|_| softmax.run(&[("x", &[x, x])]).unwrap()).collect::<Vec<_>>()
        })
    });
    for thread in threads {
        assert!(thread.join().unwrap().iter().all(|y| *y == [[0.5, 0.5]]));
    }
}

fn sizes() -> TransformerConfig {
    TransformerConfig {
        source_vocabulary: 11,
        target_vocabulary: 13,
        width: 32,
        heads: 2,
        feed_forward: 48,
        encoder_layers: 1,
        decoder_layers: 1,
        dropout: 0.0,
        attention_dropout: 0.0,
        max_source: 10,
        max_target: 12,
        ..Default::default()
    }
}

fn settings(seed: u64) -> TrainerSettings {
    let schedule = Schedule { decay: Decay::Constant, rate: 1e-2, warmup: 10, steps: 0, width: 0 };
    TrainerSettings { seed, schedule, ..Default::default() }
}

fn model(seed: u64) -> Transformer {
    Transformer::on(gpu(), sizes(), settings(seed)).unwrap()
}

fn pairs() -> ([Vec<u32>; 3], [Vec<u32>; 3]) {
    ([vec![4, 5, 6], vec![7], vec![10, 9]], [vec![12, 4], vec![5, 6, 7, 8], vec![]])
}

#[test]
fn logits_are_those_of_the_interpreter() {
    let (sources, targets) = pairs();
    let mut model = model(5);
    let got = model.forward(&sources, &targets).unwrap();
    assert_eq!(got.ty().to_string(), "f32[3, 5, 13]");

    let batch = model.batch(&sources, &targets).unwrap();
    assert_eq!(batch.shape, BatchShape { rows: 3, source_len: 8, target_len: 8 });
    let io = nn::Transformer::new(sizes()).unwrap().forward_graph(batch.shape).unwrap();
    let mut oracle = Interpreter::new();
    let mut set = |id, tensor: HostTensor| oracle.set(&io.graph, id, tensor.to_f64()).unwrap();
    set(io.source, HostTensor::u32([3, 8], batch.source));
    set(io.source_lengths, HostTensor::u32([3], batch.source_lengths));
    set(io.decoder_input, HostTensor::u32([3, 8], batch.decoder_input));
    for id in io.graph.ids().filter(|&id| matches!(io.graph.value(id).role, Role::State)) {
        set(id, model.memory().read(&io.graph.value(id).name).unwrap());
    }
    oracle.run(&io.graph).unwrap();
    let want = oracle.get(&io.graph, io.logits).unwrap();
    for (row, target) in targets.iter().enumerate() {
        for t in 0..=target.len() {
            for v in 0..13 {
                let got = f64::from(got.as_f32("logits").unwrap()[(row * 5 + t) * 13 + v]);
                let want = want.data[(row * 8 + t) * 13 + v];
                assert!((got - want).abs() < 1e-4, "[{row}, {t}, {v}]: {got} for {want}");
            }
        }
    }
}

#[test]
fn learns_and_translates_with_the_same_parameters() {
    let (sources, targets) = pairs();
    let mut model = model(5);
    let untrained = model.translate(&sources).unwrap();
    assert_ne!(untrained, targets);
    let before = model.evaluate(&sources, &targets).unwrap();
    let steps: Vec<_> = (0..60).map(|_| model.train_step(&sources, &targets).unwrap()).collect();
    assert_eq!((steps[0].step, steps[59].step, steps[0].targets), (1, 60, 9));
    assert!((steps[0].loss - before.loss).abs() < 1e-4, "{} and {}", steps[0].loss, before.loss);
    assert!(steps[59].loss < steps[0].loss / 2.0, "{} after {}", steps[59].loss, steps[0].loss);
    assert_eq!(model.translate(&sources).unwrap(), targets);
    assert_eq!(model.translate::<[u32; 0]>(&[]).unwrap(), Vec::<Vec<u32>>::new());
    // The logits of a trained model name the targets.
    let logits = model.forward(&sources, &targets).unwrap();
    let first = &logits.as_f32("logits").unwrap()[..13];
    let best = (0..13).max_by(|&a, &b| first[a].total_cmp(&first[b])).unwrap();
    assert_eq!(best as u32, targets[0][0]);
}

#[test]
fn parameters_go_in_and_out() {
    let (sources, targets) = pairs();
    let (mut one, mut two) = (model(5), model(6));
    let logits = one.forward(&sources, &targets).unwrap();
    assert_ne!(two.forward(&sources, &targets).unwrap(), logits);
    let names: Vec<String> = one.layout().iter().map(|p| p.name.clone()).collect();
    for name in &names {
        let values = one.parameter(name).unwrap();
        two.set_parameter(name, &values).unwrap();
        assert_eq!(two.parameter(name).unwrap(), values);
    }
    assert_eq!(two.forward(&sources, &targets).unwrap(), logits);
    assert_eq!(two.translate(&sources).unwrap(), one.translate(&sources).unwrap());

    let mut three = model(7);
    three.load_safetensors(&one.to_safetensors().unwrap()).unwrap();
    assert_eq!(three.parameters().unwrap(), one.parameters().unwrap());
    assert_eq!(three.forward(&sources, &targets).unwrap(), logits);

    // A memory that has the pages already, here those of another model.
    let mut four = Transformer::with_memory(gpu(), sizes(), one.memory().clone(), settings(8)).unwrap();
    assert_eq!(four.forward(&sources, &targets).unwrap(), logits);
    let bias = vec![0.25; 13];
    four.set_parameter("output.bias", &bias).unwrap();
    assert_eq!(one.parameter("output.bias").unwrap(), bias);
    assert_ne!(one.forward(&sources, &targets).unwrap(), logits);
}

#[test]
fn wrong_parameters_and_sentences_are_named() {
    let mut model = model(5);
    let before = model.parameters().unwrap();
    let good = [1.0; 13];
    let cases = [
        (model.set_parameter("output.bias", &[0.0; 12]), "output.bias: expected [13], got 12 elements"),
        (model.set_parameter("output.bia", &[0.0; 13]), "no parameter \"output.bia\""),
        (model.set_parameters([("output.bias", &good[..]), ("x", &[])]), "no parameter \"x\""),
        (model.parameter("").map(drop), "no parameter \"\""),
        (model.load_safetensors(b"PK"), "safetensors: is no safetensors file"),
        (model.forward(&[[4]], &[[4], [5]]).map(drop), "1 sources and 2 targets make no batch"),
        (model.train_step::<[u32; 1], [u32; 1]>(&[], &[]).map(drop), "0 sources and 0 targets"),
        (model.forward(&[[11]], &[[4]]).map(drop), "source 0 has the id 11, but there are 11 symbols"),
        (
            model.train_step(&[[4], [4]], &[[4], [13]]).map(drop),
            "target 1 has the id 13, but there are 13 symbols",
        ),
        (model.translate(&[[u32::MAX]]).map(drop), "source 0 has the id 4294967295"),
        (
            model.translate(&[[4; 10]]).map(drop),
            "source 0 has 11 symbols with one that is added, but the model takes 10",
        ),
        (model.evaluate(&[[4]], &[[4; 12]]).map(drop), "target 0 has 13 symbols"),
    ];
    for (result, text) in cases {
        let error = result.unwrap_err().to_string();
        assert!(error.contains(text), "{error} should tell of {text}");
    }
    let whole = model.to_safetensors().unwrap();
    for cut in [0, 7, 20, whole.len() / 2, whole.len() - 1] {
        let error = model.load_safetensors(&whole[..cut]).unwrap_err().to_string();
        assert!(error.starts_with("safetensors: "), "cut to {cut}: {error}");
    }
    assert_eq!(model.parameters().unwrap(), before);
    // Absurd batches, with a budget and without.
    for max_bytes in [None, Some(1 << 30)] {
        let mut model =
            Transformer::on(gpu(), sizes(), TrainerSettings { max_bytes, ..settings(1) }).unwrap();
        let shape = BatchShape { rows: usize::MAX, source_len: 8, target_len: 8 };
        let error = model.trainer().prepare(&[shape]).unwrap_err().to_string();
        assert!(error.starts_with("batch: rows: expected from 1 to 536870911"), "{error}");
    }

    let on = |config| Transformer::on(gpu(), config, settings(1)).err().unwrap().to_string();
    assert!(on(TransformerConfig { heads: 3, ..sizes() }).contains("3 heads do not divide the width 32"));
    assert!(on(TransformerConfig { source_vocabulary: 3, ..sizes() }).contains("source_vocabulary: 3"));
    let memory = Memory::new(gpu());
    let error = Transformer::with_memory(gpu(), sizes(), memory.clone(), settings(1)).err().unwrap();
    assert!(error.to_string().contains("parameters.0: expected f32["), "{error}");
    memory.write(&page_name("parameters", 0), &HostTensor::f32([64], vec![0.0; 64])).unwrap();
    let error = Transformer::with_memory(gpu(), sizes(), memory, settings(1)).err().unwrap();
    assert!(error.to_string().contains("got f32[64]"), "{error}");
}

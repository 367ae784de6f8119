//! The list of what is timed. Its sizes follow from the adapter, or from what the caller asks for.

use super::result::Pass::{Backward, Forward, Step};
use super::work::{Body, Fill, Timing, Work, decode, loss};
use crate::graph::ValueId;
use crate::nn::{BatchShape, Optimizer, PRESETS, Transformer, TransformerConfig};
use crate::ops::argmax::argmax;
use crate::ops::attention::{Attention, AttentionInputs, Packing, attention};
use crate::ops::column_sum::column_sum;
use crate::ops::cross_entropy::{CrossEntropy, count_targets, cross_entropy};
use crate::ops::dropout::residual_dropout;
use crate::ops::elementwise::{self, Activation};
use crate::ops::embedding::{EmbeddingInputs, embedding};
use crate::ops::layer_norm::layer_norm;
use crate::ops::matmul::{Form, MatMul, matmul};
use crate::ops::optimizer::{AdamPages, AdamSettings, adam, gradient_norm};
use crate::ops::{fma::fma, random::Dropout, softmax::softmax};
use crate::{DeviceClass, Error, HostTensor, Result, TensorType};
use std::collections::HashSet;

/// How much there is to time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// A few sizes of everything.
    Quick,
    /// What a comparison needs.
    Full,
}

/// The sizes to time. A list that is empty stands for what suits the adapter.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sizes {
    /// B: sentences of a batch.
    pub batch: Vec<usize>,
    /// S: the length of sentences, sources and targets alike.
    pub seq: Vec<usize>,
    /// H: heads of attention.
    pub heads: Vec<usize>,
    /// D: the width of a head.
    pub head: Vec<usize>,
    /// M, N and K of square products.
    pub square: Vec<usize>,
    /// Rows of row-wise kernels and of the products of a translation model.
    pub rows: Vec<usize>,
    /// C: the width of row-wise kernels.
    pub width: Vec<usize>,
    /// V: the vocabulary.
    pub vocabulary: Vec<usize>,
    /// Whole models, by their presets.
    pub preset: Vec<String>,
}

/// A list as asked for, or else the adapter's.
fn or<T: Clone>(asked: &[T], own: &[T]) -> Vec<T> {
    if asked.is_empty() { own.to_vec() } else { asked.to_vec() }
}

/// Everything there is to time, in the order of the rows.
///
/// # Errors
/// When there is no such preset, or a size is 0.
pub fn works(class: DeviceClass, extent: Extent, sizes: &Sizes) -> Result<Vec<Work>> {
    let asked = [&sizes.batch, &sizes.seq, &sizes.heads, &sizes.head, &sizes.square];
    let asked = asked.into_iter().chain([&sizes.rows, &sizes.width, &sizes.vocabulary]);
    // Products of a few sizes stay within 64 bits.
    if let Some(n) = asked.flatten().find(|&&n| n == 0 || n > 1 << 20) {
        return Err(Error::config("sizes", format!("{n} is none: they are from 1 to {}", 1 << 20)));
    }
    let most = |list: &[usize]| list.iter().copied().max().unwrap_or(1);
    let tokens = most(&sizes.batch) * most(&sizes.seq);
    if tokens > 1 << 28 {
        let problem = format!("batch x seq are {tokens} tokens; {} are the most", 1 << 28);
        return Err(Error::config("sizes", problem));
    }
    let list = List { gpu: class != DeviceClass::Cpu, quick: extent == Extent::Quick, sizes };
    let mut all = list.ceilings();
    all.extend(list.products());
    all.extend(list.attentions());
    all.extend(list.rows());
    all.extend(list.vocabulary());
    all.push(list.adam());
    all.extend(list.models()?);
    all.extend(list.overheads()?);
    // A square may be one of the products of a model as well.
    let mut seen = HashSet::new();
    all.retain(|work| seen.insert((work.name.clone(), work.shape.clone(), work.pass)));
    Ok(all)
}

struct List<'a> {
    gpu: bool,
    quick: bool,
    sizes: &'a Sizes,
}

impl List<'_> {
    /// The first on a GPU, the second on a software adapter, the third there when in haste.
    fn of<T>(&self, gpu: T, software: T, quick: T) -> T {
        match (self.gpu, self.quick) {
            (true, _) => gpu,
            (false, false) => software,
            (false, true) => quick,
        }
    }

    fn ceilings(&self) -> Vec<Work> {
        // Larger than any cache, so that memory itself is measured.
        let mib = self.of(256, 64, 64);
        let copy = move || {
            let mut body = Body::default();
            let x = body.normal("x", [mib << 18]);
            body.outputs = vec![elementwise::copy(&mut body.graph, x)?];
            Ok(body)
        };
        let (n, rounds) = (self.of(1 << 22, 1 << 15, 1 << 15), self.of(1024, 512, 512));
        vec![Work::new("ceiling", COPY, &[("MiB", mib)], Forward, copy), chains(n, rounds)]
    }

    fn products(&self) -> Vec<Work> {
        let squares = self.of(&[512, 1024, 2048, 4096][..], &[128, 256, 512, 1024], &[256]);
        let mut all = Vec::new();
        for n in or(&self.sizes.square, squares) {
            for (form, a, b) in FORMS {
                all.push(product(form, a, b, [n, n, n]));
            }
        }
        // The products of a translation model: by weights, by the output projection, and their gradients.
        for m in or(&self.sizes.rows, self.of(&[64, 4096], &[16, 512], &[128])) {
            let shapes = self.of(
                &[[512, 512], [2048, 512], [512, 2048], [32_000, 512]][..],
                &[[512, 512], [2048, 512], [512, 2048], [8000, 512]],
                &[[512, 512]],
            );
            for &[n, k] in shapes {
                all.push(product("nn", Form::Plain, Form::Plain, [m, n, k]));
                all.push(half_product([m, n, k]));
                if m > 64 {
                    all.push(product("nt", Form::Plain, Form::Transposed, [m, k, n]));
                    all.push(product("tn", Form::Transposed, Form::Plain, [k, n, m]));
                }
            }
        }
        all
    }

    fn attentions(&self) -> Vec<Work> {
        let lengths = self.of(&[128, 512, 2048, 8192][..], &[128, 512, 2048], &[128]);
        let tokens = self.of(16_384, 1024, 128);
        let mut all = Vec::new();
        for d in or(&self.sizes.head, self.of(&[64, 128][..], &[64, 128], &[32])) {
            for heads in or(&self.sizes.heads, &[(512 / d).max(1)]) {
                // On a software adapter long ones are for one width.
                let short = !self.gpu && d > 64;
                for s in or(&self.sizes.seq, if short { &lengths[..1] } else { lengths }) {
                    for b in or(&self.sizes.batch, &[(tokens / s).max(1)]) {
                        for mask in [Mask::None, Mask::Causal, Mask::Padding] {
                            all.push(attend(mask, Forward, [b, heads, s, d]));
                            // Lavapipe takes three to six seconds to compile each of them.
                            if !self.quick || matches!(mask, Mask::None) {
                                all.push(attend(mask, Backward, [b, heads, s, d]));
                            }
                        }
                    }
                }
            }
        }
        all
    }

    fn rows(&self) -> Vec<Work> {
        let mut all = Vec::new();
        for rows in or(&self.sizes.rows, self.of(&[16_384], &[4096], &[1024])) {
            for c in or(&self.sizes.width, &[512]) {
                for pass in [Forward, Backward] {
                    all.push(norm(pass, rows, c));
                    all.push(soft(pass, rows, c));
                    if !self.quick {
                        all.push(gelu(pass, rows, c));
                        all.push(drop(pass, rows, c));
                    }
                }
                if !self.quick {
                    all.push(columns(rows, c));
                }
            }
        }
        all
    }

    fn vocabulary(&self) -> Vec<Work> {
        let mut all = Vec::new();
        let own = self.of(4096, 256, 64);
        for v in or(&self.sizes.vocabulary, &[32_000]) {
            for rows in or(&self.sizes.rows, &[own]) {
                all.extend([Forward, Step].map(|pass| entropy(pass, rows, v)));
                if !self.quick {
                    all.push(largest(rows, v));
                }
            }
            let tokens = self.of(16_384, 2048, 2048);
            for tokens in or(&self.sizes.rows, &[tokens]) {
                for c in or(&self.sizes.width, &[512]) {
                    all.extend([Forward, Backward].map(|pass| embed(pass, tokens, v, c)));
                }
            }
        }
        all
    }

    fn adam(&self) -> Work {
        let n = self.of(1 << 25, 1 << 21, 1 << 20);
        let build = move || {
            let mut body = Body::default();
            let ty = TensorType::f32([n]);
            let pages = AdamPages {
                parameters: body.state("p", ty.clone(), Fill::Normal(1.0)),
                m: body.state("m", ty.clone(), Fill::Normal(0.1)),
                v: body.state("v", ty.clone(), Fill::Below(2)),
                gradients: body.input("gradients", ty, Fill::Normal(1.0)),
            };
            let schedule = body.fixed("schedule", HostTensor::f32([4], vec![1e-4, 10.0, 50.0, 1.0]));
            let norm = gradient_norm(&mut body.graph, &[pages.gradients], None, Some(1.0))?;
            adam(&mut body.graph, pages, schedule, norm, AdamSettings::transformer())?;
            body.outputs = vec![norm];
            Ok(body)
        };
        Work::new("adam", "adam", &[("parameters", n)], Step, build)
    }

    fn models(&self) -> Result<Vec<Work>> {
        let own = self.of(&["small", "base"][..], &["tiny", "small", "base"], &["tiny"]);
        let own: Vec<String> = own.iter().map(|name| name.to_string()).collect();
        let mut all = Vec::new();
        for preset in or(&self.sizes.preset, &own) {
            let config = TransformerConfig::preset(&preset)?;
            let config = TransformerConfig { source_vocabulary: 8000, target_vocabulary: 8000, ..config };
            // About as much work for a software adapter whatever the model.
            let rows = self.of(64, if preset == "base" || preset == "big" { 1 } else { 8 }, 2);
            for s in or(&self.sizes.seq, self.of(&[64], &[32], &[16])) {
                let config =
                    TransformerConfig { max_source: s.max(2), max_target: s.max(2), ..config.clone() };
                for b in or(&self.sizes.batch, &[rows]) {
                    all.push(of_model(&config, &preset, Step, b, s));
                    all.push(of_model(&config, &preset, Forward, b, s));
                }
                for b in or(&self.sizes.batch, self.of(&[1, 32], &[1, 32], &[1])) {
                    all.push(token(&config, &preset, b, s));
                }
            }
        }
        // The training step that figures of other software on a CPU are of.
        if self.of(false, true, false) && self.sizes.preset.is_empty() {
            let (s, vocabulary) = (32, 1000);
            let config = TransformerConfig {
                width: 128,
                feed_forward: 512,
                source_vocabulary: vocabulary,
                target_vocabulary: vocabulary,
                max_source: s,
                max_target: s,
                ..TransformerConfig::preset("tiny")?
            };
            all.push(of_model(&config, "2x128", Step, 16, s));
        }
        Ok(all)
    }

    fn overheads(&self) -> Result<Vec<Work>> {
        const DISPATCHES: usize = 256;
        let build = || {
            let mut body = Body::default();
            let mut x = body.normal("x", [64]);
            for _ in 0..DISPATCHES {
                x = elementwise::activate(&mut body.graph, Activation::Relu, x)?;
            }
            body.outputs = vec![x];
            Ok(body)
        };
        let mut dispatch = Work::new("overhead", "overhead/dispatch", &[("of", DISPATCHES)], Forward, build);
        dispatch.timing = Timing::Submission(DISPATCHES as u64);
        let preset = self.sizes.preset.first().map_or(self.of("base", "small", PRESETS[0]), String::as_str);
        let one = |asked: &[usize], own| asked.first().copied().unwrap_or(own);
        let (rows, s) = (one(&self.sizes.batch, self.of(8, 8, 2)), one(&self.sizes.seq, self.of(32, 32, 16)));
        let config = TransformerConfig::preset(preset)?;
        let config = TransformerConfig { source_vocabulary: 8000, target_vocabulary: 8000, ..config };
        let mut first = of_model(&config, preset, Step, rows, s);
        first.family = "overhead";
        first.name = format!("overhead/first_step/{preset}");
        first.tokens = None;
        first.timing = Timing::Cold;
        Ok(vec![dispatch, first])
    }
}

/// The name of the work that measures memory.
pub(super) const COPY: &str = "ceiling/copy";
/// The name of the work that measures arithmetic.
pub(super) const FMA: &str = "ceiling/fma";

/// The work whose time tells how much the machine is disturbed: arithmetic only, two milliseconds of it on a GPU and on
/// lavapipe with two cores. `slow` is for an adapter that takes much longer.
pub(super) fn control(class: DeviceClass, slow: bool) -> Work {
    match (class, slow) {
        (DeviceClass::Cpu, false) => chains(1 << 14, 512),
        (DeviceClass::Cpu, true) => chains(1 << 10, 256),
        _ => chains(1 << 20, 1024),
    }
}

fn chains(n: usize, rounds: usize) -> Work {
    let build = move || {
        let mut body = Body::default();
        let start = body.normal("start", [n]);
        let factors = body.fixed("factors", HostTensor::f32([2], vec![0.5, 1.0]));
        body.outputs = vec![fma(&mut body.graph, start, factors, rounds)?];
        Ok(body)
    };
    Work::new("ceiling", FMA, &[("elements", n), ("rounds", rounds)], Forward, build)
}

const FORMS: [(&str, Form, Form); 3] = [
    ("nn", Form::Plain, Form::Plain),
    ("nt", Form::Plain, Form::Transposed),
    ("tn", Form::Transposed, Form::Plain),
];

fn product(form: &str, a: Form, b: Form, [m, n, k]: [usize; 3]) -> Work {
    let build = move || {
        let mut body = Body::default();
        let stored = |form, rows, columns| match form {
            Form::Plain => [rows, columns],
            Form::Transposed => [columns, rows],
        };
        let (x, y) = (body.normal("a", stored(a, m, k)), body.normal("b", stored(b, k, n)));
        body.outputs = vec![matmul(&mut body.graph, x, y, MatMul { a, b, ..Default::default() })?];
        Ok(body)
    };
    Work::new("matmul", format!("matmul/{form}"), &[("M", m), ("N", n), ("K", k)], Forward, build)
}

/// The product "nn" of 16-bit floats; without them a row that says so.
fn half_product([m, n, k]: [usize; 3]) -> Work {
    let build = move || {
        let mut body = Body::default();
        let mut half = |name, shape| body.input(name, TensorType::f16(shape), Fill::Normal(1.0));
        let (x, y) = (half("a", [m, k]), half("b", [k, n]));
        body.outputs = vec![matmul(&mut body.graph, x, y, MatMul::default())?];
        Ok(body)
    };
    Work::new("matmul", "matmul/nn_f16", &[("M", m), ("N", n), ("K", k)], Forward, build)
}

#[derive(Clone, Copy)]
enum Mask {
    None,
    Causal,
    /// Key lengths evenly between an eighth of the longest and all of it.
    Padding,
}

impl Mask {
    fn name(self) -> &'static str {
        match self {
            Mask::None => "none",
            Mask::Causal => "causal",
            Mask::Padding => "padding",
        }
    }

    fn lengths(self, batch: usize, s: usize) -> Vec<u32> {
        let length = |i: usize| match self {
            Mask::Padding => (s / 8).max(1) + (s - (s / 8).max(1)) * (2 * i + 1) / (2 * batch),
            Mask::None | Mask::Causal => s,
        };
        (0..batch).map(|i| length(i) as u32).collect()
    }

    /// Pairs of a query and a key that it attends to, in one head.
    fn pairs(self, batch: usize, s: usize) -> u64 {
        let s = s as u64;
        match self {
            Mask::Causal => batch as u64 * s * (s + 1) / 2,
            _ => self.lengths(batch, s as usize).into_iter().map(|length| u64::from(length) * s).sum(),
        }
    }
}

/// Self-attention from packed queries, keys and values. A pair takes 4 D operations forward (two products); backward has
/// five products by formula, whatever the kernels recompute.
fn attend(mask: Mask, pass: super::Pass, [batch, heads, s, d]: [usize; 4]) -> Work {
    let build = move || {
        let mut body = Body::default();
        let qkv = body.normal("qkv", [batch, s, 3 * heads * d]);
        let mut inputs = AttentionInputs::new(Packing::Qkv(qkv));
        if let Mask::Padding = mask {
            let lengths = mask.lengths(batch, s);
            inputs.key_lengths = Some(body.fixed("lengths", HostTensor::u32([batch], lengths)));
        }
        let settings = Attention { causal: matches!(mask, Mask::Causal), ..Attention::new(heads) };
        let out = attention(&mut body.graph, settings, inputs)?;
        finish(body, out, &[qkv], pass)
    };
    let products = if pass == Forward { 2 } else { 5 };
    let name = format!("attention/{}", mask.name());
    let sizes = [("B", batch), ("H", heads), ("S", s), ("D", d)];
    let mut work = Work::new("attention", name, &sizes, pass, build);
    work.flops = Some(products * 2 * d as u64 * heads as u64 * mask.pairs(batch, s));
    work
}

/// Forward alone, backward alone, or both.
fn finish(mut body: Body, out: ValueId, wrt: &[ValueId], pass: super::Pass) -> Result<Body> {
    match pass {
        Forward => body.outputs = vec![out],
        Backward => body.backward(out, wrt, true)?,
        Step => body.backward(out, wrt, false)?,
    }
    Ok(body)
}

fn norm(pass: super::Pass, rows: usize, c: usize) -> Work {
    let build = move || {
        let mut body = Body::default();
        let x = body.normal("x", [rows, c]);
        let (gamma, beta) = (body.normal("gamma", [c]), body.normal("beta", [c]));
        let out = layer_norm(&mut body.graph, x, gamma, beta, 1e-5)?;
        finish(body, out, &[x, gamma, beta], pass)
    };
    Work::new("layer_norm", "layer_norm", &[("rows", rows), ("C", c)], pass, build)
}

fn soft(pass: super::Pass, rows: usize, c: usize) -> Work {
    let build = move || {
        let mut body = Body::default();
        let x = body.normal("x", [rows, c]);
        let out = softmax(&mut body.graph, x)?;
        finish(body, out, &[x], pass)
    };
    Work::new("softmax", "softmax", &[("rows", rows), ("C", c)], pass, build)
}

fn gelu(pass: super::Pass, rows: usize, c: usize) -> Work {
    let build = move || {
        let mut body = Body::default();
        let x = body.normal("x", [rows, c]);
        let out = elementwise::activate(&mut body.graph, Activation::Gelu, x)?;
        finish(body, out, &[x], pass)
    };
    Work::new("elementwise", "elementwise/gelu", &[("rows", rows), ("C", c)], pass, build)
}

/// Before a residual sum, as the sub-layers of a model have it.
fn drop(pass: super::Pass, rows: usize, c: usize) -> Work {
    let build = move || {
        let mut body = Body::default();
        let (x, residual) = (body.normal("x", [rows, c]), body.normal("residual", [rows, c]));
        let seed = body.fixed("seed", HostTensor::u32([2], vec![1, 1]));
        let dropout = Dropout { p: 0.1, site: 1 };
        let out = residual_dropout(&mut body.graph, residual, x, Some(dropout), Some(seed))?;
        finish(body, out, &[x], pass)
    };
    Work::new("dropout", "dropout/residual", &[("rows", rows), ("C", c)], pass, build)
}

/// The gradient of a bias.
fn columns(rows: usize, c: usize) -> Work {
    let build = move || {
        let mut body = Body::default();
        let x = body.normal("x", [rows, c]);
        body.outputs = vec![column_sum(&mut body.graph, x)?];
        Ok(body)
    };
    Work::new("column_sum", "column_sum", &[("rows", rows), ("C", c)], Forward, build)
}

/// The symbols that greedy decoding says.
fn largest(rows: usize, v: usize) -> Work {
    let build = move || {
        let mut body = Body::default();
        let x = body.normal("logits", [rows, v]);
        body.outputs = vec![argmax(&mut body.graph, x, 1)?];
        Ok(body)
    };
    Work::new("argmax", "argmax", &[("rows", rows), ("V", v)], Forward, build)
}

/// The loss alone, or with the gradient, which one kernel computes together with it.
fn entropy(pass: super::Pass, rows: usize, v: usize) -> Work {
    let build = move || {
        let mut body = Body::default();
        let logits = body.normal("logits", [rows, v]);
        let targets = body.input("targets", TensorType::u32([rows]), Fill::Below(v as u32));
        let count = count_targets(&mut body.graph, targets, 0)?;
        let settings = CrossEntropy { ignore: 0, smoothing: 0.1 };
        let loss = cross_entropy(&mut body.graph, logits, targets, count, settings)?;
        finish(body, loss.loss, &[logits], pass)
    };
    Work::new("cross_entropy", "cross_entropy", &[("rows", rows), ("V", v)], pass, build)
}

fn embed(pass: super::Pass, tokens: usize, v: usize, c: usize) -> Work {
    let build = move || {
        let mut body = Body::default();
        let ids = body.input("ids", TensorType::u32([1, tokens]), Fill::Below(v as u32));
        let table = body.normal("table", [v, c]);
        let inputs = EmbeddingInputs { ids, table, positions: None, offset: None, seed: None };
        let out = embedding(&mut body.graph, inputs, (c as f64).sqrt(), None)?;
        finish(body, out, &[table], pass)
    };
    let mut work =
        Work::new("embedding", "embedding", &[("tokens", tokens), ("V", v), ("C", c)], pass, build);
    // Forward reads as many rows of the table as there are tokens, not all of it.
    let rows = tokens as u64 * 4;
    work.bytes = (pass == Forward).then_some(rows + 2 * rows * c as u64);
    work
}

fn of_model(config: &TransformerConfig, preset: &str, pass: super::Pass, rows: usize, s: usize) -> Work {
    let shape = BatchShape { rows, source_len: s, target_len: s };
    let config = config.clone();
    let build = move || {
        let optimizer = Optimizer { adam: AdamSettings::transformer(), clip_norm: Some(1.0) };
        loss(&Transformer::new(config.clone())?, shape, (pass == Step).then_some(&optimizer))
    };
    let sizes = [("B", rows), ("S", s), ("T", s)];
    let mut work = Work::new("model", format!("model/{preset}"), &sizes, pass, build);
    work.tokens = Some(shape.tokens() as u64);
    work
}

fn token(config: &TransformerConfig, preset: &str, rows: usize, s: usize) -> Work {
    let shape = BatchShape { rows, source_len: s, target_len: s };
    let config = config.clone();
    let name = format!("decode/{preset}");
    let sizes = [("B", rows), ("S", s), ("T", s)];
    let mut work =
        Work::new("decode", name, &sizes, Forward, move || decode(&Transformer::new(config.clone())?, shape));
    work.tokens = Some(rows as u64);
    work.timing = Timing::Reading;
    work
}

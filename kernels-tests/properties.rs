//! Kernels on inputs drawn at random: shapes, masks, lengths, options and sizes of values. An input that fails is shrunk to
//! the smallest that still fails.
//!
//! Software adapters take longest to compile, so what is compiled into kernels (row lengths, head widths, options) comes
//! from short lists; what is a parameter is free. `--seed` draws others, `--cases` more.

use crate::cases::attention::{Mask, Packed, Setup};
use crate::{Outcome, Passed, Run, Test};
use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::{Config, RngAlgorithm, TestError, TestRng, TestRunner};
use std::borrow::Cow;
use std::cell::RefCell;
use std::fmt::Debug;
use wgformer::kernel::Kernel;
use wgformer::ops::column_sum::column_sum;
use wgformer::ops::cross_entropy::{CrossEntropy, count_targets, cross_entropy};
use wgformer::ops::elementwise::{self as ew, Activation};
use wgformer::ops::embedding::{EmbeddingInputs, embedding};
use wgformer::ops::layer_norm::{add_norm, layer_norm};
use wgformer::ops::matmul::{Form, MatMul, matmul};
use wgformer::ops::random::Dropout;
use wgformer::ops::softmax::{log_softmax, softmax};
use wgformer::testing::{Build, Case, Runner};
use wgformer::{HostTensor, Shape};

/// Standard deviations of values; the first is the simplest.
const SIZES: [f64; 5] = [1.0, 1e-3, 10.0, 1e-20, 1e-39];

/// A property of each op: all kernels agree with the reference, and its gradient with finite differences, on any input.
/// `cases` is how many inputs are drawn; by default so many as take some seconds.
pub fn tests(cases: Option<u32>) -> Vec<Test> {
    let draws = |default: u32| cases.unwrap_or(default);
    vec![
        test("attention", draws(8), attentions, attention_case),
        test("matmul", draws(8), products, product_case),
        test("layer_norm", draws(16), norms, norm_case),
        test("softmax", draws(16), softmaxes, softmax_case),
        test("cross_entropy", draws(16), losses, loss_case),
        test("embedding", draws(16), tables, table_case),
        test("column_sum", draws(24), columns, column_case),
        test("elementwise", draws(24), functions, function_case),
        Test {
            layer: 2,
            group: "properties".to_string(),
            name: "a wrong kernel is found and shrunk".to_string(),
            run: Run::OnDevice(Box::new(finds_and_shrinks)),
        },
    ]
}

fn test<T: Debug + 'static>(
    name: &str,
    draws: u32,
    inputs: fn() -> BoxedStrategy<T>,
    case: fn(&T) -> Case,
) -> Test {
    let run = move |on: &Runner| match check(on, draws, inputs(), case) {
        Ok(passed) => Ok(passed),
        Err(Failure { smallest, problems }) => {
            let mut lines = vec![match smallest {
                Some(input) => format!("smallest input that fails: {input:?}"),
                None => "no input could be drawn".to_string(),
            }];
            lines.extend(problems);
            Err(lines)
        }
    };
    Test {
        layer: 2,
        group: "properties".to_string(),
        name: name.to_string(),
        run: Run::OnDevice(Box::new(run)),
    }
}

struct Failure<T> {
    smallest: Option<T>,
    problems: Vec<String>,
}

/// Checks this many inputs.
fn check<T: Debug>(
    on: &Runner,
    draws: u32,
    inputs: BoxedStrategy<T>,
    case: fn(&T) -> Case,
) -> Result<Passed, Failure<T>> {
    let mut seed = [0; 32];
    seed[..8].copy_from_slice(&on.seed.to_le_bytes());
    let config =
        Config { cases: draws, failure_persistence: None, max_shrink_iters: 200, ..Config::default() };
    let mut runner = TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &seed));
    let passed = RefCell::new(Passed::default());
    let checked = runner.run(&inputs, |input| match one(on, &case(&input)) {
        Ok(one) => {
            let mut all = passed.borrow_mut();
            all.checks += one.checks;
            for (kernel, share) in one.kernels {
                let known = all.kernels.entry(kernel).or_default();
                *known = known.max(share);
            }
            Ok(())
        }
        Err(problems) => Err(TestCaseError::fail(problems.join("\n"))),
    });
    match checked {
        Ok(()) => Ok(passed.into_inner()),
        Err(TestError::Fail(reason, smallest)) => {
            let problems = reason.message().lines().map(str::to_string).collect();
            Err(Failure { smallest: Some(smallest), problems })
        }
        Err(TestError::Abort(reason)) => {
            Err(Failure { smallest: None, problems: vec![reason.message().to_string()] })
        }
    }
}

/// A case's mathematics and its kernels.
fn one(on: &Runner, case: &Case) -> Outcome {
    let on_host = crate::on_host(case, on.seed)?;
    let mut passed = crate::kernels(case, on)?;
    passed.checks += on_host;
    Ok(passed)
}

// ---- Attention ----

fn attentions() -> BoxedStrategy<Setup> {
    // One tile with every option, and several that are causal: two sets of kernels.
    let short = (1..=8usize, 1..=8usize);
    let long = (33..=48usize, 33..=48usize);
    let sizes = (1..=3usize, prop_oneof![short, long], 1..=3usize);
    let lengths = prop::collection::vec(0..=48u32, 3);
    let values = (prop::option::of(-1.0..1.0f64), select(vec![1.0, 1e-3, 6.0, 1e-39]));
    (sizes, any::<bool>(), lengths, 0.01..0.9f64, values)
        .prop_map(|((batch, (t, s), heads), joint, lengths, p, (scale, size))| {
            let (s, all) = (if joint { t } else { s }, t <= 8);
            Setup {
                half: false,
                batch,
                t,
                s,
                heads,
                head: 8,
                packed: if joint { Packed::Qkv } else { Packed::Kv },
                causal: true,
                lengths: Some(lengths[..batch].iter().map(|&n| n.min(s as u32)).collect()),
                mask: if all { Mask::Each } else { Mask::None },
                bias: all,
                dropout: all.then_some(p),
                scale,
                size,
            }
        })
        .boxed()
}

fn attention_case(input: &Setup) -> Case {
    input.case("drawn")
}

// ---- Matrix products ----

#[derive(Clone, Copy, Debug)]
struct Factors {
    m: usize,
    n: usize,
    k: usize,
    /// B is given transposed.
    transposed: bool,
    batch: Option<usize>,
    /// Bias, GELU and residual.
    epilogue: bool,
    alpha: f64,
    sizes: (f64, f64),
}

fn products() -> BoxedStrategy<Factors> {
    // Vectors or scalars, one tile of rows. The gradients of a product are of other forms.
    let some = || prop_oneof![(1..=8usize).prop_map(|n| 4 * n), 1..=32usize];
    let extents = (1..=16usize, some(), 1..=80usize);
    let with = (any::<bool>(), prop::option::of(1..=4usize), any::<bool>(), -2.0..2.0f64);
    (extents, with, (select(&SIZES[..]), select(&SIZES[..3])))
        .prop_map(|((m, n, k), (transposed, batch, epilogue, alpha), sizes)| Factors {
            m,
            n,
            k,
            transposed,
            batch,
            epilogue,
            alpha,
            sizes,
        })
        .boxed()
}

fn product_case(input: &Factors) -> Case {
    let Factors { m, n, k, transposed, batch, epilogue, alpha, sizes } = *input;
    let shape = move |rows: usize, columns: usize, transposed: bool| -> Shape {
        let (r, c) = if transposed { (columns, rows) } else { (rows, columns) };
        batch.into_iter().chain([r, c]).collect::<Vec<_>>().into()
    };
    Case::new("drawn", move |b: &mut Build| {
        let x = b.normal("a", shape(m, k, false), sizes.0);
        let y = b.normal("b", shape(k, n, transposed), sizes.1);
        let form = if transposed { Form::Transposed } else { Form::Plain };
        let mut with = MatMul { b: form, alpha, ..Default::default() };
        if epilogue {
            with.bias = Some(b.normal("bias", [n], 1.0));
            with.activation = Activation::Gelu;
            with.residual = Some(b.normal("residual", shape(m, n, false), 1.0));
        }
        Ok(vec![matmul(b.graph(), x, y, with)?])
    })
}

// ---- Rows ----

/// Rows of values around `base`, all the same within a row where `constant`.
#[derive(Clone, Copy, Debug)]
struct Rows {
    rows: usize,
    width: usize,
    base: f64,
    size: f64,
    constant: bool,
    /// Log-softmax; the sum with a residual.
    other: bool,
    dropout: Option<f64>,
}

fn rows(widths: &'static [usize]) -> impl Strategy<Value = Rows> {
    let values = (select(&[0.0, 1e3, -1e3][..]), select(&SIZES[..]), prop::bool::weighted(0.2));
    let options = (any::<bool>(), prop::option::of(0.01..0.9f64));
    (1..=200usize, select(widths), values, options).prop_map(
        |(rows, width, (base, size, constant), (other, dropout))| Rows {
            rows,
            width,
            base,
            size,
            constant,
            other,
            dropout,
        },
    )
}

impl Rows {
    fn values(&self, b: &mut Build, name: &str) -> wgformer::graph::ValueId {
        let mut rng = wgformer::rng::Rng::new(self.rows as u64);
        let mut data = Vec::new();
        for _ in 0..self.rows {
            let first = rng.normal();
            let value = |_| (self.base + self.size * if self.constant { first } else { rng.normal() }) as f32;
            data.extend((0..self.width).map(value));
        }
        b.differentiable(name, HostTensor::f32([self.rows, self.width], data))
    }
}

fn norms() -> BoxedStrategy<Rows> {
    rows(&[64, 7, 257]).boxed()
}

fn norm_case(input: &Rows) -> Case {
    let input = *input;
    let Rows { rows, width, other, dropout, .. } = input;
    Case::new("drawn", move |b: &mut Build| {
        let x = input.values(b, "x");
        let (gamma, beta) = (b.normal("gamma", [width], 1.0), b.normal("beta", [width], 1.0));
        if !other {
            return Ok(vec![layer_norm(b.graph(), x, gamma, beta, 1e-5)?]);
        }
        let residual = b.normal("residual", [rows, width], 1.0);
        let seed = Some(b.fixed("seed", HostTensor::u32([2], vec![7, 3])));
        let dropout = dropout.map(|p| Dropout { p, site: 5 });
        let (y, h) = add_norm(b.graph(), residual, x, gamma, beta, 1e-5, dropout, seed)?;
        Ok(vec![y, h])
    })
}

fn softmaxes() -> BoxedStrategy<Rows> {
    rows(&[64, 3, 33]).boxed()
}

fn softmax_case(input: &Rows) -> Case {
    let input = *input;
    Case::new("drawn", move |b: &mut Build| {
        let x = input.values(b, "x");
        Ok(vec![if input.other { log_softmax(b.graph(), x)? } else { softmax(b.graph(), x)? }])
    })
}

#[derive(Clone, Copy, Debug)]
struct Logits {
    rows: usize,
    width: usize,
    size: f64,
    smoothing: f64,
    /// Of so many ids; that of the padding is the first of them.
    ids: u32,
}

fn losses() -> BoxedStrategy<Logits> {
    let widths = select(vec![64, 2, 37, 1000]);
    (1..=200usize, widths, select(&SIZES[..]), 0.0..=1.0f64, 1..=2u32)
        .prop_map(|(rows, width, size, smoothing, ids)| {
            let ids = if ids == 1 { 1 } else { width as u32 };
            Logits { rows, width, size, smoothing, ids }
        })
        .boxed()
}

fn loss_case(input: &Logits) -> Case {
    let Logits { rows, width, size, smoothing, ids } = *input;
    let case = Case::new("drawn", move |b: &mut Build| {
        let x = b.normal("x", [rows, width], size);
        let targets = b.ids("targets", [rows], ids);
        let inv = count_targets(b.graph(), targets, 0)?;
        let loss = cross_entropy(b.graph(), x, targets, inv, CrossEntropy { ignore: 0, smoothing })?;
        Ok(vec![loss.loss, loss.stats])
    });
    case.ones()
}

// ---- Tables ----

#[derive(Clone, Copy, Debug)]
struct Table {
    batch: usize,
    steps: usize,
    vocabulary: u32,
    width: usize,
    positions: bool,
    dropout: Option<f64>,
    scale: f64,
    size: f64,
}

fn tables() -> BoxedStrategy<Table> {
    let sizes = (1..=9usize, 1..=40usize, 1..=300u32, select(vec![4, 1, 6, 64]));
    let with = (any::<bool>(), prop::option::of(0.01..0.9f64), -3.0..3.0f64, select(&SIZES[..]));
    (sizes, with)
        .prop_map(|((batch, steps, vocabulary, width), (positions, dropout, scale, size))| Table {
            batch,
            steps,
            vocabulary,
            width,
            positions,
            dropout,
            scale,
            size,
        })
        .boxed()
}

fn table_case(input: &Table) -> Case {
    let Table { batch, steps, vocabulary, width, positions, dropout, scale, size } = *input;
    Case::new("drawn", move |b: &mut Build| {
        let inputs = EmbeddingInputs {
            ids: b.ids("ids", [batch, steps], vocabulary),
            table: b.normal("table", [vocabulary as usize, width], size),
            positions: positions.then(|| b.normal("positions", [steps + 1, width], size)),
            offset: None,
            seed: Some(b.fixed("seed", HostTensor::u32([2], vec![3, 9]))),
        };
        Ok(vec![embedding(b.graph(), inputs, scale, dropout.map(|p| Dropout { p, site: 4 }))?])
    })
}

// ---- Columns and elements ----

#[derive(Clone, Copy, Debug)]
struct Columns {
    rows: usize,
    columns: usize,
    size: f64,
}

fn columns() -> BoxedStrategy<Columns> {
    (1..=2000usize, 1..=40usize, select(&SIZES[..]))
        .prop_map(|(rows, columns, size)| Columns { rows, columns, size })
        .boxed()
}

fn column_case(input: &Columns) -> Case {
    let Columns { rows, columns, size } = *input;
    let case = Case::new("drawn", move |b: &mut Build| {
        let x = b.normal("x", [rows, columns], size);
        Ok(vec![column_sum(b.graph(), x)?])
    });
    case.values_only()
}

#[derive(Clone, Copy, Debug)]
enum Function {
    Scale,
    Add,
    Multiply,
    Activate(Activation),
}

#[derive(Clone, Copy, Debug)]
struct Elements {
    count: usize,
    function: Function,
    factor: f64,
    size: f64,
}

fn functions() -> BoxedStrategy<Elements> {
    use Activation::{Gelu, GeluTanh, Relu, Silu};
    let mut functions = vec![Function::Scale, Function::Add, Function::Multiply];
    functions.extend([Relu, Gelu, GeluTanh, Silu].map(Function::Activate));
    (1..=600usize, select(functions), -3.0..3.0f64, select(&SIZES[..]))
        .prop_map(|(count, function, factor, size)| Elements { count, function, factor, size })
        .boxed()
}

fn function_case(input: &Elements) -> Case {
    let Elements { count, function, factor, size } = *input;
    Case::new("drawn", move |b: &mut Build| {
        let x = b.normal("x", [count], size);
        Ok(vec![match function {
            Function::Scale => ew::scale(b.graph(), x, factor)?,
            Function::Add | Function::Multiply => {
                let y = b.normal("y", [count], 1.0);
                let g = b.graph();
                if matches!(function, Function::Add) { ew::add(g, x, y)? } else { ew::multiply(g, x, y)? }
            }
            Function::Activate(act) => ew::activate(b.graph(), act, x)?,
        }])
    })
}

// ---- The tests of these tests ----

/// With a kernel that leaves out all rows of a chunk beyond the fifth, six rows of one column are the smallest input that
/// fails.
fn finds_and_shrinks(on: &Runner) -> Outcome {
    let (right, wrong) = ("r < end; r++", "r < min(end, first + 5u); r++");
    let mut broken = Runner::new(on.gpu.clone(), on.seed);
    broken.change = Some(Box::new(move |kernel: &mut Kernel| {
        for part in &mut kernel.parts {
            *part = Cow::Owned(part.replace(right, wrong));
        }
    }));
    match check(&broken, 16, columns(), column_case) {
        Err(Failure { smallest: Some(Columns { rows: 6, columns: 1, size: 1.0 }), problems })
            if problems.iter().any(|p| p.contains("1 of 1 elements wrong")) =>
        {
            Ok(Passed::checks(1))
        }
        Err(Failure { smallest, problems }) => {
            Err([vec![format!("shrunk to {smallest:?}, not to 6 rows of 1 column")], problems].concat())
        }
        Ok(_) => Err(vec!["a wrong kernel was not found".to_string()]),
    }
}

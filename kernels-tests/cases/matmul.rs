//! Matrix products: every form, batches, sub-matrices, epilogues; sizes around every tile.

use wgformer::graph::ValueId;
use wgformer::ops::elementwise::{self, Activation};
use wgformer::ops::matmul::{Form, MatMul, Strided, View, matmul, matmul_strided};
use wgformer::ops::matmul::{linear, linear_residual, linear_transposed};
use wgformer::testing::{Build, Case};
use wgformer::{HostTensor, Result, Shape};

const FORMS: [(&str, Form, Form); 4] = [
    ("NN", Form::Plain, Form::Plain),
    ("NT", Form::Plain, Form::Transposed),
    ("TN", Form::Transposed, Form::Plain),
    ("TT", Form::Transposed, Form::Transposed),
];

/// M, N, K: one, primes, all multiples of four, one below and above a tile (4, 8, 16, 32, 64, 128 rows; 32, 64, 128
/// columns), few rows, long sums (split in parts), few columns.
const SIZES: [[usize; 3]; 22] = [
    [1, 1, 1],
    [1, 4, 4],
    [7, 13, 5],
    [67, 129, 31],
    [1, 64, 64],
    [2, 300, 33],
    [3, 132, 68],
    [4, 64, 20],
    [5, 8, 8],
    [15, 31, 9],
    [16, 32, 16],
    [17, 36, 12],
    [31, 63, 7],
    [32, 64, 8],
    [33, 68, 20],
    [64, 64, 64],
    [65, 132, 72],
    [100, 60, 36],
    [36, 20, 4099],
    [64, 64, 2048],
    [5, 3, 1031],
    [128, 4, 64],
];

/// The product of a and b, of these forms and outer dimensions.
fn build(
    b: &mut Build,
    [m, n, k]: [usize; 3],
    (form_a, form_b): (Form, Form),
    outer: (&[usize], &[usize]),
    with: MatMul,
) -> Result<Vec<ValueId>> {
    let shape = |outer: &[usize], form: Form, r: usize, c: usize| -> Shape {
        let (r, c) = if form == Form::Plain { (r, c) } else { (c, r) };
        outer.iter().copied().chain([r, c]).collect::<Vec<_>>().into()
    };
    let a = b.normal("a", shape(outer.0, form_a, m, k), 1.0);
    let bb = b.normal("b", shape(outer.1, form_b, k, n), 1.0);
    Ok(vec![matmul(b.graph(), a, bb, MatMul { a: form_a, b: form_b, ..with })?])
}

fn forms(cases: &mut Vec<Case>) {
    for (name, form_a, form_b) in FORMS {
        // TT only ever follows from the others' gradients.
        let rare = form_a == Form::Transposed && form_b == Form::Transposed;
        for sizes in SIZES.into_iter().step_by(if rare { 4 } else { 1 }) {
            let [m, n, k] = sizes;
            cases.push(Case::new(format!("{name} {m}x{n}x{k}"), move |b: &mut Build| {
                build(b, sizes, (form_a, form_b), (&[], &[]), MatMul::default())
            }));
        }
        for (what, outer_a, outer_b) in [
            ("batch", &[3][..], &[3][..]),
            ("batch of two dimensions", &[2, 3], &[2, 3]),
            ("shared b", &[3], &[]),
            ("shared a", &[], &[3]),
        ] {
            for sizes in [[7, 13, 5], [20, 36, 8]] {
                let [m, n, k] = sizes;
                cases.push(Case::new(format!("{name} {what} {m}x{n}x{k}"), move |b: &mut Build| {
                    let with = MatMul { alpha: 0.3, ..Default::default() };
                    build(b, sizes, (form_a, form_b), (outer_a, outer_b), with)
                }));
            }
        }
    }
    // Enough groups for the middle and the large tiles of GPUs; the gradients there are other forms of the same size.
    for (name, sizes) in [("middle tile", [500, 512, 20]), ("middle tile, odd", [509, 521, 7])] {
        cases.push(Case::new(name, move |b: &mut Build| {
            build(b, sizes, (Form::Plain, Form::Plain), (&[], &[]), MatMul::default())
        }));
    }
    for (name, form_a, form_b) in FORMS {
        for sizes in [[1020, 2052, 12], [1021, 2049, 9]] {
            cases.push(
                Case::new(format!("large tile {name} {}x{}x{}", sizes[0], sizes[1], sizes[2]), move |b| {
                    build(b, sizes, (form_a, form_b), (&[], &[]), MatMul::default())
                })
                .values_only(),
            );
        }
    }
}

fn epilogues(cases: &mut Vec<Case>) {
    use Activation::{Gelu, GeluTanh, None, Relu, Silu};
    let add = |cases: &mut Vec<Case>, act: Activation, bias: bool, residual: bool, sizes: [usize; 3]| {
        let [m, n, k] = sizes;
        let build = move |b: &mut Build| {
            let bias = bias.then(|| b.normal("bias", [n], 1.0));
            let residual = residual.then(|| b.normal("residual", [m, n], 1.0));
            let with = MatMul { alpha: 0.25, bias, activation: act, residual, ..Default::default() };
            build(b, sizes, (Form::Plain, Form::Plain), (&[], &[]), with)
        };
        let name = format!("{act:?}, bias {bias}, residual {residual}, {m}x{n}x{k}");
        cases.push(Case::new(name.clone(), build));
        // Then nothing reads the value before the activation.
        if bias && residual {
            cases.push(Case::new(format!("{name}, values only"), build).values_only());
        }
    };
    for act in [None, Relu, Gelu, GeluTanh, Silu] {
        for (bias, residual) in [(false, false), (true, false), (false, true), (true, true)] {
            add(cases, act, bias, residual, [6, 36, 24]);
        }
    }
    // The largest tile, a split sum, scalars, a split sum of scalars, a few rows.
    for sizes in [[40, 68, 24], [18, 36, 1100], [7, 13, 5], [35, 67, 1031], [2, 64, 16]] {
        add(cases, Gelu, true, true, sizes);
        add(cases, None, true, false, sizes);
    }
    cases.push(Case::new("linear", |b: &mut Build| {
        let (x, w) = (b.normal("x", [2, 9, 20], 1.0), b.normal("w", [20, 32], 0.2));
        let bias = b.normal("bias", [32], 1.0);
        Ok(vec![linear(b.graph(), x, w, Some(bias), Gelu)?])
    }));
    // The bias's gradient comes from the weight's, whose sum is split over the rows; of vectors, of scalars, and alone.
    for (name, n, weight) in [("", 36, true), (", scalars", 13, true), (", the bias alone", 36, false)] {
        cases.push(Case::new(format!("linear of many rows{name}"), move |b: &mut Build| {
            let x = b.normal("x", [1031, 20], 1.0);
            let w = match weight {
                true => b.normal("w", [20, n], 0.2),
                false => b.fixed("w", HostTensor::f32([20, n], vec![0.3; 20 * n])),
            };
            let bias = b.normal("bias", [n], 1.0);
            Ok(vec![linear(b.graph(), x, w, Some(bias), None)?])
        }));
    }
    // Gradients that take in the slope before them, and the sum with another gradient.
    for act in [Relu, Gelu, Silu] {
        cases.push(Case::new(format!("{act:?} between products, and around them"), move |b: &mut Build| {
            let x = b.normal("x", [33, 20], 1.0);
            let (up, down) = (b.normal("up", [20, 48], 0.3), b.normal("down", [48, 20], 0.3));
            let h = linear(b.graph(), x, up, Option::None, act)?;
            let y = linear(b.graph(), h, down, Option::None, None)?;
            Ok(vec![elementwise::add(b.graph(), x, y)?])
        }));
    }
    cases.push(Case::new("linear with residual", |b: &mut Build| {
        let (x, w) = (b.normal("x", [2, 9, 20], 1.0), b.normal("w", [20, 32], 0.2));
        let (bias, r) = (b.normal("bias", [32], 1.0), b.normal("residual", [2, 9, 32], 1.0));
        Ok(vec![linear_residual(b.graph(), x, w, Some(bias), r)?])
    }));
    cases.push(Case::new("linear, transposed weight", |b: &mut Build| {
        let (x, w) = (b.normal("x", [2, 9, 20], 1.0), b.normal("w", [45, 20], 0.2));
        let bias = b.normal("bias", [45], 1.0);
        Ok(vec![linear_transposed(b.graph(), x, w, Some(bias), None)?])
    }));
    for (name, scale, other) in [
        ("large values", 1e12, 1e12),
        ("tiny values", 1e-12, 1e-12),
        ("denormal products", 1e-20, 1e-20),
        ("denormal values", 1e-39, 1.0),
    ] {
        cases.push(Case::new(name, move |b: &mut Build| {
            let (x, w) = (b.normal("x", [19, 24], scale), b.normal("w", [24, 40], other));
            Ok(vec![matmul(b.graph(), x, w, MatMul::default())?])
        }));
    }
    // The same product often, whose rounding errors have one sign; and products that cancel.
    for (name, sign) in [("constant values", 1.0), ("cancelling values", -1.0)] {
        cases.push(Case::new(name, move |b: &mut Build| {
            let (x, w) = ([64, 2048], [2048, 64]);
            let a = (0..64 * 2048).map(|i| if i % 2 == 0 { 0.1 } else { 0.1 * sign }).collect();
            let x = b.differentiable("x", HostTensor::f32(x, a));
            let w = b.differentiable("w", HostTensor::f32(w, vec![0.3; 2048 * 64]));
            Ok(vec![matmul(b.graph(), x, w, MatMul::default())?])
        }));
    }
}

/// A block of columns `[first, first + columns)` of a tensor of rows of `row`, as the only matrix of a batch.
fn block(first: usize, row: usize) -> View {
    View { start: first, row, batch: [0, 0] }
}

fn strided(cases: &mut Vec<Case>) {
    // x[:, 8..8+k] w[:, 4..4+n], written to columns 12..12+n of a wider output; aligned and not.
    for (name, shift, m, n, k) in [("aligned", 0, 21, 12, 16), ("not aligned", 1, 21, 11, 17)] {
        for (form, form_a, form_b) in FORMS {
            cases.push(Case::new(format!("blocks of columns, {name} {form}"), move |b: &mut Build| {
                let (rows_a, rows_b) =
                    (if form_a == Form::Plain { m } else { k }, if form_b == Form::Plain { k } else { n });
                let a = b.normal("a", [rows_a, 40], 1.0);
                let w = b.normal("b", [rows_b, 32], 1.0);
                let at = Strided {
                    m,
                    n,
                    k,
                    batch: [1, 1],
                    form_a,
                    a: block(8 + shift, 40),
                    form_b,
                    b: block(4 + shift, 32),
                    out: block(12 + shift, 28),
                    shape: [m, 28].into(),
                    alpha: 0.5,
                };
                Ok(vec![matmul_strided(b.graph(), a, w, at)?])
            }));
        }
    }
    // Scores of all heads from q [B, T, H, D] and k [B, S, H, D], and heads written side by side.
    let [batch, t, s, h] = [2, 9, 11, 3];
    for d in [8, 5] {
        let heads = move |rows: usize| View { start: 0, row: h * d, batch: [rows * h * d, d] };
        let scores = View { start: 0, row: s, batch: [h * t * s, t * s] };
        cases.push(Case::new(format!("scores of heads of {d}"), move |b: &mut Build| {
            let (q, k) = (b.normal("q", [batch, t, h, d], 1.0), b.normal("k", [batch, s, h, d], 1.0));
            let at = Strided {
                m: t,
                n: s,
                k: d,
                batch: [batch, h],
                form_a: Form::Plain,
                a: heads(t),
                form_b: Form::Transposed,
                b: heads(s),
                out: scores,
                shape: [batch, h, t, s].into(),
                alpha: 0.35,
            };
            Ok(vec![matmul_strided(b.graph(), q, k, at)?])
        }));
        cases.push(Case::new(format!("heads of {d} side by side"), move |b: &mut Build| {
            let (p, v) = (b.normal("p", [batch, h, t, s], 1.0), b.normal("v", [batch, s, h, d], 1.0));
            let at = Strided {
                m: t,
                n: d,
                k: s,
                batch: [batch, h],
                form_a: Form::Plain,
                a: scores,
                form_b: Form::Plain,
                b: heads(s),
                out: heads(t),
                shape: [batch, t, h * d].into(),
                alpha: 1.0,
            };
            Ok(vec![matmul_strided(b.graph(), p, v, at)?])
        }));
    }
}

/// 16-bit floats: every size, as a layer has it, and what else a factor, an epilogue and a result can be.
fn halves(cases: &mut Vec<Case>) {
    for (name, form_a, form_b) in FORMS {
        // Each is another kernel to compile, and how a factor lies is the f32 cases' part. A transposed A is of gradients alone.
        let every = match (form_a, form_b) {
            (Form::Transposed, _) => 6,
            (_, Form::Transposed) => 3,
            _ => 1,
        };
        for (i, [m, n, k]) in SIZES.into_iter().enumerate().step_by(every) {
            // In turn, since each is other kernels to compile.
            let wide = (i + (form_b == Form::Plain) as usize).is_multiple_of(2);
            let what = if wide { ", f32 result" } else { ", bias" };
            let build = move |b: &mut Build| {
                let stored =
                    |form: Form, r: usize, c: usize| if form == Form::Plain { [r, c] } else { [c, r] };
                let x = b.half("a", stored(form_a, m, k), 1.0);
                let w = b.half("b", stored(form_b, k, n), 1.0);
                let bias = (!wide).then(|| b.half("bias", [n], 1.0));
                let with = MatMul { a: form_a, b: form_b, bias, wide, alpha: 0.25, ..Default::default() };
                Ok(vec![matmul(b.graph(), x, w, with)?])
            };
            cases.push(Case::new(format!("f16 {name} {m}x{n}x{k}{what}"), build).values_only());
        }
    }
    for act in [Activation::Relu, Activation::Gelu] {
        for wide in [false, true] {
            let sizes = [[6, 36, 24], [7, 13, 5], [35, 67, 1031], [18, 36, 1100], [2, 64, 16], [3, 4, 1]];
            for [m, n, k] in sizes.into_iter().skip(wide as usize).step_by(2) {
                let build = move |b: &mut Build| {
                    let (x, w) = (b.half("a", [m, k], 1.0), b.half("b", [k, n], 0.2));
                    let bias = Some(b.half("bias", [n], 1.0));
                    let residual = if wide { b.normal("r", [m, n], 1.0) } else { b.half("r", [m, n], 1.0) };
                    let with = MatMul {
                        bias,
                        activation: act,
                        wide,
                        residual: Some(residual),
                        ..Default::default()
                    };
                    Ok(vec![matmul(b.graph(), x, w, with)?])
                };
                let name = format!("f16, {act:?}, residual, f32 result {wide}, {m}x{n}x{k}");
                cases.push(Case::new(name, build).values_only());
            }
        }
    }
    for (name, outer_a, outer_b) in
        [("batch", &[3][..], &[3][..]), ("shared b", &[3], &[]), ("shared a", &[], &[3])]
    {
        for [m, n, k] in [[7, 13, 5], [20, 36, 8]] {
            let build = move |b: &mut Build| {
                let shape = |outer: &[usize], r: usize, c: usize| [outer, &[r, c]].concat();
                let (x, w) = (b.half("a", shape(outer_a, m, k), 1.0), b.half("b", shape(outer_b, k, n), 1.0));
                Ok(vec![matmul(b.graph(), x, w, MatMul::default())?])
            };
            cases.push(Case::new(format!("f16 {name} {m}x{n}x{k}"), build).values_only());
        }
    }
    for (name, shift, m, n, k) in [("aligned", 0, 21, 12, 16), ("not aligned", 1, 21, 11, 17)] {
        let build = move |b: &mut Build| {
            let (x, w) = (b.half("a", [m, 40], 1.0), b.half("b", [k, 32], 1.0));
            let at = Strided {
                m,
                n,
                k,
                batch: [1, 1],
                form_a: Form::Plain,
                a: block(8 + shift, 40),
                form_b: Form::Plain,
                b: block(4 + shift, 32),
                out: block(12 + shift, 28),
                shape: [m, 28].into(),
                alpha: 0.5,
            };
            Ok(vec![matmul_strided(b.graph(), x, w, at)?])
        };
        cases.push(Case::new(format!("f16, blocks of columns, {name}"), build).values_only());
    }
    for (name, scale) in [("large", 30.0), ("tiny", 1e-3), ("denormal", 1e-6)] {
        let build = move |b: &mut Build| {
            let (x, w) = (b.half("a", [19, 24], scale), b.half("b", [24, 40], scale));
            Ok(vec![matmul(b.graph(), x, w, MatMul::default())?])
        };
        cases.push(Case::new(format!("f16, {name} values"), build).values_only());
    }
    for (name, m, n, k) in
        [("middle tile", 500, 512, 20), ("large tile", 1020, 2052, 12), ("large tile, odd", 1021, 2049, 9)]
    {
        let build = move |b: &mut Build| {
            let (x, w) = (b.half("a", [m, k], 1.0), b.half("b", [k, n], 1.0));
            Ok(vec![matmul(b.graph(), x, w, MatMul::default())?])
        };
        cases.push(Case::new(format!("f16, {name}"), build).values_only());
    }
}

pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    halves(&mut cases);
    forms(&mut cases);
    epilogues(&mut cases);
    strided(&mut cases);
    cases
}

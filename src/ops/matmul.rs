//! Matrix products: NN, NT, TN, TT, batched and strided, with bias, activation and residual; forward and backward.
//!
//! out[z, m, n] = act(alpha sum_k A[z, m, k] B[z, k, n] + bias\[n\]) + residual[z, m, n]. Weights are stored [in, out], so
//! a linear layer is NN, its gradient by the input NT and by the weight TN.
//!
//! Values are written once, so nothing accumulates in place: where a product is to be added to something, that is the
//! residual. Gradients have epilogues of their own: the slope of the activation before, and the sums of the columns of B,
//! which are the gradient of a bias where B is that of the result.

mod excerpt;
mod lower;

use super::column_sum::{ColumnSum, column_sum};
use super::elementwise::{self, Activation, activate_backward};
use super::layout::reshape;
use super::rounding::{of_sizes, once, size, sum};
use crate::graph::{Excerpt, Graph, Lowering, Node, Op, ValueId};
use crate::rng::Rng;
use crate::{DType, Error, Result, Shape, Tensor64, TensorType};
use std::sync::Arc;

pub(super) use lower::{PACK, PLAIN, SOURCE, SUBGROUP, TILE, VECTOR};

/// How a factor is stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Form {
    /// As the formula has it: A [M, K], B [K, N].
    #[default]
    Plain,
    /// Transposed: A [K, M], B [N, K].
    Transposed,
}

impl Form {
    fn flipped(self) -> Form {
        match self {
            Form::Plain => Form::Transposed,
            Form::Transposed => Form::Plain,
        }
    }
}

/// What a product does besides multiplying; the default is A B.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MatMul {
    /// How A is stored.
    pub a: Form,
    /// How B is stored.
    pub b: Form,
    /// The factor of the product.
    pub alpha: f64,
    /// Added to each row, `[N]`.
    pub bias: Option<ValueId>,
    /// Applied after the bias.
    pub activation: Activation,
    /// Added at the end, of the output's shape.
    pub residual: Option<ValueId>,
    /// The result is f32 where the factors are f16: for logits, say.
    pub wide: bool,
}

impl Default for MatMul {
    fn default() -> Self {
        MatMul {
            a: Form::Plain,
            b: Form::Plain,
            alpha: 1.0,
            bias: None,
            activation: Activation::None,
            residual: None,
            wide: false,
        }
    }
}

/// Where the matrices of a batch lie in a tensor, in elements. The columns of a stored row are neighbours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct View {
    /// The first element of the first matrix.
    pub start: usize,
    /// From one stored row to the next.
    pub row: usize,
    /// From one matrix to the next along the outer and the inner batch dimension; 0 where all share one.
    pub batch: [usize; 2],
}

impl View {
    /// Where an element of a matrix of this form lies.
    fn place(&self, form: Form, [outer, inner]: [usize; 2], row: usize, column: usize) -> usize {
        let (row, column) = if form == Form::Plain { (row, column) } else { (column, row) };
        self.start + outer * self.batch[0] + inner * self.batch[1] + row * self.row + column
    }
}

/// A product of sub-matrices, see [`matmul_strided`].
#[derive(Clone, Debug, PartialEq)]
pub struct Strided {
    /// Rows of a product.
    pub m: usize,
    /// Columns of a product.
    pub n: usize,
    /// Terms of a sum.
    pub k: usize,
    /// Outer and inner extent of the batch.
    pub batch: [usize; 2],
    /// How A is stored.
    pub form_a: Form,
    /// Where A lies.
    pub a: View,
    /// How B is stored.
    pub form_b: Form,
    /// Where B lies.
    pub b: View,
    /// Where the products go.
    pub out: View,
    /// The shape of the output; elements that no product covers are zero.
    pub shape: Shape,
    /// The factor of the product.
    pub alpha: f64,
}

/// A view's extents and strides, as far as elements differ by them, by stride.
fn extents(view: &View, rows: usize, columns: usize, batch: [usize; 2]) -> Vec<(usize, usize)> {
    let mut dims = vec![(1, columns), (view.row, rows), (view.batch[1], batch[1]), (view.batch[0], batch[0])];
    dims.retain(|d| d.1 > 1);
    dims.sort();
    dims
}

/// One past the last element that a view touches.
fn end(view: &View, rows: usize, columns: usize, batch: [usize; 2]) -> usize {
    view.start
        + extents(view, rows, columns, batch).iter().map(|(stride, n)| stride * (n - 1)).sum::<usize>()
        + 1
}

#[derive(Debug, PartialEq)]
struct Product {
    at: Strided,
    bias: bool,
    activation: Activation,
    /// What the last input is for.
    extra: Option<Extra>,
    /// The second output is the sums of the columns of B, which is one dense [K, N].
    sums: bool,
    wide: bool,
}

/// What an input of the output's shape does at the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Extra {
    /// It is added.
    Added,
    /// The slope of the activation at it is multiplied by.
    Slope(Activation),
}

impl Product {
    /// A B alone.
    fn plain(at: Strided) -> Self {
        Product { at, bias: false, activation: Activation::None, extra: None, sums: false, wide: false }
    }

    fn stored_a(&self) -> (usize, usize) {
        match self.at.form_a {
            Form::Plain => (self.at.m, self.at.k),
            Form::Transposed => (self.at.k, self.at.m),
        }
    }

    fn stored_b(&self) -> (usize, usize) {
        match self.at.form_b {
            Form::Plain => (self.at.k, self.at.n),
            Form::Transposed => (self.at.n, self.at.k),
        }
    }

    /// Whether the gradient needs the value before the activation: where the result does not tell the slope.
    fn saves_pre(&self) -> bool {
        let act = self.activation;
        act != Activation::None && (self.extra.is_some() || !act.slope_from_result())
    }

    /// Whether the products cover the whole output.
    fn covers(&self) -> bool {
        let s = &self.at;
        s.m * s.n * s.batch[0] * s.batch[1] == s.shape.elements()
    }

    fn flops(&self) -> u64 {
        let s = &self.at;
        2 * [s.m, s.n, s.k, s.batch[0], s.batch[1]].iter().map(|&d| d as u64).product::<u64>()
    }
}

impl Op for Product {
    fn name(&self) -> &'static str {
        "matmul"
    }

    fn outputs(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>> {
        let s = &self.at;
        let [z0, z1] = s.batch;
        if [s.m, s.n, s.k, z0, z1].contains(&0) {
            let got = format!("m {}, n {}, k {}, batch {z0} x {z1}", s.m, s.n, s.k);
            return Err(Error::shape("", "product", "no extent of 0", got));
        }
        let dtype = inputs[0].dtype;
        if !dtype.is_float() {
            return Err(Error::shape("", "a", "f32 or f16", inputs[0]));
        }
        let out = TensorType::new(if self.wide { DType::F32 } else { dtype }, s.shape.clone());
        let views = [("a", &s.a, self.stored_a(), inputs[0]), ("b", &s.b, self.stored_b(), inputs[1])];
        for (name, view, (rows, columns), ty) in views.into_iter().chain([("out", &s.out, (s.m, s.n), &out)])
        {
            let end = end(view, rows, columns, s.batch);
            let same = ty.dtype == if name == "out" { out.dtype } else { dtype };
            if !same || end > ty.shape.elements() {
                return Err(Error::shape("", name, format!("{dtype}, {end} elements at least"), ty));
            }
        }
        // A view whose strides leave room for all that lies below them meets no element twice.
        let mut span = 1;
        for (stride, extent) in extents(&s.out, s.m, s.n, s.batch) {
            if stride < span {
                let got = format!("{:?} of [{z0}, {z1}, {}, {}]", s.out, s.m, s.n);
                return Err(Error::shape("", "out", "matrices that do not overlap", got));
            }
            span += stride * (extent - 1);
        }
        let mut optional = inputs[2..].iter();
        let want = TensorType::new(dtype, [s.n]);
        if self.bias
            && let Some(t) = optional.next().filter(|t| ***t != want)
        {
            return Err(Error::shape("", "bias", want, t));
        }
        if let Some(t) = optional.next().filter(|t| ***t != out) {
            return Err(Error::shape("", "residual", out, t));
        }
        let dense = View { start: 0, row: s.n, batch: s.b.batch };
        if self.sums && (s.batch != [1, 1] || s.form_b != Form::Plain || s.b != dense || self.saves_pre()) {
            return Err(Error::Internal("sums of columns are those of one dense matrix".into()));
        }
        let mut outputs = vec![out; 1 + self.saves_pre() as usize];
        outputs.extend(self.sums.then(|| TensorType::f32([s.n])));
        Ok(outputs)
    }

    fn reference(&self, inputs: &[&Tensor64]) -> Vec<Tensor64> {
        let s = &self.at;
        let (a, b) = (&inputs[0].data, &inputs[1].data);
        let bias = self.bias.then(|| &inputs[2].data);
        let extra = self.extra.map(|e| (e, &inputs[2 + self.bias as usize].data));
        let mut out = Tensor64::zeros(s.shape.clone());
        let mut pre = Tensor64::zeros(s.shape.clone());
        for outer in 0..s.batch[0] {
            for inner in 0..s.batch[1] {
                for m in 0..s.m {
                    for n in 0..s.n {
                        let mut sum = 0.0;
                        for k in 0..s.k {
                            sum += a[s.a.place(s.form_a, [outer, inner], m, k)]
                                * b[s.b.place(s.form_b, [outer, inner], k, n)];
                        }
                        let i = s.out.place(Form::Plain, [outer, inner], m, n);
                        pre.data[i] = s.alpha * sum + bias.map_or(0.0, |b| b[n]);
                        let y = self.activation.value(pre.data[i]);
                        out.data[i] = match extra {
                            Some((Extra::Added, r)) => y + r[i],
                            Some((Extra::Slope(act), x)) => y * act.slope(x[i]),
                            None => y,
                        };
                    }
                }
            }
        }
        let mut results = vec![out];
        results.extend(self.saves_pre().then_some(pre));
        results.extend(self.sums.then(|| ColumnSum.reference(&inputs[1..2]).remove(0)));
        results
    }

    /// A sum of k products and the bias, times alpha; what follows scales that by the activation's slope, and adds its own.
    fn rounding(&self, inputs: &[&Tensor64], results: &[Tensor64]) -> Vec<Tensor64> {
        let at = Strided { alpha: self.at.alpha.abs(), ..self.at.clone() };
        let plain = Product { bias: self.bias, wide: self.wide, ..Product::plain(at) };
        let places = [0, 1, 2];
        let sums = of_sizes(&plain, inputs, &places[..2 + self.bias as usize]).remove(0).data;
        let extra = self.extra.map(|e| (e, &inputs[2 + self.bias as usize].data));
        // What the bias may have taken off the sum: a product without terms is its bias.
        let bias = Product { at: Strided { k: 0, ..plain.at }, ..plain };
        let bias = bias.reference(inputs).remove(0).data;
        let (mut out, mut pre) = (results[0].clone(), results[self.saves_pre() as usize].clone());
        for (i, total) in sums.into_iter().enumerate() {
            let y = out.data[i];
            // The value before the activation, where it is not saved: y is that, or ReLU of it; or it is only known to be
            // at most the sum of magnitudes.
            let x = match extra {
                _ if self.saves_pre() => pre.data[i],
                Some((Extra::Added, r)) => y - r[i],
                Some((Extra::Slope(_), _)) => total,
                None => y,
            };
            pre.data[i] = sum(self.at.k, total, x.abs() + bias[i].abs()) + total;
            out.data[i] = self.activation.steepest() * pre.data[i] + self.activation.rounding(x);
            match extra {
                Some((Extra::Added, _)) => out.data[i] += y.abs(),
                Some((Extra::Slope(act), at)) => {
                    let slope = size(act.slope(at[i]));
                    out.data[i] = out.data[i] * slope + once(size(x) * (slope + act.slope_rounding(at[i])));
                }
                None => {}
            }
        }
        let mut bounds = vec![out];
        bounds.extend(self.saves_pre().then_some(pre));
        if self.sums {
            let mut error = of_sizes(&ColumnSum, &inputs[1..2], &[0]).remove(0);
            let total = &results[results.len() - 1].data;
            error.data.iter_mut().zip(total).for_each(|(e, y)| *e = sum(self.at.k, *e, *y));
            bounds.push(error);
        }
        bounds
    }

    fn excerpts(&self, inputs: &[&Tensor64], rng: &mut Rng) -> Vec<Excerpt> {
        excerpt::excerpts(self, inputs, rng)
    }

    fn gradient(
        &self,
        g: &mut Graph,
        node: &Node,
        d_outputs: &[Option<ValueId>],
    ) -> Result<Vec<Option<ValueId>>> {
        let mut grads = vec![None; node.inputs.len()];
        let Some(d) = d_outputs[0] else { return Ok(grads) };
        match self.extra {
            Some(Extra::Added) => grads[2 + self.bias as usize] = Some(d),
            None if !self.sums => {}
            _ => return Err(Error::config("matmul", "the gradient of a gradient is not supported")),
        }
        let saved = node.outputs[self.saves_pre() as usize];
        let d = activate_backward(g, self.activation, d, saved)?;
        let s = &self.at;
        // The product for dB reads all of d anyway.
        let dense = View { start: 0, row: s.n, batch: s.out.batch };
        let with_sums = self.bias && s.batch == [1, 1] && s.form_b == Form::Plain && s.out == dense;
        if self.bias && !with_sums {
            let rows = s.shape.elements() / s.n;
            let d = reshape(g, d, [rows, s.n])?;
            grads[2] = Some(column_sum(g, d)?);
        }
        let (a, b) = (node.inputs[0], node.inputs[1]);
        // dA = alpha dC B^T, or its transpose, dA^T = alpha B dC^T.
        let d_a = match s.form_a {
            Form::Plain => Strided {
                n: s.k,
                k: s.n,
                form_a: Form::Plain,
                a: s.out,
                form_b: s.form_b.flipped(),
                b: s.b,
                out: s.a,
                shape: g.shape(a).clone(),
                ..s.clone()
            },
            Form::Transposed => Strided {
                m: s.k,
                n: s.m,
                k: s.n,
                form_a: s.form_b,
                a: s.b,
                form_b: Form::Transposed,
                b: s.out,
                out: s.a,
                shape: g.shape(a).clone(),
                ..s.clone()
            },
        };
        let factors = if s.form_a == Form::Plain { [d, b] } else { [b, d] };
        grads[0] = Some(product_of_shared(g, factors, d_a, "a")?);
        // dB = alpha A^T dC, or its transpose, dB^T = alpha dC^T A.
        let d_b = match s.form_b {
            Form::Plain => Strided {
                m: s.k,
                k: s.m,
                form_a: s.form_a.flipped(),
                a: s.a,
                form_b: Form::Plain,
                b: s.out,
                out: s.b,
                shape: g.shape(b).clone(),
                ..s.clone()
            },
            Form::Transposed => Strided {
                m: s.n,
                n: s.k,
                k: s.m,
                form_a: Form::Transposed,
                a: s.out,
                form_b: s.form_a,
                b: s.a,
                out: s.b,
                shape: g.shape(b).clone(),
                ..s.clone()
            },
        };
        if with_sums {
            let outputs = g.add_node(Product { sums: true, ..Product::plain(d_b) }, &[a, d])?;
            (grads[1], grads[2]) = (Some(outputs[0]), Some(outputs[1]));
            return Ok(grads);
        }
        let factors = if s.form_b == Form::Plain { [a, d] } else { [d, a] };
        grads[1] = Some(product_of_shared(g, factors, d_b, "b")?);
        Ok(grads)
    }

    /// A sum with it, and the gradient by the activation before, are epilogues.
    fn followed_by(&self, next: &dyn Op, input: usize) -> Option<Arc<dyn Op>> {
        let extra = elementwise::as_extra(next, input)?;
        let plain = *self == Product::plain(self.at.clone()) && self.covers();
        plain.then(|| Arc::new(Product { extra: Some(extra), ..Product::plain(self.at.clone()) }) as _)
    }

    fn lower(&self, l: &mut Lowering) -> Result<()> {
        lower::lower(self, l)
    }
}

/// A gradient product. Where the factor that it belongs to is shared by a whole batch, the products of the batch are
/// summed.
fn product_of_shared(g: &mut Graph, [a, b]: [ValueId; 2], s: Strided, name: &str) -> Result<ValueId> {
    let shared = |i: usize| s.batch[i] > 1 && s.out.batch[i] == 0;
    if !shared(0) && !shared(1) {
        return matmul_strided(g, a, b, s);
    }
    let count = s.batch[0] * s.batch[1];
    let whole = s.out.start == 0 && s.out.row == s.n && s.m * s.n == s.shape.elements();
    if !whole || (s.batch[0] > 1 && !shared(0)) || (s.batch[1] > 1 && !shared(1)) {
        return Err(Error::config(
            format!("matmul: {name}"),
            "a sub-matrix that a batch shares has no gradient: share a whole tensor, or copy it first",
        ));
    }
    let (matrix, shape) = (s.m * s.n, s.shape.clone());
    let out = View { start: 0, row: s.n, batch: [s.batch[1] * matrix, matrix] };
    let each = matmul_strided(g, a, b, Strided { out, shape: [count, matrix].into(), ..s })?;
    let sum = column_sum(g, each)?;
    reshape(g, sum, shape)
}

fn product(g: &mut Graph, a: ValueId, b: ValueId, s: Strided, m: &MatMul) -> Result<ValueId> {
    let op = Product {
        at: s,
        bias: m.bias.is_some(),
        activation: m.activation,
        extra: m.residual.map(|_| Extra::Added),
        sums: false,
        wide: m.wide,
    };
    let inputs: Vec<ValueId> = [Some(a), Some(b), m.bias, m.residual].into_iter().flatten().collect();
    Ok(g.add_node(op, &inputs)?[0])
}

/// The product of two matrices or two batches of matrices, with what [`MatMul`] adds to it.
///
/// a `[.., M, K]` (`[.., K, M]` if transposed), b `[.., K, N]` (`[.., N, K]` if transposed), result `[.., M, N]`. The
/// outer dimensions are equal, or one of the two has none and is shared by the whole batch.
///
/// # Errors
/// When the shapes do not fit.
pub fn matmul(g: &mut Graph, a: ValueId, b: ValueId, with: MatMul) -> Result<ValueId> {
    let (da, db) = (g.shape(a).dims().to_vec(), g.shape(b).dims().to_vec());
    let last_two = |name: &str, dims: &[usize], form: Form| match (dims, form) {
        ([outer @ .., r, c], Form::Plain) => Ok((outer.to_vec(), *r, *c)),
        ([outer @ .., r, c], Form::Transposed) => Ok((outer.to_vec(), *c, *r)),
        _ => Err(Error::shape("matmul", name, "two dimensions at least", Shape::from(dims))),
    };
    let (batch_a, m, k) = last_two("a", &da, with.a)?;
    let (batch_b, k_b, n) = last_two("b", &db, with.b)?;
    let (shared_a, shared_b) = (batch_a.is_empty(), batch_b.is_empty());
    if k != k_b || !(batch_a == batch_b || shared_a || shared_b) {
        let want = format!("K = {k} and the outer dimensions of a, {:?}", batch_a);
        return Err(Error::shape("matmul", "b", want, Shape::from(&db[..])));
    }
    let outer = if shared_a { &batch_b } else { &batch_a };
    let count: usize = outer.iter().product();
    let shape: Shape = outer.iter().copied().chain([m, n]).collect::<Vec<_>>().into();
    let (columns_a, columns_b) = (da[da.len() - 1], db[db.len() - 1]);
    let dense = |row: usize, matrix: usize, shared: bool| View {
        start: 0,
        row,
        batch: [0, if shared { 0 } else { matrix }],
    };
    // Rows of a batch that shares B are rows of one matrix.
    let fold = shared_b && with.a == Form::Plain;
    let s = Strided {
        m: if fold { count * m } else { m },
        n,
        k,
        batch: [1, if fold { 1 } else { count }],
        form_a: with.a,
        a: dense(columns_a, m * k, shared_a),
        form_b: with.b,
        b: dense(columns_b, k * n, shared_b),
        out: dense(n, m * n, false),
        shape,
        alpha: with.alpha,
    };
    product(g, a, b, s, &with)
}

/// Products of sub-matrices: blocks of columns of larger matrices, heads of `[B, T, H, D]`. What the products do not
/// cover of the output is zero.
///
/// # Errors
/// When a view leaves its tensor, or the products overlap in the output. For the gradient, the matrices of A and of B
/// must not overlap either, but a whole tensor may be shared by the batch.
pub fn matmul_strided(g: &mut Graph, a: ValueId, b: ValueId, at: Strided) -> Result<ValueId> {
    product(g, a, b, at, &MatMul::default())
}

/// x W, with bias and activation: x `[.., K]`, w `[K, N]`, bias `[N]`, result `[.., N]`.
///
/// # Errors
/// When the shapes do not fit.
pub fn linear(
    g: &mut Graph,
    x: ValueId,
    w: ValueId,
    bias: Option<ValueId>,
    activation: Activation,
) -> Result<ValueId> {
    rows_times(g, x, w, MatMul { bias, activation, ..Default::default() })
}

/// x W + bias + residual: x `[.., K]`, w `[K, N]`, bias `[N]`, residual and result `[.., N]`.
///
/// # Errors
/// When the shapes do not fit.
pub fn linear_residual(
    g: &mut Graph,
    x: ValueId,
    w: ValueId,
    bias: Option<ValueId>,
    residual: ValueId,
) -> Result<ValueId> {
    rows_times(g, x, w, MatMul { bias, residual: Some(residual), ..Default::default() })
}

/// x W^T, with bias and activation: x `[.., K]`, w `[N, K]` (a tied embedding, say), bias `[N]`, result `[.., N]`.
///
/// # Errors
/// When the shapes do not fit.
pub fn linear_transposed(
    g: &mut Graph,
    x: ValueId,
    w: ValueId,
    bias: Option<ValueId>,
    activation: Activation,
) -> Result<ValueId> {
    rows_times(g, x, w, MatMul { b: Form::Transposed, bias, activation, ..Default::default() })
}

/// Every row of x `[.., K]` times a matrix w `[K, N]` (`[N, K]` if transposed), with what [`MatMul`] adds to it: `[.., N]`.
///
/// # Errors
/// When the shapes do not fit.
pub fn rows_times(g: &mut Graph, x: ValueId, w: ValueId, with: MatMul) -> Result<ValueId> {
    let (x_shape, w_shape) = (g.shape(x).clone(), g.shape(w).clone());
    let k = x_shape.last();
    let (k_w, n) = match (w_shape.dims(), with.b) {
        (&[k, n], Form::Plain) | (&[n, k], Form::Transposed) => (k, n),
        _ => return Err(Error::shape("linear", "w", "two dimensions", w_shape)),
    };
    if k != k_w {
        return Err(Error::shape("linear", "w", format!("the width of x {x_shape}, {k}"), w_shape));
    }
    let flat = |row: usize| View { start: 0, row, batch: [0, 0] };
    let s = Strided {
        m: x_shape.rows(),
        n,
        k,
        batch: [1, 1],
        form_a: Form::Plain,
        a: flat(k),
        form_b: with.b,
        b: flat(w_shape.last()),
        out: flat(n),
        shape: x_shape.with_last(n),
        alpha: with.alpha,
    };
    product(g, x, w, s, &with)
}

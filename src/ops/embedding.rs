//! Token embedding: rows of a table, scaled, with positions and dropout; the table's and the positions' gradients.

use super::dropout::{active, dropout_parts};
use super::params::params;
use super::random::{Dropout, RandomKey};
use super::rounding::{of_sizes, once, sum};
use crate::graph::{Derived, Graph, Lowering, Node, Op, Role, ValueId};
use crate::kernel::{Access, Const, Dispatch, Kernel, Requires, parts};
use crate::{DType, DeviceClass, DeviceProfile, Error, HostTensor, Result, Tensor64, TensorType};
use std::borrow::Cow;

pub(super) const SOURCE: &str = include_str!("../../shaders/embedding.wgsl");

params! {
    struct Params {
        rows: u32,
        width: u32,
        steps: u32,
        vocabulary: u32,
        positions: u32,
        scale: f32,
        dropout_site: u32,
        dropout_threshold: u32,
        dropout_scale: f32,
        columns: u32,
    }
}

/// What [`embedding`] reads.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EmbeddingInputs {
    /// u32 `[.., T]`.
    pub ids: ValueId,
    /// f32 or f16 `[V, C]`.
    pub table: ValueId,
    /// Positions `[P, C]`, of the type of the table, that are added, P at least T: a constant, or a parameter.
    pub positions: Option<ValueId>,
    /// The position of the first column of ids, an input u32`[1]`; 0 if not given. With it, the positions get no gradient.
    pub offset: Option<ValueId>,
    /// The seed of the dropout, an input u32`[2]`: (seed of the run, step).
    pub seed: Option<ValueId>,
}

/// The settings of the ops of this file, and which optional inputs follow the others: positions, offset, seed in this
/// order.
#[derive(Clone, Copy, Debug)]
struct Spec {
    scale: f64,
    positions: bool,
    offset: bool,
    dropout: Option<Dropout>,
}

/// Inputs: ids [B, T], table [V, C], then positions, offset, seed where given. Output [B, T, C].
#[derive(Debug)]
struct Embedding(Spec);

impl Spec {
    /// The numbers of the optional inputs, of which the first is `from`.
    fn inputs(&self, from: usize) -> [Option<usize>; 3] {
        let mut next = from;
        [self.positions, self.offset, self.dropout.is_some()].map(|given| {
            next += usize::from(given);
            given.then_some(next - 1)
        })
    }

    /// The factor of each flat index of the output.
    fn mask<'a>(&self, seed: Option<&'a Tensor64>) -> impl Fn(usize) -> f64 + use<'a> {
        let mask = self.dropout.zip(seed).map(|(d, s)| (d, RandomKey::new([s.u32(0), s.u32(1)], d.site)));
        move |i| mask.map_or(1.0, |(d, key)| d.factor(key, i as u32))
    }

    fn params(&self, ids: &TensorType) -> Params {
        let d = self.dropout.unwrap_or(Dropout { p: 0.0, site: 0 });
        Params {
            rows: ids.shape.elements() as u32,
            steps: ids.shape.last() as u32,
            scale: self.scale as f32,
            dropout_site: d.site,
            dropout_threshold: d.threshold(),
            dropout_scale: d.scale() as f32,
            ..Default::default()
        }
    }

    /// `table`, or its gradient, is what the elements of rows are of.
    fn constants(&self, teams: Teams, table: &TensorType) -> Vec<(&'static str, Const)> {
        let vec4 = table.shape.last().is_multiple_of(4);
        vec![
            ("GROUP", Const::U32(teams.group)),
            ("LANES", Const::U32(teams.lanes)),
            ("ROWS", Const::U32(TABLE_ROWS)),
            ("AHEAD", Const::U32(teams.ahead)),
            ("POSITIONS", Const::Bool(self.positions)),
            ("OFFSET", Const::Bool(self.offset)),
            ("DROPOUT", Const::Bool(self.dropout.is_some())),
            ("stored", Const::element(table.dtype, vec4)),
        ]
    }
}

/// How rows of c floats are shared out.
#[derive(Clone, Copy)]
struct Teams {
    group: u32,
    lanes: u32,
    ahead: u32,
}

impl Teams {
    /// As many lanes as a row has elems, but on a software adapter no more than it has lanes: what is done once a row is
    /// then shared by several elems. Loads ahead hide a GPU's latency; there they would only cost, also in vain.
    fn new(profile: &DeviceProfile, c: usize) -> Self {
        let (group, ahead) = match profile.class {
            DeviceClass::Cpu => (8, 1),
            _ => (64, 4),
        };
        Teams { group, lanes: (width(c).next_power_of_two() as u32).min(group), ahead }
    }

    /// How many of `width` elems a workgroup of the table's gradient takes. Mesa's software adapter ends all loops of an
    /// invocation after 65,535 rounds in all, in silence (found with 65,600 ids of 3 rows: columns stayed unwritten), and
    /// at worst all ids are of one workgroup.
    fn columns(&mut self, profile: &DeviceProfile, ids: usize, width: usize) -> Result<u32> {
        const MOST: usize = 60_000;
        if profile.class != DeviceClass::Cpu {
            return Ok((width as u32).next_multiple_of(self.lanes));
        }
        if ids > MOST / 4 {
            self.ahead = 4;
        }
        let rounds = ids.div_ceil(self.ahead as usize) + self.ahead as usize * TABLE_ROWS as usize;
        let passes = MOST / rounds.max(1);
        if passes == 0 {
            let allowed = (MOST * self.ahead as usize) as u64;
            let limit = "the rounds of a software adapter's loops";
            return Err(Error::Limit {
                limit,
                needed: ids as u64,
                allowed,
                tensor: "an embedding's ids".into(),
            });
        }
        let passes = passes.min(width.div_ceil(self.lanes as usize));
        Ok(passes as u32 * self.lanes)
    }

    fn requires(self) -> Requires {
        Requires { invocations: self.group, ..Default::default() }
    }

    fn groups(self, l: &Lowering, rows: usize) -> Result<[u32; 3]> {
        l.groups_1d(rows.div_ceil((self.group / self.lanes) as usize))
    }
}

/// The texts for rows of c floats.
fn texts(c: usize) -> Vec<Cow<'static, str>> {
    parts([SOURCE].into_iter().chain(dropout_parts(c.is_multiple_of(4))))
}

/// c in elems.
fn width(c: usize) -> usize {
    if c.is_multiple_of(4) { c / 4 } else { c }
}

impl Op for Embedding {
    fn name(&self) -> &'static str {
        "embedding"
    }

    fn outputs(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>> {
        let (ids, table) = (inputs[0], inputs[1]);
        if ids.dtype != DType::U32 || ids.shape.rank() == 0 {
            return Err(Error::shape("", "ids", "u32[.., T]", ids));
        }
        if !table.dtype.is_float() || table.shape.rank() != 2 || table.shape.elements() == 0 {
            return Err(Error::shape("", "table", "f32[V, C] or f16[V, C]", table));
        }
        let c = table.shape.last();
        let [positions, offset, seed] = self.0.inputs(2).map(|i| i.map(|i| inputs[i]));
        if let Some(p) = positions {
            let fits = p.dtype == table.dtype && p.shape.rank() == 2 && p.shape.last() == c;
            if !fits || p.shape.rows() < ids.shape.last() {
                let want = format!("{}[P, {c}] with P at least {}", table.dtype, ids.shape.last());
                return Err(Error::shape("", "positions", want, p));
            }
        }
        if let Some(o) = offset.filter(|o| **o != TensorType::u32([1])) {
            return Err(Error::shape("", "offset", TensorType::u32([1]), o));
        }
        if let Some((d, s)) = self.0.dropout.zip(seed) {
            d.check(s)?;
        }
        let mut dims = ids.shape.dims().to_vec();
        dims.push(c);
        Ok(vec![TensorType::new(table.dtype, dims)])
    }

    fn reference(&self, inputs: &[&Tensor64]) -> Vec<Tensor64> {
        let (ids, table) = (inputs[0], inputs[1]);
        let [positions, offset, seed] = self.0.inputs(2).map(|i| i.map(|i| inputs[i]));
        let (c, t) = (table.shape.last(), ids.shape.last());
        let first = offset.map_or(0, |o| o.u32(0) as usize);
        let mask = self.0.mask(seed);
        let mut dims = ids.shape.dims().to_vec();
        dims.push(c);
        vec![Tensor64::from_fn(dims, |i| {
            let (n, j) = (i / c, i % c);
            let mut x = self.0.scale * table.row(ids.u32(n) as usize)[j];
            if let Some(p) = positions {
                x += p.row((n % t + first).min(p.shape.rows() - 1))[j];
            }
            x * mask(i)
        })]
    }

    /// One each for the scale, the product with it, the sum with the position, and the dropout.
    fn rounding(&self, inputs: &[&Tensor64], _: &[Tensor64]) -> Vec<Tensor64> {
        let floats: Vec<usize> = [1].into_iter().chain(self.0.inputs(2)[0]).collect();
        let spec = Spec { scale: self.0.scale.abs(), ..self.0 };
        let mut error = of_sizes(&Embedding(spec), inputs, &floats);
        error[0].data.iter_mut().for_each(|e| *e = once(4.0 * *e));
        error
    }

    fn gradient(
        &self,
        g: &mut Graph,
        node: &Node,
        d_outputs: &[Option<ValueId>],
    ) -> Result<Vec<Option<ValueId>>> {
        let mut gradients = vec![None; node.inputs.len()];
        let Some(d_out) = d_outputs[0] else { return Ok(gradients) };
        let (ids, table) = (node.inputs[0], node.inputs[1]);
        let [positions, _, seed] = self.0.inputs(2);
        let order = order_of(g, ids)?;
        let mut inputs = vec![d_out, ids, order];
        inputs.extend(seed.map(|i| node.inputs[i]));
        let spec = Spec { positions: false, offset: false, ..self.0 };
        let vocabulary = g.shape(table).rows();
        gradients[1] = Some(g.add(EmbeddingBackward { spec, vocabulary }, &inputs)?);
        if let Some(i) = positions.filter(|_| !self.0.offset) {
            let mut inputs = vec![d_out];
            inputs.extend(seed.map(|i| node.inputs[i]));
            let count = g.shape(node.inputs[i]).rows();
            gradients[i] = Some(g.add(PositionsBackward { spec, count }, &inputs)?);
        }
        Ok(gradients)
    }

    fn lower(&self, l: &mut Lowering) -> Result<()> {
        let (ids, table) = (l.input_type(0), l.input_type(1));
        let c = table.shape.last();
        let [positions, offset, seed] = self.0.inputs(2);
        let params = Params {
            width: width(c) as u32,
            vocabulary: table.shape.rows() as u32,
            positions: positions.map_or(1, |i| l.input_type(i).shape.rows()) as u32,
            ..self.0.params(ids)
        };
        let teams = Teams::new(l.profile, c);
        l.push(Dispatch {
            kernel: Kernel {
                name: "embedding/forward".into(),
                parts: texts(c),
                entry: "forward",
                bindings: [[Access::Read; 5].as_slice(), &[Access::Write]].concat(),
                params: Params::FIELDS,
                constants: self.0.constants(teams, table),
                requires: teams.requires(),
            }
            .stores_f16(table.dtype == DType::F16),
            // What is absent is bound to something that is not, and not read.
            operands: vec![
                l.input(0).into(),
                l.input(seed.unwrap_or(0)).into(),
                l.input(1).into(),
                l.input(positions.unwrap_or(1)).into(),
                l.input(offset.unwrap_or(0)).into(),
                l.output(0).into(),
            ],
            params: params.bytes(),
            groups: teams.groups(l, ids.shape.elements())?,
            flops: ids.shape.elements() as u64 * c as u64 * 2,
        });
        Ok(())
    }
}

/// The input that sorts `ids`, which must be an input, or all of one in another shape.
fn order_of(g: &mut Graph, ids: ValueId) -> Result<ValueId> {
    let (root, start) = g.resolve(ids);
    let whole = start == 0 && g.shape(root).elements() == g.shape(ids).elements();
    if !whole || !matches!(g.value(root).role, Role::Input(_)) {
        let name = &g.value(ids).name;
        return Err(Error::config(
            "embedding",
            format!("a gradient needs ids that are an input, not {name}"),
        ));
    }
    Ok(g.derived(Derived::Argsort(root)))
}

/// Rows of the table that a workgroup of `backward_table` owns; each has an invocation for its bounds, and there is one
/// bound more, so it must be below the smallest workgroup.
const TABLE_ROWS: u32 = 7;

/// Inputs: d_out [B, T, C], ids [B, T], their order [B T], then the seed where given. Output d_table [V, C].
#[derive(Debug)]
struct EmbeddingBackward {
    spec: Spec,
    vocabulary: usize,
}

impl Op for EmbeddingBackward {
    fn name(&self) -> &'static str {
        "embedding_backward"
    }

    fn outputs(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>> {
        Ok(vec![TensorType::f32([self.vocabulary, inputs[0].shape.last()])])
    }

    fn reference(&self, inputs: &[&Tensor64]) -> Vec<Tensor64> {
        let (d_out, ids) = (inputs[0], inputs[1]);
        let c = d_out.shape.last();
        let mask = self.spec.mask(self.spec.inputs(3)[2].map(|i| inputs[i]));
        let mut d_table = Tensor64::zeros([self.vocabulary, c]);
        for (i, d) in d_out.data.iter().enumerate() {
            d_table.data[ids.u32(i / c) as usize * c + i % c] += self.spec.scale * mask(i) * d;
        }
        vec![d_table]
    }

    /// A sum of as many terms as the id occurs, and the scale.
    fn rounding(&self, inputs: &[&Tensor64], results: &[Tensor64]) -> Vec<Tensor64> {
        let (ids, c) = (inputs[1], inputs[0].shape.last());
        let mut counts = vec![0; self.vocabulary];
        (0..ids.data.len()).for_each(|i| counts[ids.u32(i) as usize] += 1);
        let mut error = of_sizes(self, inputs, &[0]);
        for (i, e) in error[0].data.iter_mut().enumerate() {
            *e = sum(counts[i / c], e.abs(), results[0].data[i]) + 2.0 * e.abs();
        }
        error
    }

    fn lower(&self, l: &mut Lowering) -> Result<()> {
        let ids = l.input_type(1);
        let c = l.output_type(0).shape.last();
        let seed = self.spec.inputs(3)[2];
        let mut teams = Teams::new(l.profile, c);
        let columns = teams.columns(l.profile, ids.shape.elements(), width(c))?;
        let [x, y, _] = l.groups_1d(self.vocabulary.div_ceil(TABLE_ROWS as usize))?;
        let params = Params {
            width: width(c) as u32,
            vocabulary: self.vocabulary as u32,
            columns,
            ..self.spec.params(ids)
        };
        l.push(Dispatch {
            kernel: Kernel {
                name: "embedding/backward_table".into(),
                parts: texts(c),
                entry: "backward_table",
                bindings: [[Access::Read; 4].as_slice(), &[Access::Write]].concat(),
                params: Params::FIELDS,
                constants: self.spec.constants(teams, l.output_type(0)),
                requires: Requires { workgroup_bytes: teams.group * 4, ..teams.requires() },
            },
            operands: vec![
                l.input(0).into(),
                l.input(seed.unwrap_or(0)).into(),
                l.input(1).into(),
                l.input(2).into(),
                l.output(0).into(),
            ],
            params: params.bytes(),
            groups: [x, y, (width(c) as u32).div_ceil(columns)],
            flops: ids.shape.elements() as u64 * c as u64,
        });
        Ok(())
    }
}

/// Inputs: d_out [B, T, C], then the seed where given. Output d_positions [P, C].
#[derive(Debug)]
struct PositionsBackward {
    spec: Spec,
    count: usize,
}

impl Op for PositionsBackward {
    fn name(&self) -> &'static str {
        "positions_backward"
    }

    fn outputs(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>> {
        Ok(vec![TensorType::f32([self.count, inputs[0].shape.last()])])
    }

    fn reference(&self, inputs: &[&Tensor64]) -> Vec<Tensor64> {
        let d_out = inputs[0];
        let dims = d_out.shape.dims();
        let (t, c) = (dims[dims.len() - 2], d_out.shape.last());
        let mask = self.spec.mask(self.spec.inputs(1)[2].map(|i| inputs[i]));
        let mut d = Tensor64::zeros([self.count, c]);
        for (i, x) in d_out.data.iter().enumerate() {
            d.data[i / c % t * c + i % c] += mask(i) * x;
        }
        vec![d]
    }

    /// A sum over the batch.
    fn rounding(&self, inputs: &[&Tensor64], results: &[Tensor64]) -> Vec<Tensor64> {
        let dims = inputs[0].shape.dims();
        let rows: usize = dims[..dims.len() - 2].iter().product();
        let mut error = of_sizes(self, inputs, &[0]);
        error[0].data.iter_mut().zip(&results[0].data).for_each(|(e, y)| *e += sum(rows, *e, *y));
        error
    }

    fn lower(&self, l: &mut Lowering) -> Result<()> {
        let d_out = &l.input_type(0).shape;
        let c = d_out.last();
        let seed = self.spec.inputs(1)[2];
        let ids = TensorType::u32(&d_out.dims()[..d_out.rank() - 1]);
        let params =
            Params { width: width(c) as u32, positions: self.count as u32, ..self.spec.params(&ids) };
        let teams = Teams::new(l.profile, c);
        l.push(Dispatch {
            kernel: Kernel {
                name: "embedding/backward_positions".into(),
                parts: texts(c),
                entry: "backward_positions",
                bindings: vec![Access::Read, Access::Read, Access::Write],
                params: Params::FIELDS,
                constants: self.spec.constants(teams, l.output_type(0)),
                requires: teams.requires(),
            },
            operands: vec![l.input(0).into(), l.input(seed.unwrap_or(0)).into(), l.output(0).into()],
            params: params.bytes(),
            groups: teams.groups(l, self.count)?,
            flops: d_out.elements() as u64,
        });
        Ok(())
    }
}

/// out`[b, t, :]` = mask (scale table`[ids[b, t], :]` + positions`[t + offset, :]`), f32 `[.., T, C]`; the mask is that of the
/// dropout. `scale` is sqrt(C) in 'Attention is all you need', section 3.4. An id of V or more is read as V - 1, a position
/// of P or more as P - 1: check them on the host.
///
/// # Errors
/// When shapes do not fit, or there is a dropout but no seed. The gradient needs ids that are an input of the graph, since
/// their order is computed on the host.
pub fn embedding(
    g: &mut Graph,
    inputs: EmbeddingInputs,
    scale: f64,
    dropout: Option<Dropout>,
) -> Result<ValueId> {
    let dropout = active(dropout, inputs.seed)?;
    let spec = Spec {
        scale,
        positions: inputs.positions.is_some(),
        offset: inputs.offset.is_some(),
        dropout: dropout.map(|(d, _)| d),
    };
    let mut all = vec![inputs.ids, inputs.table];
    all.extend(inputs.positions);
    all.extend(inputs.offset);
    all.extend(dropout.map(|(_, seed)| seed));
    g.add(Embedding(spec), &all)
}

/// Positions f32 `[P, C]` as in 'Attention is all you need', section 3.5: PE`[p, 2i]` = sin(p / 10000^(2i / C)),
/// PE`[p, 2i + 1]` the cosine of the same.
pub fn sinusoid_interleaved(positions: usize, width: usize) -> HostTensor {
    sinusoid(positions, width, |p, c| {
        let angle = p * 10000f64.powf(-((c / 2 * 2) as f64) / width as f64);
        if c % 2 == 0 { angle.sin() } else { angle.cos() }
    })
}

/// Positions f32 `[P, C]` as Marian and Tensor2Tensor have them: with h = floor(C / 2), the sines of p 10000^(-i / (h - 1))
/// for i < h, then their cosines; a last odd column is 0.
pub fn sinusoid_halves(positions: usize, width: usize) -> HostTensor {
    let half = width / 2;
    let step = 10000f64.ln() / half.saturating_sub(1).max(1) as f64;
    let angle = |p: f64, i: usize| p * (-step * i as f64).exp();
    sinusoid(positions, width, |p, c| match c {
        _ if c < half => angle(p, c).sin(),
        _ if c < 2 * half => angle(p, c - half).cos(),
        _ => 0.0,
    })
}

/// A table of value(position, column).
fn sinusoid(positions: usize, width: usize, value: impl Fn(f64, usize) -> f64) -> HostTensor {
    let row = |p: usize| (0..width).map(move |c| (p as f64, c));
    let data = (0..positions).flat_map(row).map(|(p, c)| value(p, c) as f32).collect();
    HostTensor::f32([positions, width], data)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sinusoids_by_hand() {
        let (a, b) = (0.01f64, 1e-4f64); // the lower frequencies of four columns, by either formula
        let table = [
            (sinusoid_interleaved(3, 4), [2f64.sin(), 2f64.cos(), (2.0 * a).sin(), (2.0 * a).cos()]),
            (sinusoid_halves(3, 4), [2f64.sin(), (2.0 * b).sin(), 2f64.cos(), (2.0 * b).cos()]),
        ];
        for (got, want) in table {
            let got = got.to_f64();
            assert_eq!(got.shape.dims(), [3, 4]);
            assert_eq!(got.row(0).iter().filter(|&&x| x == 1.0).count(), 2, "position 0 is zeros and ones");
            for (g, w) in got.row(2).iter().zip(want) {
                assert!((g - w).abs() < 1e-7, "{got:?}, expected {want:?}");
            }
        }
        assert_eq!(sinusoid_halves(2, 5).to_f64().row(1)[4], 0.0);
        assert_eq!(sinusoid_halves(2, 1).to_f64().data, [0.0, 0.0]);
        assert_eq!(sinusoid_interleaved(1, 1).to_f64().data, [0.0]);
    }
}

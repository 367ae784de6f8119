//! Which variant computes a product on which device, and its dispatches.

use super::super::lib_wgsl;
use super::super::params::params;
use super::{Extra, Form, Product, View};
use crate::graph::Lowering;
use crate::kernel::{Access, Const, Dispatch, Kernel, Operand, Requires, Slice, parts};
use crate::ops::column_sum;
use crate::ops::elementwise::Activation;
use crate::tuning::{Family, Query, Sizes};
use crate::{DType, Error, Result, TensorType};

pub(in crate::ops) const SOURCE: &str = include_str!("../../../shaders/matmul.wgsl");
pub(in crate::ops) const SUBGROUP: &str = include_str!("../../../shaders/matmul_subgroup.wgsl");
pub(in crate::ops) const PACK: &str = include_str!("../../../shaders/matmul_pack.wgsl");
pub(in crate::ops) const TILE: &str = include_str!("../../../shaders/matmul_tile.wgsl");
pub(in crate::ops) const PLAIN: &str = include_str!("../../../shaders/matmul_plain.wgsl");
pub(in crate::ops) const VECTOR: &str = include_str!("../../../shaders/matmul_vector.wgsl");
const PRE: &str = include_str!("../../../shaders/matmul_pre.wgsl");
const SUMS: &str = include_str!("../../../shaders/matmul_sums.wgsl");
const ONE: &str = include_str!("../../../shaders/matmul_one.wgsl");

type Constants = Vec<(&'static str, Const)>;

params! {
    struct Params {
        m: u32,
        n: u32,
        k: u32,
        inner: u32,
        tiles_m: u32,
        tiles_n: u32,
        count: u32,
        k_chunk: u32,
        k_outer: u32,
        splits: u32,
        alpha: f32,
        a_start: u32,
        a_row: u32,
        a_k: u32,
        a_tile: u32,
        a_outer: u32,
        a_inner: u32,
        b_start: u32,
        b_k: u32,
        b_column: u32,
        b_tile: u32,
        b_first: u32,
        b_columns: u32,
        b_outer: u32,
        b_inner: u32,
        out_start: u32,
        out_row: u32,
        out_outer: u32,
        out_inner: u32,
        epilogue: u32,
    }
}

params! {
    struct PackParams {
        k: u32,
        w: u32,
        start: u32,
        k_stride: u32,
        w_stride: u32,
        outer: u32,
        inner: u32,
        inner_count: u32,
        tiles: u32,
        chunks: u32,
        count: u32,
    }
}

/// How a factor is read: by scalars and any strides, or by vec4 along k or along the other dimension (m or n).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Read {
    Scalar,
    AlongK,
    Across,
}

/// A factor where it lies. Its dimensions are k and, across it, m of A or n of B.
#[derive(Clone, Copy)]
struct Factor {
    operand: Operand,
    view: View,
    /// The neighbours in memory are neighbours across.
    across: bool,
    /// Extent across.
    extent: usize,
    /// Starts of rows, and the size of the tensor, divide by four.
    aligned: bool,
    dtype: DType,
}

/// How a kernel finds a factor: strides in elements of the binding.
#[derive(Clone, Copy)]
struct Source {
    operand: Operand,
    dtype: DType,
    read: Read,
    start: usize,
    k: usize,
    across: usize,
    tile: usize,
    batch: [usize; 2],
}

impl Factor {
    /// The best way to read it in place.
    fn read(&self, k: usize) -> Read {
        match (self.aligned, self.across) {
            (true, true) if self.extent.is_multiple_of(4) => Read::Across,
            (true, false) if k.is_multiple_of(4) => Read::AlongK,
            _ => Read::Scalar,
        }
    }

    fn in_place(&self, read: Read) -> Source {
        let unit = if read == Read::Scalar { 1 } else { 4 };
        let row = self.view.row / unit;
        let (k, across) = if self.across { (row, 1) } else { (1, row) };
        Source {
            operand: self.operand,
            dtype: self.dtype,
            read,
            start: self.view.start / unit,
            k,
            across,
            tile: 0,
            batch: self.view.batch.map(|s| s / unit),
        }
    }
}

/// Whether all rows of a view start at multiples of four elements of a tensor whose size is one too.
fn aligned(view: &View, rows: usize, batch: [usize; 2], ty: &TensorType) -> bool {
    let strides = [(view.row, rows), (view.batch[0], batch[0]), (view.batch[1], batch[1])];
    view.start.is_multiple_of(4)
        && ty.shape.elements().is_multiple_of(4)
        && strides.iter().all(|&(stride, n)| n == 1 || stride.is_multiple_of(4))
}

/// A product on its way to dispatches.
struct Lower<'a> {
    op: &'a Product,
    a: Factor,
    b: Factor,
    /// `elem`, which out is written by, is vec4<f32>.
    vec4: bool,
    pre: bool,
    /// The sums of the columns of B are wanted.
    sums: bool,
    /// Of factors and bias.
    dtype: DType,
    /// Of out and residual.
    out: DType,
}

pub(super) fn lower(op: &Product, l: &mut Lowering) -> Result<()> {
    let s = &op.at;
    let factor = |i: usize, view: View, across: bool, extent: usize| Factor {
        operand: l.input(i),
        view,
        across,
        extent,
        aligned: aligned(&view, if across { s.k } else { extent }, s.batch, l.input_type(i)),
        dtype: l.input_type(i).dtype,
    };
    let it = Lower {
        op,
        a: factor(0, s.a, s.form_a == Form::Transposed, s.m),
        b: factor(1, s.b, s.form_b == Form::Plain, s.n),
        vec4: s.n.is_multiple_of(4) && aligned(&s.out, s.m, s.batch, l.output_type(0)),
        pre: op.saves_pre() && l.output_used(1),
        sums: op.sums && l.output_used(1),
        dtype: l.input_type(0).dtype,
        out: l.output_type(0).dtype,
    };
    if it.sums && !l.output_used(0) {
        return column_sum::push_all(l, l.input(1), l.output(1), [s.k, s.n]);
    }
    if !op.covers() {
        it.push_zero(l)?;
    }
    let form = match (s.form_a, s.form_b) {
        (Form::Plain, Form::Plain) => "NN",
        (Form::Plain, Form::Transposed) => "NT",
        (Form::Transposed, Form::Plain) => "TN",
        (Form::Transposed, Form::Transposed) => "TT",
    };
    let query = Query::new(Family::MatMul, form, &[s.m, s.n, s.k, s.batch[0] * s.batch[1]]);
    let variant = l.choose(query)?;
    match (variant.sizes, l.profile.subgroup_size()) {
        (Sizes::Subgroup { tm, tn, groups }, Some(lanes)) => it.subgroup(l, lanes, (tm, tn), groups),
        (sizes, _) => it.portable(l, sizes),
    }
}

impl Lower<'_> {
    /// matmul_subgroup.wgsl, with factors brought into tiles where that pays.
    fn subgroup(&self, l: &mut Lowering, lanes: u32, (tm, tn): (u32, u32), groups: usize) -> Result<()> {
        let s = &self.op.at;
        let columns = s.n.div_ceil(4);
        let tile = (tm as usize, (tn * lanes) as usize);
        let (tiles_m, tiles_n) = (s.m.div_ceil(tile.0), columns.div_ceil(tile.1));
        let bytes = 4 * s.k * s.n;
        // A copy costs as much as reading in place two or three times, and then each read costs half.
        let pack_a = tm >= 16 && tiles_n >= 2 && self.a.read(s.k) != Read::Across;
        // B is read for each tile of rows; where it is large and rows are far apart, mostly from outside the cache.
        let pack_b = match self.b.read(s.k) {
            Read::AlongK => s.m >= 64,
            _ => !(self.b.aligned && self.b.across) || (tiles_m >= 8 && bytes >= 1 << 19),
        };
        let a = if pack_a {
            self.push_pack(l, &self.a, tile.0, lanes)?
        } else {
            let read = if self.a.read(s.k) == Read::Across && tm >= 4 { Read::Across } else { Read::Scalar };
            self.a.in_place(read)
        };
        let b = if pack_b {
            self.push_pack(l, &self.b, 4 * tile.1, lanes)?
        } else {
            self.b.in_place(if self.b.across { Read::Across } else { Read::AlongK })
        };
        let b_along_k = b.read == Read::AlongK;
        let splits = self.splits(tiles_m * tiles_n, groups);
        // What is costly to compile or reads memory for each element.
        let later =
            self.op.extra.is_some() || !matches!(self.op.activation, Activation::None | Activation::Relu);
        // What a second turn reads would have been rounded before.
        let later = later && self.out == DType::F32;
        let told = self.told(splits == 1);
        let constants = vec![
            ("b_elem", Const::element(b.dtype, true)),
            ("b_wide", Const::element(DType::F32, true)),
            ("LANES", Const::U32(lanes)),
            ("TM", Const::U32(tm)),
            ("TN", Const::U32(tn)),
            ("STEP", Const::U32(if b_along_k { 4 } else { 2 })),
            ("A_ALONG_M", Const::Bool(a.read == Read::Across)),
            ("B_ALONG_K", Const::Bool(b_along_k)),
            ("LATER", Const::Bool(later && splits == 1 && told.is_none())),
            ("BY_PARAMS", Const::Bool(told.is_some())),
        ];
        let requires = Requires { subgroup_size: Some(lanes), invocations: lanes, ..Default::default() };
        let work = Work { name: "subgroup", text: SUBGROUP, a, b, tile, columns, splits, told };
        self.push_product(l, work, constants, requires)
    }

    /// The copy of a factor in tiles of `w` across.
    fn push_pack(&self, l: &mut Lowering, x: &Factor, w: usize, lanes: u32) -> Result<Source> {
        const CHUNK: usize = 64;
        let s = &self.op.at;
        let read = x.read(s.k);
        let source = x.in_place(read);
        // A matrix that the batch shares is copied once.
        let count = |i: usize| if x.view.batch[i] == 0 { 1 } else { s.batch[i] };
        let (outer, inner) = (count(0), count(1));
        let (tiles, chunks) = (x.extent.div_ceil(w), s.k.div_ceil(CHUNK));
        let matrix = tiles * s.k * w;
        let out = l.scratch(outer * inner * matrix);
        let groups = chunks * tiles * outer * inner;
        let params = PackParams {
            k: s.k as u32,
            w: x.extent as u32,
            start: source.start as u32,
            k_stride: source.k as u32,
            w_stride: source.across as u32,
            outer: source.batch[0] as u32,
            inner: source.batch[1] as u32,
            inner_count: inner as u32,
            tiles: tiles as u32,
            chunks: chunks as u32,
            count: groups as u32,
        };
        let along = match read {
            Read::Scalar => 0,
            Read::Across => 1,
            Read::AlongK => 2,
        };
        let dispatch = Dispatch {
            kernel: Kernel {
                name: "matmul/pack".into(),
                parts: parts([PACK]),
                entry: "pack",
                bindings: vec![Access::Read, Access::Write],
                params: PackParams::FIELDS,
                constants: vec![
                    ("x_elem", Const::element(x.dtype, read != Read::Scalar)),
                    ("x_wide", Const::element(DType::F32, read != Read::Scalar)),
                    ("LANES", Const::U32(lanes)),
                    ("W", Const::U32(w as u32)),
                    ("CHUNK", Const::U32(CHUNK as u32)),
                    ("ALONG", Const::U32(along)),
                ],
                requires: Requires { invocations: lanes, ..Default::default() },
            }
            .stores_f16(x.dtype == DType::F16),
            operands: vec![x.operand.into(), out.into()],
            params: params.bytes(),
            groups: l.groups_1d(groups)?,
            flops: 0,
        };
        l.push(dispatch);
        Ok(Source {
            operand: out,
            dtype: DType::F32,
            read: Read::Across,
            start: 0,
            k: w / 4,
            across: 1,
            tile: s.k * w / 4,
            batch: [
                if x.view.batch[0] == 0 { 0 } else { inner * matrix / 4 },
                if x.view.batch[1] == 0 { 0 } else { matrix / 4 },
            ],
        })
    }

    /// matmul_tile.wgsl, matmul_plain.wgsl, or matmul_vector.wgsl for a few rows.
    fn portable(&self, l: &mut Lowering, sizes: Sizes) -> Result<()> {
        let s = &self.op.at;
        // These read B by the type that they write.
        let read_b = if self.vec4 { self.b.read(s.k) } else { Read::Scalar };
        let it = Lower { vec4: read_b != Read::Scalar, ..*self };
        let columns = if it.vec4 { s.n / 4 } else { s.n };
        let width = if it.vec4 { 4 } else { 1 };
        let b_along_k = read_b == Read::AlongK;
        let mut constants = vec![
            ("b_elem", Const::element(self.b.dtype, it.vec4)),
            ("b_wide", Const::element(DType::F32, it.vec4)),
            ("B_ALONG_K", Const::Bool(b_along_k)),
        ];
        let (name, text, read_a, tile, requires, wanted) = match sizes {
            Sizes::Tile { tx, ty, rm, rn, slab, groups, prefetch } => {
                // Columns of four are four times as many of one.
                let rn = rn * 4 / width;
                let read_a = self.a.read(s.k);
                let along = match read_a {
                    Read::Scalar => 0,
                    Read::AlongK => 1,
                    Read::Across => 2,
                };
                constants.extend([
                    ("TX", Const::U32(tx)),
                    ("TY", Const::U32(ty)),
                    ("RM", Const::U32(rm)),
                    ("RN", Const::U32(rn)),
                    ("SLAB", Const::U32(slab)),
                    ("A_ALONG", Const::U32(along)),
                    ("PREFETCH", Const::Bool(prefetch)),
                ]);
                let workgroup_bytes = 4 * slab * (ty * rm + 1 + tx * rn * width);
                let requires = Requires { workgroup_bytes, invocations: tx * ty, ..Default::default() };
                ("tile", TILE, read_a, (ty * rm, tx * rn), requires, groups)
            }
            Sizes::Plain { across, down, groups } => {
                constants.extend([("ACROSS", Const::U32(across)), ("DOWN", Const::U32(down))]);
                let requires = Requires { invocations: across * down, ..Default::default() };
                ("plain", PLAIN, Read::Scalar, (down * 8, across), requires, groups)
            }
            Sizes::Vector { columns, slices, rows } => {
                constants.extend([
                    ("COLUMNS", Const::U32(columns)),
                    ("SLICES", Const::U32(slices)),
                    ("ROWS", Const::U32(rows)),
                    ("ALONG_K", Const::Bool(!self.b.across)),
                ]);
                let invocations = columns * slices;
                let workgroup_bytes = 4 * invocations * width;
                let requires = Requires { workgroup_bytes, invocations, ..Default::default() };
                ("vector", VECTOR, Read::Scalar, (rows, columns), requires, 1)
            }
            other => return Err(Error::Internal(format!("matmul: {other:?} is no variant of it"))),
        };
        let tile = (tile.0 as usize, tile.1 as usize);
        let tiles = s.m.div_ceil(tile.0) * columns.div_ceil(tile.1);
        let work = Work {
            name,
            text,
            a: self.a.in_place(read_a),
            b: self.b.in_place(read_b),
            tile,
            columns,
            splits: self.splits(tiles, wanted),
            told: None,
        };
        it.push_product(l, work, constants, requires)
    }

    /// How many parts the sum is split into, so that few tiles become about `wanted` groups; each part is long enough to
    /// pay for the second pass.
    fn splits(&self, tiles: usize, wanted: usize) -> usize {
        let s = &self.op.at;
        if s.batch == [1, 1] { (wanted / tiles.max(1)).min(s.k / 256).max(1) } else { 1 }
    }

    /// The product, and the sum of its slices where k is split.
    fn push_product(
        &self,
        l: &mut Lowering,
        work: Work,
        mut constants: Constants,
        requires: Requires,
    ) -> Result<()> {
        let s = &self.op.at;
        let Work { name, text, a, b, tile, columns, splits, told } = work;
        let (tiles_m, tiles_n) = (s.m.div_ceil(tile.0), columns.div_ceil(tile.1));
        let split = splits > 1;
        let k_chunk = if split { s.k.div_ceil(splits).next_multiple_of(4) } else { s.k };
        let out = l.output(0);
        // The sums of columns are one more row of a slice.
        let rows = s.m + self.sums as usize;
        // Slices of a split k are an outer batch of dense matrices.
        let (dest, at, outer) = if split {
            let slice = View { start: 0, row: s.n, batch: [rows * s.n, 0] };
            (l.scratch(splits * rows * s.n), slice, splits)
        } else {
            (out, s.out, s.batch[0])
        };
        let unit = if self.vec4 { 4 } else { 1 };
        let packed_b = b.tile != 0;
        let params = Params {
            m: s.m as u32,
            n: (s.n / unit) as u32,
            k: s.k as u32,
            inner: s.batch[1] as u32,
            tiles_m: tiles_m as u32,
            tiles_n: tiles_n as u32,
            count: (tiles_m * tiles_n * outer * s.batch[1]) as u32,
            k_chunk: k_chunk as u32,
            k_outer: if split { k_chunk as u32 } else { 0 },
            splits: splits as u32,
            alpha: if split { 1.0 } else { s.alpha as f32 },
            a_start: a.start as u32,
            a_row: a.across as u32,
            a_k: a.k as u32,
            a_tile: a.tile as u32,
            a_outer: if split { 0 } else { a.batch[0] as u32 },
            a_inner: a.batch[1] as u32,
            b_start: b.start as u32,
            b_k: b.k as u32,
            b_column: b.across as u32,
            b_tile: b.tile as u32,
            b_first: if packed_b { 0 } else { tile.1 as u32 },
            b_columns: if packed_b { tile.1 } else { columns } as u32,
            b_outer: if split { 0 } else { b.batch[0] as u32 },
            b_inner: b.batch[1] as u32,
            out_start: (at.start / unit) as u32,
            out_row: (at.row / unit) as u32,
            out_outer: (at.batch[0] / unit) as u32,
            out_inner: (at.batch[1] / unit) as u32,
            epilogue: told.unwrap_or(0),
        };
        constants.push(("a_elem", Const::element(a.dtype, a.read != Read::Scalar)));
        constants.push(("a_wide", Const::element(DType::F32, a.read != Read::Scalar)));
        constants.extend(self.epilogue(!split && told.is_none()));
        constants.push(("SPLIT", Const::Bool(split && self.sums)));
        let dispatch = Dispatch {
            kernel: Kernel {
                name: format!("matmul/{name}"),
                parts: parts([SOURCE, text].into_iter().chain(self.shared_parts(!split))),
                entry: name,
                bindings: self.bindings(!split),
                params: Params::FIELDS,
                constants,
                requires,
            }
            .stores_f16(self.dtype == DType::F16),
            operands: self.operands(l, a.operand, b.operand, dest, !split),
            params: params.bytes(),
            groups: l.groups_1d(params.count as usize)?,
            flops: self.op.flops(),
        };
        l.push(dispatch);
        if !split {
            return Ok(());
        }
        let count = rows * s.n / unit;
        let params = Params {
            count: count as u32,
            alpha: s.alpha as f32,
            out_start: (s.out.start / unit) as u32,
            out_row: (s.out.row / unit) as u32,
            ..params
        };
        let dispatch = Dispatch {
            kernel: self.plain_kernel("reduce", true),
            operands: self.operands(l, dest, dest, out, true),
            params: params.bytes(),
            groups: l.groups_1d(count.div_ceil(64))?,
            flops: (splits * rows * s.n) as u64,
        };
        l.push(dispatch);
        Ok(())
    }

    /// The output, all zero: before a product that covers a part of it.
    fn push_zero(&self, l: &mut Lowering) -> Result<()> {
        let count = l.output_type(0).shape.elements() / if self.vec4 { 4 } else { 1 };
        let mut kernel = self.plain_kernel("zero", false);
        kernel.bindings[4] = Access::Write;
        let out = Const::element(self.out, self.vec4);
        kernel.constants.iter_mut().filter(|c| c.0 == "out_elem").for_each(|c| c.1 = out);
        let params = Params { count: count as u32, ..Default::default() };
        let b = self.b.operand;
        let dispatch = Dispatch {
            kernel,
            operands: [b, b, b, b, l.output(0)].map(Slice::from).to_vec(),
            params: params.bytes(),
            groups: l.groups_1d(count.div_ceil(64))?,
            flops: 0,
        };
        l.push(dispatch);
        Ok(())
    }

    /// A kernel of matmul.wgsl alone; `last` says whether it has the epilogue.
    fn plain_kernel(&self, entry: &'static str, last: bool) -> Kernel {
        let mut constants = self.epilogue(last);
        constants.push(("SPLIT", Const::Bool(false)));
        constants.extend(["a_elem", "a_wide", "b_elem", "b_wide"].map(|name| (name, Const::Alias("f32"))));
        Kernel {
            name: format!("matmul/{entry}"),
            parts: parts([SOURCE].into_iter().chain(self.shared_parts(last))),
            entry,
            bindings: self.bindings(last),
            params: Params::FIELDS,
            constants,
            requires: Requires { invocations: 64, ..Default::default() },
        }
        .stores_f16(self.dtype == DType::F16)
    }

    /// The text that names `elem`, that of the activations, and that of the second output.
    fn shared_parts(&self, last: bool) -> [&'static str; 3] {
        [
            if self.vec4 { lib_wgsl::ELEM_VEC4 } else { lib_wgsl::ELEM_F32 },
            lib_wgsl::ACTIVATION,
            match (self.pre && last, self.sums && last) {
                (true, _) => PRE,
                (_, true) => SUMS,
                _ => ONE,
            },
        ]
    }

    fn bindings(&self, last: bool) -> Vec<Access> {
        let out = if self.op.covers() || !last { Access::Write } else { Access::Update };
        let mut bindings = vec![Access::Read, Access::Read, Access::Read, Access::Read, out];
        if (self.pre || self.sums) && last {
            bindings.push(Access::Write);
        }
        bindings
    }

    /// What is bound; B stands in for an absent bias or residual, which is not read then.
    fn operands(&self, l: &Lowering, a: Operand, b: Operand, out: Operand, last: bool) -> Vec<Slice> {
        let bias = if self.op.bias && last { l.input(2) } else { b };
        let residual = if self.op.extra.is_some() && last { l.input(2 + self.op.bias as usize) } else { b };
        let mut operands = vec![a, b, bias, residual, out];
        if (self.pre || self.sums) && last {
            operands.push(l.output(1));
        }
        operands.into_iter().map(Slice::from).collect()
    }

    /// The constants of the epilogue; a pass before the last has none.
    fn epilogue(&self, last: bool) -> Constants {
        let act = if last { self.op.activation } else { Activation::None };
        let extra = self.op.extra.filter(|_| last);
        let slope = if let Some(Extra::Slope(act)) = extra { act } else { Activation::None };
        let elem = |dtype: DType| Const::element(dtype, self.vec4);
        vec![
            ("bias_elem", elem(self.dtype)),
            // The type of what stands in for it, where it is absent.
            ("residual_elem", elem(if extra.is_some() { self.out } else { self.dtype })),
            ("out_elem", elem(if last { self.out } else { DType::F32 })),
            ("BIAS", Const::Bool(self.op.bias && last)),
            ("RESIDUAL", Const::Bool(extra == Some(Extra::Added))),
            ("ACTIVATION", Const::U32(act.code())),
            ("SLOPE", Const::U32(slope.code())),
            ("SUMS", Const::Bool(self.sums)),
        ]
    }

    /// The bits of `params.epilogue` in matmul_subgroup.wgsl, where that can do all that is asked for. A pass before the
    /// last has nothing to do.
    fn told(&self, last: bool) -> Option<u32> {
        const BIAS: u32 = 1;
        const RELU: u32 = 2;
        const RESIDUAL: u32 = 4;
        const SLOPE: u32 = 8;
        if [self.dtype, self.out] != [DType::F32; 2] {
            return None;
        }
        if !last {
            return Some(0);
        }
        let activation = match self.op.activation {
            Activation::None => 0,
            Activation::Relu if !self.pre => RELU,
            _ => return None,
        };
        let extra = match self.op.extra {
            None => 0,
            Some(Extra::Added) => RESIDUAL,
            Some(Extra::Slope(Activation::Relu)) => SLOPE,
            Some(Extra::Slope(_)) => return None,
        };
        Some(activation | extra | if self.op.bias { BIAS } else { 0 })
    }
}

/// A product with its factors as they are read.
struct Work {
    /// Entry, and name of the variant.
    name: &'static str,
    text: &'static str,
    a: Source,
    b: Source,
    /// Rows and columns of a tile, columns as the kernel counts them: by four or by one.
    tile: (usize, usize),
    /// Columns of B, counted like that.
    columns: usize,
    /// Parts of k, summed by groups of their own.
    splits: usize,
    /// What the epilogue does, where parameters say it.
    told: Option<u32>,
}

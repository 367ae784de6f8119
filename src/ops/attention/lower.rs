//! Which variant computes an attention on which device, and what its dispatches share.

use super::super::lib_wgsl;
use super::super::params::params;
use super::{Optional, Sizes, Spec};
use crate::graph::Lowering;
use crate::kernel::{Access, Const, Dispatch, Kernel, Operand, Requires, Slice, parts};
use crate::ops::random::Dropout;
use crate::tuning::{Family, Query, Sizes as Shares, Tile};
use crate::{DType, Error, Result, TensorType};

pub(in crate::ops) const SOURCE: &str = include_str!("../../../shaders/attention.wgsl");
pub(in crate::ops) const SOURCE_LANES: &str = include_str!("../../../shaders/attention_lanes.wgsl");
/// The entry points of `shaders/attention_lanes.wgsl`.
pub(in crate::ops) const ENTRIES_LANES: &[&str] =
    &["forward_lanes", "backward_q_lanes", "backward_kv_lanes", "backward_kv_joint_lanes"];
pub(in crate::ops) const SOURCE_WHOLE: &str = include_str!("../../../shaders/attention_whole.wgsl");
/// What follows it where q, k and v are columns of one tensor, and where q is a tensor of its own.
pub(super) const WHOLE_JOINT: &str = include_str!("../../../shaders/attention_whole_joint.wgsl");
pub(super) const WHOLE_APART: &str = include_str!("../../../shaders/attention_whole_apart.wgsl");
/// The entry points of `shaders/attention.wgsl`.
pub(in crate::ops) const ENTRIES: &[&str] = &[
    "forward",
    "forward_part",
    "merge",
    "plot",
    "stats",
    "backward_q",
    "backward_kv",
    "backward_kv_joint",
    "backward_bias",
    "join",
];

pub(super) const R: Access = Access::Read;
pub(super) const W: Access = Access::Write;

params! {
    struct Params {
        batch: u32,
        t: u32,
        s: u32,
        heads: u32,
        q_row: u32,
        q_at: u32,
        k_row: u32,
        k_at: u32,
        v_row: u32,
        v_at: u32,
        mask_at: u32,
        mask_batch: u32,
        bias_at: u32,
        scale: f32,
        slope: f32,
        threshold: u32,
        keep: f32,
        site: u32,
        future: u32,
        limited: u32,
        parts: u32,
        span: u32,
    }
}

/// The workgroup memory of a tile; `maxima` says whether the kernel finds the maximum of each row, as forward does.
fn bytes(tile: &Tile, elem: usize, maxima: bool) -> usize {
    let (rows, columns) = (tile.rows(), tile.columns());
    let maxima = if maxima { rows * tile.nc } else { 0 };
    4 * (elem * (rows + columns) * (tile.dc + 1) + rows * (columns + 1) + maxima)
}

/// A kernel of tiles.
pub(super) struct Tiled {
    pub kernel: Kernel,
    /// The rows that a workgroup owns.
    pub rows: usize,
    /// The ranges of the rows that are walked over, and the length of each: the workgroups of a block of rows.
    pub parts: (usize, usize),
}

/// The entry points for one purpose.
pub(super) struct Entries {
    pub tiled: &'static str,
    pub lanes: &'static str,
    /// With the rows that are walked over in ranges.
    pub parts: &'static str,
}

/// What the dispatches of a node share.
pub(super) struct Lowered {
    spec: Spec,
    pub n: Sizes,
    pub at: Optional,
    /// 4 if the tensors are bound as vec4, else 1.
    elem: usize,
    /// Of queries, keys and values.
    dtype: DType,
    pub extra: Slice,
    mask_batch: usize,
    bias_at: usize,
}

impl Lowered {
    pub fn new(spec: &Spec, l: &mut Lowering, start: usize) -> Result<Self> {
        let types: Vec<&TensorType> = (0..l.input_count()).map(|i| l.input_type(i)).collect();
        let n = spec.check(&types, start)?;
        let at = spec.optional(start);
        let elem = if n.head.is_multiple_of(4) { 4 } else { 1 };
        let mask_size = at.mask.map_or(0, |i| types[i].shape.elements());
        let mask_batch = match at.mask {
            Some(i) if types[i].shape.rank() == 3 => n.t * n.s,
            _ => 0,
        };
        let bias_size = n.heads * n.t * n.s;
        let (extra, bias_at) = match (at.mask, at.bias) {
            (Some(mask), Some(bias)) => {
                let joined = l.scratch(mask_size + bias_size);
                Self::join(l, mask, bias, joined)?;
                (joined, mask_size)
            }
            (Some(i), None) | (None, Some(i)) => (l.input(i), 0),
            (None, None) => (l.input(0), 0),
        };
        let (extra, dtype) = (extra.into(), types[0].dtype);
        Ok(Lowered { spec: *spec, n, at, elem, dtype, extra, mask_batch, bias_at })
    }

    /// Mask and bias behind each other, so that eight storage bindings suffice.
    fn join(l: &mut Lowering, mask: usize, bias: usize, joined: Operand) -> Result<()> {
        let count = |i: usize| l.input_type(i).shape.elements() as u32;
        let params = Params { t: count(mask), s: count(bias), ..Params::default() };
        l.push(Dispatch {
            kernel: kernel("join", &[R, R, W], constants(&[])),
            operands: vec![l.input(mask).into(), l.input(bias).into(), joined.into()],
            params: params.bytes(),
            groups: l.groups_1d((count(mask) + count(bias)).div_ceil(64) as usize)?,
            flops: 0,
        });
        Ok(())
    }

    /// q, k and v as operands.
    pub fn qkv(&self, l: &Lowering) -> [Slice; 3] {
        [0, 1, 2].map(|i| l.input(self.spec.kind.part(i).0).into())
    }

    pub fn params(&self) -> Vec<u8> {
        self.params_of_parts((1, 0))
    }

    /// With ranges of keys: how many, and how long each is.
    pub fn params_of_parts(&self, (parts, span): (usize, usize)) -> Vec<u8> {
        let n = &self.n;
        let width = n.width() / self.elem;
        let [q, k, v] = [0, 1, 2].map(|i| {
            let (_, widths, at) = self.spec.kind.part(i);
            ((widths * width) as u32, (at * width) as u32)
        });
        let scale = self.spec.scale(n);
        let dropout = self.spec.settings.dropout;
        let params = Params {
            batch: n.batch as u32,
            t: n.t as u32,
            s: n.s as u32,
            heads: n.heads as u32,
            q_row: q.0,
            q_at: q.1,
            k_row: k.0,
            k_at: k.1,
            v_row: v.0,
            v_at: v.1,
            mask_at: 0,
            mask_batch: self.mask_batch as u32,
            bias_at: self.bias_at as u32,
            scale: (scale * std::f64::consts::LOG2_E) as f32,
            slope: scale as f32,
            threshold: dropout.map_or(0, Dropout::threshold),
            keep: dropout.map_or(1.0, Dropout::scale) as f32,
            site: dropout.map_or(0, |d| d.site),
            future: if self.spec.settings.causal { 0 } else { u32::MAX },
            limited: u32::from(self.spec.lengths),
            parts: parts as u32,
            span: span as u32,
        };
        params.bytes()
    }

    /// By formula: a product of queries and keys (or probabilities and values) is 2 B H T S D, half of it where causal.
    pub fn flops(&self, products: u64) -> u64 {
        let n = &self.n;
        let all = products * 2 * (n.batch * n.heads * n.t * n.s * n.head) as u64;
        if self.spec.settings.causal { all / 2 } else { all }
    }

    /// What a variant is to compute that owns some of `owned` rows in each workgroup and walks over `walked` others; `name` is
    /// the kernel's in the table of variants.
    fn query(&self, name: &'static str, owned: usize, walked: usize) -> Query {
        let (dv, pairs) = (self.n.head / self.elem, self.n.batch * self.n.heads);
        Query::new(Family::Attention, name, &[owned, walked, dv, self.elem, pairs])
    }

    /// The kernel for that.
    pub fn tiled(
        &self,
        l: &mut Lowering,
        name: &'static str,
        entries: Entries,
        bindings: &[Access],
        owned: usize,
        walked: usize,
    ) -> Result<Tiled> {
        let variant = l.choose(self.query(name, owned, walked))?;
        match variant.sizes {
            Shares::Lanes { rows } => {
                let mut c = self.constants();
                c.push(("TM", rows));
                c.push(("KN", if walked > 8 { 2 } else { 1 }));
                let mut kernel = self.finish(entries.lanes, bindings, &c);
                kernel.parts.insert(1, SOURCE_LANES.into());
                kernel.requires.subgroup_size = Some(8);
                kernel.requires.invocations = 8;
                Ok(Tiled { kernel, rows, parts: (1, walked) })
            }
            Shares::Tiled(tile) => {
                let kernel = self.of_tile(entries.tiled, bindings, &tile);
                Ok(Tiled { kernel, rows: tile.rows(), parts: (1, walked) })
            }
            Shares::Parts(tile, wanted) => {
                let groups = owned.div_ceil(tile.rows()) * self.n.batch * self.n.heads;
                let most = walked.div_ceil(tile.columns());
                let span = walked.div_ceil((wanted / groups).clamp(1, most)).next_multiple_of(tile.columns());
                let parts = (walked.div_ceil(span), span);
                let entry = if parts.0 > 1 { entries.parts } else { entries.tiled };
                Ok(Tiled { kernel: self.of_tile(entry, bindings, &tile), rows: tile.rows(), parts })
            }
            other => Err(Error::Internal(format!("attention: {other:?} is no variant of {name}"))),
        }
    }

    /// The kernel that gives every gradient in one workgroup for each pair of batch and head, with the text that says where
    /// they lie; `None` where kernels for the queries and for the keys are to be chosen.
    pub fn whole(&self, l: &mut Lowering, text: &'static str, bindings: &[Access]) -> Result<Option<Kernel>> {
        let variant = l.choose(self.query("backward", self.n.s, self.n.t))?;
        match variant.sizes {
            Shares::Whole(tile) => {
                let mut kernel = self.of_tile("backward_whole", bindings, &tile);
                kernel.parts.splice(1..1, [SOURCE_WHOLE.into(), text.into()]);
                Ok(Some(kernel))
            }
            Shares::Apart => Ok(None),
            other => Err(Error::Internal(format!("attention: {other:?} is no variant of backward"))),
        }
    }

    fn of_tile(&self, entry: &'static str, bindings: &[Access], tile: &Tile) -> Kernel {
        let Tile { nr, nc, rt, ct, dc } = *tile;
        let mut c = self.constants();
        c.extend([("NR", nr), ("NC", nc), ("RT", rt), ("CT", ct), ("DC", dc), ("JT", dc / nc)]);
        c.extend([("IT", dc.div_ceil(nr)), ("NCH", (self.n.head / self.elem).div_ceil(dc))]);
        let mut kernel = self.finish(entry, bindings, &c);
        kernel.requires.invocations = (nr * nc) as u32;
        kernel.requires.workgroup_bytes = bytes(tile, self.elem, entry.starts_with("forward")) as u32;
        kernel
    }

    /// A kernel without tiles.
    pub fn kernel(&self, entry: &'static str, bindings: &[Access]) -> Kernel {
        self.finish(entry, bindings, &self.constants())
    }

    fn constants(&self) -> Vec<(&'static str, usize)> {
        vec![("DV", self.n.head / self.elem)]
    }

    fn finish(&self, entry: &'static str, bindings: &[Access], numbers: &[(&'static str, usize)]) -> Kernel {
        let spec = &self.spec;
        let mut kernel = kernel(entry, bindings, constants(numbers));
        for (name, value) in &mut kernel.constants {
            *value = match *name {
                "MASK" => Const::Bool(spec.mask),
                "BIAS" => Const::Bool(spec.bias),
                "DROPOUT" => Const::Bool(spec.settings.dropout.is_some()),
                "FOUR" => Const::Bool(self.elem == 4),
                "elem" => Const::element(DType::F32, self.elem == 4),
                "stored" => Const::element(self.dtype, self.elem == 4),
                _ => continue,
            };
        }
        kernel.stores_f16(self.dtype == DType::F16)
    }
}

/// All constants of the shader: every entry point needs them to be there, though not to have any meaning.
fn constants(numbers: &[(&'static str, usize)]) -> Vec<(&'static str, Const)> {
    let names = ["DV", "NR", "NC", "RT", "CT", "DC", "JT", "IT", "NCH"];
    let flags = ["MASK", "BIAS", "DROPOUT", "FOUR"];
    let unused = names.iter().filter(|name| !numbers.iter().any(|(n, _)| n == *name));
    let mut constants: Vec<(&'static str, Const)> = unused.map(|name| (*name, Const::U32(1))).collect();
    constants.extend(numbers.iter().map(|&(name, value)| (name, Const::U32(value as u32))));
    constants.extend(flags.map(|name| (name, Const::Bool(false))));
    constants.extend(["elem", "stored"].map(|name| (name, Const::Alias("f32"))));
    constants
}

fn kernel(entry: &'static str, bindings: &[Access], constants: Vec<(&'static str, Const)>) -> Kernel {
    Kernel {
        name: format!("attention/{entry}"),
        parts: parts([SOURCE, lib_wgsl::RANDOM]),
        entry,
        bindings: bindings.to_vec(),
        params: Params::FIELDS,
        constants,
        requires: Requires { invocations: 64, ..Requires::default() },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiles_fit() {
        for variant in Family::Attention.variants() {
            let (Shares::Tiled(tile) | Shares::Parts(tile, _) | Shares::Whole(tile)) = variant.sizes else {
                continue;
            };
            let bytes = bytes(&tile, 4, true);
            assert!(bytes <= 16384, "{}: {bytes}", variant.name());
        }
    }
}

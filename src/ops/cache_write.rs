//! Copies new rows into a cache that lives between runs: keys and values, or decoded ids.

use super::params::params;
use crate::graph::{Graph, Lowering, Op, ValueId};
use crate::kernel::{Access, Const, Dispatch, Kernel, Requires, parts};
use crate::{Error, Result, Tensor64, TensorType};

pub(super) const SOURCE: &str = include_str!("../../shaders/cache_write.wgsl");
const GROUP: u32 = 64;

params! {
    struct Params {
        count: u32,
        width: u32,
        steps: u32,
        positions: u32,
    }
}

/// Inputs: the cache [B, Smax, ..], the rows [B, T, ..], and the first position `u32[1]` if `offset`.
#[derive(Debug)]
struct CacheWrite {
    offset: bool,
}

/// B, Smax, T, W.
fn extents(cache: &TensorType, rows: &TensorType) -> Option<[usize; 4]> {
    let (c, r) = (cache.shape.dims(), rows.shape.dims());
    if c.len() < 2 || c[0] == 0 || c[1] == 0 || cache.dtype != rows.dtype {
        return None;
    }
    let width: usize = c[2..].iter().product();
    let total: usize = r.iter().product();
    // [B, T, W] by name; T is what the extents leave, so that [B] serves for one id a row.
    if r.first() != Some(&c[0]) || width == 0 || total == 0 || !total.is_multiple_of(c[0] * width) {
        return None;
    }
    Some([c[0], c[1], total / (c[0] * width), width])
}

impl Op for CacheWrite {
    fn name(&self) -> &'static str {
        "cache_write"
    }

    fn outputs(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>> {
        if extents(inputs[0], inputs[1]).is_none() {
            let want = format!("{} [B, T, W] with B and W of the cache {}", inputs[0].dtype, inputs[0]);
            return Err(Error::shape("", "rows", want, inputs[1]));
        }
        if self.offset && *inputs[2] != TensorType::u32([1]) {
            return Err(Error::shape("", "offset", TensorType::u32([1]), inputs[2]));
        }
        Ok(Vec::new())
    }

    fn updates(&self) -> Vec<usize> {
        vec![0]
    }

    fn reference(&self, inputs: &[&Tensor64]) -> Vec<Tensor64> {
        let mut cache = inputs[0].clone();
        let c = cache.shape.dims();
        let (positions, width) = (c[1], c[2..].iter().product::<usize>());
        let steps = inputs[1].data.len() / (c[0] * width);
        let first = if self.offset { inputs[2].data[0] as usize } else { 0 };
        for b in 0..c[0] {
            for t in 0..steps {
                for w in 0..width {
                    if first + t < positions {
                        cache.data[(b * positions + first + t) * width + w] =
                            inputs[1].data[(b * steps + t) * width + w];
                    }
                }
            }
        }
        vec![cache]
    }

    fn lower(&self, l: &mut Lowering) -> Result<()> {
        let Some([_, positions, steps, width]) = extents(l.input_type(0), l.input_type(1)) else {
            return Err(Error::Internal("cache_write with other shapes than it was built with".into()));
        };
        // Bits are copied: 16-bit floats by pairs, and one by one only where rows end within a pair.
        let size = l.input_type(0).dtype.bytes();
        let (alias, per) = match width * size {
            bytes if bytes.is_multiple_of(16) => ("vec4<u32>", 16 / size),
            bytes if bytes.is_multiple_of(4) => ("u32", 4 / size),
            _ => ("f16", 1),
        };
        let count = l.input_type(1).shape.elements() / per;
        l.push(Dispatch {
            kernel: Kernel {
                name: "cache_write".into(),
                parts: parts([SOURCE]),
                entry: "cache_write",
                bindings: vec![Access::Update, Access::Read, Access::Read],
                params: Params::FIELDS,
                constants: vec![
                    ("GROUP", Const::U32(GROUP)),
                    ("OFFSET", Const::Bool(self.offset)),
                    ("elem", Const::Alias(alias)),
                ],
                requires: Requires { invocations: GROUP, ..Default::default() },
            }
            .stores_f16(alias == "f16"),
            operands: vec![
                l.input(0).into(),
                l.input(1).into(),
                l.input(if self.offset { 2 } else { 1 }).into(),
            ],
            params: Params {
                count: count as u32,
                width: (width / per) as u32,
                steps: steps as u32,
                positions: positions as u32,
            }
            .bytes(),
            groups: l.groups_1d(count.div_ceil(GROUP as usize))?,
            flops: 0,
        });
        Ok(())
    }
}

/// Copies `rows` `[B, T, ..]` to the positions offset..offset + T of each batch row of `cache` `[B, Smax, ..]`, a state or a
/// part of one, of the same element type; a `rows` of `[B]` is one id for each batch row of a cache `[B, Smax]`. `offset` is
/// an input u32`[1]`, 0 if not given. Positions that the cache does not have are not written. Nodes added later see the new
/// values.
///
/// # Errors
/// When `rows` does not fit `cache`, or `cache` is no state.
pub fn cache_write(g: &mut Graph, cache: ValueId, rows: ValueId, offset: Option<ValueId>) -> Result<()> {
    let mut inputs = vec![cache, rows];
    inputs.extend(offset);
    g.add_node(CacheWrite { offset: offset.is_some() }, &inputs)?;
    Ok(())
}

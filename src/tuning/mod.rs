//! Which variant of a kernel computes what, as data: named variants a family, and rules that choose among them by the
//! device and by shapes. Lowering asks the [`Tuning`] of a [`DeviceProfile`]; nothing here knows a kernel's text.
//!
//! The shipped rules are constants of this crate. A file of measurements on one adapter (`wgformer tune`) puts rules of
//! its own before them; nothing is measured, and nothing changes, by itself.

#[cfg(any(feature = "bench", feature = "import"))]
mod file;
mod table;

#[cfg(any(feature = "bench", feature = "import"))]
pub use file::{MAX_FILE_BYTES, Measured, TuningFile};

use crate::profile::{DeviceClass, DeviceProfile};
use crate::{Error, Result};
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// Kernels of one kind, which share their variants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Family {
    /// Matrix products. Kernels: the forms of the factors, `NN`, `NT`, `TN`, `TT`. Shape: `m`, `n`, `k`, `batch`.
    MatMul,
    /// Attention. Kernels: `forward`, `backward` (where one kernel may give all gradients), `backward_q`, `backward_kv`. Shape:
    /// `owned` rows (queries, or keys for `backward` and `backward_kv`), `walked` rows (the others), `size` of a head in
    /// elements of `unit` floats, `pairs` of batch and head.
    Attention,
    /// Kernels that reduce over rows, by their ops' names. Shape: `rows`, `size` of a row in elements of `unit` floats.
    Rows,
}

/// The most sizes of a shape.
const DIMS: usize = 5;

impl Family {
    /// All of them.
    pub const ALL: [Family; 3] = [Family::MatMul, Family::Attention, Family::Rows];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Family::MatMul => "matmul",
            Family::Attention => "attention",
            Family::Rows => "rows",
        }
    }

    /// The names of the sizes of its shapes.
    pub fn sizes(self) -> &'static [&'static str] {
        match self {
            Family::MatMul => &["m", "n", "k", "batch"],
            Family::Attention => &["owned", "walked", "size", "unit", "pairs"],
            Family::Rows => &["rows", "size", "unit"],
        }
    }

    /// Its kernels.
    pub const fn kernels(self) -> &'static [&'static str] {
        match self {
            Family::MatMul => &["NN", "NT", "TN", "TT"],
            Family::Attention => &["forward", "backward", "backward_q", "backward_kv"],
            Family::Rows => &[
                "argmax",
                "cross_entropy",
                "layer_norm",
                "layer_norm_backward",
                "softmax",
                "softmax_backward",
            ],
        }
    }

    /// Its variants.
    pub fn variants(self) -> impl Iterator<Item = &'static Variant> {
        table::VARIANTS.iter().filter(move |variant| variant.family == self)
    }

    /// Its variant of this name.
    ///
    /// # Errors
    /// When there is none.
    pub fn variant(self, name: &str) -> Result<&'static Variant> {
        self.variants().find(|variant| variant.name == name).ok_or_else(|| {
            let names: Vec<&str> = self.variants().map(|variant| variant.name).collect();
            Error::config(self.name(), format!("has no variant {name:?}; there are {}", names.join(", ")))
        })
    }
}

/// What a variant is to compute.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Query {
    family: Family,
    kernel: &'static str,
    shape: [usize; DIMS],
}

impl Query {
    /// `kernel` is one of the family's kernels, `shape` has its sizes in order; what is missing of them is 1.
    pub(crate) fn new(family: Family, kernel: &'static str, sizes: &[usize]) -> Query {
        let mut shape = [1; DIMS];
        shape.iter_mut().zip(sizes).for_each(|(place, size)| *place = *size);
        Query { family, kernel, shape }
    }

    /// The family.
    pub fn family(&self) -> Family {
        self.family
    }

    /// One of the family's kernels.
    pub fn kernel(&self) -> &'static str {
        self.kernel
    }

    /// The sizes by name, in the order of [`Family::sizes`].
    pub fn shape(&self) -> impl Iterator<Item = (&'static str, usize)> {
        self.family.sizes().iter().copied().zip(self.shape)
    }

    /// Rows and columns that tiles are to cover; 1 where a variant has no tiles in that direction.
    fn extents(&self) -> [usize; 2] {
        match self.family {
            Family::MatMul => [self.shape[table::M], self.shape[table::N]],
            Family::Attention => [self.shape[table::OWNED], 1],
            Family::Rows => [1, 1],
        }
    }

    /// How often that is to be covered.
    fn batch(&self) -> usize {
        match self.family {
            Family::MatMul => self.shape[table::BATCH],
            Family::Attention => self.shape[table::PAIRS],
            Family::Rows => 1,
        }
    }
}

impl fmt::Display for Query {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.family.name(), self.kernel)?;
        self.shape().try_for_each(|(name, size)| write!(f, " {name} {size}"))
    }
}

/// The sub-groups of a device, as a variant or rule wants them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lanes {
    /// Any, or none.
    Any,
    /// No one size.
    Unknown,
    /// One size.
    One,
    /// One of these sizes.
    Of(&'static [u32]),
}

impl Lanes {
    fn allows(self, size: Option<u32>) -> bool {
        match self {
            Lanes::Any => true,
            Lanes::Unknown => size.is_none(),
            Lanes::One => size.is_some(),
            Lanes::Of(list) => size.is_some_and(|n| list.contains(&n)),
        }
    }
}

/// A tile of attention.wgsl: `nr` x `nc` invocations, `rt` rows and `ct` columns each, `dc` of a head at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tile {
    pub nr: usize,
    pub nc: usize,
    pub rt: usize,
    pub ct: usize,
    pub dc: usize,
}

impl Tile {
    /// The rows that a workgroup owns.
    pub fn rows(&self) -> usize {
        self.nr * self.rt
    }

    /// The rows that it walks over at a time.
    pub fn columns(&self) -> usize {
        self.nc * self.ct
    }
}

/// The numbers of a variant, from which lowering makes constants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sizes {
    /// matmul_subgroup.wgsl: rows, and columns of four a lane. k is split for so many workgroups.
    Subgroup { tm: u32, tn: u32, groups: usize },
    /// matmul_tile.wgsl: `tx` x `ty` invocations, `rm` rows and `rn` columns of four each, `slab` of k, and whether the next is
    /// loaded meanwhile.
    Tile { tx: u32, ty: u32, rm: u32, rn: u32, slab: u32, groups: usize, prefetch: bool },
    /// matmul_plain.wgsl: `across` x `down` invocations, of eight rows each.
    Plain { across: u32, down: u32, groups: usize },
    /// matmul_vector.wgsl.
    Vector { columns: u32, slices: u32, rows: u32 },
    /// attention.wgsl.
    Tiled(Tile),
    /// The same with the keys in ranges, for so many workgroups.
    Parts(Tile, usize),
    /// The same with all keys in one workgroup, which gives every gradient.
    Whole(Tile),
    /// Kernels for the gradients of the queries and of the rest, each chosen by itself.
    Apart,
    /// attention_lanes.wgsl: the rows of a workgroup.
    Lanes { rows: usize },
    /// An invocation a row, so many a workgroup.
    Invocation(u32),
    /// A workgroup a row, which is one sub-group.
    OneSubgroup,
    /// A workgroup of so many invocations a row, or as many as the device allows.
    Workgroup(u32),
}

/// A way to compute what a family computes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Variant {
    family: Family,
    name: &'static str,
    /// Those of the family's kernels that it computes.
    kernels: &'static [&'static str],
    lanes: Lanes,
    bounds: Bounds,
    /// What an element of a tile takes, relative to the best variant's: chooses where a rule names several.
    cost: f64,
    pub(crate) sizes: Sizes,
}

impl Variant {
    /// Its family.
    pub fn family(&self) -> Family {
        self.family
    }

    /// Its name, unique in the family.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// What a device lacks for it; `None` where it can run.
    pub fn lacks(&self, profile: &DeviceProfile) -> Option<String> {
        let own = profile.subgroup_size();
        if self.lanes.allows(own) {
            return None;
        }
        let has = own.map_or("none of one size".to_string(), |n| format!("sub-groups of {n}"));
        let needs = match self.lanes {
            Lanes::Of(list) => {
                let list: Vec<String> = list.iter().map(u32::to_string).collect();
                format!("sub-groups of {}", list.join(" or "))
            }
            _ => "sub-groups of one size".to_string(),
        };
        Some(format!("needs {needs}; this adapter has {has}"))
    }

    /// Whether it can compute this on a device.
    pub fn fits(&self, profile: &DeviceProfile, query: &Query) -> bool {
        self.family == query.family
            && (query.kernel.is_empty() || self.kernels.contains(&query.kernel))
            && self.lanes.allows(profile.subgroup_size())
            && within(&self.bounds, &query.shape)
    }

    /// Rows and columns that a workgroup computes.
    fn tile(&self, lanes: u32) -> [usize; 2] {
        match self.sizes {
            Sizes::Subgroup { tm, tn, .. } => [tm as usize, 4 * (tn * lanes) as usize],
            Sizes::Tile { tx, ty, rm, rn, .. } => [(ty * rm) as usize, 4 * (tx * rn) as usize],
            Sizes::Plain { across, down, .. } => [8 * down as usize, 4 * across as usize],
            Sizes::Vector { columns, rows, .. } => [rows as usize, 4 * columns as usize],
            Sizes::Tiled(tile) | Sizes::Parts(tile, _) | Sizes::Whole(tile) => [tile.rows(), 1],
            Sizes::Lanes { rows } => [rows, 1],
            Sizes::Apart | Sizes::Invocation(_) | Sizes::OneSubgroup | Sizes::Workgroup(_) => [1, 1],
        }
    }

    /// The workgroups that cover this.
    fn groups(&self, lanes: u32, query: &Query) -> usize {
        let ([rows, columns], [tm, tn]) = (query.extents(), self.tile(lanes));
        rows.div_ceil(tm) * columns.div_ceil(tn) * query.batch()
    }

    /// What this takes, relative to other variants: the elements in tiles that cover it, those beyond its end included, by
    /// what they cost.
    pub(crate) fn work(&self, profile: &DeviceProfile, query: &Query) -> f64 {
        let lanes = profile.subgroup_size().unwrap_or(1);
        let [tm, tn] = self.tile(lanes);
        self.cost * (self.groups(lanes, query) * tm * tn) as f64
    }
}

/// For each size of a shape the least and the most.
type Bounds = [[usize; 2]; DIMS];

const ALL: Bounds = [[0, usize::MAX]; DIMS];

fn within(bounds: &Bounds, shape: &[usize; DIMS]) -> bool {
    bounds.iter().zip(shape).all(|([least, most], size)| (least..=most).contains(&size))
}

/// What a variant is chosen by.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Rule {
    family: Family,
    /// Empty: any.
    kernel: &'static str,
    class: Option<DeviceClass>,
    /// Only where a function's arrays are in memory.
    arrays_in_memory: bool,
    lanes: Lanes,
    bounds: Bounds,
    /// The least number of workgroups.
    groups: usize,
    /// Of those that can compute it, the cheapest with what its tiles waste.
    variants: &'static [&'static str],
}

impl Rule {
    fn choose(&self, profile: &DeviceProfile, query: &Query) -> Option<&'static Variant> {
        let own = profile.subgroup_size();
        let holds = self.family == query.family
            && (self.kernel.is_empty() || self.kernel == query.kernel)
            && self.class.is_none_or(|class| class == profile.class)
            && (!self.arrays_in_memory || profile.arrays_in_memory)
            && self.lanes.allows(own)
            && within(&self.bounds, &query.shape);
        if !holds {
            return None;
        }
        let named = self.variants.iter().filter_map(|name| self.family.variant(name).ok());
        let enough = |v: &&Variant| v.groups(own.unwrap_or(1), query) >= self.groups;
        let work = |v: &Variant| v.work(profile, query);
        named.filter(|v| v.fits(profile, query)).filter(enough).min_by(|a, b| work(a).total_cmp(&work(b)))
    }
}

/// What lowering chooses variants by. Cheap to clone; the default is what this crate ships.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tuning {
    /// Before those that are shipped.
    own: Arc<[Rule]>,
}

impl Tuning {
    /// This variant wherever it can compute what is asked for, for tests and measurements.
    pub fn forcing(variant: &'static Variant) -> Tuning {
        Tuning { own: Arc::new([one(variant, "", ALL)]) }
    }

    /// This variant for exactly this work.
    #[cfg(feature = "bench")]
    pub(crate) fn only(variant: &'static Variant, query: &Query) -> Tuning {
        Tuning { own: Arc::new([one(variant, query.kernel, query.shape.map(|size| [size, size]))]) }
    }

    /// Whether it is what this crate ships.
    pub fn is_shipped(&self) -> bool {
        self.own.is_empty()
    }

    /// The variant for a device: that of the first rule that holds.
    ///
    /// # Errors
    /// When none holds, which the shipped table leaves to no device.
    pub fn choose(&self, profile: &DeviceProfile, query: &Query) -> Result<&'static Variant> {
        let mut rules = self.own.iter().chain(table::RULES);
        let found = rules.find_map(|rule| rule.choose(profile, query));
        found.ok_or_else(|| Error::Internal(format!("no variant for {query}")))
    }
}

/// A rule of one variant.
fn one(variant: &'static Variant, kernel: &'static str, bounds: Bounds) -> Rule {
    Rule {
        family: variant.family,
        kernel,
        class: None,
        arrays_in_memory: false,
        lanes: Lanes::Any,
        bounds,
        groups: 0,
        variants: std::slice::from_ref(&variant.name),
    }
}

/// A variant that a plan has, and the steps that it computes.
#[derive(Clone, Debug, PartialEq)]
pub struct Choice {
    /// The node: index into [`Graph::nodes`](crate::graph::Graph::nodes).
    pub node: usize,
    /// What it computes.
    pub query: Query,
    /// The variant.
    pub variant: &'static Variant,
    /// Its steps, those that prepare and finish it included, and of `apart` those of the kernels in its place: indices into
    /// [`Plan::steps`](crate::plan::Plan::steps).
    pub steps: Range<usize>,
}

/// The adapter that measurements are of.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(any(feature = "bench", feature = "import"), derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(any(feature = "bench", feature = "import"), serde(deny_unknown_fields))]
pub struct AdapterKey {
    /// The adapter's name.
    pub name: String,
    /// The interface.
    pub backend: String,
    /// The driver's name; empty where the interface does not tell.
    pub driver: String,
    /// The driver's version; empty where the interface does not tell.
    pub driver_version: String,
}

impl fmt::Display for AdapterKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = [&self.name, &self.backend, &self.driver, &self.driver_version];
        let parts: Vec<&str> =
            parts.into_iter().map(String::as_str).filter(|part| !part.is_empty()).collect();
        f.write_str(&parts.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn software(lanes: Option<u32>) -> DeviceProfile {
        let size = lanes.unwrap_or(4);
        DeviceProfile {
            class: DeviceClass::Cpu,
            subgroups: lanes.is_some(),
            subgroup_min: size,
            subgroup_max: size,
            ..DeviceProfile::portable()
        }
    }

    fn devices() -> Vec<DeviceProfile> {
        let gpu = DeviceProfile {
            subgroups: true,
            subgroup_min: 32,
            subgroup_max: 32,
            ..DeviceProfile::portable()
        };
        let cpus = [None, Some(4), Some(8), Some(16), Some(32)].map(software);
        cpus.into_iter().chain([DeviceProfile::portable(), gpu]).collect()
    }

    fn chosen(tuning: &Tuning, profile: &DeviceProfile, query: &Query) -> &'static str {
        tuning.choose(profile, query).unwrap().name
    }

    #[test]
    fn names_are_unique_and_rules_name_variants() {
        for (i, v) in table::VARIANTS.iter().enumerate() {
            assert!(
                table::VARIANTS[..i].iter().all(|w| (w.family, w.name) != (v.family, v.name)),
                "{}",
                v.name
            );
        }
        assert!(Family::ALL.iter().all(|family| family.sizes().len() <= DIMS));
        for rule in table::RULES {
            assert!(rule.variants.iter().all(|name| rule.family.variant(name).is_ok()), "{rule:?}");
            assert!(rule.kernel.is_empty() || rule.family.kernels().contains(&rule.kernel), "{rule:?}");
        }
        let error = Family::Rows.variant("x").unwrap_err().to_string();
        assert!(error.starts_with("rows: has no variant \"x\"; there are invocation, "), "{error}");
    }

    #[test]
    fn every_device_has_a_variant_for_every_shape() {
        let sizes = [1, 2, 3, 4, 5, 8, 9, 16, 17, 33, 64, 65, 1000, 100_000];
        for profile in devices() {
            for family in Family::ALL {
                for kernel in family.kernels() {
                    for a in sizes {
                        for b in sizes {
                            for unit in [1, 4] {
                                let shape = match family {
                                    Family::MatMul => [a, b, 64, unit, 1],
                                    Family::Attention => [a, 9 * b, b, unit, 2 * a],
                                    Family::Rows => [a, b, unit, 1, 1],
                                };
                                let query = Query { family, kernel, shape };
                                let variant = Tuning::default().choose(&profile, &query).unwrap();
                                assert!(variant.fits(&profile, &query), "{query}: {}", variant.name);
                            }
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn the_shipped_rules_choose_by_device_and_shape() {
        let product = |m, n, k| Query::new(Family::MatMul, "NN", &[m, n, k, 1]);
        let attention = |owned, head| Query::new(Family::Attention, "forward", &[owned, 9, head, 4, 2]);
        let decode = |keys, pairs| Query::new(Family::Attention, "forward", &[1, keys, 16, 4, pairs]);
        let backward = |keys, pairs| Query::new(Family::Attention, "backward", &[keys, 64, 16, 4, pairs]);
        let rows = |rows, size| Query::new(Family::Rows, "softmax", &[rows, size, 4]);
        let (avx, none, gpu) = (software(Some(8)), software(None), DeviceProfile::portable());
        for (profile, query, want) in [
            (&avx, product(1, 64, 64), "subgroup 1x2"),
            (&avx, product(3, 32, 64), "subgroup 3x1"),
            (&avx, product(5, 64, 64), "subgroup 4x2"),
            (&avx, product(48, 64, 64), "subgroup 16x2"),
            (&avx, product(512, 512, 512), "subgroup 32x2"),
            (&none, product(512, 512, 512), "tile 64x64"),
            (&gpu, product(3, 512, 512), "vector 4"),
            (&gpu, product(5, 512, 512), "tile 32x32"),
            (&gpu, product(2048, 2048, 512), "tile 128x128 prefetch"),
            (&avx, attention(33, 8), "lanes 24"),
            (&avx, attention(300, 8), "lanes 32"),
            (&avx, attention(300, 32), "lanes 16"),
            (&avx, attention(300, 64), "lanes 8"),
            (&gpu, attention(300, 4), "tiled 64x16x4"),
            (&gpu, attention(9, 8), "tiled 16x32x8"),
            (&gpu, attention(300, 64), "tiled 16x16x16"),
            (&gpu, decode(1000, 8), "split 4x32x16"),
            (&gpu, decode(1000, 1000), "tiled 8x16x16"),
            (&gpu, decode(100, 8), "tiled 8x16x16"),
            (&gpu, backward(16, 64), "whole 16x32x8"),
            (&gpu, backward(17, 64), "whole 32x32x8"),
            (&gpu, backward(33, 64), "apart"),
            (&gpu, backward(16, 8), "apart"),
            (&avx, backward(16, 64), "apart"),
            (&avx, rows(100, 16), "invocation"),
            (&avx, rows(100, 17), "subgroup"),
            (&none, rows(100, 17), "invocation 8"),
            (&none, rows(63, 17), "workgroup 32"),
            (&gpu, rows(63, 65), "workgroup 64"),
            (&gpu, rows(63, 100_000), "workgroup 256"),
        ] {
            assert_eq!(chosen(&Tuning::default(), profile, &query), want, "{query}");
        }
    }

    #[test]
    fn a_forced_variant_is_taken_where_it_can_compute() {
        let variant = Family::MatMul.variant("subgroup 32x1").unwrap();
        let tuning = Tuning::forcing(variant);
        let query = |m| Query::new(Family::MatMul, "NN", &[m, 64, 64, 1]);
        assert_eq!(chosen(&tuning, &software(Some(8)), &query(32)), "subgroup 32x1");
        assert_eq!(chosen(&tuning, &software(Some(8)), &query(31)), "subgroup 16x2");
        assert_eq!(chosen(&tuning, &DeviceProfile::portable(), &query(32)), "tile 32x32");
        let lack = variant.lacks(&DeviceProfile::portable()).unwrap();
        assert_eq!(lack, "needs sub-groups of 4 or 8 or 16; this adapter has none of one size");
        assert_eq!(variant.lacks(&software(Some(4))), None);
        assert!(Tuning::default().is_shipped() && !tuning.is_shipped());
    }
}

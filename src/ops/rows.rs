//! What the kernels over rows share (layer_norm, softmax): how many lanes work on a row, and on which type of element.

use super::lib_wgsl;
use crate::graph::Lowering;
use crate::kernel::{Const, Requires};
use crate::profile::DeviceProfile;
use crate::tuning::{Family, Query, Sizes, Tuning, Variant};
use crate::{Error, Result, TensorType};

/// How rows are shared out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sharing {
    /// One invocation a row, this many a workgroup.
    Invocation(u32),
    /// One workgroup, which is a whole sub-group of this size.
    Subgroup(u32),
    /// One workgroup of this many.
    Workgroup(u32),
}

/// The shape of a kernel over rows.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rows {
    /// Number of rows.
    pub rows: usize,
    /// Elements of a row, in `elem`s.
    pub size: usize,
    /// `elem` is vec4<f32>.
    pub vec4: bool,
    sharing: Sharing,
    /// Rows that a lane works on, one after another.
    together: u32,
}

impl Rows {
    /// For the rows of `ty`; `kernel` is the name that tuning has for what follows.
    pub fn new(l: &mut Lowering, kernel: &'static str, ty: &TensorType) -> Result<Rows> {
        let rows = Rows::alone(ty);
        let variant = l.choose(rows.query(kernel))?;
        rows.shared(l.profile, variant)
    }

    /// One workgroup over all rows, shared out like one row of `ty` wherever that is measured: what a kernel of one
    /// workgroup does is no part of a tuning.
    pub fn one_group(profile: &DeviceProfile, ty: &TensorType) -> Result<Rows> {
        let rows = Rows::alone(ty);
        let variant = Tuning::default().choose(profile, &rows.query(""))?;
        rows.shared(profile, variant)
    }

    /// An invocation a row of `ty`.
    pub fn alone(ty: &TensorType) -> Rows {
        let (rows, length) = (ty.shape.rows(), ty.shape.last());
        let vec4 = length.is_multiple_of(4);
        let size = if vec4 { length / 4 } else { length };
        Rows { rows, size, vec4, sharing: Sharing::Invocation(1), together: 1 }
    }

    fn query(&self, kernel: &'static str) -> Query {
        Query::new(Family::Rows, kernel, &[self.rows, self.size, if self.vec4 { 4 } else { 1 }])
    }

    fn shared(self, profile: &DeviceProfile, variant: &Variant) -> Result<Rows> {
        let sharing = match (variant.sizes, profile.subgroup_size()) {
            (Sizes::Invocation(n), _) => Sharing::Invocation(n),
            (Sizes::OneSubgroup, Some(n)) => Sharing::Subgroup(n),
            (Sizes::Workgroup(n), _) => Sharing::Workgroup(n.min(profile.max_invocations)),
            _ => return Err(Error::Internal(format!("rows: {} is no way to share them", variant.name()))),
        };
        Ok(Rows { sharing, ..self })
    }

    /// Has a sub-group work on several rows, one after another; for kernels that loop over ROWS, and no others.
    ///
    /// A workgroup costs something to start, and gamma and beta something to read: on lavapipe (Mesa 22.3.6, 4096 x 512)
    /// LayerNorm's forward takes 2.1 ms with 16 rows, its backward 2.7, and 4.6 and 5.0 with 1. A GPU wants rows side by
    /// side. Few different numbers, since each is a kernel of its own.
    pub fn several(self) -> Rows {
        let together = match self.sharing {
            Sharing::Subgroup(_) if self.rows >= 2048 => 16,
            Sharing::Subgroup(_) if self.rows >= 256 => 4,
            _ => 1,
        };
        Rows { together, ..self }
    }

    /// The variant's name.
    pub fn variant(&self) -> &'static str {
        match self.sharing {
            Sharing::Invocation(_) => "invocation",
            Sharing::Subgroup(_) => "subgroup",
            Sharing::Workgroup(_) => "workgroup",
        }
    }

    /// Lanes a row.
    pub fn width(&self) -> u32 {
        match self.sharing {
            Sharing::Invocation(_) => 1,
            Sharing::Subgroup(n) | Sharing::Workgroup(n) => n,
        }
    }

    /// Elems that a lane holds of its row.
    pub fn steps(&self) -> usize {
        self.size.div_ceil(self.width() as usize)
    }

    fn group(&self) -> u32 {
        match self.sharing {
            Sharing::Invocation(n) | Sharing::Subgroup(n) | Sharing::Workgroup(n) => n,
        }
    }

    /// The shared text that reduces over a row, and that of the element type.
    pub fn parts(&self) -> [&'static str; 2] {
        let rows = match self.sharing {
            Sharing::Invocation(_) => lib_wgsl::ROWS_INVOCATION,
            Sharing::Subgroup(_) => lib_wgsl::ROWS_SUBGROUP,
            Sharing::Workgroup(_) => lib_wgsl::ROWS_WORKGROUP,
        };
        [rows, if self.vec4 { lib_wgsl::ELEM_VEC4 } else { lib_wgsl::ELEM_F32 }]
    }

    /// SIZE, WIDTH, GROUP and ROWS.
    pub fn constants(&self) -> Vec<(&'static str, Const)> {
        vec![
            ("SIZE", Const::U32(self.size as u32)),
            ("WIDTH", Const::U32(self.width())),
            ("GROUP", Const::U32(self.group())),
            ("ROWS", Const::U32(self.together)),
        ]
    }

    /// What the shared text needs.
    pub fn requires(&self) -> Requires {
        let (subgroup_size, workgroup_bytes) = match self.sharing {
            Sharing::Invocation(_) => (None, 0),
            Sharing::Subgroup(n) => (Some(n), 0),
            Sharing::Workgroup(n) => (None, 8 * n),
        };
        Requires { subgroup_size, workgroup_bytes, invocations: self.group(), ..Default::default() }
    }

    /// The grid.
    pub fn groups(&self, l: &Lowering) -> Result<[u32; 3]> {
        l.groups_1d(self.rows.div_ceil((self.group() / self.width() * self.together) as usize))
    }
}

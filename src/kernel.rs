//! Kernels and dispatches as plain data. Nothing here knows a device: `gpu` turns it into pipelines and passes.
//!
//! A kernel is one entry point of one `.wgsl` file, specialised by text that is appended to it: shared functions from
//! `shaders/lib/` and `const` lines. WGSL resolves module-scope names in any order, so the file reads as it stands and
//! error lines stay right.

use crate::DType;
use crate::graph::ValueId;
use std::borrow::Cow;
use std::fmt::Write;

/// How a kernel uses a storage binding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Access {
    /// `var<storage, read>`.
    Read,
    /// `var<storage, read_write>`, every element of the bound range written before it is read.
    Write,
    /// `var<storage, read_write>`, read and updated in place.
    Update,
}

/// The value of one appended `const` line.
#[derive(Clone, Copy, Debug)]
pub enum Const {
    /// `const NAME = 16u;`
    U32(u32),
    /// `const NAME = true;`
    Bool(bool),
    /// `const NAME = 0.5f;`
    F32(f32),
    /// `alias NAME = vec4<f32>;`
    Alias(&'static str),
}

impl Const {
    /// The type of an element of a binding: of one number, or of four neighbours.
    pub fn element(dtype: DType, vec4: bool) -> Const {
        Const::Alias(match (dtype, vec4) {
            (DType::F32, false) => "f32",
            (DType::F32, true) => "vec4<f32>",
            (DType::F16, false) => "f16",
            (DType::F16, true) => "vec4<f16>",
            (DType::U32, false) => "u32",
            (DType::U32, true) => "vec4<u32>",
        })
    }

    // Floats compare by bits, so that a constant can be a part of a cache key.
    fn key(&self) -> (u8, u32, &'static str) {
        match *self {
            Const::U32(v) => (0, v, ""),
            Const::Bool(v) => (1, v as u32, ""),
            Const::F32(v) => (2, v.to_bits(), ""),
            Const::Alias(v) => (3, 0, v),
        }
    }
}

impl PartialEq for Const {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl Eq for Const {}

impl std::hash::Hash for Const {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.key().hash(state);
    }
}

/// What a kernel needs of a device beyond WebGPU's defaults.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Requires {
    /// Sub-group operations, and that every sub-group has exactly this size.
    pub subgroup_size: Option<u32>,
    /// Bytes of workgroup memory.
    pub workgroup_bytes: u32,
    /// Invocations a workgroup.
    pub invocations: u32,
    /// 16-bit floats in storage buffers: WGSL's extension `f16`.
    pub f16: bool,
}

/// A field of a parameter block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Field {
    /// Its name, the same in Rust and in WGSL.
    pub name: &'static str,
    /// Its type, the same in Rust and in WGSL: `u32`, `i32` or `f32`.
    pub ty: &'static str,
    /// Its first byte.
    pub offset: usize,
}

/// One specialised kernel: also the key of the pipeline cache.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Kernel {
    /// Family and entry, as in the list `ops::FAMILIES`, and the variant: `matmul/subgroup`, `layer_norm/backward`.
    pub name: String,
    /// WGSL texts: the family's file first, then shared text.
    pub parts: Vec<Cow<'static, str>>,
    /// The entry point.
    pub entry: &'static str,
    /// One access for each storage binding of group 0, in binding order from 0.
    pub bindings: Vec<Access>,
    /// The fields of the parameter block, the uniform at group 1, binding 0; empty for a kernel without.
    pub params: &'static [Field],
    /// The appended constants.
    pub constants: Vec<(&'static str, Const)>,
    /// What it needs of the device.
    pub requires: Requires,
}

/// Texts as the parts of a kernel.
pub fn parts(texts: impl IntoIterator<Item = &'static str>) -> Vec<Cow<'static, str>> {
    texts.into_iter().map(Cow::Borrowed).collect()
}

impl Kernel {
    /// The kernel, and where it stores 16-bit floats, that it does: another name, and what it requires.
    pub fn stores_f16(mut self, f16: bool) -> Kernel {
        if f16 {
            self.name.push_str(if self.name.contains('/') { "_f16" } else { "/f16" });
            self.requires.f16 = true;
        }
        self
    }

    /// The whole WGSL text.
    pub fn wgsl(&self) -> String {
        let mut text = String::new();
        if self.requires.f16 {
            // A directive stands before all else; on the first line of the file, so that line numbers stay right.
            text.push_str("enable f16; ");
        }
        for part in &self.parts {
            text.push_str(part);
            text.push('\n');
        }
        for (name, value) in &self.constants {
            // Writing to a String cannot fail.
            let _ = match value {
                Const::U32(v) => writeln!(text, "const {name} = {v}u;"),
                Const::Bool(v) => writeln!(text, "const {name} = {v};"),
                Const::F32(v) => writeln!(text, "const {name} = {v:e}f;"),
                Const::Alias(v) => writeln!(text, "alias {name} = {v};"),
            };
        }
        text
    }
}

/// What a dispatch binds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operand {
    /// A value of the graph.
    Value(ValueId),
    /// Scratch memory of this node, by the number that `Lowering::scratch` gave.
    Scratch(usize),
}

/// A part of an operand, in its elements; those of scratch memory have four bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slice {
    /// The operand.
    pub operand: Operand,
    /// The first element; must be at a multiple of 256 bytes, the default offset alignment.
    pub start: usize,
    /// The number of elements; `None` is all that follow.
    pub len: Option<usize>,
}

impl From<Operand> for Slice {
    fn from(operand: Operand) -> Self {
        Slice { operand, start: 0, len: None }
    }
}

/// One dispatch of a kernel.
#[derive(Clone, Debug)]
pub struct Dispatch {
    /// The kernel.
    pub kernel: Kernel,
    /// One operand for each binding of the kernel.
    pub operands: Vec<Slice>,
    /// The bytes of the parameter block, as [`Kernel::params`] lists its fields; at most 256.
    pub params: Vec<u8>,
    /// Workgroups in x, y, z.
    pub groups: [u32; 3],
    /// Floating-point operations, by formula (a multiply-add is two).
    pub flops: u64,
}

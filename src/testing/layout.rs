//! The buffers that a text declares, read off naga's tree: where each is bound, and where in it the numbers lie.

use super::instrument::Shader;
use super::values::{Kind, Values};
use crate::gpu::{POISON, SoloBinding, SoloKind, poison};
use crate::{Error, Result};
use naga::{AddressSpace, ArraySize, Handle, ScalarKind, Type, TypeInner};

/// A number in a buffer.
#[derive(Clone, Copy, Debug)]
struct Leaf {
    /// Bytes from the start, of the buffer or of the element.
    offset: usize,
    kind: Kind,
}

/// Where the numbers of a buffer lie: first those of a fixed place, then the elements of a run-time sized array.
#[derive(Clone, Debug)]
pub(super) struct Layout {
    head: Vec<Leaf>,
    /// All bytes, where no array follows.
    bytes: usize,
    tail: Option<Tail>,
}

#[derive(Clone, Debug)]
struct Tail {
    offset: usize,
    stride: usize,
    leaves: Vec<Leaf>,
}

/// A variable of the text that is bound to a buffer.
#[derive(Clone, Debug)]
pub(super) struct Variable {
    pub name: String,
    pub at: SoloBinding,
    /// Whether the entry uses it.
    pub used: bool,
    /// Or why it cannot be tested.
    pub layout: Result<Layout, String>,
}

impl Variable {
    /// How it is declared, for messages.
    pub fn declared(&self) -> String {
        let kind = match self.at.kind {
            SoloKind::Uniform => "var<uniform>",
            SoloKind::Read => "var<storage, read>",
            SoloKind::Write => "var<storage, read_write>",
        };
        format!("@group({}) @binding({}) {kind}", self.at.group, self.at.binding)
    }
}

impl Shader {
    /// The variables that are bound from outside.
    ///
    /// # Errors
    /// When the entry uses one that is no buffer.
    pub(super) fn variables(&self) -> Result<Vec<Variable>> {
        let uses = self.info.get_entry_point(self.entry);
        let mut all = Vec::new();
        for (handle, v) in self.module.global_variables.iter() {
            let (Some(at), Some(name)) = (&v.binding, &v.name) else { continue };
            let used = !uses[handle].is_empty();
            let kind = match v.space {
                AddressSpace::Uniform => SoloKind::Uniform,
                AddressSpace::Storage { access } if access.contains(naga::StorageAccess::STORE) => {
                    SoloKind::Write
                }
                AddressSpace::Storage { .. } => SoloKind::Read,
                _ if used => {
                    let problem = "it is a texture or a sampler: only kernels over buffers can be tested";
                    return Err(Error::config(name, problem));
                }
                _ => continue,
            };
            let at = SoloBinding { group: at.group, binding: at.binding, kind };
            all.push(Variable { name: name.clone(), at, used, layout: self.layout(v.ty) });
        }
        Ok(all)
    }

    fn layout(&self, ty: Handle<Type>) -> Result<Layout, String> {
        let types = &self.module.types;
        let mut head = Vec::new();
        let mut array = Some((ty, 0));
        if let TypeInner::Struct { members, span } = &types[ty].inner {
            array = None;
            for m in members {
                if is_open(&types[m.ty].inner) {
                    array = Some((m.ty, m.offset as usize));
                } else {
                    self.leaves(m.ty, m.offset as usize, &mut head)?;
                }
            }
            if array.is_none() {
                return Ok(Layout { head, bytes: *span as usize, tail: None });
            }
        }
        match array.map(|(ty, offset)| (&types[ty].inner, offset)) {
            Some((TypeInner::Array { base, size: ArraySize::Dynamic, stride }, offset)) => {
                let mut leaves = Vec::new();
                self.leaves(*base, 0, &mut leaves)?;
                let tail = Tail { offset, stride: *stride as usize, leaves };
                Ok(Layout { head, bytes: 0, tail: Some(tail) })
            }
            _ => {
                self.leaves(ty, 0, &mut head)?;
                let bytes = types[ty].inner.try_size(self.module.to_ctx());
                let bytes = bytes.ok_or("its size is not known before it runs")? as usize;
                Ok(Layout { head, bytes, tail: None })
            }
        }
    }

    fn leaves(&self, ty: Handle<Type>, offset: usize, out: &mut Vec<Leaf>) -> Result<(), String> {
        let kind = |s: naga::Scalar| match (s.kind, s.width) {
            (ScalarKind::Float, 4) => Ok(Kind::F32),
            (ScalarKind::Uint, 4) => Ok(Kind::U32),
            (ScalarKind::Sint, 4) => Ok(Kind::I32),
            _ => Err("it holds numbers other than f32, u32 and i32, which can not be tested".to_string()),
        };
        match &self.module.types[ty].inner {
            TypeInner::Scalar(s) | TypeInner::Atomic(s) => out.push(Leaf { offset, kind: kind(*s)? }),
            TypeInner::Vector { size, scalar } => {
                let kind = kind(*scalar)?;
                out.extend((0..*size as usize).map(|i| Leaf { offset: offset + 4 * i, kind }));
            }
            TypeInner::Matrix { columns, rows, scalar } => {
                let kind = kind(*scalar)?;
                // A column is aligned like a vector of its rows.
                let stride = if *rows == naga::VectorSize::Bi { 8 } else { 16 };
                for column in 0..*columns as usize {
                    let start = offset + stride * column;
                    out.extend((0..*rows as usize).map(|i| Leaf { offset: start + 4 * i, kind }));
                }
            }
            TypeInner::Array { base, size: ArraySize::Constant(n), stride } => {
                for i in 0..n.get() as usize {
                    self.leaves(*base, offset + i * *stride as usize, out)?;
                }
            }
            TypeInner::Struct { members, .. } => {
                for m in members {
                    self.leaves(m.ty, offset + m.offset as usize, out)?;
                }
            }
            _ => return Err("it holds something other than numbers, which can not be tested".to_string()),
        }
        Ok(())
    }
}

fn is_open(ty: &TypeInner) -> bool {
    matches!(ty, TypeInner::Array { size: ArraySize::Dynamic, .. })
}

impl Layout {
    /// The bytes of a buffer of so many numbers.
    ///
    /// # Errors
    /// When the type has another number of them: then the message says which would be right.
    pub fn bytes(&self, numbers: usize) -> Result<usize, String> {
        let head = self.head.len();
        let Some(tail) = &self.tail else {
            return match numbers == head {
                true => Ok(self.bytes),
                false => Err(format!("{numbers} numbers given, but its type has {head}")),
            };
        };
        let each = tail.leaves.len();
        if numbers < head + each || !(numbers - head).is_multiple_of(each) {
            let first = if head > 0 { format!("{head} numbers and then ") } else { String::new() };
            let many = if each > 1 { format!("a multiple of {each}") } else { "one or more".to_string() };
            return Err(format!("{numbers} numbers given, but its type has {first}{many}"));
        }
        Ok(tail.offset + (numbers - head) / each * tail.stride)
    }

    /// By how much `arrayLength` grows with this many bytes more.
    pub fn longer(&self, bytes: usize, more: usize) -> Option<usize> {
        let tail = self.tail.as_ref()?;
        let length = |bytes: usize| (bytes - tail.offset) / tail.stride;
        Some(length(bytes + more) - length(bytes))
    }

    fn leaf(&self, i: usize) -> Leaf {
        match (&self.tail, i.checked_sub(self.head.len())) {
            (Some(tail), Some(i)) => {
                let leaf = tail.leaves[i % tail.leaves.len()];
                let element = i / tail.leaves.len();
                Leaf { offset: tail.offset + element * tail.stride + leaf.offset, ..leaf }
            }
            _ => self.head[i],
        }
    }

    /// The bytes of these values; padding is poison.
    ///
    /// # Errors
    /// When the type has another number of them, or of another kind.
    pub fn write(&self, values: &Values) -> Result<Vec<u8>, String> {
        let mut bytes = poison(self.bytes(values.0.len())?);
        for (i, &(kind, word)) in values.0.iter().enumerate() {
            let leaf = self.leaf(i);
            if leaf.kind != kind {
                return Err(format!("number {i} is given as {kind}, but is {} in the text", leaf.kind));
            }
            bytes[leaf.offset..leaf.offset + 4].copy_from_slice(&word.to_le_bytes());
        }
        Ok(bytes)
    }

    /// So many numbers, of what kind each is.
    pub fn kinds(&self, numbers: usize) -> Vec<Kind> {
        (0..numbers).map(|i| self.leaf(i).kind).collect()
    }

    /// The bits of so many numbers, padding left out.
    pub fn read(&self, bytes: &[u8], numbers: usize) -> Vec<u32> {
        let word = |i: usize| {
            let at = self.leaf(i).offset;
            bytes.get(at..at + 4).and_then(|b| b.try_into().ok()).map_or(POISON, u32::from_le_bytes)
        };
        (0..numbers).map(word).collect()
    }

    /// The number that a byte belongs to, where the numbers lie without gaps; also beyond the end.
    pub fn number_at(&self, byte: i64) -> Option<i64> {
        let dense = match &self.tail {
            Some(tail) => tail.stride == 4 * tail.leaves.len() && tail.offset == 4 * self.head.len(),
            None => self.bytes == 4 * self.head.len(),
        };
        dense.then(|| byte.div_euclid(4))
    }
}

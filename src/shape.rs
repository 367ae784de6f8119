//! Shapes and element types of tensors. Tensors are dense and row-major everywhere.

use std::fmt;

/// The extents of a dense row-major tensor, outermost first. An empty shape is a scalar.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Shape(Vec<usize>);

impl Shape {
    /// The extents.
    pub fn dims(&self) -> &[usize] {
        &self.0
    }

    /// The number of dimensions.
    pub fn rank(&self) -> usize {
        self.0.len()
    }

    /// The number of elements.
    pub fn elements(&self) -> usize {
        self.0.iter().product()
    }

    /// The innermost extent (1 for a scalar): the length of a row.
    pub fn last(&self) -> usize {
        self.0.last().copied().unwrap_or(1)
    }

    /// The number of rows: the product of all extents but the innermost.
    pub fn rows(&self) -> usize {
        self.0.split_last().map_or(1, |(_, outer)| outer.iter().product())
    }

    /// This shape with another innermost extent.
    pub fn with_last(&self, last: usize) -> Self {
        let mut dims = self.0.clone();
        match dims.last_mut() {
            Some(d) => *d = last,
            None => dims.push(last),
        }
        Shape(dims)
    }
}

impl From<usize> for Shape {
    fn from(length: usize) -> Self {
        Shape(vec![length])
    }
}

impl<const N: usize> From<[usize; N]> for Shape {
    fn from(dims: [usize; N]) -> Self {
        Shape(dims.to_vec())
    }
}

impl From<&[usize]> for Shape {
    fn from(dims: &[usize]) -> Self {
        Shape(dims.to_vec())
    }
}

impl From<Vec<usize>> for Shape {
    fn from(dims: Vec<usize>) -> Self {
        Shape(dims)
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[")?;
        for (i, d) in self.0.iter().enumerate() {
            if i > 0 {
                f.write_str(", ")?;
            }
            write!(f, "{d}")?;
        }
        f.write_str("]")
    }
}

impl fmt::Debug for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The type of a tensor's elements on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DType {
    /// 32-bit floating point.
    F32,
    /// 16-bit floating point: 11 bits of precision, at most 65504. Storage only: kernels compute in 32 bits.
    F16,
    /// 32-bit unsigned integer: ids, lengths, seeds, boolean masks (0 or 1).
    U32,
}

impl DType {
    /// The bytes of an element.
    pub fn bytes(self) -> usize {
        match self {
            DType::F32 | DType::U32 => 4,
            DType::F16 => 2,
        }
    }

    /// Whether it is floating point.
    pub fn is_float(self) -> bool {
        matches!(self, DType::F32 | DType::F16)
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            DType::F32 => "f32",
            DType::F16 => "f16",
            DType::U32 => "u32",
        })
    }
}

/// Shape and element type of a tensor.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TensorType {
    /// The extents.
    pub shape: Shape,
    /// The element type.
    pub dtype: DType,
}

impl TensorType {
    /// A tensor of elements of this type.
    pub fn new(dtype: DType, shape: impl Into<Shape>) -> Self {
        TensorType { shape: shape.into(), dtype }
    }

    /// A tensor of 32-bit floats.
    pub fn f32(shape: impl Into<Shape>) -> Self {
        TensorType { shape: shape.into(), dtype: DType::F32 }
    }

    /// A tensor of 16-bit floats.
    pub fn f16(shape: impl Into<Shape>) -> Self {
        TensorType::new(DType::F16, shape)
    }

    /// A tensor of 32-bit unsigned integers.
    pub fn u32(shape: impl Into<Shape>) -> Self {
        TensorType { shape: shape.into(), dtype: DType::U32 }
    }

    /// Its size in a buffer, in bytes: a multiple of 4, so an odd number of 16-bit floats has two bytes behind it that mean
    /// nothing.
    pub fn bytes(&self) -> u64 {
        (self.shape.elements() as u64 * self.dtype.bytes() as u64).next_multiple_of(4)
    }
}

impl fmt::Display for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.dtype, self.shape)
    }
}

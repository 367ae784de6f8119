//! Tensors on the host: bytes for the device, f64 for the reference.

use crate::{DType, Error, Result, Shape, TensorType};

/// A tensor in f64, which the references compute with. Integers are held exactly.
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor64 {
    /// The extents.
    pub shape: Shape,
    /// The elements, row-major.
    pub data: Vec<f64>,
}

impl Tensor64 {
    /// A tensor of these elements; their number must be that of the shape.
    pub fn new(shape: impl Into<Shape>, data: Vec<f64>) -> Self {
        let shape = shape.into();
        debug_assert_eq!(shape.elements(), data.len());
        Tensor64 { shape, data }
    }

    /// A tensor of zeros.
    pub fn zeros(shape: impl Into<Shape>) -> Self {
        let shape = shape.into();
        Tensor64 { data: vec![0.0; shape.elements()], shape }
    }

    /// A tensor with the element `f(i)` at each flat index `i`.
    pub fn from_fn(shape: impl Into<Shape>, f: impl FnMut(usize) -> f64) -> Self {
        let shape = shape.into();
        Tensor64 { data: (0..shape.elements()).map(f).collect(), shape }
    }

    /// The element at a flat index as an unsigned integer.
    pub fn u32(&self, i: usize) -> u32 {
        self.data[i] as u32
    }

    /// The elements of row `r`, a row being the innermost dimension.
    pub fn row(&self, r: usize) -> &[f64] {
        let n = self.shape.last();
        &self.data[r * n..(r + 1) * n]
    }
}

/// A tensor on the host with the bits that the device sees.
#[derive(Clone, Debug, PartialEq)]
pub enum HostTensor {
    /// 32-bit floats.
    F32(Shape, Vec<f32>),
    /// 32-bit unsigned integers.
    U32(Shape, Vec<u32>),
}

impl HostTensor {
    /// A tensor of floats.
    pub fn f32(shape: impl Into<Shape>, data: Vec<f32>) -> Self {
        HostTensor::F32(shape.into(), data)
    }

    /// A tensor of unsigned integers.
    pub fn u32(shape: impl Into<Shape>, data: Vec<u32>) -> Self {
        HostTensor::U32(shape.into(), data)
    }

    /// Shape and element type.
    pub fn ty(&self) -> TensorType {
        match self {
            HostTensor::F32(s, _) => TensorType { shape: s.clone(), dtype: DType::F32 },
            HostTensor::U32(s, _) => TensorType { shape: s.clone(), dtype: DType::U32 },
        }
    }

    /// The bytes as the device sees them.
    pub fn bytes(&self) -> &[u8] {
        match self {
            HostTensor::F32(_, d) => bytemuck::cast_slice(d),
            HostTensor::U32(_, d) => bytemuck::cast_slice(d),
        }
    }

    /// The elements in f64.
    pub fn to_f64(&self) -> Tensor64 {
        match self {
            HostTensor::F32(s, d) => Tensor64::new(s.clone(), d.iter().map(|&x| x as f64).collect()),
            HostTensor::U32(s, d) => Tensor64::new(s.clone(), d.iter().map(|&x| x as f64).collect()),
        }
    }

    /// The floats, or an error that names `what`.
    pub fn as_f32(&self, what: &str) -> Result<&[f32]> {
        match self {
            HostTensor::F32(_, d) => Ok(d),
            HostTensor::U32(..) => Err(Error::shape("read", what, "f32", "u32")),
        }
    }

    /// The integers, or an error that names `what`.
    pub fn as_u32(&self, what: &str) -> Result<&[u32]> {
        match self {
            HostTensor::U32(_, d) => Ok(d),
            HostTensor::F32(..) => Err(Error::shape("read", what, "u32", "f32")),
        }
    }
}

//! Tensors on the host: bytes for the device, f64 for the reference.

use crate::{DType, Error, Result, Shape, TensorType};
use half::f16;

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

/// The nearest 16-bit floats, or an error that names `what`.
pub(crate) fn round_to_f16(data: &[f32], what: &str) -> Result<Vec<f16>> {
    if let Some(x) = data.iter().find(|x| !f16::from_f32(**x).is_finite()) {
        let problem =
            format!("{what} has the value {x}, which 16-bit floats cannot hold: use the precision f32");
        return Err(Error::Input(problem));
    }
    Ok(data.iter().map(|&x| f16::from_f32(x)).collect())
}

/// A tensor on the host with the bits that the device sees.
#[derive(Clone, Debug, PartialEq)]
pub enum HostTensor {
    /// 32-bit floats.
    F32(Shape, Vec<f32>),
    /// 16-bit floats.
    F16(Shape, Vec<f16>),
    /// 32-bit unsigned integers.
    U32(Shape, Vec<u32>),
}

impl HostTensor {
    /// A tensor of floats.
    pub fn f32(shape: impl Into<Shape>, data: Vec<f32>) -> Self {
        HostTensor::F32(shape.into(), data)
    }

    /// A tensor of 16-bit floats.
    pub fn f16(shape: impl Into<Shape>, data: Vec<f16>) -> Self {
        HostTensor::F16(shape.into(), data)
    }

    /// A tensor of the nearest 16-bit floats to these numbers.
    ///
    /// # Errors
    /// Names `what`, where a number is beyond their range (65504, or 65520 that rounds to it).
    pub fn rounded_to_f16(shape: impl Into<Shape>, data: &[f32], what: &str) -> Result<Self> {
        Ok(HostTensor::f16(shape, round_to_f16(data, what)?))
    }

    /// The tensor of this type whose elements are the first of these bytes, as the device has them.
    pub(crate) fn from_bytes(ty: &TensorType, bytes: &[u8]) -> Self {
        let bytes = &bytes[..ty.shape.elements() * ty.dtype.bytes()];
        match ty.dtype {
            DType::F32 => HostTensor::F32(ty.shape.clone(), bytemuck::pod_collect_to_vec(bytes)),
            DType::F16 => HostTensor::F16(ty.shape.clone(), bytemuck::pod_collect_to_vec(bytes)),
            DType::U32 => HostTensor::U32(ty.shape.clone(), bytemuck::pod_collect_to_vec(bytes)),
        }
    }

    /// A tensor of unsigned integers.
    pub fn u32(shape: impl Into<Shape>, data: Vec<u32>) -> Self {
        HostTensor::U32(shape.into(), data)
    }

    /// Shape and element type.
    pub fn ty(&self) -> TensorType {
        match self {
            HostTensor::F32(s, _) => TensorType::f32(s.clone()),
            HostTensor::F16(s, _) => TensorType::f16(s.clone()),
            HostTensor::U32(s, _) => TensorType::u32(s.clone()),
        }
    }

    /// The bytes as the device sees them; a buffer has two more behind an odd number of 16-bit floats.
    pub fn bytes(&self) -> &[u8] {
        match self {
            HostTensor::F32(_, d) => bytemuck::cast_slice(d),
            HostTensor::F16(_, d) => bytemuck::cast_slice(d),
            HostTensor::U32(_, d) => bytemuck::cast_slice(d),
        }
    }

    /// The elements in f64.
    pub fn to_f64(&self) -> Tensor64 {
        match self {
            HostTensor::F32(s, d) => Tensor64::new(s.clone(), d.iter().map(|&x| x as f64).collect()),
            HostTensor::F16(s, d) => Tensor64::new(s.clone(), d.iter().map(|x| x.to_f64()).collect()),
            HostTensor::U32(s, d) => Tensor64::new(s.clone(), d.iter().map(|&x| x as f64).collect()),
        }
    }

    /// The floats, or an error that names `what`.
    pub fn as_f32(&self, what: &str) -> Result<&[f32]> {
        match self {
            HostTensor::F32(_, d) => Ok(d),
            other => Err(Error::shape("read", what, "f32", other.ty().dtype)),
        }
    }

    /// The integers, or an error that names `what`.
    pub fn as_u32(&self, what: &str) -> Result<&[u32]> {
        match self {
            HostTensor::U32(_, d) => Ok(d),
            other => Err(Error::shape("read", what, "u32", other.ty().dtype)),
        }
    }
}

//! `diverged.safetensors`: what a node that did not agree with its reference had read.

use super::OutputFolder;
use crate::verify::Trouble;
use crate::{DType, Error, Result};
use safetensors::{Dtype, tensor::TensorView};
use std::collections::HashMap;

/// The file's name.
pub const DIVERGED_FILE: &str = "diverged.safetensors";

/// Writes the inputs of the node in trouble, with its label, step of the plan and problem as metadata.
///
/// # Errors
/// When the file cannot be written.
pub fn save_trouble(folder: &OutputFolder, trouble: &Trouble) -> Result<()> {
    folder.write(DIVERGED_FILE, &to_bytes(trouble)?)
}

fn to_bytes(trouble: &Trouble) -> Result<Vec<u8>> {
    let internal = |error: safetensors::SafeTensorError| Error::Internal(error.to_string());
    let views = trouble
        .inputs
        .iter()
        .map(|(name, tensor)| {
            let ty = tensor.ty();
            let dtype = match ty.dtype {
                DType::F32 => Dtype::F32,
                DType::F16 => Dtype::F16,
                DType::U32 => Dtype::U32,
            };
            let view = TensorView::new(dtype, ty.shape.dims().to_vec(), tensor.bytes());
            Ok((name, view.map_err(internal)?))
        })
        .collect::<Result<Vec<_>>>()?;
    let metadata = HashMap::from([
        ("label".to_string(), trouble.label.clone()),
        ("step".to_string(), trouble.step.to_string()),
        ("problem".to_string(), trouble.to_string()),
    ]);
    safetensors::serialize(views, Some(metadata)).map_err(internal)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::HostTensor;
    use crate::verify::Problem;
    use safetensors::SafeTensors;

    #[test]
    fn inputs_come_back_with_their_names() {
        let x = HostTensor::f32([2, 3], vec![0.5; 6]);
        let trouble = Trouble {
            label: "encoder/matmul/tile".into(),
            kernels: vec!["matmul/tile".into()],
            step: 7,
            tensor: "y".into(),
            problem: Problem::Unwritten(1, 6, 5),
            inputs: vec![("x".into(), x.clone()), ("ids".into(), HostTensor::u32([1], vec![9]))],
        };
        let bytes = to_bytes(&trouble).unwrap();
        let read = SafeTensors::deserialize(&bytes).unwrap();
        assert_eq!(read.tensor("x").unwrap().data(), x.bytes());
        assert_eq!(read.tensor("x").unwrap().shape(), [2, 3]);
        assert_eq!(read.tensor("ids").unwrap().dtype(), Dtype::U32);
        let (_, header) = SafeTensors::read_metadata(&bytes).unwrap();
        let metadata = header.metadata().clone().unwrap();
        assert_eq!(metadata["label"], "encoder/matmul/tile");
        assert!(metadata["problem"].contains("1 of 6 elements were left unwritten"), "{metadata:?}");
    }
}

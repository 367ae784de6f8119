//! `model.safetensors`: parameters by name.

use super::files::Files;
use super::{Precision, WEIGHTS_FILE};
use crate::nn::ParameterLayout;
use crate::{Error, HostTensor, Result, Shape};
use half::{bf16, f16};
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use std::collections::HashMap;
use std::path::Path;

/// What names and shapes may take before the numbers.
const MAX_HEADER_BYTES: u64 = 64 << 20;

/// The file's bytes.
pub(crate) fn to_bytes(
    layout: &ParameterLayout,
    parameters: &HashMap<String, HostTensor>,
    precision: Precision,
) -> Result<Vec<u8>> {
    let mut numbers: Vec<(&str, Vec<usize>, Vec<u8>)> = Vec::new();
    for p in layout.parameters() {
        let got = parameters.get(&p.name);
        let Some(tensor) = got.filter(|t| t.ty().shape == p.shape) else {
            let got = got.map_or("nothing".to_string(), |t| t.ty().to_string());
            return Err(Error::shape("model", p.name.clone(), &p.shape, got));
        };
        let values = tensor.as_f32(&p.name)?;
        let bytes = match precision {
            Precision::F32 => values.iter().flat_map(|x| x.to_le_bytes()).collect(),
            Precision::F16 => {
                if let Some(x) = values.iter().find(|x| !f16::from_f32(**x).is_finite()) {
                    let problem = format!("{} has the value {x}, which 16-bit floats cannot hold", p.name);
                    return Err(Error::config("precision", problem));
                }
                values.iter().flat_map(|x| f16::from_f32(*x).to_le_bytes()).collect()
            }
        };
        numbers.push((&p.name, p.shape.dims().to_vec(), bytes));
    }
    let dtype = match precision {
        Precision::F32 => Dtype::F32,
        Precision::F16 => Dtype::F16,
    };
    let internal = |error: safetensors::SafeTensorError| Error::Internal(error.to_string());
    let views = numbers
        .iter()
        .map(|(name, shape, bytes)| {
            Ok((*name, TensorView::new(dtype, shape.clone(), bytes).map_err(internal)?))
        })
        .collect::<Result<Vec<_>>>()?;
    safetensors::serialize(views, None).map_err(internal)
}

/// Reads the parameters of a folder, exactly those of `layout`.
pub(super) fn read(files: &dyn Files, layout: &ParameterLayout) -> Result<HashMap<String, HostTensor>> {
    let most = layout.elements() as u64 * 4 + MAX_HEADER_BYTES;
    from_bytes(&files.read(WEIGHTS_FILE, most)?, &files.path(WEIGHTS_FILE), layout)
}

/// The parameters in a file's bytes, exactly those of `layout`.
pub(crate) fn from_bytes(
    bytes: &[u8],
    path: &Path,
    layout: &ParameterLayout,
) -> Result<HashMap<String, HostTensor>> {
    let expected: Vec<_> = layout.parameters().iter().map(|p| (p.name.as_str(), p.shape.clone())).collect();
    Ok(tensors(bytes, path, &expected)?.0)
}

/// The tensors of a file, exactly those that are expected, as 32-bit floats; and the texts in its header.
pub(super) fn tensors(
    bytes: &[u8],
    path: &Path,
    expected: &[(&str, Shape)],
) -> Result<(HashMap<String, HostTensor>, HashMap<String, String>)> {
    let file = |problem: String| Error::file(path, problem);
    let (header, metadata) = match SafeTensors::read_metadata(bytes) {
        Ok(read) => read,
        Err(error) => {
            let problem = match expected_bytes(bytes) {
                Some(expected) if (bytes.len() as u64) < expected => {
                    format!("is truncated: it has {} of {expected} bytes", bytes.len())
                }
                _ => format!("is no safetensors file: {error}"),
            };
            return Err(file(problem));
        }
    };
    let found = metadata.tensors();
    let mut tensors = HashMap::new();
    for (name, shape) in expected {
        let Some(info) = found.get(*name) else {
            return Err(file(format!("the tensor {name} {shape} is missing")));
        };
        if info.shape != shape.dims() {
            let got = shape_text(&info.shape);
            return Err(file(format!("the tensor {name} has the shape {got}, but should have {shape}")));
        }
        // In bounds: the crate has checked it.
        let data = &bytes[8 + header + info.data_offsets.0..8 + header + info.data_offsets.1];
        let values: Vec<f32> = match info.dtype {
            Dtype::F32 => {
                data.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
            }
            Dtype::F16 => data.chunks_exact(2).map(|b| f16::from_le_bytes([b[0], b[1]]).to_f32()).collect(),
            Dtype::BF16 => data.chunks_exact(2).map(|b| bf16::from_le_bytes([b[0], b[1]]).to_f32()).collect(),
            other => {
                let problem = format!("the tensor {name} has numbers of type {other}, not F32, F16 or BF16");
                return Err(file(problem));
            }
        };
        if let Some(x) = values.iter().find(|x| !x.is_finite()) {
            return Err(file(format!("the tensor {name} holds {x}")));
        }
        tensors.insert(name.to_string(), HostTensor::f32(shape.clone(), values));
    }
    let mut extra: Vec<&String> = found.keys().filter(|name| !tensors.contains_key(*name)).collect();
    extra.sort();
    if let Some(name) = extra.first() {
        return Err(file(format!("the tensor {name} is none of the model that config.toml describes")));
    }
    Ok((tensors, metadata.metadata().clone().unwrap_or_default()))
}

fn shape_text(shape: &[usize]) -> String {
    // A shape from outside may have more dimensions than ours can.
    if shape.len() <= 4 { Shape::from(shape).to_string() } else { format!("{shape:?}") }
}

/// The bytes that the file should have by its own header; `None` where even that cannot be read. A look only, to
/// tell a truncated file from one of another kind.
fn expected_bytes(bytes: &[u8]) -> Option<u64> {
    let length = u64::from_le_bytes(bytes.get(..8)?.try_into().ok()?);
    let end = usize::try_from(length.checked_add(8)?).ok()?;
    // In other files, these bytes make a number far above this.
    if length > MAX_HEADER_BYTES {
        return None;
    }
    let Some(header) = bytes.get(8..end) else {
        return bytes.get(8).is_none_or(|&b| b == b'{').then_some(end as u64);
    };
    let header: serde_json::Map<String, serde_json::Value> = serde_json::from_slice(header).ok()?;
    let ends = header.values().filter_map(|tensor| tensor.get("data_offsets")?.get(1)?.as_u64());
    (end as u64).checked_add(ends.max()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nn::{Transformer, TransformerConfig};

    fn model() -> (Transformer, HashMap<String, HostTensor>) {
        let config = TransformerConfig {
            source_vocabulary: 7,
            target_vocabulary: 9,
            width: 64,
            heads: 2,
            feed_forward: 64,
            encoder_layers: 1,
            decoder_layers: 1,
            max_source: 8,
            max_target: 8,
            ..Default::default()
        };
        let model = Transformer::new(config).unwrap();
        let tensors = model.layout().parameters().iter();
        let tensors =
            tensors.map(|p| (p.name.clone(), HostTensor::f32(p.shape.clone(), p.initial(3)))).collect();
        (model, tensors)
    }

    fn load(bytes: &[u8], model: &Transformer) -> Result<HashMap<String, HostTensor>, String> {
        from_bytes(bytes, Path::new("m.safetensors"), model.layout()).map_err(|error| error.to_string())
    }

    #[test]
    fn parameters_come_back() {
        let (model, tensors) = model();
        let bytes = to_bytes(model.layout(), &tensors, Precision::F32).unwrap();
        assert_eq!(load(&bytes, &model).unwrap(), tensors);
        assert_eq!(to_bytes(model.layout(), &tensors, Precision::F32).unwrap(), bytes);
        let half = to_bytes(model.layout(), &tensors, Precision::F16).unwrap();
        assert!(half.len() < bytes.len() * 2 / 3);
        for (name, tensor) in load(&half, &model).unwrap() {
            let (got, want) = (tensor.as_f32("").unwrap(), tensors[&name].as_f32("").unwrap());
            let close = got.iter().zip(want).all(|(g, w)| (g - w).abs() <= w.abs() * 5e-4 + 1e-7);
            assert!(close, "{name}");
        }
    }

    #[test]
    fn every_truncation_is_named() {
        let (model, tensors) = model();
        let bytes = to_bytes(model.layout(), &tensors, Precision::F32).unwrap();
        for n in (0..8).chain((8..bytes.len()).step_by(97)).chain([bytes.len() - 1]) {
            let message = load(&bytes[..n], &model).unwrap_err();
            let want = if n < 8 { "is no safetensors file" } else { "is truncated: it has" };
            assert!(message.starts_with("m.safetensors: ") && message.contains(want), "{n}: {message}");
        }
    }

    #[test]
    fn hostile_files_are_refused() {
        let (model, tensors) = model();
        let with_header = |header: &str, data: usize| {
            let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
            bytes.extend(header.bytes());
            bytes.resize(bytes.len() + data, 0);
            bytes
        };
        let cases: [(Vec<u8>, &str); 8] = [
            (b"PK\x03\x04 some other kind of file".to_vec(), "is no safetensors file"),
            (u64::MAX.to_le_bytes().to_vec(), "is no safetensors file"),
            (with_header("{", 0), "is no safetensors file"),
            (with_header("{}", 0), "is missing"),
            (with_header("{}", 4), "is no safetensors file"),
            (with_header(r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,400]}}"#, 4), "is truncated"),
            (
                with_header(
                    r#"{"a":{"dtype":"F32","shape":[4611686018427387904,8],"data_offsets":[0,4]}}"#,
                    4,
                ),
                "is no safetensors file",
            ),
            (with_header(r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#, 4), "is missing"),
        ];
        for (bytes, problem) in cases {
            let message = load(&bytes, &model).unwrap_err();
            assert!(message.contains(problem), "{message}, expected {problem}");
        }
        // Random damage must be refused or read, and nothing else.
        let bytes = to_bytes(model.layout(), &tensors, Precision::F32).unwrap();
        let mut rng = crate::rng::Rng::new(5);
        for _ in 0..2000 {
            let mut bytes = bytes.clone();
            for _ in 0..3 {
                let i = rng.below(2000.min(bytes.len() as u64)) as usize;
                bytes[i] = rng.below(256) as u8;
            }
            let _ = load(&bytes, &model);
        }
    }

    #[test]
    fn the_tensor_that_does_not_fit_is_named() {
        let (model, tensors) = model();
        let write = |change: &dyn Fn(&mut HashMap<String, HostTensor>)| {
            let mut tensors = tensors.clone();
            change(&mut tensors);
            let bytes: Vec<(String, Vec<usize>, Vec<u8>)> = tensors
                .iter()
                .map(|(name, t)| (name.clone(), t.ty().shape.dims().to_vec(), t.bytes().to_vec()))
                .collect();
            let views = bytes.iter().map(|(n, s, b)| (n, TensorView::new(Dtype::F32, s.clone(), b).unwrap()));
            load(&safetensors::serialize(views, None).unwrap(), &model).unwrap_err()
        };
        let name = &model.layout().parameters()[3].name;
        let message = write(&|t| drop(t.remove(name)));
        assert!(
            message.contains(&format!("the tensor {name} ")) && message.contains("is missing"),
            "{message}"
        );
        let message = write(&|t| drop(t.insert(name.clone(), HostTensor::f32([2, 3], vec![0.0; 6]))));
        assert!(message.contains(&format!("the tensor {name} has the shape")), "{message}");
        let message = write(&|t| drop(t.insert("more".into(), HostTensor::f32([1], vec![0.0]))));
        assert!(message.contains("the tensor more is none of the model"), "{message}");
        let message = write(&|t| {
            if let Some(HostTensor::F32(_, data)) = t.get_mut(name) {
                data[0] = f32::NAN;
            }
        });
        assert!(message.contains(&format!("the tensor {name} holds NaN")), "{message}");
    }
}

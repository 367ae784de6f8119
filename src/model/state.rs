//! `training.safetensors`: what an unfinished training goes on from.

use super::files::Files;
use super::{OutputFolder, STATE_FILE, weights};
use crate::train::Trainer;
use crate::{Error, HostTensor, Result};
use safetensors::Dtype;
use safetensors::tensor::TensorView;
use std::collections::HashMap;

/// Writes what a training needs to go on: parameters, moments and the number of steps, in one file, so that they always
/// belong together.
///
/// # Errors
/// When the file cannot be written, or the device failed.
pub fn save_state(trainer: &Trainer, folder: &OutputFolder) -> Result<()> {
    let internal = |error: safetensors::SafeTensorError| Error::Internal(error.to_string());
    let pages: Vec<(String, HostTensor)> = trainer.state()?;
    let mut views = Vec::new();
    for (name, page) in &pages {
        let bytes: Vec<u8> = page.as_f32(name)?.iter().flat_map(|x| x.to_le_bytes()).collect();
        views.push((name, page.ty().shape.dims().to_vec(), bytes));
    }
    let views = views
        .iter()
        .map(|(name, shape, bytes)| {
            Ok((name, TensorView::new(Dtype::F32, shape.clone(), bytes).map_err(internal)?))
        })
        .collect::<Result<Vec<_>>>()?;
    let header = HashMap::from([("step".to_string(), trainer.steps().to_string())]);
    folder.write(STATE_FILE, &safetensors::serialize(views, Some(header)).map_err(internal)?)
}

/// Puts a training where [`save_state`] left it.
///
/// # Errors
/// When there is no such file, or it belongs to another model.
pub fn load_state(trainer: &mut Trainer, files: &dyn Files) -> Result<()> {
    let layout = trainer.state_layout();
    let numbers: usize = layout.iter().map(|(_, n)| n).sum();
    let path = files.path(STATE_FILE);
    let bytes = files.read(STATE_FILE, numbers as u64 * 4 + (1 << 20))?;
    let expected: Vec<_> = layout.iter().map(|(name, n)| (name.as_str(), [*n].into())).collect();
    let (pages, header) = weights::tensors(&bytes, &path, &expected)?;
    let step = header.get("step").and_then(|step| step.parse().ok());
    let step = step.ok_or_else(|| Error::file(&path, "does not say after which step it was written"))?;
    trainer.restore(step, &pages)
}

//! Model folders: the settings, the weights and the vocabularies of a model as files, and translating with them.
//!
//! | file | content |
//! |---|---|
//! | `config.toml` | [`ModelConfig`]: all settings, resolved |
//! | `model.safetensors` | the parameters by name, 32-bit or 16-bit floats |
//! | `source.vocab`, `target.vocab` | the vocabularies; one file where both sides share it |
//! | `metrics.jsonl` | [`Metrics`], one JSON object a line |
//! | `training.safetensors` | parameters and moments, while the training is unfinished: see [`save_state`] |
//!
//! A folder may come from anywhere: every size is bounded, and every tensor is checked against the settings, before
//! anything is done with it. Files are written beside the old ones and renamed: a reader finds the old or the new.

mod config;
mod diverged;
mod files;
mod folder;
mod metrics;
mod state;
mod translator;
pub(crate) mod weights;

pub use crate::nn::Precision;
pub use config::{Lowercase, ModelConfig, Task, TextConfig, TrainingConfig};
pub use diverged::{DIVERGED_FILE, save_trouble};
pub use files::{Embedded, Files, Folder};
pub use folder::OutputFolder;
pub use metrics::{Metrics, Validation};
pub use state::{load_state, save_state};
pub use translator::Translator;

use crate::nn::Transformer;
use crate::text::Vocabulary;
use crate::{HostTensor, Result};
use std::collections::HashMap;
use std::path::Path;

/// The file with the settings.
pub const CONFIG_FILE: &str = "config.toml";
/// The file with the parameters.
pub const WEIGHTS_FILE: &str = "model.safetensors";
/// The file with the numbers of the training.
pub const METRICS_FILE: &str = "metrics.jsonl";
/// The file that an unfinished training goes on from.
pub const STATE_FILE: &str = "training.safetensors";
/// The file with the source vocabulary, or the only one.
pub const SOURCE_FILE: &str = "source.vocab";
/// The file with the target vocabulary.
pub const TARGET_FILE: &str = "target.vocab";

/// A model as it lies in a folder.
#[derive(Clone, Debug)]
pub struct Model {
    /// All settings.
    pub config: ModelConfig,
    /// The model that the settings describe.
    pub transformer: Transformer,
    /// The parameters by name: exactly those of the layout of `transformer`.
    pub parameters: HashMap<String, HostTensor>,
    /// The symbols of the source.
    pub source: Vocabulary,
    /// The symbols of the target.
    pub target: Vocabulary,
}

impl Model {
    /// Reads the model in a folder.
    ///
    /// # Errors
    /// Names the file and what is wrong with it: missing, truncated, or not what the settings say; for a parameter
    /// its name and both shapes.
    pub fn load(folder: impl AsRef<Path>) -> Result<Self> {
        Model::from_files(&Folder::open(folder.as_ref())?)
    }

    /// Reads a model from files that may be in memory.
    ///
    /// # Errors
    /// As [`Model::load`].
    pub fn from_files(files: &dyn Files) -> Result<Self> {
        let config = ModelConfig::read(files)?;
        let transformer = Transformer::new(config.model.clone())?;
        let text = &config.text;
        let c = &config.model;
        let source = config::vocabulary(files, &text.source_vocabulary_file, "source", c.source_vocabulary)?;
        let target = config::vocabulary(files, &text.target_vocabulary_file, "target", c.target_vocabulary)?;
        let parameters = weights::read(files, transformer.layout())?;
        Ok(Model { config, transformer, parameters, source, target })
    }

    /// Writes the model into a folder, each file whole or not at all.
    ///
    /// # Errors
    /// When a file cannot be written, or a parameter is missing or of another shape than the settings say.
    pub fn save(&self, folder: &OutputFolder, precision: Precision) -> Result<()> {
        // The settings last: a folder that has them has all it needs.
        folder.write(
            WEIGHTS_FILE,
            &weights::to_bytes(self.transformer.layout(), &self.parameters, precision)?,
        )?;
        let text = &self.config.text;
        folder.write(&text.source_vocabulary_file, self.source.to_text().as_bytes())?;
        if text.target_vocabulary_file != text.source_vocabulary_file {
            folder.write(&text.target_vocabulary_file, self.target.to_text().as_bytes())?;
        }
        folder.write(CONFIG_FILE, self.config.to_toml()?.as_bytes())
    }
}

//! The options of verbs that plan work for a model without training it.

use super::settings::{self, ModelFlags};
use anyhow::Result;
use clap::Args;
use std::path::PathBuf;
use wgformer::model::{Folder, ModelConfig};
use wgformer::nn::{BatchShape, TransformerConfig};

/// Options that name a model and a batch for it.
#[derive(Debug, Args)]
pub struct WorkFlags {
    /// The folder with the model; without it, the options describe one, with vocabularies of 8000
    #[arg(long, value_name = "FOLDER")]
    model: Option<PathBuf>,
    /// Rows of the batch
    #[arg(long, value_name = "N", default_value_t = 16)]
    rows: usize,
    /// Symbols of each source
    #[arg(long, value_name = "N", default_value_t = 32)]
    source: usize,
    /// Symbols of each target
    #[arg(long, value_name = "N", default_value_t = 32)]
    target: usize,
    #[command(flatten)]
    sizes: ModelFlags,
}

impl WorkFlags {
    /// The model in the folder, or the one that is described.
    pub fn model(&self) -> Result<TransformerConfig> {
        match &self.model {
            Some(folder) => Ok(ModelConfig::read(&Folder::open(folder)?)?.model),
            None => settings::of_model(&self.sizes, 8000),
        }
    }

    /// The batch.
    pub fn batch(&self) -> BatchShape {
        BatchShape { rows: self.rows, source_len: self.source, target_len: self.target }
    }
}

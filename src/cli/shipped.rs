//! The model that is a part of the program.

use anyhow::Result;
use wgformer::model::Model;

/// The model that is a part of the program.
#[cfg(feature = "shipped-model")]
pub fn model() -> Result<Model> {
    macro_rules! file {
        ($name:literal) => {
            ($name, include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/models/en-zh/", $name)).as_slice())
        };
    }
    const FILES: wgformer::model::Embedded = wgformer::model::Embedded {
        name: "the shipped model",
        files: &[
            file!("config.toml"),
            file!("model.safetensors"),
            file!("source.vocab"),
            file!("target.vocab"),
        ],
    };
    Ok(Model::from_files(&FILES)?)
}

/// The model that is a part of the program.
#[cfg(not(feature = "shipped-model"))]
pub fn model() -> Result<Model> {
    anyhow::bail!(
        "this program was built without a model (feature shipped-model): choose one with --model FOLDER"
    )
}

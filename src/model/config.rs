//! `config.toml`: all settings of a model, and how it was made.

use super::files::Files;
use super::{CONFIG_FILE, METRICS_FILE, SOURCE_FILE, STATE_FILE, TARGET_FILE, WEIGHTS_FILE};
use crate::nn::{Precision, TransformerConfig};
use crate::text::{Overlong, Tokenizer, TokenizerKind, Vocabulary, vocab};
use crate::train::Decay;
use crate::{Error, Result};
use serde::{Deserialize, Serialize};

/// The most bytes of `config.toml`.
const MAX_CONFIG_BYTES: u64 = 1 << 20;

/// All settings of a model.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ModelConfig {
    /// The Transformer.
    pub model: TransformerConfig,
    /// How text becomes symbols.
    pub text: TextConfig,
    /// How it was trained, where that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub training: Option<TrainingConfig>,
}

/// How text becomes symbols.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TextConfig {
    /// What the symbols of a source are.
    pub source_tokenizer: TokenizerKind,
    /// What the symbols of a target are.
    pub target_tokenizer: TokenizerKind,
    /// What is made lower-case first.
    pub lowercase: Lowercase,
    /// The file with the source vocabulary.
    pub source_vocabulary_file: String,
    /// The file with the target vocabulary: the same one where both sides share it.
    pub target_vocabulary_file: String,
}

impl Default for TextConfig {
    fn default() -> Self {
        TextConfig {
            source_tokenizer: TokenizerKind::Words,
            target_tokenizer: TokenizerKind::Words,
            lowercase: Lowercase::None,
            source_vocabulary_file: SOURCE_FILE.into(),
            target_vocabulary_file: TARGET_FILE.into(),
        }
    }
}

impl TextConfig {
    /// The tokenizer of the source.
    pub fn source(&self) -> Tokenizer {
        Tokenizer::new(self.source_tokenizer, self.lowercase != Lowercase::None)
    }

    /// The tokenizer of the target.
    pub fn target(&self) -> Tokenizer {
        Tokenizer::new(self.target_tokenizer, self.lowercase == Lowercase::Both)
    }

    fn validate(&self) -> Result<()> {
        let names = [
            ("source_vocabulary_file", &self.source_vocabulary_file),
            ("target_vocabulary_file", &self.target_vocabulary_file),
        ];
        for (setting, name) in names {
            // A folder from elsewhere must not lead out of itself, and a vocabulary must not replace another file.
            let plain = !name.is_empty() && !name.starts_with('.') && !name.contains(['/', '\\', ':', '\0']);
            if !plain || [CONFIG_FILE, WEIGHTS_FILE, METRICS_FILE, STATE_FILE].contains(&name.as_str()) {
                return Err(Error::config(setting, format!("{name:?} is no name for a vocabulary's file")));
            }
        }
        Ok(())
    }
}

/// Which sides are made lower-case.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Lowercase {
    /// None.
    #[default]
    None,
    /// The source, so that the model knows a word in any case.
    Source,
    /// Both.
    Both,
}

/// A task with data of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Task {
    /// Written dates to ISO 8601: see [`crate::text::dates`].
    Dates,
}

/// How a model was trained.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TrainingConfig {
    /// The task, where it was no corpus.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub task: Option<Task>,
    /// The corpus: a tab-separated file, or the source and the target file.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub train: Vec<String>,
    /// The corpus for validation, likewise.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub valid: Vec<String>,
    /// Steps.
    pub steps: u64,
    /// Sentence pairs a batch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub batch_size: Option<usize>,
    /// Tokens a batch, padding and both sides included, instead of `batch_size`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_tokens: Option<usize>,
    /// The highest learning rate; with the schedule `noam` a factor.
    pub learning_rate: f64,
    /// The shape of the learning rate over the steps.
    pub schedule: Decay,
    /// Steps of warm-up.
    pub warmup: u64,
    /// Label smoothing.
    pub label_smoothing: f64,
    /// Gradients are scaled down to this global norm; 0 switches it off.
    pub clip: f64,
    /// Decoupled weight decay.
    pub weight_decay: f64,
    /// Adam's decay of the mean gradient.
    pub beta1: f64,
    /// Adam's decay of the mean squared gradient.
    pub beta2: f64,
    /// Adam's epsilon.
    pub epsilon: f64,
    /// The seed of first values, dropout, batches, and dates.
    pub seed: u64,
    /// Symbols that occur less often are unknown.
    pub min_count: u64,
    /// What is done with pairs that are too long.
    pub overlong: Overlong,
    /// Steps between validations; 0 validates at the end only.
    pub validate_every: u64,
    /// The type of the numbers in the model's file.
    pub precision: Precision,
}

impl Default for TrainingConfig {
    fn default() -> Self {
        TrainingConfig {
            task: None,
            train: Vec::new(),
            valid: Vec::new(),
            steps: 10_000,
            batch_size: None,
            max_tokens: None,
            learning_rate: 7e-4,
            schedule: Decay::Cosine,
            warmup: 1000,
            label_smoothing: 0.1,
            clip: 1.0,
            weight_decay: 0.0,
            beta1: 0.9,
            beta2: 0.98,
            epsilon: 1e-9,
            seed: 1,
            min_count: 1,
            overlong: Overlong::Skip,
            validate_every: 1000,
            precision: Precision::F32,
        }
    }
}

impl ModelConfig {
    /// Reads `config.toml`.
    ///
    /// # Errors
    /// When it is missing, no TOML, or has a key or value that is not known; with the line.
    pub fn read(files: &dyn Files) -> Result<Self> {
        let path = files.path(CONFIG_FILE);
        let bytes = files.read(CONFIG_FILE, MAX_CONFIG_BYTES)?;
        let text = std::str::from_utf8(&bytes).map_err(|_| Error::file(&path, "is not UTF-8"))?;
        let config: ModelConfig = toml::from_str(text).map_err(|error| {
            let before = &text[..error.span().map_or(0, |span| span.start).min(text.len())];
            let line = 1 + before.matches('\n').count();
            Error::file(&path, format!("line {line}: {}", error.message()))
        })?;
        config
            .text
            .validate()
            .and_then(|()| config.model.validate())
            .map_err(|error| Error::file(&path, error))?;
        Ok(config)
    }

    /// The text of `config.toml`.
    ///
    /// # Errors
    /// When a number is above what TOML can hold, which is that of a signed 64-bit integer.
    pub fn to_toml(&self) -> Result<String> {
        toml::to_string(self).map_err(|error| Error::config(CONFIG_FILE, error.to_string()))
    }
}

/// Reads a vocabulary that must have as many symbols as the model.
pub(super) fn vocabulary(files: &dyn Files, name: &str, side: &str, symbols: usize) -> Result<Vocabulary> {
    let path = files.path(name);
    let vocabulary = Vocabulary::from_bytes(&files.read(name, vocab::MAX_FILE_BYTES)?, &path)?;
    if vocabulary.len() != symbols {
        let problem = format!(
            "has {} symbols, but {CONFIG_FILE} says that the {side} vocabulary has {symbols}",
            vocabulary.len()
        );
        return Err(Error::file(path, problem));
    }
    Ok(vocabulary)
}

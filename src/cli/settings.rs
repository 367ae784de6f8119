//! The settings of a training: defaults, then the file of `--config`, then the options.

use anyhow::{Context, Result, anyhow, bail};
use clap::Args;
use serde::{Deserialize, Serialize};
use std::path::Path;
use toml::{Table, Value};
use wgformer::model::{ModelConfig, Task, TextConfig, TrainingConfig};
use wgformer::nn::{NormPlacement, PRESETS, TransformerConfig};
use wgformer::text::{TokenizerKind, dates};
use wgformer::train::Decay;

/// The highest number that a TOML file can hold.
const MOST: u64 = i64::MAX as u64;

/// Options that describe a model. The names are those of the keys in `[model]`, apart from the first two.
#[derive(Debug, Default, Args, Serialize)]
#[command(next_help_heading = "Model")]
pub struct ModelFlags {
    /// The sizes to start from [default: tiny for dates, else small]
    #[arg(long, value_name = "NAME", value_parser = PRESETS)]
    #[serde(skip)]
    pub preset: Option<String>,
    /// Layers of the encoder, and of the decoder
    #[arg(long, value_name = "N")]
    #[serde(skip)]
    layers: Option<usize>,
    /// Width of the model
    #[arg(long, value_name = "N")]
    width: Option<usize>,
    /// Attention heads; they must divide the width
    #[arg(long, value_name = "N")]
    heads: Option<usize>,
    /// Width of the feed-forward sub-layers
    #[arg(long, value_name = "N")]
    feed_forward: Option<usize>,
    /// LayerNorm before or after each sub-layer [default: post; dates: pre]
    #[arg(long, value_name = "WHERE", value_parser = ["pre", "post"])]
    norm: Option<String>,
    /// Activation of the feed-forward sub-layers [default: relu]
    #[arg(long, value_name = "NAME", value_parser = ["relu", "gelu", "gelu-tanh", "silu"])]
    activation: Option<String>,
    /// Dropout probability, also that of attention [default: 0.1; big: 0.3; dates: 0]
    #[arg(long, value_name = "P")]
    dropout: Option<f64>,
    /// How positions are told [default: sinusoidal]
    #[arg(long, value_name = "KIND", value_parser = ["sinusoidal", "sinusoidal-halves", "learned"])]
    positions: Option<String>,
    /// Which matrices are one: none, target embedding and output, both embeddings, or all; the last two share a vocabulary
    /// [default: output]
    #[arg(long, value_name = "WHICH", value_parser = ["none", "output", "embeddings", "all"])]
    tying: Option<String>,
    /// The most symbols of the source vocabulary
    #[arg(long, value_name = "N")]
    source_vocabulary: Option<usize>,
    /// The most symbols of the target vocabulary
    #[arg(long, value_name = "N")]
    target_vocabulary: Option<usize>,
    /// The most symbols of a source sentence, the end symbol included
    #[arg(long, value_name = "N")]
    max_source: Option<usize>,
    /// The most symbols of a target sentence, the end symbol included
    #[arg(long, value_name = "N")]
    max_target: Option<usize>,
}

/// Options that say what symbols are: the keys in `[text]`.
#[derive(Debug, Args, Serialize)]
#[command(next_help_heading = "Text")]
pub struct TextFlags {
    /// What the symbols of a source are [default: words]
    #[arg(long, value_name = "KIND", value_parser = ["words", "chars"])]
    source_tokenizer: Option<String>,
    /// What the symbols of a target are [default: words]
    #[arg(long, value_name = "KIND", value_parser = ["words", "chars"])]
    target_tokenizer: Option<String>,
    /// Make the source, or both sides, lower-case [default: none]
    #[arg(long, value_name = "SIDES", value_parser = ["none", "source", "both"], num_args = 0..=1, default_missing_value = "both")]
    lowercase: Option<String>,
}

/// Options of the training: the keys in `[training]`.
#[derive(Debug, Args, Serialize)]
#[command(next_help_heading = "Training")]
pub struct TrainingFlags {
    /// The corpus: one tab-separated file (source, target), or a source file and a target file
    #[arg(long, num_args = 1..=2, value_name = "FILE", help_heading = "Data")]
    train: Option<Vec<String>>,
    /// A corpus for validation, likewise
    #[arg(long, num_args = 1..=2, value_name = "FILE", help_heading = "Data")]
    valid: Option<Vec<String>>,
    /// A task that needs no data: dates, from seven written forms to 1999-03-03
    #[arg(long, value_name = "NAME", value_parser = ["dates"], conflicts_with_all = ["train", "valid"], help_heading = "Data")]
    task: Option<String>,
    /// Steps [default: 1000 for dates, else 10000]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=MOST))]
    steps: Option<u64>,
    /// Sentence pairs a batch [default: 64 for dates]
    #[arg(long, value_name = "N")]
    batch_size: Option<usize>,
    /// Tokens a batch, both sides and padding included [default: 4096 for corpora]
    #[arg(long, value_name = "N", conflicts_with = "batch_size")]
    max_tokens: Option<usize>,
    /// The highest learning rate [default: (4000 width)^-0.5; dates: 0.003; with noam: 1]
    #[arg(long, value_name = "RATE")]
    learning_rate: Option<f64>,
    /// The learning rate after the warm-up [default: cosine]
    #[arg(long, value_name = "SHAPE", value_parser = ["noam", "inverse-sqrt", "linear", "cosine", "constant"])]
    schedule: Option<String>,
    /// Steps of warm-up [default: a tenth of the steps, at most 4000]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(..=MOST))]
    warmup: Option<u64>,
    /// Label smoothing [default: 0.1; dates: 0]
    #[arg(long, value_name = "P")]
    label_smoothing: Option<f64>,
    /// Scale gradients down to this global norm; 0 does not [default: 1]
    #[arg(long, value_name = "NORM")]
    clip: Option<f64>,
    /// Decoupled weight decay [default: 0]
    #[arg(long, value_name = "RATE")]
    weight_decay: Option<f64>,
    /// Seed of first values, dropout, batches and dates [default: 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(..=MOST))]
    seed: Option<u64>,
    /// Symbols that occur less often are unknown [default: 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(..=MOST))]
    min_count: Option<u64>,
    /// Leave out pairs that are too long, or cut them [default: skip]
    #[arg(long, value_name = "WHAT", value_parser = ["skip", "cut"])]
    overlong: Option<String>,
    /// Steps between validations, each of which saves the model; 0 validates at the end only [default: a fifth of
    /// the steps, at most 1000]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(..=MOST))]
    validate_every: Option<u64>,
    /// Save 16-bit floats: half the size
    #[arg(long)]
    #[serde(skip)]
    half: bool,
}

/// What a file of `--config` may hold.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[allow(dead_code)] // It is read to check it; the values are taken from the table.
struct ConfigFile {
    preset: Option<String>,
    model: TransformerConfig,
    text: TextConfig,
    training: TrainingConfig,
}

/// The settings of a training, but for the vocabularies: their sizes are the most there may be.
pub fn of_training(
    file: Option<&Path>,
    model: &ModelFlags,
    text: &TextFlags,
    training: &TrainingFlags,
) -> Result<ModelConfig> {
    let mut given = file.map_or(Ok(Table::new()), read)?;
    let file_preset = given.remove("preset");
    let preset = model.preset.as_deref().or(file_preset.as_ref().and_then(Value::as_str));
    let options = [("model", table(model)?), ("text", table(text)?), ("training", table(training)?)];
    if options[2].1.contains_key("train") || options[2].1.contains_key("task") {
        // One of them takes the place of the other; a validation corpus belongs to the one of training.
        for key in ["task", "train", "valid"] {
            section(&mut given, "training")?.remove(key);
        }
    }
    if options[2].1.contains_key("batch_size") || options[2].1.contains_key("max_tokens") {
        section(&mut given, "training")?.remove("batch_size");
        section(&mut given, "training")?.remove("max_tokens");
    }
    for (name, options) in options {
        section(&mut given, name)?.extend(options);
    }
    if let Some(layers) = model.layers {
        for key in ["encoder_layers", "decoder_layers"] {
            section(&mut given, "model")?.insert(key.into(), Value::try_from(layers)?);
        }
    }
    if let Some(dropout) = model.dropout {
        section(&mut given, "model")?.insert("attention_dropout".into(), dropout.into());
    }
    if training.half {
        section(&mut given, "training")?.insert("precision".into(), "f16".into());
    }

    let dates = given_key(&given, "training", "task").is_some();
    let all = defaults(preset.unwrap_or(if dates { "tiny" } else { "small" }), dates)?;
    let mut all = Table::try_from(all)?;
    for name in ["model", "text", "training"] {
        let from = section(&mut given, name)?.clone();
        section(&mut all, name)?.extend(from);
    }
    let mut config: ModelConfig =
        all.try_into().map_err(|error: toml::de::Error| anyhow!("{}", error.message()))?;
    dependent_defaults(&mut config, &given, dates);
    Ok(config)
}

/// Whether any option was given.
pub fn any_given(model: &ModelFlags, text: &TextFlags, training: &TrainingFlags) -> Result<bool> {
    let tables = [table(model)?, table(text)?, table(training)?];
    let others = model.preset.is_some() || model.layers.is_some() || training.half;
    Ok(others || tables.iter().any(|table| !table.is_empty()))
}

/// A model of these options, with these vocabularies where none are given.
pub fn of_model(flags: &ModelFlags, vocabulary: usize) -> Result<TransformerConfig> {
    let mut given = Table::new();
    given.insert("model".into(), Value::Table(table(flags)?));
    let mut config = TransformerConfig::preset(flags.preset.as_deref().unwrap_or("small"))?;
    config.source_vocabulary = vocabulary;
    config.target_vocabulary = vocabulary;
    let mut all = Table::try_from(config)?;
    all.extend(table(flags)?);
    let mut config: TransformerConfig =
        all.try_into().map_err(|error: toml::de::Error| anyhow!("{}", error.message()))?;
    if let Some(layers) = flags.layers {
        (config.encoder_layers, config.decoder_layers) = (layers, layers);
    }
    config.attention_dropout = flags.dropout.unwrap_or(config.attention_dropout);
    pre_norm_ends_normal(&mut config, &given);
    Ok(config)
}

/// A file of `--config`, checked.
fn read(path: &Path) -> Result<Table> {
    let text =
        std::fs::read_to_string(path).with_context(|| format!("{}: cannot be read", path.display()))?;
    toml::from_str::<ConfigFile>(&text).and_then(|_| text.parse::<Table>()).map_err(|error| {
        let before = &text[..error.span().map_or(0, |span| span.start).min(text.len())];
        anyhow!("{}: line {}: {}", path.display(), 1 + before.matches('\n').count(), error.message())
    })
}

/// Options that were given, as a table.
fn table(flags: impl Serialize) -> Result<Table> {
    Ok(Table::try_from(flags)?)
}

fn section<'a>(table: &'a mut Table, name: &str) -> Result<&'a mut Table> {
    match table.entry(name).or_insert_with(|| Value::Table(Table::new())) {
        Value::Table(found) => Ok(found),
        _ => bail!("{name} is not a table"),
    }
}

fn given_key<'a>(table: &'a Table, section: &str, key: &str) -> Option<&'a Value> {
    table.get(section)?.as_table()?.get(key)
}

fn defaults(preset: &str, dates: bool) -> Result<ModelConfig> {
    let mut config = ModelConfig {
        model: TransformerConfig::preset(preset)?,
        training: Some(Default::default()),
        ..Default::default()
    };
    // The most; what the corpus has counts in the end.
    (config.model.source_vocabulary, config.model.target_vocabulary) = (16_000, 16_000);
    (config.model.max_source, config.model.max_target) = (128, 128);
    if dates {
        (config.model.max_source, config.model.max_target) =
            (dates::LONGEST_SOURCE + 3, dates::LONGEST_TARGET + 6);
        (config.text.source_tokenizer, config.text.target_tokenizer) =
            (TokenizerKind::Characters, TokenizerKind::Characters);
        let training = config.training.get_or_insert_default();
        (training.task, training.steps) = (Some(Task::Dates), 1000);
        // Few steps, each with new data: a high rate, for which pre-norm is the stable form, and nothing to regularise.
        (training.learning_rate, training.label_smoothing) = (3e-3, 0.0);
        (config.model.norm, config.model.final_norm) = (NormPlacement::Pre, true);
        (config.model.dropout, config.model.attention_dropout) = (0.0, 0.0);
    }
    Ok(config)
}

/// Defaults that depend on other settings.
fn dependent_defaults(config: &mut ModelConfig, given: &Table, dates: bool) {
    pre_norm_ends_normal(&mut config.model, given);
    let width = config.model.width;
    let training = config.training.get_or_insert_default();
    let unset = |key: &str| given_key(given, "training", key).is_none();
    if training.batch_size.is_none() && training.max_tokens.is_none() {
        match dates {
            true => training.batch_size = Some(64),
            false => training.max_tokens = Some(4096),
        }
    }
    if unset("learning_rate") && (!dates || training.schedule == Decay::Noam) {
        // The highest rate of the paper's formula (section 5.3) with its 4,000 steps of warm-up.
        let noam = training.schedule == Decay::Noam;
        let rate = (4000.0 * width.max(1) as f64).powf(-0.5);
        training.learning_rate = if noam { 1.0 } else { (rate * 1e5).round() / 1e5 };
    }
    if unset("warmup") {
        training.warmup = (training.steps / 10).clamp(1, 4000);
    }
    if unset("validate_every") {
        training.validate_every = (training.steps / 5).clamp(1, 1000);
    }
}

/// Without a last LayerNorm, the sums of a pre-norm stack would reach the output as they are.
fn pre_norm_ends_normal(config: &mut TransformerConfig, given: &Table) {
    if given_key(given, "model", "final_norm").is_none() {
        config.final_norm = config.norm == NormPlacement::Pre;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Flags {
        #[command(flatten)]
        model: ModelFlags,
        #[command(flatten)]
        text: TextFlags,
        #[command(flatten)]
        training: TrainingFlags,
    }

    fn resolve(file: &str, options: &str) -> Result<ModelConfig> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("c.toml");
        std::fs::write(&path, file).unwrap();
        let flags = Flags::try_parse_from(["x"].into_iter().chain(options.split_whitespace()))?;
        of_training(Some(&path), &flags.model, &flags.text, &flags.training)
    }

    #[test]
    fn options_override_the_file_and_the_file_the_defaults() {
        let file = "preset = 'base'\n[model]\nheads = 4\nwidth = 64\n[training]\nsteps = 50\nmax_tokens = 9\ntask = 'dates'\n";
        let config = resolve(file, "--heads 2 --batch-size 7 --half --lowercase").unwrap();
        let training = config.training.clone().unwrap();
        assert_eq!((config.model.heads, config.model.width, config.model.encoder_layers), (2, 64, 6));
        assert_eq!(
            (training.steps, training.warmup, training.batch_size, training.max_tokens),
            (50, 5, Some(7), None)
        );
        assert_eq!(training.task, Some(Task::Dates));
        assert_eq!(training.precision, wgformer::model::Precision::F16);
        assert_eq!(config.text.lowercase, wgformer::model::Lowercase::Both);
        // What was resolved resolves to itself.
        assert_eq!(resolve(&config.to_toml().unwrap(), "").unwrap(), config);
    }

    #[test]
    fn a_corpus_takes_the_place_of_a_task() {
        let config = resolve("[training]\ntask = 'dates'\n", "--train a b --norm pre --dropout 0").unwrap();
        let training = config.training.unwrap();
        assert_eq!((training.task, training.train.len(), training.max_tokens), (None, 2, Some(4096)));
        assert!(config.model.final_norm && config.model.attention_dropout == 0.0);
        assert!(!resolve("[model]\nfinal_norm = false\n", "--norm pre").unwrap().model.final_norm);
    }

    #[test]
    fn mistakes_in_the_file_are_named_with_the_line() {
        let cases = [
            ("[model]\nwdith = 3\n", "line 2: unknown field `wdith`"),
            ("[modle]\nwidth = 3\n", "line 1: unknown field `modle`"),
            ("[model]\nwidth = 'wide'\n", "line 2: invalid type"),
            ("[model]\nnorm = 'mid'\n", "line 2: unknown variant `mid`"),
            ("[training]\n\nsteps = -1\n", "line 3: invalid value"),
            ("[training\n", "line 1: "),
            ("preset = 'huge'\n", "preset: \"huge\" is none of"),
        ];
        for (file, problem) in cases {
            let message = format!("{:#}", resolve(file, "").unwrap_err());
            assert!(message.contains(problem), "{message}, expected {problem}");
        }
    }
}

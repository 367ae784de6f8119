//! `wgformer train`.

use super::Global;
use super::ahead::ahead;
use super::output::{count, grouped, print, time};
use super::progress::{self, Progress, Watch, note};
use super::settings::{self, ModelFlags, TextFlags, TrainingFlags};
use super::stop::{Interrupted, Stop};
use anyhow::{Context, Result, anyhow, bail};
use clap::Args;
use std::collections::{HashMap, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use wgformer::gpu::Gpu;
use wgformer::infer::{DecodeSettings, Decoder, SpecialIds};
use wgformer::model::{
    CONFIG_FILE, DIVERGED_FILE, Files, Folder, METRICS_FILE, Metrics, Model, ModelConfig, OutputFolder,
    Precision, STATE_FILE, Task, TrainingConfig, Translator, Validation, load_state, save_state,
    save_trouble,
};
use wgformer::nn::{BatchShape, Objective, Transformer, Tying};
use wgformer::ops::optimizer::AdamSettings;
use wgformer::text::batch::{BatchOptions, BatchRows, BatchSize, Batches, TooLong, encode_pairs};
use wgformer::text::{self, Batch, Corpus, Overlong, Pair, Tokenizer, Vocabulary, dates};
use wgformer::train::{PendingStep, Schedule, StepReport, Trainer, TrainerSettings};

/// Steps under way before the loss of the first is looked at: so the device never waits for the host.
const AHEAD: usize = 4;
/// Batches that are made before the step that learns from them, on a thread of their own.
const BATCHES_AHEAD: usize = 2;
/// Dates to train on, and others to test with.
const DATES: (usize, usize) = (100_000, 500);
/// Sentences that are decoded at the end, at most.
const DECODED: usize = 1000;
/// Sentences decoded together.
const DECODE_BATCH: usize = 64;
/// Translations that are shown at the end.
const SHOWN: usize = 8;
/// Warnings about single lines, at most.
const WARNINGS: usize = 10;

const EXAMPLES: &str = "\
Examples:
  Learn dates within minutes, from nothing:
    wgformer train --task dates --model dates
  Translate English to Chinese:
    wgformer train --train train.tsv --valid valid.tsv --target-tokenizer chars --model en-zh
  Two files whose lines belong together, settings from a file, one of them changed:
    wgformer train --train train.de train.en --config small.toml --dropout 0.3 --model de-en

Ctrl-C ends after the step and saves the model; a second one ends at once. Go on later:
    wgformer train --resume --model de-en";

/// Options of `wgformer train`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Train {
    /// The folder to write the model to
    #[arg(long, value_name = "FOLDER")]
    model: PathBuf,
    /// A TOML file with settings; its keys are those of the config.toml in a model folder
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Overwrite a model that is in the folder
    #[arg(long)]
    overwrite: bool,
    /// Go on with the training in the folder that was interrupted, with its settings
    #[arg(long, conflicts_with_all = ["config", "overwrite"])]
    resume: bool,
    /// Follow the first N steps kernel by kernel against references on the CPU, very slow; the first kernel that goes
    /// wrong ends the training, and what it had read is saved
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    verify_steps: u64,
    /// Device memory for the training, in MiB: where batches would need more, layers are computed twice and logits in
    /// smaller chunks
    #[arg(long, value_name = "MIB")]
    max_memory: Option<u64>,
    #[command(flatten)]
    training: TrainingFlags,
    #[command(flatten)]
    text: TextFlags,
    #[command(flatten)]
    sizes: ModelFlags,
}

impl Train {
    pub fn run(&self, global: &Global) -> Result<()> {
        let config = match self.resume {
            true => self.interrupted()?,
            false => {
                OutputFolder::check(&self.model, self.overwrite)?;
                settings::of_training(self.config.as_deref(), &self.sizes, &self.text, &self.training)?
            }
        };
        let data = Data::load(config.clone())?;
        if self.resume && data.config != config {
            bail!("{}: the corpus has changed since the training was interrupted", self.model.display());
        }
        let transformer = Transformer::new(data.config.model.clone())?;
        let mut settings = trainer_settings(&data.config)?;
        settings.max_bytes = self.max_memory.map(|mib| mib.saturating_mul(1 << 20));
        let gpu = global.gpu()?;
        note(&format!("adapter: {}", gpu.description()));
        data.describe(&transformer);

        // Parameters, and once more with two moments for `--resume`; and all that is small.
        let number = if data.training().precision == Precision::F16 { 2 } else { 4 };
        let bytes = transformer.layout().elements() as u64 * (number + 12) + (1 << 20);
        let folder = match self.resume {
            true => OutputFolder::reopen(&self.model, bytes)?,
            false => OutputFolder::create(&self.model, self.overwrite, bytes)?,
        };
        let stop = Stop::on_interrupt()?;
        let mut run = Run::new(gpu, data, transformer, settings, folder, stop)?;
        global.keep_pipelines();
        if self.resume {
            run.resume(&Folder::open(&self.model)?)?;
        }
        run.verify_steps = self.verify_steps;
        run.train()?;
        run.finish()
    }

    /// The settings of the training to go on with.
    fn interrupted(&self) -> Result<ModelConfig> {
        if settings::any_given(&self.sizes, &self.text, &self.training)? {
            bail!("--resume goes on with the settings in the folder: leave out the others");
        }
        let files = Folder::open(&self.model)?;
        let config = ModelConfig::read(&files)?;
        if config.training.is_none() || !files.path(STATE_FILE).exists() {
            bail!("{}: holds no interrupted training ({STATE_FILE} is missing)", self.model.display());
        }
        Ok(config)
    }
}

/// Text, as the settings say, ready to be learned.
struct Data {
    config: ModelConfig,
    source: (Tokenizer, Vocabulary),
    target: (Tokenizer, Vocabulary),
    train: Batches,
    pairs: usize,
    /// The pairs for validation, those that fit the model, and their batches.
    valid: Option<(Vec<Pair>, Batches)>,
}

impl Data {
    fn load(mut config: ModelConfig) -> Result<Self> {
        let training = config.training.clone().unwrap_or_default();
        let (train, valid) = match training.task {
            Some(Task::Dates) => {
                let (train, valid) = dates::train_and_held_out(training.seed, DATES.0, DATES.1)?;
                (train, Some(valid))
            }
            None if training.train.is_empty() => {
                bail!(
                    "nothing to train on: give a corpus (--train FILE.tsv, or --train SOURCE TARGET) or --task dates"
                )
            }
            None => {
                let valid = if training.valid.is_empty() { None } else { Some(read(&training.valid)?) };
                (read(&training.train)?, valid)
            }
        };
        let tokenizers = (config.text.source(), config.text.target());
        let (source, target) = vocabularies(&mut config, &train, training.min_count)?;
        config.model.source_vocabulary = source.len();
        config.model.target_vocabulary = target.len();
        config.model.validate()?;

        let (source, target) = ((tokenizers.0, source), (tokenizers.1, target));
        let mut options = BatchOptions {
            size: match (training.batch_size, training.max_tokens) {
                (Some(_), Some(_)) => bail!("batch_size and max_tokens exclude each other: give one of them"),
                (_, Some(tokens)) => BatchSize::Tokens(tokens),
                (pairs, None) => BatchSize::Sentences(pairs.unwrap_or(64)),
            },
            max_source: config.model.max_source,
            max_target: config.model.max_target,
            overlong: training.overlong,
            ..Default::default()
        };
        let encode = |pairs: &[Pair]| encode_pairs(pairs, (&source.0, &source.1), (&target.0, &target.1));
        let pairs = train.len();
        let batches = Batches::new(encode(&train), &options)?;
        warn_too_long("training", batches.too_long(), training.overlong);
        // Fewer shapes: each of them has to be compiled for a few batches only.
        options.max_buckets = 4;
        let valid = match valid {
            None => None,
            Some(valid) => {
                let batches = Batches::new(encode(&valid), &options)?;
                warn_too_long("validation", batches.too_long(), training.overlong);
                let lines: std::collections::HashSet<usize> =
                    batches.examples().iter().map(|example| example.line).collect();
                let fitting = valid.into_iter().filter(|pair| lines.contains(&pair.line)).collect();
                Some((fitting, batches))
            }
        };
        Ok(Data { config, source, target, train: batches, pairs, valid })
    }

    /// What the first epoch needs plans for: shapes, and the targets whose rows the loss looks at; the largest first. Later
    /// epochs need few others.
    fn works(&self, transformer: &Transformer) -> Vec<(BatchShape, usize)> {
        let epoch = self.train.epoch(self.training().seed, 0);
        let work =
            |rows: &BatchRows| (rows.bucket, transformer.loss_rows(rows.bucket, self.train.targets(rows)));
        let mut works: Vec<(BatchShape, usize)> = epoch.iter().map(work).collect();
        works.sort_by_key(|&(shape, rows)| std::cmp::Reverse((shape.tokens(), shape, rows)));
        works.dedup();
        works
    }

    fn training(&self) -> TrainingConfig {
        self.config.training.clone().unwrap_or_default()
    }

    fn describe(&self, transformer: &Transformer) {
        let c = &self.config.model;
        note(&format!(
            "model: {} parameters, {}+{} layers, width {}, {} heads, feed-forward {}",
            grouped(transformer.layout().elements() as u64),
            c.encoder_layers,
            c.decoder_layers,
            c.width,
            c.heads,
            c.feed_forward
        ));
        note(&format!(
            "data: {}, {} for validation, {} source and {} target symbols",
            count(self.pairs, "pair"),
            self.valid.as_ref().map_or("none".into(), |(pairs, _)| grouped(pairs.len() as u64)),
            grouped(self.source.1.len() as u64),
            grouped(self.target.1.len() as u64)
        ));
        note(&format!(
            "batches: {} an epoch, {}, {:.0} % padding",
            grouped(self.train.batches_per_epoch() as u64),
            count(self.train.buckets().len(), "shape"),
            100.0 * (1.0 - self.train.efficiency())
        ));
    }
}

fn read(files: &[String]) -> Result<Vec<Pair>> {
    let corpus = match files {
        [tsv] => Corpus::read_tsv(tsv)?,
        [source, target] => Corpus::read_parallel(source, target)?,
        _ => bail!("a corpus is one file or two, but {} are given", files.len()),
    };
    if corpus.skipped > 0 {
        note(&format!("{}: {} with a blank side left out", files[0], count(corpus.skipped, "line")));
    }
    Ok(corpus.pairs)
}

/// The vocabularies of a corpus; the same one twice where the model needs one for both sides.
fn vocabularies(
    config: &mut ModelConfig,
    pairs: &[Pair],
    min_count: u64,
) -> Result<(Vocabulary, Vocabulary)> {
    let (source, target) = (config.text.source(), config.text.target());
    let c = &config.model;
    let texts = |side: fn(&Pair) -> &String| pairs.iter().map(move |pair| side(pair).as_str());
    let (sources, targets) = (texts(|pair| &pair.source), texts(|pair| &pair.target));
    if matches!(c.tying, Tying::All | Tying::Embeddings) {
        if source != target {
            return Err(anyhow!(
                "tying: one vocabulary for both sides needs the same tokenizer and case for both; \
                 choose another tying, or make the sides alike"
            ));
        }
        let most = c.source_vocabulary.max(c.target_vocabulary);
        let shared = Vocabulary::from_texts(&source, sources.chain(targets), most, min_count)?;
        config.text.target_vocabulary_file = config.text.source_vocabulary_file.clone();
        return Ok((shared.clone(), shared));
    }
    let source = Vocabulary::from_texts(&source, sources, c.source_vocabulary, min_count)?;
    let target = Vocabulary::from_texts(&target, targets, c.target_vocabulary, min_count)?;
    if config.text.source_vocabulary_file == config.text.target_vocabulary_file {
        config.text.target_vocabulary_file = wgformer::model::TARGET_FILE.into();
        config.text.source_vocabulary_file = wgformer::model::SOURCE_FILE.into();
    }
    Ok((source, target))
}

fn warn_too_long(corpus: &str, too_long: &[TooLong], overlong: Overlong) {
    let done = if overlong == Overlong::Skip { "left out" } else { "cut" };
    for TooLong { line, length, limit, side } in too_long.iter().take(WARNINGS) {
        note(&format!("{corpus} line {line}: the {side} has {length} symbols, the most is {limit}: {done}"));
    }
    if too_long.len() > WARNINGS {
        note(&format!("{corpus}: {} more are too long: {done}", count(too_long.len() - WARNINGS, "pair")));
    }
}

fn trainer_settings(config: &ModelConfig) -> Result<TrainerSettings> {
    let t = config.training.clone().unwrap_or_default();
    let range = [("label_smoothing", t.label_smoothing), ("beta1", t.beta1), ("beta2", t.beta2)];
    for (name, value) in range {
        if !(0.0..1.0).contains(&value) {
            return Err(anyhow!("{name}: {value} is not at least 0 and below 1"));
        }
    }
    for (name, value) in [("clip", t.clip), ("weight_decay", t.weight_decay), ("epsilon", t.epsilon)] {
        if !(value >= 0.0 && value.is_finite()) {
            return Err(anyhow!("{name}: {value} is not 0 or above"));
        }
    }
    let schedule = Schedule {
        decay: t.schedule,
        rate: t.learning_rate,
        warmup: t.warmup,
        steps: t.steps,
        width: config.model.width,
    };
    schedule.validate()?;
    Ok(TrainerSettings {
        seed: t.seed,
        schedule,
        adam: AdamSettings {
            beta1: t.beta1,
            beta2: t.beta2,
            eps: t.epsilon,
            weight_decay: t.weight_decay,
            ..AdamSettings::transformer()
        },
        clip_norm: (t.clip > 0.0).then_some(t.clip),
        objective: Objective { label_smoothing: t.label_smoothing, ..Default::default() },
        max_bytes: None,
    })
}

/// Sums over the steps since the last line of the metrics.
#[derive(Default)]
struct Window {
    steps: u64,
    loss: f64,
    right: f64,
    targets: u64,
    tokens: u64,
    time: Duration,
}

/// A training under way.
struct Run {
    gpu: Gpu,
    data: Arc<Data>,
    trainer: Trainer,
    folder: OutputFolder,
    stop: Stop,
    steps: u64,
    metrics: Vec<Metrics>,
    /// The steps that were done before, by the training that is resumed.
    begun_at: u64,
    /// How many steps from there on are followed kernel by kernel.
    verify_steps: u64,
    watch: Watch,
}

impl Run {
    fn new(
        gpu: Gpu,
        data: Data,
        transformer: Transformer,
        settings: TrainerSettings,
        folder: OutputFolder,
        stop: Stop,
    ) -> Result<Self> {
        let budget = settings.max_bytes.is_some();
        let mut trainer = Trainer::new(&gpu, transformer, settings)?;
        let shapes = data.train.buckets();
        if budget {
            // What needs the most memory decides how everything is computed.
            for shape in &shapes {
                trainer.prepare(&[*shape])?;
                stop.check()?;
            }
        }
        let works = data.works(trainer.model());
        let mut progress = Progress::new("compiling", works.len() as u64);
        for (i, &(shape, targets)) in works.iter().enumerate() {
            progress.at(i as u64, || "plans compiled".to_string());
            trainer.prepare_for(shape, targets)?;
            stop.check()?;
        }
        let took = progress.end();
        note(&format!(
            "compiled: {} for {} in {}",
            count(gpu.compile_stats().pipelines as usize, "kernel"),
            count(shapes.len(), "batch shape"),
            time(took)
        ));
        let steps = data.training().steps;
        Ok(Run {
            gpu,
            data: Arc::new(data),
            trainer,
            folder,
            stop,
            steps,
            metrics: Vec::new(),
            begun_at: 0,
            verify_steps: 0,
            watch: Watch::new(),
        })
    }

    /// Goes on where an interrupted training stopped.
    fn resume(&mut self, files: &Folder) -> Result<()> {
        load_state(&mut self.trainer, files)?;
        let step = self.trainer.steps();
        self.metrics = Metrics::read(files, step);
        note(&format!("resumed after step {} of {}", grouped(step), grouped(self.steps)));
        Ok(())
    }

    fn train(&mut self) -> Result<()> {
        let training = self.data.training();
        self.begun_at = self.trainer.steps();
        let mut progress = Progress::new("training", self.steps);
        self.watch = Watch::new();
        let data = self.data.clone();
        let batches = data.train.batches_from(training.seed, self.begun_at);
        ahead(BATCHES_AHEAD, batches, |batches| self.learn(batches, &training, &mut progress))?;
        self.watch.pause();
        progress.end();
        Ok(())
    }

    /// The steps that are left, or those until Ctrl-C, each from the next batch.
    fn learn(
        &mut self,
        batches: &mut dyn Iterator<Item = Batch>,
        training: &TrainingConfig,
        progress: &mut Progress,
    ) -> Result<()> {
        let every = (self.steps / 1000).max(1);
        let mut window = Window::default();
        let mut pending: VecDeque<(PendingStep, u64)> = VecDeque::new();
        while self.trainer.steps() < self.steps && !self.stop.asked() {
            let batch = batches.next().context("the thread that makes batches has ended")?;
            let sources: u32 = batch.source_lengths.iter().take(batch.indices.len()).sum();
            let verify = self.trainer.steps() - self.begun_at < self.verify_steps;
            let step = if verify { self.verified(&batch, progress)? } else { self.trainer.step(&batch)? };
            pending.push_back((step, u64::from(sources) + batch.tokens as u64));
            let step = self.trainer.steps();
            let due = training.validate_every > 0
                && step.is_multiple_of(training.validate_every)
                && step < self.steps;
            let keep = if due { 0 } else { AHEAD };
            while pending.len() > keep {
                self.note_step(pending.pop_front(), &mut window, every, progress)?;
            }
            if due {
                self.checkpoint(progress)?;
            }
        }
        while !pending.is_empty() {
            self.note_step(pending.pop_front(), &mut window, every, progress)?;
        }
        Ok(())
    }

    /// A step, followed kernel by kernel.
    fn verified(&mut self, batch: &Batch, progress: &Progress) -> Result<PendingStep> {
        let start = Instant::now();
        let (pending, found) = self.trainer.step_verified(batch)?;
        let step = self.trainer.steps();
        let Some(first) = found.troubles.first() else {
            progress.say(&format!(
                "verified step {step}: {} dispatches, largest error {:.0} % of what is allowed, {}",
                grouped(found.dispatches as u64),
                100.0 * found.worst,
                time(start.elapsed())
            ));
            return Ok(pending);
        };
        for other in &found.troubles[1..] {
            progress.say(&format!("training step {step}: {other}"));
        }
        save_trouble(&self.folder, first)?;
        let file = self.folder.path().join(DIVERGED_FILE);
        bail!("training step {step}: {first}; what it had read is in {}", file.display())
    }

    fn note_step(
        &mut self,
        pending: Option<(PendingStep, u64)>,
        window: &mut Window,
        every: u64,
        progress: &mut Progress,
    ) -> Result<()> {
        let Some((pending, tokens)) = pending else { return Ok(()) };
        let StepReport { step, learning_rate, loss, accuracy, targets, gradient_norm } = pending.wait()?;
        window.steps += 1;
        window.loss += loss;
        window.right += accuracy * targets as f64;
        window.targets += targets;
        window.tokens += tokens;
        let elapsed = self.watch.elapsed();
        let took = elapsed.saturating_sub(window.time).as_secs_f64();
        let metrics = Metrics {
            step,
            loss: window.loss / window.steps as f64,
            accuracy: window.right / window.targets.max(1) as f64,
            gradient_norm,
            learning_rate,
            tokens_per_second: window.tokens as f64 / took.max(1e-9),
            validation: None,
        };
        let left = elapsed.mul_f64((self.steps - step) as f64 / (step - self.begun_at) as f64);
        progress.at(step, || progress::of_step(&metrics, left));
        if step.is_multiple_of(every) || step == self.steps {
            self.metrics.push(metrics);
            *window = Window { time: elapsed, ..Default::default() };
        }
        Ok(())
    }

    /// Validates, where there is something to validate with, and saves.
    fn checkpoint(&mut self, progress: &Progress) -> Result<()> {
        self.watch.pause();
        let step = self.trainer.steps();
        if let Some(validation) = self.validate()? {
            progress.say(&format!(
                "step {}: validation loss {:.4}, {:.1} % of symbols right",
                grouped(step),
                validation.loss,
                100.0 * validation.accuracy
            ));
            self.note_validation(validation);
        }
        self.save()?;
        save_state(&self.trainer, &self.folder)?;
        self.watch.resume();
        Ok(())
    }

    fn validate(&mut self) -> Result<Option<Validation>> {
        let Some((_, batches)) = &self.data.valid else { return Ok(None) };
        let rows = batches.epoch(0, 0);
        let found = self.trainer.evaluate(rows.iter().map(|rows| batches.batch(rows)))?;
        Ok(Some(Validation { loss: found.loss, accuracy: found.accuracy, ..Default::default() }))
    }

    fn note_validation(&mut self, validation: Validation) {
        if let Some(last) = self.metrics.last_mut() {
            last.validation = Some(validation);
        }
    }

    fn save(&mut self) -> Result<()> {
        let parameters: HashMap<_, _> = self.trainer.parameters()?.into_iter().collect();
        let model = Model {
            config: self.data.config.clone(),
            transformer: self.trainer.model().clone(),
            parameters,
            source: self.data.source.1.clone(),
            target: self.data.target.1.clone(),
        };
        model.save(&self.folder, self.data.training().precision)?;
        self.save_metrics()
    }

    fn save_metrics(&mut self) -> Result<()> {
        let mut text = String::new();
        for metrics in &self.metrics {
            text.push_str(&metrics.to_json()?);
            text.push('\n');
        }
        Ok(self.folder.write(METRICS_FILE, text.as_bytes())?)
    }

    fn finish(mut self) -> Result<()> {
        let done = self.trainer.steps();
        if done == 0 {
            return Err(Interrupted.into());
        }
        self.save()?;
        let at = self.folder.path().display().to_string();
        if done < self.steps {
            save_state(&self.trainer, &self.folder)?;
            let (done, steps) = (grouped(done), grouped(self.steps));
            print(&format!("stopped by Ctrl-C after step {done} of {steps}; saved: {at}\n"))?;
            note(&format!("go on with: wgformer train --resume --model {at}"));
            return Ok(());
        }
        self.folder.remove(STATE_FILE)?;
        let took = self.watch.elapsed();
        note(&format!(
            "trained: {} in {} ({:.1} ms a step)",
            count((done - self.begun_at) as usize, "step"),
            time(took),
            took.as_secs_f64() * 1e3 / (done - self.begun_at).max(1) as f64
        ));
        if let Some(mut validation) = self.validate()? {
            print(&format!(
                "validation: loss {:.4}, {:.1} % of symbols right\n",
                validation.loss,
                100.0 * validation.accuracy
            ))?;
            self.translate_held_out(&mut validation)?;
            self.note_validation(validation);
            self.save_metrics()?;
        }
        print(&format!("saved: {at} ({CONFIG_FILE}, weights, vocabularies, metrics)\n"))
    }

    /// Decodes pairs that were not trained on, scores them and shows some.
    fn translate_held_out(&mut self, validation: &mut Validation) -> Result<()> {
        let Some((pairs, _)) = &self.data.valid else { return Ok(()) };
        let pairs = &pairs[..pairs.len().min(DECODED)];
        let model = self.trainer.model().clone();
        let max_length = model.config().max_target;
        let memory = self.trainer.memory().clone();
        let decoder = Decoder::with_memory(&self.gpu, model, memory, SpecialIds::default());
        let mut translator =
            Translator::with_decoder(decoder, self.data.source.clone(), self.data.target.clone());
        let most = translator.max_source();
        let mut progress = Progress::new("translating", pairs.len() as u64);
        let mut said = Vec::new();
        for part in pairs.chunks(DECODE_BATCH) {
            progress.at(said.len() as u64, || "held-out sentences translated".to_string());
            let sources: Vec<Vec<u32>> = part
                .iter()
                .map(|pair| {
                    let mut ids = translator.encode(&pair.source);
                    cut(&mut ids, most);
                    ids
                })
                .collect();
            said.extend(
                translator.translate_ids(&sources, DecodeSettings { batch: DECODE_BATCH, max_length })?,
            );
        }
        progress.end();
        let right: Vec<&str> = pairs.iter().map(|pair| pair.target.as_str()).collect();
        let mut text = String::new();
        let shown = said.iter().zip(pairs).take(SHOWN);
        if self.data.training().task.is_some() {
            let share = text::exact_match(&said, &right)?;
            validation.exact_match = Some(share);
            let wide = shown.clone().map(|(_, pair)| pair.source.chars().count()).max().unwrap_or(0);
            for (said, pair) in shown {
                let right =
                    if said == &pair.target { "right".into() } else { format!("wrong: {}", pair.target) };
                text.push_str(&format!("  {:<wide$}  {said}  {right}\n", pair.source));
            }
            let exact = (share * said.len() as f64).round() as u64;
            text.push_str(&format!(
                "exact match: {:.1} % ({exact} of {} held-out dates)\n",
                100.0 * share,
                said.len()
            ));
        } else {
            let bleu = text::bleu(&said, &right)?;
            validation.bleu = Some(bleu.score);
            for (said, pair) in shown {
                text.push_str(&format!("  {}\n    {said}\n    reference: {}\n", pair.source, pair.target));
            }
            text.push_str(&format!("BLEU: {bleu} on {}\n", count(said.len(), "pair")));
        }
        print(&text)
    }
}

/// Cuts a source to `most` ids, its end symbol kept.
pub fn cut(ids: &mut Vec<u32>, most: usize) {
    if ids.len() > most {
        ids.drain(most.saturating_sub(1)..ids.len() - 1);
    }
}

//! A model as a value: parameters on a device, arrays of ids in, arrays of numbers out.

use crate::gpu::{Executor, Gpu, Memory, Request, request};
use crate::ids::{Batch, BatchShape, END, SpecialIds, UNKNOWN};
use crate::infer::{DecodeSettings, Decoder};
use crate::nn::{self, ForwardGraph, Parameter, TransformerConfig, page_name};
use crate::plan::Plan;
use crate::train::{Evaluation, StepReport, Trainer, TrainerSettings};
use crate::{Error, HostTensor, Result};
use std::collections::{BTreeMap, HashMap};

/// Lengths are rounded up to a multiple of this, so that few plans are made.
const ROUND: usize = 8;
/// Sentences decoded together, at most.
const DECODED_TOGETHER: usize = 32;

/// An encoder-decoder Transformer on a device, to train and to translate with; the parameters are there once.
///
/// Sentences are ids, sources below [`TransformerConfig::source_vocabulary`] and targets below
/// [`TransformerConfig::target_vocabulary`]. The ids 0 to 3 have a meaning of their own ([`crate::ids`]), and begin and
/// end are added here: give what is between them.
///
/// ```no_run
/// use wgformer::{Transformer, nn::TransformerConfig};
///
/// # fn main() -> wgformer::Result<()> {
/// let sizes = TransformerConfig { source_vocabulary: 20, target_vocabulary: 20, ..TransformerConfig::preset("tiny")? };
/// let mut model = Transformer::new(sizes, 1)?;
/// let (sources, targets) = ([[4, 5, 6], [7, 8, 9]], [[6, 5, 4], [9, 8, 7]]);
/// for _ in 0..100 {
///     println!("{}", model.train_step(&sources, &targets)?.loss);
/// }
/// println!("{:?}", model.translate(&sources)?);
/// # Ok(())
/// # }
/// ```
pub struct Transformer {
    gpu: Gpu,
    trainer: Trainer,
    decoder: Decoder,
    forward: HashMap<BatchShape, (ForwardGraph, Executor)>,
}

impl Transformer {
    /// A model with random parameters, on the best adapter of this machine, to be trained with the default settings.
    ///
    /// # Errors
    /// Names the setting that is impossible; when there is no adapter, or the device is too small.
    pub fn new(config: TransformerConfig, seed: u64) -> Result<Self> {
        let gpu = request(&Request::default())?;
        Self::on(&gpu, config, TrainerSettings { seed, ..Default::default() })
    }

    /// A model with random parameters on this device.
    ///
    /// # Errors
    /// Names the setting that is impossible; when the device is too small.
    pub fn on(gpu: &Gpu, config: TransformerConfig, settings: TrainerSettings) -> Result<Self> {
        Self::around(gpu, Trainer::new(gpu, nn::Transformer::new(config)?, settings)?)
    }

    /// A model of the parameters that are already in this memory, as pages: see [`Trainer::with_memory`].
    ///
    /// # Errors
    /// Names the setting that is impossible or the page that is missing or of another length.
    pub fn with_memory(
        gpu: &Gpu,
        config: TransformerConfig,
        memory: Memory,
        settings: TrainerSettings,
    ) -> Result<Self> {
        Self::around(gpu, Trainer::with_memory(gpu, nn::Transformer::new(config)?, memory, settings)?)
    }

    fn around(gpu: &Gpu, trainer: Trainer) -> Result<Self> {
        let c = trainer.model().config();
        for (name, n) in
            [("source_vocabulary", c.source_vocabulary), ("target_vocabulary", c.target_vocabulary)]
        {
            if n <= UNKNOWN as usize {
                return Err(Error::config(name, format!("{n} has no room for the ids 0 to {UNKNOWN}")));
            }
        }
        let (model, memory) = (trainer.model().clone(), trainer.memory().clone());
        let decoder = Decoder::with_memory(gpu, model, memory, SpecialIds::default());
        Ok(Transformer { gpu: gpu.clone(), trainer, decoder, forward: HashMap::new() })
    }

    /// The settings.
    pub fn config(&self) -> &TransformerConfig {
        self.trainer.model().config()
    }

    /// The device.
    pub fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    /// The device memory: parameters, gradients and moments by page.
    pub fn memory(&self) -> &Memory {
        self.trainer.memory()
    }

    /// What trains it: for steps without a wait, and for a training that is to go on later.
    pub fn trainer(&mut self) -> &mut Trainer {
        &mut self.trainer
    }

    /// The logits f32 `[B, T, V]` of each target symbol and the end after it, given the source and the symbols before;
    /// without dropout. T is the length of the longest target and one; rows behind a shorter one's end mean nothing.
    ///
    /// # Errors
    /// When a sentence is too long or has an id that the vocabulary lacks, there are not as many sources as targets, or
    /// the device is too small or fails.
    pub fn forward<S: AsRef<[u32]>, T: AsRef<[u32]>>(
        &mut self,
        sources: &[S],
        targets: &[T],
    ) -> Result<HostTensor> {
        let Batch { shape, source, source_lengths, decoder_input, .. } = self.batch(sources, targets)?;
        let BatchShape { rows, source_len, target_len } = shape;
        if !self.forward.contains_key(&shape) {
            let io = self.trainer.model().forward_graph(shape)?;
            let plan = Plan::new(&io.graph, &[io.logits], self.gpu.profile())?;
            let executor = self.gpu.executor(plan, self.trainer.memory())?;
            self.forward.insert(shape, (io, executor));
        }
        let lost = || Error::Internal("a plan was lost".into());
        let (io, executor) = self.forward.get_mut(&shape).ok_or_else(lost)?;
        executor.write(io.source, &HostTensor::u32([rows, source_len], source))?;
        executor.write(io.source_lengths, &HostTensor::u32([rows], source_lengths))?;
        executor.write(io.decoder_input, &HostTensor::u32([rows, target_len], decoder_input))?;
        let found = executor.run_and_fetch()?.wait()?;
        let all = found.first().ok_or_else(lost)?.as_f32("logits")?;
        let vocabulary = self.config().target_vocabulary;
        let length = targets.iter().map(|t| t.as_ref().len() + 1).max().unwrap_or(1);
        let rows_of_text = all.chunks(target_len * vocabulary).flat_map(|row| &row[..length * vocabulary]);
        Ok(HostTensor::f32([rows, length, vocabulary], rows_of_text.copied().collect()))
    }

    /// One step of training on pairs of a source and a target: forward, backward, Adam. Waits for its numbers.
    ///
    /// # Errors
    /// As [`Transformer::forward`]; when the loss is no number.
    pub fn train_step<S: AsRef<[u32]>, T: AsRef<[u32]>>(
        &mut self,
        sources: &[S],
        targets: &[T],
    ) -> Result<StepReport> {
        let batch = self.batch(sources, targets)?;
        self.trainer.step(&batch)?.wait()
    }

    /// Mean loss and accuracy over pairs of a source and a target, without dropout.
    ///
    /// # Errors
    /// As [`Transformer::forward`].
    pub fn evaluate<S: AsRef<[u32]>, T: AsRef<[u32]>>(
        &mut self,
        sources: &[S],
        targets: &[T],
    ) -> Result<Evaluation> {
        let batch = self.batch(sources, targets)?;
        self.trainer.evaluate([batch])
    }

    /// The translation of each source, by the likeliest symbol at each place.
    ///
    /// # Errors
    /// When a source is too long or has an id that the vocabulary lacks, or the device is too small or fails.
    pub fn translate<S: AsRef<[u32]>>(&mut self, sources: &[S]) -> Result<Vec<Vec<u32>>> {
        let c = self.config();
        check("source", sources, c.source_vocabulary, c.max_source)?;
        let settings = DecodeSettings { batch: DECODED_TOGETHER, max_length: c.max_target };
        let ended: Vec<Vec<u32>> =
            sources.iter().map(|s| s.as_ref().iter().copied().chain([END]).collect()).collect();
        self.decoder.greedy(&ended, settings)
    }

    /// Pairs of a source and a target as a batch of this model's: checked, and padded to a multiple of 8 symbols.
    ///
    /// # Errors
    /// When a sentence is too long or has an id that the vocabulary lacks, there are not as many sources as targets, or
    /// none.
    pub fn batch<S: AsRef<[u32]>, T: AsRef<[u32]>>(&self, sources: &[S], targets: &[T]) -> Result<Batch> {
        let c = self.config();
        if sources.len() != targets.len() || sources.is_empty() {
            let problem = format!("{} sources and {} targets make no batch", sources.len(), targets.len());
            return Err(Error::Input(problem));
        }
        let shape = BatchShape {
            rows: sources.len(),
            source_len: check("source", sources, c.source_vocabulary, c.max_source)?,
            target_len: check("target", targets, c.target_vocabulary, c.max_target)?,
        };
        Ok(Batch::new(shape, true, sources.iter().map(S::as_ref).zip(targets.iter().map(T::as_ref))))
    }

    /// The parameters there are: names and shapes. Their numbers are in [`Transformer::parameters`].
    pub fn layout(&self) -> &[Parameter] {
        self.trainer.model().layout().parameters()
    }

    /// All parameters by name, read from the device.
    ///
    /// # Errors
    /// When the device fails.
    pub fn parameters(&self) -> Result<Vec<(String, HostTensor)>> {
        self.trainer.parameters()
    }

    /// One parameter, read from the device, in row-major order. For many, [`Transformer::parameters`] is faster.
    ///
    /// # Errors
    /// When there is none of this name, or the device fails.
    pub fn parameter(&self, name: &str) -> Result<Vec<f32>> {
        let p = self.find(name)?;
        let page = self.memory().read(&page_name("parameters", p.page))?;
        Ok(page.as_f32(name)?[p.start..p.start + p.shape.elements()].to_vec())
    }

    /// Sets one parameter. For many, [`Transformer::set_parameters`] is faster.
    ///
    /// # Errors
    /// When there is none of this name, it has another number of elements, or the device fails.
    pub fn set_parameter(&mut self, name: &str, values: &[f32]) -> Result<()> {
        self.set_parameters([(name, values)])
    }

    /// Sets parameters by name, all or, on an error of theirs, none; the others stay. Adam's moments stay too.
    ///
    /// # Errors
    /// As [`Transformer::set_parameter`].
    pub fn set_parameters<'a>(
        &mut self,
        values: impl IntoIterator<Item = (&'a str, &'a [f32])>,
    ) -> Result<()> {
        let mut pages: BTreeMap<usize, Vec<f32>> = BTreeMap::new();
        for (name, values) in values {
            let p = self.find(name)?.clone();
            if values.len() != p.shape.elements() {
                let got = format!("{} elements", values.len());
                return Err(Error::shape("parameters", name, &p.shape, got));
            }
            let page = match pages.entry(p.page) {
                std::collections::btree_map::Entry::Occupied(entry) => entry.into_mut(),
                std::collections::btree_map::Entry::Vacant(entry) => {
                    let page = self.trainer.memory().read(&page_name("parameters", p.page))?;
                    entry.insert(page.as_f32(name)?.to_vec())
                }
            };
            page[p.start..p.start + values.len()].copy_from_slice(values);
        }
        for (i, page) in pages {
            self.memory().write(&page_name("parameters", i), &HostTensor::f32([page.len()], page))?;
        }
        Ok(())
    }

    /// All parameters as the bytes of a safetensors file, in 32-bit floats.
    ///
    /// # Errors
    /// When the device fails.
    #[cfg(feature = "import")]
    pub fn to_safetensors(&self) -> Result<Vec<u8>> {
        let parameters = self.parameters()?.into_iter().collect();
        crate::model::weights::to_bytes(
            self.trainer.model().layout(),
            &parameters,
            crate::model::Precision::F32,
        )
    }

    /// Sets all parameters from the bytes of a safetensors file with exactly those, in 32-bit or 16-bit floats.
    ///
    /// # Errors
    /// Names the tensor that is missing, has another shape, or is none of this model; when the device fails.
    #[cfg(feature = "import")]
    pub fn load_safetensors(&mut self, bytes: &[u8]) -> Result<()> {
        let path = std::path::Path::new("safetensors");
        let tensors = crate::model::weights::from_bytes(bytes, path, self.trainer.model().layout())?;
        let floats = tensors.iter().map(|(name, t)| Ok((name.as_str(), t.as_f32(name)?)));
        self.set_parameters(floats.collect::<Result<Vec<_>>>()?)
    }

    fn find(&self, name: &str) -> Result<&Parameter> {
        let found = self.trainer.model().layout().get(name);
        found.ok_or_else(|| Error::Input(format!("there is no parameter {name:?} in this model")))
    }
}

/// Checks sentences, and gives the length to pad them to, one special symbol included. Kernels read a table's rows by
/// these ids without looking whether they are there.
fn check<S: AsRef<[u32]>>(side: &str, sentences: &[S], vocabulary: usize, longest: usize) -> Result<usize> {
    let mut most = 1;
    for (row, ids) in sentences.iter().map(S::as_ref).enumerate() {
        if let Some(id) = ids.iter().find(|&&id| id as usize >= vocabulary) {
            let problem = format!("{side} {row} has the id {id}, but there are {vocabulary} symbols");
            return Err(Error::Input(problem));
        }
        if ids.len() + 1 > longest {
            let problem = format!(
                "{side} {row} has {} symbols with one that is added, but the model takes {longest}",
                ids.len() + 1
            );
            return Err(Error::Input(problem));
        }
        most = most.max(ids.len() + 1);
    }
    Ok(most.next_multiple_of(ROUND).min(longest))
}

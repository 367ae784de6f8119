//! Text in, text out.

use super::{Model, Precision};
use crate::gpu::Gpu;
use crate::infer::{DecodeSettings, Decoder, SpecialIds};
use crate::nn::Transformer;
use crate::text::{Tokenizer, Vocabulary, vocab};
use crate::{Error, Result};

/// Translates text with a model on a device.
pub struct Translator {
    decoder: Decoder,
    source: (Tokenizer, Vocabulary),
    target: (Tokenizer, Vocabulary),
}

impl Translator {
    /// Puts a model on a device, with 32-bit floats.
    ///
    /// # Errors
    /// When the device is too small.
    pub fn new(gpu: &Gpu, model: &Model) -> Result<Self> {
        Self::with_precision(gpu, model, Precision::F32)
    }

    /// Puts a model on a device. With 16-bit floats it needs half of the memory; now and then another symbol is said,
    /// where two are nearly as likely.
    ///
    /// # Errors
    /// When the device is too small, or lacks the precision; names the parameter that has a number that the precision
    /// cannot hold.
    pub fn with_precision(gpu: &Gpu, model: &Model, precision: Precision) -> Result<Self> {
        let transformer = Transformer::with_precision(model.transformer.config().clone(), precision)?;
        let decoder = Decoder::new(gpu, transformer, &model.parameters, SpecialIds::default())?;
        let text = &model.config.text;
        let source = (text.source(), model.source.clone());
        Ok(Translator { decoder, source, target: (text.target(), model.target.clone()) })
    }

    /// Translates with a decoder that is there already.
    pub fn with_decoder(
        decoder: Decoder,
        source: (Tokenizer, Vocabulary),
        target: (Tokenizer, Vocabulary),
    ) -> Self {
        Translator { decoder, source, target }
    }

    /// What it translates with.
    pub fn decoder(&self) -> &Decoder {
        &self.decoder
    }

    /// The most symbols of a source, its end symbol included.
    pub fn max_source(&self) -> usize {
        self.decoder.model().config().max_source
    }

    /// The most symbols of a target, its end symbol included.
    pub fn max_target(&self) -> usize {
        self.decoder.model().config().max_target
    }

    /// The ids of a source, with the end symbol.
    pub fn encode(&self, text: &str) -> Vec<u32> {
        let (tokenizer, vocabulary) = &self.source;
        let mut ids = tokenizer.encode(vocabulary, text);
        ids.push(vocab::END);
        ids
    }

    /// Translates sentences, by the likeliest symbol at each place. A blank one gives a blank one.
    ///
    /// # Errors
    /// When one is longer than [`Translator::max_source`], or the device failed.
    pub fn translate<S: AsRef<str>>(&mut self, texts: &[S], settings: DecodeSettings) -> Result<Vec<String>> {
        let ids: Vec<Vec<u32>> = texts.iter().map(|text| self.encode(text.as_ref())).collect();
        let most = self.max_source();
        if let Some(i) = ids.iter().position(|ids| ids.len() > most) {
            let problem =
                format!("sentence {} has {} symbols, but the model takes {most}", i + 1, ids[i].len());
            return Err(Error::Input(problem));
        }
        self.translate_ids(&ids, settings)
    }

    /// Translates sentences that [`Translator::encode`] made.
    ///
    /// # Errors
    /// As [`Translator::translate`].
    pub fn translate_ids(&mut self, sources: &[Vec<u32>], settings: DecodeSettings) -> Result<Vec<String>> {
        // Of only an end symbol, a model makes something up.
        let blank = |ids: &Vec<u32>| ids.iter().all(|&id| id == vocab::END);
        let asked: Vec<Vec<u32>> = sources.iter().filter(|ids| !blank(ids)).cloned().collect();
        let mut said = self.decoder.greedy(&asked, settings)?.into_iter();
        let (tokenizer, vocabulary) = &self.target;
        let text = |ids: &Vec<u32>| match blank(ids) {
            true => String::new(),
            false => said.next().map_or(String::new(), |ids| tokenizer.decode(vocabulary, &ids)),
        };
        Ok(sources.iter().map(text).collect())
    }
}

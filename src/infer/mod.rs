//! Translation: the encoder once, then the decoder symbol by symbol with its keys and values kept on the device.

use crate::gpu::{Executor, Fetch, Gpu, Memory};
use crate::ids::BatchShape;
use crate::nn::{DecodeGraph, EncodeGraph, ParameterLayout, Precision, Transformer, page_name};
use crate::plan::Plan;
use crate::tensor::round_to_f16;
use crate::{Error, HostTensor, Result};
use std::collections::{HashMap, VecDeque};

pub use crate::ids::SpecialIds;

/// How many steps may be under way before the host looks at the symbols of the first: so it never waits for the last.
const AHEAD: usize = 3;

/// How a batch is decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DecodeSettings {
    /// Sentences decoded together, at most.
    pub batch: usize,
    /// Symbols said, at most; the model's `max_target` at most.
    pub max_length: usize,
}

struct Prepared {
    encode: (EncodeGraph, Executor),
    decode: (DecodeGraph, Executor),
}

/// Decodes on a device.
pub struct Decoder {
    gpu: Gpu,
    memory: Memory,
    model: Transformer,
    special: SpecialIds,
    prepared: HashMap<BatchShape, Prepared>,
}

impl Decoder {
    /// A decoder with these parameters, f32 by name. A model of 16-bit floats
    /// ([`Transformer::with_precision`]) gets them rounded, and needs half of the memory.
    ///
    /// # Errors
    /// When a parameter is missing, has another shape, or has a number that the model's precision cannot hold; when the
    /// device is too small, or lacks the precision.
    pub fn new(
        gpu: &Gpu,
        model: Transformer,
        parameters: &HashMap<String, HostTensor>,
        special: SpecialIds,
    ) -> Result<Self> {
        if model.precision() == Precision::F16 {
            gpu.profile().check_f16("the precision f16")?;
        }
        model.layout().check_limits(gpu.profile())?;
        let memory = Memory::new(gpu);
        write_parameters(&model, &memory, parameters)?;
        Ok(Decoder { gpu: gpu.clone(), memory, model, special, prepared: HashMap::new() })
    }

    /// A decoder over the parameters that are already in this memory, those of a trainer for example.
    pub fn with_memory(gpu: &Gpu, model: Transformer, memory: Memory, special: SpecialIds) -> Self {
        Decoder { gpu: gpu.clone(), memory, model, special, prepared: HashMap::new() }
    }

    /// The memory that parameters, caches and what is between layers are in.
    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    /// The model.
    pub fn model(&self) -> &Transformer {
        &self.model
    }

    /// The likeliest symbol at each place, for each source (ids with the end symbol), without begin and end symbols.
    ///
    /// # Errors
    /// When a source is empty or longer than the model allows, or the device failed.
    pub fn greedy(&mut self, sources: &[Vec<u32>], settings: DecodeSettings) -> Result<Vec<Vec<u32>>> {
        let mut order: Vec<usize> = (0..sources.len()).collect();
        order.sort_by_key(|&i| (sources[i].len(), i));
        let mut out = vec![Vec::new(); sources.len()];
        for group in order.chunks(settings.batch.max(1)) {
            let rows: Vec<&[u32]> = group.iter().map(|&i| sources[i].as_slice()).collect();
            for (&i, said) in group.iter().zip(self.greedy_batch(&rows, settings.max_length)?) {
                out[i] = said;
            }
        }
        Ok(out)
    }

    fn greedy_batch(&mut self, sources: &[&[u32]], max_length: usize) -> Result<Vec<Vec<u32>>> {
        let config = self.model.config();
        let longest = sources.iter().map(|s| s.len()).max().unwrap_or(0);
        if longest > config.max_source || sources.iter().any(|s| s.is_empty()) {
            let problem =
                format!("a source has {longest} symbols; the model takes 1 to {}", config.max_source);
            return Err(Error::Input(problem));
        }
        // Few shapes, so that few plans are made: rows to a power of two, lengths to a multiple of 8.
        let shape = BatchShape {
            rows: sources.len().next_power_of_two(),
            source_len: longest.next_multiple_of(8).min(config.max_source),
            target_len: config.max_target,
        };
        let special = self.special;
        let steps = max_length.min(shape.target_len);
        self.prepare(shape)?;
        let memory = self.memory.clone();
        let Some(p) = self.prepared.get_mut(&shape) else {
            return Err(Error::Internal("a plan was lost".into()));
        };

        let mut ids = vec![special.pad; shape.rows * shape.source_len];
        let mut lengths = vec![1u32; shape.rows];
        for (r, s) in sources.iter().enumerate() {
            ids[r * shape.source_len..r * shape.source_len + s.len()].copy_from_slice(s);
            lengths[r] = s.len() as u32;
        }
        let lengths = HostTensor::u32([shape.rows], lengths);
        let (graph, encode) = &mut p.encode;
        encode.write(graph.source, &HostTensor::u32([shape.rows, shape.source_len], ids))?;
        encode.write(graph.source_lengths, &lengths)?;
        encode.run()?;

        let (graph, decode) = &mut p.decode;
        memory.write(&graph.token, &HostTensor::u32([shape.rows, 1], vec![special.begin; shape.rows]))?;
        decode.write(graph.source_lengths, &lengths)?;
        let mut said: Vec<Vec<u32>> = vec![Vec::new(); sources.len()];
        let mut done = vec![false; sources.len()];
        let mut under_way: VecDeque<Fetch> = VecDeque::new();
        let mut submitted = 0;
        while !done.iter().all(|&d| d) {
            if submitted < steps && under_way.len() < AHEAD {
                let position = submitted as u32;
                decode.write(graph.position, &HostTensor::u32([1], vec![position]))?;
                decode.write(
                    graph.target_lengths,
                    &HostTensor::u32([shape.rows], vec![position + 1; shape.rows]),
                )?;
                under_way.push_back(decode.run_and_fetch()?);
                submitted += 1;
                continue;
            }
            let Some(fetch) = under_way.pop_front() else { break };
            let values = fetch.wait()?;
            for (r, &id) in values[0].as_u32("symbols")?.iter().take(sources.len()).enumerate() {
                if id == special.end {
                    done[r] = true;
                } else if !done[r] {
                    said[r].push(id);
                }
            }
        }
        for fetch in under_way {
            fetch.wait()?;
        }
        Ok(said)
    }

    fn prepare(&mut self, shape: BatchShape) -> Result<()> {
        if self.prepared.contains_key(&shape) {
            return Ok(());
        }
        let profile = self.gpu.profile();
        let encode = self.model.encode_graph(shape)?;
        let plan = Plan::new(&encode.graph, &[], profile)?;
        let encoder = self.gpu.executor(plan, &self.memory)?;
        let s = self.special;
        let forbid =
            [s.pad, s.begin, s.unknown].iter().filter(|&&id| id < 32).fold(0, |mask, id| mask | 1 << id);
        let decode = self.model.decode_graph(shape, forbid)?;
        let plan = Plan::new(&decode.graph, &[decode.next], profile)?;
        let decoder = self.gpu.executor(plan, &self.memory)?;
        self.prepared.insert(shape, Prepared { encode: (encode, encoder), decode: (decode, decoder) });
        Ok(())
    }
}

/// Writes parameters into the pages of a memory.
fn write_parameters(
    model: &Transformer,
    memory: &Memory,
    values: &HashMap<String, HostTensor>,
) -> Result<()> {
    let layout = model.layout();
    let pages: Vec<HostTensor> = match model.precision() {
        Precision::F32 => {
            let pages = pages(layout, values, |data, _| Ok(data.to_vec()))?;
            pages.into_iter().map(|page| HostTensor::f32([page.len()], page)).collect()
        }
        Precision::F16 => {
            let pages = pages(layout, values, round_to_f16)?;
            pages.into_iter().map(|page| HostTensor::f16([page.len()], page)).collect()
        }
    };
    pages.iter().enumerate().try_for_each(|(i, page)| memory.write(&page_name("parameters", i), page))
}

/// The pages, with what `convert` makes of each parameter's numbers and its name.
fn pages<T: Copy + Default>(
    layout: &ParameterLayout,
    values: &HashMap<String, HostTensor>,
    convert: impl Fn(&[f32], &str) -> Result<Vec<T>>,
) -> Result<Vec<Vec<T>>> {
    let mut pages: Vec<Vec<T>> = layout.pages().iter().map(|&n| vec![T::default(); n]).collect();
    for p in layout.parameters() {
        let value = values.get(&p.name);
        let got = value.map_or("nothing".to_string(), |v| v.ty().to_string());
        let fits = value.filter(|v| v.ty().shape == p.shape);
        let Some(fits) = fits else { return Err(Error::shape("model", p.name.clone(), &p.shape, got)) };
        let data = convert(fits.as_f32(&p.name)?, &p.name)?;
        pages[p.page][p.start..p.start + data.len()].copy_from_slice(&data);
    }
    Ok(pages)
}

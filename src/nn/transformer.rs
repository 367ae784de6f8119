//! The encoder-decoder Transformer: stacks of layers, and the graphs of training, evaluation and decoding.

use super::config::{Positions, Precision, TransformerConfig, Tying};
use super::layers::{Builder, Stream};
use super::params::{Init, ParameterLayout, Parameters, page_name};
use crate::graph::{Graph, ValueId};
use crate::ids::{BatchShape, PAD};
use crate::ops::cross_entropy::{Chunks, CrossEntropy, Loss};
use crate::ops::embedding::EmbeddingInputs;
use crate::ops::matmul::{Form, MatMul};
use crate::ops::optimizer::{AdamPages, AdamSettings};
use crate::ops::{argmax, cache_write, cross_entropy, embedding, layout, matmul, optimizer};
use crate::{DType, Error, HostTensor, Result, TensorType};

/// What it costs, for each row of a batch, to leave some out of the loss, as rows of logits for one symbol. On llvmpipe about
/// 200 (half of the rows left out of 512: no gain with 200 symbols, a sixth of a step with 2000, a quarter with 8000). No GPU
/// was measured.
const GATHER_COST: f64 = 128.0;

/// What is minimised.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Objective {
    /// Label smoothing (section 5.4).
    pub label_smoothing: f64,
    /// Logits take at most this many bytes at a time; more are computed in chunks of rows.
    pub max_logits_bytes: u64,
    /// Each layer is computed a second time for its gradients, instead of keeping its values until then: less memory for
    /// a third more work, and the same bits.
    pub recompute: bool,
}

impl Default for Objective {
    fn default() -> Self {
        Objective { label_smoothing: 0.1, max_logits_bytes: 128 << 20, recompute: false }
    }
}

/// How parameters are updated.
#[derive(Clone, Debug, PartialEq)]
pub struct Optimizer {
    /// Adam's settings.
    pub adam: AdamSettings,
    /// Gradients are scaled down to this global norm.
    pub clip_norm: Option<f64>,
}

/// A graph with its inputs and results: of a training step where it has an optimiser, else of an evaluation.
#[derive(Clone, Debug)]
pub struct LossGraph {
    /// The graph.
    pub graph: Graph,
    /// `u32[B, S]`: source ids, padded with [`PAD`].
    pub source: ValueId,
    /// `u32[B]`: source lengths.
    pub source_lengths: ValueId,
    /// `u32[B, T]`: what the decoder is given, begin symbol first.
    pub decoder_input: ValueId,
    /// `u32[B, T]`: what it should say, end symbol last; padding is ignored. With `places`, `u32[R]`: at those only.
    pub targets: ValueId,
    /// `u32[R]`: the places among the B T that the loss looks at, each once, where it does not look at all of them
    /// ([`Transformer::loss_graph_of`]).
    pub places: Option<ValueId>,
    /// `u32[2]`: seed and step, for dropout. `None` in an evaluation.
    pub seed: Option<ValueId>,
    /// `f32[4]`: what changes per step for the optimiser (see [`optimizer::adam`]).
    pub schedule: Option<ValueId>,
    /// `f32[B, S, C]`: the encoder's output.
    pub memory: ValueId,
    /// `f32[B T, C]`: the decoder's output.
    pub decoded: ValueId,
    /// `f32[.., V]`: the logits of B T rows, or of R, in chunks of rows.
    pub logits: Vec<ValueId>,
    /// `f32[1]`: the mean loss over the targets.
    pub loss: ValueId,
    /// `f32[3]`: sum of the losses, number of right predictions, number of targets.
    pub stats: ValueId,
    /// `f32[2]`: global norm of the gradients before clipping, and the factor of the clipping.
    pub gradient_norm: Option<ValueId>,
    /// The gradient pages, in a training step.
    pub gradients: Vec<ValueId>,
}

impl LossGraph {
    /// What a step gives back: loss, stats, and in a training step the gradient norm.
    pub fn outputs(&self) -> Vec<ValueId> {
        [self.loss, self.stats].into_iter().chain(self.gradient_norm).collect()
    }
}

/// A graph that computes the logits of a batch by teacher forcing, without dropout.
#[derive(Clone, Debug)]
pub struct ForwardGraph {
    /// The graph.
    pub graph: Graph,
    /// `u32[B, S]`: source ids, padded with [`PAD`].
    pub source: ValueId,
    /// `u32[B]`: source lengths.
    pub source_lengths: ValueId,
    /// `u32[B, T]`: what the decoder is given, begin symbol first.
    pub decoder_input: ValueId,
    /// `f32[B, T, V]`: the logits of the symbol after each place.
    pub logits: ValueId,
}

/// A graph that encodes a batch and keeps each decoder layer's keys and values of the memory as states.
#[derive(Clone, Debug)]
pub struct EncodeGraph {
    /// The graph.
    pub graph: Graph,
    /// `u32[B, S]`.
    pub source: ValueId,
    /// `u32[B]`.
    pub source_lengths: ValueId,
}

/// A graph that says one symbol more for each row of a batch.
#[derive(Clone, Debug)]
pub struct DecodeGraph {
    /// The graph.
    pub graph: Graph,
    /// `u32[B]`.
    pub source_lengths: ValueId,
    /// `u32[1]`: how many symbols were said before.
    pub position: ValueId,
    /// `u32[B]`: position + 1.
    pub target_lengths: ValueId,
    /// The name of the state `u32[B, 1]` with the last symbol of each row; the begin symbols to start with.
    pub token: String,
    /// `u32[B]`: the symbol said.
    pub next: ValueId,
}

/// A Transformer's settings and parameters' layout. It knows no device: [`crate::Transformer`] is one that runs.
#[derive(Clone, Debug)]
pub struct Transformer {
    config: TransformerConfig,
    layout: ParameterLayout,
}

impl Transformer {
    /// Checks the settings and lays out the parameters.
    ///
    /// # Errors
    /// Names the first setting that is impossible.
    pub fn new(config: TransformerConfig) -> Result<Self> {
        Self::with_precision(config, Precision::F32)
    }

    /// The same with parameters of this type, in which its graphs also store what is between layers; kernels compute in 32
    /// bits, and logits have them. With 16-bit floats it can only be used, not trained, and on devices with
    /// [`DeviceProfile::f16`](crate::DeviceProfile::f16).
    ///
    /// # Errors
    /// Names the first setting that is impossible.
    pub fn with_precision(config: TransformerConfig, precision: Precision) -> Result<Self> {
        config.validate()?;
        let mut parameters = Parameters::declaring();
        let mut graph = Graph::new();
        // Tables of sinusoids are no parameters: here they would be worked out for nothing.
        let declared = match config.positions {
            Positions::Learned => config.clone(),
            Positions::Sinusoidal | Positions::SinusoidalHalves => {
                TransformerConfig { max_source: 1, max_target: 1, ..config.clone() }
            }
        };
        let mut b = Builder::new(&mut graph, &mut parameters, &declared, None);
        let ids = b.graph.input("ids", TensorType::u32([1, 1]));
        let memory = b.encoder(ids, None)?;
        let decoded = b.decoder(ids, memory, None)?;
        b.logits(decoded)?;
        let layout = parameters.into_layout_of(precision);
        Ok(Transformer { config, layout })
    }

    /// The settings.
    pub fn config(&self) -> &TransformerConfig {
        &self.config
    }

    /// The type of its parameters.
    pub fn precision(&self) -> Precision {
        self.layout.precision()
    }

    /// The parameters.
    pub fn layout(&self) -> &ParameterLayout {
        &self.layout
    }

    /// The graph of the logits, by teacher forcing.
    ///
    /// # Errors
    /// When the batch is longer than the model allows.
    pub fn forward_graph(&self, shape: BatchShape) -> Result<ForwardGraph> {
        self.check(shape)?;
        let mut graph = Graph::new();
        let given = Given::new(&mut graph, shape);
        let mut parameters = Parameters::of(&self.layout, &mut graph);
        let mut b = Builder::new(&mut graph, &mut parameters, &self.config, None);
        let (_, decoded) = given.decoded(&mut b)?;
        let logits = b.logits(decoded)?;
        let Given { source, source_lengths, decoder_input } = given;
        Ok(ForwardGraph { graph, source, source_lengths, decoder_input, logits })
    }

    /// The graph of a training step (with an optimiser) or of an evaluation (without), by teacher forcing.
    ///
    /// # Errors
    /// When the batch is longer than the model allows, or the model has 16-bit floats.
    pub fn loss_graph(
        &self,
        shape: BatchShape,
        objective: &Objective,
        optimizer: Option<&Optimizer>,
    ) -> Result<LossGraph> {
        self.loss_graph_of(shape, shape.rows.saturating_mul(shape.target_len), objective, optimizer)
    }

    /// How many rows [`Transformer::loss_graph_of`] is to be made for, of a batch that has so many targets: these, rounded up
    /// to an eighth of B T so that there are few graphs; all B T where leaving out padding saves less than it costs.
    pub fn loss_rows(&self, shape: BatchShape, targets: usize) -> usize {
        let all = shape.rows.saturating_mul(shape.target_len);
        // What no graph is made for.
        if all > u32::MAX as usize || targets > all {
            return all;
        }
        let step = all.div_ceil(8).next_multiple_of(8);
        let rows = targets.max(1).next_multiple_of(step).min(all);
        let saved = (all - rows) as f64 * self.config.target_vocabulary as f64;
        if saved < GATHER_COST * all as f64 { all } else { rows }
    }

    /// [`Transformer::loss_graph`] of a batch of which only `loss_rows` of the B T places have targets, or fewer: only for
    /// these are there logits. The loss and its gradients are the same but for rounding.
    ///
    /// # Errors
    /// When the batch is longer than the model allows, or has fewer places.
    pub fn loss_graph_of(
        &self,
        shape: BatchShape,
        loss_rows: usize,
        objective: &Objective,
        optimizer: Option<&Optimizer>,
    ) -> Result<LossGraph> {
        self.check(shape)?;
        if self.precision() != Precision::F32 {
            return Err(Error::config("precision", "f16 is for using a model: losses take 32-bit floats"));
        }
        let BatchShape { rows, target_len: t, .. } = shape;
        if loss_rows == 0 || loss_rows > rows * t {
            return Err(Error::shape("batch", "loss rows", format!("from 1 to {}", rows * t), loss_rows));
        }
        let mut graph = Graph::new();
        let g = &mut graph;
        let given = Given::new(g, shape);
        let all = loss_rows == rows * t;
        let targets = match all {
            true => g.input("targets", TensorType::u32([rows, t])),
            false => g.input("targets", TensorType::u32([loss_rows])),
        };
        let places = (!all).then(|| g.input("loss_places", TensorType::u32([loss_rows])));
        let seed = optimizer.map(|_| g.input("seed", TensorType::u32([2])));
        let mut parameters = Parameters::of(&self.layout, g);

        let mut b = Builder::new(g, &mut parameters, &self.config, seed);
        b.recompute = objective.recompute && optimizer.is_some();
        let (memory, decoded) = given.decoded(&mut b)?;
        let decoded = layout::reshape(b.graph, decoded, [rows * t, self.config.width])?;
        let looked_at = match places {
            None => decoded,
            // No sum in the gradient: each place is there once.
            Some(ids) => b.graph.scoped("loss_rows", |g| {
                let inputs =
                    EmbeddingInputs { ids, table: decoded, positions: None, offset: None, seed: None };
                embedding::embedding(g, inputs, 1.0, None)
            })?,
        };
        let flat_targets = layout::reshape(b.graph, targets, [loss_rows])?;
        let settings = CrossEntropy { ignore: PAD, smoothing: objective.label_smoothing };
        let chunks = Chunks { vocabulary: self.config.target_vocabulary, bytes: objective.max_logits_bytes };
        let mut logits = Vec::new();
        let project = |b: &mut Builder, x| {
            let chunk = b.logits(x)?;
            logits.push(chunk);
            Ok(chunk)
        };
        let Loss { loss, stats } =
            cross_entropy::chunked(&mut b, looked_at, flat_targets, chunks, settings, |b| b.graph, project)?;

        let Given { source, source_lengths, decoder_input } = given;
        let mut out = LossGraph {
            source,
            source_lengths,
            decoder_input,
            targets,
            places,
            seed,
            schedule: None,
            memory,
            decoded,
            logits,
            loss,
            stats,
            gradient_norm: None,
            gradients: Vec::new(),
            graph: Graph::new(),
        };
        if let Some(optimizer) = optimizer {
            out.gradients = self.gradients(g, &parameters, loss)?;
            g.push_scope("optimizer");
            let schedule = g.input("schedule", TensorType::f32([4]));
            let norm = optimizer::gradient_norm(g, &out.gradients, None, optimizer.clip_norm)?;
            for (i, (&page, &gradients)) in parameters.pages().iter().zip(&out.gradients).enumerate() {
                let ty = g.value(page).ty.clone();
                let pages = AdamPages {
                    parameters: page,
                    m: g.state(page_name("adam.m", i), ty.clone()),
                    v: g.state(page_name("adam.v", i), ty),
                    gradients,
                };
                let settings = AdamSettings { decay: self.layout.decayed(i), ..optimizer.adam.clone() };
                optimizer::adam(g, pages, schedule, norm, settings)?;
            }
            g.pop_scope();
            out.schedule = Some(schedule);
            out.gradient_norm = Some(norm);
        }
        out.graph = graph;
        Ok(out)
    }

    /// Appends the gradients of `loss` by all parameters, as pages.
    ///
    /// # Errors
    /// When a parameter does not take part in the loss.
    pub fn gradients(&self, g: &mut Graph, parameters: &Parameters, loss: ValueId) -> Result<Vec<ValueId>> {
        let views = self.layout.parameters().iter().map(|p| {
            let missing = || Error::Internal(format!("{} is no part of the graph", p.name));
            parameters.view(&p.name).ok_or_else(missing)
        });
        let views = views.collect::<Result<Vec<_>>>()?;
        let one = g.constant("one", HostTensor::f32([1], vec![1.0]));
        let gradients = g.backward(&[(loss, one)], &views)?;
        let mut pages = Vec::new();
        for (i, &n) in self.layout.pages().iter().enumerate() {
            let (mut parts, mut starts) = (Vec::new(), Vec::new());
            for (p, d) in self.layout.parameters().iter().zip(&gradients).filter(|(p, _)| p.page == i) {
                parts.push(d.ok_or_else(|| Error::Internal(format!("{} has no gradient", p.name)))?);
                starts.push(p.start);
            }
            let state = g.state(page_name("gradients", i), TensorType::f32([n]));
            pages.push(layout::pack_into(g, state, &parts, &starts)?);
        }
        Ok(pages)
    }

    /// The graph that encodes a batch for decoding.
    ///
    /// # Errors
    /// When the batch is longer than the model allows.
    pub fn encode_graph(&self, shape: BatchShape) -> Result<EncodeGraph> {
        self.check(shape)?;
        let mut graph = Graph::new();
        let g = &mut graph;
        let source = g.input("source", TensorType::u32([shape.rows, shape.source_len]));
        let source_lengths = g.input("source_lengths", TensorType::u32([shape.rows]));
        let mut parameters = Parameters::of(&self.layout, g);
        let mut b = Builder::new(g, &mut parameters, &self.config, None);
        let memory = b.encoder(source, Some(source_lengths))?;
        b.keep_memory(memory, shape)?;
        Ok(EncodeGraph { graph, source, source_lengths })
    }

    /// The graph of one decoding step, after [`Transformer::encode_graph`] of the same shape. The symbols of ids in the
    /// bit mask `forbid` are never said.
    ///
    /// # Errors
    /// When the batch is longer than the model allows.
    pub fn decode_graph(&self, shape: BatchShape, forbid: u32) -> Result<DecodeGraph> {
        self.check(shape)?;
        let rows = shape.rows;
        let mut graph = Graph::new();
        let g = &mut graph;
        let source_lengths = g.input("source_lengths", TensorType::u32([rows]));
        let target_lengths = g.input("target_lengths", TensorType::u32([rows]));
        let position = g.input("position", TensorType::u32([1]));
        let token_name = format!("decode.token.{rows}");
        let token = g.state(token_name.clone(), TensorType::u32([rows, 1]));
        let mut parameters = Parameters::of(&self.layout, g);
        let mut b = Builder::new(g, &mut parameters, &self.config, None);
        let decoded = b.decoder_step(token, position, target_lengths, source_lengths, shape)?;
        let decoded = layout::reshape(b.graph, decoded, [rows, self.config.width])?;
        let logits = b.logits(decoded)?;
        let next = argmax::argmax(g, logits, forbid)?;
        let said = layout::reshape(g, next, [rows, 1])?;
        cache_write::cache_write(g, token, said, None)?;
        Ok(DecodeGraph { graph, source_lengths, position, target_lengths, token: token_name, next })
    }

    fn check(&self, shape: BatchShape) -> Result<()> {
        let c = &self.config;
        // Kernels count symbols in 32 bits.
        let most_rows = u32::MAX as usize / shape.source_len.max(shape.target_len).max(1);
        for (side, got, most) in [
            ("rows", shape.rows, most_rows),
            ("source", shape.source_len, c.max_source),
            ("target", shape.target_len, c.max_target),
        ] {
            if got == 0 || got > most {
                return Err(Error::shape("batch", side, format!("from 1 to {most}"), got));
            }
        }
        Ok(())
    }
}

/// What encoder and decoder are given by teacher forcing.
struct Given {
    source: ValueId,
    source_lengths: ValueId,
    decoder_input: ValueId,
}

impl Given {
    fn new(g: &mut Graph, shape: BatchShape) -> Given {
        let BatchShape { rows, source_len, target_len } = shape;
        Given {
            source: g.input("source", TensorType::u32([rows, source_len])),
            source_lengths: g.input("source_lengths", TensorType::u32([rows])),
            decoder_input: g.input("decoder_input", TensorType::u32([rows, target_len])),
        }
    }

    /// The encoder's output [B, S, C] and the decoder's [B, T, C].
    fn decoded(&self, b: &mut Builder) -> Result<(ValueId, ValueId)> {
        let memory = b.encoder(self.source, Some(self.source_lengths))?;
        Ok((memory, b.decoder(self.decoder_input, memory, Some(self.source_lengths))?))
    }
}

/// The names of the decoding states of a layer, for one batch shape.
fn cache_name(kind: &str, layer: usize, shape: BatchShape) -> String {
    let BatchShape { rows, source_len, target_len } = shape;
    format!("decode.{kind}.{layer}.{rows}x{source_len}x{target_len}")
}

impl Builder<'_, '_> {
    /// The symbols' embeddings with positions (sections 3.4 and 3.5) and dropout: ids [B, T] to [B, T, C].
    fn embed(&mut self, side: &str, ids: ValueId, offset: Option<ValueId>) -> Result<ValueId> {
        let c = self.config;
        let (vocabulary, longest) = if side == "source" {
            (c.source_vocabulary, c.max_source)
        } else {
            (c.target_vocabulary, c.max_target)
        };
        let table = self.embedding_table(side, vocabulary)?;
        let longest = longest.max(1);
        let positions = match c.positions {
            Positions::Learned => self.scoped(format!("{side}_positions"), |b| {
                b.parameter("weight", &[longest, c.width], Init::Normal((c.width as f64).powf(-0.5)))
            })?,
            Positions::Sinusoidal => self.constant(embedding::sinusoid_interleaved(longest, c.width))?,
            Positions::SinusoidalHalves => self.constant(embedding::sinusoid_halves(longest, c.width))?,
        };
        let scale = if c.scale_embeddings { (c.width as f64).sqrt() } else { 1.0 };
        let dropout = self.dropout(c.dropout);
        let inputs = EmbeddingInputs { ids, table, positions: Some(positions), offset, seed: self.seed };
        self.graph.push_scope(format!("{side}_embedding"));
        let out = embedding::embedding(self.graph, inputs, scale, dropout);
        self.graph.pop_scope();
        out
    }

    /// Positions as a constant of the type of the parameters.
    fn constant(&mut self, positions: HostTensor) -> Result<ValueId> {
        let name = "positions";
        let value = match self.dtype() {
            DType::F16 => {
                let shape = positions.ty().shape;
                HostTensor::rounded_to_f16(shape, positions.as_f32(name)?, name)?
            }
            _ => positions,
        };
        Ok(self.graph.constant(name, value))
    }

    fn embedding_table(&mut self, side: &str, vocabulary: usize) -> Result<ValueId> {
        let c = self.config;
        let name = match c.tying {
            Tying::All | Tying::Embeddings => "embedding".to_string(),
            Tying::None | Tying::Output => format!("{side}_embedding"),
        };
        let init = Init::Normal((c.width as f64).powf(-0.5));
        self.scoped(name, |b| b.parameter("weight", &[vocabulary, c.width], init))
    }

    /// The encoder: ids [B, S] to the memory [B, S, C].
    pub fn encoder(&mut self, ids: ValueId, lengths: Option<ValueId>) -> Result<ValueId> {
        let x = self.embed("source", ids, None)?;
        self.encoder_stack(x, lengths)
    }

    /// The encoder's layers, over embeddings [B, S, C].
    pub fn encoder_stack(&mut self, x: ValueId, lengths: Option<ValueId>) -> Result<ValueId> {
        let layers = self.config.encoder_layers;
        self.scoped("encoder", |b| {
            let mut stream = Stream::new(x);
            for i in 0..layers {
                stream = b.layer(i, |b| {
                    let stream =
                        b.sublayer("self_attn", stream, |b, x| b.self_attention(x, false, lengths))?;
                    b.sublayer("feed_forward", stream, |b, x| b.feed_forward(x))
                })?;
            }
            b.end_of_stack(stream)
        })
    }

    /// The decoder: ids [B, T] and the memory [B, S, C] to [B, T, C]. Padding at the end of a target is only seen by
    /// padding, since each position sees itself and those before it.
    pub fn decoder(
        &mut self,
        ids: ValueId,
        memory: ValueId,
        source_lengths: Option<ValueId>,
    ) -> Result<ValueId> {
        let x = self.embed("target", ids, None)?;
        self.decoder_stack(
            x,
            source_lengths,
            |b, _, x| b.self_attention(x, true, None),
            |b, _| b.memory_keys_values(memory),
        )
    }

    /// The decoder's layers, over embeddings [B, T, C]; the closures give a layer's self-attention, and its keys and
    /// values of the memory.
    fn decoder_stack(
        &mut self,
        x: ValueId,
        source_lengths: Option<ValueId>,
        self_attention: impl Fn(&mut Self, usize, ValueId) -> Result<ValueId>,
        memory: impl Fn(&mut Self, usize) -> Result<ValueId>,
    ) -> Result<ValueId> {
        let layers = self.config.decoder_layers;
        self.scoped("decoder", |b| {
            let mut stream = Stream::new(x);
            for i in 0..layers {
                stream = b.layer(i, |b| {
                    let stream = b.sublayer("self_attn", stream, |b, x| self_attention(b, i, x))?;
                    let stream = b.sublayer("cross_attn", stream, |b, x| {
                        let kv = memory(b, i)?;
                        b.cross_attention(x, kv, source_lengths)
                    })?;
                    b.sublayer("feed_forward", stream, |b, x| b.feed_forward(x))
                })?;
            }
            b.end_of_stack(stream)
        })
    }

    /// Keeps each decoder layer's keys and values of the memory as states.
    fn keep_memory(&mut self, memory: ValueId, shape: BatchShape) -> Result<()> {
        let width = self.config.width;
        for i in 0..self.config.decoder_layers {
            let kv =
                self.scoped(format!("decoder.layers.{i}.cross_attn"), |b| b.memory_keys_values(memory))?;
            let ty = TensorType::new(self.dtype(), [shape.rows, shape.source_len, 2 * width]);
            let state = self.graph.state(cache_name("memory", i, shape), ty);
            cache_write::cache_write(self.graph, state, kv, None)?;
        }
        Ok(())
    }

    /// The decoder for one symbol a row, with the caches of the symbols before: ids [B, 1] to [B, 1, C].
    fn decoder_step(
        &mut self,
        ids: ValueId,
        position: ValueId,
        target_lengths: ValueId,
        source_lengths: ValueId,
        shape: BatchShape,
    ) -> Result<ValueId> {
        let width = self.config.width;
        let x = self.embed("target", ids, Some(position))?;
        self.decoder_stack(
            x,
            Some(source_lengths),
            |b, i, x| {
                let ty = TensorType::new(b.dtype(), [shape.rows, shape.target_len, 3 * width]);
                let cache = b.graph.state(cache_name("self", i, shape), ty);
                b.cached_self_attention(x, cache, position, target_lengths)
            },
            |b, i| {
                let ty = TensorType::new(b.dtype(), [shape.rows, shape.source_len, 2 * width]);
                Ok(b.graph.state(cache_name("memory", i, shape), ty))
            },
        )
    }

    /// The logits f32 [N, V] of decoder outputs [N, C].
    pub fn logits(&mut self, x: ValueId) -> Result<ValueId> {
        let c = self.config;
        let v = c.target_vocabulary;
        if matches!(c.tying, Tying::None | Tying::Embeddings) {
            return self.wide_linear("output", x, v);
        }
        let table = self.embedding_table("target", v)?;
        let bias = match c.bias {
            true => Some(self.scoped("output", |b| b.parameter("bias", &[v], Init::Zeros))?),
            false => None,
        };
        self.graph.push_scope("output");
        let with = MatMul { b: Form::Transposed, bias, wide: true, ..Default::default() };
        let out = matmul::rows_times(self.graph, x, table, with);
        self.graph.pop_scope();
        out
    }
}

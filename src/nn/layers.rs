//! Sub-layers and layers: functions that add nodes. The paper's sections are those of 'Attention is all you need'.

use super::config::{NormPlacement, TransformerConfig};
use super::params::{Init, Parameters};
use crate::graph::{Graph, ValueId};
use crate::ops::attention::{self, Attention, AttentionInputs, Packing};
use crate::ops::elementwise::Activation;
use crate::ops::matmul::MatMul;
use crate::ops::random::Dropout;
use crate::ops::{cache_write, dropout, layer_norm, matmul};
use crate::{DType, Result};

/// What the functions of this module add to: a graph, with its parameters, for these settings.
pub struct Builder<'a, 'p> {
    /// The graph.
    pub graph: &'a mut Graph,
    /// Its parameters.
    pub parameters: &'a mut Parameters<'p>,
    /// The settings.
    pub config: &'a TransformerConfig,
    /// The input `u32[2]` (seed, step) of dropout; `None` leaves dropout out.
    pub seed: Option<ValueId>,
    /// Whether layers are computed again for their gradients: see [`Graph::recompute_from`].
    pub recompute: bool,
    sites: u32,
}

/// The residual stream: what has been added up, and a sub-layer's output that is still to be added.
#[derive(Clone, Copy, Debug)]
pub struct Stream {
    sum: ValueId,
    pending: Option<ValueId>,
}

impl Stream {
    /// A stream that starts with this value.
    pub fn new(sum: ValueId) -> Self {
        Stream { sum, pending: None }
    }
}

impl<'a, 'p> Builder<'a, 'p> {
    /// A builder; with `seed`, dropout is on.
    pub fn new(
        graph: &'a mut Graph,
        parameters: &'a mut Parameters<'p>,
        config: &'a TransformerConfig,
        seed: Option<ValueId>,
    ) -> Self {
        Builder { graph, parameters, config, seed, recompute: false, sites: 0 }
    }

    /// The type of the parameters, and so of all values between layers.
    pub fn dtype(&self) -> DType {
        self.parameters.dtype()
    }

    /// Runs `f` in the scope `name`, which is a part of the names of parameters.
    pub fn scoped<T>(&mut self, name: impl Into<String>, f: impl FnOnce(&mut Self) -> T) -> T {
        self.graph.push_scope(name.into());
        let out = f(self);
        self.graph.pop_scope();
        out
    }

    /// Layer `i` of a stack.
    pub(super) fn layer<T>(&mut self, i: usize, f: impl FnOnce(&mut Self) -> T) -> T {
        let first = self.graph.nodes().len();
        let out = self.scoped(format!("layers.{i}"), f);
        if self.recompute {
            self.graph.recompute_from(first);
        }
        out
    }

    /// The parameter `name` of the current scope.
    pub fn parameter(&mut self, name: &str, shape: &[usize], init: Init) -> Result<ValueId> {
        let scope = self.graph.scope();
        let full = if scope.is_empty() { name.to_string() } else { format!("{scope}.{name}") };
        self.parameters.get(self.graph, full, shape, init)
    }

    /// The next place of dropout with probability `p`, where dropout is on and `p` is above zero. Each place has a
    /// number of its own, so that no two use the same random numbers.
    pub fn dropout(&mut self, p: f64) -> Option<Dropout> {
        self.sites += 1;
        (self.seed.is_some() && p > 0.0).then_some(Dropout { p, site: self.sites })
    }

    /// act(x W + b): [.., inputs] to [.., outputs].
    pub fn linear(&mut self, name: &str, x: ValueId, outputs: usize, act: Activation) -> Result<ValueId> {
        self.packed_linear(name, x, &[outputs], act)
    }

    /// Several linear layers over the same input as one matmul; the outputs stand side by side.
    fn packed_linear(
        &mut self,
        name: &str,
        x: ValueId,
        outputs: &[usize],
        act: Activation,
    ) -> Result<ValueId> {
        self.any_linear(name, x, outputs, MatMul { activation: act, ..Default::default() })
    }

    /// A linear layer with an f32 result, whatever the type of the parameters.
    pub(super) fn wide_linear(&mut self, name: &str, x: ValueId, outputs: usize) -> Result<ValueId> {
        self.any_linear(name, x, &[outputs], MatMul { wide: true, ..Default::default() })
    }

    fn any_linear(&mut self, name: &str, x: ValueId, outputs: &[usize], with: MatMul) -> Result<ValueId> {
        let inputs = self.graph.shape(x).last();
        let total: usize = outputs.iter().sum();
        let bias = self.config.bias;
        self.scoped(name, |b| {
            let init = Init::Xavier { fan_in: inputs, fan_out: outputs[0] };
            let w = b.parameter("weight", &[inputs, total], init)?;
            let bias = if bias { Some(b.parameter("bias", &[total], Init::Zeros)?) } else { None };
            matmul::rows_times(b.graph, x, w, MatMul { bias, ..with })
        })
    }

    /// LayerNorm over the width.
    fn norm_parameters(&mut self, name: &str) -> Result<(ValueId, ValueId)> {
        let width = self.config.width;
        self.scoped(name, |b| {
            Ok((b.parameter("weight", &[width], Init::Ones)?, b.parameter("bias", &[width], Init::Zeros)?))
        })
    }

    /// Adds what is pending to the stream, with dropout, and normalises: (normalised, the stream as a sum).
    fn add_norm(&mut self, name: &str, stream: Stream) -> Result<(ValueId, ValueId)> {
        let (gamma, beta) = self.norm_parameters(name)?;
        let eps = self.config.norm_epsilon;
        match stream.pending {
            None => Ok((layer_norm::layer_norm(self.graph, stream.sum, gamma, beta, eps)?, stream.sum)),
            Some(x) => {
                let dropout = self.dropout(self.config.dropout);
                layer_norm::add_norm(self.graph, stream.sum, x, gamma, beta, eps, dropout, self.seed)
            }
        }
    }

    /// A sub-layer with its residual connection and LayerNorm (section 3.1), which stands as the settings say.
    pub(super) fn sublayer(
        &mut self,
        name: &str,
        stream: Stream,
        f: impl FnOnce(&mut Self, ValueId) -> Result<ValueId>,
    ) -> Result<Stream> {
        let norm = format!("{name}_norm");
        match self.config.norm {
            NormPlacement::Pre => {
                let (x, sum) = self.add_norm(&norm, stream)?;
                let out = self.scoped(name, |b| f(b, x))?;
                Ok(Stream { sum, pending: Some(out) })
            }
            NormPlacement::Post => {
                let out = self.scoped(name, |b| f(b, stream.sum))?;
                let (y, _) = self.add_norm(&norm, Stream { sum: stream.sum, pending: Some(out) })?;
                Ok(Stream::new(y))
            }
        }
    }

    /// The end of a stack: the stream with what is pending, normalised where the settings say so.
    pub(super) fn end_of_stack(&mut self, stream: Stream) -> Result<ValueId> {
        if self.config.final_norm {
            return Ok(self.add_norm("norm", stream)?.0);
        }
        match stream.pending {
            None => Ok(stream.sum),
            Some(x) => {
                let dropout = self.dropout(self.config.dropout);
                dropout::residual_dropout(self.graph, stream.sum, x, dropout, self.seed)
            }
        }
    }

    fn attention(&mut self, qkv: Packing, causal: bool, key_lengths: Option<ValueId>) -> Result<ValueId> {
        let dropout = self.dropout(self.config.attention_dropout);
        let settings = Attention { causal, dropout, ..Attention::new(self.config.heads) };
        let seed = dropout.and(self.seed);
        let inputs = AttentionInputs { key_lengths, seed, ..AttentionInputs::new(qkv) };
        let out = attention::attention(self.graph, settings, inputs)?;
        self.linear("out", out, self.config.width, Activation::None)
    }

    fn queries_keys_values(&mut self, x: ValueId) -> Result<ValueId> {
        let c = self.config.width;
        self.packed_linear("qkv", x, &[c, c, c], Activation::None)
    }

    /// Multi-head self-attention over x [B, T, C] (section 3.2.2): one matmul for queries, keys and values.
    pub fn self_attention(&mut self, x: ValueId, causal: bool, lengths: Option<ValueId>) -> Result<ValueId> {
        let qkv = self.queries_keys_values(x)?;
        self.attention(Packing::Qkv(qkv), causal, lengths)
    }

    /// Self-attention of one new symbol a row, x [B, 1, C], over those before it, whose queries, keys and values are
    /// kept in `cache` [B, T, 3 C]; the new ones are written there at `position`.
    pub fn cached_self_attention(
        &mut self,
        x: ValueId,
        cache: ValueId,
        position: ValueId,
        lengths: ValueId,
    ) -> Result<ValueId> {
        let qkv = self.queries_keys_values(x)?;
        cache_write::cache_write(self.graph, cache, qkv, Some(position))?;
        self.attention(Packing::Cached { qkv, cache }, false, Some(lengths))
    }

    /// Keys and values [B, S, 2 C] of the encoder's output, for `cross_attention`.
    pub fn memory_keys_values(&mut self, memory: ValueId) -> Result<ValueId> {
        let c = self.config.width;
        self.packed_linear("kv", memory, &[c, c], Activation::None)
    }

    /// Multi-head attention of x [B, T, C] over keys and values [B, S, 2 C] (section 3.2.3).
    pub fn cross_attention(&mut self, x: ValueId, kv: ValueId, lengths: Option<ValueId>) -> Result<ValueId> {
        let q = self.linear("q", x, self.config.width, Activation::None)?;
        self.attention(Packing::Kv { q, kv }, false, lengths)
    }

    /// The position-wise feed-forward network (section 3.3).
    pub fn feed_forward(&mut self, x: ValueId) -> Result<ValueId> {
        let (c, f, act) = (self.config.width, self.config.feed_forward, self.config.activation);
        let hidden = self.linear("up", x, f, act)?;
        self.linear("down", hidden, c, Activation::None)
    }
}

//! The settings of a Transformer, and the presets.

use crate::ops::elementwise::Activation;
use crate::{DType, Error, Result};

/// Where LayerNorm stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(
    feature = "import",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "kebab-case")
)]
pub enum NormPlacement {
    /// LayerNorm(x + Sublayer(x)), as in 'Attention is all you need', section 3.1.
    Post,
    /// x + Sublayer(LayerNorm(x)).
    Pre,
}

/// Which of the three embedding matrices are one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(
    feature = "import",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "kebab-case")
)]
pub enum Tying {
    /// Source embedding, target embedding and output projection are three matrices.
    None,
    /// The output projection is the target embedding.
    Output,
    /// Source and target embedding are one, the output projection is another; source and target share a vocabulary.
    Embeddings,
    /// All three are one; source and target share a vocabulary ('Attention is all you need', section 3.4).
    All,
}

/// How positions are told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(
    feature = "import",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "kebab-case")
)]
pub enum Positions {
    /// Sines at even and cosines at odd columns, as in the paper, section 3.5.
    Sinusoidal,
    /// Sines in the first half of the columns and cosines in the second, as in Marian.
    SinusoidalHalves,
    /// A learned matrix.
    Learned,
}

/// The type of a model's numbers: in its file, or on the device, where 16-bit floats are for what needs no gradients.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(
    feature = "import",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "kebab-case")
)]
pub enum Precision {
    /// 32-bit floats: exactly what was trained.
    #[default]
    F32,
    /// 16-bit floats: half the size, rounded to 11 bits.
    F16,
}

impl Precision {
    /// The type of an element.
    pub fn dtype(self) -> DType {
        match self {
            Precision::F32 => DType::F32,
            Precision::F16 => DType::F16,
        }
    }
}

/// The settings of an encoder-decoder Transformer. Every size is free.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(
    feature = "import",
    derive(serde::Serialize, serde::Deserialize),
    serde(default, deny_unknown_fields)
)]
pub struct TransformerConfig {
    /// Symbols of the source vocabulary.
    pub source_vocabulary: usize,
    /// Symbols of the target vocabulary.
    pub target_vocabulary: usize,
    /// Width C of the model.
    pub width: usize,
    /// Attention heads H; they must divide the width.
    pub heads: usize,
    /// Width F of the feed-forward sub-layers.
    pub feed_forward: usize,
    /// Encoder layers.
    pub encoder_layers: usize,
    /// Decoder layers.
    pub decoder_layers: usize,
    /// Where LayerNorm stands.
    pub norm: NormPlacement,
    /// A LayerNorm after the last layer of each stack. Pre-norm needs it to be stable.
    pub final_norm: bool,
    /// Activation of the feed-forward sub-layers.
    pub activation: Activation,
    /// Biases in the linear layers.
    pub bias: bool,
    /// Which embedding matrices are one.
    pub tying: Tying,
    /// How positions are told.
    pub positions: Positions,
    /// Embeddings are multiplied by sqrt(C) (section 3.4).
    pub scale_embeddings: bool,
    /// Dropout probability on sub-layer outputs and embeddings.
    pub dropout: f64,
    /// Dropout probability on attention probabilities.
    pub attention_dropout: f64,
    /// Epsilon of LayerNorm.
    pub norm_epsilon: f64,
    /// The longest source, end symbol included.
    pub max_source: usize,
    /// The longest target, begin or end symbol included.
    pub max_target: usize,
}

impl Default for TransformerConfig {
    fn default() -> Self {
        TransformerConfig {
            source_vocabulary: 0,
            target_vocabulary: 0,
            width: 512,
            heads: 8,
            feed_forward: 2048,
            encoder_layers: 6,
            decoder_layers: 6,
            norm: NormPlacement::Post,
            final_norm: false,
            activation: Activation::Relu,
            bias: true,
            tying: Tying::Output,
            positions: Positions::Sinusoidal,
            scale_embeddings: true,
            dropout: 0.1,
            attention_dropout: 0.1,
            norm_epsilon: 1e-5,
            max_source: 256,
            max_target: 256,
        }
    }
}

/// The names of the presets, smallest first.
pub const PRESETS: [&str; 4] = ["tiny", "small", "base", "big"];

impl TransformerConfig {
    /// A preset by name: `tiny` (2+2 layers, C 64, H 4, F 256), `small` (3+3, 256, 8, 1024), `base` (6+6, 512, 8, 2048)
    /// or `big` (6+6, 1024, 16, 4096); the last two are those of the paper, table 3.
    ///
    /// # Errors
    /// When there is no such preset.
    pub fn preset(name: &str) -> Result<Self> {
        let (layers, width, heads, feed_forward, dropout) = match name {
            "tiny" => (2, 64, 4, 256, 0.1),
            "small" => (3, 256, 8, 1024, 0.1),
            "base" => (6, 512, 8, 2048, 0.1),
            "big" => (6, 1024, 16, 4096, 0.3),
            _ => {
                return Err(Error::config("preset", format!("{name:?} is none of {}", PRESETS.join(", "))));
            }
        };
        Ok(TransformerConfig {
            encoder_layers: layers,
            decoder_layers: layers,
            width,
            heads,
            feed_forward,
            dropout,
            attention_dropout: 0.1,
            ..Default::default()
        })
    }

    /// Width D of a head.
    pub fn head_width(&self) -> usize {
        self.width / self.heads.max(1)
    }

    /// Checks that the settings fit together.
    ///
    /// # Errors
    /// Names the first setting that does not, and why.
    pub fn validate(&self) -> Result<()> {
        let sizes = [
            ("source_vocabulary", self.source_vocabulary, 1 << 24),
            ("target_vocabulary", self.target_vocabulary, 1 << 24),
            ("width", self.width, 1 << 16),
            ("heads", self.heads, 1 << 12),
            ("feed_forward", self.feed_forward, 1 << 20),
            ("max_source", self.max_source, 1 << 20),
            ("max_target", self.max_target, 1 << 20),
        ];
        for (name, value, most) in sizes {
            if value == 0 || value > most {
                return Err(Error::config(name, format!("{value} is not between 1 and {most}")));
            }
        }
        // Positions are made on the host, before anything is known of the device.
        for (name, value) in [("max_source", self.max_source), ("max_target", self.max_target)] {
            if value * self.width > 1 << 28 {
                let problem = format!("{value} positions of width {} are above 2^28 numbers", self.width);
                return Err(Error::config(name, problem));
            }
        }
        for (name, value) in
            [("encoder_layers", self.encoder_layers), ("decoder_layers", self.decoder_layers)]
        {
            if value > 1024 {
                return Err(Error::config(name, format!("{value} is above 1024")));
            }
        }
        if !self.width.is_multiple_of(self.heads) {
            let problem = format!("{} heads do not divide the width {}", self.heads, self.width);
            return Err(Error::config("heads", problem));
        }
        if self.head_width() > 256 {
            let problem = format!(
                "a head would be {} wide; at most 256 is possible: use more heads",
                self.head_width()
            );
            return Err(Error::config("heads", problem));
        }
        for (name, p) in [("dropout", self.dropout), ("attention_dropout", self.attention_dropout)] {
            if !(0.0..1.0).contains(&p) {
                return Err(Error::config(name, format!("{p} is not at least 0 and below 1")));
            }
        }
        if !(self.norm_epsilon > 0.0 && self.norm_epsilon < 1.0) {
            return Err(Error::config(
                "norm_epsilon",
                format!("{} is not between 0 and 1", self.norm_epsilon),
            ));
        }
        if self.positions != Positions::Learned && !self.width.is_multiple_of(2) {
            return Err(Error::config(
                "width",
                format!("{} is odd: sinusoidal positions need an even one", self.width),
            ));
        }
        if matches!(self.tying, Tying::All | Tying::Embeddings)
            && self.source_vocabulary != self.target_vocabulary
        {
            let problem = format!(
                "source and target embedding can be one only with one vocabulary, but there are {} source and {} target symbols",
                self.source_vocabulary, self.target_vocabulary
            );
            return Err(Error::config("tying", problem));
        }
        Ok(())
    }
}

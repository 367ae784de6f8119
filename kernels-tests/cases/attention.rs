//! Attention: every packing, mask and head width; the shapes around the tiles of each variant.

use wgformer::HostTensor;
use wgformer::graph::ValueId;
use wgformer::ops::attention::{Attention, AttentionInputs, Packing, attention, attention_probabilities};
use wgformer::ops::random::Dropout;
use wgformer::testing::{Build, Case};

/// How queries, keys and values are given.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Packed {
    Separate,
    Qkv,
    Kv,
}

#[derive(Clone, Copy, Debug)]
pub enum Mask {
    None,
    /// `[T, S]`
    Shared,
    /// `[B, T, S]`; all keys of some queries are masked.
    Each,
}

/// One attention.
#[derive(Clone, Debug)]
pub struct Setup {
    pub batch: usize,
    pub t: usize,
    pub s: usize,
    pub heads: usize,
    pub head: usize,
    pub packed: Packed,
    pub causal: bool,
    pub lengths: Option<Vec<u32>>,
    pub mask: Mask,
    pub bias: bool,
    pub dropout: Option<f64>,
    pub scale: Option<f64>,
    /// The standard deviation of q and k.
    pub size: f64,
    /// q, k and v are of 16-bit floats.
    pub half: bool,
}

fn setup(batch: usize, t: usize, s: usize, heads: usize, head: usize) -> Setup {
    Setup {
        batch,
        t,
        s,
        heads,
        head,
        packed: if t == s { Packed::Qkv } else { Packed::Kv },
        causal: false,
        lengths: None,
        mask: Mask::None,
        bias: false,
        dropout: None,
        scale: None,
        size: 1.0,
        half: false,
    }
}

impl Setup {
    fn build(&self, b: &mut Build) -> wgformer::Result<(Attention, AttentionInputs)> {
        let (batch, width) = (self.batch, self.heads * self.head);
        let normal: fn(&mut Build, &str, [usize; 3], f64) -> ValueId =
            if self.half { Build::half } else { Build::normal };
        let qkv = match self.packed {
            Packed::Separate => Packing::Separate {
                q: normal(b, "q", [batch, self.t, width], self.size),
                k: normal(b, "k", [batch, self.s, width], self.size),
                v: normal(b, "v", [batch, self.s, width], 1.0),
            },
            Packed::Qkv => Packing::Qkv(normal(b, "qkv", [batch, self.t, 3 * width], self.size)),
            Packed::Kv => Packing::Kv {
                q: normal(b, "q", [batch, self.t, width], self.size),
                kv: normal(b, "kv", [batch, self.s, 2 * width], self.size),
            },
        };
        let mut inputs = AttentionInputs::new(qkv);
        inputs.key_lengths = self.lengths.as_ref().map(|l| b.lengths("lengths", l));
        inputs.mask = match self.mask {
            Mask::None => None,
            Mask::Shared => Some(b.ids("mask", [self.t, self.s], 2)),
            Mask::Each => {
                // Every third query of the first batch row sees nothing.
                let bits = (0..batch * self.t * self.s).map(|i| {
                    let dead = i < self.t * self.s && (i / self.s).is_multiple_of(3);
                    u32::from(!dead && i.wrapping_mul(2654435761) >> 7 & 3 != 0)
                });
                let bits = HostTensor::u32([batch, self.t, self.s], bits.collect());
                Some(b.fixed("mask", bits))
            }
        };
        if self.bias {
            inputs.bias = Some(b.normal("bias", [self.heads, self.t, self.s], 1.0));
        }
        if self.dropout.is_some() {
            inputs.seed = Some(b.fixed("seed", HostTensor::u32([2], vec![11, 3])));
        }
        let settings = Attention {
            causal: self.causal,
            scale: self.scale,
            dropout: self.dropout.map(|p| Dropout { p, site: 7 }),
            ..Attention::new(self.heads)
        };
        Ok((settings, inputs))
    }

    pub fn case(&self, name: impl Into<String>) -> Case {
        let this = self.clone();
        let case = Case::new(name, move |b: &mut Build| {
            let (settings, inputs) = this.build(b)?;
            Ok(vec![attention(b.graph(), settings, inputs)?])
        });
        if self.half { case.values_only() } else { case }
            // Kernels that own many rows: with checks 12 to 39 s each, on 2 cores that were shared.
            .slow_to_compile(self.t.max(self.s) > 16)
    }
}

/// Changes a setup.
type Change = fn(&mut Setup);

const OPTIONS: &[(&str, Change)] = &[
    ("plain", |_| {}),
    ("causal", |a| a.causal = true),
    ("lengths", |a| a.lengths = Some(vec![a.s as u32, 0, 1, a.s as u32 / 2 + 1])),
    ("no key at all", |a| a.lengths = Some(vec![0; 4])),
    ("causal lengths", |a| {
        a.causal = true;
        a.lengths = Some(vec![3, a.s as u32, 0, 4]);
    }),
    ("mask", |a| a.mask = Mask::Shared),
    ("mask each", |a| a.mask = Mask::Each),
    ("bias", |a| a.bias = true),
    ("mask bias", |a| {
        a.mask = Mask::Each;
        a.bias = true;
    }),
    ("scale", |a| a.scale = Some(0.7)),
    ("dropout 0.1", |a| a.dropout = Some(0.1)),
    ("dropout 0.5 causal lengths", |a| {
        a.dropout = Some(0.5);
        a.causal = true;
        a.lengths = Some(vec![a.s as u32 - 1, a.s as u32, 0, 2]);
    }),
    ("all", |a| {
        a.dropout = Some(0.1);
        a.causal = true;
        a.lengths = Some(vec![a.s as u32 - 1, a.s as u32, 0, 2]);
        a.mask = Mask::Each;
        a.bias = true;
        a.scale = Some(0.2);
    }),
];

/// 16-bit floats: packings, head widths that are vec4 or not, one tile and several, a cache.
fn halves(cases: &mut Vec<Case>) {
    let half = |name: String, mut a: Setup, change: Change| {
        change(&mut a);
        a.half = true;
        a.case(format!("f16, {name}"))
    };
    for (packed, name) in [(Packed::Kv, "kv"), (Packed::Qkv, "qkv"), (Packed::Separate, "separate")] {
        for (option, change) in OPTIONS.iter().filter(|(o, _)| ["plain", "causal lengths", "all"].contains(o))
        {
            let a = Setup { packed, ..setup(4, 7, if packed == Packed::Qkv { 7 } else { 6 }, 2, 8) };
            cases.push(half(format!("{option} {name}"), a, *change));
        }
    }
    for head in [1, 4, 20, 64, 67] {
        cases.push(half(format!("head {head}"), setup(2, 9, 13, 1, head), |a| a.causal = true));
    }
    for n in [1, 15, 65] {
        cases.push(half(format!("square causal {n}"), setup(2, n, n, 2, 16), |a| a.causal = true));
    }
    cases.push(half("decode".into(), setup(3, 1, 300, 4, 16), |a| a.lengths = Some(vec![1, 37, 300])));
    cases.push(half("large scores".into(), setup(2, 19, 23, 2, 16), |a| a.size = 6.0));
    cases.push(half("denormal".into(), setup(2, 9, 13, 1, 32), |a| a.size = 1e-6));
    cases.push(
        Case::new("f16, cached", |b: &mut Build| {
            let (qkv, cache) = (b.half("qkv", [3, 2, 96], 1.0), b.half("cache", [3, 19, 96], 1.0));
            let mut inputs = AttentionInputs::new(Packing::Cached { qkv, cache });
            inputs.key_lengths = Some(b.lengths("lengths", &[19, 1, 8]));
            Ok(vec![attention(b.graph(), Attention::new(2), inputs)?])
        })
        .values_only(),
    );
    cases.push(
        Case::new("f16, probabilities", |b: &mut Build| {
            let a = Setup { half: true, ..setup(4, 7, 10, 3, 8) };
            let (settings, inputs) = a.build(b)?;
            Ok(vec![attention_probabilities(b.graph(), settings, inputs)?])
        })
        .values_only(),
    );
}

pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (option, change) in OPTIONS {
        // Every combination of options is other kernels to compile, whose time grows with the rows of a workgroup: so few
        // rows, and all packings with a few of the combinations.
        let packings = [(Packed::Kv, "kv"), (Packed::Qkv, "qkv"), (Packed::Separate, "separate")];
        let all = ["plain", "causal lengths", "all"].contains(option);
        for (packed, name) in packings.into_iter().take(if all { 3 } else { 1 }) {
            let mut a = setup(4, 7, if packed == Packed::Qkv { 7 } else { 6 }, 2, 8);
            a.packed = packed;
            change(&mut a);
            cases.push(a.case(format!("{option} {name}")));
        }
        // All of them together where there are several tiles.
        if *option == "all" {
            let mut a = setup(4, 35, 37, 2, 12);
            change(&mut a);
            cases.push(a.case("all, several tiles"));
            // So few keys that a workgroup can have them all, and give every gradient.
            a = setup(4, 35, 13, 2, 12);
            change(&mut a);
            cases.push(a.case("all, few keys"));
        }
    }
    // Head widths, with lengths around the tiles; those that leave lanes or columns free with few rows.
    for head in [32, 64, 67, 256] {
        cases.push(setup(2, 35, 37, 1, head).case(format!("head {head}")));
    }
    // The most chunks of scalars: as long to compile as all others together.
    cases.push(setup(2, 35, 37, 1, 255).case("head 255").values_only());
    for head in [1, 4, 20] {
        cases.push(setup(2, 7, 13, 1, head).case(format!("head {head}")));
    }
    for n in [2, 7, 8, 15, 16, 17, 31, 32, 33, 63, 64, 65, 130] {
        let mut a = setup(2, n, n, 2, 16);
        a.causal = true;
        cases.push(a.case(format!("square causal {n}")));
    }
    for (t, s) in [(1, 2), (2, 1), (1, 9), (9, 2), (1, 64), (1, 1025), (3, 257), (70, 5), (40, 8), (8, 40)] {
        let mut a = setup(2, t, s, 2, 16);
        // With one key the gradients of q and k are differences of equal numbers.
        cases.push(a.case(format!("T {t} S {s}")));
        if t > 1 {
            a.causal = true;
            cases.push(a.case(format!("T {t} S {s} causal")));
        }
    }
    // A cache longer than what it holds.
    let mut a = setup(3, 1, 100, 4, 16);
    a.lengths = Some(vec![1, 37, 100]);
    cases.push(a.case("decode"));
    cases.push(
        Case::new("cached", |b: &mut Build| {
            let qkv = b.normal("qkv", [3, 2, 96], 1.0);
            let cache = b.normal("cache", [3, 19, 96], 1.0);
            let mut inputs = AttentionInputs::new(Packing::Cached { qkv, cache });
            inputs.key_lengths = Some(b.lengths("lengths", &[19, 1, 8]));
            Ok(vec![attention(b.graph(), Attention::new(2), inputs)?])
        })
        .values_only(),
    );
    halves(&mut cases);
    // Enough pairs for one workgroup each.
    for (head, n) in [(20, 13), (13, 32)] {
        let mut a = setup(8, n, n, 4, head);
        a.causal = true;
        a.lengths = Some((0..8).map(|row| (row * 5) % (n as u32 + 1)).collect());
        cases.push(a.case(format!("few keys, {n} of {head}")));
    }
    // Many (batch, head) pairs, and one row each.
    cases.push(setup(64, 3, 5, 8, 16).case("many heads"));
    cases.push(setup(1, 1, 2, 1, 1).case("smallest"));
    // Large scores: a score of x rounds by eps x, and so does its exponential. In the hundreds one key has nearly all the
    // weight, and the gradients of q and k are nothing but differences of nearly equal numbers.
    let mut a = setup(2, 19, 23, 2, 16);
    a.packed = Packed::Separate;
    a.scale = Some(1.0);
    a.size = 2.5;
    cases.push(a.case("large scores"));
    a.size = 12.0;
    cases.push(a.case("scores in the hundreds"));
    let mut a = setup(2, 19, 23, 2, 16);
    a.size = 1e-6;
    a.packed = Packed::Separate;
    cases.push(a.case("small scores"));
    let mut a = setup(2, 35, 37, 1, 32);
    a.size = 1e-39;
    cases.push(a.case("denormal"));
    // More (batch, head) pairs than workgroups in a dimension.
    cases.push(setup(1025, 1, 2, 64, 1).case("many groups").values_only());
    // All keys alike: every key has the same weight.
    cases.push(Case::new("equal keys", |b: &mut Build| {
        let q = b.normal("q", [2, 35, 32], 3.0);
        let kv = (0..2 * 37 * 64).map(|i| (i % 64) as f32 * 0.1 - 3.0).collect();
        let kv = b.differentiable("kv", HostTensor::f32([2, 37, 64], kv));
        Ok(vec![attention(b.graph(), Attention::new(1), AttentionInputs::new(Packing::Kv { q, kv }))?])
    }));
    // A finite "minus infinity" as bias masks a key.
    cases.push(Case::new("bias masks", |b: &mut Build| {
        let q = b.normal("q", [2, 6, 16], 1.0);
        let kv = b.normal("kv", [2, 7, 32], 1.0);
        let bias = (0..2 * 6 * 7).map(|i| if i % 5 == 0 { f32::MIN } else { 0.1 * (i % 7) as f32 }).collect();
        let mut inputs = AttentionInputs::new(Packing::Kv { q, kv });
        inputs.bias = Some(b.fixed("bias", HostTensor::f32([2, 6, 7], bias)));
        Ok(vec![attention(b.graph(), Attention::new(2), inputs)?])
    }));
    for (option, change) in OPTIONS {
        let mut a = setup(4, 7, 10, 3, 8);
        change(&mut a);
        cases.push(
            Case::new(format!("probabilities {option}"), move |b: &mut Build| {
                let (settings, inputs) = a.build(b)?;
                Ok(vec![attention_probabilities(b.graph(), settings, inputs)?])
            })
            .values_only(),
        );
    }
    cases
}

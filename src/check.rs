//! Which kernels a device gets, and why not better ones: every family, lowered for work of a usual size. Data, for a host
//! that wants to tell of it or to decide by it; nothing runs.

use crate::gpu::Gpu;
use crate::graph::{Graph, ValueId};
use crate::kernel::{Kernel, Requires};
use crate::ops::attention::{Attention, AttentionInputs, Packing, attention};
use crate::ops::cross_entropy::{CrossEntropy, count_targets, cross_entropy};
use crate::ops::embedding::{EmbeddingInputs, embedding};
use crate::ops::matmul::MatMul;
use crate::ops::optimizer::{AdamPages, AdamSettings, adam, gradient_norm};
use crate::ops::random::Dropout;
use crate::ops::{argmax, cache_write, column_sum, dropout, elementwise, fma, layer_norm, matmul, softmax};
use crate::plan::Plan;
use crate::profile::{DeviceClass, DeviceProfile};
use crate::{HostTensor, Result, TensorType};
use std::fmt;

/// What a device has for a family of kernels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FamilyCheck {
    /// The family: the part of the names in [`FAMILIES`](crate::ops::FAMILIES) that its kernels begin with.
    pub family: &'static str,
    /// The kernels that are chosen, by name without the family; empty where the family cannot run.
    pub chosen: Vec<String>,
    /// Better kernels that there are for devices of this class, each with what this device lacks for it; those in `chosen`
    /// replace them.
    pub better: Vec<(String, String)>,
    /// Why the family cannot run at all, where it cannot.
    pub problem: Option<String>,
}

/// One line.
impl fmt::Display for FamilyCheck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let chosen = self.chosen.join(", ");
        match &self.problem {
            Some(problem) => write!(f, "{}: cannot run: {problem}", self.family),
            None if self.better.is_empty() => write!(f, "{}: {chosen}", self.family),
            None => {
                let better: Vec<_> =
                    self.better.iter().map(|(name, lack)| format!("{name}, which needs {lack}")).collect();
                write!(f, "{}: {chosen}, instead of {}", self.family, better.join("; "))
            }
        }
    }
}

impl Gpu {
    /// For each family of kernels what this device gets: [`check`] of its profile.
    pub fn check(&self) -> Vec<FamilyCheck> {
        check(self.profile())
    }
}

/// For each family of kernels: what a device of this profile gets for work of a usual size, and what it lacks for better
/// kernels.
pub fn check(profile: &DeviceProfile) -> Vec<FamilyCheck> {
    let best = best(profile.class);
    SAMPLES.iter().map(|&(family, sample)| one(family, sample, profile, &best)).collect()
}

/// A device of this class for which every variant is chosen.
fn best(class: DeviceClass) -> DeviceProfile {
    // What CPUs do best are sub-groups of the width of their vectors, 8 floats in AVX.
    let lanes = if class == DeviceClass::Cpu { 8 } else { 32 };
    DeviceProfile {
        class,
        subgroups: true,
        subgroup_min: lanes,
        subgroup_max: lanes,
        f16: true,
        max_storage_buffers: 16,
        max_workgroup_bytes: 32768,
        max_invocations: 1024,
        ..DeviceProfile::portable()
    }
}

fn one(family: &'static str, sample: Sample, profile: &DeviceProfile, best: &DeviceProfile) -> FamilyCheck {
    let mut out = FamilyCheck { family, chosen: Vec::new(), better: Vec::new(), problem: None };
    let kernels = |profile: &DeviceProfile| -> Result<Vec<Kernel>> {
        let mut graph = Graph::new();
        let outputs = sample(&mut graph)?;
        let of_family = |k: &Kernel| k.name.split('/').next() == Some(family);
        Ok(Plan::new(&graph, &outputs, profile)?.kernels.into_iter().filter(of_family).collect())
    };
    let variant = |k: &Kernel| k.name.split_once('/').map_or("forward", |(_, variant)| variant).to_string();
    match kernels(profile) {
        Ok(chosen) => out.chosen = distinct(chosen.iter().map(variant)),
        Err(e) => out.problem = Some(e.to_string()),
    }
    for kernel in kernels(best).unwrap_or_default() {
        let name = variant(&kernel);
        let known = out.chosen.contains(&name) || out.better.iter().any(|(better, _)| *better == name);
        if let Some(lack) = lack(profile, &kernel.requires).filter(|_| !known) {
            out.better.push((name, lack));
        }
    }
    out
}

fn distinct(names: impl Iterator<Item = String>) -> Vec<String> {
    let mut list: Vec<String> = names.collect();
    list.sort();
    list.dedup();
    list
}

/// What a device lacks of what a kernel requires.
fn lack(profile: &DeviceProfile, requires: &Requires) -> Option<String> {
    let has = match (profile.subgroups, profile.subgroup_size()) {
        (false, _) => "this device has none, or was made without the feature".to_string(),
        (true, Some(size)) => format!("this device has {size}"),
        (true, None) => format!("this device has {} to {}", profile.subgroup_min, profile.subgroup_max),
    };
    let subgroups = requires.subgroup_size.filter(|&n| profile.subgroup_size() != Some(n));
    let more = |what: &str, needed: u32, allowed: u32| {
        (needed > allowed).then(|| format!("{needed} {what} (this device allows {allowed})"))
    };
    subgroups
        .map(|n| format!("sub-groups of {n} ({has})"))
        .or_else(|| more("bytes of workgroup memory", requires.workgroup_bytes, profile.max_workgroup_bytes))
        .or_else(|| more("invocations a workgroup", requires.invocations, profile.max_invocations))
}

/// Adds nodes of a family and gives what is to be computed.
type Sample = fn(&mut Graph) -> Result<Vec<ValueId>>;

/// Rows, and their width: a batch of a small model.
const ROWS: usize = 512;
const WIDTH: usize = 256;

/// In the order of [`FAMILIES`](crate::ops::FAMILIES).
const SAMPLES: &[(&str, Sample)] = &[
    ("attention", |g| {
        let packed = floats(g, "qkv", &[16, ROWS / 16, 3 * WIDTH]);
        let inputs = AttentionInputs::new(Packing::Qkv(packed));
        let out = attention(g, Attention::new(8), inputs)?;
        with_gradient(g, out, &[packed])
    }),
    ("elementwise", |g| {
        let x = rows(g, "x");
        let twice = elementwise::scale(g, x, 2.0)?;
        Ok(vec![elementwise::add(g, twice, x)?])
    }),
    ("matmul", |g| {
        let weights = floats(g, "weights", &[WIDTH, WIDTH]);
        // Many rows, as in training, and few, as in decoding.
        let (many, few) = (rows(g, "many"), floats(g, "few", &[4, WIDTH]));
        let few = matmul::matmul(g, few, weights, MatMul::default())?;
        let out = matmul::matmul(g, many, weights, MatMul::default())?;
        let mut all = with_gradient(g, out, &[many, weights])?;
        all.push(few);
        Ok(all)
    }),
    ("column_sum", |g| {
        let x = rows(g, "x");
        Ok(vec![column_sum::column_sum(g, x)?])
    }),
    ("fma", |g| {
        let (start, factors) = (floats(g, "start", &[4096]), floats(g, "factors", &[2]));
        Ok(vec![fma::fma(g, start, factors, 16)?])
    }),
    ("dropout", |g| {
        let (x, seed) = (rows(g, "x"), g.input("seed", TensorType::u32([2])));
        Ok(vec![dropout::dropout(g, x, Dropout { p: 0.1, site: 0 }, seed)?])
    }),
    ("layer_norm", |g| {
        let (x, gamma, beta) = (rows(g, "x"), floats(g, "gamma", &[WIDTH]), floats(g, "beta", &[WIDTH]));
        let out = layer_norm::layer_norm(g, x, gamma, beta, 1e-5)?;
        with_gradient(g, out, &[x, gamma, beta])
    }),
    ("softmax", |g| {
        let x = rows(g, "x");
        let out = softmax::softmax(g, x)?;
        with_gradient(g, out, &[x])
    }),
    ("argmax", |g| {
        let x = rows(g, "x");
        Ok(vec![argmax::argmax(g, x, 0)?])
    }),
    ("cache_write", |g| {
        let (cache, x) = (g.state("cache", TensorType::f32([4, 32, WIDTH])), floats(g, "x", &[4, 1, WIDTH]));
        let offset = g.input("offset", TensorType::u32([1]));
        cache_write::cache_write(g, cache, x, Some(offset))?;
        Ok(Vec::new())
    }),
    ("cross_entropy", |g| {
        let (logits, targets) = (rows(g, "logits"), g.input("targets", TensorType::u32([ROWS])));
        let count = count_targets(g, targets, 0)?;
        let loss = cross_entropy(g, logits, targets, count, CrossEntropy { ignore: 0, smoothing: 0.1 })?.loss;
        let mut all = with_gradient(g, loss, &[logits])?;
        all.push(loss);
        Ok(all)
    }),
    ("embedding", |g| {
        let ids = g.input("ids", TensorType::u32([16, ROWS / 16]));
        let (table, positions) = (floats(g, "table", &[1000, WIDTH]), floats(g, "positions", &[64, WIDTH]));
        let inputs = EmbeddingInputs { ids, table, positions: Some(positions), offset: None, seed: None };
        let out = embedding(g, inputs, 1.0, None)?;
        with_gradient(g, out, &[table, positions])
    }),
    ("optimizer", |g| {
        let page = TensorType::f32([4096]);
        let [parameters, m, v] = ["parameters", "m", "v"].map(|name| g.state(name, page.clone()));
        let (gradients, schedule) = (g.input("gradients", page), floats(g, "schedule", &[4]));
        let norm = gradient_norm(g, &[gradients], None, Some(1.0))?;
        adam(g, AdamPages { parameters, m, v, gradients }, schedule, norm, AdamSettings::transformer())?;
        Ok(vec![norm])
    }),
];

fn floats(g: &mut Graph, name: &str, shape: &[usize]) -> ValueId {
    g.input(name, TensorType::f32(shape))
}

fn rows(g: &mut Graph, name: &str) -> ValueId {
    floats(g, name, &[ROWS, WIDTH])
}

/// A result and its gradients by these values.
fn with_gradient(g: &mut Graph, out: ValueId, by: &[ValueId]) -> Result<Vec<ValueId>> {
    let ty = g.value(out).ty.clone();
    let ones = HostTensor::f32(ty.shape.clone(), vec![1.0; ty.shape.elements()]);
    let d = g.constant("d", ones);
    let gradients = g.backward(&[(out, d)], by)?;
    Ok([Some(out)].into_iter().chain(gradients).flatten().collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::FAMILIES;

    #[test]
    fn every_family_is_there() {
        for family in FAMILIES {
            let of = |(name, _): &&(&str, Sample)| {
                family.name == *name
                    || family.name.strip_prefix(name).is_some_and(|rest| rest.starts_with('_'))
            };
            assert!(SAMPLES.iter().any(|s| of(&s)), "{}", family.name);
        }
    }

    #[test]
    fn the_best_device_lacks_nothing() {
        for class in [DeviceClass::Discrete, DeviceClass::Integrated, DeviceClass::Cpu] {
            for family in check(&best(class)) {
                assert!(family.better.is_empty() && family.problem.is_none(), "{family}");
                assert!(!family.chosen.is_empty(), "{family}");
            }
        }
    }

    #[test]
    fn what_is_lacking_is_named() {
        let find = |profile: &DeviceProfile, name: &str| {
            check(profile).into_iter().find(|f| f.family == name).expect("a family").to_string()
        };
        let four = DeviceProfile { subgroup_min: 4, subgroup_max: 4, ..best(DeviceClass::Cpu) };
        let text = find(&four, "attention");
        assert!(
            text.contains("instead of") && text.contains("sub-groups of 8 (this device has 4)"),
            "{text}"
        );
        let none = DeviceProfile { subgroups: false, ..best(DeviceClass::Cpu) };
        let text = find(&none, "matmul");
        assert!(text.contains("tile") && text.contains("subgroup, which needs sub-groups of 8"), "{text}");
        let few = DeviceProfile { max_storage_buffers: 4, ..DeviceProfile::portable() };
        let text = find(&few, "attention");
        assert!(
            text.contains("cannot run") && text.contains("max_storage_buffers_per_shader_stage"),
            "{text}"
        );
        assert_eq!(find(&few, "argmax"), find(&DeviceProfile::portable(), "argmax"));
    }
}

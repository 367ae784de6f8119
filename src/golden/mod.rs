//! Comparison with the outputs of other software: a folder of golden files, made elsewhere for fixed inputs, against what
//! the kernels give for the same inputs, forward and backward.
//!
//! The folder holds `index.json` and for each case in it `NAME.safetensors`. A case's kind is the first word of its name:
//! see [`KINDS`]. Here live reading, running and comparing; nothing here is used by models or training.

mod data;
mod models;
mod names;
mod ops;

use crate::gpu::{Gpu, Memory};
use crate::graph::{Graph, ValueId};
use crate::plan::Plan;
use crate::{DeviceProfile, Error, HostTensor, Result};
use data::{CaseData, Index};
use std::path::{Path, PathBuf};

/// The largest error that passes: 2e-5 of the largest magnitude of the tensor.
///
/// Both sides compute in 32-bit floats, with sums in different orders. Such a sum of a few hundred terms errs by some 10
/// units in the last place (1e-6 of it), and a few layers multiply that; a wrong formula errs by far more. A tensor of
/// zeros has no magnitude to compare with: see [`scale`].
pub const BOUND: f64 = 2e-5;

/// What errors are relative to: the largest magnitude of what is expected. Where that is 0 only, terms of the order of 1
/// cancel (the gradient of a softmax over one element), which may leave one rounding of them: 1e-7, which is [`BOUND`]
/// times 0.005.
pub fn scale(want: impl Iterator<Item = f32>) -> f64 {
    let largest = want.fold(0.0f64, |m, x| m.max((x as f64).abs()));
    if largest == 0.0 { 0.005 } else { largest }
}

/// The kinds of cases: the first word of their names, and what they are compared with.
pub const KINDS: [(&str, &str); 10] = [
    ("layernorm", "LayerNorm"),
    ("softmax", "softmax over the last dimension"),
    ("gelu", "GELU: gelu_none by the error function, gelu_tanh by the approximation"),
    ("cross_entropy", "mean cross-entropy with label smoothing"),
    ("sdpa", "scaled dot-product attention"),
    ("mha", "multi-head attention with its projections"),
    ("transformer", "a whole encoder-decoder, its loss, all gradients and one step of Adam"),
    ("encoder", "an encoder over embeddings"),
    ("adam", "steps of Adam"),
    ("adamw", "steps of Adam with decoupled weight decay"),
];

/// What came out of one case.
#[derive(Clone, Debug, PartialEq)]
pub struct CaseReport {
    /// The case.
    pub name: String,
    /// How many tensors were compared.
    pub tensors: usize,
    /// The largest error, relative to the largest magnitude of its tensor; infinite where a result is no number.
    pub error: f64,
    /// The tensor with that error; empty where none was compared.
    pub tensor: String,
    /// Whether every tensor was within [`BOUND`], and nothing else was wrong.
    pub ok: bool,
    /// What was wrong, in one line: the case could not be run, or more than the error of `tensor` did not fit.
    pub problem: Option<String>,
}

/// One case of a folder, not yet read.
#[derive(Clone, Debug)]
pub struct Case {
    name: String,
    folder: PathBuf,
    entry: serde_json::Value,
}

/// The cases that a folder's `index.json` names, by name.
///
/// # Errors
/// When the index is missing, above 16 MiB, or no JSON object.
pub fn cases(dir: &Path) -> Result<Vec<Case>> {
    let index = Index::read(dir)?;
    let case = |(name, entry)| Case { name, folder: dir.to_path_buf(), entry };
    Ok(index.entries.into_iter().map(case).collect())
}

/// Runs the cases of a folder whose names contain `filter`, on the device's own choice of kernels. A case that cannot be
/// read or run is reported as failed.
///
/// # Errors
/// When the index cannot be read.
pub fn run(gpu: &Gpu, dir: &Path, filter: Option<&str>) -> Result<Vec<CaseReport>> {
    let chosen = cases(dir)?.into_iter().filter(|c| filter.is_none_or(|f| c.name.contains(f)));
    Ok(chosen.map(|case| case.run(gpu, gpu.profile())).collect())
}

impl Case {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Runs it with the kernels for `profile`, which the device must be able to run.
    pub fn run(&self, gpu: &Gpu, profile: &DeviceProfile) -> CaseReport {
        let mut comparison = Comparison::default();
        let outcome = self.try_run(&Device { gpu, profile }, &mut comparison);
        let (error, tensor) = comparison.worst.unwrap_or_default();
        let problem = match outcome {
            Err(e) => Some(e.to_string().replace('\n', " ")),
            Ok(()) => comparison.problem,
        };
        let ok = problem.is_none() && error <= BOUND;
        CaseReport { name: self.name.clone(), tensors: comparison.tensors, error, tensor, ok, problem }
    }

    fn try_run(&self, device: &Device, comparison: &mut Comparison) -> Result<()> {
        let data = CaseData::read(&self.folder, &self.name, &self.entry)?;
        let path = data.path.clone();
        let kind = KINDS.iter().map(|k| k.0).find(|k| {
            let rest = self.name.strip_prefix(k);
            rest.is_some_and(|r| r.is_empty() || r.starts_with('_'))
        });
        let outcome = match kind {
            Some("layernorm") => ops::layer_norm(device, &data, comparison),
            Some("softmax") => ops::softmax(device, &data, comparison),
            Some("gelu") => ops::gelu(device, &data, comparison),
            Some("cross_entropy") => ops::cross_entropy(device, &data, comparison),
            Some("sdpa") => ops::attention(device, &data, comparison),
            Some("adam") => ops::adam(device, &data, false, comparison),
            Some("adamw") => ops::adam(device, &data, true, comparison),
            Some("mha") => models::multi_head_attention(device, &data, comparison),
            Some("encoder") => models::encoder(device, &data, comparison),
            Some("transformer") => models::transformer(device, &data, comparison),
            _ => {
                let known = KINDS.map(|k| k.0).join(", ");
                Err(data.problem(format!("case {} is of no known kind ({known})", self.name)))
            }
        };
        // An error from elsewhere does not say which case it is of.
        outcome.map_err(|e| if matches!(e, Error::File { .. }) { e } else { Error::file(&path, e) })?;
        if comparison.tensors == 0 {
            return Err(data.problem(format!("case {} holds nothing to compare with", self.name)));
        }
        data.all_used()
    }
}

/// What a case is run on.
struct Device<'a> {
    gpu: &'a Gpu,
    profile: &'a DeviceProfile,
}

/// A graph with the values of its inputs.
#[derive(Default)]
struct Run {
    graph: Graph,
    given: Vec<(ValueId, HostTensor)>,
}

impl Run {
    /// An input with its value.
    fn input(&mut self, name: &str, value: HostTensor) -> ValueId {
        let id = self.graph.input(name, value.ty());
        self.given.push((id, value));
        id
    }

    /// Appends the gradients of `wrt` that follow from the gradient `d` of `value`.
    fn backward(&mut self, value: ValueId, d: HostTensor, wrt: &[ValueId]) -> Result<Vec<ValueId>> {
        let d = self.input("d", d);
        let missing = || Error::Internal("an input of a golden case has no gradient".into());
        self.graph.backward(&[(value, d)], wrt)?.into_iter().map(|g| g.ok_or_else(missing)).collect()
    }

    /// Runs the graph once and reads the outputs.
    fn outputs(&self, device: &Device, memory: &Memory, outputs: &[ValueId]) -> Result<Vec<Vec<f32>>> {
        let plan = Plan::new(&self.graph, outputs, device.profile)?;
        let mut executor = device.gpu.executor(plan, memory)?;
        for (id, value) in &self.given {
            executor.write(*id, value)?;
        }
        executor.run()?;
        outputs.iter().map(|&id| Ok(executor.read(id)?.as_f32("a result")?.to_vec())).collect()
    }
}

/// The errors found so far in a case.
#[derive(Debug, Default)]
struct Comparison {
    tensors: usize,
    worst: Option<(f64, String)>,
    problem: Option<String>,
}

impl Comparison {
    /// Compares a whole tensor.
    fn tensor(&mut self, name: &str, want: &[f32], got: &[f32]) {
        self.elements(name, want, got, |_| true);
    }

    /// Compares a tensor that is exactly zero, whatever the inputs. What either side has is rounding, which must be small
    /// beside the terms that cancel in it, of this magnitude.
    fn zeros(&mut self, name: &str, want: &[f32], got: &[f32], terms: f64) {
        self.errors(name, want, got, terms.max(scale([].into_iter())), |_| true);
    }

    /// Compares the elements that `keep` chooses.
    fn elements(&mut self, name: &str, want: &[f32], got: &[f32], keep: impl Fn(usize) -> bool) {
        let scale = scale((0..want.len()).filter(|&i| keep(i)).map(|i| want[i]));
        self.errors(name, want, got, scale, keep);
    }

    fn errors(&mut self, name: &str, want: &[f32], got: &[f32], scale: f64, keep: impl Fn(usize) -> bool) {
        self.tensors += 1;
        if want.len() != got.len() {
            self.problem(format!("{name}: {} elements, expected {}", got.len(), want.len()));
            return;
        }
        let mut error = 0.0f64;
        for i in (0..want.len()).filter(|&i| keep(i)) {
            let e = (got[i] as f64 - want[i] as f64).abs() / scale;
            error = if e.is_nan() { f64::INFINITY } else { error.max(e) };
        }
        if self.worst.as_ref().is_none_or(|(so_far, _)| error > *so_far) {
            self.worst = Some((error, name.to_string()));
        }
    }

    /// Notes something else that does not fit; the first one is kept.
    fn problem(&mut self, problem: String) {
        self.problem.get_or_insert(problem);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_relative_to_the_largest_and_nan_is_infinite() {
        let cases: [(&[f32], &[f32], f64); 6] = [
            (&[1.0, -4.0], &[1.0, -4.0], 0.0),
            (&[1.0, -4.0], &[1.5, -4.0], 0.125),
            (&[0.0, 0.0], &[0.0, 0.0], 0.0),
            (&[0.0, 0.0], &[0.0, 0.005], 1.0),
            (&[1.0, 1.0], &[f32::NAN, 1.0], f64::INFINITY),
            (&[f32::NAN, 1.0], &[1.0, 1.0], f64::INFINITY),
        ];
        for (want, got, error) in cases {
            let mut c = Comparison::default();
            c.tensor("t", want, got);
            let (found, name) = c.worst.unwrap();
            assert!((found - error).abs() < 1e-7 || found == error, "{want:?} {got:?}: {found}");
            assert_eq!((name.as_str(), c.tensors), ("t", 1));
        }
        let mut c = Comparison::default();
        c.elements("t", &[1.0, 9.0], &[1.0, 0.0], |i| i == 0);
        assert_eq!(c.worst.unwrap().0, 0.0);
        let mut c = Comparison::default();
        c.tensor("t", &[1.0], &[]);
        assert!(c.problem.is_some());
    }
}

//! The outputs of PyTorch under `golden/` and `golden-more/`, as further cases, with the adapter's own kernels and, some of
//! them, the portable ones; and that files which are no such outputs are refused in one line.

use crate::{Outcome, Passed, Run, Test};
use safetensors::tensor::{Dtype, TensorView, serialize};
use std::path::{Path, PathBuf};
use wgformer::golden::{self, Case};
use wgformer::gpu::Gpu;
use wgformer::rng::fnv1a;
use wgformer::testing::{Runner, profiles};

/// One of this layer.
fn test(name: impl Into<String>, run: impl Fn(&Runner) -> Outcome + Send + Sync + 'static) -> Test {
    Test { layer: 4, group: "golden".into(), name: name.into(), run: Run::OnDevice(Box::new(run)) }
}

pub fn tests() -> Vec<Test> {
    let mut all = Vec::new();
    for folder in ["golden", "golden-more"] {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("kernels-tests").join(folder);
        match golden::cases(&folder) {
            Ok(cases) => all.extend(cases.into_iter().map(of_case)),
            Err(e) => {
                let problem = e.to_string();
                all.push(test(folder.display().to_string(), move |_| Err(vec![problem.clone()])));
            }
        }
    }
    all.push(test("refuses other files", |on| refuses(&on.gpu).map(Passed::checks)));
    all
}

fn of_case(case: Case) -> Test {
    test(case.name().to_string(), move |on| {
        let mut problems = Vec::new();
        let mut profiles = profiles(&on.gpu);
        // Every case with the adapter's own kernels; each setting is other kernels to compile, so one in five with the portable
        // ones of a GPU.
        let portable = !on.brief && fnv1a(case.name().as_bytes()).is_multiple_of(5);
        profiles.truncate(1 + portable as usize);
        for (variant, profile) in &profiles {
            let r = case.run(&on.gpu, profile);
            if !r.ok {
                let (bound, problem) = (golden::BOUND, r.problem.unwrap_or_default());
                problems.push(format!(
                    "{variant}: {}: error {:.2e} (bound {bound:.0e}) {problem}",
                    r.tensor, r.error
                ));
            }
        }
        if problems.is_empty() { Ok(Passed::checks(profiles.len())) } else { Err(problems) }
    })
}

/// A tensor of a hostile file: its name, shape and values.
type Tensor = (&'static str, Vec<usize>, Vec<f32>);

fn f(name: &'static str, shape: &[usize], value: f32) -> Tensor {
    (name, shape.to_vec(), vec![value; shape.iter().product()])
}

fn write(folder: &Path, name: &str, tensors: &[Tensor]) {
    let bytes: Vec<Vec<u8>> =
        tensors.iter().map(|t| t.2.iter().flat_map(|x| x.to_le_bytes()).collect()).collect();
    let views = tensors.iter().zip(&bytes).map(|((name, shape, _), bytes)| {
        // Names that begin with "i." stand for ids, of the same four bytes.
        let dtype = if name.starts_with("i.") { Dtype::I32 } else { Dtype::F32 };
        (name.trim_start_matches("i."), TensorView::new(dtype, shape.clone(), bytes).unwrap())
    });
    std::fs::write(file(folder, name), serialize(views, None).unwrap()).unwrap();
}

fn file(folder: &Path, name: &str) -> PathBuf {
    folder.join(format!("{name}.safetensors"))
}

/// Every file here is wrong in one way. Each must fail, in a line that names the case and says what is wrong.
fn refuses(gpu: &Gpu) -> Result<usize, Vec<String>> {
    let softmax = || vec![f("x", &[2, 3], 1.0), f("dy", &[2, 3], 1.0), f("y", &[2, 3], 1.0 / 3.0)];
    let with = |mut all: Vec<Tensor>, more: Tensor| {
        all.retain(|t| t.0 != more.0);
        all.push(more);
        all
    };
    let sdpa = || ["q", "k", "v", "do", "o"].map(|n| f(n, &[1, 1, 2, 4], 1.0)).to_vec();
    let id = f32::from_bits;
    let entropy = |target: u32| {
        vec![
            f("logits", &[2, 3], 0.0),
            ("i.target", vec![2], vec![id(1), id(target)]),
            f("loss", &[1], 3f32.ln()),
        ]
    };
    // Name, settings, tensors, what the line must say; "" for the cases that pass.
    let cases: Vec<(&str, &str, Vec<Tensor>, &str)> = vec![
        ("softmax_good", "{}", softmax(), ""),
        ("softmax_wrong", "{}", with(softmax(), f("y", &[2, 3], 0.33)), "y"),
        ("softmax_nan", "{}", with(softmax(), f("y", &[2, 3], f32::NAN)), "y"),
        ("softmax_nan_input", "{}", with(softmax(), f("x", &[2, 3], f32::NAN)), "inputs must be finite"),
        ("softmax_missing", "{}", softmax()[..2].to_vec(), "there is no tensor y"),
        (
            "softmax_shape",
            "{}",
            with(softmax(), f("dy", &[3, 2], 1.0)),
            "expected the shape [2, 3], got [3, 2]",
        ),
        ("softmax_empty", "{}", with(softmax(), f("x", &[2, 0], 1.0)), "is empty"),
        ("softmax_more", "{}", with(softmax(), f("dz", &[2, 3], 0.0)), "tensor dz was not compared"),
        ("softmax_listed", r#"{"tensors":{"dx":[2,3]}}"#, softmax(), "index.json lists it"),
        ("softmax_shapes", r#"{"tensors":{"x":[2,"3"]}}"#, softmax(), "but index.json says"),
        ("softmax_tensors", r#"{"tensors":3}"#, softmax(), "expected an object"),
        ("softmax_entry", "7", softmax(), "expected an object"),
        ("softmax_dtype", "{}", vec![("i.x", vec![2, 3], vec![0.0; 6])], "expected F32, got integers"),
        ("softplus_1", "{}", softmax(), "no known kind"),
        ("softmaxx_1", "{}", softmax(), "no known kind"),
        ("gelu_fast", "{}", softmax(), "gelu_none or gelu_tanh"),
        ("layernorm_eps", r#"{"eps":"small"}"#, softmax(), "eps: expected a number"),
        ("layernorm_zero", r#"{"eps":0}"#, softmax(), "eps: expected a number from"),
        ("layernorm_none", r#"{"eps":1e-5}"#, softmax(), "there is no tensor p.weight"),
        ("cross_entropy_good", r#"{"ignore_index":0}"#, entropy(2), ""),
        (
            "cross_entropy_id",
            r#"{"ignore_index":0}"#,
            entropy(3),
            "element 1 is 3: expected an id from 0 to 2",
        ),
        ("cross_entropy_minus", "{}", entropy(u32::MAX), "element 1 is -1"),
        (
            "cross_entropy_ls",
            r#"{"label_smoothing":1.5}"#,
            entropy(2),
            "label_smoothing: expected a number from 0 to 1",
        ),
        ("sdpa_good", "{}", sdpa(), ""),
        ("sdpa_mode", r#"{"mode":"causal+window"}"#, sdpa(), "mode \"window\""),
        ("sdpa_pad", r#"{"mode":"pad"}"#, sdpa(), "needs the tensor key_mask"),
        (
            "sdpa_bias",
            "{}",
            with(sdpa(), f("bias", &[1, 2, 2], f32::INFINITY)),
            "bias holds what is no number",
        ),
        ("sdpa_rank", "{}", with(sdpa(), f("k", &[2, 4], 1.0)), "expected 4 dimensions"),
        (
            "sdpa_wide",
            "{}",
            ["q", "k", "v", "do", "o"].map(|n| f(n, &[1, 1, 1, 300], 1.0)).to_vec(),
            "too wide",
        ),
        (
            "mha_heads",
            r#"{"heads":3}"#,
            ["x", "do", "o"].map(|n| f(n, &[1, 2, 4], 1.0)).to_vec(),
            "there is no tensor p.",
        ),
        ("encoder_none", "{}", ["x", "dy", "y"].map(|n| f(n, &[1, 2, 6], 1.0)).to_vec(), ""),
        ("transformer_none", "{}", softmax(), "there is no tensor p.emb.weight"),
        (
            "transformer_flat",
            "{}",
            vec![f("p.emb.weight", &[3, 4], 1.0), f("src", &[1, 2], 1.0), f("tgt", &[1, 2], 1.0)],
            "there is no tensor p.tr.encoder.layers.0",
        ),
        ("adam_none", "{}", softmax(), "there is no tensor g"),
        ("adamw_betas", r#"{"betas":[0.9]}"#, vec![f("g", &[1, 4], 1.0)], "betas: expected 2 numbers"),
        ("../softmax_up", "{}", vec![], "no plain file name"),
        ("softmax_absent", "{}", vec![], "there is no such file"),
        ("softmax_truncated", "{}", softmax(), "is no valid safetensors file"),
        ("softmax_garbage", "{}", softmax(), "is no valid safetensors file"),
    ];
    let folder = tempfile::tempdir().map_err(|e| vec![e.to_string()])?;
    let folder = folder.path();
    let entries: Vec<String> = cases.iter().map(|c| format!("{:?}:{}", c.0, c.1)).collect();
    std::fs::write(folder.join("index.json"), format!("{{{}}}", entries.join(","))).unwrap();
    for (name, _, tensors, _) in cases.iter().filter(|c| !c.2.is_empty()) {
        write(folder, name, tensors);
    }
    let truncated = file(folder, "softmax_truncated");
    let bytes = std::fs::read(&truncated).unwrap();
    std::fs::write(&truncated, &bytes[..bytes.len() - 5]).unwrap();
    std::fs::write(file(folder, "softmax_garbage"), [0xff; 64]).unwrap();

    let mut problems = Vec::new();
    let reports = golden::run(gpu, folder, None).map_err(|e| vec![e.to_string()])?;
    for (name, _, _, says) in &cases {
        let Some(r) = reports.iter().find(|r| r.name == *name) else {
            problems.push(format!("{name}: not run"));
            continue;
        };
        let said = r.problem.clone().unwrap_or_else(|| r.tensor.clone());
        let right = match *says {
            "" => r.ok,
            says => !r.ok && said.contains(says) && !said.contains('\n'),
        };
        let named = r.problem.as_ref().is_none_or(|p| p.contains(*name));
        if !right || !named {
            problems.push(format!("{name}: expected {says:?}, got {r:?}"));
        }
    }
    let filtered = golden::run(gpu, folder, Some("cross_entropy")).map_err(|e| vec![e.to_string()])?;
    if filtered.len() != 4 {
        problems.push(format!("the filter chose {} cases, expected 4", filtered.len()));
    }
    for (content, says) in [("{", "is no valid JSON"), ("[]", "expected an object"), ("", "is no valid JSON")]
    {
        std::fs::write(folder.join("index.json"), content).unwrap();
        match golden::run(gpu, folder, None) {
            Err(e) if e.to_string().contains(says) => {}
            other => problems.push(format!("index {content:?}: {other:?}")),
        }
    }
    std::fs::remove_file(folder.join("index.json")).unwrap();
    if golden::run(gpu, folder, None).is_ok() {
        problems.push("a folder without index.json is no folder of golden files".into());
    }
    if problems.is_empty() { Ok(cases.len()) } else { Err(problems) }
}

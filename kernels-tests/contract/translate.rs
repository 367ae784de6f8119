//! Kernels in the languages of the interfaces: SPIR-V for Vulkan, MSL for Metal, HLSL for DirectX 12.

use super::collect::Found;
use super::kernel::Text;
use super::{Outcome, each};
use naga::back::{hlsl, msl, spv};
use naga::proc::{BoundsCheckPolicies, BoundsCheckPolicy};
use std::collections::HashSet;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use wgformer::kernel::{Const, Kernel, Requires};

/// The least that has all that kernels use: Vulkan 1.1, which knows sub-groups, and Metal 2.1, which can shuffle in them.
const SPIRV: (u8, u8) = (1, 3);
const SPIRV_VAL: [&str; 2] = ["--target-env", "vulkan1.1"];
const MSL: (u8, u8) = (2, 1);

/// What keeps a kernel from being translated.
pub fn problems(kernel: &Kernel, text: &Text) -> Vec<String> {
    let Text { module, info, .. } = text;
    let point = || Some((naga::ShaderStage::Compute, kernel.entry.to_string()));
    let mut problems = Vec::new();
    for checked in [false, true] {
        problems.extend(to_spirv(kernel, text, checked).err());
        let options = msl::Options {
            lang_version: MSL,
            bounds_check_policies: policies(checked),
            zero_initialize_workgroup_memory: checked,
            force_loop_bounding: checked,
            ..Default::default()
        };
        let pipeline = msl::PipelineOptions { entry_point: point(), ..Default::default() };
        match msl::write_string(module, info, &options, &pipeline) {
            Ok((text, _)) if text.contains("kernel void") => (),
            Ok(_) => problems.push("no kernel in MSL".to_string()),
            Err(e) => problems.push(format!("MSL: {e}")),
        }
        let options = hlsl::Options {
            shader_model: match (kernel.requires.f16, kernel.requires.subgroup_size) {
                (true, _) => hlsl::ShaderModel::V6_2,
                (false, Some(_)) => hlsl::ShaderModel::V6_0,
                (false, None) => hlsl::ShaderModel::V5_1,
            },
            zero_initialize_workgroup_memory: checked,
            restrict_indexing: checked,
            force_loop_bounding: checked,
            ..Default::default()
        };
        let pipeline = hlsl::PipelineOptions { entry_point: point() };
        let mut out = String::new();
        match hlsl::Writer::new(&mut out, &options, &pipeline).write(module, info, None) {
            Ok(_) if out.contains("numthreads") => (),
            Ok(_) => problems.push("no kernel in HLSL".to_string()),
            Err(e) => problems.push(format!("HLSL: {e}")),
        }
    }
    problems
}

fn policies(checked: bool) -> BoundsCheckPolicies {
    let policy = if checked { BoundsCheckPolicy::Restrict } else { BoundsCheckPolicy::Unchecked };
    BoundsCheckPolicies { index: policy, buffer: policy, image_load: policy, ..Default::default() }
}

/// The words of SPIR-V, as a program runs it (unchecked) and as the tests run it too (checked).
pub fn to_spirv(kernel: &Kernel, text: &Text, checked: bool) -> Result<Vec<u32>, String> {
    let options = spv::Options {
        lang_version: SPIRV,
        bounds_check_policies: policies(checked),
        zero_initialize_workgroup_memory: match checked {
            true => spv::ZeroInitializeWorkgroupMemoryMode::Polyfill,
            false => spv::ZeroInitializeWorkgroupMemoryMode::None,
        },
        force_loop_bounding: checked,
        ..Default::default()
    };
    let entry_point = kernel.entry.to_string();
    let pipeline = spv::PipelineOptions { shader_stage: naga::ShaderStage::Compute, entry_point };
    spv::write_vec(&text.module, &text.info, &options, Some(&pipeline)).map_err(|e| format!("SPIR-V: {e}"))
}

/// Whether `spirv-val` can be run.
pub fn installed() -> bool {
    Command::new("spirv-val").arg("--version").stdout(Stdio::null()).status().is_ok()
}

/// Every kernel's SPIR-V through the program `spirv-val`, where it is installed; says whether it is.
pub fn validated(found: &[Found]) -> Outcome {
    if !installed() {
        println!("spirv-val is not installed: SPIR-V is not validated");
        return Ok(0);
    }
    let folder = tempfile::tempdir().map_err(|e| vec![format!("no temporary folder: {e}")])?;
    // A kernel for each of those that differ in numbers alone: the instructions are the same.
    let mut forms = HashSet::new();
    let mut chosen: Vec<(usize, &Found)> = found.iter().enumerate().collect();
    chosen.retain(|(_, f)| forms.insert(form(&f.kernel)));
    let modules = AtomicUsize::new(0);
    each(&chosen, |(i, f)| {
        let file = folder.path().join(format!("{i}.spv"));
        let validate = |checked: bool| {
            let words = to_spirv(&f.kernel, &Text::new(&f.kernel)?, checked)?;
            modules.fetch_add(1, Ordering::Relaxed);
            spirv_val(&file, &words)
        };
        let problems = [false, true].into_iter().filter_map(|checked| validate(checked).err());
        problems.map(|p| format!("{}: {p}", f.kernel.name)).collect()
    })?;
    let modules = modules.into_inner();
    println!("{modules} modules of SPIR-V validated by spirv-val");
    Ok(modules)
}

/// What a kernel is but for the values of its numbers.
fn form(kernel: &Kernel) -> Kernel {
    let mut form = kernel.clone();
    for (_, value) in &mut form.constants {
        match value {
            Const::U32(v) => *v = 0,
            Const::F32(v) => *v = 0.0,
            Const::Bool(_) | Const::Alias(_) => (),
        }
    }
    form.requires = Requires::default();
    form
}

/// What `spirv-val` says against these words, in a file of this name.
pub fn spirv_val(file: &Path, words: &[u32]) -> Result<(), String> {
    let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
    std::fs::write(file, bytes).map_err(|e| format!("{}: {e}", file.display()))?;
    let run = Command::new("spirv-val").args(SPIRV_VAL).arg(file).output();
    let _ = std::fs::remove_file(file);
    match run {
        Ok(out) if out.status.success() => Ok(()),
        Ok(out) => Err(format!("spirv-val: {}", String::from_utf8_lossy(&out.stderr).trim())),
        Err(e) => Err(format!("spirv-val: {e}")),
    }
}

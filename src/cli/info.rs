//! `wgformer info`.

use super::Global;
use super::output::{bytes, one_line, print};
use super::plan::plans;
use anyhow::{Result, anyhow};
use clap::Args;
use serde_json::json;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::PathBuf;
use wgformer::gpu::{self, AdapterDescription};
use wgformer::nn::{BatchShape, TransformerConfig};
use wgformer::{DeviceClass, DeviceProfile};

const EXAMPLES: &str = "\
Examples:
  wgformer info
  wgformer info --json --backend vulkan
  wgformer info --adapter 1";

/// Options of `wgformer info`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Info {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Info {
    pub fn run(&self, global: &Global) -> Result<()> {
        let request = global.request()?;
        let mut list: Vec<(usize, AdapterDescription)> =
            gpu::adapters(request.backend).into_iter().enumerate().collect();
        if list.is_empty() || request.name.is_some() {
            // Says what is wrong, in the words of the other verbs.
            let chosen = gpu::choose(&request, &list.iter().map(|(_, d)| d.clone()).collect::<Vec<_>>())?;
            list.retain(|(number, _)| *number == chosen);
        }
        if self.json {
            let all: Vec<_> =
                list.iter().map(|(number, d)| as_json(global, *number, d)).collect::<Result<_>>()?;
            return print(&format!("{}\n", serde_json::to_string_pretty(&all)?));
        }
        let mut text = String::new();
        for (number, adapter) in &list {
            describe(global, &mut text, *number, adapter)?;
        }
        print(&text)
    }
}

fn class(profile: &DeviceProfile) -> &'static str {
    match profile.class {
        DeviceClass::Discrete => "discrete GPU",
        DeviceClass::Integrated => "integrated or virtual GPU",
        DeviceClass::Cpu => "software, runs on the CPU",
    }
}

/// The profile of an adapter with its tuning, the file that this is from, and why it is none where one was asked for.
fn tuned(global: &Global, d: &AdapterDescription) -> (DeviceProfile, Option<PathBuf>, Option<String>) {
    match global.tuning(&d.key()) {
        Ok(Some((tuning, path))) => (DeviceProfile { tuning, ..d.profile.clone() }, Some(path), None),
        Ok(None) => (d.profile.clone(), None, None),
        // A file is of one adapter, and here are all of them.
        Err(error) => (d.profile.clone(), None, Some(format!("{error:#}"))),
    }
}

fn describe(global: &Global, text: &mut String, number: usize, d: &AdapterDescription) -> Result<()> {
    let (profile, path, problem) = tuned(global, d);
    let p = &profile;
    let tuning = match (path, problem) {
        (Some(path), _) => path.display().to_string(),
        (None, Some(problem)) => format!("shipped, since {problem}"),
        (None, None) => "shipped".to_string(),
    };
    let yes = |x: bool| if x { "yes" } else { "no" };
    writeln!(text, "{number}: {}", d.name)?;
    let subgroups = match (p.subgroups, p.subgroup_size()) {
        (false, _) => "no".to_string(),
        (true, Some(size)) => format!("of {size}"),
        (true, None) => format!("of {} to {}", p.subgroup_min, p.subgroup_max),
    };
    let rows = [
        ("kind", class(p).to_string()),
        ("backend", d.backend.to_string()),
        ("driver", format!("{} {}", d.driver, d.driver_info).trim().to_string()),
        ("sub-groups", subgroups),
        ("16-bit floats", yes(p.f16).to_string()),
        ("timestamps", yes(d.timestamps).to_string()),
        ("storage buffers", p.max_storage_buffers.to_string()),
        ("largest binding", bytes(p.max_binding_bytes)),
        ("largest buffer", bytes(p.max_buffer_bytes)),
        ("workgroup memory", bytes(p.max_workgroup_bytes.into())),
        ("workgroup size", p.max_invocations.to_string()),
        ("workgroups", format!("{} a dimension", p.max_groups)),
        ("tuning", one_line(&tuning)),
    ];
    for (name, value) in rows {
        writeln!(text, "   {name:<18}{value}")?;
    }
    writeln!(text, "   kernels for the preset small, 16 rows of 32 and 32:")?;
    for (family, variants) in kernels(p)? {
        writeln!(text, "     {family:<16}{}", variants.join(", "))?;
    }
    Ok(())
}

fn as_json(global: &Global, number: usize, d: &AdapterDescription) -> Result<serde_json::Value> {
    let (profile, path, problem) = tuned(global, d);
    let p = &profile;
    Ok(json!({
        "number": number,
        "name": d.name,
        "kind": format!("{:?}", p.class).to_lowercase(),
        "backend": d.backend.to_string(),
        "driver": d.driver,
        "driver_info": d.driver_info,
        "features": {
            "subgroups": p.subgroups,
            "f16": p.f16,
            "timestamps": d.timestamps,
        },
        "limits": {
            "subgroup_min": p.subgroup_min,
            "subgroup_max": p.subgroup_max,
            "max_storage_buffers": p.max_storage_buffers,
            "max_workgroup_bytes": p.max_workgroup_bytes,
            "max_invocations": p.max_invocations,
            "max_groups": p.max_groups,
            "max_binding_bytes": p.max_binding_bytes,
            "max_buffer_bytes": p.max_buffer_bytes,
        },
        "tuning": path.map(|path| path.display().to_string()),
        "tuning_problem": problem,
        "kernels": kernels(p)?,
    }))
}

/// The variants that training and decoding of a small model use on a device, by family.
fn kernels(profile: &DeviceProfile) -> Result<BTreeMap<String, Vec<String>>> {
    let mut config = TransformerConfig::preset("small")?;
    (config.source_vocabulary, config.target_vocabulary) = (8000, 8000);
    let shape = BatchShape { rows: 16, source_len: 32, target_len: 32 };
    let mut found: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for inference in [false, true] {
        let plans = plans(config.clone(), shape, inference, profile);
        for (_, plan) in plans.map_err(|error| anyhow!("no plan for this device: {error}"))? {
            for kernel in &plan.kernels {
                let (family, variant) = kernel.name.split_once('/').unwrap_or((&kernel.name, "forward"));
                let variants = found.entry(family.to_string()).or_default();
                if !variants.iter().any(|known| known == variant) {
                    variants.push(variant.to_string());
                }
            }
        }
    }
    found.values_mut().for_each(|variants| variants.sort());
    Ok(found)
}

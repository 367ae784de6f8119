//! `wgformer plan`.

use super::Global;
use super::output::{bytes, count, print, si};
use super::work::WorkFlags;
use anyhow::Result;
use clap::Args;
use std::fmt::Write;
use wgformer::DeviceProfile;
use wgformer::nn::{BatchShape, Objective, Optimizer, Transformer, TransformerConfig};
use wgformer::ops::optimizer::AdamSettings;
use wgformer::plan::Plan;

const EXAMPLES: &str = "\
Examples:
  wgformer plan --preset base --rows 32 --source 64 --target 64 --portable
  wgformer plan --model dates --inference";

/// Options of `wgformer plan`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct PlanArgs {
    /// Encoding and a step of decoding instead of a step of training
    #[arg(long)]
    inference: bool,
    /// Plan for WebGPU's default limits instead of an adapter that is here
    #[arg(long)]
    portable: bool,
    #[command(flatten)]
    work: WorkFlags,
}

impl PlanArgs {
    pub fn run(&self, global: &Global) -> Result<()> {
        let config = self.work.model()?;
        let profile = match self.portable {
            true => DeviceProfile::portable(),
            false => global.gpu()?.profile().clone(),
        };
        let mut text = String::new();
        for (name, plan) in plans(config, self.work.batch(), self.inference, &profile)? {
            writeln!(text, "{name}\n\n{plan}\n{}", summary(&plan))?;
        }
        print(&text)
    }
}

/// The plans of training, or of encoding and decoding.
pub fn plans(
    config: TransformerConfig,
    shape: BatchShape,
    inference: bool,
    profile: &DeviceProfile,
) -> wgformer::Result<Vec<(&'static str, Plan)>> {
    let model = Transformer::new(config)?;
    model.layout().check_limits(profile)?;
    if inference {
        let encode = model.encode_graph(shape)?;
        let decode = model.decode_graph(shape, 0)?;
        return Ok(vec![
            ("encoding", Plan::new(&encode.graph, &[], profile)?),
            ("a step of decoding", Plan::new(&decode.graph, &[decode.next], profile)?),
        ]);
    }
    let optimizer = Optimizer { adam: AdamSettings::transformer(), clip_norm: Some(1.0) };
    let mut objective = Objective::default();
    objective.max_logits_bytes = objective.max_logits_bytes.min(profile.max_binding_bytes);
    let io = model.loss_graph(shape, &objective, Some(&optimizer))?;
    Ok(vec![("a step of training", Plan::new(&io.graph, &io.outputs(), profile)?)])
}

/// A table by kernel family, the most operations first.
fn summary(plan: &Plan) -> String {
    let mut rows: Vec<(&str, usize, u64, u64)> = Vec::new();
    for step in &plan.steps {
        let family = plan.kernels[step.kernel].name.split('/').next().unwrap_or("");
        let i = rows.iter().position(|row| row.0 == family).unwrap_or_else(|| {
            rows.push((family, 0, 0, 0));
            rows.len() - 1
        });
        let row = &mut rows[i];
        (row.1, row.2, row.3) = (row.1 + 1, row.2 + step.flops, row.3 + step.bytes);
    }
    rows.sort_by_key(|row| std::cmp::Reverse((row.2, row.3)));
    let mut text = format!("{:<24}{:>10}{:>12}{:>14}\n", "family", "dispatches", "FLOP", "bytes");
    for (family, dispatches, flops, moved) in rows {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{family:<24}{dispatches:>10}{:>12}{:>14}", si(flops), bytes(moved));
    }
    let _ =
        writeln!(text, "memory: {} in {}", bytes(plan.total_bytes()), count(plan.buffers.len(), "buffer"));
    text
}

//! `wgformer tune`.

use super::Global;
use super::bench::memory;
use super::output::{count, nanoseconds, print, table};
use super::progress::{Progress, note};
use super::stop::{Interrupted, Stop};
use super::work::WorkFlags;
use anyhow::{Context, Result, bail};
use clap::Args;
use std::path::{Path, PathBuf};
use std::time::Duration;
use wgformer::bench::{TuneSettings, Tuned, tune};
use wgformer::gpu;
use wgformer::nn::Transformer;

/// Reasons that are told one by one, at most.
const TOLD: usize = 10;

const EXAMPLES: &str = "\
Examples:
  wgformer tune --preset base --rows 32 --source 64 --target 64 --seconds 300
  wgformer tune --model dates --out dates.json
  wgformer train --train train.tsv --model en-zh --tuning dates.json

What is faster holds for the shapes measured, and for smaller ones down to half in each size: take the largest batches.";

/// Options of `wgformer tune`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Tune {
    /// Seconds, about; works that are not reached keep the shipped variants
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    seconds: u64,
    /// The file to write, for --tuning [default: one in the user's folder for caches, which is used without --tuning]
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Seed of the inputs
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    work: WorkFlags,
}

impl Tune {
    pub fn run(&self, global: &Global) -> Result<()> {
        if global.checked {
            bail!("--checked slows kernels down: what is timed runs without checks, and is verified");
        }
        if global.tuning.is_some() {
            bail!("--tuning has no use here: variants are compared with the shipped ones");
        }
        let model = Transformer::new(self.work.model()?)?;
        let gpu = gpu::request(&global.request()?)?;
        let path = self.path(&gpu)?;
        note(&format!("adapter: {}", gpu.description()));
        let settings = TuneSettings {
            seed: self.seed,
            budget: Duration::from_secs(self.seconds),
            most_bytes: memory(gpu.profile().class),
        };
        let stop = Stop::on_interrupt()?;
        let mut bar: Option<Progress> = None;
        let tuned = tune(&gpu, &model, self.work.batch(), &settings, &mut |p| {
            let bar = bar.get_or_insert_with(|| Progress::new("tuning", p.of as u64));
            bar.at(p.done as u64, || format!("{}: {}", p.query, p.variant.name()));
            !stop.asked()
        });
        let took = bar.map(Progress::end).unwrap_or_default();
        let Some(tuned) = tuned? else { return Err(Interrupted.into()) };
        if tuned.rows.is_empty() {
            let (query, reason) = tuned.left_out.first().context("the model has no work to tune")?;
            bail!("nothing could be measured; {query}: {reason}");
        }
        tuned.file(&gpu).write(&path)?;
        print(&text(&tuned))?;
        tell(&tuned, took, &path);
        Ok(())
    }

    /// Where the file goes. That it can go there is known before anything is measured.
    fn path(&self, gpu: &gpu::Gpu) -> Result<PathBuf> {
        if let Some(path) = &self.out {
            let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
            if let Some(folder) = folder.filter(|folder| !folder.is_dir()) {
                bail!("{}: there is no folder {}", path.display(), folder.display());
            }
            if path.is_dir() {
                bail!("{}: is a folder: name a file in it", path.display());
            }
            return Ok(path.clone());
        }
        let path = super::device::cached(&gpu.adapter_key());
        let path = path.context("there is no folder for caches (HOME is not set): give --out FILE")?;
        if let Some(folder) = path.parent() {
            let cannot = || format!("{}: cannot be made; give --out FILE", folder.display());
            std::fs::create_dir_all(folder).with_context(cannot)?;
        }
        Ok(path)
    }
}

/// What was chosen, and what it gained.
fn text(tuned: &Tuned) -> String {
    let rows: Vec<Vec<String>> = tuned
        .rows
        .iter()
        .map(|row| {
            let changed = row.best.variant.name() != row.shipped.name();
            let gain = if changed { format!("{:.2}", row.best.gain) } else { String::new() };
            vec![
                row.best.query.to_string(),
                row.nodes.to_string(),
                row.compared.to_string(),
                row.shipped.name().to_string(),
                nanoseconds(row.shipped_ns),
                if changed { row.best.variant.name().to_string() } else { "the same".to_string() },
                gain,
            ]
        })
        .collect();
    let head = ["work", "nodes", "compared", "shipped", "its time", "chosen", "faster by"];
    format!("{}\n", table(&head, &[false, true, true, false, true, false, true], &rows).join("\n"))
}

fn tell(tuned: &Tuned, took: Duration, path: &Path) {
    let refused: Vec<_> =
        tuned.rows.iter().flat_map(|row| row.refused.iter().map(|r| (row.best.query, r))).collect();
    for (query, (variant, reason)) in refused.iter().take(TOLD) {
        note(&format!("not used for {query}: {}: {reason}", variant.name()));
    }
    if refused.len() > TOLD {
        note(&format!("{} more variants were not used", refused.len() - TOLD));
    }
    let untried: usize = tuned.rows.iter().map(|row| row.untried).sum();
    if untried > 0 {
        note(&format!("there was no time to try {}: give more --seconds", count(untried, "variant")));
    }
    if let Some((query, reason)) = tuned.left_out.first() {
        let left = count(tuned.left_out.len(), "work");
        note(&format!("{left} left to the shipped variants, the first of them {query}: {reason}"));
    }
    let changed = tuned.rows.iter().filter(|row| row.best.variant.name() != row.shipped.name()).count();
    let measured = count(tuned.rows.len(), "work");
    let took = super::output::time(took);
    note(&format!(
        "{measured} measured in {took}, {changed} with another variant than shipped: {}",
        path.display()
    ));
}

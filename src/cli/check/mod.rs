//! `wgformer check`: is this GPU, with its driver, right?

#[path = "../../../kernels-tests/cases/mod.rs"]
mod cases;
mod golden;
mod kernels;

use super::Global;
use super::progress::note;
use anyhow::{Context, Result};
use clap::Args;
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  wgformer check
  wgformer check --filter '^attention/' --adapter 1
  wgformer check --json > report.json
  wgformer check --golden kernels-tests/golden --filter sdpa";

/// Options of `wgformer check`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Check {
    /// Only the kernels (or, with --golden, the cases) whose names match this regular expression
    #[arg(long, value_name = "REGEX")]
    filter: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Compare with outputs of other software instead: the folder with index.json and the cases' safetensors files
    #[arg(long, value_name = "FOLDER", conflicts_with = "json")]
    golden: Option<PathBuf>,
    /// Seed of the random values
    #[arg(long, value_name = "N", default_value_t = 1, conflicts_with = "golden")]
    seed: u64,
}

impl Check {
    pub fn run(&self, global: &Global) -> Result<()> {
        let filter = self.filter.as_deref().map(regex_lite::Regex::new).transpose().context("--filter")?;
        let wanted = |name: &str| filter.as_ref().is_none_or(|f| f.is_match(name));
        match &self.golden {
            Some(folder) => golden::run(global, folder, &wanted, self.filter.as_deref()),
            None => {
                let gpu = global.gpu()?;
                note(&format!("adapter: {}", gpu.description()));
                kernels::run(gpu, self.seed, &wanted, self.json)
            }
        }
    }
}

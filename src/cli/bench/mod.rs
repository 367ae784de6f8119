//! `wgformer bench`: how fast are the kernels, and are they as fast as they were?

mod compare;
mod format;
#[cfg(feature = "plots")]
mod report;
mod run;
mod sweep;

pub use run::memory;

use super::Global;
use anyhow::Result;
use clap::{Args, Subcommand, ValueEnum};

const EXAMPLES: &str = "\
Examples:
  wgformer bench run --quick
  wgformer bench compare before.json after.json --fail-on slower
  wgformer bench report results.json --html report.html

Every verb has more: wgformer bench compare --help";

/// Options of `wgformer bench`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Bench {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Show what `run` would time
    List(run::List),
    /// Time kernels and models, each verified
    Run(Box<run::Run>),
    /// Say of each row of two result files whether it became faster or slower
    Compare(compare::Compare),
    /// Write one HTML file with charts and tables of result files
    #[cfg(feature = "plots")]
    Report(report::Report),
}

/// What is written to standard output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum Format {
    /// A table in Markdown
    #[default]
    Table,
    /// JSON
    Json,
}

impl Bench {
    pub fn run(&self, global: &Global) -> Result<()> {
        match &self.verb {
            Verb::List(list) => list.run(global),
            Verb::Run(run) => run.run(global),
            Verb::Compare(compare) => compare.run(),
            #[cfg(feature = "plots")]
            Verb::Report(report) => report.run(),
        }
    }
}

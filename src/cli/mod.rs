//! The command line: one file for each verb. Results go to standard output, all else to standard error; an error is one
//! line and exit status 1, wrong usage is status 2.

mod ahead;
mod bench;
mod cache;
mod check;
mod device;
mod info;
mod output;
mod plan;
mod progress;
mod settings;
mod shipped;
mod stop;
mod train;
mod translate;
mod tune;
mod work;

use clap::{Args, Parser, Subcommand};
use std::cell::OnceCell;
use std::panic::AssertUnwindSafe;
use std::path::PathBuf;
use std::process::ExitCode;

/// Train and run encoder-decoder Transformers on any GPU.
#[derive(Debug, Parser)]
#[command(version, max_term_width = 100, after_help = EXAMPLES, arg_required_else_help = true)]
struct Cli {
    #[command(flatten)]
    global: Global,
    #[command(subcommand)]
    verb: Verb,
}

const EXAMPLES: &str = "\
Examples:
  wgformer info
  wgformer train --task dates --model dates
  wgformer translate --model dates 'Wednesday, March 3, 1999'

Every verb has more: wgformer train --help";

/// Which device runs the kernels.
#[derive(Clone, Debug, Args)]
struct Global {
    /// The adapter: its number in `wgformer info`, or a part of its name [default: WGPU_ADAPTER_NAME if that is set, else
    /// the best one]
    #[arg(long, global = true, value_name = "NAME|NUMBER", help_heading = "Device")]
    adapter: Option<String>,
    /// The interface to the adapter [default: WGPU_BACKEND if that is set, else any]
    #[arg(long, global = true, value_name = "BACKEND", help_heading = "Device")]
    #[arg(value_parser = device::BACKENDS, ignore_case = true)]
    backend: Option<String>,
    /// Check bounds in all kernels, slower
    #[arg(long, global = true, help_heading = "Device")]
    checked: bool,
    /// What chooses among the variants of kernels: a file of `wgformer tune`, or `shipped` [default: what `wgformer tune`
    /// wrote for this adapter and driver, else shipped]
    #[arg(long, global = true, value_name = "FILE", help_heading = "Device")]
    tuning: Option<PathBuf>,
    /// Neither read nor write the pipelines that a Vulkan driver has compiled, in the user's cache folder
    #[arg(long, global = true, help_heading = "Device")]
    no_pipeline_cache: bool,
    #[arg(skip)]
    pipelines: OnceCell<cache::Pipelines>,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Show the adapters, their limits, and the kernels chosen for them
    Info(info::Info),
    /// Train a model on sentence pairs, or on a task that needs no data
    Train(Box<train::Train>),
    /// Translate lines of text
    Translate(translate::Translate),
    /// Show what a step of a model does on a device: dispatches, memory, operations
    Plan(Box<plan::PlanArgs>),
    /// Compare the kernels with outputs of other software
    Check(check::Check),
    /// Compare results of the benchmark
    Bench(bench::Bench),
    /// Measure which variants of kernels are the fastest here, for a model
    Tune(Box<tune::Tune>),
}

pub fn main() -> ExitCode {
    // A panic is a mistake in this program, which the person in front of it cannot mend: one line says so.
    std::panic::set_hook(Box::new(|panic| {
        let place = panic.location().map_or(String::new(), |l| format!(" at {}:{}", l.file(), l.line()));
        let said = panic.payload();
        let said = said.downcast_ref::<&str>().copied().or(said.downcast_ref::<String>().map(String::as_str));
        eprintln!("error: internal error{place}: {} (please report this)", said.unwrap_or("unknown"));
    }));
    let cli = Cli::parse();
    let outcome = std::panic::catch_unwind(AssertUnwindSafe(|| match &cli.verb {
        Verb::Info(info) => info.run(&cli.global),
        Verb::Train(train) => train.run(&cli.global),
        Verb::Translate(translate) => translate.run(&cli.global),
        Verb::Plan(plan) => plan.run(&cli.global),
        Verb::Check(check) => check.run(&cli.global),
        Verb::Bench(bench) => bench.run(&cli.global),
        Verb::Tune(tune) => tune.run(&cli.global),
    }));
    if outcome.is_ok() {
        cli.global.keep_pipelines();
    }
    match outcome {
        Ok(Ok(())) => ExitCode::SUCCESS,
        Ok(Err(error)) => {
            // Who reads the output has seen enough: `wgformer plan | head`.
            if error.chain().any(output::is_broken_pipe) {
                return ExitCode::SUCCESS;
            }
            if let Some(stop::Interrupted) = error.downcast_ref() {
                eprintln!("{error}");
                return ExitCode::from(130);
            }
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
        Err(_) => ExitCode::FAILURE,
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        super::Cli::command().debug_assert();
    }
}

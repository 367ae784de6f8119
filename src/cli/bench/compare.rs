//! `wgformer bench compare`.

use super::Format;
use crate::cli::output::{count, interval, one_line, print, table};
use anyhow::{Result, bail};
use clap::{Args, ValueEnum};
use serde_json::json;
use std::path::{Path, PathBuf};
use wgformer::bench::{Adapter, Compared, Comparison, Results, Side, Verdict};

const EXAMPLES: &str = "\
Examples:
  wgformer bench compare before.json after.json
  wgformer bench compare before.json after.json --fail-on slower
  wgformer bench compare before.json after.json -o json

A row is SLOWER or FASTER when its times differ by 3 % or more (10 % on a software adapter) and their intervals are
apart, SAME when they differ by less than 3 %, and AMBIGUOUS when they differ but the machine may have caused it: run
both again, longer, or on a quieter machine. The times are those of an undisturbed repetition: the lower decile of the
rounds' fastest samples. Exit status 1 when a row is WRONG in one of the files.";

/// Options of `wgformer bench compare`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Compare {
    /// The results of before
    #[arg(value_name = "A.json")]
    a: PathBuf,
    /// The results of after
    #[arg(value_name = "B.json")]
    b: PathBuf,
    /// Exit with status 1 when a row became slower
    #[arg(long, value_name = "VERDICT")]
    fail_on: Option<FailOn>,
    /// What is written to standard output
    #[arg(short, long, value_name = "FORMAT", value_enum, default_value_t)]
    output: Format,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum FailOn {
    Slower,
}

impl Compare {
    pub fn run(&self) -> Result<()> {
        let files =
            [(self.a.as_path(), Results::read(&self.a)?), (self.b.as_path(), Results::read(&self.b)?)];
        let comparison = Comparison::new(&files[0].1, &files[1].1)?;
        print(&match self.output {
            Format::Table => as_table(&files, &comparison),
            Format::Json => format!("{}\n", serde_json::to_string_pretty(&as_json(&files, &comparison))?),
        })?;
        let slower = match self.fail_on {
            Some(FailOn::Slower) => comparison.count(Verdict::Slower),
            None => 0,
        };
        let failed: Vec<String> = [(comparison.count(Verdict::Wrong), "WRONG"), (slower, "SLOWER")]
            .into_iter()
            .filter(|(number, _)| *number > 0)
            .map(|(number, verdict)| format!("{} {verdict}", count(number, "row")))
            .collect();
        if !failed.is_empty() {
            bail!("{} and {}: {}", self.a.display(), self.b.display(), failed.join(" and "));
        }
        Ok(())
    }
}

/// What the files differ in, besides times.
fn differences(files: &[(&Path, Results); 2], comparison: &Comparison) -> Vec<String> {
    let [(_, a), (_, b)] = files;
    let mut lines = Vec::new();
    let mut differ = |what: &str, x: &str, y: &str| {
        if x != y {
            let said = |text: &str| if text.is_empty() { "none".to_string() } else { text.to_string() };
            lines.push(format!("{what}: {} in A, {} in B", said(x), said(y)));
        }
    };
    let (x, y) = (&a.environment, &b.environment);
    differ("commit", x.commit.as_deref().unwrap_or(""), y.commit.as_deref().unwrap_or(""));
    differ("version", &x.version, &y.version);
    differ("system", &x.system, &y.system);
    differ("threads", &x.threads.to_string(), &y.threads.to_string());
    for pair in &comparison.pairs {
        if let (Some(x), Some(y)) = (a.adapters.get(pair.a), b.adapters.get(pair.b)) {
            let name = |adapter: &Adapter| format!("{} ({})", adapter.name, adapter.backend);
            let driver = |adapter: &Adapter| {
                format!("{} {}", adapter.driver, adapter.driver_version).trim().to_string()
            };
            differ("adapter", &name(x), &name(y));
            differ(&format!("driver of {}", x.name), &driver(x), &driver(y));
        }
    }
    lines
}

fn as_json(files: &[(&Path, Results); 2], comparison: &Comparison) -> serde_json::Value {
    let file = |(path, results): &(&Path, Results)| {
        json!({
            "path": path.to_string_lossy(),
            "environment": results.environment,
        })
    };
    let only = |rows: &[(String, String)]| -> Vec<serde_json::Value> {
        rows.iter().map(|(adapter, row)| json!({ "adapter": adapter, "row": row })).collect()
    };
    let counts: serde_json::Map<String, serde_json::Value> =
        Verdict::ALL.into_iter().map(|v| (v.name().to_string(), comparison.count(v).into())).collect();
    json!({
        "a": file(&files[0]),
        "b": file(&files[1]),
        "across_adapters": comparison.across,
        "differences": differences(files, comparison),
        "rows": comparison.rows,
        "only_a": only(&comparison.only_a),
        "only_b": only(&comparison.only_b),
        "counts": counts,
        "geometric_mean_ratio": comparison.mean_ratio(),
    })
}

fn as_table(files: &[(&Path, Results); 2], comparison: &Comparison) -> String {
    let mut lines = Vec::new();
    for (letter, (path, results)) in ["A", "B"].into_iter().zip(files) {
        let e = &results.environment;
        let commit = e.commit.as_deref().unwrap_or("no commit");
        lines.push(format!(
            "{letter}: {}: {}, wgformer {} ({commit}), {}",
            path.display(),
            e.started,
            e.version,
            e.system
        ));
    }
    if comparison.across {
        lines.push("Across adapters: the files have one each, and they differ.".to_string());
    }
    let differences = differences(files, comparison);
    if !differences.is_empty() {
        lines.push("Other than the times:".to_string());
        lines.extend(differences.into_iter().map(|line| format!("- {line}")));
    }
    lines.push(String::new());

    for pair in &comparison.pairs {
        let Some(adapter) = files[0].1.adapters.get(pair.a) else { continue };
        let rows: Vec<Vec<String>> =
            comparison.rows.iter().filter(|row| row.pair == *pair).map(cells).collect();
        if !rows.is_empty() {
            lines.extend([format!("## {} ({})", adapter.name, adapter.backend), String::new()]);
            lines.extend(table(
                &["row", "A [interval]", "B [interval]", "B/A", "verdict"],
                &[false, true, true, true, false],
                &rows,
            ));
            lines.push(String::new());
        }
    }

    let reasons: Vec<&Compared> = comparison.rows.iter().filter(|row| row.reason.is_some()).collect();
    for row in &reasons {
        let reason = row.reason.as_deref().unwrap_or("");
        lines.push(format!("- {}, {}, {}: {reason}", row.verdict.name(), row.adapter, row.row));
    }
    for (file, only) in [("A", &comparison.only_a), ("B", &comparison.only_b)] {
        lines.extend(only.iter().map(|(adapter, row)| format!("- only in {file}: {adapter}, {row}")));
    }
    if lines.last().is_some_and(|line| !line.is_empty()) {
        lines.push(String::new());
    }
    lines.push(summary(comparison));
    lines.iter().map(|line| one_line(line) + "\n").collect()
}

fn summary(comparison: &Comparison) -> String {
    let counts: Vec<String> = Verdict::ALL
        .into_iter()
        .map(|verdict| (comparison.count(verdict), verdict.name()))
        .filter(|(number, _)| *number > 0)
        .map(|(number, name)| format!("{number} {name}"))
        .collect();
    let mean =
        comparison.mean_ratio().map_or(String::new(), |mean| format!("; geometric mean of B/A {mean:.3}"));
    format!("{}: {}{mean}", count(comparison.rows.len(), "row"), counts.join(", "))
}

fn cells(row: &Compared) -> Vec<String> {
    let none = || "-".to_string();
    let time = |side: Option<Side>| side.map_or_else(none, |side| interval(side.ns, side.interval_ns));
    vec![
        row.row.clone(),
        time(row.a),
        time(row.b),
        row.ratio.map_or_else(none, |ratio| format!("{ratio:.3}")),
        row.verdict.name().to_string(),
    ]
}

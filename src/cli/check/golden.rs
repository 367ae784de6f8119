//! `wgformer check --golden`: the outputs of other software.

use crate::cli::Global;
use crate::cli::output::print;
use crate::cli::progress::note;
use anyhow::{Result, bail};
use std::path::Path;
use wgformer::golden::{self, CaseReport};

/// Compares the cases of a folder whose names are wanted; a line each.
pub fn run(
    global: &Global,
    folder: &Path,
    wanted: &dyn Fn(&str) -> bool,
    filter: Option<&str>,
) -> Result<()> {
    let mut cases = golden::cases(folder)?;
    cases.retain(|case| wanted(case.name()));
    if cases.is_empty() {
        match filter {
            Some(filter) => bail!("{}: no case's name matches {filter:?}", folder.display()),
            None => bail!("{}: index.json names no case", folder.display()),
        }
    }
    let gpu = global.gpu()?;
    note(&format!("adapter: {}", gpu.description()));
    let width = cases.iter().map(|case| case.name().chars().count()).max().unwrap_or(0);
    let mut failed = 0;
    for case in &cases {
        let report = case.run(&gpu, gpu.profile());
        failed += usize::from(!report.ok);
        print(&format!("{}\n", line(&report, width)))?;
    }
    print(&format!("{} passed, {failed} failed\n", cases.len() - failed))?;
    if failed > 0 {
        bail!("{failed} of {} cases failed", cases.len());
    }
    Ok(())
}

/// A case's line: its name, whether it passed, its largest error, and the tensor with that error or what is wrong.
fn line(report: &CaseReport, width: usize) -> String {
    let outcome = if report.ok { "ok" } else { "FAILED" };
    let error = if report.tensors == 0 { "-".to_string() } else { format!("{:.1e}", report.error) };
    let parts = [Some(report.tensor.as_str()), report.problem.as_deref()];
    let rest: Vec<&str> = parts.into_iter().flatten().filter(|part| !part.is_empty()).collect();
    format!("{:width$}  {outcome:6}  {error:>7}  {}", report.name, rest.join("  "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_what_is_wrong() {
        let passed = CaseReport {
            name: "gelu_tanh".into(),
            tensors: 2,
            error: 8.59e-7,
            tensor: "dx".into(),
            ok: true,
            problem: None,
        };
        let wrong = CaseReport { ok: false, error: f64::INFINITY, ..passed.clone() };
        let broken = CaseReport {
            tensors: 0,
            error: 0.0,
            tensor: String::new(),
            ok: false,
            problem: Some("a.safetensors: there is no tensor x".into()),
            ..passed.clone()
        };
        let cases = [
            (passed, "gelu_tanh    ok       8.6e-7  dx"),
            (wrong, "gelu_tanh    FAILED      inf  dx"),
            (broken, "gelu_tanh    FAILED        -  a.safetensors: there is no tensor x"),
        ];
        for (report, expected) in cases {
            assert_eq!(line(&report, 11), expected);
        }
    }
}

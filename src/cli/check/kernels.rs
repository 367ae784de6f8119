//! Every kernel against its reference, a line each.

use super::cases;
use crate::cli::output::{count, print};
use crate::cli::progress::Progress;
use anyhow::{Result, bail};
use serde_json::json;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use wgformer::gpu::Gpu;
use wgformer::plan::Plan;
use wgformer::testing::{Case, CaseReport, Runner, not_runnable, profiles};

/// What was found of a kernel.
#[derive(Default)]
struct Row {
    cases: usize,
    /// The largest error as a share of what is allowed.
    worst: f64,
    /// The first problem of each case that has one.
    problems: Vec<String>,
}

/// Runs all cases that use a kernel whose name is wanted.
pub fn run(gpu: Gpu, seed: u64, wanted: &(dyn Fn(&str) -> bool + Sync), json: bool) -> Result<()> {
    let all = cases::all();
    let all: Vec<(&str, Case)> =
        all.into_iter().flat_map(|(op, cases)| cases.into_iter().map(move |c| (op, c))).collect();
    let mut missing = not_runnable(all.iter().map(|(_, case)| case), &gpu)?;
    missing.retain(|name, _| wanted(name));
    let profiles = profiles(&gpu);
    let mut chosen = Vec::new();
    for (op, case) in &all {
        let (graph, outputs) = case.graph(seed)?;
        let able = profiles.iter().filter(|(_, p)| graph.fits(p));
        let plans = able.map(|(_, p)| Plan::new(&graph, &outputs, p));
        if plans
            .collect::<wgformer::Result<Vec<_>>>()?
            .iter()
            .any(|p| p.kernels.iter().any(|k| wanted(&k.name)))
        {
            chosen.push((*op, case));
        }
    }
    if chosen.is_empty() && missing.is_empty() {
        bail!(
            "no kernel's name matches the filter; `wgformer info` shows names, and so does a check without a filter"
        );
    }
    let description = gpu.description();
    let rows = check(&chosen, gpu, seed, wanted);
    if json {
        print(&format!(
            "{}\n",
            serde_json::to_string_pretty(&as_json(&description, seed, &rows, &missing))?
        ))?;
    } else {
        print(&as_text(&rows, &missing))?;
    }
    let wrong = rows.values().filter(|r| !r.problems.is_empty()).count();
    if wrong > 0 {
        bail!("{} wrong on this adapter: do not trust what it computes", verb(wrong));
    }
    Ok(())
}

fn verb(wrong: usize) -> String {
    format!("{} {}", count(wrong, "kernel"), if wrong == 1 { "is" } else { "are" })
}

fn check(
    chosen: &[(&str, &Case)],
    gpu: Gpu,
    seed: u64,
    wanted: &(dyn Fn(&str) -> bool + Sync),
) -> BTreeMap<String, Row> {
    let runner = Runner::new(gpu, seed);
    let next = AtomicUsize::new(0);
    let rows: Mutex<BTreeMap<String, Row>> = Mutex::default();
    let progress = Mutex::new((Progress::new("checking", chosen.len() as u64), 0));
    let workers = std::thread::available_parallelism().map_or(1, |n| n.get());
    std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                while let Some((op, case)) = chosen.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let report = case.kernels(&runner);
                    add(&mut rows.lock().unwrap_or_else(PoisonError::into_inner), op, case, &report, wanted);
                    let mut progress = progress.lock().unwrap_or_else(PoisonError::into_inner);
                    progress.1 += 1;
                    let done = progress.1;
                    progress.0.at(done, || format!("{op} {}", case.name));
                }
            });
        }
    });
    progress.into_inner().unwrap_or_else(PoisonError::into_inner).0.end();
    rows.into_inner().unwrap_or_else(PoisonError::into_inner)
}

fn add(
    rows: &mut BTreeMap<String, Row>,
    op: &str,
    case: &Case,
    report: &CaseReport,
    wanted: &dyn Fn(&str) -> bool,
) {
    for (name, worst) in report.kernels.iter().filter(|(name, _)| wanted(name)) {
        let row = rows.entry(name.clone()).or_default();
        row.cases += 1;
        row.worst = row.worst.max(*worst);
    }
    for finding in &report.problems {
        // What cannot be blamed on a kernel (a device that is lost, say) is said of the op.
        let names = match finding.kernels.is_empty() {
            true => vec![op.to_string()],
            false => finding.kernels.iter().filter(|name| wanted(name)).cloned().collect(),
        };
        for name in names {
            let row = rows.entry(name).or_default();
            row.problems.push(format!("{op} {}: {}: {}", case.name, finding.variant, finding.text));
        }
    }
}

fn as_text(rows: &BTreeMap<String, Row>, missing: &BTreeMap<String, String>) -> String {
    let width = rows.keys().chain(missing.keys()).map(|name| name.chars().count()).max().unwrap_or(0);
    let mut text = String::new();
    for (name, row) in rows {
        match row.problems.first() {
            None => {
                let cases = count(row.cases, "case");
                let worst = 100.0 * row.worst;
                text.push_str(&format!(
                    "{name:width$}  ok            {cases:>9}, largest error {worst:>3.0} % of what is allowed\n"
                ));
            }
            Some(first) => {
                let more = row.problems.len() - 1;
                let more = if more > 0 { format!(" (and {more} more)") } else { String::new() };
                text.push_str(&format!("{name:width$}  WRONG         {first}{more}\n"));
            }
        }
    }
    for (name, reason) in missing {
        text.push_str(&format!("{name:width$}  not runnable  {reason}\n"));
    }
    let wrong = rows.values().filter(|r| !r.problems.is_empty()).count();
    text.push_str(&format!("{} ok, {wrong} wrong, {} not runnable\n", rows.len() - wrong, missing.len()));
    text
}

fn as_json(
    adapter: &str,
    seed: u64,
    rows: &BTreeMap<String, Row>,
    missing: &BTreeMap<String, String>,
) -> serde_json::Value {
    let wrong = rows.values().filter(|r| !r.problems.is_empty()).count();
    let kernels: Vec<_> = rows
        .iter()
        .map(|(name, row)| {
            json!({
                "kernel": name,
                "status": if row.problems.is_empty() { "ok" } else { "wrong" },
                "cases": row.cases,
                // A share of what is allowed; JSON has no infinity.
                "largest_error": if row.worst.is_finite() { Some(row.worst) } else { None },
                "problems": row.problems,
            })
        })
        .chain(
            missing
                .iter()
                .map(|(name, reason)| json!({ "kernel": name, "status": "not runnable", "reason": reason })),
        )
        .collect();
    json!({
        "adapter": adapter,
        "seed": seed,
        "kernels": kernels,
        "ok": rows.len() - wrong,
        "wrong": wrong,
        "not_runnable": missing.len(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_a_kernel() {
        let rows = BTreeMap::from([
            ("a/one".to_string(), Row { cases: 12, worst: 0.31, problems: Vec::new() }),
            (
                "a/two".to_string(),
                Row { cases: 3, worst: 2.0, problems: vec!["x: bad".into(), "y: bad".into()] },
            ),
        ]);
        let missing = BTreeMap::from([("a/three".to_string(), "needs sub-groups of 4".to_string())]);
        assert_eq!(
            as_text(&rows, &missing),
            "a/one    ok             12 cases, largest error  31 % of what is allowed\n\
             a/two    WRONG         x: bad (and 1 more)\n\
             a/three  not runnable  needs sub-groups of 4\n\
             1 ok, 1 wrong, 1 not runnable\n"
        );
        let json = as_json("an adapter", 1, &rows, &missing);
        assert_eq!(json["kernels"][1]["status"], "wrong");
        assert_eq!(json["kernels"][2]["reason"], "needs sub-groups of 4");
        assert_eq!((&json["ok"], &json["wrong"]), (&json!(1), &json!(1)));
    }
}

//! The results of a run as text.

use super::super::output::{nanoseconds, one_line, table};
use anyhow::Result;
use clap::ValueEnum;
use wgformer::bench::{Results, Status};

/// How results are written to standard output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// A table in Markdown
    Md,
    /// The result file: one object
    Json,
    /// One object a line: environment and adapters, then each row
    Jsonl,
    /// A line a row, without the samples
    Csv,
}

/// The results in a format.
pub fn text(results: &Results, output: Output) -> Result<String> {
    Ok(match output {
        Output::Md => markdown(results),
        Output::Json => format!("{}\n", serde_json::to_string_pretty(results)?),
        Output::Jsonl => jsonl(results)?,
        Output::Csv => csv(results),
    })
}

/// A rate with three digits.
fn rate(value: Option<f64>) -> String {
    match value {
        None => String::new(),
        Some(v) if v >= 100.0 => format!("{v:.0}"),
        Some(v) if v >= 10.0 => format!("{v:.1}"),
        Some(v) => format!("{v:.2}"),
    }
}

/// A reason as a table has room for; the files have all of it.
fn short(reason: &str) -> String {
    const MOST: usize = 120;
    match reason.char_indices().nth(MOST) {
        Some((end, _)) => format!("{}…", &reason[..end]),
        None => reason.to_string(),
    }
}

fn markdown(results: &Results) -> String {
    let mut text = String::new();
    for (index, a) in results.adapters.iter().enumerate() {
        let driver = [a.backend.as_str(), &a.driver, &a.driver_version];
        let driver: Vec<&str> = driver.into_iter().filter(|part| !part.is_empty()).collect();
        let c = &a.ceilings;
        text.push_str(&format!(
            "\n{} ({}), wgformer {}; copies {} GB/s, multiply-adds {} GFLOP/s\n\n",
            one_line(&a.name),
            one_line(&driver.join(", ")),
            results.environment.version,
            rate(Some(c.copy_gb_s)),
            rate(Some(c.fma_gflop_s)),
        ));
        let rows: Vec<Vec<String>> = results
            .rows
            .iter()
            .filter(|row| row.adapter == index)
            .map(|row| {
                let time = row.time.as_ref();
                let speed = row.tokens_s().map(|t| format!("{} tokens/s", rate(Some(t))));
                let note = match (row.status, &row.reason) {
                    (Status::Ok, _) => speed.unwrap_or_default(),
                    (Status::Wrong, reason) => format!("wrong: {}", short(reason.as_deref().unwrap_or(""))),
                    (Status::Skipped, reason) => {
                        format!("skipped: {}", short(reason.as_deref().unwrap_or("")))
                    }
                };
                vec![
                    row.name.clone(),
                    row.sizes(),
                    row.pass.name().to_string(),
                    time.map_or(String::new(), |t| nanoseconds(t.median_ns)),
                    time.map_or(String::new(), |t| format!("{:.0} %", 100.0 * t.mad_ns / t.median_ns)),
                    rate(row.gflop_s()),
                    rate(row.gb_s()),
                    row.share(c).map_or(String::new(), |s| format!("{:.0} %", 100.0 * s)),
                    note,
                ]
            })
            .collect();
        let head = ["work", "sizes", "pass", "median", "MAD", "GFLOP/s", "GB/s", "of ceiling", ""];
        let right = [false, false, false, true, true, true, true, true, false];
        table(&head, &right, &rows).iter().for_each(|line| {
            text.push_str(line.trim_end());
            text.push('\n');
        });
    }
    let count = |status| results.rows.iter().filter(|row| row.status == status).count();
    text.push_str(&format!(
        "\n{} verified and timed, {} wrong, {} skipped\n",
        count(Status::Ok),
        count(Status::Wrong),
        count(Status::Skipped)
    ));
    text
}

fn jsonl(results: &Results) -> Result<String> {
    let head = serde_json::json!({
        "schema": results.schema, "environment": results.environment, "adapters": results.adapters,
    });
    let mut text = format!("{head}\n");
    for row in &results.rows {
        text.push_str(&serde_json::to_string(row)?);
        text.push('\n');
    }
    Ok(text)
}

fn csv(results: &Results) -> String {
    let field = |text: &str| match text.contains([',', '"', '\n']) {
        true => format!("\"{}\"", text.replace('"', "\"\"")),
        false => text.to_string(),
    };
    let number = |value: Option<f64>| value.map_or(String::new(), |v| v.to_string());
    let mut text = String::from(
        "adapter,backend,driver,family,name,sizes,dtype,pass,status,reason,clock,median_ns,min_ns,mad_ns,low_ns,high_ns,\
         compile_ns,flops,bytes,gflop_s,gb_s,share,tokens_s\n",
    );
    for row in &results.rows {
        let Some(a) = results.adapters.get(row.adapter) else { continue };
        let t = row.time.as_ref();
        let status = format!("{:?}", row.status).to_lowercase();
        let clock = t.map_or(String::new(), |t| format!("{:?}", t.clock).to_lowercase());
        let fields = [
            field(&a.name),
            field(&a.backend),
            field(&format!("{} {}", a.driver, a.driver_version)),
            field(&row.family),
            field(&row.name),
            field(&row.sizes()),
            field(&row.dtype),
            row.pass.name().to_string(),
            status,
            field(row.reason.as_deref().unwrap_or("")),
            clock,
            number(t.map(|t| t.median_ns)),
            number(t.map(|t| t.min_ns)),
            number(t.map(|t| t.mad_ns)),
            number(t.map(|t| t.interval_ns[0])),
            number(t.map(|t| t.interval_ns[1])),
            number(t.map(|t| t.compile_ns)),
            row.flops.to_string(),
            row.bytes.to_string(),
            number(row.gflop_s()),
            number(row.gb_s()),
            number(row.share(&a.ceilings)),
            number(row.tokens_s()),
        ];
        text.push_str(&fields.join(","));
        text.push('\n');
    }
    text
}

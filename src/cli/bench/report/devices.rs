//! Adapters against the first one, row by row.

use super::Device;
use super::chart::{colour, escape, number};
use crate::cli::output::nanoseconds;
use std::collections::HashMap;
use std::fmt::Write;
use wgformer::bench::Row;

/// Half the width of a bar's box, in its own units.
const HALF: f64 = 100.0;

/// A table of bars for each device but the first.
pub fn devices(devices: &[Device], families: &[&str]) -> String {
    let Some((first, others)) = devices.split_first() else { return String::new() };
    others.iter().map(|other| against(first, other, families)).collect()
}

/// A row of both devices, and how many times faster the second is.
struct Pair<'a> {
    row: &'a Row,
    times: [f64; 2],
    ratio: f64,
}

fn against(first: &Device, other: &Device, families: &[&str]) -> String {
    let median = |row: &Row| row.time.as_ref().map(|time| time.median_ns);
    let theirs: HashMap<String, f64> =
        other.rows.iter().filter_map(|row| Some((row.key(), median(row)?))).collect();
    let pairs: Vec<Pair> = first
        .rows
        .iter()
        .filter_map(|row| {
            let times = [median(row)?, *theirs.get(&row.key())?];
            let ratio = times[0] / times[1];
            (ratio.is_finite() && ratio > 0.0).then_some(Pair { row, times, ratio })
        })
        .collect();
    let head = format!("<h3>{} against {}</h3>\n", escape(&other.label), escape(&first.label));
    if pairs.is_empty() {
        return head + "<p>No row was timed on both.</p>\n";
    }
    let most = pairs.iter().map(|pair| pair.ratio.ln().abs()).fold(2f64.ln(), f64::max);
    let mut html = format!(
        "{head}<p>How many times faster (bars to the right) or slower (to the left) {} is, on a logarithmic scale; \
         the bars reach {} times.</p>\n<div class=\"scroll\"><table class=\"bars\">\n",
        escape(&other.label),
        number(most.exp())
    );
    for (i, family) in families.iter().enumerate() {
        let rows: Vec<&Pair> = pairs.iter().filter(|pair| pair.row.family == *family).collect();
        if rows.is_empty() {
            continue;
        }
        let mean = (rows.iter().map(|pair| pair.ratio.ln()).sum::<f64>() / rows.len() as f64).exp();
        // Writing to a String cannot fail.
        let _ = writeln!(
            html,
            "<tr class=\"group\"><th scope=\"rowgroup\" colspan=\"2\">{}</th><td class=\"num\">{}</td></tr>",
            escape(family),
            times(mean)
        );
        for pair in rows {
            let length = pair.ratio.ln().abs() / most * HALF;
            let left = if pair.ratio < 1.0 { HALF - length } else { HALF };
            let [a, b] = pair.times.map(nanoseconds);
            let _ = writeln!(
                html,
                "<tr><td>{}</td><td class=\"bar\"><svg viewBox=\"0 0 {} 12\" preserveAspectRatio=\"none\"><title>{a} on {}, {b} on {}</title>\
                 <rect class=\"{}\" x=\"{left:.1}\" y=\"1\" width=\"{length:.1}\" height=\"10\"/><line class=\"one\" x1=\"{HALF}\" x2=\"{HALF}\" y1=\"0\" y2=\"12\"/></svg></td>\
                 <td class=\"num\">{}</td></tr>",
                escape(&pair.row.key()),
                2.0 * HALF,
                escape(&first.label),
                escape(&other.label),
                colour(i),
                times(pair.ratio)
            );
        }
    }
    html + "</table></div>\n"
}

fn times(ratio: f64) -> String {
    format!("{} \u{d7}", number(ratio))
}

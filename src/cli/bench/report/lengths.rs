//! Attention's speed against the length of the sequence.

use super::Device;
use super::chart::{Scale, X, Y, chart, colour, escape, legend, number};
use crate::cli::output::nanoseconds;
use std::collections::BTreeMap;
use std::fmt::Write;
use wgformer::bench::{Pass, Row};

/// The rows of one line: name and pass.
type Line<'a> = (&'a str, Pass);
/// What the rows of one chart have in common: the other sizes, and the type.
type Common<'a> = (Vec<(&'a str, u64)>, &'a str);
/// The lines of a chart, each with its points: S, GFLOP/s and the row.
type Lines<'a> = BTreeMap<Line<'a>, Vec<(u64, f64, &'a Row)>>;

/// A chart for each device and each set of the other sizes, lines by name and pass.
pub fn lengths(devices: &[Device]) -> String {
    let panels: Vec<Vec<(String, Lines)>> = devices.iter().map(|device| panels(&device.rows)).collect();
    let mut names: Vec<&str> = Vec::new();
    for name in panels.iter().flatten().flat_map(|(_, lines)| lines.keys().map(|(name, _)| *name)) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    let mut html = String::new();
    for (device, panels) in devices.iter().zip(&panels) {
        // One scale for a device, so that its charts compare.
        let all = panels.iter().flat_map(|(_, lines)| lines.values().flatten());
        let most = all.map(|(_, speed, _)| *speed).fold(0.0, f64::max);
        for (sizes, lines) in panels {
            html += &panel(device, sizes, lines, most, &names);
        }
    }
    html
}

/// The charts of a device: rows of attention by their sizes without those that go with the length.
fn panels<'a>(rows: &[&'a Row]) -> Vec<(String, Lines<'a>)> {
    let rows: Vec<&Row> =
        rows.iter().copied().filter(|row| row.family == "attention" && row.shape.contains_key("S")).collect();
    // Batches are often chosen by the length; where they are not, they tell rows apart.
    let by = |left_out: &[&str]| {
        // Ordered by the sizes as numbers.
        let mut panels: BTreeMap<Common, Lines> = BTreeMap::new();
        for row in &rows {
            let Some(speed) = row.gflop_s().filter(|speed| speed.is_finite()) else { continue };
            let sizes = row.shape.iter().map(|(name, n)| (name.as_str(), *n));
            let sizes = sizes.filter(|(name, _)| !left_out.contains(name)).collect();
            let length = row.shape.get("S").copied().unwrap_or(0);
            let line = panels
                .entry((sizes, row.dtype.as_str()))
                .or_default()
                .entry((&row.name, row.pass))
                .or_default();
            line.push((length, speed, row));
        }
        for line in panels.values_mut().flat_map(BTreeMap::values_mut) {
            line.sort_by_key(|(length, ..)| *length);
        }
        panels
    };
    let mut panels = by(&["S", "T", "B"]);
    let twice =
        |line: &Vec<(u64, f64, &Row)>| line.windows(2).any(|pair| matches!(pair, [a, b] if a.0 == b.0));
    if panels.values().flat_map(BTreeMap::values).any(twice) {
        panels = by(&["S"]);
    }
    for lines in panels.values_mut() {
        lines.retain(|_, line| line.len() > 1);
    }
    panels.retain(|_, lines| !lines.is_empty());
    let words =
        |sizes: &[(&str, u64)]| -> String { sizes.iter().map(|(name, n)| format!("{name} {n} ")).collect() };
    panels.into_iter().map(|((sizes, dtype), lines)| (words(&sizes) + dtype, lines)).collect()
}

fn panel(device: &Device, sizes: &str, lines: &Lines, most: f64, names: &[&str]) -> String {
    let mut ticks: Vec<u64> = lines.values().flatten().map(|(length, ..)| (*length).max(1)).collect();
    ticks.sort_unstable();
    ticks.dedup();
    let ticks: Vec<f64> = ticks.into_iter().map(|length| length as f64).collect();
    let x = Scale::logarithmic(ticks.iter().copied(), 1.15, X);
    let y = Scale::linear(most, Y);
    // Labels of lengths that are too near to the one before would run into it.
    let mut last = f64::NEG_INFINITY;
    let ticks: Vec<f64> = ticks
        .into_iter()
        .filter(|&tick| {
            let free = x.at(tick) - last > 32.0;
            if free {
                last = x.at(tick);
            }
            free
        })
        .collect();
    let mut marks = String::new();
    let mut entries = Vec::new();
    for (&(name, pass), line) in lines {
        let series = names.iter().position(|other| *other == name).unwrap_or(usize::MAX);
        let (dash, hollow) = if pass == Pass::Forward { ("", "") } else { (" dash", " hollow") };
        let places: Vec<String> = line
            .iter()
            .map(|(length, speed, _)| format!("{:.1},{:.1}", x.at((*length).max(1) as f64), y.at(*speed)))
            .collect();
        // Writing to a String cannot fail.
        let _ = writeln!(
            marks,
            "<polyline class=\"line {}{dash}\" points=\"{}\"/>",
            colour(series),
            places.join(" ")
        );
        for (length, speed, row) in line {
            let time = row.time.as_ref().map_or(String::new(), |time| nanoseconds(time.median_ns));
            let _ = writeln!(
                marks,
                "<circle class=\"point {}{hollow}\" cx=\"{:.1}\" cy=\"{:.1}\" r=\"3.5\"><title>{}\n{time}, {} GFLOP/s</title></circle>",
                colour(series),
                x.at((*length).max(1) as f64),
                y.at(*speed),
                escape(&row.key()),
                number(*speed)
            );
        }
        if entries.iter().all(|(class, _)| *class != colour(series)) {
            entries.push((colour(series), name.to_string()));
        }
    }
    if lines.keys().any(|(_, pass)| *pass != Pass::Forward) {
        entries.push(("ring".to_string(), "backward (dashed)".to_string()));
    }
    let what = format!("{}, {sizes}", device.label);
    let svg = chart(&what, (&x, &ticks, "length S of the sequence (log)"), (&y, "speed (GFLOP/s)"), &marks);
    format!(
        "<figure><figcaption>{} <span>{}</span></figcaption>{svg}{}</figure>\n",
        escape(&device.label),
        escape(sizes),
        legend(&entries)
    )
}

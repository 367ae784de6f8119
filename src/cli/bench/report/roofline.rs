//! How near each row is to what the adapter could do: Williams, Waterman and Patterson, "Roofline: An Insightful Visual
//! Performance Model for Multicore Architectures", Communications of the ACM 52(4), 2009.

use super::Device;
use super::chart::{Scale, X, Y, chart, colour, escape, legend, number};
use crate::cli::output::nanoseconds;
use std::fmt::Write;
use wgformer::bench::{Pass, Row};

/// A row as a point: FLOP/byte and GFLOP/s.
struct Point<'a> {
    row: &'a Row,
    intensity: f64,
    speed: f64,
}

/// The roofline of a device; nothing where no row has operations and bytes.
pub fn roofline(device: &Device, families: &[&str]) -> Option<String> {
    let points: Vec<Point> = device.rows.iter().filter_map(|row| point(row)).collect();
    if points.is_empty() {
        return None;
    }
    let ceilings = device.adapter.ceilings;
    let measured = |ceiling: f64| Some(ceiling).filter(|c| c.is_finite() && *c > 0.0);
    let (copy, fma) = (measured(ceilings.copy_gb_s), measured(ceilings.fma_gflop_s));
    let ridge = copy.zip(fma).map(|(copy, fma)| fma / copy);
    let x = Scale::logarithmic(points.iter().map(|p| p.intensity).chain(ridge), 1.8, X);
    let y = Scale::logarithmic(points.iter().map(|p| p.speed).chain(fma), 1.8, Y);

    let mut marks = roofs(&x, &y, copy, fma);
    let mut used: Vec<usize> = Vec::new();
    for Point { row, intensity, speed } in &points {
        let family = families.iter().position(|family| *family == row.family).unwrap_or(usize::MAX);
        if !used.contains(&family) {
            used.push(family);
        }
        let hollow = if row.pass == Pass::Forward { "" } else { " hollow" };
        let time = row.time.as_ref().map_or(String::new(), |time| nanoseconds(time.median_ns));
        let share =
            row.share(&ceilings).map_or(String::new(), |s| format!(", {:.0} % of the ceiling", s * 100.0));
        // Writing to a String cannot fail.
        let _ = writeln!(
            marks,
            "<circle class=\"point {}{hollow}\" cx=\"{:.1}\" cy=\"{:.1}\" r=\"4\"><title>{}\n{time}, {} GFLOP/s{share}</title></circle>",
            colour(family),
            x.at(*intensity),
            y.at(*speed),
            escape(&row.key()),
            number(*speed),
        );
    }
    used.sort_unstable();
    let mut entries: Vec<(String, String)> =
        used.iter().map(|&i| (colour(i), families.get(i).unwrap_or(&"").to_string())).collect();
    if points.iter().any(|p| p.row.pass != Pass::Forward) {
        entries.push(("ring".to_string(), "backward, or a step of training".to_string()));
    }
    let what = format!("Roofline of {}", device.label);
    let svg =
        chart(&what, (&x, &x.ticks(), "operations a byte (FLOP/byte)"), (&y, "speed (GFLOP/s)"), &marks);
    Some(format!(
        "<figure><figcaption>{}</figcaption>{svg}{}</figure>\n",
        escape(&device.label),
        legend(&entries)
    ))
}

fn point(row: &Row) -> Option<Point<'_>> {
    let speed = row.gflop_s().filter(|speed| speed.is_finite() && *speed > 0.0)?;
    (row.bytes > 0).then(|| Point { row, intensity: row.flops as f64 / row.bytes as f64, speed })
}

/// The lines of the ceilings, with their labels.
fn roofs(x: &Scale, y: &Scale, copy: Option<f64>, fma: Option<f64>) -> String {
    let [left, right] = x.domain();
    let [bottom, top] = y.domain();
    // Where the copy's roof enters the frame and where it ends: at the other roof, or at the frame.
    let end = fma.unwrap_or(top);
    let slanted = copy.map(|copy| [left.max(bottom / copy), right.min(end / copy), copy]);
    let mut svg = String::new();
    if let Some([from, to, copy]) = slanted.filter(|[from, to, _]| from < to) {
        let [x1, x2] = [from, to].map(|v| x.at(v));
        let [y1, y2] = [from, to].map(|v| y.at(v * copy));
        let angle = (y2 - y1).atan2(x2 - x1).to_degrees();
        let _ = writeln!(
            svg,
            "<line class=\"roof\" x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\"/>"
        );
        // Where it is too short for its label, the caption of the adapter has the number.
        if (x2 - x1).hypot(y2 - y1) > 130.0 {
            let (cx, cy) = ((x1 + x2) / 2.0, (y1 + y2) / 2.0);
            let _ = writeln!(
                svg,
                "<text class=\"mid roofname\" transform=\"translate({cx:.1} {cy:.1}) rotate({angle:.1})\" y=\"-6\">copy {} GB/s</text>",
                number(copy)
            );
        }
    }
    if let Some(fma) = fma {
        let from = copy.map_or(left, |copy| (fma / copy).max(left));
        let [x1, x2, at] = [x.at(from), x.at(right), y.at(fma)];
        let _ = writeln!(
            svg,
            "<line class=\"roof\" x1=\"{x1:.1}\" y1=\"{at:.1}\" x2=\"{x2:.1}\" y2=\"{at:.1}\"/>"
        );
        let _ = writeln!(
            svg,
            "<text class=\"end roofname\" x=\"{:.1}\" y=\"{:.1}\">multiply-add {} GFLOP/s</text>",
            X[1] - 2.0,
            at - 6.0,
            number(fma)
        );
    }
    svg
}

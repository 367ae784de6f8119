//! What the charts share: text that is safe in HTML, scales, and a frame with axes.
//!
//! SVG is written by hand with CSS classes: colours have to follow the reader's light or dark mode, every point has its
//! tooltip, and the file may load nothing.

use crate::cli::output::one_line;
use std::fmt::Write;

/// The colours that there are for series; the last one is shared by all that follow.
pub const COLOURS: usize = 9;

/// Text from a file, for HTML and its attributes.
pub fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in one_line(text).chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            _ => out.push(c),
        }
    }
    out
}

/// The CSS class with the colour of series `i`.
pub fn colour(i: usize) -> String {
    format!("c{}", i.min(COLOURS - 1))
}

/// A number with three digits: `0.123`, `12.3`, `1,230`, `1.2e9`.
pub fn number(value: f64) -> String {
    match value.abs() {
        0.0 => "0".to_string(),
        ..0.001 | 1e6.. => format!("{value:.1e}"),
        ..1.0 => format!("{value:.3}"),
        ..9.995 => format!("{value:.2}"),
        ..99.95 => format!("{value:.1}"),
        _ => crate::cli::output::grouped(value.round() as u64),
    }
}

/// The positive numbers that an axis may have: beyond what any device does, and not so far that their products and
/// quotients are none.
const RANGE: [f64; 2] = [1e-90, 1e90];

/// From values to places along an axis.
pub struct Scale {
    logarithmic: bool,
    domain: [f64; 2],
    range: [f64; 2],
}

impl Scale {
    /// A linear scale from 0 to above `most`.
    pub fn linear(most: f64, range: [f64; 2]) -> Scale {
        let most = if most.is_finite() && most > 0.0 { most.clamp(RANGE[0], RANGE[1]) } else { 1.0 };
        let step = nice_step(most);
        Scale { logarithmic: false, domain: [0.0, (most / step).ceil() * step], range }
    }

    /// A logarithmic scale that spans `values`, which are positive, and `margin` times more at both ends.
    pub fn logarithmic(values: impl IntoIterator<Item = f64>, margin: f64, range: [f64; 2]) -> Scale {
        let [low, high] = values
            .into_iter()
            .filter(|v| v.is_finite() && *v > 0.0)
            .map(|v| v.clamp(RANGE[0], RANGE[1]))
            .fold([f64::INFINITY, 0.0], |[low, high], v| [v.min(low), v.max(high)]);
        let domain = if high > 0.0 { [low / margin, high * margin] } else { [0.1, 10.0] };
        Scale { logarithmic: true, domain, range }
    }

    pub fn domain(&self) -> [f64; 2] {
        self.domain
    }

    /// The place of a value.
    pub fn at(&self, value: f64) -> f64 {
        let [low, high] = self.domain;
        let share = match self.logarithmic {
            true => (value / low).ln() / (high / low).ln(),
            false => (value - low) / (high - low),
        };
        self.range[0] + (self.range[1] - self.range[0]) * share.clamp(-1.0, 2.0)
    }

    /// The values that get a line and a label.
    pub fn ticks(&self) -> Vec<f64> {
        let [low, high] = self.domain;
        if !self.logarithmic {
            let step = nice_step(high);
            return (0..=(high / step).round() as u32).map(|i| f64::from(i) * step).collect();
        }
        let decades = (low.log10().floor() as i32, high.log10().ceil() as i32);
        let span = (high / low).log10();
        // Labels at 1, 2 and 5 where there is room, else at each power of ten, or at each of some.
        let between: &[f64] = if span < 2.5 { &[1.0, 2.0, 5.0] } else { &[1.0] };
        let every = ((span / 8.0).ceil() as usize).max(1);
        (decades.0..=decades.1)
            .step_by(every)
            .flat_map(|decade| between.iter().map(move |m| m * 10f64.powi(decade)))
            .filter(|tick| (low..=high).contains(tick))
            .collect()
    }
}

/// 1, 2 or 5 times a power of ten: the step between four to ten ticks from 0 to `most`.
fn nice_step(most: f64) -> f64 {
    let rough = most / 5.0;
    let power = 10f64.powf(rough.log10().floor());
    match rough / power {
        ..1.5 => power,
        ..3.5 => 2.0 * power,
        ..7.5 => 5.0 * power,
        _ => 10.0 * power,
    }
}

/// The size of a chart, in the units of its view box: a column of the page is a little wider on a desk, a little less
/// on a phone.
pub const SIZE: [f64; 2] = [480.0, 330.0];
/// The places of the frame's left and right.
pub const X: [f64; 2] = [52.0, 470.0];
/// The places of the frame's bottom and top.
pub const Y: [f64; 2] = [288.0, 26.0];

/// A chart with its frame, grid and axes; `marks` is what is in it.
pub fn chart(what: &str, x: (&Scale, &[f64], &str), y: (&Scale, &str), marks: &str) -> String {
    let mut svg = format!(
        "<svg class=\"chart\" viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"{}\">\n",
        SIZE[0],
        SIZE[1],
        escape(what)
    );
    let (scale, ticks, label) = x;
    for &tick in ticks {
        let at = scale.at(tick);
        // Writing to a String cannot fail.
        let _ = write!(
            svg,
            "<line class=\"grid\" x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{}\" y2=\"{}\"/>",
            Y[0], Y[1]
        );
        let _ = writeln!(
            svg,
            "<text class=\"mid\" x=\"{at:.1}\" y=\"{}\">{}</text>",
            Y[0] + 16.0,
            tick_label(tick)
        );
    }
    for tick in y.0.ticks() {
        let at = y.0.at(tick);
        let _ = write!(
            svg,
            "<line class=\"grid\" y1=\"{at:.1}\" y2=\"{at:.1}\" x1=\"{}\" x2=\"{}\"/>",
            X[0], X[1]
        );
        let _ = writeln!(
            svg,
            "<text class=\"end\" x=\"{}\" y=\"{:.1}\">{}</text>",
            X[0] - 6.0,
            at + 4.0,
            tick_label(tick)
        );
    }
    let _ = write!(
        svg,
        "<text class=\"mid axis\" x=\"{}\" y=\"{}\">{}</text>",
        (X[0] + X[1]) / 2.0,
        SIZE[1] - 6.0,
        escape(label)
    );
    let _ = writeln!(svg, "<text class=\"axis\" x=\"4\" y=\"14\">{}</text>", escape(y.1));
    svg + marks + "</svg>\n"
}

/// A tick's value, short.
fn tick_label(value: f64) -> String {
    match value {
        0.0 => "0".to_string(),
        0.001..1e4 => format!("{}", (value * 1e6).round() / 1e6),
        1e4..1e6 => format!("{}k", (value / 1e3 * 1e6).round() / 1e6),
        _ => format!("{value:.0e}"),
    }
}

/// A legend below a chart: classes of the swatches and their names.
pub fn legend(entries: &[(String, String)]) -> String {
    let entries: String = entries
        .iter()
        .map(|(class, name)| format!("<li><i class=\"{}\"></i>{}</li>", escape(class), escape(name)))
        .collect();
    format!("<ul class=\"legend\">{entries}</ul>\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scales_put_ticks_inside_and_few() {
        for (values, margin) in
            [([1.0, 2.0], 1.5), ([0.03, 9e4], 2.0), ([1e-300, 1e300], 1.0), ([5.0, 5.0], 2.0)]
        {
            let scale = Scale::logarithmic(values, margin, [0.0, 100.0]);
            let ticks = scale.ticks();
            assert!((2..=9).contains(&ticks.len()), "{values:?}: {ticks:?}");
            assert!(
                ticks.iter().all(|&tick| (-0.1..=100.1).contains(&scale.at(tick))),
                "{values:?}: {ticks:?}"
            );
        }
        for most in [0.003, 1.0, 7.3, 99.0, 1e12, 0.0, f64::INFINITY] {
            let scale = Scale::linear(most, [100.0, 0.0]);
            assert!((4..=11).contains(&scale.ticks().len()), "{most}: {:?}", scale.ticks());
            assert!(most > 1e90 || scale.at(most) >= -0.001, "{most}");
        }
        assert_eq!(Scale::logarithmic([], 2.0, [0.0, 1.0]).domain(), [0.1, 10.0]);
    }

    #[test]
    fn text_is_text() {
        assert_eq!(
            escape("<a href='x' b=\"&\">\n"),
            "&lt;a href=&#39;x&#39; b=&quot;&amp;&quot;&gt;\u{fffd}"
        );
        let labels = [0.2, 1.0, 2000.0, 50_000.0, 1e7].map(tick_label);
        assert_eq!(labels, ["0.2", "1", "2000", "50k", "1e7"]);
        let numbers = [0.0, 0.12345, 1.2345, 99.96, 12345.6, 2e9].map(number);
        assert_eq!(numbers, ["0", "0.123", "1.23", "100", "12,346", "2.0e9"]);
    }
}

//! Standard output, and numbers for people.

use anyhow::{Context, Result};
use std::io::{self, Write};
use std::time::Duration;

/// Whether an error means that nobody reads standard output any more.
pub fn is_broken_pipe(error: &(dyn std::error::Error + 'static)) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|e| e.kind() == io::ErrorKind::BrokenPipe)
}

/// Writes to standard output, all at once.
pub fn print(text: &str) -> Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).context("cannot write to standard output")
}

/// 12345678 as `12,345,678`.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// `1` and "sentence" as `1 sentence`, `2` as `2 sentences`.
pub fn count(number: usize, what: &str) -> String {
    format!("{} {what}{}", grouped(number as u64), if number == 1 { "" } else { "s" })
}

/// A number of bytes in the unit that fits.
pub fn bytes(number: u64) -> String {
    let units = ["bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let mut value = number as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < units.len() {
        value /= 1024.0;
        unit += 1;
    }
    if value.fract() == 0.0 {
        format!("{value} {}", units[unit])
    } else {
        format!("{value:.1} {}", units[unit])
    }
}

/// A large number in the unit that fits: `1.2 G`.
pub fn si(number: u64) -> String {
    let units = ["", "k", "M", "G", "T", "P", "E"];
    let mut value = number as f64;
    let mut unit = 0;
    while value >= 1000.0 && unit + 1 < units.len() {
        value /= 1000.0;
        unit += 1;
    }
    if unit == 0 { number.to_string() } else { format!("{value:.1} {}", units[unit]) }
}

/// A time for people: `1.2 s`, `3 min 05 s`, `2 h 10 min`.
pub fn time(duration: Duration) -> String {
    let seconds = duration.as_secs_f64();
    let whole = seconds.round() as u64;
    match whole {
        0..60 => format!("{seconds:.1} s"),
        60..3600 => format!("{} min {:02} s", whole / 60, whole % 60),
        _ => format!("{} h {:02} min", whole / 3600, whole / 60 % 60),
    }
}

/// Nanoseconds in the unit that fits, with three digits: `12.3 us`.
pub fn nanoseconds(ns: f64) -> String {
    let (unit, scale) = time_unit(ns);
    format!("{} {unit}", three_digits(ns / scale))
}

/// A time and the interval that holds it, in the unit that fits the time: `12.3 [12.1, 12.6] us`.
pub fn interval(ns: f64, [low, high]: [f64; 2]) -> String {
    let (unit, scale) = time_unit(ns);
    let [time, low, high] = [ns, low, high].map(|ns| three_digits(ns / scale));
    format!("{time} [{low}, {high}] {unit}")
}

/// The unit that fits a time, and its nanoseconds.
fn time_unit(ns: f64) -> (&'static str, f64) {
    // 999.5 would be written as 1000.
    match ns {
        ..999.5 => ("ns", 1.0),
        ..999.5e3 => ("us", 1e3),
        ..999.5e6 => ("ms", 1e6),
        _ => ("s", 1e9),
    }
}

fn three_digits(value: f64) -> String {
    let digits = match value {
        ..9.995 => 2,
        ..99.95 => 1,
        _ => 0,
    };
    format!("{value:.digits$}")
}

/// Text from a file as it may go to a terminal: on one line, without what would steer it.
pub fn one_line(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

/// The lines of a table in Markdown, its columns aligned; those marked in `right` to the right.
pub fn table(head: &[&str], right: &[bool], rows: &[Vec<String>]) -> Vec<String> {
    let cell = |text: &str| one_line(text).replace('|', "\\|");
    let all: Vec<Vec<String>> = std::iter::once(head.iter().map(|text| cell(text)).collect())
        .chain(rows.iter().map(|row| row.iter().map(|text| cell(text)).collect()))
        .collect();
    let width = |column: usize| {
        let widths = all.iter().filter_map(|row| row.get(column)).map(|text| text.chars().count());
        widths.max().unwrap_or(0).max(2)
    };
    let columns: Vec<(usize, bool)> = right.iter().enumerate().map(|(i, right)| (width(i), *right)).collect();
    let mut lines: Vec<String> = Vec::with_capacity(all.len() + 1);
    for row in &all {
        let cells = row.iter().zip(&columns).map(|(text, &(width, right))| match right {
            true => format!("{text:>width$}"),
            false => format!("{text:<width$}"),
        });
        lines.push(format!("| {} |", cells.collect::<Vec<_>>().join(" | ")));
    }
    let rule = columns.iter().map(|&(width, right)| match right {
        true => format!("{}:", "-".repeat(width - 1)),
        false => "-".repeat(width),
    });
    lines.insert(1, format!("| {} |", rule.collect::<Vec<_>>().join(" | ")));
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_for_people() {
        for (number, want) in [(0, "0"), (999, "999"), (1000, "1,000"), (12_345_678, "12,345,678")] {
            assert_eq!(grouped(number), want);
        }
        for (number, want) in [(0, "0 bytes"), (1024, "1 KiB"), (1536, "1.5 KiB"), (128 << 20, "128 MiB")] {
            assert_eq!(bytes(number), want);
        }
        for (seconds, want) in
            [(0.04, "0.0 s"), (59.0, "59.0 s"), (185.0, "3 min 05 s"), (7800.0, "2 h 10 min")]
        {
            assert_eq!(time(Duration::from_secs_f64(seconds)), want);
        }
        for (ns, want) in [(1.0, "1.00 ns"), (999.4, "999 ns"), (999.6, "1.00 us"), (12_345.0, "12.3 us")] {
            assert_eq!(nanoseconds(ns), want);
        }
        assert_eq!(interval(12_345.0, [999.0, 100_300.0]), "12.3 [1.00, 100] us");
        assert_eq!((nanoseconds(9.996), nanoseconds(5e12)), ("10.0 ns".to_string(), "5000 s".to_string()));
        assert_eq!((si(999), si(1_230_000_000)), ("999".to_string(), "1.2 G".to_string()));
    }
    #[test]
    fn tables_are_aligned_and_cannot_be_broken() {
        let rows =
            [vec!["a|b".to_string(), "1".to_string()], vec!["\u{1b}[2J\n".to_string(), "100".to_string()]];
        let want =
            ["| row   |   n |", "| ----- | --: |", "| a\\|b  |   1 |", "| \u{fffd}[2J\u{fffd} | 100 |"];
        assert_eq!(table(&["row", "n"], &[false, true], &rows), want);
    }
}

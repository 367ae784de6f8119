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
        assert_eq!((si(999), si(1_230_000_000)), ("999".to_string(), "1.2 G".to_string()));
    }
}

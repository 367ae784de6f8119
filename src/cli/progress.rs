//! What a person sees while something long runs: a bar on a terminal, a line every few seconds elsewhere.

use super::output::grouped;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};
use wgformer::model::Metrics;

/// Time between two lines where there is no terminal.
const PAUSE: Duration = Duration::from_secs(5);

/// Writes a line to standard error. That nobody reads it is no reason to end.
pub fn note(line: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{line}");
}

/// The progress of work that has a known length.
#[derive(Debug)]
pub struct Progress {
    bar: Option<ProgressBar>,
    what: &'static str,
    len: u64,
    begin: Instant,
    said: Instant,
}

impl Progress {
    /// Starts; `what` is said in front.
    pub fn new(what: &'static str, len: u64) -> Self {
        Self::when(what, len, std::io::stderr().is_terminal())
    }

    fn when(what: &'static str, len: u64, terminal: bool) -> Self {
        let bar = terminal.then(|| {
            let bar = ProgressBar::with_draw_target(Some(len), ProgressDrawTarget::stderr_with_hz(8));
            // Short enough for 80 columns: a bar that fills the line is torn by the `^C` that a terminal shows. The
            // template is a constant: it parses.
            let style = ProgressStyle::with_template("{bar:16} {pos}/{len}  {msg}");
            bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()).progress_chars("━╸ "));
            bar
        });
        Progress { bar, what, len, begin: Instant::now(), said: Instant::now() }
    }

    /// `done` of the work is done, with a message.
    pub fn at(&mut self, done: u64, message: impl FnOnce() -> String) {
        match &self.bar {
            Some(bar) => {
                bar.set_message(message());
                bar.set_position(done);
            }
            None if self.said.elapsed() >= PAUSE => {
                self.said = Instant::now();
                note(&format!("{} {done}/{}  {}", self.what, self.len, message()));
            }
            None => {}
        }
    }

    /// Writes a line above the bar.
    pub fn say(&self, line: &str) {
        match &self.bar {
            Some(bar) => bar.suspend(|| note(line)),
            None => note(line),
        }
    }

    /// Ends; the bar goes.
    pub fn end(self) -> Duration {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
        self.begin.elapsed()
    }
}

/// The time since the start, without the pauses.
#[derive(Debug)]
pub struct Watch {
    before: Duration,
    since: Option<Instant>,
}

impl Watch {
    /// Starts.
    pub fn new() -> Self {
        Watch { before: Duration::ZERO, since: Some(Instant::now()) }
    }

    pub fn pause(&mut self) {
        self.before = self.elapsed();
        self.since = None;
    }

    pub fn resume(&mut self) {
        self.since = Some(Instant::now());
    }

    pub fn elapsed(&self) -> Duration {
        self.before + self.since.map_or(Duration::ZERO, |since| since.elapsed())
    }
}

/// The message of a training's bar and lines.
pub fn of_step(metrics: &Metrics, left: Duration) -> String {
    let left = left.as_secs_f64().ceil() as u64;
    let left = match left {
        0..3600 => format!("{}:{:02}", left / 60, left % 60),
        _ => format!("{}:{:02}:{:02}", left / 3600, left / 60 % 60, left % 60),
    };
    format!(
        "loss {:.3}  lr {:.1e}  {} tok/s  {left} left",
        metrics.loss,
        metrics.learning_rate,
        grouped(metrics.tokens_per_second.round() as u64),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_does_not_count() {
        let mut watch = Watch::new();
        watch.pause();
        let before = watch.elapsed();
        std::thread::sleep(Duration::from_millis(2));
        assert_eq!(watch.elapsed(), before);
        watch.resume();
        std::thread::sleep(Duration::from_millis(2));
        assert!(watch.elapsed() >= before + Duration::from_millis(2));
    }
}

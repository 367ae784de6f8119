//! `wgformer bench run` and `wgformer bench list`.

use super::super::Global;
use super::super::output::{one_line, print, table};
use super::super::progress::Progress;
use super::format::{Output, text};
use super::sweep::{self, Sweep};
use anyhow::{Context, Result, bail};
use clap::Args;
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime};
use wgformer::DeviceClass;
use wgformer::bench::{
    self, Environment, Extent, Results, Row, SCHEMA, Settings, Sizes, Status, Work, adapter, measure, works,
};
use wgformer::gpu::{self, Gpu, Request};

const EXAMPLES: &str = "\
Examples:
  wgformer bench run --quick
  wgformer bench run attention --seq 128-2048*2 --batch 1,8 -o json > results.json
  wgformer bench run --adapter all --file results.json";

/// Above the options that take sizes.
const SIZES: &str = "Sizes, as 1,8,32 or 128-2048*2 or 16-64+16";

/// Which works: what `list` and `run` share.
#[derive(Debug, Args)]
pub struct Which {
    /// Only rows whose name, sizes and pass contain each of these words, as `list` shows them
    #[arg(value_name = "FILTER")]
    filter: Vec<String>,
    /// A few sizes of everything, in less than a minute
    #[arg(long)]
    quick: bool,
    /// Sentences of a batch, for attention and models
    #[arg(long, value_name = "SIZES", value_parser = sweep::parse, help_heading = SIZES)]
    batch: Option<Sweep>,
    /// Length of sentences, for attention and models
    #[arg(long, value_name = "SIZES", value_parser = sweep::parse, help_heading = SIZES)]
    seq: Option<Sweep>,
    /// Heads of attention
    #[arg(long, value_name = "SIZES", value_parser = sweep::parse, help_heading = SIZES)]
    heads: Option<Sweep>,
    /// Width of a head of attention
    #[arg(long, value_name = "SIZES", value_parser = sweep::parse, help_heading = SIZES)]
    head_width: Option<Sweep>,
    /// M, N and K of square products
    #[arg(long, value_name = "SIZES", value_parser = sweep::parse, help_heading = SIZES)]
    square: Option<Sweep>,
    /// Rows of products by weights, and of kernels that work row by row
    #[arg(long, value_name = "SIZES", value_parser = sweep::parse, help_heading = SIZES)]
    rows: Option<Sweep>,
    /// Width of rows
    #[arg(long, value_name = "SIZES", value_parser = sweep::parse, help_heading = SIZES)]
    width: Option<Sweep>,
    /// Vocabulary
    #[arg(long, value_name = "SIZES", value_parser = sweep::parse, help_heading = SIZES)]
    vocabulary: Option<Sweep>,
    /// Whole models
    #[arg(long, value_name = "NAMES", value_delimiter = ',', value_parser = wgformer::nn::PRESETS, help_heading = SIZES)]
    preset: Vec<String>,
}

/// Options of `wgformer bench run`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Run {
    #[command(flatten)]
    which: Which,
    /// Element types
    #[arg(long, value_name = "TYPES", value_delimiter = ',', default_value = "f32", value_parser = ["f32", "f16"])]
    dtype: Vec<String>,
    /// Rounds, spread over the run, that each row is sampled in, up to five times a round
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u16).range(3..=1000))]
    repeats: u16,
    /// The most milliseconds that a row warms up [default: 100, quick: 30]
    #[arg(long, value_name = "MS")]
    warmup: Option<u64>,
    /// Seconds for each adapter; rows that are not reached say so [default: 260, quick: 44; on a GPU 600]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    budget: Option<u64>,
    /// Seed of the inputs
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// What is written to standard output
    #[arg(long, short, value_enum, default_value_t = Output::Md)]
    output: Output,
    /// Write the results to this file as well, as JSON
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Make kernels whose name contains this compute something wrong, to see that it is noticed
    #[arg(long, value_name = "KERNEL", hide = true)]
    wrong: Option<String>,
}

/// Options of `wgformer bench list`.
#[derive(Debug, Args)]
pub struct List {
    #[command(flatten)]
    which: Which,
}

impl Which {
    fn works(&self, class: DeviceClass) -> Result<Vec<Work>> {
        let list = |sweep: &Option<Sweep>| sweep.as_ref().map(|s| s.0.clone()).unwrap_or_default();
        let sizes = Sizes {
            batch: list(&self.batch),
            seq: list(&self.seq),
            heads: list(&self.heads),
            head: list(&self.head_width),
            square: list(&self.square),
            rows: list(&self.rows),
            width: list(&self.width),
            vocabulary: list(&self.vocabulary),
            preset: self.preset.clone(),
        };
        let extent = if self.quick { Extent::Quick } else { Extent::Full };
        let all = works(class, extent, &sizes)?;
        let text = |work: &Work| format!("{} {} {}", work.name(), work.sizes(), work.pass().name());
        for word in &self.filter {
            if !all.iter().any(|work| text(work).contains(word.as_str())) {
                bail!("no row contains {word:?}; {}", nearest(word, &all));
            }
        }
        let wanted = |work: &Work| self.filter.iter().all(|word| text(work).contains(word.as_str()));
        if !all.iter().any(wanted) {
            bail!("no row contains all of {:?}; `wgformer bench list` shows the rows", self.filter);
        }
        // The ceilings are what the others are shares of.
        Ok(all.into_iter().filter(|work| work.family() == "ceiling" || wanted(work)).collect())
    }
}

/// The names most like a word.
fn nearest(word: &str, works: &[Work]) -> String {
    let mut names: Vec<&str> = works.iter().flat_map(|w| [w.family(), w.name()]).collect();
    names.sort();
    names.dedup();
    names.sort_by_key(|name| distance(word, name));
    names.truncate(3);
    format!("the nearest names are {}; `wgformer bench list` shows all", names.join(", "))
}

/// The letters to add, drop or change to make one word of the other (Levenshtein).
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let change = diagonal + usize::from(x != *y);
            diagonal = row[j + 1];
            row[j + 1] = change.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

impl List {
    pub fn run(&self, global: &Global) -> Result<()> {
        let gpu = global.gpu()?;
        let works = self.which.works(gpu.profile().class)?;
        let rows: Vec<Vec<String>> = works
            .iter()
            .map(|w| vec![w.name().to_string(), w.sizes(), w.pass().name().to_string()])
            .collect();
        print(&format!("{}\n", table(&["work", "sizes", "pass"], &[false; 3], &rows).join("\n")))
    }
}

impl Run {
    pub fn run(&self, global: &Global) -> Result<()> {
        if global.checked {
            bail!("--checked slows kernels down: what is timed runs without checks, and is verified");
        }
        let begun = started(SystemTime::now());
        let mut results = Results {
            schema: SCHEMA.to_string(),
            environment: environment(begun, self.seed),
            adapters: Vec::new(),
            rows: Vec::new(),
        };
        for request in self.requests(global)? {
            let gpu = global.tuned(gpu::request(&request)?)?;
            self.measure(&gpu, request, &mut results)?;
        }
        let text = text(&results, self.output)?;
        if let Some(path) = &self.file {
            bench::write_file(path, serde_json::to_string_pretty(&results)?.as_bytes())?;
        }
        print(&text)?;
        let wrong: Vec<String> =
            results.rows.iter().filter(|row| row.status == Status::Wrong).map(Row::key).collect();
        if let Some(first) = wrong.first() {
            let first = one_line(first);
            bail!("{} wrong, the first of them {first:?}: what is wrong has no speed", rows_are(wrong.len()));
        }
        let ran = |row: &Row| row.status == Status::Ok && row.family != "ceiling";
        if let Some(row) = results.rows.iter().find(|row| row.family != "ceiling")
            && !results.rows.iter().any(ran)
        {
            let reason = row.reason.as_deref().unwrap_or("unknown");
            bail!("nothing could run; {}: {}", one_line(&row.key()), one_line(reason));
        }
        Ok(())
    }

    /// The adapters to measure: the one that is asked for, or all.
    fn requests(&self, global: &Global) -> Result<Vec<Request>> {
        let request = global.request()?;
        if request.name.as_deref() != Some("all") {
            return Ok(vec![request]);
        }
        let all = gpu::adapters(request.backend);
        if all.is_empty() {
            // Says what is missing, in the words of the other verbs.
            gpu::choose(&Request { name: None, ..request.clone() }, &all)?;
        }
        Ok((0..all.len()).map(|i| Request { name: Some(i.to_string()), ..request.clone() }).collect())
    }

    fn measure(&self, gpu: &Gpu, request: Request, results: &mut Results) -> Result<()> {
        let class = gpu.profile().class;
        let works = self.which.works(class)?;
        let index = results.adapters.len();
        let seconds = match (class, self.which.quick) {
            (_, true) => 44,
            (DeviceClass::Cpu, false) => 260,
            (_, false) => 600,
        };
        let tuning = gpu.profile().tuning.clone();
        let settings = Settings {
            seed: self.seed,
            rounds: self.repeats.into(),
            samples: 5,
            warm_up: Duration::from_millis(self.warmup.unwrap_or(if self.which.quick { 30 } else { 100 })),
            budget: Duration::from_secs(self.budget.unwrap_or(seconds)),
            most_bytes: memory(class),
            change: self.wrong.clone().map(breaking),
            fresh: Box::new(move || Ok(gpu::request(&request)?.tuned(tuning.clone()))),
        };
        if self.dtype.iter().any(|t| t == "f32") {
            let begin = Instant::now();
            let mut bar = Progress::new("benchmark", works.len() as u64);
            let outcome = measure(gpu, &works, &settings, results, &mut |p| {
                let left = left(begin.elapsed(), p.done, p.of);
                bar.at(p.done as u64, || format!("{} {}{left}", p.work.name(), p.work.sizes()));
            });
            bar.end();
            outcome.with_context(|| format!("{} failed", gpu.description()))?;
        } else {
            results.adapters.push(adapter(gpu));
        }
        if self.dtype.iter().any(|t| t == "f16") {
            let reason = match gpu.profile().f16 {
                true => "there are no kernels for 16-bit floats",
                false => "the adapter has no 16-bit floats",
            };
            results.rows.extend(works.iter().map(|work| {
                let row = bench::row(work, index);
                Row { dtype: "f16".to_string(), reason: Some(reason.to_string()), ..row }
            }));
        }
        Ok(())
    }
}

/// `1 row is` or `2 rows are`.
fn rows_are(n: usize) -> String {
    if n == 1 { "1 row is".to_string() } else { format!("{n} rows are") }
}

/// The time left, if the rest goes on as it did so far.
fn left(elapsed: Duration, done: usize, of: usize) -> String {
    if done == 0 {
        return String::new();
    }
    let seconds = elapsed.as_secs_f64() / done as f64 * (of - done) as f64;
    format!("  about {} left", super::super::output::time(Duration::from_secs_f64(seconds)))
}

/// The bytes that a row may take: on a software adapter half of what the system has free, where it tells; a GPU says
/// itself when it has no more.
pub fn memory(class: DeviceClass) -> u64 {
    let free = || {
        let text = std::fs::read_to_string("/proc/meminfo").ok()?;
        let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
        line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()
    };
    match class {
        DeviceClass::Cpu => free().map_or(4 << 30, |kib| kib * 1024 / 2),
        DeviceClass::Discrete | DeviceClass::Integrated => 64 << 30,
    }
}

/// Turns the first plus of a kernel's formulas into a minus.
fn breaking(name: String) -> Box<bench::Change> {
    Box::new(move |kernel| {
        if kernel.name.contains(&name) {
            for part in &mut kernel.parts {
                let changed = part.replace(" += ", " -= ");
                *part = changed.into();
            }
        }
    })
}

fn environment(started: String, seed: u64) -> Environment {
    Environment {
        started,
        version: env!("CARGO_PKG_VERSION").to_string(),
        commit: option_env!("WGFORMER_COMMIT").filter(|c| !c.is_empty()).map(str::to_string),
        system: format!("{} {}", std::env::consts::OS, std::env::consts::ARCH),
        threads: std::thread::available_parallelism().map_or(1, |n| n.get()),
        arguments: std::env::args().skip(1).collect(),
        seed,
    }
}

/// A time in UTC as ISO 8601 has it.
fn started(time: SystemTime) -> String {
    let seconds = time.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |d| d.as_secs());
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    // Days since March 1 of year 0, in eras of 400 years, each of 146,097 days.
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let (date, month) = (day - (153 * month + 2) / 5 + 1, if month < 10 { month + 3 } else { month - 9 });
    let year = era * 400 + year + u64::from(month <= 2);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{date:02}T{hour:02}:{minute:02}:{second:02}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_as_dates() {
        for (seconds, want) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_827_696, "2000-02-29T12:34:56Z"),
            (1_767_225_599, "2025-12-31T23:59:59Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(started(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)), want);
        }
    }

    #[test]
    fn distances_between_words() {
        for (a, b, want) in [("", "abc", 3), ("kitten", "sitting", 3), ("same", "same", 0), ("ab", "ba", 2)] {
            assert_eq!(distance(a, b), want);
        }
    }
}

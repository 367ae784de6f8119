//! `wgformer bench report`: one HTML file that needs no other, for reading and for passing on.

mod chart;
mod devices;
mod lengths;
mod page;
mod roofline;
mod rows;

use crate::cli::output::count;
use crate::cli::progress::note;
use anyhow::{Result, bail};
use clap::Args;
use std::path::{Path, PathBuf};
use wgformer::bench::{self, Adapter, Environment, Results, Row};

const EXAMPLES: &str = "\
Examples:
  wgformer bench report results.json --html report.html
  wgformer bench report laptop.json desktop.json --html both.html

The file has all that it shows in it, and loads nothing: per adapter the roofline with every row, attention by
sequence length, the adapters against the first one, and the whole table.";

/// Options of `wgformer bench report`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Report {
    /// The results; those of several files are shown beside each other
    #[arg(value_name = "FILE.json", required = true)]
    files: Vec<PathBuf>,
    /// The HTML file to write
    #[arg(long, value_name = "OUT.html")]
    html: PathBuf,
}

impl Report {
    pub fn run(&self) -> Result<()> {
        let mut files = Vec::with_capacity(self.files.len());
        for path in &self.files {
            let results = Results::read(path)?;
            if results.rows.is_empty() {
                bail!(
                    "{}: has no rows; run the benchmark again with works that its filter keeps",
                    path.display()
                );
            }
            files.push((path.as_path(), results));
        }
        let devices = devices_of(&files);
        bench::write_file(&self.html, page::page(&devices).as_bytes())?;
        let rows: usize = devices.iter().map(|device| device.rows.len()).sum();
        note(&format!(
            "{}: {} of {}",
            self.html.display(),
            count(rows, "row"),
            count(devices.len(), "adapter")
        ));
        Ok(())
    }
}

/// An adapter of one of the files, with its rows.
struct Device<'a> {
    /// Its name, with the file's where another has the same name.
    label: String,
    environment: &'a Environment,
    adapter: &'a Adapter,
    rows: Vec<&'a Row>,
}

fn devices_of<'a>(files: &'a [(&Path, Results)]) -> Vec<Device<'a>> {
    let mut devices = Vec::new();
    for (path, results) in files {
        for (i, adapter) in results.adapters.iter().enumerate() {
            let again = files
                .iter()
                .flat_map(|(_, results)| &results.adapters)
                .filter(|other| other.name == adapter.name)
                .count()
                > 1;
            let label = match again {
                true => format!(
                    "{} ({}, {})",
                    adapter.name,
                    path.file_stem().unwrap_or_default().to_string_lossy(),
                    adapter.backend
                ),
                false => adapter.name.clone(),
            };
            let rows = results.rows.iter().filter(|row| row.adapter == i).collect();
            devices.push(Device { label, environment: &results.environment, adapter, rows });
        }
    }
    devices
}

/// The families of all rows, in the order of the files; the number of each is that of its colour.
fn families<'a>(devices: &[Device<'a>]) -> Vec<&'a str> {
    let mut families: Vec<&str> = Vec::new();
    for row in devices.iter().flat_map(|device| &device.rows) {
        if !families.contains(&row.family.as_str()) {
            families.push(&row.family);
        }
    }
    families
}

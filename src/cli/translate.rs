//! `wgformer translate`.

use super::output::{grouped, print, time};
use super::progress::note;
use super::train::cut;
use super::{Global, shipped};
use anyhow::{Context, Result, anyhow, bail};
use clap::{Args, ValueEnum};
use std::io::{BufRead, BufReader, IsTerminal, Read};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::{Duration, Instant};
use wgformer::infer::DecodeSettings;
use wgformer::model::{Model, Precision, Translator};
use wgformer::text::corpus::MAX_LINE_BYTES;

/// Lines that are read ahead and sorted by length, in batches.
const WINDOW: usize = 8;
/// Time between two lines about the progress.
const PAUSE: Duration = Duration::from_secs(5);

const EXAMPLES: &str = "\
Examples:
  wgformer translate 'Why do we work?'
  wgformer translate --model dates 'Wednesday, March 3, 1999' '3.3.1999'
  wgformer translate --model en-zh < english.txt > chinese.txt";

/// Options of `wgformer translate`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Translate {
    /// The sentences; without any, the lines of standard input
    text: Vec<String>,
    /// The folder with the model [default: the one that is a part of this program, English to Chinese]
    #[arg(long, value_name = "FOLDER")]
    model: Option<PathBuf>,
    /// Leave out sentences that are longer than the model takes (an empty line is printed), or cut them
    #[arg(long, value_enum, default_value_t = Overlong::Skip)]
    overlong: Overlong,
    /// Sentences that are translated together
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=1024))]
    batch: u16,
    /// The floats to store weights and values in; sums have 32 bits. f16 needs half of the memory, and an adapter that has it
    /// (`wgformer info`)
    #[arg(long, value_enum, default_value_t = Floats::F32)]
    precision: Floats,
    /// The most symbols of a translation [default: what the model allows]
    #[arg(long, value_name = "N")]
    max_length: Option<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Overlong {
    Skip,
    Cut,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Floats {
    F32,
    F16,
}

impl Translate {
    pub fn run(&self, global: &Global) -> Result<()> {
        let model = match &self.model {
            Some(folder) => Model::load(folder)?,
            None => shipped::model()?,
        };
        let gpu = global.gpu()?;
        let precision = match self.precision {
            Floats::F32 => Precision::F32,
            Floats::F16 => Precision::F16,
        };
        let mut translator = Translator::with_precision(&gpu, &model, precision)?;
        let most = translator.max_target();
        let max_length = self.max_length.unwrap_or(most);
        if max_length == 0 || max_length > most {
            bail!("--max-length {max_length}: must be from 1 to {most}, which the model allows");
        }
        let settings = DecodeSettings { batch: self.batch.into(), max_length };
        if !self.text.is_empty() {
            let lines: Vec<_> = self.text.iter().enumerate().map(|(i, text)| (i + 1, text.clone())).collect();
            return self.translate(&mut translator, &lines, settings);
        }

        let window = usize::from(self.batch) * WINDOW;
        let lines = read_lines(std::io::stdin(), window);
        let progress = !std::io::stdin().is_terminal();
        let (begin, mut said, mut done) = (Instant::now(), Instant::now(), 0);
        while let Ok(first) = lines.recv() {
            // What is there already goes together; a slow writer is not waited for.
            let mut group = vec![first?];
            while group.len() < window
                && let Ok(line) = lines.try_recv()
            {
                match line {
                    Ok(line) => group.push(line),
                    Err(error) => {
                        self.translate(&mut translator, &group, settings)?;
                        return Err(error);
                    }
                }
            }
            self.translate(&mut translator, &group, settings)?;
            done += group.len() as u64;
            if progress && said.elapsed() >= PAUSE {
                said = Instant::now();
                note(&format!("translated {} lines in {}", grouped(done), time(begin.elapsed())));
            }
        }
        Ok(())
    }

    fn translate(
        &self,
        translator: &mut Translator,
        lines: &[(usize, String)],
        settings: DecodeSettings,
    ) -> Result<()> {
        let most = translator.max_source();
        let mut sources = Vec::with_capacity(lines.len());
        for (number, text) in lines {
            let mut ids = translator.encode(text);
            if ids.len() > most {
                let done = if self.overlong == Overlong::Cut { "cut" } else { "left out" };
                note(&format!("line {number}: {} symbols, but the model takes {most}: {done}", ids.len()));
                match self.overlong {
                    // Of nothing, nothing is made.
                    Overlong::Skip => ids.clear(),
                    Overlong::Cut => cut(&mut ids, most),
                }
            }
            sources.push(ids);
        }
        let mut out = String::new();
        for text in translator.translate_ids(&sources, settings)? {
            // A symbol of the target may be a line feed; a sentence is one line.
            out.push_str(&text.replace(['\n', '\r'], " "));
            out.push('\n');
        }
        print(&out)
    }
}

/// Reads lines on a thread of its own, numbered from 1, `ahead` at most.
fn read_lines(input: impl Read + Send + 'static, ahead: usize) -> Receiver<Result<(usize, String)>> {
    let (send, receive) = sync_channel(ahead);
    std::thread::spawn(move || {
        let mut reader = BufReader::new(input);
        for number in 1.. {
            let Some(line) = read_line(&mut reader, number).transpose() else { return };
            let failed = line.is_err();
            if send.send(line.map(|text| (number, text))).is_err() || failed {
                return;
            }
        }
    });
    receive
}

fn read_line(reader: &mut impl BufRead, number: usize) -> Result<Option<String>> {
    let mut bytes = Vec::new();
    let read = reader.by_ref().take(MAX_LINE_BYTES as u64 + 2).read_until(b'\n', &mut bytes);
    if read.context("cannot read standard input")? == 0 {
        return Ok(None);
    }
    let line = bytes.strip_suffix(b"\n").unwrap_or(&bytes);
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    if line.len() > MAX_LINE_BYTES {
        bail!("line {number} of standard input is longer than {MAX_LINE_BYTES} bytes, the most of a line");
    }
    let text =
        std::str::from_utf8(line).map_err(|_| anyhow!("line {number} of standard input is not UTF-8"))?;
    Ok(Some(if number == 1 { text.trim_start_matches('\u{feff}') } else { text }.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(bytes: &[u8]) -> Vec<Result<(usize, String)>> {
        read_lines(std::io::Cursor::new(bytes.to_vec()), 2).iter().collect()
    }

    #[test]
    fn lines_are_read_and_numbered() {
        let cases: [(&[u8], &[&str]); 5] = [
            (b"", &[]),
            (b"a\nb\n", &["a", "b"]),
            (b"a\r\n\nb", &["a", "", "b"]),
            (b"\xef\xbb\xbfa\n", &["a"]),
            (b"1\n2\n3\n4\n5\n6\n7\n", &["1", "2", "3", "4", "5", "6", "7"]),
        ];
        for (bytes, want) in cases {
            let got: Vec<_> = lines(bytes).into_iter().map(Result::unwrap).collect();
            let want: Vec<_> = want.iter().enumerate().map(|(i, text)| (i + 1, text.to_string())).collect();
            assert_eq!(got, want);
        }
        let last = |bytes: &[u8]| lines(bytes).pop().unwrap().unwrap_err().to_string();
        assert_eq!(last(b"a\n\xff\nb\n"), "line 2 of standard input is not UTF-8");
        assert!(last(&[b'x'; MAX_LINE_BYTES + 1]).contains("line 1 of standard input is longer than"));
    }
}

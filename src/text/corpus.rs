//! Corpora: sentence pairs from tab-separated or parallel text files.

use std::fmt;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

use crate::error::{Error, Result};
use crate::fs;

/// The most bytes of a file.
pub const MAX_FILE_BYTES: u64 = 4 << 30;
/// The most bytes of a line.
pub const MAX_LINE_BYTES: usize = 1 << 20;

/// The side of a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Side {
    /// What is translated.
    Source,
    /// What it is translated to.
    Target,
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Side::Source => "source",
            Side::Target => "target",
        })
    }
}

/// A sentence with its translation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pair {
    /// The sentence.
    pub source: String,
    /// Its translation.
    pub target: String,
    /// The line of the file, from 1.
    pub line: usize,
}

/// Sentence pairs in the order of their file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Corpus {
    /// The pairs; never none where the corpus was read from files.
    pub pairs: Vec<Pair>,
    /// How many lines were left out because both sides, or one of them, were blank.
    pub skipped: usize,
}

impl Corpus {
    /// Reads a tab-separated file: the source in column 1, the target in column 2, other columns ignored.
    pub fn read_tsv(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let mut corpus = Corpus::default();
        each_line(path, |number, line| {
            let mut columns = line.split('\t');
            match (columns.next(), columns.next()) {
                (Some(source), Some(target)) => corpus.push(source, target, number),
                _ if line.trim().is_empty() => corpus.skipped += 1,
                _ => {
                    let problem = format!("line {number}: has no tab, so there is no second column");
                    return Err(Error::file(path, problem));
                }
            }
            Ok(())
        })?;
        corpus.not_empty(path)
    }

    /// Reads two files whose lines belong together: line 1 of `target` translates line 1 of `source`, and so on.
    pub fn read_parallel(source: impl AsRef<Path>, target: impl AsRef<Path>) -> Result<Self> {
        let (source, target) = (source.as_ref(), target.as_ref());
        let sources = read_lines(source)?;
        let mut corpus = Corpus::default();
        let mut targets = 0;
        each_line(target, |number, line| {
            targets = number;
            if let Some(source) = sources.get(number - 1) {
                corpus.push(source, line, number);
            }
            Ok(())
        })?;
        if sources.len() != targets {
            let problem = format!(
                "has {}, but {} has {}; line n of one must translate line n of the other",
                lines(targets),
                source.display(),
                lines(sources.len())
            );
            return Err(Error::file(target, problem));
        }
        corpus.not_empty(source)
    }

    fn push(&mut self, source: &str, target: &str, line: usize) {
        let (source, target) = (source.trim(), target.trim());
        if source.is_empty() || target.is_empty() {
            self.skipped += 1;
        } else {
            self.pairs.push(Pair { source: source.to_owned(), target: target.to_owned(), line });
        }
    }

    fn not_empty(self, path: &Path) -> Result<Self> {
        if self.pairs.is_empty() {
            let problem = match self.skipped {
                0 => "is empty".to_owned(),
                skipped => format!("has no sentence pair: a side is blank in each of its {}", lines(skipped)),
            };
            return Err(Error::file(path, problem));
        }
        Ok(self)
    }
}

fn lines(count: usize) -> String {
    if count == 1 { "1 line".to_owned() } else { format!("{count} lines") }
}

/// The lines of the text file `path`, blank ones too, without what ends them.
pub fn read_lines(path: impl AsRef<Path>) -> Result<Vec<String>> {
    let mut all = Vec::new();
    each_line(path.as_ref(), |_, line| {
        all.push(line.to_owned());
        Ok(())
    })?;
    Ok(all)
}

/// Calls `use_line` with each line of the file and its number from 1. A byte-order mark is no part of the first
/// line, and a carriage return before the line feed is no part of its line.
fn each_line(path: &Path, use_line: impl FnMut(usize, &str) -> Result<()>) -> Result<()> {
    each_line_of(fs::open(path)?, path, MAX_FILE_BYTES, use_line)
}

fn each_line_of(
    from: impl Read,
    path: &Path,
    max_bytes: u64,
    mut use_line: impl FnMut(usize, &str) -> Result<()>,
) -> Result<()> {
    let mut reader = BufReader::with_capacity(1 << 16, from);
    let mut bytes = Vec::new();
    let (mut number, mut total) = (0, 0);
    loop {
        bytes.clear();
        let read = reader
            .by_ref()
            // Room for what is not counted: a byte-order mark and the end of the line.
            .take(MAX_LINE_BYTES as u64 + 8)
            .read_until(b'\n', &mut bytes)
            .map_err(|error| Error::file(path, format!("cannot be read: {error}")))?;
        if read == 0 {
            return Ok(());
        }
        number += 1;
        total += read as u64;
        let wrong = |problem: &str| Error::file(path, format!("line {number}: {problem}"));
        if total > max_bytes {
            return Err(Error::file(
                path,
                format!("is larger than {max_bytes} bytes, the most that is read"),
            ));
        }
        let mut line = bytes.strip_suffix(b"\n").unwrap_or(&bytes);
        line = line.strip_suffix(b"\r").unwrap_or(line);
        if number == 1 {
            line = line.strip_prefix("\u{feff}".as_bytes()).unwrap_or(line);
            if line.starts_with(b"\xff\xfe") || line.starts_with(b"\xfe\xff") {
                return Err(wrong("is not UTF-8 but UTF-16; save the file as UTF-8"));
            }
        }
        if line.len() > MAX_LINE_BYTES {
            return Err(wrong(&format!("is longer than {MAX_LINE_BYTES} bytes, the most of a line")));
        }
        let line = std::str::from_utf8(line).map_err(|_| wrong("is not UTF-8"))?;
        use_line(number, line)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Folder(tempfile::TempDir);

    impl Folder {
        fn new() -> Self {
            Folder(tempfile::tempdir().unwrap())
        }

        fn file(&self, name: &str, content: impl AsRef<[u8]>) -> std::path::PathBuf {
            let path = self.0.path().join(name);
            std::fs::write(&path, content).unwrap();
            path
        }
    }

    fn flat(corpus: &Corpus) -> Vec<(&str, &str, usize)> {
        corpus.pairs.iter().map(|pair| (&*pair.source, &*pair.target, pair.line)).collect()
    }

    #[test]
    fn tab_separated_files() {
        type Rows = &'static [(&'static str, &'static str, usize)];
        let cases: [(&str, Rows, usize); 8] = [
            ("a\tb\n", &[("a", "b", 1)], 0),
            ("a\tb", &[("a", "b", 1)], 0),
            ("a\tb\tby someone\tmore\r\nc\td\r\n", &[("a", "b", 1), ("c", "d", 2)], 0),
            ("\u{feff}a\tb\n", &[("a", "b", 1)], 0),
            ("\n  \na\tb\n\n", &[("a", "b", 3)], 3),
            ("a\t\n\tb\n\t\nc d \t e f\n", &[("c d", "e f", 4)], 3),
            ("e\u{301}\t👩‍👧 的\n", &[("e\u{301}", "👩‍👧 的", 1)], 0),
            ("a\u{feff}\tb\u{2028}c\n", &[("a\u{feff}", "b\u{2028}c", 1)], 0),
        ];
        let folder = Folder::new();
        for (content, rows, skipped) in cases {
            let corpus = Corpus::read_tsv(folder.file("c.tsv", content)).unwrap();
            assert_eq!((flat(&corpus), corpus.skipped), (rows.to_vec(), skipped), "{content:?}");
        }
    }

    #[test]
    fn tab_separated_files_that_are_refused() {
        let long = format!("a\tb\n{}\tb\n", "x".repeat(MAX_LINE_BYTES));
        let endless = vec![b'x'; MAX_LINE_BYTES + 100];
        let cases: [(&[u8], &str); 10] = [
            (b"", "c.tsv: is empty"),
            (b"\xef\xbb\xbf", "a side is blank in each of its 1 line"),
            (b"\n\n", "a side is blank in each of its 2 lines"),
            (b"a\t\n", "a side is blank in each of its 1 line"),
            (b"a\tb\n\nc d\n", "line 3: has no tab"),
            (b"a\tb\nc\t\xff\n", "line 2: is not UTF-8"),
            (b"\xff\xfea\0", "line 1: is not UTF-8 but UTF-16"),
            (b"\xfe\xff\0a", "line 1: is not UTF-8 but UTF-16"),
            (long.as_bytes(), "line 2: is longer than 1048576 bytes"),
            (&endless, "line 1: is longer than 1048576 bytes"),
        ];
        let folder = Folder::new();
        for (content, problem) in cases {
            let message = Corpus::read_tsv(folder.file("c.tsv", content)).unwrap_err().to_string();
            assert!(message.contains(problem) && message.contains("c.tsv: "), "{message}");
        }
        for (path, problem) in [("", "it is a folder"), ("missing", "there is no such file")] {
            let message = Corpus::read_tsv(folder.0.path().join(path)).unwrap_err().to_string();
            assert!(message.contains(problem), "{message}");
        }
    }

    #[test]
    fn parallel_files() {
        let folder = Folder::new();
        let source = folder.file("s", "\u{feff}a\r\n\r\nb\tc\n \nd");
        let target = folder.file("t", "A\nB\nC\nD\nE\n");
        let corpus = Corpus::read_parallel(source, target).unwrap();
        assert_eq!(flat(&corpus), [("a", "A", 1), ("b\tc", "C", 3), ("d", "E", 5)]);
        assert_eq!(corpus.skipped, 2);
    }

    #[test]
    fn parallel_files_that_are_refused() {
        let cases: [(&[u8], &[u8], &[&str]); 6] = [
            (b"a\nb\n", b"a\n", &["t: has 1 line,", "s has 2 lines"]),
            (b"a\n", b"a\nb\n\n", &["t: has 3 lines,", "s has 1 line;"]),
            (b"a\n", b"", &["t: has 0 lines,", "s has 1 line;"]),
            (b"", b"", &["s: is empty"]),
            (b"\n", b"a\n", &["s: has no sentence pair"]),
            (b"a\n", b"\xff\n", &["t: line 1: is not UTF-8"]),
        ];
        let folder = Folder::new();
        for (source, target, problems) in cases {
            let error =
                Corpus::read_parallel(folder.file("s", source), folder.file("t", target)).unwrap_err();
            let message = error.to_string();
            assert!(problems.iter().all(|problem| message.contains(problem)), "{message}");
        }
    }

    #[test]
    fn the_size_is_bounded() {
        let content = b"one\ntwo\n";
        let read = |bound| each_line_of(&content[..], Path::new("p"), bound, |_, _| Ok(()));
        assert!(read(8).is_ok());
        assert_eq!(read(7).unwrap_err().to_string(), "p: is larger than 7 bytes, the most that is read");
    }

    #[test]
    fn lines_of_a_file() {
        let folder = Folder::new();
        for (content, expected) in [
            ("", vec![]),
            ("\n", vec![""]),
            ("a", vec!["a"]),
            (" a \n\n\u{feff}b\r\n", vec![" a ", "", "\u{feff}b"]),
        ] {
            assert_eq!(read_lines(folder.file("l", content)).unwrap(), expected, "{content:?}");
        }
    }
}

//! Vocabularies: which symbols a model knows, and the id of each.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use super::tokenizer::Tokenizer;
use crate::error::{Error, Result};
use crate::fs;

pub use crate::ids::{BEGIN, END, PAD, UNKNOWN};

/// The special symbols; each one's id ([`PAD`], [`BEGIN`], [`END`], [`UNKNOWN`]) is its place.
pub const SPECIALS: [&str; 4] = ["<pad>", "<s>", "</s>", "<unk>"];

/// The most symbols of a vocabulary.
pub const MAX_SYMBOLS: usize = 1 << 20;
/// The most bytes of one symbol.
pub const MAX_SYMBOL_BYTES: usize = 1024;
/// The most bytes of a vocabulary's file.
pub const MAX_FILE_BYTES: u64 = 64 << 20;

/// The symbols that a model knows, each with an id: the special ones first, then those of the text.
///
/// # The file
///
/// UTF-8 text, one symbol a line, in the order of their ids. In a symbol, `\s` is a space, `\n` a line feed, `\r` a
/// carriage return, `\t` a tab, `\\` a backslash, and `\u{85}` the character with that hexadecimal number; every
/// white space, control character and byte-order mark is written in one of these ways.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Vocabulary {
    symbols: Vec<Arc<str>>,
    ids: HashMap<Arc<str>, u32>,
}

impl Vocabulary {
    /// The vocabulary of the symbols that occur `min_count` times or more, the most frequent first and equally
    /// frequent ones by their characters; no more than `max_size` together with the four special ones.
    ///
    /// Counts of the same symbol add up. Symbols that are empty, or longer than [`MAX_SYMBOL_BYTES`], are left out.
    pub fn build<S: AsRef<str>>(
        counts: impl IntoIterator<Item = (S, u64)>,
        max_size: usize,
        min_count: u64,
    ) -> Result<Self> {
        if !(SPECIALS.len()..=MAX_SYMBOLS).contains(&max_size) {
            let problem = format!("is {max_size}, must be from {} to {MAX_SYMBOLS}", SPECIALS.len());
            return Err(Error::config("vocabulary size", problem));
        }
        let mut totals: HashMap<Arc<str>, u64> = HashMap::new();
        for (symbol, count) in counts {
            let symbol = symbol.as_ref();
            if symbol.is_empty() || symbol.len() > MAX_SYMBOL_BYTES || SPECIALS.contains(&symbol) {
                continue;
            }
            match totals.get_mut(symbol) {
                Some(total) => *total = total.saturating_add(count),
                None => {
                    totals.insert(Arc::from(symbol), count);
                }
            }
        }
        let mut ordered: Vec<(Arc<str>, u64)> =
            totals.into_iter().filter(|(_, count)| *count >= min_count).collect();
        ordered.sort_unstable_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
        let mut vocabulary = Vocabulary::specials();
        for (symbol, _) in ordered.into_iter().take(max_size - SPECIALS.len()) {
            vocabulary.push(symbol);
        }
        Ok(vocabulary)
    }

    /// The vocabulary of what `tokenizer` makes of `texts`; see [`Vocabulary::build`].
    pub fn from_texts<'a>(
        tokenizer: &Tokenizer,
        texts: impl IntoIterator<Item = &'a str>,
        max_size: usize,
        min_count: u64,
    ) -> Result<Self> {
        let mut counts: HashMap<String, u64> = HashMap::new();
        for text in texts {
            for symbol in tokenizer.symbols(text) {
                *counts.entry(symbol).or_default() += 1;
            }
        }
        Vocabulary::build(counts, max_size, min_count)
    }

    /// The vocabulary that has the special symbols only.
    fn specials() -> Self {
        let mut vocabulary = Vocabulary { symbols: Vec::new(), ids: HashMap::new() };
        for special in SPECIALS {
            vocabulary.push(Arc::from(special));
        }
        vocabulary
    }

    /// Gives `symbol` the next id; false where it has one already.
    fn push(&mut self, symbol: Arc<str>) -> bool {
        if self.ids.contains_key(&symbol) {
            return false;
        }
        self.ids.insert(Arc::clone(&symbol), self.symbols.len() as u32);
        self.symbols.push(symbol);
        true
    }

    /// How many symbols there are, with the special ones.
    #[allow(clippy::len_without_is_empty)] // It never is.
    pub fn len(&self) -> usize {
        self.symbols.len()
    }

    /// The id of `symbol`, if it has one.
    pub fn id(&self, symbol: &str) -> Option<u32> {
        self.ids.get(symbol).copied()
    }

    /// The symbol with this id, if there is one.
    pub fn symbol(&self, id: u32) -> Option<&str> {
        self.symbols.get(id as usize).map(|symbol| &**symbol)
    }

    /// All symbols in the order of their ids.
    pub fn symbols(&self) -> impl ExactSizeIterator<Item = &str> {
        self.symbols.iter().map(|symbol| &**symbol)
    }

    /// The text of the vocabulary's file.
    pub fn to_text(&self) -> String {
        let mut text = String::new();
        for symbol in self.symbols() {
            for c in symbol.chars() {
                match c {
                    '\\' => text.push_str("\\\\"),
                    ' ' => text.push_str("\\s"),
                    '\n' => text.push_str("\\n"),
                    '\r' => text.push_str("\\r"),
                    '\t' => text.push_str("\\t"),
                    c if needs_escape(c) => text.push_str(&format!("\\u{{{:x}}}", u32::from(c))),
                    c => text.push(c),
                }
            }
            text.push('\n');
        }
        text
    }

    /// Writes the vocabulary as the file `path`: the whole file or none of it.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        fs::write_atomically(path.as_ref(), self.to_text().as_bytes())
    }

    /// Reads the vocabulary that [`Vocabulary::save`] wrote.
    pub fn load(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        Vocabulary::from_bytes(&fs::read_bounded(path, MAX_FILE_BYTES)?, path)
    }

    /// Reads the content of a vocabulary's file; errors name `path`.
    pub fn from_bytes(bytes: &[u8], path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let wrong = |line: usize, problem: String| Error::file(path, format!("line {line}: {problem}"));
        let bytes = bytes.strip_prefix("\u{feff}".as_bytes()).unwrap_or(bytes);
        let text = std::str::from_utf8(bytes).map_err(|error| {
            let before = &bytes[..error.valid_up_to()];
            wrong(1 + before.iter().filter(|&&byte| byte == b'\n').count(), "is not UTF-8".to_owned())
        })?;
        if text.is_empty() {
            return Err(Error::file(path, "is empty, but should be a vocabulary: one symbol a line"));
        }
        let mut vocabulary = Vocabulary { symbols: Vec::new(), ids: HashMap::new() };
        for (index, line) in text.lines().enumerate() {
            let number = index + 1;
            let symbol = unescape(line).map_err(|problem| wrong(number, problem))?;
            if let Some(special) = SPECIALS.get(index)
                && symbol != *special
            {
                let problem = format!("a vocabulary has the special symbol {special} here");
                return Err(wrong(number, problem));
            }
            if index >= MAX_SYMBOLS {
                return Err(wrong(number, format!("a vocabulary has {MAX_SYMBOLS} symbols at most")));
            }
            if let Some(first) = vocabulary.id(&symbol) {
                return Err(wrong(number, format!("is the same symbol as line {}", first + 1)));
            }
            vocabulary.push(Arc::from(symbol));
        }
        if let Some(missing) = SPECIALS.get(vocabulary.len()) {
            return Err(wrong(vocabulary.len() + 1, format!("the special symbol {missing} is missing")));
        }
        Ok(vocabulary)
    }
}

/// Whether `c` cannot be seen in a text file, or is changed by programs that handle one.
fn needs_escape(c: char) -> bool {
    c.is_whitespace() || c.is_control() || c == '\u{feff}'
}

/// The symbol that `line` writes, or what is wrong with it.
fn unescape(line: &str) -> std::result::Result<String, String> {
    let mut symbol = String::new();
    let mut rest = line.chars();
    while let Some(c) = rest.next() {
        if needs_escape(c) {
            return Err(format!(
                "holds the character U+{:04X}, which must be written with a backslash",
                u32::from(c)
            ));
        }
        if c != '\\' {
            symbol.push(c);
            continue;
        }
        let escaped = match rest.next() {
            Some('\\') => Some('\\'),
            Some('s') => Some(' '),
            Some('n') => Some('\n'),
            Some('r') => Some('\r'),
            Some('t') => Some('\t'),
            Some('u') => match rest.as_str().strip_prefix('{').and_then(|rest| rest.split_once('}')) {
                Some((digits, after)) if digits.bytes().all(|byte| byte.is_ascii_hexdigit()) => {
                    rest = after.chars();
                    u32::from_str_radix(digits, 16).ok().and_then(char::from_u32)
                }
                _ => None,
            },
            _ => None,
        };
        symbol.push(escaped.ok_or("has a backslash that starts none of \\\\ \\s \\n \\r \\t \\u{...}")?);
    }
    if symbol.is_empty() {
        return Err("is empty, but should be a symbol (a space is written \\s)".to_owned());
    }
    if symbol.len() > MAX_SYMBOL_BYTES {
        return Err(format!("is longer than {MAX_SYMBOL_BYTES} bytes, the most of a symbol"));
    }
    Ok(symbol)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn build(counts: &[(&str, u64)], max_size: usize, min_count: u64) -> Vec<String> {
        let vocabulary = Vocabulary::build(counts.iter().copied(), max_size, min_count).unwrap();
        assert_eq!(vocabulary.symbols().take(4).collect::<Vec<_>>(), SPECIALS);
        for (id, symbol) in vocabulary.symbols().enumerate() {
            assert_eq!(vocabulary.id(symbol), Some(id as u32));
            assert_eq!(vocabulary.symbol(id as u32), Some(symbol));
        }
        assert_eq!(vocabulary.symbol(vocabulary.len() as u32), None);
        assert_eq!(vocabulary.id("no such symbol"), None);
        vocabulary.symbols().skip(4).map(str::to_owned).collect()
    }

    #[test]
    fn building_orders_and_limits() {
        let counts = [("b", 2), ("a", 2), ("的", 5), ("c", 1), (" ", 9)];
        let cases: [(usize, u64, &[&str]); 6] = [
            (100, 1, &[" ", "的", "a", "b", "c"]),
            (100, 2, &[" ", "的", "a", "b"]),
            (100, 10, &[]),
            (6, 1, &[" ", "的"]),
            (4, 1, &[]),
            (9, 0, &[" ", "的", "a", "b", "c"]),
        ];
        for (max_size, min_count, expected) in cases {
            assert_eq!(build(&counts, max_size, min_count), expected, "{max_size} {min_count}");
        }
        assert_eq!(build(&[("a", 1), ("b", 2), ("a", 2)], 9, 1), ["a", "b"]);
        assert_eq!(build(&[("<s>", 9), ("", 9), ("<unk>", 9), ("x", 1)], 9, 1), ["x"]);
        assert_eq!(build(&[(&"x".repeat(MAX_SYMBOL_BYTES + 1), 9)], 9, 1), [""; 0]);
        assert_eq!(build(&[("a", u64::MAX), ("a", 2)], 9, 1), ["a"]);
        for max_size in [0, 3, MAX_SYMBOLS + 1] {
            let error = Vocabulary::build([("a", 1)], max_size, 1).unwrap_err();
            assert!(error.to_string().starts_with("vocabulary size"), "{error}");
        }
    }

    #[test]
    fn texts_are_counted_by_the_tokenizer() {
        let tokenizer = Tokenizer::words(true);
        let vocabulary = Vocabulary::from_texts(&tokenizer, ["The cat", "the dog"], 9, 1).unwrap();
        assert_eq!(vocabulary.symbols().skip(4).collect::<Vec<_>>(), ["the", "cat", "dog"]);
    }

    #[test]
    fn every_symbol_survives_the_file() {
        let awkward = [
            " ",
            "\n",
            "\r",
            "\t",
            "\\",
            "\\n",
            "\\s",
            "\u{85}",
            "\u{a0}",
            "\u{3000}",
            "\u{feff}",
            "\0",
            "e\u{301}",
            "\u{301}",
            "👩‍👩‍👧",
            "的",
            "a b",
            "#",
            "<pad",
            "\u{2028}",
            "\u{200d}",
            "u{41}",
        ];
        let vocabulary = Vocabulary::build(awkward.map(|symbol| (symbol, 1)), 100, 1).unwrap();
        assert_eq!(vocabulary.len(), 4 + awkward.len());
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("vocab.txt");
        vocabulary.save(&path).unwrap();
        assert_eq!(Vocabulary::load(&path).unwrap(), vocabulary);
        // As other programs may leave the file.
        let text = vocabulary.to_text();
        for changed in [text.replace('\n', "\r\n"), format!("\u{feff}{text}"), text.trim_end().to_owned()] {
            assert_eq!(Vocabulary::from_bytes(changed.as_bytes(), &path).unwrap(), vocabulary);
        }
    }

    #[test]
    fn hostile_files_are_refused_with_the_line() {
        let specials = "<pad>\n<s>\n</s>\n<unk>\n";
        let long = format!("{specials}{}\n", "x".repeat(MAX_SYMBOL_BYTES + 1));
        let cases: [(&[u8], &str); 20] = [
            (b"", "is empty"),
            (b"\xef\xbb\xbf", "is empty"),
            (b"\n", "line 1: is empty"),
            (b"a\nb\n", "line 1: a vocabulary has the special symbol <pad> here"),
            (b"<pad>\n</s>\n<s>\n<unk>\n", "line 2: a vocabulary has the special symbol <s> here"),
            (b"<pad>\n<s>\n</s>\n", "line 4: the special symbol <unk> is missing"),
            (b"<pad>\n<s>\n</s>\n<unk>\na\n<pad>\n", "line 6: is the same symbol as line 1"),
            (b"<pad>\n<s>\n</s>\n<unk>\na\nb\na\n", "line 7: is the same symbol as line 5"),
            (b"<pad>\n<s>\n</s>\n<unk>\na\n\\u{61}\n", "line 6: is the same symbol as line 5"),
            (b"<pad>\n<s>\n</s>\n<unk>\n\n", "line 5: is empty"),
            (b"<pad>\n<s>\n</s>\n<unk>\na b\n", "line 5: holds the character U+0020"),
            (b"<pad>\n<s>\n</s>\n<unk>\na\0\n", "line 5: holds the character U+0000"),
            (b"<pad>\n<s>\n</s>\n<unk>\n\\\n", "line 5: has a backslash"),
            (b"<pad>\n<s>\n</s>\n<unk>\n\\x\n", "line 5: has a backslash"),
            (b"<pad>\n<s>\n</s>\n<unk>\n\\u{}\n", "line 5: has a backslash"),
            (b"<pad>\n<s>\n</s>\n<unk>\n\\u{d800}\n", "line 5: has a backslash"),
            (b"<pad>\n<s>\n</s>\n<unk>\n\\u{+61}\n", "line 5: has a backslash"),
            (b"<pad>\n<s>\n</s>\n<unk>\n\\u{999999999999}\n", "line 5: has a backslash"),
            (b"<pad>\n<s>\n</s>\n<unk>\nok\n\xff\xfe\n", "line 6: is not UTF-8"),
            (long.as_bytes(), "line 5: is longer than 1024 bytes"),
        ];
        for (bytes, problem) in cases {
            let message = Vocabulary::from_bytes(bytes, "v.txt").unwrap_err().to_string();
            assert!(message.starts_with(&format!("v.txt: {problem}")), "{message}");
        }
        let mut many = specials.to_owned();
        for number in 0..=MAX_SYMBOLS {
            many.push_str(&format!("{number}\n"));
        }
        let message = Vocabulary::from_bytes(many.as_bytes(), "v.txt").unwrap_err().to_string();
        assert!(message.contains("1048577: a vocabulary has 1048576 symbols at most"), "{message}");
    }

    #[test]
    fn a_file_that_is_too_large_is_not_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("vocab.txt");
        std::fs::File::create(&path).unwrap().set_len(MAX_FILE_BYTES + 1).unwrap();
        let message = Vocabulary::load(&path).unwrap_err().to_string();
        assert!(message.contains("is larger than 67108864 bytes"), "{message}");
    }
}

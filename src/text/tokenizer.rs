//! Tokenizers: from text to symbols and ids, and back.

use std::fmt;
use std::str::FromStr;

use super::vocab::{END, PAD, SPECIALS, UNKNOWN, Vocabulary};
use crate::error::Error;

/// What shows where a text had something that the vocabulary does not know.
pub const UNKNOWN_TEXT: &str = "⁇";

/// Glues a punctuation symbol to the symbol on that side of it.
const GLUE: char = '￭';

/// What the symbols of a text are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(
    feature = "import",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "kebab-case")
)]
pub enum TokenizerKind {
    /// Words and punctuation; Chinese and Japanese characters singly.
    Words,
    /// Characters, the space included.
    #[cfg_attr(feature = "import", serde(rename = "chars"))]
    Characters,
}

impl TokenizerKind {
    /// The name in settings: `words` or `chars`.
    pub fn name(self) -> &'static str {
        match self {
            TokenizerKind::Words => "words",
            TokenizerKind::Characters => "chars",
        }
    }
}

impl fmt::Display for TokenizerKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for TokenizerKind {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self, Error> {
        [TokenizerKind::Words, TokenizerKind::Characters]
            .into_iter()
            .find(|kind| kind.name() == name)
            .ok_or_else(|| Error::config("tokenizer", format!("is {name:?}, must be \"words\" or \"chars\"")))
    }
}

/// Splits text into symbols and joins symbols to text.
///
/// Text is first tidied: control characters and byte-order marks go, white space at the ends too, and other white
/// space becomes single spaces.
///
/// # Words
///
/// A symbol is a word (letters and digits), the ending of a contraction (`don't` is `don` `'t`, `Tom's` is `Tom`
/// `'s`), one Chinese or Japanese character, or one character of punctuation. Combining marks and variation
/// selectors stay with what they follow. Text of scripts that put no spaces between words, such as Thai, stays in one
/// piece; use characters for it.
///
/// Where there is no space between punctuation and a word or other punctuation, the punctuation's symbol says so
/// with the sign `￭` on that side: `(Yes!)` is `(￭` `Yes` `￭!` `￭)`. So text comes back as it was, with three
/// exceptions: spaces next to Chinese and Japanese characters are not kept, `’` in a contraction becomes `'`, and
/// the sign itself becomes `■`.
///
/// # Characters
///
/// A symbol is a character, the space included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tokenizer {
    kind: TokenizerKind,
    lowercase: bool,
}

impl Tokenizer {
    /// A tokenizer of this kind, which makes text lower-case first if `lowercase`.
    pub fn new(kind: TokenizerKind, lowercase: bool) -> Self {
        Tokenizer { kind, lowercase }
    }

    /// A tokenizer to words.
    pub fn words(lowercase: bool) -> Self {
        Tokenizer::new(TokenizerKind::Words, lowercase)
    }

    /// A tokenizer to characters.
    pub fn characters(lowercase: bool) -> Self {
        Tokenizer::new(TokenizerKind::Characters, lowercase)
    }

    /// What the symbols are.
    pub fn kind(&self) -> TokenizerKind {
        self.kind
    }

    /// Whether text is made lower-case.
    pub fn lowercase(&self) -> bool {
        self.lowercase
    }

    /// The symbols of `text`; none where it is blank.
    pub fn symbols(&self, text: &str) -> Vec<String> {
        let text = tidy(text, self.lowercase);
        match self.kind {
            TokenizerKind::Words => split_words(&text),
            TokenizerKind::Characters => text.chars().map(String::from).collect(),
        }
    }

    /// The text of `symbols`.
    pub fn join<S: AsRef<str>>(&self, symbols: impl IntoIterator<Item = S>) -> String {
        match self.kind {
            TokenizerKind::Words => join_words(symbols),
            TokenizerKind::Characters => symbols.into_iter().fold(String::new(), |mut text, symbol| {
                text.push_str(symbol.as_ref());
                text
            }),
        }
    }

    /// The ids of the symbols of `text`, without a begin or an end. What `vocabulary` does not know is
    /// [`UNKNOWN`]; but punctuation that it knows only with other spaces around is taken for that.
    pub fn encode(&self, vocabulary: &Vocabulary, text: &str) -> Vec<u32> {
        let id = |symbol: &str| vocabulary.id(symbol).filter(|&id| id as usize >= SPECIALS.len());
        let mut ids = Vec::new();
        for symbol in self.symbols(text) {
            let known = id(&symbol).or_else(|| match self.kind {
                TokenizerKind::Words if symbol.chars().next().is_some_and(|c| class(c) == Class::Other) => {
                    let (_, bare, _) = parts(&symbol);
                    [
                        format!("{GLUE}{bare}"),
                        bare.to_owned(),
                        format!("{bare}{GLUE}"),
                        format!("{GLUE}{bare}{GLUE}"),
                    ]
                    .iter()
                    .find_map(|variant| id(variant))
                }
                _ => None,
            });
            ids.push(known.unwrap_or(UNKNOWN));
        }
        ids
    }

    /// The text of `ids`, up to the first end. Other special ids are left out, but [`UNKNOWN`] and ids that
    /// `vocabulary` does not have are shown as [`UNKNOWN_TEXT`].
    pub fn decode(&self, vocabulary: &Vocabulary, ids: &[u32]) -> String {
        let end = ids.iter().position(|&id| id == END).unwrap_or(ids.len());
        self.join(ids[..end].iter().filter_map(|&id| match id {
            PAD..UNKNOWN => None,
            UNKNOWN => Some(UNKNOWN_TEXT),
            id => Some(vocabulary.symbol(id).unwrap_or(UNKNOWN_TEXT)),
        }))
    }
}

/// The text without control characters and byte-order marks, and with single spaces as its only white space.
fn tidy(text: &str, lowercase: bool) -> String {
    let mut tidied = String::with_capacity(text.len());
    let mut space = false;
    for c in text.chars() {
        if c.is_whitespace() {
            space = true;
        } else if !c.is_control() && c != '\u{feff}' {
            if space && !tidied.is_empty() {
                tidied.push(' ');
            }
            space = false;
            tidied.push(c);
        }
    }
    if lowercase { tidied.to_lowercase() } else { tidied }
}

/// What a character is in the splitting to words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Class {
    Space,
    /// Part of a word.
    Word,
    /// Chinese or Japanese, punctuation of theirs included: a symbol of its own, and no spaces around.
    Cjk,
    /// Stays with what it follows.
    Extends,
    /// Punctuation, signs, emoji: a symbol of its own, with spaces or without.
    Other,
}

/// The zero-width joiner, which makes one emoji of two.
const JOINER: char = '\u{200d}';

fn class(c: char) -> Class {
    match c {
        ' ' => Class::Space,
        '0'..='9' | 'A'..='Z' | 'a'..='z' => Class::Word,
        '\0'..='\x7f' => Class::Other,
        // Combining marks.
        '\u{300}'..='\u{36f}'
        | '\u{483}'..='\u{489}'
        | '\u{591}'..='\u{5bd}'
        | '\u{5bf}'
        | '\u{5c1}'..='\u{5c2}'
        | '\u{5c4}'..='\u{5c5}'
        | '\u{5c7}'
        | '\u{610}'..='\u{61a}'
        | '\u{64b}'..='\u{65f}'
        | '\u{670}'
        | '\u{6d6}'..='\u{6dc}'
        | '\u{6df}'..='\u{6e4}'
        | '\u{6e7}'..='\u{6e8}'
        | '\u{6ea}'..='\u{6ed}'
        | '\u{1ab0}'..='\u{1aff}'
        | '\u{1dc0}'..='\u{1dff}'
        | '\u{20d0}'..='\u{20ff}'
        | '\u{302a}'..='\u{302f}'
        | '\u{3099}'..='\u{309a}'
        | '\u{fe20}'..='\u{fe2f}' => Class::Extends,
        // The vowel killers of Indian scripts; their vowel signs count as letters.
        '\u{93c}'
        | '\u{94d}'
        | '\u{9bc}'
        | '\u{9cd}'
        | '\u{a3c}'
        | '\u{a4d}'
        | '\u{abc}'
        | '\u{acd}'
        | '\u{b3c}'
        | '\u{b4d}'
        | '\u{bcd}'
        | '\u{c4d}'
        | '\u{cbc}'
        | '\u{ccd}'
        | '\u{d4d}'
        | '\u{dca}'
        | '\u{e47}'..='\u{e4e}'
        | '\u{eba}'
        | '\u{ec8}'..='\u{ece}'
        | '\u{1037}'
        | '\u{1039}'..='\u{103a}'
        | '\u{17c9}'..='\u{17d3}' => Class::Extends,
        // Joiners, variation selectors, skin tones, tags.
        '\u{200c}' | JOINER | '\u{fe00}'..='\u{fe0f}' | '\u{1f3fb}'..='\u{1f3ff}' => Class::Extends,
        '\u{e0020}'..='\u{e007f}' | '\u{e0100}'..='\u{e01ef}' => Class::Extends,
        '\u{2e80}'..='\u{2fdf}'
        | '\u{2ff0}'..='\u{303f}'
        | '\u{3041}'..='\u{30ff}'
        | '\u{3100}'..='\u{312f}'
        | '\u{31a0}'..='\u{31ff}'
        | '\u{3200}'..='\u{33ff}'
        | '\u{3400}'..='\u{4dbf}'
        | '\u{4e00}'..='\u{9fff}'
        | '\u{f900}'..='\u{faff}'
        | '\u{fe30}'..='\u{fe4f}'
        | '\u{ff01}'..='\u{ff0f}'
        | '\u{ff1a}'..='\u{ff20}'
        | '\u{ff3b}'..='\u{ff40}'
        | '\u{ff5b}'..='\u{ff9f}'
        | '\u{20000}'..='\u{3ffff}' => Class::Cjk,
        c if c.is_alphanumeric() => Class::Word,
        _ => Class::Other,
    }
}

fn is_apostrophe(c: char) -> bool {
    matches!(c, '\'' | '’')
}

/// The index after the ending of a contraction that starts with the apostrophe at `start`, if one does: at most two
/// letters, as in `'s` and `'ll`.
fn contraction(chars: &[char], start: usize) -> Option<usize> {
    let after = start + 1;
    let length = chars[after..]
        .iter()
        .take(3)
        .take_while(|&&c| matches!(class(c), Class::Word | Class::Extends))
        .take_while(|c| c.is_alphabetic())
        .count();
    let end = after + length;
    let ends = !chars.get(end).is_some_and(|&c| matches!(class(c), Class::Word | Class::Extends));
    ((1..=2).contains(&length) && ends).then_some(end)
}

fn split_words(text: &str) -> Vec<String> {
    let chars: Vec<char> = text.chars().collect();
    let class_at = |index: usize| chars.get(index).map_or(Class::Space, |&c| class(c));
    let mut symbols = Vec::new();
    let mut start = 0;
    // What the symbol before is, `Space` where there is a space between or no symbol before.
    let mut before = Class::Space;
    while start < chars.len() {
        let extended = |mut end: usize| {
            while class_at(end) == Class::Extends {
                end += 1;
            }
            end
        };
        let mut end;
        match class_at(start) {
            Class::Space => {
                before = Class::Space;
                start += 1;
                continue;
            }
            Class::Word => {
                end = start + 1;
                while matches!(class_at(end), Class::Word | Class::Extends) {
                    end += 1;
                }
                symbols.push(chars[start..end].iter().collect());
                before = Class::Word;
            }
            Class::Cjk => {
                end = extended(start + 1);
                symbols.push(chars[start..end].iter().collect());
                before = Class::Cjk;
            }
            Class::Extends | Class::Other => {
                if before == Class::Word
                    && is_apostrophe(chars[start])
                    && let Some(end) = contraction(&chars, start)
                {
                    symbols
                        .push(std::iter::once('\'').chain(chars[start + 1..end].iter().copied()).collect());
                    start = end;
                    continue;
                }
                end = extended(start + 1);
                // Emoji of several parts.
                while chars[end - 1] == JOINER && class_at(end) == Class::Other {
                    end = extended(end + 1);
                }
                let mut symbol = String::new();
                if matches!(before, Class::Word | Class::Other) {
                    symbol.push(GLUE);
                }
                symbol.extend(chars[start..end].iter().map(|&c| if c == GLUE { '■' } else { c }));
                if class_at(end) == Class::Word {
                    symbol.push(GLUE);
                }
                symbols.push(symbol);
                before = Class::Other;
            }
        }
        start = end;
    }
    symbols
}

/// Whether `symbol` is glued to the one before, what it shows, and whether it is glued to the one after.
fn parts(symbol: &str) -> (bool, &str, bool) {
    let (left, symbol) = match symbol.strip_prefix(GLUE) {
        Some(rest) => (true, rest),
        None => (false, symbol),
    };
    match symbol.strip_suffix(GLUE) {
        Some(rest) => (left, rest, true),
        None => (left, symbol, false),
    }
}

fn join_words<S: AsRef<str>>(symbols: impl IntoIterator<Item = S>) -> String {
    let mut text = String::new();
    // Whether the next symbol follows without a space.
    let mut glued = true;
    for symbol in symbols {
        let (left, shown, right) = parts(symbol.as_ref());
        let mut chars = shown.chars();
        let first = chars.next();
        let cjk = first.is_some_and(|c| class(c) == Class::Cjk);
        let contraction = first == Some('\'') && chars.next().is_some_and(|c| class(c) == Class::Word);
        if !(glued || left || cjk || contraction || text.is_empty()) {
            text.push(' ');
        }
        text.push_str(shown);
        glued = right || cjk;
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::vocab::BEGIN;
    use proptest::prelude::*;

    #[test]
    fn words_split_and_come_back() {
        let cases: [(&str, &[&str]); 35] = [
            ("Hello", &["Hello"]),
            ("Hello, world!", &["Hello", "￭,", "world", "￭!"]),
            ("I don't know.", &["I", "don", "'t", "know", "￭."]),
            ("He'd've; I'm, we'll", &["He", "'d", "'ve", "￭;", "I", "'m", "￭,", "we", "'ll"]),
            ("Tom's", &["Tom", "'s"]),
            ("the boys' toys", &["the", "boys", "￭'", "toys"]),
            ("o'clock l'ami", &["o", "￭'￭", "clock", "l", "￭'￭", "ami"]),
            ("'tis 'quoted' x", &["'￭", "tis", "'￭", "quoted", "￭'", "x"]),
            ("(Yes!)", &["(￭", "Yes", "￭!", "￭)"]),
            ("\"Who?\" he asked.", &["\"￭", "Who", "￭?", "￭\"", "he", "asked", "￭."]),
            ("Well...", &["Well", "￭.", "￭.", "￭."]),
            ("a well-known - fact", &["a", "well", "￭-￭", "known", "-", "fact"]),
            ("3.5% of $1,000", &["3", "￭.￭", "5", "￭%", "of", "$￭", "1", "￭,￭", "000"]),
            ("a , b", &["a", ",", "b"]),
            ("snake_case", &["snake", "￭_￭", "case"]),
            ("<s> <unk>", &["<￭", "s", "￭>", "<￭", "unk", "￭>"]),
            ("我爱你。", &["我", "爱", "你", "。"]),
            ("你好，Tom！", &["你", "好", "，", "Tom", "！"]),
            ("他说“好”。", &["他", "说", "“", "好", "”", "。"]),
            ("我有iPhone手机", &["我", "有", "iPhone", "手", "机"]),
            ("5月3日", &["5", "月", "3", "日"]),
            ("カタカナ", &["カ", "タ", "カ", "ナ"]),
            ("한국어 문장.", &["한국어", "문장", "￭."]),
            ("Привет, мир", &["Привет", "￭,", "мир"]),
            ("हिन्दी", &["हिन्दी"]),
            ("cafe\u{301} e\u{301}a", &["cafe\u{301}", "e\u{301}a"]),
            ("が", &["が"]),
            ("\u{304b}\u{3099}x", &["\u{304b}\u{3099}", "x"]),
            ("I ❤️ 👩‍👩‍👧!", &["I", "❤️", "👩‍👩‍👧", "￭!"]),
            ("ok👍🏽ok", &["ok", "￭👍🏽￭", "ok"]),
            ("\u{301} x", &["\u{301}", "x"]),
            ("\u{200d}", &["\u{200d}"]),
            ("", &[]),
            (".", &["."]),
            ("'", &["'"]),
        ];
        let tokenizer = Tokenizer::words(false);
        for (text, expected) in cases {
            let symbols = tokenizer.symbols(text);
            assert_eq!(symbols, expected, "{text:?}");
            assert_eq!(tokenizer.join(&symbols), text);
        }
    }

    #[test]
    fn what_words_do_not_keep() {
        let cases = [
            ("\u{feff}  a \t\n b\u{3000}", "a b"),
            ("a\u{feff}b\0c\u{7}", "abc"),
            (" \t\r\n\u{a0}\u{3000}", ""),
            ("don’t ‘x’", "don't ‘x’"),
            ("你好 世界 Tom 好", "你好世界Tom好"),
            ("a ￭ b￭", "a ■ b■"),
        ];
        let tokenizer = Tokenizer::words(false);
        for (text, expected) in cases {
            assert_eq!(tokenizer.join(tokenizer.symbols(text)), expected, "{text:?}");
        }
    }

    #[test]
    fn lower_case() {
        let cases = [("Tom's ÄÖ ΣΑΣ", "tom's äö σας"), ("İ", "i\u{307}"), ("漢字ABC", "漢字abc"), ("", "")];
        for (text, expected) in cases {
            for tokenizer in [Tokenizer::words(true), Tokenizer::characters(true)] {
                assert_eq!(tokenizer.join(tokenizer.symbols(text)), expected);
            }
        }
    }

    #[test]
    fn characters_split_and_come_back() {
        let cases: [(&str, &[&str]); 5] = [
            ("a b", &["a", " ", "b"]),
            (" 我\t爱 ", &["我", " ", "爱"]),
            ("e\u{301}👍🏽", &["e", "\u{301}", "👍", "\u{1f3fd}"]),
            ("\u{feff}", &[]),
            ("￭'", &["￭", "'"]),
        ];
        let tokenizer = Tokenizer::characters(false);
        for (text, expected) in cases {
            let symbols = tokenizer.symbols(text);
            assert_eq!(symbols, expected, "{text:?}");
            assert_eq!(tokenizer.join(symbols), expected.concat());
        }
    }

    #[test]
    fn joining_symbols_that_no_text_gives() {
        let cases: [(&[&str], &str); 8] = [
            (&["￭."], "."),
            (&["￭", "a", "￭￭", "b"], "ab"),
            (&["(￭", "￭)"], "()"),
            (&["'s", "'s"], "'s's"),
            (&["", "a", "", "b"], "a  b"),
            (&["a b", "c"], "a b c"),
            (&["我", "'s", "我"], "我's我"),
            (&[], ""),
        ];
        for (symbols, expected) in cases {
            assert_eq!(Tokenizer::words(false).join(symbols), expected, "{symbols:?}");
        }
    }

    #[test]
    fn encoding_and_decoding() {
        let tokenizer = Tokenizer::words(false);
        let vocabulary = Vocabulary::from_texts(&tokenizer, ["I see, (yes) we don't."], 100, 1).unwrap();
        let id = |symbol: &str| vocabulary.id(symbol).unwrap();
        let cases: [(&str, Vec<u32>, &str); 9] = [
            ("I see.", vec![id("I"), id("see"), id("￭.")], "I see."),
            ("we don't", vec![id("we"), id("don"), id("'t")], "we don't"),
            ("I , we", vec![id("I"), id("￭,"), id("we")], "I, we"),
            ("see(yes", vec![id("see"), id("(￭"), id("yes")], "see (yes"),
            ("I know", vec![id("I"), UNKNOWN], "I ⁇"),
            ("i'll", vec![UNKNOWN, UNKNOWN], "⁇ ⁇"),
            ("<unk> ?", vec![UNKNOWN; 4], "⁇ ⁇ ⁇ ⁇"),
            ("\u{feff} ", vec![], ""),
            ("好 👍", vec![UNKNOWN, UNKNOWN], "⁇ ⁇"),
        ];
        for (text, ids, back) in cases {
            assert_eq!(tokenizer.encode(&vocabulary, text), ids, "{text:?}");
            assert_eq!(tokenizer.decode(&vocabulary, &ids), back);
        }
        let ids = [BEGIN, id("I"), PAD, id("see"), u32::MAX, END, id("we"), END];
        assert_eq!(tokenizer.decode(&vocabulary, &ids), "I see ⁇");
    }

    #[test]
    fn a_special_symbol_is_never_encoded_from_text() {
        let vocabulary = Vocabulary::build([("a", 1)], 9, 1).unwrap();
        for tokenizer in [Tokenizer::words(false), Tokenizer::characters(false)] {
            for special in SPECIALS {
                let ids = tokenizer.encode(&vocabulary, special);
                assert!(!ids.is_empty() && ids.iter().all(|&id| id >= UNKNOWN), "{special} {ids:?}");
            }
        }
        let characters = Tokenizer::characters(false);
        assert_eq!(characters.encode(&vocabulary, " aba "), [4, UNKNOWN, 4]);
        assert_eq!(characters.decode(&vocabulary, &[4, UNKNOWN, 4, 77]), "a⁇a⁇");
    }

    #[test]
    fn kinds_have_names() {
        for kind in [TokenizerKind::Words, TokenizerKind::Characters] {
            assert_eq!(kind.to_string().parse::<TokenizerKind>().unwrap(), kind);
        }
        for name in ["", "Words", "characters"] {
            let message = name.parse::<TokenizerKind>().unwrap_err().to_string();
            assert!(message.contains("must be \"words\" or \"chars\""), "{message}");
        }
    }

    proptest! {
        #[test]
        fn text_without_cjk_comes_back_as_it_was(text in "[a-cé0-9 .,'\"()\u{301}\u{200d}❤👍\u{fe0f}-]{0,20}") {
            let tokenizer = Tokenizer::words(false);
            let symbols = tokenizer.symbols(&text);
            prop_assert_eq!(tokenizer.join(&symbols), tidy(&text, false), "{:?}", symbols);
        }

        #[test]
        fn any_text_can_be_split(text in "\\PC*|.*") {
            for tokenizer in [Tokenizer::words(true), Tokenizer::characters(false)] {
                let symbols = tokenizer.symbols(&text);
                prop_assert!(symbols.iter().all(|symbol| !symbol.is_empty()));
                let joined = tokenizer.join(&symbols);
                prop_assert_eq!(tokenizer.symbols(&joined), symbols, "{:?}", joined);
            }
        }
    }
}

//! How good translations are: BLEU over Chinese characters and Western words, and the share that is exactly right.
//!
//! [`bleu`] gives the numbers of sacreBLEU with its tokenizer `zh` and its other defaults (corpus BLEU-4, one
//! reference, case counts, smoothing `exp`). BLEU is from Papineni et al., "BLEU: a Method for Automatic
//! Evaluation of Machine Translation", ACL 2002; the smoothing is method 3 of Chen and Cherry, "A Systematic
//! Comparison of Smoothing Techniques for Sentence-Level BLEU", WMT 2014.

use std::collections::HashMap;
use std::fmt;

use crate::error::{Error, Result};

/// The longest n-grams that count.
const ORDER: usize = 4;

/// The BLEU of a corpus, with what it was computed from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bleu {
    /// The score, from 0 to 100.
    pub score: f64,
    /// The precision in percent of n-grams of 1, 2, 3 and 4 symbols, smoothed where nothing matched; all 0 where no
    /// symbol matched at all.
    pub precisions: [f64; ORDER],
    /// By what the score is multiplied because the hypotheses are too short; 1 where they are not.
    pub brevity_penalty: f64,
    /// How many n-grams of the hypotheses were right.
    pub matches: [u64; ORDER],
    /// How many n-grams the hypotheses have.
    pub totals: [u64; ORDER],
    /// The symbols of the hypotheses.
    pub hypothesis_length: u64,
    /// The symbols of the references.
    pub reference_length: u64,
}

impl fmt::Display for Bleu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [one, two, three, four] = self.precisions;
        write!(
            f,
            "{:.1} ({one:.1}/{two:.1}/{three:.1}/{four:.1}, brevity penalty {:.3}, {} symbols for {})",
            self.score, self.brevity_penalty, self.hypothesis_length, self.reference_length
        )
    }
}

/// The BLEU of `hypotheses`, each against the reference in the same place.
///
/// ```
/// let bleu = wgformer::text::bleu(&["今天天气很好。"], &["今天天气真好。"])?;
/// assert_eq!(format!("{:.2}", bleu.score), "48.89");
/// # Ok::<(), wgformer::Error>(())
/// ```
pub fn bleu<H: AsRef<str>, R: AsRef<str>>(hypotheses: &[H], references: &[R]) -> Result<Bleu> {
    check_lengths(hypotheses.len(), references.len())?;
    let (mut matches, mut totals) = ([0; ORDER], [0; ORDER]);
    let (mut hypothesis_length, mut reference_length) = (0, 0);
    for (hypothesis, reference) in hypotheses.iter().zip(references) {
        let (hypothesis, reference) = (spaced(hypothesis.as_ref()), spaced(reference.as_ref()));
        let (hypothesis, reference) = (symbols(&hypothesis), symbols(&reference));
        hypothesis_length += hypothesis.len() as u64;
        reference_length += reference.len() as u64;
        for n in 1..=ORDER {
            let allowed = count_n_grams(&reference, n);
            for (n_gram, count) in count_n_grams(&hypothesis, n) {
                totals[n - 1] += count;
                matches[n - 1] += count.min(allowed.get(n_gram).copied().unwrap_or(0));
            }
        }
    }
    let brevity_penalty = match (hypothesis_length, reference_length) {
        (0, 1..) => 0.0,
        (short, long) if short < long => (1.0 - long as f64 / short as f64).exp(),
        _ => 1.0,
    };
    let mut precisions = [0.0; ORDER];
    let mut score = 0.0;
    if matches != [0; ORDER] {
        let mut smoothing = 1.0;
        for ((precision, &right), &total) in precisions.iter_mut().zip(&matches).zip(&totals) {
            if total == 0 {
                break;
            }
            *precision = if right == 0 {
                smoothing *= 2.0;
                100.0 / (smoothing * total as f64)
            } else {
                100.0 * right as f64 / total as f64
            };
        }
        // Where the hypotheses are so short that they have no n-gram of some order, the score is 0.
        if precisions.iter().all(|&precision| precision > 0.0) {
            let mean = precisions.iter().map(|precision| precision.ln()).sum::<f64>() / ORDER as f64;
            score = brevity_penalty * mean.exp();
        }
    }
    Ok(Bleu { score, precisions, brevity_penalty, matches, totals, hypothesis_length, reference_length })
}

/// The share of hypotheses, from 0 to 1, that are the reference in the same place, apart from white space at the
/// ends.
pub fn exact_match<H: AsRef<str>, R: AsRef<str>>(hypotheses: &[H], references: &[R]) -> Result<f64> {
    check_lengths(hypotheses.len(), references.len())?;
    let same = hypotheses
        .iter()
        .zip(references)
        .filter(|(hypothesis, reference)| hypothesis.as_ref().trim() == reference.as_ref().trim());
    Ok(same.count() as f64 / hypotheses.len() as f64)
}

fn check_lengths(hypotheses: usize, references: usize) -> Result<()> {
    if hypotheses != references {
        return Err(Error::Input(format!(
            "there are {hypotheses} translations but {references} references; each needs one"
        )));
    }
    if hypotheses == 0 {
        return Err(Error::Input("there are no translations to judge".to_owned()));
    }
    Ok(())
}

fn count_n_grams<'a, 'b>(symbols: &'b [&'a str], n: usize) -> HashMap<&'b [&'a str], u64> {
    let mut counts = HashMap::new();
    for n_gram in symbols.windows(n) {
        *counts.entry(n_gram).or_default() += 1;
    }
    counts
}

/// The symbols between the white space of `text`.
fn symbols(text: &str) -> Vec<&str> {
    text.split(is_space).filter(|symbol| !symbol.is_empty()).collect()
}

/// What sacreBLEU splits at: the white space of Unicode and four separators of ASCII.
fn is_space(c: char) -> bool {
    c.is_whitespace() || matches!(c, '\u{1c}'..='\u{1f}')
}

/// The text with spaces around Chinese characters and Western punctuation.
fn spaced(text: &str) -> String {
    let mut chars = Vec::with_capacity(text.len());
    for c in text.trim_matches(is_space).chars() {
        if is_chinese(c) || is_western_punctuation(c) {
            chars.extend([' ', c, ' ']);
        } else {
            chars.push(c);
        }
    }
    // A full stop or comma is part of a number if there is a digit on both sides; a hyphen, if none is before it.
    let stop = |c: char| matches!(c, '.' | ',');
    let other = |c: char| !c.is_ascii_digit();
    let chars = replace_pairs(chars, |a, b| other(a) && stop(b), |a, b| [a, ' ', b, ' ']);
    let chars = replace_pairs(chars, |a, b| stop(a) && other(b), |a, b| [' ', a, ' ', b]);
    let chars = replace_pairs(chars, |a, b| a.is_ascii_digit() && b == '-', |a, b| [a, ' ', b, ' ']);
    chars.into_iter().collect()
}

/// Replaces pairs of neighbours from the left. A character is in one pair at most, and a replacement in none.
fn replace_pairs(
    chars: Vec<char>,
    found: impl Fn(char, char) -> bool,
    by: impl Fn(char, char) -> [char; 4],
) -> Vec<char> {
    let mut replaced = Vec::with_capacity(chars.len());
    let mut rest = &chars[..];
    while let [first, after @ ..] = rest {
        match after {
            [second, after @ ..] if found(*first, *second) => {
                replaced.extend(by(*first, *second));
                rest = after;
            }
            _ => {
                replaced.push(*first);
                rest = after;
            }
        }
    }
    replaced
}

/// The ASCII signs that are always symbols of their own: all but the apostrophe, comma, hyphen and full stop.
fn is_western_punctuation(c: char) -> bool {
    matches!(c, '!'..='&' | '('..='+' | '/' | ':'..='@' | '['..='`' | '{'..='~')
}

/// What sacreBLEU takes for a Chinese character. That is not quite what one would expect: the planes beyond the first
/// are missing, and all signs from U+2001 to U+2A6D are there, with “ and … among them.
fn is_chinese(c: char) -> bool {
    matches!(
        c,
        '\u{2001}'..='\u{2a6d}'
            | '\u{2e80}'..='\u{2fdf}'
            | '\u{2ff0}'..='\u{303f}'
            | '\u{3100}'..='\u{312f}'
            | '\u{31a0}'..='\u{31ef}'
            | '\u{3200}'..='\u{4db5}'
            | '\u{4e00}'..='\u{9fbb}'
            | '\u{f900}'..='\u{fa2d}'
            | '\u{fa30}'..='\u{fa6a}'
            | '\u{fa70}'..='\u{fad9}'
            | '\u{fe10}'..='\u{fe1f}'
            | '\u{fe30}'..='\u{fe4f}'
            | '\u{ff00}'..='\u{ffef}'
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scores_are_those_of_sacrebleu() {
        type Case = (&'static [&'static str], &'static [&'static str], f64, [u64; 4], [u64; 4], u64);
        // Expected: sacreBLEU 2.6.0, `BLEU(tokenize="zh").corpus_score(hypotheses, [references])`.
        let cases: [Case; 14] = [
            (&["猫坐在垫子上睡觉。"], &["猫坐在垫子上睡觉。"], 100.000000, [9, 8, 7, 6], [9, 8, 7, 6], 9),
            (&["今天天气很好。"], &["今天天气真好。"], 48.892302, [6, 4, 2, 1], [7, 6, 5, 4], 7),
            (&["那只猫在桌子下面"], &["一只黑猫坐在桌子的下面。"], 17.053863, [7, 3, 1, 0], [8, 7, 6, 5], 12),
            (&["狗"], &["猫在跑步"], 0.000000, [0, 0, 0, 0], [1, 0, 0, 0], 4),
            (&["好的"], &["好的"], 0.000000, [2, 1, 0, 0], [2, 1, 0, 0], 2),
            (&["好天气啊"], &["天好啊气"], 22.590050, [4, 0, 0, 0], [4, 3, 2, 1], 4),
            (&["的的的的的"], &["我的书的封面"], 10.400598, [2, 0, 0, 0], [5, 4, 3, 2], 6),
            (
                &["", "他在看书。"],
                &["她在写信。", "他在看一本书。"],
                12.329848,
                [5, 3, 1, 0],
                [5, 4, 3, 2],
                12,
            ),
            (&["她在写信。", "x"], &["", "他在看书。"], 0.000000, [0, 0, 0, 0], [6, 4, 3, 2], 5),
            (
                &["他花了3.50元，买了1,000个!"],
                &["他花了3.5元，买了1000个！"],
                35.084397,
                [8, 5, 3, 1],
                [11, 10, 9, 8],
                11,
            ),
            (
                &["The cat's well-known: 10-20, (no)."],
                &["The cat's well known: 10-20 (no)."],
                46.595384,
                [10, 7, 4, 2],
                [12, 11, 10, 9],
                12,
            ),
            (&["他说“好…”👍"], &["他说“好。”👍"], 48.892302, [6, 4, 2, 1], [7, 6, 5, 4], 7),
            (
                &["我在GitHub上写程序", "明天下雨，我们不去公园", "他跑得很快"],
                &["我在GitHub上写代码", "明天要下雨，我们不去公园了", "他跑得非常快"],
                61.506382,
                [20, 15, 11, 8],
                [23, 20, 17, 14],
                26,
            ),
            (
                &["e\u{301}a . , b\u{a0}c\u{1f}d"],
                &["e\u{301}a. , b c d"],
                100.000000,
                [6, 5, 4, 3],
                [6, 5, 4, 3],
                6,
            ),
        ];
        for (hypotheses, references, score, matches, totals, reference_length) in cases {
            let bleu = bleu(hypotheses, references).unwrap();
            assert!((bleu.score - score).abs() < 1e-6, "{hypotheses:?}: {bleu}");
            assert_eq!((bleu.matches, bleu.totals), (matches, totals), "{hypotheses:?}");
            assert_eq!((bleu.hypothesis_length, bleu.reference_length), (totals[0], reference_length));
        }
    }

    #[test]
    fn the_parts_of_a_score() {
        let short = bleu(&["好天气啊"], &["天好啊气真好"]).unwrap();
        assert_eq!(short.precisions, [100.0, 100.0 / 6.0, 12.5, 12.5]);
        assert_eq!(short.brevity_penalty, (-0.5f64).exp());
        assert_eq!(short.to_string(), "13.7 (100.0/16.7/12.5/12.5, brevity penalty 0.607, 4 symbols for 6)");
        let nothing = bleu(&["", " \u{1f}"], &["好", ""]).unwrap();
        assert_eq!((nothing.score, nothing.brevity_penalty, nothing.totals), (0.0, 0.0, [0; 4]));
        let empty = bleu(&[""], &[""]).unwrap();
        assert_eq!((empty.score, empty.brevity_penalty), (0.0, 1.0));
    }

    #[test]
    fn text_is_split_as_sacrebleu_does() {
        let cases = [
            ("你好，world!", "你 好 ， world !"),
            ("3.5 and 1,000, ok.", "3.5 and 1,000 , ok ."),
            ("a.b,c ...", "a . b , c . . ."),
            ("10-20 well-known", "10 - 20 well-known"),
            ("don't \"x\"", "don't \" x \""),
            ("“好”…", "“ 好 ” …"),
            ("𠀀𠀁が", "𠀀𠀁が"),
            (".5", ".5"),
            ("", ""),
            ("\u{3000} \t", ""),
        ];
        for (text, expected) in cases {
            assert_eq!(symbols(&spaced(text)).join(" "), expected, "{text:?}");
        }
    }

    #[test]
    fn exact_matches() {
        let cases: [(&[&str], &[&str], f64); 4] = [
            (&["a", "b", "c", "d"], &["a", "x", "c", "D"], 0.5),
            (&[" a\n"], &["a"], 1.0),
            (&[""], &[" "], 1.0),
            (&["e\u{301}"], &["é"], 0.0),
        ];
        for (hypotheses, references, share) in cases {
            assert_eq!(exact_match(hypotheses, references).unwrap(), share);
        }
    }

    #[test]
    fn unequal_or_empty_lists_are_refused() {
        let cases: [(&[&str], &[&str], &str); 3] = [
            (&["a"], &[], "there are 1 translations but 0 references"),
            (&["a"], &["a", "b"], "there are 1 translations but 2 references"),
            (&[], &[], "there are no translations to judge"),
        ];
        for (hypotheses, references, problem) in cases {
            for error in
                [bleu(hypotheses, references).unwrap_err(), exact_match(hypotheses, references).unwrap_err()]
            {
                assert!(error.to_string().starts_with(problem), "{error}");
            }
        }
    }
}

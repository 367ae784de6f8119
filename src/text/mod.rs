//! Text: corpora, tokenizers, vocabularies, batches of sentence pairs, the date task and BLEU.
//!
//! From text to batches it goes
//! [`Corpus`] (sentence pairs) -> [`Tokenizer`] (symbols) -> [`Vocabulary`] (ids) -> [`Batches`] (padded arrays):
//!
//! ```
//! use wgformer::text::{BatchOptions, Batches, Tokenizer, Vocabulary, dates, encode_pairs};
//!
//! # fn main() -> wgformer::Result<()> {
//! let (pairs, held_out) = dates::train_and_held_out(1, 1000, 100)?;
//! let tokenizer = Tokenizer::characters(false);
//! let source = Vocabulary::from_texts(&tokenizer, pairs.iter().map(|pair| &*pair.source), 100, 1)?;
//! let target = Vocabulary::from_texts(&tokenizer, pairs.iter().map(|pair| &*pair.target), 100, 1)?;
//! let examples = encode_pairs(&pairs, (&tokenizer, &source), (&tokenizer, &target));
//! let batches = Batches::new(examples, &BatchOptions::default())?;
//! for rows in batches.epoch(1, 0) {
//!     let batch = batches.batch(&rows);
//!     assert_eq!(batch.source.len(), batch.shape.rows * batch.shape.source_len);
//! }
//! # assert_eq!(held_out.len(), 100);
//! # Ok(())
//! # }
//! ```

pub mod batch;
pub mod bleu;
pub mod corpus;
pub mod dates;
pub mod tokenizer;
pub mod vocab;

pub use crate::ids::Batch;
pub use batch::{BatchOptions, BatchRows, BatchSize, Batches, Example, Overlong, TooLong, encode_pairs};
pub use bleu::{Bleu, bleu, exact_match};
pub use corpus::{Corpus, Pair, Side};
pub use tokenizer::{Tokenizer, TokenizerKind};
pub use vocab::Vocabulary;

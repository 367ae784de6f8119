//! Text: corpora, tokenizers, vocabularies and the date task.

pub mod corpus;
pub mod dates;
pub mod tokenizer;
pub mod vocab;

pub use corpus::{Corpus, Pair, Side};
pub use tokenizer::{Tokenizer, TokenizerKind};
pub use vocab::Vocabulary;

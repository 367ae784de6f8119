//! Text: corpora, tokenizers and vocabularies.

pub mod corpus;
pub mod tokenizer;
pub mod vocab;

pub use corpus::{Corpus, Pair, Side};
pub use tokenizer::{Tokenizer, TokenizerKind};
pub use vocab::Vocabulary;

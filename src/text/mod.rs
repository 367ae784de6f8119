//! Text: tokenizers and vocabularies.

pub mod tokenizer;
pub mod vocab;

pub use tokenizer::{Tokenizer, TokenizerKind};
pub use vocab::Vocabulary;

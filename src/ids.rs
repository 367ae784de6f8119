//! Ids: those with a meaning of their own, and batches of rows of them. What ids stand for is nobody's matter here.

/// The id of padding, which fills the unused places of a batch; such targets are ignored.
pub const PAD: u32 = 0;
/// The id that begins what a decoder reads.
pub const BEGIN: u32 = 1;
/// The id that ends a sentence.
pub const END: u32 = 2;
/// The id that stands for every symbol that a vocabulary does not have.
pub const UNKNOWN: u32 = 3;

/// The ids with a meaning of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpecialIds {
    /// Fills rows.
    pub pad: u32,
    /// The decoder is given this first.
    pub begin: u32,
    /// Ends a sentence.
    pub end: u32,
    /// Stands for symbols that the vocabulary lacks; never said.
    pub unknown: u32,
}

/// Those of this crate.
impl Default for SpecialIds {
    fn default() -> Self {
        SpecialIds { pad: PAD, begin: BEGIN, end: END, unknown: UNKNOWN }
    }
}

/// The shape of a batch: B rows of S source and T target symbols.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BatchShape {
    /// Rows B.
    pub rows: usize,
    /// Padded length S of the sources.
    pub source_len: usize,
    /// Padded length T of the targets.
    pub target_len: usize,
}

impl BatchShape {
    /// The tokens of a batch, padding and both sides included.
    pub fn tokens(&self) -> usize {
        self.rows * (self.source_len + self.target_len)
    }

    /// Whether a row of `other` fits into a row of this shape.
    pub fn holds(&self, other: &BatchShape) -> bool {
        self.source_len >= other.source_len && self.target_len >= other.target_len
    }
}

/// Padded arrays for a device. Arrays with two dimensions are in row-major order.
///
/// Rows beyond the given pairs are empty: their source is one [`END`], the decoder reads one [`BEGIN`], and all targets
/// are padding. So every row has something to attend to, and empty ones add nothing to a loss that leaves out
/// padding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    /// B, S and T.
    pub shape: BatchShape,
    /// What the encoder reads, B×S: sources, with [`END`] if so set, padded with 0.
    pub source: Vec<u32>,
    /// How many ids of each row of `source` are not padding, B numbers; never 0.
    pub source_lengths: Vec<u32>,
    /// What the decoder reads, B×T: [`BEGIN`] and the target, padded with 0.
    pub decoder_input: Vec<u32>,
    /// What the decoder should say, B×T: the target and [`END`], padded with 0.
    pub targets: Vec<u32>,
    /// How many ids of each row of `decoder_input` are not padding, B numbers; never 0.
    pub target_lengths: Vec<u32>,
    /// How many of `targets` are not padding.
    pub tokens: usize,
    /// For each row that is not empty, the place of its pair in the list that it is from.
    pub indices: Vec<usize>,
}

impl Batch {
    /// A batch of these pairs of a source and a target, both without begin and end. Pairs beyond the rows of `shape`
    /// are left out, ids beyond a row's length cut off. Where `end_source` is set, and in an empty source, sources
    /// end with [`END`].
    pub fn new<'a>(
        shape: BatchShape,
        end_source: bool,
        pairs: impl IntoIterator<Item = (&'a [u32], &'a [u32])>,
    ) -> Batch {
        let BatchShape { rows, source_len, target_len } = shape;
        let mut batch = Batch {
            shape,
            source: vec![PAD; rows * source_len],
            source_lengths: vec![1; rows],
            decoder_input: vec![PAD; rows * target_len],
            targets: vec![PAD; rows * target_len],
            target_lengths: vec![1; rows],
            tokens: 0,
            indices: Vec::new(),
        };
        for (row, (source, target)) in pairs.into_iter().take(rows).enumerate() {
            batch.indices.push(row);
            let ended = end_source || source.is_empty();
            batch.source_lengths[row] =
                fill(&mut batch.source[row * source_len..][..source_len], None, source, ended);
            let places = row * target_len..(row + 1) * target_len;
            batch.target_lengths[row] =
                fill(&mut batch.decoder_input[places.clone()], Some(BEGIN), target, false);
            fill(&mut batch.targets[places], None, target, true);
        }
        for row in batch.indices.len()..rows {
            fill(&mut batch.source[row * source_len..][..source_len], None, &[], true);
            fill(&mut batch.decoder_input[row * target_len..][..target_len], Some(BEGIN), &[], false);
        }
        batch.tokens = batch.count_targets();
        batch
    }

    /// How many of `targets` are not padding.
    pub(crate) fn count_targets(&self) -> usize {
        self.targets.iter().filter(|&&id| id != PAD).count()
    }

    /// The places of `rows` of the targets, ascending: of all that are not padding, and of the first others.
    pub(crate) fn loss_places(&self, rows: usize) -> Vec<u32> {
        let mut others = rows.saturating_sub(self.count_targets());
        let mut wanted = |id: u32| {
            let other = id == PAD && others > 0;
            others -= usize::from(other);
            other || id != PAD
        };
        (0u32..).zip(&self.targets).filter(|(_, id)| wanted(**id)).map(|(place, _)| place).collect()
    }
}

/// Writes ids to the beginning of `row`, as many as there is room for, and says how many.
fn fill(row: &mut [u32], begin: Option<u32>, ids: &[u32], end: bool) -> u32 {
    let ids = begin.into_iter().chain(ids.iter().copied()).chain(end.then_some(END));
    row.iter_mut().zip(ids).fold(0, |filled, (place, id)| {
        *place = id;
        filled + 1
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_those_of_targets_and_the_first_others() {
        let shape = BatchShape { rows: 3, source_len: 2, target_len: 4 };
        let batch = Batch::new(shape, true, [(&[4][..], &[5, 6][..]), (&[4], &[])]);
        assert_eq!(batch.targets, [5, 6, END, PAD, END, PAD, PAD, PAD, PAD, PAD, PAD, PAD]);
        assert_eq!(batch.loss_places(4), [0, 1, 2, 4]);
        assert_eq!(batch.loss_places(6), [0, 1, 2, 3, 4, 5]);
        assert_eq!(batch.loss_places(12), (0..12).collect::<Vec<u32>>());
    }
}

//! Batches: sentence pairs of similar length, padded to few shapes, in a random order.
//!
//! # How batches are made
//!
//! A GPU wants the same shapes again and again, so every pair belongs to one of a few buckets ([`BatchShape`]), found once:
//!
//! 1. The lengths of a pair, source and target, are rounded up to a multiple of [`BatchOptions::round`]. Each
//!    pair of rounded lengths is a bucket.
//! 2. As long as there are more than [`BatchOptions::max_buckets`], or it costs nothing, two buckets become one with
//!    the greater length of each side: always those two whose merging adds the fewest padded tokens to an epoch,
//!    where a bucket of n pairs in batches of B rows costs ⌈n/B⌉·B·(S+T) tokens. So rare shapes go first.
//!
//! An epoch then shuffles the pairs of each bucket, cuts them in batches, and shuffles the batches. What is left over
//! in a bucket moves to the next larger bucket that can hold it if it is less than half a batch; else empty rows
//! fill that batch. So every batch of a bucket has the same shape, and nearly all are full.

use std::collections::BTreeMap;

use super::corpus::{Pair, Side};
use super::tokenizer::Tokenizer;
use super::vocab::Vocabulary;
use crate::error::{Error, Result};
use crate::ids::{Batch, BatchShape};
use crate::rng::Rng;

/// A sentence pair as ids, without begin and end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Example {
    /// The ids of the source.
    pub source: Vec<u32>,
    /// The ids of the target.
    pub target: Vec<u32>,
    /// The line of its file, from 1; only for messages.
    pub line: usize,
}

/// The ids of sentence pairs, each side by its tokenizer and vocabulary.
pub fn encode_pairs(
    pairs: &[Pair],
    source: (&Tokenizer, &Vocabulary),
    target: (&Tokenizer, &Vocabulary),
) -> Vec<Example> {
    let encode = |pair: &Pair| Example {
        source: source.0.encode(source.1, &pair.source),
        target: target.0.encode(target.1, &pair.target),
        line: pair.line,
    };
    pairs.iter().map(encode).collect()
}

/// How many rows a batch has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BatchSize {
    /// This many pairs, or all pairs where they are fewer.
    Sentences(usize),
    /// As many rows as fit in this many tokens, padding and both sides included: a multiple of 8 if 8 fit, and no
    /// more than there are pairs.
    Tokens(usize),
}

/// What is done with pairs that are too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(
    feature = "import",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "kebab-case")
)]
pub enum Overlong {
    /// They are left out.
    Skip,
    /// Their ends are cut off.
    Cut,
}

/// How batches are made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchOptions {
    /// The size of a batch.
    pub size: BatchSize,
    /// Lengths are rounded up to a multiple of this.
    pub round: usize,
    /// The most different shapes of batches.
    pub max_buckets: usize,
    /// Whether sources end with `</s>`.
    pub end_source: bool,
    /// The most symbols of a source, its `</s>` included.
    pub max_source: usize,
    /// The most symbols of a target, its `</s>` included.
    pub max_target: usize,
    /// What is done with pairs that are longer.
    pub overlong: Overlong,
}

impl Default for BatchOptions {
    fn default() -> Self {
        BatchOptions {
            size: BatchSize::Sentences(64),
            round: 8,
            max_buckets: 12,
            end_source: true,
            max_source: 256,
            max_target: 256,
            overlong: Overlong::Skip,
        }
    }
}

impl BatchOptions {
    fn check(&self) -> Result<()> {
        let size = match self.size {
            BatchSize::Sentences(size) => ("batch size", size),
            BatchSize::Tokens(tokens) => ("batch tokens", tokens),
        };
        let settings = [
            size,
            ("batch rounding", self.round),
            ("batch buckets", self.max_buckets),
            ("longest source", self.max_source),
            ("longest target", self.max_target),
        ];
        // Far more than any device holds, and far from what overflows.
        const MOST: usize = 1 << 24;
        for (setting, value) in settings {
            if !(1..=MOST).contains(&value) {
                return Err(Error::config(setting, format!("is {value}, must be from 1 to {MOST}")));
            }
        }
        Ok(())
    }

    /// How many rows a batch of this shape has when there are `examples`; 0 if not even one fits.
    fn rows(&self, source_len: usize, target_len: usize, examples: usize) -> usize {
        let rows = match self.size {
            BatchSize::Sentences(rows) => rows,
            BatchSize::Tokens(tokens) => match tokens / (source_len + target_len) {
                few @ 0..8 => few,
                many => many - many % 8,
            },
        };
        rows.min(examples)
    }
}

/// A pair that is too long on one side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooLong {
    /// The line of its file.
    pub line: usize,
    /// Its symbols on that side, `</s>` included.
    pub length: usize,
    /// The most there may be.
    pub limit: usize,
    /// The side; the source where both are too long.
    pub side: Side,
}

/// Which examples make up a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchRows {
    /// The shape.
    pub bucket: BatchShape,
    /// Places in [`Batches::examples`]; at least one, and no more than the bucket has rows.
    pub indices: Vec<usize>,
}

/// Examples, sorted into buckets, from which the batches of every epoch come.
#[derive(Clone, Debug)]
pub struct Batches {
    examples: Vec<Example>,
    too_long: Vec<TooLong>,
    end_source: bool,
    /// Ascending by tokens of a row.
    buckets: Vec<Members>,
}

/// A bucket with the places of its examples.
#[derive(Clone, Debug)]
struct Members {
    bucket: BatchShape,
    indices: Vec<usize>,
}

impl Batches {
    /// Sorts `examples` into buckets. Those that are too long are skipped or cut; see [`Batches::too_long`].
    pub fn new(examples: Vec<Example>, options: &BatchOptions) -> Result<Self> {
        options.check()?;
        let (examples, too_long) = limit_lengths(examples, options);
        if examples.is_empty() {
            return Err(Error::Input(match too_long.first() {
                None => "there are no sentence pairs to make batches of".to_owned(),
                Some(TooLong { line, length, limit, side }) => format!(
                    "no sentence pair is short enough: the {side} in line {line} has {length} symbols, \
                     and {limit} are the most; raise the limit or have long pairs cut"
                ),
            }));
        }
        let buckets = find_buckets(&examples, options)?;
        Ok(Batches { examples, too_long, end_source: options.end_source, buckets })
    }

    /// The examples, without those that were skipped.
    pub fn examples(&self) -> &[Example] {
        &self.examples
    }

    /// The pairs that were too long, and so were skipped or cut.
    pub fn too_long(&self) -> &[TooLong] {
        &self.too_long
    }

    /// All shapes that a batch can have, those with the most tokens first.
    pub fn buckets(&self) -> Vec<BatchShape> {
        let mut buckets: Vec<BatchShape> = self.buckets.iter().map(|members| members.bucket).collect();
        buckets.sort_by_key(|bucket| {
            std::cmp::Reverse((bucket.tokens(), bucket.source_len, bucket.target_len, bucket.rows))
        });
        buckets
    }

    /// The batches of an epoch in a random order, every example in one of them. The same seed and epoch give the
    /// same batches.
    pub fn epoch(&self, seed: u64, epoch: u64) -> Vec<BatchRows> {
        let mut rng = Rng::stream(seed, epoch);
        let mut members = self.buckets.clone();
        for bucket in &mut members {
            rng.shuffle(&mut bucket.indices);
        }
        let mut batches = cut_in_batches(members);
        rng.shuffle(&mut batches);
        batches
    }

    /// The arrays of all batches from number `first` on, counted from the first of epoch 0: epoch after epoch, without an
    /// end.
    pub fn batches_from(&self, seed: u64, first: u64) -> impl Iterator<Item = Batch> + Send + '_ {
        let an_epoch = self.batches_per_epoch().max(1) as u64;
        let epochs = (first / an_epoch..).flat_map(move |epoch| self.epoch(seed, epoch));
        epochs.skip((first % an_epoch) as usize).map(|rows| self.batch(&rows))
    }

    /// How many targets a batch that [`Batches::epoch`] listed has, end symbols included.
    pub fn targets(&self, rows: &BatchRows) -> usize {
        let known = rows.indices.iter().filter_map(|&index| self.examples.get(index)).take(rows.bucket.rows);
        known.map(|example| (example.target.len() + 1).min(rows.bucket.target_len)).sum()
    }

    /// How many batches an epoch has.
    pub fn batches_per_epoch(&self) -> usize {
        cut_in_batches(self.buckets.clone()).len()
    }

    /// The share of an epoch's tokens, both sides together, that are not padding.
    pub fn efficiency(&self) -> f64 {
        let padded: usize =
            cut_in_batches(self.buckets.clone()).iter().map(|rows| rows.bucket.tokens()).sum();
        let real: usize = self
            .examples
            .iter()
            .map(|example| source_length(example, self.end_source) + example.target.len() + 1)
            .sum();
        real as f64 / padded.max(1) as f64
    }

    /// The arrays of a batch that [`Batches::epoch`] listed.
    pub fn batch(&self, rows: &BatchRows) -> Batch {
        let known = rows.indices.iter().filter_map(|&index| Some((index, self.examples.get(index)?)));
        let known: Vec<(usize, &Example)> = known.take(rows.bucket.rows).collect();
        let pairs = known.iter().map(|(_, example)| (&example.source[..], &example.target[..]));
        let mut batch = Batch::new(rows.bucket, self.end_source, pairs);
        batch.indices = known.iter().map(|(index, _)| *index).collect();
        batch
    }
}

/// The symbols of a source in a batch. An empty one always has its `</s>`.
fn source_length(example: &Example, end_source: bool) -> usize {
    (example.source.len() + usize::from(end_source)).max(1)
}

fn limit_lengths(examples: Vec<Example>, options: &BatchOptions) -> (Vec<Example>, Vec<TooLong>) {
    let source_end = usize::from(options.end_source);
    let mut too_long = Vec::new();
    let mut kept = Vec::with_capacity(examples.len());
    for mut example in examples {
        let sides = [
            (Side::Source, example.source.len() + source_end, options.max_source),
            (Side::Target, example.target.len() + 1, options.max_target),
        ];
        if let Some((side, length, limit)) = sides.into_iter().find(|(_, length, limit)| length > limit) {
            too_long.push(TooLong { line: example.line, length, limit, side });
            if options.overlong == Overlong::Skip {
                continue;
            }
            example.source.truncate(options.max_source - source_end);
            example.target.truncate(options.max_target - 1);
        }
        kept.push(example);
    }
    (kept, too_long)
}

/// More buckets than this are not merged one by one; lengths are rounded more instead.
const MOST_TO_MERGE: usize = 160;

fn find_buckets(examples: &[Example], options: &BatchOptions) -> Result<Vec<Members>> {
    let mut round = options.round;
    let mut found: BTreeMap<(usize, usize), Vec<usize>>;
    loop {
        found = BTreeMap::new();
        let rounded = |length: usize, most: usize| length.next_multiple_of(round).min(most);
        for (index, example) in examples.iter().enumerate() {
            let source = rounded(source_length(example, options.end_source), options.max_source);
            let target = rounded(example.target.len() + 1, options.max_target);
            found.entry((source, target)).or_default().push(index);
        }
        if found.len() <= MOST_TO_MERGE.max(options.max_buckets) {
            break;
        }
        round *= 2;
    }
    let bucket = |(source_len, target_len): (usize, usize)| {
        let rows = options.rows(source_len, target_len, examples.len());
        BatchShape { rows, source_len, target_len }
    };
    for &shape in found.keys() {
        if let (BatchShape { rows: 0, source_len, target_len }, BatchSize::Tokens(tokens)) =
            (bucket(shape), options.size)
        {
            let problem = format!(
                "is {tokens}, but one padded pair of the longest takes {source_len} + {target_len}; raise it, or \
                 lower the limits of length"
            );
            return Err(Error::config("batch tokens", problem));
        }
    }
    let mut members: Vec<Members> =
        found.into_iter().map(|(shape, indices)| Members { bucket: bucket(shape), indices }).collect();
    let cost = |bucket: &BatchShape, count: usize| match bucket.rows {
        // The merged bucket of two that fit may fit no row itself.
        0 => i64::MAX / 4,
        rows => (count.div_ceil(rows) * bucket.tokens()) as i64,
    };
    while members.len() > 1 {
        let mut best: Option<(i64, usize, usize, BatchShape)> = None;
        for (one, a) in members.iter().enumerate() {
            for (two, b) in members.iter().enumerate().skip(one + 1) {
                let merged = bucket((
                    a.bucket.source_len.max(b.bucket.source_len),
                    a.bucket.target_len.max(b.bucket.target_len),
                ));
                let added = cost(&merged, a.indices.len() + b.indices.len())
                    - cost(&a.bucket, a.indices.len())
                    - cost(&b.bucket, b.indices.len());
                if best.is_none_or(|(least, ..)| added < least) {
                    best = Some((added, one, two, merged));
                }
            }
        }
        match best {
            Some((added, one, two, merged)) if members.len() > options.max_buckets || added <= 0 => {
                if merged.rows == 0 {
                    let problem = format!(
                        "{} are too few for {:?}: one padded pair would take {} + {} tokens",
                        options.max_buckets, options.size, merged.source_len, merged.target_len
                    );
                    return Err(Error::config("batch buckets", problem));
                }
                let mut moved = members.remove(two).indices;
                members[one].bucket = merged;
                members[one].indices.append(&mut moved);
            }
            _ => break,
        }
    }
    members.sort_by_key(|members| {
        let BatchShape { rows, source_len, target_len } = members.bucket;
        (source_len + target_len, source_len, rows)
    });
    Ok(members)
}

/// Cuts the examples of each bucket in batches, in the order that they have. The buckets are ascending; what is left
/// over in one, if it is less than half a batch, goes to the first after it that holds its shape.
fn cut_in_batches(mut buckets: Vec<Members>) -> Vec<BatchRows> {
    let mut batches = Vec::new();
    for place in 0..buckets.len() {
        let bucket = buckets[place].bucket;
        let mut indices = std::mem::take(&mut buckets[place].indices);
        let left = indices.len() % bucket.rows;
        if left * 2 < bucket.rows
            && let Some(larger) = buckets[place + 1..].iter_mut().find(|larger| larger.bucket.holds(&bucket))
        {
            larger.indices.extend(indices.drain(indices.len() - left..));
        }
        batches.extend(indices.chunks(bucket.rows).map(|rows| BatchRows { bucket, indices: rows.to_vec() }));
    }
    batches
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::END;
    use std::collections::HashSet;

    /// Examples with these lengths, and ids that say which example and place they are.
    fn examples(lengths: &[(usize, usize)]) -> Vec<Example> {
        let ids = |number: usize, length: usize| {
            (0..length).map(|place| (number * 100 + place + 4) as u32).collect()
        };
        lengths
            .iter()
            .enumerate()
            .map(|(number, &(source, target))| Example {
                source: ids(number, source),
                target: ids(number, target),
                line: number + 1,
            })
            .collect()
    }

    fn random_lengths(count: usize, longest: u64, seed: u64) -> Vec<(usize, usize)> {
        let mut rng = Rng::new(seed);
        (0..count)
            .map(|_| {
                let source = 1 + rng.below(rng.clone().below(longest) + 1);
                (source as usize, ((source + rng.below(6)) / 2) as usize)
            })
            .collect()
    }

    fn options(size: BatchSize) -> BatchOptions {
        BatchOptions { size, ..BatchOptions::default() }
    }

    #[test]
    fn the_arrays_of_a_batch() {
        let options = BatchOptions { round: 4, max_buckets: 1, ..options(BatchSize::Sentences(4)) };
        let batches = Batches::new(examples(&[(3, 1), (1, 4), (0, 0)]), &options).unwrap();
        let bucket = BatchShape { rows: 3, source_len: 4, target_len: 8 };
        assert_eq!(batches.buckets(), [bucket]);
        let batch =
            batches.batch(&BatchRows { bucket: BatchShape { rows: 4, ..bucket }, indices: vec![1, 0, 2] });
        assert_eq!(batch.shape, BatchShape { rows: 4, ..bucket });
        assert_eq!(batch.tokens, 8);
        #[rustfmt::skip]
        assert_eq!(batch.source, [104, 2, 0, 0,  4, 5, 6, 2,  2, 0, 0, 0,  2, 0, 0, 0]);
        assert_eq!(batch.source_lengths, [2, 4, 1, 1]);
        #[rustfmt::skip]
        assert_eq!(batch.decoder_input, [
            1, 104, 105, 106, 107, 0, 0, 0,  1, 4, 0, 0, 0, 0, 0, 0,
            1, 0, 0, 0, 0, 0, 0, 0,  1, 0, 0, 0, 0, 0, 0, 0,
        ]);
        #[rustfmt::skip]
        assert_eq!(batch.targets, [
            104, 105, 106, 107, 2, 0, 0, 0,  4, 2, 0, 0, 0, 0, 0, 0,
            2, 0, 0, 0, 0, 0, 0, 0,  0, 0, 0, 0, 0, 0, 0, 0,
        ]);
        assert_eq!(batch.target_lengths, [5, 2, 1, 1]);
        assert_eq!(batch.indices, [1, 0, 2]);
    }

    #[test]
    fn sources_without_an_end() {
        let options = BatchOptions { end_source: false, round: 2, max_buckets: 1, ..BatchOptions::default() };
        let batches = Batches::new(examples(&[(2, 1), (0, 1)]), &options).unwrap();
        let bucket = BatchShape { rows: 2, source_len: 2, target_len: 2 };
        assert_eq!(batches.buckets(), [bucket]);
        let batch = batches.batch(&BatchRows { bucket, indices: vec![0, 1] });
        assert_eq!((batch.source, batch.source_lengths), (vec![4, 5, 2, 0], vec![2, 1]));
        assert_eq!(batches.efficiency(), 7.0 / 8.0);
    }

    #[test]
    fn an_epoch_has_every_example_once_in_the_listed_shapes() {
        let sizes = [
            BatchSize::Sentences(1),
            BatchSize::Sentences(7),
            BatchSize::Sentences(64),
            BatchSize::Sentences(100_000),
            BatchSize::Tokens(200),
            BatchSize::Tokens(2_000),
            BatchSize::Tokens(1_000_000),
        ];
        for (count, longest) in [(1, 5), (9, 50), (500, 90), (3_000, 120)] {
            let examples = examples(&random_lengths(count, longest, 3));
            for size in sizes {
                for max_buckets in [1, 4, 12] {
                    let options = BatchOptions { max_buckets, ..options(size) };
                    let batches = Batches::new(examples.clone(), &options).unwrap();
                    let buckets = batches.buckets();
                    assert!((1..=max_buckets).contains(&buckets.len()));
                    assert!(buckets.is_sorted_by_key(|bucket| std::cmp::Reverse(bucket.tokens())));
                    let shapes: HashSet<_> = buckets.iter().map(|b| (b.source_len, b.target_len)).collect();
                    assert_eq!(shapes.len(), buckets.len());
                    let epoch = batches.epoch(5, 0);
                    assert_eq!(epoch.len(), batches.batches_per_epoch());
                    let mut seen = vec![0; count];
                    let (mut real, mut padded) = (0, 0);
                    for rows in &epoch {
                        assert!(buckets.contains(&rows.bucket) && !rows.indices.is_empty());
                        let batch = batches.batch(rows);
                        assert_eq!(batch.indices, rows.indices);
                        assert_eq!(batch.tokens, batches.targets(rows));
                        for (row, &index) in batch.indices.iter().enumerate() {
                            seen[index] += 1;
                            let example = &examples[index];
                            assert_eq!(batch.source_lengths[row] as usize, example.source.len() + 1);
                            assert_eq!(batch.target_lengths[row] as usize, example.target.len() + 1);
                            real += example.source.len() + example.target.len() + 2;
                        }
                        padded += rows.bucket.tokens();
                        if let BatchSize::Tokens(tokens) = size {
                            assert!(rows.bucket.tokens() <= tokens);
                            assert!(
                                rows.bucket.rows < 8
                                    || rows.bucket.rows.is_multiple_of(8)
                                    || rows.bucket.rows == count
                            );
                        }
                    }
                    assert!(seen.iter().all(|&times| times == 1));
                    assert_eq!(batches.efficiency(), real as f64 / padded as f64);
                }
            }
        }
    }

    #[test]
    fn the_seed_and_the_epoch_decide() {
        let batches =
            Batches::new(examples(&random_lengths(300, 40, 1)), &options(BatchSize::Sentences(16))).unwrap();
        assert_eq!(batches.epoch(1, 2), batches.epoch(1, 2));
        assert_ne!(batches.epoch(1, 2), batches.epoch(1, 3));
        assert_ne!(batches.epoch(1, 2), batches.epoch(2, 2));
    }

    #[test]
    fn batches_follow_each_other_epoch_after_epoch() {
        let batches =
            Batches::new(examples(&random_lengths(100, 20, 1)), &options(BatchSize::Sentences(16))).unwrap();
        let epochs = (0..3).flat_map(|epoch| batches.epoch(7, epoch));
        let all: Vec<Batch> = epochs.map(|rows| batches.batch(&rows)).collect();
        let an_epoch = batches.batches_per_epoch();
        assert_eq!(all.len(), 3 * an_epoch);
        for first in [0, 1, an_epoch - 1, an_epoch, an_epoch + 2] {
            let found: Vec<Batch> = batches.batches_from(7, first as u64).take(all.len() - first).collect();
            assert!(found == all[first..], "from {first}");
        }
    }

    #[test]
    fn many_pairs_need_little_padding() {
        let lengths = random_lengths(20_000, 40, 8);
        for (size, least) in [(BatchSize::Sentences(64), 0.7), (BatchSize::Tokens(4_096), 0.7)] {
            let batches = Batches::new(examples(&lengths), &options(size)).unwrap();
            assert!(batches.efficiency() > least, "{size:?}: {}", batches.efficiency());
            let partly =
                batches.epoch(1, 0).iter().filter(|rows| rows.indices.len() < rows.bucket.rows).count();
            assert!(partly <= batches.buckets().len());
        }
    }

    #[test]
    fn few_pairs_share_a_bucket() {
        // One row of another shape is cheaper in the batch of the larger shape than in one of its own.
        let batches =
            Batches::new(examples(&[(20, 20), (1, 1), (20, 20), (1, 1)]), &options(BatchSize::Sentences(64)))
                .unwrap();
        assert_eq!(batches.buckets(), [BatchShape { rows: 4, source_len: 24, target_len: 24 }]);
        assert_eq!(batches.batches_per_epoch(), 1);
    }

    #[test]
    fn a_wide_spread_of_lengths_is_sorted_in_reasonable_time() {
        let mut rng = Rng::new(9);
        let lengths: Vec<_> =
            (0..20_000).map(|_| (rng.below(250) as usize, rng.below(250) as usize)).collect();
        let options = BatchOptions { round: 1, ..options(BatchSize::Sentences(8)) };
        let batches = Batches::new(examples(&lengths), &options).unwrap();
        assert_eq!(batches.buckets().len(), 12);
        assert!(batches.efficiency() > 0.75, "{}", batches.efficiency());
    }

    #[test]
    fn long_pairs_are_skipped_or_cut() {
        let given = examples(&[(3, 3), (4, 3), (3, 4), (9, 9), (0, 0)]);
        let too_long = [
            TooLong { line: 2, length: 5, limit: 4, side: Side::Source },
            TooLong { line: 3, length: 5, limit: 4, side: Side::Target },
            TooLong { line: 4, length: 10, limit: 4, side: Side::Source },
        ];
        for (overlong, kept) in [(Overlong::Skip, vec![1, 5]), (Overlong::Cut, vec![1, 2, 3, 4, 5])] {
            let options = BatchOptions { max_source: 4, max_target: 4, overlong, ..BatchOptions::default() };
            let batches = Batches::new(given.clone(), &options).unwrap();
            assert_eq!(batches.too_long(), too_long);
            assert_eq!(batches.examples().iter().map(|example| example.line).collect::<Vec<_>>(), kept);
            assert!(
                batches
                    .examples()
                    .iter()
                    .all(|example| example.source.len() <= 3 && example.target.len() <= 3)
            );
            assert!(batches.buckets().iter().all(|bucket| bucket.source_len <= 4 && bucket.target_len <= 4));
            for rows in batches.epoch(1, 0) {
                let batch = batches.batch(&rows);
                let ends = |ids: &[u32]| ids.iter().filter(|&&id| id == END).count();
                assert_eq!(
                    (ends(&batch.source), ends(&batch.targets)),
                    (batch.shape.rows, batch.indices.len())
                );
            }
        }
    }

    #[test]
    fn impossible_settings_are_refused() {
        let defaults = BatchOptions::default;
        let cases = [
            (BatchOptions { size: BatchSize::Sentences(0), ..defaults() }, "batch size: is 0"),
            (BatchOptions { size: BatchSize::Tokens(0), ..defaults() }, "batch tokens: is 0"),
            (
                BatchOptions { size: BatchSize::Tokens(15), ..defaults() },
                "batch tokens: is 15, but one padded pair",
            ),
            (BatchOptions { round: 0, ..defaults() }, "batch rounding: is 0"),
            (BatchOptions { round: usize::MAX, ..defaults() }, "batch rounding: is 18446744073709551615"),
            (BatchOptions { max_buckets: 0, ..defaults() }, "batch buckets: is 0"),
            (BatchOptions { max_source: 0, ..defaults() }, "longest source: is 0"),
            (BatchOptions { max_target: 0, ..defaults() }, "longest target: is 0"),
            (
                BatchOptions { max_target: 2, ..defaults() },
                "no sentence pair is short enough: the target in line 1",
            ),
        ];
        for (options, problem) in cases {
            let message = Batches::new(examples(&[(2, 2)]), &options).unwrap_err().to_string();
            assert!(message.starts_with(problem), "{message}");
        }
        let message = Batches::new(Vec::new(), &defaults()).unwrap_err().to_string();
        assert_eq!(message, "there are no sentence pairs to make batches of");
        // Two shapes that fit alone, but not together.
        let crossed = examples(&[(15, 1), (1, 15)]);
        let options = BatchOptions { max_buckets: 1, ..options(BatchSize::Tokens(24)) };
        let message = Batches::new(crossed, &options).unwrap_err().to_string();
        assert!(message.starts_with("batch buckets: 1 are too few"), "{message}");
    }
}

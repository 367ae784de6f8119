//! Trains a small model to copy until it copies sentences that it has never seen without an error.
//!
//! ```sh
//! cargo run --release --example train_copy_task
//! ```

use wgformer::nn::{Positions, TransformerConfig};
use wgformer::rng::Rng;
use wgformer::train::{Decay, Schedule, TrainerSettings};
use wgformer::{Result, Transformer};

const STEPS: u64 = 250;

/// Sentences of 1 to 5 symbols of 6.
fn sentences(count: usize, rng: &mut Rng) -> Vec<Vec<u32>> {
    let mut one = || (0..1 + rng.below(5)).map(|_| 4 + rng.below(6) as u32).collect();
    (0..count).map(|_| one()).collect()
}

fn main() -> Result<()> {
    let gpu = wgformer::gpu::request(&Default::default())?;
    let sizes = TransformerConfig {
        source_vocabulary: 10,
        target_vocabulary: 10,
        width: 32,
        heads: 2,
        feed_forward: 64,
        encoder_layers: 1,
        decoder_layers: 1,
        positions: Positions::Learned,
        dropout: 0.0,
        attention_dropout: 0.0,
        max_source: 8,
        max_target: 8,
        ..Default::default()
    };
    let schedule = Schedule { decay: Decay::Cosine, rate: 1e-2, warmup: 50, steps: STEPS, width: 32 };
    let settings = TrainerSettings { seed: 7, schedule, ..Default::default() };
    let mut model = Transformer::on(&gpu, sizes, settings)?;

    let mut rng = Rng::new(1);
    let mut loss = f64::NAN;
    for _ in 0..STEPS {
        let batch = sentences(16, &mut rng);
        loss = model.train_step(&batch, &batch)?.loss;
    }
    let unseen = sentences(100, &mut rng);
    let said = model.translate(&unseen)?;
    let wrong = said.iter().zip(&unseen).filter(|(said, right)| said != right).count();
    println!("{wrong} of {} copies wrong after {STEPS} steps, loss {loss:.3}", unseen.len());
    assert_eq!(wrong, 0, "it has not learned to copy");
    Ok(())
}

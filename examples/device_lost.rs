//! Trains, loses its device on the way, makes a new one and goes on from the last state that was saved.
//!
//! ```sh
//! cargo run --release --example device_lost
//! ```

use std::collections::HashMap;
use wgformer::gpu::{Gpu, request};
use wgformer::nn::{BatchShape, Transformer, TransformerConfig};
use wgformer::text::Batch;
use wgformer::train::{Decay, Schedule, Trainer, TrainerSettings};
use wgformer::{ErrorKind, HostTensor, Result};

const STEPS: u64 = 30;
/// The state is saved after each so many steps.
const SAVE: u64 = 10;
/// After this one the device goes, as when a driver is updated or a laptop changes its GPU.
const LOST: u64 = 15;

fn main() -> Result<()> {
    let mut gpu = request(&Default::default())?;
    let mut trainer = trainer(&gpu)?;
    let mut saved: (u64, HashMap<String, HostTensor>) = (0, trainer_state(&mut trainer)?);
    let mut lost = false;
    while trainer.steps() < STEPS {
        match step(&mut trainer) {
            Ok(loss) if trainer.steps().is_multiple_of(SAVE) => {
                println!("step {}: loss {loss:.3}, saved", trainer.steps());
                saved = (trainer.steps(), trainer_state(&mut trainer)?);
            }
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::DeviceLost => {
                println!("step {}: {error}", trainer.steps());
                gpu = request(&Default::default())?;
                trainer = self::trainer(&gpu)?;
                trainer.restore(saved.0, &saved.1)?;
                println!("a new device, from step {}", saved.0);
            }
            Err(error) => return Err(error),
        }
        if trainer.steps() == LOST && !lost {
            gpu.device().destroy();
            lost = true;
        }
    }
    Ok(())
}

fn trainer(gpu: &Gpu) -> Result<Trainer> {
    let config = TransformerConfig {
        source_vocabulary: 12,
        target_vocabulary: 12,
        width: 32,
        heads: 2,
        feed_forward: 64,
        encoder_layers: 1,
        decoder_layers: 1,
        max_source: 8,
        max_target: 8,
        ..Default::default()
    };
    let settings = TrainerSettings {
        seed: 1,
        schedule: Schedule { decay: Decay::Constant, rate: 3e-3, warmup: 1, steps: STEPS, width: 32 },
        ..Default::default()
    };
    let mut trainer = Trainer::new(gpu, Transformer::new(config)?, settings)?;
    trainer.prepare(&[SHAPE])?;
    Ok(trainer)
}

fn trainer_state(trainer: &mut Trainer) -> Result<HashMap<String, HostTensor>> {
    Ok(trainer.state()?.into_iter().collect())
}

const SHAPE: BatchShape = BatchShape { rows: 8, source_len: 8, target_len: 8 };

/// Copies of sequences, other ones in each step.
fn step(trainer: &mut Trainer) -> Result<f64> {
    let step = trainer.steps() as usize;
    let ids: Vec<u32> = (0..64).map(|i| 4 + ((7 * i + 5 * step + i * i) % 8) as u32).collect();
    let shifted: Vec<u32> =
        ids.chunks(8).flat_map(|row| [1].into_iter().chain(row[..7].iter().copied())).collect();
    let batch = Batch {
        shape: SHAPE,
        source: ids.clone(),
        source_lengths: vec![8; 8],
        decoder_input: shifted,
        targets: ids,
        target_lengths: vec![8; 8],
        tokens: 64,
        indices: (0..8).collect(),
    };
    Ok(trainer.step(&batch)?.wait()?.loss)
}

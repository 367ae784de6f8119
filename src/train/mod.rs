//! Training: learning rates, and steps on a device.

mod schedule;
mod trainer;

pub use schedule::{Decay, Schedule};
pub use trainer::{Evaluation, PendingStep, StepReport, Trainer, TrainerSettings};

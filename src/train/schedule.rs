//! Learning rates over the steps of a training.

use crate::{Error, Result};

/// The shape of the learning rate after the warm-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(
    feature = "import",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "kebab-case")
)]
pub enum Decay {
    /// As in 'Attention is all you need', section 5.3: rate C^-0.5 min(step^-0.5, step warmup^-1.5); here `rate` is a
    /// factor, 1 in the paper.
    Noam,
    /// Linear warm-up to `rate`, then rate sqrt(warmup / step).
    InverseSqrt,
    /// Linear warm-up to `rate`, then linear to 0 at the last step.
    Linear,
    /// Linear warm-up to `rate`, then half a cosine to 0 at the last step.
    Cosine,
    /// Linear warm-up to `rate`, which stays.
    Constant,
}

/// A learning rate for each step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Schedule {
    /// The shape.
    pub decay: Decay,
    /// The highest rate; for [`Decay::Noam`] a factor.
    pub rate: f64,
    /// Steps of warm-up.
    pub warmup: u64,
    /// The last step, where the shape needs one.
    pub steps: u64,
    /// Width C of the model, for [`Decay::Noam`].
    pub width: usize,
}

impl Schedule {
    /// Checks the settings.
    ///
    /// # Errors
    /// When the rate is no positive number.
    pub fn validate(&self) -> Result<()> {
        if !(self.rate > 0.0 && self.rate.is_finite()) {
            return Err(Error::config("learning_rate", format!("{} is no positive number", self.rate)));
        }
        Ok(())
    }

    /// The learning rate of a step; the first step is 1.
    pub fn at(&self, step: u64) -> f64 {
        let step = step.max(1) as f64;
        let warmup = self.warmup.max(1) as f64;
        if self.decay == Decay::Noam {
            return self.rate
                * (self.width as f64).powf(-0.5)
                * step.powf(-0.5).min(step * warmup.powf(-1.5));
        }
        if step < warmup {
            return self.rate * step / warmup;
        }
        let rest = (self.steps as f64 - warmup).max(1.0);
        let done = ((step - warmup) / rest).clamp(0.0, 1.0);
        self.rate
            * match self.decay {
                Decay::InverseSqrt => (warmup / step).sqrt(),
                Decay::Linear => 1.0 - done,
                Decay::Cosine => 0.5 * (1.0 + (std::f64::consts::PI * done).cos()),
                Decay::Constant | Decay::Noam => 1.0,
            }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates() {
        let s = |decay, rate, warmup, steps| Schedule { decay, rate, warmup, steps, width: 512 };
        let cases = [
            // The paper's base model peaks at step 4,000 with 512^-0.5 4000^-0.5.
            (s(Decay::Noam, 1.0, 4000, 0), 4000, (512.0f64 * 4000.0).powf(-0.5)),
            (s(Decay::Noam, 1.0, 4000, 0), 1, 512f64.powf(-0.5) * 4000f64.powf(-1.5)),
            (s(Decay::InverseSqrt, 1e-3, 100, 0), 50, 5e-4),
            (s(Decay::InverseSqrt, 1e-3, 100, 0), 400, 5e-4),
            (s(Decay::Linear, 2.0, 10, 110), 60, 1.0),
            (s(Decay::Linear, 2.0, 10, 110), 110, 0.0),
            (s(Decay::Linear, 2.0, 10, 110), 500, 0.0),
            (s(Decay::Cosine, 2.0, 10, 110), 60, 1.0),
            (s(Decay::Cosine, 2.0, 10, 110), 10, 2.0),
            (s(Decay::Constant, 3.0, 0, 0), 7, 3.0),
            (s(Decay::Constant, 3.0, 10, 0), 5, 1.5),
        ];
        for (schedule, step, want) in cases {
            let got = schedule.at(step);
            assert!(
                (got - want).abs() <= 1e-12 * (1.0 + want),
                "{schedule:?} at {step}: {got}, expected {want}"
            );
        }
        assert!(s(Decay::Linear, f64::NAN, 1, 1).validate().is_err());
        assert!(s(Decay::Linear, 0.0, 1, 1).validate().is_err());
    }
}

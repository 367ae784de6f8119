//! Single works, for those who time with other tools.

use super::measure::{MOST_REPETITIONS, Ready, Settings, row};
use super::work::{Timing, Work};
use crate::gpu::Gpu;
use crate::{Error, Result};
use std::time::Duration;

/// A work on a device, verified, compiled and ready to run.
pub struct Prepared<'a> {
    gpu: &'a Gpu,
    work: &'a Work,
    settings: &'a Settings,
    ready: Ready,
}

impl<'a> Prepared<'a> {
    /// Plans, compiles and runs `work`, and compares what it computes with the reference.
    ///
    /// # Errors
    /// When it cannot run on this device, or its results are wrong.
    pub fn new(gpu: &'a Gpu, work: &'a Work, settings: &'a Settings) -> Result<Prepared<'a>> {
        let mut row = row(work, 0);
        match Ready::new(gpu, work, settings, &mut row)? {
            Some(ready) => Ok(Prepared { gpu, work, settings, ready }),
            None => {
                let reason = row.reason.as_deref().unwrap_or("not compared");
                Err(Error::Device(format!("{} is wrong: {reason}", row.key())))
            }
        }
    }

    /// The time of so many repetitions together, by the clock that [`super::measure()`] takes for this work. Blocks.
    ///
    /// # Errors
    /// When the device fails.
    pub fn run(&mut self, repetitions: u64) -> Result<Duration> {
        let most = if self.work.timing == Timing::Cold { 1 } else { MOST_REPETITIONS };
        let (mut left, mut nanos) = (repetitions, 0.0);
        while left > 0 {
            let n = left.min(most);
            nanos += n as f64 * self.ready.sample(self.gpu, self.work, self.settings, n)?;
            left -= n;
        }
        Ok(Duration::from_nanos(nanos as u64))
    }
}

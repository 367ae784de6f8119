//! Ctrl-C: the first one asks the work to end in order, the second one ends the program.

use anyhow::{Context, Result};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether the program was asked to end.
#[derive(Clone, Debug, Default)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    /// From now on the first Ctrl-C (or termination signal) is noted here.
    pub fn on_interrupt() -> Result<Self> {
        let stop = Stop::default();
        let asked = stop.0.clone();
        ctrlc::set_handler(move || {
            if asked.swap(true, Ordering::SeqCst) {
                std::process::exit(130);
            }
        })
        .context("cannot catch Ctrl-C")?;
        Ok(stop)
    }

    /// Whether the program was asked to end.
    pub fn asked(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }

    /// An error if it was, for work that leaves nothing when it ends early.
    pub fn check(&self) -> Result<()> {
        if self.asked() { Err(Interrupted.into()) } else { Ok(()) }
    }
}

/// Ended by Ctrl-C, with nothing done.
#[derive(Debug)]
pub struct Interrupted;

impl std::fmt::Display for Interrupted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("interrupted: nothing was saved")
    }
}

impl std::error::Error for Interrupted {}

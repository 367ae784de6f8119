//! The time that steps of plans take: the device's own where it can tell, else the host's.

use super::executor::Bound;
use super::memory::{Part, Ring, read_one};
use super::{Buffer, Executor, Gpu, Shared};
use crate::{Error, Result, TensorType};
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What a submission took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timed {
    /// From the beginning of its pass to the end, as the device says; `None` where it has no timestamps.
    pub device: Option<Duration>,
    /// From the beginning of its recording to the end of its wait, by the host's clock.
    pub host: Duration,
}

/// Timestamps at both ends of passes.
struct Stamps {
    queries: wgpu::QuerySet,
    resolved: Arc<Buffer>,
    passes: u32,
}

impl Stamps {
    /// For so many passes; `None` where the device has no timestamps.
    fn new(shared: &Shared, passes: usize) -> Result<Option<Stamps>> {
        if !shared.device.features().contains(wgpu::Features::TIMESTAMP_QUERY) {
            return Ok(None);
        }
        let passes = passes as u32;
        let usage = wgpu::BufferUsages::QUERY_RESOLVE | wgpu::BufferUsages::COPY_SRC;
        let resolved = shared.buffer("timestamps", passes as u64 * 16, usage)?;
        let queries = shared.scoped(&"timestamps", || {
            shared.device.create_query_set(&wgpu::QuerySetDescriptor {
                label: Some("timestamps"),
                ty: wgpu::QueryType::Timestamp,
                count: 2 * passes,
            })
        })?;
        Ok(Some(Stamps { queries, resolved, passes }))
    }

    fn of_pass(&self, pass: usize) -> wgpu::ComputePassTimestampWrites<'_> {
        wgpu::ComputePassTimestampWrites {
            query_set: &self.queries,
            beginning_of_pass_write_index: Some(2 * pass as u32),
            end_of_pass_write_index: Some(2 * pass as u32 + 1),
        }
    }

    fn resolve(&self, encoder: &mut wgpu::CommandEncoder) {
        encoder.resolve_query_set(&self.queries, 0..2 * self.passes, &self.resolved.raw, 0);
    }

    /// The time of each pass; blocks.
    fn read(&self, shared: &Arc<Shared>) -> Result<Vec<Duration>> {
        let ty = TensorType::u32([4 * self.passes as usize]);
        let part = Part::of(&self.resolved, 0, ty);
        let words = read_one(shared, &Ring::default(), self.passes as u64 * 16, part)?;
        let period = shared.queue.get_timestamp_period() as f64;
        let tick = |w: &[u32]| w[0] as u64 | (w[1] as u64) << 32;
        let time = |w: &[u32]| tick(&w[2..]).saturating_sub(tick(w)) as f64 * period;
        let words = words.as_u32("timestamps")?;
        Ok(words.chunks_exact(4).map(|w| Duration::from_nanos(time(w) as u64)).collect())
    }
}

impl Gpu {
    /// Times `repetitions` runs of the steps `steps` of a plan, in one pass and one submission. `executors` are of this
    /// plan and are taken in turn, so that a run does not find in a cache what the one before has read. Blocks.
    ///
    /// # Errors
    /// When there is no executor, one is of another device, an input was never written, or the device fails.
    pub fn time(&self, executors: &mut [Executor], steps: Range<usize>, repetitions: usize) -> Result<Timed> {
        let shared = &self.shared;
        for executor in executors.iter_mut() {
            if !Arc::ptr_eq(&executor.gpu().shared, shared) || steps.end > executor.plan().steps.len() {
                return Err(Error::config("executors", "of another device or plan cannot be timed together"));
            }
            executor.prepare()?;
        }
        if executors.is_empty() {
            return Err(Error::config("executors", "there is none to be timed"));
        }
        let stamps = Stamps::new(shared, 1)?;
        let start = Instant::now();
        shared.scoped(&"timing", || {
            let mut encoder = shared.device.create_command_encoder(&Default::default());
            let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor {
                label: None,
                timestamp_writes: stamps.as_ref().map(|s| s.of_pass(0)),
            });
            for executor in executors.iter().cycle().take(repetitions) {
                let mut bound = Bound::default();
                steps.clone().for_each(|step| executor.dispatch(&mut pass, step, &mut bound));
            }
            drop(pass);
            stamps.iter().for_each(|s| s.resolve(&mut encoder));
            shared.queue.submit([encoder.finish()]);
        })?;
        executors[0].wait()?;
        let host = start.elapsed();
        let device = stamps.map(|s| s.read(shared)).transpose()?;
        Ok(Timed { device: device.and_then(|times| times.first().copied()), host })
    }
}

impl Executor {
    /// Runs the plan once, each step by itself, and gives each step's label and time in the order of the plan's steps:
    /// the device's own time where it can tell, else the host's, which has a submission on top. Slower than
    /// [`Executor::run`]; for finding the kernels that take long.
    ///
    /// # Errors
    /// When an input was never written, or the device fails.
    pub fn profile(&mut self) -> Result<Vec<(String, Duration)>> {
        self.prepare()?;
        let mut times = Vec::with_capacity(self.plan().steps.len());
        while times.len() < self.plan().steps.len() {
            let end = self.plan().steps.len().min(times.len() + wgpu::QUERY_SET_MAX_QUERIES as usize / 2);
            let steps = times.len()..end;
            match Stamps::new(&self.gpu().shared, steps.len())? {
                Some(stamps) => times.extend(self.time_on_device(steps, &stamps)?),
                None => times.push(self.time_on_host(steps.start)?),
            }
        }
        Ok(self.plan().steps.iter().map(|s| s.label.clone()).zip(times).collect())
    }

    /// A pass for each step, with a timestamp at both of its ends.
    fn time_on_device(&self, steps: Range<usize>, stamps: &Stamps) -> Result<Vec<Duration>> {
        let shared = &self.gpu().shared;
        shared.scoped(&"timing", || {
            let mut encoder = shared.device.create_command_encoder(&Default::default());
            for (i, step) in steps.enumerate() {
                let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor {
                    label: None,
                    timestamp_writes: Some(stamps.of_pass(i)),
                });
                self.dispatch(&mut pass, step, &mut Bound::default());
            }
            stamps.resolve(&mut encoder);
            shared.queue.submit([encoder.finish()]);
        })?;
        stamps.read(shared)
    }

    fn time_on_host(&self, step: usize) -> Result<Duration> {
        let shared = &self.gpu().shared;
        self.wait()?;
        let start = Instant::now();
        shared.scoped(&"timing", || {
            let mut encoder = shared.device.create_command_encoder(&Default::default());
            let mut pass = encoder.begin_compute_pass(&Default::default());
            self.dispatch(&mut pass, step, &mut Bound::default());
            drop(pass);
            shared.queue.submit([encoder.finish()]);
        })?;
        self.wait()?;
        Ok(start.elapsed())
    }
}

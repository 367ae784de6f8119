//! Memory that outlives a run: states by name, and a pool of slots that all plans of one memory share.
//!
//! Sharing slots between plans is safe because a slot holds nothing from one run to the next, and all runs of one
//! memory go through one queue, one after another.

use super::{Buffer, Gpu, Shared, TIMEOUT, lock};
use crate::plan::{BufferKind, Plan};
use crate::{DType, Error, HostTensor, Result, TensorType};
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Instant;

/// States by name, and pooled slots, shared by the executors of one device. Cheap to clone; clones are the same memory.
#[derive(Clone, Debug)]
pub struct Memory {
    shared: Arc<Shared>,
    inner: Arc<Mutex<Inner>>,
}

#[derive(Debug, Default)]
struct Inner {
    states: HashMap<String, State>,
    pool: Vec<Arc<Buffer>>,
    /// Counts the changes of the pool: an executor whose number is older binds anew.
    generation: u64,
}

#[derive(Clone, Debug)]
struct State {
    buffer: Arc<Buffer>,
    ty: TensorType,
}

impl Memory {
    /// An empty memory on a device.
    pub fn new(gpu: &Gpu) -> Memory {
        Memory { shared: gpu.shared.clone(), inner: Arc::default() }
    }

    pub(super) fn is_on(&self, shared: &Arc<Shared>) -> bool {
        Arc::ptr_eq(&self.shared, shared)
    }

    /// The names and types of the states, in order of their names.
    pub fn states(&self) -> Vec<(String, TensorType)> {
        let inner = lock(&self.inner);
        let mut list: Vec<_> = inner.states.iter().map(|(n, s)| (n.clone(), s.ty.clone())).collect();
        list.sort_by(|a, b| a.0.cmp(&b.0));
        list
    }

    /// Bytes of its states and slots.
    pub fn bytes(&self) -> u64 {
        self.bytes_with(&[], &[])
    }

    /// Bytes that its states and slots will take when a plan is there too.
    pub fn bytes_with_plan(&self, plan: &Plan) -> u64 {
        let states = plan.buffers.iter().filter_map(|b| match &b.kind {
            BufferKind::State { name, .. } => Some((name.as_str(), b.bytes)),
            _ => None,
        });
        self.bytes_with(&states.collect::<Vec<_>>(), &plan.slot_bytes())
    }

    fn bytes_with(&self, states: &[(&str, u64)], slots: &[u64]) -> u64 {
        let inner = lock(&self.inner);
        let new = states.iter().filter(|(name, _)| !inner.states.contains_key(*name)).map(|s| s.1);
        let states: u64 = inner.states.values().map(|s| s.buffer.bytes).chain(new).sum();
        let pooled = |k: usize| inner.pool.get(k).map_or(0, |b| b.bytes);
        let count = slots.len().max(inner.pool.len());
        let slots: u64 = (0..count).map(|k| pooled(k).max(slots.get(k).copied().unwrap_or(0))).sum();
        states + slots
    }

    /// Writes a state; makes it when it does not exist yet.
    ///
    /// # Errors
    /// When the state has another type, or the device fails.
    pub fn write(&self, name: &str, tensor: &HostTensor) -> Result<()> {
        let buffer = self.state(name, &tensor.ty())?;
        self.shared.scoped(&name, || self.shared.queue.write_buffer(&buffer.raw, 0, tensor.bytes()))
    }

    /// Reads a state; blocks until all runs submitted before are done.
    ///
    /// # Errors
    /// When there is no such state, or the device fails.
    pub fn read(&self, name: &str) -> Result<HostTensor> {
        let Some(state) = lock(&self.inner).states.get(name).cloned() else {
            return Err(Error::config(name, "no state of this name has been written or planned"));
        };
        // A ring of its own, which ends here: states may be large, and reading them is rare.
        let part = Part { buffer: state.buffer.raw.clone(), offset: 0, ty: state.ty };
        read_one(&self.shared, &Ring::default(), part.ty.bytes(), part)
    }

    /// The state's buffer; made, zeroed, when it does not exist.
    pub(super) fn state(&self, name: &str, ty: &TensorType) -> Result<Arc<Buffer>> {
        let mut inner = lock(&self.inner);
        if let Some(s) = inner.states.get(name) {
            if s.ty != *ty {
                return Err(Error::shape("state", name, format!("{} as it exists", s.ty), ty));
            }
            return Ok(s.buffer.clone());
        }
        // The device zeroes a new buffer.
        let usage = wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_SRC | wgpu::BufferUsages::COPY_DST;
        let buffer = self.shared.buffer(name, ty.bytes(), usage)?;
        inner.states.insert(name.to_string(), State { buffer: buffer.clone(), ty: ty.clone() });
        Ok(buffer)
    }

    /// Gives up its slots. Executors that are still there get new ones at their next run.
    pub fn release_slots(&self) {
        let mut inner = lock(&self.inner);
        inner.pool.clear();
        inner.generation += 1;
    }

    pub(super) fn generation(&self) -> u64 {
        lock(&self.inner).generation
    }

    /// Slots of at least these sizes, which fall, and the generation of the pool that they belong to.
    pub(super) fn slots(&self, sizes: &[u64]) -> Result<(Vec<Arc<Buffer>>, u64)> {
        let mut inner = lock(&self.inner);
        for (k, &bytes) in sizes.iter().enumerate() {
            if inner.pool.get(k).is_some_and(|b| b.bytes >= bytes) {
                continue;
            }
            let made = self.shared.buffer("slot", bytes, wgpu::BufferUsages::STORAGE)?;
            match inner.pool.get_mut(k) {
                Some(old) => {
                    *old = made;
                    inner.generation += 1;
                }
                None => inner.pool.push(made),
            }
        }
        Ok((inner.pool[..sizes.len()].to_vec(), inner.generation))
    }
}

/// Something to read: where it is and what it is.
#[derive(Clone, Debug)]
pub(super) struct Part {
    pub buffer: wgpu::Buffer,
    pub offset: u64,
    pub ty: TensorType,
}

pub(super) fn readback_bytes(parts: &[Part]) -> u64 {
    parts.iter().map(|p| p.ty.bytes()).sum()
}

/// Reads one part and waits for it.
pub(super) fn read_one(shared: &Arc<Shared>, ring: &Ring, bytes: u64, part: Part) -> Result<HostTensor> {
    let parts = [part];
    let mut tensors = Reading::start(shared, ring, bytes, &parts, None)?.wait(&parts)?;
    tensors.pop().ok_or_else(|| Error::Internal("one tensor read as none".into()))
}

/// Readback buffers of one size that wait for their next use.
pub(super) type Ring = Arc<Mutex<Vec<Arc<Buffer>>>>;

/// A readback under way.
#[derive(Debug)]
pub(super) struct Reading {
    shared: Arc<Shared>,
    staging: Arc<Buffer>,
    submission: wgpu::SubmissionIndex,
    mapped: Arc<Mutex<Option<Result<(), String>>>>,
    ring: Ring,
}

impl Reading {
    /// Copies the parts one after another into a buffer of `ring`, which has (or gets) buffers of `bytes`; submits, and
    /// asks for the mapping. `encoder` holds what runs before.
    pub fn start(
        shared: &Arc<Shared>,
        ring: &Ring,
        bytes: u64,
        parts: &[Part],
        encoder: Option<wgpu::CommandEncoder>,
    ) -> Result<Reading> {
        let known = lock(ring).pop();
        let staging = match known {
            Some(buffer) => buffer,
            None => shared.buffer(
                "readback",
                bytes,
                wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST,
            )?,
        };
        let mapped: Arc<Mutex<Option<Result<(), String>>>> = Arc::default();
        let cell = mapped.clone();
        let submission = shared.scoped(&"reading results", || {
            let mut encoder =
                encoder.unwrap_or_else(|| shared.device.create_command_encoder(&Default::default()));
            let mut at = 0;
            for p in parts.iter().filter(|p| p.ty.bytes() > 0) {
                encoder.copy_buffer_to_buffer(&p.buffer, p.offset, &staging.raw, at, p.ty.bytes());
                at += p.ty.bytes();
            }
            let submission = shared.queue.submit([encoder.finish()]);
            staging.raw.map_async(wgpu::MapMode::Read, .., move |result| {
                *lock(&cell) = Some(result.map_err(|e| e.to_string()));
            });
            submission
        })?;
        Ok(Reading { shared: shared.clone(), staging, submission, mapped, ring: ring.clone() })
    }

    /// Whether [`Reading::wait`] would return at once.
    pub fn ready(&self) -> Result<bool> {
        poll(&self.shared, wgpu::PollType::Poll)?;
        Ok(lock(&self.mapped).is_some())
    }

    /// Waits for the tensors.
    pub fn wait(&self, parts: &[Part]) -> Result<Vec<HostTensor>> {
        let wait =
            wgpu::PollType::Wait { submission_index: Some(self.submission.clone()), timeout: Some(TIMEOUT) };
        poll(&self.shared, wait)?;
        // The answer may still be on its way: another thread that polls the device at this moment has taken it over.
        let start = Instant::now();
        while lock(&self.mapped).is_none() {
            if start.elapsed() > TIMEOUT {
                return Err(Error::Device("reading results: the device did not answer".into()));
            }
            poll(&self.shared, wgpu::PollType::Poll)?;
            std::thread::yield_now();
        }
        if let Some(Err(e)) = &*lock(&self.mapped) {
            return Err(Error::Device(format!("reading results failed: {e}")));
        }
        let view = self
            .shared
            .scoped(&"reading results", || self.staging.raw.get_mapped_range(..))?
            .map_err(|e| Error::Device(format!("reading results failed: {e}")))?;
        let mut at = 0;
        let take = |p: &Part| {
            let bytes = &view[at..at + p.ty.bytes() as usize];
            at += bytes.len();
            match p.ty.dtype {
                DType::F32 => HostTensor::F32(p.ty.shape.clone(), bytemuck::pod_collect_to_vec(bytes)),
                DType::U32 => HostTensor::U32(p.ty.shape.clone(), bytemuck::pod_collect_to_vec(bytes)),
            }
        };
        Ok(parts.iter().map(take).collect())
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        // Ends a mapping that is there or pending, so that the buffer can be copied into again. On a lost device this
        // fails, and the buffer is of no more use.
        if self.shared.scoped(&"ending a readback", || self.staging.raw.unmap()).is_ok() {
            lock(&self.ring).push(self.staging.clone());
        }
    }
}

pub(super) fn poll(shared: &Shared, how: wgpu::PollType) -> Result<()> {
    // wgpu panics when the device is lost in the middle of a wait.
    let polled = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| shared.device.poll(how)));
    shared.check_lost()?;
    match polled {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(wgpu::PollError::Timeout)) => {
            let seconds = TIMEOUT.as_secs();
            Err(Error::Device(format!("no answer within {seconds} s: the device hangs; restart the program")))
        }
        Ok(Err(e)) => Err(Error::Device(format!("waiting failed: {e}"))),
        Err(_) => Err(Error::Device("the device was lost during a wait: make a new one".into())),
    }
}

//! Memory that outlives a run: states by name, and a pool of slots that all plans of one memory share.
//!
//! Sharing slots between plans is safe because a slot holds nothing from one run to the next, and all runs of one
//! memory go through one queue, one after another.

use super::wait::Pending;
use super::{Buffer, Gpu, Shared, lock};
use crate::plan::{BufferKind, Plan};
use crate::{Error, HostTensor, Result, TensorType};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

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
        self.shared.upload(name, &buffer, tensor.bytes())
    }

    /// Makes a state of a part of the host's own buffer, without a copy: parameters that the host keeps, say. The bytes are
    /// taken as they are. Plans read the buffer, and write it where they update the state.
    ///
    /// # Errors
    /// When the part does not fit the type or cannot be bound (see [`Executor::bind_input`](super::Executor::bind_input)),
    /// or when the state exists: adopt it before it is written, or planned.
    pub fn adopt(&self, name: &str, ty: TensorType, part: wgpu::BufferSlice<'_>) -> Result<()> {
        let buffer = self.shared.part(name, ty.bytes(), part)?;
        match lock(&self.inner).states.entry(name.to_string()) {
            Entry::Occupied(_) => {
                Err(Error::config(name, "exists already: adopt a state before it is written or planned"))
            }
            Entry::Vacant(free) => {
                free.insert(State { buffer, ty });
                Ok(())
            }
        }
    }

    /// Reads a state; blocks until all runs submitted before are done.
    ///
    /// # Errors
    /// When there is no such state, or the device fails.
    pub fn read(&self, name: &str) -> Result<HostTensor> {
        self.reading(name)?.wait()
    }

    /// [`Memory::read`] without blocking: what the submissions so far leave behind. The future needs somebody who polls the
    /// device ([`Gpu::poll`]).
    ///
    /// # Errors
    /// When there is no such state, or the device fails.
    pub fn read_async(&self, name: &str) -> Result<Read> {
        self.reading(name)
    }

    fn reading(&self, name: &str) -> Result<Read> {
        let Some(state) = lock(&self.inner).states.get(name).cloned() else {
            return Err(Error::config(name, "no state of this name has been written or planned"));
        };
        // A ring of its own, which ends here: states may be large, and reading them is rare.
        let bytes = state.ty.bytes();
        Read::start(&self.shared, &Ring::default(), bytes, Part::of(&state.buffer, 0, state.ty))
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
    buffer: wgpu::Buffer,
    offset: u64,
    ty: TensorType,
}

impl Part {
    /// The bytes from `offset` on.
    pub fn of(buffer: &Buffer, offset: u64, ty: TensorType) -> Part {
        Part { buffer: buffer.raw.clone(), offset: buffer.offset + offset, ty }
    }
}

pub(super) fn readback_bytes(parts: &[Part]) -> u64 {
    parts.iter().map(|p| p.ty.bytes()).sum()
}

/// Reads one part and waits for it.
pub(super) fn read_one(shared: &Arc<Shared>, ring: &Ring, bytes: u64, part: Part) -> Result<HostTensor> {
    Read::start(shared, ring, bytes, part)?.wait()
}

/// A tensor on its way to the host, as a future. Dropping it gives it up.
#[derive(Debug)]
#[must_use = "a future does nothing for the one who does not await it"]
pub struct Read {
    reading: Reading,
    part: [Part; 1],
}

impl Read {
    pub(super) fn start(shared: &Arc<Shared>, ring: &Ring, bytes: u64, part: Part) -> Result<Read> {
        let part = [part];
        Ok(Read { reading: Reading::start(shared, ring, bytes, &part, None)?, part })
    }

    /// Blocks until it is there.
    ///
    /// # Errors
    /// When the device fails, or does not answer in time ([`Gpu::set_timeout`]).
    pub fn wait(self) -> Result<HostTensor> {
        only(self.reading.wait(&self.part)?)
    }
}

impl Future for Read {
    type Output = Result<HostTensor>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.reading.poll(context, &self.part).map(|tensors| only(tensors?))
    }
}

fn only(mut tensors: Vec<HostTensor>) -> Result<HostTensor> {
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
    mapped: Pending,
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
        use wgpu::BufferUsages as Usage;
        if parts.iter().any(|p| !p.buffer.usage().contains(Usage::COPY_SRC)) {
            return Err(Error::config(
                "reading results",
                "a buffer of the host needs the usage COPY_SRC to be read",
            ));
        }
        let known = lock(ring).pop();
        let staging = match known {
            Some(buffer) => buffer,
            None => shared.buffer("readback", bytes, Usage::MAP_READ | Usage::COPY_DST)?,
        };
        let mapped = Pending::new(shared, "reading results");
        let signal = mapped.signal();
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
                signal.set(result.map_err(|e| e.to_string()));
            });
            submission
        })?;
        shared.look()?;
        Ok(Reading { shared: shared.clone(), staging, submission, mapped, ring: ring.clone() })
    }

    /// Whether [`Reading::wait`] would return at once.
    pub fn ready(&self) -> Result<bool> {
        self.mapped.ready()
    }

    /// Waits for the tensors.
    pub fn wait(&self, parts: &[Part]) -> Result<Vec<HostTensor>> {
        self.mapped.wait(self.submission.clone())?;
        self.take(parts)
    }

    /// A step of a future.
    pub fn poll(&self, context: &mut Context<'_>, parts: &[Part]) -> Poll<Result<Vec<HostTensor>>> {
        self.mapped.poll(context).map(|mapped| mapped.and_then(|()| self.take(parts)))
    }

    /// The tensors, once they are mapped.
    fn take(&self, parts: &[Part]) -> Result<Vec<HostTensor>> {
        let view = self
            .shared
            .scoped(&"reading results", || self.staging.raw.get_mapped_range(..))?
            .map_err(|e| Error::Device(format!("reading results failed: {e}")))?;
        let mut at = 0;
        let take = |p: &Part| {
            let bytes = &view[at..at + p.ty.bytes() as usize];
            at += bytes.len();
            HostTensor::from_bytes(&p.ty, bytes)
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

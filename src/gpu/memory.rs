//! Memory that outlives a run: states by name, and a pool of slots that all plans of one memory share.
//!
//! Sharing slots between plans is safe because a slot holds nothing from one run to the next, and all runs of one
//! memory go through one queue, one after another.

use super::{Buffer, Gpu, Shared, TIMEOUT, lock};
use crate::graph::Graph;
use crate::{DType, Error, HostTensor, Result, TensorType};
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

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

    /// Writes a state; makes it when it does not exist yet.
    ///
    /// # Errors
    /// When the state has another type, or the device fails.
    pub fn write(&self, name: &str, tensor: &HostTensor) -> Result<()> {
        let buffer = self.state(name, &tensor.ty())?;
        self.shared.scoped(&name, || self.shared.queue.write_buffer(&buffer.raw, 0, tensor.bytes()))
    }

    /// Makes every state of `graph` that does not exist yet, zeroed.
    ///
    /// # Errors
    /// When a state has another type here, or the device is out of memory.
    pub fn reserve(&self, graph: &Graph) -> Result<()> {
        let states = graph.values().iter().filter(|v| matches!(v.role, crate::graph::Role::State));
        for v in states {
            self.state(&v.name, &v.ty)?;
        }
        Ok(())
    }

    /// Reads a state; blocks until all runs submitted before are done.
    ///
    /// # Errors
    /// When there is no such state, or the device fails.
    pub fn read(&self, name: &str) -> Result<HostTensor> {
        let Some(state) = lock(&self.inner).states.get(name).cloned() else {
            return Err(Error::config(name, "no state of this name has been written or planned"));
        };
        let mut parts = vec![Part { buffer: state.buffer.raw.clone(), offset: 0, ty: state.ty }];
        let staging = self.shared.buffer("readback", readback_bytes(&parts), READBACK)?;
        let reading = Reading::start(&self.shared, staging, &parts, None)?;
        match reading.wait(&parts)?.pop() {
            Some(tensor) => Ok(tensor),
            None => Err(Error::Internal(format!("{:?} read as nothing", parts.pop()))),
        }
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

pub(super) const READBACK: wgpu::BufferUsages =
    wgpu::BufferUsages::MAP_READ.union(wgpu::BufferUsages::COPY_DST);

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

/// A readback under way.
#[derive(Debug)]
pub(super) struct Reading {
    shared: Arc<Shared>,
    pub staging: Arc<Buffer>,
    submission: wgpu::SubmissionIndex,
    mapped: Arc<Mutex<Option<Result<(), String>>>>,
}

impl Reading {
    /// Copies the parts one after another into `staging`, submits, and asks for the mapping. `encoder` holds what runs
    /// before.
    pub fn start(
        shared: &Arc<Shared>,
        staging: Arc<Buffer>,
        parts: &[Part],
        encoder: Option<wgpu::CommandEncoder>,
    ) -> Result<Reading> {
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
        Ok(Reading { shared: shared.clone(), staging, submission, mapped })
    }

    /// Whether [`Reading::wait`] would return at once.
    pub fn ready(&self) -> Result<bool> {
        poll(&self.shared, wgpu::PollType::Poll)?;
        Ok(lock(&self.mapped).is_some())
    }

    /// Waits for the tensors.
    pub fn wait(&self, parts: &[Part]) -> Result<Vec<HostTensor>> {
        let shared = &self.shared;
        let wait =
            wgpu::PollType::Wait { submission_index: Some(self.submission.clone()), timeout: Some(TIMEOUT) };
        poll(shared, wait)?;
        match &*lock(&self.mapped) {
            Some(Ok(())) => {}
            Some(Err(e)) => return Err(Error::Device(format!("reading results failed: {e}"))),
            None => return Err(Error::Device("reading results: the device did not answer".into())),
        }
        let tensors = {
            let view = shared
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
            parts.iter().map(take).collect()
        };
        Ok(tensors)
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        // Ends a mapping that is there or pending, so that the buffer can be copied into again. On a device that is
        // lost this may fail; then nothing uses the buffer again.
        let _ = self.shared.scoped(&"ending a readback", || self.staging.raw.unmap());
    }
}

pub(super) fn poll(shared: &Shared, how: wgpu::PollType) -> Result<()> {
    shared.scoped(&"waiting", || shared.device.poll(how))?.map_err(|e| match e {
        wgpu::PollError::Timeout => {
            Error::Device(format!("no answer within {} s: the device hangs", TIMEOUT.as_secs()))
        }
        e => Error::Device(e.to_string()),
    })?;
    Ok(())
}

//! Waiting for the device: blocking for a bounded time, by asking, and by futures of no particular runtime.
//!
//! wgpu tells of finished work by callbacks, and calls them while somebody polls the device or submits to it. So a future
//! needs a poll from elsewhere to end: [`Gpu::poll`] in the host's loop, or [`Gpu::wait`] on a thread of its own.

use super::{Gpu, Shared, lock};
use crate::{Error, Result};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

/// How long a wait for the device may take before it counts as hung, unless [`Gpu::set_timeout`] says otherwise. A GPU's
/// driver gives up after seconds; software adapters on a busy machine are what needs minutes.
pub(super) const TIMEOUT: Duration = Duration::from_secs(600);

/// What a callback of the device has said, and who is to be woken by it.
#[derive(Debug, Default)]
pub(super) struct Signal {
    outcome: Mutex<Option<Result<(), String>>>,
    waker: Mutex<Option<Waker>>,
}

impl Signal {
    pub fn set(&self, outcome: Result<(), String>) {
        *lock(&self.outcome) = Some(outcome);
        self.wake();
    }

    fn wake(&self) {
        let waker = lock(&self.waker).take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    pub fn is_set(&self) -> bool {
        lock(&self.outcome).is_some()
    }

    fn failure(&self) -> Option<String> {
        lock(&self.outcome).as_ref().and_then(|outcome| outcome.as_ref().err().cloned())
    }
}

/// Whether the device is lost, and the signals that no callback sets when it is.
#[derive(Debug, Default)]
pub(super) struct Watch {
    lost: Mutex<Option<String>>,
    signals: Mutex<Vec<Weak<Signal>>>,
}

impl Watch {
    /// The first reason stays.
    pub fn lose(&self, why: impl Into<String>) {
        lock(&self.lost).get_or_insert_with(|| why.into());
        self.wake();
    }

    pub fn check(&self) -> Result<()> {
        match &*lock(&self.lost) {
            Some(why) => Err(Error::DeviceLost(why.clone())),
            None => Ok(()),
        }
    }

    fn wake(&self) {
        let signals: Vec<_> = lock(&self.signals).iter().filter_map(Weak::upgrade).collect();
        signals.iter().for_each(|s| s.wake());
    }
}

/// Something that the device is to do.
#[derive(Debug)]
pub(super) struct Pending {
    shared: Arc<Shared>,
    what: &'static str,
    signal: Arc<Signal>,
    since: Instant,
}

impl Pending {
    pub fn new(shared: &Arc<Shared>, what: &'static str) -> Pending {
        let signal: Arc<Signal> = Arc::default();
        let mut signals = lock(&shared.watch.signals);
        signals.retain(|s| s.strong_count() > 0);
        signals.push(Arc::downgrade(&signal));
        Pending { shared: shared.clone(), what, signal, since: Instant::now() }
    }

    pub fn signal(&self) -> Arc<Signal> {
        self.signal.clone()
    }

    /// Whether it is done, without waiting.
    pub fn ready(&self) -> Result<bool> {
        self.shared.poll(self.what, wgpu::PollType::Poll)?;
        Ok(self.signal.is_set())
    }

    /// What became of it; only once it is done.
    fn outcome(&self) -> Result<()> {
        // A lost device counts work that it has dropped as done.
        self.shared.look()?;
        self.signal.failure().map_or(Ok(()), |why| Err(Error::Device(format!("{} failed: {why}", self.what))))
    }

    /// Blocks until it is done. `submission` is the one that does it.
    pub fn wait(&self, submission: wgpu::SubmissionIndex) -> Result<()> {
        let (start, timeout) = (Instant::now(), self.shared.timeout());
        if !self.signal.is_set() {
            let how = wgpu::PollType::Wait { submission_index: Some(submission), timeout: Some(timeout) };
            self.shared.poll(self.what, how)?;
        }
        // The answer may still be on its way: another thread that polls the device at this moment has taken it over.
        while !self.signal.is_set() {
            if start.elapsed() > timeout {
                return Err(self.shared.late(self.what, timeout));
            }
            self.shared.poll(self.what, wgpu::PollType::Poll)?;
            std::thread::yield_now();
        }
        self.outcome()
    }

    /// A step of a future. Asks the device once, and leaves the waker behind.
    pub fn poll(&self, context: &mut Context<'_>) -> Poll<Result<()>> {
        // Before asking, so that an answer in between is not missed.
        *lock(&self.signal.waker) = Some(context.waker().clone());
        match self.ready() {
            Err(e) => Poll::Ready(Err(e)),
            Ok(true) => Poll::Ready(self.outcome()),
            Ok(false) => {
                let timeout = self.shared.timeout();
                match self.since.elapsed() > timeout {
                    true => Poll::Ready(Err(self.shared.late(self.what, timeout))),
                    false => Poll::Pending,
                }
            }
        }
    }
}

/// A run under way, as a future: see [`Executor::run_async`](super::Executor::run_async). Dropping it lets the run go on.
#[derive(Debug)]
#[must_use = "a future does nothing for the one who does not await it"]
pub struct Running(Result<Pending, Option<Error>>);

impl Running {
    pub(super) fn failed(error: Error) -> Running {
        Running(Err(Some(error)))
    }
}

impl Future for Running {
    type Output = Result<()>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        match &mut self.get_mut().0 {
            Ok(pending) => pending.poll(context),
            // A future that has ended is not polled again; whoever does learns no more.
            Err(error) => Poll::Ready(error.take().map_or(Ok(()), Err)),
        }
    }
}

impl Shared {
    pub(super) fn timeout(&self) -> Duration {
        *lock(&self.timeout)
    }

    fn late(&self, what: &str, after: Duration) -> Error {
        // Whoever awaits it learns of it, too.
        self.watch.wake();
        Error::Timeout { what: what.into(), after }
    }

    /// Blocks until everything submitted so far is done.
    pub(super) fn wait(&self, what: &str) -> Result<()> {
        self.poll(what, wgpu::PollType::Wait { submission_index: None, timeout: Some(self.timeout()) })?;
        self.look()
    }

    /// Lets wgpu call its callbacks; whether nothing is left to do.
    pub(super) fn poll(&self, what: &str, how: wgpu::PollType) -> Result<bool> {
        let timeout = match &how {
            wgpu::PollType::Wait { timeout, .. } => timeout.unwrap_or_default(),
            wgpu::PollType::Poll => Duration::ZERO,
        };
        // wgpu panics when the device is lost in the middle of a wait.
        let polled = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| self.device.poll(how)));
        self.watch.check()?;
        match polled {
            Ok(Ok(status)) => Ok(status.is_queue_empty()),
            Ok(Err(wgpu::PollError::Timeout)) => Err(self.late(what, timeout)),
            Ok(Err(e)) => {
                self.look()?;
                Err(Error::Device(format!("{what}: waiting failed: {e}")))
            }
            Err(_) => {
                self.watch.lose("during a wait");
                self.watch.check().map(|()| false)
            }
        }
    }

    /// Whether the device still takes work. wgpu tells of a loss to the one callback of a device alone, which is the host's,
    /// and drops what is submitted later without an error. But a lost device refuses at once to map a buffer, and a sound
    /// one never before a poll. Takes 2 us (lavapipe).
    pub(super) fn look(&self) -> Result<()> {
        self.watch.check()?;
        let refused: Arc<AtomicBool> = Arc::default();
        let answer = refused.clone();
        let mut lost = false;
        // The scopes keep what a lost device has to say from a handler of the host's.
        let _ = super::scoped(&self.device, &"a look at the device", || {
            let buffer = lock(&self.probe);
            buffer.map_async(wgpu::MapMode::Read, .., move |mapped| {
                answer.store(mapped.is_err(), Ordering::Relaxed);
            });
            lost = refused.load(Ordering::Relaxed);
            // Ends the mapping, which tells the callback of an error as well.
            buffer.unmap();
        });
        if lost {
            self.watch.lose("destroyed, or its driver failed");
        }
        self.watch.check()
    }
}

impl Gpu {
    /// Lets the device tell what it has done, without waiting: futures of finished work are woken. True when nothing is left
    /// to do. A host that awaits results calls this in its loop (or polls its own device, which is the same).
    ///
    /// # Errors
    /// When the device is lost.
    pub fn poll(&self) -> Result<bool> {
        self.shared.poll("a poll", wgpu::PollType::Poll)
    }

    /// Blocks until everything submitted so far is done; futures are woken. For a thread that waits in the place of a host
    /// that may not block.
    ///
    /// # Errors
    /// When the device is lost, or does not answer in time ([`Gpu::set_timeout`]).
    pub fn wait(&self) -> Result<()> {
        self.shared.wait("a wait")
    }

    /// A future that ends when everything submitted so far is done, by the host too: see
    /// [`Executor::run_async`](super::Executor::run_async), whose own this is.
    pub fn submitted(&self) -> Running {
        let pending = Pending::new(&self.shared, "a run");
        let signal = pending.signal();
        self.shared.queue.on_submitted_work_done(move || signal.set(Ok(())));
        Running(Ok(pending))
    }

    /// How long a wait may take before it ends with [`Error::Timeout`]: ten minutes unless set. For all that is made on this
    /// device, clones included. The work goes on; a later wait may find it done.
    pub fn set_timeout(&self, timeout: Duration) {
        *lock(&self.shared.timeout) = timeout;
    }

    /// For a host whose own callback says that the device is lost: from now on every call here fails with
    /// [`Error::DeviceLost`] at once, and futures end with it. Without it they find out when a call fails, or by a wait.
    pub fn notice_lost(&self, reason: impl Into<String>) {
        self.shared.watch.lose(reason);
    }

    /// Whether the device is known to be lost: by its callback where it was made by [`request`](super::request), else by
    /// [`Gpu::notice_lost`] or a call that failed of it.
    pub fn is_lost(&self) -> bool {
        self.shared.watch.check().is_err()
    }
}

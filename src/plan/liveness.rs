//! The memory rule, in one function: which buffer each computed value lives in, and from when to when.

use super::{BufferKind, BufferSpec, Holder, Place};

/// From its first to its last step, a value needs its bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lifetime {
    pub first: usize,
    pub last: usize,
    pub bytes: u64,
    /// Read by the caller after the run: gets a buffer of its own.
    pub output: bool,
}

/// Gives each holder (in the order of their first steps) a slot: of those free at its first step the smallest that is
/// large enough, else the largest, which grows, else a new one. Appends the slots to `buffers`.
pub(super) fn assign(
    lifetimes: &[(Holder, Lifetime)],
    buffers: &mut Vec<BufferSpec>,
) -> Vec<(Holder, Place)> {
    struct Slot {
        bytes: u64,
        free_after: usize,
    }
    let mut slots: Vec<Slot> = Vec::new();
    let mut placed: Vec<(Holder, usize, u64)> = Vec::new();
    let mut places = Vec::new();
    for &(holder, life) in lifetimes {
        if life.output {
            buffers.push(BufferSpec { kind: BufferKind::Output, bytes: life.bytes });
            places.push((holder, Place { buffer: buffers.len() - 1, offset: 0, bytes: life.bytes }));
            continue;
        }
        let free = |s: &&(usize, &Slot)| s.1.free_after < life.first;
        let indexed: Vec<(usize, &Slot)> = slots.iter().enumerate().collect();
        let fits =
            indexed.iter().filter(free).filter(|s| s.1.bytes >= life.bytes).min_by_key(|s| (s.1.bytes, s.0));
        let grows = || indexed.iter().filter(free).max_by_key(|s| (s.1.bytes, usize::MAX - s.0));
        let chosen = fits.or_else(grows).map(|s| s.0);
        let slot = chosen.unwrap_or_else(|| {
            slots.push(Slot { bytes: 0, free_after: 0 });
            slots.len() - 1
        });
        slots[slot].bytes = slots[slot].bytes.max(life.bytes);
        slots[slot].free_after = life.last;
        placed.push((holder, slot, life.bytes));
    }
    let base = buffers.len();
    buffers.extend(slots.iter().map(|s| BufferSpec { kind: BufferKind::Slot, bytes: s.bytes }));
    places.extend(
        placed.into_iter().map(|(h, slot, bytes)| (h, Place { buffer: base + slot, offset: 0, bytes })),
    );
    places
}

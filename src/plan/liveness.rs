//! The memory rule, in one function: which buffer each computed value lives in, and from when to when.

use super::{BufferKind, BufferSpec, Holder, Place};
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// From its first to its last step, a value needs its bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lifetime {
    pub first: usize,
    pub last: usize,
    pub bytes: u64,
    /// Read by the caller after the run: gets a buffer of its own.
    pub output: bool,
}

/// Gives each holder a slot, the largest first: of the slots that are free all its time the one that is so for the
/// shortest, else a new one. So no slot grows, and small values fill the gaps between large ones ('Efficient Memory
/// Management for Deep Neural Net Inference', section 4.3, with the choice by time). Appends the slots to `buffers`.
pub(super) fn assign(
    lifetimes: &[(Holder, Lifetime)],
    buffers: &mut Vec<BufferSpec>,
) -> Vec<(Holder, Place)> {
    let place = |buffer: usize, bytes: u64| Place { buffer, offset: 0, bytes };
    let mut places = Vec::new();
    for (holder, life) in lifetimes.iter().filter(|(_, life)| life.output) {
        buffers.push(BufferSpec { kind: BufferKind::Output, bytes: life.bytes });
        places.push((*holder, place(buffers.len() - 1, life.bytes)));
    }
    let mut by_size: Vec<&(Holder, Lifetime)> = lifetimes.iter().filter(|(_, life)| !life.output).collect();
    by_size.sort_by_key(|(_, life)| Reverse(life.bytes));
    // Of each slot, from which to which step it is taken, by the first.
    let mut slots: Vec<BTreeMap<usize, usize>> = Vec::new();
    let base = buffers.len();
    for (holder, life) in by_size {
        // For how many steps around it a slot is free, if it is so all its time.
        let gap = |taken: &BTreeMap<usize, usize>| {
            let before = taken.range(..=life.last).next_back().map_or(0, |(_, &last)| last + 1);
            let after = taken.range(life.last + 1..).next().map_or(usize::MAX, |(&first, _)| first);
            (before <= life.first).then(|| after - before)
        };
        let tightest = slots.iter().enumerate().filter_map(|(i, taken)| Some((gap(taken)?, i))).min();
        let slot = tightest.map_or(slots.len(), |(_, slot)| slot);
        if slot == slots.len() {
            slots.push(BTreeMap::new());
            buffers.push(BufferSpec { kind: BufferKind::Slot, bytes: life.bytes });
        }
        slots[slot].insert(life.first, life.last);
        places.push((*holder, place(base + slot, life.bytes)));
    }
    places
}

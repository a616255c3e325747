//! How long requests of the kernel take: one in eight is timed from its arrival to its answer.
//!
//! Invariants:
//! - A slot belongs to one ticket from `begin` to `end`, and no ticket is used twice; who finds a slot taken is not
//!   timed. So nothing here is locked or allocated, and what is not timed costs a multiplication.
//! - Which requests are timed depends on a hash of their number only: programs that repeat a pattern of operations
//!   do not hide one of them.

use std::sync::atomic::{AtomicU64, Ordering};

use client::request::Ticket;
use types::{Duration, Instant};

use super::OPERATION_NAMES;
use crate::histogram::{Histogram, Timed};

/// Requests that can be timed at once: more than the kernel has under way, as a rule.
const SLOT_COUNT: usize = 1024;
/// Bits of the hash that are zero in what is timed: one in eight.
const SAMPLE_BITS: u32 = 3;
/// One request in so many is timed.
pub(super) const SAMPLED_ONE_IN: u64 = 1 << SAMPLE_BITS;
/// A slot whose time is being written.
const CLAIMED: u64 = u64::MAX;

/// A request under way.
#[derive(Debug, Default)]
struct Slot {
    /// 0: free.
    ticket: AtomicU64,
    /// When it came, in nanoseconds.
    begin: AtomicU64,
    /// Index into `OPERATION_NAMES`.
    operation: AtomicU64,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Latencies {
    slots: Box<[Slot]>,
    sums: [Histogram; OPERATION_NAMES.len()],
}

impl Default for Latencies {
    fn default() -> Self {
        Self {
            slots: (0..SLOT_COUNT).map(|_| Slot::default()).collect(),
            sums: Default::default(),
        }
    }
}

/// The slot of a ticket that is timed.
fn slot_of(ticket: Ticket) -> Option<usize> {
    let hash = ticket.0.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let is_timed = ticket.0 != 0 && hash >> (64 - SAMPLE_BITS) == 0;
    let index = (hash >> 32) % SLOT_COUNT as u64;
    is_timed.then(|| usize::try_from(index).expect("below the count of slots"))
}

impl Latencies {
    /// A request has come; `now` is asked for if it is timed. Tickets of 0 have no answer and are not.
    pub(super) fn begin(&self, ticket: Ticket, operation: usize, now: impl FnOnce() -> Instant) {
        let Some(index) = slot_of(ticket) else { return };
        let slot = &self.slots[index];
        let claim = slot
            .ticket
            .compare_exchange(0, CLAIMED, Ordering::Acquire, Ordering::Relaxed);
        if claim.is_ok() {
            slot.begin.store(now().0, Ordering::Relaxed);
            slot.operation.store(operation as u64, Ordering::Relaxed);
            slot.ticket.store(ticket.0, Ordering::Release);
        }
    }

    /// It is being answered.
    pub(super) fn end(&self, ticket: Ticket, now: impl FnOnce() -> Instant) {
        let Some(index) = slot_of(ticket) else { return };
        let slot = &self.slots[index];
        if slot.ticket.load(Ordering::Acquire) != ticket.0 {
            return;
        }
        let begin = slot.begin.load(Ordering::Relaxed);
        let operation = slot.operation.load(Ordering::Relaxed);
        slot.ticket.store(0, Ordering::Release);
        let time = now().0.saturating_sub(begin);
        let operation = usize::try_from(operation).expect("an index of a small array");
        self.sums[operation].add(Duration(time));
    }

    /// What has been timed, in the order of `OPERATION_NAMES`.
    pub(super) fn timed(&self) -> impl Iterator<Item = Timed> + '_ {
        self.sums.iter().map(Histogram::timed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_timed_has_its_time_and_kind() {
        let all = Latencies::default();
        let mut timed = 0;
        for number in (2..20_000).step_by(2) {
            let ticket = Ticket(number);
            all.begin(ticket, 5, || Instant(1000));
            all.end(ticket, || {
                timed += 1;
                Instant(4000)
            });
        }
        assert!((1000..1500).contains(&timed), "{timed} of 10,000");
        let sums: Vec<Timed> = all.timed().collect();
        let expected = Timed {
            count: timed,
            time: timed * 3000,
            buckets: vec![0, 0, timed],
        };
        assert_eq!(sums[5], expected);
        assert!(sums.iter().enumerate().all(|(i, s)| i == 5 || s.count == 0));
    }

    #[test]
    fn every_operation_of_a_pattern_is_timed() {
        for length in [2, 3, 4, 8, 16] {
            for place in 0..length {
                let tickets = (1..4000).map(|n| Ticket(n * 2)).skip(place);
                let timed = tickets.step_by(length).filter(|t| slot_of(*t).is_some());
                assert!(timed.count() > 4000 / length / 20, "{place} of {length}");
            }
        }
    }

    #[test]
    fn a_taken_slot_keeps_its_request() {
        let all = Latencies::default();
        let mut tickets = (1..).map(Ticket).filter(|t| slot_of(*t).is_some());
        let first = tickets.next().expect("some are timed");
        let second = tickets
            .find(|t| slot_of(*t) == slot_of(first))
            .expect("slots are few");
        all.begin(first, 1, || Instant(0));
        all.begin(second, 2, || panic!("it is not timed"));
        all.end(second, || panic!("it was not timed"));
        all.end(first, || Instant(5));
        all.end(first, || panic!("it has ended"));
        let counts: Vec<u64> = all.timed().map(|t| t.count).collect();
        assert_eq!(counts[..4], [0, 1, 0, 0]);
        all.begin(second, 2, || Instant(9));
        all.end(second, || Instant(9));
        assert_eq!(all.timed().nth(2).map(|t| t.buckets), Some(vec![1]));
    }
}

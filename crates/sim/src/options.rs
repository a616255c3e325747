//! Options of a run, drawn from its seed: each fault and each feature may be absent (swarm testing).

use client::revoke::Rules;
use stdx::Prng;

use crate::model::CELL_COUNT;

/// What a run does and suffers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Options {
    /// Nodes; the owner's half runs on the first.
    pub node_count: usize,
    /// Files.
    pub file_count: usize,
    /// Cells of a file that calls begin at, from its third on: few of them crowd on one page or two.
    pub begin_count: usize,
    /// Threads of applications on each node.
    pub thread_count: usize,
    /// System calls that each thread makes.
    pub call_count: usize,
    /// Threads that read the FUSE queue.
    pub request_thread_count: usize,
    /// Threads that perform notifications.
    pub notify_thread_count: usize,
    /// Of a hundred messages, how many are lost.
    pub loss_percent: u64,
    /// Of a hundred messages, how many come twice.
    pub duplicate_percent: u64,
    /// Longest delay of a message in ticks.
    pub delay_max: u64,
    /// Pages that read-ahead adds at most.
    pub read_ahead: usize,
    /// Files are mapped, loaded from and stored to.
    pub has_mappings: bool,
    /// Of a hundred folio invalidations by a notification, how many fail.
    pub busy_percent: u64,
    /// splice(2) is used.
    pub has_splice: bool,
    /// Files are truncated.
    pub has_truncate: bool,
    /// O_APPEND is used.
    pub has_append: bool,
    /// Where there are mappings and truncates, most calls are these and what writes pages back, so that they meet.
    pub is_cutting: bool,
    /// Of a hundred calls, how many concern names.
    pub name_percent: u64,
    /// Only the first node changes names.
    pub has_one_binder: bool,
    /// The kernel knows INC_EPOCH.
    pub has_epoch: bool,
    /// Leases that lapse during the run.
    pub lapse_count: usize,
    /// Steps per tick: how fast machines are, compared with the network.
    pub steps_per_tick: u64,
    /// Rules in force.
    pub rules: Rules,
}

impl Options {
    /// Draws them. `rules` is not drawn: canaries set it.
    pub fn draw(prng: &mut Prng, rules: Rules) -> Self {
        let mut between =
            |low: u64, high: u64| usize::try_from(prng.between(low, high)).expect("small numbers");
        let node_count = between(2, 4);
        let file_count = between(1, 2);
        let thread_count = between(1, 3);
        let call_count = between(8, 25);
        let request_thread_count = between(1, 2);
        let notify_thread_count = between(1, 3);
        let read_ahead = between(0, 2);
        let lapse_count = if prng.chance(1, 5) { 1 } else { 0 };
        let has_mappings = lapse_count == 0 && prng.chance(1, 2);
        let is_lossy = prng.chance(1, 3);
        let begin_count = [3, 8, CELL_COUNT][between_index(prng, 3)];
        Self {
            node_count,
            file_count,
            begin_count,
            thread_count,
            call_count,
            request_thread_count,
            notify_thread_count,
            loss_percent: if is_lossy { prng.below(20) } else { 0 },
            duplicate_percent: if is_lossy { prng.below(20) } else { 0 },
            delay_max: [1, 5, 40][between_index(prng, 3)],
            read_ahead,
            has_mappings,
            busy_percent: if has_mappings && prng.chance(1, 2) {
                25
            } else {
                0
            },
            has_splice: lapse_count == 0 && prng.chance(1, 2),
            has_truncate: prng.chance(1, 2),
            has_append: prng.chance(1, 2),
            name_percent: [0, 10, 60][between_index(prng, 3)],
            has_one_binder: prng.chance(1, 3),
            has_epoch: prng.chance(3, 4),
            lapse_count,
            steps_per_tick: [1, 4, 16][between_index(prng, 3)],
            is_cutting: prng.chance(1, 3),
            rules,
        }
    }
}

fn between_index(prng: &mut Prng, count: u64) -> usize {
    usize::try_from(prng.below(count)).expect("small numbers")
}

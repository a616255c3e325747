//! Reads of trees' pages that fail: once, for a while, or for longer than anybody waits.
//!
//! What a bad moment of a disk must not do: lose what was acknowledged, or show an error to an application. When it lasts for longer
//! than an owner waits, calls may fail; then each file of which something is lost has said so.

use std::collections::BTreeMap;

use client::request::{Operation, Response};
use node::fetch::PATIENCE;
use types::Location;

use super::{Errno, Program, Task, World};
use crate::model::{Action, Ask, CELL_COUNT};

/// A page is misread so often in a row at the most: an owner tries damage four times.
const IN_A_ROW_MAX: u32 = 2;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct PageFaults {
    /// How often the last reads of each page failed.
    in_a_row: BTreeMap<Location, u32>,
    /// Whose pages cannot be read, and from when to when.
    outage: Option<(usize, u64, u64)>,
    /// Files that have shown an error.
    told: Vec<usize>,
    /// Reads that failed, and calls.
    pub(super) counts: [u64; 2],
}

impl World {
    /// Applications begin: when the outage comes, and where.
    pub(super) fn plan_outage(&mut self) {
        let ticks = self.options.page_outage_ticks;
        if ticks > 0 {
            let index = self.prng.below(self.machines.len() as u64);
            let index = usize::try_from(index).expect("few machines");
            let begin = self.now + self.prng.between(10, 300);
            self.page_faults.outage = Some((index, begin, begin + ticks));
        }
    }

    /// A page was read on a machine: what comes of it.
    pub(super) fn page_read(
        &mut self,
        index: usize,
        at: Location,
        mut bytes: Vec<u8>,
    ) -> Result<Vec<u8>, ()> {
        let now = self.now;
        let is_out = |(out, begin, end)| out == index && (begin..end).contains(&now);
        if self.page_faults.outage.is_some_and(is_out) {
            self.page_faults.counts[0] += 1;
            return Err(());
        }
        let per_mille = self.options.page_fault_per_mille;
        if per_mille == 0 || !self.may_begin {
            return Ok(bytes);
        }
        let is_bad = self.prng.chance(per_mille, 1000);
        let count = self.page_faults.in_a_row.entry(at).or_default();
        if !is_bad || *count >= IN_A_ROW_MAX {
            *count = 0;
            return Ok(bytes);
        }
        *count += 1;
        self.page_faults.counts[0] += 1;
        if self.prng.chance(1, 2) {
            return Err(());
        }
        let byte = usize::try_from(self.prng.below(bytes.len() as u64)).expect("an index");
        bytes[byte] ^= 1;
        Ok(bytes)
    }

    /// The pages of some node cannot be read for longer than an owner waits.
    fn is_out_for_long(&self) -> bool {
        self.options.page_outage_ticks * 1_000_000 > PATIENCE.0
    }

    /// A call has failed: because of that, and its file has shown it.
    pub(super) fn fails_for_pages(&mut self, task: &Task, errno: Option<Errno>) -> bool {
        if !self.is_out_for_long() || !self.has_outage_begun() || errno != Some(Errno::EIO) {
            return false;
        }
        self.page_faults.counts[1] += 1;
        if let Program::Call(
            file,
            Action::Write(..) | Action::Append(..) | Action::Fsync | Action::Msync,
        ) = &task.program
        {
            self.page_faults.told.push(*file);
        }
        true
    }

    /// A write-back fails because of that: what a mapping has stored is lost, and the kernel says so to who syncs the file next.
    pub(super) fn is_told_loss(&mut self, file: usize, ask: &Ask, response: &Response) -> bool {
        let is_loss = matches!(
            (ask, response),
            (Ask::WriteBack { .. }, Response::Error(Errno::EIO))
        );
        let is_due = is_loss && self.is_out_for_long() && self.has_outage_begun();
        if is_due {
            self.page_faults.counts[1] += 1;
            self.page_faults.told.push(file);
        }
        is_due
    }

    fn has_outage_begun(&self) -> bool {
        let outage = self.page_faults.outage;
        outage.is_some_and(|(_, begin, _)| begin < self.now)
    }

    /// At the end: pages can be read again, and each open file says what it has not said yet. What has said so is not judged.
    pub(super) fn end_outage(&mut self) {
        if let Some((_, _, end)) = &mut self.page_faults.outage {
            *end = (*end).min(self.now);
        }
        if !self.is_out_for_long() {
            return;
        }
        for index in 0..self.machines.len() {
            for file in 0..self.options.file_count {
                let open = self.machines[index].front.files[file];
                let (ino, handle) = (open.ino, open.writer);
                let data_only = false;
                match self.own_request(
                    index,
                    Operation::Fsync {
                        ino,
                        handle,
                        data_only,
                    },
                ) {
                    Some(Response::Done) | None => {}
                    Some(Response::Error(Errno::EIO)) => self.page_faults.told.push(file),
                    Some(other) => self.fail(format!("node {index}: {other:?} to the last fsync")),
                }
            }
        }
        for file in std::mem::take(&mut self.page_faults.told) {
            (0..CELL_COUNT).for_each(|cell| self.history.forget((file, cell)));
        }
    }
}

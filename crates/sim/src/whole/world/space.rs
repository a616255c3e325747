//! Sectors at the end of a run: what files name is what is in use, and everything comes back.

use client::request::{Operation, Response};
use data::space::{Counts, RegionTable};
use node::Walk;
use types::{Errno, SetAttr};

use super::super::front::{bytes_of, name, no_change, payload};
use super::{Machine, World};
use crate::model::{NAME_COUNT, PAGE_CELLS, PAGE_COUNT};

/// Ticks within which hands give back what lies idle in them.
const GIVE_BACK_TICKS: u64 = 20_000;

impl World {
    /// The maps of each owner's files name the sectors that its space has in use, no more and no fewer.
    pub(super) fn compare_space(&mut self) {
        for index in 0..self.machines.len() {
            let node = &self.machines[index].node;
            let mut walk = Walk::default();
            for slice in node.shards.iter().flatten() {
                slice.shard.visit_runs(&mut |run| walk.visit(run));
            }
            walk.compare(&node.log.space.used());
            if !walk.is_clean() {
                let Walk {
                    twice,
                    leaked,
                    missing,
                    ..
                } = walk;
                self.fail(format!(
                    "node {index}: {twice} sectors of files are named twice, {leaked} in use are \
                     named nowhere, {missing} named are not in use"
                ));
            }
        }
    }

    /// Everything is removed: every sector becomes free again, and there is room again.
    pub(super) fn give_all_back(&mut self) {
        if self.violation.is_some() || !self.options.has_little_space() {
            return;
        }
        self.empty_files();
        self.await_free();
        let reserve = self.options.space_reserve * self.machines.len() as u64;
        let mut left = self.sector_count() - reserve;
        for file in 0..self.options.file_count {
            let pages = left.min(PAGE_COUNT as u64);
            left -= pages;
            if pages > 0 {
                self.fill(file, usize::try_from(pages).expect("a few"));
            }
        }
        self.settle();
        self.compare_space();
        self.empty_files();
        self.settle();
        self.await_free();
    }

    fn empty_files(&mut self) {
        for file in 0..self.options.file_count {
            let open = self.machines[0].front.files[file];
            let operation = Operation::SetAttr {
                ino: open.ino,
                handle: Some(open.writer),
                set: SetAttr {
                    size: Some(0),
                    ..no_change()
                },
            };
            match self.own_request(0, operation) {
                Some(Response::Attr(..)) | None => {}
                Some(response) => self.fail(format!("{response:?} of the last truncate")),
            }
        }
        for number in 0..NAME_COUNT {
            let operation = Operation::Unlink {
                parent: self.machines[0].front.directory,
                name: name(number),
            };
            match self.own_request(0, operation) {
                Some(Response::Done | Response::Error(Errno::ENOENT)) | None => {}
                Some(response) => self.fail(format!("{response:?} of the last unlink")),
            }
        }
    }

    /// Sectors that could be had for a write: free or in hand, wherever.
    pub(super) fn free_everywhere(&self) -> u64 {
        let up = self.machines.iter().filter(|m| m.is_up());
        up.map(|machine| {
            let log = &machine.node.log;
            let unheld = log.table.as_ref().map_or(0, RegionTable::free_sectors);
            let in_hand = machine.node.hands.with(|hands| hands.unreserved());
            log.space.grantable() + unheld + in_hand
        })
        .sum()
    }

    /// Less than three quarters of the sectors can be had, or less than the largest write needs.
    pub(super) fn is_nearly_full(&self) -> bool {
        let most = self.sector_count().div_ceil(4) * 3;
        self.free_everywhere() < most.max(PAGE_COUNT as u64)
    }

    /// Where the sectors are, node by node.
    pub(super) fn describe_space(&self) -> String {
        let of = |machine: &Machine| {
            let counts = machine.node.log.space.counts();
            let unheld = (machine.node.log.table.as_ref()).map(RegionTable::free_sectors);
            let hands = machine.node.hands.with(|hands| format!("{hands:?}"));
            format!("{counts:?}, {unheld:?} held by nobody, in hand {hands}")
        };
        let all: Vec<String> = self.machines.iter().map(of).collect();
        all.join("; ")
    }

    /// Sectors that files may have.
    pub(super) fn sector_count(&self) -> u64 {
        self.options.data_sectors * self.machines.len() as u64
    }

    /// Writes the first pages of a file and syncs it: there must be room.
    fn fill(&mut self, file: usize, pages: usize) {
        let index = self.machines.len() - 1;
        let machine = &self.machines[index];
        let open = machine.front.files[file];
        let bytes = bytes_of(&vec![1; pages * PAGE_CELLS]);
        // Pages that are cached give way.
        self.last_finished = self.now;
        let payload = loop {
            match payload(&self.machines[index].node.memory, &bytes) {
                Some(payload) => break payload,
                None => self.step(),
            }
            if self.violation.is_some() {
                return;
            }
        };
        let file = (open.ino, open.writer);
        let [written, synced] = self.write_and_sync(index, file, payload);
        if self.violation.is_none()
            && !matches!(
                (&written, &synced),
                (Some(Response::Written(_)), Some(Response::Done))
            )
        {
            let free: Vec<Counts> = self.counts();
            self.fail(format!(
                "all is free, and a write is answered {written:?}, fsync {synced:?}: {free:?}"
            ));
        }
    }

    fn counts(&self) -> Vec<Counts> {
        let machines = self.machines.iter();
        machines.map(|m| m.node.log.space.counts()).collect()
    }

    /// Time passes until nothing is in anybody's hands.
    fn await_free(&mut self) {
        let until = self.now + GIVE_BACK_TICKS;
        self.last_finished = self.now;
        let all = self.sector_count();
        while self.violation.is_none() {
            let tables = self
                .machines
                .iter()
                .filter_map(|m| m.node.log.table.as_ref());
            let unheld: u64 = tables.map(RegionTable::free_sectors).sum();
            let held: u64 = self.counts().iter().map(|counts| counts.free).sum();
            if unheld + held == all {
                return;
            }
            if self.now > until {
                let counts = self.counts();
                return self.fail(format!(
                    "of {all} sectors {} are not free again, {unheld} are held by nobody: {counts:?}",
                    all - unheld - held
                ));
            }
            self.step();
        }
    }
}

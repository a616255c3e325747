//! Sectors at the end of a run: what files name is what is in use, and everything comes back.

use std::collections::BTreeMap;

use client::request::{Operation, Response};
use data::SectorSet;
use data::space::{Counts, RegionId, RegionTable};
use meta::{HashKey, Shard};
use node::fetch::read_now;
use node::{ShardReplay, Walk};
use store::tree::{Fetch, Pages, Position, Root, TreeId, Walk as TreeWalk, WalkStep};
use types::{Errno, NodeId, SetAttr};

use super::super::boot;
use super::super::front::{bytes_of, name, no_change, payload};
use super::{Machine, World};
use crate::model::{CELL_SIZE, NAME_COUNT, PAGE_CELLS, PAGE_COUNT};

/// Bytes of a page.
const PAGE_BYTES: u64 = PAGE_CELLS as u64 * CELL_SIZE;
/// Ticks within which hands give back what lies idle in them.
const GIVE_BACK_TICKS: u64 = 20_000;

impl World {
    /// The maps of each owner's files name the sectors that its space has in use, no more and no fewer.
    pub(super) fn compare_space(&mut self) {
        for index in 0..self.machines.len() {
            let disks = &self.disks;
            let read = &mut |fetch: &Fetch| boot::read_page(disks, fetch);
            if let Err(text) = self.machines[index].node.read_all(read) {
                self.fail(format!("node {index}: {text}"));
                return;
            }
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

    /// The tree of each shard, with what it lacks, is the shard; its pages are good, and those that the space knows.
    pub(super) fn compare_trees(&mut self) {
        for index in 0..self.machines.len() {
            let disks = &self.disks;
            let read = &mut |fetch: &Fetch| boot::read_page(disks, fetch);
            if let Err(text) = self.machines[index].node.read_all(read) {
                self.fail(format!("node {index}: {text}"));
                return;
            }
            let log = &self.machines[index].node.log;
            let fs = log.journal.fs();
            let mut pages = SectorSet::new();
            let mut faults = Vec::new();
            for root in log.roots() {
                let shard = root.shard;
                let tree = TreeId { fs, shard };
                let mut walk = TreeWalk::new(tree, root, Position::BEGIN, 1);
                loop {
                    let step = walk.poll(&mut |run| {
                        pages.insert(run);
                        true
                    });
                    match step {
                        WalkStep::Fetch(fetch) => {
                            walk.on_read(fetch.id, Ok(boot::read_page(&self.disks, &fetch)));
                        }
                        WalkStep::Broken(broken) => faults.push(format!("{shard}: {broken:?}")),
                        WalkStep::Waiting | WalkStep::Leaf(_) => {}
                        WalkStep::Done => break,
                    }
                }
                let of_shard = self.machines[index].node.shards[usize::from(shard.0)].as_ref();
                let of_shard = &of_shard.expect("a root is of an own shard").shard;
                if let Err(text) = self.is_same(of_shard, root) {
                    faults.push(format!("{shard}: {text}"));
                }
            }
            if pages != log.space.pages().linked() {
                faults.push("pages of trees are not those that the space knows".to_owned());
            }
            if let Some(fault) = faults.first() {
                self.fail(format!("node {index}: {fault}"));
            }
        }
    }

    /// What a snapshot of the shard and its tree give is the shard, however little of it stays in memory.
    fn is_same(&self, shard: &Shard, root: &Root) -> Result<(), String> {
        self.is_same_with_room(shard, root, u64::MAX)?;
        self.is_same_with_room(shard, root, 0)
    }

    fn is_same_with_room(&self, shard: &Shard, root: &Root, room: u64) -> Result<(), String> {
        let fs = self.machines[0].node.view.fs;
        let again = Shard::new(shard.id(), HashKey(77));
        let mut replay = ShardReplay::new(fs, again).with_room(room);
        let read = &mut |fetch: &Fetch| Ok(boot::read_page(&self.disks, fetch));
        let mut result = Ok(());
        node::log::shard_snapshot(shard, Some(root), 4096, &mut |bytes| {
            if result.is_ok() {
                result = replay.apply(&bytes, read);
            }
        });
        let replayed = result.and_then(|()| replay.finish(read));
        let (mut again, _) = replayed.map_err(|error| error.to_string())?;
        let mut tree = Pages::new(1 << 20, 1);
        for ino in again.cold_inodes() {
            let loaded = read_now(fs, again.hash_key(), root, ino, &mut tree, read);
            again.take_in(ino.index(), loaded.map_err(|error| error.to_string())?);
        }
        let mutations = |shard: &Shard| {
            let mut all = Vec::new();
            shard.snapshot(&mut |mutation| all.push(mutation));
            all
        };
        match mutations(&again) == mutations(shard) {
            true => Ok(()),
            false => Err("its tree and what it lacks are not the shard".to_owned()),
        }
    }

    /// Everything is removed: every sector becomes free again, and there is room again.
    pub(super) fn give_all_back(&mut self) {
        if self.violation.is_some() || !self.options.has_little_space() {
            return;
        }
        self.empty_files();
        self.await_free();
        self.keep_promise();
        let reserve = self.options.space_reserve * self.machines.len() as u64;
        // Pages may take another region or two until the files are written.
        let most = self.sector_count() - reserve;
        let for_pages = self.for_pages();
        let mut left = most.min(self.free_everywhere().saturating_sub(for_pages));
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

    /// Some pages of each file are promised, and everything else is filled: then they can be written from everywhere, as
    /// often as one likes, by all nodes at once, while links break, also after all power has failed.
    fn keep_promise(&mut self) {
        let Some(promised) = self.promise_some() else {
            return;
        };
        let first = promised[0];
        for index in (0..self.machines.len()).rev() {
            self.fill_up(index, first);
        }
        self.find_promised();
        let pages = usize::try_from(first).expect("a few").min(PAGE_COUNT);
        for round in 0..3 {
            for index in 0..self.machines.len() {
                let written = self.write_back(index, 0, pages);
                if !matches!(written, Some(Response::Written(_)) | None) {
                    return self.fail(format!("{written:?} of {pages} promised pages"));
                }
                self.write_pages(index, 0, pages, "what is promised");
            }
            // What a broken link leaves in doubt comes back with the power.
            self.breaks_links = round < 2;
            self.write_at_once(&promised);
            self.breaks_links = false;
            self.settle();
            self.compare_space();
            if round == 1 && self.violation.is_none() {
                self.restart_all();
                self.fill_up(0, first);
                self.find_promised();
            }
        }
        self.empty_files();
        self.settle();
        self.await_free();
    }

    /// Promises pages to each file as far as there is room: how many. `None`: to the first there is no room for.
    fn promise_some(&mut self) -> Option<Vec<u64>> {
        let mut promised = Vec::new();
        for number in 0..self.options.file_count {
            let pages = 1 + self.prng.below(self.options.promise_pages);
            let file = self.machines[0].front.files[number];
            let there = self.free_everywhere();
            let allocate = Operation::Allocate {
                ino: file.ino,
                handle: file.writer,
                begin: 0,
                end: pages * PAGE_BYTES,
                keeps_size: self.prng.chance(1, 2),
            };
            // As many again are held back for writing over them, and of regions that come its owner grants no reserve.
            let all = 2 * pages + self.options.space_reserve + self.for_pages();
            match self.own_request(0, allocate) {
                Some(Response::Done) => promised.push(pages),
                Some(Response::Error(Errno::ENOSPC)) if number > 0 || there < all => break,
                None => return None,
                Some(response) => {
                    self.fail(format!("{response:?} of a promise of {pages} of {there}"));
                    return None;
                }
            }
        }
        (!promised.is_empty()).then_some(promised)
    }

    /// What is promised and has no sectors yet is free with its owner, or in the hands of nodes.
    fn find_promised(&mut self) {
        for index in 0..self.machines.len() {
            let log = &self.machines[index].node.log;
            let (promised, counts) = (log.promised(), log.space.counts());
            if promised.unpaid > counts.free + counts.pending + counts.granted {
                self.fail(format!(
                    "node {index}: {} sectors are promised: {counts:?}",
                    promised.unpaid
                ));
            }
        }
    }

    /// All nodes write what is promised to each file, in parts, at once; then it is written back.
    fn write_at_once(&mut self, promised: &[u64]) {
        for _ in 0..3 {
            let mut writes = Vec::new();
            let mut payloads = Vec::new();
            for index in 0..self.machines.len() {
                for (file, pages) in self.machines[index]
                    .front
                    .files
                    .clone()
                    .iter()
                    .zip(promised)
                {
                    let first = self.prng.below(*pages);
                    let count = 1 + self.prng.below(pages - first);
                    let count = usize::try_from(count).expect("a few");
                    let bytes = bytes_of(&vec![3; count * PAGE_CELLS]);
                    let Some(payload) = payload(&self.machines[index].node.memory, &bytes) else {
                        // The frames are in the hands of those before.
                        continue;
                    };
                    payloads.push((index, payload));
                    let write = Operation::Write {
                        ino: file.ino,
                        handle: file.writer,
                        offset: first * PAGE_BYTES,
                        payload,
                        is_write_back: false,
                        append: false,
                        sync: self.prng.chance(1, 4),
                        kill_set_id: false,
                    };
                    writes.push((index, write));
                }
            }
            let answers = self.own_requests(writes);
            for (index, payload) in payloads {
                self.machines[index].node.release_payload(payload);
            }
            let is_bad = |answer: &&Response| !matches!(answer, Response::Written(_));
            if let Some(bad) = answers.iter().find(is_bad) {
                return self.fail(format!("{bad:?} of promised pages written at once"));
            }
            self.settle();
        }
    }

    /// Writes to the first file behind these pages, until there is no more room.
    fn fill_up(&mut self, index: usize, pages: u64) {
        for page in pages..pages + self.sector_count() + 1 {
            match self.write_back(index, page, 1) {
                Some(Response::Written(_)) => {}
                Some(Response::Error(Errno::ENOSPC)) | None => return,
                Some(response) => return self.fail(format!("{response:?} where it is filled")),
            }
        }
    }

    /// Regions that pages of trees may take meanwhile.
    fn for_pages(&self) -> u64 {
        match self.options.round_ticks {
            0 => 0,
            _ => 2 * u64::from(self.options.region_sectors) * self.machines.len() as u64,
        }
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
                parent: self.machines[0].front.parent_of(number),
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
        self.write_pages(index, file, pages, "all is free");
    }

    /// Writes the first pages of a file and syncs it: that must not fail, and why.
    fn write_pages(&mut self, index: usize, file: usize, pages: usize, why: &str) {
        let [written, synced] = self.write_at(index, file, pages);
        if self.violation.is_none()
            && !matches!(
                (&written, &synced),
                (Some(Response::Written(_)), Some(Response::Done))
            )
        {
            let free: Vec<Counts> = self.counts();
            self.fail(format!(
                "{why}, and a write of node {index} is answered {written:?}, fsync {synced:?}: {free:?}"
            ));
        }
    }

    /// Writes the first pages of a file and syncs it: what is answered.
    fn write_at(&mut self, index: usize, file: usize, pages: usize) -> [Option<Response>; 2] {
        let open = self.machines[index].front.files[file];
        let bytes = bytes_of(&vec![1; pages * PAGE_CELLS]);
        let Some(payload) = self.payload_of(index, &bytes) else {
            return [None, None];
        };
        let file = (open.ino, open.writer);
        self.write_and_sync(index, file, payload)
    }

    /// The bytes in frames; pages that are cached give way. `None`: the run has failed.
    fn payload_of(&mut self, index: usize, bytes: &[u8]) -> Option<types::Span> {
        self.last_finished = self.now;
        while self.violation.is_none() {
            let payload = payload(&self.machines[index].node.memory, bytes);
            if payload.is_some() {
                return payload;
            }
            self.step();
        }
        None
    }

    /// Writes so many pages of the first file from a number on, which go to sectors and not into metadata as what somebody
    /// waits for: what is answered.
    fn write_back(&mut self, index: usize, page: u64, pages: usize) -> Option<Response> {
        let file = self.machines[index].front.files[0];
        let bytes = bytes_of(&vec![2; pages * PAGE_CELLS]);
        let payload = self.payload_of(index, &bytes)?;
        let write = Operation::Write {
            ino: file.ino,
            handle: file.writer,
            offset: page * PAGE_BYTES,
            payload,
            is_write_back: false,
            append: false,
            sync: false,
            kill_set_id: false,
        };
        let written = self.own_request(index, write);
        self.machines[index].node.release_payload(payload);
        self.settle();
        written
    }

    fn counts(&self) -> Vec<Counts> {
        let machines = self.machines.iter();
        machines.map(|m| m.node.log.space.counts()).collect()
    }

    /// What an owner holds is his by the table, too, at any time: so nobody else holds it, or gets it.
    pub(super) fn check_regions(&mut self) {
        let mut up = self.machines.iter().filter(|m| m.is_up());
        let Some(table) = up.clone().find_map(|m| m.node.log.table.as_ref()) else {
            return;
        };
        let holders: BTreeMap<RegionId, NodeId> = table.holders().collect();
        let wrong = up.find_map(|m| {
            let mut held = m.node.log.space.held_regions();
            let region = held.find(|region| holders.get(region) != Some(&m.id))?;
            Some((m.id, region))
        });
        if let Some((id, region)) = wrong {
            let holder = holders.get(&region);
            self.fail(format!(
                "{id:?} holds {region:?}, which is {holder:?}'s by the table"
            ));
        }
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
            let logs = self.machines.iter().map(|m| &m.node.log);
            let pages: u64 = logs.map(|log| log.space.pages().counts().total).sum();
            let free = unheld + held + pages;
            if free == all {
                return;
            }
            if self.now > until {
                let counts = self.counts();
                return self.fail(match all.checked_sub(free) {
                    Some(missing) => format!(
                        "of {all} sectors {missing} are not free again, {unheld} are held by nobody: {counts:?}"
                    ),
                    None => format!(
                        "of {all} sectors {} are two owners', {pages} are for pages: {counts:?}",
                        free - all
                    ),
                });
            }
            self.step();
        }
    }
}

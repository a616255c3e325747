//! Free sectors in a node's hands (the twin of `os::daemon::space::Hands`).

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use client::env::{Grants, TakenRun, WantedRun};
use data::stripe::Striping;
use data::write::{Dirty, plan_write};
use data::{Hand, SectorSet};
use types::{Instant, NodeId, NsdId, Run};

/// All grants in a node's hands.
#[derive(Debug)]
pub struct Hands {
    owners: RefCell<BTreeMap<NodeId, Hand>>,
    /// Sectors of writes without an answer, until their store is burnt.
    doubts: RefCell<SectorSet>,
    striping: Striping,
    /// Now: the calls of `Grants` do not bring it.
    pub now: Cell<Instant>,
}

impl Hands {
    /// Nothing in hand.
    pub fn new(nsds: &[NsdId], block_size: u32) -> Self {
        Self {
            owners: RefCell::default(),
            doubts: RefCell::default(),
            striping: Striping::even(nsds, block_size),
            now: Cell::default(),
        }
    }

    /// Acts on the hand of an owner.
    pub fn with<T>(&self, owner: NodeId, act: impl FnOnce(&mut Hand) -> T) -> T {
        act(self.owners.borrow_mut().entry(owner).or_default())
    }

    /// Owners that have been asked.
    pub fn owners(&self) -> Vec<NodeId> {
        self.owners.borrow().keys().copied().collect()
    }

    /// A write to these sectors has no answer, and will have none.
    pub fn in_doubt(&self, run: Run) {
        self.doubts.borrow_mut().insert(run);
    }

    /// The process that served these NSDs has ended, and with it every write that it was sent.
    pub fn server_ended(&self, nsds: &[NsdId]) {
        for hand in self.owners.borrow_mut().values_mut() {
            hand.ended(|run| nsds.contains(&run.at.nsd));
        }
    }

    /// Sectors set aside for flushes to come.
    pub fn reserved(&self) -> u64 {
        let owners = self.owners.borrow();
        owners.values().map(Hand::reserved).sum()
    }

    /// Asserts what holds of every hand.
    pub fn check(&self) {
        self.owners.borrow().values().for_each(Hand::check);
    }
}

impl Grants for Hands {
    fn reserve(&self, owner: NodeId, sectors: u64) -> bool {
        self.with(owner, |hand| match hand.reserve(sectors) {
            Ok(()) => true,
            Err(more) => {
                hand.want(more.sectors);
                false
            }
        })
    }

    fn unreserve(&self, owner: NodeId, sectors: u64) {
        if sectors > 0 {
            self.with(owner, |hand| hand.unreserve(sectors));
        }
    }

    fn take(&self, owner: NodeId, wanted: &[WantedRun], reserved: u64) -> Option<Vec<TakenRun>> {
        let needed: u64 = wanted.iter().map(|w| u64::from(w.count)).sum();
        let dirty: Vec<Dirty<'_>> = wanted
            .iter()
            .map(|w| Dirty {
                ino: w.ino,
                striping: &self.striping,
                file_sector: w.file_sector,
                count: w.count,
            })
            .collect();
        let now = self.now.get();
        let writes = self.with(owner, |hand| {
            let plan = hand.take(now, needed, reserved, |pool, part| {
                plan_write(&dirty, pool, part)
            });
            if plan.is_none() {
                hand.want(needed + needed / 16 + 1);
            }
            plan
        })?;
        let pieces = writes.into_iter().flat_map(|write| write.pieces);
        let taken = pieces.map(|piece| TakenRun {
            wanted: piece.dirty,
            file_sector: piece.file_sector,
            count: piece.data,
            run: Run {
                at: piece.at,
                count: piece.data + piece.checksums,
            },
        });
        Some(taken.collect())
    }

    fn committed(&self, owner: NodeId, runs: &[Run]) {
        self.with(owner, |hand| {
            runs.iter().for_each(|run| hand.committed(*run));
        });
    }

    fn burn(&self, owner: NodeId, runs: &[Run]) {
        for run in runs {
            let doubts = {
                let mut doubts = self.doubts.borrow_mut();
                let found = doubts.intersection(*run);
                found.iter().for_each(|part| doubts.remove(*part));
                found
            };
            self.with(owner, |hand| match doubts.is_empty() {
                true => hand.discard(*run),
                false => hand.burn(*run),
            });
        }
    }

    fn discard(&self, owner: NodeId, runs: &[Run]) {
        self.with(owner, |hand| runs.iter().for_each(|run| hand.discard(*run)));
    }
}

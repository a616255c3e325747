//! Free sectors in a node's hands (the twin of `os::daemon::space`).

use std::cell::RefCell;
use std::collections::BTreeMap;

use client::env::{Grants, TakenRun, WantedRun};
use data::grants::{GrantPool, Levels, Reservation};
use data::stripe::Striping;
use data::write::{Dirty, plan_write};
use types::{Grant, NodeId, NsdId, Run};

/// The grants of one owner.
#[derive(Debug)]
struct Hand {
    pool: GrantPool,
    reservation: Reservation,
    is_asking: bool,
}

/// All grants in a node's hands.
#[derive(Debug)]
pub struct Hands {
    owners: RefCell<BTreeMap<NodeId, Hand>>,
    striping: Striping,
    ask_sectors: u64,
}

impl Hands {
    /// Nothing in hand; owners are asked for `ask_sectors` at once.
    pub fn new(nsds: &[NsdId], block_size: u32, ask_sectors: u64) -> Self {
        Self {
            owners: RefCell::default(),
            striping: Striping::even(nsds, block_size),
            ask_sectors,
        }
    }

    fn with<T>(&self, owner: NodeId, act: impl FnOnce(&mut Hand) -> T) -> T {
        let mut owners = self.owners.borrow_mut();
        let levels = Levels {
            low: self.ask_sectors / 4,
            target: self.ask_sectors,
        };
        let hand = owners.entry(owner).or_insert_with(|| Hand {
            pool: GrantPool::new(levels),
            reservation: Reservation::default(),
            is_asking: false,
        });
        act(hand)
    }

    /// An owner is to be asked: for how many sectors, unless that is under way.
    pub fn begin_asking(&self, owner: NodeId, sectors: u64) -> Option<u64> {
        let is_new = self.with(owner, |hand| !std::mem::replace(&mut hand.is_asking, true));
        is_new.then_some(sectors.max(self.ask_sectors))
    }

    /// Owners of whose sectors few are left.
    pub fn low(&self) -> Vec<NodeId> {
        let owners = self.owners.borrow();
        let is_low = |hand: &Hand| hand.pool.unreserved() < self.ask_sectors / 4;
        owners
            .iter()
            .filter(|(_, hand)| is_low(hand))
            .map(|(owner, _)| *owner)
            .collect()
    }

    /// An owner answered.
    pub fn on_grants(&self, owner: NodeId, grants: &[Grant]) {
        self.with(owner, |hand| {
            hand.is_asking = false;
            for grant in grants {
                hand.pool.add(grant);
            }
        });
    }

    /// Sectors set aside for flushes to come.
    pub fn reserved(&self) -> u64 {
        let owners = self.owners.borrow();
        owners.values().map(|h| h.reservation.sectors()).sum()
    }

    /// Asserts what holds of every pool.
    pub fn check(&self) {
        self.owners.borrow().values().for_each(|h| h.pool.check());
    }
}

impl Grants for Hands {
    fn reserve(&self, owner: NodeId, sectors: u64) -> bool {
        self.with(owner, |hand| match hand.pool.reserve(sectors) {
            Ok(more) => {
                hand.reservation.merge(more);
                true
            }
            Err(_) => false,
        })
    }

    fn unreserve(&self, owner: NodeId, sectors: u64) {
        if sectors > 0 {
            self.with(owner, |hand| {
                let part = hand.reservation.split(sectors);
                hand.pool.release(part);
            });
        }
    }

    fn take(&self, owner: NodeId, wanted: &[WantedRun], reserved: u64) -> Option<Vec<TakenRun>> {
        self.with(owner, |hand| {
            let needed: u64 = wanted.iter().map(|w| u64::from(w.count)).sum();
            let in_hand = hand.reservation.sectors();
            let mut part = hand.reservation.split(reserved.min(in_hand));
            if part.sectors() < needed {
                match hand.pool.reserve(needed - part.sectors()) {
                    Ok(more) => part.merge(more),
                    Err(_) => {
                        hand.reservation.merge(part);
                        return None;
                    }
                }
            }
            let dirty: Vec<Dirty<'_>> = wanted
                .iter()
                .map(|w| Dirty {
                    ino: w.ino,
                    striping: &self.striping,
                    file_sector: w.file_sector,
                    count: w.count,
                })
                .collect();
            let writes = plan_write(&dirty, &mut hand.pool, &mut part);
            hand.pool.release(part);
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
        })
    }

    fn committed(&self, owner: NodeId, runs: &[Run]) {
        self.with(owner, |hand| {
            runs.iter().for_each(|run| hand.pool.committed(*run));
        });
    }

    fn burn(&self, owner: NodeId, runs: &[Run]) {
        self.with(owner, |hand| {
            runs.iter().for_each(|run| hand.pool.burn(*run));
        });
    }
}

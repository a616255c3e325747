//! Free sectors: what owners granted to this node's clients, and the regions of this node as owner.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use client::env::{Grants, TakenRun, WantedRun};
use client::message::{Answer, Ask, Body};
use client::slice::{Input, SLICE_COUNT};
use data::grants::{GrantPool, Levels, Reservation};
use data::stripe::Striping;
use data::write::{Dirty, plan_write};
use node::Message;
use types::{NodeId, NsdId, Run, ShardId};

use super::work::Item;
use super::{Daemon, lock};

/// Sectors asked for at once: 64 MiB.
const ASK_SECTORS: u64 = 16 << 10;
/// Regions taken at once.
const REGIONS_AT_ONCE: usize = 4;

/// The grants of one owner.
#[derive(Debug)]
struct Hand {
    pool: GrantPool,
    reservation: Reservation,
    is_asking: bool,
}

/// All grants in this node's hands.
#[derive(Debug)]
pub(super) struct Hands {
    owners: Mutex<BTreeMap<NodeId, Hand>>,
    striping: Striping,
}

impl Hands {
    pub(super) fn new(nsds: &[NsdId], block_size: u32) -> Self {
        Self {
            owners: Mutex::default(),
            striping: Striping::even(nsds, block_size),
        }
    }

    fn with<T>(&self, owner: NodeId, act: impl FnOnce(&mut Hand) -> T) -> T {
        let mut owners = lock(&self.owners);
        let hand = owners.entry(owner).or_insert_with(|| Hand {
            pool: GrantPool::new(Levels {
                low: ASK_SECTORS / 4,
                target: ASK_SECTORS,
            }),
            reservation: Reservation::default(),
            is_asking: false,
        });
        act(hand)
    }

    /// Sectors in hand and not reserved.
    pub(super) fn unreserved(&self) -> u64 {
        lock(&self.owners)
            .values()
            .map(|h| h.pool.unreserved())
            .sum()
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
            let mut part = hand
                .reservation
                .split(reserved.min(hand.reservation.sectors()));
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
            Some(
                pieces
                    .map(|piece| TakenRun {
                        wanted: piece.dirty,
                        file_sector: piece.file_sector,
                        count: piece.data,
                        run: Run {
                            at: piece.at,
                            count: piece.data + piece.checksums,
                        },
                    })
                    .collect(),
            )
        })
    }

    fn committed(&self, owner: NodeId, runs: &[Run]) {
        self.with(owner, |hand| {
            runs.iter().for_each(|run| hand.pool.committed(*run))
        });
    }

    fn burn(&self, owner: NodeId, runs: &[Run]) {
        self.with(owner, |hand| {
            runs.iter().for_each(|run| hand.pool.burn(*run))
        });
    }
}

impl Daemon {
    /// Asks an owner for sectors, unless a question is under way.
    pub(super) fn want_space(
        self: &Arc<Self>,
        owner: NodeId,
        sectors: u64,
        items: &mut std::collections::VecDeque<Item>,
    ) {
        let is_new = self
            .hands
            .with(owner, |hand| !std::mem::replace(&mut hand.is_asking, true));
        if !is_new {
            return;
        }
        let Some(shard) = self.shard_of(owner) else {
            return;
        };
        let call = self.draw_call();
        let ask = Ask::Grants {
            sectors: sectors.max(ASK_SECTORS),
        };
        self.call_owner(call, shard, ask, items);
    }

    /// Keeps some sectors of each owner in hand, ahead of need.
    pub(super) fn top_up(self: &Arc<Self>, items: &mut std::collections::VecDeque<Item>) {
        let low: Vec<NodeId> = {
            let owners = lock(&self.hands.owners);
            let is_low = |hand: &Hand| hand.pool.unreserved() < ASK_SECTORS / 4;
            owners
                .iter()
                .filter(|(_, hand)| is_low(hand))
                .map(|(owner, _)| *owner)
                .collect()
        };
        for owner in low {
            self.want_space(owner, ASK_SECTORS, items);
        }
    }

    /// An owner answered `want_space`.
    pub(super) fn on_grants(
        self: &Arc<Self>,
        shard: ShardId,
        answer: Answer,
        items: &mut std::collections::VecDeque<Item>,
    ) {
        let owner = self.owner(shard);
        let grants = match answer.body {
            Body::Grants { grants } => grants,
            _ => Vec::new(),
        };
        let is_there = !grants.is_empty();
        self.hands.with(owner, |hand| {
            hand.is_asking = false;
            for grant in &grants {
                hand.pool.add(grant);
            }
        });
        for slice in 0..SLICE_COUNT {
            items.push_back(Item::Client(slice, Input::Space(owner, is_there)));
        }
    }

    /// Takes regions where this owner is short of them: at once when the table is here, else by asking.
    /// True: an answer is awaited.
    pub(super) fn take_regions(self: &Arc<Self>) -> bool {
        let short = lock(&self.log).short_nsds();
        if short.is_empty() {
            return false;
        }
        let table_owner = self.owner(ShardId(0));
        if table_owner == self.me.node {
            let mut log = lock(&self.log);
            for nsd in short {
                let (regions, _) = log.take_regions(self.me.node, Some(nsd), REGIONS_AT_ONCE);
                log.adopt_regions(&regions);
            }
            return false;
        }
        let mut asking = lock(&self.region_asks);
        if asking.is_empty() {
            for nsd in short {
                let id = self.draw_call();
                let count = u32::try_from(REGIONS_AT_ONCE).expect("a small number");
                let message = Message::TakeRegions {
                    id,
                    nsd: Some(nsd),
                    count,
                };
                self.send(table_owner, &message);
                asking.insert(id, message);
            }
        }
        !asking.is_empty()
    }
}

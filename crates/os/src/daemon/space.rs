//! Free sectors: what owners granted to this node's clients, and the regions of this node as owner.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use client::env::{Grants, TakenRun, WantedRun};
use client::message::{Answer, Ask, Body};
use client::slice::{Input, SLICE_COUNT};
use data::grants::{GrantPool, Levels, Reservation};
use data::stripe::Striping;
use data::write::{Dirty, plan_write};
use node::Message;
use types::{Grant, Layout, NodeId, NsdId, Run, SECTOR_SIZE, ShardId};

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
    /// A question is under way, for sectors on these NSDs (empty: on all).
    asking: Option<Vec<NsdId>>,
    /// NSDs of a file's layout on which little or nothing is left in hand: asked for next.
    short: Vec<NsdId>,
    /// NSDs on which the owner had nothing when it was asked last: layouts do without them.
    full: Vec<NsdId>,
}

/// All grants in this node's hands.
#[derive(Debug)]
pub(super) struct Hands {
    owners: Mutex<BTreeMap<NodeId, Hand>>,
    nsds: Vec<NsdId>,
    striping: Striping,
    /// Some hand is low: looked at without its lock.
    is_low: AtomicBool,
}

impl Hands {
    pub(super) fn new(nsds: &[NsdId], block_size: u32) -> Self {
        Self {
            owners: Mutex::default(),
            nsds: nsds.to_vec(),
            striping: Striping::even(nsds, block_size),
            is_low: AtomicBool::new(false),
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
            asking: None,
            short: Vec::new(),
            full: Vec::new(),
        });
        act(hand)
    }

    /// How a file of this layout is striped; the default's is at hand.
    fn striping_of(&self, layout: &Layout) -> Option<Striping> {
        if layout.is_default() {
            return None;
        }
        let named = self.named(layout);
        let nsds = if named.is_empty() { &self.nsds } else { &named };
        let block_size = self.striping.block_sectors() * u32::try_from(SECTOR_SIZE).expect("4096");
        let block_size = layout.block_size().unwrap_or(block_size);
        Some(Striping::even(nsds, block_size))
    }

    /// The NSDs that the layout names and that are there.
    fn named(&self, layout: &Layout) -> Vec<NsdId> {
        let nsds = layout.nsds().iter().copied();
        nsds.filter(|nsd| self.nsds.contains(nsd)).collect()
    }

    /// Some hand has become low since the last call.
    pub(super) fn take_low(&self) -> bool {
        self.is_low.load(Ordering::Relaxed) && self.is_low.swap(false, Ordering::Relaxed)
    }

    /// Sectors in hand and not reserved.
    pub(super) fn unreserved(&self) -> u64 {
        lock(&self.owners)
            .values()
            .map(|h| h.pool.unreserved())
            .sum()
    }
}

impl Hand {
    fn is_low(&self) -> bool {
        self.pool.unreserved() < ASK_SECTORS / 4 || !self.short.is_empty()
    }

    /// The owner's answer is here.
    fn take_up(&mut self, grants: &[Grant]) {
        let asked = self.asking.take().unwrap_or_default();
        let has = |nsd: &NsdId| grants.iter().any(|grant| grant.run.at.nsd == *nsd);
        self.full.retain(|nsd| !has(nsd));
        if !asked.iter().any(has) {
            self.full.extend(asked);
            self.full.sort_unstable();
            self.full.dedup();
        }
        for grant in grants {
            self.pool.add(grant);
        }
    }
}

impl Hands {
    /// Whether `needed` sectors of a file of this layout can be taken where it wants them; notes where they are
    /// short. NSDs that the owner has nothing on do not count: then the bytes go elsewhere.
    fn has_room(&self, hand: &mut Hand, layout: &Layout, needed: u64) -> bool {
        let mut named = self.named(layout);
        named.retain(|nsd| !hand.full.contains(nsd));
        if named.is_empty() {
            return true;
        }
        let is_there = hand.pool.has_room_on(&named, needed);
        if hand.pool.free_on(&named) < needed + ASK_SECTORS / 2 {
            hand.short = named;
        }
        is_there
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
            // All of one file.
            let layout = wanted.first().map_or_else(Layout::default, |w| w.layout);
            if !self.has_room(hand, &layout, needed) {
                return None;
            }
            let striping = self.striping_of(&layout);
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
                    striping: striping.as_ref().unwrap_or(&self.striping),
                    file_sector: w.file_sector,
                    count: w.count,
                })
                .collect();
            let writes = plan_write(&dirty, &mut hand.pool, &mut part);
            hand.pool.release(part);
            if hand.is_low() {
                self.is_low.store(true, Ordering::Relaxed);
            }
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
        let Some(shard) = self.shard_of(owner) else {
            return;
        };
        let nsds = self.hands.with(owner, |hand| {
            let nsds = hand
                .asking
                .is_none()
                .then(|| std::mem::take(&mut hand.short))?;
            hand.asking = Some(nsds.clone());
            Some(nsds)
        });
        let Some(nsds) = nsds else {
            return;
        };
        let call = self.draw_call();
        let ask = Ask::Grants {
            sectors: sectors.max(ASK_SECTORS),
            nsds,
        };
        self.call_owner(call, shard, ask, items);
    }

    /// Keeps some sectors of each owner in hand, ahead of need.
    pub(super) fn top_up(self: &Arc<Self>, items: &mut std::collections::VecDeque<Item>) {
        let low: Vec<NodeId> = {
            let owners = lock(&self.hands.owners);
            owners
                .iter()
                .filter(|(_, hand)| hand.is_low())
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
        self.hands.with(owner, |hand| hand.take_up(&grants));
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

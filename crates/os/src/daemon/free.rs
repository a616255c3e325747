//! How much space the file system has: the sum over all owners, as statfs shows it, and the walk that compares
//! what owners count with what their files use.
//!
//! Nothing is sent while nobody asks. An answer of another owner serves for `FRESH`; who asks later waits for new
//! ones, `PATIENCE` at the most, and then gets the last known.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::{Arc, Mutex, mpsc};

use client::request::{Response, Space, Ticket};
use data::space::RegionTable;
use node::OwnerLog;
use node::message::{FreeSpace, Message};
use types::limits::OVERWRITE_MARGIN;
use types::{Duration, Instant, NodeId, NsdId};

use super::start::SPACE_RESERVE;
use super::{Daemon, lock};
use crate::clock;

/// How old another owner's answer may be.
const FRESH: Duration = Duration::from_millis(200);
/// How long statfs waits for other owners.
const PATIENCE: Duration = Duration::from_secs(1);

/// What other owners have told.
#[derive(Debug, Default)]
pub(super) struct FreeSums {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    told: BTreeMap<NodeId, (Instant, FreeSpace)>,
    /// Owners that have not answered the question of this name.
    asked: BTreeMap<NodeId, u64>,
    since: Instant,
    waiting: Vec<Asker>,
}

/// Who wants the sum.
#[derive(Debug)]
pub(super) enum Asker {
    /// The kernel.
    Kernel(Ticket),
    /// The control socket; owners that have not answered are named to it.
    Control(mpsc::Sender<(Space, Vec<NodeId>)>),
}

impl Daemon {
    /// STATFS.
    pub(super) fn stat_fs(self: &Arc<Self>, ticket: Ticket) {
        self.sum_space(Asker::Kernel(ticket));
    }

    /// Tells `asker` what room there is, at once or when the other owners have told, or have not in time.
    pub(super) fn sum_space(self: &Arc<Self>, asker: Asker) {
        let now = clock::now();
        let others = self.other_owners();
        let mut ask = Vec::new();
        {
            let mut state = lock(&self.free.state);
            let is_fresh = |owner: &NodeId| {
                let told = state.told.get(owner);
                told.is_some_and(|(at, _)| now.since(*at) < FRESH)
            };
            if !others.iter().all(is_fresh) {
                state.waiting.push(asker);
                if state.asked.is_empty() {
                    state.since = now;
                    for owner in others {
                        let id = self.draw_call();
                        state.asked.insert(owner, id);
                        ask.push((owner, id));
                    }
                }
                drop(state);
                for (owner, id) in ask {
                    self.send(owner, &Message::AskFree { id });
                }
                return;
            }
        }
        self.reply_stat_fs(vec![asker]);
    }

    fn other_owners(&self) -> Vec<NodeId> {
        let me = self.me.node;
        let mut others = self.config.view.owners.clone();
        others.sort_unstable();
        others.dedup();
        others.retain(|owner| *owner != me && *owner != NodeId::default());
        others
    }

    /// Who waits for the sum of free space, and since when.
    pub(super) fn sum_waiters(&self) -> Option<(String, Instant)> {
        let state = lock(&self.free.state);
        let owners: Vec<String> = state.asked.keys().map(|node| node.0.to_string()).collect();
        let count = state.waiting.len();
        let what = format!("{count} statfs wait for the owners {}", owners.join(", "));
        (count > 0).then_some((what, state.since))
    }

    /// Another owner has told.
    pub(super) fn on_free(self: &Arc<Self>, from: NodeId, id: u64, free: FreeSpace) {
        let waiting = {
            let mut state = lock(&self.free.state);
            if state.asked.get(&from) != Some(&id) {
                return;
            }
            state.asked.remove(&from);
            // From the question on: what has happened since may be in it or not.
            let since = state.since;
            state.told.insert(from, (since, free));
            if !state.asked.is_empty() {
                return;
            }
            std::mem::take(&mut state.waiting)
        };
        self.reply_stat_fs(waiting);
    }

    /// Owners that do not answer are not waited for any longer.
    pub(super) fn end_slow_sums(&self) {
        let waiting = {
            let mut state = lock(&self.free.state);
            if state.asked.is_empty() || clock::now().since(state.since) < PATIENCE {
                return;
            }
            state.asked.clear();
            std::mem::take(&mut state.waiting)
        };
        self.reply_stat_fs(waiting);
    }

    fn reply_stat_fs(&self, askers: Vec<Asker>) {
        if askers.is_empty() {
            return;
        }
        let now = clock::now();
        let mut told = vec![self.own_free()];
        let mut silent = self.other_owners();
        let state = lock(&self.free.state);
        for (owner, (at, free)) in &state.told {
            told.push(*free);
            // An answer to the last question, or one that serves without a question.
            if *at >= state.since || now.since(*at) < FRESH {
                silent.retain(|node| node != owner);
            }
        }
        drop(state);
        let nsds = self.config.view.nsds.iter();
        let sector_count: u64 = nsds.map(|n| n.sector_count - n.data_begin).sum();
        let mut space = sum_of(&told, sector_count);
        // What applications of this node have written counts at once, as on a local file system; what those of others have, with its Commit.
        let coming = self.hands.with(|hands| hands.coming());
        for count in [
            &mut space.sector_free_count,
            &mut space.sector_available_count,
        ] {
            *count = count.saturating_sub(coming);
        }
        for asker in askers {
            match asker {
                Asker::Kernel(ticket) => self.answer(ticket, &Response::Space(space)),
                // It may have stopped waiting.
                Asker::Control(told) => drop(told.send((space, silent.clone()))),
            }
        }
    }

    /// What this owner adds to the sum.
    pub(super) fn own_free(&self) -> FreeSpace {
        let (counts, unheld, promised) = {
            let log = lock(&self.log);
            let unheld = log.table.as_ref().map_or(0, RegionTable::free_sectors);
            (log.space.counts(), unheld, log.promised())
        };
        let shards = self.shards.iter().flatten();
        let there = counts.free + counts.pending + counts.granted;
        FreeSpace {
            held: there.saturating_sub(promised.unpaid),
            unheld,
            margin: promised.margin(),
            inodes: shards.map(|slice| lock(slice).shard.inode_count()).sum(),
        }
    }

    /// Sectors by NSD and state, and whether what the files of this owner use is what its space says: as JSON,
    /// for `gupfs dump space`. Blocks.
    pub(super) fn space_json(&self) -> String {
        let walked = self.walk_space(|log| {
            let nsds = self.config.view.nsds.iter();
            let nsds = nsds.map(|nsd| nsd_json(log, nsd.id));
            nsds.collect::<Vec<_>>().join(",")
        });
        let Some((walk, nsds)) = walked else {
            return "{\"error\":\"the daemon stops\"}".to_owned();
        };
        let promised = lock(&self.log).promised();
        let mut hands = Vec::new();
        let now = clock::now();
        self.hands.each(|owner, hand| {
            let counts = hand.pool().counts();
            let idle_ms = hand.idle_since().map(|at| now.since(at).0 / 1_000_000);
            hands.push(format!(
                "{{\"owner\":{},\"free\":{},\"reserved\":{},\"promised\":{},\"taken\":{},\"burnt\":{},\"spent\":{},\
                 \"is_asking\":{},\"idle_ms\":{}}}",
                owner.0,
                counts.free,
                counts.reserved,
                counts.promised,
                counts.taken,
                counts.burnt,
                counts.spent,
                hand.is_asking(),
                idle_ms.map_or_else(|| "null".to_owned(), |ms| ms.to_string()),
            ));
        });
        let away = self.hands.with(|hands| {
            hands
                .away()
                .map(|owner| owner.0.to_string())
                .collect::<Vec<_>>()
        });
        let mut out = String::new();
        let _ = write!(
            out,
            "{{\"nsds\":[{}],\"promised\":{{\"total\":{},\"unpaid\":{}}},\"in_hand\":[{}],\"away\":[{}],\"walk\":{{\"mapped\":{},\"used\":{},\"leaked\":{},\
             \"missing\":{},\"twice\":{}}}}}",
            nsds,
            promised.total,
            promised.unpaid,
            hands.join(","),
            away.join(","),
            walk.mapped,
            walk.used,
            walk.leaked,
            walk.missing,
            walk.twice,
        );
        out
    }
}

/// What statfs shows where owners have told this. What is available is what an fallocate may promise, and what other
/// writes find: not an owner's reserve, and not what it holds back beside its promises, or will beside its first.
fn sum_of(owners: &[FreeSpace], sector_count: u64) -> Space {
    let sum = |of: fn(&FreeSpace) -> u64| owners.iter().map(of).sum::<u64>();
    let (held, unheld) = (sum(|free| free.held), sum(|free| free.unheld));
    // Answers of different moments may count a region twice that changed hands between.
    let sector_free_count = (held + unheld).min(sector_count);
    let reserved = sum(|free| free.held.min(SPACE_RESERVE));
    // Who holds less than its reserve completes it with the next region.
    let missing = owners.len() as u64 * SPACE_RESERVE - reserved;
    let next = owners
        .iter()
        .map(|free| OVERWRITE_MARGIN.saturating_sub(free.margin));
    let margins = sum(|free| free.margin) + next.max().unwrap_or(0);
    let unavailable = reserved + missing.min(unheld) + margins;
    Space {
        sector_count,
        sector_free_count,
        sector_available_count: sector_free_count.saturating_sub(unavailable),
        inode_count: sum(|free| free.inodes),
    }
}

/// Sectors of an NSD by state.
fn nsd_json(log: &OwnerLog, nsd: NsdId) -> String {
    let counts = log.space.counts_by_nsd(nsd);
    let (held, free) = log.space.regions_of(nsd);
    let unheld = log.table.as_ref().map(|table| table.free_count(nsd));
    format!(
        "{{\"nsd\":{},\"regions_held\":{held},\"regions_free\":{free},\"regions_unheld\":{},\
         \"held\":{},\"free\":{},\"granted\":{},\"used\":{},\"pending\":{},\"quarantined\":{}}}",
        nsd.0,
        unheld.map_or_else(|| "null".to_owned(), |count| count.to_string()),
        counts.total,
        counts.free,
        counts.granted,
        counts.used,
        counts.pending,
        counts.quarantined,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is free and what is available of owners that hold and hold back so much, and so much that nobody holds.
    fn sums(owners: &[(u64, u64)], unheld: u64) -> (u64, u64) {
        let mut told: Vec<FreeSpace> = owners
            .iter()
            .map(|(held, margin)| FreeSpace {
                held: *held,
                unheld: 0,
                margin: *margin,
                inodes: 1,
            })
            .collect();
        told[0].unheld = unheld;
        let space = sum_of(&told, 1_000_000);
        assert_eq!(space.inode_count, owners.len() as u64);
        (space.sector_free_count, space.sector_available_count)
    }

    #[test]
    fn what_is_kept_back_is_not_available() {
        let kept = SPACE_RESERVE + OVERWRITE_MARGIN;
        assert_eq!(sums(&[(0, 0)], 50_000), (50_000, 50_000 - kept));
        assert_eq!(sums(&[(50_000, 0)], 0), (50_000, 50_000 - kept));
        assert_eq!(sums(&[(100, 0)], 49_900), (50_000, 50_000 - kept));
        // Its first promises have the margin already.
        assert_eq!(sums(&[(50_000, 1000)], 0), (50_000, 50_000 - kept));
        assert_eq!(sums(&[(50_000, 1024)], 0), (50_000, 50_000 - kept));
        // Each owner has a reserve, and each that has promised a margin; one more for the next who does.
        let two = 2 * SPACE_RESERVE + OVERWRITE_MARGIN;
        assert_eq!(sums(&[(9000, 0), (9000, 0)], 0), (18_000, 18_000 - two));
        assert_eq!(
            sums(&[(9000, 1024), (9000, 0)], 0),
            (18_000, 18_000 - two - OVERWRITE_MARGIN)
        );
        let both = 18_000 - two - OVERWRITE_MARGIN;
        assert_eq!(sums(&[(9000, 1024), (9000, 1024)], 0), (18_000, both));
    }

    #[test]
    fn what_is_full_has_nothing_available() {
        assert_eq!(sums(&[(0, 0)], 0), (0, 0));
        assert_eq!(sums(&[(200, 0)], 0), (200, 0));
        // An owner that holds little does not take another's away.
        let left = 9000 - SPACE_RESERVE - OVERWRITE_MARGIN;
        assert_eq!(sums(&[(10, 0), (9000, 0)], 0), (9010, left));
    }
}

//! The driver of checkpoints (the twin of `os::daemon::checkpoints`): a step at a time, so that operations come in between.

use node::keeper::{Act, Keeper, PlainHost, ShardSize};
use store::tree::{FetchId, Unreadable, WriteId};
use types::frame::FRAME_SIZE;
use types::{Location, NsdId};

use super::transfer::{Done, Kind, Source};
use super::{Later, Node, Out};

/// Milliseconds between two steps.
const STEP_MS: u64 = 1;

/// See the module.
#[derive(Debug)]
pub(super) struct Checkpoints {
    keeper: Keeper,
    round_ticks: u64,
    /// A step is on its way.
    is_due: bool,
    /// How many NSDs are still being flushed, and which have failed.
    flushing: (usize, Vec<NsdId>),
}

impl Checkpoints {
    pub(super) fn new(round_ticks: u64) -> Self {
        Self {
            keeper: Keeper::new(),
            round_ticks,
            is_due: false,
            flushing: (0, Vec::new()),
        }
    }
}

impl Node {
    /// Rounds begun, checkpoints made, those that failed, and rounds that moved pages out of regions.
    pub fn checkpoint_counts(&self) -> [u64; 4] {
        let counters = self.checkpoints.keeper.counters();
        let moved = counters.evacuations;
        [
            counters.rounds,
            counters.checkpoints,
            counters.failures,
            moved,
        ]
    }

    /// Time has passed.
    pub(super) fn tick_checkpoints(&mut self) {
        let slices = self.shards.iter().flatten();
        let sizes: Vec<ShardSize> = slices.map(|s| ShardSize::of(&s.shard)).collect();
        let has_unsaved = sizes.iter().any(|size| size.unsaved > 0);
        self.rationed(|node| {
            let keeper = &mut node.checkpoints.keeper;
            keeper.on_tick(node.now, sizes, &mut node.log);
        });
        let checkpoints = &mut self.checkpoints;
        let ticks = checkpoints.round_ticks;
        if ticks > 0 && self.tick_count.is_multiple_of(ticks) && has_unsaved {
            checkpoints.keeper.request_round();
        }
        if checkpoints.keeper.is_busy() {
            self.step_checkpoints_later();
        }
    }

    fn step_checkpoints_later(&mut self) {
        if !std::mem::replace(&mut self.checkpoints.is_due, true) {
            self.out.push(Out::Later(STEP_MS, Later::Checkpoints));
        }
    }

    /// One step.
    pub(super) fn on_checkpoints_due(&mut self) {
        self.checkpoints.is_due = false;
        let act = self.rationed(|node| {
            let mut host = PlainHost {
                shards: &mut node.shards,
                log: &mut node.log,
            };
            node.checkpoints.keeper.step(node.now, &mut host)
        });
        match act {
            Act::Read(fetch) => {
                let source = Source::Count(u64::from(fetch.sectors));
                self.sectors(Kind::Read, fetch.at, source, Done::PageRead(fetch.id));
            }
            Act::Write(write) => {
                let (at, id) = (write.page.at, write.page.id);
                let bytes = write.page.page.bytes().to_vec();
                assert!(bytes.len().is_multiple_of(FRAME_SIZE));
                let done = Done::PageWrite(write.checkpoint, (id, at.nsd));
                self.sectors(Kind::Write, at, Source::Page(bytes), done);
            }
            Act::Flush(nsds) => {
                self.checkpoints.flushing = (nsds.len(), Vec::new());
                if nsds.is_empty() {
                    self.checkpoints.keeper.on_flushed(&[]);
                }
                for nsd in nsds {
                    let at = Location { nsd, sector: 0 };
                    let done = Done::PageFlush(nsd);
                    self.sectors(Kind::Flush, at, Source::Bytes(Vec::new()), done);
                }
            }
            Act::Again => {}
            // What ends, or the next tick, brings the next step.
            Act::Wait | Act::Idle => return,
        }
        self.step_checkpoints_later();
    }

    pub(super) fn page_read(&mut self, id: FetchId, bytes: Option<Vec<u8>>) {
        let bytes = bytes.map(Vec::into_boxed_slice).ok_or(Unreadable);
        self.checkpoints.keeper.on_read(id, bytes);
        self.step_checkpoints_later();
    }

    pub(super) fn page_written(
        &mut self,
        checkpoint: u64,
        page: (WriteId, NsdId),
        is_written: bool,
    ) {
        self.checkpoints
            .keeper
            .on_written(checkpoint, page, is_written);
        self.step_checkpoints_later();
    }

    pub(super) fn pages_flushed(&mut self, nsd: NsdId, is_flushed: bool) {
        let (left, failed) = &mut self.checkpoints.flushing;
        *left -= 1;
        if !is_flushed {
            failed.push(nsd);
        }
        if *left == 0 {
            self.checkpoints.keeper.on_flushed(failed);
            self.step_checkpoints_later();
        }
    }
}

//! The holder: what this node may cache of one inode, and what it gives up when asked.
//!
//! Invariants
//! - `held` is part of what the manager has recorded for us, always: we forget first, then tell.
//! - A state is taken up at most once, and never after a newer one was seen.
//! - What a release in progress gives up is not used, and is held until the release is finished.
//!
//! Life of a revoke
//! ```text
//!   on_revoke -> Plan --caller: stop use, flush, commit, drop kernel pages--> finish_release -> Released
//!                 ^                                                             |
//!                 `--------------- More: a grant came in between ---------------'
//! ```
//!
//! The caller keeps a `Holder` as long as it is not idle or a ticket for its inode is unanswered, and a number behind all
//! those that the dropped ones of a shard have seen: the next holder of such an inode begins with that
//! ([`Holder::forgotten`]), for the release of the former one may still be on its way.

use types::{
    ByteRange, DirectoryMode, Epoch, Holding, InodeId, InodeMode, Instant, RangeMode, ReleaseStamp,
    TokenNumber, Want,
};

use crate::activity::Activity;
use crate::compat;
use crate::message::{Granted, Released, Revoke};
use crate::pattern::{Rounding, Shape};
use crate::rights::Rights;
use crate::server::{EPOCH_SHIFT, first_number};
use crate::set::PatternSet;

/// Tidies its ranges up beyond so many pieces.
pub const PIECE_COUNT_MAX: usize = 128;

/// What a release takes away from this node; to be carried out before it is finished.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Plan {
    /// The inode.
    pub ino: InodeId,
    /// Names the release in [`Holder::finish_release`]: that of the [`Revoke`], or one of the holder's
    /// own (with the highest bit set).
    pub release: u64,
    /// The directory token becomes this; `None`: it is not touched.
    pub directory: Option<Change<DirectoryMode>>,
    /// The inode token becomes this; `None`: it is not touched.
    pub inode: Option<Change<InodeMode>>,
    /// Bytes that can no longer be changed in the cache: flush and commit what is dirty.
    pub flush: PatternSet,
    /// Bytes that can no longer be read from the cache: drop them, in the kernel too. Contains bytes of
    /// `flush` unless they may be kept for reading.
    pub invalidate: PatternSet,
    /// What is left if nothing else changes in between.
    keep: Rights,
    version: u64,
}

/// A mode that is given up for a lower one or for nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Change<Mode> {
    /// What was held.
    pub from: Mode,
    /// What remains.
    pub to: Option<Mode>,
}

impl Plan {
    /// There is nothing to stop, flush or drop: the release can be finished at once.
    pub fn is_empty(&self) -> bool {
        let modes = self.directory.is_none() && self.inode.is_none();
        modes && self.flush.is_empty() && self.invalidate.is_empty()
    }
}

/// What stands between an operation and its wants.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cover {
    /// Nothing: go on.
    Covered,
    /// All is held, but some of it is being given up: look again after [`Holder::finish_release`]. To ask
    /// now would be answered at once, as the manager has it on record, and would help nothing.
    Releasing,
    /// Something is not held: ask for all of them.
    Missing,
}

/// What became of a grant.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Adopted {
    /// The state is known now. Look at the wants again ([`Holder::cover`]): covered, unless a release goes on.
    Current,
    /// A newer state was seen before, or this one was revoked before it came. Look at the wants again, and
    /// ask with a new ticket if they are not covered.
    Stale,
    /// Nobody waits for this: it was not taken up. Send this.
    Unasked(Released),
}

/// What to do after a plan was carried out.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Finish {
    /// Send this; the tokens are gone.
    Release(Released),
    /// A grant came in between and there is more to give up: carry this out, then finish again.
    More(Plan),
}

/// What this node holds on one inode.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Holder {
    seen: TokenNumber,
    /// States up to this one may have been this node's, and are forgotten.
    floor: TokenNumber,
    sequence: u64,
    held: Rights,
    going: Vec<Plan>,
    /// Changes with `held`.
    version: u64,
    own_release: u64,
}

/// Marks releases that nobody asked for.
const OWN_RELEASE: u64 = 1 << 63;

impl Holder {
    /// Holds nothing, and never has.
    pub const fn new() -> Self {
        Self::forgotten(TokenNumber(0))
    }

    /// Holds nothing, and may have held states up to `floor`, at least [`Holder::seen`] of the holder that was dropped: their
    /// releases may still be on the way, so none of them is taken up again.
    pub const fn forgotten(floor: TokenNumber) -> Self {
        Self {
            seen: TokenNumber(0),
            floor,
            sequence: 0,
            held: Rights::new(),
            going: Vec::new(),
            version: 0,
            own_release: 0,
        }
    }

    /// The newest state seen, or one behind all that were; goes into [`crate::Acquire::seen`].
    pub const fn seen(&self) -> TokenNumber {
        if self.seen.0 < self.floor.0 {
            self.floor
        } else {
            self.seen
        }
    }

    /// The last release of the newest state seen.
    pub const fn last_release(&self) -> ReleaseStamp {
        if self.seen.0 < self.floor.0 {
            return ReleaseStamp {
                number: self.floor,
                sequence: u64::MAX,
            };
        }
        ReleaseStamp {
            number: self.seen,
            sequence: self.sequence,
        }
    }

    /// All that is held, what is being given up included.
    pub const fn held(&self) -> &Rights {
        &self.held
    }

    /// Holds nothing and gives nothing up: may be dropped once no ticket is unanswered.
    pub fn is_idle(&self) -> bool {
        self.held.is_empty() && self.going.is_empty()
    }

    /// The bytes may be used in this mode now.
    pub fn covers_range(&self, mode: RangeMode, range: &ByteRange) -> bool {
        let is_going = |plan: &Plan| match mode {
            RangeMode::Read => plan.invalidate.overlaps_range(range),
            RangeMode::Write => plan.flush.overlaps_range(range),
        };
        self.held.covers_range(mode, range) && !self.going.iter().any(is_going)
    }

    /// Some of these bytes, but not all, are being given up for writing: whoever gets them may write them as soon as the
    /// release is finished, whatever becomes of the others.
    pub fn is_tearing(&self, range: &ByteRange) -> bool {
        let tears =
            |plan: &Plan| plan.flush.overlaps_range(range) && !plan.flush.contains_range(range);
        self.going.iter().any(tears)
    }

    /// The inode token allows this now.
    pub fn covers_inode(&self, mode: InodeMode) -> bool {
        let covers = |held: Option<InodeMode>| held.is_some_and(|h| compat::inode_covers(h, mode));
        let mut changes = self.going.iter().filter_map(|p| p.inode);
        covers(self.held.inode) && changes.all(|change| covers(change.to))
    }

    /// The directory token allows this now.
    pub fn covers_directory(&self, mode: DirectoryMode) -> bool {
        let covers =
            |held: Option<DirectoryMode>| held.is_some_and(|h| compat::directory_covers(h, mode));
        let mut changes = self.going.iter().filter_map(|p| p.directory);
        covers(self.held.directory) && changes.all(|change| covers(change.to))
    }

    /// All that the want requires may be used now.
    pub fn covers(&self, want: &Want) -> bool {
        match want {
            Want::Directory { mode } => self.covers_directory(*mode),
            Want::Inode { mode } => self.covers_inode(*mode),
            Want::Range { mode, required, .. } => match Shape::of(required) {
                None => true,
                Some(Shape::Plain(range)) => self.covers_range(*mode, &range),
                Some(shape) => {
                    let is_going = |plan: &Plan| match mode {
                        RangeMode::Read => plan.invalidate.overlaps(&shape),
                        RangeMode::Write => plan.flush.overlaps(&shape),
                    };
                    self.held.covers(want) && !self.going.iter().any(is_going)
                }
            },
        }
    }

    /// What stands between an operation and its wants now.
    pub fn cover(&self, wants: &[Want]) -> Cover {
        if wants.iter().all(|w| self.covers(w)) {
            Cover::Covered
        } else if wants.iter().all(|w| self.held.covers(w)) {
            Cover::Releasing
        } else {
            Cover::Missing
        }
    }

    /// A grant has come; `is_asked` says that its ticket is unanswered here (the caller then forgets the
    /// ticket). A late repeat of a grant that was given back long ago is told by that.
    pub fn on_granted(&mut self, granted: &Granted, is_asked: bool) -> Adopted {
        if !is_asked {
            if granted.number <= self.seen {
                return Adopted::Stale;
            }
            self.see(granted.number);
            return Adopted::Unasked(self.released(granted.ino, 0, true));
        }
        if granted.holdings.is_empty() {
            return Adopted::Current;
        }
        if granted.number <= self.seen() {
            return Adopted::Stale;
        }
        self.see(granted.number);
        self.version += 1;
        self.held = Rights::from_kinds(granted.holdings.iter().map(|h| &h.kind));
        Adopted::Current
    }

    /// A grant of this state, or of a newer one, has come: a revoke that names it was not overtaking.
    pub fn has_seen(&self, number: TokenNumber) -> bool {
        number <= self.seen()
    }

    fn see(&mut self, number: TokenNumber) {
        self.seen = number;
        self.sequence = 0;
    }

    /// Another node wants what conflicts. The plan may be empty: finish it at once then. `None`: the revoke is of a
    /// former owner, or being carried out.
    ///
    /// One that names an older state was overtaken by the grant of the newest one. It is carried out on that, for who
    /// waits still waits: ignored, it would come again only when the manager's timer says so.
    pub fn on_revoke(
        &mut self,
        now: Instant,
        revoke: &Revoke,
        activity: &Activity,
    ) -> Option<Plan> {
        let epoch = |number: TokenNumber| number.0 >> EPOCH_SHIFT;
        let is_of_former = epoch(revoke.number) < epoch(self.seen());
        if is_of_former || self.going.iter().any(|p| p.release == revoke.revoke) {
            return None;
        }
        let is_overtaken = revoke.number > self.seen;
        if is_overtaken {
            // The grant of that state is still on its way, or lost: it is void.
            self.see(revoke.number);
        }
        let mut plan = self.plan(revoke.ino, revoke.revoke);
        let mut keep = self.held.clone();
        for want in &revoke.wants {
            self.give_up_for(now, want, activity, &mut keep);
        }
        if is_overtaken {
            // That grant went with a change of names by this node, perhaps: those it knows are of before.
            keep.directory = None;
        }
        if !activity.is_open && revoke.wants.iter().any(|w| self.held.conflicts(w)) {
            // Who does not use the file saves everybody the next revoke.
            // Directories are used without being open.
            keep = Rights {
                directory: keep.directory,
                ..Rights::new()
            };
        }
        self.complete(&mut plan, keep);
        self.going.push(plan.clone());
        Some(plan)
    }

    /// Gives up by itself: the inode is evicted, or tokens are asked back ([`crate::Reclaim`]).
    /// `None`: there is nothing to give up, or it is being given up.
    pub fn give_up(&mut self, ino: InodeId) -> Option<Plan> {
        if self.held.is_empty() || !self.going.is_empty() {
            return None;
        }
        Some(self.give_up_but(ino, Rights::new()))
    }

    /// Gives up the oldest pieces when the ranges are in too many. To be called after a grant.
    pub fn tidy(&mut self, ino: InodeId) -> Option<Plan> {
        let is_long = |set: &PatternSet| set.count() > PIECE_COUNT_MAX;
        let (read, write) = (&self.held.read, &self.held.write);
        if !self.going.is_empty() || !(is_long(read) || is_long(write)) {
            return None;
        }
        let mut keep = self.held.clone();
        for set in [&mut keep.read, &mut keep.write] {
            set.truncate(PIECE_COUNT_MAX / 2);
        }
        Some(self.give_up_but(ino, keep))
    }

    /// The bytes of `range` that may not be written.
    pub fn not_writable(&self, range: &ByteRange) -> PatternSet {
        let mut set = PatternSet::of(Shape::Plain(*range));
        set.remove_set(&self.held.write, Rounding::Down);
        set
    }

    /// Gives up the right to write these bytes, and keeps the right to read them. `None`: it is not held, or something is being given up.
    pub fn demote(&mut self, ino: InodeId, bytes: &PatternSet) -> Option<Plan> {
        if !self.going.is_empty() || !self.held.write.overlaps_set(bytes) {
            return None;
        }
        let mut keep = self.held.clone();
        for shape in bytes.shapes() {
            keep.read.add_set(&self.held.write.intersection(&shape));
        }
        keep.write.remove_set(bytes, Rounding::Down);
        Some(self.give_up_but(ino, keep))
    }

    fn give_up_but(&mut self, ino: InodeId, keep: Rights) -> Plan {
        self.own_release += 1;
        let mut plan = self.plan(ino, OWN_RELEASE | self.own_release);
        self.complete(&mut plan, keep);
        self.going.push(plan.clone());
        plan
    }

    /// The caller has carried the plan out: nothing of it is used, dirty or cached any more (or its loss is
    /// recorded as an error). The tokens are gone when this returns `Release`.
    pub fn finish_release(&mut self, release: u64, still_open: bool) -> Finish {
        let index = self.going.iter().position(|p| p.release == release);
        let index = index.expect("a release is finished once, after it was planned");
        let plan = self.going.remove(index);
        if plan.version == self.version {
            self.held = plan.keep;
        } else {
            let mut more = self.plan(plan.ino, plan.release);
            self.complete(&mut more, self.without(&plan));
            if !more.is_within(&plan) {
                more.flush.add_set(&plan.flush);
                more.invalidate.add_set(&plan.invalidate);
                self.going.push(more.clone());
                return Finish::More(more);
            }
            self.held = more.keep;
        }
        self.version += 1;
        let revoke = if plan.release & OWN_RELEASE == 0 {
            plan.release
        } else {
            0
        };
        Finish::Release(self.released(plan.ino, revoke, still_open))
    }

    /// The shard has a new owner under `epoch`: what to tell it. Grants of the old owner that are still on
    /// their way are void from now on.
    pub fn reassert(&mut self, ino: InodeId, epoch: Epoch) -> Vec<Holding> {
        let number = first_number(epoch);
        assert!(number > self.seen(), "epochs ascend");
        self.see(number);
        self.held.holdings(ino, number)
    }

    /// Asserts the invariants of this module.
    pub fn check(&self) {
        for (index, plan) in self.going.iter().enumerate() {
            let is_same = |other: &Plan| other.release == plan.release;
            assert!(!self.going[index + 1..].iter().any(is_same));
            assert!(plan.version <= self.version);
        }
        assert!(self.seen.0 > 0 || self.held.is_empty());
    }

    fn plan(&self, ino: InodeId, release: u64) -> Plan {
        Plan {
            ino,
            release,
            directory: None,
            inode: None,
            flush: PatternSet::new(),
            invalidate: PatternSet::new(),
            keep: Rights::new(),
            version: self.version,
        }
    }

    fn released(&mut self, ino: InodeId, revoke: u64, still_open: bool) -> Released {
        self.sequence += 1;
        Released {
            ino,
            number: self.seen,
            sequence: self.sequence,
            revoke,
            kept: self.held.kinds(),
            still_open,
        }
    }

    /// Takes out of `keep` what another node's want does not allow.
    fn give_up_for(&self, now: Instant, want: &Want, activity: &Activity, keep: &mut Rights) {
        match want {
            Want::Directory { mode } => {
                keep.directory = keep
                    .directory
                    .and_then(|held| compat::directory_down_to(held, *mode));
            }
            Want::Inode { mode } => {
                keep.inode = keep
                    .inode
                    .and_then(|held| compat::inode_down_to(held, *mode));
            }
            Want::Range {
                mode,
                required,
                desired,
            } => {
                let Some(required) = Shape::of(required) else {
                    return;
                };
                let desired = Shape::of(desired).unwrap_or(required);
                let conflicts = self.held.conflicts_on(*mode, &required)
                    || self.held.conflicts_on(*mode, &desired);
                if !conflicts {
                    return;
                }
                let given = |set: &PatternSet| activity.kept(now, set, &required, &desired);
                match mode {
                    RangeMode::Write => {
                        keep.write = given(&keep.write);
                        keep.read = given(&keep.read);
                    }
                    RangeMode::Read => {
                        let before = keep.write.clone();
                        keep.write = given(&keep.write);
                        // What is no longer written may still be read.
                        let mut read = before;
                        read.remove_set(&keep.write, Rounding::Up);
                        keep.read.add_set(&read);
                    }
                }
            }
        }
    }

    /// Fills a plan that leaves `keep`.
    fn complete(&self, plan: &mut Plan, keep: Rights) {
        let held = &self.held;
        if held.directory != keep.directory {
            let change = |from| Change {
                from,
                to: keep.directory,
            };
            plan.directory = held.directory.map(change);
        }
        if held.inode != keep.inode {
            let change = |from| Change {
                from,
                to: keep.inode,
            };
            plan.inode = held.inode.map(change);
        }
        plan.flush = held.write.clone();
        plan.flush.remove_set(&keep.write, Rounding::Up);
        plan.invalidate = held.read.clone();
        plan.invalidate.add_set(&plan.flush);
        plan.invalidate.remove_set(&keep.read, Rounding::Up);
        plan.invalidate.remove_set(&keep.write, Rounding::Up);
        plan.keep = keep;
    }

    /// What is held when the plan is carried out.
    fn without(&self, plan: &Plan) -> Rights {
        let mut kept = self.held.clone();
        // What was written may still be read as far as the plan leaves that.
        for shape in plan.flush.shapes() {
            kept.read.add_set(&self.held.write.intersection(&shape));
        }
        kept.write.remove_set(&plan.flush, Rounding::Down);
        kept.read.remove_set(&plan.invalidate, Rounding::Down);
        if let Some(change) = plan.directory {
            let lower = |held| change.to.filter(|to| compat::directory_covers(held, *to));
            kept.directory = kept.directory.and_then(lower);
        }
        if let Some(change) = plan.inode {
            let lower = |held| change.to.filter(|to| compat::inode_covers(held, *to));
            kept.inode = kept.inode.and_then(lower);
        }
        kept
    }
}

impl Plan {
    /// Who has carried out `other` has carried out this.
    fn is_within(&self, other: &Self) -> bool {
        let within = |a: &PatternSet, b: &PatternSet| a.shapes().all(|s| b.contains(&s));
        within(&self.flush, &other.flush) && within(&self.invalidate, &other.invalidate)
    }
}

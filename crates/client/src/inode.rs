//! What this node knows of one inode: attributes, tokens, pages, map, open counts, and who waits.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

#[cfg(test)]
mod tests;
mod work;

pub(crate) use work::Work;

use rustc_hash::FxHashMap;
use types::attr::set_ids_taken;
use types::{
    Attr, ByteRange, Extent, FrameRef, InodeId, InodeMode, Instant, Name, Piece, RangeMode,
    RangeSet, Timestamp,
};

use crate::slice::IoId;

/// Names kept per directory; beyond it the cache starts anew.
const ENTRIES_MAX: usize = 4096;

/// Where the bytes of a file lie, as far as it was asked and the tokens still cover it.
#[derive(Debug, Default)]
pub(crate) struct MapCache {
    /// Bytes (whole sectors) for which `extents` and `pieces` are complete.
    pub(crate) known: RangeSet,
    /// What of it was learnt while tokens covered only part of its sectors: forgotten with the next grant,
    /// which may cover more of them.
    pub(crate) partial: RangeSet,
    pub(crate) extents: Vec<Extent>,
    pub(crate) pieces: Vec<Piece>,
}

impl MapCache {
    /// Nothing is known.
    fn is_empty(&self) -> bool {
        let Self {
            known,
            partial,
            extents,
            pieces,
        } = self;
        known.is_empty() && partial.is_empty() && extents.is_empty() && pieces.is_empty()
    }

    /// Forgets what overlaps `range`.
    pub(crate) fn forget(&mut self, range: &ByteRange) {
        let range = sectors_around(range);
        if range.is_empty() || !self.known.overlaps(&range) {
            return;
        }
        self.known.remove(range);
        let begin = range.begin / types::SECTOR_SIZE;
        let end = range.end.div_ceil(types::SECTOR_SIZE);
        // They are in order, and all of their bytes are known.
        let first = self
            .extents
            .partition_point(|e| e.file_sector_end() <= begin);
        let count = self.extents[first..].partition_point(|e| e.file_sector < end);
        if let [front, ..] = &self.extents[first..first + count] {
            let back = &self.extents[first + count - 1];
            let is_cut = front.file_sector < begin;
            let front = is_cut.then(|| front.slice(front.file_sector, begin));
            let is_cut = back.file_sector_end() > end;
            let back = is_cut.then(|| back.slice(end, back.file_sector_end()));
            let rest = front.into_iter().chain(back);
            self.extents.splice(first..first + count, rest);
        }
        self.forget_pieces();
    }

    /// The same for many ranges in one pass: what a Commit of a fragmented file has changed.
    pub(crate) fn forget_all(&mut self, ranges: &RangeSet) {
        if let [range] = ranges.ranges() {
            return self.forget(range);
        }
        let mut is_changed = false;
        for range in ranges.ranges() {
            let range = sectors_around(range);
            is_changed |= self.known.overlaps(&range);
            self.known.remove(range);
        }
        if !is_changed {
            return;
        }
        let mut extents = Vec::with_capacity(self.extents.len());
        for extent in std::mem::take(&mut self.extents) {
            let bytes = extent_bytes(&extent);
            if self.known.contains(&bytes) {
                extents.push(extent);
                continue;
            }
            let sector = types::SECTOR_SIZE;
            let rest = self.known.intersection(&bytes);
            let rest = rest.ranges().iter();
            extents.extend(rest.map(|r| extent.slice(r.begin / sector, r.end / sector)));
        }
        self.extents = extents;
        self.forget_pieces();
    }

    /// Forgets pieces of what is not known any more.
    fn forget_pieces(&mut self) {
        let known = &self.known;
        self.pieces
            .retain(|p| known.overlaps(&ByteRange::new(p.offset, p.end())));
    }

    /// Takes an owner's answer that is complete for `range` (whole sectors).
    pub(crate) fn learn(&mut self, range: ByteRange, extents: Vec<Extent>, pieces: Vec<Piece>) {
        self.forget(&range);
        self.known.insert(range);
        let (begin, end) = (
            range.begin / types::SECTOR_SIZE,
            range.end.div_ceil(types::SECTOR_SIZE),
        );
        let within = extents
            .into_iter()
            .filter(|e| e.file_sector < end && e.file_sector_end() > begin);
        self.extents.extend(
            within.map(|e| e.slice(e.file_sector.max(begin), e.file_sector_end().min(end))),
        );
        self.extents.sort_by_key(|e| e.file_sector);
        self.pieces.extend(
            pieces
                .into_iter()
                .filter(|p| ByteRange::new(p.offset, p.end()).overlaps(&range)),
        );
    }

    /// The extents that overlap `range`, clipped to its sectors.
    pub(crate) fn extents_in(&self, range: &ByteRange) -> Vec<Extent> {
        let (begin, end) = (
            range.begin / types::SECTOR_SIZE,
            range.end.div_ceil(types::SECTOR_SIZE),
        );
        let first = self
            .extents
            .partition_point(|e| e.file_sector_end() <= begin);
        self.extents[first..]
            .iter()
            .take_while(|e| e.file_sector < end)
            .map(|e| e.slice(e.file_sector.max(begin), e.file_sector_end().min(end)))
            .collect()
    }
}

/// `range` widened to whole sectors.
pub(crate) fn sectors_around(range: &ByteRange) -> ByteRange {
    let begin = range.begin / types::SECTOR_SIZE * types::SECTOR_SIZE;
    let end = range
        .end
        .checked_next_multiple_of(types::SECTOR_SIZE)
        .unwrap_or(u64::MAX);
    ByteRange::new(begin, end)
}

fn extent_bytes(extent: &Extent) -> ByteRange {
    let begin = extent.file_sector * types::SECTOR_SIZE;
    ByteRange::new(begin, extent.file_sector_end() * types::SECTOR_SIZE)
}

/// A load on its way.
#[derive(Debug)]
pub(crate) struct Load {
    pub(crate) io: IoId,
    /// When it was asked for, if the disks have to do with it.
    pub(crate) begun: Option<Instant>,
    /// Page and the frame that its bytes go to.
    pub(crate) pages: Vec<(u64, FrameRef)>,
    /// Pieces that lie over what is loaded.
    pub(crate) pieces: Vec<Piece>,
    /// Tokens covered only part of its bytes when it began.
    pub(crate) is_partial: bool,
    /// The tokens went meanwhile, or cover more now: the bytes are dropped when they come.
    pub(crate) is_stale: bool,
    /// Waited for by a request (a prefetch is not).
    pub(crate) is_wanted: bool,
}

impl Load {
    /// It was asked for to complete a part that waits, as far as can be seen (`crate::refused`).
    pub(crate) fn is_of_part(&self) -> bool {
        !self.is_wanted && self.pages.len() == 1
    }

    /// The bytes of its pages, which are adjacent.
    pub(crate) fn range(&self) -> ByteRange {
        let page = crate::pages::PAGE_SIZE;
        let first = self.pages.first().map_or(0, |(number, _)| *number);
        ByteRange::at(first * page, self.pages.len() as u64 * page)
    }
}

/// One inode.
#[derive(Debug)]
pub(crate) struct Inode {
    pub(crate) ino: InodeId,
    /// What it needs while it is used.
    work: Option<Box<Work>>,
    /// How many inodes of the slice have that.
    work_count: Arc<AtomicUsize>,
    /// When a request about it came last.
    pub(crate) used_at: Instant,
    /// On its way out (`evict`).
    pub(crate) is_chosen: bool,
    /// What it was when it was forgotten, if the kernel knew it.
    pub(crate) kind: Option<types::FileKind>,
    /// The newest attributes the owner has told.
    pub(crate) attr: Option<Attr>,
    /// They came under a token that is still held.
    pub(crate) is_attr_fresh: bool,
    /// They were current when it was on its way out: on a node that is alone those known since are no older.
    pub(crate) was_current: bool,
    /// How often the token over the attributes has been lost, or a rename through this node has changed them unseen: an
    /// answer that was asked for before says nothing of now.
    pub(crate) loss_count: u64,
    /// A call through this node has changed the attributes unseen, and the owner has not told them since.
    pub(crate) is_changed_unseen: bool,
    /// End of file, with this node's own writes.
    pub(crate) size: u64,
    /// This node's writes moved the end of file and the owner does not know yet.
    pub(crate) is_size_dirty: bool,
    /// Content that is in no Commit yet changed before a time was set: the Commit takes the rights of a program.
    pub(crate) drops_rights: bool,

    pub(crate) holder: token::Holder,
    pub(crate) gate: Option<Box<crate::gates::RevokeState>>,
    pub(crate) activity: token::Activity,
    /// An Acquire is on its way.
    pub(crate) is_acquiring: bool,
    /// The owner says that several nodes change this directory: nothing is cached.
    pub(crate) is_contended: bool,

    pub(crate) is_map_asked: bool,
    /// For more than tokens covered then.
    pub(crate) is_partial_map_asked: bool,
    pub(crate) is_committing: bool,
    /// Commits that have ended.
    pub(crate) commit_count: u64,
    pub(crate) is_on_dirty_list: bool,
    /// The kernel may have pages that a READ brought in under read tokens alone.
    pub(crate) has_read_pages: bool,
    /// The kernel may have pages.
    pub(crate) may_have_pages: bool,
    /// Whether it is loaded for who will open it soon.
    pub(crate) foreseen: crate::fill::Foreseen,
    /// It is being forgotten, and the kernel need not hear of that (`crate::evict`).
    pub(crate) goes_silently: bool,
    /// The kernel was told to believe attributes since the inode token was last revoked.
    pub(crate) is_attr_believed: bool,
    /// The kernel was told to believe attributes while somebody here had it open for writing, and has not been told otherwise since.
    pub(crate) is_shown_to_writers: bool,
    /// The thread that was shown attributes for the kernel to keep since that was last told to drop them (`crate::belief`).
    pub(crate) believed_by: u32,
    /// So many more answers show attributes for once only.
    pub(crate) unbelieved_shows: u8,
    /// Its last name went while nobody had it open here, and the owner was told so: it cannot be opened any more.
    pub(crate) is_gone: bool,
    /// Its last name went by this node's own doing: attributes with a link are of before.
    pub(crate) is_unnamed: bool,
    /// See `Inode::is_unnamed_again`.
    pub(crate) unnamed_looks: u16,
    /// The owner has said that nobody keeps it: its bytes are nobody's any more.
    pub(crate) is_freed: bool,
    /// The owner takes this node to have it open, as the last release or this node's own removal said.
    pub(crate) is_taken_open: bool,
    /// A token of it came without attributes, with an answer that may lead elsewhere: its last name may have gone before that, and
    /// nobody revokes the token then.
    pub(crate) is_name_unsure: bool,
    /// It was made here without a name (O_TMPFILE) and has not had one yet, but may be given one.
    pub(crate) is_linkable: bool,
    /// The revoke under way overtook the answer with the token that it is about.
    pub(crate) is_overtaken: bool,
    /// When a name was last shown to lead here, or was about to be.
    pub(crate) shown_at: crate::opens::Shown,
    /// The thread that the name was last shown to, and when it was last shown to another one.
    pub(crate) shown_to: u32,
    pub(crate) shown_before: crate::opens::Shown,
    /// Messages to the owner under way that nobody has it open here.
    pub(crate) closing_count: u32,
    /// Opens that may come yet (`Slice::awaited_opens`): while there are any nobody's close is told.
    pub(crate) awaited_count: u32,

    /// How it was read last, if it is large.
    pub(crate) habit: crate::readers::Habit,
    pub(crate) open_count: u32,
    pub(crate) writer_count: u32,
    /// Opened to be executed, here: who runs it keeps it open.
    pub(crate) exec_count: u32,
    pub(crate) lookup_count: u64,
    /// Replies that tell the kernel about this inode and are not written yet.
    pub(crate) unwritten_replies: u32,
    pub(crate) names_epoch: u64,
    /// Since when a token for names is held, where one is.
    pub(crate) names_since: Instant,
}

// Some ten thousand are remembered that nobody uses.
const _: () = assert!(size_of::<Inode>() <= 512);

impl Inode {
    /// An inode of which nothing is known, of the slice in which so many have work.
    pub(crate) fn new(ino: InodeId, work_count: Arc<AtomicUsize>) -> Self {
        Self {
            ino,
            work: None,
            work_count,
            used_at: Instant(0),
            is_chosen: false,
            kind: None,
            attr: None,
            is_attr_fresh: false,
            was_current: false,
            loss_count: 0,
            is_changed_unseen: false,
            size: 0,
            is_size_dirty: false,
            drops_rights: false,
            holder: token::Holder::new(),
            gate: None,
            activity: token::Activity::default(),
            is_acquiring: false,
            is_contended: false,
            is_map_asked: false,
            is_partial_map_asked: false,
            is_committing: false,
            commit_count: 0,
            is_on_dirty_list: false,
            has_read_pages: false,
            may_have_pages: false,
            foreseen: crate::fill::Foreseen::default(),
            goes_silently: false,
            is_gone: false,
            is_unnamed: false,
            unnamed_looks: 0,
            is_freed: false,
            is_taken_open: false,
            is_name_unsure: false,
            is_linkable: false,
            is_overtaken: false,
            shown_at: crate::opens::Shown::default(),
            shown_to: 0,
            shown_before: crate::opens::Shown::default(),
            closing_count: 0,
            awaited_count: 0,
            is_attr_believed: false,
            is_shown_to_writers: false,
            believed_by: crate::belief::NOBODY,
            unbelieved_shows: 0,
            habit: crate::readers::Habit::default(),
            open_count: 0,
            writer_count: 0,
            exec_count: 0,
            lookup_count: 0,
            unwritten_replies: 0,
            names_epoch: 0,
            names_since: Instant(0),
        }
    }

    /// Gives back memory that nothing is in: what is remembered of a file that nobody uses should be little (`inode_count_max` of them).
    pub(crate) fn compact(&mut self) {
        if !self.has_work() {
            return;
        }
        self.drop_blank_work();
        let Some(work) = &mut self.work else { return };
        work.compact();
    }
}

impl Work {
    /// Gives back memory that nothing is in.
    fn compact(&mut self) {
        fn compact<T>(all: &mut Vec<T>) {
            if all.is_empty() {
                *all = Vec::new();
            }
        }
        compact(&mut self.unmapped);
        compact(&mut self.loads);
        compact(&mut self.batches);
        compact(&mut self.resizes);
        compact(&mut self.goals);
        if self.parked.is_empty() {
            self.parked = std::collections::VecDeque::new();
        }
        if self.hasty.is_empty() {
            self.hasty = std::collections::BTreeSet::new();
        }
        // Of a small file: a large map is not moved to and fro.
        if self.map.extents.len() < self.map.extents.capacity() / 2 {
            self.map.extents.shrink_to_fit();
        }
        if self.map.pieces.len() < self.map.pieces.capacity() / 2 {
            self.map.pieces.shrink_to_fit();
        }
        self.pages.compact();
    }
}

impl Inode {
    /// Takes attributes that the owner told. Older ones than those known are ignored.
    pub(crate) fn learn_attr(&mut self, attr: &Attr) {
        if self.attr.is_some_and(|known| known.change > attr.change) {
            return;
        }
        let known = self.attr;
        let mut attr = *attr;
        // A removal through this node takes the last link before the owner's attributes say it: those with a link are of before.
        let is_unlinked = known.is_some_and(|k| k.change == attr.change && k.nlink == 0);
        // In the end the owner may know better.
        let is_sure = self.unnamed_looks < crate::opens::UNNAMED_LOOKS_MAX;
        if is_sure && (self.is_gone || self.is_unnamed || is_unlinked) {
            attr.nlink = 0;
        }
        let attr = &attr;
        if let Some(work) = self.present_work() {
            work.accessed.learn(known.as_ref(), attr);
        }
        let is_same_size_life = self
            .attr
            .is_some_and(|known| known.size_generation == attr.size_generation);
        // Where the owner's end lies at or behind ours, by this node's Commit or by another writer, it need not be told
        // of ours: the token for that may be gone by then.
        self.is_size_dirty &= is_same_size_life && self.size > attr.size;
        if !self.is_size_dirty {
            self.size = attr.size;
        }
        if !is_same_size_life && let Some(work) = self.present_work() {
            work.promise.forget();
        }
        self.attr = Some(*attr);
    }

    /// A rename or a removal through this node, of which the answer did not tell the attributes, has changed them. Nor does an answer
    /// say what they are that was asked for before, though it may come after this and with a token that holds.
    pub(crate) fn note_changed_unseen(&mut self) {
        self.is_attr_fresh = false;
        self.is_changed_unseen = true;
        self.loss_count += 1;
    }

    /// The kernel asks for an access control list; whether it is known here that there is none. It keeps what it is told as it
    /// keeps attributes: these are notified when they go, and the list with them.
    pub(crate) fn ask_acl(&mut self) -> bool {
        self.is_attr_believed = true;
        let is_current = self.is_attr_current() && !self.is_revoking();
        is_current && self.attr.is_some_and(|attr| !attr.has_acl())
    }

    /// Content has changed. Another node's clock, by which it changed before, may be ahead of this one's.
    pub(crate) fn note_modified(&mut self, now: Timestamp) {
        let known = self.attr.map_or(now, |attr| attr.mtime);
        let before = self.modified.map_or(known, |at| known.merged(at, now));
        self.modified = Some(before.stamped(now));
    }

    /// The attributes as this node's applications see them.
    pub(crate) fn visible_attr(&self) -> Option<Attr> {
        let mut attr = self.attr?;
        attr.size = self.size;
        attr.atime = self.accessed.shown(attr.atime);
        // What has no sectors yet will have them: tar --sparse takes a file of no blocks for one hole and reads nothing.
        let most = attr.size.div_ceil(crate::pages::PAGE_SIZE);
        let most = most.max(attr.sector_count);
        attr.sector_count = most.min(attr.sector_count + self.pages.busy_count() as u64);
        if let Some(time) = self.modified {
            // What another node has committed since may be a little later.
            attr.mtime = attr.mtime.merged(time, time);
            attr.ctime = attr.ctime.max(time);
        }
        if let Some(by) = self.kill_set_id {
            attr.permissions &= !set_ids_taken(attr.permissions, by == attr.gid);
        }
        Some(attr)
    }

    /// Somebody of the group `by` who may not keep set-id bits changes the content.
    pub(crate) fn take_set_ids(&mut self, by: u32) {
        let Some(attr) = self.attr else { return };
        if set_ids_taken(attr.permissions, by == attr.gid) == 0 {
            return;
        }
        // Of several writers one of another group counts.
        let is_first_alien = self.kill_set_id.is_some_and(|first| first != attr.gid);
        if !is_first_alien {
            self.kill_set_id = Some(by);
        }
    }

    /// Some revoke of this inode is in progress: nothing is cached on, nothing is promised.
    pub(crate) fn is_revoking(&self) -> bool {
        self.gate.is_some()
    }

    /// No other node changes attributes unseen.
    pub(crate) fn covers_attr(&self) -> bool {
        match self.inode_mode() {
            Some(InodeMode::Read | InodeMode::Exclusive) => true,
            Some(InodeMode::SharedWrite) => false,
            None => self.directory_mode().is_some(),
        }
    }

    /// `attr` is what the owner would answer now.
    pub(crate) fn is_attr_current(&self) -> bool {
        self.covers_attr() && self.is_attr_fresh && self.attr.is_some()
    }

    pub(crate) fn covers(&self, mode: RangeMode, range: &ByteRange) -> bool {
        // What is being given up counts until it is released: the gate decides who may still use it.
        self.holder.held().covers_range(mode, range)
    }

    /// Page `number` may go to a sector as a whole: this node may write all of it until the Commit, for a revoke that
    /// takes all of it waits for that. One that takes a part waits for what is dirty in that part only.
    pub(crate) fn owns_page(&self, number: u64) -> bool {
        let page = ByteRange::at(number * crate::pages::PAGE_SIZE, crate::pages::PAGE_SIZE);
        self.covers(RangeMode::Write, &page) && !self.holder.is_tearing(&page)
    }

    /// The bytes of a page that this node's tokens cover, relative to its begin; `None`: all of them.
    pub(crate) fn covered_part(&self, number: u64) -> Option<RangeSet> {
        let base = number * crate::pages::PAGE_SIZE;
        let page = ByteRange::at(base, crate::pages::PAGE_SIZE);
        if self.covers(RangeMode::Read, &page) {
            return None;
        }
        let held = self.holder.held();
        let mut covered = RangeSet::new();
        for set in [&held.read, &held.write] {
            // A piece has a byte at least: so many pieces are never rounded.
            for range in set.ranges_within(&page, types::frame::FRAME_SIZE).ranges() {
                covered.insert(ByteRange::new(range.begin - base, range.end - base));
            }
        }
        Some(covered)
    }

    pub(crate) fn inode_mode(&self) -> Option<InodeMode> {
        self.holder.held().inode
    }

    pub(crate) fn directory_mode(&self) -> Option<types::DirectoryMode> {
        self.holder.held().directory
    }

    /// Bytes on their way from disks.
    pub(crate) fn loading(&self) -> RangeSet {
        let mut loading = RangeSet::new();
        let current = self.loads.iter().filter(|load| !load.is_stale);
        current.for_each(|load| loading.insert(load.range()));
        loading
    }

    /// Some of `bytes` are on their way from disks.
    pub(crate) fn is_loading(&self, bytes: &ByteRange) -> bool {
        let mut current = self.loads.iter().filter(|load| !load.is_stale);
        current.any(|load| load.range().overlaps(bytes))
    }

    /// Something of this inode has to be sent to the owner before its tokens may go.
    pub(crate) fn is_dirty(&self) -> bool {
        self.is_committing || self.has_unsaved()
    }

    /// Something that an application wrote or changed is not known to be with the owner.
    pub(crate) fn has_unsaved(&self) -> bool {
        self.pages.dirty_count() > 0
            || !self.batches.is_empty()
            || self.commit.as_ref().is_some_and(|c| !c.is_rewrite)
            || self.is_changed()
    }

    /// Size, times or rights are not those that the owner knows.
    pub(crate) fn is_changed(&self) -> bool {
        self.is_size_dirty || self.takes_rights() || self.kill_set_id.is_some()
    }

    /// A write takes the rights of a program, and no Commit has told the owner.
    pub(crate) fn takes_rights(&self) -> bool {
        self.modified.is_some() || self.drops_rights
    }

    /// Where the bytes of `range` lie is not known any more; nor does an answer say it that is on its way.
    pub(crate) fn forget_map(&mut self, range: &ByteRange) {
        if self.is_map_asked {
            self.changed_since.insert(*range);
        }
        if let Some(work) = self.present_work() {
            work.direct_bytes = 0;
            work.map.forget(range);
        }
    }

    /// The same for many ranges.
    pub(crate) fn forget_maps(&mut self, ranges: &RangeSet) {
        if self.is_map_asked {
            for range in ranges.ranges() {
                self.changed_since.insert(*range);
            }
        }
        if let Some(work) = self.present_work() {
            work.direct_bytes = 0;
            work.map.forget_all(ranges);
        }
    }

    /// New tokens are here. What was learnt or is being loaded under tokens that covered only part of it may be of before
    /// another node's write to the rest, which these tokens may cover.
    pub(crate) fn distrust_partial(&mut self) {
        if self.is_map_asked && self.is_partial_map_asked {
            self.changed_since.insert(ByteRange::ALL);
        }
        let Some(work) = self.present_work() else {
            return;
        };
        for range in std::mem::take(&mut work.map.partial).ranges() {
            work.map.forget(range);
        }
        for load in work.loads.iter_mut().filter(|load| load.is_partial) {
            load.is_stale = true;
        }
    }

    /// Pages that touch `range` are not to be moved to sectors any more; how many those were.
    pub(crate) fn forget_hasty(&mut self, range: &ByteRange) -> usize {
        if self.hasty.is_empty() || range.is_empty() {
            return 0;
        }
        let size = crate::pages::PAGE_SIZE;
        let (first, last) = (range.begin / size, (range.end - 1) / size);
        let before = self.hasty.len();
        self.hasty.retain(|page| !(first..=last).contains(page));
        before - self.hasty.len()
    }

    /// A change of size is at the owner: what is stored or committed now would belong to the size before. Nobody is
    /// held up by that for long, for the change has its tokens and is answered at once.
    pub(crate) fn is_held_back(&self) -> bool {
        self.resize_count > 0
    }

    /// Remembers what `name` leads to, under the directory token.
    pub(crate) fn learn_entry(&mut self, name: &Name, ino: Option<InodeId>) {
        if self.is_revoking() || self.directory_mode().is_none() {
            return;
        }
        let entries = self.entries.get_or_insert_default();
        if entries.len() >= ENTRIES_MAX {
            entries.clear();
        }
        entries.insert(name.clone(), ino);
    }

    /// Forgets all names.
    pub(crate) fn forget_entries(&mut self) {
        if let Some(work) = self.present_work() {
            work.entries = None;
        }
    }

    /// Names known.
    pub(crate) fn name_count(&self) -> usize {
        self.entries.as_ref().map_or(0, FxHashMap::len)
    }

    /// Forgets what `name` leads to.
    pub(crate) fn forget_entry(&mut self, name: &Name) {
        if let Some(entries) = self.present_work().and_then(|w| w.entries.as_mut()) {
            entries.remove(name);
        }
    }
}

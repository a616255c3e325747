//! What can be wrong: kinds with stable names, and what was found.

use std::collections::{BTreeMap, BTreeSet};

use types::{InodeId, ShardId};

/// Findings of one kind that are kept.
pub const COUNT_MAX: u64 = 1000;

/// What can be done about a finding.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Remedy {
    /// What it should be follows from the rest: nothing is lost.
    Rebuilt,
    /// Healthy again, but something that was damaged stays lost, or has another name.
    Salvaged,
    /// Only a copy from elsewhere, or a human, can help.
    None,
}

macro_rules! kinds {
    ($($kind:ident, $name:literal, $remedy:ident, $meaning:literal;)*) => {
        /// What is wrong. The names are stable: scripts may lean on them.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        pub enum Kind {
            $(#[doc = $meaning] $kind,)*
        }
        impl Kind {
            /// Every kind.
            pub const ALL: &'static [Self] = &[$(Self::$kind),*];
            /// Its name.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$kind => $name),* }
            }
            /// What it means.
            pub const fn meaning(self) -> &'static str {
                match self { $(Self::$kind => $meaning),* }
            }
            /// What can be done about it.
            pub const fn remedy(self) -> Remedy {
                match self { $(Self::$kind => Remedy::$remedy),* }
            }
        }
    };
}

kinds! {
    NsdMissing, "nsd-missing", None, "An NSD of the file system is in no state directory that was named, or cannot be opened.";
    NsdOlder, "nsd-older", Salvaged, "Another NSD has seen this one in later use than it says itself: an older copy was put back, or its marks are lost.";
    LabelCopy, "label-copy", Rebuilt, "One copy of a label is damaged or older; the other is good.";
    LabelLost, "label-lost", None, "No copy of a label can be used, or another format was put over it.";
    LabelForeign, "label-foreign", None, "A label is of another cluster, file system or NSD than it should be.";
    LabelSize, "label-size", None, "A disk has fewer sectors than its label says.";
    LabelDiffers, "label-differs", None, "Labels, or a label and the cluster view, say different things of the file system.";
    ViewCopy, "view-copy", Rebuilt, "No slot for the cluster view on an NSD holds a good one of this cluster.";
    JournalHeader, "journal-header", Rebuilt, "One copy of a segment header is damaged; the other is good.";
    JournalLost, "journal-lost", None, "A journal has lost what was durable: headers, or a record.";
    JournalForeign, "journal-foreign", None, "A good journal of something else lies where a journal should be.";
    JournalVersion, "journal-version", None, "A journal was written by a version that is not known.";
    JournalUnreadable, "journal-unreadable", None, "The disk does not return a sector of a journal.";
    JournalPart, "journal-part", None, "A record is whole, but what it holds is not understood, or is of a shard that its owner has not.";
    JournalMutation, "journal-mutation", None, "A change of a shard does not fit the shard that it is made on.";
    SpaceRecord, "space-record", Rebuilt, "A change of space does not fit the space that it is made on.";
    TreeRoot, "tree-root", None, "The root of a tree is none, or another shard's.";
    TreeBeside, "tree-beside", None, "What a snapshot names beside a tree is no record, or not in order.";
    TreePageCopy, "tree-page-copy", Rebuilt, "A copy of a tree page is damaged, stale or misdirected.";
    TreePageUnreadable, "tree-page-unreadable", Rebuilt, "The disk does not return a copy of a tree page.";
    TreePageLost, "tree-page-lost", None, "No copy of a tree page is good: what lies below it cannot be seen.";
    TreeOrder, "tree-order", None, "Keys of a tree page lie outside its separators.";
    TreePageNewer, "tree-page-newer", None, "A tree page claims to be newer than its root.";
    TreePageTwice, "tree-page-twice", None, "Two pages of a tree, or two copies of one, lie in the same sectors.";
    TreeEntryCount, "tree-entry-count", Rebuilt, "A root counts other entries than its tree has.";
    TreePageCount, "tree-page-count", Rebuilt, "A root counts other pages than its tree has.";
    TreeRecord, "tree-record", None, "A record of a tree is none of this version, or does not fit those before it.";
    PagePlace, "page-place", None, "A page lies outside of the page regions of its owner.";
    PageFree, "page-free", Rebuilt, "Sectors of a page count as free.";
    PageLeak, "page-leak", Rebuilt, "Sectors count as pages', and no page lies there.";
    RootInode, "root-inode", None, "There is no root directory, or it is not as a root is.";
    NextIndex, "next-index", Rebuilt, "An inode has an index that was never given.";
    InodeMode, "inode-mode", Rebuilt, "Permissions have bits that do not exist.";
    InodeSize, "inode-size", Rebuilt, "A file is larger than files can be.";
    InodeTime, "inode-time", Rebuilt, "A time has a second or more of nanoseconds.";
    InodeDevice, "inode-device", Rebuilt, "What is no device has a device number.";
    InodeLayout, "inode-layout", Rebuilt, "A layout names an NSD that is not there.";
    SymlinkTarget, "symlink-target", Salvaged, "The target of a symbolic link is empty, too long, or not as long as its size says.";
    XattrName, "xattr-name", Salvaged, "An extended attribute has a name that none can have, or is too long.";
    AclValue, "acl-value", Salvaged, "An access control list is none.";
    AclFlag, "acl-flag", Rebuilt, "An inode has a list and is not marked so, or the other way round.";
    AclMode, "acl-mode", Rebuilt, "An access control list and the permission bits say different things.";
    SectorCount, "sector-count", Rebuilt, "An inode counts other sectors than its map has.";
    MapBehindEnd, "map-behind-end", Salvaged, "A file has bytes in sectors behind its end.";
    NameDangling, "name-dangling", Salvaged, "A name leads to an inode that is not there.";
    NameKind, "name-kind", Rebuilt, "A name takes its inode for another kind.";
    NameCookie, "name-cookie", Rebuilt, "A name lies under a cookie that is none of its hash.";
    NameTwice, "name-twice", Salvaged, "A directory has a name twice.";
    NameOfRoot, "name-of-root", Salvaged, "A name leads to the root directory.";
    LinkCount, "link-count", Rebuilt, "An inode counts other names than lead to it.";
    DirectoryLinks, "directory-links", Rebuilt, "A directory counts other subdirectories than it has.";
    Nameless, "nameless", Salvaged, "No name leads to an inode that counts names.";
    OrphanNamed, "orphan-named", Rebuilt, "A name leads to an inode that counts none.";
    OrphanClosed, "orphan-closed", Rebuilt, "An inode without a name is kept, and nobody has it open.";
    OrphanEntries, "orphan-entries", Salvaged, "A directory that was removed has names.";
    PartMissing, "part-missing", Salvaged, "A directory names a part that is not there, or is another directory's.";
    PartUnnamed, "part-unnamed", Rebuilt, "A part of a directory is there that its directory does not name.";
    PartRange, "part-range", Rebuilt, "A part of a directory holds a name outside of its range.";
    PartEmpty, "part-empty", Rebuilt, "A part of a directory holds no name.";
    PartForeign, "part-foreign", Rebuilt, "A part of a directory lies in another owner's shard.";
    DirectoryNames, "directory-names", Salvaged, "Two names lead to a directory.";
    DirectoryParent, "directory-parent", Rebuilt, "A directory names another parent than the one that names it.";
    DirectoryCycle, "directory-cycle", Salvaged, "Directories lie in one another, out of reach of the root.";
    ExtentCopies, "extent-copies", Salvaged, "Two copies of an extent lie on the same NSD.";
    ExtentPlace, "extent-place", None, "An extent lies outside of every NSD's sectors for data.";
    ExtentRegion, "extent-region", None, "An extent lies in a region that the file's owner does not hold for data.";
    SectorTwice, "sector-twice", None, "Two files, or a file and a tree, use the same sectors.";
    SectorFree, "sector-free", Rebuilt, "Sectors of a file count as free.";
    SectorGranted, "sector-granted", Rebuilt, "Sectors of a file count as granted, or are in quarantine.";
    PromiseBroken, "promise-broken", None, "More free sectors are promised to files than their owner has.";
    SectorLeak, "sector-leak", Rebuilt, "Sectors count as used, and no file has them.";
    RegionTwice, "region-twice", None, "Two owners hold the same region.";
    RegionUnrecorded, "region-unrecorded", Rebuilt, "An owner holds a region that the region table does not give it.";
    RegionUnknown, "region-unknown", Rebuilt, "The region table names a region or an owner that does not exist.";
    TransactionShard, "transaction-shard", None, "A transaction names a shard that does not exist.";
    TransactionSteps, "transaction-steps", None, "The steps of a committed transaction do not fit the shard that prepared them.";
    TransactionLost, "transaction-lost", None, "A committed transaction is neither prepared nor done at a participant.";
    OpenMissing, "open-missing", Rebuilt, "A node has an inode open that is not there.";
    SlotNumber, "slot-number", Rebuilt, "An answer is kept for a slot that does not exist.";
    DataSector, "data-sector", None, "A sector of a file does not match its checksum.";
    DataChecksums, "data-checksums", None, "The checksum sectors of a run do not match their root.";
    DataUnreadable, "data-unreadable", None, "The disk does not return sectors of a file.";
}

/// Something that is wrong.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finding {
    /// What.
    pub kind: Kind,
    /// The inode that it is about, if it is about one.
    pub ino: Option<InodeId>,
    /// The inode that it is about, too: that of a name.
    pub other: Option<InodeId>,
    /// The shard whose tree it is about, where the words hold what changes: counts.
    pub shard: Option<ShardId>,
    /// Where, and in numbers what.
    pub text: String,
}

/// All that was found.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Findings {
    list: Vec<Finding>,
    counts: BTreeMap<Kind, u64>,
    /// The shards whose trees there are findings about, kept or not.
    trees: BTreeMap<Kind, BTreeSet<ShardId>>,
    /// All are kept, however many.
    is_complete: bool,
}

impl Findings {
    /// None, that will keep all there are: what a repair goes by.
    pub(crate) fn complete() -> Self {
        Self {
            is_complete: true,
            ..Self::default()
        }
    }

    /// Something is wrong.
    pub fn add(&mut self, kind: Kind, ino: Option<InodeId>, text: impl Into<String>) {
        self.push(kind, (ino, None), text);
    }

    fn push(
        &mut self,
        kind: Kind,
        (ino, other): (Option<InodeId>, Option<InodeId>),
        text: impl Into<String>,
    ) {
        self.note(kind, || Finding {
            kind,
            ino,
            other,
            shard: None,
            text: text.into(),
        });
    }

    /// About the tree of a shard.
    pub fn of_tree(&mut self, kind: Kind, shard: ShardId, text: String) {
        self.trees.entry(kind).or_default().insert(shard);
        self.note(kind, || Finding {
            kind,
            ino: None,
            other: None,
            shard: Some(shard),
            text,
        });
    }

    /// This one.
    pub(crate) fn put(&mut self, finding: Finding) {
        self.note(finding.kind, || finding);
    }

    fn note(&mut self, kind: Kind, finding: impl FnOnce() -> Finding) {
        let count = self.counts.entry(kind).or_default();
        *count += 1;
        if *count <= COUNT_MAX || self.is_complete {
            self.list.push(finding());
        }
    }

    /// About an inode.
    pub fn of(&mut self, kind: Kind, ino: InodeId, text: impl Into<String>) {
        self.add(kind, Some(ino), text);
    }

    /// About a name: its directory, and the inode that it leads to.
    pub fn of_name(&mut self, kind: Kind, (directory, ino): (InodeId, InodeId), text: String) {
        self.push(kind, (Some(directory), Some(ino)), text);
    }

    /// And these.
    pub fn extend(&mut self, others: Self) {
        for (kind, count) in &others.counts {
            *self.counts.entry(*kind).or_default() += count;
        }
        for (kind, shards) in others.trees {
            self.trees.entry(kind).or_default().extend(shards);
        }
        self.list.extend(others.list);
        let mut kept = BTreeMap::<Kind, u64>::new();
        self.list.retain(|finding| {
            let count = kept.entry(finding.kind).or_default();
            *count += 1;
            *count <= COUNT_MAX
        });
    }

    /// Those that were kept, in the order in which they were found.
    pub fn list(&self) -> &[Finding] {
        &self.list
    }

    /// How many of each kind, kept or not.
    pub fn counts(&self) -> &BTreeMap<Kind, u64> {
        &self.counts
    }

    /// The shards whose trees have this, also where it was not kept.
    pub(crate) fn trees(&self, kind: Kind) -> impl Iterator<Item = ShardId> {
        self.trees.get(&kind).into_iter().flatten().copied()
    }

    /// Nothing is wrong.
    pub fn is_empty(&self) -> bool {
        self.counts.is_empty()
    }
}

//! What a look at a file system in use says, until further looks confirm it: only what is true is told.
//!
//! A look (`Image`) has of each owner the exact state that its journal says up to some record, and of each another moment. So what
//! one owner's state says by itself is true at once, and what two owners' states say together may never have been so: a
//! name here, its inode there, and between the two moments it was made.
//!
//! Invariants
//! - What is told was found in `LOOK_COUNT` looks, one after the other, none of which began before the one before it had ended.
//! - What is about names and inodes (`Standing::AtRest`) is told if in all these looks no inode that it is about had changed, and
//!   no transaction under way named it. Then the look in the middle is right about it: whatever makes or removes a name changes
//!   its inode, too. What had changed the inode before the first look was committed, and so prepared everywhere, before the middle one
//!   began: there it is performed or seen under way. What changes it after the last look was committed when the middle one was over.
//! - What three looks have agreed on stays told, whatever later looks say.
//! - Silence refutes only where the look could have said it: it lacks no owner, shard or disk that was there when it was said, and
//!   says no more of the kind than are kept. Else what was said is a suspicion still, and the looks that agree begin anew.
//! - What no look said that could see it is followed: what the first one says, and a later one where it sees what none before it
//!   saw; of kinds of which more was said than are kept what any look says; and where something is said no more, what is said
//!   instead: of the same kind in other words, of the same inode as another kind.
//!
//! What this deliberately does not do: it asks nobody. What never rests (a file that is written all the time) cannot be
//! confirmed where two owners must agree on it; it is counted (`unsettled_count`) and not told.

use std::collections::{BTreeMap, BTreeSet};

use node::meta::Step;
use types::{InodeId, NodeId, ShardId};

use crate::finding::{COUNT_MAX, Finding, Findings, Kind};
use crate::{Image, Paths};

/// Looks that have to agree.
pub const LOOK_COUNT: u32 = 3;

/// What has to be the same in all looks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Standing {
    /// One owner's state says it of this inode, or of this shard's tree, in whatever words.
    Alone,
    /// Owners say it together, of these inodes, which have to be at rest.
    AtRest,
    /// The words, which name all that it is about.
    InWords,
}

fn standing(kind: Kind) -> Standing {
    match kind {
        Kind::NameDangling
        | Kind::NameKind
        | Kind::LinkCount
        | Kind::Nameless
        | Kind::OrphanNamed
        | Kind::DirectoryNames
        | Kind::DirectoryParent
        | Kind::DirectoryCycle => Standing::AtRest,
        Kind::RootInode
        | Kind::NextIndex
        | Kind::InodeMode
        | Kind::InodeSize
        | Kind::InodeTime
        | Kind::InodeDevice
        | Kind::InodeLayout
        | Kind::SymlinkTarget
        | Kind::XattrName
        | Kind::AclValue
        | Kind::AclFlag
        | Kind::AclMode
        | Kind::SectorCount
        | Kind::MapBehindEnd
        | Kind::NameCookie
        | Kind::NameTwice
        | Kind::NameOfRoot
        | Kind::DirectoryLinks
        | Kind::PartMissing
        | Kind::PartUnnamed
        | Kind::PartRange
        | Kind::PartEmpty
        | Kind::PartForeign
        | Kind::OrphanClosed
        | Kind::OrphanEntries
        | Kind::ExtentCopies
        | Kind::ExtentPlace
        | Kind::OpenMissing
        | Kind::TreeEntryCount
        | Kind::TreePageCount => Standing::Alone,
        Kind::NsdMissing
        | Kind::NsdOlder
        | Kind::LabelCopy
        | Kind::LabelLost
        | Kind::LabelForeign
        | Kind::LabelSize
        | Kind::LabelDiffers
        | Kind::ViewCopy
        | Kind::JournalHeader
        | Kind::JournalLost
        | Kind::JournalForeign
        | Kind::JournalVersion
        | Kind::JournalUnreadable
        | Kind::JournalPart
        | Kind::JournalMutation
        | Kind::SpaceRecord
        | Kind::TreeRoot
        | Kind::TreeBeside
        | Kind::TreePageCopy
        | Kind::TreePageUnreadable
        | Kind::TreePageLost
        | Kind::TreeOrder
        | Kind::TreePageNewer
        | Kind::TreePageTwice
        | Kind::TreeRecord
        | Kind::PagePlace
        | Kind::PageFree
        | Kind::PageLeak
        | Kind::ExtentRegion
        | Kind::SectorTwice
        | Kind::SectorFree
        | Kind::SectorGranted
        | Kind::PromiseBroken
        | Kind::SectorLeak
        | Kind::RegionTwice
        | Kind::RegionUnrecorded
        | Kind::RegionUnknown
        | Kind::TransactionShard
        | Kind::TransactionSteps
        | Kind::TransactionLost
        | Kind::SlotNumber
        | Kind::DataSector
        | Kind::DataChecksums
        | Kind::DataUnreadable => Standing::InWords,
    }
}

/// What makes two findings of two looks the same.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Key {
    kind: Kind,
    ino: Option<InodeId>,
    other: Option<InodeId>,
    shard: Option<ShardId>,
    words: Option<String>,
}

impl Key {
    fn of(finding: &Finding) -> Self {
        let is_in_words = standing(finding.kind) == Standing::InWords;
        Self {
            kind: finding.kind,
            ino: finding.ino,
            other: finding.other,
            shard: finding.shard,
            words: is_in_words.then(|| finding.text.clone()),
        }
    }

    /// What is the same when it is said differently in another look.
    fn topic(&self) -> (Option<Kind>, Option<InodeId>) {
        match standing(self.kind) {
            Standing::AtRest => (None, self.ino),
            Standing::Alone => (Some(self.kind), self.ino),
            Standing::InWords => (Some(self.kind), None),
        }
    }
}

/// What a look could not see, or not all of.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Lack {
    Shard(ShardId),
    Space(NodeId),
    /// In words: why.
    Disk(String),
}

fn lacks(image: &Image, findings: &Findings) -> BTreeSet<Lack> {
    let shards = (0u16..).zip(&image.setup.owners).map(|(id, _)| ShardId(id));
    let shards = shards.filter(|id| !image.is_whole(*id)).map(Lack::Shard);
    let spaces = image.owners.iter().filter(|owner| owner.is_space_partial);
    let is_of_disk = |finding: &&Finding| {
        use Kind::{LabelForeign, LabelLost, LabelSize, NsdMissing};
        matches!(
            finding.kind,
            NsdMissing | LabelLost | LabelForeign | LabelSize
        )
    };
    let disks = findings.list().iter().filter(is_of_disk);
    shards
        .chain(spaces.map(|owner| Lack::Space(owner.node)))
        .chain(disks.map(|finding| Lack::Disk(finding.text.clone())))
        .collect()
}

/// What an inode was in a look: generation and count of changes; none: it was not there.
type State = (InodeId, Option<(u64, u64)>);

#[derive(Debug, Default)]
struct Doubt {
    /// What has to be at rest, as it was in the newest look that said it.
    states: Vec<State>,
    /// What that look lacked.
    lacks: BTreeSet<Lack>,
    /// Looks up to the newest that agree.
    agreed_count: u32,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Doubts {
    /// Neither confirmed nor refuted.
    doubts: BTreeMap<Key, Doubt>,
    confirmed: BTreeMap<Key, Vec<Finding>>,
    look_count: u32,
    /// What no look so far could see.
    unseen: BTreeSet<Lack>,
    /// Kinds of which more was said, when all was new, than are kept.
    overflown: BTreeSet<Kind>,
}

impl Doubts {
    /// Checks an image that was just loaded, and compares what is found, there and when it was loaded, with the looks before.
    pub fn look(&mut self, image: &mut Image, loaded: Findings) -> Paths {
        // Before the check ends what is under way.
        let under_way = under_way(image);
        let mut findings = loaded;
        let paths = image.check(&mut findings);
        let lacks = lacks(image, &findings);
        self.look_count += 1;
        let sees_more = self.look_count == 1 || !self.unseen.is_subset(&lacks);
        self.unseen = match self.look_count {
            1 => lacks.clone(),
            _ => self.unseen.intersection(&lacks).cloned().collect(),
        };
        let counts = findings.counts().iter();
        let over = counts.filter(|(_, count)| **count > COUNT_MAX);
        let over: BTreeSet<Kind> = over.map(|(kind, _)| *kind).collect();
        if sees_more {
            self.overflown.extend(&over);
        }
        let mut said: BTreeMap<Key, Vec<Finding>> = BTreeMap::new();
        for finding in findings.list() {
            let of_it = said.entry(Key::of(finding)).or_default();
            of_it.push(finding.clone());
        }
        let mut before = std::mem::take(&mut self.doubts);
        let mut gone = BTreeSet::new();
        for (key, mut doubt) in before.extract_if(.., |key, _| !said.contains_key(key)) {
            if lacks.is_subset(&doubt.lacks) && !over.contains(&key.kind) {
                gone.insert(key.topic());
            } else {
                doubt.agreed_count = 0;
                self.doubts.insert(key, doubt);
            }
        }
        for (key, findings) in said {
            let before = before.remove(&key);
            let is_followed = before.is_some()
                || sees_more
                || self.overflown.contains(&key.kind)
                || gone.contains(&key.topic());
            if self.confirmed.contains_key(&key) || !is_followed {
                continue;
            }
            // What is the same in the key is the same in what has to rest.
            let states = states(image, &paths, &findings[0]);
            let is_under_way = states.iter().any(|(ino, _)| under_way.contains(ino));
            let agreed_count = match before {
                _ if is_under_way => 0,
                Some(before) if before.states == states => before.agreed_count + 1,
                _ => 1,
            };
            if agreed_count >= LOOK_COUNT {
                self.confirmed.insert(key, findings);
                continue;
            }
            let doubt = Doubt {
                states,
                lacks: lacks.clone(),
                agreed_count,
            };
            self.doubts.insert(key, doubt);
        }
        paths
    }

    /// Looks so far.
    pub fn look_count(&self) -> u32 {
        self.look_count
    }

    /// Nothing is left that a further look could confirm or refute.
    pub fn is_settled(&self) -> bool {
        self.look_count > 0 && self.doubts.is_empty()
    }

    /// What never rested so far: suspicions that are neither confirmed nor refuted.
    pub fn unsettled_count(&self) -> usize {
        self.doubts.len()
    }

    /// What is confirmed, as the look says it that confirmed it.
    pub fn confirmed(&self) -> Findings {
        let mut findings = Findings::default();
        for finding in self.confirmed.values().flatten() {
            findings.put(finding.clone());
        }
        findings
    }
}

/// Inodes that are named by what is prepared anywhere.
fn under_way(image: &Image) -> BTreeSet<InodeId> {
    let mut all = BTreeSet::new();
    let prepared = image.shards().flat_map(|shard| shard.prepared());
    for step in prepared.flat_map(|(_, steps)| steps) {
        match step {
            Step::EntryInsert { directory, ino, .. } => all.extend([*directory, *ino]),
            Step::EntryRemove {
                directory, expects, ..
            } => all.extend([*directory, *expects]),
            Step::EntryReplace {
                directory,
                expects,
                ino,
                ..
            } => all.extend([*directory, *expects, *ino]),
            Step::DirectoryTouch { directory, .. } => all.extend([*directory]),
            Step::InodeCreate { record } => all.extend([record.attr.ino, record.parent]),
            Step::DirectoryParentSet { ino, parent } => all.extend([*ino, *parent]),
            Step::NewXattr { ino, .. }
            | Step::LinkAdd { ino, .. }
            | Step::LinkNameless { ino }
            | Step::LinkDrop { ino, .. }
            | Step::DirectoryRemove { ino, .. }
            | Step::InodeTouch { ino } => all.extend([*ino]),
        }
    }
    all
}

/// What the inodes that have to be at rest are in this look.
fn states(image: &Image, paths: &Paths, finding: &Finding) -> Vec<State> {
    if standing(finding.kind) != Standing::AtRest {
        return Vec::new();
    }
    let mut about: Vec<InodeId> = finding.ino.into_iter().chain(finding.other).collect();
    if finding.kind == Kind::DirectoryCycle {
        let mut at = finding.ino;
        while let Some(next) = at.and_then(|ino| paths.directory(ino)) {
            if about.contains(&next) || about.len() > types::limits::DEPTH_MAX {
                break;
            }
            about.push(next);
            at = Some(next);
        }
    }
    let state = |ino: InodeId| {
        let seen = image.seen(ino);
        (
            ino,
            seen.map(|seen| (seen.attr.generation, seen.attr.change)),
        )
    };
    about.into_iter().map(state).collect()
}

//! What a start of an owner would load, as far as it can be: every fault is noted and passed over.
//!
//! Invariants
//! - What is applied fits (`Shard::fits`); what does not is left out, and its shard counts as partial.
//! - Trees are walked, every copy of every page.

use std::collections::{BTreeMap, BTreeSet};

use ::data::sectors::SectorSet;
use ::data::space::{Geometry, Levels, RegionTable, Space};
use node::log::SpaceRecord;
use node::meta::records::{Loader, Unsaved};
use node::meta::{HashKey, Mutation, Shard};
use node::replay::ReadPage;
use node::store::format::PartKey;
use node::store::tree::walk::{Broken, Position, Walk, WalkStep};
use node::store::tree::{Root, TreeId};
use types::{Decode as _, FsId, NodeId, Reader, Run, ShardId};

use crate::finding::{Findings, Kind};

/// Pages that are read ahead.
const AHEAD_COUNT: usize = 16;
/// First sector that no NSD has.
pub(crate) const SECTOR_END: u64 = 1 << 52;

/// What the cluster view and the labels say.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The file system.
    pub fs: FsId,
    /// Key of the name hash.
    pub key: HashKey,
    /// Owner of each shard.
    pub owners: Vec<NodeId>,
    /// The NSDs.
    pub geometry: Vec<Geometry>,
}

impl Setup {
    /// The NSD.
    pub fn nsd(&self, id: types::NsdId) -> Option<&Geometry> {
        self.geometry.iter().find(|geometry| geometry.nsd == id)
    }
}

/// Sectors that something lies in.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Claim {
    /// Where.
    pub run: Run,
    /// A page of this tree; else a file's.
    pub page_of: Option<ShardId>,
    /// The file.
    pub file: types::InodeId,
}

/// What an owner has.
#[derive(Debug)]
pub struct Owner {
    /// The node.
    pub node: NodeId,
    /// Its shards.
    pub shards: BTreeMap<ShardId, Shard>,
    /// Roots of their trees.
    pub roots: BTreeMap<ShardId, Root>,
    /// Its sectors.
    pub space: Space,
    /// Shard 0's owner: who holds which region.
    pub table: Option<RegionTable>,
    /// Pages of its trees.
    pub pages: Vec<Claim>,
    /// Shards that lack something, because it is damaged.
    pub partial: BTreeSet<ShardId>,
    /// Its journal has nothing of anything: it is as `Journal::format` made it, and its daemon has never served.
    pub is_new: bool,
    /// What is in the space is not all that should be: a record of it did not fit.
    pub is_space_partial: bool,
    /// A record was passed over that is not understood, or is another owner's: a newer version may understand it.
    pub is_unread: bool,
}

#[derive(Debug)]
struct Part {
    shard: Shard,
    root: Option<Root>,
    beside: Vec<Unsaved>,
    is_begun: bool,
}

/// An owner that is being loaded.
#[derive(Debug)]
pub struct Loading {
    fs: FsId,
    parts: BTreeMap<ShardId, Part>,
    owner: Owner,
    claimed: SectorSet,
    /// What was found.
    pub findings: Findings,
}

impl Loading {
    /// `node`, of which nothing has been read.
    pub fn new(setup: &Setup, node: NodeId) -> Self {
        let owned = (0u16..)
            .zip(&setup.owners)
            .filter(|(_, owner)| **owner == node);
        let part = |id: u16| Part {
            shard: Shard::new(ShardId(id), setup.key),
            root: None,
            beside: Vec::new(),
            is_begun: false,
        };
        let has_table = setup.owners.first() == Some(&node);
        Self {
            fs: setup.fs,
            parts: owned.map(|(id, _)| (ShardId(id), part(id))).collect(),
            owner: Owner {
                node,
                shards: BTreeMap::new(),
                roots: BTreeMap::new(),
                space: Space::new(&setup.geometry, Levels { reserve: 0, low: 0 }),
                table: has_table.then(|| RegionTable::new(&setup.geometry)),
                pages: Vec::new(),
                partial: BTreeSet::new(),
                is_new: true,
                is_space_partial: false,
                is_unread: false,
            },
            claimed: SectorSet::new(),
            findings: Findings::default(),
        }
    }

    /// A part of a record, in the order of the journal.
    pub fn apply(&mut self, key: PartKey, bytes: &[u8], read: &mut ReadPage<'_>) {
        self.owner.is_new &= bytes.is_empty();
        match key {
            // This version keeps the table's records in the space part.
            PartKey::RegionTable => {}
            PartKey::Space => self.apply_space(bytes),
            PartKey::Shard(id) => match self.parts.remove(&id) {
                Some(mut part) => {
                    self.apply_shard(&mut part, bytes, read);
                    self.parts.insert(id, part);
                }
                None => {
                    let text = format!(
                        "journal of {}: it holds {id}, which is another's",
                        self.owner.node
                    );
                    self.owner.is_unread = true;
                    self.findings.add(Kind::JournalPart, None, text);
                }
            },
        }
    }

    fn apply_space(&mut self, bytes: &[u8]) {
        let node = self.owner.node;
        let mut reader = Reader::new(bytes);
        while reader.remaining() > 0 {
            match SpaceRecord::decode(&mut reader) {
                Ok(SpaceRecord::Space(mutation)) => {
                    if let Err(error) = self.owner.space.apply(&mutation) {
                        self.owner.is_space_partial = true;
                        let text = format!("space of {node}: {error}");
                        self.findings.add(Kind::SpaceRecord, None, text);
                    }
                }
                Ok(SpaceRecord::Table(mutation)) => {
                    if let Some(table) = &mut self.owner.table {
                        table.apply(&mutation);
                    }
                }
                Err(error) => {
                    self.owner.is_space_partial = true;
                    self.owner.is_unread = true;
                    let text = format!("journal of {node}, space: {error}");
                    return self.findings.add(Kind::JournalPart, None, text);
                }
            }
        }
    }

    fn apply_shard(&mut self, part: &mut Part, bytes: &[u8], read: &mut ReadPage<'_>) {
        let id = part.shard.id();
        let mut reader = Reader::new(bytes);
        while reader.remaining() > 0 {
            let mutation = match Mutation::decode(&mut reader) {
                Ok(mutation) => mutation,
                Err(error) => {
                    let text = format!("journal of {}, {id}: {error}", self.owner.node);
                    return self.partial(id, Kind::JournalPart, text);
                }
            };
            match mutation {
                Mutation::TreeRoot { root } => match Root::decode(&root) {
                    Ok(root) if root.shard == id && part.root.is_none() && !part.is_begun => {
                        part.root = Some(root);
                    }
                    Ok(_) => {
                        let text = format!("{id}: a root of another shard, or in the wrong place");
                        self.partial(id, Kind::TreeRoot, text);
                    }
                    Err(error) => self.partial(id, Kind::TreeRoot, format!("{id}: {error}")),
                },
                Mutation::TreeRecord { key, value } => {
                    if part.is_begun || part.root.is_none() {
                        let text = format!("{id}: a record beside a tree in the wrong place");
                        self.partial(id, Kind::TreeBeside, text);
                    } else {
                        part.beside.push((key, value));
                    }
                }
                mutation => {
                    self.begin(part, read);
                    match part.shard.fits(&mutation) {
                        Ok(()) => part.shard.apply(&mutation),
                        Err(error) => {
                            let text = format!("{id}: {error}");
                            self.partial(id, Kind::JournalMutation, text);
                        }
                    }
                }
            }
        }
    }

    fn partial(&mut self, shard: ShardId, kind: Kind, text: String) {
        self.owner.partial.insert(shard);
        self.findings.add(kind, None, text);
    }

    /// Reads the tree, if there is one, and lays what lies beside it over it.
    fn begin(&mut self, part: &mut Part, read: &mut ReadPage<'_>) {
        if part.is_begun {
            return;
        }
        part.is_begun = true;
        let Some(root) = part.root else {
            return part.shard.track();
        };
        let shard = part.shard.id();
        let mut beside = std::mem::take(&mut part.beside);
        let mut tree = Walk::new(
            TreeId { fs: self.fs, shard },
            &root,
            Position::BEGIN,
            AHEAD_COUNT,
        );
        // `new` names the first that does not fit: without it, again.
        while let Err(error) = Loader::new(&mut part.shard, beside.clone()) {
            let text = format!("{shard}: {}", error.describe());
            self.partial(shard, Kind::TreeBeside, text);
            let (node::meta::records::BadRecord::Key { key }
            | node::meta::records::BadRecord::Value { key, .. }
            | node::meta::records::BadRecord::Misfit { key }) = &error;
            let at = beside.iter().rposition(|(other, _)| other == key);
            beside.remove(at.expect("it names one of them"));
        }
        let loader = Loader::new(&mut part.shard, beside.clone()).expect("just tried");
        let mut loader = loader.lenient();
        let mut faults = Vec::new();
        let mut key = Vec::new();
        loop {
            let claimed = &mut self.claimed;
            let pages = &mut self.owner.pages;
            let step = tree.poll(&mut |run| {
                let is_free = run.at.sector < SECTOR_END && !claimed.overlaps(run);
                if is_free {
                    claimed.insert(run);
                    let (page_of, file) = (Some(shard), types::InodeId::default());
                    pages.push(Claim { run, page_of, file });
                }
                is_free
            });
            match step {
                WalkStep::Fetch(fetch) => {
                    let bytes = read(&fetch);
                    tree.on_read(fetch.id, bytes);
                }
                WalkStep::Broken(broken) => faults.push(broken),
                WalkStep::Leaf(page) => {
                    for at in 0..page.count() {
                        key.clear();
                        page.key_into(at, &mut key);
                        loader.push_lenient(&key, page.value(at));
                    }
                }
                WalkStep::Waiting => unreachable!("reads end at once"),
                WalkStep::Done => break,
            }
        }
        let misfits = loader.finish_lenient();
        for broken in faults {
            self.note_broken(shard, &broken);
        }
        for misfit in misfits {
            let text = format!("{shard}: {}", misfit.describe());
            self.partial(shard, Kind::TreeRecord, text);
        }
        part.shard.track_beside(root.page.is_some(), &beside);
    }

    fn note_broken(&mut self, shard: ShardId, broken: &Broken) {
        let (kind, is_whole) = match broken {
            Broken::Copy { .. } => (Kind::TreePageCopy, true),
            Broken::Unreadable { .. } => (Kind::TreePageUnreadable, true),
            Broken::Lost { .. } => (Kind::TreePageLost, false),
            Broken::Separators { .. } => (Kind::TreeOrder, false),
            Broken::Newer { .. } => (Kind::TreePageNewer, false),
            Broken::Double { .. } => (Kind::TreePageTwice, false),
            Broken::Entries { .. } => (Kind::TreeEntryCount, true),
            Broken::Pages { .. } => (Kind::TreePageCount, true),
        };
        if !is_whole {
            self.owner.partial.insert(shard);
        }
        let text = format!("tree of {shard}: {broken}");
        self.findings.of_tree(kind, shard, text);
    }

    /// The journal is over.
    pub fn finish(mut self, read: &mut ReadPage<'_>) -> (Owner, Findings) {
        self.owner.space.end_replay();
        for (id, mut part) in std::mem::take(&mut self.parts) {
            self.begin(&mut part, read);
            self.owner.shards.insert(id, part.shard);
            self.owner.roots.extend(part.root.map(|root| (id, root)));
        }
        (self.owner, self.findings)
    }
}

//! A small healthy file system of two owners as the journals would say it, to plant damage in.
#![allow(dead_code, reason = "each test program uses a part")]

use std::collections::{BTreeMap, BTreeSet};

use data::space::{Geometry, RegionId, SpaceMutation, TableMutation};
use fsck::{Findings, Image, Kind, Loading, Paths, Setup};
use node::log::SpaceRecord;
use node::meta::inode::InodeRecord;
use node::meta::{HashKey, Mutation};
use node::store::format::PartKey;
use node::store::tree::{Fetch, Unreadable};
use types::{
    Attr, Checksums, Encode as _, Extent, FileKind, FsId, Grant, GrantId, Incarnation, InodeId,
    Location, Name, NodeId, NodeLife, NsdId, Piece, Run, ShardId, SmallBytes, Timestamp,
};

pub(crate) const KEY: HashKey = HashKey(0x1234_5678_9abc_def0_0fed_cba9_8765_4321);
pub(crate) const LIFE: NodeLife = NodeLife {
    node: NodeId(1),
    incarnation: Incarnation(77),
};
/// First sector for data on each NSD.
pub(crate) const BEGIN: u64 = 1000;
/// Sectors of a region.
pub(crate) const REGION: u64 = 1024;

pub(crate) fn at(nsd: u16, sector: u64) -> Location {
    let nsd = NsdId(nsd);
    Location { nsd, sector }
}

pub(crate) fn run(nsd: u16, sector: u64, count: u32) -> Run {
    let at = at(nsd, sector);
    Run { at, count }
}

pub(crate) fn ino(shard: u16, index: u64) -> InodeId {
    InodeId::new(ShardId(shard), index)
}

pub(crate) fn attr(ino: InodeId, kind: FileKind, nlink: u32) -> Attr {
    Attr {
        nlink,
        ..Attr::new(ino, 1, kind, 0o755, Timestamp::default())
    }
}

pub(crate) fn name(text: &str) -> Name {
    Name::new(text.as_bytes()).expect("a name")
}

/// An extent with checksums of sectors of zeros.
pub(crate) fn inline(file_sector: u64, length: u32, place: Location) -> Extent {
    let crc = types::crc32c(&[0; 4096]);
    Extent {
        file_sector,
        length,
        birth: 0,
        is_shared: false,
        locations: vec![place],
        checksums: Checksums::Inline {
            crcs: vec![crc; length as usize],
        },
    }
}

pub(crate) struct World {
    pub(crate) setup: Setup,
    pub(crate) shards: BTreeMap<ShardId, Vec<Mutation>>,
    pub(crate) space: BTreeMap<NodeId, Vec<SpaceRecord>>,
    /// Pages of trees.
    pub(crate) disk: BTreeMap<Location, Box<[u8]>>,
    /// Owners whose journals cannot be read.
    pub(crate) lost: BTreeSet<NodeId>,
}

/// The file with two names, of which 4 sectors lie on NSD 1 and a piece over them.
pub(crate) const FILE: (u16, u64) = (0, 2);
/// The directory of the other owner, in the root.
pub(crate) const DIRECTORY: (u16, u64) = (1, 2);

impl World {
    /// Nothing but two NSDs and eight shards, dealt out to two owners in turn.
    pub(crate) fn empty() -> Self {
        let geometry = [1, 2].map(|nsd| Geometry {
            nsd: NsdId(nsd),
            data_begin: BEGIN,
            sector_count: 100_000,
            region_sectors: u32::try_from(REGION).expect("small"),
        });
        Self {
            setup: Setup {
                fs: FsId(0xf5),
                key: KEY,
                owners: (0..8).map(|shard| NodeId(1 + shard % 2)).collect(),
                geometry: geometry.to_vec(),
            },
            shards: BTreeMap::new(),
            space: BTreeMap::new(),
            disk: BTreeMap::new(),
            lost: BTreeSet::new(),
        }
    }

    pub(crate) fn healthy() -> Self {
        let mut world = Self::empty();
        let (root, file, directory) = (
            InodeId::ROOT,
            ino(FILE.0, FILE.1),
            ino(DIRECTORY.0, DIRECTORY.1),
        );
        world.directory(root, root, 3);
        world.put(Attr {
            size: 4 * 4096,
            ..attr(file, FileKind::File, 2)
        });
        world.map(file, vec![inline(0, 4, at(1, BEGIN))]);
        world.add(
            0,
            Mutation::MapLoad {
                index: 2,
                version: 1,
                extents: Vec::new(),
                pieces: vec![Piece {
                    offset: 100,
                    bytes: SmallBytes::new(b"piece"),
                }],
            },
        );
        world.entry(root, "file", file, FileKind::File);
        world.entry(root, "link", file, FileKind::File);
        let record = InodeRecord {
            attr: Attr {
                size: 4,
                ..attr(ino(0, 3), FileKind::Symlink, 1)
            },
            parent: InodeId::default(),
            target: SmallBytes::new(b"file"),
        };
        world.add(0, Mutation::InodePut { record });
        world.entry(root, "symlink", ino(0, 3), FileKind::Symlink);
        world.put(attr(ino(0, 4), FileKind::Fifo, 1));
        world.entry(root, "fifo", ino(0, 4), FileKind::Fifo);
        // A long run with checksum sectors.
        world.put(Attr {
            size: 20 * 4096,
            ..attr(ino(0, 5), FileKind::File, 1)
        });
        let (checksums, _) = data::checksum::seal(&[types::crc32c(&[0; 4096]); 20]);
        let long = Extent {
            length: 20,
            checksums,
            ..inline(0, 20, at(1, BEGIN + 10))
        };
        world.map(ino(0, 5), vec![long]);
        world.entry(root, "long", ino(0, 5), FileKind::File);
        // Without a name, and open.
        world.put(attr(ino(0, 6), FileKind::File, 0));
        world.open(6);
        world.directory(directory, root, 3);
        world.entry(root, "dir", directory, FileKind::Directory);
        world.directory(ino(1, 3), directory, 2);
        world.entry(directory, "sub", ino(1, 3), FileKind::Directory);
        world.put(Attr {
            rdev: 0x103,
            ..attr(ino(1, 4), FileKind::CharDevice, 1)
        });
        world.entry(directory, "null", ino(1, 4), FileKind::CharDevice);
        for node in [1, 2] {
            let region = RegionId {
                nsd: NsdId(node),
                index: 0,
            };
            let owner = NodeId(node);
            world.space(node, SpaceMutation::RegionTaken { region });
            world.table(TableMutation::Taken { region, owner });
        }
        for (sector, count) in [(BEGIN, 4), (BEGIN + 10, 21)] {
            world.granted(run(1, sector, count));
            let run = run(1, sector, count);
            world.space(1, SpaceMutation::Consumed { life: LIFE, run });
        }
        world
    }

    pub(crate) fn add(&mut self, shard: u16, mutation: Mutation) {
        self.shards
            .entry(ShardId(shard))
            .or_default()
            .push(mutation);
    }

    pub(crate) fn put(&mut self, attr: Attr) {
        let record = InodeRecord {
            attr,
            parent: InodeId::default(),
            target: SmallBytes::default(),
        };
        self.add(attr.ino.shard().0, Mutation::InodePut { record });
    }

    pub(crate) fn directory(&mut self, ino: InodeId, parent: InodeId, nlink: u32) {
        let record = InodeRecord {
            attr: attr(ino, FileKind::Directory, nlink),
            parent,
            target: SmallBytes::default(),
        };
        self.add(ino.shard().0, Mutation::InodePut { record });
    }

    /// Other attributes of an inode that is there.
    pub(crate) fn change(&mut self, ino: InodeId, change: impl FnOnce(&mut Attr)) {
        let all = self
            .shards
            .get_mut(&ino.shard())
            .expect("its shard is there");
        let attr = all.iter_mut().rev().find_map(|mutation| match mutation {
            Mutation::InodePut { record } if record.attr.ino == ino => Some(&mut record.attr),
            _ => None,
        });
        change(attr.expect("it is there"));
    }

    pub(crate) fn map(&mut self, ino: InodeId, extents: Vec<Extent>) {
        let load = Mutation::MapLoad {
            index: ino.index(),
            version: 1,
            extents,
            pieces: Vec::new(),
        };
        self.add(ino.shard().0, load);
    }

    pub(crate) fn entry(&mut self, directory: InodeId, text: &str, ino: InodeId, kind: FileKind) {
        self.entry_at(
            directory,
            text,
            KEY.first_cookie(text.as_bytes()),
            (ino, kind),
        );
    }

    pub(crate) fn entry_at(
        &mut self,
        directory: InodeId,
        text: &str,
        cookie: u64,
        (ino, kind): (InodeId, FileKind),
    ) {
        let put = Mutation::EntryPut {
            directory: directory.index(),
            cookie,
            name: name(text),
            ino,
            kind,
        };
        self.add(directory.shard().0, put);
    }

    pub(crate) fn open(&mut self, index: u64) {
        let (life, is_open) = (LIFE, true);
        self.add(
            0,
            Mutation::OpenPut {
                index,
                life,
                is_open,
            },
        );
    }

    pub(crate) fn xattr(&mut self, ino: InodeId, name: &[u8], value: &[u8]) {
        let put = Mutation::XattrPut {
            index: ino.index(),
            name: SmallBytes::new(name),
            value: SmallBytes::new(value),
        };
        self.add(ino.shard().0, put);
    }

    pub(crate) fn space(&mut self, node: u16, mutation: SpaceMutation) {
        let all = self.space.entry(NodeId(node)).or_default();
        all.push(SpaceRecord::Space(mutation));
    }

    pub(crate) fn granted(&mut self, run: Run) {
        let grant = Grant {
            id: GrantId(1),
            run,
            mac: 0,
        };
        self.space(1, SpaceMutation::Granted { life: LIFE, grant });
    }

    pub(crate) fn table(&mut self, mutation: TableMutation) {
        let all = self.space.entry(NodeId(1)).or_default();
        all.push(SpaceRecord::Table(mutation));
    }

    fn read(&self, fetch: &Fetch) -> Result<Box<[u8]>, Unreadable> {
        self.disk.get(&fetch.at).cloned().ok_or(Unreadable)
    }

    /// All that is found, and the image that it was found in.
    pub(crate) fn look(&self) -> (Findings, Image, Paths) {
        let (mut findings, mut image) = self.load();
        let paths = image.check(&mut findings);
        (findings, image, paths)
    }

    /// What is found when it is loaded, and what is loaded.
    pub(crate) fn load(&self) -> (Findings, Image) {
        let mut findings = Findings::default();
        let mut owners = Vec::new();
        for node in [NodeId(1), NodeId(2)] {
            if self.lost.contains(&node) {
                findings.add(Kind::JournalUnreadable, None, format!("node {node}"));
                continue;
            }
            let read = &mut |fetch: &Fetch| self.read(fetch);
            let mut loading = Loading::new(&self.setup, node);
            for (shard, mutations) in &self.shards {
                let is_its = self.setup.owners[usize::from(shard.0)] == node;
                let mut bytes = Vec::new();
                mutations.iter().for_each(|m| m.encode(&mut bytes));
                if is_its {
                    loading.apply(PartKey::Shard(*shard), &bytes, read);
                }
            }
            let mut bytes = Vec::new();
            let records = self.space.get(&node).into_iter().flatten();
            records.for_each(|record| record.encode(&mut bytes));
            loading.apply(PartKey::Space, &bytes, read);
            let (owner, found) = loading.finish(read);
            findings.extend(found);
            owners.push(owner);
        }
        (
            findings,
            Image::new(self.setup.clone(), owners, !self.lost.is_empty()),
        )
    }

    /// What is found in what would be written of this image.
    pub(crate) fn look_again(image: &Image) -> (Findings, Image) {
        let mut world = Self::empty();
        world.setup = image.setup.clone();
        for owner in &image.owners {
            for (id, shard) in &owner.shards {
                assert!(owner.roots.is_empty(), "without trees");
                shard.snapshot(&mut |mutation| world.add(id.0, mutation));
            }
            let node = owner.node.0;
            owner.space.snapshot(&mut |m| world.space(node, m));
            if let Some(table) = &owner.table {
                table.snapshot(&mut |m| world.table(m));
            }
        }
        let (findings, image, _) = world.look();
        (findings, image)
    }
}

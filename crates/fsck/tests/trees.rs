//! Damage planted in the tree of a shard: pages, roots, records, and what lies beside.
#![allow(clippy::unwrap_used, reason = "a test")]

mod world;

use data::space::{RegionId, SpaceMutation, TableMutation};
use fsck::repair::repair;
use fsck::{Doubts, Kind};
use node::meta::{Mutation, Shard};
use node::store::tree::testing::{Edit, Rig, TREE};
use node::store::tree::{Copies, Root};
use types::{FileKind, InodeId, Location, NodeId, NsdId, Run, SmallBytes, Timestamp};
use world::{KEY, World, attr, ino, run};

/// Files of the shard with the tree.
const COUNT: u64 = 100;

/// The shard's records on pages of one sector, two copies each.
struct Planted {
    world: World,
    rig: Rig,
    /// What lies beside the tree.
    beside: Vec<Mutation>,
}

fn record(key: &[u8], value: &[u8]) -> (Vec<u8>, Edit) {
    (key.to_vec(), Edit::Put(value.to_vec()))
}

impl Planted {
    fn new() -> Self {
        Self::with(&[])
    }

    /// With these records, too.
    fn with(more: &[(Vec<u8>, Edit)]) -> Self {
        let mut world = World::empty();
        world.setup.fs = TREE.fs;
        for geometry in &mut world.setup.geometry {
            geometry.data_begin = 0;
        }
        world.directory(InodeId::ROOT, InodeId::ROOT, 2);
        let mut shard = Shard::new(TREE.shard, KEY);
        for index in 2..2 + COUNT {
            let ino = ino(TREE.shard.0, index);
            world.put(attr(ino, FileKind::File, 1));
            world.entry(InodeId::ROOT, &format!("file{index}"), ino, FileKind::File);
        }
        for mutation in world.shards.remove(&TREE.shard).unwrap() {
            shard.apply(&mutation);
        }
        let mut edits = more.to_vec();
        shard.records(&mut |(key, value)| edits.push(record(&key, &value.unwrap())));
        edits.sort_by(|a, b| a.0.cmp(&b.0));
        let mut rig = Rig::new(1, 1, 1 << 20);
        rig.copy_count = 2;
        rig.apply(&edits).unwrap();
        assert!(rig.root.height() > 1, "leaves and a page over them");
        Self {
            world,
            rig,
            beside: Vec::new(),
        }
    }

    /// Where the root page lies, and a leaf: both copies.
    fn leaf(&self) -> [Location; 2] {
        let root = self.rig.root.page.unwrap();
        let bytes = self.rig.disk[&root.copies[0]].clone();
        let page = node::store::tree::Page::verify(TREE, &root, bytes).unwrap();
        let child = page.child(1);
        [child.copies[0], child.copies[1]]
    }

    fn flip(&mut self, at: Location) {
        self.rig.disk.get_mut(&at).unwrap()[200] ^= 4;
    }

    /// Kinds of what is found, with this root and these sectors for pages.
    fn world(&self, root: &[u8], used: &[Run]) -> World {
        let mut world = World {
            setup: self.world.setup.clone(),
            shards: self.world.shards.clone(),
            space: Default::default(),
            disk: self.rig.disk.clone(),
            lost: Default::default(),
        };
        let root = SmallBytes::new(root);
        world.add(TREE.shard.0, Mutation::TreeRoot { root });
        for mutation in &self.beside {
            world.add(TREE.shard.0, mutation.clone());
        }
        let next = Mutation::NextIndex { index: 1000 };
        world.add(TREE.shard.0, next);
        for nsd in [1, 2] {
            let (region, owner) = (
                RegionId {
                    nsd: NsdId(nsd),
                    index: 0,
                },
                NodeId(2),
            );
            world.table(TableMutation::Taken { region, owner });
            world.space(2, SpaceMutation::RegionTaken { region });
            world.space(2, SpaceMutation::RegionForPages { region });
        }
        let runs = used.to_vec();
        world.space(2, SpaceMutation::PagesUsed { runs });
        world
    }

    fn kinds(&self, root: &[u8], used: &[Run]) -> Vec<Kind> {
        let (findings, ..) = self.world(root, used).look();
        eprintln!("{:#?}", findings.list());
        findings.counts().keys().copied().collect()
    }

    fn used(&self) -> Vec<Run> {
        let pages = self.rig.submitted().iter();
        pages.map(|at| run(at.nsd.0, at.sector, 1)).collect()
    }

    fn found(&self) -> Vec<Kind> {
        self.kinds(&self.rig.root.encode(), &self.used())
    }

    fn found_with_root(&self, change: impl FnOnce(&mut Root)) -> Vec<Kind> {
        let mut root = self.rig.root;
        change(&mut root);
        self.kinds(&root.encode(), &self.used())
    }
}

#[test]
fn a_healthy_tree_is_clean() {
    assert_eq!(Planted::new().found(), []);
}

#[test]
fn pages() {
    let leaf = Planted::new().leaf();
    let mut flipped = Planted::new();
    flipped.flip(leaf[1]);
    assert_eq!(flipped.found(), [Kind::TreePageCopy]);
    let mut zeroed = Planted::new();
    zeroed.rig.disk.get_mut(&leaf[0]).unwrap().fill(0);
    assert_eq!(zeroed.found(), [Kind::TreePageCopy]);
    let mut misdirected = Planted::new();
    let root = misdirected.rig.root.page.unwrap();
    let other = misdirected.rig.disk[&root.copies[0]].clone();
    misdirected.rig.disk.insert(leaf[0], other);
    assert_eq!(misdirected.found(), [Kind::TreePageCopy]);
    let mut stale = Planted::new();
    let before = stale.rig.disk[&leaf[0]].clone();
    let key = SmallBytes::new(b"\0\0\0\0\x02\0\x40user.x\0\0");
    stale.rig.apply(&[record(&key, b"new")]).unwrap();
    for at in stale.used().iter().map(|run| run.at).take(1) {
        stale.rig.disk.insert(at, before.clone());
    }
    assert!(stale.found().contains(&Kind::TreePageCopy));
    let mut unreadable = Planted::new();
    unreadable.rig.disk.remove(&leaf[0]);
    assert_eq!(unreadable.found(), [Kind::TreePageUnreadable]);
    // Both copies: what is below is not seen, and nothing follows from that.
    let mut lost = Planted::new();
    lost.flip(leaf[0]);
    lost.flip(leaf[1]);
    assert_eq!(lost.found(), [Kind::TreePageCopy, Kind::TreePageLost]);
}

#[test]
fn roots() {
    let planted = Planted::new();
    let entries = planted.found_with_root(|root| root.entries += 1);
    assert_eq!(entries, [Kind::TreeEntryCount]);
    let pages = planted.found_with_root(|root| root.pages += 1);
    assert_eq!(pages, [Kind::TreePageCount]);
    let newer = planted.found_with_root(|root| root.lsn = types::Lsn(0));
    assert_eq!(newer, [Kind::TreePageNewer]);
    let twice = planted.found_with_root(|root| {
        let page = root.page.as_mut().unwrap();
        let at = page.copies[0];
        page.copies = Copies::new(&[at, at]);
    });
    assert_eq!(twice, [Kind::TreePageTwice]);
    let another = planted.found_with_root(|root| root.shard = types::ShardId(5));
    assert_eq!(another, [Kind::TreeRoot]);
}

/// Of a file system in use each checkpoint counts anew: it is the tree that is counted wrong, not the number.
#[test]
fn wrong_counts_are_told_whatever_they_are() {
    let planted = Planted::new();
    let mut doubts = Doubts::default();
    for more in 1..=3 {
        let mut root = planted.rig.root;
        root.entries += more;
        root.pages += 2 * more;
        let (found, mut image) = planted.world(&root.encode(), &planted.used()).load();
        doubts.look(&mut image, found);
    }
    let told: Vec<Kind> = doubts.confirmed().counts().keys().copied().collect();
    assert_eq!(told, [Kind::TreeEntryCount, Kind::TreePageCount]);
    assert!(doubts.is_settled());
}

#[test]
fn sectors_of_pages() {
    let planted = Planted::new();
    let root = planted.rig.root.encode();
    let used = planted.used();
    assert_eq!(planted.kinds(&root, &used[1..]), [Kind::PageFree]);
    let more = [&used[..], &[run(1, 900, 1)]].concat();
    assert_eq!(planted.kinds(&root, &more), [Kind::PageLeak]);
    let mut outside = Planted::new();
    let page = outside.rig.root.page.unwrap();
    let bytes = outside.rig.disk[&page.copies[0]].clone();
    let at = Location {
        sector: 5000,
        ..page.copies[0]
    };
    outside.rig.disk.insert(at, bytes);
    let found = outside.found_with_root(|root| {
        let page = root.page.as_mut().unwrap();
        page.copies = Copies::new(&[at, page.copies[1]]);
    });
    assert_eq!(found, [Kind::PagePlace, Kind::PageLeak]);
}

#[test]
fn records() {
    let bad = |key: &[u8], value: &[u8]| Planted::with(&[record(key, value)]).found();
    // No kind of this version; a value that is none; a name in what is no directory; an inode that is not there.
    assert_eq!(bad(b"\0\0\0\0\x02\0\x99", b"x"), [Kind::TreeRecord]);
    assert_eq!(bad(b"\0\0\0\0\x02\0\x10", b"x"), [Kind::TreeRecord]);
    assert_eq!(
        bad(b"\0\0\0\0\0\x02\x20\0\0\0\0\0\0\0\x80", b"x"),
        [Kind::TreeRecord]
    );
    assert_eq!(
        bad(b"\0\0\0\0\x09\0\x40user.x\0\0", b"x"),
        [Kind::TreeRecord]
    );
    // The second slice of a value without its first.
    assert_eq!(
        bad(b"\0\0\0\0\0\x02\x40user.x\0\x01", b"x"),
        [Kind::TreeRecord]
    );
}

#[test]
fn what_lies_beside() {
    let beside = |records: &[(&[u8], Option<&[u8]>)]| {
        let mut planted = Planted::new();
        for (key, value) in records {
            let (key, value) = (SmallBytes::new(key), value.map(SmallBytes::new));
            planted.beside.push(Mutation::TreeRecord { key, value });
        }
        planted.found()
    };
    let (a, b) = (b"\0\0\0\0\0\x02\x40user.a\0", b"\0\0\0\0\0\x02\x40user.b\0");
    assert_eq!(beside(&[(a, Some(b"x")), (b, Some(b"y"))]), []);
    assert_eq!(
        beside(&[(b, Some(b"y")), (a, Some(b"x"))]),
        [Kind::TreeBeside]
    );
    assert_eq!(beside(&[(b"nonsense", None)]), [Kind::TreeBeside]);
    let misfit: (&[u8], Option<&[u8]>) = (b"\0\0\0\0\x09\0\x40user.a\0", Some(b"x"));
    assert_eq!(beside(&[misfit]), [Kind::TreeRecord]);
}

#[test]
fn a_shard_whose_tree_has_a_bad_copy_goes_to_the_journal() {
    let mut flipped = Planted::new();
    let leaf = flipped.leaf();
    flipped.flip(leaf[1]);
    let world = flipped.world(&flipped.rig.root.encode(), &flipped.used());
    let (findings, mut image, _) = world.look();
    let before = image.seen(ino(TREE.shard.0, 5)).map(|seen| *seen.attr);
    repair(&mut image, &findings, Timestamp::default()).unwrap();
    let (left, image) = World::look_again(&image);
    assert!(left.is_empty(), "{:#?}", left.list());
    let count: u64 = image.shards().map(|shard| shard.inode_count()).sum();
    assert_eq!(count, COUNT + 1);
    assert_eq!(
        image.seen(ino(TREE.shard.0, 5)).map(|seen| *seen.attr),
        before
    );
    // Both copies: nothing is repaired, as the names below would all be taken for damage.
    flipped.flip(leaf[0]);
    let world = flipped.world(&flipped.rig.root.encode(), &flipped.used());
    let (findings, mut image, _) = world.look();
    repair(&mut image, &findings, Timestamp::default()).unwrap_err();
}

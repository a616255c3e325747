//! Damage planted in a healthy file system: each kind is found under its name, and nothing else is.
#![allow(clippy::unwrap_used, reason = "a test")]

mod world;

use data::space::{RegionId, SpaceMutation, TableMutation};
use fsck::repair::repair;
use fsck::{Findings, Image, Kind, Remedy};
use node::meta::inode::{Dirent, InodeRecord};
use node::meta::message::Reply;
use node::meta::name_hash::TIE_BITS;
use node::meta::{Mutation, Step, TransactionId};
use types::attr::HAS_ACL;
use types::{
    Attr, Errno, FileKind, InodeId, Layout, NodeId, NsdId, RequestId, ShardId, SmallBytes,
    Timestamp,
};
use world::{BEGIN, DIRECTORY, FILE, KEY, LIFE, REGION, World, at, attr, inline, ino, name, run};

const ROOT: InodeId = InodeId::ROOT;

fn file() -> InodeId {
    ino(FILE.0, FILE.1)
}

fn directory() -> InodeId {
    ino(DIRECTORY.0, DIRECTORY.1)
}

/// What is planted, and all that is found then.
type Planted = (&'static str, Vec<Kind>, fn(&mut World));

fn check(planted: Vec<Planted>) {
    for (what, expected, plant) in planted {
        let mut world = World::healthy();
        plant(&mut world);
        let (findings, ..) = world.look();
        let kinds: Vec<Kind> = findings.counts().keys().copied().collect();
        assert_eq!(kinds, expected, "{what}: {:#?}", findings.list());
        check_repair(what, &world, &kinds);
    }
}

/// Found, and not repaired (of `next-index`: what has index 0).
const LEFT: [Kind; 3] = [Kind::SlotNumber, Kind::ExtentCopies, Kind::NextIndex];

/// Repair leaves what has no remedy, and what was healthy as it is.
fn check_repair(what: &str, world: &World, kinds: &[Kind]) {
    let (findings, mut image, _) = world.look();
    let before = contents(&image);
    let repaired = repair(&mut image, &findings, Timestamp::default());
    assert_eq!(repaired.is_err(), image.is_partial, "{what}");
    if repaired.is_err() {
        assert_eq!(contents(&image), before, "{what}: nothing is changed");
        return;
    }
    let left: Vec<Kind> = kinds
        .iter()
        .copied()
        .filter(|kind| kind.remedy() == Remedy::None)
        .collect();
    let (after, again) = World::look_again(&image);
    let is_left = |kind: &Kind| left.contains(kind) || LEFT.contains(kind);
    let new: Vec<&Kind> = after
        .counts()
        .keys()
        .filter(|kind| !is_left(kind))
        .collect();
    assert!(new.is_empty(), "{what}: {:#?}", after.list());
    // Once more it finds nothing to do.
    let mut twice = again;
    let now = contents(&twice);
    repair(&mut twice, &after, Timestamp::default()).unwrap();
    assert_eq!(contents(&twice), now, "{what}");
    // Of what was healthy nothing is gone, and its attributes are as they were.
    let (_, healthy, _) = World::healthy().look();
    for seen in healthy.shards().flat_map(|shard| shard.inspect()) {
        let planted = world.look().1;
        let same = planted
            .seen(seen.attr.ino)
            .is_some_and(|other| other.attr == seen.attr);
        let is_named = findings.list().iter().any(|f| f.ino == Some(seen.attr.ino));
        if same && !is_named && !seen.attr.ino.eq(&ROOT) {
            let attr = image.seen(seen.attr.ino).map(|seen| *seen.attr);
            assert_eq!(attr, Some(*seen.attr), "{what}");
        }
    }
}

/// All that would be written.
fn contents(image: &Image) -> Vec<String> {
    let mut all = Vec::new();
    for owner in &image.owners {
        for shard in owner.shards.values() {
            shard.snapshot(&mut |mutation| all.push(format!("{} {mutation:?}", shard.id())));
        }
        owner
            .space
            .snapshot(&mut |m| all.push(format!("{} {m:?}", owner.node)));
        if let Some(table) = &owner.table {
            table.snapshot(&mut |m| all.push(format!("{m:?}")));
        }
    }
    all
}

#[test]
fn repair_leaves_a_healthy_file_system_as_it_is() {
    let (findings, mut image, _) = World::healthy().look();
    let before = contents(&image);
    repair(&mut image, &findings, Timestamp::default()).unwrap();
    assert_eq!(contents(&image), before);
}

#[test]
fn what_has_no_name_gets_one() {
    let mut world = World::healthy();
    world.put(attr(ino(2, 9), FileKind::File, 3));
    world.directory(ino(3, 8), ROOT, 2);
    world.entry(ino(3, 8), "inner", ino(3, 9), FileKind::File);
    world.put(attr(ino(3, 9), FileKind::File, 1));
    let (findings, mut image, _) = world.look();
    repair(&mut image, &findings, Timestamp::default()).unwrap();
    let mut after = Findings::default();
    let paths = image.check(&mut after);
    assert!(after.is_empty(), "{:#?}", after.list());
    let path = |ino| paths.of(&image, ino);
    assert_eq!(path(ino(2, 9)).as_deref(), Some("/lost+found/#2.9"));
    assert_eq!(path(ino(3, 9)).as_deref(), Some("/lost+found/#3.8/inner"));
    assert_eq!(image.seen(ino(2, 9)).unwrap().attr.nlink, 1);
}

/// A small access control list that comes to 0755.
fn list(others: u8) -> Vec<u8> {
    let mut bytes = vec![2, 0, 0, 0];
    for (tag, rights) in [(1, 7), (4, 5), (0x20, others)] {
        bytes.extend([tag, 0, rights, 0, 255, 255, 255, 255]);
    }
    bytes
}

#[test]
fn a_healthy_file_system_is_clean() {
    let (findings, image, paths) = World::healthy().look();
    assert!(findings.is_empty(), "{:#?}", findings.list());
    assert_eq!(paths.of(&image, ROOT).as_deref(), Some("/"));
    assert_eq!(paths.of(&image, ino(1, 3)).as_deref(), Some("/dir/sub"));
    assert_eq!(paths.of(&image, ino(0, 6)), None);
}

#[test]
fn names_that_do_not_fit_inodes() {
    check(vec![
        ("a name of nothing", vec![Kind::NameDangling], |w| {
            w.entry(ROOT, "ghost", ino(0, 99), FileKind::File);
        }),
        (
            "a name into a shard that does not exist",
            vec![Kind::NameDangling],
            |w| {
                w.entry(ROOT, "ghost", ino(99, 9), FileKind::File);
            },
        ),
        ("another kind in the name", vec![Kind::NameKind], |w| {
            w.entry(ROOT, "fifo", ino(0, 4), FileKind::Socket);
        }),
        (
            "a name under a cookie of another",
            vec![Kind::NameCookie],
            |w| {
                w.put(attr(ino(0, 9), FileKind::File, 1));
                w.entry_at(ROOT, "odd", 5 << TIE_BITS, (ino(0, 9), FileKind::File));
            },
        ),
        ("a name twice", vec![Kind::NameTwice], |w| {
            let cookie = KEY.first_cookie(b"fifo") + 1;
            w.change(ino(0, 4), |attr| attr.nlink = 2);
            w.entry_at(ROOT, "fifo", cookie, (ino(0, 4), FileKind::Fifo));
        }),
        ("a name of the root", vec![Kind::NameOfRoot], |w| {
            w.entry(directory(), "up", ROOT, FileKind::Directory);
        }),
        ("too many links", vec![Kind::LinkCount], |w| {
            w.change(file(), |attr| attr.nlink = 3);
        }),
        ("too few links", vec![Kind::LinkCount], |w| {
            w.change(file(), |attr| attr.nlink = 1);
        }),
        ("a directory's links", vec![Kind::DirectoryLinks], |w| {
            w.change(directory(), |attr| attr.nlink = 7);
        }),
        ("an inode without a name", vec![Kind::Nameless], |w| {
            w.put(attr(ino(2, 9), FileKind::File, 1));
        }),
        ("a directory without a name", vec![Kind::Nameless], |w| {
            w.directory(ino(3, 9), ROOT, 2);
        }),
        ("an orphan with a name", vec![Kind::OrphanNamed], |w| {
            w.entry(ROOT, "again", ino(0, 6), FileKind::File);
        }),
        (
            "an orphan that nobody has open",
            vec![Kind::OrphanClosed],
            |w| {
                w.put(attr(ino(0, 9), FileKind::File, 0));
            },
        ),
        ("an orphan with names", vec![Kind::OrphanEntries], |w| {
            w.directory(ino(0, 9), ROOT, 0);
            w.open(9);
            w.entry(ino(0, 9), "file", file(), FileKind::File);
            w.change(file(), |attr| attr.nlink = 3);
        }),
        (
            "a directory with two names",
            vec![Kind::DirectoryNames],
            |w| {
                w.change(ROOT, |attr| attr.nlink = 4);
                w.entry(ROOT, "other", ino(1, 3), FileKind::Directory);
            },
        ),
        ("another parent", vec![Kind::DirectoryParent], |w| {
            let (index, parent) = (3, ROOT);
            w.add(1, Mutation::ParentPut { index, parent });
        }),
        ("a cycle", vec![Kind::DirectoryCycle], |w| {
            w.directory(ino(2, 8), ino(2, 9), 3);
            w.directory(ino(2, 9), ino(2, 8), 3);
            w.entry(ino(2, 8), "a", ino(2, 9), FileKind::Directory);
            w.entry(ino(2, 9), "b", ino(2, 8), FileKind::Directory);
        }),
        ("no root", vec![Kind::RootInode], |w| {
            w.change(ROOT, |attr| attr.nlink = 0);
            // It has names, no name leads to it, and nobody has it open.
            w.open(ROOT.index());
            w.shards
                .get_mut(&ShardId(0))
                .unwrap()
                .retain(|mutation| !matches!(mutation, Mutation::EntryPut { .. }));
            w.shards
                .get_mut(&ShardId(0))
                .unwrap()
                .retain(|mutation| match mutation {
                    Mutation::InodePut { record } => record.attr.ino == ROOT,
                    Mutation::MapLoad { .. } => false,
                    Mutation::OpenPut { index, .. } => *index == ROOT.index(),
                    _ => true,
                });
            w.shards.remove(&ShardId(1));
            w.space.get_mut(&NodeId(1)).unwrap().retain(|record| {
                !matches!(
                    record,
                    node::log::SpaceRecord::Space(
                        SpaceMutation::Granted { .. } | SpaceMutation::Consumed { .. }
                    )
                )
            });
        }),
    ]);
}

#[test]
fn inodes_that_cannot_be() {
    check(vec![
        ("bits of permissions", vec![Kind::InodeMode], |w| {
            w.change(file(), |attr| attr.permissions = 1 << 20);
        }),
        ("a size", vec![Kind::InodeSize], |w| {
            w.change(file(), |attr| attr.size = u64::MAX);
        }),
        ("a time", vec![Kind::InodeTime], |w| {
            let (secs, nanos) = (1, 1_000_000_000);
            w.change(file(), |attr| attr.mtime = Timestamp { secs, nanos });
        }),
        ("a device number", vec![Kind::InodeDevice], |w| {
            w.change(file(), |attr| attr.rdev = 5);
        }),
        ("a layout", vec![Kind::InodeLayout], |w| {
            w.change(file(), |attr| {
                attr.layout = Layout::new(&[NsdId(9)], None).unwrap()
            });
        }),
        ("a link's size", vec![Kind::SymlinkTarget], |w| {
            w.change(ino(0, 3), |attr| attr.size = 9);
        }),
        ("a count of sectors", vec![Kind::SectorCount], |w| {
            w.change(ino(0, 6), |attr| attr.sector_count = 9);
        }),
        ("bytes behind the end", vec![Kind::MapBehindEnd], |w| {
            w.change(file(), |attr| attr.size = 4096);
        }),
        ("index 0", vec![Kind::NextIndex], |w| {
            w.put(attr(ino(0, 0), FileKind::File, 1));
            w.entry(ROOT, "zero", ino(0, 0), FileKind::File);
        }),
        ("the name of an attribute", vec![Kind::XattrName], |w| {
            w.xattr(file(), &[b'x'; 300], b"value");
        }),
        ("a list that is none", vec![Kind::AclValue], |w| {
            w.change(file(), |attr| attr.permissions |= HAS_ACL);
            w.xattr(file(), b"system.posix_acl_access", b"nonsense");
        }),
        ("a list that is not marked", vec![Kind::AclFlag], |w| {
            w.xattr(file(), b"system.posix_acl_access", &list(5));
        }),
        ("a mark without a list", vec![Kind::AclFlag], |w| {
            w.change(file(), |attr| attr.permissions |= HAS_ACL);
        }),
        (
            "a list that says more than the mode",
            vec![Kind::AclMode],
            |w| {
                w.change(file(), |attr| attr.permissions |= HAS_ACL);
                w.xattr(file(), b"system.posix_acl_access", &list(7));
            },
        ),
        ("an open of nothing", vec![Kind::OpenMissing], |w| {
            w.open(77)
        }),
        ("a slot", vec![Kind::SlotNumber], |w| {
            let reply = Reply::Error(Errno::EIO);
            let (life, slot, request) = (LIFE, 999, RequestId(1));
            w.add(
                0,
                Mutation::AnswerPut {
                    life,
                    slot,
                    request,
                    reply,
                },
            );
        }),
    ]);
}

/// A file of one sector there, with a name.
fn one_sector(w: &mut World, extent: types::Extent) {
    w.put(Attr {
        size: 4096,
        ..attr(ino(0, 9), FileKind::File, 1)
    });
    w.entry(ROOT, "planted", ino(0, 9), FileKind::File);
    w.map(ino(0, 9), vec![extent]);
}

#[test]
fn sectors_and_regions() {
    check(vec![
        ("sectors of two files", vec![Kind::SectorTwice], |w| {
            one_sector(w, inline(0, 1, at(1, BEGIN + 2)));
        }),
        (
            "checksum sectors that are another file's",
            vec![Kind::SectorTwice],
            |w| {
                one_sector(w, inline(0, 1, at(1, BEGIN + 30)));
            },
        ),
        ("free sectors", vec![Kind::SectorFree], |w| {
            one_sector(w, inline(0, 1, at(1, BEGIN + 500)));
        }),
        ("granted sectors", vec![Kind::SectorGranted], |w| {
            one_sector(w, inline(0, 1, at(1, BEGIN + 500)));
            w.granted(run(1, BEGIN + 490, 20));
        }),
        ("sectors in quarantine", vec![Kind::SectorGranted], |w| {
            one_sector(w, inline(0, 1, at(1, BEGIN + 500)));
            w.granted(run(1, BEGIN + 490, 20));
            w.space(1, SpaceMutation::NodeLost { life: LIFE });
        }),
        (
            "a region of the other owner",
            vec![Kind::ExtentRegion],
            |w| {
                one_sector(w, inline(0, 1, at(2, BEGIN)));
            },
        ),
        (
            "a region that nobody holds",
            vec![Kind::ExtentRegion],
            |w| {
                one_sector(w, inline(0, 1, at(1, BEGIN + 3 * REGION)));
            },
        ),
        (
            "before the data",
            vec![Kind::ExtentPlace, Kind::ExtentRegion],
            |w| {
                one_sector(w, inline(0, 1, at(1, 3)));
            },
        ),
        (
            "behind the NSD",
            vec![Kind::ExtentPlace, Kind::ExtentRegion],
            |w| {
                one_sector(w, inline(0, 1, at(1, 1 << 40)));
            },
        ),
        (
            "an NSD that is not there",
            vec![Kind::ExtentPlace, Kind::ExtentRegion],
            |w| {
                one_sector(w, inline(0, 1, at(9, BEGIN)));
            },
        ),
        ("both copies on one NSD", vec![Kind::ExtentCopies], |w| {
            let mut extent = inline(0, 1, at(1, BEGIN + 500));
            extent.locations.push(at(1, BEGIN + 501));
            one_sector(w, extent);
            w.granted(run(1, BEGIN + 500, 2));
            let run = run(1, BEGIN + 500, 2);
            w.space(1, SpaceMutation::Consumed { life: LIFE, run });
        }),
        ("promised, and not there", vec![Kind::PromiseBroken], |w| {
            let (index, begin, end) = (FILE.1, 0, 1 << 40);
            w.add(0, Mutation::MapPromise { index, begin, end });
        }),
        ("used by no file", vec![Kind::SectorLeak], |w| {
            w.granted(run(1, BEGIN + 500, 2));
            let run = run(1, BEGIN + 500, 2);
            w.space(1, SpaceMutation::Consumed { life: LIFE, run });
        }),
        ("freed twice", vec![Kind::SpaceRecord], |w| {
            let run = run(1, BEGIN + 500, 2);
            w.space(1, SpaceMutation::Freed { run });
        }),
        ("a region of two", vec![Kind::RegionTwice], |w| {
            let (nsd, index) = (NsdId(1), 0);
            let region = RegionId { nsd, index };
            w.space(2, SpaceMutation::RegionTaken { region });
        }),
        (
            "a region that the table does not know",
            vec![Kind::RegionUnrecorded],
            |w| {
                let (nsd, index) = (NsdId(2), 5);
                let region = RegionId { nsd, index };
                w.space(2, SpaceMutation::RegionTaken { region });
            },
        ),
        (
            "a region that does not exist",
            vec![Kind::RegionUnknown],
            |w| {
                let (nsd, index) = (NsdId(2), 5000);
                let (region, owner) = (RegionId { nsd, index }, NodeId(2));
                w.table(TableMutation::Taken { region, owner });
            },
        ),
        ("a region of nobody's", vec![Kind::RegionUnknown], |w| {
            let (nsd, index) = (NsdId(2), 5);
            let (region, owner) = (RegionId { nsd, index }, NodeId(9));
            w.table(TableMutation::Taken { region, owner });
        }),
        ("pages that are none", vec![Kind::PageLeak], |w| {
            let (nsd, index) = (NsdId(1), 1);
            let (region, owner) = (RegionId { nsd, index }, NodeId(1));
            w.table(TableMutation::Taken { region, owner });
            w.space(1, SpaceMutation::RegionTaken { region });
            w.space(1, SpaceMutation::RegionForPages { region });
            let runs = vec![run(1, BEGIN + REGION, 4)];
            w.space(1, SpaceMutation::PagesUsed { runs });
        }),
    ]);
}

const ID: TransactionId = TransactionId {
    coordinator: ShardId(0),
    number: 5,
};

#[test]
fn transactions_that_do_not_end() {
    /// The other owner is to make an inode, which the root names.
    fn prepare(w: &mut World, steps: Vec<Step>) {
        let (id, now) = (ID, Timestamp::default());
        w.add(1, Mutation::Prepare { id, now, steps });
    }
    fn create() -> Vec<Step> {
        let record = InodeRecord {
            attr: attr(ino(1, 9), FileKind::File, 1),
            parent: InodeId::default(),
            target: SmallBytes::default(),
        };
        vec![Step::InodeCreate { record }]
    }
    fn decide(w: &mut World, participants: Vec<ShardId>) {
        w.add(
            0,
            Mutation::OutcomePut {
                id: ID,
                participants,
            },
        );
        w.entry(ROOT, "far", ino(1, 9), FileKind::File);
    }
    check(vec![
        ("one that is prepared and was not decided", vec![], |w| {
            prepare(w, create())
        }),
        ("one that is decided and not performed", vec![], |w| {
            prepare(w, create());
            decide(w, vec![ShardId(1)]);
        }),
        (
            "one that the participant has forgotten",
            vec![Kind::NameDangling, Kind::TransactionLost],
            |w| {
                decide(w, vec![ShardId(1)]);
            },
        ),
        (
            "a participant that does not exist",
            vec![Kind::TransactionShard],
            |w| {
                let participants = vec![ShardId(99)];
                w.add(
                    0,
                    Mutation::OutcomePut {
                        id: ID,
                        participants,
                    },
                );
            },
        ),
        (
            "one that frees what does not count as used",
            vec![Kind::SectorFree],
            |w| {
                let gone = ino(1, 9);
                w.put(Attr {
                    sector_count: 1,
                    ..attr(gone, FileKind::File, 1)
                });
                w.map(gone, vec![inline(0, 1, at(2, BEGIN + 500))]);
                let (ino, open_at) = (gone, None);
                prepare(w, vec![Step::LinkDrop { ino, open_at }]);
                let (id, participants) = (ID, vec![ShardId(1)]);
                w.add(0, Mutation::OutcomePut { id, participants });
            },
        ),
        ("steps that do not fit", vec![Kind::TransactionSteps], |w| {
            let (directory, name) = (directory(), name("nothing"));
            let expects = ino(1, 3);
            prepare(
                w,
                vec![Step::EntryRemove {
                    directory,
                    name,
                    expects,
                }],
            );
            let participants = vec![ShardId(1)];
            w.add(
                0,
                Mutation::OutcomePut {
                    id: ID,
                    participants,
                },
            );
        }),
    ]);
}

#[test]
fn journals_that_say_what_cannot_be() {
    check(vec![
        ("an inode twice", vec![Kind::JournalMutation], |w| {
            w.put(attr(ino(1, 3), FileKind::File, 1));
        }),
        (
            "an inode of another shard",
            vec![Kind::JournalMutation],
            |w| {
                let record = InodeRecord {
                    attr: attr(ino(5, 3), FileKind::File, 1),
                    parent: InodeId::default(),
                    target: SmallBytes::default(),
                };
                w.add(1, Mutation::InodePut { record });
            },
        ),
        ("attributes of nothing", vec![Kind::JournalMutation], |w| {
            let attr = attr(ino(1, 77), FileKind::File, 1);
            w.add(1, Mutation::AttrPut { index: 77, attr });
        }),
        ("another kind", vec![Kind::JournalMutation], |w| {
            let attr = attr(ino(1, 3), FileKind::File, 1);
            w.add(1, Mutation::AttrPut { index: 3, attr });
        }),
        (
            "a directory with names that goes",
            vec![Kind::JournalMutation],
            |w| {
                w.add(1, Mutation::InodeRemove { index: 2 });
            },
        ),
        (
            "a name that was not there",
            vec![Kind::JournalMutation],
            |w| {
                let (directory, cookie) = (2, 5);
                w.add(1, Mutation::EntryRemove { directory, cookie });
            },
        ),
        ("a name in a file", vec![Kind::JournalMutation], |w| {
            w.entry(ino(1, 4), "x", ino(1, 3), FileKind::File);
        }),
        (
            "an attribute that was not there",
            vec![Kind::JournalMutation],
            |w| {
                let (index, name) = (3, SmallBytes::new(b"user.x"));
                w.add(1, Mutation::XattrRemove { index, name });
            },
        ),
        ("extents of a directory", vec![Kind::JournalMutation], |w| {
            w.map(ino(1, 3), vec![inline(0, 1, at(1, BEGIN))]);
        }),
        (
            "extents over one another",
            vec![Kind::JournalMutation],
            |w| {
                w.map(file(), vec![inline(1, 1, at(1, BEGIN + 600))]);
            },
        ),
        (
            "an extent of no sectors",
            vec![Kind::JournalMutation],
            |w| {
                w.map(file(), vec![inline(9, 0, at(1, BEGIN + 600))]);
            },
        ),
        (
            "a hole behind all files",
            vec![Kind::JournalMutation],
            |w| {
                let (index, begin, end) = (FILE.1, 0, u64::MAX);
                w.add(0, Mutation::MapHole { index, begin, end });
            },
        ),
        ("a record beside no tree", vec![Kind::TreeBeside], |w| {
            let (key, value) = (SmallBytes::new(b"key"), None);
            w.add(1, Mutation::TreeRecord { key, value });
        }),
        ("a root that is none", vec![Kind::TreeRoot], |w| {
            let root = SmallBytes::new(&[9; 96]);
            w.add(1, Mutation::TreeRoot { root });
        }),
        ("steps of another shard", vec![Kind::JournalMutation], |w| {
            let (id, now) = (ID, Timestamp::default());
            let steps = vec![Step::InodeTouch { ino: ROOT }];
            w.add(1, Mutation::Prepare { id, now, steps });
        }),
    ]);
}

#[test]
fn bytes_that_are_no_mutations_and_shards_of_others() {
    use fsck::Loading;
    use node::store::format::PartKey;
    let world = World::healthy();
    let read = &mut |_: &_| Err(node::store::tree::Unreadable);
    for key in [
        PartKey::Shard(ShardId(0)),
        PartKey::Space,
        PartKey::Shard(ShardId(1)),
    ] {
        let mut loading = Loading::new(&world.setup, NodeId(1));
        loading.apply(key, &[250, 1, 2], read);
        let (_, findings) = loading.finish(read);
        let kinds: Vec<Kind> = findings.counts().keys().copied().collect();
        assert_eq!(kinds, [Kind::JournalPart], "{key:?}");
    }
}

#[test]
fn every_kind_has_a_name_of_its_own_and_is_described() {
    let text = include_str!("../../../docs/fsck.md");
    let mut names = std::collections::BTreeSet::new();
    for kind in Kind::ALL {
        assert!(names.insert(kind.name()), "{}", kind.name());
        let row = format!("| `{}` | {} |", kind.name(), kind.meaning());
        assert!(text.contains(&row), "docs/fsck.md has no row {row}");
    }
}

#[test]
fn of_one_kind_only_so_many_are_kept() {
    let mut world = World::healthy();
    for index in 0..1500 {
        world.entry(ROOT, &format!("ghost{index}"), ino(0, 9999), FileKind::File);
    }
    let (findings, ..) = world.look();
    assert_eq!(findings.counts()[&Kind::NameDangling], 1500);
    assert_eq!(findings.list().len(), 1000);
}

const BIG: (u16, u64) = (0, 20);
/// Parts of it: in its own shard and in another of its owner.
const PARTS: [(u16, u64); 2] = [(2, 40), (0, 41)];

fn big() -> InodeId {
    ino(BIG.0, BIG.1)
}

fn make_part(w: &mut World, part: InodeId, directory: InodeId) {
    let index = part.index();
    w.add(part.shard().0, Mutation::PartMake { index, directory });
}

fn name_part(w: &mut World, directory: InodeId, begin: u64, part: InodeId) {
    let put = Mutation::PartPut {
        directory: directory.index(),
        begin,
        part,
    };
    w.add(directory.shard().0, put);
}

fn put_in(w: &mut World, holder: InodeId, at: usize) {
    let (text, _) = &by_cookie()[at];
    w.entry(holder, text, ino(0, 30 + at as u64), FileKind::File);
}

/// Names of the directory in parts, and their cookies, in order.
fn by_cookie() -> Vec<(String, u64)> {
    let names = (0..10).map(|at| format!("name{at}"));
    let mut all: Vec<(String, u64)> = names
        .map(|name| {
            let cookie = KEY.first_cookie(name.as_bytes());
            (name, cookie)
        })
        .collect();
    all.sort_by_key(|(_, cookie)| *cookie);
    all
}

/// A directory of ten names, from `begins` on in parts.
fn in_parts(w: &mut World) {
    w.change(ROOT, |attr| attr.nlink += 1);
    w.directory(big(), ROOT, 2);
    w.entry(ROOT, "big", big(), FileKind::Directory);
    let mut holder = big();
    for (at, (_, cookie)) in by_cookie().into_iter().enumerate() {
        if let Some(part) = [3, 6].iter().position(|begin| *begin == at) {
            holder = ino(PARTS[part].0, PARTS[part].1);
            make_part(w, holder, big());
            name_part(w, big(), cookie, holder);
        }
        w.put(attr(ino(0, 30 + at as u64), FileKind::File, 1));
        // The last is for the tests.
        if at < 9 {
            put_in(w, holder, at);
        }
    }
}

#[test]
fn parts_that_do_not_fit_their_directory() {
    fn last(w: &mut World) {
        put_in(w, ino(PARTS[1].0, PARTS[1].1), 9);
    }
    check(vec![
        ("a directory in parts", vec![], |w| {
            in_parts(w);
            last(w);
        }),
        ("a part that is not there", vec![Kind::PartMissing], |w| {
            in_parts(w);
            last(w);
            name_part(w, big(), u64::MAX << TIE_BITS, ino(2, 49));
        }),
        (
            "a part of another directory",
            vec![Kind::Nameless, Kind::PartMissing, Kind::PartUnnamed],
            |w| {
                in_parts(w);
                last(w);
                make_part(w, ino(2, 49), directory());
                w.put(attr(ino(3, 60), FileKind::File, 1));
                w.entry(ino(2, 49), "file", ino(3, 60), FileKind::File);
                name_part(w, big(), u64::MAX << TIE_BITS, ino(2, 49));
            },
        ),
        (
            "a part that its directory does not name",
            vec![Kind::Nameless, Kind::PartUnnamed],
            |w| {
                in_parts(w);
                make_part(w, ino(2, 49), big());
                put_in(w, ino(2, 49), 9);
            },
        ),
        (
            "a part of what is not there",
            vec![Kind::Nameless, Kind::PartUnnamed],
            |w| {
                in_parts(w);
                make_part(w, ino(2, 49), ino(0, 99));
                put_in(w, ino(2, 49), 9);
            },
        ),
        (
            "a name outside of its part's range",
            vec![Kind::PartRange],
            |w| {
                in_parts(w);
                put_in(w, ino(PARTS[0].0, PARTS[0].1), 9);
            },
        ),
        (
            "a name of a part in the directory itself",
            vec![Kind::PartRange],
            |w| {
                in_parts(w);
                put_in(w, big(), 9);
            },
        ),
        ("a part without names", vec![Kind::PartEmpty], |w| {
            in_parts(w);
            last(w);
            make_part(w, ino(2, 49), big());
            name_part(w, big(), u64::MAX << TIE_BITS, ino(2, 49));
        }),
        ("a part of another owner", vec![Kind::PartForeign], |w| {
            in_parts(w);
            let begin = by_cookie()[9].1;
            make_part(w, ino(1, 49), big());
            name_part(w, big(), begin, ino(1, 49));
            put_in(w, ino(1, 49), 9);
        }),
        (
            "a name under a cookie of another part",
            vec![Kind::NameCookie],
            |w| {
                in_parts(w);
                let (text, _) = &by_cookie()[9];
                let cookie = by_cookie()[0].1 + 5;
                w.entry_at(big(), text, cookie, (ino(0, 39), FileKind::File));
            },
        ),
        (
            "a removed directory in parts",
            vec![Kind::OrphanNamed, Kind::OrphanEntries],
            |w| {
                in_parts(w);
                last(w);
                w.change(big(), |attr| attr.nlink = 0);
                w.open(BIG.1);
            },
        ),
    ]);
}

/// The holders of a directory's names, itself first, and their names in order.
type Held = Vec<(InodeId, Vec<String>)>;

fn held(image: &Image) -> Held {
    let seen = image.seen(big()).unwrap();
    let text = |entry: &Dirent| String::from_utf8(entry.name.bytes().to_vec()).unwrap();
    let holders = image.holders(&seen).into_iter();
    holders
        .map(|(holder, names)| (holder, names.values().map(text).collect()))
        .collect()
}

/// Sound parts stay where they are, whatever is wrong beside them, and no name gets lost.
#[test]
fn a_repair_moves_only_what_lies_in_a_wrong_place() {
    let names = |range: std::ops::Range<usize>| -> Vec<String> {
        by_cookie()[range]
            .iter()
            .map(|(name, _)| name.clone())
            .collect()
    };
    let parts = PARTS.map(|(shard, index)| ino(shard, index));
    let sound = |last: usize| {
        vec![
            (big(), names(0..3)),
            (parts[0], names(3..6)),
            (parts[1], names(6..last)),
        ]
    };
    type Plant = fn(&mut World);
    let planted: [(&str, Plant, Held); 5] = [
        (
            "a part without a place among the others gets one",
            |w| {
                make_part(w, ino(2, 49), big());
                put_in(w, ino(2, 49), 9);
            },
            [sound(9), vec![(ino(2, 49), names(9..10))]].concat(),
        ),
        (
            "all parts get their places back",
            |w| {
                let directory = big().index();
                for at in [3, 6] {
                    let begin = by_cookie()[at].1;
                    w.add(BIG.0, Mutation::PartRemove { directory, begin });
                }
                put_in(w, ino(PARTS[1].0, PARTS[1].1), 9);
            },
            sound(10),
        ),
        (
            "a part whose range is another's gives its names away",
            |w| {
                make_part(w, ino(2, 49), big());
                let (directory, cookie) = (PARTS[0].1, by_cookie()[4].1);
                w.add(PARTS[0].0, Mutation::EntryRemove { directory, cookie });
                put_in(w, ino(2, 49), 4);
                put_in(w, ino(2, 49), 9);
            },
            sound(10),
        ),
        (
            "a name in a wrong part moves",
            |w| put_in(w, ino(PARTS[0].0, PARTS[0].1), 9),
            sound(10),
        ),
        (
            "a part with two places keeps the one of its names",
            |w| {
                put_in(w, ino(PARTS[1].0, PARTS[1].1), 9);
                let part = ino(PARTS[0].0, PARTS[0].1);
                name_part(w, big(), u64::MAX << TIE_BITS, part);
            },
            sound(10),
        ),
    ];
    for (what, plant, expected) in planted {
        let mut world = World::healthy();
        in_parts(&mut world);
        plant(&mut world);
        let (findings, mut image, _) = world.look();
        assert!(!findings.list().is_empty(), "{what}");
        repair(&mut image, &findings, Timestamp::default()).unwrap();
        assert_eq!(held(&image), expected, "{what}");
        let (after, _) = World::look_again(&image);
        let left = after.list().iter().filter(|f| f.kind != Kind::Nameless);
        assert_eq!(left.count(), 0, "{what}: {:#?}", after.list());
    }
}

/// A file system that was made and never served has no root yet; one that has anything, or was started, has lost it.
#[test]
fn a_new_file_system_has_no_root_yet() {
    let root_is_missed = |world: &World, was_started: bool| {
        let (mut findings, mut image) = world.load();
        image.was_started = was_started;
        image.check(&mut findings);
        findings.counts().contains_key(&Kind::RootInode)
    };
    let mut world = World::empty();
    assert!(!root_is_missed(&world, false));
    assert!(root_is_missed(&world, true));
    // Another owner has an inode.
    world.directory(ino(1, 5), ROOT, 2);
    assert!(root_is_missed(&world, false));
}

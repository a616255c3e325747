//! Looks at a file system in use, each owner as it was at another moment: only what all looks say of what rests is told.
#![allow(clippy::unwrap_used, reason = "a test")]

mod world;

use data::space::{RegionId, SpaceMutation};
use fsck::{Doubts, Kind};
use node::meta::{Mutation, Step, TransactionId};
use types::{FileKind, InodeId, NodeId, NsdId, ShardId, Timestamp};
use world::{FILE, LIFE, World, ino, run};

const ROOT: InodeId = InodeId::ROOT;

fn file() -> InodeId {
    ino(FILE.0, FILE.1)
}

/// What was confirmed when looks have shown this, one after the other; and how much is left.
fn told(looks: &[&dyn Fn(&mut World)]) -> (Vec<Kind>, usize) {
    let mut doubts = Doubts::default();
    for look in looks {
        let mut world = World::healthy();
        look(&mut world);
        let (found, mut image) = world.load();
        doubts.look(&mut image, found);
    }
    assert_eq!(doubts.look_count() as usize, looks.len());
    assert_eq!(doubts.is_settled(), doubts.unsettled_count() == 0);
    let kinds = doubts.confirmed().counts().keys().copied().collect();
    (kinds, doubts.unsettled_count())
}

fn healthy(_: &mut World) {}

/// The file counts a name that it has not, and has changed so often.
fn counts_too_many(world: &mut World, change: u64) {
    world.change(file(), |attr| {
        attr.nlink = 3;
        attr.change = change;
    });
}

#[test]
fn what_rests_is_told_when_three_looks_agree() {
    let wrong = |world: &mut World| counts_too_many(world, 7);
    assert_eq!(told(&[&wrong]), (vec![], 1));
    assert_eq!(told(&[&wrong, &wrong]), (vec![], 1));
    assert_eq!(told(&[&wrong, &wrong, &wrong]), (vec![Kind::LinkCount], 0));
    assert_eq!(told(&[&healthy]), (vec![], 0));
}

/// The file is linked after the names were read and before it is; in the next look it is the other way round: a name less
/// after the file was read. Two looks say the same of a file that did not change between them, and it was never so.
#[test]
fn two_looks_that_agree_may_both_be_wrong() {
    let linked = |world: &mut World| counts_too_many(world, 7);
    let unlinked = |world: &mut World| world.change(file(), |attr| attr.change = 8);
    assert_eq!(told(&[&linked, &linked, &unlinked]), (vec![], 0));
    // And again: it counts one too many whenever it is looked at, and is another one each time.
    let again = |world: &mut World| counts_too_many(world, 9);
    assert_eq!(told(&[&linked, &linked, &again]), (vec![], 1));
    assert_eq!(told(&[&linked, &again, &again]), (vec![], 1));
}

/// What one owner says by itself is true of what never rests, too; what two say together is not told of it.
#[test]
fn what_never_rests_is_told_where_one_owner_says_it() {
    let look = |change| {
        move |world: &mut World| {
            counts_too_many(world, change);
            let nanos = 1_000_000_000 + u32::try_from(change).unwrap();
            world.change(file(), |attr| attr.mtime.nanos = nanos);
        }
    };
    let looks: [&dyn Fn(&mut World); 3] = [&look(1), &look(2), &look(3)];
    assert_eq!(told(&looks), (vec![Kind::InodeTime], 1));
}

/// A transaction that another owner has prepared may have been committed meanwhile, and its end forgotten.
#[test]
fn what_a_transaction_under_way_names_is_not_told() {
    let wrong = |world: &mut World| counts_too_many(world, 7);
    let prepare = |world: &mut World, step: Step| {
        wrong(world);
        let id = TransactionId {
            coordinator: ShardId(0),
            number: 7,
        };
        let (now, steps) = (Timestamp::default(), vec![step]);
        world.add(1, Mutation::Prepare { id, now, steps });
    };
    let name = world::name("third");
    let insert = Step::EntryInsert {
        directory: ino(1, 2),
        name,
        ino: file(),
        kind: FileKind::File,
    };
    let named = |world: &mut World| prepare(world, insert.clone());
    let other = |world: &mut World| prepare(world, Step::InodeTouch { ino: ino(1, 4) });
    for (look, expected) in [
        (&other as &dyn Fn(&mut World), (vec![Kind::LinkCount], 0)),
        (&named, (vec![], 1)),
    ] {
        assert_eq!(told(&[look, &wrong, &wrong]), expected);
        assert_eq!(told(&[&wrong, look, &wrong]), expected);
        assert_eq!(told(&[&wrong, &wrong, look]), expected);
    }
    let after: [&dyn Fn(&mut World); 4] = [&named, &wrong, &wrong, &wrong];
    assert_eq!(told(&after), (vec![Kind::LinkCount], 0));
}

/// A name is about its directory and its inode: both have to rest.
#[test]
fn a_name_that_leads_nowhere_is_told_if_its_directory_rests() {
    let dangling = |change| {
        move |world: &mut World| {
            world.entry(ROOT, "ghost", ino(1, 3_000), FileKind::File);
            world.change(ROOT, |attr| attr.change = change);
        }
    };
    let (first, second) = (dangling(1), dangling(2));
    let rests = told(&[&first, &first, &first]);
    assert_eq!(rests, (vec![Kind::NameDangling], 0));
    assert_eq!(told(&[&first, &first, &second]), (vec![], 1));
    // It takes the inode of another owner for another kind; that one changes.
    let mistaken = |change| {
        move |world: &mut World| {
            world.change(ino(1, 4), |attr| attr.change = change);
            world.entry(ino(1, 2), "again", ino(0, 4), FileKind::File);
            world.change(ino(0, 4), |attr| (attr.nlink, attr.change) = (2, change));
        }
    };
    let (first, second) = (mistaken(1), mistaken(2));
    assert_eq!(told(&[&first; 3].map(|f| f as _)).0, [Kind::NameKind]);
    assert_eq!(told(&[&first, &second, &first]), (vec![], 1));
}

/// All directories of a cycle have to rest, not only the one that it is told of.
#[test]
fn a_cycle_is_told_if_all_of_it_rests() {
    let cycle = |change| {
        move |world: &mut World| {
            let (one, two) = (ino(0, 10), ino(1, 11));
            world.directory(one, two, 3);
            world.directory(two, one, 3);
            world.entry(one, "two", two, FileKind::Directory);
            world.entry(two, "one", one, FileKind::Directory);
            world.change(one, |attr| attr.change = change);
            world.change(two, |attr| attr.change = 10 - change);
        }
    };
    let still = cycle(1);
    let rests = told(&[&still, &still, &still]);
    assert!(rests.0.contains(&Kind::DirectoryCycle), "{rests:?}");
    for index in [10, 11] {
        let moves = |world: &mut World| {
            still(world);
            let shard = u16::from(index == 11);
            world.change(ino(shard, index), |attr| attr.change = 5);
        };
        let (kinds, left) = told(&[&still, &moves, &still]);
        assert!(
            !kinds.contains(&Kind::DirectoryCycle) && left > 0,
            "{index}"
        );
    }
}

/// Regions and sectors are named in words: what is said in other words is followed in these.
#[test]
fn what_is_said_in_other_words_is_not_refuted() {
    let leak = |sector| {
        move |world: &mut World| {
            let run = run(1, sector, 1);
            world.granted(run);
            world.space(1, SpaceMutation::Consumed { life: LIFE, run });
        }
    };
    let (first, second) = (leak(1_100), leak(1_200));
    let told_of = (vec![Kind::SectorLeak], 0);
    assert_eq!(told(&[&first; 3].map(|f| f as _)), told_of);
    assert_eq!(told(&[&first, &second]), (vec![], 1));
    assert_eq!(told(&[&first, &second, &first]), (vec![], 1));
    assert_eq!(told(&[&first, &second, &second, &second]), told_of);
    assert_eq!(told(&[&first, &second, &healthy]), (vec![], 0));
    // One more that is new, while the first is said as before, came later.
    let both = |world: &mut World| {
        first(world);
        second(world);
    };
    assert_eq!(told(&[&first, &both]), (vec![], 1));
    let taken = |world: &mut World| {
        let (nsd, index) = (NsdId(2), 3);
        let region = RegionId { nsd, index };
        world.space(2, SpaceMutation::RegionTaken { region });
    };
    assert_eq!(told(&[&taken, &healthy]), (vec![], 0));
    assert_eq!(
        told(&[&taken; 3].map(|f| f as _)).0,
        [Kind::RegionUnrecorded]
    );
}

/// The file loses its names one by one: what is wrong about it gets another kind.
#[test]
fn what_becomes_another_kind_is_followed() {
    let wrong = |world: &mut World| counts_too_many(world, 7);
    let nameless = |world: &mut World| {
        world
            .shards
            .get_mut(&ShardId(0))
            .unwrap()
            .retain(|mutation| {
                let is_its = matches!(mutation, Mutation::EntryPut { ino, .. } if *ino == file());
                !is_its
            });
        counts_too_many(world, 8);
    };
    assert_eq!(told(&[&wrong, &nameless]), (vec![], 1));
    let looks: [&dyn Fn(&mut World); 4] = [&wrong, &nameless, &nameless, &nameless];
    assert_eq!(told(&looks), (vec![Kind::Nameless], 0));
}

/// A journal cannot be read once: nothing follows from what that look does not say, and it does not count.
#[test]
fn a_look_that_lacks_an_owner_refutes_nothing() {
    let wrong = |world: &mut World| counts_too_many(world, 7);
    let lost = |world: &mut World| {
        wrong(world);
        world.lost.insert(NodeId(2));
    };
    let told_of = (vec![Kind::LinkCount], 0);
    assert_eq!(told(&[&wrong, &lost]), (vec![], 1));
    assert_eq!(told(&[&wrong, &lost, &wrong, &wrong]), (vec![], 1));
    assert_eq!(told(&[&wrong, &lost, &wrong, &wrong, &wrong]), told_of);
    assert_eq!(told(&[&wrong, &lost, &healthy]), (vec![], 0));
    // What the first one could not see is followed when it is seen first.
    assert_eq!(told(&[&lost, &wrong]), (vec![], 1));
    assert_eq!(told(&[&lost, &wrong, &wrong, &wrong]), told_of);
    // What can never be read hides no more than it did.
    let ghost = |world: &mut World| {
        lost(world);
        world.change(file(), |attr| attr.mtime.nanos = 1_000_000_000);
    };
    let unreadable = (vec![Kind::JournalUnreadable], 0);
    assert_eq!(told(&[&ghost, &lost, &lost]), unreadable);
}

/// What three looks have agreed on stays told, whatever comes after: mended, written over, or lost.
#[test]
fn what_was_confirmed_is_not_taken_back() {
    let wrong = |world: &mut World| counts_too_many(world, 7);
    let lost = |world: &mut World| {
        world.lost.insert(NodeId(2));
    };
    let told_of = (vec![Kind::LinkCount], 0);
    assert_eq!(told(&[&wrong, &wrong, &wrong, &healthy]), told_of);
    assert_eq!(told(&[&wrong, &wrong, &wrong, &lost]), told_of);
    assert_eq!(told(&[&wrong, &wrong, &wrong, &wrong, &wrong]), told_of);
}

/// There are more of a kind than are kept: one that is not among them is not refuted.
#[test]
fn what_is_crowded_out_is_not_refuted() {
    let many = |from: u64| {
        move |world: &mut World| {
            for index in from..from + fsck::COUNT_MAX + 1 {
                world.entry(
                    ROOT,
                    &format!("ghost{index}"),
                    ino(1, index),
                    FileKind::File,
                );
            }
        }
    };
    let one = |world: &mut World| world.entry(ROOT, "ghost", ino(1, 3_000), FileKind::File);
    // It may be behind those that are kept.
    assert_eq!(told(&[&one, &many(5_000)]), (vec![], 1));
}

/// Bytes are read again where the file has the very same extent, also where another file claims the same place.
#[test]
fn a_copy_of_an_extent_is_found_again() {
    let jobs = |change: &dyn Fn(&mut World)| {
        let mut world = World::healthy();
        change(&mut world);
        fsck::data::jobs(&world.look().1)
    };
    let before = jobs(&healthy);
    let twice = jobs(&|world| world.map(ino(0, 6), vec![world::inline(0, 4, world::at(1, 1_000))]));
    assert_eq!((before.len(), twice.len()), (2, 3));
    assert!(twice.iter().all(|job| fsck::data::has(&twice, job)));
    assert!(before.iter().all(|job| fsck::data::has(&twice, job)));
    let instead = |length, sector| {
        jobs(&move |world: &mut World| {
            let all = world.shards.get_mut(&ShardId(0)).unwrap().iter_mut();
            let its = all.filter_map(|mutation| match mutation {
                Mutation::MapLoad {
                    index: 2, extents, ..
                } => extents.first_mut(),
                _ => None,
            });
            its.for_each(|extent| *extent = world::inline(0, length, world::at(1, sector)));
        })
    };
    let (same, moved, shorter) = (instead(4, 1_000), instead(4, 1_040), instead(3, 1_000));
    assert_eq!(same, before);
    for other in [moved, shorter] {
        let still: Vec<_> = before
            .iter()
            .map(|job| fsck::data::has(&other, job))
            .collect();
        assert_eq!(still, [false, true]);
    }
}

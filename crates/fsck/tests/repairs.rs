//! What a repair goes by, and what it leaves alone.
#![allow(clippy::unwrap_used, reason = "a test")]

mod world;

use fsck::repair::repair;
use fsck::{COUNT_MAX, Findings, Image, Kind, Loading};
use node::meta::Mutation;
use node::store::format::PartKey;
use node::store::tree::{Fetch, Unreadable};
use types::{FileKind, InodeId, NodeId, ShardId, Timestamp};
use world::{DIRECTORY, World, attr, ino};

const ROOT: InodeId = InodeId::ROOT;

/// Repairs what `world` has, and returns what it is then; nothing is left.
fn mended(world: &World) -> Image {
    let (findings, mut image, _) = world.look();
    repair(&mut image, &findings, Timestamp::default()).unwrap();
    let (left, again) = World::look_again(&image);
    assert!(left.is_empty(), "{:#?}", left.list());
    again
}

fn path(image: &mut Image, of: InodeId) -> Option<String> {
    let paths = image.check(&mut Findings::default());
    paths.of(image, of)
}

#[test]
fn a_repair_goes_by_more_than_is_shown() {
    let count = COUNT_MAX + 500;
    let mut world = World::healthy();
    for index in 0..count {
        world.put(attr(ino(2, 100 + index), FileKind::File, 1));
    }
    let (findings, ..) = world.look();
    assert_eq!(findings.counts()[&Kind::Nameless], count);
    let mut image = mended(&world);
    let paths = image.check(&mut Findings::default());
    for index in 0..count {
        let ino = ino(2, 100 + index);
        let path = paths.of(&image, ino);
        assert_eq!(path, Some(format!("/lost+found/#{ino}")));
    }
}

#[test]
fn lost_and_found_may_be_something_elses_name() {
    let mut world = World::healthy();
    world.put(attr(ino(0, 9), FileKind::File, 1));
    world.entry(ROOT, "lost+found", ino(0, 9), FileKind::File);
    world.put(attr(ino(2, 9), FileKind::File, 1));
    let mut image = mended(&world);
    let found = path(&mut image, ino(2, 9));
    assert_eq!(found.as_deref(), Some("/lost+found.1/#2.9"));
    let kept = path(&mut image, ino(0, 9));
    assert_eq!(kept.as_deref(), Some("/lost+found"));
}

#[test]
fn a_named_directory_that_counts_no_names_is_told_its_parent() {
    let mut world = World::healthy();
    let directory = ino(DIRECTORY.0, DIRECTORY.1);
    // It was moved to the root, and removed there.
    world.directory(ino(1, 30), directory, 0);
    world.entry(ROOT, "moved", ino(1, 30), FileKind::Directory);
    world.change(ROOT, |attr| attr.nlink += 1);
    let (findings, ..) = world.look();
    assert!(findings.counts().contains_key(&Kind::OrphanNamed));
    let mut image = mended(&world);
    assert_eq!(path(&mut image, ino(1, 30)).as_deref(), Some("/moved"));
}

/// A newer version may understand it: what this one would conclude from the rest need not be so.
#[test]
fn nothing_is_repaired_beside_a_record_that_is_not_understood() {
    for key in [PartKey::Space, PartKey::Shard(ShardId(1))] {
        let mut world = World::healthy();
        // Damage that could be repaired.
        world.put(attr(ino(0, 9), FileKind::File, 0));
        let read = &mut |_: &Fetch| Err(Unreadable);
        let mut loading = Loading::new(&world.setup, NodeId(1));
        for mutation in &world.shards[&ShardId(0)] {
            let bytes = encoded(mutation);
            loading.apply(PartKey::Shard(ShardId(0)), &bytes, read);
        }
        loading.apply(key, &[250, 1, 2], read);
        let (owner, mut findings) = loading.finish(read);
        let mut image = Image::new(world.setup.clone(), vec![owner], false);
        image.check(&mut findings);
        assert!(
            findings.counts().contains_key(&Kind::JournalPart),
            "{key:?}"
        );
        let before = image.shards().map(|s| s.inode_count()).sum::<u64>();
        repair(&mut image, &findings, Timestamp::default()).unwrap_err();
        let after = image.shards().map(|s| s.inode_count()).sum::<u64>();
        assert_eq!(before, after, "{key:?}");
    }
}

fn encoded(mutation: &Mutation) -> Vec<u8> {
    use types::Encode as _;
    let mut bytes = Vec::new();
    mutation.encode(&mut bytes);
    bytes
}

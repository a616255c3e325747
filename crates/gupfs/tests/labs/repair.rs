//! `gupfs fsck --repair` on real disks: damage is planted with right checksums, by writing a journal segment as a start does.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::PathBuf;

use data::space::{Geometry, Space, SpaceMutation};
use fsck::{Loading, Owner, Setup};
use node::OwnerLog;
use node::meta::inode::InodeRecord;
use node::meta::{HashKey, Mutation};
use node::store::format::Area;
use node::store::journal::{Config, Journal};
use node::store::recovery::Recovery;
use node::store::tree::Unreadable;
use nsd::label::Label;
use types::{
    Attr, Epoch, FileKind, Grant, GrantId, Incarnation, InodeId, Location, Name, NodeId, NodeLife,
    NsdId, Run, SmallBytes, Timestamp,
};

use crate::fsck::kinds;
use crate::lab::{bounded, fsck};
use crate::node::Node;

const SECTOR: u64 = 4096;

fn disk(node: &Node) -> File {
    let path: PathBuf = node.state().join("nsd/1.img");
    File::options().read(true).write(true).open(path).unwrap()
}

fn read(file: &File, sector: u64, count: u64) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(count * SECTOR).unwrap()];
    file.read_exact_at(&mut bytes, sector * SECTOR).unwrap();
    bytes
}

/// Changes what the one node of a file system without trees has, as if it had been written so.
pub(crate) fn plant(node: &Node, change: impl FnOnce(&mut Owner)) {
    let view = gupfs::state::Place::new(&node.state())
        .unwrap()
        .load_view()
        .unwrap();
    let file = disk(node);
    let label = Label::decode(&read(&file, 0, 64)).unwrap().label;
    let area = Area {
        nsd: NsdId(1),
        begin: label.journals[0].first_sector,
        count: label.journals[0].sector_count,
    };
    let me = NodeId(1);
    let geometry = view.nsds.iter().map(|nsd| Geometry {
        nsd: nsd.id,
        data_begin: nsd.data_begin,
        sector_count: nsd.sector_count,
        region_sectors: Geometry::default_region_sectors(nsd.sector_count),
    });
    let setup = Setup {
        fs: view.fs,
        key: HashKey(label.hash_key),
        owners: view.owners.clone(),
        geometry: geometry.collect(),
    };
    let none = &mut |_: &_| Err(Unreadable);
    let mut loading = Loading::new(&setup, me);
    let mut recovery = Recovery::new(area, view.fs, me);
    while let Some(next) = recovery.next_read() {
        let bytes = read(&file, next.at.sector, next.count);
        let applied = recovery.on_read(&bytes, &mut |part| {
            loading.apply(part.key, part.bytes, none);
            Ok(())
        });
        applied.unwrap();
    }
    let recovered = recovery.finish();
    let (mut owner, found) = loading.finish(none);
    assert!(found.is_empty(), "{found:?}");
    change(&mut owner);
    let config = Config {
        fs: view.fs,
        owner: me,
        incarnation: Incarnation(0xbad),
        area,
        flight_count_max: 2,
    };
    let journal = Journal::start(config, &recovered);
    let epoch = Epoch(recovered.next_sequence);
    let nsds = view.nsds.iter().map(|nsd| nsd.id).collect();
    let random = stdx::prng::Prng::new(1);
    let mut log = OwnerLog::new(journal, owner.space, owner.table, epoch, nsds, random);
    log.begin_first_snapshot();
    for shard in owner.shards.values() {
        assert!(log.append_shard_snapshot(shard));
    }
    assert!(log.append_space_snapshot());
    log.end_snapshot();
    while let Some(flush) = log.journal.take_flush() {
        file.write_all_at(&flush.bytes, flush.at.sector * SECTOR)
            .unwrap();
        log.on_flushed(flush.id, Ok(()));
    }
    file.sync_all().unwrap();
}

fn entry(directory: InodeId, cookie: u64, text: &str, ino: InodeId) -> Mutation {
    let name = Name::new(text.as_bytes()).unwrap();
    let (directory, kind) = (directory.index(), FileKind::File);
    Mutation::EntryPut {
        directory,
        cookie,
        name,
        ino,
        kind,
    }
}

/// A leak, a name of nothing, wrong counts, a file without a name.
pub(crate) fn damage(owner: &mut Owner, small: InodeId) {
    let root = InodeId::ROOT;
    let shard = owner.shards.get_mut(&root.shard()).unwrap();
    let ghost = Name::new(b"ghost").unwrap();
    let cookie = shard.free_cookie(root, &ghost).unwrap();
    let nowhere = InodeId::new(root.shard(), 4_000_000);
    shard.apply(&entry(root, cookie, "ghost", nowhere));
    let lost = Attr {
        ino: shard.reserve_index(),
        nlink: 1,
        kind: FileKind::File,
        size: 0,
        ..shard.attr(root).unwrap()
    };
    let record = InodeRecord {
        attr: lost,
        parent: InodeId::default(),
        target: SmallBytes::default(),
    };
    shard.apply(&Mutation::InodePut { record });
    let shard = owner.shards.get_mut(&small.shard()).unwrap();
    let mut attr = shard.attr(small).unwrap();
    attr.nlink = 5;
    attr.mtime = Timestamp {
        nanos: 2_000_000_000,
        ..attr.mtime
    };
    let index = small.index();
    shard.apply(&Mutation::AttrPut { index, attr });
    leak(&mut owner.space);
}

/// Sectors that count as used, and are no file's.
fn leak(space: &mut Space) {
    let data = space.data_sectors();
    let used = space.used();
    let is_free = |at: Location| !used.overlaps(Run { at, count: 1 });
    let region = data.iter().next().unwrap();
    let last = region.at.sector + u64::from(region.count) - 1;
    let at = Location {
        sector: last,
        ..region.at
    };
    assert!(is_free(at));
    let run = Run { at, count: 1 };
    let life = NodeLife::default();
    let (id, mac) = (GrantId(1), 0);
    let grant = Grant { id, run, mac };
    space
        .apply(&SpaceMutation::Granted { life, grant })
        .unwrap();
    space.apply(&SpaceMutation::Consumed { life, run }).unwrap();
}

#[test]
fn what_can_be_repaired_is_and_files_stay_as_they_are() {
    let Some(node) = Node::new("256M") else {
        return;
    };
    let (mount, state) = (node.mount(), node.state());
    fs::create_dir(mount.join("dir")).unwrap();
    fs::write(mount.join("dir/small"), b"small").unwrap();
    let large: Vec<u8> = (0..3_000_000u32).map(|i| i.to_le_bytes()[1]).collect();
    fs::write(mount.join("dir/large"), &large).unwrap();
    let small = fs::metadata(mount.join("dir/small")).unwrap().ino();
    node.gupfs(&["down"]);
    assert_eq!(fsck(&state, &["--data"]).1, 0);
    // What is kept twice. For a label no journal is touched.
    let file = disk(&node);
    let mut label = read(&file, 1, 1);
    label[40] ^= 1;
    file.write_all_at(&label, SECTOR).unwrap();
    let headers = read(&file, 256, 2);
    let (found, code) = fsck(&state, &["--repair", "--yes"]);
    assert_eq!((kinds(&found), code), (vec!["label-copy"], 1), "{found:#}");
    assert_eq!(read(&file, 256, 2), headers);
    for sector in [0, 256] {
        let mut bytes = read(&file, sector, 1);
        bytes[40] ^= 1;
        file.write_all_at(&bytes, sector * SECTOR).unwrap();
    }
    let (found, code) = fsck(&state, &["--repair", "--yes"]);
    assert_eq!(
        (kinds(&found), code),
        (vec!["journal-header", "label-copy"], 1),
        "{found:#}"
    );
    assert_eq!(fsck(&state, &[]).1, 0);
    // What is wrong with a right checksum.
    plant(&node, |owner| damage(owner, InodeId::from_raw(small)));
    let (found, code) = fsck(&state, &[]);
    let planted = [
        "inode-time",
        "link-count",
        "name-dangling",
        "nameless",
        "sector-leak",
    ];
    assert_eq!((kinds(&found), code), (planted.to_vec(), 4), "{found:#}");
    // Nobody can be asked: nothing is changed.
    let words = [
        env!("CARGO_BIN_EXE_gupfs"),
        "fsck",
        "--repair",
        state.to_str().unwrap(),
    ];
    let output = bounded(30, &words);
    assert_eq!(output.status.code(), Some(8), "{output:?}");
    assert_eq!(kinds(&fsck(&state, &[]).0), planted);
    let (found, code) = fsck(&state, &["--repair", "--yes", "--data"]);
    assert_eq!((kinds(&found), code), (planted.to_vec(), 1), "{found:#}");
    assert_eq!(found["left"], 0, "{found:#}");
    let (found, code) = fsck(&state, &["--data"]);
    assert_eq!(code, 0, "{found:#}");
    // Damage that nothing can repair stays, and is said.
    let mut bytes = read(&file, 256, 2);
    bytes[40] ^= 1;
    bytes[4096 + 40] ^= 1;
    let good = read(&file, 256, 2);
    let half = u64::from_le_bytes(good[88..96].try_into().unwrap()) / 2;
    let other = read(&file, 256 + half, 2);
    let mut bad = other.clone();
    bad[40] ^= 1;
    bad[4096 + 40] ^= 1;
    file.write_all_at(&bytes, 256 * SECTOR).unwrap();
    file.write_all_at(&bad, (256 + half) * SECTOR).unwrap();
    let (found, code) = fsck(&state, &["--repair", "--yes"]);
    assert_eq!(
        (kinds(&found), code),
        (vec!["journal-lost"], 4),
        "{found:#}"
    );
    file.write_all_at(&good, 256 * SECTOR).unwrap();
    file.write_all_at(&other, (256 + half) * SECTOR).unwrap();
    node.up(&[]).expect("it comes up");
    assert_eq!(fs::read(mount.join("dir/small")).unwrap(), b"small");
    assert!(fs::read(mount.join("dir/large")).unwrap() == large);
    assert_eq!(fs::metadata(mount.join("dir/small")).unwrap().nlink(), 1);
    assert!(!mount.join("ghost").exists());
    let found = fs::read_dir(mount.join("lost+found")).unwrap().count();
    assert_eq!(found, 1);
    fs::remove_dir_all(mount.join("lost+found")).unwrap();
    fs::remove_dir_all(mount.join("dir")).unwrap();
}

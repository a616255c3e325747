//! Room for the trees: what a snapshot takes, regions for pages, rounds of checkpoints, and what the journal and the NSDs keep for them.

use super::*;

/// What lies beside the shards in a snapshot is counted: a state that does not fit half of the journal cannot be started with.
#[test]
fn sectors_of_files_count_in_what_a_snapshot_takes() {
    let area = area(16 << 10);
    let mut disk = formatted(area);
    let (mut log, _) = with_file(&mut disk, area);
    let mut size = 0;
    log.space_snapshot(64 << 10, &mut |bytes| size += bytes.len() as u64);
    assert!(size > 1 << 20, "{size}");
    log.measure_space();
    log.note_sizes(&[], false);
    assert!(log.journal.overlay_size() > size);
}

/// A full journal takes no regions, and is not given up for that.
#[test]
fn regions_wait_for_room_in_the_journal() {
    let area = area(64);
    let mut disk = formatted(area);
    let mut log = open(&mut disk, area);
    let region = RegionId { nsd: NSD, index: 0 };
    let owners = [NodeId(9)];
    let env = node::RegionEnv {
        now: Instant(0),
        me: LIFE,
        owners: &owners,
        nsds: &[NSD],
    };
    let mut regions = node::Regions::default();
    let mut out = Vec::new();
    regions.learn(&env, &mut log, &mut out);
    let Some(node::RegionEffect::Send(_, node::Message::TakeRegions { id, .. })) = out.pop() else {
        panic!("it asks what it holds: {out:?}");
    };
    while log.has_room_for_regions() {
        let key = PartKey::Space;
        let part = Part {
            key,
            epoch: log.epoch,
            bytes: &[],
        };
        log.journal.append(&[part; 8]).unwrap();
    }
    regions.on_regions(&env, &mut log, id, &[region], &mut out);
    assert!(!log.journal.is_poisoned());
    assert_eq!(log.space.counts().total, 0, "it was not taken");
    // The journal has moved to its other half: it asks again.
    let mut log = open(&mut disk, area);
    regions.on_tick(&env, &mut log, &mut out);
    assert!(
        matches!(&out[..], [node::RegionEffect::Send(NodeId(9), _)]),
        "{out:?}"
    );
}

/// Who wants memory asks for a round before anybody thought of room for pages: without any it failed at once (seen in a lab with
/// little memory for metadata), and what fails asks all others for room.
#[test]
fn a_round_that_is_wished_for_waits_until_there_is_room_for_its_pages() {
    let area = area(16 << 10);
    let mut disk = formatted(area);
    let mut log = open(&mut disk, area);
    log.set_trees([], vec![NSD]);
    let size = node::keeper::ShardSize {
        shard: ShardId(0),
        unsaved: 1000,
        all: 1000,
    };
    let mut keeper = node::Keeper::new();
    keeper.on_tick(Instant(1), vec![size], &mut log);
    assert!(!keeper.is_busy() && log.page_shortage().is_none());
    keeper.wish_round();
    keeper.on_tick(Instant(2), vec![size], &mut log);
    assert!(!keeper.is_busy(), "it would fail");
    let (nsds, must_others_give) = log.page_shortage().unwrap();
    assert_eq!((nsds, must_others_give), (vec![NSD], false));
    log.adopt_regions(&[RegionId { nsd: NSD, index: 0 }]);
    assert!(log.page_shortage().is_none());
    keeper.on_tick(Instant(3), vec![size], &mut log);
    assert!(keeper.is_busy());
    keeper.on_tick(Instant(4), vec![size], &mut log);
    let free = log.space.pages().counts().free;
    assert!(free > 0, "it was given back before the round had begun");
}

/// Rounds that failed again and again end all hope, and pause for long: not any more when a region has come.
#[test]
fn a_keeper_without_hope_tries_again_at_once_when_room_has_come() {
    let area = area(16 << 10);
    let mut disk = formatted(area);
    let mut log = open(&mut disk, area);
    log.set_trees([], vec![NSD]);
    let mut slice = with_inode();
    slice.shard.track();
    let mut shards = [Some(slice)];
    let size = node::keeper::ShardSize {
        shard: SHARD,
        unsaved: 1000,
        all: 1000,
    };
    let mut keeper = node::Keeper::new();
    let mut now = Instant(1);
    let mut run = |keeper: &mut node::Keeper, log: &mut OwnerLog, now: Instant| {
        keeper.request_round();
        keeper.on_tick(now, vec![size], log);
        let shards = &mut shards[..];
        let mut host = node::keeper::PlainHost { shards, log };
        // A round without room fails before it writes anything.
        for _ in 0..100 {
            if !matches!(keeper.step(now, &mut host), node::keeper::Act::Again) {
                return;
            }
        }
        panic!("it goes on for ever");
    };
    for _ in 0..8 {
        now = now + Duration::from_secs(60);
        run(&mut keeper, &mut log, now);
    }
    assert_eq!(keeper.counters().failures, 8);
    // It pauses, and operations do not wait for it.
    let rounds = keeper.counters().rounds;
    run(&mut keeper, &mut log, now + Duration::from_millis(1));
    assert_eq!(keeper.counters().rounds, rounds);
    log.adopt_regions(&[RegionId { nsd: NSD, index: 0 }]);
    assert!(log.may_have_room_soon());
    run(&mut keeper, &mut log, now + Duration::from_millis(2));
    assert_eq!(keeper.counters().rounds, rounds + 1, "it tries at once");
    assert_eq!(keeper.counters().failures, 8);
}

/// A disk that fills with metadata keeps the room that writing its largest tree anew takes: without it nothing that is removed would ever come back.
#[test]
fn what_adds_to_trees_leaves_room_for_writing_them_anew() {
    let area = area(16 << 10);
    let mut disk = formatted(area);
    let mut log = open(&mut disk, area);
    let pages = 4000;
    let root = store::tree::Root {
        pages,
        ..store::tree::Root::empty(SHARD, 4)
    };
    log.set_trees([root], vec![NSD, NsdId(NSD.0 + 1)]);
    log.adopt_regions(&[RegionId { nsd: NSD, index: 0 }]);
    let sizes = || {
        vec![node::keeper::ShardSize {
            shard: SHARD,
            unsaved: 1000,
            all: 1000,
        }]
    };
    let set = SetAttr {
        permissions: Some(0o600),
        ..SetAttr::default()
    };
    let (ino, mode) = (
        InodeId::ROOT,
        Op::SetAttr {
            ino: InodeId::ROOT,
            set,
            standing: None,
        },
    );
    let cut = Op::SetAttr {
        ino,
        set: SetAttr {
            size: Some(0),
            ..SetAttr::default()
        },
        standing: None,
    };
    log.note_sizes(&sizes(), false);
    assert_eq!(log.admit(LIFE, &mode, 0), Ok(()));
    let mut taken = Vec::new();
    while log.space.pages().counts().free > pages * 4 {
        // Most of them at once.
        let free = log.space.pages().counts().free;
        let count = if free > 1 << 16 { 1 << 15 } else { 512 };
        taken.push(log.space.pages_mut().take(count, &|_| true).unwrap());
    }
    log.note_sizes(&sizes(), false);
    assert!(log.is_poor_of_pages());
    assert_eq!(log.admit(LIFE, &mode, 0), Err(Errno::ENOSPC));
    assert!(log.may_have_room_soon(), "others may have regions");
    // Also where they have not: a round of checkpoints may make room, and none is about to begin only after some ticks.
    for _ in 0..2 {
        log.note_checkpoints(Instant(1), false, false);
        assert!(log.may_have_room_soon(), "a round may begin");
    }
    log.note_checkpoints(Instant(1), true, false);
    log.note_checkpoints(Instant(1), false, false);
    assert!(log.may_have_room_soon(), "one was under way just now");
    for (op, freed) in [(&cut, 1), (&closed(), 0)] {
        assert_eq!(log.admit(LIFE, op, freed), Ok(()), "{op:?}");
    }
    let (_, must_others_give) = log.page_shortage().unwrap();
    assert!(must_others_give);
    for run in taken {
        log.space.pages_mut().give_back(run);
    }
    log.note_sizes(&sizes(), false);
    assert_eq!(log.admit(LIFE, &mode, 0), Ok(()));
    // A bad write to the disk where all of that is: pages avoid it, but nothing else is free, so they go there.
    log.avoid_for_pages([NSD].into());
    assert_eq!(log.space.pages().usable(), 0);
    log.note_sizes(&sizes(), false);
    assert_eq!(log.admit(LIFE, &mode, 0), Ok(()));
}

/// Between two looks at what the shards hold much may come: 15 MiB of extended attributes filled a journal so far that no region for pages
/// could be written down any more, checkpoints failed for ever, and unlink heard ENOSPC.
#[test]
fn what_comes_between_two_looks_leaves_room_for_checkpoints() {
    let area = area(4 << 10);
    let mut disk = formatted(area);
    let mut log = open(&mut disk, area);
    log.set_trees([], vec![NSD]);
    let size = |bytes| node::keeper::ShardSize {
        shard: SHARD,
        unsaved: bytes,
        all: bytes,
    };
    log.note_sizes(&[size(1000)], false);
    let set = SetAttr {
        permissions: Some(0o600),
        ..SetAttr::default()
    };
    let ino = InodeId::ROOT;
    let op = Op::SetAttr {
        ino,
        set,
        standing: None,
    };
    let segment = log.journal.segment_size();
    let bytes = vec![1; 60_000];
    let mut total = 0;
    while log.admit(LIFE, &op, 0).is_ok() {
        let (key, epoch, bytes) = (PartKey::Shard(ShardId(0)), log.epoch, &bytes[..]);
        log.journal.append(&[Part { key, epoch, bytes }]).unwrap();
        total += bytes.len() as u64;
    }
    assert!(
        total > segment / 4 && total < segment / 8 * 5,
        "{total} of {segment}"
    );
    assert!(
        log.may_have_room_soon(),
        "nobody has seen yet that a checkpoint is due"
    );
    // Some of it may have come after this was measured.
    log.note_sizes(&[size(total)], true);
    assert!(log.may_have_room_soon());
    log.note_sizes(&[size(total)], true);
    assert_eq!(log.admit(LIFE, &closed(), 0), Ok(()));
    assert!(log.has_room_for_regions());
    // A journal that was filled before this was looked at.
    log.note_sizes(&[size(segment / 8 * 7 - (1 << 20))], true);
    assert_eq!(log.admit(LIFE, &closed(), 0), Err(Errno::ENOSPC));
    assert!(log.has_room_for_regions());
}

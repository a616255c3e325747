//! Power loss after every step of a run, in every way; switches, pipelines, back-pressure, poison.
#![allow(clippy::cast_possible_truncation, reason = "test arithmetic is small")]

use super::*;
use crate::crash::{FS, KEYS, OWNER, Random, Rig, recovered, schedule, small_area};
use crate::format::SECTOR;

fn part(key: PartKey, bytes: &[u8]) -> Part<'_> {
    Part {
        key,
        epoch: Epoch(1),
        bytes,
    }
}

#[test]
fn every_crash_of_random_runs_loses_nothing_acknowledged() {
    let mut tried = 0;
    let mut switches = 0;
    for seed in 0..12u64 {
        let mut random = Random(seed);
        let flights = 1 + (seed % 4) as usize;
        let mut rig = Rig::fresh(72, flights);
        schedule(&mut rig, &mut random, 260, &mut |rig, random| {
            tried += rig.try_crashes(random, &mut |_| {});
        });
        switches += rig.switches;
    }
    assert!(tried > 10_000, "{tried}");
    assert!(switches > 30, "{switches}");
}

/// A disk with 512-byte sectors tears within ours: nothing of a torn record is applied all the same.
#[test]
fn tears_within_a_sector_lose_nothing_acknowledged() {
    let mut tried = 0;
    for seed in 0..24u64 {
        let mut random = Random(seed ^ 0x512);
        let mut rig = Rig::fresh(72, 1 + (seed % 4) as usize);
        schedule(&mut rig, &mut random, 200, &mut |rig, random| {
            for _ in 0..6 {
                let mut disk = rig.disk.clone();
                // All, nothing, or any eighths.
                disk.crash_in_eighths(|_| [0, 255, random.next() as u8][random.below(3) as usize]);
                rig.verify(&disk);
                tried += 1;
            }
        });
    }
    assert!(tried > 3000, "{tried}");
}

/// Records follow one another by chain, not by place alone: where the bytes of one are zeros, which
/// look like padding, the next does not pass for its successor.
#[test]
fn a_record_that_vanished_is_missed() {
    let mut rig = Rig::fresh(72, 1);
    let sizes = [1000, SECTOR - 1000 - 2 * 64, 64];
    let fillers: Vec<Vec<u8>> = sizes.iter().map(|size| vec![1; *size]).collect();
    for (key, filler) in KEYS.iter().zip(&fillers) {
        rig.journal
            .append_snapshot(part(*key, filler))
            .expect("room");
    }
    rig.journal
        .append_snapshot(part(KEYS[3], &[]))
        .expect("room");
    rig.journal.end_snapshot();
    let flush = rig.submit().expect("the snapshot");
    let mut bytes = flush.bytes.clone();
    let second = 2 * SECTOR + 1000 + 64;
    assert_eq!(bytes[second..second + 4], *b"GREC");
    let end = second + sizes[1] + 64;
    assert_eq!(end, 3 * SECTOR, "the third begins a sector");
    bytes[second..end].fill(0);
    assert_eq!(bytes[end..end + 4], *b"GREC");
    let mut disk = rig.disk.clone();
    disk.crash(|_| false);
    let id = disk.submit(flush.at, &bytes);
    disk.complete_flushed(id);
    let (found, state) = recovered(&disk, rig.area).expect("never complete");
    assert_eq!((found.last_lsn, found.previous), (Lsn(0), 1));
    assert!(state.is_empty());
}

/// Crash, recover, go on, crash again: three in a row at random places, each at every subset.
#[test]
fn crashes_in_a_row_lose_nothing_acknowledged() {
    let mut tried = 0u64;
    for seed in 0..80u64 {
        let mut random = Random(seed ^ 0xabcd);
        let mut disk = Rig::fresh(72, 1).disk;
        for life in 1..=5u128 {
            let flights = 1 + random.below(4) as usize;
            let mut rig = Rig::on(
                disk,
                small_area(72),
                flights,
                life * 1000 + u128::from(seed),
            );
            let steps = 5 + random.below(120) as usize;
            schedule(&mut rig, &mut random, steps, &mut |_, _| {});
            let mut outcomes = Vec::new();
            tried += rig.try_crashes(&mut random, &mut |disk| outcomes.push(disk));
            disk = outcomes.swap_remove(random.below(outcomes.len() as u64) as usize);
        }
    }
    assert!(tried > 5_000, "{tried}");
}

/// The interleaving that forbids replaying a half-written new segment (docs/decisions/0005): crash in
/// a snapshot, then crashes at every step of the next instance's snapshot, for ever.
#[test]
fn crash_in_a_snapshot_then_in_every_step_of_the_next_ones() {
    let mut random = Random(5);
    let mut rig = Rig::fresh(72, 1);
    rig.begin();
    while !rig.journal.needs_snapshot() {
        rig.operate(&mut random, 900).expect("room");
        rig.settle();
    }
    rig.begin_snapshot();
    rig.feed_snapshot();
    rig.operate(&mut random, 900).expect("room");
    rig.settle();
    let acknowledged = rig.acknowledged;
    let mut disk = rig.disk.clone();
    let state = rig.state.clone();
    for life in 2..40u128 {
        disk.crash(|_| false);
        let mut rig = Rig::on(disk, rig.area, 1, life);
        assert_eq!(rig.journal.last_lsn(), acknowledged);
        assert_eq!(rig.state, state);
        assert_eq!(rig.journal.append(&[]), Err(Refused::Starting));
        // Step `life` of this instance's start is its last.
        'start: for _ in 0..life {
            if !rig.feed_snapshot() {
                break 'start;
            }
            rig.submit();
            rig.try_crashes(&mut random, &mut |_| {});
            if rig.in_flight() > 0 {
                rig.complete(0);
            }
        }
        disk = rig.disk;
    }
}

#[test]
fn durable_is_a_prefix_whatever_order_flushes_end_in() {
    let mut random = Random(1);
    let mut rig = Rig::fresh(72, 4);
    rig.begin();
    for _ in 0..4 {
        rig.operate(&mut random, 100).expect("room");
        assert!(rig.submit().is_some());
    }
    rig.operate(&mut random, 100).expect("room");
    assert!(rig.submit().is_none(), "four are in flight");
    let base = rig.acknowledged;
    for index in [3, 2, 1] {
        rig.complete(index);
        assert_eq!(rig.journal.durable_lsn(), base);
    }
    rig.complete(0);
    assert_eq!(rig.journal.durable_lsn(), Lsn(base.0 + 4));
    rig.settle();
    assert_eq!(rig.journal.durable_lsn(), Lsn(base.0 + 5));
}

#[test]
fn one_flush_carries_all_that_waited() {
    let mut random = Random(1);
    let mut rig = Rig::fresh(256, 1);
    rig.begin();
    let mut flush_count = 0;
    rig.operate(&mut random, 100).expect("room");
    rig.submit().expect("first");
    for _ in 0..30 {
        rig.operate(&mut random, 60).expect("room");
        assert!(rig.submit().is_none());
    }
    rig.complete(0);
    while let Some(flush) = rig.submit() {
        flush_count += 1;
        assert_eq!(flush.last_lsn, rig.journal.last_lsn());
        rig.complete(0);
    }
    assert_eq!(flush_count, 1);
}

/// Nothing that `has_room` promised is refused, and a full journal says so before anything changes;
/// the reserve lets urgent operations go on for a while.
#[test]
fn full_is_told_before_and_the_reserve_is_for_the_urgent() {
    for size in [0, 100, 4000] {
        let mut random = Random(2);
        let mut rig = Rig::fresh(512, 1);
        rig.begin();
        let bytes = 2 * (size + 8);
        let mut urgent = 0;
        loop {
            let normal = rig.journal.has_room(bytes, Urgency::Normal);
            let any = rig.journal.has_room(bytes, Urgency::Urgent);
            assert!(any || !normal);
            if !any {
                break;
            }
            urgent += u32::from(!normal);
            rig.operate(&mut random, size).expect("promised");
            if urgent.is_multiple_of(3) {
                rig.settle();
            }
        }
        assert!(urgent > 0);
        // Operations are of one or of two parts: none of either fits in the end.
        let mut refused = 0;
        while refused < 20 {
            match rig.operate(&mut random, size) {
                Ok(_) => refused = 0,
                Err(error) => {
                    assert_eq!(error, Refused::Full);
                    refused += 1;
                }
            }
        }
        rig.settle();
        rig.verify(&rig.disk);
        // The snapshot still fits: the other half is free.
        rig.begin_snapshot();
        while rig.feed_snapshot() {}
        rig.settle();
        assert!(rig.journal.has_room(bytes, Urgency::Normal));
    }
}

#[test]
fn an_overlay_too_large_for_a_segment_is_refused_in_time() {
    let mut rig = Rig::fresh(512, 1);
    rig.begin();
    let size = rig.area.segment_size();
    rig.journal.set_overlay_size(size / 2);
    assert!(rig.journal.has_room(1000, Urgency::Normal));
    rig.journal.set_overlay_size(size / 3 * 2);
    assert!(!rig.journal.has_room(1000, Urgency::Normal));
    assert!(rig.journal.has_room(1000, Urgency::Urgent));
    // Nobody could start with what does not fit a first snapshot.
    rig.journal.set_overlay_size(size / 8 * 7);
    assert!(!rig.journal.has_room(1000, Urgency::Urgent));
}

/// What has come since the last look may be in there, too: whoever lacks room for it waits for the next one, as urgent as he is.
#[test]
fn what_was_not_measured_is_no_lack_of_room() {
    let mut random = Random(7);
    let mut rig = Rig::fresh(2048, 1);
    rig.begin();
    let size = rig.area.segment_size();
    let used = size / 16 * 11;
    rig.journal.set_overlay_size(used);
    rig.journal.set_overlay_size(used);
    assert!(!rig.journal.is_room_unmeasured(Urgency::Urgent));
    while rig.journal.overlay_bound() < size / 16 * 14 {
        rig.operate(&mut random, 3000).expect("room");
        rig.settle();
    }
    assert!(!rig.journal.has_room(1000, Urgency::Urgent));
    assert!(rig.journal.is_room_unmeasured(Urgency::Urgent));
    // For what is less urgent there was none before, either.
    assert!(!rig.journal.is_room_unmeasured(Urgency::Normal));
    rig.journal.set_overlay_size(used);
    rig.journal.set_overlay_size(used);
    assert!(rig.journal.has_room(1000, Urgency::Urgent));
}

#[test]
fn a_failed_flush_poisons_and_recovery_heals() {
    let mut random = Random(3);
    let mut rig = Rig::fresh(72, 2);
    rig.begin();
    rig.operate(&mut random, 100).expect("room");
    rig.settle();
    rig.operate(&mut random, 100).expect("room");
    rig.submit().expect("a flush");
    rig.operate(&mut random, 100).expect("room");
    rig.submit().expect("a flush");
    let durable = rig.journal.durable_lsn();
    rig.fail(0);
    assert!(rig.journal.is_poisoned());
    assert_eq!(rig.operate(&mut random, 1), Err(Refused::Poisoned));
    assert!(!rig.journal.has_room(1, Urgency::Urgent));
    assert!(rig.submit().is_none());
    // What was in flight with it may end well: still nothing is acknowledged.
    rig.complete(0);
    assert_eq!(rig.journal.durable_lsn(), durable);
    rig.try_crashes(&mut random, &mut |_| {});
}

#[test]
fn a_snapshot_that_does_not_fit_is_given_up_and_the_journal_goes_on() {
    let mut random = Random(4);
    let mut rig = Rig::fresh(72, 2);
    rig.begin();
    for _ in 0..5 {
        rig.operate(&mut random, 3000).expect("room");
    }
    rig.settle();
    for round in 0..6 {
        rig.journal.begin_snapshot(0);
        let big = vec![1; 40_000];
        loop {
            match rig.journal.append_snapshot(part(KEYS[0], &big)) {
                Ok(()) => {}
                Err(refused) => {
                    assert_eq!(refused, Refused::Full);
                    break;
                }
            }
            if round % 2 == 0 {
                rig.submit();
            }
        }
        rig.journal.abort_snapshot();
        rig.journal.check();
        assert!(!rig.journal.needs_snapshot(), "not at once again");
        rig.operate(&mut random, 10).expect("room");
        rig.try_crashes(&mut random, &mut |_| {});
        let given_up = rig.in_flight();
        assert_eq!(given_up > 0, round % 2 == 0);
        while rig.submit().is_some() {
            let last = rig.in_flight() - 1;
            rig.complete(last);
        }
        // The half is not taken into use while a write into it is in flight.
        assert_eq!(rig.in_flight(), given_up);
        assert_eq!(rig.journal.can_begin_snapshot(), given_up == 0);
        rig.settle();
        assert!(rig.journal.can_begin_snapshot());
    }
    rig.begin_snapshot();
    while rig.feed_snapshot() {}
    rig.settle();
    rig.verify(&rig.disk);
}

/// A half is not written again before the writes into it, its mark included, have ended.
#[test]
fn the_old_half_waits_for_its_last_writes() {
    let mut random = Random(6);
    let mut rig = Rig::fresh(72, 1);
    rig.begin();
    rig.operate(&mut random, 100).expect("room");
    let late = rig.submit().expect("a flush of the old segment");
    rig.begin_snapshot();
    while rig.feed_snapshot() {}
    // The old segment's flush (index 0) stays in flight while the new segment is completed.
    while let Some(flush) = rig.submit() {
        assert_ne!(flush.at, late.at);
        let last = rig.in_flight() - 1;
        rig.complete(last);
    }
    assert_eq!(rig.journal.durable_lsn(), rig.journal.last_lsn());
    assert!(!rig.journal.can_begin_snapshot(), "a write is in flight");
    rig.complete(0);
    assert!(!rig.journal.can_begin_snapshot(), "the mark is not written");
    rig.submit().expect("the mark");
    assert!(!rig.journal.can_begin_snapshot(), "the mark is in flight");
    rig.complete(0);
    assert!(rig.journal.can_begin_snapshot());
}

#[test]
#[should_panic(expected = "is_subset")]
fn a_snapshot_that_lacks_a_key_is_a_bug() {
    let mut rig = Rig::fresh(72, 1);
    rig.begin();
    rig.journal
        .append(&[part(KEYS[1], b"12345678")])
        .expect("room");
    rig.journal.begin_snapshot(0);
    rig.journal
        .append_snapshot(part(KEYS[0], &[]))
        .expect("room");
    rig.journal.end_snapshot();
}

#[test]
fn two_journals_of_one_nsd_do_not_read_each_other() {
    let mut random = Random(8);
    let mut rig = Rig::fresh(72, 1);
    rig.begin();
    rig.operate(&mut random, 100).expect("room");
    rig.settle();
    let error =
        crate::testing::recover(
            &rig.disk,
            rig.area,
            FS,
            NodeId(OWNER.0 + 1),
            &mut |_| Ok(()),
        );
    assert!(
        error
            .expect_err("another owner's")
            .to_string()
            .contains("owner node")
    );
    let empty = Area {
        begin: rig.area.begin + rig.area.count,
        ..rig.area
    };
    let error = recovered(&rig.disk, empty).expect_err("blank");
    assert!(error.to_string().contains("nothing where"), "{error}");
}

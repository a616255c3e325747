//! Damage is told from torn tails, named, and never replayed over; old bytes stay dead.
#![allow(clippy::cast_possible_truncation, reason = "test arithmetic is small")]

use super::*;
use crate::crash::{KEYS, Random, Rig, State, recovered};
use crate::format::Field;
use crate::journal::Urgency;
use crate::testing::Disk;

/// A journal in steady state, everything acknowledged, and the half that it lives in.
fn steady(operations: u64, switches: u64) -> (Rig, u8) {
    let mut random = Random(11);
    let mut rig = Rig::fresh(72, 1);
    rig.begin();
    for _ in 1..switches {
        while !rig.journal.needs_snapshot() {
            rig.operate(&mut random, 700).expect("room");
            rig.settle();
        }
        rig.begin_snapshot();
        while rig.feed_snapshot() {}
        rig.settle();
    }
    for _ in 0..operations {
        rig.operate(&mut random, 700).expect("room");
        rig.settle();
    }
    let (found, _) = recovered(&rig.disk, rig.area).expect("healthy");
    (rig, 1 - found.next_half)
}

/// Either the true state, or an error that names the journal's area: never another state.
fn true_or_refused(rig: &Rig, disk: &Disk) -> bool {
    match recovered(disk, rig.area) {
        Ok((found, state)) => {
            let index = usize::try_from(found.last_lsn.0.saturating_sub(rig.base));
            let index = index.expect("small");
            // The last flush alone cannot be told from a torn one.
            assert!(index + 2 > rig.states.len() - 1, "{index}");
            let wanted: &State = &rig.states[index];
            assert!(KEYS.iter().all(|key| state.get(key) == wanted.get(key)));
            true
        }
        Err(RecoveryError::Corrupt { nsd, sector, .. }) => {
            assert_eq!(nsd, rig.area.nsd);
            let area = rig.area.begin..rig.area.begin + rig.area.count;
            assert!(area.contains(&sector));
            false
        }
        Err(other) => panic!("{other}"),
    }
}

/// Rot anywhere: one bit in each sector (several places), headers, snapshot, operations, padding.
#[test]
fn no_flipped_bit_changes_what_is_recovered() {
    for switches in [1, 2, 3] {
        let (rig, _) = steady(6, switches);
        let (mut kept, mut refused) = (0, 0);
        for sector in 0..rig.area.count {
            let at = Location {
                nsd: rig.area.nsd,
                sector: rig.area.begin + sector,
            };
            for bit in [0, 70, 8 * 40 + 1, 8 * 300, 8 * 509, 8 * 2000, 8 * 4095] {
                let mut disk = rig.disk.clone();
                disk.flip(at, bit);
                if true_or_refused(&rig, &disk) {
                    kept += 1;
                } else {
                    refused += 1;
                }
            }
        }
        assert!(kept > 50, "{kept}: padding and free sectors do not matter");
        assert!(refused > 20, "{refused}");
    }
}

/// A misdirected write: any sector of the area on top of any other.
#[test]
fn no_misplaced_sector_changes_what_is_recovered() {
    let (rig, _) = steady(6, 3);
    let place = |sector| Location {
        nsd: rig.area.nsd,
        sector: rig.area.begin + sector,
    };
    for source in 0..rig.area.count {
        for target in (0..rig.area.count).filter(|target| *target != source) {
            let mut disk = rig.disk.clone();
            disk.copy(place(source), place(target));
            true_or_refused(&rig, &disk);
        }
    }
}

/// The complete segment rots and the half before it still holds an older state, whole: that state is
/// old, and must not come back. (Before the old half is marked it cannot be told; the mark follows the
/// switch at once.)
#[test]
fn a_rotten_snapshot_does_not_bring_an_older_state_back() {
    let (rig, half) = steady(3, 4);
    let mut refused = 0;
    for index in 2..rig.area.half_sectors() {
        let mut disk = rig.disk.clone();
        disk.flip(rig.area.at(half, index), 8 * 60);
        refused += u32::from(!true_or_refused(&rig, &disk));
    }
    assert!(refused >= 6, "{refused}");
}

#[test]
fn either_copy_of_a_header_is_enough_and_none_is_an_error() {
    let (rig, half) = steady(3, 2);
    for index in 0..HEADER_SECTORS {
        let mut disk = rig.disk.clone();
        disk.flip(rig.area.at(half, index), 100);
        assert!(true_or_refused(&rig, &disk));
    }
    let mut disk = rig.disk.clone();
    disk.flip(rig.area.at(half, 0), 100);
    disk.flip(rig.area.at(half, 1), 100);
    let error = recovered(&disk, rig.area).expect_err("no header is left");
    assert!(error.to_string().contains("segment header"), "{error}");
    assert!(error.to_string().contains("nsd1"), "{error}");
}

#[test]
fn an_area_that_was_wiped_is_not_a_new_one() {
    let wiped = |rig: &Rig, halves: &[u8]| {
        let mut disk = rig.disk.clone();
        for half in halves {
            let zeros = vec![0; HEADER_SECTORS as usize * SECTOR];
            let id = disk.submit(rig.area.at(*half, 0), &zeros);
            disk.complete_flushed(id);
        }
        recovered(&disk, rig.area)
    };
    for (operations, switches) in [(0, 0), (3, 1), (3, 2)] {
        let (rig, half) = steady(operations, switches);
        let error = wiped(&rig, &[0, 1]).expect_err("nothing is left");
        assert!(matches!(error, RecoveryError::Blank { .. }), "{error}");
        wiped(&rig, &[half]).expect_err("the newest segment is gone");
    }
    // Before the first start the other half is blank.
    let rig = Rig::fresh(72, 1);
    let (found, state) = wiped(&rig, &[1]).expect("as formatted");
    assert_eq!((found.previous, state.len()), (1, 0));
    wiped(&rig, &[0]).expect_err("the only segment is gone");
}

fn rewrite(disk: &mut Disk, at: Location, field: Field, value: &[u8]) {
    let mut sector = disk.read(at, 1);
    sector[field.offset..field.offset + value.len()].copy_from_slice(value);
    let crc = crc32c(&sector[..508]);
    sector[508..512].copy_from_slice(&crc.to_le_bytes());
    let id = disk.submit(at, &sector);
    disk.complete_flushed(id);
}

#[test]
fn a_later_version_and_another_file_system_are_named() {
    let (rig, half) = steady(3, 2);
    let mut disk = rig.disk.clone();
    for index in 0..HEADER_SECTORS {
        let version = crate::format::SEGMENT_HEADER[1];
        rewrite(&mut disk, rig.area.at(half, index), version, &[3, 0, 0, 0]);
    }
    let error = recovered(&disk, rig.area).expect_err("version 3");
    assert!(matches!(error, RecoveryError::Version { version: 3, .. }));
    let mut disk = rig.disk.clone();
    for index in 0..HEADER_SECTORS {
        let fs = crate::format::SEGMENT_HEADER[3];
        rewrite(&mut disk, rig.area.at(half, index), fs, &[1, 2, 3]);
    }
    let error = recovered(&disk, rig.area).expect_err("another file system");
    assert!(error.to_string().contains("file system id"), "{error}");
}

/// A part that the owner of its key cannot decode stops recovery and says where it is.
#[test]
fn what_is_not_understood_is_an_error_with_its_place() {
    let (rig, _) = steady(3, 1);
    let mut count = 0;
    let mut refuse = |part: Replay<'_>| {
        count += 1;
        if count == 10 {
            assert!(!part.is_snapshot);
            return Err(DecodeError::Short { what: "mutation" });
        }
        Ok(())
    };
    let owner = crate::crash::OWNER;
    let error = crate::testing::recover(&rig.disk, rig.area, crate::crash::FS, owner, &mut refuse);
    match error.expect_err("the visitor refused") {
        RecoveryError::Payload {
            nsd,
            key,
            error,
            lsn,
            ..
        } => {
            assert_eq!(nsd, rig.area.nsd);
            assert!(key.is_some_and(|key| KEYS.contains(&key)));
            assert_eq!(error, DecodeError::Short { what: "mutation" });
            assert!(lsn > Lsn(0));
        }
        other => panic!("{other}"),
    }
}

/// Foreign bytes of every kind in the whole area: an error or nothing, never a panic.
#[test]
fn random_bytes_are_refused() {
    let mut random = Random(77);
    let (rig, half) = steady(3, 2);
    for round in 0..300u64 {
        let mut disk = rig.disk.clone();
        let keep_header = round % 2 == 0;
        for index in if keep_header { 2 } else { 0 }..rig.area.half_sectors() {
            if random.below(3) > 0 {
                let mut bytes = disk.read(rig.area.at(half, index), 1);
                let from = random.below(4096) as usize;
                for byte in bytes[from..].iter_mut().take(64) {
                    *byte = random.next() as u8;
                }
                let id = disk.submit(rig.area.at(half, index), &bytes);
                disk.complete_flushed(id);
            }
        }
        if let Ok((found, _)) = recovered(&disk, rig.area) {
            assert!(found.last_lsn <= rig.journal.last_lsn());
        }
    }
}

/// Records longer than a read, at the end of the half, and a half filled to its last sector.
#[test]
fn long_records_and_a_full_half_come_back() {
    let mut rig = Rig::fresh(4096, 2);
    rig.begin();
    let mut random = Random(9);
    let mut sizes = vec![1 << 20, 3 << 20, 5, 4090, 4096, 2 << 20];
    while rig.journal.has_room(2 * 70_000, Urgency::Urgent) {
        let size = sizes.pop().unwrap_or(35_000 + random.below(3000) as usize);
        let size = size / 2;
        if rig.journal.has_room(2 * (size + 8), Urgency::Urgent) {
            rig.operate(&mut random, size).expect("room");
        }
        rig.submit();
    }
    rig.settle();
    while rig.operate(&mut random, 100).is_ok() {
        rig.settle();
    }
    let lsn = rig.verify(&rig.disk);
    assert_eq!(lsn, rig.journal.last_lsn());
}

/// The same operations give the same bytes: nothing depends on addresses or hash seeds.
#[test]
fn the_bytes_are_a_function_of_the_input() {
    let (a, _) = steady(5, 3);
    let (b, _) = steady(5, 3);
    let read = |rig: &Rig| {
        let at = rig.area.at(0, 0);
        crc32c(&rig.disk.read(at, rig.area.count))
    };
    assert_eq!(read(&a), read(&b));
}

/// Room is kept whatever the sizes of records are and whenever flushes are taken: what was promised is
/// never overrun, and the end of a snapshot always fits.
#[test]
fn room_is_kept_for_records_of_any_size() {
    for seed in 0..4 {
        let mut random = Random(seed);
        let mut rig = Rig::fresh(2 * 1100, 1);
        rig.begin();
        for _ in 0..2 {
            loop {
                let size = match random.below(4) {
                    0 => 200_000 + random.below(900_000) as usize,
                    1 => 4000 + random.below(200) as usize,
                    _ => random.below(500) as usize,
                };
                if rig.operate(&mut random, size / 2).is_err() && size < 500 {
                    break;
                }
                rig.journal.check();
                if random.below(3) > 0 && rig.submit().is_some() {
                    rig.journal.check();
                    rig.complete(0);
                }
            }
            rig.settle();
            rig.begin_snapshot();
            while rig.feed_snapshot() {
                rig.journal.check();
                if random.below(2) == 0 && rig.submit().is_some() {
                    rig.complete(0);
                }
            }
            rig.settle();
            assert_eq!(rig.verify(&rig.disk), rig.journal.last_lsn());
        }
    }
}

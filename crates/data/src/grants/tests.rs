//! The grant pool against a naive set of sectors, with grants scattered in every way.
#![allow(clippy::cast_possible_truncation, reason = "test arithmetic is small")]

use super::*;
use std::collections::BTreeSet;
use types::GrantId;

struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % bound
    }
}

fn grant(nsd: u16, sector: u64, count: u32) -> Grant {
    Grant {
        id: GrantId(u128::from(sector)),
        run: Run {
            at: Location {
                nsd: NsdId(nsd),
                sector,
            },
            count,
        },
        mac: 0,
    }
}

fn sectors(run: Run) -> Vec<(u16, u64)> {
    let begin = run.at.sector;
    (begin..begin + u64::from(run.count))
        .map(|sector| (run.at.nsd.0, sector))
        .collect()
}

#[test]
fn data_that_fits_is_the_most_that_fits() {
    for room in 1..6000u32 {
        let data = data_that_fits(room);
        let size = |data| data + checksum_sector_count(data);
        assert!(size(data) <= room);
        // One more does not fit, but at the step from inline checksums to a checksum sector.
        assert!(size(data + 1) > room, "{room}");
    }
}

/// The bound on which ENOSPC rests, over all runs that there can be.
#[test]
fn overhead_is_never_more_than_a_seventeenth() {
    for data in 1..70_000u32 {
        assert!(u64::from(checksum_sector_count(data)) <= u64::from(data) / OVERHEAD);
    }
}

/// What was reserved can be taken, whatever the pool's pieces are and however it is taken.
#[test]
fn reserved_sectors_can_always_be_taken() {
    for seed in 0..150u64 {
        let mut random = Random(seed);
        let mut pool = GrantPool::new();
        let piece_max = [1, 3, 17, 40, 400][random.below(5) as usize];
        let mut sector = 0;
        for _ in 0..40 {
            let count = 1 + random.below(piece_max) as u32;
            let nsd = random.below(3) as u16;
            assert!(pool.add(&grant(nsd, sector, count)));
            assert!(!pool.add(&grant(nsd, sector, 1)), "a repeated grant");
            sector += u64::from(count) + 1;
        }
        // All that can be reserved, in pieces.
        let mut reservations = Vec::new();
        let mut denied = 0;
        while denied < 5 {
            match pool.reserve(1 + random.below(60)) {
                Ok(reservation) => reservations.push(reservation),
                Err(more) => {
                    assert!(more.sectors > 0);
                    denied += 1;
                }
            }
        }
        while let Ok(reservation) = pool.reserve(1) {
            reservations.push(reservation);
        }
        assert!(
            pool.unreserved() <= 1,
            "one more would need a checksum sector"
        );
        pool.check();
        let mut seen = BTreeSet::new();
        for mut reservation in reservations {
            while reservation.sectors() > 0 {
                let data = 1 + random.below(reservation.sectors()) as u32;
                let order = [NsdId(random.below(4) as u16), NsdId(1)];
                let taken = pool.take(&mut reservation, &order, data);
                assert_eq!(taken.iter().map(|t| t.data).sum::<u32>(), data);
                for run in &taken {
                    let checksums = checksum_sector_count(run.data);
                    assert_eq!(run.run.count, run.data + checksums);
                    for sector in sectors(run.run) {
                        assert!(seen.insert(sector), "taken twice");
                    }
                }
                pool.check();
            }
            pool.release(reservation);
        }
    }
}

#[test]
fn random_schedules_keep_every_sector_in_one_place() {
    let mut random = Random(99);
    let mut pool = GrantPool::new();
    let mut owned: BTreeSet<(u16, u64)> = BTreeSet::new();
    let mut submitted: BTreeSet<(u16, u64)> = BTreeSet::new();
    let mut in_flight: Vec<Taken> = Vec::new();
    let mut burnt: Vec<Run> = Vec::new();
    let mut held = Reservation::none();
    let mut next = 0;
    for _ in 0..20_000 {
        match random.below(10) {
            0..2 => {
                let count = 1 + random.below(70) as u32;
                let grant = grant(random.below(2) as u16, next, count);
                next += u64::from(count) + random.below(2);
                assert!(pool.add(&grant));
                owned.extend(sectors(grant.run));
            }
            2..4 => {
                if let Ok(more) = pool.reserve(random.below(90)) {
                    held.merge(more);
                }
            }
            4..6 if held.sectors() > 0 => {
                let data = 1 + random.below(held.sectors()) as u32;
                in_flight.extend(pool.take(&mut held, &[NsdId(0), NsdId(1)], data));
            }
            6..9 if !in_flight.is_empty() => {
                let index = random.below(in_flight.len() as u64) as usize;
                let taken = in_flight.swap_remove(index);
                if random.below(5) == 0 {
                    pool.put_back(taken);
                    continue;
                }
                for sector in sectors(taken.run) {
                    assert!(owned.contains(&sector));
                    assert!(submitted.insert(sector), "submitted twice");
                }
                if random.below(4) == 0 {
                    pool.burn(taken.run);
                    burnt.push(taken.run);
                } else {
                    pool.committed(taken.run);
                }
            }
            9 => {
                if let Some(run) = burnt.pop() {
                    pool.ended(run);
                }
                for run in pool.take_spent(100) {
                    assert!(sectors(run).iter().all(|s| submitted.contains(s)));
                }
                for run in pool.give_up(random.below(20), 100) {
                    for sector in sectors(run) {
                        assert!(!submitted.contains(&sector), "never submitted");
                        assert!(owned.remove(&sector));
                    }
                }
                let some = held.sectors().min(random.below(30));
                pool.release(held.split(SetAside::plain(some)));
            }
            _ => {}
        }
        pool.check();
    }
    assert!(submitted.len() > 10_000, "{}", submitted.len());
    pool.release(held);
}

#[test]
fn one_long_run_is_taken_whole_and_small_ones_lie_side_by_side() {
    let mut pool = GrantPool::new();
    pool.add(&grant(0, 100, 20));
    pool.add(&grant(0, 1000, 600));
    pool.add(&grant(1, 0, 600));
    let mut reservation = pool.reserve(1000).expect("room");
    let order = [NsdId(0), NsdId(1)];
    let taken = pool.take(&mut reservation, &order, 256);
    assert_eq!(taken.len(), 1);
    assert_eq!(taken[0].run, grant(0, 1000, 257).run);
    for at in [100, 101, 102] {
        let taken = pool.take(&mut reservation, &order, 1);
        assert_eq!(taken[0].run, grant(0, at, 1).run);
    }
    // No run of NSD 0 is long enough any more: the next of the order serves.
    let taken = pool.take(&mut reservation, &order, 400);
    assert_eq!(taken[0].run, grant(1, 0, 401).run);
    pool.release(reservation);
}

#[test]
fn what_is_reserved_is_not_given_up_and_lost_grants_are_found() {
    let mut pool = GrantPool::new();
    pool.add(&grant(0, 0, 50));
    pool.add(&grant(1, 0, 50));
    let reservation = pool.reserve(80).expect("room");
    assert_eq!(pool.reserve(40), Err(NeedMore { sectors: 27 }));
    assert_eq!(
        pool.give_up(100, 9).iter().map(|r| r.count).sum::<u32>(),
        16
    );
    pool.release(reservation);
    let counts = pool.counts();
    assert_eq!((counts.free, counts.reserved), (84, 0));
    assert_eq!(pool.give_up(54, 9).iter().map(|r| r.count).sum::<u32>(), 54);
    assert_eq!(pool.unreserved(), 30);
    // The owner has granted more than has come here.
    let held: Vec<Run> = pool.unknown(&[grant(1, 0, 200).run]);
    assert!(held.iter().all(|run| run.at.nsd == NsdId(1)));
    let known = 30 - u64::from(pool.unknown(&[grant(0, 0, 50).run])[0].count == 50);
    assert!(known <= 30);
    for run in held {
        pool.adopt_spent(run);
    }
    pool.check();
    assert!(pool.unknown(&[grant(1, 0, 200).run]).is_empty());
}

#[test]
fn what_can_be_reserved_is_known_exactly() {
    for free in 1..200 {
        for (reserved, promised) in [(0, 0), (16, 0), (5, 3), (40, 20)] {
            let mut pool = GrantPool::new();
            pool.add(&grant(0, 0, free));
            if pool.free.count() < with_overhead(reserved) + promised {
                continue;
            }
            let held = pool.reserve(reserved).expect("seen above");
            pool.keep_promised(promised);
            let most = pool.reservable();
            assert!(pool.reserve(most + 1).is_err());
            let all = pool.reserve(most).expect("so many");
            pool.release(all);
            pool.release(held);
        }
    }
}

#[test]
fn the_nsds_of_a_layout_are_used_up_before_others() {
    let mut pool = GrantPool::new();
    // Short runs only on the NSD asked for, long ones elsewhere.
    for index in 0..10 {
        assert!(pool.add(&grant(3, index * 10, 5)));
    }
    assert!(pool.add(&grant(1, 0, 500)));
    assert_eq!(pool.free_on(&[NsdId(3)]), 50);
    assert_eq!(pool.free_on(&[NsdId(3), NsdId(1)]), 550);
    assert!(pool.has_room_on(&[NsdId(3)], 48));
    assert!(!pool.has_room_on(&[NsdId(3)], 49));
    let mut all = pool.reserve(60).expect("there is room");
    let taken = pool.take(&mut all, &[NsdId(3)], 48);
    assert!(taken.iter().all(|t| t.run.at.nsd == NsdId(3)));
    assert_eq!(taken.iter().map(|t| t.data).sum::<u32>(), 48);
    // What is left there goes first, then the rest lies elsewhere: nothing fails late.
    let taken = pool.take(&mut all, &[NsdId(3)], 12);
    let on = |nsd| -> u32 {
        let of = taken.iter().filter(|t| t.run.at.nsd == NsdId(nsd));
        of.map(|t| t.data).sum()
    };
    assert_eq!((on(3), on(1)), (2, 10));
    pool.check();
}

/// Sectors for promised ranges leave with what is promised, and never go to other bytes.
#[test]
fn what_is_set_aside_for_promised_ranges_is_part_of_what_is_promised() {
    let part = |plain, promised| SetAside { plain, promised };
    let mut aside = part(3, 2);
    assert_eq!(aside.part(4, false), part(3, 0));
    assert_eq!(aside, part(0, 2));
    let mut aside = part(3, 2);
    assert_eq!(aside.part(1, true), part(0, 1));
    assert_eq!(aside.part(2, true), part(1, 1));
    assert_eq!(aside.part(9, true), part(2, 0));
}

//! Space against a naive map from sector to state, over random schedules with crashes.
#![allow(clippy::cast_possible_truncation, reason = "test arithmetic is small")]

mod leaving;
mod pages;

use super::*;
use types::{Decode, Encode, Incarnation, NodeId};

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}

/// What the twin knows of a sector.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Sector {
    Free,
    Granted(NodeLife),
    Used,
    Pending(Lsn),
    Quarantined(NodeLife),
}

type Twin = BTreeMap<Location, Sector>;

const REGION: u32 = 40;

fn geometry() -> Vec<Geometry> {
    (0..3u16)
        .map(|nsd| Geometry {
            nsd: NsdId(nsd),
            data_begin: 16,
            sector_count: 16 + 95 + u64::from(nsd),
            region_sectors: REGION,
        })
        .collect()
}

fn life(node: u16, number: u128) -> NodeLife {
    NodeLife {
        node: NodeId(node),
        incarnation: Incarnation(number),
    }
}

fn sectors(run: Run) -> impl Iterator<Item = Location> {
    (0..u64::from(run.count)).map(move |index| Location {
        nsd: run.at.nsd,
        sector: run.at.sector + index,
    })
}

fn run_at(at: Location, count: u32) -> Run {
    Run { at, count }
}

/// A stretch of sectors in the same state, from a random place on.
fn stretch(twin: &Twin, random: &mut Random, wanted: impl Fn(Sector) -> bool) -> Option<Run> {
    let all: Vec<_> = twin.iter().filter(|(_, s)| wanted(**s)).collect();
    if all.is_empty() {
        return None;
    }
    let (begin, state) = all[random.below(all.len() as u64) as usize];
    let most = 1 + random.below(30) as u32;
    let mut count = 1;
    while count < most {
        let next = Location {
            nsd: begin.nsd,
            sector: begin.sector + u64::from(count),
        };
        if twin.get(&next) != Some(state) {
            break;
        }
        count += 1;
    }
    Some(run_at(*begin, count))
}

fn expected_counts(twin: &Twin) -> Counts {
    let count = |f: fn(&Sector) -> bool| twin.values().filter(|s| f(s)).count() as u64;
    Counts {
        total: twin.len() as u64,
        free: count(|s| *s == Sector::Free),
        granted: count(|s| matches!(s, Sector::Granted(_))),
        used: count(|s| *s == Sector::Used),
        pending: count(|s| matches!(s, Sector::Pending(_))),
        quarantined: count(|s| matches!(s, Sector::Quarantined(_))),
    }
}

/// The state that a replay must give: what was freed is free.
fn replayed(twin: &Twin) -> Twin {
    let mut twin = twin.clone();
    for state in twin.values_mut() {
        if matches!(state, Sector::Pending(_)) {
            *state = Sector::Free;
        }
    }
    twin
}

fn agrees(space: &Space, twin: &Twin) {
    space.check();
    assert_eq!(space.counts(), expected_counts(twin));
    for (at, state) in twin {
        let one = run_at(*at, 1);
        let is = |mark| space.check_marked(one, mark).is_ok();
        assert_eq!(is(Mark::Free), *state == Sector::Free, "{at:?}");
        assert_eq!(is(Mark::Used), *state == Sector::Used, "{at:?}");
        if let Sector::Granted(life) = state {
            assert!(space.holds(*life, one));
        }
        if let Sector::Quarantined(life) = state {
            assert!(!space.holds(*life, one));
            assert!(space.quarantined[life].contains(one));
        }
    }
}

struct Rig {
    space: Space,
    twin: Twin,
    table: RegionTable,
    journal: Vec<SpaceMutation>,
    lsn: u64,
    durable: u64,
    random: Random,
    lost: Vec<NodeLife>,
    incarnation: u128,
}

const LEVELS: Levels = Levels {
    reserve: 12,
    low: 20,
};

impl Rig {
    fn new(seed: u64) -> Self {
        Self {
            space: Space::new(&geometry(), LEVELS),
            twin: Twin::new(),
            table: RegionTable::new(&geometry()),
            journal: Vec::new(),
            lsn: 0,
            durable: 0,
            random: Random(seed),
            lost: Vec::new(),
            incarnation: 1,
        }
    }

    /// The mutations of one operation go to the journal as one record.
    fn log(&mut self, mutations: Vec<SpaceMutation>) {
        if mutations.is_empty() {
            return;
        }
        self.lsn += 1;
        self.space.logged(Lsn(self.lsn));
        for mutation in mutations {
            let bytes = mutation.to_bytes();
            let again = SpaceMutation::from_bytes(&bytes, "mutation").expect("round trip");
            assert_eq!(again, mutation);
            self.journal.push(again);
        }
    }

    fn grant(&mut self) {
        let ask = Ask {
            life: life(1 + self.random.below(2) as u16, self.incarnation),
            nsd: NsdId(self.random.below(3) as u16),
            sectors: 1 + self.random.below(60),
            is_promised: false,
            is_leaving: false,
        };
        let free = expected_counts(&self.twin).free;
        let is_free =
            |(at, state): (&Location, &Sector)| at.nsd == ask.nsd && *state == Sector::Free;
        let there = self.twin.iter().filter(|entry| is_free(*entry)).count() as u64;
        let mut out = Vec::new();
        let random = &mut self.random;
        let granted = self
            .space
            .grant(ask, &mut || u128::from(random.next()), &mut out);
        let allowed = free.saturating_sub(LEVELS.reserve).min(there);
        match granted {
            Err(NoSpace) => assert!(allowed == 0 || self.lost.contains(&ask.life)),
            Ok(grants) => {
                let sum: u64 = grants.iter().map(|g| u64::from(g.run.count)).sum();
                assert!(sum <= ask.sectors.min(allowed));
                assert!(sum == ask.sectors.min(allowed) || grants.len() == GRANT_COUNT_MAX);
                for at in grants.iter().flat_map(|g| sectors(g.run)) {
                    assert_eq!(at.nsd, ask.nsd);
                    let old = self.twin.insert(at, Sector::Granted(ask.life));
                    assert_eq!(old, Some(Sector::Free));
                }
            }
        }
        self.log(out);
    }

    fn consume(&mut self) {
        let random = &mut self.random;
        let mut out = Vec::new();
        let Some(run) = stretch(&self.twin, random, |s| !matches!(s, Sector::Pending(_))) else {
            return;
        };
        let who = match self.twin[&run.at] {
            Sector::Granted(holder) if random.below(4) > 0 => holder,
            _ => life(1 + random.below(3) as u16, self.incarnation),
        };
        let is_held = sectors(run).all(|at| self.twin[&at] == Sector::Granted(who));
        let runs = if run.count > 1 && random.below(2) == 0 {
            // Two pieces, or (now and then) pieces that overlap: refused as a whole.
            let overlap = u32::from(random.below(4) == 0);
            let tail = Location {
                sector: run.at.sector + 1,
                ..run.at
            };
            vec![run_at(run.at, 1 + overlap), run_at(tail, run.count - 1)]
        } else {
            vec![run]
        };
        let overlaps = runs.len() == 2 && runs[0].count == 2;
        let result = self.space.consume(who, &runs, &mut out);
        assert_eq!(result.is_ok(), is_held && !overlaps);
        if result.is_ok() {
            for at in sectors(run) {
                self.twin.insert(at, Sector::Used);
            }
        } else {
            assert!(out.is_empty());
        }
        self.log(out);
    }

    fn free(&mut self) {
        let mut out = Vec::new();
        let random = &mut self.random;
        let used_only = random.below(5) > 0;
        let wanted = |s| !used_only || s == Sector::Used;
        let Some(run) = stretch(&self.twin, random, wanted) else {
            return;
        };
        let is_used = self.twin[&run.at] == Sector::Used;
        let result = self.space.free(run, &mut out);
        assert_eq!(result.is_ok(), is_used);
        self.log(out);
        if is_used {
            for at in sectors(run) {
                self.twin.insert(at, Sector::Pending(Lsn(self.lsn)));
            }
        }
    }

    fn give_back(&mut self) {
        let mut out = Vec::new();
        let random = &mut self.random;
        let Some(run) = stretch(&self.twin, random, |s| matches!(s, Sector::Granted(_))) else {
            return;
        };
        let Sector::Granted(holder) = self.twin[&run.at] else {
            unreachable!()
        };
        let wrong = life(9, 9);
        assert!(self.space.give_back(wrong, run, &mut out).is_err());
        self.space
            .give_back(holder, run, &mut out)
            .expect("it holds the run");
        for at in sectors(run) {
            self.twin.insert(at, Sector::Free);
        }
        self.log(out);
    }

    fn durable(&mut self) {
        self.durable += self.random.below(self.lsn - self.durable + 1);
        self.space.on_durable(Lsn(self.durable));
        for state in self.twin.values_mut() {
            if matches!(state, Sector::Pending(lsn) if lsn.0 <= self.durable) {
                *state = Sector::Free;
            }
        }
    }

    fn lose(&mut self) {
        let mut out = Vec::new();
        let who = life(1 + self.random.below(2) as u16, self.incarnation);
        self.space.node_lost(who, &mut out);
        for state in self.twin.values_mut() {
            if *state == Sector::Granted(who) {
                *state = Sector::Quarantined(who);
            }
        }
        if !out.is_empty() {
            self.lost.push(who);
        }
        self.log(out);
    }

    fn release(&mut self) {
        let mut out = Vec::new();
        let Some(who) = self.lost.pop() else {
            return;
        };
        let freed = self.space.release_quarantine(who, &mut out);
        let mut count = 0;
        for state in self.twin.values_mut() {
            if *state == Sector::Quarantined(who) {
                *state = Sector::Free;
                count += 1;
            }
        }
        assert_eq!(freed, count);
        self.incarnation += 1;
        self.log(out);
    }

    fn regions(&mut self) {
        let mut out = Vec::new();
        let me = NodeId(1);
        let nsd = NsdId(self.random.below(3) as u16);
        if self.random.below(3) > 0 {
            // The answer is lost now and then: found again by asking what is held.
            self.table.take(me, nsd, 1, &mut Vec::new());
            if self.random.below(3) > 0 {
                for region in self.space.unknown_regions(&self.table.held_by(me)) {
                    self.space.take_region(region, &mut out).expect("unknown");
                    assert!(self.space.take_region(region, &mut Vec::new()).is_err());
                    let place = geometry()[usize::from(region.nsd.0)].region(region.index);
                    for at in sectors(place.expect("it exists")) {
                        assert_eq!(self.twin.insert(at, Sector::Free), None);
                    }
                }
            }
        } else if let Some(region) = self.space.returnable().first().copied() {
            self.space.return_region(region, &mut out).expect("free");
            let place = geometry()[usize::from(region.nsd.0)].region(region.index);
            for at in sectors(place.expect("it exists")) {
                assert_eq!(self.twin.remove(&at), Some(Sector::Free));
            }
            let mut changes = Vec::new();
            self.table
                .give_back(me, region, &mut changes)
                .expect("held");
            assert!(self.table.give_back(me, region, &mut changes).is_err());
        }
        self.log(out);
    }

    /// A replay of the journal, or of a snapshot, gives the same space.
    fn replay(&mut self) {
        let wanted = replayed(&self.twin);
        let mut again = Space::new(&geometry(), LEVELS);
        for mutation in &self.journal {
            again.apply(mutation).expect("it was journaled");
        }
        agrees(&again, &wanted);
        let mut snapshot = Vec::new();
        self.space.snapshot(&mut |mutation| snapshot.push(mutation));
        let mut from_snapshot = Space::new(&geometry(), LEVELS);
        for mutation in &snapshot {
            from_snapshot.apply(mutation).expect("a snapshot fits");
        }
        agrees(&from_snapshot, &wanted);
        self.journal = snapshot;
        if self.random.below(3) == 0 {
            // Go on as after a crash: what is in the journal is durable.
            self.space = again;
            self.twin = wanted;
            self.durable = self.lsn;
        }
    }
}

#[test]
fn random_schedules_agree_with_a_map_of_sectors() {
    for seed in 0..6 {
        let mut rig = Rig::new(seed);
        let mut used_max = 0;
        for step in 0..1500 {
            match rig.random.below(20) {
                0..5 => rig.grant(),
                5..10 => rig.consume(),
                10..13 => rig.free(),
                13 => rig.give_back(),
                14..17 => rig.durable(),
                17 if rig.random.below(4) == 0 => rig.lose(),
                17 => rig.release(),
                _ => rig.regions(),
            }
            if step % 7 == 0 {
                agrees(&rig.space, &rig.twin);
            }
            if step % 100 == 99 {
                rig.replay();
            }
            used_max = used_max.max(rig.space.counts().used);
        }
        assert!(used_max > 60, "{used_max}");
    }
}

#[test]
fn grants_are_of_their_nsd_and_prefer_long_runs() {
    let mut space = Space::new(&geometry(), LEVELS);
    let mut out = Vec::new();
    for index in 0..2 {
        for nsd in 0..2 {
            let nsd = NsdId(nsd);
            space
                .take_region(RegionId { nsd, index }, &mut out)
                .expect("new");
        }
    }
    let ask = |nsd, sectors| Ask {
        life: life(1, 1),
        nsd: NsdId(nsd),
        sectors,
        is_promised: false,
        is_leaving: false,
    };
    let mut number = 0;
    let mut random = move || {
        number += 1;
        number
    };
    let first = space
        .grant(ask(1, 30), &mut random, &mut out)
        .expect("room");
    assert_eq!(first.len(), 1);
    assert_eq!(first[0].run.at.nsd, NsdId(1));
    // 10 are left in the first region: the second has 40 in a row.
    let second = space
        .grant(ask(1, 40), &mut random, &mut out)
        .expect("room");
    assert_eq!((second.len(), second[0].run.count), (1, 40));
    // The NSD has 10 left: who needs more asks for some of another.
    let third = space
        .grant(ask(1, 20), &mut random, &mut out)
        .expect("room");
    assert_eq!((third.len(), third[0].run.count), (1, 10));
    assert_eq!(third[0].run.at.nsd, NsdId(1));
    assert_eq!(space.grant(ask(1, 1), &mut random, &mut out), Err(NoSpace));
    // Down to the reserve and no further.
    let rest = space
        .grant(ask(0, 1000), &mut random, &mut out)
        .expect("room");
    let sum: u32 = rest.iter().map(|g| g.run.count).sum();
    assert_eq!(u64::from(sum), 160 - 80 - LEVELS.reserve);
    assert_eq!(space.grant(ask(0, 1), &mut random, &mut out), Err(NoSpace));
    assert!(space.wants_region(NsdId(1)));
    assert!(space.wants_region(NsdId(2)));
    let ids: Vec<_> = out
        .iter()
        .filter_map(|mutation| match mutation {
            SpaceMutation::Granted { grant, .. } => Some(grant.id),
            _ => None,
        })
        .collect();
    assert!(ids.windows(2).all(|pair| pair[0] != pair[1]));
}

#[test]
fn regions_are_shared_out_once() {
    let mut table = RegionTable::new(&geometry());
    let mut out = Vec::new();
    let mut seen = Vec::new();
    for node in [1, 2, 1, 2, 3] {
        seen.extend(table.take(NodeId(node), NsdId(1), 1, &mut out));
    }
    let all: Vec<_> = (0..3)
        .map(|index| RegionId {
            nsd: NsdId(1),
            index,
        })
        .collect();
    assert_eq!(seen, all);
    assert_eq!(table.free_count(NsdId(1)), 0);
    assert_eq!(table.free_count(NsdId(0)), 3);
    assert_eq!(table.free_sectors(), 95 + 97);
    assert_eq!(table.free_sectors_of(NsdId(0)), 95);
    assert_eq!(table.free_sectors_of(NsdId(2)), 97);
    assert_eq!(table.free_sectors_of(NsdId(1)), 0);
    assert_eq!(table.free_sectors_of(NsdId(7)), 0, "there is none");
    assert_eq!(table.held_by(NodeId(1)), [all[0], all[2]]);
    assert!(table.give_back(NodeId(2), all[0], &mut out).is_err());
    table.give_back(NodeId(1), all[0], &mut out).expect("held");
    let mut again = RegionTable::new(&geometry());
    for mutation in &out {
        let bytes = mutation.to_bytes();
        again.apply(&TableMutation::from_bytes(&bytes, "table").expect("round trip"));
    }
    let mut from_snapshot = RegionTable::new(&geometry());
    table.snapshot(&mut |mutation| from_snapshot.apply(&mutation));
    for twin in [&again, &from_snapshot] {
        assert_eq!(twin.held_by(NodeId(1)), [all[2]]);
        assert_eq!(twin.held_by(NodeId(2)), [all[1]]);
        assert_eq!(twin.free_count(NsdId(1)), 1);
    }
}

#[test]
fn regions_cover_an_nsd_and_have_sensible_sizes() {
    for geometry in geometry() {
        let mut next = geometry.data_begin;
        for index in 0..geometry.region_count() {
            let place = geometry.region(index).expect("it exists");
            assert_eq!(place.at.sector, next);
            for at in sectors(place) {
                assert_eq!(geometry.index_of(at.sector), Some(index));
            }
            next += u64::from(place.count);
        }
        assert_eq!(next, geometry.sector_count);
        assert_eq!(geometry.region(geometry.region_count()), None);
        assert_eq!(geometry.index_of(next), None);
        assert_eq!(geometry.index_of(geometry.data_begin - 1), None);
    }
    let mib = |mib: u64| mib * 256;
    for (nsd, region) in [
        (64, 4),
        (2048, 32),
        (8192, 64),
        (64 << 10, 64),
        (1 << 20, 1024),
        (16 << 20, 1024),
    ] {
        let sectors = Geometry::default_region_sectors(mib(nsd));
        assert_eq!(u64::from(sectors), mib(region), "{nsd} MiB");
    }
}

/// The document's table of mutations, from what the codec writes.
#[test]
fn the_document_shows_the_mutations() {
    let document = include_str!("../../../../docs/disk-format.md");
    let region = RegionId {
        nsd: NsdId(1),
        index: 2,
    };
    let at = Location {
        nsd: NsdId(1),
        sector: 3,
    };
    let run = run_at(at, 4);
    let life = life(5, 6);
    let grant = Grant {
        id: GrantId(7),
        run,
        mac: 8,
    };
    let all = [
        (
            "region taken",
            "region",
            SpaceMutation::RegionTaken { region },
        ),
        (
            "region returned",
            "region",
            SpaceMutation::RegionReturned { region },
        ),
        (
            "granted",
            "life, grant",
            SpaceMutation::Granted { life, grant },
        ),
        (
            "consumed",
            "life, run",
            SpaceMutation::Consumed { life, run },
        ),
        ("freed", "run", SpaceMutation::Freed { run }),
        (
            "given back",
            "life, run",
            SpaceMutation::GivenBack { life, run },
        ),
        ("node lost", "life", SpaceMutation::NodeLost { life }),
        (
            "quarantine released",
            "life",
            SpaceMutation::QuarantineReleased { life },
        ),
        (
            "region for pages",
            "region",
            SpaceMutation::RegionForPages { region },
        ),
        (
            "region for data",
            "region",
            SpaceMutation::RegionForData { region },
        ),
    ];
    for (name, fields, mutation) in all {
        let bytes = mutation.to_bytes();
        let row = format!("| {} | {name} | {} | {fields} |\n", bytes[0], bytes.len());
        assert!(document.contains(&row), "disk-format.md lacks: {row}");
    }
    let used = |count| {
        SpaceMutation::Used {
            runs: vec![run; count],
        }
        .to_bytes()
    };
    assert_eq!(
        (used(0).len(), used(2).len(), used(0)[0]),
        (5, 5 + 2 * 14, 9)
    );
}

/// The document's sizes of extents.
#[test]
fn the_document_shows_the_extent() {
    let at = Location {
        nsd: NsdId(1),
        sector: 3,
    };
    let sizes = [1u32, 256].map(|length| {
        let (checksums, _) = crate::checksum::seal(&vec![7; length as usize]);
        let extent = types::Extent {
            file_sector: 0,
            length,
            birth: 0,
            is_shared: false,
            locations: vec![at],
            checksums,
        };
        extent.to_bytes().len()
    });
    let document = include_str!("../../../../docs/disk-format.md");
    let said = format!(
        "a 4 KiB extent with one copy takes {} bytes and a 1 MiB one {}.",
        sizes[0], sizes[1]
    );
    assert!(document.contains(&said), "{said}");
}

#[test]
fn what_is_held_back_goes_to_promised_ranges_alone() {
    let geometry = Geometry {
        nsd: NsdId(0),
        data_begin: 0,
        sector_count: 300,
        region_sectors: 100,
    };
    let levels = Levels {
        reserve: 10,
        low: 0,
    };
    let mut space = Space::new(&[geometry], levels);
    let mut out = Vec::new();
    let region = |index| RegionId {
        nsd: NsdId(0),
        index,
    };
    space.take_region(region(0), &mut out).expect("new");
    space.take_region(region(1), &mut out).expect("new");
    assert_eq!((space.grantable(), space.promisable()), (190, 190));
    // What is above the reserve can be written to a promise.
    space.hold_back(95);
    assert!(!space.can_spare(region(0)));
    space.hold_back(90);
    assert!(space.can_spare(region(0)));
    space.hold_back(150);
    assert_eq!((space.grantable(), space.promisable()), (40, 40));
    assert!(!space.can_spare(region(0)), "it would break the promise");
    let mut number = 0;
    let mut random = move || {
        number += 1;
        number
    };
    let ask = |is_promised| Ask {
        life: life(1, 1),
        nsd: NsdId(0),
        sectors: 1000,
        is_promised,
        is_leaving: false,
    };
    let count = |grants: Vec<Grant>| grants.iter().map(|g| g.run.count).sum::<u32>();
    let plain = space
        .grant(ask(false), &mut random, &mut out)
        .expect("some");
    let runs: Vec<Run> = plain.iter().map(|grant| grant.run).collect();
    assert_eq!(count(plain), 40);
    assert_eq!(space.grant(ask(false), &mut random, &mut out), Err(NoSpace));
    // What is freed and not durable can be promised, and not be granted.
    space.consume(life(1, 1), &runs, &mut out).expect("granted");
    runs.iter()
        .for_each(|run| space.free(*run, &mut out).expect("used"));
    assert_eq!((space.grantable(), space.promisable()), (0, 40));
    let kept = space.grant(ask(true), &mut random, &mut out).expect("some");
    assert_eq!(count(kept), 150, "all but the reserve");
    space.logged(Lsn(1));
    space.on_durable(Lsn(1));
    space.hold_back(0);
    assert_eq!(space.grantable(), 40);
    space.check();
}

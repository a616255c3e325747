//! Which regions files are to leave and how often that is planned, and that nothing is granted there while there is room elsewhere.

use super::*;
use data::SpaceAsk;
use data::space::SpaceMutation;
use node::{Gathered, Supply};
use types::{Grant, GrantId};

const OTHER_NSD: NsdId = NsdId(3);
const SECTORS: u32 = 100;
const GATHERED: Gathered = Gathered {
    is_all: true,
    is_of_layout: true,
    is_freed: true,
};

fn place(nsd: NsdId, index: u32) -> Run {
    let sector = u64::from(index) * u64::from(SECTORS);
    Run {
        at: Location { nsd, sector },
        count: SECTORS,
    }
}

/// The sectors of files in a region: so many from its begin on.
fn used(nsd: NsdId, index: u32, count: u32) -> Run {
    Run {
        count,
        ..place(nsd, index)
    }
}

/// They become a file's.
fn fill(log: &mut OwnerLog, run: Run) {
    let grant = Grant {
        id: GrantId(1),
        run,
        mac: 0,
    };
    let life = LIFE;
    let mutations = [
        SpaceMutation::Granted { life, grant },
        SpaceMutation::Consumed { life, run },
    ];
    mutations
        .iter()
        .for_each(|mutation| log.space.apply(mutation).unwrap());
    log.append_space(mutations.into());
}

/// A file gives them up.
fn free(log: &mut OwnerLog, disk: &mut Disk, run: Run) {
    let mut mutations = Vec::new();
    log.space.free(run, &mut mutations).unwrap();
    log.append_space(mutations);
    flush(log, disk, usize::MAX);
}

/// An owner of regions of 100 sectors on two NSDs: how many of each are a file's.
fn with_used(first: &[u32], second: &[u32]) -> (OwnerLog, Disk) {
    with_regions_of(SECTORS, first, second)
}

fn with_regions_of(region_sectors: u32, first: &[u32], second: &[u32]) -> (OwnerLog, Disk) {
    let area = area(4096);
    let mut disk = formatted(area);
    let of = |nsd| Geometry {
        nsd,
        data_begin: 0,
        sector_count: 100 * u64::from(region_sectors),
        region_sectors,
    };
    let levels = Levels { reserve: 0, low: 0 };
    let space = Space::new(&[of(NSD), of(OTHER_NSD)], levels);
    let fs = FsId::default();
    let recovered = recover(&disk, area, fs, LIFE.node, &mut |_| Ok(())).unwrap();
    let journal = Journal::start(config(area), &recovered);
    let nsds = vec![NSD, OTHER_NSD];
    let mut log = OwnerLog::new(journal, space, None, Epoch(1), nsds, Prng::new(1));
    let part = Part {
        key: PartKey::Space,
        epoch: Epoch(1),
        bytes: &[],
    };
    log.journal.append_snapshot(part).unwrap();
    log.journal.end_snapshot();
    for (nsd, counts) in [(NSD, first), (OTHER_NSD, second)] {
        for (index, count) in (0..).zip(counts) {
            log.adopt_regions(&[RegionId { nsd, index }]);
            if *count > 0 {
                let sector = u64::from(index) * u64::from(region_sectors);
                let at = Location { nsd, sector };
                fill(&mut log, Run { at, count: *count });
            }
        }
    }
    flush(&mut log, &mut disk, usize::MAX);
    (log, disk)
}

/// Another owner asks for regions, and hears that none is free.
fn want(log: &mut OwnerLog) {
    assert_eq!(log.give_regions(), (Vec::new(), None));
}

const fn second(number: u64) -> Instant {
    Instant(number * 1_000_000_000)
}

/// Somebody has to be short, and somebody has to carry it out: files do not move for nothing.
#[test]
fn nothing_is_planned_unless_it_is_offered_and_wanted() {
    let (mut log, _disk) = with_used(&[10, 90, 60], &[60, 60]);
    want(&mut log);
    assert_eq!(log.plan_clearing(second(10)), [], "not offered");
    let (mut log, _disk) = with_used(&[10, 90, 60], &[60, 60]);
    log.offer_clearing(true);
    assert_eq!(log.plan_clearing(second(10)), [], "not wanted");
    assert!(!log.space.is_leaving());
    want(&mut log);
    log.offer_clearing(false);
    assert_eq!(log.plan_clearing(second(20)), [], "not any more");
    log.offer_clearing(true);
    assert_eq!(log.plan_clearing(second(20)), [place(NSD, 0)]);
    assert!(log.space.is_leaving());
    log.end_clearing();
    // It has been seen to.
    assert_eq!(log.plan_clearing(second(1000)), []);
    want(&mut log);
    log.journal.give_up();
    assert_eq!(log.plan_clearing(second(2000)), [], "nothing is durable");
}

/// It is given as it is, and what is still used in others stays there.
#[test]
fn nothing_is_planned_while_a_region_is_free() {
    let (mut log, _disk) = with_used(&[10, 0, 60], &[60, 60]);
    log.offer_clearing(true);
    let (given, _) = log.give_regions();
    assert_eq!(given, [RegionId { nsd: NSD, index: 1 }]);
    assert_eq!(log.plan_clearing(second(10)), []);
    want(&mut log);
    assert_eq!(log.plan_clearing(second(10)), [place(NSD, 0)]);
}

/// Regions of both NSDs of which no more than nine tenths are used, but no more than 64 MiB in one plan, or one region.
#[test]
fn the_emptiest_regions_are_planned_up_to_a_limit() {
    let (mut log, _disk) = with_used(&[20, 51, 60, 60], &[50, 10, 60, 60]);
    log.offer_clearing(true);
    want(&mut log);
    let planned = [place(OTHER_NSD, 1), place(NSD, 0), place(OTHER_NSD, 0)];
    assert_eq!(log.plan_clearing(second(10)), planned);
    let most = 16 << 10;
    for (count, is_both) in [(most / 2, true), (most / 2 + 1, false)] {
        let region = 1 << 18;
        let full = region - 6 * most;
        let (mut log, _disk) = with_regions_of(region, &[most / 2, full], &[count, full]);
        log.offer_clearing(true);
        want(&mut log);
        let planned = log.plan_clearing(second(10)).len();
        assert_eq!(planned, if is_both { 2 } else { 1 });
    }
    // One of 1 GiB has more than that in it.
    for (used, is_planned) in [(90, true), (91, false)] {
        let region = 1 << 18;
        let of_region = |per_cent: u32| region / 100 * per_cent;
        let mut counts = vec![of_region(91); 30];
        counts[0] = of_region(used);
        let (mut log, _disk) = with_regions_of(region, &counts, &[]);
        log.offer_clearing(true);
        want(&mut log);
        let planned = log.plan_clearing(second(10)).len();
        assert_eq!(planned, usize::from(is_planned), "{used} of a hundred");
    }
}

/// Files there may be in use on other nodes, which no look finds out: twice as long each time, up to ten minutes. Other
/// regions do not wait for that.
#[test]
fn the_same_regions_are_tried_after_ever_longer_pauses() {
    let (mut log, mut disk) = with_used(&[10, 10, 91, 91], &[91, 91, 91, 91]);
    log.offer_clearing(true);
    let mut now = second(10);
    want(&mut log);
    let first = [place(NSD, 0), place(NSD, 1)];
    assert_eq!(log.plan_clearing(now), first);
    let next = |log: &mut OwnerLog, now: &mut Instant| {
        let begin = *now;
        log.end_clearing();
        loop {
            *now = *now + Duration::from_millis(500);
            want(log);
            let places = log.plan_clearing(*now);
            if !places.is_empty() {
                return (now.since(begin).0 / 1_000_000_000, places);
            }
        }
    };
    let mut pauses = Vec::new();
    for _ in 0..11 {
        let (pause, places) = next(&mut log, &mut now);
        assert_eq!(places, first);
        pauses.push(pause);
    }
    assert_eq!(pauses, [2, 4, 8, 16, 32, 64, 128, 256, 512, 600, 600]);
    // One of them is left: that is the same.
    free(&mut log, &mut disk, used(NSD, 0, 10));
    let (given, _) = log.give_regions();
    assert_eq!(given, [RegionId { nsd: NSD, index: 0 }]);
    let left = first[1..].to_vec();
    assert_eq!(next(&mut log, &mut now), (600, left.clone()));
    assert_eq!(next(&mut log, &mut now), (600, left));
    // That one is free, too, and another one is nearly so.
    free(&mut log, &mut disk, used(NSD, 1, 10));
    log.give_regions();
    free(&mut log, &mut disk, used(OTHER_NSD, 3, 90));
    let other = vec![place(OTHER_NSD, 3)];
    // It does not wait for what those were put off.
    assert_eq!(next(&mut log, &mut now), (2, other.clone()));
    assert_eq!(next(&mut log, &mut now), (2, other.clone()));
    assert_eq!(next(&mut log, &mut now), (4, other));
}

/// There may be more in a region than one plan names: what some has left is gone on with.
#[test]
fn a_region_that_is_being_left_is_tried_at_once() {
    let (mut log, mut disk) = with_used(&[10, 91, 91, 91], &[91, 91, 91, 91]);
    log.offer_clearing(true);
    let mut now = second(10);
    let mut plan = |log: &mut OwnerLog, after: u64| {
        now = now + Duration::from_secs(after);
        log.end_clearing();
        want(log);
        !log.plan_clearing(now).is_empty()
    };
    assert!(plan(&mut log, 0));
    assert!(plan(&mut log, 2));
    assert!(!plan(&mut log, 2), "nothing has left it");
    assert!(plan(&mut log, 2));
    for sector in 0..5 {
        let mut one = used(NSD, 0, 1);
        one.at.sector += sector;
        free(&mut log, &mut disk, one);
        assert!(plan(&mut log, 2), "{sector}");
    }
    assert!(plan(&mut log, 2) && !plan(&mut log, 2) && plan(&mut log, 2));
}

/// When nobody has wanted regions for a while grants ahead of need come from all of them again.
#[test]
fn regions_are_left_as_long_as_somebody_wants_them() {
    let (mut log, _disk) = with_used(&[10, 91, 91, 91], &[91, 91, 91, 91]);
    log.offer_clearing(true);
    want(&mut log);
    assert_eq!(log.plan_clearing(second(10)), [place(NSD, 0)]);
    log.end_clearing();
    for later in 11..22 {
        assert_eq!(log.plan_clearing(second(later)), []);
        assert!(log.space.is_leaving(), "second {later}");
    }
    assert_eq!(log.plan_clearing(second(22)), []);
    assert!(!log.space.is_leaving());
}

/// What a question gets: sectors of each region. So many are needed, so many wished for.
fn ask(log: &mut OwnerLog, number: u64, need: u64, want: u64) -> Vec<(NsdId, u64, u32)> {
    let mut ask = SpaceAsk {
        number,
        need,
        want,
        ..SpaceAsk::default()
    };
    let supply = log.supply(LIFE, &mut ask, GATHERED);
    let Supply::Answer(answer, _) = supply else {
        panic!("{supply:?}");
    };
    log.space.check();
    let mut regions = std::collections::BTreeMap::new();
    for grant in answer.grants {
        let at = grant.run.at;
        let region = (at.nsd, at.sector / u64::from(SECTORS));
        *regions.entry(region).or_insert(0) += grant.run.count;
    }
    let regions = regions.into_iter();
    regions.map(|((nsd, at), count)| (nsd, at, count)).collect()
}

fn sum(granted: &[(NsdId, u64, u32)]) -> u32 {
    granted.iter().map(|(.., count)| count).sum()
}

/// A region of the first NSD is to become free; 30 sectors are free on each NSD elsewhere.
fn leaving() -> OwnerLog {
    let (mut log, _disk) = with_used(&[10, 70], &[70, 100]);
    log.offer_clearing(true);
    want(&mut log);
    assert_eq!(log.plan_clearing(second(10)), [place(NSD, 0)]);
    log
}

#[test]
fn sectors_of_leaving_regions_are_granted_last_on_whatever_nsd_they_are() {
    let mut log = leaving();
    // The share of each NSD would be 27.
    let granted = ask(&mut log, 1, 54, 54);
    assert_eq!(granted, [(NSD, 1, 27), (OTHER_NSD, 0, 27)]);
    // Three on each are left.
    let granted = ask(&mut log, 2, 5, 5);
    assert_eq!(sum(&granted), 5);
    assert!(
        granted.iter().all(|at| (at.0, at.1) != (NSD, 0)),
        "{granted:?}"
    );
    // One, and then there are no others: what is needed is granted there.
    let granted = ask(&mut log, 3, 11, 11);
    assert_eq!(sum(&granted), 11);
    assert!(granted.contains(&(NSD, 0, 10)), "{granted:?}");
    assert_eq!(ask(&mut log, 4, 7, 7), [(NSD, 0, 7)]);
}

/// It would lie in hands that do not need it, where the files should have left.
#[test]
fn sectors_of_leaving_regions_are_never_granted_ahead_of_need() {
    let mut log = leaving();
    let granted = ask(&mut log, 1, 50, 1000);
    assert_eq!(
        sum(&granted),
        60,
        "of 62 that would do if all were the same: {granted:?}"
    );
    assert!(
        granted.iter().all(|at| (at.0, at.1) != (NSD, 0)),
        "{granted:?}"
    );
    assert_eq!(ask(&mut log, 2, 8, 1000), [(NSD, 0, 8)]);
    assert_eq!(ask(&mut log, 3, 0, 1000), []);
    // Nothing leaves any more.
    log.space.leave(&[]);
    assert_eq!(ask(&mut log, 4, 8, 1000), [(NSD, 0, 8 + (82 - 8) / 8)]);
}

/// A layout names NSDs: sectors ahead of need are taken from no leaving region of these.
#[test]
fn a_layout_does_not_fill_leaving_regions_ahead_of_need() {
    let mut log = leaving();
    let mut ask = SpaceAsk {
        number: 1,
        need: 20,
        want: 1000,
        nsds: vec![NSD],
        ..SpaceAsk::default()
    };
    let supply = log.supply(LIFE, &mut ask, GATHERED);
    let Supply::Answer(answer, _) = supply else {
        panic!("{supply:?}");
    };
    let runs = answer.grants.iter().map(|grant| grant.run);
    let there: u32 = runs
        .filter(|run| run.overlaps(&place(NSD, 0)))
        .map(|run| run.count)
        .sum();
    assert_eq!(there, 0, "{answer:?}");
}

//! Which regions are to become free, and that sectors there are granted to who asks for these alone.

use super::*;

const SECTORS: u32 = 100;

fn region(index: u32) -> RegionId {
    let nsd = NsdId(0);
    RegionId { nsd, index }
}

fn place(index: u32) -> Run {
    let sector = u64::from(index) * u64::from(SECTORS);
    let nsd = NsdId(0);
    run_at(Location { nsd, sector }, SECTORS)
}

/// No region is left out.
fn any(_: RegionId) -> bool {
    true
}

/// Sectors of a region, from its begin on.
fn first(index: u32, count: u32) -> Run {
    Run {
        count,
        ..place(index)
    }
}

fn granted(space: &mut Space, run: Run) {
    let grant = Grant {
        id: GrantId(1),
        run,
        mac: 0,
    };
    let life = life(1, 1);
    let mutation = SpaceMutation::Granted { life, grant };
    space.apply(&mutation).expect("free");
}

fn used(space: &mut Space, run: Run) {
    granted(space, run);
    let life = life(1, 1);
    let mutation = SpaceMutation::Consumed { life, run };
    space.apply(&mutation).expect("granted");
}

/// An owner of one region for each of these numbers, with so many sectors of it in files.
fn with_used(reserve: u64, counts: &[u32]) -> Space {
    let geometry = Geometry {
        nsd: NsdId(0),
        data_begin: 0,
        sector_count: 100 * u64::from(SECTORS),
        region_sectors: SECTORS,
    };
    let mut space = Space::new(&[geometry], Levels { reserve, low: 0 });
    for (index, count) in (0..).zip(counts) {
        let mutation = SpaceMutation::RegionTaken {
            region: region(index),
        };
        space.apply(&mutation).expect("new");
        if *count > 0 {
            used(&mut space, first(index, *count));
        }
    }
    space
}

fn regions(indices: &[u32]) -> Vec<RegionId> {
    indices.iter().copied().map(region).collect()
}

/// Of the regions that may move those in which the least has to.
#[test]
fn the_emptiest_regions_are_chosen_first() {
    let space = with_used(0, &[30, 10, 0, 50, 20, 51, 0, 0, 0]);
    assert_eq!(space.sparse(50, 1000, &any), regions(&[1, 4, 0, 3]));
    assert_eq!(space.sparse(25, 1000, &any), regions(&[1, 4]));
    assert_eq!(space.sparse(100, 1000, &any), regions(&[1, 4, 0, 3, 5]));
    assert_eq!(space.sparse(9, 1000, &any), []);
    let full = with_used(0, &[90, 91, 0, 0, 0]);
    assert_eq!(full.sparse(90, 1000, &any), regions(&[0]));
    assert_eq!(full.sparse(89, 1000, &any), []);
}

/// It would be given as it is, or is in hands that can be asked: no file lies there.
#[test]
fn a_region_with_nothing_used_is_not_chosen() {
    let mut space = with_used(0, &[0, 0, 0, 1]);
    granted(&mut space, first(1, 5));
    assert_eq!(space.sparse(100, 1000, &any), regions(&[3]));
    // What is freed comes back by itself, too.
    let mut out = Vec::new();
    space.free(first(3, 1), &mut out).expect("used");
    assert_eq!(space.sparse(100, 1000, &any), []);
}

/// Whatever keeps a region from being free counts: granted sectors, those in quarantine, and what was freed a moment ago.
#[test]
fn all_that_keeps_a_region_counts() {
    let mut space = with_used(0, &[20, 10, 0, 0, 0]);
    assert_eq!(space.sparse(50, 1000, &any), regions(&[1, 0]));
    let beside = |index: u32, begin: u32, count: u32| {
        let mut run = first(index, count);
        run.at.sector += u64::from(begin);
        run
    };
    granted(&mut space, beside(1, 10, 11));
    assert_eq!(
        space.sparse(50, 1000, &any),
        regions(&[0, 1]),
        "21 are kept"
    );
    granted(&mut space, beside(1, 21, 29));
    assert_eq!(space.sparse(50, 1000, &any), regions(&[0, 1]), "half of it");
    let mut out = Vec::new();
    space.node_lost(life(1, 1), &mut out);
    assert_eq!(
        space.sparse(50, 1000, &any),
        regions(&[0, 1]),
        "in quarantine"
    );
    space.release_quarantine(life(1, 1), &mut out);
    assert_eq!(space.sparse(50, 1000, &any), regions(&[1, 0]));
    space.free(beside(1, 0, 5), &mut out).expect("used");
    assert_eq!(
        space.sparse(10, 1000, &any),
        regions(&[1]),
        "until it is durable"
    );
    assert_eq!(space.sparse(9, 1000, &any), []);
    space.logged(Lsn(1));
    space.on_durable(Lsn(1));
    assert_eq!(space.sparse(5, 1000, &any), regions(&[1]));
}

/// Others are to be granted sectors, too, while it moves.
#[test]
fn no_more_moves_than_half_of_what_can_be_granted_elsewhere() {
    // 40 are free elsewhere, 20 move.
    let enough = |reserve, full| with_used(reserve, &[20, full]);
    assert_eq!(enough(0, 60).sparse(50, 1000, &any), regions(&[0]));
    assert_eq!(enough(0, 61).sparse(50, 1000, &any), []);
    // Neither the reserve nor what is held back for promises can be granted.
    assert_eq!(enough(1, 60).sparse(50, 1000, &any), []);
    let mut space = enough(0, 60);
    space.hold_back(1);
    assert_eq!(space.sparse(50, 1000, &any), []);
    // What is free in one of those that are chosen is not elsewhere.
    assert_eq!(
        with_used(0, &[20, 20, 60]).sparse(50, 1000, &any),
        regions(&[0])
    );
    let two = with_used(0, &[20, 20, 60, 60]);
    assert_eq!(two.sparse(50, 1000, &any), regions(&[0, 1]));
    let more = with_used(0, &[20, 20, 60, 61]);
    assert_eq!(more.sparse(50, 1000, &any), regions(&[0]));
}

#[test]
fn a_plan_is_bounded() {
    let space = with_used(0, &[30, 10, 20, 0, 0, 0, 0]);
    let chosen = |most| space.sparse(50, most, &any);
    assert_eq!(chosen(60), regions(&[1, 2, 0]));
    assert_eq!(chosen(59), regions(&[1, 2]));
    assert_eq!(chosen(30), regions(&[1, 2]));
    assert_eq!(chosen(29), regions(&[1]));
    // Regions may be larger than all that a plan may move.
    assert_eq!(chosen(9), regions(&[1]));
    assert_eq!(chosen(0), regions(&[1]));
}

/// Whatever is used: a beginning of the list of regions by what is used in them, and there is room for it.
#[test]
fn what_is_chosen_has_room_elsewhere_whatever_is_used() {
    let mut random = Random(11);
    let mut chosen_count = 0;
    for _ in 0..500 {
        let most = 1 + random.below(u64::from(SECTORS)) as u32;
        let count = 1 + random.below(12);
        let counts: Vec<u32> = (0..count)
            .map(|_| random.below(u64::from(most) + 1) as u32)
            .collect();
        let reserve = random.below(50);
        let chosen = with_used(reserve, &counts).sparse(50, 200, &any);
        let kept = |region: &RegionId| counts[region.index as usize];
        let moved: u32 = chosen.iter().map(kept).sum();
        let others = (0..).zip(&counts);
        let others = others.filter(|(index, _)| !chosen.contains(&region(*index)));
        let others: Vec<u32> = others.map(|(_, count)| *count).collect();
        let free: u32 = others.iter().map(|count| SECTORS - count).sum();
        let said = format!("{chosen:?} of {counts:?}");
        assert!(chosen.is_sorted_by_key(kept), "{said}");
        assert!(chosen.iter().all(|r| (1..=50).contains(&kept(r))), "{said}");
        if let Some(last) = chosen.last() {
            assert!(u64::from(free) >= u64::from(moved) * 2 + reserve, "{said}");
            let is_later = |count: &u32| *count == 0 || *count >= kept(last);
            assert!(others.iter().all(is_later), "{said}");
        }
        assert!(moved <= 200, "{said}");
        chosen_count += chosen.len();
    }
    assert!(chosen_count > 500, "{chosen_count}");
}

fn ask(is_leaving: bool, sectors: u64) -> Ask {
    Ask {
        life: life(2, 2),
        nsd: NsdId(0),
        sectors,
        is_promised: false,
        is_leaving,
    }
}

/// What is granted: how many sectors of each region.
fn grant(space: &mut Space, is_leaving: bool, sectors: u64) -> BTreeMap<u32, u32> {
    let mut out = Vec::new();
    let grants = space.grant(ask(is_leaving, sectors), &mut || 1, &mut out);
    let mut of_region = BTreeMap::new();
    for grant in grants.unwrap_or_default() {
        let index = (grant.run.at.sector / u64::from(SECTORS)) as u32;
        *of_region.entry(index).or_default() += grant.run.count;
    }
    space.check();
    of_region
}

#[test]
fn sectors_of_leaving_regions_are_granted_to_who_asks_for_these_alone() {
    let mut space = with_used(0, &[20, 90, 30]);
    assert!(!space.is_leaving());
    space.leave(&regions(&[0, 2]));
    assert!(space.is_leaving());
    assert_eq!(grant(&mut space, false, 1000), BTreeMap::from([(1, 10)]));
    assert_eq!(grant(&mut space, false, 1), BTreeMap::new());
    assert_eq!(
        grant(&mut space, true, 100),
        BTreeMap::from([(0, 80), (2, 20)])
    );
    // Another plan, or none.
    space.leave(&regions(&[0]));
    assert_eq!(grant(&mut space, true, 1), BTreeMap::new());
    assert_eq!(grant(&mut space, false, 10), BTreeMap::from([(2, 10)]));
    space.leave(&[]);
    assert!(!space.is_leaving());
    assert_eq!(grant(&mut space, true, 1), BTreeMap::new());
    assert_eq!(grant(&mut space, false, 50), BTreeMap::from([(2, 40)]));
}

/// Neither who gets it then, nor this owner when it gets it again, has anything to leave.
#[test]
fn a_region_that_was_given_up_is_leaving_no_more() {
    let away: [fn(RegionId) -> [SpaceMutation; 2]; 2] = [
        |region| {
            let taken = SpaceMutation::RegionTaken { region };
            [SpaceMutation::RegionReturned { region }, taken]
        },
        |region| {
            let back = SpaceMutation::RegionForData { region };
            [SpaceMutation::RegionForPages { region }, back]
        },
    ];
    for away in away {
        let mut space = with_used(0, &[0, 100]);
        space.leave(&regions(&[0]));
        let [goes, comes] = away(region(0));
        space.apply(&goes).expect("free");
        assert!(!space.is_leaving());
        space.apply(&comes).expect("away");
        assert_eq!(grant(&mut space, true, 10), BTreeMap::new());
        assert_eq!(grant(&mut space, false, 10), BTreeMap::from([(0, 10)]));
    }
}

#[test]
fn places_are_those_of_the_regions_that_are_held() {
    let space = with_used(0, &[1, 2, 3]);
    let places = space.places_of(&regions(&[2, 7, 0]));
    assert_eq!(places, [place(2), place(0)]);
}

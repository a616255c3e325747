//! When regions that trees have nearly left are emptied for files, and how often that is tried.

use super::*;

/// A log with regions of 1,024 sectors whose pages are gone but for a few in one region; files hold the rest but for
/// `data` regions.
fn with_sparse_pages(disk: &mut Disk, data: u32) -> (OwnerLog, Run) {
    const REGION: u32 = 1024;
    let geometry = Geometry {
        sector_count: 1 << 14,
        region_sectors: REGION,
        ..geometry()
    };
    let low = u64::from(REGION);
    let mut log = open_of(disk, area(16 << 10), geometry, Levels { reserve: 0, low });
    let region = |index| RegionId { nsd: NSD, index };
    let (pages, files): (Vec<_>, Vec<_>) = (0..8 + data)
        .map(region)
        .partition(|region| region.index < 8);
    log.set_trees([], vec![NSD]);
    log.adopt_regions(&pages);
    let mut mutations = Vec::new();
    for region in &pages {
        // Some are used so already.
        let _ = log.space.use_region_for_pages(*region, &mut mutations);
    }
    let mut taken = Vec::new();
    while let Some(run) = log.space.pages_mut().take(4, &|_| true) {
        taken.push(run);
    }
    log.adopt_regions(&files);
    let first = taken.iter().map(|run| run.at).min().unwrap();
    for run in taken.iter().filter(|run| run.at != first) {
        log.space.pages_mut().give_back(*run);
    }
    let place = Run {
        at: first,
        count: REGION,
    };
    (log, place)
}

/// Pages leave a region that they hardly use where files are short for three looks; what did not leave then is tried again
/// after ever longer pauses, up to an hour.
#[test]
fn sparse_regions_are_emptied_where_files_are_short() {
    let mut disk = formatted(area(16 << 10));
    let (mut log, place) = with_sparse_pages(&mut disk, 0);
    assert_eq!(log.short_nsds(), [NSD]);
    let mut now = Instant(0) + Duration::from_secs(10);
    for look in 0..2 {
        assert_eq!(log.plan_evacuation(now), [], "look {look}");
    }
    assert_eq!(log.plan_evacuation(now), [place]);
    let mut pauses = Vec::new();
    while pauses.len() < 12 {
        let begin = now;
        while log.plan_evacuation(now).is_empty() {
            now = now + Duration::from_millis(500);
        }
        pauses.push((now.0 - begin.0) / 1_000_000_000);
    }
    assert_eq!(
        pauses,
        [5, 10, 20, 40, 80, 160, 320, 640, 1280, 2560, 3600, 3600]
    );
    // Checkpoints that fail have other cares, and so has a journal that was given up.
    now = now + Duration::from_secs(3600);
    log.note_starving(true);
    assert_eq!(log.plan_evacuation(now), []);
    log.note_starving(false);
    assert_eq!(log.plan_evacuation(now), [place]);
}

/// Other places are tried after five seconds, whatever the pause of those of before has come to.
#[test]
fn other_regions_do_not_wait_for_those_that_are_never_empty() {
    let mut disk = formatted(area(16 << 10));
    let (mut log, place) = with_sparse_pages(&mut disk, 0);
    let mut now = Instant(0);
    for _ in 0..2 {
        log.plan_evacuation(now);
    }
    for _ in 0..4 {
        now = now + Duration::from_secs(3600);
        assert_eq!(log.plan_evacuation(now), [place]);
    }
    // It is empty now, and another one is nearly so.
    let pages = log.space.pages_mut();
    let run = pages.take(4, &|_| true).unwrap();
    pages.give_back(Run { count: 4, ..place });
    now = now + Duration::from_secs(3600);
    let other = Run {
        at: run.at,
        ..place
    };
    assert_ne!(other, place);
    assert_eq!(log.plan_evacuation(now), [other]);
    let wait = (0..).find(|_| {
        now = now + Duration::from_secs(1);
        !log.plan_evacuation(now).is_empty()
    });
    assert_eq!(wait, Some(4), "its own first pause");
}

/// Where files have room here nothing moves, until another owner asks for regions and none is free.
#[test]
fn sparse_regions_are_emptied_for_other_owners() {
    let mut disk = formatted(area(16 << 10));
    let (mut log, place) = with_sparse_pages(&mut disk, 2);
    assert_eq!(log.short_nsds(), []);
    let now = Instant(0) + Duration::from_secs(10);
    for _ in 0..10 {
        assert_eq!(log.plan_evacuation(now), []);
    }
    // Those that are free go first.
    let mut given = log.give_regions().0.len();
    assert_eq!(log.plan_evacuation(now), []);
    while given > 0 {
        given = log.give_regions().0.len();
    }
    assert_eq!(log.plan_evacuation(now), [place]);
}

/// A region that was emptied, and has pages again, is no reason to wait longer.
#[test]
fn only_what_was_not_emptied_is_tried_later() {
    let mut disk = formatted(area(16 << 10));
    let (mut log, place) = with_sparse_pages(&mut disk, 0);
    let page = Run { count: 4, ..place };
    let mut now = Instant(0) + Duration::from_secs(10);
    let mut wait = |log: &mut OwnerLog| {
        let begin = now;
        while log.plan_evacuation(now).is_empty() {
            now = now + Duration::from_millis(500);
        }
        now.since(begin)
    };
    wait(&mut log);
    for _ in 0..6 {
        log.space.pages_mut().give_back(page);
        // Somebody looks, and then it is used again.
        assert_eq!(log.plan_evacuation(Instant(0)), []);
        log.space.pages_mut().drain(&[]);
        let again = log.space.pages_mut().take(4, &|_| true);
        assert_eq!(again, Some(page));
        assert!(wait(&mut log) <= Duration::from_secs(6));
    }
}

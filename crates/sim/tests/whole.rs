//! The whole: fixed seeds pass (CI runs fresh ones too), a seed replays exactly, and each checker finds what it is there for.

use std::ops::RangeInclusive;

use client::rewrite::RewriteCounts;
use node::meta::parts::Bounds;
use sim::survive;
use sim::whole::node::Canary;
use sim::whole::{self, Names, Options, Report, World};

fn must_pass(seed: u64) -> Report {
    let report = whole::run(seed, Canary::default());
    if let Some(violation) = &report.violation {
        panic!("seed {seed}: replay with `cargo run -p sim -- {seed} --whole --log`: {violation}");
    }
    report
}

#[test]
fn fixed_seeds() {
    // The last: a READ met a revoke that had begun while a writable open waited, and was answered EAGAIN; a directory that was removed while it was
    // open was kept for ever, because a crash of its owner took the record of its last close; and a region had two owners.
    let seeds = (1..=12).chain([2_000_731, 2_100_066, 2_200_965]);
    let accesses: usize = seeds.map(|seed| must_pass(seed).access_count).sum();
    assert!(accesses > 2_000, "the runs did hardly anything: {accesses}");
}

#[test]
fn a_seed_replays_exactly() {
    for seed in 1..=2 {
        assert_eq!(must_pass(seed), must_pass(seed));
    }
    assert_ne!(must_pass(1).trace_hash, must_pass(2).trace_hash);
}

/// Runs seeds with a broken node until a checker that says `expected` notices.
fn must_be_caught(name: &str, expected: &str, matters: impl Fn(&Options) -> bool) {
    let mut canary = Canary::default();
    assert!(canary.set(name), "{name} is no canary");
    let seeds = (1..).map(|seed| (seed, whole::options(seed, canary)));
    let seeds = seeds.filter(|(_, options)| matters(options));
    for (seed, options) in seeds.take(40) {
        let violation = survive(|| World::new(seed, options, false).run().0.violation);
        if violation.is_some_and(|text| text.contains(expected)) {
            return;
        }
    }
    panic!("{name} is not caught");
}

#[test]
fn old_pages_are_caught() {
    must_be_caught("skips-notices", "no order explains", |_| true);
}

#[test]
fn old_names_are_caught() {
    must_be_caught("keeps-names", "names: no order", |o| o.name_percent > 20);
}

#[test]
fn waits_without_end_are_caught() {
    must_be_caught("loses-releases", "stuck", |_| true);
}

#[test]
fn leaks_are_caught() {
    must_be_caught("leaks-frames", "frames are in use", |_| true);
}

#[test]
fn conflicting_tokens_are_caught() {
    must_be_caught("releases-early", "conflicting tokens", |_| true);
}

#[test]
fn lost_data_is_caught() {
    must_be_caught("forgets-writes", "EIO", |_| true);
}

#[test]
fn sectors_that_do_not_come_back_are_caught() {
    must_be_caught("keeps-sectors", "not free again", |o| o.has_little_space());
}

#[test]
fn promises_that_are_not_kept_are_caught() {
    must_be_caught("breaks-promises", "are promised", |o| o.has_little_space());
}

/// Pages are promised to one or two files, nothing else is free, and all nodes write them at once; links break or not.
fn promising(seed: u64, canary: Canary) -> Options {
    let drawn = whole::options(seed, canary);
    let data_sectors = [12, 24, 40][usize::try_from(seed % 3).expect("small")];
    Options {
        file_count: 1 + usize::from(seed.is_multiple_of(2)),
        call_count: 3,
        crash_count: 0,
        hold_count: 0,
        has_mappings: false,
        data_sectors,
        region_sectors: 4,
        space_reserve: seed / 3 % 2,
        promise_pages: data_sectors / 2,
        round_ticks: 0,
        frame_count: 1 << 14,
        break_ticks: [0, 50, 200, 1000][usize::try_from(seed / 2 % 4).expect("small")],
        ..drawn
    }
}

#[test]
fn promises_are_kept_to_all_nodes_at_once() {
    let run = |seed| {
        let options = promising(seed, Canary::default());
        survive(|| World::new(seed, options, false).run().0.violation)
    };
    let failed = (1..=24).filter_map(|seed| run(seed).map(|text| format!("seed {seed}: {text}")));
    let failed: Vec<String> = failed.collect();
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

/// Two files on disks of one sector: writes are refused when there is no room, and nothing else
/// fails.
#[test]
fn a_full_file_system_refuses_writes_only() {
    let refused = |seed| {
        let options = Options {
            file_count: 2,
            call_count: 40,
            crash_count: 0,
            has_mappings: false,
            data_sectors: 1,
            region_sectors: 1,
            space_reserve: 0,
            round_ticks: 0,
            load_ticks: 0,
            ..whole::options(seed, Canary::default())
        };
        let (report, _) = World::new(seed, options, false).run();
        assert_eq!(report.violation, None, "seed {seed}");
        report.no_space_count
    };
    let counts: Vec<usize> = (1..=8).map(refused).collect();
    assert!(
        counts.iter().sum::<usize>() > 20,
        "hardly anything was refused: {counts:?}"
    );
}

#[test]
fn lost_pages_are_caught() {
    must_be_caught("loses-pages", "node ", |o| o.round_ticks > 0);
}

/// Checkpoints while nodes crash in the middle of writes, with volatile caches, with much space and with little: what the
/// trees and the journals hold is always the shards, and pages are free again.
#[test]
fn checkpoints_outlive_crashes() {
    let mut counts = [0; 4];
    for seed in 1..=12 {
        let drawn = whole::options(seed, Canary::default());
        let options = Options {
            crash_count: 2,
            round_ticks: 1 + seed % 4,
            has_volatile_cache: seed % 2 == 0,
            data_sectors: if seed % 3 == 0 { 48 } else { 1 << 20 },
            region_sectors: if seed % 3 == 0 { 8 } else { 16 << 10 },
            space_reserve: 0,
            has_mappings: drawn.has_mappings && seed % 3 != 0,
            frame_count: 1 << 14,
            call_count: 40,
            name_percent: 50,
            ..drawn
        };
        let (report, _) = World::new(seed, options, false).run();
        assert_eq!(report.violation, None, "seed {seed}");
        for (sum, count) in counts.iter_mut().zip(report.checkpoint_counts) {
            *sum += count;
        }
    }
    let [rounds, checkpoints, failures, _] = counts;
    eprintln!("{rounds} rounds, {checkpoints} checkpoints, {failures} failures");
    assert!(checkpoints > 100 && failures > 0, "{counts:?}");
}

#[test]
fn rewritten_blocks_are_what_they_were() {
    let mut sum = RewriteCounts::default();
    for seed in 1..=24 {
        let options = whole::rewriting(seed, Canary::default());
        let (report, _) = World::new(seed, options, false).run();
        assert_eq!(report.violation, None, "seed {seed}");
        sum.add(report.rewrites);
    }
    eprintln!("{sum:?}");
    assert!(sum.blocks > 12 && sum.given_up > 4, "{sum:?}");
}

/// Owners have no room for pieces now and then: nothing that was acknowledged is lost by that.
#[test]
fn refused_pieces_are_what_they_were() {
    let mut refused = 0;
    for seed in 1..=48 {
        let mut options = whole::options(seed, Canary::default());
        options.refuses_pieces = !options.has_little_space();
        let (report, _) = World::new(seed, options, false).run();
        assert_eq!(report.violation, None, "seed {seed}");
        refused += report.refused_count;
    }
    assert!(refused > 20, "{refused}");
}

/// What the kernel of a node that is alone believes for minutes is what is there, whatever its applications do and whatever is forgotten.
#[test]
fn what_is_believed_for_minutes_is_true() {
    let mut accesses = 0;
    for seed in 1..=24 {
        let mut options = whole::options(seed, Canary::default());
        if options.has_little_space() {
            // Where the others have their disks there is none: the set-up of seed 18 found no room.
            options.data_sectors *= 2;
        }
        (options.node_count, options.home) = (1, 0);
        let (report, _) = World::new(seed, options, false).run();
        assert_eq!(report.violation, None, "seed {seed}");
        accesses += report.access_count;
    }
    assert!(accesses > 2_000, "{accesses}");
}

/// Without the look at the frames before the Commit, older bytes are written over newer ones.
#[test]
fn rewrites_of_what_has_changed_are_caught() {
    let canary = Canary {
        stale_rewrites: true,
        ..Canary::default()
    };
    let run = |seed, canary| {
        let options = whole::rewriting(seed, canary);
        survive(|| World::new(seed, options, false).run().0.violation)
    };
    let is_caught =
        |seed: &u64| run(*seed, canary).is_some_and(|text| text.contains("no order explains"));
    // One world in 300 shows it: the search begins where one does today.
    let caught = (798..=1800).find(is_caught);
    let seed = caught.expect("stale-rewrites is caught");
    assert_eq!(run(seed, Canary::default()), None, "seed {seed}");
}

/// Clean inodes leave memory all the time, while rounds of checkpoints change the roots that they are read from, with
/// crashes and without.
fn evicting(seed: u64, canary: Canary) -> Options {
    let drawn = whole::options(seed, canary);
    Options {
        round_ticks: 1 + seed % 4,
        evict_ticks: 1 + seed % 2,
        crash_count: usize::from(seed.is_multiple_of(3)),
        hold_count: if seed.is_multiple_of(4) { 3 } else { 0 },
        lock_count: if seed.is_multiple_of(5) { 10 } else { 0 },
        call_count: 40,
        name_percent: 50,
        ..drawn
    }
}

#[test]
fn what_is_evicted_comes_back() {
    let mut counts = [0; 3];
    for seed in 1..=12 {
        let options = evicting(seed, Canary::default());
        let (report, _) = World::new(seed, options, false).run();
        assert_eq!(report.violation, None, "seed {seed}");
        for (sum, count) in counts.iter_mut().zip(report.key_counts) {
            *sum += count;
        }
    }
    let [evicted, read, stale] = counts;
    eprintln!("{evicted} evicted, {read} read again, {stale} from a root that was not the newest");
    assert!(evicted > 300 && read > 300 && stale > 0, "{counts:?}");
}

/// Pages of trees leave regions all the time, while inodes are read from them, with crashes and without, with much space and with little:
/// what was there is there, and everything is free again in the end.
#[test]
fn pages_leave_regions_under_load() {
    let mut counts = [0; 4];
    for seed in 1..=12 {
        let evicting = evicting(seed, Canary::default());
        let options = Options {
            evacuates: true,
            crash_count: usize::from(seed % 3 != 0),
            has_volatile_cache: seed % 2 == 0,
            data_sectors: if seed % 3 == 0 { 160 } else { 1 << 20 },
            region_sectors: if seed % 3 == 0 { 16 } else { 64 },
            space_reserve: 0,
            // Reads that take longer than from one root to the next are begun anew for ever.
            page_delay_max: 0,
            has_mappings: evicting.has_mappings && seed % 3 != 0,
            ..evicting
        };
        let (report, _) = World::new(seed, options, false).run();
        assert_eq!(report.violation, None, "seed {seed}");
        for (sum, count) in counts.iter_mut().zip(report.checkpoint_counts) {
            *sum += count;
        }
    }
    let [rounds, .., moves] = counts;
    eprintln!("{rounds} rounds, {moves} moved pages out of regions");
    assert!(moves > 100, "{counts:?}");
}

/// Files leave regions all the time, as pages do, with several nodes that use the same files, with crashes and without, with little space: what
/// was there is there, and everything is free again in the end.
#[test]
fn files_leave_regions_under_load() {
    let mut left = 0;
    for seed in 1..=12 {
        let drawn = whole::rewriting(seed, Canary::default());
        let is_shared = seed % 4 == 0;
        let options = Options {
            evacuates: true,
            // Those that are written all the time stay where they are, and what other nodes use.
            file_count: 12,
            call_count: 300,
            node_count: if is_shared { drawn.node_count } else { 1 },
            home: if is_shared { drawn.home } else { 0 },
            crash_count: usize::from(seed % 3 != 0),
            data_sectors: if seed % 2 == 0 { 640 } else { 1 << 20 },
            region_sectors: 16,
            space_reserve: 0,
            page_delay_max: 0,
            ..drawn
        };
        let (report, _) = World::new(seed, options, false).run();
        assert_eq!(report.violation, None, "seed {seed}");
        left += report.rewrites.left;
    }
    eprintln!("{left} blocks left regions");
    assert!(left > 100, "{left}");
}

#[test]
fn inodes_of_older_roots_are_caught() {
    let canary = Canary {
        stale_keys: true,
        ..Canary::default()
    };
    let is_caught = |seed| {
        let options = evicting(seed, canary);
        survive(|| World::new(seed, options, false).run().0.violation)
    };
    let caught = (1..=20).find_map(is_caught);
    assert!(caught.is_some(), "nobody notices");
}

/// Pages of trees that cannot be read for a moment, or are misread, or take seconds.
fn misreading(seed: u64, canary: Canary) -> Options {
    Options {
        page_fault_per_mille: 300,
        page_delay_max: if seed.is_multiple_of(4) { 2000 } else { 0 },
        page_outage_ticks: if seed.is_multiple_of(2) { 6000 } else { 0 },
        ..evicting(seed, canary)
    }
}

#[test]
fn a_bad_moment_of_a_disk_shows_nowhere() {
    let mut faults = 0;
    for seed in 1..=5 {
        let options = misreading(seed, Canary::default());
        let (report, _) = World::new(seed, options, false).run();
        assert_eq!(report.violation, None, "seed {seed}");
        faults += report.page_fault_counts[0];
    }
    eprintln!("{faults} reads of pages failed");
    assert!(faults > 20, "{faults} reads failed");
}

#[test]
fn commits_refused_for_a_bad_moment_of_a_disk_are_caught() {
    let canary = Canary {
        gives_up_reads: true,
        ..Canary::default()
    };
    let is_caught = |seed| {
        let options = misreading(seed, canary);
        let violation = survive(|| World::new(seed, options, false).run().0.violation);
        violation.is_some_and(|text| text.contains("EIO"))
    };
    assert!((1..=20).any(is_caught), "nobody notices");
}

/// The pages of one node cannot be read for longer than it waits: what was lost is said, all else is as it was, and nobody hangs.
#[test]
fn what_a_disk_has_lost_is_said() {
    let mut counts = [0; 2];
    for seed in 1..=10 {
        let options = Options {
            page_outage_ticks: 45_000,
            // Who has heard of a loss may be gone.
            crash_count: 0,
            hold_count: 0,
            lock_count: 0,
            ..misreading(seed, Canary::default())
        };
        let (report, _) = World::new(seed, options, false).run();
        assert_eq!(report.violation, None, "seed {seed}");
        for (sum, count) in counts.iter_mut().zip(report.page_fault_counts) {
            *sum += count;
        }
    }
    let [reads, calls] = counts;
    eprintln!("{reads} reads of pages failed, and {calls} calls");
    assert!(calls > 5, "{counts:?}");
}

#[test]
fn lost_operations_are_caught() {
    must_be_caught("skips-journal", "node ", |_| true);
}

/// Files that are open on several nodes while owners crash and names go.
fn holding(seed: u64, canary: Canary) -> Options {
    Options {
        hold_count: 8,
        // Pools of a few frames are for other runs.
        frame_count: 1 << 14,
        crash_count: 2,
        ..whole::options(seed, canary)
    }
}

#[test]
fn open_files_outlive_their_names_and_their_owners_lives() {
    for seed in 1..=12 {
        let options = holding(seed, Canary::default());
        let violation = World::new(seed, options, false).run().0.violation;
        assert_eq!(violation, None, "seed {seed}");
    }
}

/// The same as `must_be_caught`, in runs of these seeds with open files and crashes.
fn must_be_caught_holding(name: &str, expected: &str, mut seeds: RangeInclusive<u64>) {
    let mut canary = Canary::default();
    assert!(canary.set(name), "{name} is no canary");
    let is_caught = |seed| {
        let options = Options {
            hold_count: 16,
            nameless_every: 0,
            ..holding(seed, canary)
        };
        let violation = survive(|| World::new(seed, options, false).run().0.violation);
        violation.is_some_and(|text| text.contains(expected))
    };
    assert!(seeds.any(is_caught), "{name} is not caught");
}

#[test]
fn files_freed_while_they_are_open_are_caught() {
    // One run in some hundreds: the record of a release has to be lost with the owner. Of the first 1,200 it is 477 now.
    must_be_caught_holding("forgets-opens", "is open, ", 401..=800);
}

#[test]
fn orphans_that_stay_are_caught() {
    must_be_caught_holding("loses-closes", "are kept", 1..=100);
}

/// A file that applications of all nodes lock, while its owner and others crash and links break.
fn locking(seed: u64, canary: Canary) -> Options {
    Options {
        lock_count: 150,
        crash_count: 2,
        break_ticks: if seed.is_multiple_of(2) { 300 } else { 0 },
        loss_per_mille: if seed.is_multiple_of(4) { 20 } else { 0 },
        ..holding(seed, canary)
    }
}

#[test]
fn locks_outlive_their_owners_and_nobody_has_what_another_has() {
    let mut sums = [0; 2];
    for seed in 1..=8 {
        let options = locking(seed, Canary::default());
        let (report, _) = World::new(seed, options, false).run();
        assert_eq!(report.violation, None, "seed {seed}");
        for (sum, count) in sums.iter_mut().zip(report.lock_counts) {
            *sum += count;
        }
    }
    let [granted, refused] = sums;
    eprintln!("{granted} granted, {refused} refused");
    assert!(granted > 150 && refused > 50, "{sums:?}");
}

#[test]
fn locks_that_are_given_away_twice_are_caught() {
    let mut canary = Canary::default();
    assert!(canary.set("forgets-locks"), "no canary");
    let is_caught = |seed| {
        let options = locking(seed, canary);
        let violation = survive(|| World::new(seed, options, false).run().0.violation);
        violation.is_some_and(|text| text.contains("is told that it has"))
    };
    assert!((1..40).any(is_caught), "forgets-locks is not caught");
}

/// Directories that are split and joined all the time, on disks and nodes that fail.
fn splitting(seed: u64, canary: Canary) -> Options {
    Options {
        part_bounds: Some(Bounds::of(2, 1)),
        name_percent: 60,
        shard_count: 6,
        ..evicting(seed, canary)
    }
}

#[test]
fn directories_in_parts() {
    let mut part_count = 0;
    for seed in 1..=12 {
        let options = splitting(seed, Canary::default());
        let (report, _) = World::new(seed, options, false).run();
        assert_eq!(report.violation, None, "seed {seed}");
        part_count += report.part_count;
    }
    eprintln!("{part_count} parts");
    assert!(part_count > 20, "{part_count} parts");
}

#[test]
fn names_looked_for_in_other_parts_are_caught() {
    let canary = Canary {
        old_parts: true,
        ..Canary::default()
    };
    let is_caught = |seed| {
        let options = splitting(seed, canary);
        survive(|| World::new(seed, options, false).run().0.violation).is_some()
    };
    assert!((1..=20).any(is_caught), "nobody notices");
}

/// Files are taken for such that somebody will open soon, at any moment, by all nodes.
#[test]
fn files_that_are_loaded_before_they_are_opened_are_what_they_are() {
    let mut loaded = 0;
    for seed in 1..=24 {
        let options = Options {
            load_ticks: 1 + seed % 3,
            name_percent: 30,
            ..whole::options(seed, Canary::default())
        };
        let (report, _) = World::new(seed, options, false).run();
        assert_eq!(report.violation, None, "seed {seed}");
        loaded += report.loaded_file_count;
    }
    eprintln!("{loaded} files loaded");
    assert!(loaded > 100, "{loaded} files");
}

/// Names move from one directory to another, which other nodes change.
fn moving(seed: u64) -> Options {
    let drawn = whole::options(seed, Canary::default());
    Options {
        names: Names {
            are_apart: true,
            is_published: true,
        },
        name_percent: 90,
        call_count: 40,
        crash_count: 0,
        ..drawn
    }
}

/// Four seeds have shown a name at its new place that another node had removed there: no token of that directory had come with the rename.
#[test]
fn names_that_move_to_another_directory_are_where_they_are() {
    for seed in (1..=16).chain([1479, 1601, 2041, 2365]) {
        let (report, _) = World::new(seed, moving(seed), false).run();
        assert_eq!(report.violation, None, "seed {seed}");
    }
}

/// Applications close files and open them again, and kernels are given what they may read.
fn closing(seed: u64, canary: Canary) -> Options {
    let drawn = whole::options(seed, canary);
    Options {
        has_doors: true,
        load_ticks: 1,
        name_percent: 0,
        call_count: 60,
        has_truncate: true,
        // What does not look at the attributes, by which a kernel drops pages as well.
        has_splice: true,
        has_mappings: !drawn.has_little_space(),
        frame_count: 1 << 14,
        ..drawn
    }
}

#[test]
fn files_that_are_put_into_kernels_are_what_they_are() {
    let mut filled = 0;
    for seed in 1..=40 {
        let options = closing(seed, Canary::default());
        let (report, _) = World::new(seed, options, false).run();
        assert_eq!(report.violation, None, "seed {seed}");
        filled += report.fill_count;
    }
    eprintln!("{filled} files filled");
    assert!(filled > 100, "{filled} files");
}

#[test]
fn tokens_that_overtake_what_kernels_are_given_are_noticed() {
    let canary = Canary {
        overtakes_fills: true,
        ..Canary::default()
    };
    let is_caught = |seed| {
        // Long enough for names to be believed.
        let options = Options {
            call_count: 240,
            ..closing(seed, canary)
        };
        survive(|| World::new(seed, options, false).run().0.violation).is_some()
    };
    // One world in ten shows it.
    assert!((1..=60).any(is_caught), "nobody notices");
}

/// Nodes that say that they stop, and others that lose their power after it.
fn stopping(seed: u64, canary: Canary) -> Options {
    Options {
        crash_count: 4,
        says_farewell: true,
        has_mappings: false,
        has_fsync: false,
        call_count: 60,
        ..whole::options(seed, canary)
    }
}

/// What others had when a node said that it stops is as durable as if they had synced each file.
#[test]
fn who_stops_takes_what_others_have() {
    let mut sweeps = 0;
    for seed in 1..=25 {
        let options = stopping(seed, Canary::default());
        let (report, _) = World::new(seed, options, false).run();
        assert_eq!(report.violation, None, "seed {seed}");
        sweeps += report.sweep_count;
        // However links break: a sweep ends.
        assert_eq!(report.late_stop_count, 0, "seed {seed}");
    }
    eprintln!("{sweeps} sweeps");
    assert!(sweeps > 30, "{sweeps} sweeps");
}

#[test]
fn an_answer_before_all_is_written_back_is_caught() {
    let canary = Canary {
        skips_sweeps: true,
        ..Canary::default()
    };
    let is_caught = |seed: &u64| {
        let run = |canary| {
            let options = stopping(*seed, canary);
            survive(|| World::new(*seed, options, false).run().0.violation)
        };
        run(canary).is_some() && run(Canary::default()).is_none()
    };
    let caught = (1..=60).find(is_caught);
    eprintln!("seed {caught:?}");
    assert!(caught.is_some(), "skips-sweeps is caught");
}

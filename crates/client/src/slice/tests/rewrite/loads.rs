//! What is read from disks for rewrites: bounded for the node, counted until it has ended, and paid for by the read.

use super::*;

/// Reads from disks of a node, at the most.
const READS_MAX: u64 = 8;

/// Ticks until something is loaded; what is loaded then.
fn until_load(s: &mut Story) -> Vec<(IoId, usize)> {
    for _ in 0..500 {
        let mut loads = Vec::new();
        for effect in tick(s) {
            match effect {
                Effect::Load(io, pieces) => loads.push((io, pieces.len())),
                other => drop(carry(s, vec![other], 64, None)),
            }
        }
        if !loads.is_empty() {
            return loads;
        }
    }
    panic!("nothing is loaded");
}

fn reads_of(loads: &[(IoId, usize)]) -> u64 {
    loads.iter().map(|(_, count)| *count as u64).sum()
}

fn end(s: &mut Story, loads: &[(IoId, usize)], result: Result<(), IoFailure>) {
    for (io, _) in loads {
        s.input(Input::Loaded(*io, result));
    }
}

/// Of 63 pages that lie apart a few are read at a time.
#[test]
fn few_reads_are_under_way_at_a_time() {
    let mut s = rested();
    let mut all = 0;
    while all < 63 {
        let loads = until_load(&mut s);
        let count = reads_of(&loads);
        assert!(count <= READS_MAX, "{count} at a time");
        assert_eq!(s.pace.reads(), count);
        all += count;
        // Nothing more until all of these have ended.
        let others = ticks(&mut s, 10, 64, None);
        assert_eq!(others.loaded, 0);
        for (io, _) in loads.iter().skip(1) {
            let effects = s.input(Input::Loaded(*io, Ok(())));
            assert!(!effects.iter().any(|e| matches!(e, Effect::Load(..))));
        }
        assert_eq!(s.pace.reads(), count, "one is left");
        s.now = s.now + Duration::from_millis(1);
        let effects = s.input(Input::Loaded(loads[0].0, Ok(())));
        carry(&mut s, effects, 64, None);
        assert_eq!(s.pace.reads(), 0);
        // As long as the disks are left alone.
        s.now = s.now + Duration::from_secs(2);
    }
    let done = ticks(&mut s, 10, 64, None);
    assert_eq!((done.loaded, &done.stored[..]), (0, &[64][..]));
}

/// A disk that is away: what is on its way from it is counted, and nothing more is read until it has ended, for however long.
#[test]
fn loads_of_a_rewrite_that_is_put_off_are_counted_until_they_end() {
    for result in [Ok(()), Err(IoFailure::Unreachable)] {
        let mut s = rested();
        let loads = until_load(&mut s);
        let (reads, frames) = (s.pace.reads(), s.pace.held());
        assert_eq!((reads, frames), (reads_of(&loads), 64));
        for _ in 0..20 {
            s.now = s.now + Duration::from_secs(30);
            let others = ticks(&mut s, 5, 64, None);
            assert_eq!((others.loaded, others.stored.len()), (0, 0), "{others:?}");
            assert_eq!((s.pace.reads(), s.pace.held()), (reads, frames));
        }
        let spare = s.spare.get();
        assert_eq!(spare.taken, 0, "the sectors have gone back: {spare:?}");
        end(&mut s, &loads, result);
        assert_eq!((s.pace.reads(), s.pace.held()), (0, 0));
        check_nothing_is_left(&mut s, 0);
        // It may be away again.
        let others = ticks(&mut s, 100, 64, None);
        assert_eq!((others.loaded, others.stored.len()), (0, 0), "{others:?}");
        // The disks are left alone for three times as long as that took.
        s.now = s.now + Duration::from_secs(2000);
        let done = ticks(&mut s, 50, 64, None);
        assert_eq!(done.stored, [64], "{done:?}");
    }
}

/// Also where it is the lease, the daemon, a lack of sectors or the rate that ends it, and while what was read may be used no more.
#[test]
fn whatever_ends_a_rewrite_its_loads_are_counted() {
    let ends: [fn(&mut Story); 5] = [
        |s| drop(s.input(Input::Scarce(NodeId(2)))),
        |s| drop(s.input(Input::WriteBack)),
        |s| drop(s.input(Input::Lapsed(Vec::new()))),
        |s| s.pace.set_rate(0),
        |s| {
            let effects = s.revoke(1, vec![write_want(ByteRange::ALL)]);
            s.carry_out(effects);
        },
    ];
    for by in ends {
        let mut s = rested();
        let loads = until_load(&mut s);
        by(&mut s);
        for _ in 0..3 {
            tick(&mut s);
            assert_eq!((s.pace.reads(), s.pace.held()), (reads_of(&loads), 64));
        }
        let (last, others) = loads.split_last().expect("one at least");
        end(&mut s, others, Ok(()));
        assert_eq!((s.pace.reads(), s.pace.held()), (reads_of(&loads), 64));
        end(&mut s, &[*last], Err(IoFailure::Unreachable));
        tick(&mut s);
        assert_eq!((s.pace.reads(), s.pace.held()), (0, 0));
        assert!(!s.slice.inode(INO).errors.is_untold());
    }
}

/// Others have as many under way as there may be.
#[test]
fn the_reads_of_a_node_are_shared() {
    let mut s = rested();
    assert_eq!(s.pace.begin_reads(s.now, 100, false), READS_MAX);
    let done = ticks(&mut s, 100, 64, None);
    assert_eq!((done.maps, done.loaded), (0, 0), "nothing is begun");
    s.pace.end_reads(READS_MAX - 1);
    let loads = until_load(&mut s);
    assert_eq!(
        (reads_of(&loads), s.pace.reads()),
        (READS_MAX - 1, READS_MAX)
    );
}

/// A disk needs about as long for a page as for 128 KiB: while somebody reads or writes that is what each is paid for as.
#[test]
fn reads_are_paid_for_one_by_one() {
    let mut s = rested();
    s.pace.note_use(s.now);
    until_load(&mut s);
    // 63 reads at 4 MiB a second, less what a tick may be late.
    let is_free = |s: &Story, ms| s.pace.take(s.now + Duration::from_millis(ms), 1, false);
    assert!(!is_free(&s, 1800));
    assert!(is_free(&s, 2000));
    // In memory already: the store alone.
    let mut s = rested();
    let all = ByteRange::new(0, BLOCK);
    let effects = located::read(&mut s, Handle(0), all);
    carry(&mut s, effects, 64, None);
    rest(&mut s);
    until_store(&mut s);
    assert!(is_free(&s, 10));
}

/// While nobody does they are paid for with their bytes; from the first one who does on they are not.
#[test]
fn reads_beside_nobody_cost_their_bytes() {
    let mut s = rested();
    let loads = until_load(&mut s);
    assert!(s.pace.take(s.now + Duration::from_millis(10), 1, false));
    let mut all = reads_of(&loads);
    // As long as the disks are left alone nothing follows.
    s.now = s.now + Duration::from_millis(1);
    end(&mut s, &loads, Ok(()));
    s.pace.note_use(s.now);
    // What is left, at 4 MiB a second; and then the pace has been paid.
    let before = s.now;
    let others = until_load(&mut s);
    let (left, taken) = (63 - all, s.now.since(before));
    assert!(
        taken < Duration::from_millis(500),
        "{taken:?}: it was the next one's turn"
    );
    all += reads_of(&others);
    assert!(all < 63, "few at a time");
    let pause = Duration(left * (128 << 10) * SECOND / (4 << 20));
    let at = s.now + Duration(pause.0 - SECOND / 5);
    assert!(!s.pace.take(at, 1, false), "{left} reads are paid for");
    // They go on, and nothing is paid twice.
    s.now = s.now + Duration::from_millis(1);
    end(&mut s, &others, Ok(()));
    let more = until_load(&mut s);
    assert!(reads_of(&more) > 0);
}

/// A turn that comes late has its own patience: what is on its way when the wait for it would be over is not taken for a disk that is away.
#[test]
fn a_late_turn_has_its_own_patience() {
    let mut s = rested();
    // Others have the pace for as long as a block waits, less a tenth of a second.
    assert!(s.pace.take(s.now, 10 * crate::rewrite::RATE_DEFAULT, false));
    let begin = s.now;
    let loads = until_load(&mut s);
    let waited = s.now.since(begin);
    assert!(waited > Duration::from_millis(9800), "{waited:?}");
    s.now = s.now + Duration::from_millis(500);
    tick(&mut s);
    end(&mut s, &loads, Ok(()));
    let (_, pieces) = until_store(&mut s);
    assert_eq!(pieces.len(), 1);
}

/// Slow disks are somebody else's, too.
#[test]
fn disks_are_left_alone_after_reads() {
    let mut s = rested();
    let loads = until_load(&mut s);
    s.now = s.now + Duration::from_secs(2);
    end(&mut s, &loads, Ok(()));
    let until = s.now + Duration::from_secs(6);
    until_load(&mut s);
    assert!(s.now >= until, "{:?} early", until.since(s.now));
}

//! Which time a change stamps, where the clock that it was read from may stand behind another's.
//!
//! Invariants
//! - A change whose clock is up to a second behind that of the change before it (its thread stood still, its plan is another node's,
//!   that node's clock is behind) does not take times back, and makes them other ones: 1 ns later. A Commit tells when its writes were,
//!   and leaves the later time: the writer has made it another one as far as it knew the file's.
//! - A time that lies further ahead goes with the next change, as on Linux: somebody set it, a clock was wrong, or a plan is old. A
//!   plan that waited for longer than a second may so take times back.

use types::{Attr, Timestamp};

/// The attributes with a new ctime.
pub(crate) fn stamped(attr: &Attr, now: Timestamp) -> Attr {
    Attr {
        ctime: attr.ctime.stamped(now),
        change: attr.change + 1,
        ..*attr
    }
}

/// The attributes with a new mtime and ctime: the same moment.
pub(crate) fn modified(attr: &Attr, now: Timestamp) -> Attr {
    let moment = attr.mtime.stamped(now).max(attr.ctime.stamped(now));
    Attr {
        mtime: moment,
        ctime: moment,
        change: attr.change + 1,
        ..*attr
    }
}

/// A time of another node's clock. One that lies far ahead of ours is taken for now.
pub(crate) fn held_back(time: Timestamp, now: Timestamp) -> Timestamp {
    match time.is_ahead_of(now) {
        true => now,
        false => time,
    }
}

#[cfg(test)]
mod tests {
    use types::{Duration, FileKind, InodeId};

    use super::*;

    const NOW: Timestamp = Timestamp {
        secs: 1000,
        nanos: 500_000_000,
    };

    fn at(mtime: Timestamp, ctime: Timestamp) -> Attr {
        Attr {
            mtime,
            ctime,
            ..Attr::new(InodeId::ROOT, 0, FileKind::Directory, 0o755, NOW)
        }
    }

    fn later(nanos: u64) -> Timestamp {
        NOW.after(Duration(nanos))
    }

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn times_do_not_go_back_a_little_and_do_far() {
        let far = later(SECOND + 1);
        for (old, new) in [
            (Timestamp::default(), NOW),
            (NOW, later(1)),
            (later(SECOND), far),
            (far, NOW),
        ] {
            assert_eq!(old.stamped(NOW), new, "{old:?}");
            let attr = at(far, old);
            let stamp = stamped(&attr, NOW);
            assert_eq!((stamp.mtime, stamp.ctime), (far, new));
            assert_eq!(stamp.change, attr.change + 1);
        }
        assert_eq!(
            later(SECOND / 2),
            Timestamp {
                secs: 1001,
                nanos: 0
            }
        );
    }

    #[test]
    fn a_modification_is_one_moment() {
        for (mtime, ctime, moment) in [
            (0, 7, 8),
            (7, 0, 8),
            (7, 2 * SECOND, 8),
            (2 * SECOND, 7, 8),
            (2 * SECOND, 2 * SECOND, 0),
            // One within a second of the other, and not of the clock.
            (SECOND / 10 * 9, SECOND / 10 * 15, SECOND / 10 * 9 + 1),
            (SECOND / 10 * 18, SECOND / 10 * 9, SECOND / 10 * 9 + 1),
        ] {
            let new = modified(&at(later(mtime), later(ctime)), NOW);
            assert_eq!(
                (new.mtime, new.ctime),
                (later(moment), later(moment)),
                "{mtime} {ctime}"
            );
        }
    }
}

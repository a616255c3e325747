//! Which time a change stamps, where the clock that it was read from may stand behind another's.
//!
//! Invariants
//! - A time that a change stamped does not go back by another change that read its clock up to a second before it: the thread that
//!   executes it stood still, its plan came from another node, or that node's clock is behind.
//! - A time that lies further ahead (somebody set it, or a clock was wrong) goes with the next change, as on Linux.

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
    let now = attr.mtime.stamped(attr.ctime.stamped(now));
    Attr {
        mtime: now,
        ..stamped(attr, now)
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

    #[test]
    fn times_do_not_go_back_a_little_and_do_far() {
        let little = NOW.after(Duration::from_secs(1));
        assert_eq!((little.secs, little.nanos), (1001, 500_000_000));
        let far = little.after(Duration(1));
        let before = Timestamp::default();
        for (old, new) in [(before, NOW), (NOW, NOW), (little, little), (far, NOW)] {
            assert_eq!(old.stamped(NOW), new, "{old:?}");
            let attr = at(far, old);
            let stamp = stamped(&attr, NOW);
            assert_eq!((stamp.mtime, stamp.ctime), (far, new));
            assert_eq!(stamp.change, attr.change + 1);
        }
    }

    #[test]
    fn a_modification_is_one_moment() {
        let little = NOW.after(Duration(1));
        let far = NOW.after(Duration::from_secs(2));
        for (mtime, ctime, moment) in [
            (NOW, little, little),
            (little, NOW, little),
            (far, little, little),
            (little, far, little),
            (far, far, NOW),
        ] {
            let new = modified(&at(mtime, ctime), NOW);
            assert_eq!(
                (new.mtime, new.ctime),
                (moment, moment),
                "{mtime:?} {ctime:?}"
            );
        }
    }
}

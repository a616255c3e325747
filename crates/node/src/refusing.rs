//! NSDs that did not take what was written: others are taken for a while, longer each time, and then they are tried again.

use std::collections::BTreeMap;

use types::{Duration, Instant, NsdId};

/// Nothing is put on an NSD that refused something for so long, if there are others; twice as long each time, and tried there again then.
const AVOIDED_MIN: Duration = Duration::from_secs(10);
/// See `AVOIDED_MIN`.
const AVOIDED_MAX: Duration = Duration::from_secs(300);

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Refusing {
    /// Until when they are avoided, and how long.
    nsds: BTreeMap<NsdId, (Instant, Duration)>,
}

impl Refusing {
    /// One did not take something. Some: it is avoided from now on, for so long.
    pub(crate) fn note(&mut self, now: Instant, nsd: NsdId) -> Option<Duration> {
        let (until, pause) = self.nsds.entry(nsd).or_default();
        // Many at once are one reason.
        if now < *until {
            return None;
        }
        *pause = Duration((pause.0 * 2).clamp(AVOIDED_MIN.0, AVOIDED_MAX.0));
        *until = now + *pause;
        Some(*pause)
    }

    /// Those that nothing is put on now.
    pub(crate) fn avoided(&mut self, now: Instant) -> impl Iterator<Item = NsdId> {
        // What is not tried again long after it could be is as good as any other.
        let is_noted = |until: &Instant| now < *until + AVOIDED_MAX;
        self.nsds.retain(|_, (until, _)| is_noted(until));
        let avoided = self.nsds.iter().filter(move |(_, (until, _))| now < *until);
        avoided.map(|(nsd, _)| *nsd)
    }

    /// None was noted, or all of it is long ago.
    pub(crate) fn is_empty(&self) -> bool {
        self.nsds.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_refuses_again_is_avoided_for_longer_and_forgotten_in_the_end() {
        let mut refusing = Refusing::default();
        let nsd = NsdId(3);
        let mut now = Instant(1);
        let mut pauses = Vec::new();
        for _ in 0..7 {
            let pause = refusing.note(now, nsd).expect("it begins");
            assert_eq!(refusing.note(now, nsd), None, "one reason");
            let end = now + pause;
            assert_eq!(
                refusing.avoided(Instant(end.0 - 1)).collect::<Vec<_>>(),
                [nsd]
            );
            assert_eq!(refusing.avoided(end).count(), 0);
            pauses.push(pause.0 / 1_000_000_000);
            now = end;
        }
        assert_eq!(pauses, [10, 20, 40, 80, 160, 300, 300]);
        now = now + AVOIDED_MAX;
        assert_eq!(refusing.avoided(now).count(), 0);
        assert!(refusing.is_empty());
        assert_eq!(refusing.note(now, nsd), Some(AVOIDED_MIN));
    }
}

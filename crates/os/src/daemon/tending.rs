//! Steps on the parts of directories: one at a time, on a loop, so that nobody's answer waits for one.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use node::Work;
use types::InodeId;

use super::work::Item;
use super::{Daemon, lock};

/// The loop that they run on.
const LOOP: usize = 0;
/// Holders that wait at a time. One more is named again by its next change.
const HOLDER_COUNT_MAX: usize = 64;

/// Holders of names that should be split or joined.
#[derive(Debug, Default)]
pub(super) struct Tending {
    due: Mutex<Due>,
}

#[derive(Debug, Default)]
struct Due {
    holders: VecDeque<InodeId>,
    /// A step is on its way to the loop or runs there.
    is_under_way: bool,
}

impl Tending {
    /// True: a step is to be posted.
    fn add(&self, holder: InodeId) -> bool {
        let mut due = lock(&self.due);
        if due.holders.len() < HOLDER_COUNT_MAX && !due.holders.contains(&holder) {
            due.holders.push_back(holder);
        }
        !std::mem::replace(&mut due.is_under_way, true)
    }

    fn next(&self) -> Option<InodeId> {
        let mut due = lock(&self.due);
        let next = due.holders.pop_front();
        due.is_under_way = next.is_some();
        next
    }
}

impl Daemon {
    /// This holder is looked at soon.
    pub(super) fn tend(self: &Arc<Self>, holder: InodeId) {
        if self.tending.add(holder) {
            self.post_step();
        }
    }

    fn post_step(self: &Arc<Self>) {
        let daemon = Arc::clone(self);
        let step = move || {
            if let Some(holder) = daemon.tending.next() {
                let work = Work::tend(holder);
                daemon.run(VecDeque::from([Item::Owner(work)]));
                daemon.post_step();
            }
        };
        self.loops.post(LOOP, Box::new(step));
    }
}

#[cfg(test)]
mod tests {
    use types::ShardId;

    use super::*;

    fn holder(index: u64) -> InodeId {
        InodeId::new(ShardId(0), index)
    }

    #[test]
    fn one_step_is_under_way_and_each_holder_waits_once() {
        let tending = Tending::default();
        assert!(tending.add(holder(1)), "nothing is under way");
        for index in [2, 1, 2] {
            assert!(!tending.add(holder(index)));
        }
        assert_eq!(tending.next(), Some(holder(1)));
        assert!(!tending.add(holder(1)), "while its own step runs");
        assert_eq!(tending.next(), Some(holder(2)));
        assert_eq!(tending.next(), Some(holder(1)));
        assert_eq!(tending.next(), None);
        assert!(tending.add(holder(3)), "nothing is under way any more");
    }

    #[test]
    fn no_more_than_so_many_wait() {
        let tending = Tending::default();
        let count = u64::try_from(HOLDER_COUNT_MAX).expect("small");
        for index in 0..count + 10 {
            tending.add(holder(index));
        }
        let all = std::iter::from_fn(|| tending.next());
        assert_eq!(all.count(), HOLDER_COUNT_MAX);
    }
}

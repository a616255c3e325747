//! Replies that the queue to their asker had no room for.
//!
//! Invariants
//! - A reply is sent, or kept here, or its link is broken: an asker repeats only what a broken link may have lost, so
//!   that a reply that is dropped while the link stays up would never come.
//! - At most `BACKLOG_COUNT_MAX` are kept for a node; then its link is to be broken.

use std::collections::{BTreeMap, VecDeque};

use types::NodeId;

/// Most replies kept for one node.
pub const BACKLOG_COUNT_MAX: usize = 1024;

/// See the module. `T` is a reply as the driver sends it.
#[derive(Debug)]
pub struct Backlog<T> {
    waiting: BTreeMap<NodeId, VecDeque<T>>,
}

impl<T> Default for Backlog<T> {
    fn default() -> Self {
        Self {
            waiting: BTreeMap::new(),
        }
    }
}

impl<T> Backlog<T> {
    /// Keeps a reply that the queue to `node` refused. `Ok(true)`: it is the only one, try again soon.
    ///
    /// # Errors
    /// There are too many: break the link to `node`, so that it asks again, and drop this one.
    pub fn push(&mut self, node: NodeId, reply: T) -> Result<bool, T> {
        let queue = self.waiting.entry(node).or_default();
        if queue.len() >= BACKLOG_COUNT_MAX {
            return Err(reply);
        }
        queue.push_back(reply);
        Ok(queue.len() == 1)
    }

    /// All that waits for `node`, oldest first: to be sent again (what is refused again comes back by `push`), or to be
    /// dropped when the link to it has broken.
    pub fn take(&mut self, node: NodeId) -> VecDeque<T> {
        self.waiting.remove(&node).unwrap_or_default()
    }

    /// Replies that wait.
    pub fn count(&self) -> usize {
        self.waiting.values().map(VecDeque::len).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_refused_waits_in_order_and_not_without_bound() {
        let mut backlog = Backlog::default();
        assert_eq!(backlog.push(NodeId(1), 0), Ok(true));
        for number in 1..BACKLOG_COUNT_MAX {
            assert_eq!(backlog.push(NodeId(1), number), Ok(false));
        }
        assert_eq!(backlog.push(NodeId(1), 7_000), Err(7_000));
        assert_eq!(backlog.push(NodeId(2), 1), Ok(true), "another node's");
        assert_eq!(backlog.count(), BACKLOG_COUNT_MAX + 1);
        let all = backlog.take(NodeId(1));
        assert!(all.into_iter().eq(0..BACKLOG_COUNT_MAX));
        assert!(backlog.take(NodeId(1)).is_empty());
        assert_eq!(backlog.push(NodeId(1), 1), Ok(true), "room again");
    }
}

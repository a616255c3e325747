//! Which records of a shard the tree does not have yet, and a checkpoint that takes them as they were at one moment.
//!
//! ```text
//! change -> log --freeze--> frozen keys, sorted --encode, piece by piece--> the tree's bulk apply
//!             ^                  |  a change of a key that is still to come encodes it first: its before-image
//!             '----- thaw -------'  (the checkpoint failed)
//! ```
//!
//! Invariants
//! - Every key whose record differs from the tree's is in the log or frozen.
//! - What `encode` gives is what the keys held when they were frozen, whatever has changed since.
//! - Nothing is kept for a shard that is not tracked.
//!
//! [Decision 0009](../../../docs/decisions/0009-checkpoints-and-residency.md).

use std::collections::BTreeMap;

use crate::records::{Key, Record};

/// See the module.
#[derive(Clone, Debug, Default)]
pub(crate) struct Dirty {
    is_tracked: bool,
    /// Keys that changed since the last freeze, as often as they did.
    log: Vec<Key>,
    frozen: Option<Frozen>,
}

#[derive(Clone, Debug)]
struct Frozen {
    /// Sorted, each once.
    keys: Vec<Key>,
    /// Those before it have been encoded.
    next: usize,
    /// What keys behind that held when they were frozen, of those that have changed since.
    images: BTreeMap<Key, Option<Vec<u8>>>,
}

impl Frozen {
    /// It has to be encoded before it changes.
    fn needs_image(&self, key: &Key) -> bool {
        self.keys[self.next..].binary_search(key).is_ok() && !self.images.contains_key(key)
    }
}

impl Dirty {
    /// Notes changes from now on.
    pub(crate) fn track(&mut self) {
        self.is_tracked = true;
    }

    pub(crate) fn is_tracked(&self) -> bool {
        self.is_tracked
    }

    /// A checkpoint is under way, so the old values of what changes may be needed.
    pub(crate) fn wants_old(&self) -> bool {
        let is_left = |frozen: &Frozen| frozen.next < frozen.keys.len();
        self.frozen.as_ref().is_some_and(is_left)
    }

    /// The record of `key` changes; `old` says what it held until now.
    pub(crate) fn note(&mut self, key: Key, old: impl FnOnce() -> Option<Vec<u8>>) {
        if !self.is_tracked {
            return;
        }
        if let Some(frozen) = &mut self.frozen
            && frozen.needs_image(&key)
        {
            frozen.images.insert(key.clone(), old());
        }
        self.log.push(key);
    }

    /// Changes since the last freeze, repeats included.
    pub(crate) fn logged_count(&self) -> usize {
        self.log.len()
    }

    /// Begins a checkpoint of all that has changed; how many keys that are.
    pub(crate) fn freeze(&mut self) -> usize {
        assert!(self.frozen.is_none(), "one checkpoint at a time");
        let mut keys = std::mem::take(&mut self.log);
        keys.sort_unstable();
        keys.dedup();
        let count = keys.len();
        self.frozen = Some(Frozen {
            keys,
            next: 0,
            images: BTreeMap::new(),
        });
        count
    }

    /// Encodes up to `count_max` more of the frozen keys, in order; `now` says what a key holds now. True: these were the
    /// last.
    pub(crate) fn encode(
        &mut self,
        count_max: usize,
        now: impl Fn(&Key) -> Option<Vec<u8>>,
        out: &mut Vec<Record>,
    ) -> bool {
        let frozen = self.frozen.as_mut().expect("a checkpoint has begun");
        let end = frozen.keys.len().min(frozen.next + count_max);
        for key in &frozen.keys[frozen.next..end] {
            let value = match frozen.images.remove(key) {
                Some(image) => image,
                None => now(key),
            };
            key.records(value.as_deref(), out);
        }
        frozen.next = end;
        end == frozen.keys.len()
    }

    /// The checkpoint is over. `is_saved`: the tree has what was frozen. If not it counts as changed again.
    pub(crate) fn thaw(&mut self, is_saved: bool) {
        let frozen = self.frozen.take().expect("a checkpoint has begun");
        if !is_saved {
            self.log.extend(frozen.keys);
        }
    }

    /// Keys that the tree may not have as they are now, in order, each once.
    pub(crate) fn unsaved(&self) -> Vec<Key> {
        let frozen = self.frozen.iter().flat_map(|frozen| &frozen.keys);
        let mut keys: Vec<Key> = frozen.chain(&self.log).cloned().collect();
        keys.sort_unstable();
        keys.dedup();
        keys
    }
}

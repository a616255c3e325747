//! The changes that an apply has been given and not used yet: sorted, in one buffer.
//!
//! Invariant: keys ascend; at one key a `DeleteTo` comes before a `Put` or `Delete`.

use std::collections::VecDeque;

use super::page::KEY_SIZE_MAX;

/// A change of a tree.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Change<'a> {
    /// The key has this value from now on.
    Put(&'a [u8]),
    /// The key goes, if it is there.
    Delete,
    /// All old keys from the change's key on, up to this one (not included), go. Changes that follow are made
    /// afterwards: a `Put` in the range stays.
    DeleteTo(&'a [u8]),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    DeleteTo,
    Put,
    Delete,
}

#[derive(Clone, Copy, Debug)]
struct Op {
    /// Where its key begins, counted over all bytes ever given.
    at: usize,
    key: usize,
    value: usize,
    kind: Kind,
}

/// The buffer.
#[derive(Debug, Default)]
pub(super) struct Ops {
    bytes: Vec<u8>,
    /// Bytes dropped in front of `bytes`.
    base: usize,
    list: VecDeque<Op>,
    is_ended: bool,
}

impl Ops {
    /// Bytes that it holds.
    pub(super) fn size(&self) -> usize {
        self.bytes.len() + self.list.len() * size_of::<Op>()
    }

    pub(super) fn push(&mut self, key: &[u8], change: Change<'_>) {
        assert!(!self.is_ended);
        assert!(key.len() <= KEY_SIZE_MAX);
        let (kind, value): (_, &[u8]) = match change {
            Change::Put(value) => (Kind::Put, value),
            Change::Delete => (Kind::Delete, &[]),
            Change::DeleteTo(end) => (Kind::DeleteTo, end),
        };
        if let Some(last) = self.list.back() {
            let before = self.slice(last.at, last.key);
            let is_after = before < key || (before == key && last.kind == Kind::DeleteTo);
            assert!(is_after, "changes ascend by key");
        }
        self.list.push_back(Op {
            at: self.base + self.bytes.len(),
            key: key.len(),
            value: value.len(),
            kind,
        });
        self.bytes.extend_from_slice(key);
        self.bytes.extend_from_slice(value);
    }

    /// No more will come.
    pub(super) fn end(&mut self) {
        self.is_ended = true;
    }

    pub(super) const fn is_ended(&self) -> bool {
        self.is_ended
    }

    /// Whether it is known what comes next: a change, or none.
    pub(super) fn is_known(&self) -> bool {
        self.is_ended || !self.list.is_empty()
    }

    fn slice(&self, at: usize, length: usize) -> &[u8] {
        &self.bytes[at - self.base..][..length]
    }

    fn change(&self, op: &Op) -> (&[u8], Change<'_>) {
        let value = self.slice(op.at + op.key, op.value);
        let change = match op.kind {
            Kind::Put => Change::Put(value),
            Kind::Delete => Change::Delete,
            Kind::DeleteTo => Change::DeleteTo(value),
        };
        (self.slice(op.at, op.key), change)
    }

    pub(super) fn first(&self) -> Option<(&[u8], Change<'_>)> {
        self.list.front().map(|op| self.change(op))
    }

    /// The key of the first change that is not below `key`.
    pub(super) fn at_or_behind(&self, key: &[u8]) -> Option<&[u8]> {
        let index = self
            .list
            .partition_point(|op| self.slice(op.at, op.key) < key);
        let op = self.list.get(index)?;
        Some(self.slice(op.at, op.key))
    }

    pub(super) fn pop(&mut self) {
        let op = self.list.pop_front().expect("there is a first change");
        let done = op.at + op.key + op.value - self.base;
        if done * 2 > self.bytes.len() && (done > 4096 || self.list.is_empty()) {
            self.bytes.drain(..done);
            self.base += done;
        }
    }
}

//! What waits for the journal: answers, transaction messages and others that must not be heard before what they show
//! is durable.
//!
//! Invariants
//! - What waits for a record is given out when that one, and all before it, are durable; in order of LSN.
//! - After a failed flush nothing that waits is given out any more: who asked a question hears EIO, other owners hear
//!   nothing (they ask again, and hear nothing either until the owner has begun anew).

use std::collections::BTreeMap;

use client::message::{Answer, Body};
use types::id::NodeLife;
use types::{Errno, Lsn, NodeId};

use crate::message::Message;

/// What waits for the journal.
#[derive(Debug)]
pub enum Deferred {
    /// An answer: to whom, to which question.
    Answer(NodeLife, u64, Box<Answer>),
    /// A transaction message.
    Transaction(Box<meta::Envelope>),
    /// A message to another node.
    Message(NodeId, Box<Message>),
}

impl Deferred {
    /// What is heard instead when the record will never be durable.
    fn failed(self) -> Option<Self> {
        match self {
            Self::Answer(to, call, _) => {
                let answer = Answer::bare(Body::Refused(Errno::EIO));
                Some(Self::Answer(to, call, Box::new(answer)))
            }
            Self::Transaction(_) | Self::Message(..) => None,
        }
    }
}

/// See the module.
#[derive(Debug, Default)]
pub struct Durable {
    lsn: Lsn,
    is_failed: bool,
    waiters: BTreeMap<Lsn, Vec<Deferred>>,
}

impl Durable {
    /// Recovery and start have made everything up to `lsn` durable.
    pub fn new(lsn: Lsn) -> Self {
        Self {
            lsn,
            ..Self::default()
        }
    }

    /// Something must not be heard before `after` is durable. `Err`: it waits now, see that the journal is written.
    /// `Ok`: to be delivered at once, if anything.
    pub fn wait(&mut self, after: Lsn, deferred: Deferred) -> Result<Option<Deferred>, Waits> {
        if after <= self.lsn {
            return Ok(Some(deferred));
        }
        if self.is_failed {
            return Ok(deferred.failed());
        }
        self.waiters.entry(after).or_default().push(deferred);
        Err(Waits)
    }

    /// The journal is durable up to `lsn`: what is to be delivered now.
    pub fn on_durable(&mut self, lsn: Lsn) -> impl Iterator<Item = Deferred> + use<> {
        let mut released = BTreeMap::new();
        if !self.is_failed {
            self.lsn = self.lsn.max(lsn);
            let later = self.waiters.split_off(&Lsn(self.lsn.0.saturating_add(1)));
            released = std::mem::replace(&mut self.waiters, later);
        }
        released.into_values().flatten()
    }

    /// The journal has failed. The first time: what is to be delivered now; `None` later.
    pub fn fail(&mut self) -> Option<impl Iterator<Item = Deferred> + use<>> {
        if self.is_failed {
            return None;
        }
        self.is_failed = true;
        let lost = std::mem::take(&mut self.waiters).into_values().flatten();
        Some(lost.filter_map(Deferred::failed))
    }

    /// What waits.
    pub fn count(&self) -> usize {
        self.waiters.values().map(Vec::len).sum()
    }
}

/// It waits for the journal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Waits;

#[cfg(test)]
mod tests {
    use super::*;
    use types::Incarnation;

    const LIFE: NodeLife = NodeLife {
        node: NodeId(2),
        incarnation: Incarnation(1),
    };

    fn answer(call: u64) -> Deferred {
        Deferred::Answer(LIFE, call, Box::new(Answer::bare(Body::Synced)))
    }

    fn message() -> Deferred {
        Deferred::Message(NodeId(2), Box::new(Message::RecallSpace { id: 1 }))
    }

    /// The calls that are answered; EIO: negative.
    fn calls(deferred: impl Iterator<Item = Deferred>) -> Vec<i64> {
        let call = |deferred| match deferred {
            Deferred::Answer(_, call, answer) => {
                let call = i64::try_from(call).unwrap();
                match answer.body {
                    Body::Synced => call,
                    Body::Refused(Errno::EIO) => -call,
                    other => panic!("{other:?}"),
                }
            }
            _ => 0,
        };
        deferred.map(call).collect()
    }

    #[test]
    fn what_waits_comes_in_order_and_not_early() {
        let mut durable = Durable::new(Lsn(5));
        assert!(durable.wait(Lsn(5), answer(1)).unwrap().is_some());
        for (lsn, call) in [(9, 4), (7, 2), (7, 3), (12, 5)] {
            assert_eq!(durable.wait(Lsn(lsn), answer(call)).err(), Some(Waits));
        }
        assert_eq!(durable.wait(Lsn(8), message()).err(), Some(Waits));
        assert_eq!(calls(durable.on_durable(Lsn(6))), []);
        assert_eq!(calls(durable.on_durable(Lsn(10))), [2, 3, 0, 4]);
        assert_eq!(
            calls(durable.on_durable(Lsn(3))),
            [],
            "an older flush ends later"
        );
        assert!(durable.wait(Lsn(10), answer(6)).unwrap().is_some());
        assert_eq!(durable.count(), 1);
    }

    #[test]
    fn after_a_failure_nothing_is_shown() {
        let mut durable = Durable::new(Lsn(5));
        assert!(durable.wait(Lsn(6), answer(1)).is_err());
        assert!(durable.wait(Lsn(7), message()).is_err());
        assert!(durable.wait(Lsn(u64::MAX - 1), answer(2)).is_err());
        assert_eq!(calls(durable.fail().unwrap()), [-1, -2]);
        assert!(durable.fail().is_none(), "once");
        assert_eq!(
            calls(durable.wait(Lsn(6), answer(3)).unwrap().into_iter()),
            [-3]
        );
        assert!(durable.wait(Lsn(6), message()).unwrap().is_none());
        // What was durable before is.
        assert_eq!(
            calls(durable.wait(Lsn(5), answer(4)).unwrap().into_iter()),
            [4]
        );
        assert_eq!(calls(durable.on_durable(Lsn(9))), []);
        assert_eq!(
            calls(durable.wait(Lsn(9), answer(5)).unwrap().into_iter()),
            [-5]
        );
        assert_eq!(durable.count(), 0);
    }
}

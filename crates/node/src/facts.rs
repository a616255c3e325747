//! What an operation must know of other owners' shards: asked one fact at a time, and answered by an operation of its
//! own where it is a matter of names.
//!
//! Invariant: a question that waits for a fact is here and nowhere else; the fact is asked for again until it comes.

use std::collections::BTreeMap;

use client::message::{Answer, Ask, Body};
use meta::view::{Fact, Query};
use meta::{Op, Reply};
use types::id::NodeLife;
use types::{Errno, InodeId, Instant, Name, NodeId, ShardId};

use crate::calls::question;
use crate::message::{FactResult, Message};
use crate::question::{LOOK_CALL, Question, Work};

/// Marks calls of operations that are run for a fact.
pub const FACT_CALL: u64 = 1 << 62;

/// So often a question looks again where what it asks about has gone since it was found: names are replaced by many at a time. What a
/// damaged name leads to stays gone.
const GONE_TRIES_MAX: u32 = 100;

/// A question that waits for a fact: whom it is asked from, with which message.
type Asked = (NodeId, Message, Box<Question>);
/// What another owner wants to know: the directory, and which of its names (none: its ancestors, or its attributes).
type About = (InodeId, Option<Name>);

/// How a query of another owner is answered.
#[derive(Debug)]
pub enum Find {
    /// A free inode number of the shard, or ESTALE where it is not this owner's.
    Number(ShardId),
    /// By running this; its answer comes to `answered`.
    Run(Work),
    /// It is being run: this is a repeat.
    Running,
}

/// What becomes of a question whose fact has come.
#[derive(Debug)]
pub enum Known {
    /// This is run.
    Run(Work),
    /// Its walk goes on with this part of the chain.
    Walk(Box<Question>, Vec<InodeId>),
}

/// See the module.
#[derive(Debug, Default)]
pub struct Facts {
    asked: BTreeMap<u64, Asked>,
    /// By who asked: the next life of a node numbers its questions anew.
    queries: BTreeMap<(NodeLife, u64), About>,
}

impl Facts {
    /// A question waits for a fact of `owner`'s. Returned: what to send to it.
    pub fn ask(
        &mut self,
        id: u64,
        owner: NodeId,
        query: Query,
        question: Box<Question>,
    ) -> Message {
        let message = Message::AskFact { id, query };
        self.asked.insert(id, (owner, message.clone(), question));
        message
    }

    /// The fact has come: what becomes of the question that waits for it; none for a repeat.
    pub fn on_fact(&mut self, id: u64, result: FactResult) -> Option<Known> {
        let (_, message, mut question) = self.asked.remove(&id)?;
        let query = match message {
            Message::AskFact { query, .. } => query,
            other => unreachable!("{other:?} asks for no fact"),
        };
        Some(Known::Run(match result {
            FactResult::Found(Fact::Ancestors { chain, .. }) => {
                return Some(Known::Walk(question, chain));
            }
            FactResult::Found(fact) => {
                question.facts.push(fact);
                Work::Question(question)
            }
            FactResult::Failed(Errno::ESTALE)
                if matches!(query, Query::Attributes { .. }) && question.tries < GONE_TRIES_MAX =>
            {
                question.facts.clear();
                Work::Question(question)
            }
            FactResult::Failed(errno) => question.to_be_refused(errno),
        }))
    }

    /// What was asked and has no answer, from whom.
    pub fn unanswered(&self) -> impl Iterator<Item = (NodeId, &Message)> {
        self.asked
            .values()
            .map(|(owner, message, _)| (*owner, message))
    }

    /// Questions that wait.
    pub fn count(&self) -> usize {
        self.asked.len()
    }

    /// Another owner (or this one) wants to know something of this owner's shards.
    pub fn find(&mut self, now: Instant, from: NodeLife, id: u64, query: Query) -> Find {
        if self.queries.contains_key(&(from, id)) {
            return Find::Running;
        }
        // Who owns an inode and what it is only its owner changes: what is committed will do, and no holder of tokens is asked.
        let how = match query {
            Query::Attributes { .. } => FACT_CALL | LOOK_CALL,
            _ => FACT_CALL,
        };
        let (about, op) = match query {
            Query::Number { shard } => return Find::Number(shard),
            Query::Entry { directory, name } => {
                let op = Op::Lookup {
                    parent: directory,
                    name: name.clone(),
                };
                ((directory, Some(name)), op)
            }
            Query::Ancestors { directory } => ((directory, None), Op::Ancestors { ino: directory }),
            Query::Attributes { ino } => ((ino, None), Op::GetAttr { ino }),
        };
        self.queries.insert((from, id), about);
        let shard = op.home();
        // An answer to another node is durable in any case.
        let ask = Ask::Op { op, durable: false };
        Find::Run(question(now, (from, id | how), None, shard, ask))
    }

    /// An operation that was run for a fact has its answer: what to tell who asked, and to which question; none for a repeat.
    pub fn answered(
        &mut self,
        to: NodeLife,
        call: u64,
        answer: Answer,
    ) -> Option<(u64, FactResult)> {
        let id = call & !(FACT_CALL | LOOK_CALL);
        let (directory, name) = self.queries.remove(&(to, id))?;
        let entry = |name: Option<Name>, found| {
            let name = name.ok_or(Errno::EPROTO)?;
            Ok(Fact::Entry {
                directory,
                name,
                found,
            })
        };
        let fact = match answer.body {
            Body::Op(Reply::Entry { ino, kind, .. }) => entry(name, Some((ino, kind))),
            Body::Op(Reply::Absent) => entry(name, None),
            Body::Op(Reply::Attr(attr)) => Ok(Fact::Attributes { attr }),
            Body::Op(Reply::Chain(chain)) => Ok(Fact::Ancestors { directory, chain }),
            Body::Op(Reply::Error(errno)) | Body::Refused(errno) => Err(errno),
            _ => Err(Errno::EPROTO),
        };
        let result = match fact {
            Ok(fact) => FactResult::Found(fact),
            Err(errno) => FactResult::Failed(errno),
        };
        Some((id, result))
    }

    /// An operation that was run for a fact ended without an answer: a repeat runs it again.
    pub fn dropped(&mut self, to: NodeLife, call: u64) {
        if call & FACT_CALL != 0 {
            self.queries.remove(&(to, call & !(FACT_CALL | LOOK_CALL)));
        }
    }

    /// A life is over: what it wanted to know is told to nobody.
    pub fn life_ended(&mut self, life: NodeLife) {
        self.queries.retain(|(asker, _), _| *asker != life);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test")]
mod tests {
    use super::*;
    use types::Incarnation;

    fn life(incarnation: u128) -> NodeLife {
        NodeLife {
            node: NodeId(2),
            incarnation: Incarnation(incarnation),
        }
    }

    fn query(name: &str) -> Query {
        let name = Name::new(name.as_bytes()).unwrap();
        Query::Entry {
            directory: InodeId::ROOT,
            name,
        }
    }

    /// Whoever has waited for long says it again.
    #[test]
    fn what_is_being_found_out_is_not_found_out_twice() {
        let mut facts = Facts::default();
        let ino = InodeId::new(ShardId(3), 9);
        let query = Query::Attributes { ino };
        let find = |facts: &mut Facts| facts.find(Instant(1), life(1), 5, query.clone());
        let Find::Run(Work::Question(first)) = find(&mut facts) else {
            panic!("it is run");
        };
        assert!(first.only_looks(), "no holder of tokens is asked");
        assert!(matches!(find(&mut facts), Find::Running));
        // It was not: no answer will come of it.
        facts.dropped(life(1), first.call);
        assert!(matches!(find(&mut facts), Find::Run(_)));
        let gone = Answer::bare(Body::Op(Reply::Error(Errno::ESTALE)));
        let told = facts.answered(life(1), first.call, gone);
        assert_eq!(told, Some((5, FactResult::Failed(Errno::ESTALE))));
        assert!(matches!(find(&mut facts), Find::Run(_)));
    }

    /// Another has replaced the name meanwhile: who asks looks again, as long as that can be so.
    #[test]
    fn what_has_gone_is_looked_for_again() {
        let mut facts = Facts::default();
        let ino = InodeId::new(ShardId(3), 9);
        let op = Op::GetAttr { ino };
        let ask = Ask::Op { op, durable: false };
        let mut on_fact = |query: Query, tries, errno| {
            let Work::Question(mut asker) =
                question(Instant(1), (life(1), 7), None, ShardId(1), ask.clone())
            else {
                panic!("a question");
            };
            asker.tries = tries;
            asker.facts.push(Fact::Number { ino });
            facts.ask(8, NodeId(2), query, asker);
            let known = facts.on_fact(8, FactResult::Failed(errno));
            let Some(Known::Run(Work::Question(then))) = known else {
                panic!("{known:?}");
            };
            (then.refusal, then.facts.len())
        };
        let attributes = || Query::Attributes { ino };
        let gone = Errno::ESTALE;
        assert_eq!(on_fact(attributes(), 3, gone), (None, 0), "it looks again");
        let refused = |errno| (Some(errno), 1);
        assert_eq!(on_fact(attributes(), GONE_TRIES_MAX, gone), refused(gone));
        assert_eq!(on_fact(attributes(), 3, Errno::EIO), refused(Errno::EIO));
        assert_eq!(on_fact(query("x"), 3, gone), refused(gone));
    }

    /// A node asks, starts anew, and asks something else under the same number before the first answer is there.
    #[test]
    fn the_answer_for_a_life_that_is_over_is_not_for_the_next_one() {
        let mut facts = Facts::default();
        let now = Instant(1);
        facts.find(now, life(1), 5, query("x"));
        facts.find(now, life(2), 5, query("y"));
        facts.life_ended(life(1));
        let absent = || Answer::bare(Body::Op(Reply::Absent));
        assert!(facts.answered(life(1), 5, absent()).is_none());
        let told = facts.answered(life(2), 5, absent());
        let Some((5, FactResult::Found(Fact::Entry { name, found, .. }))) = told else {
            panic!("{told:?}");
        };
        assert_eq!((name.bytes(), found), (&b"y"[..], None));
        assert!(facts.answered(life(2), 5, absent()).is_none(), "once");
    }
}

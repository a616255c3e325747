//! Slots, repeats and duplicates of questions.

use super::*;
use meta::Op;
use types::{Incarnation, InodeId, SetAttr};

const OWNER: NodeId = NodeId(2);
const SHARD: ShardId = ShardId(3);

fn at(ms: u64) -> Instant {
    Instant(0) + Duration::from_millis(ms)
}

fn change() -> Ask {
    let ino = InodeId::new(SHARD, 7);
    let set = SetAttr::default();
    let op = Op::SetAttr {
        ino,
        set,
        standing: None,
    };
    Ask::Op { op, durable: false }
}

fn origin_of(message: &Message) -> Option<Origin> {
    match message {
        Message::Question { origin, .. } => *origin,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_slot_has_one_question_at_a_time_and_request_ids_grow_in_it() {
    let mut calls = Calls::default();
    let count = u64::from(limits::SLOTS_PER_SHARD);
    let mut newest: BTreeMap<u16, RequestId> = BTreeMap::new();
    let mut is_new = |message: &Message| {
        let origin = origin_of(message).expect("a change has a slot");
        let last = newest.insert(origin.slot, origin.request);
        assert!(last.is_none_or(|last| last < origin.request));
    };
    for call in 0..count {
        let message = calls.begin(at(1), call, (OWNER, SHARD), change());
        is_new(&message.expect("a free slot"));
    }
    for call in count..2 * count {
        assert_eq!(calls.begin(at(1), call, (OWNER, SHARD), change()), None);
    }
    calls.check();
    // Those without a slot are not said: they would be executed twice.
    assert_eq!(calls.of_peer(OWNER).count() as u64, count);
    assert_eq!(calls.stale(at(2000)).len() as u64, count);
    // What changes nothing waits for nobody.
    let read = calls.begin(at(1), 9999, (OWNER, SHARD), Ask::Sync);
    assert_eq!(origin_of(&read.expect("goes at once")), None);
    for call in 0..count {
        let (shard, next) = calls.ended(at(2), call);
        assert_eq!(shard, Some(SHARD));
        let (peer, message) = next.expect("somebody waits");
        assert_eq!(peer, OWNER);
        is_new(&message);
        calls.check();
        assert_eq!(calls.ended(at(2), call), (None, None), "a repeated answer");
    }
    for call in count..2 * count {
        assert_eq!(calls.ended(at(3), call), (Some(SHARD), None));
    }
    assert_eq!(calls.ended(at(3), 9999), (Some(SHARD), None));
    assert_eq!(calls.count(), 0);
    calls.check();
}

#[test]
fn who_does_not_answer_is_named_with_the_oldest_question() {
    let mut calls = Calls::default();
    assert_eq!(calls.waiters(), []);
    let count = u64::from(limits::SLOTS_PER_SHARD);
    for call in 0..count + 3 {
        let _ = calls.begin(at(10 + call), call, (OWNER, SHARD), change());
    }
    let other = (NodeId(3), ShardId(9));
    let _ = calls.begin(at(5), 9999, other, Ask::Sync);
    // Said again it is as old as before.
    let _ = calls.stale(at(5000));
    let waiters = calls.waiters();
    let expected =
        format!("{count} questions wait for node 2, 3 more for a slot: the oldest is to shard 3");
    assert_eq!(waiters[0], (expected, at(10)));
    assert!(
        waiters[1].0.contains("1 questions wait for node 3"),
        "{waiters:?}"
    );
    assert_eq!(waiters[1].1, at(5));
    for call in 0..count + 3 {
        let _ = calls.ended(at(20), call);
    }
    assert_eq!(calls.waiters().len(), 1);
}

#[test]
fn what_has_no_answer_is_said_again_unchanged() {
    let mut calls = Calls::default();
    let first = calls.begin(at(1), 1, (OWNER, SHARD), change());
    let first = first.expect("a free slot");
    assert!(calls.stale(at(900)).is_empty());
    assert_eq!(calls.stale(at(1100)), [(OWNER, first.clone())]);
    assert!(calls.stale(at(2000)).is_empty(), "it was just said");
    assert_eq!(calls.of_peer(OWNER).collect::<Vec<_>>(), [first]);
    assert_eq!(calls.of_peer(NodeId(9)).count(), 0);
    calls.begin_own(2, ShardId(1));
    assert_eq!(calls.ended(at(3), 2), (Some(ShardId(1)), None));
    assert_eq!(calls.ended(at(3), 2), (None, None));
}

#[test]
fn a_question_is_worked_on_once_at_a_time() {
    let life = |incarnation| NodeLife {
        node: NodeId(4),
        incarnation: Incarnation(incarnation),
    };
    let mut open = InProgress::default();
    assert!(open.begin(life(1), 7));
    assert!(!open.begin(life(1), 7), "a repeat");
    assert!(open.begin(life(2), 7), "another life's");
    open.ended(life(1), 7);
    assert!(open.begin(life(1), 7), "a repeat finds the kept answer");
    open.life_ended(life(1));
    assert_eq!(open.count(), 1);
}

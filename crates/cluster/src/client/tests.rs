//! A member alone: what counts for its lease and what does not.

use super::*;
use crate::server::tests::{life as a_life, view};

fn at(ms: u64) -> Instant {
    Instant(0) + Duration::from_millis(ms)
}

fn config() -> Config {
    Config {
        life: a_life(2, 20),
        former: vec![Incarnation(19)],
        address: "a:1".to_owned(),
        manager: NodeId(1),
        timing: Timing::default(),
    }
}

fn sent(out: &Outbox) -> &ToManager {
    match &out[..] {
        [Effect::Send { message, .. }] => message,
        other => panic!("{other:?}"),
    }
}

fn member_view(epoch: u64, incarnation: u128) -> ClusterView {
    let mut view = view(&[1, 2]);
    view.epoch = Epoch(epoch);
    view.nodes[1].incarnation = Incarnation(incarnation);
    view
}

fn welcome(number: u64) -> ToMember {
    ToMember::Welcome {
        incarnation: Incarnation(20),
        number,
        lease_ms: 10_000,
        view: member_view(5, 20),
    }
}

fn granted(number: u64) -> ToMember {
    ToMember::LeaseGranted {
        incarnation: Incarnation(20),
        number,
        lease_ms: 10_000,
    }
}

/// A member whose Join was sent at 100 ms and answered at 4,000 ms.
fn joined() -> Member {
    let mut member = Member::new(at(0), config());
    let mut out = Vec::new();
    member.on_timeout(at(0), &mut out);
    assert_eq!(sent(&out), &ToManager::QueryManager {});
    out.clear();
    let (node, epoch) = (NodeId(1), Epoch(4));
    member.on_message(at(100), ToMember::Manager { node, epoch }, &mut out);
    let ToManager::Join(join) = sent(&out) else {
        panic!("{out:?}");
    };
    assert_eq!((join.number, join.since), (1, Epoch(4)));
    assert_eq!(join.former, [Incarnation(19)]);
    assert!(!member.is_valid(at(100)));
    out.clear();
    member.on_message(at(4000), welcome(1), &mut out);
    let valid_until = at(10_100);
    assert_eq!(out[0], Effect::Joined { valid_until });
    member.check();
    member
}

#[test]
fn the_lease_counts_from_the_question_not_from_the_answer() {
    let mut member = joined();
    assert!(member.is_valid(at(10_099)));
    assert!(!member.is_valid(at(10_100)), "without any timer");
    assert_eq!(member.remaining(at(10_000)), Duration::from_millis(100));
    assert_eq!(member.remaining(at(99_000)), Duration(0));
    let mut out = Vec::new();
    member.on_timeout(at(4000), &mut out);
    assert!(matches!(
        sent(&out),
        ToManager::RenewLease { number: 2, .. }
    ));
    out.clear();
    member.on_message(at(9000), granted(2), &mut out);
    assert_eq!(member.valid_until(), Some(at(14_000)));
    // Repeated, unknown and older answers do not extend it.
    member.on_message(at(9500), granted(2), &mut out);
    member.on_message(at(9500), granted(1), &mut out);
    member.on_message(at(9500), granted(77), &mut out);
    member.on_message(at(9500), welcome(1), &mut out);
    assert_eq!(member.valid_until(), Some(at(14_000)));
    assert_eq!(out, []);
    member.check();
}

#[test]
fn answers_to_another_life_do_not_count() {
    let mut member = joined();
    let mut out = Vec::new();
    member.on_timeout(at(4000), &mut out);
    out.clear();
    let incarnation = Incarnation(19);
    let epoch = Epoch(9);
    for message in [
        ToMember::Evicted { incarnation, epoch },
        ToMember::Left { incarnation },
        ToMember::LeaseGranted {
            incarnation,
            number: 2,
            lease_ms: 10_000,
        },
        ToMember::Refused {
            incarnation,
            reason: Refusal::UnknownNode,
        },
    ] {
        member.on_message(at(4100), message, &mut out);
    }
    assert_eq!(out, []);
    assert_eq!(member.valid_until(), Some(at(10_100)));
}

#[test]
fn an_unanswered_renewal_is_repeated_sooner_than_the_next_is_due() {
    let mut member = joined();
    let mut out = Vec::new();
    member.on_timeout(at(4000), &mut out);
    assert_eq!(member.next_timeout(), Some(at(4500)));
    member.on_message(at(4010), granted(2), &mut out);
    assert_eq!(member.next_timeout(), Some(at(6000)));
    out.clear();
    member.on_connected(at(4100), NodeId(1), &mut out);
    assert_eq!(out, [], "nothing is unanswered");
    member.on_timeout(at(6000), &mut out);
    out.clear();
    member.on_connected(at(6100), NodeId(1), &mut out);
    assert!(matches!(
        sent(&out),
        ToManager::RenewLease { number: 4, .. }
    ));
}

#[test]
fn a_lapsed_lease_comes_back_but_an_evicted_life_does_not() {
    let mut member = joined();
    let mut out = Vec::new();
    member.on_timeout(at(10_100), &mut out);
    assert_eq!(out[0], Effect::Lapsed);
    out.clear();
    member.on_message(at(10_200), granted(2), &mut out);
    assert_eq!(out, [Effect::Regained]);
    assert!(member.is_valid(at(10_200)));
    out.clear();
    let view = member_view(6, 0);
    member.on_message(at(10_300), ToMember::ViewChanged { view }, &mut out);
    let epoch = Epoch(6);
    assert_eq!(out, [Effect::Evicted { epoch }]);
    assert!(!member.is_valid(at(10_300)));
    out.clear();
    member.on_message(at(10_400), granted(2), &mut out);
    member.on_message(at(10_400), welcome(1), &mut out);
    let view = member_view(7, 20);
    member.on_message(at(10_400), ToMember::ViewChanged { view }, &mut out);
    member.on_timeout(at(99_000), &mut out);
    assert_eq!(out, []);
    assert!(!member.is_valid(at(10_400)));
    member.check();
    member.rejoin(at(11_000), Incarnation(21), &mut out);
    assert_eq!(sent(&out), &ToManager::QueryManager {});
    member.check();
}

#[test]
fn an_older_view_is_not_installed() {
    let mut member = joined();
    let mut out = Vec::new();
    for epoch in [4, 5] {
        let view = member_view(epoch, 0);
        member.on_message(at(4100), ToMember::ViewChanged { view }, &mut out);
    }
    assert_eq!(out, []);
    let view = member_view(8, 20);
    member.on_message(
        at(4100),
        ToMember::ViewChanged { view: view.clone() },
        &mut out,
    );
    assert_eq!(out, [Effect::View { view }]);
    assert_eq!(member.epoch(), Epoch(8));
}

#[test]
fn leaving_gives_the_lease_up_at_once() {
    let mut member = joined();
    let mut out = Vec::new();
    member.leave(at(4100), &mut out);
    assert!(!member.is_valid(at(4100)));
    let leave = ToManager::Leave {
        life: a_life(2, 20),
    };
    assert_eq!(sent(&out), &leave);
    out.clear();
    member.on_timeout(at(4600), &mut out);
    assert_eq!(sent(&out), &leave);
    out.clear();
    let incarnation = Incarnation(20);
    member.on_message(at(4700), ToMember::Left { incarnation }, &mut out);
    assert_eq!(out, [Effect::Left]);
    assert_eq!(member.next_timeout(), None);
    member.check();
}

#[test]
fn a_redirection_is_followed_at_the_next_time_out() {
    let mut member = Member::new(at(0), config());
    let mut out = Vec::new();
    member.on_timeout(at(0), &mut out);
    out.clear();
    let epoch = Epoch(0);
    let node = NodeId(3);
    member.on_message(at(10), ToMember::Manager { node, epoch }, &mut out);
    assert_eq!(out, []);
    member.on_timeout(at(500), &mut out);
    let message = ToManager::QueryManager {};
    assert_eq!(out, [Effect::Send { to: node, message }]);
    let reason = Refusal::FormerLifeMayRun { wait_ms: 5 };
    let incarnation = Incarnation(20);
    out.clear();
    for _ in 0..2 {
        let refused = ToMember::Refused {
            incarnation,
            reason,
        };
        member.on_message(at(600), refused, &mut out);
    }
    assert_eq!(out, [Effect::Refused { reason }], "news only");
}

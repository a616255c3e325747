//! The manager alone; together with members it is tested in `client/tests.rs`.

use super::*;
use types::{ClusterId, FsId, NodeView};

pub(crate) fn view(nodes: &[u16]) -> ClusterView {
    let node = |id: &u16| NodeView {
        id: NodeId(*id),
        address: String::new(),
        incarnation: Incarnation(0),
    };
    ClusterView {
        cluster: ClusterId(1),
        fs: FsId(2),
        epoch: Epoch(1),
        manager: NodeId(1),
        nodes: nodes.iter().map(node).collect(),
        nsds: Vec::new(),
        owners: vec![NodeId(1), NodeId(2)],
        block_size: 1 << 20,
    }
}

pub(crate) fn life(node: u16, incarnation: u128) -> NodeLife {
    NodeLife {
        node: NodeId(node),
        incarnation: Incarnation(incarnation),
    }
}

/// A manager of nodes 1 and 2, of which the lives 10 and 20 are members.
fn manager(out: &mut Outbox) -> Manager {
    let mut view = view(&[1, 2]);
    view.nodes[0].incarnation = Incarnation(10);
    view.nodes[1].incarnation = Incarnation(20);
    let stored = StoredView {
        revision: Revision(7),
        view,
    };
    Manager::new(Instant(0), NodeId(1), Timing::default(), stored, out)
}

fn join(life: NodeLife, former: &[u128]) -> Join {
    Join {
        life,
        number: 1,
        version_min: VERSION,
        version_max: VERSION,
        features: 0,
        since: Epoch(1),
        address: "a:1".to_owned(),
        former: former.iter().map(|former| Incarnation(*former)).collect(),
    }
}

fn at(ms: u64) -> Instant {
    Instant(0) + Duration::from_millis(ms)
}

/// The only answer to `message`, sent at `at`.
fn answer(manager: &mut Manager, now: Instant, message: ToManager) -> ToMember {
    let mut out = Vec::new();
    manager.on_message(now, NodeId(2), message, &mut out);
    manager.check();
    match &out[..] {
        [Effect::Send { to, message }] if *to == NodeId(2) => message.clone(),
        other => panic!("{other:?}"),
    }
}

fn renew(life: NodeLife) -> ToManager {
    ToManager::RenewLease {
        life,
        number: 5,
        epoch: Epoch(1),
    }
}

#[test]
fn questions_that_are_refused_change_nothing() {
    let mut out = Vec::new();
    let mut manager = manager(&mut out);
    assert_eq!(out, [], "the office is its own already");
    let mut ask = |join: Join| {
        let incarnation = join.life.incarnation;
        match answer(&mut manager, at(0), ToManager::Join(join)) {
            ToMember::Refused {
                incarnation: of,
                reason,
            } if of == incarnation => reason,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(ask(join(life(3, 1), &[])), Refusal::UnknownNode);
    assert_eq!(ask(join(life(2, 0), &[20])), Refusal::UnknownNode);
    let newer = Join {
        version_min: VERSION + 1,
        version_max: VERSION + 2,
        ..join(life(2, 21), &[20])
    };
    assert!(matches!(ask(newer), Refusal::Version { .. }));
    let wait = Refusal::FormerLifeMayRun { wait_ms: 10_500 };
    assert_eq!(ask(join(life(2, 21), &[])), wait);
    assert_eq!(ask(join(life(2, 21), &[19, 10])), wait);
    let query = answer(&mut manager, at(0), ToManager::QueryManager {});
    let (node, epoch) = (NodeId(1), Epoch(1));
    assert_eq!(query, ToMember::Manager { node, epoch });
    assert_eq!(manager.view().epoch, Epoch(1));
}

#[test]
fn a_life_from_before_this_manager_is_not_let_in_again() {
    let mut manager = manager(&mut Vec::new());
    let late = Join {
        since: Epoch(0),
        ..join(life(2, 21), &[20])
    };
    let evicted = |incarnation| ToMember::Evicted {
        incarnation: Incarnation(incarnation),
        epoch: Epoch(1),
    };
    assert_eq!(
        answer(&mut manager, at(0), ToManager::Join(late)),
        evicted(21)
    );
    assert_eq!(answer(&mut manager, at(0), renew(life(2, 19))), evicted(19));
    // A member of the view that was found is welcome, whenever it asked.
    let member = Join {
        since: Epoch(0),
        ..join(life(2, 20), &[])
    };
    let welcome = answer(&mut manager, at(0), ToManager::Join(member));
    assert!(matches!(welcome, ToMember::Welcome { .. }));
    let left = ToMember::Left {
        incarnation: Incarnation(19),
    };
    let leave = ToManager::Leave { life: life(2, 19) };
    assert_eq!(answer(&mut manager, at(0), leave), left);
}

#[test]
fn no_lease_without_leadership() {
    let mut manager = manager(&mut Vec::new());
    manager.on_leadership(at(1000));
    let granted = answer(&mut manager, at(999), renew(life(2, 20)));
    assert!(matches!(granted, ToMember::LeaseGranted { number: 5, .. }));
    let mut out = Vec::new();
    manager.on_message(at(1000), NodeId(2), renew(life(2, 20)), &mut out);
    let again = ToManager::Join(join(life(2, 20), &[]));
    manager.on_message(at(1000), NodeId(2), again, &mut out);
    assert_eq!(out, []);
    manager.on_leadership(at(2000));
    answer(&mut manager, at(1500), renew(life(2, 20)));
}

#[test]
fn a_dying_life_gets_no_lease_while_its_death_is_stored() {
    let mut manager = manager(&mut Vec::new());
    let mut out = Vec::new();
    let leave = ToManager::Leave { life: life(2, 20) };
    manager.on_message(at(0), NodeId(2), leave.clone(), &mut out);
    let [Effect::Store { view, expected }] = &out[..] else {
        panic!("{out:?}");
    };
    assert_eq!((view.epoch, *expected), (Epoch(2), Revision(7)));
    let mut out = Vec::new();
    manager.on_message(at(1), NodeId(2), renew(life(2, 20)), &mut out);
    manager.on_message(at(1), NodeId(2), leave, &mut out);
    manager.on_timeout(at(11_000), &mut out);
    assert!(
        out.iter()
            .all(|effect| matches!(effect, Effect::Store { .. }))
    );
    // The put fails, is repeated unchanged, and succeeds: only now the death is announced.
    let mut out = Vec::new();
    manager.on_stored(at(11_000), Err(StoreError::OutcomeUnknown), &mut out);
    assert_eq!(out, []);
    manager.check();
    manager.on_timeout(at(11_500), &mut out);
    assert!(matches!(
        &out[..],
        [Effect::Store {
            expected: Revision(7),
            ..
        }]
    ));
    let mut out = Vec::new();
    manager.on_stored(at(11_500), Ok(Revision(8)), &mut out);
    manager.check();
    let dead = Effect::NodeDead {
        life: life(2, 20),
        epoch: Epoch(2),
        cause: Cause::Left,
    };
    assert_eq!(out[0], dead);
    assert_eq!(manager.view().epoch, Epoch(2));
}

#[test]
fn a_manager_whose_put_conflicts_does_nothing_any_more() {
    let mut manager = manager(&mut Vec::new());
    let mut out = Vec::new();
    manager.reconfigure(|view| view.owners[0] = NodeId(2), &mut out);
    assert!(matches!(&out[..], [Effect::Store { .. }]));
    let mut out = Vec::new();
    let conflict = StoreError::Conflict { found: None };
    manager.on_stored(at(1), Err(conflict), &mut out);
    assert_eq!(out, [Effect::SteppedDown { found: None }]);
    let mut out = Vec::new();
    manager.on_message(at(2), NodeId(2), renew(life(2, 20)), &mut out);
    manager.on_timeout(at(60_000), &mut out);
    manager.reconfigure(|view| view.owners[0] = NodeId(1), &mut out);
    assert_eq!(out, []);
    assert_eq!(manager.next_timeout(), None);
    assert!(manager.is_stepped_down());
    manager.check();
}

#[test]
fn changes_made_while_a_put_is_in_flight_go_together_into_the_next() {
    let mut out = Vec::new();
    let mut manager = manager(&mut out);
    manager.reconfigure(|view| view.owners[0] = NodeId(2), &mut out);
    manager.reconfigure(|view| view.owners[1] = NodeId(1), &mut out);
    manager.reconfigure(|view| view.block_size = 1 << 21, &mut out);
    assert_eq!(out.len(), 1, "one put at a time");
    let mut out = Vec::new();
    manager.on_stored(at(0), Ok(Revision(8)), &mut out);
    manager.check();
    assert_eq!(manager.view().owners, [NodeId(2), NodeId(2)]);
    let sent = out
        .iter()
        .filter(|effect| matches!(effect, Effect::Send { .. }));
    assert_eq!(sent.count(), 2, "both members see it");
    let Some(Effect::Store { view, expected }) = out.last() else {
        panic!("{out:?}");
    };
    assert_eq!((view.epoch, *expected), (Epoch(3), Revision(8)));
    assert_eq!(view.block_size, 1 << 21);
}

#[test]
fn a_new_manager_takes_the_office_in_the_next_view() {
    let mut view = view(&[1, 2]);
    view.manager = NodeId(2);
    let stored = StoredView {
        revision: Revision(1),
        view,
    };
    let mut out = Vec::new();
    Manager::new(at(0), NodeId(1), Timing::default(), stored, &mut out);
    let [Effect::Store { view, .. }] = &out[..] else {
        panic!("{out:?}");
    };
    assert_eq!((view.manager, view.epoch), (NodeId(1), Epoch(2)));
}

#[test]
fn the_default_times_make_sense() {
    let timing = Timing::default();
    timing.check();
    assert!(timing.drift_tolerance_ppm() > 20_000);
}

//! Several who are short of regions, and several owners who may have some.

use super::*;

/// The table's owner has nothing to recall, so it answers itself at once: the others are waited for all the same.
#[test]
fn who_is_short_waits_for_all_owners() {
    let mut world = with_all_at(1);
    let owners = [NodeId(1), NodeId(2), NodeId(3)];
    let ask = Message::TakeRegions {
        id: 1,
        nsds: NSDS.to_vec(),
        count: 2,
        is_short: true,
    };
    let mut asked = Vec::new();
    world.act(0, |core, env, log, out| {
        let env = RegionEnv {
            owners: &owners,
            ..*env
        };
        core.on_take(&env, log, NodeId(3), &ask, out);
        asked = std::mem::take(out);
    });
    let [RegionEffect::Send(NodeId(2), Message::GiveRegions { id })] = &asked[..] else {
        panic!("{asked:?}");
    };
    let (name, mut given) = (*id, Vec::new());
    world.act(1, |core, env, log, out| {
        core.on_give(env, log, name, out);
        let Some(RegionEffect::SendAfter(_, _, Message::RegionsBack { regions, .. })) = out.pop()
        else {
            panic!("{out:?}");
        };
        given = regions;
    });
    assert!(!given.is_empty());
    world.act(0, |core, env, log, out| {
        core.on_back(env, log, NodeId(2), (name, &given), out);
        let Some(RegionEffect::SendAfter(_, to, Message::Regions { regions, .. })) = out.pop()
        else {
            panic!("{out:?}");
        };
        assert_eq!(to, NodeId(3));
        assert!(!regions.is_empty() && regions.iter().all(|r| given.contains(r)));
    });
}

/// The first owner that gives some is enough: others may wait for files to leave.
#[test]
fn nobody_waits_for_owners_once_there_are_regions() {
    let mut world = with_all_at(1);
    let owners = [NodeId(1), NodeId(2), NodeId(3), NodeId(4)];
    let ask = Message::TakeRegions {
        id: 1,
        nsds: NSDS.to_vec(),
        count: 2,
        is_short: true,
    };
    let mut name = 0;
    world.act(0, |core, env, log, out| {
        let env = RegionEnv {
            owners: &owners,
            ..*env
        };
        core.on_take(&env, log, NodeId(3), &ask, out);
        let of_second = out.iter().find_map(|effect| match effect {
            RegionEffect::Send(NodeId(2), Message::GiveRegions { id }) => Some(*id),
            _ => None,
        });
        name = of_second.expect("it was asked");
        out.clear();
    });
    let mut given = Vec::new();
    world.act(1, |core, env, log, out| {
        core.on_give(env, log, name, out);
        if let Some(RegionEffect::SendAfter(_, _, Message::RegionsBack { regions, .. })) = out.pop()
        {
            given = regions;
        }
    });
    assert!(!given.is_empty());
    world.act(0, |core, env, log, out| {
        core.on_back(env, log, NodeId(2), (name, &given), out);
        let told = |effect: &RegionEffect| {
            matches!(
                effect,
                RegionEffect::SendAfter(_, NodeId(3), Message::Regions { .. })
            )
        };
        assert!(out.iter().any(told), "node 4 has not answered: {out:?}");
        assert!(core.giving.contains_key(&NodeId(4)));
        out.clear();
    });
}

/// Two wait, and what another owner gives is for one of them: the other one goes on waiting, for it may have more by then, whoever answers last.
#[test]
fn who_comes_second_is_asked_for_again() {
    for gives_last in [true, false] {
        second_of_two(gives_last);
    }
}

fn second_of_two(gives_last: bool) {
    let mut world = with_all_at(1);
    let owners = [NodeId(1), NodeId(2), NodeId(3)];
    let region = world.logs[1].space.returnable()[0];
    world.act(1, |_, _, log, _| {
        let mut mutations = Vec::new();
        let returned = log.space.return_region(region, &mut mutations);
        returned.expect("it is free");
        log.append_space(mutations);
    });
    world.act(0, |core, env, log, out| {
        let env = RegionEnv {
            owners: &owners,
            ..*env
        };
        for (id, from) in [(1, NodeId(3)), (2, NodeId(1))] {
            let ask = Message::TakeRegions {
                id,
                nsds: NSDS.to_vec(),
                count: 2,
                is_short: true,
            };
            core.on_take(&env, log, from, &ask, out);
        }
        let asked = |out: &Outbox| {
            let name = |effect: &RegionEffect| match effect {
                RegionEffect::Send(NodeId(2), Message::GiveRegions { id }) => Some(*id),
                _ => None,
            };
            out.iter().filter_map(name).next_back()
        };
        // Of the two others, for each of them.
        let third = |out: &Outbox| {
            let name = |effect: &RegionEffect| match effect {
                RegionEffect::Send(NodeId(3), Message::GiveRegions { id }) => Some(*id),
                _ => None,
            };
            out.iter().find_map(name)
        };
        let (first, none) = (asked(out).expect("asked"), third(out).expect("asked"));
        out.clear();
        let mut answers = [
            (NodeId(3), (none, &[][..])),
            (NodeId(2), (first, &[region][..])),
        ];
        if !gives_last {
            answers.reverse();
        }
        for (owner, answer) in answers {
            core.on_back(&env, log, owner, answer, out);
        }
        let given = out.iter().any(|effect| {
            matches!(effect, RegionEffect::SendAfter(_, NodeId(3), Message::Regions { regions, .. }) if regions == &[region])
        });
        assert!(given, "{out:?}");
        // Who has been served asks for more, and comes after those that have not.
        let more = Message::TakeRegions {
            id: 3,
            nsds: NSDS.to_vec(),
            count: 2,
            is_short: true,
        };
        core.on_take(&env, log, NodeId(3), &more, out);
        core.on_tick(&env, log, out);
        assert!(asked(out).is_some_and(|again| again > first), "{out:?}");
        let waiting: Vec<_> = core.waiting.iter().map(Waiting::of).collect();
        assert_eq!(waiting, [(NodeId(1), 2), (NodeId(3), 3)]);
        // Then there is nothing: it hears so.
        let (second, none) = (asked(out).expect("asked"), third(out).expect("asked"));
        core.on_back(&env, log, NodeId(3), (none, &[]), out);
        core.on_back(&env, log, NodeId(2), (second, &[]), out);
        assert!(core.waiting.is_empty() && core.again.is_empty());
        out.clear();
    });
}

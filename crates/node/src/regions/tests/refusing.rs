//! Disks that refuse what is written: what is free there is no supply, while others have some.

use super::*;
use crate::supply::{Gathered, Supply};

/// What `log` makes of a question for `need` sectors, on the first NSD if it can.
fn asked(log: &mut OwnerLog, life: NodeLife, (number, need): (u64, u64), is_all: bool) -> Supply {
    let mut ask = SpaceAsk {
        number,
        need,
        nsds: vec![NSDS[0]],
        ..SpaceAsk::default()
    };
    let gathered = Gathered {
        is_all,
        is_of_layout: true,
        is_freed: true,
    };
    log.supply(life, &mut ask, gathered)
}

#[test]
fn what_is_free_where_it_is_refused_is_no_supply() {
    let mut world = with_all_at(0);
    let life = world.lives[0];
    let log = &mut world.logs[0];
    let there = log.space.counts_of(NSDS[0]).free;
    let mut number = 0;
    let mut ask = |log: &mut OwnerLog, need, is_all| {
        number += 1;
        asked(log, life, (number, need), is_all)
    };
    log.avoid_for_data(vec![NSDS[1]]);
    // It is gathered for, and in the end the bytes go where they can.
    let supply = ask(log, there + 10, false);
    assert!(matches!(supply, Supply::Short), "{supply:?}");
    let Supply::Answer(answer, _) = ask(log, 10, false) else {
        panic!("there are some");
    };
    assert!(
        answer
            .grants
            .iter()
            .all(|grant| grant.run.at.nsd == NSDS[0])
    );
    let Supply::Answer(answer, _) = ask(log, there + 10, true) else {
        panic!("all has been gathered");
    };
    assert!(
        answer
            .grants
            .iter()
            .any(|grant| grant.run.at.nsd == NSDS[1])
    );
    // All refuse: one is as good as the other.
    log.avoid_for_data(NSDS.to_vec());
    let supply = ask(log, 10, false);
    assert!(matches!(supply, Supply::Answer(..)), "{supply:?}");
}

/// More of a disk that refuses helps nobody: neither what nobody holds there nor what another owner gives up is gone through before it is said
/// that there is nothing.
#[test]
fn regions_where_they_are_refused_are_not_gathered() {
    for is_unheld in [false, true] {
        let mut world = World::new();
        world.settle();
        if !is_unheld {
            world = with_all_at(0);
            // All that owner 1 has elsewhere is in use.
            let life = world.lives[0];
            let need = REGION_COUNT * u64::from(REGION_SECTORS) / 2;
            let mut number = 1;
            while world.logs[0].space.counts_of(NSDS[0]).free > 0 {
                let supply = asked(&mut world.logs[0], life, (number, need), true);
                assert!(matches!(supply, Supply::Answer(..)), "{supply:?}");
                number += 1;
            }
        }
        for log in &mut world.logs {
            log.avoid_for_data(vec![NSDS[1]]);
        }
        world.ran = Default::default();
        for _ in 0..20 {
            world.need(1);
            world.settle();
            if world.ran[1].last() != Some(&1) {
                break;
            }
        }
        let rounds = &world.ran[1];
        let there = world.logs[1].space.counts_of(NSDS[0]).total;
        // Where the table has some elsewhere they are taken, all of them, and nothing beside.
        let most = if is_unheld { REGION_COUNT + 2 } else { 3 };
        assert!(rounds.len() as u64 <= most, "{is_unheld}: {rounds:?}");
        assert_eq!(rounds.last(), Some(&3), "{is_unheld}: {rounds:?}");
        assert_eq!(there > 0, is_unheld);
        // What came with the last round, at the most.
        let beside = world.logs[1].space.counts_of(NSDS[1]).total;
        assert!(
            beside <= u64::from(REGIONS_AT_ONCE * REGION_SECTORS),
            "{beside}"
        );
    }
}

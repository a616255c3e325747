//! Disks that refuse what is written: what is free there is no supply, while others have some.

use super::*;
use crate::supply::{Gathered, Supply};

#[test]
fn what_is_free_where_it_is_refused_is_no_supply() {
    let mut world = with_all_at(0);
    let life = world.lives[0];
    let log = &mut world.logs[0];
    let there = log.space.counts_of(NSDS[0]).free;
    let mut number = 0;
    let mut ask = |log: &mut OwnerLog, need, is_all| {
        number += 1;
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

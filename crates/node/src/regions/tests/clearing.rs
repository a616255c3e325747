//! Who is short of regions waits for some that files leave: while that makes sense, and not for ever.

use super::*;
use data::space::SpaceMutation;
use types::{Grant, GrantId, Location};

/// Sectors of files in each region.
const USED: u32 = 20;

fn used(region: RegionId, count: u32) -> Run {
    let sector = u64::from(region.index) * u64::from(REGION_SECTORS);
    let at = Location {
        nsd: region.nsd,
        sector,
    };
    Run { at, count }
}

/// All regions are one owner's, and files lie in each.
fn with_files_at(holder: usize, count: u32) -> World {
    let mut world = with_all_at(holder);
    let life = world.lives[holder];
    let log = &mut world.logs[holder];
    let regions: Vec<RegionId> = log.space.held_regions().collect();
    let mut mutations = Vec::new();
    for region in regions {
        let run = used(region, count);
        let grant = Grant {
            id: GrantId(1),
            run,
            mac: 0,
        };
        mutations.push(SpaceMutation::Granted { life, grant });
        mutations.push(SpaceMutation::Consumed { life, run });
    }
    for mutation in &mutations {
        log.space.apply(mutation).expect("free before");
    }
    log.append_space(mutations);
    flush(log);
    assert_eq!(log.space.returnable(), []);
    world
}

/// The same, and what its files could leave is offered to be left.
fn offered(holder: usize) -> World {
    let mut world = with_files_at(holder, USED);
    world.logs[holder].offer_clearing(true);
    world
}

/// Files have left a region.
fn clear(log: &mut OwnerLog, region: RegionId) {
    let mut mutations = Vec::new();
    let freed = log.space.free(used(region, USED), &mut mutations);
    freed.expect("a file's");
    log.append_space(mutations);
    flush(log);
}

impl World {
    /// A third of a second passes.
    fn pass(&mut self) {
        self.deliver_all();
        self.now = self.now + Duration::from_millis(300);
        for at in 0..2 {
            self.act(at, |core, env, log, out| core.on_tick(env, log, out));
            self.say_again(at);
        }
    }

    /// Sectors are needed there, until the other owner waits for files.
    fn need_until_cleared(&mut self, asker: usize) {
        self.need(asker);
        while self.cores[1 - asker].clearing_for.is_none() {
            assert!(self.ran[asker].is_empty(), "nobody waits");
            self.pass();
        }
    }

    /// How long it takes until the question runs again; `act` is done each time before time passes.
    fn wait_for_answer(&mut self, asker: usize, mut act: impl FnMut(&mut Self)) -> Duration {
        let begin = self.now;
        while self.ran[asker].is_empty() {
            assert!(self.now.since(begin) < Duration::from_secs(30), "{self:?}");
            act(self);
            self.pass();
        }
        self.now.since(begin)
    }
}

/// The other owner waits for files, of which `holder` has said where they should not lie.
fn cleared_at(holder: usize) -> World {
    let mut world = offered(holder);
    world.need_until_cleared(1 - holder);
    let now = world.now;
    let places = world.logs[holder].plan_clearing(now);
    assert!(!places.is_empty());
    world
}

/// It gets one as soon as there is one, whatever is still to be done for others.
#[test]
fn a_region_that_becomes_free_ends_the_wait() {
    for holder in [0, 1] {
        let mut world = offered(holder);
        let asker = 1 - holder;
        world.need_until_cleared(asker);
        let now = world.now;
        let places = world.logs[holder].plan_clearing(now);
        assert!(places.len() > 1, "{places:?}");
        for _ in 0..8 {
            world.pass();
        }
        assert!(world.ran[asker].is_empty(), "it waits");
        assert_eq!(world.held(asker), 0);
        let nsd = places[0].at.nsd;
        let index = places[0].at.sector / u64::from(REGION_SECTORS);
        let index = u32::try_from(index).expect("small");
        clear(&mut world.logs[holder], RegionId { nsd, index });
        let took = world.wait_for_answer(asker, |_| {});
        assert!(took < Duration::from_secs(1), "{took:?}");
        assert_eq!(world.held(asker), 1);
    }
}

/// Nothing becomes free, however long it is worked on: who is short hears it before it gives up the owner that it waits for.
#[test]
fn a_wait_for_files_is_bounded() {
    for holder in [0, 1] {
        let mut world = cleared_at(holder);
        let asker = 1 - holder;
        let took = world.wait_for_answer(asker, |_| {});
        let most = Duration(CLEARING_PATIENCE.0 + 1_500_000_000);
        assert!(CLEARING_PATIENCE <= took && took <= most, "{took:?}");
        assert!(took < GIVE_PATIENCE);
        assert_eq!(world.held(asker), 0);
        // The next one waits anew.
        world.ran[asker].clear();
        world.need_until_cleared(asker);
        let again = world.wait_for_answer(asker, |_| {});
        assert!(CLEARING_PATIENCE <= again && again <= most, "{again:?}");
    }
}

/// The question is said again all the time: what clients do not use is recalled once.
#[test]
fn repeats_of_the_question_begin_no_other_recall() {
    for holder in [0, 1] {
        let mut world = cleared_at(holder);
        let asker = 1 - holder;
        let rounds = world.cores[holder].counters();
        let name = world.cores[holder].wanted.expect("it was asked");
        let mut waited = 0;
        world.wait_for_answer(asker, |world| {
            if world.cores[holder].clearing_for.is_some() {
                world.act(holder, |core, env, log, out| {
                    core.on_give(env, log, name, out);
                    assert!(out.is_empty(), "{out:?}");
                });
                assert_eq!(world.cores[holder].counters(), rounds);
                waited += 1;
            }
        });
        assert!(waited > 10, "{waited}");
    }
}

/// Also one that comes when nothing is waited for any more.
#[test]
fn a_repeat_after_the_wait_gets_the_same_answer() {
    let mut world = cleared_at(1);
    let name = world.cores[1].wanted.expect("it was asked");
    world.wait_for_answer(0, |_| {});
    let mut said = Vec::new();
    for _ in 0..3 {
        world.act(1, |core, env, log, out| {
            core.on_give(env, log, name, out);
            said.append(out);
        });
    }
    for effect in &said {
        let RegionEffect::Send(NodeId(1), Message::RegionsBack { id, regions }) = effect else {
            panic!("{said:?}");
        };
        assert_eq!((*id, &regions[..]), (name, &[][..]));
    }
    assert_eq!(said.len(), 3);
}

/// Another question takes the place of one that waits, and waits as long as that would have.
#[test]
fn what_is_asked_anew_is_waited_for_anew() {
    let mut world = cleared_at(1);
    let old = world.cores[1].wanted.expect("it was asked");
    let rounds = world.cores[1].counters().0;
    world.now = world.now + CLEARING_PATIENCE;
    let begin = world.now;
    world.act(1, |core, env, log, out| {
        core.on_give(env, log, old + 1, out);
        let waits = |effect: &RegionEffect| matches!(effect, RegionEffect::GiveWhenCleared(name) if *name == old + 1);
        assert!(out.iter().any(waits), "{out:?}");
        out.clear();
        core.give(env, log, old, out);
        assert!(out.is_empty(), "nobody wants it any more: {out:?}");
    });
    assert_eq!(world.cores[1].counters().0, rounds + 1);
    assert_eq!(world.cores[1].clearing_for, Some((old + 1, begin)));
    for (after, is_over) in [
        (CLEARING_PATIENCE.0 - 1, false),
        (CLEARING_PATIENCE.0, true),
    ] {
        world.now = begin + Duration(after);
        world.act(1, |core, env, log, out| {
            core.give(env, log, old + 1, out);
            let effect = out.pop();
            let waits = matches!(effect, Some(RegionEffect::GiveWhenCleared(_)));
            assert_eq!(waits, !is_over, "{effect:?}");
        });
    }
}

/// Nobody carries a plan out, or there is nothing to plan: the answer comes at once.
#[test]
fn nobody_waits_for_files_that_do_not_leave() {
    let answered_at_once = |mut world: World, what: &str| {
        world.need(0);
        let took = world.wait_for_answer(0, |_| {});
        assert!(took < Duration::from_secs(2), "{what}: {took:?}");
        assert_eq!(world.held(0), 0, "{what}");
    };
    answered_at_once(with_files_at(1, USED), "not offered");
    let mut world = with_files_at(1, REGION_SECTORS * 9 / 10 + 1);
    world.logs[1].offer_clearing(true);
    answered_at_once(world, "all are well used");
}

/// A plan that ends without a free region, and nobody who makes another one, end the wait.
#[test]
fn a_plan_that_is_over_is_waited_for_no_longer() {
    let mut world = cleared_at(1);
    world.pass();
    assert!(world.ran[0].is_empty());
    world.logs[1].end_clearing();
    world.logs[1].offer_clearing(false);
    let took = world.wait_for_answer(0, |_| {});
    assert!(took < Duration::from_secs(1), "{took:?}");
}

/// What `awaits_clearing` says, case by case.
#[test]
fn waiting_makes_sense_where_a_plan_is_due_or_under_way() {
    let mut world = with_files_at(1, USED);
    let log = &mut world.logs[1];
    let at = |seconds: u64| Instant(0) + Duration::from_secs(100 + seconds);
    assert!(!log.awaits_clearing(at(0)), "not offered");
    log.offer_clearing(true);
    assert_eq!(log.plan_clearing(at(0)), [], "and so it was not wanted");
    assert!(log.awaits_clearing(at(0)), "due");
    let places = log.plan_clearing(at(0));
    assert!(!places.is_empty(), "who waits wants it");
    assert!(log.awaits_clearing(at(1)), "under way");
    log.end_clearing();
    assert!(
        log.awaits_clearing(at(1)),
        "the next one is soon, for others"
    );
    assert!(log.awaits_clearing(at(2)), "due again");
    let region = log.space.held_regions().next().expect("some");
    clear(log, region);
    assert!(!log.awaits_clearing(at(2)), "one is free");
    assert!(!log.plan_clearing(at(2)).is_empty());
    assert!(!log.awaits_clearing(at(2)), "also while others are cleared");
    let (given, _) = log.give_regions();
    assert_eq!(given, [region]);
    assert!(log.awaits_clearing(at(3)), "the plan is still under way");
    log.journal.give_up();
    assert!(!log.awaits_clearing(at(3)), "nothing is durable");
}

/// Trees that lack pages want files to leave, too; but not before checkpoints fail for that.
#[test]
fn pages_that_are_short_want_regions_to_be_cleared() {
    let mut world = offered(0);
    world.lack_pages(0);
    let now = world.now;
    assert_eq!(world.logs[0].plan_clearing(now), []);
    world.logs[0].note_starving(true);
    world.act(0, |core, env, log, out| core.on_tick(env, log, out));
    assert!(!world.logs[0].plan_clearing(now).is_empty());
}

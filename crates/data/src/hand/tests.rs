//! A hand against a naive owner: nothing is lost, nothing is in two places, and what is unused goes back.

use std::collections::BTreeSet;

use super::*;
use types::{GrantId, Location, NsdId};

fn run(sector: u64, count: u32) -> Run {
    let at = Location {
        nsd: NsdId(1),
        sector,
    };
    Run { at, count }
}

/// Grants single runs of free sectors, and remembers what it has given.
#[derive(Default)]
struct Owner {
    granted: BTreeSet<u64>,
    last: Option<(u64, SpaceAnswer)>,
}

const SIZE: u64 = 40_000;

impl Owner {
    fn on_ask(&mut self, ask: &SpaceAsk) -> SpaceAnswer {
        if let Some((number, answer)) = &self.last {
            assert!(*number <= ask.number);
            if *number == ask.number {
                return answer.clone();
            }
        }
        for run in &ask.back {
            for sector in run.at.sector..run.at.sector + u64::from(run.count) {
                assert!(self.granted.remove(&sector), "given back once");
            }
        }
        let free: Vec<u64> = (0..SIZE).filter(|s| !self.granted.contains(s)).collect();
        let count = usize::try_from(ask.want).expect("small").min(free.len());
        let mut answer = SpaceAnswer {
            number: ask.number,
            promised: ask.promised,
            ..SpaceAnswer::default()
        };
        for sector in &free[..count] {
            self.granted.insert(*sector);
            answer.grants.push(Grant {
                id: GrantId(0),
                run: run(*sector, 1),
                mac: 0,
            });
        }
        if ask.list {
            answer.held = Some(self.granted.iter().map(|s| run(*s, 1)).collect());
        }
        self.last = Some((ask.number, answer.clone()));
        answer
    }
}

fn at(ms: u64) -> Instant {
    Instant(0) + Duration::from_millis(ms)
}

fn serve(hand: &mut Hand, owner: &mut Owner, now: Instant) -> Option<bool> {
    let ask = hand.next(now)?;
    assert!(hand.next(now).is_none(), "one question at a time");
    let answer = owner.on_ask(&ask);
    let done = hand.on_answer(now, &answer);
    assert!(done.is_some());
    assert!(hand.on_answer(now, &answer).is_none(), "a repeat");
    hand.check();
    done
}

fn use_up(hand: &mut Hand, now: Instant, sectors: u32) -> Vec<Run> {
    let order = [NsdId(1)];
    let needed = (sectors.into(), false);
    let taken = hand.take(now, needed, SetAside::default(), |pool, part| {
        pool.take(part, &order, sectors)
    });
    let taken = taken.expect("in hand");
    taken.iter().map(|t| t.run).collect()
}

#[test]
fn the_reserve_follows_use_and_goes_back_when_idle() {
    let (mut hand, mut owner) = (Hand::new(), Owner::default());
    assert!(hand.next(at(0)).is_none(), "who does not write has nothing");
    assert!(hand.reserve(10).is_err());
    hand.want(10);
    assert_eq!(serve(&mut hand, &mut owner, at(10)), Some(true));
    assert_eq!(hand.pool().unreserved(), 10 + BEGIN);
    let mut now = 20;
    for run in use_up(&mut hand, at(now), 10) {
        hand.committed(run);
        for sector in run.at.sector..run.at.sector + u64::from(run.count) {
            owner.granted.remove(&sector);
        }
    }
    // A little use: a little reserve.
    while now < 5000 {
        now += 20;
        hand.last_use = hand.last_use.max(Some(at(now - 1)));
        serve(&mut hand, &mut owner, at(now));
    }
    assert!(hand.pool().unreserved() <= 2 * AHEAD_MIN + SURPLUS_MIN);
    assert!(hand.pool().unreserved() > 0);
    while now < 12_000 {
        now += 20;
        serve(&mut hand, &mut owner, at(now));
    }
    assert_eq!(hand.pool().unreserved(), 0);
    assert!(owner.granted.is_empty(), "{:?}", owner.granted.len());
}

#[test]
fn a_recall_takes_all_that_is_not_reserved() {
    let (mut hand, mut owner) = (Hand::new(), Owner::default());
    hand.want(100);
    serve(&mut hand, &mut owner, at(1));
    hand.reserve(100).expect("in hand");
    hand.on_recall(at(2), 7);
    let ask = hand.next(at(2)).expect("a recall is answered at once");
    assert_eq!(ask.recall, 7);
    assert_eq!(ask.want, 0);
    let back: u64 = ask.back.iter().map(|r| u64::from(r.count)).sum();
    assert_eq!(back, BEGIN - 100 / 17);
    let answer = owner.on_ask(&ask);
    hand.on_answer(at(2), &answer);
    assert!(hand.next(at(500)).is_none(), "no more ahead of need");
    // A need is asked for all the same.
    hand.want(50);
    assert_eq!(hand.next(at(500)).expect("needed").want, 50);
}

#[test]
fn spent_and_burnt_sectors_go_back_when_their_writes_have_ended() {
    let (mut hand, mut owner) = (Hand::new(), Owner::default());
    hand.want(40);
    serve(&mut hand, &mut owner, at(1));
    let runs = use_up(&mut hand, at(1), 8);
    hand.discard(runs[0]);
    let ask = hand.next(at(2)).expect("spent sectors are given back");
    assert_eq!(ask.back, runs);
    // The answer is lost with the owner's process, after it was executed.
    owner.on_ask(&ask);
    let answer = owner.on_ask(&ask);
    assert_eq!(hand.on_answer(at(3), &answer), Some(true));
    let runs = use_up(&mut hand, at(4), 8);
    hand.burn(runs[0]);
    assert!(hand.next(at(5)).is_none_or(|ask| ask.back.is_empty()));
    let mut answer = owner.last.clone().expect("asked").1;
    answer.number = u64::MAX;
    assert!(hand.on_answer(at(5), &answer).is_none());
    hand.on_refused(at(5));
    hand.ended(|run| run.at.nsd == NsdId(2));
    assert_eq!(hand.pool().counts().burnt, 8);
    hand.ended(|run| run.at.nsd == NsdId(1));
    assert_eq!(hand.next(at(200)).expect("ended").back, runs);
}

#[test]
fn who_was_refused_does_not_ask_again_at_once() {
    let (mut hand, mut owner) = (Hand::new(), Owner::default());
    hand.want(40);
    serve(&mut hand, &mut owner, at(1));
    let runs = use_up(&mut hand, at(1), 8);
    hand.discard(runs[0]);
    let ask = hand.next(at(2)).expect("spent sectors are given back");
    hand.on_refused(at(3));
    // The driver asks for the next question as soon as it has the answer to one: it would never do anything else.
    assert_eq!(hand.next(at(3)), None);
    assert_eq!(hand.next(at(102)), None);
    assert_eq!(hand.next(at(103)).expect("it is time").back, ask.back);
}

#[test]
fn a_grant_whose_answer_was_lost_is_found_again() {
    let (mut hand, mut owner) = (Hand::new(), Owner::default());
    hand.want(40);
    serve(&mut hand, &mut owner, at(1));
    hand.want(30_000);
    let ask = hand.next(at(2)).expect("needed");
    owner.on_ask(&ask);
    // A new process of the owner: it does not know the question any more and grants again.
    owner.last = None;
    hand.on_owner_restarted();
    let mut again = ask.clone();
    again.want = 1000;
    let answer = owner.on_ask(&again);
    hand.on_answer(at(3), &answer);
    let in_hand = hand.pool().counts().free;
    assert!(u64::try_from(owner.granted.len()).expect("small") > in_hand);
    for ms in 4..10 {
        serve(&mut hand, &mut owner, at(ms));
    }
    let counts = hand.pool().counts();
    assert_eq!(counts.spent, 0);
    assert_eq!(
        u64::try_from(owner.granted.len()).expect("small"),
        counts.free
    );
}

#[test]
fn a_wish_makes_nobody_give_anything_back_and_ends_by_itself() {
    let (mut hand, mut owner) = (Hand::new(), Owner::default());
    hand.wish(1);
    let ask = hand.next(at(1)).expect("asked for");
    assert_eq!(ask.need, 0, "an owner gathers for a need only");
    assert!(ask.want > 0);
    let answer = owner.on_ask(&ask);
    assert_eq!(hand.on_answer(at(1), &answer), Some(true));
    assert!(hand.pool().unreserved() > 0);
    // There are enough: nothing to ask, and nothing that keeps them.
    hand.wish(1);
    let mut now = 1;
    while now < 12_000 {
        now += 20;
        serve(&mut hand, &mut owner, at(now));
    }
    assert_eq!(hand.pool().unreserved(), 0);
    assert!(owner.granted.is_empty());
    // The owner has none: it is asked once a second at the most.
    owner.granted = (0..SIZE).collect();
    let mut asks = 0;
    while now < 15_000 {
        now += 20;
        hand.wish(1);
        asks += u64::from(serve(&mut hand, &mut owner, at(now)).is_some());
    }
    assert!((2..=4).contains(&asks), "{asks}");
}

/// Who wishes looks every 20 ms; the hand is asked for its next question far more often. It gave what came back as surplus before he looked.
#[test]
fn what_was_wished_for_is_there_when_it_is_looked_for() {
    let has_it = |hand: &mut Hand| match hand.reserve(2048) {
        Ok(()) => true,
        Err(more) => {
            let unreserved = hand.pool().unreserved();
            hand.wish(unreserved + more.sectors);
            false
        }
    };
    for in_hand in [0, 300, 1000] {
        let (mut hand, mut owner) = (Hand::new(), Owner::default());
        if in_hand > 0 {
            hand.wish(in_hand);
            serve(&mut hand, &mut owner, at(1));
        }
        let looks = (1..=3).find(|look| {
            let found = has_it(&mut hand);
            for ms in 0..20 {
                serve(&mut hand, &mut owner, at(look * 20 + ms));
            }
            found
        });
        assert!(looks.is_some(), "{in_hand} in hand");
        assert!(hand.pool().unreserved() < 2048, "no more than that");
        hand.unreserve(SetAside::plain(2048));
        // It stays for a moment, and for no recall.
        serve(&mut hand, &mut owner, at(100));
        assert!(hand.pool().unreserved() >= 2048);
        let mut recalled = at(101);
        if in_hand == 0 {
            recalled = at(20_000);
        } else {
            hand.on_recall(recalled, 7);
        }
        serve(&mut hand, &mut owner, recalled);
        assert_eq!(hand.pool().unreserved(), 0);
    }
}

#[test]
fn what_is_for_promised_ranges_is_for_these_alone_and_goes_back_soon() {
    let (mut hand, mut owner) = (Hand::new(), Owner::default());
    assert!(!hand.reserve_promised(40));
    let ask = hand.next(at(1)).expect("asked for");
    assert_eq!((ask.need, ask.promised), (0, 40));
    // The owner has these and no others.
    let mut answer = owner.on_ask(&SpaceAsk {
        want: 40,
        ..ask.clone()
    });
    answer.promised = 40;
    assert_eq!(hand.on_answer(at(2), &answer), Some(true));
    assert!(hand.reserve(1).is_err(), "they are for promised ranges");
    assert_eq!(
        (hand.pool().unreserved(), hand.pool().unreserved_promised()),
        (0, 40)
    );
    assert!(hand.reserve_promised(30));
    // Without room for checksum sectors: in runs that need none.
    let part = SetAside {
        plain: 0,
        promised: 30,
    };
    let order = [NsdId(1)];
    let taken = hand.take(at(5), (30, true), part, |pool, part| {
        pool.take(part, &order, 30)
    });
    let taken = taken.expect("set aside");
    assert!(taken.iter().all(|t| t.run.count == t.data && t.data <= 16));
    assert_eq!(hand.pool().counts().promised, 10);
    hand.check();
    // Nobody uses the rest.
    let later = at(5) + SHORT + SHORT;
    let ask = hand.next(later).expect("they go back");
    assert_eq!(ask.back.iter().map(|run| run.count).sum::<u32>(), 10);
    assert_eq!(hand.pool().counts().promised, 0);
    hand.check();
}

/// Two nodes have 20 sectors each for promised ranges, and each of them waits for 30: one gets them, then the other.
#[test]
fn who_waits_for_sectors_for_promised_ranges_keeps_none_from_others() {
    let (mut hands, mut owner) = ([Hand::new(), Hand::new()], Owner::default());
    owner.granted = (40..SIZE).collect();
    let ask = |hand: &mut Hand, owner: &mut Owner, now: Instant| {
        let ask = hand.next(now).expect("asked for");
        // Each is another life.
        owner.last = None;
        let free = SIZE - owner.granted.len() as u64;
        let back: u64 = ask.back.iter().map(|run| u64::from(run.count)).sum();
        // All of them or none.
        let want = match ask.promised <= free + back {
            true => ask.promised,
            false => 0,
        };
        let mut answer = owner.on_ask(&SpaceAsk {
            want,
            ..ask.clone()
        });
        answer.promised = want;
        hand.on_answer(now, &answer)
    };
    for hand in &mut hands {
        assert!(!hand.reserve_promised(20));
        assert_eq!(ask(hand, &mut owner, at(1)), Some(true));
        assert_eq!(hand.pool().unreserved_promised(), 20);
        // It is said again although they have come: these do not go back for it.
        hand.want_promised(20);
        assert_eq!(hand.next(at(1)), None);
    }
    for hand in &mut hands {
        assert!(!hand.reserve_promised(30));
    }
    let asked = hands.each_mut().map(|hand| ask(hand, &mut owner, at(2)));
    assert_eq!(asked, [Some(false), Some(true)]);
    assert!(hands[1].reserve_promised(30));
    assert!(!hands[0].reserve_promised(30));
    hands.iter().for_each(Hand::check);
}

/// What waits for sectors for promised ranges says so while a question is under way, and finds others: with the answer, or
/// given back by others. Then none are asked for.
#[test]
fn a_need_of_promised_sectors_is_over_when_others_are_there() {
    let (mut hand, mut owner) = (Hand::new(), Owner::default());
    hand.want(10);
    let ask = hand.next(at(1)).expect("asked for");
    assert!(!hand.reserve_promised(50));
    let answer = owner.on_ask(&SpaceAsk {
        want: 52,
        ..ask.clone()
    });
    assert_eq!(hand.on_answer(at(2), &answer), Some(true));
    let promised = |hand: &mut Hand| hand.next(at(3)).map_or(0, |ask| ask.promised);
    assert_eq!(promised(&mut hand), 0, "they are in hand");
    let mut hand = Hand::new();
    assert!(!hand.reserve_promised(50));
    hand.found_promised(50);
    assert_eq!(promised(&mut hand), 0, "it has them");
    assert!(!hand.reserve_promised(50) && !hand.reserve_promised(3));
    hand.found_promised(3);
    assert_eq!(promised(&mut hand), 50, "another does not");
}

/// A large write into a promised range waits, and small ones too: where there are too few sectors for the large one, the
/// smallest are asked for, and after that the large one has its turn again.
#[test]
fn small_wants_of_promised_sectors_are_not_starved_by_a_large_one() {
    let (mut hand, mut owner) = (Hand::new(), Owner::default());
    let mut asked = Vec::new();
    for ms in 0..4 {
        for sectors in [30, 257, 4] {
            assert!(!hand.reserve_promised(sectors));
        }
        let ask = hand.next(at(ms)).expect("asked for");
        asked.push(ask.promised);
        let mut answer = owner.on_ask(&SpaceAsk {
            want: 0,
            ..ask.clone()
        });
        answer.promised = 0;
        assert_eq!(hand.on_answer(at(ms), &answer), Some(false));
    }
    assert_eq!(asked, [257, 4, 257, 4]);
}

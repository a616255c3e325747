//! Stores whose outcome is unknown: what of them may still be written is burnt, and the rest goes back. And who hears of a lack, and when.

use super::*;
use data::SpaceAnswer;
use types::{Duration, Grant, GrantId, InodeId, Location};

const OWNER: NodeId = NodeId(3);
/// It has no sectors.
const NONE: SpaceNews = SpaceNews::None(Errno::ENOSPC);

fn with_sectors(count: u32) -> Hands {
    let nsds = [NsdId(1), NsdId(2)];
    let mut hands = Hands::new(&nsds, 1 << 20);
    assert!(!hands.reserve(OWNER, 1));
    let ask = hands.next(Instant(1), OWNER).expect("some are needed");
    let grant = |nsd| Grant {
        id: GrantId(1),
        run: Run {
            at: Location { nsd, sector: 0 },
            count,
        },
        mac: 0,
    };
    let answer = SpaceAnswer {
        number: ask.number,
        grants: nsds.map(grant).to_vec(),
        promised: 0,
        held: None,
    };
    let answer = Answer::bare(Body::Space(answer));
    assert_eq!(
        hands.on_answer(Instant(2), OWNER, &answer),
        Some(SpaceNews::There)
    );
    assert_eq!(
        hands.on_answer(Instant(2), OWNER, &answer),
        None,
        "a repeat"
    );
    hands
}

fn wanted(file_sector: u64, count: u32) -> WantedRun {
    WantedRun {
        ino: InodeId::ROOT,
        layout: Layout::default(),
        file_sector,
        count,
        is_promised: false,
    }
}

#[test]
fn of_a_failed_store_only_what_may_still_be_written_is_burnt() {
    let mut hands = with_sectors(100);
    let wanted = [wanted(0, 8), wanted(20, 4)];
    let taken = hands
        .take(Instant(3), OWNER, &wanted, SetAside::default())
        .expect("in hand");
    let runs: Vec<Run> = taken.iter().map(|t| t.run).collect();
    assert_eq!(runs.len(), 2);
    hands.in_doubt(runs[0]);
    hands.burn(OWNER, &runs);
    hands.check();
    let counts = hands.of(OWNER).pool().counts();
    assert_eq!((counts.burnt, counts.spent), (8, 4));
    // The server's process has ended: so has its write.
    hands.server_ended(&[runs[0].at.nsd]);
    let counts = hands.of(OWNER).pool().counts();
    assert_eq!((counts.burnt, counts.spent), (0, 12));
    let ask = hands.next(Instant(4), OWNER).expect("they go back");
    assert_eq!(ask.back.iter().map(|r| r.count).sum::<u32>(), 12);
    // Refused: they go back with the next question.
    let refused = Answer::bare(Body::Refused(Errno::EIO));
    assert_eq!(
        hands.on_answer(Instant(5), OWNER, &refused),
        Some(SpaceNews::None(Errno::EIO))
    );
    assert_eq!(hands.next(Instant(6), OWNER), None, "not at once");
    let later = Instant(6) + Duration::from_secs(1);
    let ask = hands.next(later, OWNER).expect("again");
    assert_eq!(ask.back.iter().map(|r| r.count).sum::<u32>(), 12);
    assert!(
        ask.list,
        "the owner may have had them, and have granted them anew"
    );
}

#[test]
fn spare_sectors_are_wished_for_and_not_needed() {
    let mut hands = with_sectors(10);
    assert!(hands.reserve_spare(OWNER, 15));
    assert!(!hands.reserve_spare(OWNER, 15));
    assert_eq!(
        hands.next(Instant(7), OWNER),
        None,
        "it had few a moment ago"
    );
    assert!(!hands.reserve_spare(OWNER, 15));
    let later = Instant(7) + Duration::from_secs(2);
    let ask = hands.next(later, OWNER).expect("wished for");
    assert_eq!(ask.need, 0);
    assert!(ask.want >= 15);
    hands.unreserve(OWNER, SetAside::plain(15));
    assert_eq!(hands.reserved(), 0);
    assert_eq!(hands.unreserved(), 20);
}

/// What is in hand and too little counts: 20 sectors, of 30 that are wished for.
#[test]
fn a_wish_for_more_than_is_in_hand_is_asked_for() {
    let mut hands = with_sectors(10);
    assert_eq!(hands.unreserved(), 20);
    assert!(!hands.reserve_spare(OWNER, 30));
    let later = Instant(7) + Duration::from_secs(2);
    let ask = hands.next(later, OWNER).expect("wished for");
    assert_eq!(ask.need, 0);
    assert!(ask.want >= 30, "{ask:?}");
}

/// What is written over goes where there is room, when the NSDs of its layout are full. What is only moved stays on them.
#[test]
fn spare_sectors_lie_where_the_layout_wants_them() {
    let mut hands = with_sectors(100);
    let layout = Layout::new(&[NsdId(1)], None).expect("one NSD");
    let of_one = |count| WantedRun {
        layout,
        ..wanted(0, count)
    };
    let take_spare = |hands: &mut Hands, count| {
        assert!(hands.reserve_spare(OWNER, count));
        let wanted = [of_one(u32::try_from(count).expect("few"))];
        let taken = hands.take_spare(Instant(3), OWNER, &wanted, SetAside::plain(count));
        assert_eq!(hands.reserved(), 0);
        hands.check();
        taken
    };
    let taken = take_spare(&mut hands, 60).expect("there is room");
    assert!(taken.iter().all(|run| run.run.at.nsd == NsdId(1)));
    let left = hands.unreserved();
    assert_eq!(take_spare(&mut hands, 60), None);
    assert_eq!(hands.unreserved(), left, "nothing was taken");
    // The owner has nothing there either.
    let later = Instant(7) + Duration::from_secs(2);
    let ask = hands.next(later, OWNER).expect("wished for");
    assert_eq!((ask.need, &ask.nsds[..]), (0, &[NsdId(1)][..]));
    let answer = SpaceAnswer {
        number: ask.number,
        grants: Vec::new(),
        promised: 0,
        held: None,
    };
    let answer = Answer::bare(Body::Space(answer));
    assert_eq!(
        hands.on_answer(later, OWNER, &answer),
        Some(SpaceNews::There)
    );
    assert_eq!(take_spare(&mut hands, 60), None);
    let elsewhere = hands.take(Instant(4), OWNER, &[of_one(60)], SetAside::default());
    let elsewhere = elsewhere.expect("a write finds room");
    assert!(elsewhere.iter().any(|run| run.run.at.nsd == NsdId(2)));
}

/// The owner's answer to the question under way: so many sectors of the first NSD, from this one on.
fn answer(
    hands: &mut Hands,
    at: u64,
    number: u64,
    (sector, count): (u64, u32),
) -> Option<SpaceNews> {
    let grant = Grant {
        id: GrantId(2),
        run: Run {
            at: Location {
                nsd: NsdId(1),
                sector,
            },
            count,
        },
        mac: 0,
    };
    let answer = SpaceAnswer {
        number,
        grants: vec![grant; usize::from(count > 0)],
        promised: 0,
        held: None,
    };
    let answer = Answer::bare(Body::Space(answer));
    hands.on_answer(Instant(at), OWNER, &answer)
}

/// Hands of which work that nobody waits for has taken eight sectors, and a write wants more than there are.
fn short_beside_a_rewrite() -> (Hands, Vec<Run>, u64) {
    let mut hands = with_sectors(20);
    assert!(hands.reserve_spare(OWNER, 8));
    let wanted = [wanted(0, 8)];
    let taken = hands.take_spare(Instant(3), OWNER, &wanted, SetAside::plain(8));
    let runs: Vec<Run> = taken.expect("in hand").iter().map(|t| t.run).collect();
    assert!(!hands.reserve(OWNER, 40));
    let ask = hands.next(Instant(4), OWNER).expect("they are needed");
    assert_eq!(answer(&mut hands, 5, ask.number, (0, 0)), Some(NONE));
    (hands, runs, ask.number)
}

/// Who is busy, or not the owner any more, has said nothing of sectors.
#[test]
fn a_refusal_is_no_lack_unless_it_says_so() {
    for (errno, news) in [
        (Errno::EAGAIN, SpaceNews::Unknown),
        (Errno::ESTALE, SpaceNews::Unknown),
        (Errno::ENOSPC, NONE),
        (Errno::EIO, SpaceNews::None(Errno::EIO)),
    ] {
        let mut hands = Hands::new(&[NsdId(1)], 1 << 20);
        assert!(!hands.reserve(OWNER, 1));
        hands.next(Instant(1), OWNER).expect("one is needed");
        let refused = Answer::bare(Body::Refused(errno));
        assert_eq!(hands.on_answer(Instant(2), OWNER, &refused), Some(news));
        // Who waits asks for it again; the question of before is over.
        assert!(!hands.reserve(OWNER, 1));
        let later = Instant(3) + Duration::from_secs(1);
        assert!(hands.next(later, OWNER).is_some_and(|ask| ask.need > 0));
    }
}

/// He asks again, and hears that there are none when these have gone back to the owner and it has no others.
#[test]
fn nobody_hears_of_a_lack_while_a_rewrite_has_sectors() {
    let (mut hands, runs, number) = short_beside_a_rewrite();
    assert!(hands.is_worth_waiting(Instant(5), OWNER), "being stored");
    assert!(!hands.reserve(OWNER, 40));
    let soon = Instant(5) + Duration::from_millis(20);
    assert_eq!(hands.next(Instant(6), OWNER), None, "not in a circle");
    hands.discard(OWNER, &runs);
    assert!(hands.is_worth_waiting(Instant(7), OWNER), "on its way back");
    let ask = hands.next(soon, OWNER).expect("they are still needed");
    assert_eq!((ask.number, &ask.back), (number + 1, &runs));
    assert_eq!(answer(&mut hands, 8, ask.number, (0, 0)), Some(NONE));
    assert!(!hands.is_worth_waiting(Instant(8), OWNER));
}

/// What it has stored is the file's: there is nothing to wait for.
#[test]
fn a_rewrite_that_has_ended_holds_nobody_up() {
    let (mut hands, runs, _) = short_beside_a_rewrite();
    hands.committed(OWNER, &runs);
    assert!(!hands.is_worth_waiting(Instant(6), OWNER));
    hands.check();

    let (mut hands, runs, _) = short_beside_a_rewrite();
    hands.in_doubt(runs[0]);
    hands.burn(OWNER, &runs);
    assert!(!hands.is_worth_waiting(Instant(6), OWNER));
    hands.check();
}

/// A disk does not answer: a clear error is better.
#[test]
fn a_lack_is_heard_of_in_time_whatever_a_rewrite_does() {
    let (mut hands, _, _) = short_beside_a_rewrite();
    assert!(hands.is_worth_waiting(Instant(5), OWNER));
    let late = Instant(5) + Duration::from_secs(3);
    assert!(!hands.is_worth_waiting(late, OWNER));
    let later = late + Duration::from_secs(30);
    assert!(!hands.is_worth_waiting(later, OWNER), "nor the next one");
}

/// Hears that there are too few for `need`, `returning` being on their way back.
fn scarce(hands: &mut Hands, at: Instant, need: u64, returning: u64) -> bool {
    assert!(!hands.reserve(OWNER, need));
    let number = hands.next(at, OWNER).expect("some are needed").number;
    assert_eq!(answer(hands, at.0, number, (0, 0)), Some(NONE));
    hands.begin_scarce(OWNER);
    for part in [returning, 0] {
        hands.note_returning(OWNER, part);
    }
    hands.is_worth_waiting(at, OWNER)
}

/// Small files have a sector each until their bytes are in metadata: who finds none waits for those, as long as some come, and not for
/// ever where none do.
#[test]
fn what_comes_back_with_commits_is_waited_for() {
    let mut hands = Hands::new(&[NsdId(1)], 1 << 20);
    let at = |seconds| Instant(1) + Duration::from_secs(seconds);
    assert!(!scarce(&mut hands, at(0), 8, 0));
    assert!(!scarce(&mut hands, at(1), 8, 7), "that would not do");
    assert!(scarce(&mut hands, at(2), 8, 8));
    assert!(
        scarce(&mut hands, at(15), 8, 8),
        "a Commit may wait for checkpoints"
    );
    assert!(!scarce(&mut hands, at(23), 8, 8), "but not for ever");
    // Some are back; not with bytes that have gone to sectors.
    hands.committed(OWNER, &[]);
    assert!(scarce(&mut hands, at(30), 8, 8));
    assert!(scarce(&mut hands, at(49), 8, 8));
    assert!(!scarce(&mut hands, at(51), 8, 8));
    // When all are back there is nothing to wait for.
    hands.committed(OWNER, &[]);
    assert!(!scarce(&mut hands, at(52), 8, 0));
    assert!(scarce(&mut hands, at(53), 1, 1), "another wait");
}

/// A recall is answered when something is back, or soon, and at once by who needs some himself.
#[test]
fn what_comes_back_holds_up_a_recall_for_a_moment() {
    let at = |seconds| Instant(1) + Duration::from_secs(seconds);
    for has_need in [false, true] {
        let mut hands = Hands::new(&[NsdId(1)], 1 << 20);
        hands.begin_scarce(OWNER);
        hands.note_returning(OWNER, 5);
        hands.of(OWNER).on_recall(at(1), 9);
        if has_need {
            assert!(!hands.reserve(OWNER, 8));
        } else {
            for seconds in [1, 2] {
                assert_eq!(hands.next(at(seconds), OWNER), None);
                hands.committed(OWNER, &[]);
            }
        }
        let ask = hands.next(at(4), OWNER).expect("it is answered");
        assert_eq!((ask.recall, ask.need > 0), (9, has_need));
    }
}

/// The same with nothing else in hand.
fn empty_beside_a_rewrite() -> (Hands, Vec<Run>) {
    let (mut hands, runs, _) = short_beside_a_rewrite();
    let rest = hands.of(OWNER).pool().reservable();
    assert!(hands.reserve(OWNER, rest));
    (hands, runs)
}

/// The owner wants back what lies unused, for another node: what is being stored here comes with it.
#[test]
fn a_recall_is_answered_when_a_rewrite_has_ended() {
    let (mut hands, runs) = empty_beside_a_rewrite();
    hands.of(OWNER).on_recall(Instant(6), 9);
    assert_eq!(hands.next(Instant(7), OWNER), None);
    hands.discard(OWNER, &runs);
    let ask = hands.next(Instant(8), OWNER).expect("the recall");
    assert_eq!(ask.recall, 9);
    assert!(runs.iter().all(|run| ask.back.contains(run)), "{ask:?}");

    let (mut hands, _) = empty_beside_a_rewrite();
    hands.of(OWNER).on_recall(Instant(6), 9);
    assert_eq!(hands.next(Instant(7), OWNER), None);
    let late = Instant(7) + Duration::from_secs(3);
    assert_eq!(hands.next(late, OWNER).expect("the recall").recall, 9);
}

/// There are some that nobody uses: they may be enough.
#[test]
fn a_recall_is_not_held_up_where_something_lies_unused() {
    let (mut hands, _, _) = short_beside_a_rewrite();
    hands.of(OWNER).on_recall(Instant(6), 9);
    let ask = hands.next(Instant(7), OWNER).expect("the recall");
    assert_eq!(ask.recall, 9);
    assert_eq!(ask.back.iter().map(|run| run.count).sum::<u32>(), 32);

    let (mut hands, _) = empty_beside_a_rewrite();
    let of_a_write = [wanted(8, 4)];
    let reserved = SetAside::plain(4);
    let taken = hands.take(Instant(5), OWNER, &of_a_write, reserved);
    let runs: Vec<Run> = taken.expect("reserved").iter().map(|t| t.run).collect();
    hands.discard(OWNER, &runs);
    hands.of(OWNER).on_recall(Instant(6), 9);
    let ask = hands.next(Instant(7), OWNER).expect("spent ones go back");
    assert_eq!((ask.recall, ask.back), (9, runs));
}

/// The owner gathers in rounds: all of them are held up once, not each.
#[test]
fn recalls_that_follow_one_another_are_held_up_once() {
    let (mut hands, _) = empty_beside_a_rewrite();
    let mut held_up = 0;
    let mut now = Instant(10);
    for recall in 9..12 {
        hands.of(OWNER).on_recall(now, recall);
        let ask = loop {
            match hands.next(now, OWNER) {
                Some(ask) => break ask,
                None => held_up += 1,
            }
            now = now + Duration::from_millis(100);
        };
        assert_eq!(ask.recall, recall);
        let there = answer(&mut hands, now.0, ask.number, (0, 0));
        assert_eq!(there, Some(SpaceNews::There), "nobody needed any");
    }
    assert_eq!(held_up, 21, "two seconds");
    // Much later it is another one.
    now = now + Duration::from_secs(100);
    hands.of(OWNER).on_recall(now, 12);
    assert_eq!(hands.next(now, OWNER), None);
}

/// Nothing that can wait is begun while somebody is away, and what somebody waits for is.
#[test]
fn nothing_is_spare_while_a_node_is_away() {
    let mut hands = with_sectors(10);
    let server = NodeId(OWNER.0 + 1);
    hands.set_away(server, true);
    assert!(!hands.reserve_spare(OWNER, 1), "it may have the sectors");
    hands.set_away(OWNER, true);
    hands.set_away(server, false);
    assert!(!hands.reserve_spare(OWNER, 1));
    assert!(hands.reserve(OWNER, 1));
    assert_eq!(hands.away().collect::<Vec<_>>(), [OWNER]);
    hands.set_away(OWNER, false);
    assert!(hands.reserve_spare(OWNER, 1));
    assert_eq!(hands.away().count(), 0);
}

/// What an NSD has refused is not put there again for a while, whatever sectors are in hand; but for want of others.
#[test]
fn what_an_nsd_refuses_goes_to_others() {
    let mut hands = with_sectors(40_000);
    let nsds = |hands: &mut Hands, now, layout: Layout| -> Vec<u16> {
        let all = (0..20).map(|block| WantedRun {
            layout,
            ..wanted(block * 256, 256)
        });
        let all: Vec<WantedRun> = all.collect();
        let taken = hands.take(Instant(now), OWNER, &all, SetAside::default());
        let mut nsds: Vec<u16> = taken
            .expect("in hand")
            .iter()
            .map(|t| t.run.at.nsd.0)
            .collect();
        nsds.sort_unstable();
        nsds.dedup();
        nsds
    };
    let second = Layout::new(&[NsdId(2)], None).expect("a layout");
    let any = Layout::default();
    assert_eq!(nsds(&mut hands, 3, any), [1, 2]);
    assert_eq!(nsds(&mut hands, 3, second), [2]);
    let pause = hands
        .note_refusing(Instant(4), NsdId(2))
        .expect("it begins");
    assert_eq!(nsds(&mut hands, 5, any), [1]);
    assert_eq!(nsds(&mut hands, 5, second), [1]);
    // A layout that names none of those is as ever: where it is short it is wished for, and others are not made to give some.
    let layout = Layout::new(&[NsdId(1)], None).expect("a layout");
    let more = WantedRun {
        layout,
        ..wanted(0, 100_000)
    };
    assert_eq!(
        hands.take(Instant(5), OWNER, &[more], SetAside::default()),
        None
    );
    let ask = hands.next(Instant(5), OWNER).expect("some are wished for");
    assert_eq!((ask.need, &ask.nsds[..]), (0, &[NsdId(1)][..]));
    // Both: one is as good as the other.
    hands.note_refusing(Instant(5), NsdId(1));
    assert_eq!(nsds(&mut hands, 6, any), [1, 2]);
    let later = 6 + pause.0;
    assert_eq!(nsds(&mut hands, later, any), [1, 2]);
    assert_eq!(nsds(&mut hands, later, second), [2]);
}

/// Few are in hand on the others: the owner is asked for some there, and where it has none the bytes go where they can.
#[test]
fn where_others_are_short_the_owner_is_asked_for_some_there() {
    let mut hands = with_sectors(1000);
    hands.note_refusing(Instant(4), NsdId(2));
    let all = [
        wanted(0, 256),
        wanted(256, 256),
        wanted(512, 256),
        wanted(768, 256),
    ];
    let take = |hands: &mut Hands, now| hands.take(Instant(now), OWNER, &all, SetAside::default());
    assert_eq!(take(&mut hands, 5), None);
    let ask = hands
        .next(Instant(6), OWNER)
        .expect("some are needed there");
    assert_eq!(ask.nsds, [NsdId(1)]);
    let answer = SpaceAnswer {
        number: ask.number,
        ..SpaceAnswer::default()
    };
    let answer = Answer::bare(Body::Space(answer));
    hands
        .on_answer(Instant(7), OWNER, &answer)
        .expect("an answer");
    let taken = take(&mut hands, 8).expect("anywhere");
    assert!(taken.iter().any(|t| t.run.at.nsd == NsdId(2)), "{taken:?}");
    // It was refused there once more: the next try comes half a second later, and something may have been freed meanwhile.
    let later = 8 + 500_000_000;
    assert_eq!(take(&mut hands, later), None);
    let ask = hands.next(Instant(later), OWNER).expect("once more");
    assert_eq!(ask.nsds, [NsdId(1)]);
    let grant = Grant {
        id: GrantId(2),
        run: Run {
            at: Location {
                nsd: NsdId(1),
                sector: 5000,
            },
            count: 2000,
        },
        mac: 0,
    };
    let answer = SpaceAnswer {
        number: ask.number,
        grants: vec![grant],
        ..SpaceAnswer::default()
    };
    let answer = Answer::bare(Body::Space(answer));
    hands
        .on_answer(Instant(later), OWNER, &answer)
        .expect("an answer");
    let taken = take(&mut hands, later + 1).expect("in hand");
    assert!(taken.iter().all(|t| t.run.at.nsd == NsdId(1)), "{taken:?}");
}

//! Rounds of gathering that several questions share.

use types::{Incarnation, ShardId};

use super::*;

fn life(node: u16) -> NodeLife {
    NodeLife {
        node: NodeId(node),
        incarnation: Incarnation(u128::from(node)),
    }
}

fn question(node: u16, space_round: u32) -> Box<Question> {
    let ask = SpaceAsk {
        number: 1,
        need: 1,
        ..SpaceAsk::default()
    };
    let asker = (life(node), 1);
    let work = crate::calls::question(Instant(1), asker, None, ShardId(0), Ask::Space(ask));
    let Work::Question(mut question) = work else {
        panic!("{work:?}");
    };
    question.space_round = space_round;
    question
}

/// Who is recalled, and the questions that run again with what was gathered for them.
fn parts(out: Vec<GatherEffect>) -> (Vec<NodeLife>, u64, Vec<Question>) {
    let (mut recalled, mut round, mut run) = (Vec::new(), 0, Vec::new());
    for effect in out {
        match effect {
            GatherEffect::Recall(life, id) => {
                recalled.push(life);
                round = id;
            }
            GatherEffect::Regions(id, _) => round = id,
            GatherEffect::Run(question) => run.push(*question),
            GatherEffect::Give(name) => panic!("nobody wants regions: {name}"),
            GatherEffect::Pages => panic!("no pages are short"),
        }
    }
    (recalled, round, run)
}

/// Two are short at once. What the first one has in hand is not recalled for itself, but for the second one, before
/// that hears that there is nothing.
#[test]
fn who_joins_a_round_gets_one_that_recalls_from_the_first_asker_too() {
    let clients = [life(1), life(2), life(3)];
    let mut gather = Gather::default();
    let mut out = Vec::new();
    gather.begin(Instant(1), question(1, 1), &clients, &mut out);
    let (recalled, round, _) = parts(std::mem::take(&mut out));
    assert_eq!(recalled, [life(2), life(3)]);
    gather.begin(Instant(2), question(2, 1), &clients, &mut out);
    gather.on_recalled(life(3), round, &mut out);
    gather.on_regions(round, false, &mut out);
    let (_, _, mut run) = parts(std::mem::take(&mut out));
    let rounds: Vec<u32> = run.iter().map(|q| q.space_round).collect();
    assert_eq!(rounds, [ROUND_LAST, ROUND_JOINED]);

    let second = run.pop().expect("two ran");
    gather.begin(Instant(3), Box::new(second), &clients, &mut out);
    let (recalled, round, _) = parts(std::mem::take(&mut out));
    assert_eq!(recalled, [life(1), life(3)]);
    for from in [life(1), life(3)] {
        gather.on_recalled(from, round, &mut out);
    }
    gather.on_regions(round, false, &mut out);
    let (_, _, run) = parts(out);
    assert_eq!(run[0].space_round, ROUND_LAST);
}

/// Nobody knows whether there are regions while the owner of their table is away: that is not told as a lack.
#[test]
fn a_table_that_does_not_answer_is_no_lack() {
    let run_at = |waited: Instant, answers: bool| {
        let (mut gather, mut out) = (Gather::default(), Vec::new());
        gather.begin(Instant(1), question(1, 1), &[life(1)], &mut out);
        gather.on_tick(waited, &mut out);
        let (_, round, run) = parts(std::mem::take(&mut out));
        if answers {
            gather.on_regions(round, false, &mut out);
        }
        run.into_iter().chain(parts(out).2).next()
    };
    let soon = Instant(1) + TABLE_PATIENCE;
    let late = soon + Duration::from_secs(1);
    assert!(run_at(soon, false).is_none(), "it is waited for");
    let round = |question: Option<Question>| question.map(|q| q.space_round);
    assert_eq!(round(run_at(soon, true)), Some(ROUND_LAST));
    assert_eq!(round(run_at(late, false)), Some(ROUND_SILENT));
}

/// Rounds begun by others do not go on for ever.
#[test]
fn who_joins_twice_is_answered() {
    let clients = [life(1), life(2)];
    let mut gather = Gather::default();
    let mut second = *question(2, 0);
    for expected in [ROUND_JOINED, ROUND_LAST] {
        let mut out = Vec::new();
        gather.begin(Instant(1), question(1, 1), &clients, &mut out);
        gather.begin(Instant(1), Box::new(second), &clients, &mut out);
        let (_, round, _) = parts(std::mem::take(&mut out));
        gather.on_regions(round, false, &mut out);
        second = parts(out).2.pop().expect("it runs");
        assert_eq!((second.from, second.space_round), (life(2), expected));
    }
}

/// Everybody is asked to give back what he does not use, and nobody waits for regions of others; who is short of sectors meanwhile shares
/// the round, and has his own regions to wait for.
#[test]
fn pages_want_what_all_clients_have_in_hand() {
    let clients = [life(1), life(2)];
    let (mut gather, mut out) = (Gather::default(), Vec::new());
    assert!(gather.begin_pages(Instant(1), &clients, &mut out));
    let recalls: Vec<(NodeLife, u64)> = std::mem::take(&mut out)
        .into_iter()
        .map(|effect| match effect {
            GatherEffect::Recall(life, id) => (life, id),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(recalls.iter().map(|r| r.0).collect::<Vec<_>>(), clients);
    let round = recalls[0].1;
    assert!(gather.begin_pages(Instant(2), &clients, &mut out), "once");
    gather.on_recalled(life(1), round, &mut out);
    assert!(out.is_empty(), "{out:?}");
    gather.on_recalled(life(2), round, &mut out);
    assert!(matches!(out[..], [GatherEffect::Pages]), "{out:?}");
    out.clear();

    // One that asks for regions alone recalls nothing: pages come later.
    gather.begin(Instant(3), question(1, 0), &clients, &mut out);
    out.clear();
    assert!(!gather.begin_pages(Instant(4), &clients, &mut out));
    assert!(out.is_empty(), "{out:?}");
}

/// A question that joins what was begun for pages, or for another owner, has the table asked before it hears that there is nothing.
#[test]
fn who_joins_a_round_without_regions_has_them_asked_for() {
    for is_for_pages in [true, false] {
        let clients = [life(1), life(2)];
        let (mut gather, mut out) = (Gather::default(), Vec::new());
        match is_for_pages {
            true => _ = gather.begin_pages(Instant(1), &clients, &mut out),
            false => gather.begin_give(Instant(1), 7, &clients, &mut out),
        }
        out.clear();
        gather.begin(Instant(2), question(1, 1), &clients, &mut out);
        let [GatherEffect::Regions(round, true)] = out[..] else {
            panic!("{out:?}");
        };
        out.clear();
        gather.on_recalled(life(2), round, &mut out);
        let goes_on =
            |effect: &GatherEffect| matches!(effect, GatherEffect::Pages | GatherEffect::Give(7));
        assert!(out.len() == 1 && goes_on(&out[0]), "{out:?}");
        out.clear();
        gather.on_regions(round, true, &mut out);
        let (_, _, run) = parts(out);
        assert_eq!(run.len(), 1);
    }
}

//! Operations that wait are written down and taken away exactly once, and lines are bounded.

use client::request::{Caller, Operation};

use super::*;

const SECOND: u64 = 1_000_000_000;

fn request(number: u64) -> Request {
    Request {
        ticket: Ticket(number),
        caller: Caller::default(),
        operation: Operation::GetAttr {
            ino: InodeId::ROOT,
            handle: None,
        },
    }
}

fn slow() -> Slow {
    Slow::new(Duration(SECOND))
}

fn written(slow: &Slow) -> usize {
    slow.tables.iter().map(|table| lock(table).len()).sum()
}

fn count(slow: &Slow) -> u64 {
    slow.counts.iter().map(|n| n.load(Ordering::Relaxed)).sum()
}

#[test]
fn what_is_answered_at_once_is_not_written_down() {
    let slow = slow();
    for number in 1..100 {
        slow.begin(&request(number), 1);
        slow.answered(Ticket(number));
        slow.leave();
    }
    assert_eq!((written(&slow), count(&slow)), (0, 0));
    let off = Slow::new(Duration(0));
    off.begin(&request(1), 1);
    off.leave();
    assert_eq!(written(&off), 0);
}

#[test]
fn what_waits_is_taken_away_by_its_answer_whichever_comes_first() {
    let slow = slow();
    for number in 1..100 {
        slow.begin(&request(number), 1);
        if number % 2 == 0 {
            // Of another thread, which has its own request.
            std::thread::scope(|scope| {
                scope.spawn(|| slow.answered(Ticket(number)));
            });
            assert_eq!(written(&slow), 1);
            slow.leave();
        } else {
            // This thread answers somebody else's request meanwhile.
            slow.leave();
            assert_eq!(written(&slow), 1);
            slow.begin(&request(1000 + number), 1);
            slow.answered(Ticket(number));
            slow.answered(Ticket(1000 + number));
            slow.leave();
        }
        assert_eq!(written(&slow), 0, "{number}");
    }
    assert_eq!(count(&slow), 0);
}

#[test]
fn times_are_those_of_the_causes() {
    let slow = slow();
    let begin = clock::now();
    slow.now.store(begin.0, Ordering::Relaxed);
    let ticket = Ticket(7);
    slow.begin(&request(7), 1);
    slow.leave();
    let after = |tenths: u64| Instant(begin.0 + tenths * SECOND / 10);
    assert!(slow.old(after(4)).is_empty(), "it is young");
    assert_eq!(slow.old(after(5)).len(), 1);
    let token = Cause::of("token", NodeId(2));
    let read = Cause {
        nsd: Some(NsdId(3)),
        ..Cause::new("read")
    };
    slow.note(ticket, token, after(6));
    assert_eq!(count(&slow), 0);
    slow.note(ticket, read, after(8));
    slow.note(ticket, token, after(11));
    slow.note(ticket, token, after(12));
    assert_eq!(
        count(&slow),
        1,
        "counted once, when it crosses the threshold"
    );
    let entry = lock(slow.table(ticket)).remove(&ticket);
    let Some(Entry::Waiting(waiting)) = entry else {
        panic!("{entry:?}");
    };
    let expected = "token of node 2: 1000 ms, read of nsd 3: 200 ms";
    assert_eq!(text(&waiting.causes), expected);
    slow.end(waiting, after(13));
    assert_eq!(count(&slow), 1);
}

#[test]
fn causes_are_bounded() {
    let mut waiting = Waiting {
        begun: Begun {
            ticket: Ticket(1),
            operation: 0,
            ino: InodeId::ROOT,
            at: Instant(0),
        },
        seen: Instant(0),
        is_said: false,
        causes: Vec::new(),
    };
    for node in 1..100 {
        waiting.count(Cause::of("token", NodeId(node)), Instant(u64::from(node)));
    }
    assert_eq!(waiting.causes.len(), CAUSE_COUNT_MAX);
    let sum: u64 = waiting.causes.iter().map(|(_, time)| time.0).sum();
    assert_eq!(sum, 99);
    assert_eq!(waiting.causes[CAUSE_COUNT_MAX - 1].0.what, "other");
}

#[test]
fn tables_are_bounded() {
    let slow = slow();
    for number in 1..100_000 {
        slow.begin(&request(number), 1);
        slow.leave();
    }
    assert!(written(&slow) <= TABLE_COUNT * TABLE_COUNT_MAX);
    let now = Instant(clock::now().0 + 10 * SECOND);
    assert_eq!(slow.old(now).len(), LOOK_COUNT_MAX);
}

#[test]
fn marks_of_double_answers_do_not_stay() {
    let slow = slow();
    let begin = clock::now();
    slow.now.store(begin.0, Ordering::Relaxed);
    for number in 1..100 {
        slow.answered(Ticket(number));
    }
    slow.begin(&request(200), 1);
    slow.leave();
    assert_eq!(written(&slow), 100);
    let after = Instant(begin.0 + MARK_TIME.0 - 1);
    assert_eq!(slow.old(after).len(), 1);
    assert_eq!(written(&slow), 100);
    let after = Instant(begin.0 + MARK_TIME.0);
    assert_eq!(slow.old(after).len(), 1);
    assert_eq!(written(&slow), 1);
    assert_eq!(slow.waiting.load(Ordering::Relaxed), 1);
}

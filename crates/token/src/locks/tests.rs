//! The table against a dumb twin: a map from every byte to who has it, and waits that are tried again after every change.

use stdx::Prng;
use types::{ByteRange, Incarnation, LockMode, NodeId, ShardId};

use super::*;

const BYTE_COUNT: u64 = 12;

fn life(node: u16) -> NodeLife {
    NodeLife {
        node: NodeId(node),
        incarnation: Incarnation(u128::from(node)),
    }
}

fn ino(index: u64) -> InodeId {
    InodeId::new(ShardId(0), index)
}

fn owner(kind: LockKind, id: u64) -> LockOwner {
    LockOwner { kind, id }
}

fn lock(id: u64, mode: LockMode, range: std::ops::Range<u64>) -> Lock {
    Lock {
        owner: owner(LockKind::Posix, id),
        mode,
        range: ByteRange::new(range.start, range.end),
        pid: 7,
    }
}

/// A table, and numbers for the asks.
struct Bench {
    locks: Locks,
    number: u64,
    ready: Vec<Ready>,
    /// After every ask.
    checks: bool,
}

impl Bench {
    fn new() -> Self {
        Self {
            locks: Locks::new(),
            number: 0,
            ready: Vec::new(),
            checks: true,
        }
    }

    fn ask(&mut self, node: u16, index: u64, action: LockAction) -> LockAnswer {
        self.number += 1;
        let ask = LockAsk {
            number: self.number,
            action,
        };
        self.say(node, index, &ask)
    }

    fn say(&mut self, node: u16, index: u64, ask: &LockAsk) -> LockAnswer {
        let now = Instant(self.number);
        let answer = self
            .locks
            .on_ask(now, life(node), (ino(index), ask), &mut self.ready);
        if self.checks {
            self.locks.check();
        }
        answer
    }

    fn set(&mut self, node: u16, index: u64, lock: Lock, waits: bool) -> LockAnswer {
        self.ask(node, index, LockAction::Set { lock, waits })
    }

    fn clear(&mut self, node: u16, index: u64, owner: LockOwner) -> LockAnswer {
        let range = ByteRange::ALL;
        self.ask(node, index, LockAction::Clear { owner, range })
    }

    fn take_ready(&mut self) -> Vec<u64> {
        self.ready.drain(..).map(|ready| ready.wait).collect()
    }
}

/// What each byte of an inode is to every holder.
#[derive(Default)]
struct Twin {
    bytes: BTreeMap<(InodeId, u64), BTreeMap<Holder, LockMode>>,
}

impl Twin {
    fn conflicts(&self, at: InodeId, of: Holder, lock: &Lock) -> bool {
        (lock.range.begin..lock.range.end).any(|byte| {
            let on_byte = self.bytes.get(&(at, byte)).into_iter().flatten();
            let mut others =
                on_byte.filter(|(holder, _)| **holder != of && holder.1.kind == lock.owner.kind);
            others.any(|(_, mode)| *mode == LockMode::Write || lock.mode == LockMode::Write)
        })
    }

    fn put(&mut self, at: InodeId, of: Holder, range: ByteRange, mode: Option<LockMode>) {
        for byte in range.begin..range.end.min(BYTE_COUNT) {
            let on_byte = self.bytes.entry((at, byte)).or_default();
            match mode {
                Some(mode) => on_byte.insert(of, mode),
                None => on_byte.remove(&of),
            };
        }
    }

    fn assert_same(&self, locks: &Locks) {
        let mut seen: BTreeMap<(InodeId, u64), BTreeMap<Holder, LockMode>> = BTreeMap::new();
        for (at, life, lock) in locks.held() {
            for byte in lock.range.begin..lock.range.end.min(BYTE_COUNT) {
                let on_byte = seen.entry((at, byte)).or_default();
                assert_eq!(on_byte.insert((life, lock.owner), lock.mode), None);
            }
        }
        let mut own = self.bytes.clone();
        own.retain(|_, holders| !holders.is_empty());
        assert_eq!(seen, own);
    }
}

fn draw_lock(prng: &mut Prng) -> Lock {
    let is_flock = prng.chance(1, 3);
    let begin = prng.below(BYTE_COUNT);
    let end = begin + 1 + prng.below(BYTE_COUNT - begin);
    Lock {
        owner: owner(
            if is_flock {
                LockKind::Flock
            } else {
                LockKind::Posix
            },
            prng.below(2),
        ),
        mode: if prng.chance(1, 2) {
            LockMode::Read
        } else {
            LockMode::Write
        },
        range: match is_flock {
            true => ByteRange::new(0, BYTE_COUNT),
            false => ByteRange::new(begin, end),
        },
        pid: 7,
    }
}

#[test]
fn random_changes_agree_with_a_map_of_bytes() {
    for seed in 0..100 {
        let mut prng = Prng::new(seed);
        let mut bench = Bench::new();
        let mut twin = Twin::default();
        for _ in 0..200 {
            let node = u16::try_from(prng.below(3)).unwrap();
            let (index, lock) = (prng.below(2), draw_lock(&mut prng));
            let (at, holder) = (ino(index), (life(node), lock.owner));
            match prng.below(10) {
                0 => {
                    bench.locks.on_node_lost(life(node), &mut bench.ready);
                    twin.bytes.values_mut().for_each(|on_byte| {
                        on_byte.retain(|(of, _), _| *of != life(node));
                    });
                }
                1..=3 => {
                    let (owner, range) = (lock.owner, lock.range);
                    let answer = bench.ask(node, index, LockAction::Clear { owner, range });
                    assert_eq!(answer, LockAnswer::Done);
                    twin.put(at, holder, range, None);
                }
                4 => {
                    let answer = bench.ask(node, index, LockAction::Test { lock });
                    let is_free = answer == LockAnswer::Free;
                    assert_eq!(is_free, !twin.conflicts(at, holder, &lock));
                }
                _ => {
                    let had = twin
                        .bytes
                        .get(&(at, 0))
                        .and_then(|b| b.get(&holder))
                        .copied();
                    let converts = lock.owner.kind == LockKind::Flock
                        && had.is_some_and(|had| had != lock.mode);
                    let is_free = !twin.conflicts(at, holder, &lock);
                    let answer = bench.set(node, index, lock, false);
                    let expected = match is_free {
                        true => LockAnswer::Done,
                        false => LockAnswer::Conflict,
                    };
                    assert_eq!(answer, expected, "seed {seed}");
                    if is_free {
                        twin.put(at, holder, lock.range, Some(lock.mode));
                    } else if converts {
                        twin.put(at, holder, lock.range, None);
                    }
                }
            }
            twin.assert_same(&bench.locks);
        }
        for node in 0..3 {
            bench.locks.on_node_lost(life(node), &mut bench.ready);
        }
        assert_eq!((bench.locks.count(), bench.locks.inodes.len()), (0, 0));
    }
}

/// Waits of random lock owners, claimed or cancelled: who is offered a lock can have it, and at the end all are served.
#[test]
fn random_waits_are_offered_when_they_can_be_had() {
    for seed in 0..100 {
        let mut prng = Prng::new(seed);
        let mut bench = Bench::new();
        let mut waits: Vec<(u16, u64, u64, Lock)> = Vec::new();
        for _ in 0..150 {
            let node = u16::try_from(prng.below(3)).unwrap();
            let (index, mut lock) = (prng.below(2), draw_lock(&mut prng));
            lock.owner.id += 2 * u64::from(node);
            match prng.below(4) {
                0 => assert_eq!(bench.clear(node, index, lock.owner), LockAnswer::Done),
                1 if !waits.is_empty() => {
                    let at = prng.below(waits.len() as u64);
                    let (node, index, wait, _) = waits.remove(usize::try_from(at).unwrap());
                    let answer = bench.ask(node, index, LockAction::Cancel { wait });
                    assert_eq!(answer, LockAnswer::Done);
                }
                _ => match bench.set(node, index, lock, true) {
                    LockAnswer::Waits => waits.push((node, index, bench.number, lock)),
                    LockAnswer::Done | LockAnswer::Deadlock => {}
                    other => panic!("{other:?}"),
                },
            }
            let ready = bench.take_ready();
            for wait in ready {
                let Some(at) = waits.iter().position(|w| w.2 == wait) else {
                    continue;
                };
                let (node, index, wait, lock) = waits.remove(at);
                assert_eq!(
                    bench.ask(node, index, LockAction::Claim { wait }),
                    LockAnswer::Done
                );
                let mut held = bench.locks.held();
                assert!(held.any(|(_, of, held)| {
                    of == life(node) && held.owner == lock.owner && held.range.contains(&lock.range)
                }));
            }
        }
        // All unlock again and again: nobody waits for ever.
        for _ in 0..=waits.len() {
            for node in 0..3 {
                for (kind, id) in [LockKind::Posix, LockKind::Flock]
                    .iter()
                    .flat_map(|k| [(k, 0), (k, 1)])
                {
                    for index in 0..2 {
                        let id = id + 2 * u64::from(node);
                        bench.clear(node, index, owner(*kind, id));
                    }
                }
            }
            for wait in bench.take_ready() {
                if let Some(at) = waits.iter().position(|w| w.2 == wait) {
                    let (node, index, wait, _) = waits.remove(at);
                    bench.ask(node, index, LockAction::Claim { wait });
                }
            }
        }
        assert!(waits.is_empty(), "seed {seed}: {waits:?}");
        assert_eq!(bench.locks.count(), 0);
    }
}

/// Each row in turn: who asks to set what, whether it waits, and what it hears.
fn hears(bench: &mut Bench, rows: &[(u16, u64, Lock, bool, LockAnswer)]) {
    for (at, (node, index, lock, waits, answer)) in rows.iter().enumerate() {
        let heard = bench.set(*node, *index, *lock, *waits);
        assert_eq!(heard, *answer, "row {at}: {lock:?}");
    }
}

#[test]
fn circles_of_waits_are_refused() {
    use LockAnswer::{Conflict, Deadlock, Done, Waits};
    let of = |id| lock(id, LockMode::Write, 0..1);
    let flock = |id| {
        let owner = owner(LockKind::Flock, id);
        Lock { owner, ..of(id) }
    };
    let rows = [
        (1, 1, of(1), true, Done),
        (1, 2, of(2), true, Done),
        (1, 3, of(3), true, Done),
        (1, 2, of(1), true, Waits),
        (1, 3, of(2), true, Waits),
        (1, 1, of(3), true, Deadlock),
        // The same numbers on another node are others.
        (2, 1, of(3), true, Waits),
        // It does not wait: it is told that it cannot have it.
        (1, 1, of(3), false, Conflict),
        // flock knows no deadlocks.
        (1, 4, flock(4), true, Done),
        (1, 5, flock(5), true, Done),
        (1, 4, flock(5), true, Waits),
        (1, 5, flock(4), true, Waits),
    ];
    hears(&mut Bench::new(), &rows);
}

#[test]
fn repeats_hear_the_same_and_late_ones_are_not_executed() {
    use LockAnswer::{Conflict, Done, Stale, Waits};
    use LockMode::{Read, Write};
    let mut bench = Bench::new();
    let asks = |number, action| LockAsk { number, action };
    let set = |number, mode| {
        let lock = lock(1, mode, 0..10);
        asks(number, LockAction::Set { lock, waits: false })
    };
    let wait = |number, mode| {
        let lock = lock(1, mode, 0..10);
        asks(number, LockAction::Set { lock, waits: true })
    };
    let clear = |number| {
        let (owner, range) = (owner(LockKind::Posix, 1), ByteRange::ALL);
        asks(number, LockAction::Clear { owner, range })
    };
    let claim = |number| asks(number, LockAction::Claim { wait: 2 });
    let say = |bench: &mut Bench, rows: &[(u16, LockAsk, LockAnswer)]| {
        for (at, (node, ask, answer)) in rows.iter().enumerate() {
            assert_eq!(bench.say(*node, 1, ask), *answer, "row {at}: {ask:?}");
        }
    };
    let rows = [
        (1, set(5, Write), Done),
        (1, set(5, Write), Done),
        (1, set(6, Read), Done),
        (1, set(5, Write), Stale { newest: 6 }),
    ];
    say(&mut bench, &rows);
    let held: Vec<Lock> = bench.locks.held().map(|(.., lock)| lock).collect();
    assert_eq!(held, [lock(1, Read, 0..10)]);
    say(&mut bench, &[(1, clear(7), Done)]);
    assert_eq!(bench.locks.inodes.len(), 0);
    let rows = [
        // Nothing is left, and the late repeat does not bring it back.
        (1, set(5, Write), Stale { newest: 7 }),
        (1, set(6, Write), Stale { newest: 7 }),
        (1, set(7, Write), Stale { newest: 7 }),
        (1, set(8, Write), Done),
        // A wait that is claimed twice is claimed once.
        (2, set(1, Write), Conflict),
        (2, wait(2, Write), Waits),
        (2, claim(3), Waits),
        (1, clear(9), Done),
    ];
    say(&mut bench, &rows);
    assert_eq!(bench.take_ready(), [2]);
    let rows = [
        // It is kept for who was offered it.
        (3, set(1, Read), Conflict),
        (2, claim(4), Done),
        (2, claim(4), Done),
        (2, claim(5), Stale { newest: 5 }),
    ];
    say(&mut bench, &rows);
}

#[test]
fn a_new_owner_knows_what_it_was_told() {
    use LockMode::{Read, Write};
    let mut bench = Bench::new();
    let told = [
        (ino(1), lock(1, Write, 0..5)),
        (ino(1), lock(1, Read, 8..9)),
    ];
    assert_eq!(bench.locks.reassert(life(1), 10, told), None);
    assert_eq!(
        bench
            .locks
            .reassert(life(2), 20, [(ino(1), lock(1, Read, 5..9))]),
        None
    );
    bench.locks.check();
    // What was sent to the owner before.
    for number in [9, 10] {
        let ask = LockAsk {
            number,
            action: LockAction::Set {
                lock: lock(2, Read, 30..31),
                waits: false,
            },
        };
        assert_eq!(bench.say(1, 1, &ask), LockAnswer::Stale { newest: 10 });
        assert_eq!(bench.say(1, 2, &ask), LockAnswer::Stale { newest: 10 });
    }
    bench.number = 30;
    assert_eq!(
        bench.set(3, 1, lock(1, Write, 8..9), false),
        LockAnswer::Conflict
    );
    let wrong = bench
        .locks
        .reassert(life(4), 1, [(ino(1), lock(1, Read, 0..1))]);
    assert_eq!(wrong, Some((ino(1), life(1))));
    bench.locks.check();
}

/// A lock owner that locks every second byte, until it hears something else than `Done`; how many it has then.
fn fill(bench: &mut Bench, node: u16, index: u64, id: u64) -> (u64, LockAnswer) {
    for at in 0.. {
        let answer = bench.set(
            node,
            index,
            lock(id, LockMode::Write, 2 * at..2 * at + 1),
            false,
        );
        if answer != LockAnswer::Done {
            return (at, answer);
        }
    }
    unreachable!("there is a bound")
}

fn hole(bench: &mut Bench, index: u64, id: u64, at: u64) -> LockAnswer {
    let (owner, range) = (owner(LockKind::Posix, id), ByteRange::new(at, at + 1));
    bench.ask(1, index, LockAction::Clear { owner, range })
}

#[test]
fn who_locks_all_that_he_can_leaves_others_room() {
    use LockAnswer::{Done, Full, Waits};
    const COUNT_MAX: u64 = 1024;
    let mut bench = Bench::new();
    bench.locks = Locks::with_count_max(usize::try_from(COUNT_MAX).unwrap());
    // One on one file: no more than a quarter of the shard. On five: all but a quarter.
    assert_eq!(fill(&mut bench, 1, 1, 1), (192, Full));
    assert_eq!(
        bench.set(1, 1, lock(1, LockMode::Write, 900..901), true),
        Full
    );
    for index in 2..=5 {
        let (count, answer) = fill(&mut bench, 1, index, 1);
        assert!(answer == Full && (index == 5 || count == 192), "{count}");
    }
    assert_eq!(bench.locks.count(), 768);
    assert_eq!(fill(&mut bench, 2, 6, 1), (64, Full), "with few he goes on");
    // Others on this file, on other files, on this node and another, holding and waiting.
    let of = |id, at: u64| lock(id, LockMode::Write, at..at + 1);
    let rows = [
        (1, 1, of(2, 901), false, Done),
        (1, 1, of(3, 901), true, Waits),
        (1, 7, of(2, 0), false, Done),
        (2, 7, of(2, 0), true, Waits),
        (2, 1, of(2, 903), false, Done),
    ];
    hears(&mut bench, &rows);
    // And who has much gives up what he likes.
    hears(
        &mut bench,
        &[(1, 1, lock(1, LockMode::Write, 384..390), false, Full)],
    );
    assert_eq!(hole(&mut bench, 1, 1, 2), Done);
}

/// Unlocking may need room: it goes on where locking has ended, and in the last resort another's room is kept.
#[test]
fn unlocking_goes_on_where_locking_has_ended() {
    use LockAnswer::{Done, Full};
    let mut bench = Bench::new();
    bench.locks = Locks::with_count_max(4096);
    hears(
        &mut bench,
        &[(1, 1, lock(1, LockMode::Write, 10_000..20_000), false, Done)],
    );
    assert_eq!(fill(&mut bench, 1, 1, 1), (767, Full));
    let holes = (0..).take_while(|at| hole(&mut bench, 1, 1, 10_001 + 2 * at) == Done);
    assert_eq!(holes.count(), 128);
    // What becomes a lock for reading is given up in part, and has the room of this.
    hears(
        &mut bench,
        &[(1, 1, lock(2, LockMode::Write, 30_000..30_010), false, Done)],
    );
    let read = lock(2, LockMode::Read, 30_001..30_002);
    let write = lock(2, LockMode::Write, 40_000..40_001);
    for id in 3.. {
        let answer = bench.set(1, 1, lock(id, LockMode::Read, 50_000..50_001), false);
        if answer == Full {
            break;
        }
    }
    hears(
        &mut bench,
        &[(1, 1, write, false, Full), (1, 1, read, false, Done)],
    );
    assert_eq!(hole(&mut bench, 1, 2, 30_005), Done);
    // Who has waited for his lock has the room that his wait had.
    let mut bench = Bench::new();
    bench.locks = Locks::with_count_max(4096);
    hears(
        &mut bench,
        &[
            (2, 1, lock(1, LockMode::Write, 9_000..9_001), false, Done),
            (
                1,
                1,
                lock(1, LockMode::Write, 9_000..9_001),
                true,
                LockAnswer::Waits,
            ),
        ],
    );
    let wait = bench.number;
    assert_eq!(fill(&mut bench, 1, 1, 1), (767, Full));
    hears(
        &mut bench,
        &[(1, 1, lock(2, LockMode::Write, 8_000..8_001), false, Done)],
    );
    bench.clear(2, 1, owner(LockKind::Posix, 1));
    assert_eq!(bench.ask(1, 1, LockAction::Claim { wait }), Done);
}

#[test]
fn a_full_table_refuses_more_and_goes_on_when_there_is_room() {
    use LockAnswer::{Done, Full};
    let mut bench = Bench::new();
    bench.locks = Locks::with_count_max(12);
    let of = |range| lock(1, LockMode::Write, range);
    // Of twelve places of the shard three are one node's on one inode, of which one is for unlocking.
    let rows = [
        (1, 1, of(0..9), false, Done),
        (1, 1, of(20..29), false, Done),
        (1, 1, of(40..49), false, Full),
        (1, 1, of(40..49), true, Full),
        (1, 2, of(40..49), false, Done),
        (2, 1, of(50..51), false, Done),
    ];
    hears(&mut bench, &rows);
    // A hole makes two of one; where two have grown together there is room for it.
    assert_eq!(hole(&mut bench, 1, 1, 4), Done);
    assert_eq!(hole(&mut bench, 1, 1, 24), Full);
    hears(&mut bench, &[(1, 1, of(9..20), false, Done)]);
    assert_eq!(hole(&mut bench, 1, 1, 24), Done);
    bench.locks.on_inode_gone(ino(1));
    bench.locks.check();
    assert_eq!(bench.locks.count(), 1);
}

const HOLDER_COUNT: u64 = 20_000;
const WAIT_COUNT: u64 = 4_000;
/// What one ask may look at for each wait that it may let go on: the blocks of the table, and what lies in two.
const LOOK_COUNT_MAX: u64 = 1000;

fn node_of(id: u64) -> u16 {
    u16::try_from(id % 4).unwrap()
}

/// Looks at what is taken in the course of this.
fn looks_of(act: impl FnOnce()) -> u64 {
    let before = taken::LOOKS.get();
    act();
    taken::LOOKS.get() - before
}

/// Holders with a lock for reading each, and others that wait to write `wanted`: their nodes, and the waits' numbers.
fn crowd(range_of: impl Fn(u64) -> std::ops::Range<u64>, wanted: u64) -> (Bench, Vec<(u16, u64)>) {
    let mut bench = Bench::new();
    bench.checks = false;
    for id in 0..HOLDER_COUNT {
        let read = lock(id, LockMode::Read, range_of(id));
        assert_eq!(bench.set(node_of(id), 1, read, false), LockAnswer::Done);
    }
    let waits = (HOLDER_COUNT..HOLDER_COUNT + WAIT_COUNT).map(|id| {
        let write = lock(id, LockMode::Write, wanted..wanted + 1);
        assert_eq!(bench.set(node_of(id), 1, write, true), LockAnswer::Waits);
        (node_of(id), bench.number)
    });
    let waits = waits.collect();
    bench.locks.check();
    (bench, waits)
}

#[test]
fn waits_that_end_look_at_nothing() {
    let last = HOLDER_COUNT - 1;
    let (mut bench, waits) = crowd(|id| id..id + 1, last);
    let cancelling = looks_of(|| {
        for (node, wait) in &waits {
            let answer = bench.ask(*node, 1, LockAction::Cancel { wait: *wait });
            assert_eq!(answer, LockAnswer::Done);
        }
    });
    assert_eq!(cancelling, 0, "nobody was offered anything");
    bench.locks.check();
    assert_eq!(bench.locks.count(), 20_000);
    let looks = looks_of(|| {
        let write = lock(HOLDER_COUNT, LockMode::Write, last..last + 1);
        assert_eq!(bench.set(0, 1, write, true), LockAnswer::Waits);
    });
    assert!(looks < LOOK_COUNT_MAX, "{looks} for one that waits");
}

/// Whoever unlocks lets only those look again that stand behind him.
#[test]
fn unlocking_looks_at_few_waits() {
    // Each holder has a byte of his own; all wait for the last one.
    let (mut bench, _) = crowd(|id| id..id + 1, HOLDER_COUNT - 1);
    let clear_all_but_last = looks_of(|| {
        for id in 0..HOLDER_COUNT - 1 {
            bench.clear(node_of(id), 1, owner(LockKind::Posix, id));
        }
    });
    assert_eq!(clear_all_but_last, 0);
    assert_eq!(bench.take_ready(), []);
    let last = HOLDER_COUNT - 1;
    let looks = looks_of(|| {
        bench.clear(node_of(last), 1, owner(LockKind::Posix, last));
    });
    assert!(looks < WAIT_COUNT * LOOK_COUNT_MAX, "{looks}");
    let ready = bench.take_ready();
    assert_eq!(ready.len(), 1, "the first of those that want the same");
    bench.locks.check();
    // All have the same byte, and a process of thousands of open files ends: these go in any order.
    let (mut bench, _) = crowd(|_| 0..1, 0);
    let mut order: Vec<u64> = (0..HOLDER_COUNT).collect();
    Prng::new(1).shuffle(&mut order);
    let (mut sum, mut max) = (0, 0);
    for id in order {
        let looks = looks_of(|| {
            bench.clear(node_of(id), 1, owner(LockKind::Posix, id));
        });
        (sum, max) = (sum + looks, max.max(looks));
    }
    assert!(max < WAIT_COUNT * LOOK_COUNT_MAX, "{max} in one ask");
    assert!(sum < WAIT_COUNT * HOLDER_COUNT / 10, "{sum} in all");
    assert_eq!(bench.take_ready().len(), 1);
    bench.locks.check();
}

#[test]
fn a_search_for_a_circle_of_waits_ends() {
    use LockAnswer::{Deadlock, Done, Waits};
    let (mut bench, _) = crowd(|_| 0..1, 0);
    // Each has a byte and waits behind all the readers; one more wants all these bytes.
    let write = |id, begin, end| lock(id, LockMode::Write, begin..end);
    let ids = 30_000..30_900;
    for id in ids.clone() {
        let rows = [
            (node_of(id), 1, write(id, id, id + 1), true, Done),
            (node_of(id), 1, write(id, 0, 1), true, Waits),
        ];
        hears(&mut bench, &rows);
    }
    let own = write(1, 50_000, 50_001);
    hears(&mut bench, &[(9, 1, own, false, Done)]);
    let looks = looks_of(|| {
        let all = write(1, ids.start, ids.end);
        assert_eq!(bench.set(9, 1, all, true), Waits);
    });
    assert!(looks < 4 * limits::LOCK_LOOKS_MAX as u64, "{looks}");
    // A circle of a few is found beside them.
    let rows = [
        (9, 2, write(1, 0, 1), true, Done),
        (9, 2, write(2, 1, 2), true, Done),
        (9, 2, write(1, 1, 2), true, Waits),
        (9, 2, write(2, 0, 1), true, Deadlock),
    ];
    hears(&mut bench, &rows);
    bench.locks.check();
}

/// The table of what is taken against a list.
#[test]
fn what_is_in_the_way_is_found_in_large_tables() {
    for seed in 0..20 {
        let mut prng = Prng::new(seed);
        let (mut table, mut all) = (Table::default(), Vec::new());
        for wait in 0..3000 {
            let begin = prng.below(2000);
            let length_max = if prng.chance(1, 50) { 2000 } else { 5 };
            let end = begin + 1 + prng.below(length_max);
            let id = if prng.chance(1, 2) { 0 } else { prng.below(50) };
            let mode = match prng.chance(1, 3) {
                true => LockMode::Write,
                false => LockMode::Read,
            };
            let lock = lock(id, mode, begin..end);
            let of = (life(1), lock.owner);
            let is_in_way = |taken: &&Taken| {
                let other = taken.lock;
                other.owner != lock.owner
                    && other.mode.conflicts_with(mode)
                    && other.range.overlaps(&lock.range)
            };
            let expected = all.iter().filter(is_in_way).count();
            assert_eq!(table.conflicts(of, lock).count(), expected);
            // It grows, and is small again at the end.
            if wait < 1500 || prng.chance(1, 4) {
                let taken = Taken {
                    life: life(1),
                    lock,
                    wait: Some(wait),
                };
                table.insert(taken);
                all.push(taken);
            }
            while wait >= 1500 && all.len() as u64 > 3000 - wait {
                let at = prng.below(all.len() as u64);
                table.remove(&all.swap_remove(usize::try_from(at).unwrap()));
            }
            if wait % 50 == 0 {
                table.check();
                assert_eq!(table.iter().count(), all.len());
            }
        }
    }
}

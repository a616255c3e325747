//! What a name leads to, when answers and revokes cross.

use super::story::granted;
use super::*;
use crate::names::Arrival;
use crate::renames::MovedInto;
use crate::request::{RenameFlags, Response, Ticket};

const DIRECTORY: InodeId = INO;

fn name(text: &str) -> types::Name {
    types::Name::new(text.as_bytes()).expect("a name")
}

fn lookup(s: &mut Story, text: &str) -> Vec<Effect> {
    s.ask(Operation::Lookup {
        parent: DIRECTORY,
        name: name(text),
    })
}

/// The owner says that there is no such name, and grants the right to cache names in the state of this number.
fn absent(s: &mut Story, call: CallId, number: u64) -> Vec<Effect> {
    let number = TokenNumber(number);
    let kind = TokenKind::Directory {
        mode: DirectoryMode::Read,
        hash_begin: 0,
        hash_end: u64::MAX,
    };
    let granted = Granted {
        ticket: 0,
        ino: DIRECTORY,
        number,
        holdings: vec![Holding {
            ino: DIRECTORY,
            number,
            kind,
        }],
        contended: false,
    };
    let answer = Answer {
        body: Body::Op(meta::Reply::Absent),
        grants: vec![granted],
    };
    s.input(Input::Answer(call, Box::new(answer)))
}

fn is_absent(effects: &[Effect]) -> bool {
    absent_for(effects).is_some()
}

/// For how long the kernel may believe that there is no such name, if that is the answer.
fn absent_for(effects: &[Effect]) -> Option<u64> {
    effects.iter().find_map(|effect| match effect {
        Effect::Reply(_, Response::Entry(None, timeout), _) => Some(*timeout),
        _ => None,
    })
}

/// An answer is held up; meanwhile its token is revoked, another node makes the name, and the token comes back with
/// another answer: what the first one says is of before.
#[test]
fn an_answer_of_before_a_lost_token_says_nothing_under_a_later_one() {
    for is_revoked in [true, false] {
        let mut s = Story::new(0);
        let late = call_of(&lookup(&mut s, "made"));
        if is_revoked {
            s.number = 5;
            let write = Want::Directory {
                mode: DirectoryMode::Write,
            };
            assert!(is_released(&s.revoke(1, vec![write])));
        }
        let other = call_of(&lookup(&mut s, "other"));
        absent(&mut s, other, 7);
        s.now = s.now + Duration::from_secs(2);
        let cached = lookup(&mut s, "other");
        assert!(is_absent(&cached), "it is cached");
        assert!(absent_for(&cached) > Some(0), "{cached:?}");
        let effects = absent(&mut s, late, 5);
        assert_eq!(absent_for(&effects), Some(0), "no kernel may believe it");
        call_of(&lookup(&mut s, "made"));
    }
}

/// The tokens of both directories come with the answer to a rename, be it a refusal, and that of what moves with the question for it: what
/// is not taken nobody would give back.
#[test]
fn a_rename_brings_the_tokens_of_both_directories() {
    rename_brings_tokens(false);
    rename_brings_tokens(true);
}

fn rename_brings_tokens(fails: bool) {
    let mut s = Story::new(PAGE);
    let (directories, _) = rename(&mut s, RenameFlags::default(), fails, [true, true]);
    let now = s.now;
    for ino in directories {
        let inode = s.slice.inode(ino);
        assert!(inode.directory_mode().is_some(), "{ino:?}");
        assert_eq!(inode.names_since, now);
    }
}

/// A rename to another directory, answered with the tokens of some of the two; and what the answer led to.
fn rename(
    s: &mut Story,
    flags: RenameFlags,
    fails: bool,
    comes: [bool; 2],
) -> ([InodeId; 2], Vec<Effect>) {
    let ids = (INO.index() + 1..).map(|index| InodeId::new(INO.shard(), index));
    let mut here = ids.filter(|ino| slice_of(*ino) == slice_of(INO));
    let mut next = || here.next().expect("one in 16");
    let (from, to, moved) = (next(), next(), next());
    let effects = s.ask(Operation::Rename {
        parent: from,
        name: name("a"),
        new_parent: to,
        new_name: name("b"),
        flags,
    });
    let source = meta::Reply::Entry {
        ino: moved,
        kind: types::FileKind::File,
        attr: None,
    };
    let mode = InodeMode::Read;
    let answer = Answer {
        body: Body::Op(source),
        grants: vec![granted(moved, 1, TokenKind::Inode { mode })],
    };
    let effects = s.input(Input::Answer(call_of(&effects), Box::new(answer)));
    let effects = s.settle(effects);
    assert!(s.slice.inode(moved).inode_mode().is_some());
    let directory = |ino| Attr {
        ino,
        kind: types::FileKind::Directory,
        ..s.attr
    };
    let renamed = meta::Reply::Renamed {
        ino: moved,
        replaced: None,
        kept_open: false,
        directory: directory(from),
        new_directory: Some(directory(to)),
    };
    let kind = TokenKind::Directory {
        mode: DirectoryMode::Read,
        hash_begin: 0,
        hash_end: u64::MAX,
    };
    let tokens = [(from, 1), (to, 2)].into_iter().zip(comes);
    let tokens = tokens.filter(|(_, comes)| *comes);
    let grants = tokens.map(|((ino, number), _)| granted(ino, number, kind.clone()));
    let reply = match fails {
        true => meta::Reply::Error(Errno::EEXIST),
        false => renamed,
    };
    let answer = Answer {
        body: Body::Op(reply),
        grants: grants.collect(),
    };
    let effects = s.input(Input::Answer(call_of(&effects), Box::new(answer)));
    ([from, to], s.settle(effects))
}

fn is_answered(effects: &[Effect]) -> bool {
    let is_done = |e: &Effect| matches!(e, Effect::Reply(_, Response::Done, _));
    effects.iter().any(is_done)
}

/// What moves takes its time-out along, and only a token of the directory that it moves to has that waited for when it goes.
#[test]
fn what_moves_to_where_no_token_is_held_is_not_believed_there() {
    let believed = Duration::from_millis(300);
    // How long the rename waits for its answer.
    let waits = |exchange, comes, believed_s, is_shown: bool| {
        let mut s = Story::new(PAGE);
        s.slice.believe(Duration::from_secs(believed_s));
        let flags = RenameFlags {
            exchange,
            ..RenameFlags::default()
        };
        let from = InodeId::new(INO.shard(), INO.index() + 1);
        let from = (from.index()..).map(|index| InodeId::new(INO.shard(), index));
        let mut from = from.filter(|ino| slice_of(*ino) == slice_of(INO));
        let from = from.next().expect("one in 16");
        if is_shown {
            s.slice.shown.note(from, s.now + believed);
        }
        let (_, effects) = rename(&mut s, flags, false, comes);
        if is_answered(&effects) {
            return false;
        }
        s.now = s.now + Duration::from_millis(200);
        assert!(!is_answered(&s.input(Input::Tick)), "too early");
        s.now = s.now + Duration::from_millis(200);
        assert!(is_answered(&s.input(Input::Tick)), "too late");
        true
    };
    for is_shown in [false, true] {
        assert!(!waits(false, [true, true], 1, is_shown));
        assert_eq!(waits(false, [true, false], 1, is_shown), is_shown);
        assert!(!waits(false, [false, false], 600, is_shown), "nobody else");
        // What comes the other way has been shown by the other directory, perhaps.
        assert!(!waits(true, [true, true], 1, is_shown));
        assert!(waits(true, [true, false], 1, is_shown));
        assert!(waits(true, [false, true], 1, is_shown));
    }
}

/// A token that has come between the question and the answer says nothing of what others did before it.
#[test]
fn what_moves_is_covered_by_a_token_of_before_the_question() {
    for held_before in [true, false] {
        let mut s = Story::new(PAGE);
        let asked_at = s.now + Duration::from_millis(5);
        s.now = s.now + Duration::from_millis(if held_before { 1 } else { 7 });
        s.hold_directory();
        s.slice.inode(INO).names_since = s.now;
        s.now = asked_at + Duration::from_millis(10);
        let ticket = Ticket(7);
        let moved = MovedInto::of(INO, asked_at, ticket);
        let effects = s.input(Input::MovedInto(Box::new(moved)));
        assert_eq!(is_answered(&effects), held_before);
        // Either way it is waited for when the token goes.
        let effects = s.revoke_names(1, DirectoryMode::Write);
        assert!(!is_released(&effects), "{effects:?}");
        s.now = s.now + Duration::from_secs(1);
        let effects = s.input(Input::Tick);
        assert!(is_released(&effects), "{effects:?}");
        assert_eq!(is_answered(&effects), !held_before);
    }
}

/// A name is believed where it has moved to for as long as where it was; of names that move nothing is told any more, so that who changes the
/// other directory waits for none.
#[test]
fn what_moves_is_believed_as_long_as_it_was_told_and_the_next_not_at_all() {
    let mut s = Story::new(PAGE);
    let mut moved = MovedInto::of(INO, s.now, Ticket(7));
    moved.believed_until = s.now + Duration::from_millis(40);
    s.hold_directory();
    s.slice.inode(INO).names_since = s.now;
    s.now = s.now + Duration::from_millis(10);
    s.input(Input::MovedInto(Box::new(moved)));
    let effects = s.revoke_names(1, DirectoryMode::Write);
    assert!(!is_released(&effects), "{effects:?}");
    s.now = s.now + Duration::from_millis(31);
    assert!(is_released(&s.input(Input::Tick)));

    let told = |moves, pause_s| {
        let mut s = Story::new(PAGE);
        s.hold_directory();
        s.slice.inode(INO).names_since = s.now;
        s.now = s.now + Duration::from_secs(3600);
        if moves {
            s.with_env(|slice, env| slice.note_moved_out(env, INO, false));
        }
        s.now = s.now + Duration::from_secs(pause_s);
        s.input(Input::Tick);
        s.with_env(|slice, env| slice.entry_timeout(env, INO)) / 1_000_000
    };
    assert_eq!(told(false, 0), 250);
    assert_eq!(told(true, 9), 0);
    assert_eq!(told(true, 10), 250);
}

/// Names are believed the longer the longer this node has had the directory for itself, within bounds; for long only where nobody else changes them.
#[test]
fn names_are_believed_for_a_part_of_the_time_for_which_nobody_else_came() {
    let timeout = |alone_s, held_ms| {
        let mut s = Story::new(PAGE);
        s.slice.believe(Duration::from_secs(alone_s));
        s.attr.kind = types::FileKind::Directory;
        s.hold_directory();
        s.slice.inode(INO).names_since = s.now;
        s.now = s.now + Duration::from_millis(held_ms);
        let missing = name("missing");
        s.slice.learn_name(INO, &missing, None, true);
        let effects = s.ask(Operation::Lookup {
            parent: INO,
            name: missing,
        });
        let told = effects.iter().find_map(|effect| match effect {
            Effect::Reply(_, Response::Entry(None, timeout_ns), _) => Some(*timeout_ns),
            _ => None,
        });
        let told = told.unwrap_or_else(|| panic!("{effects:?}")) / 1_000_000;
        // Whoever wants the directory waits as long as that, and for a thread that takes its answer late.
        let begin = s.now;
        let mut effects = s.revoke_names(1, DirectoryMode::Write);
        while !is_released(&effects) {
            s.now = s.now + Duration::from_millis(1);
            effects = s.input(Input::Tick);
        }
        (told, s.now.since(begin).0 / 1_000_000)
    };
    for (held_ms, expected) in [
        (0, (0, 0)),
        (399, (0, 0)),
        (400, (50, 150)),
        (800, (100, 200)),
        (2000, (250, 350)),
        (3_600_000, (250, 350)),
    ] {
        assert_eq!(timeout(1, held_ms), expected, "held for {held_ms} ms");
    }
    assert_eq!(timeout(600, 0).0, 600_000);
}

/// A name leads to an inode that is gone. Mostly it leads elsewhere when it is looked up again; where it never does that has pauses and an end.
#[test]
fn a_name_that_leads_to_nothing_is_not_looked_up_for_ever() {
    let mut s = Story::new(0);
    let gone = InodeId::new(INO.shard(), 99);
    let request = Request {
        ticket: Ticket(77),
        caller: Caller::default(),
        operation: Operation::Lookup {
            parent: DIRECTORY,
            name: name("late"),
        },
    };
    let asks = |effects: &[Effect]| {
        let is_lookup = |e: &&Effect| {
            matches!(
                e,
                Effect::Call(
                    _,
                    _,
                    Ask::Op {
                        op: meta::Op::Lookup { .. },
                        ..
                    }
                )
            )
        };
        effects.iter().filter(is_lookup).count()
    };
    let refused = |effects: &[Effect]| {
        effects.iter().find_map(|effect| match effect {
            Effect::Reply(Ticket(77), Response::Error(errno), _) => Some(*errno),
            _ => None,
        })
    };
    let leads = |s: &mut Story, ino| {
        let again = Input::LookAgain(Box::new((request.clone(), ino)));
        s.input(again)
    };
    // It leads elsewhere each time: others make and remove it.
    for index in 0..100 {
        let other = InodeId::new(INO.shard(), 100 + index);
        assert_eq!(asks(&leads(&mut s, other)), 1);
    }
    // Each answer of the owner takes so long.
    for (slow_ms, expected_count, expected_ms) in
        [(0, 30..60, 2000..2100), (150, 38..39, 7000..8000)]
    {
        let (begin, mut count, mut waited) = (s.now, 0, 0);
        let refusal = loop {
            s.now = s.now + Duration::from_millis(slow_ms);
            waited += slow_ms;
            let effects = leads(&mut s, gone);
            if let Some(errno) = refused(&effects) {
                break errno;
            }
            count += 1;
            if asks(&effects) == 1 {
                assert!(count <= 8, "at once, the {count}th time");
                continue;
            }
            assert_eq!(s.slice.waiters().len(), 1);
            let mut effects = Vec::new();
            while asks(&effects) == 0 {
                s.now = s.now + Duration::from_millis(10);
                effects = s.input(Input::Tick);
                waited += 10;
            }
        };
        assert_eq!(refusal, Errno::EIO);
        assert!(expected_count.contains(&count), "{count} times");
        assert!(expected_ms.contains(&waited), "{waited} ms");
        assert_eq!(s.now.since(begin).0 / 1_000_000, waited);
        assert!(s.slice.waiters().is_empty());
    }
}

/// The attributes of what a name leads to are waited for; the kernel believes the name for no longer than those who wait for that know.
#[test]
fn what_waits_for_attributes_is_believed_for_what_is_left() {
    for (waited_ms, left_ms) in [(0, 250), (100, 150), (200, 50), (201, 0), (5000, 0)] {
        let mut s = Story::new(PAGE);
        s.open(InodeMode::Exclusive, ByteRange::ALL);
        let told_at = s.now;
        s.now = s.now + Duration::from_millis(waited_ms);
        let mut arrival = Arrival::lesson(INO, Some(s.attr), false, (0, false));
        (arrival.entry_timeout_ns, arrival.told_at) = (250_000_000, told_at);
        arrival.request = Some(Request {
            ticket: Ticket(77),
            caller: Caller::default(),
            operation: Operation::Lookup {
                parent: DIRECTORY,
                name: name("name"),
            },
        });
        let effects = s.input(Input::Arrive(arrival));
        let told = effects.iter().find_map(|effect| match effect {
            Effect::Reply(_, Response::Entry(Some(entry), timeout), _) => {
                Some((entry.entry_timeout_ns, *timeout))
            }
            _ => None,
        });
        let left = left_ms * 1_000_000;
        assert_eq!(told, Some((left, left)), "after {waited_ms} ms");
    }
}

/// Who only reads leaves this node the right to keep names: nothing is waited for, until somebody wants to change them.
#[test]
fn who_reads_names_waits_for_nobody() {
    let mut s = Story::new(PAGE);
    s.attr.kind = types::FileKind::Directory;
    let attr = s.attr;
    s.number = 1;
    let inode = s.slice.inode(INO);
    inode.learn_attr(&attr);
    inode.lookup_count = 1;
    let write = TokenKind::Directory {
        mode: DirectoryMode::Write,
        hash_begin: 0,
        hash_end: u64::MAX,
    };
    inode.holder.on_granted(&granted(INO, 1, write), true);
    s.slice.shown.note(INO, s.now + Duration::from_millis(350));
    let wants = vec![Want::Directory {
        mode: DirectoryMode::Read,
    }];
    let effects = s.revoke(1, wants);
    assert!(is_released(&effects), "{effects:?}");
    let effects = s.revoke_names(2, DirectoryMode::Write);
    assert!(!is_released(&effects), "{effects:?}");
    s.now = s.now + Duration::from_millis(351);
    assert!(is_released(&s.input(Input::Tick)));
}

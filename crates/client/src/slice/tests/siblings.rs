//! Small files of a directory that is read through are there before they are opened; for one that is only listed nothing is loaded.

use super::ahead::{answer, asked, file, list, story};
use super::story::granted;
use super::*;
use crate::message::Body;
use crate::request::{OpenFlags, Response};

/// Lists the directory from its beginning; the files that are to be loaded at once.
fn listed(s: &mut Story) -> Vec<InodeId> {
    let effects = list(s, 0);
    let (call, cookie) = asked(&effects).expect("the owner is asked");
    let effects = answer(s, call, cookie, true);
    to_load(&effects)
}

fn to_load(effects: &[Effect]) -> Vec<InodeId> {
    let files = |effect: &Effect| match effect {
        Effect::LoadFiles(files) => files.clone(),
        _ => Vec::new(),
    };
    effects.iter().flat_map(files).collect()
}

/// Opens the file with this number for reading, and closes it.
fn opened(s: &mut Story, number: u64) -> Vec<Effect> {
    let (ino, flags) = (file(number), OpenFlags::default());
    let effects = s.ask(Operation::Open { ino, flags });
    let effects = s.settle(effects);
    let handle = effects.iter().find_map(|effect| match effect {
        Effect::Reply(_, Response::Opened(opened), _) => Some(opened.handle),
        _ => None,
    });
    let handle = handle.expect("its token is here");
    s.ask(Operation::Release { ino, handle });
    effects
}

/// The question for tokens among `effects`, and whether only free ones are asked for.
fn acquires(effects: &[Effect]) -> Option<(CallId, bool)> {
    effects.iter().find_map(|effect| match effect {
        Effect::Call(call, _, Ask::Acquire { only_free, .. }) => Some((*call, *only_free)),
        _ => None,
    })
}

/// The owner gives the right to read the first page of this file.
fn grant(s: &mut Story, call: CallId, ino: InodeId) -> Vec<Effect> {
    let mode = InodeMode::Read;
    let mut granted = granted(ino, 100, TokenKind::Inode { mode });
    granted.holdings.push(Holding {
        kind: TokenKind::Range {
            mode: RangeMode::Read,
            patterns: vec![Pattern::plain(ByteRange::new(0, PAGE))],
        },
        ..granted.holdings[0].clone()
    });
    let mut attr = s.attr;
    (attr.ino, attr.kind) = (ino, types::FileKind::File);
    let answer = Answer {
        body: Body::Acquired { attr: Some(attr) },
        grants: vec![granted],
    };
    s.input(Input::Answer(call, Box::new(answer)))
}

fn read(s: &mut Story, ino: InodeId) -> Vec<Effect> {
    s.ask(Operation::Read {
        ino,
        handle: Handle(0),
        offset: 0,
        length: u32::try_from(PAGE).expect("small"),
        fills_page_cache: true,
    })
}

fn is_answered(effects: &[Effect]) -> bool {
    let is_data = |effect: &Effect| matches!(effect, Effect::Reply(_, Response::Data(_), _));
    effects.iter().any(is_data)
}

#[test]
fn the_files_behind_the_second_are_loaded() {
    let mut s = story();
    assert_eq!(listed(&mut s), [], "it was only listed");
    assert_eq!(to_load(&opened(&mut s, 1)), [], "any file may be opened");
    let rest: Vec<_> = (3..=10).map(file).collect();
    assert_eq!(to_load(&opened(&mut s, 2)), rest);
    // What is loaded asks for nothing that somebody else has.
    let effects = s.input(Input::LoadFile(file(3)));
    let (call, only_free) = acquires(&effects).expect("tokens of the bytes are asked for");
    assert!(only_free);
    let effects = grant(&mut s, call, file(3));
    let map = effects.iter().find_map(|effect| match effect {
        Effect::Call(
            call,
            _,
            Ask::Op {
                op: meta::Op::GetMap { .. },
                ..
            },
        ) => Some(*call),
        _ => None,
    });
    let effects = s.answer(
        map.expect("where it lies is asked for"),
        map_of_one(1, s.attr),
    );
    let io = effects.iter().find_map(|effect| match effect {
        Effect::Load(io, _) => Some(*io),
        _ => None,
    });
    s.input(Input::Loaded(io.expect("it is loaded"), Ok(())));
    assert_eq!(s.slice.gauges().loaded_file_count, 1);
    opened(&mut s, 3);
    assert!(is_answered(&read(&mut s, file(3))), "it is there");
}

/// Lists what is behind this cookie; the files that are to be loaded.
fn listed_behind(s: &mut Story, cookie: u64) -> Vec<InodeId> {
    let mut effects = list(s, cookie);
    let mut files = to_load(&effects);
    // And what is listed ahead.
    while let Some((call, asked_cookie)) = asked(&effects) {
        if asked_cookie > cookie + 10 {
            break;
        }
        effects = answer(s, call, asked_cookie, false);
        files.extend(to_load(&effects));
    }
    files
}

#[test]
fn in_a_large_directory_two_steps_are_ahead() {
    let mut s = story();
    for cookie in [0, 10, 20, 30, 40, 50] {
        assert_eq!(listed_behind(&mut s, cookie), []);
    }
    let files = |from, to| (from..=to).map(file).collect::<Vec<_>>();
    opened(&mut s, 1);
    assert_eq!(to_load(&opened(&mut s, 2)), files(3, 34));
    assert_eq!(to_load(&opened(&mut s, 10)), []);
    assert_eq!(
        to_load(&opened(&mut s, 11)),
        files(35, 50),
        "half of a step is read"
    );
    assert_eq!(to_load(&opened(&mut s, 11)), [], "once");
    assert_eq!(to_load(&opened(&mut s, 27)), files(51, 60));
}

#[test]
fn who_reads_as_he_lists_is_kept_ahead_of() {
    let mut s = story();
    s.readers.note_read_through(1);
    let files = |from, to| (from..=to).map(file).collect::<Vec<_>>();
    assert_eq!(listed_behind(&mut s, 0), files(1, 10));
    assert_eq!(
        listed_behind(&mut s, 10),
        files(11, 20),
        "the second step was empty"
    );
    assert_eq!(listed_behind(&mut s, 20), [], "two are ahead");
    assert_eq!(to_load(&opened(&mut s, 6)), files(21, 30));
    assert_eq!(to_load(&opened(&mut s, 16)), []);
    assert_eq!(listed_behind(&mut s, 30), files(31, 40));
}

#[test]
fn what_other_nodes_have_is_left_to_them() {
    let mut s = story();
    listed(&mut s);
    let effects = s.input(Input::LoadFile(file(3)));
    let (call, _) = acquires(&effects).expect("tokens of the bytes are asked for");
    let refused = Answer::bare(Body::Refused(Errno::EAGAIN));
    let effects = s.input(Input::Answer(call, Box::new(refused)));
    assert!(effects.is_empty(), "nothing follows: {effects:?}");
    assert_eq!(s.slice.gauges().loaded_file_count, 0);
    // Who reads it asks for what it needs.
    let effects = read(&mut s, file(3));
    assert_eq!(
        acquires(&effects).map(|(_, only_free)| only_free),
        Some(false)
    );
}

#[test]
fn a_reader_who_waits_meanwhile_asks_anew() {
    let mut s = story();
    listed(&mut s);
    let effects = s.input(Input::LoadFile(file(3)));
    let (call, _) = acquires(&effects).expect("tokens of the bytes are asked for");
    assert_eq!(
        acquires(&read(&mut s, file(3))),
        None,
        "one question at a time"
    );
    let refused = Answer::bare(Body::Refused(Errno::EAGAIN));
    let effects = s.input(Input::Answer(call, Box::new(refused)));
    assert_eq!(
        acquires(&effects).map(|(_, only_free)| only_free),
        Some(false)
    );
}

#[test]
fn a_process_that_has_read_directories_is_not_waited_for() {
    let mut s = story();
    listed(&mut s);
    (1..=2).for_each(|number| drop(opened(&mut s, number)));
    let all: Vec<_> = (1..=10).map(file).collect();
    for turn in 0..4 {
        assert_eq!(listed(&mut s), all, "turn {turn}");
    }
    assert_eq!(listed(&mut s), [], "it lists and does not read");
    // It reads again, and is taken for a reader from the next directory on.
    (1..=2).for_each(|number| drop(opened(&mut s, number)));
    assert_eq!(listed(&mut s), all);
}

#[test]
fn a_reader_stays_one() {
    let mut s = story();
    s.readers.note_read_through(1);
    for turn in 0..10 {
        assert_eq!(listed(&mut s).len(), 10, "turn {turn}");
        // The middle one of those that are loaded.
        opened(&mut s, 6);
    }
}

#[test]
fn who_comes_late_begins_anew() {
    let mut s = story();
    listed(&mut s);
    s.now = Instant(s.now.0 + 11_000_000_000);
    s.input(Input::Tick);
    for number in 1..=3 {
        assert_eq!(to_load(&opened(&mut s, number)), []);
    }
    assert!(s.slice.scans.is_empty() && s.slice.watched.is_empty());
}

#[test]
fn what_the_kernel_has_is_not_loaded() {
    let mut s = story();
    listed(&mut s);
    read(&mut s, file(3));
    let effects = s.input(Input::LoadFile(file(3)));
    assert!(effects.is_empty(), "{effects:?}");
    // Nor what is large, or nobody knows.
    s.slice.inode(file(4)).size = (128 << 10) + 1;
    for ino in [file(4), file(90)] {
        let effects = s.input(Input::LoadFile(ino));
        assert!(effects.is_empty(), "{effects:?}");
    }
}

#[test]
fn what_is_written_is_not_watched() {
    let mut s = story();
    listed(&mut s);
    for number in 1..=3 {
        let flags = OpenFlags {
            write: true,
            ..OpenFlags::default()
        };
        let ino = file(number);
        let effects = s.ask(Operation::Open { ino, flags });
        assert_eq!(to_load(&s.settle(effects)), []);
    }
}

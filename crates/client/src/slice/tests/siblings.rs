//! Small files of a directory that is read through are there before they are opened; for one that is only listed nothing is loaded.

use super::ahead::{answer, asked, file, list, listing_of, story};
use super::mapped::has_data;
use super::story::granted;
use super::*;
use crate::message::Body;
use crate::request::{OpenFlags, Response};
use crate::siblings::{Mark, Order};
use token::message::Revoke;

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

/// Opens the file with this number for reading, as its token lets anybody, and closes it.
fn opened(s: &mut Story, number: u64) -> Vec<InodeId> {
    let (ino, flags) = (file(number), OpenFlags::default());
    let effects = s.ask(Operation::Open { ino, flags });
    let effects = s.settle(effects);
    let handle = effects.iter().find_map(|effect| match effect {
        Effect::Reply(_, Response::Opened(opened), _) => Some(opened.handle),
        _ => None,
    });
    let handle = handle.expect("its token is here");
    s.ask(Operation::Release { ino, handle });
    to_load(&effects)
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
    let effects = s.ask(Operation::Read {
        ino,
        handle: Handle(0),
        offset: 0,
        length: u32::try_from(PAGE).expect("small"),
        fills_page_cache: true,
    });
    s.settle(effects)
}

/// The file with this number is read; what is to be loaded then.
fn after_read(s: &mut Story, number: u64) -> Vec<InodeId> {
    let effects = read(s, file(number));
    to_load(&effects)
}

fn files(from: u64, to: u64) -> Vec<InodeId> {
    (from..=to).map(file).collect()
}

/// The directory is listed, and the file with this number is to be loaded: the question for its tokens.
fn asked_for(s: &mut Story, number: u64) -> CallId {
    listed(s);
    let effects = s.input(Input::LoadFile(file(number)));
    let (call, only_free) = acquires(&effects).expect("tokens of the bytes are asked for");
    assert!(only_free, "nothing that somebody else has");
    call
}

/// Where the bytes of a file lie is told, and they are read.
fn loaded(s: &mut Story, effects: &[Effect]) {
    let map = map_question(effects).expect("where it lies is asked for");
    let effects = s.answer(map, map_of_one(1, s.attr));
    let io = effects.iter().find_map(|effect| match effect {
        Effect::Load(io, _) => Some(*io),
        _ => None,
    });
    s.input(Input::Loaded(io.expect("it is loaded"), Ok(())));
}

fn refuse(s: &mut Story, call: CallId) -> Vec<Effect> {
    let refused = Answer::bare(Body::Refused(Errno::EAGAIN));
    s.input(Input::Answer(call, Box::new(refused)))
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

/// Files of a directory that is listed in one order, has its inode numbers in another and its names in a third.
const MIXED: u64 = 60;

/// The number of the file with this cookie, and its name.
fn mixed(cookie: u64) -> (u64, String) {
    let of = |factor| cookie * factor % (MIXED + 1);
    (of(7), format!("{:02}", of(11)))
}

/// The numbers of those files in an order.
fn in_order(order: Order) -> Vec<u64> {
    let mut files: Vec<_> = (1..=MIXED).map(mixed).collect();
    match order {
        Order::Listed => {}
        Order::Inode => files.sort(),
        Order::Name => files.sort_by(|a, b| a.1.cmp(&b.1)),
    }
    files.into_iter().map(|(number, _)| number).collect()
}

/// The owner answers with these of its files, as far as they go to the end or to begin with.
fn answer_mixed(
    s: &mut Story,
    call: CallId,
    cookies: std::ops::RangeInclusive<u64>,
    is_end: bool,
) -> Vec<Effect> {
    let answer = listing_of(s, cookies, is_end, mixed);
    let effects = s.input(Input::Answer(call, Box::new(answer)));
    s.settle(effects)
}

/// Lists it as a whole; the files that are to be loaded.
fn listed_mixed(s: &mut Story) -> Vec<InodeId> {
    let effects = list(s, 0);
    let (call, _) = asked(&effects).expect("the owner is asked");
    to_load(&answer_mixed(s, call, 1..=MIXED, true))
}

/// Lists it up to this cookie, and then the rest; the files that are to be loaded after each.
fn listed_in_two(s: &mut Story, last: u64) -> [Vec<InodeId>; 2] {
    let effects = list(s, 0);
    let (call, _) = asked(&effects).expect("the owner is asked");
    let first = answer_mixed(s, call, 1..=last, false);
    let (call, cookie) = asked(&first).expect("what follows is asked for");
    assert_eq!(cookie, last);
    let ahead = answer_mixed(s, call, last + 1..=MIXED, true);
    assert_eq!(to_load(&ahead), [], "nobody has seen them");
    let second = list(s, last);
    [to_load(&first), to_load(&second)]
}

fn all_of(numbers: &[u64]) -> Vec<InodeId> {
    numbers.iter().copied().map(file).collect()
}

/// Its files are read in this order, of which nothing is known, and are loaded from the third on.
fn assert_tells(s: &mut Story, order: Order) {
    let files = in_order(order);
    assert_eq!(after_read(s, files[0]), [], "{order:?}");
    assert_eq!(after_read(s, files[1]), all_of(&files[2..34]), "{order:?}");
}

/// It was listed, and two of its files were read in this order: all of them, in this order.
fn being_read(order: Order) -> (Story, Vec<u64>) {
    let mut s = story();
    listed_mixed(&mut s);
    assert_tells(&mut s, order);
    (s, in_order(order))
}

#[test]
fn the_first_reads_tell_the_order() {
    for order in Order::ALL {
        let mut s = story();
        assert_eq!(listed_mixed(&mut s), []);
        assert_tells(&mut s, order);
        let files = in_order(order);
        assert_eq!(
            after_read(&mut s, files[10]),
            all_of(&files[34..50]),
            "{order:?}"
        );
    }
}

#[test]
fn what_is_read_later_tells_nothing() {
    for order in Order::ALL {
        let mut s = story();
        listed_mixed(&mut s);
        let mut loaded = Vec::new();
        for number in in_order(order) {
            loaded.extend(after_read(&mut s, number));
        }
        assert_eq!(loaded, all_of(&in_order(order)[2..]), "each once");
    }
}

#[test]
fn an_order_is_kept_for_the_next_directory() {
    for order in [Order::Inode, Order::Name] {
        let (mut s, files) = being_read(order);
        for turn in 0..4 {
            let [first, all] = listed_in_two(&mut s, 20);
            assert_eq!(first, [], "not all are there");
            assert_eq!(all, all_of(&files[..32]), "{order:?}, turn {turn}");
        }
        let loaded = listed_in_two(&mut s, 20);
        assert_eq!(loaded, [[], []], "it only lists");
    }
}

#[test]
fn an_order_that_was_taken_for_another_is_mended() {
    for before in Order::ALL {
        for order in Order::ALL {
            let mut s = story();
            s.readers.note_read_through(1, before);
            let files = in_order(before);
            assert_eq!(listed_mixed(&mut s), all_of(&files[..32]), "{before:?}");
            let files = in_order(order);
            let loaded: Vec<_> = files[..2]
                .iter()
                .flat_map(|number| after_read(&mut s, *number))
                .collect();
            match order == before {
                true => assert_eq!(loaded, [], "they are loaded"),
                false => {
                    assert_eq!(loaded, all_of(&files[2..34]), "{before:?} {order:?}");
                    assert_eq!(after_read(&mut s, files[10]), all_of(&files[34..50]));
                }
            }
        }
    }
}

/// A reader in the order of the listing begins before it has all; his process reads this one by names.
#[test]
fn an_order_that_shows_when_all_are_listed_is_taken() {
    let mut s = story();
    s.readers.note_read_through(1, Order::Listed);
    let listed = in_order(Order::Listed);
    let [first, all] = listed_in_two(&mut s, 40);
    assert_eq!(first, all_of(&listed[..32]));
    assert_eq!(all, []);
    assert_tells(&mut s, Order::Name);
}

/// The end is told without entries, as of a directory whose last listing was full.
#[test]
fn an_end_without_entries_is_one() {
    let mut s = story();
    listed_in_two(&mut s, MIXED);
    assert_tells(&mut s, Order::Name);
}

/// Another process lists it, as `ls` does: the reader goes on.
#[test]
fn others_who_list_it_do_not_stop_a_reader() {
    for order in Order::ALL {
        let (mut s, files) = being_read(order);
        s.pid = 2;
        assert_eq!(listed_mixed(&mut s), []);
        s.pid = 1;
        assert_eq!(
            after_read(&mut s, files[10]),
            all_of(&files[34..50]),
            "{order:?}"
        );
    }
}

#[test]
fn who_lists_it_anew_while_he_reads_goes_on() {
    for order in Order::ALL {
        let (mut s, files) = being_read(order);
        // He has forgotten what he is known for.
        s.readers.note_read_through(1 + 1024, Order::Listed);
        assert_eq!(listed_mixed(&mut s), []);
        assert_eq!(
            after_read(&mut s, files[10]),
            all_of(&files[11..43]),
            "{order:?}"
        );
    }
}

/// The lowest inode has two names.
#[test]
fn one_file_of_two_names_is_one() {
    let mut s = story();
    let effects = list(&mut s, 0);
    let (call, _) = asked(&effects).expect("the owner is asked");
    let twice = |at: u64| match at {
        20 | 30 => (1, at.to_string()),
        _ => (100 - at, at.to_string()),
    };
    let mut answer = listing_of(&s, 1..=40, true, twice);
    answer.grants.dedup_by_key(|granted| granted.ino);
    let effects = s.input(Input::Answer(call, Box::new(answer)));
    s.settle(effects);
    assert_eq!(after_read(&mut s, 1), [], "it was read once");
    assert_eq!(after_read(&mut s, 60).len(), 32, "the second by number");
}

/// Entries come as long as they are asked for.
#[test]
fn a_directory_that_takes_long_to_list_is_remembered() {
    let mut s = story();
    for from in [0, 20, 40] {
        let mut effects = list(&mut s, from);
        // What is asked for ahead is forgotten before it is wanted.
        while let Some((call, cookie)) = asked(&effects) {
            let is_end = cookie == 40;
            effects = answer_mixed(&mut s, call, cookie + 1..=cookie + 20, is_end);
        }
        s.now = Instant(s.now.0 + 6_000_000_000);
        s.input(Input::Tick);
    }
    assert_tells(&mut s, Order::Name);
}

#[test]
fn files_that_are_remembered_are_bounded() {
    let mut s = story();
    for is_end in [false, true] {
        let effects = list(&mut s, 0);
        let (call, _) = asked(&effects).expect("the owner is asked");
        let plain = |at: u64| (at % 50, at.to_string());
        let answer = listing_of(&s, 1..=40_000, is_end, plain);
        s.input(Input::Answer(call, Box::new(answer)));
        assert_eq!(s.slice.remembered_file_count(), 16 << 10);
    }
    // Of others that were listed before as well.
    for number in [1_000, 1_001] {
        let other = s.slice.scans[0].of_another(file(number));
        s.slice.scans.push_front(other);
    }
    listed_mixed(&mut s);
    assert_eq!(s.slice.remembered_file_count(), (16 << 10) + 60);
}

#[test]
fn the_files_behind_the_second_are_loaded() {
    let mut s = story();
    assert_eq!(listed(&mut s), [], "it was only listed");
    assert_eq!(after_read(&mut s, 1), [], "any file may be read");
    assert_eq!(after_read(&mut s, 2), files(3, 10));
}

#[test]
fn what_is_loaded_is_there() {
    let mut s = story();
    let call = asked_for(&mut s, 3);
    let effects = grant(&mut s, call, file(3));
    loaded(&mut s, &effects);
    assert_eq!(s.slice.gauges().loaded_file_count, 1);
    opened(&mut s, 3);
    assert!(has_data(&read(&mut s, file(3))), "it is there");
    // Once more nothing is to be done, and nothing stays behind, also where it is not known any more where the bytes lie.
    s.slice.inode(file(3)).map.forget(&ByteRange::ALL);
    let effects = s.input(Input::LoadFile(file(3)));
    assert!(effects.is_empty(), "{effects:?}");
    assert!(s.slice.inode(file(3)).unmapped.is_empty());
}

#[test]
fn opens_alone_say_nothing() {
    let mut s = story();
    listed(&mut s);
    for number in 1..=3 {
        assert_eq!(
            opened(&mut s, number),
            [],
            "the kernel may have what is read"
        );
    }
    // Nor do they for a process whose directories were read.
    s.readers.note_read_through(1, Order::Listed);
    for turn in 0..4 {
        assert_eq!(listed(&mut s), files(1, 10), "turn {turn}");
        (1..=10).for_each(|number| drop(opened(&mut s, number)));
    }
    assert_eq!(listed(&mut s), []);
}

#[test]
fn in_a_large_directory_two_steps_are_ahead() {
    let mut s = story();
    for cookie in [0, 10, 20, 30, 40, 50] {
        assert_eq!(listed_behind(&mut s, cookie), []);
    }
    assert_eq!(after_read(&mut s, 1), []);
    assert_eq!(after_read(&mut s, 2), files(3, 34));
    assert_eq!(after_read(&mut s, 10), []);
    assert_eq!(
        after_read(&mut s, 11),
        files(35, 50),
        "half of a step is read"
    );
    for number in [11, 18] {
        assert_eq!(after_read(&mut s, number), [], "once for each step");
    }
    assert_eq!(
        after_read(&mut s, 34),
        files(51, 60),
        "its middle was left out"
    );
}

#[test]
fn who_reads_as_he_lists_is_kept_ahead_of() {
    let mut s = story();
    s.readers.note_read_through(1, Order::Listed);
    assert_eq!(listed_behind(&mut s, 0), files(1, 10));
    assert_eq!(listed_behind(&mut s, 10), files(11, 20), "the second step");
    assert_eq!(listed_behind(&mut s, 20), [], "two are ahead");
    assert_eq!(after_read(&mut s, 6), files(21, 30));
    assert_eq!(after_read(&mut s, 16), []);
    assert_eq!(listed_behind(&mut s, 30), files(31, 40));
}

#[test]
fn what_other_nodes_have_is_left_to_them() {
    let mut s = story();
    let call = asked_for(&mut s, 3);
    let effects = refuse(&mut s, call);
    assert!(effects.is_empty(), "nothing follows: {effects:?}");
    // Nor is anything asked for of the next, for a while.
    let effects = s.input(Input::LoadFile(file(4)));
    assert!(effects.is_empty(), "{effects:?}");
    s.now = Instant(s.now.0 + 100_000_000);
    let effects = s.input(Input::LoadFile(file(4)));
    assert!(acquires(&effects).is_some());
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
    let call = asked_for(&mut s, 3);
    assert_eq!(
        acquires(&read(&mut s, file(3))),
        None,
        "one question at a time"
    );
    let effects = refuse(&mut s, call);
    assert_eq!(
        acquires(&effects).map(|(_, only_free)| only_free),
        Some(false)
    );
}

#[test]
fn what_is_gone_meanwhile_is_not_loaded() {
    let mut s = story();
    let call = asked_for(&mut s, 3);
    let answer = Answer::bare(Body::Acquired { attr: None });
    let effects = s.input(Input::Answer(call, Box::new(answer)));
    assert!(effects.is_empty(), "{effects:?}");
    assert_eq!(s.slice.gauges().loaded_file_count, 0);
}

/// Another node writes the file, under a state that is newer than the answer.
#[test]
fn what_is_revoked_meanwhile_is_not_kept() {
    let mut s = story();
    let call = asked_for(&mut s, 3);
    let revoke = Revoke {
        ino: file(3),
        number: TokenNumber(100),
        revoke: 1,
        wants: vec![write_want(ByteRange::ALL)],
    };
    s.input(Input::Replied(Pin::Inode(file(3))));
    s.input(Input::Revoke(NodeId(2), revoke));
    let effects = grant(&mut s, call, file(3));
    let map = map_question(&effects).expect("where it lies is asked for first");
    let effects = s.settle(effects);
    let effects = s.carry_out(effects);
    assert!(is_released(&effects), "{effects:?}");
    let effects = s.answer(map, map_of_one(1, s.attr));
    let is_load = |effect: &Effect| matches!(effect, Effect::Load(..));
    assert!(!effects.iter().any(is_load), "{effects:?}");
    assert_eq!(s.slice.inode(file(3)).pages.count(), 0);
}

#[test]
fn what_others_need_frames_for_is_not_loaded() {
    let mut s = story();
    s.memory.1 = Some(80);
    listed(&mut s);
    let taken: Vec<_> = (0..71).map(|_| crate::Pool::alloc(&s.memory)).collect();
    assert!(taken.iter().all(Option::is_some));
    let effects = s.input(Input::LoadFile(file(3)));
    assert!(effects.is_empty(), "{effects:?}");
    crate::Pool::release(&s.memory, taken[0].expect("seen above"));
    let effects = s.input(Input::LoadFile(file(3)));
    assert!(acquires(&effects).is_some(), "one in eight is free");
}

#[test]
fn a_process_that_has_read_directories_is_not_waited_for() {
    let mut s = story();
    listed(&mut s);
    (1..=2).for_each(|number| drop(after_read(&mut s, number)));
    for turn in 0..4 {
        assert_eq!(listed(&mut s), files(1, 10), "turn {turn}");
    }
    assert_eq!(listed(&mut s), [], "it lists and does not read");
    // It reads again, and is taken for a reader from the next directory on.
    (1..=2).for_each(|number| drop(after_read(&mut s, number)));
    assert_eq!(listed(&mut s), files(1, 10));
}

#[test]
fn a_reader_stays_one() {
    let mut s = story();
    s.readers.note_read_through(1, Order::Listed);
    for turn in 0..10 {
        assert_eq!(listed(&mut s).len(), 10, "turn {turn}");
        // The middle one of those that are loaded, or the last.
        after_read(&mut s, if turn % 2 == 0 { 6 } else { 10 });
    }
}

#[test]
fn others_who_only_list_do_not_push_a_reader_out() {
    let mut s = story();
    listed(&mut s);
    assert_eq!(after_read(&mut s, 1), []);
    // Twice as many files as are remembered.
    for number in 100..356 {
        s.now = Instant(s.now.0 + 1);
        s.input(Input::Watch(file(number), file(99), Mark::First));
    }
    assert_eq!(s.slice.watched.len(), 128);
    assert_eq!(after_read(&mut s, 2), [], "its watch was the older one");
    assert_eq!(listed(&mut s), []);
    s.now = Instant(s.now.0 + 1);
    assert_eq!(after_read(&mut s, 1), []);
    assert_eq!(after_read(&mut s, 2), files(3, 10), "the newest are there");
}

#[test]
fn who_comes_late_begins_anew() {
    let mut s = story();
    listed(&mut s);
    s.now = Instant(s.now.0 + 11_000_000_000);
    s.input(Input::Tick);
    for number in 1..=3 {
        assert_eq!(after_read(&mut s, number), []);
    }
    assert!(s.slice.scans.is_empty() && s.slice.watched.is_empty());
}

#[test]
fn what_is_large_or_unknown_is_not_loaded() {
    let mut s = story();
    listed(&mut s);
    s.slice.inode(file(4)).size = (128 << 10) + 1;
    for ino in [file(4), file(90)] {
        let effects = s.input(Input::LoadFile(ino));
        assert!(effects.is_empty(), "{effects:?}");
    }
}

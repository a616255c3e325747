//! Directories of a tree that somebody reads through are listed before they are opened; shown is what their owner would answer.

use super::ahead::{asked, file};
use super::story::{NAMES, PAGE, granted};
use super::*;
use crate::ahead::Coming;
use crate::message::Body;
use crate::request::{Listed, Response};
use crate::siblings::Order;
use crate::walk::Course;
use token::message::Revoke;
use types::FileKind;

const SIZE: u32 = 32 << 10;
/// Files of a directory.
const COUNT: u64 = 20;

/// The directory of this number in the tree's, which is INO.
fn directory(number: u64) -> InodeId {
    file(number)
}

/// A file of it.
fn file_of(number: u64, at: u64) -> InodeId {
    file(number * 100 + at)
}

fn attr(s: &Story, ino: InodeId, kind: FileKind) -> Attr {
    Attr {
        ino,
        kind,
        ..s.attr
    }
}

fn list(s: &mut Story, ino: InodeId, cookie: u64) -> Vec<Effect> {
    let effects = s.ask(Operation::ReadDir {
        ino,
        handle: Handle(1),
        cookie,
        size: SIZE,
        plus: true,
    });
    s.settle(effects)
}

/// The owner of `ino` answers: these entries from cookie 10 on, and nothing behind them.
fn answer(
    s: &mut Story,
    call: CallId,
    (ino, parent): (InodeId, InodeId),
    entries: &[(InodeId, FileKind)],
) -> Vec<Effect> {
    let entries = (10..).zip(entries).map(|(cookie, (entry, kind))| {
        // Of directories the name alone: they are of other shards.
        let attr = (*kind == FileKind::File).then(|| attr(s, *entry, *kind));
        meta::message::Listed {
            name: types::Name::new(format!("{entry:?}").as_bytes()).expect("a name"),
            ino: *entry,
            kind: *kind,
            cookie,
            attr,
        }
    });
    let entries: Vec<_> = entries.collect();
    let read = TokenKind::Inode {
        mode: InodeMode::Read,
    };
    let files = entries.iter().filter(|entry| entry.attr.is_some());
    let mut grants: Vec<_> = files
        .map(|entry| granted(entry.ino, entry.ino.index() + 10, read.clone()))
        .collect();
    let held = s
        .slice
        .inodes
        .get(&ino)
        .is_some_and(|i| i.directory_mode().is_some());
    if !held {
        grants.push(granted(ino, 1, NAMES));
    }
    let body = Body::Op(meta::Reply::Listing {
        entries,
        parent,
        is_end: true,
    });
    let effects = s.input(Input::Answer(call, Box::new(Answer { body, grants })));
    s.settle(effects)
}

fn files(number: u64) -> Vec<(InodeId, FileKind)> {
    let files = 1..=COUNT;
    files
        .map(|at| (file_of(number, at), FileKind::File))
        .collect()
}

fn directories(numbers: impl Iterator<Item = u64>) -> Vec<(InodeId, FileKind)> {
    numbers
        .map(|number| (directory(number), FileKind::Directory))
        .collect()
}

/// The process lists a directory that nobody has listed ahead, with these entries; what is to be listed next.
fn visit(
    s: &mut Story,
    of: (InodeId, InodeId),
    entries: &[(InodeId, FileKind)],
) -> Option<InodeId> {
    let effects = list(s, of.0, 0);
    let (call, cookie) = asked(&effects).expect("the owner is asked");
    assert_eq!(cookie, 0);
    let effects = answer(s, call, of, entries);
    assert!(shown(&effects).is_some());
    coming(&effects).map(|coming| coming.ino)
}

/// The same of a directory of files, which are read.
fn read_through(s: &mut Story, number: u64, order: Order) -> Option<InodeId> {
    let next = visit(s, (directory(number), INO), &files(number));
    s.readers.note_read_through(s.pid, order);
    next
}

fn coming(effects: &[Effect]) -> Option<Coming> {
    effects.iter().find_map(|effect| match effect {
        Effect::ListSoon(coming) => Some(*coming),
        _ => None,
    })
}

fn shown(effects: &[Effect]) -> Option<&Vec<Listed>> {
    effects.iter().find_map(|effect| match effect {
        Effect::Reply(_, Response::Listing(listed), _) => Some(listed),
        _ => None,
    })
}

fn to_load(effects: &[Effect]) -> Vec<InodeId> {
    let files = effects.iter().filter_map(|effect| match effect {
        Effect::LoadFiles(files) => Some(files.clone()),
        _ => None,
    });
    files.flatten().collect()
}

/// The question for a directory's token among `effects`.
fn token_question(effects: &[Effect]) -> Option<CallId> {
    effects.iter().find_map(|effect| match effect {
        Effect::Call(
            call,
            _,
            Ask::Acquire {
                wants, only_free, ..
            },
        ) => {
            assert!(only_free, "nobody gives anything back for a guess");
            let want = Want::Directory {
                mode: DirectoryMode::Read,
            };
            assert_eq!(*wants, [want]);
            Some(*call)
        }
        _ => None,
    })
}

/// The token of the directory is free, and the node gets it.
fn grant(s: &mut Story, call: CallId, ino: InodeId) -> Vec<Effect> {
    let body = Body::Acquired {
        attr: Some(attr(s, ino, FileKind::Directory)),
    };
    let grants = vec![granted(ino, 1, NAMES)];
    let effects = s.input(Input::Answer(call, Box::new(Answer { body, grants })));
    s.settle(effects)
}

/// A tree's directory, of eight directories.
fn tree() -> Story {
    let mut s = Story::new(PAGE);
    s.attr.kind = FileKind::Directory;
    s.hold_directory();
    assert_eq!(visit(&mut s, (INO, INO), &directories(1..=8)), None);
    s
}

/// Who has read two directories of it, from the first one on.
fn reader() -> Story {
    let mut s = tree();
    assert_eq!(read_through(&mut s, 1, Order::Listed), None);
    assert_eq!(read_through(&mut s, 2, Order::Listed), Some(directory(3)));
    s
}

fn coming_to(number: u64) -> Coming {
    Coming {
        ino: directory(number),
        size: SIZE,
        order: Order::Listed,
    }
}

/// The third directory is to be listed ahead; the question for its entries.
fn asked_ahead(s: &mut Story) -> CallId {
    let effects = s.input(Input::ListComing(coming_to(3)));
    let call = token_question(&effects).expect("its token is asked for");
    let effects = grant(s, call, directory(3));
    let (call, cookie) = asked(&effects).expect("its entries are asked for");
    assert_eq!(cookie, 0);
    call
}

/// It is listed ahead.
fn listed_ahead(s: &mut Story) {
    let call = asked_ahead(s);
    let effects = answer(s, call, (directory(3), INO), &files(3));
    assert_eq!(shown(&effects), None, "nobody waits");
    let first: Vec<_> = (1..=COUNT).map(|at| file_of(3, at)).collect();
    assert_eq!(to_load(&effects), first);
}

#[test]
fn the_next_directory_is_there_when_it_is_opened() {
    let mut s = reader();
    listed_ahead(&mut s);
    let effects = list(&mut s, directory(3), 0);
    assert!(asked(&effects).is_none(), "{effects:?}");
    let listed = shown(&effects).expect("answered at once");
    let own: Vec<_> = listed[..2].iter().map(|l| (l.cookie, l.ino)).collect();
    assert_eq!(own, [(1, directory(3)), (2, INO)]);
    assert_eq!(
        (&*listed[0].name, &*listed[1].name),
        (&b"."[..], &b".."[..])
    );
    let cookies: Vec<_> = listed[2..].iter().map(|l| l.cookie).collect();
    assert_eq!(cookies, (10..10 + COUNT).collect::<Vec<_>>());
    let inos: Vec<_> = listed[2..].iter().map(|l| l.ino).collect();
    assert_eq!(
        inos,
        (1..=COUNT).map(|at| file_of(3, at)).collect::<Vec<_>>()
    );
    let is_kept = |l: &Listed| l.entry.as_ref().is_some_and(|e| e.attr_timeout_ns > 0);
    assert!(listed[2..].iter().all(is_kept), "{listed:?}");
    assert_eq!(coming(&effects), Some(coming_to(4)), "and so on");
    // That nothing is behind the last entry is known, and tells nothing new.
    let effects = list(&mut s, directory(3), 9 + COUNT);
    assert_eq!(shown(&effects).map(Vec::len), Some(0));
    assert_eq!((asked(&effects), coming(&effects)), (None, None));
    // It was shown once. Who asks again hears the owner.
    let effects = list(&mut s, directory(3), 0);
    assert!(asked(&effects).is_some() && shown(&effects).is_none());
}

/// Of a listing that begins behind `.`, and behind `..`.
#[test]
fn our_own_entries_are_shown_as_far_as_they_are_wanted() {
    for (cookie, own_count) in [(1, 1), (2, 0)] {
        let mut s = reader();
        let effects = s.input(Input::ListComing(coming_to(3)));
        let call = token_question(&effects).expect("its token is asked for");
        let effects = grant(&mut s, call, directory(3));
        let (call, _) = asked(&effects).expect("its entries are asked for");
        answer(&mut s, call, (directory(3), INO), &files(3));
        let mut effects = list(&mut s, directory(3), cookie);
        // What is left of the request for the owner's part is another size: it is asked itself.
        if let Some((call, 0)) = asked(&effects) {
            effects = answer(&mut s, call, (directory(3), INO), &files(3));
        }
        let listed = shown(&effects).expect("answered");
        let count = usize::try_from(COUNT).expect("small");
        assert_eq!(listed.len(), own_count + count, "{cookie}");
        assert!(listed.iter().all(|l| l.cookie > cookie));
    }
}

/// What may happen to a directory.
type Change = (&'static str, fn(&mut Story));

#[test]
fn names_that_have_changed_are_not_shown() {
    let changes: [Change; 5] = [
        ("by this node", |s| {
            s.slice.inode(directory(3)).names_epoch += 1;
        }),
        ("by another one, which takes the token", |s| {
            s.input(Input::Revoke(
                NodeId(2),
                Revoke {
                    ino: directory(3),
                    number: TokenNumber(1),
                    revoke: 1,
                    wants: vec![Want::Directory {
                        mode: DirectoryMode::Write,
                    }],
                },
            ));
        }),
        ("perhaps by another one", |s| {
            s.slice.inode(directory(3)).is_contended = true;
        }),
        ("moved by this node, to another parent", |s| {
            let name = |text: &str| types::Name::new(text.as_bytes()).expect("a name");
            let effects = s.ask(Operation::Rename {
                parent: INO,
                name: name("3"),
                new_parent: directory(8),
                new_name: name("3"),
                flags: crate::request::RenameFlags::default(),
            });
            let source = meta::Reply::Entry {
                ino: directory(3),
                kind: FileKind::Directory,
                attr: None,
            };
            let effects = s.answer(call_of(&effects), source);
            let effects = s.settle(effects);
            let reply = meta::Reply::Renamed {
                ino: directory(3),
                replaced: None,
                kept_open: false,
                directory: attr(s, INO, FileKind::Directory),
                new_directory: Some(attr(s, directory(8), FileKind::Directory)),
            };
            let effects = s.answer(call_of(&effects), reply);
            let effects = s.settle(effects);
            let is_done = |e: &Effect| matches!(e, Effect::Reply(_, Response::Done, _));
            assert!(effects.iter().any(is_done), "{effects:?}");
        }),
        ("the node's lease was over", |s| {
            s.input(Input::Lapsed(Vec::new()));
            s.input(Input::Regained);
        }),
    ];
    for (what, change) in changes {
        let mut s = reader();
        listed_ahead(&mut s);
        change(&mut s);
        let effects = list(&mut s, directory(3), 0);
        assert!(shown(&effects).is_none(), "{what}: {effects:?}");
        // And likewise where it changes before the answer, which may be of before.
        let mut s = reader();
        let call = asked_ahead(&mut s);
        change(&mut s);
        answer(&mut s, call, (directory(3), INO), &files(3));
        let effects = list(&mut s, directory(3), 0);
        assert!(shown(&effects).is_none(), "{what}, meanwhile: {effects:?}");
    }
}

#[test]
fn who_comes_before_the_answer_waits_for_it() {
    let mut s = reader();
    let call = asked_ahead(&mut s);
    let effects = list(&mut s, directory(3), 0);
    assert!(effects.is_empty(), "it waits: {effects:?}");
    let effects = answer(&mut s, call, (directory(3), INO), &files(3));
    assert!(shown(&effects).is_some(), "{effects:?}");
    // What fails the reader asks for itself.
    let mut s = reader();
    let call = asked_ahead(&mut s);
    list(&mut s, directory(3), 0);
    let refused = Answer::bare(Body::Refused(Errno::EIO));
    let effects = s.input(Input::Answer(call, Box::new(refused)));
    let effects = s.settle(effects);
    let (call, _) = asked(&effects).expect("asked again");
    let effects = answer(&mut s, call, (directory(3), INO), &files(3));
    assert!(shown(&effects).is_some());
}

#[test]
fn a_token_that_is_not_free_is_not_asked_for_again_soon() {
    let mut s = reader();
    let effects = s.input(Input::ListComing(coming_to(3)));
    let call = token_question(&effects).expect("its token is asked for");
    let refused = Answer::bare(Body::Refused(Errno::EAGAIN));
    let effects = s.input(Input::Answer(call, Box::new(refused)));
    assert!(asked(&effects).is_none(), "{effects:?}");
    assert!(s.input(Input::ListComing(coming_to(4))).is_empty());
    s.now = s.now + Duration::from_millis(101);
    let effects = s.input(Input::ListComing(coming_to(4)));
    assert!(token_question(&effects).is_some());
    // The reader has what it wants, as ever.
    let effects = list(&mut s, directory(3), 0);
    assert!(asked(&effects).is_some());
}

#[test]
fn who_goes_backward_finds_the_one_before() {
    let mut s = tree();
    assert_eq!(read_through(&mut s, 8, Order::Listed), None);
    assert_eq!(read_through(&mut s, 7, Order::Listed), Some(directory(6)));
    assert_eq!(read_through(&mut s, 6, Order::Listed), Some(directory(5)));
    // Who turns shows it by two.
    assert_eq!(read_through(&mut s, 7, Order::Listed), None);
    assert_eq!(read_through(&mut s, 8, Order::Listed), None, "the last one");
    assert_eq!(read_through(&mut s, 7, Order::Listed), Some(directory(6)));
}

/// Who goes through them in no order that is known is guessed for as often as he goes to the one beside.
#[test]
fn after_a_wrong_guess_there_is_none() {
    let mut s = reader();
    for number in [7, 5, 8, 6, 1, 4] {
        assert_eq!(
            read_through(&mut s, number, Order::Listed),
            None,
            "{number}"
        );
    }
    assert_eq!(read_through(&mut s, 5, Order::Listed), Some(directory(6)));
}

/// In a directory of very many it is looked for some times, and found again where it goes from one to the next.
#[test]
fn a_reader_without_an_order_is_not_looked_for_for_ever() {
    let mut s = Story::new(PAGE);
    s.attr.kind = FileKind::Directory;
    s.hold_directory();
    visit(&mut s, (INO, INO), &directories(1..=60));
    let come = |s: &mut Story, number: u64| read_through(s, number, Order::Listed);
    come(&mut s, 2);
    for number in [10, 50, 20, 40, 30, 15, 45, 25, 35, 55] {
        assert_eq!(come(&mut s, number), None);
    }
    // It is not known where 55 is; it is where the first one is.
    assert_eq!(come(&mut s, 56), None);
    assert_eq!(come(&mut s, 1), None);
    assert_eq!(come(&mut s, 2), Some(directory(3)));
}

#[test]
fn what_is_open_is_not_listed_ahead() {
    let mut s = reader();
    let ino = directory(3);
    let opened = s.ask(Operation::OpenDir { ino });
    s.settle(opened);
    assert!(s.input(Input::ListComing(coming_to(3))).is_empty());
    // Nor what is opened before its token has come.
    let mut s = reader();
    let effects = s.input(Input::ListComing(coming_to(3)));
    let call = token_question(&effects).expect("its token is asked for");
    let opened = s.ask(Operation::OpenDir { ino });
    s.settle(opened);
    let effects = grant(&mut s, call, ino);
    assert!(asked(&effects).is_none(), "{effects:?}");
}

/// Directories that nobody came for leave room for readers of large ones.
#[test]
fn guesses_do_not_push_readers_out() {
    let mut s = reader();
    for number in 3..=8 {
        let effects = s.input(Input::ListComing(coming_to(number)));
        let call = token_question(&effects).expect("its token is asked for");
        let effects = grant(&mut s, call, directory(number));
        let (call, _) = asked(&effects).expect("the latest are kept");
        answer(&mut s, call, (directory(number), INO), &files(number));
        assert!(s.slice.guess_count() <= 2, "{number}");
    }
    // Two of them are under way for ever.
    let mut s = reader();
    s.slice.aheads.clear();
    for number in 3..=4 {
        let effects = s.input(Input::ListComing(coming_to(number)));
        let call = token_question(&effects).expect("its token is asked for");
        let effects = grant(&mut s, call, directory(number));
        assert!(asked(&effects).is_some());
    }
    let effects = s.input(Input::ListComing(coming_to(5)));
    let call = token_question(&effects).expect("its token is asked for");
    let effects = grant(&mut s, call, directory(5));
    assert!(asked(&effects).is_none(), "no third one");
    for number in 6..=7 {
        let effects = list(&mut s, directory(number), 0);
        let (call, _) = asked(&effects).expect("the owner is asked");
        answer(&mut s, call, (directory(number), INO), &files(number));
        let effects = list(&mut s, directory(number), 9 + COUNT);
        assert!(shown(&effects).is_some(), "its end is known");
    }
}

/// Directories come in the order of the reader's files.
#[test]
fn directories_are_taken_in_the_order_of_the_files() {
    let listed = [5, 2, 7, 1, 8, 3, 6, 4];
    // By number and, as text, by name.
    for order in [Order::Inode, Order::Name] {
        let mut s = Story::new(PAGE);
        s.attr.kind = FileKind::Directory;
        s.hold_directory();
        visit(&mut s, (INO, INO), &directories(listed.into_iter()));
        read_through(&mut s, 1, order);
        assert_eq!(
            read_through(&mut s, 2, order),
            Some(directory(3)),
            "{order:?}"
        );
        assert_eq!(
            read_through(&mut s, 3, order),
            Some(directory(4)),
            "{order:?}"
        );
    }
}

/// `directory(1)` has directories 11 to 13, and is followed by `directory(2)`, which has 21 to 23.
#[test]
fn a_reader_goes_down_and_up_again() {
    for (course, first, second, third) in [
        (Course::Forward, [11, 12, 13], 2, 21),
        (Course::Backward, [13, 12, 11], 1, 13),
    ] {
        let is_forward = course == Course::Forward;
        let (one, other) = if is_forward { (1, 2) } else { (2, 1) };
        let mut s = tree();
        let inner = |number: u64| directories(number * 10 + 1..=number * 10 + 3);
        visit(&mut s, (directory(one), INO), &inner(one));
        let all = first.map(|number| if is_forward { number } else { number + 10 });
        let leaf = |s: &mut Story, number: u64, parent: u64| {
            let of = (directory(number), directory(parent));
            let next = visit(s, of, &files(number));
            s.readers.note_read_through(s.pid, Order::Listed);
            next
        };
        assert_eq!(leaf(&mut s, all[0], one), None);
        assert_eq!(leaf(&mut s, all[1], one), Some(directory(all[2])));
        // The last one: the next is beside the parent.
        assert_eq!(leaf(&mut s, all[2], one), Some(directory(second)));
        let next = visit(&mut s, (directory(other), INO), &inner(other));
        assert_eq!(next, Some(directory(third)), "down again, {course:?}");
    }
}

/// Who goes level by level lists another one than the first directory of the one before.
#[test]
fn who_does_not_go_down_is_not_expected_to() {
    let mut s = reader();
    let inner = |number: u64| directories(number * 10 + 1..=number * 10 + 3);
    let next = visit(&mut s, (directory(3), INO), &inner(3));
    assert_eq!(next, Some(directory(31)));
    for number in 4..=6 {
        let next = visit(&mut s, (directory(number), INO), &inner(number));
        assert_eq!(next, None, "{number}");
    }
    // Who lists one twice has to be seen going on.
    let mut s = reader();
    let mut list_again = || visit(&mut s, (directory(2), INO), &files(2));
    assert_eq!([list_again(), list_again()], [None, None]);
    assert_eq!(read_through(&mut s, 3, Order::Listed), Some(directory(4)));
}

/// Parents that were moved may name one another.
#[test]
fn a_ring_of_parents_ends() {
    let mut s = tree();
    s.readers.note_read_through(s.pid, Order::Listed);
    s.readers.note_course(s.pid, Some(Course::Forward));
    visit(&mut s, (directory(1), directory(2)), &directories(2..=2));
    visit(&mut s, (directory(2), directory(1)), &directories(1..=1));
    assert_eq!(visit(&mut s, (directory(9), directory(2)), &files(9)), None);
    let next = visit(&mut s, (directory(1), directory(2)), &[]);
    assert_eq!(next, None);
}

#[test]
fn nothing_is_listed_for_who_only_lists() {
    let mut s = tree();
    for number in 1..=8 {
        let next = visit(&mut s, (directory(number), INO), &files(number));
        assert_eq!(next, None);
    }
    // Nor any more for who has read, once he has listed some without.
    let mut s = reader();
    let visited = (3..=8).map(|number| visit(&mut s, (directory(number), INO), &files(number)));
    let count = visited.flatten().count();
    assert!((1..6).contains(&count), "{count}");
    // Another process has its own way.
    let mut s = reader();
    s.pid = 2;
    visit(&mut s, (INO, INO), &directories(1..=8));
    assert_eq!(read_through(&mut s, 2, Order::Listed), None);
}

#[test]
fn what_is_remembered_has_bounds() {
    let mut s = Story::new(PAGE);
    s.attr.kind = FileKind::Directory;
    s.hold_directory();
    for number in 0..40 {
        visit(&mut s, (directory(number), INO), &directories(1000..1100));
        let (walks, children) = s.slice.walk_counts();
        let kept = usize::try_from(number + 1).expect("small").min(16);
        assert_eq!((walks, children), (kept, kept * 100));
    }
    // The latest, and of one at most half of what is remembered.
    let many: Vec<_> = directories(1..=1).into_iter().cycle().take(9000).collect();
    visit(&mut s, (directory(50), INO), &many);
    assert_eq!(s.slice.walk_counts(), (16, 8192 + 15 * 100));
    visit(&mut s, (directory(51), INO), &many);
    visit(&mut s, (directory(52), INO), &many);
    assert_eq!(s.slice.walk_counts(), (2, 2 * 8192));
    s.now = s.now + Duration::from_secs(11);
    s.input(Input::Tick);
    assert_eq!(s.slice.walk_counts(), (0, 0));
}

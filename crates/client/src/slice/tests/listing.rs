//! Listings show attributes as long as who reads the names looks at what they lead to, and as there is room for it.

use super::*;
use crate::request::Response;

const DIRECTORY: InodeId = INO;
/// Entries of an answer.
const COUNT: u64 = 4096;

/// Entries of the slice under test, and whether attributes were asked for them and how much room there was.
fn list(s: &mut Story, cookie: u64) -> (bool, u32, Vec<Effect>) {
    let effects = s.ask(Operation::ReadDir {
        ino: DIRECTORY,
        handle: Handle(1),
        cookie,
        size: 32 << 10,
        plus: true,
    });
    let asked = effects.iter().find_map(|effect| match effect {
        Effect::Call(
            call,
            _,
            Ask::Op {
                op: meta::Op::ReadDir { plus, size, .. },
                ..
            },
        ) => Some((*call, *plus, *size)),
        _ => None,
    });
    let (call, plus, size) = asked.expect("the owner is asked");
    let begin = INO.index() + 64 * cookie;
    let inos = (begin + 1..).map(|index| InodeId::new(INO.shard(), index));
    let mut inos = inos.filter(|ino| slice_of(*ino) == slice_of(INO));
    let entries = (cookie..cookie + COUNT).map(|at| {
        let ino = inos.next().expect("there are many");
        let mut attr = s.attr;
        attr.ino = ino;
        meta::message::Listed {
            name: types::Name::new(at.to_string().as_bytes()).expect("a name"),
            ino,
            kind: attr.kind,
            cookie: at + 1,
            attr: plus.then_some(attr),
        }
    });
    let listing = meta::Reply::Listing {
        entries: entries.collect(),
        parent: InodeId::ROOT,
        is_end: false,
    };
    (plus, size, s.answer(call, listing))
}

fn shown(effects: &[Effect]) -> (usize, usize) {
    let listed = effects.iter().find_map(|effect| match effect {
        Effect::Reply(_, Response::Listing(listed), _) => Some(listed),
        _ => None,
    });
    let listed = listed.expect("answered");
    let with = listed.iter().filter(|l| l.entry.is_some()).count();
    (listed.len(), with)
}

/// The kernel looks a name up that is new to it.
fn look_up(s: &mut Story, is_there: bool) {
    let effects = s.ask(Operation::Lookup {
        parent: DIRECTORY,
        name: types::Name::new(b"one of them").expect("a name"),
    });
    let mut attr = s.attr;
    attr.ino = InodeId::new(INO.shard(), INO.index() + 1);
    attr.kind = types::FileKind::File;
    let reply = match is_there {
        true => meta::Reply::Entry {
            ino: attr.ino,
            kind: attr.kind,
            attr: Some(attr),
        },
        false => meta::Reply::Absent,
    };
    answer_op(s, &effects, reply);
}

/// The owner is asked for something, and answers.
fn answer_op(s: &mut Story, effects: &[Effect], reply: meta::Reply) {
    let call = effects.iter().find_map(|effect| match effect {
        Effect::Call(call, _, Ask::Op { .. }) => Some(*call),
        _ => None,
    });
    s.answer(call.expect("the owner is asked"), reply);
}

#[test]
fn who_never_looks_is_told_names_alone_after_a_while() {
    let mut s = Story::new(PAGE);
    // Three times as many are known as of files that are used.
    let room = 3 * types::limits::INODE_COUNT_MAX as u64 / 4 * 3;
    let mut cookie = 2;
    for _ in 0..room.div_ceil(COUNT) {
        let (plus, size, effects) = list(&mut s, cookie);
        assert!(plus, "at {cookie}");
        assert_eq!(size, 32 << 10);
        // What is listed takes little memory: the directory alone has more.
        let heavy = s.slice.inode_weight() - s.slice.inodes.len();
        assert!(heavy <= 2, "{heavy}");
        // Four are kept back, so that who looks has to ask.
        assert_eq!(shown(&effects), (4096, 4092));
        cookie += COUNT;
    }
    let (plus, size, effects) = list(&mut s, cookie);
    assert!(!plus);
    assert_eq!(shown(&effects), (4096, 0));
    // As many names of one byte as the owner may answer fit with the room for attributes that are not there.
    let (short, long) = (
        crate::request::listed_size(1, false),
        crate::request::listed_size(1, true),
    );
    assert!(size as usize / short * long <= 32 << 10 && size > 6000);
    // The kernel would not believe them any more.
    let directory = s.slice.inode(DIRECTORY);
    directory.unlooked_count = 1;
    assert!(list(&mut s, cookie).0);
    s.now = s.now + Duration::from_millis(600);
    assert!(!list(&mut s, cookie).0);
    // Somebody looks: the next ones come with attributes. So do those of the next scan.
    look_up(&mut s, false);
    assert!(!list(&mut s, cookie).0, "nothing is there");
    look_up(&mut s, true);
    assert!(list(&mut s, cookie).0);
    let directory = s.slice.inode(DIRECTORY);
    directory.unlooked_count = 1 << 20;
    assert!(!list(&mut s, cookie).0);
    assert!(list(&mut s, 0).0);
}

/// A file is made in the directory.
fn make(s: &mut Story, number: u64) {
    let effects = s.ask(Operation::Make {
        parent: DIRECTORY,
        name: types::Name::new(number.to_string().as_bytes()).expect("a name"),
        kind: crate::request::NewKind::Node {
            mode: 0o100_600,
            rdev: 0,
        },
    });
    let (mut attr, directory) = (s.attr, s.attr);
    attr.ino = InodeId::new(INO.shard(), INO.index() + 1 + number);
    attr.kind = types::FileKind::File;
    let made = meta::Reply::Made {
        attr: Some(attr),
        ino: attr.ino,
        directory,
        is_new: true,
    };
    answer_op(s, &effects, made);
}

/// The kernel of a node that is alone has all of what it has made: it is listed by names, if attributes would be shown of less.
#[test]
fn what_was_just_made_is_listed_by_its_names() {
    let alone = Duration::from_millis(types::limits::KERNEL_TIMEOUT_ALONE_MS);
    let few = |s: &mut Story| {
        s.slice.limit_inodes(1);
        s.slice.room_for_entries() as u64
    };
    let room = few(&mut Story::new(PAGE));
    for (count, is_alone, looks, pause, is_known) in [
        (room, true, false, Duration::from_secs(1), true),
        (room, false, false, Duration::from_secs(0), false),
        (room - 1, true, false, Duration::from_secs(1), false),
        (room, true, true, Duration::from_secs(1), false),
        (room, true, false, Duration(alone.0 / 2), false),
    ] {
        let mut s = Story::new(PAGE);
        s.attr.kind = types::FileKind::Directory;
        few(&mut s);
        if is_alone {
            s.slice.believe(alone);
        }
        for number in 0..count {
            look_up(&mut s, false);
            make(&mut s, number);
        }
        if looks {
            look_up(&mut s, true);
        }
        s.now = s.now + pause;
        let (plus, _, _) = list(&mut s, 0);
        assert_eq!(!plus, is_known, "{count} {is_alone} {looks} {pause:?}");
    }
}

/// The kernel does not believe what it was shown of files that were written since: it asks for their attributes, one by one.
#[test]
fn what_was_written_since_it_was_made_is_listed_with_attributes_again() {
    let mut s = Story::new(PAGE);
    s.attr.kind = types::FileKind::Directory;
    s.slice.limit_inodes(1);
    s.slice.believe(Duration::from_millis(
        types::limits::KERNEL_TIMEOUT_ALONE_MS,
    ));
    for number in 0..s.slice.room_for_entries() as u64 {
        make(&mut s, number);
    }
    assert!(!list(&mut s, 0).0);
    let handle = None;
    let ino = InodeId::new(INO.shard(), INO.index() + 1);
    s.ask(Operation::GetAttr { ino, handle });
    assert!(!list(&mut s, COUNT).0, "one is none");
    for _ in 0..100 {
        s.ask(Operation::GetAttr { ino, handle });
    }
    assert!(list(&mut s, 2 * COUNT).0);
}

#[test]
fn who_may_know_few_inodes_is_shown_few() {
    let mut s = Story::new(PAGE);
    s.slice.limit_inodes(256);
    assert!(list(&mut s, 2).0);
    assert!(!list(&mut s, 2 + COUNT).0);
}

/// The kernel links the names of a listing after it has taken the answer, and believes them from then on: also where that is written late.
#[test]
fn names_that_were_just_listed_are_waited_for() {
    // It is written after `late_ms`, or when the revoke is under way.
    for (late_ms, pause_ms, expected_ms) in [
        (Some(0), 10, 340),
        (Some(0), 400, 0),
        (Some(400), 10, 340),
        (None, 400, 350),
    ] {
        let written_before = late_ms.is_some();
        let mut s = Story::new(PAGE);
        s.attr.kind = types::FileKind::Directory;
        s.hold_directory();
        s.now = s.now + Duration::from_secs(10);
        let (_, _, effects) = list(&mut s, 2);
        assert!(shown(&effects).1 > 0);
        if let Some(late_ms) = late_ms {
            s.now = s.now + Duration::from_millis(late_ms);
            s.input(Input::Replied(Pin::Names(DIRECTORY)));
        }
        s.now = s.now + Duration::from_millis(pause_ms);
        let mut effects = s.revoke_names(1, DirectoryMode::Write);
        if !written_before {
            for _ in 0..100 {
                assert!(!is_released(&effects), "it is not written yet");
                s.now = s.now + Duration::from_millis(20);
                effects = s.input(Input::Tick);
            }
            let written = s.input(Input::Replied(Pin::Names(DIRECTORY)));
            effects = s.notified(written);
        }
        let begin = s.now;
        for _ in 0..1000 {
            if is_released(&effects) {
                break;
            }
            s.now = s.now + Duration::from_millis(1);
            effects = s.input(Input::Tick);
        }
        assert_eq!(s.now.since(begin).0 / 1_000_000, expected_ms);
    }
}

/// Who waits for a directory's names does not wait for those who look the directory itself up all the time; but for the answer that has shown it before, so that
/// its attributes are dropped after that.
#[test]
fn who_looks_the_directory_up_holds_nobody_up() {
    let mut s = Story::new(PAGE);
    s.attr.kind = types::FileKind::Directory;
    s.hold_directory();
    s.slice.inode(DIRECTORY).lookup_count = 1;
    s.slice
        .shown
        .note(DIRECTORY, s.now + Duration::from_millis(350));
    let shows = |s: &mut Story| s.slice.inode(DIRECTORY).unwritten_replies += 1;
    let written = |s: &mut Story| s.input(Input::Replied(Pin::Inode(DIRECTORY)));
    shows(&mut s);
    let effects = s.revoke_names(1, DirectoryMode::Write);
    let is_notice = |e: &Effect| matches!(e, Effect::Notify(..));
    assert!(!effects.iter().any(is_notice), "{effects:?}");
    let effects = written(&mut s);
    assert!(effects.iter().any(is_notice), "{effects:?}");
    s.notified(effects);
    for ms in (0..=350).step_by(50) {
        shows(&mut s);
        let mut effects = written(&mut s);
        effects.extend(s.input(Input::Tick));
        assert_eq!(is_released(&effects), ms == 350, "{ms} ms");
        s.now = s.now + Duration::from_millis(50);
    }
}

/// The kernel has forgotten it with all its names.
#[test]
fn of_a_removed_directory_nothing_is_left() {
    let mut s = Story::new(PAGE);
    s.attr.kind = types::FileKind::Directory;
    s.hold_directory();
    let (_, _, effects) = list(&mut s, 2);
    assert!(shown(&effects).1 > 0);
    s.input(Input::Replied(Pin::Names(DIRECTORY)));
    let mut attr = s.attr;
    (attr.nlink, attr.change) = (0, attr.change + 1);
    s.slice.inode(DIRECTORY).learn_attr(&attr);
    let effects = s.ask(Operation::Forget {
        ino: DIRECTORY,
        count: 1,
    });
    assert!(is_released(&effects), "{effects:?}");
    assert!(!s.slice.inodes.contains_key(&DIRECTORY));
}

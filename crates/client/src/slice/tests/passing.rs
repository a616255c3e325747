//! What a thread hears that looks a file up under one name and then under another one.

use super::*;
use crate::names::Arrival;
use types::{FileKind, Name};

fn request(pid: u32, operation: Operation) -> Request {
    Request {
        ticket: Ticket(1),
        caller: Caller {
            uid: 0,
            gid: 0,
            pid,
            ..Caller::default()
        },
        operation,
    }
}

/// A name leads to the file, says its owner: the error with which the lookup is answered, if any.
fn look_up(s: &mut Story, pid: u32, parent: InodeId, name: &str) -> Option<Errno> {
    let mut arrival = Arrival::lesson(INO, Some(s.attr), false, (0, false));
    let name = Name::new(name.as_bytes()).expect("a name");
    arrival.request = Some(request(pid, Operation::Lookup { parent, name }));
    let effects = s.input(Input::Arrive(arrival));
    let answer = effects.iter().find_map(|effect| match effect {
        Effect::Reply(_, Response::Error(errno), _) => Some(Some(*errno)),
        Effect::Reply(_, Response::Entry(Some(_), _), _) => Some(None),
        _ => None,
    });
    answer.unwrap_or_else(|| panic!("{effects:?}"))
}

const AGAIN: Option<Errno> = Some(Errno::ESTALE);
const OTHER: InodeId = InodeId::new(ShardId(3), 9);

fn story() -> Story {
    let mut s = Story::new(PAGE);
    s.open(InodeMode::Exclusive, ByteRange::ALL);
    s
}

#[test]
fn a_file_that_passes_from_one_name_to_another_is_looked_up_again() {
    let names = [(InodeId::ROOT, "new"), (OTHER, "old"), (OTHER, "new")];
    let kinds = [FileKind::File, FileKind::Symlink, FileKind::Fifo];
    for ((parent, name), kind) in names.into_iter().zip(kinds) {
        let mut s = story();
        s.attr.kind = kind;
        s.attr.change += 1;
        assert_eq!(look_up(&mut s, 7, InodeId::ROOT, "old"), None);
        assert_eq!(look_up(&mut s, 7, parent, name), AGAIN, "{name}");
        // Once: the kernel looks all names up again, and so do calls that name only this one.
        assert_eq!(look_up(&mut s, 7, parent, name), None);
        assert_eq!(look_up(&mut s, 7, parent, name), None);
    }
}

#[test]
fn who_looks_the_same_name_up_again_has_it() {
    let mut s = story();
    for pid in [7, 7, 8, 7] {
        assert_eq!(look_up(&mut s, pid, InodeId::ROOT, "name"), None);
    }
    // Another thread has seen nothing of it, and one that is not known may be any.
    assert_eq!(look_up(&mut s, 9, InodeId::ROOT, "new"), None);
    assert_eq!(look_up(&mut s, 0, InodeId::ROOT, "name"), None);
    assert_eq!(look_up(&mut s, 0, InodeId::ROOT, "new"), None);
    // What it has looked up last is something else.
    let name = Name::new(b"else").expect("a name");
    let lookups = s.readers.lookups();
    lookups.note(8, (InodeId::ROOT, &name), OTHER, s.now);
    assert_eq!(look_up(&mut s, 8, InodeId::ROOT, "new"), None);
}

/// Several names are the file's, or a directory's path, which is not to be dropped; on a node that is alone nobody else renames.
#[test]
fn what_may_have_both_names_is_shown_under_both() {
    for (nlink, kind, is_alone) in [
        (2, FileKind::File, false),
        (1, FileKind::Directory, false),
        (1, FileKind::File, true),
    ] {
        let mut s = story();
        (s.attr.nlink, s.attr.kind) = (nlink, kind);
        s.attr.change += 1;
        if is_alone {
            s.slice.believe(Duration::from_secs(60));
        }
        for name in ["old", "new", "old"] {
            assert_eq!(look_up(&mut s, 7, InodeId::ROOT, name), None, "{kind:?}");
        }
    }
}

/// The lookups of one call come one after the other, at once. Others may be of two calls, between which another node may have renamed what it likes.
#[test]
fn only_lookups_of_one_call_count() {
    let asks = |s: &Story, pid: u32, operation: Operation, after: Duration| {
        let request = request(pid, operation);
        s.readers.lookups().on_request(&request, || s.now + after);
    };
    let lookup = || Operation::Lookup {
        parent: InodeId::ROOT,
        name: Name::new(b"new").expect("a name"),
    };
    let attributes = || Operation::GetAttr {
        ino: INO,
        handle: None,
    };
    let micros = |n: u64| Duration(n * 1000);
    for (pid, operation, after, answer) in [
        (7, lookup(), micros(250), AGAIN),
        (7, lookup(), micros(251), None),
        (7, attributes(), micros(1), None),
        (8, attributes(), micros(1), AGAIN),
        (8, lookup(), micros(500), AGAIN),
    ] {
        let mut s = story();
        assert_eq!(look_up(&mut s, 7, InodeId::ROOT, "old"), None);
        asks(&s, pid, operation, after);
        assert_eq!(look_up(&mut s, 7, InodeId::ROOT, "new"), answer);
    }
    // What is no single file has been looked up, too.
    let mut s = story();
    assert_eq!(look_up(&mut s, 7, InodeId::ROOT, "old"), None);
    s.attr.nlink = 2;
    s.attr.change += 1;
    assert_eq!(look_up(&mut s, 7, InodeId::ROOT, "link"), None);
    s.attr.nlink = 1;
    s.attr.change += 1;
    assert_eq!(look_up(&mut s, 7, InodeId::ROOT, "link"), None);
}

/// This node has renamed it: the thread looks it up where it has put it.
#[test]
fn what_this_node_has_renamed_is_where_it_is() {
    let mut s = story();
    assert_eq!(look_up(&mut s, 7, InodeId::ROOT, "old"), None);
    let name = |name: &[u8]| Name::new(name).expect("a name");
    let rename = Operation::Rename {
        parent: InodeId::ROOT,
        name: name(b"old"),
        new_parent: InodeId::ROOT,
        new_name: name(b"new"),
        flags: crate::request::RenameFlags::default(),
    };
    let rename = request(7, rename);
    s.input(Input::FlushThen(INO, Box::new(rename)));
    assert_eq!(look_up(&mut s, 7, InodeId::ROOT, "new"), None);
}

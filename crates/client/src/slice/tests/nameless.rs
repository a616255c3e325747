//! Files that are made without a name (O_TMPFILE): open from the beginning, and given a name by who made them alone.

use super::*;
use crate::names::Arrival;
use crate::request::Response;
use types::{FileKind, Name};

fn create(is_exclusive: bool) -> Operation {
    Operation::CreateNameless {
        parent: InodeId::ROOT,
        permissions: 0o600,
        flags: OpenFlags {
            write: true,
            exclusive: is_exclusive,
            ..OpenFlags::default()
        },
    }
}

/// The owner's answer, as it reaches the slice of the new inode.
fn made(s: &mut Story, is_exclusive: bool) -> Vec<Effect> {
    s.attr.nlink = 0;
    let arrival = Arrival {
        ino: INO,
        kind: FileKind::File,
        attr: Some(s.attr),
        grants: Vec::new(),
        request: Some(Request {
            ticket: Ticket(1),
            caller: Caller::default(),
            operation: create(is_exclusive),
        }),
        entry_timeout_ns: 0,
        told_at: s.now,
        is_kept_open: false,
        is_removal: false,
        changer: 0,
        loss_count: 0,
        was_there: false,
    };
    s.input(Input::Arrive(Box::new(arrival)))
}

fn handle_of(effects: &[Effect]) -> Handle {
    let found = effects.iter().find_map(|effect| match effect {
        Effect::Reply(_, Response::Created(_, opened), _) => Some(opened.handle),
        _ => None,
    });
    found.unwrap_or_else(|| panic!("{effects:?}"))
}

fn op_of(effects: &[Effect]) -> Option<meta::Op> {
    effects.iter().find_map(|effect| match effect {
        Effect::Call(_, _, Ask::Op { op, .. }) => Some(op.clone()),
        _ => None,
    })
}

/// What the owner is asked for a link of the file.
fn link(s: &mut Story) -> meta::Op {
    let name = Name::new(b"name").expect("a name");
    let mut left = s.ask(Operation::Link {
        ino: INO,
        parent: INO,
        name,
    });
    while let Some(Effect::ForSlice(_, input)) = left.pop_if(|e| matches!(e, Effect::ForSlice(..)))
    {
        left = s.input(input);
    }
    op_of(&left).unwrap_or_else(|| panic!("{left:?}"))
}

/// The answer waits for no token: the owner has the open on record. With its last close the owner hears of that.
#[test]
fn it_is_open_as_soon_as_it_is_made() {
    let mut s = Story::new(0);
    let handle = handle_of(&made(&mut s, false));
    assert!(s.slice.inode(INO).may_be_opened());
    s.ask(Operation::Forget { ino: INO, count: 1 });
    let effects = s.ask(Operation::Release { ino: INO, handle });
    assert!(
        matches!(op_of(&effects), Some(meta::Op::Closed { ino: INO, .. })),
        "{effects:?}"
    );
}

#[test]
fn only_its_maker_may_give_it_a_name_and_once() {
    let mut s = Story::new(0);
    made(&mut s, false);
    assert!(matches!(link(&mut s), meta::Op::LinkNameless { .. }));
    // It was refused: the name was taken, say.
    assert!(matches!(link(&mut s), meta::Op::LinkNameless { .. }));
    let arrival = Arrival {
        ino: INO,
        kind: FileKind::File,
        attr: Some(Attr {
            nlink: 1,
            change: s.attr.change + 1,
            ..s.attr
        }),
        grants: Vec::new(),
        request: Some(Request {
            ticket: Ticket(9),
            caller: Caller::default(),
            operation: Operation::Link {
                ino: INO,
                parent: InodeId::ROOT,
                name: Name::new(b"name").expect("a name"),
            },
        }),
        entry_timeout_ns: 0,
        told_at: s.now,
        is_kept_open: false,
        is_removal: false,
        changer: 0,
        loss_count: 0,
        was_there: false,
    };
    s.input(Input::Arrive(Box::new(arrival)));
    assert!(matches!(link(&mut s), meta::Op::Link { .. }));
    let mut s = Story::new(0);
    made(&mut s, true);
    assert!(matches!(link(&mut s), meta::Op::Link { .. }), "O_EXCL");
}

//! What a create opens: what it has made, and what was there.

use super::opens::{EXCLUSIVE, says_open};
use super::*;
use crate::names::Arrival;
use crate::request::Response;
use types::{FileKind, Name};

/// The answer to a create of the file.
fn created(s: &mut Story) -> Vec<Effect> {
    created_by(s, 0, OpenFlags::default(), false)
}

/// By this user, and for this; whether the file was there before.
fn created_by(s: &mut Story, uid: u32, flags: OpenFlags, was_there: bool) -> Vec<Effect> {
    let arrival = Arrival {
        ino: INO,
        kind: FileKind::File,
        attr: Some(s.attr),
        grants: Vec::new(),
        request: Some(Request {
            ticket: Ticket(1),
            caller: Caller {
                uid,
                gid: 0,
                pid: 1,
                ..Caller::default()
            },
            operation: Operation::Create {
                parent: InodeId::ROOT,
                name: Name::new(b"name").expect("a name"),
                permissions: 0o644,
                flags,
            },
        }),
        entry_timeout_ns: 0,
        told_at: s.now,
        is_kept_open: false,
        is_removal: false,
        changer: 0,
        loss_count: 0,
        was_there,
    };
    s.input(Input::Arrive(Box::new(arrival)))
}

/// The kernel asks nothing of what it believes to have made: what another node has made meanwhile it has to find.
#[test]
fn a_create_opens_what_is_there_only_for_whom_it_is_open() {
    let reads = OpenFlags {
        read: true,
        ..OpenFlags::default()
    };
    let writes = OpenFlags {
        write: true,
        ..reads
    };
    let truncates = OpenFlags {
        truncate: true,
        ..reads
    };
    for (owner, permissions, uid, flags, is_opened) in [
        (1001, 0o666, 1000, reads, false),
        (1001, 0o600, 0, writes, false),
        (0, 0o600, 0, writes, true),
        (1000, 0o600, 1000, writes, true),
        (1000, 0o466, 1000, reads, true),
        (1000, 0o466, 1000, writes, false),
        (1000, 0o466, 1000, truncates, false),
        (1000, 0o266, 1000, reads, false),
    ] {
        for (kind, was_there) in [
            (FileKind::File, true),
            (FileKind::File, false),
            (FileKind::Symlink, true),
        ] {
            let mut s = Story::new(0);
            s.attr.uid = owner;
            s.attr.permissions = permissions;
            s.attr.kind = kind;
            let mut effects = created_by(&mut s, uid, flags, was_there);
            if kind == FileKind::File {
                effects.extend(s.grant(&effects, InodeMode::Exclusive, ByteRange::ALL));
            }
            let replies: Vec<_> = effects
                .iter()
                .filter_map(|effect| match effect {
                    Effect::Reply(_, response, _) => Some(response),
                    _ => None,
                })
                .collect();
            let case = format!(
                "{owner} {permissions:o} {uid} {flags:?} {kind:?} {was_there}: {replies:?}"
            );
            match (kind, is_opened || !was_there) {
                (FileKind::File, true) => {
                    assert!(matches!(replies[..], [Response::Created(..)]), "{case}");
                }
                _ => assert!(
                    matches!(replies[..], [Response::Error(Errno::ESTALE)]),
                    "{case}"
                ),
            }
        }
    }
}

/// The token that came with a created name may be void: another node has removed the name already, say.
#[test]
fn a_create_opens_under_a_token() {
    let is_created = |e: &Effect| matches!(e, Effect::Reply(_, Response::Created(..), _));
    let mut s = Story::new(0);
    let effects = created(&mut s);
    let is_reply = |e: &Effect| matches!(e, Effect::Reply(..));
    assert!(!effects.iter().any(is_reply), "{effects:?}");
    let effects = s.grant(&effects, InodeMode::Exclusive, ByteRange::ALL);
    assert!(effects.iter().any(is_created), "{effects:?}");
    // Its revoke came first, and the release said that the file is open: the answer waits for nothing.
    let mut s = Story::new(0);
    s.number = 1;
    assert_eq!(says_open(&s.revoke(1, vec![EXCLUSIVE])), Some(true));
    let effects = created(&mut s);
    assert!(effects.iter().any(is_created), "{effects:?}");
}

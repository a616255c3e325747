//! What the owner must know of opens: files that lose their name while they are opened.

use super::*;
use crate::names::Arrival;
use crate::request::Response;
use types::{FileKind, Name};

pub(super) const EXCLUSIVE: Want = Want::Inode {
    mode: InodeMode::Exclusive,
};

fn open() -> Operation {
    Operation::Open {
        ino: INO,
        flags: OpenFlags::default(),
    }
}

fn closed_of(effects: &[Effect]) -> Option<CallId> {
    effects.iter().find_map(|effect| match effect {
        Effect::Call(
            call,
            _,
            Ask::Op {
                op: meta::Op::Closed { .. },
                ..
            },
        ) => Some(*call),
        _ => None,
    })
}

fn is_opened(effects: &[Effect]) -> bool {
    let is_open = |e: &Effect| matches!(e, Effect::Reply(_, Response::Opened(_), _));
    effects.iter().any(is_open)
}

fn is_stale(effects: &[Effect]) -> bool {
    let is_error = |e: &Effect| matches!(e, Effect::Reply(_, Response::Error(Errno::ESTALE), _));
    effects.iter().any(is_error)
}

/// What the release among `effects` says of whether the file is open.
pub(super) fn says_open(effects: &[Effect]) -> Option<bool> {
    effects.iter().find_map(|effect| match effect {
        Effect::Release(_, released) => Some(released.still_open),
        _ => None,
    })
}

/// The kernel was shown the file by its name, with an inode token.
fn look_up(s: &mut Story) {
    let effects = s.ask(Operation::GetAttr {
        ino: INO,
        handle: None,
    });
    s.grant(&effects, InodeMode::Exclusive, ByteRange::ALL);
    let now = s.now;
    let inode = s.slice.inode(INO);
    inode.lookup_count = 1;
    inode.note_shown(now, 1);
}

/// A revoke of the inode token, its notifications returned at once.
fn revoke(s: &mut Story, revoke: u64) -> Vec<Effect> {
    let effects = s.revoke(revoke, vec![EXCLUSIVE]);
    s.carry_out(effects)
}

/// The owner must not take a close for news of an open that came after it.
#[test]
fn an_open_waits_until_the_owner_has_heard_of_the_close() {
    let mut s = Story::new(PAGE);
    s.open(InodeMode::Exclusive, ByteRange::ALL);
    let handle = *s.slice.handles.keys().next().expect("opened");
    let effects = s.revoke(1, vec![EXCLUSIVE]);
    assert_eq!(says_open(&effects), Some(true));
    let effects = s.ask(Operation::Release { ino: INO, handle });
    let call = closed_of(&effects).expect("the owner is told");
    let effects = s.ask(open());
    assert!(
        effects.is_empty(),
        "{effects:?}: the owner has not answered"
    );
    let effects = s.answer(call, meta::Reply::Done);
    assert!(!effects.is_empty(), "now it goes on");
}

/// Another node has a file without a name open for the last time: who opens it now under a token alone loses it with
/// the close there. (Reads of a file that had just been replaced answered ESTALE.)
#[test]
fn a_file_without_a_name_is_not_opened_unless_the_owner_knows() {
    let mut s = Story::new(PAGE);
    s.attr.nlink = 0;
    let effects = s.ask(open());
    let effects = s.grant(&effects, InodeMode::Exclusive, ByteRange::ALL);
    assert!(is_stale(&effects), "{effects:?}");
}

/// An open that waits while the other node's removal revokes the token is told to the owner as done.
#[test]
fn an_open_that_waits_for_a_revoke_keeps_the_file() {
    let mut s = Story::new(PAGE);
    look_up(&mut s);
    s.now = Instant(Duration::from_secs(1).0);
    let effects = s.revoke(1, vec![EXCLUSIVE]);
    let notice = effects.iter().find_map(|effect| match effect {
        Effect::Notify(id, _) => *id,
        _ => None,
    });
    let effects = s.ask(open());
    assert!(effects.is_empty(), "{effects:?}: it waits");
    let effects = s.input(Input::Notified(notice.expect("attributes are cached")));
    assert_eq!(says_open(&effects), Some(true));
    s.attr.nlink = 0;
    s.attr.change += 1;
    let effects = s.grant(&effects, InodeMode::Exclusive, ByteRange::ALL);
    assert!(is_opened(&effects), "{effects:?}");
    let handle = *s.slice.handles.keys().next().expect("opened");
    let effects = s.ask(Operation::Release { ino: INO, handle });
    assert!(closed_of(&effects).is_some(), "{effects:?}");
}

/// So is one that may be on its way, for the name was shown a moment ago; if it does not come, that is taken back.
#[test]
fn a_file_just_shown_is_kept_for_its_open() {
    for comes in [true, false] {
        let mut s = Story::new(PAGE);
        look_up(&mut s);
        let effects = revoke(&mut s, 1);
        assert_eq!(says_open(&effects), Some(true));
        s.attr.nlink = 0;
        s.attr.change += 1;
        if comes {
            let effects = s.ask(open());
            let effects = s.grant(&effects, InodeMode::Exclusive, ByteRange::ALL);
            assert!(is_opened(&effects), "{effects:?}");
        }
        s.now = Instant(Duration::from_secs(1).0);
        let effects = s.input(Input::Tick);
        assert_eq!(closed_of(&effects).is_some(), !comes, "{effects:?}");
    }
    // Long after that it is not.
    let mut s = Story::new(PAGE);
    look_up(&mut s);
    s.now = Instant(Duration::from_secs(1).0);
    let effects = revoke(&mut s, 1);
    assert_eq!(says_open(&effects), Some(false));
}

/// A name that led here was looked up while another node's rename took it away: the token was asked for along, and comes with an answer that
/// leads elsewhere, when the file has no name any more. Nobody revokes it: the file was kept until its inode was evicted here.
#[test]
fn a_token_of_a_file_that_may_have_lost_its_name_is_given_back() {
    for is_current in [false, true] {
        let mut s = Story::new(PAGE);
        look_up(&mut s);
        assert_eq!(says_open(&revoke(&mut s, 1)), Some(true));
        s.number += 1;
        let kind = TokenKind::Inode {
            mode: InodeMode::Read,
        };
        let granted = story::granted(INO, s.number, kind);
        let effects = s.input(Input::Granted(Box::new(granted)));
        assert_eq!(says_open(&effects), None, "its open may come");
        if is_current {
            // Somebody asks for the attributes, and they say that it has a name.
            s.attr.change += 1;
            let effects = s.ask(Operation::GetAttr {
                ino: INO,
                handle: None,
            });
            s.grant(&effects, InodeMode::Read, ByteRange::default());
            assert!(!s.slice.inode(INO).is_name_unsure);
        }
        s.now = s.now + Duration::from_secs(1);
        let effects = s.input(Input::Tick);
        let effects = s.carry_out(effects);
        // What has a name as far as is known now is revoked before that goes.
        let expected = (!is_current).then_some(false);
        assert_eq!(says_open(&effects), expected, "{effects:?}");
        assert_eq!(closed_of(&effects).is_some(), !is_current, "{effects:?}");
    }
}

/// The same where only tokens of its bytes are left: its last name may have gone since.
#[test]
fn a_release_without_an_inode_token_is_told_once_more() {
    let mut s = Story::new(PAGE);
    s.open(InodeMode::Exclusive, ByteRange::ALL);
    s.slice.inode(INO).lookup_count = 1;
    let effects = revoke(&mut s, 1);
    let effects = s.carry_out(effects);
    assert_eq!(says_open(&effects), Some(true));
    assert_eq!(s.slice.inode(INO).inode_mode(), None);
    assert!(!s.slice.inode(INO).holder.held().is_empty(), "of its bytes");
    // Another open was expected when it was closed.
    s.slice.inode(INO).open_count = 0;
    let effects = s.input(Input::Reclaim(INO.shard(), 1));
    let effects = s.carry_out(effects);
    assert_eq!(says_open(&effects), Some(false), "{effects:?}");
    assert!(closed_of(&effects).is_some(), "{effects:?}");
}

/// An open of it asks for the attributes first: they say that it is gone.
#[test]
fn a_file_that_may_have_lost_its_name_is_asked_for_before_it_is_opened() {
    let mut s = Story::new(PAGE);
    look_up(&mut s);
    assert_eq!(says_open(&revoke(&mut s, 1)), Some(true));
    s.now = s.now + Duration::from_secs(1);
    let call = closed_of(&s.input(Input::Tick)).expect("nothing was opened");
    s.answer(call, meta::Reply::Done);
    s.number += 1;
    let kind = TokenKind::Inode {
        mode: InodeMode::Read,
    };
    let granted = story::granted(INO, s.number, kind);
    s.input(Input::Granted(Box::new(granted)));
    let effects = s.ask(open());
    assert!(!is_opened(&effects), "{effects:?}");
    s.attr.nlink = 0;
    s.attr.change += 1;
    let effects = s.grant(&effects, InodeMode::Read, ByteRange::default());
    assert!(is_stale(&effects), "{effects:?}");
}

/// Writers of two nodes share it, and it is closed here: it has a name, as far as is known, and nobody is told.
#[test]
fn a_close_of_a_shared_file_tells_nobody() {
    let mut s = Story::new(PAGE);
    look_up(&mut s);
    let effects = s.ask(open());
    assert!(is_opened(&effects), "{effects:?}");
    let shared = Want::Inode {
        mode: InodeMode::SharedWrite,
    };
    let effects = s.revoke(1, vec![shared]);
    let effects = s.carry_out(effects);
    assert_eq!(says_open(&effects), Some(true), "{effects:?}");
    s.slice.inode(INO).open_count = 0;
    s.now = s.now + Duration::from_secs(1);
    let effects = s.input(Input::Tick);
    let effects = s.carry_out(effects);
    assert_eq!((closed_of(&effects), says_open(&effects)), (None, None));
    assert_eq!(
        s.slice.inode(INO).inode_mode(),
        Some(InodeMode::SharedWrite)
    );
}

/// Tokens of a file without a name that was open go without being asked for, and nobody knows whether that arrives: an owner that began anew
/// kept the file as long as this node lived.
#[test]
fn a_release_of_what_has_no_name_is_told_once_more() {
    for is_nameless in [true, false] {
        let mut s = Story::new(PAGE);
        look_up(&mut s);
        assert_eq!(says_open(&revoke(&mut s, 1)), Some(true));
        s.attr.nlink = u32::from(!is_nameless);
        s.attr.change += 1;
        let effects = s.ask(open());
        let effects = s.grant(&effects, InodeMode::Exclusive, ByteRange::ALL);
        assert!(is_opened(&effects), "{effects:?}");
        // Closed while an open of another thread may come: that is told later.
        s.slice.inode(INO).open_count = 0;
        s.now = s.now + Duration::from_secs(1);
        let effects = s.input(Input::Reclaim(INO.shard(), 1));
        let effects = s.carry_out(effects);
        assert_eq!(says_open(&effects), Some(false), "{effects:?}");
        let call = closed_of(&effects);
        assert_eq!(call.is_some(), is_nameless, "{effects:?}");
        if let Some(call) = call {
            s.slice.inode(INO).lookup_count = 0;
            s.input(Input::Tick);
            assert_eq!(s.slice.counts().0, 1, "it is known until that is answered");
            s.answer(call, meta::Reply::Absent);
            assert_eq!(s.slice.counts().0, 0);
        }
    }
}

/// The removal of another node revokes a token whose answer is still on its way: the name that it shows is opened yet.
#[test]
fn a_file_about_to_be_shown_is_kept_for_its_open() {
    let mut s = Story::new(PAGE);
    let question = s.ask(Operation::GetAttr {
        ino: INO,
        handle: None,
    });
    s.number = 1;
    let effects = s.revoke(1, vec![EXCLUSIVE]);
    assert_eq!(says_open(&effects), Some(true));
    s.number = 0;
    s.grant(&question, InodeMode::Read, ByteRange::default());
    s.attr.nlink = 0;
    s.attr.change += 1;
    let effects = s.ask(open());
    s.number = 1;
    let effects = s.grant(&effects, InodeMode::Exclusive, ByteRange::ALL);
    assert!(is_opened(&effects), "{effects:?}");
    // Said again, it stays said.
    assert_eq!(says_open(&revoke(&mut s, 2)), Some(true));
    assert_eq!(says_open(&revoke(&mut s, 3)), Some(true));
}

/// An answer that was on its way while the token was lost does not make old attributes current under a later token
/// that came without any.
#[test]
fn attributes_of_before_a_loss_are_not_current() {
    let mut s = Story::new(PAGE);
    let late = s.attr;
    let question = s.ask(Operation::GetAttr {
        ino: INO,
        handle: None,
    });
    look_up(&mut s);
    assert!(s.slice.inode(INO).is_attr_fresh);
    assert!(is_released(&revoke(&mut s, 1)));
    let call = call_of(&question);
    let answer = Answer::bare(Body::Acquired { attr: Some(late) });
    s.input(Input::Answer(call, Box::new(answer)));
    assert!(!s.slice.inode(INO).is_attr_fresh);
}

/// Nor under one that came with another answer, and where no token was here that could be lost.
#[test]
fn attributes_of_before_a_token_are_not_current() {
    let mut s = Story::new(PAGE);
    let late = s.attr;
    let question = s.ask(Operation::GetAttr {
        ino: INO,
        handle: None,
    });
    let mode = InodeMode::Read;
    let token = story::granted(INO, 9, TokenKind::Inode { mode });
    s.input(Input::Granted(Box::new(token)));
    let call = call_of(&question);
    let answer = Answer::bare(Body::Acquired { attr: Some(late) });
    s.input(Input::Answer(call, Box::new(answer)));
    assert!(!s.slice.inode(INO).is_attr_fresh);
}

/// Nor under one that came without any, and before which another node could change them: it was one to write beside others.
#[test]
fn attributes_of_before_a_token_that_covers_them_are_not_current() {
    let mut s = Story::new(PAGE);
    s.open(InodeMode::SharedWrite, ByteRange::ALL);
    s.slice.inode(INO).is_attr_fresh = true;
    assert!(!s.slice.inode(INO).is_attr_current());
    let mode = InodeMode::Read;
    let token = story::granted(INO, 9, TokenKind::Inode { mode });
    s.input(Input::Granted(Box::new(token)));
    let inode = s.slice.inode(INO);
    assert!(inode.covers_attr() && !inode.is_attr_current());
    assert!(!inode.is_name_unsure);
    // Under that one nobody else changes them.
    inode.is_attr_fresh = true;
    let mode = InodeMode::Exclusive;
    let token = story::granted(INO, 10, TokenKind::Inode { mode });
    s.input(Input::Granted(Box::new(token)));
    assert!(s.slice.inode(INO).is_attr_current());
}

/// Answers the question among `effects`, and hands on what goes to another inode; what follows from both.
fn answer_all(s: &mut Story, effects: &[Effect], reply: meta::Reply) -> Vec<Effect> {
    let call = call_of(effects);
    let effects = s.answer(call, reply);
    s.settle(effects)
}

/// A rename through this node gives what moves, and what it changes places with, a new ctime: what is known here is of
/// before, and so is an answer that was asked for before.
#[test]
fn attributes_of_before_a_rename_are_not_current() {
    let mut s = Story::new(PAGE);
    look_up(&mut s);
    let ids = |first: u64| (first..).map(|index| InodeId::new(ShardId(0), index));
    let here = |ino: &InodeId| slice_of(*ino) == slice_of(INO);
    let parent = ids(40).find(here).expect("one in 16");
    let another = ids(400).find(here).expect("one in 16");
    let name = |bytes| Name::new(bytes).expect("a name");
    for (exchange, ino, replaced) in [(false, INO, None), (true, another, Some(INO))] {
        s.slice.inode(INO).is_attr_fresh = true;
        let losses = s.slice.inode(INO).loss_count;
        let question = s.ask(Operation::Rename {
            parent,
            name: name(b"a"),
            new_parent: parent,
            new_name: name(b"b"),
            flags: crate::request::RenameFlags {
                exchange,
                ..Default::default()
            },
        });
        let source = meta::Reply::Entry {
            ino,
            kind: FileKind::File,
            attr: None,
        };
        let question = answer_all(&mut s, &question, source);
        let directory = Attr {
            ino: parent,
            kind: FileKind::Directory,
            ..s.attr
        };
        let renamed = meta::Reply::Renamed {
            ino,
            replaced,
            kept_open: false,
            directory,
            new_directory: None,
        };
        let done = answer_all(&mut s, &question, renamed);
        let is_done = |e: &Effect| matches!(e, Effect::Reply(_, Response::Done, _));
        assert!(done.iter().any(is_done), "{done:?}");
        let inode = s.slice.inode(INO);
        assert!(!inode.is_attr_fresh, "exchange: {exchange}");
        assert!(inode.loss_count > losses);
        assert!(inode.attr.is_some_and(|a| a.nlink == 1) && !inode.is_gone);
    }
}

/// Another thread of this node removes the name that one was just shown, but the answer has not come to the kernel; who removes it has
/// looked it up himself.
#[test]
fn a_file_just_shown_is_kept_from_its_own_node() {
    for (remover, is_kept) in [(1, false), (2, true)] {
        let mut s = Story::new(PAGE);
        look_up(&mut s);
        s.slice.inode(INO).lookup_count = 0;
        let effects = removed(&mut s, remover);
        assert_eq!(closed_of(&effects).is_none(), is_kept, "{effects:?}");
        let effects = s.ask(open());
        assert_eq!(is_opened(&effects), is_kept, "{effects:?}");
    }
}

/// A thread found the name in the kernel, long after that was shown, and stands still until another has put a new file in its place:
/// its open is served, however late. What the kernel has forgotten nobody opens, and what it does not forget is not kept for ever.
/// (A machine that stood still for a moment: `posix swaps` heard ESTALE.)
#[test]
fn a_file_that_is_replaced_is_kept_while_the_kernel_knows_it() {
    for (pause_ms, is_kept) in [(0, true), (1000, true), (2000, true), (4000, false)] {
        let mut s = Story::new(PAGE);
        look_up(&mut s);
        s.now = s.now + Duration::from_secs(60);
        let effects = removed(&mut s, 1);
        assert_eq!(closed_of(&effects), None, "{effects:?}");
        let mut is_told = false;
        for _ in 0..pause_ms / 100 {
            s.now = s.now + Duration::from_millis(100);
            let effects = s.input(Input::Tick);
            is_told |= closed_of(&effects).is_some();
        }
        assert_eq!(is_told, !is_kept, "{pause_ms}");
        let effects = s.ask(open());
        assert_eq!(is_opened(&effects), is_kept, "{effects:?}");
    }
    let mut s = Story::new(PAGE);
    look_up(&mut s);
    removed(&mut s, 1);
    let call = closed_of(&forget(&mut s)).expect("the owner is told");
    s.answer(call, meta::Reply::Absent);
    assert_eq!(s.slice.counts().0, 0);
}

/// One thread of this node removes the last name after it was shown to another: what the owner says of it.
fn removed(s: &mut Story, remover: u32) -> Vec<Effect> {
    let arrival = Arrival::lesson(INO, None, true, (remover, true));
    s.input(Input::Arrive(arrival))
}

/// Of an inode that came back by an extended attribute a token is held and nothing else known.
#[test]
fn a_file_of_which_little_is_known_is_closed_after_it_was_replaced() {
    for forgets in [true, false] {
        let mut s = Story::new(PAGE);
        let mode = InodeMode::Read;
        let granted = story::granted(INO, 1, TokenKind::Inode { mode });
        s.input(Input::Granted(Box::new(granted)));
        s.slice.inode(INO).lookup_count = 1;
        removed(&mut s, 1);
        let effects = match forgets {
            true => forget(&mut s),
            false => {
                s.now = Instant(Duration::from_secs(4).0);
                s.input(Input::Tick)
            }
        };
        let call = closed_of(&effects).expect("the owner is told");
        s.answer(call, meta::Reply::Absent);
        if forgets {
            assert_eq!(s.slice.counts().0, 0);
        }
    }
}

/// Its token is revoked while it is kept: the owner goes on to take it for open.
#[test]
fn a_release_says_that_what_is_kept_is_open() {
    let mut s = Story::new(PAGE);
    look_up(&mut s);
    s.now = s.now + Duration::from_secs(60);
    removed(&mut s, 1);
    s.now = s.now + Duration::from_secs(1);
    assert_eq!(says_open(&revoke(&mut s, 1)), Some(true));
    s.now = s.now + Duration::from_secs(3);
    let effects = s.input(Input::Tick);
    assert!(closed_of(&effects).is_some(), "{effects:?}");
}

/// A third thread has it open while the last name goes: its close does not end what the second one waits for, but the time does.
#[test]
fn a_close_does_not_end_what_is_kept_for_another_open() {
    let mut s = Story::new(PAGE);
    look_up(&mut s);
    let effects = s.ask(open());
    assert!(is_opened(&effects), "{effects:?}");
    let handle = *s.slice.handles.keys().next().expect("opened");
    removed(&mut s, 2);
    let effects = s.ask(Operation::Release { ino: INO, handle });
    assert_eq!(closed_of(&effects), None, "{effects:?}");
    let effects = s.ask(open());
    assert!(is_opened(&effects), "{effects:?}");
    let handle = *s.slice.handles.keys().next().expect("opened");
    s.now = Instant(Duration::from_secs(4).0);
    let effects = s.input(Input::Tick);
    assert_eq!(closed_of(&effects), None, "{effects:?}: it is open");
    let effects = s.ask(Operation::Release { ino: INO, handle });
    assert!(closed_of(&effects).is_some(), "{effects:?}");
}

/// A symbolic link is read as a file is opened: it is kept for who was shown it.
#[test]
fn a_link_just_shown_is_kept_from_its_own_node() {
    for (kind, is_kept) in [(FileKind::Symlink, true), (FileKind::Fifo, false)] {
        let mut s = Story::new(PAGE);
        s.attr.kind = kind;
        look_up(&mut s);
        let effects = removed(&mut s, 2);
        assert_eq!(
            closed_of(&effects).is_none(),
            is_kept,
            "{kind:?}: {effects:?}"
        );
    }
}

/// A name that was looked up leads to the file, as the owner said with these attributes a moment ago.
fn found(s: &mut Story) -> Vec<Effect> {
    let mut arrival = Arrival::lesson(INO, Some(s.attr), false, (0, false));
    arrival.request = Some(Request {
        ticket: Ticket(1),
        caller: Caller {
            uid: 0,
            gid: 0,
            pid: 1,
            ..Caller::default()
        },
        operation: Operation::Lookup {
            parent: InodeId::ROOT,
            name: Name::new(b"name").expect("a name"),
        },
    });
    s.input(Input::Arrive(arrival))
}

fn looks_again(effects: &[Effect]) -> bool {
    let is_again = |e: &Effect| {
        matches!(
            e,
            Effect::ForSlice(InodeId::ROOT, Input::LookAgain(_) | Input::Request(_))
        )
    };
    effects.iter().any(is_again)
}

/// The answer to a lookup is of before the last name went: it is looked up again, whoever keeps the file, and not for ever.
#[test]
fn a_name_is_not_shown_to_lead_to_what_lost_it() {
    let mut s = Story::new(PAGE);
    look_up(&mut s);
    removed(&mut s, 2);
    assert!(looks_again(&found(&mut s)));
    let count = (0..10_000)
        .take_while(|_| looks_again(&found(&mut s)))
        .count();
    assert!(count < 2000, "{count}");
}

/// Attributes without a link may come before what the removal taught: who was shown the name then could not open the file.
#[test]
fn a_name_is_not_shown_to_lead_to_what_has_no_link() {
    let mut s = Story::new(PAGE);
    look_up(&mut s);
    let answer = found(&mut s);
    assert!(!looks_again(&answer), "{answer:?}");
    let before = s.attr;
    s.attr.nlink = 0;
    s.attr.change += 1;
    let attr = Some(s.attr);
    s.input(Input::Arrive(Arrival::lesson(INO, attr, false, (0, false))));
    s.attr = before;
    assert!(looks_again(&found(&mut s)));
}

/// Nor while the last name may be on its way out.
#[test]
fn a_name_that_may_go_is_looked_up_when_that_is_known() {
    let mut s = Story::new(PAGE);
    look_up(&mut s);
    s.slice.inode(INO).closing_count = 1;
    let effects = found(&mut s);
    assert!(effects.is_empty(), "{effects:?}: it waits");
    let effects = s.input(Input::Unlinked(INO, crate::unlink::Unlinked::gone()));
    assert!(looks_again(&effects), "{effects:?}");
    // It stays.
    let mut s = Story::new(PAGE);
    look_up(&mut s);
    s.slice.inode(INO).closing_count = 1;
    found(&mut s);
    let effects = s.input(Input::Unlinked(INO, crate::unlink::Unlinked::failed()));
    assert!(looks_again(&effects), "{effects:?}");
}

/// The owner begins anew: what this node tells it of the file.
fn told(s: &mut Story, epoch: u64) -> Option<bool> {
    let held = s.slice.reassert(s.now, |_| true, types::Epoch(epoch));
    assert!(held.len() <= 1, "{held:?}");
    let told = held.first().map(|held| held.is_open);
    let epoch = token::server::first_number(types::Epoch(epoch));
    s.number = epoch.0;
    told
}

/// The owner heard of the open with a release, and its record was lost with it: it is told again, and of the close.
#[test]
fn a_new_owner_is_told_of_files_without_tokens() {
    let mut s = Story::new(PAGE);
    s.open(InodeMode::Exclusive, ByteRange::ALL);
    let handle = *s.slice.handles.keys().next().expect("opened");
    assert_eq!(says_open(&s.revoke(1, vec![EXCLUSIVE])), Some(true));
    assert_eq!(told(&mut s, 2), Some(true));
    assert_eq!(told(&mut s, 2), None, "the caller keeps what was told");
    let effects = s.ask(Operation::Release { ino: INO, handle });
    let call = closed_of(&effects).expect("the owner is told");
    // Until it has heard, the file is closed to the next one too. (Ranges are still held.)
    assert_eq!(told(&mut s, 3), Some(false));
    s.answer(call, meta::Reply::Done);
    assert_eq!(told(&mut s, 4), Some(false));
}

/// Under a token it is told as well, and closed by the release; without a name by itself.
#[test]
fn a_new_owner_is_told_of_open_files_with_tokens() {
    for nlink in [1, 0] {
        let mut s = Story::new(PAGE);
        s.open(InodeMode::Exclusive, ByteRange::ALL);
        s.slice.inode(INO).attr.as_mut().expect("known").nlink = nlink;
        assert_eq!(told(&mut s, 2), Some(true));
        let handle = *s.slice.handles.keys().next().expect("opened");
        let effects = s.ask(Operation::Release { ino: INO, handle });
        assert_eq!(closed_of(&effects).is_some(), nlink == 0, "{effects:?}");
        assert_eq!(says_open(&revoke(&mut s, 1)), Some(false));
    }
}

/// So is an open that waits, and one that may be on its way; if it does not come, that is taken back.
#[test]
fn a_new_owner_is_told_of_opens_to_come() {
    let mut s = Story::new(PAGE);
    let effects = s.ask(open());
    assert!(!is_opened(&effects), "{effects:?}: it waits for a token");
    assert_eq!(told(&mut s, 2), Some(true));
    let mut s = Story::new(PAGE);
    look_up(&mut s);
    s.slice.inode(INO).holder = token::Holder::new();
    assert_eq!(told(&mut s, 2), Some(true));
    s.now = Instant(Duration::from_secs(1).0);
    let effects = s.input(Input::Tick);
    assert!(closed_of(&effects).is_some(), "{effects:?}");
    let mut s = Story::new(PAGE);
    look_up(&mut s);
    assert_eq!(told(&mut s, 2), Some(false), "the release will tell");
}

/// A directory that another node removes stays until it is closed here, and no longer.
#[test]
fn the_last_close_of_a_directory_is_told() {
    let mut s = Story::new(0);
    s.attr.kind = FileKind::Directory;
    s.attr.nlink = 2;
    let effects = s.ask(Operation::OpenDir { ino: INO });
    assert!(is_opened(&effects), "{effects:?}");
    let effects = s.ask(Operation::OpenDir { ino: INO });
    assert!(is_opened(&effects), "{effects:?}");
    let attr = s.attr;
    s.slice.inode(INO).learn_attr(&attr);
    // The token went with a removal, and the owner was told that the directory is open.
    s.slice.inode(INO).is_taken_open = true;
    let handles: Vec<Handle> = s.slice.handles.keys().copied().collect();
    let close = |handle| Operation::ReleaseDir { ino: INO, handle };
    let effects = s.ask(close(handles[0]));
    assert!(closed_of(&effects).is_none(), "{effects:?}: open once more");
    let effects = s.ask(close(handles[1]));
    assert!(closed_of(&effects).is_some(), "{effects:?}");
}

/// A file that went with its last name a moment ago is not kept for whoever was shown that name: nobody opens it.
#[test]
fn a_file_that_is_gone_is_not_kept_for_an_open() {
    let mut s = Story::new(PAGE);
    look_up(&mut s);
    s.slice.inode(INO).closing_count = 1;
    s.input(Input::Unlinked(INO, crate::unlink::Unlinked::gone()));
    assert_eq!(says_open(&revoke(&mut s, 1)), Some(false));
}

/// The kernel forgets a file for which an open was to come: the owner is told before the slice forgets it too.
#[test]
fn what_the_owner_keeps_for_this_node_is_not_forgotten() {
    let mut s = Story::new(PAGE);
    look_up(&mut s);
    assert_eq!(says_open(&revoke(&mut s, 1)), Some(true));
    s.slice.inode(INO).attr.as_mut().expect("known").nlink = 0;
    let effects = s.ask(Operation::Forget { ino: INO, count: 1 });
    let call = closed_of(&effects).expect("the owner is told");
    s.answer(call, meta::Reply::Done);
    assert!(!s.slice.inodes.contains_key(&INO));
}

/// A directory that is closed here goes by this node's own doing: what the owner heard of an open once is over.
#[test]
fn what_was_heard_of_a_directory_ends_with_its_name() {
    // One without attributes is known by its token.
    for is_known in [true, false] {
        let mut s = Story::new(0);
        s.attr.kind = FileKind::Directory;
        s.attr.nlink = 2;
        let attr = s.attr;
        s.ask(Operation::OpenDir { ino: INO });
        let inode = s.slice.inode(INO);
        inode.learn_attr(&attr);
        inode.is_taken_open = true;
        let mut lesson = Arrival {
            ino: INO,
            kind: FileKind::Directory,
            attr: is_known.then_some(attr),
            grants: Vec::new(),
            request: None,
            entry_timeout_ns: 0,
            told_at: s.now,
            is_kept_open: false,
            is_removal: false,
            changer: 0,
            loss_count: 0,
            was_there: false,
        };
        lesson.attr.iter_mut().for_each(|attr| attr.nlink = 0);
        (lesson.is_removal, lesson.changer) = (true, 1);
        let effects = s.input(Input::Arrive(Box::new(lesson)));
        assert!(closed_of(&effects).is_none(), "{effects:?}: it is open");
        let handle = *s.slice.handles.keys().next().expect("opened");
        let effects = s.ask(Operation::ReleaseDir { ino: INO, handle });
        assert!(closed_of(&effects).is_some(), "{effects:?}");
    }
    let mut s = Story::new(0);
    s.attr.kind = FileKind::Directory;
    let attr = s.attr;
    let inode = s.slice.inode(INO);
    inode.learn_attr(&attr);
    inode.is_taken_open = true;
    let lesson = Arrival {
        ino: INO,
        kind: FileKind::Directory,
        attr: None,
        grants: Vec::new(),
        request: None,
        entry_timeout_ns: 0,
        told_at: s.now,
        is_kept_open: false,
        is_removal: true,
        changer: 1,
        loss_count: 0,
        was_there: false,
    };
    let effects = s.input(Input::Arrive(Box::new(lesson)));
    assert!(closed_of(&effects).is_some(), "{effects:?}");
}

/// A file that is open, has a dirty page, and loses its last name by this node's doing; `is_kept`: the owner takes this
/// node to have it open, as it does of who says nothing.
fn nameless_with_a_dirty_page(is_kept: bool) -> (Story, Handle) {
    let mut s = Story::new(PAGE);
    s.open(InodeMode::Exclusive, ByteRange::ALL);
    let handle = *s.slice.handles.keys().next().expect("opened");
    s.slice.inode(INO).lookup_count = 1;
    write_page(&mut s, 0, 100);
    s.attr.nlink = 0;
    let unlinked = crate::unlink::Unlinked::kept(s.attr, is_kept);
    s.slice.inode(INO).closing_count += 1;
    s.input(Input::Unlinked(INO, unlinked));
    (s, handle)
}

fn forget(s: &mut Story) -> Vec<Effect> {
    s.ask(Operation::Forget { ino: INO, count: 1 })
}

/// Another node has it open: what was written here is what it must read.
#[test]
fn what_is_dirty_without_a_name_goes_to_the_owner_before_the_inode_is_dropped() {
    let (mut s, handle) = nameless_with_a_dirty_page(true);
    let effects = s.ask(Operation::Release { ino: INO, handle });
    assert_eq!(closed_of(&effects), None, "the kernel knows it");
    let closed = closed_of(&forget(&mut s)).expect("the owner is told");
    assert_eq!(s.slice.counts().0, 1, "it is not known who else has it");
    // Somebody has it.
    let effects = s.answer(closed, meta::Reply::Done);
    let (call, commit) = commit_of(&effects).expect("dirty pages go");
    assert!(!commit.pieces.is_empty());
    assert_eq!(s.slice.counts().0, 1);
    s.attr.change += 1;
    s.answer(call, meta::Reply::Attr(s.attr));
    assert_eq!(s.slice.counts().0, 0);
}

/// What nobody can read is not written: temporary files cost nothing.
#[test]
fn what_is_dirty_in_a_freed_inode_goes_nowhere() {
    let (mut s, handle) = nameless_with_a_dirty_page(true);
    let effects = s.ask(Operation::Release { ino: INO, handle });
    assert_eq!(closed_of(&effects), None, "the kernel knows it");
    let closed = closed_of(&forget(&mut s)).expect("the owner is told");
    let effects = s.answer(closed, meta::Reply::Absent);
    assert!(effects.is_empty(), "{effects:?}");
    assert_eq!(s.slice.counts().0, 0);
}

/// A revoke of what is dirty overtakes the kernel's last word: the inode goes when both are through.
#[test]
fn a_nameless_inode_is_dropped_after_its_revoke() {
    let (mut s, handle) = nameless_with_a_dirty_page(true);
    s.ask(Operation::Release { ino: INO, handle });
    s.now = Instant(Duration::from_secs(4).0);
    let effects = s.input(Input::Tick);
    let closed = closed_of(&effects).expect("the owner is told");
    s.answer(closed, meta::Reply::Done);
    let effects = s.revoke(1, vec![EXCLUSIVE, write_want(ByteRange::ALL)]);
    forget(&mut s);
    let effects = s.carry_out(effects);
    let (call, _) = commit_of(&effects).expect("dirty pages go");
    s.attr.change += 1;
    let effects = s.answer(call, meta::Reply::Attr(s.attr));
    let effects = s.carry_out(effects);
    assert!(is_released(&effects), "{effects:?}");
    assert_eq!(s.slice.counts().0, 0);
}

/// Another node has it open, and may want its tokens: they go before this node forgets what it has said of them.
#[test]
fn what_is_held_without_a_name_is_released_before_the_inode_is_dropped() {
    for reply in [meta::Reply::Done, meta::Reply::Absent] {
        let is_freed = reply == meta::Reply::Absent;
        let mut s = Story::new(PAGE);
        s.open(InodeMode::Exclusive, ByteRange::ALL);
        let handle = *s.slice.handles.keys().next().expect("opened");
        s.attr.nlink = 0;
        let unlinked = crate::unlink::Unlinked::kept(s.attr, true);
        s.slice.inode(INO).closing_count += 1;
        s.input(Input::Unlinked(INO, unlinked));
        let effects = s.ask(Operation::Release { ino: INO, handle });
        let closed = closed_of(&effects).expect("the owner is told");
        let effects = s.answer(closed, reply);
        let effects = s.carry_out(effects);
        assert_eq!(is_released(&effects), !is_freed, "{effects:?}");
        assert_eq!(s.slice.counts().0, 0);
    }
}

/// The kernel looks itself whether a file is executed, but cuts it first where it is opened for reading only.
#[test]
fn a_program_that_runs_is_not_cut_by_an_open() {
    let mut s = Story::new(PAGE);
    let opening = |flags| Operation::Open { ino: INO, flags };
    let run = OpenFlags {
        read: true,
        exec: true,
        ..OpenFlags::default()
    };
    let effects = s.ask(opening(run));
    s.grant(&effects, InodeMode::Exclusive, ByteRange::ALL);
    let handle = *s.slice.handles.keys().next().expect("opened");
    let cut = OpenFlags {
        read: true,
        truncate: true,
        ..OpenFlags::default()
    };
    let effects = s.ask(opening(cut));
    let busy = Response::Error(Errno::ETXTBSY);
    assert!(matches!(&effects[..], [Effect::Reply(_, r, _)] if *r == busy));
    s.ask(Operation::Release { ino: INO, handle });
    let effects = s.ask(opening(cut));
    assert!(set_attr_of(&effects).is_some(), "it ended: {effects:?}");
}

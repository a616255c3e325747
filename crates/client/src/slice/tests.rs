//! Stories of one inode at a slice: what it asks, answers and gives up, input by input.

mod access;
mod ahead;
mod appends;
mod attributes;
mod claims;
mod creates;
mod destage;
mod evict;
mod failed_loads;
mod fill;
mod idle;
mod interrupts;
mod late;
mod listing;
mod located;
mod mapped;
mod nameless;
mod names;
mod opens;
mod passing;
mod prefetch;
mod promise;
mod punch;
mod readers;
mod refused;
mod rewrite;
mod siblings;
mod space;
mod stores;
pub(crate) mod story;
mod sweep;
mod torn;
mod walk;

use token::message::Granted;
use types::frame::FRAME_SIZE;
use types::{
    Attr, ByteRange, DirectoryMode, Duration, Holding, InodeMode, Pattern, RangeMode, SmallBytes,
    Timestamp, TokenKind, TokenNumber, Want,
};

use super::*;
use crate::env::SpaceNews;
use crate::message::Body;
use crate::request::{Caller, OpenFlags};
pub(crate) use story::Memory;
use story::{INO, PAGE, Story, call_of, commit_of, holes_to, is_released, write_want};

fn fsync(s: &mut Story) -> Vec<Effect> {
    s.ask(Operation::Fsync {
        ino: INO,
        handle: Handle(0),
        data_only: false,
    })
}

/// The first error that is answered.
fn error_of(effects: &[Effect]) -> Option<Errno> {
    effects.iter().find_map(|effect| match effect {
        Effect::Reply(_, Response::Error(errno), _) => Some(*errno),
        _ => None,
    })
}

/// The owner has no sectors.
const NONE: SpaceNews = SpaceNews::None(Errno::ENOSPC);

/// Another node truncated what this node's range does not cover: nobody told this node, whose bytes are its own.
#[test]
fn a_commit_under_an_old_size_is_made_anew() {
    let mut s = Story::new(4 * PAGE);
    s.open(InodeMode::SharedWrite, ByteRange::new(0, PAGE));
    s.write_back(1);
    // The inode token goes, with what the file was written by; the range stays.
    let wants = vec![Want::Inode {
        mode: InodeMode::Exclusive,
    }];
    let effects = s.revoke(1, wants);
    let (call, _) = commit_of(&effects).expect("times are committed first");
    s.attr.change += 1;
    assert!(is_released(&s.answer(call, meta::Reply::Attr(s.attr))));
    s.write_back(2);
    s.attr.size = 2 * PAGE;
    s.attr.change += 1;
    s.attr.size_generation += 1;
    let effects = s.revoke(2, vec![write_want(ByteRange::new(0, PAGE))]);
    let (call, commit) = commit_of(&effects).expect("the page is dirty");
    assert_eq!(commit.size_generation, 0);
    let effects = s.answer(call, meta::Reply::Resized(s.attr));
    assert!(!is_released(&effects), "its bytes are not with the owner");
    let (call, commit) = commit_of(&effects).expect("committed anew");
    assert_eq!(commit.size_generation, 1);
    assert_eq!(commit.pieces[0].bytes[..], [2; FRAME_SIZE][..]);
    s.attr.change += 1;
    assert!(is_released(&s.answer(call, meta::Reply::Attr(s.attr))));
}

/// Another node cut the file while a write waited here for tokens. The grant lets the write go on, and the end that it
/// moves is the one of now: else the owner would never hear that the file is longer, and the bytes were lost.
#[test]
fn a_write_that_a_grant_lets_go_on_knows_the_size_that_came_with_it() {
    let mut s = Story::new(4 * PAGE);
    s.open(InodeMode::SharedWrite, ByteRange::new(0, PAGE));
    s.write_back(1);
    let exclusive = Want::Inode {
        mode: InodeMode::Exclusive,
    };
    let cut = ByteRange::new(10, u64::MAX);
    let effects = s.revoke(1, vec![exclusive, write_want(cut)]);
    let (call, _) = commit_of(&effects).expect("the page is dirty");
    let frame = crate::Pool::alloc(&s.memory).expect("plenty");
    let effects = s.ask(Operation::Write {
        ino: INO,
        handle: Handle(0),
        offset: 0,
        payload: Span {
            length: 100,
            ..Span::whole(frame)
        },
        is_write_back: false,
        append: false,
        sync: false,
        kill_set_id: false,
    });
    assert!(effects.is_empty(), "{effects:?}: it waits for the revoke");
    s.attr.change += 1;
    let effects = s.answer(call, meta::Reply::Attr(s.attr));
    assert!(is_released(&effects), "{effects:?}");
    s.attr.size = 10;
    s.attr.change += 1;
    s.attr.size_generation += 1;
    s.grant(&effects, InodeMode::SharedWrite, ByteRange::new(0, PAGE));
    let effects = s.ask(Operation::Fsync {
        ino: INO,
        handle: Handle(0),
        data_only: false,
    });
    let (_, commit) = commit_of(&effects).expect("the write is dirty");
    assert_eq!((commit.size, commit.size_generation), (Some(100), 1));
}

fn open_with_truncate() -> Operation {
    Operation::Open {
        ino: INO,
        flags: OpenFlags {
            write: true,
            truncate: true,
            ..OpenFlags::default()
        },
    }
}

fn set_attr_of(effects: &[Effect]) -> Option<CallId> {
    effects.iter().find_map(|effect| match effect {
        Effect::Call(
            call,
            _,
            Ask::Op {
                op: meta::Op::SetAttr { .. },
                ..
            },
        ) => Some(*call),
        _ => None,
    })
}

/// An open that truncates has all tokens before it goes to the owner, and they stay until that has answered: with
/// NOWRITE set in the kernel it must wait for nobody there.
#[test]
fn an_open_that_truncates_takes_its_tokens_first_and_keeps_them() {
    let mut s = Story::new(4 * PAGE);
    let effects = s.ask(open_with_truncate());
    assert!(set_attr_of(&effects).is_none(), "without tokens it waits");
    let wants = effects.iter().find_map(|effect| match effect {
        Effect::Call(_, _, Ask::Acquire { wants, .. }) => Some(wants.clone()),
        _ => None,
    });
    let exclusive = Want::Inode {
        mode: InodeMode::Exclusive,
    };
    assert_eq!(
        wants,
        Some(vec![exclusive.clone(), write_want(ByteRange::ALL)])
    );
    let effects = s.grant(&effects, InodeMode::Exclusive, ByteRange::ALL);
    let call = set_attr_of(&effects).expect("now it goes");
    let effects = s.revoke(1, vec![exclusive, write_want(ByteRange::ALL)]);
    assert!(
        effects.is_empty(),
        "{effects:?}: the truncate is at the owner"
    );
    s.attr.size = 0;
    s.attr.change += 1;
    s.attr.size_generation += 1;
    let effects = s.answer(call, meta::Reply::Attr(s.attr));
    let is_opened = |e: &Effect| matches!(e, Effect::Reply(_, Response::Opened(_), _));
    assert!(effects.iter().any(is_opened), "{effects:?}");
    assert!(is_released(&effects), "{effects:?}: then its tokens go");
}

/// A page whose bytes went into metadata for haste is not clean when it was written again since.
#[test]
fn a_late_write_to_a_hasty_page_is_committed_before_the_release() {
    let mut s = Story::new(4 * PAGE);
    s.open(InodeMode::Exclusive, ByteRange::ALL);
    s.write_back(1);
    let handle = Handle(0);
    let effects = s.ask(Operation::Fsync {
        ino: INO,
        handle,
        data_only: false,
    });
    let (call, _) = commit_of(&effects).expect("fsync commits");
    s.attr.change += 1;
    s.answer(call, meta::Reply::Attr(s.attr));
    s.write_back(3);
    let effects = s.revoke(1, vec![write_want(ByteRange::ALL)]);
    let (call, _) = commit_of(&effects).expect("the page is dirty");
    // The kernel writes the page back while the revoke's flush is on its way (rule R5).
    s.write_back(2);
    s.attr.change += 1;
    let effects = s.answer(call, meta::Reply::Attr(s.attr));
    assert!(!is_released(&effects), "{effects:?}");
    let (call, commit) = commit_of(&effects).expect("the late write is committed");
    assert_eq!(commit.pieces[0].bytes[..], [2; FRAME_SIZE][..]);
    s.attr.change += 1;
    assert!(is_released(&s.answer(call, meta::Reply::Attr(s.attr))));
}

/// A page that the kernel waits for is answered whole under its range token, whoever changes the size meanwhile.
#[test]
fn a_page_cache_read_needs_no_size() {
    let mut s = Story::new(PAGE + 100);
    s.open(InodeMode::SharedWrite, ByteRange::new(0, 2 * PAGE));
    s.write_back(5);
    let wants = vec![Want::Inode {
        mode: InodeMode::Exclusive,
    }];
    let effects = s.revoke(1, wants);
    let (call, _) = commit_of(&effects).expect("times are committed first");
    s.attr.change += 1;
    assert!(is_released(&s.answer(call, meta::Reply::Attr(s.attr))));
    let effects = s.ask(Operation::Read {
        ino: INO,
        handle: Handle(0),
        offset: 0,
        length: u32::try_from(2 * PAGE).expect("small"),
        fills_page_cache: true,
    });
    let call = effects.iter().find_map(|effect| match effect {
        Effect::Call(
            call,
            _,
            Ask::Op {
                op: meta::Op::GetMap { .. },
                ..
            },
        ) => Some(*call),
        Effect::Call(_, _, ask) => panic!("{ask:?}: no token is missing"),
        _ => None,
    });
    let map = holes_to(&s, u64::MAX);
    let effects = s.answer(call.expect("the second page is loaded"), map);
    let mut replies = Vec::new();
    for effect in effects {
        if let Effect::ForSlice(_, input) = effect {
            replies.extend(s.input(input));
        }
    }
    let length = replies.iter().find_map(|effect| match effect {
        Effect::Reply(_, Response::Data(spans), _) => Some(spans.iter().map(|s| s.length).sum()),
        _ => None,
    });
    assert_eq!(length, Some(u32::try_from(2 * PAGE).expect("small")));
}

/// A truncate at the very end of what a file can have revokes a range that begins in no whole page.
#[test]
fn a_revoke_of_the_last_bytes_there_can_be_is_harmless() {
    let mut s = Story::new(PAGE);
    s.open(InodeMode::Exclusive, ByteRange::ALL);
    let last = ByteRange::new(u64::MAX - 10, u64::MAX);
    assert!(is_released(&s.revoke(1, vec![write_want(last)])));
    assert!(is_released(&s.revoke(2, vec![write_want(ByteRange::ALL)])));
}

/// Another node moved the end of file further than this node's Commit, and the news of it overtook the Commit's answer.
/// Nothing is left to tell: a Commit with a size, sent when the inode token is gone, would be refused and its bytes lost.
#[test]
fn a_size_that_the_owner_has_is_not_committed_again() {
    let mut s = Story::new(0);
    s.open(InodeMode::SharedWrite, ByteRange::new(0, PAGE));
    let effects = s.write(1, false);
    let is_written = |e: &Effect| matches!(e, Effect::Reply(_, Response::Written(_), _));
    assert!(effects.iter().any(is_written), "{effects:?}");
    let effects = s.ask(Operation::Fsync {
        ino: INO,
        handle: Handle(0),
        data_only: false,
    });
    let (call, commit) = commit_of(&effects).expect("fsync commits");
    assert_eq!(commit.size, Some(PAGE));
    let committed = Attr {
        size: PAGE,
        change: 2,
        ..s.attr
    };
    // The owner has the Commit, and another node's after it.
    let effects = s.ask(Operation::GetAttr {
        ino: INO,
        handle: None,
    });
    s.attr.size = 4 * PAGE;
    s.attr.change = 3;
    s.grant(&effects, InodeMode::Exclusive, ByteRange::new(0, PAGE));
    s.answer(call, meta::Reply::Attr(committed));
    let exclusive = Want::Inode {
        mode: InodeMode::Exclusive,
    };
    let effects = s.revoke(1, vec![exclusive]);
    assert!(commit_of(&effects).is_none(), "{effects:?}");
    assert!(is_released(&effects), "{effects:?}");
    s.write_back(2);
    let effects = s.revoke(2, vec![write_want(ByteRange::ALL)]);
    let (_, commit) = commit_of(&effects).expect("the page is dirty");
    assert_eq!(commit.size, None);
}

/// Pages that lie in metadata for haste are moved to sectors later, but not those that another node, or this one, has cut
/// meanwhile: cached again, with nothing in them, they were stored behind the end, and the Commit was refused.
#[test]
fn what_is_cut_is_not_moved_to_sectors() {
    for is_own in [true, false] {
        let mut s = Story::new(2 * PAGE);
        s.open(InodeMode::Exclusive, ByteRange::ALL);
        s.write_back(1);
        let effects = s.ask(Operation::Fsync {
            ino: INO,
            handle: Handle(0),
            data_only: false,
        });
        let (call, _) = commit_of(&effects).expect("fsync commits");
        s.attr.change += 1;
        s.answer(call, meta::Reply::Attr(s.attr));
        assert_eq!(s.slice.hasty_count, 1);
        s.attr.change += 1;
        s.attr.size = 0;
        s.attr.size_generation += 1;
        if is_own {
            let effects = s.ask(open_with_truncate());
            let call = set_attr_of(&effects).expect("its tokens are held");
            s.answer(call, meta::Reply::Attr(s.attr));
        } else {
            let exclusive = Want::Inode {
                mode: InodeMode::Exclusive,
            };
            let effects = s.revoke(1, vec![exclusive, write_want(ByteRange::ALL)]);
            assert!(is_released(&effects), "{effects:?}");
        }
        assert_eq!(s.slice.hasty_count, 0);
        assert!(s.slice.inode(INO).hasty.is_empty());
    }
}

/// Sends an unlink of the file's name by its slice; what its owner is told.
fn unlink(story: &mut Story) -> Option<InodeId> {
    story.ticket += 1;
    let request = Request {
        ticket: Ticket(story.ticket),
        caller: Caller::default(),
        operation: Operation::Unlink {
            parent: InodeId::ROOT,
            name: types::Name::new(b"file").expect("a name"),
        },
    };
    let effects = story.input(Input::UnlinkTarget(INO, request));
    match &effects[..] {
        [Effect::ForSlice(_, Input::UnlinkNow(_, _, told))] => *told,
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_unlink_says_whether_the_file_is_open_and_opens_wait_for_it() {
    let mut story = Story::new(0);
    assert_eq!(unlink(&mut story), None, "an inode that is not known here");
    story.open(InodeMode::Exclusive, ByteRange::ALL);
    assert_eq!(unlink(&mut story), None, "it is open");
    let handle = *story.slice.handles.keys().next().expect("open");
    story.ask(Operation::Release { ino: INO, handle });
    assert_eq!(unlink(&mut story), Some(INO));
    let open = || Operation::Open {
        ino: INO,
        flags: OpenFlags::default(),
    };
    let effects = story.ask(open());
    assert!(effects.is_empty(), "it waits: {effects:?}");
    // The unlink failed: the file can be opened.
    let failed = crate::unlink::Unlinked::failed();
    let effects = story.input(Input::Unlinked(INO, failed));
    assert!(matches!(
        &effects[..],
        [Effect::Reply(_, Response::Opened(_), _)]
    ));
    let handle = *story.slice.handles.keys().next().expect("open");
    story.ask(Operation::Release { ino: INO, handle });
    // It did not: the name is to be looked up again.
    assert_eq!(unlink(&mut story), Some(INO));
    assert!(story.ask(open()).is_empty());
    let gone = crate::unlink::Unlinked::gone();
    let effects = story.input(Input::Unlinked(INO, gone));
    let stale = Response::Error(Errno::ESTALE);
    assert!(matches!(&effects[..], [Effect::Reply(_, r, _)] if *r == stale));
    // It is forgotten with the kernel's last reference, without a word to the owner.
    let effects = story.ask(Operation::Forget { ino: INO, count: 1 });
    assert!(effects.is_empty());
    assert_eq!(story.slice.counts().0, 0);
}

/// Writes the first `length` bytes of page `number`.
fn write_page(s: &mut Story, number: u64, length: u32) -> Vec<Effect> {
    write_at(s, number * PAGE, length)
}

/// Writes `length` bytes, as a front end does that gives its references back.
fn write_at(s: &mut Story, offset: u64, length: u32) -> Vec<Effect> {
    let frame = crate::Pool::alloc(&s.memory).expect("the front end leaves room");
    let mut payload = Span::whole(frame);
    payload.length = length;
    let effects = s.ask(Operation::Write {
        ino: INO,
        handle: Handle(0),
        offset,
        payload,
        is_write_back: false,
        append: false,
        sync: false,
        kill_set_id: false,
    });
    crate::Pool::release(&s.memory, frame);
    settle(s, effects)
}

/// Does what the slice hands to itself, and gives back what payloads held.
fn settle(s: &mut Story, effects: Vec<Effect>) -> Vec<Effect> {
    let mut rest = Vec::new();
    let mut due = VecDeque::from(effects);
    let mut steps = 0;
    while let Some(effect) = due.pop_front() {
        steps += 1;
        assert!(steps < 1000, "a work list ends: {effect:?}");
        match effect {
            Effect::ForSlice(_, input) => due.extend(s.input(input)),
            Effect::DropPayload(span) => {
                frames_of(span).for_each(|frame| crate::Pool::release(&s.memory, frame));
            }
            other => rest.push(other),
        }
    }
    rest
}

fn is_written(effects: &[Effect]) -> bool {
    let is_it = |effect: &Effect| matches!(effect, Effect::Reply(_, Response::Written(_), _));
    effects.iter().any(is_it)
}

fn wants_frames(effects: &[Effect]) -> bool {
    let is_it = |effect: &Effect| matches!(effect, Effect::WantFrames);
    effects.iter().any(is_it)
}

/// All frames are dirty pages. A write that finds none waits for the driver's round, once for each; it does not call
/// for the next one by itself, which would keep the slice, and the end of the very Commit that frees frames, waiting.
#[test]
fn a_write_without_frames_waits_for_rounds_and_a_commit() {
    let mut s = Story::new(64 * PAGE);
    s.memory.1 = Some(8);
    s.open(InodeMode::Exclusive, ByteRange::ALL);
    let mut number = 0;
    // The payload of the one that waits is held too.
    let effects = loop {
        let effects = write_page(&mut s, number, 100);
        number += 1;
        if !is_written(&effects) {
            break effects;
        }
    };
    assert!((4..=6).contains(&number), "{number} pages fit");
    assert!(wants_frames(&effects));
    // Without a round nothing happens.
    assert!(commit_of(&effects).is_none());
    assert!(!wants_frames(&write_page(&mut s, 0, 100)), "said once");
    let effects = s.input(Input::Shrink);
    let effects = settle(&mut s, effects);
    assert!(wants_frames(&effects) && !is_written(&effects));
    let (call, commit) = commit_of(&effects).expect("dirty pages go");
    assert!(!commit.pieces.is_empty());
    s.attr.change += 1;
    let mut effects = s.answer(call, meta::Reply::Attr(s.attr));
    // Pages that were used lately go in the second round.
    for _ in 0..2 {
        effects = settle(&mut s, effects);
        if is_written(&effects) {
            return;
        }
        effects = s.input(Input::Shrink);
    }
    panic!("clean pages are evicted: {effects:?}");
}

/// What is stored is committed when frames are short, although other pages are still being stored.
#[test]
fn short_frames_do_not_wait_for_the_slowest_store() {
    for limit in [5, 1000] {
        let mut s = Story::new(64 * PAGE);
        s.memory.1 = Some(limit);
        s.has_sectors = true;
        s.open(InodeMode::Exclusive, ByteRange::ALL);
        write_page(&mut s, 0, FRAME_BYTES);
        let effects = s.input(Input::WriteBack);
        let is_store = |effect: &Effect| matches!(effect, Effect::Store(..));
        assert!(effects.iter().any(is_store), "a whole page goes to a disk");
        // Small, and waited for: inside of the next Commit.
        write_page(&mut s, 1, 100);
        let is_short = !is_written(&write_page(&mut s, 2, 100));
        assert_eq!(is_short, limit == 5);
        let effects = s.ask(Operation::Fsync {
            ino: INO,
            handle: Handle(0),
            data_only: false,
        });
        assert_eq!(commit_of(&effects).is_some(), is_short);
    }
}

/// A file of which page 0 lies at a disk, a read of that page that waits for the map, and a write of its first 100 bytes.
/// What the read asks, and the Commit.
fn read_beside_a_commit() -> (Story, CallId, (CallId, meta::Commit)) {
    let mut s = Story::new(64 * PAGE);
    s.memory.1 = Some(5);
    s.open(InodeMode::Exclusive, ByteRange::ALL);
    assert!(is_written(&write_page(&mut s, 0, 100)));
    let effects = s.ask(Operation::Read {
        ino: INO,
        handle: Handle(0),
        offset: 0,
        length: FRAME_BYTES,
        fills_page_cache: false,
    });
    let map = map_question(&effects).expect("where the rest of the page lies");
    let effects = s.input(Input::WriteBack);
    let commit = commit_of(&effects).expect("the page is dirty");
    (s, map, commit)
}

fn map_question(effects: &[Effect]) -> Option<CallId> {
    effects.iter().find_map(|effect| match effect {
        Effect::Call(
            call,
            _,
            Ask::Op {
                op: meta::Op::GetMap { .. },
                ..
            },
        ) => Some(*call),
        _ => None,
    })
}

/// The map of a file whose first `length` sectors lie in one place.
fn map_of_one(length: u32, attr: Attr) -> meta::Reply {
    let extent = types::Extent {
        file_sector: 0,
        length,
        birth: 0,
        is_shared: false,
        locations: vec![types::Location {
            nsd: types::NsdId(1),
            sector: 7,
        }],
        checksums: types::Checksums::Inline {
            crcs: vec![0; length as usize],
        },
    };
    meta::Reply::Map {
        extents: vec![extent],
        pieces: Vec::new(),
        end: u64::MAX,
        map_version: 1,
        attr,
    }
}

/// The map of before the Commit.
fn old_map(attr: Attr) -> meta::Reply {
    map_of_one(1, attr)
}

/// Evicts all that may go: what was used lately goes in the second round.
fn evict(s: &mut Story) {
    // Held by somebody else: frames are short.
    let others: Vec<FrameRef> = std::iter::from_fn(|| crate::Pool::alloc(&s.memory)).collect();
    for _ in 0..2 {
        let effects = s.input(Input::Shrink);
        settle(s, effects);
    }
    for frame in others {
        crate::Pool::release(&s.memory, frame);
    }
}

/// The load began before the Commit ended: its bytes are old where the page has newer ones, so the page stays.
#[test]
fn a_page_that_is_being_loaded_is_not_evicted() {
    let (mut s, map, (call, _)) = read_beside_a_commit();
    let effects = s.answer(map, old_map(s.attr));
    let load = effects.iter().find_map(|effect| match effect {
        Effect::Load(io, pieces) => Some((*io, pieces[0].frames[0])),
        _ => None,
    });
    let (io, frame) = load.expect("the rest of the page");
    s.attr.change += 1;
    s.answer(call, meta::Reply::Attr(s.attr));
    evict(&mut s);
    s.memory.put(Span::whole(frame), &[1; FRAME_SIZE]);
    let effects = s.input(Input::Loaded(io, Ok(())));
    let data = effects.iter().find_map(|effect| match effect {
        Effect::Reply(_, Response::Data(spans), _) => Some(s.memory.bytes(spans[0])),
        _ => None,
    });
    let data = data.expect("all is here");
    assert_eq!(data[..100], [0xee; 100], "what was written last");
    assert_eq!(data[100..], [1; FRAME_SIZE - 100]);
}

/// The owner looked before it had the Commit, and its answer comes after that of the Commit.
#[test]
fn a_map_of_before_a_commit_is_not_believed() {
    let (mut s, map, (call, _)) = read_beside_a_commit();
    s.attr.change += 1;
    s.answer(call, meta::Reply::Attr(s.attr));
    evict(&mut s);
    let effects = s.answer(map, old_map(s.attr));
    assert!(map_question(&effects).is_some(), "asked again: {effects:?}");
}

/// Revokes travel ahead of grants. Who waited for the grant is served before it goes again; a repeat of the revoke says
/// that the grant is lost.
#[test]
fn an_early_revoke_lets_the_grant_be_used_once() {
    let mut s = Story::new(4 * PAGE);
    s.open(InodeMode::Read, ByteRange::new(0, 0));
    let asked = write_page(&mut s, 0, 100);
    let early = |s: &mut Story| {
        s.number += 1;
        let effects = s.revoke(5, vec![write_want(ByteRange::new(0, PAGE))]);
        s.number -= 1;
        effects
    };
    let effects = early(&mut s);
    assert!(effects.is_empty(), "it waits for the grant: {effects:?}");
    let effects = s.grant(&asked, InodeMode::Exclusive, ByteRange::ALL);
    assert!(is_written(&effects), "{effects:?}");
    let (call, _) = commit_of(&effects).expect("and then it is given up");
    s.attr.change += 1;
    let effects = s.answer(call, meta::Reply::Attr(s.attr));
    assert!(is_released(&effects), "{effects:?}");
    write_page(&mut s, 0, 100);
    assert!(early(&mut s).is_empty());
    assert!(is_released(&early(&mut s)), "the grant is lost");
}

//! Writes into ranges that space is promised to, where there are no sectors.

use types::attr::HAS_PROMISE;

use super::story::Spare;
use super::*;
use crate::destage::HASTY_PAGES_MAX;
use crate::flush::STARVED_MAX;

const OWNER: NodeId = NodeId(2);

/// A file of eight pages, something of which is promised, is open and all its node's. What was acknowledged has no sectors.
fn without_sectors() -> Story {
    let mut s = Story::new(8 * PAGE);
    s.attr.permissions |= HAS_PROMISE;
    s.open(InodeMode::Exclusive, ByteRange::ALL);
    s
}

fn question(effects: &[Effect]) -> Option<CallId> {
    effects.iter().find_map(|effect| match effect {
        Effect::Call(
            call,
            _,
            Ask::Op {
                op: meta::Op::GetPromised { ino: INO, begin: 0 },
                ..
            },
        ) => Some(*call),
        _ => None,
    })
}

/// The owner says that these sectors are promised, and no others.
fn tell(s: &mut Story, call: CallId, ranges: &[(u64, u64)]) -> Vec<Effect> {
    let range = |(begin, end): &(u64, u64)| meta::message::SectorRange {
        begin: *begin,
        end: *end,
    };
    let reply = meta::Reply::Promised {
        ranges: ranges.iter().map(range).collect(),
        end: u64::MAX,
        attr: s.attr,
    };
    s.answer(call, reply)
}

/// There have been no sectors for long.
fn starve(s: &mut Story) -> Vec<Effect> {
    s.now = s.now + STARVED_MAX + Duration::from_secs(1);
    s.input(Input::Space(OWNER, NONE))
}

fn error(s: &mut Story) -> Option<Errno> {
    s.slice.inode(INO).errors.take_untold()
}

/// It was written with sectors as any other page, which a broken link has taken: nobody knew of the promise.
#[test]
fn what_is_promised_is_not_lost_for_want_of_sectors() {
    let mut s = without_sectors();
    s.write_back(7);
    let effects = s.input(Input::WriteBack);
    let call = question(&effects).expect("whether it is promised is asked");
    let (times, _) = commit_of(&effects).expect("the time of the write needs no sectors");
    s.attr.change += 1;
    s.answer(times, meta::Reply::Attr(s.attr));
    starve(&mut s);
    assert_eq!(error(&mut s), None, "that is not known yet");
    tell(&mut s, call, &[(0, 1)]);
    let mut effects = starve(&mut s);
    assert_eq!(error(&mut s), None);
    // None will come soon: its bytes go inside of a Commit.
    effects.extend(s.input(Input::Tick));
    let (_, commit) = commit_of(&effects).unwrap_or_else(|| panic!("{effects:?}"));
    assert_eq!(commit.pieces.len(), 1);
    assert_eq!(commit.pieces[0].bytes[..], [7; FRAME_SIZE][..]);
}

/// What lacked sectors has got them: the time since then is not held against what is written later.
#[test]
fn a_lack_that_is_over_is_not_counted() {
    let mut s = without_sectors();
    s.write_back(7);
    let call = question(&s.input(Input::WriteBack)).expect("asked");
    (s.has_sectors, s.are_promised) = (true, true);
    let mut effects = tell(&mut s, call, &[(0, 1)]);
    effects.extend(s.input(Input::Tick));
    let is_store = |e: &Effect| matches!(e, Effect::Store(..));
    assert!(effects.iter().any(is_store), "{effects:?}");
    (s.has_sectors, s.are_promised) = (false, false);
    s.now = s.now + STARVED_MAX + Duration::from_secs(1);
    // The write waits for sectors, and finds some.
    s.is_full = true;
    write_page(&mut s, 4, 4096);
    s.is_full = false;
    s.input(Input::Space(OWNER, SpaceNews::There));
    assert_eq!(error(&mut s), None);
    assert_eq!(s.slice.inode(INO).pages.dirty_count(), 1);
}

#[test]
fn what_is_not_promised_is_lost_and_told() {
    let mut s = without_sectors();
    s.write_back(7);
    let call = question(&s.input(Input::WriteBack)).expect("asked");
    tell(&mut s, call, &[(1, 2)]);
    // However long its owner cannot say whether it has some.
    for _ in 0..3 {
        s.now = s.now + STARVED_MAX + Duration::from_secs(1);
        s.input(Input::Space(OWNER, SpaceNews::Unknown));
        assert_eq!((error(&mut s), s.slice.losses().pages), (None, 0));
    }
    // One that says that it has none is heard for some time more, whatever it cannot say now and then.
    s.input(Input::Space(OWNER, NONE));
    assert_eq!(s.slice.losses().pages, 0);
    for _ in 0..2 {
        s.now = s.now + Duration::from_secs(14);
        s.input(Input::Space(OWNER, NONE));
        s.now = s.now + Duration::from_secs(2);
        s.input(Input::Space(OWNER, SpaceNews::Unknown));
    }
    s.now = s.now + Duration::from_secs(16);
    s.input(Input::Space(OWNER, NONE));
    assert_eq!(error(&mut s), Some(Errno::ENOSPC));
    assert_eq!(s.slice.losses().pages, 1);
}

/// Two pages are written back together, one of which is promised: that one has sectors.
#[test]
fn promised_pages_do_not_wait_for_others() {
    let mut s = without_sectors();
    s.write_back(7);
    let call = question(&s.input(Input::WriteBack)).expect("asked");
    tell(&mut s, call, &[(0, 1)]);
    write_page(&mut s, 1, 4096);
    (s.has_sectors, s.are_promised) = (true, true);
    let effects = s.input(Input::Tick);
    let stored: Vec<u64> = (effects.iter())
        .filter_map(|effect| match effect {
            Effect::Store(_, _, pieces) => Some(pieces.iter().map(|piece| piece.file_sector)),
            _ => None,
        })
        .flatten()
        .collect();
    assert_eq!(stored, [0], "{effects:?}");
}

/// A write waits a while for sectors that do not come back, and is then answered without any.
#[test]
fn a_write_into_a_promised_range_is_answered_without_sectors_in_the_end() {
    let mut s = without_sectors();
    s.is_full = true;
    let call = question(&s.write(7, false)).expect("asked");
    let is_answered = |effects: &[Effect]| {
        let is_it = |e: &Effect| matches!(e, Effect::Reply(_, Response::Written(_), _));
        effects.iter().any(is_it)
    };
    assert!(!is_answered(&tell(&mut s, call, &[(0, 8)])));
    assert!(!is_answered(&s.input(Input::Space(OWNER, NONE))));
    assert!(is_answered(&starve(&mut s)));
    let effects = s.write(8, false);
    assert!(!is_answered(&effects), "one at a time: {effects:?}");
}

fn commits(effects: &[Effect]) -> Vec<(CallId, meta::Commit)> {
    let commit = |effect: &Effect| commit_of(std::slice::from_ref(effect));
    effects.iter().filter_map(commit).collect()
}

/// What a store has written.
pub(super) fn extent_of(piece: &StorePiece) -> types::Extent {
    let length = u32::try_from(piece.frames.len()).expect("short");
    types::Extent {
        file_sector: piece.file_sector,
        length,
        birth: 0,
        is_shared: false,
        locations: vec![piece.run.at],
        checksums: types::extent::Checksums::Inline {
            crcs: vec![0; piece.frames.len()],
        },
    }
}

/// Where the pieces of these Commits begin.
fn pieces_of(effects: &[Effect]) -> Vec<Vec<u64>> {
    let offsets = |(_, commit): (CallId, meta::Commit)| {
        commit.pieces.iter().map(|piece| piece.offset).collect()
    };
    commits(effects).into_iter().map(offsets).collect()
}

/// Bytes that may be of promised sectors do not go inside of a Commit with others: that may be refused.
#[test]
fn no_bytes_are_committed_before_it_is_known_what_is_promised() {
    let mut s = without_sectors();
    write_page(&mut s, 0, 100);
    write_page(&mut s, 1, 100);
    let effects = fsync(&mut s);
    let (times, commit) = commit_of(&effects).expect("the time of the writes can go");
    assert!(commit.pieces.is_empty(), "{effects:?}");
    tell(&mut s, question(&effects).expect("asked"), &[(1, 2)]);
    s.attr.change += 1;
    let effects = s.answer(times, meta::Reply::Attr(s.attr));
    assert_eq!(pieces_of(&effects), [[PAGE]], "that goes by itself");
    let (promised, _) = commit_of(&effects).expect("just seen");
    s.attr.change += 1;
    let effects = s.answer(promised, meta::Reply::Attr(s.attr));
    assert_eq!(pieces_of(&effects), [[0]], "and the other after it");
}

/// Says what has come of stores and Commits, until there is nothing to do: Commits of pieces alone are refused for want of room.
/// What was committed, and what was answered.
fn without_room_for_pieces(
    s: &mut Story,
    effects: Vec<Effect>,
) -> (Vec<meta::Commit>, Vec<Effect>) {
    let mut effects = VecDeque::from(effects);
    let (mut committed, mut rest) = (Vec::new(), Vec::new());
    while let Some(effect) = effects.pop_front() {
        let more = match effect {
            Effect::Store(io, _, pieces) => {
                let extents = pieces.iter().map(extent_of).collect();
                s.input(Input::Stored(io, Ok(extents)))
            }
            Effect::Call(
                call,
                _,
                Ask::Op {
                    op: meta::Op::Commit(commit),
                    ..
                },
            ) if commit.pieces.is_empty() => {
                s.attr.change += 1;
                s.attr.size = s.attr.size.max(commit.size.unwrap_or(0));
                let end = commit.extents.last().map_or(0, |e| e.file_sector_end());
                assert!(end <= s.attr.size.div_ceil(PAGE), "{commit:?}");
                committed.push(commit);
                s.answer(call, meta::Reply::Attr(s.attr))
            }
            Effect::Call(
                call,
                _,
                Ask::Op {
                    op: meta::Op::Commit(_),
                    ..
                },
            ) => {
                let refused = Answer::bare(Body::Refused(Errno::ENOSPC));
                s.input(Input::Answer(call, Box::new(refused)))
            }
            other => {
                rest.push(other);
                continue;
            }
        };
        effects.extend(more);
    }
    (committed, rest)
}

/// There is no room for pieces. A part of a page that is not promised waits and is lost in the end; what is promised and has sectors
/// reaches the owner, with the size that it needs, and so does a whole page: whether it goes with the same fsync or while the other is
/// being refused.
#[test]
fn a_refusal_of_others_does_not_touch_what_is_promised() {
    for is_later in [false, true] {
        let mut s = Story::new(0);
        s.attr.permissions |= HAS_PROMISE;
        s.open(InodeMode::Exclusive, ByteRange::ALL);
        s.has_sectors = true;
        write_page(&mut s, 0, 100);
        let effects = fsync(&mut s);
        let call = question(&effects).expect("asked");
        let (_, mut effects) = without_room_for_pieces(&mut s, effects);
        effects.extend(tell(&mut s, call, &[(8, 32)]));
        without_room_for_pieces(&mut s, effects);
        write_page(&mut s, 1, 100);
        write_page(&mut s, 40, 100);
        let mut effects = match is_later {
            true => fsync(&mut s),
            false => Vec::new(),
        };
        (8..32).for_each(|number| _ = write_page(&mut s, number, FRAME_BYTES));
        let commit = effects.pop();
        effects.extend(fsync(&mut s));
        let stores = effects.iter().filter(|e| matches!(e, Effect::Store(..)));
        assert_eq!(stores.count(), 1);
        // The Commit that is refused, if it is on its way, before what has been stored.
        effects.splice(0..0, commit);
        let (mut committed, mut rest) = without_room_for_pieces(&mut s, effects);
        let begin = s.now;
        while error_of(&rest).is_none() {
            s.now = s.now + Duration::from_millis(100);
            let effects = s.input(Input::Tick);
            let (more, answered) = without_room_for_pieces(&mut s, effects);
            committed.extend(more);
            rest = answered;
            assert!(s.now.since(begin) < Duration::from_secs(145), "it ends");
        }
        assert_eq!(error_of(&rest), Some(Errno::ENOSPC));
        let mut sectors: Vec<u64> = (committed.iter().flat_map(|commit| &commit.extents))
            .flat_map(|extent| extent.file_sector..extent.file_sector_end())
            .collect();
        sectors.sort_unstable();
        assert_eq!(sectors, (8..32).chain([40]).collect::<Vec<u64>>());
        assert!(!s.slice.inode(INO).is_dirty());
        let visible = s.slice.inode(INO).visible_attr().expect("known").size;
        assert_eq!(visible, s.attr.size);
    }
}

/// A few sectors are there for what is promised, and many pages wait: these go in parts that get smaller until they fit.
#[test]
fn promised_pages_ask_for_less_where_there_is_little() {
    let mut s = without_sectors();
    let mut effects = Vec::new();
    (0..600).for_each(|number| effects.extend(write_page(&mut s, number, FRAME_BYTES)));
    let call = question(&effects).expect("asked");
    (s.has_sectors, s.are_promised, s.sectors_max) = (true, true, 100);
    s.input(Input::WriteBack);
    let mut effects = VecDeque::from(tell(&mut s, call, &[(0, 1000)]));
    let mut stored = 0;
    for round in 0.. {
        while let Some(effect) = effects.pop_front() {
            let more = match effect {
                Effect::Store(io, _, pieces) => {
                    stored += pieces.iter().map(|piece| piece.frames.len()).sum::<usize>();
                    let extents = pieces.iter().map(extent_of).collect();
                    s.input(Input::Stored(io, Ok(extents)))
                }
                Effect::Call(
                    call,
                    _,
                    Ask::Op {
                        op: meta::Op::Commit(_),
                        ..
                    },
                ) => {
                    s.attr.change += 1;
                    s.answer(call, meta::Reply::Attr(s.attr))
                }
                _ => continue,
            };
            effects.extend(more);
        }
        assert_eq!(stored > 0, round >= 2, "{stored} in round {round}");
        if stored == 600 {
            return;
        }
        assert!(round < 60, "{stored} pages of 600");
        effects.extend(s.input(Input::Space(OWNER, NONE)));
    }
}

/// Pages go inside of Commits for want of sectors, and lie there until there are some: they are none of those that somebody
/// waited for, of which there may be a few at a time, and do not wait for these.
#[test]
fn what_goes_without_sectors_takes_nobodys_place() {
    let mut s = Story::new(1000 * PAGE);
    s.attr.permissions |= HAS_PROMISE;
    s.open(InodeMode::Exclusive, ByteRange::ALL);
    write_page(&mut s, 0, FRAME_BYTES);
    let mut effects = s.input(Input::WriteBack);
    let call = question(&effects).expect("asked");
    let commit = |s: &mut Story, mut effects: Vec<Effect>| {
        let mut pages = 0;
        while let Some((call, commit)) = commit_of(&effects) {
            pages += commit.pieces.len();
            s.attr.change += 1;
            effects = s.answer(call, meta::Reply::Attr(s.attr));
        }
        pages
    };
    effects.extend(tell(&mut s, call, &[(0, 8)]));
    assert_eq!(commit(&mut s, effects), 0);
    starve(&mut s);
    let effects = s.input(Input::Tick);
    assert_eq!(commit(&mut s, effects), 1);
    assert_eq!(s.slice.hasty_count, 0);
    // As many as may be of others.
    s.is_full = true;
    s.spare.set(Spare {
        in_hand: 256,
        ..Spare::default()
    });
    for first in (100..356).step_by(16) {
        (first..first + 16).for_each(|number| _ = write_page(&mut s, number, FRAME_BYTES));
        let effects = fsync(&mut s);
        assert_eq!(commit(&mut s, effects), 16);
    }
    assert_eq!(s.slice.hasty_count, HASTY_PAGES_MAX);
    s.is_full = false;
    write_page(&mut s, 1, FRAME_BYTES);
    s.is_full = true;
    let mut effects = s.input(Input::WriteBack);
    effects.extend(starve(&mut s));
    assert_eq!(commit(&mut s, effects), 1, "it does not wait for these");
}

/// A stream into a promised range always has something stored: bytes that somebody syncs behind it have their turn all the same.
#[test]
fn commits_of_what_is_promised_and_of_others_take_turns() {
    let mut promise = crate::promise::Promise::default();
    let turns: Vec<bool> = (0..4).map(|_| promise.take_turn(true, true)).collect();
    assert_eq!(turns, [true, false, true, false]);
    assert!(!promise.take_turn(false, true));
    assert!(promise.take_turn(true, false));
    assert!(promise.take_turn(true, false), "nobody else wants it");
    assert!(!promise.take_turn(true, true));
}

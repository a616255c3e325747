//! Pages of which a part is given up while another part is dirty.

use super::*;

/// More pages than go inside of a Commit.
const MANY: u64 = types::limits::SYNC_INLINE_SIZE_MAX / PAGE + 2;

fn write_part(s: &mut Story, handle: u64, range: ByteRange, byte: u8) {
    let frame = crate::Pool::alloc(&s.memory).expect("plenty");
    let mut payload = Span::whole(frame);
    payload.length = u32::try_from(range.length()).expect("a page at most");
    s.memory.put(payload, &vec![byte; payload.length as usize]);
    let effects = s.ask(Operation::Write {
        ino: INO,
        handle: Handle(handle),
        offset: range.begin,
        payload,
        is_write_back: false,
        append: false,
        sync: false,
        kill_set_id: false,
    });
    let is_written = |e: &Effect| matches!(e, Effect::Reply(_, Response::Written(_), _));
    assert!(effects.iter().any(is_written), "{effects:?}");
}

/// The sectors of whole pages that go to disks.
fn stored(effects: &[Effect]) -> Option<(IoId, Vec<u64>)> {
    effects.iter().find_map(|effect| match effect {
        Effect::Store(io, _, pieces) => {
            let sectors = |p: &StorePiece| p.file_sector..p.file_sector + p.frames.len() as u64;
            Some((*io, pieces.iter().flat_map(sectors).collect()))
        }
        _ => None,
    })
}

/// Written beside bytes that leave: the sector must not go as a whole any more, for by the time of its Commit another
/// node may have written those bytes, or this one may have no right to write to them.
#[test]
fn a_page_of_which_a_part_leaves_is_not_stored_whole() {
    let page = ByteRange::at(MANY * PAGE, PAGE);
    let behind = Pattern::plain(ByteRange::new(page.begin + 100, page.begin + 200));
    for mode in [RangeMode::Write, RangeMode::Read] {
        let mut s = Story::new(page.end);
        s.open(InodeMode::SharedWrite, ByteRange::ALL);
        write_part(&mut s, 5, page, 1);
        let (call, _) = commit_of(&fsync(&mut s)).expect("the page is dirty");
        s.attr.change += 1;
        s.answer(call, meta::Reply::Attr(s.attr));
        // Who wrote it is idle; another one writes what lies before it.
        s.now = s.now + Duration::from_secs(3);
        s.has_sectors = true;
        write_part(&mut s, 0, ByteRange::at(0, PAGE), 2);
        let want = Want::Range {
            mode,
            required: behind,
            desired: behind,
        };
        let effects = s.revoke(1, vec![want]);
        let effects = s.carry_out(effects);
        let (call, _) = commit_of(&effects).expect("the first page is dirty");
        // The revoke waits for that Commit. What stays is written.
        for number in 1..MANY {
            write_part(&mut s, 0, ByteRange::at(number * PAGE, PAGE), 2);
        }
        write_part(&mut s, 0, ByteRange::at(page.begin, 100), 2);
        let effects = fsync(&mut s);
        let (_, sectors) = stored(&effects).expect("many pages go to sectors");
        assert_eq!(sectors, (1..MANY).collect::<Vec<_>>(), "{mode:?}");
        s.attr.change += 1;
        let effects = s.answer(call, meta::Reply::Attr(s.attr));
        assert!(is_released(&effects), "{effects:?}");
    }
}

/// The kernel writes a mapped page back while the flush of a revoke that leaves the right to read is on its way (rule
/// R5): without the right to write its Commit is refused, so it goes before that.
#[test]
fn a_late_write_under_a_token_that_is_lowered_is_committed_before_the_release() {
    let mut s = Story::new(PAGE);
    s.open(InodeMode::SharedWrite, ByteRange::ALL);
    s.write_back(1);
    let all = Pattern::plain(ByteRange::ALL);
    let read = Want::Range {
        mode: RangeMode::Read,
        required: all,
        desired: all,
    };
    let effects = s.revoke(1, vec![read]);
    let effects = s.carry_out(effects);
    let (call, _) = commit_of(&effects).expect("the page is dirty");
    s.write_back(2);
    s.attr.change += 1;
    let effects = s.answer(call, meta::Reply::Attr(s.attr));
    assert!(!is_released(&effects), "{effects:?}");
    let (call, commit) = commit_of(&effects).expect("the late write is committed");
    assert_eq!(commit.pieces[0].bytes[..], [2; FRAME_SIZE][..]);
    s.attr.change += 1;
    assert!(is_released(&s.answer(call, meta::Reply::Attr(s.attr))));
}

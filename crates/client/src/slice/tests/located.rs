//! Where bytes lie, and the bytes themselves, asked for under tokens that go, or that come to cover more: an answer of
//! before another node's write is not believed.

use super::*;
use crate::request::Response;

const COUNT: u64 = 64;

/// Opens the file for reading under these read tokens.
pub(super) fn open(s: &mut Story, held: ByteRange) -> Handle {
    let effects = s.ask(Operation::Open {
        ino: INO,
        flags: OpenFlags::default(),
    });
    let effects = grant_read(s, &effects, held);
    let handle = effects.iter().find_map(|effect| match effect {
        Effect::Reply(_, Response::Opened(opened), _) => Some(opened.handle),
        _ => None,
    });
    handle.expect("it is opened")
}

/// Answers the token question among `effects`: these bytes may be read, and attributes.
fn grant_read(s: &mut Story, effects: &[Effect], held: ByteRange) -> Vec<Effect> {
    s.grant_ranges(effects, InodeMode::Read, &[(RangeMode::Read, held)])
}

/// A read past the kernel's page cache.
pub(super) fn read(s: &mut Story, handle: Handle, range: ByteRange) -> Vec<Effect> {
    s.ask(Operation::Read {
        ino: INO,
        handle,
        offset: range.begin,
        length: u32::try_from(range.length()).expect("small"),
        fills_page_cache: false,
    })
}

fn load_of(effects: &[Effect]) -> Option<(IoId, FrameRef)> {
    effects.iter().find_map(|effect| match effect {
        Effect::Load(io, pieces) => Some((*io, pieces[0].frames[0])),
        _ => None,
    })
}

/// All loads of holes among `effects`, and what follows from them.
fn end_loads(s: &mut Story, mut effects: Vec<Effect>) {
    while let Some(effect) = effects.pop() {
        if let Effect::ForSlice(_, input) = effect {
            effects.extend(s.input(input));
        }
    }
}

/// Nobody waits for what is read ahead, so nothing keeps the tokens until the owner has said where it lies. What it says
/// then may be of before another node's writes, also when the tokens are back.
#[test]
fn a_map_of_before_a_loss_is_not_believed() {
    let pages = |first: u64| ByteRange::at(first * PAGE, COUNT * PAGE);
    let mut s = Story::new(16 * COUNT * PAGE);
    let handle = open(&mut s, ByteRange::ALL);
    let effects = read(&mut s, handle, pages(0));
    let call = map_question(&effects).expect("where its bytes lie");
    let reply = holes_to(&s, 3 * COUNT * PAGE);
    let effects = s.answer(call, reply);
    end_loads(&mut s, effects);
    let effects = read(&mut s, handle, pages(COUNT));
    let ahead = map_question(&effects).expect("more is read ahead");
    end_loads(&mut s, effects);
    let effects = s.revoke(1, vec![write_want(ByteRange::ALL)]);
    assert!(is_released(&effects), "nobody waits: {effects:?}");
    let effects = read(&mut s, handle, pages(3 * COUNT));
    grant_read(&mut s, &effects, ByteRange::ALL);
    let reply = holes_to(&s, u64::MAX);
    let effects = s.answer(ahead, reply);
    assert!(map_question(&effects).is_some(), "asked again: {effects:?}");
}

/// Two reads of one page that only part of it is covered for, and a grant that covers the rest while the first one's
/// question is under way.
fn two_reads() -> (Story, CallId, Vec<Effect>) {
    let mut s = Story::new(4 * PAGE);
    let handle = open(&mut s, ByteRange::new(0, 100));
    let effects = read(&mut s, handle, ByteRange::new(0, 100));
    let map = map_question(&effects).expect("where its bytes lie");
    let asked = read(&mut s, handle, ByteRange::new(200, 300));
    (s, map, asked)
}

/// The owner looked when another node had the right to write the rest of the page.
#[test]
fn a_map_of_part_of_a_page_says_nothing_of_the_rest() {
    let (mut s, map, asked) = two_reads();
    grant_read(&mut s, &asked, ByteRange::ALL);
    let effects = s.answer(map, old_map(s.attr));
    assert!(map_question(&effects).is_some(), "asked again: {effects:?}");
}

/// So did the disk.
#[test]
fn a_load_of_part_of_a_page_says_nothing_of_the_rest() {
    let (mut s, map, asked) = two_reads();
    let effects = s.answer(map, old_map(s.attr));
    let (io, frame) = load_of(&effects).expect("the page");
    let effects = grant_read(&mut s, &asked, ByteRange::ALL);
    let map = map_question(&effects).expect("where its bytes lie now");
    s.memory.put(Span::whole(frame), &[1; FRAME_SIZE]);
    let effects = s.input(Input::Loaded(io, Ok(())));
    let is_data = |e: &Effect| matches!(e, Effect::Reply(_, Response::Data(_), _));
    assert!(!effects.iter().any(is_data), "{effects:?}");
    let effects = s.answer(map, old_map(s.attr));
    let (io, _) = load_of(&effects).expect("the page, once more");
    let effects = s.input(Input::Loaded(io, Ok(())));
    assert_eq!(effects.iter().filter(|e| is_data(e)).count(), 2);
}

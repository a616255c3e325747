//! Appends that go elsewhere than the kernel thinks, into a page that it has dirtied through a mapping.

use super::*;
use crate::request::Response;

/// Bytes of the file.
const SIZE: u16 = 1000;
/// Where the kernel takes its end to be: another node has cut it, and nobody has asked for attributes since.
const KERNEL_SIZE: u16 = 1500;
/// Bytes appended.
const APPENDED: u16 = 100;

fn write(s: &mut Story, range: ByteRange, byte: u8, append: bool, sync: bool) -> Vec<Effect> {
    let frame = crate::Pool::alloc(&s.memory).expect("plenty");
    let length = u32::try_from(range.length()).expect("small");
    let payload = Span::whole(frame).part(0, length);
    s.memory.put(payload, &vec![byte; length as usize]);
    s.ask(Operation::Write {
        ino: INO,
        handle: Handle(0),
        offset: range.begin,
        payload,
        is_write_back: !append,
        append,
        sync,
        kill_set_id: false,
    })
}

fn read(s: &mut Story) -> Vec<Effect> {
    s.ask(Operation::Read {
        ino: INO,
        handle: Handle(0),
        offset: 0,
        length: u32::try_from(PAGE).expect("small"),
        fills_page_cache: true,
    })
}

fn data_of(s: &Story, effects: &[Effect]) -> Vec<u8> {
    let data = effects.iter().find_map(|effect| match effect {
        Effect::Reply(_, Response::Data(spans), _) => Some(spans.clone()),
        _ => None,
    });
    let spans = data.expect("the read is answered");
    spans
        .iter()
        .flat_map(|span| s.memory.bytes(*span))
        .collect()
}

fn notice(effects: &[Effect]) -> NotifyId {
    let is_notice = |effect: &Effect| match effect {
        Effect::Notify(Some(id), Notice::Data { .. }) => Some(*id),
        _ => None,
    };
    let id = effects.iter().find_map(is_notice);
    id.expect("the kernel is told to drop the page")
}

fn written(effects: &[Effect]) -> bool {
    let is_written = |e: &Effect| matches!(e, Effect::Reply(_, Response::Written(_), _));
    effects.iter().any(is_written)
}

/// A file that the kernel has in a writable mapping.
fn mapped() -> Story {
    let mut s = Story::new(SIZE.into());
    s.has_sectors = true;
    s.open(InodeMode::Exclusive, ByteRange::ALL);
    s.slice.inode(INO).lookup_count = 1;
    // What is there: the write fills the page, so that nothing has to be loaded.
    write(&mut s, ByteRange::at(0, SIZE.into()), 1, false, false);
    s
}

/// The page that the kernel drops after the append was dirtied before it: it does not undo it.
#[test]
fn a_page_that_is_dropped_for_an_append_does_not_undo_it() {
    let mut s = mapped();
    let placed = ByteRange::at(KERNEL_SIZE.into(), APPENDED.into());
    let effects = write(&mut s, placed, 7, true, false);
    assert!(!written(&effects), "{effects:?}");
    let id = notice(&effects);
    // The kernel writes the page back as it is there: with a store before the end, and zeros up to its own end.
    let frame = crate::Pool::alloc(&s.memory).expect("plenty");
    let payload = Span::whole(frame).part(0, KERNEL_SIZE.into());
    s.memory.put(payload, &[0; KERNEL_SIZE as usize]);
    s.memory
        .put(payload.part(0, SIZE.into()), &[2; SIZE as usize]);
    s.ask(Operation::Write {
        ino: INO,
        handle: Handle(0),
        offset: 0,
        payload,
        is_write_back: true,
        append: false,
        sync: false,
        kill_set_id: false,
    });
    let effects = s.input(Input::Notified(id));
    let effects = s.input(Input::Notified(notice(&effects)));
    assert!(written(&effects), "{effects:?}");
    let effects = read(&mut s);
    let data = data_of(&s, &effects);
    let (size, end) = (SIZE as usize, (SIZE + APPENDED) as usize);
    assert!(data[..size].iter().all(|byte| *byte == 2), "the store");
    assert!(data[size..end].iter().all(|byte| *byte == 7), "the append");
}

/// Once the kernel has READ the page again, it shows the append, and what is stored there then counts.
#[test]
fn a_store_to_what_was_appended_counts_when_it_was_read() {
    let mut s = mapped();
    let placed = ByteRange::at(KERNEL_SIZE.into(), APPENDED.into());
    let id = notice(&write(&mut s, placed, 7, true, false));
    let effects = read(&mut s);
    assert_eq!(data_of(&s, &effects)[SIZE as usize], 7);
    write(
        &mut s,
        ByteRange::at(0, (SIZE + APPENDED).into()),
        3,
        false,
        false,
    );
    let mut effects = s.input(Input::Notified(id));
    while !written(&effects) {
        effects = s.input(Input::Notified(notice(&effects)));
    }
    let effects = read(&mut s);
    assert!(
        data_of(&s, &effects)[..(SIZE + APPENDED) as usize]
            .iter()
            .all(|byte| *byte == 3)
    );
}

/// Nothing is left out any more when the drop is over, or where the kernel can have no page of it.
#[test]
fn a_drop_that_is_over_leaves_nothing_out() {
    let mut s = mapped();
    let placed = ByteRange::at(KERNEL_SIZE.into(), APPENDED.into());
    let mut effects = write(&mut s, placed, 7, true, false);
    while !written(&effects) {
        effects = s.input(Input::Notified(notice(&effects)));
    }
    assert!(s.slice.inode(INO).unshown.is_empty());
    // Tokens of no whole page: its page cannot be there.
    let mut s = Story::new(SIZE.into());
    s.has_sectors = true;
    s.open(InodeMode::Exclusive, ByteRange::new(10, u64::MAX));
    let effects = write(&mut s, placed, 7, true, false);
    assert!(written(&effects), "{effects:?}");
    assert!(s.slice.inode(INO).unshown.is_empty());
}

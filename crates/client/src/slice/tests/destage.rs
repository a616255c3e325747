//! Whole pages that went as pieces because somebody waited go to sectors later.

use super::*;

/// Writes the first bytes of the first page.
fn write_some(s: &mut Story, length: u32) {
    let frame = crate::Pool::alloc(&s.memory).expect("plenty");
    s.ask(Operation::Write {
        ino: INO,
        handle: Handle(0),
        offset: 0,
        payload: Span {
            length,
            ..Span::whole(frame)
        },
        is_write_back: true,
        append: false,
        sync: false,
        kill_set_id: false,
    });
}

/// Has what is dirty committed as pieces, and lets it get old; stores of the time after.
fn stores_when_old(s: &mut Story) -> usize {
    let effects = fsync(s);
    let (call, commit) = commit_of(&effects).expect("fsync commits");
    assert!(!commit.pieces.is_empty());
    s.attr.change += 1;
    s.answer(call, meta::Reply::Attr(s.attr));
    s.now = s.now + Duration::from_secs(6);
    let effects = s.input(Input::Tick);
    let is_store = |effect: &&Effect| matches!(effect, Effect::Store(..));
    effects.iter().filter(is_store).count()
}

fn two_pages() -> Story {
    let mut s = Story::new(2 * PAGE);
    s.has_sectors = true;
    s.open(InodeMode::Exclusive, ByteRange::ALL);
    s
}

#[test]
fn a_page_that_went_as_pieces_goes_to_sectors_later() {
    let mut s = two_pages();
    s.write_back(1);
    assert_eq!(stores_when_old(&mut s), 1);
}

/// The first page was lost, as an fsync has said, and its first bytes are written again.
fn lost_and_written_again() -> Story {
    let mut s = two_pages();
    s.write_back(1);
    let effects = fsync(&mut s);
    let (call, _) = commit_of(&effects).expect("fsync commits");
    s.answer(call, meta::Reply::Error(Errno::EIO));
    write_some(&mut s, 20);
    s
}

/// Its first bytes were written again and committed, the others were lost, and an fsync has said so: they are not stored behind the back of
/// whoever heard that.
#[test]
fn what_was_lost_does_not_go_with_the_rest_of_its_page() {
    let mut s = lost_and_written_again();
    assert_eq!(stores_when_old(&mut s), 0);
}

/// The same where nobody waits, and the page goes as it gets old.
#[test]
fn what_was_lost_does_not_go_with_a_page_that_gets_old() {
    let mut s = lost_and_written_again();
    s.now = s.now + Duration::from_secs(6);
    let effects = s.input(Input::Tick);
    let is_store = |effect: &Effect| matches!(effect, Effect::Store(..));
    assert!(!effects.iter().any(is_store), "{effects:?}");
    let (_, commit) = commit_of(&effects).expect("it goes as pieces");
    let lengths: Vec<usize> = commit.pieces.iter().map(|p| p.bytes.len()).collect();
    assert_eq!(lengths, [20]);
}

/// Its file has lost its last name and nobody has it open: nothing is asked for its sake.
#[test]
fn pages_of_a_file_that_is_gone_stay_where_they_are() {
    for (is_gone, store_count) in [(false, 1), (true, 0)] {
        let mut s = two_pages();
        s.write_back(1);
        let effects = fsync(&mut s);
        let (call, _) = commit_of(&effects).expect("fsync commits");
        s.attr.change += 1;
        s.attr.nlink = u32::from(!is_gone);
        s.answer(call, meta::Reply::Attr(s.attr));
        s.slice.inode(INO).open_count = u32::from(!is_gone);
        s.now = s.now + Duration::from_secs(6);
        let asked = s.spare.get().asked;
        let effects = s.input(Input::Tick);
        let is_store = |effect: &&Effect| matches!(effect, Effect::Store(..));
        assert_eq!(
            effects.iter().filter(is_store).count(),
            store_count,
            "{is_gone}"
        );
        assert_eq!(s.spare.get().asked > asked, !is_gone);
        assert_eq!(s.slice.hasty_count, 0, "counted once");
    }
}

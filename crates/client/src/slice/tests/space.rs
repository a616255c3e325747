//! Writes that find no free sectors.

use super::*;

fn is_refused(effects: &[Effect]) -> bool {
    error_of(effects) == Some(Errno::ENOSPC)
}

fn wants_space(effects: &[Effect]) -> bool {
    (effects.iter()).any(|effect| matches!(effect, Effect::WantSpace(NodeId(2))))
}

fn full() -> Story {
    let mut s = Story::new(0);
    s.open(InodeMode::Exclusive, ByteRange::ALL);
    s.is_full = true;
    s
}

/// A write, or a write-back, waits for sectors.
fn short(is_write_back: bool) -> Story {
    let mut s = Story::new(4096);
    s.open(InodeMode::Exclusive, ByteRange::ALL);
    s.is_full = true;
    assert!(wants_space(&s.write(7, is_write_back)));
    s
}

#[test]
fn a_write_without_room_is_refused() {
    let mut s = full();
    let effects = write_page(&mut s, 0, 4096);
    assert!(
        wants_space(&effects) && !is_refused(&effects),
        "{effects:?}"
    );
    assert!(is_refused(&s.input(Input::Space(NodeId(2), NONE))));
}

/// An owner that is busy, or no owner any more, has said nothing of its sectors: a page that the kernel writes back would be lost for it.
#[test]
fn what_an_owner_cannot_say_refuses_nobody() {
    for is_write_back in [false, true] {
        let mut s = short(is_write_back);
        for _ in 0..10 {
            let effects = s.input(Input::Space(NodeId(2), SpaceNews::Unknown));
            assert_eq!(error_of(&effects), None, "{effects:?}");
            assert!(wants_space(&effects), "asked again: {effects:?}");
        }
        assert_eq!(
            error_of(&s.input(Input::Space(NodeId(2), NONE))),
            Some(Errno::ENOSPC)
        );
    }
}

/// One whose journal has failed has room, for all that is known: it is not a lack of space that is told.
#[test]
fn an_owner_that_has_failed_is_told_as_such() {
    for is_write_back in [false, true] {
        let mut s = short(is_write_back);
        let failed = SpaceNews::None(Errno::EIO);
        assert_eq!(
            error_of(&s.input(Input::Space(NodeId(2), failed))),
            Some(Errno::EIO)
        );
        let losses = s.slice.losses();
        let one = is_write_back.then_some((INO, Errno::EIO));
        assert_eq!(
            (losses.write_backs, losses.one),
            (u64::from(is_write_back), one)
        );
    }
}

/// The owner of a file cannot grant what a write-back needs: the kernel's page is lost with it, unless the file is.
#[test]
fn a_write_back_without_tokens_is_counted_as_lost() {
    for (refused, lost) in [(Errno::EIO, 1), (Errno::ESTALE, 0)] {
        let mut s = Story::new(4096);
        let effects = s.write(7, true);
        let ask = effects.iter().find_map(|effect| match effect {
            Effect::Call(call, _, Ask::Acquire { .. }) => Some(*call),
            _ => None,
        });
        let call = ask.expect("it needs tokens");
        let answer = Answer::bare(Body::Refused(refused));
        assert_eq!(
            error_of(&s.input(Input::Answer(call, Box::new(answer)))),
            Some(refused)
        );
        assert_eq!(s.slice.losses().write_backs, lost);
    }
}

/// The kernel takes the page for clean then: nobody has its bytes who could write them.
#[test]
fn a_write_back_without_room_is_counted_as_lost() {
    for is_write_back in [false, true] {
        let mut s = short(is_write_back);
        assert!(is_refused(&s.input(Input::Space(NodeId(2), NONE))));
        let losses = s.slice.losses();
        assert_eq!(losses.write_backs, u64::from(is_write_back));
        let one = is_write_back.then_some((INO, Errno::ENOSPC));
        assert_eq!((losses.pages, losses.one), (0, one));
    }
}

/// Each time the owner says that there is no room the token is with another node, which wants the last sectors too.
#[test]
fn a_write_that_is_never_there_to_hear_of_it_is_refused_all_the_same() {
    for errno in [Errno::ENOSPC, Errno::EIO] {
        let mut s = full();
        let mut effects = write_page(&mut s, 0, 4096);
        for revoke in 0..3 {
            assert!(wants_space(&effects), "{effects:?}");
            assert_eq!(error_of(&effects), None);
            let mut asked = s.revoke(revoke, vec![write_want(ByteRange::ALL)]);
            assert!(is_released(&asked), "{asked:?}");
            asked.extend(s.input(Input::Space(NodeId(2), SpaceNews::None(errno))));
            assert_eq!(error_of(&asked), None, "{asked:?}");
            effects = s.grant(&asked, InodeMode::Exclusive, ByteRange::ALL);
        }
        assert_eq!(error_of(&effects), Some(errno), "{effects:?}");
    }
}

/// Each small file that was just written has a sector set aside until its bytes are in metadata: a disk was once full of those, with half of
/// it free. They are committed before anybody hears that there are none, and count as on their way.
#[test]
fn what_small_files_have_set_aside_comes_back_before_a_write_is_refused() {
    let mut s = Story::new(0);
    s.open(InodeMode::Exclusive, ByteRange::ALL);
    write_page(&mut s, 0, 100);
    let effects = s.input(Input::Scarce(NodeId(2)));
    assert_eq!(s.spare.get().returning, 1);
    let (call, commit) = commit_of(&effects).expect("its bytes go now");
    assert_eq!((commit.pieces.len(), commit.extents.len()), (1, 0));
    // Counted once in a while only.
    s.input(Input::Scarce(NodeId(2)));
    assert_eq!(s.spare.get().returning, 1);
    s.attr.change += 1;
    s.attr.size = 100;
    s.answer(call, meta::Reply::Attr(s.attr));
    s.now = s.now + Duration::from_millis(200);
    s.input(Input::Scarce(NodeId(2)));
    assert_eq!(s.spare.get().returning, 0);
    // Of another owner nothing is, and bytes that go to sectors bring none back.
    write_page(&mut s, 0, 100);
    s.input(Input::Scarce(NodeId(3)));
    assert_eq!(s.spare.get().returning, 0);
    write_page(&mut s, 9, 4096);
    s.now = s.now + Duration::from_millis(200);
    let effects = s.input(Input::Scarce(NodeId(2)));
    assert_eq!(s.spare.get().returning, 0);
    assert!(commit_of(&effects).is_none(), "{effects:?}");
}

/// Some come back all the time, and others get them: a write is not kept for ever.
#[test]
fn a_write_that_others_overtake_all_the_time_is_refused_in_the_end() {
    let mut s = full();
    write_page(&mut s, 0, 4096);
    let begun = s.now;
    loop {
        s.input(Input::Scarce(NodeId(2)));
        s.now = s.now + Duration::from_millis(50);
        let effects = s.input(Input::Space(NodeId(2), SpaceNews::Soon));
        let waited = s.now.since(begun);
        if is_refused(&effects) {
            assert!(waited > Duration::from_secs(15), "{waited:?}");
            break;
        }
        assert!(wants_space(&effects), "{effects:?}");
        assert!(waited < Duration::from_secs(25), "it is kept");
    }
}

/// What refuses it is the owner's word, and no clock: who cannot say, or has some, or does not answer, has it wait on.
#[test]
fn a_write_that_waits_for_what_comes_soon_is_not_refused_by_the_clock() {
    for news in [Some(SpaceNews::Unknown), Some(SpaceNews::There), None] {
        let mut s = full();
        write_page(&mut s, 0, 4096);
        s.input(Input::Scarce(NodeId(2)));
        s.input(Input::Space(NodeId(2), SpaceNews::Soon));
        for _ in 0..60 {
            s.now = s.now + Duration::from_secs(1);
            let told = news.map_or(Vec::new(), |news| s.input(Input::Space(NodeId(2), news)));
            let ticked = s.input(Input::Tick);
            assert_eq!(
                (error_of(&told), error_of(&ticked)),
                (None, None),
                "{news:?}"
            );
        }
        // Where it has heard something else meanwhile, it begins to wait anew.
        let effects = s.input(Input::Space(NodeId(2), SpaceNews::Soon));
        assert_eq!(
            is_refused(&effects),
            news.is_none(),
            "{news:?}: {effects:?}"
        );
    }
}

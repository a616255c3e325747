//! Writes that find no free sectors.

use super::*;
use crate::request::Response;

fn is_refused(effects: &[Effect]) -> bool {
    let refused = |e: &Effect| matches!(e, Effect::Reply(_, Response::Error(Errno::ENOSPC), _));
    effects.iter().any(refused)
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

#[test]
fn a_write_without_room_is_refused() {
    let mut s = full();
    let effects = write_page(&mut s, 0, 4096);
    assert!(
        wants_space(&effects) && !is_refused(&effects),
        "{effects:?}"
    );
    assert!(is_refused(&s.input(Input::Space(NodeId(2), false))));
}

/// The kernel takes the page for clean then: nobody has its bytes who could write them.
#[test]
fn a_write_back_without_room_is_counted_as_lost() {
    for is_write_back in [false, true] {
        let mut s = Story::new(4096);
        s.open(InodeMode::Exclusive, ByteRange::ALL);
        s.is_full = true;
        assert!(wants_space(&s.write(7, is_write_back)));
        assert!(is_refused(&s.input(Input::Space(NodeId(2), false))));
        let losses = s.slice.losses();
        assert_eq!(losses.write_backs, u64::from(is_write_back));
        let one = is_write_back.then_some((INO, Errno::ENOSPC));
        assert_eq!((losses.pages, losses.one), (0, one));
    }
}

/// Each time the owner says that there is no room the token is with another node, which wants the last sectors too.
#[test]
fn a_write_that_is_never_there_to_hear_of_it_is_refused_all_the_same() {
    let mut s = full();
    let mut effects = write_page(&mut s, 0, 4096);
    for revoke in 0..3 {
        assert!(
            wants_space(&effects) && !is_refused(&effects),
            "{effects:?}"
        );
        let mut asked = s.revoke(revoke, vec![write_want(ByteRange::ALL)]);
        assert!(is_released(&asked), "{asked:?}");
        asked.extend(s.input(Input::Space(NodeId(2), false)));
        assert!(!is_refused(&asked), "{asked:?}");
        effects = s.grant(&asked, InodeMode::Exclusive, ByteRange::ALL);
    }
    assert!(is_refused(&effects), "{effects:?}");
}

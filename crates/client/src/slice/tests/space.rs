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

//! What a name leads to, when answers and revokes cross.

use super::*;
use crate::request::Response;

const DIRECTORY: InodeId = INO;

fn name(text: &str) -> types::Name {
    types::Name::new(text.as_bytes()).expect("a name")
}

fn lookup(s: &mut Story, text: &str) -> Vec<Effect> {
    s.ask(Operation::Lookup {
        parent: DIRECTORY,
        name: name(text),
    })
}

fn call_of(effects: &[Effect]) -> CallId {
    let call = effects.iter().find_map(|effect| match effect {
        Effect::Call(call, ..) => Some(*call),
        _ => None,
    });
    call.unwrap_or_else(|| panic!("the owner is asked: {effects:?}"))
}

/// The owner says that there is no such name, and grants the right to cache names in the state of this number.
fn absent(s: &mut Story, call: CallId, number: u64) -> Vec<Effect> {
    let number = TokenNumber(number);
    let kind = TokenKind::Directory {
        mode: types::DirectoryMode::Read,
        hash_begin: 0,
        hash_end: u64::MAX,
    };
    let granted = Granted {
        ticket: 0,
        ino: DIRECTORY,
        number,
        holdings: vec![Holding {
            ino: DIRECTORY,
            number,
            kind,
        }],
        contended: false,
    };
    let answer = Answer {
        body: Body::Op(meta::Reply::Absent),
        grants: vec![granted],
    };
    s.input(Input::Answer(call, Box::new(answer)))
}

fn is_absent(effects: &[Effect]) -> bool {
    let is_it = |e: &Effect| matches!(e, Effect::Reply(_, Response::Entry(None, _), _));
    effects.iter().any(is_it)
}

/// An answer is held up; meanwhile its token is revoked, another node makes the name, and the token comes back with
/// another answer: what the first one says is of before.
#[test]
fn an_answer_of_before_a_lost_token_says_nothing_under_a_later_one() {
    for is_revoked in [true, false] {
        let mut s = Story::new(0);
        let late = call_of(&lookup(&mut s, "made"));
        if is_revoked {
            s.number = 5;
            let write = Want::Directory {
                mode: types::DirectoryMode::Write,
            };
            assert!(is_released(&s.revoke(1, vec![write])));
        }
        let other = call_of(&lookup(&mut s, "other"));
        assert!(is_absent(&absent(&mut s, other, 7)));
        assert!(is_absent(&lookup(&mut s, "other")), "it is cached");
        assert!(is_absent(&absent(&mut s, late, 5)));
        call_of(&lookup(&mut s, "made"));
    }
}

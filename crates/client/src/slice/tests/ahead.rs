//! Names that were asked for before they are wanted are those that the owner would answer.

use super::story::{NAMES, granted};
use super::*;
use crate::message::Body;
use crate::request::{Listed, Response};
use token::message::Revoke;

const DIRECTORY: InodeId = INO;
/// Entries of an answer.
const COUNT: u64 = 10;
const SIZE: u32 = 32 << 10;

/// A directory that the kernel knows, with a token that lets this node keep its names.
pub(super) fn story() -> Story {
    let mut s = Story::new(PAGE);
    s.attr.kind = types::FileKind::Directory;
    s.hold_directory();
    s.now = s.now + Duration::from_secs(10);
    s
}

pub(super) fn list(s: &mut Story, cookie: u64) -> Vec<Effect> {
    let effects = s.ask(Operation::ReadDir {
        ino: DIRECTORY,
        handle: Handle(1),
        cookie,
        size: SIZE,
        plus: true,
    });
    s.settle(effects)
}

/// The entries that the owner is asked for, behind this cookie.
pub(super) fn asked(effects: &[Effect]) -> Option<(CallId, u64)> {
    effects.iter().find_map(|effect| match effect {
        Effect::Call(
            call,
            _,
            Ask::Op {
                op: meta::Op::ReadDir { cookie, .. },
                ..
            },
        ) => Some((*call, *cookie)),
        _ => None,
    })
}

/// The inode with this number behind the directory's, of the same slice.
pub(super) fn file(number: u64) -> InodeId {
    let all = (INO.index() + 1..).map(|index| InodeId::new(INO.shard(), index));
    let mut all = all.filter(|ino| slice_of(*ino) == slice_of(INO));
    all.nth(usize::try_from(number).expect("small"))
        .expect("there are many")
}

/// The entries behind `cookie`, and a token of each.
fn listing(s: &Story, cookie: u64, is_end: bool) -> Answer {
    listing_of(s, cookie + 1..=cookie + COUNT, is_end, |at| {
        (at, at.to_string())
    })
}

/// Entries with these cookies, each with the number of a file and a name, and a token of each.
pub(super) fn listing_of(
    s: &Story,
    cookies: std::ops::RangeInclusive<u64>,
    is_end: bool,
    entry: impl Fn(u64) -> (u64, String),
) -> Answer {
    let entries = cookies.clone().map(|at| {
        let (number, name) = entry(at);
        let mut attr = s.attr;
        (attr.ino, attr.kind) = (file(number), types::FileKind::File);
        meta::message::Listed {
            name: types::Name::new(name.as_bytes()).expect("a name"),
            ino: attr.ino,
            kind: attr.kind,
            cookie: at,
            attr: Some(attr),
        }
    });
    let listing = meta::Reply::Listing {
        entries: entries.collect(),
        parent: InodeId::ROOT,
        is_end,
    };
    let kind = TokenKind::Inode {
        mode: InodeMode::Read,
    };
    let numbers = cookies.map(|at| entry(at).0);
    Answer {
        body: Body::Op(listing),
        grants: numbers
            .map(|number| granted(file(number), number + 10, kind.clone()))
            .collect(),
    }
}

/// The owner answers.
fn raw_answer(s: &mut Story, call: CallId, cookie: u64, is_end: bool) -> Vec<Effect> {
    let answer = listing(s, cookie, is_end);
    s.input(Input::Answer(call, Box::new(answer)))
}

/// The owner answers with names alone.
fn answer_names(s: &mut Story, call: CallId, cookie: u64) -> Vec<Effect> {
    let mut answer = listing(s, cookie, false);
    answer.grants.clear();
    if let Body::Op(meta::Reply::Listing { entries, .. }) = &mut answer.body {
        entries.iter_mut().for_each(|entry| entry.attr = None);
    }
    let effects = s.input(Input::Answer(call, Box::new(answer)));
    s.settle(effects)
}

pub(super) fn answer(s: &mut Story, call: CallId, cookie: u64, is_end: bool) -> Vec<Effect> {
    let effects = raw_answer(s, call, cookie, is_end);
    s.settle(effects)
}

/// The entries that are answered.
fn shown(effects: &[Effect]) -> Option<&Vec<Listed>> {
    effects.iter().find_map(|effect| match effect {
        Effect::Reply(_, Response::Listing(listed), _) => Some(listed),
        _ => None,
    })
}

/// Up to cookie 100 + COUNT has been shown; the effects of that.
fn begun(s: &mut Story, is_end: bool) -> Vec<Effect> {
    let effects = list(s, 100);
    let (call, cookie) = asked(&effects).expect("the owner is asked");
    assert_eq!(cookie, 100);
    let effects = answer(s, call, cookie, is_end);
    assert!(shown(&effects).is_some(), "{effects:?}");
    effects
}

/// The same, and the entries behind are known.
fn ahead(s: &mut Story) {
    let effects = begun(s, false);
    let (call, cookie) = asked(&effects).expect("the next ones are asked for");
    assert_eq!(cookie, 100 + COUNT);
    let effects = answer(s, call, cookie, false);
    assert!(effects.is_empty(), "nobody waits: {effects:?}");
}

#[test]
fn what_comes_next_is_there_when_it_is_wanted() {
    let mut s = story();
    ahead(&mut s);
    let effects = list(&mut s, 100 + COUNT);
    let listed = shown(&effects).expect("answered at once");
    assert_eq!(listed.len(), 10);
    assert_eq!(listed[0].cookie, 101 + COUNT);
    assert_eq!(listed[0].ino, file(101 + COUNT));
    let are_kept = listed.iter().all(|l| {
        l.entry
            .as_ref()
            .is_some_and(|entry| entry.attr_timeout_ns > 0 && entry.entry_timeout_ns > 0)
    });
    assert!(are_kept, "{listed:?}");
    let next = asked(&effects).map(|(_, cookie)| cookie);
    assert_eq!(next, Some(100 + 2 * COUNT));
    // It was shown once. Who asks again hears the owner.
    let effects = list(&mut s, 100 + COUNT);
    assert!(shown(&effects).is_none());
    assert_eq!(asked(&effects).map(|(_, cookie)| cookie), Some(100 + COUNT));
}

/// Where attributes are not shown, for nobody looks at them, the names are there.
#[test]
fn names_alone_are_there_when_they_are_wanted() {
    let mut s = story();
    s.slice.inode(DIRECTORY).unlooked_count = 1 << 20;
    let effects = list(&mut s, 100);
    let (call, cookie) = asked(&effects).expect("the owner is asked");
    let effects = answer_names(&mut s, call, cookie);
    assert!(shown(&effects).is_some());
    let (call, cookie) = asked(&effects).expect("the next ones are asked for");
    assert_eq!(cookie, 100 + COUNT);
    let sizes = effects.iter().filter_map(|effect| match effect {
        Effect::Call(
            _,
            _,
            Ask::Op {
                op: meta::Op::ReadDir { plus, size, .. },
                ..
            },
        ) => Some((*plus, *size < SIZE)),
        _ => None,
    });
    assert_eq!(sizes.collect::<Vec<_>>(), [(false, true)]);
    let effects = answer_names(&mut s, call, cookie);
    assert!(effects.is_empty(), "nobody waits: {effects:?}");
    let effects = list(&mut s, cookie);
    let listed = shown(&effects).expect("answered at once");
    assert_eq!(listed.len(), 10);
    assert!(listed.iter().all(|l| l.entry.is_none()), "{listed:?}");
    assert!(asked(&effects).is_some(), "and so on");
}

#[test]
fn names_that_have_changed_are_not_shown() {
    let changes: [fn(&mut Story); 3] = [
        // By this node.
        |s| s.slice.inode(DIRECTORY).names_epoch += 1,
        // By another one: it takes the token.
        |s| {
            let wants = vec![Want::Directory {
                mode: DirectoryMode::Write,
            }];
            s.revoke(1, wants);
        },
        // Perhaps by another one.
        |s| s.slice.inode(DIRECTORY).is_contended = true,
    ];
    for change in changes {
        let mut s = story();
        ahead(&mut s);
        change(&mut s);
        let effects = list(&mut s, 100 + COUNT);
        assert!(shown(&effects).is_none(), "{effects:?}");
        assert_eq!(asked(&effects).map(|(_, cookie)| cookie), Some(100 + COUNT));
    }
}

/// They change between the question and its answer, which may be of before.
#[test]
fn names_that_change_meanwhile_are_not_shown() {
    let mut s = story();
    let effects = begun(&mut s, false);
    let (call, cookie) = asked(&effects).expect("the next ones are asked for");
    s.slice.inode(DIRECTORY).names_epoch += 1;
    answer(&mut s, call, cookie, false);
    let effects = list(&mut s, cookie);
    assert!(asked(&effects).is_some() && shown(&effects).is_none());
}

#[test]
fn without_a_token_nothing_is_asked_for_ahead() {
    let mut s = story();
    s.slice.inode(DIRECTORY).is_contended = true;
    let effects = begun(&mut s, false);
    assert_eq!(asked(&effects), None, "{effects:?}");
}

#[test]
fn who_comes_before_the_answer_waits_for_it() {
    let mut s = story();
    let effects = begun(&mut s, false);
    let (call, cookie) = asked(&effects).expect("the next ones are asked for");
    let effects = list(&mut s, cookie);
    assert!(effects.is_empty(), "it waits: {effects:?}");
    let waiters = s.slice.waiters();
    assert!(waiters[0].1.contains("Listing"), "{waiters:?}");
    let effects = answer(&mut s, call, cookie, false);
    assert_eq!(shown(&effects).map(Vec::len), Some(10));
    assert!(s.slice.waiters().is_empty());
}

#[test]
fn who_waits_for_what_fails_asks_itself() {
    let mut s = story();
    let effects = begun(&mut s, false);
    let (call, cookie) = asked(&effects).expect("the next ones are asked for");
    list(&mut s, cookie);
    let refused = Answer::bare(Body::Refused(Errno::EIO));
    let effects = s.input(Input::Answer(call, Box::new(refused)));
    let effects = s.settle(effects);
    let (call, again) = asked(&effects).expect("asked again");
    assert_eq!(again, cookie);
    let effects = answer(&mut s, call, cookie, true);
    assert_eq!(shown(&effects).map(Vec::len), Some(10));
}

/// Another node has taken the token of a file meanwhile: its attributes are asked for when they are wanted.
#[test]
fn attributes_that_are_old_by_now_are_not_shown() {
    let mut s = story();
    ahead(&mut s);
    let at = 101 + COUNT;
    s.input(Input::Revoke(
        NodeId(2),
        Revoke {
            ino: file(at),
            number: TokenNumber(at + 10),
            revoke: 1,
            wants: vec![Want::Inode {
                mode: InodeMode::Exclusive,
            }],
        },
    ));
    let effects = list(&mut s, 100 + COUNT);
    let listed = shown(&effects).expect("answered at once");
    let with: Vec<_> = listed.iter().map(|l| l.entry.is_some()).collect();
    assert!(!with[0] && with[1..].iter().all(|with| *with), "{with:?}");
}

#[test]
fn the_end_is_known() {
    let mut s = story();
    let effects = begun(&mut s, true);
    assert_eq!(asked(&effects), None, "nothing is behind it: {effects:?}");
    let effects = list(&mut s, 100 + COUNT);
    assert_eq!(shown(&effects).map(Vec::len), Some(0));
    assert_eq!(asked(&effects), None);
}

/// The last names have been shown, and before that is known here somebody makes one that comes behind them.
#[test]
fn the_end_of_before_a_create_is_not_the_end() {
    let mut s = story();
    let effects = list(&mut s, 100);
    let (call, _) = asked(&effects).expect("asked");
    s.slice.inode(DIRECTORY).names_epoch += 1;
    answer(&mut s, call, 100, true);
    let effects = list(&mut s, 100 + COUNT);
    assert_eq!(asked(&effects).map(|(_, at)| at), Some(100 + COUNT));
    // The answer comes, and the slice has not heard of it yet.
    let mut s = story();
    let effects = list(&mut s, 100);
    let (call, _) = asked(&effects).expect("asked");
    let effects = raw_answer(&mut s, call, 100, true);
    s.slice.inode(DIRECTORY).names_epoch += 1;
    s.settle(effects);
    let effects = list(&mut s, 100 + COUNT);
    assert_eq!(asked(&effects).map(|(_, at)| at), Some(100 + COUNT));
}

/// The end of what was there before it was wanted.
#[test]
fn behind_the_last_names_nothing_is_asked_for() {
    let mut s = story();
    let effects = begun(&mut s, false);
    let (call, cookie) = asked(&effects).expect("the next ones are asked for");
    answer(&mut s, call, cookie, true);
    let effects = list(&mut s, cookie);
    assert_eq!(shown(&effects).map(Vec::len), Some(10));
    assert_eq!(asked(&effects), None);
    let effects = list(&mut s, cookie + COUNT);
    assert_eq!(shown(&effects).map(Vec::len), Some(0));
    assert_eq!(asked(&effects), None);
}

/// Readers that stand still.
#[test]
fn few_are_kept_and_not_for_long() {
    let mut s = story();
    let mut count = 0;
    for reader in 1..20 {
        let effects = list(&mut s, 1000 * reader);
        let (call, cookie) = asked(&effects).expect("asked");
        let effects = answer(&mut s, call, cookie, false);
        if let Some((call, cookie)) = asked(&effects) {
            count += 1;
            answer(&mut s, call, cookie, false);
        }
        assert!(s.slice.aheads.len() <= 4);
    }
    assert_eq!(count, 4, "the others ask for themselves");
    let effects = list(&mut s, 1000 + COUNT);
    assert!(shown(&effects).is_some(), "the first comes back");
    s.now = s.now + Duration::from_millis(1100);
    s.input(Input::Tick);
    assert!(s.slice.aheads.iter().all(|ahead| !ahead.is_ready));
    let effects = list(&mut s, 2000 + COUNT);
    assert!(shown(&effects).is_none(), "too late");
}

/// What has changed makes room.
#[test]
fn old_names_make_room() {
    let mut s = story();
    ahead(&mut s);
    for reader in 1..4 {
        let effects = list(&mut s, 1000 * reader);
        let (call, cookie) = asked(&effects).expect("asked");
        let effects = answer(&mut s, call, cookie, false);
        let (call, cookie) = asked(&effects).expect("asked ahead");
        answer(&mut s, call, cookie, false);
    }
    s.slice.inode(DIRECTORY).names_epoch += 1;
    let effects = list(&mut s, 9000);
    let (call, cookie) = asked(&effects).expect("asked");
    let effects = answer(&mut s, call, cookie, false);
    assert!(asked(&effects).is_some());
}

/// It was told of before a removal that this node's other calls have made, and is visited after that.
#[test]
fn a_late_visit_does_not_give_a_link_back() {
    for kept_open in [true, false] {
        let mut s = story();
        let effects = begun(&mut s, false);
        let (call, cookie) = asked(&effects).expect("the next ones are asked for");
        let ino = file(cookie + 1);
        let mut attr = s.attr;
        (attr.ino, attr.kind) = (ino, types::FileKind::File);
        s.slice.inode(ino).learn_attr(&attr);
        s.slice.inode(ino).open_count = 1;
        let lesson = crate::names::Arrival::lesson(ino, None, kept_open, (1, true));
        if kept_open {
            s.input(Input::Arrive(lesson));
        } else {
            let inode = s.slice.inode(ino);
            inode.attr.as_mut().expect("known").nlink = 0;
        }
        answer(&mut s, call, cookie, false);
        let inode = s.slice.inode(ino);
        assert_eq!(inode.attr.expect("known").nlink, 0);
        inode.open_count = 0;
    }
}

#[test]
fn of_a_removed_directory_nothing_is_kept() {
    let mut s = story();
    ahead(&mut s);
    s.input(Input::Replied(Pin::Names(DIRECTORY)));
    let mut attr = s.attr;
    (attr.nlink, attr.change) = (0, attr.change + 1);
    s.slice.inode(DIRECTORY).learn_attr(&attr);
    s.ask(Operation::Forget {
        ino: DIRECTORY,
        count: 1,
    });
    assert!(!s.slice.inodes.contains_key(&DIRECTORY));
    assert!(s.slice.aheads.is_empty());
}

#[test]
fn where_answers_are_late_nothing_holds_them_up() {
    let mut s = story();
    s.slice.expect_late_answers();
    let effects = begun(&mut s, false);
    assert_eq!(asked(&effects), None);
}

/// The token comes with the answer that tells the end.
#[test]
fn the_end_is_known_from_the_first_listing() {
    let mut s = story();
    s.slice.inode(DIRECTORY).holder = token::Holder::new();
    let effects = list(&mut s, 100);
    let (call, _) = asked(&effects).expect("asked");
    let mut told = listing(&s, 100, true);
    told.grants.push(granted(DIRECTORY, 1, NAMES));
    let effects = s.input(Input::Answer(call, Box::new(told)));
    s.settle(effects);
    let effects = list(&mut s, 100 + COUNT);
    assert_eq!(shown(&effects).map(Vec::len), Some(0));
}

/// The token for names went and came back with another answer while these entries were on their way: what they say may be of before another node's
/// change, and the kernel must not believe it.
#[test]
fn entries_of_before_a_token_are_shown_for_once() {
    for is_new in [false, true] {
        let mut s = story();
        let effects = list(&mut s, 0);
        let (call, cookie) = asked(&effects).expect("the owner is asked");
        if is_new {
            s.slice.inode(DIRECTORY).names_epoch += crate::names::NAMES_TOKEN;
        }
        let effects = answer(&mut s, call, cookie, true);
        let listed = shown(&effects).expect("it is answered");
        let timeouts = listed.iter().filter_map(|entry| entry.entry.as_ref());
        let timeouts: Vec<u64> = timeouts.map(|entry| entry.entry_timeout_ns).collect();
        assert!(!timeouts.is_empty(), "{listed:?}");
        assert_eq!(timeouts.iter().all(|ns| *ns == 0), is_new, "{timeouts:?}");
    }
}

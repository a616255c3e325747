//! What nobody uses is forgotten beyond a limit, and what the kernel knows is known when it comes back.

use types::FileKind;

use super::*;
use crate::request::Notice;

/// Inodes that were looked at and no more.
const MAX: u64 = 4;

fn story() -> Story {
    let mut s = Story::new(PAGE);
    s.slice.eviction.weight_max = usize::try_from(MAX).expect("few");
    s
}

fn other(index: u64) -> InodeId {
    InodeId::new(INO.shard(), 1000 + index)
}

fn tick(s: &mut Story) -> Vec<Effect> {
    s.now = s.now + Duration::from_millis(20);
    s.input(Input::Tick)
}

/// So many unused inodes, each of which the kernel has looked up twice; the later ones were used later.
fn know(s: &mut Story, count: u64, kind: FileKind) {
    for index in 0..count {
        s.now = s.now + Duration::from_millis(1);
        tick_clock(s);
        let mut attr = s.attr;
        (attr.ino, attr.kind) = (other(index), kind);
        let inode = s.slice.inode(other(index));
        inode.learn_attr(&attr);
        inode.lookup_count = 2;
    }
}

/// An input that changes nothing: the slice hears what time it is.
fn tick_clock(s: &mut Story) {
    let ino = other(1 << 20);
    let effects = s.input(Input::Request(Request {
        ticket: Ticket(0),
        caller: Caller::default(),
        operation: Operation::Forget { ino, count: 1 },
    }));
    assert!(effects.is_empty(), "{effects:?}");
}

fn forget(s: &mut Story, ino: InodeId, count: u64) {
    let effects = s.ask(Operation::Forget { ino, count });
    assert!(effects.is_empty(), "{effects:?}");
}

#[test]
fn the_oldest_go_and_their_lookups_stay() {
    let mut s = story();
    know(&mut s, 20, FileKind::Symlink);
    tick(&mut s);
    let left: Vec<bool> = (0..20)
        .map(|i| s.slice.inodes.contains_key(&other(i)))
        .collect();
    let count = left.iter().filter(|is_left| **is_left).count() as u64;
    assert!((1..=MAX).contains(&count), "{left:?}");
    assert!(left.is_sorted(), "the first were used first: {left:?}");
    assert_eq!(s.slice.cold_count() as u64, 20 - count);
    // The kernel forgets one in two steps.
    forget(&mut s, other(0), 1);
    assert_eq!(s.slice.cold[&other(0)].lookup_count, 1);
    forget(&mut s, other(0), 1);
    assert_eq!(s.slice.cold_count() as u64, 19 - count);
    // Another one is used again: it is what it was, and the kernel knows it.
    assert_eq!(s.slice.known_kind(other(1)), FileKind::Symlink);
    let inode = s.slice.inode(other(1));
    assert_eq!(inode.lookup_count, 2);
    assert_eq!(inode.known_kind(), FileKind::Symlink);
    assert_eq!(s.slice.cold_count() as u64, 18 - count);
}

#[test]
fn files_go_before_directories() {
    let mut s = story();
    know(&mut s, 3, FileKind::Directory);
    for index in 3..8 {
        s.now = s.now + Duration::from_millis(1);
        tick_clock(&mut s);
        let attr = s.attr;
        s.slice.inode(other(index)).learn_attr(&attr);
    }
    tick(&mut s);
    assert!((0..3).all(|i| s.slice.inodes.contains_key(&other(i))));
    assert!(s.slice.inodes.len() <= 4);
    assert_eq!(s.slice.cold_count(), 0, "the kernel knows none of them");
}

#[test]
fn tokens_go_first_and_are_not_taken_up_again() {
    let mut s = story();
    let effects = s.ask(Operation::GetAttr {
        ino: INO,
        handle: None,
    });
    s.number = 7;
    s.grant(&effects, InodeMode::Exclusive, ByteRange::ALL);
    s.slice.inode(INO).lookup_count = 1;
    know(&mut s, 20, FileKind::File);
    let effects = tick(&mut s);
    let is_notice = |effect: &Effect| matches!(effect, Effect::Notify(Some(_), _));
    assert!(
        effects.iter().any(is_notice),
        "the kernel knows it: {effects:?}"
    );
    assert!(!is_released(&effects));
    tick(&mut s);
    assert!(
        s.slice.inodes.contains_key(&INO),
        "the kernel has not answered"
    );
    assert!(is_released(&s.carry_out(effects)));
    tick(&mut s);
    assert!(!s.slice.inodes.contains_key(&INO));
    // The release may still be on its way.
    let effects = s.ask(Operation::GetAttr {
        ino: INO,
        handle: None,
    });
    let seen = effects.iter().find_map(|effect| match effect {
        Effect::Call(_, _, Ask::Acquire { seen, .. }) => Some(*seen),
        _ => None,
    });
    assert_eq!(seen, Some(TokenNumber(8)));
    s.number = 7;
    s.grant(&effects, InodeMode::Exclusive, ByteRange::ALL);
    assert!(
        s.slice.inode(INO).holder.held().is_empty(),
        "it was given up"
    );
}

#[test]
fn what_is_in_use_stays() {
    let mut s = story();
    s.has_sectors = true;
    s.open(InodeMode::Exclusive, ByteRange::ALL);
    s.write_back(1);
    know(&mut s, 20, FileKind::File);
    for index in 0..20 {
        let inode = s.slice.inode(other(index));
        match index % 7 {
            0 => inode.open_count = 1,
            1 => inode.closing_count = 1,
            2 => inode.is_taken_open = true,
            3 => inode.is_size_dirty = true,
            4 => inode.errors.note(Errno::EIO),
            5 => inode.unwritten_replies = 1,
            _ => inode.is_acquiring = true,
        }
    }
    for _ in 0..100 {
        tick(&mut s);
    }
    assert_eq!(s.slice.inodes.len(), 21);
    assert_eq!(s.slice.cold_count(), 0);
}

/// An answer that is on its way is about the inode as it was known then.
#[test]
fn who_waits_for_an_answer_stays() {
    let mut s = story();
    know(&mut s, 20, FileKind::File);
    s.ask(Operation::GetAttr {
        ino: other(0),
        handle: None,
    });
    s.slice.inode(other(0)).used_at = Instant(0);
    for _ in 0..100 {
        tick(&mut s);
    }
    assert!(s.slice.inodes.contains_key(&other(0)));
    assert!(s.slice.inodes.len() <= 4);
}

#[test]
fn names_are_bounded() {
    let mut s = story();
    know(&mut s, 3, FileKind::Directory);
    for index in 0..3 {
        let held = TokenKind::Directory {
            mode: DirectoryMode::Read,
            hash_begin: 0,
            hash_end: u64::MAX,
        };
        let granted = Granted {
            ticket: 0,
            ino: other(index),
            number: TokenNumber(1 + index),
            holdings: vec![Holding {
                ino: other(index),
                number: TokenNumber(1 + index),
                kind: held,
            }],
            contended: false,
        };
        s.slice
            .inode(other(index))
            .holder
            .on_granted(&granted, true);
        for name in 0..100 {
            let name = types::Name::new(format!("{name}").as_bytes()).expect("a name");
            s.slice.learn_name(other(index), &name, None, true);
        }
    }
    assert_eq!(s.slice.named_count, 300);
    tick(&mut s);
    let known: usize = s.slice.inodes.values().map(|i| i.name_count()).sum();
    assert_eq!(known, s.slice.named_count);
    assert!(known <= usize::try_from(MAX).expect("few") * 4, "{known}");
    assert_eq!(s.slice.inodes.len(), 3);
}

fn pruned(effects: &[Effect]) -> Vec<InodeId> {
    let prune = |effect: &Effect| match effect {
        Effect::Notify(None, Notice::Prune { inos }) => Some(inos.clone()),
        _ => None,
    };
    effects.iter().filter_map(prune).flatten().collect()
}

/// What the kernel has forgotten needs no notification when its tokens go, and leaves nothing behind.
#[test]
fn the_kernel_is_asked_to_forget_first() {
    let mut s = story();
    s.slice.prune_inodes();
    let effects = s.ask(Operation::GetAttr {
        ino: INO,
        handle: None,
    });
    s.grant(&effects, InodeMode::Exclusive, ByteRange::ALL);
    s.slice.inode(INO).lookup_count = 2;
    know(&mut s, 20, FileKind::File);
    let effects = tick(&mut s);
    let asked = pruned(&effects);
    assert!(asked.contains(&INO) && asked.contains(&other(0)));
    assert_eq!(
        effects.len(),
        1,
        "all with one notification, and nothing else"
    );
    assert_eq!(s.slice.inodes.len(), 21, "nobody has gone yet");
    // One is forgotten in two steps, one is looked up again meanwhile, one is opened.
    forget(&mut s, other(0), 1);
    assert!(s.slice.inodes.contains_key(&other(0)));
    forget(&mut s, other(0), 1);
    assert!(!s.slice.inodes.contains_key(&other(0)));
    s.slice.inode(other(1)).lookup_count += 1;
    forget(&mut s, other(1), 2);
    assert!(s.slice.inodes.contains_key(&other(1)));
    s.slice.inode(other(2)).open_count = 1;
    forget(&mut s, other(2), 2);
    let effects = s.ask(Operation::Forget { ino: INO, count: 2 });
    assert!(is_released(&effects), "{effects:?}");
    let is_notice = |effect: &Effect| matches!(effect, Effect::Notify(..));
    assert!(!effects.iter().any(is_notice), "{effects:?}");
    assert!(!s.slice.inodes.contains_key(&INO));
    assert_eq!(s.slice.cold_count(), 0);
    // What the kernel keeps goes all the same after a while, and is not asked for again.
    for _ in 0..30 {
        let again = pruned(&tick(&mut s));
        assert!(!again.iter().any(|ino| asked.contains(ino)), "{again:?}");
    }
    assert!(s.slice.inodes.contains_key(&other(2)), "it is open");
    let left = s.slice.inodes.len() as u64;
    assert!(left <= MAX, "{left}");
    assert_eq!(s.slice.cold_count() as u64 + left, 19);
}

/// It was chosen, went, and is back: it is not what was chosen.
#[test]
fn who_came_back_meanwhile_stays() {
    let mut s = story();
    s.slice.prune_inodes();
    know(&mut s, 20, FileKind::File);
    tick(&mut s);
    forget(&mut s, other(0), 2);
    assert!(!s.slice.inodes.contains_key(&other(0)));
    let inode = s.slice.inode(other(0));
    (inode.lookup_count, inode.open_count) = (1, 1);
    tick(&mut s);
    s.slice.inode(other(0)).open_count = 0;
    // In this round, which ends when the kernel has kept the others for a while.
    while s.slice.is_evicting() {
        tick(&mut s);
    }
    assert!(s.slice.inodes.contains_key(&other(0)));
}

#[test]
fn who_was_used_since_stays_for_another_turn() {
    let mut s = story();
    know(&mut s, 5, FileKind::File);
    s.now = s.now + Duration::from_millis(1);
    tick_clock(&mut s);
    let now = s.now;
    s.slice.inode(other(0)).used_at = now;
    tick(&mut s);
    assert!(s.slice.inodes.contains_key(&other(0)));
    assert!(!s.slice.inodes.contains_key(&other(1)));
}

/// What was asked for when an inode had other counts must not be taken for news of what they are later.
#[test]
fn counts_of_an_inode_that_is_known_again_are_new() {
    let names = 700 * crate::names::NAMES_TOKEN + 3;
    for (epoch, losses) in [(names, 0), (0, 900)] {
        let mut s = story();
        know(&mut s, 20, FileKind::File);
        let inode = s.slice.inode(other(1));
        (inode.names_epoch, inode.loss_count) = (epoch, losses);
        for _ in 0..4 {
            tick(&mut s);
        }
        assert!(!s.slice.inodes.contains_key(&other(1)), "it is forgotten");
        let inode = s.slice.inode(other(1));
        assert!(inode.loss_count > losses && inode.names_epoch > epoch);
        assert!(!crate::names::is_same_token(inode.names_epoch, epoch));
    }
}

/// Another node looked at it while it was open here, so the owner takes it to be open; it has been closed since, under a token.
#[test]
fn what_was_open_while_another_node_looked_goes_too() {
    for (is_taken_open, has_token, goes) in [
        (false, true, true),
        (true, true, true),
        (true, false, false),
    ] {
        let mut s = story();
        let effects = s.ask(Operation::GetAttr {
            ino: INO,
            handle: None,
        });
        s.grant(&effects, InodeMode::Exclusive, ByteRange::ALL);
        if !has_token {
            let want = Want::Inode {
                mode: InodeMode::Exclusive,
            };
            let effects = s.revoke(1, vec![want]);
            s.carry_out(effects);
        }
        let inode = s.slice.inode(INO);
        (inode.is_taken_open, inode.lookup_count) = (is_taken_open, 0);
        know(&mut s, 20, FileKind::File);
        for _ in 0..50 {
            let effects = tick(&mut s);
            s.carry_out(effects);
        }
        assert_eq!(
            !s.slice.inodes.contains_key(&INO),
            goes,
            "{is_taken_open} {has_token}"
        );
    }
}

/// Files that are made and removed below the limit.
#[test]
fn what_comes_and_goes_leaves_nothing_to_look_at() {
    let mut s = story();
    for index in 0..10_000 {
        let mut attr = s.attr;
        (attr.ino, attr.nlink) = (other(index), 0);
        let inode = s.slice.inode(other(index));
        (inode.attr, inode.is_freed, inode.lookup_count) = (Some(attr), true, 1);
        s.ask(Operation::Forget {
            ino: other(index),
            count: 1,
        });
    }
    assert!(s.slice.inodes.len() < 2);
    tick(&mut s);
    assert!(s.slice.clock_len() < 1000, "{}", s.slice.clock_len());
}

/// Of inodes that nobody has read or written since they came to rest three times as many stay as of others.
#[test]
fn what_was_only_looked_at_counts_for_less() {
    let mut s = Story::new(PAGE);
    s.slice.limit_inodes(2 * SLICE_COUNT);
    let left = |s: &mut Story| {
        while {
            tick(s);
            s.slice.is_evicting()
        } {}
        s.slice.inodes.len()
    };
    know(&mut s, 6, FileKind::File);
    assert_eq!(left(&mut s), 6);
    assert_eq!(s.slice.inode_weight(), 6);
    // Two that have been written to are as many.
    for index in 0..2 {
        s.slice.inode(other(index)).write_end = 1;
    }
    assert_eq!(s.slice.inode_weight(), 10);
    let left = left(&mut s);
    let weight = s.slice.inode_weight();
    assert!(
        (2..6).contains(&left) && weight <= 6,
        "{left} of weight {weight}"
    );
}

/// An inode shows what was there before anything of it was used, and nothing of that is left when it rests.
#[test]
fn what_rests_has_no_work() {
    let mut s = Story::new(PAGE);
    know(&mut s, 1, FileKind::File);
    let inode = s.slice.inode(other(0));
    assert!(!inode.has_work());
    assert!(inode.pages.is_empty() && inode.loads.is_empty() && inode.parked.is_empty());
    assert!(!inode.has_work(), "reading makes none");
    inode.resize_count += 1;
    assert!(inode.has_work());
    s.slice.rest(other(0));
    assert!(s.slice.inode(other(0)).has_work(), "it counts");
    s.slice.inode(other(0)).resize_count -= 1;
    s.slice.rest(other(0));
    assert!(!s.slice.inode(other(0)).has_work());
    assert_eq!(s.slice.inode_weight(), s.slice.inodes.len());
}

/// On a node that is alone, under a kernel that can be asked to forget.
fn alone() -> Story {
    let mut s = story();
    s.slice.believe(Duration::from_millis(
        types::limits::KERNEL_TIMEOUT_ALONE_MS,
    ));
    s.slice.prune_inodes();
    s
}

fn is_notice(effect: &Effect) -> bool {
    matches!(effect, Effect::Notify(..))
}

/// INO has a token, and the kernel knows it and its attributes; twenty others were looked at after it.
fn known_by_the_kernel(s: &mut Story) {
    let get = Operation::GetAttr {
        ino: INO,
        handle: None,
    };
    let effects = s.ask(get.clone());
    s.grant(&effects, InodeMode::Exclusive, ByteRange::ALL);
    s.slice.inode(INO).lookup_count = 1;
    s.ask(get);
    know(s, 20, FileKind::File);
}

#[test]
fn where_nobody_else_changes_anything_the_kernel_may_go_on_believing() {
    let mut s = alone();
    known_by_the_kernel(&mut s);
    let effects = tick(&mut s);
    assert!(!effects.iter().any(is_notice), "{effects:?}");
    assert!(is_released(&effects), "{effects:?}");
    assert!(!s.slice.inodes.contains_key(&INO), "at once");
    assert_eq!(s.slice.cold[&INO].lookup_count, 1);
    // Known again, it is as others.
    assert!(!s.slice.inode(INO).goes_silently);
    // Somebody may have an answer under way of which nobody knows any more.
    s.slice.inode(INO);
    s.slice.note_changed(INO, 1);
    let notice = Notice::Attributes { ino: INO };
    let is_told = |e: &Effect| matches!(e, Effect::Notify(None, n) if *n == notice);
    assert!(s.slice.out.iter().any(is_told));
    s.slice.out.clear();
}

/// The kernel asks for the access control list of `ino`; the call to the owner, if it takes one.
fn ask_acl(s: &mut Story, ino: InodeId) -> Option<CallId> {
    let name = SmallBytes::new(b"system.posix_acl_access");
    let effects = s.ask(Operation::GetXattr { ino, name, size: 0 });
    effects.iter().find_map(|effect| match effect {
        Effect::Call(call, ..) => Some(*call),
        _ => None,
    })
}

#[test]
fn that_a_forgotten_file_has_no_access_control_list_is_remembered() {
    for (is_alone, has_acl) in [(true, false), (true, true), (false, false)] {
        let mut s = alone();
        if !is_alone {
            s.slice.believe(Duration::from_millis(1000));
        }
        s.attr.permissions |= if has_acl { types::attr::HAS_ACL } else { 0 };
        known_by_the_kernel(&mut s);
        for _ in 0..10 {
            let effects = tick(&mut s);
            s.carry_out(effects);
        }
        assert!(s.slice.cold.contains_key(&INO));
        let is_known = is_alone && !has_acl;
        assert_eq!(
            ask_acl(&mut s, INO).is_none(),
            is_known,
            "{is_alone} {has_acl}"
        );
    }
}

#[test]
fn what_no_token_vouched_for_is_not_remembered() {
    let mut s = alone();
    known_by_the_kernel(&mut s);
    tick(&mut s);
    // An answer from before a list was set may have brought its attributes.
    assert!(s.slice.cold.contains_key(&other(0)));
    assert!(ask_acl(&mut s, other(0)).is_some());
}

#[test]
fn a_forgotten_file_may_be_given_an_access_control_list() {
    let mut s = alone();
    known_by_the_kernel(&mut s);
    tick(&mut s);
    assert!(ask_acl(&mut s, INO).is_none() && s.slice.cold.contains_key(&INO));
    let effects = s.ask(Operation::SetXattr {
        ino: INO,
        name: SmallBytes::new(b"system.posix_acl_access"),
        value: SmallBytes::new(b"list"),
        flags: 0,
    });
    let call = effects.iter().find_map(|effect| match effect {
        Effect::Call(call, ..) => Some(*call),
        _ => None,
    });
    assert!(ask_acl(&mut s, INO).is_some(), "it may be there already");
    let mut attr = s.attr;
    attr.permissions |= types::attr::HAS_ACL;
    s.answer(call.expect("the owner sets it"), meta::Reply::Attr(attr));
    assert!(ask_acl(&mut s, INO).is_some(), "it is there");
}

#[test]
fn what_was_asked_for_an_attribute_gives_its_tokens_back() {
    let mut s = alone();
    s.slice.inode(INO).lookup_count = 1;
    let call = ask_acl(&mut s, INO).expect("nothing is known");
    let kind = TokenKind::Inode {
        mode: InodeMode::Read,
    };
    let granted = story::granted(INO, 1, kind);
    let answer = Answer {
        body: Body::Op(meta::Reply::Error(Errno::ENODATA)),
        grants: vec![granted],
    };
    s.input(Input::Answer(call, Box::new(answer)));
    assert_eq!(s.slice.inode(INO).inode_mode(), Some(InodeMode::Read));
    let mut effects = Vec::new();
    // It was used in the first of these rounds.
    for _ in 0..3 {
        know(&mut s, 20, FileKind::File);
        effects.extend(tick(&mut s));
        s.now = s.now + Duration::from_millis(1000);
    }
    assert!(is_released(&effects), "{effects:?}");
}

#[test]
fn what_has_pages_is_dropped_from_the_kernel_all_the_same() {
    for (is_alone, has_pages) in [(true, true), (false, false)] {
        let mut s = alone();
        if !is_alone {
            s.slice.believe(Duration::from_millis(1000));
        }
        known_by_the_kernel(&mut s);
        s.slice.inode(INO).may_have_pages = has_pages;
        let effects = tick(&mut s);
        let asked: Vec<_> = effects
            .iter()
            .filter_map(|effect| match effect {
                Effect::Notify(None, Notice::Prune { inos }) => Some(inos.clone()),
                _ => None,
            })
            .flatten()
            .collect();
        assert!(!is_released(&effects), "{effects:?}");
        assert!(asked.contains(&INO), "{asked:?}");
        assert_eq!(asked.contains(&other(0)), !is_alone);
    }
}

#[test]
fn what_is_read_through_the_page_cache_may_have_pages() {
    for fills_page_cache in [true, false] {
        let mut s = alone();
        s.ask(Operation::Read {
            ino: INO,
            handle: Handle(0),
            offset: 0,
            length: 100,
            fills_page_cache,
        });
        assert_eq!(s.slice.inode(INO).may_have_pages, fills_page_cache);
    }
}

#[test]
fn the_kernel_does_not_keep_more_than_so_many() {
    let mut s = alone();
    let count = types::limits::COLD_INODE_COUNT_MAX / SLICE_COUNT;
    let cold = crate::evict::Cold {
        lookup_count: 1,
        kind: FileKind::File,
        is_believed: true,
        has_no_acl: false,
    };
    for index in 0..=count as u64 {
        s.slice.note_cold(other(index), cold);
    }
    let pruned = |effects: &[Effect]| -> Vec<InodeId> {
        let inos = effects.iter().filter_map(|effect| match effect {
            Effect::Notify(None, Notice::Prune { inos }) => Some(inos.clone()),
            _ => None,
        });
        inos.flatten().collect()
    };
    forget(&mut s, other(0), 1);
    assert!(pruned(&tick(&mut s)).is_empty(), "not too many");
    s.slice.note_cold(other(count as u64 + 1), cold);
    let first = pruned(&tick(&mut s));
    assert_eq!(first.len(), count / 8);
    assert_eq!(first[0], other(1), "the oldest");
    assert!(pruned(&tick(&mut s)).is_empty(), "it has time to forget");
    // It keeps them: the others are asked for.
    s.now = s.now + Duration::from_millis(1000);
    let second = pruned(&tick(&mut s));
    assert_eq!(second[0], other(1 + count as u64 / 8));
    for ino in first {
        forget(&mut s, ino, 1);
    }
    s.now = s.now + Duration::from_millis(1000);
    assert!(pruned(&tick(&mut s)).is_empty(), "not too many any more");
}

//! The manager alone: limits, silence, grace, transient requests, contention, foreign nonsense.
#![allow(clippy::unwrap_used, reason = "tests may panic")]

mod world;

use token::server::{Effect, Manager, Options, first_number};
use token::{Acquire, Busy, Misbehaved, Outbox, Reassert, Released};
use types::{
    DirectoryMode, Duration, Epoch, Holding, InodeId, InodeMode, Instant, ReleaseStamp, TokenKind,
    TokenNumber, Want,
};
use world::{INO, World, life};

fn request(node: usize, ticket: u64, want: Want) -> Acquire {
    Acquire {
        holder: life(node),
        ticket,
        ino: INO,
        seen: TokenNumber(0),
        wants: vec![want],
        transient: false,
    }
}

const fn directory(mode: DirectoryMode) -> Want {
    Want::Directory { mode }
}

#[test]
fn limits_push_back() {
    let options = Options {
        waiting_count_max: 1,
        token_count_max: 2,
        ..Options::default()
    };
    let mut manager = Manager::new(Epoch(1), options);
    let (now, mut out) = (Instant(0), Outbox::new());
    let write = || directory(DirectoryMode::Write);
    manager
        .acquire(now, request(0, 1, write()), &mut out)
        .unwrap();
    manager
        .acquire(now, request(1, 2, write()), &mut out)
        .unwrap();
    let third = manager.acquire(now, request(2, 3, write()), &mut out);
    assert_eq!(third, Err(Busy::Waiting { count: 1 }));
    manager.check();
    manager.cancel(now, (life(1), 2), INO, &mut out);
    let elsewhere = |index| Acquire {
        ino: InodeId::from_raw(index),
        ..request(1, index, write())
    };
    manager.acquire(now, elsewhere(100), &mut out).unwrap();
    let full = manager.acquire(now, elsewhere(101), &mut out);
    assert_eq!(full, Err(Busy::Tokens { count: 2 }));
    // It was asked for tokens before.
    assert!(out.iter().any(|e| matches!(e, Effect::Reclaim { .. })));
    // What needs no new record goes on.
    manager
        .acquire(now, request(0, 9, write()), &mut out)
        .unwrap();
    manager.check();
}

#[test]
fn a_silent_holder_is_reported_and_its_loss_lets_others_go_on() {
    let mut world = World::new(2);
    let want = |mode| vec![Want::Inode { mode }];
    world.want(0, want(InodeMode::Exclusive));
    world.settle();
    world.want(1, want(InodeMode::Exclusive));
    world.deliver(0);
    world.network.clear();
    for _ in 0..29 {
        world.advance(1000);
        world.check();
    }
    assert!(world.notes.is_empty());
    assert!(world.revoke_count > 20);
    world.advance(1000);
    assert_eq!(world.notes, ["n1 is silent since 0 ms"]);
    let waiters = world.manager.waiters();
    assert_eq!(waiters[0].waits_for, [(life(0), Instant(1))]);
    world.lose(0);
    world.settle();
    assert!(world.nodes[1].holder.covers_inode(InodeMode::Exclusive));
    world.check();
}

#[test]
fn a_transient_request_clears_the_way_and_leaves_nothing() {
    let mut world = World::new(2);
    world.want(0, vec![directory(DirectoryMode::Read)]);
    world.settle();
    let write = directory(DirectoryMode::Write);
    let mut transient = request(1, 77, write.clone());
    transient.transient = true;
    let mut out = Outbox::new();
    assert!(
        !world
            .manager
            .is_clear(life(1), INO, std::slice::from_ref(&write))
    );
    world
        .manager
        .acquire(world.now, transient, &mut out)
        .unwrap();
    world.perform(out);
    world.deliver(0);
    world.finish(0, 0);
    world.deliver(0);
    let granted = world.network.pop().unwrap();
    assert!(matches!(granted.message, token::Message::Granted(g) if g.holdings.is_empty()));
    assert!(
        world
            .manager
            .is_clear(life(1), INO, std::slice::from_ref(&write))
    );
    assert!(!world.manager.is_covered(life(1), INO, &[write]));
    assert_eq!(world.manager.token_count(), 0);
    world.check();
}

#[test]
fn a_directory_that_two_nodes_change_is_contended_for_a_while() {
    let mut manager = Manager::new(Epoch(1), Options::default());
    let mut now = Instant(0);
    let change = |manager: &mut Manager, now, node, ticket| {
        let mut out = Outbox::new();
        let mut transient = request(node, ticket, directory(DirectoryMode::Write));
        transient.transient = true;
        manager.acquire(now, transient, &mut out).unwrap();
        manager.check();
        match out.pop().unwrap() {
            Effect::Granted { message, .. } => message.contended,
            other => panic!("{other:?}"),
        }
    };
    assert!(!change(&mut manager, now, 0, 1));
    assert!(!change(&mut manager, now, 0, 2));
    assert!(change(&mut manager, now, 1, 3));
    assert!(change(&mut manager, now, 1, 4));
    now = now + Duration::from_secs(6);
    assert!(!change(&mut manager, now, 1, 5));
    while let Some(at) = manager.next_timeout() {
        manager.on_timeout(at, &mut Outbox::new());
        manager.check();
    }
}

#[test]
fn grace_waits_for_everybody_and_finds_conflicts() {
    let mut manager = Manager::new(Epoch(2), Options::default());
    let mut out = Outbox::new();
    manager.begin_grace(&[life(0), life(1), life(2)]);
    let claim = |part, is_last, number| Reassert {
        part,
        is_last,
        holdings: vec![Holding {
            ino: INO,
            number,
            kind: TokenKind::Inode {
                mode: InodeMode::Exclusive,
            },
        }],
        open: Vec::new(),
        locks: Vec::new(),
        lock_floor: 0,
    };
    let number = first_number(Epoch(2));
    let stranger = manager.reassert(life(7), &claim(0, true, number));
    assert_eq!(stranger, Err(Misbehaved::Unexpected { holder: life(7) }));
    let early = manager.reassert(life(0), &claim(1, true, number));
    assert_eq!(
        early,
        Err(Misbehaved::Order {
            holder: life(0),
            next: 0
        })
    );
    manager.reassert(life(0), &claim(0, true, number)).unwrap();
    manager.reassert(life(0), &claim(0, true, number)).unwrap();
    let conflict = manager.reassert(life(1), &claim(0, true, number));
    let (ino, first, second) = (INO, life(0), life(1));
    assert_eq!(conflict, Err(Misbehaved::Conflict { ino, first, second }));
    // A request waits, whatever it is for.
    let read = Want::Inode {
        mode: InodeMode::Read,
    };
    let elsewhere = Acquire {
        ino: InodeId::from_raw(9),
        ..request(1, 1, read)
    };
    manager.acquire(Instant(0), elsewhere, &mut out).unwrap();
    assert!(out.is_empty());
    assert_eq!(manager.missing().collect::<Vec<_>>(), [life(2)]);
    manager.on_node_lost(Instant(0), life(2), &mut out);
    manager.check();
    assert!(out.is_empty());
    manager.end_grace(Instant(0), &mut out);
    assert!(matches!(out[..], [Effect::Granted { .. }]));
    manager.check();
    let late = manager.reassert(life(1), &claim(0, true, number));
    assert_eq!(late, Err(Misbehaved::Unexpected { holder: life(1) }));
}

/// Lanes do not keep order: a release that was overtaken says nothing, also not whether the inode is open. (The owner
/// believed its `still_open` once, and freed a file that had been opened since.)
#[test]
fn a_release_that_was_overtaken_says_nothing() {
    let mut world = World::new(1);
    let mode = InodeMode::Exclusive;
    world.want(0, vec![Want::Inode { mode }]);
    world.settle();
    let number = world.number(0);
    let release = |sequence, kept| Released {
        ino: INO,
        number,
        sequence,
        revoke: 0,
        kept,
        still_open: sequence > 1,
    };
    let mode = InodeMode::Read;
    let (newer, older) = (
        release(2, vec![TokenKind::Inode { mode }]),
        release(1, vec![TokenKind::Inode { mode }]),
    );
    let gone = release(3, Vec::new());
    let now = world.now;
    let mut hear = |message: &Released| {
        let mut out = Outbox::new();
        world.manager.on_released(now, life(0), message, &mut out)
    };
    assert_eq!(hear(&newer), Ok(true));
    assert_eq!(hear(&older), Ok(false), "overtaken");
    assert_eq!(hear(&newer), Ok(false), "a repeat");
    assert_eq!(hear(&gone), Ok(true));
    assert_eq!(hear(&newer), Ok(false), "nothing is on record any more");
}

#[test]
fn a_release_of_what_was_never_held_is_refused() {
    let mut world = World::new(2);
    for node in 0..2 {
        let mode = InodeMode::Read;
        world.want(node, vec![Want::Inode { mode }]);
        world.settle();
    }
    let mut out = Outbox::new();
    let mut lie = Released {
        ino: INO,
        number: world.number(0),
        sequence: 9,
        revoke: 0,
        kept: vec![TokenKind::Inode {
            mode: InodeMode::Exclusive,
        }],
        still_open: false,
    };
    let result = world
        .manager
        .on_released(world.now, life(0), &lie, &mut out);
    assert!(matches!(result, Err(Misbehaved::Conflict { .. })));
    lie.number.0 += 1000;
    let result = world
        .manager
        .on_released(world.now, life(0), &lie, &mut out);
    assert!(matches!(result, Err(Misbehaved::Number { .. })));
    world.check();
}

/// The table of tokens was filled by files that had been unlinked, for nobody releases what is gone.
#[test]
fn what_is_recorded_of_an_inode_goes_with_it() {
    let options = Options {
        token_count_max: 2,
        ..Options::default()
    };
    let mut manager = Manager::new(Epoch(1), options);
    let (now, mut out) = (Instant(0), Outbox::new());
    let alone = || Want::Inode {
        mode: InodeMode::Exclusive,
    };
    for index in 100..200 {
        let ino = InodeId::from_raw(index);
        let held = Acquire {
            ino,
            ..request(0, index, alone())
        };
        manager.acquire(now, held, &mut out).unwrap();
        manager.on_inode_gone(now, ino, &mut out);
        assert_eq!(manager.token_count(), 0);
    }
    manager.check();
    // Who waits for it goes on, and a release that is on its way says nothing.
    manager
        .acquire(now, request(0, 1, alone()), &mut out)
        .unwrap();
    manager
        .acquire(now, request(1, 2, alone()), &mut out)
        .unwrap();
    out.clear();
    let number = manager.rights(life(0), INO).unwrap().0;
    manager.on_inode_gone(now, INO, &mut out);
    let is_granted =
        |e: &Effect| matches!(e, Effect::Granted { message, .. } if message.ticket == 2);
    assert!(out.iter().any(is_granted));
    manager.check();
    let released = Released {
        ino: INO,
        number,
        sequence: 1,
        revoke: 0,
        kept: Vec::new(),
        still_open: false,
    };
    assert_eq!(
        manager.on_released(now, life(0), &released, &mut out),
        Ok(false)
    );
    manager.check();
}

/// A close overtakes the release before it: that says nothing of opens any more, one after it does.
#[test]
fn what_a_release_says_of_before_a_close_is_no_news() {
    let number = |manager: &Manager| manager.rights(life(0), INO).unwrap().0;
    let released = |number, sequence, is_empty| Released {
        ino: INO,
        number,
        sequence,
        revoke: 0,
        kept: match is_empty {
            true => Vec::new(),
            false => vec![TokenKind::Inode {
                mode: InodeMode::Read,
            }],
        },
        still_open: true,
    };
    let acquire = |ticket| Acquire {
        holder: life(0),
        ticket,
        ino: INO,
        seen: TokenNumber(0),
        wants: vec![Want::Inode {
            mode: InodeMode::Exclusive,
        }],
        transient: false,
    };
    let mut manager = Manager::new(Epoch(1), Options::default());
    let mut out = Outbox::new();
    let now = Instant(1);
    manager.acquire(now, acquire(1), &mut out).unwrap();
    let first = number(&manager);
    let stamp = |number, sequence| ReleaseStamp { number, sequence };
    manager.on_closed(life(0), INO, stamp(first, 1));
    let mut say =
        |manager: &mut Manager, message| manager.on_released(now, life(0), &message, &mut out);
    assert_eq!(say(&mut manager, released(first, 1, false)), Ok(false));
    let kept = manager.rights(life(0), INO).unwrap().1.inode;
    assert_eq!(kept, Some(InodeMode::Read), "its tokens are heard");
    assert_eq!(say(&mut manager, released(first, 2, false)), Ok(true));
    // One of a later state is after it too.
    let mut more = Outbox::new();
    manager.acquire(now, acquire(2), &mut more).unwrap();
    let second = number(&manager);
    assert!(second > first);
    manager.on_closed(life(0), INO, stamp(first, 9));
    assert_eq!(say(&mut manager, released(second, 1, false)), Ok(true));
    // The holder knows the inode no longer: none is news.
    manager.on_closed(life(0), INO, ReleaseStamp::LAST);
    assert_eq!(say(&mut manager, released(second, 2, true)), Ok(false));
    manager.on_closed(life(0), INO, ReleaseStamp::LAST);
}

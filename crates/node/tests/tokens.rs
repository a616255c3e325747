//! A shard's table of tokens that is nearly full, and tokens that are asked for in ignorance.
#![allow(clippy::unwrap_used, reason = "a test")]

use client::message::{Ask, Body};
use meta::{HashKey, Mutation, Op, Shard};
use node::calls::question;
use node::{LOOK_CALL, Locked, OwnerEffect, OwnerEnv, OwnerSlice};
use types::{
    ByteRange, Epoch, Errno, InodeId, Instant, Lsn, Name, NodeId, Pattern, RangeMode, ShardId,
    Timestamp, TokenNumber, Want,
};

mod common;

use common::{directory, file, life};

const SHARD: ShardId = ShardId(0);

/// Who has most tokens of the shard is asked to give an eighth back before nobody gets any.
#[test]
fn who_holds_most_is_asked_to_give_back() {
    let options = token::Options {
        token_count_max: 16,
        ..token::Options::default()
    };
    let tokens = token::Manager::new(Epoch(1), options);
    let mut shard = Shard::new(SHARD, HashKey(7));
    let ino = |index| InodeId::new(SHARD, 100 + index);
    (0..15).for_each(|index| shard.apply(&file(ino(index), 1)));
    let mut slice = OwnerSlice::new(shard, tokens, Lsn(0));
    let env = OwnerEnv {
        now: Instant(1),
        timestamp: Timestamp::default(),
        me: life(1),
        owners: &[NodeId(1)],
        random: 0,
    };
    let mut out = Vec::new();
    for index in 0..15 {
        let from = life(if index < 4 { 3 } else { 2 });
        let ask = Ask::Acquire {
            ino: ino(index),
            seen: TokenNumber(0),
            wants: vec![Want::Inode {
                mode: types::InodeMode::Read,
            }],
            only_free: false,
        };
        let work = question(env.now, (from, index), None, SHARD, ask);
        let mut locked = Locked::new(std::iter::once(&mut slice));
        locked.run(&env, None, work, &mut out).unwrap();
    }
    let asked = |effect: &OwnerEffect| match effect {
        OwnerEffect::Reclaim(to, shard, count) => Some((*to, *shard, *count)),
        _ => None,
    };
    let asked: Vec<_> = out.iter().filter_map(asked).collect();
    assert_eq!(asked, [(life(2), SHARD, 2)], "once in a while");
}

/// Who has only seen a directory's name asks for its attributes as for a file's, and must hear of every change of them.
#[test]
fn attributes_of_a_directory_come_under_its_own_token() {
    let tokens = token::Manager::new(Epoch(1), token::Options::default());
    let mut shard = Shard::new(SHARD, HashKey(7));
    let ino = InodeId::new(SHARD, 100);
    shard.apply(&directory(ino));
    let mut slice = OwnerSlice::new(shard, tokens, Lsn(0));
    let env = OwnerEnv {
        now: Instant(1),
        timestamp: Timestamp::default(),
        me: life(1),
        owners: &[NodeId(1)],
        random: 0,
    };
    let ask = Ask::Acquire {
        ino,
        seen: TokenNumber(0),
        wants: vec![Want::Inode {
            mode: types::InodeMode::Read,
        }],
        only_free: false,
    };
    let work = question(env.now, (life(2), 1), None, SHARD, ask);
    let mut out = Vec::new();
    let mut locked = Locked::new(std::iter::once(&mut slice));
    locked.run(&env, None, work, &mut out).unwrap();
    drop(locked);
    let change = Want::Directory {
        mode: types::DirectoryMode::Write,
    };
    assert!(!slice.tokens.is_clear(life(3), ino, &[change]), "{out:?}");
}

/// Who only looks (`gupfs du`) hears what is committed, takes no token and waits for nobody who has one; its other answers
/// are those of everybody.
#[test]
fn who_only_looks_takes_no_tokens() {
    let tokens = token::Manager::new(Epoch(1), token::Options::default());
    let mut shard = Shard::new(SHARD, HashKey(7));
    let [parent, written, idle] = [100, 101, 102].map(|index| InodeId::new(SHARD, index));
    shard.apply(&directory(parent));
    for (cookie, ino) in [(1000, written), (1001, idle)] {
        shard.apply(&file(ino, 1));
        shard.apply(&Mutation::EntryPut {
            directory: parent.index(),
            cookie,
            name: Name::new(cookie.to_string().as_bytes()).unwrap(),
            ino,
            kind: types::FileKind::File,
        });
    }
    let mut slice = OwnerSlice::new(shard, tokens, Lsn(0));
    let env = OwnerEnv {
        now: Instant(1),
        timestamp: Timestamp::default(),
        me: life(1),
        owners: &[NodeId(1)],
        random: 0,
    };
    let ask = |slice: &mut OwnerSlice, (node, call), ask| {
        let work = question(env.now, (life(node), call), None, SHARD, ask);
        let mut out = Vec::new();
        let mut locked = Locked::new(std::iter::once(slice));
        locked.run(&env, None, work, &mut out).unwrap();
        out
    };
    // Node 2 writes to one of the files, and has changed the directory.
    for (ino, want) in [
        (
            written,
            Want::Inode {
                mode: types::InodeMode::Exclusive,
            },
        ),
        (
            parent,
            Want::Directory {
                mode: types::DirectoryMode::Write,
            },
        ),
    ] {
        let acquire = Ask::Acquire {
            ino,
            seen: TokenNumber(0),
            wants: vec![want],
            only_free: false,
        };
        ask(&mut slice, (2, 1), acquire);
    }
    assert_eq!(slice.tokens.token_count(), 2);
    let ops = [
        Op::ReadDir {
            ino: parent,
            cookie: 0,
            size: 4096,
            plus: true,
        },
        Op::GetAttr { ino: written },
        Op::GetAttr { ino: idle },
        Op::GetAttr { ino: parent },
    ];
    let asked = |slice: &mut OwnerSlice, node, look| {
        let asked = ops.iter().map(|op| {
            let op = op.clone();
            let out = ask(slice, (node, 5 | look), Ask::Op { op, durable: false });
            match &out[..] {
                [OwnerEffect::Answer { answer, .. }] => (true, answer.grants.len()),
                _ => (false, 0),
            }
        });
        asked.collect::<Vec<_>>()
    };
    for node in [1, 2, 3] {
        assert_eq!(asked(&mut slice, node, LOOK_CALL), [(true, 0); 4]);
        assert_eq!(slice.tokens.token_count(), 2, "node {node}");
        assert_eq!(slice.tokens.waiting_count(), 0, "node {node}");
    }
    // A client's slice waits for who writes, and keeps what it is given.
    let kept = [(false, 0), (false, 0), (true, 1), (false, 0)];
    assert_eq!(asked(&mut slice, 3, 0), kept);
    assert_eq!(slice.tokens.token_count(), 3);
}

/// Work that nobody waits for asks for tokens that are free: what another node has, or waits for, is not taken from it, and the
/// answer comes at once.
#[test]
fn who_asks_for_what_is_free_takes_nothing_from_anybody() {
    let tokens = token::Manager::new(Epoch(1), token::Options::default());
    let mut shard = Shard::new(SHARD, HashKey(7));
    let [shared, own, free] = [100, 101, 102].map(|index| InodeId::new(SHARD, index));
    for ino in [shared, own, free] {
        shard.apply(&file(ino, 1));
    }
    let mut slice = OwnerSlice::new(shard, tokens, Lsn(0));
    let env = OwnerEnv {
        now: Instant(1),
        timestamp: Timestamp::default(),
        me: life(1),
        owners: &[NodeId(1)],
        random: 0,
    };
    let mut ask = |(node, call), ino, mode, only_free| {
        let required = Pattern::plain(ByteRange::new(0, 8192));
        let ask = Ask::Acquire {
            ino,
            seen: TokenNumber(0),
            wants: vec![Want::Range {
                mode,
                required,
                desired: required,
            }],
            only_free,
        };
        let work = question(env.now, (life(node), call), None, SHARD, ask);
        let mut out = Vec::new();
        let mut locked = Locked::new(std::iter::once(&mut slice));
        locked.run(&env, None, work, &mut out).unwrap();
        let answer = |effect: &OwnerEffect| match effect {
            OwnerEffect::Answer { answer, .. } => match answer.body {
                Body::Acquired { .. } => Some(Ok(())),
                Body::Refused(errno) => Some(Err(errno)),
                _ => None,
            },
            _ => None,
        };
        let is_revoke = |effect: &OwnerEffect| matches!(effect, OwnerEffect::Revoke(..));
        let is_taken = out.iter().any(is_revoke);
        (out.iter().find_map(answer), is_taken)
    };
    let (read, write) = (RangeMode::Read, RangeMode::Write);
    let granted = (Some(Ok(())), false);
    let refused = (Some(Err(Errno::EAGAIN)), false);
    assert_eq!(ask((2, 1), shared, read, false), granted);
    assert_eq!(ask((3, 1), shared, write, true), refused);
    assert_eq!(ask((3, 2), shared, read, true), granted);
    assert_eq!(ask((3, 3), shared, write, true), refused);
    // A lone reader, and one that nobody has.
    assert_eq!(ask((2, 2), own, read, false), granted);
    assert_eq!(ask((2, 3), own, write, true), granted);
    assert_eq!(ask((3, 4), free, write, true), granted);
    // Node 2 waits for what node 3 has: nobody overtakes it.
    assert_eq!(ask((2, 4), free, write, false), (None, true));
    assert_eq!(ask((4, 1), free, read, true), refused);
    assert_eq!(ask((3, 5), free, write, true), refused);
}

/// Two nodes and a file that nobody has: what one gets for work that nobody waits for is what it required, so what the other one does
/// elsewhere in the file costs nobody anything. While nodes say what they hold, nobody knows what is free.
#[test]
fn who_asks_for_what_is_free_gets_nothing_else() {
    for is_in_grace in [false, true] {
        let mut tokens = token::Manager::new(Epoch(1), token::Options::default());
        if is_in_grace {
            tokens.begin_grace(&[life(3)]);
        }
        let mut shard = Shard::new(SHARD, HashKey(7));
        let ino = InodeId::new(SHARD, 100);
        shard.apply(&file(ino, 1));
        let mut slice = OwnerSlice::new(shard, tokens, Lsn(0));
        let env = OwnerEnv {
            now: Instant(1),
            timestamp: Timestamp::default(),
            me: life(1),
            owners: &[NodeId(1)],
            random: 0,
        };
        let mut ask = |(node, call), mode, range, only_free| {
            let required = Pattern::plain(range);
            let ask = Ask::Acquire {
                ino,
                seen: TokenNumber(0),
                wants: vec![Want::Range {
                    mode,
                    required,
                    desired: required,
                }],
                only_free,
            };
            let work = question(env.now, (life(node), call), None, SHARD, ask);
            let mut out = Vec::new();
            let mut locked = Locked::new(std::iter::once(&mut slice));
            locked.run(&env, None, work, &mut out).unwrap();
            out
        };
        let (write, read) = (RangeMode::Write, RangeMode::Read);
        let [first, second] = [(0, 8192), (8192, 16384)].map(|(a, b)| ByteRange::new(a, b));
        let out = ask((2, 1), write, first, true);
        let is_busy = |effect: &OwnerEffect| {
            let errno = Errno::EBUSY;
            matches!(effect, OwnerEffect::Answer { answer, .. } if answer.body == Body::Refused(errno))
        };
        assert_eq!(out.iter().any(is_busy), is_in_grace, "{out:?}");
        if is_in_grace {
            continue;
        }
        let all = ByteRange::ALL;
        let rights = |slice: &OwnerSlice| {
            let (_, rights) = slice.tokens.rights(life(2), ino).expect("granted");
            let covers = |range| rights.covers_range(write, range);
            (covers(&first), covers(&second), covers(&all))
        };
        for (mode, call) in [(read, 1), (write, 2)] {
            let out = ask((3, call), mode, second, false);
            let is_revoke = |effect: &OwnerEffect| matches!(effect, OwnerEffect::Revoke(..));
            assert!(!out.iter().any(is_revoke), "{out:?}");
        }
        assert_eq!(rights(&slice), (true, false, false));
    }
}

//! An owner wants tokens back.

use super::*;

fn reclaim(s: &mut Story, shard: ShardId, count: u64) -> Vec<Effect> {
    let effects = s.input(Input::Reclaim(shard, count));
    s.carry_out(effects)
}

/// The tokens of the file are given back; whether the owner is to keep it.
fn given_back(effects: &[Effect]) -> Option<bool> {
    effects.iter().find_map(|effect| match effect {
        Effect::Release(_, released) => {
            assert!(released.kept.is_empty());
            Some(released.still_open)
        }
        _ => None,
    })
}

fn stat(s: &mut Story) {
    let effects = s.ask(Operation::GetAttr {
        ino: INO,
        handle: None,
    });
    s.grant(&effects, InodeMode::Exclusive, ByteRange::ALL);
}

#[test]
fn idle_tokens_are_given_back() {
    let mut s = Story::new(PAGE);
    stat(&mut s);
    let elsewhere = ShardId(INO.shard().0 + 1);
    assert_eq!(given_back(&reclaim(&mut s, elsewhere, 9)), None);
    assert_eq!(given_back(&reclaim(&mut s, INO.shard(), 0)), None);
    let effects = reclaim(&mut s, INO.shard(), 1);
    assert_eq!(given_back(&effects), Some(false), "{effects:?}");
    let again = reclaim(&mut s, INO.shard(), 1);
    assert_eq!(given_back(&again), None, "there are none left");
    // They are asked for anew when they are needed.
    stat(&mut s);
    let effects = reclaim(&mut s, INO.shard(), 1);
    assert!(given_back(&effects).is_some(), "{effects:?}");
}

#[test]
fn tokens_of_what_is_used_stay() {
    let mut s = Story::new(PAGE);
    s.has_sectors = true;
    s.open(InodeMode::Exclusive, ByteRange::ALL);
    let effects = reclaim(&mut s, INO.shard(), 1);
    assert_eq!(given_back(&effects), None, "it is open");
    s.write_back(1);
    let handle = *s.slice.handles.keys().next().expect("opened");
    let effects = s.ask(Operation::Release { ino: INO, handle });
    s.carry_out(effects);
    assert!(s.slice.is_dirty());
    let effects = reclaim(&mut s, INO.shard(), 1);
    assert_eq!(given_back(&effects), None, "it is dirty");
}

/// Only so many go at once; the rest goes with the ticks, unless it is used meanwhile.
#[test]
fn the_rest_goes_with_the_ticks() {
    let mut s = Story::new(PAGE);
    stat(&mut s);
    // Many that are not idle any more are before it.
    let gone = (0..100).map(|index| InodeId::new(INO.shard(), 1000 + index));
    s.slice.idle.extend(gone.chain([INO]));
    let effects = s.input(Input::Tick);
    assert_eq!(given_back(&s.carry_out(effects)), None);
    let effects = s.input(Input::Tick);
    assert!(given_back(&s.carry_out(effects)).is_some());
    assert!(s.slice.idle.is_empty());
}

/// Some ten thousand files are remembered that nobody uses: what their queues once needed is given back, whichever ends last.
#[test]
fn what_nobody_uses_takes_little_memory() {
    for is_closed_first in [true, false] {
        let mut s = Story::new(PAGE);
        s.open(InodeMode::Exclusive, ByteRange::ALL);
        s.write_back(1);
        let handle = *s.slice.handles.keys().next().expect("opened");
        let effects = s.ask(Operation::Fsync {
            ino: INO,
            handle,
            data_only: false,
        });
        let (call, _) =
            commit_of(&effects).unwrap_or_else(|| panic!("small enough to lie in it: {effects:?}"));
        let release = Operation::Release { ino: INO, handle };
        if is_closed_first {
            s.ask(release.clone());
        }
        assert!(s.slice.inode(INO).goals.capacity() > 0);
        s.attr.change += 1;
        let effects = s.answer(call, meta::Reply::Attr(s.attr));
        let sync = effects.iter().find_map(|effect| match effect {
            Effect::Call(call, _, Ask::Sync) => Some(*call),
            _ => None,
        });
        let synced = Box::new(Answer::bare(Body::Synced));
        s.input(Input::Answer(sync.expect("its owner"), synced));
        if !is_closed_first {
            s.ask(release);
        }
        let inode = s.slice.inode(INO);
        assert!(inode.is_unused());
        let capacities = [
            inode.goals.capacity(),
            inode.batches.capacity(),
            inode.loads.capacity(),
            inode.parked.capacity(),
        ];
        assert_eq!(capacities, [0; 4], "closed first: {is_closed_first}");
    }
}

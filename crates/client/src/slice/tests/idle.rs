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

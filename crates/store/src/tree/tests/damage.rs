//! Every page of a tree damaged in turn: read again as it was, or an error that names it; never other bytes.

use std::collections::BTreeMap;

use types::Location;

use super::{Model, apply_to_model, edits, list};
use crate::tree::fault::TreeError;
use crate::tree::testing::Rig;
use crate::tree::walk::Broken;

/// A tree of some levels with `copy_count` copies, its model, and pages of older states.
fn grown(seed: u64, copy_count: u16) -> (Rig, Model, Vec<Box<[u8]>>) {
    let mut rig = Rig::new(seed, 1, 64 << 10);
    rig.entry_count_max = 5;
    rig.copy_count = copy_count;
    let mut model = Model::new();
    let mut old = Vec::new();
    for _ in 0..4 {
        let mut prng = rig.prng.clone();
        let edits = edits(&mut prng, 0, 300, 9);
        rig.prng = prng;
        old.extend(rig.disk.values().cloned());
        rig.apply(&edits).unwrap();
        apply_to_model(&mut model, &edits);
    }
    (rig, model, old)
}

/// Ways in which the bytes at `at` may be wrong.
fn damages(rig: &Rig, at: Location, old: &[Box<[u8]>], turn: usize) -> Vec<Box<[u8]>> {
    let good = &rig.disk[&at];
    let mut flipped = good.clone();
    flipped[(turn * 37) % 4096] ^= 1 << (turn % 8);
    let others: Vec<_> = rig.disk.iter().filter(|(place, _)| **place != at).collect();
    let stray = others[turn % others.len()].1.clone();
    let stale = old[turn % old.len()].clone();
    let mut torn = good.clone();
    torn[2048..].copy_from_slice(&stale[2048..]);
    [flipped, vec![0; 4096].into(), stray, stale, torn]
        .into_iter()
        .filter(|bytes| bytes != good)
        .collect()
}

#[test]
fn a_damaged_page_is_named_and_never_read() {
    let (mut rig, model, old) = grown(1, 1);
    assert!(rig.root.height() >= 3);
    let places = rig.reachable();
    for (turn, at) in places.iter().enumerate() {
        let good = rig.disk[at].clone();
        for bad in damages(&rig, *at, &old, turn) {
            rig.disk.insert(*at, bad);
            rig.cool(64 << 10);
            let keys: Vec<_> = model.keys().cloned().collect();
            for error in [
                rig.scan(&[], None).unwrap_err(),
                rig.get(keys.clone()).unwrap_err(),
            ] {
                match error {
                    TreeError::Corrupt { at: named, .. } => assert_eq!(named, *at),
                    TreeError::Unreachable { .. } => panic!("{error}"),
                }
            }
            let walked = rig.walk(None);
            let is_named = |b: &Broken| matches!(b, Broken::Copy { at: named, .. } if named == at);
            assert!(walked.broken.iter().any(is_named), "{:?}", walked.broken);
            assert_eq!(
                walked.broken.len(),
                2,
                "the copy, and that it was the only one"
            );
            // Beside it, all is there.
            let all: BTreeMap<_, _> = walked.entries.into_iter().collect();
            assert!(all.iter().all(|(k, v)| model.get(k) == Some(v)));
            assert!(all.len() < model.len());
        }
        rig.disk.insert(*at, good);
    }
}

#[test]
fn with_another_copy_nothing_is_missing_and_the_bad_one_is_named() {
    let (mut rig, model, old) = grown(2, 2);
    let places = rig.reachable();
    for (turn, at) in places.iter().enumerate() {
        let good = rig.disk[at].clone();
        for bad in damages(&rig, *at, &old, turn) {
            rig.disk.insert(*at, bad);
            rig.cool(64 << 10);
            assert_eq!(rig.scan(&[], None).unwrap(), list(&model));
            let counters = rig.pages.counters();
            let is_first = at.nsd.0 == 1;
            assert_eq!(
                counters.faults > 0,
                is_first,
                "the first copy is read first"
            );
            let walked = rig.walk(Some(7));
            assert_eq!(walked.broken.len(), 1);
            assert!(matches!(walked.broken[0], Broken::Copy { at: named, .. } if named == *at));
            assert_eq!(walked.entries, list(&model));
        }
        rig.disk.insert(*at, good);
    }
}

#[test]
fn wrong_counts_of_a_root_are_found() {
    let (mut rig, _, _) = grown(3, 1);
    let root = rig.root;
    rig.root.entries += 1;
    let said = rig.root.entries;
    let found = root.entries;
    assert_eq!(rig.walk(None).broken, [Broken::Entries { found, said }]);
    rig.root = root;
    rig.root.pages -= 1;
    let said = rig.root.pages;
    let found = root.pages;
    assert_eq!(rig.walk(Some(3)).broken, [Broken::Pages { found, said }]);
    rig.root = root;
    rig.root.lsn.0 -= 1;
    let is_newer = |b: &Broken| matches!(b, Broken::Newer { .. });
    let broken = rig.walk(None).broken;
    assert!(!broken.is_empty() && broken.iter().all(is_newer));
}

//! Every page of a tree damaged in turn: read again as it was, or an error that names it; never other bytes.

use std::collections::{BTreeMap, BTreeSet};

use types::{Location, Run};

use super::{Model, apply_to_model, edits, list};
use crate::tree::fault::TreeError;
use crate::tree::page::{Page, PageRef, Seal, seal};
use crate::tree::testing::{Rig, TREE};
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

#[test]
fn a_copy_that_cannot_be_read_is_told_from_one_that_is_bad() {
    for copy_count in [1, 2] {
        let (mut rig, model, _) = grown(4, copy_count);
        for at in rig.reachable() {
            rig.unreadable = BTreeSet::from([at]);
            rig.cool(64 << 10);
            let found = rig.scan(&[], None);
            let is_named =
                |e: TreeError| matches!(e, TreeError::Unreachable { at: a, .. } if a == at);
            match found {
                Ok(found) => assert_eq!((found, copy_count), (list(&model), 2)),
                Err(error) => assert!(is_named(error) && copy_count == 1),
            }
            let walked = rig.walk(None);
            let is_named = |b: &Broken| matches!(b, Broken::Unreadable { at: a, .. } if *a == at);
            assert!(is_named(&walked.broken[0]));
            assert_eq!(walked.broken.len(), if copy_count == 1 { 2 } else { 1 });
        }
    }
}

#[test]
fn what_is_used_twice_is_found_and_not_gone_into() {
    let (mut rig, model, _) = grown(5, 1);
    for at in rig.reachable() {
        let run = Run { at, count: 1 };
        let walked = rig.walk_beside(BTreeSet::from([run]), Some(3));
        assert_eq!(walked.broken.len(), 1);
        assert!(matches!(walked.broken[0], Broken::Double { at: named, .. } if named == at));
        assert!(walked.entries.len() <= model.len());
    }
    // The root itself: nothing below is claimed.
    let root = rig.root.page.unwrap();
    let run = root.runs().next().unwrap();
    let walked = rig.walk_beside(BTreeSet::from([run]), None);
    assert_eq!((walked.runs.len(), walked.entries.len()), (1, 0));
}

/// The root page as a writer with a bug would have written it: with these children.
fn rewrite_root(rig: &mut Rig, change: impl FnOnce(&mut Vec<(Vec<u8>, PageRef)>)) {
    let mut root = rig.root.page.unwrap();
    let page = Page::verify(TREE, &root, rig.disk[&root.copies[0]].clone()).unwrap();
    let child = |index| (page.key(index), page.child(index));
    let mut children: Vec<_> = (0..page.count()).map(child).collect();
    change(&mut children);
    let head = Seal {
        tree: TREE,
        sectors: root.sectors,
        level: root.level,
        lsn: page.lsn(),
        epoch: rig.root.epoch,
        number: root.number,
    };
    let entries: Vec<_> = children
        .iter()
        .map(|(k, c)| (k.clone(), c.encode()))
        .collect();
    let (bytes, crc) = seal(&head, entries.iter().map(|(k, c)| (&k[..], &c[..])));
    rig.disk.insert(root.copies[0], bytes.into());
    root.crc = crc;
    root.count = children.len().try_into().unwrap();
    rig.root.page = Some(root);
}

#[test]
fn mistakes_of_a_writer_are_found_though_every_checksum_fits() {
    // Children in the wrong order: their keys are not between the separators.
    let (mut rig, _, _) = grown(6, 1);
    rewrite_root(&mut rig, |children| {
        let first = children[0].1;
        children[0].1 = children[1].1;
        children[1].1 = first;
    });
    let broken = rig.walk(Some(2)).broken;
    assert!(!broken.is_empty());
    assert!(
        broken
            .iter()
            .all(|b| matches!(b, Broken::Separators { .. })),
        "{broken:?}"
    );
    // A child twice.
    let (mut rig, _, _) = grown(6, 1);
    rewrite_root(&mut rig, |children| children[1].1 = children[0].1);
    let broken = rig.walk(None).broken;
    assert!(
        broken.iter().any(|b| matches!(b, Broken::Double { .. })),
        "{broken:?}"
    );
    // A child of another level is not used at all.
    let (mut rig, _, _) = grown(6, 1);
    rewrite_root(&mut rig, |children| children[0].1.level += 1);
    rig.cool(64 << 10);
    assert!(matches!(
        rig.scan(&[], None),
        Err(TreeError::Corrupt { .. })
    ));
    let broken = rig.walk(None).broken;
    assert!(matches!(
        broken[..],
        [Broken::Copy { .. }, Broken::Lost { .. }]
    ));
    // A child left out: the counts do not fit.
    let (mut rig, _, _) = grown(6, 1);
    rewrite_root(&mut rig, |children| drop(children.pop()));
    let broken = rig.walk(Some(4)).broken;
    assert!(matches!(
        broken[..],
        [Broken::Entries { .. }, Broken::Pages { .. }]
    ));
}

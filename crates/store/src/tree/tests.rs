//! Tests of whole trees: against a map and against redb, power loss at every write, every page damaged in turn.
#![allow(clippy::cast_possible_truncation, reason = "test arithmetic is small")]

mod damage;
mod late;
mod shape;

use std::collections::BTreeMap;

use stdx::Prng;

use super::apply::ApplyError;
use super::testing::{Edit, Failure, Rig};

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

/// Keys of one kind: few enough that they meet again.
fn key(prng: &mut Prng, kind: u64, range: u64) -> Vec<u8> {
    let number = prng.below(range);
    match kind {
        // Adjacent numbers.
        0 => number.to_be_bytes()[2..].to_vec(),
        // Long keys that differ at the end, or are each other's prefixes.
        1 => vec![7; (number % 513) as usize],
        // Of all lengths, of few letters; the empty key among them.
        2 => {
            let mut bits = number;
            let mut key = Vec::new();
            while bits > 1 {
                key.push([0, 255][(bits & 1) as usize]);
                bits >>= 1;
            }
            key
        }
        // 512 bytes, different at the front or at the back.
        _ => {
            let mut key = vec![b'x'; 512];
            let at = if number.is_multiple_of(2) { 0 } else { 504 };
            key[at..at + 8].copy_from_slice(&number.to_be_bytes());
            key
        }
    }
}

/// Sorted edits, as the caller of an apply has them.
fn edits(prng: &mut Prng, kind: u64, range: u64, mood: u64) -> Vec<(Vec<u8>, Edit)> {
    let count = prng.below(prng.clone().between(1, 200)) + 1;
    let mut points = BTreeMap::new();
    for _ in 0..count {
        let edit = if prng.below(10) < mood {
            let long = if prng.chance(1, 10) { 400 } else { 30 };
            let mut value = vec![0; prng.below(long) as usize];
            prng.fill(&mut value);
            Edit::Put(value)
        } else {
            Edit::Delete
        };
        points.insert(key(prng, kind, range), edit);
    }
    let mut all: Vec<(Vec<u8>, Edit)> = points.into_iter().collect();
    for _ in 0..prng.below(12 - mood) / 3 {
        let (a, b) = (key(prng, kind, range), key(prng, kind, range));
        let (begin, end) = (a.clone().min(b.clone()), a.max(b));
        let at = all.partition_point(|(key, _)| *key < begin);
        let is_there = |at: usize| {
            all.get(at)
                .is_some_and(|(key, e)| *key == begin && matches!(e, Edit::DeleteTo(_)))
        };
        if !is_there(at) {
            all.insert(at, (begin, Edit::DeleteTo(end)));
        }
    }
    all
}

/// What the edits mean: ranges first at their key, later edits over earlier ones.
fn apply_to_model(model: &mut Model, edits: &[(Vec<u8>, Edit)]) {
    for (key, edit) in edits {
        if let Edit::DeleteTo(end) = edit
            && key < end
        {
            let gone: Vec<_> = model
                .range(key.clone()..end.clone())
                .map(|e| e.0.clone())
                .collect();
            for key in gone {
                model.remove(&key);
            }
        }
    }
    // A range never takes what the batch itself puts.
    for (key, edit) in edits {
        match edit {
            Edit::Put(value) => {
                model.insert(key.clone(), value.clone());
            }
            Edit::Delete => {
                model.remove(key);
            }
            Edit::DeleteTo(_) => {}
        }
    }
}

fn list(model: &Model) -> Vec<(Vec<u8>, Vec<u8>)> {
    model.iter().map(|(k, v)| (k.clone(), v.clone())).collect()
}

/// Everything that can be asked of a tree gives what the model has; no page is lost or kept.
fn compare(rig: &mut Rig, model: &Model, kind: u64, range: u64) {
    assert_eq!(rig.root.entries, model.len() as u64);
    assert_eq!(rig.scan(&[], None).unwrap(), list(model));
    let mut prng = rig.prng.clone();
    let keys: Vec<Vec<u8>> = (0..prng.below(60))
        .map(|_| key(&mut prng, kind, range))
        .collect();
    let found = rig.get(keys.clone()).unwrap();
    for (key, value) in keys.iter().zip(found) {
        assert_eq!(value.as_deref(), model.get(key).map(|v| &v[..]));
    }
    let (a, b) = (key(&mut prng, kind, range), key(&mut prng, kind, range));
    let (begin, end) = (a.clone().min(b.clone()), a.max(b));
    let expected: Vec<_> = model.range(begin.clone()..end.clone()).collect();
    let found = rig.scan(&begin, Some(&end)).unwrap();
    assert_eq!(found.len(), expected.len());
    assert!(found.iter().zip(expected).all(|((k, v), e)| (k, v) == e));
    let stop = (prng.below(2) == 0).then(|| prng.between(1, 5));
    let walked = rig.walk(stop);
    assert_eq!(walked.broken, []);
    assert_eq!(walked.entries, list(model));
    let places: Vec<_> = walked.runs.iter().map(|run| run.at).collect();
    assert!(
        places.iter().eq(rig.submitted()),
        "what is not reachable is free"
    );
}

fn rig_of(seed: u64) -> (Rig, u64, u64) {
    let mut prng = Prng::new(seed);
    let cache = (64 << 10) + prng.below(4) as usize * 65_000;
    let mut rig = Rig::new(seed, 1, cache);
    rig.entry_count_max = [4, 5, 8, 1000][prng.below(4) as usize];
    rig.copy_count = prng.between(1, 3) as u16;
    rig.failing = [0, 0, 3][prng.below(3) as usize];
    let kind = prng.below(4);
    let range = prng.between(1, 2000);
    (rig, kind, range)
}

#[test]
fn a_tree_is_what_a_sorted_map_is() {
    let mut highest = 0;
    for seed in 0..500 {
        let (mut rig, kind, range) = rig_of(seed);
        let mut model = Model::new();
        let round_count = rig.prng.between(1, 8);
        for _ in 0..round_count {
            let mut prng = rig.prng.clone();
            let mood = prng.between(0, 10);
            let edits = edits(&mut prng, kind, range, mood);
            rig.prng = prng;
            match rig.apply(&edits) {
                Ok(_) => apply_to_model(&mut model, &edits),
                // All copies of a page may fail, and the rig has no other places then.
                Err(Failure::Apply(ApplyError::NoPlace { .. })) if rig.failing > 0 => {}
                Err(other) => panic!("seed {seed}: {other:?}"),
            }
            highest = highest.max(rig.root.height());
            compare(&mut rig, &model, kind, range);
        }
        // All gone at last.
        let all: Vec<_> = model
            .keys()
            .map(|key| (key.clone(), Edit::Delete))
            .collect();
        rig.failing = 0;
        rig.apply(&all).unwrap();
        assert_eq!(rig.root.page, None);
        compare(&mut rig, &Model::new(), kind, range);
    }
    assert!(highest >= 5, "high trees were among them: {highest}");
}

/// Pages leave places, changed or not, whatever else an apply does; what lies elsewhere and is a leaf stays mostly.
#[test]
fn pages_leave_where_none_should_be() {
    let (mut left, mut shared) = (0, 0);
    for seed in 0..500 {
        let (mut rig, kind, range) = rig_of(seed + 40_000);
        let mut model = Model::new();
        for _ in 0..rig.prng.between(2, 8) {
            let mut prng = rig.prng.clone();
            let edits = match prng.chance(1, 3) {
                true => Vec::new(),
                false => edits(&mut prng, kind, range, 7),
            };
            // Some pages, or all of a part of the disk, where free places are, too.
            let before: Vec<_> = rig.submitted().iter().copied().collect();
            rig.evacuated = match prng.below(3) {
                0 => Vec::new(),
                1 => (before.iter().filter(|_| prng.chance(1, 4)))
                    .map(|at| types::Run { at: *at, count: 1 })
                    .collect(),
                _ => {
                    let nsd = types::NsdId(prng.between(1, u64::from(rig.copy_count)) as u16);
                    let sector = prng.below(40);
                    let at = types::Location { nsd, sector };
                    let count = prng.between(1, 60) as u32;
                    vec![types::Run { at, count }]
                }
            };
            rig.prng = prng;
            match rig.apply(&edits) {
                Ok(applied) => {
                    apply_to_model(&mut model, &edits);
                    shared += applied.counters.shared;
                    let is_in = |at: &types::Location| {
                        let mut runs = rig.evacuated.iter();
                        runs.any(|run| {
                            let end = run.at.sector + u64::from(run.count);
                            run.at.nsd == at.nsd && (run.at.sector..end).contains(&at.sector)
                        })
                    };
                    assert!(!rig.submitted().iter().any(is_in), "seed {seed}");
                    left += before.iter().filter(|at| is_in(at)).count();
                }
                Err(Failure::Apply(ApplyError::NoPlace { .. })) if rig.failing > 0 => {}
                Err(other) => panic!("seed {seed}: {other:?}"),
            }
            compare(&mut rig, &model, kind, range);
        }
    }
    assert!(
        left > 1000 && shared > 1000,
        "{left} left, {shared} were shared"
    );
}

#[test]
fn a_tree_is_what_redb_is() {
    use redb::{Database, ReadableDatabase as _, ReadableTable as _, TableDefinition};
    const TABLE: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("t");
    for seed in 0..12 {
        let (mut rig, kind, range) = rig_of(seed + 5000);
        rig.failing = 0;
        let twin = Database::builder()
            .create_with_backend(redb::backends::InMemoryBackend::new())
            .unwrap();
        for _ in 0..12 {
            let mut prng = rig.prng.clone();
            let mood = prng.between(3, 10);
            let edits = edits(&mut prng, kind, range, mood);
            rig.prng = prng;
            rig.apply(&edits).unwrap();
            let transaction = twin.begin_write().unwrap();
            {
                let mut table = transaction.open_table(TABLE).unwrap();
                for (key, edit) in &edits {
                    if let Edit::DeleteTo(end) = edit
                        && key < end
                    {
                        table.retain_in(&key[..]..&end[..], |_, _| false).unwrap();
                    }
                }
                for (key, edit) in &edits {
                    match edit {
                        Edit::Put(value) => drop(table.insert(&key[..], &value[..]).unwrap()),
                        Edit::Delete => drop(table.remove(&key[..]).unwrap()),
                        Edit::DeleteTo(_) => {}
                    }
                }
            }
            transaction.commit().unwrap();
            let table = twin.begin_read().unwrap().open_table(TABLE).unwrap();
            let theirs: Vec<_> = table
                .iter()
                .unwrap()
                .map(|entry| entry.unwrap())
                .map(|(key, value)| (key.value().to_vec(), value.value().to_vec()))
                .collect();
            assert_eq!(rig.scan(&[], None).unwrap(), theirs, "seed {seed}");
        }
    }
}

#[test]
fn power_may_be_lost_at_every_write() {
    for seed in 0..12 {
        let (mut rig, kind, range) = rig_of(seed + 9000);
        rig.failing = 0;
        let mut model = Model::new();
        for _ in 0..3 {
            let mut prng = rig.prng.clone();
            let edits = edits(&mut prng, kind, range, 7);
            rig.prng = prng;
            // Loses power after no write, after one, and so on, and at last after all, before the root.
            for write in 0.. {
                rig.writes_left = Some(write);
                let root = rig.root;
                let result = rig.apply(&edits);
                if result.is_ok() {
                    // The root was not journaled: the old tree must still be whole. Its pages were not given
                    // out again, because nothing was allocated since.
                    let new = std::mem::replace(&mut rig.root, root);
                    rig.cool(64 << 10);
                    assert_eq!(rig.scan(&[], None).unwrap(), list(&model));
                    rig.root = new;
                    break;
                }
                assert_eq!(result, Err(Failure::PowerLost));
                assert_eq!(rig.root, root);
                rig.cool(64 << 10);
                assert_eq!(rig.scan(&[], None).unwrap(), list(&model));
            }
            rig.writes_left = None;
            apply_to_model(&mut model, &edits);
            compare(&mut rig, &model, kind, range);
        }
    }
}

#[test]
fn without_places_the_old_tree_stays_and_all_is_given_back() {
    for seed in 0..8 {
        let (mut rig, kind, range) = rig_of(seed + 20_000);
        rig.failing = 0;
        let mut model = Model::new();
        for _ in 0..4 {
            let mut prng = rig.prng.clone();
            let edits = edits(&mut prng, kind, range, 8);
            rig.prng = prng;
            for places in 0.. {
                rig.places_left = Some(places);
                match rig.apply(&edits) {
                    Ok(_) => break,
                    Err(failure) => assert_eq!(failure, Failure::NoPlaces),
                }
                compare(&mut rig, &model, kind, range);
            }
            rig.places_left = None;
            apply_to_model(&mut model, &edits);
            compare(&mut rig, &model, kind, range);
        }
    }
}

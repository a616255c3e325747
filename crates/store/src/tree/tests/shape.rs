//! What an apply reads, writes and holds: shared subtrees, dense pages, bounded memory, fetches done once.

use types::Lsn;

use crate::tree::get::{Lookup, lookup};
use crate::tree::page::Page;
use crate::tree::pages::{Asked, Pages, Waiter};
use crate::tree::testing::{Edit, Rig, TREE};

fn number(n: u64) -> Vec<u8> {
    n.to_be_bytes().to_vec()
}

fn put(n: u64, size: usize) -> (Vec<u8>, Edit) {
    (number(n), Edit::Put(vec![n.to_le_bytes()[0]; size]))
}

/// Bytes of the values and keys, for each byte of the leaves.
fn density(rig: &mut Rig) -> f64 {
    let walked = rig.walk(None);
    assert_eq!(walked.broken, []);
    let used: usize = walked.entries.iter().map(|(k, v)| k.len() + v.len()).sum();
    let size = usize::from(rig.root.sectors) * 4096;
    used as f64 / (walked.runs.len() * size) as f64
}

#[test]
fn what_has_no_changes_is_not_read() {
    let mut rig = Rig::new(1, 1, 1 << 20);
    let edits: Vec<_> = (0..20_000).map(|n| put(n * 2, 40)).collect();
    rig.apply(&edits).unwrap();
    assert_eq!(rig.root.height(), 3);
    for count in [1_u64, 2, 10] {
        rig.cool(1 << 20);
        rig.fetched.clear();
        let edits: Vec<_> = (0..count).map(|n| put(n * 3000 + 1, 40)).collect();
        let applied = rig.apply(&edits).unwrap();
        // The root, and for each change an inner page and a leaf.
        assert!(
            rig.fetched.len() as u64 <= 1 + 2 * count,
            "{}",
            rig.fetched.len()
        );
        assert_eq!(applied.counters.opened, rig.fetched.len() as u64);
        assert!(applied.counters.written <= 1 + 4 * count);
    }
    // Nothing to do: nothing is read or written.
    rig.cool(1 << 20);
    rig.fetched.clear();
    let before = rig.root;
    let applied = rig.apply(&[]).unwrap();
    assert_eq!((rig.fetched.len(), applied.counters.written), (0, 0));
    assert_eq!(applied.root.page, before.page);
    assert_eq!(applied.root.lsn, Lsn(before.lsn.0 + 1));
    // Three leaves leave where they lie: all inner pages are read, and of the leaves these, and one beside them at the most.
    let walked = rig.walk(None);
    rig.evacuated = walked.runs.iter().step_by(100).copied().collect();
    assert_eq!(rig.evacuated.len(), 3, "{}", walked.runs.len());
    let applied = rig.apply(&[]).unwrap();
    assert!(applied.counters.opened < 25, "{:?}", applied.counters);
    assert!(applied.counters.written < 25, "{:?}", applied.counters);
    rig.evacuated.clear();
    // A range that goes: the leaves in it are not read, only those at its ends.
    let cut = (number(1000), Edit::DeleteTo(number(39_000)));
    let applied = rig.apply(&[cut]).unwrap();
    assert!(applied.counters.opened < 15, "{}", applied.counters.opened);
    assert_eq!(rig.scan(&[], None).unwrap().len() as u64, rig.root.entries);
    assert!(rig.root.entries < 1020);
}

#[test]
fn appends_fill_pages() {
    // At the end of the tree, in batches of all sizes.
    let mut rig = Rig::new(2, 4, 1 << 20);
    let mut next = 0;
    for batch in [1_u64, 30, 500, 3, 2000, 100, 100, 100, 5000, 7] {
        let edits: Vec<_> = (next..next + batch).map(|n| put(n, 92)).collect();
        next += batch;
        rig.apply(&edits).unwrap();
    }
    let dense = density(&mut rig);
    assert!(dense > 0.92, "{dense}");
    // In the middle, where others lie behind: at least a quarter is left to the page that grows.
    let mut rig = Rig::new(3, 4, 1 << 20);
    let others: Vec<_> = (0..5000).map(|n| put(n << 32, 92)).collect();
    rig.apply(&others).unwrap();
    for round in 0..100 {
        let first = (2500 << 32) + 1 + round * 60;
        let edits: Vec<_> = (first..first + 60).map(|n| put(n, 92)).collect();
        rig.apply(&edits).unwrap();
    }
    let dense = density(&mut rig);
    assert!(dense > 0.7, "{dense}");
}

#[test]
fn pages_stay_half_full_and_are_joined_when_they_empty() {
    let mut rig = Rig::new(4, 1, 1 << 20);
    let mut prng = rig.prng.clone();
    for _ in 0..60 {
        let mut keys: Vec<u64> = (0..100).map(|_| prng.next_u64()).collect();
        keys.sort_unstable();
        keys.dedup();
        let edits: Vec<_> = keys.into_iter().map(|n| put(n, 60)).collect();
        rig.apply(&edits).unwrap();
    }
    let dense = density(&mut rig);
    assert!(dense > 0.55, "{dense}");
    let (pages, height) = (rig.root.pages, rig.root.height());
    // Nine of ten go, a few at a time.
    for round in 0..9 {
        let all = rig.scan(&[], None).unwrap();
        let step = 10 - round;
        let gone = all
            .into_iter()
            .step_by(step)
            .map(|(key, _)| (key, Edit::Delete));
        rig.apply(&gone.collect::<Vec<_>>()).unwrap();
    }
    assert!(rig.root.entries > 300);
    let dense = density(&mut rig);
    assert!(dense > 0.3, "{dense}");
    assert!(rig.root.pages * 4 < pages);
    assert!(rig.root.height() <= height);
    let all = rig.scan(&[], None).unwrap();
    let left = all.into_iter().skip(3).map(|(key, _)| (key, Edit::Delete));
    rig.apply(&left.collect::<Vec<_>>()).unwrap();
    assert_eq!(
        (rig.root.height(), rig.root.pages, rig.root.entries),
        (1, 1, 3)
    );
}

#[test]
fn memory_is_bounded_by_neither_batch_nor_tree() {
    let mut seen = Vec::new();
    for count in [20_000, 200_000] {
        let mut rig = Rig::new(5, 4, 256 << 10);
        let edits: Vec<_> = (0..count).map(|n| put(n * 2, 50)).collect();
        rig.apply(&edits).unwrap();
        let edits: Vec<_> = (0..count).map(|n| put(n * 2 + 1, 50)).collect();
        rig.apply(&edits).unwrap();
        seen.push(rig.memory_max);
        assert_eq!(rig.root.entries, 2 * count);
    }
    // Changes not used yet take 1 MiB at most (here far less: the driver gives some at a time); then old and new pages.
    assert!(seen.iter().all(|memory| *memory < 1 << 20), "{seen:?}");
    assert!(seen[1] < seen[0] * 3 / 2, "{seen:?}");
    // Keys that prefixes shorten to nothing do not make it grow either.
    let mut rig = Rig::new(6, 16, 256 << 10);
    let long = |n: u64| {
        let mut key = vec![1; 504];
        key.extend(n.to_be_bytes());
        (key, Edit::Put(Vec::new()))
    };
    rig.apply(&(0..20_000).map(long).collect::<Vec<_>>())
        .unwrap();
    assert!(rig.memory_max < 4 << 20, "{}", rig.memory_max);
}

#[test]
fn changes_are_taken_until_a_limit_and_the_limit_is_kept() {
    let mut rig = Rig::new(7, 4, 256 << 10);
    let edits: Vec<_> = (0..3000).map(|n| put(n, 2000)).collect();
    rig.apply(&edits).unwrap();
    assert!(rig.memory_max < 2 << 20, "{}", rig.memory_max);
}

#[test]
fn a_page_is_fetched_once_for_all_who_wait_and_the_cache_keeps_its_limit() {
    let mut rig = Rig::new(8, 1, 64 << 10);
    rig.apply(&(0..3000).map(|n| put(n, 50)).collect::<Vec<_>>())
        .unwrap();
    let root = rig.root.page.unwrap();
    let mut pages = Pages::new(64 << 10, 8);
    assert!(matches!(pages.ask(TREE, &root, Waiter(1)), Asked::Coming));
    assert!(matches!(pages.ask(TREE, &root, Waiter(2)), Asked::Coming));
    assert!(matches!(pages.ask(TREE, &root, Waiter(3)), Asked::Coming));
    let fetch = pages.next_fetch().unwrap();
    assert_eq!(pages.next_fetch(), None);
    pages.forget(Waiter(2));
    let bytes = rig.disk[&fetch.at].clone();
    let arrival = pages.on_fetched(fetch.id, Ok(bytes)).unwrap();
    assert_eq!(arrival.waiters, [Waiter(1), Waiter(3)]);
    assert!(matches!(pages.ask(TREE, &root, Waiter(1)), Asked::Hit(_)));
    let page: &Page = &arrival.page.unwrap();
    // More children than the cache holds: all are fetched in the end, never more bytes than the limit.
    let count = page.count() as u64;
    assert!(count > 16);
    for index in 0..page.count() {
        let _ = pages.ask(TREE, &page.child(index), Waiter(1));
    }
    let mut out: Vec<_> = std::iter::from_fn(|| pages.next_fetch()).collect();
    assert_eq!(out.len(), 8);
    let mut came = 0;
    while let Some(fetch) = out.pop() {
        let bytes = rig.disk[&fetch.at].clone();
        came += u64::from(pages.on_fetched(fetch.id, Ok(bytes)).is_some());
        out.extend(std::iter::from_fn(|| pages.next_fetch()));
        pages.check();
    }
    assert_eq!(came, count);
    assert!(pages.counters().evictions > 0);
    assert_eq!(pages.counters().fetches, 1 + count);
    assert_eq!(pages.counters().joins, 2);
    // The root was used and is an inner page: it is still there.
    assert!(pages.look(TREE, &root).is_some());
}

#[test]
fn a_lookup_finds_what_is_cached_and_says_what_is_not() {
    let mut rig = Rig::new(9, 1, 4 << 20);
    rig.apply(&(0..2000).map(|n| put(n, 50)).collect::<Vec<_>>())
        .unwrap();
    let root = rig.root;
    for n in 0..2000 {
        match lookup(&mut rig.pages, TREE, &root, &number(n)) {
            Lookup::Found(value) => assert_eq!(value[..], vec![n.to_le_bytes()[0]; 50]),
            other => panic!("{other:?}"),
        }
    }
    assert!(matches!(
        lookup(&mut rig.pages, TREE, &root, &number(5000)),
        Lookup::Absent
    ));
    rig.cool(1 << 20);
    let cold = lookup(&mut rig.pages, TREE, &root, &number(5));
    assert!(matches!(cold, Lookup::Cold(page) if Some(page) == root.page));
}

#[test]
fn many_pages_are_under_way_at_a_time() {
    let mut rig = Rig::new(10, 1, 1 << 20);
    rig.apply(&(0..20_000).map(|n| put(n * 2, 50)).collect::<Vec<_>>())
        .unwrap();
    let mut under_way = |what: &dyn Fn(&mut Rig)| {
        rig.cool(1 << 20);
        rig.reads_max = 0;
        what(&mut rig);
        rig.reads_max
    };
    let scan = under_way(&|rig| assert_eq!(rig.scan(&[], None).unwrap().len(), 20_000));
    assert!(scan >= 5, "{scan}");
    let keys: Vec<_> = (0..200).map(|n| number(n * 200)).collect();
    let get = under_way(&|rig| assert!(rig.get(keys.clone()).unwrap().iter().all(Option::is_some)));
    assert_eq!(get, 3);
    let edits: Vec<_> = (0..200).map(|n| put(n * 200 + 1, 50)).collect();
    let apply = under_way(&|rig| assert!(rig.apply(&edits).is_ok()));
    assert_eq!(apply, 4);
}

#[test]
fn a_scan_of_a_range_reads_its_leaves_only() {
    let mut rig = Rig::new(11, 1, 1 << 20);
    rig.apply(&(0..20_000).map(|n| put(n, 50)).collect::<Vec<_>>())
        .unwrap();
    rig.cool(1 << 20);
    rig.fetched.clear();
    let found = rig.scan(&number(15_000), Some(&number(15_100))).unwrap();
    assert_eq!(found.len(), 100);
    // The root, one or two inner pages and the one beside, three leaves at most.
    assert!(rig.fetched.len() <= 7, "{}", rig.fetched.len());
}

#[test]
fn a_cached_page_is_a_hit_only_for_its_checksum() {
    let mut rig = Rig::new(12, 1, 1 << 20);
    rig.apply(&[put(1, 50)]).unwrap();
    let root = rig.root.page.unwrap();
    assert!(rig.pages.look(TREE, &root).is_some());
    // A page of the same number that an apply wrote which never became the tree.
    let mut other = root;
    other.crc ^= 1;
    assert!(rig.pages.look(TREE, &other).is_none());
    let asked = rig.pages.ask(TREE, &other, Waiter(1));
    assert!(matches!(asked, Asked::Coming));
}

#[test]
fn a_page_that_empties_beside_pages_without_changes_takes_its_neighbour_in() {
    let mut rig = Rig::new(13, 1, 1 << 20);
    rig.apply(&(0..3000).map(|n| put(n, 60)).collect::<Vec<_>>())
        .unwrap();
    // Of 150 adjacent keys 115 go, a range at a time: some leave two leaves with less than a quarter of a page.
    for first in (0..3000).step_by(150) {
        let gone = (first + 1..first + 116).map(|n| (number(n), Edit::Delete));
        rig.apply(&gone.collect::<Vec<_>>()).unwrap();
        let used = rig.walk(None).used;
        let (_, before) = used.split_last().unwrap();
        assert!(before.iter().all(|used| *used > 1024), "{used:?}");
    }
}

//! The books by themselves; with a server and a disk they are tested in `tests/durability.rs`.

use super::*;
use types::NodeId;

const NSD: NsdId = NsdId(1);
const A: Path = Path::Server { node: NodeId(1) };
const B: Path = Path::Direct { disk: 2 };
const V: Verifier = Verifier(10);
const OTHER: Verifier = Verifier(11);

fn wrote(writes: &mut Writes, id: u64, path: Path, verifier: Verifier) {
    let needs = writes.on_write_done(WriteId(id), NSD, path, verifier, false);
    assert_eq!(needs, Durability::NeedsFlush);
    writes.check();
}

fn ids(ids: &[u64]) -> Vec<WriteId> {
    ids.iter().map(|id| WriteId(*id)).collect()
}

fn settled(durable: &[u64], lost: &[u64]) -> Settled {
    Settled {
        durable: ids(durable),
        lost: ids(lost),
    }
}

#[test]
fn a_flush_settles_what_was_answered_before_it_began() {
    let mut writes = Writes::new();
    assert_eq!(writes.begin_flush(NSD), []);
    wrote(&mut writes, 1, A, V);
    wrote(&mut writes, 2, A, V);
    let starts = writes.begin_flush(NSD);
    let [start] = starts[..] else {
        panic!("{starts:?}");
    };
    assert_eq!((start.nsd, start.path), (NSD, A));
    wrote(&mut writes, 3, A, V);
    assert_eq!(writes.on_flush_done(start.flush, V), settled(&[1, 2], &[]));
    assert_eq!(writes.on_flush_done(start.flush, V), settled(&[], &[]));
    assert_eq!(writes.waiting_count(), 1);
    assert_eq!(writes.unflushed().into_iter().collect::<Vec<_>>(), [NSD]);
    let start = writes.begin_flush(NSD)[0];
    assert_eq!(writes.on_flush_done(start.flush, OTHER), settled(&[], &[3]));
    assert_eq!(writes.waiting_count(), 0);
    writes.check();
}

#[test]
fn nothing_is_booked_that_is_durable_already() {
    let mut writes = Writes::new();
    let durable = writes.on_write_done(WriteId(1), NSD, A, V, true);
    assert_eq!(durable, Durability::Durable);
    assert_eq!(writes.begin_flush(NSD), []);
}

#[test]
fn each_path_is_flushed_for_itself() {
    let mut writes = Writes::new();
    wrote(&mut writes, 1, A, V);
    wrote(&mut writes, 2, B, OTHER);
    let starts = writes.begin_flush(NSD);
    assert_eq!(starts.len(), 2);
    assert_eq!(writes.begin_flush(NsdId(9)), []);
    for start in starts {
        let expected = match start.path == A {
            true => settled(&[1], &[]),
            false => settled(&[], &[2]),
        };
        assert_eq!(writes.on_flush_done(start.flush, V), expected);
    }
}

#[test]
fn a_server_that_began_anew_between_two_writes_loses_the_first_only() {
    let mut writes = Writes::new();
    wrote(&mut writes, 1, A, V);
    wrote(&mut writes, 2, A, OTHER);
    let start = writes.begin_flush(NSD)[0];
    assert_eq!(
        writes.on_flush_done(start.flush, OTHER),
        settled(&[2], &[1])
    );
}

#[test]
fn flushes_that_overlap_settle_each_write_once() {
    for order in [[0, 1], [1, 0]] {
        let mut writes = Writes::new();
        wrote(&mut writes, 1, A, V);
        let first = writes.begin_flush(NSD)[0].flush;
        wrote(&mut writes, 2, A, V);
        let second = writes.begin_flush(NSD)[0].flush;
        let mut ends = Vec::new();
        for index in order {
            let flush = [first, second][index];
            ends.extend(writes.on_flush_done(flush, V).durable);
            writes.check();
        }
        ends.sort_unstable();
        assert_eq!(ends, ids(&[1, 2]));
    }
}

#[test]
fn a_failed_flush_or_a_path_that_is_gone_loses_its_writes() {
    let mut writes = Writes::new();
    wrote(&mut writes, 1, A, V);
    let start = writes.begin_flush(NSD)[0];
    wrote(&mut writes, 2, A, V);
    assert_eq!(writes.on_flush_failed(start.flush), settled(&[], &[1]));
    let start = writes.begin_flush(NSD)[0];
    wrote(&mut writes, 3, B, V);
    assert_eq!(writes.on_path_gone(NSD, A), settled(&[], &[2]));
    assert_eq!(writes.on_flush_done(start.flush, V), settled(&[], &[]));
    assert_eq!(writes.waiting_count(), 1);
    writes.check();
}

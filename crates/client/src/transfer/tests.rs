//! Stores to a disk of sectors and loads from it: what comes back is verified, whatever is damaged or fails.

use super::*;
use crate::slice::tests::Memory;
use types::extent::checksum_sector_count;
use types::{Checksums, Run};

/// Sectors by NSD and number.
type Disk = BTreeMap<(NsdId, u64), Vec<u8>>;

fn whole(frame: FrameRef) -> Span {
    Span::whole(frame)
}

fn frames(pool: &Memory, count: u32, seed: u8) -> Vec<FrameRef> {
    let fill = |number: u32| {
        let frame = pool.alloc().expect("no limit yet");
        let byte = u8::try_from(number % 200)
            .expect("small")
            .wrapping_add(seed);
        pool.put(whole(frame), &vec![byte; FRAME_SIZE]);
        frame
    };
    (0..count).map(fill).collect()
}

fn piece(file_sector: u64, (nsd, sector): (u16, u64), frames: Vec<FrameRef>) -> StorePiece {
    let data = u32::try_from(frames.len()).expect("small");
    let at = Location {
        nsd: NsdId(nsd),
        sector,
    };
    StorePiece {
        file_sector,
        frames,
        run: Run {
            at,
            count: data + checksum_sector_count(data),
        },
    }
}

fn write(pool: &Memory, disk: &mut Disk, request: &Request) {
    for (sector, frame) in (request.at.sector..).zip(&request.frames) {
        disk.insert((request.at.nsd, sector), pool.bytes(whole(*frame)));
    }
}

fn read(pool: &Memory, disk: &Disk, request: &Request) {
    for (sector, frame) in (request.at.sector..).zip(&request.frames) {
        pool.put(whole(*frame), &disk[&(request.at.nsd, sector)]);
    }
}

/// Two adjacent short runs, and a long one elsewhere.
fn stored(pool: &Memory, disk: &mut Disk) -> Vec<Extent> {
    let pieces = vec![
        piece(0, (1, 100), frames(pool, 4, 1)),
        piece(4, (1, 104), frames(pool, 8, 50)),
        piece(12, (2, 7), frames(pool, 40, 90)),
    ];
    let (mut store, requests) = Store::plan(pieces, pool).expect("frames");
    assert_eq!(requests.len(), 2, "what is adjacent is one write");
    let mut is_over = false;
    for request in &requests {
        assert!(!is_over);
        write(pool, disk, request);
        is_over = store.on_written(request.at.nsd, Ok(7u64));
    }
    assert!(is_over);
    let (extents, written) = store.end(pool).expect("all was written");
    assert_eq!(written, [(NsdId(1), 7), (NsdId(2), 7)]);
    assert!(matches!(extents[2].checksums, Checksums::Sectors { .. }));
    extents
}

/// Loads extents into frames of their own; returns what was read, or why not.
fn loaded(
    pool: &Memory,
    disk: &Disk,
    extents: &[Extent],
    cache: &mut ChecksumCache,
) -> (usize, Result<Vec<u8>, IoFailure>) {
    let all: Vec<Vec<FrameRef>> = extents.iter().map(|e| frames(pool, e.length, 0)).collect();
    let pieces: Vec<LoadPiece> = extents
        .iter()
        .zip(&all)
        .map(|(extent, frames)| LoadPiece {
            extent: extent.clone(),
            frames: frames.clone(),
        })
        .collect();
    let planned = Load::plan(&pieces, pool, |key| cache.get(key));
    let (mut load, requests) = planned.expect("frames");
    for request in &requests {
        read(pool, disk, request);
        load.on_read(Ok(()));
    }
    let result = load.end(pool, |key, crcs| cache.insert(key, crcs), |_| {});
    let bytes = all.iter().flatten().flat_map(|f| pool.bytes(whole(*f)));
    (requests.len(), result.map(|()| bytes.collect()))
}

fn is_free(pool: &Memory, from: usize) -> bool {
    pool.0.borrow()[from..].iter().all(|(count, _)| *count == 0)
}

#[test]
fn what_was_stored_is_loaded_and_every_sector_is_verified() {
    let (pool, mut disk) = (Memory::default(), Disk::new());
    let extents = stored(&pool, &mut disk);
    let mut cache = checksum_cache();
    let (count, bytes) = loaded(&pool, &disk, &extents, &mut cache);
    assert_eq!(
        count, 3,
        "the long run with its checksum sector in one read"
    );
    let bytes = bytes.expect("verified");
    assert_eq!(bytes.len(), 52 * FRAME_SIZE);
    assert_eq!(
        (bytes[0], bytes[4 * FRAME_SIZE], bytes[12 * FRAME_SIZE]),
        (1, 50, 90)
    );
    // A part of the long run: its checksums are known now.
    let part = [extents[2].slice(20, 30)];
    let (count, bytes) = loaded(&pool, &disk, &part, &mut cache);
    assert_eq!((count, bytes.map(|b| b[0])), (1, Ok(98)));
    // Without them they are read too.
    let (count, bytes) = loaded(&pool, &disk, &part, &mut checksum_cache());
    assert_eq!((count, bytes.map(|b| b[0])), (2, Ok(98)));
    let places: Vec<(NsdId, u64)> = disk.keys().copied().collect();
    for place in places {
        let mut damaged = disk.clone();
        damaged.get_mut(&place).expect("there")[77] ^= 4;
        let (_, result) = loaded(&pool, &damaged, &extents, &mut checksum_cache());
        let failure = result.expect_err("a sector is damaged");
        assert_eq!(failure, IoFailure::Corrupt, "{place:?}");
    }
}

#[test]
fn a_failure_of_a_part_is_one_of_the_whole_and_frees_all_frames() {
    let (pool, mut disk) = (Memory::default(), Disk::new());
    let extents = stored(&pool, &mut disk);
    let extra = pool.0.borrow().len();
    let pieces = [LoadPiece {
        extent: extents[2].slice(20, 30),
        frames: (0..10).map(FrameRef).collect(),
    }];
    let (mut load, requests) = Load::plan(&pieces, &pool, |_| None).expect("frames");
    assert_eq!(requests.len(), 2);
    assert!(!load.on_read(Err(IoFailure::Unreachable)));
    assert!(load.on_read(Ok(())));
    let result = load.end(
        &pool,
        |_, _| panic!("nothing was verified"),
        |_| panic!("nor found wrong"),
    );
    assert_eq!(result, Err(IoFailure::Unreachable));
    assert!(is_free(&pool, extra));
    for (first, second, expected) in [
        (Ok(1), Err(IoFailure::Unknown), IoFailure::Unknown),
        (
            Err(IoFailure::Unknown),
            Err(IoFailure::Unreachable),
            IoFailure::Unknown,
        ),
        (Err(IoFailure::Unreachable), Ok(1), IoFailure::Unreachable),
    ] {
        let before = pool.0.borrow().len();
        let pieces = vec![
            piece(0, (1, 100), (0..40).map(FrameRef).collect()),
            piece(40, (2, 100), (0..40).map(FrameRef).collect()),
        ];
        let (mut store, requests) = Store::plan(pieces, &pool).expect("frames");
        assert_eq!(requests.len(), 2);
        assert!(!store.on_written(NsdId(1), first));
        assert!(store.on_written(NsdId(2), second));
        assert_eq!(store.end(&pool), Err(expected));
        assert!(is_free(&pool, before));
    }
}

#[test]
fn without_frames_nothing_is_kept_and_nothing_is_lost() {
    let (mut pool, mut disk) = (Memory::default(), Disk::new());
    let extents = stored(&pool, &mut disk);
    let before = pool.0.borrow().len();
    let used = |pool: &Memory| pool.0.borrow().iter().filter(|f| f.0 > 0).count() as u64;
    pool.1 = Some(used(&pool) + 1);
    let long = |place| piece(0, place, (0..40).map(FrameRef).collect());
    let pieces = vec![long((1, 500)), long((2, 500))];
    let back = Store::<u64>::plan(pieces.clone(), &pool).expect_err("two are wanted");
    assert_eq!(back, pieces);
    assert!(is_free(&pool, before));
    pool.1 = Some(used(&pool));
    let pieces = [LoadPiece {
        extent: extents[2].clone(),
        frames: (0..40).map(FrameRef).collect(),
    }];
    assert!(Load::plan(&pieces, &pool, |_| None).is_none());
    assert!(is_free(&pool, before));
}

#[test]
fn a_flush_covers_writes_of_its_own_verifier_only() {
    let io = IoId;
    for (now, expected) in [
        (1, Ok(())),
        (
            2,
            Err(vec![
                (io(1), IoFailure::Unknown),
                (io(2), IoFailure::Unknown),
            ]),
        ),
    ] {
        let mut unflushed = Unflushed::default();
        unflushed.insert(io(1), vec![(NsdId(1), 1), (NsdId(2), 5)]);
        unflushed.insert(io(2), vec![(NsdId(1), 1)]);
        unflushed.insert(io(3), vec![(NsdId(1), 9)]);
        let mut flushing = unflushed.take(&[io(1), io(2)]);
        assert_eq!(flushing.nsds(), [NsdId(1), NsdId(2)]);
        assert_eq!(flushing.on_flushed(NsdId(1), Ok(now)), None);
        assert_eq!(flushing.on_flushed(NsdId(2), Ok(5)), Some(expected));
        let again = unflushed.take(&[io(1)]);
        assert!(again.nsds().is_empty(), "flushed once");
        let unknown = Err(vec![(io(1), IoFailure::Unknown)]);
        assert_eq!(again.result(), unknown, "not known");
        let mut partly = unflushed.take(&[io(3), io(1)]);
        assert_eq!(partly.nsds(), [NsdId(1)]);
        let result = partly.on_flushed(NsdId(1), Ok(9));
        assert_eq!(result, Some(unknown));
        unflushed.insert(io(5), vec![(NsdId(1), 1)]);
        assert!(!unflushed.is_empty());
        unflushed.forget(&[io(4), io(5)]);
        assert!(unflushed.is_empty());
    }
}

/// What a disk refuses is told from what may fare better, store by store.
#[test]
fn a_flush_says_which_stores_are_not_durable_and_why() {
    let io = IoId;
    let mut unflushed = Unflushed::default();
    for (store, nsds) in [(1, &[1][..]), (2, &[1, 2]), (3, &[3]), (4, &[3, 2])] {
        let written = nsds.iter().map(|nsd| (NsdId(*nsd), 7)).collect();
        unflushed.insert(io(store), written);
    }
    let mut flushing = unflushed.take(&[io(1), io(2), io(3), io(4), io(5)]);
    assert_eq!(flushing.on_flushed(NsdId(1), Ok(7)), None);
    let unreachable = Err(IoFailure::Unreachable);
    assert_eq!(flushing.on_flushed(NsdId(2), unreachable), None);
    let ended = flushing.on_flushed(NsdId(3), Ok(8));
    let failed = [
        (2, IoFailure::Unreachable),
        (3, IoFailure::Unknown),
        (4, IoFailure::Unreachable),
        (5, IoFailure::Unknown),
    ];
    assert_eq!(
        ended,
        Some(Err(failed.map(|(n, why)| (io(n), why)).to_vec()))
    );
}

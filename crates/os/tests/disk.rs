//! Disks on files and, for root, on a loop device: against an array, at their ends, and in others' use.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use client::pool::Pool;
use os::disk::{Disk, DiskError, DiskQueue, Handler, WAITING_COUNT_MAX};
use os::loops::{self, Loops};
use os::pool::Pagepool;
use stdx::Prng;
use types::{FrameRef, Instant, Span};

const LIMIT: Duration = Duration::from_secs(30);
const SECTOR: usize = 4096;
const SECTOR_COUNT: u64 = 2048;

struct NoTimer;
impl loops::Handler for NoTimer {
    fn on_timer(&self, _now: Instant) {}
}

type Ended = (u64, Result<(), DiskError>, bool);

struct Ends(Mutex<Sender<Ended>>);
impl Handler for Ends {
    fn on_disk(&self, tag: u64, result: Result<(), DiskError>) {
        let is_loop = Loops::current().is_some();
        self.0.lock().unwrap().send((tag, result, is_loop)).unwrap();
    }
}

struct Rig {
    loops: Arc<Loops>,
    pool: Arc<Pagepool>,
    queue: Arc<DiskQueue>,
    ends: Receiver<Ended>,
}

fn rig(disk: Disk) -> Rig {
    let loops = Loops::start(2, Arc::new(NoTimer)).unwrap();
    let pool = Pagepool::new(64 << 20).unwrap();
    let (sender, ends) = channel();
    let handler = Arc::new(Ends(Mutex::new(sender)));
    let queue = DiskQueue::new(disk, &loops, &pool, 1, handler);
    Rig {
        loops,
        pool,
        queue,
        ends,
    }
}

impl Rig {
    fn end(&self, tag: u64) -> Result<(), DiskError> {
        let (ended, result, is_loop) = self.ends.recv_timeout(LIMIT).unwrap();
        assert_eq!(ended, tag);
        assert!(is_loop, "answers come on a loop's thread");
        result
    }
}

fn file(folder: &tempfile::TempDir) -> PathBuf {
    let path = folder.path().join("nsd");
    std::fs::File::create(&path)
        .unwrap()
        .set_len(SECTOR_COUNT * SECTOR as u64)
        .unwrap();
    path
}

/// A loop device over a file, detached when dropped; none when this is not root or has no loop devices.
struct LoopDevice(PathBuf);
impl LoopDevice {
    fn new(backing: &Path) -> Option<Self> {
        Self::attach(&[], backing)
    }
    fn attach(words: &[&str], backing: &Path) -> Option<Self> {
        let output = Command::new("losetup")
            .args(["-f", "--show"])
            .args(words)
            .arg(backing)
            .output()
            .ok()?;
        let name = String::from_utf8(output.stdout).ok()?;
        output.status.success().then(|| Self(name.trim().into()))
    }
}
impl Drop for LoopDevice {
    fn drop(&mut self) {
        let _ = Command::new("losetup").arg("-d").arg(&self.0).status();
    }
}

#[test]
fn blocking_io_is_in_whole_sectors_within_the_disk() {
    let folder = tempfile::tempdir().unwrap();
    let disk = Disk::open(&file(&folder), true).unwrap();
    assert_eq!(disk.sector_count(), SECTOR_COUNT);
    assert!(disk.has_volatile_cache());
    let mut bytes = vec![0; 5 * SECTOR + 1];
    Prng::new(1).fill(&mut bytes);
    let mut back = bytes.clone();
    // At odd addresses and at even ones.
    for begin in [0, 1] {
        disk.write_sectors(7, &bytes[begin..begin + 5 * SECTOR])
            .unwrap();
        disk.flush().unwrap();
        back.fill(0);
        disk.read_sectors(7, &mut back[begin..begin + 5 * SECTOR])
            .unwrap();
        assert_eq!(
            back[begin..begin + 5 * SECTOR],
            bytes[begin..begin + 5 * SECTOR]
        );
    }
    for sector in [SECTOR_COUNT, SECTOR_COUNT - 4, u64::MAX] {
        let error = disk
            .read_sectors(sector, &mut back[..5 * SECTOR])
            .unwrap_err();
        assert!(
            matches!(error, DiskError::Bounds { count: 5, .. }),
            "{error}"
        );
        let error = disk
            .write_sectors(sector, &bytes[..5 * SECTOR])
            .unwrap_err();
        assert!(
            matches!(error, DiskError::Bounds { count: 5, .. }),
            "{error}"
        );
    }
}

#[test]
fn what_is_no_disk_or_in_use_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = file(&folder);
    let missing = Disk::open(&folder.path().join("missing"), true).unwrap_err();
    assert!(matches!(&missing, DiskError::Open { .. }));
    assert!(missing.to_string().contains("missing"), "{missing}");
    assert!(matches!(
        Disk::open(folder.path(), true),
        Err(DiskError::Kind { .. })
    ));
    assert!(matches!(
        Disk::open(Path::new("/dev/null"), true),
        Err(DiskError::Kind { .. })
    ));
    let first = Disk::open(&path, true).unwrap();
    let second = Disk::open(&path, true).unwrap_err();
    assert!(matches!(&second, DiskError::InUse { .. }), "{second}");
    // Who only looks neither locks nor is locked out.
    let reader = Disk::open(&path, false).unwrap();
    let error = reader.write_sectors(0, &[0; SECTOR]).unwrap_err();
    assert!(
        matches!(error, DiskError::Io { what: "write", .. }),
        "{error}"
    );
    drop(first);
    Disk::open(&path, true).unwrap();
}

#[test]
fn a_device_is_exclusive_too_and_says_whether_it_caches() {
    let folder = tempfile::tempdir().unwrap();
    let Some(device) = LoopDevice::new(&file(&folder)) else {
        return;
    };
    let disk = Disk::open(&device.0, true).unwrap();
    assert!(disk.is_block_device() && disk.is_direct());
    assert_eq!(disk.sector_count(), SECTOR_COUNT);
    let name = device.0.file_name().unwrap().to_str().unwrap();
    let said = std::fs::read_to_string(format!("/sys/block/{name}/queue/write_cache")).unwrap();
    assert_eq!(disk.has_volatile_cache(), said.trim() == "write back");
    let second = Disk::open(&device.0, true).unwrap_err();
    assert!(matches!(second, DiskError::InUse { .. }), "{second}");
    Disk::open(&device.0, false).unwrap();
}

#[test]
fn a_device_that_takes_no_writes_is_opened_for_reading_only() {
    let folder = tempfile::tempdir().unwrap();
    let Some(device) = LoopDevice::attach(&["-r"], &file(&folder)) else {
        return;
    };
    let error = Disk::open(&device.0, true).unwrap_err();
    assert!(matches!(error, DiskError::ReadOnly { .. }), "{error}");
    let said = error.to_string();
    assert!(said.contains("--setrw"), "{said}");
    Disk::open(&device.0, false).unwrap();
}

/// Spans of `count` sectors, scattered over frames of the pool and cut at 512-byte places.
fn scattered(frames: &[FrameRef], prng: &mut Prng, count: usize) -> Vec<Span> {
    let mut frames = frames.to_vec();
    prng.shuffle(&mut frames);
    let mut spans = Vec::new();
    for frame in &frames[..count] {
        let whole = Span::whole(*frame);
        if prng.chance(1, 3) {
            let cut = u32::try_from(prng.between(1, 7)).unwrap() * 512;
            spans.push(whole.part(0, cut));
            spans.push(whole.part(cut, 4096 - cut));
        } else {
            spans.push(whole);
        }
    }
    spans
}

/// Random reads, writes, durable writes and flushes, some hundred in flight, from this thread and from
/// the loops; what is read must be what was written last. Sectors in flight are left alone.
fn against_an_array(disk: Disk, seed: u64) {
    let rig = rig(disk);
    let mut prng = Prng::new(seed);
    let mut twin = vec![0_u8; usize::try_from(SECTOR_COUNT).unwrap() * SECTOR];
    rig.queue.disk().write_sectors(0, &twin).unwrap();
    let mut in_flight: BTreeMap<u64, (bool, u64, Vec<Span>, Vec<FrameRef>)> = BTreeMap::new();
    let settle = |in_flight: &mut BTreeMap<_, (bool, u64, Vec<Span>, Vec<FrameRef>)>,
                  twin: &[u8]| {
        let (tag, result, is_loop) = rig.ends.recv_timeout(LIMIT).unwrap();
        result.unwrap();
        assert!(is_loop);
        let (is_read, sector, spans, frames) = in_flight.remove(&tag).expect("answered once");
        let mut at = usize::try_from(sector).unwrap() * SECTOR;
        for span in spans.iter().filter(|_| is_read) {
            let end = at + span.length as usize;
            assert_eq!(*rig.pool.load(*span), twin[at..end], "sector {sector}");
            at = end;
        }
        frames.into_iter().for_each(|frame| rig.pool.release(frame));
    };
    for tag in 0..1500_u64 {
        let count = if prng.chance(1, 20) {
            prng.between(1, 100)
        } else {
            prng.between(1, 4)
        };
        let sector = prng.below(SECTOR_COUNT - count);
        let touches = |(_, begin, spans, _): &(bool, u64, Vec<Span>, Vec<FrameRef>)| {
            let size: u64 = spans.iter().map(|s| u64::from(s.length)).sum();
            *begin < sector + count && sector < begin + size / SECTOR as u64
        };
        while in_flight.len() > 300 || in_flight.values().any(touches) {
            settle(&mut in_flight, &twin);
        }
        let count = usize::try_from(count).unwrap();
        let frames: Vec<_> = (0..count).map(|_| rig.pool.alloc().unwrap()).collect();
        let spans = scattered(&frames, &mut prng, count);
        let choice = prng.below(5);
        if choice >= 3 {
            let mut at = usize::try_from(sector).unwrap() * SECTOR;
            for span in &spans {
                let bytes = &mut twin[at..at + span.length as usize];
                prng.fill(bytes);
                rig.pool.store(*span, bytes);
                at += bytes.len();
            }
        }
        let (queue, given) = (Arc::clone(&rig.queue), spans.clone());
        let start = move || match choice {
            0 => queue.flush(tag),
            1 | 2 => queue.read(tag, sector, &given),
            3 => queue.write(tag, sector, &given),
            _ => queue.write_durable(tag, sector, &given),
        };
        let spans = if choice == 0 { Vec::new() } else { spans };
        in_flight.insert(tag, (choice <= 2, sector, spans, frames));
        if prng.chance(1, 2) {
            start().unwrap();
        } else {
            let index = usize::try_from(tag).unwrap();
            rig.loops.post(index, Box::new(move || start().unwrap()));
        }
    }
    while !in_flight.is_empty() {
        settle(&mut in_flight, &twin);
    }
    let counters = rig.queue.counters();
    assert_eq!(
        counters.read_count + counters.write_count + counters.flush_count,
        1500
    );
    assert_eq!((counters.error_count, counters.in_flight_count), (0, 0));
    assert_eq!(rig.pool.frame_counts().0, rig.pool.frame_counts().1);
    let mut back = vec![0; twin.len()];
    rig.queue.disk().read_sectors(0, &mut back).unwrap();
    assert!(back == twin, "the disk is the array");
    drop(rig.queue);
    rig.loops.stop();
}

#[test]
fn a_file_is_an_array() {
    let folder = tempfile::tempdir().unwrap();
    against_an_array(Disk::open(&file(&folder), true).unwrap(), 11);
}

#[test]
fn a_file_in_memory_is_an_array() {
    let Ok(folder) = tempfile::tempdir_in("/dev/shm") else {
        return;
    };
    against_an_array(Disk::open(&file(&folder), true).unwrap(), 12);
}

#[test]
fn a_device_is_an_array() {
    let folder = tempfile::tempdir().unwrap();
    let Some(device) = LoopDevice::new(&file(&folder)) else {
        return;
    };
    against_an_array(Disk::open(&device.0, true).unwrap(), 13);
}

#[test]
fn a_request_of_more_pieces_than_a_call_takes_is_one_request() {
    let folder = tempfile::tempdir().unwrap();
    let rig = rig(Disk::open(&file(&folder), true).unwrap());
    // Every second frame, so that nothing is adjacent, each in eight pieces in turn.
    let frames: Vec<_> = std::iter::from_fn(|| rig.pool.alloc()).take(3000).collect();
    let mut spans = Vec::new();
    let mut expected = Vec::new();
    for frame in frames.iter().step_by(2) {
        let bytes: Vec<u8> = (0..SECTOR)
            .map(|i| frame.0.to_le_bytes()[i % 4] ^ u8::try_from(i / 512).unwrap())
            .collect();
        rig.pool.store(Span::whole(*frame), &bytes);
        // Backwards in memory, so that no two pieces join.
        for piece in (0..8_u32).rev() {
            spans.push(Span::whole(*frame).part(piece * 512, 512));
            expected.extend_from_slice(&bytes[piece as usize * 512..][..512]);
        }
    }
    rig.queue.write(1, 5, &spans).unwrap();
    rig.end(1).unwrap();
    let mut back = vec![0; expected.len()];
    rig.queue.disk().read_sectors(5, &mut back).unwrap();
    assert!(back == expected);
    assert!(rig.ends.try_recv().is_err(), "one answer");
}

#[test]
fn failures_are_answers_with_the_place() {
    let folder = tempfile::tempdir().unwrap();
    let path = file(&folder);
    let rig = rig(Disk::open(&path, true).unwrap());
    let span = Span::whole(rig.pool.alloc().unwrap());
    rig.queue.read(1, SECTOR_COUNT, &[span]).unwrap();
    assert!(matches!(
        rig.end(1),
        Err(DiskError::Bounds { count: 1, .. })
    ));
    rig.queue.write(2, u64::MAX, &[span]).unwrap();
    assert!(matches!(rig.end(2), Err(DiskError::Bounds { .. })));
    // The file shrinks under us, as a disk does that is swapped.
    std::fs::OpenOptions::new()
        .write(true)
        .open(&path)
        .unwrap()
        .set_len(SECTOR as u64)
        .unwrap();
    rig.queue.read(3, 9, &[span]).unwrap();
    let error = rig.end(3).unwrap_err();
    assert!(
        matches!(
            error,
            DiskError::Io {
                what: "read",
                sector: 9,
                ..
            }
        ),
        "{error}"
    );
    assert!(error.to_string().contains("nsd"), "{error}");
    assert_eq!(rig.queue.counters().error_count, 2 + 1);
    rig.queue.flush(4).unwrap();
    rig.end(4).unwrap();
}

#[test]
fn a_full_queue_refuses_and_answers_all_it_took() {
    let folder = tempfile::tempdir().unwrap();
    let rig = rig(Disk::open(&file(&folder), true).unwrap());
    let span = Span::whole(rig.pool.alloc().unwrap());
    let (queue, (sender, taken)) = (Arc::clone(&rig.queue), channel());
    // On the home loop itself, so that nothing completes meanwhile.
    rig.loops.post(
        1,
        Box::new(move || {
            let count = (0..).find(|tag| queue.read(*tag, 0, &[span]).is_err());
            sender.send(count.unwrap()).unwrap();
        }),
    );
    let taken = taken.recv_timeout(LIMIT).unwrap();
    assert!(taken > WAITING_COUNT_MAX as u64);
    for _ in 0..taken {
        rig.ends.recv_timeout(LIMIT).unwrap().1.unwrap();
    }
    rig.queue.read(taken, 0, &[span]).unwrap();
    rig.end(taken).unwrap();
}

#[test]
fn a_stop_waits_for_what_is_in_flight() {
    let folder = tempfile::tempdir().unwrap();
    for device in [LoopDevice::new(&file(&folder)), None] {
        let path = device
            .as_ref()
            .map_or_else(|| folder.path().join("nsd"), |d| d.0.clone());
        let rig = rig(Disk::open(&path, true).unwrap());
        let spans: Vec<_> = (0..64)
            .map(|_| Span::whole(rig.pool.alloc().unwrap()))
            .collect();
        for tag in 0..64 {
            rig.queue.write(tag, tag * 8, &spans[..8]).unwrap();
        }
        rig.loops.stop();
        assert_eq!(rig.ends.try_iter().filter(|e| e.1.is_ok()).count(), 64);
    }
}

//! Facts about the kernel's page cache: invalidation, time-outs, direct I/O beside cached I/O.

use crate::server::{LONG_NS, arrives, in_thread, is_blocked};
use crate::{fixture, is};
use client::request::Notice;
use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

/// Without readahead: a read of one page asks for one page.
fn random(file: &File) {
    // SAFETY: a valid descriptor.
    unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_RANDOM) };
}

fn byte_at(file: &File, offset: u64) -> u8 {
    let mut byte = [0];
    file.read_exact_at(&mut byte, offset).unwrap();
    byte[0]
}

/// T2: INVAL_INODE waits for the folio of an unanswered READ, not for others, and never for off = -1 (R3).
#[test]
fn inval_inode_waits_for_the_folio_of_an_unanswered_read() {
    let fixture = fixture!();
    let ino = fixture.file("file", &[1; 65536]);
    let file = File::open(fixture.path("file")).unwrap();
    random(&file);
    fixture.hold(is!(Read { .. }));
    let reader = in_thread(move || byte_at(&file, 0));
    fixture.wait_held(1);
    let length = 4096;
    let same = Notice::Data {
        ino,
        offset: 0,
        length,
    };
    let other = Notice::Data {
        ino,
        offset: 32768,
        length,
    };
    let same = fixture.notify(&same);
    assert!(is_blocked(&same), "INVAL_INODE did not wait for the READ");
    assert_eq!(arrives(&fixture.notify(&other)), Ok(()));
    let attributes = Notice::Attributes { ino };
    assert_eq!(arrives(&fixture.notify(&attributes)), Ok(()));
    assert!(is_blocked(&same));
    fixture.release();
    assert_eq!(arrives(&reader), 1);
    assert_eq!(arrives(&same), Ok(()));
}

/// RETRIEVE shows what the kernel has cached, and that INVAL_INODE leaves nothing: how R6 is checked, as
/// -EBUSY of an invalidation is lost.
#[test]
fn retrieve_shows_the_cache_and_that_inval_inode_empties_it() {
    let fixture = fixture!();
    let ino = fixture.file("file", &[5; 16384]);
    let file = File::open(fixture.path("file")).unwrap();
    assert_eq!(byte_at(&file, 0), 5);
    assert_eq!(fixture.cached(ino, 0, 8192), [5; 8192]);
    let (offset, length) = (0, 0);
    let dropped = Notice::Data {
        ino,
        offset,
        length,
    };
    assert_eq!(arrives(&fixture.notify(&dropped)), Ok(()));
    assert_eq!(fixture.cached(ino, 0, 8192), [0_u8; 0]);
}

/// A READ that fills the page cache is told from one of direct I/O by READ_LOCKOWNER: only the first
/// holds folios.
#[test]
fn reads_into_the_page_cache_are_told_from_direct_ones() {
    let fixture = fixture!();
    fixture.file("file", &[1; 4096]);
    let cached = File::open(fixture.path("file")).unwrap();
    assert_eq!(byte_at(&cached, 0), 1);
    let filling = is!(Read {
        fills_page_cache: true,
        ..
    });
    assert_eq!(fixture.count(filling), 1);
    drop(cached);
    let options = OpenOptions::new().read(true).write(true).clone();
    let direct = options.open(fixture.path("file")).unwrap();
    assert_eq!(byte_at(&direct, 0), 1);
    let direct_reads = is!(Read {
        fills_page_cache: false,
        ..
    });
    assert_eq!(fixture.count(direct_reads), 1);
}

/// T11: within the attributes' time-out cached reads ask nothing; after it they wait for the server.
#[test]
fn cached_reads_ask_once_per_time_out_and_wait_for_a_stopped_server() {
    let fixture = fixture!();
    fixture.file("file", &[1; 4096]);
    let file = Arc::new(File::open(fixture.path("file")).unwrap());
    byte_at(&file, 0);
    let before = fixture.state().log.len();
    for _ in 0..10_000 {
        byte_at(&file, 0);
    }
    assert_eq!(fixture.state().log.len(), before, "a cached read asked");

    // From the next answer on attributes are stale at once.
    fixture.state().attr_timeout_ns = 0;
    let ino = types::InodeId::from_raw(2);
    arrives(&fixture.notify(&Notice::Attributes { ino })).unwrap();
    byte_at(&file, 0);
    let asked = fixture.count(is!(GetAttr { .. }));
    byte_at(&file, 0);
    assert_eq!(fixture.count(is!(GetAttr { .. })), asked + 1);
    assert_eq!(
        fixture.count(is!(Read { .. })),
        1,
        "unchanged pages were dropped"
    );

    fixture.hold(is!(GetAttr { .. }));
    let reader = file.clone();
    let read = in_thread(move || byte_at(&reader, 0));
    fixture.wait_held(1);
    assert!(
        is_blocked(&read),
        "a cached read did not wait for the server"
    );
    fixture.release();
    assert_eq!(arrives(&read), 1);
}

/// T10, T11: after an abort reads of cached pages fail once the time-out is over, and not before.
#[test]
fn cached_reads_after_an_abort_fail_once_the_time_out_is_over() {
    for (timeout_ns, works) in [(LONG_NS, true), (0, false)] {
        let fixture = fixture!();
        fixture.state().attr_timeout_ns = timeout_ns;
        fixture.file("file", &[1; 4096]);
        let file = File::open(fixture.path("file")).unwrap();
        byte_at(&file, 0);
        fixture.session().connection().abort().unwrap();
        let outcome = file.read_exact_at(&mut [0], 0);
        assert_eq!(outcome.is_ok(), works, "time-out {timeout_ns}: {outcome:?}");
        if let Err(error) = outcome {
            let number = error.raw_os_error();
            let expected = [Some(libc::ENOTCONN), Some(libc::ECONNABORTED)];
            assert!(expected.contains(&number), "{error}");
        }
    }
}

/// T9: after a direct write returned, a cached reader of the same node sees the new bytes.
#[test]
fn a_direct_writer_and_a_cached_reader_of_one_node_agree() {
    let fixture = fixture!();
    fixture.file("file", &[1; 8192]);
    let reader = File::open(fixture.path("file")).unwrap();
    let writer = OpenOptions::new()
        .write(true)
        .open(fixture.path("file"))
        .unwrap();
    assert_eq!(byte_at(&reader, 5000), 1);
    for value in 2..50 {
        writer.write_all_at(&[value], 5000).unwrap();
        assert_eq!(byte_at(&reader, 5000), value);
        assert_eq!(byte_at(&reader, 4999), 1);
    }
}

/// T12: splice returns cached bytes without asking, where a read would wait for the server.
#[test]
fn splice_returns_cached_bytes_without_a_check() {
    let fixture = fixture!();
    fixture.state().attr_timeout_ns = 0;
    let ino = fixture.file("file", &[1; 4096]);
    let file = Arc::new(File::open(fixture.path("file")).unwrap());
    byte_at(&file, 0);
    fixture.change(ino, &[2; 4096]);
    fixture.hold(is!(GetAttr { .. }));
    let source = file.clone();
    let spliced = in_thread(move || {
        let (mut ends, mut offset) = ([0; 2], 0);
        let mut byte = [0_u8];
        // SAFETY: two descriptors are written, and one byte is read into a byte.
        unsafe {
            assert_eq!(libc::pipe(ends.as_mut_ptr()), 0);
            let from = source.as_raw_fd();
            let size = libc::splice(from, &raw mut offset, ends[1], std::ptr::null_mut(), 1, 0);
            assert_eq!(size, 1);
            assert_eq!(libc::read(ends[0], byte.as_mut_ptr().cast(), 1), 1);
            libc::close(ends[0]);
            libc::close(ends[1]);
        }
        byte[0]
    });
    assert_eq!(
        arrives(&spliced),
        1,
        "splice asks now: R-notes on splice can go"
    );
    let reader = file.clone();
    let read = in_thread(move || byte_at(&reader, 0));
    fixture.wait_held(1);
    assert!(is_blocked(&read));
    fixture.release();
    assert_eq!(arrives(&read), 2);
}

/// Direct writes within the file run side by side; one cached open of the file makes them exclusive.
#[test]
fn direct_writes_are_parallel_unless_somebody_reads_cached() {
    for cached in [false, true] {
        let fixture = fixture!();
        fixture.file("file", &[1; 65536]);
        let reader = cached.then(|| File::open(fixture.path("file")).unwrap());
        if let Some(reader) = &reader {
            byte_at(reader, 0);
        }
        let options = OpenOptions::new().write(true).clone();
        let file = Arc::new(options.open(fixture.path("file")).unwrap());
        fixture.hold(is!(Write { .. }));
        let writers = [0_u64, 8192].map(|offset| {
            let file = file.clone();
            in_thread(move || file.write_all_at(&[3; 4096], offset))
        });
        fixture.wait_held(if cached { 1 } else { 2 });
        fixture.assert_held(if cached { 1 } else { 2 });
        fixture.release();
        for writer in &writers {
            arrives(writer).unwrap();
        }
    }
}

/// Direct writes beyond the end of the file are exclusive.
#[test]
fn extending_direct_writes_are_exclusive() {
    let fixture = fixture!();
    fixture.file("file", &[1; 4096]);
    let file = OpenOptions::new()
        .write(true)
        .open(fixture.path("file"))
        .unwrap();
    let file = Arc::new(file);
    fixture.hold(is!(Write { .. }));
    let writers = [4096_u64, 8192].map(|offset| {
        let file = file.clone();
        in_thread(move || file.write_all_at(&[3; 4096], offset))
    });
    fixture.wait_held(1);
    fixture.assert_held(1);
    fixture.release();
    for writer in &writers {
        arrives(writer).unwrap();
    }
}

/// STORE: the kernel takes a small file whole, believes its attributes as before, and asks for nothing when it is read. A page that
/// does not reach the end of the file as the kernel knows it is not taken for whole, and one behind makes the file longer.
#[test]
fn bytes_that_are_stored_are_not_asked_for() {
    let fixture = fixture!();
    let length = 5000;
    let ino = fixture.file("file", &vec![3; length]);
    let store = |bytes: &[u8]| {
        let size = u32::try_from(bytes.len()).unwrap();
        let mut message = fuse::notify::store_head(ino, size);
        message.extend_from_slice(bytes);
        arrives(&fixture.notify_bytes(message))
    };
    let attributes = || fixture.count(is!(GetAttr { .. }));
    let reads = || fixture.count(is!(Read { .. }));
    // The kernel knows it from here on.
    let before = std::fs::metadata(fixture.path("file")).unwrap();
    let (asked, read) = (attributes(), reads());
    assert_eq!(store(&vec![3; length]), Ok(()));
    let file = File::open(fixture.path("file")).unwrap();
    let mut bytes = vec![0; 2 * length];
    assert_eq!(file.read_at(&mut bytes, 0).unwrap(), length);
    assert!(bytes[..length].iter().all(|byte| *byte == 3));
    assert_eq!(file.metadata().unwrap().len(), before.len());
    assert_eq!((attributes(), reads()), (asked, read), "nothing is asked");
    assert_eq!(fixture.cached(ino, 4096, 4096).len(), length - 4096);
    // A part of the last page: dropped and stored so, it is asked for.
    let (offset, size) = (0, 0);
    let dropped = Notice::Data {
        ino,
        offset,
        length: size,
    };
    assert_eq!(arrives(&fixture.notify(&dropped)), Ok(()));
    assert_eq!(store(&[3; 100]), Ok(()));
    assert_eq!(byte_at(&file, 50), 3);
    assert!(reads() > read, "not whole");
    assert_eq!(store(&vec![4; 8192]), Ok(()));
    assert_eq!(fixture.cached(ino, 0, 8192).len(), 8192, "it is longer now");
}

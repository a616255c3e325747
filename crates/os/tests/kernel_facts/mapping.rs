//! Facts about shared mappings: what the kernel does with stores without asking.

use crate::server::{Fixture, arrives, in_thread, is_blocked};
use crate::{fixture, is};
use client::request::{Notice, Operation};
use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use types::InodeId;

/// Two pages of a file, mapped shared and writable.
struct Mapping(*mut u8);

const SIZE: usize = 8192;

// SAFETY: the tests order their accesses themselves; the mapping is plain memory.
unsafe impl Send for Mapping {}

impl Mapping {
    fn new(file: &File) -> Self {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let fd = file.as_raw_fd();
        // SAFETY: a new mapping of a file that is long enough.
        let address = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                SIZE,
                protection,
                libc::MAP_SHARED,
                fd,
                0,
            )
        };
        assert_ne!(address, libc::MAP_FAILED);
        Self(address.cast())
    }

    fn load(&self, at: usize) -> u8 {
        assert!(at < SIZE);
        // SAFETY: within the mapping.
        unsafe { self.0.add(at).read_volatile() }
    }

    fn store(&self, at: usize, value: u8) {
        assert!(at < SIZE);
        // SAFETY: within the mapping.
        unsafe { self.0.add(at).write_volatile(value) };
    }

    fn sync(&self) -> i32 {
        // SAFETY: our mapping.
        unsafe { libc::msync(self.0.cast(), SIZE, libc::MS_SYNC) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: our mapping, and nobody uses it any more.
        unsafe { libc::munmap(self.0.cast(), SIZE) };
    }
}

fn mapped(fixture: &Fixture) -> (InodeId, File, Mapping) {
    let ino = fixture.file("file", &[1; SIZE]);
    let options = OpenOptions::new().read(true).write(true).clone();
    let file = options.open(fixture.path("file")).unwrap();
    let mapping = Mapping::new(&file);
    assert_eq!(mapping.load(0), 1);
    (ino, file, mapping)
}

fn writes(fixture: &Fixture) -> usize {
    fixture.count(is!(Write { .. }))
}

/// A direct open can be mapped (DIRECT_IO_ALLOW_MMAP); T3: a store into a clean page sends nothing (R5).
#[test]
fn a_store_into_a_clean_page_sends_nothing_until_msync() {
    let fixture = fixture!();
    let (ino, _file, mapping) = mapped(&fixture);
    let before = fixture.state().log.len();
    mapping.store(10, 7);
    assert_eq!(mapping.load(10), 7);
    assert_eq!(
        fixture.state().log.len(),
        before,
        "a store asked the server"
    );
    assert_eq!(fixture.data(ino)[10], 1);
    assert_eq!(mapping.sync(), 0);
    assert_eq!(fixture.data(ino)[10], 7);
    let written_back = is!(Write {
        is_write_back: true,
        ..
    });
    assert_eq!(fixture.count(written_back), 1);
}

/// T3: INVAL_INODE writes dirty mapped pages back, returns after that, and zaps the mapping (R5, R6).
#[test]
fn inval_inode_launders_dirty_mapped_pages_and_zaps_the_mapping() {
    let fixture = fixture!();
    let (ino, _file, mapping) = mapped(&fixture);
    mapping.store(10, 7);
    fixture.hold(is!(Write { .. }));
    let (offset, length) = (0, 0);
    let notified = fixture.notify(&Notice::Data {
        ino,
        offset,
        length,
    });
    fixture.wait_held(1);
    assert!(
        is_blocked(&notified),
        "INVAL_INODE returned before the WRITE"
    );
    fixture.release();
    assert_eq!(arrives(&notified), Ok(()));
    assert_eq!(fixture.data(ino)[10], 7);
    let found = fixture.state().log.iter().any(|operation| {
        matches!(
            operation,
            Operation::Write {
                is_write_back: true,
                ..
            }
        )
    });
    assert!(found, "the laundering WRITE does not say WRITE_CACHE");

    // Another node writes; the mapping was zapped, so the next load asks.
    fixture.change(ino, &[9; SIZE]);
    let reads = fixture.count(is!(Read { .. }));
    assert_eq!(
        mapping.load(10),
        9,
        "a load from a zapped mapping saw old bytes"
    );
    assert!(fixture.count(is!(Read { .. })) > reads);
}

/// Every truncate stops write-back of the inode's dirty pages while it is unanswered (R12).
#[test]
fn a_pending_truncate_holds_mapped_write_back_up() {
    let fixture = fixture!();
    let (ino, file, mapping) = mapped(&fixture);
    fixture.hold(is!(SetAttr { .. }));
    let truncated = in_thread(move || file.set_len(SIZE as u64));
    fixture.wait_held(1);
    mapping.store(10, 7);
    let synced = in_thread(move || (mapping.sync(), mapping));
    assert!(
        is_blocked(&synced),
        "write-back did not wait for the truncate"
    );
    assert_eq!(writes(&fixture), 0);
    fixture.release();
    arrives(&truncated).unwrap();
    let (outcome, _mapping) = arrives(&synced);
    assert_eq!((outcome, writes(&fixture)), (0, 1));
    assert_eq!(fixture.data(ino)[10], 7);
}

//! The kernel's behaviour that the design leans on, each fact as a test against the running kernel.
//!
//! T1 to T12 are the probe runs of KERNEL-FACTS. A test that fails on another kernel says which rule of
//! DESIGN.md (R1 to R12) has lost its ground there.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "a failed test is how tests report"
)]

mod layer;
mod mapping;
mod pages;
mod passing;
mod server;

use client::request::Notice;
use os::fuse::TransportKind;
use server::{Fixture, arrives, in_thread, is_blocked, name};
use std::fs::File;
use std::os::unix::fs::FileExt;
use types::InodeId;

/// Makes a fixture, or says why not and returns from the test.
macro_rules! fixture {
    () => {
        crate::fixture!(os::fuse::TransportKind::Device)
    };
    ($transport:expr) => {
        match crate::server::reason_to_skip() {
            None => crate::server::Fixture::new($transport),
            Some(reason) => {
                eprintln!("skipped: {reason}");
                return;
            }
        }
    };
}
pub(crate) use fixture;

/// Is this operation of the given kind?
macro_rules! is {
    ($pattern:pat) => {
        |operation: &client::request::Operation| {
            use client::request::Operation::*;
            matches!(operation, $pattern)
        }
    };
}
pub(crate) use is;

/// T7: INVAL_ENTRY waits for the directory's lock, which a LOOKUP of any other name holds (R7, R11).
#[test]
fn inval_entry_waits_for_an_unanswered_lookup_of_another_name() {
    let fixture = fixture!();
    fixture.file("known", b"");
    std::fs::metadata(fixture.path("known")).unwrap();
    fixture.hold(is!(Lookup { .. }));
    let path = fixture.path("other");
    let stat = in_thread(move || std::fs::metadata(path).is_err());
    fixture.wait_held(1);

    let parent = InodeId::ROOT;
    let entry = fixture.notify(&Notice::Entry {
        parent,
        name: name("known"),
    });
    assert!(
        is_blocked(&entry),
        "INVAL_ENTRY did not wait for the LOOKUP"
    );
    // What revocation uses instead does not wait.
    let epoch = fixture.notify(&Notice::Epoch);
    assert_eq!(arrives(&epoch), Ok(()));
    let attributes = fixture.notify(&Notice::Attributes { ino: parent });
    assert_eq!(arrives(&attributes), Ok(()));

    assert!(is_blocked(&entry));
    fixture.release();
    assert!(arrives(&stat));
    assert_eq!(arrives(&entry), Ok(()));
}

/// R11 rests on it: after INC_EPOCH every name of the mount is looked up again.
#[test]
fn inc_epoch_makes_the_kernel_look_up_all_names_again() {
    let fixture = fixture!();
    fixture.file("known", b"");
    let lookups = |fixture: &Fixture| fixture.count(is!(Lookup { .. }));
    for _ in 0..3 {
        std::fs::metadata(fixture.path("known")).unwrap();
    }
    assert_eq!(
        lookups(&fixture),
        1,
        "a name was looked up within its time-out"
    );
    assert_eq!(arrives(&fixture.notify(&Notice::Epoch)), Ok(()));
    std::fs::metadata(fixture.path("known")).unwrap();
    assert_eq!(lookups(&fixture), 2, "INC_EPOCH left a name cached");
}

/// A name that moves takes its time-out along; INC_EPOCH ends that too, also before the kernel has moved it (`client::renames`).
#[test]
fn inc_epoch_before_the_answer_to_a_rename_counts_for_the_new_name() {
    for is_told in [false, true] {
        let fixture = fixture!();
        fixture.file("known", b"");
        std::fs::metadata(fixture.path("known")).unwrap();
        fixture.hold(is!(Rename { .. }));
        let (from, to) = (fixture.path("known"), fixture.path("moved"));
        let renamed = in_thread(move || std::fs::rename(from, to));
        fixture.wait_held(1);
        if is_told {
            assert_eq!(arrives(&fixture.notify(&Notice::Epoch)), Ok(()));
        }
        fixture.release();
        arrives(&renamed).unwrap();
        let lookups = || fixture.count(is!(Lookup { .. }));
        let before = lookups();
        std::fs::metadata(fixture.path("moved")).unwrap();
        assert_eq!(lookups() - before, usize::from(is_told));
    }
}

/// T6: an interrupt reaches the server, and its EINTR the caller.
fn interrupted(transport: TransportKind) {
    let fixture = fixture!(transport);
    fixture.file("file", b"data");
    let file = File::open(fixture.path("file")).unwrap();
    fixture.hold(is!(GetAttr { .. } | Read { .. } | Lookup { .. }));
    let (sender, receiver) = std::sync::mpsc::channel();
    let path = fixture.path("missing");
    let blocked = in_thread(move || {
        install_signal_handler();
        // SAFETY: no arguments.
        sender.send(unsafe { libc::pthread_self() }).unwrap();
        std::fs::metadata(path).map_err(|error| error.raw_os_error())
    });
    let thread = arrives(&receiver);
    fixture.wait_held(1);
    // SAFETY: the thread lives: it waits for the held request.
    unsafe { libc::pthread_kill(thread, libc::SIGUSR1) };
    assert_eq!(arrives(&blocked).err(), Some(Some(libc::EINTR)));
    assert_eq!(fixture.state().interrupted_count, 1);
    drop(file);
}

#[test]
fn an_interrupt_reaches_the_server_and_eintr_the_caller() {
    interrupted(TransportKind::Device);
}

#[test]
fn an_interrupt_of_a_ring_request_comes_through_the_device() {
    interrupted(TransportKind::Ring);
}

/// A handler without SA_RESTART, so that a system call ends with EINTR.
fn install_signal_handler() {
    extern "C" fn nothing(_: libc::c_int) {}
    // SAFETY: sigaction is plain data; the handler does nothing.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = nothing as *const () as usize;
        libc::sigaction(libc::SIGUSR1, &raw const action, std::ptr::null_mut());
    }
}

/// T12: a LOOKUP answer with another mtime or size drops all pages of the inode.
#[test]
fn a_lookup_answer_with_another_mtime_drops_the_pages() {
    let fixture = fixture!();
    fixture.state().entry_timeout_ns = 0;
    let ino = fixture.file("file", &[1; 4096]);
    let file = File::open(fixture.path("file")).unwrap();
    let mut byte = [0; 1];
    file.read_exact_at(&mut byte, 0).unwrap();
    fixture.change(ino, &[2; 4096]);
    // Attributes are valid for an hour: nothing asks.
    file.read_exact_at(&mut byte, 0).unwrap();
    assert_eq!(byte, [1], "a cached read asked within the time-out");
    let seen = std::fs::metadata(fixture.path("file"))
        .unwrap()
        .modified()
        .unwrap();
    let since = seen.duration_since(std::time::UNIX_EPOCH).unwrap();
    assert_eq!(since.as_secs(), 1002);
    file.read_exact_at(&mut byte, 0).unwrap();
    assert_eq!(byte, [2], "pages survived a LOOKUP answer with a new mtime");
    assert_eq!(fixture.count(is!(Read { .. })), 2);
}

/// T5: the kernel computes an O_APPEND write's offset from the size it knows; the WRITE says O_APPEND.
#[test]
fn append_offsets_come_from_the_kernels_stale_size() {
    use std::io::Write;
    let fixture = fixture!();
    let ino = fixture.file("file", &[1; 4096]);
    let options = std::fs::OpenOptions::new().append(true).clone();
    let mut file = options.open(fixture.path("file")).unwrap();
    fixture.change(ino, &[2; 8192]);
    file.write_all(b"tail").unwrap();
    let found = fixture.count(is!(Write {
        offset: 4096,
        append: true,
        ..
    }));
    assert_eq!(found, 1, "the kernel asked for the size, or lost O_APPEND");
    // The server placed it where it belongs.
    assert_eq!(fixture.data(ino).len(), 8196);
}

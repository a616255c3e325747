//! Our own layer on a real kernel: both transports, payloads that are kept, parked requests, ends.

use crate::server::{Fixture, arrives, in_thread};
use crate::{fixture, is};
use client::request::{Response, Ticket};
use os::fuse::{Follow, Memory, Slabs, TransportKind};
use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::Arc;
use types::{Errno, FrameRef, Span};

const BOTH: [TransportKind; 2] = [TransportKind::Device, TransportKind::Ring];

/// Bytes that depend on their place.
fn pattern(size: usize) -> Vec<u8> {
    let byte = |index: usize| u8::try_from(index * 7 % 251).unwrap();
    (0..size).map(byte).collect()
}

#[test]
fn files_names_attributes_and_large_transfers_on_both_transports() {
    for transport in BOTH {
        let fixture = fixture!(transport);
        let bytes = pattern((2 << 20) + 5000);
        let mut file = File::create_new(fixture.path("new")).unwrap();
        file.write_all(&bytes).unwrap();
        drop(file);
        let metadata = std::fs::metadata(fixture.path("new")).unwrap();
        assert_eq!(metadata.size(), bytes.len() as u64, "{transport:?}");
        assert_eq!(metadata.blksize(), 1 << 20);
        // Of what opendir(3) makes its buffer, for which the kernel holds the directory's lock.
        let directory = std::fs::metadata(fixture.path("")).unwrap();
        assert_eq!(directory.blksize(), 64 << 10);
        // Cached, in pieces of the kernel's choice, then direct in one piece.
        assert_eq!(
            std::fs::read(fixture.path("new")).unwrap(),
            bytes,
            "{transport:?}"
        );
        let options = OpenOptions::new().read(true).write(true).clone();
        let direct = options.open(fixture.path("new")).unwrap();
        let mut back = vec![0; bytes.len()];
        direct.read_exact_at(&mut back, 0).unwrap();
        assert_eq!(back, bytes, "{transport:?}");
        let largest = is!(Read {
            length: 0x10_0000,
            ..
        });
        assert!(fixture.count(largest) > 0, "no READ of 1 MiB");
        for index in 0..50 {
            File::create_new(fixture.path(&format!("name-{index}"))).unwrap();
        }
        let listed = std::fs::read_dir(fixture.path("")).unwrap();
        assert_eq!(listed.count(), 51);
        std::fs::remove_file(fixture.path("new")).unwrap();
        let gone = File::open(fixture.path("new")).map_err(|error| error.kind());
        assert_eq!(gone.err(), Some(ErrorKind::NotFound));
        let long = std::fs::metadata(fixture.path(&"x".repeat(300)));
        assert_eq!(long.err().unwrap().raw_os_error(), Some(libc::ENAMETOOLONG));
        let unknown = std::os::unix::fs::symlink("name-1", fixture.path("link"));
        assert_eq!(unknown.err().unwrap().raw_os_error(), Some(libc::ENOSYS));
        assert_eq!(xattr(&fixture, "name-1"), b"value");
    }
}

fn xattr(fixture: &Fixture, file: &str) -> Vec<u8> {
    use std::os::unix::ffi::OsStrExt;
    let path = CString::new(fixture.path(file).as_os_str().as_bytes()).unwrap();
    let mut value = vec![0; 100];
    // SAFETY: NUL-terminated strings and a buffer of the length given.
    let size = unsafe {
        let target = value.as_mut_ptr().cast();
        libc::getxattr(path.as_ptr(), c"user.a".as_ptr(), target, value.len())
    };
    value.truncate(usize::try_from(size).expect("user.a is there"));
    value
}

/// `reply_then` calls when the kernel has the answer: the call that asked can end while `done` waits for that. (On the
/// ring an answer is with the kernel only when the queue's thread has submitted it.)
#[test]
fn what_follows_an_answer_comes_after_it() {
    for transport in BOTH {
        let fixture = fixture!(transport);
        let path = fixture.path("file");
        fixture.hold(is!(Lookup { .. }));
        let call = in_thread(move || std::fs::metadata(path));
        fixture.wait_held(1);
        let ticket = fixture.held_tickets()[0];
        let replier = fixture.session().replier().clone();
        assert_eq!(
            replier.is_immediate(ticket),
            transport == TransportKind::Device
        );
        let (send, came) = std::sync::mpsc::channel();
        let done = move || {
            let _ = send.send(call.recv_timeout(std::time::Duration::from_secs(10)));
        };
        let failed = Response::Error(Errno::EIO);
        replier.reply_then(ticket, &failed, Follow(Box::new(done)));
        let answer = arrives(&came).expect("the call ended while `done` waited for it");
        assert_eq!(answer.err().unwrap().raw_os_error(), Some(libc::EIO));
        fixture.forget_held();
    }
}

/// Payloads that a front end keeps are not written over by later requests, and no frame leaks.
#[test]
fn kept_payloads_stay_as_they_were() {
    for transport in BOTH {
        let mut fixture = fixture!(transport);
        fixture.state().keeps_payloads = true;
        fixture.file("file", &[0; 4096]);
        let file = OpenOptions::new()
            .write(true)
            .open(fixture.path("file"))
            .unwrap();
        let bytes = pattern(300_000);
        for round in 0..40_usize {
            let size = [1, 100, 4096, 4097, 65536, 200_000][round % 6];
            file.write_all_at(&bytes[round..round + size], round as u64)
                .unwrap();
        }
        drop(file);
        let kept = std::mem::take(&mut fixture.state().kept);
        assert_eq!(kept.len(), 40);
        for (span, bytes) in kept {
            // SAFETY: we hold a reference of each frame, and nobody may write to a shared frame.
            let now = unsafe { fixture.memory().slice(span) };
            assert_eq!(now, bytes, "{transport:?}");
            fixture.memory().release_span(span);
        }
        fixture.end();
        assert_eq!(
            fixture.memory().free_count(),
            256,
            "{transport:?} leaks slabs"
        );
    }
}

/// Takes all that is free.
fn take_all(memory: &Arc<Slabs>) -> Vec<FrameRef> {
    std::iter::from_fn(|| memory.alloc_slab()).collect()
}

fn give_back(memory: &Slabs, taken: Vec<FrameRef>) {
    for frame in taken {
        memory.release_span(Span {
            frame,
            offset: 0,
            length: 1 << 20,
        });
    }
}

/// What is waited for comes.
fn comes(what: impl Fn() -> bool) {
    let begun = std::time::Instant::now();
    while !what() {
        assert!(begun.elapsed() < std::time::Duration::from_secs(20));
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}

/// Nothing is free for payloads: who writes waits, and others are served as if nobody did, however many write.
#[test]
fn who_writes_more_than_there_is_room_for_holds_up_no_others() {
    /// More than there are serving threads.
    const WRITER_COUNT: usize = 12;
    for transport in BOTH {
        let mut fixture = fixture!(transport);
        fixture.state().keeps_payloads = true;
        let memory = fixture.memory().clone();
        let taken = take_all(&memory);
        let inodes: Vec<_> = (0..WRITER_COUNT)
            .map(|number| fixture.file(&format!("file-{number}"), &[0; 4096]))
            .collect();
        let writers: Vec<_> = (0..WRITER_COUNT)
            .map(|number| {
                let path = fixture.path(&format!("file-{number}"));
                in_thread(move || {
                    let file = OpenOptions::new().write(true).open(path).unwrap();
                    // Large and small ones.
                    let size = if number % 3 == 0 { 5000 } else { 1 << 20 };
                    let bytes = vec![u8::try_from(number).unwrap(); size];
                    (0..2).all(|at| file.write_all_at(&bytes, at << 20).is_ok())
                })
            })
            .collect();
        let replier = fixture.session().replier().clone();
        // Each serving thread may have had a slab when all were taken, and two of the small ones fit into each.
        comes(|| replier.waiting_writes().len() >= WRITER_COUNT - 6);
        for number in 0..20 {
            let path = fixture.path(&format!("missing-{number}"));
            let looking = in_thread(move || std::fs::metadata(path).is_err());
            assert!(arrives(&looking), "{number}");
        }
        // Which ones have those slabs, and have ended by now, is not said.
        assert!(replier.waiting_writes().len() >= WRITER_COUNT - 6);
        give_back(&memory, taken);
        for writer in &writers {
            assert!(arrives(writer));
        }
        assert_eq!(replier.waiting_writes(), []);
        drop(replier);
        for (number, ino) in inodes.into_iter().enumerate() {
            let size = fixture.data(ino).len();
            assert_eq!(
                size,
                if number % 3 == 0 {
                    (1 << 20) + 5000
                } else {
                    2 << 20
                }
            );
        }
        let kept = std::mem::take(&mut fixture.state().kept);
        // Not one for each call: the kernel divides some.
        let sum = kept.iter().map(|(_, bytes)| bytes.len()).sum::<usize>();
        let (small, large) = (2 * WRITER_COUNT / 3, 4 * WRITER_COUNT / 3);
        assert_eq!(sum, small * 5000 + (large << 20));
        for (span, bytes) in kept {
            // One file's bytes, as they came.
            assert!(bytes.iter().all(|byte| *byte == bytes[0]));
            // SAFETY: we hold a reference of each frame.
            assert_eq!(unsafe { memory.slice(span) }, bytes);
            memory.release_span(span);
        }
        fixture.end();
        assert_eq!(memory.free_count(), 256, "a slab leaks");
    }
}

/// A writer that waits for room can be killed, and so can one whose WRITE is handed on after that.
#[test]
fn who_waits_for_room_to_write_can_be_killed() {
    let mut fixture = fixture!(TransportKind::Device);
    fixture.state().keeps_payloads = true;
    let memory = fixture.memory().clone();
    let taken = take_all(&memory);
    let mut writers: Vec<_> = (0..6)
        .map(|number| {
            let name = format!("file-{number}");
            fixture.file(&name, &[0; 4096]);
            std::process::Command::new("dd")
                .args(["if=/dev/zero", "bs=1M", "count=5", "conv=notrunc"])
                .arg(format!("of={}", fixture.path(&name).display()))
                .stderr(std::process::Stdio::null())
                .spawn()
                .expect("dd")
        })
        .collect();
    let replier = fixture.session().replier().clone();
    comes(|| replier.waiting_writes().len() >= 3);
    let begun = std::time::Instant::now();
    for writer in &mut writers {
        writer.kill().expect("it runs");
    }
    for mut writer in writers {
        assert!(!writer.wait().expect("it ends").success());
    }
    assert!(begun.elapsed() < std::time::Duration::from_secs(15));
    assert_eq!(replier.waiting_writes(), []);
    drop(replier);
    give_back(&memory, taken);
    let kept = std::mem::take(&mut fixture.state().kept);
    for (span, _) in kept {
        memory.release_span(span);
    }
    fixture.end();
    assert_eq!(memory.free_count(), 256, "a slab leaks");
}

/// A session ends while WRITEs wait for room.
#[test]
fn a_session_ends_with_writers_in_the_waiting_room() {
    for transport in BOTH {
        let mut fixture = fixture!(transport);
        fixture.state().keeps_payloads = true;
        let memory = fixture.memory().clone();
        let taken = take_all(&memory);
        let writers: Vec<_> = (0..6)
            .map(|number| {
                let name = format!("file-{number}");
                fixture.file(&name, &[0; 4096]);
                let path = fixture.path(&name);
                in_thread(move || {
                    let file = OpenOptions::new().write(true).open(path)?;
                    // More than serving threads have slabs.
                    (0..5).try_for_each(|at| file.write_all_at(&[1; 1 << 20], at << 20))
                })
            })
            .collect();
        let replier = fixture.session().replier().clone();
        comes(|| replier.waiting_writes().len() >= 3);
        drop(replier);
        fixture.end();
        for writer in &writers {
            assert!(arrives(writer).is_err());
        }
        let kept = std::mem::take(&mut fixture.state().kept);
        for (span, _) in kept {
            memory.release_span(span);
        }
        give_back(&memory, taken);
        assert_eq!(memory.free_count(), 256, "a slab leaks");
    }
}

/// A ring has a fixed number of places for requests, and more are made when parked ones fill it.
#[test]
fn parked_requests_never_fill_a_queue() {
    for transport in BOTH {
        let fixture = fixture!(transport);
        fixture.hold(is!(Lookup { .. }));
        let waiting: Vec<_> = (0..40)
            .map(|index| {
                let path = fixture.path(&format!("missing-{index}"));
                in_thread(move || std::fs::metadata(path).is_err())
            })
            .collect();
        fixture.wait_held(40);
        // Whatever CPU this runs on, there is a place for its request.
        let served = in_thread({
            let path = fixture.path("");
            move || std::fs::read_dir(path).map(Iterator::count).unwrap()
        });
        assert_eq!(arrives(&served), 0);
        fixture.release();
        for one in &waiting {
            assert!(arrives(one));
        }
    }
}

/// Ending a session with requests parked wakes their callers; answers that come later are ignored.
#[test]
fn a_session_ends_with_requests_parked() {
    for transport in BOTH {
        let mut fixture = fixture!(transport);
        let replier = fixture.session().replier().clone();
        fixture.hold(is!(Lookup { .. }));
        let path = fixture.path("missing");
        let waiting = in_thread(move || std::fs::metadata(path).map_err(|e| e.raw_os_error()));
        fixture.wait_held(1);
        fixture.end();
        let number = arrives(&waiting).err().unwrap();
        let expected = [Some(libc::ENOTCONN), Some(libc::ECONNABORTED)];
        assert!(expected.contains(&number), "{transport:?}: {number:?}");
        for ticket in [2, 4, u64::MAX >> 2] {
            replier.reply(Ticket(ticket), &Response::Error(Errno::EIO));
        }
        assert_eq!(std::fs::read_dir(fixture.path("")).unwrap().count(), 0);
    }
}

/// Answers to what was never asked change nothing.
#[test]
fn answers_to_unknown_tickets_are_ignored() {
    for transport in BOTH {
        let fixture = fixture!(transport);
        fixture.file("file", b"x");
        let replier = fixture.session().replier();
        for ticket in [0, 1, 2, 3, 1000, 1 << 48, 77 << 48 | 2, u64::MAX >> 2] {
            replier.reply(Ticket(ticket), &Response::Done);
        }
        assert_eq!(std::fs::read(fixture.path("file")).unwrap(), b"x");
    }
}

/// A mount point that is missing or no directory is refused, and nothing is mounted.
#[test]
fn mounts_fail_cleanly() {
    if crate::server::reason_to_skip().is_some() {
        return;
    }
    use os::fuse::{MountError, Session, SessionConfig, SessionError, Slabs};
    let memory = Arc::new(Slabs::new(4).unwrap());
    let file = tempfile::NamedTempFile::new().unwrap();
    for path in [file.path(), std::path::Path::new("/nonexistent/mount")] {
        let outcome = Session::mount(SessionConfig::new(path), memory.clone());
        let Err(SessionError::Mount(MountError::MountPoint { .. })) = outcome else {
            panic!("{path:?}: {outcome:?}");
        };
    }
}

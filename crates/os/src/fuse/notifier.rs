//! Notifications to the kernel: written by threads that do nothing else, so that no other thread ever waits for them (R1); but for bytes that the
//! kernel takes without waiting for anybody (R13, `Notifier::fill`).

use super::memory::Memory;
use super::session::{self, SessionError};
use client::request::Notice;
use smallvec::{SmallVec, smallvec};
use std::collections::VecDeque;
use std::io::{IoSlice, Write};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use types::{Errno, InodeId, Span};

/// Notifications that may wait for a thread.
const QUEUE_COUNT_MAX: usize = 4096;

/// Called with the outcome when the kernel has returned from a notification. ENOENT says that the
/// kernel has nothing of that inode or name, which is as good as done.
pub type Done = Box<dyn FnOnce(Result<(), Errno>) + Send>;

/// Why a notification was not taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum NotifyError {
    /// Too many wait: try again when one has returned.
    #[error("{QUEUE_COUNT_MAX} notifications wait already")]
    Full,
    /// The session has ended; the kernel's caches are gone with it.
    #[error("the session has ended")]
    Ended,
}

/// Sends notifications on threads of its own. A thread can be stuck in the kernel for as long as a
/// request of the same page or directory is unanswered; the others go on.
#[derive(Debug)]
pub struct Notifier {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    file: std::fs::File,
    queue: Mutex<Queue>,
    wake: Condvar,
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<(Vec<u8>, Done)>,
    busy_count: usize,
    has_ended: bool,
}

impl std::fmt::Debug for Queue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Queue")
            .field("waiting_count", &self.waiting.len())
            .field("busy_count", &self.busy_count)
            .field("has_ended", &self.has_ended)
            .finish()
    }
}

impl Notifier {
    pub(super) fn start(device: OwnedFd, thread_count: usize) -> Result<Self, SessionError> {
        let shared = Arc::new(Shared {
            file: device.into(),
            queue: Mutex::default(),
            wake: Condvar::new(),
        });
        let mut made = Self {
            shared,
            threads: Vec::new(),
        };
        for index in 0..thread_count.max(1) {
            let shared = made.shared.clone();
            let thread = std::thread::Builder::new()
                .name(format!("fuse-notify-{index}"))
                .spawn(move || {
                    session::serve_without_reclaim();
                    shared.run();
                })
                .map_err(|source| SessionError::Io {
                    call: "spawn",
                    source,
                })?;
            made.threads.push(thread);
        }
        Ok(made)
    }

    /// Notifications that the kernel has not returned from, and those that wait for a thread.
    pub fn pending_counts(&self) -> (usize, usize) {
        let queue = self.shared.queue.lock().expect("no holder panics");
        (queue.busy_count, queue.waiting.len())
    }

    /// Has `notice` sent; `done` is called on a notify thread when the kernel has returned. It may call
    /// `notify` again, but must not wait for another notification.
    ///
    /// # Errors
    /// `done` is dropped uncalled then.
    pub fn notify(&self, notice: &Notice, done: Done) -> Result<(), NotifyError> {
        self.notify_bytes(fuse::notify::encode_notice(notice), done)
    }

    /// As `notify`, for notifications that are no `Notice` (`fuse::notify` encodes them).
    ///
    /// # Errors
    /// As `notify`.
    pub fn notify_bytes(&self, bytes: Vec<u8>, done: Done) -> Result<(), NotifyError> {
        let mut queue = self.shared.queue.lock().expect("no holder panics");
        if queue.has_ended {
            return Err(NotifyError::Ended);
        }
        if queue.waiting.len() >= QUEUE_COUNT_MAX {
            return Err(NotifyError::Full);
        }
        queue.waiting.push_back((bytes, done));
        drop(queue);
        self.shared.wake.notify_one();
        Ok(())
    }

    /// Has the kernel look all names of the mount up again (INC_EPOCH), by the thread that calls: the kernel counts up and waits for nobody.
    ///
    /// # Errors
    /// EINVAL: it does not know that, before Linux 6.16.
    pub fn drop_names(&self) -> Result<(), Errno> {
        let bytes = fuse::notify::encode_notice(&Notice::Epoch);
        let told = (&self.shared.file).write_all(&bytes);
        told.map_err(|error| Errno(error.raw_os_error().unwrap_or(libc::EIO)))
    }

    /// Puts the bytes of `spans`, whose frames the caller holds, into the kernel's page cache as those of `ino` from its beginning on, by the
    /// thread that calls. It blocks while a folio there is locked: to be called only where no request has one.
    ///
    /// # Errors
    /// ENOENT: the kernel does not know the inode. What it has taken stays, otherwise.
    pub fn fill(&self, memory: &dyn Memory, ino: InodeId, spans: &[Span]) -> Result<(), Errno> {
        let size: u32 = spans.iter().map(|span| span.length).sum();
        let head = fuse::notify::store_head(ino, size);
        // SAFETY: the caller holds them.
        let bytes = |span: &Span| IoSlice::new(unsafe { memory.slice(*span) });
        let mut pieces: SmallVec<[IoSlice<'_>; 8]> = smallvec![IoSlice::new(&head)];
        pieces.extend(spans.iter().map(bytes));
        match (&self.shared.file).write_vectored(&pieces) {
            // The kernel takes a message as a whole.
            Ok(written) => {
                debug_assert_eq!(written, head.len() + size as usize);
                Ok(())
            }
            Err(error) => Err(Errno(error.raw_os_error().unwrap_or(libc::EIO))),
        }
    }

    /// Notifications in the kernel, and waiting for a thread.
    pub fn counts(&self) -> (usize, usize) {
        let queue = self.shared.queue.lock().expect("no holder panics");
        (queue.busy_count, queue.waiting.len())
    }
}

impl Shared {
    fn run(&self) {
        let mut queue = self.queue.lock().expect("no holder panics");
        loop {
            let Some((bytes, done)) = queue.waiting.pop_front() else {
                if queue.has_ended {
                    return;
                }
                queue = self.wake.wait(queue).expect("no holder panics");
                continue;
            };
            queue.busy_count += 1;
            drop(queue);
            let outcome = match (&self.file).write(&bytes) {
                Ok(_) => Ok(()),
                Err(error) => Err(Errno(error.raw_os_error().unwrap_or(libc::EIO))),
            };
            done(outcome);
            queue = self.queue.lock().expect("no holder panics");
            queue.busy_count -= 1;
        }
    }
}

impl Drop for Notifier {
    fn drop(&mut self) {
        self.shared
            .queue
            .lock()
            .expect("no holder panics")
            .has_ended = true;
        self.shared.wake.notify_all();
        for thread in self.threads.drain(..) {
            // The last reference may be dropped by a callback, on one of these very threads.
            if thread.thread().id() != std::thread::current().id() {
                let _ = thread.join();
            }
        }
    }
}

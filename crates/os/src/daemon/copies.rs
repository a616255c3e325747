//! copy_file_range: a read of the one file and a write to the other, each an ordinary request of its own.
//!
//! Invariants
//! - Between the two nothing is held but the bytes: neither tokens nor anything else that others wait for. So copies in
//!   opposite directions never wait for one another, on one node or on several.
//! - A request of the kernel copies one piece, to a border of the target's 1 MiB blocks at the most, and says so: who wants
//!   more asks again. The bytes pass through one slab of the pagepool.
//! - The kernel drops its pages of the target where the copy brings bytes. Where the write fails it would keep them, though
//!   the bytes may be stored (an O_SYNC file that is not durable in time): the daemon has it drop them before the answer.
//! - Where there is no slab the kernel copies by itself (EOPNOTSUPP).
//!
//! ```text
//! asked --Read--> bytes --into a slab--> Write --> answered with their count
//!           |                              |
//!           '-- error, signal, no bytes ---'--> answered with that
//! ```

use std::sync::Arc;
use std::sync::atomic::Ordering;

use client::Pool as _;
use client::request::{Notice, Operation, Request, Response, Ticket};
use client::slice::frames_of;
use fuse::CopyRange;
use types::frame::FRAMES_PER_SLAB;
use types::{Errno, FrameRef, Span, limits};

use super::{Daemon, OPERATION_NAMES, lock};
use crate::clock;
use crate::fuse::NotifyError;

/// A notification that the queue had no room for is tried again after this.
const NOTICE_PAUSE: types::Duration = types::Duration::from_millis(5);

/// A copy under way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Begun {
    range: CopyRange,
    /// So many bytes are being written to the target; none while they are read.
    writing: Option<u32>,
}

/// Bytes of the piece that is copied first.
fn piece(copy: &CopyRange) -> u32 {
    let block = limits::MAX_WRITE as u64;
    let left = block - copy.target.offset % block;
    u32::try_from(copy.length.min(left)).expect("at most 1 MiB")
}

impl Daemon {
    /// COPY_FILE_RANGE.
    pub(super) fn on_copy(self: &Arc<Self>, copy: CopyRange) {
        self.counters.requests.fetch_add(1, Ordering::Relaxed);
        self.counters.operations[OPERATION_NAMES.len() - 1].fetch_add(1, Ordering::Relaxed);
        let length = piece(&copy);
        let ends = [copy.source.offset, copy.target.offset].map(|at| at.checked_add(length.into()));
        if ends.contains(&None) {
            return self.answer(copy.ticket, &Response::Error(Errno::EFBIG));
        }
        let request = Request {
            ticket: fuse::ticket::inner(copy.ticket),
            caller: copy.caller,
            operation: Operation::Read {
                ino: copy.source.ino,
                handle: copy.source.handle,
                offset: copy.source.offset,
                length,
                fills_page_cache: false,
            },
        };
        let begun = Begun {
            range: copy,
            writing: None,
        };
        lock(&self.copies).insert(request.ticket, begun);
        self.admit(request);
    }

    /// The copy that waits for the bytes which are this answer.
    pub(super) fn copy_of(&self, ticket: Ticket, response: &Response) -> Option<CopyRange> {
        if !fuse::ticket::is_inner(ticket) || !matches!(response, Response::Data(_)) {
            return None;
        }
        Some(lock(&self.copies).remove(&ticket)?.range)
    }

    /// What the kernel is to drop before this answer, which says that a copy's write has failed.
    pub(super) fn stale_copy(&self, ticket: Ticket, response: &Response) -> Option<Notice> {
        if !fuse::ticket::is_inner(ticket) || !matches!(response, Response::Error(_)) {
            return None;
        }
        let copy = lock(&self.copies).remove(&ticket)?;
        Some(Notice::Data {
            ino: copy.range.target.ino,
            offset: copy.range.target.offset,
            length: copy.writing?.into(),
        })
    }

    /// Has the kernel drop what `notice` says, and answers then.
    pub(super) fn drop_copied(
        self: &Arc<Self>,
        ticket: Ticket,
        response: Response,
        notice: Notice,
    ) {
        let daemon = Arc::clone(self);
        let answer = response.clone();
        let done = move |_| daemon.answer(ticket, &answer);
        match self.notifier().notify(&notice, Box::new(done)) {
            Ok(()) => {}
            // The kernel's caches are gone.
            Err(NotifyError::Ended) => self.answer(ticket, &response),
            Err(NotifyError::Full) => {
                let daemon = Arc::clone(self);
                let again = move || daemon.drop_copied(ticket, response, notice);
                self.loops
                    .post_at(0, clock::now() + NOTICE_PAUSE, Box::new(again));
            }
        }
    }

    /// A part of a copy is answered with its end.
    pub(super) fn end_copy(&self, ticket: Ticket) -> Ticket {
        lock(&self.copies).remove(&ticket);
        fuse::ticket::outer(ticket)
    }

    /// The bytes are there, with a reference of each frame: they are written.
    pub(super) fn write_copy(self: &Arc<Self>, copy: &CopyRange, response: &Response) {
        let Response::Data(spans) = response else {
            unreachable!("a read brings data, or an error");
        };
        let length: u32 = spans.iter().map(|span| span.length).sum();
        let slab = match length {
            0 => None,
            _ => crate::fuse::Memory::alloc_slab(&*self.pool),
        };
        if let Some(slab) = slab {
            self.put_together(spans, slab);
        }
        spans
            .iter()
            .copied()
            .flat_map(frames_of)
            .for_each(|frame| self.pool.release(frame));
        let Some(slab) = slab else {
            let response = match length {
                0 => Response::Written(0),
                _ => Response::Error(Errno::EOPNOTSUPP),
            };
            return self.answer(copy.ticket, &response);
        };
        let ticket = fuse::ticket::inner(copy.ticket);
        let writing = Begun {
            range: *copy,
            writing: Some(length),
        };
        lock(&self.copies).insert(ticket, writing);
        self.admit(Request {
            ticket,
            caller: copy.caller,
            operation: Operation::Write {
                ino: copy.target.ino,
                handle: copy.target.handle,
                offset: copy.target.offset,
                payload: Span {
                    frame: slab,
                    offset: 0,
                    length,
                },
                is_write_back: false,
                append: false,
                // The handle says whether each write is to be durable.
                sync: false,
                // The kernel says nothing of it (HANDLE_KILLPRIV_V2): whoever is not root takes them, as by a write.
                kill_set_id: copy.caller.uid != 0,
            },
        });
        // Who needs them longer has references of its own.
        (slab.0..slab.0 + FRAMES_PER_SLAB).for_each(|frame| self.pool.release(FrameRef(frame)));
    }

    /// Copies `spans` one after the other to the begin of `slab`.
    fn put_together(&self, spans: &[Span], slab: FrameRef) {
        let mut offset = 0;
        for span in spans {
            let target = Span {
                frame: slab,
                offset,
                length: span.length,
            };
            self.pool.copy(*span, target);
            offset += span.length;
        }
    }
}

//! fallocate. With PUNCH_HOLE and ZERO_RANGE bytes read as zero, and what they took is free; with mode 0 or KEEP_SIZE
//! space is promised to them (`promise`), in the same way: whoever writes hears of it by the size generation.
//!
//! As a change of size (`Slice::resize`): under the exclusive inode token and the right to write to every byte touched,
//! after what is dirty is with the owner, and nothing is stored or committed until the owner has answered
//! (`Slice::ask_change`). A Commit that is on its way then is of another size generation. So none brings bytes back that
//! were there before. Unlike then, the kernel goes on writing mapped pages back meanwhile: it has written those of the
//! hole back before it asks, and drops them after the answer.

use meta::Op;
use types::{ByteRange, Errno, InodeId, InodeMode, Pattern, RangeMode, Want, limits};

use crate::env::Env;
use crate::inode::sectors_around;
use crate::message::{Answer, Body};
use crate::names::Continuation;
use crate::pages::PAGE_SIZE;
use crate::request::{Operation, Request, Response};
use crate::revoke::RequestKind;
use crate::slice::Slice;
use crate::tokens::Admission;

impl Slice {
    /// FALLOCATE.
    pub(crate) fn punch(&mut self, env: &Env<'_>, request: Request) {
        let (ino, begin, end, keeps_size) = match request.operation {
            Operation::Punch {
                ino,
                begin,
                end,
                keeps_size,
                ..
            }
            | Operation::Allocate {
                ino,
                begin,
                end,
                keeps_size,
                ..
            } => (ino, begin, end, keeps_size),
            _ => unreachable!("only holes and promises come here"),
        };
        if begin >= end || end > limits::FILE_SIZE_MAX {
            let errno = if begin >= end {
                Errno::EINVAL
            } else {
                Errno::EFBIG
            };
            return self.fail(request.ticket, errno);
        }
        let inode = self.inode(ino);
        let range = match keeps_size || end <= inode.size {
            true => ByteRange::new(begin, end),
            // The bytes between the old end and the new one become the file's.
            false => ByteRange::new(begin.min(inode.size), u64::MAX),
        };
        let has_inode = inode.inode_mode() == Some(InodeMode::Exclusive) && inode.is_attr_current();
        let has_range = inode.covers(RangeMode::Write, &range);
        let kind = RequestKind::Write;
        match self.admit(env, ino, &request, kind, range, has_inode && has_range) {
            Admission::Served => {}
            Admission::NeedsToken => {
                let mut wants = vec![Want::Inode {
                    mode: InodeMode::Exclusive,
                }];
                if !has_range {
                    let required = Pattern::plain(range);
                    wants.push(Want::Range {
                        mode: RangeMode::Write,
                        required,
                        desired: required,
                    });
                }
                return self.acquire(env, ino, wants);
            }
            Admission::Refused => return,
        }
        let inode = self.inode(ino);
        // The kernel leaves the set-id bits to the daemon (HANDLE_KILLPRIV_V2), and says nothing of them here: whoever is
        // not root loses them, as by a write. They go with a Commit before the hole.
        if request.caller.uid != 0 {
            inode.take_set_ids(request.caller.gid);
        }
        inode.resizes.push((request.ticket, range));
        let op = match request.operation {
            Operation::Punch { .. } => Op::Punch {
                ino,
                begin,
                end,
                keeps_size,
            },
            _ => Op::Allocate {
                ino,
                begin,
                end,
                keeps_size,
            },
        };
        let (is_dirty, then) = (inode.is_dirty(), Continuation::Punch(ino, request));
        match is_dirty {
            true => self.flush_before(env, ino, op, then),
            false => self.ask_change(ino, op, then),
        }
    }

    /// The owner has made the hole, or promised the space, or not.
    pub(crate) fn on_punched(
        &mut self,
        env: &Env<'_>,
        ino: InodeId,
        request: Request,
        answer: Answer,
    ) {
        let ticket = request.ticket;
        self.inode(ino).resize_count -= 1;
        let response = match answer.body {
            Body::Op(meta::Reply::Attr(attr)) => {
                self.inode(ino).learn_attr(&attr);
                self.note_changed(ino, request.caller.pid);
                self.forget_bytes(env, ino, &request.operation);
                Response::Done
            }
            Body::Op(meta::Reply::Error(errno)) | Body::Refused(errno) => Response::Error(errno),
            _ => Response::Error(Errno::EPROTO),
        };
        // Last, for grants let other requests go on at once.
        for granted in answer.grants {
            self.take_grant(env, &granted);
        }
        self.reply(ticket, response);
        self.inode(ino).resizes.retain(|(t, _)| *t != ticket);
        self.tell_closed(env, ino);
        self.served(env, ino, ticket);
        self.pump(env, ino);
    }

    /// What is cached or on its way of the bytes that are zero now is of before.
    fn forget_bytes(&mut self, env: &Env<'_>, ino: InodeId, operation: &Operation) {
        let Operation::Punch { begin, end, .. } = *operation else {
            // What is promised holds what it held.
            return;
        };
        let range = ByteRange::new(begin, end);
        let inode = self.inode(ino);
        let count = inode.pages.discard(&range, env.pool);
        inode.loads.iter_mut().for_each(|load| load.is_stale = true);
        inode.forget_map(&sectors_around(&range));
        let whole = begin.next_multiple_of(PAGE_SIZE)..end / PAGE_SIZE * PAGE_SIZE;
        if whole.start < whole.end {
            let whole = ByteRange::new(whole.start, whole.end);
            self.hasty_count -= inode.forget_hasty(&whole);
        }
        self.give_back(env, ino, count);
        self.cut_batches(env, ino);
    }
}

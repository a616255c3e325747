//! Owners' answers, on their way to who waits for them.

use token::message::Granted;
use types::Errno;

use crate::env::Env;
use crate::message::{Answer, Body};
use crate::names::Continuation;
use crate::request::Response;
use crate::slice::{CallId, Effect, Input, Slice, slice_of};

impl Slice {
    /// An owner's answer arrived.
    pub(crate) fn on_answer(&mut self, env: &Env<'_>, call: CallId, answer: Answer) {
        let Some(then) = self.calls.remove(&call) else {
            return;
        };
        match then {
            Continuation::Names(request, epoch) => self.on_names(env, request, epoch, answer),
            Continuation::Rename(request, at) => self.on_rename(env, (request, at), answer),
            Continuation::Unlink(request, epoch, told) => {
                self.on_unlink_answer(env, (request, epoch, told), answer);
            }
            Continuation::Attributes(ino, ticket, losses, thread) => {
                self.on_attributes(env, (ino, ticket, thread), answer, losses);
            }
            Continuation::Arrival(mut arrival) => match answer.body {
                Body::Acquired { attr: Some(attr) } => {
                    arrival.attr = Some(attr);
                    arrival.kind = attr.kind;
                    arrival.grants = answer.grants;
                    self.on_arrival(env, *arrival);
                }
                Body::Refused(errno) => self.fail_arrival(&arrival, errno),
                _ => self.on_arrival_gone(*arrival),
            },
            Continuation::RenameSource(request) => {
                self.take_all(env, answer.grants);
                match answer.body {
                    Body::Op(meta::Reply::Entry { ino, .. }) => {
                        let input = Input::FlushThen(ino, Box::new(request));
                        self.out.push(Effect::ForSlice(ino, input));
                    }
                    Body::Refused(errno) | Body::Op(meta::Reply::Error(errno)) => {
                        self.fail(request.ticket, errno);
                    }
                    _ => self.fail(request.ticket, Errno::ENOENT),
                }
            }
            Continuation::Acquire(ino, losses, asker) => {
                self.on_acquired(env, (ino, asker), answer, losses);
            }
            Continuation::Map(ino, range, narrow) => {
                self.on_map(env, ino, range, narrow, answer);
            }
            Continuation::Promised(ino, begin) => self.on_promised(env, ino, begin, answer),
            Continuation::Commit(ino) => self.on_committed(env, ino, answer),
            Continuation::Synced(ticket, response) => {
                let response = match answer.body {
                    Body::Refused(errno) => Response::Error(errno),
                    _ => response,
                };
                self.reply_written(env, ticket, response);
            }
            Continuation::Swept(sweep) => self.on_sweep_synced(sweep, &answer.body),
            Continuation::SetAttr(ino, request, taken) => {
                self.on_set_attr(env, (ino, taken), request, answer);
            }
            Continuation::Punch(ino, request) => self.on_punched(env, ino, request, answer),
            Continuation::Listing(request, epoch) => {
                self.on_listing(env, (request, epoch), answer);
            }
            Continuation::Ahead(directory, id) => self.on_ahead(env, directory, id, answer),
            Continuation::Lock(ino) => self.on_lock_answer(env, ino, &answer),
            Continuation::Accessed(ino, told) => self.on_accessed(env, ino, told, &answer),
            Continuation::LockTest(ticket) => self.on_lock_test(env, ticket, &answer),
            Continuation::Closed(ino) => {
                if let Some(ino) = ino {
                    let is_freed = matches!(answer.body, Body::Op(meta::Reply::Absent));
                    self.on_closed(env, ino, is_freed);
                }
            }
        }
    }

    /// Takes tokens of whichever inodes: what nobody takes the owner never gets back.
    pub(crate) fn take_all(&mut self, env: &Env<'_>, grants: Vec<Granted>) {
        for granted in grants {
            let ino = granted.ino;
            if slice_of(ino) as u64 == self.index {
                self.take_grant(env, &granted);
            } else {
                let input = Input::Granted(Box::new(granted));
                self.out.push(Effect::ForSlice(ino, input));
            }
        }
    }
}

//! Renames: the data of what moves goes before them, and a name takes along what the kernel believes of it.
//!
//! The kernel's dentry keeps the time-out that it was given under the token of the directory where it was. From the rename on the token of the
//! directory where it is covers it, and is waited out when it goes (`belief`). If no token has covered that directory since before the rename, another
//! node may have changed the name already and nobody would wait for the kernel: then the rename is answered when the time-out is over.

use meta::Op;
use token::message::Granted;
use types::{Attr, Errno, FileKind, InodeId, Instant};

use crate::env::Env;
use crate::message::{Answer, Body};
use crate::names::{Arrival, Continuation, meta_caller};
use crate::request::{Operation, Request, Response, Ticket};
use crate::slice::{Effect, Input, Slice};

/// What a rename has done to the directory that it moved a name to, for the slice of that.
#[derive(Debug)]
pub struct MovedInto {
    directory: InodeId,
    attr: Option<Attr>,
    /// Tokens that came with the answer.
    grants: Vec<Granted>,
    /// The thread that has moved it, and its request.
    changer: u32,
    ticket: Ticket,
    /// When the owner was asked.
    asked_at: Instant,
    /// Until when the kernel may believe the name that has moved.
    pub(crate) believed_until: Instant,
    /// A name has gone the other way to where no token covers it.
    must_wait: bool,
}

#[cfg(test)]
impl MovedInto {
    /// Of a rename whose answer has brought nothing.
    pub(crate) fn of(directory: InodeId, asked_at: Instant, ticket: Ticket) -> Self {
        Self {
            directory,
            attr: None,
            grants: Vec::new(),
            changer: 1,
            ticket,
            asked_at,
            believed_until: asked_at + types::Duration::from_secs(1),
            must_wait: false,
        }
    }
}

impl Slice {
    /// Before a rename its source's data goes to the owner, so that a crash never shows the new name
    /// with less than what was written before.
    pub(crate) fn rename_source(&mut self, request: Request) {
        let Operation::Rename { parent, name, .. } = &request.operation else {
            unreachable!("only renames come here");
        };
        match self.known_target(*parent, name) {
            Some(ino) => {
                self.out.push(Effect::ForSlice(
                    ino,
                    Input::FlushThen(ino, Box::new(request)),
                ));
            }
            None => {
                let op = Op::Lookup {
                    parent: *parent,
                    name: name.clone(),
                };
                self.send_op(op, Continuation::RenameSource(request));
            }
        }
    }

    /// Sends a rename whose source is written back.
    pub(crate) fn rename_now(&mut self, env: &Env<'_>, request: Request) {
        let Operation::Rename {
            parent,
            name,
            new_parent,
            new_name,
            flags,
        } = &request.operation
        else {
            unreachable!("only renames come here");
        };
        let op = Op::Rename {
            parent: *parent,
            name: name.clone(),
            new_parent: *new_parent,
            new_name: new_name.clone(),
            no_replace: flags.no_replace,
            exchange: flags.exchange,
            whiteout: flags.whiteout.then(|| meta_caller(request.caller)),
            known: None,
            standing: request.caller.standing(),
        };
        self.send_op(op, Continuation::Rename(request, env.now));
    }

    /// The owner has answered a rename that it was asked for at this time.
    pub(crate) fn on_rename(
        &mut self,
        env: &Env<'_>,
        (request, asked_at): (Request, Instant),
        answer: Answer,
    ) {
        let Operation::Rename { parent, .. } = &request.operation else {
            unreachable!("only renames come here");
        };
        let (parent, ticket) = (*parent, request.ticket);
        let reply = match answer.body {
            Body::Op(reply) => reply,
            Body::Refused(errno) => return self.fail(ticket, errno),
            _ => return self.fail(ticket, Errno::EPROTO),
        };
        let mut others = answer.grants;
        let mut has_token = false;
        for granted in others.extract_if(.., |g| g.ino == parent) {
            has_token |= self.adopt(env, &granted, false);
        }
        match reply {
            meta::Reply::Error(errno) => {
                self.take_all(env, others);
                self.fail(ticket, errno);
            }
            meta::Reply::NotOwner { uid } => {
                self.take_all(env, others);
                self.ask_standing(request, uid);
            }
            meta::Reply::Renamed {
                ino,
                replaced,
                kept_open,
                directory,
                new_directory,
            } => {
                self.teach_moved(&request, ino, replaced, kept_open);
                let since = (!has_token).then_some(asked_at);
                let times = (asked_at, since);
                self.on_renamed(env, (request, times), (directory, new_directory), others);
            }
            _ => self.fail(ticket, Errno::EPROTO),
        }
    }

    fn on_renamed(
        &mut self,
        env: &Env<'_>,
        (request, (asked_at, since)): (Request, (Instant, Option<Instant>)),
        (directory, new_directory): (Attr, Option<Attr>),
        mut others: Vec<Granted>,
    ) {
        let Operation::Rename {
            parent,
            name,
            new_parent,
            new_name,
            flags,
        } = &request.operation
        else {
            unreachable!("only renames come here");
        };
        let inode = self.inode(*parent);
        inode.forget_entry(name);
        if parent == new_parent {
            inode.forget_entry(new_name);
        }
        inode.names_epoch += 1;
        let changer = request.caller.pid;
        self.learn_directory(*parent, &directory, changer);
        if parent == new_parent {
            return self.reply(request.ticket, Response::Done);
        }
        // What comes the other way was told by the other directory's token, of which nothing is known here.
        let must_wait = flags.exchange && !self.is_covered(*parent, since);
        let believed_until = self.note_moved_out(env, *parent, flags.exchange);
        others.retain(|granted| granted.ino == *new_parent);
        let moved = MovedInto {
            directory: *new_parent,
            attr: new_directory,
            grants: others,
            changer,
            ticket: request.ticket,
            asked_at,
            believed_until,
            must_wait,
        };
        let input = Input::MovedInto(Box::new(moved));
        self.out.push(Effect::ForSlice(*new_parent, input));
    }

    /// A name has moved to a directory of this slice from another one; that is answered now.
    pub(crate) fn on_moved_into(&mut self, env: &Env<'_>, moved: MovedInto) {
        let ino = moved.directory;
        let mut lesson = Arrival::lesson(ino, moved.attr, false, (moved.changer, false));
        lesson.kind = FileKind::Directory;
        self.learn_lesson(env, &lesson);
        let mut has_token = false;
        for granted in &moved.grants {
            has_token |= self.adopt(env, granted, false);
        }
        let since = (!has_token).then_some(moved.asked_at);
        let must_wait = moved.must_wait || !self.is_covered(ino, since);
        if moved.believed_until > env.now && !self.is_alone() {
            self.shown.note(ino, moved.believed_until);
            if must_wait {
                let late = (moved.believed_until, moved.ticket);
                return self.late_answers.push(late);
            }
        }
        self.reply(moved.ticket, Response::Done);
    }

    /// A name has moved to `directory`: a token has covered that `since` then, or covers it now if that came along.
    fn is_covered(&self, directory: InodeId, since: Option<Instant>) -> bool {
        self.inodes.get(&directory).is_some_and(|held| {
            let is_held = held.directory_mode().is_some() && !held.is_revoking();
            is_held && since.is_none_or(|since| held.names_since < since)
        })
    }

    /// What moved has a new ctime, and so has what changed places with it.
    fn teach_moved(
        &mut self,
        request: &Request,
        ino: InodeId,
        replaced: Option<InodeId>,
        kept_open: bool,
    ) {
        let is_exchange =
            matches!(&request.operation, Operation::Rename { flags, .. } if flags.exchange);
        let changer = request.caller.pid;
        let moved = Arrival::lesson(ino, None, false, (changer, false));
        let of_other = (changer, !is_exchange);
        let other = replaced.map(|ino| Arrival::lesson(ino, None, kept_open, of_other));
        for lesson in std::iter::once(moved).chain(other) {
            self.out
                .push(Effect::ForSlice(lesson.ino, Input::Arrive(lesson)));
        }
    }
}

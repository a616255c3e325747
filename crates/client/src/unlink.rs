//! Unlink: the owner is told whether this node has the file open, so that a file that nobody has open goes in the
//! record that takes its name.
//!
//! ```text
//! slice of the directory -> slice of the inode: open? -> slice of the directory -> owner -> both learn
//! ```
//!
//! Invariant: from the moment that the slice of the inode says "not open" until it has heard of the owner's answer,
//! opens wait (`Inode::closing_count`). An owner that is told nothing takes the file to be open here and says so;
//! then a second message (`Closed`) ends it.

use meta::{Known, Op};
use types::{Attr, InodeId, Name};

use crate::env::Env;
use crate::message::{Answer, Body};
use crate::names::{Continuation, directory_of, name_of};
use crate::request::{Operation, Request, Response};
use crate::slice::{Effect, Input, Slice};

/// What an unlink has done to an inode.
#[derive(Clone, Copy, Debug)]
pub struct Unlinked {
    /// A name of it is gone: attributes from then on, and whether the owner takes us to have it open. `None`: the
    /// operation failed, or the name led elsewhere.
    outcome: Option<(Option<Attr>, bool)>,
    /// The owner was told that nobody has it open here, and opens wait for this.
    was_told: bool,
    /// The thread that asked.
    remover: u32,
}

#[cfg(test)]
impl Unlinked {
    /// The owner was told that it is not open here; nothing came of the unlink.
    pub(crate) fn failed() -> Self {
        Self {
            outcome: None,
            was_told: true,
            remover: 1,
        }
    }

    /// The same; it went with its last name.
    pub(crate) fn gone() -> Self {
        Self {
            outcome: Some((None, false)),
            was_told: true,
            remover: 1,
        }
    }

    /// The same; the owner keeps the inode, for this node or for another.
    pub(crate) fn kept(attr: Attr, for_this: bool) -> Self {
        Self {
            outcome: Some((Some(attr), for_this)),
            was_told: true,
            remover: 1,
        }
    }
}

impl Slice {
    /// What a name led to when it was last seen.
    pub(crate) fn known_target(&self, parent: InodeId, name: &Name) -> Option<InodeId> {
        let entries = self.inodes.get(&parent)?.entries.as_ref()?;
        entries.get(name).copied().flatten()
    }

    /// Finds out whether the target of an unlink is open, and has the opens that follow wait if not.
    pub(crate) fn unlink_target(&mut self, env: &Env<'_>, ino: InodeId, request: Request) {
        let told = self.inodes.get_mut(&ino).and_then(|inode| {
            let is_open = inode.open_count > 0
                || inode.is_opening()
                || inode.was_just_shown_to_others(env.now, request.caller.pid);
            inode.closing_count += u32::from(!is_open);
            (!is_open).then_some(ino)
        });
        let parent = directory_of(&request.operation).expect("an unlink names its directory");
        let input = Input::UnlinkNow(parent, request, told);
        self.out.push(Effect::ForSlice(parent, input));
    }

    /// Sends an unlink to the owner.
    pub(crate) fn unlink_now(&mut self, parent: InodeId, request: Request, told: Option<InodeId>) {
        let Operation::Unlink { name, .. } = &request.operation else {
            unreachable!("only unlinks come here");
        };
        let known = told.map(|ino| Known {
            ino,
            is_open: false,
        });
        let op = Op::Unlink {
            parent,
            name: name.clone(),
            known,
            standing: request.caller.standing(),
        };
        let epoch = self.names_epoch(&request);
        self.send_op(op, Continuation::Unlink(request, epoch, told));
    }

    /// The owner has answered an unlink.
    pub(crate) fn on_unlink_answer(
        &mut self,
        env: &Env<'_>,
        (request, epoch, told): (Request, u64, Option<InodeId>),
        answer: Answer,
    ) {
        let remover = request.caller.pid;
        let Body::Op(meta::Reply::Removed {
            ino,
            attr,
            kept_open,
            directory,
        }) = &answer.body
        else {
            if let Some(told) = told {
                self.send_unlinked(told, None, true, remover);
            }
            return self.on_names(env, request, epoch, answer);
        };
        let is_current = self.names_epoch(&request) == epoch;
        let parent = directory_of(&request.operation);
        for granted in answer.grants.iter().filter(|g| Some(g.ino) == parent) {
            self.take_grant(env, granted);
        }
        // Before the answer: who is answered that a name is gone must not be shown the link count of before.
        let outcome = Some((*attr, *kept_open));
        self.send_unlinked(*ino, outcome, told == Some(*ino), remover);
        if let Some(other) = told.filter(|told| told != ino) {
            self.send_unlinked(other, None, true, remover);
        }
        if let (Some(parent), Some(name)) = (parent, name_of(&request.operation)) {
            self.learn_name(parent, name, None, is_current);
            self.inode(parent).names_epoch += 1;
            self.learn_directory(parent, directory, remover);
        }
        self.reply(request.ticket, Response::Done);
    }

    fn send_unlinked(
        &mut self,
        ino: InodeId,
        outcome: Option<(Option<Attr>, bool)>,
        was_told: bool,
        remover: u32,
    ) {
        let unlinked = Unlinked {
            outcome,
            was_told,
            remover,
        };
        let input = Input::Unlinked(ino, unlinked);
        self.out.push(Effect::ForSlice(ino, input));
    }

    /// A name of an inode of this slice is gone, or is not after all.
    pub(crate) fn on_unlinked(&mut self, env: &Env<'_>, ino: InodeId, unlinked: Unlinked) {
        if let Some((attr, is_kept)) = unlinked.outcome {
            self.learn_unlinked(env, ino, (attr, is_kept), unlinked);
        }
        if unlinked.was_told {
            // It was not dropped meanwhile: it counts them.
            self.inode(ino).closing_count -= 1;
            self.retry(env, ino);
            self.drop_if_gone(env, ino);
        }
    }

    fn learn_unlinked(
        &mut self,
        env: &Env<'_>,
        ino: InodeId,
        (attr, is_kept): (Option<Attr>, bool),
        unlinked: Unlinked,
    ) {
        let Some(inode) = self.inodes.get_mut(&ino) else {
            if is_kept {
                self.send_closed(ino);
            }
            return;
        };
        let was_told = unlinked.was_told;
        let is_open = inode.open_count > 0;
        match (&attr, &mut inode.attr) {
            (Some(attr), _) => inode.learn_attr(attr),
            // It went with its last name.
            (None, Some(known)) if was_told && !is_open && known.nlink <= 1 => {
                known.nlink = 0;
                inode.is_gone = true;
                inode.is_freed = true;
            }
            (None, _) => inode.note_changed_unseen(),
        }
        let is_nameless = attr.is_some_and(|a| a.nlink == 0);
        if is_kept {
            self.keep_or_close(env, ino, unlinked.remover);
        } else if is_nameless && !is_open {
            // The owner takes it to be open somewhere; perhaps it heard of an open here long ago.
            inode.is_gone = true;
            self.send_closed(ino);
        }
    }
}

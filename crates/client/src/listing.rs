//! Directory listings: entries from the owner, attributes completed in the slices of the inodes listed.
//!
//! With READDIRPLUS the kernel takes attributes of each entry: only the slice of that inode knows whether
//! they may be believed, so the listing travels from slice to slice before it is answered.

use meta::Op;
use token::message::Granted;
use types::{Attr, Errno, SmallBytes};

use crate::env::Env;
use crate::message::{Answer, Ask, Body};
use crate::names::Continuation;
use crate::request::{Listed, Operation, Request, Response, listed_size};
use crate::slice::{Effect, Input, Pinned, Slice, slice_of};

/// A listing on its way through the slices of its entries.
#[derive(Debug)]
pub struct Tour {
    request: Request,
    listed: Vec<Listed>,
    /// Entries whose slice has not been visited: index, attributes, tokens.
    left: Vec<(usize, Attr, Option<Granted>)>,
    pinned: Pinned,
    /// For how long the kernel may keep the names: the directory's token says it.
    entry_timeout_ns: u64,
}

impl Slice {
    /// READDIR and READDIRPLUS.
    pub(crate) fn read_directory(&mut self, request: Request) {
        let Operation::ReadDir {
            ino,
            cookie,
            size,
            plus,
            ..
        } = request.operation
        else {
            unreachable!("only listings come here");
        };
        // `.` and `..` are ours (cookies 1 and 2); the owner gets the rest of the budget.
        let own = usize::try_from(2_u64.saturating_sub(cookie)).expect("at most two");
        let own = u32::try_from(own * listed_size(2, plus)).expect("two small entries");
        let size = size.saturating_sub(own);
        let cookie = if cookie <= 2 { 0 } else { cookie };
        let op = Op::ReadDir {
            ino,
            cookie,
            size,
            plus,
        };
        self.call(
            ino.shard(),
            Ask::Op { op, durable: false },
            Continuation::Listing(request),
        );
    }

    /// The owner's entries arrived.
    pub(crate) fn on_listing(&mut self, env: &Env<'_>, request: Request, answer: Answer) {
        let Operation::ReadDir {
            ino, cookie, plus, ..
        } = request.operation
        else {
            return self.fail(request.ticket, Errno::EPROTO);
        };
        let mut grants = answer.grants;
        if let Some(at) = grants.iter().position(|g| g.ino == ino) {
            let granted = grants.swap_remove(at);
            self.take_grant(env, &granted);
        }
        let (entries, parent) = match answer.body {
            Body::Op(meta::Reply::Listing {
                entries, parent, ..
            }) => (entries, parent),
            Body::Op(meta::Reply::Error(errno)) | Body::Refused(errno) => {
                return self.fail(request.ticket, errno);
            }
            _ => return self.fail(request.ticket, Errno::EPROTO),
        };
        let mut listed = Vec::with_capacity(entries.len() + 2);
        let mode = types::FileKind::Directory.mode_bits();
        for (own, name, target) in [(1, b".".as_slice(), ino), (2, b"..".as_slice(), parent)] {
            if cookie < own {
                let name = SmallBytes::new(name);
                listed.push(Listed {
                    name,
                    ino: target,
                    mode,
                    cookie: own,
                    entry: None,
                });
            }
        }
        let mut left = Vec::new();
        for entry in entries {
            if let (true, Some(attr)) = (plus, entry.attr) {
                let at = grants.iter().position(|g| g.ino == attr.ino);
                let granted = at.map(|at| grants.swap_remove(at));
                left.push((listed.len(), attr, granted));
            }
            listed.push(Listed {
                name: SmallBytes::new(entry.name.bytes()),
                ino: entry.ino,
                mode: entry.kind.mode_bits(),
                cookie: entry.cookie,
                entry: None,
            });
        }
        let entry_timeout_ns = self.entry_timeout(ino);
        self.on_tour(
            env,
            Box::new(Tour {
                request,
                listed,
                left,
                pinned: Pinned::new(),
                entry_timeout_ns,
            }),
        );
    }

    /// Completes the entries whose inodes are of this slice, and passes the listing on.
    pub(crate) fn on_tour(&mut self, env: &Env<'_>, mut tour: Box<Tour>) {
        while let Some((_, attr, _)) = tour.left.last() {
            let ino = attr.ino;
            if slice_of(ino) as u64 != self.index {
                self.out.push(Effect::ForSlice(ino, Input::Tour(tour)));
                return;
            }
            let (index, attr, granted) = tour.left.pop().expect("just seen");
            match granted {
                Some(granted) => self.take_told(env, &attr, &[granted], 0),
                None => self.inode(ino).learn_attr(&attr),
            }
            let timeout = tour.entry_timeout_ns;
            let entry = self.show(ino, timeout);
            let inode = self.inode(ino);
            inode.lookup_count += 1;
            inode.unwritten_replies += 1;
            tour.listed[index].entry = entry;
            tour.pinned.push(ino);
        }
        let Tour {
            request,
            listed,
            pinned,
            ..
        } = *tour;
        self.out.push(Effect::Reply(
            request.ticket,
            Response::Listing(listed),
            pinned,
        ));
    }
}

//! Directory listings: entries from the owner, attributes completed in the slices of the inodes listed.
//!
//! With READDIRPLUS the kernel takes attributes of each entry: only the slice of that inode knows whether
//! they may be believed, so the listing travels from slice to slice before it is answered.
//!
//! The kernel always asks for attributes. Told with READDIRPLUS_AUTO to judge by itself it asks for them with the first request of a
//! scan only, where names are read first and looked at later, as `find` does: a LOOKUP for each file then. Who reads names
//! alone would pay ten times for attributes; and what was shown too long ago the kernel does not believe any more when it is looked at.
//! So attributes end when they have been shown for half of the time for which it believes them, or for as many entries as there is room
//! for, and no name was looked up. One entry in `SAMPLE` has none, so that who looks is seen.
//!
//! What this node has made counts as shown: where it is alone, its kernel believes that as long. Who lists what was just made begins
//! with names alone, if there is that much of it, and goes on with attributes where the kernel asks for them after all (GETATTR): of what was
//! written since.

use std::collections::VecDeque;

use meta::Op;
use token::message::Granted;
use types::{Attr, Duration, Errno, InodeId, SmallBytes};

use crate::ahead::{Behind, End, Found, Names};
use crate::env::Env;
use crate::inode::Inode;
use crate::message::{Answer, Ask, Body};
use crate::names::{Continuation, is_same_token};
use crate::request::{Listed, Operation, Request, Response, listed_size};
use crate::slice::{Effect, Input, Pin, Pinned, Slice, Waiting, slice_of};
use crate::walk::Turn;

/// So many files of one slice in `SLICE_COUNT` were asked for by themselves since a listing began: the kernel does not believe what it was shown of
/// the names, as of files that were written since they were made.
const ATTR_LOOKS: u64 = 64;

/// One entry in so many is shown without attributes.
pub(crate) const SAMPLE: usize = 1024;

/// A listing on its way through the slices of its entries.
#[derive(Debug)]
pub struct Tour {
    /// Entries whose slice has not been visited.
    left: Vec<Left>,
    purpose: Purpose,
}

/// An entry whose slice is to be visited.
#[derive(Debug)]
pub(crate) struct Left {
    ino: InodeId,
    /// Where to show it.
    at: Option<usize>,
    /// What the owner has just told of it.
    told: Option<(Attr, Option<Granted>)>,
}

/// What a tour is for.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "a tour is in a box")]
enum Purpose {
    /// To answer a request.
    Answer {
        request: Request,
        listed: Vec<Listed>,
        pinned: Pinned,
        /// For how long the kernel may keep the names: the directory's token says it.
        entry_timeout_ns: u64,
        behind: Option<Behind>,
        turn: Option<Turn>,
    },
    /// To take what was told of entries that nobody has asked for yet.
    Ahead(InodeId, u64),
}

impl Left {
    /// All of which attributes were told.
    pub(crate) fn all(entries: &[meta::message::Listed], grants: Vec<Granted>) -> Vec<Self> {
        let mut left = Vec::with_capacity(entries.len());
        // As a rule they come in the order of the entries.
        let mut grants = VecDeque::from(grants);
        for (at, entry) in entries.iter().enumerate() {
            let Some(attr) = entry.attr else { continue };
            let granted = match grants.front() {
                Some(first) if first.ino == attr.ino => grants.pop_front(),
                _ => {
                    let at = grants.iter().position(|g| g.ino == attr.ino);
                    at.and_then(|at| grants.swap_remove_back(at))
                }
            };
            left.push(Self {
                ino: attr.ino,
                at: Some(at),
                told: Some((attr, granted)),
            });
        }
        left
    }
}

/// Of the owner, what a request for entries behind a cookie is answered with; `plus`: in the long form.
pub(crate) fn listing_op(
    (ino, cookie): (InodeId, u64),
    size: u32,
    plus: bool,
    is_looked_at: bool,
) -> Op {
    // Names alone are answered in the long form: as few as fit.
    let least = u32::try_from(listed_size(1, plus) / listed_size(1, false)).expect("five");
    Op::ReadDir {
        ino,
        cookie,
        size: if is_looked_at { size } else { size / least },
        plus: plus && is_looked_at,
    }
}

/// Where the owner's part of an answer begins, and what is left for it: `.` and `..` are ours (cookies 1 and 2).
pub(crate) fn owner_part(cookie: u64, size: u32, plus: bool) -> (u64, u32) {
    let own = usize::try_from(2_u64.saturating_sub(cookie)).expect("at most two");
    let own = u32::try_from(own * listed_size(2, plus)).expect("two small entries");
    let cookie = if cookie <= 2 { 0 } else { cookie };
    (cookie, size.saturating_sub(own))
}

/// Our part of it.
fn own_entries(cookie: u64, ino: InodeId, parent: InodeId) -> Vec<Listed> {
    let own = [(1, b".".as_slice(), ino), (2, b"..".as_slice(), parent)];
    let own = own.into_iter().filter(|(own, ..)| cookie < *own);
    let own = own.map(|(cookie, name, ino)| Listed {
        name: SmallBytes::new(name),
        ino,
        mode: types::FileKind::Directory.mode_bits(),
        cookie,
        entry: None,
    });
    own.collect()
}

impl Tour {
    /// Nothing of it is shown.
    pub(crate) fn ahead(mut left: Vec<Left>, directory: InodeId, id: u64) -> Self {
        left.iter_mut().for_each(|left| left.at = None);
        Self {
            left,
            purpose: Purpose::Ahead(directory, id),
        }
    }
}

impl Slice {
    /// READDIR and READDIRPLUS.
    pub(crate) fn read_directory(&mut self, env: &Env<'_>, request: Request) {
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
        let (cookie, size) = owner_part(cookie, size, plus);
        let is_looked_at = self.begins_looked_at(env, ino, cookie);
        if plus {
            match self.find_ahead(ino, cookie, size) {
                Found::Nothing => {}
                Found::UnderWay => return self.park(env, ino, request, Waiting::Listing),
                Found::Names(names, epoch) => {
                    return self.show_ahead(env, request, names, epoch);
                }
            }
        }
        let op = listing_op((ino, cookie), size, plus, is_looked_at);
        let epoch = self.inode(ino).names_epoch;
        self.call(
            ino.shard(),
            Ask::Op { op, durable: false },
            Continuation::Listing(request, epoch),
        );
    }

    /// Entries behind `cookie` are asked for: whether with attributes. What was shown long ago does not count.
    fn begins_looked_at(&mut self, env: &Env<'_>, ino: InodeId, cookie: u64) -> bool {
        let looked = self.inode(ino).attr_looks_before;
        let looks = self.attr_looks.saturating_sub(looked);
        let is_known = self.has_shown_all(env, ino);
        let has_asked = self.is_alone() && cookie != 0 && looks >= ATTR_LOOKS;
        let directory = self.inode(ino);
        if directory.unlooked_count == 0 || has_asked || (cookie == 0 && !is_known) {
            (directory.unlooked_count, directory.unlooked_since) = (0, env.now);
        }
        if cookie == 0 || has_asked {
            let attr_looks = self.attr_looks;
            self.inode(ino).attr_looks_before = attr_looks;
        }
        self.is_looked_at(env, ino)
    }

    /// The kernel was shown as much of the directory as there is room for, and still believes it.
    pub(crate) fn has_shown_all(&self, env: &Env<'_>, ino: InodeId) -> bool {
        let unlooked_time = self.unlooked_time();
        let has = |directory: &Inode| {
            directory.unlooked_count >= self.room_for_entries()
                && env.now.since(directory.unlooked_since) < unlooked_time
        };
        self.is_alone() && self.inodes.get(&ino).is_some_and(|inode| has(inode))
    }

    /// Whoever lists the directory looks at what its names lead to, as far as is known, and there is room for that.
    pub(crate) fn is_looked_at(&self, env: &Env<'_>, directory: InodeId) -> bool {
        let unlooked_time = self.unlooked_time();
        self.inodes.get(&directory).is_none_or(|directory| {
            directory.unlooked_count < self.room_for_entries()
                && env.now.since(directory.unlooked_since) < unlooked_time
        })
    }

    /// For so long what was shown is taken to be believed when somebody looks at it.
    const fn unlooked_time(&self) -> Duration {
        // fts(3), which is `find`, `du` and `rm -r`, reads up to 100,000 names before it looks at the first.
        Duration(self.timeout_ns / 2)
    }

    /// The kernel asked what a name of the directory leads to, and there is something.
    pub(crate) fn note_looked_at(&mut self, directory: InodeId) {
        if let Some(work) = self.inode(directory).present_work() {
            work.unlooked_count = 0;
        }
    }

    /// The kernel is shown what it has made in the directory.
    pub(crate) fn note_made(&mut self, env: &Env<'_>, directory: InodeId) {
        if !self.is_alone() {
            return;
        }
        let inode = self.inode(directory);
        if inode.unlooked_count == 0 {
            inode.unlooked_since = env.now;
        }
        inode.unlooked_count += 1;
    }

    /// The names were here before they were wanted.
    fn show_ahead(&mut self, env: &Env<'_>, request: Request, names: Names, epoch: u64) {
        let Operation::ReadDir { ino, cookie, .. } = request.operation else {
            unreachable!("only listings come here");
        };
        let parent = names.parent();
        let (behind, with_attr, is_end) = names.into_parts();
        let mut listed = own_entries(cookie, ino, parent);
        let own_count = listed.len();
        let left = with_attr.iter().map(|at| Left {
            ino: behind[*at].ino,
            at: Some(own_count + *at),
            told: None,
        });
        let left = left.collect();
        listed.extend(behind);
        let end = is_end.then_some(End(Some(epoch)));
        self.visit(env, request, (listed, end), (left, parent), true);
    }

    /// The owner's entries arrived.
    pub(crate) fn on_listing(
        &mut self,
        env: &Env<'_>,
        (request, epoch): (Request, u64),
        answer: Answer,
    ) {
        let Operation::ReadDir {
            ino, cookie, plus, ..
        } = request.operation
        else {
            return self.fail(request.ticket, Errno::EPROTO);
        };
        let mut grants = answer.grants;
        // As of a name, what it says holds with the token that comes along.
        let now = self.inode(ino).names_epoch;
        let is_unchanged = now == epoch;
        let is_vouched_for = is_same_token(epoch, now);
        self.take_directory_grant(env, ino, &mut grants);
        let epoch = self.settled_epoch(ino).filter(|_| is_unchanged);
        let (entries, parent, is_end) = match answer.body {
            Body::Op(meta::Reply::Listing {
                entries,
                parent,
                is_end,
            }) => (entries, parent, is_end),
            Body::Op(meta::Reply::Error(errno)) | Body::Refused(errno) => {
                return self.fail(request.ticket, errno);
            }
            _ => return self.fail(request.ticket, Errno::EPROTO),
        };
        let mut listed = own_entries(cookie, ino, parent);
        let mut left = match plus {
            true => Left::all(&entries, grants),
            false => Vec::new(),
        };
        let own_count = listed.len();
        left.iter_mut()
            .for_each(|left| left.at = left.at.map(|at| own_count + at));
        listed.extend(entries.into_iter().map(|entry| Listed {
            name: SmallBytes::new(entry.name.bytes()),
            ino: entry.ino,
            mode: entry.kind.mode_bits(),
            cookie: entry.cookie,
            entry: None,
        }));
        let end = is_end.then_some(End(epoch));
        self.visit(env, request, (listed, end), (left, parent), is_vouched_for);
    }

    /// Of the grants of an answer, that of the directory; the others stay in the order of the entries.
    pub(crate) fn take_directory_grant(
        &mut self,
        env: &Env<'_>,
        directory: InodeId,
        grants: &mut Vec<Granted>,
    ) {
        if let Some(at) = grants.iter().position(|g| g.ino == directory) {
            let granted = grants.remove(at);
            self.take_grant(env, &granted);
        }
    }

    /// Answers with these entries, once their slices have completed them; `is_vouched_for`: the token for names that is here vouches for them.
    fn visit(
        &mut self,
        env: &Env<'_>,
        request: Request,
        (listed, end): (Vec<Listed>, Option<End>),
        (mut left, parent): (Vec<Left>, InodeId),
        is_vouched_for: bool,
    ) {
        let Operation::ReadDir {
            ino, size, plus, ..
        } = request.operation
        else {
            unreachable!("only listings come here");
        };
        let unlooked_before = self.inode(ino).unlooked_count;
        for (number, left) in (unlooked_before + 1..).zip(&mut left) {
            if number.is_multiple_of(SAMPLE) {
                left.at = None;
            }
        }
        self.inode(ino).unlooked_count += left.len();
        self.note_listed(env, &request, &listed, end.is_some());
        let turn = self.note_walk(env, &request, &listed, (parent, end.is_some()));
        let last = listed.last().filter(|last| plus && last.cookie > 2);
        let behind = last.map(|last| Behind {
            directory: ino,
            cookie: last.cookie,
            size,
            end,
            parent,
        });
        let entry_timeout_ns = match is_vouched_for {
            true => self.entry_timeout(env, ino),
            false => 0,
        };
        let mut pinned = Pinned::new();
        if entry_timeout_ns > 0 && !left.is_empty() {
            // A revoke waits until they are written, and believed no more.
            self.inode(ino).unwritten_replies += 1;
            self.shown.begin_answer(ino);
            pinned.push(Pin::Names(ino));
        }
        self.on_tour(
            env,
            Box::new(Tour {
                left,
                purpose: Purpose::Answer {
                    request,
                    listed,
                    pinned,
                    entry_timeout_ns,
                    behind,
                    turn,
                },
            }),
        );
    }

    /// Completes the entries whose inodes are of this slice, and passes the listing on.
    pub(crate) fn on_tour(&mut self, env: &Env<'_>, mut tour: Box<Tour>) {
        while let Some(Left { ino, .. }) = tour.left.last() {
            let ino = *ino;
            if slice_of(ino) as u64 != self.index {
                self.out.push(Effect::ForSlice(ino, Input::Tour(tour)));
                return;
            }
            let Left { at, told, .. } = tour.left.pop().expect("just seen");
            let is_told = told.is_some();
            match told {
                Some((attr, Some(granted))) => self.take_told(env, &attr, &[granted], 0),
                Some((attr, None)) => self.inode(ino).learn_attr(&attr),
                None => {}
            }
            let (
                Some(at),
                Purpose::Answer {
                    request,
                    listed,
                    pinned,
                    entry_timeout_ns,
                    ..
                },
            ) = (at, &mut tour.purpose)
            else {
                continue;
            };
            // What was told a while ago may be old by now.
            let known = self.inodes.get(&ino);
            if !is_told && !known.is_some_and(|inode| inode.is_attr_current()) {
                continue;
            }
            let entry = self.show(ino, request.caller.pid, *entry_timeout_ns);
            let inode = self.inode(ino);
            inode.lookup_count += 1;
            inode.unwritten_replies += 1;
            listed[at].entry = entry;
            pinned.push(Pin::Inode(ino));
        }
        match tour.purpose {
            Purpose::Answer {
                request,
                listed,
                pinned,
                behind,
                turn,
                ..
            } => {
                let response = Response::Listing(listed);
                self.out
                    .push(Effect::Reply(request.ticket, response, pinned));
                // The answer goes first.
                if let Some(behind) = behind {
                    let next = Input::ListAhead(behind);
                    self.out.push(Effect::ForSlice(behind.directory, next));
                }
                if let Some(turn) = turn {
                    let next = Input::Turn(turn);
                    self.out.push(Effect::ForSlice(turn.directory, next));
                }
            }
            Purpose::Ahead(directory, id) => {
                let known = Input::AheadKnown(directory, id);
                self.out.push(Effect::ForSlice(directory, known));
            }
        }
    }
}

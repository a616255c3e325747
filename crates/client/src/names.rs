//! Namespace operations: sent to the owner of the directory's shard; answers are cached under tokens.
//!
//! A name's answer ends in the slice of the inode that it leads to (`Arrival`), because only that slice
//! knows whether a revoke of the inode is under way, and so for how long the kernel may believe the
//! attributes.

use meta::Op;
use smallvec::smallvec;
use token::message::Granted;
use types::layout::LAYOUT_XATTR;
use types::{Attr, Errno, FileKind, InodeId, Instant, Name, SmallBytes, Want, limits};

use crate::belief;
use crate::env::Env;
use crate::message::{Answer, Ask, Body};
use crate::request::{Caller, NewKind, OpenFlags, Operation, Request, Response, Ticket};
use crate::slice::{Effect, Input, Pin, Slice, Waiting, home_inode};
use crate::tokens::Asker;

/// For how long the kernel may believe what a token covers, where other nodes are in the cluster ([`Slice::believe`]).
pub(crate) const TIMEOUT_NS: u64 = limits::KERNEL_TIMEOUT_MS_MAX * 1_000_000;

/// What to do with an owner's answer.
#[derive(Debug)]
pub(crate) enum Continuation {
    /// A namespace operation.
    Names(Request, u64),
    /// A rename whose source is written back, and when it was sent.
    Rename(Request, Instant),
    /// An unlink; the inode that its owner was told nobody has open here, if it was told that.
    Unlink(Request, u64, Option<InodeId>),
    /// GetAttr: an Acquire for the attributes; who is answered, unless it was given up; the inode's count of losses when it
    /// was asked; the thread that asked.
    Attributes(InodeId, Option<Ticket>, u64, u32),
    /// The attributes of what a name leads to, asked of another owner.
    Arrival(Box<Arrival>),
    /// The source of a rename, looked up so that its data can be written back first.
    RenameSource(Request),
    /// Tokens for requests that wait, or for a rewrite; the inode's count of losses when they were asked for.
    Acquire(InodeId, u64, Asker),
    /// The map for loads that wait.
    Map(InodeId, types::ByteRange, types::ByteRange),
    /// A Commit of the inode's dirty state.
    Commit(InodeId),
    /// Journals made durable for fsync.
    Synced(Ticket, Response),
    /// The same for a sweep.
    Swept(u64),
    /// Attributes changed by setattr, which took from the inode when its content had changed last.
    SetAttr(InodeId, Request, Option<types::Timestamp>),
    /// A hole made, or space promised.
    Punch(InodeId, Request),
    /// Which sectors from this one on are promised.
    Promised(InodeId, u64),
    /// A listing; `Inode::names_epoch` of the directory when it was asked for.
    Listing(Request, u64),
    /// A listing of this directory that nobody has asked for yet, and its number.
    Ahead(InodeId, u64),
    /// The owner knows that this node has the inode no longer open; the inode if it is known here and counts them.
    Closed(Option<InodeId>),
    /// A time of a read, which the owner was told.
    Accessed(InodeId, crate::access::Told),
    /// A change of locks.
    Lock(InodeId),
    /// GetLock, unless it was given up.
    LockTest(Option<Ticket>),
}

/// What a link is to lead to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LinkTarget {
    /// An inode of this kind, which has a name.
    Named(FileKind),
    /// A file that was made here without a name and may be given one (O_TMPFILE).
    Nameless,
}

/// What a name led to, on its way to the slice of the inode.
#[derive(Debug)]
pub struct Arrival {
    pub(crate) ino: InodeId,
    pub(crate) kind: FileKind,
    pub(crate) attr: Option<Attr>,
    pub(crate) grants: Vec<Granted>,
    /// The request to answer; none when the inode only has to learn.
    pub(crate) request: Option<Request>,
    /// For how long the kernel may keep the name, and since when that counts.
    pub(crate) entry_timeout_ns: u64,
    pub(crate) told_at: Instant,
    /// The inode lost its last name and the owner takes us to have it open.
    pub(crate) is_kept_open: bool,
    /// A name of the inode was removed.
    pub(crate) is_removal: bool,
    /// The thread by whose call the inode has changed, where there is something to learn.
    pub(crate) changer: u32,
    /// The inode's count of losses when its owner was asked for attributes.
    pub(crate) loss_count: u64,
    /// What the request was to make is there already: the kernel does not ask whether the caller may open it.
    pub(crate) was_there: bool,
}

impl Arrival {
    /// Attributes may have been waited for: what waits for the kernel to believe the name no more counts from before that.
    fn timeout_left(&self, env: &Env<'_>) -> u64 {
        belief::left_of(self.entry_timeout_ns, env.now.since(self.told_at))
    }

    /// Attributes for an inode's slice to learn.
    pub(crate) fn lesson(
        ino: InodeId,
        attr: Option<Attr>,
        is_kept_open: bool,
        (changer, is_removal): (u32, bool),
    ) -> Box<Self> {
        let kind = attr.map_or(FileKind::File, |a| a.kind);
        Box::new(Self {
            ino,
            kind,
            attr,
            grants: Vec::new(),
            request: None,
            entry_timeout_ns: 0,
            told_at: Instant(0),
            is_kept_open,
            is_removal,
            changer,
            loss_count: 0,
            was_there: false,
        })
    }
}

/// Whether a create may open what its name leads to. What `was_there` the kernel took for absent, and asks nothing: the caller opens it by the rights
/// of its owner. Else the kernel looks once more, sees what it is, and asks what else may give him the right (groups, lists).
fn may_open_created(
    attr: &Attr,
    (caller, flags): (Caller, OpenFlags),
    was_there: bool,
) -> Result<(), Errno> {
    let needs = [(flags.read, 0o400), (flags.write || flags.truncate, 0o200)];
    let has = |(is_wanted, bit): (bool, u32)| !is_wanted || attr.permissions & bit != 0;
    let is_open = caller.uid == attr.uid && needs.into_iter().all(has);
    match attr.kind {
        FileKind::Directory => Err(Errno::EISDIR),
        FileKind::File if is_open || !was_there => Ok(()),
        _ => Err(Errno::ESTALE),
    }
}

pub(crate) fn meta_caller(caller: Caller) -> meta::Caller {
    meta::Caller {
        uid: caller.uid,
        gid: caller.gid,
        umask: caller.umask,
    }
}

/// The wants that make attributes of this kind of inode cacheable.
pub(crate) fn attribute_want(kind: FileKind) -> Want {
    if kind == FileKind::Directory {
        Want::Directory {
            mode: types::DirectoryMode::Read,
        }
    } else {
        Want::Inode {
            mode: types::InodeMode::Read,
        }
    }
}

/// What `Inode::names_epoch` grows by where a token for names comes or goes; changes of names count below.
pub(crate) const NAMES_TOKEN: u64 = 1 << 32;

/// No token for names has come or gone between two epochs.
pub(crate) const fn is_same_token(before: u64, after: u64) -> bool {
    before / NAMES_TOKEN == after / NAMES_TOKEN
}

impl Slice {
    /// Lookup, make, link, remove, rename, xattrs, statfs.
    pub(crate) fn name_operation(&mut self, env: &Env<'_>, request: Request) {
        match &request.operation {
            Operation::Lookup { parent, name } => {
                let is_answered = self.lookup_cached(env, &request, *parent, name);
                if is_answered {
                    return;
                }
            }
            Operation::LookupSelf { ino } => {
                let arrival = Arrival {
                    ino: *ino,
                    kind: self.known_kind(*ino),
                    attr: None,
                    grants: Vec::new(),
                    request: Some(request),
                    entry_timeout_ns: 0,
                    told_at: Instant(0),
                    is_kept_open: false,
                    is_removal: false,
                    changer: 0,
                    loss_count: 0,
                    was_there: false,
                };
                return self.on_arrival(env, arrival);
            }
            Operation::Link { ino, parent, .. } => {
                // Comes to the slice of the inode, which knows what it is.
                let (target, parent) = (self.link_target(*ino), *parent);
                let input = Input::LinkNow(Box::new(request), target);
                return self.out.push(Effect::ForSlice(parent, input));
            }
            Operation::Rename { .. } => return self.rename_source(request),
            Operation::Unlink { parent, name } => {
                let (parent, target) = (*parent, self.known_target(*parent, name));
                return match target {
                    Some(ino) => {
                        let input = Input::UnlinkTarget(ino, request);
                        self.out.push(Effect::ForSlice(ino, input));
                    }
                    None => self.unlink_now(parent, request, None),
                };
            }
            // The driver answers it: it knows the space of all NSDs and shards.
            Operation::StatFs => return self.fail(request.ticket, Errno::ENOSYS),
            Operation::Access { .. } => return self.reply(request.ticket, Response::Done),
            // At once, so that `ls` asks only once.
            Operation::GetXattr { name, .. } if !meta::is_xattr_kept(name) => {
                return self.fail(request.ticket, Errno::EOPNOTSUPP);
            }
            Operation::GetXattr { ino, name, .. }
                if meta::acl::is_acl(name)
                    && match self.inodes.get_mut(ino) {
                        Some(inode) => inode.ask_acl(),
                        None => self.is_cold_without_acl(*ino),
                    } =>
            {
                return self.fail(request.ticket, Errno::ENODATA);
            }
            // A write takes the rights of a program; the owner hears of it with the Commit. Rights that are given after the write
            // stay: its Commit comes first.
            Operation::GetXattr { ino, name, .. }
                if name[..] == *meta::FILE_RIGHTS
                    && self.inodes.get(ino).is_some_and(|i| i.takes_rights()) =>
            {
                return self.fail(request.ticket, Errno::ENODATA);
            }
            Operation::SetXattr { ino, name, .. }
                if name[..] == *meta::FILE_RIGHTS
                    && self.inodes.get(ino).is_some_and(|i| i.is_dirty()) =>
            {
                let ino = *ino;
                let op = self.op_of(&request);
                let epoch = self.names_epoch(&request);
                return self.flush_before(env, ino, op, Continuation::Names(request, epoch));
            }
            // Bytes that the owner does not know of: only this node can say that the file is not empty.
            Operation::SetXattr { ino, name, .. } | Operation::RemoveXattr { ino, name }
                if name[..] == *LAYOUT_XATTR && self.has_unsent_bytes(*ino) =>
            {
                return self.fail(request.ticket, Errno::EBUSY);
            }
            Operation::SetXattr { ino, .. } => self.distrust_cold(*ino),
            _ => {}
        }
        let op = self.op_of(&request);
        let epoch = self.names_epoch(&request);
        self.send_op(op, Continuation::Names(request, epoch));
    }

    fn has_unsent_bytes(&self, ino: InodeId) -> bool {
        let inode = self.inodes.get(&ino);
        inode.is_some_and(|i| i.size > 0 && i.is_dirty())
    }

    pub(crate) fn known_kind(&self, ino: InodeId) -> FileKind {
        match self.inodes.get(&ino) {
            Some(inode) => inode.known_kind(),
            None => self.cold.get(&ino).map_or(FileKind::File, |cold| cold.kind),
        }
    }

    /// What the owner is asked for an operation that needs nothing else before.
    fn op_of(&mut self, request: &Request) -> Op {
        let caller = meta_caller(request.caller);
        match &request.operation {
            Operation::Lookup { parent, name } => Op::Lookup {
                parent: *parent,
                name: name.clone(),
            },
            Operation::LookupParent { ino } => Op::LookupParent { ino: *ino },
            Operation::Make {
                parent, name, kind, ..
            } => Op::Make {
                parent: *parent,
                name: name.clone(),
                kind: self.new_kind(kind),
                caller,
            },
            Operation::Create {
                parent,
                name,
                permissions,
                flags,
            } => Op::Create {
                parent: *parent,
                name: name.clone(),
                permissions: *permissions,
                exclusive: flags.exclusive,
                caller,
            },
            Operation::CreateNameless {
                parent,
                permissions,
                ..
            } => Op::CreateNameless {
                parent: *parent,
                permissions: *permissions,
                caller,
            },
            Operation::Rmdir { parent, name } => Op::Rmdir {
                parent: *parent,
                name: name.clone(),
                known: None,
                standing: request.caller.standing(),
            },
            Operation::ReadLink { ino } => Op::ReadLink { ino: *ino },
            Operation::GetXattr { ino, name, .. } => Op::GetXattr {
                ino: *ino,
                name: name.clone(),
            },
            Operation::SetXattr {
                ino,
                name,
                value,
                flags,
            } => Op::SetXattr {
                ino: *ino,
                name: name.clone(),
                value: value.clone(),
                flags: *flags,
                standing: request.caller.standing(),
            },
            Operation::ListXattr { ino, .. } => Op::ListXattr { ino: *ino },
            Operation::RemoveXattr { ino, name } => Op::RemoveXattr {
                ino: *ino,
                name: name.clone(),
                standing: request.caller.standing(),
            },
            _ => unreachable!("start() sends other operations elsewhere"),
        }
    }

    /// The owner says that what the request is about is `uid`'s, and not whose the kernel took it for.
    pub(crate) fn ask_standing(&mut self, request: Request, uid: u32) {
        match request.caller.has_been_asked() {
            true => self.fail(request.ticket, Errno::EPERM),
            false => self.out.push(Effect::AskStanding(Box::new(request), uid)),
        }
    }

    pub(crate) fn send_op(&mut self, op: Op, then: Continuation) {
        self.call(op.home(), Ask::Op { op, durable: false }, then);
    }

    fn new_kind(&mut self, kind: &NewKind) -> meta::NewKind {
        match kind {
            NewKind::Node { mode, rdev } => meta::NewKind::Node {
                mode: *mode,
                rdev: *rdev,
            },
            NewKind::Directory { permissions } => {
                self.placements.rotate_left(1);
                // Index 0: the shard chooses the number.
                let placement = InodeId::new(self.placements[0], 0);
                meta::NewKind::Directory {
                    permissions: *permissions,
                    placement,
                }
            }
            NewKind::Symlink { target } => meta::NewKind::Symlink {
                target: target.clone(),
            },
        }
    }

    /// Answers a lookup from the entry cache, if the directory token covers it. In a directory that several
    /// nodes change the kernel keeps nothing of the answer (time-out 0, rule R11), and asks here each time.
    fn lookup_cached(
        &mut self,
        env: &Env<'_>,
        request: &Request,
        parent: InodeId,
        name: &Name,
    ) -> bool {
        let Some(directory) = self.inodes.get(&parent) else {
            return false;
        };
        let is_usable = directory.directory_mode().is_some() && !directory.is_revoking();
        let Some(entry) = directory.entries.as_ref().and_then(|e| e.get(name)) else {
            return false;
        };
        if !is_usable {
            return false;
        }
        let entry = *entry;
        let timeout = self.entry_timeout(env, parent);
        match entry {
            None => self.reply(request.ticket, Response::Entry(None, timeout)),
            Some(ino) => {
                self.note_looked_at(parent);
                let arrival = Arrival {
                    ino,
                    kind: FileKind::File,
                    attr: None,
                    grants: Vec::new(),
                    request: Some(request.clone()),
                    entry_timeout_ns: timeout,
                    told_at: env.now,
                    is_kept_open: false,
                    is_removal: false,
                    changer: 0,
                    loss_count: 0,
                    was_there: false,
                };
                self.send_arrival(env, arrival);
            }
        }
        true
    }

    fn send_arrival(&mut self, env: &Env<'_>, arrival: Arrival) {
        if crate::slice::slice_of(arrival.ino) as u64 == self.index {
            self.on_arrival(env, arrival);
        } else {
            let ino = arrival.ino;
            self.out
                .push(Effect::ForSlice(ino, Input::Arrive(Box::new(arrival))));
        }
    }

    /// What the inode of a link is, as far as it is known here.
    fn link_target(&self, ino: InodeId) -> LinkTarget {
        let inode = self.inodes.get(&ino);
        let is_nameless = inode.is_some_and(|i| i.is_linkable);
        match is_nameless {
            true => LinkTarget::Nameless,
            false => LinkTarget::Named(self.known_kind(ino)),
        }
    }

    /// A link whose inode is known.
    pub(crate) fn link_now(&mut self, request: Request, target: LinkTarget) {
        let Operation::Link { ino, parent, name } = &request.operation else {
            unreachable!("only links come here");
        };
        let (ino, parent, name) = (*ino, *parent, name.clone());
        let op = match target {
            LinkTarget::Named(kind) => Op::Link {
                ino,
                kind,
                parent,
                name,
            },
            LinkTarget::Nameless => Op::LinkNameless { ino, parent, name },
        };
        let epoch = self.names_epoch(&request);
        self.send_op(op, Continuation::Names(request, epoch));
    }

    /// What the name led to is gone, and the name leads elsewhere by now or nowhere: it is looked up anew.
    pub(crate) fn on_arrival_gone(&mut self, arrival: Arrival) {
        let Some(request) = arrival.request else {
            return;
        };
        match &request.operation {
            Operation::Lookup { parent, .. } => {
                let parent = *parent;
                let again = Input::LookAgain(Box::new((request, arrival.ino)));
                self.out.push(Effect::ForSlice(parent, again));
            }
            // It was made, and others have seen it: the kernel decides whether to make another one.
            Operation::Create { .. } => self.fail(request.ticket, Errno::ESTALE),
            _ => self.fail(request.ticket, Errno::ENOENT),
        }
    }

    pub(crate) fn fail_arrival(&mut self, arrival: &Arrival, errno: Errno) {
        if let Some(request) = &arrival.request {
            self.fail(request.ticket, errno);
        }
    }

    /// Grows whenever a name of the request's directory changes as far as this node sees: an answer that was
    /// made before and arrives after says nothing about names any more. By [`NAMES_TOKEN`] where a token for them comes or goes.
    pub(crate) fn names_epoch(&self, request: &Request) -> u64 {
        let directory = directory_of(&request.operation).and_then(|d| self.inodes.get(&d));
        directory.map_or(0, |inode| inode.names_epoch)
    }

    /// Takes what a name leads to now into the cache, unless something else has happened meanwhile.
    pub(crate) fn learn_name(
        &mut self,
        parent: InodeId,
        name: &Name,
        ino: Option<InodeId>,
        is_current: bool,
    ) {
        self.named_count += 1;
        let inode = self.inode(parent);
        if is_current {
            inode.learn_entry(name, ino);
        } else {
            inode.forget_entry(name);
        }
    }

    /// The name of a request leads to an inode, as it has found or made.
    fn learn_found(&mut self, env: &Env<'_>, request: &Request, ino: InodeId, is_current: bool) {
        let parent = directory_of(&request.operation);
        let (Some(parent), Some(name)) = (parent, name_of(&request.operation)) else {
            return;
        };
        self.learn_name(parent, name, Some(ino), is_current);
        if matches!(request.operation, Operation::Lookup { .. }) {
            return self.note_looked_at(parent);
        }
        self.inode(parent).names_epoch += 1;
        self.note_made(env, parent);
    }

    /// The answer to a namespace operation.
    pub(crate) fn on_names(&mut self, env: &Env<'_>, request: Request, epoch: u64, answer: Answer) {
        let now = self.names_epoch(&request);
        let is_current = now == epoch;
        let reply = match answer.body {
            Body::Op(reply) => reply,
            Body::Refused(errno) => return self.fail(request.ticket, errno),
            _ => return self.fail(request.ticket, Errno::EPROTO),
        };
        let parent = directory_of(&request.operation);
        if let meta::Reply::Attr(attr) = &reply {
            // Of one that is not known, too: what was told of it before this may come later.
            self.inode(attr.ino).learn_attr(attr);
        }
        // Of an operation on an inode itself, its extended attributes, they are that inode's.
        let own = parent.unwrap_or_else(|| home_inode(&request.operation));
        let mut others = answer.grants;
        for granted in others.extract_if(.., |g| g.ino == own) {
            self.take_grant(env, &granted);
        }
        // A token that came meanwhile with another answer says nothing of this one, which may be of before another node's change.
        let tells = matches!(
            reply,
            meta::Reply::Absent | meta::Reply::Entry { .. } | meta::Reply::Made { .. }
        );
        let timeout = match parent.filter(|_| tells && is_same_token(epoch, now)) {
            Some(parent) => self.entry_timeout(env, parent),
            None => 0,
        };
        match reply {
            meta::Reply::Error(errno) => {
                self.take_all(env, others);
                self.fail(request.ticket, errno);
            }
            meta::Reply::NotOwner { uid } => {
                self.take_all(env, others);
                self.ask_standing(request, uid);
            }
            meta::Reply::Absent => {
                if let (Some(parent), Some(name)) = (parent, name_of(&request.operation)) {
                    let name = name.clone();
                    self.learn_name(parent, &name, None, is_current);
                }
                self.reply(request.ticket, Response::Entry(None, timeout));
            }
            meta::Reply::Entry { ino, kind, attr } => {
                self.learn_found(env, &request, ino, is_current);
                self.found(env, request, timeout, (ino, kind, attr, false), others);
            }
            meta::Reply::Made {
                attr,
                ino,
                directory,
                is_new,
            } => {
                if let Some(parent) = parent {
                    self.learn_directory(parent, &directory, request.caller.pid);
                }
                let kind = attr.map_or(FileKind::File, |a| a.kind);
                self.learn_found(env, &request, ino, is_current);
                self.found(env, request, timeout, (ino, kind, attr, !is_new), others);
            }
            meta::Reply::Removed {
                ino,
                attr,
                kept_open,
                directory,
            } => {
                if let (Some(parent), Some(name)) = (parent, name_of(&request.operation)) {
                    let name = name.clone();
                    self.learn_name(parent, &name, None, is_current);
                    self.inode(parent).names_epoch += 1;
                    self.learn_directory(parent, &directory, request.caller.pid);
                }
                let remover = request.caller.pid;
                let lesson = Arrival::lesson(ino, attr, kept_open, (remover, true));
                self.out.push(Effect::ForSlice(ino, Input::Arrive(lesson)));
                self.reply(request.ticket, Response::Done);
            }
            meta::Reply::Bytes(bytes) => self.reply_bytes(&request, bytes),
            meta::Reply::Attr(attr) => {
                self.note_changed(attr.ino, request.caller.pid);
                self.reply(request.ticket, Response::Done);
            }
            meta::Reply::Done => self.reply(request.ticket, Response::Done),
            meta::Reply::Stale
            | meta::Reply::Renamed { .. }
            | meta::Reply::Resized(_)
            | meta::Reply::Listing { .. }
            | meta::Reply::Map { .. }
            | meta::Reply::Promised { .. }
            | meta::Reply::Chain(_)
            | meta::Reply::Statistics { .. } => self.fail(request.ticket, Errno::EPROTO),
        }
    }

    /// A call of `changer` has changed names of `parent`.
    pub(crate) fn learn_directory(&mut self, parent: InodeId, attr: &Attr, changer: u32) {
        if let Some(directory) = self.inodes.get_mut(&parent) {
            directory.learn_attr(attr);
        }
        self.note_changed(parent, changer);
    }

    fn found(
        &mut self,
        env: &Env<'_>,
        request: Request,
        timeout: u64,
        (ino, kind, attr, was_there): (InodeId, FileKind, Option<Attr>, bool),
        grants: Vec<Granted>,
    ) {
        let arrival = Arrival {
            ino,
            kind,
            attr,
            grants,
            request: Some(request),
            entry_timeout_ns: timeout,
            told_at: env.now,
            is_kept_open: false,
            is_removal: false,
            changer: 0,
            loss_count: 0,
            was_there,
        };
        self.send_arrival(env, arrival);
    }

    /// A name led to an inode of this slice.
    pub(crate) fn on_arrival(&mut self, env: &Env<'_>, mut arrival: Arrival) {
        let ino = arrival.ino;
        let grants = std::mem::take(&mut arrival.grants);
        let Some(request) = arrival.request.take() else {
            self.learn_lesson(env, &arrival);
            grants.iter().for_each(|g| self.take_grant(env, g));
            return;
        };
        let attr = arrival.attr.take();
        match &attr {
            Some(attr) => self.take_told(env, attr, &grants, arrival.loss_count),
            None => grants.iter().for_each(|g| self.take_grant(env, g)),
        }
        let inode = self.inode(ino);
        // As for an open: the token that came along may be void. If that was noticed here the owner takes the file to be
        // open, and the answer does not wait: others see the name by now, and this kernel still takes it for absent.
        if let Operation::CreateNameless { flags, .. } = &request.operation {
            // The owner has this node on record in the very record that made it.
            inode.is_taken_open = true;
            inode.is_linkable = !flags.exclusive;
        }
        let is_create = matches!(
            request.operation,
            Operation::Create { .. } | Operation::CreateNameless { .. }
        );
        let opens = is_create && inode.attr.is_some_and(|a| a.kind == FileKind::File);
        if opens && !inode.may_be_opened() {
            return self.fail(request.ticket, Errno::ESTALE);
        }
        // Who looks a name up will open what it leads to, or read the link, and has one try more at the most if that is gone:
        // nothing is shown whose last name is on its way out.
        let is_lookup =
            matches!(request.operation, Operation::Lookup { .. }) && inode.has_content();
        if is_lookup && inode.is_unnamed_again() {
            arrival.request = Some(request);
            return self.on_arrival_gone(arrival);
        }
        if is_lookup && inode.closing_count > 0 {
            return self.park(env, ino, request, Waiting::Closed);
        }
        let must_wait = opens && inode.inode_mode().is_none() && !inode.is_taken_open;
        if must_wait || (attr.is_none() && !inode.is_attr_current()) {
            let kind = inode.attr.map_or(arrival.kind, |a| a.kind);
            arrival.request = Some(request);
            arrival.loss_count = inode.loss_count;
            let ask = Ask::Acquire {
                ino,
                seen: inode.holder.seen(),
                wants: vec![attribute_want(kind)],
                only_free: false,
            };
            self.call(ino.shard(), ask, Continuation::Arrival(Box::new(arrival)));
            return;
        }
        if self.has_passed(env, &request, ino) {
            return self.fail(request.ticket, Errno::ESTALE);
        }
        let entry_timeout_ns = arrival.timeout_left(env);
        let entry = self.show(ino, request.caller.pid, entry_timeout_ns);
        let Some(entry) = entry else {
            return self.fail(request.ticket, Errno::ENOENT);
        };
        self.inode(ino).lookup_count += 1;
        match &request.operation {
            Operation::Create { flags, .. } | Operation::CreateNameless { flags, .. } => {
                let flags = *flags;
                if self.inode(ino).closing_count > 0 && !flags.exclusive {
                    // The owner is being told that nobody has it open here: asked again when it has heard.
                    self.inode(ino).lookup_count -= 1;
                    return self.park(env, ino, request, Waiting::Closed);
                }
                let by = (request.caller, flags);
                if let Err(errno) = may_open_created(&entry.attr, by, arrival.was_there) {
                    self.inode(ino).lookup_count -= 1;
                    return self.fail(request.ticket, errno);
                }
                if flags.truncate && entry.attr.size > 0 {
                    // O_CREAT | O_TRUNC on a file that is there: truncate, then answer.
                    self.inode(ino).lookup_count -= 1;
                    return self.resize(env, ino, request);
                }
                let opened = self.open_handle(ino, flags);
                let response = Response::Created(entry, opened);
                self.answer_open(env, ino, request.ticket, response);
            }
            other => {
                let pid = request.caller.pid;
                let is_link = matches!(other, Operation::Link { .. });
                let inode = self.inode(ino);
                inode.note_shown(env.now, pid);
                inode.is_linkable &= !is_link;
                let response = Response::Entry(Some(entry), entry_timeout_ns);
                self.reply_pinned(request.ticket, response, ino);
            }
        }
    }

    pub(crate) fn reply_pinned(&mut self, ticket: Ticket, response: Response, ino: InodeId) {
        self.inode(ino).unwritten_replies += 1;
        self.out
            .push(Effect::Reply(ticket, response, smallvec![Pin::Inode(ino)]));
    }

    fn reply_bytes(&mut self, request: &Request, bytes: SmallBytes) {
        let bytes = match &request.operation {
            Operation::ListXattr { ino, .. } => {
                let takes_rights = self.inodes.get(ino).is_some_and(|i| i.takes_rights());
                listed(bytes, takes_rights, request.caller.uid == 0)
            }
            _ => bytes,
        };
        let size = match &request.operation {
            Operation::GetXattr { size, .. } | Operation::ListXattr { size, .. } => *size,
            _ => return self.reply(request.ticket, Response::Bytes(bytes)),
        };
        let length = u32::try_from(bytes.len()).expect("small bytes are at most 64 KiB");
        match size {
            0 => self.reply(request.ticket, Response::Size(length)),
            size if size < length => self.fail(request.ticket, Errno::ERANGE),
            _ => self.reply(request.ticket, Response::Bytes(bytes)),
        }
    }

    /// GetAttr: from the cache under a token, else from the owner with one.
    pub(crate) fn get_attr(&mut self, _env: &Env<'_>, request: Request) {
        let Operation::GetAttr { ino, handle } = request.operation else {
            unreachable!("only getattr comes here");
        };
        let inode = self.inode(ino);
        let (kind, is_current) = (inode.known_kind(), inode.is_attr_current());
        self.attr_looks += u64::from(kind != FileKind::Directory && handle.is_none());
        if is_current {
            return self.reply_attr((request.ticket, request.caller.pid), ino);
        }
        // A writer among others, and one whose changes the owner does not know, must become the only
        // one to know size and times.
        let inode = self.inode(ino);
        let want = match inode.inode_mode() {
            Some(types::InodeMode::SharedWrite) => Want::Inode {
                mode: types::InodeMode::Exclusive,
            },
            _ if ino == InodeId::ROOT => attribute_want(FileKind::Directory),
            _ => attribute_want(kind),
        };
        let ask = Ask::Acquire {
            ino,
            seen: inode.holder.seen(),
            wants: vec![want],
            only_free: false,
        };
        let then = Continuation::Attributes(
            ino,
            Some(request.ticket),
            inode.loss_count,
            request.caller.pid,
        );
        self.call(ino.shard(), ask, then);
    }

    pub(crate) fn on_attributes(
        &mut self,
        env: &Env<'_>,
        (ino, ticket, thread): (InodeId, Option<Ticket>, u32),
        answer: Answer,
        losses: u64,
    ) {
        let outcome = match answer.body {
            Body::Acquired { attr: Some(attr) } => {
                self.take_told(env, &attr, &answer.grants, losses);
                Ok(())
            }
            Body::Acquired { attr: None } if self.inode(ino).is_removed_special() => Ok(()),
            Body::Refused(errno) => Err(errno),
            _ => Err(Errno::ESTALE),
        };
        match (ticket, outcome) {
            (Some(ticket), Ok(())) => self.reply_attr((ticket, thread), ino),
            (Some(ticket), Err(errno)) => self.fail(ticket, errno),
            (None, _) => {}
        }
    }

    pub(crate) fn reply_attr(&mut self, (ticket, thread): (Ticket, u32), ino: InodeId) {
        match self.show(ino, thread, 0) {
            Some(entry) => {
                let response = Response::Attr(entry.attr, entry.attr_timeout_ns);
                self.reply(ticket, response);
            }
            None => self.fail(ticket, Errno::ESTALE),
        }
    }

    /// A reply has been written to the kernel.
    pub(crate) fn on_replied(&mut self, env: &Env<'_>, pin: Pin) {
        let ino = pin.ino();
        let inode = self.inode(ino);
        inode.unwritten_replies = inode.unwritten_replies.saturating_sub(1);
        if inode.unwritten_replies == 0 && inode.is_revoking() {
            self.send_held_notices(env, ino);
        }
        if let Pin::Names(directory) = pin {
            self.note_written(env, directory);
        }
    }

    /// OpenDir, ReleaseDir, ReadDir.
    pub(crate) fn directory(&mut self, env: &Env<'_>, request: Request) {
        match request.operation {
            Operation::OpenDir { ino } => {
                let mut opened = self.open_handle(ino, OpenFlags::default());
                opened.keep_cache = false;
                self.reply(request.ticket, Response::Opened(opened));
            }
            Operation::ReleaseDir { ino, handle } => {
                self.reply(request.ticket, Response::Done);
                if self.handles.remove(&handle).is_some() {
                    self.inode(ino).open_count -= 1;
                    // Removed elsewhere it is an orphan until then.
                    self.tell_closed(env, ino);
                }
                self.drop_if_gone(env, ino);
            }
            Operation::ReadDir { .. } => self.read_directory(env, request),
            _ => unreachable!("only directory operations come here"),
        }
    }
}

/// The names of extended attributes that the caller may see. The owner may not have heard that a write has taken the rights of a
/// program; Linux lists `trusted.` for CAP_SYS_ADMIN alone, and of that the kernel tells the user number at most.
fn listed(names: SmallBytes, takes_rights: bool, is_root: bool) -> SmallBytes {
    if is_root && !takes_rights {
        return names;
    }
    let is_seen = |name: &&[u8]| {
        let is_taken = takes_rights && name.strip_suffix(&[0]) == Some(meta::FILE_RIGHTS);
        !is_taken && (is_root || !name.starts_with(b"trusted."))
    };
    let left = names.split_inclusive(|byte| *byte == 0).filter(is_seen);
    SmallBytes::new(&left.collect::<Vec<_>>().concat())
}

/// The directory whose names an operation is about.
pub(crate) fn directory_of(operation: &Operation) -> Option<InodeId> {
    match operation {
        Operation::Lookup { parent, .. }
        | Operation::Make { parent, .. }
        | Operation::Create { parent, .. }
        | Operation::Link { parent, .. }
        | Operation::Unlink { parent, .. }
        | Operation::Rmdir { parent, .. }
        | Operation::Rename { parent, .. } => Some(*parent),
        _ => None,
    }
}

pub(crate) fn name_of(operation: &Operation) -> Option<&Name> {
    match operation {
        Operation::Lookup { name, .. }
        | Operation::Make { name, .. }
        | Operation::Create { name, .. }
        | Operation::Link { name, .. }
        | Operation::Unlink { name, .. }
        | Operation::Rmdir { name, .. } => Some(name),
        _ => None,
    }
}

//! Listings that are asked for before they are wanted.
//!
//! Who lists a directory works on the names it has got while the owner could look for the next ones. So when entries have been shown, those
//! behind them are asked for, and their attributes and tokens are taken at once; what is kept for the next question is their names.
//!
//! ```text
//! shown --> under way --> ready --> shown with attributes as they are known then
//!               '--> whoever asks meanwhile waits
//! ```
//!
//! Invariants
//! - Names are shown only if the directory's token was held, and no name of it has changed as far as this node sees, from when they were asked for
//!   until they are wanted: the owner would answer them now.
//! - At most `AHEAD_MAX` listings are kept or under way in a slice; of more the oldest is forgotten, and who waits for it asks itself.
//! - Tokens are taken when they come, whether or not the names are wanted: a revoke never waits for a reader.

use meta::Op;
use types::{FileKind, InodeId, SmallBytes};

use crate::env::Env;
use crate::listing::{Left, Tour};
use crate::message::{Answer, Ask, Body};
use crate::names::Continuation;
use crate::request::Listed;
use crate::slice::Slice;

/// Readers of a slice's directories for whom names are kept.
const AHEAD_MAX: usize = 8;

/// Entries of a directory.
#[derive(Debug, Default)]
pub(crate) struct Names {
    /// Without attributes.
    pub(crate) listed: Vec<Listed>,
    /// Those of which the owner told the attributes.
    pub(crate) with_attr: Vec<usize>,
}

#[derive(Debug)]
pub(crate) struct Ahead {
    pub(crate) directory: InodeId,
    /// Of the entry before the first.
    cookie: u64,
    /// Of the request.
    size: u32,
    /// `Inode::names_epoch` when the owner was asked.
    epoch: u64,
    id: u64,
    /// As the owner has answered.
    names: Option<Names>,
    /// The attributes are known, too.
    is_ready: bool,
}

/// Where the next listing begins.
#[derive(Clone, Copy, Debug)]
pub struct Behind {
    pub(crate) directory: InodeId,
    /// Of the last entry that was shown.
    pub(crate) cookie: u64,
    /// Of the request.
    pub(crate) size: u32,
    /// Nothing lies behind it.
    pub(crate) is_end: bool,
}

/// What there is for a request.
pub(crate) enum Found {
    Nothing,
    /// It will be known soon: the directory's requests are run again then.
    UnderWay,
    Names(Names),
}

impl Slice {
    /// The epoch of the directory's names; `None`: another node may change them unseen.
    fn settled_epoch(&self, directory: InodeId) -> Option<u64> {
        let inode = self.inodes.get(&directory)?;
        let is_settled =
            inode.directory_mode().is_some() && !inode.is_revoking() && !inode.is_contended;
        (is_settled && !self.is_lapsed).then_some(inode.names_epoch)
    }

    /// What is known of the entries behind `cookie`, for a request of this size.
    pub(crate) fn find_ahead(&mut self, directory: InodeId, cookie: u64, size: u32) -> Found {
        let is_it = |a: &Ahead| (a.directory, a.cookie, a.size) == (directory, cookie, size);
        let Some(at) = self.aheads.iter().position(is_it) else {
            return Found::Nothing;
        };
        let ahead = &self.aheads[at];
        let is_current = Some(ahead.epoch) == self.settled_epoch(directory);
        if is_current && !ahead.is_ready {
            return Found::UnderWay;
        }
        let names = self.aheads.remove(at).and_then(|ahead| ahead.names);
        match names {
            Some(names) if is_current => Found::Names(names),
            _ => Found::Nothing,
        }
    }

    /// Entries have been shown: asks for those behind them.
    pub(crate) fn list_ahead(&mut self, env: &Env<'_>, behind: Behind) {
        let Behind {
            directory,
            cookie,
            size,
            is_end,
        } = behind;
        let is_wanted = self.is_looked_at(env, directory);
        let Some(epoch) = self.settled_epoch(directory).filter(|_| is_wanted) else {
            return;
        };
        let is_it = |a: &Ahead| (a.directory, a.cookie, a.size) == (directory, cookie, size);
        if let Some(at) = self.aheads.iter().position(is_it) {
            if self.aheads[at].epoch == epoch {
                return;
            }
            self.aheads.remove(at);
        }
        if self.aheads.len() >= AHEAD_MAX
            && let Some(oldest) = self.aheads.pop_front()
            && !oldest.is_ready
        {
            self.retry(env, oldest.directory);
        }
        let id = self.draw_id();
        self.aheads.push_back(Ahead {
            directory,
            cookie,
            size,
            epoch,
            id,
            names: is_end.then(Names::default),
            is_ready: is_end,
        });
        if !is_end {
            let op = Op::ReadDir {
                ino: directory,
                cookie,
                size,
                plus: true,
            };
            let ask = Ask::Op { op, durable: false };
            let then = Continuation::Ahead(directory, id);
            self.call(directory.shard(), ask, then);
        }
    }

    /// The owner has answered.
    pub(crate) fn on_ahead(
        &mut self,
        env: &Env<'_>,
        directory: InodeId,
        id: u64,
        mut answer: Answer,
    ) {
        self.take_directory_grant(env, directory, &mut answer.grants);
        let Body::Op(meta::Reply::Listing { entries, .. }) = answer.body else {
            // Whoever wants it asks itself, and hears why.
            self.aheads.retain(|ahead| ahead.id != id);
            return self.retry(env, directory);
        };
        let mut names = Names::default();
        let left = Left::all(&entries, answer.grants);
        for (at, entry) in entries.iter().enumerate() {
            names.with_attr.extend(entry.attr.is_some().then_some(at));
            names.listed.push(listed(entry));
        }
        if let Some(ahead) = self.aheads.iter_mut().find(|ahead| ahead.id == id) {
            ahead.names = Some(names);
        }
        self.on_tour(env, Box::new(Tour::ahead(left, directory, id)));
    }

    /// The attributes have been taken.
    pub(crate) fn on_ahead_known(&mut self, env: &Env<'_>, directory: InodeId, id: u64) {
        if let Some(ahead) = self.aheads.iter_mut().find(|ahead| ahead.id == id) {
            ahead.is_ready = true;
        }
        self.retry(env, directory);
    }
}

/// An entry for the kernel, without attributes.
pub(crate) fn listed(entry: &meta::message::Listed) -> Listed {
    Listed {
        name: SmallBytes::new(entry.name.bytes()),
        ino: entry.ino,
        mode: FileKind::mode_bits(entry.kind),
        cookie: entry.cookie,
        entry: None,
    }
}

//! Listings that are asked for before they are wanted.
//!
//! Who lists a directory works on the names it has got while the owner could look for the next ones. So when entries have been shown, those
//! behind them are asked for, and their attributes and tokens, if they are to be shown, are taken at once; what is kept for the next
//! question is their names.
//!
//! ```text
//! shown --> under way --> ready --> shown with attributes as they are known then
//!               '--> whoever asks meanwhile waits
//! ```
//!
//! Invariants
//! - Names are shown only if the directory's token was held, and no name of it has changed as far as this node sees, from when they were asked for
//!   until they are wanted: the owner would answer them now.
//! - At most `AHEAD_MAX` listings are kept or under way in a slice, and none is kept for longer than `PATIENCE`; where there are so many, none is asked for.
//! - Tokens are taken when they come, whether or not the names are wanted: a revoke never waits for a reader.

use types::{Duration, FileKind, InodeId, Instant, SmallBytes};

use crate::env::Env;
use crate::listing::{Left, Tour, listing_op, owner_part};
use crate::message::{Answer, Ask, Body};
use crate::names::Continuation;
use crate::request::Listed;
use crate::siblings::{FIRST_LOADED, Member, Order};
use crate::slice::{Effect, Slice};

/// Readers of a slice's directories for whom names are kept.
const AHEAD_MAX: usize = 4;
/// Of these, directories that nobody has opened.
const GUESSES_MAX: usize = 2;
/// Who has not come back by then reads no more, or slowly.
const PATIENCE: Duration = Duration::from_millis(1000);

/// Entries of a directory.
#[derive(Debug)]
pub(crate) struct Names {
    entries: Vec<Brief>,
    /// Of the directory.
    parent: InodeId,
    /// Nothing lies behind them.
    is_end: bool,
}

/// An entry without attributes, in a third of what a [`Listed`] takes.
#[derive(Debug)]
struct Brief {
    name: SmallBytes,
    ino: InodeId,
    cookie: u64,
    mode: u32,
    /// The owner told its attributes.
    has_attr: bool,
}

impl Names {
    /// The directory's parent, as the owner told it.
    pub(crate) const fn parent(&self) -> InodeId {
        self.parent
    }

    /// Files that will be read in this order, the first ones, if they are known.
    fn first_files(&self, order: Order) -> Vec<InodeId> {
        if !self.is_end && order != Order::Listed {
            return Vec::new();
        }
        let mode = FileKind::File.mode_bits();
        let files = (0..).zip(&self.entries).filter(|(_, e)| e.mode == mode);
        let files = files.map(|(at, entry)| Member {
            ino: entry.ino,
            at,
            name: entry.name.clone(),
        });
        let mut files: Vec<_> = files.collect();
        files.sort_unstable_by(|a, b| order.compare(a, b));
        let first = files.iter().take(FIRST_LOADED).map(|file| file.ino);
        first.collect()
    }

    /// For the kernel, those of which the owner told attributes, and whether nothing lies behind them.
    pub(crate) fn into_parts(self) -> (Vec<Listed>, Vec<usize>, bool) {
        let at = self.entries.iter().enumerate();
        let with_attr = at.filter(|(_, e)| e.has_attr).map(|(at, _)| at).collect();
        let listed = self.entries.into_iter().map(|entry| Listed {
            name: entry.name,
            ino: entry.ino,
            mode: entry.mode,
            cookie: entry.cookie,
            entry: None,
        });
        (listed.collect(), with_attr, self.is_end)
    }
}

/// A listing that is under way or kept.
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
    asked_at: Instant,
    /// As the owner has answered.
    names: Option<Names>,
    /// The attributes are known, too.
    pub(crate) is_ready: bool,
    /// Nobody has opened the directory yet; in this order its files will be read.
    order: Option<Order>,
}

impl Ahead {
    /// Nobody has come for it, and perhaps nobody will.
    const fn is_idle_guess(&self) -> bool {
        self.is_ready && self.order.is_some()
    }
}

/// A directory that will be opened and listed soon.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Coming {
    /// Which.
    pub ino: InodeId,
    /// Of the requests that it will be listed with, in bytes.
    pub size: u32,
    /// In which order its files will be read.
    pub order: Order,
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
    pub(crate) end: Option<End>,
    /// Of the directory.
    pub(crate) parent: InodeId,
}

/// The owner said that nothing lies behind an entry; the epoch of the directory's names when it was asked, `None` where another node might change them unseen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct End(pub(crate) Option<u64>);

/// What there is for a request.
pub(crate) enum Found {
    Nothing,
    /// It will be known soon: the directory's requests are run again then.
    UnderWay,
    /// And the epoch of which they are.
    Names(Names, u64),
}

impl Slice {
    /// The epoch of the directory's names; `None`: another node may change them unseen.
    pub(crate) fn settled_epoch(&self, directory: InodeId) -> Option<u64> {
        let inode = self.inodes.get(&directory)?;
        let is_settled = inode.may_keep_names() && !self.is_lapsed;
        is_settled.then_some(inode.names_epoch)
    }

    /// Where the entries behind `cookie` are kept, for a request of this size.
    fn position_ahead(&self, directory: InodeId, cookie: u64, size: u32) -> Option<usize> {
        let is_it = |a: &Ahead| (a.directory, a.cookie, a.size) == (directory, cookie, size);
        self.aheads.iter().position(is_it)
    }

    /// An answer is written when all that follows from its request is done: nothing is asked for ahead, which would hold up the answer before it.
    pub fn expect_late_answers(&mut self) {
        self.has_late_answers = true;
    }

    /// Names that were listed ahead are shown although they have changed: for simulators that must notice it.
    pub const fn show_old_names(&mut self) {
        self.shows_old_names = true;
    }

    /// What is known of the entries behind `cookie`, for a request of this size.
    pub(crate) fn find_ahead(&mut self, directory: InodeId, cookie: u64, size: u32) -> Found {
        let Some(at) = self.position_ahead(directory, cookie, size) else {
            return Found::Nothing;
        };
        let (epoch, is_ready) = (self.aheads[at].epoch, self.aheads[at].is_ready);
        let is_current = Some(epoch) == self.settled_epoch(directory) || self.shows_old_names;
        if is_current && !is_ready {
            return Found::UnderWay;
        }
        let ahead = self.aheads.remove(at);
        let is_guess = ahead.as_ref().is_some_and(|ahead| ahead.order.is_some());
        match ahead.and_then(|ahead| ahead.names) {
            Some(names) if is_current => {
                self.shown_directory_count += u64::from(is_guess);
                Found::Names(names, epoch)
            }
            _ => Found::Nothing,
        }
    }

    /// Entries have been shown: asks for those behind them.
    pub(crate) fn list_ahead(&mut self, env: &Env<'_>, behind: Behind) {
        let Behind {
            directory,
            cookie,
            size,
            end,
            parent,
        } = behind;
        let Some(epoch) = self.settled_epoch(directory) else {
            return;
        };
        let of = (directory, cookie, size);
        if self.is_asked_ahead(of, epoch) {
            return;
        }
        // A create since the owner said so may have put a name behind it.
        let is_known = match end {
            Some(end) => end == End(Some(epoch)),
            None => !self.has_late_answers,
        };
        if !is_known || !self.has_room_ahead() {
            return;
        }
        if end.is_none() {
            let is_looked_at = self.is_looked_at(env, directory);
            return self.ask_ahead(env, of, (epoch, is_looked_at), None);
        }
        let nothing = Names {
            entries: Vec::new(),
            parent,
            is_end: true,
        };
        self.keep_ahead(env, of, epoch, (Some(nothing), None));
    }

    /// The same entries are under way or kept, as they are now.
    fn is_asked_ahead(
        &mut self,
        (directory, cookie, size): (InodeId, u64, u32),
        epoch: u64,
    ) -> bool {
        let Some(at) = self.position_ahead(directory, cookie, size) else {
            return false;
        };
        let is_current = self.aheads[at].epoch == epoch;
        if !is_current {
            self.aheads.remove(at);
        }
        is_current
    }

    /// Keeps a place for entries, or what is known of them; its number.
    fn keep_ahead(
        &mut self,
        env: &Env<'_>,
        (directory, cookie, size): (InodeId, u64, u32),
        epoch: u64,
        (names, order): (Option<Names>, Option<Order>),
    ) -> u64 {
        let id = self.draw_id();
        self.aheads.push_back(Ahead {
            directory,
            cookie,
            size,
            epoch,
            id,
            asked_at: env.now,
            is_ready: names.is_some(),
            names,
            order,
        });
        id
    }

    /// Asks the owner for the entries behind a cookie.
    fn ask_ahead(
        &mut self,
        env: &Env<'_>,
        (directory, cookie, size): (InodeId, u64, u32),
        (epoch, is_looked_at): (u64, bool),
        order: Option<Order>,
    ) {
        let id = self.keep_ahead(env, (directory, cookie, size), epoch, (None, order));
        let op = listing_op((directory, cookie), size, true, is_looked_at);
        let ask = Ask::Op { op, durable: false };
        let then = Continuation::Ahead(directory, id);
        self.call(directory.shard(), ask, then);
    }

    /// A directory whose token is here will be opened: asks for its first entries.
    pub(crate) fn list_first(&mut self, env: &Env<'_>, coming: Coming) {
        let Coming { ino, size, order } = coming;
        let (cookie, size) = owner_part(0, size, true);
        let Some(epoch) = self.settled_epoch(ino) else {
            return;
        };
        // Its reader was quicker.
        if self.inodes.get(&ino).is_none_or(|i| i.open_count > 0) {
            return;
        }
        let of = (ino, cookie, size);
        if self.is_asked_ahead(of, epoch) {
            return;
        }
        if self.guess_count() >= GUESSES_MAX {
            let at = self.aheads.iter().position(Ahead::is_idle_guess);
            at.and_then(|at| self.aheads.remove(at));
        }
        if self.guess_count() < GUESSES_MAX && self.has_room_ahead() {
            self.listed_directory_count += 1;
            let is_looked_at = !self.has_shown_all(env, ino);
            self.ask_ahead(env, of, (epoch, is_looked_at), Some(order));
        }
    }

    /// Directories that are listed and that nobody has opened.
    pub(crate) fn guess_count(&self) -> usize {
        let guesses = self.aheads.iter().filter(|ahead| ahead.order.is_some());
        guesses.count()
    }

    /// One more may be kept: each reader's goes with the next of the same, and all of them after a while.
    fn has_room_ahead(&mut self) -> bool {
        if self.aheads.len() < AHEAD_MAX {
            return true;
        }
        let is_current = |ahead: &Ahead| Some(ahead.epoch) == self.settled_epoch(ahead.directory);
        let mut all = self.aheads.iter();
        let old = all.position(|a| a.is_ready && !is_current(a));
        let at = old.or_else(|| self.aheads.iter().position(Ahead::is_idle_guess));
        at.and_then(|at| self.aheads.remove(at)).is_some()
    }

    /// Forgets names that nobody has come back for.
    pub(crate) fn forget_aheads(&mut self, env: &Env<'_>) {
        self.aheads
            .retain(|ahead| !ahead.is_ready || env.now.since(ahead.asked_at) < PATIENCE);
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
        let Body::Op(meta::Reply::Listing {
            entries,
            parent,
            is_end,
        }) = answer.body
        else {
            // Whoever wants it asks itself, and hears why.
            self.aheads.retain(|ahead| ahead.id != id);
            return self.retry(env, directory);
        };
        let left = Left::all(&entries, answer.grants);
        let brief = |entry: &meta::message::Listed| Brief {
            name: SmallBytes::new(entry.name.bytes()),
            ino: entry.ino,
            mode: entry.kind.mode_bits(),
            cookie: entry.cookie,
            has_attr: entry.attr.is_some(),
        };
        let names = Names {
            entries: entries.iter().map(brief).collect(),
            parent,
            is_end,
        };
        if let Some(ahead) = self.aheads.iter_mut().find(|ahead| ahead.id == id) {
            ahead.names = Some(names);
        }
        self.on_tour(env, Box::new(Tour::ahead(left, directory, id)));
    }

    /// The attributes have been taken.
    pub(crate) fn on_ahead_known(&mut self, env: &Env<'_>, directory: InodeId, id: u64) {
        if let Some(ahead) = self.aheads.iter_mut().find(|ahead| ahead.id == id) {
            ahead.is_ready = true;
            // Some may have gone meanwhile: each is looked at before it is loaded.
            let files = match (ahead.order, &ahead.names) {
                (Some(order), Some(names)) => names.first_files(order),
                _ => Vec::new(),
            };
            if !files.is_empty() {
                self.out.push(Effect::LoadFiles(files));
            }
        }
        self.retry(env, directory);
    }
}

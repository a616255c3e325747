//! Directories of a tree that somebody reads through, listed before they are opened.
//!
//! Whoever reads a tree goes into the first directory of a directory, and from one that has none to the next beside it, or beside
//! the one that it is in. What comes first is a matter of the reader: who keeps what is left on a stack takes the last one first. So when a
//! directory has been listed by a process whose files are read (`siblings`), the next one is listed, too, and its first files are loaded,
//! while those of this one are being read.
//!
//! ```text
//! listed to its end --has directories--> the first of them --.
//!   '--has none--> told its parent: the next one beside it --+--> listed ahead --> its first files are loaded
//!                    '--none is left--> told its parent -----'
//! ```
//!
//! Invariants
//! - What is listed ahead is shown by the rules of `ahead`: its directory's token was held all the time and no name has changed, so the owner would
//!   answer the same now.
//! - The token of a directory is asked for only if it is free: no node gives anything back for it. Where it was not, a slice asks for none for a while. (Another node that takes
//!   it while the entries are read from a disk gives it back for that listing, as for any.)
//! - Nothing is listed for who has not read, in the directories that it listed last, and gone from one to the one beside it; nor after a guess that was wrong, until it
//!   does so again. What is open already is not listed.
//! - One directory is ahead of a reader. `WALKS_MAX` directories that have some, with `CHILDREN_MAX` in all and at most half of them in one, are remembered in a slice, the latest, none for
//!   longer than `PATIENCE`; nobody looks further up than `CLIMB_MAX` parents, nor through all of a directory's more than `SEARCHES_MAX` times in vain.
//!
//! What this deliberately does not do: readers that go through a tree level by level (the first directory of each is listed for them, until the next
//! one that they list is another); a directory that is read while it is still being listed.

use types::{Duration, Errno, FileKind, InodeId, Instant, Want};

use crate::ahead::Coming;
use crate::env::Env;
use crate::request::{Listed, Operation, Request};
use crate::siblings::{Member, Order, REFUSED_PAUSE};
use crate::slice::{Effect, Input, Slice};
use crate::tokens::Asker;

/// Directories of a slice that have some, and whose reader may come back to them.
const WALKS_MAX: usize = 16;
/// Directories in them that are remembered: 1 MB with short names.
const CHILDREN_MAX: usize = 16 << 10;
/// Who has not gone to another directory by then reads no more, or slowly.
const PATIENCE: Duration = Duration::from_millis(10_000);
/// Searches for a directory that was not beside the one before.
const SEARCHES_MAX: u8 = 8;
/// Parents that are asked for the next directory.
const CLIMB_MAX: u8 = 64;

/// In which direction a reader goes through the directories in a directory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Course {
    /// In the order of its files.
    Forward = 1,
    /// The last one first.
    Backward = 2,
}

/// A directory that has some, as a process has listed it.
#[derive(Debug)]
pub(crate) struct Walk {
    directory: InodeId,
    parent: InodeId,
    reader: u32,
    /// Of the requests that it is listed with.
    size: u32,
    children: Vec<Member>,
    /// In which they are; `None`: they were listed since.
    order: Option<Order>,
    /// There are more.
    is_cut: bool,
    /// Of the last entry that was listed.
    last_cookie: u64,
    /// The one that the reader has come to last.
    at: Option<usize>,
    /// Searches since the reader last was where it was looked for.
    search_count: u8,
    /// It was listed, or one of its directories was.
    since: Instant,
}

/// A reader is done with a directory, as far as going on is concerned.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Turn {
    /// Where the next one is looked for.
    pub(crate) directory: InodeId,
    reader: u32,
    /// Beside this one; `None`: the first one.
    beside: Option<InodeId>,
    /// So many parents were asked.
    climbed: u8,
    /// No other directory had been expected to be listed. (Who has just shown that he does not go that way shows it once more before he is believed again.)
    was_expected: bool,
}

impl Walk {
    fn find(&mut self, ino: InodeId) -> Option<usize> {
        let is_it = |at: &usize| self.children[*at].ino == ino;
        // As a rule it is beside the one before.
        let near = self.at.map_or(0, |at| at.saturating_sub(1));
        let near = near..self.children.len().min(near + 3);
        if let Some(at) = near.clone().find(is_it) {
            self.search_count = 0;
            return Some(at);
        }
        if self.search_count >= SEARCHES_MAX {
            return None;
        }
        self.search_count += 1;
        (0..self.children.len()).find(is_it)
    }

    /// The reader has come to the child `ino`: which one that is, and what that says of where it goes, if anything.
    fn come_to(&mut self, ino: InodeId) -> (Option<usize>, Option<Course>) {
        let at = self.find(ino);
        let before = std::mem::replace(&mut self.at, at);
        let course = match (before, at) {
            (Some(before), Some(at)) if before + 1 == at => Some(Course::Forward),
            (Some(before), Some(at)) if before == at + 1 => Some(Course::Backward),
            _ => None,
        };
        (at, course)
    }

    /// More were listed.
    fn extend<'a>(&mut self, entries: impl Iterator<Item = &'a Listed>) {
        for entry in entries {
            // The kernel may ask for some once more.
            if entry.cookie <= self.last_cookie {
                continue;
            }
            if self.children.len() >= CHILDREN_MAX / 2 {
                self.is_cut = true;
                return;
            }
            self.last_cookie = entry.cookie;
            self.order = None;
            self.children.push(Member {
                ino: entry.ino,
                name: entry.name.clone(),
                at: u32::try_from(self.children.len()).expect("they are few"),
            });
        }
    }

    /// Puts its directories into the order of the reader's files.
    fn sort(&mut self, order: Order) {
        if Some(order) == self.order {
            return;
        }
        let at = self.at.map(|at| self.children[at].ino);
        self.children.sort_unstable_by(|a, b| order.compare(a, b));
        self.order = Some(order);
        self.at = at.and_then(|ino| self.children.iter().position(|child| child.ino == ino));
    }

    fn next(&self, at: Option<usize>, course: Course) -> Option<InodeId> {
        let next = match (at, course) {
            (None, Course::Forward) => 0,
            (None, Course::Backward) => self.children.len().checked_sub(1)?,
            (Some(at), Course::Forward) => at + 1,
            (Some(at), Course::Backward) => at.checked_sub(1)?,
        };
        self.children.get(next).map(|child| child.ino)
    }
}

impl Slice {
    fn walk(&mut self, directory: InodeId, reader: u32) -> Option<&mut Walk> {
        let is_it = |walk: &Walk| (walk.directory, walk.reader) == (directory, reader);
        let at = self.walks.iter().position(is_it)?;
        let walk = self.walks.remove(at)?;
        self.walks.push_back(walk);
        self.walks.back_mut()
    }

    /// A listing is answered with these entries. Where it is at its end the reader goes on, once it has the answer.
    pub(crate) fn note_walk(
        &mut self,
        env: &Env<'_>,
        request: &Request,
        listed: &[Listed],
        (parent, is_end): (InodeId, bool),
    ) -> Option<Turn> {
        let Operation::ReadDir {
            ino,
            cookie,
            plus,
            size,
            ..
        } = request.operation
        else {
            return None;
        };
        let reader = request.caller.pid;
        // What is asked for ahead goes before an answer of which the transport says that it goes last.
        if !plus || self.has_late_answers || reader == 0 {
            return None;
        }
        let is_it = |walk: &Walk| (walk.directory, walk.reader) == (ino, reader);
        let was_expected = cookie != 0 || env.readers.was_expected(reader, ino);
        if cookie == 0 {
            self.walks.retain(|walk| !is_it(walk));
        }
        let mode = FileKind::Directory.mode_bits();
        let is_child = |entry: &&Listed| entry.mode == mode && entry.cookie > 2;
        let mut children = listed.iter().filter(is_child).peekable();
        if children.peek().is_some() && self.walk(ino, reader).is_none() {
            self.walks.push_back(Walk {
                directory: ino,
                parent,
                reader,
                size,
                children: Vec::new(),
                order: None,
                is_cut: false,
                last_cookie: 0,
                at: None,
                search_count: 0,
                since: env.now,
            });
        }
        let walk = self.walk(ino, reader);
        let has_children = walk.is_some();
        if let Some(walk) = walk {
            walk.since = env.now;
            walk.extend(children);
        }
        while self.walks.len() > WALKS_MAX || self.remembered_child_count() > CHILDREN_MAX {
            self.walks.pop_front();
        }
        // That nothing lies behind the last entry was told with it.
        let is_over = is_end && (cookie == 0 || !listed.is_empty());
        let beside = (!has_children).then_some(ino);
        is_over.then_some(Turn {
            directory: if has_children { ino } else { parent },
            reader,
            beside,
            climbed: 0,
            was_expected,
        })
    }

    fn remembered_child_count(&self) -> usize {
        self.walks.iter().map(|walk| walk.children.len()).sum()
    }

    /// A reader goes on: the directory that it will come to is to be listed.
    pub(crate) fn turn(&mut self, env: &Env<'_>, turn: Turn) {
        let Turn {
            directory,
            reader,
            beside,
            climbed,
            was_expected,
        } = turn;
        let Some(walk) = self.walk(directory, reader) else {
            return;
        };
        walk.since = env.now;
        if let Some((order, _)) = env.readers.way(reader) {
            walk.sort(order);
        }
        let at = match beside {
            None => None,
            Some(ino) => {
                let (at, course) = walk.come_to(ino);
                if course.is_some() && was_expected {
                    env.readers.note_course(reader, course);
                }
                if at.is_none() {
                    return;
                }
                at
            }
        };
        let Some((order, Some(course))) = env.readers.way(reader) else {
            return;
        };
        if let Some(ino) = walk.next(at, course) {
            let size = walk.size;
            env.readers.note_guess(reader, ino);
            self.out.push(Effect::ListSoon(Coming { ino, size, order }));
            return;
        }
        let parent = walk.parent;
        if parent != directory && !walk.is_cut && climbed < CLIMB_MAX {
            let turn = Turn {
                directory: parent,
                reader,
                beside: Some(directory),
                climbed: climbed + 1,
                was_expected,
            };
            self.out.push(Effect::ForSlice(parent, Input::Turn(turn)));
        }
    }

    /// A directory will be opened soon: lists it.
    pub(crate) fn list_coming(&mut self, env: &Env<'_>, coming: Coming) {
        if self.is_lapsed {
            return;
        }
        // Of a directory of another shard its listing told the name alone.
        if let Some(directory) = self.inodes.get(&coming.ino) {
            if directory.may_keep_names() {
                return self.list_first(env, coming);
            }
            if directory.open_count > 0 {
                return;
            }
            let is_file = directory
                .attr
                .is_some_and(|a| a.kind != FileKind::Directory);
            if is_file || directory.is_revoking() || directory.is_contended {
                return;
            }
        }
        if env.now < self.next_list_ask {
            return;
        }
        let want = Want::Directory {
            mode: types::token::DirectoryMode::Read,
        };
        self.acquire_for(coming.ino, vec![want], Asker::Listing(coming));
    }

    /// An owner has answered whether the token for it is free.
    pub(crate) fn on_coming_asked(
        &mut self,
        env: &Env<'_>,
        coming: Coming,
        refusal: Option<Errno>,
    ) {
        match refusal {
            None => self.list_first(env, coming),
            // Others use it, and may use those beside it.
            Some(Errno::EAGAIN | Errno::EBUSY) => self.next_list_ask = env.now + REFUSED_PAUSE,
            // It is gone, or its owner is.
            Some(_) => {}
        }
    }

    /// Directories that are remembered with their readers, and what is in them.
    #[cfg(test)]
    pub(crate) fn walk_counts(&self) -> (usize, usize) {
        (self.walks.len(), self.remembered_child_count())
    }

    /// Forgets directories that nobody has come back to.
    pub(crate) fn forget_walks(&mut self, env: &Env<'_>) {
        self.walks
            .retain(|walk| env.now.since(walk.since) < PATIENCE);
    }
}

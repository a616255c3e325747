//! Commits: what was stored, pieces, sizes and times become the owner's knowledge, one at a time for each inode.

use meta::{Commit, Op};
use types::{ByteRange, Errno, Extent, InodeId, RangeSet, Timestamp};

use crate::batch::{Batch, BatchState, numbers_in};
use crate::claims::Front;
use crate::destage::HASTY_PAGES_MANY;
use crate::env::Env;
use crate::message::{Answer, Ask, Body};
use crate::names::Continuation;
use crate::pages::{PAGE_SIZE, parts_of};
use crate::slice::{Effect, Input, IoFailure, IoId, Slice, Undurable};

/// Extents, pieces and bytes of pieces in one Commit: far below what an owner takes.
const COMMIT_EXTENTS_MAX: usize = 1024;
const COMMIT_PIECES_MAX: usize = 1024;
const COMMIT_PIECE_BYTES_MAX: usize = 256 << 10;

/// What a running Commit carries beside its batches.
#[derive(Debug)]
pub(crate) struct RunningCommit {
    pub(crate) commit: Commit,
    pub(crate) modified: Option<Timestamp>,
    /// The file ends behind what it tells.
    pub(crate) is_partial: bool,
    /// It brings a rewrite, and nothing else.
    pub(crate) is_rewrite: bool,
}

impl Slice {
    pub(crate) fn start_commit(&mut self, env: &Env<'_>, ino: InodeId, front: Front) {
        let inode = self.inodes.get_mut(&ino).expect("the caller has it");
        let Some(attr) = inode.attr else { return };
        let mut extents = Vec::new();
        let mut pieces = Vec::new();
        let mut piece_bytes = 0;
        let mut stores = Vec::new();
        // Pieces of others may be refused for want of room: what is promised goes by itself, with the size it needs.
        let may_go = |is_promised| {
            let mut batches = inode.batches.iter();
            batches.any(|b| b.is_promised == is_promised && front.admits(b))
        };
        let (has_promised, has_others) = (may_go(true), may_go(false));
        let is_promised = inode.promise.take_turn(has_promised, has_others);
        let may_be_refused = !is_promised && inode.batches.iter().any(Batch::has_pieces);
        let mut carried = 0;
        let grows = inode.is_size_dirty;
        if grows {
            inode.sort_batches();
        }
        for batch in &mut inode.batches {
            if batch.is_promised != is_promised || !front.admits(batch) {
                continue;
            }
            let BatchState::Stored(stored) = &mut batch.state else {
                unreachable!("what is admitted is stored");
            };
            let bytes: usize = batch.pieces.iter().map(|p| p.bytes.len()).sum();
            let is_first = extents.is_empty() && pieces.is_empty();
            let fits = extents.len() + stored.len() <= COMMIT_EXTENTS_MAX
                && pieces.len() + batch.pieces.len() <= COMMIT_PIECES_MAX
                && piece_bytes + bytes <= COMMIT_PIECE_BYTES_MAX;
            if !is_first && !fits {
                if grows {
                    break;
                }
                continue;
            }
            piece_bytes += bytes;
            pieces.append(&mut batch.pieces);
            if !stored.is_empty() && !batch.is_flushed {
                stores.push(batch.io);
            }
            let kept = match may_be_refused {
                true => stored.clone(),
                false => Vec::new(),
            };
            extents.append(stored);
            carried = carried.max(batch.span.end);
            batch.state = BatchState::Committing(kept);
        }
        extents.sort_by_key(|e: &Extent| e.file_sector);
        let size = inode.size_to_tell(carried);
        let is_partial = inode.is_size_dirty && size != Some(inode.size);
        let commit = Commit {
            ino,
            generation: attr.generation,
            size_generation: attr.size_generation,
            size,
            modified: inode.modified,
            kill_set_id: inode.kill_set_id,
            drops_rights: inode.drops_rights,
            extents,
            pieces,
        };
        let running = RunningCommit {
            commit,
            modified: inode.modified,
            is_partial,
            is_rewrite: false,
        };
        self.run_commit(env, ino, running, stores);
    }

    /// Sends a Commit when these stores cannot be forgotten by their disks. The caller sees to it that no other one is under way.
    pub(crate) fn run_commit(
        &mut self,
        env: &Env<'_>,
        ino: InodeId,
        running: RunningCommit,
        stores: Vec<IoId>,
    ) {
        let inode = self.inodes.get_mut(&ino).expect("the caller has it");
        assert!(!inode.is_committing, "one Commit of an inode at a time");
        inode.is_committing = true;
        inode.commit = Some(Box::new(running));
        if env.has_volatile_nsd && !stores.is_empty() {
            let io = IoId(self.draw_id());
            self.ios.insert(io, ino);
            self.out.push(Effect::Flush(io, stores));
        } else {
            self.send_commit(ino);
        }
    }

    fn send_commit(&mut self, ino: InodeId) {
        let inode = self.inodes.get_mut(&ino).expect("it is committing");
        let running = inode.commit.as_mut().expect("it is committing");
        // The pages stay cached until the answer: the Commit's own copy is not needed for a repeat, which
        // the driver does with the encoded question.
        let commit = running.commit.clone();
        let ask = Ask::Op {
            op: Op::Commit(commit),
            durable: false,
        };
        self.call(ino.shard(), ask, Continuation::Commit(ino));
    }

    /// The NSDs of a commit's stores are flushed, or lost what was written.
    pub(crate) fn on_nsds_flushed(
        &mut self,
        env: &Env<'_>,
        io: IoId,
        result: Result<(), Undurable>,
    ) {
        let Some(ino) = self.ios.remove(&io) else {
            return;
        };
        let Some(inode) = self.inodes.get_mut(&ino) else {
            return;
        };
        match result {
            Ok(()) => {
                let durable = numbers_in(&inode.batches, |batch| {
                    matches!(batch.state, BatchState::Committing(_))
                });
                inode.note_stored(&durable);
                self.send_commit(ino);
            }
            // Written again, elsewhere: a server restarted between write and flush, or a disk does not flush.
            Err(failed) => {
                let is_refused = |(_, failure): &(_, IoFailure)| *failure == IoFailure::Unreachable;
                let worst = match failed.iter().any(is_refused) {
                    true => IoFailure::Unreachable,
                    false => IoFailure::Unknown,
                };
                let is_failed = |batch: &Batch| failed.iter().any(|(io, _)| *io == batch.io);
                let numbers = numbers_in(&inode.batches, is_failed);
                if inode.count_store_failure(env.now, worst, &numbers) {
                    // Others that this Commit has are on disks that are well.
                    let lost = failed.iter().filter(|(_, failure)| *failure == worst);
                    let lost: Vec<IoId> = lost.map(|(store, _)| *store).collect();
                    let is_lost = |batch: &mut Batch| lost.contains(&batch.io);
                    let batches: Vec<Batch> = inode.batches.extract_if(.., is_lost).collect();
                    let owner = env.owner(ino.shard());
                    for batch in &batches {
                        env.grants.discard(owner, &batch.runs);
                        inode.lose(env, owner, batch, &mut self.losses);
                    }
                }
                self.end_commit(env, ino, Err(None));
            }
        }
    }

    /// The owner has the Commit, or refused it.
    pub(crate) fn on_committed(&mut self, env: &Env<'_>, ino: InodeId, answer: Answer) {
        let result = match answer.body {
            Body::Op(meta::Reply::Attr(attr)) => Ok(attr),
            Body::Op(meta::Reply::Error(errno)) | Body::Refused(errno) => Err(Some(errno)),
            // The size was changed meanwhile: the bytes are still ours, and go under the new size. Another node may
            // have changed it while we held no more than the range: then nobody has told us before.
            Body::Op(meta::Reply::Resized(attr)) => {
                self.inode(ino).learn_attr(&attr);
                Err(None)
            }
            Body::Op(meta::Reply::Stale) => Err(Some(Errno::ESTALE)),
            _ => Err(Some(Errno::EPROTO)),
        };
        self.end_commit(env, ino, result);
    }

    /// `Err(None)`: write the pages again. `Err(Some(errno))`: they are lost; tell fsync and close.
    fn end_commit(
        &mut self,
        env: &Env<'_>,
        ino: InodeId,
        result: Result<types::Attr, Option<Errno>>,
    ) {
        let Some(inode) = self.inodes.get_mut(&ino) else {
            return;
        };
        let Some(running) = inode.commit.take() else {
            return;
        };
        inode.is_committing = false;
        inode.commit_count += 1;
        if running.is_rewrite {
            self.end_rewrite(env, ino, result);
            return self.go_on(env, ino);
        }
        let done: Vec<Batch> = inode
            .batches
            .extract_if(.., |b| matches!(b.state, BatchState::Committing(_)))
            .collect();
        if result == Err(Some(Errno::ENOSPC)) && inode.are_pieces_in(&running.commit, &done) {
            self.keep_refused(env, ino, done);
            self.tell_again(env, ino);
            return self.go_on(env, ino);
        }
        match result {
            Ok(attr) => {
                let mut changed = RangeSet::new();
                for batch in &done {
                    env.grants.committed(env.owner(ino.shard()), &batch.runs);
                    env.grants.unreserve(env.owner(ino.shard()), batch.aside);
                    inode.pages.on_flushed(&batch.numbers, true, false);
                    // Also what went as pieces.
                    inode.note_stored(&batch.numbers);
                    for run in parts_of(&batch.numbers, |a, b| a + 1 == b) {
                        let bytes = ByteRange::at(run[0] * PAGE_SIZE, run.len() as u64 * PAGE_SIZE);
                        changed.insert(bytes);
                    }
                }
                inode.forget_maps(&changed);
                self.hasty_count = inode.note_hasty(self.hasty_count, &done);
                inode.note_taken(&done);
                if running.modified == inode.modified {
                    inode.modified = None;
                }
                if running.commit.drops_rights {
                    inode.drops_rights = false;
                }
                if running.commit.kill_set_id == inode.kill_set_id {
                    inode.kill_set_id = None;
                }
                inode.learn_attr(&attr);
                if running.is_partial {
                    inode.await_next_commit();
                }
                // Also what is stored and waits for what is in front of it, or for the next Commit.
                let has_later = inode.pages.dirty_count() > 0
                    || !inode.hasty.is_empty()
                    || !inode.batches.is_empty()
                    || inode.is_size_dirty;
                if has_later {
                    inode.list_as_dirty(&mut self.dirty, env.now);
                }
            }
            Err(errno) => {
                let owner = env.owner(ino.shard());
                for batch in &done {
                    env.grants.discard(owner, &batch.runs);
                    match errno {
                        None => inode.write_again(env, batch),
                        Some(_) => {
                            env.grants.unreserve(owner, batch.aside);
                            inode.pages.on_flushed(&batch.numbers, false, true);
                        }
                    }
                }
                if let Some(errno) = errno {
                    inode.errors.note(errno);
                    inode.forget_idle();
                    inode.forget_refused(env.pool);
                    self.note_lost(env.now, ino, &done, errno);
                }
            }
        }
        match result {
            Ok(_) => self.note_committed(env, ino, &running.commit),
            Err(None) => self.tell_again(env, ino),
            Err(Some(_)) => {}
        }
        if !self.frameless.is_empty() {
            // Pages are clean by it.
            self.out.push(Effect::ForSlice(ino, Input::Shrink));
        }
        if self.hasty_count > HASTY_PAGES_MANY {
            self.destage(env, ino);
        }
        self.go_on(env, ino);
    }

    /// A Commit is to be made again. What it was to tell beside bytes goes with the next one, and so does who waits for it.
    fn tell_again(&mut self, env: &Env<'_>, ino: InodeId) {
        let inode = self.inodes.get_mut(&ino).expect("its Commit has ended");
        if !inode.is_changed() {
            return;
        }
        let commit_count = inode.commit_count;
        let waiting = inode.goals.iter_mut();
        let waiting = waiting.filter(|goal| goal.commit == commit_count);
        waiting.for_each(|goal| goal.commit += 1);
        inode.list_as_dirty(&mut self.dirty, env.now);
    }

    /// A Commit has ended: who waits for that goes on.
    fn go_on(&mut self, env: &Env<'_>, ino: InodeId) {
        self.pump(env, ino);
        self.retry(env, ino);
        self.rest(ino);
        self.drop_if_gone(env, ino);
    }
}

//! The copy of a block becomes the file's.

use meta::Commit;
use types::{Duration, Errno, InodeId};

use super::{Job, PATIENCE, State};
use crate::commit::RunningCommit;
use crate::env::Env;
use crate::slice::{Effect, IoId, Slice};

impl Slice {
    /// The copy is on disks: it becomes the file's, if the file still has its bytes.
    pub(super) fn commit_block(&mut self, env: &Env<'_>, job: Job) -> Option<Job> {
        let State::Stored(image, _) = &job.state else {
            unreachable!("only what is stored comes here");
        };
        let (ino, range) = (job.key.0, image.range);
        let Some((inode, attr)) = self.inodes.get(&ino).and_then(|i| Some((i, i.attr?))) else {
            return self.let_go(env, job);
        };
        if attr.nlink == 0 || !inode.has_to_itself(&range) || inode.is_leaving(&range) {
            return self.let_go(env, job);
        }
        let looks_again = self.rewriter.rules.is_none_or(|rules| rules.looks_again);
        let is_same = (!looks_again || image.is_what_is_there(&inode.pages))
            && attr.size_generation == image.size_generation
            && env.owner(ino.shard()) == job.owner;
        let is_over = env.now.since(job.since) > PATIENCE || env.pace.is_off();
        if is_over || !is_same || inode.is_revoking() {
            return self.put_off(env, job);
        }
        let is_awaited = inode.is_committing || inode.is_held_back() || !inode.goals.is_empty();
        if image.is_durable && is_awaited {
            return Some(job);
        }
        let State::Stored(mut image, extents) = job.state else {
            unreachable!("just seen");
        };
        if !image.is_durable {
            let flush = IoId(self.draw_id());
            self.out.push(Effect::Flush(flush, vec![image.io]));
            return Some(Job {
                since: env.now,
                state: State::Flushing {
                    image,
                    extents,
                    flush,
                },
                ..job
            });
        }
        image.release(env);
        let parts_after = extents.len() as u64;
        // Nothing else: not even other extents.
        let commit = Commit {
            ino,
            generation: attr.generation,
            size_generation: attr.size_generation,
            size: None,
            modified: None,
            kill_set_id: None,
            drops_rights: false,
            extents,
            pieces: Vec::new(),
        };
        let running = RunningCommit {
            commit,
            modified: None,
            is_partial: false,
            is_rewrite: true,
        };
        self.run_commit(env, ino, running, Vec::new());
        Some(Job {
            state: State::Committing { image, parts_after },
            ..job
        })
    }

    /// The Commit has ended; an error: `None` if the block may be tried again.
    pub(crate) fn end_rewrite(
        &mut self,
        env: &Env<'_>,
        ino: InodeId,
        result: Result<types::Attr, Option<Errno>>,
    ) {
        let is_it = |job: &mut Job| matches!(job.state, State::Committing { .. });
        let job = self.rewriter.job.take_if(is_it);
        let job = job.expect("its Commit was under way");
        self.rewriter.key = None;
        let State::Committing { image, parts_after } = job.state else {
            unreachable!("just seen");
        };
        assert_eq!(job.key.0, ino, "one rewrite at a time");
        let owner = job.owner;
        let inode = self
            .inodes
            .get_mut(&ino)
            .expect("kept while it is committing");
        // Also after an error: an owner that began anew may have executed what it refuses now.
        let mapped = image.mapped.ranges().iter();
        mapped.for_each(|part| inode.forget_map(part));
        match result {
            Ok(attr) => {
                env.grants.committed(owner, &image.runs);
                self.rewriter.failing_pause = Duration(0);
                let counts = &mut self.rewriter.counts;
                counts.blocks += 1;
                counts.left += u64::from(job.leaves.is_some());
                counts.parts_before += image.parts_before;
                for part in image.mapped.ranges() {
                    // They lie in sectors now; what was written since is not among them any more.
                    self.hasty_count -= inode.forget_hasty(part);
                    counts.bytes += part.length();
                }
                inode.learn_attr(&attr);
                counts.parts_after += parts_after;
            }
            Err(errno) => {
                env.grants.discard(owner, &image.runs);
                self.rewriter.counts.given_up += 1;
                match errno {
                    // It is gone: nothing of it lies anywhere.
                    Some(Errno::ESTALE) => {}
                    Some(_) => self.fail_rewrite(env, job.leaves),
                    None => self.rewriter.note(env.now, job.key, true),
                }
            }
        }
    }
}

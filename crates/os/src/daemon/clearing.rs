//! The thread that looks for the files in regions that are to become free, and has the client write them elsewhere.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use client::slice::Input;
use node::clearing::{Found, Search};
use node::store::tree::{Fetch, Pages, Unreadable};
use types::Run;

use super::work::Item;
use super::{Daemon, Error, lock};
use crate::clock;

/// Between two looks at whether anything is to be done.
const PAUSE: Duration = Duration::from_secs(1);
/// Bytes of pages of trees that a search keeps.
const CACHE_SIZE: usize = 1 << 20;

/// The thread's end.
#[derive(Debug, Default)]
pub(super) struct Clearing {
    is_ended: Mutex<bool>,
    wake: Condvar,
}

impl Clearing {
    fn is_ended(&self) -> bool {
        *lock(&self.is_ended)
    }

    /// Something may have to be done now.
    pub(super) fn call(&self) {
        self.wake.notify_all();
    }

    fn pause(&self) {
        let is_ended = lock(&self.is_ended);
        if !*is_ended {
            let waited = self.wake.wait_timeout(is_ended, PAUSE);
            drop(waited.unwrap_or_else(PoisonError::into_inner));
        }
    }
}

/// Ends the thread.
pub(super) struct Ended {
    daemon: Arc<Daemon>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Ended {
    fn drop(&mut self) {
        *lock(&self.daemon.clearing.is_ended) = true;
        self.daemon.clearing.wake.notify_all();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread that clears regions has panicked");
        }
    }
}

impl Daemon {
    /// Starts the thread.
    pub(super) fn start_clearing(self: &Arc<Self>) -> Result<Ended, Error> {
        let daemon = Arc::clone(self);
        let thread = std::thread::Builder::new()
            .name("clearing".to_owned())
            .spawn(move || daemon.clear_regions())
            .map_err(Error::Thread)?;
        Ok(Ended {
            daemon: Arc::clone(self),
            thread: Some(thread),
        })
    }

    fn clear_regions(self: &Arc<Self>) {
        while !self.clearing.is_ended() {
            let is_over = !self.is_clearing();
            let places = {
                let mut log = lock(&self.log);
                log.offer_clearing(self.may_clear());
                if is_over {
                    log.end_clearing();
                }
                match is_over {
                    true => log.plan_clearing(clock::now()),
                    false => Vec::new(),
                }
            };
            if !places.is_empty() {
                self.clear(&places.into());
            }
            self.clearing.pause();
        }
    }

    /// Files can leave regions.
    fn may_clear(&self) -> bool {
        // While an owner is away nothing is rewritten (`node::Hands`).
        let are_all_there = self.hands.with(|hands| hands.away().next().is_none());
        self.is_serving() && are_all_there && self.config.rewrite_rate > 0 && !self.pace.is_off()
    }

    /// From the beginning: who asks must not hear that nothing can be done.
    pub(super) fn offer_clearing(&self) {
        lock(&self.log).offer_clearing(self.config.rewrite_rate > 0);
    }

    /// Blocks of the last plan are still to be written.
    fn is_clearing(&self) -> bool {
        let mut slices = self.slices.iter();
        slices.any(|slice| lock(slice).gauges().leaving_count > 0)
    }

    fn clear(self: &Arc<Self>, places: &Arc<[Run]>) {
        let mut found = Found::default();
        for shard in 0..self.shards.len() {
            self.search(shard, places, &mut found);
            if self.clearing.is_ended() {
                return;
            }
        }
        if let Some((count, error)) = found.unread.take() {
            tracing::warn!(count, %error, "files that are to leave regions cannot be read");
        }
        let regions = places.len();
        let clear = found.by_slice(places);
        let files: usize = clear.iter().map(|(_, clear)| clear.files.len()).sum();
        tracing::info!(
            regions,
            files,
            "regions are wanted: what lies there is written elsewhere"
        );
        let inputs = clear.into_iter();
        let inputs = inputs.map(|(slice, clear)| (slice, Input::Clear(Box::new(clear))));
        self.run(
            inputs
                .map(|(slice, input)| Item::Client(slice, input))
                .collect(),
        );
    }

    fn search(&self, shard: usize, places: &Arc<[Run]>, found: &mut Found) {
        let Some(shard) = &self.shards[shard] else {
            return;
        };
        let mut search = Search::begin(&lock(shard), places);
        while search.look(&lock(shard), found) {}
        let of = (self.config.view.fs, self.keys.hash_key());
        let mut pages = Pages::new(CACHE_SIZE, 1);
        let next = |search: &mut Search| search.next(&lock(shard), &lock(&self.log));
        while !found.is_full() && !self.clearing.is_ended() {
            let Some(cold) = next(&mut search) else {
                return;
            };
            // A stop does not wait for a disk that takes long.
            let read = &mut |fetch: &Fetch| match self.clearing.is_ended() {
                true => Err(Unreadable),
                false => self.read_tree(fetch),
            };
            if !search.read(&cold, of, &mut pages, read, found) {
                return;
            }
        }
    }
}

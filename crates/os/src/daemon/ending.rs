//! The end of a daemon in good order: who asks for it, and what is lost by it.

use std::sync::Arc;
use std::time::Duration;

use super::{Daemon, Error, TICK, lock};
use crate::interrupt;

/// How long a daemon that ends waits for the last record of its journal.
const CLOSING_PATIENCE: Duration = Duration::from_secs(2);

impl Daemon {
    /// Nothing of this node is dirty, and the journal holds all that it will.
    pub(super) fn is_all_durable(&self) -> bool {
        // In this order: the end of the one is work for the other.
        if self.slices.iter().any(|slice| lock(slice).is_dirty()) {
            return false;
        }
        let journal = &lock(&self.log).journal;
        journal.durable_lsn() >= journal.last_lsn() || journal.is_poisoned()
    }

    /// Says in the journal that all of it is durable (`OwnerLog::close`), when it is. Where it has no room its last flush is not proven, and
    /// nothing else.
    pub(super) fn close_journal(self: &Arc<Self>) {
        let begin = std::time::Instant::now();
        let mut closing = None;
        while begin.elapsed() < CLOSING_PATIENCE {
            {
                let mut log = lock(&self.log);
                let journal = &log.journal;
                if journal.is_poisoned() {
                    return;
                }
                let is_durable = journal.durable_lsn() >= journal.last_lsn();
                match closing {
                    Some(last) if journal.durable_lsn() >= last => return,
                    None if is_durable => {
                        closing = log.close();
                        if closing.is_none() {
                            break;
                        }
                    }
                    _ => {}
                }
            }
            self.kick_journal();
            std::thread::sleep(TICK);
        }
        tracing::warn!(
            "the last flush of the journal is not proven by a later one: it was full, or its disk is slow"
        );
    }

    /// From now on signals that ask a process to end (of a terminal, a service manager, the machine going down) end this one in good order.
    /// They were held since its begin (`interrupt::hold`).
    pub(super) fn heed_signals(self: &Arc<Self>) -> Result<(), Error> {
        let daemon = Arc::downgrade(self);
        let wait = move || {
            let signal = interrupt::wait();
            tracing::info!(signal, "asked to end");
            if let Some(daemon) = daemon.upgrade() {
                daemon.stop.set();
            }
        };
        let thread = std::thread::Builder::new().name("signals".to_owned());
        thread.spawn(wait).map(drop).map_err(Error::Thread)
    }

    /// What is lost when this daemon ends now. `is_written`: all has been written back; `said`: `said_losses` when it began to end.
    pub(super) fn loss(&self, is_written: bool, said: u64) -> Option<Error> {
        self.tell_last_losses();
        if !(is_written || self.is_all_durable()) {
            return Some(self.lost());
        }
        // First what is worse: with it there is more that is lost than what was refused.
        let unlogged = {
            let journal = &lock(&self.log).journal;
            let changes = journal.last_lsn().0.saturating_sub(journal.durable_lsn().0);
            journal.is_poisoned().then_some(changes)
        };
        if let Some(changes) = unlogged.filter(|changes| *changes > 0) {
            let error = Error::Unlogged { changes };
            tracing::error!("{error}");
            return Some(error);
        }
        let pages = self.said_losses() - said;
        (pages > 0).then_some(Error::Refused { pages })
    }

    /// What is dirty is lost.
    fn lost(&self) -> Error {
        let (mut files, mut bytes) = (0, 0);
        for slice in &self.slices {
            let (count, size) = lock(slice).uncommitted();
            files += count;
            bytes += size;
        }
        let error = Error::Lost { files, bytes };
        tracing::error!("{error}");
        error
    }
}

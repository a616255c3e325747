//! Watches the progress of a demo in a lab: a hang becomes a message and an error.
//!
//! A process that waits for a FUSE answer cannot be interrupted once the daemon has taken the request, so only
//! the end of the connection frees it: the watcher prints who waits for what, then aborts the mounts.

use std::io::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use indicatif::ProgressBar;

use crate::control::{self, Answer};
use crate::inspect;
use crate::lab::Lab;
use crate::service;

/// So long may nothing at all move.
const HANG_LIMIT: Duration = Duration::from_secs(90);
/// How often it is looked at.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// What moves while a demo runs.
#[derive(Debug, Clone, Default)]
pub struct Progress {
    steps: Arc<AtomicU64>,
    bar: Arc<Mutex<Option<ProgressBar>>>,
}

impl Progress {
    /// A phase has ended.
    pub fn step(&self) {
        self.steps.fetch_add(1, Ordering::Relaxed);
    }

    /// `bar` shows the phase that runs now.
    pub fn show(&self, bar: &ProgressBar) {
        *self.bar.lock().expect("never poisoned") = Some(bar.clone());
    }

    fn mark(&self) -> (u64, u64) {
        let bar = self.bar.lock().expect("never poisoned");
        (
            self.steps.load(Ordering::Relaxed),
            bar.as_ref().map_or(0, ProgressBar::position),
        )
    }
}

/// A running watcher; ends when it is dropped.
#[derive(Debug)]
pub struct Watch {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    /// Watches `progress` of a demo on the nodes 1 and 2 of `lab`.
    pub fn start(lab: &Lab, progress: &Progress) -> Self {
        let (stop, stopped) = channel();
        let (lab, progress) = (lab.clone(), progress.clone());
        let thread = std::thread::spawn(move || {
            let (mut seen, mut since) = (progress.mark(), Instant::now());
            while stopped.recv_timeout(LOOK_INTERVAL) == Err(RecvTimeoutError::Timeout) {
                let now = progress.mark();
                if now != seen {
                    (seen, since) = (now, Instant::now());
                } else if since.elapsed() >= HANG_LIMIT {
                    end_hang(&lab);
                    return;
                }
            }
        });
        Self {
            stop: Some(stop),
            thread: Some(thread),
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Prints the waiters of both nodes and aborts their mounts, so that whoever hangs gets an error.
fn end_hang(lab: &Lab) {
    let mut error = std::io::stderr();
    let _ = writeln!(
        error,
        "nothing has moved for {} s; who waits for what:",
        HANG_LIMIT.as_secs()
    );
    for node in [1, 2] {
        let Ok(place) = lab.place(node) else { continue };
        let waiters = match control::ask(&place.control(), "waiters", Duration::from_secs(5)) {
            Ok(Answer::Said(waiters)) => inspect::to_text(&waiters),
            Ok(Answer::Absent) => "the daemon is gone\n".to_owned(),
            Ok(Answer::Silent) => "the daemon does not answer\n".to_owned(),
            Err(failure) => format!("{failure}\n"),
        };
        let _ = write!(error, "node n{node}:\n{waiters}");
    }
    for node in [1, 2] {
        if let Err(failure) = service::abort(&lab.mount(node)) {
            let _ = writeln!(error, "node n{node}: {failure}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_is_seen_in_bars_and_steps() {
        let progress = Progress::default();
        let begin = progress.mark();
        let bar = ProgressBar::hidden();
        progress.show(&bar);
        assert_eq!(progress.mark(), begin);
        bar.inc(3);
        assert_ne!(progress.mark(), begin);
        let moved = progress.mark();
        progress.step();
        assert_ne!(progress.mark(), moved);
    }

    #[test]
    fn a_watcher_ends_at_once_when_it_is_dropped() {
        let directory = tempfile::tempdir().expect("a directory");
        let lab = Lab::new(directory.path()).expect("a lab");
        drop(Watch::start(&lab, &Progress::default()));
    }
}

//! ioctl FS_IOC_SHUTDOWN: the mount of this node answers EIO from then on, and is good for nothing but to be unmounted.
//!
//! It ends what applications of this node can do, and nothing else: the node stays a member with its shards, tokens and
//! NSDs, and what was written before goes to its owners as ever. So it takes no more from other nodes than an unmount
//! does, and after the next mount there is at least what had been asked to be durable.
//!
//! ```text
//! serving --FS_IOC_SHUTDOWN--> [all written back] --> refusing --kernel's caches dropped--> [journal durable] --> answered
//!                              DEFAULT alone                                      not with NOLOGFLUSH
//! ```

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use client::request::{Caller, Operation, Response};
use client::slice::Input;
use types::{Errno, Lsn};

use super::standing::effective_capabilities;
use super::{Daemon, STOP_LEASES, TICK, lock};

/// How long the kernel may take to drop what it has cached.
const DROP_PATIENCE: Duration = Duration::from_secs(5);

/// Whether the mount has been shut down.
#[derive(Debug, Default)]
pub(super) struct ShutDown {
    /// Somebody has asked, first.
    is_asked: AtomicBool,
    /// Requests are refused.
    is_down: AtomicBool,
    /// It is over; whether all that was asked for was durable then.
    ended: OnceLock<bool>,
}

/// The capability to shut a mount down, as bit of the sets in /proc/PID/status.
const CAP_SYS_ADMIN: u64 = 1 << 21;

/// Whether the caller, who waits for the answer, has CAP_SYS_ADMIN here and not in a user namespace of its own. The kernel
/// does not say so of requests.
fn may_shut_down(caller: &Caller) -> bool {
    if caller.uid != 0 {
        return false;
    }
    let process = Path::new("/proc").join(caller.pid.to_string());
    let space = |process: &Path| std::fs::read_link(process.join("ns/user"));
    let effective = effective_capabilities(&process);
    let is_same_space = match (space(&process), space(Path::new("/proc/self"))) {
        (Ok(theirs), Ok(ours)) => theirs == ours,
        _ => false,
    };
    is_same_space && effective.is_some_and(|all| all & CAP_SYS_ADMIN != 0)
}

/// What is to be durable before (the numbers of XFS_IOC_GOINGDOWN, which all file systems have taken over).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum How {
    /// All that was written.
    Default,
    /// What the journal holds.
    LogFlush,
    /// Nothing.
    NoLogFlush,
}

impl How {
    /// What the 32 bits at `address` of the caller's memory say: for the kernel's FUSE the command has no argument.
    fn of(caller: &Caller, address: u64) -> Result<Self, Errno> {
        let mut bytes = [0; 4];
        let memory = File::open(format!("/proc/{}/mem", caller.pid));
        let read = memory.and_then(|memory| memory.read_exact_at(&mut bytes, address));
        if let Err(error) = read {
            tracing::debug!(%error, "how to shut down cannot be read from the caller");
            return Err(Errno::EFAULT);
        }
        #[allow(clippy::host_endian_bytes, reason = "memory of this machine")]
        match u32::from_ne_bytes(bytes) {
            0 => Ok(Self::Default),
            1 => Ok(Self::LogFlush),
            2 => Ok(Self::NoLogFlush),
            _ => Err(Errno::EINVAL),
        }
    }
}

/// What ends something that was begun before, or asks nothing of files.
fn is_served_always(operation: &Operation) -> bool {
    matches!(
        operation,
        Operation::Forget { .. }
            | Operation::Flush { .. }
            | Operation::ClearLock { .. }
            | Operation::Release { .. }
            | Operation::ReleaseDir { .. }
            | Operation::StatFs
    )
}

impl Daemon {
    /// Whether the mount was shut down.
    pub(super) fn is_shut_down(&self) -> bool {
        self.shut_down.is_down.load(Ordering::Acquire)
    }

    /// Whether this operation is answered EIO because the mount was shut down.
    pub(super) fn is_refused(&self, operation: &Operation) -> bool {
        self.is_shut_down() && !is_served_always(operation)
    }

    /// The ioctl. For root with CAP_SYS_ADMIN alone.
    pub(super) fn on_shut_down(self: &Arc<Self>, asked: fuse::ShutDown) {
        let refuse = |errno| {
            self.replier().reply(asked.ticket, &Response::Error(errno));
        };
        if !may_shut_down(&asked.caller) {
            return refuse(Errno::EPERM);
        }
        match self.shut_down.ended.get() {
            Some(true) => return self.replier().reply_ioctl(asked.ticket),
            Some(false) => return refuse(Errno::EIO),
            None => {}
        }
        let daemon = Arc::clone(self);
        let thread = std::thread::Builder::new().name("shutdown".to_owned());
        let started = thread.spawn(move || {
            let outcome =
                How::of(&asked.caller, asked.address).and_then(|how| daemon.shut_down(how));
            match outcome {
                Ok(()) => daemon.replier().reply_ioctl(asked.ticket),
                Err(errno) => daemon
                    .replier()
                    .reply(asked.ticket, &Response::Error(errno)),
            }
        });
        if let Err(error) = started {
            tracing::error!(%error, "no thread to shut the mount down");
            refuse(Errno::EIO);
        }
    }

    /// Shuts the mount down. Fails with EBUSY where somebody else is at it; with EIO when not all that `how` asks for is
    /// durable in time, and the mount is down all the same.
    fn shut_down(self: &Arc<Self>, how: How) -> Result<(), Errno> {
        if self.shut_down.is_asked.swap(true, Ordering::AcqRel) {
            return Err(Errno::EBUSY);
        }
        tracing::warn!(
            ?how,
            "the mount is shut down: it answers EIO until it is mounted anew"
        );
        let mut is_well = true;
        if how == How::Default {
            // What mappings hold comes as the kernel drops it.
            is_well &= self.drop_all();
        }
        self.shut_down.is_down.store(true, Ordering::Release);
        is_well &= self.drop_all();
        let patience = Duration::from_nanos(STOP_LEASES * self.config.lease.0);
        let until = Instant::now() + patience;
        if how == How::Default {
            is_well &= self.wait_written(until);
        }
        if how != How::NoLogFlush {
            is_well &= self.wait_journaled(until);
        }
        if !is_well {
            tracing::error!("not all was durable when the mount was shut down");
        }
        let is_well = *self.shut_down.ended.get_or_init(|| is_well);
        is_well.then_some(()).ok_or(Errno::EIO)
    }

    /// Has the kernel drop all that it has cached, open files first, and write back what mappings have changed. False: not
    /// in time.
    fn drop_all(self: &Arc<Self>) -> bool {
        self.drop_names();
        let until = Instant::now() + DROP_PATIENCE;
        let outstanding = Arc::new(AtomicU64::new(0));
        let mut known = Vec::new();
        for slice in &self.slices {
            let slice = lock(slice);
            let all = slice.expired().1.into_iter();
            known.extend(all.map(|ino| (!slice.has_open(ino), ino)));
        }
        known.sort_unstable();
        for (_, ino) in known {
            if !self.drop_inode(ino, &outstanding, until) {
                return false;
            }
        }
        while outstanding.load(Ordering::Acquire) > 0 {
            if Instant::now() > until {
                return false;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        true
    }

    /// Waits until nothing of this node is dirty.
    fn wait_written(self: &Arc<Self>, until: Instant) -> bool {
        for slice in 0..self.slices.len() {
            self.input(slice, Input::WriteBack);
        }
        loop {
            let seen = self.ends.count();
            if !self.slices.iter().any(|slice| lock(slice).is_dirty()) {
                return true;
            }
            if Instant::now() > until || self.stop.is_set() {
                return false;
            }
            self.ends.wait(seen, TICK);
        }
    }

    /// Waits until the journal holds all that it was given before.
    fn wait_journaled(self: &Arc<Self>, until: Instant) -> bool {
        let last = lock(&self.log).journal.last_lsn();
        let durable = || -> (Lsn, bool) {
            let log = lock(&self.log);
            (log.journal.durable_lsn(), log.journal.is_poisoned())
        };
        loop {
            self.kick_journal();
            let seen = self.ends.count();
            match durable() {
                (_, true) => return false,
                (lsn, _) if lsn >= last => return true,
                _ => {}
            }
            if Instant::now() > until {
                return false;
            }
            self.ends.wait(seen, TICK);
        }
    }
}

//! What a daemon is told when it starts: plain values, read from the state directory by the command.

use std::net::SocketAddr;
use std::path::PathBuf;

use client::AccessTimes;
use types::{ClusterView, Incarnation, NodeId, NsdId};

/// How requests travel between the kernel and the daemon.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Transport {
    /// Reads and writes on /dev/fuse.
    Device,
    /// fuse-over-io_uring.
    Ring,
}

/// A disk that this node sees directly.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DiskConfig {
    /// The NSD whose label it must carry.
    pub nsd: NsdId,
    /// Block device or file.
    pub path: PathBuf,
    /// For tests: what was not flushed is lost with the daemon.
    pub is_volatile: bool,
}

/// Another node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PeerConfig {
    /// Its id.
    pub node: NodeId,
    /// Where its daemon listens.
    pub address: SocketAddr,
}

/// What a daemon needs to run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Config {
    /// This node.
    pub node: NodeId,
    /// This life; drawn by the command at each start.
    pub incarnation: Incarnation,
    /// The cluster as the state directory has it; on the manager node this is the truth.
    pub view: ClusterView,
    /// Key of the name hash, from the labels.
    pub hash_key: u128,
    /// Directories may be in parts, as the labels say.
    pub has_parts: bool,
    /// Where to mount.
    pub mount: PathBuf,
    /// How to mount: MS_* of mount(2).
    pub mount_flags: u64,
    /// A mount there that a dead daemon has left: this one takes its place, and what lies below is never seen.
    pub replaces: Option<crate::mountinfo::Mount>,
    /// What the kernel shows as the source of the mount.
    pub source: String,
    /// Named network name space to enter before anything listens, if any.
    pub netns: Option<String>,
    /// Where to listen; `None` on a cluster of one.
    pub listen: Option<SocketAddr>,
    /// The other nodes.
    pub peers: Vec<PeerConfig>,
    /// Disks seen directly.
    pub disks: Vec<DiskConfig>,
    /// FUSE transport.
    pub transport: Transport,
    /// Threads that read FUSE requests (device transport).
    pub fuse_thread_count: usize,
    /// Event loop threads.
    pub loop_count: usize,
    /// Length of a node's lease; the same on all nodes.
    pub lease: types::Duration,
    /// Bytes of the pagepool.
    pub pagepool_size: u64,
    /// Files of so many bytes and more are read past the kernel's page cache.
    pub direct_size_min: u64,
    /// Of these, files up to so many bytes only until they have been read once: then the page cache holds them.
    pub again_size_max: u64,
    /// Inodes that are remembered while nobody uses them.
    pub inode_count_max: usize,
    /// Bytes of metadata of the shards that this node owns that it keeps in memory, roughly; 0: all of it.
    pub metadata_bytes_max: u64,
    /// Bytes a second at which blocks of many extents are rewritten while nobody reads or writes here; 0: none.
    pub rewrite_rate: u64,
    /// How often a new generation of marks is begun (`nsd::mark`).
    pub mark_interval: types::Duration,
    /// Asynchronous direct reads and writes go on beside one another; over the ring they never do.
    pub async_direct_io: bool,
    /// Operations that take this long are logged with what they waited for; 0: none.
    pub slow: types::Duration,
    /// Where metrics are served, if anywhere: an address of this machine alone.
    pub metrics: Option<SocketAddr>,
    /// The settings that this daemon runs with and where each comes from, as one line of JSON: told to who asks.
    pub settings: String,
    /// Unix socket for status, waiters, counters and stop.
    pub control_socket: PathBuf,
    /// Called with the new view whenever it changes on the manager node, to be kept durably
    /// (path of the built-in config store's file, written atomically by the daemon).
    pub view_path: Option<PathBuf>,
    /// File with the lives of this state directory, newest last: the proof that they are over, for the
    /// cluster manager. Written by the daemon.
    pub lives_path: PathBuf,
}

impl Config {
    /// Which reads change access times, and whether those of directories do: as mounted.
    pub(super) fn access_times(&self) -> (AccessTimes, bool) {
        let has = |flag: libc::c_ulong| self.mount_flags & flag != 0;
        let kept = if has(libc::MS_NOATIME) || has(libc::MS_RDONLY) {
            AccessTimes::Never
        } else if has(libc::MS_STRICTATIME) {
            AccessTimes::Strict
        } else {
            AccessTimes::Relative
        };
        (kept, !has(libc::MS_NODIRATIME))
    }
}

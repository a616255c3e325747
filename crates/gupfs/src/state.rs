//! The state directory of a node: its format, who may use it, where its files are.
//!
//! | file | what |
//! |---|---|
//! | `gupfs.toml` | the node's configuration ([`State`]); its presence says that the directory is complete |
//! | `cluster.view` | the built-in config store: `types::view_file` |
//! | `lock` | held (flock) by the daemon for its life, and by commands while they change the directory |
//! | `creating` | id of the file system that `gupfs up` or `gupfs fs create` is making: labels with it are nobody's |
//! | `lives` | incarnations of the daemon, newest last: tells the manager which are over |
//! | `pid`, `log`, `control.sock` | of the running daemon |
//! | `lost` | what a daemon that was stopped could not write back, for whoever stopped it |
//! | `fsck.progress` | how far `gupfs fsck --data` has come |
//! | `NAME.new` | what was to become one of these |
//! | `nsd/`, `ram/` | disks that `gupfs up` made: files, or a tmpfs with files |
//!
//! Invariants:
//! - `gupfs.toml` is written last when a directory is made, and replaced only as a whole.
//! - A directory of another format is refused before anything in it is touched.
//! - All files are 0600 in a 0700 directory, and no symbolic link is followed.

use std::ffi::OsStr;
use std::fs::{File, TryLockError};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use types::{ClusterView, view_file};

use crate::failure::{Failure, Result};
use crate::files;
use crate::system::process;

/// Format of state directories that this program makes and uses.
pub const FORMAT: u32 = 1;

/// Where the bytes of disks that `gupfs up` or `gupfs lab up` made lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Backing {
    /// Sparse files, opened directly.
    File,
    /// Loop devices over sparse files.
    Loop,
    /// Loop devices over files on a tmpfs: lost at reboot; what the bench uses.
    Ram,
    /// For tests: files of whose contents the daemon keeps in memory what was not flushed, so that its end is a loss of power.
    #[value(hide = true)]
    Volatile,
}

impl std::fmt::Display for Backing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let value = clap::ValueEnum::to_possible_value(self);
        f.write_str(
            value
                .as_ref()
                .map_or("", clap::builder::PossibleValue::get_name),
        )
    }
}

/// How requests travel between the kernel and the daemon.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Transport {
    /// Reads and writes on /dev/fuse.
    #[default]
    Device,
    /// fuse-over-io_uring.
    Ring,
}

/// A disk that this node sees directly.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Disk {
    /// Its NSD.
    pub nsd: u16,
    /// Block device or file.
    pub path: PathBuf,
    /// A file that is attached to a loop device before it is used.
    #[serde(default)]
    pub is_loop: bool,
    /// For tests: what was not flushed is lost with the daemon.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_volatile: bool,
}

/// Another node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Peer {
    /// Its id.
    pub node: u16,
    /// Where its daemon listens.
    pub address: SocketAddr,
}

/// `gupfs.toml`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct State {
    /// [`FORMAT`].
    pub format: u32,
    /// Cluster id, 32 hexadecimal digits.
    pub cluster: String,
    /// File system id, 32 hexadecimal digits.
    pub fs: String,
    /// This node.
    pub node: u16,
    /// The node that keeps the built-in config store and is cluster manager.
    pub manager: u16,
    /// Where to mount.
    pub mount: PathBuf,
    /// Where to listen, if there are other nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub listen: Option<SocketAddr>,
    /// Network name space to enter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub netns: Option<String>,
    /// Where disks made by us lie; `None` when the disks were given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backing: Option<Backing>,
    /// Bytes of all disks together.
    pub size: u64,
    /// FUSE transport.
    #[serde(default, skip_serializing_if = "is_default_transport")]
    pub transport: Transport,
    /// Milliseconds of a node's lease; the same on all nodes. Shorter ones find a dead node sooner, and take a slow
    /// one for dead.
    #[serde(default = "lease_ms_default", skip_serializing_if = "is_default_lease")]
    pub lease_ms: u64,
    /// Bytes of the pagepool.
    #[serde(
        default = "pagepool_size_default",
        skip_serializing_if = "is_default_pagepool"
    )]
    pub pagepool_size: u64,
    /// Files of so many bytes and more are read past the kernel's page cache, each time; none: from the usual size on, and
    /// what is read again comes through the page cache.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub direct_from: Option<u64>,
    /// Asynchronous direct reads and writes go on beside one another (docs/decisions/0019).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub async_direct_io: bool,
    /// Where metrics are served.
    #[serde(default, skip_serializing_if = "Metrics::is_off")]
    pub metrics: Metrics,
    /// Inodes that the daemon knows without anybody using them.
    #[serde(
        default = "inode_count_max_default",
        skip_serializing_if = "is_default_inode_count"
    )]
    pub inode_count_max: u64,
    /// Bytes of owned metadata in memory; 0: all of it.
    #[serde(
        default = "metadata_bytes_max_default",
        skip_serializing_if = "is_default_metadata_bytes"
    )]
    pub metadata_bytes_max: u64,
    /// Bytes a second at which blocks of many extents are rewritten while nobody reads or writes here; 0: none.
    #[serde(
        default = "rewrite_rate_default",
        skip_serializing_if = "is_default_rewrite_rate"
    )]
    pub rewrite_rate: u64,
    /// Operations that take so many milliseconds are logged with what they waited for; 0: none.
    #[serde(default = "slow_ms_default", skip_serializing_if = "is_default_slow")]
    pub slow_ms: u64,
    /// What the daemon logs.
    #[serde(default, skip_serializing_if = "LogLevel::is_default")]
    pub log_level: LogLevel,
    /// How the daemon writes its log.
    #[serde(default, skip_serializing_if = "LogFormat::is_default")]
    pub log_format: LogFormat,
    /// Disks seen directly.
    pub disks: Vec<Disk>,
    /// The other nodes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub peers: Vec<Peer>,
}

/// What the daemon logs: this and what is worse.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum LogLevel {
    /// A human must look.
    Error,
    /// Handled, but odd; slow operations.
    Warn,
    /// Changes of role and state.
    #[default]
    Info,
    /// For who mends the program.
    Debug,
    /// The same, more.
    Trace,
}

impl LogLevel {
    /// As it is set.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warn => "warn",
            Self::Info => "info",
            Self::Debug => "debug",
            Self::Trace => "trace",
        }
    }

    #[allow(
        clippy::trivially_copy_pass_by_ref,
        reason = "serde hands a reference over"
    )]
    const fn is_default(&self) -> bool {
        matches!(self, Self::Info)
    }
}

/// How the daemon writes its log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// A line of words and `key=value` for each event.
    #[default]
    Text,
    /// A JSON object on a line for each event.
    Json,
}

impl LogFormat {
    /// As it is set.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Json => "json",
        }
    }

    #[allow(
        clippy::trivially_copy_pass_by_ref,
        reason = "serde hands a reference over"
    )]
    const fn is_default(&self) -> bool {
        matches!(self, Self::Text)
    }
}

/// Inodes that a daemon knows without anybody using them, unless it is said otherwise.
pub const INODE_COUNT_MAX_DEFAULT: u64 = types::limits::INODE_COUNT_MAX as u64;
/// What may be said: one takes some 1 KiB, names of directories and tokens not counted.
pub const INODE_COUNT_MAX: std::ops::RangeInclusive<u64> = 256..=100_000_000;

/// Bytes of owned metadata that a daemon keeps in memory, unless it is said otherwise.
pub const METADATA_BYTES_MAX_DEFAULT: u64 = 128 << 20;
/// Below this a directory of some hundred names would go as soon as it comes.
const METADATA_BYTES_MIN: u64 = 64 << 10;

/// What may be said: all, or a bound.
pub const fn is_metadata_bound(size: u64) -> bool {
    size == 0 || size >= METADATA_BYTES_MIN
}

const fn metadata_bytes_max_default() -> u64 {
    METADATA_BYTES_MAX_DEFAULT
}

#[allow(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde calls it with a reference"
)]
const fn is_default_metadata_bytes(size: &u64) -> bool {
    *size == METADATA_BYTES_MAX_DEFAULT
}

const fn inode_count_max_default() -> u64 {
    INODE_COUNT_MAX_DEFAULT
}

#[allow(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde hands over a reference"
)]
const fn is_default_inode_count(count: &u64) -> bool {
    *count == INODE_COUNT_MAX_DEFAULT
}

/// Bytes a second at which blocks are rewritten, unless it is said otherwise (docs/decisions/0017).
pub const REWRITE_RATE_DEFAULT: u64 = os::REWRITE_RATE_DEFAULT;

/// It may be set: at less a block of 16 MiB would take more than two minutes of a busy node.
pub const fn is_rewrite_rate(rate: u64) -> bool {
    rate == 0 || rate >= 1 << 20
}

const fn rewrite_rate_default() -> u64 {
    REWRITE_RATE_DEFAULT
}

#[allow(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde hands a reference over"
)]
const fn is_default_rewrite_rate(rate: &u64) -> bool {
    *rate == REWRITE_RATE_DEFAULT
}

/// Milliseconds after which an operation is called slow, unless it is said otherwise.
pub const SLOW_MS_DEFAULT: u64 = 1000;
/// Milliseconds that may be said, besides 0: what is shorter is not looked at often enough.
pub const SLOW_MS: std::ops::RangeInclusive<u64> = 200..=3_600_000;

const fn slow_ms_default() -> u64 {
    SLOW_MS_DEFAULT
}

#[allow(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde hands a reference over"
)]
const fn is_default_slow(ms: &u64) -> bool {
    *ms == SLOW_MS_DEFAULT
}

/// Where metrics are served, if anywhere: `off`, or an address of this machine alone (docs/metrics.md). Who asks is not
/// authenticated, so no other machine may.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Metrics(pub Option<SocketAddr>);

impl Metrics {
    #[allow(
        clippy::trivially_copy_pass_by_ref,
        reason = "serde hands a reference over"
    )]
    const fn is_off(&self) -> bool {
        self.0.is_none()
    }
}

impl std::str::FromStr for Metrics {
    type Err = String;

    /// `off`, a port of 127.0.0.1, or a loopback address with a port.
    fn from_str(text: &str) -> std::result::Result<Self, String> {
        if text == "off" {
            return Ok(Self(None));
        }
        let address = match text.parse::<u16>() {
            Ok(port) => (Ipv4Addr::LOCALHOST, port).into(),
            Err(_) => (text.parse::<SocketAddr>()).map_err(|e| format!("{text:?}: {e}"))?,
        };
        match address.ip().is_loopback() {
            true => Ok(Self(Some(address))),
            false => Err(format!(
                "{address} is not an address of this machine alone: metrics are served without encryption and to who asks"
            )),
        }
    }
}

impl TryFrom<String> for Metrics {
    type Error = String;

    fn try_from(text: String) -> std::result::Result<Self, String> {
        text.parse()
    }
}

impl From<Metrics> for String {
    fn from(metrics: Metrics) -> Self {
        metrics
            .0
            .map_or_else(|| "off".to_owned(), |address| address.to_string())
    }
}

/// Leases that make sense, in milliseconds: shorter ones end while a busy machine schedules somebody else.
pub const LEASE_MS: std::ops::RangeInclusive<u64> = 1000..=600_000;

const fn lease_ms_default() -> u64 {
    types::limits::LEASE_MS
}

#[allow(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde hands a reference over"
)]
const fn is_default_lease(ms: &u64) -> bool {
    *ms == lease_ms_default()
}

#[allow(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde hands a reference over"
)]
const fn is_default_transport(transport: &Transport) -> bool {
    matches!(transport, Transport::Device)
}

const fn pagepool_size_default() -> u64 {
    crate::up::PAGEPOOL_SIZE_DEFAULT
}

#[allow(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde hands a reference over"
)]
const fn is_default_pagepool(size: &u64) -> bool {
    *size == pagepool_size_default()
}

/// All files of a state directory, in the order in which they go with it.
const FILES: [&str; 10] = [
    "control.sock",
    "pid",
    "lost",
    "lives",
    "log",
    "fsck.progress",
    "cluster.view",
    "creating",
    // What is interrupted can be run again while this is there.
    "gupfs.toml",
    "lock",
];
/// Those of them that the creation of a file system makes, the same way.
const CREATED: [&str; 3] = ["gupfs.toml", "cluster.view", "creating"];
/// What a file is called until it takes the place of the one before.
const NEW: &str = ".new";
/// Directories with disks that `gupfs up` made.
pub const DISK_DIRECTORIES: [&str; 2] = ["nsd", "ram"];

/// Whether a state directory may have a file or directory called `name`.
pub fn is_own_name(name: &OsStr) -> bool {
    let name = name.to_str().unwrap_or_default();
    let file = name.strip_suffix(NEW).unwrap_or(name);
    FILES.contains(&file) || DISK_DIRECTORIES.contains(&name)
}

/// How long a program that is about to let go of a state directory is waited for.
const LOCK_PATIENCE: Duration = Duration::from_secs(5);
/// Bytes of the longest name of a socket: sun_path without the NUL.
const SOCKET_PATH_SIZE_MAX: usize = 107;

/// The paths inside a state directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    root: PathBuf,
}

impl Place {
    /// The state directory `path`, made absolute.
    pub fn new(path: &Path) -> Result<Self> {
        let root = crate::system::absolute(path)?;
        let place = Self { root };
        let size = place.control().as_os_str().len();
        if size > SOCKET_PATH_SIZE_MAX {
            return Err(Failure::new(format!(
                "the name of the state directory {} is too long: the socket in it cannot have one of {size} bytes",
                place.root.display()
            ))
            .help(format!(
                "name one with {} bytes less; a symbolic link to it does not help",
                size - SOCKET_PATH_SIZE_MAX
            )));
        }
        Ok(place)
    }

    /// The id of a file system that is being made.
    pub fn creating(&self) -> PathBuf {
        self.root.join("creating")
    }

    /// The directory.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// `gupfs.toml`.
    pub fn config(&self) -> PathBuf {
        self.root.join("gupfs.toml")
    }

    /// The config store's file.
    pub fn view(&self) -> PathBuf {
        self.root.join("cluster.view")
    }

    /// The lives of the daemon.
    pub fn lives(&self) -> PathBuf {
        self.root.join("lives")
    }

    /// The daemon's socket.
    pub fn control(&self) -> PathBuf {
        self.root.join("control.sock")
    }

    /// The daemon's log.
    pub fn log(&self) -> PathBuf {
        self.root.join("log")
    }

    /// What the last daemon could not write back.
    pub fn lost(&self) -> PathBuf {
        self.root.join("lost")
    }

    /// The daemon's pid.
    pub fn pid(&self) -> PathBuf {
        self.root.join("pid")
    }

    /// The lock file.
    pub fn lock(&self) -> PathBuf {
        self.root.join("lock")
    }

    /// What [`State::load`] reads; `None` if the directory was never completed.
    pub fn load(&self) -> Result<Option<State>> {
        let path = self.config();
        let Some(text) = files::read_text(&path)? else {
            return Ok(None);
        };
        parse(&text, &path).map(Some)
    }

    /// The same where it must be there.
    pub fn require(&self) -> Result<State> {
        self.load()?.ok_or_else(|| {
            Failure::new(format!("{} is no state directory: it has no gupfs.toml", self.root.display()))
                .help("make a file system with `gupfs up` or `gupfs fs create`, or name the right --state")
        })
    }

    /// Writes `state`, which completes the directory.
    pub fn store(&self, state: &State) -> Result<()> {
        let text = to_text(state);
        files::replace(&self.config(), text.as_bytes())
    }

    /// The view that the directory has.
    pub fn load_view(&self) -> Result<ClusterView> {
        let path = self.view();
        let bytes = files::read(&path)?.ok_or_else(|| {
            Failure::new(format!(
                "{} is missing: the cluster's configuration is lost",
                path.display()
            ))
            .help("restore the file from a backup of the state directory. The data on the disks is untouched, and they hold copies of the file's content, but no command brings it back from there yet: make no file system over them")
        })?;
        view_file::decode(&bytes).map_err(|e| {
            Failure::new(format!("{}: {e}", path.display()))
                .help("restore the file from a backup of the state directory")
        })
    }

    /// Writes `view`.
    pub fn store_view(&self, view: &ClusterView) -> Result<()> {
        files::replace(&self.view(), &view_file::encode(view))
    }

    /// Notes the file system of `view` as one that is being made, before any disk has a label of it.
    pub fn note_unfinished(&self, view: &ClusterView) -> Result<()> {
        files::replace(&self.creating(), to_hex(view.fs.0).as_bytes())
    }

    /// The id that a creation which did not come to its end has noted.
    pub fn unfinished(&self) -> Result<Option<u128>> {
        let path = self.creating();
        let Some(text) = files::read_text(&path)? else {
            return Ok(None);
        };
        let id = from_hex(text.trim(), &format!("{}: file system id", path.display()));
        let help = "remove it: disks with labels are somebody's then";
        id.map(Some).map_err(|failure| failure.help(help))
    }

    /// Removes all files of the state directory, and the directory itself unless it holds anything else.
    pub fn remove(&self) -> Result<()> {
        self.remove_files(&FILES)?;
        let _ = std::fs::remove_dir(&self.root);
        Ok(())
    }

    /// Removes what the creation of a file system that has failed has left; the directory too, if it is of that creation.
    pub fn undo(&self, had_directory: bool) -> Result<()> {
        self.remove_files(&CREATED)?;
        if had_directory {
            return Ok(());
        }
        files::remove(&self.lock())?;
        std::fs::remove_dir(&self.root).map_err(|e| Failure::io("remove", &self.root, &e))
    }

    fn remove_files(&self, names: &[&str]) -> Result<()> {
        for name in names {
            files::remove(&self.root.join(format!("{name}{NEW}")))?;
            files::remove(&self.root.join(name))?;
        }
        Ok(())
    }

    /// As `try_lock`, but a program that holds it without being a daemon is waited for: one that ends keeps it until its
    /// last request has ended, and commands have it for moments.
    pub fn lock_soon(&self) -> Result<File> {
        let begin = Instant::now();
        loop {
            let outcome = self.try_lock();
            let is_over = begin.elapsed() > LOCK_PATIENCE;
            if outcome.is_ok() || is_over || !process::daemons_of(&self.root)?.is_empty() {
                return outcome;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Takes the directory's lock for as long as the file lives; says who has it otherwise.
    pub fn try_lock(&self) -> Result<File> {
        let file = files::open_lock(&self.lock())?;
        match file.try_lock() {
            Ok(()) => Ok(file),
            Err(TryLockError::WouldBlock) => {
                let pids = process::daemons_of(&self.root)?;
                let holder = match pids.first() {
                    Some(pid) => format!("the daemon with pid {pid}"),
                    None => "another gupfs command".to_owned(),
                };
                Err(Failure::new(format!(
                    "state directory {} is in use by {holder}",
                    self.root.display()
                ))
                .help(format!(
                    "stop it with `gupfs down --state {}`",
                    self.root.display()
                )))
            }
            Err(TryLockError::Error(e)) => Err(Failure::io("lock", &self.lock(), &e)),
        }
    }
}

/// The text of the file that holds `state`.
pub fn to_text(state: &State) -> String {
    toml::to_string(state).expect("plain values have a TOML form")
}

/// What the file at `path` says, which holds `text`.
///
/// # Errors
/// It is damaged, of another version, or has a value that is not allowed.
pub fn parse(text: &str, path: &Path) -> Result<State> {
    #[derive(Deserialize)]
    struct Head {
        format: u32,
    }
    let bad = |e: toml::de::Error| {
        Failure::new(format!("{} is damaged: {}", path.display(), e.message())).help(
            "restore it from a backup of the state directory; the data on the disks is untouched",
        )
    };
    let head: Head = toml::from_str(text).map_err(bad)?;
    if head.format != FORMAT {
        return Err(Failure::new(format!(
            "state directory {} has format {}; this gupfs {} knows format {FORMAT}",
            path.parent().unwrap_or(path).display(),
            head.format,
            env!("CARGO_PKG_VERSION"),
        ))
        .help("use the gupfs version that made it"));
    }
    let state: State = toml::from_str(text).map_err(bad)?;
    if state.slow_ms != 0 && !SLOW_MS.contains(&state.slow_ms) {
        return Err(
            Failure::new(format!("{}: slow_ms is {}", path.display(), state.slow_ms))
                .help("0 for no log of slow operations, or 200 to 3600000 milliseconds"),
        );
    }
    if !is_rewrite_rate(state.rewrite_rate) {
        let what = format!("{}: rewrite_rate is {}", path.display(), state.rewrite_rate);
        return Err(Failure::new(what).help("bytes a second, 1048576 at least, or 0 for none"));
    }
    if !INODE_COUNT_MAX.contains(&state.inode_count_max) {
        let count = state.inode_count_max;
        let what = format!("{}: inode_count_max is {count}", path.display());
        return Err(Failure::new(what).help("256 to 100000000"));
    }
    if !is_metadata_bound(state.metadata_bytes_max) {
        let size = state.metadata_bytes_max;
        let what = format!("{}: metadata_bytes_max is {size}", path.display());
        return Err(Failure::new(what).help("0 for no limit, or 65536 at least"));
    }
    if !LEASE_MS.contains(&state.lease_ms) {
        return Err(Failure::new(format!(
            "{}: lease_ms is {}",
            path.display(),
            state.lease_ms
        ))
        .help(format!(
            "give {} to {}, the same on all nodes",
            LEASE_MS.start(),
            LEASE_MS.end()
        )));
    }
    Ok(state)
}

/// An id as the configuration writes it.
pub fn to_hex(id: u128) -> String {
    format!("{id:032x}")
}

/// Its value.
pub fn from_hex(text: &str, what: &str) -> Result<u128> {
    u128::from_str_radix(text, 16)
        .ok()
        .filter(|_| text.len() == 32)
        .ok_or_else(|| Failure::new(format!("{what} {text:?} is not 32 hexadecimal digits")))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn example() -> State {
        State {
            format: FORMAT,
            cluster: to_hex(1),
            fs: to_hex(u128::MAX),
            node: 2,
            manager: 1,
            mount: "/mnt/x".into(),
            listen: Some("10.77.0.2:7077".parse().expect("an address")),
            netns: Some("gupfs-ab-n2".to_owned()),
            backing: Some(Backing::Ram),
            size: 8 << 30,
            transport: Transport::Device,
            lease_ms: 3000,
            metrics: Metrics::default(),
            inode_count_max: INODE_COUNT_MAX_DEFAULT,
            metadata_bytes_max: METADATA_BYTES_MAX_DEFAULT,
            rewrite_rate: REWRITE_RATE_DEFAULT,
            async_direct_io: false,
            slow_ms: SLOW_MS_DEFAULT,
            log_level: LogLevel::default(),
            log_format: LogFormat::default(),
            pagepool_size: 1 << 30,
            direct_from: None,
            disks: vec![Disk {
                nsd: 3,
                path: "/a/3.img".into(),
                is_loop: true,
                is_volatile: false,
            }],
            peers: vec![Peer {
                node: 1,
                address: "10.77.0.1:7077".parse().expect("an address"),
            }],
        }
    }

    #[test]
    fn what_was_stored_is_loaded() {
        let directory = tempfile::tempdir().expect("a directory");
        let place = Place::new(directory.path()).expect("a place");
        assert_eq!(place.load().expect("nothing yet"), None);
        place.require().expect_err("nothing yet");
        place.store(&example()).expect("stored");
        assert_eq!(place.load().expect("loaded"), Some(example()));
    }

    /// Whatever the end of a daemon or of a command has left goes with the directory.
    #[test]
    fn all_that_is_ours_goes() {
        let directory = tempfile::tempdir().expect("a directory");
        let place = Place::new(&directory.path().join("state")).expect("a place");
        let fill = || {
            std::fs::create_dir(place.root()).expect("made");
            for name in FILES {
                for name in [name.to_owned(), format!("{name}{NEW}")] {
                    assert!(is_own_name(OsStr::new(&name)));
                    std::fs::write(place.root().join(name), "x").expect("written");
                }
            }
        };
        fill();
        place.remove().expect("removed");
        assert!(!place.root().exists());
        fill();
        let other = place.root().join("thesis.tex");
        std::fs::write(&other, "x").expect("written");
        place.remove().expect("removed");
        let left = std::fs::read_dir(place.root()).expect("it stays");
        assert!(other.exists() && left.count() == 1);
        for name in ["thesis.tex", "lock.old", "nsd.new", ".new", ""] {
            assert!(!is_own_name(OsStr::new(name)), "{name}");
        }
    }

    #[test]
    fn another_format_and_damage_are_refused() {
        let directory = tempfile::tempdir().expect("a directory");
        let place = Place::new(directory.path()).expect("a place");
        std::fs::write(place.config(), "format = 7\nnew_things = true\n").expect("written");
        let failure = place.load().expect_err("another version");
        assert!(failure.what().contains("has format 7"), "{failure}");
        std::fs::write(place.config(), "format = 1\nnode = 'x'\n").expect("written");
        let failure = place.load().expect_err("damaged");
        assert!(failure.what().contains("damaged"), "{failure}");
        let short = State {
            lease_ms: 10,
            ..example()
        };
        place.store(&short).expect("stored");
        let failure = place.load().expect_err("no lease is so short");
        assert!(failure.what().contains("lease_ms is 10"), "{failure}");
    }

    #[test]
    fn the_lock_admits_one() {
        let directory = tempfile::tempdir().expect("a directory");
        let place = Place::new(directory.path()).expect("a place");
        let first = place.try_lock().expect("free");
        let failure = place.try_lock().expect_err("taken");
        assert!(failure.what().contains("in use"), "{failure}");
        drop(first);
        place.try_lock().expect("free again");
    }

    #[test]
    fn ids_have_32_digits() {
        assert_eq!(from_hex(&to_hex(77), "id"), Ok(77));
        from_hex("4d", "id").expect_err("too short");
        from_hex(&"x".repeat(32), "id").expect_err("not hexadecimal");
    }
}

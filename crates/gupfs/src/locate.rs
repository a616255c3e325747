//! From a path to the daemon that serves it, without hanging on a mount whose daemon does not answer.
//!
//! Invariant: this process never touches a path that may lie on a mount. A child does (`look_at`), which is waited for
//! with a limit and left behind when it hangs: a process that waits for a FUSE daemon cannot even be killed.

use std::fs;
use std::io::Read as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use rustix::fs::{AtFlags, StatxFlags};
use serde_json::{Value, json};
use types::layout::LAYOUT_XATTR;

use crate::control::{self, Answer};
use crate::failure::{Failure, Result};
use crate::source;
use crate::state::Place;
use crate::system::mounts::{self, Mount};
use crate::system::process;

/// How long a path may take to answer.
const LOOK_LIMIT: Duration = Duration::from_secs(10);
/// How long a mount may take that may be a dead daemon's: of such a one the kernel answers at once.
const ENDED_LIMIT: Duration = Duration::from_secs(3);
/// Bytes of the longest layout: more than all NSDs and a block size take.
const LAYOUT_SIZE_MAX: usize = 4096;
/// How long a daemon that may be another's is waited for.
const STATUS_LIMIT: Duration = Duration::from_secs(5);

/// What the child does to the path before it describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Errand {
    /// Nothing.
    Look,
    /// An fsync, of files and directories.
    Sync,
    /// Reads its layout: member `layout`, empty for the default.
    GetLayout,
    /// Sets its layout; empty: the default.
    SetLayout(String),
}

/// A daemon of this machine that answers.
#[derive(Debug, Clone)]
pub struct Found {
    /// Its state directory.
    pub place: Place,
    /// What it says of itself.
    pub status: Value,
}

/// The state directories of the daemons of this machine.
fn places() -> Result<Vec<Place>> {
    let all = process::daemons()?;
    // No daemon of ours runs where there can be no state directory: what says so is another's program.
    Ok(all
        .iter()
        .filter_map(|(_, root)| Place::new(root).ok())
        .collect())
}

/// What the daemons of `places` say of themselves, each as it answers.
fn ask_all(places: Vec<Place>) -> mpsc::IntoIter<(Place, Result<Answer>)> {
    let (said, answers) = mpsc::channel();
    for place in places {
        let said = said.clone();
        // All at once: several that hang take no longer than one.
        std::thread::spawn(move || {
            let answer = control::ask(&place.control(), "status", STATUS_LIMIT);
            // Who has found the right one waits for no other.
            let _ = said.send((place, answer));
        });
    }
    answers.into_iter()
}

/// The daemons of this machine, and the state directories of those that do not answer.
pub fn daemons() -> Result<(Vec<Found>, Vec<PathBuf>)> {
    look_for(places()?)
}

/// The daemons of this machine that serve one of the file systems `ids`, as their state directories say; no other is asked.
pub fn daemons_of(ids: &[String]) -> Result<Vec<Found>> {
    let mut places = places()?;
    places.retain(|place| matches!(place.load(), Ok(Some(state)) if ids.contains(&state.fs)));
    Ok(look_for(places)?.0)
}

fn look_for(places: Vec<Place>) -> Result<(Vec<Found>, Vec<PathBuf>)> {
    let (mut found, mut silent, mut refused) = (Vec::new(), Vec::new(), None);
    for (place, answer) in ask_all(places) {
        match answer {
            Ok(Answer::Said(status)) => found.push(Found { place, status }),
            Ok(Answer::Absent) => {}
            Ok(Answer::Silent) => silent.push(place.root().to_owned()),
            Err(failure) => refused = refused.or(Some(failure)),
        }
    }
    // Not in the order of the answers.
    found.sort_by(|a, b| a.place.root().cmp(b.place.root()));
    silent.sort();
    // One that ends just now says half a line; where all fail, that is why.
    match refused {
        Some(failure) if found.is_empty() && silent.is_empty() => Err(failure),
        _ => Ok((found, silent)),
    }
}

/// Who serves a mount.
#[derive(Debug)]
pub enum Serving {
    /// The daemon that says so.
    By(Found),
    /// The mount names the state directory of a daemon that does not answer.
    Silent(PathBuf),
    /// None says so.
    Nobody,
}

/// The daemon of `mount`: that of the state directory which the mount names, or else any that says so. Others, which may hang or be
/// somebody else's, are asked only if the first does not know of it, and not waited for once one does.
pub fn serving(mount: &Mount) -> Result<Serving> {
    let all = places()?.into_iter();
    let (named, others): (Vec<Place>, Vec<Place>) =
        all.partition(|place| source::is_of(&mount.source, place.root()));
    let mut refused = None;
    for (place, answer) in ask_all(named) {
        match answer {
            Ok(Answer::Said(status)) if status["connection"] == mount.minor => {
                return Ok(Serving::By(Found { place, status }));
            }
            Ok(Answer::Silent) => return Ok(Serving::Silent(place.root().to_owned())),
            Ok(Answer::Said(_) | Answer::Absent) => {}
            Err(failure) => refused = Some(failure),
        }
    }
    for (place, answer) in ask_all(others) {
        match answer {
            Ok(Answer::Said(status)) if status["connection"] == mount.minor => {
                return Ok(Serving::By(Found { place, status }));
            }
            _ => {}
        }
    }
    refused.map_or(Ok(Serving::Nobody), Err)
}

/// The daemon that serves `path`, and what the path is: members `dev_major`, `dev_minor`, `inode`, `kind`, `mode` and
/// so on.
pub fn of_path(path: &Path, is_synced: bool) -> Result<(Found, Value)> {
    let errand = match is_synced {
        true => Errand::Sync,
        false => Errand::Look,
    };
    of_path_with(path, &errand)
}

/// The same, after the errand. One that changes something must come after `of_path`, which refuses paths elsewhere.
pub fn of_path_with(path: &Path, errand: &Errand) -> Result<(Found, Value)> {
    let seen = look(path, errand)?;
    let number = |name: &str| seen[name].as_u64().and_then(|n| u32::try_from(n).ok());
    let device = (number("dev_major"), number("dev_minor"));
    let mounts = mounts::list()?;
    let mount = mounts
        .iter()
        .find(|m| (Some(m.major), Some(m.minor)) == device);
    let Some(mount) = mount.filter(|m| m.is_gupfs()) else {
        let kind = mount.map_or("another file system", |m| m.kind.as_str());
        return Err(Failure::new(format!(
            "{} is not on a GUPFS file system: it is on {kind}",
            path.display()
        ))
        .help("name a path below a mount point of GUPFS; `gupfs fs list` shows them"));
    };
    match serving(mount)? {
        Serving::By(found) => Ok((found, seen)),
        Serving::Silent(root) => Err(Failure::new(format!(
            "the daemon of {}, which serves {}, does not answer",
            root.display(),
            mount.point.display()
        ))
        .help(format!(
            "see the log in {0}; gupfs down --state {0} ends it in any case",
            root.display()
        ))),
        Serving::Nobody => Err(Failure::new(format!(
            "no daemon on this machine says that it serves {}, where {} is mounted",
            mount.point.display(),
            path.display()
        ))
        .help("run it as root; `gupfs down` clears a mount that a dead daemon has left")),
    }
}

/// Whether the connection of the FUSE mount at `point` has ended: the kernel itself says so, at once. It does not of one that lives, also
/// where the daemon is stopped, hangs, is about to end, or runs in another name space and is not seen from here.
pub fn is_ended(point: &Path) -> Result<bool> {
    let seen = ask(point, &Errand::Look, ENDED_LIMIT)?;
    let errno = seen.and_then(|seen| seen["errno"].as_i64());
    // The second is of one that ended meanwhile.
    let ends = [libc::ENOTCONN, libc::ECONNABORTED].map(i64::from);
    Ok(errno.is_some_and(|errno| ends.contains(&errno)))
}

/// Fails where `path` cannot be looked at, or does not answer.
pub fn require_answer(path: &Path) -> Result<()> {
    look(path, &Errand::Look).map(drop)
}

fn look(path: &Path, errand: &Errand) -> Result<Value> {
    let Some(value) = ask(path, errand, LOOK_LIMIT)? else {
        return Err(Failure::new(format!(
            "{} did not answer within {} s",
            path.display(),
            LOOK_LIMIT.as_secs()
        ))
        .help("`gupfs waiters --state DIR` says what its file system waits for"));
    };
    match value["error"].as_str() {
        Some(error) => {
            let failure = Failure::new(format!("cannot look at {}: {error}", path.display()));
            let errno = value["errno"].as_i64();
            Err(match errno == Some(libc::ENOTCONN.into()) {
                true => failure.help("the daemon that served it has died: `gupfs up` or `gupfs mount` starts another one"),
                false => failure,
            })
        }
        None => Ok(value),
    }
}

/// What the child says of `path`; `None`: nothing within the limit.
fn ask(path: &Path, errand: &Errand, limit: Duration) -> Result<Option<Value>> {
    // Also where the file of this program has been replaced since it was started.
    let mut command = Command::new("/proc/self/exe");
    command.arg("look-at");
    match errand {
        Errand::Look => {}
        Errand::Sync => drop(command.arg("--sync")),
        Errand::GetLayout => drop(command.arg("--layout")),
        Errand::SetLayout(text) => drop(command.arg(format!("--set-layout={text}"))),
    }
    let mut child = command
        .arg("--")
        .arg(path)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|e| Failure::new(format!("cannot start a helper: {e}")))?;
    let mut output = child.stdout.take().expect("it is piped");
    let (told, said) = mpsc::channel();
    std::thread::spawn(move || {
        let mut text = String::new();
        let outcome = output.read_to_string(&mut text).map(|_| text);
        // Nobody waits any longer: then nobody hears it.
        let _ = told.send(outcome);
    });
    let Ok(said) = said.recv_timeout(limit) else {
        return Ok(None);
    };
    // It has said all that it says; an end that takes longer is not waited for.
    let _ = child.try_wait();
    let text = said.map_err(|e| Failure::new(format!("cannot hear a helper: {e}")))?;
    let value = serde_json::from_str(&text)
        .map_err(|e| Failure::new(format!("a helper said nothing of {}: {e}", path.display())))?;
    Ok(Some(value))
}

/// The child: looks at `path` itself, after its errand, and prints what it is or an `error`.
pub fn look_at(path: &Path, errand: &Errand) {
    let mut layout = None;
    let seen = (|| {
        let metadata = fs::symlink_metadata(path)?;
        match errand {
            Errand::Look => {}
            // Opening anything else may wait for its other end, or do something.
            Errand::Sync if metadata.is_file() || metadata.is_dir() => {
                fs::File::open(path)?.sync_all()?;
            }
            Errand::Sync => {}
            Errand::GetLayout => layout = Some(get_layout(path)?),
            Errand::SetLayout(text) => set_layout(path, text)?,
        }
        // The kernel may have attributes of before: it keeps the number of blocks that the daemon told while data was dirty.
        let flags = AtFlags::STATX_FORCE_SYNC | AtFlags::SYMLINK_NOFOLLOW;
        rustix::fs::statx(rustix::fs::CWD, path, flags, StatxFlags::BASIC_STATS)?;
        fs::symlink_metadata(path)
    })();
    match seen {
        Ok(metadata) => {
            let mut seen = describe(&metadata);
            if let Some(layout) = layout {
                seen["layout"] = json!(layout);
            }
            say!("{seen}");
        }
        Err(error) => {
            let said = json!({ "error": error.to_string(), "errno": error.raw_os_error() });
            say!("{said}");
        }
    }
}

/// The layout as `Layout::parse` reads it; nothing but files and directories has one.
fn get_layout(path: &Path) -> std::io::Result<String> {
    let mut value = vec![0; LAYOUT_SIZE_MAX];
    match rustix::fs::lgetxattr(path, LAYOUT_XATTR, &mut value) {
        Ok(size) => Ok(String::from_utf8_lossy(&value[..size]).into_owned()),
        Err(rustix::io::Errno::NODATA) => Ok(String::new()),
        Err(error) => Err(error.into()),
    }
}

fn set_layout(path: &Path, text: &str) -> std::io::Result<()> {
    let flags = rustix::fs::XattrFlags::empty();
    rustix::fs::lsetxattr(path, LAYOUT_XATTR, text.as_bytes(), flags)?;
    Ok(())
}

fn describe(metadata: &fs::Metadata) -> Value {
    let time = |secs: i64, nanos: i64| secs.saturating_mul(1_000_000_000).saturating_add(nanos);
    let born = metadata.created().ok();
    let born = born.and_then(|at| at.duration_since(std::time::UNIX_EPOCH).ok());
    json!({
        "dev_major": libc::major(metadata.dev()), "dev_minor": libc::minor(metadata.dev()),
        "inode": metadata.ino(), "kind": kind(metadata.file_type()),
        "mode": format!("{:04o}", metadata.mode() & 0o7777),
        "uid": metadata.uid(), "gid": metadata.gid(), "links": metadata.nlink(),
        "size": metadata.size(), "allocated": metadata.blocks() * 512,
        "atime_ns": time(metadata.atime(), metadata.atime_nsec()),
        "mtime_ns": time(metadata.mtime(), metadata.mtime_nsec()),
        "ctime_ns": time(metadata.ctime(), metadata.ctime_nsec()),
        "btime_ns": born.map(|at| i64::try_from(at.as_nanos()).unwrap_or(i64::MAX)),
    })
}

fn kind(kind: fs::FileType) -> &'static str {
    if kind.is_dir() {
        "directory"
    } else if kind.is_symlink() {
        "symlink"
    } else if kind.is_fifo() {
        "fifo"
    } else if kind.is_socket() {
        "socket"
    } else if kind.is_block_device() {
        "block device"
    } else if kind.is_char_device() {
        "character device"
    } else {
        "file"
    }
}

/// The daemons of the file system `fs` (as status shows it) that run on this machine and answer.
pub fn nodes_of(fs: &Value) -> Result<Vec<Found>> {
    let ids: Vec<String> = fs.as_str().map(str::to_owned).into_iter().collect();
    let mut all = daemons_of(&ids)?;
    all.retain(|found| found.status["fs"] == *fs);
    Ok(all)
}

/// The one of `node` among them.
pub fn node_of(fs: &Value, node: &Value) -> Result<Option<Found>> {
    let mut all = nodes_of(fs)?.into_iter();
    Ok(all.find(|found| found.status["node"] == *node))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_and_sizes_are_those_of_stat() {
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join("file");
        fs::write(&file, b"12345").expect("written");
        let link = directory.path().join("link");
        std::os::unix::fs::symlink("file", &link).expect("made");
        let see = |path: &Path| describe(&fs::symlink_metadata(path).expect("there"));
        assert_eq!(see(directory.path())["kind"], "directory");
        assert_eq!(see(&link)["kind"], "symlink");
        let seen = see(&file);
        assert_eq!((&seen["kind"], &seen["size"]), (&json!("file"), &json!(5)));
        assert!(seen["mtime_ns"].as_i64().is_some_and(|ns| ns > 1 << 60));
        assert_eq!(see(Path::new("/dev/null"))["kind"], "character device");
    }
}

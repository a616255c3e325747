//! Several threads at work on the same few names, at random: whatever they do to one another, no call gives an error that no file
//! system would give, and what is left is a whole tree, the same after a remount, with which fsck finds nothing wrong.
//!
//! `GUPFS_STRESS_OPERATIONS=100000` is the long run, `GUPFS_STRESS_SEED=n` begins with another seed than 1.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::fs::{AtFlags, FallocateFlags, RenameFlags, StatxFlags, XattrFlags};
use stdx::Prng;

use crate::node::Node;

const THREAD_COUNT: u64 = 4;
/// Names of each kind in a directory, and how deep directories go.
const NAME_COUNT: u64 = 6;
const DEPTH_MAX: u64 = 3;
const FILE_SIZE_MAX: u64 = 300_000;

/// Errors that the others may cause: a name is there, is not there, or is of another kind; a directory is moved into itself.
const EXPECTED: [i32; 11] = [
    libc::ENOENT,
    libc::EEXIST,
    libc::ENOTDIR,
    libc::EISDIR,
    libc::ENOTEMPTY,
    libc::EINVAL,
    libc::ELOOP,
    libc::ENODATA,
    libc::EPERM,
    libc::ENXIO,
    libc::EXDEV,
];

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().unwrap())
}

struct Worker<'a> {
    root: &'a Path,
    prng: Prng,
    /// What was tried last, for who has to find out.
    last: String,
}

impl Worker<'_> {
    fn below(&mut self, limit: u64) -> u64 {
        self.prng.below(limit)
    }

    /// A name that may be there or not, and anything.
    fn path(&mut self) -> PathBuf {
        let mut path = self.root.to_owned();
        for _ in 0..self.below(DEPTH_MAX) {
            path.push(format!("d{}", self.below(NAME_COUNT)));
        }
        let kind = ["d", "f", "f", "f", "x"][usize::try_from(self.below(5)).unwrap()];
        path.push(format!("{kind}{}", self.below(NAME_COUNT)));
        path
    }

    fn bytes(&mut self) -> Vec<u8> {
        let size = match self.below(3) {
            0 => self.below(200),
            1 => self.below(20_000),
            _ => 4096 * self.below(20),
        };
        vec![self.below(255).to_le_bytes()[0]; usize::try_from(size).unwrap()]
    }

    fn writable(path: &Path) -> io::Result<File> {
        OpenOptions::new().read(true).write(true).open(path)
    }

    fn step(&mut self) -> io::Result<()> {
        let (path, other) = (self.path(), self.path());
        let at = self.below(FILE_SIZE_MAX);
        let kind = self.below(24);
        self.last = format!("{kind} {} {} {at}", path.display(), other.display());
        match kind {
            0..3 => fs::create_dir(path),
            3 => fs::remove_dir(path),
            4..7 => fs::write(path, self.bytes()),
            7..10 => Self::writable(&path)?.write_all_at(&self.bytes(), at),
            10 => {
                let mut file = OpenOptions::new().append(true).open(path)?;
                io::Write::write_all(&mut file, &self.bytes())
            }
            11 => Self::writable(&path)?.set_len(at),
            12 => {
                let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                let size = 1 + self.below(FILE_SIZE_MAX);
                Ok(rustix::fs::fallocate(
                    Self::writable(&path)?,
                    mode,
                    at,
                    size,
                )?)
            }
            13 => {
                let mut source = File::open(path)?;
                io::copy(&mut source, &mut File::create(other)?).map(drop)
            }
            14 => fs::hard_link(path, other),
            15 => std::os::unix::fs::symlink(path.file_name().unwrap(), other),
            16..18 => fs::rename(path, other),
            18 => {
                let flags = [RenameFlags::EXCHANGE, RenameFlags::NOREPLACE];
                let flags = flags[usize::try_from(self.below(2)).unwrap()];
                let here = rustix::fs::CWD;
                Ok(rustix::fs::renameat_with(here, path, here, other, flags)?)
            }
            19..21 => fs::remove_file(path),
            21 => {
                let (name, value) = (format!("user.{}", at % 5), self.bytes());
                let value = &value[..value.len().min(2000)];
                Ok(rustix::fs::lsetxattr(
                    path,
                    name,
                    value,
                    XattrFlags::empty(),
                )?)
            }
            22 => {
                for entry in fs::read_dir(path)? {
                    entry?.metadata().map(drop).or_else(gone)?;
                }
                Ok(())
            }
            _ => {
                let file = Self::writable(&path)?;
                let mut buffer = [0; 5000];
                file.read_at(&mut buffer, at)?;
                file.sync_all()
            }
        }
    }
}

/// What was listed may be gone by now.
fn gone(error: io::Error) -> io::Result<()> {
    match error.kind() {
        ErrorKind::NotFound => Ok(()),
        _ => Err(error),
    }
}

/// Each name below `root` with its attributes and bytes, while nobody changes anything. Numbers of links are those of the names.
fn tree(root: &Path) -> BTreeMap<PathBuf, String> {
    let (mut tree, mut names) = (BTreeMap::new(), BTreeMap::<u64, (u64, u64)>::new());
    let mut rest = vec![root.to_owned()];
    while let Some(directory) = rest.pop() {
        let links = fs::metadata(&directory).unwrap().nlink();
        let mut directory_count = 0;
        for entry in fs::read_dir(&directory).unwrap() {
            let path = entry.unwrap().path();
            let found = fs::symlink_metadata(&path)
                .unwrap_or_else(|error| panic!("{} is listed: {error}", path.display()));
            let content = match found.file_type() {
                kind if kind.is_file() => {
                    let bytes = fs::read(&path).unwrap();
                    assert_eq!(bytes.len() as u64, found.len(), "{}", path.display());
                    format!("{:08x}", crc(&bytes))
                }
                kind if kind.is_dir() => {
                    directory_count += 1;
                    rest.push(path.clone());
                    String::new()
                }
                _ => fs::read_link(&path).unwrap().display().to_string(),
            };
            if !found.is_dir() {
                names.entry(found.ino()).or_insert((found.nlink(), 0)).1 += 1;
            }
            let times = (found.mtime_nsec(), found.ctime_nsec());
            let text = format!("{} {:o} {times:?} {content}", found.ino(), found.mode());
            tree.insert(path, text);
        }
        assert_eq!(links, 2 + directory_count, "{}", directory.display());
    }
    for (ino, (links, count)) in names {
        assert_eq!(links, count, "links of inode {ino}");
    }
    tree
}

/// Mode, links, size and times, as the kernel takes them to be or as the daemon tells them.
fn known(path: &Path, how: AtFlags) -> String {
    let flags = how | AtFlags::SYMLINK_NOFOLLOW;
    let found = rustix::fs::statx(rustix::fs::CWD, path, flags, StatxFlags::BASIC_STATS).unwrap();
    let rustix::fs::Statx {
        stx_mode,
        stx_nlink,
        stx_size,
        stx_mtime,
        stx_ctime,
        ..
    } = found;
    format!("{stx_mode:o} {stx_nlink} {stx_size} {stx_mtime:?} {stx_ctime:?}")
}

fn crc(bytes: &[u8]) -> u32 {
    types::crc32c(bytes)
}

#[test]
fn threads_that_work_on_the_same_names_leave_a_whole_tree() {
    let Some(node) = Node::new("2G") else { return };
    let count = number("GUPFS_STRESS_OPERATIONS", 2500);
    let first = number("GUPFS_STRESS_SEED", 1);
    let root = node.mount().join("tree");
    fs::create_dir(&root).unwrap();
    std::thread::scope(|scope| {
        for seed in first..first + THREAD_COUNT {
            let mut worker = Worker {
                root: &root,
                prng: Prng::new(seed),
                last: String::new(),
            };
            scope.spawn(move || {
                for step in 0..count {
                    if let Err(error) = worker.step() {
                        let errno = error.raw_os_error();
                        let is_expected = errno.is_some_and(|errno| EXPECTED.contains(&errno));
                        assert!(
                            is_expected,
                            "seed {seed}, step {step}: {error}: {}",
                            worker.last
                        );
                    }
                }
            });
        }
    });
    let before = tree(&root);
    assert!(before.len() > 20, "{before:#?}");
    for path in before.keys() {
        let kept = known(path, AtFlags::empty());
        let told = known(path, AtFlags::STATX_FORCE_SYNC);
        assert_eq!(kept, told, "the kernel keeps: {}", path.display());
    }
    node.gupfs(&["down"]);
    let mut fsck = Command::new(env!("CARGO_BIN_EXE_gupfs"));
    let output = fsck
        .args(["fsck", "--data"])
        .arg(node.state())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}");
    node.up(&[]).expect("it comes up");
    let after = tree(&root);
    let differs = |path: &&PathBuf| before.get(*path) != after.get(*path);
    let all = before.keys().chain(after.keys());
    let differing: BTreeMap<_, _> = all
        .filter(differs)
        .map(|path| (path, (before.get(path), after.get(path))))
        .collect();
    assert!(differing.is_empty(), "after a remount: {differing:#?}");
}

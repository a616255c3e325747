//! Disks as the tools use them: looking at the first sectors, and labelling.
//!
//! Invariants:
//! - Nothing is written before every disk of a request has been opened, found large enough and found empty
//!   (or `force` was given).
//! - A file and a loop device over it are one disk: who uses one of them keeps the other from being used.
//! - All I/O goes past the page cache where the disk allows it, so that what a daemon wrote with O_DIRECT is
//!   what is seen here.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{ErrorKind, Seek as _, SeekFrom};
use std::os::unix::fs::{FileExt as _, FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use nsd::label::{self, Decoded, HEAD_SECTORS, Label, LabelError};
use types::{ClusterView, Incarnation, SECTOR_SIZE};

use crate::failure::{Failure, Result};
use crate::system::loops;

/// One aligned sector: what O_DIRECT wants.
#[repr(C, align(4096))]
struct Sector([u8; 4096]);

/// An opened disk.
#[derive(Debug)]
pub struct Disk {
    file: File,
    path: PathBuf,
    /// Whole sectors.
    pub sector_count: u64,
    /// Block device, or file.
    pub is_block: bool,
    /// A FLUSH is needed for durability.
    pub has_volatile_cache: bool,
    /// A block device that takes no writes; one that was opened for writing never is.
    pub is_read_only: bool,
    /// What tells two names of one disk: device and inode, or the device's own number.
    pub identity: (u64, u64),
}

impl Disk {
    /// Opens `path` for looking.
    pub fn open(path: &Path) -> Result<Self> {
        Self::open_with(path, false)
    }

    /// Opens `path` alone for writing: fails while a daemon, a mount or another tool uses it.
    pub fn open_alone(path: &Path) -> Result<Self> {
        check_other_way(path)?;
        let disk = Self::open_with(path, true)?;
        if !disk.is_block {
            match disk.file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => return Err(in_use(path)),
                Err(TryLockError::Error(e)) => return Err(Failure::io("lock", path, &e)),
            }
        }
        Ok(disk)
    }

    fn open_with(path: &Path, alone: bool) -> Result<Self> {
        let metadata = fs::metadata(path).map_err(|e| explain_open(path, &e))?;
        let is_block = metadata.file_type().is_block_device();
        if !is_block && !metadata.is_file() {
            return Err(Failure::new(format!(
                "{} is neither a block device nor a file",
                path.display()
            ))
            .help("name one of these; where gupfs.toml names it, correct the path there"));
        }
        let exclusive = if is_block && alone { libc::O_EXCL } else { 0 };
        let open = |flags: i32| {
            OpenOptions::new()
                .read(true)
                .write(alone)
                .custom_flags(flags)
                .open(path)
        };
        let opened = match open(libc::O_DIRECT | exclusive) {
            Err(e) if e.kind() == ErrorKind::InvalidInput => open(exclusive),
            other => other,
        };
        let mut file = match opened {
            Ok(file) => file,
            Err(e) if e.kind() == ErrorKind::ResourceBusy => return Err(in_use(path)),
            Err(e) => return Err(explain_open(path, &e)),
        };
        let is_read_only = is_block
            && os::disk::device_is_read_only(&file)
                .map_err(|e| Failure::io("ask for the state of disk", path, &e))?;
        // The kernel opens it for writing all the same, and fails the first write: that may come after other disks' first.
        if alone && is_read_only {
            return Err(read_only(path));
        }
        let size = file
            .seek(SeekFrom::End(0))
            .map_err(|e| Failure::io("measure", path, &e))?;
        Ok(Self {
            file,
            path: path.to_owned(),
            sector_count: size / SECTOR_SIZE,
            is_block,
            has_volatile_cache: !is_block || has_write_cache(metadata.rdev()),
            is_read_only,
            identity: identity(&metadata, is_block),
        })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The first sectors, as far as there are any.
    pub fn head(&self) -> Result<Vec<u8>> {
        let mut head = Vec::new();
        let mut sector = Box::new(Sector([0; 4096]));
        for index in 0..HEAD_SECTORS.min(self.sector_count) {
            self.file
                .read_exact_at(&mut sector.0, index * SECTOR_SIZE)
                .map_err(|e| Failure::io("read", &self.path, &e))?;
            head.extend_from_slice(&sector.0);
        }
        Ok(head)
    }

    /// One sector.
    pub fn read(&self, sector: u64) -> Result<Vec<u8>> {
        let mut bytes = Box::new(Sector([0; 4096]));
        self.file
            .read_exact_at(&mut bytes.0, sector * SECTOR_SIZE)
            .map_err(|e| Failure::io("read", &self.path, &e))?;
        Ok(bytes.0.to_vec())
    }

    /// The label, or why there is none.
    pub fn label(&self) -> Result<std::result::Result<Decoded, LabelError>> {
        Ok(Label::decode(&self.head()?))
    }

    /// Writes `label`, `view` and the first segments of the journals that the label names. The label's second copy comes
    /// before all, so that a crash leaves a disk that says whose it was to be; its first copy comes last, so where that is
    /// all the rest is.
    pub fn write_label(&self, label: &Label, view: &ClusterView, life: Incarnation) -> Result<()> {
        let slot = label::encode_view(view).map_err(|e| Failure::new(e.to_string()))?;
        let first_view = u64::try_from(label::COPY_COUNT).expect("two");
        self.clear()?;
        let write_copy = |copy: usize| {
            self.write(copy as u64, &label.encode(copy)[..])?;
            self.flush()
        };
        const { assert!(label::COPY_COUNT == 2) };
        write_copy(1)?;
        for (sector, bytes) in (first_view..).zip(slot.chunks_exact(label::LABEL_SIZE)) {
            self.write(sector, bytes)?;
        }
        for (sector, bytes) in os::daemon::format_journals(label, life) {
            for (sector, bytes) in (sector..).zip(bytes.chunks_exact(label::LABEL_SIZE)) {
                self.write(sector, bytes)?;
            }
        }
        self.flush()?;
        write_copy(0)
    }

    /// Zeroes the first sectors: the disk is blank afterwards. The label goes last, so that a crash leaves a disk that says
    /// whose it is, or a blank one.
    pub fn clear(&self) -> Result<()> {
        let copies = label::COPY_COUNT as u64;
        for sector in (0..HEAD_SECTORS.min(self.sector_count)).rev() {
            if sector + 1 == copies {
                self.flush()?;
            }
            self.write(sector, &[0; 4096])?;
        }
        self.flush()
    }

    fn write(&self, sector: u64, bytes: &[u8]) -> Result<()> {
        let mut buffer = Box::new(Sector([0; 4096]));
        buffer.0.copy_from_slice(bytes);
        self.file
            .write_all_at(&buffer.0, sector * SECTOR_SIZE)
            .map_err(|e| Failure::io("write", &self.path, &e))
    }

    fn flush(&self) -> Result<()> {
        self.file
            .sync_all()
            .map_err(|e| Failure::io("flush", &self.path, &e))
    }
}

fn explain_open(path: &Path, error: &std::io::Error) -> Failure {
    let failure = Failure::io("open disk", path, error);
    if error.kind() == ErrorKind::NotFound {
        failure.help("the disk is missing: name the right path, or make a file with `gupfs nsd create --size`")
    } else {
        failure
    }
}

fn in_use(path: &Path) -> Failure {
    Failure::new(format!(
        "disk {} is in use by another program",
        path.display()
    ))
    .help("stop the daemon or unmount the file system that uses it")
}

/// What is said of a disk that takes no writes.
pub fn read_only(path: &Path) -> Failure {
    let name = path.display();
    Failure::new(format!(
        "disk {name} is read-only: `blockdev --getro {name}` says 1"
    ))
    .help(format!(
        "make it writable (`blockdev --setrw {name}`; a loop device: attach it without -r), or name another disk"
    ))
}

fn identity(metadata: &fs::Metadata, is_block: bool) -> (u64, u64) {
    if !is_block {
        return (metadata.dev(), metadata.ino());
    }
    // A loop device and the file behind it are one disk.
    match file_behind(metadata.rdev()).and_then(fs::metadata) {
        Ok(file) => (file.dev(), file.ino()),
        Err(_) => (u64::MAX, metadata.rdev()),
    }
}

/// The file behind a loop device.
fn file_behind(device: u64) -> std::io::Result<PathBuf> {
    let name = fs::read_to_string(sys_block(device).join("loop/backing_file"))?;
    Ok(PathBuf::from(name.trim_end_matches('\n')))
}

/// Fails where the disk at `path` is used in another way: a file through a loop device, or a loop device's file directly.
pub fn check_other_way(path: &Path) -> Result<()> {
    // What is not there says so when it is opened.
    let Ok(metadata) = fs::metadata(path) else {
        return Ok(());
    };
    if metadata.is_file() {
        return match loops::over(path)?.first() {
            None => Ok(()),
            Some(device) => Err(Failure::new(format!(
                "disk {} is in use: the loop device {} stands over it",
                path.display(),
                device.display()
            ))
            .help(format!(
                "name the loop device; or, once nothing uses that any more, detach it: losetup -d {}",
                device.display()
            ))),
        };
    }
    // Where the file cannot be seen from here it cannot be used from here either.
    let behind = file_behind(metadata.rdev()).and_then(|file| Ok((File::open(&file)?, file)));
    match behind.map(|(opened, file)| (opened.try_lock(), file)) {
        Ok((Err(TryLockError::WouldBlock), file)) => Err(Failure::new(format!(
            "disk {} is in use: another program uses {}, the file behind it",
            path.display(),
            file.display()
        ))
        .help("stop the daemon that uses the file")),
        _ => Ok(()),
    }
}

fn has_write_cache(device: u64) -> bool {
    let path = sys_block(device).join("queue/write_cache");
    // Unknown counts as 'has one': a needless FLUSH is slow, a missing one loses data.
    fs::read_to_string(path).map_or(true, |text| text.trim() != "write through")
}

fn sys_block(device: u64) -> PathBuf {
    PathBuf::from(format!(
        "/sys/dev/block/{}:{}",
        libc::major(device),
        libc::minor(device)
    ))
}

/// What is said of a disk whose label is no good one.
pub fn without_label(error: &LabelError) -> String {
    match error {
        LabelError::Blank => "no label: its first sectors are empty".to_owned(),
        other => other.to_string(),
    }
}

/// As `explain`, of a disk that a state directory names: it had a label, and what lies behind may be whole.
pub fn explain_own(path: &Path, error: &LabelError) -> Failure {
    let failure = explain(path, error);
    match error {
        LabelError::Blank
        | LabelError::Short { .. }
        | LabelError::Foreign { .. }
        | LabelError::Damaged { .. } => failure.help(format!(
            "is it the right disk? Its data may be whole: make no file system over it, `gupfs fsck` of the state directory says what else is damaged. Restore its first {HEAD_SECTORS} sectors of 4 KiB from a copy of the disk"
        )),
        _ => failure,
    }
}

/// Turns what the label says into a message with the place and the remedy.
pub fn explain(path: &Path, error: &LabelError) -> Failure {
    let said = without_label(error);
    let failure = Failure::new(format!("disk {}: {said}", path.display()));
    failure.help(match error {
        LabelError::Blank | LabelError::Short { .. } => {
            "name the right disk; a new file system is made with `gupfs up` or `gupfs fs create`"
        }
        LabelError::Foreign { .. } => {
            "name another disk; if its data may be destroyed, give --force to `gupfs fs create`"
        }
        LabelError::Overwritten { .. } => {
            "somebody made another file system over this NSD: stop and look before anything writes to it"
        }
        LabelError::Damaged { .. } => {
            "restore the first 64 sectors from a copy; if the data may be destroyed, `gupfs fs create --force`"
        }
        LabelError::NewerVersion { .. } | LabelError::UnknownFeatures { .. } => {
            "use the gupfs version that wrote it"
        }
        LabelError::Mismatch { .. } => "name the disk that belongs to this state directory",
        LabelError::Older { .. } => {
            "nothing was changed. Put back its newest copy, or copies of all its node's NSDs of one moment"
        }
        LabelError::Shrunk { .. } => "the file was cut or the device is another one: restore its full size",
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_names_of_one_disk_have_one_identity() {
        let directory = tempfile::tempdir().expect("a directory");
        let (a, b) = (directory.path().join("a"), directory.path().join("b"));
        fs::write(&a, vec![0; 8192]).expect("written");
        fs::hard_link(&a, &b).expect("linked");
        let (first, second) = (Disk::open(&a).expect("a"), Disk::open(&b).expect("b"));
        assert_eq!(first.identity, second.identity);
        assert_eq!(first.sector_count, 2);
        assert_eq!(first.head().expect("read").len(), 8192);
        assert_eq!(first.label().expect("read"), Err(LabelError::Blank));
    }

    #[test]
    fn a_disk_is_written_by_one() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("a");
        fs::write(&path, vec![7; 8192]).expect("written");
        let first = Disk::open_alone(&path).expect("alone");
        let failure = Disk::open_alone(&path).expect_err("in use");
        assert!(failure.what().contains("in use"), "{failure}");
        first.clear().expect("cleared");
        assert_eq!(fs::read(&path).expect("read"), vec![0; 8192]);
    }

    #[test]
    fn what_is_no_disk_is_named() {
        let missing = Disk::open(Path::new("/no/such/disk")).expect_err("missing");
        assert!(missing.to_string().contains("missing"), "{missing}");
        let directory = Disk::open(Path::new("/tmp")).expect_err("a directory");
        assert!(directory.what().contains("neither"), "{directory}");
        assert!(directory.remedy().is_some());
    }

    /// What a state directory names had a label: nothing says that its data may be destroyed.
    #[test]
    fn a_label_that_was_lost_is_no_reason_to_make_another() {
        let short = LabelError::Short {
            needed: 8192,
            found: 0,
        };
        for error in [LabelError::Blank, short] {
            let said = explain_own(Path::new("/d"), &error).to_string();
            assert!(
                !said.contains("--force") && !said.contains("nsd create"),
                "{said}"
            );
            assert!(
                said.contains("may be whole") && said.contains("gupfs fsck"),
                "{said}"
            );
        }
    }
}

//! Machines whose power can be cut: a lab on an XFS on a loop device over a file in memory, or on disks whose cache ends with the daemon.
//!
//! A shut down XFS has lost what its log did not hold: sizes, allocations, and which sectors of a preallocated or sparse file were
//! written. So a first write to a sector of an NSD, direct or not, is gone unless a flush came after it. (A sector written again is in
//! the loop device at once and stays.) A disk with a volatile cache (`--backing volatile`) loses all that was not flushed but for some
//! sectors that it wrote back by itself; there one node can lose its power alone, and the other one lives on.
#![allow(unsafe_code, reason = "an ioctl of XFS")]

use std::fs::{self, File, OpenOptions};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use gupfs::lab::Lab;
use gupfs::service;
use gupfs::system::{loops, mounts, process};

/// Bytes of all NSDs: small, so that freed sectors are used again.
const SIZE: &str = "256M";
const PROBE_SIZE: u64 = 64 << 20;
/// `XFS_IOC_GOINGDOWN`, and its argument "without the log".
const GOING_DOWN: libc::Ioctl = 0x8004_587d;
const WITHOUT_LOG: u32 = 2;

/// The error of what was acknowledged too late.
pub const THE_POWER_GOES: &str = "the power goes";

/// A loss of power that comes: what is acknowledged once it has begun is worth nothing.
///
/// An fdatasync that meets the shutdown of XFS returns 0 although its data is lost: with four threads that write a new sector and
/// sync it in a loop, without GUPFS, 249 of 1600 last sectors in 400 shutdowns. A disk whose power goes gives no answer at all.
#[derive(Debug, Default)]
pub struct Cut {
    has_begun: AtomicBool,
    is_over: AtomicBool,
}

impl Cut {
    /// The load is to end.
    pub fn end(&self) {
        self.is_over.store(true, Ordering::SeqCst);
    }

    /// Ends the load when it is dropped.
    pub fn ending(&self) -> Ending<'_> {
        Ending(self)
    }

    /// The load ends.
    pub fn is_over(&self) -> bool {
        self.is_over.load(Ordering::SeqCst)
    }

    /// Whether the success that was just returned came while there was power.
    ///
    /// # Errors
    /// The power was about to go: nobody can say.
    pub fn acknowledged(&self) -> Result<(), std::io::Error> {
        match self.has_begun.load(Ordering::SeqCst) {
            true => Err(std::io::Error::other(THE_POWER_GOES)),
            false => Ok(()),
        }
    }
}

/// See `Cut::ending`.
pub struct Ending<'a>(&'a Cut);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// What loses power.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disks {
    /// An XFS on a loop device, with all that lies on it.
    Xfs,
    /// The cache of each disk, with the daemon that serves it.
    Volatile,
}

/// The machines.
pub struct Rig {
    root: PathBuf,
    disks: Disks,
    device: Option<PathBuf>,
    lab: Lab,
    node_count: u16,
    probe: AtomicU64,
    is_left: bool,
}

fn run(words: &[&str]) -> Result<String, String> {
    let output = Command::new("timeout")
        .args(["-k", "5", "60"])
        .args(words)
        .output();
    let output = output.map_err(|e| format!("timeout(1): {e}"))?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    match output.status.success() {
        true => Ok(said),
        false => Err(format!(
            "{words:?}: {said}{}",
            String::from_utf8_lossy(&output.stderr)
        )),
    }
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a plain name")
}

fn can_run(disks: Disks) -> bool {
    use std::os::unix::fs::MetadataExt as _;
    let is_root = fs::metadata("/proc/self").is_ok_and(|m| m.uid() == 0);
    let has_xfs = fs::read_to_string("/proc/filesystems").is_ok_and(|t| t.contains("\txfs\n"));
    let is_able = is_root
        && Path::new("/dev/fuse").exists()
        && (disks == Disks::Volatile || has_xfs || run(&["modprobe", "xfs"]).is_ok());
    let is_able = is_able && (disks == Disks::Volatile || run(&["mkfs.xfs", "-V"]).is_ok());
    if !is_able {
        crate::left_out::left_out("needs root, /dev/fuse and XFS");
    }
    is_able
}

impl Rig {
    /// Makes the machines; `None` where that cannot be done.
    pub fn new(disks: Disks, node_count: u16) -> Option<Self> {
        if !can_run(disks) {
            return None;
        }
        let made = tempfile::Builder::new()
            .prefix("gupfs-power-")
            .tempdir_in("/dev/shm");
        let root = made.expect("Linux has /dev/shm").keep();
        let lab = Lab::new(&root.join("machine/lab")).expect("an absolute path");
        let mut rig = Self {
            root,
            disks,
            device: None,
            lab,
            node_count,
            probe: AtomicU64::new(0),
            is_left: false,
        };
        fs::create_dir(rig.machine()).unwrap();
        if disks == Disks::Volatile {
            rig.gupfs_up();
            return Some(rig);
        }
        let image = rig.root.join("disk.img");
        File::create(&image).unwrap().set_len(1 << 30).unwrap();
        run(&["mkfs.xfs", "-q", text(&image)]).expect("made");
        let device = run(&["losetup", "--find", "--show", text(&image)]).expect("a loop device");
        rig.device = Some(PathBuf::from(device.trim()));
        rig.mount_xfs();
        rig.gupfs_up();
        File::create(rig.machine().join("probe"))
            .and_then(|f| f.set_len(PROBE_SIZE))
            .unwrap();
        // The machine has been running for a while.
        run(&["sync", "-f", text(&rig.machine())]).expect("synced");
        Some(rig)
    }

    /// Where everything lies that the machines have.
    fn machine(&self) -> PathBuf {
        self.root.join("machine")
    }

    fn mount_xfs(&self) {
        // A name space of mounts that is just being made elsewhere (another test's daemon starts) may hold the one that was
        // shut down for a moment, and then it is mounted again as it is: dead.
        let device = self.device.as_deref().expect("attached");
        let until = Instant::now() + Duration::from_secs(20);
        loop {
            run(&["mount", "-t", "xfs", text(device), text(&self.machine())])
                .expect("XFS mounts and replays its log");
            match fs::metadata(self.machine()) {
                Ok(_) => return,
                Err(error) if Instant::now() > until => panic!("XFS stays shut down: {error}"),
                Err(_) => run(&["umount", text(&self.machine())]).expect("nobody uses it"),
            };
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn gupfs_up(&self) {
        let nodes = self.node_count.to_string();
        let directory = self.machine().join("lab");
        let gupfs = env!("CARGO_BIN_EXE_gupfs");
        let backing = match self.disks {
            Disks::Xfs => "file",
            Disks::Volatile => "volatile",
        };
        let words = [
            gupfs,
            "lab",
            "up",
            "--dir",
            text(&directory),
            "--nodes",
            &nodes,
            "--size",
            SIZE,
            "--backing",
            backing,
        ];
        if let Err(said) = run(&words) {
            panic!("{said}\n{}", self.logs());
        }
    }

    /// The mount of a node, from 0 on.
    pub fn mount(&self, node: usize) -> PathBuf {
        self.lab.mount(u16::try_from(node).expect("few") + 1)
    }

    /// Ends of the daemons' logs, of this life and of what is left of the one before.
    pub fn logs(&self) -> String {
        let log = |node| {
            let path = self.lab.place(node).expect("an absolute path").log();
            format!("log of n{node}:\n{}\n", process::tail(&path, 25))
        };
        (1..=self.node_count).map(log).collect()
    }

    /// Writes to the disk what no flush follows.
    fn write_probe(&self) {
        let at = self.probe.fetch_add(4096, Ordering::SeqCst);
        let flags = libc::O_DIRECT;
        let file = OpenOptions::new()
            .write(true)
            .custom_flags(flags)
            .open(self.machine().join("probe"))
            .unwrap();
        let bytes = vec![0x5a; 8192];
        let skip = bytes.as_ptr().align_offset(4096);
        file.write_all_at(&bytes[skip..skip + 4096], at).unwrap();
    }

    /// The power of `nodes` (from 0 on; all, on XFS) goes: whatever their disks hold in caches is lost, and they do not run any more.
    pub fn cut_power(&self, nodes: &[usize], cut: &Cut) {
        if self.disks == Disks::Volatile {
            cut.has_begun.store(true, Ordering::SeqCst);
            return self.end_daemons(nodes);
        }
        self.write_probe();
        let root = File::open(self.machine()).unwrap();
        let how = WITHOUT_LOG;
        cut.has_begun.store(true, Ordering::SeqCst);
        // SAFETY: a descriptor that is open, and a number that the kernel reads.
        let result = unsafe { libc::ioctl(root.as_raw_fd(), GOING_DOWN, &raw const how) };
        assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
        drop(root);
        self.end_daemons(nodes);
    }

    fn numbers(nodes: &[usize]) -> impl Iterator<Item = u16> {
        nodes
            .iter()
            .map(|node| u16::try_from(*node).expect("few") + 1)
    }

    fn end_daemons(&self, nodes: &[usize]) {
        for node in Self::numbers(nodes) {
            let place = self.lab.place(node).expect("an absolute path");
            for pid in process::daemons_of(place.root()).unwrap_or_default() {
                process::kill_daemon(pid, place.root()).expect("killed");
            }
        }
        for node in Self::numbers(nodes) {
            if let Err(failure) = service::abort(&self.lab.mount(node)) {
                eprintln!("abort of n{node}: {failure}");
            }
        }
    }

    /// Unmounts what the dead daemons of `nodes` served, and XFS.
    fn unmount(&self, nodes: &[usize]) -> Result<(), String> {
        for node in Self::numbers(nodes) {
            if let Some(mount) = mounts::at(&self.lab.mount(node)).map_err(|f| f.to_string())? {
                mounts::remove(&mount).map_err(|f| f.to_string())?;
            }
        }
        if self.disks == Disks::Volatile {
            return Ok(());
        }
        let until = Instant::now() + Duration::from_secs(20);
        // The last write of a daemon that was killed may still be under way.
        loop {
            match run(&["umount", text(&self.machine())]) {
                Ok(_) => return Ok(()),
                Err(said) if Instant::now() > until => return Err(said),
                Err(_) => std::thread::sleep(Duration::from_millis(20)),
            }
        }
    }

    /// The power of `nodes` is back. `is_checked` (where all had lost it): what the disks hold is a whole file system before anybody
    /// replays it.
    pub fn power_on(&self, nodes: &[usize], is_checked: bool) {
        self.unmount(nodes).expect("nobody uses it any more");
        if self.disks == Disks::Xfs {
            self.mount_xfs();
        }
        if is_checked {
            let directory = self.machine().join("lab");
            let gupfs = env!("CARGO_BIN_EXE_gupfs");
            let until = Instant::now() + Duration::from_secs(20);
            // The locks of a daemon that was killed end with its last request.
            while let Err(said) = run(&[gupfs, "fsck", "--data", text(&directory)]) {
                let is_early = said.contains("is in use by") && Instant::now() < until;
                assert!(is_early, "{said}\n{}", self.logs());
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        self.gupfs_up();
    }

    /// Whether the disk has lost the newest probe. Volatile caches have a test of their own.
    pub fn is_probe_lost(&self) -> bool {
        if self.disks == Disks::Volatile {
            return true;
        }
        let at = self.probe.load(Ordering::SeqCst) - 4096;
        let mut bytes = [1; 4096];
        let file = File::open(self.machine().join("probe")).unwrap();
        file.read_exact_at(&mut bytes, at).unwrap();
        bytes.iter().all(|b| *b == 0)
    }

    /// Something is wrong: everything stays as it is, if the environment says so.
    pub fn leave_if_wanted(&mut self) {
        self.is_left = std::env::var_os("GUPFS_POWER_KEEP").is_some();
    }

    /// Ends it all; the test has passed.
    pub fn finish(self) {
        drop(self);
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        if self.is_left {
            return eprintln!("left as it is: {}", self.root.display());
        }
        let nodes: Vec<usize> = (0..usize::from(self.node_count)).collect();
        self.end_daemons(&nodes);
        let directory = self.machine().join("lab");
        let down = run(&[
            env!("CARGO_BIN_EXE_gupfs"),
            "lab",
            "down",
            "--dir",
            text(&directory),
        ]);
        let unmounted = match mounts::at(&self.machine()) {
            Ok(Some(_)) => self.unmount(&nodes),
            _ => Ok(()),
        };
        let detached = loops::detach_below(&self.root)
            .map(drop)
            .map_err(|f| f.to_string());
        for failed in [down.map(drop), unmounted, detached]
            .into_iter()
            .filter_map(Result::err)
        {
            eprintln!("left behind in {}: {failed}", self.root.display());
        }
        let _ = fs::remove_dir_all(&self.root);
    }
}

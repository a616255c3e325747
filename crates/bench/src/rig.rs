//! What is measured and compared: file systems on devices in memory, made when first asked for.
//!
//! Invariant: everything that was started or mounted ends with the `Rig`, also after a failure; what a killed
//! run left is removed by the next one.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::Value;

/// Bytes of the device of X in memory.
const DEVICE_SIZE: u64 = 4 << 30;
/// Bytes of a raw device in memory: as many as the largest file.
const RAW_SIZE: u64 = 1 << 30;
/// Where the tmpfs of X, R and Tp are mounted, below the run's directory.
const MEMORIES: [&str; 3] = ["x-memory", "r-memory", "t-memory"];
/// Name of a run's directory, before its pid.
const PREFIX: &str = "gupfs-bench-";
/// Bytes of the four NSDs together.
const GUPFS_SIZE: &str = "4G";
/// The same, in MiB.
const GUPFS_MEBIBYTES: u64 = 4 << 10;
/// Bytes of the four NSDs for each small file, where these need more.
const FILE_ROOM: u64 = 1_600;
/// As `gupfs up --backing ram` sets its loop devices up: tmpfs may refuse the first.
const RAW_OPTIONS: [&str; 2] = ["--direct-io=on", "--direct-io=off"];
/// Threads of a trivial server that waits for its disk: more of them are no quicker.
const TRIVIAL_WRITERS: &str = "8";
/// Percent of the free bytes that are written once before anything is measured.
const FILL_PERCENT: u64 = 85;
/// How long a server may take to mount.
const MOUNT_LIMIT: Duration = Duration::from_secs(20);

/// T0 with what T has: as many threads, a descriptor each, the same checks by the kernel (without
/// `default_permissions` and AUTO_INVAL_DATA it is spared the GETATTR of each create and unlink, a third of
/// the work).
const CEILING_OPTIONS: &str =
    "allow_other,default_permissions,clone_fd,max_threads=2,max_idle_threads=2,mem,dio,inval";

/// A mounted file system.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Target {
    /// Where it is mounted.
    pub(crate) mount: PathBuf,
    /// The process that serves it; `None` for xfs.
    pub(crate) pid: Option<u32>,
}

/// The lab of two nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Pair {
    root: PathBuf,
}

/// Everything that a run needs.
#[derive(Debug)]
pub(crate) struct Rig {
    root: PathBuf,
    repository: PathBuf,
    made: BTreeMap<&'static str, Target>,
    children: Vec<Child>,
    pair: Option<Pair>,
    /// The devices of G have been written once.
    is_filled: bool,
    /// Of the NSDs of G together, as `gupfs up` takes it.
    size: String,
}

impl Rig {
    /// An empty rig below a new directory; G has room for `many_count` small files.
    pub(crate) fn new(many_count: u64) -> Result<Self> {
        let repository = Path::new(env!("CARGO_MANIFEST_DIR"))
            .ancestors()
            .nth(2)
            .context("this crate lies in the repository")?
            .to_owned();
        clean_leftovers(&repository)?;
        let root = std::env::temp_dir().join(format!("{PREFIX}{}", std::process::id()));
        fs::create_dir(&root).with_context(|| format!("cannot make {}", root.display()))?;
        Ok(Self {
            root,
            repository,
            made: BTreeMap::new(),
            children: Vec::new(),
            pair: None,
            is_filled: false,
            size: format!("{}M", GUPFS_MEBIBYTES.max((many_count * FILE_ROOM) >> 20)),
        })
    }

    /// A directory for files of the bench itself, on the machine's own file system.
    pub(crate) fn scratch(&self) -> &Path {
        &self.root
    }

    /// xfs on a loop device over a tmpfs.
    pub(crate) fn xfs(&mut self) -> Result<Target> {
        self.once("x", |rig| {
            let device = rig.device("x-memory", DEVICE_SIZE - (64 << 20), &[])?;
            let mount = rig.directory("x")?;
            run("mkfs.xfs", &["-q", text(&device)])?;
            run("mount", &["-t", "xfs", text(&device), text(&mount)])?;
            write_once(&mount)?;
            Ok(Target { mount, pid: None })
        })
    }

    /// Mounts X anew: nothing of its data is in memory afterwards.
    pub(crate) fn remount_xfs(&mut self) -> Result<Target> {
        let x = self.xfs()?;
        let device = run("findmnt", &["-n", "-o", "SOURCE", text(&x.mount)])?;
        run("umount", &[text(&x.mount)])?;
        run("mount", &["-t", "xfs", device.trim(), text(&x.mount)])?;
        Ok(x)
    }

    /// R: a loop device over a tmpfs, as the NSDs of G are, written once.
    pub(crate) fn raw(&mut self) -> Result<PathBuf> {
        self.raw_device("r-memory")
    }

    fn raw_device(&mut self, name: &str) -> Result<PathBuf> {
        let file = self.root.join(name).join("device");
        if file.exists() {
            let device = run("losetup", &["-n", "-O", "NAME", "-j", text(&file)])?;
            return Ok(PathBuf::from(device.trim()));
        }
        let device = self.device(name, RAW_SIZE, &RAW_OPTIONS)?;
        let block = vec![0xa5; 1 << 20];
        let mut opened = fs::OpenOptions::new().write(true).open(&device)?;
        for _ in 0..RAW_SIZE >> 20 {
            opened.write_all(&block)?;
        }
        opened.sync_all()?;
        Ok(device)
    }

    /// A loop device of `size` bytes over a tmpfs of its own.
    fn device(&self, name: &str, size: u64, options: &[&'static str]) -> Result<PathBuf> {
        let memory = self.directory(name)?;
        let room = format!("size={}", size + (64 << 20));
        run(
            "mount",
            &["-t", "tmpfs", "-o", &room, "gupfs-bench", text(&memory)],
        )?;
        let file = memory.join("device");
        fs::File::create(&file)?.set_len(size)?;
        let attach = |option: &str| {
            let mut arguments = vec!["--find", "--show"];
            arguments.extend((!option.is_empty()).then_some(option));
            arguments.push(text(&file));
            run("losetup", &arguments)
        };
        let (last, before) = options.split_last().unwrap_or((&"", &[]));
        let attached = before.iter().find_map(|option| attach(option).ok());
        let device = attached.map_or_else(|| attach(last), Ok)?;
        Ok(PathBuf::from(device.trim()))
    }

    /// T: the trivial server on our FUSE layer.
    pub(crate) fn trivial(&mut self) -> Result<Target> {
        // A slab of 1 MiB of address space for each file with data; memory only where written. It opens a file that
        // is read again as ours does: through the page cache.
        let options = [
            "--mem",
            "--threads",
            "2",
            "--slabs",
            "16384",
            "--direct-from",
            "9223372036854775807",
        ];
        self.once("t", |rig| rig.trivial_with("t", &options))
    }

    /// Tp: the same, each write a pwrite and each read a pread on a raw device.
    pub(crate) fn trivial_on_disk(&mut self) -> Result<Target> {
        let device = self.raw_device("t-memory")?;
        let options = ["--threads", TRIVIAL_WRITERS, "--disk", text(&device)];
        self.once("tp", |rig| rig.trivial_with("tp", &options))
    }

    fn trivial_with(&mut self, name: &str, options: &[&str]) -> Result<Target> {
        let program = self.built("examples/trivial")?;
        let mount = self.directory(name)?;
        let mut command = Command::new(program);
        command.arg(&mount).args(options).stdout(Stdio::piped());
        let mut child = command.spawn().context("cannot start the trivial server")?;
        let out = child.stdout.take().context("its output is piped")?;
        let mut line = String::new();
        BufReader::new(out).read_line(&mut line)?;
        let pid = child.id();
        self.children.push(child);
        ensure!(
            line.starts_with("mounted"),
            "the trivial server did not mount"
        );
        Ok(Target {
            mount,
            pid: Some(pid),
        })
    }

    /// T0: the same on libfuse.
    pub(crate) fn ceiling(&mut self) -> Result<Target> {
        self.once("t0", |rig| {
            let (program, mount) = (rig.root.join("fuse-ceiling"), rig.directory("t0")?);
            let flags = run("pkg-config", &["--cflags", "--libs", "fuse3"])
                .context("libfuse3-dev is missing")?;
            let source = rig.repository.join("benchmarks/fuse-ceiling.c");
            let mut arguments = vec!["-O2", "-w", "-o", text(&program), text(&source)];
            arguments.extend(flags.split_whitespace());
            arguments.push("-lpthread");
            run("gcc", &arguments)?;
            let child = Command::new(&program)
                .arg(&mount)
                .args(["-f", "-o", CEILING_OPTIONS])
                .spawn()
                .context("cannot start fuse-ceiling")?;
            let pid = child.id();
            rig.children.push(child);
            wait_mounted(&mount)?;
            Ok(Target {
                mount,
                pid: Some(pid),
            })
        })
    }

    /// G: GUPFS on one node.
    pub(crate) fn gupfs(&mut self) -> Result<Target> {
        self.once("g", |rig| {
            let (mount, state) = (rig.directory("g")?, rig.root.join("g-state"));
            let size = rig.size.clone();
            rig.gupfs_command(&[
                "up",
                "--mount",
                text(&mount),
                "--state",
                text(&state),
                "--size",
                &size,
                "--backing",
                "ram",
            ])?;
            if !std::mem::replace(&mut rig.is_filled, true) {
                write_once(&mount)?;
            }
            let pid = fs::read_to_string(state.join("pid")).context("the daemon wrote no pid")?;
            Ok(Target {
                mount,
                pid: Some(pid.trim().parse()?),
            })
        })
    }

    /// Stops G and mounts it again: nothing of its data is in memory afterwards.
    pub(crate) fn remount_gupfs(&mut self) -> Result<Target> {
        if self.made.remove("g").is_some() {
            let state = self.root.join("g-state");
            self.gupfs_command(&["down", "--state", text(&state)])?;
        }
        self.gupfs()
    }

    /// Sets what G runs with from its next start on.
    pub(crate) fn set_gupfs(&mut self, key: &str, value: &str) -> Result<()> {
        self.gupfs()?;
        let state = self.root.join("g-state");
        self.gupfs_command(&["config", "set", key, value, "--state", text(&state)])?;
        Ok(())
    }

    /// Kills G, takes it off and starts it again; the time from then until it is mounted.
    pub(crate) fn recover_gupfs(&mut self) -> Result<Duration> {
        let g = self.gupfs()?;
        let pid = g.pid.context("a daemon has a pid")?;
        run("kill", &["-9", &pid.to_string()])?;
        let begin = Instant::now();
        while Path::new(&format!("/proc/{pid}")).exists() {
            ensure!(
                begin.elapsed() < MOUNT_LIMIT,
                "a killed daemon does not end"
            );
            std::thread::sleep(Duration::from_millis(1));
        }
        run("umount", &["-l", text(&g.mount)])?;
        self.made.remove("g");
        let begin = Instant::now();
        self.gupfs()?;
        Ok(begin.elapsed())
    }

    /// A counter of G, summed over those whose name has all of `words`.
    pub(crate) fn gupfs_counter(&self, words: &[&str]) -> Result<u64> {
        let state = self.root.join("g-state");
        self.counter_of(&state, words)
    }

    /// Records that the last start of G replayed, as its log says.
    pub(crate) fn replayed(&self) -> Result<String> {
        let log =
            fs::read_to_string(self.root.join("g-state/log")).context("the daemon has a log")?;
        let said = log
            .lines()
            .rev()
            .find_map(|l| l.split_once("replayed operations="));
        Ok(said
            .context("the daemon says what it replayed")?
            .1
            .trim()
            .to_owned())
    }

    fn counter_of(&self, state: &Path, words: &[&str]) -> Result<u64> {
        let answer = self.gupfs_command(&["dump", "counters", "--state", text(state), "--json"])?;
        let counters: Value = serde_json::from_str(&answer).context("counters are JSON")?;
        let mut found = None;
        sum(&counters, "", words, &mut found);
        found.with_context(|| format!("the daemon has no counter named {words:?}"))
    }

    /// The lab of two nodes.
    pub(crate) fn pair(&mut self) -> Result<Pair> {
        if self.pair.is_none() {
            let root = self.root.join("lab");
            self.gupfs_command(&[
                "lab",
                "up",
                "--dir",
                text(&root),
                "--nodes",
                "2",
                "--size",
                GUPFS_SIZE,
                "--backing",
                "ram",
            ])?;
            write_once(&root.join("n1/mnt"))?;
            self.pair = Some(Pair { root });
        }
        self.pair.clone().context("made just now")
    }

    /// Runs `gupfs` and returns what it printed.
    pub(crate) fn gupfs_command(&self, arguments: &[&str]) -> Result<String> {
        let program = self.built("gupfs")?;
        run(text(&program), arguments)
    }

    fn once(
        &mut self,
        name: &'static str,
        make: impl FnOnce(&mut Self) -> Result<Target>,
    ) -> Result<Target> {
        if let Some(target) = self.made.get(name) {
            return Ok(target.clone());
        }
        let target = make(self)?;
        self.made.insert(name, target.clone());
        Ok(target)
    }

    fn directory(&self, name: &str) -> Result<PathBuf> {
        let path = self.root.join(name);
        fs::create_dir_all(&path).with_context(|| format!("cannot make {}", path.display()))?;
        Ok(path)
    }

    /// A released program: it lies beside this one.
    fn built(&self, name: &str) -> Result<PathBuf> {
        let own = std::env::current_exe().context("cannot find myself")?;
        let path = own
            .parent()
            .context("a program lies in a directory")?
            .join(name);
        ensure!(
            path.exists(),
            "{} is not built; run `cargo xtask bench`",
            path.display()
        );
        Ok(path)
    }
}

impl Pair {
    /// Mount of `node`, 1 or 2.
    pub(crate) fn mount(&self, node: u16) -> PathBuf {
        self.root.join(format!("n{node}/mnt"))
    }

    /// All counters of `node`, summed over those whose name has all of `words`.
    pub(crate) fn counter(&self, rig: &Rig, node: u16, words: &[&str]) -> Result<u64> {
        rig.counter_of(&self.root.join(format!("n{node}")), words)
    }

    /// Messages that both nodes have sent so far, as frames on the wire: I/O requests, questions, tokens, and
    /// their answers; leases and views, which go on all the time, are not counted.
    pub(crate) fn messages(&self, rig: &Rig) -> Result<u64> {
        let mut total = 0;
        for (node, class) in [1, 2]
            .into_iter()
            .flat_map(|n| ["nsd", "token", "node"].map(|c| (n, c)))
        {
            total += self.counter(rig, node, &["frames_sent", class])?;
        }
        Ok(total)
    }

    /// The NSDs that `node` reaches through the other node's server, as a layout names them.
    pub(crate) fn remote_layout(&self, rig: &Rig, node: u16) -> Result<String> {
        let state = self.root.join(format!("n{node}"));
        let answer = rig.gupfs_command(&["status", "--state", text(&state), "--json"])?;
        let status: Value = serde_json::from_str(&answer).context("the status is JSON")?;
        let nsds = status["nsds"].as_array().context("the status has NSDs")?;
        let remote = nsds.iter().filter(|nsd| nsd["direct"] == false);
        let numbers: Vec<String> = remote.map(|nsd| nsd["nsd"].to_string()).collect();
        ensure!(!numbers.is_empty(), "node {node} has all NSDs itself");
        Ok(format!("nsds={}", numbers.join(",")))
    }

    /// Name space of `node`.
    pub(crate) fn netns(&self, rig: &Rig, node: u16) -> Result<String> {
        let answer = rig.gupfs_command(&["lab", "status", "--dir", text(&self.root), "--json"])?;
        let status: Value = serde_json::from_str(&answer).context("the status is JSON")?;
        let name = status["nodes"][usize::from(node) - 1]["netns"].as_str();
        Ok(name.context("a node has a name space")?.to_owned())
    }
}

fn sum(value: &Value, name: &str, words: &[&str], found: &mut Option<u64>) {
    match value {
        Value::Object(map) => map
            .iter()
            .for_each(|(key, inner)| sum(inner, &format!("{name}.{key}"), words, found)),
        Value::Number(number) if words.iter().all(|w| name.contains(w)) => {
            *found = Some(found.unwrap_or(0) + number.as_u64().unwrap_or(0));
        }
        _ => {}
    }
}

/// Removes what a run left that was killed: its directory names a process that is gone.
fn clean_leftovers(repository: &Path) -> Result<()> {
    for entry in fs::read_dir(std::env::temp_dir())?.flatten() {
        let name = entry.file_name();
        let pid = name
            .to_str()
            .and_then(|n| n.strip_prefix(PREFIX)?.parse::<u32>().ok());
        if pid.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists()) {
            eprintln!(
                "removing what a killed run left in {}",
                entry.path().display()
            );
            drop(Rig {
                root: entry.path(),
                repository: repository.to_owned(),
                made: BTreeMap::new(),
                children: Vec::new(),
                pair: None,
                is_filled: false,
                size: GUPFS_SIZE.to_owned(),
            });
        }
    }
    Ok(())
}

/// A path of ours as text.
pub(crate) fn text(path: &Path) -> &str {
    path.to_str().expect("paths of the bench are plain text")
}

/// Writes most of the free space of the file system at `mount` once, and frees it: memory that a device has
/// not touched before costs more to write (2 ms per MiB here) than everything that is measured.
fn write_once(mount: &Path) -> Result<()> {
    let free: u64 = run("stat", &["--file-system", "--format=%a %S", text(mount)])?
        .split_whitespace()
        .map(str::parse::<u64>)
        .product::<Result<u64, _>>()
        .context("stat prints numbers")?;
    let path = mount.join("fill");
    let block = vec![0xa5; 1 << 20];
    let mut file = fs::File::create(&path)?;
    for _ in 0..(free / 100 * FILL_PERCENT) >> 20 {
        file.write_all(&block)
            .with_context(|| format!("filling {}", mount.display()))?;
    }
    file.sync_all()?;
    drop(file);
    fs::remove_file(&path)?;
    run("sync", &["--file-system", text(mount)])?;
    Ok(())
}

/// Runs a program and returns what it printed.
pub(crate) fn run(program: &str, arguments: &[&str]) -> Result<String> {
    let output = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("cannot run {program}"))?;
    if !output.status.success() {
        bail!(
            "{program} {}: {}",
            arguments.join(" "),
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn wait_mounted(mount: &Path) -> Result<()> {
    let begin = Instant::now();
    while !mounts_below(mount)?.contains(&mount.to_owned()) {
        ensure!(
            begin.elapsed() < MOUNT_LIMIT,
            "nothing was mounted on {}",
            mount.display()
        );
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

/// Mount points at `root` and below, newest first.
fn mounts_below(root: &Path) -> Result<Vec<PathBuf>> {
    let list = fs::read_to_string("/proc/self/mounts").context("cannot read the mounts")?;
    let points = list
        .lines()
        .filter_map(|line| line.split(' ').nth(1))
        .map(PathBuf::from);
    let mut below: Vec<PathBuf> = points.filter(|p| p.starts_with(root)).collect();
    below.reverse();
    Ok(below)
}

/// Forgets what the kernel has cached.
pub(crate) fn drop_caches() -> Result<()> {
    run("sync", &[])?;
    fs::write("/proc/sys/vm/drop_caches", "3").context("cannot drop the caches")
}

impl Drop for Rig {
    fn drop(&mut self) {
        // Each step is tried whatever became of the ones before; what fails is said.
        let say = |what: &str, result: Result<String>| {
            if let Err(error) = result {
                eprintln!("bench: cleaning up: {what}: {error:#}");
            }
        };
        let (state, lab) = (self.root.join("g-state"), self.root.join("lab"));
        if state.exists() {
            say(
                "down",
                self.gupfs_command(&["down", "--state", text(&state), "--destroy"]),
            );
        }
        if lab.exists() {
            say(
                "lab down",
                self.gupfs_command(&["lab", "down", "--dir", text(&lab)]),
            );
        }
        let is_memory = |p: &PathBuf| {
            p.file_name()
                .is_some_and(|name| MEMORIES.contains(&name.to_string_lossy().as_ref()))
        };
        let (memory, others): (Vec<_>, Vec<_>) = mounts_below(&self.root)
            .unwrap_or_default()
            .into_iter()
            .partition(is_memory);
        for point in others {
            say("umount", run("umount", &["-l", text(&point)]));
        }
        for mut child in self.children.drain(..) {
            // It ends with its mount; the kill is for one that hangs.
            let _ = child.kill();
            let _ = child.wait();
        }
        for point in memory {
            let device = run(
                "losetup",
                &["-n", "-O", "NAME", "-j", text(&point.join("device"))],
            );
            for device in device.unwrap_or_default().lines() {
                say("losetup", run("losetup", &["-d", device.trim()]));
            }
            say("umount", run("umount", &["-l", text(&point)]));
        }
        if mounts_below(&self.root).is_ok_and(|left| left.is_empty()) {
            let _ = fs::remove_dir_all(&self.root);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_summed_by_name() {
        let counters =
            serde_json::json!({"net": {"messages_sent": 3, "bytes": 9}, "messages_sent_bulk": 4});
        let mut found = None;
        sum(&counters, "", &["messages", "sent"], &mut found);
        assert_eq!(found, Some(7));
        let mut none = None;
        sum(&counters, "", &["zebra"], &mut none);
        assert_eq!(none, None);
    }

    #[test]
    fn a_program_that_fails_says_why() {
        let error = run("ls", &["/no/such/place"]).expect_err("fails");
        assert!(error.to_string().contains("/no/such/place"));
    }
}

//! `gupfs demo`: the main job on real input, shown on two nodes of a lab, every byte verified.
//!
//! Phases: read the tree; make the lab; copy through node 1 while node 2 reads each file as soon as it is
//! there; fsync; verify through node 2; both nodes write one file; kill -9 of both daemons; start, replay,
//! verify again through both; the same copy on a local file system. The first fault ends the demo with a
//! non-zero status. Without a lab (`--on`) the same phases run on two directories that are one.

pub mod copy;
pub mod records;
pub mod tree;
pub mod watch;
pub mod work;

use std::path::Path;
use std::sync::{Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};

use crate::cli::DemoArgs;
use crate::failure::{Failure, Result};
use crate::lab::{self, Lab, Plan};
use crate::state::Backing;
use crate::system::{loops, mounts, shell};
use crate::{files, inspect, size, up};
use copy::Digest;
use tree::{Kind, Tree};
use watch::{Progress, Watch};

/// The copy's directory on the mounts.
const COPY: &str = "demo-copy";
/// The file that both nodes write.
const SHARED: &str = "demo-shared";
/// Seed of a tree that stands in for a missing toolchain, and of the records.
const SEED_DEFAULT: u64 = 20_260_101;

/// How long a phase took.
#[derive(Clone, Debug)]
struct Phase {
    name: &'static str,
    time: Duration,
    file_count: u64,
    byte_count: u64,
}

/// A run of the demo: what it works on and what it has measured.
#[derive(Debug)]
struct Run<'a> {
    args: &'a DemoArgs,
    tree: Tree,
    digests: Vec<Digest>,
    phases: Vec<Phase>,
    progress: Progress,
}

/// Runs the demo.
pub fn run(args: &DemoArgs) -> Result<()> {
    match (args.on.as_slice(), &args.dir) {
        ([], Some(directory)) => run_in_lab(args, &Lab::new(directory)?, directory),
        ([first, second], _) => run_on(args, first, second),
        _ => Err(Failure::new("--on needs two directories").help("write --on DIR1,DIR2")),
    }
}

fn run_on(args: &DemoArgs, first: &Path, second: &Path) -> Result<()> {
    for name in [COPY, SHARED] {
        if let Some(path) = [first, second]
            .map(|d| d.join(name))
            .iter()
            .find(|p| p.exists())
        {
            return Err(Failure::new(format!("{} is there already", path.display()))
                .help("remove it, or name other directories"));
        }
    }
    let scratch = first.with_extension("demo-source");
    let outcome = open(args, &scratch).and_then(|mut run| {
        let outcome = run.share(first, second);
        for name in [COPY, SHARED] {
            files::remove(&first.join(name))?;
        }
        outcome?;
        run.report(None)
    });
    files::remove(&scratch)?;
    outcome
}

fn run_in_lab(args: &DemoArgs, lab: &Lab, directory: &Path) -> Result<()> {
    crate::system::require_root("gupfs demo")?;
    crate::system::require_fuse()?;
    say!("{}", lab::down(lab)?.join("\n"));
    let outcome = run_phases(args, lab, directory);
    if args.keep {
        say!(
            "the lab is left in {}; remove it with `gupfs lab down --dir {0}`",
            directory.display()
        );
        return outcome;
    }
    let removed = lab::down(lab);
    outcome?;
    removed.map(drop)
}

fn run_phases(args: &DemoArgs, lab: &Lab, directory: &Path) -> Result<()> {
    let plan =
        Plan::new(2, args.backing, args.size).with(args.transport, up::PAGEPOOL_SIZE_DEFAULT);
    let begin = Instant::now();
    say!("{}", lab::up(lab, &plan)?.join("\n"));
    let lab_time = begin.elapsed();
    let mut run = open(args, &directory.join("source"))?;
    run.push("lab up", lab_time, 0, 0);
    let _watch = Watch::start(lab, &run.progress);
    let room = args.size / 10 * 6;
    if run.tree.byte_count > room {
        return Err(Failure::new(format!(
            "the tree has {}, too much for a file system of {}",
            size::show(run.tree.byte_count),
            size::show(args.size)
        ))
        .help(format!(
            "give --size {}G or more, or a smaller --tree",
            ((run.tree.byte_count / 6 * 10) >> 30) + 1
        )));
    }
    let (first, second) = (lab.mount(1), lab.mount(2));
    let wanted = run.share(&first, &second)?;

    let begin = Instant::now();
    for node in [1, 2] {
        say!("{}", lab::kill(lab, node)?.join("\n"));
    }
    say!("{}", lab::start(lab, &[1, 2])?.join("\n"));
    run.note("kill -9 of both, start, replay", begin, 0, 0);
    for (name, mount) in [
        ("verify through node 1 after the crash", &first),
        ("verify through node 2 after the crash", &second),
    ] {
        run.verify(name, mount)?;
        records::verify(&mount.join(SHARED), &wanted)?;
    }
    let local = match args.no_compare {
        true => None,
        false => Some(run.compare(&directory.join("compare"))?),
    };
    run.report(local)
}

/// Finds or makes the tree, and reads it once.
fn open<'a>(args: &'a DemoArgs, scratch: &Path) -> Result<Run<'a>> {
    let tree = match (args.tree.as_slice(), args.seed) {
        ([], Some(seed)) => generated(args, scratch, seed)?,
        ([], None) => {
            let tree = Tree::list(&tree::default_roots())?;
            let is_enough = tree.file_count >= tree::DEFAULT_FILES_MIN
                && tree.byte_count >= tree::DEFAULT_BYTES_MIN;
            if is_enough {
                tree
            } else {
                generated(args, scratch, SEED_DEFAULT)?
            }
        }
        (roots, _) => Tree::list(roots)?,
    };
    say!(
        "tree: {} files, {}",
        tree.file_count,
        size::show(tree.byte_count)
    );
    let mut run = Run {
        args,
        tree,
        digests: Vec::new(),
        phases: Vec::new(),
        progress: Progress::default(),
    };
    let begin = Instant::now();
    let bar = run.bar("read the source");
    run.digests = copy::digest_sources(&run.tree, args.threads, &bar)?;
    bar.finish_and_clear();
    run.note_tree("read the source (SHA-256)", begin);
    Ok(run)
}

fn generated(args: &DemoArgs, scratch: &Path, seed: u64) -> Result<Tree> {
    say!(
        "making a tree of {} files, {} from seed {seed}",
        args.files,
        size::show(args.bytes)
    );
    files::remove(scratch)?;
    tree::generate(scratch, seed, args.files, args.bytes)?;
    Tree::list(&[scratch.to_owned()])
}

impl Run<'_> {
    /// Everything that two nodes share: copy, fsync, verify, records. Returns what the shared file holds.
    fn share(&mut self, first: &Path, second: &Path) -> Result<Vec<u8>> {
        let copy_of = |mount: &Path| mount.join(COPY);
        std::fs::create_dir(copy_of(first))
            .map_err(|e| Failure::io("make", &copy_of(first), &e))?;
        self.copy_and_follow(&copy_of(first), &copy_of(second))?;
        self.fsync("fsync of every file and directory", &copy_of(first))?;
        self.verify("verify through node 2", second)?;
        let begin = Instant::now();
        let seed = self.args.seed.unwrap_or(SEED_DEFAULT);
        let wanted = records::run(first, second, SHARED, seed)?;
        for directory in [first, second] {
            records::verify(&directory.join(SHARED), &wanted)?;
        }
        std::fs::File::open(first)
            .and_then(|d| d.sync_all())
            .map_err(|e| Failure::io("fsync", first, &e))?;
        self.note("two nodes write one file", begin, 1, wanted.len() as u64);
        Ok(wanted)
    }

    fn copy_and_follow(&mut self, target: &Path, other: &Path) -> Result<()> {
        let begin = Instant::now();
        let bar = self.bar("copy through node 1, read through node 2");
        let (send, receive) = mpsc::channel();
        let receive = Mutex::new(receive);
        let faults = work::Faults::default();
        let (copied, copied_at) = thread::scope(|scope| {
            for _ in 0..self.args.threads.max(1) {
                scope.spawn(|| copy::follow(&self.tree, &self.digests, other, &receive, &faults));
            }
            let copied = copy::copy(&self.tree, target, self.args.threads, Some(&send), &bar);
            // The readers end when they have read all that was sent.
            drop(send);
            (copied, begin.elapsed())
        });
        bar.finish_and_clear();
        copied?;
        self.push(
            "copy through node 1",
            copied_at,
            self.tree.file_count,
            self.tree.byte_count,
        );
        self.note_tree("  and node 2 has read it all", begin);
        // Permissions of directories are set last; node 2 may have looked before.
        faults.check("reading through node 2 what node 1 writes")
    }

    fn fsync(&mut self, name: &'static str, target: &Path) -> Result<()> {
        let begin = Instant::now();
        let bar = self.bar(name);
        copy::fsync(&self.tree, target, self.args.threads, &bar)?;
        bar.finish_and_clear();
        self.note_tree(name, begin);
        Ok(())
    }

    fn verify(&mut self, name: &'static str, mount: &Path) -> Result<()> {
        let begin = Instant::now();
        let bar = self.bar(name);
        copy::verify(
            &self.tree,
            &self.digests,
            &mount.join(COPY),
            self.args.threads,
            name,
            &bar,
        )?;
        bar.finish_and_clear();
        self.note_tree(name, begin);
        Ok(())
    }

    /// The same copy and fsync on xfs, or ext4 where xfs is missing, on the same kind of device.
    fn compare(&mut self, directory: &Path) -> Result<(&'static str, Vec<Phase>)> {
        let kind = if shell::exists("mkfs.xfs") {
            "xfs"
        } else {
            "ext4"
        };
        files::make_directory(directory)?;
        // Never less than what mkfs.xfs asks for.
        let size = (self.tree.byte_count * 2 + (1 << 30)) >> 20 << 20;
        let backing = if self.args.backing == Backing::Ram {
            Backing::Ram
        } else {
            Backing::Loop
        };
        let paths = up::make_disks(directory, backing, size, 1)?;
        let device = loops::attach(&paths[0])?;
        let mount = directory.join("mnt");
        files::make_directory(&mount)?;
        shell::run(
            &format!("mkfs.{kind}"),
            &[
                if kind == "xfs" {
                    "-q".as_ref()
                } else {
                    "-qF".as_ref()
                },
                device.as_os_str(),
            ],
        )?;
        shell::run(
            "mount",
            &[
                "-t".as_ref(),
                kind.as_ref(),
                device.as_os_str(),
                mount.as_os_str(),
            ],
        )?;
        let target = mount.join(COPY);
        let before = self.phases.len();
        std::fs::create_dir(&target).map_err(|e| Failure::io("make", &target, &e))?;
        let begin = Instant::now();
        let bar = self.bar("the same copy on a local file system");
        copy::copy(&self.tree, &target, self.args.threads, None, &bar)?;
        bar.finish_and_clear();
        self.note_tree("copy through node 1", begin);
        self.fsync("fsync of every file and directory", &target)?;
        let local = self.phases.split_off(before);
        if let Some(mounted) = mounts::at(&mount)? {
            mounts::remove(&mounted)?;
        }
        up::remove_backing(directory)?;
        files::remove(directory)?;
        Ok((kind, local))
    }

    fn bar(&self, name: &'static str) -> ProgressBar {
        let bar = ProgressBar::new(self.tree.byte_count);
        let style = ProgressStyle::with_template(
            "{msg:42} [{bar:30}] {bytes}/{total_bytes} {binary_bytes_per_sec} eta {eta}",
        );
        bar.set_style(style.expect("a fixed template"));
        bar.set_message(name);
        self.progress.show(&bar);
        bar
    }

    fn note_tree(&mut self, name: &'static str, begin: Instant) {
        self.note(name, begin, self.tree.file_count, self.tree.byte_count);
    }

    fn note(&mut self, name: &'static str, begin: Instant, file_count: u64, byte_count: u64) {
        self.push(name, begin.elapsed(), file_count, byte_count);
    }

    fn push(&mut self, name: &'static str, time: Duration, file_count: u64, byte_count: u64) {
        let phase = Phase {
            name,
            time,
            file_count,
            byte_count,
        };
        say!("{}", phase.line());
        self.phases.push(phase);
        self.progress.step();
    }

    fn report(&self, local: Option<(&'static str, Vec<Phase>)>) -> Result<()> {
        let (kind, local) = local.unwrap_or(("", Vec::new()));
        let beside = |name: &str| local.iter().find(|p| p.name == name);
        let mut rows = vec![["PHASE", "TIME", "FILES/S", "MB/S", kind].map(str::to_owned)];
        for phase in &self.phases {
            let other = beside(phase.name).map(|p| format!("{:.2} s", p.time.as_secs_f64()));
            rows.push([
                phase.name.to_owned(),
                format!("{:.2} s", phase.time.as_secs_f64()),
                phase.rate(phase.file_count, 1.0),
                phase.rate(phase.byte_count, 1e6),
                other.unwrap_or_default(),
            ]);
        }
        say!("\n{}", inspect::table(&rows));
        if self.args.json {
            let to_json =
                |phases: &[Phase]| -> Vec<Value> { phases.iter().map(Phase::to_json).collect() };
            say!(
                "{}",
                json!({
                    "files": self.tree.file_count, "bytes": self.tree.byte_count,
                    "phases": to_json(&self.phases), "local": kind, "local_phases": to_json(&local),
                })
            );
        }
        let links = self
            .tree
            .items
            .iter()
            .filter(|i| matches!(i.kind, Kind::Link(_)))
            .count();
        say!(
            "every one of {} files and {links} links was the same, byte for byte, wherever it was read",
            self.tree.file_count
        );
        Ok(())
    }
}

impl Phase {
    fn line(&self) -> String {
        let rate = match self.byte_count {
            0 => String::new(),
            bytes => format!(
                "  {:>8} files/s  {:>8} MB/s",
                self.rate(self.file_count, 1.0),
                self.rate(bytes, 1e6)
            ),
        };
        format!("{:42} {:8.2} s{rate}", self.name, self.time.as_secs_f64())
    }

    #[allow(clippy::cast_precision_loss, reason = "a rate for people")]
    fn rate(&self, count: u64, unit: f64) -> String {
        match count {
            0 => String::new(),
            _ => format!(
                "{:.0}",
                count as f64 / unit / self.time.as_secs_f64().max(1e-6)
            ),
        }
    }

    fn to_json(&self) -> Value {
        json!({
            "name": self.name.trim(), "seconds": self.time.as_secs_f64(),
            "files": self.file_count, "bytes": self.byte_count,
        })
    }
}

//! `cargo xtask guided`: the program as it is packaged, built by a profile of what it does most.
//!
//! ```text
//! built with counters -> trained: labs in memory, as a user would use them -> counts merged -> built by them
//! ```
//!
//! The compiler then knows which branches are taken and what is called from where: a fifth of the daemon's own processor time for creates and unlinks
//! (docs/decisions/0023). What training never runs is taken for rare and built small, so it has to touch all that should be quick: names, small and
//! large files, fsync, listings, a start with much to replay, two nodes that share, fsck.
//!
//! Counts are written when a program ends as it should, never after a kill. What is built or trained already is not built or trained again.

use std::fs::{self, File};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io::ErrorKind;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::SystemTime;

use anyhow::{Context as _, Result, ensure};

use crate::{ci, fuzz};

/// Threads that make small files, and how many each.
const THREAD_COUNT: u64 = 2;
const FILE_COUNT: u64 = 6000;
/// Of the file that is overwritten in small pieces.
const LARGE_SIZE: u64 = 32 << 20;
const PIECE: usize = 4096;
const PIECE_COUNT: u64 = 10_000;

/// Builds it; where it lies.
pub(crate) fn run(root: &Path) -> Result<PathBuf> {
    let merge = profdata(root)?;
    let mounts = Path::new("/dev/fuse");
    ensure!(
        File::options().read(true).write(true).open(mounts).is_ok() && is_root()?,
        "training mounts file systems: it needs root and {}",
        mounts.display()
    );
    let place = ci::target_directory(root)?.join("guided");
    fs::create_dir_all(&place).with_context(|| place.display().to_string())?;
    let place = place
        .canonicalize()
        .with_context(|| place.display().to_string())?;
    let raw = place.join("raw");
    let flag = format!("-Cprofile-generate={}", raw.display());
    let counting = build(root, &place.join("counting"), &flag)?;
    // Of another name for each program: cargo looks at flags, not at what they name.
    let built = fs::metadata(&counting).and_then(|metadata| metadata.modified());
    let built = built.with_context(|| counting.display().to_string())?;
    let built = built.duration_since(SystemTime::UNIX_EPOCH)?.as_nanos();
    let mut training = DefaultHasher::new();
    include_str!("guided.rs").hash(&mut training);
    let training = training.finish();
    let counts = place.join(format!("counts-{built}-{training:016x}.profdata"));
    let program = place.join("program");
    if !counts.exists() {
        println!("training: a minute of file systems in memory");
        // What was built by others is of no use any more.
        for former in [&raw, &program] {
            remove(former)?;
        }
        train(&counting, &place.join("labs")).context("training")?;
        let mut command = Command::new(merge);
        let new = counts.with_extension("new");
        command.arg("merge").arg("-o").arg(&new).arg(&raw);
        run_quietly(&mut command)?;
        fs::rename(&new, &counts).with_context(|| counts.display().to_string())?;
        remove(&raw)?;
    }
    let flag = format!("-Cprofile-use={}", counts.display());
    build(root, &program, &flag)
}

fn is_root() -> Result<bool> {
    let own = fs::metadata("/proc/self").context("/proc is not mounted")?;
    Ok(own.uid() == 0)
}

/// Builds it and puts it where `cargo build --release` puts its own.
pub(crate) fn install(root: &Path) -> Result<PathBuf> {
    let program = run(root)?;
    let there = ci::target_directory(root)?.join("release");
    fs::create_dir_all(&there).with_context(|| there.display().to_string())?;
    // In one step: the one of before may be running.
    let (new, there) = (there.join("gupfs.new"), there.join("gupfs"));
    fs::copy(&program, &new).with_context(|| new.display().to_string())?;
    fs::rename(&new, &there).with_context(|| there.display().to_string())?;
    Ok(there)
}

/// The compiler's own program that merges counts.
fn profdata(root: &Path) -> Result<PathBuf> {
    let output = Command::new("rustc")
        .args(["--print", "sysroot"])
        .current_dir(root)
        .output()
        .context("cannot run rustc")?;
    ensure!(output.status.success(), "rustc --print sysroot failed");
    let sysroot = String::from_utf8(output.stdout).context("a path that is not UTF-8")?;
    let program = Path::new(sysroot.trim())
        .join("lib/rustlib")
        .join(fuzz::HOST)
        .join("bin/llvm-profdata");
    ensure!(
        program.exists(),
        "{} is missing: rustup component add llvm-tools",
        program.display()
    );
    Ok(program)
}

/// Builds the program with this flag, apart from all others.
fn build(root: &Path, place: &Path, flag: &str) -> Result<PathBuf> {
    let status = Command::new(env!("CARGO"))
        .current_dir(root)
        .env("CARGO_TARGET_DIR", place)
        // Not RUSTFLAGS: a path may have spaces.
        .env("CARGO_ENCODED_RUSTFLAGS", flag)
        .args(["build", "--release", "--locked", "--target", fuzz::HOST])
        .args(["--package", "gupfs", "--bin", "gupfs"])
        .status()
        .context("cargo does not run")?;
    ensure!(status.success(), "gupfs does not build: {status}");
    Ok(place.join(fuzz::HOST).join("release/gupfs"))
}

fn remove(directory: &Path) -> Result<()> {
    match fs::remove_dir_all(directory) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(error).with_context(|| directory.display().to_string())
        }
        _ => Ok(()),
    }
}

/// Runs a command; what it says is shown if it fails.
fn run_quietly(command: &mut Command) -> Result<()> {
    let output = command.stdin(Stdio::null()).output();
    let output = output.with_context(|| format!("cannot run {command:?}"))?;
    ensure!(
        output.status.success(),
        "{command:?}: {}\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(())
}

/// A lab in memory, which is removed however training ends.
struct Lab<'p> {
    program: &'p Path,
    directory: PathBuf,
}

impl<'p> Lab<'p> {
    fn up(program: &'p Path, directory: PathBuf, nodes: &str) -> Result<Self> {
        let lab = Self { program, directory };
        // What an interrupted one has left.
        lab.gupfs(&["lab", "down", "--dir"], "", &[])?;
        let size = ["--nodes", nodes, "--backing", "ram", "--size", "2G"];
        lab.gupfs(&["lab", "up", "--dir"], "", &size)?;
        Ok(lab)
    }

    /// Runs the program with `words`, a path of the lab, and more words.
    fn gupfs(&self, words: &[&str], path: &str, more: &[&str]) -> Result<()> {
        let mut command = Command::new(self.program);
        command
            .args(words)
            .arg(self.directory.join(path))
            .args(more);
        run_quietly(&mut command)
    }

    fn mount(&self, node: &str) -> PathBuf {
        self.directory.join(node).join("mnt")
    }

    /// A daemon ends as it should.
    fn stop(&self, node: &str) -> Result<()> {
        self.gupfs(&["down", "--state"], node, &[])
    }

    fn start(&self, node: &str) -> Result<()> {
        self.gupfs(&["lab", "start", "--dir"], "", &[node])
    }
}

impl Drop for Lab<'_> {
    fn drop(&mut self) {
        if let Err(error) = self.gupfs(&["lab", "down", "--dir"], "", &[]) {
            eprintln!("xtask: {error:#}");
        }
    }
}

/// Does what users do.
fn train(program: &Path, place: &Path) -> Result<()> {
    fs::create_dir_all(place).with_context(|| place.display().to_string())?;
    train_one(&Lab::up(program, place.join("one"), "1")?)?;
    train_two(&Lab::up(program, place.join("two"), "2")?)
}

fn directory(mount: &Path, name: &str) -> Result<PathBuf> {
    let path = mount.join(name);
    fs::create_dir(&path).with_context(|| path.display().to_string())?;
    Ok(path)
}

fn train_one(lab: &Lab<'_>) -> Result<()> {
    let mount = lab.mount("n1");
    directory(&mount, "bench")?;
    let short = ["--size", "128M", "--seconds", "3"];
    lab.gupfs(&["bench"], "n1/mnt/bench", &short)?;
    let places = (0..THREAD_COUNT).map(|thread| directory(&mount, &format!("files{thread}")));
    let places = places.collect::<Result<Vec<_>>>()?;
    for round in [Round::Make, Round::Use] {
        let of = |place: &PathBuf| (place.clone(), round);
        at_once(places.iter().map(of).collect())?;
        overwrite(&directory(&mount, &format!("large{}", round as u8))?)?;
    }
    // A cold tree.
    lab.stop("n1")?;
    lab.start("n1")?;
    read_all(&mount)?;
    lab.stop("n1")?;
    // A crash with much in the journal: what was not synced may be gone.
    lab.start("n1")?;
    small_files(&directory(&mount, "more")?, Round::Make)?;
    lab.gupfs(&["lab", "kill", "--dir"], "", &["n1"])?;
    lab.start("n1")?;
    read_all(&mount)?;
    lab.stop("n1")?;
    lab.gupfs(&["fsck", "--data"], "", &[])
}

/// Each node works where the other one has worked, and both in one directory.
fn train_two(lab: &Lab<'_>) -> Result<()> {
    let mounts = [lab.mount("n1"), lab.mount("n2")];
    for name in ["a", "b", "shared"] {
        directory(&mounts[0], name)?;
    }
    let both = |places: [&str; 2], round| {
        let work = mounts.iter().zip(places);
        at_once(work.map(|(m, place)| (m.join(place), round)).collect())
    };
    both(["a", "b"], Round::Make)?;
    read_all(&mounts[1].join("a"))?;
    read_all(&mounts[0].join("b"))?;
    both(["b", "a"], Round::Use)?;
    for (node, mount) in mounts.iter().enumerate() {
        directory(mount, &format!("shared/own{node}"))?;
    }
    both(["shared/own1", "shared/own0"], Round::Make)?;
    overwrite(&directory(&mounts[0], "large")?)?;
    ping_pong(&mounts, "large/file")?;
    lab.stop("n1")?;
    lab.start("n1")?;
    read_all(&mounts[0])?;
    for node in ["n1", "n2"] {
        lab.stop(node)?;
    }
    Ok(())
}

/// The nodes write to one file by turns, and read what the other one has written.
fn ping_pong(mounts: &[PathBuf; 2], name: &str) -> Result<()> {
    let turns = || -> std::io::Result<()> {
        let open = |mount: &PathBuf| {
            File::options()
                .read(true)
                .write(true)
                .open(mount.join(name))
        };
        let files = [open(&mounts[0])?, open(&mounts[1])?];
        let mut bytes = vec![2; PIECE];
        for number in 0..PIECE_COUNT / 10 {
            let at = number % 64 * PIECE as u64;
            files[usize::from(number % 2 == 1)].write_all_at(&bytes, at)?;
            files[usize::from(number % 2 == 0)].read_exact_at(&mut bytes, at)?;
        }
        Ok(())
    };
    turns().with_context(|| name.to_owned())
}

/// Small files in several directories at a time.
fn at_once(work: Vec<(PathBuf, Round)>) -> Result<()> {
    std::thread::scope(|scope| {
        let begin =
            |(place, round): (PathBuf, Round)| scope.spawn(move || small_files(&place, round));
        let threads: Vec<_> = work.into_iter().map(begin).collect();
        let mut ends = threads.into_iter().map(|thread| thread.join());
        ends.try_for_each(|end| end.expect("no panic"))
    })
}

/// What is done with small files, one round after the other.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Round {
    Make,
    Use,
}

fn small_files(place: &Path, round: Round) -> Result<()> {
    let path = |number: u64| {
        let directory = place.join(format!("d{}", number / 300));
        (directory.clone(), directory.join(format!("file{number}")))
    };
    for number in 0..FILE_COUNT {
        let (directory, file) = path(number);
        let done = match round {
            Round::Make => make(&directory, &file, number),
            Round::Use => use_and_remove(&directory, &file, number),
        };
        done.with_context(|| file.display().to_string())?;
    }
    Ok(())
}

fn make(directory: &Path, path: &Path, number: u64) -> std::io::Result<()> {
    fs::create_dir_all(directory)?;
    let file = File::create(path)?;
    // Every third is empty.
    let length = usize::try_from(number % 3 * (number % 5000)).expect("small");
    file.write_all_at(&vec![b'x'; length], 0)?;
    if number.is_multiple_of(40) {
        file.sync_all()?;
    }
    drop(file);
    fs::metadata(path)?;
    match number % 20 {
        0 => symlink("target", path.with_extension("symlink")),
        1 => fs::hard_link(path, path.with_extension("link")),
        _ => Ok(()),
    }
}

fn use_and_remove(directory: &Path, path: &Path, number: u64) -> std::io::Result<()> {
    if number.is_multiple_of(300) {
        for entry in fs::read_dir(directory)? {
            entry?.metadata()?;
        }
    }
    fs::read(path)?;
    let moved = path.with_extension("moved");
    match number % 4 {
        0 => fs::rename(path, moved),
        1 => Ok(()),
        _ => fs::remove_file(path),
    }
}

/// A file in sequence, and then small pieces of it in no order.
fn overwrite(place: &Path) -> Result<()> {
    let write = || -> std::io::Result<()> {
        let path = place.join("file");
        let file = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .open(&path)?;
        let mut bytes = vec![1; 1 << 20];
        for at in (0..LARGE_SIZE).step_by(bytes.len()) {
            file.write_all_at(&bytes, at)?;
        }
        file.sync_all()?;
        for number in 0..PIECE_COUNT {
            let piece = PIECE as u64;
            let at = number * 2_654_435_761 % (LARGE_SIZE / piece) * piece;
            file.write_all_at(&bytes[..PIECE], at)?;
            file.read_exact_at(&mut bytes[..PIECE], LARGE_SIZE - piece - at)?;
            if number.is_multiple_of(100) {
                file.sync_data()?;
            }
        }
        file.sync_all()
    };
    write().with_context(|| place.display().to_string())
}

fn read_all(directory: &Path) -> Result<()> {
    let context = || directory.display().to_string();
    for entry in fs::read_dir(directory).with_context(context)? {
        let entry = entry.with_context(context)?;
        let path = entry.path();
        let kind = entry.file_type().with_context(context)?;
        if kind.is_dir() {
            read_all(&path)?;
        } else if kind.is_file() {
            fs::read(&path).with_context(|| path.display().to_string())?;
        }
    }
    Ok(())
}

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
//! What is built or trained already is not built or trained again.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::unix::fs::{FileExt as _, symlink};
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
    let place = ci::target_directory(root).join("guided");
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
    let counts = place.join(format!("counts-{built}.profdata"));
    if !counts.exists() {
        println!("training: a minute of file systems in memory");
        remove(&raw)?;
        train(&counting, &place.join("labs")).context("training")?;
        let mut command = Command::new(merge);
        let new = counts.with_extension("new");
        command.arg("merge").arg("-o").arg(&new).arg(&raw);
        run_quietly(&mut command)?;
        fs::rename(&new, &counts).with_context(|| counts.display().to_string())?;
        remove(&raw)?;
    }
    let flag = format!("-Cprofile-use={}", counts.display());
    build(root, &place.join("program"), &flag)
}

/// Builds it and puts it where `cargo build --release` puts its own.
pub(crate) fn install(root: &Path) -> Result<PathBuf> {
    let program = run(root)?;
    let there = ci::target_directory(root).join("release");
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

/// A lab of one node in memory, which is removed however training ends.
struct Lab<'p> {
    program: &'p Path,
    directory: PathBuf,
}

impl<'p> Lab<'p> {
    fn up(program: &'p Path, directory: PathBuf) -> Result<Self> {
        let lab = Self { program, directory };
        let size = ["--nodes", "1", "--backing", "ram", "--size", "2G"];
        lab.run(&["lab", "up"], &["--dir"], "", &size)?;
        Ok(lab)
    }

    /// `words`, an option with a path of the lab, and more words.
    fn run(&self, words: &[&str], option: &[&str], path: &str, more: &[&str]) -> Result<()> {
        let mut command = Command::new(self.program);
        command.args(words).args(option);
        command.arg(self.directory.join(path)).args(more);
        run_quietly(&mut command)
    }

    /// Its only daemon ends and writes its counts.
    fn stop(&self) -> Result<()> {
        self.run(&["down"], &["--state"], "n1", &[])
    }

    fn start(&self) -> Result<()> {
        self.run(&["lab", "start"], &["--dir"], "", &["n1"])
    }
}

impl Drop for Lab<'_> {
    fn drop(&mut self) {
        if let Err(error) = self.run(&["lab", "down"], &["--dir"], "", &[]) {
            eprintln!("xtask: {error:#}");
        }
    }
}

/// Does what users do.
fn train(program: &Path, place: &Path) -> Result<()> {
    fs::create_dir_all(place).with_context(|| place.display().to_string())?;
    let lab = Lab::up(program, place.join("one"))?;
    let mount = lab.directory.join("n1/mnt");
    let directory = |name: &str| -> Result<PathBuf> {
        let path = mount.join(name);
        fs::create_dir(&path).with_context(|| path.display().to_string())?;
        Ok(path)
    };
    let bench = directory("bench")?;
    let short = ["--size", "128M", "--seconds", "3"];
    lab.run(
        &["bench"],
        &[],
        bench.to_str().context("a plain path")?,
        &short,
    )?;
    let places = (0..THREAD_COUNT).map(|thread| directory(&format!("files{thread}")));
    let places = places.collect::<Result<Vec<_>>>()?;
    for round in [Round::Make, Round::Use] {
        std::thread::scope(|scope| {
            let begin = |path: &PathBuf| {
                let path = path.clone();
                scope.spawn(move || small_files(&path, round))
            };
            let threads: Vec<_> = places.iter().map(begin).collect();
            let mut ends = threads.into_iter().map(|thread| thread.join());
            ends.try_for_each(|end| end.expect("no panic"))
        })?;
        overwrite(&directory(&format!("large{}", round as u8))?)?;
    }
    // A cold tree, and then a crash with much in the journal.
    lab.stop()?;
    lab.start()?;
    read_all(&mount)?;
    small_files(&directory("more")?, Round::Make)?;
    lab.run(&["lab", "kill"], &["--dir"], "", &["n1"])?;
    lab.start()?;
    // What was not synced may be gone.
    read_all(&mount)?;
    lab.stop()?;
    lab.run(&["fsck", "--data"], &[], "", &[])?;
    drop(lab);
    // Two nodes that share a tree, and crash.
    let small = ["--seed", "7", "--files", "2000", "--bytes", "100M"];
    let mut command = Command::new(program);
    command.arg("demo").arg("--dir").arg(place.join("two"));
    command.args(small).args(["--size", "2G", "--no-compare"]);
    run_quietly(&mut command)
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

//! `cargo xtask fuzz`: libFuzzer on the targets of `fuzz/`, built by the stable compiler with coverage counters.
//!
//! What it finds lies in `target/fuzz/found/TARGET`, the inputs that reach something new in `target/fuzz/corpus/TARGET`; the
//! next run begins with these. Inputs that once failed lie in `fuzz/regressions/TARGET` and are run first.

use std::collections::VecDeque;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::time::Instant;

use anyhow::{Context as _, Result, bail};

use crate::ci;

/// All of them: `fuzz/targets/NAME.rs`.
const TARGETS: [&str; 6] = [
    "fuse_requests",
    "labels",
    "journal",
    "tree_pages",
    "messages",
    "config",
];
/// The counters that libFuzzer reads, and the comparisons that it learns from.
const FLAGS: &str = "-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=3 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares --cfg fuzzing";
/// Bytes of an input: a label, or a page of 64 KiB, fits.
const INPUT_SIZE_MAX: u32 = 70_000;
/// Seconds of one input that count as a hang: other targets run beside it, and tests that stand before it.
const HANG_SECONDS: u32 = 20;
/// MiB of one allocation, and of the whole process: more than any input is worth.
const ALLOCATION_MIB_MAX: u32 = 16;
const MEMORY_MIB_MAX: u32 = 1024;

/// What is asked of `fuzz`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Options {
    /// Of each target.
    pub(crate) seconds: u32,
    /// Draws the inputs; 0: a fresh one. Fixed unless given: a run of CI that fails is no news of its change otherwise.
    pub(crate) seed: u32,
    /// Empty: all.
    pub(crate) targets: Vec<String>,
}

impl Options {
    /// Reads the arguments.
    pub(crate) fn parse(arguments: &[String]) -> Result<Self> {
        let mut options = Self {
            seconds: 60,
            seed: 1,
            targets: Vec::new(),
        };
        let mut rest = arguments.iter();
        while let Some(word) = rest.next() {
            if word == "--seconds" || word == "--seed" {
                let count = rest
                    .next()
                    .with_context(|| format!("{word} needs a number"))?;
                let count = count.parse().with_context(|| format!("{word} {count}"))?;
                match word == "--seed" {
                    true => options.seed = count,
                    false => options.seconds = count,
                }
            } else if TARGETS.contains(&word.as_str()) {
                options.targets.push(word.clone());
            } else {
                bail!("fuzz does not know {word:?}; the targets are {TARGETS:?}");
            }
        }
        if options.targets.is_empty() {
            options.targets = TARGETS.map(str::to_owned).to_vec();
        }
        Ok(options)
    }
}

/// Builds the targets and runs them.
pub(crate) fn run(root: &Path, options: &Options) -> Result<()> {
    // Apart from all other artifacts: everything is built with counters.
    let place = ci::target_directory(root)?.join("fuzz");
    build(root, &place)?;
    let waiting: Mutex<VecDeque<&String>> = Mutex::new(options.targets.iter().collect());
    let failed: Mutex<Vec<String>> = Mutex::default();
    let at_once = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..at_once {
            scope.spawn(|| {
                loop {
                    let next = waiting.lock().expect("no panic holds it").pop_front();
                    let Some(target) = next else { return };
                    if let Err(error) = fuzz(root, &place, target, options) {
                        let mut failed = failed.lock().expect("no panic holds it");
                        failed.push(format!("{target}: {error:#}"));
                    }
                }
            });
        }
    });
    let failed = failed.into_inner().expect("no panic holds it");
    if !failed.is_empty() {
        bail!("{}", failed.join("\n"));
    }
    Ok(())
}

fn build(root: &Path, place: &Path) -> Result<()> {
    let status = Command::new(env!("CARGO"))
        .current_dir(root.join("fuzz"))
        .env("CARGO_TARGET_DIR", place)
        .env("RUSTFLAGS", FLAGS)
        .args(["build", "--release", "--quiet", "--locked", "--target"])
        .arg(HOST)
        .status()
        .context("cargo does not run")?;
    match status.success() {
        true => Ok(()),
        false => bail!("the fuzz targets do not build: {status}"),
    }
}

/// Named, so that build scripts and procedural macros are built without counters.
pub(crate) const HOST: &str = "x86_64-unknown-linux-gnu";

fn fuzz(root: &Path, place: &Path, target: &str, options: &Options) -> Result<()> {
    let (corpus, found) = (
        place.join("corpus").join(target),
        place.join("found").join(target),
    );
    for directory in [&corpus, &found] {
        fs::create_dir_all(directory).with_context(|| directory.display().to_string())?;
    }
    let mut command = Command::new(place.join(HOST).join("release").join(target));
    command.args([
        format!("-max_total_time={}", options.seconds),
        format!("-seed={}", options.seed),
        format!("-max_len={INPUT_SIZE_MAX}"),
        format!("-timeout={HANG_SECONDS}"),
        format!("-malloc_limit_mb={ALLOCATION_MIB_MAX}"),
        format!("-rss_limit_mb={MEMORY_MIB_MAX}"),
        format!("-artifact_prefix={}/", found.display()),
        "-print_final_stats=1".to_owned(),
        "-len_control=20".to_owned(),
    ]);
    command.arg(&corpus);
    let known = root.join("fuzz/regressions").join(target);
    if known.is_dir() {
        command.arg(known);
    }
    let begin = Instant::now();
    let output = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("{target} does not run"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        let lines: Vec<&str> = said.lines().collect();
        let tail = &lines[lines.len().saturating_sub(40)..];
        bail!("{}\n{}", output.status, tail.join("\n"));
    }
    let stat = |name: &str| {
        let line = said.lines().find(|line| line.starts_with(name));
        line.and_then(|line| line.split_whitespace().last())
            .unwrap_or("?")
            .to_owned()
    };
    let covered = said
        .lines()
        .rev()
        .find_map(|line| line.split_once(" cov: "))
        .and_then(|(_, rest)| rest.split_whitespace().next())
        .unwrap_or("?");
    println!(
        "fuzz {target}: {} inputs in {:.0} s, {covered} places reached, peak memory {} MiB, no fault",
        stat("stat::number_of_executed_units:"),
        begin.elapsed().as_secs_f64(),
        stat("stat::peak_rss_mb:"),
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_read() {
        let parse = |words: &[&str]| {
            let words: Vec<String> = words.iter().map(|w| (*w).to_owned()).collect();
            Options::parse(&words)
        };
        let all = parse(&[]).expect("nothing is needed");
        assert_eq!((all.seconds, all.targets.len()), (60, TARGETS.len()));
        let one = parse(&["--seconds", "5", "--seed", "0", "labels"]).expect("good");
        assert_eq!((one.seconds, one.seed), (5, 0));
        assert_eq!(one.targets, ["labels"]);
        for bad in [&["nothing"][..], &["--seconds"], &["--seconds", "x"]] {
            assert!(parse(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn every_target_has_its_file() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/targets");
        let mut files: Vec<String> = fs::read_dir(&root)
            .expect("targets")
            .map(|entry| entry.expect("an entry").path())
            .map(|path| {
                path.file_stem()
                    .expect("a name")
                    .to_string_lossy()
                    .into_owned()
            })
            .collect();
        files.sort();
        let mut named = TARGETS.map(str::to_owned).to_vec();
        named.sort();
        assert_eq!(files, named);
    }
}

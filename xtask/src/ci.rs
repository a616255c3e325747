//! `cargo xtask ci`: every check, in the order of what fails fastest, with the time each one took.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

use crate::{fuzz, tidy};

/// What is asked of `ci`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Options {
    /// Without what takes minutes.
    pub(crate) quick: bool,
    /// Install cargo-deny if it is missing.
    pub(crate) deny: bool,
    /// Fresh seeds of the whole, too: some fail (docs/PROGRESS.md, "Known weaknesses").
    pub(crate) fresh: bool,
}

impl Options {
    /// Reads the arguments.
    pub(crate) fn parse(arguments: &[String]) -> Result<Self> {
        let mut options = Self::default();
        for argument in arguments {
            match argument.as_str() {
                "--quick" => options.quick = true,
                "--deny" => options.deny = true,
                "--fresh" => options.fresh = true,
                other => bail!("ci does not know {other:?}"),
            }
        }
        Ok(options)
    }
}

/// How a step ended.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Outcome {
    Passed,
    Failed(String),
    Skipped(&'static str),
}

/// Seeds of each half of the simulator's smoke run.
const SMOKE_RUNS: &str = "20";

/// The profile of what is simulated: optimised, with all assertions.
const CHECKED: &str = "checked";

/// Seconds for fresh seeds of the whole.
const WHOLE_SECONDS: &str = "60";

type Step = (&'static str, fn(&Path, &Options) -> Result<Outcome>);

const STEPS: &[Step] = &[
    ("fmt", |root, _| {
        step(cargo(root, &["fmt", "--all", "--check"]))
    }),
    ("tidy", |root, _| step(tidy::run(root))),
    ("clippy", |root, _| {
        step(cargo(
            root,
            &[
                "clippy",
                "--workspace",
                "--all-targets",
                "--",
                "-D",
                "warnings",
            ],
        ))
    }),
    ("tests", tests),
    ("sim tests", simulator_tests),
    ("doc tests", |root, _| {
        step(cargo(root, &["test", "--workspace", "--doc"]))
    }),
    ("simulator", simulator),
    ("fuzz", fuzz_targets),
    ("cargo deny", deny),
    ("benchmarks", benchmarks),
];

/// Runs all steps, also after one has failed, and fails if any did.
pub(crate) fn run(root: &Path, options: &Options) -> Result<()> {
    let begin = Instant::now();
    let mut rows = Vec::new();
    for (name, check) in STEPS {
        println!("==> {name}");
        let begin = Instant::now();
        let outcome = check(root, options).unwrap_or_else(|e| Outcome::Failed(format!("{e:#}")));
        rows.push((*name, begin.elapsed(), outcome));
    }
    println!("\n{}", summary(&rows, begin.elapsed()));
    let failed: Vec<&str> = rows
        .iter()
        .filter(|(_, _, o)| matches!(o, Outcome::Failed(_)))
        .map(|(name, _, _)| *name)
        .collect();
    if failed.is_empty() {
        return Ok(());
    }
    bail!("failed: {}", failed.join(", "))
}

fn summary(rows: &[(&str, Duration, Outcome)], total: Duration) -> String {
    let mut out = String::new();
    for (name, time, outcome) in rows {
        let outcome = match outcome {
            Outcome::Passed => "passed".to_owned(),
            Outcome::Failed(why) => format!("FAILED: {why}"),
            Outcome::Skipped(why) => format!("skipped: {why}"),
        };
        out.push_str(&format!(
            "{name:12} {:7.1} s  {outcome}\n",
            time.as_secs_f64()
        ));
    }
    out.push_str(&format!("{:12} {:7.1} s", "all", total.as_secs_f64()));
    out
}

fn step(result: Result<()>) -> Result<Outcome> {
    result.map(|()| Outcome::Passed)
}

fn tests(root: &Path, options: &Options) -> Result<Outcome> {
    let mut arguments = vec!["test", "--workspace", "--no-fail-fast", "--lib", "--bins"];
    if !options.quick {
        // The simulator's come next.
        arguments.extend(["--tests", "--examples", "--exclude", "sim"]);
    }
    step(cargo(root, &arguments))
}

/// Those of the simulator, optimised: 31 seconds instead of 308 for the longest of them.
fn simulator_tests(root: &Path, options: &Options) -> Result<Outcome> {
    if options.quick {
        return Ok(Outcome::Skipped("--quick"));
    }
    let arguments = [
        "test",
        "--profile",
        CHECKED,
        "-p",
        "sim",
        "--no-fail-fast",
        "--all-targets",
    ];
    step(cargo(root, &arguments))
}

fn simulator(root: &Path, options: &Options) -> Result<Outcome> {
    if options.quick {
        return Ok(Outcome::Skipped("--quick"));
    }
    if !root.join("crates/sim/src/main.rs").exists() {
        return Ok(Outcome::Skipped(
            "the simulator has no program yet; its tests have run",
        ));
    }
    // A fixed seed replays what CI has always seen; the fresh ones look for something new.
    let run = |arguments: &[&str]| {
        let arguments: Vec<String> = arguments.iter().map(|a| (*a).to_owned()).collect();
        program_of(root, CHECKED, "sim", &arguments)
    };
    let gates = run(&["1", "--runs", SMOKE_RUNS]).and_then(|()| run(&["--runs", SMOKE_RUNS]));
    let whole = gates.and_then(|()| run(&["1", "--whole", "--runs", SMOKE_RUNS]));
    step(match options.fresh {
        true => whole.and_then(|()| run(&["--whole", "--seconds", WHOLE_SECONDS, "--go-on"])),
        false => whole,
    })
}

/// Every decoder of foreign bytes, a minute each.
fn fuzz_targets(root: &Path, options: &Options) -> Result<Outcome> {
    if options.quick {
        return Ok(Outcome::Skipped("--quick"));
    }
    step(fuzz::run(root, &fuzz::Options::parse(&[])?))
}

/// The MPI programs of `benchmarks/`, built with each MPI and tested in a local directory and on a GUPFS mount.
fn benchmarks(root: &Path, options: &Options) -> Result<Outcome> {
    if options.quick {
        return Ok(Outcome::Skipped("--quick"));
    }
    // Beside this program, built by the step "tests".
    let gupfs = std::env::current_exe()
        .context("cannot tell where this program is")?
        .with_file_name("gupfs");
    anyhow::ensure!(
        gupfs.exists(),
        "{} is missing: the step \"tests\" builds it",
        gupfs.display()
    );
    let status = Command::new("make")
        .arg("test-benchmarks")
        .arg(format!("GUPFS={}", gupfs.display()))
        .current_dir(root)
        .status()
        .context("cannot run make")?;
    anyhow::ensure!(status.success(), "make test-benchmarks failed");
    Ok(Outcome::Passed)
}

fn deny(root: &Path, options: &Options) -> Result<Outcome> {
    let is_installed = || {
        let mut probe = Command::new("cargo");
        probe
            .args(["deny", "--version"])
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        probe.status().is_ok_and(|status| status.success())
    };
    if !is_installed() && options.deny {
        cargo(root, &["install", "--locked", "cargo-deny"])?;
    }
    if !is_installed() {
        return Ok(Outcome::Skipped(
            "cargo-deny is not installed; `cargo xtask ci --deny` installs it",
        ));
    }
    step(cargo(root, &["deny", "check"]))
}

/// Runs cargo in the repository.
pub(crate) fn cargo(root: &Path, arguments: &[&str]) -> Result<()> {
    let program = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let status = Command::new(program)
        .args(arguments)
        .current_dir(root)
        .status()
        .context("cannot run cargo")?;
    anyhow::ensure!(status.success(), "cargo {} failed", arguments.join(" "));
    Ok(())
}

/// Builds and runs the program of the crate `name`, released.
pub(crate) fn program(root: &Path, name: &str, arguments: &[String]) -> Result<()> {
    program_of(root, "release", name, arguments)
}

fn program_of(root: &Path, profile: &str, name: &str, arguments: &[String]) -> Result<()> {
    let mut all = vec!["run", "--profile", profile, "-p", name, "--"];
    all.extend(arguments.iter().map(String::as_str));
    cargo(root, &all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_read() {
        let parse = |words: &[&str]| {
            Options::parse(&words.iter().map(|w| (*w).to_owned()).collect::<Vec<_>>())
        };
        let both = Options {
            quick: true,
            deny: true,
            fresh: false,
        };
        assert_eq!(parse(&[]).expect("none"), Options::default());
        assert_eq!(parse(&["--deny", "--quick"]).expect("both"), both);
        parse(&["--fast"]).expect_err("unknown");
    }

    #[test]
    fn the_summary_shows_what_failed_and_what_was_skipped() {
        let rows = [
            ("fmt", Duration::from_millis(1500), Outcome::Passed),
            ("tests", Duration::ZERO, Outcome::Failed("why".to_owned())),
            ("deny", Duration::ZERO, Outcome::Skipped("missing")),
        ];
        let text = summary(&rows, Duration::from_secs(2));
        assert!(text.contains("fmt              1.5 s  passed"), "{text}");
        assert!(text.contains("FAILED: why"), "{text}");
        assert!(text.contains("skipped: missing"), "{text}");
    }
}

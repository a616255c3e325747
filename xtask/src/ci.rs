//! `cargo xtask ci`: every check, with the time each one took.
//!
//! The tests on real mounts wait most of their time: for leases that lapse, for disks, for one another. What only computes runs beside
//! them, and is shown when it has ended. Not by nice(1): beside niced work daemons stand still for half a minute (docs/PROGRESS.md).

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

use crate::{failures, fuzz, tidy};

/// What is asked of `ci`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Options {
    /// Without what takes minutes.
    pub(crate) quick: bool,
    /// Install cargo-deny if it is missing.
    pub(crate) deny: bool,
    /// Fresh seeds of the whole, too: some fail (docs/PROGRESS.md, "Known weaknesses").
    pub(crate) fresh: bool,
    /// The name of the only step.
    only: Option<&'static str>,
}

impl Options {
    /// Reads the arguments.
    pub(crate) fn parse(arguments: &[String]) -> Result<Self> {
        let mut options = Self::default();
        let mut rest = arguments.iter();
        while let Some(argument) = rest.next() {
            match argument.as_str() {
                "--only" => options.only = Some(step_named(rest.next())?),
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

/// The simulator's package.
const SIMULATOR: &str = "sim";

/// Seconds for fresh seeds of the whole.
const WHOLE_SECONDS: &str = "60";

/// One of the checks.
struct Step {
    name: &'static str,
    when: When,
    check: Check,
}

type Check = fn(&Path, &Options) -> Result<Outcome>;

/// Beside what a step runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum When {
    /// By itself, before all others.
    First,
    /// One after the other, beside those that compute.
    Waiting,
    /// One after the other, beside those that wait.
    Computing,
}

impl Step {
    const fn new(name: &'static str, when: When, check: Check) -> Self {
        Self { name, when, check }
    }
}

fn step_named(name: Option<&String>) -> Result<&'static str> {
    let known = STEPS.each_ref().map(|step| step.name);
    let name = name.with_context(|| format!("--only needs a step: one of {known:?}"))?;
    let found = known.into_iter().find(|known| known == name);
    found.with_context(|| format!("ci has no step {name:?}; its steps are {known:?}"))
}

static STEPS: [Step; 11] = [
    Step::new("fmt", When::First, |root, _| {
        step(cargo(root, &["fmt", "--all", "--check"]))
    }),
    Step::new("tidy", When::First, |root, _| step(tidy::run(root))),
    Step::new("cargo deny", When::First, deny),
    Step::new("build", When::First, build),
    Step::new("tests", When::Waiting, tests_but_simulators),
    Step::new("benchmarks", When::Waiting, benchmarks),
    Step::new("sim tests", When::Computing, simulator_tests),
    Step::new("simulator", When::Computing, simulator),
    Step::new("clippy", When::Computing, |root, _| {
        let all = ["clippy", "--workspace", "--all-targets"];
        let arguments: Vec<&str> = all.into_iter().chain(["--", "-D", "warnings"]).collect();
        step(cargo(root, &arguments))
    }),
    Step::new("doc tests", When::Computing, |root, _| {
        step(cargo(root, &["test", "--workspace", "--doc"]))
    }),
    Step::new("fuzz", When::Computing, fuzz_targets),
];

/// A step's name, how long it took, and how it ended.
type Row = (&'static str, Duration, Outcome);

/// Runs all steps, also after one has failed, and fails if any did.
pub(crate) fn run(root: &Path, options: &Options) -> Result<()> {
    let begin = Instant::now();
    let only = STEPS.iter().find(|step| options.only == Some(step.name));
    let rows = match only {
        Some(only) => vec![run_step(only, root, options)],
        None => run_all(root, options),
    };
    print!("{}", reasons(&rows));
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

fn run_all(root: &Path, options: &Options) -> Vec<Row> {
    let mut rows = Vec::new();
    let of = |when: When| STEPS.iter().filter(move |step| step.when == when);
    rows.extend(of(When::First).map(|step| run_step(step, root, options)));
    let beside = std::thread::scope(|scope| {
        let computing = scope.spawn(|| run_computing(root, options));
        rows.extend(of(When::Waiting).map(|step| run_step(step, root, options)));
        computing.join()
    });
    rows.extend(beside.expect("a panic there was printed"));
    rows
}

fn run_step(step: &Step, root: &Path, options: &Options) -> Row {
    println!("==> {}", step.name);
    let begin = Instant::now();
    let outcome = (step.check)(root, options);
    let outcome = outcome.unwrap_or_else(|e| Outcome::Failed(format!("{e:#}")));
    (step.name, begin.elapsed(), outcome)
}

/// Runs the steps that compute, each in a process of its own whose words are kept until it has ended: they would stand between those of
/// the tests.
fn run_computing(root: &Path, options: &Options) -> Vec<Row> {
    let computing = STEPS.iter().filter(|step| step.when == When::Computing);
    let run = |step: &'static Step| {
        if options.quick && step.name != "clippy" && step.name != "doc tests" {
            return (step.name, Duration::ZERO, Outcome::Skipped("--quick"));
        }
        let begin = Instant::now();
        let outcome = run_beside(step, root, options);
        let outcome = outcome.unwrap_or_else(|e| Outcome::Failed(format!("{e:#}")));
        (step.name, begin.elapsed(), outcome)
    };
    computing.map(run).collect()
}

fn run_beside(step: &Step, root: &Path, options: &Options) -> Result<Outcome> {
    let directory = target_directory(root)?.join("ci");
    std::fs::create_dir_all(&directory).with_context(|| directory.display().to_string())?;
    let path = directory.join(format!("{}.log", step.name.replace(' ', "-")));
    let log = File::create(&path).with_context(|| path.display().to_string())?;
    // By its name: the build of all may have put a new file there.
    let itself = std::env::current_exe().context("cannot tell where this program is")?;
    let mut command = Command::new(itself.with_file_name("xtask"));
    command.args(["ci", "--only", step.name]);
    if options.fresh {
        command.arg("--fresh");
    }
    let status = command
        .current_dir(root)
        .stdin(Stdio::null())
        .stdout(log.try_clone().context("cannot share the log")?)
        .stderr(log)
        .status()
        .context("cannot run a step of its own")?;
    let said = std::fs::read(&path).with_context(|| path.display().to_string())?;
    println!("{}", String::from_utf8_lossy(&said));
    Ok(match status.success() {
        true => Outcome::Passed,
        false => {
            let said = String::from_utf8_lossy(&said);
            let reasons = said.split_once(REASONS).map(|(_, reasons)| reasons);
            let reasons = reasons.unwrap_or_default();
            Outcome::Failed(format!("see \"==> {}\" above\n{reasons}", step.name))
        }
    })
}

/// Stands above what the failing steps said.
const REASONS: &str = "==> what failed\n";

/// What each step that failed said of it, but for the first line, which the summary has.
fn reasons(rows: &[Row]) -> String {
    let of = |(name, _, outcome): &Row| match outcome {
        Outcome::Failed(why) => {
            let (_, more) = why.split_once('\n')?;
            (!more.trim().is_empty()).then(|| format!("{name}:\n{more}"))
        }
        Outcome::Passed | Outcome::Skipped(_) => None,
    };
    let all: String = rows.iter().filter_map(of).collect();
    match all.is_empty() {
        true => all,
        false => format!("\n{REASONS}{all}"),
    }
}

fn summary(rows: &[(&str, Duration, Outcome)], total: Duration) -> String {
    let mut out = String::new();
    for (name, time, outcome) in rows {
        let outcome = match outcome {
            Outcome::Passed => "passed".to_owned(),
            Outcome::Failed(why) => format!("FAILED: {}", why.lines().next().unwrap_or_default()),
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

/// Tests of all crates, of the kinds named. Always of the workspace, never of one package: with the features that one package wants of
/// what all use, much would be built once more.
fn test(root: &Path, kinds: &[&str]) -> Result<Outcome> {
    let all = ["test", "--workspace", "--no-fail-fast"];
    step(failures::cargo_test(root, &[&all, kinds].concat()))
}

/// All tests and what they run.
fn build(root: &Path, options: &Options) -> Result<Outcome> {
    let kinds: &[&str] = match options.quick {
        true => &["--lib", "--bins"],
        false => &["--lib", "--bins", "--examples", "--tests"],
    };
    test(root, &[kinds, &["--no-run"]].concat())
}

/// The unit tests of all crates, and all other tests but the simulator's.
fn tests_but_simulators(root: &Path, options: &Options) -> Result<Outcome> {
    if options.quick {
        return test(root, &["--lib", "--bins"]);
    }
    let within = test(root, &["--lib", "--bins", "--examples"]);
    // Also where the first have failed.
    let others = test(root, &["--exclude", SIMULATOR, "--test", "*"]);
    match (within, others) {
        (Err(one), Err(other)) => bail!("{one:#}\n{other:#}"),
        (one, other) => one.and(other),
    }
}

/// Those of the simulator but its unit tests: they only compute.
fn simulator_tests(root: &Path, options: &Options) -> Result<Outcome> {
    if options.quick {
        return Ok(Outcome::Skipped("--quick"));
    }
    let directory = root.join("crates").join(SIMULATOR).join("tests");
    let context = || directory.display().to_string();
    let mut names = Vec::new();
    for entry in std::fs::read_dir(&directory).with_context(context)? {
        let path = entry.with_context(context)?.path();
        let stem = path.file_stem().and_then(|stem| stem.to_str());
        if let (Some("rs"), Some(stem)) = (path.extension().and_then(|e| e.to_str()), stem) {
            names.push(stem.to_owned());
        }
    }
    anyhow::ensure!(!names.is_empty(), "no tests in {}", directory.display());
    names.sort();
    let kinds: Vec<&str> = names
        .iter()
        .flat_map(|name| ["--test", name.as_str()])
        .collect();
    test(root, &kinds)
}

fn simulator(root: &Path, options: &Options) -> Result<Outcome> {
    if options.quick {
        return Ok(Outcome::Skipped("--quick"));
    }
    // A moment, unless this step is run alone: the program of before would be taken.
    build(root, options)?;
    let program = built(SIMULATOR)?;
    // A fixed seed replays what CI has always seen; the fresh ones look for something new.
    let run = |arguments: &[&str]| {
        let status = Command::new(&program)
            .args(arguments)
            .current_dir(root)
            .status();
        let status = status.with_context(|| program.display().to_string())?;
        anyhow::ensure!(status.success(), "sim {} failed", arguments.join(" "));
        Ok(())
    };
    let gates = run(&["1", "--runs", SMOKE_RUNS]).and_then(|()| run(&["--runs", SMOKE_RUNS]));
    let whole = gates.and_then(|()| run(&["1", "--whole", "--runs", SMOKE_RUNS]));
    step(match options.fresh {
        true => whole.and_then(|()| run(&["--whole", "--seconds", WHOLE_SECONDS, "--go-on"])),
        false => whole,
    })
}

/// A program that the step "build" has put beside this one.
fn built(name: &str) -> Result<PathBuf> {
    let program = std::env::current_exe()
        .context("cannot tell where this program is")?
        .with_file_name(name);
    anyhow::ensure!(
        program.exists(),
        "{} is missing: the step \"build\" makes it",
        program.display()
    );
    Ok(program)
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
    let gupfs = built("gupfs")?;
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

/// Where cargo puts what it builds, whoever says so: a variable or a file.
pub(crate) fn target_directory(root: &Path) -> Result<PathBuf> {
    let metadata = cargo_metadata::MetadataCommand::new()
        .current_dir(root)
        .no_deps()
        .exec()
        .context("cannot run cargo metadata")?;
    Ok(metadata.target_directory.into())
}

/// Cargo in the repository.
pub(crate) fn cargo_command(root: &Path, arguments: &[&str]) -> Command {
    let program = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let mut command = Command::new(program);
    command.args(arguments).current_dir(root);
    command
}

/// Runs cargo in the repository.
pub(crate) fn cargo(root: &Path, arguments: &[&str]) -> Result<()> {
    let status = cargo_command(root, arguments)
        .status()
        .context("cannot run cargo")?;
    anyhow::ensure!(status.success(), "cargo {} failed", arguments.join(" "));
    Ok(())
}

/// Builds and runs the program of the crate `name`, released.
pub(crate) fn program(root: &Path, name: &str, arguments: &[String]) -> Result<()> {
    let mut all = vec!["run", "--release", "-p", name, "--"];
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
            only: None,
        };
        assert_eq!(parse(&[]).expect("none"), Options::default());
        assert_eq!(parse(&["--deny", "--quick"]).expect("both"), both);
        parse(&["--fast"]).expect_err("unknown");
        let one = parse(&["--only", "sim tests"]).expect("a step");
        assert_eq!(one.only, Some("sim tests"));
        for bad in [&["--only"][..], &["--only", "nothing"]] {
            let error = parse(bad).expect_err("no step").to_string();
            assert!(error.contains("clippy"), "says which there are: {error}");
        }
    }

    #[test]
    fn the_summary_shows_what_failed_and_what_was_skipped() {
        let rows = [
            ("fmt", Duration::from_millis(1500), Outcome::Passed),
            (
                "tests",
                Duration::ZERO,
                Outcome::Failed("why\nat length\n".to_owned()),
            ),
            ("deny", Duration::ZERO, Outcome::Skipped("missing")),
        ];
        let text = summary(&rows, Duration::from_secs(2));
        assert!(text.contains("fmt              1.5 s  passed"), "{text}");
        assert!(text.contains("FAILED: why"), "{text}");
        assert!(text.contains("skipped: missing"), "{text}");
        assert!(!text.contains("at length"), "{text}");
        assert_eq!(reasons(&rows), "\n==> what failed\ntests:\nat length\n");
        assert_eq!(reasons(&rows[..1]), "");
    }
}

//! The ratios of docs/performance.md: every row against its comparator, in one run, on devices in memory.
//!
//! X = xfs on such a device; T = a trivial in-memory server on our FUSE layer; T0 = the same on libfuse; Tp = T with each
//! write a pwrite on such a device; R = such a device itself; G = GUPFS. Subject and comparator take many short turns, and the median of the ratios of adjacent turns
//! counts, because the machine drifts. Idle CPUs poll meanwhile (`idle`), because waking one that sleeps costs
//! more than what is measured.
#![forbid(unsafe_code)]
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "OS boundary"
)]
#![allow(clippy::print_stdout, reason = "a command prints its answer")]

mod fio;
mod idle;
mod load;
mod names;
mod pair;
mod random;
mod report;
mod rig;
mod single;
mod upkeep;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};

use crate::report::Row;
use crate::rig::Rig;

const HELP: &str = "\
cargo xtask bench [--quick] [--only NAMES] [--json FILE] [--no-poll] [--list]

  --quick       fewer and smaller runs: for a first look, not for docs/performance.md
  --many N      files of the groups huge and memory, operations of recovery: 1,000,000, or 100,000 with --quick
  --only NAMES  only groups whose name has one of NAMES (separated by commas) in it
  --json FILE   write the rows as JSON too
  --no-poll     let idle CPUs sleep: small figures then grow up to fivefold, and jump
  --list        names of the groups
";

/// How much is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Scale {
    /// Runs of which the median counts, of long loads.
    pub(crate) run_count: usize,
    /// Small operations per run.
    pub(crate) operation_count: usize,
    /// Turns that subject and comparator take at small operations.
    pub(crate) turn_count: usize,
    /// Small operations per turn.
    pub(crate) turn_operation_count: usize,
    /// Bytes of a large file.
    pub(crate) file_size: u64,
    /// Files of a very large directory, or of all where memory counts, and operations before a kill.
    pub(crate) many_count: u64,
}

const FULL: Scale = Scale {
    run_count: 5,
    operation_count: 20_000,
    turn_count: 15,
    turn_operation_count: 3_000,
    file_size: 1 << 30,
    many_count: 1_000_000,
};
const QUICK: Scale = Scale {
    run_count: 3,
    operation_count: 3_000,
    turn_count: 9,
    turn_operation_count: 1_000,
    file_size: 256 << 20,
    many_count: 100_000,
};

/// Fewer files tell nothing of many.
const MANY_MIN: u64 = 10_000;

type Group = (&'static str, fn(&mut Rig, Scale) -> Result<Vec<Row>>);

/// Every group of rows.
const GROUPS: &[Group] = &[
    ("layer", single::layer),
    ("small", single::small),
    ("switches", single::switches),
    ("write", single::sequential_write),
    ("read", single::sequential_read),
    ("processes", single::processes),
    ("fsync", single::small_fsync),
    ("untar", single::untar),
    ("tree", names::tree),
    ("files", single::files),
    ("names", names::names),
    ("stat", names::stat),
    ("huge", names::huge),
    ("random-read", random::random_read),
    ("overwrite", random::random_write),
    ("ageing", random::ageing),
    ("mmap", random::mapped),
    ("cpu", upkeep::cpu),
    ("tail", upkeep::tail),
    ("recovery", upkeep::recovery),
    ("memory", upkeep::memory),
    ("messages", pair::messages),
    ("remote", pair::remote),
    ("both", pair::both),
    ("ping-pong", pair::ping_pong),
    ("interleaved", pair::interleaved),
];

#[derive(Debug, Default)]
struct Options {
    quick: bool,
    only: Vec<String>,
    no_poll: bool,
    many: Option<u64>,
    json: Option<PathBuf>,
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let outcome = match arguments.split_first() {
        Some((first, rest)) if first == load::WORKER => load::work(rest),
        _ => run(&arguments),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &[String]) -> Result<()> {
    let Some(options) = parse(arguments)? else {
        return Ok(());
    };
    let mut scale = if options.quick { QUICK } else { FULL };
    scale.many_count = options.many.unwrap_or(scale.many_count);
    let mut rig = Rig::new(scale.many_count)?;
    let mut rows = Vec::new();
    let idle = idle::State::enter(!options.no_poll);
    let wanted = |name: &str| {
        options.only.is_empty() || options.only.iter().any(|only| name.contains(only.as_str()))
    };
    for (name, measure) in GROUPS.iter().filter(|(name, _)| wanted(name)) {
        eprintln!("measuring: {name}");
        let begin = std::time::Instant::now();
        // One group that cannot be measured does not hide the others.
        let measured = measure(&mut rig, scale).unwrap_or_else(|e| vec![Row::failed(name, &e)]);
        // A run that is ended early has said what it knew.
        let took = begin.elapsed().as_secs();
        eprintln!("{}\n({took} s)", report::table(&measured));
        rows.extend(measured);
        if let Some(path) = &options.json {
            let text = report::to_json(&rows).to_string();
            std::fs::write(path, text)
                .with_context(|| format!("cannot write {}", path.display()))?;
        }
    }
    println!("{}\n{idle}", report::table(&rows));
    let failed = rows.iter().filter(|row| row.is_failed()).count();
    anyhow::ensure!(failed == 0, "{failed} groups could not be measured");
    Ok(())
}

fn parse(arguments: &[String]) -> Result<Option<Options>> {
    let mut options = Options::default();
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        match argument.as_str() {
            "--quick" => options.quick = true,
            "--only" => {
                let names = rest.next().context("--only needs a name")?;
                options.only = names.split(',').map(str::to_owned).collect();
            }
            "--many" => {
                let count: u64 = rest.next().context("--many needs a number")?.parse()?;
                anyhow::ensure!(count >= MANY_MIN, "--many is at least {MANY_MIN}");
                options.many = Some(count);
            }
            "--no-poll" => options.no_poll = true,
            "--json" => options.json = Some(rest.next().context("--json needs a file")?.into()),
            "--list" => {
                GROUPS.iter().for_each(|(name, _)| println!("{name}"));
                return Ok(None);
            }
            "--help" | "-h" => {
                println!("{HELP}");
                return Ok(None);
            }
            other => bail!("unknown argument {other:?}\n\n{HELP}"),
        }
    }
    let is_known = |only: &String| GROUPS.iter().any(|(name, _)| name.contains(only.as_str()));
    if let Some(only) = options.only.iter().find(|o| o.is_empty() || !is_known(o)) {
        bail!("no group has {only:?} in its name; --list shows them");
    }
    Ok(Some(options))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(words: &[&str]) -> Result<Option<Options>> {
        parse(&words.iter().map(|w| (*w).to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn arguments_are_read() {
        let options = parsed(&["--quick", "--no-poll", "--only", "write,untar"])
            .expect("good")
            .expect("a run");
        assert!(options.quick);
        assert!(options.no_poll);
        let many = parsed(&["--many", "20000"])
            .expect("good")
            .expect("a run")
            .many;
        assert_eq!(many, Some(20_000));
        assert_eq!(options.only, ["write", "untar"]);
        assert!(parsed(&["--help"]).expect("good").is_none());
        for bad in [
            &["--only"][..],
            &["--only", "zebra"],
            &["--only", "write,"],
            &["--fast"],
            &["--many", "12"],
            &["--many", "some"],
        ] {
            parsed(bad).expect_err("bad");
        }
    }
}

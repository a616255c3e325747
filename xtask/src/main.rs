//! All automation of the repository: `cargo xtask COMMAND`.
#![forbid(unsafe_code)]
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "OS boundary"
)]
#![allow(clippy::print_stdout, reason = "a command prints its answer")]

mod ci;
mod deb;
mod failures;
mod fuzz;
mod guided;
mod tidy;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, Result, bail, ensure};

const HELP: &str = "\
cargo xtask COMMAND

  ci [--quick] [--deny] [--fresh] [--only STEP]
                          all checks: fmt, clippy, tidy, tests, doc tests, simulator smoke, cargo deny,
                          tests of benchmarks/
                          --quick   without the tests on real mounts, the simulator and benchmarks/
                          --deny    install cargo-deny first if it is missing (takes minutes)
                          --fresh   with a minute of fresh seeds of the whole simulator
                          --only    one step, by the name that the summary shows
  tidy                    the rules that a machine can check
  sim [ARGUMENTS]         the simulator: a fresh seed, or the given one replayed
  deb [--test]            a Debian package: its path is printed (needs cargo-deb)
                          --test    install it, mount through mount(8) and fstab, remove it (as root)
  fuzz [--seconds N] [--seed N] [TARGET...]
                          the decoders of foreign bytes, N seconds each (60), as many at a time as there are
                          processors; `--seconds 3600 --seed 0` (a fresh seed) is for a night
  guided                  the program as it is packaged, built by a profile of what it does most: its path is printed
                          (needs root, /dev/fuse, and rustup component add llvm-tools; takes ten minutes)
  bench [--guided] [ARGUMENTS]
                          the ratios of docs/performance.md (--quick, --only NAME)
                          --guided  of the program as it is packaged
";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &[String]) -> Result<()> {
    let root = root()?;
    let Some((command, rest)) = arguments.split_first() else {
        bail!("a command is missing\n\n{HELP}");
    };
    match command.as_str() {
        "ci" => ci::run(&root, &ci::Options::parse(rest)?),
        "tidy" => tidy::run(&root),
        "sim" => ci::program(&root, "sim", rest),
        "deb" => deb::run(&root, rest),
        "fuzz" => fuzz::run(&root, &fuzz::Options::parse(rest)?),
        "guided" => {
            ensure!(rest.is_empty(), "guided does not know {rest:?}");
            println!("{}", guided::run(&root)?.display());
            Ok(())
        }
        "bench" => bench(&root, rest),
        "help" | "--help" | "-h" => {
            println!("{HELP}");
            Ok(())
        }
        other => bail!("unknown command {other:?}\n\n{HELP}"),
    }
}

/// The daemon and the comparator T are measured as they are built for release.
fn bench(root: &Path, arguments: &[String]) -> Result<()> {
    let (is_guided, rest) = match arguments.split_first() {
        Some((first, rest)) if first == "--guided" => (true, rest),
        _ => (false, arguments),
    };
    let build = |words: &[&str]| ci::cargo(root, &[&["build", "--release"], words].concat());
    build(&["-p", "os", "--example", "trivial"])?;
    match is_guided {
        true => drop(guided::install(root)?),
        false => build(&["-p", "gupfs", "--bin", "gupfs"])?,
    }
    ci::program(root, "bench", rest)
}

/// The repository: the parent of this crate.
fn root() -> Result<PathBuf> {
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    own.parent()
        .map(Path::to_path_buf)
        .context("xtask lies in the repository")
}

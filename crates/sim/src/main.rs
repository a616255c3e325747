//! `sim [SEED] [--runs N] [--seconds N] [--whole [--frames N] [--rewrites | --no-rewrites]] [--canary R4]...`: runs seeds from the given or a fresh one on, prints
//! what they did, fails with the first violation.
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, reason = "a command line program speaks")]

use std::hash::{BuildHasher, Hasher, RandomState};
use std::process::ExitCode;
use std::time::Instant;

use sim::whole::ace::machine::Shape;
use sim::whole::ace::ops::Sequence;
use sim::whole::ace::{self, ops};
use sim::whole::node::Canary;
use sim::{Rules, World, whole};

struct Arguments {
    seed: u64,
    run_count: u64,
    /// No further seed is begun after so many seconds.
    seconds: u64,
    rules: Rules,
    canary: Canary,
    is_whole: bool,
    /// What the rewriter does in the whole, instead of what the seed draws: all that it can, or nothing.
    rewrites: Option<bool>,
    /// Frames of each pagepool of the whole, instead of what the seed draws.
    frame_count: Option<u64>,
    goes_on: bool,
    has_log: bool,
}

/// A seed that nobody has seen: below 2^48, so that it is easily typed and the runs after it have seeds too.
fn fresh_seed() -> u64 {
    RandomState::new().build_hasher().finish() >> 16
}

fn parse(mut words: impl Iterator<Item = String>) -> Result<Arguments, String> {
    let mut arguments = Arguments {
        seed: fresh_seed(),
        run_count: 1,
        seconds: u64::MAX,
        rules: Rules::DEFAULT,
        canary: Canary::default(),
        is_whole: false,
        rewrites: None,
        frame_count: None,
        goes_on: false,
        has_log: false,
    };
    while let Some(word) = words.next() {
        match word.as_str() {
            "--runs" => {
                let count = words.next().and_then(|w| w.parse().ok());
                arguments.run_count = count.ok_or("--runs needs a number")?;
            }
            "--seconds" => {
                let count = words.next().and_then(|w| w.parse().ok());
                arguments.seconds = count.ok_or("--seconds needs a number")?;
                arguments.run_count = u64::MAX >> 16;
            }
            "--canary" => {
                let name = words.next().ok_or("--canary needs a name")?;
                if !arguments.canary.set(&name) {
                    switch_off(&mut arguments.rules, &name)?;
                }
            }
            "--frames" => {
                let count = words.next().and_then(|w| w.parse().ok());
                arguments.frame_count = Some(count.ok_or("--frames needs a number")?);
            }
            "--whole" => arguments.is_whole = true,
            "--rewrites" => arguments.rewrites = Some(true),
            "--no-rewrites" => arguments.rewrites = Some(false),
            "--go-on" => arguments.goes_on = true,
            "--log" => arguments.has_log = true,
            seed => arguments.seed = seed.parse().map_err(|_| format!("not a seed: {seed}"))?,
        }
    }
    Ok(arguments)
}

fn switch_off(rules: &mut Rules, name: &str) -> Result<(), String> {
    let rule = match name {
        "R1" => &mut rules.r1,
        "R2" => &mut rules.r2,
        "R3" => &mut rules.r3,
        "R4" => &mut rules.r4,
        "R5" => &mut rules.r5,
        "R6" => &mut rules.r6,
        "R7" => &mut rules.r7,
        "R8" => &mut rules.r8,
        "R9" => &mut rules.r9,
        "R10" => &mut rules.r10,
        "R11" => &mut rules.r11,
        "R12" => &mut rules.r12,
        _ => return Err(format!("no rule {name}: R1 to R12")),
    };
    *rule = false;
    Ok(())
}

/// Which of many sequences are run.
#[derive(Clone, Copy)]
struct Share {
    from: usize,
    every: usize,
    count: usize,
}

/// `sim --ace [SEQUENCE | [refused | listed] singles | [refused | listed] pairs | scarce | rot] [--from N] [--every N] [--count N] [--frames N] [--at-end]
/// [--go-on] [--no-cache] [--no-pages] [--rewrites] [--evacuate] [--canary NAME]...`
fn ace(words: &[String]) -> Result<bool, String> {
    let mut shape = Shape::default();
    let mut canary = ace::Canary::default();
    let (mut goes_on, mut cuts, mut rest) = (false, true, Vec::new());
    let mut share = Share {
        from: 0,
        every: 1,
        count: usize::MAX,
    };
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let mut number = || {
            let number = words.next().and_then(|w| w.parse().ok());
            number.ok_or_else(|| format!("{word} needs a number"))
        };
        match word.as_str() {
            "--from" => share.from = number()?,
            "--every" => share.every = number()?.max(1),
            "--count" => share.count = number()?,
            "--frames" => shape.frame_count = number()? as u64,
            "--at-end" => cuts = false,
            "--go-on" => goes_on = true,
            "--no-cache" => shape.has_volatile_cache = false,
            "--no-pages" => shape.round_ticks = 0,
            "--rewrites" => shape.rewrites = true,
            "--evacuate" => shape.evacuates = true,
            "--canary" => {
                let name = words.next().ok_or("--canary needs a name")?;
                if !ace::set_canary(&mut shape, &mut canary, name) {
                    return Err(format!("no canary {name}"));
                }
            }
            word => rest.push(word),
        }
    }
    let mut rest = rest.into_iter().peekable();
    let refuses = rest.next_if_eq(&"refused").is_some();
    let lists = rest.next_if_eq(&"listed").is_some();
    if refuses {
        shape = shape.with_room_to_starve();
    }
    let mut bench = ace::Bench::new(shape)?;
    bench.canary = canary;
    let sequences = match rest.next() {
        Some("scarce") => return scarce(shape, goes_on),
        Some("rot") => return rot(&mut bench, goes_on),
        Some("singles") | None => ops::singles(bench.begin()),
        Some("pairs") => ops::pairs(bench.begin()),
        Some(text) => vec![text.parse()?],
    };
    let mut refused = [0; ace::ROOMS.len()];
    let mut run = |bench: &mut ace::Bench, sequence: &Sequence| match refuses {
        false if lists => bench.listed(sequence).map(|_| ()),
        false => bench.run(sequence),
        true => bench.refused(sequence, cuts).map(|counts| {
            let sums = refused.iter_mut().zip(counts.questions);
            sums.for_each(|(sum, more)| *sum += more);
        }),
    };
    let failures = share.run(&mut bench, (&sequences, goes_on), &mut run);
    println!("{failures} violations; {:?}", bench.counts);
    if refuses {
        let rooms: Vec<_> = ace::ROOMS.iter().zip(refused).collect();
        println!("refused: {rooms:?}");
    }
    Ok(failures == 0)
}

impl Share {
    /// Runs this share of the sequences, and says how far it is, so that one can go on there. Returns how many failed.
    fn run(
        self,
        bench: &mut ace::Bench,
        (sequences, goes_on): (&[Sequence], bool),
        act: &mut dyn FnMut(&mut ace::Bench, &Sequence) -> Result<(), String>,
    ) -> u64 {
        let share = sequences.iter().enumerate().skip(self.from);
        let share = share.step_by(self.every).take(self.count);
        let (all, count) = (sequences.len(), share.len());
        println!("{count} of {all} sequences");
        let mut failures = 0;
        for ((index, sequence), done) in share.zip(1..) {
            let violation = sim::survive(|| act(bench, sequence).err());
            if let Some(violation) = violation {
                println!("{index}: {sequence}: VIOLATION {violation}");
                failures += 1;
                if !goes_on {
                    break;
                }
            }
            if done % 200 == 0 {
                let next = index + self.every;
                println!(
                    "{done} of {count}, {failures} violations; to go on: --from {next}; {:?}",
                    bench.counts
                );
            }
        }
        failures
    }
}

/// Room for no sector, for one, for two ... until there is enough; then the same with the journal.
fn scarce(shape: Shape, goes_on: bool) -> Result<bool, String> {
    // A region holds a page of a tree, where there are any.
    let regions = [(1, 0), (4, 0), (64, 0), (16, 3), (64, 3)];
    let sectors = regions
        .into_iter()
        .flat_map(|(region_sectors, round_ticks)| {
            let of = move |data_sectors| Shape {
                data_sectors,
                region_sectors,
                round_ticks,
                ..shape
            };
            (0..40).map(of)
        });
    // Smaller ones have no room for what is said of regions at a start; labels give a journal 16 MiB at least.
    let journals = (640..1024).step_by(32).map(|journal_sectors| Shape {
        journal_sectors,
        ..shape
    });
    let mut failures = 0;
    for shape in sectors.chain(journals) {
        let text = format!(
            "{} sectors in regions of {}, rounds {}, journal {}",
            shape.data_sectors, shape.region_sectors, shape.round_ticks, shape.journal_sectors
        );
        let violation = sim::survive(|| {
            let scarce = ace::Bench::scarce(shape, true);
            let scarce = scarce.map(|(refused, counts)| {
                println!("{text}: {refused} refused, {counts:?}");
            });
            scarce.err()
        });
        if let Some(violation) = violation {
            println!("{text}: VIOLATION {violation}");
            failures += 1;
            if !goes_on {
                break;
            }
        }
    }
    println!("{failures} violations");
    Ok(failures == 0)
}

/// Damage to every sector after some sequences.
fn rot(bench: &mut ace::Bench, goes_on: bool) -> Result<bool, String> {
    let all = ops::pairs(bench.begin());
    let mut failures = 0;
    for sequence in all.iter().step_by(997) {
        let violation = sim::survive(|| match bench.rot(sequence) {
            Ok(counts) => {
                println!("{sequence}: {counts:?}");
                None
            }
            Err(text) => Some(text),
        });
        if let Some(violation) = violation {
            println!("{sequence}: VIOLATION {violation}");
            failures += 1;
            if !goes_on {
                break;
            }
        }
    }
    println!("{failures} violations");
    Ok(failures == 0)
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if words.first().is_some_and(|word| word == "--ace") {
        return match ace(&words[1..]) {
            Ok(true) => ExitCode::SUCCESS,
            Ok(false) => ExitCode::FAILURE,
            Err(text) => {
                println!("{text}");
                ExitCode::from(2)
            }
        };
    }
    let arguments = match parse(std::env::args().skip(1)) {
        Ok(arguments) => arguments,
        Err(text) => {
            println!(
                "{text}\nusage: sim [SEED] [--runs N | --seconds N] [--whole [--frames N] [--rewrites | --no-rewrites]] [--go-on] [--canary R4]... [--log]"
            );
            return ExitCode::from(2);
        }
    };
    let mut failures = Vec::new();
    #[allow(
        clippy::disallowed_methods,
        reason = "the program counts its own seconds; a run has none"
    )]
    let begin = Instant::now();
    for seed in arguments.seed..arguments.seed + arguments.run_count {
        if begin.elapsed().as_secs() >= arguments.seconds {
            println!("{} seeds in {:?}", seed - arguments.seed, begin.elapsed());
            break;
        }
        if let Some(violation) = run(seed, &arguments) {
            println!("seed {seed}: VIOLATION {violation}");
            failures.push(seed);
            if !arguments.goes_on {
                break;
            }
        }
    }
    if failures.is_empty() {
        return ExitCode::SUCCESS;
    }
    println!("failed seeds: {failures:?}");
    ExitCode::FAILURE
}

/// Runs a seed, prints what it drew and did; returns what it found.
fn run(seed: u64, arguments: &Arguments) -> Option<String> {
    let log = arguments.has_log;
    if arguments.is_whole {
        let options = whole_options(seed, arguments);
        println!("seed {seed} {options:?}");
        sim::survive(|| {
            let (report, log) = whole::World::new(seed, options, log).run();
            let counts = (report.step_count, report.access_count);
            print_run(seed, &log, counts, report.trace_hash);
            if report.no_space_count > 0 {
                println!(
                    "seed {seed}: {} writes found no room",
                    report.no_space_count
                );
            }
            report.violation
        })
    } else {
        let options = sim::options(seed, arguments.rules);
        println!("seed {seed} {options:?}");
        sim::survive(|| {
            let (report, log) = World::new(seed, options, log).run();
            let counts = (report.step_count, report.access_count);
            print_run(seed, &log, counts, report.trace_hash);
            report.violation
        })
    }
}

fn whole_options(seed: u64, arguments: &Arguments) -> whole::Options {
    let mut options = match arguments.rewrites {
        Some(true) => whole::rewriting(seed, arguments.canary),
        _ => whole::options(seed, arguments.canary),
    };
    if arguments.rewrites == Some(false) {
        options.rewrite_ms = 0;
    }
    options.frame_count = arguments.frame_count.unwrap_or(options.frame_count);
    options
}

fn print_run(seed: u64, log: &[String], (steps, accesses): (u64, usize), trace: u64) {
    for line in log {
        println!("{line}");
    }
    println!("seed {seed}: {steps} steps, {accesses} accesses, trace {trace:016x}");
}

//! `sim [SEED] [--runs N] [--canary R4]...`: runs seeds, prints what they did, fails with the first violation.
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, reason = "a command line program speaks")]

use std::process::ExitCode;

use sim::{Rules, World};

struct Arguments {
    seed: u64,
    run_count: u64,
    rules: Rules,
    has_log: bool,
}

fn parse(mut words: impl Iterator<Item = String>) -> Result<Arguments, String> {
    let mut arguments = Arguments {
        seed: 0,
        run_count: 1,
        rules: Rules::DEFAULT,
        has_log: false,
    };
    while let Some(word) = words.next() {
        match word.as_str() {
            "--runs" => {
                let count = words.next().and_then(|w| w.parse().ok());
                arguments.run_count = count.ok_or("--runs needs a number")?;
            }
            "--canary" => {
                let name = words.next().ok_or("--canary needs a rule")?;
                switch_off(&mut arguments.rules, &name)?;
            }
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

fn main() -> ExitCode {
    let arguments = match parse(std::env::args().skip(1)) {
        Ok(arguments) => arguments,
        Err(text) => {
            println!("{text}\nusage: sim [SEED] [--runs N] [--canary R4]... [--log]");
            return ExitCode::from(2);
        }
    };
    for seed in arguments.seed..arguments.seed + arguments.run_count {
        let options = sim::options(seed, arguments.rules);
        println!("seed {seed} {options:?}");
        let (report, log) = World::new(seed, options, arguments.has_log).run();
        for line in log {
            println!("{line}");
        }
        println!(
            "seed {seed}: {} steps, {} accesses, trace {:016x}",
            report.step_count, report.access_count, report.trace_hash
        );
        if let Some(violation) = report.violation {
            println!("seed {seed}: VIOLATION {violation}");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

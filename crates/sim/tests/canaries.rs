//! Each rule matters: with it switched off the simulator finds a violation within a few seeds.

use sim::{Options, Rules, World, survive};

/// Seeds tried, of those whose options let the rule matter.
const SEED_COUNT_MAX: u64 = 60;

fn must_be_caught(switch_off: impl Fn(&mut Rules), matters: impl Fn(&Options) -> bool) {
    let mut rules = Rules::DEFAULT;
    switch_off(&mut rules);
    let seeds = (1..).map(|seed| (seed, sim::options(seed, rules)));
    let mut seeds = seeds.filter(|(_, options)| matters(options));
    for _ in 0..SEED_COUNT_MAX {
        let (seed, options) = seeds.next().expect("there are enough seeds");
        // A core's own check counts as well.
        let found = survive(|| World::new(seed, options, false).run().0.violation);
        if let Some(violation) = found {
            let first = violation.lines().next().unwrap_or_default();
            return eprintln!("seed {seed}: {first}");
        }
    }
    panic!("not caught within {SEED_COUNT_MAX} seeds");
}

macro_rules! canary {
    ($test:ident, $rule:ident, $matters:expr) => {
        #[test]
        fn $test() {
            must_be_caught(|rules| rules.$rule = false, $matters);
        }
    };
}

canary!(r1_notify_threads, r1, |_| true);
canary!(r2_serve_during_notify, r2, |_| true);
canary!(r3_leave_parked_pages_out, r3, |_| true);
canary!(r4_notify_again, r4, |_| true);
canary!(r5_accept_write_back, r5, |o| o.has_mappings);
canary!(r6_second_pass, r6, |o| o.busy_percent > 0);
canary!(r7_answer_lookups, r7, |o| !o.has_epoch
    && o.name_percent > 0
    && o.loss_percent == 0);
canary!(r8_fail_before_notify, r8, |o| o.lapse_count > 0);
canary!(r9_hold_nothing, r9, |_| true);
canary!(r10_commits_first, r10, |_| true);
canary!(r11_no_inval_entry, r11, |o| o.name_percent > 0);
canary!(r12_truncate_gives_way, r12, |o| o.has_mappings
    && o.has_truncate);

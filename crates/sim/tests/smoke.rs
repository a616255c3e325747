//! Fixed and fresh seeds pass, and a seed replays exactly.

use std::hash::{BuildHasher, Hasher};

use sim::Rules;

fn must_pass(seed: u64) -> sim::Report {
    let report = sim::run(seed, Rules::DEFAULT);
    if let Some(violation) = &report.violation {
        panic!("seed {seed}: replay with `cargo run -p sim -- {seed} --log`: {violation}");
    }
    report
}

#[test]
fn fixed_seeds() {
    let accesses: usize = (1..=150).map(|seed| must_pass(seed).access_count).sum();
    assert!(
        accesses > 10_000,
        "the runs did hardly anything: {accesses}"
    );
}

#[test]
fn fresh_seeds() {
    let fresh = std::collections::hash_map::RandomState::new()
        .build_hasher()
        .finish()
        >> 16;
    for seed in fresh..fresh + 100 {
        must_pass(seed);
    }
}

#[test]
fn a_seed_replays_exactly() {
    for seed in 1..=10 {
        assert_eq!(must_pass(seed), must_pass(seed));
    }
    assert_ne!(must_pass(1).trace_hash, must_pass(2).trace_hash);
}

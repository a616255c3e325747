//! One file system through two real mounts: a random ping-pong, and each of the rules R1 to R12.
//!
//! Needs root and /dev/fuse; says so and passes where these are missing. A hang is dumped (who waits for what),
//! the mounts are aborted, and the test fails with the dump. `GUPFS_PINGPONG_SECONDS=600` is the long run,
//! `GUPFS_PINGPONG_SEED=n` repeats one, `GUPFS_PINGPONG_MIX=maps` makes it mostly stores and loads through mappings.
//! `GUPFS_DIRECT_FROM=0` runs all of it with direct readers.
#![deny(unsafe_code)]
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    clippy::disallowed_types,
    unreachable_pub,
    reason = "a test at the OS boundary"
)]

#[path = "two_mounts/acl.rs"]
mod acl;
#[path = "two_mounts/aio.rs"]
mod aio;
#[path = "two_mounts/calls.rs"]
mod calls;
#[path = "two_mounts/copies.rs"]
mod copies;
#[path = "two_mounts/direct.rs"]
mod direct;
#[path = "two_mounts/du.rs"]
mod du;
#[path = "two_mounts/evict.rs"]
mod evict;
#[path = "two_mounts/fills.rs"]
mod fills;
#[path = "two_mounts/fixture.rs"]
mod fixture;
#[path = "two_mounts/lapse.rs"]
mod lapse;
#[path = "two_mounts/layout.rs"]
mod layout;
#[path = "two_mounts/listings.rs"]
mod listings;
#[path = "two_mounts/locks.rs"]
mod locks;
#[path = "two_mounts/mapping.rs"]
mod mapping;
#[path = "two_mounts/maps.rs"]
mod maps;
#[path = "two_mounts/messages.rs"]
mod messages;
#[path = "two_mounts/model.rs"]
mod model;
#[path = "two_mounts/mounted_inside.rs"]
mod mounted_inside;
#[path = "two_mounts/nameless.rs"]
mod nameless;
#[path = "two_mounts/names.rs"]
mod names;
#[path = "two_mounts/pingpong.rs"]
mod pingpong;
#[path = "two_mounts/posix.rs"]
mod posix;
#[path = "two_mounts/pressure.rs"]
mod pressure;
#[path = "two_mounts/rewritten.rs"]
mod rewritten;
#[path = "two_mounts/rights.rs"]
mod rights;
#[path = "two_mounts/rules.rs"]
mod rules;
#[path = "two_mounts/signals.rs"]
mod signals;
#[path = "labs/stopped.rs"]
mod stopped;
#[path = "two_mounts/tmpfile.rs"]
mod tmpfile;

use crate::fixture::Fixture;
use pingpong::PingPong;

/// Makes a fixture, or says why not and returns from the test.
macro_rules! lab {
    () => {
        lab!(crate::fixture::Fixture::new())
    };
    ($made:expr) => {
        match crate::fixture::reason_to_skip() {
            None => $made,
            Some(reason) => {
                eprintln!("skipped: {reason}");
                return;
            }
        }
    };
}

pub(crate) use lab;

/// Ends a test: with the dump of a hang, the fault, or its numbers.
fn finish(fixture: &Fixture, outcome: Result<String, String>) {
    if let Some(dump) = fixture.hang() {
        let seen = outcome.err().unwrap_or_default();
        panic!("hang:\n{dump}\nseen then:\n{seen}");
    }
    match outcome {
        Ok(numbers) => eprintln!("{numbers}"),
        Err(fault) => panic!("{fault}\nwaiters now:\n{}", fixture.waiters()),
    }
}

#[test]
fn ping_pong() {
    let fixture = lab!();
    let (seed, duration) = (pingpong::seed(), pingpong::duration());
    eprintln!("ping-pong seed {seed}, {} s", duration.as_secs());
    let outcome = PingPong::new(&fixture, seed).run(duration);
    let outcome = outcome
        .map(|steps| format!("ping-pong seed {seed}: {steps} steps"))
        .map_err(|fault| format!("seed {seed}\n{fault}"));
    finish(&fixture, outcome);
}

/// The end of a lab in which both nodes hold what is not committed yet, in files of either's shards.
#[test]
fn a_lab_with_dirty_nodes_goes_down() {
    let fixture = lab!();
    for node in [1, 2] {
        for name in ["a", "b", "c", "d"] {
            let bytes = vec![7; 10_000];
            std::fs::write(fixture.path(node, &format!("{name}{node}")), bytes).expect("written");
        }
    }
    finish(&fixture, fixture.down());
}

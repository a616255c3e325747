//! The file system against a local one: the same random calls on both, the same answers after each, the same trees at the end
//! and again after a remount.
//!
//! Needs root and /dev/fuse; says so and passes where these are missing. `GUPFS_DIFFERENTIAL_SECONDS=600` is the long run,
//! `GUPFS_DIFFERENTIAL_SEED=n` begins with that seed; a failure names seed and thread, and lists the calls that led to it.
#![deny(unsafe_code)]
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    clippy::disallowed_types,
    unreachable_pub,
    reason = "a test at the OS boundary"
)]

#[path = "differential/call.rs"]
mod call;
#[path = "two_mounts/calls.rs"]
#[allow(dead_code, reason = "other tests call the rest")]
mod calls;
#[path = "differential/draw.rs"]
mod draw;
#[path = "labs/lab.rs"]
#[allow(dead_code, reason = "other tests call the rest")]
mod lab;
#[path = "labs/left_out.rs"]
mod left_out;
#[path = "two_mounts/mapping.rs"]
#[allow(dead_code, reason = "other tests call the rest")]
mod mapping;
#[path = "labs/node.rs"]
mod node;
#[path = "differential/play.rs"]
mod play;
#[path = "labs/stopped.rs"]
mod stopped;
#[path = "differential/tree.rs"]
mod tree;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use play::Player;

/// Threads, each in a directory of its own.
const THREAD_COUNT: u64 = 3;
/// Calls of one thread before the trees are compared and all begins anew with the next seed.
const CALL_COUNT: u64 = 3000;
/// The first seed, unless another one is given: a run that fails is no news of the change that it is run for otherwise.
const SEED: u64 = 1;

fn number(name: &str) -> Option<u64> {
    let said = std::env::var(name).ok()?;
    Some(said.parse().expect("a number"))
}

/// The local file system: memory, gone when this is dropped.
fn reference() -> tempfile::TempDir {
    let made = tempfile::Builder::new()
        .prefix("gupfs-reference-")
        .tempdir_in("/dev/shm");
    made.expect("Linux has /dev/shm")
}

/// Rounds until the time is over; `remount` is done after the first and the last.
fn run(mounts: &[PathBuf], seconds: u64, remount: &dyn Fn()) {
    let seconds = number("GUPFS_DIFFERENTIAL_SECONDS").unwrap_or(seconds);
    let until = Instant::now() + Duration::from_secs(seconds);
    let mut seed = number("GUPFS_DIFFERENTIAL_SEED").unwrap_or(SEED);
    let local = reference();
    let (mut rounds, mut kept) = (0_u64, Vec::new());
    loop {
        eprintln!("seed {seed}");
        let names: Vec<String> = (0..THREAD_COUNT)
            .map(|n| format!("r{rounds}-{n}"))
            .collect();
        let mut calls = 0;
        std::thread::scope(|scope| {
            let players = names.iter().zip(0..).map(|(name, thread)| {
                let there = mounts.iter().map(|m| m.join(name)).collect();
                let player = Player::new(local.path().join(name), there, seed, thread);
                scope.spawn(move || player.run(CALL_COUNT, until))
            });
            let players: Vec<_> = players.collect();
            for player in players {
                calls += player.join().unwrap_or_else(|_| panic!("seed {seed}"));
            }
        });
        eprintln!("{calls} calls");
        kept.extend(names);
        rounds += 1;
        let is_over = Instant::now() >= until;
        let compare = |when: &str| {
            for name in &kept {
                let expected = tree::read(&local.path().join(name));
                for mount in mounts {
                    let found = tree::read(&mount.join(name));
                    tree::compare(&expected, &found, &format!("seed {seed}, {when}, {name}"));
                }
            }
        };
        compare("before the remount");
        if rounds == 1 || is_over {
            remount();
            compare("after the remount");
        }
        for name in kept.drain(..) {
            remove(&local.path().join(&name));
            remove(&mounts[0].join(&name));
        }
        if is_over {
            return;
        }
        seed += 1;
    }
}

fn remove(path: &Path) {
    std::fs::remove_dir_all(path).unwrap_or_else(|e| panic!("remove {}: {e}", path.display()));
}

/// One node, one mount.
#[test]
fn one_mount_is_as_a_local_file_system() {
    let Some(node) = node::Node::new("2G") else {
        return;
    };
    run(&[node.mount()], 12, &|| {
        node.gupfs(&["down"]);
        node.up(&[]).expect("it comes up");
    });
}

/// Two nodes: each call through the one or the other.
#[test]
fn two_mounts_are_as_one_local_file_system() {
    if !lab::can_run() {
        return;
    }
    let lab = lab::Lab::up("2G", "file");
    run(&[lab.mount(1), lab.mount(2)], 12, &|| {
        // What is not durable may be lost with both.
        let sync = "find $M1 $M2 -type f -exec sync {} +; find $M1 $M2 -type d -exec sync {} +";
        lab.sh(60, sync);
        for what in ["kill", "start"] {
            for name in ["n1", "n2"] {
                lab.gupfs(&[what, name]);
            }
        }
    });
}

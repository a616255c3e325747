//! Loss of power: the disks' files lie on an XFS on a loop device that is shut down without its log being written, at a random
//! moment under load; the daemons are killed; XFS is mounted again and replays what it has; so does GUPFS. Then all that an
//! fsync acknowledged is there, and nothing is there that was never written.
//!
//! Needs root, /dev/fuse and XFS; says so and passes where these are missing. `GUPFS_POWER_CYCLES=500` is the long run,
//! `GUPFS_POWER_SEED=n` draws the same (the moments are the machine's).
#![deny(unsafe_code)]
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    clippy::disallowed_types,
    unreachable_pub,
    reason = "a test at the OS boundary"
)]

#[path = "power/block.rs"]
mod block;
#[path = "power/model.rs"]
mod model;
#[path = "power/rig.rs"]
mod rig;
#[path = "power/seen.rs"]
mod seen;
#[path = "power/writer.rs"]
mod writer;

use std::sync::Mutex;
use std::time::Duration;

use stdx::Prng;

use rig::{Cut, Rig};
use seen::Seen;
use writer::Writer;

/// Writers of each node.
const WRITER_COUNT: u64 = 3;
/// Losses of power in each of the two tests, unless a number is given.
const CYCLES: u64 = 25;
/// After so many of them, and after the last, fsck reads all that the disks hold.
const CYCLES_PER_FSCK: u64 = 8;
/// After so many a long run says how far it is.
const CYCLES_PER_WORD: u64 = 50;

fn number(name: &str) -> Option<u64> {
    let said = std::env::var(name).ok()?;
    Some(said.parse().expect("a number"))
}

/// One power station at a time: its tests take the processors.
static TURN: Mutex<()> = Mutex::new(());

fn run(node_count: u16) {
    let _turn = TURN.lock();
    let Some(mut rig) = Rig::new(node_count) else {
        return;
    };
    let seed = number("GUPFS_POWER_SEED").unwrap_or(1);
    eprintln!("seed {seed}, {node_count} nodes");
    let mut prng = Prng::new(seed);
    let cycles = number("GUPFS_POWER_CYCLES").unwrap_or(CYCLES);
    let nodes: Vec<usize> = (0..usize::from(node_count)).collect();
    let mut writers: Vec<Writer> = Vec::new();
    for node in &nodes {
        for _ in 0..WRITER_COUNT {
            let number = writers.len() as u64 + 1;
            writers.push(Writer::new(number, *node, prng.fork()));
        }
    }
    let mut seen: Vec<Seen> = nodes
        .iter()
        .map(|node| Seen::new(*node, node_count))
        .collect();
    let mut lost_probes = 0;
    let mut counts = model::Counts::default();
    for cycle in 1..=cycles {
        let moment = Duration::from_millis(prng.between(30, 500));
        let cut = Cut::default();
        std::thread::scope(|scope| {
            let (rig, cut) = (&rig, &cut);
            for writer in &mut writers {
                scope.spawn(move || writer.work(&rig.mount(writer.node()), cut));
            }
            for seen in &seen {
                scope.spawn(move || seen.make(&rig.mount(seen.maker()), cut));
                scope.spawn(move || seen.look(&rig.mount(seen.observer()), cut));
            }
            std::thread::sleep(moment);
            rig.cut_power(cut);
        });
        rig.power_on(cycle % CYCLES_PER_FSCK == 0 || cycle == cycles);
        lost_probes += u64::from(rig.is_probe_lost());
        for writer in &mut writers {
            let mount = rig.mount(writer.node());
            if let Err(fault) = writer.check(&mount, &mut counts) {
                panic!(
                    "seed {seed}, cycle {cycle}, power lost after {moment:?}:\n{fault}\n{}",
                    rig.logs()
                );
            }
        }
        for seen in &mut seen {
            if let Err(fault) = seen.check(&rig.mount(seen.maker()), &mut counts) {
                panic!(
                    "seed {seed}, cycle {cycle}, power lost after {moment:?}:\n{fault}\n{}",
                    rig.logs()
                );
            }
        }
        if cycle % CYCLES_PER_WORD == 0 {
            eprintln!("{cycle} cycles, {lost_probes} probes lost, {counts:?}");
        }
    }
    eprintln!("{cycles} cycles, {lost_probes} probes lost, {counts:?}");
    // Else the disks do not lose what they should, and the test shows nothing.
    assert!(
        lost_probes > 0,
        "the power never took anything in {cycles} cycles"
    );
    assert!(
        counts.lost > 0,
        "nothing that was not synced was ever lost in {cycles} cycles"
    );
    rig.finish();
}

#[test]
fn what_was_synced_outlives_power_loss_of_one_node() {
    run(1);
}

#[test]
fn what_was_synced_or_seen_outlives_power_loss_of_two_nodes() {
    run(2);
}

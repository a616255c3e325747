//! Loss of power: the disks' files lie on an XFS on a loop device that is shut down without its log being written, at a random
//! moment under load; the daemons are killed; XFS is mounted again and replays what it has; so does GUPFS. Then all that an
//! fsync or msync acknowledged is there, and nothing is there that was never written. The same on disks that keep what was not flushed in the
//! daemon, and lose it with kill -9: there one of two nodes may lose its power alone.
//!
//! Needs root, /dev/fuse and XFS; says so and passes where these are missing. `GUPFS_POWER_CYCLES=500` is the long run,
//! `GUPFS_POWER_SEED=n` draws the same (the moments are the machine's). With `GUPFS_POWER_KEEP=1` the nodes are left as they are after a fault,
//! for who looks at them.
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
#[path = "labs/left_out.rs"]
mod left_out;
#[path = "two_mounts/mapping.rs"]
#[allow(dead_code, reason = "other tests call the rest")]
mod mapping;
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

use rig::{Cut, Disks, Rig};
use seen::Seen;
use writer::Writer;

/// Writers of each node.
const WRITER_COUNT: u64 = 3;
/// Losses of power in each of the four tests, unless a number is given.
const CYCLES: u64 = 13;
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

fn run(disks: Disks, node_count: u16) {
    let _turn = TURN.lock();
    let Some(mut rig) = Rig::new(disks, node_count) else {
        return;
    };
    let seed = number("GUPFS_POWER_SEED").unwrap_or(1);
    eprintln!("seed {seed}, {node_count} nodes, {disks:?}");
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
        // Together, or one alone while the other one works on.
        let victims = match prng.below(3) {
            alone @ 0..2 if disks == Disks::Volatile && node_count == 2 => {
                vec![usize::try_from(alone).expect("0 or 1")]
            }
            _ => nodes.clone(),
        };
        let cut = Cut::default();
        std::thread::scope(|scope| {
            let (rig, cut) = (&rig, &cut);
            // Also when something fails: the scope waits for its threads.
            let _ending = cut.ending();
            for writer in &mut writers {
                scope.spawn(move || writer.work(&rig.mount(writer.node()), cut));
            }
            for seen in &seen {
                scope.spawn(move || seen.make(&rig.mount(seen.maker()), cut));
                scope.spawn(move || seen.look(&rig.mount(seen.observer()), cut));
            }
            std::thread::sleep(moment);
            rig.cut_power(&victims, cut);
            if victims.len() < nodes.len() {
                rig.power_on(&victims, false);
            }
            cut.end();
        });
        if victims.len() == nodes.len() {
            rig.power_on(&victims, cycle % CYCLES_PER_FSCK == 0 || cycle == cycles);
        }
        lost_probes += u64::from(rig.is_probe_lost());
        for writer in &mut writers {
            let mount = rig.mount(writer.node());
            let checked = match writer.trouble() {
                Some(error) if !victims.contains(&writer.node()) => {
                    Err(format!("a writer whose node lived on ended with {error}"))
                }
                _ => writer.check(&mount, &mut counts),
            };
            // A writer of the one that lost power may have gone on when it was back.
            let checked = checked.and_then(|()| match victims.len() == nodes.len() {
                true => Ok(()),
                false => writer.settle(&mount),
            });
            if let Err(fault) = checked {
                let logs = rig.logs();
                rig.leave_if_wanted();
                panic!(
                    "seed {seed}, cycle {cycle}, power of {victims:?} lost after {moment:?}:\n{fault}\nits writer ended with:\n{}\n{logs}",
                    writer.ends()
                );
            }
        }
        for seen in &mut seen {
            if let Err(fault) = seen.check(&rig.mount(seen.maker()), &mut counts) {
                let logs = rig.logs();
                rig.leave_if_wanted();
                panic!(
                    "seed {seed}, cycle {cycle}, power of {victims:?} lost after {moment:?}:\n{fault}\n{logs}"
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
    run(Disks::Xfs, 1);
}

#[test]
fn what_was_synced_or_seen_outlives_power_loss_of_two_nodes() {
    run(Disks::Xfs, 2);
}

#[test]
fn what_was_synced_outlives_volatile_caches_of_one_node() {
    run(Disks::Volatile, 1);
}

#[test]
fn what_was_synced_or_seen_outlives_volatile_caches_of_two_nodes() {
    run(Disks::Volatile, 2);
}

//! `--repair`: label copies are written again, and each owner's repaired state as the first records of a new journal segment, as a
//! start does.
//!
//! Invariants
//! - An owner's repaired state counts when its end record is durable; until then the old segment does.
//! - Nothing but label copies, marks and journal halves is written: files' sectors and pages of trees stay.

use fsck::Image;
use node::OwnerLog;
use node::store::journal::{Config, Journal as Writer};
use nsd::label::LABEL_SIZE;
use os::disk::DiskError;
use types::{Epoch, Incarnation};

use super::disks::{Held, Journal};
use crate::failure::{Failure, Result};
use crate::system;

fn failed(error: DiskError) -> Failure {
    Failure::new(error.to_string())
        .help("run it again once the disk works: what was whole is as it was")
}

/// Writes the copies of labels that are damaged or old.
pub(super) fn labels(held: &Held) -> Result<()> {
    for (nsd, label, copies) in held.labels() {
        let Some(disk) = held.disk(nsd) else { continue };
        for copy in copies {
            let bytes = label.encode(*copy);
            assert_eq!(bytes.len(), LABEL_SIZE);
            disk.write_sectors(*copy as u64, &bytes[..])
                .map_err(failed)?;
            disk.flush().map_err(failed)?;
        }
    }
    Ok(())
}

/// Makes all NSDs the newest: what they hold has been repaired.
pub(super) fn marks(held: &Held) -> Result<()> {
    held.mark().map_err(failed)
}

/// Writes the state of every owner. None of them counts before all have found room.
pub(super) fn owners(held: &Held, image: Image, journals: Vec<Journal>) -> Result<()> {
    // What was read may lie in a disk's volatile cache.
    for disk in held.disks() {
        disk.flush().map_err(failed)?;
    }
    let mut logs = Vec::new();
    for (owner, journal) in image.owners.into_iter().zip(journals) {
        assert_eq!(owner.node, journal.node, "both in the order of nodes");
        let incarnation = Incarnation(system::random_u128()?);
        let config = Config {
            fs: held.view.fs,
            owner: owner.node,
            incarnation,
            area: journal.area,
            flight_count_max: 2,
        };
        let writer = Writer::start(config, &journal.recovered);
        let nsds: Vec<_> = held.view.nsds.iter().map(|nsd| nsd.id).collect();
        let epoch = Epoch(journal.recovered.next_sequence);
        // No grant is made: nothing is drawn.
        let random = stdx::prng::Prng::new(epoch.0);
        let mut log = OwnerLog::new(writer, owner.space, owner.table, epoch, nsds, random);
        log.set_trees(owner.roots.into_values(), Vec::new());
        log.begin_first_snapshot();
        let mut fits = true;
        for shard in owner.shards.values() {
            fits &= log.append_shard_snapshot(shard);
            flush(held, &mut log)?;
        }
        fits &= log.append_space_snapshot();
        if !fits {
            return Err(Failure::new(format!(
                "the repaired state of node {} does not fit its journal: nothing was repaired",
                owner.node
            ))
            .help(
                "start its daemon once, so that checkpoints make room, stop it, and repair again",
            ));
        }
        logs.push(log);
    }
    for log in &mut logs {
        log.end_snapshot();
        flush(held, log)?;
    }
    Ok(())
}

/// Writes what the journal has ready.
fn flush(held: &Held, log: &mut OwnerLog) -> Result<()> {
    while let Some(flush) = log.journal.take_flush() {
        let disk = held
            .disk(flush.at.nsd)
            .expect("the journal was read from it");
        disk.write_sectors(flush.at.sector, &flush.bytes)
            .map_err(failed)?;
        if flush.needs_flush {
            disk.flush().map_err(failed)?;
        }
        log.on_flushed(flush.id, Ok(()));
    }
    Ok(())
}

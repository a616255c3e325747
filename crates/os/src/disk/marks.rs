//! Marks on disks: what they say is read, and the next generation begun (`nsd::mark`).

use std::collections::BTreeMap;

use nsd::mark::{MARK_SECTORS, MARK_SIZE, Marks};
use types::{FsId, NsdId};

use super::{Disk, DiskError};

/// The disks as `read` and `begin` take them.
pub fn by_nsd(disks: &BTreeMap<NsdId, Disk>) -> impl Iterator<Item = (NsdId, &Disk)> {
    disks.iter().map(|(nsd, disk)| (*nsd, disk))
}

/// What the marks of these disks say; and why some return none of theirs, which counts as having none and says nothing of whether they are
/// older copies.
pub fn read<'a>(
    fs: FsId,
    disks: impl Iterator<Item = (NsdId, &'a Disk)>,
) -> (Marks, Vec<DiskError>) {
    let mut marks = Marks::new(fs);
    let mut failures = Vec::new();
    for (nsd, disk) in disks {
        let mut failure = None;
        let sectors = MARK_SECTORS.map(|sector| {
            let mut bytes = vec![0; MARK_SIZE];
            let read = disk.read_sectors(sector, &mut bytes).map(|()| bytes);
            read.map_err(|error| failure = Some(error)).ok()
        });
        if sectors == [None, None] {
            failures.extend(failure);
        }
        marks.add(nsd, sectors.each_ref().map(Option::as_deref));
    }
    (marks, failures)
}

/// Begins the next generation on these disks. What is returned did not work: such a disk is as it was for who compares marks later.
pub fn begin<'a>(marks: &Marks, disks: impl Iterator<Item = (NsdId, &'a Disk)>) -> Vec<DiskError> {
    let mut round = marks.begin();
    let mut failures = Vec::new();
    let mut marked: Vec<(NsdId, &Disk)> = disks.collect();
    for is_second in [false, true] {
        // All are written before the first is flushed: files on one disk are flushed together.
        marked.retain(|(nsd, disk)| {
            let (sector, bytes) = round.mark(*nsd, is_second);
            let written = disk.write_sectors(sector, &bytes[..]);
            written.map_err(|error| failures.push(error)).is_ok()
        });
        marked.retain(|(_, disk)| disk.flush().map_err(|error| failures.push(error)).is_ok());
        round.see(marked.iter().map(|(nsd, _)| *nsd));
    }
    failures
}

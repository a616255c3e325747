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
    let mut marked: Vec<(NsdId, &Disk, u64)> = disks
        .map(|(nsd, disk)| (nsd, disk, disk.loss_count()))
        .collect();
    for is_second in [false, true] {
        // All are written before the first is flushed: files on one disk are flushed together.
        marked.retain(|(nsd, disk, _)| {
            let (sector, bytes) = round.mark(*nsd, is_second);
            let written = disk.write_sectors(sector, &bytes[..]);
            written.map_err(|error| failures.push(error)).is_ok()
        });
        marked.retain(|(_, disk, losses)| {
            let flushed = disk.flush().and_then(|()| disk.nothing_lost_since(*losses));
            flushed.map_err(|error| failures.push(error)).is_ok()
        });
        round.see(marked.iter().map(|(nsd, _, _)| *nsd));
    }
    failures
}

/// Begins the next generation of what these disks say now, so that also what is copied while they are in use is told from what is newer; not
/// where marks cannot be read: what is not known must not be written over. What is returned did not work.
pub fn renew<'a, I>(fs: FsId, disks: impl Fn() -> I) -> Vec<DiskError>
where
    I: Iterator<Item = (NsdId, &'a Disk)>,
{
    let (marks, failures) = read(fs, disks());
    match failures.is_empty() {
        true => begin(&marks, disks()),
        false => failures,
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    #[test]
    fn what_cannot_be_read_is_not_written_over() {
        let folder = tempfile::tempdir().expect("a directory");
        let mut disks: BTreeMap<NsdId, Disk> = (1..=2)
            .map(|number| {
                let path = folder.path().join(number.to_string());
                let file = File::create(&path).expect("created");
                file.set_len(1 << 20).expect("a size");
                (NsdId(number), Disk::open(&path, true).expect("opened"))
            })
            .collect();
        let fs = FsId(7);
        let sectors = |folder: &tempfile::TempDir| {
            [1, 2]
                .map(|number| std::fs::read(folder.path().join(format!("{number}"))).expect("read"))
        };
        let blank = sectors(&folder);
        assert!(renew(fs, || by_nsd(&disks)).is_empty());
        let first = sectors(&folder);
        assert!(blank[0] != first[0] && blank[1] != first[1]);
        // One that cannot be read, whatever it says.
        let (reader, _writer) = std::io::pipe().expect("a pipe");
        let broken = disks.get_mut(&NsdId(2)).expect("it is there");
        let whole = std::mem::replace(
            &mut broken.file,
            File::from(std::os::fd::OwnedFd::from(reader)),
        );
        let (_, failures) = read(fs, by_nsd(&disks));
        assert_eq!(failures.len(), 1, "a start ends with it");
        let failures = renew(fs, || by_nsd(&disks));
        assert!(failures[0].to_string().contains("read"), "{failures:?}");
        assert!(
            sectors(&folder) == first,
            "the other one stays as it was, too"
        );
        disks.get_mut(&NsdId(2)).expect("it is there").file = whole;
        assert!(renew(fs, || by_nsd(&disks)).is_empty());
        let second = sectors(&folder);
        assert!(second[0] != first[0] && second[1] != first[1]);
        let (marks, failures) = read(fs, by_nsd(&disks));
        assert!(failures.is_empty() && marks.older().is_empty());
    }
}

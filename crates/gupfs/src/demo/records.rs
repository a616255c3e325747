//! Two nodes write one file: disjoint records, records in turn that overlap, records at the same time.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::thread;

use stdx::prng::Prng;

use super::work::Faults;
use crate::failure::{Failure, Result};

/// Bytes of a record: the documents' odd size, aligned to nothing.
pub const RECORD_SIZE: usize = 47_008;
/// Records that each node writes to places of its own.
const DISJOINT_COUNT: u64 = 200;
/// Writes in turn that overlap each other.
const TURN_COUNT: usize = 300;
/// Records that both nodes write at the same time.
const RACE_COUNT: u64 = 100;

/// Runs all three on the file `name` that `first` and `second` show; returns what the file must hold for
/// ever after, all of it fsynced.
pub fn run(first: &Path, second: &Path, name: &str, seed: u64) -> Result<Vec<u8>> {
    let open = |directory: &Path| {
        let path = directory.join(name);
        OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)
            .map_err(|e| Failure::io("open", &path, &e))
    };
    let files = [open(first)?, open(second)?];
    let faults = Faults::default();
    let mut wanted = disjoint(&files, seed, &faults);
    faults.check("disjoint records")?;
    in_turn(&files, seed, &mut wanted, &faults);
    faults.check("overlapping records in turn")?;
    at_once(&files, seed, &mut wanted, &faults);
    faults.check("overlapping records at the same time")?;
    for file in &files {
        file.sync_all()
            .map_err(|e| Failure::io("fsync", Path::new(name), &e))?;
    }
    Ok(wanted)
}

/// Compares the file at `path` with `wanted`.
pub fn verify(path: &Path, wanted: &[u8]) -> Result<()> {
    let found = std::fs::read(path).map_err(|e| Failure::io("read", path, &e))?;
    match difference(&found, wanted) {
        None => Ok(()),
        Some(fault) => Err(Failure::new(format!("{}: {fault}", path.display()))),
    }
}

fn difference(found: &[u8], wanted: &[u8]) -> Option<String> {
    if let Some(at) = found.iter().zip(wanted).position(|(f, w)| f != w) {
        return Some(format!(
            "byte {at} is {:#04x} instead of {:#04x}",
            found[at], wanted[at]
        ));
    }
    (found.len() != wanted.len())
        .then(|| format!("{} bytes instead of {}", found.len(), wanted.len()))
}

/// The bytes that writer `who` puts into its record `index`.
fn record(seed: u64, who: usize, index: u64) -> Vec<u8> {
    let who = u64::try_from(who).expect("0 or 1");
    let mut prng = Prng::new(seed ^ (who << 56) ^ (index << 8) ^ 0x5eed);
    let mut bytes = vec![0; RECORD_SIZE];
    for eight in bytes.chunks_mut(8) {
        eight.copy_from_slice(&prng.next_u64().to_le_bytes()[..eight.len()]);
    }
    bytes
}

fn write(file: &File, bytes: &[u8], offset: usize, faults: &Faults) {
    if let Err(e) = file.write_all_at(bytes, offset as u64) {
        faults.add(format!("writing {} bytes at {offset}: {e}", bytes.len()));
    }
}

/// Reads `wanted.len()` bytes at `offset` and compares.
fn expect(file: &File, who: usize, wanted: &[u8], offset: usize, faults: &Faults) {
    let mut found = vec![0; wanted.len()];
    match file.read_exact_at(&mut found, offset as u64) {
        Ok(()) => {
            if let Some(fault) = difference(&found, wanted) {
                faults.add(format!("node {} at {offset}: {fault}", who + 1));
            }
        }
        Err(e) => faults.add(format!("node {} reading at {offset}: {e}", who + 1)),
    }
}

/// Both nodes write every other record at the same time; then each reads what the other wrote.
fn disjoint(files: &[File; 2], seed: u64, faults: &Faults) -> Vec<u8> {
    let place = |who: usize, index: u64| {
        (usize::try_from(index).expect("a few hundred") * 2 + who) * RECORD_SIZE
    };
    thread::scope(|scope| {
        for (who, file) in files.iter().enumerate() {
            scope.spawn(move || {
                for index in 0..DISJOINT_COUNT {
                    write(file, &record(seed, who, index), place(who, index), faults);
                }
            });
        }
    });
    let mut wanted =
        vec![0; 2 * usize::try_from(DISJOINT_COUNT).expect("a few hundred") * RECORD_SIZE];
    thread::scope(|scope| {
        for (who, file) in files.iter().enumerate() {
            scope.spawn(move || {
                for index in 0..DISJOINT_COUNT {
                    let other = 1 - who;
                    expect(
                        file,
                        who,
                        &record(seed, other, index),
                        place(other, index),
                        faults,
                    );
                }
            });
        }
    });
    for who in 0..2 {
        for index in 0..DISJOINT_COUNT {
            wanted[place(who, index)..][..RECORD_SIZE].copy_from_slice(&record(seed, who, index));
        }
    }
    wanted
}

/// The nodes write in turn at places that overlap; after each write the other one reads around it at once.
fn in_turn(files: &[File; 2], seed: u64, wanted: &mut [u8], faults: &Faults) {
    let mut prng = Prng::new(seed ^ 0x7075);
    let below = |prng: &mut Prng, limit: usize| {
        usize::try_from(prng.below(limit as u64)).expect("below a usize")
    };
    for turn in 0..TURN_COUNT {
        let who = turn % 2;
        let length = 1 + below(&mut prng, RECORD_SIZE);
        // A small part of the file, so that most writes overlap earlier ones.
        let offset = below(&mut prng, 8 * RECORD_SIZE);
        let bytes = &record(seed ^ 0xface, who, turn as u64)[..length];
        write(&files[who], bytes, offset, faults);
        wanted[offset..offset + length].copy_from_slice(bytes);
        let begin = offset.saturating_sub(5000);
        let end = (offset + length + 5000).min(wanted.len());
        expect(&files[1 - who], 1 - who, &wanted[begin..end], begin, faults);
    }
}

/// Both nodes write the same records at the same time: each must end as one of the two writes, whole, and
/// both nodes must see the same one.
fn at_once(files: &[File; 2], seed: u64, wanted: &mut Vec<u8>, faults: &Faults) {
    let base = wanted.len();
    let offset = |index: u64| base + usize::try_from(index).expect("a hundred") * RECORD_SIZE;
    let seed = seed ^ 0xace;
    thread::scope(|scope| {
        for (who, file) in files.iter().enumerate() {
            scope.spawn(move || {
                for index in 0..RACE_COUNT {
                    write(file, &record(seed, who, index), offset(index), faults);
                }
            });
        }
    });
    for index in 0..RACE_COUNT {
        let mut found = vec![0; RECORD_SIZE];
        if let Err(e) = files[0].read_exact_at(&mut found, offset(index) as u64) {
            faults.add(format!("node 1 reading at {}: {e}", offset(index)));
            return;
        }
        if found != record(seed, 0, index) && found != record(seed, 1, index) {
            faults.add(format!(
                "record at {} is a mixture of the two writes",
                offset(index)
            ));
        }
        expect(&files[1], 1, &found, offset(index), faults);
        wanted.extend_from_slice(&found);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn on_one_local_directory_all_holds() {
        let directory = tempfile::tempdir().expect("a directory");
        let wanted = run(directory.path(), directory.path(), "shared", 5).expect("coherent");
        let path = directory.path().join("shared");
        verify(&path, &wanted).expect("the same");
        let mut bytes = wanted.clone();
        bytes[12345] ^= 1;
        std::fs::write(&path, &bytes).expect("damaged");
        let failure = verify(&path, &wanted).expect_err("damaged");
        assert!(failure.what().contains("byte 12345"), "{failure}");
    }

    #[test]
    fn two_directories_that_are_not_one_are_found_out() {
        let (a, b) = (
            tempfile::tempdir().expect("a"),
            tempfile::tempdir().expect("b"),
        );
        let failure = run(a.path(), b.path(), "shared", 5).expect_err("nothing is shared");
        assert!(failure.what().contains("disjoint records"), "{failure}");
    }
}

//! `gupfs fs create`: a file system over given disks, for one node.
//!
//! Life cycle: all that can be refused is refused -> the new file system's id is noted in the state directory (`creating`) -> the
//! disks are labelled -> `gupfs.toml` -> the note goes.
//!
//! Invariants
//! - What fails leaves blank disks, and of the state directory nothing that was not there.
//! - What is interrupted can be run again: labels of the id that was noted are nobody's.

use std::path::{Path, PathBuf};

use crate::failure::{Failure, Result};
use crate::filesystem::{self, NewDisk, NewFileSystem, NewNode};
use crate::state::{Disk, Place, State, to_hex};
use crate::{files, service, size, system, up};

/// Stripe units in bytes that an NSD's label can have: powers of two in this range.
const BLOCK_SIZE: std::ops::RangeInclusive<u32> = 64 << 10..=16 << 20;

/// What is to be made.
#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    /// State directory.
    pub state: &'a Path,
    /// Where it will be mounted.
    pub mount: &'a Path,
    /// Stripe unit in bytes.
    pub block_size: u64,
    /// Destroy what the disks hold.
    pub force: bool,
    /// Files or block devices.
    pub disks: &'a [PathBuf],
}

/// Makes the file system. Returns what was done.
pub fn run(request: &Request<'_>) -> Result<Vec<String>> {
    let block_size = check_block_size(request.block_size)?;
    let place = Place::new(request.state)?;
    let mount = system::absolute(request.mount)?;
    check_unused(&place)?;
    let absolute = |path: &PathBuf| {
        let path = std::fs::canonicalize(path).map_err(|e| {
            Failure::io("find disk", path, &e)
                .help("name the right path, or make a file with `gupfs nsd create --size`")
        })?;
        system::require_text(&path)?;
        Ok(path)
    };
    let paths = request
        .disks
        .iter()
        .map(absolute)
        .collect::<Result<Vec<_>>>()?;
    let new = NewFileSystem {
        nodes: vec![NewNode {
            id: 1,
            address: None,
        }],
        disks: paths
            .iter()
            .map(|path| NewDisk {
                path: path.clone(),
                server: 1,
            })
            .collect(),
        block_size,
        force: request.force,
    };
    let disks = (1..).zip(paths).map(|(nsd, path)| Disk {
        nsd,
        path,
        is_loop: false,
        is_volatile: false,
    });
    let disks: Vec<Disk> = disks.collect();
    service::check_hides_nothing(&place, &disks, &mount)?;
    let unfinished = place.unfinished()?;
    let plan = filesystem::plan(&new, unfinished)?;
    let had_directory = place.root().exists();
    files::make_directory(place.root())?;
    let lock = place.try_lock()?;
    // Another one may have been faster.
    check_unused(&place)?;
    let state = State {
        disks,
        ..up::single(plan.view(), &mount)
    };
    let fs = to_hex(plan.view().fs.0);
    let fail = |failure: Failure, undone: Result<()>| match undone {
        Ok(()) => Err(failure.help("nothing was made; run it again when that is mended")),
        // What is left is taken back by the next try.
        Err(other) => Err(failure.help(format!(
            "what was made could not be taken back ({}); run it again when that is mended",
            other.what()
        ))),
    };
    let noted = place
        .note_unfinished(plan.view())
        .and_then(|()| place.store_view(plan.view()));
    if let Err(failure) = noted {
        return fail(failure, place.undo(had_directory));
    }
    if let Err(failure) = plan.write().and_then(|()| place.store(&state)) {
        // With labels on the disks the note must stay.
        let undone = plan.clear().and_then(|()| place.undo(had_directory));
        return fail(failure, undone);
    }
    files::remove(&place.creating())?;
    drop(lock);
    let (state, mount) = (request.state.display(), request.mount.display());
    Ok(vec![
        format!(
            "made the file system {fs} over {} NSDs",
            plan.view().nsds.len()
        ),
        format!("mount it: gupfs up --state {state} --mount {mount}"),
    ])
}

fn check_block_size(bytes: u64) -> Result<u32> {
    let is_allowed = |size: &u32| size.is_power_of_two() && BLOCK_SIZE.contains(size);
    u32::try_from(bytes).ok().filter(is_allowed).ok_or_else(|| {
        let (least, most) = (BLOCK_SIZE.start(), BLOCK_SIZE.end());
        Failure::new(format!("{bytes} bytes are no block size")).help(format!(
            "give --block-size a power of two from {} to {}",
            size::show((*least).into()),
            size::show((*most).into())
        ))
    })
}

/// Fails where the state directory has a file system, or what may be left of one.
pub(crate) fn check_unused(place: &Place) -> Result<()> {
    if let Some(found) = place.load()? {
        return Err(Failure::new(format!(
            "{} holds the file system {} already",
            place.root().display(),
            found.fs
        ))
        .help("mount it with `gupfs up`, or name another state directory"));
    }
    up::check_fresh(place)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disks;
    use nsd::label::LabelError;
    use std::fs::{self, File};

    struct Rig {
        directory: tempfile::TempDir,
        disks: Vec<PathBuf>,
    }

    impl Rig {
        fn new() -> Self {
            let directory = tempfile::tempdir().expect("a directory");
            let disks = ["1.img", "2.img"].map(|name| directory.path().join(name));
            for path in &disks {
                let made = File::create(path).and_then(|file| file.set_len(96 << 20));
                made.expect("a sparse file");
            }
            let disks = disks.to_vec();
            Self { directory, disks }
        }

        fn state(&self) -> PathBuf {
            self.directory.path().join("state")
        }

        fn run(&self) -> Result<Vec<String>> {
            run(&Request {
                state: &self.state(),
                mount: Path::new("/mnt/x"),
                block_size: 1 << 20,
                force: false,
                disks: &self.disks,
            })
        }

        /// The file system that a disk is of.
        fn fs(&self, disk: usize) -> Option<u128> {
            let disk = disks::Disk::open(&self.disks[disk]).expect("opened");
            match disk.label().expect("read") {
                Ok(found) => Some(found.label.fs.0),
                Err(LabelError::Blank) => None,
                Err(other) => panic!("{other}"),
            }
        }
    }

    /// Each place that a crash can stop at: what it leaves is made by hand, then all is made again.
    #[test]
    fn what_was_interrupted_is_made_again() {
        for labelled in 0..=2 {
            for has_view in [false, true] {
                let rig = Rig::new();
                rig.run().expect("made");
                let place = Place::new(&rig.state()).expect("a place");
                let old = rig.fs(0).expect("a label");
                files::replace(&place.creating(), to_hex(old).as_bytes()).expect("noted");
                fs::remove_file(place.config()).expect("it is there");
                if !has_view {
                    fs::remove_file(place.view()).expect("it is there");
                }
                for path in &rig.disks[labelled..] {
                    let disk = disks::Disk::open_alone(path).expect("opened");
                    disk.clear().expect("as before it was labelled");
                }
                rig.run().expect("made again");
                assert_ne!(rig.fs(0), Some(old));
                assert_eq!(rig.fs(0), rig.fs(1));
                assert!(!place.creating().exists() && place.view().exists());
                let again = rig.run().expect_err("it is made").to_string();
                assert!(again.contains("already"), "{again}");
            }
        }
    }

    /// The note is of one file system: labels of another are as foreign as ever.
    #[test]
    fn labels_of_others_are_left_alone() {
        let rig = Rig::new();
        rig.run().expect("made");
        let old = rig.fs(0);
        let place = Place::new(&rig.state()).expect("a place");
        fs::remove_file(place.config()).expect("it is there");
        files::replace(&place.creating(), to_hex(7).as_bytes()).expect("noted");
        let refused = rig.run().expect_err("another's").to_string();
        assert!(refused.contains("another GUPFS file system"), "{refused}");
        assert_eq!(rig.fs(0), old);
        files::replace(&place.creating(), b"no id").expect("noted");
        rig.run().expect_err("a note that is none");
        assert_eq!(rig.fs(0), old);
    }

    #[test]
    fn block_sizes_are_checked() {
        assert_eq!(check_block_size(64 << 10), Ok(64 << 10));
        assert_eq!(check_block_size(16 << 20), Ok(16 << 20));
        for bytes in [0, 1, 3 << 20, 32 << 10, 32 << 20, 1 << 32] {
            let said = check_block_size(bytes)
                .expect_err("no block size")
                .to_string();
            assert!(said.contains("64.0 KiB to 16.0 MiB"), "{said}");
        }
    }
}

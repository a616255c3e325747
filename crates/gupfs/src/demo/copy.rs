//! Copying a tree in parallel, and comparing what another node shows with what was copied.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::mpsc;

use indicatif::ProgressBar;
use sha2::{Digest as _, Sha256};

use super::tree::{Item, Kind, Tree};
use super::work::{Faults, share_out};
use crate::failure::{Failure, Result};

/// SHA-256 of a file.
pub type Digest = [u8; 32];

/// Bytes read or written at once.
const BUFFER_SIZE: usize = 1 << 20;

/// Digest of each item of `tree` as its source has it (zero for what is no file); also brings the sources
/// into the kernel's page cache, so that every later copy starts from the same state.
pub fn digest_sources(tree: &Tree, thread_count: usize, bar: &ProgressBar) -> Result<Vec<Digest>> {
    let digests: Vec<Mutex<Digest>> = tree.items.iter().map(|_| Mutex::default()).collect();
    let faults = Faults::default();
    share_out(tree.items.len(), thread_count, |index| {
        let item = &tree.items[index];
        let Kind::File(size) = item.kind else { return };
        match digest(&item.source) {
            Ok(found) => *digests[index].lock().expect("never poisoned") = found,
            Err(e) => faults.add(format!("{}: {e}", item.source.display())),
        }
        bar.inc(size);
    });
    faults.check("reading the source")?;
    Ok(digests
        .into_iter()
        .map(|d| d.into_inner().expect("never poisoned"))
        .collect())
}

/// Digest of the file `path`.
pub fn digest(path: &Path) -> io::Result<Digest> {
    let mut file = File::open(path)?;
    let mut hash = Sha256::new();
    let mut buffer = vec![0; BUFFER_SIZE];
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(hash.finalize().into()),
            count => hash.update(&buffer[..count]),
        }
    }
}

/// Copies `tree` to `target`; each finished file's index goes to `finished`. Directories get their final
/// permissions last, so that read-only ones can be filled.
pub fn copy(
    tree: &Tree,
    target: &Path,
    thread_count: usize,
    finished: Option<&mpsc::Sender<usize>>,
    bar: &ProgressBar,
) -> Result<()> {
    for item in tree.items.iter().filter(|i| i.kind == Kind::Directory) {
        let path = target.join(&item.relative);
        fs::create_dir(&path).map_err(|e| Failure::io("make directory", &path, &e))?;
    }
    let faults = Faults::default();
    share_out(tree.items.len(), thread_count, |index| {
        let item = &tree.items[index];
        let path = target.join(&item.relative);
        match copy_one(item, &path) {
            Ok(()) => {
                if let Some(finished) = finished {
                    // The reader ended early; it reports that itself.
                    let _ = finished.send(index);
                }
            }
            Err(e) => faults.add(format!("copying to {}: {e}", path.display())),
        }
        if let Kind::File(size) = item.kind {
            bar.inc(size);
        }
    });
    faults.check("copy")?;
    for item in tree
        .items
        .iter()
        .rev()
        .filter(|i| i.kind == Kind::Directory)
    {
        let path = target.join(&item.relative);
        fs::set_permissions(&path, Permissions::from_mode(item.mode))
            .map_err(|e| Failure::io("set the permissions of", &path, &e))?;
    }
    Ok(())
}

fn copy_one(item: &Item, path: &Path) -> io::Result<()> {
    match &item.kind {
        Kind::Directory => Ok(()),
        Kind::Link(target) => symlink(target, path),
        Kind::File(_) => {
            let mut source = File::open(&item.source)?;
            let mut target = OpenOptions::new().write(true).create_new(true).open(path)?;
            let mut buffer = vec![0; BUFFER_SIZE];
            loop {
                match source.read(&mut buffer)? {
                    0 => break,
                    count => target.write_all(&buffer[..count])?,
                }
            }
            target.set_permissions(Permissions::from_mode(item.mode))
        }
    }
}

/// Makes the copy of `tree` at `target` durable: fsync of every file and directory.
pub fn fsync(tree: &Tree, target: &Path, thread_count: usize, bar: &ProgressBar) -> Result<()> {
    let faults = Faults::default();
    share_out(tree.items.len(), thread_count, |index| {
        let item = &tree.items[index];
        let path = target.join(&item.relative);
        let synced = match item.kind {
            Kind::File(_) => OpenOptions::new()
                .write(true)
                .open(&path)
                .and_then(|f| f.sync_all()),
            Kind::Directory => File::open(&path).and_then(|f| f.sync_all()),
            // Its name is durable with its directory.
            Kind::Link(_) => Ok(()),
        };
        if let Err(e) = synced {
            faults.add(format!("fsync of {}: {e}", path.display()));
        }
        if let Kind::File(size) = item.kind {
            bar.inc(size);
        }
    });
    faults.check("fsync")
}

/// Reads each file that `finished` names through `target`, at once and as a whole, and compares it. Ends when
/// the senders are gone. Returns bytes read.
pub fn follow(
    tree: &Tree,
    digests: &[Digest],
    target: &Path,
    finished: &Mutex<mpsc::Receiver<usize>>,
    faults: &Faults,
) -> u64 {
    let mut read = 0;
    loop {
        let next = finished.lock().expect("never poisoned").recv();
        let Ok(index) = next else { return read };
        let item = &tree.items[index];
        check_item(item, &digests[index], &target.join(&item.relative), faults);
        if let Kind::File(size) = item.kind {
            read += size;
        }
    }
}

/// Compares the whole copy at `target` with `tree`: nothing missing, nothing more, every byte the same.
/// `label` names the phase.
pub fn verify(
    tree: &Tree,
    digests: &[Digest],
    target: &Path,
    thread_count: usize,
    label: &str,
    bar: &ProgressBar,
) -> Result<()> {
    let faults = Faults::default();
    let wanted: BTreeSet<&Path> = tree.items.iter().map(|i| i.relative.as_path()).collect();
    for relative in names_below(target)? {
        if !wanted.contains(relative.as_path()) {
            faults.add(format!(
                "{} was never copied",
                target.join(&relative).display()
            ));
        }
    }
    share_out(tree.items.len(), thread_count, |index| {
        let item = &tree.items[index];
        check_item(item, &digests[index], &target.join(&item.relative), &faults);
        if let Kind::File(size) = item.kind {
            bar.inc(size);
        }
    });
    faults.check(label)
}

/// All names below `root` that readdir shows.
fn names_below(root: &Path) -> Result<Vec<PathBuf>> {
    let (mut found, mut open) = (Vec::new(), vec![PathBuf::new()]);
    while let Some(directory) = open.pop() {
        let path = root.join(&directory);
        let failed = |e: io::Error| Failure::io("list", &path, &e);
        for entry in fs::read_dir(&path).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let relative = directory.join(entry.file_name());
            if entry.file_type().map_err(failed)?.is_dir() {
                open.push(relative.clone());
            }
            found.push(relative);
        }
    }
    Ok(found)
}

fn check_item(item: &Item, wanted: &Digest, path: &Path, faults: &Faults) {
    let fault = |what: String| faults.add(format!("{}: {what}", path.display()));
    let metadata = match fs::symlink_metadata(path) {
        Ok(metadata) => metadata,
        Err(e) => return fault(format!("cannot be seen: {e}")),
    };
    let mode = metadata.permissions().mode() & 0o7777;
    match &item.kind {
        Kind::Directory if !metadata.is_dir() => fault("is no directory".to_owned()),
        Kind::Link(target) => match fs::read_link(path) {
            Ok(found) if found == *target => {}
            other => fault(format!(
                "points to {other:?} instead of {}",
                target.display()
            )),
        },
        Kind::File(_) if !metadata.is_file() => fault("is no file".to_owned()),
        Kind::File(size) if metadata.len() != *size => {
            fault(format!("has {} bytes instead of {size}", metadata.len()));
        }
        Kind::Directory | Kind::File(_) if mode != item.mode => {
            fault(format!("has mode {mode:o} instead of {:o}", item.mode));
        }
        Kind::Directory => {}
        Kind::File(_) => match digest(path) {
            Ok(found) if found == *wanted => {}
            Ok(_) => fault("holds other bytes: its SHA-256 differs".to_owned()),
            Err(e) => fault(format!("cannot be read: {e}")),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::tree::generate;

    fn copied() -> (tempfile::TempDir, Tree, Vec<Digest>, PathBuf) {
        let directory = tempfile::tempdir().expect("a directory");
        let source = directory.path().join("source");
        generate(&source, 3, 60, 300_000).expect("made");
        symlink("d00", source.join("link")).expect("linked");
        let bar = ProgressBar::hidden();
        let tree = Tree::list(&[source]).expect("listed");
        let digests = digest_sources(&tree, 2, &bar).expect("read");
        let target = directory.path().join("target");
        fs::create_dir(&target).expect("made");
        copy(&tree, &target, 3, None, &bar).expect("copied");
        fsync(&tree, &target, 2, &bar).expect("durable");
        (directory, tree, digests, target)
    }

    fn verified(tree: &Tree, digests: &[Digest], target: &Path) -> Result<()> {
        verify(tree, digests, target, 3, "verify", &ProgressBar::hidden())
    }

    #[test]
    fn a_good_copy_passes_and_every_kind_of_damage_is_found() {
        let (_keep, tree, digests, target) = copied();
        verified(&tree, &digests, &target).expect("a good copy");
        let file = |nth: usize| {
            let files = tree
                .items
                .iter()
                .filter(|i| matches!(i.kind, Kind::File(n) if n > 0));
            target.join(&files.clone().nth(nth).expect("enough files").relative)
        };
        let check = |word: &str| {
            let failure = verified(&tree, &digests, &target).expect_err(word);
            assert!(failure.what().contains(word), "{failure}");
        };
        let (path, good) = (file(0), fs::read(file(0)).expect("read"));
        let mut bad = good.clone();
        *bad.last_mut().expect("not empty") ^= 1;
        fs::write(&path, &bad).expect("flipped");
        check("SHA-256");
        fs::write(&path, &good[1..]).expect("cut");
        check("bytes instead of");
        fs::remove_file(&path).expect("removed");
        check("cannot be seen");
        fs::write(&path, &good).expect("restored");
        fs::set_permissions(&path, Permissions::from_mode(0o600)).expect("changed");
        check("mode 600");
        fs::set_permissions(&path, Permissions::from_mode(0o644)).expect("restored");
        fs::write(target.join("more"), "x").expect("one too many");
        check("never copied");
        fs::remove_file(target.join("more")).expect("removed");
        let link = target.join("0-source/link");
        fs::remove_file(&link).expect("removed");
        symlink("elsewhere", &link).expect("linked");
        check("points to");
    }

    #[test]
    fn a_follower_reads_what_is_finished_and_ends_with_the_sender() {
        let (_keep, tree, digests, target) = copied();
        let (send, receive) = mpsc::channel();
        for index in 0..tree.items.len() {
            send.send(index).expect("open");
        }
        drop(send);
        let faults = Faults::default();
        let read = follow(&tree, &digests, &target, &Mutex::new(receive), &faults);
        assert_eq!(read, tree.byte_count);
        faults.check("follow").expect("all the same");
    }
}

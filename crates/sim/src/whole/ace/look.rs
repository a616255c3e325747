//! What an image holds: fsck's word on it, and what a node shows that starts from it.

use std::collections::BTreeMap;

use fsck::{Findings, Image as Checked, Loading, Setup, data};
use store::recovery::Recovery;
use store::tree::Fetch;
use types::{Errno, Run};

use super::super::boot::{Disks, read_page};
use super::super::node::HASH_KEY;
use super::calls::Calls;
use super::machine::{Machine, NODE, Shape};
use super::posix::{Fs, Number};
use super::tape::{Image, Tape};

/// Everything that can be read, and the files that cannot.
pub type Shown = (Fs, BTreeMap<Number, Errno>);

/// fsck finds nothing, a node starts, and everything can be read.
///
/// # Errors
/// What is wrong.
pub fn look(shape: &Shape, image: &Image, seed: u64) -> Result<Fs, String> {
    let disks = image.disks(&shape.nsds(), shape.has_volatile_cache);
    let findings = check(shape, &disks)?;
    if let Some(finding) = findings.list().first() {
        return Err(format!("fsck: {finding:?}"));
    }
    let (found, unreadable) = start(shape, disks, seed)?;
    match unreadable.first_key_value() {
        Some((number, errno)) => Err(format!("inode {number} cannot be read: {errno:?}")),
        None => Ok(found),
    }
}

/// A node starts from these disks, and everything is read.
///
/// # Errors
/// It does not start, or something but the bytes of files cannot be read.
pub fn start(shape: &Shape, disks: Disks, seed: u64) -> Result<Shown, String> {
    let machine = Machine::start(shape, disks, 100, seed, &Tape::default())?;
    let mut calls = Calls::new(machine);
    let seen = calls.observe();
    let shown = seen.map_err(|failed| format!("after the start: {failed:?}"))?;
    calls.machine.node.check();
    Ok(shown)
}

/// What fsck finds, bytes of files included.
///
/// # Errors
/// The journal cannot be replayed.
pub fn check(shape: &Shape, disks: &Disks) -> Result<Findings, String> {
    let setting = shape.setting(99);
    let setup = Setup {
        fs: setting.view.fs,
        key: HASH_KEY,
        owners: setting.view.owners.clone(),
        geometry: super::super::boot::geometry(&setting),
    };
    let mut loading = Loading::new(&setup, NODE);
    let read = &mut |fetch: &Fetch| Ok(read_page(disks, fetch));
    let mut recovery = Recovery::new(setting.area, setup.fs, NODE);
    while let Some(next) = recovery.next_read() {
        let bytes = disks[&next.at.nsd].read(next.at.sector, next.count);
        let applied = recovery.on_read(&bytes, &mut |part| {
            loading.apply(part.key, part.bytes, read);
            Ok(())
        });
        applied.map_err(|error| format!("fsck: {error}"))?;
    }
    let (owner, mut findings) = loading.finish(read);
    let mut image = Checked::new(setup, vec![owner], false);
    let paths = image.check(&mut findings);
    let sectors = |run: Run| disks[&run.at.nsd].read(run.at.sector, run.count.into());
    for job in data::jobs(&image) {
        let checksums = job.checksums().map(sectors);
        let bytes = sectors(job.data());
        let parts: Vec<Option<&[u8]>> = bytes.chunks(4096).map(Some).collect();
        job.judge(
            (&image, &paths),
            checksums.as_deref(),
            &parts,
            &mut findings,
        );
    }
    Ok(findings)
}

//! `--data`: reads every copy of every extent, one thread an NSD, in the order of the disk; stops when interrupted, and goes on
//! from there the next time.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Mutex;

use fsck::data::{Job, jobs};
use fsck::{Findings, Image, Kind, Paths};
use indicatif::{ProgressBar, ProgressStyle};
use os::disk::Disk;
use os::interrupt;
use serde::{Deserialize, Serialize};
use types::{InodeId, Run, SECTOR_SIZE};

use super::disks::Held;
use crate::failure::{Failure, Result};
use crate::files;

/// How far an earlier run has come.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Progress {
    /// What the file system was: any change of it begins anew.
    pub(super) of: String,
    /// Of each NSD: every copy that begins below this sector has been read.
    pub(super) done: BTreeMap<u16, u64>,
    /// Bytes read.
    pub(super) bytes: u64,
    /// What was found: kind, inode, words.
    pub(super) found: Vec<(String, Option<u64>, String)>,
}

impl Progress {
    /// What an earlier run has left at `path`, of the file system as it is now.
    pub(super) fn load(path: &Path, of: &str) -> Result<Self> {
        let begin = Self {
            of: of.to_owned(),
            ..Self::default()
        };
        let text = match std::fs::read(path) {
            Ok(text) => text,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(begin),
            Err(e) => return Err(Failure::io("read", path, &e)),
        };
        let found: Self = serde_json::from_slice(&text).map_err(|e| {
            Failure::new(format!("{}: {e}", path.display()))
                .help("remove it: then all data is read again")
        })?;
        Ok(if found.of == of { found } else { begin })
    }

    pub(super) fn store(&self, path: &Path) -> Result<()> {
        let text = serde_json::to_vec(self).expect("plain values");
        files::replace(path, &text)
    }
}

pub(super) fn bar(bytes: u64) -> ProgressBar {
    let style = ProgressStyle::with_template(
        "verifying data {bar:30} {bytes}/{total_bytes} {bytes_per_sec} ETA {eta}",
    );
    let bar = ProgressBar::new(bytes);
    bar.set_style(style.expect("a template that is right"));
    bar
}

/// Reads what `progress` says has not been read. True: everything; false: it was interrupted.
pub(super) fn run(
    held: &Held,
    (image, paths): (&Image, &Paths),
    progress: &mut Progress,
    findings: &mut Findings,
) -> bool {
    let mut by_nsd: BTreeMap<u16, Vec<Job>> = BTreeMap::new();
    let mut bytes = 0;
    for job in jobs(image) {
        let done = progress.done.get(&job.at.nsd.0).copied().unwrap_or(0);
        if job.at.sector >= done {
            bytes += u64::from(job.data().count) * SECTOR_SIZE;
            by_nsd.entry(job.at.nsd.0).or_default().push(job);
        }
    }
    for (kind, ino, text) in &progress.found {
        let known = Kind::ALL.iter().find(|known| known.name() == kind);
        if let Some(kind) = known {
            findings.add(*kind, ino.map(InodeId::from_raw), text.clone());
        }
    }
    let bar = bar(bytes);
    let shared = Mutex::new((progress, findings));
    std::thread::scope(|scope| {
        for (nsd, jobs) in &by_nsd {
            let (bar, shared) = (&bar, &shared);
            scope.spawn(move || {
                let Some(disk) = held.disk(types::NsdId(*nsd)) else {
                    return;
                };
                for job in jobs.iter().take_while(|_| !interrupt::is_asked()) {
                    let read = |run| sectors(disk, run);
                    let found = judge(&read, job, (image, paths));
                    let size = u64::from(job.data().count) * SECTOR_SIZE;
                    bar.inc(size);
                    let mut shared = shared.lock().expect("no holder panics");
                    let (progress, findings) = &mut *shared;
                    progress.bytes += size;
                    progress.done.insert(*nsd, job.at.sector + 1);
                    for finding in found.list() {
                        let ino = finding.ino.map(InodeId::raw);
                        let kind = finding.kind.name().to_owned();
                        progress.found.push((kind, ino, finding.text.clone()));
                    }
                    findings.extend(found);
                }
            });
        }
    });
    bar.finish_and_clear();
    !interrupt::is_asked()
}

fn sectors(disk: &Disk, run: Run) -> Option<Vec<u8>> {
    let size = usize::try_from(u64::from(run.count) * SECTOR_SIZE).ok()?;
    let mut bytes = vec![0; size];
    disk.read_sectors(run.at.sector, &mut bytes).ok()?;
    Some(bytes)
}

/// Reads sectors of one NSD; none: they cannot be read.
pub(super) type Read<'a> = dyn Fn(Run) -> Option<Vec<u8>> + 'a;

/// Reads one copy of an extent and compares it with its checksums.
pub(super) fn judge(read: &Read<'_>, job: &Job, of: (&Image, &Paths)) -> Findings {
    let mut findings = Findings::default();
    let checksums = job.checksums().and_then(read);
    let run = job.data();
    let size = usize::try_from(SECTOR_SIZE).expect("small");
    match read(run) {
        Some(bytes) => {
            let data: Vec<Option<&[u8]>> = bytes.chunks_exact(size).map(Some).collect();
            job.judge(of, checksums.as_deref(), &data, &mut findings);
        }
        // Which of them: one by one.
        None => {
            let one = |index: u32| {
                let mut at = run.at;
                at.sector += u64::from(index);
                read(Run { at, count: 1 })
            };
            let each: Vec<Option<Vec<u8>>> = (0..run.count).map(one).collect();
            let data: Vec<Option<&[u8]>> = each.iter().map(Option::as_deref).collect();
            job.judge(of, checksums.as_deref(), &data, &mut findings);
        }
    }
    findings
}

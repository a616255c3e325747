//! `--data`: reads every copy of every extent, one thread an NSD, in the order of the disk; stops when interrupted, and goes on
//! from there the next time. So it does after it was killed: how far it has come is kept every few seconds.

use std::collections::BTreeMap;
use std::num::NonZeroU64;
use std::path::Path;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use fsck::data::{Job, jobs};
use fsck::{Findings, Image, Kind, Paths};
use indicatif::{ProgressBar, ProgressStyle};
use os::disk::Disk;
use os::interrupt;
use serde::{Deserialize, Serialize};
use types::{InodeId, Run, SECTOR_SIZE};

use super::disks::Held;
use crate::cli::complain;
use crate::failure::{Failure, Result};
use crate::{files, size};

/// What a killed run loses, mostly.
const KEPT_EVERY: Duration = Duration::from_secs(2);

/// Keeping it takes one part in so many of the time, at the most.
const KEPT_SHARE: u32 = 20;

/// How long a run that waits for its turn may take to hear an interrupt.
const TURN: Duration = Duration::from_millis(50);

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

    /// `job` has been read, of which `found`.
    fn count(&mut self, job: &Job, found: &Findings) {
        self.bytes += size_of_data(job);
        self.done.insert(job.at.nsd.0, job.at.sector + 1);
        for finding in found.list() {
            let ino = finding.ino.map(InodeId::raw);
            let kind = finding.kind.name().to_owned();
            self.found.push((kind, ino, finding.text.clone()));
        }
    }

    pub(super) fn store(&self, path: &Path) -> Result<()> {
        let text = serde_json::to_vec(self).expect("plain values");
        files::replace(path, &text)
    }
}

/// `--rate`: how much is read in a second, of all NSDs together.
pub(super) struct Pace {
    /// Bytes; none: as fast as it goes.
    rate: Option<NonZeroU64>,
    /// When the next may begin.
    next: Mutex<Instant>,
}

impl Pace {
    pub(super) fn of(rate: Option<NonZeroU64>) -> Self {
        let next = Mutex::new(Instant::now());
        Self { rate, next }
    }

    /// Waits until it is the turn of the next `bytes`, or until interrupted.
    pub(super) fn wait(&self, bytes: u64) {
        let Some(rate) = self.rate else { return };
        let nanos = u128::from(bytes) * 1_000_000_000 / u128::from(rate.get());
        let took = Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
        let turn = {
            let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
            let turn = (*next).max(Instant::now());
            *next = turn.checked_add(took).unwrap_or(turn);
            turn
        };
        while !interrupt::is_asked() {
            let left = turn.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            std::thread::sleep(left.min(TURN));
        }
    }
}

/// What `--rate` is given.
pub(super) fn parse_rate(text: &str) -> std::result::Result<NonZeroU64, String> {
    let rate = size::parse_argument(text)?;
    NonZeroU64::new(rate).ok_or_else(|| "at 0 bytes a second nothing is ever read".to_owned())
}

pub(super) fn bar(bytes: u64) -> ProgressBar {
    let style = ProgressStyle::with_template(
        "verifying data {bar:30} {bytes}/{total_bytes} {bytes_per_sec} ETA {eta}",
    );
    let bar = ProgressBar::new(bytes);
    bar.set_style(style.expect("a template that is right"));
    bar
}

/// Reads what `progress` says has not been read, and keeps at `kept` how far it has come. True: everything; false: it was
/// interrupted.
pub(super) fn run(
    held: &Held,
    of: (&Image, &Paths),
    (pace, kept): (&Pace, &Path),
    progress: &mut Progress,
    findings: &mut Findings,
) -> bool {
    let mut by_nsd: BTreeMap<u16, Vec<Job>> = BTreeMap::new();
    let mut bytes = 0;
    for job in jobs(of.0) {
        let done = progress.done.get(&job.at.nsd.0).copied().unwrap_or(0);
        if job.at.sector >= done {
            bytes += size_of_data(&job);
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
        let (working, ended) = channel::<()>();
        for (nsd, jobs) in &by_nsd {
            let Some(disk) = held.disk(types::NsdId(*nsd)) else {
                continue;
            };
            let (bar, shared, working) = (&bar, &shared, working.clone());
            scope.spawn(move || {
                let _working = working;
                for job in jobs {
                    pace.wait(size_of_data(job));
                    if interrupt::is_asked() {
                        return;
                    }
                    let found = judge(&|run| sectors(disk, run), job, of);
                    bar.inc(size_of_data(job));
                    let mut shared = shared.lock().expect("no holder panics");
                    shared.0.count(job, &found);
                    shared.1.extend(found);
                }
            });
        }
        drop(working);
        let (mut is_told, mut pause, mut kept_bytes) = (false, KEPT_EVERY, 0);
        while ended.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
            let now = {
                let shared = shared.lock().expect("no holder panics");
                if shared.0.bytes == kept_bytes {
                    continue;
                }
                shared.0.clone()
            };
            kept_bytes = now.bytes;
            let begin = Instant::now();
            // It goes on: only who interrupts it has a loss, and hears it then.
            if let (Err(failure), false) = (now.store(kept), is_told) {
                is_told = true;
                bar.suspend(|| complain("gupfs fsck", &failure));
            }
            // With many findings that takes its time.
            pause = KEPT_EVERY.max(begin.elapsed() * KEPT_SHARE);
        }
    });
    bar.finish_and_clear();
    !interrupt::is_asked()
}

/// Bytes of files that it reads.
pub(super) fn size_of_data(job: &Job) -> u64 {
    u64::from(job.data().count) * SECTOR_SIZE
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

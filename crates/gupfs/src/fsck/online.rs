//! `gupfs fsck --online`: looks at the disks of a file system in use, until what is found is confirmed or refuted.
//!
//! A look loads of each owner what a start would load if the node died now, and checks it (`fsck::doubt` says what follows from
//! several looks). No daemon is asked and none notices: nothing is locked, and nothing is written.
//!
//! Invariants
//! - A look has of each owner the state after some record that was the newest at a moment within the look. So while it reads, no
//!   segment that it reads is written anew (`Ledger`), and a tree that seems damaged is looked at again unless its root is
//!   still the newest.
//! - One read is under way for each NSD at the most, and after a slow one the disk is left alone as long as it took.
//! - Bytes of a file are told as damaged if the file had them in the look before they were read, and in the look after, twice.
//! - What earlier looks have confirmed is told, however the last one ends.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use fsck::data::{Job, has, jobs};
use fsck::doubt::LOOK_COUNT;
use fsck::{Doubts, Findings, Image, Kind, Loading, Owner, Paths, Setup, head};
use indicatif::ProgressBar;
use node::store::format::{Area, PartKey};
use node::store::recovery::{Recovery, RecoveryError};
use node::store::tree::{Fetch, Unreadable};
use os::disk::{Disk, DiskError};
use os::interrupt;
use types::{NodeId, NsdId, Run, SECTOR_SIZE, ShardId};

use super::disks::Held;
use super::scrub::{self, Pace};
use super::{FsckArgs, Report, lines};
use crate::failure::{Failure, Result};

/// Looks in all, before what does not rest is left unsaid.
const LOOK_COUNT_MAX: u32 = 12;
/// How often an owner is loaded anew in one look because it has moved on meanwhile.
const LOAD_COUNT_MAX: u32 = 20;
/// Between two looks; longer with each, so that short bursts end.
const PAUSE: Duration = Duration::from_millis(20);
/// A read that takes no longer than this meets an idle disk.
const IDLE: Duration = Duration::from_millis(1);
/// While a disk is left alone: how long it may take until an interrupt is heard.
const REST_PART: Duration = Duration::from_millis(50);
/// Bad copies of extents that are followed from look to look.
const SUSPECT_COUNT_MAX: usize = 1000;
/// Sectors of one read of a file's bytes.
const READ_SECTORS_MAX: u32 = 256;

/// Nobody wants to know any more.
enum End {
    Interrupted,
    Failed(Failure),
}

type Outcome<T> = std::result::Result<T, End>;

impl From<Failure> for End {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

/// Checks the file system of these state directories, whoever uses it.
pub(super) fn run(args: &FsckArgs) -> Result<Report> {
    let mut report = Report {
        unsettled: Some(0),
        looks: Some(0),
        ..Report::default()
    };
    // What it computes waits for those who serve. Where that is refused it is as important as they are.
    let _ = os::priority::lower();
    let spinner = ProgressBar::new_spinner();
    let looked = look_until_settled(args, &spinner, &mut report);
    spinner.finish_and_clear();
    match looked {
        Ok(()) => {}
        Err(End::Interrupted) => report.is_cancelled = true,
        // A program that it runs may have been interrupted with it.
        Err(End::Failed(_)) if interrupt::is_asked() => report.is_cancelled = true,
        Err(End::Failed(failure)) if report.looks > Some(0) => report.failure = Some(failure),
        Err(End::Failed(failure)) => return Err(failure),
    }
    Ok(report)
}

fn look_until_settled(args: &FsckArgs, spinner: &ProgressBar, report: &mut Report) -> Outcome<()> {
    let mut doubts = Doubts::default();
    let mut data = args.data.then(Data::default);
    let pace = Pace::of(args.rate);
    loop {
        let mut found = Findings::default();
        let held = Held::look(&args.paths, &mut found)?;
        report.fs = format!("{:032x}", held.view.fs.0);
        let look = doubts.look_count() + 1;
        let mut image = load(&held, &mut found, &mut |node| {
            spinner.set_message(format!(
                "look {look}: reading the journal and the trees of node {node}"
            ));
            spinner.tick();
        })?;
        report.inodes = image.shards().map(|shard| shard.inode_count()).sum();
        let paths = doubts.look(&mut image, found);
        let read = match &mut data {
            Some(data) => data.look(&held, (&image, &paths), &pace),
            None => Ok(()),
        };
        report.findings = doubts.confirmed();
        report.unsettled = Some(doubts.unsettled_count());
        if let Some(data) = &data {
            report.bytes = data.bytes;
            report.findings.extend(data.confirmed.clone());
            report.unsettled = Some(doubts.unsettled_count() + data.unsettled_count());
        }
        report.lines = lines(&report.findings, &image, &paths);
        read?;
        report.looks = Some(look);
        let is_settled = doubts.is_settled() && data.as_ref().is_none_or(Data::is_settled);
        if is_settled || look >= LOOK_COUNT_MAX {
            return Ok(());
        }
        std::thread::sleep(PAUSE * look);
    }
}

fn load(held: &Held, findings: &mut Findings, step: &mut dyn FnMut(NodeId)) -> Outcome<Image> {
    let (setup, nodes) = held.setup_and_owners()?;
    let mut owners = Vec::new();
    for node in &nodes {
        step(*node);
        owners.extend(load_owner(held, &setup, *node, findings)?);
    }
    Ok(held.image(setup, owners, &nodes))
}

/// A journal as it was read while its owner wrote to it.
#[derive(Default)]
struct Ledger {
    /// All that a start would apply; empty: it was not asked for.
    parts: Vec<(PartKey, Vec<u8>)>,
    /// The segment that it is of.
    sequence: Option<u64>,
    error: Option<RecoveryError>,
}

fn read_ledger(
    held: (&Disk, Area),
    setup: &Setup,
    node: NodeId,
    wants_parts: bool,
) -> std::result::Result<Ledger, DiskError> {
    let (disk, area) = held;
    let mut ledger = Ledger::default();
    let mut recovery = Recovery::new(area, setup.fs, node);
    while let Some(next) = recovery.next_read() {
        let run = Run {
            at: next.at,
            count: u32::try_from(next.count).expect("one read is small"),
        };
        let bytes = read_gently(disk, run)?;
        let parts = &mut ledger.parts;
        let applied = recovery.on_read(&bytes, &mut |part| {
            if wants_parts {
                parts.push((part.key, part.bytes.to_vec()));
            }
            Ok(())
        });
        if let Err(error) = applied {
            ledger.error = Some(error);
            break;
        }
    }
    ledger.sequence = recovery.replayed();
    Ok(ledger)
}

/// An owner's state; none: its journal is damaged, which is a finding.
fn load_owner(
    held: &Held,
    setup: &Setup,
    node: NodeId,
    findings: &mut Findings,
) -> Outcome<Option<Owner>> {
    let Some(journal) = held.journal_of(setup.fs, node, findings) else {
        return Ok(None);
    };
    let (area, disk) = journal;
    for _ in 0..LOAD_COUNT_MAX {
        let read = |wants_parts| {
            let ledger = read_ledger((disk, area), setup, node, wants_parts);
            is_wanted().map(|()| ledger)
        };
        let first = match read(true)? {
            Ok(ledger) => ledger,
            Err(error) => return Ok(unreadable(&error, findings)),
        };
        // Whatever a record proves to have been durable was so before the second reading began.
        let second = match read(false)? {
            Ok(ledger) => ledger,
            Err(error) => return Ok(unreadable(&error, findings)),
        };
        if first.sequence != second.sequence {
            continue;
        }
        if let (Some(error), true) = (&first.error, first.error == second.error) {
            head::note_recovery(error, findings);
            return Ok(None);
        }
        if first.sequence.is_none() {
            continue;
        }
        let (owner, found) = load_parts(held, setup, node, &first.parts);
        is_wanted()?;
        // Pages are written anew when a newer root is durable.
        let is_newest =
            found.is_empty() || read(false)?.is_ok_and(|third| third.sequence == first.sequence);
        if is_newest {
            findings.extend(found);
            return Ok(Some(owner));
        }
    }
    let what = format!(
        "node {node} has moved on {LOAD_COUNT_MAX} times while its journal and trees were read"
    );
    Err(Failure::new(what)
        .help("check it when less is done there, or take the file system down: gupfs fsck")
        .into())
}

fn unreadable(error: &DiskError, findings: &mut Findings) -> Option<Owner> {
    findings.add(Kind::JournalUnreadable, None, error.to_string());
    None
}

fn is_wanted() -> Outcome<()> {
    match interrupt::is_asked() {
        true => Err(End::Interrupted),
        false => Ok(()),
    }
}

fn load_parts(
    held: &Held,
    setup: &Setup,
    node: NodeId,
    parts: &[(PartKey, Vec<u8>)],
) -> (Owner, Findings) {
    let read = &mut |fetch: &Fetch| {
        // The caller asks, and drops what was found.
        if interrupt::is_asked() {
            return Err(Unreadable);
        }
        let begin = Instant::now();
        let page = held.read_page(fetch);
        rest(begin.elapsed());
        page
    };
    let mut loading = Loading::new(setup, node);
    for (key, bytes) in parts {
        loading.apply(*key, bytes, read);
    }
    loading.finish(read)
}

/// Leaves a disk to those who work on it for as long as a read took, unless it was idle.
fn rest(took: Duration) {
    let mut left = if took <= IDLE { Duration::ZERO } else { took };
    while !left.is_zero() && !interrupt::is_asked() {
        let part = left.min(REST_PART);
        std::thread::sleep(part);
        left -= part;
    }
}

fn read_gently(disk: &Disk, run: Run) -> std::result::Result<Vec<u8>, DiskError> {
    let size = usize::try_from(u64::from(run.count) * SECTOR_SIZE).expect("a run fits memory");
    let mut bytes = vec![0; size];
    let piece = usize::try_from(u64::from(READ_SECTORS_MAX) * SECTOR_SIZE).expect("small");
    let places = (run.at.sector..).step_by(READ_SECTORS_MAX as usize);
    for (part, sector) in bytes.chunks_mut(piece).zip(places) {
        let begin = Instant::now();
        disk.read_sectors(sector, part)?;
        rest(begin.elapsed());
    }
    Ok(bytes)
}

/// Sectors of a file; none: they cannot be read, or nobody wants to know any more.
fn read_wanted(disk: &Disk, run: Run) -> Option<Vec<u8>> {
    let is_wanted = !interrupt::is_asked();
    is_wanted.then(|| read_gently(disk, run).ok()).flatten()
}

/// A copy of an extent that was read as bad, and how often, in looks one after the other.
type Suspect = (Job, u32);

/// `--data`: what was read, and what of it was bad.
#[derive(Default)]
struct Data {
    /// NSDs of which files of these shards were read, and whether the shard was whole then.
    read: BTreeMap<(NsdId, ShardId), bool>,
    bytes: u64,
    suspects: Vec<Suspect>,
    /// More than are followed.
    beyond_count: usize,
    confirmed: Findings,
}

impl Data {
    fn is_settled(&self) -> bool {
        self.suspects.is_empty()
    }

    fn unsettled_count(&self) -> usize {
        self.suspects.len() + self.beyond_count
    }

    /// Reads what was bad again, where the file still has it, and what no look before could read: in the first one that is all.
    fn look(&mut self, held: &Held, of: (&Image, &Paths), pace: &Pace) -> Outcome<()> {
        let (image, _) = of;
        let now = jobs(image);
        is_wanted()?;
        self.read_again(held, of, &now)?;
        let is_new = |job: &Job| {
            let known = self.read.get(&(job.at.nsd, job.file.shard()));
            match known {
                None => true,
                Some(was_whole) => !was_whole && image.is_whole(job.file.shard()),
            }
        };
        let new = now.into_iter().filter(is_new).collect();
        self.read_new(held, of, (new, pace))?;
        for disk in image.setup.geometry.iter().map(|geometry| geometry.nsd) {
            let is_there = held.disk(disk).is_some();
            for shard in image.shards().filter(|_| is_there) {
                let is_whole = self.read.entry((disk, shard.id())).or_default();
                *is_whole |= image.is_whole(shard.id());
            }
        }
        Ok(())
    }

    fn read_again(&mut self, held: &Held, of: (&Image, &Paths), now: &[Job]) -> Outcome<()> {
        let mut left = Vec::new();
        for (job, count) in &self.suspects {
            let disk = held.disk(job.at.nsd);
            let is_there = has(now, job);
            let is_seen = is_there || of.0.is_whole(job.file.shard());
            let (Some(disk), true) = (disk, is_seen) else {
                // That it is not seen does not refute it: what agrees begins anew.
                left.push((job.clone(), 0));
                continue;
            };
            if !is_there {
                continue;
            }
            let found = scrub::judge(&|run| read_wanted(disk, run), job, of);
            is_wanted()?;
            match (found.is_empty(), count + 1) {
                (true, _) => {}
                (false, LOOK_COUNT..) => self.confirmed.extend(found),
                (false, count) => left.push((job.clone(), count)),
            }
        }
        self.suspects = left;
        Ok(())
    }

    fn read_new(
        &mut self,
        held: &Held,
        of: (&Image, &Paths),
        (new, pace): (Vec<Job>, &Pace),
    ) -> Outcome<()> {
        let mut by_nsd: BTreeMap<_, Vec<Job>> = BTreeMap::new();
        let mut all = 0;
        for job in new {
            all += scrub::size_of_data(&job);
            by_nsd.entry(job.at.nsd).or_default().push(job);
        }
        let bar = scrub::bar(all);
        let mut known: Vec<Job> = self.suspects.iter().map(|(job, _)| job.clone()).collect();
        known.sort_by_key(|job| job.at);
        let known = &known;
        let shared = Mutex::new(&mut *self);
        std::thread::scope(|scope| {
            for (nsd, jobs) in by_nsd {
                let (bar, shared) = (&bar, &shared);
                let Some(disk) = held.disk(nsd) else { continue };
                scope.spawn(move || {
                    for job in jobs.into_iter().filter(|job| !has(known, job)) {
                        let size = scrub::size_of_data(&job);
                        pace.wait(size);
                        let found = scrub::judge(&|run| read_wanted(disk, run), &job, of);
                        if interrupt::is_asked() {
                            return;
                        }
                        bar.inc(size);
                        let mut data = shared.lock().expect("no holder panics");
                        data.bytes += size;
                        if found.is_empty() {
                            continue;
                        }
                        match data.suspects.len() < SUSPECT_COUNT_MAX {
                            true => data.suspects.push((job, 1)),
                            false => data.beyond_count += 1,
                        }
                    }
                });
            }
        });
        bar.finish_and_clear();
        is_wanted()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_disk_is_left_alone_as_long_as_it_took() {
        for took in [0, 1, 5, 300].map(Duration::from_millis) {
            let begin = Instant::now();
            rest(took);
            let is_idle = took <= IDLE;
            assert!(is_idle || begin.elapsed() >= took, "{took:?}");
        }
    }
}

//! `gupfs fsck`: checks a file system that nobody uses; with `--online` one that is in use. Exit codes are those of fsck(8).
//!
//! Life cycle: take the state directories and disks -> labels -> journals and trees of every owner -> names, inodes, sectors ->
//! with `--data` every byte -> with `--repair`, after asking, what can be repaired is, and all is looked at again -> report.
//!
//! Invariant: without `--repair` nothing is written but, while `--data` reads, how far it has come; with `--online` nothing at all.

use std::num::NonZeroU64;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use fsck::{Findings, Image, Paths, Remedy};
use indicatif::ProgressBar;
use os::interrupt;
use serde_json::{Value, json};

use crate::agree;
use crate::cli::complain;
use crate::failure::{Failure, Result};
use crate::output;
use crate::size;

mod disks;
pub(crate) mod offline;
mod online;
mod scrub;
mod write;

use disks::{Held, Journal};
use scrub::{Pace, Progress};

/// Nothing is wrong.
const CLEAN: u8 = 0;
/// Something was wrong, and was repaired.
const CORRECTED: u8 = 1;
/// Something is wrong, and still is.
const UNCORRECTED: u8 = 4;
/// It could not be looked at.
const FAILED: u8 = 8;
/// The command line is wrong.
pub(crate) const USAGE: u8 = 16;
/// It was interrupted.
const CANCELLED: u8 = 32;

/// Arguments of `gupfs fsck`.
#[derive(Debug, Args)]
pub struct FsckArgs {
    /// State directories of all nodes, or the directory of a lab.
    #[arg(required = true)]
    paths: Vec<PathBuf>,
    /// Check it while daemons serve it: looks several times, and tells what all looks agree on. Repairs nothing.
    #[arg(long, conflicts_with = "resume")]
    online: bool,
    /// Read every copy of every file's bytes, too, and verify them.
    #[arg(long)]
    data: bool,
    /// With --data: read no more than this in a second, of all NSDs together, so that others can work (64M).
    #[arg(long, value_name = "SIZE", requires = "data", value_parser = scrub::parse_rate)]
    rate: Option<NonZeroU64>,
    /// Go on where an interrupted --data has stopped, unless the file system was used since.
    #[arg(long, requires = "data")]
    resume: bool,
    /// Repair what can be repaired, after asking.
    #[arg(long)]
    repair: bool,
    /// Do not ask.
    #[arg(long, requires = "repair")]
    yes: bool,
}

/// What was looked at.
#[derive(Debug, Default)]
struct Report {
    findings: Findings,
    fs: String,
    inodes: u64,
    bytes: u64,
    is_cancelled: bool,
    lines: Vec<Value>,
    /// After a repair: what is still wrong.
    left: Option<Findings>,
    /// In use: suspicions that could be neither confirmed nor refuted, because what they are about never rested.
    unsettled: Option<usize>,
    /// In use: looks that were taken to the end.
    looks: Option<u32>,
    /// In use: why a later look could not be taken.
    failure: Option<Failure>,
}

impl Report {
    fn code(&self) -> u8 {
        let found = match (&self.left, self.findings.is_empty()) {
            (_, true) => CLEAN,
            (None, false) => UNCORRECTED,
            (Some(left), false) => {
                let is_repaired = self
                    .findings
                    .list()
                    .iter()
                    .any(|f| !left.list().contains(f));
                let repaired = if is_repaired { CORRECTED } else { CLEAN };
                repaired | if left.is_empty() { CLEAN } else { UNCORRECTED }
            }
        };
        let cancelled = if self.is_cancelled { CANCELLED } else { 0 };
        let failed = self.failure.as_ref().map_or(0, |_| FAILED);
        found | cancelled | failed
    }
}

/// Runs the command.
pub fn main(args: &FsckArgs, json: bool) -> ExitCode {
    if args.online && args.repair {
        let failure = Failure::new("nothing is repaired while the file system is in use")
            .help("take it down on all nodes (gupfs down), then run gupfs fsck --repair");
        complain("gupfs fsck", &failure);
        return ExitCode::from(USAGE);
    }
    match run(args) {
        Ok(report) => {
            let code = report.code();
            match json {
                true => say!("{}", to_json(&report, code)),
                false => say!("{}", to_text(&report)),
            }
            if let Some(failure) = &report.failure {
                complain("gupfs fsck", failure);
            }
            match output::check() {
                Ok(()) => ExitCode::from(code),
                Err(failure) => {
                    complain("gupfs fsck", &failure);
                    ExitCode::from(code | FAILED)
                }
            }
        }
        Err(failure) => {
            complain("gupfs fsck", &failure);
            ExitCode::from(FAILED)
        }
    }
}

fn run(args: &FsckArgs) -> Result<Report> {
    interrupt::watch().map_err(|e| Failure::new(format!("cannot watch for signals: {e}")))?;
    // It may hold more than the daemons beside it do. Where that is refused it goes when its turn comes, as any other.
    let _ = os::priority::give_way_for_memory();
    if args.online {
        return online::run(args);
    }
    let mut report = Report::default();
    let findings = &mut report.findings;
    let held = Held::take(&args.paths, findings)?;
    if args.repair {
        held.require_writable()?;
    }
    report.fs = format!("{:032x}", held.view.fs.0);
    let spinner = ProgressBar::new_spinner();
    let (mut image, journals) = held.load(findings, &mut |node| {
        spinner.set_message(format!("reading the journal and the trees of node {node}"));
        spinner.tick();
    })?;
    spinner.set_message("checking names, inodes and sectors");
    spinner.tick();
    report.inodes = image.shards().map(|shard| shard.inode_count()).sum();
    let paths = image.check(findings);
    spinner.finish_and_clear();
    if args.data && !interrupt::is_asked() {
        verify(args, &held, (&image, &paths), &journals, &mut report)?;
    }
    report.is_cancelled |= interrupt::is_asked();
    report.lines = lines(&report.findings, &image, &paths);
    if args.repair && !report.findings.is_empty() && !report.is_cancelled {
        if !args.yes {
            let count: u64 = report.findings.counts().values().sum();
            let question = format!("{count} findings. Repair what can be repaired?");
            agree::ask(&question, "nothing was repaired")?;
        }
        repair(held, image, journals, &mut report)?;
        let left = again(args, &report.findings)?;
        for (line, finding) in report.lines.iter_mut().zip(report.findings.list()) {
            line["repaired"] = json!(!left.list().contains(finding));
        }
        report.left = Some(left);
    }
    Ok(report)
}

fn repair(held: Held, mut image: Image, journals: Vec<Journal>, report: &mut Report) -> Result<()> {
    write::labels(&held)?;
    // What these say is not in journals: those stay as they are.
    let is_elsewhere = |kind: &fsck::Kind| {
        let name = kind.name();
        ["label-", "view-", "nsd-", "data-"]
            .iter()
            .any(|start| name.starts_with(start))
    };
    let found = report.findings.counts();
    let is_older = found.contains_key(&fsck::Kind::NsdOlder);
    // Of a disk that is not here nothing is known: a newer copy of another one may be as well.
    let is_away = |kind: &fsck::Kind| {
        let is_of_data = kind.name().starts_with("data-");
        kind.remedy() == Remedy::None && is_elsewhere(kind) && !is_of_data
    };
    if is_older && found.keys().any(is_away) {
        return Ok(());
    }
    // Which of them is right decides where names lie, and how long what is.
    if found.contains_key(&fsck::Kind::LabelDiffers) {
        return Ok(());
    }
    if found.keys().all(is_elsewhere) {
        return match is_older {
            true => write::marks(&held),
            false => Ok(()),
        };
    }
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let since = since.unwrap_or_default();
    let now = types::Timestamp {
        secs: i64::try_from(since.as_secs()).unwrap_or(i64::MAX),
        nanos: since.subsec_nanos(),
    };
    match fsck::repair::repair(&mut image, &report.findings, now) {
        Ok(()) => {
            write::owners(&held, image, journals)?;
            // Not before: until then an older copy is one. What is lost in between is made up for by the next repair.
            write::marks(&held)
        }
        // It shows in what is left, an older copy of an NSD among it: a newer one may bring back what is lost.
        Err(fsck::repair::Partial) => Ok(()),
    }
}

/// What is wrong now, of what is on the disks. Bytes of files are not read again: nothing repairs them.
fn again(args: &FsckArgs, before: &Findings) -> Result<Findings> {
    let mut left = Findings::default();
    let held = Held::take(&args.paths, &mut left)?;
    let (mut image, _) = held.load(&mut left, &mut |_| {})?;
    image.check(&mut left);
    let of_data = |finding: &&fsck::Finding| finding.kind.name().starts_with("data-");
    for finding in before.list().iter().filter(of_data) {
        left.add(finding.kind, finding.ino, finding.text.clone());
    }
    Ok(left)
}

fn verify(
    args: &FsckArgs,
    held: &Held,
    of: (&Image, &Paths),
    journals: &[Journal],
    report: &mut Report,
) -> Result<()> {
    let state = held.places[0].root().join("fsck.progress");
    let last = |journal: &Journal| {
        let (sequence, lsn) = (journal.recovered.next_sequence, journal.recovered.last_lsn);
        format!(" {} {sequence} {}", journal.node, lsn.0)
    };
    let now: String = journals.iter().map(last).collect();
    let now = format!("{}{now}", report.fs);
    let mut progress = match args.resume {
        true => Progress::load(&state, &now)?,
        false => Progress {
            of: now,
            ..Progress::default()
        },
    };
    let how = (&Pace::of(args.rate), state.as_path());
    let is_over = scrub::run(held, of, how, &mut progress, &mut report.findings);
    report.bytes = progress.bytes;
    if is_over {
        crate::files::remove(&state)
    } else {
        report.is_cancelled = true;
        progress.store(&state)
    }
}

fn lines(findings: &Findings, image: &Image, paths: &Paths) -> Vec<Value> {
    let line = |finding: &fsck::Finding| {
        let path = finding.ino.and_then(|ino| paths.of(image, ino));
        let remedy = match finding.kind.remedy() {
            Remedy::Rebuilt => "rebuilt",
            Remedy::Salvaged => "salvaged",
            Remedy::None => "none",
        };
        json!({
            "kind": finding.kind.name(), "meaning": finding.kind.meaning(), "remedy": remedy,
            "inode": finding.ino.map(types::InodeId::raw), "path": path, "text": finding.text,
        })
    };
    findings.list().iter().map(line).collect()
}

fn to_json(report: &Report, code: u8) -> Value {
    let counts = report.findings.counts().iter();
    let counts: serde_json::Map<String, Value> = counts
        .map(|(kind, count)| (kind.name().to_owned(), json!(count)))
        .collect();
    json!({
        "fs": report.fs, "findings": report.lines, "counts": counts, "inodes": report.inodes,
        "bytes_verified": report.bytes, "cancelled": report.is_cancelled, "exit": code,
        "left": report.left.as_ref().map(|left| left.counts().values().sum::<u64>()), "unsettled": report.unsettled,
        "looks": report.looks,
    })
}

/// What the kinds of `findings` are, and what can be done: once for each.
fn explain_kinds(findings: &Findings) -> String {
    let explain = |kind: &fsck::Kind| {
        let remedy = match kind.remedy() {
            Remedy::Rebuilt => "it can be repaired, and nothing is lost",
            Remedy::Salvaged => {
                "it can be repaired; what was damaged stays lost, or gets another name"
            }
            Remedy::None => "only a copy from elsewhere helps",
        };
        format!("  {}: {} Remedy: {remedy}.\n", kind.name(), kind.meaning())
    };
    findings.counts().keys().map(explain).collect()
}

fn to_text(report: &Report) -> String {
    let mut out = String::new();
    let plain = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    for line in &report.lines {
        let path = match line["path"].as_str() {
            Some(path) => format!(" ({path})"),
            None => String::new(),
        };
        out.push_str(&format!(
            "{}: {}{path}\n",
            plain(&line["kind"]),
            plain(&line["text"])
        ));
    }
    for (kind, count) in report.findings.counts() {
        let more = count.saturating_sub(fsck::COUNT_MAX);
        if more > 0 {
            out.push_str(&format!("{}: {more} more\n", kind.name()));
        }
    }
    out.push_str(&explain_kinds(&report.findings));
    let count: u64 = report.findings.counts().values().sum();
    let is_over = report.failure.is_none() && !report.is_cancelled;
    let verdict = match (count, is_over) {
        (0, true) if report.unsettled > Some(0) => "nothing that is sure is wrong".to_owned(),
        (0, true) => "clean".to_owned(),
        (_, true) => match &report.left {
            None => format!("{count} findings"),
            Some(left) => {
                let left: u64 = left.counts().values().sum();
                format!("{count} findings, {left} after the repair")
            }
        },
        (count, false) => {
            let why = match report.is_cancelled {
                true => "interrupted",
                false => "not checked to the end",
            };
            match count {
                0 => format!("{why}; nothing wrong so far"),
                count => format!("{why}; {count} findings so far"),
            }
        }
    };
    let bytes = match report.bytes {
        0 => String::new(),
        bytes => format!(", {} of data verified", size::show(bytes)),
    };
    if let Some(count @ 1..) = report.unsettled {
        out.push_str(&format!(
            "{count} suspicions are not told: no three looks, one after the other, agreed on them\n"
        ));
    }
    out.push_str(&format!(
        "file system {}: {verdict}; {} inodes{bytes}",
        report.fs, report.inodes
    ));
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As in JSON, but once for each kind, between the findings and the verdict.
    #[test]
    fn each_kind_is_explained_once() {
        let mut report = Report::default();
        assert_eq!(to_text(&report), "file system : clean; 0 inodes");
        for kind in [
            fsck::Kind::LabelCopy,
            fsck::Kind::LabelCopy,
            fsck::Kind::LabelLost,
        ] {
            report.findings.add(kind, None, "there".to_owned());
            report
                .lines
                .push(json!({ "kind": kind.name(), "text": "there" }));
        }
        let text = to_text(&report);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 6, "{text}");
        assert_eq!(lines[2], "label-lost: there");
        assert!(
            lines[3].starts_with("  label-copy: One copy of a label"),
            "{text}"
        );
        assert!(lines[3].ends_with("Remedy: it can be repaired, and nothing is lost."));
        assert!(lines[4].ends_with("Remedy: only a copy from elsewhere helps."));
        assert!(lines[5].contains("3 findings"), "{text}");
    }
}

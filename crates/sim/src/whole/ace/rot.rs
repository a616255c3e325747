//! Sectors that change at rest: a bit, all of it zero, another sector's bytes, its own of before.
//!
//! After a run of which everything is durable each sector that was ever written is damaged in each way, alone, and a node
//! starts from that. It may refuse to start, in words; it may say EIO of a file; it never shows other bytes, names or
//! attributes than those that are there, but for one thing: what the last records of the journal held is gone when they are
//! damaged, as if the power had been lost before they were written (nobody can tell these apart; docs/disk-format.md).

use std::collections::{BTreeMap, BTreeSet};

use stdx::Prng;
use types::Errno;

use super::super::boot;
use super::super::disk::{Disk, Sector};
use super::judge::Bounds;
use super::ops::Sequence;
use super::tape::{Event, Image, Place};
use super::{Bench, look, seed_of};
use crate::survive;

/// What damage did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RotCounts {
    /// Sectors that were damaged, each way counted.
    pub damages: u64,
    /// The node did not start.
    pub refused: u64,
    /// Some file could not be read.
    pub unreadable: u64,
    /// The end of the journal was lost.
    pub shortened: u64,
    /// Nobody needed the sector.
    pub harmless: u64,
}

/// Ways to damage a sector.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Damage {
    Bit,
    Zeros,
    Misdirected,
    Stale,
}

impl Bench {
    /// Runs a sequence, damages every sector in every way, and judges what a start shows.
    ///
    /// # Errors
    /// What is wrong, and with which sector.
    pub fn rot(&mut self, sequence: &Sequence) -> Result<RotCounts, String> {
        let seed = seed_of(sequence);
        let mut runner = self.runner(false)?;
        runner.make_calls(sequence, seed)?;
        runner.end()?;
        let disks = &mut runner.calls.machine.disks;
        disks.values_mut().for_each(Disk::flush);
        let image = Image::of(disks);
        let run = runner.run();
        let count = run.history.count();
        let bounds = run.marks.last().cloned().unwrap_or_default();
        let last_records = self.last_records(&run.events);
        let former = self.former(&run.events, &image);
        let mut counts = RotCounts::default();
        let mut prng = Prng::new(seed);
        let places = image.places();
        for (index, at) in places.iter().enumerate() {
            let next = places[(index + 1) % places.len()];
            for damage in [
                Damage::Bit,
                Damage::Zeros,
                Damage::Misdirected,
                Damage::Stale,
            ] {
                let bytes = match damage {
                    Damage::Bit => flipped(&image.get(*at), &mut prng),
                    Damage::Zeros => vec![0; image.get(*at).len()].into(),
                    Damage::Misdirected => image.get(next),
                    Damage::Stale => match former.get(at) {
                        Some(bytes) => bytes.clone(),
                        None => continue,
                    },
                };
                if bytes == image.get(*at) {
                    continue;
                }
                let mut damaged = image.clone();
                damaged.put(*at, bytes);
                counts.damages += 1;
                let may_shorten = last_records.contains(at);
                let judged =
                    self.start_damaged(&run, &bounds, (&damaged, may_shorten), &mut counts);
                judged.map_err(|text| {
                    let (nsd, sector) = at;
                    format!("{damage:?} of {nsd} sector {sector}, {count} steps: {text}")
                })?;
            }
        }
        Ok(counts)
    }

    /// Where the journal's last writes lie of which no later record can say that they were durable: a record knows what
    /// was when it was appended, and waits while as many writes as may be are under way.
    fn last_records(&self, events: &[Event]) -> BTreeSet<Place> {
        let area = self.shape.setting(1).area;
        let journal = area.begin..area.begin + area.count;
        let writes = events.iter().rev().filter_map(|event| match event {
            Event::WriteBegan { at, sectors, .. } => {
                let is_journal = at.0 == area.nsd && journal.contains(&at.1);
                is_journal.then(|| (at.1..).zip(sectors).map(|(sector, _)| (at.0, sector)))
            }
            _ => None,
        });
        writes.take(1 + boot::FLIGHT_COUNT_MAX).flatten().collect()
    }

    /// What sectors held before, where that was something else.
    fn former(&self, events: &[Event], image: &Image) -> BTreeMap<Place, Sector> {
        let first = self.image.places().into_iter();
        let first = first.map(|at| (at, self.image.get(at)));
        let mut former = BTreeMap::new();
        let mut note = |at: Place, bytes: Sector| {
            if bytes != image.get(at) {
                former.insert(at, bytes);
            }
        };
        first.for_each(|(at, bytes)| note(at, bytes));
        for event in events {
            if let Event::WriteBegan { at, sectors, .. } = event {
                for (sector, bytes) in (at.1..).zip(sectors) {
                    note((at.0, sector), bytes.clone());
                }
            }
        }
        former
    }

    fn start_damaged(
        &self,
        run: &super::Run,
        bounds: &Bounds,
        (damaged, may_shorten): (&Image, bool),
        counts: &mut RotCounts,
    ) -> Result<(), String> {
        let disks = || damaged.disks(&self.shape.nsds(), self.shape.has_volatile_cache);
        let mut shown = None;
        let panicked = survive(|| {
            shown = Some(look::start(&self.shape, disks(), damaged.hash()));
            None
        });
        if let Some(text) = panicked {
            return Err(text);
        }
        let (found, unreadable) = match shown.expect("it did not panic") {
            Ok(shown) => shown,
            // It says what is wrong: what its journal or a tree holds is not known.
            Err(text) if !text.contains("no answer") => {
                counts.refused += 1;
                return Ok(());
            }
            Err(text) => return Err(text),
        };
        if let Some(errno) = unreadable.values().find(|errno| **errno != Errno::EIO) {
            return Err(format!("a file answers {errno:?}"));
        }
        if !unreadable.is_empty() {
            let findings = look::check(&self.shape, &disks())?;
            if findings.is_empty() {
                return Err("a file cannot be read, and fsck finds nothing".to_owned());
            }
            counts.unreadable += 1;
        }
        let files: BTreeSet<u64> = unreadable.into_keys().collect();
        if run.history.judge_readable(&found, bounds, &files).is_ok() {
            counts.harmless += u64::from(files.is_empty());
            return Ok(());
        }
        if !may_shorten {
            let text = "what was durable is gone, and it was not in the journal's last writes";
            return Err(text.to_owned());
        }
        counts.shortened += 1;
        let any = Bounds {
            begun: bounds.begun,
            ..Bounds::default()
        };
        run.history.judge_readable(&found, &any, &files)
    }
}

fn flipped(bytes: &Sector, prng: &mut Prng) -> Sector {
    let mut bytes = bytes.to_vec();
    let at = usize::try_from(prng.below(bytes.len() as u64)).expect("an index");
    bytes[at] ^= 1 << prng.below(8);
    bytes.into()
}

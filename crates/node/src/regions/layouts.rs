//! Questions for sectors on NSDs that a layout names and that this owner has nothing on.
//!
//! ```text
//! Supply::Lacks -> wait for what the table is asked already, or ask it for regions of these NSDs -> run again
//!    the table has none; no answer for 5 s -> dry for a while -> sectors of other NSDs will do
//! ```
//!
//! Invariants
//! - Who waits here has sectors at hand elsewhere: no wait for an answer of the table is longer than `PATIENCE`, and nobody else is asked to give any up.
//! - It is apart from the rounds of `crate::supply`: those who wait there are short, and are told so.

use std::collections::BTreeMap;

use types::id::NodeLife;
use types::{Duration, Instant, NsdId};

use super::{Outbox, RegionEffect, RegionEnv, Regions};
use crate::log::OwnerLog;
use crate::question::{OfLayout, Question};

/// A question waits so long for regions of the NSDs that its layout names.
const PATIENCE: Duration = Duration::from_secs(5);
/// The table is not asked again so soon for regions of an NSD of which it had none.
const DRY: Duration = Duration::from_secs(5);
/// The same, when it has not answered.
const SILENT: Duration = Duration::from_secs(30);

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Layouts {
    /// Since when each waits.
    waiting: Vec<(Instant, Question)>,
    /// NSDs of which there are no regions to be had, until when.
    dry: BTreeMap<NsdId, Instant>,
}

impl Layouts {
    /// The table was asked for regions of these NSDs, and gave some of those.
    pub(super) fn on_regions(&mut self, now: Instant, asked: &[NsdId], given: &[NsdId]) {
        for nsd in asked {
            match given.contains(nsd) {
                true => _ = self.dry.remove(nsd),
                false => _ = self.dry.insert(*nsd, now + DRY),
            }
        }
    }

    /// Everybody looks again.
    pub(super) fn run_all(&mut self, out: &mut Outbox) {
        for (_, mut question) in self.waiting.drain(..) {
            question.of_layout = OfLayout::Unknown;
            out.push(RegionEffect::Run(Box::new(question)));
        }
    }

    /// Who has waited for too long does without. The table has been asked for regions of these NSDs, and has not answered.
    pub(super) fn on_tick(&mut self, now: Instant, asked: &[NsdId], out: &mut Outbox) {
        self.dry.retain(|_, until| now < *until);
        let is_late = |(since, _): &mut (Instant, Question)| now.since(*since) >= PATIENCE;
        for (_, mut question) in self.waiting.extract_if(.., is_late) {
            if let OfLayout::Lacks(nsds) =
                std::mem::replace(&mut question.of_layout, OfLayout::None)
            {
                let silent = nsds.into_iter().filter(|nsd| asked.contains(nsd));
                self.dry.extend(silent.map(|nsd| (nsd, now + SILENT)));
            }
            out.push(RegionEffect::Run(Box::new(question)));
        }
    }

    /// What it asked is not answered.
    pub(super) fn on_life_ended(&mut self, life: NodeLife) {
        self.waiting.retain(|(_, question)| question.from != life);
    }

    /// What waits, and since when, for `gupfs waiters`.
    pub(super) fn waiting(&self) -> Option<(String, Instant)> {
        let (since, oldest) = self.waiting.iter().min_by_key(|(since, _)| *since)?;
        let of: Vec<u16> = match &oldest.of_layout {
            OfLayout::Lacks(nsds) => nsds.iter().map(|nsd| nsd.0).collect(),
            OfLayout::Unknown | OfLayout::None => Vec::new(),
        };
        let what = format!(
            "{} questions for sectors wait for regions of NSDs that layouts name, the first of {of:?}",
            self.waiting.len()
        );
        Some((what, *since))
    }
}

impl Regions {
    /// A question lacks sectors on these NSDs.
    pub(super) fn await_layout(
        &mut self,
        env: &RegionEnv<'_>,
        log: &mut OwnerLog,
        mut question: Box<Question>,
        nsds: &[NsdId],
        out: &mut Outbox,
    ) {
        let is_dry =
            |nsd: &NsdId| (self.layouts.dry.get(nsd)).is_some_and(|until| env.now < *until);
        let wanted: Vec<NsdId> = nsds.iter().copied().filter(|nsd| !is_dry(nsd)).collect();
        // What the table gave now could not be journaled here.
        if wanted.is_empty() || !log.has_room_for_regions() {
            question.of_layout = OfLayout::None;
            out.push(RegionEffect::Run(question));
            return;
        }
        self.layouts.waiting.push((env.now, *question));
        if self.asked.is_none() {
            self.ask(env, log, (wanted, None, false), out);
        }
    }
}

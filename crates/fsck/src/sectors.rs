//! Who has which sectors: files and pages against what each owner's space says, and regions against the table.

use std::collections::{BTreeMap, BTreeSet};

use ::data::sectors::SectorSet;
use ::data::space::RegionId;
use node::meta::Shard;
use node::meta::map::runs_of;
use types::{InodeId, NodeId, Promised, Run};

use crate::finding::{Findings, Kind};
use crate::load::{Claim, SECTOR_END};
use crate::{Image, Owner};

/// Every run of files and pages of an owner, by place.
pub fn claims(owner: &Owner) -> Vec<Claim> {
    let mut all = owner.pages.clone();
    for seen in owner.shards.values().flat_map(|shard| shard.inspect()) {
        let Some(map) = seen.map else { continue };
        let extents: Vec<_> = map.extents().cloned().collect();
        let file = seen.attr.ino;
        let runs = runs_of(&extents).into_iter();
        all.extend(runs.map(|run| Claim {
            run,
            page_of: None,
            file,
        }));
    }
    all.retain(|claim| claim.run.at.sector < SECTOR_END);
    all.sort_unstable();
    all
}

fn end(run: Run) -> u64 {
    run.at.sector + u64::from(run.count)
}

fn show(run: Run) -> String {
    format!("{} sectors {}..{}", run.at.nsd, run.at.sector, end(run))
}

fn who(claim: &Claim) -> String {
    match claim.page_of {
        Some(shard) => format!("the tree of {shard}"),
        None => format!("inode {}", claim.file),
    }
}

/// What of `run` is not in the set.
pub(crate) fn missing(set: &SectorSet, run: Run) -> Vec<Run> {
    let mut out = Vec::new();
    let mut at = run.at.sector;
    let mut push = |from: u64, to: u64| {
        if from < to {
            let mut at = run.at;
            at.sector = from;
            let count = u32::try_from(to - from).expect("part of a run");
            out.push(Run { at, count });
        }
    };
    for part in set.intersection(run) {
        push(at, part.at.sector);
        at = end(part);
    }
    push(at, end(run));
    out
}

/// Files and pages of all owners.
pub fn check(image: &Image, findings: &mut Findings) {
    let mut all: Vec<(Claim, usize)> = Vec::new();
    for (index, owner) in image.owners.iter().enumerate() {
        all.extend(claims(owner).into_iter().map(|claim| (claim, index)));
    }
    all.sort_unstable();
    // Of each owner what is used, once: what is used twice is said here.
    let count = image.owners.len();
    let mut files = vec![SectorSet::new(); count];
    let mut pages = vec![SectorSet::new(); count];
    let mut owner_of: BTreeMap<Run, InodeId> = BTreeMap::new();
    let mut last: Option<Claim> = None;
    for (claim, owner) in &all {
        if let Some(other) = &last
            && other.run.at.nsd == claim.run.at.nsd
            && claim.run.at.sector < end(other.run)
        {
            let text = format!("{}: {} and {}", show(claim.run), who(other), who(claim));
            let ino = claim.page_of.is_none().then_some(claim.file);
            findings.add(Kind::SectorTwice, ino, text);
        }
        let set = match claim.page_of {
            Some(_) => &mut pages[*owner],
            None => &mut files[*owner],
        };
        for part in missing(set, claim.run) {
            set.insert(part);
        }
        if claim.page_of.is_none() {
            owner_of.insert(claim.run, claim.file);
        }
        if last.is_none_or(|other| {
            other.run.at.nsd != claim.run.at.nsd || end(claim.run) > end(other.run)
        }) {
            last = Some(*claim);
        }
    }
    for (index, owner) in image.owners.iter().enumerate() {
        check_files(owner, &files[index], &owner_of, findings);
        check_pages(owner, &pages[index], findings);
    }
}

/// Which file has a sector of the run.
fn file_of(owner_of: &BTreeMap<Run, InodeId>, run: Run) -> Option<InodeId> {
    let upper = Run {
        at: run.at,
        count: u32::MAX,
    };
    let before = owner_of.range(..=upper).rev().take(4);
    let is_it = |other: &Run| other.at.nsd == run.at.nsd && end(*other) > run.at.sector;
    before
        .filter(|(other, _)| is_it(other))
        .map(|(_, ino)| *ino)
        .next()
}

fn check_files(
    owner: &Owner,
    files: &SectorSet,
    owner_of: &BTreeMap<Run, InodeId>,
    findings: &mut Findings,
) {
    let used = owner.space.used();
    let lives = owner.space.lives();
    let mut held = SectorSet::new();
    for (life, _) in lives.granted {
        owner
            .space
            .granted_to(life)
            .for_each(|run| held.insert(run));
    }
    let quarantined: SectorSet = owner.space.quarantined();
    let regions = owner.space.data_sectors();
    for run in files.iter().flat_map(|run| missing(&used, run)) {
        let ino = file_of(owner_of, run);
        let name = ino.map_or_else(|| "a file".to_owned(), |ino| format!("inode {ino}"));
        let text = format!("{}, of {name}, owner {}", show(run), owner.node);
        if !missing(&regions, run).is_empty() {
            findings.add(Kind::ExtentRegion, ino, text);
        } else if held.overlaps(run) || quarantined.overlaps(run) {
            findings.add(Kind::SectorGranted, ino, text);
        } else {
            findings.add(Kind::SectorFree, ino, text);
        }
    }
    check_promises(owner, findings);
    // What cannot be seen may have them.
    if !owner.partial.is_empty() {
        return;
    }
    for run in used.iter().flat_map(|run| missing(files, run)) {
        let text = format!("{}, owner {}", show(run), owner.node);
        findings.add(Kind::SectorLeak, None, text);
    }
}

/// What is promised is free, or in the hands of nodes, which give it back or commit it.
fn check_promises(owner: &Owner, findings: &mut Findings) {
    let shards = owner.shards.values().map(Shard::promised);
    let promised = shards.fold(Promised::default(), |sum, more| sum + more);
    let counts = owner.space.counts();
    let there = counts.free + counts.granted + counts.pending + counts.quarantined;
    if promised.unpaid > there {
        let text = format!(
            "{} sectors are promised, {there} are free, owner {}",
            promised.unpaid, owner.node
        );
        findings.add(Kind::PromiseBroken, None, text);
    }
}

fn check_pages(owner: &Owner, pages: &SectorSet, findings: &mut Findings) {
    let linked = owner.space.pages().linked();
    let regions = owner.space.pages().sectors();
    for run in pages.iter().flat_map(|run| missing(&linked, run)) {
        if missing(&regions, run).is_empty() {
            let text = format!("{}, owner {}", show(run), owner.node);
            findings.add(Kind::PageFree, None, text);
        }
    }
    for claim in &owner.pages {
        let Some(shard) = claim.page_of else { continue };
        for run in missing(&regions, claim.run) {
            let text = format!("{}, owner {}, tree of {shard}", show(run), owner.node);
            findings.of_tree(Kind::PagePlace, shard, text);
        }
    }
    if !owner.partial.is_empty() {
        return;
    }
    for run in linked.iter().flat_map(|run| missing(pages, run)) {
        let text = format!("{}, owner {}", show(run), owner.node);
        findings.add(Kind::PageLeak, None, text);
    }
}

/// Regions against the table. (One that the table gives an owner that does not know it is no fault: the owner takes it when
/// it needs one.)
pub fn check_table(image: &Image, findings: &mut Findings) {
    let mut holders: BTreeMap<RegionId, NodeId> = BTreeMap::new();
    let mut twice = BTreeSet::new();
    for owner in &image.owners {
        for region in owner.space.held_regions() {
            if let Some(other) = holders.insert(region, owner.node) {
                twice.insert(region);
                let text = format!("{region:?}: {other} and {}", owner.node);
                findings.add(Kind::RegionTwice, None, text);
            }
        }
    }
    let Some(first) = image.owners.iter().find(|owner| owner.table.is_some()) else {
        return;
    };
    let table = first.table.as_ref().expect("just seen");
    let recorded: BTreeMap<RegionId, NodeId> = table.holders().collect();
    if !first.is_space_partial {
        for (region, node) in &holders {
            if recorded.get(region) != Some(node) && !twice.contains(region) {
                let said = recorded
                    .get(region)
                    .map_or("nobody".to_owned(), NodeId::to_string);
                let text = format!("{region:?}: {node} holds it, the table says {said}");
                findings.add(Kind::RegionUnrecorded, None, text);
            }
        }
    }
    for (region, node) in &recorded {
        let exists = image
            .setup
            .nsd(region.nsd)
            .is_some_and(|nsd| nsd.region(region.index).is_some());
        if !exists || !image.setup.owners.contains(node) {
            let text = format!("{region:?} of {node}");
            findings.add(Kind::RegionUnknown, None, text);
        }
    }
}

//! The first sectors of NSDs, and the headers of journals.

use node::store::format::{Area, HEADER_SECTORS, HeaderSector, SECTOR, SegmentHeader};
use node::store::recovery::RecoveryError;
use nsd::label::{Expected, Label, LabelError, decode_views};
use types::{ClusterView, FsId, NodeId};

use crate::finding::{Findings, Kind};

/// Looks at the first `HEAD_SECTORS` sectors of the disk `name`. The label, if it is this NSD's and the disk is whole, and the
/// copies of it that are to be written again.
pub fn check_head(
    name: &str,
    head: &[u8],
    expected: &Expected,
    sector_count: u64,
    findings: &mut Findings,
) -> Option<(Label, Vec<usize>)> {
    let decoded = match Label::decode(head) {
        Ok(decoded) => decoded,
        Err(error) => {
            findings.add(Kind::LabelLost, None, format!("{name}: {error}"));
            return None;
        }
    };
    if let Err(error) = decoded.label.check(expected, sector_count) {
        let kind = match error {
            LabelError::Shrunk { .. } => Kind::LabelSize,
            _ => Kind::LabelForeign,
        };
        findings.add(kind, None, format!("{name}: {error}"));
        return None;
    }
    for copy in &decoded.copies_to_repair {
        findings.add(Kind::LabelCopy, None, format!("{name}: copy {copy}"));
    }
    let newest = decode_views(head).newest;
    if newest.is_none_or(|view| view.cluster != decoded.label.cluster) {
        findings.add(Kind::ViewCopy, None, name);
    }
    Some((decoded.label, decoded.copies_to_repair))
}

/// Labels against one another and the view.
pub fn check_labels(labels: &[Label], view: &ClusterView, findings: &mut Findings) {
    let Some(first) = labels.first() else { return };
    for label in labels {
        let of_fs = |label: &Label| (label.hash_key, label.block_size, label.shard_count);
        if of_fs(label) != of_fs(first) {
            let text = format!(
                "{} and {}: hash key, block size or shards",
                first.name, label.name
            );
            findings.add(Kind::LabelDiffers, None, text);
        }
        let seen = view
            .nsd(label.nsd)
            .map(|nsd| (nsd.sector_count, nsd.data_begin));
        let said = (label.sector_count, label.data_begin);
        if seen != Some(said) {
            let text = format!(
                "{}: {said:?} sectors and first, the view says {seen:?}",
                label.name
            );
            findings.add(Kind::LabelDiffers, None, text);
        }
    }
}

/// Looks at the header sectors of one half of a journal.
pub fn check_header(
    (fs, owner): (FsId, NodeId),
    (area, half): (Area, u8),
    bytes: &[u8],
    findings: &mut Findings,
) {
    let copies: Vec<HeaderSector> = bytes
        .chunks_exact(SECTOR)
        .map(|sector| SegmentHeader::read(sector, fs, owner, area))
        .collect();
    let is_good = copies
        .iter()
        .any(|copy| matches!(copy, HeaderSector::Valid(_)));
    for (copy, at) in copies.iter().zip(0..HEADER_SECTORS) {
        // Where neither is good, recovery says what that means.
        if matches!(copy, HeaderSector::Bad(_)) && is_good {
            let place = area.at(half, at);
            let text = format!("journal of {owner}, {} sector {}", place.nsd, place.sector);
            findings.add(Kind::JournalHeader, None, text);
        }
    }
}

/// Why a journal cannot be recovered.
pub fn note_recovery(error: &RecoveryError, findings: &mut Findings) {
    let kind = match error {
        RecoveryError::Corrupt { .. } | RecoveryError::Blank { .. } => Kind::JournalLost,
        RecoveryError::Version { .. } => Kind::JournalVersion,
        RecoveryError::Foreign { .. } => Kind::JournalForeign,
        RecoveryError::Payload { .. } => Kind::JournalPart,
    };
    findings.add(kind, None, error.to_string());
}

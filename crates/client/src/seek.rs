//! lseek with SEEK_DATA and SEEK_HOLE: by the map of the file and the pages that no owner has yet.
//!
//! A sector is data where an extent or a piece lies in it, or where this node has bytes of it that are not committed.
//! Tokens to read everything from the offset on make that true of the whole cluster: other nodes have committed what
//! they wrote there. The map is asked for up to the end of the file at once, so a hole costs one message whatever its
//! length; who waits for the map holds nothing and runs again from its start (rule R9).

use meta::Op;
use types::{
    ByteRange, Errno, InodeId, InodeMode, Pattern, RangeMode, RangeSet, SECTOR_SIZE, Want,
};

use crate::env::Env;
use crate::inode::{Inode, sectors_around};
use crate::message::Ask;
use crate::names::Continuation;
use crate::pages::PAGE_SIZE;
use crate::request::{Operation, Request, Response};
use crate::revoke::RequestKind;
use crate::slice::{Slice, Waiting};
use crate::tokens::Admission;

/// Extents and pieces in one answer.
const MAP_COUNT_MAX: u32 = 512;

/// What is known of where the data is.
#[derive(PartialEq, Eq, Debug)]
enum Found {
    At(u64),
    /// The offset, or all behind it for SEEK_DATA, lies behind the end or in the last hole.
    Nothing,
    /// The map from here on must be known first.
    Unknown(u64),
}

impl Slice {
    /// LSEEK.
    pub(crate) fn seek(&mut self, env: &Env<'_>, request: Request) {
        let Operation::Seek {
            ino,
            offset,
            is_hole,
        } = request.operation
        else {
            unreachable!("only seeks come here");
        };
        let range = ByteRange::new(offset, u64::MAX);
        let inode = self.inode(ino);
        let (has_inode, has_range) = (
            inode.is_attr_current(),
            inode.covers(RangeMode::Read, &range),
        );
        let kind = RequestKind::DirectRead;
        match self.admit(env, ino, &request, kind, range, has_inode && has_range) {
            Admission::Served => {}
            Admission::NeedsToken => {
                let mut wants = Vec::with_capacity(2);
                if !has_inode {
                    let mode = match self.inode(ino).inode_mode() {
                        Some(InodeMode::SharedWrite) => InodeMode::Exclusive,
                        _ => InodeMode::Read,
                    };
                    wants.push(Want::Inode { mode });
                }
                if !has_range {
                    let required = Pattern::plain(range);
                    wants.push(Want::Range {
                        mode: RangeMode::Read,
                        required,
                        desired: required,
                    });
                }
                return self.acquire(env, ino, wants);
            }
            Admission::Refused => return,
        }
        let found = find(self.inode(ino), offset, is_hole);
        self.served(env, ino, request.ticket);
        match found {
            Found::At(at) => self.reply(request.ticket, Response::Offset(at)),
            Found::Nothing => self.fail(request.ticket, Errno::ENXIO),
            Found::Unknown(from) => {
                self.park(env, ino, request, Waiting::Load);
                self.ask_map(ino, from);
            }
        }
    }

    /// Asks for the map from `from` to the end, unless some part of it is being asked for.
    fn ask_map(&mut self, ino: InodeId, from: u64) {
        let inode = self.inode(ino);
        if inode.is_map_asked {
            return;
        }
        let range = sectors_around(&ByteRange::new(from, inode.size));
        inode.is_map_asked = true;
        inode.changed_since = RangeSet::new();
        inode.is_partial_map_asked = !inode.covers(RangeMode::Read, &range);
        let op = Op::GetMap {
            ino,
            begin: range.begin,
            end: range.end,
            count_max: MAP_COUNT_MAX,
        };
        let then = Continuation::Map(ino, range, range);
        self.call(ino.shard(), Ask::Op { op, durable: false }, then);
    }
}

/// Bytes that are looked at first; then twice as many, and so on.
const WINDOW: u64 = 1 << 20;

/// From where on a seek must know the map, if it must.
pub(crate) fn unknown_from(inode: &Inode, offset: u64, is_hole: bool) -> Option<u64> {
    match find(inode, offset, is_hole) {
        Found::Unknown(from) => Some(from),
        Found::At(_) | Found::Nothing => None,
    }
}

/// The first byte from `offset` on that is data, or that is none (the end of the file is a hole).
fn find(inode: &Inode, offset: u64, is_hole: bool) -> Found {
    let end = inode.size;
    if offset >= end {
        return Found::Nothing;
    }
    let asked = sectors_around(&ByteRange::new(offset, end));
    let unknown = inode.map.known.missing(&asked);
    let limit = unknown.ranges().first().map_or(asked.end, |r| r.begin);
    // What is looked for is near, as a rule: a file may have a million extents behind it.
    let (mut begin, mut window, mut first) = (asked.begin, WINDOW, None);
    while begin < limit && first.is_none() {
        let part = ByteRange::new(begin, limit.min(begin.saturating_add(window)));
        let found = match is_hole {
            true => data_in(inode, &part).missing(&part),
            false => data_in(inode, &part),
        };
        let at = found.ranges().iter().find(|r| r.end > offset);
        first = at.map(|r| r.begin.max(offset));
        (begin, window) = (part.end, window.saturating_mul(2));
    }
    match first.filter(|at| *at < end) {
        Some(at) => Found::At(at),
        None if limit < asked.end => Found::Unknown(limit.max(asked.begin)),
        None if is_hole => Found::At(end),
        None => Found::Nothing,
    }
}

/// The sectors with data of a range whose map is known.
fn data_in(inode: &Inode, range: &ByteRange) -> RangeSet {
    let mut data = RangeSet::new();
    if range.is_empty() {
        return data;
    }
    for extent in inode.map.extents_in(range) {
        let begin = extent.file_sector * SECTOR_SIZE;
        data.insert(ByteRange::new(
            begin,
            extent.file_sector_end() * SECTOR_SIZE,
        ));
    }
    for piece in &inode.map.pieces {
        let sector = sectors_around(&ByteRange::new(piece.offset, piece.end()));
        if let Some(part) = sector.intersection(range) {
            data.insert(part);
        }
    }
    for number in inode.pages.busy(range) {
        data.insert(ByteRange::at(number * PAGE_SIZE, PAGE_SIZE));
    }
    data
}

const _: () = assert!(PAGE_SIZE == SECTOR_SIZE);

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use stdx::prng::Prng;
    use types::Extent;

    use super::*;

    fn extent(begin: u64, length: u32) -> Extent {
        Extent {
            file_sector: begin,
            length,
            birth: 0,
            is_shared: false,
            locations: Vec::new(),
            checksums: types::extent::Checksums::Inline {
                crcs: (0..length).collect(),
            },
        }
    }

    /// Near and far, whatever is in between: as by looking at each sector.
    #[test]
    fn what_is_found_is_the_first() {
        let mut prng = Prng::new(5);
        for round in 0..200 {
            let mut inode = Inode::new(InodeId::ROOT, Arc::default());
            let (mut at, mut extents) = (0, Vec::new());
            // Distances of up to several windows.
            let far = [3, 40, 2000][round % 3];
            while extents.len() < 30 {
                at += prng.below(far);
                let length = 1 + u32::try_from(prng.below(far)).expect("small");
                extents.push(extent(at, length));
                at += u64::from(length);
            }
            let known = at - prng.below(far).min(at);
            inode.size = at * SECTOR_SIZE + prng.below(3 * SECTOR_SIZE);
            let range = ByteRange::new(0, known * SECTOR_SIZE);
            inode.map.learn(range, extents.clone(), Vec::new());
            let is_data = |sector: u64| {
                let is_in = |e: &&Extent| e.file_sector <= sector && sector < e.file_sector_end();
                extents.iter().find(is_in).is_some()
            };
            for _ in 0..40 {
                let offset = prng.below(inode.size + SECTOR_SIZE);
                for is_hole in [false, true] {
                    let sectors = offset / SECTOR_SIZE..inode.size.div_ceil(SECTOR_SIZE);
                    let mut seen = sectors.clone().take_while(|sector| *sector < known);
                    let first = seen.find(|sector| is_data(*sector) != is_hole);
                    let expected = match first {
                        _ if offset >= inode.size => Found::Nothing,
                        Some(sector) => Found::At((sector * SECTOR_SIZE).max(offset)),
                        None if known < sectors.end => {
                            Found::Unknown((known * SECTOR_SIZE).max(sectors.start * SECTOR_SIZE))
                        }
                        None if is_hole => Found::At(inode.size),
                        None => Found::Nothing,
                    };
                    let found = find(&inode, offset, is_hole);
                    assert_eq!(found, expected, "{offset} {is_hole}, round {round}");
                }
            }
        }
    }
}

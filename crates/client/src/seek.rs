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
        let inode = self.inode(ino);
        let found = find(inode, offset, is_hole);
        let error = inode
            .load_error
            .take_if(|_| matches!(found, Found::Unknown(_)));
        self.served(env, ino, request.ticket);
        match found {
            Found::At(at) => self.reply(request.ticket, Response::Offset(at)),
            Found::Nothing => self.fail(request.ticket, Errno::ENXIO),
            Found::Unknown(from) => match error {
                Some(errno) => self.fail(request.ticket, errno),
                None => {
                    self.park(env, ino, request, Waiting::Load);
                    self.ask_map(ino, from);
                }
            },
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

/// The first byte from `offset` on that is data, or that is none (the end of the file is a hole).
fn find(inode: &Inode, offset: u64, is_hole: bool) -> Found {
    let end = inode.size;
    if offset >= end {
        return Found::Nothing;
    }
    let asked = sectors_around(&ByteRange::new(offset, end));
    let unknown = inode.map.known.missing(&asked);
    let limit = unknown.ranges().first().map_or(asked.end, |r| r.begin);
    let known = ByteRange::new(asked.begin, limit);
    let found = match is_hole {
        true => data_in(inode, &known).missing(&known),
        false => data_in(inode, &known),
    };
    let first = found.ranges().iter().find(|r| r.end > offset);
    match first.map(|r| r.begin.max(offset)).filter(|at| *at < end) {
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

//! GetMap, Commit, Destage, Punch, Allocate: where the bytes of a file lie.

use types::extent::{Extent, SECTOR_SIZE};
use types::{ByteRange, Errno, FileKind, InodeId, limits};

use super::{attr, inode, settled};
use crate::execute::Resolved;
use crate::inode::Inode;
use crate::map::{FileMap, check_extents, runs_of};
use crate::message::{Commit, Op, Reply, SectorRange};
use crate::mutation::Mutation;
use crate::times::{held_back, modified};
use crate::view::{Context, MapPart, Stop, View};

/// Most bytes of pieces in one Commit.
const PIECE_BYTES_MAX: usize = 1 << 20;
/// Most pieces, and most extents, in one Commit.
const COUNT_MAX: usize = 4096;
/// Most promised ranges in one answer.
const PROMISED_COUNT_MAX: usize = 512;

fn file<'v>(view: &'v View<'_>, ino: InodeId) -> Result<&'v Inode, Stop> {
    let inode = inode(view, ino)?;
    match inode.attr.kind {
        FileKind::File => Ok(inode),
        FileKind::Directory => Err(Stop::Fail(Errno::EISDIR)),
        FileKind::Symlink
        | FileKind::Fifo
        | FileKind::Socket
        | FileKind::CharDevice
        | FileKind::BlockDevice => Err(Stop::Fail(Errno::EINVAL)),
    }
}

/// GetMap.
pub(super) fn get_map(
    view: &View<'_>,
    ino: InodeId,
    (begin, end): (u64, u64),
    count_max: u32,
) -> Result<Resolved, Stop> {
    if begin > end {
        return Err(Stop::Fail(Errno::EINVAL));
    }
    let inode = file(view, ino)?;
    let count_max = COUNT_MAX.min(count_max as usize);
    let whole = || MapPart {
        end,
        ..MapPart::default()
    };
    let part = inode
        .map()
        .map_or_else(whole, |m| m.get(begin, end, count_max));
    Ok(Resolved::Answer(Reply::Map {
        extents: part.extents,
        pieces: part.pieces,
        end: part.end,
        map_version: inode.map().map_or(0, FileMap::version),
        attr: inode.attr,
    }))
}

/// Punch. It starts a new size generation, as a truncation does: a Commit on its way may carry a page that a mapping
/// dirtied beside the hole, and with it what was in the hole before.
pub(super) fn punch(view: &View<'_>, ctx: &Context<'_>, op: &Op) -> Result<Resolved, Stop> {
    let Op::Punch {
        ino,
        begin,
        end,
        keeps_size,
    } = *op
    else {
        unreachable!("only holes come here");
    };
    settled(view, ino)?;
    let inode = file(view, ino)?;
    if begin >= end {
        return Err(Stop::Fail(Errno::EINVAL));
    }
    if end > limits::FILE_SIZE_MAX {
        return Err(Stop::Fail(Errno::EFBIG));
    }
    let (index, old) = (ino.index(), &inode.attr);
    let mut attr = modified(old, ctx.now);
    attr.size_generation += 1;
    if !keeps_size {
        attr.size = old.size.max(end);
    }
    let mut mutations = vec![Mutation::AttrPut { index, attr }];
    let has_more = inode.map().is_some_and(|map| map.promised().total > 0);
    if inode.map().is_some() && (begin < old.size || has_more) {
        // Nothing but promises lies behind the end: the last sector goes whole.
        let end = match end >= old.size {
            true => end.max(old.size.next_multiple_of(SECTOR_SIZE)),
            false => end,
        };
        mutations.push(Mutation::MapHole { index, begin, end });
    }
    mutations.extend(attr::drop_rights(inode));
    Ok(Resolved::Inode {
        ino,
        mutations,
        used: Vec::new(),
    })
}

/// Allocate. That the sectors are there was found out before. It starts a new size generation, as a hole does: a Commit on
/// its way, made by who did not know of the promise, may name long runs, which are not what a promise is written to.
pub(super) fn allocate(view: &View<'_>, ctx: &Context<'_>, op: &Op) -> Result<Resolved, Stop> {
    let Op::Allocate {
        ino,
        begin,
        end,
        keeps_size,
    } = *op
    else {
        unreachable!("only promises come here");
    };
    settled(view, ino)?;
    let inode = file(view, ino)?;
    if begin >= end {
        return Err(Stop::Fail(Errno::EINVAL));
    }
    if end > limits::FILE_SIZE_MAX {
        return Err(Stop::Fail(Errno::EFBIG));
    }
    let (first, last) = (begin / SECTOR_SIZE, end.div_ceil(SECTOR_SIZE));
    let sum = match inode.map() {
        Some(map) => map.promised() + map.promise_adds(first, last),
        None => FileMap::default().promise_adds(first, last),
    };
    if sum.total > limits::PROMISED_SECTORS_MAX {
        return Err(Stop::Fail(Errno::EOPNOTSUPP));
    }
    let (index, old) = (ino.index(), &inode.attr);
    let mut attr = modified(old, ctx.now);
    attr.size_generation += 1;
    if !keeps_size {
        attr.size = old.size.max(end);
    }
    let promise = Mutation::MapPromise {
        index,
        begin: first,
        end: last,
    };
    let mut mutations = vec![Mutation::AttrPut { index, attr }, promise];
    mutations.extend(attr::drop_rights(inode));
    Ok(Resolved::Inode {
        ino,
        mutations,
        used: Vec::new(),
    })
}

/// GetPromised.
pub(super) fn get_promised(view: &View<'_>, ino: InodeId, begin: u64) -> Result<Resolved, Stop> {
    let inode = file(view, ino)?;
    let map = inode.map();
    let promised = map.into_iter().flat_map(|m| m.promised_in(begin, u64::MAX));
    let ranges = promised.map(|(begin, end)| SectorRange { begin, end });
    let ranges: Vec<SectorRange> = ranges.take(PROMISED_COUNT_MAX).collect();
    let end = match ranges.get(PROMISED_COUNT_MAX - 1) {
        Some(last) => last.end,
        None => u64::MAX,
    };
    Ok(Resolved::Answer(Reply::Promised {
        ranges,
        end,
        attr: inode.attr,
    }))
}

/// Extents are well-formed, lie before the end of the file, and name no run that the map already uses.
fn check_new_extents(inode: &Inode, extents: &[Extent], size: u64) -> Result<(), Stop> {
    let bad = Stop::Fail(Errno::EINVAL);
    if extents.len() > COUNT_MAX || check_extents(extents).is_err() {
        return Err(bad);
    }
    let end = extents.last().map_or(0, Extent::file_sector_end);
    if end > size.div_ceil(SECTOR_SIZE) {
        return Err(bad);
    }
    if let Some(map) = inode.map()
        && runs_of(extents).iter().any(|run| map.uses_run(run))
    {
        return Err(Stop::Stale);
    }
    Ok(())
}

/// Commit. It is served whatever transaction is changing the inode's names (rule R10): what it changes,
/// no step changes.
pub(super) fn commit(
    view: &View<'_>,
    ctx: &Context<'_>,
    commit: &Commit,
) -> Result<Resolved, Stop> {
    let ino = commit.ino;
    let inode = match file(view, ino) {
        Err(Stop::Fail(Errno::ESTALE)) => return Err(Stop::Stale),
        other => other?,
    };
    let old = &inode.attr;
    let is_current = commit.generation == old.generation
        && commit.size_generation == old.size_generation
        && (commit.size.is_none() || ctx.held.covers_size());
    if !is_current {
        return Err(Stop::Stale);
    }
    let size = commit.size.unwrap_or(0).max(old.size);
    if size > limits::FILE_SIZE_MAX {
        return Err(Stop::Fail(Errno::EFBIG));
    }
    check_new_extents(inode, &commit.extents, size)?;
    let bytes: usize = commit.pieces.iter().map(|p| p.bytes.len()).sum();
    let is_piece = |p: &types::Piece| {
        let end = p.offset.checked_add(p.bytes.len() as u64);
        !p.bytes.is_empty() && end.is_some_and(|end| end <= size)
    };
    let fits = commit.pieces.len() <= COUNT_MAX && bytes <= PIECE_BYTES_MAX;
    if !fits || !commit.pieces.iter().all(is_piece) {
        return Err(Stop::Fail(Errno::EINVAL));
    }
    let of_extents = commit.extents.iter().map(|e| {
        ByteRange::new(
            e.file_sector * SECTOR_SIZE,
            e.file_sector_end() * SECTOR_SIZE,
        )
    });
    let of_pieces = commit
        .pieces
        .iter()
        .map(|p| ByteRange::new(p.offset, p.end()));
    if !of_extents
        .chain(of_pieces)
        .all(|range| ctx.held.covers(range))
    {
        return Err(Stop::Stale);
    }
    let index = ino.index();
    let mut new = *old;
    new.size = size;
    new.change += 1;
    if let Some(written) = commit.modified {
        let written = held_back(written, ctx.now);
        // Both are the write's, not the Commit's: a write that was looked at (tar asks before and after it reads) must
        // not show another time when it is written back.
        new.mtime = old.mtime.merged(written, ctx.now);
        new.ctime = old.ctime.merged(written, ctx.now);
    }
    if let Some(by) = commit.kill_set_id {
        new.permissions = attr::without_set_id(&new, by);
        if commit.modified.is_none() {
            new.ctime = old.ctime.stamped(ctx.now);
        }
    }
    let mut mutations = vec![Mutation::AttrPut { index, attr: new }];
    if commit.modified.is_some() || commit.kill_set_id.is_some() || commit.drops_rights {
        mutations.extend(attr::drop_rights(inode));
    }
    if !commit.extents.is_empty() || !commit.pieces.is_empty() {
        mutations.push(Mutation::MapPut {
            index,
            extents: commit.extents.clone(),
            pieces: commit.pieces.clone(),
        });
    }
    Ok(Resolved::Inode {
        ino,
        mutations,
        used: runs_of(&commit.extents),
    })
}

/// Destage: the bytes are the same, so no token is needed, no time is stamped, and the change counter
/// stays. Sectors whose pieces have changed since `map_version` are left out: their runs stay the asker's.
pub(super) fn destage(
    view: &View<'_>,
    ino: InodeId,
    map_version: u64,
    extents: &[Extent],
) -> Result<Resolved, Stop> {
    let inode = match file(view, ino) {
        Err(Stop::Fail(Errno::ESTALE)) => return Err(Stop::Stale),
        other => other?,
    };
    let Some(map) = inode.map().filter(|map| map_version <= map.version()) else {
        return Err(Stop::Stale);
    };
    check_new_extents(inode, extents, inode.attr.size)?;
    let taken = extents
        .iter()
        .flat_map(|e| map.unchanged_parts(e, map_version));
    let taken: Vec<Extent> = taken.collect();
    if taken.is_empty() {
        return Err(Stop::Stale);
    }
    let used = runs_of(&taken);
    let mutations = vec![Mutation::MapPut {
        index: ino.index(),
        extents: taken,
        pieces: Vec::new(),
    }];
    Ok(Resolved::Inode {
        ino,
        mutations,
        used,
    })
}

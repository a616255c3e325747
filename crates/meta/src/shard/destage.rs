//! What of a shard lies in pieces and is to be moved to sectors.

use types::{InodeId, SECTOR_SIZE, limits};

use super::Shard;
use crate::inode::Inode;
use crate::map::{PieceDebt, PieceSector};
use crate::message::Commit;

impl Shard {
    /// A file whose pieces are to be moved to sectors soon (`Op::Destage`): the next behind the inode of this index, around. With
    /// `wants_promised` one of those that are promised sectors, if there are some.
    pub fn destage_behind(&self, index: u64, wants_promised: bool) -> Option<InodeId> {
        let behind = self.destage_soon.range(index.saturating_add(1)..);
        let around = behind.chain(self.destage_soon.range(..=index));
        let inos = around.map(|index| InodeId::new(self.id, *index));
        let has_promise = |ino: &InodeId| self.peek_attr(*ino).is_some_and(|a| a.has_promise());
        let promised = wants_promised.then(|| inos.clone().find(has_promise));
        promised.flatten().or_else(|| inos.clone().next())
    }

    /// Files with more than a small file's bytes in pieces, to be moved when there is time: those behind this index first, each once.
    pub fn may_destage(&self, index: u64) -> impl Iterator<Item = InodeId> + '_ {
        let behind = self.destage_later.range(index.saturating_add(1)..);
        let around = behind.chain(self.destage_later.range(..=index));
        around.map(|i| InodeId::new(self.id, *i))
    }

    /// What to move to sectors of a file, at most `sector_count_max` sectors, and the version of its map now. With `wants_promised`
    /// those that are promised, if there are some, wherever they are.
    pub fn destage_plan(
        &self,
        ino: InodeId,
        sector_count_max: usize,
        wants_promised: bool,
    ) -> Option<(u64, Vec<PieceSector>)> {
        let map = self.inodes.get(&ino.index())?.map()?;
        let promised = match wants_promised {
            true => map.piece_sectors(sector_count_max, true),
            false => Vec::new(),
        };
        let sectors = match promised.is_empty() {
            true => map.piece_sectors(sector_count_max, false),
            false => promised,
        };
        Some((map.version(), sectors))
    }

    /// Bytes that lie in pieces and are to be moved to sectors: not those of small files, which stay.
    pub fn piece_debt(&self) -> PieceDebt {
        self.piece_debt
    }

    /// Bytes that a Commit brings in pieces that are to be moved to sectors, so not those of a file that stays small: in sectors that are
    /// promised, and in others. Its inode is resident, or it brings none of the first.
    pub fn piece_bytes_of(&self, commit: &Commit) -> PieceDebt {
        let inode = self.inode(commit.ino);
        let map = inode.and_then(Inode::map);
        let mut bytes = PieceDebt::default();
        let known_end = inode.map_or(u64::MAX, |inode| inode.attr.size);
        if known_end.max(commit.size.unwrap_or(0)) <= limits::INLINE_SIZE_MAX {
            return bytes;
        }
        for piece in &commit.pieces {
            let (first, last) = (
                piece.offset / SECTOR_SIZE,
                piece.end().div_ceil(SECTOR_SIZE),
            );
            let ranges = map.into_iter().flat_map(|map| map.promised_in(first, last));
            let within = |(from, to): (u64, u64)| {
                let end = to.saturating_mul(SECTOR_SIZE).min(piece.end());
                end - piece.offset.max(from * SECTOR_SIZE)
            };
            let promised: u64 = ranges.map(within).sum();
            bytes.promised += promised;
            bytes.other += piece.bytes.len() as u64 - promised;
        }
        bytes
    }
}

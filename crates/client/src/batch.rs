//! What of dirty pages goes to sectors, and what inside of a Commit; and what of it is dirty again.

use data::SetAside;
use types::{ByteRange, Piece, limits};

use crate::env::{Env, StorePiece, TakenRun};
use crate::flush::Batch;
use crate::inode::Inode;
use crate::pages::{DirtyPage, PAGE_SIZE};

/// Pieces and bytes of pieces of one batch.
const BATCH_PIECES_MAX: usize = 256;
const BATCH_PIECE_BYTES_MAX: u64 = limits::SMALL_BYTES_MAX as u64;

/// Pages that were taken for a flush are dirty again.
pub(crate) fn put_back(inode: &mut Inode, pages: &[DirtyPage], env: &Env<'_>) {
    pages.iter().for_each(|page| env.pool.release(page.frame));
    let numbers: Vec<u64> = numbers_of(pages).collect();
    inode.pages.on_flushed(&numbers, false, false);
}

/// Whole pages that go as pieces.
pub(crate) fn whole_pieces(inode: &Inode, pages: &[DirtyPage]) -> Vec<u64> {
    // A page of which another node may write a part goes as pieces every time: never whole to a sector.
    let whole = pages
        .iter()
        .filter(|page| page.is_whole(PAGE_SIZE) && inode.owns_page(page.number));
    whole.map(|page| page.number).collect()
}

/// Keeps as many pages as may go as pieces of one batch; the others are dirty again.
pub(crate) fn cap_pieces(
    inode: &mut Inode,
    pages: Vec<DirtyPage>,
    env: &Env<'_>,
) -> Vec<DirtyPage> {
    let (mut count, mut bytes) = (0, 0);
    let mut kept = Vec::with_capacity(pages.len());
    let mut excess = Vec::new();
    for page in pages {
        count += page.dirty().len();
        bytes += page.dirty().iter().map(ByteRange::length).sum::<u64>();
        // One page always goes: it is within what an owner takes, however torn it is.
        if kept.is_empty() || (count <= BATCH_PIECES_MAX && bytes <= BATCH_PIECE_BYTES_MAX) {
            kept.push(page);
        } else {
            env.pool.release(page.frame);
            excess.push(page.number);
        }
    }
    inode.pages.on_flushed(&excess, false, false);
    kept
}

/// The part of a piece before the end of the file: behind it is nothing to be kept.
pub(crate) fn clip(piece: Piece, size: u64) -> Option<Piece> {
    if piece.end() <= size {
        return Some(piece);
    }
    let length = usize::try_from(size.checked_sub(piece.offset)?).ok()?;
    let bytes = types::SmallBytes::new(&piece.bytes[..length]);
    (length > 0).then_some(Piece {
        offset: piece.offset,
        bytes,
    })
}

pub(crate) fn numbers_of(pages: &[DirtyPage]) -> impl Iterator<Item = u64> + '_ {
    pages.iter().map(|page| page.number)
}

/// What is written to each run.
pub(crate) fn store_pieces(taken: &[TakenRun], pages: &[DirtyPage]) -> Vec<StorePiece> {
    let piece = |run: &TakenRun| {
        let first = pages.partition_point(|page| page.number < run.file_sector);
        let of_run = &pages[first..first + run.count as usize];
        StorePiece {
            file_sector: run.file_sector,
            frames: of_run.iter().map(|page| page.frame).collect(),
            run: run.run,
        }
    };
    taken.iter().map(piece).collect()
}

impl Inode {
    /// The sectors of these pages cannot be used: they are dirty again and go to others. Where none are in hand,
    /// the write-back asks for some.
    pub(crate) fn write_again(&mut self, env: &Env<'_>, batch: &Batch) {
        let (owner, numbers) = (env.owner(self.ino.shard()), &batch.numbers);
        if numbers.is_empty() {
            return;
        }
        // What was written to meanwhile has a sector for that.
        let is_without =
            |number: &&u64| !self.has_given_up(**number) && !self.is_dirty_page(**number);
        let with_sectors = numbers.iter().filter(is_without);
        let sectors = (with_sectors.count() as u64).saturating_sub(batch.aside.sectors());
        let part = match numbers.iter().all(|number| self.is_page_promised(*number)) {
            true => {
                let sectors = sectors.min(limits::PROMISED_ASK_MAX);
                env.grants.reserve_promised(owner, sectors)
            }
            false => {
                let is_there = env.grants.reserve(owner, sectors);
                is_there.then_some(SetAside::plain(sectors))
            }
        };
        self.reserved += batch.aside;
        self.reserved += part.unwrap_or_default();
        self.pages.on_flushed(numbers, false, false);
    }
}

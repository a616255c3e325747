//! Batches of dirty pages: what of them goes to sectors, and what inside of a Commit; and what of it is dirty again.

use data::SetAside;
use types::{ByteRange, Extent, FrameRef, Piece, Run, limits};

use crate::env::{Env, StorePiece, TakenRun};
use crate::inode::Inode;
use crate::pages::{DirtyPage, PAGE_SIZE};
use crate::slice::IoId;

/// Pieces and bytes of pieces of one batch.
const BATCH_PIECES_MAX: usize = 256;
const BATCH_PIECE_BYTES_MAX: u64 = limits::SMALL_BYTES_MAX as u64;

#[derive(Debug, PartialEq)]
pub(crate) enum BatchState {
    Storing,
    Stored(Vec<Extent>),
    /// With its extents where the Commit may be refused for what others bring.
    Committing(Vec<Extent>),
}

/// Pages on their way.
#[derive(Debug)]
pub(crate) struct Batch {
    pub(crate) io: IoId,
    pub(crate) numbers: Vec<u64>,
    /// The file's bytes from its first page to its last, whatever of them it has.
    pub(crate) span: ByteRange,
    pub(crate) frames: Vec<FrameRef>,
    pub(crate) runs: Vec<Run>,
    pub(crate) pieces: Vec<Piece>,
    pub(crate) state: BatchState,
    /// The size was cut while it was on its way: it is written anew.
    pub(crate) is_cut: bool,
    /// Its pages are promised sectors; else none of them is.
    pub(crate) is_promised: bool,
    /// Whole pages that go as pieces.
    pub(crate) whole: Vec<u64>,
    /// They stay where they are then; else they go to sectors later.
    pub(crate) stays: bool,
    /// The first so many of `numbers` go to sectors, the others as pieces.
    pub(crate) sector_count: usize,
    /// Sectors that stay set aside for what goes as pieces until the owner has it (`crate::refused`).
    pub(crate) aside: SetAside,
    /// Its stores are flushed.
    pub(crate) is_flushed: bool,
}

impl Batch {
    pub(crate) fn page_count(&self) -> usize {
        self.numbers.len()
    }

    pub(crate) const fn is_stored(&self) -> bool {
        matches!(self.state, BatchState::Stored(_))
    }

    /// Extents and pieces that wait for a Commit.
    pub(crate) fn stored_count(&self) -> usize {
        if self.is_stored() {
            self.extent_count() + self.pieces.len()
        } else {
            0
        }
    }

    /// It carries bytes that go with the Commit.
    pub(crate) fn has_pieces(&self) -> bool {
        !self.pieces.is_empty()
    }

    pub(crate) fn extent_count(&self) -> usize {
        match &self.state {
            BatchState::Stored(extents) => extents.len(),
            BatchState::Storing | BatchState::Committing(_) => 0,
        }
    }
}

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

/// The pages of those of `batches` for which `is_meant` holds.
pub(crate) fn numbers_in(batches: &[Batch], is_meant: impl Fn(&Batch) -> bool) -> Vec<u64> {
    let meant = batches.iter().filter(|batch| is_meant(batch));
    meant.flat_map(|batch| &batch.numbers).copied().collect()
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

//! Nouns of the model: cells, requests of the kernel, answers of the daemon, operations of applications.
//!
//! A *cell* is 1 KiB that is written as a whole; a page has four, so that byte-range tokens that share a page are
//! exercised. A cell holds one number that no other write uses; 0 is a hole, what a truncate leaves, and what lies
//! behind the end.

use std::ops::Range;

use types::{ByteRange, Errno};

/// Bytes of a cell.
pub const CELL_SIZE: u64 = 1024;
/// Cells of a kernel page.
pub const PAGE_CELLS: usize = 4;
/// Pages of a file.
pub const PAGE_COUNT: usize = 4;
/// Cells of a file.
pub const CELL_COUNT: usize = PAGE_CELLS * PAGE_COUNT;
/// Names in the one directory.
pub const NAME_COUNT: usize = 3;
/// Time-outs that answers carry, in ticks of a millisecond.
pub const TIMEOUT_TICKS: u64 = types::limits::KERNEL_TIMEOUT_MS_MAX;

/// What a cell holds.
pub type Value = u64;

/// The bytes of cells.
pub fn bytes(cells: &Range<usize>) -> ByteRange {
    ByteRange::new(cells.start as u64 * CELL_SIZE, cells.end as u64 * CELL_SIZE)
}

/// The cells that share a byte with the range, clipped to the file.
pub fn cells(range: &ByteRange) -> Range<usize> {
    let cell =
        |byte: u64| usize::try_from(byte.min(CELL_COUNT as u64 * CELL_SIZE)).expect("clipped");
    let size = usize::try_from(CELL_SIZE).expect("small");
    cell(range.begin) / size..cell(range.end).div_ceil(size)
}

/// The cells of pages.
pub const fn page_cells(pages: &Range<usize>) -> Range<usize> {
    pages.start * PAGE_CELLS..pages.end * PAGE_CELLS
}

/// What the kernel asks the daemon.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Ask {
    /// READ into the page cache.
    Read(Range<usize>),
    /// READ into the application's memory: cells.
    DirectRead(Range<usize>),
    /// WRITE of one value to cells; with `append` the daemon places it.
    Write {
        /// Where the kernel thinks it goes.
        cells: Range<usize>,
        /// What.
        value: Value,
        /// O_APPEND.
        append: bool,
    },
    /// Write-back of one page, cells up to the kernel's size.
    WriteBack {
        /// Page.
        page: usize,
        /// Its contents.
        data: [Value; PAGE_CELLS],
        /// Cells of it before the kernel's end of file.
        count: usize,
    },
    /// SETATTR with a size.
    SetSize(usize),
    /// GETATTR.
    GetAttr,
    /// LOOKUP of a name.
    Lookup(usize),
    /// A name is made to mean something else (CREATE, RENAME over it).
    Bind(usize, Value),
    /// FSYNC.
    Fsync,
    /// CREATE with O_EXCL.
    Create(usize),
    /// UNLINK.
    Remove(usize),
    /// RENAME within the directory.
    Move(usize, usize),
}

/// A request in the FUSE queue.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FuseRequest {
    /// FUSE's `unique`.
    pub id: u64,
    /// The file; ignored for names.
    pub file: usize,
    /// What.
    pub ask: Ask,
}

/// Attributes in an answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Attributes {
    /// Cells of the file.
    pub size: usize,
    /// Changes whenever data or attributes changed.
    pub mtime: u64,
    /// Ticks for which the kernel may believe it.
    pub timeout: u64,
}

/// What the daemon answers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Answer {
    /// Read: the cells asked for.
    Data(Vec<Value>),
    /// Write, WriteBack: done; where an append went.
    Written(usize),
    /// GetAttr, SetSize.
    Attributes(Attributes),
    /// Lookup, Bind: what the name means and for how many ticks; the file's attributes come along.
    Entry {
        /// Meaning.
        value: Value,
        /// Ticks.
        timeout: u64,
        /// Of the file that the name leads to, if at hand.
        attributes: Option<Attributes>,
    },
    /// Fsync, Remove, Move: done.
    Done,
    /// Create, Remove, Move: the names are not as it needs. Write: there is no room.
    Refused(Errno),
    /// EIO and such.
    Failed,
    /// EINTR.
    Interrupted,
}

/// What an application does.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Action {
    /// read(2) of cells on a cached descriptor.
    ReadCached(Range<usize>),
    /// splice(2): the page cache without a look at the attributes.
    Splice(Range<usize>),
    /// read(2) on a DIRECT_IO descriptor.
    ReadDirect(Range<usize>),
    /// write(2).
    Write(Range<usize>, Value),
    /// write(2) with O_APPEND of this many cells.
    Append(usize, Value),
    /// ftruncate(2).
    Truncate(usize),
    /// A load of a cell through a mapping.
    Load(usize),
    /// A store to a cell through a shared mapping.
    Store(usize, Value),
    /// msync(2).
    Msync,
    /// fstat(2).
    Stat,
    /// Look a name up.
    Lookup(usize),
    /// Make a name mean something else.
    Bind(usize, Value),
    /// fsync(2).
    Fsync,
    /// open(2) with O_CREAT and O_EXCL, and close(2).
    Create(usize),
    /// unlink(2).
    Remove(usize),
    /// rename(2) within the directory.
    Move(usize, usize),
}

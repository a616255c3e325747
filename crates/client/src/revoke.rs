//! Revocation: which kernel request is served or parked while a token leaves, and when it may go.
//!
//! The kernel's page cache is a cache of ours that we can only reach by asking (INVAL_INODE), and the
//! kernel answers only when no folio of the range is locked: so who parks a READ and then asks waits for
//! himself. Rules (docs/decisions/0004-revocation.md, 0028) keep that from happening; `Gate` (files) and
//! `DirectoryGate` (directories) hold them as pure values of the inode's client slice.
//!
//! One revoke of a file's range, seen from the outside:
//! ```text
//! begin_revoke --> drain what is in service --> Notify .. on_notified --+--> Flush .. on_flushed --> Release
//!                        ^                                              |
//!                        '---- READ served meanwhile, or second pass ---'
//! ```
//! What this does not do: it knows no tokens (the caller says `has_token`), moves no bytes, reads no clock.
//!
//! | rule | what | where |
//! |---|---|---|
//! | R1 | notifications run on threads of their own | driver (`Rules::r1` is read by the simulator's) |
//! | R2 | a READ that overlaps a notification in progress is served under the old token | `Gate` |
//! | R3 | pages of a parked READ are locked and empty: no notification covers them | `Gate` |
//! | R4 | pages READ during a pass are notified again; release only after a clean pass | `Gate` |
//! | R5 | write-back of mapped pages is always accepted, and flushed before the release | `Gate` |
//! | R6 | a second pass where mappings may be writable: the kernel hides -EBUSY | `Gate` |
//! | R7 | directory requests do not wait for the revoke of the directory's own names | `DirectoryGate` |
//! | R8 | after a lease lapsed: fail what is parked, then notify, then abort | `Gate` |
//! | R9 | a request that waits for a token is not in service | `Gate` |
//! | R10 | a holder's Commit goes ahead of the operation that revokes it | owner |
//! | R11 | a directory's revoke never waits for INVAL_ENTRY | `DirectoryGate` |
//! | R12 | a truncate does not wait while mapped pages must be written back | `Gate` |
//! | R13 | while bytes are put into the page cache nothing is notified or changed, and nobody else opens the file | `Gate`, `fill` |

mod directory;
mod gate;
#[cfg(test)]
mod tests;

use types::{ByteRange, RangeSet};

use crate::request::Ticket;

pub use directory::{DirectoryEffect, DirectoryGate, DirectoryVerdict};
pub use gate::Gate;

/// Bytes of a page of the kernel's page cache.
pub const PAGE_SIZE: u64 = 4096;

/// Rules that can be switched off, which only the simulator's canaries do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(clippy::struct_excessive_bools, reason = "independent switches")]
#[allow(
    missing_docs,
    reason = "the table in the module's head says what each is"
)]
pub struct Rules {
    pub r1: bool,
    pub r2: bool,
    pub r3: bool,
    pub r4: bool,
    pub r5: bool,
    pub r6: bool,
    pub r7: bool,
    pub r8: bool,
    pub r9: bool,
    pub r10: bool,
    pub r11: bool,
    pub r12: bool,
    pub r13: bool,
}

impl Rules {
    /// All rules: what production uses.
    pub const DEFAULT: Self = Self {
        r1: true,
        r2: true,
        r3: true,
        r4: true,
        r5: true,
        r6: true,
        r7: true,
        r8: true,
        r9: true,
        r10: true,
        r11: true,
        r12: true,
        r13: true,
    };
}

impl Default for Rules {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// A revoke of this inode; the caller draws the numbers, unique within the inode.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct RevokeId(pub u64);

/// A notification asked for; unique within the gate.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct NotifyId(pub u64);

/// What a request means for the kernel's locks.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum RequestKind {
    /// READ into the page cache (FUSE_READ_LOCKOWNER is not set): its folios are locked and not
    /// up to date until it is answered. Page aligned. Also of DIRECT_IO opens (splice, mapped loads).
    Read,
    /// READ into the application's memory (FUSE_READ_LOCKOWNER is set): no folio is locked, and pages of
    /// the range may be cached by others.
    DirectRead,
    /// WRITE from a write call (all writable opens are DIRECT_IO, so no folio is locked), FALLOCATE, and opens that truncate.
    Write,
    /// WRITE with FUSE_WRITE_CACHE: write-back of mapped pages; its folios are locked or under write-back.
    WriteBack,
    /// SETATTR with a size: the kernel writes no mapped page back (NOWRITE) until it is answered. The range is what is cut.
    SetSize,
    /// Whatever shows or changes attributes only (GETATTR, other SETATTRs, xattrs). The range is ignored.
    Attributes,
    /// What needs no token of this inode's data or attributes (OPEN, FLUSH, RELEASE). Never parked but by
    /// a lapse.
    Other,
}

/// A kernel request as the gate sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GateRequest {
    /// Its name.
    pub ticket: Ticket,
    /// What it is.
    pub kind: RequestKind,
    /// Bytes it touches; empty where it touches none.
    pub range: ByteRange,
    /// The tokens it needs are held, counting those that are being revoked and not yet released.
    pub has_token: bool,
}

/// What to do with a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Serve it now under the tokens that are held, those in revocation included; say `on_served` when it
    /// is finished. The gate has it in service.
    Serve,
    /// Keep it until the gate names it in `Serve`, `Retry` or `Fail`. If `has_token` was false, the missing
    /// tokens may be asked for meanwhile; `on_token_granted` wakes it.
    Park,
    /// Answer it with an error now. The gate has forgotten it.
    Fail(Failure),
}

/// Why a request is failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Failure {
    /// A READ of several pages holds a folio that a notification in progress wants, and needs tokens that
    /// this node lacks. Any errno will do: the kernel drops the read-ahead and asks again page by page.
    Again,
    /// A truncate would keep mapped pages from being written back that another node waits for: EINTR.
    Interrupted,
    /// The node's lease has lapsed: EIO.
    LeaseLost,
}

/// What happens to the inode token.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub enum AttributesGo {
    /// It stays as it is.
    #[default]
    Stay,
    /// The right to change leaves, the right to read stays.
    Demoted,
    /// It leaves: attributes must not be cached any longer.
    Lost,
}

/// What leaves in a revoke. Each set may cover more than the manager asked for, never less (a strided pattern without
/// end is given as the range that contains it).
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Scope {
    /// Bytes whose token leaves altogether.
    pub lost: RangeSet,
    /// Pages (whole ones) that the kernel may have in its cache and that share a byte with `lost`. A page can be
    /// there only if the tokens that a READ into the page cache takes covered all of it (write tokens while mappings
    /// may be writable, else read tokens): leave out those that never were, for a READ of such a page cannot be
    /// served while it is notified.
    pub lost_pages: RangeSet,
    /// Bytes of which only the right to write leaves: reads go on, and so do the kernel's pages, unless mappings may be
    /// writable.
    pub demoted: RangeSet,
    /// As `lost_pages`, of `demoted`.
    pub demoted_pages: RangeSet,
    /// The inode token.
    pub attributes: AttributesGo,
    /// The kernel was given no attributes to believe since they were last notified: they need no notification. That
    /// spares more than time: each one voids the answers to all GETATTRs that the kernel has sent before and not
    /// taken yet, so that a cached read goes by the size it knew before.
    pub is_attr_unknown: bool,
}

/// How a flush ended. Either way the token goes: a silent holder is expelled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FlushOutcome {
    /// All dirty data of the ranges is committed.
    Committed,
    /// It failed or took too long: the caller recorded the error for fsync and close and dropped the data.
    Lost,
}

/// What the gate wants done, in this order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Effect {
    /// Serve a parked request now, under the tokens held, those in revocation included (rule R5). It is in
    /// service: say `on_served`.
    Serve {
        /// Which.
        ticket: Ticket,
    },
    /// The gate forgot a parked request: present it again with `on_request` (it may need a new token).
    Retry {
        /// Which.
        ticket: Ticket,
    },
    /// The gate forgot a parked request: answer it with an error.
    Fail {
        /// Which.
        ticket: Ticket,
        /// Why.
        why: Failure,
    },
    /// INVAL_INODE on a notify thread (rule R1); say `on_notified` when it has returned.
    Notify {
        /// Its name.
        notify: NotifyId,
        /// Pages to drop; `None` drops attributes only (offset -1). Attributes go with any of them.
        pages: Option<ByteRange>,
    },
    /// Write dirty pagepool data of the ranges and commit it; say `on_flushed` when the owner has it.
    Flush {
        /// For which revoke.
        revoke: RevokeId,
        /// Which bytes.
        ranges: RangeSet,
    },
    /// A revoke is over and its token may go: nothing of it is cached, dirty or in use here. Or a drop is over
    /// (`Gate::begin_drop`): the kernel has dropped its pages.
    Release {
        /// Which revoke is over.
        revoke: RevokeId,
        /// A flush was lost.
        is_data_lost: bool,
    },
    /// The lapse is over: the kernel holds nothing of this inode; requests may be served again.
    LapseDone,
    /// A notification of a lapse does not return: abort the connection.
    Abort,
}

/// Effects in the order in which they arose.
pub type Outbox = Vec<Effect>;

/// A request that waits, for `gupfs waiters`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Waiter {
    /// The request.
    pub ticket: Ticket,
    /// Its kind.
    pub kind: RequestKind,
    /// The revoke it waits for; `None` waits for a token or the end of a lapse.
    pub revoke: Option<RevokeId>,
}

/// `range` widened to whole pages.
pub(crate) fn round_out(range: &ByteRange) -> ByteRange {
    if range.is_empty() {
        return ByteRange::default();
    }
    ByteRange {
        begin: range.begin - range.begin % PAGE_SIZE,
        end: range
            .end
            .checked_next_multiple_of(PAGE_SIZE)
            .unwrap_or(u64::MAX),
    }
}

//! What is said about NSDs on the wire: requests and replies, frame kinds 0x0201 and 0x0202.
//!
//! The payload of a write request and of a read reply travels beside the message, in the frame's
//! payload part: exactly `count` sectors. A reply names its request by the header's request id.

use thiserror::Error;
use types::{Epoch, Errno, Incarnation, NsdId, wire_enum};

/// Frame kind of a `Request`.
pub const KIND_REQUEST: u16 = 0x0201;
/// Frame kind of a `Reply`.
pub const KIND_REPLY: u16 = 0x0202;

/// Names one life of a disk's write cache as its server knows it.
///
/// It begins as the server's incarnation and changes when a write or flush of the disk fails, because
/// Linux reports such a loss once, to one of several callers: knfsd changes its write verifier for the
/// same reason. Writes and the flush after them are durable only if they carry the same verifier.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Verifier(pub u128);

impl Verifier {
    /// The first verifier of a daemon's life.
    pub const fn of(incarnation: Incarnation) -> Self {
        Self(incarnation.0)
    }

    /// The verifier after so many failures.
    #[must_use]
    pub const fn after(self, count: u64) -> Self {
        Self(self.0.wrapping_add(count as u128))
    }

    /// The verifier after a failure.
    #[must_use]
    pub const fn next(self) -> Self {
        // Incarnations are 128 random bits, so a few steps on never meet another one.
        Self(self.0.wrapping_add(1))
    }
}

impl types::Encode for Verifier {
    fn encode(&self, out: &mut Vec<u8>) {
        self.0.encode(out);
    }
}

impl types::Decode for Verifier {
    fn decode(reader: &mut types::Reader<'_>) -> Result<Self, types::DecodeError> {
        Ok(Self(u128::decode(reader)?))
    }
}

/// Asks an NSD server for something.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Request {
    /// Read `count` sectors from `sector` on.
    Read {
        /// The NSD.
        nsd: NsdId,
        /// First sector.
        sector: u64,
        /// Sectors; at least 1.
        count: u32,
        /// View epoch of the sender.
        epoch: Epoch,
    },
    /// Write the payload to `count` sectors from `sector` on.
    Write {
        /// The NSD.
        nsd: NsdId,
        /// First sector.
        sector: u64,
        /// Sectors; at least 1.
        count: u32,
        /// View epoch of the sender.
        epoch: Epoch,
        /// Message authentication code of the grant; 0 until client-role nodes exist.
        grant_mac: u64,
        /// Durable when answered (force unit access): no flush is needed for it.
        fua: bool,
    },
    /// Make durable every write that was answered before this was sent.
    Flush {
        /// The NSD.
        nsd: NsdId,
        /// View epoch of the sender.
        epoch: Epoch,
    },
}
wire_enum!(Request {
    1 => Read { nsd, sector, count, epoch },
    2 => Write { nsd, sector, count, epoch, grant_mac, fua },
    3 => Flush { nsd, epoch },
});

impl Request {
    /// The NSD that it is for.
    pub const fn nsd(&self) -> NsdId {
        match self {
            Self::Read { nsd, .. } | Self::Write { nsd, .. } | Self::Flush { nsd, .. } => *nsd,
        }
    }

    /// View epoch of the sender.
    pub const fn epoch(&self) -> Epoch {
        match self {
            Self::Read { epoch, .. } | Self::Write { epoch, .. } | Self::Flush { epoch, .. } => {
                *epoch
            }
        }
    }

    /// First sector and sectors of a read or write.
    pub const fn range(&self) -> Option<(u64, u32)> {
        match self {
            Self::Read { sector, count, .. } | Self::Write { sector, count, .. } => {
                Some((*sector, *count))
            }
            Self::Flush { .. } => None,
        }
    }
}

/// Answers a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reply {
    /// The sectors are the payload.
    Read {
        /// The disk's verifier.
        verifier: Verifier,
    },
    /// The sectors are written; durable once a flush carries the same verifier (or with `fua`, now).
    Written {
        /// The disk's verifier when the write was submitted.
        verifier: Verifier,
    },
    /// Writes answered before, with this verifier, are durable.
    Flushed {
        /// The disk's verifier when the flush had ended.
        verifier: Verifier,
    },
    /// Nothing is known to have happened; see the error.
    Failed {
        /// Why.
        error: NsdError,
        /// The disk's verifier now.
        verifier: Verifier,
    },
}
wire_enum!(Reply {
    1 => Read { verifier },
    2 => Written { verifier },
    3 => Flushed { verifier },
    4 => Failed { error, verifier },
});

/// Why an NSD server did not do what was asked; the variants say what to do next.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum NsdError {
    /// This node does not serve it (any more): take another path, and get the current view.
    #[error("{nsd} is not served here")]
    NoSuchNsd {
        /// The NSD.
        nsd: NsdId,
    },
    /// The sectors are not on the NSD: a bug of the asking side, or a damaged extent.
    #[error("sectors {sector}+{count} of {nsd}, which has {sector_count}")]
    OutOfRange {
        /// The NSD.
        nsd: NsdId,
        /// First sector asked for.
        sector: u64,
        /// Sectors asked for.
        count: u32,
        /// Sectors that it has.
        sector_count: u64,
    },
    /// The payload is not as long as the message says: a bug of the asking side.
    #[error("payload of {found} bytes for {count} sectors")]
    BadPayload {
        /// Sectors named.
        count: u32,
        /// Bytes that came.
        found: u64,
    },
    /// This life was declared dead: stop writing, ask the cluster manager.
    #[error("this life of the node is fenced in epoch {epoch}")]
    Fenced {
        /// The server's epoch.
        epoch: Epoch,
    },
    /// The server's queue is full: nothing was done; ask again after a short wait.
    #[error("the server is busy")]
    Busy,
    /// The disk failed: for a write the sectors hold anything now; take another path or NSD.
    #[error("the disk failed: {errno:?}")]
    Io {
        /// Its error.
        errno: Errno,
    },
}
wire_enum!(NsdError {
    1 => NoSuchNsd { nsd },
    2 => OutOfRange { nsd, sector, count, sector_count },
    3 => BadPayload { count, found },
    4 => Fenced { epoch },
    5 => Busy {},
    6 => Io { errno },
});

#[cfg(test)]
mod tests {
    use super::*;
    use types::{Decode, Encode};

    #[test]
    fn messages_come_back_and_cuts_are_refused() {
        let nsd = NsdId(3);
        let (sector, count, epoch) = (7, 9, Epoch(2));
        let requests = [
            Request::Read {
                nsd,
                sector,
                count,
                epoch,
            },
            Request::Write {
                nsd,
                sector,
                count,
                epoch,
                grant_mac: 5,
                fua: true,
            },
            Request::Flush { nsd, epoch },
        ];
        for request in requests {
            let bytes = request.to_bytes();
            assert_eq!(Request::from_bytes(&bytes, "request"), Ok(request));
            for cut in 0..bytes.len() {
                assert!(Request::from_bytes(&bytes[..cut], "request").is_err());
            }
        }
        let errors = [
            NsdError::NoSuchNsd { nsd },
            NsdError::OutOfRange {
                nsd,
                sector,
                count,
                sector_count: 1,
            },
            NsdError::BadPayload { count, found: 1 },
            NsdError::Fenced { epoch },
            NsdError::Busy,
            NsdError::Io { errno: Errno::EIO },
        ];
        let verifier = Verifier(u128::MAX - 1);
        let failed = |error| Reply::Failed { error, verifier };
        let done = [
            Reply::Read { verifier },
            Reply::Written { verifier },
            Reply::Flushed { verifier },
        ];
        for reply in errors.map(failed).into_iter().chain(done) {
            let bytes = reply.to_bytes();
            assert_eq!(Reply::from_bytes(&bytes, "reply"), Ok(reply));
            for cut in 0..bytes.len() {
                assert!(Reply::from_bytes(&bytes[..cut], "reply").is_err());
            }
        }
    }
}

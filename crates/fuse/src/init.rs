//! INIT: what the kernel offers, what we take, and what we insist on.

use crate::abi::{self, InitIn, InitInCompat, InitOut, init_flag as f};
use types::limits;
use zerocopy::{FromBytes, IntoBytes};

/// What the kernel offers in INIT.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Offer {
    /// Protocol, major.
    pub major: u32,
    /// Protocol, minor.
    pub minor: u32,
    /// Bytes the kernel would read ahead.
    pub max_readahead: u32,
    /// Features (flags2 as the upper half).
    pub flags: u64,
}

/// What was agreed for the connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Agreement {
    /// The kernel's minor version.
    pub minor: u32,
    /// Features in use.
    pub flags: u64,
    /// The answer to send.
    pub answer: InitOut,
}

/// Why a connection cannot be served.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum InitError {
    /// The kernel is too old or too new; no connection with it will work.
    #[error("the kernel speaks FUSE protocol {major}.{minor}; 7.36 or newer 7.x is needed")]
    Version {
        /// Its major version.
        major: u32,
        /// Its minor version.
        minor: u32,
    },
    /// A feature without which coherence or POSIX rules would break is not offered.
    #[error("the kernel does not offer the FUSE features {missing:#x}")]
    Missing {
        /// Which flags.
        missing: u64,
    },
    /// fuse-over-io_uring was asked for and is not offered: use the other transport, or set
    /// /sys/module/fuse/parameters/enable_uring.
    #[error("the kernel does not offer fuse-over-io_uring")]
    NoRing,
}

/// Without these the rules of the client do not hold. The umask is taken away by the owner (DONT_MASK), which alone knows whether
/// the directory has a default access control list instead.
const NEEDED: u64 = f::ASYNC_READ
    | f::BIG_WRITES
    | f::ATOMIC_O_TRUNC
    | f::PARALLEL_DIROPS
    | f::HANDLE_KILLPRIV_V2
    | f::MAX_PAGES
    | f::EXPORT_SUPPORT
    | f::AUTO_INVAL_DATA
    | f::DO_READDIRPLUS
    | f::POSIX_ACL
    | f::DONT_MASK
    | f::POSIX_LOCKS
    | f::FLOCK_LOCKS
    | f::SETXATTR_EXT
    | f::INIT_EXT;

/// Taken where offered. Deliberately absent: WRITEBACK_CACHE (size and times would be the kernel's for
/// ever, KERNEL-FACTS 2.1), NO_OPENDIR_SUPPORT, HAS_INODE_DAX.
///
/// ASYNC_DIO: the kernel ends asynchronous reads on the thread that answers them, where it takes the locks of the pages that were read into. If
/// these are mapped pages of ours, a notification may hold them while it waits for a write-back. So these answers are written by threads that
/// nobody waits for, which only /dev/fuse has: not taken over the ring (docs/decisions/0019).
const WANTED: u64 =
    NEEDED | f::ASYNC_DIO | f::DIRECT_IO_ALLOW_MMAP | f::HAS_EXPIRE_ONLY | f::ABORT_ERROR;

/// Background requests (readahead, write-back of mapped pages) in flight before the kernel keeps more to itself: as many as can
/// be said. A notification may wait for a write-back that the kernel keeps behind reads that wait for the same revoke.
pub const MAX_BACKGROUND: u16 = u16::MAX;
/// Pages of one request over /dev/fuse: those of `limits::MAX_WRITE` bytes that begin within a page, as memory from
/// malloc does. With one page less each such write and direct read takes two requests, the second one of some bytes.
/// The kernel agrees to so many where fs.fuse.max_pages_limit allows it.
pub const MAX_PAGES: u16 = 257;
/// Pages of one request over the ring, whose entries have room for so many.
const RING_MAX_PAGES: u16 = 256;

const _: () = assert!(limits::MAX_WRITE == 4096 * (MAX_PAGES - 1) as usize);
const _: () = assert!(limits::MAX_WRITE == 4096 * RING_MAX_PAGES as usize);

/// What is left to who mounts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Wishes {
    /// fuse-over-io_uring.
    pub over_ring: bool,
    /// Bytes that the kernel reads ahead of a sequential reader.
    pub readahead_size: u32,
    /// Asynchronous direct reads and writes go on beside one another: not over the ring.
    pub async_direct_io: bool,
}

impl Offer {
    /// From the bytes of an INIT request; `None` if they are too few.
    pub fn decode(fixed: &[u8], rest: &[u8]) -> Option<Self> {
        let (head, _) = InitInCompat::read_from_prefix(fixed).ok()?;
        let extended = head.minor >= abi::KERNEL_MINOR_VERSION_MIN && head.major == 7;
        let mut offer = Self {
            major: head.major,
            minor: head.minor,
            max_readahead: head.max_readahead,
            flags: u64::from(head.flags),
        };
        if extended && offer.flags & f::INIT_EXT != 0 {
            let mut whole = InitIn::default();
            let bytes = whole.as_mut_bytes();
            let tail_size = size_of::<InitIn>() - size_of::<InitInCompat>();
            bytes[size_of::<InitInCompat>()..].copy_from_slice(rest.get(..tail_size)?);
            offer.flags |= u64::from(whole.flags2) << 32;
        }
        Some(offer)
    }

    /// What to answer.
    ///
    /// # Errors
    /// The connection cannot be served; answer INIT with EPROTO and give up.
    pub fn agree(&self, wishes: Wishes) -> Result<Agreement, InitError> {
        let Wishes {
            over_ring,
            readahead_size,
            async_direct_io,
        } = wishes;
        let (major, minor) = (self.major, self.minor);
        if major != abi::KERNEL_VERSION || minor < abi::KERNEL_MINOR_VERSION_MIN {
            return Err(InitError::Version { major, minor });
        }
        let missing = NEEDED & !self.flags;
        if missing != 0 {
            return Err(InitError::Missing { missing });
        }
        let mut flags = self.flags & WANTED;
        if over_ring {
            if self.flags & f::OVER_IO_URING == 0 {
                return Err(InitError::NoRing);
            }
            flags |= f::OVER_IO_URING;
        }
        if over_ring || !async_direct_io {
            flags &= !f::ASYNC_DIO;
        }
        let max_write = u32::try_from(limits::MAX_WRITE).expect("1 MiB fits 32 bits");
        let answer = InitOut {
            major: abi::KERNEL_VERSION,
            minor: abi::KERNEL_MINOR_VERSION.min(minor),
            max_readahead: readahead_size.max(self.max_readahead),
            flags: low_half(flags),
            max_background: MAX_BACKGROUND,
            congestion_threshold: MAX_BACKGROUND / 4 * 3,
            max_write,
            time_gran: 1,
            max_pages: if over_ring { RING_MAX_PAGES } else { MAX_PAGES },
            map_alignment: 0,
            flags2: low_half(flags >> 32),
            max_stack_depth: 0,
            request_timeout: 0,
            unused: [0; 11],
        };
        Ok(Agreement {
            minor,
            flags,
            answer,
        })
    }
}

impl Agreement {
    /// The whole answer to the INIT request `unique`.
    pub fn encode(&self, unique: u64) -> Vec<u8> {
        let size = size_of::<abi::OutHeader>() + size_of::<InitOut>();
        let header = abi::OutHeader {
            len: u32::try_from(size).expect("80"),
            error: 0,
            unique,
        };
        [header.as_bytes(), self.answer.as_bytes()].concat()
    }
}

#[allow(clippy::cast_possible_truncation, reason = "masked to 32 bits")]
const fn low_half(flags: u64) -> u32 {
    (flags & 0xffff_ffff) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offer(flags: u64) -> Offer {
        Offer {
            major: 7,
            minor: 45,
            max_readahead: 131_072,
            flags,
        }
    }

    fn wishes(over_ring: bool) -> Wishes {
        Wishes {
            over_ring,
            readahead_size: 1 << 20,
            async_direct_io: true,
        }
    }

    #[test]
    fn asynchronous_reads_can_be_declined() {
        let mut wishes = wishes(false);
        wishes.async_direct_io = false;
        let agreed = offer(u64::MAX).agree(wishes).unwrap();
        assert_eq!(agreed.flags, WANTED & !f::ASYNC_DIO);
    }

    #[test]
    fn takes_what_is_wanted_and_no_more() {
        let agreed = offer(u64::MAX).agree(wishes(false)).unwrap();
        assert_eq!(agreed.flags, WANTED);
        assert_eq!(agreed.flags & f::WRITEBACK_CACHE, 0);
        let locks = f::POSIX_LOCKS | f::FLOCK_LOCKS;
        assert_eq!(agreed.flags & locks, locks);
        assert_eq!(agreed.flags & f::OVER_IO_URING, 0);
        assert_eq!(agreed.answer.max_readahead, 1 << 20);
        assert_ne!(agreed.flags & f::ASYNC_DIO, 0);
        assert_eq!(agreed.answer.max_background, MAX_BACKGROUND);
        assert_eq!(agreed.answer.max_pages, MAX_PAGES);
        let flags = u64::from(agreed.answer.flags) | u64::from(agreed.answer.flags2) << 32;
        assert_eq!(flags, agreed.flags);
    }

    #[test]
    fn each_needed_feature_is_insisted_on() {
        for bit in 0..64 {
            let outcome = offer(!(1 << bit)).agree(wishes(false));
            let needed = NEEDED & 1 << bit != 0;
            assert_eq!(outcome.is_err(), needed, "bit {bit}");
        }
    }

    #[test]
    fn the_ring_is_taken_only_where_offered() {
        let agreed = offer(u64::MAX).agree(wishes(true)).unwrap();
        // Its answers have no threads of their own.
        assert_eq!(agreed.flags & f::ASYNC_DIO, 0);
        assert_ne!(agreed.flags & f::OVER_IO_URING, 0);
        assert_eq!(agreed.answer.max_pages, RING_MAX_PAGES);
        let without = offer(!f::OVER_IO_URING);
        assert_eq!(without.agree(wishes(true)), Err(InitError::NoRing));
    }

    #[test]
    fn other_versions_are_refused() {
        for (major, minor) in [(6, 45), (8, 0), (7, 35), (0, 0)] {
            let mut bad = offer(u64::MAX);
            (bad.major, bad.minor) = (major, minor);
            let refused = Err(InitError::Version { major, minor });
            assert_eq!(bad.agree(wishes(false)), refused);
        }
    }
}

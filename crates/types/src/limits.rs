//! Every bound of the system in one place: sizes, counts and waits.

/// Bytes of the longest name.
pub const NAME_SIZE_MAX: usize = 255;
/// Bytes of the longest symlink target (PATH_MAX less the NUL).
pub const SYMLINK_SIZE_MAX: usize = 4095;
/// Bytes that may travel as metadata in one message part.
pub const SMALL_BYTES_MAX: usize = 64 << 10;
/// Bytes of names and values of an inode's extended attributes together: an inode is in its owner's memory whole, or not at all.
pub const XATTRS_SIZE_MAX: usize = 1 << 20;
/// Bytes of a file that lies in its inode record.
pub const INLINE_SIZE_MAX: u64 = 2 << 10;
/// Free sectors that an owner holds back so that promised ranges can be written over: several of the largest writes.
pub const OVERWRITE_MARGIN: u64 = 1024;
/// Sectors that are asked for at once to write back what is promised (all, or none come): others want some too.
pub const PROMISED_ASK_MAX: u64 = 256;
/// Bytes that a synchronous write, fsync or revoke sends inside the Commit instead of to sectors.
pub const SYNC_INLINE_SIZE_MAX: u64 = 64 << 10;
/// Largest file offset + 1.
pub const FILE_SIZE_MAX: u64 = i64::MAX as u64;
/// Bytes of data in one FUSE request.
pub const MAX_WRITE: usize = 1 << 20;
/// Bytes of a file from which on it is read past the kernel's page cache, unless in small pieces
/// (docs/decisions/0008).
pub const DIRECT_SIZE_MIN: u64 = 128 << 20;
/// Most NSDs that the layout of one file names.
pub const LAYOUT_NSD_COUNT_MAX: usize = 4;
/// Default stripe unit in bytes.
pub const BLOCK_SIZE_DEFAULT: u32 = 1 << 20;
/// Shards of a new file system.
pub const SHARD_COUNT: u16 = 64;
/// Sectors that are promised to a file at most (fallocate): 16 GiB. They are written in runs of at most 64 KiB, and the map of a file that is in use
/// is in its owner's memory.
pub const PROMISED_SECTORS_MAX: u64 = (16 << 30) / 4096;
/// Most names that one inode can have.
pub const LINK_COUNT_MAX: u32 = 65_000;
/// Directories above one another of which one owner tells in one answer.
pub const ANCESTOR_COUNT_MAX: usize = 1024;
/// Directories above one another: a chain that is longer is a loop.
pub const DEPTH_MAX: usize = 65_536;
/// Moves of directories that wait for the rename token at one owner.
pub const MOVES_WAITING_MAX: usize = 1024;
/// Request slots of one (node, incarnation) in one shard.
pub const SLOTS_PER_SHARD: u16 = 128;
/// Longest time for which the kernel may answer from its own caches, in milliseconds.
pub const KERNEL_TIMEOUT_MS_MAX: u64 = 1000;
/// The same of a node that is the only one of its cluster, in milliseconds: nobody else changes anything, whether its daemon runs or not, and
/// what changes through it the kernel knows or is told. Long enough for a million files to be listed after they were made.
pub const KERNEL_TIMEOUT_ALONE_MS: u64 = 600_000;
/// The kernel has linked what an answer shows (a name, the entries of a listing) so long after the answer was written, in milliseconds:
/// it does that on the thread of who asked.
pub const KERNEL_LINK_MS: u64 = 100;
/// Length of a node's lease, in milliseconds.
pub const LEASE_MS: u64 = 10_000;
/// A node renews its lease this often, in milliseconds.
pub const LEASE_RENEWAL_MS: u64 = 2_000;
/// Locked ranges, and waits for some, of all inodes of a shard, and four times what a node may have on one of them: more are refused with
/// ENOLCK. The last quarter is for lock owners with few, and for unlocking.
pub const LOCKS_PER_SHARD_MAX: usize = 32 << 10;
/// Locked ranges and waits in a shard with which a lock owner has few.
pub const LOCKS_OF_OWNER_FEW: usize = 64;
/// Waits for locks of one lock owner's chain that are looked at for a deadlock.
pub const LOCK_CHAIN_MAX: usize = 1024;
/// Locks in the way of these waits that are looked at for a deadlock.
pub const LOCK_LOOKS_MAX: usize = 64 << 10;
/// Requests for locks that wait in one slice of a node, whether for others' locks or for the owner's answer: more are refused with ENOLCK.
pub const LOCK_REQUESTS_MAX: usize = 4096;
/// Those of them that wait for others' locks: what does not wait goes on beside them.
pub const LOCK_WAITS_MAX: usize = LOCK_REQUESTS_MAX / 4 * 3;
/// Those of one user that is not root.
pub const LOCK_REQUESTS_OF_USER_MAX: usize = LOCK_REQUESTS_MAX / 4;
/// Most copies of a block.
pub const REPLICA_COUNT_MAX: usize = 3;
/// Sectors of a run whose checksums lie inline in the extent record; longer runs have checksum sectors.
pub const INLINE_CHECKSUM_COUNT_MAX: u32 = 16;
/// Largest frame payload on the wire, in bytes.
pub const WIRE_PAYLOAD_SIZE_MAX: usize = (16 << 20) + (64 << 10);
/// Largest metadata part of a wire frame, in bytes.
pub const WIRE_META_SIZE_MAX: usize = 4 << 20;

/// Inodes that a node remembers while nobody uses them, unless it is told otherwise. Each takes 1 to 2 KiB; of those that were listed or
/// looked at and no more, which take a third of that, three times as many.
pub const INODE_COUNT_MAX: usize = 65_536;
/// Inodes that the kernel remembers and a node does not: beyond that the kernel is asked to forget some. Each takes some 50 bytes.
pub const COLD_INODE_COUNT_MAX: usize = 1 << 20;

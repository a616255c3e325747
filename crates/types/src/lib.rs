//! The nouns of GUPFS: ids, ranges, attributes, extents, layouts, limits and the codec they share.
//!
//! Nothing here acts. Every type is a plain value that any core may hold, send or store.
#![forbid(unsafe_code)]

pub mod attr;
pub mod checksum;
pub mod codec;
pub mod errno;
pub mod extent;
pub mod frame;
pub mod id;
pub mod layout;
pub mod limits;
pub mod lock;
pub mod promise;
pub mod range;
pub mod time;
pub mod token;
pub mod view;
pub mod view_file;
pub mod wire;

pub use attr::{Attr, FileKind, Name, SetAttr, Standing};
pub use checksum::{Crc32c, crc32c};
pub use codec::{Decode, DecodeError, Encode, Reader, SmallBytes};
pub use errno::Errno;
pub use extent::{Checksums, Extent, Grant, Location, Piece, Run, SECTOR_SIZE};
pub use frame::{FrameRef, Span};
pub use id::{
    ClusterId, Epoch, FsId, GrantId, Incarnation, InodeId, Lsn, NodeId, NodeLife, NsdId, RequestId,
    ShardId, TokenNumber,
};
pub use layout::Layout;
pub use lock::{Lock, LockKind, LockMode, LockOwner};
pub use promise::Promised;
pub use range::{ByteRange, Pattern, RangeSet};
pub use time::{Duration, Instant, Timestamp};
pub use token::{DirectoryMode, Holding, InodeMode, RangeMode, ReleaseStamp, TokenKind, Want};
pub use view::{ClusterView, NodeView, NsdView};

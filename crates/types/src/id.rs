//! Newtypes of every id, so that none can be taken for another.

use crate::wire_struct;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($inner:ty), $prefix:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        pub struct $name(pub $inner);
        impl crate::codec::Encode for $name {
            fn encode(&self, out: &mut Vec<u8>) {
                self.0.encode(out);
            }
        }
        impl crate::codec::Decode for $name {
            fn decode(
                reader: &mut crate::codec::Reader<'_>,
            ) -> Result<Self, crate::codec::DecodeError> {
                Ok(Self(crate::codec::Decode::decode(reader)?))
            }
        }
        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(f, concat!($prefix, "{:x}"), self.0)
            }
        }
        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(f, concat!($prefix, "{:x}"), self.0)
            }
        }
    };
}

id!(
    /// A node of the cluster; 0 is no node, the first is 1.
    NodeId(u16), "n"
);
id!(
    /// An NSD of the file system: its place in the NSD map, which never changes.
    NsdId(u16), "nsd"
);
id!(
    /// A shard of the metadata.
    ShardId(u16), "s"
);
id!(
    /// 128 random bits drawn when the cluster is created.
    ClusterId(u128), "c"
);
id!(
    /// 128 random bits drawn when the file system is created.
    FsId(u128), "fs"
);
id!(
    /// One life of a daemon: 128 random bits, never a counter.
    Incarnation(u128), "i"
);
id!(
    /// A grant of free sectors: 128 random bits.
    GrantId(u128), "g"
);
id!(
    /// Grows with each change of owner or membership.
    Epoch(u64), "e"
);
id!(
    /// A place in an owner's journal: grows by one with each record.
    Lsn(u64), "l"
);
id!(
    /// The number of a token of one holder on one inode, under the shard's epoch. 0 is no token.
    TokenNumber(u64), "t"
);
id!(
    /// A node's request, unique within its incarnation.
    RequestId(u64), "r"
);

/// An inode: the shard that holds it for ever, and its index there.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct InodeId(u64);

impl InodeId {
    /// The root directory: index 1 of shard 0.
    pub const ROOT: Self = Self(1);
    /// Bits of the index within its shard.
    pub const INDEX_BITS: u32 = 48;

    /// The inode with `index` (below 2^48) in `shard`.
    pub const fn new(shard: ShardId, index: u64) -> Self {
        assert!(index < 1 << Self::INDEX_BITS);
        Self(((shard.0 as u64) << Self::INDEX_BITS) | index)
    }

    /// The inode whose number the kernel and applications see.
    pub const fn from_raw(raw: u64) -> Self {
        Self(raw)
    }

    /// The number that the kernel and applications see.
    pub const fn raw(self) -> u64 {
        self.0
    }

    /// The shard that this inode lives in.
    #[allow(clippy::cast_possible_truncation, reason = "the upper 16 bits of 64")]
    pub const fn shard(self) -> ShardId {
        ShardId((self.0 >> Self::INDEX_BITS) as u16)
    }

    /// The index within the shard.
    pub const fn index(self) -> u64 {
        self.0 & ((1 << Self::INDEX_BITS) - 1)
    }
}

impl std::fmt::Debug for InodeId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:x}.{:x}", self.shard().0, self.index())
    }
}

impl std::fmt::Display for InodeId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:x}.{:x}", self.shard().0, self.index())
    }
}

impl crate::codec::Encode for InodeId {
    fn encode(&self, out: &mut Vec<u8>) {
        self.0.encode(out);
    }
}

impl crate::codec::Decode for InodeId {
    fn decode(reader: &mut crate::codec::Reader<'_>) -> Result<Self, crate::codec::DecodeError> {
        Ok(Self(crate::codec::Decode::decode(reader)?))
    }
}

/// A node in one of its lives.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct NodeLife {
    /// The node.
    pub node: NodeId,
    /// Its life.
    pub incarnation: Incarnation,
}
wire_struct!(NodeLife { node, incarnation });

//! The state of the cluster as every node sees it: published by the cluster manager, a plain value.

use crate::{ClusterId, Epoch, FsId, Incarnation, NodeId, NsdId, ShardId, wire_struct};

/// A node as the view shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeView {
    /// The node.
    pub id: NodeId,
    /// `address:port` of its daemon.
    pub address: String,
    /// Its present life; 0 when it is not a live member.
    pub incarnation: Incarnation,
}

/// An NSD as the view shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NsdView {
    /// The NSD.
    pub id: NsdId,
    /// Nodes that serve it, primary first. Empty: only nodes that see the disk reach it.
    pub servers: Vec<NodeId>,
    /// Sectors of the whole disk.
    pub sector_count: u64,
    /// First sector that may be granted; label and journal areas lie before it.
    pub data_begin: u64,
    /// Failure group.
    pub failure_group: u16,
    /// The disk has a volatile cache: FLUSH is needed for durability.
    pub has_volatile_cache: bool,
}

/// What the cluster agrees on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterView {
    /// The cluster.
    pub cluster: ClusterId,
    /// The file system.
    pub fs: FsId,
    /// Grows with every change of this value.
    pub epoch: Epoch,
    /// The cluster manager.
    pub manager: NodeId,
    /// Members, by id.
    pub nodes: Vec<NodeView>,
    /// NSDs, by id.
    pub nsds: Vec<NsdView>,
    /// Owner of each shard; the index is the shard.
    pub owners: Vec<NodeId>,
    /// Stripe unit in bytes.
    pub block_size: u32,
}

impl ClusterView {
    /// Owner of `shard`.
    pub fn owner(&self, shard: ShardId) -> Option<NodeId> {
        self.owners.get(usize::from(shard.0)).copied()
    }

    /// The node with `id`.
    pub fn node(&self, id: NodeId) -> Option<&NodeView> {
        self.nodes.iter().find(|n| n.id == id)
    }

    /// The NSD with `id`.
    pub fn nsd(&self, id: NsdId) -> Option<&NsdView> {
        self.nsds.iter().find(|n| n.id == id)
    }
}

impl crate::codec::Encode for String {
    fn encode(&self, out: &mut Vec<u8>) {
        crate::SmallBytes::new(self.as_bytes()).encode(out);
    }
}

impl crate::codec::Decode for String {
    fn decode(reader: &mut crate::Reader<'_>) -> Result<Self, crate::DecodeError> {
        let bytes = crate::SmallBytes::decode(reader)?;
        let what = crate::DecodeError::Unknown {
            what: "text",
            value: bytes.len() as u64,
        };
        Self::from_utf8(bytes.to_vec()).map_err(|_| what)
    }
}

wire_struct!(NodeView {
    id,
    address,
    incarnation
});
wire_struct!(NsdView {
    id,
    servers,
    sector_count,
    data_begin,
    failure_group,
    has_volatile_cache
});
wire_struct!(ClusterView {
    cluster,
    fs,
    epoch,
    manager,
    nodes,
    nsds,
    owners,
    block_size
});

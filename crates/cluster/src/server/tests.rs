//! The manager alone; together with members it is tested in `client/tests.rs`.

use super::*;
use types::{ClusterId, FsId, NodeView};

pub(crate) fn view(nodes: &[u16]) -> ClusterView {
    let node = |id: &u16| NodeView {
        id: NodeId(*id),
        address: String::new(),
        incarnation: Incarnation(0),
    };
    ClusterView {
        cluster: ClusterId(1),
        fs: FsId(2),
        epoch: Epoch(1),
        manager: NodeId(1),
        nodes: nodes.iter().map(node).collect(),
        nsds: Vec::new(),
        owners: vec![NodeId(1), NodeId(2)],
        block_size: 1 << 20,
    }
}

pub(crate) fn life(node: u16, incarnation: u128) -> NodeLife {
    NodeLife {
        node: NodeId(node),
        incarnation: Incarnation(incarnation),
    }
}

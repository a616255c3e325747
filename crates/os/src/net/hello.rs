//! The handshake: each side says who it is before anything else; the accepting side may refuse.
//!
//! The connecting side sends `Hello`, the accepting side answers `Hello` or `Refuse`. A later version
//! may append fields; what this one does not know is skipped. Features are used when both sides have
//! them; a side that cannot do without one says so in `required`.

use types::codec::{Decode, DecodeError, Encode, Reader};
use types::wire::{Flags, HEADER_SIZE, Header, KIND_HELLO, KIND_REFUSE, incarnation_low};
use types::{ClusterId, Epoch, Incarnation, NodeId, RequestId, crc32c, wire_enum, wire_struct};

use super::{Config, DATA_LANE_COUNT_MAX};

/// `Held` of the grace period lists open inodes too, and `Closed` names the release that it follows: who does neither
/// would have files freed that it has open, or kept that nobody has.
const OPENS_TOLD: u64 = 1;
/// `Reclaim`: who does not know it ends the link when the tokens of a shard run short.
const GIVES_BACK: u64 = 2;
/// `Op::Punch`: who does not know it ends the link.
const PUNCHES: u64 = 4;
/// `Op::CreateNameless`, `Op::LinkNameless` and the latter's step: who does not know them ends the link.
const MAKES_NAMELESS: u64 = 8;
/// The umask in `meta::Caller`, access control lists and the step that gives a new inode some.
const HAS_LISTS: u64 = 16;
/// `Ask::Lock`, `LockReady`, and locks in `Held`: who does not know them ends the link, or would give locks away that are held.
const LOCKS: u64 = 32;
/// `Op::Accessed`: who does not know it never answers, and what is asked of it waits for good.
const TAKES_READS: u64 = 64;
/// Set-id bits are taken by somebody of a group (`SetAttr`, `Commit`): who does not know it ends the link.
const TAKES_SET_IDS: u64 = 128;
/// `Op::Allocate`, `Op::GetPromised`, and questions about sectors that say how many are for promised ranges: who does not
/// know them ends the link.
const PROMISES: u64 = 256;
/// `Ask::Acquire` says whether it is for what is free alone: who does not know that ends the link.
const ASKS_POLITELY: u64 = 512;
/// `Free` tells what is held back beside promises: who does not know it ends the link.
const TELLS_MARGINS: u64 = 1024;
/// `Stopping` and `WrittenBack`: who does not know them ends the link.
const SAYS_FAREWELL: u64 = 2048;
/// Renames that leave whiteouts, and who asks (`Standing`) where something is the owner's to do: who does not know them ends the link.
const TELLS_WHO_ASKS: u64 = 4096;
/// Features that this version has.
pub(super) const FEATURES: u64 = OPENS_TOLD
    | GIVES_BACK
    | PUNCHES
    | MAKES_NAMELESS
    | HAS_LISTS
    | LOCKS
    | TAKES_READS
    | TAKES_SET_IDS
    | PROMISES
    | ASKS_POLITELY
    | TELLS_MARGINS
    | SAYS_FAREWELL
    | TELLS_WHO_ASKS;
/// Those that it cannot do without: none is optional yet.
pub(super) const REQUIRED: u64 = FEATURES;
/// Most bytes of the metadata part before the handshake is over.
pub(super) const HELLO_SIZE_MAX: u32 = 4096;

/// Who speaks, to whom, and on which lane of which attempt.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Hello {
    pub(super) node: NodeId,
    pub(super) target: NodeId,
    pub(super) cluster: ClusterId,
    pub(super) incarnation: Incarnation,
    pub(super) features: u64,
    pub(super) required: u64,
    /// Attempts of the connecting node to make a link, counted; the lanes of one link have one number.
    pub(super) attempt: u64,
    pub(super) lane: u16,
    pub(super) lane_count: u16,
}
wire_struct!(Hello {
    node,
    target,
    cluster,
    incarnation,
    features,
    required,
    attempt,
    lane,
    lane_count
});

/// Why a connection is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub(super) enum Refusal {
    /// The address belongs to no node of the cluster.
    #[error("the address is not that of a node of this cluster")]
    Address,
    /// The node id is unknown, or its address is another one.
    #[error("node {node} is not known at this address")]
    Node { node: NodeId },
    /// The connection was meant for another node.
    #[error("this is node {node}, not the one that was called")]
    Target { node: NodeId },
    /// Another cluster.
    #[error("this node is of another cluster, {cluster}")]
    Cluster { cluster: ClusterId },
    /// The first bytes are not a handshake that this version understands.
    #[error("the handshake is not understood; this node speaks version {version}")]
    Version { version: u8 },
    /// A required feature is unknown.
    #[error("features {features:#x} are required and not known to this node")]
    Features { features: u64 },
    /// A later attempt of the same node has come already, or the lane does not exist.
    #[error("the connection belongs to no link that is being made")]
    Stale,
    /// Too many connections that have not shaken hands.
    #[error("too many handshakes at once")]
    Busy,
}
wire_enum!(Refusal {
    1 => Address {},
    2 => Node { node },
    3 => Target { node },
    4 => Cluster { cluster },
    5 => Version { version },
    6 => Features { features },
    7 => Stale {},
    8 => Busy {}
});

/// What came instead of a handshake, or in it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Answer {
    Hello(Hello),
    Refuse(Refusal),
}

/// Reads the first frame of a connection; its checksum has been verified.
pub(super) fn decode(kind: u16, meta: &[u8]) -> Result<Answer, DecodeError> {
    // What a later version appends is skipped.
    let mut reader = Reader::new(meta);
    match kind {
        KIND_HELLO => Ok(Answer::Hello(Hello::decode(&mut reader)?)),
        KIND_REFUSE => Ok(Answer::Refuse(Refusal::decode(&mut reader)?)),
        kind => Err(DecodeError::Unknown {
            what: "handshake",
            value: kind.into(),
        }),
    }
}

/// Header and metadata part of a handshake frame.
pub(super) fn encode(config: &Config, answer: &Answer) -> ([u8; HEADER_SIZE], Vec<u8>) {
    let (kind, meta) = match answer {
        Answer::Hello(hello) => (KIND_HELLO, hello.to_bytes()),
        Answer::Refuse(refusal) => (KIND_REFUSE, refusal.to_bytes()),
    };
    let header = Header {
        kind,
        flags: Flags::PRIORITY,
        request: RequestId(0),
        cluster: config.cluster,
        epoch: Epoch(0),
        incarnation: incarnation_low(config.incarnation),
        meta_length: u32::try_from(meta.len()).expect("some hundred bytes"),
        data_length: 0,
        data_crc: crc32c(&meta),
    };
    (header.encode(), meta)
}

/// Checks what both sides check of a Hello, once the other node is known.
pub(super) fn check(config: &Config, hello: &Hello) -> Result<(), Refusal> {
    if hello.cluster != config.cluster {
        return Err(Refusal::Cluster {
            cluster: config.cluster,
        });
    }
    if hello.target != config.node {
        return Err(Refusal::Target { node: config.node });
    }
    if hello.required & !FEATURES != 0 {
        return Err(Refusal::Features {
            features: hello.required & !FEATURES,
        });
    }
    let is_lane = hello.lane < hello.lane_count
        && hello.lane_count >= 2
        && usize::from(hello.lane_count) <= DATA_LANE_COUNT_MAX + 1;
    if !is_lane {
        return Err(Refusal::Stale);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> Config {
        Config {
            node: NodeId(2),
            cluster: ClusterId(7),
            incarnation: Incarnation(9),
            listen: None,
            peers: Vec::new(),
            data_lane_count: 1,
        }
    }

    fn hello() -> Hello {
        Hello {
            node: NodeId(1),
            target: NodeId(2),
            cluster: ClusterId(7),
            incarnation: Incarnation(5),
            features: 0,
            required: 0,
            attempt: 3,
            lane: 1,
            lane_count: 2,
        }
    }

    #[test]
    fn every_answer_comes_back_also_with_later_fields() {
        let node = NodeId(4);
        for answer in [
            Answer::Hello(hello()),
            Answer::Refuse(Refusal::Address),
            Answer::Refuse(Refusal::Node { node }),
            Answer::Refuse(Refusal::Target { node }),
            Answer::Refuse(Refusal::Cluster {
                cluster: ClusterId(1),
            }),
            Answer::Refuse(Refusal::Version { version: 1 }),
            Answer::Refuse(Refusal::Features { features: 8 }),
            Answer::Refuse(Refusal::Stale),
            Answer::Refuse(Refusal::Busy),
        ] {
            let (header, mut meta) = encode(&config(), &answer);
            let header = Header::decode(&header).expect("our own");
            assert!(header.meta_length <= HELLO_SIZE_MAX);
            meta.push(77);
            assert_eq!(decode(header.kind, &meta), Ok(answer));
            assert!(decode(header.kind + 16, &meta).is_err());
        }
        assert!(decode(KIND_HELLO, &[1; 20]).is_err());
    }

    #[test]
    fn each_thing_wrong_is_refused_by_its_name() {
        let check = |change: fn(&mut Hello)| {
            let mut changed = hello();
            change(&mut changed);
            check(&config(), &changed)
        };
        assert_eq!(check(|_| {}), Ok(()));
        let cluster = ClusterId(7);
        assert_eq!(
            check(|h| h.cluster.0 = 8),
            Err(Refusal::Cluster { cluster })
        );
        assert_eq!(
            check(|h| h.target.0 = 3),
            Err(Refusal::Target { node: NodeId(2) })
        );
        assert_eq!(check(|h| h.features = 5), Ok(()));
        assert_eq!(check(|h| h.required = FEATURES), Ok(()));
        // The last one that there will be.
        const UNKNOWN: u64 = 1 << 63;
        assert_eq!(
            check(|h| h.required = FEATURES | UNKNOWN),
            Err(Refusal::Features { features: UNKNOWN })
        );
        for (lane, lane_count) in [(2, 2), (0, 1), (0, 0), (0, 17), (u16::MAX, u16::MAX)] {
            let mut changed = hello();
            (changed.lane, changed.lane_count) = (lane, lane_count);
            assert_eq!(super::check(&config(), &changed), Err(Refusal::Stale));
        }
    }
}

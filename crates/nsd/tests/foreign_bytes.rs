//! Bytes from anywhere: no decoder of this crate panics, whatever it is given.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

use nsd::label::{Label, LabelError, Spec, Usage, decode_views, encode_view};
use nsd::{Reply, Request};
use stdx::Prng;
use types::{ClusterId, ClusterView, Decode, Epoch, FsId, NodeId, NsdId, Timestamp};

fn head() -> Vec<u8> {
    let spec = Spec {
        cluster: ClusterId(1),
        fs: FsId(2),
        nsd: NsdId(3),
        name: "a".to_owned(),
        failure_group: 1,
        usage: Usage::Both,
        pool: "system".to_owned(),
        block_size: 1 << 20,
        hash_key: 4,
        created: Timestamp::default(),
    };
    let mut head = Label::layout(&spec, 1 << 20, &[NodeId(1)])
        .unwrap()
        .encode_head();
    let view = ClusterView {
        cluster: ClusterId(1),
        fs: FsId(2),
        epoch: Epoch(1),
        manager: NodeId(1),
        nodes: Vec::new(),
        nsds: Vec::new(),
        owners: vec![NodeId(1); 64],
        block_size: 1 << 20,
    };
    let slot = encode_view(&view).unwrap();
    head[8192..8192 + slot.len()].copy_from_slice(&slot);
    head
}

#[test]
fn random_bytes_are_refused_without_a_panic() {
    let mut prng = Prng::new(1);
    let mut bytes = vec![0; 9000];
    for _ in 0..2000 {
        let size = usize::try_from(prng.below(9000)).unwrap();
        prng.fill(&mut bytes[..size]);
        assert!(Label::decode(&bytes[..size]).is_err());
        assert_eq!(decode_views(&bytes[..size]).newest, None);
        let size = size.min(64);
        // Short messages may happen to be right; they only must not panic.
        let _ = Request::from_bytes(&bytes[..size], "request");
        let _ = Reply::from_bytes(&bytes[..size], "reply");
    }
}

#[test]
fn a_head_damaged_in_many_places_gives_the_label_or_an_error_and_never_another_label() {
    let good = head();
    let label = Label::decode(&good).unwrap().label;
    let view = decode_views(&good).newest;
    let mut prng = Prng::new(2);
    for _ in 0..3000 {
        let mut bad = good[..8192 + 8192].to_vec();
        for _ in 0..prng.between(1, 4) {
            let sector = prng.below(3) * 4096;
            let at = usize::try_from(sector + prng.below(400)).unwrap();
            match prng.below(3) {
                0 => prng.fill(&mut bad[at..at + 8]),
                1 => bad[at..at + 300].fill(0),
                _ => bad[at] ^= 1 << prng.below(8),
            }
        }
        match Label::decode(&bad) {
            Ok(decoded) => assert_eq!(decoded.label, label),
            Err(LabelError::Damaged { .. } | LabelError::Foreign { .. }) => {}
            Err(other) => panic!("{other}"),
        }
        bad.resize(good.len(), 0);
        let found = decode_views(&bad).newest;
        assert!(found.is_none() || found == view);
    }
}

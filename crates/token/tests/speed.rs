//! What the hot calls cost: printed by `cargo test --release -p token --test speed -- --nocapture`; bounds
//! are so wide that only a change of the order of growth breaks them.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "tests may panic; here time is what is measured"
)]

use std::hint::black_box;

use token::server::{Manager, Options};
use token::{Acquire, Granted, Holder, Outbox};
use types::id::NodeLife;
use types::{
    ByteRange, Epoch, Holding, Incarnation, InodeId, InodeMode, Instant, NodeId, Pattern,
    RangeMode, TokenKind, TokenNumber, Want,
};

const COUNT: u64 = 100_000;

fn per_call(what: &str, call: impl FnOnce()) -> u128 {
    let begin = std::time::Instant::now();
    call();
    let nanos = begin.elapsed().as_nanos() / u128::from(COUNT);
    eprintln!("{what}: {nanos} ns");
    nanos
}

#[test]
fn hot_calls_stay_cheap() {
    let holder = NodeLife {
        node: NodeId(1),
        incarnation: Incarnation(1),
    };
    let range = Pattern::plain(ByteRange::at(0, 4096));
    let request = |index: u64| Acquire {
        holder,
        ticket: index,
        ino: InodeId::from_raw(index + 1),
        seen: TokenNumber(0),
        wants: vec![
            Want::Inode {
                mode: InodeMode::SharedWrite,
            },
            Want::Range {
                mode: RangeMode::Write,
                required: range,
                desired: range,
            },
        ],
        transient: false,
    };
    let mut manager = Manager::new(Epoch(1), Options::default());
    let requests: Vec<Acquire> = (0..COUNT).map(request).collect();
    let again = requests.clone();
    let mut out = Outbox::with_capacity(2 * requests.len());
    let acquire = per_call("acquire, nobody else", || {
        for request in requests {
            manager.acquire(Instant(0), request, &mut out).unwrap();
        }
    });
    let covered = per_call("is_covered", || {
        for request in &again {
            assert!(manager.is_covered(holder, request.ino, &request.wants));
        }
    });
    let mut client = Holder::new();
    let patterns = (0..100)
        .map(|i| Pattern::plain(ByteRange::at(i * 10_000, 4096)))
        .collect();
    let granted = Granted {
        ticket: 1,
        ino: InodeId::from_raw(1),
        number: TokenNumber(1),
        holdings: vec![Holding {
            ino: InodeId::from_raw(1),
            number: TokenNumber(1),
            kind: TokenKind::Range {
                mode: RangeMode::Write,
                patterns,
            },
        }],
        contended: false,
    };
    client.on_granted(&granted, true);
    let covers = per_call("covers_range among 100 pieces", || {
        for index in 0..COUNT {
            let byte = ByteRange::at(index % 100 * 10_000 + 7, 100);
            assert!(black_box(&client).covers_range(RangeMode::Read, &byte));
        }
    });
    assert!(acquire < 100_000 && covered < 20_000 && covers < 20_000);
}

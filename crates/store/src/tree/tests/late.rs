//! What comes late belongs to somebody else: pages of other trees, and what an earlier apply had asked for.

use std::collections::BTreeMap;

use types::{Epoch, FsId, Location, Lsn, NsdId, ShardId};

use crate::tree::{Apply, ApplyConfig, Arrival, Change, Copies, Pages, Root, Step, TreeId, Waiter};

const TREE: TreeId = TreeId {
    fs: FsId(1),
    shard: ShardId(2),
};

type Disk = BTreeMap<Location, Box<[u8]>>;

fn config(waiter: u64) -> ApplyConfig {
    ApplyConfig {
        tree: TREE,
        epoch: Epoch(1),
        lsn: Lsn(1),
        waiter: Waiter(waiter),
        ahead_max: 4,
        write_count_max: 4,
        entry_count_max: 4,
    }
}

/// One more key at the end of a tree; `arrivals` may spoil what came.
fn put(
    root: &Root,
    key: &[u8],
    (waiter, disk): (u64, &mut Disk),
    arrivals: &mut dyn FnMut(Arrival, &mut Apply, &mut Pages),
) -> Root {
    let mut pages = Pages::new(1 << 20, 4);
    let mut apply = Apply::new(config(waiter), root);
    apply.push(key, Change::Put(b"value"));
    apply.end();
    loop {
        match apply.poll(&mut pages).expect("a good disk") {
            Step::Write(write) => {
                disk.insert(write.at, write.page.bytes().into());
                apply.on_written(write.id, true);
            }
            Step::NeedPlaces => {
                let at = Location {
                    nsd: NsdId(1),
                    sector: disk.len() as u64,
                };
                apply.give(Copies::new(&[at]));
            }
            Step::Waiting => {
                let fetch = pages.next_fetch().expect("it waits for a page");
                let bytes = disk[&fetch.at].clone();
                let arrival = pages.on_fetched(fetch.id, Ok(bytes));
                arrivals(arrival.expect("one copy"), &mut apply, &mut pages);
            }
            Step::Done(applied) => return applied.root,
            _ => {}
        }
    }
}

#[test]
fn a_page_for_another_waiter_or_of_another_tree_is_not_taken() {
    let mut disk = Disk::new();
    let mut root = Root::empty(TREE.shard, 1);
    let mut spoilt = 0;
    for number in 0..40u64 {
        let mut taken = |arrival: Arrival, apply: &mut Apply, pages: &mut Pages| {
            // The same number and a good page, but not this apply's question.
            let other_tree = Arrival {
                tree: TreeId {
                    shard: ShardId(3),
                    ..TREE
                },
                ..arrival.clone()
            };
            let other_waiter = Arrival {
                waiters: vec![Waiter(number + 1000)],
                ..arrival.clone()
            };
            let bad = Arrival {
                page: Err(crate::tree::TreeError::Unreachable {
                    shard: TREE.shard,
                    level: 0,
                    number: arrival.reference.number,
                    at: arrival.reference.copies[0],
                }),
                ..other_waiter.clone()
            };
            for late in [other_tree, other_waiter, bad] {
                apply.on_page(&late);
                let step = apply.poll(pages).expect("no error of somebody else's");
                assert!(matches!(step, Step::Waiting), "{step:?}");
                spoilt += 1;
            }
            apply.on_page(&arrival);
        };
        let key = number.to_be_bytes();
        root = put(&root, &key, (number, &mut disk), &mut taken);
    }
    assert_eq!(root.entries, 40);
    assert!(spoilt > 100, "{spoilt}");
}

//! Pages of the metadata tree, roots and references, and the records that a shard is loaded from.
//!
//! A page comes with the checksum that its parent would have. It is a good page of keys and values of the input, of which some
//! bytes are then others; or bytes of the input behind a good header.
#![no_main]

use std::collections::BTreeMap;

use gupfs_fuzz::Input;
use libfuzzer_sys::fuzz_target;
use meta::records::Loader;
use meta::{HashKey, Shard};
use store::tree::page::{HEADER_SIZE, Page, Seal, page_size, seal};
use store::tree::{Copies, PageRef, Root, TreeId};
use types::{Epoch, FsId, Location, Lsn, NsdId, SECTOR_SIZE, ShardId, crc32c};

const TREE: TreeId = TreeId {
    fs: FsId(1),
    shard: ShardId(1),
};
const NUMBER: u64 = 9;

fuzz_target!(|bytes: &[u8]| {
    let mut input = Input::new(bytes);
    match input.byte() % 4 {
        0 => references(input.rest()),
        1 => load(pairs(&mut input).iter().map(|(k, v)| (&k[..], &v[..]))),
        2 => {
            let entries = pairs(&mut input);
            if entries.is_empty() {
                return;
            }
            let raw = entries.iter().map(|(k, v)| k.len() + v.len()).sum();
            if page_size(entries.len(), 0, raw) > SECTOR_SIZE as usize {
                return;
            }
            let level = input.byte() % 3;
            let (mut page, _) = seal(&like(level), entries.iter().map(|(k, v)| (&k[..], &v[..])));
            let count = u32::try_from(entries.len()).expect("few");
            // Without an edit it must be good, if it is a leaf.
            let edits = input.byte() % 4;
            for _ in 0..edits {
                let at = usize::from(input.short()) % page.len();
                page[at] = input.byte();
            }
            let is_good = look(page, level, count);
            assert!(is_good || edits > 0 || level > 0, "a good page is refused");
        }
        _ => {
            let (level, count) = (input.byte() % 8, u32::from(input.short()));
            let entry: (&[u8], &[u8]) = (b"k", b"v");
            let (mut page, _) = seal(&like(level), std::iter::once(entry));
            let at = store::tree::page::PAGE_HEADER[7].offset;
            page[at..at + 4].copy_from_slice(&count.to_le_bytes());
            let given = input.rest();
            let size = given.len().min(page.len() - HEADER_SIZE);
            page[HEADER_SIZE..][..size].copy_from_slice(&given[..size]);
            look(page, level, count);
        }
    }
});

fn like(level: u8) -> Seal {
    Seal {
        tree: TREE,
        sectors: 1,
        level,
        lsn: Lsn(1),
        epoch: Epoch(1),
        number: NUMBER,
    }
}

/// Keys, ascending, with their values.
fn pairs(input: &mut Input<'_>) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut entries = BTreeMap::new();
    while !input.is_over() && entries.len() < 64 {
        let (key, value) = (input.byte() % 40, input.byte());
        let key = input.take(key.into()).to_vec();
        entries.insert(key, input.take(value.into()).to_vec());
    }
    entries
}

fn references(bytes: &[u8]) {
    if let Ok(root) = Root::decode(bytes) {
        assert_eq!(Root::decode(&root.encode()).ok(), Some(root));
    }
    if let Ok(reference) = PageRef::decode(bytes) {
        assert_eq!(PageRef::decode(&reference.encode()), Ok(reference));
    }
}

fn load<'a>(entries: impl Iterator<Item = (&'a [u8], &'a [u8])>) {
    let mut shard = Shard::new(TREE.shard, HashKey::default());
    let mut loader = Loader::new(&mut shard, Vec::new())
        .expect("nothing beside it")
        .lenient();
    for (key, value) in entries {
        if loader.push(key, value).is_err() {
            return;
        }
    }
}

/// Whether the page can be read.
fn look(bytes: Vec<u8>, level: u8, count: u32) -> bool {
    let reference = PageRef {
        copies: Copies::new(&[Location {
            nsd: NsdId(0),
            sector: 64,
        }]),
        sectors: 1,
        level,
        crc: crc32c(&bytes),
        count,
        number: NUMBER,
    };
    let Ok(page) = Page::verify(TREE, &reference, bytes.into_boxed_slice()) else {
        return false;
    };
    let mut key = Vec::new();
    for index in 0..page.count() {
        key.clear();
        page.key_into(index, &mut key);
        assert_eq!(page.search(&key), Ok(index), "keys are found");
        if page.level() > 0 {
            assert_eq!(page.child_index(&key), index);
            assert_eq!(page.child(index).level + 1, page.level());
        }
    }
    if page.level() == 0 {
        let keys: Vec<Vec<u8>> = (0..page.count()).map(|index| page.key(index)).collect();
        load((0..page.count()).map(|index| (&keys[index][..], page.value(index))));
    }
    true
}

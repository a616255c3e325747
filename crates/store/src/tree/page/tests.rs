//! Tests of pages, references and roots: layout, search against the obvious, damage, foreign bytes.
#![allow(clippy::cast_possible_truncation, reason = "test arithmetic is small")]

use std::collections::BTreeMap;

use stdx::Prng;

use super::*;
use crate::tree::testing::{TREE, fuzz};

fn whole(fields: &[Field], size: usize) {
    let mut at = 0;
    for field in fields {
        assert_eq!(field.offset, at, "{}", field.name);
        at += field.size;
    }
    assert_eq!(at, size);
}

#[test]
fn layouts_have_no_holes_and_the_document_shows_them() {
    whole(&PAGE_HEADER, HEADER_SIZE);
    let mut reference = PAGE_REFERENCE;
    reference.sort_by_key(|f| f.offset);
    whole(&reference, REFERENCE_SIZE);
    whole(&ROOT, ROOT_SIZE - REFERENCE_SIZE);
    let document = include_str!("../../../../../docs/disk-format.md");
    for table in [&PAGE_HEADER[..], &PAGE_REFERENCE[..], &ROOT[..]] {
        let rows: String = table
            .iter()
            .map(|f| format!("| {} | {} | {} |\n", f.offset, f.size, f.name))
            .collect();
        assert!(document.contains(&rows), "disk-format.md lacks:\n{rows}");
    }
}

fn seal_of(level: u8, sectors: u8, number: u64) -> Seal {
    Seal {
        tree: TREE,
        sectors,
        level,
        lsn: Lsn(77),
        epoch: Epoch(3),
        number,
    }
}

/// The bytes of a page with these entries, and its reference.
fn page_of(level: u8, sectors: u8, entries: &BTreeMap<Vec<u8>, Vec<u8>>) -> (Box<[u8]>, PageRef) {
    let list = entries.iter().map(|(k, v)| (k.as_slice(), v.as_slice()));
    let (bytes, crc) = seal(&seal_of(level, sectors, 5), list);
    let reference = PageRef {
        copies: Copies::new(&[Location::default()]),
        sectors,
        level,
        crc,
        count: entries.len() as u32,
        number: 5,
    };
    (bytes.into(), reference)
}

/// Random entries that fit a page of `sectors`, with prefixes of every kind.
fn entries(prng: &mut Prng, sectors: u8) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut entries = BTreeMap::new();
    let mut shared = vec![0; prng.below(3) as usize * 100];
    prng.fill(&mut shared);
    let wanted = prng.between(1, 60);
    let mut raw = 0;
    while (entries.len() as u64) < wanted {
        let mut key = shared.clone();
        let begin = key.len();
        let long = if prng.chance(1, 30) {
            512 - begin as u64
        } else {
            6
        };
        key.resize(begin + prng.below(long) as usize, 0);
        let letters = prng.between(2, 256);
        for byte in &mut key[begin..] {
            *byte = prng.below(letters) as u8;
        }
        let long = if prng.chance(1, 20) { 300 } else { 20 };
        let mut value = vec![0; prng.below(long) as usize];
        prng.fill(&mut value);
        raw += key.len() + value.len();
        if page_size(entries.len() + 1, 0, raw) > usize::from(sectors) * SECTOR {
            break;
        }
        entries.insert(key, value);
        if entries.len() == 1 && prng.chance(1, 10) {
            break;
        }
        if letters == 2 && long == 20 && begin == 0 && entries.len() > 20 {
            break;
        }
    }
    entries
}

#[test]
fn a_page_answers_as_a_sorted_list_does() {
    let mut prng = Prng::new(1);
    for _ in 0..2000 {
        let entries = entries(&mut prng, 4);
        let (bytes, reference) = page_of(0, 4, &entries);
        let page = Page::verify(TREE, &reference, bytes).unwrap();
        let list: Vec<_> = entries.iter().collect();
        assert_eq!(page.count(), list.len());
        for (index, (key, value)) in list.iter().enumerate() {
            assert_eq!(page.key(index), **key);
            assert_eq!(page.value(index), *value);
        }
        let mut probes: Vec<Vec<u8>> = entries.keys().cloned().collect();
        probes.extend([vec![], vec![0], vec![255; 512]]);
        for key in entries.keys() {
            let mut probe = key.clone();
            probe.push(0);
            probes.push(probe.clone());
            probe.pop();
            if probe.pop().is_some() {
                probes.push(probe);
            }
        }
        for probe in probes {
            let expected = list.binary_search_by(|(key, _)| (*key).cmp(&probe));
            assert_eq!(page.search(&probe), expected);
            for (index, (key, _)) in list.iter().enumerate() {
                assert_eq!(page.compare(index, &probe), (*key).cmp(&probe));
            }
        }
    }
}

#[test]
fn a_page_has_room_for_four_of_the_largest_entries() {
    for sectors in [1, 2, 4, 8, 16] {
        let mut entries = BTreeMap::new();
        for first in 0..ENTRY_COUNT_MIN {
            let mut key = vec![0; KEY_SIZE_MAX];
            key[0] = first as u8;
            entries.insert(key, vec![7; value_size_max(sectors)]);
        }
        let (bytes, reference) = page_of(0, sectors, &entries);
        Page::verify(TREE, &reference, bytes).unwrap();
    }
}

#[test]
fn references_and_roots_come_back_and_every_change_of_a_root_shows() {
    let at = |nsd, sector| Location {
        nsd: NsdId(nsd),
        sector,
    };
    for places in [
        vec![at(1, 2)],
        vec![at(1, 2), at(3, 1 << 40)],
        vec![at(0, 0), at(9, 7), at(4, 4)],
    ] {
        let page = PageRef {
            copies: Copies::new(&places),
            sectors: 4,
            level: 2,
            crc: 99,
            count: 400,
            number: 1234,
        };
        assert_eq!(PageRef::decode(&page.encode()), Ok(page));
        let root = Root {
            shard: ShardId(9),
            epoch: Epoch(4),
            lsn: Lsn(1 << 50),
            entries: 5000,
            pages: 40,
            next_number: 1235,
            sectors: 4,
            page: Some(page),
        };
        let bytes = root.encode();
        assert_eq!(Root::decode(&bytes), Ok(root));
        assert_eq!(root.height(), 3);
        for bit in 0..bytes.len() * 8 {
            let mut bytes = bytes;
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert_ne!(Root::decode(&bytes), Ok(root), "bit {bit}");
        }
        assert!(Root::decode(&bytes[1..]).is_err());
        assert!(Root::decode(&[&bytes[..], &[0]].concat()).is_err());
    }
    let empty = Root::empty(ShardId(1), 4);
    assert_eq!(Root::decode(&empty.encode()), Ok(empty));
    assert!(Root::decode(&[0; ROOT_SIZE]).is_err());
}

#[test]
fn every_bit_flip_is_seen() {
    let mut prng = Prng::new(2);
    let (bytes, reference) = page_of(0, 1, &entries(&mut prng, 1));
    for bit in 0..bytes.len() * 8 {
        let mut bytes = bytes.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        assert!(Page::verify(TREE, &reference, bytes).is_err(), "bit {bit}");
    }
}

#[test]
fn what_lies_there_instead_is_named() {
    let mut prng = Prng::new(3);
    let (bytes, reference) = page_of(0, 1, &entries(&mut prng, 1));
    let verify = |reference: &PageRef, bytes| Page::verify(TREE, reference, bytes).unwrap_err();
    let zeros = vec![0; 4096].into();
    assert_eq!(verify(&reference, zeros), PageFault::Zeros);
    let short = PageFault::Size { size: 4000 };
    assert_eq!(verify(&reference, bytes[..4000].into()), short);
    let mut rotten = bytes.clone();
    rotten[2000] ^= 1;
    assert_eq!(verify(&reference, rotten), PageFault::Checksum);
    let noise = vec![9; 4096].into();
    assert_eq!(verify(&reference, noise), PageFault::Checksum);
    // The page of another number: an older one, or one that went astray.
    let other = PageRef {
        number: 6,
        crc: 1,
        ..reference
    };
    let lies_there = PageFault::Other {
        shard: TREE.shard,
        number: 5,
        lsn: 77,
    };
    assert_eq!(verify(&other, bytes.clone()), lies_there);
    // Even if the CRCs should be equal.
    let twin = PageRef {
        number: 6,
        ..reference
    };
    assert_eq!(verify(&twin, bytes.clone()), lies_there);
    let foreign = TreeId {
        shard: ShardId(99),
        ..TREE
    };
    let found = Page::verify(foreign, &reference, bytes).unwrap_err();
    assert_eq!(found, lies_there);
}

#[test]
fn foreign_bytes_never_panic() {
    assert!(fuzz(7, 30_000) > 0, "some damaged pages still verify");
}

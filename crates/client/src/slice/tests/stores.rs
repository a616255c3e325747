//! Stores that have ended, and what the driver hears of them.

use super::*;

fn open(has_volatile_nsd: bool) -> Story {
    let mut s = Story::new(PAGE);
    s.has_sectors = true;
    s.has_volatile_nsd = has_volatile_nsd;
    s.open(InodeMode::Exclusive, ByteRange::ALL);
    s
}

/// Begins a store of the file's page.
fn store(s: &mut Story) -> IoId {
    s.write_back(1);
    let effects = s.input(Input::WriteBack);
    let store = effects.iter().find_map(|effect| match effect {
        Effect::Store(io, ..) => Some(*io),
        _ => None,
    });
    store.unwrap_or_else(|| panic!("{effects:?}"))
}

fn forgotten(effects: &[Effect]) -> Option<&[IoId]> {
    effects.iter().find_map(|effect| match effect {
        Effect::ForgetStores(stores) => Some(&stores[..]),
        _ => None,
    })
}

/// The batch was dropped while it was on its way to a disk: no flush names that store, and the driver need not keep it.
#[test]
fn a_store_that_nobody_waits_for_is_forgotten() {
    for has_volatile_nsd in [true, false] {
        let mut s = open(has_volatile_nsd);
        let store = store(&mut s);
        s.slice.inode(INO).batches.clear();
        let effects = s.input(Input::Stored(store, Ok(Vec::new())));
        let stores = [store];
        let expected = has_volatile_nsd.then_some(&stores[..]);
        assert_eq!(forgotten(&effects), expected, "{effects:?}");
    }
}

/// One that is wanted is named by a flush.
#[test]
fn a_store_that_is_wanted_is_not_forgotten() {
    let mut s = open(true);
    let store = store(&mut s);
    let extent = types::Extent {
        file_sector: 0,
        length: 1,
        birth: 0,
        is_shared: false,
        locations: Vec::new(),
        checksums: types::extent::Checksums::Inline { crcs: vec![0] },
    };
    let effects = s.input(Input::Stored(store, Ok(vec![extent])));
    assert_eq!(forgotten(&effects), None);
    let is_flushed = |e: &Effect| matches!(e, Effect::Flush(_, stores) if stores[..] == [store]);
    assert!(effects.iter().any(is_flushed), "{effects:?}");
}

//! What is written back for another node that stops.

use super::*;
use crate::goals::{Goal, Purpose};

const SWEEP: u64 = 7;

/// On the node that owns the file.
fn written() -> Story {
    let mut s = Story::new(0);
    s.owner = NodeId(1);
    s.has_sectors = true;
    s.open(InodeMode::Exclusive, ByteRange::ALL);
    write_page(&mut s, 0, 4096);
    write_page(&mut s, 1, 4096);
    s
}

fn stores_of(effects: &[Effect]) -> Vec<IoId> {
    let store = |effect: &Effect| match effect {
        Effect::Store(io, ..) => Some(*io),
        _ => None,
    };
    effects.iter().filter_map(store).collect()
}

fn extent(file_sector: u64, length: u32) -> types::Extent {
    types::Extent {
        file_sector,
        length,
        birth: 0,
        is_shared: false,
        locations: Vec::new(),
        checksums: types::extent::Checksums::Inline {
            crcs: vec![0; length as usize],
        },
    }
}

fn sync_of(effects: &[Effect]) -> Option<CallId> {
    effects.iter().find_map(|effect| match effect {
        Effect::Call(call, _, Ask::Sync) => Some(*call),
        _ => None,
    })
}

fn is_swept(effects: &[Effect]) -> bool {
    let is_it = |effect: &Effect| matches!(effect, Effect::Swept(SWEEP));
    effects.iter().any(is_it)
}

fn synced(s: &mut Story, call: CallId, body: Body) -> Vec<Effect> {
    s.input(Input::Answer(call, Box::new(Answer::bare(body))))
}

/// The owner has taken a Commit of so many bytes.
fn commit(s: &mut Story, call: CallId, size: u64) -> Vec<Effect> {
    s.attr.change += 1;
    s.attr.size = s.attr.size.max(size);
    s.answer(call, meta::Reply::Attr(s.attr))
}

#[test]
fn a_sweep_ends_when_what_was_dirty_is_committed_and_durable() {
    let mut s = written();
    let effects = s.input(Input::Sweep(SWEEP));
    let first = stores_of(&effects);
    assert_eq!(
        first.len(),
        1,
        "to sectors, not into the Commit: {effects:?}"
    );
    // Written meanwhile: nobody waits for it.
    write_page(&mut s, 9, 4096);
    let effects = s.input(Input::Stored(first[0], Ok(vec![extent(0, 2)])));
    let (call, told) = commit_of(&effects).expect("all of it is stored");
    assert_eq!(told.extents.len(), 1);
    assert_eq!(told.size, Some(2 * PAGE), "no end ahead of its bytes");
    assert!(sync_of(&effects).is_none() && !is_swept(&effects));
    let effects = commit(&mut s, call, 2 * PAGE);
    let call = sync_of(&effects).expect("the journal of this node");
    assert!(!is_swept(&effects));
    assert!(s.slice.is_dirty(), "what was written meanwhile");
    assert!(is_swept(&synced(&mut s, call, Body::Synced)));
    assert!(s.slice.sweeps.is_empty());
    assert_eq!(s.slice.hasty_count, 0, "nothing is left to be moved later");
}

#[test]
fn where_nothing_is_dirty_the_journal_is_synced_all_the_same() {
    let mut s = Story::new(0);
    s.owner = NodeId(1);
    let effects = s.input(Input::Sweep(SWEEP));
    let call = sync_of(&effects).expect("names made here may be in it");
    assert!(!is_swept(&effects));
    // A journal that has failed keeps nobody from leaving.
    let refused = Body::Refused(Errno::EIO);
    assert!(is_swept(&synced(&mut s, call, refused)));
}

/// A store that is under way already, and a Commit.
#[test]
fn what_was_on_its_way_before_is_waited_for() {
    let mut s = written();
    let store = stores_of(&s.input(Input::WriteBack))[0];
    let effects = s.input(Input::Sweep(SWEEP));
    assert!(sync_of(&effects).is_none(), "it is being stored");
    let effects = s.input(Input::Stored(store, Ok(vec![extent(0, 2)])));
    let (call, _) = commit_of(&effects).expect("all of it is stored");
    // Another node stops as well.
    let effects = s.input(Input::Sweep(SWEEP + 1));
    assert!(sync_of(&effects).is_none(), "it is being committed");
    let effects = commit(&mut s, call, 2 * PAGE);
    assert!(sync_of(&effects).is_some(), "the first one's");
    // It cannot know that the Commit had the newest.
    let (call, _) = commit_of(&effects).expect("one more");
    let effects = commit(&mut s, call, 2 * PAGE);
    assert!(sync_of(&effects).is_some(), "the second one's");
}

/// Bytes that are lost are lost: who stops does not wait for them.
#[test]
fn a_sweep_ends_with_what_cannot_be_written() {
    let mut s = written();
    let store = stores_of(&s.input(Input::Sweep(SWEEP)))[0];
    let effects = s.input(Input::Stored(store, Ok(vec![extent(0, 2)])));
    let (call, _) = commit_of(&effects).expect("all of it is stored");
    let effects = s.answer(call, meta::Reply::Error(Errno::ESTALE));
    assert!(sync_of(&effects).is_some(), "{effects:?}");
}

/// What it has done is durable with others when they have answered.
#[test]
fn a_node_that_owns_nothing_syncs_nothing() {
    let mut s = Story::new(0);
    let effects = s.input(Input::Sweep(SWEEP));
    assert!(
        is_swept(&effects) && sync_of(&effects).is_none(),
        "{effects:?}"
    );
}

/// Its last name goes, and its owner has freed it: nobody will ever write it back.
#[test]
fn a_sweep_ends_with_a_file_that_is_gone() {
    let mut s = written();
    // As where its pages wait for sectors or for room.
    s.slice.sweeps.push((SWEEP, 1));
    let since = s.now;
    let inode = s.slice.inode(INO);
    let sequence = inode.pages.mark_goal();
    inode.goals.push(Goal {
        purpose: Purpose::Sweep(SWEEP),
        sequence,
        commit: 1,
        since,
    });
    (inode.open_count, inode.writer_count) = (0, 0);
    let attr = Attr { nlink: 0, ..s.attr };
    (inode.attr, inode.is_freed, inode.lookup_count) = (Some(attr), true, 1);
    let effects = s.ask(Operation::Forget { ino: INO, count: 1 });
    assert!(s.slice.inodes.is_empty());
    assert!(sync_of(&effects).is_some(), "{effects:?}");
}

/// What is left of it is for an owner or a server that is away, or is not.
#[test]
fn a_sweep_is_stuck_where_all_that_is_left_is_for_nodes_that_are_away() {
    let mut s = written();
    let is_stuck = |s: &Story, owner: bool, nsd: bool| {
        let is_it = s.slice.is_sweep_stuck(SWEEP, |_| owner, |_| nsd);
        assert!(!s.slice.is_sweep_stuck(SWEEP + 1, |_| true, |_| true));
        is_it
    };
    assert!(!is_stuck(&s, true, true), "it has not begun");
    let store = stores_of(&s.input(Input::Sweep(SWEEP)))[0];
    assert!(!is_stuck(&s, false, false));
    assert!(is_stuck(&s, true, false));
    assert!(is_stuck(&s, false, true), "it is on its way there");
    let effects = s.input(Input::Stored(store, Ok(vec![extent(0, 2)])));
    let (call, _) = commit_of(&effects).expect("all of it is stored");
    let effects = commit(&mut s, call, 2 * PAGE);
    assert!(!is_stuck(&s, true, true), "its own journal is its own");
    synced(
        &mut s,
        sync_of(&effects).expect("the journal"),
        Body::Synced,
    );
    assert!(!is_stuck(&s, true, true), "it has ended");
}

//! Parts of pages that this node alone may write to: the rest of the page is loaded, and then it goes to its sector.

use super::*;

/// Answers what is asked about the file's map, and ends loads with `result`; what else there was and came. And the pages that were loaded.
fn load(
    s: &mut Story,
    effects: Vec<Effect>,
    result: &Result<(), IoFailure>,
) -> (Vec<Effect>, Vec<u64>) {
    let (mut rest, mut loaded) = (Vec::new(), Vec::new());
    let mut due = VecDeque::from(effects);
    while let Some(effect) = due.pop_front() {
        match effect {
            Effect::Call(
                call,
                _,
                Ask::Op {
                    op: meta::Op::GetMap { .. },
                    ..
                },
            ) => {
                let pages = u32::try_from(s.attr.size.div_ceil(PAGE)).expect("small");
                due.extend(s.answer(call, map_of_one(pages, s.attr)));
            }
            Effect::Load(io, pieces) => {
                let extents = pieces.iter().map(|piece| &piece.extent);
                loaded.extend(extents.flat_map(|e| e.file_sector..e.file_sector_end()));
                due.extend(s.input(Input::Loaded(io, *result)));
            }
            other => rest.push(other),
        }
    }
    (rest, loaded)
}

/// A part of page 30, which the owner has refused once.
fn refused_once(s: &mut Story) -> Vec<Effect> {
    write_page(s, 30, 100);
    let effects = fsync(s);
    let (call, commit) = commit_of(&effects).expect("fsync commits");
    assert!(!commit.pieces.is_empty());
    refuse(s, call)
}

fn tick(s: &mut Story) -> Vec<Effect> {
    s.now = s.now + Duration::from_millis(600);
    s.input(Input::Tick)
}

/// It keeps the sector that its write was promised, and nobody who waits hears of anything, whether it is open still or not.
#[test]
fn a_part_is_read_and_goes_to_its_sector() {
    for is_open in [true, false] {
        let mut s = begin(Some(1));
        let effects = refused_once(&mut s);
        assert_eq!(s.spare.get().in_hand, 0, "nobody else may have it");
        if !is_open {
            s.slice.inode(INO).open_count = 0;
        }
        let (effects, loaded) = load(&mut s, effects, &Ok(()));
        assert_eq!(loaded, [30]);
        assert_eq!(commit_of(&effects), None);
        let effects = tick(&mut s);
        let (effects, _) = store(&mut s, effects);
        let (call, commit) = commit_of(&effects).expect("it is stored");
        assert_eq!((sectors_of(&commit), commit.pieces.len()), (vec![30], 0));
        let effects = accept(&mut s, call);
        assert!(is_sync(&effects), "{effects:?}");
        assert_eq!(s.slice.losses().pages, 0);
        assert_eq!(s.slice.inode(INO).reserved, SetAside::default());
        assert!(!s.slice.inode(INO).waits_for_room());
        let (_, loaded) = load(&mut s, effects, &Ok(()));
        assert!(loaded.is_empty(), "once");
    }
}

/// What is on a disk that cannot be read makes no page whole: it is told again for as long as others are, and then its sector is free.
#[test]
fn a_part_whose_page_cannot_be_read_is_told_again() {
    let mut s = begin(Some(1));
    let mut effects = refused_once(&mut s);
    let begin = s.now;
    let (mut tries, mut load_count) = (1, 0);
    while error_of(&effects).is_none() {
        let (left, loaded) = load(&mut s, effects, &Err(IoFailure::Unreachable));
        load_count += loaded.len();
        effects = left;
        if let Some((call, commit)) = commit_of(&effects) {
            assert_eq!(commit.extents, []);
            effects = match commit.pieces.is_empty() {
                true => accept(&mut s, call),
                false => {
                    tries += 1;
                    refuse(&mut s, call)
                }
            };
            continue;
        }
        assert!(s.now.since(begin) < Duration::from_secs(30), "it ends");
        effects = tick(&mut s);
    }
    assert_eq!(error_of(&effects), Some(Errno::ENOSPC));
    assert!((20..60).contains(&tries), "{tries}");
    assert_eq!(load_count, tries - 1, "after each refusal but the last");
    assert_eq!(s.slice.losses().pages, 1);
    assert_eq!(s.slice.inode(INO).reserved, SetAside::default());
    assert_eq!(s.spare.get().in_hand, 1);
}

/// What was loaded beside a try that is on its way makes it whole for the next one.
#[test]
fn a_part_that_is_loaded_beside_its_commit_goes_to_its_sector() {
    let mut s = begin(Some(1));
    let waiting = refused_once(&mut s);
    let effects = tick(&mut s);
    let (call, commit) = commit_of(&effects).expect("once more");
    assert_eq!(commit.pieces.len(), 1);
    let (_, loaded) = load(&mut s, waiting, &Ok(()));
    assert_eq!(loaded, [30]);
    let effects = refuse(&mut s, call);
    assert_eq!(s.spare.get().in_hand, 0);
    let (effects, _) = store(&mut s, effects);
    let effects = match commit_of(&effects) {
        Some(_) => effects,
        None => {
            let effects = tick(&mut s);
            store(&mut s, effects).0
        }
    };
    let (call, commit) = commit_of(&effects).expect("it is stored");
    assert_eq!((sectors_of(&commit), commit.pieces.len()), (vec![30], 0));
    assert!(is_sync(&accept(&mut s, call)));
    assert_eq!(s.slice.inode(INO).reserved, SetAside::default());
}

/// Another node takes the rest of its page: it can go as a piece alone then, and gives its sector up.
#[test]
fn a_part_whose_page_is_taken_gives_its_sector_up() {
    let mut s = begin(Some(1));
    refused_once(&mut s);
    assert_eq!(s.spare.get().in_hand, 0);
    let rest = ByteRange::new(30 * PAGE + 100, 31 * PAGE);
    s.revoke(
        9,
        vec![Want::Range {
            mode: RangeMode::Write,
            required: Pattern::plain(rest),
            desired: Pattern::plain(rest),
        }],
    );
    let effects = tick(&mut s);
    let (call, commit) = commit_of(&effects).expect("once more");
    assert_eq!(commit.pieces.len(), 1);
    refuse(&mut s, call);
    assert_eq!(s.spare.get().in_hand, 1);
    assert!(s.slice.inode(INO).has_given_up(30));
}

/// Of several parts those that this node may make whole keep their sectors, and the others theirs not.
#[test]
fn each_part_keeps_or_gives_up_its_own_sector() {
    let mut s = begin_beside_another(Some(2));
    write_page(&mut s, 10, 100);
    let effects = refused_once(&mut s);
    assert_eq!(s.spare.get().in_hand, 1);
    assert_eq!(s.slice.inode(INO).reserved.sectors(), 1);
    let given_up = [10, 30].map(|number| s.slice.inode(INO).has_given_up(number));
    assert_eq!(given_up, [false, true]);
    let (_, loaded) = load(&mut s, effects, &Ok(()));
    assert_eq!(loaded, [10]);
    let effects = tick(&mut s);
    let (effects, _) = store(&mut s, effects);
    let (call, commit) = commit_of(&effects).expect("one is stored");
    assert_eq!((sectors_of(&commit), commit.pieces.len()), (vec![10], 1));
    refuse(&mut s, call);
    assert_eq!(s.spare.get().in_hand, 1);
    assert_eq!(s.slice.losses().pages, 0);
}

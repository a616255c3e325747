//! What changes the content of files: truncate, Commit, Destage.

use super::*;

#[test]
fn truncate_starts_a_size_generation_and_frees_what_it_cuts() {
    let mut f = Fixture::new();
    let attr = f.create("a");
    let done = f.executed(&Op::Commit(commit(
        &attr,
        5 * 4096,
        vec![extent(0, 5, 100)],
    )));
    assert_eq!(done.used.len(), 1);
    let Reply::Attr(attr) = done.reply else {
        panic!();
    };
    assert_eq!(
        (attr.size, attr.sector_count, attr.change),
        (5 * 4096, 5, 2)
    );
    let size = |size| SetAttr {
        size: Some(size),
        ..SetAttr::default()
    };
    let done = f.executed(&Op::SetAttr {
        ino: attr.ino,
        set: size(4097),
        standing: None,
    });
    assert_eq!(
        done.freed
            .iter()
            .map(|r| (r.at.sector, r.count))
            .collect::<Vec<_>>(),
        [(102, 3)]
    );
    let cut = f.attr(attr.ino);
    assert_eq!(
        (cut.size, cut.sector_count, cut.size_generation),
        (4097, 2, 1)
    );
    // Made before the cut: nothing is applied, and the sender hears what the file is like now.
    let late = Op::Commit(commit(&attr, 9, vec![]));
    assert_eq!(f.run(&late), Reply::Resized(f.attr(attr.ino)));
    assert_eq!(f.set(attr.ino, size(1 << 40)).size, 1 << 40);
    f.is_error(
        &Op::SetAttr {
            ino: attr.ino,
            set: size(u64::MAX),
            standing: None,
        },
        Errno::EFBIG,
    );
    f.is_error(
        &Op::SetAttr {
            ino: ROOT,
            set: size(1),
            standing: None,
        },
        Errno::EISDIR,
    );
}

#[test]
fn commits_merge_sizes_and_need_tokens_and_generations() {
    let mut f = Fixture::new();
    let attr = f.create("a");
    let good = commit(&attr, 8192, vec![extent(0, 2, 100)]);
    let held = |writes| Held::Tokens {
        inode: Some(InodeMode::SharedWrite),
        writes,
    };
    let strided = [Pattern {
        offset: 0,
        length: 4096,
        stride: 4096,
        count: u64::MAX,
    }];
    let short = [Pattern {
        offset: 0,
        length: 8191,
        stride: 0,
        count: 1,
    }];
    let stale = |f: &mut Fixture, commit: &Commit, held: Held<'_>| {
        let outcome = f.outcome(&Op::Commit(commit.clone()), None, held);
        assert!(matches!(
            outcome,
            Outcome::Done(Executed {
                reply: Reply::Stale,
                ..
            })
        ));
    };
    stale(&mut f, &good, Held::Nothing);
    stale(&mut f, &good, held(&short));
    stale(
        &mut f,
        &good,
        Held::Tokens {
            inode: None,
            writes: &strided,
        },
    );
    stale(
        &mut f,
        &Commit {
            generation: 0,
            ..good.clone()
        },
        Held::All,
    );
    let gone = InodeId::new(ShardId(0), 999);
    stale(
        &mut f,
        &Commit {
            ino: gone,
            ..good.clone()
        },
        Held::All,
    );
    let outcome = f.outcome(&Op::Commit(good), None, held(&strided));
    assert!(matches!(
        outcome,
        Outcome::Done(Executed {
            reply: Reply::Attr(_),
            ..
        })
    ));
    let mut small_size = commit(&attr, 10, vec![]);
    small_size.modified = None;
    let before = f.attr(attr.ino);
    let Reply::Attr(after) = f.run(&Op::Commit(small_size)) else {
        panic!();
    };
    assert_eq!(
        (after.size, after.mtime, after.change),
        (8192, before.mtime, before.change + 1)
    );
    let beyond = commit(&attr, 0, vec![extent(2, 1, 200)]);
    f.is_error(&Op::Commit(beyond), Errno::EINVAL);
    let mut piece = commit(&attr, 0, vec![]);
    piece.pieces = vec![Piece {
        offset: 8190,
        bytes: small("abc"),
    }];
    f.is_error(&Op::Commit(piece), Errno::EINVAL);
    let root = f.attr(ROOT);
    f.is_error(&Op::Commit(commit(&root, 0, vec![])), Errno::EISDIR);
}

#[test]
fn destage_moves_the_pieces_that_are_the_same() {
    let mut f = Fixture::new();
    let attr = f.create("a");
    let mut write = commit(&attr, 70_000, vec![]);
    write.pieces = vec![Piece {
        offset: 0,
        bytes: vec![1; 70_000].into(),
    }];
    f.run(&Op::Commit(write));
    assert_eq!(f.shards[0].destage_behind(0, false), Some(attr.ino));
    let get = Op::GetMap {
        ino: attr.ino,
        begin: 0,
        end: u64::MAX,
        count_max: 100,
    };
    let Reply::Map {
        map_version,
        pieces,
        end,
        attr,
        ..
    } = f.run(&get)
    else {
        panic!();
    };
    assert_eq!((pieces.len(), end, attr.sector_count), (18, u64::MAX, 18));
    let destage = |map_version, sector| Op::Destage {
        ino: attr.ino,
        map_version,
        extents: vec![extent(0, 16, sector), extent(16, 2, sector + 16)],
    };
    assert_eq!(f.run(&destage(map_version + 9, 500)), Reply::Stale);
    // Written again meanwhile: this sector stays as it is, and its run the asker's.
    let mut write = commit(&attr, 70_000, vec![]);
    write.pieces = vec![Piece {
        offset: 3 * 4096,
        bytes: small("new"),
    }];
    let Reply::Attr(attr) = f.run(&Op::Commit(write)) else {
        panic!();
    };
    let done = f.executed(&destage(map_version, 500));
    let used: Vec<_> = done.used.iter().map(|r| (r.at.sector, r.count)).collect();
    assert_eq!(used, [(500, 3), (504, 12), (516, 2)]);
    assert_eq!(done.freed.len(), 0);
    assert_eq!(
        done.reply,
        Reply::Attr(attr),
        "nothing that stat shows has changed"
    );
    assert_eq!(f.run(&destage(map_version, 600)), Reply::Stale);
    assert_eq!(f.shards[0].piece_debt().bytes(), 4096);
    let done = f.executed(&destage(map_version + 2, 600));
    assert_eq!(done.used.len(), 1);
    assert_eq!(f.shards[0].piece_debt().bytes(), 0);
    assert_eq!(f.shards[0].destage_behind(0, false), None);
    assert_eq!(f.shards[0].may_destage(0).count(), 0);
}

/// So do those that there is time for: one that cannot be moved holds up no others.
#[test]
fn what_may_be_moved_goes_round_the_files() {
    let mut f = Fixture::new();
    let mut inos = Vec::new();
    for name in ["a", "b", "c"] {
        let attr = f.create(name);
        let mut write = commit(&attr, 40_000, vec![]);
        write.pieces = vec![Piece {
            offset: 0,
            bytes: vec![1; 40_000].into(),
        }];
        f.run(&Op::Commit(write));
        inos.push(attr.ino);
    }
    inos.sort_unstable();
    let shard = &f.shards[0];
    assert_eq!(shard.destage_behind(0, false), None);
    for at in 0..3 {
        let mut around: Vec<_> = shard.may_destage(inos[at].index()).collect();
        around.rotate_right(at + 1);
        assert_eq!(around, inos);
    }
    assert_eq!(shard.may_destage(u64::MAX).next(), Some(inos[0]));
}

/// Files take turns, those that are promised sectors before others where these have some.
#[test]
fn destage_goes_round_the_files() {
    let mut f = Fixture::new();
    let mut inos = Vec::new();
    for name in ["a", "b", "c", "d"] {
        let attr = f.create(name);
        let mut write = commit(&attr, 70_000, vec![]);
        write.pieces = vec![Piece {
            offset: 0,
            bytes: vec![1; 70_000].into(),
        }];
        f.run(&Op::Commit(write));
        inos.push(attr.ino);
    }
    inos.sort_unstable();
    let turns = |f: &Fixture, wants_promised| -> Vec<usize> {
        let mut last = inos[1].index();
        let next = |_| {
            let ino = f.shards[0].destage_behind(last, wants_promised);
            let ino = ino.expect("there are some");
            last = ino.index();
            inos.binary_search(&ino).expect("one of these")
        };
        (0..5).map(next).collect()
    };
    assert_eq!(turns(&f, false), [2, 3, 0, 1, 2]);
    assert_eq!(turns(&f, true), [2, 3, 0, 1, 2]);
    for index in [0, 3] {
        f.run(&Op::Allocate {
            ino: inos[index],
            begin: 0,
            end: 4096,
            keeps_size: true,
        });
    }
    assert_eq!(turns(&f, false), [2, 3, 0, 1, 2]);
    assert_eq!(turns(&f, true), [3, 0, 3, 0, 3]);
}

#[test]
fn promises_of_a_file_are_bounded() {
    let mut f = Fixture::new();
    let ino = f.create("a").ino;
    let most = types::limits::PROMISED_SECTORS_MAX * 4096;
    let allocate = |begin, end| Op::Allocate {
        ino,
        begin,
        end,
        keeps_size: true,
    };
    f.is_error(&allocate(0, most + 1), Errno::EOPNOTSUPP);
    f.executed(&allocate(0, most));
    f.executed(&allocate(4096, most));
    f.is_error(&allocate(most, most + 1), Errno::EOPNOTSUPP);
    f.is_error(&allocate(1 << 40, (1 << 40) + 1), Errno::EOPNOTSUPP);
}

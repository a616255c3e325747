//! What the journal refuses: an operation that was admitted always has room, however many runs it frees, and one that
//! nobody admitted and that found the journal full does not leave anybody waiting.
#![allow(clippy::unwrap_used, reason = "a test")]

use client::message::{Ask, Body};
use data::space::{Geometry, Levels, RegionId, Space};
use meta::{Envelope, HashKey, Op, Shard, Step, TransactionId, TransactionMessage};
use node::calls::question;
use node::log::replay_space;
use node::{DestageState, Locked, OwnerEffect, OwnerEnv, OwnerLog, OwnerSlice, Work};
use stdx::Prng;
use store::format::{Area, PartKey};
use store::journal::{Config, Journal, Part};
use store::testing::{Disk, recover};
use types::id::NodeLife;
use types::{
    ByteRange, Duration, Epoch, Errno, FsId, Incarnation, InodeId, InodeMode, Instant, Location,
    Lsn, NodeId, NsdId, Pattern, Piece, RangeMode, ReleaseStamp, Run, SetAttr, ShardId, SmallBytes,
    Timestamp, TokenNumber, Want,
};

#[path = "log/clearing.rs"]
mod clearing;
mod common;
#[path = "log/evacuation.rs"]
mod evacuation;
#[path = "log/trees.rs"]
mod trees;

const LIFE: NodeLife = NodeLife {
    node: NodeId(1),
    incarnation: Incarnation(7),
};
const NSD: NsdId = NsdId(2);
/// Four times as many runs as one record takes, and some.
const RUN_COUNT: u32 = (128 << 10) + 17;

const fn geometry() -> Geometry {
    Geometry {
        nsd: NSD,
        data_begin: 0,
        sector_count: 1 << 19,
        region_sectors: 1 << 19,
    }
}

const fn area(count: u64) -> Area {
    Area {
        nsd: NsdId(1),
        begin: 0,
        count,
    }
}

fn run(index: u32) -> Run {
    let at = Location {
        nsd: NSD,
        sector: u64::from(index) * 2,
    };
    Run { at, count: 1 }
}

const fn config(area: Area) -> Config {
    Config {
        fs: FsId(0),
        owner: LIFE.node,
        incarnation: LIFE.incarnation,
        area,
        flight_count_max: 1,
    }
}

fn formatted(area: Area) -> Disk {
    let mut disk = Disk::new();
    disk.format(config(area));
    disk
}

fn open(disk: &mut Disk, area: Area) -> OwnerLog {
    open_of(disk, area, geometry(), Levels { reserve: 0, low: 0 })
}

fn open_of(disk: &mut Disk, area: Area, geometry: Geometry, levels: Levels) -> OwnerLog {
    let mut space = Space::new(&[geometry], levels);
    let recovered = recover(
        disk,
        area,
        FsId::default(),
        LIFE.node,
        &mut |part| match part.key {
            PartKey::Space => replay_space(part.bytes, &mut space, &mut None),
            _ => Ok(()),
        },
    )
    .unwrap();
    space.on_durable(recovered.last_lsn);
    let journal = Journal::start(config(area), &recovered);
    let epoch = Epoch(recovered.next_sequence);
    let mut log = OwnerLog::new(journal, space, None, epoch, vec![NSD], Prng::new(1));
    let mut pieces = Vec::new();
    log.space_snapshot(64 << 10, &mut |bytes| pieces.push(bytes));
    for bytes in pieces {
        let (key, bytes) = (PartKey::Space, &bytes[..]);
        let part = Part { key, epoch, bytes };
        log.journal.append_snapshot(part).unwrap();
    }
    let part = Part {
        key: PartKey::Shard(ShardId(0)),
        epoch,
        bytes: &[],
    };
    log.journal.append_snapshot(part).unwrap();
    log.journal.end_snapshot();
    flush(&mut log, disk, usize::MAX);
    log
}

/// Writes up to `count` flushes.
fn flush(log: &mut OwnerLog, disk: &mut Disk, count: usize) {
    let mut written = 0;
    while written < count
        && let Some(flush) = log.journal.take_flush()
    {
        let id = disk.submit(flush.at, &flush.bytes);
        disk.complete_flushed(id);
        log.journal.on_flushed(flush.id, Ok(()));
        written += 1;
    }
    log.space.on_durable(log.journal.durable_lsn());
}

/// A file of many single sectors.
fn with_file(disk: &mut Disk, area: Area) -> (OwnerLog, Vec<Run>) {
    let mut log = open(disk, area);
    log.adopt_regions(&[RegionId { nsd: NSD, index: 0 }]);
    let mut mutations = Vec::new();
    let ask = data::space::Ask {
        life: LIFE,
        nsd: NSD,
        sectors: u64::from(RUN_COUNT) * 2,
        is_promised: false,
        is_leaving: false,
    };
    log.space.grant(ask, &mut || 1, &mut mutations).unwrap();
    log.append_space(mutations);
    let runs: Vec<Run> = (0..RUN_COUNT).map(run).collect();
    for some in runs.chunks(1024) {
        log.append(LIFE, &[], some, &[]);
        flush(&mut log, disk, usize::MAX);
    }
    assert_eq!(log.space.counts().used, u64::from(RUN_COUNT));
    (log, runs)
}

fn closed() -> Op {
    Op::Closed {
        ino: InodeId::ROOT,
        after: ReleaseStamp::LAST,
    }
}

#[test]
fn more_runs_than_a_record_takes_are_freed_at_once_or_not_at_all() {
    let area = area(16 << 10);
    let mut survived = [0, 0];
    for flush_count in 0..20 {
        let mut disk = formatted(area);
        let (mut log, runs) = with_file(&mut disk, area);
        assert_eq!(log.admit(LIFE, &closed(), runs.len()), Ok(()));
        let before = log.journal.last_lsn();
        let lsn = log.append(LIFE, &[], &[], &runs);
        assert!(lsn.0 > before.0 + 2, "{lsn:?} after {before:?}");
        log.space.check();
        assert_eq!(log.space.counts().pending, u64::from(RUN_COUNT));
        flush(&mut log, &mut disk, flush_count);
        let is_all = log.journal.durable_lsn() >= lsn;
        // Nothing is granted again before the operation's own record is durable.
        let freed = if is_all { u64::from(RUN_COUNT) } else { 0 };
        assert_eq!(log.space.counts().pending, u64::from(RUN_COUNT) - freed);
        drop(log);
        disk.crash(|_| false);
        let log = open(&mut disk, area);
        log.space.check();
        assert_eq!(log.space.counts().used, u64::from(RUN_COUNT) - freed);
        survived[usize::from(is_all)] += 1;
        if is_all {
            break;
        }
    }
    assert!(survived[0] >= 2 && survived[1] == 1, "{survived:?}");
}

#[test]
fn what_frees_more_than_the_journal_has_room_for_is_not_admitted() {
    let mut disk = formatted(area(1 << 10));
    let log = open(&mut disk, area(1 << 10));
    assert_eq!(log.admit(LIFE, &closed(), 10), Ok(()));
    assert_eq!(log.admit(LIFE, &closed(), 1 << 20), Err(Errno::ENOSPC));
    assert_eq!(log.admit(LIFE, &closed(), usize::MAX), Err(Errno::ENOSPC));
}

/// Checkpoints fail for want of space, as on a full file system: who cuts a file, or a hole, helps.
#[test]
fn what_gives_space_back_is_admitted_where_nothing_else_is() {
    let mut disk = formatted(area(16 << 10));
    let mut log = open(&mut disk, area(16 << 10));
    let ino = InodeId::ROOT;
    let set = |set: SetAttr| Op::SetAttr {
        ino,
        set,
        standing: None,
    };
    let cut = set(SetAttr {
        size: Some(0),
        ..SetAttr::default()
    });
    let mode = set(SetAttr {
        permissions: Some(0o600),
        ..SetAttr::default()
    });
    let punch = Op::Punch {
        ino,
        begin: 0,
        end: 4096,
        keeps_size: true,
    };
    let size = set(SetAttr {
        size: Some(4096),
        ..SetAttr::default()
    });
    for op in [&cut, &mode, &punch, &size] {
        assert_eq!(log.admit(LIFE, op, 0), Ok(()), "{op:?}");
    }
    log.note_starving(true);
    let half = log.journal.segment_size() / 2;
    log.journal.set_overlay_size(half);
    // A cut of what is empty gives nothing.
    for op in [&cut, &mode, &size, &punch] {
        assert_eq!(log.admit(LIFE, op, 0), Err(Errno::ENOSPC), "{op:?}");
    }
    for (op, freed) in [(&cut, 1), (&closed(), 0), (&size, 1), (&punch, 1)] {
        assert_eq!(log.admit(LIFE, op, freed), Ok(()), "{op:?}");
    }
}

#[test]
fn a_change_that_the_journal_refuses_gives_it_up() {
    let mut disk = formatted(area(4 << 10));
    let (mut log, runs) = with_file(&mut disk, area(4 << 10));
    // Nobody asked whether this fits, and after some more it does not.
    let mut lsn = Lsn(0);
    let mut left = &runs[..];
    while !log.journal.is_poisoned() {
        let (some, rest) = left.split_at(left.len().min(20_000));
        left = rest;
        lsn = match some.is_empty() {
            true => log.append_space(vec![
                data::space::SpaceMutation::NodeLost { life: LIFE };
                9999
            ]),
            false => log.append(LIFE, &[], &[], some),
        };
    }
    assert!(lsn > log.journal.last_lsn());
    log.space.on_durable(log.journal.last_lsn());
    log.space.check();
    assert_eq!(log.admit(LIFE, &closed(), 0), Err(Errno::EIO));
    assert!(log.journal.take_flush().is_none());
}

const SHARD: ShardId = ShardId(0);

/// Runs `work` and what it hands back at once.
fn run_work(
    slice: &mut OwnerSlice,
    log: &mut OwnerLog,
    now: Instant,
    work: Work,
) -> Vec<OwnerEffect> {
    let env = OwnerEnv {
        now,
        timestamp: Timestamp::default(),
        me: common::life(1),
        owners: &[LIFE.node],
        random: 0,
    };
    let mut out = Vec::new();
    let mut locked = Locked::new(std::iter::once(slice));
    locked.run(&env, Some(log), work, &mut out).unwrap();
    out
}

/// A file that node 1 may write, and another one whose pieces wait to be moved to sectors; a Commit to the first.
fn with_debt(disk: &mut Disk) -> (OwnerLog, OwnerSlice, Ask) {
    let mut log = open(disk, area(16 << 10));
    let ino = InodeId::new(SHARD, 100);
    let mut shard = Shard::new(SHARD, HashKey(7));
    shard.apply(&common::file(ino, 1));
    shard.apply(&common::file(InodeId::new(SHARD, 101), 1));
    let piece = |offset: u64, length: usize| Piece {
        offset,
        bytes: SmallBytes::new(&vec![1; length]),
    };
    shard.apply(&meta::Mutation::MapPut {
        index: 101,
        extents: Vec::new(),
        pieces: (0..300).map(|n| piece(n * 4096, 4096)).collect(),
    });
    let tokens = token::Manager::new(Epoch(1), token::Options::default());
    let mut slice = OwnerSlice::new(shard, tokens, Lsn(0));
    let all = Pattern::plain(ByteRange::ALL);
    let wants = vec![
        Want::Inode {
            mode: InodeMode::Exclusive,
        },
        Want::Range {
            mode: RangeMode::Write,
            required: all,
            desired: all,
        },
    ];
    let seen = TokenNumber(0);
    let ask = Ask::Acquire {
        ino,
        seen,
        wants,
        only_free: false,
    };
    let now = Instant(1);
    let acquire = question(now, (common::life(1), 1), None, SHARD, ask);
    run_work(&mut slice, &mut log, now, acquire);
    let commit = meta::Commit {
        ino,
        generation: 1,
        size_generation: 0,
        size: Some(10_000),
        modified: None,
        kill_set_id: None,
        drops_rights: false,
        extents: Vec::new(),
        pieces: vec![piece(0, 10)],
    };
    let ask = Ask::Op {
        op: Op::Commit(commit),
        durable: false,
    };
    (log, slice, ask)
}

/// A Commit carries what was acknowledged. While the owner moves pieces to sectors it waits for that, and is run again
/// with each of them, and with each step of a transaction: however often that is, it is not refused for it.
#[test]
fn a_commit_that_waits_for_room_is_not_refused_for_being_run_often() {
    let mut disk = formatted(area(16 << 10));
    let (mut log, mut slice, ask) = with_debt(&mut disk);
    let mut now = Instant(1);
    let mut work = Some(question(now, (common::life(1), 2), None, SHARD, ask));
    for round in 0..3000 {
        now = now + Duration::from_millis(1);
        if round == 2000 {
            // It need not wait any more.
            log.destage_state = DestageState::Stalled;
        }
        let mut out = match work.take() {
            Some(work) => run_work(&mut slice, &mut log, now, work),
            None => Vec::new(),
        };
        let env = OwnerEnv {
            now,
            timestamp: Timestamp::default(),
            me: common::life(1),
            owners: &[LIFE.node],
            random: 0,
        };
        slice.on_tick(&env, &mut out);
        for effect in out {
            match effect {
                OwnerEffect::Run(again) => work = Some(again),
                OwnerEffect::Answer { answer, .. } => {
                    let is_done = matches!(answer.body, Body::Op(meta::Reply::Attr(_)));
                    assert!(is_done && round == 2000, "round {round}: {answer:?}");
                    return;
                }
                other => panic!("{other:?}"),
            }
        }
    }
    panic!("it is executed as soon as it may be");
}

/// Where no piece is moved, a Commit with pieces goes after its patience, however busy the checkpoints are beside it.
#[test]
fn a_commit_does_not_wait_for_room_while_others_make_some_for_other_things() {
    let mut disk = formatted(area(16 << 10));
    let (mut log, mut slice, ask) = with_debt(&mut disk);
    let mut now = Instant(1);
    let mut work = Some(question(now, (common::life(1), 2), None, SHARD, ask));
    for round in 0..300 {
        now = now + Duration::from_millis(100);
        log.note_checkpoints(now, true, true);
        let mut out = match work.take() {
            Some(work) => run_work(&mut slice, &mut log, now, work),
            None => Vec::new(),
        };
        let env = OwnerEnv {
            now,
            timestamp: Timestamp::default(),
            me: common::life(1),
            owners: &[LIFE.node],
            random: 0,
        };
        slice.on_tick(&env, &mut out);
        for effect in out {
            match effect {
                OwnerEffect::Run(again) => work = Some(again),
                OwnerEffect::Answer { answer, .. } => {
                    let is_done = matches!(answer.body, Body::Op(meta::Reply::Attr(_)));
                    assert!(is_done && round >= 190, "round {round}: {answer:?}");
                    return;
                }
                other => panic!("{other:?}"),
            }
        }
    }
    panic!("it waits for ever");
}

/// A small file's bytes stay in its record: they wait for nobody's sectors, and are refused for the lack of none.
#[test]
fn small_files_need_no_room_for_pieces() {
    let mut disk = formatted(area(16 << 10));
    let (mut log, mut slice, mut ask) = with_debt(&mut disk);
    let Ask::Op {
        op: Op::Commit(commit),
        ..
    } = &mut ask
    else {
        panic!("a Commit");
    };
    commit.size = Some(10);
    for (call, state) in [(2, DestageState::NoSpace), (3, DestageState::Works)] {
        log.destage_state = state;
        let now = Instant(1);
        let work = question(now, (common::life(1), call), None, SHARD, ask.clone());
        let out = run_work(&mut slice, &mut log, now, work);
        let [OwnerEffect::Answer { answer, .. }] = &out[..] else {
            panic!("{out:?}");
        };
        let is_done = matches!(answer.body, Body::Op(meta::Reply::Attr(_)));
        assert!(is_done, "{answer:?}");
    }
}

/// A Commit is refused, and a repeat of it arrives when there is room: its sender has done something else with its bytes, and may
/// have committed others since.
#[test]
fn a_repeat_of_what_was_refused_is_refused() {
    let mut disk = formatted(area(16 << 10));
    let (mut log, mut slice, ask) = with_debt(&mut disk);
    let now = Instant(1);
    let mut asked = |log: &mut OwnerLog, request| {
        let request = types::RequestId(request);
        let origin = Some(meta::view::Origin { slot: 1, request });
        let work = question(now, (common::life(1), 2), origin, SHARD, ask.clone());
        let out = run_work(&mut slice, log, now, work);
        match &out[..] {
            [OwnerEffect::Answer { answer, .. }] => answer.body.clone(),
            other => panic!("{other:?}"),
        }
    };
    log.destage_state = DestageState::NoSpace;
    let refused = Body::Refused(Errno::ENOSPC);
    assert_eq!(asked(&mut log, 5), refused);
    log.destage_state = DestageState::Stalled;
    let again = Body::Op(meta::Reply::Error(Errno::ENOSPC));
    assert_eq!(asked(&mut log, 5), again);
    let body = asked(&mut log, 6);
    assert!(matches!(body, Body::Op(meta::Reply::Attr(_))), "{body:?}");
}

/// The same of what was refused because something that it had to know of other owners was not to be had: its sender has been told.
#[test]
fn a_repeat_of_what_could_not_be_known_is_refused() {
    let mut disk = formatted(area(16 << 10));
    let (mut log, mut slice, ask) = with_debt(&mut disk);
    let now = Instant(1);
    let origin = Some(meta::view::Origin {
        slot: 1,
        request: types::RequestId(5),
    });
    let asked = || question(now, (common::life(1), 2), origin, SHARD, ask.clone());
    let Work::Question(first) = asked() else {
        panic!("a question");
    };
    let mut answer = |work| match &run_work(&mut slice, &mut log, now, work)[..] {
        [OwnerEffect::Answer { answer, .. }] => answer.body.clone(),
        other => panic!("{other:?}"),
    };
    let refused = answer(first.to_be_refused(Errno::ESTALE));
    assert_eq!(refused, Body::Refused(Errno::ESTALE));
    let repeat = answer(asked());
    assert_eq!(repeat, Body::Op(meta::Reply::Error(Errno::ESTALE)));
}

/// Without sectors to move pieces to, those of promised sectors are taken, up to a bound, and no others of the same file.
#[test]
fn pieces_of_what_is_promised_are_taken_where_there_are_no_sectors() {
    let mut disk = formatted(area(16 << 10));
    let (mut log, mut slice, ask) = with_debt(&mut disk);
    log.destage_state = DestageState::NoSpace;
    let promise = |slice: &mut OwnerSlice, begin| {
        slice.shard.apply(&meta::Mutation::MapPromise {
            index: 100,
            begin,
            end: begin + 1,
        });
    };
    let mut call = 1;
    let mut asked = |log: &mut OwnerLog, slice: &mut OwnerSlice| {
        call += 1;
        let work = question(
            Instant(1),
            (common::life(1), call),
            None,
            SHARD,
            ask.clone(),
        );
        let out = run_work(slice, log, Instant(1), work);
        match &out[..] {
            [OwnerEffect::Answer { answer, .. }] => Some(answer.body.clone()),
            [] => None,
            other => panic!("{other:?}"),
        }
    };
    promise(&mut slice, 8);
    let body = asked(&mut log, &mut slice);
    assert_eq!(body, Some(Body::Refused(Errno::ENOSPC)));
    promise(&mut slice, 0);
    let body = asked(&mut log, &mut slice);
    assert!(
        matches!(body, Some(Body::Op(meta::Reply::Attr(_)))),
        "{body:?}"
    );
    put_pieces(&mut slice, 300..600);
    slice.shard.apply(&meta::Mutation::MapPromise {
        index: 101,
        begin: 0,
        end: 600,
    });
    assert_eq!(asked(&mut log, &mut slice), None, "it waits");
}

/// Pieces of promised sectors take nothing of the room of others.
#[test]
fn pieces_are_taken_whatever_lies_there_of_what_is_promised() {
    let mut disk = formatted(area(16 << 10));
    let (mut log, mut slice, ask) = with_debt(&mut disk);
    log.destage_state = DestageState::NoSpace;
    put_pieces(&mut slice, 300..384);
    let mut call = 1;
    let mut asked = |log: &mut OwnerLog, slice: &mut OwnerSlice| {
        call += 1;
        let life = (common::life(1), call);
        let work = question(Instant(1), life, None, SHARD, ask.clone());
        let out = run_work(slice, log, Instant(1), work);
        match &out[..] {
            [OwnerEffect::Answer { answer, .. }] => answer.body.clone(),
            other => panic!("{other:?}"),
        }
    };
    // Of the 1.5 MiB, more than the other half is promised.
    slice.shard.apply(&meta::Mutation::MapPromise {
        index: 101,
        begin: 0,
        end: 200,
    });
    let debt = slice.shard.piece_debt();
    assert_eq!((debt.promised, debt.other), (200 << 12, 184 << 12));
    let body = asked(&mut log, &mut slice);
    assert!(matches!(body, Body::Op(meta::Reply::Attr(_))), "{body:?}");
    put_pieces(&mut slice, 384..484);
    assert_eq!(
        asked(&mut log, &mut slice),
        Body::Refused(Errno::ENOSPC),
        "others have as much as ever"
    );
}

/// The second file has a page in pieces at each of these numbers.
fn put_pieces(slice: &mut OwnerSlice, pages: std::ops::Range<u64>) {
    let page = |number| Piece {
        offset: number * 4096,
        bytes: SmallBytes::new(&[1; 4096]),
    };
    slice.shard.apply(&meta::Mutation::MapPut {
        index: 101,
        extents: Vec::new(),
        pieces: pages.map(page).collect(),
    });
}

fn file_number() -> InodeId {
    InodeId::new(SHARD, 100)
}

const fn env() -> OwnerEnv<'static> {
    OwnerEnv {
        now: Instant(1),
        timestamp: Timestamp { secs: 0, nanos: 0 },
        me: LIFE,
        owners: &[LIFE.node, NodeId(2)],
        random: 0,
    }
}

/// A shard with a file.
fn with_inode() -> OwnerSlice {
    let tokens = token::Manager::new(Epoch(1), token::Options::default());
    let mut shard = Shard::new(SHARD, HashKey(7));
    shard.apply(&common::file(file_number(), 1));
    OwnerSlice::new(shard, tokens, Lsn(0))
}

/// Another node may cache the file's attributes.
fn cache_elsewhere(slice: &mut OwnerSlice) {
    let acquire = token::Acquire {
        holder: common::life(2),
        ticket: 1,
        ino: file_number(),
        seen: TokenNumber(0),
        wants: vec![Want::Inode {
            mode: InodeMode::Read,
        }],
        transient: false,
    };
    let granted = slice.tokens.acquire(env().now, acquire, &mut Vec::new());
    granted.unwrap();
}

/// Has the owner take a prepare of another's transaction, which takes a name of the file; what it does then.
fn prepare(slice: &mut OwnerSlice, log: &mut OwnerLog, number: u64) -> Vec<OwnerEffect> {
    prepare_open_at(slice, log, number, None)
}

/// The same, where somebody has the file open.
fn prepare_open_at(
    slice: &mut OwnerSlice,
    log: &mut OwnerLog,
    number: u64,
    open_at: Option<NodeLife>,
) -> Vec<OwnerEffect> {
    let step = Step::LinkDrop {
        ino: file_number(),
        open_at,
    };
    let message = TransactionMessage::Prepare {
        now: Timestamp::default(),
        steps: vec![step],
    };
    told(slice, log, number, message)
}

/// The coordinator of a transaction says this of it.
fn told(
    slice: &mut OwnerSlice,
    log: &mut OwnerLog,
    number: u64,
    message: TransactionMessage,
) -> Vec<OwnerEffect> {
    let envelope = Envelope {
        id: TransactionId {
            coordinator: ShardId(1),
            number,
        },
        from: ShardId(1),
        to: SHARD,
        message,
    };
    let work = Work::Transaction(Box::new(envelope));
    let mut out = Vec::new();
    let mut locked = Locked::new(std::iter::once(slice));
    locked.run(&env(), Some(log), work, &mut out).unwrap();
    out
}

/// A coordinator that hears nothing says its prepare again and again. While that waits for tokens the repeats ask for
/// nothing: each would revoke anew what has been granted since, and they would come faster than they go.
#[test]
fn a_repeated_prepare_asks_for_its_tokens_once() {
    let area = area(1 << 10);
    let mut disk = formatted(area);
    let (mut log, mut slice) = (open(&mut disk, area), with_inode());
    cache_elsewhere(&mut slice);
    let mut counts = Vec::new();
    for number in [5, 5, 5, 6, 5] {
        prepare(&mut slice, &mut log, number);
        counts.push(slice.tokens.waiters().len());
    }
    assert_eq!(counts, [1, 1, 1, 2, 2]);
}

/// A node replaces the last name of a file, which it has open, and dies before that is committed: nobody has the file open then, and it goes.
#[test]
fn what_a_dead_node_had_open_is_not_kept() {
    for is_late in [false, true] {
        let area = area(1 << 10);
        let mut disk = formatted(area);
        let (mut log, mut slice) = (open(&mut disk, area), with_inode());
        let life = common::life(3);
        let die = |slice: &mut OwnerSlice, log: &mut OwnerLog| {
            slice.on_node_lost(&env(), log, life, &mut Vec::new());
        };
        if !is_late {
            die(&mut slice, &mut log);
        }
        prepare_open_at(&mut slice, &mut log, 5, Some(life));
        if is_late {
            die(&mut slice, &mut log);
        }
        told(&mut slice, &mut log, 5, TransactionMessage::Commit);
        assert_eq!(slice.shard.attr(file_number()), None, "{is_late}");
        assert!(!slice.shard.lives().contains(&life));
        slice.shard.check();
    }
}

/// Two renames that cross: the younger must not wait for tokens before it gives way, for those who wait for the older one
/// may take them from one another all the time.
#[test]
fn who_gives_way_waits_for_no_tokens() {
    let area = area(1 << 10);
    let mut disk = formatted(area);
    let (mut log, mut slice) = (open(&mut disk, area), with_inode());
    let vote = |effects: Vec<OwnerEffect>| match effects.first() {
        Some(OwnerEffect::Transaction(envelope, _)) => envelope.message.clone(),
        _ => panic!("{effects:?}"),
    };
    let voted = vote(prepare(&mut slice, &mut log, 5));
    assert!(
        matches!(
            voted,
            TransactionMessage::Voted(meta::transaction::Vote::Yes { .. })
        ),
        "{voted:?}"
    );
    cache_elsewhere(&mut slice);
    let voted = vote(prepare(&mut slice, &mut log, 6));
    assert_eq!(
        voted,
        TransactionMessage::Voted(meta::transaction::Vote::Busy)
    );
    assert_eq!(slice.tokens.waiters().len(), 0);
}

/// The last flush of a stopped journal is proven by a record behind it: what a disk loses of it is damage, and not a flush that was torn.
#[test]
fn a_closed_journal_misses_what_is_lost_of_its_end() {
    let area = area(64);
    for is_closed in [true, false] {
        let mut disk = formatted(area);
        let mut log = open(&mut disk, area);
        let before = disk.clone();
        let bytes = vec![0; 3000];
        for _ in 0..8 {
            let key = PartKey::Shard(ShardId(0));
            let (epoch, bytes) = (log.epoch, &bytes[..]);
            log.journal.append(&[Part { key, epoch, bytes }]).unwrap();
        }
        assert_eq!(log.close(), None, "not all is durable");
        flush(&mut log, &mut disk, usize::MAX);
        let places = (0..area.count).map(|index| Location {
            nsd: area.nsd,
            sector: area.begin + index,
        });
        let is_new = |place: &Location| before.read(*place, 1) != disk.read(*place, 1);
        let places: Vec<Location> = places.filter(is_new).collect();
        assert!(places.len() > 4, "{places:?}");
        if is_closed {
            assert!(log.close().is_some());
            flush(&mut log, &mut disk, usize::MAX);
        }
        for place in places {
            let mut rotten = disk.clone();
            rotten.flip(place, 100);
            let found = recover(&rotten, area, FsId(0), LIFE.node, &mut |_| Ok(()));
            assert_eq!(found.is_err(), is_closed, "{place:?}");
        }
    }
}

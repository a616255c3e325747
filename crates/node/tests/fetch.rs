//! Work whose inodes have to be read first, on a disk that fails: nothing that was acknowledged is lost for a bad moment of a disk,
//! nobody waits for ever, and what was read stays until it was of use.
#![allow(clippy::unwrap_used, reason = "a test")]

use client::message::{Ask, Body};
use meta::transaction::Vote;
use meta::{
    Envelope, HashKey, Mutation, Op, Reply, Shard, Step, TransactionId, TransactionMessage,
};
use node::calls::question;
use node::fetch::{PATIENCE, Ready, Trouble, install};
use node::keeper::{Disks, PlainHost, checkpoint_now};
use node::{Fetches, Locked, Need, OwnerEffect, OwnerEnv, OwnerLog, OwnerSlice, Work};
use store::tree::{Fetch, Unreadable};
use token::locks::message::{LockAction, LockAnswer, LockAsk};
use types::{
    ByteRange, Duration, Epoch, Errno, FileKind, FsId, InodeId, InodeMode, Instant, Lock, LockKind,
    LockMode, LockOwner, Lsn, Name, NodeId, Pattern, Piece, RangeMode, ShardId, SmallBytes,
    Timestamp, TokenNumber, Want,
};

mod common;

use common::owner::{PageDisk, log, snapshot};

const KEY: HashKey = HashKey(7);
const SHARD: ShardId = ShardId(0);
const LOCKER: LockOwner = LockOwner {
    kind: LockKind::Posix,
    id: 1,
};

/// What reads of pages come to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Reads {
    Good,
    /// The disk gives nothing.
    Failing,
    /// A bit is wrong.
    Rotten,
    /// A bit is wrong, or all of it is blank, by turns.
    InTurns,
    /// They do not end.
    Hanging,
}

struct World {
    now: Instant,
    slices: Vec<Option<OwnerSlice>>,
    log: OwnerLog,
    pages: PageDisk,
    fetches: Fetches,
    reads: Reads,
    /// Reads that do not end.
    hanging: Vec<Fetch>,
    read_count: u32,
    out: Vec<OwnerEffect>,
    troubles: Vec<Trouble>,
}

fn ino(index: u64) -> InodeId {
    InodeId::new(SHARD, index)
}

impl World {
    /// A shard with some files, in its tree and not in memory; node 1 may write file 100, and has it locked.
    fn new() -> Self {
        Self::of_files(10)
    }

    /// The last five files have names in directory 50.
    fn of_files(count: u64) -> Self {
        Self::with_xattrs(count, 0)
    }

    /// The last one has so many long extended attributes.
    fn with_xattrs(count: u64, xattr_count: u64) -> Self {
        let mut shard = Shard::new(SHARD, KEY);
        shard.track();
        shard.apply(&common::directory(ino(50)));
        for index in 100..100 + count {
            shard.apply(&common::file(ino(index), 1));
            if index >= 100 + count - 5 {
                let text = index.to_string();
                shard.apply(&Mutation::EntryPut {
                    directory: 50,
                    cookie: KEY.first_cookie(text.as_bytes()),
                    name: Name::new(text.as_bytes()).unwrap(),
                    ino: ino(index),
                    kind: FileKind::File,
                });
            }
        }
        for number in 0..xattr_count {
            shard.apply(&Mutation::XattrPut {
                index: 100 + count - 1,
                name: SmallBytes::new(format!("user.{number:0200}").as_bytes()),
                value: SmallBytes::new(b"x"),
            });
        }
        let tokens = token::Manager::new(Epoch(1), token::Options::default());
        let mut slices = vec![Some(OwnerSlice::new(shard, tokens, Lsn(0)))];
        let mut log = log();
        let mut pages = PageDisk::default();
        // So little is not worth a region for pages.
        log.note_starving(true);
        let mut host = PlainHost {
            shards: &mut slices,
            log: &mut log,
        };
        let (counters, failure) = checkpoint_now(Instant(1), &mut host, &mut pages);
        assert_eq!((counters.checkpoints, failure), (1, None));
        let mut world = Self {
            now: Instant(1),
            slices,
            log,
            pages,
            fetches: Fetches::new(FsId(0)),
            reads: Reads::Good,
            hanging: Vec::new(),
            read_count: 0,
            out: Vec::new(),
            troubles: Vec::new(),
        };
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
        let acquire = Ask::Acquire {
            ino: ino(100),
            seen: TokenNumber(0),
            wants,
            only_free: false,
        };
        world.ask(1, acquire);
        let lock = Lock {
            owner: LOCKER,
            mode: LockMode::Write,
            range: ByteRange::ALL,
            pid: 1,
        };
        let waits = false;
        world.lock(2, LockAction::Set { lock, waits });
        assert_eq!(world.out.len(), 2);
        world.out.clear();
        world.shard().allow_eviction();
        world.evict();
        // The root, which is none of these, is not there.
        assert_eq!(world.shard().resident_count(), 0);
        world
    }

    /// A file comes, and the shard has another root.
    fn change_root(&mut self, index: u64) {
        self.shard().apply(&common::file(ino(index), 1));
        snapshot(&mut self.log);
        let mut host = PlainHost {
            shards: &mut self.slices,
            log: &mut self.log,
        };
        let (counters, failure) = checkpoint_now(self.now, &mut host, &mut self.pages);
        assert_eq!((counters.checkpoints, failure), (1, None));
    }

    fn shard(&mut self) -> &mut Shard {
        &mut self.slices[0].as_mut().unwrap().shard
    }

    fn evict(&mut self) {
        drop(self.shard().evict(usize::MAX, u64::MAX, true));
        self.shard().check();
    }

    fn ask(&mut self, call: u64, ask: Ask) {
        self.run(question(
            self.now,
            (common::life(1), call),
            None,
            SHARD,
            ask,
        ));
    }

    fn lock(&mut self, number: u64, action: LockAction) {
        let ask = LockAsk { number, action };
        let ino = ino(100);
        self.ask(number, Ask::Lock { ino, ask });
    }

    fn commit(&mut self, call: u64) {
        let piece = Piece {
            offset: 0,
            bytes: SmallBytes::new(&[1; 10]),
        };
        let commit = meta::Commit {
            ino: ino(100),
            generation: 1,
            size_generation: 0,
            size: Some(10),
            modified: None,
            kill_set_id: None,
            drops_rights: false,
            extents: Vec::new(),
            pieces: vec![piece],
        };
        let op = Op::Commit(commit);
        let durable = false;
        self.ask(call, Ask::Op { op, durable });
    }

    /// Another owner's transaction wants to take a name from each of these.
    fn prepare(&mut self, number: u64, indices: &[u64]) {
        let drop = |index: &u64| Step::LinkDrop {
            ino: ino(*index),
            open_at: None,
        };
        let envelope = Envelope {
            id: TransactionId {
                coordinator: ShardId(1),
                number,
            },
            from: ShardId(1),
            to: SHARD,
            message: TransactionMessage::Prepare {
                now: Timestamp::default(),
                steps: indices.iter().map(drop).collect(),
            },
        };
        self.run(Work::Transaction(Box::new(envelope)));
    }

    /// Of how many names the listing has attributes, of how many not.
    fn list(&mut self, call: u64, plus: bool) -> (usize, usize) {
        let op = Op::ReadDir {
            ino: ino(50),
            cookie: 0,
            size: 1 << 16,
            plus,
        };
        let durable = false;
        self.ask(call, Ask::Op { op, durable });
        match self.answer() {
            Body::Op(Reply::Listing { entries, .. }) => {
                let known = entries.iter().filter(|e| e.attr.is_some()).count();
                (known, entries.len() - known)
            }
            other => panic!("{other:?}"),
        }
    }

    fn run(&mut self, work: Work) {
        let pinned = Vec::new();
        self.run_ready(Ready { work, pinned });
        self.drive();
    }

    fn run_ready(&mut self, ready: Ready) {
        let Ready { work, pinned } = ready;
        let env = OwnerEnv {
            now: self.now,
            timestamp: Timestamp::default(),
            me: common::life(1),
            owners: &[NodeId(1), NodeId(2)],
            random: 0,
        };
        let slice = self.slices[0].as_mut().unwrap();
        let ran =
            Locked::new(std::iter::once(slice)).run(&env, Some(&mut self.log), work, &mut self.out);
        let pinned = match ran {
            Ok(()) => pinned,
            Err(Need::Keys(inodes, work)) => {
                let log = &self.log;
                let ready = Ready { work, pinned };
                let want = self
                    .fetches
                    .want(self.now, &inodes, ready, &mut |s| log.root(s));
                want.err().unwrap_or_default()
            }
            Err(need @ Need::Shards(..)) => panic!("{need:?}"),
        };
        pinned.iter().for_each(|ino| self.shard().unpin(*ino));
    }

    fn drive(&mut self) {
        loop {
            if let Some(fetch) = self.fetches.next_read() {
                self.read_count += 1;
                let bytes = self.pages.read(&fetch);
                let is_blank = self.reads == Reads::InTurns && self.read_count.is_multiple_of(2);
                let bytes = match self.reads {
                    Reads::Good => bytes,
                    Reads::InTurns if is_blank => bytes.map(|bytes| vec![0; bytes.len()].into()),
                    Reads::Failing => Err(Unreadable),
                    Reads::Rotten | Reads::InTurns => bytes.map(|mut bytes| {
                        bytes[100] ^= 1;
                        bytes
                    }),
                    Reads::Hanging => {
                        self.hanging.push(fetch);
                        continue;
                    }
                };
                self.fetches.on_read(fetch.id, bytes);
            } else if let Some(fetched) = self.fetches.next_done() {
                let slice = self.slices[0].as_mut().unwrap();
                let installed = install(slice, &self.log, &mut fetched.decode(KEY));
                let mut ready = Vec::new();
                let trouble = self.fetches.settled(self.now, installed, &mut ready);
                self.troubles.extend(trouble);
                ready.into_iter().for_each(|ready| self.run_ready(ready));
            } else {
                return;
            }
        }
    }

    /// Time passes, a hundredth of a second at a time, until somebody is answered; how long it took.
    fn wait(&mut self, limit: Duration) -> Duration {
        let begin = self.now;
        while self.out.is_empty() && self.now.since(begin) < limit {
            self.now = self.now + Duration::from_millis(10);
            let log = &self.log;
            self.fetches.on_tick(self.now, &mut |shard| log.root(shard));
            self.drive();
        }
        self.now.since(begin)
    }

    /// The one answer that was given.
    fn answer(&mut self) -> Body {
        match &self.out.drain(..).collect::<Vec<_>>()[..] {
            [OwnerEffect::Answer { answer, .. }] => answer.body.clone(),
            other => panic!("{other:?}"),
        }
    }

    fn vote(&mut self) -> Vote {
        match &self.out.drain(..).collect::<Vec<_>>()[..] {
            [OwnerEffect::Transaction(envelope, _)] => match &envelope.message {
                TransactionMessage::Voted(vote) => vote.clone(),
                other => panic!("{other:?}"),
            },
            other => panic!("{other:?}"),
        }
    }

    fn is_quiet(&mut self) -> bool {
        self.fetches.count() == 0 && self.shard().pinned_count() == 0
    }
}

const REFUSED: Body = Body::Refused(Errno::EIO);

fn is_committed(body: &Body) -> bool {
    matches!(body, Body::Op(Reply::Attr(_)))
}

/// All of an answer are read at once, and before it is given; a listing of names needs none of them.
#[test]
fn a_listing_reads_what_it_shows() {
    let mut world = World::of_files(1000);
    assert_eq!(world.list(3, false), (0, 5));
    let before = world.fetches.counters().misses;
    assert_eq!(world.list(4, true), (5, 0));
    assert_eq!(world.fetches.counters().misses - before, 5);
    assert!(world.is_quiet());
    assert_eq!(world.list(5, true), (5, 0));
    assert_eq!(world.fetches.counters().misses - before, 5);
}

/// A file of many extents and a large directory are names alone: nobody looks at their maps and entries for a listing.
#[test]
fn a_listing_does_without_what_is_large() {
    let mut world = World::with_xattrs(1000, 2000);
    assert_eq!(world.list(3, false), (0, 5));
    let before = world.read_count;
    assert_eq!(world.list(4, true), (4, 1));
    assert!(
        world.read_count - before < 40,
        "{}",
        world.read_count - before
    );
    assert!(world.is_quiet());
    // Who asks for it has it.
    let get = Op::GetAttr { ino: ino(1099) };
    let durable = false;
    world.ask(5, Ask::Op { op: get, durable });
    assert!(is_committed(&world.answer()));
    assert_eq!(world.list(6, true), (5, 0));
}

/// What cannot be read is a name without attributes, at once: who looks for it hears of it.
#[test]
fn a_listing_does_without_what_cannot_be_read() {
    for reads in [Reads::Failing, Reads::Rotten] {
        let mut world = World::of_files(1000);
        assert_eq!(world.list(3, false), (0, 5));
        world.reads = reads;
        assert_eq!(world.list(4, true), (0, 5), "{reads:?}");
        assert!(world.is_quiet());
        // It is nobody's trouble yet, and takes nothing of the patience of who asks later.
        assert_eq!(world.fetches.faults().count(), 0);
        assert!(world.troubles.is_empty(), "{:?}", world.troubles);
        let get = Op::GetAttr { ino: ino(1099) };
        let durable = false;
        world.ask(5, Ask::Op { op: get, durable });
        world.wait(Duration(2 * PATIENCE.0));
        assert_eq!(world.answer(), REFUSED, "{reads:?}");
        // The directory itself cannot be done without.
        world.evict();
        world.fetches = Fetches::new(FsId(0));
        let list = Op::ReadDir {
            ino: ino(50),
            cookie: 0,
            size: 1 << 16,
            plus: true,
        };
        world.ask(6, Ask::Op { op: list, durable });
        assert!(world.out.is_empty());
        world.reads = Reads::Good;
        world.wait(Duration::from_secs(2));
        assert!(matches!(world.answer(), Body::Op(Reply::Listing { .. })));
        assert!(world.is_quiet());
    }
}

/// A Commit carries what was acknowledged: it waits until the page can be read.
#[test]
fn a_commit_outlives_a_bad_moment_of_the_disk() {
    for reads in [Reads::Failing, Reads::Rotten] {
        let mut world = World::new();
        world.reads = reads;
        world.commit(3);
        world.wait(Duration::from_millis(20));
        assert!(world.out.is_empty(), "{reads:?}: {:?}", world.out);
        assert!(
            matches!(world.troubles[..], [Trouble::Begins(..)]),
            "{:?}",
            world.troubles
        );
        let waiting: Vec<String> = world.fetches.waiting().map(|(what, _)| what).collect();
        assert!(waiting[0].contains("sector"), "{waiting:?}");
        world.reads = Reads::Good;
        world.wait(Duration::from_secs(2));
        let body = world.answer();
        assert!(is_committed(&body), "{reads:?}: {body:?}");
        assert!(
            matches!(world.troubles[1..], [Trouble::Ended(..)]),
            "{:?}",
            world.troubles
        );
        assert_eq!(world.fetches.faults().count(), 0);
        assert!(world.is_quiet());
    }
}

/// What stays unreadable is told, and when it can be read again it is.
#[test]
fn what_cannot_be_read_for_long_is_told() {
    for (reads, limit) in [
        (Reads::Failing, PATIENCE),
        (Reads::Rotten, Duration::from_millis(200)),
    ] {
        let mut world = World::new();
        world.reads = reads;
        world.commit(3);
        let waited = world.wait(Duration::from_secs(60));
        assert_eq!(world.answer(), REFUSED);
        assert!(waited.0 <= limit.0 + 1_000_000_000, "{reads:?}: {waited:?}");
        assert!(
            matches!(world.troubles[1..], [Trouble::Told(..)]),
            "{:?}",
            world.troubles
        );
        assert!(world.read_count < 50, "{} reads", world.read_count);
        let faults: Vec<InodeId> = world.fetches.faults().map(|(ino, ..)| ino).collect();
        assert_eq!(faults, [ino(100)]);
        // Known to be bad: who asks now is told after one try; but a Commit brings what was acknowledged, and waits for the disk.
        world.commit(4);
        let waited = world.wait(Duration::from_secs(60));
        assert_eq!(world.answer(), REFUSED);
        assert!(waited.0 <= limit.0 + 1_000_000_000, "{reads:?}: {waited:?}");
        assert_eq!(
            waited.0 >= PATIENCE.0,
            reads == Reads::Failing,
            "{waited:?}"
        );
        assert_eq!(world.troubles.len(), 2);
        // Much later it may be another trouble.
        world.now = world.now + PATIENCE + PATIENCE;
        world.commit(5);
        assert!(world.out.is_empty(), "{:?}", world.out);
        world.reads = Reads::Good;
        world.wait(Duration::from_secs(2));
        assert!(is_committed(&world.answer()));
        assert_eq!(world.fetches.faults().count(), 0);
        assert!(world.is_quiet());
    }
}

/// A page that does not verify is not tried for each inode below it anew (a scan of a damaged directory took 0.2 s a file, and a line of the
/// log); but a Commit waits for a better moment of the disk.
#[test]
fn what_does_not_verify_is_told_at_once_to_all_below_it() {
    let mut world = World::new();
    world.reads = Reads::Rotten;
    let ask = |world: &mut World, number: u64, index: u64| -> (Body, u64) {
        let (before, begin) = (world.read_count, world.now);
        let (op, durable) = (Op::GetAttr { ino: ino(index) }, false);
        world.ask(number, Ask::Op { op, durable });
        if world.out.is_empty() {
            world.wait(Duration::from_secs(60));
        }
        let is_at_once = world.now == begin;
        let reads = world.read_count - before;
        assert_eq!(is_at_once, reads < 4, "{reads}");
        (world.answer(), reads as u64)
    };
    let (body, tries) = ask(&mut world, 3, 101);
    assert_eq!(body, REFUSED);
    assert!(tries >= 4, "{tries}");
    let told = world.troubles.len();
    for (number, index) in [(4, 102), (5, 103), (6, 104)] {
        let (body, tries) = ask(&mut world, number, index);
        assert_eq!((body, tries), (REFUSED, 1));
    }
    assert_eq!(world.troubles.len(), told, "{:?}", world.troubles);
    // Later it may be another trouble.
    world.now = world.now + PATIENCE;
    let (_, tries) = ask(&mut world, 7, 105);
    assert!(tries >= 4, "{tries}");
    world.commit(8);
    assert!(world.out.is_empty(), "{:?}", world.out);
    world.reads = Reads::Good;
    world.wait(Duration::from_secs(2));
    assert!(is_committed(&world.answer()));
    assert!(world.is_quiet());
}

/// Two bad moments of a disk are not one long one: pages that came between them came, whatever became of their root meanwhile.
#[test]
fn bad_moments_far_apart_are_not_told() {
    let mut world = World::new();
    world.reads = Reads::Failing;
    world.commit(3);
    assert!(matches!(world.troubles[..], [Trouble::Begins(..)]));
    world.reads = Reads::Hanging;
    world.wait(Duration::from_secs(1));
    world.change_root(500);
    world.now = world.now + PATIENCE;
    // It comes, of a root that is none any more; what is read next is not given.
    world.reads = Reads::Failing;
    for fetch in std::mem::take(&mut world.hanging) {
        let bytes = world.pages.read(&fetch);
        world.fetches.on_read(fetch.id, bytes);
    }
    world.drive();
    assert_eq!(world.fetches.counters().stale, 1);
    assert!(world.out.is_empty(), "{:?}", world.out);
    let last = &world.troubles[1..];
    assert!(
        matches!(last, [Trouble::Ended(..), Trouble::Begins(..)]),
        "{last:?}"
    );
    world.reads = Reads::Good;
    world.wait(Duration::from_secs(2));
    assert!(is_committed(&world.answer()));
    assert!(world.is_quiet());
}

/// A disk may take longer to say no than anybody has patience.
#[test]
fn a_disk_that_fails_late_is_told_all_the_same() {
    let mut world = World::new();
    world.reads = Reads::Hanging;
    world.commit(3);
    for round in 0.. {
        assert!(round < 4, "nobody is told");
        while world.hanging.is_empty() {
            world.wait(Duration::from_millis(500));
        }
        world.now = world.now + PATIENCE + Duration::from_secs(10);
        for fetch in std::mem::take(&mut world.hanging) {
            world.fetches.on_read(fetch.id, Err(Unreadable));
        }
        world.drive();
        if !world.out.is_empty() {
            break;
        }
    }
    assert_eq!(world.answer(), REFUSED);
}

/// Errors that take turns are no new ones each time.
#[test]
fn pages_that_are_bad_in_turns_are_told_all_the_same() {
    let mut world = World::new();
    world.reads = Reads::InTurns;
    world.commit(3);
    let waited = world.wait(Duration(3 * PATIENCE.0));
    assert!(waited.0 <= PATIENCE.0 + 2_000_000_000, "{waited:?}");
    assert_eq!(world.answer(), REFUSED);
}

/// A coordinator that hears nothing keeps its names locked for ever.
#[test]
fn a_prepare_whose_inodes_cannot_be_read_is_voted_against() {
    let mut world = World::new();
    world.reads = Reads::Failing;
    world.prepare(5, &[101, 102]);
    world.wait(Duration::from_secs(60));
    assert_eq!(world.vote(), Vote::No(Errno::EIO));
    world.reads = Reads::Good;
    world.prepare(6, &[101, 102]);
    assert!(matches!(world.vote(), Vote::Yes { .. }));
    assert!(world.is_quiet());
}

/// They come every few milliseconds while a read may take seconds.
#[test]
fn repeats_of_a_prepare_do_not_pile_up() {
    let mut world = World::new();
    world.reads = Reads::Hanging;
    for number in [5, 5, 5, 6, 5] {
        world.prepare(number, &[101]);
    }
    assert_eq!(world.fetches.count(), 2);
}

/// A file stays locked for ever if who unlocks it hears an error.
#[test]
fn an_unlock_reads_nothing() {
    let mut world = World::new();
    world.reads = Reads::Failing;
    let range = ByteRange::ALL;
    world.lock(
        3,
        LockAction::Clear {
            owner: LOCKER,
            range,
        },
    );
    let body = world.answer();
    assert_eq!(body, Body::Lock(LockAnswer::Done));
    assert_eq!(world.read_count, 0);
}

/// What was read for work that waits for more does not leave before it has run; then it may.
#[test]
fn what_parked_work_was_given_stays() {
    let mut world = World::new();
    world.reads = Reads::Hanging;
    world.prepare(5, &[101, 102]);
    let fetch = world.hanging.pop().unwrap();
    let bytes = world.pages.read(&fetch);
    world.fetches.on_read(fetch.id, bytes);
    let mut ready = Vec::new();
    for read in [101, 102] {
        let fetched = world.fetches.next_done().unwrap();
        assert_eq!((fetched.ino(), ready.len()), (ino(read), 0));
        let slice = world.slices[0].as_mut().unwrap();
        let installed = install(slice, &world.log, &mut fetched.decode(KEY));
        world.fetches.settled(world.now, installed, &mut ready);
        world.evict();
        let is_cold = world.shard().is_cold(ino(read));
        assert!(!is_cold, "{read} was read for nothing");
    }
    ready.into_iter().for_each(|ready| world.run_ready(ready));
    assert!(matches!(world.vote(), Vote::Yes { .. }));
    assert!(world.is_quiet());
}

//! What single operations answer and change, one owner with two shards unless said otherwise.
#![allow(clippy::unwrap_used, reason = "tests")]

mod access;
mod acl;
mod content;
mod layout;
mod nameless;
mod standing;
mod times;
mod whiteout;
mod xattrs;

use std::collections::BTreeSet;

use types::extent::{Checksums, Extent};
use types::token::{DirectoryMode, InodeMode, Want};
use types::{
    Attr, Errno, FileKind, Incarnation, InodeId, Location, Name, NodeId, NodeLife, NsdId, Pattern,
    Piece, ReleaseStamp, RequestId, SetAttr, ShardId, SmallBytes, Standing, Timestamp,
};

use crate::inode::InodeRecord;
use crate::message::{Caller, Commit, Known, NewKind, Op, Reply, listed_size};
use crate::transaction::{Handled, Vote};
use crate::view::{Context, Held, Origin, Outcome, View};
use crate::{
    Envelope, Executed, HashKey, Mutation, Shard, Step, TransactionId, TransactionMessage, execute,
    transaction, wants,
};

const ROOT: InodeId = InodeId::ROOT;
const ME: NodeLife = NodeLife {
    node: NodeId(1),
    incarnation: Incarnation(11),
};
const OTHER: NodeLife = NodeLife {
    node: NodeId(2),
    incarnation: Incarnation(22),
};
const CALLER: Caller = Caller {
    uid: 7,
    gid: 8,
    umask: 0o022,
};

struct Fixture {
    shards: Vec<Shard>,
    owners: Vec<NodeId>,
    now: i64,
    from: NodeLife,
}

fn name(text: &str) -> Name {
    Name::new(text.as_bytes()).unwrap()
}

fn small(text: &str) -> SmallBytes {
    SmallBytes::new(text.as_bytes())
}

impl Fixture {
    fn new() -> Self {
        Self::with_key(HashKey(99))
    }

    fn with_key(key: HashKey) -> Self {
        let mut shards = vec![Shard::new(ShardId(0), key), Shard::new(ShardId(1), key)];
        shards[0].make_root(Timestamp::default(), 0o755, 1);
        Self {
            shards,
            owners: vec![NodeId(1), NodeId(1), NodeId(2)],
            now: 100,
            from: ME,
        }
    }

    fn outcome(&mut self, op: &Op, origin: Option<Origin>, held: Held<'_>) -> Outcome {
        self.outcome_by(op, origin, held, &[])
    }

    fn outcome_by(
        &mut self,
        op: &Op,
        origin: Option<Origin>,
        held: Held<'_>,
        facts: &[crate::Fact],
    ) -> Outcome {
        self.now += 1;
        let ctx = Context {
            now: Timestamp {
                secs: self.now,
                nanos: 0,
            },
            from: self.from,
            origin,
            random: 5 << 64 | 6,
            held,
            facts,
        };
        let shards = &mut self.shards;
        execute(&mut View::new(shards, &self.owners, NodeId(1)), &ctx, op)
    }

    /// What needs another owner is under way.
    fn begin(&mut self, plan: &transaction::Plan) {
        let mut view = View::new(&mut self.shards, &self.owners, NodeId(1));
        transaction::begin(&mut view, plan.clone());
    }

    /// The one other owner agrees, so that it is done.
    fn all_agree(&mut self, plan: &transaction::Plan) {
        let envelope = Envelope {
            id: plan.id,
            from: *plan.remote.keys().next().expect("another shard"),
            to: plan.id.coordinator,
            message: TransactionMessage::Voted(Vote::Yes { attrs: Vec::new() }),
        };
        let mut view = View::new(&mut self.shards, &self.owners, NodeId(1));
        let Handled::Done(progress) = transaction::on_message(&mut view, &envelope) else {
            panic!("all shards are there");
        };
        assert!(progress.finished.is_some(), "all have voted");
    }

    fn executed(&mut self, op: &Op) -> Executed {
        match self.outcome(op, None, Held::All) {
            Outcome::Done(done) => {
                self.shards.iter().for_each(Shard::check);
                let has_failed = matches!(
                    done.reply,
                    Reply::Error(_) | Reply::Stale | Reply::Resized(_)
                );
                assert!(!has_failed || done.mutations.is_empty());
                done
            }
            other => panic!("{op:?} ends in {other:?}"),
        }
    }

    fn run(&mut self, op: &Op) -> Reply {
        self.executed(op).reply
    }

    fn made(&mut self, op: &Op) -> Attr {
        match self.run(op) {
            Reply::Made { attr, .. } => attr.unwrap(),
            other => panic!("{op:?} answers {other:?}"),
        }
    }

    fn create(&mut self, text: &str) -> Attr {
        self.made(&create(ROOT, text))
    }

    fn mkdir(&mut self, parent: InodeId, text: &str) -> Attr {
        self.made(&mkdir(parent, text, 1))
    }

    fn attr(&mut self, ino: InodeId) -> Attr {
        match self.run(&Op::GetAttr { ino }) {
            Reply::Attr(attr) => attr,
            other => panic!("{other:?}"),
        }
    }

    fn set(&mut self, ino: InodeId, set: SetAttr) -> Attr {
        match self.run(&Op::SetAttr {
            ino,
            set,
            standing: None,
        }) {
            Reply::Attr(attr) => attr,
            other => panic!("{other:?}"),
        }
    }

    fn is_error(&mut self, op: &Op, errno: Errno) {
        assert_eq!(self.run(op), Reply::Error(errno), "{op:?}");
    }
}

fn create(parent: InodeId, text: &str) -> Op {
    Op::Create {
        parent,
        name: name(text),
        permissions: 0o644,
        exclusive: false,
        caller: CALLER,
    }
}

fn mkdir(parent: InodeId, text: &str, shard: u16) -> Op {
    Op::Make {
        parent,
        name: name(text),
        kind: NewKind::Directory {
            permissions: 0o755,
            placement: InodeId::new(ShardId(shard), 0),
        },
        caller: CALLER,
    }
}

fn lookup(parent: InodeId, text: &str) -> Op {
    Op::Lookup {
        parent,
        name: name(text),
    }
}

fn closed(ino: InodeId) -> Op {
    let after = ReleaseStamp::default();
    Op::Closed { ino, after }
}

fn unlink(text: &str, known: Option<Known>) -> Op {
    Op::Unlink {
        parent: ROOT,
        name: name(text),
        known,
        standing: None,
    }
}

fn rmdir(parent: InodeId, text: &str, known: Option<Known>) -> Op {
    Op::Rmdir {
        parent,
        name: name(text),
        known,
        standing: None,
    }
}

fn extent(file_sector: u64, length: u32, sector: u64) -> Extent {
    Extent {
        file_sector,
        length,
        birth: 0,
        is_shared: false,
        locations: vec![Location {
            nsd: NsdId(0),
            sector,
        }],
        checksums: Checksums::Inline {
            crcs: vec![0; length as usize],
        },
    }
}

fn commit(attr: &Attr, size: u64, extents: Vec<Extent>) -> Commit {
    Commit {
        ino: attr.ino,
        generation: attr.generation,
        size_generation: attr.size_generation,
        size: Some(size),
        modified: Some(Timestamp {
            secs: i64::MAX,
            nanos: 0,
        }),
        kill_set_id: None,
        drops_rights: false,
        extents,
        pieces: vec![],
    }
}

#[test]
fn create_finds_or_makes() {
    let mut f = Fixture::new();
    let attr = f.create("a");
    assert_eq!(
        (attr.kind, attr.permissions, attr.nlink),
        (FileKind::File, 0o644, 1)
    );
    assert_eq!(
        (attr.uid, attr.gid, attr.generation, attr.change),
        (7, 8, 6, 1)
    );
    let Reply::Made {
        ino,
        is_new,
        directory,
        ..
    } = f.run(&create(ROOT, "a"))
    else {
        panic!();
    };
    assert_eq!((ino, is_new), (attr.ino, false));
    assert_eq!((directory.change, directory.mtime.secs), (2, 101));
    let exclusive = Op::Create {
        parent: ROOT,
        name: name("a"),
        permissions: 0,
        exclusive: true,
        caller: CALLER,
    };
    f.is_error(&exclusive, Errno::EEXIST);
    f.is_error(&create(attr.ino, "b"), Errno::ENOTDIR);
    f.is_error(&create(InodeId::new(ShardId(1), 50), "b"), Errno::ESTALE);
    f.mkdir(ROOT, "d");
    f.is_error(&create(ROOT, "d"), Errno::EISDIR);
    assert_eq!(f.run(&lookup(ROOT, "none")), Reply::Absent);
}

#[test]
fn make_inherits_the_group_and_counts_links() {
    let mut f = Fixture::new();
    let d = f.mkdir(ROOT, "d");
    assert_eq!(
        (d.nlink, d.ino.shard(), f.attr(ROOT).nlink),
        (2, ShardId(1), 3)
    );
    let set = SetAttr {
        permissions: Some(0o2770),
        gid: Some(50),
        ..SetAttr::default()
    };
    f.set(d.ino, set);
    let below = f.mkdir(d.ino, "below");
    assert_eq!((below.gid, below.permissions), (50, 0o2755));
    let file = f.made(&create(d.ino, "file"));
    assert_eq!((file.gid, file.permissions), (50, 0o644));
    let node = |text: &str, mode, rdev| Op::Make {
        parent: ROOT,
        name: name(text),
        kind: NewKind::Node { mode, rdev },
        caller: CALLER,
    };
    let device = f.made(&node("dev", 0o020_600, 77));
    assert_eq!(
        (device.kind, device.rdev, device.permissions),
        (FileKind::CharDevice, 77, 0o600)
    );
    f.is_error(&node("bad", 0o040_755, 0), Errno::EINVAL);
    f.is_error(&node("dev", 0o010_600, 0), Errno::EEXIST);
    let link = |target: SmallBytes| Op::Make {
        parent: ROOT,
        name: name("s"),
        kind: NewKind::Symlink { target },
        caller: CALLER,
    };
    f.is_error(&link(vec![b'x'; 4096].into()), Errno::ENAMETOOLONG);
    let s = f.made(&link(small("to/there")));
    assert_eq!(s.size, 8);
    assert_eq!(
        f.run(&Op::ReadLink { ino: s.ino }),
        Reply::Bytes(small("to/there"))
    );
    f.is_error(&Op::ReadLink { ino: d.ino }, Errno::EINVAL);
    let Reply::Entry { ino, .. } = f.run(&Op::LookupParent { ino: below.ino }) else {
        panic!();
    };
    assert_eq!(ino, d.ino);
}

#[test]
fn chown_and_chmod_follow_the_set_id_rules() {
    let mut f = Fixture::new();
    let ino = f.create("a").ino;
    let chmod = |permissions| SetAttr {
        permissions: Some(permissions),
        ..SetAttr::default()
    };
    let chown = SetAttr {
        uid: Some(1),
        ..SetAttr::default()
    };
    for (before, after) in [
        (0o6755, 0o755),
        (0o6745, 0o2745),
        (0o2755, 0o755),
        (0o644, 0o644),
    ] {
        f.set(ino, chmod(before));
        assert_eq!(f.set(ino, chown).permissions, after);
        f.set(ino, chmod(before));
        let as_the_kernel_says = SetAttr {
            kill_set_id: Some(f.attr(ino).gid + 1),
            ..chown
        };
        assert_eq!(f.set(ino, as_the_kernel_says).permissions, after);
        f.set(ino, chmod(before));
        let kill = SetAttr {
            kill_set_id: Some(f.attr(ino).gid),
            ..SetAttr::default()
        };
        assert_eq!(f.set(ino, kill).permissions, after);
    }
    // By somebody of another group set-group-id goes along with set-user-id, also from what is no program.
    for (before, after) in [
        (0o6666, 0o666),
        (0o6676, 0o676),
        (0o6766, 0o766),
        (0o2666, 0o2666),
        (0o2676, 0o676),
    ] {
        f.set(ino, chmod(before));
        let kill = SetAttr {
            kill_set_id: Some(f.attr(ino).gid + 1),
            ..SetAttr::default()
        };
        assert_eq!(f.set(ino, kill).permissions, after, "{before:o}");
    }
    let both = SetAttr {
        uid: Some(3),
        ..chmod(0o4755)
    };
    assert_eq!(f.set(ino, both).permissions, 0o4755);
    let d = f.mkdir(ROOT, "d").ino;
    f.set(d, chmod(0o2755));
    assert_eq!(f.set(d, chown).permissions, 0o2755);
}

#[test]
fn times_are_stamped_or_set_and_the_change_counter_grows() {
    let mut f = Fixture::new();
    let ino = f.create("a").ino;
    let then = Timestamp { secs: 5, nanos: 6 };
    let set = SetAttr {
        atime: Some(Some(then)),
        mtime: Some(None),
        ..SetAttr::default()
    };
    let attr = f.set(ino, set);
    assert_eq!(
        (attr.atime, attr.mtime.secs, attr.ctime.secs),
        (then, 102, 102)
    );
    assert_eq!(attr.change, 2);
}

/// Whoever looked at a file after a write does not find another ctime when the write is committed.
#[test]
fn a_commit_has_the_times_of_its_writes() {
    let mut f = Fixture::new();
    let ino = f.create("a").ino;
    let mut put = |now: i64, modified: Option<i64>, kill_set_id: bool| {
        let attr = f.attr(ino);
        f.now = now - 1;
        f.run(&Op::Commit(Commit {
            modified: modified.map(|secs| Timestamp { secs, nanos: 0 }),
            kill_set_id: kill_set_id.then_some(0),
            ..commit(&attr, 1, vec![])
        }));
        let attr = f.attr(ino);
        (attr.mtime.secs, attr.ctime.secs)
    };
    assert_eq!(put(200, Some(150), false), (150, 150));
    // Of another node, and older; of a clock that runs ahead; no write at all.
    assert_eq!(put(300, Some(140), true), (150, 150));
    assert_eq!(put(400, Some(900), false), (400, 400));
    assert_eq!(put(500, None, false), (400, 400));
    assert_eq!(put(600, None, true), (400, 600));
    assert_eq!(put(700, Some(550), false), (550, 600));
    // The owner's clock was wrong, and is right now: times go back.
    assert_eq!(put(300, Some(250), false), (250, 250));
}

#[test]
fn unlink_frees_at_once_or_with_the_last_close() {
    let mut f = Fixture::new();
    let known = |ino, is_open| Some(Known { ino, is_open });
    // Not open anywhere: the sectors come back at once.
    let attr = f.create("a");
    f.run(&Op::Commit(commit(&attr, 4096, vec![extent(0, 1, 100)])));
    let done = f.executed(&unlink("a", known(attr.ino, false)));
    assert!(matches!(
        done.reply,
        Reply::Removed {
            attr: None,
            kept_open: false,
            ..
        }
    ));
    assert_eq!(done.freed.len(), 1);
    f.is_error(&Op::GetAttr { ino: attr.ino }, Errno::ESTALE);
    // Open at another node, and here.
    let attr = f.create("b");
    f.run(&Op::Commit(commit(&attr, 4096, vec![extent(0, 1, 200)])));
    f.shards[0].note_open(attr.ino, OTHER, true);
    let done = f.executed(&unlink("b", known(attr.ino, true)));
    assert!(matches!(
        done.reply,
        Reply::Removed {
            attr: Some(_),
            kept_open: true,
            ..
        }
    ));
    assert_eq!((done.freed.len(), f.attr(attr.ino).nlink), (0, 0));
    let link = Op::Link {
        ino: attr.ino,
        kind: FileKind::File,
        parent: ROOT,
        name: name("again"),
    };
    f.is_error(&link, Errno::ENOENT);
    let told = f.executed(&closed(attr.ino));
    assert_eq!((told.freed.len(), told.reply), (0, Reply::Done));
    let lost = f.shards[0].on_node_lost(OTHER);
    assert_eq!(lost.freed.len(), 1);
    assert_eq!(f.shards[0].on_node_lost(OTHER).mutations, []);
    // Nothing known, or something else: taken to be open here until the node says no.
    for wrong in [None, known(ROOT, false)] {
        let attr = f.create("c");
        let done = f.executed(&unlink("c", wrong));
        assert!(matches!(
            done.reply,
            Reply::Removed {
                kept_open: true,
                ..
            }
        ));
        assert_eq!(f.run(&closed(attr.ino)), Reply::Absent);
        assert_eq!(f.shards[0].attr(attr.ino), None);
    }
    f.is_error(&unlink("none", None), Errno::ENOENT);
}

#[test]
fn links_are_counted() {
    let mut f = Fixture::new();
    let attr = f.create("a");
    let d = f.mkdir(ROOT, "d");
    let link = |ino, kind, parent, text: &str| Op::Link {
        ino,
        kind,
        parent,
        name: name(text),
    };
    assert_eq!(f.made(&link(attr.ino, FileKind::File, d.ino, "b")).nlink, 2);
    f.is_error(&link(attr.ino, FileKind::File, d.ino, "b"), Errno::EEXIST);
    f.is_error(&link(d.ino, FileKind::Directory, ROOT, "e"), Errno::EPERM);
    f.is_error(&link(attr.ino, FileKind::Fifo, ROOT, "e"), Errno::ESTALE);
    f.is_error(&unlink("d", None), Errno::EISDIR);
    f.is_error(&rmdir(ROOT, "a", None), Errno::ENOTDIR);
    f.is_error(&rmdir(ROOT, "d", None), Errno::ENOTEMPTY);
    f.run(&unlink("a", None));
    assert_eq!(f.attr(attr.ino).nlink, 1);
}

#[test]
fn an_open_directory_outlives_its_name() {
    let mut f = Fixture::new();
    let d = f.mkdir(ROOT, "d").ino;
    let known = Some(Known {
        ino: d,
        is_open: true,
    });
    assert!(matches!(
        f.run(&rmdir(ROOT, "d", known)),
        Reply::Removed {
            kept_open: true,
            ..
        }
    ));
    f.is_error(&create(d, "a"), Errno::ENOENT);
    let list = Op::ReadDir {
        ino: d,
        cookie: 0,
        size: 4096,
        plus: false,
    };
    assert!(matches!(f.run(&list), Reply::Listing { is_end: true, .. }));
    f.run(&closed(d));
    f.is_error(&list, Errno::ESTALE);
    assert_eq!(f.attr(ROOT).nlink, 2);
}

#[test]
fn a_listing_goes_on_while_names_come_and_go() {
    let mut f = Fixture::new();
    let names: Vec<String> = (0..500).map(|i| format!("name{i}")).collect();
    for text in &names {
        f.create(text);
    }
    let mut seen = BTreeSet::new();
    let mut cookie = 0;
    for round in 0.. {
        let size = 700;
        let op = Op::ReadDir {
            ino: ROOT,
            cookie,
            size,
            plus: round % 2 == 0,
        };
        let Reply::Listing {
            entries,
            parent,
            is_end,
        } = f.run(&op)
        else {
            panic!();
        };
        assert_eq!(parent, ROOT);
        let bytes: usize = entries
            .iter()
            .map(|e| listed_size(e.name.bytes().len(), round % 2 == 0))
            .sum();
        assert!(bytes <= size as usize && (is_end || !entries.is_empty()));
        for entry in entries {
            assert!(entry.cookie > cookie);
            assert_eq!(entry.attr.is_some(), round % 2 == 0);
            cookie = entry.cookie;
            assert!(seen.insert(entry.name.bytes().to_vec()), "seen twice");
        }
        if is_end {
            break;
        }
        f.create(&format!("new{round}"));
        if round % 3 == 0 {
            f.run(&unlink(&format!("new{round}"), None));
        }
    }
    for text in &names {
        assert!(
            seen.contains(text.as_bytes()),
            "{text} was there all the time"
        );
    }
}

#[test]
fn the_129th_name_of_one_hash_does_not_fit() {
    let mut f = Fixture::with_key(HashKey::WEAK);
    for i in 0..128 {
        f.create(&format!("n{i}"));
    }
    f.is_error(&create(ROOT, "n128"), Errno::ENOSPC);
    f.run(&unlink("n77", None));
    f.create("n128");
    for i in (0..129).filter(|i| *i != 77) {
        assert!(matches!(
            f.run(&lookup(ROOT, &format!("n{i}"))),
            Reply::Entry { .. }
        ));
    }
}

#[test]
fn repeats_are_answered_and_late_duplicates_ignored() {
    let mut f = Fixture::new();
    f.from = OTHER;
    let origin = |request| {
        Some(Origin {
            slot: 3,
            request: RequestId(request),
        })
    };
    let op = Op::Make {
        parent: ROOT,
        name: name("a"),
        kind: NewKind::Node {
            mode: 0o100_644,
            rdev: 0,
        },
        caller: CALLER,
    };
    let Outcome::Done(first) = f.outcome(&op, origin(1), Held::All) else {
        panic!();
    };
    assert!(first.durable_before_reply);
    let Outcome::Done(again) = f.outcome(&op, origin(1), Held::All) else {
        panic!();
    };
    assert_eq!((&again.reply, again.mutations.len()), (&first.reply, 0));
    // Another request of the slot fails; its duplicate fails alike even when it could succeed by now.
    let Outcome::Done(failed) = f.outcome(&op, origin(2), Held::All) else {
        panic!();
    };
    assert_eq!(failed.reply, Reply::Error(Errno::EEXIST));
    f.run(&unlink("a", None));
    let Outcome::Done(again) = f.outcome(&op, origin(2), Held::All) else {
        panic!();
    };
    assert_eq!(again, failed);
    assert_eq!(f.outcome(&op, origin(1), Held::All), Outcome::Ignore);
    let far = Some(Origin {
        slot: types::limits::SLOTS_PER_SHARD,
        request: RequestId(1),
    });
    let Outcome::Done(refused) = f.outcome(&op, far, Held::All) else {
        panic!();
    };
    assert_eq!(refused.reply, Reply::Error(Errno::EPROTO));
    assert!(f.shards[0].lives().contains(&OTHER));
    f.shards[0].on_node_lost(OTHER);
    assert!(f.shards[0].lives().is_empty());
}

#[test]
fn missing_shards_are_asked_for_and_foreign_ones_planned() {
    let mut f = Fixture::new();
    let d = f.mkdir(ROOT, "d").ino;
    f.shards.truncate(1);
    let needed = Outcome::NeedShards(vec![ShardId(1)]);
    assert_eq!(f.outcome(&lookup(ROOT, "d"), None, Held::All), needed);
    assert_eq!(f.outcome(&rmdir(ROOT, "d", None), None, Held::All), needed);
    assert_eq!(f.outcome(&Op::GetAttr { ino: d }, None, Held::All), needed);
    let far = Op::GetAttr {
        ino: InodeId::new(ShardId(2), 5),
    };
    f.is_error(&far, Errno::ESTALE);
    assert!(matches!(
        f.outcome(&mkdir(ROOT, "far", 2), None, Held::All),
        Outcome::NeedFacts(_)
    ));
    f.is_error(&mkdir(ROOT, "far", 9), Errno::ESTALE);
    let ahead = Op::Make {
        parent: ROOT,
        name: name("ahead"),
        kind: NewKind::Directory {
            permissions: 0o755,
            placement: InodeId::new(ShardId(0), (1 << 48) - 1),
        },
        caller: CALLER,
    };
    f.is_error(&ahead, Errno::ESTALE);
}

#[test]
fn a_name_in_doubt_waits_and_others_do_not() {
    let mut f = Fixture::new();
    f.create("other");
    let op = Op::Make {
        parent: ROOT,
        name: name("far"),
        kind: NewKind::Directory {
            permissions: 0o755,
            placement: InodeId::new(ShardId(2), 40),
        },
        caller: CALLER,
    };
    let Outcome::NeedOwners(plan) = f.outcome(&op, None, Held::All) else {
        panic!();
    };
    let id = plan.id;
    let owners = f.owners.clone();
    let view = |f: &mut Fixture, run: &dyn Fn(&mut View<'_>)| {
        run(&mut View::new(&mut f.shards, &owners, NodeId(1)));
    };
    view(&mut f, &|view| {
        assert_eq!(transaction::begin(view, (*plan).clone()).messages.len(), 1);
    });
    let wait = Outcome::Wait(id);
    assert_eq!(f.outcome(&lookup(ROOT, "far"), None, Held::All), wait);
    assert_eq!(f.outcome(&Op::GetAttr { ino: ROOT }, None, Held::All), wait);
    assert_eq!(f.outcome(&create(ROOT, "new"), None, Held::All), wait);
    assert_eq!(f.outcome(&op, None, Held::All), wait);
    assert!(matches!(f.run(&lookup(ROOT, "other")), Reply::Entry { .. }));
    view(&mut f, &|view| {
        transaction::give_up(view, id);
    });
    assert_eq!(f.run(&lookup(ROOT, "far")), Reply::Absent);
    f.create("new");
}

#[test]
fn wants_name_the_tokens_in_inode_order() {
    let mut f = Fixture::new();
    let a = f.create("a").ino;
    let b = f.create("b").ino;
    let d = f.mkdir(ROOT, "d").ino;
    let owners = f.owners.clone();
    let mut list = |op: &Op| {
        let ctx = Context {
            now: Timestamp::default(),
            from: ME,
            origin: None,
            random: 0,
            held: Held::Nothing,
            facts: &[],
        };
        let view = View::new(&mut f.shards, &owners, NodeId(1));
        wants(&view, &ctx, op).unwrap()
    };
    let write = Want::Directory {
        mode: DirectoryMode::Write,
    };
    let alone = Want::Inode {
        mode: InodeMode::Exclusive,
    };
    let rename = Op::Rename {
        parent: ROOT,
        name: name("b"),
        new_parent: d,
        new_name: name("a"),
        no_replace: false,
        exchange: false,
        whiteout: None,
        known: None,
        standing: None,
    };
    // Nobody sees what has no name.
    let nameless = Op::CreateNameless {
        parent: ROOT,
        permissions: 0o600,
        caller: CALLER,
    };
    assert!(list(&nameless).is_empty());
    let got: Vec<_> = list(&rename).into_iter().map(|w| (w.ino, w.want)).collect();
    assert_eq!(
        got,
        [
            (ROOT, write.clone()),
            (b, alone.clone()),
            (d, write.clone())
        ]
    );
    let over = Op::Rename {
        parent: ROOT,
        name: name("b"),
        new_parent: ROOT,
        new_name: name("a"),
        no_replace: false,
        exchange: false,
        whiteout: None,
        known: None,
        standing: None,
    };
    let got: Vec<_> = list(&over)
        .into_iter()
        .map(|w| (w.ino, w.commits_first))
        .collect();
    assert_eq!(got, [(ROOT, false), (a, false), (b, true)]);
    let got: Vec<_> = list(&unlink("a", None))
        .into_iter()
        .map(|w| (w.ino, w.is_transient))
        .collect();
    assert_eq!(got, [(ROOT, false), (a, true)]);
    let truncate = Op::SetAttr {
        ino: a,
        set: SetAttr {
            size: Some(9),
            ..SetAttr::default()
        },
        standing: None,
    };
    let got = list(&truncate);
    assert_eq!((got.len(), &got[0].want), (2, &alone));
    assert!(matches!(&got[1].want, Want::Range { required, .. } if required.offset == 0));
    assert_eq!(
        list(&Op::GetAttr { ino: d })[0].want,
        Want::Directory {
            mode: DirectoryMode::Read
        }
    );
    assert_eq!(list(&closed(a))[..], []);
}

#[test]
fn a_prepared_number_stays_reserved_over_a_restart() {
    let mut f = Fixture::new();
    let mut attr = f.mkdir(ROOT, "d");
    let far = ShardId(2);
    attr.ino = f.shards[1].reserve_index();
    let record = InodeRecord {
        attr,
        parent: InodeId::new(far, 2),
        target: SmallBytes::default(),
    };
    let envelope = Envelope {
        id: TransactionId {
            coordinator: far,
            number: 1,
        },
        from: far,
        to: ShardId(1),
        message: TransactionMessage::Prepare {
            now: attr.ctime,
            steps: vec![Step::InodeCreate { record }],
        },
    };
    let mut shards = f.shards.iter_mut();
    let locked = vec![shards.next().unwrap(), shards.next().unwrap()];
    let mut view = View::new(locked, &f.owners, NodeId(1));
    let Handled::Done(progress) = transaction::on_message(&mut view, &envelope) else {
        panic!();
    };
    drop(view);
    let mut restarted = Shard::new(ShardId(1), HashKey(99));
    f.shards[1].snapshot(&mut |m| {
        if !matches!(m, Mutation::NextIndex { .. } | Mutation::Prepare { .. }) {
            restarted.apply(&m);
        }
    });
    restarted.apply(&progress.mutations[0].1);
    f.shards[1] = restarted;
    assert!(f.mkdir(ROOT, "e").ino.index() > attr.ino.index());
}

/// A removal by way of another owner: who asked for it is told at once that it is taken to have the file open, and says
/// that it has not. That may overtake the removal itself.
#[test]
fn a_close_waits_for_the_removal_that_it_is_about() {
    let mut f = Fixture::new();
    let ino = f.create("file").ino;
    let far = ShardId(2);
    let id = TransactionId {
        coordinator: far,
        number: 1,
    };
    let say = |f: &mut Fixture, message| {
        let envelope = Envelope {
            id,
            from: far,
            to: ino.shard(),
            message,
        };
        let mut view = View::new(f.shards.iter_mut(), &f.owners, NodeId(1));
        let handled = transaction::on_message(&mut view, &envelope);
        assert!(matches!(handled, Handled::Done(_)), "{handled:?}");
    };
    let step = Step::LinkDrop {
        ino,
        open_at: Some(OTHER),
    };
    let prepare = TransactionMessage::Prepare {
        now: Timestamp::default(),
        steps: vec![step],
    };
    say(&mut f, prepare);
    f.from = OTHER;
    let close = |f: &mut Fixture| f.outcome(&closed(ino), None, Held::All);
    assert_eq!(close(&mut f), Outcome::Wait(id));
    say(&mut f, TransactionMessage::Commit);
    assert_eq!(f.shards[0].orphans().collect::<Vec<_>>(), [ino]);
    let Outcome::Done(told) = close(&mut f) else {
        panic!();
    };
    assert_eq!(told.reply, Reply::Absent);
    assert_eq!(f.shards[0].orphans().count(), 0);
}

//! Files that are made without a name (O_TMPFILE): kept for who made them, given a name, or gone.

use super::*;

fn nameless(parent: InodeId) -> Op {
    Op::CreateNameless {
        parent,
        permissions: 0o640,
        caller: CALLER,
    }
}

fn link(ino: InodeId, parent: InodeId, text: &str) -> Op {
    Op::LinkNameless {
        ino,
        parent,
        name: name(text),
    }
}

/// All of it is one record, and a replay of it has the file open where it was made.
fn is_replayed(f: &Fixture, done: &Executed) {
    let mut twin = Shard::new(ShardId(0), HashKey(99));
    twin.make_root(Timestamp::default(), 0o755, 1);
    for (_, mutation) in &done.mutations {
        twin.apply(mutation);
    }
    let list = |shard: &Shard| {
        let mut all = Vec::new();
        shard.snapshot(&mut |m| all.push(m));
        all
    };
    assert_eq!(list(&twin), list(&f.shards[0]));
}

#[test]
fn a_nameless_file_goes_with_its_maker() {
    let mut f = Fixture::new();
    let before = f.attr(ROOT);
    let done = f.executed(&nameless(ROOT));
    is_replayed(&f, &done);
    let Reply::Made {
        attr: Some(attr),
        ino,
        is_new: true,
        directory,
    } = done.reply
    else {
        panic!("{:?}", done.reply);
    };
    assert_eq!((attr.ino, attr.nlink, attr.permissions), (ino, 0, 0o640));
    assert_eq!((attr.uid, attr.gid), (CALLER.uid, CALLER.gid));
    assert_eq!(directory, before, "no name, no change of the directory");
    assert_eq!(f.shards[0].orphans().collect::<Vec<_>>(), [ino]);
    assert!(f.shards[0].is_open_at(ino, ME));
    // What has lost its last name gets none; who made it may give it one.
    let op = Op::Link {
        ino,
        kind: FileKind::File,
        parent: ROOT,
        name: name("a"),
    };
    f.is_error(&op, Errno::ENOENT);
    assert_eq!(f.run(&closed(ino)), Reply::Absent);
    f.is_error(&link(ino, ROOT, "a"), Errno::ENOENT);
    // The same, when its maker is dead.
    let ino = f.made(&nameless(ROOT)).ino;
    f.shards[0].on_node_lost(ME);
    f.shards[0].check();
    assert!(!f.shards[0].has_inode(ino));
}

#[test]
fn a_nameless_file_is_given_a_name() {
    let mut f = Fixture::new();
    let directory = f.mkdir(ROOT, "d").ino;
    let ino = f.made(&nameless(ROOT)).ino;
    f.create("taken");
    f.is_error(&link(ino, ROOT, "taken"), Errno::EEXIST);
    f.is_error(&link(directory, ROOT, "x"), Errno::ESTALE);
    // In a directory of another shard, too.
    let attr = f.made(&link(ino, directory, "a"));
    assert_eq!((attr.ino, attr.nlink), (ino, 1));
    assert_eq!(f.shards[0].orphans().count(), 0);
    let found = f.run(&lookup(directory, "a"));
    assert!(matches!(found, Reply::Entry { ino: found, .. } if found == ino));
    f.run(&closed(ino));
    assert!(f.shards[0].has_inode(ino), "it has a name");
}

#[test]
fn it_is_as_what_is_made_in_the_directory() {
    let mut f = Fixture::new();
    let directory = f.mkdir(ROOT, "d").ino;
    let set = SetAttr {
        permissions: Some(0o2775),
        gid: Some(77),
        ..SetAttr::default()
    };
    f.set(directory, set);
    let attr = f.made(&nameless(directory));
    assert_eq!((attr.gid, attr.permissions), (77, 0o640));
    assert_eq!(attr.ino.shard(), directory.shard());
    let file = f.create("file").ino;
    f.is_error(&nameless(file), Errno::ENOTDIR);
    // A directory that is gone, and kept open, has no room for more.
    let gone = Op::Rmdir {
        parent: ROOT,
        name: name("d"),
        known: Some(Known {
            ino: directory,
            is_open: true,
        }),
        standing: None,
    };
    f.run(&gone);
    f.is_error(&nameless(directory), Errno::ENOENT);
}

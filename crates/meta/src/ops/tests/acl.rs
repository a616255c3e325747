//! Access control lists: in step with the mode, inherited in the record that makes an inode.

use super::*;
use crate::acl::{ACCESS, DEFAULT};
use types::attr::XATTR_KILL_SET_GID;

/// Owner, user 1000, owning group, mask, others.
fn long(owner: u8, user: u8, group: u8, mask: u8, others: u8) -> SmallBytes {
    let entries = [(1, owner, None), (2, user, Some(1000)), (4, group, None)];
    list(&[&entries[..], &[(16, mask, None), (32, others, None)]].concat())
}

pub(super) fn short(owner: u8, group: u8, others: u8) -> SmallBytes {
    list(&[(1, owner, None), (4, group, None), (32, others, None)])
}

fn list(entries: &[(u8, u8, Option<u32>)]) -> SmallBytes {
    let mut out = vec![2, 0, 0, 0];
    for (tag, rights, id) in entries {
        out.extend([*tag, 0, *rights, 0]);
        out.extend(id.unwrap_or(u32::MAX).to_le_bytes());
    }
    out.into()
}

fn set(ino: InodeId, name: &[u8], value: &SmallBytes) -> Op {
    Op::SetXattr {
        ino,
        name: SmallBytes::new(name),
        value: value.clone(),
        flags: 0,
        standing: None,
    }
}

impl Fixture {
    fn acl(&mut self, ino: InodeId, name: &[u8]) -> Option<SmallBytes> {
        let name = SmallBytes::new(name);
        match self.run(&Op::GetXattr { ino, name }) {
            Reply::Bytes(bytes) => Some(bytes),
            Reply::Error(Errno::ENODATA) => None,
            other => panic!("{other:?}"),
        }
    }

    fn set_acl(&mut self, ino: InodeId, name: &[u8], value: &SmallBytes) -> Attr {
        match self.run(&set(ino, name, value)) {
            Reply::Attr(attr) => attr,
            other => panic!("{other:?}"),
        }
    }

    fn chmod(&mut self, ino: InodeId, permissions: u32) -> Attr {
        let set = SetAttr {
            permissions: Some(permissions),
            ..SetAttr::default()
        };
        self.set(ino, set)
    }

    fn mode(&mut self, ino: InodeId) -> u32 {
        self.attr(ino).mode() & 0o7777
    }
}

#[test]
fn mode_and_access_list_go_together() {
    let mut f = Fixture::new();
    let ino = f.create("a").ino;
    let before = f.attr(ino);
    assert!(!before.has_acl());
    let attr = f.set_acl(ino, ACCESS, &long(6, 4, 4, 6, 0));
    assert_eq!((attr.mode(), attr.has_acl()), (0o100_660, true));
    assert!(attr.change > before.change && attr.ctime > before.ctime);
    // chmod changes the mask, and leaves the owning group.
    let attr = f.chmod(ino, 0o4741);
    assert_eq!((attr.mode(), attr.has_acl()), (0o104_741, true));
    assert_eq!(f.acl(ino, ACCESS), Some(long(7, 4, 4, 4, 1)));
    // What else changes the attributes leaves the list.
    let set = SetAttr {
        uid: Some(3),
        ..SetAttr::default()
    };
    assert!(f.set(ino, set).has_acl());
    let names = small("system.posix_acl_access\0");
    assert_eq!(f.run(&Op::ListXattr { ino }), Reply::Bytes(names));
    // A list that says what the mode says is not kept; nor is one that is removed.
    let attr = f.set_acl(ino, ACCESS, &short(7, 5, 1));
    assert_eq!((attr.mode() & 0o777, attr.has_acl()), (0o751, false));
    assert_eq!(f.acl(ino, ACCESS), None);
    f.set_acl(ino, ACCESS, &long(7, 7, 0, 7, 0));
    let name = SmallBytes::new(ACCESS);
    let remove = Op::RemoveXattr {
        ino,
        name,
        standing: None,
    };
    // The second time there is none to remove, which other file systems do not mind.
    for _ in 0..2 {
        let reply = f.run(&remove);
        assert!(matches!(reply, Reply::Attr(a) if a.mode() & 0o777 == 0o770 && !a.has_acl()));
    }
}

#[test]
fn who_is_not_of_the_group_loses_the_set_group_id_bit() {
    let mut f = Fixture::new();
    let ino = f.create("a").ino;
    for (flags, expected) in [(0, 0o2660), (XATTR_KILL_SET_GID, 0o660)] {
        f.chmod(ino, 0o2777);
        let op = Op::SetXattr {
            ino,
            name: SmallBytes::new(ACCESS),
            value: long(6, 6, 6, 6, 0),
            flags,
            standing: None,
        };
        f.run(&op);
        assert_eq!(f.mode(ino), expected);
    }
    let op = Op::SetXattr {
        ino,
        name: small("user.a"),
        value: small("b"),
        flags: XATTR_KILL_SET_GID,
        standing: None,
    };
    f.is_error(&op, Errno::EINVAL);
}

#[test]
fn what_is_no_list_changes_nothing() {
    let mut f = Fixture::new();
    let ino = f.create("a").ino;
    f.is_error(&set(ino, ACCESS, &small("rubbish")), Errno::EOPNOTSUPP);
    f.is_error(&set(ino, ACCESS, &list(&[(1, 7, None)])), Errno::EINVAL);
    f.is_error(&set(ino, DEFAULT, &short(7, 7, 7)), Errno::EACCES);
    let link = Op::Make {
        parent: ROOT,
        name: name("link"),
        kind: NewKind::Symlink { target: small("x") },
        caller: CALLER,
    };
    let link = f.made(&link).ino;
    f.is_error(&set(link, ACCESS, &short(7, 7, 7)), Errno::EOPNOTSUPP);
    f.is_error(&set(ino, b"system.other", &small("x")), Errno::EOPNOTSUPP);
}

/// A directory with a default list, and what all kinds get in it.
#[test]
fn what_is_made_begins_with_the_default_list() {
    let mut f = Fixture::new();
    let directory = f.mkdir(ROOT, "d").ino;
    assert_eq!(f.mode(directory), 0o755, "the umask is taken away");
    let default = long(7, 6, 5, 7, 4);
    let attr = f.set_acl(directory, DEFAULT, &default);
    assert_eq!((attr.mode() & 0o777, attr.has_acl()), (0o755, true));
    assert_eq!(f.acl(directory, ACCESS), None);
    // A file, without the umask.
    let create = |text: &str, permissions| Op::Create {
        parent: directory,
        name: name(text),
        permissions,
        exclusive: true,
        caller: CALLER,
    };
    let done = f.executed(&create("file", 0o664));
    let Reply::Made {
        attr: Some(file), ..
    } = done.reply
    else {
        panic!("{:?}", done.reply);
    };
    assert_eq!(file.mode() & 0o7777, 0o664);
    assert_eq!(f.acl(file.ino, ACCESS), Some(long(6, 6, 5, 6, 4)));
    assert_eq!(f.acl(file.ino, DEFAULT), None);
    // In one record.
    let is_list = |(_, m): &(ShardId, Mutation)| matches!(m, Mutation::XattrPut { .. });
    assert_eq!(done.mutations.iter().filter(|m| is_list(m)).count(), 1);
    // A directory inherits both, and so on.
    let below = f.made(&mkdir(directory, "sub", 1));
    assert_eq!(below.mode() & 0o7777, 0o754);
    assert_eq!(f.acl(below.ino, ACCESS), Some(long(7, 6, 5, 5, 4)));
    assert_eq!(f.acl(below.ino, DEFAULT), Some(default.clone()));
    // A FIFO, a file without a name; a symbolic link has no rights.
    let make = |text: &str, kind| Op::Make {
        parent: directory,
        name: name(text),
        kind,
        caller: CALLER,
    };
    let fifo = NewKind::Node {
        mode: 0o010_622,
        rdev: 0,
    };
    let fifo = f.made(&make("fifo", fifo)).ino;
    assert_eq!(f.acl(fifo, ACCESS), Some(long(6, 6, 5, 2, 0)));
    let nameless = Op::CreateNameless {
        parent: directory,
        permissions: 0o600,
        caller: CALLER,
    };
    let nameless = f.made(&nameless).ino;
    assert_eq!(f.acl(nameless, ACCESS), Some(long(6, 6, 5, 0, 0)));
    let link = NewKind::Symlink { target: small("x") };
    let link = f.made(&make("link", link));
    assert_eq!((link.mode() & 0o777, link.has_acl()), (0o777, false));
    // A default list that says no more than a mode: it stands for the umask, and only directories keep it.
    f.set_acl(directory, DEFAULT, &short(7, 7, 5));
    let plain = f.made(&create("plain", 0o666));
    assert_eq!((plain.mode() & 0o777, plain.has_acl()), (0o664, false));
    assert!(f.made(&mkdir(directory, "again", 1)).has_acl());
    f.run(&Op::RemoveXattr {
        ino: directory,
        name: SmallBytes::new(DEFAULT),
        standing: None,
    });
    assert!(!f.attr(directory).has_acl());
    let plain = f.made(&create("masked", 0o666));
    assert_eq!(plain.mode() & 0o777, 0o644);
}

/// The record of a directory that another owner makes brings its lists along.
#[test]
fn another_owners_directory_inherits_too() {
    let mut f = Fixture::new();
    let directory = f.mkdir(ROOT, "d").ino;
    f.set_acl(directory, DEFAULT, &long(7, 6, 5, 7, 4));
    let far = Op::Make {
        parent: directory,
        name: name("far"),
        kind: NewKind::Directory {
            permissions: 0o755,
            placement: InodeId::new(ShardId(2), 9),
        },
        caller: CALLER,
    };
    let Outcome::NeedOwners(plan) = f.outcome(&far, None, Held::All) else {
        panic!("it is another owner's");
    };
    let steps = &plan.remote[&ShardId(2)];
    let lists = steps.iter().filter(|s| matches!(s, Step::NewXattr { .. }));
    assert!(matches!(steps[0], Step::InodeCreate { .. }));
    assert_eq!(lists.count(), 2);
    // As its owner performs them.
    let mut shard = Shard::new(ShardId(2), HashKey(99));
    let mut changes = crate::shard::Changes::default();
    let owners = [NodeId(1); 3];
    let mut view = View::new([&mut shard], &owners, NodeId(1));
    for step in steps {
        assert_eq!(step.check(&view), Ok(()));
    }
    for step in steps {
        step.perform(&mut view, Timestamp::default(), &mut changes);
    }
    drop(view);
    shard.check();
    let attr = shard.attr(InodeId::new(ShardId(2), 9)).unwrap();
    assert_eq!((attr.mode() & 0o777, attr.has_acl()), (0o754, true));
}

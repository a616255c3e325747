//! What only the owner may do, also where the kernel of who asks takes another one for him.

use super::*;
use crate::acl::{ACCESS, DEFAULT};

/// Somebody who acts for nobody else.
fn only(uid: u32) -> Option<Standing> {
    let (first, last) = (1, 0);
    Some(Standing { uid, first, last })
}

fn belongs_to(uid: u32) -> Reply {
    Reply::NotOwner { uid }
}

/// Sets the owner of an inode, and its bits.
fn give(f: &mut Fixture, ino: InodeId, uid: u32, permissions: u32) {
    let set = SetAttr {
        uid: Some(uid),
        permissions: Some(permissions),
        ..SetAttr::default()
    };
    f.set(ino, set);
}

#[test]
fn who_was_the_owner_changes_nothing() {
    let mut f = Fixture::new();
    let ino = f.create("file").ino;
    give(&mut f, ino, 7, 0o644);
    let before = f.attr(ino);
    let empty = SetAttr::default();
    let time = Timestamp { secs: 5, nanos: 0 };
    let owners = [
        SetAttr {
            permissions: Some(0o4755),
            ..empty
        },
        SetAttr {
            uid: Some(8),
            ..empty
        },
        SetAttr {
            gid: Some(8),
            ..empty
        },
        SetAttr {
            atime: Some(Some(time)),
            ..empty
        },
        SetAttr {
            mtime: Some(Some(time)),
            ..empty
        },
    ];
    let list = acl::short(7, 7, 7);
    for standing in [only(8), only(0)] {
        for set in owners {
            let op = Op::SetAttr { ino, set, standing };
            assert_eq!(f.run(&op), belongs_to(7), "{set:?}");
        }
        for name in [ACCESS, DEFAULT] {
            let op = Op::SetXattr {
                ino,
                name: SmallBytes::new(name),
                value: list.clone(),
                flags: 0,
                standing,
            };
            assert_eq!(f.run(&op), belongs_to(7));
            let op = Op::RemoveXattr {
                ino,
                name: SmallBytes::new(name),
                standing,
            };
            assert_eq!(f.run(&op), belongs_to(7));
        }
    }
    assert_eq!(f.attr(ino), before, "nothing has happened");
    // What who may write may do.
    for set in [
        SetAttr {
            size: Some(3),
            ..empty
        },
        SetAttr {
            mtime: Some(None),
            atime: Some(None),
            ..empty
        },
    ] {
        let op = Op::SetAttr {
            ino,
            set,
            standing: only(8),
        };
        assert!(matches!(f.run(&op), Reply::Attr(_)), "{set:?}");
    }
    let op = Op::SetXattr {
        ino,
        name: small("user.x"),
        value: small("y"),
        flags: 0,
        standing: only(8),
    };
    assert!(matches!(f.run(&op), Reply::Attr(_)));
    // The owner, root, and who acts for the owner.
    let (first, last) = (5, 7);
    let acting = Some(Standing {
        uid: 8,
        first,
        last,
    });
    for standing in [only(7), None, acting] {
        let op = Op::SetAttr {
            ino,
            set: owners[0],
            standing,
        };
        assert!(matches!(f.run(&op), Reply::Attr(attr) if attr.permissions == 0o4755));
    }
    give(&mut f, ino, 4, 0o644);
    let op = Op::SetAttr {
        ino,
        set: owners[0],
        standing: acting,
    };
    assert_eq!(f.run(&op), belongs_to(4));
}

fn unlink_by(parent: InodeId, text: &str, standing: Option<Standing>) -> Op {
    Op::Unlink {
        parent,
        name: name(text),
        known: None,
        standing,
    }
}

fn rename_by(
    (parent, from): (InodeId, &str),
    (new_parent, to): (InodeId, &str),
    exchange: bool,
    standing: Option<Standing>,
) -> Op {
    Op::Rename {
        parent,
        name: name(from),
        new_parent,
        new_name: name(to),
        no_replace: false,
        exchange,
        whiteout: None,
        known: None,
        standing,
    }
}

#[test]
fn names_in_a_sticky_directory_go_by_their_owners() {
    let mut f = Fixture::new();
    let sticky = f.mkdir(ROOT, "sticky").ino;
    let plain = f.mkdir(ROOT, "plain").ino;
    give(&mut f, sticky, 1, 0o1777);
    give(&mut f, plain, 1, 0o777);
    let mut names = Vec::new();
    for (parent, text, uid) in [
        (sticky, "of7", 7),
        (sticky, "of8", 8),
        (plain, "of7", 7),
        (plain, "of8", 8),
    ] {
        let ino = f.made(&create(parent, text)).ino;
        give(&mut f, ino, uid, 0o600);
        names.push((parent, text, ino));
    }
    let directory = f.made(&mkdir(sticky, "d7", 0)).ino;
    give(&mut f, directory, 7, 0o777);
    let refused = [
        unlink_by(sticky, "of7", only(8)),
        Op::Rmdir {
            parent: sticky,
            name: name("d7"),
            known: None,
            standing: only(8),
        },
        // Moved away, replaced, and both.
        rename_by((sticky, "of7"), (plain, "new"), false, only(8)),
        rename_by((plain, "of8"), (sticky, "of7"), false, only(8)),
        rename_by((sticky, "of8"), (sticky, "of7"), false, only(8)),
        rename_by((sticky, "of8"), (sticky, "of7"), true, only(8)),
        rename_by((plain, "of8"), (sticky, "of7"), true, only(8)),
    ];
    for op in &refused {
        assert_eq!(f.run(op), belongs_to(7), "{op:?}");
    }
    for (parent, text, ino) in &names {
        let found = f.run(&lookup(*parent, text));
        assert!(matches!(found, Reply::Entry { ino: found, .. } if found == *ino));
    }
    for (op, is_rename) in [
        // Without the bit names are of those who may write the directory.
        (
            rename_by((plain, "of7"), (sticky, "new"), false, only(8)),
            true,
        ),
        // Its owner, that of the directory, root.
        (unlink_by(sticky, "new", only(7)), false),
        (
            rename_by((sticky, "of8"), (sticky, "of7"), false, only(1)),
            true,
        ),
        (unlink_by(sticky, "of7", None), false),
        (
            Op::Rmdir {
                parent: sticky,
                name: name("d7"),
                known: None,
                standing: only(7),
            },
            false,
        ),
    ] {
        let reply = f.run(&op);
        match is_rename {
            true => assert!(matches!(reply, Reply::Renamed { .. }), "{op:?}: {reply:?}"),
            false => assert!(matches!(reply, Reply::Removed { .. }), "{op:?}: {reply:?}"),
        }
    }
}

#[test]
fn a_whiteout_in_a_sticky_directory_is_nobodys() {
    let mut f = Fixture::new();
    let sticky = f.mkdir(ROOT, "sticky").ino;
    give(&mut f, sticky, 0, 0o1777);
    let make = |text: &str, rdev| Op::Make {
        parent: sticky,
        name: name(text),
        kind: NewKind::Node {
            mode: 0o020_600,
            rdev,
        },
        caller: CALLER,
    };
    for (text, rdev) in [("whiteout", 0), ("device", 7)] {
        let ino = f.made(&make(text, rdev)).ino;
        give(&mut f, ino, 0, 0);
    }
    let own = f.made(&create(ROOT, "own")).ino;
    give(&mut f, own, 8, 0o600);
    let over = |text| rename_by((ROOT, "own"), (sticky, text), true, only(8));
    assert_eq!(f.run(&over("device")), belongs_to(0));
    assert!(matches!(f.run(&over("whiteout")), Reply::Renamed { .. }));
}

/// A copy of the request that comes when the file has become the caller's.
#[test]
fn who_was_told_that_he_is_not_the_owner_stays_told() {
    let mut f = Fixture::new();
    let ino = f.create("file").ino;
    give(&mut f, ino, 7, 0o644);
    let set = SetAttr {
        permissions: Some(0o4755),
        ..SetAttr::default()
    };
    let op = Op::SetAttr {
        ino,
        set,
        standing: only(8),
    };
    let origin = Some(Origin {
        slot: 3,
        request: RequestId(9),
    });
    let ask = |f: &mut Fixture| match f.outcome(&op, origin, Held::All) {
        Outcome::Done(executed) => executed.reply,
        other => panic!("{other:?}"),
    };
    assert_eq!(ask(&mut f), belongs_to(7));
    give(&mut f, ino, 8, 0o644);
    assert_eq!(ask(&mut f), belongs_to(7));
    assert_eq!(f.attr(ino).permissions, 0o644);
}

/// Whose it is another owner says, where the name leads there, or the target directory is there.
#[test]
fn owners_of_what_is_elsewhere_are_asked_for() {
    let mut f = Fixture::new();
    let sticky = f.mkdir(ROOT, "sticky").ino;
    give(&mut f, sticky, 1, 0o1777);
    let far = InodeId::new(ShardId(2), 40);
    let link = Op::Link {
        ino: far,
        kind: FileKind::File,
        parent: sticky,
        name: name("far"),
    };
    let Outcome::NeedOwners(plan) = f.outcome(&link, None, Held::All) else {
        panic!("the inode is another owner's");
    };
    f.begin(&plan);
    f.all_agree(&plan);
    let mut attr = f.attr(sticky);
    (attr.ino, attr.kind, attr.uid) = (far, FileKind::File, 7);
    let query = Outcome::NeedFacts(vec![crate::Query::Attributes { ino: far }]);
    for (standing, is_refused) in [(only(7), false), (only(8), true)] {
        let op = unlink_by(sticky, "far", standing);
        assert_eq!(f.outcome(&op, None, Held::All), query);
        let facts = [crate::Fact::Attributes { attr }];
        match f.outcome_by(&op, None, Held::All, &facts) {
            Outcome::NeedOwners(_) if !is_refused => {}
            Outcome::Done(executed) if is_refused => assert_eq!(executed.reply, belongs_to(7)),
            other => panic!("{other:?}"),
        }
    }
    for standing in [only(1), None] {
        let op = unlink_by(sticky, "far", standing);
        assert!(matches!(
            f.outcome(&op, None, Held::All),
            Outcome::NeedOwners(_)
        ));
    }
}

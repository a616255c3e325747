//! Extended attributes: set, listed, removed, and how many there may be.

use super::*;

#[test]
fn extended_attributes_come_and_go() {
    let mut f = Fixture::new();
    let ino = f.create("a").ino;
    let set = |text: &str, flags| Op::SetXattr {
        ino,
        name: small(text),
        value: small("value"),
        flags,
        standing: None,
    };
    let get = |text: &str| Op::GetXattr {
        ino,
        name: small(text),
    };
    f.is_error(&get("user.a"), Errno::ENODATA);
    f.is_error(&set("user.a", 2), Errno::ENODATA);
    assert!(matches!(
        f.run(&set("user.a", 1)),
        Reply::Attr(Attr { change: 2, .. })
    ));
    f.is_error(&set("user.a", 1), Errno::EEXIST);
    f.is_error(&set("user.a", 3), Errno::EINVAL);
    assert_eq!(f.run(&get("user.a")), Reply::Bytes(small("value")));
    for other in [
        "security.selinux",
        "system.other",
        "user.",
        "nothing",
        "btrfs.x",
    ] {
        f.is_error(&set(other, 0), Errno::EOPNOTSUPP);
        f.is_error(&get(other), Errno::EOPNOTSUPP);
    }
    f.run(&set("trusted.b", 0));
    f.run(&set("security.capability", 0));
    let list = Op::ListXattr { ino };
    let all = small("security.capability\0trusted.b\0user.a\0");
    assert_eq!(f.run(&list), Reply::Bytes(all));
    let chown = SetAttr {
        gid: Some(1),
        ..SetAttr::default()
    };
    f.set(ino, chown);
    assert_eq!(f.run(&list), Reply::Bytes(small("trusted.b\0user.a\0")));
    let remove = Op::RemoveXattr {
        ino,
        name: small("user.a"),
        standing: None,
    };
    assert!(matches!(f.run(&remove), Reply::Attr(_)));
    f.is_error(&remove, Errno::ENODATA);
    let big = Op::SetXattr {
        ino,
        name: small("user.big"),
        value: vec![0; 65_537].into(),
        flags: 0,
        standing: None,
    };
    f.is_error(&big, Errno::ENOSPC);
}

#[test]
fn the_extended_attributes_of_an_inode_have_a_bound() {
    let mut f = Fixture::new();
    let ino = f.create("file").ino;
    let set = |number: usize, size: usize| Op::SetXattr {
        ino,
        name: small(&format!("user.{number:02}")),
        value: vec![7; size].into(),
        flags: 0,
        standing: None,
    };
    let size = (1 << 16) - 7;
    for number in 0..16 {
        assert!(
            matches!(f.run(&set(number, size)), Reply::Attr(_)),
            "{number}"
        );
    }
    f.is_error(&set(16, 0), Errno::ENOSPC);
    // Shorter, and as long again, it may be.
    for size in [5, size] {
        assert!(matches!(f.run(&set(3, size)), Reply::Attr(_)));
    }
    f.is_error(&set(3, size + 1), Errno::ENOSPC);
    let remove = Op::RemoveXattr {
        ino,
        name: small("user.03"),
        standing: None,
    };
    assert!(matches!(f.run(&remove), Reply::Attr(_)));
    assert!(matches!(f.run(&set(16, size)), Reply::Attr(_)));
}

//! Layouts: set on what is empty, inherited, shown, journaled.

use super::*;
use types::Layout;
use types::layout::LAYOUT_XATTR;

fn set(ino: InodeId, value: &str, flags: u32) -> Op {
    Op::SetXattr {
        ino,
        name: SmallBytes::new(LAYOUT_XATTR),
        value: small(value),
        flags,
        standing: None,
    }
}

fn get(ino: InodeId) -> Op {
    let name = SmallBytes::new(LAYOUT_XATTR);
    Op::GetXattr { ino, name }
}

fn remove(ino: InodeId) -> Op {
    let name = SmallBytes::new(LAYOUT_XATTR);
    Op::RemoveXattr {
        ino,
        name,
        standing: None,
    }
}

fn layout(nsds: &[u16]) -> Layout {
    let nsds: Vec<NsdId> = nsds.iter().copied().map(NsdId).collect();
    Layout::new(&nsds, None).expect("good")
}

#[test]
fn a_layout_is_part_of_the_attributes() {
    let mut f = Fixture::new();
    let ino = f.create("a").ino;
    f.is_error(&get(ino), Errno::ENODATA);
    f.is_error(&remove(ino), Errno::ENODATA);
    f.is_error(&set(ino, "nsds=3,4", 2), Errno::ENODATA);
    let done = f.executed(&set(ino, "nsds=3,4", 1));
    let Reply::Attr(attr) = done.reply else {
        panic!("no attributes")
    };
    assert_eq!(attr.layout, layout(&[3, 4]));
    let [(_, Mutation::AttrPut { attr: put, .. })] = &done.mutations[..] else {
        panic!("one record: {:?}", done.mutations)
    };
    assert_eq!(*put, attr);
    f.is_error(&set(ino, "nsds=1", 1), Errno::EEXIST);
    f.is_error(&set(ino, "nsds=1", 3), Errno::EINVAL);
    for bad in ["nsds=1,1", "nsds=", "blocks=1M", "block=7"] {
        f.is_error(&set(ino, bad, 0), Errno::EINVAL);
    }
    assert_eq!(f.run(&get(ino)), Reply::Bytes(small("nsds=3,4")));
    let names = small("trusted.gupfs.layout\0");
    assert_eq!(f.run(&Op::ListXattr { ino }), Reply::Bytes(names));
    assert!(matches!(f.run(&remove(ino)), Reply::Attr(a) if a.layout.is_default()));
    assert_eq!(f.run(&Op::ListXattr { ino }), Reply::Bytes(small("")));
}

#[test]
fn a_file_with_bytes_keeps_its_layout() {
    let mut f = Fixture::new();
    let attr = f.create("a");
    f.run(&set(attr.ino, "nsds=1", 0));
    f.run(&Op::Commit(commit(&attr, 4096, vec![extent(0, 1, 100)])));
    f.is_error(&set(attr.ino, "nsds=2", 0), Errno::EBUSY);
    f.is_error(&remove(attr.ino), Errno::EBUSY);
    let size = SetAttr {
        size: Some(0),
        ..SetAttr::default()
    };
    f.set(attr.ino, size);
    assert!(matches!(f.run(&set(attr.ino, "nsds=2", 0)), Reply::Attr(_)));
    // A hole is no empty file either: its size says that somebody means to have bytes there.
    let size = SetAttr {
        size: Some(1),
        ..SetAttr::default()
    };
    f.set(attr.ino, size);
    f.is_error(&set(attr.ino, "nsds=1", 0), Errno::EBUSY);
}

#[test]
fn files_and_directories_inherit() {
    let mut f = Fixture::new();
    let above = f.mkdir(ROOT, "d").ino;
    f.run(&set(above, "nsds=2,1 block=64K", 0));
    let wanted = Layout::new(&[NsdId(2), NsdId(1)], Some(65536)).expect("good");
    let file = f.made(&create(above, "file"));
    let below = f.mkdir(above, "below").ino;
    let deep = f.made(&create(below, "file"));
    assert_eq!([file.layout, deep.layout], [wanted; 2]);
    assert_eq!(f.attr(below).layout, wanted);
    let link = Op::Make {
        parent: above,
        name: name("link"),
        kind: NewKind::Symlink {
            target: small("file"),
        },
        caller: Caller::default(),
    };
    let link = f.made(&link);
    assert!(link.layout.is_default());
    f.is_error(&set(link.ino, "nsds=1", 0), Errno::EINVAL);
    // What is there already does not change with the directory.
    f.run(&remove(above));
    assert_eq!(f.attr(file.ino).layout, wanted);
    assert!(f.made(&create(above, "later")).layout.is_default());
}

//! Set-id bits go when somebody changes the content who may not keep them (generic/355, 684, 685 of xfstests), the rights of a program
//! (`security.capability`) whoever does (generic/093).

use std::fs::{self, File, Permissions};
use std::os::unix::fs::FileExt as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::fs::{AtFlags, CWD, StatxFlags, XattrFlags, statx};

use crate::node::Node;
use crate::tools;

/// What changes the content, each in a way of its own through the kernel.
const CHANGES: [&str; 8] = [
    "dd if=/dev/zero of=FILE bs=4k count=1 conv=notrunc",
    "dd if=/dev/zero of=FILE bs=4k count=1 conv=notrunc oflag=direct",
    "fallocate -p -o 4096 -l 4096 FILE",
    "fallocate -z -n -o 4096 -l 4096 FILE",
    "fallocate -l 40000 FILE",
    "fallocate -n -o 4096 -l 40000 FILE",
    "truncate -s 5000 FILE",
    ": > FILE",
];

/// The mode of a file of root's after `change` by the user and group `id`.
fn mode_after(file: &Path, before: u32, id: (u32, u32), change: &str) -> u32 {
    fs::write(file, [7; 20_000]).unwrap();
    fs::set_permissions(file, Permissions::from_mode(before)).unwrap();
    let change = change.replace("FILE", file.to_str().unwrap());
    let mut command = Command::new("sh");
    command.args(["-c", &change]).uid(id.0).gid(id.1);
    let output = command.stdin(Stdio::null()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{change}: {said}");
    // Who asks for nothing but the mode, as `stat -c %a`, may be answered by the kernel.
    let asked = statx(CWD, file, AtFlags::empty(), StatxFlags::MODE).unwrap();
    let told = u32::from(asked.stx_mode) & 0o7777;
    assert_eq!(
        told,
        fs::metadata(file).unwrap().mode() & 0o7777,
        "{change}"
    );
    fs::metadata(file).unwrap().permissions().mode() & 0o7777
}

#[test]
fn who_may_not_keep_set_id_bits_takes_them() {
    let Some(node) = Node::new("1G") else { return };
    let file = tools::open_directory(&node.mount(), "d").join("file");
    let (root, of_the_group, other) = ((0, 0), (65_534, 0), (65_534, 65_534));
    let cases = [
        (root, 0o6777, 0o6777),
        (of_the_group, 0o6777, 0o777),
        (of_the_group, 0o6666, 0o2666),
        (other, 0o6666, 0o666),
        (other, 0o6676, 0o676),
        (other, 0o6766, 0o766),
        (other, 0o2666, 0o2666),
        (other, 0o2676, 0o676),
    ];
    for change in CHANGES {
        for (id, before, after) in cases {
            let seen = mode_after(&file, before, id, change);
            assert_eq!(
                format!("{seen:o}"),
                format!("{after:o}"),
                "{before:o} after {change:?} by {id:?}"
            );
        }
    }
}

/// Whoever may change the owner is taken for one of the file's group (generic/193 of xfstests).
#[test]
fn a_change_of_owner_keeps_set_group_id_of_what_is_no_program() {
    let Some(node) = Node::new("1G") else { return };
    let file = node.mount().join("file");
    fs::write(&file, "").unwrap();
    for (before, after) in [(0o6644, 0o2644), (0o6755, 0o755), (0o2644, 0o2644)] {
        std::os::unix::fs::chown(&file, Some(65_534), Some(65_534)).unwrap();
        fs::set_permissions(&file, Permissions::from_mode(before)).unwrap();
        std::os::unix::fs::chown(&file, Some(0), None).unwrap();
        let seen = fs::metadata(&file).unwrap().mode() & 0o7777;
        assert_eq!(format!("{seen:o}"), format!("{after:o}"), "{before:o}");
    }
}

/// CAP_NET_RAW, permitted and effective, as setcap(8) writes it.
const RIGHTS: [u8; 20] = [
    1, 0, 0, 2, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
];

/// Installing a program writes it and then gives it its rights, which stay when it is written back. A write takes them at once.
#[test]
fn a_program_has_the_rights_that_it_got_after_the_last_write() {
    const NAME: &str = "security.capability";
    let Some(node) = Node::new("1G") else { return };
    let path = node.mount().join("program");
    let rights = || {
        let mut value = [0; 20];
        rustix::fs::getxattr(&path, NAME, &mut value).map(|size| value[..size].to_owned())
    };
    for size in [100, 300_000] {
        fs::write(&path, vec![7; size]).unwrap();
        let file = File::options().write(true).open(&path).unwrap();
        for (is_synced_first, is_touched) in [(false, false), (true, false), (false, true)] {
            file.write_all_at(b"more", 50).unwrap();
            if is_synced_first {
                file.sync_all().unwrap();
            }
            rustix::fs::setxattr(&path, NAME, &RIGHTS, XattrFlags::empty()).unwrap();
            assert_eq!(rights().as_deref(), Ok(&RIGHTS[..]));
            file.sync_all().unwrap();
            assert_eq!(rights().as_deref(), Ok(&RIGHTS[..]), "after write-back");
            file.write_all_at(b"other", 10).unwrap();
            if is_touched {
                file.set_modified(std::time::SystemTime::now()).unwrap();
            }
            assert_eq!(rights(), Err(rustix::io::Errno::NODATA));
            file.sync_all().unwrap();
            assert_eq!(rights(), Err(rustix::io::Errno::NODATA));
        }
    }
}

//! Access times: relatime, strictatime and noatime, as the mount says.

use std::fs::{self, File, OpenOptions};
use std::io::Read as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::time::{Duration, SystemTime};

use crate::node::Node;

/// Access and change time of a path, in nanoseconds.
fn times(path: &Path) -> (i64, i64) {
    let found = fs::symlink_metadata(path).unwrap();
    let atime = found.atime() * 1_000_000_000 + found.atime_nsec();
    (atime, found.ctime() * 1_000_000_000 + found.ctime_nsec())
}

fn read(path: &Path) {
    assert_eq!(fs::read(path).unwrap(), b"bytes");
}

/// The first read after a change moves the time on, later ones do not; a time that is set stays; all of it is there after a
/// remount.
#[test]
fn relatime_is_the_default() {
    let Some(node) = Node::new("2G") else { return };
    let mount = node.mount();
    let (file, kept) = (mount.join("file"), mount.join("kept"));
    fs::write(&file, b"bytes").unwrap();
    fs::write(&kept, b"bytes").unwrap();
    std::os::unix::fs::symlink("file", mount.join("link")).unwrap();
    fs::create_dir(mount.join("d")).unwrap();
    fs::write(mount.join("d/x"), b"").unwrap();

    let (made, changed) = times(&file);
    read(&file);
    let (first, after) = times(&file);
    assert!(first > made && first >= changed, "{made} {changed} {first}");
    assert_eq!(after, changed, "a read is no change");
    read(&file);
    assert_eq!(times(&file).0, first, "one read a change");
    fs::write(&file, b"bytes").unwrap();
    read(&file);
    let second = times(&file).0;
    assert!(second > first);

    let before = times(&mount.join("link")).0;
    fs::read_link(mount.join("link")).unwrap();
    assert!(times(&mount.join("link")).0 > before);
    let before = times(&mount.join("d")).0;
    assert_eq!(fs::read_dir(mount.join("d")).unwrap().count(), 1);
    assert!(times(&mount.join("d")).0 > before);

    // Older than a day: the next read counts, also of what the kernel has cached.
    let old = SystemTime::now() - Duration::from_secs(2 * 24 * 3600);
    let held = OpenOptions::new().write(true).open(&kept).unwrap();
    read(&kept);
    held.set_times(fs::FileTimes::new().set_accessed(old))
        .unwrap();
    let set = times(&kept).0;
    drop(held);
    read(&kept);
    assert!(times(&kept).0 > set, "a day has gone by");

    // tar --atime-preserve: what is set after the read stays.
    let handle = File::open(&kept).unwrap();
    read(&kept);
    handle
        .set_times(fs::FileTimes::new().set_accessed(old))
        .unwrap();
    drop(handle);
    assert_eq!(times(&kept).0, set);
    node.gupfs(&["down"]);
    node.up(&[]).unwrap();
    assert_eq!(times(&kept).0, set);
    assert_eq!(times(&file).0, second);
}

/// Each open's first read counts with strictatime, none does with noatime or through O_NOATIME.
#[test]
fn the_mount_says_which_reads_count() {
    let Some(node) = Node::new("2G") else { return };
    let mount = node.mount();
    let (file, state) = (mount.join("file"), node.state());
    fs::write(&file, b"bytes").unwrap();
    let remount = |options: &str| {
        node.gupfs(&["down"]);
        let gupfs = env!("CARGO_BIN_EXE_gupfs");
        let mut command = std::process::Command::new("timeout");
        command.args(["-k", "5", "60", gupfs, "mount"]);
        let output = command.arg(&state).args(["-o", options]).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{said}");
    };
    remount("strictatime");
    let mut last = times(&file).0;
    for _ in 0..3 {
        read(&file);
        let now = times(&file).0;
        assert!(now > last);
        last = now;
    }
    let mut quiet = OpenOptions::new();
    let mut quiet = quiet
        .read(true)
        .custom_flags(libc::O_NOATIME)
        .open(&file)
        .unwrap();
    let mut said = Vec::new();
    quiet.read_to_end(&mut said).unwrap();
    assert_eq!(said, b"bytes");
    assert_eq!(times(&file).0, last);
    remount("noatime");
    assert_eq!(times(&file).0, last, "kept over a remount");
    fs::write(&file, b"bytes").unwrap();
    let before = times(&file).0;
    read(&file);
    assert_eq!(times(&file).0, before);
}

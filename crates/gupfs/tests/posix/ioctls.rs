//! ioctl(2): what is not served says so in the one way that programs know, and goes on saying it.
#![allow(unsafe_code, reason = "ioctl is not in std")]

use std::fs::{self, File};
use std::io::{Error, Read as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;

use crate::node::Node;

/// FS_IOC_SHUTDOWN, XFS_IOC_GOINGDOWN.
const SHUT_DOWN: libc::Ioctl = 0x8004_587d;

fn errno(file: &File, request: libc::Ioctl) -> Option<i32> {
    let mut flags: libc::c_long = 0;
    // SAFETY: a descriptor that is open, and a place that is large enough for either of these.
    let result = unsafe { libc::ioctl(file.as_raw_fd(), request, &raw mut flags) };
    (result != 0).then(|| Error::last_os_error().raw_os_error().unwrap_or(0))
}

/// lsattr and chattr, cp and tar ask for inode flags, and take ENOTTY for a file system that has none.
#[test]
fn inode_flags_are_not_kept() {
    let Some(node) = Node::new("2G") else { return };
    let mount = node.mount();
    fs::create_dir(mount.join("d")).unwrap();
    let mut file = File::create(mount.join("d/file")).unwrap();
    let directory = File::open(mount.join("d")).unwrap();
    /// A number that nobody has.
    const UNKNOWN: libc::Ioctl = 0xc008_660b;
    for _ in 0..2 {
        for request in [libc::FS_IOC_GETFLAGS, libc::FS_IOC_SETFLAGS, UNKNOWN] {
            assert_eq!(errno(&file, request), Some(libc::ENOTTY), "{request:#x}");
            assert_eq!(
                errno(&directory, request),
                Some(libc::ENOTTY),
                "{request:#x}"
            );
        }
        // What the kernel answers itself for any file.
        assert_eq!(errno(&file, libc::FIONREAD), None);
        file.write_all(b"bytes").unwrap();
    }
}

/// Asks for the end of the mount in one of its ways; the error number.
fn shut_down(mount: &Path, how: u32) -> Option<i32> {
    let root = File::open(mount).unwrap();
    // SAFETY: a descriptor that is open, and 32 bits that are read.
    let result = unsafe { libc::ioctl(root.as_raw_fd(), SHUT_DOWN, &raw const how) };
    (result != 0).then(|| Error::last_os_error().raw_os_error().unwrap_or(0))
}

/// Kills the daemon, unmounts what it leaves behind, and mounts anew.
fn crash(node: &Node) {
    let status = node.gupfs(&["status", "--json"]);
    let pid = status.split("\"pid\":").nth(1).unwrap();
    let pid: i32 = pid.split(',').next().unwrap().trim().parse().unwrap();
    // SAFETY: no pointers; the process is this test's own daemon.
    assert_eq!(unsafe { libc::kill(pid, libc::SIGKILL) }, 0);
    node.up(&[]).expect("it comes up");
}

/// All three ways: what was asked to be durable is there after a crash, with the first one all else, too.
#[test]
fn a_mount_that_is_shut_down_answers_eio() {
    let Some(node) = Node::new("2G") else { return };
    let mount = node.mount();
    assert_eq!(shut_down(&mount, 3), Some(libc::EINVAL));
    // 0: all is written back; 1: the journal, with the names in it; 2: nothing.
    for how in 0..3 {
        let (synced, late) = (
            mount.join(format!("synced{how}")),
            mount.join(format!("late{how}")),
        );
        let mut file = File::create(&synced).unwrap();
        file.write_all(b"bytes").unwrap();
        file.sync_all().unwrap();
        let mut seen = File::open(&synced).unwrap();
        let mut said = String::new();
        seen.read_to_string(&mut said).unwrap();
        fs::write(&late, vec![7; 300_000]).unwrap();

        assert_eq!(shut_down(&mount, how), None);
        let is_eio = |error: Error| assert_eq!(error.raw_os_error(), Some(libc::EIO), "{error}");
        is_eio(file.write_all(b"more").unwrap_err());
        is_eio(file.sync_all().unwrap_err());
        is_eio(fs::metadata(&late).unwrap_err());
        is_eio(File::create(mount.join("new")).unwrap_err());
        is_eio(
            fs::read_dir(&mount)
                .and_then(|mut d| d.next().unwrap().map(drop))
                .unwrap_err(),
        );
        let mut buffer = [0; 5];
        is_eio(std::os::unix::fs::FileExt::read_at(&seen, &mut buffer, 0).unwrap_err());
        assert!(
            node.gupfs(&["status", "--json"])
                .contains("\"shut_down\":true")
        );

        crash(&node);
        drop((file, seen));
        assert_eq!(fs::read(&synced).unwrap(), b"bytes");
        match how {
            0 => assert_eq!(fs::read(&late).unwrap(), vec![7; 300_000]),
            1 => assert!(late.exists()),
            _ => {}
        }
        fs::write(mount.join("new"), "works").unwrap();
        fs::remove_file(mount.join("new")).unwrap();
    }
}

/// Nobody but root can, and root only with CAP_SYS_ADMIN on this machine, not as root of a container.
#[test]
fn who_may_not_cannot_shut_a_mount_down() {
    let Some(node) = Node::new("2G") else { return };
    let mount = node.mount();
    for place in [mount.parent().unwrap(), &mount] {
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        fs::set_permissions(place, mode).unwrap();
    }
    const SCRIPT: &str = "import fcntl, os, sys\n\
        fd = os.open(sys.argv[1], os.O_RDONLY)\n\
        try: fcntl.ioctl(fd, 0x8004587d, b'\\2\\0\\0\\0')\n\
        except OSError as error: sys.exit(error.errno)\n";
    let user = {
        let mut command = Command::new("python3");
        command.uid(65_534);
        command
    };
    let [mut less, mut contained] = ["setpriv", "unshare"].map(Command::new);
    less.args([
        "--inh-caps=-sys_admin",
        "--bounding-set=-sys_admin",
        "python3",
    ]);
    contained.args(["--user", "--map-root-user", "python3"]);
    for mut command in [user, less, contained] {
        let output = command.args(["-c", SCRIPT]).arg(&mount).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        let status = output.status.code();
        assert_eq!(status, Some(libc::EPERM), "{command:?}: {said}");
    }
    fs::write(mount.join("file"), "bytes").unwrap();
}

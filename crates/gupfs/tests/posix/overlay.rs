//! Overlayfs with all its directories on a mount, as containers have it: names that move or go leave whiteouts (RENAME_WHITEOUT).

use std::fs;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::left_out::left_out;
use crate::node::Node;

/// A mounted overlay, until it is dropped.
struct Overlay(PathBuf);

impl Overlay {
    fn mount(root: &Path) -> Self {
        let [lower, upper, work, merged] =
            ["lower", "upper", "work", "merged"].map(|name| root.join(name));
        let options = format!(
            "lowerdir={},upperdir={},workdir={}",
            lower.display(),
            upper.display(),
            work.display()
        );
        let mut mount = Command::new("mount");
        mount.args(["-t", "overlay", "overlay", "-o", &options]);
        let output = mount.arg(&merged).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        Self(merged)
    }
}

impl Drop for Overlay {
    fn drop(&mut self) {
        let mut unmount = Command::new("umount");
        let _ = unmount
            .arg("-l")
            .arg(&self.0)
            .stderr(Stdio::null())
            .status();
    }
}

/// The names in a directory, sorted.
fn names(path: &Path) -> Vec<String> {
    let entries = fs::read_dir(path).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.collect();
    names.sort();
    names
}

fn is_whiteout(path: &Path) -> bool {
    let found = fs::symlink_metadata(path).unwrap();
    found.file_type().is_char_device() && found.rdev() == 0
}

#[test]
fn an_overlay_has_its_upper_directory_here() {
    let systems = fs::read_to_string("/proc/filesystems").unwrap();
    if !systems.contains("overlay") {
        return left_out("this kernel has no overlayfs");
    }
    let Some(node) = Node::new("256M") else {
        return;
    };
    let root = node.mount().join("containers");
    for name in ["lower/dir/sub", "lower/sticky", "upper", "work", "merged"] {
        fs::create_dir_all(root.join(name)).unwrap();
    }
    let sticky = fs::Permissions::from_mode(0o1777);
    fs::set_permissions(root.join("lower/sticky"), sticky).unwrap();
    for name in [
        "kept",
        "moved",
        "replaced",
        "removed",
        "dir/file",
        "dir/sub/deep",
        "sticky/gone",
        "sticky/parted",
    ] {
        fs::write(root.join("lower").join(name), name).unwrap();
    }
    let overlay = Overlay::mount(&root);
    let path = |name: &str| overlay.0.join(name);
    fs::rename(path("moved"), path("new")).unwrap();
    fs::rename(path("new"), path("replaced")).unwrap();
    fs::remove_file(path("removed")).unwrap();
    fs::remove_file(path("dir/file")).unwrap();
    for name in ["sticky/gone", "sticky/parted"] {
        fs::remove_file(path(name)).unwrap();
    }
    fs::write(path("made"), "made").unwrap();
    let seen = || {
        assert_eq!(
            names(&overlay.0),
            ["dir", "kept", "made", "replaced", "sticky"]
        );
        assert_eq!(names(&path("dir")), ["sub"]);
        for (name, text) in [
            ("kept", "kept"),
            ("made", "made"),
            ("replaced", "moved"),
            ("dir/sub/deep", "dir/sub/deep"),
        ] {
            assert_eq!(fs::read_to_string(path(name)).unwrap(), text);
        }
    };
    seen();
    for name in ["moved", "removed", "dir/file"] {
        assert!(is_whiteout(&root.join("upper").join(name)), "{name}");
    }
    assert_eq!(
        fs::read_to_string(root.join("lower/moved")).unwrap(),
        "moved"
    );
    // A mount of its own later finds the same.
    drop(overlay);
    node.gupfs(&["down"]);
    node.up(&[]).expect("as before");
    let overlay = Overlay::mount(&root);
    let path = |name: &str| overlay.0.join(name);
    assert_eq!(
        names(&overlay.0),
        ["dir", "kept", "made", "replaced", "sticky"]
    );
    assert_eq!(fs::read_to_string(path("replaced")).unwrap(), "moved");
    // What has gone may be made anew by users, also where names are their owners': the whiteout is of who mounted.
    assert!(
        is_whiteout(&root.join("upper/sticky/gone"))
            && is_whiteout(&root.join("upper/sticky/parted"))
    );
    for above in node.mount().ancestors().take(3).chain([root.as_path()]) {
        fs::set_permissions(above, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let make = |what: &str, name: &str| {
        let mut command = Command::new(what);
        let output = command
            .arg(path("sticky").join(name))
            .uid(1000)
            .gid(1000)
            .output()
            .unwrap();
        assert!(output.status.success(), "{what} {name}: {output:?}");
    };
    make("touch", "gone");
    make("mkdir", "parted");
    assert_eq!(names(&path("sticky")), ["gone", "parted"]);
    // A directory is removed and made again: what was in the lower one stays away.
    fs::remove_dir_all(path("dir")).unwrap();
    fs::create_dir(path("dir")).unwrap();
    assert!(names(&path("dir")).is_empty());
}

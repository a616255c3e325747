//! Block devices that take no writes: the kernel lets them be opened for writing, and fails the first write.
#![allow(clippy::disallowed_methods, reason = "a test at the OS boundary")]

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{gupfs, is_root, refused, text};

/// A loop device, detached when it is dropped.
pub(super) struct Loop(pub(super) PathBuf);

impl Loop {
    pub(super) fn over(file: &Path) -> Self {
        Self::with(&[], file)
    }

    /// One that takes no writes.
    fn read_only(file: &Path) -> Self {
        Self::with(&["-r"], file)
    }

    fn with(options: &[&str], file: &Path) -> Self {
        let output = Command::new("losetup")
            .args(options)
            .args(["-f", "--show"])
            .arg(file)
            .output()
            .expect("losetup runs");
        let name = String::from_utf8(output.stdout).expect("text");
        assert!(output.status.success(), "no loop device is free");
        Self(name.trim().into())
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").arg("-d").arg(&self.0).status();
    }
}

fn make(path: &Path, content: u8) {
    fs::write(path, vec![content; 1 << 20]).expect("written");
    let file = File::options().write(true).open(path).expect("opened");
    file.set_len(128 << 20).expect("a sparse file");
}

#[test]
fn disks_that_take_no_writes_are_refused_before_anything_is_written() {
    if !is_root() {
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    let path = |name: &str| directory.path().join(name);
    let (first, second, state, mount) = (path("1"), path("2"), path("state"), path("mnt"));
    fs::create_dir(&mount).expect("made");
    make(&first, 7);
    make(&second, 0);
    let old = fs::read(&first).expect("read");
    let create = |disk: &Path| {
        let words = ["fs", "create", "--force", "--state", text(&state)];
        let rest = ["--mount", text(&mount), text(&first), text(disk)];
        [&words[..], &rest].concat().join(" ")
    };
    let said = ["read-only", "blockdev --setrw", "help:"];
    {
        let device = Loop::read_only(&second);
        refused(&["nsd", "create", text(&device.0)], &said);
        refused(&["nsd", "create", "--force", text(&device.0)], &said);
        let words = create(&device.0);
        refused(&words.split(' ').collect::<Vec<_>>(), &said);
        assert!(
            fs::read(&first).expect("read") == old,
            "the disk beside it is as it was"
        );
        assert!(!state.exists());
    }
    let words = create(&second);
    let run = gupfs(&words.split(' ').collect::<Vec<_>>());
    assert_eq!(run.code, Some(0), "{}", run.err);
    let labelled = (fs::read(&first), fs::read(&second));
    let labelled = (labelled.0.expect("read"), labelled.1.expect("read"));
    let config = state.join("gupfs.toml");
    let good = fs::read_to_string(&config).expect("read");
    let device = Loop::read_only(&second);
    let with_device = good.replace(text(&second), text(&device.0));
    assert_ne!(with_device, good);
    fs::write(&config, with_device).expect("written");
    refused(&["daemon", "--state", text(&state)], &said);
    refused(&["mount", text(&state)], &said[..2]);
    let up = ["up", "--state", text(&state), "--mount", text(&mount)];
    refused(&up, &said[..2]);
    refused(&["fsck", "--repair", "--yes", text(&state)], &said);
    let destroy = ["fs", "destroy", "--yes", "--state", text(&state)];
    refused(&destroy, &["read-only", "help:", "make it writable"]);
    // It can be looked at.
    let fsck = gupfs(&["fsck", text(&state)]);
    assert_ne!(fsck.code, Some(8), "{}", fsck.err);
    let listed = gupfs(&["nsd", "list", text(&device.0)]);
    assert!(listed.out.contains("nsd2"), "{}", listed.out);
    let now = (fs::read(&first), fs::read(&second));
    let now = (now.0.expect("read"), now.1.expect("read"));
    assert!(now == labelled, "nothing was written");
    drop(device);
    fs::write(&config, good).expect("written");
    let run = gupfs(&destroy);
    assert_eq!(run.code, Some(0), "{}", run.err);
}

//! The programs of test suites.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The program of this name; `None`: it is not installed.
pub(crate) fn find(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let home = std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cargo/bin"));
    let mut places = std::env::split_paths(&path).chain(home);
    let found = places.find_map(|place| Some(place.join(name)).filter(|p| p.is_file()));
    if found.is_none() {
        crate::left_out::left_out(&format!("{name} is not installed (.ci/tools does it)"));
    }
    found
}

/// A directory on `mount` that everybody may use, also by a path that begins above of it.
pub(crate) fn open_directory(mount: &Path, name: &str) -> PathBuf {
    let directory = mount.join(name);
    fs::create_dir(&directory).unwrap();
    for place in [mount.parent().unwrap(), mount, &directory] {
        fs::set_permissions(place, fs::Permissions::from_mode(0o755)).unwrap();
    }
    directory
}

/// What the program prints within so many seconds, and whether it says that all is well.
pub(crate) fn run(seconds: u32, command: &Command) -> (String, bool) {
    let mut limited = Command::new("timeout");
    limited.args(["-k", "5", &seconds.to_string()]);
    limited.arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        limited.env(name, value.unwrap_or_default());
    }
    if let Some(directory) = command.get_current_dir() {
        limited.current_dir(directory);
    }
    let output = limited.stdin(Stdio::null()).output().unwrap();
    let mut said = String::from_utf8_lossy(&output.stdout).into_owned();
    said.push_str(&String::from_utf8_lossy(&output.stderr));
    let is_well = output.status.success();
    if !is_well {
        // timeout(1) ends with 124 where the program does not in time, and with 137 where it had to be killed.
        said.push_str(&format!("\n[{} of {seconds} s]", output.status));
    }
    (said, is_well)
}

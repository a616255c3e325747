//! The source of a mount: the first word of its line in fstab, and what the kernel shows for it.
//!
//! It names a state directory: the directory itself, the file `gupfs.toml` in it (umount(8) takes no source that is a directory), or a
//! name in `/var/lib/gupfs`. What the kernel shows is absolute or a name, so that whoever reads it finds the daemon from anywhere.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use crate::failure::Result;
use crate::system;

/// Where the state directories lie that are named without a path, as those of the service `gupfs@NAME`.
const STATES: &str = "/var/lib/gupfs";
const SETTINGS: &str = "gupfs.toml";

/// A word without a slash; it is no path, whatever lies in the directory of who says it.
fn is_name(source: &Path) -> bool {
    !source.as_os_str().as_encoded_bytes().contains(&b'/')
}

/// The state directory that `source` names.
pub(crate) fn state_of(source: &Path) -> PathBuf {
    if is_name(source) {
        return Path::new(STATES).join(source);
    }
    match source.parent() {
        Some(directory) if source.ends_with(SETTINGS) && source.is_file() => directory.to_owned(),
        _ => source.to_owned(),
    }
}

/// What the kernel shows for `source`.
pub(crate) fn shown(source: &Path) -> Result<PathBuf> {
    match is_name(source) {
        true => Ok(source.to_owned()),
        false => system::absolute(source),
    }
}

/// Whether a mount that shows `source` is of the state directory `root`. Looks at neither.
pub(crate) fn is_of(source: &OsStr, root: &Path) -> bool {
    let source = Path::new(source);
    if is_name(source) {
        return Path::new(STATES).join(source) == root;
    }
    source == root || source == root.join(SETTINGS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_shown_names_its_state_directory() {
        let directory = tempfile::tempdir().expect("a directory");
        let root = system::absolute(directory.path()).expect("absolute");
        let settings = root.join(SETTINGS);
        std::fs::write(&settings, "").expect("written");
        for source in [&root, &settings] {
            assert_eq!(state_of(source), root);
            let shown = shown(source).expect("shown");
            assert!(is_of(shown.as_os_str(), &root));
            assert!(!is_of(shown.as_os_str(), Path::new("/other")));
        }
    }

    #[test]
    fn a_name_is_of_the_place_for_names_whatever_lies_here() {
        // There is such a directory where tests run.
        assert!(Path::new("src").is_dir());
        assert_eq!(state_of(Path::new("src")), Path::new("/var/lib/gupfs/src"));
        assert_eq!(shown(Path::new("src")), Ok(PathBuf::from("src")));
        assert!(is_of(OsStr::new("src"), Path::new("/var/lib/gupfs/src")));
        let shown = shown(Path::new("./src")).expect("shown");
        assert!(shown.is_absolute() && shown.ends_with("src"), "{shown:?}");
    }
}

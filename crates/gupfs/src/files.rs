//! Files of a state directory: private, never through a symbolic link, replaced only as a whole.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::Path;

use crate::failure::{Failure, Result};

/// Makes the directory `path` (0700) and the ones above it; an existing one must be a directory.
pub fn make_directory(path: &Path) -> Result<()> {
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent).map_err(|e| Failure::io("make directory", parent, &e))?;
    }
    match fs::DirBuilder::new().mode(0o700).create(path) {
        Ok(()) => Ok(()),
        Err(e) if e.kind() == ErrorKind::AlreadyExists && path.is_dir() => Ok(()),
        Err(e) => Err(Failure::io("make directory", path, &e)),
    }
}

/// Replaces `path` by `bytes`, so that a crash leaves the old file or the new one, and the new one is
/// durable when this returns.
pub fn replace(path: &Path, bytes: &[u8]) -> Result<()> {
    let directory = path
        .parent()
        .expect("a file of a state directory has a parent");
    let mut name = path.file_name().expect("and a name").to_owned();
    name.push(".new");
    let temporary = directory.join(name);
    let write = || {
        let _ = fs::remove_file(&temporary);
        let mut file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .custom_flags(libc::O_NOFOLLOW)
            .open(&temporary)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&temporary, path)?;
        File::open(directory)?.sync_all()
    };
    write().map_err(|e| {
        let _ = fs::remove_file(&temporary);
        Failure::io("write", path, &e)
    })
}

/// What `path` holds; `None` if it does not exist.
pub fn read(path: &Path) -> Result<Option<Vec<u8>>> {
    use std::io::Read as _;
    let mut bytes = Vec::new();
    let opened = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NOFOLLOW)
        .open(path);
    match opened.and_then(|mut f| f.read_to_end(&mut bytes)) {
        Ok(_) => Ok(Some(bytes)),
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
        Err(e) => Err(Failure::io("read", path, &e)),
    }
}

/// The same as text.
pub fn read_text(path: &Path) -> Result<Option<String>> {
    let text = |bytes| {
        String::from_utf8(bytes)
            .map_err(|_| Failure::new(format!("{} is no text file", path.display())))
    };
    read(path)?.map(text).transpose()
}

/// Opens the lock file `path`, made if needed.
pub fn open_lock(path: &Path) -> Result<File> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .custom_flags(libc::O_NOFOLLOW)
        .open(path)
        .map_err(|e| Failure::io("open", path, &e))
}

/// Removes the file or directory tree `path`, if it is there.
pub fn remove(path: &Path) -> Result<()> {
    let removed = match fs::symlink_metadata(path) {
        Ok(metadata) if metadata.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
        Err(e) => Err(e),
    };
    match removed {
        Err(e) if e.kind() != ErrorKind::NotFound => Err(Failure::io("remove", path, &e)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn a_file_is_replaced_as_a_whole_and_is_private() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("f");
        assert_eq!(read(&path).expect("no file is no error"), None);
        replace(&path, b"one").expect("written");
        replace(&path, b"two").expect("written again");
        assert_eq!(read_text(&path).expect("read").as_deref(), Some("two"));
        let mode = fs::metadata(&path).expect("there").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(fs::read_dir(directory.path()).expect("list").count(), 1);
    }

    #[test]
    fn symbolic_links_are_not_followed() {
        let directory = tempfile::tempdir().expect("a directory");
        let (target, link) = (directory.path().join("t"), directory.path().join("l"));
        fs::write(&target, "secret").expect("written");
        std::os::unix::fs::symlink(&target, &link).expect("linked");
        read(&link).expect_err("not through a link");
        open_lock(&link).expect_err("nor to lock");
        replace(&link, b"x").expect("replaces the link itself");
        assert_eq!(fs::read(&target).expect("there"), b"secret");
    }

    #[test]
    fn removing_what_is_not_there_is_fine() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("a");
        remove(&path).expect("nothing to do");
        make_directory(&path.join("b")).expect("made with its parent");
        make_directory(&path.join("b")).expect("made already");
        remove(&path).expect("removed with what it holds");
        assert!(!path.exists());
    }
}

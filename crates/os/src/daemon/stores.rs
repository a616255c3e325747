//! Small files of membership in the state directory: the built-in config store and the list of lives.
//!
//! Invariant: both are replaced as a whole, and are durable before the call returns.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use cluster::message::FORMER_COUNT_MAX;
use cluster::{ConfigStore, Revision, StoreError, Stored};
use types::{ClusterView, Decode as _, Encode as _, Incarnation, view_file};

use super::Error;

/// The built-in config store: the view in one file, kept by the cluster manager's node alone.
#[derive(Clone, Debug)]
pub(super) struct ViewStore {
    path: PathBuf,
    view: ClusterView,
    revision: Revision,
}

impl ViewStore {
    /// The store whose file holds `view`, and its revision.
    pub(super) fn new(path: &Path, view: ClusterView) -> (Self, Revision) {
        // The epoch grows with each change, and only changes are stored.
        let revision = Revision(view.epoch.0);
        let store = Self {
            path: path.to_owned(),
            view,
            revision,
        };
        (store, revision)
    }
}

impl ConfigStore for ViewStore {
    fn get(&mut self, _key: &str) -> Result<Option<Stored>, StoreError> {
        Ok(Some(Stored {
            revision: self.revision,
            value: self.view.to_bytes(),
        }))
    }

    fn put(&mut self, key: &str, value: &[u8], expected: Revision) -> Result<Revision, StoreError> {
        if expected != self.revision {
            let found = self.get(key)?;
            return Err(StoreError::Conflict { found });
        }
        let view = ClusterView::from_bytes(value, "cluster view")?;
        replace(&self.path, &view_file::encode(&view)).map_err(|error| {
            tracing::error!(%error, path = %self.path.display(), "the cluster view cannot be written");
            StoreError::OutcomeUnknown
        })?;
        self.revision = Revision(view.epoch.0);
        self.view = view;
        Ok(self.revision)
    }
}

/// Adds a life to the list at `path`; returns those before it, newest last.
pub(super) fn add_life(path: &Path, life: Incarnation) -> Result<Vec<Incarnation>, Error> {
    let failed = |source| Error::Lives {
        path: path.to_owned(),
        source,
    };
    let bytes = match std::fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == ErrorKind::NotFound => Vec::new(),
        Err(error) => return Err(failed(error)),
    };
    let text = String::from_utf8_lossy(&bytes);
    let life_of = |line: &str| u128::from_str_radix(line, 16).ok().map(Incarnation);
    let mut lives: Vec<Incarnation> = text.lines().filter_map(life_of).collect();
    if lives.len() < text.lines().count() {
        // It costs the wait for a lease, nothing else.
        tracing::warn!(path = %path.display(), "lines that are no lives were dropped");
    }
    let excess = lives.len().saturating_sub(FORMER_COUNT_MAX);
    lives.drain(..excess);
    let lines: String = lives
        .iter()
        .chain([&life])
        .map(|life| format!("{:032x}\n", life.0))
        .collect();
    replace(path, lines.as_bytes()).map_err(failed)?;
    Ok(lives)
}

fn replace(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let mut name = path.as_os_str().to_owned();
    name.push(".new");
    let new = PathBuf::from(name);
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600);
    let mut file = options.custom_flags(libc::O_NOFOLLOW).open(&new)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    std::fs::rename(&new, path)?;
    match path.parent() {
        Some(parent) => File::open(parent)?.sync_all(),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lives_are_kept_in_order_and_bounded() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("lives");
        for life in 1..=200u128 {
            let before = add_life(&path, Incarnation(life)).expect("written");
            let first = life.saturating_sub(FORMER_COUNT_MAX as u128).max(1);
            let expected: Vec<Incarnation> = (first..life).map(Incarnation).collect();
            assert_eq!(before, expected);
        }
        std::fs::write(&path, "nonsense\n7\n").expect("written");
        let before = add_life(&path, Incarnation(8)).expect("written");
        assert_eq!(before, [Incarnation(7)]);
    }
}

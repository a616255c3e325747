//! The config store as the cluster manager needs it: get, and put conditional on a revision.
//!
//! Two implementations: built-in (kept by one node; in `os`) and etcd (later). A put whose outcome is
//! unknown is repeated with the same expected revision: it then succeeds or conflicts with itself,
//! which the caller sees by the value.

use thiserror::Error;
use types::{ClusterView, Decode, DecodeError, Encode};

/// Key of the cluster view.
pub const VIEW_KEY: &str = "view";

/// Grows with every change of a key; 0 is 'the key does not exist'.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Revision(pub u64);

/// A value with its revision.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Stored {
    /// Its revision; not 0.
    pub revision: Revision,
    /// The bytes.
    pub value: Vec<u8>,
}

/// The cluster view with its revision.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StoredView {
    /// Its revision.
    pub revision: Revision,
    /// The view.
    pub view: ClusterView,
}

/// Why the config store did not do what was asked; the variants say what to do next.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum StoreError {
    /// Nothing was changed: try again later.
    #[error("the config store cannot be reached")]
    Unavailable,
    /// It may have been changed: repeat the same put.
    #[error("the config store did not answer: the outcome is unknown")]
    OutcomeUnknown,
    /// Somebody else changed the key: look at what is there (`None`: it was removed).
    #[error("the config store holds another revision than expected")]
    Conflict {
        /// What is there.
        found: Option<Stored>,
    },
    /// The value is not what this program writes: stop, a human must look.
    #[error("the config store's value cannot be read: {0}")]
    Damaged(#[from] DecodeError),
}

/// Where the cluster keeps what it agrees on. Never on the data or metadata path.
pub trait ConfigStore {
    /// The value of `key`, if it exists.
    ///
    /// # Errors
    /// `Unavailable`.
    fn get(&mut self, key: &str) -> Result<Option<Stored>, StoreError>;

    /// Sets `key` to `value`, durably, if its revision is `expected` (0: if it does not exist), and
    /// returns the new revision.
    ///
    /// # Errors
    /// `Unavailable`, `OutcomeUnknown`, `Conflict`.
    fn put(&mut self, key: &str, value: &[u8], expected: Revision) -> Result<Revision, StoreError>;
}

/// The cluster view in `store`.
///
/// # Errors
/// `Unavailable`, `Damaged`.
pub fn get_view(store: &mut dyn ConfigStore) -> Result<Option<StoredView>, StoreError> {
    match store.get(VIEW_KEY)? {
        Some(stored) => Ok(Some(StoredView {
            revision: stored.revision,
            view: ClusterView::from_bytes(&stored.value, "cluster view")?,
        })),
        None => Ok(None),
    }
}

/// Performs `server::Effect::Store`. A conflict with the very same view is success: an earlier
/// attempt with unknown outcome had arrived.
///
/// # Errors
/// As `ConfigStore::put`.
pub fn put_view(
    store: &mut dyn ConfigStore,
    view: &ClusterView,
    expected: Revision,
) -> Result<Revision, StoreError> {
    let value = view.to_bytes();
    match store.put(VIEW_KEY, &value, expected) {
        Err(StoreError::Conflict { found: Some(found) }) if found.value == value => {
            Ok(found.revision)
        }
        result => result,
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A store in memory whose next puts can be told to fail.
    #[derive(Debug, Default)]
    pub(crate) struct MemoryStore {
        pub(crate) stored: Option<Stored>,
        pub(crate) fail_next: Option<StoreError>,
    }

    impl ConfigStore for MemoryStore {
        fn get(&mut self, _key: &str) -> Result<Option<Stored>, StoreError> {
            Ok(self.stored.clone())
        }

        fn put(
            &mut self,
            _key: &str,
            value: &[u8],
            expected: Revision,
        ) -> Result<Revision, StoreError> {
            if self.fail_next == Some(StoreError::Unavailable) {
                self.fail_next = None;
                return Err(StoreError::Unavailable);
            }
            let revision = self.stored.as_ref().map_or(Revision(0), |s| s.revision);
            if revision != expected {
                let found = self.stored.clone();
                return Err(StoreError::Conflict { found });
            }
            let revision = Revision(revision.0 + 1);
            let value = value.to_vec();
            self.stored = Some(Stored { revision, value });
            match self.fail_next.take() {
                Some(error) => Err(error),
                None => Ok(revision),
            }
        }
    }

    #[test]
    fn a_put_with_unknown_outcome_may_be_repeated() {
        let view = crate::server::tests::view(&[1]);
        let mut store = MemoryStore::default();
        assert_eq!(get_view(&mut store), Ok(None));
        store.fail_next = Some(StoreError::OutcomeUnknown);
        let unknown = put_view(&mut store, &view, Revision(0));
        assert_eq!(unknown, Err(StoreError::OutcomeUnknown));
        assert_eq!(put_view(&mut store, &view, Revision(0)), Ok(Revision(1)));
        let mut other = view.clone();
        other.epoch.0 += 1;
        assert!(matches!(
            put_view(&mut store, &other, Revision(0)),
            Err(StoreError::Conflict { .. })
        ));
        assert_eq!(put_view(&mut store, &other, Revision(1)), Ok(Revision(2)));
        let found = get_view(&mut store).unwrap().unwrap();
        assert_eq!((found.view, found.revision), (other, Revision(2)));
        store.stored.as_mut().unwrap().value.pop();
        assert!(matches!(get_view(&mut store), Err(StoreError::Damaged(_))));
    }
}

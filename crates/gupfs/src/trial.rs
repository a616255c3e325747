//! What is built and not trusted with data yet: an environment variable switches it on, for tests.

/// Directories of a new file system may lie in parts (docs/decisions/0016).
pub(crate) const DIRECTORY_PARTS: &str = "GUPFS_DIRECTORY_PARTS";

/// It is set to 1.
pub(crate) fn is_on(name: &str) -> bool {
    std::env::var_os(name).is_some_and(|value| value == "1")
}

//! What is built and not trusted with data yet: an environment variable switches it on, for tests.

/// Directories of a new file system may lie in parts (docs/decisions/0016).
pub(crate) const DIRECTORY_PARTS: &str = "GUPFS_DIRECTORY_PARTS";
/// This daemon rewrites blocks of many extents that rest (docs/decisions/0017).
pub(crate) const REWRITE_AGED: &str = "GUPFS_REWRITE_AGED";

/// It is set to 1.
pub(crate) fn is_on(name: &str) -> bool {
    std::env::var_os(name).is_some_and(|value| value == "1")
}

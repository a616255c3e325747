//! The pagepool.

//! Event loops.

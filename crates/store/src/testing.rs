//! A disk in memory that forgets what was not flushed: for crash tests of this crate and of others.

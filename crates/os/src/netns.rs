//! Network name spaces.

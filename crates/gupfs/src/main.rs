//! The gupfs command.
fn main() {}

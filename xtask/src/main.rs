//! All automation of the repository.
fn main() {}

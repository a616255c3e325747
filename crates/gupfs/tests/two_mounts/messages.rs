//! What is cached under tokens sends no messages.

use std::fs::{self, File};
use std::io::Error;
use std::os::unix::fs::FileExt as _;

use crate::fixture::Fixture;
use crate::{finish, lab};

/// Questions that node 2 has asked other nodes.
fn questions(fixture: &Fixture) -> u64 {
    let counters = fixture.counters(2);
    counters["sent_question"].as_u64().expect("a counter")
}

/// A directory that both nodes have changed is shared, not forgotten: lookups come to the daemon each time
/// (rule R11), and are answered there under the directory's token.
#[test]
fn names_of_a_shared_directory_are_cached() {
    const COUNT: u64 = 200;
    let fixture = lab!();
    let outcome = (|| -> Result<String, Error> {
        fs::create_dir(fixture.path(2, "own"))?;
        fs::create_dir(fixture.path(1, "theirs"))?;
        fs::write(fixture.path(1, "theirs/file"), [7; 10_000])?;
        let path = fixture.path(2, "theirs/file");
        let look = || -> Result<(), Error> {
            let file = File::open(&path)?;
            assert_eq!(file.metadata()?.len(), 10_000);
            file.read_exact_at(&mut [0; 4096], 4096)?;
            assert!(!fs::exists(fixture.path(2, "missing"))?);
            Ok(())
        };
        look()?;
        let before = questions(&fixture);
        for _ in 0..COUNT {
            look()?;
        }
        let asked = questions(&fixture) - before;
        // Free sectors may be asked for in the background.
        assert!(asked < 10, "{asked} questions in {COUNT} rounds");
        // And it is no stale knowledge.
        fs::write(fixture.path(1, "missing"), b"here now")?;
        assert!(fs::exists(fixture.path(2, "missing"))?);
        fs::rename(fixture.path(1, "theirs"), fixture.path(1, "moved"))?;
        assert!(!fs::exists(&path)?);
        assert!(fs::exists(fixture.path(2, "moved/file"))?);
        Ok(format!("{asked} questions in {COUNT} rounds"))
    })();
    finish(&fixture, outcome.map_err(|e| e.to_string()));
}

//! `gupfs du` leaves tokens where they are: what it has looked at is no node's, and who writes goes on.

use std::fs::{self, File};
use std::io::{Error, Write as _};

use crate::fixture::Fixture;
use crate::layout::told;
use crate::{finish, lab};

const FILE_COUNT: usize = 600;

/// Tokens that each owner has granted, and revokes that it has sent.
fn tokens(fixture: &Fixture) -> [(u64, u64); 2] {
    [1, 2].map(|node| {
        let counters = fixture.counters(node);
        let count = |name: &str| counters[name].as_u64().expect("a count");
        (count("tokens_granted_now"), count("revokes"))
    })
}

#[test]
fn what_is_summed_is_nobodys() {
    let fixture = lab!();
    let outcome = (|| -> Result<String, Error> {
        for node in [1, 2] {
            let top = fixture.path(node, &format!("of {node}"));
            fs::create_dir(&top)?;
            for index in 0..FILE_COUNT / 2 {
                let mut file = File::create(top.join(index.to_string()))?;
                file.write_all(&[7; 100])?;
                file.sync_all()?;
            }
        }
        let check = || -> Result<u64, Error> {
            // What the command itself looks at through the kernel.
            for node in [1, 2] {
                fs::metadata(fixture.mount(node))?;
            }
            let before = tokens(&fixture);
            for node in [1, 2] {
                let said = told("du", &fixture.mount(node))?;
                let sum = &said["paths"][0];
                assert_eq!(sum["inodes"], FILE_COUNT + 3, "{said}");
                assert!(
                    sum["size"].as_u64() >= Some(FILE_COUNT as u64 * 100),
                    "{said}"
                );
            }
            assert_eq!(tokens(&fixture), before);
            Ok(before.iter().map(|(count, _)| count).sum())
        };
        let written = check()?;
        assert!(written >= FILE_COUNT as u64, "{written}");
        // Nobody has any token now that would keep others from being granted.
        fixture.restart().map_err(Error::other)?;
        let fresh = check()?;
        assert!(fresh < FILE_COUNT as u64 / 10, "{fresh}");
        Ok(format!("{written} tokens granted, {fresh} after a restart"))
    })();
    finish(&fixture, outcome.map_err(|e| e.to_string()));
}

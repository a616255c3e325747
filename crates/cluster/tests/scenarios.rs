//! Runs the scripts in `testdata/`: each line without indent is a command, the indented lines behind
//! it are what happened then. `UPDATE=1 cargo test -p cluster` writes the transcripts anew.
//!
//! Commands: `nodes N`, `start N`, `start-new-state N` (the list of former lives is lost), `kill N`,
//! `pause N`, `resume N`, `cut N`, `heal N`, `leave N`, `drift N PPM`, `store down|up`, `run MS`,
//! `all-well`.

#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "reads its scripts; a test that panics has failed"
)]

mod world;

use std::fmt::Write;
use std::path::Path;

use world::{MS, World};

fn command(world: &mut World, line: &str) {
    let words: Vec<&str> = line.split_whitespace().collect();
    let node = || words[1].parse::<u16>().unwrap();
    match words[0] {
        "nodes" => *world = World::new(1, node()),
        "start" => world.start(node(), true),
        "start-new-state" => world.start(node(), false),
        "kill" => world.kill(node()),
        "pause" => world.pause(node(), true),
        "resume" => world.pause(node(), false),
        "cut" => world.machines.get_mut(&node()).unwrap().is_cut = true,
        "heal" => world.machines.get_mut(&node()).unwrap().is_cut = false,
        "leave" => world.leave(node()),
        "drift" => world.set_drift(node(), words[2].parse().unwrap()),
        "store" => world.set_store_down(words[1] == "down"),
        "run" => world.run_until(world.now + words[1].parse::<u64>().unwrap() * MS),
        "all-well" => world.check_all_well(),
        other => panic!("no command '{other}'"),
    }
}

fn transcript(script: &str) -> String {
    let mut world = World::new(1, 1);
    let mut text = String::new();
    for line in script.lines().filter(|line| !line.starts_with(' ')) {
        writeln!(text, "{line}").unwrap();
        if line.starts_with('#') || line.is_empty() {
            continue;
        }
        command(&mut world, line);
        for line in std::mem::take(&mut world.log) {
            writeln!(text, "  {line}").unwrap();
        }
    }
    text
}

#[test]
fn every_script_happens_as_written() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata");
    let mut paths: Vec<_> = std::fs::read_dir(&folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    paths.sort();
    assert!(paths.len() >= 6);
    for path in paths {
        let script = std::fs::read_to_string(&path).unwrap();
        let now = transcript(&script);
        if std::env::var_os("UPDATE").is_some() {
            std::fs::write(&path, &now).unwrap();
        } else {
            assert_eq!(script, now, "{}", path.display());
        }
    }
}

//! Small files of a directory that is read through are loaded before they are opened.

use std::fs;
use std::time::{Duration, Instant};

use crate::node::Node;

const FILE_COUNT: u64 = 40;
const DIRECTORY_COUNT: u64 = 3;
/// Two steps.
const AHEAD: u64 = 32;

fn bytes(directory: u64, number: u64) -> Vec<u8> {
    let length = usize::try_from(300 + 1_500 * (number % 7)).unwrap();
    let byte = u8::try_from((directory * 40 + number) % 251).unwrap();
    vec![byte; length]
}

fn loaded(node: &Node) -> u64 {
    let counters = node.gupfs(&["dump", "counters", "--json"]);
    let counters: serde_json::Value = serde_json::from_str(&counters).unwrap();
    counters["files_loaded_ahead"].as_u64().expect("a counter")
}

/// Waits until so many files have been loaded.
fn await_loaded(node: &Node, count: u64) {
    let end = Instant::now() + Duration::from_secs(30);
    while loaded(node) < count {
        assert!(
            Instant::now() < end,
            "{} of {count} are loaded",
            loaded(node)
        );
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Lists a directory and reads its files in that order. Before the file `at` is read as many as are loaded ahead must be.
fn read_through(node: &Node, number: u64, at: u64) {
    let before = loaded(node);
    let entries = fs::read_dir(node.mount().join(format!("d{number}"))).unwrap();
    let entries: Vec<_> = entries.map(Result::unwrap).collect();
    // The thread that has answered the listing is done with it by then.
    loaded(node);
    let mut count = 0;
    for entry in entries {
        if count == at {
            await_loaded(node, before + AHEAD);
        }
        let name = entry.file_name().into_string().unwrap();
        let file = name.strip_prefix('f').unwrap().parse().unwrap();
        assert_eq!(
            fs::read(entry.path()).unwrap(),
            bytes(number, file),
            "{name}"
        );
        count += 1;
    }
    assert_eq!(count, FILE_COUNT);
}

#[test]
fn files_of_a_directory_that_is_read_through_are_loaded_ahead() {
    let Some(node) = Node::new("1G") else { return };
    let directory = |number: u64| node.mount().join(format!("d{number}"));
    for number in 0..DIRECTORY_COUNT {
        fs::create_dir(directory(number)).unwrap();
        for file in 0..FILE_COUNT {
            let path = directory(number).join(format!("f{file}"));
            fs::write(path, bytes(number, file)).unwrap();
        }
    }
    node.gupfs(&["down"]);
    node.up(&[]).unwrap();
    for number in 0..DIRECTORY_COUNT {
        let entries = fs::read_dir(directory(number)).unwrap();
        assert_eq!(entries.count() as u64, FILE_COUNT);
    }
    assert_eq!(loaded(&node), 0, "they were only listed");
    // Two of the first three tell; of the next directories nothing needs to be read before.
    read_through(&node, 0, 3);
    for number in 1..DIRECTORY_COUNT {
        read_through(&node, number, 0);
    }
}

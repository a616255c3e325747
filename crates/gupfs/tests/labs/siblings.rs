//! Small files of a directory that is read through are loaded before they are opened.

use std::fs;
use std::path::Path;

use crate::node::Node;

const FILE_COUNT: u64 = 40;
const DIRECTORY_COUNT: u64 = 3;

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

/// Lists `directory`, and reads what is in it in that order.
fn read_through(directory: &Path, number: u64) {
    let mut count = 0;
    for entry in fs::read_dir(directory).unwrap() {
        let entry = entry.unwrap();
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
    read_through(&directory(0), 0);
    let first = loaded(&node);
    assert!(first > FILE_COUNT / 2, "{first} were loaded");
    for number in 1..DIRECTORY_COUNT {
        read_through(&directory(number), number);
    }
    let all = loaded(&node);
    assert!(
        all > first + FILE_COUNT,
        "{all} were loaded, {first} of the first"
    );
}

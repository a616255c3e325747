//! A file has as many as 65,000 names, and one more is refused with an error that says so.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;

use crate::node::Node;

const LINK_COUNT: u64 = 65_000;
/// Names of a directory.
const DIRECTORY_COUNT: u64 = 5_000;

#[test]
fn a_file_has_65_000_names() {
    let Some(node) = Node::new("2G") else { return };
    let top = node.mount().join("links");
    fs::create_dir(&top).unwrap();
    let name = |number: u64| -> PathBuf {
        let directory = top.join((number / DIRECTORY_COUNT).to_string());
        directory.join(format!("name{number}"))
    };
    for number in 0..LINK_COUNT {
        if number % DIRECTORY_COUNT == 0 {
            fs::create_dir(name(number).parent().expect("a directory")).unwrap();
        }
        match number {
            0 => fs::write(name(0), "many").unwrap(),
            _ => fs::hard_link(name(0), name(number)).unwrap(),
        }
    }
    let links = |number: u64| fs::metadata(name(number)).unwrap().nlink();
    assert_eq!(links(LINK_COUNT - 1), LINK_COUNT);
    let one_more = fs::hard_link(name(0), top.join("over")).unwrap_err();
    assert_eq!(one_more.kind(), ErrorKind::TooManyLinks, "{one_more}");
    assert!(!top.join("over").exists());
    // Renaming needs no link more than there are; a name that has gone leaves room for another.
    fs::rename(name(1), top.join("renamed")).unwrap();
    fs::remove_file(top.join("renamed")).unwrap();
    fs::hard_link(name(0), name(1)).unwrap();
    node.gupfs(&["down"]);
    node.up(&[]).unwrap();
    for number in [0, 1, LINK_COUNT / 2, LINK_COUNT - 1] {
        assert_eq!(links(number), LINK_COUNT);
        assert_eq!(fs::read(name(number)).unwrap(), b"many");
    }
}

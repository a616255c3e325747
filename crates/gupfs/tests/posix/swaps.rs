//! rename(2) puts a new file or symbolic link in the place of an old one while others use the name: it leads to one or the other at
//! any time, so no call that goes through it may fail.

use std::fs;
use std::io;
use std::io::Read as _;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::ScopedJoinHandle;
use std::time::Duration;

use crate::node::Node;

const SWAP_COUNT: usize = 3000;
const READER_COUNT: usize = 3;

/// `put` makes the new one, by the number of the swap; it is moved to `name`, and `look` is called all the time: once by each reader
/// before the first swap.
fn swap(
    name: &Path,
    put: impl Fn(&Path, usize) -> io::Result<()>,
    look: impl Fn(&Path) -> io::Result<Vec<u8>> + Sync,
) {
    let next = name.with_extension("next");
    put(name, 0).unwrap();
    let (is_over, looking) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        let readers = (0..READER_COUNT).map(|reader| {
            let (is_over, looking, look) = (&is_over, &looking, &look);
            scope.spawn(move || {
                let mut count = 0_u64;
                while !is_over.load(Ordering::Relaxed) {
                    let found = look(name)
                        .unwrap_or_else(|error| panic!("reader {reader}, look {count}: {error}"));
                    assert!(matches!(found.as_slice(), b"a" | b"b"), "{found:?}");
                    count += 1;
                    if count == 1 {
                        looking.fetch_add(1, Ordering::Relaxed);
                    }
                }
            })
        });
        let readers: Vec<_> = readers.collect();
        // One that has ended has failed: the scope tells it.
        while looking.load(Ordering::Relaxed) < READER_COUNT
            && !readers.iter().any(ScopedJoinHandle::is_finished)
        {
            std::thread::sleep(Duration::from_millis(1));
        }
        for number in 1..SWAP_COUNT {
            put(&next, number).unwrap();
            fs::rename(&next, name).unwrap();
        }
        is_over.store(true, Ordering::Relaxed);
    });
}

fn text(number: usize) -> &'static str {
    ["a", "b"][number % 2]
}

#[test]
fn a_link_that_is_swapped_is_there_at_any_time() {
    let Some(node) = Node::new("1G") else { return };
    let root = node.mount();
    for number in 0..2 {
        fs::write(root.join(text(number)), text(number)).unwrap();
    }
    let put = |path: &Path, number| std::os::unix::fs::symlink(text(number), path);
    swap(&root.join("opened"), put, |path| fs::read(path));
    swap(&root.join("read"), put, |path| {
        Ok(fs::read_link(path)?.into_os_string().into_encoded_bytes())
    });
}

#[test]
fn a_file_that_is_swapped_is_there_at_any_time() {
    let Some(node) = Node::new("1G") else { return };
    let put = |path: &Path, number| fs::write(path, text(number));
    swap(&node.mount().join("file"), put, |path| fs::read(path));
}

/// Somebody has found the file, as every thread does that walks a path, and opens it when another file has taken its place.
#[test]
fn a_file_that_was_found_is_opened_after_it_was_replaced() {
    let Some(node) = Node::new("1G") else { return };
    let (name, next) = (node.mount().join("file"), node.mount().join("next"));
    for removes in [false, true] {
        fs::write(&name, "a").unwrap();
        let found = fs::OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_PATH)
            .open(&name)
            .unwrap();
        // For longer than the daemon waits for the open of whoever was shown a name (200 ms): who walks a path may stand still.
        std::thread::sleep(Duration::from_millis(500));
        fs::write(&next, "b").unwrap();
        fs::rename(&next, &name).unwrap();
        if removes {
            fs::remove_file(&name).unwrap();
        }
        let mut text = String::new();
        fs::File::open(format!("/proc/self/fd/{}", found.as_raw_fd()))
            .unwrap_or_else(|error| panic!("removes {removes}: {error}"))
            .read_to_string(&mut text)
            .unwrap();
        assert_eq!(text, "a");
    }
}

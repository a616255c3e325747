//! A whole tree as text, one line a name, for comparison.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use crate::call::{Call, Side};

/// Each name below a directory, and all there is to say of it.
pub type Tree = BTreeMap<String, String>;

/// Reads the tree below `root`.
pub fn read(root: &Path) -> Tree {
    let mut tree = Tree::new();
    let mut side = Side::new(root.to_owned());
    let mut first_names = BTreeMap::new();
    let mut rest = vec![String::new()];
    while let Some(path) = rest.pop() {
        let at = root.join(&path);
        let found = fs::symlink_metadata(&at).unwrap_or_else(|e| panic!("{}: {e}", at.display()));
        let mut ask = |call: Call| side.call(&call).map_err(std::io::Error::from_raw_os_error);
        let mut text = format!(
            "{:?}",
            ask(Call::Stat {
                path: path.clone(),
                follows: false
            })
        );
        if found.is_dir() {
            for entry in fs::read_dir(&at).unwrap_or_else(|e| panic!("{}: {e}", at.display())) {
                let name = entry.unwrap().file_name().into_string().expect("ASCII");
                rest.push(format!(
                    "{path}{}{name}",
                    if path.is_empty() { "" } else { "/" }
                ));
            }
        } else {
            first_names
                .entry(found.ino())
                .or_insert_with(Vec::new)
                .push(path.clone());
        }
        if found.is_file() {
            text += &format!(" {:?}", ask(Call::ReadPath { path: path.clone() }));
        }
        if found.is_symlink() {
            text += &format!(" {:?}", ask(Call::Readlink { path: path.clone() }));
        }
        let names = ask(Call::ListXattr { path: path.clone() }).unwrap();
        for name in names.split(' ').filter(|n| !n.is_empty()) {
            text += &format!(
                " {name} {:?}",
                ask(Call::GetXattr {
                    path: path.clone(),
                    name: name.to_owned()
                })
            );
        }
        tree.insert(path, text);
    }
    // Names of one file, by the file's number, which differs.
    for names in first_names.values_mut() {
        names.sort_unstable();
        for name in &*names {
            tree.get_mut(name)
                .expect("read")
                .push_str(&format!(" also {names:?}"));
        }
    }
    tree
}

/// Fails with all that differs.
pub fn compare(expected: &Tree, found: &Tree, what: &str) {
    let mut faults = Vec::new();
    for (path, text) in expected {
        match found.get(path) {
            Some(there) if there == text => {}
            Some(there) => faults.push(format!("{path:?}\nexpected {text}\nfound    {there}")),
            None => faults.push(format!("{path:?} is missing: {text}")),
        }
    }
    let more = found.keys().filter(|path| !expected.contains_key(*path));
    faults.extend(more.map(|path| format!("{path:?} should not be there: {}", found[path])));
    assert!(faults.is_empty(), "{what}:\n{}", faults.join("\n"));
}

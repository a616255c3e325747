//! What is copied: real trees as they are found, or a tree made from a seed.
//!
//! Invariant: a listing is in one order whatever the file system's is, parents before what they hold.

use std::fs;
use std::io::{BufWriter, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use stdx::prng::Prng;

use crate::failure::{Failure, Result};

/// Fewer files or bytes than these, and the default trees are replaced by a generated one.
pub const DEFAULT_FILES_MIN: u64 = 10_000;
/// See [`DEFAULT_FILES_MIN`].
pub const DEFAULT_BYTES_MIN: u64 = 500 << 20;

/// What an item of a tree is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A directory.
    Directory,
    /// A file of so many bytes.
    File(u64),
    /// A symbolic link with its target.
    Link(PathBuf),
}

/// One item of a tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    /// Path below the copy.
    pub relative: PathBuf,
    /// Where it is copied from.
    pub source: PathBuf,
    /// What it is.
    pub kind: Kind,
    /// Permission bits.
    pub mode: u32,
}

/// All that is to be copied.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tree {
    /// Parents first.
    pub items: Vec<Item>,
    /// Files among them.
    pub file_count: u64,
    /// Their bytes.
    pub byte_count: u64,
}

impl Tree {
    /// Lists `roots`, each under its own name.
    pub fn list(roots: &[PathBuf]) -> Result<Self> {
        let mut tree = Self::default();
        for (index, root) in roots.iter().enumerate() {
            let root = fs::canonicalize(root).map_err(|e| {
                Failure::io("read tree", root, &e).help("name a directory with --tree")
            })?;
            if !root.is_dir() {
                return Err(
                    Failure::new(format!("tree {} is not a directory", root.display()))
                        .help("name a directory with --tree"),
                );
            }
            let name = root.file_name().unwrap_or_default().display().to_string();
            let top = PathBuf::from(format!("{index}-{name}"));
            tree.push(&root, top)?;
        }
        Ok(tree)
    }

    fn push(&mut self, source: &Path, relative: PathBuf) -> Result<()> {
        let failed = |e: std::io::Error| Failure::io("read tree", source, &e);
        let metadata = fs::symlink_metadata(source).map_err(failed)?;
        let kind = if metadata.is_dir() {
            Kind::Directory
        } else if metadata.is_file() {
            self.file_count += 1;
            self.byte_count += metadata.len();
            Kind::File(metadata.len())
        } else if metadata.is_symlink() {
            Kind::Link(fs::read_link(source).map_err(failed)?)
        } else {
            // Sockets, pipes and devices hold no bytes to compare.
            return Ok(());
        };
        let is_directory = kind == Kind::Directory;
        let mode = metadata.permissions().mode() & 0o7777;
        self.items.push(Item {
            relative: relative.clone(),
            source: source.to_owned(),
            kind,
            mode,
        });
        if is_directory {
            let mut names = fs::read_dir(source)
                .map_err(failed)?
                .map(|entry| entry.map(|e| e.file_name()))
                .collect::<std::io::Result<Vec<_>>>()
                .map_err(failed)?;
            names.sort();
            for name in names {
                self.push(&source.join(&name), relative.join(&name))?;
            }
        }
        Ok(())
    }
}

/// This machine's Rust toolchain and cargo's sources, as far as they are there.
pub fn default_roots() -> Vec<PathBuf> {
    let mut roots = Vec::new();
    if let Ok(output) = Command::new("rustc").args(["--print", "sysroot"]).output() {
        roots.push(PathBuf::from(
            String::from_utf8_lossy(&output.stdout).trim(),
        ));
    }
    let cargo = std::env::var_os("CARGO_HOME")
        .map(PathBuf::from)
        .or_else(|| {
            let home = std::env::var_os("HOME")?;
            Some(PathBuf::from(home).join(".cargo"))
        });
    roots.extend(cargo.map(|c| c.join("registry/src")));
    roots.retain(|r| r.is_dir() && r.parent().is_some());
    roots
}

/// Makes a tree of `file_count` files with together about `byte_count` bytes below `root`, which must not
/// exist. The same seed makes the same tree.
pub fn generate(root: &Path, seed: u64, file_count: u64, byte_count: u64) -> Result<()> {
    let mut prng = Prng::new(seed);
    // Sizes spread over four orders of magnitude, as in real trees: most files are small.
    let weights: Vec<u64> = (0..file_count).map(|_| 1 << prng.below(14)).collect();
    let sum: u128 = weights.iter().map(|w| u128::from(*w)).sum::<u128>().max(1);
    for (index, weight) in weights.into_iter().enumerate() {
        let share = u128::from(byte_count) * u128::from(weight) / sum;
        let size = u64::try_from(share).expect("not more than the sum");
        let directory = root.join(format!("d{:02}/e{:02}", index / 64 % 37, index / 8 % 8));
        if index % 8 == 0 {
            fs::create_dir_all(&directory).map_err(|e| Failure::io("make", &directory, &e))?;
        }
        let path = directory.join(format!("f{index:06}"));
        write_random(&path, &mut prng, size).map_err(|e| Failure::io("write", &path, &e))?;
    }
    Ok(())
}

fn write_random(path: &Path, prng: &mut Prng, size: u64) -> std::io::Result<()> {
    let mut file = BufWriter::with_capacity(1 << 18, fs::File::create_new(path)?);
    for _ in 0..size / 8 {
        file.write_all(&prng.next_u64().to_le_bytes())?;
    }
    let rest = usize::try_from(size % 8).expect("below eight");
    file.write_all(&prng.next_u64().to_le_bytes()[..rest])?;
    file.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_seed_makes_one_tree() {
        let directory = tempfile::tempdir().expect("a directory");
        let (a, b) = (directory.path().join("a/t"), directory.path().join("b/t"));
        for root in [&a, &b] {
            generate(root, 7, 100, 1 << 20).expect("made");
        }
        let (first, second) = (Tree::list(&[a]).expect("a"), Tree::list(&[b]).expect("b"));
        assert_eq!(first.file_count, 100);
        assert!(first.byte_count > (1 << 20) - 100 && first.byte_count <= 1 << 20);
        for (x, y) in first.items.iter().zip(&second.items) {
            assert_eq!((&x.relative, &x.kind), (&y.relative, &y.kind));
            if x.kind != Kind::Directory {
                assert_eq!(
                    fs::read(&x.source).expect("x"),
                    fs::read(&y.source).expect("y")
                );
            }
        }
    }

    #[test]
    fn a_listing_has_parents_first_and_all_kinds() {
        let directory = tempfile::tempdir().expect("a directory");
        let root = directory.path().join("t");
        fs::create_dir_all(root.join("b")).expect("made");
        fs::write(root.join("b/f"), "abc").expect("written");
        std::os::unix::fs::symlink("b/f", root.join("a")).expect("linked");
        let tree = Tree::list(std::slice::from_ref(&root)).expect("listed");
        let seen: Vec<(&str, &Kind)> = tree
            .items
            .iter()
            .map(|i| (i.relative.to_str().expect("text"), &i.kind))
            .collect();
        assert_eq!(
            seen,
            [
                ("0-t", &Kind::Directory),
                ("0-t/a", &Kind::Link("b/f".into())),
                ("0-t/b", &Kind::Directory),
                ("0-t/b/f", &Kind::File(3)),
            ]
        );
        Tree::list(&[root.join("b/f")]).expect_err("a file is no tree");
        Tree::list(&[root.join("x")]).expect_err("nothing there");
    }
}

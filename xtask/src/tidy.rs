//! `cargo xtask tidy`: the rules of the repository that a machine can check, one small function each.
//!
//! Sources are looked at without comments and literals (`source::strip`), so that a rule about code is not
//! broken by a text about it.

mod imports;
mod links;
mod rules;
mod source;

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};

/// A rule that is broken, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Fault {
    path: PathBuf,
    /// Counted from 1; 0 for the file as a whole.
    line: usize,
    what: String,
}

impl Fault {
    fn new(path: &Path, line: usize, what: impl Into<String>) -> Self {
        Self {
            path: path.to_owned(),
            line,
            what: what.into(),
        }
    }
}

/// Checks the repository at `root`; prints each fault and fails if there is one.
pub(crate) fn run(root: &Path) -> Result<()> {
    let files = tracked(root)?;
    let mut faults = imports::check(root)?;
    for relative in &files {
        let path = root.join(relative);
        // Deleted and not committed yet.
        let Ok(bytes) = std::fs::read(&path) else {
            continue;
        };
        if let Ok(text) = String::from_utf8(bytes) {
            faults.extend(check_file(root, relative, &text));
        }
    }
    faults.sort_by(|a, b| (&a.path, a.line).cmp(&(&b.path, b.line)));
    for fault in &faults {
        println!("{}:{}: {}", fault.path.display(), fault.line, fault.what);
    }
    match faults.len() {
        0 => {
            println!("tidy: {} files, no fault", files.len());
            Ok(())
        }
        count => bail!("tidy: {count} faults"),
    }
}

fn check_file(root: &Path, relative: &Path, text: &str) -> Vec<Fault> {
    match relative.extension().and_then(|e| e.to_str()) {
        Some("rs") => {
            let mut faults = rules::check(relative, text);
            faults.extend(imports::check_source(relative, text));
            faults
        }
        Some("md") => links::check(root, relative, text),
        _ => Vec::new(),
    }
}

/// Files that git knows, or would add.
fn tracked(root: &Path) -> Result<Vec<PathBuf>> {
    let output = std::process::Command::new("git")
        .args([
            "ls-files",
            "--cached",
            "--others",
            "--exclude-standard",
            "-z",
        ])
        .current_dir(root)
        .output()
        .context("cannot run git")?;
    anyhow::ensure!(output.status.success(), "git ls-files failed");
    let names = String::from_utf8(output.stdout).context("a file name is not UTF-8")?;
    let mut files: Vec<PathBuf> = names
        .split('\0')
        .filter(|n| !n.is_empty())
        .map(PathBuf::from)
        .collect();
    files.sort();
    files.dedup();
    Ok(files)
}

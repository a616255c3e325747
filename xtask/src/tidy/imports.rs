//! Who may import whom: the table of ARCHITECTURE.md against what cargo sees.

use std::path::Path;

use anyhow::{Context as _, Result};
use cargo_metadata::{DependencyKind, MetadataCommand};

use super::{Fault, source};

const CORES: &[&str] = &["client", "token", "meta", "store", "data", "nsd", "cluster"];

/// What each crate may import besides stdx and types. A crate that is not listed is a fault.
const TABLE: &[(&str, &[&str])] = &[
    ("stdx", &[]),
    ("types", &[]),
    ("cluster", &[]),
    ("token", &[]),
    ("nsd", &[]),
    ("data", &["nsd"]),
    ("store", &["data"]),
    ("meta", &["store"]),
    ("client", &["token", "meta", "data"]),
    ("node", CORES),
    ("fuse", &["client"]),
    // os names fuse because its transports decode on the thread that received the request.
    ("os", &["node", "client", "cluster", "data", "nsd", "fuse"]),
    ("fsck", &["node", "data", "nsd"]),
    ("etcd", &["cluster"]),
    (
        "gupfs",
        &[
            "client", "token", "meta", "store", "data", "nsd", "cluster", "node", "os", "etcd",
            "fuse", "bench", "fsck",
        ],
    ),
    (
        "sim",
        &[
            "client", "token", "meta", "store", "data", "nsd", "cluster", "node", "fuse", "fsck",
        ],
    ),
    ("bench", &["client"]),
    ("xtask", &[]),
];

/// Which crates hand on whole crates by `pub use`, for whom: what cargo does not see.
const HANDED_ON: &[(&str, &[&str])] = &[
    // For os, which drives the parts that node joins: docs/decisions/0006-layering.md.
    ("node", &["meta", "store", "token"]),
];

/// Compares the workspace at `root` with the table.
pub(super) fn check(root: &Path) -> Result<Vec<Fault>> {
    let metadata = MetadataCommand::new()
        .manifest_path(root.join("Cargo.toml"))
        .no_deps()
        .exec()
        .context("cargo metadata failed")?;
    let members: Vec<&str> = metadata.packages.iter().map(|p| p.name.as_str()).collect();
    let mut faults = Vec::new();
    for package in &metadata.packages {
        let manifest = package.manifest_path.as_std_path();
        let relative = manifest.strip_prefix(root).unwrap_or(manifest);
        let imports = package
            .dependencies
            .iter()
            .filter(|d| d.kind == DependencyKind::Normal && members.contains(&d.name.as_str()))
            .map(|d| d.name.as_str());
        for what in broken(package.name.as_str(), imports) {
            faults.push(Fault::new(relative, 0, what));
        }
    }
    Ok(faults)
}

/// Whole crates that the source at `path` hands on and that it should not.
pub(super) fn check_source(path: &Path, text: &str) -> Vec<Fault> {
    let mut parts = path.iter().filter_map(|part| part.to_str());
    let (Some("crates"), Some(name), Some("src")) = (parts.next(), parts.next(), parts.next())
    else {
        return Vec::new();
    };
    let allowed = HANDED_ON
        .iter()
        .find(|(listed, _)| *listed == name)
        .map_or(&[][..], |(_, crates)| crates);
    let mut faults = Vec::new();
    let text = source::strip(text);
    for (at, _) in text.match_indices("pub use ") {
        let statement = text[at + "pub use ".len()..]
            .split(';')
            .next()
            .unwrap_or("");
        let names = statement.trim().trim_matches(|c| c == '{' || c == '}');
        if names.contains('{') {
            // Items of one path.
            continue;
        }
        let crates = names
            .split(',')
            .filter_map(|n| n.split_whitespace().next())
            .filter(|n| TABLE.iter().any(|(listed, _)| listed == n) && !allowed.contains(n));
        let line = text[..at].matches('\n').count() + 1;
        for import in crates {
            let what = format!("the crate {name} must not hand on {import} as a whole");
            faults.push(Fault::new(path, line, what));
        }
    }
    faults
}

/// What is wrong with the `imports` of the crate `name`.
fn broken<'a>(name: &str, imports: impl Iterator<Item = &'a str>) -> Vec<String> {
    let Some((_, allowed)) = TABLE.iter().find(|(listed, _)| *listed == name) else {
        return vec![format!(
            "the crate {name} is not in the import table (xtask/src/tidy/imports.rs)"
        )];
    };
    let is_allowed = |import: &str| match import {
        "stdx" => name != "stdx",
        "types" => !matches!(name, "stdx" | "types"),
        _ => allowed.contains(&import),
    };
    let bad = imports.filter(|import| !is_allowed(import));
    bad.map(|import| format!("the crate {name} must not import {import}"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn siblings_and_upward_imports_are_refused() {
        let faults = |name, imports: &[&'static str]| broken(name, imports.iter().copied());
        assert!(faults("token", &["stdx", "types"]).is_empty());
        assert_eq!(faults("token", &["nsd"]).len(), 1);
        assert_eq!(faults("stdx", &["types"]).len(), 1);
        assert_eq!(faults("meta", &["client", "store"]).len(), 1);
        assert_eq!(faults("sim", &["os"]).len(), 1);
        assert_eq!(faults("brand_new", &[]).len(), 1);
    }

    #[test]
    fn a_crate_is_handed_on_only_where_the_table_says_so() {
        let count = |path: &str, text: &str| check_source(Path::new(path), text).len();
        assert_eq!(count("crates/node/src/lib.rs", "pub use {meta, store};"), 0);
        assert_eq!(count("crates/node/src/lib.rs", "pub use {meta, nsd};"), 1);
        assert_eq!(count("crates/client/src/lib.rs", "pub use token;"), 1);
        assert_eq!(count("crates/client/src/lib.rs", "pub use token as t;"), 1);
        assert_eq!(
            count("crates/client/src/lib.rs", "pub use token::Holder;"),
            0
        );
        assert_eq!(
            count("crates/client/src/lib.rs", "pub use token::{Holder, data};"),
            0
        );
        assert_eq!(count("crates/client/src/lib.rs", "// pub use token;"), 0);
    }

    #[test]
    fn the_table_has_no_cycle() {
        // Each crate may import only crates that can be sorted before it.
        let mut sorted: Vec<&str> = vec!["stdx", "types"];
        while sorted.len() < TABLE.len() {
            let next = TABLE.iter().find(|(name, imports)| {
                !sorted.contains(name)
                    && imports
                        .iter()
                        .all(|i| sorted.contains(i) || !TABLE.iter().any(|(n, _)| n == i))
            });
            sorted.push(next.expect("a crate that needs only sorted ones").0);
        }
    }
}

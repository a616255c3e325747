//! Links between documents: each one must lead somewhere.

use std::path::Path;

use super::Fault;

/// Checks the links of the document `text` at `relative` below `root`.
pub(super) fn check(root: &Path, relative: &Path, text: &str) -> Vec<Fault> {
    let directory = root
        .join(relative)
        .parent()
        .map(Path::to_path_buf)
        .unwrap_or_default();
    let mut faults = Vec::new();
    let mut in_code = false;
    for (index, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            in_code = !in_code;
        }
        if in_code {
            continue;
        }
        for target in targets(line) {
            if !directory.join(target).exists() {
                faults.push(Fault::new(
                    relative,
                    index + 1,
                    format!("the link to {target} leads nowhere"),
                ));
            }
        }
    }
    faults
}

/// Targets of `[text](target)` that lie in the repository, without their anchors.
fn targets(line: &str) -> impl Iterator<Item = &str> {
    line.split("](").skip(1).filter_map(|rest| {
        let (target, _) = rest.split_once(')')?;
        let file = target.split('#').next().unwrap_or("");
        (!file.is_empty() && !file.contains("://") && !file.starts_with("mailto:")).then_some(file)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dead_links_are_found() {
        let root = tempfile::tempdir().expect("a directory");
        std::fs::create_dir(root.path().join("docs")).expect("made");
        std::fs::write(root.path().join("docs/a.md"), "").expect("written");
        let text =
            "[a](a.md) and [b](b.md#part)\n```\n[c](c.md)\n```\n[d](https://x/y) [e](#part)\n";
        let faults = check(root.path(), Path::new("docs/x.md"), text);
        assert_eq!(faults.len(), 1);
        assert_eq!((faults[0].line, faults[0].what.contains("b.md")), (1, true));
        assert_eq!(
            check(root.path(), Path::new("README.md"), "[a](docs/a.md)"),
            []
        );
    }
}

//! Rules about one source file.

use std::path::Path;

use super::Fault;
use super::source::{strip, tests_begin};

/// Most lines of a file, its tests not counted.
const FILE_LINES_MAX: usize = 1000;
/// Most lines of a function.
const FUNCTION_LINES_MAX: usize = 100;
/// Words that mean something else in the field, or nothing precise; see docs/vocabulary.md.
const BANNED: [&str; 12] = [
    "volume",
    "brick",
    "ost",
    "lun",
    "broker",
    "delegation",
    "capability",
    "heartbeat",
    "master",
    "wal",
    "mirror",
    "chunk",
];
/// Crates that see no operating system.
const PURE: [&str; 13] = [
    "stdx", "types", "cluster", "token", "nsd", "data", "store", "meta", "client", "node", "fuse",
    "fsck", "sim",
];
const FORBIDDEN_MODULES: [&str; 5] = ["net", "fs", "thread", "process", "env"];
/// Crates that may read a clock.
const CLOCKED: [&str; 5] = ["os", "etcd", "gupfs", "bench", "xtask"];

/// Checks the source `text` of the file `path` (below the repository).
pub(super) fn check(path: &Path, text: &str) -> Vec<Fault> {
    let code = strip(text);
    let own_tests = tests_begin(&code).unwrap_or(usize::MAX);
    // Code of the tests may use the machine: it never runs in a core.
    let shipped: String = if is_test_file(path) {
        String::new()
    } else {
        code.lines()
            .take(own_tests)
            .map(|l| format!("{l}\n"))
            .collect()
    };
    let mut faults = Vec::new();
    faults.extend(first_line(path, text));
    faults.extend(ascii(path, text));
    faults.extend(file_size(path, &shipped));
    faults.extend(function_sizes(path, &shipped));
    faults.extend(banned_words(path, &code));
    faults.extend(glob_imports(path, &shipped));
    faults.extend(pure_modules(path, &shipped));
    faults.extend(clocks(path, &shipped));
    faults.extend(unsafe_forbidden(path, text));
    faults
}

/// The crate that `path` belongs to.
fn crate_of(path: &Path) -> &str {
    let mut parts = path.iter().filter_map(|p| p.to_str());
    match parts.next() {
        Some("crates") => parts.next().unwrap_or(""),
        Some(other) => other,
        None => "",
    }
}

fn is_test_file(path: &Path) -> bool {
    let is = |name: &str| path.iter().any(|p| p == name);
    let name = path.file_name().and_then(|n| n.to_str()).unwrap_or("");
    is("tests")
        || is("examples")
        || is("benches")
        || name == "tests.rs"
        || name.ends_with("_tests.rs")
}

fn first_line(path: &Path, text: &str) -> Option<Fault> {
    let is_good = text.starts_with("//! ") && text.lines().next().is_some_and(|l| l.len() > 5);
    (!is_good).then(|| Fault::new(path, 1, "the first line must be `//!` and one sentence"))
}

fn ascii(path: &Path, text: &str) -> Option<Fault> {
    let line = text.lines().position(|l| !l.is_ascii())?;
    Some(Fault::new(path, line + 1, "sources are ASCII"))
}

fn file_size(path: &Path, shipped: &str) -> Option<Fault> {
    let count = shipped.lines().count();
    (count > FILE_LINES_MAX).then(|| {
        Fault::new(
            path,
            0,
            format!("{count} lines, at most {FILE_LINES_MAX}: split it by the state it owns"),
        )
    })
}

fn function_sizes(path: &Path, shipped: &str) -> Vec<Fault> {
    let lines: Vec<&str> = shipped.lines().collect();
    let mut faults = Vec::new();
    for (index, line) in lines.iter().enumerate() {
        if !words(line).any(|w| w == "fn") || !is_definition(line) {
            continue;
        }
        let count = block_lines(&lines[index..]);
        if count > FUNCTION_LINES_MAX {
            let what = format!("a function of {count} lines, at most {FUNCTION_LINES_MAX}");
            faults.push(Fault::new(path, index + 1, what));
        }
    }
    faults
}

/// `fn` with a name behind it, not the type of a pointer.
fn is_definition(line: &str) -> bool {
    line.split("fn ")
        .nth(1)
        .is_some_and(|rest| rest.starts_with(|c: char| c.is_alphabetic() || c == '_'))
}

/// Lines until the braces that open first are closed; 1 for a declaration without a body.
fn block_lines(lines: &[&str]) -> usize {
    let (mut depth, mut round) = (0_usize, 0_usize);
    for (index, line) in lines.iter().enumerate() {
        for c in line.chars() {
            match c {
                '(' | '[' => round += 1,
                ')' | ']' => round = round.saturating_sub(1),
                '{' => depth += 1,
                '}' => {
                    depth = depth.saturating_sub(1);
                    if depth == 0 {
                        return index + 1;
                    }
                }
                ';' if depth == 0 && round == 0 => return 1,
                _ => {}
            }
        }
    }
    lines.len()
}

/// Words of the code: runs of letters, digits and underscores.
fn words(line: &str) -> impl Iterator<Item = &str> {
    line.split(|c: char| !(c.is_alphanumeric() || c == '_'))
        .filter(|w| !w.is_empty())
}

/// The words that an identifier is made of, in lower case: `WriteAhead_log` is write, ahead, log.
fn parts(identifier: &str) -> Vec<String> {
    let mut out: Vec<String> = Vec::new();
    let mut previous = '_';
    for c in identifier.chars() {
        let begins = c != '_' && (previous == '_' || (c.is_uppercase() && previous.is_lowercase()));
        if begins {
            out.push(String::new());
        }
        if let (Some(part), true) = (out.last_mut(), c != '_') {
            part.extend(c.to_lowercase());
        }
        previous = c;
    }
    out
}

fn banned_words(path: &Path, code: &str) -> Vec<Fault> {
    // What std calls them is not ours to choose, and this list must name them.
    const OF_STD: [&str; 8] = [
        "chunks",
        "chunks_mut",
        "chunks_exact",
        "chunks_exact_mut",
        "first_chunk",
        "last_chunk",
        "split_first_chunk",
        "as_chunks",
    ];
    let mut faults = Vec::new();
    for (index, line) in code.lines().enumerate() {
        for word in words(line).filter(|w| !OF_STD.contains(w)) {
            if let Some(part) = parts(word).iter().find(|p| BANNED.contains(&p.as_str())) {
                let what = format!("`{word}`: the word {part:?} is banned, see docs/vocabulary.md");
                faults.push(Fault::new(path, index + 1, what));
            }
        }
    }
    faults
}

fn glob_imports(path: &Path, shipped: &str) -> Vec<Fault> {
    let is_glob = |line: &&str| {
        let line = line.trim_start();
        (line.starts_with("use ")
            || line.starts_with("pub use ")
            || line.starts_with("pub(crate) use "))
            && line.contains("::*")
    };
    lines_where(
        path,
        shipped,
        |line| is_glob(&line),
        "no `use x::*` outside tests",
    )
}

fn pure_modules(path: &Path, shipped: &str) -> Vec<Fault> {
    if !PURE.contains(&crate_of(path)) || is_sim_program(path) {
        return Vec::new();
    }
    let names = |line: &str| {
        let line: String = line.split_whitespace().collect();
        let named = FORBIDDEN_MODULES.iter().any(|module| {
            let path = format!("std::{module}");
            line.match_indices(&path).any(|(at, _)| {
                !line[at + path.len()..].starts_with(|c: char| c.is_alphanumeric() || c == '_')
            })
        });
        let in_braces =
            line.contains("std::{") && words(&line).any(|w| FORBIDDEN_MODULES.contains(&w));
        named || in_braces
    };
    lines_where(
        path,
        shipped,
        names,
        "a pure crate names no std::{net, fs, thread, process, env}",
    )
}

fn clocks(path: &Path, shipped: &str) -> Vec<Fault> {
    if CLOCKED.contains(&crate_of(path)) || is_sim_program(path) {
        return Vec::new();
    }
    let reads = |line: &str| line.contains("Instant::now") || line.contains("SystemTime::now");
    lines_where(
        path,
        shipped,
        reads,
        "time is an argument: no clock is read here",
    )
}

/// The simulator's program draws a seed and prints how long it took; its library is pure.
fn is_sim_program(path: &Path) -> bool {
    crate_of(path) == "sim" && (path.ends_with("src/main.rs") || path.iter().any(|p| p == "bin"))
}

/// Every crate but `os`, `bench` and `stdx` forbids unsafe code at its root.
fn unsafe_forbidden(path: &Path, text: &str) -> Option<Fault> {
    let is_root = path.ends_with("src/lib.rs") || path.ends_with("src/main.rs");
    let name = crate_of(path);
    let level = match name {
        "os" => return None,
        "stdx" | "bench" => "#![deny(unsafe_code)]",
        _ => "#![forbid(unsafe_code)]",
    };
    let has = text.contains(level) || text.contains("#![forbid(unsafe_code)]");
    (is_root && !has).then(|| Fault::new(path, 1, format!("the crate's root must say {level}")))
}

fn lines_where(path: &Path, code: &str, broken: impl Fn(&str) -> bool, what: &str) -> Vec<Fault> {
    let lines = code.lines().enumerate().filter(|(_, line)| broken(line));
    lines
        .map(|(index, _)| Fault::new(path, index + 1, what))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "//! A file.\n#![forbid(unsafe_code)]\nfn f() {}\n";

    fn check_at(path: &str, text: &str) -> Vec<(usize, String)> {
        check(Path::new(path), text)
            .into_iter()
            .map(|f| (f.line, f.what))
            .collect()
    }

    fn only(path: &str, text: &str, word: &str) -> usize {
        let faults = check_at(path, text);
        assert_eq!(faults.len(), 1, "{faults:?}");
        assert!(faults[0].1.contains(word), "{faults:?}");
        faults[0].0
    }

    #[test]
    fn a_good_file_has_no_fault() {
        assert_eq!(check_at("crates/token/src/lib.rs", GOOD), []);
    }

    #[test]
    fn the_first_line_says_what_the_file_is() {
        only("crates/token/src/a.rs", "fn f() {}\n", "first line");
        only("crates/token/src/a.rs", "//!\nfn f() {}\n", "first line");
    }

    #[test]
    fn sources_are_ascii() {
        let line = only("crates/token/src/a.rs", "//! A.\n// gr\u{fc}n\n", "ASCII");
        assert_eq!(line, 2);
    }

    #[test]
    fn files_and_functions_have_a_size() {
        let long = format!("//! A.\n{}", "struct S;\n".repeat(1000));
        only("crates/token/src/a.rs", &long, "1001 lines");
        let tests = format!(
            "//! A.\n#[cfg(test)]\nmod tests {{\n{}}}\n",
            "struct S;\n".repeat(1000)
        );
        assert_eq!(check_at("crates/token/src/a.rs", &tests), []);
        let body = |count: usize| {
            format!(
                "//! A.\nfn f() {{\n{}}}\nfn g();\n",
                "    g(\"{\");\n".repeat(count)
            )
        };
        assert_eq!(check_at("crates/token/src/a.rs", &body(98)), []);
        let line = only("crates/token/src/a.rs", &body(99), "function of 101 lines");
        assert_eq!(line, 2);
    }

    #[test]
    fn a_declaration_has_no_body() {
        assert_eq!(block_lines(&["fn f(a: [u8; 4]);", "fn g() {", "}"]), 1);
        assert_eq!(
            block_lines(&["fn f(", "  a: u8,", ") -> u8 {", "  { a }", "}", "x"]),
            5
        );
        assert!(is_definition("pub(crate) fn f()"));
        assert!(!is_definition("f: fn(u8) -> u8,"));
    }

    #[test]
    fn banned_words_are_found_in_identifiers_only() {
        for bad in [
            "chunk_count",
            "WriteHeartbeat",
            "wal",
            "MASTER",
            "the_lun_id",
        ] {
            only(
                "crates/token/src/a.rs",
                &format!("//! A.\nlet {bad} = 1;\n"),
                "banned",
            );
        }
        for good in [
            "chunks_exact",
            "first_chunk",
            "walk",
            "cost",
            "volumetric",
            "mastering",
        ] {
            let text = format!("//! A chunk.\n// master\nlet {good} = \"brick\";\n");
            assert_eq!(check_at("crates/token/src/a.rs", &text), [], "{good}");
        }
        assert_eq!(parts("NsdServer_io2"), ["nsd", "server", "io2"]);
    }

    #[test]
    fn globs_are_for_tests() {
        only(
            "crates/token/src/a.rs",
            "//! A.\nuse x::*;\n",
            "outside tests",
        );
        assert_eq!(
            check_at("crates/token/src/a/tests.rs", "//! A.\nuse x::*;\n"),
            []
        );
        let inside = "//! A.\n#[cfg(test)]\nmod tests {\n    use super::*;\n}\n";
        assert_eq!(check_at("crates/token/src/a.rs", inside), []);
    }

    #[test]
    fn cores_see_no_operating_system() {
        for bad in [
            "use std::fs;",
            "std::thread::spawn(f);",
            "use std::{fmt, net};",
            "std :: env :: var(x)",
        ] {
            let text = format!("//! A.\n{bad}\n");
            only("crates/meta/src/a.rs", &text, "pure crate");
            assert_eq!(check_at("crates/os/src/a.rs", &text), []);
            assert_eq!(
                check_at(
                    "crates/sim/src/main.rs",
                    &format!("{text}#![forbid(unsafe_code)]\n")
                ),
                []
            );
        }
        let good = "//! A.\nuse std::fmt;\nuse std::netlike;\n";
        assert_eq!(check_at("crates/meta/src/a.rs", good), []);
    }

    #[test]
    fn clocks_are_read_at_the_edge() {
        only(
            "crates/meta/src/a.rs",
            "//! A.\nlet t = Instant::now();\n",
            "clock",
        );
        only(
            "crates/sim/src/a.rs",
            "//! A.\nlet t = SystemTime::now();\n",
            "clock",
        );
        assert_eq!(
            check_at("xtask/src/a.rs", "//! A.\nlet t = Instant::now();\n"),
            []
        );
    }

    #[test]
    fn roots_forbid_unsafe_code() {
        only("crates/meta/src/lib.rs", "//! A.\n", "forbid(unsafe_code)");
        only("crates/bench/src/main.rs", "//! A.\n", "deny(unsafe_code)");
        assert_eq!(check_at("crates/os/src/lib.rs", "//! A.\n"), []);
        assert_eq!(check_at("crates/meta/src/a.rs", "//! A.\n"), []);
    }
}

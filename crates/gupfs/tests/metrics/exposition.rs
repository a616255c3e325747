//! A strict parser of the OpenMetrics text format (specification 1.0.0, "Text format"): what it does not know it refuses.

use std::collections::{BTreeMap, BTreeSet};

/// Kind and label names of a family.
pub(crate) type Shape = (String, BTreeSet<String>);
type Labels = BTreeMap<String, String>;

struct Sample {
    name: String,
    labels: Labels,
    value: f64,
}

struct Family {
    kind: String,
    help: String,
    samples: Vec<Sample>,
}

/// A page that keeps to the format.
pub(crate) struct Page {
    families: BTreeMap<String, Family>,
}

impl Page {
    /// Panics where the page does not keep to the format.
    pub(crate) fn parse(text: &str) -> Self {
        let body = text.strip_suffix("# EOF\n").expect("it ends with # EOF");
        let mut families: BTreeMap<String, Family> = BTreeMap::new();
        let mut current: Option<(String, Family)> = None;
        for line in body.split_terminator('\n') {
            if let Some(rest) = line.strip_prefix("# ") {
                let (word, rest) = rest.split_once(' ').expect(line);
                let (name, text) = rest.split_once(' ').expect(line);
                check_name(name);
                if word == "HELP" {
                    finish(&mut families, current.take());
                    let family = Family {
                        kind: String::new(),
                        help: text.to_owned(),
                        samples: Vec::new(),
                    };
                    current = Some((name.to_owned(), family));
                    continue;
                }
                let (of, family) = current.as_mut().expect(line);
                assert!(word == "TYPE" && of == name, "{line}");
                assert!(
                    family.kind.is_empty() && family.samples.is_empty(),
                    "{line}"
                );
                let kinds = ["counter", "gauge", "histogram", "info"];
                assert!(kinds.contains(&text), "{line}");
                text.clone_into(&mut family.kind);
            } else {
                let (of, family) = current.as_mut().expect("a family comes first");
                let sample = sample(line);
                let suffix = sample.name.strip_prefix(of.as_str()).expect(line);
                let allowed: &[&str] = match family.kind.as_str() {
                    "counter" => &["_total"],
                    "gauge" => &[""],
                    "info" => &["_info"],
                    "histogram" => &["_sum", "_count", "_bucket"],
                    other => panic!("{line}: {other:?}"),
                };
                assert!(allowed.contains(&suffix), "{line}");
                assert!(family.kind == "gauge" || sample.value >= 0.0, "{line}");
                family.samples.push(sample);
            }
        }
        finish(&mut families, current);
        Self { families }
    }

    /// All families that there are.
    pub(crate) fn families(&self) -> BTreeMap<String, Shape> {
        let shape = |family: &Family| {
            let labels = family.samples.iter().flat_map(|s| s.labels.keys());
            let labels = labels.filter(|l| *l != "le").cloned().collect();
            (family.kind.clone(), labels)
        };
        let all = self.families.iter();
        all.map(|(name, family)| (name.clone(), shape(family)))
            .collect()
    }

    /// The sum of the samples with this name and these labels; there must be one.
    pub(crate) fn sum(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let has = |sample: &Sample| {
            let is =
                |(key, value): &(&str, &str)| sample.labels.get(*key).is_some_and(|v| v == value);
            sample.name == name && labels.iter().all(is)
        };
        let samples = self.families.values().flat_map(|f| &f.samples);
        let found: Vec<f64> = samples.filter(|s| has(s)).map(|s| s.value).collect();
        assert!(!found.is_empty(), "{name} {labels:?}");
        found.iter().sum()
    }

    /// The help text of a family.
    pub(crate) fn help(&self, name: &str) -> &str {
        &self.families[name].help
    }
}

/// The families of the table in docs/metrics.md.
pub(crate) fn documented(document: &str) -> BTreeMap<String, Shape> {
    let rows = document.lines().filter(|line| line.starts_with("| `"));
    let row = |line: &str| {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let unquoted = |text: &str| text.trim_matches('`').to_owned();
        let name = unquoted(cells[1]);
        let suffix = match cells[2] {
            "counter" => "_total",
            "info" => "_info",
            _ => "",
        };
        let name = name.strip_suffix(suffix).expect(line).to_owned();
        let labels = cells[3].split(", ").filter(|l| !l.is_empty()).map(unquoted);
        (name, (cells[2].to_owned(), labels.collect()))
    };
    rows.map(row).collect()
}

fn finish(families: &mut BTreeMap<String, Family>, done: Option<(String, Family)>) {
    let Some((name, family)) = done else { return };
    assert!(!family.kind.is_empty(), "{name} has no type");
    assert!(!family.help.is_empty(), "{name} has no help");
    let mut seen = BTreeSet::new();
    for sample in &family.samples {
        let is_new = seen.insert((&sample.name, &sample.labels));
        assert!(is_new, "{} {:?} twice", sample.name, sample.labels);
    }
    if family.kind == "histogram" {
        check_histograms(&name, &family);
    }
    assert!(
        families.insert(name.clone(), family).is_none(),
        "{name} twice"
    );
}

/// Buckets grow, in order, up to +Inf, which is the count.
fn check_histograms(name: &str, family: &Family) {
    let mut all: BTreeMap<Labels, Vec<(f64, f64)>> = BTreeMap::new();
    let mut counts: BTreeMap<Labels, f64> = BTreeMap::new();
    let mut sums: BTreeSet<Labels> = BTreeSet::new();
    for sample in &family.samples {
        let mut labels = sample.labels.clone();
        match labels.remove("le") {
            Some(bound) => {
                assert!(sample.name.ends_with("_bucket"));
                let bound = number(&bound);
                all.entry(labels).or_default().push((bound, sample.value));
            }
            None if sample.name.ends_with("_count") => {
                counts.insert(labels, sample.value);
            }
            None => assert!(sample.name.ends_with("_sum") && sums.insert(labels)),
        }
    }
    assert_eq!(all.len(), counts.len(), "{name}");
    assert_eq!(all.len(), sums.len(), "{name}");
    for (labels, buckets) in all {
        assert!(
            buckets.is_sorted_by(|a, b| a.0 < b.0 && a.1 <= b.1),
            "{name} {labels:?}"
        );
        let last = buckets.last().expect("not empty");
        assert_eq!(
            (last.0, last.1),
            (f64::INFINITY, counts[&labels]),
            "{name} {labels:?}"
        );
    }
}

fn check_name(name: &str) {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let begins = name.starts_with(|c: char| c.is_ascii_alphabetic());
    assert!(begins && name.chars().all(is_plain), "{name:?}");
}

fn number(text: &str) -> f64 {
    match text {
        "+Inf" => f64::INFINITY,
        text => {
            let is_plain = |c: char| c.is_ascii_digit() || "+-.eE".contains(c);
            assert!(text.chars().all(is_plain), "{text:?}");
            text.parse().expect(text)
        }
    }
}

/// `name{label="value",...} number`.
fn sample(line: &str) -> Sample {
    let end = line.find(['{', ' ']).expect(line);
    let (name, mut rest) = line.split_at(end);
    check_name(name);
    let mut labels = Labels::new();
    if let Some(inner) = rest.strip_prefix('{') {
        rest = inner;
        loop {
            let (label, after) = rest.split_once("=\"").expect(line);
            check_name(label);
            let (value, after) = quoted(after).expect(line);
            assert!(labels.insert(label.to_owned(), value).is_none(), "{line}");
            rest = after;
            if let Some(after) = rest.strip_prefix('}') {
                rest = after;
                break;
            }
            rest = rest.strip_prefix(',').expect(line);
        }
    }
    let value = rest.strip_prefix(' ').expect(line);
    Sample {
        name: name.to_owned(),
        labels,
        value: number(value),
    }
}

/// The text up to the closing quote, and what is behind it.
fn quoted(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut chars = text.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return Some((value, &text[at + 1..])),
            '\\' => value.push(match chars.next()?.1 {
                'n' => '\n',
                c @ ('\\' | '"') => c,
                _ => return None,
            }),
            c => value.push(c),
        }
    }
    None
}

#[test]
fn the_parser_refuses_what_is_not_the_format() {
    let good = "# HELP a b c\n# TYPE a counter\na_total{x=\"1\\\"\"} 3\n# EOF\n";
    assert_eq!(Page::parse(good).sum("a_total", &[("x", "1\"")]), 3.0);
    for (from, to) in [
        ("# EOF\n", ""),
        ("a_total{", "a{"),
        ("\"} 3", "} 3"),
        (" 3\n", " 3 \n"),
        (" 3\n", " nan\n"),
        ("# TYPE a counter\n", ""),
        ("# TYPE a counter\n", "# TYPE a number\n"),
        ("a_total{", "\na_total{"),
        ("a_total{", "a_total{x=\"2\",x=\"3\"} 1\na_total{"),
        ("# EOF\n", "a_total{x=\"1\\\"\"} 3\n# EOF\n"),
        ("# EOF\n", "# HELP a b c\n# TYPE a counter\n# EOF\n"),
    ] {
        let bad = good.replacen(from, to, 1);
        assert_ne!(bad, good);
        let result = std::panic::catch_unwind(|| Page::parse(&bad));
        assert!(result.is_err(), "{bad}");
    }
    let histogram = |buckets: &str| {
        format!("# HELP h x\n# TYPE h histogram\nh_sum 1.5\nh_count 2\n{buckets}# EOF\n")
    };
    let bucket = |le: &str, n: u32| format!("h_bucket{{le=\"{le}\"}} {n}\n");
    Page::parse(&histogram(&[bucket("1e-6", 1), bucket("+Inf", 2)].concat()));
    for bad in [
        bucket("1", 2),
        bucket("+Inf", 3),
        [bucket("1", 2), bucket("0.5", 2), bucket("+Inf", 2)].concat(),
        [bucket("1", 3), bucket("+Inf", 2)].concat(),
    ] {
        let bad = histogram(&bad);
        let result = std::panic::catch_unwind(|| Page::parse(&bad));
        assert!(result.is_err(), "{bad}");
    }
}

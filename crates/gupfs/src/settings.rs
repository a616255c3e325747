//! `gupfs config`: the settings of a state directory, where each value comes from, and whether the daemon runs with it.
//!
//! A setting's value is the daemon's command line's (`gupfs daemon --set`), else that of `gupfs.toml`, else the default.
//! A running daemon changes none of them: it tells with what it runs, and what differs takes effect at its next start.

use std::fs::{File, TryLockError};
use std::path::Path;
use std::time::{Duration, Instant};

use clap::ValueEnum as _;
use serde_json::{Map, Value, json};

use crate::control::{self, Answer};
use crate::failure::{Failure, Result};
use crate::state::{self, LogFormat, LogLevel, Place, State, Transport};
use crate::up::PAGEPOOL_SIZE_DEFAULT;
use crate::{files, inspect, service, size, system};

/// Below this the slabs of the threads that read requests would be all of it.
pub const PAGEPOOL_SIZE_MIN: u64 = 32 << 20;

/// How long another command that changes the file is waited for.
const LOCK_PATIENCE: Duration = Duration::from_secs(2);

/// What can be set.
struct Setting {
    key: &'static str,
    about: &'static str,
    allowed: &'static str,
    /// `gupfs daemon --set` takes it: whoever stops the daemon does not need to know it.
    is_for_command_line: bool,
}

const SETTINGS: [Setting; 13] = [
    Setting {
        key: "mount",
        about: "where the file system is mounted",
        allowed: "an absolute path",
        is_for_command_line: false,
    },
    Setting {
        key: "transport",
        about: "how requests travel between kernel and daemon",
        allowed: "device or ring",
        is_for_command_line: true,
    },
    Setting {
        key: "pagepool_size",
        about: "bytes of memory for caching",
        allowed: "a size of 32M at least, and no more than the machine's memory",
        is_for_command_line: true,
    },
    Setting {
        key: "inode_count_max",
        about: "files and directories that the daemon remembers while nobody has them open",
        allowed: "256 to 100000000",
        is_for_command_line: true,
    },
    Setting {
        key: "metadata_bytes_max",
        about: "bytes of the metadata that this node owns which it keeps in memory",
        allowed: "a size of 64K at least, or 0 for all of it",
        is_for_command_line: true,
    },
    Setting {
        key: "rewrite_rate",
        about: "bytes a second at which an idle node rewrites blocks of many extents",
        allowed: "a size of 1M at least, or 0 for none",
        is_for_command_line: true,
    },
    Setting {
        key: "direct_from",
        about: "files of this size and more are read past the kernel's page cache",
        allowed: "a size, or default",
        is_for_command_line: true,
    },
    Setting {
        key: "async_direct_io",
        about: "whether asynchronous direct reads and writes go on beside one another",
        allowed: "on or off",
        is_for_command_line: true,
    },
    Setting {
        key: "lease_ms",
        about: "milliseconds of a node's lease, the same on all nodes",
        allowed: "1000 to 600000",
        is_for_command_line: true,
    },
    Setting {
        key: "metrics",
        about: "where metrics are served, to this machine alone",
        allowed: "off, a port of 127.0.0.1 (0: any that is free), or a loopback address with a port",
        is_for_command_line: true,
    },
    Setting {
        key: "slow_ms",
        about: "milliseconds from which an operation is logged with what it waited for",
        allowed: "200 to 3600000, or 0 for none",
        is_for_command_line: true,
    },
    Setting {
        key: "log_level",
        about: "what the daemon logs: this and what is worse",
        allowed: "error, warn, info, debug or trace",
        is_for_command_line: true,
    },
    Setting {
        key: "log_format",
        about: "how the daemon writes its log",
        allowed: "text or json",
        is_for_command_line: true,
    },
];

/// What is fixed when the file system or the lab is made.
const FIXED: [&str; 11] = [
    "format", "cluster", "fs", "node", "manager", "listen", "netns", "backing", "size", "disks",
    "peers",
];

fn setting(key: &str) -> Result<&'static Setting> {
    if let Some(found) = SETTINGS.iter().find(|s| s.key == key) {
        return Ok(found);
    }
    if FIXED.contains(&key) {
        return Err(Failure::new(format!(
            "{key} is fixed since the file system was made: it cannot be set"
        ))
        .help(format!("what can be set: {}", keys())));
    }
    Err(unknown(key))
}

/// Settings that one run of the daemon can be given.
pub fn keys_for_run() -> Vec<&'static str> {
    let for_run = SETTINGS.iter().filter(|s| s.is_for_command_line);
    for_run.map(|s| s.key).collect()
}

/// `key` is one of them.
pub fn is_for_run(key: &str) -> bool {
    keys_for_run().contains(&key)
}

fn keys() -> String {
    SETTINGS.map(|s| s.key).join(", ")
}

fn unknown(key: &str) -> Failure {
    let all = SETTINGS.iter().map(|s| s.key).chain(FIXED);
    let nearest = all
        .map(|known| {
            let (whole, begin) = distances(key, known);
            // Who leaves the end of a name out is not far from it.
            (whole.min(begin + 1), known)
        })
        .min()
        .filter(|(distance, _)| *distance <= 1 + key.len() / 4);
    let failure = Failure::new(format!("there is no setting {key:?}"));
    match nearest {
        Some((_, known)) => failure.help(format!("did you mean {known}? There are: {}", keys())),
        None => failure.help(format!("there are: {}", keys())),
    }
}

/// Characters to insert, remove or exchange between `a` and all of `b`, and between `a` and the best beginning of `b`.
fn distances(a: &str, b: &str) -> (usize, usize) {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut before = i;
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let exchanged = before + usize::from(x != *y);
            before = row[j + 1];
            row[j + 1] = exchanged.min(before + 1).min(row[j] + 1);
        }
    }
    (row[b.len()], row.iter().copied().min().unwrap_or(0))
}

/// A size of the pagepool that a daemon can have on this machine.
///
/// # Errors
/// It is too small for requests, or more than there is memory.
pub fn check_pagepool(size: u64) -> std::result::Result<u64, String> {
    // Not known: nothing is too much. The default is taken everywhere.
    let memory = match os::memory_size() {
        0 => u64::MAX,
        memory => memory.max(PAGEPOOL_SIZE_DEFAULT),
    };
    match size {
        _ if size < PAGEPOOL_SIZE_MIN => Err("a pagepool has 32 MiB at least".to_owned()),
        _ if size > memory => Err(format!("this machine has {} of memory", size::show(memory))),
        _ => Ok(size),
    }
}

/// Puts the value `text` of `key` into `state`.
fn put(state: &mut State, key: &str, text: &str) -> Result<()> {
    let setting = setting(key)?;
    let help = || format!("{}; allowed: {}", setting.about, setting.allowed);
    let bad = || Failure::new(format!("{key} cannot be {text:?}")).help(help());
    let is_default = text == "default";
    match key {
        "mount" if Path::new(text).is_absolute() => {
            state.mount = system::absolute(Path::new(text))?;
        }
        "transport" => {
            state.transport = match text {
                "device" | "default" => Transport::Device,
                "ring" => Transport::Ring,
                _ => return Err(bad()),
            }
        }
        "pagepool_size" if is_default => state.pagepool_size = PAGEPOOL_SIZE_DEFAULT,
        "pagepool_size" => {
            let size = size::parse(text).ok().ok_or_else(bad)?;
            state.pagepool_size = check_pagepool(size).map_err(|why| {
                Failure::new(format!("pagepool_size cannot be {text:?}: {why}")).help(help())
            })?;
        }
        "inode_count_max" if is_default => {
            state.inode_count_max = state::INODE_COUNT_MAX_DEFAULT;
        }
        "inode_count_max" => {
            let count = text.parse().ok();
            let count = count.filter(|count| state::INODE_COUNT_MAX.contains(count));
            state.inode_count_max = count.ok_or_else(bad)?;
        }
        "metadata_bytes_max" if is_default => {
            state.metadata_bytes_max = state::METADATA_BYTES_MAX_DEFAULT;
        }
        "metadata_bytes_max" => {
            let size = size::parse(text).ok();
            let size = size.filter(|size| state::is_metadata_bound(*size));
            state.metadata_bytes_max = size.ok_or_else(bad)?;
        }
        "rewrite_rate" if is_default => state.rewrite_rate = state::REWRITE_RATE_DEFAULT,
        "rewrite_rate" => {
            let rate = size::parse(text).ok();
            let rate = rate.filter(|rate| state::is_rewrite_rate(*rate));
            state.rewrite_rate = rate.ok_or_else(bad)?;
        }
        "direct_from" if is_default => state.direct_from = None,
        "direct_from" => state.direct_from = Some(size::parse(text).map_err(|_| bad())?),
        "async_direct_io" => {
            state.async_direct_io = match text {
                "on" => true,
                "off" | "default" => false,
                _ => return Err(bad()),
            }
        }
        "lease_ms" if is_default => state.lease_ms = types::limits::LEASE_MS,
        "lease_ms" => {
            let ms = text.parse().ok();
            let ms = ms.filter(|ms| state::LEASE_MS.contains(ms));
            state.lease_ms = ms.ok_or_else(bad)?;
        }
        "slow_ms" if is_default => state.slow_ms = state::SLOW_MS_DEFAULT,
        "slow_ms" => {
            let ms = text.parse().ok();
            let ms = ms.filter(|ms| *ms == 0 || state::SLOW_MS.contains(ms));
            state.slow_ms = ms.ok_or_else(bad)?;
        }
        "log_level" if is_default => state.log_level = LogLevel::default(),
        "log_level" => state.log_level = LogLevel::from_str(text, false).map_err(|_| bad())?,
        "log_format" if is_default => state.log_format = LogFormat::default(),
        "log_format" => state.log_format = LogFormat::from_str(text, false).map_err(|_| bad())?,
        "metrics" if is_default => state.metrics = state::Metrics::default(),
        "metrics" => state.metrics = text.parse().map_err(|_| bad())?,
        _ => return Err(bad()),
    }
    Ok(())
}

/// All of a state, defaults filled in.
pub fn to_json(state: &State) -> Value {
    let mut all = values(state);
    for setting in &SETTINGS {
        all.insert(setting.key.to_owned(), value(state, setting.key));
    }
    Value::Object(all)
}

fn values(state: &State) -> Map<String, Value> {
    match serde_json::to_value(state).expect("plain values have a JSON form") {
        Value::Object(map) => map,
        other => unreachable!("a struct is an object: {other}"),
    }
}

/// The value of `key`, defaults filled in.
fn value(state: &State, key: &str) -> Value {
    match key {
        "transport" => json!(state.transport),
        "pagepool_size" => json!(state.pagepool_size),
        "lease_ms" => json!(state.lease_ms),
        "metrics" => json!(state.metrics),
        "inode_count_max" => json!(state.inode_count_max),
        "metadata_bytes_max" => json!(state.metadata_bytes_max),
        "rewrite_rate" => json!(state.rewrite_rate),
        "async_direct_io" => json!(if state.async_direct_io { "on" } else { "off" }),
        "slow_ms" => json!(state.slow_ms),
        "log_level" => json!(state.log_level),
        "log_format" => json!(state.log_format),
        "direct_from" => state
            .direct_from
            .map_or_else(|| json!("default"), |size| json!(size)),
        _ => values(state).remove(key).unwrap_or(Value::Null),
    }
}

/// The names that `gupfs.toml` of `place` has.
fn in_file(place: &Place) -> Result<toml::Table> {
    let text = files::read_text(&place.config())?.unwrap_or_default();
    text.parse().map_err(|e: toml::de::Error| {
        Failure::new(format!("{}: {}", place.config().display(), e.message()))
    })
}

/// `overrides` (`KEY=VALUE`) applied to the state of `place`, and what the daemon tells of its settings: a line of JSON.
pub fn for_daemon(
    place: &Place,
    mut state: State,
    overrides: &[String],
) -> Result<(State, String)> {
    let file = in_file(place)?;
    let mut given = Vec::new();
    for text in overrides {
        let (key, value) = text.split_once('=').ok_or_else(|| {
            Failure::new(format!("--set {text:?} has no '='"))
                .help("write for example --set pagepool_size=2G")
        })?;
        if !setting(key)?.is_for_command_line {
            return Err(
                Failure::new(format!("{key} cannot be given with --set")).help(format!(
                    "gupfs config set {key} {value:?} --state {}",
                    place.root().display()
                )),
            );
        }
        put(&mut state, key, value)?;
        given.push(key);
    }
    let row = |setting: &Setting| {
        let key = setting.key;
        let origin = match given.contains(&key) {
            true => "command line",
            false => origin(&file, key),
        };
        json!({ "key": key, "value": value(&state, key), "origin": origin })
    };
    let rows: Vec<Value> = SETTINGS.iter().map(row).collect();
    Ok((state, json!({ "settings": rows }).to_string()))
}

fn origin(file: &toml::Table, key: &str) -> &'static str {
    if file.contains_key(key) {
        "file"
    } else {
        "default"
    }
}

/// What a running daemon says of its settings; `None` without one.
fn running(place: &Place) -> Result<Option<Value>> {
    match control::ask(&place.control(), "config", control::PATIENCE)? {
        Answer::Said(said) => Ok(Some(said)),
        Answer::Absent => Ok(None),
        Answer::Silent => Err(Failure::new(format!(
            "the daemon behind {} did not answer: what it runs with is not known",
            place.control().display()
        ))
        .help("see its log, and `gupfs waiters`; `gupfs down` ends it in any case")),
    }
}

/// All settings of `place`, as the page on commands says.
pub fn show(place: &Place) -> Result<Value> {
    let state = place.require()?;
    let file = in_file(place)?;
    let running = running(place)?;
    let of_running = |key: &str| {
        let rows = running.as_ref()?["settings"].as_array()?;
        rows.iter().find(|row| row["key"] == key)
    };
    let default = {
        let mut state = state.clone();
        for setting in SETTINGS.iter().filter(|s| s.is_for_command_line) {
            put(&mut state, setting.key, "default")?;
        }
        state
    };
    let settable = SETTINGS.iter().map(|setting| {
        let key = setting.key;
        let value_now = value(&state, key);
        let run = of_running(key);
        json!({
            "key": key, "value": value_now, "origin": origin(&file, key), "settable": true,
            "default": if setting.is_for_command_line { value(&default, key) } else { Value::Null },
            "allowed": setting.allowed, "about": setting.about,
            "running": run.map_or(Value::Null, |row| row["value"].clone()),
            "running_origin": run.map_or(Value::Null, |row| row["origin"].clone()),
            "in_effect": run.map(|row| row["value"] == value_now),
        })
    });
    let fixed = FIXED.iter().map(|key| {
        json!({
            "key": key, "value": value(&state, key), "origin": origin(&file, key), "settable": false,
            "default": null, "allowed": null, "about": "fixed since the file system was made",
            "running": null, "running_origin": null, "in_effect": null,
        })
    });
    Ok(json!({
        "state": place.root(),
        "is_running": running.is_some(),
        "settings": settable.chain(fixed).collect::<Vec<_>>(),
    }))
}

/// The row of `key`.
pub fn get(place: &Place, key: &str) -> Result<Value> {
    let all = show(place)?;
    let rows = all["settings"].as_array().into_iter().flatten();
    let mut rows = rows.filter(|row| row["key"] == key);
    rows.next().cloned().ok_or_else(|| unknown(key))
}

/// Sets `key` in `gupfs.toml`. Returns what was done.
pub fn set(place: &Place, key: &str, text: &str) -> Result<Vec<String>> {
    place.require()?;
    // The daemon has the directory's lock for its life; this one is of those who change the file.
    let directory = File::open(place.root()).map_err(|e| Failure::io("open", place.root(), &e))?;
    let begin = Instant::now();
    loop {
        match directory.try_lock() {
            Ok(()) => break,
            // Others have it for milliseconds.
            Err(TryLockError::WouldBlock) if begin.elapsed() < LOCK_PATIENCE => {
                std::thread::sleep(Duration::from_millis(10));
            }
            Err(TryLockError::WouldBlock) => {
                return Err(Failure::new(format!(
                    "another gupfs command changes {} now",
                    place.config().display()
                ))
                .help("run this one again"));
            }
            Err(TryLockError::Error(e)) => return Err(Failure::io("lock", place.root(), &e)),
        }
    }
    let mut state = place.require()?;
    let before = value(&state, key);
    put(&mut state, key, text)?;
    if key == "mount" {
        service::check_hides_nothing(place, &state.disks, &state.mount)?;
    }
    let after = value(&state, key);
    let is_running = running(place)?.is_some();
    place.store(&state)?;
    let was = if before == after { " as before" } else { "" };
    let mut done = vec![format!(
        "{key} is {} in {}{was}",
        plain(&after),
        place.config().display()
    )];
    let root = place.root().display();
    done.push(match is_running {
        true => format!(
            "the running daemon keeps what it has until gupfs down --state {root} and gupfs up"
        ),
        false => "it is in effect when the daemon starts".to_owned(),
    });
    if key == "lease_ms" && !state.peers.is_empty() {
        done.push("set it on the other nodes of the cluster, too".to_owned());
    }
    Ok(done)
}

/// A value as it would be given.
pub fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => "-".to_owned(),
        other => other.to_string(),
    }
}

/// What `show` gives, as a table.
pub fn to_text(shown: &Value) -> String {
    let mut rows = vec![["SETTING", "VALUE", "FROM", "IN EFFECT"].map(str::to_owned)];
    for row in shown["settings"].as_array().into_iter().flatten() {
        let is_simple = !row["value"].is_array() && !row["value"].is_null();
        if row["settable"] == false && !is_simple {
            continue;
        }
        let effect = match (row["settable"].as_bool(), row["in_effect"].as_bool()) {
            (Some(false), _) => "fixed".to_owned(),
            (_, Some(true)) => "yes".to_owned(),
            (_, Some(false)) => format!(
                "after a restart (now {}, {})",
                plain(&row["running"]),
                plain(&row["running_origin"])
            ),
            (_, None) => "when it starts".to_owned(),
        };
        rows.push([
            plain(&row["key"]),
            plain(&row["value"]),
            plain(&row["origin"]),
            effect,
        ]);
    }
    inspect::table(&rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example() -> (tempfile::TempDir, Place) {
        let directory = tempfile::tempdir().expect("a directory");
        let place = Place::new(directory.path()).expect("a place");
        let state = State {
            lease_ms: types::limits::LEASE_MS,
            ..state::tests::example()
        };
        place.store(&state).expect("stored");
        (directory, place)
    }

    #[test]
    fn distances_are_those_of_levenshtein() {
        for (a, b, expected) in [
            ("", "", 0),
            ("", "abc", 3),
            ("abc", "", 3),
            ("kitten", "sitting", 3),
            ("lease", "lease_ms", 3),
            ("mount", "mount", 0),
        ] {
            assert_eq!(distances(a, b).0, expected, "{a} {b}");
            assert_eq!(distances(b, a).0, expected, "{b} {a}");
        }
        assert_eq!(distances("leese", "lease_ms"), (4, 1));
        assert_eq!(distances("", "lease_ms"), (8, 0));
    }

    #[test]
    fn the_nearest_key_is_named() {
        for (wrong, right) in [
            ("pagepool", "did you mean pagepool_size?"),
            ("lease_sm", "did you mean lease_ms?"),
            ("pagepol", "did you mean pagepool_size?"),
            ("direct", "did you mean direct_from?"),
            ("Mount", "did you mean mount?"),
            ("colour-of-the-sky", "help: there are: mount"),
            ("foo", "help: there are: mount"),
        ] {
            let said = unknown(wrong).to_string();
            assert!(said.contains(right) && said.contains(wrong), "{said}");
        }
    }

    #[test]
    fn bad_values_change_nothing_and_are_explained() {
        let (_directory, place) = example();
        let before = place.require().expect("loaded");
        for (key, text, word) in [
            ("mount", "relative/path", "absolute"),
            ("mount", "default", "absolute"),
            ("mount", "/dev/null", "not a directory"),
            ("mount", "/a", "would hide /a/3.img"),
            ("mount", "/", "would hide"),
            ("transport", "pigeon", "device or ring"),
            ("pagepool_size", "1M", "32M"),
            ("pagepool_size", "much", "32M"),
            ("lease_ms", "999", "1000 to 600000"),
            ("lease_ms", "1s", "1000 to 600000"),
            ("direct_from", "-1", "a size"),
            ("metrics", "0.0.0.0:9420", "loopback"),
            ("metrics", "192.168.1.1:9420", "loopback"),
            ("metrics", "65536", "off"),
            ("metrics", "on", "off"),
            ("inode_count_max", "255", "100000000"),
            ("inode_count_max", "many", "100000000"),
            ("metadata_bytes_max", "1K", "64K"),
            ("rewrite_rate", "1K", "1M"),
            ("rewrite_rate", "fast", "1M"),
            ("async_direct_io", "sometimes", "on or off"),
            ("slow_ms", "199", "3600000"),
            ("slow_ms", "1s", "3600000"),
            ("log_level", "loud", "debug"),
            ("log_format", "xml", "json"),
            ("fs", "00", "fixed"),
            ("leasems", "5000", "lease_ms"),
        ] {
            let said = set(&place, key, text).expect_err("refused").to_string();
            assert!(said.contains(key) && said.contains(word), "{key}: {said}");
            assert_eq!(place.require(), Ok(before.clone()));
        }
    }

    #[test]
    fn every_setting_can_be_set_and_its_origin_is_known() {
        let (_directory, place) = example();
        for (key, text, shown) in [
            ("mount", "/mnt/there", json!("/mnt/there")),
            ("transport", "ring", json!("ring")),
            ("pagepool_size", "64M", json!(64 << 20)),
            ("direct_from", "1M", json!(1 << 20)),
            ("lease_ms", "5000", json!(5000)),
            ("metrics", "[::1]:9420", json!("[::1]:9420")),
            ("metrics", "0", json!("127.0.0.1:0")),
            ("inode_count_max", "1000", json!(1000)),
            ("metadata_bytes_max", "1M", json!(1 << 20)),
            ("rewrite_rate", "0", json!(0)),
            ("rewrite_rate", "1M", json!(1 << 20)),
            ("rewrite_rate", "100M", json!(100 << 20)),
            ("async_direct_io", "on", json!("on")),
            ("slow_ms", "0", json!(0)),
            ("log_level", "debug", json!("debug")),
            ("log_format", "json", json!("json")),
        ] {
            set(&place, key, text).expect("set");
            let row = get(&place, key).expect("there");
            assert_eq!(row["value"], shown, "{key}");
            assert_eq!(row["origin"], "file", "{key}");
            assert!(row["in_effect"].is_null(), "no daemon runs");
            if key != "mount" {
                set(&place, key, "default").expect("set back");
                let row = get(&place, key).expect("there");
                assert_eq!(row["origin"], "default", "{key}");
                assert_eq!(row["value"], row["default"], "{key}");
            }
        }
        assert_eq!(get(&place, "node").expect("there")["settable"], false);
        get(&place, "nod").expect_err("no such key");
    }

    #[test]
    fn the_command_line_goes_before_the_file() {
        let (_directory, place) = example();
        set(&place, "pagepool_size", "64M").expect("set");
        let given = ["pagepool_size=128M".to_owned(), "lease_ms=4000".to_owned()];
        let state = place.require().expect("loaded");
        let (state, said) = for_daemon(&place, state, &given).expect("taken");
        assert_eq!((state.pagepool_size, state.lease_ms), (128 << 20, 4000));
        let said: Value = serde_json::from_str(&said).expect("JSON");
        let origin = |key: &str| {
            let rows = said["settings"].as_array().expect("rows");
            let row = rows.iter().find(|row| row["key"] == key).expect("a row");
            row["origin"].as_str().expect("an origin").to_owned()
        };
        assert_eq!(origin("pagepool_size"), "command line");
        assert_eq!(origin("mount"), "file");
        assert_eq!(origin("transport"), "default");
        for (bad, word) in [
            ("mount=/x", "--set"),
            ("pagepool_size", "'='"),
            ("pagepol_size=1G", "did you mean"),
            ("lease_ms=1", "1000"),
        ] {
            let refused = for_daemon(&place, state.clone(), &[bad.to_owned()]);
            let said = refused.expect_err("refused").to_string();
            assert!(said.contains(word), "{bad}: {said}");
        }
    }
}

//! `gupfs top`: what a daemon is busiest with, from two looks at its counters.

use std::io::IsTerminal as _;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::control;
use crate::failure::{Failure, Result};
use crate::state::Place;
use crate::{inspect, output, size};

/// How to look.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    /// Between two looks.
    pub interval: Duration,
    /// So many times; none: until somebody ends it.
    pub count: Option<u64>,
    /// A line of JSON each time.
    pub json: bool,
}

/// One look.
struct Sample {
    at: Instant,
    operations: Value,
    counters: Value,
}

impl Sample {
    fn take(place: &Place) -> Result<Self> {
        let socket = place.control();
        let mut operations = control::require(&socket, "operations")?;
        let at = Instant::now();
        let counters = control::require(&socket, "counters")?;
        let operations = operations["operations"].take();
        if !operations.is_object() {
            return Err(Failure::new(format!(
                "the daemon behind {} does not tell of its operations",
                socket.display()
            ))
            .help("it is of an older version: gupfs down, then gupfs up"));
        }
        Ok(Self {
            at,
            operations,
            counters,
        })
    }
}

/// Prints what the daemon of `place` does.
pub fn run(place: &Place, plan: Plan) -> Result<()> {
    place.require()?;
    let mut before = Sample::take(place)?;
    let is_screen = !plan.json && plan.count != Some(1) && std::io::stdout().is_terminal();
    let mut left = plan.count;
    while left != Some(0) {
        std::thread::sleep(plan.interval);
        let now = Sample::take(place)?;
        let value = compare(&before, &now);
        let text = match (plan.json, is_screen) {
            (true, _) => format!("{value}\n"),
            (false, false) => to_text(&value),
            // Home, then clear: as top does.
            (false, true) => format!("\x1b[H\x1b[2J{}", to_text(&value)),
        };
        if !output::write(format_args!("{text}")) {
            // Who read it has gone, or it has nowhere to go.
            return Ok(());
        }
        before = now;
        left = left.map(|count| count - 1);
    }
    Ok(())
}

#[allow(clippy::cast_precision_loss, reason = "rates for people")]
fn rate(count: u64, seconds: f64) -> f64 {
    // One digit behind the point.
    (count as f64 / seconds * 10.0).round() / 10.0
}

/// What happened between two samples.
fn compare(before: &Sample, now: &Sample) -> Value {
    let seconds = (now.at - before.at).as_secs_f64().max(0.001);
    let grown = |name: &str| {
        let get = |s: &Sample| s.counters[name].as_u64().unwrap_or(0);
        rate(get(now).saturating_sub(get(before)), seconds)
    };
    let mut operations: Vec<Value> = now
        .operations
        .as_object()
        .into_iter()
        .flatten()
        .map(|(name, after)| operation(name, &before.operations[name], after, seconds))
        .collect();
    let busy = |row: &Value| row["per_second"].as_f64().unwrap_or(0.0);
    operations.sort_by(|a, b| busy(b).total_cmp(&busy(a)));
    let nsds: Vec<Value> = nsd_numbers(&now.counters)
        .into_iter()
        .map(|nsd| {
            let of = |what: &str| grown(&format!("nsd{nsd}_{what}"));
            json!({
                "nsd": nsd, "reads_per_second": of("reads"), "read_bytes_per_second": of("read_bytes"),
                "writes_per_second": of("writes"), "write_bytes_per_second": of("write_bytes"),
                "flushes_per_second": of("flushes"),
            })
        })
        .collect();
    json!({
        "seconds": (seconds * 1000.0).round() / 1000.0,
        "requests_per_second": grown("requests"),
        "operations": operations,
        "nsds": nsds,
        "messages_per_second": grown("messages_sent"),
        "revokes_per_second": grown("revokes"),
        "journal_bytes_per_second": grown("journal_bytes"),
        "journal_flushes_per_second": grown("journal_flushes"),
        "pagepool_frames": now.counters["pool_frames"],
        "pagepool_frames_free": now.counters["pool_frames_free"],
    })
}

fn operation(name: &str, before: &Value, after: &Value, seconds: f64) -> Value {
    let grown = |member: &str| {
        let get = |v: &Value| v[member].as_u64().unwrap_or(0);
        get(after).saturating_sub(get(before))
    };
    let list = |v: &Value| -> Vec<u64> {
        let all = v["buckets"].as_array().into_iter().flatten();
        all.filter_map(Value::as_u64).collect()
    };
    let (old, new) = (list(before), list(after));
    let buckets = new.iter().enumerate().map(|(index, count)| {
        let old = old.get(index).copied().unwrap_or(0);
        count.saturating_sub(old)
    });
    let timed = grown("timed");
    let mean = (timed > 0).then(|| rate(grown("timed_ns"), 1000.0 * rate(timed, 1.0)));
    json!({
        "name": name, "per_second": rate(grown("count"), seconds), "timed": timed,
        "mean_us": mean, "p50_us": quantile(buckets.clone(), 50), "p99_us": quantile(buckets, 99),
    })
}

/// Microseconds within which `percent` of what was timed was done: the upper bound of a bucket, so at most twice too much.
fn quantile(buckets: impl Iterator<Item = u64> + Clone, percent: u64) -> Option<u64> {
    let all: u64 = buckets.clone().sum();
    let wanted = (all * percent).div_ceil(100);
    let mut seen = 0;
    let mut place = buckets.enumerate().filter(|(_, count)| *count > 0);
    let place = place.find_map(|(index, count)| {
        seen += count;
        (seen >= wanted).then_some(index)
    });
    place.map(|index| 1 << index)
}

fn nsd_numbers(counters: &Value) -> Vec<u64> {
    let names = counters.as_object().into_iter().flatten();
    let mut all: Vec<u64> = names
        .filter_map(|(name, _)| {
            name.strip_prefix("nsd")?
                .strip_suffix("_writes")?
                .parse()
                .ok()
        })
        .collect();
    all.sort_unstable();
    all
}

#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a rate is positive and far below 2^53"
)]
fn to_text(value: &Value) -> String {
    let bytes = |v: &Value| size::show(v.as_f64().unwrap_or(0.0) as u64);
    let known = |v: &Value| match v {
        Value::Null => "-".to_owned(),
        other => other.to_string(),
    };
    let mut rows = vec![
        [
            "OPERATION",
            "PER SECOND",
            "MEAN us",
            "HALF BELOW us",
            "99% BELOW us",
        ]
        .map(str::to_owned),
    ];
    for row in value["operations"].as_array().into_iter().flatten() {
        if row["per_second"].as_f64() > Some(0.0) {
            rows.push([
                row["name"].as_str().unwrap_or("?").to_owned(),
                row["per_second"].to_string(),
                known(&row["mean_us"]),
                known(&row["p50_us"]),
                known(&row["p99_us"]),
            ]);
        }
    }
    let mut out = match rows.len() {
        1 => "no operations\n".to_owned(),
        _ => inspect::table(&rows),
    };
    let mut rows = vec![
        [
            "NSD",
            "READS/s",
            "READ/s",
            "WRITES/s",
            "WRITTEN/s",
            "FLUSHES/s",
        ]
        .map(str::to_owned),
    ];
    for row in value["nsds"].as_array().into_iter().flatten() {
        rows.push([
            row["nsd"].to_string(),
            row["reads_per_second"].to_string(),
            bytes(&row["read_bytes_per_second"]),
            row["writes_per_second"].to_string(),
            bytes(&row["write_bytes_per_second"]),
            row["flushes_per_second"].to_string(),
        ]);
    }
    out.push('\n');
    out.push_str(&inspect::table(&rows));
    out.push_str(&format!(
        "\njournal {}/s in {} flushes/s; {} messages/s, {} revokes/s; {} of {} frames free\n",
        bytes(&value["journal_bytes_per_second"]),
        value["journal_flushes_per_second"],
        value["messages_per_second"],
        value["revokes_per_second"],
        value["pagepool_frames_free"],
        value["pagepool_frames"],
    ));
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(at: Instant, reads: u64, writes: u64) -> Sample {
        Sample {
            at,
            operations: json!({
                "read": {"count": reads, "timed": reads / 8, "timed_ns": reads / 8 * 3000, "buckets": [0, 0, reads / 8]},
                "write": {"count": writes, "timed": 0, "timed_ns": 0, "buckets": []},
            }),
            counters: json!({
                "requests": reads + writes, "nsd2_writes": writes, "nsd2_write_bytes": writes * 4096,
                "nsd10_writes": 0, "pool_frames": 9, "pool_frames_free": 4,
            }),
        }
    }

    #[test]
    fn rates_and_latencies_are_of_the_interval() {
        let begin = Instant::now();
        let (a, b) = (
            sample(begin, 800, 100),
            sample(begin + Duration::from_secs(2), 2400, 5100),
        );
        let value = compare(&a, &b);
        let first = &value["operations"][0];
        assert_eq!(
            (&first["name"], &first["per_second"]),
            (&json!("write"), &json!(2500.0))
        );
        assert!(
            first["mean_us"].is_null() && first["p99_us"].is_null(),
            "nothing was timed"
        );
        let second = &value["operations"][1];
        assert_eq!(
            (&second["mean_us"], &second["p99_us"]),
            (&json!(3.0), &json!(4))
        );
        assert_eq!(value["nsds"][0]["write_bytes_per_second"], 2500.0 * 4096.0);
        assert_eq!(value["nsds"][1]["nsd"], 10);
        let text = to_text(&value);
        assert!(text.contains("write") && text.contains("2500.0"), "{text}");
        assert!(to_text(&compare(&b, &b)).contains("no operations"));
    }

    #[test]
    fn a_daemon_that_began_anew_gives_no_negative_rates() {
        let begin = Instant::now();
        let (a, b) = (
            sample(begin, 800, 100),
            sample(begin + Duration::from_secs(1), 8, 0),
        );
        let value = compare(&a, &b);
        assert_eq!(value["requests_per_second"], 0.0);
    }

    #[test]
    fn quantiles_are_upper_bounds() {
        let buckets = [90, 0, 9, 1];
        let of = |percent| quantile(buckets.iter().copied(), percent);
        assert_eq!(
            [50, 90, 91, 99, 100].map(of),
            [Some(1), Some(1), Some(4), Some(4), Some(8)]
        );
        assert_eq!(quantile([].into_iter(), 50), None);
        assert_eq!(quantile([0, 0].into_iter(), 99), None);
    }
}

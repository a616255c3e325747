//! What the daemon counts, as a page for Prometheus (docs/metrics.md).
//!
//! Invariants
//! - Making the page takes no lock that an operation takes: it reads atomic counters and /proc/self. What lies behind
//!   such locks is looked at by the thread that ticks, which takes them many times a second anyway, once a second, and
//!   only where metrics are asked for.
//! - Every metric of the table is on every page.

mod gauges;
mod table;

use std::fmt::{Error as FmtError, Write as _};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use client::slice::Waiting;
use node::message::CLASS_NAMES;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;
use types::frame::FRAME_BYTES;

use super::{Daemon, Error, OPERATION_NAMES};
use crate::histogram::{Timed, bound_us};
use crate::http::{Page, Pages, Server};
use crate::{clock, disk};
pub(super) use gauges::Gauges;
use table::{Kind, Metric};

/// As https://github.com/prometheus/OpenMetrics/blob/v1.0.0/specification/OpenMetrics.md has it.
const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// Times above 2^25 us, half a minute, are all in the last bucket of the page.
const BOUND_COUNT: usize = 26;
/// Classes of frames, as `NetCounters` has them.
const FRAME_CLASSES: [&str; 5] = ["handshake", "cluster", "nsd", "token", "node"];

impl Daemon {
    /// Serves the page where the configuration says.
    pub(super) fn serve_metrics(self: &Arc<Self>) -> Result<Option<Server>, Error> {
        let Some(address) = self.config.metrics else {
            return Ok(None);
        };
        let mut registry = Registry::default();
        registry.register_collector(Box::new(Counts(Arc::downgrade(self))));
        let pages: Pages = Box::new(move |path| {
            if path != "/metrics" {
                return None;
            }
            let mut page = String::new();
            text::encode(&mut page, &registry).expect("a String takes all");
            Some(Page {
                content_type: CONTENT_TYPE,
                text: page,
            })
        });
        self.look_at_gauges(0);
        let server =
            Server::start(address, pages).map_err(|source| Error::Metrics { address, source })?;
        tracing::info!(address = %server.address(), "metrics are served");
        let _ = self.metrics_address.set(server.address());
        Ok(Some(server))
    }
}

#[derive(Debug)]
struct Counts(Weak<Daemon>);

impl Collector for Counts {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> Result<(), FmtError> {
        match self.0.upgrade() {
            Some(daemon) => Writer { encoder }.write_all(&daemon),
            None => Ok(()),
        }
    }
}

fn get(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

#[allow(clippy::cast_precision_loss, reason = "metrics are doubles")]
fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

struct Writer<'a> {
    encoder: DescriptorEncoder<'a>,
}

type Done = Result<(), FmtError>;

impl Writer<'_> {
    /// Writes the samples of a metric: the values of its labels, and what `put` makes of each.
    fn family<const N: usize, V>(
        &mut self,
        metric: &Metric,
        rows: impl IntoIterator<Item = ([String; N], V)>,
        put: impl Fn(&mut MetricEncoder<'_>, V) -> Done,
    ) -> Done {
        let kind = match metric.kind {
            Kind::Counter => MetricType::Counter,
            Kind::Gauge => MetricType::Gauge,
            Kind::Histogram => MetricType::Histogram,
            Kind::Info => MetricType::Info,
        };
        assert_eq!(metric.labels.len(), N, "{}", metric.name);
        let mut encoder = (self.encoder).encode_descriptor(metric.name, metric.help, None, kind)?;
        for (values, value) in rows {
            let labels: Vec<(&str, String)> = metric
                .labels
                .iter()
                .copied()
                .zip(values.map(escaped))
                .collect();
            match N {
                0 => put(&mut encoder, value)?,
                _ => put(&mut encoder.encode_family(&labels)?, value)?,
            }
        }
        Ok(())
    }

    fn counters<const N: usize>(
        &mut self,
        metric: &Metric,
        rows: impl IntoIterator<Item = ([String; N], u64)>,
    ) -> Done {
        self.family(metric, rows, |encoder, value| {
            encoder.encode_counter::<NoLabelSet, _, f64>(&value, None)
        })
    }

    fn counter(&mut self, metric: &Metric, value: u64) -> Done {
        self.counters(metric, [([], value)])
    }

    fn gauges<const N: usize>(
        &mut self,
        metric: &Metric,
        rows: impl IntoIterator<Item = ([String; N], u64)>,
    ) -> Done {
        self.family(metric, rows, |encoder, value| {
            encoder.encode_gauge(&i64::try_from(value).unwrap_or(i64::MAX))
        })
    }

    fn gauge(&mut self, metric: &Metric, value: u64) -> Done {
        self.gauges(metric, [([], value)])
    }

    fn gauge_of(&mut self, metric: &Metric, value: f64) -> Done {
        self.family(metric, [([], value)], |encoder, value| {
            encoder.encode_gauge(&value)
        })
    }

    fn histograms<const N: usize>(
        &mut self,
        metric: &Metric,
        rows: impl IntoIterator<Item = ([String; N], Timed)>,
    ) -> Done {
        self.family(metric, rows, |encoder, timed| {
            let buckets = buckets(&timed);
            encoder.encode_histogram::<NoLabelSet>(seconds(timed.time), timed.count, &buckets, None)
        })
    }

    fn write_all(&mut self, daemon: &Daemon) -> Done {
        self.write_node(daemon)?;
        self.write_operations(daemon)?;
        self.write_caches(daemon)?;
        self.write_journal(daemon)?;
        self.write_nsds(daemon)?;
        self.write_cluster(daemon)?;
        self.write_process()
    }

    fn write_node(&mut self, daemon: &Daemon) -> Done {
        let view = &daemon.config.view;
        let profile = if cfg!(debug_assertions) {
            "debug"
        } else {
            "release"
        };
        let build = [env!("CARGO_PKG_VERSION"), profile].map(str::to_owned);
        self.info(&table::BUILD, build)?;
        let node = [
            daemon.me.node.0.to_string(),
            format!("{:032x}", view.cluster.0),
            format!("{:032x}", view.fs.0),
            daemon.config.mount.to_string_lossy().into_owned(),
        ];
        self.info(&table::NODE, node)?;
        let now = clock::now();
        self.gauge_of(&table::UPTIME, seconds(now.since(daemon.begun).0))?;
        self.gauge(&table::MOUNTED, u64::from(daemon.is_mounted()))?;
        self.gauge(&table::SERVING, u64::from(daemon.is_serving()))?;
        self.gauge_of(&table::LEASE, seconds(daemon.lease_left().0))?;
        self.gauge(&table::EPOCH, daemon.membership.epoch().0)?;
        let gauges = &daemon.gauges;
        let peers = gauges.peers.iter();
        let peers = peers.map(|(node, is_up)| ([node.0.to_string()], get(is_up)));
        self.gauges(&table::PEER, peers)?;
        let age = now.since(types::Instant(get(&gauges.looked_at)));
        self.gauge_of(&table::SAMPLE_AGE, seconds(age.0))
    }

    fn info<const N: usize>(&mut self, metric: &Metric, values: [String; N]) -> Done {
        let Metric {
            name, help, labels, ..
        } = metric;
        assert_eq!(labels.len(), N, "{name}");
        let values: Vec<(&str, String)> = labels.iter().copied().zip(values.map(escaped)).collect();
        let mut encoder = (self.encoder).encode_descriptor(name, help, None, MetricType::Info)?;
        encoder.encode_info(&values)
    }

    fn write_operations(&mut self, daemon: &Daemon) -> Done {
        let named = |name: &str| [name.to_owned()];
        let counts = daemon.operation_counts();
        self.counters(
            &table::OPERATIONS,
            counts.map(|(name, count)| (named(name), count)),
        )?;
        let times = OPERATION_NAMES.iter().zip(daemon.latencies.timed());
        self.histograms(
            &table::OPERATION_TIME,
            times.map(|(name, t)| (named(name), t)),
        )?;
        let c = &daemon.counters;
        let sizes = [
            (named("read"), get(&c.read_size)),
            (named("write"), get(&c.write_size)),
        ];
        self.counters(&table::REQUESTED, sizes)?;
        let slow = OPERATION_NAMES.iter().zip(&daemon.slow.counts);
        self.counters(&table::SLOW, slow.map(|(name, n)| (named(name), get(n))))?;
        self.gauge(&table::UNANSWERED, get(&daemon.slow.waiting))?;
        self.counter(&table::ANSWERS, get(&c.replies))?;
        let waits = Waiting::NAMES.iter().zip(&daemon.gauges.waits);
        self.counters(
            &table::CLIENT_WAITS,
            waits.map(|(name, n)| (named(name), get(n))),
        )
    }

    fn write_caches(&mut self, daemon: &Daemon) -> Done {
        let (c, gauges) = (&daemon.counters, &daemon.gauges);
        self.gauge(&table::INODES_CACHED, get(&gauges.inodes))?;
        let (evicted, resident) = daemon.keys.evicted_and_resident();
        let [misses, pages, failures] = &gauges.metadata;
        self.gauge(&table::METADATA_BYTES, resident)?;
        self.counter(&table::METADATA_EVICTIONS, evicted)?;
        self.counter(&table::METADATA_MISSES, get(misses))?;
        self.counter(&table::METADATA_READS, get(pages))?;
        self.counter(&table::METADATA_FAILURES, get(failures))?;
        self.gauge(&table::INODES_DIRTY, get(&gauges.dirty))?;
        self.gauge(&table::HANDLES, get(&gauges.handles))?;
        self.counter(&table::LOADS, get(&c.loads))?;
        self.counter(&table::STORES, get(&c.stores))?;
        self.counter(&table::LOST_PAGES, get(&gauges.lost_pages))?;
        self.counter(&table::LOST_WRITE_BACKS, get(&gauges.lost_write_backs))?;
        self.counter(&table::REFUSED_COMMITS, get(&gauges.refused))?;
        self.counter(&table::REWRITTEN, get(&gauges.rewritten))?;
        self.counter(&table::REWRITTEN_SIZE, get(&gauges.rewritten_size))?;
        self.counter(&table::NOTICES, get(&c.notices))?;
        let pending = [
            (["kernel".to_owned()], get(&gauges.notices_busy)),
            (["waiting".to_owned()], get(&gauges.notices_waiting)),
        ];
        self.gauges(&table::NOTICES_PENDING, pending)?;
        let pool = daemon.pool.counters();
        let frame_size = u64::from(FRAME_BYTES);
        self.gauge(&table::POOL_SIZE, pool.frame_count * frame_size)?;
        self.gauge(&table::POOL_FREE, pool.free_frame_count * frame_size)?;
        self.counter(&table::POOL_REFUSED, pool.refused_count)?;
        self.counter(&table::POOL_COPIED, pool.copied_size)
    }

    fn write_journal(&mut self, daemon: &Daemon) -> Done {
        let (c, gauges) = (&daemon.counters, &daemon.gauges);
        self.counter(&table::JOURNAL_BYTES, get(&c.journal_size))?;
        self.counter(&table::JOURNAL_FLUSHES, get(&c.journal_flushes))?;
        self.gauge(&table::JOURNAL_LAST, get(&gauges.last_lsn))?;
        self.gauge(&table::JOURNAL_DURABLE, get(&gauges.durable_lsn))?;
        self.gauge(&table::JOURNAL_WAITING, get(&gauges.durable_waiting))?;
        self.gauge(&table::JOURNAL_FAILED, get(&gauges.is_failed))
    }

    fn write_nsds(&mut self, daemon: &Daemon) -> Done {
        let direct = daemon.disks.iter();
        let direct = direct.map(|(nsd, disk)| (*nsd, "direct", disk.meters()));
        let served = daemon.io.served.iter();
        let served = served.map(|(nsd, meters)| (*nsd, "served", meters));
        let all: Vec<_> = direct.chain(served).collect();
        let names = disk::Meters::NAMES;
        let mut times = Vec::new();
        let mut sizes = Vec::new();
        let mut errors = Vec::new();
        for (nsd, path, meters) in all {
            let labels = |io: &str| [nsd.0.to_string(), path.to_owned(), io.to_owned()];
            let timed = names.iter().zip(&meters.times);
            times.extend(timed.map(|(io, time)| (labels(io), time.timed())));
            let sums = names.iter().zip(&meters.sizes);
            sizes.extend(sums.map(|(io, sum)| (labels(io), get(sum))));
            errors.push(([nsd.0.to_string(), path.to_owned()], get(&meters.errors)));
        }
        self.histograms(&table::NSD_TIME, times)?;
        self.counters(&table::NSD_BYTES, sizes)?;
        self.counters(&table::NSD_ERRORS, errors)?;
        let queues = daemon.gauges.queues.iter().flat_map(|(nsd, queue)| {
            let row = |state: &str, n| ([nsd.0.to_string(), state.to_owned()], get(n));
            [row("disk", &queue[0]), row("waiting", &queue[1])]
        });
        self.gauges(&table::NSD_QUEUE, queues)
    }

    fn write_cluster(&mut self, daemon: &Daemon) -> Done {
        let (c, gauges) = (&daemon.counters, &daemon.gauges);
        self.gauge(&table::TOKENS, get(&gauges.tokens))?;
        self.gauge(&table::TOKEN_WAITS, get(&gauges.token_waits))?;
        self.counter(&table::REVOKES, get(&c.revokes))?;
        let messages = CLASS_NAMES.iter().zip(&c.messages);
        let messages = messages.map(|(name, n)| ([(*name).to_owned()], get(n)));
        self.counters(&table::MESSAGES, messages)?;
        self.counter(&table::UNSENT, get(&c.unsent))?;
        self.gauge(&table::QUESTIONS, get(&gauges.questions))?;
        self.gauge(&table::PARKED, get(&gauges.parked))?;
        let net = daemon.net.get().map(crate::net::Net::counters);
        let net = net.unwrap_or_default();
        let frames = (FRAME_CLASSES.iter().enumerate()).flat_map(|(class, name)| {
            let row = |direction: &str, n| ([(*name).to_owned(), direction.to_owned()], n);
            [
                row("sent", net.sent_counts[class]),
                row("received", net.received_counts[class]),
            ]
        });
        self.counters(&table::NET_FRAMES, frames)?;
        let sizes = [("sent", net.sent_size), ("received", net.received_size)];
        let sizes = sizes.map(|(direction, size)| ([direction.to_owned()], size));
        self.counters(&table::NET_BYTES, sizes)?;
        let space = gauges::SPACE_NAMES.iter().zip(&gauges.space);
        self.gauges(
            &table::SPACE,
            space.map(|(name, n)| ([(*name).to_owned()], get(n))),
        )?;
        self.gauge(&table::IN_HAND, get(&gauges.in_hand))
    }

    fn write_process(&mut self) -> Done {
        let process = gauges::Process::look();
        self.gauge(&table::RSS, process.resident_size)?;
        self.family(&table::CPU, [([], process.cpu)], |encoder, value| {
            encoder.encode_counter::<NoLabelSet, _, f64>(&value, None)
        })?;
        self.gauge_of(&table::START, process.start)?;
        self.gauge(&table::FDS, process.fd_count)?;
        self.gauge(&table::THREADS, process.thread_count)?;
        self.counter(&table::ALLOCATIONS, crate::alloc::count())
    }
}

/// Label values as the format wants them: the library writes them as they are.
fn escaped(value: String) -> String {
    if !value.contains(['\\', '"', '\n']) {
        return value;
    }
    let mut out = String::new();
    for c in value.chars() {
        match c {
            '\\' | '"' => write!(out, "\\{c}"),
            '\n' => write!(out, "\\n"),
            c => write!(out, "{c}"),
        }
        .expect("a String takes all");
    }
    out
}

/// Upper bounds in seconds, and how many are in each bucket.
fn buckets(timed: &Timed) -> Vec<(f64, u64)> {
    let mut all: Vec<(f64, u64)> = (0..BOUND_COUNT)
        .map(|index| {
            let us = bound_us(index).expect("the last bucket is behind these");
            (
                seconds(us * 1000),
                timed.buckets.get(index).copied().unwrap_or(0),
            )
        })
        .collect();
    let above = timed.buckets.iter().skip(BOUND_COUNT).sum();
    // The library's name for infinity.
    all.push((f64::MAX, above));
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_hold_all_that_was_counted() {
        for bucket in 0..crate::histogram::BUCKET_COUNT {
            let mut counts = vec![0; bucket];
            counts.push(3);
            let timed = Timed {
                count: 3,
                time: 0,
                buckets: counts,
            };
            let shown = buckets(&timed);
            let index = bucket.min(BOUND_COUNT);
            assert_eq!(shown.iter().map(|(_, n)| n).sum::<u64>(), 3);
            assert_eq!(shown[index].1, 3, "{bucket}");
            assert!(shown.is_sorted_by(|a, b| a.0 < b.0));
        }
        let us = |index: usize| {
            buckets(&Timed {
                count: 0,
                time: 0,
                buckets: Vec::new(),
            })[index]
                .0
        };
        assert_eq!((us(0), us(10), us(26)), (1e-6, 0.001_024, f64::MAX));
    }

    #[test]
    fn labels_are_escaped() {
        assert_eq!(escaped("/mnt/a".to_owned()), "/mnt/a");
        assert_eq!(escaped("a\"b\\c\nd".to_owned()), "a\\\"b\\\\c\\nd");
    }
}

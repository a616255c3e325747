//! Every metric: name, kind, labels, help. docs/metrics.md is this table, and a test compares the two.

use super::super::latency::SAMPLED_ONE_IN;

const _: () = assert!(SAMPLED_ONE_IN == 8, "the help texts say one in eight");

/// How a metric moves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    Counter,
    Gauge,
    Histogram,
    Info,
}

/// A metric. Its name is that of the family; samples of counters end in `_total`, of infos in `_info`.
#[derive(Debug)]
pub(super) struct Metric {
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    pub(super) labels: &'static [&'static str],
    pub(super) help: &'static str,
}

macro_rules! metrics {
    ($($id:ident: $kind:ident $name:literal [$($label:literal),*] $help:literal;)*) => {
        $(pub(super) const $id: Metric = Metric {
            name: $name,
            kind: Kind::$kind,
            labels: &[$($label),*],
            help: $help,
        };)*
        /// All of them, in the order of the page.
        #[cfg(test)]
        pub(super) const ALL: &[&Metric] = &[$(&$id),*];
    };
}

metrics! {
    BUILD: Info "gupfs_build" ["version", "profile"] "The running program";
    NODE: Info "gupfs_node" ["node", "cluster", "fs", "mount"] "Who this daemon is";
    UPTIME: Gauge "gupfs_uptime_seconds" [] "Since the daemon was started";
    MOUNTED: Gauge "gupfs_mounted" [] "1 while the file system is mounted";
    SERVING: Gauge "gupfs_serving" [] "1 when this owner's grace period is over";
    LEASE: Gauge "gupfs_lease_left_seconds" [] "What is left of this node's lease; a cluster of one always has a whole one";
    EPOCH: Gauge "gupfs_view_epoch" [] "Epoch of the newest cluster view";
    PEER: Gauge "gupfs_peer_connected" ["node"] "1 where the link to another node is up; looked at once a second";
    SAMPLE_AGE: Gauge "gupfs_sample_age_seconds" [] "Since what is looked at once a second was looked at";

    OPERATIONS: Counter "gupfs_operations" ["operation"] "Requests of the kernel";
    OPERATION_TIME: Histogram "gupfs_operation_duration_seconds" ["operation"] "From a request to its answer; SAMPLED: one request in eight is timed, so _count and _sum are about an eighth";
    REQUESTED: Counter "gupfs_requested_bytes" ["operation"] "Bytes that reads of the kernel asked for and writes brought; what its page cache answers is not seen";
    SLOW: Counter "gupfs_slow_operations" ["operation"] "Requests of the kernel that took longer than the setting slow_ms; all are counted, logged or not";
    UNANSWERED: Gauge "gupfs_operations_waiting" [] "Requests of the kernel that wait for something; looked at ten times a second, 0 where slow_ms is 0";
    ANSWERS: Counter "gupfs_answers" [] "Answers to requests of the kernel";
    CLIENT_WAITS: Counter "gupfs_client_waits" ["cause"] "Times that a request was set aside to wait; looked at once a second";

    INODES_CACHED: Gauge "gupfs_cached_inodes" [] "Inodes that the client half knows; looked at once a second";
    METADATA_BYTES: Gauge "gupfs_metadata_resident_bytes" [] "Metadata of this owner that is in memory, roughly; looked at 50 times a second";
    METADATA_EVICTIONS: Counter "gupfs_metadata_evictions" [] "Inodes of this owner that have left memory, for the setting metadata_bytes_max";
    METADATA_MISSES: Counter "gupfs_metadata_misses" [] "Inodes of this owner that were wanted, not in memory, and being read for nobody else; looked at once a second";
    METADATA_READS: Counter "gupfs_metadata_page_reads" [] "Pages of trees that were read for them; looked at once a second";
    METADATA_FAILURES: Counter "gupfs_metadata_read_failures" [] "Reads of such inodes that failed; looked at once a second";
    INODES_DIRTY: Gauge "gupfs_dirty_inodes" [] "Inodes that write-behind will look at; looked at once a second";
    HANDLES: Gauge "gupfs_open_handles" [] "Files and directories open on this node; looked at once a second";
    LOADS: Counter "gupfs_data_loads" [] "Times that file data was not in the pagepool and was read from NSDs";
    STORES: Counter "gupfs_data_stores" [] "Times that file data was written to NSDs";
    LOST_PAGES: Counter "gupfs_lost_pages" [] "Pages of 4 KiB that were written and could not be stored: lost, which fsync and close say once; looked at once a second";
    LOST_WRITE_BACKS: Counter "gupfs_lost_write_backs" [] "Write-backs of mapped pages that were refused, of up to 1 MiB each: lost, which msync, fsync and close say once; looked at once a second";
    REFUSED_COMMITS: Counter "gupfs_refused_commits" [] "Write-backs of small writes for which an owner had no room; they go elsewhere, or are tried again; looked at once a second";
    REWRITTEN: Counter "gupfs_rewritten_blocks" [] "Blocks of many extents that were written again as one run; looked at once a second";
    REWRITTEN_SIZE: Counter "gupfs_rewritten_bytes" [] "Bytes of these blocks; looked at once a second";
    NOTICES: Counter "gupfs_kernel_notifications" [] "Times that the kernel was told to drop what it caches";
    NOTICES_PENDING: Gauge "gupfs_kernel_notifications_pending" ["state"] "Notifications with the kernel, or waiting for a thread; looked at once a second";

    POOL_SIZE: Gauge "gupfs_pagepool_size_bytes" [] "Memory for caching";
    POOL_FREE: Gauge "gupfs_pagepool_free_bytes" [] "What of it nobody uses";
    POOL_REFUSED: Counter "gupfs_pagepool_refusals" [] "Requests for a frame or a slab that found none";
    POOL_COPIED: Counter "gupfs_copied_bytes" [] "Bytes copied between frames, and into and out of them";

    JOURNAL_BYTES: Counter "gupfs_journal_written_bytes" [] "Bytes that the journal wrote";
    JOURNAL_FLUSHES: Counter "gupfs_journal_flushes" [] "Writes of the journal, each of all records that were ready";
    JOURNAL_LAST: Gauge "gupfs_journal_last_lsn" [] "Number of the newest record; looked at once a second";
    JOURNAL_DURABLE: Gauge "gupfs_journal_durable_lsn" [] "Number of the newest record that is on stable storage; looked at once a second";
    JOURNAL_WAITING: Gauge "gupfs_journal_waiting_answers" [] "Answers that wait for the journal; looked at once a second";
    JOURNAL_FAILED: Gauge "gupfs_journal_failed" [] "1 after the journal could not be written: this node's shards are given up; looked at once a second";

    NSD_TIME: Histogram "gupfs_nsd_io_duration_seconds" ["nsd", "path", "io"] "From a request to an NSD to its end, its wait for its turn included; all are timed. path: direct (a disk of this node, for itself and for others) or served (by another node)";
    NSD_BYTES: Counter "gupfs_nsd_io_bytes" ["nsd", "path", "io"] "Bytes of reads and writes that have ended well";
    NSD_ERRORS: Counter "gupfs_nsd_io_errors" ["nsd", "path"] "Requests that failed";
    NSD_QUEUE: Gauge "gupfs_nsd_queue_length" ["nsd", "state"] "System calls of a disk of this node: with the kernel (disk), or waiting for their turn; looked at once a second";

    TOKENS: Gauge "gupfs_tokens_granted" [] "Pairs of an inode of this owner and a node that holds tokens on it; looked at once a second";
    TOKEN_WAITS: Gauge "gupfs_token_waiting_requests" [] "Requests to this owner that wait until others have given tokens up; looked at once a second";
    REVOKES: Counter "gupfs_token_revokes" [] "Tokens that this owner asked holders to give up";

    MESSAGES: Counter "gupfs_messages_sent" ["class"] "Messages to other nodes";
    UNSENT: Counter "gupfs_messages_unsent" [] "Messages that could not be sent; what matters is repeated";
    QUESTIONS: Gauge "gupfs_questions_waiting" [] "Questions to other owners without an answer; looked at once a second";
    PARKED: Gauge "gupfs_lease_waiting" [] "Requests, answers and messages that wait for this node's lease; looked at once a second";
    NET_FRAMES: Counter "gupfs_network_frames" ["class", "direction"] "Frames on the links to other nodes";
    NET_BYTES: Counter "gupfs_network_bytes" ["direction"] "Bytes on the links to other nodes";

    SPACE: Gauge "gupfs_space_bytes" ["state"] "Sectors of the regions that this owner holds; looked at every ten seconds";
    IN_HAND: Gauge "gupfs_space_in_hand_bytes" [] "What this node's clients may write to without asking; looked at once a second";

    RSS: Gauge "process_resident_memory_bytes" [] "Resident memory of the daemon, the pagepool included";
    CPU: Counter "process_cpu_seconds" [] "Processor time of the daemon, user and system";
    START: Gauge "process_start_time_seconds" [] "When the daemon was started, in seconds since 1970";
    FDS: Gauge "process_open_fds" [] "Open file descriptors of the daemon";
    THREADS: Gauge "process_threads" [] "Threads of the daemon";
    ALLOCATIONS: Counter "gupfs_allocations" [] "Allocations of memory";
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/metrics.md");
    const BEGIN: &str = "| metric | kind | labels | what |\n|---|---|---|---|\n";

    fn row(metric: &Metric) -> String {
        let (kind, suffix) = match metric.kind {
            Kind::Counter => ("counter", "_total"),
            Kind::Gauge => ("gauge", ""),
            Kind::Histogram => ("histogram", ""),
            Kind::Info => ("info", "_info"),
        };
        let labels: Vec<String> = metric.labels.iter().map(|l| format!("`{l}`")).collect();
        let Metric { name, help, .. } = metric;
        format!(
            "| `{name}{suffix}` | {kind} | {} | {help} |\n",
            labels.join(", ")
        )
    }

    /// `UPDATE=1 cargo test -p os the_page` writes it anew.
    #[test]
    fn the_page_lists_exactly_these() {
        let page = std::fs::read_to_string(PAGE).expect("docs/metrics.md");
        let (before, rest) = page.split_once(BEGIN).expect("the head of the table");
        let listed: String = rest
            .lines()
            .take_while(|line| line.starts_with('|'))
            .map(|line| format!("{line}\n"))
            .collect();
        let expected: String = ALL.iter().map(|m| row(m)).collect();
        if std::env::var_os("UPDATE").is_some() {
            let after = &rest[listed.len()..];
            std::fs::write(PAGE, [before, BEGIN, &expected, after].concat()).expect("written");
            return;
        }
        assert_eq!(listed, expected);
    }

    /// As https://prometheus.io/docs/practices/naming has it.
    #[test]
    fn names_follow_the_conventions() {
        for (index, metric) in ALL.iter().enumerate() {
            let name = metric.name;
            let is_plain = |c: char| c.is_ascii_lowercase() || c == '_';
            assert!(name.chars().all(is_plain), "{name}");
            assert!(
                name.starts_with("gupfs_") || name.starts_with("process_"),
                "{name}"
            );
            assert!(ALL[..index].iter().all(|m| m.name != name), "{name} twice");
            for suffix in ["_total", "_info", "_count", "_sum", "_bucket", "_ms", "_us"] {
                assert!(!name.ends_with(suffix), "{name}");
            }
            let is_time = metric.kind == Kind::Histogram;
            assert!(!is_time || name.ends_with("_seconds"), "{name}");
            assert!(
                !metric.help.ends_with('.') && metric.help.is_ascii(),
                "{name}"
            );
            assert!(!metric.help.contains(['\n', '\\', '|']), "{name}");
        }
    }
}

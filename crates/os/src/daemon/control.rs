//! The control socket: status, waiters, counters, stop. One request line, one JSON line.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use node::message::CLASS_NAMES;
use types::InodeId;

use super::{Daemon, Error, lock};
use crate::clock;

/// Longest request line in bytes.
const LINE_MAX: u64 = 4096;
/// Extents of an inode that are listed: the answer stays far below what the asker reads.
const EXTENTS_SHOWN_MAX: usize = 65_536;
/// A client that does not read or write is dropped after this.
const PATIENCE: Duration = Duration::from_secs(5);
/// From an accept that failed to the next one.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Listens at `path`; only root may connect.
pub(super) fn listen(path: &Path) -> Result<UnixListener, Error> {
    let failed = |source| Error::Control {
        path: path.to_owned(),
        source,
    };
    // What a crash left behind: the state directory's lock says that nobody listens there.
    match std::fs::remove_file(path) {
        Ok(()) => {}
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        Err(error) => return Err(failed(error)),
    }
    let listener = UnixListener::bind(path).map_err(failed)?;
    let mode = std::fs::Permissions::from_mode(0o600);
    std::fs::set_permissions(path, mode).map_err(failed)?;
    Ok(listener)
}

/// Wakes the thread that accepts at `listener`, for good, even where the socket's path is gone.
pub(super) fn end_listening(listener: &UnixListener) {
    // SAFETY: the call takes a descriptor that `listener` keeps open, and touches no memory.
    let result = unsafe { libc::shutdown(listener.as_raw_fd(), libc::SHUT_RDWR) };
    debug_assert_eq!(result, 0, "a listening socket can be shut down");
}

/// Answers until nobody listens any more: also while the daemon stops, which may take as long as others are waited for. Who asks it to stop
/// once more must not take it for dead.
pub(super) fn serve(daemon: &Arc<Daemon>, listener: &UnixListener) {
    let mut was_refused = false;
    for stream in listener.incoming() {
        if daemon.is_deaf.load(Ordering::SeqCst) {
            return;
        }
        match stream {
            Ok(stream) => {
                was_refused = false;
                if let Err(error) = answer(daemon, stream) {
                    tracing::debug!(%error, "a control client went away");
                }
            }
            Err(_) if daemon.is_deaf.load(Ordering::SeqCst) => return,
            Err(error) => {
                // Who waits to be accepted makes the next try fail at once, too: where descriptors lack that would be all that happens.
                if !std::mem::replace(&mut was_refused, true) {
                    tracing::warn!(%error, "accepting a control client failed; it is tried again until it works");
                }
                std::thread::sleep(ACCEPT_PAUSE);
            }
        }
    }
}

fn answer(daemon: &Arc<Daemon>, stream: UnixStream) -> std::io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut line = String::new();
    let mut reader = BufReader::new(std::io::Read::take(&stream, LINE_MAX));
    reader.read_line(&mut line)?;
    let reply = match line.trim() {
        "status" => daemon.status(),
        "waiters" => daemon.waiters(),
        "counters" => daemon.counters_json(),
        "space" => return answer_beside(daemon, stream, |daemon| daemon.space_json()),
        // It asks the other owners, for seconds each.
        "df" if daemon.stop.is_set() => "{\"error\":\"the daemon is about to end\"}".to_owned(),
        "df" => daemon.df_json(),
        "operations" => daemon.operations_json(),
        "config" => daemon.config.settings.clone(),
        "stop" => {
            daemon.stop.set();
            "{\"stopping\":true}".to_owned()
        }
        line if line.starts_with("usage ") => {
            let words = line["usage ".len()..].to_owned();
            return answer_beside(daemon, stream, move |daemon| daemon.usage_json(&words));
        }
        line if line.starts_with("inode ") => {
            let words = line["inode ".len()..].to_owned();
            return answer_beside(daemon, stream, move |daemon| daemon.inode_json(&words));
        }
        other => format!(
            "{{\"error\":\"unknown request\",\"request\":{}}}",
            quoted(other)
        ),
    };
    let mut stream = stream;
    writeln!(stream, "{reply}")
}

/// Other owners or disks are waited for, perhaps for minutes: beside what else is asked here, `stop` above all.
fn answer_beside(
    daemon: &Arc<Daemon>,
    mut stream: UnixStream,
    reply: impl FnOnce(&Arc<Daemon>) -> String + Send + 'static,
) -> std::io::Result<()> {
    let Some(turn) = daemon.take_usage_turn() else {
        let busy = "others ask what takes long, and no more can at a time: try again";
        return writeln!(stream, "{{\"error\":{}}}", quoted(busy));
    };
    let asked = Arc::clone(daemon);
    let answering = std::thread::Builder::new().name("answer".to_owned());
    let begun = answering.spawn(move || {
        let reply = reply(&asked);
        drop(turn);
        if let Err(error) = writeln!(stream, "{reply}") {
            tracing::debug!(%error, "a control client went away");
        }
    });
    begun.map(drop)
}

/// A JSON string.
pub(super) fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            c if c.is_control() => out.push_str(&format!("\\u{:04x}", u32::from(c))),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

impl Daemon {
    /// Who waits for what, and for how long, as JSON.
    pub(super) fn waiters(&self) -> String {
        let now = clock::now();
        let mut all = Vec::new();
        for slice in &self.slices {
            for (ino, what, since) in lock(slice).waiters() {
                // Of some the begin is not known.
                let waited = match since {
                    types::Instant(0) => types::Duration(0),
                    since => now.since(since),
                };
                all.push((waited.0 / 1_000_000, format!("inode {ino}: {what}")));
            }
        }
        for slice in self.shards.iter().flatten() {
            for (what, since) in lock(slice).waiters() {
                all.push((now.since(since).0 / 1_000_000, what));
            }
        }
        for (what, since) in lock(&self.moves).waiters() {
            all.push((now.since(since).0 / 1_000_000, what));
        }
        let durable = self.durable_waiter_count();
        if durable > 0 {
            all.push((0, format!("{durable} answers wait for the journal")));
        }
        let calls = lock(&self.calls).waiters();
        for (what, since) in calls.into_iter().chain(self.sum_waiters()) {
            all.push((now.since(since).0 / 1_000_000, what));
        }
        if let Some(notifier) = self.notifier.get()
            && let (busy, waiting) = notifier.pending_counts()
            && busy + waiting > 0
        {
            let what =
                format!("{busy} notifications are with the kernel, {waiting} wait for a thread");
            all.push((0, what));
        }
        for (what, since) in lock(&self.regions).waiting() {
            all.push((now.since(since).0 / 1_000_000, what));
        }
        let held = lock(&self.held_work).len();
        if held > 0 {
            let missing = self.membership.missing();
            all.push((
                0,
                format!(
                    "{held} questions wait for the grace period to end: {missing:?} must answer"
                ),
            ));
        }
        for (what, since) in lock(&self.fences).waiters() {
            all.push((now.since(since).0 / 1_000_000, what));
        }
        for (what, since) in lock(&self.farewells).waiters() {
            all.push((now.since(since).0 / 1_000_000, what));
        }
        if let Some((what, since)) = self.checkpoints.waiting() {
            all.push((now.since(since).0 / 1_000_000, what));
        }
        for (what, since) in self.keys.waiting() {
            all.push((now.since(since).0 / 1_000_000, what));
        }
        for (what, since) in self.io_waiters() {
            all.push((now.since(since).0 / 1_000_000, what));
        }
        all.extend(self.frame_waiters().into_iter().map(|what| (0, what)));
        for (ino, process, waited) in self.waiting_writes() {
            let ms = u64::try_from(waited.as_millis()).unwrap_or(u64::MAX);
            let what = format!(
                "inode {ino}: a WRITE of process {process} waits for a slab of the pagepool"
            );
            all.push((ms, what));
        }
        let parked = self.parked_count();
        if parked > 0 {
            all.push((
                0,
                format!("{parked} requests, replies and messages wait for the node's lease"),
            ));
        }
        all.sort_by_key(|(ms, _)| std::cmp::Reverse(*ms));
        let list: Vec<String> = all
            .iter()
            .map(|(ms, what)| format!("{{\"waited_ms\":{ms},\"what\":{}}}", quoted(what)))
            .collect();
        format!("{{\"waiters\":[{}]}}", list.join(","))
    }

    /// WRITEs for which the pagepool has no slab; none before the mount.
    fn waiting_writes(&self) -> Vec<(InodeId, u32, Duration)> {
        let replier = self.replier.get();
        replier.map_or_else(Vec::new, |replier| replier.waiting_writes())
    }

    /// What this node as owner holds of an inode: attributes, layout, and where the bytes lie.
    fn inode_json(&self, number: &str) -> String {
        let error = |text: &str| format!("{{\"error\":{}}}", quoted(text));
        let Ok(number) = number.trim().parse().map(InodeId::from_raw) else {
            return error("an inode is a number, as stat shows it");
        };
        let owner = self.owner(number.shard());
        if owner != self.me.node {
            let said = quoted(&format!("node {} owns this inode: ask there", owner.0));
            return format!("{{\"error\":{said},\"owner\":{}}}", owner.0);
        }
        if !self.take_in_now(number) {
            return error("this inode cannot be read: see the log");
        }
        let shard = &self.shards[usize::from(number.shard().0)];
        let slice = lock(shard.as_ref().expect("an owner has its shards"));
        let Some(attr) = slice.shard.attr(number) else {
            return error("no such inode");
        };
        let extent = |e: &types::Extent| {
            let at = |l: &types::Location| format!("[{},{}]", l.nsd.0, l.sector);
            let locations: Vec<String> = e.locations.iter().map(at).collect();
            let (first, count) = (e.file_sector, e.length);
            let locations = locations.join(",");
            format!("{{\"sector\":{first},\"sectors\":{count},\"at\":[{locations}]}}")
        };
        let extents = slice.shard.extents(number).into_iter().flatten();
        let (piece_count, piece_size) = slice.shard.pieces(number);
        let part_count = slice.shard.part_count_of(number);
        let mut listed: Vec<String> = extents.take(EXTENTS_SHOWN_MAX + 1).map(extent).collect();
        let is_cut = listed.len() > EXTENTS_SHOWN_MAX;
        listed.truncate(EXTENTS_SHOWN_MAX);
        format!(
            "{{\"inode\":{},\"kind\":\"{:?}\",\"size\":{},\"sectors\":{},\"links\":{},\"change\":{},\
             \"size_generation\":{},\"layout\":{},\"parts\":{part_count},\"pieces\":{piece_count},\"piece_bytes\":{piece_size},\
             \"more_extents\":{is_cut},\"extents\":[{}]}}",
            attr.ino.raw(),
            attr.kind,
            attr.size,
            attr.sector_count,
            attr.nlink,
            attr.change,
            attr.size_generation,
            quoted(&attr.layout.to_string()),
            listed.join(","),
        )
    }

    fn counters_json(&self) -> String {
        let get = |c: &std::sync::atomic::AtomicU64| c.load(Ordering::Relaxed);
        let c = &self.counters;
        let mut pairs: Vec<(String, u64)> = vec![
            ("requests".into(), get(&c.requests)),
            ("replies".into(), get(&c.replies)),
            ("notifications".into(), get(&c.notices)),
            ("messages_sent".into(), c.messages.iter().map(get).sum()),
            ("revokes".into(), get(&c.revokes)),
            ("messages_unsent".into(), get(&c.unsent)),
            ("journal_bytes".into(), get(&c.journal_size)),
            ("journal_flushes".into(), get(&c.journal_flushes)),
            ("allocations".into(), crate::alloc::count()),
        ];
        for (name, count) in CLASS_NAMES.iter().zip(&c.messages) {
            pairs.push((format!("sent_{name}"), get(count)));
        }
        self.space_counters(&mut pairs);
        let pool = self.pool.counters();
        pairs.push(("pool_frames".into(), pool.frame_count));
        pairs.push(("pool_frames_free".into(), pool.free_frame_count));
        pairs.push(("copied_bytes".into(), pool.copied_size));
        let loops = self.loops.counters();
        pairs.push(("loop_sleeps".into(), loops.sleep_count));
        for (nsd, disk) in &self.disks {
            let d = disk.counters();
            pairs.push((format!("nsd{}_reads", nsd.0), d.read_count));
            pairs.push((format!("nsd{}_read_bytes", nsd.0), d.read_size));
            pairs.push((format!("nsd{}_writes", nsd.0), d.write_count));
            pairs.push((format!("nsd{}_write_bytes", nsd.0), d.write_size));
            pairs.push((format!("nsd{}_flushes", nsd.0), d.flush_count));
        }
        if let Some(net) = self.net.get() {
            let n = net.counters();
            let names = ["handshake", "cluster", "nsd", "token", "node"];
            for (class, name) in names.iter().enumerate() {
                pairs.push((format!("frames_sent_{name}"), n.sent_counts[class]));
                pairs.push((format!("frames_received_{name}"), n.received_counts[class]));
            }
            pairs.push(("net_sent_bytes".into(), n.sent_size));
            pairs.push(("net_received_bytes".into(), n.received_size));
        }
        for (name, value) in self.operation_counts() {
            pairs.push((format!("op_{name}"), value));
        }
        let (voluntary, involuntary) = context_switches();
        pairs.push(("context_switches_voluntary".into(), voluntary));
        pairs.push(("context_switches_involuntary".into(), involuntary));
        let list: Vec<String> = pairs
            .iter()
            .map(|(name, value)| format!("{}:{value}", quoted(name)))
            .collect();
        format!("{{{}}}", list.join(","))
    }
}

impl Daemon {
    /// Counters of sectors and inodes: this node's hands, what it supplies as owner, and what it knows.
    fn space_counters(&self, pairs: &mut Vec<(String, u64)>) {
        let mut sum = data::hand::HandCounters::default();
        let mut pool = data::grants::PoolCounts::default();
        self.hands.each(|_, hand| {
            let c = hand.counters();
            sum.asks += c.asks;
            sum.granted += c.granted;
            sum.returned += c.returned;
            sum.spent += c.spent;
            sum.burnt += c.burnt;
            sum.recalls += c.recalls;
            sum.short += c.short;
            let p = hand.pool().counts();
            pool.free += p.free;
            pool.burnt += p.burnt;
        });
        let supplied = lock(&self.log).supply_counters;
        let (rounds, recalls) = lock(&self.regions).counters();
        let destage = self.destage.counters();
        let (mut known, mut cold, mut loaded, mut refused) = (0, 0, 0, 0);
        let (mut listed, mut shown, mut filled, mut handles) = (0, 0, 0, 0);
        let mut rewrites = client::rewrite::RewriteCounts::default();
        for slice in &self.slices {
            let slice = lock(slice);
            let seen = slice.gauges();
            known += seen.inode_count as u64;
            handles += seen.handle_count as u64;
            rewrites.add(seen.rewrites);
            loaded += seen.loaded_file_count;
            filled += seen.filled_file_count;
            listed += seen.listed_directory_count;
            shown += seen.shown_directory_count;
            refused += seen.refused_count;
            cold += slice.cold_count() as u64;
        }
        let losses = self.losses();
        let shards = self.shards.iter().flatten();
        let tokens = shards.map(|shard| lock(shard).token_counts().0 as u64);
        let tokens = tokens.sum();
        let read = self.keys.counters();
        let (evicted, resident) = self.keys.evicted_and_resident();
        let all = [
            ("metadata_resident_bytes_now", resident),
            ("metadata_evictions", evicted),
            ("metadata_misses", read.misses),
            ("metadata_page_reads", read.pages),
            ("metadata_stale_reads", read.stale),
            ("metadata_read_failures", read.failures),
            ("metadata_unreadable", read.told),
            ("tokens_granted_now", tokens),
            ("inodes_known_now", known),
            ("open_handles_now", handles),
            ("files_loaded_ahead", loaded),
            ("files_filled", filled),
            ("directories_listed_ahead", listed),
            ("directories_shown_ahead", shown),
            ("refused_commits", refused),
            ("lost_pages", losses.pages),
            ("lost_write_backs", losses.write_backs),
            ("clipped_write_backs", losses.clipped),
            ("lost_pages_of_unknown_files", losses.unknown_files),
            ("rewrite_blocks", rewrites.blocks),
            ("rewrite_bytes", rewrites.bytes),
            ("rewrite_parts_before", rewrites.parts_before),
            ("rewrite_parts_after", rewrites.parts_after),
            ("rewrite_left", rewrites.left),
            ("rewrite_given_up", rewrites.given_up),
            ("inodes_forgotten_now", cold),
            ("space_hand_asks", sum.asks),
            ("space_hand_granted", sum.granted),
            ("space_hand_returned", sum.returned),
            ("space_hand_spent", sum.spent),
            ("space_hand_burnt", sum.burnt),
            ("space_hand_recalls", sum.recalls),
            ("space_hand_short", sum.short),
            ("space_hand_free_now", pool.free),
            ("space_hand_burnt_now", pool.burnt),
            ("space_owner_asks", supplied.asks),
            ("space_owner_granted", supplied.granted),
            ("space_owner_given_back", supplied.given_back),
            ("space_owner_no_space", supplied.no_space),
            ("space_owner_rounds", rounds),
            ("space_owner_recalls", recalls),
            ("space_pieces_debt", self.piece_debt()),
            ("space_orphans_now", self.orphan_count()),
            ("space_destage_jobs", destage[0]),
            ("space_destage_sectors", destage[1]),
            ("space_destage_changed_sectors", destage[2]),
            ("space_destage_failures", destage[3]),
            ("space_regions_taken", supplied.regions_taken),
            ("space_regions_given", supplied.regions_given),
        ];
        pairs.extend(all.map(|(name, value)| (name.to_owned(), value)));
        self.checkpoint_counters(pairs);
    }

    /// Counters of checkpoints and of the room for their pages.
    fn checkpoint_counters(&self, pairs: &mut Vec<(String, u64)>) {
        let kept = self.checkpoints.counters();
        let pages = lock(&self.log).space.pages().counts();
        let all = [
            ("checkpoints", kept.checkpoints),
            ("checkpoint_rounds", kept.rounds),
            ("checkpoint_keys", kept.keys),
            ("checkpoint_pages", kept.pages),
            ("checkpoint_failures", kept.failures),
            ("checkpoint_evacuations", kept.evacuations),
            ("checkpoint_page_sectors_now", pages.total),
            ("checkpoint_page_sectors_free_now", pages.free),
        ];
        pairs.extend(all.map(|(name, value)| (name.to_owned(), value)));
    }

    /// Inodes without a name that this node keeps for those who have them open.
    fn orphan_count(&self) -> u64 {
        let shards = self.shards.iter().flatten();
        shards.map(|s| lock(s).shard.orphans().count() as u64).sum()
    }
}

/// Of all threads of this process.
fn context_switches() -> (u64, u64) {
    // SAFETY: an all-zero rusage is a valid value, and getrusage writes only to it.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: `usage` lives during the call.
    unsafe { libc::getrusage(libc::RUSAGE_SELF, &raw mut usage) };
    let count = |value: libc::c_long| u64::try_from(value).unwrap_or(0);
    (count(usage.ru_nvcsw), count(usage.ru_nivcsw))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listening_ends_without_the_socket_path() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("control");
        let listener = Arc::new(listen(&path).expect("bound"));
        let (sender, ended) = std::sync::mpsc::channel();
        let accepting = Arc::clone(&listener);
        std::thread::spawn(move || {
            let outcome = accepting.accept().map(drop);
            sender.send(outcome).expect("the test waits");
        });
        std::fs::remove_file(&path).expect("it is there");
        end_listening(&listener);
        let outcome = ended.recv_timeout(Duration::from_secs(10));
        outcome
            .expect("accept ended")
            .expect_err("nobody connected");
    }
}

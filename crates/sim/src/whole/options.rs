//! Options of a run of the whole, drawn from its seed.

use node::meta::parts::Bounds;
use stdx::Prng;

use super::node::Canary;

/// Sectors that no run fills: 4 GiB.
const PLENTY: u64 = 1 << 20;

/// What a run does and suffers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(clippy::struct_excessive_bools, reason = "independent features")]
pub struct Options {
    /// Nodes; each has an NSD, a journal and some shards.
    pub node_count: usize,
    /// Shards, owned in turn.
    pub shard_count: usize,
    /// Node that made the directory, and so owns all in it.
    pub home: usize,
    /// Files.
    pub file_count: usize,
    /// Threads of applications on each node.
    pub thread_count: usize,
    /// System calls of each thread.
    pub call_count: usize,
    /// Threads that read the FUSE queue.
    pub request_thread_count: usize,
    /// Threads that perform notifications.
    pub notify_thread_count: usize,
    /// Longest delay of a message in ticks.
    pub delay_max: u64,
    /// Longest delay of a disk in ticks.
    pub disk_delay_max: u64,
    /// In so many ticks a link breaks once; 0: never.
    pub break_ticks: u64,
    /// Of a thousand messages, so many are lost: a full queue drops what is sent.
    pub loss_per_mille: u64,
    /// Files and directories that lose their names while they are open.
    pub hold_count: usize,
    /// Every so many-th of these is made without a name; 0: none.
    pub nameless_every: usize,
    /// Calls of applications that lock a file; 0: none.
    pub lock_count: u32,
    /// Owners ask for idle tokens back, as if their tables were nearly full.
    pub has_reclaims: bool,
    /// Nodes that crash and restart.
    pub crash_count: usize,
    /// Some of these say so before, and wait for the others.
    pub says_farewell: bool,
    /// Where names are.
    pub names: Names,
    /// Applications close files and open them again.
    pub has_doors: bool,
    /// Pages that read-ahead adds at most.
    pub read_ahead: usize,
    /// Files are mapped, loaded from and stored to.
    pub has_mappings: bool,
    /// Of a hundred folio invalidations by a notification, how many fail.
    pub busy_percent: u64,
    /// splice(2) is used.
    pub has_splice: bool,
    /// Files are truncated.
    pub has_truncate: bool,
    /// O_APPEND is used.
    pub has_append: bool,
    /// fsync is called.
    pub has_fsync: bool,
    /// Of a hundred calls, how many concern names.
    pub name_percent: u64,
    /// Disks have volatile caches.
    pub has_volatile_cache: bool,
    /// Frames of each pagepool.
    pub frame_count: u64,
    /// Inodes that a node may know without using them.
    pub inode_count_max: usize,
    /// The kernels take PRUNE.
    pub has_prune: bool,
    /// Sectors of each NSD that files may have; where they are few, writes may be refused for want of room.
    pub data_sectors: u64,
    /// Sectors of a region, where they are few.
    pub region_sectors: u32,
    /// Free sectors that an owner grants to nobody.
    pub space_reserve: u64,
    /// Pages that are promised to a file at most, where sectors are few.
    pub promise_pages: u64,
    /// Sectors of each journal.
    pub journal_sectors: u64,
    /// Steps per tick: how fast machines are, compared with the network.
    pub steps_per_tick: u64,
    /// Rounds of checkpoints are begun every so many ticks; 0: never. (Journals are never full here.)
    pub round_ticks: u64,
    /// Pages of trees leave regions all the time (for runs that ask for it).
    pub evacuates: bool,
    /// Clean inodes leave memory every so many ticks; 0: never.
    pub evict_ticks: u64,
    /// Files are loaded before anybody opens them every so many ticks; 0: only where the client sees that they are read in turn.
    pub load_ticks: u64,
    /// Blocks of several extents are rewritten when they have rested for so many milliseconds; 0: never.
    pub rewrite_ms: u64,
    /// Now and then owners have no room for pieces (`client`'s `refused`).
    pub refuses_pieces: bool,
    /// When directories are split and joined; `None`: never.
    pub part_bounds: Option<Bounds>,
    /// Of a thousand reads of trees' pages so many fail, or bring a wrong bit.
    pub page_fault_per_mille: u64,
    /// Longest delay of the read of a page in ticks; 0: as of others.
    pub page_delay_max: u64,
    /// Once, the pages of one node cannot be read for so many ticks; 0: never.
    pub page_outage_ticks: u64,
    /// How the nodes are broken.
    pub canary: Canary,
}

/// In which directories names are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Names {
    /// The last one is in a directory of its own, of the same node; else all are in that of the files.
    pub are_apart: bool,
    /// Where there are two, node 0 alone makes names and moves them to the second one; the others take them from there.
    pub is_published: bool,
}

impl Options {
    /// Draws them.
    pub fn draw(prng: &mut Prng, canary: Canary) -> Self {
        let mut between =
            |low: u64, high: u64| usize::try_from(prng.between(low, high)).expect("small numbers");
        let node_count = between(2, 3);
        let shard_count = between(2, 5).max(node_count);
        let home = between(0, node_count as u64 - 1);
        let file_count = between(1, 2);
        let thread_count = between(1, 3);
        let call_count = between(8, 25);
        let request_thread_count = between(1, 2);
        let notify_thread_count = between(1, 3);
        let read_ahead = between(0, 2);
        let has_mappings = prng.chance(1, 2);
        let breaks = prng.chance(1, 3);
        let crash_count = pick(prng, &[0, 0, 0, 1, 2]);
        // Drawn aside: it changes nothing else of a seed.
        let mut aside = Prng::new(!prng.clone().next_u64());
        let frame_count = draw_frame_count(&mut aside, thread_count);
        let hold_count = pick(&mut aside, &[0, 0, 0, 1, 3]);
        let has_reclaims = aside.chance(1, 4);
        let is_little = aside.chance(1, 5);
        let (data_sectors, region_sectors, space_reserve) = draw_space(&mut aside, is_little);
        let mut round_ticks = pick(&mut aside, &[0, 0, 1, 3, 20]);
        if canary != Canary::default() && !canary.loses_pages && !canary.stale_keys {
            // Which seeds show what is switched off was found without.
            round_ticks = 0;
        }
        let inode_count_max = draw_inode_count_max(&mut aside, canary);
        let evict_ticks = draw_evict_ticks(&mut aside, round_ticks, canary);
        let (data_sectors, region_sectors) = match is_little && round_ticks > 0 {
            true => (data_sectors + draw_page_sectors(&mut aside), 8),
            false => (data_sectors, region_sectors),
        };
        let has_faults = evict_ticks > 0 && canary == Canary::default();
        let [page_fault_per_mille, page_delay_max, page_outage_ticks] =
            draw_page_faults(&mut aside, has_faults);
        let has_prune = aside.chance(1, 2);
        // A store through a mapping may be lost for want of room: there is nothing to be judged.
        let has_mappings = has_mappings && !is_little;
        Self {
            node_count,
            shard_count,
            home,
            file_count,
            thread_count,
            call_count,
            request_thread_count,
            notify_thread_count,
            delay_max: pick(prng, &[1, 5, 40]),
            disk_delay_max: pick(prng, &[1, 4, 30]),
            break_ticks: if breaks {
                pick(prng, &[50, 300, 1000])
            } else {
                0
            },
            loss_per_mille: if breaks { pick(prng, &[0, 0, 20]) } else { 0 },
            hold_count,
            nameless_every: 3,
            // For runs that ask for them: what seeds show was found without.
            lock_count: 0,
            has_reclaims,
            crash_count,
            read_ahead,
            has_mappings,
            busy_percent: if has_mappings {
                pick(prng, &[0, 25])
            } else {
                0
            },
            has_splice: prng.chance(1, 2),
            has_truncate: prng.chance(1, 2),
            has_append: prng.chance(1, 2),
            has_fsync: prng.chance(1, 2),
            name_percent: pick(prng, &[0, 15, 60]),
            has_volatile_cache: prng.chance(1, 3),
            frame_count,
            inode_count_max,
            has_prune,
            data_sectors,
            region_sectors,
            space_reserve,
            promise_pages: crate::model::PAGE_COUNT as u64,
            journal_sectors: 2048,
            round_ticks,
            evacuates: false,
            evict_ticks,
            rewrite_ms: draw_rewrite_ms(&mut aside, canary),
            part_bounds: draw_part_bounds(&mut aside, canary),
            load_ticks: draw_load_ticks(&mut aside, is_little, canary),
            refuses_pieces: draw_refuses_pieces(&mut aside, canary),
            says_farewell: draw_farewell(&mut aside, canary),
            has_doors: draw_doors(&mut aside, canary),
            names: draw_names(&mut aside, canary),
            page_fault_per_mille,
            page_delay_max,
            page_outage_ticks,
            steps_per_tick: pick(prng, &[4, 16, 64]),
            canary,
        }
    }
}

impl Options {
    /// Writes may be refused for want of room.
    pub const fn has_little_space(&self) -> bool {
        self.data_sectors < PLENTY
    }
}

/// Sectors of an NSD, of a region, and those that an owner keeps back.
fn draw_space(aside: &mut Prng, is_little: bool) -> (u64, u32, u64) {
    if !is_little {
        return (PLENTY, 16 << 10, 256);
    }
    let sectors = pick(aside, &[2, 3, 4, 6, 8]);
    (sectors, pick(aside, &[1, 2, 4]), pick(aside, &[0, 1]))
}

/// Pages take regions of their own.
fn draw_page_sectors(aside: &mut Prng) -> u64 {
    pick(aside, &[24, 32, 48])
}

/// The smallest has room for a write of each thread and one of the kernel: were all of it in the hands of writes that wait for a
/// revoke, no request would be taken in, and the revoke may wait for one.
fn draw_frame_count(aside: &mut Prng, thread_count: usize) -> u64 {
    let least = 12 + 4 * thread_count as u64;
    let frames = [1 << 14, 1 << 14, 1 << 14, least, least + 4, least + 12];
    pick(aside, &frames)
}

fn draw_inode_count_max(prng: &mut Prng, canary: Canary) -> usize {
    let drawn = pick(prng, &[1 << 16, 1 << 16, 0, 16]);
    match canary == Canary::default() {
        true => drawn,
        false => 1 << 16,
    }
}

/// Only what is in trees leaves memory.
fn draw_evict_ticks(aside: &mut Prng, round_ticks: u64, canary: Canary) -> u64 {
    let ticks = pick(aside, &[0, 1, 1, 7]);
    match round_ticks == 0 || (canary != Canary::default() && !canary.stale_keys) {
        true => 0,
        false => ticks,
    }
}

fn draw_rewrite_ms(aside: &mut Prng, canary: Canary) -> u64 {
    let ms = pick(aside, &[0, 1, 50]);
    match canary == Canary::default() {
        true => ms,
        false => 0,
    }
}

/// With a few sectors writers starve one another more easily if each of their questions may have to wait for one more.
fn draw_load_ticks(aside: &mut Prng, is_little: bool, canary: Canary) -> u64 {
    let ticks = pick(aside, &[0, 1, 5, 50]);
    match canary == Canary::default() && !is_little {
        true => ticks,
        false => 0,
    }
}

fn draw_refuses_pieces(aside: &mut Prng, canary: Canary) -> bool {
    let refuses = aside.chance(1, 3);
    refuses && canary == Canary::default()
}

fn draw_farewell(aside: &mut Prng, canary: Canary) -> bool {
    let says = aside.chance(1, 2);
    says && (canary == Canary::default() || canary.skips_sweeps)
}

fn draw_doors(aside: &mut Prng, canary: Canary) -> bool {
    let has_doors = aside.chance(1, 2);
    has_doors && (canary == Canary::default() || canary.overtakes_fills)
}

/// What a crash loses is judged by one owner's order, so both directories are its.
fn draw_names(aside: &mut Prng, canary: Canary) -> Names {
    Names {
        are_apart: aside.chance(1, 2) && canary == Canary::default(),
        is_published: aside.chance(1, 2),
    }
}

/// There are few names: the smallest bounds split and join them all the time.
fn draw_part_bounds(aside: &mut Prng, canary: Canary) -> Option<Bounds> {
    let bounds = pick(aside, &[None, Some((2, 1)), Some((2, 1)), Some((4, 2))]);
    let bounds = bounds.map(|(split, join)| Bounds::of(split, join));
    bounds.filter(|_| canary == Canary::default() || canary.old_parts)
}

/// Most reads that fail do so once; now and then a disk is away, for less time than an owner waits.
fn draw_page_faults(aside: &mut Prng, is_any: bool) -> [u64; 3] {
    let per_mille = pick(aside, &[0, 50, 400]);
    let delay_max = pick(aside, &[0, 0, 2000]);
    let outage_ticks = pick(aside, &[0, 0, 300, 6000]);
    match is_any {
        true => [per_mille, delay_max, outage_ticks],
        false => [0; 3],
    }
}

fn pick<T: Copy>(prng: &mut Prng, all: &[T]) -> T {
    *prng.pick(all).expect("some to choose from")
}

//! Sectors on real mounts: a small file system is filled to the brim from two nodes, and every sector is accounted
//! for afterwards, also when nodes are killed in the middle.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{ErrorKind, Read as _, Write as _};
use std::os::unix::fs::FileExt as _;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::lab::{LIMIT, Lab, bounded, can_run};
use crate::node::Node;

impl Lab {
    /// Free sectors as df on this node says.
    fn free(&self, node: usize) -> u64 {
        self.stat_fs(node, "%f")
    }

    pub(crate) fn stat_fs(&self, node: usize, what: &str) -> u64 {
        let mount = self.mount(node);
        let words = ["stat", "-f", "-c", what, mount.to_str().unwrap()];
        let output = bounded(LIMIT, &words);
        assert!(output.status.success(), "{output:?}");
        let text = String::from_utf8(output.stdout).unwrap();
        text.trim().parse().unwrap()
    }

    /// What both nodes say of a state, summed over all NSDs.
    pub(crate) fn sum(&self, what: &str) -> u64 {
        let of_node = |node| {
            let space = self.dump(node, "space");
            let nsds = space["nsds"].as_array().unwrap().clone();
            nsds.iter().map(|n| n[what].as_u64().unwrap()).sum::<u64>()
        };
        of_node(1) + of_node(2)
    }

    /// Every sector that counts as used belongs to a file, and only to one.
    pub(crate) fn check_walk(&self) {
        for node in [1, 2] {
            let walk = self.dump(node, "space")["walk"].clone();
            for what in ["leaked", "missing", "twice"] {
                assert_eq!(walk[what], 0, "node {node}: {walk}");
            }
        }
    }

    /// Waits until nothing is in anybody's hands but files.
    pub(crate) fn settle(&self) {
        self.await_none(&["granted", "pending", "quarantined"]);
    }

    /// The same where there are no files: what was removed a moment ago has given its sectors back, too.
    pub(crate) fn settle_empty(&self) {
        self.await_none(&["granted", "pending", "quarantined", "used"]);
    }

    /// Waits until no sector is in one of these states.
    fn await_none(&self, states: &[&str]) {
        let until = Instant::now() + Duration::from_secs(40);
        loop {
            if states.iter().all(|what| self.sum(what) == 0) {
                return;
            }
            let dump = || {
                let all = [1, 2].map(|node| {
                    let counters = self.dump(node, "counters");
                    format!(
                        "{}\n{}",
                        self.dump(node, "space"),
                        space_counters(&counters)
                    )
                });
                all.join("\n")
            };
            assert!(Instant::now() < until, "sectors stay: {}", dump());
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Bytes that wait in metadata for their sectors.
    fn piece_debt(&self) -> u64 {
        let debt = |node| self.dump(node, "counters")["space_pieces_debt"].as_u64();
        debt(1).unwrap() + debt(2).unwrap()
    }

    /// Waits until all pieces lie in sectors: there is room.
    fn move_pieces(&self) {
        let until = Instant::now() + Duration::from_secs(20);
        while self.piece_debt() > 0 {
            assert!(Instant::now() < until, "pieces stay: {}", self.piece_debt());
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

/// The bytes of a file follow from its name's seed: a random sector, stamped with the number of each sector.
fn bytes(seed: u64, size: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut sector = Vec::with_capacity(4096);
    while sector.len() < 4096 {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        sector.extend(state.to_le_bytes());
    }
    let mut all = sector.repeat(size.div_ceil(4096));
    for (number, sector) in all.chunks_mut(4096).enumerate() {
        sector[..8].copy_from_slice(&number.to_le_bytes());
    }
    all.truncate(size);
    all
}

/// What fsync acknowledged: path below the mount, and the seed and size of its bytes.
type Acknowledged = BTreeMap<String, (u64, usize)>;

/// Writes files until there is no more room.
pub(crate) struct Filler<'a> {
    lab: &'a Lab,
    node: usize,
    seed: u64,
    files: Acknowledged,
}

impl<'a> Filler<'a> {
    pub(crate) fn new(lab: &'a Lab, node: usize) -> Self {
        Self {
            lab,
            node,
            seed: node as u64 * 1_000_000,
            files: BTreeMap::new(),
        }
    }

    fn write(&mut self, size: usize) -> std::io::Result<()> {
        self.seed += 1;
        let name = format!("d{}-{}/f{}", self.node, self.seed % 4, self.seed);
        let path = self.lab.mount(self.node).join(&name);
        let write = || {
            let mut file = File::create(&path)?;
            for part in bytes(self.seed, size).chunks(100_000) {
                file.write_all(part)?;
            }
            file.sync_all()
        };
        let result = write();
        match &result {
            Ok(()) => {
                self.files.insert(name, (self.seed, size));
            }
            Err(_) => {
                // What was not acknowledged is not kept; a dead mount has nothing to remove.
                let _ = fs::remove_file(&path);
            }
        }
        result
    }

    /// Writes files until the smallest meets ENOSPC. `is_over`: stop earlier.
    fn fill(&mut self, is_over: &AtomicBool) -> u64 {
        let mut full = 0;
        for step in 0.. {
            let largest = [900_000, 300_000, 60_000, 4096][full];
            let size = if full == 3 {
                4096
            } else {
                4096 + step * 37_777 % largest
            };
            match self.write(size) {
                Ok(()) => {}
                Err(error) if error.kind() == ErrorKind::StorageFull => {
                    full += 1;
                    if full == 4 {
                        return u64::try_from(step).unwrap();
                    }
                }
                Err(error) if is_over.load(Ordering::Relaxed) => {
                    eprintln!("node {} was killed: {error}", self.node);
                    return 0;
                }
                Err(error) => panic!("node {}: {error}\n{}", self.node, self.lab.logs()),
            }
        }
        unreachable!("a disk is full some time")
    }

    /// Removes what it has written.
    pub(crate) fn remove_all(&self) {
        for name in self.files.keys() {
            fs::remove_file(self.lab.mount(self.node).join(name)).unwrap();
        }
    }

    fn bytes(&self) -> usize {
        self.files.values().map(|(_, size)| size).sum()
    }
}

pub(crate) fn make_directories(lab: &Lab) {
    for node in [1, 2] {
        for directory in 0..4 {
            let path = lab.mount(node).join(format!("d{node}-{directory}"));
            fs::create_dir(path).unwrap();
        }
    }
}

pub(crate) fn fill_both(fillers: &mut [Filler<'_>; 2]) {
    let never = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for filler in fillers.iter_mut() {
            let never = &never;
            scope.spawn(move || filler.fill(never));
        }
    });
}

fn verify(lab: &Lab, files: &Acknowledged) {
    for (name, (seed, size)) in files {
        let expected = bytes(*seed, *size);
        for node in [1, 2] {
            let found = fs::read(lab.mount(node).join(name));
            let found =
                found.unwrap_or_else(|e| panic!("node {node}: {name}: {e}\n{}", lab.logs()));
            assert!(
                found == expected,
                "node {node}: {name} is not what was acknowledged\n{}",
                lab.logs()
            );
        }
    }
}

fn remove(lab: &Lab, files: &mut Acknowledged, is_gone: impl Fn(usize) -> bool) -> usize {
    let names: Vec<String> = files.keys().cloned().collect();
    let mut removed = 0;
    for (index, name) in names.into_iter().enumerate() {
        if is_gone(index) {
            // Each half by the node that did not write it.
            let node = if name.starts_with("d1") { 2 } else { 1 };
            fs::remove_file(lab.mount(node).join(&name)).unwrap();
            removed += files.remove(&name).unwrap().1;
        }
    }
    removed
}

/// Sectors of the regions that trees have.
fn of_trees(lab: &Lab) -> u64 {
    let of_node = |node| {
        let sectors = lab.dump(node, "counters")["checkpoint_page_sectors_now"].as_u64();
        sectors.unwrap()
    };
    of_node(1) + of_node(2)
}

/// df of both nodes with the regions that trees have, and these: at one moment, once the answers of others are not older than the
/// last change. A checkpoint that ends between two looks would be counted twice or not at all.
fn frees_and_pages(lab: &Lab) -> ([u64; 2], u64) {
    let until = Instant::now() + Duration::from_secs(20);
    loop {
        std::thread::sleep(Duration::from_millis(250));
        let before = of_trees(lab);
        let free = [lab.free(1), lab.free(2)];
        let pages = of_trees(lab);
        if before == pages && free[0] == free[1] {
            return (free.map(|free| free + pages), pages);
        }
        assert!(
            Instant::now() < until,
            "free: {free:?}, of trees: {before}, then {pages}"
        );
    }
}

/// See `frees_and_pages`.
pub(crate) fn frees(lab: &Lab) -> [u64; 2] {
    frees_and_pages(lab).0
}

/// What both owners keep for themselves when it is full, 256 sectors each (with what is given back too late for somebody most often
/// below 600).
const FREE_MAX: u64 = 1024;
/// Sectors that df says are left when it is full.
const AVAILABLE_MAX: u64 = 512;

#[test]
fn a_full_file_system_loses_nothing_and_gives_all_sectors_back() {
    if !can_run() {
        return;
    }
    let lab = Lab::up("256M", "file");
    make_directories(&lab);
    let begin = frees(&lab);
    assert_eq!(begin[0], begin[1], "df is the same on both nodes");
    let mut fillers = [Filler::new(&lab, 1), Filler::new(&lab, 2)];
    let mut all: Acknowledged = BTreeMap::new();
    let mut fill_count = 0;
    let (full, pages, available) = loop {
        fill_both(&mut fillers);
        fill_count += 1;
        lab.check_walk();
        for filler in &mut fillers {
            assert!(fill_count > 1 || !filler.files.is_empty());
            all.append(&mut filler.files);
        }
        verify(&lab, &all);
        // Who has pieces that find no sectors tries again and again, and so keeps the last few that are left in hand.
        lab.await_none(&["pending", "quarantined"]);
        let (full, pages) = frees_and_pages(&lab);
        let available = lab.stat_fs(1, "%a");
        // What comes back when those who fill have met ENOSPC is there for whoever asks again.
        let is_full = full[0] - pages <= FREE_MAX && available <= AVAILABLE_MAX;
        if is_full || fill_count == 3 {
            break (full, pages, available);
        }
    };
    let data: u64 = all
        .values()
        .map(|(_, size)| size.div_ceil(4096) as u64)
        .sum();
    let used = begin[0] - full[0];
    let in_pieces = lab.piece_debt();
    eprintln!(
        "{} files of {fill_count} fills, {data} sectors of data, {used} used, {in_pieces} bytes in pieces, {} free or of trees ({pages}) of {}",
        all.len(),
        full[0],
        begin[0]
    );
    // Pieces that found no sector wait in metadata, at most 1 MiB (and the last Commit) in each of the 8 shards.
    assert!(in_pieces <= 8 * ((1 << 20) + (64 << 10)), "{in_pieces}");
    assert!(
        used + in_pieces.div_ceil(4096) >= data && used <= data + data / 17,
        "{used} for {data}, {in_pieces} bytes in pieces"
    );
    assert!(
        full[0] - pages <= FREE_MAX,
        "{} of {} are free, {pages} of them of trees",
        full[0],
        begin[0]
    );
    assert!(
        available <= AVAILABLE_MAX,
        "{available} are said to be left"
    );
    // Room again at once.
    let removed = remove(&lab, &mut all, |index| index % 2 == 0);
    lab.move_pieces();
    fill_both(&mut fillers);
    let again: usize = fillers.iter().map(Filler::bytes).sum();
    assert!(again > removed / 10 * 9, "{again} of {removed}");
    for filler in &mut fillers {
        all.append(&mut filler.files);
    }
    verify(&lab, &all);
    lab.check_walk();
    remove(&lab, &mut all, |_| true);
    lab.settle_empty();
    lab.check_walk();
    assert_eq!(lab.sum("used"), 0);
    assert_eq!(frees(&lab), begin, "{}", lab.dump(1, "space"));
    // A node that does not write has nothing to recall for long.
    let counters = [1, 2].map(|node| lab.dump(node, "counters"));
    eprintln!(
        "{}\n{}",
        space_counters(&counters[0]),
        space_counters(&counters[1])
    );
}

fn space_counters(counters: &Value) -> String {
    let all = counters.as_object().unwrap().iter();
    let mut of_space: Vec<String> = all
        .filter(|(name, _)| name.starts_with("space_"))
        .map(|(name, value)| format!("{}={value}", &name[6..]))
        .collect();
    of_space.sort();
    of_space.join(" ")
}

#[test]
fn nodes_killed_while_it_fills_leak_no_sector() {
    if !can_run() {
        return;
    }
    let lab = Lab::up("256M", "file");
    make_directories(&lab);
    let begin = frees(&lab);
    let mut all: Acknowledged = BTreeMap::new();
    for victim in [2u64, 1] {
        let is_over = AtomicBool::new(false);
        let mut fillers = [Filler::new(&lab, 1), Filler::new(&lab, 2)];
        for filler in &mut fillers {
            filler.seed += 10_000 * victim;
        }
        std::thread::scope(|scope| {
            for filler in &mut fillers {
                let is_over = &is_over;
                scope.spawn(move || filler.fill(is_over));
            }
            std::thread::sleep(Duration::from_millis(1500));
            is_over.store(true, Ordering::Relaxed);
            let name = format!("n{victim}");
            lab.gupfs(&["kill", &name]);
            lab.gupfs(&["start", &name]);
        });
        for filler in &mut fillers {
            all.append(&mut filler.files);
        }
        verify(&lab, &all);
        lab.check_walk();
        // Room for the next round.
        remove(&lab, &mut all, |index| index % 3 != 0);
    }
    assert!(!all.is_empty());
    for node in [1, 2] {
        // What was being written when its node was killed is there or not.
        for directory in 0..4 {
            let path = lab.mount(node).join(format!("d{node}-{directory}"));
            for entry in fs::read_dir(path).unwrap() {
                fs::remove_file(entry.unwrap().path()).unwrap();
            }
        }
    }
    lab.settle_empty();
    lab.check_walk();
    assert_eq!(lab.sum("used"), 0);
    assert_eq!(frees(&lab), begin, "{}", lab.dump(1, "space"));
}

/// A page of the file of small writes: its number and how often it was written, all over it.
fn page(number: u64, version: u64) -> Vec<u8> {
    let stamp = [number.to_le_bytes(), version.to_le_bytes()].concat();
    stamp.repeat(4096 / 16)
}

/// The version of a page, which is whole.
fn version_of(found: &[u8], number: u64) -> u64 {
    let version = u64::from_le_bytes(found[8..16].try_into().unwrap());
    let is_empty = found.iter().all(|b| *b == 0);
    assert!(
        is_empty || found == page(number, version),
        "page {number} is torn or another's: {:?}",
        &found[..16]
    );
    version
}

fn check_pages(lab: &Lab, node: usize, versions: &[AtomicU64]) {
    let mut file = File::open(lab.mount(node).join("d1-0/pages")).unwrap();
    let mut found = vec![0; 4096];
    for (number, version) in versions.iter().enumerate() {
        let number = u64::try_from(number).unwrap();
        file.read_exact(&mut found).unwrap();
        let expected = version.load(Ordering::SeqCst);
        let seen = version_of(&found, number);
        assert_eq!(seen, expected, "node {node}: page {number}\n{}", lab.logs());
    }
}

/// Small synchronous writes lie in metadata first and move to sectors: bounded, in order, and none is lost.
/// `GUPFS_SMALL_WRITES=20000` is the long run.
#[test]
fn small_synchronous_writes_move_to_sectors() {
    if !can_run() {
        return;
    }
    const PAGES: u64 = 16 << 10;
    let count = std::env::var("GUPFS_SMALL_WRITES").map_or(600, |n| n.parse().unwrap());
    let lab = Lab::up("512M", "ram");
    make_directories(&lab);
    let begin = frees(&lab);
    let path = lab.mount(1).join("d1-0/pages");
    let file = File::create(&path).unwrap();
    file.set_len(PAGES * 4096).unwrap();
    let versions: Vec<AtomicU64> = (0..PAGES).map(|_| AtomicU64::new(0)).collect();
    let is_over = AtomicBool::new(false);
    let mut debt_max = 0;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let other = File::open(lab.mount(2).join("d1-0/pages")).unwrap();
            let (mut at, mut reads) = (1u64, 0);
            let mut found = vec![0; 4096];
            while !is_over.load(Ordering::SeqCst) {
                at = at.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(11);
                let number = (at >> 33) % PAGES;
                let before = versions[usize::try_from(number).unwrap()].load(Ordering::SeqCst);
                other.read_exact_at(&mut found, number * 4096).unwrap();
                let seen = version_of(&found, number);
                assert!(seen >= before, "page {number}: {seen} after {before}");
                reads += 1;
                std::thread::sleep(Duration::from_millis(2));
            }
            eprintln!("{reads} reads by the other node");
        });
        let since = Instant::now();
        let mut at = 7u64;
        for step in 0..count {
            at = at.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            // Some pages are written again and again.
            let number = (at >> 33) % if step % 4 == 0 { 50 } else { PAGES };
            let version = &versions[usize::try_from(number).unwrap()];
            let next = version.load(Ordering::SeqCst) + 1;
            let result = file.write_all_at(&page(number, next), number * 4096);
            result.and_then(|()| file.sync_data()).unwrap_or_else(|e| {
                is_over.store(true, Ordering::SeqCst);
                panic!("write {step}: {e}\n{}", lab.logs());
            });
            version.store(next, Ordering::SeqCst);
            if step % 100 == 0 {
                let debt = lab.dump(1, "counters")["space_pieces_debt"].as_u64();
                debt_max = debt_max.max(debt.unwrap());
            }
        }
        is_over.store(true, Ordering::SeqCst);
        eprintln!("{count} writes in {} ms", since.elapsed().as_millis());
    });
    drop(file);
    let counters = lab.dump(1, "counters");
    eprintln!(
        "{debt_max} bytes in pieces at the most; {}",
        space_counters(&counters)
    );
    assert!(debt_max <= (1 << 20) + (256 << 10), "{debt_max}");
    assert!(counters["space_destage_sectors"].as_u64().unwrap() > 0);
    lab.gupfs(&["kill", "n1"]);
    lab.gupfs(&["start", "n1"]);
    check_pages(&lab, 1, &versions);
    check_pages(&lab, 2, &versions);
    lab.check_walk();
    lab.move_pieces();
    check_pages(&lab, 2, &versions);
    lab.check_walk();
    fs::remove_file(&path).unwrap();
    lab.settle();
    assert_eq!(frees(&lab), begin);
}

/// Files of a page, synced one after the other in one directory: their bytes go to metadata first, of which a shard takes a bounded
/// number, and to sectors as quickly as they come. Nobody waits for the clock.
#[test]
fn small_files_are_synced_without_stalls() {
    let Some(node) = Node::new("256M") else {
        return;
    };
    let mut stalls = Vec::new();
    for number in 0..2500 {
        let begin = Instant::now();
        let mut file = File::create_new(node.mount().join(number.to_string())).unwrap();
        file.write_all(&[7; 4096]).unwrap();
        file.sync_all().unwrap();
        if begin.elapsed() > Duration::from_secs(1) {
            stalls.push((number, begin.elapsed()));
        }
    }
    // Each 256th waited for up to two seconds.
    assert!(stalls.len() <= 2, "{stalls:?}");
}

/// What is written counts at once, not when it is on disks: a program that looks whether there is room for more must not be told of what it has
/// just taken.
#[test]
fn what_is_written_is_not_available() {
    let Some(node) = Node::new("512M") else {
        return;
    };
    let available = || {
        let found = rustix::fs::statvfs(node.mount()).unwrap();
        (found.f_bavail * found.f_frsize) >> 20
    };
    let before = available();
    // Small ones rest in memory for some seconds.
    for number in 0..1000 {
        fs::write(node.mount().join(number.to_string()), vec![1; 100 << 10]).unwrap();
    }
    let taken = before.saturating_sub(available());
    assert!(taken >= 95, "{taken} MiB of 97");
}

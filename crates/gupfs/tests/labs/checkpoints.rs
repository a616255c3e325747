//! More files than the journals have room for: checkpoints move them to trees, and they outlive kill -9 while that goes on.
//! Then the file system is filled to the brim and emptied again.

use std::fs::{self, File};
use std::io::{ErrorKind, Write as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::lab::{Lab, can_run, fsck};
use crate::node::Node;

/// After so many files some of them are synced.
const BATCH: u64 = 500;
/// Of so many files one is synced; of the others the names are durable with it: the journal is a prefix.
const SYNCED: u64 = 10;
/// Files in one directory.
const DIRECTORY_COUNT: u64 = 5_000;

/// A file: where, and its bytes.
fn path(lab: &Lab, node: usize, number: u64) -> PathBuf {
    let directory = format!("c{node}-{}", number / DIRECTORY_COUNT);
    lab.mount(node).join(directory).join(format!("f{number}"))
}

fn text(node: usize, number: u64) -> String {
    format!("node {node} file {number}\n").repeat(1 + usize::try_from(number % 7).unwrap())
}

impl Lab {
    /// A count of a node's checkpoints.
    fn checkpoints(&self, node: usize, what: &str) -> u64 {
        self.dump(node, "counters")[what].as_u64().unwrap()
    }
}

/// Makes files; after each batch, the names of all and the bytes of some are durable, and `durable` says so.
fn make(
    lab: &Lab,
    node: usize,
    numbers: std::ops::Range<u64>,
    durable: &AtomicU64,
) -> std::io::Result<()> {
    for number in numbers.clone() {
        let path = path(lab, node, number);
        if number % DIRECTORY_COUNT == 0 {
            // The life before may have made it, as the last that it did.
            fs::create_dir_all(path.parent().unwrap())?;
        }
        File::create(&path)?.write_all(text(node, number).as_bytes())?;
        if (number + 1) % BATCH == 0 || number + 1 == numbers.end {
            for made in (number - number % BATCH..=number).filter(|n| n % SYNCED == 0) {
                File::open(self::path(lab, node, made))?.sync_all()?;
            }
            durable.store(number + 1, Ordering::SeqCst);
        }
    }
    Ok(())
}

/// All that was durable is there, also on the other node; each byte of some.
fn verify(lab: &Lab, node: usize, durable: u64) {
    let other = 3 - node;
    let step = usize::try_from(SYNCED).unwrap();
    for number in (0..durable).step_by(step) {
        for reader in [node, other] {
            let path = path(lab, node, number);
            let path = lab
                .mount(reader)
                .join(path.strip_prefix(lab.mount(node)).unwrap());
            let found = fs::read_to_string(&path)
                .unwrap_or_else(|error| panic!("{}: {error}\n{}", path.display(), lab.logs()));
            assert_eq!(found, text(node, number), "{}", path.display());
        }
    }
    for directory in 0..durable.div_ceil(DIRECTORY_COUNT) {
        let path = lab.mount(other).join(format!("c{node}-{directory}"));
        let count = fs::read_dir(path).unwrap().count() as u64;
        let least = DIRECTORY_COUNT.min(durable - directory * DIRECTORY_COUNT);
        assert!(count >= least, "{count} of {least} names\n{}", lab.logs());
    }
}

/// The node is killed in the middle of a round of checkpoints, up to `most` times, while files are made.
fn make_and_kill(lab: &Lab, victim: usize, durable: &AtomicU64, until: u64, most: u32) -> u32 {
    let mut kills = 0;
    while kills < most && durable.load(Ordering::SeqCst) < until {
        let is_over = AtomicBool::new(false);
        let begin = durable.load(Ordering::SeqCst);
        std::thread::scope(|scope| {
            let maker = scope.spawn(|| {
                // What was made behind the last sync of the life before may be there or not.
                for number in begin..begin + BATCH {
                    let _ = fs::remove_file(path(lab, victim, number));
                }
                let result = make(lab, victim, begin..until, durable);
                is_over.store(true, Ordering::SeqCst);
                result
            });
            let rounds = lab.checkpoints(victim, "checkpoint_rounds");
            while !is_over.load(Ordering::SeqCst) {
                if lab.checkpoints(victim, "checkpoint_rounds") > rounds {
                    let name = format!("n{victim}");
                    lab.gupfs(&["kill", &name]);
                    let _ = maker.join().unwrap();
                    lab.gupfs(&["start", &name]);
                    kills += 1;
                    return;
                }
                std::thread::sleep(Duration::from_millis(2));
            }
            let result = maker.join().unwrap();
            assert!(result.is_ok(), "{result:?}\n{}", lab.logs());
        });
    }
    kills
}

/// Writes one file after the other until there is no room; how many bytes.
fn fill(lab: &Lab, node: usize) -> u64 {
    let block = vec![7u8; 1 << 20];
    let mut written = 0;
    for size in [1 << 20, 64 << 10, 4096] {
        let name = format!("fill-{node}-{size}");
        let mut file = File::create(lab.mount(node).join(name)).unwrap();
        loop {
            match file.write_all(&block[..size]) {
                Ok(()) => written += size as u64,
                Err(error) if error.kind() == ErrorKind::StorageFull => break,
                Err(error) => panic!("{error}\n{}", lab.logs()),
            }
        }
        let _ = file.sync_all();
    }
    written
}

/// `GUPFS_MANY_FILES=30000` is the long run: so many files of each node, on 1 GiB, where the journals alone hold a third of them.
#[test]
fn more_files_than_the_journal_holds_outlive_kills_and_a_full_disk() {
    if !can_run() {
        return;
    }
    let many = std::env::var("GUPFS_MANY_FILES").map(|n| n.parse::<u64>().unwrap());
    let (size, file_count) = match many {
        Ok(count) => ("1G", count),
        Err(_) => ("256M", 8_000),
    };
    let lab = Lab::up(size, "ram");
    let begin = Instant::now();
    let durable = [AtomicU64::new(0), AtomicU64::new(0)];
    std::thread::scope(|scope| {
        for node in [1, 2] {
            let (lab, durable) = (&lab, &durable[node - 1]);
            scope.spawn(move || {
                let result = make(lab, node, 0..file_count, durable);
                assert!(result.is_ok(), "node {node}: {result:?}\n{}", lab.logs());
            });
        }
    });
    eprintln!("{} files in {:?}", 2 * file_count, begin.elapsed());
    for node in [1, 2] {
        assert!(lab.checkpoints(node, "checkpoints") > 0, "{}", lab.logs());
        // A round that begins before the regions for its pages have come, as on a busy machine, is tried again with doubling pauses:
        // more than 5 failures are some 3 s without room.
        let failures = lab.checkpoints(node, "checkpoint_failures");
        assert!(failures <= 5, "{failures} failures\n{}", lab.logs());
    }
    // Killed in the middle of rounds, while more files are made.
    let kills = make_and_kill(&lab, 1, &durable[0], file_count * 2, 3);
    assert!(kills > 0, "no round was seen");
    for node in [1, 2] {
        let durable = durable[node - 1].load(Ordering::SeqCst);
        eprintln!("node {node}: {durable} files, {kills} kills");
        verify(&lab, node, durable);
    }
    lab.check_walk();
    // Both at once, and what is there is what the trees say.
    for name in ["n1", "n2"] {
        lab.gupfs(&["kill", name]);
    }
    lab.fsck();
    for name in ["n1", "n2"] {
        lab.gupfs(&["start", name]);
    }
    for node in [1, 2] {
        verify(&lab, node, durable[node - 1].load(Ordering::SeqCst));
    }
    lab.check_walk();
    // To the brim; then everything goes.
    let filled = [1, 2].map(|node| fill(&lab, node));
    eprintln!("{filled:?} bytes filled it, {:?}", begin.elapsed());
    let script = "rm -rf $M1/c1-* & rm -rf $M2/c2-* & wait";
    lab.sh(300, script);
    lab.sh(60, "test -z \"$(ls $M1 | grep ^c)\"");
    lab.check_walk();
    // There is room again, and what it was filled with is whole.
    let again = fill(&lab, 1);
    eprintln!(
        "{again} bytes fit where the small files were, {:?}",
        begin.elapsed()
    );
    lab.sh(60, "rm $M1/fill-*");
    lab.settle_empty();
    lab.check_walk();
    assert_eq!(lab.sum("used"), 0);
}

/// Makes names, links and attributes until there is no room for any.
const METADATA: &str = r#"python3 - "$M1/w" <<'END'
import errno, os, sys
top = sys.argv[1]
os.mkdir(top)
made = 0
try:
    while True:
        path = f"{top}/{made}"
        os.mkdir(path)
        os.symlink("q" * 4000, path + "/s")
        os.setxattr(path, "user.x", b"v" * 30000)
        made += 1
except OSError as error:
    if error.errno != errno.ENOSPC:
        raise
print(made)
END"#;

/// A disk that is full of metadata can be emptied by who filled it, also after a kill, and its room comes back while it is mounted: what adds to
/// trees leaves them the room that their checkpoints need.
#[test]
fn metadata_that_fills_the_disk_can_be_removed() {
    if !can_run() {
        return;
    }
    let lab = Lab::of_nodes(1, "256M", "ram");
    let before = lab.stat_fs(1, "%f");
    for kills in [false, true] {
        let made: u64 = lab.sh(200, METADATA).trim().parse().unwrap();
        assert!(made > 4000, "{made}");
        if kills {
            lab.gupfs(&["kill", "n1"]);
            lab.gupfs(&["start", "n1"]);
        }
        lab.sh(100, "rm -rf $M1/w && test ! -e $M1/w");
        let begin = Instant::now();
        while lab.stat_fs(1, "%f") < before / 10 * 9 {
            let waited = begin.elapsed();
            assert!(waited < Duration::from_secs(40), "{}", lab.logs());
            std::thread::sleep(Duration::from_millis(200));
        }
        eprintln!("{made} made and removed, room after {:?}", begin.elapsed());
    }
    lab.gupfs(&["kill", "n1"]);
    let (found, code) = fsck(&Path::new(lab.root()).join("n1"), &[]);
    assert_eq!(code, 0, "{found}");
}

/// Makes links of 4,000 bytes, and small files until there is no room for any; what was free then, in percent, or less than nothing.
const SMALL_FILES: &str = r#"python3 - "$M1" <<'END'
import errno, os, sys
top = sys.argv[1]
os.mkdir(top + "/links")
for number in range(24000):
    os.symlink("q" * 4000, f"{top}/links/{number}")
links = os.open(top + "/links", os.O_RDONLY)
os.fsync(links)
made, free = 0, -1
os.mkdir(top + "/files")
try:
    while made < 30000:
        file = os.open(f"{top}/files/{made}", os.O_CREAT | os.O_WRONLY)
        made += 1
        os.write(file, b"y" * 100)
        os.close(file)
except OSError as error:
    if error.errno != errno.ENOSPC:
        raise
    stat = os.statvfs(top)
    free = 100 * stat.f_bavail // stat.f_blocks
print(made, free)
END"#;

/// Small files that were just written have a sector each set aside until their bytes are in metadata, and trees want regions that lie in hands
/// which do not use them: neither makes a write or a create hear ENOSPC while the disk has room. It did with 40 of 100 parts free.
#[test]
fn small_files_find_all_the_room_that_there_is() {
    if !can_run() {
        return;
    }
    let lab = Lab::of_nodes(1, "256M", "ram");
    let said = lab.sh(200, SMALL_FILES);
    let said: Vec<i64> = said
        .split_whitespace()
        .map(|n| n.parse().unwrap())
        .collect();
    let [made, free] = said[..] else {
        panic!("{said:?}");
    };
    eprintln!("{made} files, {free} % free when there was no room for another one");
    assert!(free <= 5, "{made} files, {free} % free: {}", lab.logs());
    lab.sh(100, "rm -rf $M1/files $M1/links");
    lab.sh(100, "for i in $(seq 100); do echo $i >$M1/f$i; done");
}

/// Fills most of the disk with a file and the rest with links of 4,000 bytes, removes these but for a few, and makes another file as long as it
/// can be, again and again: parts of a hundred of the disk that the files have in the end.
const LINKS_AND_FILES: &str = r#"python3 - "$M1" <<'END'
import errno, os, sys, time
top = sys.argv[1]
def fill(name, most):
    file = os.open(top + name, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    try:
        while os.fstat(file).st_size < most:
            os.write(file, b"y" * (1 << 20))
        os.fsync(file)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
    size = os.fstat(file).st_size
    os.close(file)
    return size
fill("/a", 140 << 20)
os.mkdir(top + "/links")
made = 0
try:
    while made < 16000:
        os.symlink("q" * 4000, f"{top}/links/{made}")
        made += 1
except OSError as error:
    if error.errno != errno.ENOSPC:
        raise
for number in range(made):
    if number % 70 > 0:
        os.unlink(f"{top}/links/{number}")
stat = os.statvfs(top)
part, rounds = 0, 0
while rounds < 40 and part < 90:
    part = 100 * (fill("/b", 1 << 30) + (140 << 20)) // (stat.f_blocks * stat.f_frsize)
    rounds += 1
    time.sleep(1)
for number in range(0, made, 70):
    assert os.readlink(f"{top}/links/{number}") == "q" * 4000
print(made, rounds, part)
END"#;

/// A region for pages stayed one as long as one page of a tree was in it: files had 82 parts of a hundred at the most here, whatever was removed.
#[test]
fn files_get_the_regions_that_metadata_has_nearly_left() {
    if !can_run() {
        return;
    }
    let lab = Lab::of_nodes(1, "256M", "ram");
    let said = lab.sh(200, LINKS_AND_FILES);
    eprintln!("links, rounds, parts of a hundred: {said}");
    let part = said.split_whitespace().last().map(str::parse::<u64>);
    assert!(
        part.is_some_and(|part| part.unwrap() >= 90),
        "{said} {}",
        lab.logs()
    );
    lab.gupfs(&["kill", "n1"]);
    let (found, code) = fsck(&Path::new(lab.root()).join("n1"), &[]);
    assert_eq!(code, 0, "{found}");
}

/// What takes little to remove and was much gives its room back: some inodes with as many extended attributes as they may have (with one of 40 MB a
/// fifth of an empty file system stayed in use, and files heard ENOSPC).
#[test]
fn the_room_of_attributes_that_were_removed_comes_back() {
    let Some(node) = Node::new("1G") else {
        return;
    };
    let files: Vec<File> = (0..44)
        .map(|number| File::create(node.mount().join(format!("file{number}"))).unwrap())
        .collect();
    let available = || {
        let found = rustix::fs::statvfs(node.mount()).unwrap();
        found.f_bavail * found.f_frsize
    };
    let empty = available();
    for number in 0..700 {
        let name = format!("user.{number}");
        let flags = rustix::fs::XattrFlags::empty();
        let file = &files[number / 16];
        let made = rustix::fs::fsetxattr(file, name, &[b'z'; 60_000], flags);
        let state = || node.gupfs(&["status"]) + &node.gupfs(&["dump", "counters"]);
        assert!(made.is_ok(), "{number}: {made:?} {}", state());
    }
    files[0].sync_all().unwrap();
    // All of them are in a tree, and nothing is left that another round would take.
    let until = Instant::now() + Duration::from_secs(60);
    let counters = || -> serde_json::Value {
        serde_json::from_str(&node.gupfs(&["dump", "counters", "--json"])).unwrap()
    };
    let rounds = || counters()["checkpoint_rounds"].as_u64().unwrap();
    let mut seen = (rounds(), Instant::now());
    while seen.0 == 0 || seen.1.elapsed() < Duration::from_secs(4) {
        assert!(Instant::now() < until, "it never rests");
        std::thread::sleep(Duration::from_millis(100));
        let now = rounds();
        if now != seen.0 {
            seen = (now, Instant::now());
        }
    }
    assert!(available() < empty - (40 << 20), "they take room");
    for number in 0..files.len() {
        fs::remove_file(node.mount().join(format!("file{number}"))).unwrap();
    }
    drop(files);
    let until = Instant::now() + Duration::from_secs(40);
    while available() < empty - (24 << 20) {
        let missing = (empty - available()) >> 20;
        assert!(Instant::now() < until, "{missing} MiB are still in use");
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// What the last start replayed, as its log says.
fn replayed(node: &Node) -> u64 {
    let log = fs::read_to_string(node.state().join("log")).unwrap();
    let line = log.lines().rfind(|line| line.contains("journal replayed"));
    let line = line.unwrap_or_else(|| panic!("no start in {log}"));
    let (_, count) = line.split_once("operations=").unwrap();
    count.split_whitespace().next().unwrap().parse().unwrap()
}

/// Whether the newest last round of checkpoints that the log tells of was made.
fn is_last_round_made(node: &Node) -> bool {
    let log = fs::read_to_string(node.state().join("log")).unwrap();
    let what = "the last round of checkpoints is_made=";
    let line = log.lines().rfind(|line| line.contains(what));
    let line = line.unwrap_or_else(|| panic!("no last round in {log}"));
    let (_, is_made) = line.split_once(what).unwrap();
    is_made.starts_with("true")
}

/// A stop gives its last round of checkpoints 1 s to begin and 5 s in all, which may be too little on a busy machine: then all is
/// written anew, and it is stopped again.
#[test]
fn a_stop_leaves_little_to_replay() {
    const FILE_COUNT: u64 = 6_000;
    const STOP_COUNT_MAX: u32 = 4;
    let Some(node) = Node::new("1G") else { return };
    let path = |number: u64| {
        let directory = node.mount().join(format!("d{}", number / 1_000));
        directory.join(format!("f{number}"))
    };
    let is_made = (0..STOP_COUNT_MAX).any(|_| {
        for number in 0..FILE_COUNT {
            if number % 1_000 == 0 {
                fs::create_dir_all(path(number).parent().unwrap()).unwrap();
            }
            fs::write(path(number), text(1, number)).unwrap();
        }
        node.gupfs(&["down"]);
        let is_made = is_last_round_made(&node);
        node.up(&[]).unwrap();
        is_made
    });
    assert!(is_made, "no last round was made in {STOP_COUNT_MAX} stops");
    // The ends of the life before, and no file.
    let count = replayed(&node);
    assert!(count < FILE_COUNT / 20, "{count} operations were replayed");
    for number in 0..FILE_COUNT {
        assert_eq!(fs::read_to_string(path(number)).unwrap(), text(1, number));
    }
}

//! One directory of many names, in parts: made, renamed and removed by several at a time on two nodes while others list it, through
//! kill -9 of its owner; in the end all of it goes.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use nsd::label::{COPY_COUNT, DIRECTORY_PARTS, LABEL_SIZE, Label};
use serde_json::Value;

use crate::lab::{LIMIT, Lab, bounded, can_run};

/// Names that are there from the beginning to the end.
const STAYS: u64 = 300;
const MAKERS: u64 = 4;

fn directory(lab: &Lab, node: usize) -> PathBuf {
    lab.mount(node).join("big")
}

fn stay(number: u64) -> String {
    format!("stays-{number}")
}

/// What each name is when its maker is through: every fifth has another name, every seventh is gone.
fn last_name(maker: u64, number: u64) -> Option<String> {
    match (number % 7, number % 5) {
        (0, _) => None,
        (_, 0) => Some(format!("moved-{maker}-{number}")),
        _ => Some(format!("made-{maker}-{number}")),
    }
}

fn make(directory: &Path, maker: u64, number: u64) -> std::io::Result<()> {
    let path = directory.join(format!("made-{maker}-{number}"));
    match number % 3 {
        0 => fs::create_dir(&path)?,
        1 => std::os::unix::fs::symlink("stays-1", &path)?,
        _ => drop(File::create(&path)?),
    }
    match last_name(maker, number) {
        None if number.is_multiple_of(3) => fs::remove_dir(&path),
        None => fs::remove_file(&path),
        Some(name) if number.is_multiple_of(5) => fs::rename(&path, directory.join(name)),
        Some(_) => Ok(()),
    }
}

fn list(directory: &Path) -> std::io::Result<Vec<String>> {
    let names = fs::read_dir(directory)?;
    names
        .map(|entry| Ok(entry?.file_name().into_string().unwrap()))
        .collect()
}

/// Lists until it is over: what stays comes once each time, and nothing comes twice.
fn watch(lab: &Lab, node: usize, is_over: &AtomicBool) -> u64 {
    let mut count = 0;
    while !is_over.load(Ordering::SeqCst) {
        let names = list(&directory(lab, node)).unwrap();
        let different: BTreeSet<&String> = names.iter().collect();
        assert_eq!(different.len(), names.len(), "a name comes twice");
        let stays = names.iter().filter(|name| name.starts_with("stays-"));
        assert_eq!(stays.count() as u64, STAYS, "{}", lab.logs());
        count += 1;
    }
    count
}

fn make_all(lab: &Lab, numbers: std::ops::Range<u64>) {
    let is_over = AtomicBool::new(false);
    let scans = AtomicU64::new(0);
    thread::scope(|scope| {
        for node in [1, 2] {
            let (is_over, scans) = (&is_over, &scans);
            scope.spawn(move || scans.fetch_add(watch(lab, node, is_over), Ordering::SeqCst));
        }
        let makers = (0..MAKERS).map(|maker| {
            let numbers = numbers.clone();
            scope.spawn(move || {
                let node = 1 + usize::try_from(maker % 2).unwrap();
                for number in numbers {
                    make(&directory(lab, node), maker, number)
                        .unwrap_or_else(|e| panic!("{number} of {maker}: {e}\n{}", lab.logs()));
                }
            })
        });
        let makers: Vec<_> = makers.collect();
        let results: Vec<_> = makers.into_iter().map(|maker| maker.join()).collect();
        is_over.store(true, Ordering::SeqCst);
        assert!(results.iter().all(Result::is_ok));
    });
    eprintln!("{} scans", scans.load(Ordering::SeqCst));
}

/// All that should be there, and nothing else, on both nodes.
fn verify(lab: &Lab, count: u64) {
    let made = (0..MAKERS).flat_map(|maker| (0..count).filter_map(move |n| last_name(maker, n)));
    let expected: BTreeSet<String> = made.chain((0..STAYS).map(stay)).collect();
    for node in [1, 2] {
        let names = list(&directory(lab, node)).unwrap();
        assert_eq!(names.len(), expected.len(), "node {node}\n{}", lab.logs());
        let names: BTreeSet<String> = names.into_iter().collect();
        assert_eq!(names, expected);
        for name in expected.iter().step_by(17) {
            let found = fs::symlink_metadata(directory(lab, node).join(name));
            assert!(found.is_ok(), "{name}: {found:?}\n{}", lab.logs());
        }
        assert!(!directory(lab, node).join("made-0-0").exists());
    }
}

fn part_count(lab: &Lab) -> u64 {
    let path = directory(lab, 1);
    let words = [
        env!("CARGO_BIN_EXE_gupfs"),
        "stat",
        "--json",
        path.to_str().unwrap(),
    ];
    let output = bounded(LIMIT, &words);
    assert!(output.status.success(), "{output:?}");
    let value: Value = serde_json::from_slice(&output.stdout).unwrap();
    value["parts"].as_u64().unwrap()
}

fn inodes_in_use(lab: &Lab) -> u64 {
    let text = lab.sh(LIMIT, "df --output=iused $M1 | tail -1");
    text.trim().parse().unwrap()
}

/// So many inodes are in use, when what was removed a moment ago has gone.
fn await_inodes_in_use(lab: &Lab, expected: u64) {
    let until = Instant::now() + Duration::from_secs(20);
    let mut count = inodes_in_use(lab);
    while count != expected && Instant::now() < until {
        thread::sleep(Duration::from_millis(100));
        count = inodes_in_use(lab);
    }
    assert_eq!(count, expected, "{}", lab.logs());
}

/// `GUPFS_MANY_NAMES=5000` is the long run: so many of each maker.
#[test]
fn a_directory_in_parts() {
    if !can_run() {
        return;
    }
    let many = std::env::var("GUPFS_MANY_NAMES").map(|n| n.parse::<u64>().unwrap());
    let count = many.unwrap_or(3_000);
    let lab = Lab::up("256M", "ram");
    let inodes = inodes_in_use(&lab);
    fs::create_dir(directory(&lab, 1)).unwrap();
    for number in 0..STAYS {
        File::create(directory(&lab, 1).join(stay(number))).unwrap();
    }
    make_all(&lab, 0..count / 2);
    verify(&lab, count / 2);
    let parts = part_count(&lab);
    eprintln!("{parts} parts");
    assert!(parts >= count * MAKERS / 2 / 2048, "{parts} parts");
    File::open(directory(&lab, 1).join(stay(0)))
        .unwrap()
        .sync_all()
        .unwrap();
    // The owner is killed while more are made; what was durable before is there afterwards.
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let maker = scope.spawn(|| {
            let begin = count * 10;
            let made = (begin..).take_while(|number| {
                !done.load(Ordering::SeqCst)
                    && File::create(directory(&lab, 1).join(format!("lost-{number}"))).is_ok()
            });
            made.count()
        });
        while part_count(&lab) < parts + 2 {
            assert!(!maker.is_finished(), "{}", lab.logs());
        }
        lab.gupfs(&["kill", "n1"]);
        done.store(true, Ordering::SeqCst);
        eprintln!("killed after {} more", maker.join().unwrap());
    });
    lab.gupfs(&["start", "n1"]);
    for name in list(&directory(&lab, 2)).unwrap() {
        if name.starts_with("lost-") {
            fs::remove_file(directory(&lab, 2).join(name)).unwrap();
        }
    }
    verify(&lab, count / 2);
    make_all(&lab, count / 2..count);
    verify(&lab, count);
    lab.check_walk();
    for name in ["n1", "n2"] {
        lab.gupfs(&["kill", name]);
    }
    lab.fsck();
    for name in ["n1", "n2"] {
        lab.gupfs(&["start", name]);
    }
    verify(&lab, count);
    fs::remove_dir_all(directory(&lab, 2)).unwrap();
    await_inodes_in_use(&lab, inodes);
    lab.check_walk();
}

/// Makes the labels of all disks such as they were before there were parts.
fn forget_parts(lab: &Lab) {
    let mut count = 0;
    for entry in fs::read_dir(Path::new(lab.root()).join("ram")).unwrap() {
        let path = entry.unwrap().path();
        let disk = File::options().read(true).write(true).open(path).unwrap();
        let mut head = vec![0; COPY_COUNT * LABEL_SIZE];
        disk.read_exact_at(&mut head, 0).unwrap();
        let mut label = Label::decode(&head).unwrap().label;
        assert_eq!(label.features_incompatible, DIRECTORY_PARTS);
        label.features_incompatible = 0;
        for copy in 0..COPY_COUNT {
            let at = u64::try_from(copy * LABEL_SIZE).unwrap();
            disk.write_all_at(&label.encode(copy)[..], at).unwrap();
        }
        count += 1;
    }
    assert!(count > 0);
}

/// A file system of before keeps each directory in one piece, and goes on as ever.
#[test]
fn a_file_system_of_before_is_not_split() {
    if !can_run() {
        return;
    }
    let lab = Lab::up("256M", "ram");
    let restart = |between: &dyn Fn()| {
        for name in ["n1", "n2"] {
            lab.gupfs(&["kill", name]);
        }
        between();
        for name in ["n1", "n2"] {
            lab.gupfs(&["start", name]);
        }
    };
    restart(&|| forget_parts(&lab));
    let inodes = inodes_in_use(&lab);
    fs::create_dir(directory(&lab, 1)).unwrap();
    for number in 0..STAYS {
        File::create(directory(&lab, 1).join(stay(number))).unwrap();
    }
    make_all(&lab, 0..1_300);
    verify(&lab, 1_300);
    assert_eq!(part_count(&lab), 0);
    restart(&|| lab.fsck());
    verify(&lab, 1_300);
    assert_eq!(part_count(&lab), 0);
    fs::remove_dir_all(directory(&lab, 2)).unwrap();
    await_inodes_in_use(&lab, inodes);
    lab.check_walk();
}

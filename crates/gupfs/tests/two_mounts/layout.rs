//! Files laid out on chosen NSDs, through both mounts.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{Error, Write as _};
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::calls::{as_user, get_xattr, set_xattr};
use crate::fixture::Fixture;
use crate::{finish, lab};

const NAME: &str = "trusted.gupfs.layout";
const NOBODY: libc::uid_t = 65_534;

/// The errno of what failed; 0 for what did not.
fn errno<T>(result: Result<T, Error>) -> i32 {
    result.err().map_or(0, |e| e.raw_os_error().unwrap_or(-1))
}

/// NSDs that hold bytes of the file, and how many sectors are in extents.
fn placed(fixture: &Fixture, path: &Path) -> (BTreeSet<u64>, u64) {
    let inode = fixture.inode(path);
    let extents = inode["extents"].as_array().expect("a list");
    let nsd = |e: &Value| e["at"][0][0].as_u64().expect("an NSD");
    let sectors = |e: &Value| e["sectors"].as_u64().expect("a count");
    let nsds = extents.iter().map(nsd).collect();
    (nsds, extents.iter().map(sectors).sum())
}

/// What `gupfs` says of a path on either mount, wherever its owner is.
pub(crate) fn told(command: &str, path: &Path) -> Result<Value, Error> {
    let mut gupfs = Command::new("timeout");
    gupfs.args([
        "-k",
        "5",
        "30",
        env!("CARGO_BIN_EXE_gupfs"),
        command,
        "--json",
    ]);
    let output = gupfs.arg(path).output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command}: {said}");
    serde_json::from_slice(&output.stdout).map_err(Error::other)
}

/// `gupfs stat` through both mounts names these NSDs only.
fn check_stat(fixture: &Fixture, name: &str, wanted: &BTreeSet<u64>) -> Result<(), Error> {
    for node in [1, 2] {
        let seen = told("stat", &fixture.path(node, name))?;
        assert_eq!(seen["has_map"], true, "{seen}");
        let extents = seen["extents"].as_array().expect("a list");
        let at = extents
            .iter()
            .flat_map(|e| e["at"].as_array().expect("places"));
        let nsds: BTreeSet<u64> = at.filter_map(|l| l["nsd"].as_u64()).collect();
        assert_eq!(nsds, *wanted, "through node {node}");
    }
    Ok(())
}

/// `gupfs du` hears of both owners' directories, through either node.
fn check_du(fixture: &Fixture, least: u64) -> Result<(), Error> {
    let sums = [1, 2].map(|node| told("du", &fixture.mount(node)));
    let [one, two] = sums;
    let (one, two) = (&one?["paths"][0], &two?["paths"][0]);
    for name in ["inodes", "size", "allocated"] {
        assert_eq!(one[name], two[name], "{name}");
    }
    // The root, a directory on each node's NSDs, a file in each.
    assert!(one["inodes"].as_u64() >= Some(5), "{one}");
    assert!(one["allocated"].as_u64() >= Some(least), "{one}");
    Ok(())
}

/// `gupfs df` knows what lies on each NSD: both owners' sectors are in its figures.
///
/// The NSDs of a pair share a file of `size` bytes. Not to the sector: where a node has no more of the one's
/// sectors in hand, a piece lies on the other.
fn check_df(fixture: &Fixture, size: u64) -> Result<(), Error> {
    let all = told("df", &fixture.mount(1))?;
    let room = &all["file_systems"][0];
    assert_eq!(room["owners_missing"], Value::Array(Vec::new()), "{room}");
    let nsds = room["nsds"].as_array().expect("a list");
    assert_eq!(nsds.len(), 4);
    let of_files = |nsd: &Value| {
        let bytes = |name: &str| nsd[name].as_u64().expect("bytes");
        bytes("used") - bytes("quarantined")
    };
    for nsd in nsds {
        assert!(of_files(nsd) >= size / 4, "{nsd}");
        let state = if nsd["failure_group"] == 1 {
            "direct"
        } else {
            "served"
        };
        assert_eq!(nsd["state"], state, "as node 1 sees it: {nsd}");
    }
    // A checksum sector is behind each block, and behind each part of one.
    let least = size + size / 256;
    for pair in [[1, 2], [3, 4]] {
        let mine = |nsd: &&Value| pair.iter().any(|id| nsd["nsd"] == *id);
        let sum: u64 = nsds.iter().filter(mine).map(of_files).sum();
        assert!(
            (least..least + size / 64).contains(&sum),
            "{pair:?}: {room}"
        );
    }
    Ok(())
}

/// Writes bytes that tell where they belong, and makes them durable.
fn write(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    let mut file = File::options()
        .write(true)
        .create(true)
        .truncate(false)
        .open(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

fn pattern(size: usize) -> Vec<u8> {
    let word = |i: usize| (i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes();
    (0..size.div_ceil(8)).flat_map(word).take(size).collect()
}

#[test]
fn all_sectors_of_a_file_lie_where_its_layout_says() {
    let fixture = lab!();
    const SIZE: usize = 80 << 20;
    let bytes = pattern(SIZE);
    let outcome = (|| -> Result<String, Error> {
        // Each node writes a file on the other's two NSDs; more than is granted at once.
        for (node, nsds) in [(1, "3,4"), (2, "1,2")] {
            let above = fixture.path(node, &format!("on-{nsds}"));
            fs::create_dir(&above)?;
            set_xattr(&above, NAME, format!("nsds={nsds}").as_bytes())?;
            write(&above.join("file"), &bytes)?;
        }
        let check = || -> Result<(), Error> {
            for (node, nsds, wanted) in [(2, "3,4", [3, 4]), (1, "1,2", [1, 2])] {
                let path = fixture.path(node, &format!("on-{nsds}/file"));
                assert_eq!(get_xattr(&path, NAME)?, format!("nsds={nsds}").as_bytes());
                assert_eq!(fixture.inode(&path)["layout"], format!("nsds={nsds}"));
                let (placed, sectors) = placed(&fixture, &path);
                assert_eq!(placed, BTreeSet::from(wanted), "{nsds}");
                assert_eq!(sectors, SIZE as u64 / 4096);
                assert!(fs::read(&path)? == bytes, "{nsds}: other bytes");
                check_stat(&fixture, &format!("on-{nsds}/file"), &placed)?;
            }
            check_du(&fixture, 2 * SIZE as u64)?;
            check_df(&fixture, SIZE as u64)
        };
        check()?;
        fixture.restart().map_err(Error::other)?;
        check()?;
        Ok("layouts kept, also over a restart".to_owned())
    })();
    finish(&fixture, outcome.map_err(|e| e.to_string()));
}

/// An owner that has nothing left on the NSDs of a layout asks for regions of them before the bytes go elsewhere: here the
/// owner of the region table, node 1, does not run for a while.
#[test]
fn a_layout_is_kept_while_the_region_table_is_slow() {
    let fixture = lab!();
    let outcome = (|| -> Result<String, String> {
        let text = |e: Error| e.to_string();
        // Node 2's own directory, and its own NSDs.
        let above = fixture.path(2, "on-3,4");
        fs::create_dir(&above).map_err(text)?;
        set_xattr(&above, NAME, b"nsds=3,4").map_err(text)?;
        let path = above.join("file");
        write(&path, &pattern(4096)).map_err(text)?;
        let bytes = pattern(160 << 20);
        let waits = || {
            let waiters = fixture.ask(2, "waiters");
            waiters.is_some_and(|waiters| waiters.to_string().contains("regions of NSDs"))
        };
        fixture.signal(1, "STOP");
        let has_waited = thread::scope(|scope| {
            let writer = scope.spawn(|| write(&path, &bytes));
            let until = Instant::now() + Duration::from_secs(4);
            let mut has_waited = false;
            while !has_waited && !writer.is_finished() && Instant::now() < until {
                has_waited = waits();
            }
            fixture.signal(1, "CONT");
            let written = writer.join().expect("no panic");
            written.map(|()| has_waited)
        });
        let has_waited = has_waited.map_err(text)?;
        let (placed, _) = placed(&fixture, &path);
        assert_eq!(placed, BTreeSet::from([3, 4]), "waited: {has_waited}");
        assert!(has_waited, "the owner had all at hand: write more");
        assert!(fs::read(&path).map_err(text)? == bytes, "other bytes");
        Ok("kept".to_owned())
    })();
    finish(&fixture, outcome);
}

#[test]
fn a_layout_is_set_by_root_on_what_is_empty() {
    let fixture = lab!();
    let outcome = (|| -> Result<String, Error> {
        let path = fixture.path(1, "file");
        File::create(&path)?;
        fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o666))?;
        assert_eq!(errno(get_xattr(&path, NAME)), libc::ENODATA);
        for bad in ["nsds=9", "nsds=1,1", "nsds=", "block=5000", "what"] {
            let set = set_xattr(&path, NAME, bad.as_bytes());
            assert_eq!(errno(set), libc::EINVAL, "{bad}");
        }
        // The way to it is open to everybody.
        for above in path.ancestors().skip(1).take(3) {
            fs::set_permissions(above, std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
        }
        let refused = as_user(NOBODY, || set_xattr(&path, NAME, b"nsds=1"));
        assert_eq!(errno(refused), libc::EPERM);
        set_xattr(&path, NAME, b"nsds=4 block=64K")?;
        let seen = get_xattr(&fixture.path(2, "file"), NAME)?;
        assert_eq!(seen, b"nsds=4 block=65536");
        // Bytes that only the writing node knows of count, wherever one asks.
        let other = fixture.path(2, "other");
        for path in [&path, &fixture.path(2, "file"), &other] {
            let mut file = File::options().append(true).create(true).open(path)?;
            file.write_all(b"bytes")?;
            for node in [2, 1] {
                let path =
                    fixture.path(node, path.file_name().expect("one").to_str().expect("text"));
                assert_eq!(errno(set_xattr(&path, NAME, b"nsds=1")), libc::EBUSY);
            }
        }
        File::create(&other)?;
        set_xattr(&fixture.path(1, "other"), NAME, b"nsds=2")?;
        write(&other, &pattern(3 << 20))?;
        assert_eq!(placed(&fixture, &other).0, BTreeSet::from([2]));
        Ok("layouts set and refused".to_owned())
    })();
    finish(&fixture, outcome.map_err(|e| e.to_string()));
}

//! Files and directories that lose their names while another node has them open, and their owner its life.

use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::{FileExt as _, PermissionsExt as _};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::lab::{LIMIT, Lab, can_run};

/// Several pieces of journal, map and sectors.
const FILE_SIZE: usize = 3 << 20;
/// How long a closed file's sectors may take to be free.
const FREE_PATIENCE: Duration = Duration::from_secs(20);

impl Lab {
    /// Lets node 1 do something and kills it the moment this has returned: its journal may not have it yet.
    fn kill_after(&self, act: impl FnOnce()) {
        let script = format!("pid=$(cat {}/n1/pid); read x; kill -9 $pid", self.root());
        let mut killer = Command::new("timeout")
            .args(["-k", "2", &LIMIT.to_string(), "sh", "-c", &script])
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        let mut start = killer.stdin.take().unwrap();
        act();
        start.write_all(b"\n").unwrap();
        assert!(killer.wait().unwrap().success());
        self.gupfs(&["start", "n1"]);
    }

    /// Inodes without a name that node 1 keeps.
    fn orphan_count(&self) -> u64 {
        self.dump(1, "counters")["space_orphans_now"]
            .as_u64()
            .unwrap()
    }

    fn await_no_orphans(&self) {
        let until = Instant::now() + FREE_PATIENCE;
        while self.orphan_count() > 0 {
            assert!(Instant::now() < until, "inodes without a name are kept");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

#[test]
fn a_file_open_elsewhere_outlives_its_name_and_its_owners_life() {
    if !can_run() {
        return;
    }
    let lab = Lab::up("512M", "file");
    let [m1, m2] = [1, 2].map(|node| lab.mount(node));
    fs::create_dir(m1.join("d")).unwrap();
    for round in 0..4_u8 {
        let bytes: Vec<u8> = (0..FILE_SIZE)
            .map(|i| (i / 7).to_le_bytes()[0] ^ round.wrapping_mul(37))
            .collect();
        let mut file = File::create(m1.join("d/f")).unwrap();
        file.write_all(&bytes).unwrap();
        file.sync_all().unwrap();
        drop(file);
        let open = File::open(m2.join("d/f")).unwrap();
        let mut one = [0];
        open.read_exact_at(&mut one, 0).unwrap();
        // That takes node 2's tokens, and node 1 hears of the open with their release.
        lab.kill_after(|| {
            fs::set_permissions(m1.join("d/f"), fs::Permissions::from_mode(0o600)).unwrap();
        });
        fs::remove_file(m1.join("d/f")).unwrap();
        assert_eq!(lab.orphan_count(), 1, "round {round}\n{}", lab.logs());
        let mut seen = vec![0; FILE_SIZE];
        let read = open.read_exact_at(&mut seen, 0);
        assert!(read.is_ok(), "round {round}: {read:?}\n{}", lab.logs());
        assert!(seen == bytes, "round {round}: other bytes\n{}", lab.logs());
        assert!(lab.sum("used") > 0, "its sectors are kept");
        drop(open);
        lab.await_no_orphans();
        let until = Instant::now() + FREE_PATIENCE;
        while lab.sum("used") > 0 {
            assert!(Instant::now() < until, "round {round}\n{}", lab.logs());
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    lab.check_walk();
}

#[test]
fn a_directory_open_elsewhere_goes_with_its_last_close() {
    if !can_run() {
        return;
    }
    let lab = Lab::up("512M", "file");
    let [m1, m2] = [1, 2].map(|node| lab.mount(node));
    for kills in [false, true] {
        fs::create_dir_all(m1.join("d/sub")).unwrap();
        let open = File::open(m2.join("d/sub")).unwrap();
        let rmdir = || fs::remove_dir(m1.join("d/sub")).unwrap();
        if kills {
            // The removal itself is durable, so that the new life has it.
            lab.kill_after(|| {
                rmdir();
                File::open(m1.join("d")).unwrap().sync_all().unwrap();
            });
        } else {
            rmdir();
        }
        assert_eq!(lab.orphan_count(), 1, "{kills}\n{}", lab.logs());
        drop(open);
        lab.await_no_orphans();
    }
    let mut left = fs::read_dir(m1.join("d")).unwrap();
    assert!(left.next().is_none(), "the name is gone");
}

//! Times that files and directories show: they do not go back while several threads write to a file and make names, and what is set to
//! now is not before the call that set it.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use rustix::fs::{AtFlags, CWD, StatxFlags, Timespec, Timestamps, UTIME_NOW};

use crate::node::Node;

const THREAD_COUNT: usize = 4;
/// How long it goes on, and how long at the most if there were fewer looks by then.
const TIME: Duration = Duration::from_secs(4);
const TIME_MAX: Duration = Duration::from_secs(60);
const LOOK_COUNT_MIN: u32 = 101;

/// Tells the others to end, also if this thread fails.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// As the daemon tells them: the kernel keeps what it was told before a call that changes names, and goes back to it once if another
/// thread has seen what the call did while that is not yet answered.
fn times(path: &Path) -> [(i64, i64); 2] {
    let (flags, wanted) = (AtFlags::STATX_FORCE_SYNC, StatxFlags::BASIC_STATS);
    let shown = rustix::fs::statx(CWD, path, flags, wanted).unwrap();
    [shown.stx_mtime, shown.stx_ctime].map(|time| (time.tv_sec, time.tv_nsec.into()))
}

fn now() -> (i64, i64) {
    let now = SystemTime::UNIX_EPOCH.elapsed().unwrap();
    (now.as_secs().cast_signed(), now.subsec_nanos().into())
}

/// Writes to the file and to one of its own, and makes names.
fn change(number: usize, (directory, file): (&Path, &Path), has_ended: &AtomicBool) {
    let _ends = Ends(has_ended);
    let touched = directory.with_file_name(format!("touched{number}"));
    let touched_file = File::create(&touched).unwrap();
    let shared = OpenOptions::new().write(true).open(file).unwrap();
    let to_now = Timespec {
        tv_sec: 0,
        tv_nsec: UTIME_NOW,
    };
    let to_now = Timestamps {
        last_access: to_now,
        last_modification: to_now,
    };
    for count in 0.. {
        if has_ended.load(Ordering::Relaxed) {
            return;
        }
        let name = directory.join(format!("{number}-{count}"));
        File::create(&name).unwrap();
        fs::remove_file(&name).unwrap();
        shared.write_all_at(b"time", number as u64 * 5).unwrap();
        touched_file.write_all_at(b"time", 0).unwrap();
        if count % 8 == 0 {
            touched_file.sync_all().unwrap();
        }
        let before = now();
        rustix::fs::futimens(&touched_file, &to_now).unwrap();
        let [modified, _] = times(&touched);
        assert!(modified >= before, "set to {modified:?} at {before:?}");
    }
}

#[test]
fn times_do_not_go_back() {
    let Some(node) = Node::new("1G") else {
        return;
    };
    let (directory, file) = (node.mount().join("d"), node.mount().join("f"));
    fs::create_dir(&directory).unwrap();
    File::create(&file).unwrap();
    let has_ended = AtomicBool::new(false);
    let mut look_count = 0_u32;
    std::thread::scope(|scope| {
        let _ends = Ends(&has_ended);
        for number in 0..THREAD_COUNT {
            let (paths, has_ended) = ((directory.as_path(), file.as_path()), &has_ended);
            scope.spawn(move || change(number, paths, has_ended));
        }
        let paths = [&file, &directory];
        let mut seen = paths.map(|path| times(path));
        let begin = Instant::now();
        while begin.elapsed() < TIME || (look_count < LOOK_COUNT_MIN && begin.elapsed() < TIME_MAX)
        {
            for (path, seen) in paths.iter().zip(&mut seen) {
                let shown = times(path);
                let went_back = shown.iter().zip(&*seen).any(|(new, old)| new < old);
                assert!(!went_back, "{path:?}: {seen:?}, then {shown:?}");
                *seen = shown;
            }
            look_count += 1;
        }
    });
    assert!(
        look_count >= LOOK_COUNT_MIN,
        "{look_count} looks in {TIME_MAX:?}"
    );
}

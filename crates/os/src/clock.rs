//! The clocks that cores are given: CLOCK_BOOTTIME for waits and leases, the wall clock for files.

use types::{Instant, Timestamp};

fn read(clock: libc::clockid_t) -> libc::timespec {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `time` is a valid timespec that the call fills.
    let result = unsafe { libc::clock_gettime(clock, &raw mut time) };
    assert_eq!(result, 0, "both clocks exist since Linux 2.6.39");
    time
}

/// Now on CLOCK_BOOTTIME, which counts suspend and never goes back.
#[must_use]
pub fn now() -> Instant {
    let time = read(libc::CLOCK_BOOTTIME);
    let secs = u64::try_from(time.tv_sec).expect("time since boot is positive");
    let nanos = u64::try_from(time.tv_nsec).expect("nanoseconds are positive");
    Instant(secs * 1_000_000_000 + nanos)
}

/// Now on the wall clock.
#[must_use]
pub fn timestamp() -> Timestamp {
    let time = read(libc::CLOCK_REALTIME);
    Timestamp {
        secs: time.tv_sec,
        nanos: u32::try_from(time.tv_nsec).expect("below 10^9"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks_run_forward_and_agree_with_std() {
        let first = now();
        assert!(now() >= first);
        let wall = std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .expect("after 1970");
        let ours = timestamp();
        assert!(
            ours.secs
                .abs_diff(i64::try_from(wall.as_secs()).expect("small"))
                <= 1
        );
        assert!(ours.nanos < 1_000_000_000);
    }
}

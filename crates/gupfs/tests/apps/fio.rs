//! fio checks what it wrote: several jobs and ways of I/O at once, and again after a remount.

use std::fs;

use crate::{have, mounted, remount, sh};

const COMMON: &str = "[global]
directory=MOUNT
verify=crc32c
verify_fatal=1
do_verify=1
verify_state_save=0
size=12m
fallocate=none
group_reporting=1
";

/// Ways to write, one job each; and each is verified by itself when it is written, and once more after the remount.
const JOBS: &str = "
[psync]
ioengine=psync
rw=randwrite
bs=3k
fsync=50
[direct]
ioengine=libaio
iodepth=16
direct=1
rw=randwrite
bs=4k
[ring]
ioengine=io_uring
iodepth=8
direct=1
rw=randwrite
bs=64k
[buffered-ring]
ioengine=io_uring
iodepth=8
rw=write
bs=1m
[mapped]
ioengine=mmap
rw=randwrite
bs=8k
[vectors]
ioengine=pvsync
rw=randwrite
bs=16k
numjobs=2
sync=1
";

#[test]
fn fio_reads_what_it_wrote() {
    if !have(&["fio"]) {
        return;
    }
    let Some((node, _turn)) = mounted() else {
        return;
    };
    let outside = node.state().parent().unwrap().to_owned();
    let mount = node.mount();
    let job = COMMON.replace("MOUNT", mount.to_str().unwrap()) + JOBS;
    fs::write(outside.join("jobs"), &job).unwrap();
    let said = sh(100, &outside, "fio jobs 2>&1");
    assert!(!said.contains("verify:"), "{said}");
    remount(&node);
    // The same seeds draw the same order: what is on disk is the newest of each block.
    let said = sh(100, &outside, "fio --verify_only jobs 2>&1");
    assert!(!said.contains("verify:"), "{said}");
}

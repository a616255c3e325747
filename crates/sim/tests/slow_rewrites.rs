//! A disk that is away, or slow, while blocks are rewritten: nobody waits for what a rewrite reads, and that is bounded.

use client::request::{Handle, OpenFlags, Operation, Response};
use sim::whole::ace::machine::{Machine, Shape};
use sim::whole::ace::tape::Tape;
use types::{InodeId, Name};

const PAGE: u64 = 4096;
const PAGE_SIZE: usize = 4096;
/// Dirty pages are written back when they are so old.
const OLD_MS: u64 = 5_100;
/// Pages of the file, each an extent of its own.
const PAGES: u64 = 24;
/// Reads from disks of all rewrites of a node.
const READS_MAX: u64 = 8;

fn shape() -> Shape {
    Shape {
        round_ticks: 0,
        part_bounds: None,
        rewrites: true,
        ..Shape::default()
    }
}

fn create(machine: &mut Machine, name: &str) -> (InodeId, Handle) {
    let flags = OpenFlags {
        write: true,
        ..OpenFlags::default()
    };
    let created = machine.ask(Operation::Create {
        parent: InodeId::ROOT,
        name: Name::new(name.as_bytes()).expect("a name"),
        permissions: 0o644,
        flags,
    });
    match created.expect("an answer") {
        Response::Created(entry, opened) => (entry.attr.ino, opened.handle),
        response => panic!("{response:?}"),
    }
}

fn write(machine: &mut Machine, (ino, handle): (InodeId, Handle), page: u64, byte: u8) {
    let payload = machine.payload(&[byte; PAGE_SIZE]);
    let response = machine.ask(Operation::Write {
        ino,
        handle,
        offset: page * PAGE,
        payload,
        is_write_back: false,
        append: false,
        sync: false,
        kill_set_id: false,
    });
    machine.release_payload(payload);
    let response = response.expect("an answer");
    assert!(matches!(response, Response::Written(_)), "{response:?}");
}

fn read(machine: &mut Machine, (ino, handle): (InodeId, Handle), page: u64) -> Vec<u8> {
    let response = machine.ask(Operation::Read {
        ino,
        handle,
        offset: page * PAGE,
        length: 4096,
        fills_page_cache: false,
    });
    match response.expect("an answer") {
        Response::Data(spans) => machine.gather(&spans),
        response => panic!("{response:?}"),
    }
}

fn sync(machine: &mut Machine, (ino, handle): (InodeId, Handle)) {
    let response = machine.ask(Operation::Fsync {
        ino,
        handle,
        data_only: false,
    });
    assert!(matches!(response, Ok(Response::Done)), "{response:?}");
}

/// A machine that has just started, and a file of it of many extents of which nothing is in memory but the first page, which has just
/// been written over.
fn aged() -> (Machine, (InodeId, Handle)) {
    let shape = shape();
    let tape = Tape::default();
    let no_rewrites = Shape {
        rewrites: false,
        ..shape
    };
    let disks = Machine::format(&shape);
    let mut machine = Machine::start(&no_rewrites, disks, 2, 1, &tape).expect("it starts");
    let file = create(&mut machine, "aged");
    for page in (0..PAGES).rev() {
        write(&mut machine, file, page, 7);
        machine.wait(OLD_MS);
    }
    machine.rest().expect("it ends");
    let mut machine = Machine::start(&shape, machine.disks, 3, 1, &tape).expect("it starts");
    let flags = OpenFlags {
        write: true,
        ..OpenFlags::default()
    };
    let ino = file.0;
    let opened = machine.ask(Operation::Open { ino, flags });
    let handle = match opened.expect("an answer") {
        Response::Opened(opened) => opened.handle,
        response => panic!("{response:?}"),
    };
    (machine, (ino, handle))
}

/// For two minutes nothing comes from the disk. Files are made, written, synced and read as ever; the rewriter has some reads under way,
/// not more and more; and when the disk is back it is none, and the file has its bytes.
#[test]
fn nobody_waits_for_what_a_rewrite_reads_from_a_disk_that_is_away() {
    let (mut machine, file) = aged();
    machine.read_ms = 150_000;
    write(&mut machine, file, 0, 8);
    machine.wait(OLD_MS);
    let mut most = 0;
    for turn in 0..20 {
        machine.wait(OLD_MS);
        let begun = machine.now_ms();
        let other = create(&mut machine, &format!("other{turn}"));
        write(&mut machine, other, 0, turn);
        sync(&mut machine, other);
        assert_eq!(read(&mut machine, other, 0), [turn; PAGE_SIZE]);
        write(&mut machine, file, 0, turn);
        sync(&mut machine, file);
        assert_eq!(read(&mut machine, file, 0), [turn; PAGE_SIZE]);
        let took = machine.now_ms() - begun;
        assert!(took < 1_000, "{took} ms");
        let (reads, frames) = machine.node.rewrite_loads();
        assert!(reads <= READS_MAX && frames <= PAGES, "{reads} reads");
        most = most.max(reads);
    }
    assert!(most > 0, "nothing was read for a rewrite");
    assert_eq!(machine.node.rewrite_counts().blocks, 0);
    machine.read_ms = 0;
    // They are left alone for three times as long as the reads took.
    machine.wait(700_000);
    assert_eq!(machine.node.rewrite_loads(), (0, 0));
    assert_eq!(read(&mut machine, file, PAGES - 1), [7; PAGE_SIZE]);
    // It goes on.
    write(&mut machine, file, 0, 9);
    machine.wait(60_000);
    assert!(machine.node.rewrite_counts().blocks > 0);
    assert_eq!(read(&mut machine, file, PAGES - 1), [7; PAGE_SIZE]);
    machine.rest().expect("it ends");
}

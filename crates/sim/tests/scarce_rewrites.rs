//! A file system that is nearly full, while blocks are rewritten: nobody is refused for what a rewrite has in hand.

use client::request::{OpenFlags, Operation, Response};
use client::slice::slice_of;
use sim::whole::ace::machine::{Machine, Shape};
use sim::whole::ace::tape::Tape;
use types::{InodeId, Name};

const PAGE: u64 = 4096;
/// Dirty pages are written back when they are so old.
const OLD_MS: u64 = 5_100;

fn shape(rewrites: bool, has_volatile_cache: bool) -> Shape {
    Shape {
        has_volatile_cache,
        data_sectors: 64,
        region_sectors: 16,
        round_ticks: 0,
        part_bounds: None,
        rewrites,
        ..Shape::default()
    }
}

struct File {
    ino: InodeId,
    handle: client::request::Handle,
}

fn create(machine: &mut Machine, name: &str) -> File {
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
        Response::Created(entry, opened) => File {
            ino: entry.attr.ino,
            handle: opened.handle,
        },
        response => panic!("{response:?}"),
    }
}

fn write(machine: &mut Machine, file: &File, page: u64, pages: u64) -> Response {
    let bytes = vec![7; usize::try_from(pages * PAGE).expect("small")];
    let payload = machine.payload(&bytes);
    let response = machine.ask(Operation::Write {
        ino: file.ino,
        handle: file.handle,
        offset: page * PAGE,
        payload,
        is_write_back: false,
        append: false,
        sync: false,
        kill_set_id: false,
    });
    machine.release_payload(payload);
    response.expect("an answer")
}

/// A machine, a file of it of whose first block a part is written over, and one of another slice.
fn aged(shape: &Shape) -> (Machine, File) {
    let disks = Machine::format(shape);
    let tape = Tape::default();
    let mut machine = Machine::start(shape, disks, 2, 1, &tape).expect("it starts");
    let aged = create(&mut machine, "aged");
    let others = (0..32).map(|n| create(&mut machine, &format!("other{n}")));
    let others: Vec<File> = others.collect();
    for (page, pages) in [(0, 4), (1, 1)] {
        let response = write(&mut machine, &aged, page, pages);
        assert!(matches!(response, Response::Written(_)), "{response:?}");
        machine.wait(OLD_MS);
    }
    // A store takes its time.
    machine.disk_ms_max = 400;
    let is_elsewhere = |file: &File| slice_of(file.ino) != slice_of(aged.ino);
    let mut others = others.into_iter();
    (machine, others.find(is_elsewhere).expect("of so many"))
}

/// What a write of so many pages is answered after so long.
fn write_after(shape: &Shape, pages: u64, ms: u64) -> Response {
    let (mut machine, other) = aged(shape);
    machine.wait(ms);
    let response = write(&mut machine, &other, 0, pages);
    machine.rest().expect("it ends");
    response
}

/// When the block has been rewritten, if nobody writes.
fn rewritten_after(shape: &Shape) -> u64 {
    let (mut machine, _) = aged(shape);
    let is_done = |machine: &Machine| machine.node.rewrite_counts().blocks > 0;
    let found = (1..20_000).find(|_| {
        machine.wait(1);
        is_done(&machine)
    });
    found.expect("it is rewritten")
}

/// With and without a rewrite the same number of pages finds room, whenever in the course of the rewrite they are written.
#[test]
fn a_write_finds_the_room_that_a_rewrite_has() {
    for has_volatile_cache in [true, false] {
        let alone = shape(false, has_volatile_cache);
        let is_written = |response: &Response| matches!(response, Response::Written(_));
        let fits = |pages: &u64| is_written(&write_after(&alone, *pages, 100));
        let pages = (60..140).rev().find(fits).expect("there is room");
        let beside = shape(true, has_volatile_cache);
        let end = rewritten_after(&beside);
        let times = (end.saturating_sub(1200)..end + 20).step_by(7);
        let refused: Vec<u64> = times
            .filter(|ms| !is_written(&write_after(&beside, pages, *ms)))
            .collect();
        assert_eq!(refused, [0; 0], "{pages} pages, rewritten after {end} ms");
    }
}

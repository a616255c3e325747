//! Answers, byte by byte where the kernel is strict.

use super::*;
use crate::ticket::{Route, ticket};
use client::request::Handle;
use types::{FileKind, FrameRef, InodeId, SmallBytes, Timestamp};
use zerocopy::FromBytes;

fn attr() -> Attr {
    Attr {
        ino: InodeId::from_raw(0x0002_0000_0000_0007),
        generation: 9,
        kind: FileKind::File,
        permissions: 0o4755,
        nlink: 1,
        uid: 10,
        gid: 20,
        rdev: 0,
        size: 5000,
        sector_count: 2,
        atime: Timestamp { secs: -1, nanos: 5 },
        mtime: Timestamp { secs: 1, nanos: 6 },
        ctime: Timestamp { secs: 2, nanos: 7 },
        btime: Timestamp::default(),
        change: 1,
        size_generation: 1,
        layout: types::Layout::default(),
    }
}

fn entry() -> Entry {
    Entry {
        attr: attr(),
        entry_timeout_ns: 1_500_000_000,
        attr_timeout_ns: 999_999_999,
    }
}

fn bytes_of(response: &Response, plus: bool) -> Vec<u8> {
    let encoded = encode_reply(ticket(42, Route(3), plus).unwrap(), response);
    let mut out = encoded.head().to_vec();
    match &encoded.tail {
        Tail::None | Tail::Spans(_) => {}
        Tail::Bytes(bytes) => out.extend_from_slice(bytes),
        Tail::Owned(bytes) => out.extend_from_slice(bytes),
    }
    let (header, _) = OutHeader::read_from_prefix(&out).unwrap();
    assert_eq!(header.unique, 42);
    if !matches!(response, Response::Data(_)) {
        assert_eq!(header.len as usize, out.len());
    }
    out
}

#[test]
fn sizes_are_those_the_kernel_expects() {
    let opened = Opened {
        handle: Handle(5),
        direct: true,
        keep_cache: false,
        parallel_writes: true,
    };
    for (response, size) in [
        (Response::Done, 0),
        (Response::Error(Errno::ENOENT), 0),
        (Response::Entry(Some(entry()), 0), 128),
        (Response::Entry(None, 7), 128),
        (Response::Attr(attr(), 0), 104),
        (Response::Created(entry(), opened), 144),
        (Response::Opened(opened), 16),
        (Response::Size(3), 8),
        (Response::Written(3), 8),
        (Response::Space(Space::default()), 80),
        (Response::Bytes(SmallBytes::new(b"abc")), 3),
    ] {
        assert_eq!(bytes_of(&response, false).len(), 16 + size, "{response:?}");
    }
}

#[test]
fn errors_out_of_the_kernels_range_become_eio() {
    for (number, wanted) in [(2, -2), (511, -511), (512, -5), (0, -5), (-1, -5)] {
        let bytes = bytes_of(&Response::Error(Errno(number)), false);
        let header = OutHeader::read_from_bytes(&bytes[..]).unwrap();
        assert_eq!(header.error, wanted);
    }
}

#[test]
fn an_entry_carries_times_blocks_and_generation() {
    let bytes = bytes_of(&Response::Entry(Some(entry()), 0), false);
    let out = abi::EntryOut::read_from_bytes(&bytes[16..]).unwrap();
    // Shard 2, index 7: handles that people keep hold this number.
    assert_eq!(out.nodeid, 0x0002_3c6e_f372_fe93);
    assert_eq!(out.attr.ino, 0x0002_0000_0000_0007);
    assert_eq!(out.generation, 9);
    assert_eq!((out.entry_valid, out.entry_valid_nsec), (1, 500_000_000));
    assert_eq!((out.attr_valid, out.attr_valid_nsec), (0, 999_999_999));
    assert_eq!((out.attr.blocks, out.attr.size), (16, 5000));
    assert_eq!(out.attr.mode, 0o104_755);
    assert_eq!((out.attr.atime, out.attr.atimensec), (u64::MAX, 5));
}

#[test]
fn data_counts_its_spans() {
    let span = |length| Span {
        frame: FrameRef(1),
        offset: 0,
        length,
    };
    let bytes = bytes_of(&Response::Data(vec![span(4096), span(100)]), false);
    let header = OutHeader::read_from_bytes(&bytes[..]).unwrap();
    assert_eq!(header.len, 16 + 4196);
    let too_much = Response::Data(vec![span(1 << 20), span(1)]);
    let header = OutHeader::read_from_bytes(&bytes_of(&too_much, false)[..]).unwrap();
    assert_eq!((header.len, header.error), (16, -5));
}

#[test]
fn listings_are_as_long_as_the_client_counts() {
    for plus in [false, true] {
        for size in [1, 7, 8, 9, 255] {
            let one = Listed {
                name: SmallBytes::from(vec![b'x'; size]),
                ino: InodeId::ROOT,
                mode: 0o040_000,
                cookie: 17,
                entry: plus.then(entry),
            };
            let bytes = bytes_of(&Response::Listing(vec![one.clone(), one]), plus);
            assert_eq!(bytes.len(), 16 + 2 * listed_size(size, plus));
            let at = 16 + if plus { 128 } else { 0 };
            let (dirent, _) = abi::Dirent::read_from_prefix(&bytes[at..]).unwrap();
            assert_eq!((dirent.ino, dirent.off, dirent.kind), (1, 17, 4));
            assert_eq!(dirent.namelen as usize, size);
        }
    }
}

#[test]
fn statx_has_the_time_of_birth() {
    let mut attr = attr();
    attr.btime = Timestamp { secs: 3, nanos: 8 };
    attr.kind = FileKind::CharDevice;
    attr.rdev = 0x1230_45ab;
    let out = bytes_of(&Response::Attr(attr, 1_500_000_000), true);
    assert_eq!(out.len(), 16 + 288);
    let (answer, _) = abi::StatxOut::read_from_prefix(&out[16..]).unwrap();
    assert_eq!(
        (answer.attr_valid, answer.attr_valid_nsec),
        (1, 500_000_000)
    );
    let stat = answer.stat;
    assert_eq!((stat.btime.secs, stat.btime.nanos), (3, 8));
    assert_eq!((stat.atime.secs, stat.atime.nanos), (-1, 5));
    assert_eq!((stat.mtime.secs, stat.ctime.secs), (1, 2));
    assert_eq!((stat.size, stat.blocks, stat.nlink), (5000, 16, 1));
    assert_eq!((stat.uid, stat.gid, stat.ino), (10, 20, attr.ino.raw()));
    assert_eq!(stat.mode, 0o020_000 | 0o4755);
    assert_eq!((stat.rdev_major, stat.rdev_minor), (0x045, 0x1_23ab));
    assert_eq!(
        stat.mask & 0x800,
        0x800,
        "the kernel believes what the mask names"
    );
}

#[test]
fn a_seek_is_answered_by_an_offset() {
    let out = bytes_of(&Response::Offset(1 << 62), false);
    assert_eq!(out.len(), 16 + 8);
    let (answer, _) = abi::LseekOut::read_from_prefix(&out[16..]).unwrap();
    assert_eq!(answer.offset, 1 << 62);
}

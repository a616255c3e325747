//! Every opcode, cut short at every byte, and random bytes: errors, never a panic.

use super::*;
use types::FrameRef;
use zerocopy::IntoBytes;

fn header(opcode: u32) -> InHeader {
    InHeader {
        len: 0,
        opcode,
        unique: 42,
        nodeid: 7,
        uid: 1,
        gid: 2,
        pid: 3,
        total_extlen: 0,
        padding: 0,
    }
}

fn call<'a>(opcode: u32, fixed: &'a [u8], rest: &'a [u8]) -> Call<'a> {
    Call {
        header: header(opcode),
        fixed,
        rest,
        payload: None,
        route: Route(5),
    }
}

fn operation(decoded: Decoded<'_>) -> Operation {
    match decoded {
        Decoded::Request(request) => {
            assert_eq!(ticket::unique(request.ticket), 42);
            assert_eq!(ticket::route(request.ticket), Route(5));
            request.operation
        }
        other => panic!("no request: {other:?}"),
    }
}

#[test]
fn lookups_tell_dots_from_names() {
    let look = |rest| decode(&call(opcode::LOOKUP, &[], rest));
    let ino = InodeId::from_raw(7);
    assert_eq!(operation(look(b".\0")), Operation::LookupSelf { ino });
    assert_eq!(operation(look(b"..\0")), Operation::LookupParent { ino });
    let name = Name::new(b"...").unwrap();
    assert_eq!(
        operation(look(b"...\0")),
        Operation::Lookup { parent: ino, name }
    );
    for bad in [&b""[..], b"a", b"a\0b", b"a\0\0", b"a/b\0", b"\0"] {
        assert_eq!(look(bad), Decoded::Refuse(Errno::EINVAL), "{bad:?}");
    }
    let mut long = vec![b'x'; 256];
    long.push(0);
    assert_eq!(look(&long), Decoded::Refuse(Errno::ENAMETOOLONG));
}

#[test]
fn setattr_maps_each_bit() {
    let args = abi::SetAttrIn {
        valid: 0,
        fh: 11,
        size: 100,
        atime: 5,
        mtime: 6,
        atimensec: 7,
        mtimensec: 8,
        mode: 0o100_644,
        uid: 12,
        gid: 13,
        ..Default::default()
    };
    let stamp = |secs, nanos| Some(Some(Timestamp { secs, nanos }));
    use crate::abi::fattr as f;
    let none = SetAttr::default();
    let cases = [
        (0, none),
        (f::LOCKOWNER | f::CTIME | f::FH, none),
        (
            f::MODE,
            SetAttr {
                permissions: Some(0o644),
                ..none
            },
        ),
        (
            f::UID | f::GID,
            SetAttr {
                uid: Some(12),
                gid: Some(13),
                ..none
            },
        ),
        (
            f::SIZE,
            SetAttr {
                size: Some(100),
                ..none
            },
        ),
        (
            f::ATIME,
            SetAttr {
                atime: stamp(5, 7),
                ..none
            },
        ),
        (
            f::MTIME,
            SetAttr {
                mtime: stamp(6, 8),
                ..none
            },
        ),
        (
            f::ATIME | f::ATIME_NOW,
            SetAttr {
                atime: Some(None),
                ..none
            },
        ),
        (
            f::MTIME | f::MTIME_NOW,
            SetAttr {
                mtime: Some(None),
                ..none
            },
        ),
        (
            f::KILL_SUIDGID,
            SetAttr {
                kill_set_id: Some(2),
                ..none
            },
        ),
    ];
    for (valid, wanted) in cases {
        let args = abi::SetAttrIn { valid, ..args };
        let got = operation(decode(&call(opcode::SETATTR, args.as_bytes(), &[])));
        let handle = (valid & f::FH != 0).then_some(Handle(11));
        let ino = InodeId::from_raw(7);
        assert_eq!(
            got,
            Operation::SetAttr {
                ino,
                handle,
                set: wanted
            }
        );
    }
}

#[test]
fn a_write_must_have_the_payload_it_names() {
    let args = abi::WriteIn {
        fh: 3,
        offset: 8192,
        size: 4096,
        write_flags: abi::write_flag::CACHE,
        flags: abi::open_flag::APPEND,
        ..Default::default()
    };
    let mut call = call(opcode::WRITE, args.as_bytes(), &[]);
    assert_eq!(decode(&call), Decoded::Refuse(Errno::EINVAL));
    call.payload = Some(Span {
        frame: FrameRef(9),
        offset: 0,
        length: 4095,
    });
    assert_eq!(decode(&call), Decoded::Refuse(Errno::EINVAL));
    let payload = Span::whole(FrameRef(9));
    call.payload = Some(payload);
    assert_eq!(
        operation(decode(&call)),
        Operation::Write {
            ino: InodeId::from_raw(7),
            handle: Handle(3),
            offset: 8192,
            payload,
            is_write_back: true,
            append: true,
            sync: false,
            kill_set_id: false,
        }
    );
}

#[test]
fn forgets_of_both_kinds() {
    let one = abi::ForgetIn { nlookup: 3 };
    let Decoded::Forgets(list) = decode(&call(opcode::FORGET, one.as_bytes(), &[])) else {
        panic!("no forget");
    };
    let ino = InodeId::from_raw(7);
    assert_eq!(list.collect::<Vec<_>>(), [Forget { ino, count: 3 }]);

    let head = abi::BatchForgetIn { count: 2, dummy: 0 };
    let both = [
        abi::ForgetOne {
            nodeid: 8,
            nlookup: 1,
        },
        abi::ForgetOne {
            nodeid: 9,
            nlookup: 2,
        },
    ];
    let batch = |rest| decode(&call(opcode::BATCH_FORGET, head.as_bytes(), rest));
    let Decoded::Forgets(list) = batch(both.as_bytes()) else {
        panic!("no batch");
    };
    let numbers: Vec<_> = list.map(|f| (f.ino.raw(), f.count)).collect();
    assert_eq!(numbers, [(8, 1), (9, 2)]);
    assert_eq!(batch(&both.as_bytes()[..31]), Decoded::Ignore);
}

#[test]
fn renames_and_their_flags() {
    let rename = |flags| {
        let args = abi::Rename2In {
            newdir: 9,
            flags,
            padding: 0,
        };
        decode_call(&call(opcode::RENAME2, args.as_bytes(), b"a\0b\0")).map(operation)
    };
    for (flags, no_replace, exchange, whiteout) in [
        (0, false, false, false),
        (1, true, false, false),
        (2, false, true, false),
        (4, false, false, true),
        (5, true, false, true),
    ] {
        let Operation::Rename {
            flags, new_parent, ..
        } = rename(flags).unwrap()
        else {
            panic!("no rename");
        };
        assert_eq!(new_parent, InodeId::from_raw(9));
        assert_eq!(
            flags,
            RenameFlags {
                no_replace,
                exchange,
                whiteout
            }
        );
    }
    for bad in [3, 6, 7, 8] {
        assert_eq!(rename(bad), Err(Errno::EINVAL));
    }
}

#[test]
fn open_flags_by_access_mode() {
    for (flags, read, write) in [
        (0, true, false),
        (1, false, true),
        (2, true, true),
        (3, true, false),
    ] {
        let got = open_flags(flags);
        assert_eq!((got.read, got.write), (read, write), "{flags}");
    }
    // O_SYNC includes O_DSYNC's bit.
    assert!(open_flags(0o4_010_000).sync);
    assert!(open_flags(0o40).exec);
    assert!(!open_flags(0).exec);
}

#[test]
fn an_attribute_has_a_name_in_its_name_space() {
    let is_refused = |name: &[u8]| {
        let args = abi::GetXattrIn::default();
        let call = call(opcode::GETXATTR, args.as_bytes(), name);
        decode(&call) == Decoded::Refuse(Errno::EINVAL)
    };
    for bare in [&b"user.\0"[..], b"trusted.\0", b"security.\0", b"\0"] {
        assert!(is_refused(bare));
    }
    // The owner says what it thinks of these.
    for name in [&b"user.a\0"[..], b"user\0", b"other.\0"] {
        assert!(!is_refused(name));
    }
}

#[test]
fn setxattr_wants_exactly_its_value() {
    let args = abi::SetXattrIn {
        size: 3,
        flags: 1,
        ..Default::default()
    };
    let set = |rest| decode(&call(opcode::SETXATTR, args.as_bytes(), rest));
    let Operation::SetXattr {
        name, value, flags, ..
    } = operation(set(b"user.a\0v\0w"))
    else {
        panic!("no setxattr");
    };
    assert_eq!((&*name, &*value, flags), (&b"user.a"[..], &b"v\0w"[..], 1));
    assert_eq!(set(b"user.a\0vw"), Decoded::Refuse(Errno::EINVAL));
    assert_eq!(set(b"user.a"), Decoded::Refuse(Errno::EINVAL));
    assert_eq!(set(b"\0vwx"), Decoded::Refuse(Errno::EINVAL));
}

#[test]
fn space_is_promised_and_holes_are_made() {
    let ask = |mode, offset, length| {
        let args = abi::FallocateIn {
            fh: 5,
            offset,
            length,
            mode,
            padding: 0,
        };
        let bytes = args.as_bytes().to_vec();
        match decode(&call(opcode::FALLOCATE, &bytes, &[])) {
            Decoded::Request(request) => Ok(request.operation),
            Decoded::Refuse(errno) => Err(errno),
            other => panic!("{other:?}"),
        }
    };
    for (mode, keeps_size) in [(3, true), (0x10, false), (0x11, true)] {
        let hole = Operation::Punch {
            ino: InodeId::from_raw(7),
            handle: Handle(5),
            begin: 10,
            end: 30,
            keeps_size,
        };
        assert_eq!(ask(mode, 10, 20), Ok(hole));
        assert_eq!(ask(mode, u64::MAX, 1), Err(Errno::EFBIG));
    }
    for (mode, keeps_size) in [(0, false), (1, true)] {
        let promise = Operation::Allocate {
            ino: InodeId::from_raw(7),
            handle: Handle(5),
            begin: 10,
            end: 30,
            keeps_size,
        };
        assert_eq!(ask(mode, 10, 20), Ok(promise));
        assert_eq!(ask(mode, u64::MAX, 1), Err(Errno::EFBIG));
    }
    for mode in [2, 8, 0x20, 0x40, 0x13, u32::MAX] {
        assert_eq!(ask(mode, 10, 20), Err(Errno::EOPNOTSUPP), "{mode:#x}");
    }
}

#[test]
fn seeks_are_for_data_or_holes() {
    let seek = |whence| {
        let args = abi::LseekIn {
            fh: 1,
            offset: 77,
            whence,
            padding: 0,
        };
        let bytes = args.as_bytes().to_vec();
        match decode(&call(opcode::LSEEK, &bytes, &[])) {
            Decoded::Request(request) => Ok(request.operation),
            other => Err(other == Decoded::Refuse(Errno::EINVAL)),
        }
    };
    for (whence, is_hole) in [(3, false), (4, true)] {
        let ino = InodeId::from_raw(7);
        let offset = 77;
        let expected = Operation::Seek {
            ino,
            offset,
            is_hole,
        };
        assert_eq!(seek(whence), Ok(expected));
    }
    // The kernel answers the others itself.
    for whence in [0, 1, 2, 5, u32::MAX] {
        assert_eq!(seek(whence), Err(true), "{whence}");
    }
}

#[test]
fn a_statx_asks_for_attributes_and_its_ticket_says_in_which_form() {
    let args = abi::StatxIn {
        getattr_flags: 1,
        fh: 5,
        sx_mask: 0xfff,
        ..Default::default()
    };
    let Decoded::Request(request) = decode(&call(opcode::STATX, args.as_bytes(), &[])) else {
        panic!("a request");
    };
    assert!(ticket::is_plus(request.ticket));
    let expected = Operation::GetAttr {
        ino: InodeId::from_raw(7),
        handle: Some(Handle(5)),
    };
    assert_eq!(request.operation, expected);
}

#[test]
fn a_file_without_a_name_is_made_in_a_directory() {
    let args = abi::CreateIn {
        flags: abi::open_flag::RDWR | abi::open_flag::EXCL,
        mode: 0o100_640,
        umask: 0o022,
        open_flags: 0,
    };
    let fixed = args.as_bytes();
    let Decoded::Request(request) = decode(&call(opcode::TMPFILE, fixed, b"/\0")) else {
        panic!("refused");
    };
    let Operation::CreateNameless {
        permissions, flags, ..
    } = request.operation
    else {
        panic!("{request:?}");
    };
    assert_eq!(permissions, 0o640);
    assert!(flags.read && flags.write && flags.exclusive);
    let bare = decode(&call(opcode::TMPFILE, fixed, b"/"));
    assert_eq!(bare, Decoded::Refuse(Errno::EINVAL));
}

#[test]
fn unknown_requests_are_enosys() {
    for unknown in [0, 7, 19, 37, 40, 53, 54, 4096, u32::MAX] {
        let decoded = decode(&call(unknown, &[0; 88], b"x\0"));
        assert_eq!(decoded, Decoded::Refuse(Errno::ENOSYS), "{unknown}");
    }
}

#[test]
fn copies_name_both_files() {
    let mut args = abi::CopyFileRangeIn {
        fh_in: 1,
        off_in: 2,
        nodeid_out: 9,
        fh_out: 3,
        off_out: 4,
        length: u64::MAX,
        flags: 0,
    };
    let bytes = args.as_bytes().to_vec();
    let Decoded::CopyRange(copy) = decode(&call(opcode::COPY_FILE_RANGE, &bytes, &[])) else {
        panic!("a copy");
    };
    let place = |ino, handle, offset| CopyPlace {
        ino: InodeId::from_raw(ino),
        handle: Handle(handle),
        offset,
    };
    assert_eq!((copy.source, copy.target), (place(7, 1, 2), place(9, 3, 4)));
    assert_eq!(copy.length, u64::MAX);
    args.flags = 1;
    let bytes = args.as_bytes().to_vec();
    let decoded = decode(&call(opcode::COPY_FILE_RANGE, &bytes, &[]));
    assert_eq!(decoded, Decoded::Refuse(Errno::EINVAL));
}

#[test]
fn one_ioctl_is_known() {
    let ask = |cmd| {
        let args = abi::IoctlIn {
            cmd,
            arg: 0x1234,
            out_size: 4,
            ..abi::IoctlIn::default()
        };
        let bytes = args.as_bytes().to_vec();
        match decode(&call(opcode::IOCTL, &bytes, &[])) {
            Decoded::ShutDown(asked) => Ok(asked.address),
            Decoded::Refuse(errno) => Err(errno),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(ask(abi::IOC_SHUTDOWN), Ok(0x1234));
    for other in [0, abi::IOC_SHUTDOWN + 1, 0x8008_6601] {
        assert_eq!(ask(other), Err(Errno::ENOTTY), "{other:#x}");
    }
}

#[test]
fn short_requests_of_every_opcode_are_refused_or_ignored() {
    for opcode in 0..64 {
        let whole = fixed_size(opcode);
        for size in 0..whole {
            let zeros = vec![0; size];
            match decode(&call(opcode, &zeros, &[])) {
                Decoded::Refuse(_) | Decoded::Ignore => {}
                other => panic!("opcode {opcode} with {size} of {whole} bytes: {other:?}"),
            }
        }
    }
}

#[test]
fn random_bytes_never_panic() {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    for round in 0..200_000_u64 {
        let opcode = (round % 60) as u32;
        let bytes: Vec<u8> = (0..next() % 160)
            .map(|_| if next() % 3 == 0 { 0 } else { next() as u8 })
            .collect();
        let cut = fixed_size(opcode).min(bytes.len());
        let mut call = call(opcode, &bytes[..cut], &bytes[cut..]);
        call.header.nodeid = next() % 3;
        call.header.unique = next() >> (next() % 64);
        call.payload = Some(Span {
            frame: FrameRef(0),
            offset: 0,
            length: (next() % 4) as u32,
        });
        if let Decoded::Forgets(list) = decode(&call) {
            assert!(list.count() <= bytes.len());
        }
    }
}

#[test]
fn the_ticket_of_a_read_says_whether_it_may_be_asynchronous() {
    for (read_flags, is_direct) in [(abi::read_flag::LOCKOWNER, true), (0, false)] {
        let args = abi::ReadIn {
            read_flags,
            ..Default::default()
        };
        let Decoded::Request(request) = decode(&call(opcode::READ, args.as_bytes(), &[])) else {
            panic!("a request");
        };
        assert_eq!(ticket::is_apart(request.ticket), is_direct);
    }
}

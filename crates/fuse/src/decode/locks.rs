//! GETLK, SETLK and SETLKW.

use client::request::{Handle, Operation};
use types::{ByteRange, Errno, Lock, LockKind, LockMode, LockOwner};

use super::Call;
use crate::abi::{self, lock_type as t, opcode};

/// A request about locks.
pub(super) fn decode(call: &Call<'_>) -> Result<Operation, Errno> {
    let args: abi::LkIn = call.args()?;
    let ino = call.ino()?;
    let is_flock = args.lk_flags & abi::lk_flag::FLOCK != 0;
    let owner = LockOwner {
        kind: if is_flock {
            LockKind::Flock
        } else {
            LockKind::Posix
        },
        id: args.owner,
    };
    let range = match (is_flock, args.end) {
        (true, _) => ByteRange::ALL,
        (false, end) if end < args.start || args.start > abi::LOCK_END_MAX => {
            return Err(Errno::EINVAL);
        }
        (false, end) if end >= abi::LOCK_END_MAX => ByteRange::new(args.start, u64::MAX),
        (false, end) => ByteRange::new(args.start, end + 1),
    };
    let mode = match args.kind {
        t::RDLCK => LockMode::Read,
        t::WRLCK => LockMode::Write,
        t::UNLCK if call.header.opcode != opcode::GETLK => {
            return Ok(Operation::ClearLock { ino, owner, range });
        }
        _ => return Err(Errno::EINVAL),
    };
    let lock = Lock {
        owner,
        mode,
        range,
        pid: args.pid,
    };
    Ok(match call.header.opcode {
        opcode::GETLK => Operation::GetLock { ino, lock },
        number => Operation::SetLock {
            ino,
            handle: Handle(args.fh),
            lock,
            waits: number == opcode::SETLKW,
        },
    })
}

#[cfg(test)]
mod tests {
    use zerocopy::IntoBytes as _;

    use super::*;
    use crate::abi::{InHeader, LkIn, LkOut, lk_flag};
    use crate::encode::encode_reply;
    use crate::ticket::{self, Route};
    use client::request::Response;
    use types::InodeId;

    fn decoded(opcode: u32, args: &LkIn) -> Result<Operation, Errno> {
        let header = InHeader {
            opcode,
            nodeid: 7,
            ..InHeader::default()
        };
        decode(&Call {
            header,
            fixed: args.as_bytes(),
            rest: &[],
            payload: None,
            route: Route(0),
        })
    }

    fn lock(kind: LockKind, mode: LockMode, range: ByteRange) -> Lock {
        Lock {
            owner: LockOwner { kind, id: 9 },
            mode,
            range,
            pid: 4,
        }
    }

    #[test]
    fn kinds_and_ranges_are_told_apart() {
        let args = LkIn {
            fh: 3,
            owner: 9,
            start: 10,
            end: 19,
            kind: t::WRLCK,
            pid: 4,
            ..LkIn::default()
        };
        let ino = InodeId::from_raw(7);
        let write = lock(LockKind::Posix, LockMode::Write, ByteRange::new(10, 20));
        let set = |lock, waits| {
            Ok(Operation::SetLock {
                ino,
                handle: Handle(3),
                lock,
                waits,
            })
        };
        assert_eq!(decoded(opcode::SETLK, &args), set(write, false));
        assert_eq!(decoded(opcode::SETLKW, &args), set(write, true));
        let test = Operation::GetLock { ino, lock: write };
        assert_eq!(decoded(opcode::GETLK, &args), Ok(test));
        let endless = LkIn {
            end: abi::LOCK_END_MAX,
            kind: t::RDLCK,
            ..args
        };
        let all = ByteRange::new(10, u64::MAX);
        let read = lock(LockKind::Posix, LockMode::Read, all);
        assert_eq!(decoded(opcode::SETLK, &endless), set(read, false));
        let flock = LkIn {
            lk_flags: lk_flag::FLOCK,
            ..endless
        };
        let read = lock(LockKind::Flock, LockMode::Read, ByteRange::ALL);
        assert_eq!(decoded(opcode::SETLK, &flock), set(read, false));
        let unlock = LkIn {
            kind: t::UNLCK,
            ..args
        };
        let clear = Operation::ClearLock {
            ino,
            owner: write.owner,
            range: write.range,
        };
        assert_eq!(decoded(opcode::SETLKW, &unlock), Ok(clear));
        assert_eq!(decoded(opcode::GETLK, &unlock), Err(Errno::EINVAL));
        for bad in [LkIn { kind: 3, ..args }, LkIn { end: 9, ..args }] {
            assert_eq!(decoded(opcode::SETLK, &bad), Err(Errno::EINVAL));
        }
    }

    #[test]
    fn a_lock_in_the_way_is_shown_with_its_last_byte() {
        let ticket = ticket::ticket(42, Route(0), false).expect("a ticket");
        let shown = |lock| {
            let response = Response::Lock(lock);
            encode_reply(ticket, &response).body().to_vec()
        };
        let free = LkOut {
            kind: t::UNLCK,
            ..LkOut::default()
        };
        assert_eq!(shown(None), free.as_bytes());
        for (end, last) in [(20, 19), (u64::MAX, abi::LOCK_END_MAX)] {
            let range = ByteRange::new(10, end);
            let read = LkOut {
                start: 10,
                end: last,
                kind: t::RDLCK,
                pid: 4,
            };
            let lock = lock(LockKind::Posix, LockMode::Read, range);
            assert_eq!(shown(Some(lock)), read.as_bytes());
        }
    }
}

//! Files and directories that lose their names while they are open: applications beside those of the kernel model.
//!
//! Each of them has one name, and the same bytes all the time; some are made without a name (O_TMPFILE), which
//! only who made it may give it, while he has it open. On every node somebody may look it up, open, read, touch,
//! remove and close it, one after the other.
//!
//! What is judged: who has a file open reads its bytes until it is closed or its node has crashed, whoever else crashes;
//! and when all is closed no owner keeps an inode without a name.

use client::request::{Handle, NewKind, OpenFlags, Operation, Response, Ticket};
use types::{Errno, InodeId, Name, SetAttr};

use super::super::front::{gather, no_change, payload};
use super::World;

/// Calls concerning one of them.
const CALL_COUNT: u32 = 24;
/// Its name goes among the last so many.
const LATE_CALL_COUNT: u32 = 14;
/// In so many ticks at rest whatever the owners wait for has come: the time of an open that may be on its way, and some
/// repeats.
const REST_TICKS: u64 = 5000;

/// A file or directory that is to lose its name.
#[derive(Debug)]
pub(super) struct Hold {
    name: Name,
    ino: InodeId,
    is_directory: bool,
    bytes: Vec<u8>,
    /// Somebody has begun to remove its name, or it was made without.
    is_removed: bool,
    /// The node that has made it without a name and may give it one.
    namer: Option<usize>,
    calls_left: u32,
    seats: Vec<Seat>,
}

/// Somebody on a node who uses it.
#[derive(Debug, Default)]
struct Seat {
    pending: Option<(Ticket, Act)>,
    handle: Option<Handle>,
    lookup_count: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Act {
    Look,
    Open,
    Read,
    Touch,
    Name,
    Remove,
    Close,
}

impl World {
    /// Makes them, with bytes that are durable.
    pub(super) fn set_up_holds(&mut self) {
        for number in 0..self.options.hold_count {
            if self.violation.is_some() {
                return;
            }
            let index = usize::try_from(self.prng.below(self.machines.len() as u64));
            let index = index.expect("few machines");
            let name = Name::new(format!("h{number}").as_bytes()).expect("a name");
            let every = self.options.nameless_every;
            let is_nameless = every > 0 && number % every == every - 1;
            let is_directory = self.prng.chance(1, 4) && !is_nameless;
            let machines = self.machines.iter();
            let mut seats: Vec<Seat> = machines.map(|_| Seat::default()).collect();
            let made = if is_directory {
                self.make_directory(index, &name).map(|ino| (ino, 0))
            } else {
                let size = if self.prng.chance(1, 2) { 1024 } else { 8192 };
                let made = match is_nameless {
                    true => self.make_nameless(index, size, &mut seats[index]),
                    false => self.make_file(index, &name, size),
                };
                made.map(|ino| (ino, size))
            };
            let Some((ino, size)) = made else {
                return self.fail(format!("set-up: {name:?} cannot be made"));
            };
            self.holds.push(Hold {
                name,
                ino,
                is_directory,
                bytes: bytes_of(ino, size),
                is_removed: is_nameless,
                namer: is_nameless.then_some(index),
                calls_left: CALL_COUNT,
                seats,
            });
        }
    }

    fn make_directory(&mut self, index: usize, name: &Name) -> Option<InodeId> {
        let parent = self.machines[index].front.directory;
        let operation = Operation::Make {
            parent,
            name: name.clone(),
            kind: NewKind::Directory { permissions: 0o755 },
        };
        let Some(Response::Entry(Some(entry), _)) = self.own_request(index, operation) else {
            return None;
        };
        let ino = entry.attr.ino;
        // Or a crash may take its name.
        let fsync = Operation::FsyncDir {
            ino: parent,
            handle: Handle(0),
        };
        let synced = self.own_request(index, fsync);
        self.forget(index, ino, 1);
        matches!(synced, Some(Response::Done)).then_some(ino)
    }

    fn make_file(&mut self, index: usize, name: &Name, size: usize) -> Option<InodeId> {
        let operation = Operation::Create {
            parent: self.machines[index].front.directory,
            name: name.clone(),
            permissions: 0o644,
            flags: OpenFlags {
                read: true,
                write: true,
                exclusive: true,
                ..OpenFlags::default()
            },
        };
        let Some(Response::Created(entry, opened)) = self.own_request(index, operation) else {
            return None;
        };
        let (ino, handle) = (entry.attr.ino, opened.handle);
        let payload = payload(&self.machines[index].node.memory, &bytes_of(ino, size))?;
        let [written, synced] = self.write_and_sync(index, (ino, handle), payload);
        self.own_request(index, Operation::Release { ino, handle })?;
        self.forget(index, ino, 1);
        let is_there =
            matches!(written, Some(Response::Written(_))) && matches!(synced, Some(Response::Done));
        is_there.then_some(ino)
    }

    /// A file without a name, open at `seat`.
    fn make_nameless(&mut self, index: usize, size: usize, seat: &mut Seat) -> Option<InodeId> {
        let operation = Operation::CreateNameless {
            parent: self.machines[index].front.directory,
            permissions: 0o644,
            flags: OpenFlags {
                read: true,
                write: true,
                ..OpenFlags::default()
            },
        };
        let Some(Response::Created(entry, opened)) = self.own_request(index, operation) else {
            return None;
        };
        let (ino, handle) = (entry.attr.ino, opened.handle);
        let payload = payload(&self.machines[index].node.memory, &bytes_of(ino, size))?;
        let [written, synced] = self.write_and_sync(index, (ino, handle), payload);
        (seat.handle, seat.lookup_count) = (Some(handle), 1);
        let is_there =
            matches!(written, Some(Response::Written(_))) && matches!(synced, Some(Response::Done));
        is_there.then_some(ino)
    }

    fn forget(&mut self, index: usize, ino: InodeId, count: u64) {
        let machine = &mut self.machines[index];
        let request = machine.front.own(Operation::Forget { ino, count });
        machine.node.request(request);
    }

    /// Lets one of those who use them go on; false if the one that was picked cannot.
    pub(super) fn act_hold(&mut self) -> bool {
        let machine_count = self.machines.len();
        let pick = self.prng.below((self.holds.len() * machine_count) as u64);
        let pick = usize::try_from(pick).expect("an index");
        let (at, index) = (pick / machine_count, pick % machine_count);
        if self.holds[at].seats[index].pending.is_some() {
            return self.take_answer(at, index);
        }
        let may_begin = self.may_begin && self.machines[index].has_files();
        if !may_begin || self.holds[at].calls_left == 0 || !self.prng.chance(1, 4) {
            return false;
        }
        let is_open = self.holds[at].seats[index].handle.is_some();
        let act = match (is_open, self.prng.below(8)) {
            (_, 7) if self.holds[at].calls_left <= LATE_CALL_COUNT => Act::Remove,
            (false, _) => Act::Look,
            (true, 0..=3) if !self.holds[at].is_directory => Act::Read,
            (true, 4) if self.holds[at].is_removed => Act::Close,
            (true, _) if self.holds[at].namer == Some(index) => Act::Name,
            (true, _) => Act::Touch,
        };
        self.holds[at].calls_left -= 1;
        self.begin_act(at, index, act);
        true
    }

    fn begin_act(&mut self, at: usize, index: usize, act: Act) {
        let machine = &mut self.machines[index];
        let parent = machine.front.directory;
        let hold = &mut self.holds[at];
        let (ino, name, is_directory) = (hold.ino, hold.name.clone(), hold.is_directory);
        let seat = &mut hold.seats[index];
        let handle = seat.handle.unwrap_or(Handle(0));
        let operation = match act {
            Act::Look => Operation::Lookup { parent, name },
            Act::Open if is_directory => Operation::OpenDir { ino },
            Act::Open => Operation::Open {
                ino,
                flags: OpenFlags {
                    read: true,
                    ..OpenFlags::default()
                },
            },
            Act::Read => Operation::Read {
                ino,
                handle,
                offset: 0,
                length: u32::try_from(hold.bytes.len()).expect("small"),
                fills_page_cache: false,
            },
            Act::Touch => Operation::SetAttr {
                ino,
                handle: None,
                set: SetAttr {
                    permissions: Some(0o640),
                    ..no_change()
                },
            },
            Act::Name => {
                hold.namer = None;
                Operation::Link { ino, parent, name }
            }
            Act::Remove => {
                hold.is_removed = true;
                match is_directory {
                    true => Operation::Rmdir { parent, name },
                    false => Operation::Unlink { parent, name },
                }
            }
            Act::Close if is_directory => Operation::ReleaseDir { ino, handle },
            Act::Close => Operation::Release { ino, handle },
        };
        if act == Act::Close {
            seat.handle = None;
        }
        let request = machine.front.own(operation);
        seat.pending = Some((request.ticket, act));
        machine.node.request(request);
        self.note(|| format!("node {index}: h{at} {act:?}"));
    }

    fn take_answer(&mut self, at: usize, index: usize) -> bool {
        let seat = &mut self.holds[at].seats[index];
        let Some((ticket, act)) = seat.pending else {
            return false;
        };
        let Some(response) = self.machines[index].own_answers.remove(&ticket) else {
            return false;
        };
        seat.pending = None;
        self.last_finished = self.now;
        self.note(|| format!("node {index}: h{at} {act:?}: {response:?}"));
        let hold = &mut self.holds[at];
        let seat = &mut hold.seats[index];
        // A directory is opened without a token: its owner may not know.
        let may_be_gone = hold.is_removed && (hold.is_directory || seat.handle.is_none());
        let is_gone = matches!(
            &response,
            Response::Error(Errno::ENOENT | Errno::ESTALE) | Response::Entry(None, _)
        );
        match (act, response) {
            (_, _) if is_gone && (may_be_gone || act == Act::Remove) => {}
            (Act::Look, Response::Entry(Some(entry), _)) if entry.attr.ino == hold.ino => {
                seat.lookup_count += 1;
                self.begin_act(at, index, Act::Open);
            }
            (Act::Name, Response::Entry(Some(entry), _)) if entry.attr.ino == hold.ino => {
                seat.lookup_count += 1;
            }
            (Act::Open, Response::Opened(opened)) => seat.handle = Some(opened.handle),
            (Act::Read, Response::Data(spans)) => {
                let node = &self.machines[index].node;
                let seen = gather(&spans, &node.memory);
                spans.iter().for_each(|span| node.release(*span));
                if seen != hold.bytes {
                    self.fail(format!(
                        "node {index}: h{at} has other bytes while it is open"
                    ));
                }
            }
            (Act::Touch, Response::Attr(..)) | (Act::Remove | Act::Close, Response::Done) => {}
            (_, response) => {
                self.fail(format!(
                    "node {index}: h{at} is open, {act:?}: {response:?}"
                ));
            }
        }
        true
    }

    /// A node has crashed: nobody there uses them any more.
    pub(super) fn drop_seats(&mut self, index: usize) {
        for hold in &mut self.holds {
            hold.seats[index] = Seat::default();
            hold.namer = hold.namer.filter(|namer| *namer != index);
        }
    }

    /// Closes and removes all of them.
    pub(super) fn end_holds(&mut self) {
        self.last_finished = self.now;
        for at in 0..self.holds.len() {
            for index in 0..self.machines.len() {
                self.await_seat(at, index);
                if self.holds[at].seats[index].handle.is_some() {
                    self.begin_act(at, index, Act::Close);
                    self.await_seat(at, index);
                }
                let count = std::mem::take(&mut self.holds[at].seats[index].lookup_count);
                self.forget(index, self.holds[at].ino, count);
            }
            // It may have crashed a moment ago.
            while self.violation.is_none() && !self.machines[0].has_files() {
                self.step();
            }
            self.begin_act(at, 0, Act::Remove);
            self.await_seat(at, 0);
        }
    }

    fn await_seat(&mut self, at: usize, index: usize) {
        while self.violation.is_none() && self.holds[at].seats[index].pending.is_some() {
            if !self.take_answer(at, index) {
                self.step();
            }
        }
    }

    /// Nobody has anything open that has no name: no owner keeps such an inode for long.
    pub(super) fn find_orphans(&mut self) {
        let until = self.now + REST_TICKS;
        while self.violation.is_none() {
            let shards = self.machines.iter().flat_map(|m| &m.node.shards).flatten();
            let orphans: Vec<InodeId> = shards.flat_map(|s| s.shard.orphans()).collect();
            if orphans.is_empty() {
                return;
            }
            if self.now > until {
                let shards = self.machines.iter().flat_map(|m| &m.node.shards).flatten();
                let lives: Vec<_> = self.machines.iter().map(|m| m.node.me).collect();
                let holders: Vec<_> = shards
                    .flat_map(|s| s.shard.orphans().map(move |ino| (ino, s)))
                    .map(|(ino, s)| {
                        let holders = lives.iter().filter(|l| s.shard.is_open_at(ino, **l));
                        (ino, holders.map(|l| l.node).collect::<Vec<_>>())
                    })
                    .collect();
                return self.fail(format!("{holders:?} have no name and are kept"));
            }
            self.last_finished = self.now;
            self.step();
        }
    }
}

/// What the file holds.
fn bytes_of(ino: InodeId, size: usize) -> Vec<u8> {
    ino.raw().to_le_bytes().repeat(size / 8)
}

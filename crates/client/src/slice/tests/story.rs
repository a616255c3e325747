//! What a slice is told a story with: a pool in plain memory, sectors as the story wants them, and the requests, answers and revokes of one
//! inode.

use std::cell::RefCell;

use data::SetAside;
use token::message::{Granted, Revoke};
use types::frame::FRAME_SIZE;
use types::id::NodeLife;
use types::{
    Attr, ByteRange, DirectoryMode, Duration, Holding, Incarnation, InodeMode, Pattern, RangeMode,
    Run, SmallBytes, Timestamp, TokenKind, TokenNumber, Want,
};

use super::super::*;
use crate::env::{Grants, TakenRun, WantedRun};
use crate::message::Body;
use crate::request::{Caller, OpenFlags};

pub(super) const PAGE: u64 = FRAME_SIZE as u64;
pub(super) const INO: InodeId = InodeId::new(ShardId(0), 2);

/// Frames in plain memory, in any number unless there is a limit.
#[derive(Default)]
pub(crate) struct Memory(
    pub(crate) RefCell<Vec<(u32, Vec<u8>)>>,
    pub(crate) Option<u64>,
);

impl Memory {
    pub(crate) fn bytes(&self, span: Span) -> Vec<u8> {
        let frames = self.0.borrow();
        let begin = span.offset as usize;
        frames[span.frame.0 as usize].1[begin..begin + span.length as usize].to_vec()
    }

    pub(crate) fn put(&self, span: Span, bytes: &[u8]) {
        let begin = span.offset as usize;
        let frame = &mut self.0.borrow_mut()[span.frame.0 as usize].1;
        frame[begin..begin + bytes.len()].copy_from_slice(bytes);
    }
}

impl crate::Pool for Memory {
    fn alloc(&self) -> Option<FrameRef> {
        if self.frame_counts().1 == 0 {
            return None;
        }
        let mut frames = self.0.borrow_mut();
        frames.push((1, vec![0xee; FRAME_SIZE]));
        Some(FrameRef(u32::try_from(frames.len() - 1).expect("few")))
    }
    fn alloc_slab(&self) -> Option<FrameRef> {
        None
    }
    fn retain(&self, frame: FrameRef) {
        self.0.borrow_mut()[frame.0 as usize].0 += 1;
    }
    fn release(&self, frame: FrameRef) {
        self.0.borrow_mut()[frame.0 as usize].0 -= 1;
    }
    fn is_shared(&self, frame: FrameRef) -> bool {
        self.0.borrow()[frame.0 as usize].0 > 1
    }
    fn copy(&self, source: Span, target: Span) {
        let bytes = self.bytes(source);
        self.put(target, &bytes);
    }
    fn zero(&self, target: Span) {
        self.put(target, &vec![0; target.length as usize]);
    }
    fn load(&self, source: Span) -> SmallBytes {
        SmallBytes::new(&self.bytes(source))
    }
    fn store(&self, target: Span, bytes: &[u8]) {
        self.put(target, bytes);
    }
    fn crc(&self, source: Span) -> u32 {
        let mut crc = types::checksum::Crc32c::default();
        crc.update(&self.bytes(source));
        crc.finish()
    }
    fn frame_counts(&self) -> (u64, u64) {
        let Some(limit) = self.1 else {
            return (1 << 20, 1 << 20);
        };
        let used = self.0.borrow().iter().filter(|frame| frame.0 > 0).count();
        (limit, limit - used as u64)
    }
    fn levels(&self) -> crate::pool::Levels {
        crate::pool::Levels {
            reserve: 2,
            requests: 3,
            intake: 4,
            low: 4,
        }
    }
}

/// Any number of sectors to reserve, or none, and some to write to; without those, what is small goes inside of Commits.
pub(super) struct Plenty<'a> {
    pub(super) is_full: bool,
    pub(super) has_sectors: bool,
    pub(super) has_room: bool,
    pub(super) spare: &'a std::cell::Cell<Spare>,
    /// The sectors are for promised ranges alone.
    pub(super) are_promised: bool,
    /// At once.
    pub(super) sectors_max: u64,
}

/// What was done with sectors that nobody waits for.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub(super) struct Spare {
    /// Times that some were asked for.
    pub(super) asked: u64,
    /// Runs taken.
    pub(super) taken: u64,
    /// Of runs: given back.
    pub(super) discarded: u64,
    /// Sectors given back where there are no others.
    pub(super) in_hand: u64,
    /// As the slice said last.
    pub(super) returning: u64,
}

impl Plenty<'_> {
    pub(super) fn note(&self, change: impl FnOnce(&mut Spare)) {
        let mut spare = self.spare.get();
        change(&mut spare);
        self.spare.set(spare);
    }
}

impl Grants for Plenty<'_> {
    fn reserve(&self, _owner: NodeId, sectors: u64) -> bool {
        let is_there = self.spare.get().in_hand >= sectors;
        if self.is_full && is_there {
            self.note(|spare| spare.in_hand -= sectors);
        }
        !self.is_full || is_there
    }
    fn reserve_spare(&self, _owner: NodeId, _sectors: u64) -> bool {
        self.note(|spare| spare.asked += 1);
        !self.is_full
    }
    fn reserve_promised(&self, _owner: NodeId, sectors: u64) -> Option<SetAside> {
        (!self.is_full).then_some(SetAside::plain(sectors))
    }
    fn unreserve(&self, _owner: NodeId, part: SetAside) {
        if self.is_full {
            self.note(|spare| spare.in_hand += part.sectors());
        }
    }
    fn note_returning(&self, _owner: NodeId, sectors: u64) {
        self.note(|spare| spare.returning = sectors);
    }
    fn take(
        &self,
        _owner: NodeId,
        wanted: &[WantedRun],
        reserved: SetAside,
    ) -> Option<Vec<TakenRun>> {
        let taken = |(index, wanted): (usize, &WantedRun)| TakenRun {
            wanted: index,
            file_sector: wanted.file_sector,
            count: wanted.count,
            run: Run {
                at: types::Location {
                    nsd: types::NsdId(1),
                    sector: 1000 + wanted.file_sector,
                },
                count: wanted.count,
            },
        };
        let count: u64 = wanted.iter().map(|run| u64::from(run.count)).sum();
        if self.is_full {
            let others = count.saturating_sub(reserved.sectors());
            let left = self.spare.get().in_hand.checked_sub(others)?;
            self.note(|spare| spare.in_hand = left);
        }
        let is_there = !self.are_promised || wanted.iter().all(|run| run.is_promised);
        (self.has_sectors && is_there && count <= self.sectors_max)
            .then(|| wanted.iter().enumerate().map(taken).collect())
    }
    fn take_spare(
        &self,
        owner: NodeId,
        wanted: &[WantedRun],
        reserved: SetAside,
    ) -> Option<Vec<TakenRun>> {
        let taken = self
            .has_room
            .then(|| self.take(owner, wanted, reserved))
            .flatten();
        self.note(|spare| spare.taken += taken.iter().flatten().count() as u64);
        taken
    }
    fn committed(&self, _owner: NodeId, _runs: &[Run]) {}
    fn burn(&self, _owner: NodeId, _runs: &[Run]) {}
    fn discard(&self, _owner: NodeId, runs: &[Run]) {
        self.note(|spare| spare.discarded += runs.len() as u64);
    }
}

pub(super) struct Story {
    pub(super) slice: Slice,
    pub(super) memory: Memory,
    pub(super) has_sectors: bool,
    pub(super) are_promised: bool,
    pub(super) sectors_max: u64,
    pub(super) is_full: bool,
    /// On the NSDs of the file's layout.
    pub(super) has_room: bool,
    /// Commits of rewrites fail.
    pub(super) commit_error: Option<Errno>,
    pub(super) spare: std::cell::Cell<Spare>,
    pub(super) has_volatile_nsd: bool,
    /// Of all shards; this node is the first.
    pub(super) owner: NodeId,
    pub(super) ticket: u64,
    pub(super) pid: u32,
    pub(super) number: u64,
    pub(super) attr: Attr,
    pub(super) now: Instant,
    pub(super) timestamp: Timestamp,
    pub(super) readers: crate::Readers,
    pub(super) pace: crate::Pace,
}

impl Story {
    pub(super) fn new(size: u64) -> Self {
        let now = Timestamp::default();
        let attr = Attr {
            size,
            ..Attr::new(INO, 7, types::FileKind::File, 0o644, now)
        };
        let mut slice = Slice::new(slice_of(INO), vec![ShardId(0)]);
        slice.fill_kernel();
        Self {
            slice,
            memory: Memory::default(),
            has_sectors: false,
            are_promised: false,
            sectors_max: u64::MAX,
            is_full: false,
            has_room: true,
            commit_error: None,
            spare: std::cell::Cell::default(),
            has_volatile_nsd: false,
            owner: NodeId(2),
            pid: 1,
            ticket: 0,
            number: 0,
            attr,
            now: Instant(1),
            timestamp: Timestamp { secs: 9, nanos: 0 },
            readers: crate::Readers::new(types::limits::DIRECT_SIZE_MIN, 0),
            pace: crate::Pace::default(),
        }
    }

    pub(super) fn input(&mut self, input: Input) -> Vec<Effect> {
        let mut out = Vec::new();
        self.with_env(|slice, env| slice.on_input(env, input, &mut out));
        self.slice.check();
        out
    }

    pub(super) fn with_env<R>(&mut self, act: impl FnOnce(&mut Slice, &Env<'_>) -> R) -> R {
        let env = Env {
            now: self.now,
            timestamp: self.timestamp,
            lease: Duration::from_secs(10),
            life: NodeLife {
                node: NodeId(1),
                incarnation: Incarnation(1),
            },
            pool: &self.memory,
            grants: &Plenty {
                is_full: self.is_full,
                has_sectors: self.has_sectors,
                has_room: self.has_room,
                spare: &self.spare,
                are_promised: self.are_promised,
                sectors_max: self.sectors_max,
            },
            readers: &self.readers,
            pace: &self.pace,
            owners: &[self.owner],
            has_volatile_nsd: self.has_volatile_nsd,
        };
        act(&mut self.slice, &env)
    }

    pub(super) fn ask(&mut self, operation: Operation) -> Vec<Effect> {
        self.ask_as(0, operation)
    }

    pub(super) fn ask_as(&mut self, uid: u32, operation: Operation) -> Vec<Effect> {
        self.ticket += 1;
        self.input(Input::Request(Request {
            ticket: Ticket(self.ticket),
            caller: Caller {
                uid,
                gid: 0,
                pid: self.pid,
                ..Caller::default()
            },
            operation,
        }))
    }

    /// Write-back of the first page, full of `byte`.
    pub(super) fn write_back(&mut self, byte: u8) -> Vec<Effect> {
        self.write(byte, true)
    }

    /// Write of the first page, full of `byte`.
    pub(super) fn write(&mut self, byte: u8, is_write_back: bool) -> Vec<Effect> {
        let frame = crate::Pool::alloc(&self.memory).expect("plenty");
        let payload = Span::whole(frame);
        self.memory.put(payload, &[byte; FRAME_SIZE]);
        self.ask(Operation::Write {
            ino: INO,
            handle: Handle(0),
            offset: 0,
            payload,
            is_write_back,
            append: false,
            sync: false,
            kill_set_id: false,
        })
    }

    /// The kernel writes a page back, whatever is in it.
    pub(super) fn write_page_back(&mut self, page: u64) -> Vec<Effect> {
        let frame = crate::Pool::alloc(&self.memory).expect("plenty");
        self.ask(Operation::Write {
            ino: INO,
            handle: Handle(0),
            offset: page * PAGE,
            payload: Span::whole(frame),
            is_write_back: true,
            append: false,
            sync: false,
            kill_set_id: false,
        })
    }

    /// INO is a directory that the kernel knows, and this node may keep its names.
    pub(super) fn hold_directory(&mut self) {
        let attr = self.attr;
        self.number = 1;
        let inode = self.slice.inode(INO);
        inode.learn_attr(&attr);
        inode.lookup_count = 1;
        inode.holder.on_granted(&granted(INO, 1, NAMES), true);
    }

    /// Opens the file for writing, with these tokens.
    pub(super) fn open(&mut self, mode: InodeMode, writes: ByteRange) {
        let effects = self.ask_open();
        self.grant(&effects, mode, writes);
    }

    /// Opens it to be written; what is asked for that.
    pub(super) fn ask_open(&mut self) -> Vec<Effect> {
        self.ask(Operation::Open {
            ino: INO,
            flags: OpenFlags {
                write: true,
                ..OpenFlags::default()
            },
        })
    }

    /// Answers the token question among `effects`: the right to write to these bytes is held from now on.
    pub(super) fn grant(
        &mut self,
        effects: &[Effect],
        mode: InodeMode,
        writes: ByteRange,
    ) -> Vec<Effect> {
        self.grant_ranges(effects, mode, &[(RangeMode::Write, writes)])
    }

    /// The same with these ranges.
    pub(super) fn grant_ranges(
        &mut self,
        effects: &[Effect],
        mode: InodeMode,
        held: &[(RangeMode, ByteRange)],
    ) -> Vec<Effect> {
        let call = effects.iter().find_map(|effect| match effect {
            Effect::Call(call, _, Ask::Acquire { .. }) => Some(*call),
            _ => None,
        });
        self.number += 1;
        let number = TokenNumber(self.number);
        let ranges = held.iter().map(|(mode, range)| TokenKind::Range {
            mode: *mode,
            patterns: vec![Pattern::plain(*range)],
        });
        let holding = |kind| Holding {
            ino: INO,
            number,
            kind,
        };
        let inode = TokenKind::Inode { mode };
        let granted = Granted {
            ticket: 0,
            ino: INO,
            number,
            holdings: std::iter::once(inode).chain(ranges).map(holding).collect(),
            contended: false,
        };
        let answer = Answer {
            body: Body::Acquired {
                attr: Some(self.attr),
            },
            grants: vec![granted],
        };
        self.input(Input::Answer(
            call.expect("tokens are asked for"),
            Box::new(answer),
        ))
    }

    /// Answers the notifications among `effects` and those that follow; the rest.
    pub(super) fn carry_out(&mut self, mut left: Vec<Effect>) -> Vec<Effect> {
        let mut done = Vec::new();
        while let Some(effect) = left.pop() {
            match effect {
                Effect::Notify(Some(id), _) => left.extend(self.input(Input::Notified(id))),
                other => done.push(other),
            }
        }
        done
    }

    pub(super) fn revoke(&mut self, revoke: u64, wants: Vec<Want>) -> Vec<Effect> {
        self.input(Input::Revoke(
            NodeId(2),
            Revoke {
                ino: INO,
                number: TokenNumber(self.number),
                revoke,
                wants,
            },
        ))
    }

    /// What follows when the kernel has dropped the attributes that it is told to.
    pub(super) fn notified(&mut self, effects: Vec<Effect>) -> Vec<Effect> {
        let mut all = Vec::new();
        for effect in effects {
            match effect {
                Effect::Notify(Some(id), Notice::Attributes { .. }) => {
                    all.extend(self.input(Input::Notified(id)));
                }
                other => all.push(other),
            }
        }
        all
    }

    /// The directory's names are wanted, and its attributes dropped.
    pub(super) fn revoke_names(&mut self, revoke: u64, mode: DirectoryMode) -> Vec<Effect> {
        let effects = self.revoke(revoke, vec![Want::Directory { mode }]);
        self.notified(effects)
    }

    pub(super) fn answer(&mut self, call: CallId, reply: meta::Reply) -> Vec<Effect> {
        self.input(Input::Answer(call, Box::new(Answer::bare(Body::Op(reply)))))
    }

    /// What is left when the slice has done what it wants done by itself.
    pub(super) fn settle(&mut self, effects: Vec<Effect>) -> Vec<Effect> {
        let mut left = VecDeque::from(effects);
        let mut others = Vec::new();
        while let Some(effect) = left.pop_front() {
            match effect {
                // Where a reader of its directories goes from there is another slice's matter.
                Effect::ForSlice(ino, Input::Turn(_)) if slice_of(ino) != slice_of(INO) => {}
                Effect::ForSlice(ino, input) => {
                    assert_eq!(slice_of(ino), slice_of(INO));
                    left.extend(self.input(input));
                }
                other => others.push(other),
            }
        }
        others
    }
}

/// The right to keep the names of a directory.
pub(super) const NAMES: TokenKind = TokenKind::Directory {
    mode: DirectoryMode::Read,
    hash_begin: 0,
    hash_end: u64::MAX,
};

/// A token, for which nobody asked by its own question.
pub(super) fn granted(ino: InodeId, number: u64, kind: TokenKind) -> Granted {
    let number = TokenNumber(number);
    Granted {
        ticket: 0,
        ino,
        number,
        holdings: vec![Holding { ino, number, kind }],
        contended: false,
    }
}

/// The question to an owner among `effects`.
pub(super) fn call_of(effects: &[Effect]) -> CallId {
    let call = effects.iter().find_map(|effect| match effect {
        Effect::Call(call, ..) => Some(*call),
        _ => None,
    });
    call.unwrap_or_else(|| panic!("the owner is asked: {effects:?}"))
}

/// Holes up to `end`.
pub(super) fn holes_to(s: &Story, end: u64) -> meta::Reply {
    meta::Reply::Map {
        extents: Vec::new(),
        pieces: Vec::new(),
        end,
        map_version: 1,
        attr: s.attr,
    }
}

pub(super) fn write_want(range: ByteRange) -> Want {
    let required = Pattern::plain(range);
    Want::Range {
        mode: RangeMode::Write,
        required,
        desired: required,
    }
}

pub(super) fn commit_of(effects: &[Effect]) -> Option<(CallId, meta::Commit)> {
    effects.iter().find_map(|effect| match effect {
        Effect::Call(
            call,
            _,
            Ask::Op {
                op: meta::Op::Commit(commit),
                ..
            },
        ) => Some((*call, commit.clone())),
        _ => None,
    })
}

pub(super) fn is_released(effects: &[Effect]) -> bool {
    let is_release = |effect: &Effect| matches!(effect, Effect::Release(..));
    effects.iter().any(is_release)
}

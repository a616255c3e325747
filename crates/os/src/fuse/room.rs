//! The waiting room: WRITEs that have come and for whose bytes no slab of the pagepool is free.
//!
//! ```text
//! a serving thread: read --> payload in a slab ------------------------------------------> Handler
//!                       \--> payload in memory of its own --> queue --> the room's thread --> a slab --> Handler
//! ```
//!
//! Where the disks are slow and the pagepool is full of what they have not taken, writers wait, and nobody else does: a thread that finds
//! no slab goes on reading into memory of its own.
//!
//! Invariants
//! - What waits holds `SIZE_MAX` bytes at the most, or is one WRITE; a thread that finds the room full waits at its door. The last `SERVING_MIN` serving threads
//!   do not, up to `ALL_SIZE_MAX`, so that others than writers are served; nor do those of the ring. Serving threads hold one landing each beside that.
//! - Who came first gets the first slab, also of those at the door: while anybody waits, serving threads take none.
//! - A WRITE is handed on once, or refused with EINTR when its caller got a signal `PATIENCE` ago, and nothing of it has been done then. When the connection
//!   has ended it is dropped: nobody waits for it.
//! - The bytes of a WRITE are not dispatched after `Handler::on_destroy`: the room's thread is one of those that have to end before.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use fuse::abi::InHeader;
use fuse::{Call, Route};
use types::{Errno, FrameRef, InodeId, Span, limits};

use super::device::release_slab;
use super::memory::{Memory, frames_of};
use super::session::{self, Serving, SessionError};

/// Bytes that wait, unless all who could serve others would wait at the door.
const SIZE_MAX: usize = 32 << 20;
/// Bytes that wait, at all.
const ALL_SIZE_MAX: usize = 256 << 20;
/// So many serving threads are kept from the door.
const SERVING_MIN: usize = 2;
/// A slab comes free so soon where disks are quick: before a thread lands in memory of its own.
const SLAB_PATIENCE: Duration = Duration::from_millis(20);
/// How often somebody looks for a slab while none is free.
const LOOK_INTERVAL: Duration = Duration::from_millis(1);
/// As `client::interrupts` has it: who calls a file system seldom expects EINTR.
const PATIENCE: Duration = Duration::from_secs(5);
/// Signals that are kept for those that are on their way in.
const EARLY_COUNT_MAX: usize = 64;
/// How often a thread at the door looks whether the connection has ended.
const END_INTERVAL: Duration = Duration::from_millis(100);
/// Bytes of one that waits, beside its payload.
const GUEST_SIZE: usize = 256;
/// How often the log says that WRITEs wait.
const LOG_INTERVAL: Duration = Duration::from_secs(1);
/// Payloads from here on stay in the memory they have landed in; smaller ones are copied out of it.
const LARGE_PAYLOAD_MIN: usize = 256 << 10;

/// Memory that a thread's next request goes to: `limits::MAX_WRITE` bytes.
#[derive(Debug)]
pub(super) enum Landing {
    /// A slab of the pagepool.
    Slab(FrameRef),
    /// No slab was free.
    Own(Box<[u8]>),
}

impl Landing {
    fn own() -> Self {
        Self::Own(vec![0; limits::MAX_WRITE].into_boxed_slice())
    }

    /// Nowhere, for as long as no request is read.
    pub(super) fn none() -> Self {
        Self::Own(Box::default())
    }

    /// The first byte.
    pub(super) fn address(&mut self, memory: &dyn Memory) -> *mut u8 {
        match self {
            Self::Slab(slab) => memory.address(*slab),
            Self::Own(bytes) => bytes.as_mut_ptr(),
        }
    }

    /// The first `size` bytes.
    ///
    /// # Safety
    /// Nobody else writes them while the slice lives.
    pub(super) unsafe fn bytes<'a>(&'a self, memory: &'a dyn Memory, size: usize) -> &'a [u8] {
        match self {
            // SAFETY: whose landing this is holds a reference of each frame; the caller answers for the rest.
            Self::Slab(slab) => unsafe { memory.slice(whole(*slab, size)) },
            Self::Own(bytes) => &bytes[..size],
        }
    }

    /// Gives the memory back.
    pub(super) fn release(self, memory: &dyn Memory) {
        if let Self::Slab(slab) = self {
            release_slab(memory, slab);
        }
    }
}

/// The first `size` bytes of a slab.
pub(super) fn whole(slab: FrameRef, size: usize) -> Span {
    Span {
        frame: slab,
        offset: 0,
        length: u32::try_from(size).expect("a slab is 1 MiB"),
    }
}

/// The file of a WRITE, its process, and since when it waits.
type Seen = (InodeId, u32, Instant);

/// A WRITE that waits.
#[derive(Debug)]
pub(super) struct Guest {
    header: InHeader,
    /// Arguments.
    fixed: Box<[u8]>,
    /// At least `size` bytes.
    payload: Box<[u8]>,
    size: usize,
    route: Route,
    since: Instant,
    /// In which it came.
    number: u64,
    /// Its caller got a signal.
    signalled: Option<Instant>,
}

impl Guest {
    /// A WRITE with its payload, the first `size` bytes of `landing`, which is taken where it is worth it.
    pub(super) fn new(
        (header, fixed): (InHeader, &[u8]),
        (landing, size): (&mut Box<[u8]>, usize),
        route: Route,
    ) -> Self {
        let payload = if size < LARGE_PAYLOAD_MIN {
            Box::from(&landing[..size])
        } else {
            std::mem::take(landing)
        };
        Self::with(header, fixed, (payload, size), route)
    }

    fn with(header: InHeader, fixed: &[u8], payload: (Box<[u8]>, usize), route: Route) -> Self {
        let (payload, size) = payload;
        Self {
            header,
            fixed: Box::from(fixed),
            payload,
            size,
            route,
            since: Instant::now(),
            number: 0,
            signalled: None,
        }
    }

    /// Its file, its process, and for how long it waits.
    fn seen(&self) -> Seen {
        let ino = fuse::inode_of(self.header.nodeid);
        (ino, self.header.pid, self.since)
    }

    /// Its caller got a signal so long ago.
    fn is_given_up(&self, patience: Duration) -> bool {
        self.signalled.is_some_and(|at| at.elapsed() >= patience)
    }

    /// A WRITE whose payload is copied.
    pub(super) fn copied(header: InHeader, fixed: &[u8], payload: &[u8], route: Route) -> Self {
        Self::with(header, fixed, (Box::from(payload), payload.len()), route)
    }
}

#[derive(Debug, Default)]
struct State {
    guests: VecDeque<Guest>,
    /// Requests whose callers got a signal, and when, while somebody was on its way in: one of them may be its.
    early: VecDeque<(u64, Instant)>,
    /// Bytes of theirs.
    size: usize,
    /// WRITEs that serving threads have at the door, by their numbers.
    at_door: BTreeMap<u64, Seen>,
    next_number: u64,
    has_ended: bool,
}

impl State {
    /// When the caller of this request got a signal, if it did before this was known here.
    fn take_early(&mut self, unique: u64) -> Option<Instant> {
        let at = self.early.iter().position(|(known, _)| *known == unique)?;
        self.early.remove(at).map(|(_, at)| at)
    }
}

/// See `Room::coming`.
#[derive(Debug)]
pub(super) struct Coming<'a>(&'a Room);

impl Drop for Coming<'_> {
    fn drop(&mut self) {
        if self.0.coming_count.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.lock().early.clear();
        }
    }
}

/// See the module.
#[derive(Debug)]
pub(super) struct Room {
    state: Mutex<State>,
    /// Somebody came, or the connection has ended.
    came: Condvar,
    /// Somebody went, or the connection has ended.
    went: Condvar,
    /// Serving threads that have a WRITE in hand which is in no list.
    coming_count: AtomicUsize,
    /// `state` has guests, or the thread is about to hand one on.
    is_occupied: AtomicBool,
    /// Serving threads; none: those of the ring, of which each has its own processor's requests.
    thread_count: Option<usize>,
    patience: Duration,
}

impl Room {
    /// With so many serving threads; none: over the ring.
    pub(super) fn new(thread_count: Option<usize>) -> Self {
        Self {
            thread_count,
            state: Mutex::default(),
            came: Condvar::new(),
            went: Condvar::new(),
            coming_count: AtomicUsize::new(0),
            is_occupied: AtomicBool::new(false),
            patience: PATIENCE,
        }
    }

    /// A slab for a serving thread; none while others wait for one.
    pub(super) fn slab(&self, memory: &dyn Memory) -> Option<FrameRef> {
        if self.is_occupied.load(Ordering::Acquire) {
            return None;
        }
        memory.alloc_slab()
    }

    /// A slab for a serving thread, which waits for a moment where none is free.
    pub(super) fn slab_soon(&self, memory: &dyn Memory) -> Option<FrameRef> {
        if let Some(slab) = self.slab(memory) {
            return Some(slab);
        }
        let begun = Instant::now();
        while !self.is_occupied.load(Ordering::Acquire) && begun.elapsed() < SLAB_PATIENCE {
            std::thread::sleep(LOOK_INTERVAL);
            if let Some(slab) = self.slab(memory) {
                return Some(slab);
            }
        }
        None
    }

    /// Where a serving thread's next request goes.
    pub(super) fn landing(&self, memory: &dyn Memory) -> Landing {
        self.slab_soon(memory)
            .map_or_else(Landing::own, Landing::Slab)
    }

    /// A serving thread has a WRITE in hand that may come here. Signals to its caller are kept as long as the answer lives.
    pub(super) fn coming(&self) -> Coming<'_> {
        self.coming_count.fetch_add(1, Ordering::AcqRel);
        Coming(self)
    }

    /// Has a WRITE wait for a slab. Waits itself while the room is full, but not beyond the end of the connection, which `has_ended` tells.
    ///
    /// # Errors
    /// Its caller got a signal long ago: it is to hear EINTR.
    pub(super) fn enter(
        &self,
        mut guest: Guest,
        has_ended: impl Fn() -> bool,
    ) -> Result<(), (Route, u64)> {
        let mut state = self.lock();
        let size = guest.payload.len() + GUEST_SIZE;
        guest.number = state.next_number;
        state.next_number += 1;
        while !state.has_ended && !self.may_enter(&state, guest.number, size) {
            state.at_door.insert(guest.number, guest.seen());
            let waited = self.went.wait_timeout(state, END_INTERVAL);
            state = waited.expect("no holder panics").0;
            state.at_door.remove(&guest.number);
            state.has_ended |= has_ended();
            guest.signalled = guest
                .signalled
                .or_else(|| state.take_early(guest.header.unique));
            if guest.is_given_up(self.patience) {
                return Err((guest.route, guest.header.unique));
            }
        }
        if state.has_ended {
            return Ok(());
        }
        guest.signalled = guest
            .signalled
            .or_else(|| state.take_early(guest.header.unique));
        state.size += size;
        let is_before = |other: &Guest| other.number < guest.number;
        let at = state.guests.partition_point(is_before);
        state.guests.insert(at, guest);
        self.is_occupied.store(true, Ordering::Release);
        drop(state);
        self.came.notify_one();
        Ok(())
    }

    /// Whether a WRITE of this number and size need not wait at the door.
    fn may_enter(&self, state: &State, number: u64, size: usize) -> bool {
        let has_room = state.size + size <= self.size_max(state);
        // Nobody who came later goes before it.
        state
            .guests
            .front()
            .is_none_or(|front| has_room || front.number > number)
    }

    /// How full the room gets before a thread that comes now waits at the door.
    fn size_max(&self, state: &State) -> usize {
        match self.thread_count {
            Some(count) if state.at_door.len() + SERVING_MIN < count => SIZE_MAX,
            _ => ALL_SIZE_MAX,
        }
    }

    /// The caller of a request got a signal. True if it waits here, and will be told when it is handed on.
    pub(super) fn interrupt(&self, unique: u64) -> bool {
        let mut state = self.lock();
        let is_it = |guest: &&mut Guest| guest.header.unique == unique;
        let Some(guest) = state.guests.iter_mut().find(is_it) else {
            if self.coming_count.load(Ordering::Acquire) > 0 {
                state.early.truncate(EARLY_COUNT_MAX - 1);
                state.early.push_front((unique, Instant::now()));
            }
            return false;
        };
        guest.signalled.get_or_insert_with(Instant::now);
        true
    }

    /// The WRITEs that wait: their file, their process, and for how long.
    pub(super) fn waiting(&self) -> Vec<(InodeId, u32, Duration)> {
        let state = self.lock();
        let inside = state.guests.iter().map(Guest::seen);
        let all = inside.chain(state.at_door.values().copied());
        all.map(|(ino, pid, since)| (ino, pid, since.elapsed()))
            .collect()
    }

    /// The connection has ended.
    pub(super) fn end(&self) {
        self.lock().has_ended = true;
        self.came.notify_all();
        self.went.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no holder panics")
    }

    /// Starts the room's thread; `serving` has this room.
    pub(super) fn start(serving: &Arc<Serving>) -> Result<JoinHandle<()>, SessionError> {
        let shared = Arc::clone(serving);
        serving.on_thread_start();
        let spawned = std::thread::Builder::new()
            .name("fuse-room".to_owned())
            .spawn(move || {
                session::serve_without_reclaim();
                shared.replier.room.serve(&shared);
                shared.on_thread_end();
            });
        spawned.map_err(|source| SessionError::Io {
            call: "spawn",
            source,
        })
    }

    /// Hands on who waits until the connection has ended.
    fn serve(&self, serving: &Serving) {
        let memory = &**serving.replier.memory();
        let mut slab = None;
        let mut logged = Instant::now();
        while self.wait_for_guest(memory, &mut slab) {
            slab = slab.or_else(|| memory.alloc_slab());
            let Some(target) = slab else {
                self.give_up(serving);
                self.log(&mut logged);
                std::thread::sleep(LOOK_INTERVAL);
                continue;
            };
            if let Some(guest) = self.next()
                && self.hand_on(serving, guest, target)
            {
                slab = None;
            }
        }
        if let Some(slab) = slab {
            release_slab(memory, slab);
        }
    }

    /// Waits for somebody; false when the connection has ended. A slab that nobody waits for is given back.
    fn wait_for_guest(&self, memory: &dyn Memory, slab: &mut Option<FrameRef>) -> bool {
        let mut state = self.lock();
        while state.guests.is_empty() && !state.has_ended {
            self.is_occupied.store(false, Ordering::Release);
            if let Some(slab) = slab.take() {
                release_slab(memory, slab);
            }
            state = self.came.wait(state).expect("no holder panics");
        }
        if state.has_ended {
            state.guests.clear();
        }
        !state.has_ended
    }

    fn next(&self) -> Option<Guest> {
        let mut state = self.lock();
        let guest = state.guests.pop_front()?;
        state.size -= guest.payload.len() + GUEST_SIZE;
        drop(state);
        self.went.notify_all();
        Some(guest)
    }

    /// Hands a WRITE on with its bytes in `slab`. True: somebody keeps them, and the slab is given up.
    fn hand_on(&self, serving: &Serving, guest: Guest, slab: FrameRef) -> bool {
        let memory = &**serving.replier.memory();
        let payload = whole(slab, guest.size);
        // SAFETY: the slab is 1 MiB of which this thread holds the only references, and `size` is no more than
        // the payload has; the two do not overlap, as one of them is memory of its own.
        unsafe {
            std::ptr::copy_nonoverlapping(
                guest.payload.as_ptr(),
                memory.address(slab),
                guest.size.min(guest.payload.len()),
            );
        }
        let call = Call {
            header: guest.header,
            fixed: &guest.fixed,
            rest: &[],
            payload: Some(payload),
            route: guest.route,
        };
        let unique = guest.header.unique;
        serving.dispatch((guest.route, unique), fuse::decode(&call), &[]);
        if guest.signalled.is_some() {
            serving.interrupt(unique);
        }
        let is_kept = frames_of(payload).any(|frame| memory.is_shared(frame));
        if is_kept {
            release_slab(memory, slab);
        }
        is_kept
    }

    /// Whose caller got a signal long ago hears EINTR.
    fn give_up(&self, serving: &Serving) {
        let is_due = |guest: &Guest| guest.is_given_up(self.patience);
        let mut state = self.lock();
        let mut due = Vec::new();
        while let Some(at) = state.guests.iter().position(is_due) {
            let guest = state.guests.remove(at).expect("it was just found");
            state.size -= guest.payload.len() + GUEST_SIZE;
            due.push((guest.route, guest.header.unique));
        }
        drop(state);
        if !due.is_empty() {
            self.went.notify_all();
        }
        for (route, unique) in due {
            serving.refuse((route, unique), Errno::EINTR);
        }
    }

    /// Says now and then that WRITEs wait.
    fn log(&self, logged: &mut Instant) {
        let state = self.lock();
        let Some(waited) = state.guests.front().map(|guest| guest.since.elapsed()) else {
            return;
        };
        let count = state.guests.len();
        drop(state);
        if waited >= LOG_INTERVAL && logged.elapsed() >= LOG_INTERVAL {
            *logged = Instant::now();
            tracing::warn!(
                count,
                seconds = waited.as_secs(),
                "no free slab for WRITEs: they wait for the disks"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guest(unique: u64, size: usize) -> Guest {
        let bytes = [0; 80];
        let (mut header, fixed) = fuse::split(&bytes).expect("a header");
        header.unique = unique;
        Guest::with(header, fixed, (vec![1; size].into(), size), Route(3))
    }

    /// Also where the signal came before the WRITE was in any list, and while it waits at the door.
    #[test]
    fn who_got_a_signal_does_not_wait_at_the_door_for_ever() {
        let patience = Duration::from_millis(300);
        let room = Room {
            patience,
            ..Room::new(Some(SERVING_MIN + 1))
        };
        for unique in 1..=31 {
            let entered = room.enter(guest(unique, 1 << 20), || false);
            assert_eq!(entered, Ok(()));
        }
        assert!(!room.interrupt(100), "nobody is coming");
        let begun = Instant::now();
        std::thread::scope(|scope| {
            let comes = scope.spawn(|| {
                let coming = room.coming();
                let entered = room.enter(guest(100, 1 << 20), || false);
                drop(coming);
                entered
            });
            while room.coming_count.load(Ordering::Acquire) == 0 {
                std::thread::yield_now();
            }
            assert!(!room.interrupt(100), "it is in no list");
            assert_eq!(comes.join().expect("no panic"), Err((Route(3), 100)));
        });
        assert!(begun.elapsed() >= patience);
        assert!(room.lock().early.is_empty());
        assert_eq!(room.waiting().len(), 31);
        // Small ones find room beside them, and a signal of before goes along.
        let coming = room.coming();
        assert!(!room.interrupt(200));
        assert_eq!(room.enter(guest(200, 10), || false), Ok(()));
        drop(coming);
        assert!(
            room.lock()
                .guests
                .back()
                .expect("it is in")
                .signalled
                .is_some()
        );
        assert!(room.interrupt(7));
        // The end of the connection ends all waits.
        assert_eq!(room.enter(guest(300, 1 << 20), || true), Ok(()));
        assert_eq!(room.waiting().len(), 32);
    }

    /// Others than writers are served by them.
    #[test]
    fn the_last_threads_do_not_wait_at_the_door() {
        let fill = |room: &Room, count: u64| {
            for unique in 0..count {
                let entered = room.enter(guest(unique, 1 << 20), || false);
                assert_eq!(entered, Ok(()));
            }
        };
        fill(&Room::new(None), 255);
        let room = Room::new(Some(SERVING_MIN + 1));
        fill(&room, 31);
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| room.enter(guest(100, 1 << 20), || false));
            while room.lock().at_door.is_empty() {
                std::thread::yield_now();
            }
            assert_eq!(room.waiting().len(), 32, "whoever waits is seen");
            fill(&room, 224);
            let other = scope.spawn(|| room.enter(guest(101, 1 << 20), || false));
            while room.lock().at_door.len() < 2 {
                std::thread::yield_now();
            }
            room.end();
            for waits in [waits, other] {
                assert_eq!(waits.join().expect("no panic"), Ok(()));
            }
        });
    }

    /// Others come all the time, and keep the room full: who is at the door is handed on before those that came later.
    #[test]
    fn who_waits_at_the_door_is_overtaken_by_nobody() {
        let room = Room::new(Some(SERVING_MIN + 1));
        let enter = |unique| room.enter(guest(unique, 1 << 20), || false);
        let next = || room.next().expect("somebody waits").header.unique;
        for unique in 0..31 {
            assert_eq!(enter(unique), Ok(()));
        }
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| enter(100));
            while room.lock().at_door.is_empty() {
                std::thread::sleep(LOOK_INTERVAL);
            }
            for unique in 200..260 {
                assert_eq!(enter(unique), Ok(()));
            }
            for unique in 0..31 {
                assert_eq!(next(), unique);
            }
            // The room is as full as before.
            assert_eq!(waits.join().expect("no panic"), Ok(()));
            assert_eq!([next(), next()], [100, 200]);
        });
    }
}

//! Which frames are free: a bitmap per slab, sets of slabs that have some, and carves.
//!
//! A *carve* is the slab from which the threads that share it take single frames. There are a few, so
//! that threads rarely meet.

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard};

use types::FrameRef;
use types::frame::FRAMES_PER_SLAB;

const CARVE_COUNT: usize = 8;
const WORDS: usize = FRAMES_PER_SLAB as usize / 64;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// All frames free, in the set of free slabs.
    Free,
    /// In a carve, which alone takes its frames.
    Carving,
    /// Handed out frame by frame before; in the set of carved slabs when it has free frames.
    Carved,
    /// Handed out whole; in the set of leftover slabs when it has free frames.
    Whole,
    /// Wanted whole: its frames are not handed out, those that come back stay.
    Draining,
}

#[derive(Debug)]
struct Slab {
    free: [u64; WORDS],
    free_count: u32,
    state: State,
}

/// Slabs by number, with a count; the lowest number comes first, because its memory is warm.
#[derive(Debug)]
struct SlabSet {
    words: Vec<u64>,
    /// No slab of the set is in a word before this one.
    first: usize,
}

impl SlabSet {
    fn new(slab_count: u32) -> Self {
        Self {
            words: vec![0; (slab_count as usize).div_ceil(64)],
            first: 0,
        }
    }

    fn insert(&mut self, slab: u32) {
        let word = slab as usize / 64;
        self.words[word] |= 1 << (slab % 64);
        self.first = self.first.min(word);
    }

    fn remove(&mut self, slab: u32) {
        self.words[slab as usize / 64] &= !(1 << (slab % 64));
    }

    fn pop(&mut self) -> Option<u32> {
        while let Some(word) = self.words.get_mut(self.first) {
            if *word != 0 {
                let bit = word.trailing_zeros();
                *word &= *word - 1;
                let base = u32::try_from(self.first * 64).expect("slab numbers are u32");
                return Some(base + bit);
            }
            self.first += 1;
        }
        None
    }
}

#[derive(Debug)]
struct Sets {
    free: SlabSet,
    carved: SlabSet,
    leftover: SlabSet,
}

/// The free frames of a pool.
#[derive(Debug)]
pub(super) struct Slabs {
    slabs: Box<[Mutex<Slab>]>,
    sets: Mutex<Sets>,
    carves: [Mutex<Option<u32>>; CARVE_COUNT],
    free_slab_count: AtomicU32,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex
        .lock()
        .expect("no code panics while it holds a lock of the pool")
}

impl Slab {
    fn take(&mut self) -> Option<u32> {
        let word = self.free.iter().position(|w| *w != 0)?;
        let bit = self.free[word].trailing_zeros();
        self.free[word] &= self.free[word] - 1;
        self.free_count -= 1;
        Some(u32::try_from(word * 64).expect("at most 256") + bit)
    }
}

impl Slabs {
    pub(super) fn new(slab_count: u32) -> Self {
        let mut free = SlabSet::new(slab_count);
        for slab in 0..slab_count {
            free.insert(slab);
        }
        let new_slab = |_| {
            Mutex::new(Slab {
                free: [u64::MAX; WORDS],
                free_count: FRAMES_PER_SLAB,
                state: State::Free,
            })
        };
        Self {
            slabs: (0..slab_count).map(new_slab).collect(),
            sets: Mutex::new(Sets {
                free,
                carved: SlabSet::new(slab_count),
                leftover: SlabSet::new(slab_count),
            }),
            carves: [const { Mutex::new(None) }; CARVE_COUNT],
            free_slab_count: AtomicU32::new(slab_count),
        }
    }

    /// A free frame, no longer free.
    pub(super) fn take_frame(&self) -> Option<FrameRef> {
        let own = carve_of_thread();
        if let Some(frame) = self.take_from_carve(&mut lock(&self.carves[own]), true) {
            return Some(frame);
        }
        // Nothing is left but what other threads carve.
        (0..CARVE_COUNT)
            .filter(|other| *other != own)
            .find_map(|other| self.take_from_carve(&mut lock(&self.carves[other]), false))
    }

    /// A free slab, no longer free.
    pub(super) fn take_slab(&self) -> Option<u32> {
        if let Some(slab) = self.pop_free(State::Whole) {
            return Some(slab);
        }
        // A carve may sit on a slab of which nothing is in use.
        for carve in &self.carves {
            let mut carve = lock(carve);
            let Some(index) = *carve else { continue };
            let mut slab = lock(&self.slabs[index as usize]);
            if slab.free_count == FRAMES_PER_SLAB {
                *carve = None;
                slab.become_held(State::Whole);
                return Some(index);
            }
        }
        None
    }

    /// The last reference of `frame` is gone.
    pub(super) fn give_frame(&self, frame: FrameRef) {
        let index = frame.0 / FRAMES_PER_SLAB;
        let (word, bit) = (frame.0 % FRAMES_PER_SLAB / 64, frame.0 % 64);
        let mut slab = lock(&self.slabs[index as usize]);
        assert_eq!(slab.free[word as usize] & (1 << bit), 0, "freed once");
        slab.free[word as usize] |= 1 << bit;
        slab.free_count += 1;
        match (slab.state, slab.free_count) {
            (State::Carving, _) => {}
            (State::Free, _) => unreachable!("a free slab has no frame to give back"),
            (State::Carved | State::Whole | State::Draining, FRAMES_PER_SLAB) => {
                slab.state = State::Free;
                let mut sets = lock(&self.sets);
                sets.carved.remove(index);
                sets.leftover.remove(index);
                sets.free.insert(index);
                self.free_slab_count.fetch_add(1, Ordering::Relaxed);
            }
            (State::Carved, 1) => lock(&self.sets).carved.insert(index),
            (State::Whole, 1) => lock(&self.sets).leftover.insert(index),
            (State::Carved | State::Whole | State::Draining, _) => {}
        }
    }

    /// Slabs all of whose frames are free, but for those that threads carve.
    pub(super) fn free_slab_count(&self) -> u32 {
        self.free_slab_count.load(Ordering::Relaxed)
    }

    /// Slabs that may be drained, those with the fewest frames in use first; of equal ones those behind
    /// `hand` first. Looks at every slab.
    pub(super) fn candidates(&self, hand: u32) -> Vec<u32> {
        let count = u32::try_from(self.slabs.len()).expect("slab numbers are u32");
        let mut found = Vec::new();
        for step in 0..count {
            let index = (hand + step) % count;
            let slab = lock(&self.slabs[index as usize]);
            if matches!(slab.state, State::Carved | State::Whole) {
                found.push((FRAMES_PER_SLAB - slab.free_count, index));
            }
        }
        found.sort_by_key(|(held, _)| *held);
        found.into_iter().map(|(_, index)| index).collect()
    }

    /// From now on nothing of the slab is handed out. False: it is in another use by now.
    pub(super) fn drain(&self, index: u32) -> bool {
        let mut slab = lock(&self.slabs[index as usize]);
        if !matches!(slab.state, State::Carved | State::Whole) {
            return false;
        }
        slab.state = State::Draining;
        let mut sets = lock(&self.sets);
        sets.carved.remove(index);
        sets.leftover.remove(index);
        true
    }

    /// The slab still drains.
    pub(super) fn is_draining(&self, index: u32) -> bool {
        lock(&self.slabs[index as usize]).state == State::Draining
    }

    /// Gives draining up: its free frames are handed out again.
    pub(super) fn undrain(&self, index: u32) {
        let mut slab = lock(&self.slabs[index as usize]);
        if slab.state == State::Draining {
            slab.state = State::Carved;
            if slab.free_count > 0 {
                lock(&self.sets).carved.insert(index);
            }
        }
    }

    /// Frames of a slab that are in use.
    pub(super) fn held(&self, index: u32) -> Vec<FrameRef> {
        let slab = lock(&self.slabs[index as usize]);
        let is_held = |frame: &u32| slab.free[*frame as usize / 64] & (1 << (frame % 64)) == 0;
        let held = (0..FRAMES_PER_SLAB).filter(is_held);
        held.map(|frame| FrameRef(index * FRAMES_PER_SLAB + frame))
            .collect()
    }

    fn take_from_carve(&self, carve: &mut Option<u32>, refill: bool) -> Option<FrameRef> {
        loop {
            if let Some(index) = *carve {
                let mut slab = lock(&self.slabs[index as usize]);
                if let Some(frame) = slab.take() {
                    return Some(FrameRef(index * FRAMES_PER_SLAB + frame));
                }
                // Full: its frames come back through the set of carved slabs.
                slab.state = State::Carved;
                *carve = None;
            }
            if !refill {
                return None;
            }
            *carve = Some(
                self.pop_partial(State::Carved)
                    .or_else(|| self.pop_free(State::Carving))
                    .or_else(|| self.pop_partial(State::Whole))?,
            );
        }
    }

    /// A slab out of the set of `state`, now in the caller's carve.
    fn pop_partial(&self, state: State) -> Option<u32> {
        loop {
            let mut sets = lock(&self.sets);
            let set = match state {
                State::Carved => &mut sets.carved,
                State::Whole => &mut sets.leftover,
                State::Free | State::Carving | State::Draining => {
                    unreachable!("not partly free and in a set")
                }
            };
            let index = set.pop()?;
            drop(sets);
            // Between the locks its last frame may have come back, and the slab is free; then it is in
            // that set, and we look further.
            let mut slab = lock(&self.slabs[index as usize]);
            if slab.state == state && slab.free_count > 0 {
                slab.state = State::Carving;
                return Some(index);
            }
        }
    }

    /// A slab out of the set of free ones, in its new state: `Whole` slabs have no free frame.
    fn pop_free(&self, target: State) -> Option<u32> {
        let index = lock(&self.sets).free.pop()?;
        self.free_slab_count.fetch_sub(1, Ordering::Relaxed);
        let mut slab = lock(&self.slabs[index as usize]);
        // Only who popped it from the set can change a free slab, so it still is one.
        assert_eq!(slab.state, State::Free);
        assert_eq!(slab.free_count, FRAMES_PER_SLAB);
        slab.become_held(target);
        Some(index)
    }
}

impl Slab {
    fn become_held(&mut self, target: State) {
        self.state = target;
        if target == State::Whole {
            self.free = [0; WORDS];
            self.free_count = 0;
        }
    }
}

/// Threads are dealt to the carves in turn.
fn carve_of_thread() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static OWN: Cell<usize> = Cell::new(NEXT.fetch_add(1, Ordering::Relaxed) % CARVE_COUNT);
    }
    OWN.get()
}

//! The pages of trees in memory: a cache with a hard limit, and the fetches that fill it.
//!
//! Invariants (`check` asserts them)
//! - Bytes of cached pages and of pages under fetch are together at most the limit.
//! - A page is fetched once at a time, however many wait for it; at most `flight_count_max` are under fetch.
//! - What is cached has been verified. A cached page is found by tree and number, and is a hit only if the
//!   reference's CRC is the one it was verified with.
//!
//! Life of a fetch: `ask` -> queued -> `next_fetch` (room is made) -> `on_fetched` -> cached and handed to those
//! who wait; a copy that is not good is followed by the next one. The page itself travels in the `Arrival`, so a
//! small cache delays readers but never starves them.
//!
//! Eviction is a clock with counts: a page that is used again gets another round, an inner page more; what a
//! scan brings goes first. What readers hold beyond eviction is theirs and bounded by each.

use std::collections::VecDeque;
use std::sync::Arc;

use rustc_hash::FxHashMap;
use types::{Location, ShardId};

use super::fault::{PageFault, TreeError};
use super::page::{Page, PageRef, TreeId};

/// Rounds of the clock that a page survives without being used.
const LEAF_ROUNDS: u8 = 2;
const INNER_ROUNDS: u8 = 4;

/// Who waits for pages: a number that the driver gives each reader.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Waiter(pub u64);

/// The number of a fetch.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct FetchId(pub u64);

/// A read to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fetch {
    /// Say this in `on_fetched`.
    pub id: FetchId,
    /// First sector.
    pub at: Location,
    /// Sectors.
    pub sectors: u8,
}

/// The sectors of a fetch could not be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Unreadable;

/// The answer to `ask`.
#[derive(Clone, Debug)]
pub enum Asked {
    /// Here it is.
    Hit(Arc<Page>),
    /// It will come in an `Arrival`.
    Coming,
}

/// A page that came, or will not come: to be given to each of `waiters`.
#[derive(Clone, Debug)]
pub struct Arrival {
    /// The tree.
    pub tree: TreeId,
    /// The page.
    pub reference: PageRef,
    /// Who asked.
    pub waiters: Vec<Waiter>,
    /// The page, or why there is none.
    pub page: Result<Arc<Page>, TreeError>,
}

/// Counted since the beginning.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// Pages that were there when asked for.
    pub hits: u64,
    /// Pages that were not.
    pub misses: u64,
    /// Of these: somebody else's fetch was under way.
    pub joins: u64,
    /// Reads.
    pub fetches: u64,
    /// Copies that were not good.
    pub faults: u64,
    /// Copies that could not be read.
    pub unreadables: u64,
    /// Pages thrown out.
    pub evictions: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Key {
    tree: TreeId,
    number: u64,
}

#[derive(Debug)]
struct Cached {
    key: Key,
    crc: u32,
    page: Arc<Page>,
    rounds: u8,
}

#[derive(Debug)]
struct Flight {
    tree: TreeId,
    reference: PageRef,
    waiters: Vec<Waiter>,
    /// Which copy is read.
    copy: usize,
    fault: Option<PageFault>,
    unreadable: Option<Location>,
    /// Its bytes are counted and a read is out.
    is_out: bool,
}

/// The cache.
#[derive(Debug)]
pub struct Pages {
    limit: usize,
    flight_count_max: usize,
    slots: Vec<Cached>,
    hand: usize,
    index: FxHashMap<Key, usize>,
    cached_size: usize,
    flight_size: usize,
    flights: FxHashMap<FetchId, Flight>,
    by_key: FxHashMap<(Key, u32), FetchId>,
    queue: VecDeque<FetchId>,
    /// Flights that name each waiter: most are forgotten when none does.
    waits: FxHashMap<Waiter, usize>,
    out_count: usize,
    next_id: u64,
    counters: Counters,
}

impl Pages {
    /// A cache of at most `limit` bytes, pages under fetch included (at least one page of 64 KiB), and at most
    /// `flight_count_max` reads at a time.
    pub fn new(limit: usize, flight_count_max: usize) -> Self {
        assert!(limit >= 64 << 10);
        assert!(flight_count_max > 0);
        Self {
            limit,
            flight_count_max,
            slots: Vec::new(),
            hand: 0,
            index: FxHashMap::default(),
            cached_size: 0,
            flight_size: 0,
            flights: FxHashMap::default(),
            by_key: FxHashMap::default(),
            queue: VecDeque::new(),
            waits: FxHashMap::default(),
            out_count: 0,
            next_id: 0,
            counters: Counters::default(),
        }
    }

    /// What was done.
    pub const fn counters(&self) -> Counters {
        self.counters
    }

    /// Bytes of pages cached and under fetch.
    pub const fn size(&self) -> usize {
        self.cached_size + self.flight_size
    }

    /// The page if it is here; asks for nothing.
    pub fn look(&mut self, tree: TreeId, reference: &PageRef) -> Option<Arc<Page>> {
        let number = reference.number;
        let slot = *self.index.get(&Key { tree, number })?;
        let cached = &mut self.slots[slot];
        if cached.crc != reference.crc {
            return None;
        }
        cached.rounds = cached.rounds.max(1);
        cached.rounds = (cached.rounds + 1).min(rounds_max(&cached.page));
        self.counters.hits += 1;
        Some(Arc::clone(&cached.page))
    }

    /// The page, now or in an `Arrival` that names `waiter`.
    pub fn ask(&mut self, tree: TreeId, reference: &PageRef, waiter: Waiter) -> Asked {
        if let Some(page) = self.look(tree, reference) {
            return Asked::Hit(page);
        }
        self.counters.misses += 1;
        let number = reference.number;
        let key = (Key { tree, number }, reference.crc);
        if let Some(id) = self.by_key.get(&key) {
            let flight = self.flights.get_mut(id).expect("it is under way");
            self.counters.joins += 1;
            if !flight.waiters.contains(&waiter) {
                flight.waiters.push(waiter);
                *self.waits.entry(waiter).or_default() += 1;
            }
            return Asked::Coming;
        }
        *self.waits.entry(waiter).or_default() += 1;
        let id = FetchId(self.next_id);
        self.next_id += 1;
        self.by_key.insert(key, id);
        self.queue.push_back(id);
        let flight = Flight {
            tree,
            reference: *reference,
            waiters: vec![waiter],
            copy: 0,
            fault: None,
            unreadable: None,
            is_out: false,
        };
        self.flights.insert(id, flight);
        Asked::Coming
    }

    /// The next read to do; ask until there is none: after every `ask` and `on_fetched`.
    #[must_use]
    pub fn next_fetch(&mut self) -> Option<Fetch> {
        let id = *self.queue.front()?;
        let flight = self.flights.get(&id).expect("it is queued");
        let (reference, copy, is_out) = (flight.reference, flight.copy, flight.is_out);
        if !is_out {
            let size = reference.size();
            let has_room = self.flight_size == 0 || self.flight_size + size <= self.limit;
            if self.out_count == self.flight_count_max || !has_room {
                return None;
            }
            self.make_room(size);
            self.flight_size += size;
            self.out_count += 1;
            let flight = self.flights.get_mut(&id).expect("it is queued");
            flight.is_out = true;
        }
        self.queue.pop_front();
        self.counters.fetches += 1;
        Some(Fetch {
            id,
            at: reference.copies[copy],
            sectors: reference.sectors,
        })
    }

    /// A read has ended. `None`: another copy is tried; ask `next_fetch`.
    pub fn on_fetched(
        &mut self,
        id: FetchId,
        bytes: Result<Box<[u8]>, Unreadable>,
    ) -> Option<Arrival> {
        let flight = self.flights.get_mut(&id).expect("this fetch is out");
        let at = flight.reference.copies[flight.copy];
        let verified = bytes.map(|bytes| Page::verify(flight.tree, &flight.reference, bytes));
        let page = match verified {
            Ok(Ok(page)) => Some(Arc::new(page)),
            Ok(Err(fault)) => {
                flight.fault.get_or_insert(fault);
                self.counters.faults += 1;
                None
            }
            Err(Unreadable) => {
                flight.unreadable.get_or_insert(at);
                self.counters.unreadables += 1;
                None
            }
        };
        if page.is_none() && flight.copy + 1 < flight.reference.copies.len() {
            flight.copy += 1;
            self.queue.push_front(id);
            return None;
        }
        let flight = self.flights.remove(&id).expect("looked up above");
        let reference = flight.reference;
        let number = reference.number;
        let key = Key {
            tree: flight.tree,
            number,
        };
        self.by_key.remove(&(key, reference.crc));
        for waiter in &flight.waiters {
            let count = self.waits.get_mut(waiter).expect("it is counted");
            *count -= 1;
            if *count == 0 {
                self.waits.remove(waiter);
            }
        }
        self.flight_size -= reference.size();
        self.out_count -= 1;
        let page = page.ok_or_else(|| flight.error());
        if let Ok(page) = &page {
            self.insert(flight.tree, reference.crc, page);
        }
        Some(Arrival {
            tree: flight.tree,
            reference,
            waiters: flight.waiters,
            page,
        })
    }

    /// Keeps a page that was just written and verified, if that throws out only what is not used either.
    pub fn insert(&mut self, tree: TreeId, crc: u32, page: &Arc<Page>) {
        let size = page.bytes().len();
        let number = page.number();
        let key = Key { tree, number };
        if let Some(slot) = self.index.get(&key) {
            self.remove(*slot);
        }
        if self.flight_size + size > self.limit {
            return;
        }
        self.make_room(size);
        self.cached_size += size;
        self.index.insert(key, self.slots.len());
        self.slots.push(Cached {
            key,
            crc,
            page: Arc::clone(page),
            rounds: if page.level() == 0 {
                0
            } else {
                INNER_ROUNDS / 2
            },
        });
    }

    /// `waiter` is gone: it is named in no arrival any more. What nobody waits for and is not out is dropped.
    pub fn forget(&mut self, waiter: Waiter) {
        if self.waits.remove(&waiter).is_none() {
            return;
        }
        for flight in self.flights.values_mut() {
            flight.waiters.retain(|w| *w != waiter);
        }
        let flights = &mut self.flights;
        let by_key = &mut self.by_key;
        self.queue.retain(|id| {
            let flight = flights.get(id).expect("it is queued");
            let is_kept = flight.is_out || !flight.waiters.is_empty();
            if !is_kept {
                let tree = flight.tree;
                let number = flight.reference.number;
                by_key.remove(&(Key { tree, number }, flight.reference.crc));
                flights.remove(id);
            }
            is_kept
        });
    }

    /// Throws everything of a shard's tree out that is cached (its owner changes).
    pub fn drop_tree(&mut self, shard: ShardId) {
        let mut slot = 0;
        while slot < self.slots.len() {
            if self.slots[slot].key.tree.shard == shard {
                self.remove(slot);
            } else {
                slot += 1;
            }
        }
    }

    /// Evicts until `size` more bytes fit; the caller has seen to it that they can.
    fn make_room(&mut self, size: usize) {
        while self.cached_size > 0 && self.size() + size > self.limit {
            if self.hand >= self.slots.len() {
                self.hand = 0;
            }
            let cached = &mut self.slots[self.hand];
            if cached.rounds > 0 {
                cached.rounds -= 1;
                self.hand += 1;
            } else {
                self.remove(self.hand);
                self.counters.evictions += 1;
            }
        }
    }

    fn remove(&mut self, slot: usize) {
        let cached = self.slots.swap_remove(slot);
        self.index.remove(&cached.key);
        self.cached_size -= cached.page.bytes().len();
        if let Some(moved) = self.slots.get(slot) {
            self.index.insert(moved.key, slot);
        }
    }

    /// Asserts the invariants; O(pages).
    pub fn check(&self) {
        let cached: usize = self.slots.iter().map(|c| c.page.bytes().len()).sum();
        assert_eq!(cached, self.cached_size);
        assert!(self.size() <= self.limit);
        assert_eq!(self.index.len(), self.slots.len());
        for (slot, cached) in self.slots.iter().enumerate() {
            assert_eq!(self.index.get(&cached.key), Some(&slot));
        }
        let out = self.flights.values().filter(|f| f.is_out);
        let flight_size: usize = out.clone().map(|f| f.reference.size()).sum();
        assert_eq!(flight_size, self.flight_size);
        assert_eq!(out.count(), self.out_count);
        assert!(self.out_count <= self.flight_count_max);
        assert_eq!(self.by_key.len(), self.flights.len());
        for id in &self.queue {
            assert!(self.flights.contains_key(id));
        }
        let named: usize = self.flights.values().map(|f| f.waiters.len()).sum();
        assert_eq!(named, self.waits.values().sum::<usize>());
        assert!(self.waits.values().all(|count| *count > 0));
    }
}

const fn rounds_max(page: &Page) -> u8 {
    if page.level() == 0 {
        LEAF_ROUNDS
    } else {
        INNER_ROUNDS
    }
}

impl Flight {
    /// Why no copy could be used.
    fn error(&self) -> TreeError {
        let (shard, level) = (self.tree.shard, self.reference.level);
        let number = self.reference.number;
        match (self.unreadable, self.fault) {
            (Some(at), _) => TreeError::Unreachable {
                shard,
                level,
                number,
                at,
            },
            (None, fault) => TreeError::Corrupt {
                shard,
                level,
                number,
                at: self.reference.copies[0],
                fault: fault.expect("a copy was unreadable or not good"),
            },
        }
    }
}

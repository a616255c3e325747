//! The hands of a node (`node::hands`) as its slices see them.

use std::cell::{Cell, RefCell};

use client::env::{Grants, TakenRun, WantedRun};
use data::SetAside;
use types::{Instant, NodeId, NsdId, Run};

use super::node::Rations;

/// All grants in a node's hands.
#[derive(Debug)]
pub struct Hands {
    core: RefCell<node::Hands>,
    rations: RefCell<Option<Rations>>,
    /// Now: the calls of `Grants` do not bring it.
    pub now: Cell<Instant>,
}

impl Hands {
    /// Nothing in hand.
    pub fn new(nsds: &[NsdId], block_size: u32) -> Self {
        Self {
            core: RefCell::new(node::Hands::new(nsds, block_size)),
            rations: RefCell::default(),
            now: Cell::default(),
        }
    }

    /// Room is refused as this says.
    pub fn ration(&mut self, rations: Option<Rations>) {
        self.rations = RefCell::new(rations);
    }

    /// No room is refused any more.
    pub fn end_rations(&mut self) -> Option<Rations> {
        self.rations.take()
    }

    /// Some room is refused, or it is noted who asks for it.
    pub fn is_rationed(&self) -> bool {
        self.rations.borrow().is_some()
    }

    /// Acts on what says what is refused, if there is any.
    pub fn with_rations<T>(&self, act: impl FnOnce(&mut Rations) -> T) -> Option<T> {
        self.rations.borrow_mut().as_mut().map(act)
    }

    fn is_refused(&self) -> bool {
        self.with_rations(Rations::refuses_hands)
            .unwrap_or_default()
    }

    /// Acts on the hands.
    pub fn with<T>(&self, act: impl FnOnce(&mut node::Hands) -> T) -> T {
        act(&mut self.core.borrow_mut())
    }
}

impl Grants for Hands {
    fn reserve(&self, owner: NodeId, sectors: u64) -> bool {
        if self.is_refused() {
            self.with(|hands| hands.of(owner).want(sectors));
            return false;
        }
        self.with(|hands| hands.reserve(owner, sectors))
    }

    fn reserve_spare(&self, owner: NodeId, sectors: u64) -> bool {
        if self.is_refused() {
            self.with(|hands| hands.of(owner).wish(sectors));
            return false;
        }
        self.with(|hands| hands.reserve_spare(owner, sectors))
    }

    fn reserve_promised(&self, owner: NodeId, sectors: u64) -> Option<SetAside> {
        self.with(|hands| hands.reserve_promised(owner, sectors))
    }

    fn unreserve(&self, owner: NodeId, part: SetAside) {
        self.with(|hands| hands.unreserve(owner, part));
    }

    fn note_returning(&self, owner: NodeId, sectors: u64) {
        self.with(|hands| hands.note_returning(owner, sectors));
    }

    fn take(
        &self,
        owner: NodeId,
        wanted: &[WantedRun],
        reserved: SetAside,
    ) -> Option<Vec<TakenRun>> {
        let now = self.now.get();
        let needed: u64 = wanted.iter().map(|run| u64::from(run.count)).sum();
        // What was reserved is there.
        if reserved.sectors() < needed && self.is_refused() {
            self.with(|hands| hands.of(owner).want(needed));
            return None;
        }
        self.with(|hands| hands.take(now, owner, wanted, reserved))
    }

    fn take_spare(
        &self,
        owner: NodeId,
        wanted: &[WantedRun],
        reserved: SetAside,
    ) -> Option<Vec<TakenRun>> {
        let now = self.now.get();
        if self.is_refused() {
            self.with(|hands| hands.unreserve(owner, reserved));
            return None;
        }
        self.with(|hands| hands.take_spare(now, owner, wanted, reserved))
    }

    fn committed(&self, owner: NodeId, runs: &[Run]) {
        self.with(|hands| hands.committed(owner, runs));
    }

    fn burn(&self, owner: NodeId, runs: &[Run]) {
        self.with(|hands| hands.burn(owner, runs));
    }

    fn discard(&self, owner: NodeId, runs: &[Run]) {
        self.with(|hands| hands.discard(owner, runs));
    }
}

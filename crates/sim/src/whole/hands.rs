//! The hands of a node (`node::hands`) as its slices see them.

use std::cell::{Cell, RefCell};

use client::env::{Grants, TakenRun, WantedRun};
use data::SetAside;
use types::{Instant, NodeId, NsdId, Run};

/// All grants in a node's hands.
#[derive(Debug)]
pub struct Hands {
    core: RefCell<node::Hands>,
    /// Now: the calls of `Grants` do not bring it.
    pub now: Cell<Instant>,
}

impl Hands {
    /// Nothing in hand.
    pub fn new(nsds: &[NsdId], block_size: u32) -> Self {
        Self {
            core: RefCell::new(node::Hands::new(nsds, block_size)),
            now: Cell::default(),
        }
    }

    /// Acts on the hands.
    pub fn with<T>(&self, act: impl FnOnce(&mut node::Hands) -> T) -> T {
        act(&mut self.core.borrow_mut())
    }
}

impl Grants for Hands {
    fn reserve(&self, owner: NodeId, sectors: u64) -> bool {
        self.with(|hands| hands.reserve(owner, sectors))
    }

    fn reserve_spare(&self, owner: NodeId, sectors: u64) -> bool {
        self.with(|hands| hands.reserve_spare(owner, sectors))
    }

    fn reserve_promised(&self, owner: NodeId, sectors: u64) -> Option<SetAside> {
        self.with(|hands| hands.reserve_promised(owner, sectors))
    }

    fn unreserve(&self, owner: NodeId, part: SetAside) {
        self.with(|hands| hands.unreserve(owner, part));
    }

    fn take(
        &self,
        owner: NodeId,
        wanted: &[WantedRun],
        reserved: SetAside,
    ) -> Option<Vec<TakenRun>> {
        let now = self.now.get();
        self.with(|hands| hands.take(now, owner, wanted, reserved))
    }

    fn take_spare(
        &self,
        owner: NodeId,
        wanted: &[WantedRun],
        reserved: SetAside,
    ) -> Option<Vec<TakenRun>> {
        let now = self.now.get();
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

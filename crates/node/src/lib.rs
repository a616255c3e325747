//! All roles of one node, joined as values: messages in, slices, effects out.
#![forbid(unsafe_code)]

pub mod grace;
pub mod log;
pub mod message;
pub mod moves;
pub mod owner;
pub mod question;
mod steps;
pub mod supply;

pub use log::{DestageState, OwnerLog};
pub use message::Message;
pub use moves::MoveToken;
pub use owner::{Locked, NeedShards, OwnerSlice};
pub use question::{OwnerEffect, OwnerEnv, Question, Work};

pub use supply::{Gather, GatherEffect, Supply, SupplyCounters};

// The driver names the parts that it joins through this crate (ARCHITECTURE.md, import table).
pub use {meta, store, token};

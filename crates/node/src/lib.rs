//! All roles of one node, joined as values: messages in, slices, effects out.
#![forbid(unsafe_code)]

pub mod calls;
pub mod checkpoint;
pub mod clearing;
pub mod durable;
pub mod eviction;
pub mod facts;
pub mod farewell;
pub mod fences;
pub mod fetch;
pub mod grace;
pub mod hands;
pub mod keeper;
pub mod log;
pub mod look;
pub mod message;
pub mod moves;
pub mod owner;
pub mod question;
mod refusing;
pub mod regions;
pub mod replay;
mod steps;
pub mod supply;
pub mod walk;

pub use calls::{Calls, InProgress};
pub use checkpoint::Checkpoint;
pub use durable::{Deferred, Durable};
pub use facts::{FACT_CALL, Facts, Find, Known};
pub use farewell::Farewells;
pub use fences::Fences;
pub use fetch::Fetches;
pub use hands::Hands;
pub use keeper::Keeper;
pub use log::{DestageState, OwnerLog, Refusal};
pub use look::Look;
pub use message::Message;
pub use moves::MoveToken;
pub use owner::{Locked, Need, OwnerSlice};
pub use question::{LOOK_CALL, OwnerEffect, OwnerEnv, Question, Work};
pub use regions::{RegionEffect, RegionEnv, Regions};
pub use replay::ShardReplay;

pub use supply::{Gather, GatherEffect, Gathered, Supply, SupplyCounters};
pub use walk::Walk;

// The driver names the parts that it joins through this crate (ARCHITECTURE.md, import table).
pub use {meta, store, token};

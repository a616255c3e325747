//! Nodes driven by commands as a user drives them: deaths, full disks, damage.
//!
//! Needs root and /dev/fuse; passes without looking where these are missing. Every command is bounded by
//! `timeout`, and a lab is removed in any case.
#![deny(unsafe_code)]
#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "a test of mounts does I/O"
)]

#[path = "labs/ageing.rs"]
mod ageing;
#[path = "labs/checkpoints.rs"]
mod checkpoints;
#[path = "labs/damage.rs"]
mod damage;
#[path = "labs/directories.rs"]
mod directories;
#[path = "labs/fills.rs"]
mod fills;
#[path = "labs/fsck.rs"]
mod fsck;
#[path = "labs/lab.rs"]
mod lab;
#[path = "labs/left_out.rs"]
mod left_out;
#[path = "labs/leftovers.rs"]
mod leftovers;
#[path = "labs/membership.rs"]
mod membership;
#[path = "labs/node.rs"]
mod node;
#[path = "labs/offline.rs"]
mod offline;
#[path = "labs/online.rs"]
mod online;
#[path = "labs/opens.rs"]
mod opens;
#[path = "labs/promise.rs"]
mod promise;
#[path = "labs/refusing.rs"]
mod refusing;
#[path = "labs/regions.rs"]
mod regions;
#[path = "labs/repair.rs"]
mod repair;
#[path = "labs/residency.rs"]
mod residency;
#[path = "labs/siblings.rs"]
mod siblings;
#[path = "labs/space.rs"]
mod space;
#[path = "labs/stopped.rs"]
mod stopped;
#[path = "labs/stops.rs"]
mod stops;
#[path = "labs/streams.rs"]
mod streams;
#[path = "labs/walk.rs"]
mod walk;

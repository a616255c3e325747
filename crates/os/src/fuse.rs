//! FUSE devices, mounts, notify threads: moves the bytes that the crate `fuse` encodes and decodes.
//!
//! ```text
//!  Session::mount ---- INIT ----> Session::start(handler) ----> threads, each:
//!     readv or ring entry -> decode -> Handler::on_request (same thread)
//!                                         `-> Replier::reply(ticket, response), now or later, any thread
//!  Notifier: K threads that write notifications and call back (rule R1)
//! ```
//!
//! Invariants
//! - A request is handled on the thread that received it, but for WRITEs for which no slab is free (`room`).
//! - A notification is written by a notify thread only, never by one that serves requests (R1).
//! - The memory of a WRITE's payload is not written to while somebody holds a reference to its frames.
//! - When the connection ends (unmount, abort) every thread ends by itself; later answers are ignored.
//!
//! The thread that drops the last `Session` unmounts.

mod apart;
mod company;
mod crew;
mod device;
mod memory;
mod mount;
mod notifier;
mod ring;
mod room;
mod session;

pub use memory::{Memory, Slabs};
pub use mount::{Connection, MountError, is_passage};
pub use notifier::{Done, Notifier, NotifyError};
pub(crate) use session::serve_without_reclaim;
pub use session::{
    Follow, Handler, InterruptOutcome, Replier, Session, SessionConfig, SessionError, TransportKind,
};

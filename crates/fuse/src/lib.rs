//! The FUSE protocol as a codec: bytes of the kernel in, requests out; answers in, bytes out.
//!
//! ```text
//!  os reads bytes --> decode --> client::request::Request --> (client) --> Response --> encode --> os
//! ```
//!
//! Invariants
//! - No descriptor, no thread, no clock: `os` moves the bytes.
//! - Foreign bytes never panic: `decode` returns `Decoded::Refuse` with the errno to answer.
//! - A node number is an inode number whose lower bits are mixed with its shard (`node`); the root is 1.
//! - Every answer that the kernel would reject (and whose caller would then hang) is turned into EIO here.
//! - Spoken: protocol 7.36 (flags2) to 7.45; older kernels are refused at INIT.
#![forbid(unsafe_code)]
#![cfg_attr(
    test,
    allow(
        clippy::unwrap_used,
        clippy::cast_possible_truncation,
        reason = "a failed test is how tests report"
    )
)]

pub mod abi;
mod decode;
mod encode;
pub mod init;
mod node;
pub mod notify;
pub mod ring;
pub mod ticket;

pub use decode::{
    Call, CopyPlace, CopyRange, Decoded, Forget, Forgets, ShutDown, decode, fixed_size, split,
};
pub use encode::{
    Encoded, HEAD_SIZE_MAX, Tail, encode_done, encode_error, encode_ioctl_done, encode_reply,
};
pub use init::{Agreement, InitError, Offer, Wishes};
pub use node::inode_of;
pub use ticket::{NO_REPLY, ROUTE_COUNT_MAX, Route};

//! The headers of fuse-over-io_uring: where a request lies in a ring entry, and the commands of its SQEs.

use crate::abi::{InHeader, RingCommand, RingHeader};
use zerocopy::{FromBytes, IntoBytes};

/// Bytes of an SQE that a command may use.
pub const COMMAND_SIZE: usize = 80;

impl RingHeader {
    /// The header of the request in the entry.
    pub fn request(&self) -> InHeader {
        let (header, _) = InHeader::read_from_prefix(self.in_out.as_bytes())
            .expect("the area is longer than a header");
        header
    }

    /// The fixed part of the request, and what the area has behind it.
    pub fn fixed(&self) -> &[u8] {
        self.op_in.as_bytes()
    }
}

/// The command part of an SQE for queue `qid`; `commit_id` is that of the request answered.
pub fn command(qid: u16, commit_id: u64) -> [u8; COMMAND_SIZE] {
    let command = RingCommand {
        flags: 0,
        commit_id,
        qid,
        padding: [0; 6],
    };
    let mut bytes = [0; COMMAND_SIZE];
    bytes[..size_of::<RingCommand>()].copy_from_slice(command.as_bytes());
    bytes
}

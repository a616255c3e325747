//! Messages of other nodes, with the header before them. What can be read is written as it was, and read again.
#![no_main]

use cluster::message::{ToManager, ToMember};
use gupfs_fuzz::Input;
use libfuzzer_sys::fuzz_target;
use meta::Mutation;
use types::wire::{HEADER_SIZE, Header};
use types::{ClusterView, Decode, Encode};

fn again<T: Decode + Encode>(bytes: &[u8]) {
    if let Ok(value) = T::from_bytes(bytes, "message") {
        let written = value.to_bytes();
        let Ok(read) = T::from_bytes(&written, "message") else {
            panic!("what was read cannot be written and read");
        };
        assert_eq!(read.to_bytes(), written);
    }
}

fuzz_target!(|bytes: &[u8]| {
    let mut input = Input::new(bytes);
    let kind = input.byte();
    let rest = input.rest();
    match kind % 7 {
        0 => again::<node::Message>(rest),
        1 => again::<nsd::Request>(rest),
        2 => again::<nsd::Reply>(rest),
        3 => again::<ToManager>(rest),
        4 => again::<ToMember>(rest),
        5 => again::<ClusterView>(rest),
        _ => again::<Mutation>(rest),
    }
    if let Some(header) = rest.first_chunk::<HEADER_SIZE>() {
        let _is_good = Header::decode(header).is_ok();
    }
});

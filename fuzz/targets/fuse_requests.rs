//! Requests of the kernel, as both transports find them.
//!
//! The first byte chooses the transport; over the ring the fixed part and the rest are apart, and the bytes of a WRITE lie elsewhere.
#![no_main]

use fuse::{Call, Decoded, Route, decode, fixed_size, split};
use gupfs_fuzz::Input;
use libfuzzer_sys::fuzz_target;
use types::{FrameRef, Span};

fn look(call: &Call<'_>) {
    match decode(call) {
        Decoded::Forgets(forgets) => assert!(
            forgets.count() <= call.rest.len() + 1,
            "forgets out of nothing"
        ),
        Decoded::Init(offer) => {
            for over_ring in [false, true] {
                if let Ok(agreed) = offer.agree(fuse::Wishes {
                    over_ring,
                    readahead_size: 1 << 20,
                    async_direct_io: true,
                }) {
                    assert_eq!(agreed.flags & !offer.flags, 0, "more than was offered");
                }
            }
        }
        Decoded::Request(request) => {
            assert_eq!(
                fuse::ticket::unique(request.ticket),
                call.header.unique & ((1 << 48) - 1)
            );
        }
        _ => {}
    }
}

fuzz_target!(|bytes: &[u8]| {
    let mut input = Input::new(bytes);
    let transport = input.byte();
    let Some((header, arguments)) = split(input.rest()) else {
        return;
    };
    if transport & 1 == 0 {
        let mut call = Call::new(header, arguments, Route(1));
        if transport & 2 != 0 {
            call.payload = Some(span(transport));
        }
        return look(&call);
    }
    let (fixed, rest) = arguments.split_at(fixed_size(header.opcode).min(arguments.len()));
    let end = rest.len() - rest.len().min(usize::from(header.total_extlen) * 8);
    look(&Call {
        header,
        fixed,
        rest: &rest[..end],
        payload: (transport & 2 != 0).then(|| span(transport)),
        route: Route(2),
    });
});

fn span(transport: u8) -> Span {
    Span {
        frame: FrameRef(0),
        offset: 0,
        length: u32::from(transport >> 2) * 512,
    }
}

//! What a ticket of this front end carries: the request's unique number and the way its answer takes.
//!
//! ```text
//!  bit 63            62            48 .. 61        0 .. 47
//!  part of another   variant       route           unique (0: no answer wanted)
//! ```
//! The variant is one of the request's kind: a listing has attributes, attributes are those of statx(2), a read is direct.
//! The kernel counts uniques up by 2 from its start: 2^48 last for four years at a million per second.

use client::request::{Ticket, TicketPart};

/// Bits of the unique number.
const UNIQUE_BITS: u32 = 48;
/// The request is of its kind's variant.
const VARIANT: u64 = 1 << 62;

/// A request that another one consists of: its answer goes to who asks it.
const INNER: u64 = 1 << 63;

/// Routes that a ticket can tell apart.
pub const ROUTE_COUNT_MAX: usize = 1 << 14;

/// The ticket of requests that have no answer (forgets).
pub const NO_REPLY: Ticket = Ticket(0);

/// The way back: a cloned descriptor, or a queue's ring entry. The transport gives it its meaning.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Route(pub u16);

/// Joins the parts; `None` if the unique number does not fit.
pub fn ticket(unique: u64, route: Route, is_variant: bool) -> Option<Ticket> {
    assert!(usize::from(route.0) < ROUTE_COUNT_MAX);
    let variant = if is_variant { VARIANT } else { 0 };
    (unique >> UNIQUE_BITS == 0)
        .then(|| Ticket(unique | u64::from(route.0) << UNIQUE_BITS | variant))
}

/// The ticket of a part of the request: its answer is not the kernel's, and a signal for the request reaches it.
pub const fn inner(ticket: Ticket) -> Ticket {
    Ticket(ticket.0 | INNER)
}

/// The ticket of the request that `ticket` is a part of.
pub const fn outer(ticket: Ticket) -> Ticket {
    Ticket(ticket.0 & !INNER)
}

/// It is a part of another request.
pub const fn is_inner(ticket: Ticket) -> bool {
    ticket.0 & INNER != 0
}

/// The request's unique number.
pub const fn unique(ticket: Ticket) -> u64 {
    ticket.0 & ((1 << UNIQUE_BITS) - 1)
}

/// All tickets of a unique number, whatever way their answers take.
pub const fn part(unique: u64) -> TicketPart {
    TicketPart {
        value: unique,
        mask: (1 << UNIQUE_BITS) - 1,
    }
}

/// The way its answer takes.
#[allow(clippy::cast_possible_truncation, reason = "masked to 14 bits")]
pub const fn route(ticket: Ticket) -> Route {
    Route(((ticket.0 & !(VARIANT | INNER)) >> UNIQUE_BITS) as u16)
}

/// A listing answered to this ticket carries attributes; attributes answered to it are those of statx(2).
pub const fn is_plus(ticket: Ticket) -> bool {
    ticket.0 & VARIANT != 0
}

/// The read that this ticket is of is direct and may be asynchronous: then the kernel ends it on the thread that writes the answer, where it may wait for locks.
pub const fn is_apart(ticket: Ticket) -> bool {
    ticket.0 & VARIANT != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_come_back() {
        for raw in [2, 4, (1 << 48) - 2] {
            for route_index in [0, 1, 77, ROUTE_COUNT_MAX as u16 - 1] {
                for plus in [false, true] {
                    let made = ticket(raw, Route(route_index), plus).unwrap();
                    assert_eq!(unique(made), raw);
                    assert_eq!(route(made), Route(route_index));
                    assert_eq!(is_plus(made), plus);
                    assert!(part(raw).is_of(made) && !part(raw ^ 6).is_of(made));
                    let inside = inner(made);
                    assert!(is_inner(inside) && !is_inner(made) && outer(inside) == made);
                    assert!(part(raw).is_of(inside) && route(inside) == Route(route_index));
                }
            }
        }
        assert_eq!(ticket(1 << 48, Route(0), false), None);
        assert_eq!(unique(NO_REPLY), 0);
    }
}

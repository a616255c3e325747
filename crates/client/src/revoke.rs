//! Rules R1 to R12: when a request is served, parked, and when a token may go.

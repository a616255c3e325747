//! Clocks of this machine.

//! Connections to other nodes.

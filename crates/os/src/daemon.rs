//! The daemon: joins FUSE, the cores and the network of one node.

pub mod config;

pub use config::{Config, ControlHandler, DiskConfig, PeerConfig, Transport};

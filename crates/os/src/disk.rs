//! NSD devices and files.

//! FUSE devices, mounts, notify threads.

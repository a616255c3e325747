//! Tests of the gates without a kernel: each rule at one inode.

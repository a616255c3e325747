//! The tables: which modes of different nodes go together, what covers what, what a revoke leaves.
//!
//! One node's own tokens never conflict; these tables are about two different nodes.
//!
//! ```text
//! Inode         Read  SharedWrite  Exclusive      Directory     Read  Write     Range (same byte)
//! Read           ok       -           -           Read           ok     -       as Directory
//! SharedWrite    -        ok          -           Write          -      -
//! Exclusive      -        -           -
//! ```

use types::{DirectoryMode, InodeMode, RangeMode};

/// Two nodes may hold these on one inode at a time.
pub const fn inode_compatible(a: InodeMode, b: InodeMode) -> bool {
    use InodeMode::{Exclusive, Read, SharedWrite};
    match (a, b) {
        (Read, Read) | (SharedWrite, SharedWrite) => true,
        (Read, SharedWrite | Exclusive) | (SharedWrite, Read | Exclusive) | (Exclusive, _) => false,
    }
}

/// Who holds `held` may do what `want` allows. SharedWrite does not cover Read: another writer may have
/// moved the size.
pub const fn inode_covers(held: InodeMode, want: InodeMode) -> bool {
    use InodeMode::{Exclusive, Read, SharedWrite};
    match (held, want) {
        (Exclusive, _) | (Read, Read) | (SharedWrite, SharedWrite) => true,
        (Read, SharedWrite | Exclusive) | (SharedWrite, Read | Exclusive) => false,
    }
}

/// The least mode that covers both: to read and write at once is to be alone.
pub const fn inode_join(a: InodeMode, b: InodeMode) -> InodeMode {
    use InodeMode::Exclusive;
    if inode_covers(a, b) {
        a
    } else if inode_covers(b, a) {
        b
    } else {
        Exclusive
    }
}

/// What a holder of `held` may keep when another node wants `want`.
///
/// Always part of what was held. So SharedWrite never becomes Read: between the holder's decision and the
/// manager's receipt another writer may have been let in (a random schedule found it). Who writes alone
/// holds Exclusive, and that does become Read.
pub const fn inode_down_to(held: InodeMode, want: InodeMode) -> Option<InodeMode> {
    use InodeMode::{Exclusive, Read, SharedWrite};
    match (held, want) {
        (Read | Exclusive, Read) => Some(Read),
        (SharedWrite | Exclusive, SharedWrite) => Some(SharedWrite),
        (Read, SharedWrite) | (SharedWrite, Read) | (_, Exclusive) => None,
    }
}

/// Two nodes may hold these on one directory at a time.
pub const fn directory_compatible(a: DirectoryMode, b: DirectoryMode) -> bool {
    use DirectoryMode::{Read, Write};
    match (a, b) {
        (Read, Read) => true,
        (Read, Write) | (Write, _) => false,
    }
}

/// Who holds `held` may do what `want` allows.
pub const fn directory_covers(held: DirectoryMode, want: DirectoryMode) -> bool {
    use DirectoryMode::{Read, Write};
    match (held, want) {
        (Write, _) | (Read, Read) => true,
        (Read, Write) => false,
    }
}

/// The least mode that covers both.
pub const fn directory_join(a: DirectoryMode, b: DirectoryMode) -> DirectoryMode {
    if directory_covers(a, b) { a } else { b }
}

/// What a holder of `held` may keep when another node wants `want`.
pub const fn directory_down_to(held: DirectoryMode, want: DirectoryMode) -> Option<DirectoryMode> {
    use DirectoryMode::{Read, Write};
    match (held, want) {
        (Read | Write, Read) => Some(Read),
        (Read | Write, Write) => None,
    }
}

/// Two nodes may hold these on one byte at a time.
pub const fn range_compatible(a: RangeMode, b: RangeMode) -> bool {
    use RangeMode::{Read, Write};
    match (a, b) {
        (Read, Read) => true,
        (Read, Write) | (Write, _) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INODE: [InodeMode; 3] = [
        InodeMode::Read,
        InodeMode::SharedWrite,
        InodeMode::Exclusive,
    ];
    const DIRECTORY: [DirectoryMode; 2] = [DirectoryMode::Read, DirectoryMode::Write];
    const RANGE: [RangeMode; 2] = [RangeMode::Read, RangeMode::Write];

    /// What a mode lets a node do, as bits: know the attributes (1), write among others (2), be alone (4).
    fn inode_rights(mode: InodeMode) -> u8 {
        match mode {
            InodeMode::Read => 1,
            InodeMode::SharedWrite => 2,
            InodeMode::Exclusive => 1 | 2 | 4,
        }
    }

    #[test]
    fn inode_table() {
        for a in INODE {
            for b in INODE {
                // Nobody may know the attributes while another writes; alone is alone.
                let (x, y) = (inode_rights(a), inode_rights(b));
                let harm = |x: u8, y: u8| x & 4 != 0 || (x & 2 != 0 && y & 1 != 0);
                assert_eq!(inode_compatible(a, b), !harm(x, y) && !harm(y, x));
                assert_eq!(inode_compatible(a, b), inode_compatible(b, a));
                assert_eq!(inode_covers(a, b), x & y == y);
                let join = inode_join(a, b);
                assert!(inode_covers(join, a) && inode_covers(join, b));
                let least = INODE
                    .into_iter()
                    .filter(|m| inode_covers(*m, a) && inode_covers(*m, b))
                    .all(|m| inode_covers(m, join));
                assert!(least, "join of {a:?} and {b:?}");
                // What covers more conflicts with more.
                for c in INODE {
                    assert!(
                        !inode_covers(a, b) || !inode_compatible(a, c) || inode_compatible(b, c)
                    );
                }
                match inode_down_to(a, b) {
                    Some(kept) => assert!(inode_compatible(kept, b) && inode_covers(a, kept)),
                    None => assert!(
                        INODE
                            .into_iter()
                            .all(|m| !inode_covers(a, m) || !inode_compatible(m, b))
                    ),
                }
                assert!(!inode_compatible(a, b) || inode_down_to(a, b) == Some(a));
            }
        }
    }

    #[test]
    fn directory_and_range_tables() {
        for a in DIRECTORY {
            for b in DIRECTORY {
                let both_read = a == DirectoryMode::Read && b == DirectoryMode::Read;
                assert_eq!(directory_compatible(a, b), both_read);
                assert_eq!(directory_covers(a, b), a >= b);
                assert_eq!(directory_join(a, b), a.max(b));
                match directory_down_to(a, b) {
                    Some(kept) => {
                        assert!(directory_compatible(kept, b) && directory_covers(a, kept));
                    }
                    None => assert_eq!(b, DirectoryMode::Write),
                }
            }
        }
        for a in RANGE {
            for b in RANGE {
                let both_read = a == RangeMode::Read && b == RangeMode::Read;
                assert_eq!(range_compatible(a, b), both_read);
            }
        }
    }
}

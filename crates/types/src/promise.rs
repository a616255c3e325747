//! What is promised to files (fallocate): sectors that later writes find.

use crate::limits::OVERWRITE_MARGIN;

/// Counts of promised sectors: of a file, a shard or an owner.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Promised {
    /// Free sectors that writes into the promised ranges take for good.
    pub unpaid: u64,
    /// Sectors of all promised ranges.
    pub total: u64,
}

impl Promised {
    /// Free sectors that an owner who has promised this grants to nobody else: those that are not there yet, and some
    /// for writing over the others, whose old sectors come back with each Commit.
    pub fn held_back(&self) -> u64 {
        self.unpaid + self.margin()
    }

    /// The part of it that is for writing over what is paid.
    pub fn margin(&self) -> u64 {
        self.total.min(OVERWRITE_MARGIN)
    }
}

impl std::ops::Add for Promised {
    type Output = Self;
    fn add(self, more: Self) -> Self {
        Self {
            unpaid: self.unpaid + more.unpaid,
            total: self.total + more.total,
        }
    }
}

impl std::ops::Sub for Promised {
    type Output = Self;
    fn sub(self, less: Self) -> Self {
        Self {
            unpaid: self.unpaid - less.unpaid,
            total: self.total - less.total,
        }
    }
}

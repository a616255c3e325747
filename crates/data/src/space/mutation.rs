//! What the journal says about space: the changes of an owner's sectors and of the region table.
//!
//! The numbers are part of the format: never reuse one. docs/disk-format.md lists them.

use types::id::NodeLife;
use types::{Grant, NodeId, NsdId, Run, wire_enum, wire_struct};

/// A region of an NSD.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct RegionId {
    /// The NSD.
    pub nsd: NsdId,
    /// Which of its regions.
    pub index: u32,
}
wire_struct!(RegionId { nsd, index });

/// A change of an owner's sectors.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SpaceMutation {
    /// The owner holds the region now; all its sectors are free.
    RegionTaken {
        /// The region.
        region: RegionId,
    },
    /// The owner gave the region up; all its sectors were free.
    RegionReturned {
        /// The region.
        region: RegionId,
    },
    /// Free sectors are granted.
    Granted {
        /// To whom.
        life: NodeLife,
        /// Which.
        grant: Grant,
    },
    /// Granted sectors belong to a file now.
    Consumed {
        /// Whose they were.
        life: NodeLife,
        /// Which.
        run: Run,
    },
    /// A file's sectors are free (once this record is durable).
    Freed {
        /// Which.
        run: Run,
    },
    /// Granted sectors are free.
    GivenBack {
        /// Whose they were.
        life: NodeLife,
        /// Which.
        run: Run,
    },
    /// What the life holds is quarantined.
    NodeLost {
        /// The life.
        life: NodeLife,
    },
    /// What the life held is free.
    QuarantineReleased {
        /// The life.
        life: NodeLife,
    },
    /// Snapshots only: free sectors belong to files.
    Used {
        /// Which.
        runs: Vec<Run>,
    },
    /// A part of what one operation frees, in a record before its own: so many do not fit one.
    Freeing {
        /// Which.
        runs: Vec<Run>,
    },
    /// In the operation's own record: what was named since the last of these is free.
    FreeingEnds {},
    /// A region that is entirely free is for pages of metadata trees.
    RegionForPages {
        /// The region.
        region: RegionId,
    },
    /// A page region that is entirely free is for files.
    RegionForData {
        /// The region.
        region: RegionId,
    },
    /// Snapshots only: free sectors of page regions belong to the roots of this snapshot.
    PagesUsed {
        /// Which; none crosses the border of a region.
        runs: Vec<Run>,
    },
}
wire_enum!(SpaceMutation {
    1 => RegionTaken { region },
    2 => RegionReturned { region },
    3 => Granted { life, grant },
    4 => Consumed { life, run },
    5 => Freed { run },
    6 => GivenBack { life, run },
    7 => NodeLost { life },
    8 => QuarantineReleased { life },
    9 => Used { runs },
    10 => Freeing { runs },
    11 => FreeingEnds {},
    12 => RegionForPages { region },
    13 => RegionForData { region },
    14 => PagesUsed { runs },
});

/// A change of the region table, in the journal of shard 0's owner.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TableMutation {
    /// The region belongs to an owner node.
    Taken {
        /// The region.
        region: RegionId,
        /// Who holds it.
        owner: NodeId,
    },
    /// Nobody holds the region.
    Returned {
        /// The region.
        region: RegionId,
    },
}
wire_enum!(TableMutation { 1 => Taken { region, owner }, 2 => Returned { region } });

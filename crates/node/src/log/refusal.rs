//! Refusals on purpose: the simulator lets the n-th question for room of some kind find none.
//!
//! A refusal holds from one call of `refuse` to the next, so that all that one step of the driver asks for finds the same.

use store::journal::Urgency;

use super::OwnerLog;

/// What there is none of, whatever there is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Refusal {
    /// Sectors that could be granted or promised.
    Sectors,
    /// Regions: of the table, and such as trees' pages could have.
    Regions,
    /// Sectors for pages of trees.
    Pages,
    /// Room in the journal for what may be refused.
    Records,
    /// Any room in the journal, and there will be some soon.
    RecordsForNow,
    /// Room for pieces that are to be moved to sectors.
    Pieces,
}

impl OwnerLog {
    /// From now on this is refused.
    pub fn refuse(&mut self, refusal: Option<Refusal>) {
        self.refusal = refusal;
        self.space.refuse(refusal == Some(Refusal::Sectors));
        self.journal.refuse(match refusal {
            Some(Refusal::Records) => Some(Urgency::Normal),
            Some(Refusal::RecordsForNow) => Some(Urgency::Urgent),
            Some(Refusal::Sectors | Refusal::Regions | Refusal::Pages | Refusal::Pieces) | None => {
                None
            }
        });
    }
}

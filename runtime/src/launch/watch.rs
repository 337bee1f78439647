//! What the ranks of a job show of themselves while somebody else waits for them.

use crate::launch::launcher::Job;
use crate::memory::segment::Segment;
use std::sync::atomic::Ordering;
use topology::Rank;

/// A view of the ranks of one epoch, for another thread than the one that runs the job.
#[derive(Clone)]
pub struct Watch {
    segment: Segment,
}

impl Watch {
    /// How many steps a rank has finished since the epoch began; on other machines, as far as that was heard.
    pub fn steps(&self, rank: Rank) -> u64 {
        self.segment.activity.progress(rank).load(Ordering::Relaxed)
    }
}

impl Job {
    /// Looks on for as long as the present epoch lasts.
    pub fn watch(&self) -> Watch {
        Watch { segment: self.segment.clone() }
    }
}

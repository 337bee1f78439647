//! A view of a running job for other threads. The principal type is [`JobWatch`].

use crate::launch::launcher::Job;
use crate::memory::segment::Segment;
use std::sync::atomic::Ordering;
use topology::Rank;

/// A view of the ranks of one epoch, for a thread other than the one that runs the job.
#[derive(Clone)]
pub struct JobWatch {
    segment: Segment,
}

impl JobWatch {
    /// How many steps a rank has finished since the epoch began. On other machines, as far as reports have arrived.
    pub fn steps(&self, rank: Rank) -> u64 {
        self.segment.activity.progress(rank).load(Ordering::Relaxed)
    }
}

impl Job {
    /// A view of the current epoch.
    pub fn watch(&self) -> JobWatch {
        JobWatch { segment: self.segment.clone() }
    }
}

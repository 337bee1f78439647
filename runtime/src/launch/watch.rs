//! What the ranks of a job show of themselves while somebody else waits for them.

use crate::launch::launcher::Job;
use crate::memory::board::Board;
use std::sync::atomic::Ordering;
use topology::Rank;

/// A view of the ranks of one epoch, for another thread than the one that runs the job.
#[derive(Clone)]
pub struct Watch {
    board: Board,
}

impl Watch {
    /// How many steps a rank has finished since the epoch began; on other machines, as far as that was heard.
    pub fn steps(&self, rank: Rank) -> u64 {
        self.board.progress(rank).load(Ordering::Relaxed)
    }
}

impl Job {
    /// Looks on for as long as the present epoch lasts.
    pub fn watch(&self) -> Watch {
        Watch { board: self.board.clone() }
    }
}

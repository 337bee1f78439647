//! What a working rank does between two polls: it heeds the verdict, counts its progress, and sleeps.

use crate::board::Board;
use crate::clock::Moment;
use crate::doorbell::Waiter;
use crate::error::RunResult;
use std::sync::atomic::Ordering;
use topology::Rank;

/// One rank's connection with its job while it works.
pub(crate) struct Watch<'a> {
    board: &'a Board,
    rank: Rank,
    waiter: Waiter,
    /// Steps that earlier runs finished.
    before: u64,
}

impl<'a> Watch<'a> {
    pub(crate) fn new(board: &'a Board, rank: Rank) -> Self {
        let waiter = Waiter::new(board.bell(rank), board.patience());
        Self { board, rank, waiter, before: board.progress(rank).load(Ordering::Relaxed) }
    }

    /// # Errors
    /// The coordinator's verdict, if there is one.
    pub(crate) fn check(&self) -> RunResult<()> {
        self.board.check_verdict()
    }

    /// Something moved; this run has finished so many steps.
    pub(crate) fn progressed(&mut self, finished: u64) {
        self.waiter.progressed();
        self.board.progress(self.rank).store(self.before + finished, Ordering::Relaxed);
    }

    /// Nothing moved, and nothing will before `until` unless a peer rings.
    pub(crate) fn idle(&mut self, now: Moment, until: Moment) {
        self.waiter.idle(now, until);
    }
}

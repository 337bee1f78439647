//! What the watch of a process decides: no sockets, no threads.
//!
//! The principal type is [`WatchState`]. Rank 0's process has a line with every other process; another process has one with rank 0.
//! A line that ends means that one of its two processes has ended, or that the line was cut. If all lines of rank 0 end at the same
//! time, it is more likely that rank 0 was cut off than that all others died. So rank 0 waits [`GRACE`] before it says who is lost,
//! unless it can see that the process is dead.

use crate::clock::Moment;
use crate::session::status::{SessionEnd, SessionStatus};
use crate::verdict::{Cause, Phase, Verdict};
use std::time::Duration;
use topology::Rank;

/// How long rank 0 waits whether other lines end too.
pub(super) const GRACE: Duration = Duration::from_millis(50);

/// How a line stands.
struct LineState {
    /// The process at its other end.
    rank: Rank,
    heard_at: Moment,
    /// When it ended. What follows from that is not decided yet.
    ended_at: Option<Moment>,
    /// Whether it has not ended.
    is_open: bool,
    /// Whether the other process has said that it leaves. The reason may follow.
    has_left: bool,
}

/// What one process knows of its lines.
pub(super) struct WatchState {
    own: Rank,
    lines: Vec<LineState>,
    /// Who says nothing for so long is taken for stopped.
    silence: Duration,
}

impl WatchState {
    /// The lines of a process, with these others.
    pub(super) fn new(own: Rank, others: impl Iterator<Item = Rank>, silence: Duration, now: Moment) -> Self {
        let line = |rank| LineState { rank, heard_at: now, ended_at: None, is_open: true, has_left: false };
        Self { own, lines: others.map(line).collect(), silence }
    }

    fn is_hub(&self) -> bool {
        self.own == Rank(0)
    }

    pub(super) fn is_open(&self, line: usize) -> bool {
        self.lines[line].is_open
    }

    /// A line has given a sign of life, or said that something has ended. `pass_on` tells it to a line that does not know it
    /// yet, before the program here hears of it: this process may end then.
    pub(super) fn hear(
        &mut self,
        line: usize,
        end: Option<&SessionEnd>,
        (status, now): (&SessionStatus, Moment),
        pass_on: impl FnMut(usize),
    ) {
        let heard = &mut self.lines[line];
        heard.heard_at = now;
        let Some(end) = end else { return };
        heard.has_left |= *end == SessionEnd::Left(heard.rank);
        if self.is_hub() && status.is_news(end) {
            (0..self.lines.len()).filter(|&other| other != line && self.is_open(other)).for_each(pass_on);
        }
        status.hear(end);
    }

    /// A line has ended.
    pub(super) fn ended(&mut self, line: usize, now: Moment) {
        let line = &mut self.lines[line];
        line.is_open = false;
        if !line.has_left {
            line.ended_at = Some(now);
        }
    }

    /// When to [judge](Self::judge) next, even if nothing is heard.
    pub(super) fn next_look(&self) -> Option<Moment> {
        self.lines.iter().filter_map(|line| line.ended_at).min().map(|at| at.after(GRACE))
    }

    /// Decides who is gone. `is_dead` says that a process is certainly dead.
    pub(super) fn judge(&mut self, now: Moment, status: &SessionStatus, is_dead: &dyn Fn(Rank) -> bool) {
        let verdict = |rank, cause| status.end(Verdict { rank, cause, phase: Phase::Work });
        let is_hub = self.is_hub();
        for line in &mut self.lines {
            if line.ended_at.is_some() && (!is_hub || is_dead(line.rank)) {
                line.ended_at = None;
                verdict(line.rank, Cause::Lost);
            }
        }
        if self.next_look().is_some_and(|look| now >= look) {
            let has_ended: Vec<Rank> =
                self.lines.iter().filter(|line| line.ended_at.is_some()).map(|line| line.rank).collect();
            match has_ended.len() > 1 && !self.lines.iter().any(|line| line.is_open) {
                true => verdict(self.own, Cause::Cut),
                false => has_ended.into_iter().for_each(|rank| verdict(rank, Cause::Lost)),
            }
            self.lines.iter_mut().for_each(|line| line.ended_at = None);
        }
        for line in &mut self.lines {
            if line.is_open && !line.has_left && now.since(line.heard_at) > self.silence {
                line.is_open = false;
                verdict(line.rank, Cause::Silent);
            }
        }
    }
}

//! Whom a verdict names where that is not plain: ranks that lost each other, that are silent, or that are late.
//!
//! Of two ends of a broken connection nobody can tell which it was; so a rank is named that others have lost as well. The
//! coordinator names itself when it has lost everybody.

use super::{BEAT, Complaint, DISTANCE, Decision, Judge, LEAST_SILENCE, MISSED, Seat, Sight, distant_beat};
use crate::board::{Cause, Verdict};
use crate::clock::Moment;
use crate::error::Phase;
use std::time::Duration;
use topology::Rank;

/// How much longer to wait for others to say whom they lost, while what was said fits several ranks alike.
const OTHERS: Duration = Duration::from_millis(400);

impl Judge {
    /// The longest that a running rank shows no sign of life.
    fn patience(&self, rank: Rank) -> Duration {
        let distant = distant_beat(self.seats.len()) * MISSED + DISTANCE;
        if self.seats[rank.index()].machine.is_some() { distant } else { BEAT * MISSED }
    }

    /// Since when a rank has not shown any: its worker, or its agent.
    fn last_sign(&self, rank: Rank) -> Moment {
        let seat = &self.seats[rank.index()];
        seat.machine.map_or(seat.beat.1, |_| seat.beat.1.min(seat.message.1))
    }

    /// How long that is.
    fn silence(&self, rank: Rank, now: Moment) -> Duration {
        now.since(self.last_sign(rank))
    }

    /// Whether a rank shows no sign of life.
    fn is_silent(&self, rank: Rank, now: Moment) -> bool {
        self.silence(rank, now) > self.patience(rank)
    }

    /// Who of those that are silent has been so for longest: ranks of a busy computer may be late with a sign of life.
    fn most_silent(&self, ranks: impl Iterator<Item = Rank>, now: Moment) -> Option<Rank> {
        let silent = ranks.filter(|&rank| self.is_silent(rank, now));
        silent.min_by_key(|&rank| self.last_sign(rank))
    }

    /// What a rank is doing.
    pub(super) fn phase(&self, rank: Rank, sight: &dyn Sight) -> Phase {
        let phase = self.inquiry.as_ref().map_or(Phase::Work, |inquiry| inquiry.question.phase());
        if phase == Phase::Work { sight.phase(rank) } else { phase }
    }

    /// Whether it has not answered what it was asked.
    fn is_open(&self, rank: Rank) -> bool {
        self.inquiry.as_ref().is_some_and(|inquiry| inquiry.answers[rank.index()] == Some(None))
    }

    /// Whether an agent has left, or said nothing for longer than this `part` of the longest that is usual.
    fn is_lost(&self, rank: Rank, now: Moment, part: u32) -> bool {
        let seat = &self.seats[rank.index()];
        seat.left || now.since(seat.message.1) > self.patience(rank) / part
    }

    /// Whether nobody is left whom the coordinator reaches over a connection. A single other machine, or a single
    /// agent, may as well be lost itself.
    fn is_cut_off(&self, now: Moment, part: u32) -> bool {
        let agents = self.ranks().filter_map(|rank| Some((self.seats[rank.index()].machine?, rank)));
        let (here, elsewhere): (Vec<_>, Vec<_>) = agents.partition(|&(machine, _)| machine == 0);
        let all_lost = |agents: &[(usize, Rank)]| agents.iter().all(|&(_, rank)| self.is_lost(rank, now, part));
        let several = elsewhere.iter().any(|&(machine, _)| machine != elsewhere[0].0);
        let with_those_here = || !here.is_empty() && here.len() + elsewhere.len() > 1 && all_lost(&here);
        all_lost(&elsewhere) && (several || with_those_here())
    }

    /// The verdict on a rank; if no other can be reached, on the coordinator.
    pub(super) fn blame(
        &mut self,
        now: Moment,
        (rank, cause): (Rank, Cause),
        evidence: String,
        sight: &dyn Sight,
    ) -> Decision {
        let is_cut_off = self.is_cut_off(now, 1);
        if !is_cut_off && self.is_cut_off(now, 2) {
            // Some are not silent for long enough to know. That shows in a moment.
            return Decision::Wait;
        }
        let (rank, cause, evidence) = match is_cut_off {
            true => (Rank(0), Cause::Cut, format!("all its connections with other ranks were lost: {evidence}")),
            false => (rank, cause, evidence),
        };
        let phase = self.phase(rank, sight);
        self.end(Verdict { rank, cause, phase }, evidence)
    }

    /// The verdict when ranks lost each other and none of them is known to be dead: on one that is silent, else on the one
    /// that most losses have in common, else on the first who said so.
    pub(super) fn suspect(&mut self, now: Moment, until: Moment, sight: &dyn Sight) -> Decision {
        let complaints = self.inquiry.as_ref().map_or(Vec::new(), |inquiry| inquiry.complaints.clone());
        let Some(first) = complaints.first() else { return Decision::Wait };
        // Who has said why it ends shows no more signs of life.
        let may_be_silent = |peer: &Rank| self.seats.get(peer.index()).is_some_and(|seat| !seat.said);
        let peers = || complaints.iter().map(|complaint| complaint.peer).filter(may_be_silent);
        if let Some(rank) = self.most_silent(peers(), now) {
            return self.blame(now, (rank, Cause::Silent), first.reason.clone(), sight);
        }
        let is_doubtful = |peer| self.silence(peer, now) > self.patience(peer) / 2;
        if peers().any(is_doubtful) && now.since(until) < DISTANCE {
            return Decision::Wait;
        }
        let touches = |rank: Rank| move |complaint: &&Complaint| complaint.by == rank || complaint.peer == rank;
        let count = |rank: Rank| complaints.iter().filter(touches(rank)).count();
        let most = self.ranks().map(count).max().unwrap_or_default();
        let mut common = self.ranks().filter(|&rank| count(rank) == most);
        let rank = match (common.next(), common.next()) {
            (Some(rank), None) => rank,
            // The other end of what broke, and whoever else lost one of them, may say so yet.
            _ if now.since(until) < OTHERS => return Decision::Wait,
            _ => first.by,
        };
        let found = complaints.iter().find(touches(rank)).unwrap_or(first);
        let (evidence, by) = (found.reason.clone(), found.by);
        let phase = if rank == by { found.phase } else { sight.phase(rank) };
        let others = complaints.iter().filter(|complaint| complaint.by != rank);
        self.reports.extend(others.map(|complaint| (complaint.by, complaint.reason.clone())));
        self.end(Verdict { rank, cause: Cause::Cut, phase }, evidence)
    }

    /// The verdict when something moves, but an agent has been silent for as long as nobody may be: its worker goes on, but
    /// nobody could end it.
    pub(super) fn unheard(&mut self, now: Moment, limit: Duration, sight: &dyn Sight) -> Decision {
        let limit = limit.max(LEAST_SILENCE);
        let is_unheard = |seat: &Seat| seat.machine.is_some() && !seat.left && now.since(seat.message.1) > limit;
        match self.seats.iter().position(is_unheard).map(Rank::from_index) {
            Some(rank) => {
                let evidence = format!("the process that looks after it said nothing for {limit:?}");
                self.blame(now, (rank, Cause::Silent), evidence, sight)
            }
            None => Decision::Wait,
        }
    }

    /// The verdict when nothing moves: on a rank that does not run, else on the one that is furthest behind.
    pub(super) fn overdue(&mut self, now: Moment, sight: &dyn Sight) -> Decision {
        let Some(inquiry) = &self.inquiry else { return Decision::Wait };
        let waiting: Vec<Rank> = self.ranks().filter(|&rank| self.is_open(rank)).collect();
        // Who still prepares has not begun, however much it did before.
        let done = |rank: Rank| (sight.phase(rank) != Phase::Prepare, sight.progress(rank), sight.phase(rank));
        let behind = waiting.iter().min_by_key(|&&rank| done(rank));
        let task = inquiry.question.task().map(|task| format!(" in {task}")).unwrap_or_default();
        let evidence = format!("nothing moved for {:?}{task}", inquiry.limit);
        match (self.most_silent(waiting.iter().copied(), now), behind) {
            (Some(rank), _) => self.blame(now, (rank, Cause::Silent), evidence, sight),
            (None, Some(&rank)) => self.blame(now, (rank, Cause::Late), evidence, sight),
            (None, None) => Decision::Wait,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::messages::Answer;
    use super::super::super::question::Question;
    use super::super::{Event, Heard, SUSPICION};
    use super::*;
    use std::cell::Cell;

    /// Ranks that give a sign of life whenever somebody looks.
    #[derive(Default)]
    struct Alive(Cell<u64>);

    impl Sight for Alive {
        fn beats(&self, _: Rank) -> u64 {
            self.0.set(self.0.get() + 1);
            self.0.get()
        }

        fn messages(&self, rank: Rank) -> u64 {
            self.beats(rank)
        }

        fn progress(&self, _: Rank) -> u64 {
            0
        }

        fn phase(&self, _: Rank) -> Phase {
            Phase::Work
        }

        fn activity(&self) -> u64 {
            self.beats(Rank(0))
        }
    }

    /// The verdict on ranks of three machines that say, after so many milliseconds, whom they lost; and when it came.
    fn verdict(complaints: &[(u64, u32, u32)]) -> (Rank, u64) {
        let (begin, sight) = (Moment(1_000_000_000), Alive::default());
        let at = |millis| begin.after(Duration::from_millis(millis));
        let mut judge = Judge::new(1, begin, [None, Some(1), Some(2)]);
        let question = Question::Ready { job: 1, plan: String::new() };
        judge.ask(begin, (question, Duration::from_secs(10)), |_| true, &sight);
        for millis in 0..5000 {
            let now = at(millis);
            for &(_, by, peer) in complaints.iter().filter(|complaint| complaint.0 == millis) {
                let answer = Answer::Failed { phase: Phase::Work, reason: String::new(), peer: Some(Rank(peer)) };
                let heard = Heard { epoch: 1, rank: Rank(by), event: Event::Answer(answer) };
                assert_eq!(judge.hear(now, heard, &sight), Decision::Wait);
            }
            if let Decision::End(verdict, _) = judge.look(now, &sight) {
                assert_eq!(verdict.cause, Cause::Cut);
                return (verdict.rank, millis);
            }
        }
        panic!("no verdict on {complaints:?}");
    }

    #[test]
    fn of_two_ends_the_one_is_named_that_others_lost_as_well() {
        let (soon, late) = (SUSPICION.as_millis() as u64, (SUSPICION + OTHERS).as_millis() as u64);
        assert_eq!(verdict(&[(0, 2, 1), (1, 1, 2), (2, 0, 1)]), (Rank(1), soon));
        // On a busy computer the others say so later.
        assert_eq!(verdict(&[(0, 2, 1), (600, 0, 1)]), (Rank(1), 600));
        assert_eq!(verdict(&[(0, 2, 1), (300, 1, 2), (640, 0, 1)]), (Rank(1), 640));
        // If nobody else lost anything, it was that connection alone.
        assert_eq!(verdict(&[(0, 2, 1), (300, 1, 2)]), (Rank(2), late));
    }
}

//! The choice of the rank that a verdict names, if ranks lost each other, are silent, or are late.
//!
//! A broken connection does not show which of its ends is at fault. But each rank reports all ranks that it has lost,
//! and a rank that was cut off is an end of every broken connection. So the verdict names the rank with the most lost
//! connections, counted from both ends. The coordinator names itself if it has lost all other ranks.

use super::{BEAT, Complaint, DISTANCE, Decision, Judge, LEAST_SILENCE, MISSED, Observations, RankState, distant_beat};
use crate::clock::Moment;
use crate::verdict::{Cause, Phase, Verdict};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use topology::Rank;

/// How much longer to wait for further reports of lost ranks, while several ranks are equally suspect.
const OTHERS: Duration = Duration::from_millis(400);

impl Judge {
    /// The longest time that a running rank gives no sign of life.
    fn patience(&self, rank: Rank) -> Duration {
        let distant = distant_beat(self.states.len()) * MISSED + DISTANCE;
        if self.states[rank.index()].machine.is_some() { distant } else { BEAT * MISSED }
    }

    /// The last sign of life of a rank: of its worker, or the older one of worker and agent.
    fn last_sign(&self, rank: Rank) -> Moment {
        let state = &self.states[rank.index()];
        state.machine.map_or(state.beat.1, |_| state.beat.1.min(state.message.1))
    }

    /// How long a rank has given no sign of life.
    fn silence(&self, rank: Rank, now: Moment) -> Duration {
        now.since(self.last_sign(rank))
    }

    /// Whether a rank has been silent for too long.
    fn is_silent(&self, rank: Rank, now: Moment) -> bool {
        self.silence(rank, now) > self.patience(rank)
    }

    /// The rank that has been silent for longest, if any is. On a busy computer, signs of life may be late.
    fn most_silent(&self, ranks: impl Iterator<Item = Rank>, now: Moment) -> Option<Rank> {
        let silent = ranks.filter(|&rank| self.is_silent(rank, now));
        silent.min_by_key(|&rank| self.last_sign(rank))
    }

    /// The phase of a rank.
    pub(super) fn phase(&self, rank: Rank, sight: &dyn Observations) -> Phase {
        let phase = self.inquiry.as_ref().map_or(Phase::Work, |inquiry| inquiry.question.phase());
        if phase == Phase::Work { sight.phase(rank) } else { phase }
    }

    /// Whether a rank has not answered the current question.
    fn is_open(&self, rank: Rank) -> bool {
        self.inquiry.as_ref().is_some_and(|inquiry| inquiry.answers[rank.index()] == Some(None))
    }

    /// Whether an agent has left, or has been silent for more than its patience divided by `part`.
    fn is_lost(&self, rank: Rank, now: Moment, part: u32) -> bool {
        let state = &self.states[rank.index()];
        state.left || now.since(state.message.1) > self.patience(rank) / part
    }

    /// Whether the coordinator has lost all ranks that it reaches over a connection. They must be on several machines,
    /// or there must be several agents: a single one may be lost itself.
    fn is_cut_off(&self, now: Moment, part: u32) -> bool {
        let agents = self.ranks().filter_map(|rank| Some((self.states[rank.index()].machine?, rank)));
        let (here, elsewhere): (Vec<_>, Vec<_>) = agents.partition(|&(machine, _)| machine == 0);
        let all_lost = |agents: &[(usize, Rank)]| agents.iter().all(|&(_, rank)| self.is_lost(rank, now, part));
        let several = elsewhere.iter().any(|&(machine, _)| machine != elsewhere[0].0);
        let with_those_here = || !here.is_empty() && here.len() + elsewhere.len() > 1 && all_lost(&here);
        all_lost(&elsewhere) && (several || with_those_here())
    }

    /// The verdict on a rank, or on the coordinator if it has lost all other ranks.
    pub(super) fn blame(
        &mut self,
        now: Moment,
        (rank, cause): (Rank, Cause),
        evidence: String,
        sight: &dyn Observations,
    ) -> Decision {
        let is_cut_off = self.is_cut_off(now, 1);
        if !is_cut_off && self.is_cut_off(now, 2) {
            // Some ranks may be lost as well, but have not been silent for long enough. The next moments will show.
            return Decision::Wait;
        }
        let (rank, cause, evidence) = match is_cut_off {
            true => (Rank(0), Cause::Cut, format!("all its connections with other ranks were lost: {evidence}")),
            false => (rank, cause, evidence),
        };
        let phase = self.phase(rank, sight);
        self.end(Verdict { rank, cause, phase }, evidence)
    }

    /// The verdict if ranks lost each other and none of them is known to be dead. It names a silent rank, else the rank
    /// that is an end of the most broken connections, else the rank that reported first.
    pub(super) fn suspect(&mut self, now: Moment, until: Moment, sight: &dyn Observations) -> Decision {
        let complaints = self.inquiry.as_ref().map_or(Vec::new(), |inquiry| inquiry.complaints.clone());
        let Some(first) = complaints.first() else { return Decision::Wait };
        // A rank that has reported its error gives no more signs of life.
        let may_be_silent = |peer: &Rank| self.states.get(peer.index()).is_some_and(|state| !state.said);
        let peers = || complaints.iter().flat_map(|complaint| complaint.peers.iter().copied()).filter(may_be_silent);
        if let Some(rank) = self.most_silent(peers(), now) {
            return self.blame(now, (rank, Cause::Silent), first.reason.clone(), sight);
        }
        let is_doubtful = |peer| self.silence(peer, now) > self.patience(peer) / 2;
        if peers().any(is_doubtful) && now.since(until) < DISTANCE {
            return Decision::Wait;
        }
        let common = most_lost(&complaints);
        let rank = match common[..] {
            [rank] => rank,
            // The other end of a broken connection, or another rank that lost one of the two, may still report.
            _ if now.since(until) < OTHERS => return Decision::Wait,
            _ => common.iter().copied().find(|&rank| rank == first.by).unwrap_or(common[0]),
        };
        let touches = |complaint: &&Complaint| complaint.by == rank || complaint.peers.contains(&rank);
        let found = complaints.iter().find(touches).unwrap_or(first);
        let (evidence, by) = (found.reason.clone(), found.by);
        let phase = if rank == by { found.phase } else { sight.phase(rank) };
        let others = complaints.iter().filter(|complaint| complaint.by != rank);
        self.reports.extend(others.map(|complaint| (complaint.by, complaint.reason.clone())));
        self.end(Verdict { rank, cause: Cause::Cut, phase }, evidence)
    }

    /// The verdict if ranks make progress, but an agent has been silent for too long. Its worker goes on, but could not
    /// be ended.
    pub(super) fn unheard(&mut self, now: Moment, limit: Duration, sight: &dyn Observations) -> Decision {
        let limit = limit.max(LEAST_SILENCE);
        let is_unheard =
            |state: &RankState| state.machine.is_some() && !state.left && now.since(state.message.1) > limit;
        match self.states.iter().position(is_unheard).map(Rank::from_index) {
            Some(rank) => {
                let evidence = format!("the process that looks after it said nothing for {limit:?}");
                self.blame(now, (rank, Cause::Silent), evidence, sight)
            }
            None => Decision::Wait,
        }
    }

    /// The verdict if nothing moves: on a rank that does not run, else on the rank with the least progress.
    pub(super) fn overdue(&mut self, now: Moment, sight: &dyn Observations) -> Decision {
        let Some(inquiry) = &self.inquiry else { return Decision::Wait };
        let waiting: Vec<Rank> = self.ranks().filter(|&rank| self.is_open(rank)).collect();
        // A rank that still prepares has not begun this task, even if it made progress in earlier tasks.
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

/// The ranks that are ends of the most pairs in which one rank has lost the other. There is at least one.
fn most_lost(complaints: &[Complaint]) -> Vec<Rank> {
    let pair = |by: Rank| move |&peer: &Rank| [by.min(peer), by.max(peer)];
    let pairs = complaints.iter().flat_map(|complaint| complaint.peers.iter().map(pair(complaint.by)));
    let mut lost: BTreeMap<Rank, usize> = BTreeMap::new();
    for rank in pairs.collect::<BTreeSet<_>>().into_iter().flatten() {
        *lost.entry(rank).or_default() += 1;
    }
    let most = lost.values().copied().max();
    lost.into_iter().filter(|&(_, count)| Some(count) == most).map(|(rank, _)| rank).collect()
}

#[cfg(test)]
mod tests {
    use super::super::{Heard, RankEvent, SUSPICION};
    use super::*;
    use crate::control::messages::Answer;
    use crate::control::question::Question;
    use crate::numbers::{Epoch, TaskNumber};
    use std::cell::Cell;

    /// Ranks that give a sign of life at every look.
    #[derive(Default)]
    struct Alive(Cell<u64>);

    impl Observations for Alive {
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

    /// The verdict on ranks of four machines, and its time. A complaint: milliseconds, rank, and the ranks it lost.
    fn verdict(complaints: &[(u64, u32, &[u32])]) -> (Rank, u64) {
        let (begin, sight) = (Moment(1_000_000_000), Alive::default());
        let at = |millis| begin.after(Duration::from_millis(millis));
        let mut judge = Judge::new(Epoch(1), begin, [None, Some(1), Some(2), Some(3)]);
        let question = Question::Ready { task: TaskNumber(1), plan: String::new() };
        judge.ask(begin, (question, Duration::from_secs(10)), |_| true, &sight);
        for millis in 0..5000 {
            let now = at(millis);
            for &(_, by, peers) in complaints.iter().filter(|complaint| complaint.0 == millis) {
                let peers = peers.iter().copied().map(Rank).collect();
                let answer = Answer::Failed { phase: Phase::Work, reason: String::new(), peers };
                let heard = Heard { epoch: Epoch(1), rank: Rank(by), event: RankEvent::Answer(answer) };
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
        assert_eq!(verdict(&[(0, 2, &[1]), (1, 1, &[2]), (2, 0, &[1])]), (Rank(1), soon));
        // On a busy computer the other reports come later.
        assert_eq!(verdict(&[(0, 2, &[1]), (600, 0, &[1])]), (Rank(1), 600));
        assert_eq!(verdict(&[(0, 2, &[1]), (300, 1, &[2]), (640, 0, &[1])]), (Rank(1), 640));
        // If no other rank lost anything, only that connection broke.
        assert_eq!(verdict(&[(0, 2, &[1]), (300, 1, &[2])]), (Rank(2), late));
    }

    #[test]
    fn who_lost_everybody_is_named_though_nobody_else_says_so() {
        let soon = SUSPICION.as_millis() as u64;
        // Reports of a rank about itself, or about ranks that do not exist, do not count.
        for peers in [&[0, 2][..], &[0, 2, 1, 2, 99, u32::MAX]] {
            assert_eq!(verdict(&[(0, 2, &[1]), (1, 1, peers)]), (Rank(1), soon));
            assert_eq!(verdict(&[(0, 1, peers)]), (Rank(1), soon));
        }
        // If two ranks were cut off: the one that lost more ranks, else the one of the two that reported first.
        assert_eq!(verdict(&[(0, 3, &[1, 2]), (1, 1, &[0, 2, 3])]), (Rank(1), soon));
        let late = (SUSPICION + OTHERS).as_millis() as u64;
        assert_eq!(verdict(&[(0, 2, &[3]), (1, 1, &[0, 3]), (2, 3, &[1, 2])]), (Rank(1), late));
    }

    #[test]
    fn who_says_that_it_lost_only_what_does_not_exist_has_failed() {
        let (now, sight) = (Moment(1_000_000_000), Alive::default());
        let mut judge = Judge::new(Epoch(1), now, [None, Some(1)]);
        judge.ask(now, (Question::Hello, Duration::from_secs(10)), |_| true, &sight);
        let answer = Answer::Failed { phase: Phase::Work, reason: String::new(), peers: vec![Rank(1), Rank(7)] };
        let heard = Heard { epoch: Epoch(1), rank: Rank(1), event: RankEvent::Answer(answer) };
        let Decision::End(verdict, _) = judge.hear(now, heard, &sight) else { panic!("nothing was decided") };
        assert_eq!((verdict.rank, verdict.cause), (Rank(1), Cause::Failed));
    }
}

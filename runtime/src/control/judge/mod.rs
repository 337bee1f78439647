//! The coordinator's decisions, without sockets, threads or clocks: events and observations go in with their moment,
//! and decisions come out. A [`Job`](crate::Job) drives it with real ones, the simulation with simulated ones.
//!
//! The principal type is [`Judge`]. One question is open at a time. It ends with the answers of all ranks, or with a
//! verdict. `blame` chooses the rank that a verdict names if several are possible.

mod blame;

use crate::clock::Moment;
use crate::control::messages::Answer;
use crate::control::question::{Judgement, Question};
use crate::control::transcript;
use crate::numbers::Epoch;
use crate::verdict::{Cause, Phase, Verdict};
use std::collections::BTreeSet;
use std::time::Duration;
use topology::Rank;

/// How often a worker gives a sign of life.
pub(crate) const BEAT: Duration = Duration::from_millis(50);
/// How often a waiting coordinator checks what it can see.
pub(crate) const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// How long live ranks may report their errors after a verdict.
pub(crate) const LAST_WORDS: Duration = Duration::from_millis(500);
/// A rank that missed this many signs of life does not run.
const MISSED: u32 = 8;
/// How much more time ranks with agents have.
const DISTANCE: Duration = Duration::from_millis(400);
/// How long to wait for further reports of lost ranks. They may arrive before the news that a rank has died.
const SUSPICION: Duration = Duration::from_millis(250);
/// An agent or coordinator that was silent for less than this may just be slow.
pub(crate) const LEAST_SILENCE: Duration = Duration::from_secs(1);
/// A coordinator that did not look for this long was not running.
const PAUSE: Duration = Duration::from_secs(1);

/// How often agents send a sign of life in a job of `ranks` ranks. The coordinator receives all of them.
pub(crate) fn distant_beat(ranks: usize) -> Duration {
    BEAT + BEAT * (ranks / 256) as u32
}

/// An event of a rank.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum RankEvent {
    Answer(Answer),
    /// The worker has ended; how, as far as known.
    Gone(String),
    /// The connection with the agent has ended. The coordinator cannot tell whether the agent is gone or only cut off.
    /// In both cases the agent's worker ends.
    Left(String),
}

/// An event, the rank that it concerns, and the epoch to which it belongs.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Heard {
    pub(crate) epoch: Epoch,
    pub(crate) rank: Rank,
    pub(crate) event: RankEvent,
}

/// What the coordinator can see of the ranks without a question.
pub(crate) trait Observations {
    /// How many signs of life the worker has given.
    fn beats(&self, rank: Rank) -> u64;
    /// How many messages the agent has sent.
    fn messages(&self, rank: Rank) -> u64;
    /// How many steps the rank has finished.
    fn progress(&self, rank: Rank) -> u64;
    fn phase(&self, rank: Rank) -> Phase;
    /// A number that changes when anything moves on any rank.
    fn activity(&self) -> u64;
}

/// A decision of the coordinator.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Decision {
    Wait,
    /// Send this rank the last order again.
    Repeat(Rank),
    /// All ranks that were asked have answered; by rank.
    Complete(Vec<(Rank, Answer)>),
    /// The epoch is over, with this verdict and this evidence.
    End(Verdict, String),
    /// After a verdict, all ranks have reported, or the time for reports is over.
    Over,
}

/// What is known about a rank.
#[derive(Clone, PartialEq, Debug)]
struct RankState {
    /// The machine of the rank's agent, if it has one; 0 is the coordinator's machine.
    machine: Option<usize>,
    /// The counter of the worker's signs of life, and when it last changed.
    beat: (u64, Moment),
    /// The counter of the agent's messages, and when it last changed.
    message: (u64, Moment),
    gone: bool,
    /// Whether its agent is gone, so that the rank cannot be restarted.
    left: bool,
    /// Whether it has reported its error.
    said: bool,
}

/// The report of a rank that lost other ranks.
#[derive(Clone, PartialEq, Debug)]
struct Complaint {
    by: Rank,
    /// At least one rank of the job.
    peers: BTreeSet<Rank>,
    phase: Phase,
    reason: String,
}

/// A question while it is open.
#[derive(Clone, PartialEq, Debug)]
struct Inquiry {
    question: Question,
    /// The longest time without any movement.
    limit: Duration,
    /// By rank; `None` for ranks that are not asked.
    answers: Vec<Option<Option<Answer>>>,
    /// When anything moved last.
    moved: Moment,
    activity: u64,
    /// Once a rank has reported lost ranks: until when to wait for further reports.
    suspicion: Option<Moment>,
    complaints: Vec<Complaint>,
    /// The first agent that has left, and how; until when to wait whether all others have left too.
    departure: Option<(Moment, Rank, String)>,
}

/// What the coordinator knows about an epoch.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Judge {
    epoch: Epoch,
    states: Vec<RankState>,
    inquiry: Option<Inquiry>,
    /// After a verdict: until when to wait for reports, and the rank from which none is expected.
    closing: Option<(Moment, Option<Rank>)>,
    /// When the coordinator looked last.
    looked: Moment,
    /// When the coordinator last noticed that it had not run, and for how long.
    slept: (Moment, Duration),
    /// Reports of ranks that are not the evidence of the verdict.
    reports: Vec<(Rank, String)>,
}

impl Judge {
    /// The state at the begin of an epoch. `machines` has the machine of each rank's agent, if the rank has one.
    pub(crate) fn new(epoch: Epoch, now: Moment, machines: impl IntoIterator<Item = Option<usize>>) -> Self {
        let state =
            |machine| RankState { machine, beat: (0, now), message: (0, now), gone: false, left: false, said: false };
        let states = machines.into_iter().map(state).collect();
        let (inquiry, closing, slept) = (None, None, (now, Duration::ZERO));
        Self { epoch, states, inquiry, closing, looked: now, slept, reports: Vec::new() }
    }

    /// The state at the begin of the next epoch. It remembers a pause of the coordinator.
    pub(crate) fn next(&self, epoch: Epoch, now: Moment, machines: impl IntoIterator<Item = Option<usize>>) -> Self {
        Self { slept: self.slept, ..Self::new(epoch, now, machines) }
    }

    /// Asks the ranks that are `asked`. A rank is overdue when nothing has moved for `limit`.
    pub(crate) fn ask(
        &mut self,
        now: Moment,
        (question, limit): (Question, Duration),
        asked: impl Fn(Rank) -> bool,
        sight: &dyn Observations,
    ) {
        let answers = self.ranks().map(|rank| asked(rank).then_some(None)).collect();
        let (activity, complaints) = (sight.activity(), Vec::new());
        let (suspicion, departure) = (None, None);
        self.inquiry =
            Some(Inquiry { question, limit, answers, moved: now, activity, suspicion, complaints, departure });
        self.looked = now;
        // The time without a question does not count as silence.
        self.forgive(now);
    }

    /// The first rank whose agent has left.
    pub(crate) fn departed(&self) -> Option<Rank> {
        self.ranks().find(|rank| self.states[rank.index()].left)
    }

    /// Waits for reports after the verdict. A silent rank is not expected to report.
    pub(crate) fn close(&mut self, now: Moment, verdict: Verdict) {
        self.inquiry = None;
        self.closing = Some((now.after(LAST_WORDS), (verdict.cause == Cause::Silent).then_some(verdict.rank)));
    }

    /// Takes the reports of ranks, ordered by rank.
    pub(crate) fn take_reports(&mut self) -> Vec<(Rank, String)> {
        let mut reports = std::mem::take(&mut self.reports);
        reports.sort();
        reports
    }

    fn ranks(&self) -> impl Iterator<Item = Rank> + use<> {
        (0..self.states.len()).map(Rank::from_index)
    }

    /// One round of a coordinator that waits for a decision: what follows from an event, if there is one, from the
    /// state of the ranks, and from the time. The caller repeats it until it returns more than [`Decision::Wait`].
    /// Between two calls the caller waits for an event, at most [`POLL_INTERVAL`].
    pub(crate) fn step(&mut self, now: Moment, heard: Option<Heard>, sight: &dyn Observations) -> Decision {
        self.wake(now);
        let decision = heard.map_or(Decision::Wait, |heard| self.hear(now, heard, sight));
        if decision != Decision::Wait {
            return decision;
        }
        let is_over = |(until, silent): (Moment, Option<Rank>)| {
            now >= until || self.ranks().all(|rank| self.states[rank.index()].gone || Some(rank) == silent)
        };
        if self.closing.is_some_and(is_over) { Decision::Over } else { self.look(now, sight) }
    }

    /// What follows from an event.
    pub(crate) fn hear(&mut self, now: Moment, heard: Heard, sight: &dyn Observations) -> Decision {
        self.wake(now);
        transcript::heard(&heard);
        let Heard { epoch, rank, event } = heard;
        let Some(state) = self.states.get_mut(rank.index()) else { return Decision::Wait };
        match event {
            RankEvent::Left(how) => {
                state.left = true;
                self.left(now, rank, how)
            }
            // An event of another epoch says nothing about this one.
            _ if epoch != self.epoch => Decision::Wait,
            RankEvent::Gone(how) => self.lost(rank, how, sight),
            RankEvent::Answer(Answer::Failed { phase, reason, peers }) => {
                if std::mem::replace(&mut state.said, true) {
                    return Decision::Wait;
                }
                self.failed(now, rank, &peers, phase, reason)
            }
            RankEvent::Answer(answer) => self.answered(rank, answer),
        }
    }

    /// A rank has ended. If it has reported its error, that report counts.
    fn lost(&mut self, rank: Rank, how: String, sight: &dyn Observations) -> Decision {
        let state = &mut self.states[rank.index()];
        let known = std::mem::replace(&mut state.gone, true) || state.said;
        match &self.inquiry {
            Some(_) if !known => {
                let phase = self.phase(rank, sight);
                self.end(Verdict { rank, cause: Cause::Died, phase }, how)
            }
            _ => Decision::Wait,
        }
    }

    /// An agent has left, and its worker with it. If all leave, the coordinator itself is cut off.
    fn left(&mut self, now: Moment, rank: Rank, how: String) -> Decision {
        let state = &mut self.states[rank.index()];
        let known = std::mem::replace(&mut state.gone, true) || state.said;
        if let (Some(inquiry), false) = (&mut self.inquiry, known) {
            inquiry.departure.get_or_insert((now.after(BEAT), rank, how));
        }
        Decision::Wait
    }

    fn failed(&mut self, now: Moment, rank: Rank, peers: &[Rank], phase: Phase, reason: String) -> Decision {
        let ranks = self.states.len();
        let peers = peers.iter().copied().filter(|&peer| peer != rank && peer.index() < ranks).collect::<BTreeSet<_>>();
        let Some(inquiry) = &mut self.inquiry else {
            self.reports.push((rank, reason));
            return Decision::Wait;
        };
        if peers.is_empty() {
            return self.end(Verdict { rank, cause: Cause::Failed, phase }, reason);
        }
        inquiry.suspicion.get_or_insert(now.after(SUSPICION));
        inquiry.complaints.push(Complaint { by: rank, peers, phase, reason });
        Decision::Wait
    }

    fn answered(&mut self, rank: Rank, answer: Answer) -> Decision {
        let Some(inquiry) = &mut self.inquiry else { return Decision::Wait };
        match inquiry.question.judge(&answer) {
            // A repeated answer, or one of a rank that was not asked, changes nothing.
            Judgement::Right => {
                if let Some(Some(open @ None)) = inquiry.answers.get_mut(rank.index()) {
                    *open = Some(answer);
                }
            }
            Judgement::Late => {}
            Judgement::Repeated => return Decision::Repeat(rank),
            Judgement::Wrong(cause, evidence) => {
                let phase = inquiry.question.phase();
                return self.end(Verdict { rank, cause, phase }, evidence);
            }
        }
        Decision::Wait
    }

    /// What follows from the state of the ranks and from the time.
    fn look(&mut self, now: Moment, sight: &dyn Observations) -> Decision {
        self.wake(now);
        for (index, state) in self.states.iter_mut().enumerate() {
            let rank = Rank::from_index(index);
            for (last, count) in [(&mut state.beat, sight.beats(rank)), (&mut state.message, sight.messages(rank))] {
                if count != last.0 {
                    *last = (count, now);
                }
            }
        }
        let Some(inquiry) = &mut self.inquiry else { return Decision::Wait };
        if let Some((until, rank, how)) = &inquiry.departure {
            let (rank, how) = (*rank, how.clone());
            return if now < *until { Decision::Wait } else { self.blame(now, (rank, Cause::Lost), how, sight) };
        }
        if !inquiry.answers.contains(&Some(None)) {
            let answers = std::mem::take(&mut inquiry.answers).into_iter().enumerate();
            let by_rank = answers.filter_map(|(index, answer)| Some((Rank::from_index(index), answer??)));
            let complete = Decision::Complete(by_rank.collect());
            self.inquiry = None;
            return complete;
        }
        if let Some(until) = inquiry.suspicion.filter(|&until| now >= until) {
            return self.suspect(now, until, sight);
        }
        let activity = sight.activity();
        if activity != inquiry.activity {
            (inquiry.moved, inquiry.activity) = (now, activity);
        }
        let (is_overdue, limit) = (now.since(inquiry.moved) > inquiry.limit, inquiry.limit);
        if is_overdue { self.overdue(now, sight) } else { self.unheard(now, limit, sight) }
    }

    /// Counts all silence from this moment on.
    fn forgive(&mut self, now: Moment) {
        self.states.iter_mut().for_each(|state| (state.beat.1, state.message.1) = (now, now));
    }

    /// Time in which the coordinator itself did not run does not count as a delay of others.
    fn wake(&mut self, now: Moment) {
        let away = now.since(self.looked);
        self.looked = now;
        if away < PAUSE {
            return;
        }
        self.slept = (now, away);
        self.forgive(now);
        if let Some(inquiry) = &mut self.inquiry {
            inquiry.moved = now;
        }
    }

    /// Closes the question. If the coordinator did not run for longer than ranks wait, it caused what they report.
    fn end(&mut self, verdict: Verdict, evidence: String) -> Decision {
        let limit = self.inquiry.take().map_or(Duration::MAX, |inquiry| inquiry.limit);
        let (woke, away) = self.slept;
        if away <= limit || self.looked.since(woke) > limit {
            return Decision::End(verdict, evidence);
        }
        let evidence = format!("it did not run for {away:?}; then {verdict}: {evidence}");
        Decision::End(Verdict { rank: Rank(0), cause: Cause::Silent, phase: verdict.phase }, evidence)
    }
}

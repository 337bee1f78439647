//! What the coordinator decides. No sockets, threads or clocks: what was heard and seen comes in with its moment, and
//! decisions go out. A [`Job`](crate::Job) drives it with real ones, the simulation with invented ones.
//!
//! The principal type is [`Judge`]. One question is open at a time; it ends with the answers of all, or with a verdict.
//! Whom a verdict names where that is not plain is found in `blame`.

mod blame;

use crate::clock::Moment;
use crate::control::messages::Answer;
use crate::control::question::{Judgement, Question};
use crate::numbers::Epoch;
use crate::verdict::{Cause, Phase, Verdict};
use std::collections::BTreeSet;
use std::time::Duration;
use topology::Rank;

/// How often a worker gives a sign of life.
pub(crate) const BEAT: Duration = Duration::from_millis(50);
/// How often a coordinator that waits looks around.
pub(crate) const GLANCE: Duration = Duration::from_millis(20);
/// How long live ranks have to say their last word after a verdict.
pub(crate) const LAST_WORDS: Duration = Duration::from_millis(500);
/// A rank that missed so many signs of life is not running.
const MISSED: u32 = 8;
/// How much longer those with agents may take.
const DISTANCE: Duration = Duration::from_millis(400);
/// How long to wait for others to say whom they lost: who lost a rank says so before it is known that the rank is dead.
const SUSPICION: Duration = Duration::from_millis(250);
/// Who said nothing for less, to an agent or from one, may just be slow.
pub(crate) const LEAST_SILENCE: Duration = Duration::from_secs(1);
/// A coordinator that looked away for so long did not run.
const PAUSE: Duration = Duration::from_secs(1);

/// How often the agents of so many ranks pass a sign of life on: the coordinator hears all of them.
pub(crate) fn distant_beat(ranks: usize) -> Duration {
    BEAT + BEAT * (ranks / 256) as u32
}

/// What was heard of a rank.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Event {
    Answer(Answer),
    /// The worker is gone; how, as far as that is known.
    Gone(String),
    /// The connection with the agent has ended. Whether the agent is gone or only cut off, nobody can tell from here; it
    /// ends its worker in both cases.
    Left(String),
}

/// What was heard, of whom, and to which epoch it belongs.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Heard {
    pub(crate) epoch: Epoch,
    pub(crate) rank: Rank,
    pub(crate) event: Event,
}

/// What ranks show of themselves without being asked.
pub(crate) trait Sight {
    /// Signs of life of the worker.
    fn beats(&self, rank: Rank) -> u64;
    /// Grows with every message from the agent.
    fn messages(&self, rank: Rank) -> u64;
    /// Steps that it has finished.
    fn progress(&self, rank: Rank) -> u64;
    fn phase(&self, rank: Rank) -> Phase;
    /// Changes whenever anything moves anywhere.
    fn activity(&self) -> u64;
}

/// What the coordinator is to do.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Decision {
    Wait,
    /// Tell this rank once more what was ordered last.
    Repeat(Rank),
    /// All that were asked have answered; by rank.
    Complete(Vec<(Rank, Answer)>),
    /// The epoch is over: the verdict, and its evidence.
    End(Verdict, String),
    /// Who had last words to say after a verdict has said them, or had the time to.
    Over,
}

/// What is known of a rank.
#[derive(Clone, PartialEq, Debug)]
struct RankState {
    /// The machine of the agent that looks after it, if one does; 0 is the coordinator's.
    machine: Option<usize>,
    /// The last sign of life of the worker, and when it changed.
    beat: (u64, Moment),
    /// The same of the agent.
    message: (u64, Moment),
    gone: bool,
    /// Whether its agent is gone, so that it cannot come back.
    left: bool,
    /// Whether it has said why it ends.
    said: bool,
}

/// A rank that lost others.
#[derive(Clone, PartialEq, Debug)]
struct Complaint {
    by: Rank,
    /// At least one; none but ranks of the job.
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
    /// By rank; `None` for those who are not asked.
    answers: Vec<Option<Option<Answer>>>,
    /// When something moved last.
    moved: Moment,
    activity: u64,
    /// Until when to hear who lost whom, once somebody has.
    suspicion: Option<Moment>,
    complaints: Vec<Complaint>,
    /// The first agent that has left and how, and until when to hear whether all others have left with it.
    departure: Option<(Moment, Rank, String)>,
}

/// What the coordinator knows of an epoch.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Judge {
    epoch: Epoch,
    states: Vec<RankState>,
    inquiry: Option<Inquiry>,
    /// After a verdict: until when last words are heard, and of whom none are expected.
    closing: Option<(Moment, Option<Rank>)>,
    /// When it looked last.
    looked: Moment,
    /// When it noticed last that it had not run, and for how long.
    slept: (Moment, Duration),
    /// What ranks said at their end that is not the evidence.
    reports: Vec<(Rank, String)>,
}

impl Judge {
    /// At the begin of an epoch; `machines` says which ranks have agents, and where.
    pub(crate) fn new(epoch: Epoch, now: Moment, machines: impl IntoIterator<Item = Option<usize>>) -> Self {
        let state =
            |machine| RankState { machine, beat: (0, now), message: (0, now), gone: false, left: false, said: false };
        let states = machines.into_iter().map(state).collect();
        let (inquiry, closing, slept) = (None, None, (now, Duration::ZERO));
        Self { epoch, states, inquiry, closing, looked: now, slept, reports: Vec::new() }
    }

    /// The same for the next epoch: others remember that the coordinator has slept.
    pub(crate) fn next(&self, epoch: Epoch, now: Moment, machines: impl IntoIterator<Item = Option<usize>>) -> Self {
        Self { slept: self.slept, ..Self::new(epoch, now, machines) }
    }

    /// Opens a question to those who are `asked`; a rank is overdue when nothing has moved for `limit`.
    pub(crate) fn ask(
        &mut self,
        now: Moment,
        (question, limit): (Question, Duration),
        asked: impl Fn(Rank) -> bool,
        sight: &dyn Sight,
    ) {
        let answers = self.ranks().map(|rank| asked(rank).then_some(None)).collect();
        let (activity, complaints) = (sight.activity(), Vec::new());
        let (suspicion, departure) = (None, None);
        self.inquiry =
            Some(Inquiry { question, limit, answers, moved: now, activity, suspicion, complaints, departure });
        self.looked = now;
        // Nobody had to look while nothing was asked.
        self.forgive(now);
    }

    /// The first rank whose agent has left.
    pub(crate) fn departed(&self) -> Option<Rank> {
        self.ranks().find(|rank| self.states[rank.index()].left)
    }

    /// The verdict is known: hears what ranks say at their end, for a while; of one that is silent nothing is expected.
    pub(crate) fn close(&mut self, now: Moment, verdict: Verdict) {
        self.inquiry = None;
        self.closing = Some((now.after(LAST_WORDS), (verdict.cause == Cause::Silent).then_some(verdict.rank)));
    }

    /// What ranks said at their end, by rank, once.
    pub(crate) fn take_reports(&mut self) -> Vec<(Rank, String)> {
        let mut reports = std::mem::take(&mut self.reports);
        reports.sort();
        reports
    }

    fn ranks(&self) -> impl Iterator<Item = Rank> + use<> {
        (0..self.states.len()).map(Rank::from_index)
    }

    /// One round of a coordinator that waits for a decision: what follows from what was heard, if anything was, and from
    /// what is to be seen. It is called again and again until it says more than [`Decision::Wait`]; whoever calls it waits
    /// for [`GLANCE`] at most for somebody to say something.
    pub(crate) fn step(&mut self, now: Moment, heard: Option<Heard>, sight: &dyn Sight) -> Decision {
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

    /// What follows from what was heard.
    pub(crate) fn hear(&mut self, now: Moment, heard: Heard, sight: &dyn Sight) -> Decision {
        self.wake(now);
        let Heard { epoch, rank, event } = heard;
        let Some(state) = self.states.get_mut(rank.index()) else { return Decision::Wait };
        match event {
            Event::Left(how) => {
                state.left = true;
                self.left(now, rank, how)
            }
            // What belongs to an epoch that is over says nothing about this one.
            _ if epoch != self.epoch => Decision::Wait,
            Event::Gone(how) => self.lost(rank, how, sight),
            Event::Answer(Answer::Failed { phase, reason, peers }) => {
                if std::mem::replace(&mut state.said, true) {
                    return Decision::Wait;
                }
                self.failed(now, rank, &peers, phase, reason)
            }
            Event::Answer(answer) => self.answered(rank, answer),
        }
    }

    /// A rank has ended; who said why before is heard already.
    fn lost(&mut self, rank: Rank, how: String, sight: &dyn Sight) -> Decision {
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

    /// An agent has left, and its worker with it. Whether all have, and so the coordinator is cut off, shows in a moment.
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
            // What comes twice, or was not asked for, changes nothing.
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

    /// What follows from what is to be seen now, and from time.
    fn look(&mut self, now: Moment, sight: &dyn Sight) -> Decision {
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

    /// Nobody has been silent before this moment.
    fn forgive(&mut self, now: Moment) {
        self.states.iter_mut().for_each(|state| (state.beat.1, state.message.1) = (now, now));
    }

    /// Time that the coordinator itself did not run for is nobody else's delay.
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

    /// Closes the question. Who did not run for longer than others wait has caused whatever they say.
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

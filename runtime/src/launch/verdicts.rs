//! How the coordinator waits, and how it ends an epoch when its [`Judge`](crate::control::judge::Judge) decides so.

use crate::clock::Moment;
use crate::control::judge::{Decision, LAST_WORDS, Observations, POLL_INTERVAL};
use crate::control::messages::{Answer, ToAgent, WorkerCommand};
use crate::control::plane::Plane;
use crate::control::question::Question;
use crate::error::{RunError, RunResult};
use crate::launch::launcher::Job;
use crate::launch::member::Member;
use crate::memory::segment::Segment;
use crate::verdict::{Cause, Phase, Verdict};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use topology::Rank;

/// What the coordinator can see of its ranks.
pub(crate) struct JobObserver {
    segment: Segment,
    plane: Option<Arc<Plane>>,
}

impl Observations for JobObserver {
    fn beats(&self, rank: Rank) -> u64 {
        self.segment.activity.beats(rank).load(Ordering::Relaxed)
    }

    fn messages(&self, rank: Rank) -> u64 {
        self.plane.as_ref().map_or(0, |plane| plane.messages(rank))
    }

    fn progress(&self, rank: Rank) -> u64 {
        self.segment.activity.progress(rank).load(Ordering::Relaxed)
    }

    fn phase(&self, rank: Rank) -> Phase {
        self.segment.activity.phase(rank)
    }

    fn activity(&self) -> u64 {
        self.segment.activity.sum()
    }
}

impl Job {
    fn observer(&self) -> JobObserver {
        JobObserver { segment: self.segment.clone(), plane: self.plane.clone() }
    }

    /// The answers of all ranks that are `asked`, by rank; or a verdict. A rank that repeats its last answer gets the
    /// order `ordered` again. `limit` is the longest time without any movement.
    pub(crate) fn gather(
        &mut self,
        question: Question,
        limit: Duration,
        asked: impl Fn(Rank) -> bool,
        ordered: Option<&WorkerCommand>,
    ) -> RunResult<Vec<(Rank, Answer)>> {
        self.judge.ask(Moment::now(), (question, limit), asked, &self.observer());
        loop {
            match self.decide() {
                Decision::Repeat(rank) => {
                    if let Some(order) = ordered {
                        // A broken channel gives a `Gone` event.
                        let _ = self.members[rank.index()].order(order);
                    }
                }
                Decision::Complete(answers) => return Ok(answers),
                Decision::End(verdict, evidence) => return Err(self.end(verdict, evidence)),
                Decision::Wait | Decision::Over => {}
            }
        }
    }

    /// Passes events to the judge until it decides something.
    fn decide(&mut self) -> Decision {
        let (observer, mut heard) = (self.observer(), None);
        loop {
            match self.judge.step(Moment::now(), heard.take(), &observer) {
                Decision::Wait => heard = self.events.recv_timeout(POLL_INTERVAL).ok(),
                decision => return decision,
            }
        }
    }

    /// How a child ended. The process ends within moments after its channel, if at all.
    fn end_of(&mut self, rank: Rank) -> Option<String> {
        let member = &mut self.members[rank.index()];
        let deadline = Moment::now().after(POLL_INTERVAL * 5);
        while member.process().is_some() && Moment::now() < deadline {
            match member.status() {
                Some(status) => return Some(status.to_string()),
                None => std::thread::sleep(Duration::from_millis(1)),
            }
        }
        None
    }

    /// Kills all children. Returns those that stay although they were killed, with a description.
    pub(crate) fn reap(&mut self) -> Vec<(Rank, String)> {
        self.members.iter_mut().for_each(Member::kill);
        let reap = |(rank, member): (usize, &mut Member)| Some((Rank::from_index(rank), member.reap().err()?));
        self.members.iter_mut().enumerate().filter_map(reap).collect()
    }

    /// Records which agents have left while the coordinator was not waiting.
    pub(crate) fn note_departures(&mut self) {
        let observer = self.observer();
        while let Ok(heard) = self.events.try_recv() {
            self.judge.hear(Moment::now(), heard, &observer);
        }
    }

    /// The name of a rank's machine; empty if there is none.
    pub(crate) fn machine_of(&self, rank: Rank) -> String {
        self.machines.get(rank.index()).cloned().unwrap_or_default()
    }

    /// Pronounces a verdict, collects the reports of live ranks, and ends all processes.
    pub(crate) fn end(&mut self, verdict: Verdict, evidence: String) -> RunError {
        let verdict = self.segment.verdict.pronounce(verdict);
        self.over = Some(verdict);
        let how = if verdict.cause == Cause::Died { self.end_of(verdict.rank) } else { None };
        let evidence = how.unwrap_or(evidence);
        let finished = self.segment.activity.progress(verdict.rank).load(Ordering::Relaxed);
        let place = match self.machine_of(verdict.rank) {
            machine if machine.is_empty() => String::new(),
            machine => format!(" on machine {machine}"),
        };
        let evidence = format!("{evidence}; rank {}{place} has finished {finished} steps", verdict.rank);
        if let Some(plane) = &self.plane {
            plane.tell_all(&ToAgent::Verdict { epoch: self.epoch, verdict, evidence: evidence.clone() });
            plane.finish();
        }
        // Wakes the workers that wait for an order.
        self.members.iter().for_each(Member::hang_up);
        self.judge.close(Moment::now(), verdict);
        while self.decide() != Decision::Over {}
        let mut reports = self.judge.take_reports();
        reports.extend(self.reap());
        RunError::Ended { verdict, evidence, reports }
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        self.members.iter().for_each(Member::hang_up);
        if let Some(plane) = &self.plane {
            plane.tell_all(&ToAgent::End);
        }
        let deadline = Moment::now().after(LAST_WORDS);
        let running = |member: &mut Member| member.process().is_some() && member.status().is_none();
        while self.members.iter_mut().any(running) && Moment::now() < deadline {
            std::thread::sleep(Duration::from_millis(1));
        }
        self.reap();
        if let Some(plane) = self.plane.take() {
            plane.close(LAST_WORDS);
        }
    }
}

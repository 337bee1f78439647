//! How the coordinator waits, and what it does when its [`Judge`](crate::control::judge::Judge) ends an epoch.

use crate::clock::Moment;
use crate::control::judge::{Decision, GLANCE, LAST_WORDS, Sight};
use crate::control::messages::{Answer, Command as Order, ToAgent};
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

/// Where the coordinator sees its ranks.
pub(crate) struct Eyes {
    segment: Segment,
    plane: Option<Arc<Plane>>,
}

impl Sight for Eyes {
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
    fn eyes(&self) -> Eyes {
        Eyes { segment: self.segment.clone(), plane: self.plane.clone() }
    }

    /// The answer of every rank that is `asked`, by rank; or a verdict. Who repeats its last answer is told once more
    /// what was `ordered` then. `limit` is the longest time without any movement.
    pub(crate) fn gather(
        &mut self,
        question: Question,
        limit: Duration,
        asked: impl Fn(Rank) -> bool,
        ordered: Option<&Order>,
    ) -> RunResult<Vec<(Rank, Answer)>> {
        self.judge.ask(Moment::now(), (question, limit), asked, &self.eyes());
        loop {
            match self.decide() {
                Decision::Repeat(rank) => {
                    if let Some(order) = ordered {
                        // A broken channel shows as `Gone`.
                        let _ = self.members[rank.index()].order(order);
                    }
                }
                Decision::Complete(answers) => return Ok(answers),
                Decision::End(verdict, evidence) => return Err(self.end(verdict, evidence)),
                Decision::Wait | Decision::Over => {}
            }
        }
    }

    /// Hears and sees ranks until there is something to do.
    fn decide(&mut self) -> Decision {
        let (eyes, mut heard) = (self.eyes(), None);
        loop {
            match self.judge.step(Moment::now(), heard.take(), &eyes) {
                Decision::Wait => heard = self.events.recv_timeout(GLANCE).ok(),
                decision => return decision,
            }
        }
    }

    /// How a child ended; it follows the end of its channels within moments, if it follows.
    fn end_of(&mut self, rank: Rank) -> Option<String> {
        let member = &mut self.members[rank.index()];
        let deadline = Moment::now().after(GLANCE * 5);
        while member.process().is_some() && Moment::now() < deadline {
            match member.status() {
                Some(status) => return Some(status.to_string()),
                None => std::thread::sleep(Duration::from_millis(1)),
            }
        }
        None
    }

    /// Ends all children at once; those that stay although they were killed, and that it is so.
    pub(crate) fn reap(&mut self) -> Vec<(Rank, String)> {
        self.members.iter_mut().for_each(Member::kill);
        let reap = |(rank, member): (usize, &mut Member)| Some((Rank::from_index(rank), member.reap().err()?));
        self.members.iter_mut().enumerate().filter_map(reap).collect()
    }

    /// Notes which agents have left while nobody waited.
    pub(crate) fn note_departures(&mut self) {
        let eyes = self.eyes();
        while let Ok(heard) = self.events.try_recv() {
            self.judge.hear(Moment::now(), heard, &eyes);
        }
    }

    /// What a rank's machine is called.
    pub(crate) fn machine_of(&self, rank: Rank) -> String {
        self.machines.get(rank.index()).cloned().unwrap_or_default()
    }

    /// Pronounces a verdict, hears the live ranks, and ends all processes.
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
        // Wakes those who wait for an order.
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

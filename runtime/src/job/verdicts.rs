//! How the coordinator waits, and what it decides when waiting is in vain.

use super::launcher::Job;
use super::member::{Event, Heard, Member};
use super::messages::{Answer, ToAgent};
use super::worker::{BEAT, distant_beat};
use crate::board::{Cause, Verdict};
use crate::clock::Moment;
use crate::error::{Phase, RunError, RunResult};
use std::sync::atomic::Ordering;
use std::sync::mpsc::RecvTimeoutError;
use std::time::Duration;
use topology::Rank;

/// How often a waiting launcher looks around.
const GLANCE: Duration = Duration::from_millis(20);
/// How long live ranks have to say their last word after a verdict.
pub(super) const LAST_WORDS: Duration = Duration::from_millis(500);
/// A rank that missed so many signs of life is not running.
const MISSED: u32 = 8;
/// How much longer those of other machines may take.
const DISTANCE: Duration = Duration::from_millis(400);

impl Job {
    /// One accepted answer of every rank that is `awaited`, in order; or a verdict: by what `accept` refuses, by a rank
    /// that is gone, or when nothing anywhere has moved for `limit`.
    pub(super) fn gather<T>(
        &mut self,
        phase: Phase,
        limit: Duration,
        awaited: impl Fn(Rank) -> bool,
        mut accept: impl FnMut(Rank, Answer) -> Result<T, (Cause, String)>,
    ) -> RunResult<Vec<T>> {
        let mut answers: Vec<Option<T>> = self.members.iter().map(|_| None).collect();
        let (mut moved, mut activity) = (Moment::now(), self.board.activity());
        loop {
            let waits = |index: &usize| answers[*index].is_none() && awaited(Rank::from_index(*index));
            let waiting: Vec<usize> = (0..answers.len()).filter(waits).collect();
            if waiting.is_empty() {
                return Ok(answers.into_iter().flatten().collect());
            }
            match self.events.recv_timeout(GLANCE) {
                Ok(Heard { rank, event: Event::Left(how), .. }) => {
                    self.left.push(rank);
                    return Err(self.lost(rank, phase, how));
                }
                // What belongs to an epoch that is over says nothing about this one.
                Ok(Heard { epoch, .. }) if epoch != self.epoch => {}
                Ok(Heard { rank, event: Event::Answer(Answer::Failed { phase, reason, peer }), .. }) => {
                    // Who loses a peer may be faster to say so than the kernel to say that the peer is dead. A peer
                    // that gave a reason before it ended lost a connection just as this one did.
                    if let Some(peer) = peer.filter(|&peer| self.is_dead(peer) && self.ended_silently(peer)) {
                        return Err(self.lost(peer, phase, reason));
                    }
                    return Err(self.end(Verdict { rank, cause: Cause::Failed, phase }, reason));
                }
                Ok(Heard { rank, event: Event::Answer(answer), .. }) => match accept(rank, answer) {
                    Ok(value) => answers[rank.index()] = Some(value),
                    Err((cause, evidence)) => return Err(self.end(Verdict { rank, cause, phase }, evidence)),
                },
                Ok(Heard { rank, event: Event::Gone(how), .. }) => return Err(self.lost(rank, phase, how)),
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {}
            }
            let now = Moment::now();
            self.listen_for_beats(now);
            let current = self.board.activity();
            if current != activity {
                (moved, activity) = (now, current);
            }
            if now.since(moved) > limit {
                return Err(self.overdue(&waiting, phase, limit));
            }
        }
    }

    fn listen_for_beats(&mut self, now: Moment) {
        for (index, member) in self.members.iter_mut().enumerate() {
            let beats = self.board.beats(Rank::from_index(index)).load(Ordering::Relaxed);
            if beats != member.beat.0 {
                member.beat = (beats, now);
            }
        }
    }

    /// The verdict on a rank whose channel broke; `how` is what is known of it.
    fn lost(&mut self, rank: Rank, phase: Phase, how: String) -> RunError {
        let phase = if phase == Phase::Work { self.board.phase(rank) } else { phase };
        self.members[rank.index()].gone = true;
        let evidence = self.end_of(rank).unwrap_or(how);
        self.end(Verdict { rank, cause: Cause::Died, phase }, evidence)
    }

    /// How a child ended; it follows the end of its channels within moments, if it follows.
    fn end_of(&mut self, rank: Rank) -> Option<String> {
        let member = &mut self.members[rank.index()];
        let deadline = Moment::now().after(GLANCE * 5);
        while !member.has_agent() && Moment::now() < deadline {
            match member.status() {
                Some(status) => return Some(status.to_string()),
                None => std::thread::sleep(Duration::from_millis(1)),
            }
        }
        None
    }

    fn is_dead(&mut self, rank: Rank) -> bool {
        let Some(member) = self.members.get(rank.index()) else { return false };
        if member.has_agent() {
            // Its agent says so about as fast as a child's status is known.
            self.wait_for_last_words(GLANCE * 5, |members| members[rank.index()].gone);
            return self.members[rank.index()].gone;
        }
        self.end_of(rank).is_some()
    }

    /// Whether a rank whose process has ended gave no reason.
    fn ended_silently(&mut self, rank: Rank) -> bool {
        self.wait_for_last_words(LAST_WORDS, |members| members[rank.index()].gone);
        !self.reports.iter().any(|&(from, _)| from == rank)
    }

    /// Hears what ranks say at their end until `enough`, or for `limit`.
    fn wait_for_last_words(&mut self, limit: Duration, enough: impl Fn(&[Member]) -> bool) {
        let deadline = Moment::now().after(limit);
        while !enough(&self.members) && Moment::now() < deadline {
            let Ok(Heard { epoch, rank, event }) = self.events.recv_timeout(GLANCE) else { continue };
            match event {
                Event::Left(_) => {
                    self.left.push(rank);
                    self.members[rank.index()].gone = true;
                }
                _ if epoch != self.epoch => {}
                Event::Answer(Answer::Failed { reason, .. }) => self.reports.push((rank, reason)),
                Event::Gone(_) => self.members[rank.index()].gone = true,
                Event::Answer(_) => {}
            }
        }
    }

    /// Notes which agents have left while nobody waited.
    pub(super) fn note_departures(&mut self) {
        self.wait_for_last_words(Duration::ZERO, |_| false);
        while let Ok(heard) = self.events.try_recv() {
            if let Heard { rank, event: Event::Left(_), .. } = heard {
                self.left.push(rank);
            }
        }
    }

    /// The verdict when nothing moves: on a rank that does not run, else on the one that is furthest behind.
    fn overdue(&mut self, waiting: &[usize], phase: Phase, limit: Duration) -> RunError {
        let now = Moment::now();
        let distant = distant_beat(self.members.len()) * MISSED + DISTANCE;
        let silent = |&&index: &&usize| {
            let member = &self.members[index];
            now.since(member.beat.1) > if member.has_agent() { distant } else { BEAT * MISSED }
        };
        let behind = |&&index: &&usize| self.board.progress(Rank::from_index(index)).load(Ordering::Relaxed);
        let silent = waiting.iter().find(silent);
        let (index, cause) = match (silent, waiting.iter().min_by_key(behind)) {
            (Some(&index), _) => (index, Cause::Silent),
            (None, Some(&index)) => (index, Cause::Late),
            (None, None) => (0, Cause::Late),
        };
        let rank = Rank::from_index(index);
        let phase = if phase == Phase::Work { self.board.phase(rank) } else { phase };
        self.end(Verdict { rank, cause, phase }, format!("nothing moved for {limit:?}"))
    }

    /// What a rank's machine is called.
    pub(super) fn machine_of(&self, rank: Rank) -> String {
        self.machines.get(rank.index()).cloned().unwrap_or_default()
    }

    /// Pronounces a verdict, hears the live ranks, and ends all processes.
    pub(super) fn end(&mut self, verdict: Verdict, evidence: String) -> RunError {
        let verdict = self.board.pronounce(verdict);
        self.over = Some(verdict);
        let finished = self.board.progress(verdict.rank).load(Ordering::Relaxed);
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
        self.wait_for_last_words(LAST_WORDS, |members| members.iter().all(|member| member.gone));
        self.members.iter_mut().for_each(Member::reap);
        let mut reports = std::mem::take(&mut self.reports);
        reports.sort();
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
        self.members.iter_mut().for_each(Member::reap);
        if let Some(plane) = self.plane.take() {
            plane.close(LAST_WORDS);
        }
    }
}

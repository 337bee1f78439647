//! What an agent heeds and when it gives up: its part of the protocol without sockets, threads or clocks.
//!
//! The principal type is [`Charge`].

use crate::clock::Moment;
use crate::control::judge::LAST_WORDS;
use crate::control::messages::ToAgent;
use crate::verdict::Verdict;
use std::time::Duration;

/// What an agent knows of its job.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Charge {
    /// The present epoch; zero before the first.
    epoch: u64,
    enlisted: bool,
    /// When the coordinator said something last, and how long it may be silent.
    heard: Moment,
    silence: Duration,
    /// How the epoch ended, if it has.
    sentence: Option<(Verdict, String)>,
    /// When a worker that was told the verdict is ended.
    until: Option<Moment>,
}

/// What time demands of an agent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Overdue {
    /// The coordinator was silent for so long: nobody is left who could decide.
    Coordinator(Duration),
    /// The worker had time for its last words.
    Worker,
}

impl Charge {
    pub(crate) fn new(now: Moment, silence: Duration) -> Self {
        Self { epoch: 0, enlisted: false, heard: now, silence, sentence: None, until: None }
    }

    /// The present epoch.
    pub(crate) fn epoch(&self) -> u64 {
        self.epoch
    }

    /// How the present epoch ended, if it has.
    pub(crate) fn sentence(&self) -> Option<&(Verdict, String)> {
        self.sentence.as_ref()
    }

    /// The message, if it is to be obeyed. What belongs to another epoch, comes twice, or after the verdict is not, and
    /// changes nothing.
    pub(crate) fn admit(&mut self, now: Moment, message: ToAgent) -> Option<ToAgent> {
        let is_open = |epoch: &u64| *epoch == self.epoch && self.sentence.is_none();
        match &message {
            ToAgent::Muster { epoch, muster } if *epoch > self.epoch => {
                let silence = Duration::from_millis(muster.silence_ms);
                *self = Self { epoch: *epoch, ..Self::new(now, silence) };
            }
            ToAgent::Enlist { epoch, .. } if is_open(epoch) && !self.enlisted => self.enlisted = true,
            ToAgent::Verdict { epoch, verdict, evidence } if is_open(epoch) => {
                self.sentence = Some((*verdict, evidence.clone()));
                self.until = Some(now.after(LAST_WORDS));
            }
            ToAgent::Order { epoch, .. } | ToAgent::Release { epoch, .. } if is_open(epoch) => {}
            ToAgent::Keep { .. } | ToAgent::Forget { .. } | ToAgent::Ping { .. } => {}
            ToAgent::End | ToAgent::Refused { .. } => {}
            _ => return None,
        }
        self.heard = now;
        Some(message)
    }

    /// What is overdue, when no message waits to be heard.
    pub(crate) fn overdue(&mut self, now: Moment) -> Option<Overdue> {
        if now.since(self.heard) > self.silence {
            return Some(Overdue::Coordinator(self.silence));
        }
        self.until.take_if(|until| now > *until).map(|_| Overdue::Worker)
    }
}

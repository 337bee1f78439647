//! What ran, how often, and why.

use crate::log;
use runtime::LongMessages;
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

/// Calls by the plan that served them.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Statistics {
    /// By the plan's name.
    pub plans: BTreeMap<String, PlanStatistics>,
    /// Calls that stock served, by the reason.
    pub stock: BTreeMap<String, u64>,
    /// How often a plan was prepared for a size that was not in the cache.
    pub prepared: u64,
    /// What was done to confirm the table.
    pub confirmation: ConfirmationCounts,
    /// Long messages that this rank has received, by the way they took; those of all communicators of the job.
    pub long_messages: LongMessages,
}

/// What one plan did.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct PlanStatistics {
    /// How many calls it served.
    pub calls: u64,
    /// Bytes of this rank's larger buffer, over all calls.
    pub bytes: u64,
    /// The same calls by the digest of the program that ran: one name may stand for a program for each range of sizes.
    pub digests: BTreeMap<String, u64>,
}

/// What was done to find out whether the plans of a table are still faster than stock.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct ConfirmationCounts {
    /// Calls that were timed.
    pub timed: u64,
    /// How often all ranks told each other what these calls took.
    pub compared: u64,
    /// How often stock replaced a plan of the table, or that plan stock again.
    pub switched: u64,
}

/// A digest as text.
pub(crate) fn shown_digest(digest: u32) -> String {
    format!("{digest:08x}")
}

fn add_to(all: &mut BTreeMap<String, u64>, name: &str, calls: u64) {
    *all.entry(name.to_owned()).or_default() += calls;
}

impl Statistics {
    fn add(&mut self, other: &Self) {
        for (plan, counted) in &other.plans {
            let all = self.plans.entry(plan.clone()).or_default();
            all.calls += counted.calls;
            all.bytes += counted.bytes;
            counted.digests.iter().for_each(|(digest, calls)| add_to(&mut all.digests, digest, *calls));
        }
        other.stock.iter().for_each(|(why, calls)| add_to(&mut self.stock, why, *calls));
        self.prepared += other.prepared;
        let (all, ConfirmationCounts { timed, compared, switched }) = (&mut self.confirmation, other.confirmation);
        all.timed += timed;
        all.compared += compared;
        all.switched += switched;
    }
}

/// What serves calls: its name, the digest of the program if there is one, and why stock serves if it does.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct CountedPlan {
    pub(crate) name: Arc<str>,
    pub(crate) digest: Option<u32>,
    pub(crate) why_stock: Option<Arc<str>>,
}

/// Counts calls in places that are found once for each plan.
#[derive(Default)]
pub(crate) struct CallCounters {
    places: BTreeMap<CountedPlan, usize>,
    /// Calls, and their bytes.
    counted: Vec<(u64, u64)>,
}

impl CallCounters {
    /// The place for what serves calls.
    pub(crate) fn place(&mut self, plan: CountedPlan) -> usize {
        let new = self.counted.len();
        let place = *self.places.entry(plan).or_insert(new);
        if place == new {
            self.counted.push((0, 0));
        }
        place
    }

    /// Counts calls of so many bytes each.
    pub(crate) fn add(&mut self, place: usize, calls: u64, bytes: usize) {
        let (all, all_bytes) = &mut self.counted[place];
        *all += calls;
        *all_bytes += calls * bytes as u64;
    }

    /// All calls so far.
    pub(crate) fn statistics(&self) -> Statistics {
        let mut statistics = Statistics::default();
        for (CountedPlan { name, digest, why_stock }, &place) in &self.places {
            let (calls, bytes) = self.counted[place];
            if calls == 0 {
                continue;
            }
            let of = statistics.plans.entry(name.to_string()).or_default();
            of.calls += calls;
            of.bytes += bytes;
            if let Some(digest) = digest {
                add_to(&mut of.digests, &shown_digest(*digest), calls);
            }
            if let Some(why) = why_stock {
                add_to(&mut statistics.stock, why, calls);
            }
        }
        statistics
    }
}

/// The file that the statistics of a communicator, and of all that are made of it, go to when the last one is dropped.
pub(crate) struct StatisticsFile {
    path: PathBuf,
    all: Mutex<Statistics>,
    /// A fork of this process writes nothing, and a thread that it does not have may hold the lock.
    process: u32,
}

impl StatisticsFile {
    pub(crate) fn new(path: PathBuf) -> Self {
        Self { path, all: Mutex::default(), process: std::process::id() }
    }

    fn is_in_fork(&self) -> bool {
        std::process::id() != self.process
    }

    /// What a session has counted so far.
    pub(crate) fn see(&self, long_messages: LongMessages) {
        if self.is_in_fork() {
            return;
        }
        self.all.lock().unwrap_or_else(PoisonError::into_inner).long_messages = long_messages;
    }

    pub(crate) fn add(&self, statistics: &Statistics) {
        if self.is_in_fork() {
            return;
        }
        self.all.lock().unwrap_or_else(PoisonError::into_inner).add(statistics);
    }
}

impl Drop for StatisticsFile {
    fn drop(&mut self) {
        if self.is_in_fork() {
            return;
        }
        let all = self.all.get_mut().unwrap_or_else(PoisonError::into_inner);
        let text = serde_json::to_string_pretty(all).unwrap_or_default();
        if let Err(error) = std::fs::write(&self.path, text + "\n") {
            log::say(&format!("no statistics: {}: {error}", self.path.display()));
        }
    }
}

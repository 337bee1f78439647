//! What ran, how often, and why.

use crate::log;
use runtime::LongMessages;
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

/// Calls by the plan that served them.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Statistics {
    /// By the plan's name.
    pub plans: BTreeMap<String, PlanStatistics>,
    /// How often a plan was prepared for a size that was not in the cache.
    pub prepared: u64,
    /// Long messages that this rank has received, by the way they took; those of all communicators of the job.
    pub long_messages: LongMessages,
}

/// What one plan did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct PlanStatistics {
    /// How many calls it served.
    pub calls: u64,
    /// Bytes of this rank's larger buffer, over all calls.
    pub bytes: u64,
}

impl Statistics {
    /// Adds calls of a plan, each of so many bytes.
    pub(crate) fn count(&mut self, plan: &str, calls: u64, bytes: usize) {
        let counted = self.plans.entry(plan.to_owned()).or_default();
        counted.calls += calls;
        counted.bytes += calls * bytes as u64;
    }

    fn add(&mut self, other: &Self) {
        for (plan, counted) in &other.plans {
            let all = self.plans.entry(plan.clone()).or_default();
            all.calls += counted.calls;
            all.bytes += counted.bytes;
        }
        self.prepared += other.prepared;
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

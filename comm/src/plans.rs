//! The plans of a communicator, prepared for the sizes that were called.
//!
//! The principal type is [`PlanCache`]. Its size is bounded: of more sizes than [`MOST_PREPARED`], the one that was called longest ago is
//! forgotten.

use crate::error::{CommError, CommResult};
use crate::log;
use crate::statistics::Statistics;
use crate::stock::{self, CallKind};
use crate::table::PlanTable;
use runtime::{DType, Prepared, SequencedProgram, Session};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;
use topology::Rank;

/// How many sizes stay prepared.
const MOST_PREPARED: usize = 256;

/// A kind of call at one size.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct CallKey {
    pub(crate) kind: CallKind,
    pub(crate) count: usize,
    pub(crate) dtype: DType,
}

/// A plan, ready for one size.
#[derive(Clone)]
struct ReadyPlan {
    prepared: Prepared,
    /// For statistics.
    name: Arc<str>,
}

/// The plan that was used last: calls come in loops.
struct LastPlan {
    key: CallKey,
    ready: ReadyPlan,
    /// Calls since the statistics were asked, or another plan was used.
    calls: u64,
}

/// A plan for a range of sizes.
struct ClassPlan {
    program: SequencedProgram,
    name: Arc<str>,
}

/// Sizes that have the same plan: up to 8 times the smallest. A plan takes a few milliseconds, so there are few classes.
fn size_class(bytes: u64) -> u32 {
    bytes.max(1).ilog2() / 3
}

/// The size for which a class is planned.
fn typical_size(class: u32) -> u64 {
    2 << (3 * class)
}

/// Makes a plan in a thread that ends afterwards. Planning and checking use a pool of threads, and a library must not leave one
/// in the application.
fn aside<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    match rayon::ThreadPoolBuilder::new().num_threads(1).build() {
        Ok(pool) => pool.install(work),
        // There is no thread to be had.
        Err(_) => work(),
    }
}

/// Where a plan comes from.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum PlanSource {
    /// This entry of the table.
    Table(usize),
    /// The best textbook algorithm for a [`size_class`].
    Stock(u32),
}

/// What a communicator has planned.
#[derive(Default)]
pub(crate) struct PlanCache {
    table: Arc<PlanTable>,
    /// Whether it says what it decides: one rank does, because all decide alike.
    speaks: bool,
    plans: BTreeMap<(CallKind, PlanSource), ClassPlan>,
    /// With the number of the last call that used it.
    ready: BTreeMap<CallKey, (u64, ReadyPlan)>,
    last: Option<LastPlan>,
    uses: u64,
    statistics: Statistics,
}

impl PlanCache {
    /// Plans of a table where it has them, and stock elsewhere.
    pub(crate) fn new(table: Arc<PlanTable>, speaks: bool) -> Self {
        Self { table, speaks, ..Self::default() }
    }

    /// The table, for a group of the same ranks.
    pub(crate) fn table(&self) -> Arc<PlanTable> {
        self.table.clone()
    }

    /// What serves a call, among `members` of a session. The call is counted.
    ///
    /// # Errors
    /// If there is no plan, or it cannot be prepared for this size.
    #[inline]
    pub(crate) fn ready(&mut self, session: &Session, members: &[Rank], key: CallKey) -> CommResult<&Prepared> {
        if self.last.as_ref().is_none_or(|last| last.key != key) {
            self.count_last();
            let ready = self.find(session, members, key)?;
            self.last = Some(LastPlan { key, ready, calls: 0 });
        }
        let last = self.last.as_mut().ok_or_else(|| CommError::NoPlan("the plan was lost".to_owned()))?;
        last.calls += 1;
        Ok(&last.ready.prepared)
    }

    fn find(&mut self, session: &Session, members: &[Rank], key: CallKey) -> CommResult<ReadyPlan> {
        self.uses += 1;
        match self.ready.get_mut(&key) {
            Some((used, ready)) => {
                *used = self.uses;
                Ok(ready.clone())
            }
            None => self.make(session, members, key),
        }
    }

    /// Enters the calls of the last plan into the statistics.
    fn count_last(&mut self) {
        if let Some(LastPlan { ready, calls, .. }) = &mut self.last {
            let bytes = ready.prepared.lengths().into_iter().max().unwrap_or(0);
            self.statistics.count(&ready.name, std::mem::take(calls), bytes);
        }
    }

    /// Calls so far, by plan.
    pub(crate) fn statistics(&mut self) -> Statistics {
        self.count_last();
        self.statistics.clone()
    }

    fn say(&self, what: impl FnOnce() -> String) {
        if self.speaks {
            log::info(what);
        }
    }

    /// What the last call ran, and why.
    pub(crate) fn last_plan(&self) -> String {
        let Some(LastPlan { key: CallKey { kind, count, dtype }, ready, .. }) = &self.last else {
            return "no call was made".to_owned();
        };
        let place = if kind.in_place { ", in place" } else { "" };
        let why = if self.table.is_empty() { ", stock, because there is no table" } else { "" };
        format!("{} of {count} {dtype}{place}: {}{why}", kind.collective, ready.name)
    }

    /// The plan that serves calls of a size.
    fn plan(&mut self, ranks: usize, key: CallKey) -> CommResult<&ClassPlan> {
        let bytes = key.kind.size(ranks, key.count as u64 * key.dtype.size() as u64);
        let stock = PlanSource::Stock(size_class(bytes));
        let mut source = self.table.find(ranks, key.kind, bytes).map_or(stock, PlanSource::Table);
        if let PlanSource::Table(entry) = source
            && !self.plans.contains_key(&(key.kind, source))
        {
            match aside(|| self.table.program(entry, key.kind)).and_then(|(program, name)| {
                let program = SequencedProgram::new(program).map_err(|error| error.to_string())?;
                Ok(ClassPlan { program, name })
            }) {
                Ok(plan) => drop(self.plans.insert((key.kind, source), plan)),
                Err(why) => {
                    if self.speaks {
                        let what = key.kind.collective;
                        log::warn(&format!("stock serves {what}, because the plan of the table cannot: {why}"));
                    }
                    source = stock;
                }
            }
        }
        Ok(match self.plans.entry((key.kind, source)) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(place) => {
                let (program, name) = aside(|| stock::plan(ranks, key.kind, typical_size(size_class(bytes))))?;
                place.insert(ClassPlan { program: SequencedProgram::new(program)?, name })
            }
        })
    }

    fn make(&mut self, session: &Session, members: &[Rank], key: CallKey) -> CommResult<ReadyPlan> {
        let ClassPlan { program, name } = self.plan(members.len(), key)?;
        let prepared = session.prepare(program, members, key.count as u64, key.dtype)?;
        let ready = ReadyPlan { prepared, name: name.clone() };
        self.say(|| format!("{} of {} {}: {}", key.kind.collective, key.count, key.dtype, ready.name));
        self.statistics.prepared += 1;
        if self.ready.len() >= MOST_PREPARED
            && let Some(oldest) = self.ready.iter().min_by_key(|(_, (used, _))| *used).map(|(key, _)| *key)
        {
            self.ready.remove(&oldest);
        }
        self.ready.insert(key, (self.uses, ready.clone()));
        Ok(ready)
    }
}

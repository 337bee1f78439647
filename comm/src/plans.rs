//! The plans of a communicator, prepared for the sizes that were called.
//!
//! The principal types are [`PlanStore`], the plans that related communicators share, and [`PlanCache`], what one of them has
//! prepared. A cache is bounded: of more sizes than [`MOST_PREPARED`], the one that was called longest ago is forgotten.

use crate::confirm::Confirmation;
use crate::error::{CommError, CommResult};
use crate::links::LinkCosts;
use crate::log::Says;
use crate::statistics::{Statistics, StatisticsFile};
use crate::stock::{self, CallKind};
use crate::table::PlanTable;
use runtime::{DType, Prepared, SequencedProgram, Session};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::{Arc, Mutex, PoisonError};
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
    is_of_table: bool,
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
    is_of_table: bool,
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
fn in_own_pool<T: Send>(work: impl FnOnce() -> T + Send) -> T {
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

/// The machines of the ranks, the kind of call, and where the plan comes from.
type PlanKey = (Arc<[u32]>, CallKind, PlanSource);

/// The plans of a communicator, and of all that are split from it: each is made once.
pub(crate) struct PlanStore {
    table: Arc<PlanTable>,
    says: Says,
    links: LinkCosts,
    pub(crate) file: Option<Arc<StatisticsFile>>,
    /// Every so many calls, one is timed and compared with stock; 0 for none.
    confirms_every: u32,
    /// `None` if the table's plan cannot serve the calls.
    plans: Mutex<BTreeMap<PlanKey, Option<Arc<ClassPlan>>>>,
}

impl PlanStore {
    /// Plans of a table where it has them, and stock elsewhere.
    pub(crate) fn new(table: PlanTable, says: Says, links: LinkCosts) -> Self {
        Self { table: Arc::new(table), says, links, file: None, confirms_every: 0, plans: Mutex::default() }
    }

    /// What it serves is counted in a file.
    pub(crate) fn counted_in(self, file: Option<Arc<StatisticsFile>>) -> Self {
        Self { file, ..self }
    }

    /// Every so many calls, one is timed and compared with stock; 0 for none.
    pub(crate) fn confirming(self, every: u32) -> Self {
        Self { confirms_every: every, ..self }
    }

    /// The digest of the plan that serves calls of a size.
    pub(crate) fn digest_of(&self, members: &[Rank], key: CallKey) -> CommResult<u32> {
        Ok(self.plan(members, key)?.program.digest())
    }

    /// All textbook plans of some ranks, for all sizes.
    pub(crate) fn textbook(&self, members: &[Rank], kinds: &[CallKind]) -> CommResult<PlanTable> {
        let machines = self.links.machines_of(members);
        let mut table = PlanTable::default();
        for kind in kinds {
            for schedule in in_own_pool(|| stock::all(&machines, &self.links, *kind))? {
                let name = format!("{} {}", kind.collective, schedule.schedule().produced_by.strategy);
                table.add_schedule(&name, &schedule);
            }
        }
        Ok(table)
    }

    /// The same without a table, for calls that nobody counts.
    pub(crate) fn without_table(&self) -> Self {
        Self::new(PlanTable::default(), Says::default(), self.links.clone())
    }

    /// The same with another table.
    pub(crate) fn with_table(&self, table: PlanTable) -> Self {
        Self { table: Arc::new(table), ..self.of_session(self.links.clone()) }
    }

    /// The same for another session.
    pub(crate) fn of_session(&self, links: LinkCosts) -> Self {
        let (table, says, file) = (self.table.clone(), self.says, self.file.clone());
        Self { table, says, links, file, confirms_every: self.confirms_every, plans: Mutex::default() }
    }

    /// The plan that serves calls of a size among some ranks of a session.
    fn plan(&self, members: &[Rank], key: CallKey) -> CommResult<Arc<ClassPlan>> {
        let (ranks, machines) = (members.len(), self.links.machines_of(members));
        let bytes = key.kind.size(ranks, key.count as u64 * key.dtype.size() as u64);
        // Ranks that are threads of this process wait here for the one that makes the plan.
        let mut plans = self.plans.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(entry) = self.table.find(&machines, key.kind, bytes) {
            let plan = plans.entry((machines.clone(), key.kind, PlanSource::Table(entry)));
            if let Some(plan) = plan.or_insert_with(|| self.of_table(entry, key.kind)) {
                return Ok(plan.clone());
            }
        }
        drop(plans);
        self.stock(members, key)
    }

    /// The textbook algorithm for calls of a size.
    fn stock(&self, members: &[Rank], key: CallKey) -> CommResult<Arc<ClassPlan>> {
        let (ranks, machines) = (members.len(), self.links.machines_of(members));
        let bytes = key.kind.size(ranks, key.count as u64 * key.dtype.size() as u64);
        let mut plans = self.plans.lock().unwrap_or_else(PoisonError::into_inner);
        let class = size_class(bytes);
        let plan = match plans.entry((machines.clone(), key.kind, PlanSource::Stock(class))) {
            Entry::Occupied(known) => known.get().clone(),
            Entry::Vacant(place) => {
                let plan = || stock::plan(&machines, &self.links, key.kind, typical_size(class));
                let (program, name) = if stock::needs_no_threads(&machines) { plan() } else { in_own_pool(plan) }?;
                let program = SequencedProgram::new(program)?;
                place.insert(Some(Arc::new(ClassPlan { program, name, is_of_table: false }))).clone()
            }
        };
        plan.ok_or_else(|| CommError::NoPlan(format!("no textbook algorithm for {}", key.kind.collective)))
    }

    /// The plan of an entry of the table, if it can serve a kind of call.
    fn of_table(&self, entry: usize, kind: CallKind) -> Option<Arc<ClassPlan>> {
        let made = in_own_pool(|| self.table.program(entry, kind)).and_then(|(program, name)| {
            let program = SequencedProgram::new(program).map_err(|error| error.to_string())?;
            Ok(Arc::new(ClassPlan { program, name, is_of_table: true }))
        });
        let what = kind.collective;
        made.map_err(|why| {
            self.says.warn(|| format!("stock serves {what}, because the plan of the table cannot: {why}"))
        })
        .ok()
    }
}

/// The calls that a communicator has prepared.
pub(crate) struct PlanCache {
    store: Arc<PlanStore>,
    /// With the number of the last call that used it.
    ready: BTreeMap<CallKey, (u64, ReadyPlan)>,
    last: Option<LastPlan>,
    /// What timed calls have found out about plans of the table.
    confirmations: BTreeMap<CallKey, Confirmation>,
    /// Textbook algorithms, for timed calls.
    stock: BTreeMap<CallKey, ReadyPlan>,
    /// The bytes of an exchange of blocks, if that was called last.
    exchanged: Option<usize>,
    uses: u64,
    statistics: Statistics,
}

impl Drop for PlanCache {
    fn drop(&mut self) {
        if let Some(file) = self.store.file.clone() {
            file.add(&self.statistics());
        }
    }
}

impl PlanCache {
    pub(crate) fn new(store: Arc<PlanStore>) -> Self {
        let statistics = Statistics::default();
        let (ready, stock) = (BTreeMap::new(), BTreeMap::new());
        Self { store, ready, last: None, confirmations: BTreeMap::new(), stock, exchanged: None, uses: 0, statistics }
    }

    /// The plans, for a group that is split off.
    pub(crate) fn store(&self) -> Arc<PlanStore> {
        self.store.clone()
    }

    /// Other plans from now on. What was counted stays.
    pub(crate) fn replace(&mut self, store: Arc<PlanStore>) {
        self.count_last();
        (self.last, self.exchanged, self.store) = (None, None, store);
        self.ready.clear();
        self.stock.clear();
        self.confirmations.clear();
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
        self.exchanged = None;
        Ok(&last.ready.prepared)
    }

    /// Whether the call of this number is timed.
    #[inline]
    pub(crate) fn times(&self, call: u32) -> bool {
        self.store.confirms_every > 0 && call.is_multiple_of(self.store.confirms_every)
    }

    /// What serves a call that is timed: stock, if it is stock's turn to be compared with the plan of the table.
    ///
    /// # Errors
    /// As [`Self::ready`].
    pub(crate) fn ready_timed(&mut self, session: &Session, members: &[Rank], key: CallKey) -> CommResult<&Prepared> {
        if !self.is_of_table(session, members, key)? || !self.confirmations.entry(key).or_default().is_stocks_turn() {
            return self.ready(session, members, key);
        }
        let ready = self.stock_ready(session, members, key)?;
        let bytes = ready.prepared.lengths().into_iter().max().unwrap_or(0);
        self.statistics.count(&ready.name, 1, bytes);
        Ok(&self.stock.entry(key).or_insert(ready).prepared)
    }

    /// Whether a plan of the table serves a call.
    fn is_of_table(&mut self, session: &Session, members: &[Rank], key: CallKey) -> CommResult<bool> {
        match self.last.as_ref().filter(|last| last.key == key) {
            Some(last) => Ok(last.ready.is_of_table),
            None => Ok(self.find(session, members, key)?.is_of_table),
        }
    }

    /// The textbook algorithm for a call.
    ///
    /// # Errors
    /// As [`Self::ready`].
    fn stock_ready(&mut self, session: &Session, members: &[Rank], key: CallKey) -> CommResult<ReadyPlan> {
        if let Some(known) = self.stock.get(&key) {
            return Ok(known.clone());
        }
        let plan = self.store.stock(members, key)?;
        let prepared = session.prepare(&plan.program, members, key.count as u64, key.dtype)?;
        let ready = ReadyPlan { prepared, name: plan.name.clone(), is_of_table: false };
        if self.stock.len() >= MOST_PREPARED {
            self.stock.clear();
        }
        self.stock.insert(key, ready.clone());
        Ok(ready)
    }

    /// What serves a call of the library itself, which is not counted.
    ///
    /// # Errors
    /// As [`Self::ready`].
    pub(crate) fn own(&mut self, session: &Session, members: &[Rank], key: CallKey) -> CommResult<Prepared> {
        Ok(self.stock_ready(session, members, key)?.prepared)
    }

    /// Whether the time of a call is asked for: it decides about a plan of the table.
    pub(crate) fn is_watched(&self, key: CallKey) -> bool {
        self.confirmations.get(&key).is_some_and(|found| !found.is_lost())
    }

    /// Adds the time of a call, which is the same number on all ranks. Stock serves such calls from now on if it is faster.
    pub(crate) fn confirm(&mut self, key: CallKey, time_us: f64) {
        let Some(factor) = self.confirmations.get_mut(&key).and_then(|found| found.add(time_us)) else { return };
        let what = key.kind.collective;
        let CallKey { count, dtype, .. } = key;
        self.store.says.warn(|| {
            format!("stock serves {what} of {count} {dtype} from now on: it is {factor:.2} times faster than the table's plan")
        });
        self.count_last();
        self.last = None;
        if let Some(stock) = self.stock.get(&key) {
            self.ready.insert(key, (self.uses, stock.clone()));
        }
    }

    /// Counts an exchange of blocks of any lengths, which no plan serves.
    pub(crate) fn exchange(&mut self, bytes: usize) {
        self.exchanged = Some(bytes);
        self.statistics.count("alltoallv direct", 1, bytes);
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

    /// What the last call ran, and why.
    pub(crate) fn last_plan(&self) -> String {
        if let Some(bytes) = self.exchanged {
            return format!("alltoallv of {bytes} bytes: direct, because blocks of different lengths have no plan");
        }
        let Some(LastPlan { key: CallKey { kind, count, dtype }, ready, .. }) = &self.last else {
            return "no call was made".to_owned();
        };
        let place = if kind.in_place { ", in place" } else { "" };
        let why = if self.store.table.is_empty() { ", stock, because there is no table" } else { "" };
        format!("{} of {count} {dtype}{place}: {}{why}", kind.collective, ready.name)
    }

    fn make(&mut self, session: &Session, members: &[Rank], key: CallKey) -> CommResult<ReadyPlan> {
        let is_lost = self.confirmations.get(&key).is_some_and(Confirmation::is_lost);
        let plan = if is_lost { self.store.stock(members, key)? } else { self.store.plan(members, key)? };
        let prepared = session.prepare(&plan.program, members, key.count as u64, key.dtype)?;
        let ready = ReadyPlan { prepared, name: plan.name.clone(), is_of_table: plan.is_of_table };
        self.store.says.info(|| format!("{} of {} {}: {}", key.kind.collective, key.count, key.dtype, ready.name));
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

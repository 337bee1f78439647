//! The plans of a communicator, prepared for the sizes that were called.
//!
//! The principal type is [`PlanCache`]. It is bounded: of more sizes than [`MOST_PREPARED`], the one that was called
//! longest ago is forgotten.

use crate::confirm::Confirmation;
use crate::error::CommResult;
use crate::plan_store::{CallKey, PlanStore};
use crate::recent::RecentMap;
use crate::statistics::Statistics;
use runtime::{Prepared, Session};
use std::collections::BTreeMap;
use std::sync::Arc;
use topology::Rank;

/// How many sizes stay prepared.
const MOST_PREPARED: usize = 256;

/// A plan, ready for one size.
#[derive(Clone, Default)]
struct ReadyPlan {
    prepared: Prepared,
    /// For statistics.
    name: Arc<str>,
    is_of_table: bool,
}

/// The plan that was used last: calls come in loops.
#[derive(Default)]
struct LastPlan {
    /// None if there is no such plan.
    key: Option<CallKey>,
    ready: ReadyPlan,
    /// Calls since the statistics were asked, or another plan was used.
    calls: u64,
}

/// A call that no plan has served.
enum WithoutPlan {
    /// An exchange of blocks of any lengths, of so many bytes.
    Exchange(usize),
    /// A function has served it.
    Function(CallKey, Arc<str>),
}

/// The calls that a communicator has prepared.
pub(crate) struct PlanCache {
    store: Arc<PlanStore>,
    ready: RecentMap<CallKey, ReadyPlan>,
    last: LastPlan,
    /// What timed calls have found out about plans of the table. Only calls that have succeeded, which all ranks have
    /// made in the same order, use it: so all ranks forget the same.
    confirmations: RecentMap<CallKey, Confirmation>,
    /// Textbook algorithms, for timed calls.
    stock: BTreeMap<CallKey, ReadyPlan>,
    /// What was called last, if no plan has served it.
    without_plan: Option<WithoutPlan>,
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
        Self {
            store,
            ready: RecentMap::new(MOST_PREPARED),
            last: LastPlan::default(),
            confirmations: RecentMap::new(MOST_PREPARED),
            stock: BTreeMap::new(),
            without_plan: None,
            statistics: Statistics::default(),
        }
    }

    /// The plans, for a group that is split off.
    pub(crate) fn store(&self) -> Arc<PlanStore> {
        self.store.clone()
    }

    /// Other plans from now on. What was counted stays.
    pub(crate) fn replace(&mut self, store: Arc<PlanStore>) {
        self.count_last();
        (self.last, self.without_plan, self.store) = (LastPlan::default(), None, store);
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
        if self.last.key != Some(key) {
            self.count_last();
            let ready = self.find(session, members, key)?;
            self.last = LastPlan { key: Some(key), ready, calls: 0 };
        }
        self.last.calls += 1;
        if self.without_plan.is_some() {
            self.without_plan = None;
        }
        Ok(&self.last.ready.prepared)
    }

    /// What [`Self::ready`] has found last.
    #[inline]
    pub(crate) fn last_ready(&self) -> &Prepared {
        debug_assert!(self.last.key.is_some(), "a plan was found");
        &self.last.ready.prepared
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
        let is_stocks_turn = self.confirmations.peek(&key).is_some_and(Confirmation::is_stocks_turn);
        if !is_stocks_turn || !self.is_of_table(session, members, key)? {
            return self.ready(session, members, key);
        }
        let ready = self.stock_ready(session, members, key)?;
        let bytes = ready.prepared.lengths().into_iter().max().unwrap_or(0);
        self.statistics.count(&ready.name, 1, bytes);
        Ok(&self.stock.entry(key).or_insert(ready).prepared)
    }

    /// Whether a plan of the table serves a call.
    fn is_of_table(&mut self, session: &Session, members: &[Rank], key: CallKey) -> CommResult<bool> {
        match self.last.key == Some(key) {
            true => Ok(self.last.ready.is_of_table),
            false => Ok(self.find(session, members, key)?.is_of_table),
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

    /// Whether the time of a timed call that has succeeded is asked for: it decides about a plan of the table.
    pub(crate) fn is_watched(&mut self, key: CallKey) -> bool {
        match self.confirmations.get(&key) {
            Some(found) => !found.is_lost(),
            // The first of its kind, which a plan of the table has served if there is one.
            None => self.last.key == Some(key) && self.last.ready.is_of_table,
        }
    }

    /// Adds the time of a call, which is the same number on all ranks. Stock serves such calls from now on if it is faster.
    pub(crate) fn confirm(&mut self, key: CallKey, time_us: f64) {
        let factor = match self.confirmations.get(&key) {
            Some(found) => found.add(time_us),
            None => {
                let mut found = Confirmation::default();
                let factor = found.add(time_us);
                if let Some(forgotten) = self.confirmations.insert(key, found) {
                    self.replan(forgotten);
                }
                factor
            }
        };
        let Some(factor) = factor else { return };
        let what = key.kind.collective;
        let CallKey { count, dtype, .. } = key;
        self.store.says.warn(|| {
            format!("stock serves {what} of {count} {dtype} from now on: it is {factor:.2} times faster than the table's plan")
        });
        self.replan(key);
    }

    /// What serves a call is found anew: something else was found out, or forgotten.
    fn replan(&mut self, key: CallKey) {
        if self.last.key == Some(key) {
            self.count_last();
            self.last = LastPlan::default();
        }
        self.ready.remove(&key);
    }

    /// Counts an exchange of blocks of any lengths, which no plan serves.
    pub(crate) fn exchange(&mut self, bytes: usize) {
        self.without_plan = Some(WithoutPlan::Exchange(bytes));
        self.statistics.count("alltoallv direct", 1, bytes);
    }

    /// Counts a call that a function has served.
    pub(crate) fn served(&mut self, name: &Arc<str>, key: CallKey, ranks: usize) {
        let is_same = |of: &WithoutPlan| matches!(of, WithoutPlan::Function(last, by) if *last == key && by == name);
        if !self.without_plan.as_ref().is_some_and(is_same) {
            let CallKey { kind, count, dtype } = key;
            self.store.says.info(|| format!("{} of {count} {dtype}: function {name}", kind.collective));
            self.without_plan = Some(WithoutPlan::Function(key, name.clone()));
        }
        let bytes = key.kind.size(ranks, (key.count * key.dtype.size()) as u64);
        self.statistics.count(&format!("{} function {name}", key.kind.collective), 1, bytes as usize);
    }

    fn find(&mut self, session: &Session, members: &[Rank], key: CallKey) -> CommResult<ReadyPlan> {
        match self.ready.get(&key) {
            Some(ready) => Ok(ready.clone()),
            None => self.make(session, members, key),
        }
    }

    /// Enters the calls of the last plan into the statistics.
    fn count_last(&mut self) {
        let LastPlan { ready, calls, .. } = &mut self.last;
        if *calls > 0 {
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
        match &self.without_plan {
            None => {}
            Some(WithoutPlan::Exchange(bytes)) => {
                return format!("alltoallv of {bytes} bytes: direct, because blocks of different lengths have no plan");
            }
            Some(WithoutPlan::Function(CallKey { kind, count, dtype }, name)) => {
                let what = kind.collective;
                return format!("{what} of {count} {dtype}: function {name}, because the table names it");
            }
        }
        let LastPlan { key: Some(CallKey { kind, count, dtype }), ready, .. } = &self.last else {
            return "no call was made".to_owned();
        };
        let place = if kind.in_place { ", in place" } else { "" };
        let why = if self.store.table().is_empty() { ", stock, because there is no table" } else { "" };
        format!("{} of {count} {dtype}{place}: {}{why}", kind.collective, ready.name)
    }

    fn make(&mut self, session: &Session, members: &[Rank], key: CallKey) -> CommResult<ReadyPlan> {
        let is_lost = self.confirmations.peek(&key).is_some_and(Confirmation::is_lost);
        let plan = if is_lost { self.store.stock(members, key)? } else { self.store.plan(members, key)? };
        let prepared = session.prepare(&plan.program, members, key.count as u64, key.dtype)?;
        let ready = ReadyPlan { prepared, name: plan.name.clone(), is_of_table: plan.is_of_table };
        self.store.says.info(|| format!("{} of {} {}: {}", key.kind.collective, key.count, key.dtype, ready.name));
        self.statistics.prepared += 1;
        self.ready.insert(key, ready.clone());
        Ok(ready)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::links::LinkCosts;
    use crate::log::Says;
    use crate::stock::CallKind;
    use crate::table::PlanTable;
    use runtime::DType;
    use schedule::{Collective, ReduceOp};

    const KIND: CallKind =
        CallKind { op: Some(ReduceOp::Sum), in_place: true, ..CallKind::plain(Collective::AllReduce) };

    fn key(count: usize) -> CallKey {
        CallKey { kind: KIND, count, dtype: DType::I64 }
    }

    /// The plans of a rank, all of a table; the others are not needed to prepare them.
    struct RankPlans {
        session: Session,
        cache: PlanCache,
    }

    impl RankPlans {
        fn new() -> Self {
            let session = Session::local(2).unwrap().remove(0);
            let stock = PlanStore::new(PlanTable::default(), Says::default(), LinkCosts::assumed(&session));
            let table = stock.textbook(&[Rank(0), Rank(1)], &[KIND]).unwrap();
            Self { session, cache: PlanCache::new(Arc::new(stock.with_table(table))) }
        }

        /// Another rank has refused the call, or this one.
        fn prepare(&mut self, count: usize) {
            self.cache.ready_timed(&self.session, &[Rank(0), Rank(1)], key(count)).unwrap();
        }

        /// A timed call that has succeeded.
        fn call(&mut self, count: usize, time_us: f64) {
            self.prepare(count);
            if self.cache.is_watched(key(count)) {
                self.cache.confirm(key(count), time_us);
            }
        }

        fn is_of_table(&mut self, count: usize) -> bool {
            self.cache.is_of_table(&self.session, &[Rank(0), Rank(1)], key(count)).unwrap()
        }

        /// Timed calls until stock serves a size.
        fn lose(&mut self, count: usize) {
            for call in 0..100 {
                self.call(count, if call % 2 == 0 { 20.0 } else { 10.0 } + f64::from(call % 7) * 0.01);
            }
            assert!(!self.is_of_table(count));
        }
    }

    /// Ranks must not disagree about what serves a size, whatever calls one of them has refused.
    #[test]
    fn all_ranks_forget_the_same_sizes_that_were_compared() {
        let mut ranks = [RankPlans::new(), RankPlans::new()];
        for rank in &mut ranks {
            rank.lose(1);
            rank.lose(2);
        }
        for count in 3..MOST_PREPARED + 10 {
            // The one rank alone has refused many calls.
            (0..3).for_each(|refused| ranks[0].prepare(10_000 + 3 * count + refused));
            for rank in &mut ranks {
                rank.call(count, 1.0);
                // It stays in use.
                rank.call(2, 1.0);
            }
            let [one, other] = &mut ranks;
            for size in [1, 2] {
                assert_eq!(one.is_of_table(size), other.is_of_table(size), "size {size} after {count}");
            }
        }
        for rank in &mut ranks {
            assert_eq!(rank.cache.confirmations.len(), MOST_PREPARED);
            assert!(rank.is_of_table(1) && !rank.is_of_table(2), "the other one was compared longest ago");
        }
    }
}

//! The plans of a communicator, prepared for the sizes that were called.
//!
//! The principal type is [`PlanCache`]. It is bounded: when all that is prepared takes more than [`MOST_BYTES`], some is forgotten
//! and made again when it is called.

use crate::bounded::BoundedMap;
use crate::confirm::{ComparedTurn, Confirmation, PlanSide, PlanSwitch};
use crate::confirmed::{ConfirmedCalls, TimedCall};
use crate::error::CommResult;
use crate::plan_store::{CallKey, PlanReason, PlanStore, bytes_of};
use crate::statistics::{CallCounters, CountedPlan, Statistics, shown_digest};
use runtime::{Prepared, Session};
use std::sync::Arc;
use topology::Rank;

/// How many bytes all prepared calls of a communicator take.
const MOST_BYTES: usize = 16 << 20;

/// A plan, ready for one size. Who looks it up shares it: a copy would touch the counts of all that it holds.
#[derive(Clone, Default)]
struct ReadyPlan {
    prepared: Prepared,
    name: Arc<str>,
    digest: u32,
    /// Why it is stock, if it is.
    why_stock: Option<Arc<str>>,
    /// Where its calls are counted.
    counter: usize,
    /// Which of the confirmations decides between it and stock, if one does.
    confirmed: Option<usize>,
}

/// The plan that was used last: calls come in loops.
#[derive(Default)]
struct LastPlan {
    /// None if there is no such plan.
    key: Option<CallKey>,
    ready: Arc<ReadyPlan>,
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

/// What a call has to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ReadyTurn {
    /// It can be made. Its time may be asked for.
    Call(Option<TimedCall>),
    /// Before it, all ranks tell each other the times that this confirmation has.
    Tell(usize),
}

/// The calls that a communicator has prepared.
pub(crate) struct PlanCache {
    store: Arc<PlanStore>,
    ready: BoundedMap<(CallKey, PlanSide), Arc<ReadyPlan>>,
    last: LastPlan,
    confirmed: ConfirmedCalls,
    /// What was called last, if no plan has served it.
    without_plan: Option<WithoutPlan>,
    counters: CallCounters,
    prepared: u64,
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
            ready: BoundedMap::new(MOST_BYTES),
            last: LastPlan::default(),
            confirmed: ConfirmedCalls::default(),
            without_plan: None,
            counters: CallCounters::default(),
            prepared: 0,
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
        self.confirmed.forget();
    }

    /// What serves a call, among `members` of a session; [`Self::last_ready`] has it. The call is counted, unless ranks have to tell
    /// each other something before it. Only a rank that `waits` for the call can do that.
    ///
    /// # Errors
    /// If there is no plan, or it cannot be prepared for this size.
    #[inline]
    pub(crate) fn ready(
        &mut self,
        session: &Session,
        members: &[Rank],
        key: CallKey,
        waits: bool,
    ) -> CommResult<ReadyTurn> {
        if self.last.key != Some(key) {
            let ready = self.find(session, members, key)?;
            self.change_to(key, ready);
        }
        let mut timed = None;
        if let Some(number) = self.last.ready.confirmed
            && let Some(confirmation) = self.confirmed.get(number)
            && !confirmation.passes()
        {
            if waits && confirmation.is_due_before() {
                return Ok(ReadyTurn::Tell(number));
            }
            timed = self.compared(session, members, key, number, waits)?;
        }
        self.last.calls += 1;
        if self.without_plan.is_some() {
            self.without_plan = None;
        }
        Ok(ReadyTurn::Call(timed))
    }

    /// What [`Self::ready`] has found last.
    #[inline]
    pub(crate) fn last_ready(&self) -> &Prepared {
        debug_assert!(self.last.key.is_some(), "a plan was found");
        &self.last.ready.prepared
    }

    /// The last call was not made after all.
    pub(crate) fn uncount(&mut self) {
        if self.without_plan.is_some() {
            return;
        }
        self.last.calls = self.last.calls.saturating_sub(1);
        if let Some(confirmation) = self.last.ready.confirmed.and_then(|number| self.confirmed.get(number)) {
            confirmation.uncount();
        }
    }

    /// Counts a call with which a confirmation has to do something.
    ///
    /// # Errors
    /// As [`Self::ready`].
    #[cold]
    fn compared(
        &mut self,
        session: &Session,
        members: &[Rank],
        key: CallKey,
        number: usize,
        waits: bool,
    ) -> CommResult<Option<TimedCall>> {
        let Some(confirmation) = self.confirmed.get(number) else { return Ok(None) };
        let (ComparedTurn { side, sample }, switch) = confirmation.next_turn(waits);
        let is_serving = confirmation.serving() == side;
        let ready = match side {
            PlanSide::Table => self.of_table(session, members, key),
            PlanSide::Stock => self.stock(session, members, key, (number, if is_serving { FASTER } else { IN_TURN })),
        };
        match ready {
            Ok(ready) => self.change_to(key, ready),
            Err(error) => {
                self.confirmed.get(number).into_iter().for_each(Confirmation::uncount);
                return Err(error);
            }
        }
        if let Some(switch) = switch {
            self.say_switch(members, key, switch);
        }
        self.confirmed.counts.timed += u64::from(sample.is_some());
        Ok(sample.map(|sample| TimedCall { confirmation: number, sample }))
    }

    fn say_switch(&mut self, members: &[Rank], key: CallKey, PlanSwitch { to, gain }: PlanSwitch) {
        self.confirmed.counts.switched += 1;
        let (what, from) = (key.kind.collective, 1_u64 << class_of(members, key));
        let sizes = format!("{from} to {} bytes", from.saturating_mul(2).saturating_sub(1));
        self.store.says.warn(|| match to {
            PlanSide::Stock => {
                format!(
                    "stock serves {what} of {sizes} from now on: it is {gain:.2} times faster than the table's plan"
                )
            }
            PlanSide::Table => {
                format!("the table's plan serves {what} of {sizes} again: it is {gain:.2} times faster than stock")
            }
        });
    }

    /// What is known to confirm the table.
    pub(crate) fn confirmed(&mut self) -> &mut ConfirmedCalls {
        &mut self.confirmed
    }

    /// What serves a call of the library itself, which is not counted.
    ///
    /// # Errors
    /// As [`Self::ready`].
    pub(crate) fn own(&self, session: &Session, members: &[Rank], key: CallKey) -> CommResult<Prepared> {
        let plan = self.store.stock(members, key)?;
        Ok(session.prepare(&plan.program, members, key.count as u64, key.dtype)?)
    }

    /// Counts an exchange of blocks of any lengths, which no plan serves.
    pub(crate) fn exchange(&mut self, bytes: usize) {
        self.without_plan = Some(WithoutPlan::Exchange(bytes));
        self.count_without("alltoallv direct", bytes);
    }

    /// Counts a call that a function has served.
    pub(crate) fn served(&mut self, name: &Arc<str>, key: CallKey, ranks: usize) {
        let is_same = |of: &WithoutPlan| matches!(of, WithoutPlan::Function(last, by) if *last == key && by == name);
        if !self.without_plan.as_ref().is_some_and(is_same) {
            self.without_plan = Some(WithoutPlan::Function(key, name.clone()));
            self.store.says.info(|| self.last_plan());
        }
        let bytes = key.kind.size(ranks, (key.count * key.dtype.size()) as u64);
        self.count_without(&format!("{} function {name}", key.kind.collective), bytes as usize);
    }

    fn count_without(&mut self, name: &str, bytes: usize) {
        let place = self.counters.place(CountedPlan { name: name.into(), digest: None, why_stock: None });
        self.counters.add(place, 1, bytes);
    }

    /// What serves a call between the timed ones.
    fn find(&mut self, session: &Session, members: &[Rank], key: CallKey) -> CommResult<Arc<ReadyPlan>> {
        let ready = self.of_table(session, members, key)?;
        let Some(number) = ready.confirmed else { return Ok(ready) };
        match self.confirmed.get(number).map(|confirmation| confirmation.serving()) {
            Some(PlanSide::Stock) => self.stock(session, members, key, (number, FASTER)),
            _ => Ok(ready),
        }
    }

    /// The table's plan, or stock where there is none.
    fn of_table(&mut self, session: &Session, members: &[Rank], key: CallKey) -> CommResult<Arc<ReadyPlan>> {
        if let Some(ready) = self.ready.get(&(key, PlanSide::Table)) {
            return Ok(ready.clone());
        }
        let found = self.store.plan(members, key)?;
        let prepared = session.prepare(&found.plan.program, members, key.count as u64, key.dtype)?;
        let (why_stock, confirmed) = match found.reason {
            PlanReason::Stock(why) => (Some(why), None),
            PlanReason::Table(entry) => {
                let (class, every) = ((key.kind, entry, class_of(members, key)), self.store.confirms_every);
                (None, (every > 0).then(|| self.confirmed.number_of(class, every)))
            }
        };
        let (name, digest) = (found.plan.name.clone(), found.plan.program.digest());
        let ready = ReadyPlan { prepared, name, digest, why_stock, confirmed, counter: 0 };
        self.prepared += 1;
        Ok(self.keep(key, PlanSide::Table, ready))
    }

    /// Stock in place of the table's plan, and why.
    fn stock(
        &mut self,
        session: &Session,
        members: &[Rank],
        key: CallKey,
        (confirmation, why): (usize, &str),
    ) -> CommResult<Arc<ReadyPlan>> {
        if let Some(ready) = self.ready.get(&(key, PlanSide::Stock)).cloned() {
            return Ok(match ready.why_stock.as_deref() == Some(why) {
                true => ready,
                false => {
                    let ready = ReadyPlan { why_stock: Some(why.into()), ..ReadyPlan::clone(&ready) };
                    self.keep(key, PlanSide::Stock, ready)
                }
            });
        }
        let plan = self.store.stock(members, key)?;
        let prepared = session.prepare(&plan.program, members, key.count as u64, key.dtype)?;
        let (name, digest, why_stock) = (plan.name.clone(), plan.program.digest(), Some(why.into()));
        let ready = ReadyPlan { prepared, name, digest, why_stock, confirmed: Some(confirmation), counter: 0 };
        self.prepared += 1;
        Ok(self.keep(key, PlanSide::Stock, ready))
    }

    /// Keeps what was prepared, and finds the place where its calls are counted.
    fn keep(&mut self, key: CallKey, side: PlanSide, mut ready: ReadyPlan) -> Arc<ReadyPlan> {
        let counted =
            CountedPlan { name: ready.name.clone(), digest: Some(ready.digest), why_stock: ready.why_stock.clone() };
        ready.counter = self.counters.place(counted);
        self.store.says.info(|| shown(key, &ready));
        let weight = size_of::<(CallKey, ReadyPlan)>() + ready.prepared.bytes();
        let ready = Arc::new(ready);
        self.ready.insert((key, side), ready.clone(), weight);
        ready
    }

    fn change_to(&mut self, key: CallKey, ready: Arc<ReadyPlan>) {
        self.count_last();
        self.last = LastPlan { key: Some(key), ready, calls: 0 };
    }

    /// Enters the calls of the last plan into the statistics.
    fn count_last(&mut self) {
        let LastPlan { ready, calls, .. } = &mut self.last;
        if *calls > 0 {
            let bytes = ready.prepared.lengths().into_iter().max().unwrap_or(0);
            self.counters.add(ready.counter, std::mem::take(calls), bytes);
        }
    }

    /// Calls so far, by plan.
    pub(crate) fn statistics(&mut self) -> Statistics {
        self.count_last();
        Statistics { prepared: self.prepared, confirmation: self.confirmed.counts, ..self.counters.statistics() }
    }

    /// What the last call ran, and why.
    pub(crate) fn last_plan(&self) -> String {
        match (&self.without_plan, self.last.key) {
            (Some(WithoutPlan::Exchange(bytes)), _) => {
                format!("alltoallv of {bytes} bytes: direct, because blocks of different lengths have no plan")
            }
            (Some(WithoutPlan::Function(CallKey { kind, count, dtype }, name)), _) => {
                format!("{} of {count} {dtype}: function {name}, because the table names it", kind.collective)
            }
            (None, Some(key)) => shown(key, &self.last.ready),
            (None, None) => "no call was made".to_owned(),
        }
    }
}

/// Why stock serves a call that the table has a plan for.
const IN_TURN: &str = "this call is timed, and its turn has come beside the table's plan";
const FASTER: &str = "it was faster than the table's plan in this program";

fn class_of(members: &[Rank], key: CallKey) -> u32 {
    bytes_of(members, key).max(1).ilog2()
}

/// What serves a call, and why, on one line.
fn shown(CallKey { kind, count, dtype }: CallKey, ready: &ReadyPlan) -> String {
    let place = if kind.in_place { ", in place" } else { "" };
    let why = match &ready.why_stock {
        Some(why) => format!("stock, because {why}"),
        None => "because the table has it for this size".to_owned(),
    };
    let (what, digest) = (kind.collective, shown_digest(ready.digest));
    format!("{what} of {count} {dtype}{place}: {}, {why}; digest {digest}", ready.name)
}

#[cfg(test)]
mod tests;

//! Functions that serve calls, because a table says that they are faster than every plan.
//!
//! The principal type is [`ServingFunctions`]. A file cannot hold a function, so it holds the name. A program gives its functions
//! to the library under these names; all ranks agree on which of them all have, and the others serve nothing. Functions serve
//! blocking calls of the kind that was measured: its type of elements, its reduction, its root, and in place or not. Everything
//! else is served by the plans of the table, or stock.

use crate::call_state::ServesCalls;
use crate::communicator::Communicator;
use crate::error::CommResult;
use crate::operation::CollectiveCall;
use crate::plan_store::{CallKey, PlanStore};
use crate::stock::{CallKind, measured_kind};
use crate::table::TableFunction;
use runtime::Call;
use schedule::{Collective, ReduceOp};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;
use topology::Rank;
use tune::Composition;

/// A user's own way to do a collective. It is called on all ranks at the same time, with the communicator to use.
pub type CandidateFunction = dyn Fn(&Communicator, &CollectiveCall, Call<'_>) -> Result<(), String> + Send + Sync;

/// A function of the program's: its name, and the collectives that it is for.
pub(crate) type GivenFunction = (String, Vec<Collective>, Arc<CandidateFunction>);

/// Functions that serve calls of a communicator.
struct ServingFunctions {
    /// What the functions use; it knows no table.
    lane: Communicator,
    /// What those use whose halves the table chooses.
    tuned: Communicator,
    serving: Vec<ServingFunction>,
}

struct ServingFunction {
    named: TableFunction,
    function: Arc<CandidateFunction>,
    /// If it is the library's own.
    composition: Option<Composition>,
}

/// Does a collective as two others. The halves are not in place, because tables measure them so.
pub(crate) fn composed(
    lane: &Communicator,
    of: Composition,
    call: &CollectiveCall,
    memory: Call<'_>,
) -> CommResult<()> {
    let CollectiveCall { count, dtype, op, .. } = *call;
    let root = Rank::from_index(call.root.unwrap_or(0));
    let (ranks, is_root) = (lane.size(), lane.rank() == root.index());
    let kind = |half: Collective| CallKind {
        root: half.is_rooted().then_some(root),
        op: op.filter(|_| half.combines()),
        ..CallKind::plain(half)
    };
    let half = |half, count, input: &[u8], output: &mut [u8]| {
        lane.collective(kind(half), count, dtype, Call::OutOfPlace { input, output })
    };
    let ([first, second], block) = (of.halves, count / ranks);
    match memory {
        // AllReduce, and Broadcast, where only the root has something to hand out.
        Call::InPlace(vector) => {
            let mut part = vec![0; block * dtype.size()];
            let has_input = of.whole.combines() || is_root;
            half(first, block, if has_input { vector } else { &[] }, &mut part)?;
            half(second, block, &part, vector)
        }
        Call::OutOfPlace { input, output } if of.whole == Collective::Reduce => {
            let mut part = vec![0; block * dtype.size()];
            half(first, block, input, &mut part)?;
            half(second, block, &part, output)
        }
        Call::OutOfPlace { input, output } if of.whole == Collective::AllGather => {
            half(first, count, input, if is_root { output } else { &mut [] })?;
            let in_place = CallKind { in_place: true, ..kind(second) };
            lane.collective(in_place, count * ranks, dtype, Call::InPlace(output))
        }
        // ReduceScatter.
        Call::OutOfPlace { input, output } => {
            let mut whole = vec![0; if is_root { input.len() } else { 0 }];
            half(first, count * ranks, input, &mut whole)?;
            half(second, count, &whole, output)
        }
    }
}

/// The library's own function of a name.
fn own(name: &str) -> Option<(Composition, Arc<CandidateFunction>)> {
    let of = Composition::of_name(name)?;
    let function = move |lane: &Communicator, call: &CollectiveCall, memory: Call<'_>| {
        composed(lane, of, call, memory).map_err(|error| error.to_string())
    };
    Some((of, Arc::new(function)))
}

impl ServingFunction {
    /// Whether it serves a call of so many bytes, as the collective counts them.
    fn serves(&self, ranks: usize, key: CallKey, bytes: u64) -> bool {
        let TableFunction { collective, from_bytes, to_bytes, dtype, op, .. } = self.named;
        let is_kind = key.kind == measured_kind(collective, op.unwrap_or(ReduceOp::Sum)) && key.dtype == dtype;
        let is_possible = self.composition.is_none_or(|of| of.serves(ranks, collective, key.count));
        is_kind && is_possible && bytes >= from_bytes && bytes < to_bytes
    }
}

impl ServingFunctions {
    /// Those of a table that the library has itself, or that are given; the name of each.
    ///
    /// # Errors
    /// If the communicator is broken.
    fn new(
        comm: &Communicator,
        store: &PlanStore,
        given: impl Fn(&TableFunction) -> Option<Arc<CandidateFunction>>,
    ) -> CommResult<Self> {
        let of = |named: &TableFunction| {
            let (composition, function) = match own(&named.name) {
                Some((of, function)) => (Some(of), function),
                None => (None, given(named)?),
            };
            Some(ServingFunction { named: named.clone(), function, composition })
        };
        let serving = store.table().functions(store.places(&comm.machines())).filter_map(of).collect();
        Ok(Self { lane: comm.without_table()?, tuned: comm.uncounted(None)?, serving })
    }

    /// `None` if there are none.
    fn boxed(self) -> Option<Arc<dyn ServesCalls>> {
        (!self.serving.is_empty()).then(|| Arc::new(self) as _)
    }

    /// Their names, each once.
    fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = self.serving.iter().map(|of| of.named.name.to_string()).collect();
        names.sort();
        names.dedup();
        names
    }
}

impl ServesCalls for ServingFunctions {
    fn find(&self, key: CallKey) -> Option<usize> {
        let ranks = self.lane.size();
        let bytes = key.kind.size(ranks, key.count as u64 * key.dtype.size() as u64);
        self.serving.iter().position(|of| of.serves(ranks, key, bytes))
    }

    fn name(&self, number: usize) -> &Arc<str> {
        &self.serving[number].named.name
    }

    fn call(&self, number: usize, key: CallKey, limit: Duration, memory: Call<'_>) -> Result<(), String> {
        let ServingFunction { function, composition, .. } = &self.serving[number];
        let lane = if composition.is_some_and(|of| of.is_chosen) { &self.tuned } else { &self.lane };
        lane.set_time_limit(limit);
        let CallKey { kind, count, dtype } = key;
        let (collective, root) = (kind.collective, kind.root.map(Rank::index));
        let call = CollectiveCall { collective, root, op: kind.op, count, dtype, in_place: kind.in_place };
        let ended = catch_unwind(AssertUnwindSafe(|| function(lane, &call, memory)));
        let ended = ended.unwrap_or_else(|_| Err("it panicked".to_owned()));
        if ended.is_err() {
            lane.abort();
        }
        ended
    }
}

impl Communicator {
    /// The machine of each member.
    pub(crate) fn machines(&self) -> Vec<u32> {
        (0..self.size()).map(|number| self.machine(number)).collect()
    }

    /// Those of the given functions that the table names and all ranks have serve from now on, and the library's own. All ranks
    /// make this call. Returns the names of those that serve.
    ///
    /// # Errors
    /// As any call.
    pub(crate) fn use_functions(&self, given: &[GivenFunction]) -> CommResult<Vec<String>> {
        let store = self.state().plans.store();
        let (table, machines) = (store.table(), self.machines());
        let own_of = |named: &TableFunction| {
            let is_it = |(name, collectives, _): &&GivenFunction| {
                **name == *named.name && collectives.contains(&named.collective)
            };
            given.iter().find(is_it).map(|(_, _, function)| function.clone())
        };
        let named: Vec<&TableFunction> =
            table.functions(store.places(&machines)).filter(|of| own(&of.name).is_none()).collect();
        let has: Vec<i64> = named.iter().map(|named| i64::from(own_of(named).is_some())).collect();
        let mut all = vec![0; has.len() * self.size()];
        if !has.is_empty() {
            self.all_gather(&has, &mut all)?;
        }
        let missing = |index: usize| all.chunks_exact(has.len()).position(|rank| rank[index] == 0);
        for (index, named) in named.iter().enumerate() {
            if let Some(rank) = missing(index) {
                store.says.warn(|| {
                    let (name, collective) = (&named.name, named.collective);
                    format!("rank {rank} has no function `{name}`, which the table names for {collective}: the best of the rest serves")
                });
            }
        }
        let on_all =
            |of: &TableFunction| named.iter().position(|known| *known == of).is_some_and(|at| missing(at).is_none());
        let functions = ServingFunctions::new(self, &store, |of| own_of(of).filter(|_| on_all(of)))?;
        let names = functions.names();
        self.serve_with(functions.boxed());
        Ok(names)
    }

    /// The library's own functions that the table names serve from now on. No message is sent.
    ///
    /// # Errors
    /// If the communicator is broken.
    pub(crate) fn use_own_functions(&self) -> CommResult<()> {
        let store = self.state().plans.store();
        if store.table().functions(store.places(&self.machines())).next().is_some() {
            self.serve_with(ServingFunctions::new(self, &store, |_| None)?.boxed());
        }
        Ok(())
    }
}

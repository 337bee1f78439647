//! Functions that serve calls, because a table says that they are faster than every plan.
//!
//! The principal type is [`ServingFunctions`]. A file cannot hold a function, so it holds the name. A program gives its functions
//! to the library under these names; all ranks agree on which of them all have, and the others serve nothing. Functions serve
//! blocking calls of the kind that was measured: its type of elements, its reduction, its root, and in place or not; and where the
//! program has given a predicate with it, only those for which that says yes. Everything else is served by the plans of the table,
//! or stock.

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

/// Whether a user's function can do a call. It says the same on all ranks, and whenever it is asked, because it looks at nothing but
/// the call.
pub type CandidatePredicate = dyn Fn(&CollectiveCall) -> bool + Send + Sync;

/// A user's function, and for what it is.
#[derive(Clone)]
pub(crate) struct UserFunction {
    pub(crate) collectives: Vec<Collective>,
    pub(crate) run: Arc<CandidateFunction>,
    /// `None` if it can do all calls of its collectives.
    pub(crate) when: Option<Arc<CandidatePredicate>>,
}

impl UserFunction {
    /// Whether its predicate says that it can do a call. One that panics says no.
    pub(crate) fn can_do(&self, call: &CollectiveCall) -> bool {
        let asked = |when: &Arc<CandidatePredicate>| catch_unwind(AssertUnwindSafe(|| when(call))).unwrap_or(false);
        self.when.as_ref().is_none_or(asked)
    }
}

/// A function of the program's, and its name.
pub(crate) type GivenFunction = (String, UserFunction);

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
    function: UserFunction,
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
fn own(name: &str) -> Option<(Composition, UserFunction)> {
    let of = Composition::of_name(name)?;
    let function = move |lane: &Communicator, call: &CollectiveCall, memory: Call<'_>| {
        composed(lane, of, call, memory).map_err(|error| error.to_string())
    };
    Some((of, UserFunction { collectives: vec![of.whole], run: Arc::new(function), when: None }))
}

/// A call as functions are told of it.
pub(crate) fn call_of(CallKey { kind, count, dtype }: CallKey) -> CollectiveCall {
    let CallKind { collective, root, op, in_place } = kind;
    CollectiveCall { collective, root: root.map(Rank::index), op, count, dtype, in_place }
}

impl ServingFunction {
    /// Whether it serves a call of so many bytes, as the collective counts them.
    fn serves(&self, ranks: usize, key: CallKey, bytes: u64) -> bool {
        let TableFunction { collective, from_bytes, to_bytes, dtype, op, .. } = self.named;
        let is_kind = key.kind == measured_kind(collective, op.unwrap_or(ReduceOp::Sum)) && key.dtype == dtype;
        let is_possible = self.composition.is_none_or(|of| of.serves(ranks, collective, key.count));
        // What the table says was true of calls of that size when it was measured: the program may know better about this one.
        is_kind && is_possible && bytes >= from_bytes && bytes < to_bytes && self.function.can_do(&call_of(key))
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
        given: impl Fn(&TableFunction) -> Option<UserFunction>,
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
        let call = call_of(key);
        let ended = catch_unwind(AssertUnwindSafe(|| (function.run)(lane, &call, memory)));
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
            let is_it = |(name, function): &&GivenFunction| {
                **name == *named.name && function.collectives.contains(&named.collective)
            };
            given.iter().find(is_it).map(|(_, function)| function.clone())
        };
        let named: Vec<&TableFunction> =
            table.functions(store.places(&machines)).filter(|of| own(&of.name).is_none()).collect();
        let word =
            |function: Option<UserFunction>| function.map_or(0, |function| 1 + i64::from(function.when.is_some()));
        let has: Vec<i64> = named.iter().map(|named| word(own_of(named))).collect();
        let mut all = vec![0; has.len() * self.size()];
        if !has.is_empty() {
            self.all_gather(&has, &mut all)?;
        }
        // With a predicate on some ranks only, they would not agree about calls.
        let is_other = |index: usize, rank: &[i64]| rank[index] == 0 || rank[index] != all[index];
        let missing = |index: usize| all.chunks_exact(has.len()).position(|rank| is_other(index, rank));
        for (index, named) in named.iter().enumerate() {
            if let Some(rank) = missing(index) {
                store.says.warn(|| {
                    let (name, collective) = (&named.name, named.collective);
                    let lack = match all[rank * has.len() + index] {
                        0 => "no function",
                        1 => "no predicate, as rank 0 has, for the function",
                        _ => "a predicate, which rank 0 has not, for the function",
                    };
                    format!("rank {rank} has {lack} `{name}`, which the table names for {collective}: the best of the rest serves")
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

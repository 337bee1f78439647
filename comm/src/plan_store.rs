//! The plans that related communicators share: each is made once.
//!
//! The principal type is [`PlanStore`].

use crate::bounded::BoundedMap;
use crate::error::CommResult;
use crate::links::LinkCosts;
use crate::log::{Says, printable};
use crate::statistics::StatisticsFile;
use crate::stock::{self, CallKind};
use crate::table::{PlanTable, RankPlaces};
use runtime::{DType, SequencedProgram};
use std::sync::{Arc, Mutex, PoisonError};
use topology::{Rank, Topology};
use tune::{MachineLinks, RankTransport};

/// How many plans stay, each of which is a program of a whole group. Ranks need not forget the same ones: a plan that
/// is made again is the same.
const MOST_PLANS: usize = 256;

/// A kind of call at one size. Most differ in their counts, so these are compared first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct CallKey {
    pub(crate) count: usize,
    pub(crate) dtype: DType,
    pub(crate) kind: CallKind,
}

/// A plan for a range of sizes.
pub(crate) struct ClassPlan {
    pub(crate) program: SequencedProgram,
    pub(crate) name: Arc<str>,
}

/// What serves a call.
pub(crate) struct FoundPlan {
    pub(crate) plan: Arc<ClassPlan>,
    pub(crate) reason: PlanReason,
}

/// Why a plan serves.
#[derive(Clone)]
pub(crate) enum PlanReason {
    /// It is this entry of the table.
    Table(usize),
    /// It is stock, because of this.
    Stock(Arc<str>),
}

/// Sizes that have the same plan: up to 8 times the smallest. A plan takes a few milliseconds, so there are few classes.
fn size_class(bytes: u64) -> u32 {
    bytes.max(1).ilog2() / 3
}

/// The size for which a class is planned.
fn typical_size(class: u32) -> u64 {
    2 << (3 * class)
}

/// The bytes of a call, as the collective counts them.
pub(crate) fn bytes_of(members: &[Rank], key: CallKey) -> u64 {
    key.kind.size(members.len(), (key.count as u64).saturating_mul(key.dtype.size() as u64))
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
/// Why not, if the table's plan cannot serve the calls.
type KnownPlans = BoundedMap<PlanKey, Result<Arc<ClassPlan>, Arc<str>>>;

/// The plans of a communicator, and of all that are split from it: each is made once.
pub(crate) struct PlanStore {
    table: Arc<PlanTable>,
    /// Why there is no table, or none that serves.
    no_table: Arc<str>,
    pub(crate) says: Says,
    /// From which stock follows.
    links: LinkCosts,
    /// The same as the session has measured it.
    measured: LinkCosts,
    pub(crate) file: Option<Arc<StatisticsFile>>,
    /// Every so many calls, one is timed and compared with stock; 0 for none.
    pub(crate) confirms_every: u32,
    /// How the ranks exchange data.
    transport: RankTransport,
    /// What each machine is, where a table asks.
    hardware: Option<Arc<[String]>>,
    plans: Mutex<KnownPlans>,
}

impl PlanStore {
    /// The table.
    pub(crate) fn table(&self) -> &PlanTable {
        &self.table
    }

    /// Plans of a table where it has them, and stock elsewhere.
    pub(crate) fn new(table: PlanTable, says: Says, links: LinkCosts) -> Self {
        let plans = Mutex::new(BoundedMap::new(MOST_PLANS));
        let (transport, hardware, no_table) = (RankTransport::Auto, None, "there is no table".into());
        Self {
            table: Arc::new(table),
            no_table,
            says,
            measured: links.clone(),
            links,
            file: None,
            confirms_every: 0,
            transport,
            hardware,
            plans,
        }
    }

    /// Ranks exchange data in this way.
    pub(crate) fn over(self, transport: RankTransport) -> Self {
        Self { transport, ..self }
    }

    /// What each machine is, by its number.
    pub(crate) fn on_hardware(self, hardware: Option<Arc<[String]>>) -> Self {
        Self { hardware, ..self }
    }

    /// What decides which tables serve ranks on these machines.
    pub(crate) fn places<'a>(&'a self, machines: &'a [u32]) -> RankPlaces<'a> {
        RankPlaces { machines, transport: Some(self.transport), hardware: self.hardware.as_deref() }
    }

    /// What it serves is counted in a file.
    pub(crate) fn counted_in(self, file: Option<Arc<StatisticsFile>>) -> Self {
        Self { file, ..self }
    }

    /// Why the table that was given does not serve, if that is so.
    pub(crate) fn without_table_because(self, why: Option<String>) -> Self {
        Self { no_table: why.map_or(self.no_table, |why| printable(&why).into()), ..self }
    }

    /// Every so many calls, one is timed and compared with stock; 0 for none.
    pub(crate) fn confirming(self, every: u32) -> Self {
        Self { confirms_every: every, ..self }
    }

    /// All textbook plans of some ranks, for all sizes.
    pub(crate) fn textbook(&self, members: &[Rank], kinds: &[CallKind]) -> CommResult<PlanTable> {
        let machines = self.links.machines_of(members);
        let mut table = PlanTable::of_textbook();
        for kind in kinds {
            for schedule in in_own_pool(|| stock::all(&machines, &self.links, *kind))? {
                let name = format!("{} {}", kind.collective, schedule.schedule().produced_by.strategy);
                table.add_schedule(&name, &schedule);
            }
        }
        Ok(table)
    }

    /// What messages between some ranks cost.
    pub(crate) fn cost_model(&self, members: &[Rank]) -> CommResult<Topology> {
        stock::topology(&self.links.machines_of(members), &self.links)
    }

    /// The same without a table, for calls that nobody counts.
    pub(crate) fn without_table(&self) -> Self {
        let new = Self::new(PlanTable::default(), Says::default(), self.measured.clone()).over(self.transport);
        Self { links: self.links.clone(), ..new }
    }

    /// The same table or another one, for calls that nobody counts.
    pub(crate) fn uncounted(&self, table: Option<Arc<PlanTable>>) -> Self {
        Self { table: table.unwrap_or_else(|| self.table.clone()), ..self.without_table() }
    }

    /// The same with another table, and with what each machine is, by its number.
    pub(crate) fn with_table_on(&self, table: PlanTable, hardware: Option<Arc<[String]>>) -> Self {
        self.of_session(self.measured.clone()).on_hardware(hardware).with_table(table)
    }

    /// The same with another table. If it knows what messages cost between these machines, stock follows from that, and otherwise from
    /// what was measured.
    pub(crate) fn with_table(&self, table: PlanTable) -> Self {
        let links = table.links(self.places(self.links.machines())).map(|links| self.measured.of_table(links));
        let links = links.unwrap_or_else(|| self.measured.clone());
        Self { table: Arc::new(table), links, ..self.of_session(self.measured.clone()) }
    }

    /// The same where messages between machines cost as much as a table says; `None` if that has other machines.
    pub(crate) fn with_links(&self, links: &MachineLinks) -> Option<Self> {
        let links = Some(self.measured.of_table(links)).filter(|links| links.suit_machines())?;
        Some(Self { links, ..self.of_session(self.measured.clone()) })
    }

    /// What a table of some ranks keeps of the costs of messages; nothing where they are not all ranks of the session.
    pub(crate) fn kept_links(&self, members: &[Rank]) -> Option<MachineLinks> {
        let is_whole = *self.links.machines_of(members) == *self.links.machines();
        if is_whole { self.links.kept() } else { None }
    }

    /// The same for another session.
    pub(crate) fn of_session(&self, links: LinkCosts) -> Self {
        let (table, no_table) = (self.table.clone(), self.no_table.clone());
        let (file, hardware) = (self.file.clone(), self.hardware.clone());
        let new = Self::new(PlanTable::default(), self.says, links).over(self.transport);
        Self { table, no_table, file, hardware, confirms_every: self.confirms_every, ..new }
    }

    /// The plan that serves calls of a size among some ranks of a session.
    pub(crate) fn plan(&self, members: &[Rank], key: CallKey) -> CommResult<FoundPlan> {
        let machines = self.links.machines_of(members);
        let bytes = bytes_of(members, key);
        let (places, call) = (self.places(&machines), (key.kind, key.dtype));
        let why = match self.table.find(places, call, bytes) {
            Some(entry) => match self.table_plan(machines, entry, key.kind) {
                Ok(plan) => return Ok(FoundPlan { plan, reason: PlanReason::Table(entry) }),
                Err(why) => why,
            },
            None => {
                let why = self.table.why_stock(places, call, bytes);
                why.map_or_else(|| self.no_table.clone(), |why| printable(&why).into())
            }
        };
        Ok(FoundPlan { plan: self.stock(members, key)?, reason: PlanReason::Stock(why) })
    }

    /// The plan of an entry for a kind of call, or why it cannot serve.
    fn table_plan(&self, machines: Arc<[u32]>, entry: usize, kind: CallKind) -> Result<Arc<ClassPlan>, Arc<str>> {
        // Ranks that are threads of this process wait here for the one that makes the plan.
        let mut plans = self.plans.lock().unwrap_or_else(PoisonError::into_inner);
        let source = (machines, kind, PlanSource::Table(entry));
        let known = plans.get(&source).cloned();
        known.unwrap_or_else(|| {
            let made = self.of_table(entry, kind);
            plans.insert(source, made.clone(), 1);
            made
        })
    }

    /// The textbook algorithm for calls of a size.
    pub(crate) fn stock(&self, members: &[Rank], key: CallKey) -> CommResult<Arc<ClassPlan>> {
        let machines = self.links.machines_of(members);
        let mut plans = self.plans.lock().unwrap_or_else(PoisonError::into_inner);
        let class = size_class(bytes_of(members, key));
        let source = (machines.clone(), key.kind, PlanSource::Stock(class));
        if let Some(Ok(known)) = plans.get(&source) {
            return Ok(known.clone());
        }
        let plan = || stock::plan(&machines, &self.links, key.kind, typical_size(class));
        let (program, name) = if stock::needs_no_threads(&machines) { plan() } else { in_own_pool(plan) }?;
        let plan = Arc::new(ClassPlan { program: SequencedProgram::new(program)?, name });
        plans.insert(source, Ok(plan.clone()), 1);
        Ok(plan)
    }

    /// Makes the plan of an entry of the table, or says why it cannot serve a kind of call.
    fn of_table(&self, entry: usize, kind: CallKind) -> Result<Arc<ClassPlan>, Arc<str>> {
        let made = in_own_pool(|| self.table.program(entry, kind)).and_then(|(program, name)| {
            let program = SequencedProgram::new(program).map_err(|error| error.to_string())?;
            Ok(Arc::new(ClassPlan { program, name: printable(&name).into() }))
        });
        made.map_err(|why| {
            let what = kind.collective;
            self.says.warn(|| format!("stock serves {what}, because the plan of the table cannot: {why}"));
            format!("the plan of the table cannot serve: {}", printable(&why)).into()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use runtime::Session;
    use schedule::Collective;
    use std::collections::BTreeMap;
    use tune::{TableKey, TuningTable};

    /// More plans than are kept: of three collectives with four roots, for several sizes, in place and not.
    fn keys() -> Vec<CallKey> {
        let mut keys = Vec::new();
        for collective in [Collective::Broadcast, Collective::Gather, Collective::Scatter] {
            for (root, class, in_place) in
                (0..4).flat_map(|root| (0..11).flat_map(move |class| [(root, class, false), (root, class, true)]))
            {
                let kind = CallKind { root: Some(Rank(root)), in_place, ..CallKind::plain(collective) };
                keys.push(CallKey { kind, count: 1 << (3 * class), dtype: DType::U8 });
            }
        }
        keys
    }

    /// Four ranks on a machine each, of which one has a slow network, or whose messages all take long.
    #[test]
    fn stock_follows_from_the_costs_that_a_table_keeps() {
        let members: Vec<Rank> = (0..4).map(Rank).collect();
        let machines: Vec<u32> = (0..4).collect();
        let costs = |time: fn(usize, usize) -> [f64; 2]| {
            let rows: Vec<f64> = (0..16).flat_map(|pair| time(pair / 4, pair % 4)).collect();
            LinkCosts::of_times(machines.clone(), &rows, vec![2; 4])
        };
        let slow_network = || costs(|from, to| if from.max(to) == 3 { [50.0, 10_000.0] } else { [50.0, 2000.0] });
        let long_messages = || costs(|_, _| [5000.0, 5001.0]);
        let store = |links| PlanStore::new(PlanTable::default(), Says::default(), links);
        let kind = CallKind { op: Some(schedule::ReduceOp::Sum), ..CallKind::plain(Collective::AllReduce) };
        let digest = |store: &PlanStore, count| {
            let key = CallKey { kind, count, dtype: DType::F32 };
            store.stock(&members, key).unwrap().program.digest()
        };
        let counts = [16, 4096, 1 << 20];
        let digests = |store: &PlanStore| counts.map(|count| digest(store, count));
        let [measured, now] = [digests(&store(slow_network())), digests(&store(long_messages()))];
        assert_ne!(measured, now, "the test needs costs that matter");
        let tuned = |links, machines| {
            let key = TableKey::of(machines, env!("CARGO_PKG_VERSION"));
            let table = TuningTable { links, ..TuningTable::new(key, Vec::new(), BTreeMap::new()) };
            table.check().unwrap();
            let mut plans = PlanTable::default();
            plans.add_tuned(&table, "a table").unwrap();
            plans
        };
        let links = slow_network().kept();
        assert_eq!(digests(&store(long_messages()).with_table(tuned(links.clone(), machines.clone()))), measured);
        assert_eq!(digests(&store(long_messages()).with_links(links.as_ref().unwrap()).unwrap()), measured);
        // A table without costs, or for other ranks, says nothing about these; and parts of a session have other machines.
        assert_eq!(digests(&store(long_messages()).with_table(tuned(None, machines.clone()))), now);
        let larger = LinkCosts::of_times((0..5).collect(), &[100.0; 50], vec![2; 5]).kept();
        assert_eq!(digests(&store(long_messages()).with_table(tuned(larger.clone(), (0..5).collect()))), now);
        // Not even if nobody has compared the machines.
        assert!(store(long_messages()).with_links(larger.as_ref().unwrap()).is_none());
        // The next table brings its own, or none.
        let with = store(long_messages()).with_table(tuned(links.clone(), machines.clone()));
        assert_eq!(digests(&with.with_table(tuned(None, machines.clone()))), now);
        assert_eq!(digests(&with.without_table()), measured);
        assert_eq!(store(slow_network()).kept_links(&members), links);
        assert_eq!(store(slow_network()).kept_links(&members[1..]), None);
    }

    #[test]
    fn plans_that_were_forgotten_are_made_again_alike() {
        let session = Session::local(4).unwrap().remove(0);
        let members: Vec<Rank> = (0..4).map(Rank).collect();
        let store = PlanStore::new(PlanTable::default(), Says::default(), LinkCosts::assumed(&session));
        let digest = |key: &CallKey| store.plan(&members, *key).unwrap().plan.program.digest();
        let digests = || -> Vec<u32> { keys().iter().map(digest).collect() };
        let first = digests();
        assert!(first.len() > MOST_PLANS);
        assert_eq!(store.plans.lock().unwrap().len(), MOST_PLANS);
        assert_eq!(digests(), first);
        assert_eq!(store.plans.lock().unwrap().len(), MOST_PLANS);
    }
}

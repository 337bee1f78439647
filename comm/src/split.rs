//! New groups out of a group.

use crate::communicator::Communicator;
use crate::error::{CommError, CommResult};
use crate::numbers::mixed;
use crate::plan_store::{CallKey, ClassPlan, PlanStore};
use crate::stock::CallKind;
use crate::table::{PlanTable, RankPlaces};
use runtime::DType;
use std::sync::Arc;
use topology::Topology;
use tune::MachineLinks;

/// Which group an identifier means, where it is not the color of a split.
const SUBSET: u64 = u64::MAX - 2;
const DUPLICATE: u64 = u64::MAX;

impl Communicator {
    /// Makes groups of the ranks that name the same color, in the order of their keys, then of their numbers. A rank that
    /// names no color is in none. All ranks of this group make the call.
    ///
    /// # Errors
    /// As any call.
    pub fn split(&self, color: Option<u32>, key: i64) -> CommResult<Option<Self>> {
        let own = [color.map_or(-1, i64::from), key];
        let mut all = vec![0; own.len() * self.size()];
        self.all_gather(&own, &mut all)?;
        let splits = self.state().next_split();
        let Some(color) = color else { return Ok(None) };
        let named = all.chunks_exact(2).enumerate().filter(|(_, pair)| pair[0] == i64::from(color));
        let mut members: Vec<(i64, usize)> = named.map(|(number, pair)| (pair[1], number)).collect();
        members.sort_unstable();
        let number = members.iter().position(|&(_, number)| number == self.rank()).unwrap_or_default();
        let ranks = members.into_iter().map(|(_, number)| self.shared.members[number]).collect();
        let id = mixed(mixed(self.shared.id, splits), u64::from(color));
        let plans = self.state().plans.store();
        Ok(Some(Self::new(self.shared.session.clone(), id, (ranks, number), self.limit(), plans)))
    }

    /// A group of some members, by their numbers here and in the order given, of which this rank is one. No message is sent: all
    /// of them make this call, in any order with others, and give the same members and the same `tag`, which they use once.
    ///
    /// # Errors
    /// [`CommError::Argument`] if a number is no member's or stands twice, or this rank is not among them.
    pub fn subset(&self, members: &[usize], tag: u64) -> CommResult<Self> {
        let ranks = members.iter().map(|&number| self.member(number)).collect::<CommResult<Vec<_>>>()?;
        let own = members.iter().position(|&number| number == self.rank());
        let number = own.ok_or_else(|| CommError::Argument(format!("rank {} is not in the group", self.rank())))?;
        let mut once = members.to_vec();
        once.sort_unstable();
        if let Some(pair) = once.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(CommError::Argument(format!("rank {} stands twice in the group", pair[0])));
        }
        let plans = self.usable_state()?.plans.store();
        let id = members.iter().fold(mixed(mixed(self.shared.id, SUBSET), tag), |id, &number| mixed(id, number as u64));
        Ok(Self::new(self.shared.session.clone(), id, (ranks, number), self.limit(), plans))
    }

    /// The same group once more: its calls and those of this one do not wait for each other.
    ///
    /// # Errors
    /// As any call.
    pub fn duplicate(&self) -> CommResult<Self> {
        let plans = self.state().plans.store();
        self.twin(plans)
    }

    /// All textbook plans of this group.
    pub(crate) fn textbook(&self, kinds: &[CallKind]) -> CommResult<PlanTable> {
        let plans = self.state().plans.store();
        plans.textbook(&self.shared.members, kinds)
    }

    /// The plan that serves calls without a table.
    pub(crate) fn stock_plan(&self, kind: CallKind, count: usize, dtype: DType) -> CommResult<Arc<ClassPlan>> {
        let plans = self.state().plans.store();
        plans.stock(&self.shared.members, CallKey { kind, count, dtype })
    }

    /// What messages between these ranks cost.
    pub(crate) fn cost_model(&self) -> CommResult<Topology> {
        let plans = self.state().plans.store();
        plans.cost_model(&self.shared.members)
    }

    /// Whether a table is in use that says which plan serves calls of these ranks, or that stock does. All ranks have the same.
    pub fn has_table(&self) -> bool {
        let (store, machines) = (self.state().plans.store(), self.machines());
        store.table().is_for(store.places(&machines))
    }

    /// What a table of this group keeps of these costs.
    pub(crate) fn kept_links(&self) -> Option<MachineLinks> {
        let plans = self.state().plans.store();
        plans.kept_links(&self.shared.members)
    }

    /// From the next call on, stock is what it was for the table that knows these costs, if they are those of these machines. All
    /// ranks make this call with the same ones.
    pub(crate) fn use_links(&self, links: &MachineLinks) {
        let plans = self.state().plans.store().with_links(links);
        plans.into_iter().for_each(|plans| self.replace_plans(plans));
    }

    /// What the first of some tables for this group, on machines like these, knows of the costs of messages.
    pub(crate) fn links_of(&self, tables: &[Arc<PlanTable>], hardware: &[String]) -> Option<MachineLinks> {
        let (store, machines) = (self.state().plans.store(), self.machines());
        let places = RankPlaces { hardware: Some(hardware), ..store.places(&machines) };
        tables.iter().find_map(|table| table.links(places)).cloned()
    }

    /// The same group once more, which knows no table.
    pub(crate) fn without_table(&self) -> CommResult<Self> {
        let plans = self.state().plans.store();
        self.twin(Arc::new(plans.without_table()))
    }

    /// The same group once more, with its table or another one, for calls that nobody counts.
    pub(crate) fn uncounted(&self, table: Option<Arc<PlanTable>>) -> CommResult<Self> {
        let plans = self.state().plans.store();
        self.twin(Arc::new(plans.uncounted(table)))
    }

    /// From the next call on, this group uses another table; groups that are made of it too.
    pub(crate) fn replace_table(&self, table: PlanTable, hardware: Option<Arc<[String]>>) {
        let plans = self.state().plans.store().with_table_on(table, hardware);
        self.replace_plans(plans);
    }

    fn replace_plans(&self, plans: PlanStore) {
        self.state().plans.replace(Arc::new(plans));
        self.serve_with(None);
    }

    /// Before the first call, all ranks have the same table. Where it says what its machines are, they tell each other.
    ///
    /// # Errors
    /// As any call.
    pub(crate) fn begin_with(&self, table: PlanTable, confirm_every: u32) -> CommResult<()> {
        let hardware = table.compares_hardware().then(|| self.hardware_of_all()).transpose()?;
        let plans = self.state().plans.store().with_table_on(table, hardware.map(Arc::from)).confirming(confirm_every);
        for why in plans.table().misfits(plans.places(&self.machines())) {
            plans.says.warn(|| why);
        }
        self.replace_plans(plans);
        self.use_own_functions()
    }

    fn twin(&self, plans: Arc<PlanStore>) -> CommResult<Self> {
        let splits = self.usable_state()?.next_split();
        let id = mixed(mixed(self.shared.id, splits), DUPLICATE);
        let members = self.shared.members.clone();
        Ok(Self::new(self.shared.session.clone(), id, (members, self.rank()), self.limit(), plans))
    }
}

//! Which plan of a table serves a call, and why none does.

use super::{PlanTable, TableEntry, in_order};
use crate::stock::CallKind;
use schedule::{Request, VerifiedSchedule};
use tune::TableKey;

impl PlanTable {
    /// Whether a table was measured on an emulated machine that these ranks do not emulate.
    pub(super) fn is_from_elsewhere(&self, key: &TableKey) -> bool {
        key.topology.is_some() && self.only_for.as_ref().is_some_and(|emulated| *emulated != key.topology)
    }

    /// The plan that serves a call among ranks on these machines (counted in the order of their first ranks), with the
    /// call's reduction, and its name; `None` if stock serves it.
    ///
    /// # Errors
    /// Why the plan cannot serve the call.
    pub fn schedule_for(
        &self,
        machines: &[u32],
        asked: &Request,
    ) -> Option<Result<(VerifiedSchedule, String), String>> {
        let Request { collective, root, op, size_bytes, .. } = *asked;
        let entry = self.find(machines, CallKind { collective, root, op, in_place: false }, size_bytes)?;
        Some(self.schedule(entry, op).map(|schedule| (schedule, self.name(entry).to_owned())))
    }

    /// Which entry serves a call of so many bytes, as the collective counts them: the first one that does. The ranks are on
    /// these machines.
    pub(crate) fn find(&self, machines: &[u32], kind: CallKind, bytes: u64) -> Option<usize> {
        (0..self.len()).find(|&entry| {
            let of = self.entries[entry].range.machines.as_ref();
            self.serves(entry, machines.len(), kind, bytes)
                && of.is_none_or(|of| in_order(machines.iter().copied()).eq(of.iter().copied()))
        })
    }

    /// Whether an entry serves calls of so many bytes among so many ranks.
    pub(crate) fn serves(&self, entry: usize, ranks: usize, kind: CallKind, bytes: u64) -> bool {
        let TableEntry { range, plan } = &self.entries[entry];
        let request = plan.schedule.demand.request();
        let is_for_all = request.members.len() == request.ranks && request.ranks == ranks;
        let is_such = request.collective == kind.collective && request.root == kind.root;
        is_for_all && is_such && range.holds(bytes)
    }

    /// Why tuned plans do not serve ranks on these machines (counted in the order of their first ranks), if that is so.
    pub fn misfit(&self, machines: &[u32]) -> Option<String> {
        if let Some((origin, _)) = self.keys.iter().find(|(_, key)| self.is_from_elsewhere(key)) {
            return Some(format!(
                "{origin} was measured on an emulated machine, not on this one: stock serves its calls"
            ));
        }
        let (origin, key) = self.keys.iter().find(|(_, key)| key.machines != machines)?;
        let count = |of: &[u32]| of.iter().max().map_or(0, |last| last + 1);
        Some(format!(
            "{origin} was measured with {} ranks on {} machines, placed in another way than these {} ranks on {}: stock serves \
             their calls",
            key.ranks,
            count(&key.machines),
            machines.len(),
            count(machines),
        ))
    }

    /// Why no plan serves calls of a kind that the table has plans for, if that is so.
    pub fn why_not(&self, machines: &[u32], asked: &Request) -> Option<String> {
        let Request { collective, root, op, size_bytes, .. } = *asked;
        let kind = CallKind { collective, root, op, in_place: false };
        if self.find(machines, kind, size_bytes).is_some() {
            return None;
        }
        let TableEntry { range, plan } = self.entries.iter().find(|entry| {
            let request = entry.plan.schedule.demand.request();
            request.collective == collective && entry.range.holds(size_bytes)
        })?;
        let (name, request) = (&plan.name, plan.schedule.demand.request());
        let why = match () {
            () if request.ranks != machines.len() => format!("for {} ranks, not for {}", request.ranks, machines.len()),
            () if request.members.len() != request.ranks => "for some of the ranks only".to_owned(),
            () if request.root != root => {
                let shown = |root: Option<topology::Rank>| root.map_or("none".to_owned(), |root| root.to_string());
                format!("for root {}, not for root {}", shown(request.root), shown(root))
            }
            () if range.machines.is_some() => "for other machines".to_owned(),
            () => return None,
        };
        Some(format!("{name} cannot serve {collective}: it is {why}; stock serves it"))
    }
}

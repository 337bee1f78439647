//! Why a table does not serve a call.

use super::{PlanTable, TableEntry};
use crate::stock::CallKind;
use schedule::Request;

impl PlanTable {
    /// Why tuned plans do not serve ranks on these machines (counted in the order of their first ranks), if that is so.
    pub fn misfit(&self, machines: &[u32]) -> Option<String> {
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

//! Why a table has no plan for a call.

use super::{PlanTable, RankPlaces, SizeChoice};
use crate::stock::CallKind;
use runtime::DType;

impl PlanTable {
    /// Why stock serves a call of so many bytes for which [`Self::find`] finds nothing. `None` if there is no table at all.
    pub(crate) fn why_stock(
        &self,
        places: RankPlaces<'_>,
        (kind, dtype): (CallKind, DType),
        bytes: u64,
    ) -> Option<String> {
        if self.tuned.is_empty() && self.is_empty() {
            return None;
        }
        let what = kind.collective;
        match self.nearest(places, (kind, dtype)).map(|cell| cell.at(bytes)) {
            Some(SizeChoice::Stock) => return Some(format!("the table names no plan for {what} of this size")),
            Some(SizeChoice::Unmeasured) => return Some(format!("{what} of this size was not measured for the table")),
            Some(SizeChoice::Nccl) => return Some(format!("the table names NCCL for {what} of this size")),
            Some(SizeChoice::Plan(_)) => {}
            None => {
                if let Some(misfit) = self.misfit_for(places, kind) {
                    return Some(misfit);
                }
            }
        }
        Some(self.why_no_plan(places.machines.len(), kind))
    }

    /// Why a tuning table that has measured such calls does not serve these ranks. Nothing was read of a table of another machine.
    fn misfit_for(&self, places: RankPlaces<'_>, kind: CallKind) -> Option<String> {
        let is_about = |table: usize| {
            self.is_from_elsewhere(&self.tuned[table].key)
                || self.cells.iter().any(|cell| cell.table == table && cell.collective == kind.collective)
        };
        (0..self.tuned.len()).filter(|table| is_about(*table)).find_map(|table| self.misfit(table, places))
    }

    /// What its plans lack.
    fn why_no_plan(&self, ranks: usize, kind: CallKind) -> String {
        let what = kind.collective;
        let mut left: Vec<usize> = (0..self.len()).collect();
        let mut keep = |fits: &dyn Fn(usize) -> bool| {
            left.retain(|&entry| fits(entry));
            left.is_empty()
        };
        let request = |entry: usize| self.entries[entry].plan.schedule.demand.request();
        if keep(&|entry| request(entry).collective == what) {
            return format!("the table has no plan for {what}");
        }
        if keep(&|entry| request(entry).ranks == ranks) {
            return format!("the table has no plan for {what} of {ranks} ranks");
        }
        if keep(&|entry| request(entry).members.len() == ranks) {
            return format!("the plans of the table for {what} are for some of the ranks only");
        }
        if let Some(root) = kind.root
            && keep(&|entry| request(entry).root == kind.root)
        {
            return format!("the table has no plan for {what} with root {root}");
        }
        format!("the table has no plan for {what} of this size")
    }
}

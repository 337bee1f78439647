//! Whether the ranks of a job have the same table.
//!
//! The principal type is [`OwnTable`], what a rank has read. A table is used by all ranks or by nobody, so they compare one number.
//! Only if it differs, all learn who has which, so that a line can name the ranks.

use crate::error::CommResult;
use crate::numbers::mixed;
use crate::probe::numbers_of_all;
use crate::table::PlanTable;
use runtime::Session;
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

/// So many ranks are named on a line.
const MOST_NAMED: usize = 8;

/// What a rank has of a table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum TableState {
    /// Nobody has named one.
    Absent,
    Usable,
    /// It cannot be used.
    Refused,
}

/// The table that a rank was given.
pub(crate) struct OwnTable {
    table: PlanTable,
    state: TableState,
    /// Why it cannot be used.
    fault: String,
}

/// What the ranks have agreed on.
pub(crate) struct AgreedTable {
    /// What all of them have, or an empty one.
    pub(crate) table: PlanTable,
    /// What this rank says about it.
    pub(crate) lines: Vec<String>,
    /// Why there is no table, if one was named.
    pub(crate) why_none: Option<String>,
}

impl OwnTable {
    /// Reads the table, if one is named.
    pub(crate) fn read(path: Option<&Path>) -> Self {
        let (table, fault) = (PlanTable::default(), String::new());
        match path.map(|path| PlanTable::read_for(path, None)) {
            None => Self { table, state: TableState::Absent, fault },
            Some(Ok(table)) => Self { table, state: TableState::Usable, fault },
            Some(Err(fault)) => Self { table, state: TableState::Refused, fault: fault.to_string() },
        }
    }

    /// Whether there is something that may serve calls.
    pub(crate) fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    /// A number that ranks have in common only if they have the same table, and the same of what else decides.
    fn number(&self, besides: u64) -> u64 {
        let text = |text: &str| text.bytes().fold(2, |number, byte| mixed(number, byte.into()));
        match self.state {
            TableState::Absent => 0,
            TableState::Usable => mixed(mixed(self.table.digest(), 1), besides),
            TableState::Refused => text(&self.fault),
        }
    }

    /// Asks the others. `besides` stands for whatever else of the configuration the use of a table depends on.
    ///
    /// # Errors
    /// As any call.
    pub(crate) fn agree(self, session: &Session, besides: u64, limit: Duration) -> CommResult<AgreedTable> {
        let rank = session.rank().index();
        let own = [self.number(besides), self.state as u64];
        let all = numbers_of_all(session, own, limit)?;
        let Self { table, state, fault } = self;
        let Some(all) = all else {
            // All say the same, so one of them does.
            let mut lines = if rank == 0 { table.notes().to_vec() } else { Vec::new() };
            if rank == 0 && state == TableState::Refused {
                lines.push(format!("no table is used: {fault}"));
            }
            let why_none = (state == TableState::Refused).then(|| format!("the table cannot be used: {fault}"));
            return Ok(AgreedTable { table, lines, why_none });
        };
        let mut lines: Vec<String> = table.notes().iter().map(|note| format!("rank {rank}: {note}")).collect();
        if state == TableState::Refused {
            lines.push(format!("rank {rank} cannot use its table: {fault}"));
        }
        if rank == 0 {
            lines.push(format!("stock serves all calls, because the ranks have different tables: {}", named(&all)));
        }
        let why_none = Some(format!("the ranks have different tables: {}", named(&all)));
        Ok(AgreedTable { table: PlanTable::default(), lines, why_none })
    }
}

/// Who has which table, by the numbers of all ranks.
fn named(all: &[[u64; 2]]) -> String {
    let is = |of: &[u64; 2], state: TableState| of[1] == state as u64;
    let mut usable: BTreeMap<u64, Vec<usize>> = BTreeMap::new();
    for (rank, of) in all.iter().enumerate().filter(|(_, of)| is(of, TableState::Usable)) {
        usable.entry(of[0]).or_default().push(rank);
    }
    // Most ranks have the right one. Of several, rank 0's, or that of the next rank.
    let right =
        usable.values().max_by_key(|ranks| (ranks.len(), std::cmp::Reverse(ranks[0]))).cloned().unwrap_or_default();
    let mut parts = Vec::new();
    let mut tell = |ranks: Vec<usize>, has: [&str; 2]| {
        if let [one] = ranks[..] {
            parts.push(format!("rank {one} {}", has[0]));
        } else if !ranks.is_empty() {
            let more = ranks.len().saturating_sub(MOST_NAMED);
            let known: Vec<String> = ranks.iter().take(MOST_NAMED).map(usize::to_string).collect();
            let more = if more > 0 { format!(" and {more} more") } else { String::new() };
            parts.push(format!("ranks {}{more} {}", known.join(", "), has[1]));
        }
    };
    let of = |state| (0..all.len()).filter(|rank| is(&all[*rank], state)).collect::<Vec<usize>>();
    tell(of(TableState::Absent), ["has none", "have none"]);
    tell(of(TableState::Refused), ["cannot use its own", "cannot use their own"]);
    let others = of(TableState::Usable).into_iter().filter(|rank| !right.contains(rank)).collect();
    let than = format!(
        "another than rank {}, or another ANTIPHON_CONFIRM or ANTIPHON_TRANSPORT",
        right.first().copied().unwrap_or_default()
    );
    tell(others, [&format!("has {than}"), &format!("have {than}")]);
    parts.join("; ")
}

#[cfg(test)]
mod tests;

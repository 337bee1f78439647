//! What tuning tables choose for a call, and why NCCL serves it.
//!
//! The principal type is [`Choices`].

use crate::prepared::PlanRefusal;
use crate::settings::{Settings, say};
use schedule::Collective;
use std::fmt;
use tune::{NcclChoice, TuningTable};

/// Why NCCL serves a call by itself.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum NcclReason {
    /// `ANTIPHON_TABLE` names no table, or one that cannot be read.
    NoTable,
    /// All tables are for other numbers of ranks.
    OtherRanks,
    /// The table says nothing about the collective.
    NoRange,
    /// The table chooses stock.
    Stock,
    /// The table chooses one of NCCL's algorithms, which the tuner tells NCCL, if NCCL asks it.
    Tuner(String),
    /// The table chooses a plan, which does not serve the call.
    Refused(String, PlanRefusal),
    /// The call has a configuration of its own (`ncclAllReduceConfig`).
    Configured,
    /// NCCL does not tell about the communicator, or has no such type: it is wrong, or not ready.
    Unknown,
}

impl fmt::Display for NcclReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoTable => f.write_str("there is no table"),
            Self::OtherRanks => f.write_str("no table is for so many ranks"),
            Self::NoRange => f.write_str("the table has nothing for this collective"),
            Self::Stock => f.write_str("the table chooses stock"),
            Self::Tuner(choice) => write!(f, "the table chooses NCCL's {choice}, which NCCL hears from its tuner"),
            Self::Refused(plan, why) => write!(f, "the table chooses the plan `{plan}`, but {why}"),
            Self::Configured => f.write_str("the call has a configuration of its own"),
            Self::Unknown => f.write_str("its communicator is not ready, or it or the type of elements is none"),
        }
    }
}

/// The tables of this process.
#[derive(Debug, Default)]
pub(crate) struct Choices {
    tables: Vec<TuningTable>,
}

impl Choices {
    /// Reads what the settings name. What is wrong with it is said once, and then there are no tables.
    pub(crate) fn read(settings: &Settings) -> Self {
        let Some(path) = &settings.table else { return Self::default() };
        match crate::rules::tables(path) {
            Ok(tables) => Self { tables },
            Err(why) => {
                say(&format!("no plans: {why}"));
                Self::default()
            }
        }
    }

    /// Whether there is anything to choose from.
    pub(crate) fn is_empty(&self) -> bool {
        self.tables.is_empty()
    }

    /// Why NCCL serves a call of so many bytes, as the collective counts them, and no plan does.
    pub(crate) fn reason(&self, collective: Collective, bytes: u64, ranks: usize, why: PlanRefusal) -> NcclReason {
        if self.tables.is_empty() {
            return NcclReason::NoTable;
        }
        let mut tables = self.tables.iter().filter(|table| table.key.ranks == ranks).peekable();
        if tables.peek().is_none() {
            return NcclReason::OtherRanks;
        }
        let found = tables.find_map(|table| table.find(collective, bytes).map(|range| (table, range)));
        let Some((table, range)) = found else { return NcclReason::NoRange };
        let Some(name) = &range.plan else { return NcclReason::Stock };
        match table.plans.get(name).map(NcclChoice::of_plan) {
            Some(Ok(Some(choice))) => {
                NcclReason::Tuner(format!("{} with {}", choice.algorithm.as_str(), choice.protocol.as_str()))
            }
            _ => NcclReason::Refused(name.clone(), why),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = r#"{"format": "antiphon-table/1",
        "key": {"ranks": 4, "machines": [0, 0, 0, 0], "version": "1", "policy": 1},
        "cells": [{"collective": "allreduce", "ranges": [
            {"from_bytes": 0, "to_bytes": 100, "plan": null, "evidence": []},
            {"from_bytes": 100, "to_bytes": 200, "plan": "n", "evidence": []},
            {"from_bytes": 200, "to_bytes": null, "plan": "ours", "evidence": []}]}],
        "plans": {"n": {"format": "antiphon-nccl/1", "algorithm": "ring", "protocol": "ll", "channels": 2}, "ours": {}}}"#;

    #[test]
    fn every_call_has_a_reason() {
        let none = Choices::default();
        assert_eq!(none.reason(Collective::AllReduce, 8, 4, PlanRefusal::Unseen), NcclReason::NoTable);
        let choices = Choices { tables: vec![TuningTable::parse(TABLE, "t").unwrap()] };
        let reason = |bytes| choices.reason(Collective::AllReduce, bytes, 4, PlanRefusal::Empty);
        assert_eq!([0, 99].map(reason), [NcclReason::Stock, NcclReason::Stock]);
        assert!([100, 199].into_iter().all(|bytes| reason(bytes) == NcclReason::Tuner("ring with ll".to_owned())));
        assert!(
            [200, u64::MAX]
                .into_iter()
                .all(|bytes| reason(bytes) == NcclReason::Refused("ours".to_owned(), PlanRefusal::Empty))
        );
        assert_eq!(choices.reason(Collective::AllReduce, 8, 3, PlanRefusal::Unseen), NcclReason::OtherRanks);
        assert_eq!(choices.reason(Collective::AllGather, 8, 4, PlanRefusal::Unseen), NcclReason::NoRange);
    }
}

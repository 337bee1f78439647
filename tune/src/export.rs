//! Choices of a table in the formats of other libraries.
//!
//! The principal function is [`export`]. Other libraries have algorithms of their own and know no plans, so only a textbook
//! algorithm that they have too can be named to them. All else is left to their own choice, and a note says so.

use crate::files::TableError;
use crate::nccl::{NcclAlgorithm, NcclChoice, NcclProtocol, NcclRule};
use crate::store::{ChoiceRange, TuningTable};
use crate::textbook::{self, Textbook};
use schedule::Collective;
use std::collections::BTreeSet;
use std::fmt::Write;

/// For whom a table is exported.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ExportTarget {
    /// The CSV file of the example tuner plugin of NCCL.
    NcclCsv,
    /// The dynamic rules file of Open MPI's `tuned` component.
    OmpiRules,
    /// The value of `UCC_TL_UCP_TUNE`.
    Ucc,
}

/// An exported table, and what it does not say.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ExportedTable {
    /// The text.
    pub text: String,
    /// What the format cannot express, each once.
    pub notes: Vec<String>,
}

/// The largest size that a line for NCCL can name.
const NCCL_MOST: u64 = 4_294_967_295;

/// What another library has for some textbook algorithms.
type Counterparts<T> = &'static [(Textbook, T)];

fn counterpart<T: Copy>(counterparts: Counterparts<T>, algorithm: Textbook) -> Option<T> {
    counterparts.iter().find(|(own, _)| *own == algorithm).map(|(_, counterpart)| *counterpart)
}

/// A range of a table, with what it is for other libraries.
struct NamedRange<'a> {
    collective: Collective,
    range: &'a ChoiceRange,
    /// The textbook algorithm that its plan is, if it is one.
    algorithm: Option<Textbook>,
}

/// All ranges of a table.
fn named(table: &TuningTable) -> Vec<NamedRange<'_>> {
    let algorithm = |collective, range: &ChoiceRange| {
        let plan = range.plan.as_ref().and_then(|name| table.plans.get(name))?;
        textbook::algorithm(plan, &table.key, collective)
    };
    table
        .ranges()
        .map(|(collective, range)| NamedRange { collective, range, algorithm: algorithm(collective, range) })
        .collect()
}

/// Open MPI's numbers of the calls that a collective of ours serves (the order of its enumeration), and of algorithms in each.
const fn ompi_numbers(collective: Collective) -> &'static [(u32, &'static str, Counterparts<u32>)] {
    use Textbook::{Binomial, Bruck, Chain, Doubling, Exchange, Linear, Ring};
    match collective {
        Collective::AllGather => &[(0, "allgather", &[(Bruck, 2), (Doubling, 3), (Ring, 4)])],
        Collective::AllReduce => &[(2, "allreduce", &[(Linear, 1), (Exchange, 3), (Ring, 4), (Doubling, 6)])],
        Collective::AllToAll => &[(3, "alltoall", &[(Linear, 1)])],
        Collective::Broadcast => &[(7, "bcast", &[(Linear, 1), (Chain, 3), (Binomial, 6)])],
        Collective::Gather => &[(9, "gather", &[(Linear, 1), (Binomial, 2)])],
        Collective::Reduce => &[(11, "reduce", &[(Linear, 1), (Chain, 3), (Binomial, 5)])],
        Collective::ReduceScatter => {
            &[(12, "reduce_scatter", &[(Doubling, 2), (Ring, 3)]), (13, "reduce_scatter_block", &[(Doubling, 3)])]
        }
        Collective::Scatter => &[(15, "scatter", &[(Linear, 1), (Binomial, 2)])],
        Collective::AllToAllV | Collective::SendRecv | Collective::Custom => &[],
    }
}

/// What UCC calls a collective, and algorithms of its `ucp` layer.
const fn ucc_names(collective: Collective) -> Option<(&'static str, Counterparts<&'static str>)> {
    use Textbook::{Binomial, Bruck, Doubling, Exchange, Linear, Ring};
    Some(match collective {
        Collective::AllReduce => ("allreduce", &[(Exchange, KNOMIAL), (Doubling, SRA_KNOMIAL)]),
        Collective::AllGather => ("allgather", &[(Ring, "ring"), (Bruck, "bruck"), (Doubling, KNOMIAL)]),
        Collective::AllToAll => ("alltoall", &[(Linear, "pairwise")]),
        Collective::Broadcast => ("bcast", &[(Binomial, KNOMIAL)]),
        Collective::Reduce => ("reduce", &[(Binomial, KNOMIAL)]),
        Collective::ReduceScatter => ("reduce_scatter", &[(Ring, "ring"), (Doubling, KNOMIAL)]),
        Collective::Gather => ("gather", &[(Binomial, KNOMIAL)]),
        Collective::Scatter => ("scatter", &[(Binomial, KNOMIAL)]),
        Collective::AllToAllV | Collective::SendRecv | Collective::Custom => return None,
    })
}

/// UCC's trees and exchanges of any radix.
const KNOMIAL: &str = "knomial";
/// A ReduceScatter and an AllGather of it.
const SRA_KNOMIAL: &str = "sra_knomial";

/// NCCL's counterparts of textbook algorithms. Its trees are two at once, which none of ours is.
const fn nccl_algorithms(collective: Collective) -> Counterparts<NcclAlgorithm> {
    match collective {
        Collective::AllReduce | Collective::AllGather | Collective::ReduceScatter => {
            &[(Textbook::Ring, NcclAlgorithm::Ring)]
        }
        Collective::Broadcast | Collective::Reduce => &[(Textbook::Chain, NcclAlgorithm::Ring)],
        Collective::AllToAll | Collective::AllToAllV | Collective::Gather | Collective::Scatter => &[],
        Collective::SendRecv | Collective::Custom => &[],
    }
}

/// Writes a table for another library. The text has no line for what that library cannot be told.
///
/// # Errors
/// [`TableError::Senseless`] if a plan says that it is a choice for NCCL and is none; `origin` names the table.
pub fn export(table: &TuningTable, target: ExportTarget, origin: &str) -> Result<ExportedTable, TableError> {
    let mut notes = Vec::new();
    let text = match target {
        ExportTarget::NcclCsv => nccl(table, &mut notes, origin)?,
        ExportTarget::OmpiRules => ompi(table, &mut notes),
        ExportTarget::Ucc => ucc(table, &mut notes),
    };
    let mut seen = BTreeSet::new();
    notes.retain(|note| seen.insert(note.clone()));
    Ok(ExportedTable { text, notes })
}

/// Says that a plan is left to the other library.
fn left(notes: &mut Vec<String>, who: &str, what: impl std::fmt::Display, range: &ChoiceRange) {
    if let Some(plan) = &range.plan {
        notes.push(format!("{who} has no counterpart of the plan `{plan}` of {what}, and chooses itself there"));
    }
}

fn nccl(table: &TuningTable, notes: &mut Vec<String>, origin: &str) -> Result<String, TableError> {
    let mut rules = Vec::new();
    for NamedRange { collective, range, algorithm } in named(table) {
        let chosen = NcclChoice::of_range(table, range, origin)?;
        let unmeasured = || {
            let algorithm = counterpart(nccl_algorithms(collective), algorithm?)?;
            notes.push(
                "protocols and channels of schedules were not measured: their lines say `simple`, and leave channels to NCCL"
                    .to_owned(),
            );
            // The plan says nothing of protocols and channels.
            Some(NcclChoice { algorithm, protocol: NcclProtocol::Simple, channels: None })
        };
        let choice = chosen.or_else(unmeasured);
        match choice.and_then(|choice| NcclRule::of_range(table, collective, range, choice)) {
            Some(mut rule) => {
                if rule.last_bytes > NCCL_MOST {
                    rule.last_bytes = NCCL_MOST;
                    notes.push(format!(
                        "no line for NCCL can name more than {NCCL_MOST} bytes: larger calls are left to NCCL"
                    ));
                }
                rules.extend((rule.from_bytes <= NCCL_MOST).then_some(rule));
            }
            None => left(notes, "NCCL", collective, range),
        }
    }
    notes.push("the plugin takes ring and simple where no line matches, so stock cannot be expressed".to_owned());
    Ok(NcclRule::to_csv(&rules))
}

/// The rules of Open MPI. It takes the last rule whose communicator is not larger, and the first one if all are, so there are
/// rules for smaller and for larger ones too: its own choice, which is algorithm 0.
fn ompi(table: &TuningTable, notes: &mut Vec<String>) -> String {
    let named = named(table);
    let ranks = table.key.ranks;
    let mut sections: Vec<String> = Vec::new();
    for cell in &table.cells {
        for (number, name, algorithms) in ompi_numbers(cell.collective) {
            let mut lines: Vec<(u64, u32)> = Vec::new();
            for of in named.iter().filter(|of| of.collective == cell.collective) {
                let known = of.algorithm.and_then(|algorithm| counterpart(algorithms, algorithm));
                if known.is_none() {
                    left(notes, "Open MPI", format!("MPI's {name}"), of.range);
                }
                let known = known.unwrap_or(0);
                if lines.last().is_none_or(|(_, last)| *last != known) {
                    lines.push((of.range.from_bytes, known));
                }
            }
            let own = vec![(0, 0)];
            let sizes = [(1, &own), (ranks, &lines), (ranks + 1, &own)];
            let sizes = &sizes[usize::from(ranks == 1)..];
            let mut section = format!("{number} # {name}\n{} # communicator sizes\n", sizes.len());
            for (ranks, lines) in sizes {
                let _ =
                    writeln!(section, "{ranks} # ranks\n{} # sizes: bytes, algorithm, fan-out, segment", lines.len());
                lines.iter().for_each(|(from, algorithm)| section.push_str(&format!("{from} {algorithm} 0 0\n")));
            }
            sections.push(section);
        }
    }
    notes.push("Open MPI uses the rules for every communicator of so many ranks, wherever its ranks are".to_owned());
    let differs = |collective| match collective {
        Collective::Gather | Collective::Scatter | Collective::ReduceScatter => true,
        Collective::AllGather | Collective::AllReduce | Collective::AllToAll | Collective::AllToAllV => false,
        Collective::Broadcast | Collective::Reduce | Collective::SendRecv | Collective::Custom => false,
    };
    if table.cells.iter().any(|cell| differs(cell.collective)) {
        notes.push(
            "what Open MPI takes for the size of gather, scatter and reduce_scatter differs between its versions"
                .to_owned(),
        );
    }
    format!("{} # collectives\n{}", sections.len(), sections.concat())
}

/// The string of UCC. Both ends of its ranges belong to them, and they must not be one size.
fn ucc(table: &TuningTable, notes: &mut Vec<String>) -> String {
    let mut parts: Vec<String> = Vec::new();
    for NamedRange { collective, range, algorithm } in named(table) {
        let named = || {
            let (name, algorithms) = ucc_names(collective)?;
            Some((name, counterpart(algorithms, algorithm?)?))
        };
        let Some((name, algorithm)) = named() else {
            left(notes, "UCC", collective, range);
            continue;
        };
        let (from, last) = (range.from_bytes, range.to_bytes.map(|end| end - 1));
        if last == Some(from) {
            notes.push(format!("UCC has no ranges of one size: it chooses itself for {collective} of {from} bytes"));
            continue;
        }
        if algorithm == KNOMIAL || algorithm == SRA_KNOMIAL {
            let variable = format!("{name}_{}", if algorithm == KNOMIAL { "KN" } else { "SRA_KN" }).to_uppercase();
            notes.push(format!("what was measured is UCC's `{algorithm}` with UCC_TL_UCP_{variable}_RADIX=2"));
        }
        let (last, ranks) = (last.map_or_else(|| "inf".to_owned(), |last| last.to_string()), table.key.ranks);
        parts.push(format!("{name}:{from}-{last}:host:[{ranks}-{ranks}]:inf:@{algorithm}"));
    }
    notes.push("UCC uses them for every team of so many ranks, wherever its ranks are".to_owned());
    parts.join("#") + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::TableKey;
    use crate::store::TableCell;
    use serde_json::json;

    /// A plan has the name of a textbook algorithm and is none; another one is a choice for NCCL.
    fn table() -> TuningTable {
        let range = ChoiceRange::unmeasured;
        let cell = |collective| {
            let ranges = vec![
                range(0, Some(100), None),
                range(100, Some(200), Some("named")),
                range(200, Some(5 << 30), Some("nccl")),
                range(5 << 30, None, Some("nccl")),
            ];
            TableCell::of_any(collective, ranges)
        };
        let named = json!({ "produced_by": { "strategy": "classic/ring", "version": env!("CARGO_PKG_VERSION") } });
        let nccl = json!({ "format": "antiphon-nccl/1", "algorithm": "ring", "protocol": "ll" });
        TuningTable::new(
            TableKey::of(vec![0, 0, 1, 1], ""),
            vec![cell(Collective::AllReduce), cell(Collective::AllToAll)],
            [("named".to_owned(), named), ("nccl".to_owned(), nccl)].into(),
        )
    }

    /// NCCL's tuner is not asked about AllToAll, so a choice for NCCL there is told in a note, and our reader takes all lines.
    #[test]
    fn lines_for_nccl_are_those_that_its_tuner_reads() {
        let ExportedTable { text, notes } = export(&table(), ExportTarget::NcclCsv, "t").unwrap();
        let lines: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
        assert_eq!(lines, ["allreduce,200,4294967295,ring,ll,-1,2,4,-1,-1"]);
        assert_eq!(NcclRule::read_csv(&text, "t").unwrap().len(), 1, "{text}");
        for expected in ["`nccl` of alltoall", "`named` of allreduce", "no line for NCCL can name more than 4294967295"]
        {
            assert!(notes.iter().any(|note| note.contains(expected)), "{expected}: {notes:?}");
        }
        assert!(!notes.iter().any(|note| note.contains("`nccl` of allreduce")), "{notes:?}");
    }

    #[test]
    fn a_name_alone_is_not_told_to_other_libraries() {
        assert_eq!(export(&table(), ExportTarget::Ucc, "t").unwrap().text.trim(), "");
        let rules = export(&table(), ExportTarget::OmpiRules, "t").unwrap().text;
        let lines = rules.lines().filter(|line| line.split(' ').count() == 4 && !line.contains('#'));
        assert!(lines.clone().count() == 6 && lines.clone().all(|line| line == "0 0 0 0"), "{rules}");
    }
}

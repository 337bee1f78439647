//! Choices of a table in the formats of other libraries.
//!
//! The principal function is [`export`]. Other libraries have algorithms of their own and know no plans, so only a textbook
//! algorithm that they have too can be named to them. All else is left to their own choice, and a note says so.

use crate::files::TableError;
use crate::nccl::{NcclAlgorithm, NcclChoice, NcclProtocol, NcclRule};
use crate::store::{ChoiceRange, TuningTable};
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

/// The algorithm of a plan, without the name of the strategy `classic`; `None` if it is no textbook algorithm.
fn algorithm<'a>(table: &'a TuningTable, range: &ChoiceRange) -> Option<&'a str> {
    let plan = table.plans.get(range.plan.as_ref()?)?;
    plan.get("produced_by")?.get("strategy")?.as_str()?.strip_prefix("classic/")
}

/// What another library has for some textbook algorithms, by their names.
type Counterparts<T> = &'static [(&'static str, T)];

fn counterpart<T: Copy>(counterparts: Counterparts<T>, algorithm: &str) -> Option<T> {
    counterparts.iter().find(|(name, _)| *name == algorithm).map(|(_, counterpart)| *counterpart)
}

/// Open MPI's number of a collective (the order of its enumeration), and of algorithms in it.
const fn ompi_numbers(collective: Collective) -> Option<(u32, Counterparts<u32>)> {
    Some(match collective {
        Collective::AllGather => (0, &[("bruck", 2), ("recursive-doubling", 3), ("ring", 4)]),
        Collective::AllReduce => (2, &[("doubling", 3), ("ring", 4)]),
        Collective::AllToAll => (3, &[("all-pairs", 1)]),
        Collective::Broadcast => (7, &[("binomial", 6)]),
        Collective::Gather => (9, &[("all-pairs", 1), ("binomial", 2)]),
        Collective::Reduce => (11, &[("binomial", 5)]),
        Collective::ReduceScatter => (12, &[("recursive-doubling", 2), ("ring", 3)]),
        Collective::Scatter => (15, &[("all-pairs", 1), ("binomial", 2)]),
        Collective::AllToAllV | Collective::SendRecv | Collective::Custom => return None,
    })
}

/// What UCC calls a collective, and algorithms of its `ucp` layer.
const fn ucc_names(collective: Collective) -> Option<(&'static str, Counterparts<&'static str>)> {
    Some(match collective {
        Collective::AllReduce => ("allreduce", &[("doubling", "knomial")]),
        Collective::AllGather => {
            ("allgather", &[("ring", "ring"), ("bruck", "bruck"), ("recursive-doubling", "knomial")])
        }
        Collective::AllToAll => ("alltoall", &[("all-pairs", "pairwise")]),
        Collective::Broadcast => ("bcast", &[("binomial", "knomial")]),
        Collective::Reduce => ("reduce", &[("binomial", "knomial")]),
        Collective::ReduceScatter => ("reduce_scatter", &[("ring", "ring"), ("recursive-doubling", "knomial")]),
        Collective::Gather => ("gather", &[("binomial", "knomial")]),
        Collective::Scatter => ("scatter", &[("binomial", "knomial")]),
        Collective::AllToAllV | Collective::SendRecv | Collective::Custom => return None,
    })
}

/// NCCL's counterparts of textbook algorithms.
const fn nccl_algorithms(collective: Collective) -> Counterparts<NcclAlgorithm> {
    match collective {
        Collective::AllReduce => &[("binomial", NcclAlgorithm::Tree), ("ring", NcclAlgorithm::Ring)],
        Collective::AllGather | Collective::ReduceScatter => &[("ring", NcclAlgorithm::Ring)],
        Collective::Broadcast | Collective::Reduce => &[("chain", NcclAlgorithm::Ring)],
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
fn left(notes: &mut Vec<String>, who: &str, collective: Collective, range: &ChoiceRange) {
    if let Some(plan) = &range.plan {
        notes.push(format!("{who} has no counterpart of the plan `{plan}` of {collective}, and chooses itself there"));
    }
}

fn nccl(table: &TuningTable, notes: &mut Vec<String>, origin: &str) -> Result<String, TableError> {
    let mut rules = Vec::new();
    for (collective, range) in table.ranges() {
        let chosen = NcclChoice::of_range(table, range, origin)?;
        let unmeasured = || {
            let algorithm = counterpart(nccl_algorithms(collective), algorithm(table, range)?)?;
            notes.push(
                "protocols and channels of schedules were not measured: their lines say `simple`, and leave channels to NCCL"
                    .to_owned(),
            );
            // The plan says nothing of protocols and channels.
            Some(NcclChoice { algorithm, protocol: NcclProtocol::Simple, channels: None })
        };
        let choice = chosen.or_else(unmeasured).filter(|_| range.from_bytes <= NCCL_MOST);
        match choice.and_then(|choice| NcclRule::of_range(table, collective, range, choice)) {
            Some(mut rule) => {
                if rule.last_bytes > NCCL_MOST {
                    rule.last_bytes = NCCL_MOST;
                    notes.push(format!("a line for NCCL ends at {NCCL_MOST} bytes"));
                }
                rules.push(rule);
            }
            None => left(notes, "NCCL", collective, range),
        }
    }
    notes.push("the plugin takes ring and simple where no line matches, so stock cannot be expressed".to_owned());
    Ok(NcclRule::to_csv(&rules))
}

fn ompi(table: &TuningTable, notes: &mut Vec<String>) -> String {
    let cells: Vec<_> = table.cells.iter().filter_map(|cell| Some((ompi_numbers(cell.collective)?, cell))).collect();
    let mut text = format!("{} # collectives\n", cells.len());
    for ((number, algorithms), cell) in cells {
        let mut lines: Vec<(u64, u32)> = Vec::new();
        for range in &cell.ranges {
            let known = algorithm(table, range).and_then(|algorithm| counterpart(algorithms, algorithm));
            if known.is_none() {
                left(notes, "Open MPI", cell.collective, range);
            }
            // Its own choice is algorithm 0.
            let known = known.unwrap_or(0);
            if lines.last().is_none_or(|(_, last)| *last != known) {
                lines.push((range.from_bytes, known));
            }
        }
        let _ = writeln!(text, "{number} # {}\n1 # communicator sizes", cell.collective);
        let _ =
            writeln!(text, "{} # ranks\n{} # sizes: bytes, algorithm, fan-out, segment", table.key.ranks, lines.len());
        for (from, algorithm) in lines {
            let _ = writeln!(text, "{from} {algorithm} 0 0");
        }
    }
    notes.push(
        "Open MPI uses the rules for every communicator of at least so many ranks, wherever its ranks are".to_owned(),
    );
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
    text
}

fn ucc(table: &TuningTable, notes: &mut Vec<String>) -> String {
    let mut parts = Vec::new();
    for (collective, range) in table.ranges() {
        let named = || {
            let (name, algorithms) = ucc_names(collective)?;
            Some((name, counterpart(algorithms, algorithm(table, range)?)?))
        };
        match named() {
            Some((name, algorithm)) => {
                let end = range.to_bytes.map_or_else(|| "inf".to_owned(), |end| end.to_string());
                let (from, ranks) = (range.from_bytes, table.key.ranks);
                parts.push(format!("{name}:{from}-{end}:host:[{ranks}-{ranks}]:inf:@{algorithm}"));
            }
            None => left(notes, "UCC", collective, range),
        }
    }
    notes.push("UCC uses them for every team of so many ranks, wherever its ranks are".to_owned());
    parts.join("#") + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{TableCell, TableKey};
    use serde_json::json;

    /// All textbook algorithms that tables contain, and one that only this project has.
    fn table() -> TuningTable {
        let range = ChoiceRange::unmeasured;
        let cell = |collective, first: &str, second: &str| {
            let ranges = vec![
                range(0, Some(100), None),
                range(100, Some(200), Some(first)),
                range(200, Some(300), Some(second)),
                range(300, None, None),
            ];
            TableCell { collective, ranges, functions: Vec::new() }
        };
        let plan = |name: &str, strategy: &str| (name.to_owned(), json!({ "produced_by": { "strategy": strategy } }));
        TuningTable {
            format: TuningTable::FORMAT.to_owned(),
            key: TableKey { ranks: 4, machines: vec![0, 0, 1, 1], topology: None, version: String::new(), policy: 1 },
            cells: vec![
                cell(Collective::AllReduce, "d", "r"),
                cell(Collective::AllGather, "m", "r"),
                cell(Collective::ReduceScatter, "r", "r"),
            ],
            plans: [plan("d", "classic/doubling"), plan("r", "classic/ring"), plan("m", "milp")].into(),
        }
    }

    /// What a reader of the rules would choose, as Open MPI documents them: the last line whose size is not larger.
    fn rule(text: &str, collective: u64, bytes: u64) -> Option<u64> {
        let tokens: Vec<u64> = text
            .lines()
            .flat_map(|line| line.split('#').next().unwrap_or_default().split_whitespace())
            .map(|token| token.parse().unwrap())
            .collect();
        let mut tokens = tokens.into_iter();
        let mut next = || tokens.next().unwrap();
        let mut found = None;
        for _ in 0..next() {
            let number = next();
            for _ in 0..next() {
                assert_eq!(next(), 4, "ranks");
                for _ in 0..next() {
                    let (from, algorithm) = (next(), next());
                    assert_eq!((next(), next()), (0, 0));
                    if number == collective && from <= bytes {
                        found = Some(algorithm);
                    }
                }
            }
        }
        assert_eq!(tokens.next(), None, "nothing is left");
        found
    }

    #[test]
    fn rules_of_open_mpi_choose_as_the_table_at_every_edge() {
        let ExportedTable { text, notes } = export(&table(), ExportTarget::OmpiRules, "t").unwrap();
        let of = |collective, sizes: [u64; 6]| sizes.map(|bytes| rule(&text, collective, bytes).unwrap());
        let sizes = [0, 99, 100, 200, 299, 300];
        assert_eq!(of(2, sizes), [0, 0, 3, 4, 4, 0]);
        assert_eq!(of(0, sizes), [0, 0, 0, 4, 4, 0]);
        assert_eq!(of(12, sizes), [0, 0, 3, 3, 3, 0]);
        assert!(notes.iter().any(|note| note.contains("`m`")) && rule(&text, 7, 100).is_none());
    }

    #[test]
    fn lines_for_nccl_are_disjoint_and_inclusive() {
        let mut table = table();
        table.cells[1].ranges[3].plan = Some("r".to_owned());
        let ExportedTable { text, notes } = export(&table, ExportTarget::NcclCsv, "t").unwrap();
        let lines: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
        let expected = [
            "allreduce,200,299,ring,simple,-1,2,4,-1,-1",
            "allgather,200,299,ring,simple,-1,2,4,-1,-1",
            "allgather,300,4294967295,ring,simple,-1,2,4,-1,-1",
            "reducescatter,100,199,ring,simple,-1,2,4,-1,-1",
            "reducescatter,200,299,ring,simple,-1,2,4,-1,-1",
        ];
        assert_eq!(lines, expected);
        for word in ["`d`", "`m`", "4294967295", "stock cannot"] {
            assert!(notes.iter().any(|note| note.contains(word)), "{word}: {notes:?}");
        }
    }

    /// NCCL's tuner is not asked about AllToAll, so a choice for NCCL there is told in a note, and our reader takes all lines.
    #[test]
    fn lines_for_nccl_are_those_that_its_tuner_reads() {
        let mut table = table();
        table.cells[1].collective = Collective::AllToAll;
        table
            .plans
            .insert("m".to_owned(), json!({ "format": "antiphon-nccl/1", "algorithm": "ring", "protocol": "ll" }));
        let ExportedTable { text, notes } = export(&table, ExportTarget::NcclCsv, "t").unwrap();
        assert_eq!(NcclRule::read_csv(&text, "t").unwrap().len(), 3, "{text}");
        assert!(notes.iter().any(|note| note.contains("`m` of alltoall")), "{notes:?}");
    }

    #[test]
    fn the_string_of_ucc_names_only_what_it_has() {
        let ExportedTable { text, notes } = export(&table(), ExportTarget::Ucc, "t").unwrap();
        let expected = [
            "allreduce:100-200:host:[4-4]:inf:@knomial",
            "allgather:200-300:host:[4-4]:inf:@ring",
            "reduce_scatter:100-200:host:[4-4]:inf:@ring",
            "reduce_scatter:200-300:host:[4-4]:inf:@ring",
        ];
        assert_eq!(text.trim_end(), expected.join("#"));
        assert!(notes.iter().any(|note| note.contains("`r` of allreduce")), "{notes:?}");
    }
}

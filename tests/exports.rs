//! Tables for other libraries: what readers that follow the sources of these libraries would choose, against the table.

use schedule::{Collective, Demand, ReduceOp, Request, file, verify};
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::Arc;
use synth::Problem;
use topology::Rank;
use tune::{ChoiceRange, ExportTarget, TableCell, TableKey, TuningTable, export};

/// Calls of MPI that an AllReduce, and so on, of ours serves, by Open MPI's numbers.
const CALLS: [(Collective, &[u64]); 8] = [
    (Collective::AllGather, &[0]),
    (Collective::AllReduce, &[2]),
    (Collective::AllToAll, &[3]),
    (Collective::Broadcast, &[7]),
    (Collective::Gather, &[9]),
    (Collective::Reduce, &[11]),
    (Collective::ReduceScatter, &[12, 13]),
    (Collective::Scatter, &[15]),
];

/// What each library calls a textbook algorithm: Open MPI's number for a call, UCC's name, whether NCCL runs it as a ring. Libraries
/// differ in what they do with ranks beyond a power of two.
fn known(call: u64, strategy: &str, ranks: u64) -> (u64, Option<&'static str>, bool) {
    let is_even = ranks.is_power_of_two();
    match (call, strategy) {
        (0, "ring") => (4, Some("ring"), true),
        (0, "bruck") => (2, Some("bruck"), false),
        (0, "recursive-doubling") if is_even => (3, Some("knomial"), false),
        (2, "ring") => (4, None, true),
        (2, "tree/rooted") => (1, None, false),
        (2, "doubling") if is_even => (3, Some("knomial"), false),
        (2, "recursive-doubling") if is_even => (6, Some("sra_knomial"), false),
        (3, "all-pairs" | "tree") => (1, Some("pairwise"), false),
        (7 | 9 | 11 | 15, "all-pairs" | "tree") => (1, None, false),
        (7 | 11, "chain") => (3, None, true),
        (7, "binomial") => (6, Some("knomial"), false),
        (11, "binomial") => (5, Some("knomial"), false),
        (9 | 15, "binomial") => (2, Some("knomial"), false),
        (12, "ring") => (3, Some("ring"), true),
        (13, "ring") => (0, Some("ring"), true),
        (12, "recursive-doubling") if is_even => (2, Some("knomial"), false),
        (13, "recursive-doubling") if is_even => (3, Some("knomial"), false),
        _ => (0, None, false),
    }
}

/// Every textbook plan of a collective among ranks that all have links to each other, by its strategy.
fn textbook(collective: Collective, ranks: usize) -> Vec<(String, Value)> {
    let topology = Arc::new(topology::resolve(&format!("clique:{ranks}")).unwrap());
    let mut request = Request::new(collective, ranks, 64 << 10);
    request.root = collective.is_rooted().then_some(Rank(0));
    request.op = collective.combines().then_some(ReduceOp::Sum);
    let problem = Problem::new(topology.clone(), Arc::new(Demand::new(request).unwrap()));
    let plans = synth::textbook(&problem).unwrap().into_iter().map(|schedule| {
        let strategy = schedule.produced_by.strategy.strip_prefix("classic/").unwrap().to_owned();
        let mut text = Vec::new();
        file::write(&verify(schedule, &topology).unwrap(), &mut text).unwrap();
        (strategy, serde_json::from_slice(&text).unwrap())
    });
    plans.collect()
}

/// The same numbers for the same seed.
struct SeededNumbers(u64);

impl SeededNumbers {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 20) % end
    }

    /// Of all lengths alike, up to a terabyte.
    fn size(&mut self) -> u64 {
        let bits = self.below(41);
        self.below(1 << bits)
    }
}

/// A table of all collectives with random edges, in which every textbook plan has a range, and stock has some.
fn table(ranks: usize, numbers: &mut SeededNumbers) -> TuningTable {
    let mut plans = BTreeMap::new();
    let cells = CALLS.map(|(collective, _)| {
        let mut names: Vec<Option<String>> = vec![None];
        for (strategy, plan) in textbook(collective, ranks) {
            let name = format!("{collective} {strategy}");
            plans.insert(name.clone(), plan);
            names.extend([Some(name), None]);
        }
        let mut edges: Vec<u64> = names.iter().skip(1).map(|_| 1 + numbers.size()).collect();
        // Neighbours: a range of one size.
        edges[1] = edges[0] + 1;
        edges.sort_unstable();
        edges.dedup();
        let mut ranges: Vec<ChoiceRange> = Vec::new();
        for (index, end) in edges.iter().copied().map(Some).chain([None]).enumerate() {
            let (from_bytes, plan) = (ranges.last().map_or(0, |last| last.to_bytes.unwrap()), names[index].clone());
            ranges.push(ChoiceRange { from_bytes, to_bytes: end, plan, evidence: Vec::new() });
        }
        TableCell::of_any(collective, ranges)
    });
    let (version, machines) = (env!("CARGO_PKG_VERSION").to_owned(), vec![0; ranks]);
    let key = TableKey::of(machines, version);
    let table = TuningTable::new(key, cells.into(), plans);
    table.check().unwrap();
    table
}

/// Open MPI's reader (`coll_tuned_dynamic_file.c`, `coll_tuned_dynamic_rules.c`): by call, by size of the communicator, by size.
struct OmpiReader(BTreeMap<u64, Vec<(u64, OmpiSizes)>>);

/// From which size on which algorithm.
type OmpiSizes = Vec<(u64, u64)>;

impl OmpiReader {
    fn new(text: &str) -> Self {
        let lines = text.lines().map(|line| line.split('#').next().unwrap());
        let mut numbers = lines.flat_map(str::split_whitespace).map(|number| number.parse::<u64>().unwrap());
        let mut next = || numbers.next().unwrap();
        let mut calls = BTreeMap::new();
        for _ in 0..next() {
            let mut communicators = Vec::new();
            let call = next();
            for _ in 0..next() {
                let ranks = next();
                let sizes = (0..next()).map(|_| {
                    let rule = (next(), next());
                    assert_eq!([next(), next()], [0, 0]);
                    rule
                });
                communicators.push((ranks, sizes.collect()));
            }
            assert!(calls.insert(call, communicators).is_none());
        }
        assert_eq!(numbers.next(), None, "nothing is left");
        Self(calls)
    }

    /// Of rules in ascending order, the last one that is not larger counts; if all are, the first one.
    fn last<T>(rules: &[(u64, T)], value: u64) -> &T {
        let after = rules.iter().take_while(|(from, _)| *from <= value).count();
        &rules[after.saturating_sub(1)].1
    }

    fn find(&self, call: u64, ranks: u64, bytes: u64) -> u64 {
        self.0.get(&call).map_or(0, |rules| {
            let sizes: &OmpiSizes = Self::last(rules, ranks);
            *Self::last(sizes, bytes)
        })
    }
}

/// UCC's reader (`ucc_coll_score.c`, `ucc_coll_score_map.c`): both ends of a range belong to it.
fn ucc_find(text: &str, name: &str, ranks: u64, bytes: u64) -> Option<String> {
    let pair = |text: &str| -> [u64; 2] {
        let (from, to) = text.split_once('-').unwrap();
        [from, to].map(|end| if end == "inf" { u64::MAX } else { end.parse().unwrap() })
    };
    let mut found = Vec::new();
    for entry in text.trim().split('#').filter(|entry| !entry.is_empty()) {
        let fields: Vec<&str> = entry.split(':').collect();
        let [call, sizes, "host", team, "inf", algorithm] = fields[..] else { panic!("{entry}") };
        let ([from, last], [least, most]) = (pair(sizes), pair(team.trim_matches(['[', ']'])));
        assert!(from < last, "UCC refuses the whole string: {entry}");
        let is_it = call == name && (least..=most).contains(&ranks) && (from..=last).contains(&bytes);
        found.extend(is_it.then(|| algorithm.strip_prefix('@').unwrap().to_owned()));
    }
    assert!(found.len() < 2, "{name} of {bytes} bytes has two");
    found.pop()
}

/// NVIDIA's example plugin: the first line that holds the size; both ends belong to it.
fn nccl_find(text: &str, name: &str, ranks: u64, bytes: u64) -> Option<String> {
    let lines = text.lines().filter(|line| !line.starts_with('#')).map(|line| line.split(',').collect::<Vec<_>>());
    let mut found = lines.filter(|of| {
        let number = |at: usize| of[at].parse::<u64>().unwrap();
        assert!(number(2) <= u64::from(u32::MAX), "{of:?}");
        of[0] == name && number(7) == ranks && (number(1)..=number(2)).contains(&bytes)
    });
    let first = found.next().map(|of| of[3].to_owned());
    assert!(found.next().is_none(), "{name} of {bytes} bytes has two");
    first
}

fn ucc_name(call: u64) -> &'static str {
    [
        "allgather",
        "",
        "allreduce",
        "alltoall",
        "",
        "",
        "",
        "bcast",
        "",
        "gather",
        "",
        "reduce",
        "reduce_scatter",
        "reduce_scatter",
        "",
        "scatter",
    ][call as usize]
}

#[test]
fn readers_of_other_libraries_choose_what_the_table_chooses() {
    let mut numbers = SeededNumbers(16);
    let mut told = [0; 3];
    for ranks in [3_u64, 4, 8] {
        let table = table(ranks as usize, &mut numbers);
        let text = |target| export(&table, target, "t").unwrap().text;
        let [rules, string, lines] = [ExportTarget::OmpiRules, ExportTarget::Ucc, ExportTarget::NcclCsv].map(text);
        let reader = OmpiReader::new(&rules);
        // Every edge, one byte less and one more, and random sizes.
        let around = |edge: u64| [edge.saturating_sub(1), edge, edge.saturating_add(1)];
        let edges = |cell: &TableCell| cell.ranges.iter().flat_map(|of| around(of.from_bytes)).collect::<Vec<_>>();
        for cell in &table.cells {
            let calls = CALLS.iter().find(|(of, _)| *of == cell.collective).unwrap().1;
            let mut sizes = edges(cell);
            sizes.extend([5 << 30, u64::from(u32::MAX), 1 << 32, u64::MAX]);
            sizes.extend((0..420).map(|_| numbers.size()));
            for (bytes, &call) in sizes.iter().flat_map(|bytes| calls.iter().map(move |call| (*bytes, call))) {
                let range = table.find(cell.collective, bytes).unwrap();
                let strategy = range.plan.as_ref().map_or("", |plan| plan.split_once(' ').unwrap().1);
                let (number, name, is_ring) = known(call, strategy, ranks);
                let what = format!("{} of {ranks} ranks, {bytes} bytes, `{strategy}`", cell.collective);
                assert_eq!(reader.find(call, ranks, bytes), number, "{what}");
                for others in [ranks - 1, ranks + 1, 2 * ranks, 1000] {
                    assert_eq!(reader.find(call, others, bytes), 0, "{what}: {others} ranks");
                    assert_eq!(ucc_find(&string, ucc_name(call), others, bytes), None, "{what}: {others} ranks");
                }
                let is_one_size = range.to_bytes == Some(range.from_bytes + 1);
                let name = name.filter(|_| !is_one_size);
                assert_eq!(ucc_find(&string, ucc_name(call), ranks, bytes).as_deref(), name, "{what}");
                let is_ring = is_ring && bytes <= u64::from(u32::MAX);
                let line = nccl_find(&lines, &cell.collective.to_string(), ranks, bytes);
                assert_eq!(line.as_deref(), is_ring.then_some("ring"), "{what}");
                let all = [number > 0, name.is_some(), is_ring];
                told.iter_mut().zip(all).for_each(|(count, is_told)| *count += u32::from(is_told));
            }
        }
    }
    assert!(told.iter().all(|count| *count > 500), "{told:?}");
}

/// A plan that has the name of another algorithm, of another version, or for other ranks, is left out.
#[test]
fn plans_that_are_not_what_they_say_are_not_told() {
    let ring = |ranks| textbook(Collective::AllGather, ranks).into_iter().find(|(name, _)| name == "ring").unwrap().1;
    let other = textbook(Collective::AllGather, 4).into_iter().find(|(name, _)| name == "bruck").unwrap().1;
    let changed = |change: fn(&mut Value)| {
        let mut plan = ring(4);
        change(&mut plan);
        plan
    };
    let renamed = {
        let mut plan = other;
        plan["produced_by"]["strategy"] = "classic/ring".into();
        plan
    };
    let table = |plan: Value| {
        let range = |from_bytes, to_bytes, plan: Option<&str>| ChoiceRange {
            from_bytes,
            to_bytes,
            plan: plan.map(str::to_owned),
            evidence: Vec::new(),
        };
        let ranges = vec![range(0, Some(64), None), range(64, None, Some("p"))];
        let (version, machines) = (env!("CARGO_PKG_VERSION").to_owned(), vec![0; 4]);
        TuningTable::new(
            TableKey::of(machines, version),
            vec![TableCell::of_any(Collective::AllGather, ranges)],
            [("p".to_owned(), plan)].into(),
        )
    };
    let named = |plan: Value| ucc_find(&export(&table(plan), ExportTarget::Ucc, "t").unwrap().text, "allgather", 4, 64);
    assert_eq!(named(ring(4)).as_deref(), Some("ring"));
    for (what, plan) in [
        ("a name of another algorithm", renamed),
        ("other ranks", ring(6)),
        ("another version", changed(|plan| plan["produced_by"]["version"] = "0.0.9".into())),
        ("a message less", changed(|plan| drop(plan["transfers"].as_array_mut().unwrap().pop()))),
        ("another way", changed(|plan| plan["transfers"][0]["to"] = 3.into())),
    ] {
        assert_eq!(named(plan), None, "{what}");
    }
}

//! A table that was tuned between unequal hosts, next to the best stock algorithm: every textbook algorithm of ours, Open MPI's,
//! by its own choice and forced, and Gloo's.
//!
//! `make cluster-tuned` asks for the bars, on a computer that does nothing else: at least 1.2 times as fast in 30 % of the cells of
//! unequal hosts, and nowhere more than 5 % slower. In `make cluster-test` other programs may run beside it, so there the table
//! only has to be right, and not slower by far.

use crate::fabric::{Cluster, Guest, Place, Spec};
use crate::noise::{check, right_in_three};
use crate::ours::{Plan, start};
use crate::peers::{Cell, Peers, ROUNDS, Times};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

/// The α of a message over TCP between two hosts, for the plans.
const ALPHA: Duration = Duration::from_micros(100);
/// How long a job may take.
const PATIENCE: Duration = Duration::from_secs(900);
/// About how many seconds other libraries measure a cell, and each of their algorithms.
const SECONDS: [f64; 2] = [1.0, 0.05];
/// A cell counts as won if the table is so many times as fast as the best stock algorithm.
const WON: f64 = 1.2;

struct Effort {
    shapes: Vec<(&'static str, Spec, bool)>,
    collectives: &'static [&'static str],
    sizes: &'static [u64],
    budget: u32,
    /// Times of each candidate in the launch that judges.
    samples: usize,
    is_quiet: bool,
}

impl Effort {
    fn of_environment() -> Self {
        let unequal = |name, spec: Spec| (name, spec, true);
        match std::env::var("ANTIPHON_TEST_EFFORT").as_deref() {
            Ok("quiet") => Self {
                shapes: vec![
                    unequal("800, 800, 400, 200 Mbit/s", Spec::star(&[800, 800, 400, 200])),
                    unequal("500, 500, 500, 125 Mbit/s", Spec::star(&[500, 500, 500, 125])),
                    unequal("two racks of 500 Mbit/s behind 100", Spec::racks(2, 2, 500, 100)),
                    ("four of 500 Mbit/s", Spec::star(&[500; 4]), false),
                ],
                collectives: &["allreduce", "allgather", "reducescatter", "alltoall", "broadcast"],
                sizes: &[64 << 10, 1 << 20],
                budget: 60,
                samples: 10,
                is_quiet: true,
            },
            _ => Self {
                shapes: vec![unequal("200, 200, 50 Mbit/s", Spec::star(&[200, 200, 50]))],
                collectives: &["allgather"],
                sizes: &[256 << 10],
                budget: 5,
                samples: 4,
                is_quiet: false,
            },
        }
    }

    fn cells(&self) -> Vec<Cell> {
        self.collectives.iter().flat_map(|of| self.sizes.iter().map(move |size| (*of, *size))).collect()
    }
}

/// The lines of all candidates, from a job that must succeed everywhere.
fn tune(place: Place<'_>, line: &str, samples: &Path) -> Vec<Value> {
    let guests: Vec<Guest> = start(place, &format!("{line} --timeout 30s --samples {}", samples.display()));
    let ended: Vec<_> = guests.into_iter().map(|guest| guest.wait(PATIENCE)).collect();
    ended.into_iter().for_each(|ended| drop(ended.ok()));
    let text = std::fs::read_to_string(samples).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The median of the times that decide in a cell, of all candidates that were not refused.
fn times(lines: &[Value], (collective, bytes): (&str, u64)) -> BTreeMap<String, f64> {
    let near = |line: &Value| line["bytes"].as_u64().unwrap().abs_diff(bytes) < 64;
    let of = || lines.iter().filter(|line| line["collective"] == collective && near(line) && line["refusal"].is_null());
    let list = |line: &Value, key: &str| -> Vec<f64> {
        line[key].as_array().unwrap().iter().filter_map(Value::as_f64).collect()
    };
    let by_span = of().all(|line| list(line, "spans_us").len() as u64 >= line["invalid"].as_u64().unwrap());
    let time = |line: &Value| {
        let mut times = list(line, if by_span { "spans_us" } else { "loops_us" });
        times.sort_by(f64::total_cmp);
        let time = times.get(times.len() / 2).copied().or(line["look_us"].as_f64())?;
        Some((line["name"].as_str().unwrap().to_owned(), time))
    };
    of().filter_map(time).collect()
}

/// What a table chooses, without functions.
fn chosen(table: &Value, (collective, bytes): (&str, u64)) -> String {
    let cells = table["cells"].as_array().unwrap();
    let ranges = cells.iter().find(|cell| cell["collective"] == collective).unwrap()["ranges"].as_array().unwrap();
    let measured = |range: &&Value| {
        let evidence = range["evidence"].as_array().unwrap();
        evidence.iter().any(|of| of["bytes"].as_u64().unwrap().abs_diff(bytes) < 64)
    };
    ranges.iter().find(measured).unwrap()["plan"].as_str().unwrap_or("stock").to_owned()
}

/// A textbook algorithm of ours beside the table's choice, as one launch has measured both.
struct OwnTimes<'a> {
    choice_us: f64,
    textbook: (&'a str, f64),
}

/// The least times of other libraries.
fn theirs(peers: &Peers, place: Place<'_>, cells: &[Cell]) -> Times {
    let mut least = Times::new();
    let mut add = |times: Times| {
        for (cell, time) in times {
            least.entry(cell).and_modify(|best| *best = best.min(time)).or_insert(time);
        }
    };
    add(peers.open_mpi(place, cells, SECONDS[0], None));
    (1..=ROUNDS).for_each(|round| add(peers.open_mpi(place, cells, SECONDS[1], Some(round))));
    add(peers.gloo(place, cells, SECONDS[0]));
    least
}

/// By which factor the table is faster in a cell.
struct Gain {
    /// Than the best textbook algorithm of ours, by the times of one launch. Chains and rings of ours are ordered by the rates of
    /// hosts, which is measured when ranks join.
    ours: f64,
    /// Than the best algorithm of other libraries, where there are any. All are measured in the same way: Open MPI and our library in
    /// the same program.
    theirs: Option<f64>,
}

impl Gain {
    /// Than the best of all.
    fn least(&self) -> f64 {
        self.theirs.map_or(self.ours, |theirs| theirs.min(self.ours))
    }
}

/// By which factor the table is faster than stock algorithms, in each cell.
fn gains(shape: &str, spec: &Spec, effort: &Effort, peers: &Peers, folder: &Path) -> Option<Vec<Gain>> {
    let cluster = Cluster::or_skip(spec)?;
    let place = Place::Hosts(&cluster, 1);
    let (plans, cells) = (folder.join("plans"), effort.cells());
    std::fs::create_dir_all(&plans).unwrap();
    let topology = spec.topology(1, ALPHA);
    cells.iter().for_each(|cell| drop(Plan::make(&topology, *cell, &plans)));
    let list = |words: Vec<String>| words.join(",");
    let collectives = list(effort.collectives.iter().map(|&of| of.to_owned()).collect());
    let sizes = list(effort.sizes.iter().map(u64::to_string).collect());
    let (plans_at, table) = (plans.display().to_string(), folder.join("table.json"));
    let line = format!("tune --collective {collectives} --sizes {sizes} --plans {plans_at}");
    let first = format!("{line} --budget {}s -o {}", effort.budget, table.display());
    tune(place, &first, &folder.join("first.jsonl"));
    // Variants of plans compete only where they are asked for, so the table is asked for as well.
    let judge = format!("{line},{} --least-samples {} -o", table.display(), effort.samples);
    let judge = format!("{judge} {}", folder.join("judge.json").display());
    let lines = tune(place, &judge, &folder.join("judge.jsonl"));
    let program = peers.ours(place, &cells, SECONDS[0], &table);
    let theirs = if effort.is_quiet { theirs(peers, place, &cells) } else { Times::new() };
    let table_at = table.display().to_string();
    let table: Value = serde_json::from_str(&std::fs::read_to_string(&table).unwrap()).unwrap();
    let gain = |cell: &Cell| {
        let (name, times) = (chosen(&table, *cell), times(&lines, *cell));
        let (collective, bytes) = *cell;
        let shown = name.replace(&plans_at, "the plans");
        let Some(OwnTimes { choice_us, textbook }) = own_times(&name, &times, [&plans_at, &table_at]) else {
            println!("{shape}: {collective} {bytes}: {shown}, which did not compete in the launch that judges");
            return None;
        };
        // In the same program as Open MPI, if there is one.
        let own = program.as_ref().map(|times| times[cell]);
        let others = theirs.get(cell).zip(own);
        let gain = Gain { ours: textbook.1 / choice_us, theirs: others.map(|(theirs, own)| theirs / own) };
        let others = others.map_or(String::new(), |(theirs, own)| {
            format!("; in a program {own:.0} µs, another library {theirs:.0} µs: {:.2}×", theirs / own)
        });
        println!(
            "{shape}: {collective} {bytes}: {shown}, {choice_us:.0} µs; {}, {:.0} µs: {:.2}×{others}",
            textbook.0, textbook.1, gain.ours
        );
        Some(gain)
    };
    let gains: Vec<Gain> = cells.iter().filter_map(gain).collect();
    assert!(4 * gains.len() >= 3 * cells.len(), "only {} of {} choices competed again", gains.len(), cells.len());
    Some(gains)
}

/// The times of a choice and of the best textbook algorithm, which is no plan of these files, and is not made of them; `None` if the
/// choice did not compete.
fn own_times<'a>(name: &str, times: &'a BTreeMap<String, f64>, files: [&str; 2]) -> Option<OwnTimes<'a>> {
    let is_textbook = |name: &str| files.iter().all(|file| !name.contains(file)) && !name.starts_with("chosen ");
    let textbook = times.iter().filter(|(name, _)| is_textbook(name));
    let (best, least) = textbook.min_by(|one, other| one.1.total_cmp(other.1)).unwrap();
    // A plan of the table, which competes there, may be called by its file.
    let is_of_table = |(of, _): &(&String, &f64)| of.ends_with(&format!("plan `{name}`"));
    let choice_us = *times.get(name).or(times.iter().find(is_of_table).map(|(_, time)| time))?;
    Some(OwnTimes { choice_us, textbook: (best, *least) })
}

/// Between hosts, MPI may have a faster network than TCP. Without a table, all calls are MPI's, and with one of other ranks too.
#[test]
fn mpi_programs_between_hosts_are_served_by_tables_for_them_only() {
    let folder = tempfile::tempdir().unwrap();
    let peers = Peers::prepare(folder.path());
    let cells = [("allreduce", 1000), ("broadcast", 1000)];
    let at = |name: &str| folder.path().join(name);
    let line = "tune --collective allreduce --sizes 1000 --budget 1s --launches 1 -o";
    for (hosts, table) in [(2, at("two.json")), (3, at("three.json"))] {
        let Some(cluster) = Cluster::or_skip(&Spec::star(&vec![200; hosts])) else { return };
        let place = Place::Hosts(&cluster, 1);
        let told = |table: &Path| peers.interposed(place, &cells, 0.01, table).map(|ended| ended.stderr);
        let Some(unset) = told(Path::new("")) else {
            return crate::binary::skip("MPI programs between hosts: there is no MPI");
        };
        assert!(unset.contains("all calls go to MPI: the ranks are on several machines, and neither"), "{unset}");
        // Of two ranks, where there are three.
        let other = told(&at("two.json")).unwrap();
        let expected = "all calls go to MPI: the ranks are on several machines, and there is no table for them";
        assert!(other.contains(expected), "{other}");
        tune(place, &format!("{line} {}", table.display()), &at(&format!("{hosts}.jsonl")));
        peers.ours(place, &cells, 0.01, &table).unwrap();
    }
}

#[test]
fn long_what_was_tuned_between_unequal_hosts_is_not_slower_than_stock() {
    let effort = Effort::of_environment();
    let folder = tempfile::tempdir().unwrap();
    let peers = Peers::prepare(folder.path());
    let missing = [peers.mpi.as_ref().err(), peers.interposer.as_ref().err(), peers.gloo.as_ref().err()];
    missing.into_iter().flatten().for_each(|told| println!("without a peer: {told}"));
    if !effort.is_quiet {
        // Once is enough to show that the table is right; times are compared as often as a busy computer needs.
        return right_in_three(|| {
            let (shape, spec, _) = &effort.shapes[0];
            let folder = tempfile::tempdir().unwrap();
            let gains = gains(shape, spec, &effort, &peers, folder.path()).unwrap_or_default();
            let least = gains.iter().map(Gain::least).fold(f64::INFINITY, f64::min);
            check(least > 0.5, || least.to_string())
        });
    }
    let (mut unequal, mut all) = (Vec::new(), Vec::new());
    for (index, (shape, spec, is_unequal)) in effort.shapes.iter().enumerate() {
        let folder = folder.path().join(index.to_string());
        let Some(gains) = gains(shape, spec, &effort, &peers, &folder) else { return };
        all.extend(gains.iter().map(Gain::least));
        unequal.extend(gains.into_iter().filter(|_| *is_unequal));
    }
    let won = |gain: &dyn Fn(&Gain) -> Option<f64>| {
        let gains: Vec<f64> = unequal.iter().filter_map(gain).collect();
        gains.iter().filter(|gain| **gain >= WON).count() as f64 / gains.len().max(1) as f64
    };
    let [of_theirs, of_all] = [won(&|gain| gain.theirs), won(&|gain| Some(gain.least()))];
    let least = all.iter().copied().fold(f64::INFINITY, f64::min);
    println!(
        "{} cells, {} between unequal hosts: at least {WON}× the best of other libraries in {:.0} % of these, and of all stock \
         algorithms in {:.0} %; {least:.2}× at least",
        all.len(),
        unequal.len(),
        100.0 * of_theirs,
        100.0 * of_all,
    );
    assert!(of_all >= 0.3 && least >= 0.95, "{of_all} and {least}");
}

//! What a table loses against an oracle that has measured everything, in launches of its own.
//!
//! `make bench-tuning` asks for the bars, on a computer that does nothing else. Elsewhere only a choice that is wrong by far counts.

use crate::alone;
use crate::binary::{antiphon_in, read};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;

/// How much is measured, and what the regret may be.
struct Effort {
    collectives: &'static str,
    sizes: &'static str,
    budget: u32,
    /// Launches of the oracle.
    launches: usize,
    /// Times of each candidate in each of them.
    samples: usize,
    /// Median, mean, 95th percentile and maximum.
    bars: [f64; 4],
}

impl Effort {
    fn of_environment() -> Self {
        let some = "allreduce,allgather,alltoall";
        let all = "allreduce,allgather,reducescatter,broadcast,alltoall";
        let far = f64::INFINITY;
        let effort = |collectives, sizes, budget, launches, samples, bars| Self {
            collectives,
            sizes,
            budget,
            launches,
            samples,
            bars,
        };
        match std::env::var("ANTIPHON_TEST_EFFORT").as_deref() {
            Ok("quiet") => effort(all, "1KiB..16MiB:4", 120, 3, 50, [far, 0.02, 0.05, 0.15]),
            Ok("long") => effort(some, "1KiB..4MiB:4", 20, 3, 12, [0.3, far, far, far]),
            _ => effort(some, "4KiB,256KiB", 4, 1, 6, [0.5, far, far, far]),
        }
    }
}

/// A collective and a size.
type CellName = (String, u64);

/// Times of a candidate over those of stock in one launch: by what decides (spans, where ranks are not late at most calls), and in
/// loops without pauses.
type Ratios = [f64; 2];

/// For each cell the candidates, each with its times over those of stock: the medians of the launches that have measured it.
fn oracle(folder: &Path, line: &str, effort: &Effort) -> BTreeMap<CellName, BTreeMap<String, Ratios>> {
    let mut all: BTreeMap<CellName, BTreeMap<String, Vec<Ratios>>> = BTreeMap::new();
    for launch in 0..effort.launches {
        let samples = format!("oracle{launch}.jsonl");
        let least = effort.samples;
        let oracle = format!("--launches 1 --least-samples {least} -o oracle{launch}.json --samples {samples}");
        antiphon_in(folder, &format!("{line} {oracle}")).ok();
        let text = std::fs::read_to_string(folder.join(samples)).unwrap();
        let mut cells: BTreeMap<CellName, Vec<Value>> = BTreeMap::new();
        for line in text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()) {
            let cell = (line["collective"].as_str().unwrap().to_owned(), line["bytes"].as_u64().unwrap());
            cells.entry(cell).or_default().push(line);
        }
        for (cell, lines) in cells {
            let times = times(&lines);
            let stock = times["stock"];
            for (name, own) in times {
                let ratios = [0, 1].map(|of| own[of] / stock[of]);
                all.entry(cell.clone()).or_default().entry(name).or_default().push(ratios);
            }
        }
    }
    let middle = |launches: Vec<Ratios>| [0, 1].map(|of| median(launches.iter().map(|ratios| ratios[of]).collect()));
    let candidates =
        |of: BTreeMap<String, Vec<Ratios>>| of.into_iter().map(|(name, all)| (name, middle(all))).collect();
    all.into_iter().map(|(cell, of)| (cell, candidates(of))).collect()
}

/// The times of all candidates of a cell in one launch that were not refused. Whoever was only looked at has the time of the look.
fn times(lines: &[Value]) -> BTreeMap<String, Ratios> {
    let list = |line: &Value, key: &str| -> Vec<f64> {
        line[key].as_array().unwrap().iter().filter_map(Value::as_f64).collect()
    };
    let lines = || lines.iter().filter(|line| line["refusal"].is_null());
    let by_span = lines().all(|line| list(line, "spans_us").len() as u64 >= line["invalid"].as_u64().unwrap());
    let time = |line: &Value| {
        let [spans, loops] = ["spans_us", "loops_us"].map(|key| list(line, key));
        let deciding = if by_span { spans } else { loops.clone() };
        let look = line["look_us"].as_f64();
        let of = |times: Vec<f64>| if times.is_empty() { look } else { Some(median(times)) };
        Some((line["name"].as_str().unwrap().to_owned(), [of(deciding)?, of(loops)?]))
    };
    lines().filter_map(time).collect()
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

/// What a table chooses: a function where it names one, otherwise a plan, or stock.
fn chosen(table: &Value, collective: &str, bytes: u64) -> String {
    let cells = table["cells"].as_array().unwrap();
    let cell = cells.iter().find(|cell| cell["collective"] == collective).unwrap();
    let from = |range: &&Value| range["from_bytes"].as_u64().unwrap() <= bytes;
    let functions = cell["functions"].as_array().into_iter().flatten();
    let function = functions.filter(from).find(|range| bytes < range["to_bytes"].as_u64().unwrap());
    let range = cell["ranges"].as_array().unwrap().iter().rfind(from).unwrap();
    let name = function.map_or(&range["plan"], |range| &range["function"]);
    name.as_str().unwrap_or("stock").to_owned()
}

#[test]
fn long_the_choice_loses_little_against_an_oracle() {
    let _alone = alone();
    let effort = Effort::of_environment();
    let folder = tempfile::tempdir().unwrap();
    let Effort { collectives, sizes, budget, bars, .. } = effort;
    let line = format!("tune --ranks 2 --collective {collectives} --sizes {sizes} --budget {budget}s");
    antiphon_in(folder.path(), &format!("{line} --launches 3 -o table.json")).ok();
    let table = read(&folder.path().join("table.json"));
    let cells = oracle(folder.path(), &line, &effort);
    let mut regrets: [Vec<f64>; 2] = [Vec::new(), Vec::new()];
    let (mut hits, mut missed) = (0, 0);
    for ((collective, bytes), candidates) in &cells {
        let name = chosen(&table, collective, *bytes);
        // Which algorithms compete follows from the costs of messages that each launch has measured for itself.
        let Some(own) = candidates.get(&name) else {
            println!("{collective} {bytes}: {name}, which did not compete in the oracle's launches");
            missed += 1;
            continue;
        };
        let best = |of: usize| candidates.values().map(|ratios| ratios[of]).fold(f64::INFINITY, f64::min);
        let regret = [0, 1].map(|of| own[of] / best(of) - 1.0);
        let (winner, _) = candidates.iter().min_by(|one, other| one.1[0].total_cmp(&other.1[0])).unwrap();
        hits += usize::from(*winner == name);
        println!(
            "{collective} {bytes}: {name}, regret {:.1} % ({:.1} % in loops); the best is {winner}, {:.2}× stock",
            100.0 * regret[0],
            100.0 * regret[1],
            1.0 / best(0),
        );
        regrets.iter_mut().zip(regret).for_each(|(all, own)| all.push(own));
    }
    assert!(
        4 * missed <= cells.len(),
        "the plans of {missed} of {} cells did not compete in the oracle's launches",
        cells.len()
    );
    for (what, regrets) in ["", " in loops"].into_iter().zip(&mut regrets) {
        regrets.sort_by(f64::total_cmp);
        let [middle, mean, p95, most] = figures(regrets);
        println!(
            "regret{what} over {} cells: median {:.2} %, mean {:.2} %, p95 {:.2} %, max {:.2} %; {hits} times the best was chosen",
            regrets.len(),
            100.0 * middle,
            100.0 * mean,
            100.0 * p95,
            100.0 * most,
        );
    }
    let found = figures(&regrets[0]);
    assert!(found.iter().zip(bars).all(|(regret, bar)| *regret <= bar), "{found:?}, and the bars are {bars:?}");
}

/// Median, mean, 95th percentile and maximum of regrets in ascending order.
fn figures(sorted: &[f64]) -> [f64; 4] {
    let at = |share: f64| sorted[((sorted.len() - 1) as f64 * share).ceil() as usize];
    [at(0.5), sorted.iter().sum::<f64>() / sorted.len() as f64, at(0.95), at(1.0)]
}

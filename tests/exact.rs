//! Checks the certificates of `bound` and of `synth --pareto` without the code that made them.

use crate::binary::{antiphon, read, topology};
use crate::checker::{Wish, judge};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// A column of the model that a horizon refutes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Column {
    /// Chunk, link, period.
    Departs(usize, usize, i64),
    /// Chunk, rank, period.
    Has(usize, usize, i64),
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is no number"))
}

fn index(value: &Value) -> usize {
    value.as_u64().unwrap_or_else(|| panic!("{value} is no index")) as usize
}

/// The model of a horizon for an AllGather, built from the topology and the numbers of the certificate as documented.
struct Gather<'a> {
    certificate: &'a Value,
    topology: &'a Value,
    ranks: usize,
    per_rank: usize,
    bytes: f64,
    /// α–β distance of every rank from every rank.
    distance: Vec<Vec<f64>>,
}

impl<'a> Gather<'a> {
    fn new(certificate: &'a Value, topology: &'a Value, per_rank: usize, size: f64) -> Self {
        let ranks = index(&topology["ranks"]);
        let bytes = size / (ranks * per_rank) as f64;
        let mut distance = vec![vec![f64::INFINITY; ranks]; ranks];
        (0..ranks).for_each(|rank| distance[rank][rank] = 0.0);
        let mut gather = Self { certificate, topology, ranks, per_rank, bytes, distance };
        for _ in 0..ranks {
            for link in 0..gather.links().len() {
                let (from, to, time) = (gather.end(link, "from"), gather.end(link, "to"), gather.time(link));
                for source in 0..ranks {
                    let offered = gather.distance[source][from] + time;
                    gather.distance[source][to] = gather.distance[source][to].min(offered);
                }
            }
        }
        gather
    }

    fn links(&self) -> &Vec<Value> {
        self.topology["links"].as_array().unwrap()
    }

    fn end(&self, link: usize, which: &str) -> usize {
        index(&self.links()[link][which])
    }

    /// From departure to arrival of a chunk.
    fn time(&self, link: usize) -> f64 {
        number(&self.links()[link]["alpha_us"]) + number(&self.links()[link]["beta_us_per_byte"]) * self.bytes
    }

    fn period(&self) -> f64 {
        number(&self.certificate["period_us"])
    }

    fn latency(&self, link: usize) -> i64 {
        index(&self.certificate["periods_of_links"][link]["latency"]) as i64
    }

    /// The last period.
    fn last(&self) -> i64 {
        index(&self.certificate["periods"]) as i64 - 1
    }

    /// Checks that the periods leave no schedule out.
    fn check_periods(&self) {
        let (end, period) = (number(&self.certificate["end_us"]), self.period());
        assert!(self.last() as f64 * period < end && (self.last() + 1) as f64 * period >= end * (1.0 - 1e-9));
        for link in 0..self.links().len() {
            assert!(self.latency(link) as f64 * period <= self.time(link) * (1.0 + 1e-8));
            let alone = match (self.certificate["merged"] == true, &self.links()[link]["latency"]) {
                (false, latency) if latency == "occupies" => self.time(link),
                _ => number(&self.links()[link]["beta_us_per_byte"]) * self.bytes,
            };
            for window in self.certificate["periods_of_links"][link]["windows"].as_array().unwrap() {
                let most = (number(&window[0]) * period / alone - 1e-8).ceil();
                assert!(number(&window[1]) >= most, "link {link}: {window}");
            }
        }
    }

    fn departs(&self, chunk: usize, link: usize, period: i64) -> bool {
        let (source, from, to) = (chunk / self.per_rank, self.end(link, "from"), self.end(link, "to"));
        // A rank that does not hold the chunk wants it, so an arrival is of use.
        let latest = number(&self.certificate["end_us"]) - self.time(link);
        let first = (self.distance[source][from] / self.period() + 1e-9).floor() as i64;
        to != source && first <= period && (period as f64) * self.period() < latest - 1e-9 * latest
    }

    /// The longest distance.
    fn longest(&self) -> f64 {
        self.distance.iter().flatten().copied().fold(0.0, f64::max)
    }

    /// Departures that arrive in a period at a rank.
    fn arrivals(&self, chunk: usize, rank: usize, period: i64) -> Vec<Column> {
        let into = (0..self.links().len()).filter(|&link| self.end(link, "to") == rank);
        let departures = into.map(|link| (link, period - self.latency(link)));
        let real = departures.filter(|&(link, at)| at >= 0 && self.departs(chunk, link, at));
        real.map(|(link, at)| Column::Departs(chunk, link, at)).collect()
    }

    /// The variable for "rank has chunk in period", if it is possible.
    fn has(&self, chunk: usize, rank: usize, period: i64) -> Option<Column> {
        let possible = (0..=period).any(|earlier| !self.arrivals(chunk, rank, earlier).is_empty());
        possible.then_some(Column::Has(chunk, rank, period))
    }

    /// The terms of a row, and its lower and upper limit.
    fn row(&self, row: &Value) -> (Vec<(Column, i128)>, Option<i128>, Option<i128>) {
        let (chunk, rank, link) = (&row["chunk"], &row["rank"], &row["link"]);
        let period = row["period"].as_i64().unwrap_or(0);
        match row["row"].as_str().unwrap() {
            "arrive" => {
                let (chunk, rank) = (index(chunk), index(rank));
                let had = self.has(chunk, rank, period - 1).map(|column| (column, -1));
                let has = self.has(chunk, rank, period).map(|column| (column, 1));
                let arrive = self.arrivals(chunk, rank, period).into_iter().map(|column| (column, -1));
                (arrive.chain(had).chain(has).collect(), Some(0), Some(0))
            }
            "once" => {
                let all = (0..=self.last()).flat_map(|period| self.arrivals(index(chunk), index(rank), period));
                (all.map(|column| (column, 1)).collect(), Some(1), Some(1))
            }
            "hold" => {
                let (chunk, link) = (index(chunk), index(link));
                assert!(self.end(link, "from") != chunk / self.per_rank && self.departs(chunk, link, period));
                let held = self.has(chunk, self.end(link, "from"), period).map(|column| (column, -1));
                let terms = [(Column::Departs(chunk, link, period), 1)].into_iter().chain(held);
                (terms.collect(), None, Some(0))
            }
            "window" => {
                let (first, last) = (row["first"].as_i64().unwrap(), row["last"].as_i64().unwrap());
                let at_most = row["at_most"].as_i64().unwrap();
                let windows = self.certificate["periods_of_links"][index(link)]["windows"].as_array().unwrap();
                assert!(windows.contains(&serde_json::json!([last - first + 1, at_most])), "{row}");
                let chunks = 0..self.ranks * self.per_rank;
                let all = chunks.flat_map(|chunk| (first..=last).map(move |period| (chunk, period)));
                let real = all.filter(|&(chunk, period)| self.departs(chunk, index(link), period));
                let terms = real.map(|(chunk, period)| (Column::Departs(chunk, index(link), period), 1));
                (terms.collect(), None, Some(i128::from(at_most)))
            }
            other => panic!("no row is called {other}"),
        }
    }

    /// Whether the sum of the rows is an inequality that no point of the unit box satisfies.
    fn is_refuted(&self) -> bool {
        let mut sum: BTreeMap<Column, i128> = BTreeMap::new();
        let mut needed = 0;
        for multiplier in self.certificate["multipliers"].as_array().unwrap() {
            let times = i128::from(multiplier["times"].as_i64().unwrap());
            let (terms, lower, upper) = self.row(multiplier);
            needed += times * if times > 0 { lower } else { upper }.unwrap();
            terms.into_iter().for_each(|(column, weight)| *sum.entry(column).or_default() += times * weight);
        }
        let most = sum.iter().map(|(column, &weight)| match column {
            Column::Has(_, _, period) if *period == self.last() => weight,
            _ => weight.max(0),
        });
        most.sum::<i128>() < needed
    }
}

/// The horizons that `bound` prints for an AllGather.
fn horizons(spec: &str, size: &str, chunks: usize) -> Vec<Value> {
    let request = format!("--topology {spec} --collective allgather --size {size} --chunks {chunks}");
    let bounds = antiphon(&format!("bound {request} --time-limit 60s --json")).ok().json()["bounds"].clone();
    bounds.as_array().unwrap().iter().filter(|bound| bound["name"] == "horizon").cloned().collect()
}

#[test]
fn horizons_are_proven_by_their_multipliers() {
    let torus = "torus2d:3x3,alpha=0.5us,bandwidth=50GiBps";
    // The value that the best proof must reach, and the end of a known schedule, which no proof may exceed.
    for (spec, size, bytes, chunks, known) in [
        ("dgx1", "1GB", 1e9, 1, (7501.0, 7502.1)),
        ("dgx1", "1GB", 1e9, 2, (6251.0, 6253.5)),
        ("dgx1", "1GB", 1e9, 4, (6253.0, 6257.0)),
        (torus, "9437184", 9_437_184.0, 1, (40.0, 40.0625)),
    ] {
        let machine = topology(spec);
        let found = horizons(spec, size, chunks);
        assert!(!found.is_empty(), "{spec} {chunks}");
        for bound in &found {
            let certificate = &bound["certificate"];
            let model = Gather::new(certificate, &machine, chunks, bytes);
            model.check_periods();
            match certificate["proof"].as_str() {
                Some("linear") => assert!(model.is_refuted(), "{spec} {chunks}: {}", bound["scope"]),
                // One rank is too far away from another.
                Some("distance") => assert!(model.longest() >= number(&certificate["end_us"]) * (1.0 - 1e-8)),
                other => panic!("{spec} {chunks}: {other:?} proves nothing here"),
            }
            let value = number(&bound["value_us"]);
            assert!(value <= known.1 && value <= number(&certificate["end_us"]), "{spec} {chunks}: {value}");
        }
        let best = found.iter().map(|bound| number(&bound["value_us"])).fold(0.0, f64::max);
        assert!(best >= known.0, "{spec} {chunks}: {best}");
    }
}

#[test]
fn a_multiplier_more_or_less_proves_nothing() {
    let machine = topology("dgx1");
    let bound = horizons("dgx1", "1GB", 2).remove(0);
    let proof = bound["certificate"].clone();
    assert!(Gather::new(&proof, &machine, 2, 1e9).is_refuted());
    let rows: BTreeSet<String> =
        proof["multipliers"].as_array().unwrap().iter().map(|it| it["row"].as_str().unwrap().to_owned()).collect();
    for row in rows {
        let mut broken = proof.clone();
        broken["multipliers"].as_array_mut().unwrap().retain(|it| it["row"] != row);
        assert!(!Gather::new(&broken, &machine, 2, 1e9).is_refuted(), "without {row}");
    }
}

#[test]
fn points_are_listed_certified_and_written() {
    let folder = tempfile::tempdir().unwrap();
    for (collective, point) in [("allgather", "2,2,3"), ("reducescatter", "1,2,2"), ("allgather", "")] {
        let path = folder.path().join("plan.json");
        let point = if point.is_empty() { String::new() } else { format!("--point {point}") };
        let line = format!(
            "synth --topology dgx1 --collective {collective} --size 1GB --chunks 2 --strategy exact --pareto {point} \
             --json --force -o {}",
            path.display()
        );
        let answer = antiphon(&line).ok().json();
        let triple = |it: &Value| [&it["chunks"], &it["steps"], &it["rounds"]].map(index);
        let points: Vec<_> = answer["points"].as_array().unwrap().iter().map(triple).collect();
        assert_eq!(points, [[1, 2, 2], [2, 2, 3]], "{collective}");
        assert!(answer["points"].as_array().unwrap().iter().all(|it| it["certified"] == true), "{answer}");
        let makespan = judge(&read(&path), &topology("dgx1"), &Wish::all(collective, 8, 1_000_000_000)).unwrap();
        let written = answer["written"].as_array().unwrap().iter().map(index).collect::<Vec<_>>();
        let at = points.iter().position(|point| point[..] == written[..]).unwrap();
        assert!((number(&answer["points"][at]["makespan_us"]) - makespan).abs() < 1e-6 * makespan, "{collective}");
    }
}

#[test]
fn wrong_wishes_for_points_are_refused() {
    let line = "synth --topology ring:4 --collective allgather --size 1MB --chunks 1";
    for (options, code) in [
        ("--strategy milp --pareto", 2),
        ("--pareto --point 1,2", 2),
        ("--pareto --point 9,9,9", 2),
        ("--point 1,3,3", 2),
    ] {
        assert_eq!(antiphon(&format!("{line} {options}")).code, code, "{options}");
    }
    let sum = "synth --topology ring:4 --collective allreduce --size 1MB --pareto";
    assert_eq!(antiphon(sum).code, 1);
}

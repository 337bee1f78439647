//! Checks the bounds of `antiphon bound --json` with nothing but their certificates and the topology.
//!
//! A cut: the bytes that must leave some ranks, over the most that their links can carry (a maximum flow through
//! resources). A volume: the bytes that must be delivered between groups of ranks, over the same. A path: a shortest
//! path, by Dijkstra. Prices: the cost of all bytes on their cheapest paths.

mod crossing;
mod rounds;

use crate::binary::{antiphon, topology};
use serde_json::Value;
use std::collections::{BTreeSet, VecDeque};

const CLOSE: f64 = 1e-6;

struct Link {
    from: usize,
    to: usize,
    alpha: f64,
    beta: f64,
    occupies: bool,
    resources: Vec<usize>,
}

struct Machine {
    ranks: usize,
    links: Vec<Link>,
    /// Time per byte of each resource.
    resources: Vec<f64>,
}

impl Machine {
    fn of(spec: &str) -> Self {
        let parsed = topology(spec);
        let number = |value: &Value| value.as_u64().unwrap() as usize;
        let link = |link: &Value| Link {
            from: number(&link["from"]),
            to: number(&link["to"]),
            alpha: link["alpha_us"].as_f64().unwrap(),
            beta: link["beta_us_per_byte"].as_f64().unwrap(),
            occupies: link["latency"] == "occupies",
            resources: link["resources"].as_array().unwrap().iter().map(number).collect(),
        };
        let beta = |resource: &Value| resource["beta_us_per_byte"].as_f64().unwrap();
        Self {
            ranks: number(&parsed["ranks"]),
            links: parsed["links"].as_array().unwrap().iter().map(link).collect(),
            resources: parsed["resources"].as_array().unwrap().iter().map(beta).collect(),
        }
    }

    /// Bytes per µs that some links carry together, each through its resources in turn: an upper limit.
    fn capacity(&self, links: &[&Link]) -> f64 {
        let mut flow = Flow::default();
        let ports: Vec<(usize, usize)> = self.resources.iter().map(|_| (flow.point(), flow.point())).collect();
        for (&(enter, leave), beta) in ports.iter().zip(&self.resources) {
            flow.arc(enter, leave, 1.0 / beta);
        }
        let (source, sink) = (flow.point(), flow.point());
        for link in links {
            // The link comes first, so that its own rate limits its flow.
            let mut at = flow.point();
            flow.arc(source, at, 1.0 / link.beta);
            // Resources that only links of this sender use come first: then no resource is at the end of one path and at
            // the beginning of another.
            let is_one_senders = |&resource: &usize| {
                let mut users = links.iter().filter(|other| other.resources.contains(&resource));
                !users.all(|other| other.from == link.from)
            };
            let mut way = link.resources.clone();
            way.sort_by_key(is_one_senders);
            for resource in way {
                flow.arc(at, ports[resource].0, 1.0 / link.beta);
                at = ports[resource].1;
            }
            flow.arc(at, sink, 1.0 / link.beta);
        }
        flow.most(source, sink)
    }

    /// The cost of the cheapest path from `source` to every rank.
    fn distances(&self, source: usize, cost: impl Fn(usize, &Link) -> f64) -> Vec<f64> {
        let mut distance = vec![f64::INFINITY; self.ranks];
        distance[source] = 0.0;
        for _ in 0..self.ranks {
            for (id, link) in self.links.iter().enumerate() {
                distance[link.to] = distance[link.to].min(distance[link.from] + cost(id, link));
            }
        }
        distance
    }
}

/// A network; its maximum flow by shortest augmenting paths.
#[derive(Default)]
struct Flow {
    arcs: Vec<Vec<(usize, f64, usize)>>,
}

impl Flow {
    fn point(&mut self) -> usize {
        self.arcs.push(Vec::new());
        self.arcs.len() - 1
    }

    fn arc(&mut self, from: usize, to: usize, capacity: f64) {
        let (forth, back) = (self.arcs[from].len(), self.arcs[to].len());
        self.arcs[from].push((to, capacity, back));
        self.arcs[to].push((from, 0.0, forth));
    }

    fn most(&mut self, source: usize, sink: usize) -> f64 {
        let mut total = 0.0;
        loop {
            let mut came: Vec<Option<(usize, usize)>> = vec![None; self.arcs.len()];
            let mut queue = VecDeque::from([source]);
            while let Some(at) = queue.pop_front() {
                for (index, &(to, left, _)) in self.arcs[at].iter().enumerate() {
                    if left > 1e-9 && to != source && came[to].is_none() {
                        came[to] = Some((at, index));
                        queue.push_back(to);
                    }
                }
            }
            let mut way = Vec::new();
            let mut at = sink;
            while let Some((from, index)) = came[at] {
                way.push((from, index));
                at = from;
            }
            if way.is_empty() {
                return total;
            }
            let push = way.iter().map(|&(from, index)| self.arcs[from][index].1).fold(f64::INFINITY, f64::min);
            for (from, index) in way {
                let (to, _, back) = self.arcs[from][index];
                self.arcs[from][index].1 -= push;
                self.arcs[to][back].1 += push;
            }
            total += push;
        }
    }
}

/// For each block, its first rank, the ranks that want it, and its bytes.
type Blocks = Vec<(usize, Vec<usize>, f64)>;

/// The least bytes that must be delivered from one group of ranks to the others.
fn delivered(blocks: &Blocks, groups: &[BTreeSet<usize>]) -> f64 {
    let lack = |start: &usize, wanted: &[usize]| {
        let lacks = |group: &&BTreeSet<usize>| !group.contains(start) && wanted.iter().any(|rank| group.contains(rank));
        groups.iter().filter(lacks).count() as f64
    };
    blocks.iter().map(|(start, wanted, bytes)| bytes * lack(start, wanted)).sum()
}

/// The value that the certificate of a volume proves; `deliver` says how many bytes must be delivered between groups.
fn proven_by_volume(machine: &Machine, bound: &Value, deliver: impl Fn(&[BTreeSet<usize>]) -> f64) -> Option<f64> {
    let certificate = &bound["certificate"];
    let claimed = certificate["bytes"].as_f64()?;
    let number = |rank: &Value| rank.as_u64().unwrap() as usize;
    let groups: Vec<BTreeSet<usize>> = match certificate["groups"].as_array() {
        Some(groups) => groups.iter().map(|group| group.as_array().unwrap().iter().map(number).collect()).collect(),
        None => (0..machine.ranks).map(|rank| BTreeSet::from([rank])).collect(),
    };
    assert_eq!(groups.iter().map(BTreeSet::len).sum::<usize>(), machine.ranks, "{bound}");
    let of = |rank: usize| groups.iter().position(|group| group.contains(&rank)).unwrap();
    let links: Vec<&Link> = machine.links.iter().filter(|link| of(link.from) != of(link.to)).collect();
    let (bytes, capacity) = (deliver(&groups), machine.capacity(&links));
    assert!(claimed <= bytes * (1.0 + CLOSE), "{bound}");
    Some(links.iter().map(|link| link.alpha).fold(f64::INFINITY, f64::min) + bytes / capacity)
}

fn blocks(collective: &str, ranks: usize, size: f64) -> Blocks {
    let (all, share) = (|| (0..ranks).collect::<Vec<_>>(), size / ranks as f64);
    match collective {
        "allgather" => (0..ranks).map(|rank| (rank, all(), share)).collect(),
        "alltoall" => (0..ranks).flat_map(|from| (0..ranks).map(move |to| (from, vec![to], share))).collect(),
        "broadcast" => vec![(0, all(), size)],
        "scatter" => (0..ranks).map(|to| (0, vec![to], share)).collect(),
        other => panic!("{other}"),
    }
}

/// The largest value that the certificate of `bound` proves for any chunking; `None` if it is of another kind.
fn proven(machine: &Machine, blocks: &Blocks, bound: &Value) -> Option<f64> {
    let certificate = &bound["certificate"];
    let numbers = |key: &str| {
        certificate[key].as_array().map(|list| list.iter().map(|it| it.as_f64().unwrap()).collect::<Vec<_>>())
    };
    if let Some(path) = numbers("links") {
        let links: Vec<&Link> = path.iter().map(|&id| &machine.links[id as usize]).collect();
        assert!(links.windows(2).all(|pair| pair[0].to == pair[1].from), "{bound}");
        let (from, to) = (links.first()?.from, links.last()?.to);
        assert!(blocks.iter().any(|(start, wanted, _)| *start == from && wanted.contains(&to)), "{bound}");
        return Some(machine.distances(from, |_, link| link.alpha)[to]);
    }
    if let Some(ranks) = numbers("ranks") {
        let inside: BTreeSet<usize> = ranks.iter().map(|&rank| rank as usize).collect();
        let leave: Vec<&Link> =
            machine.links.iter().filter(|link| inside.contains(&link.from) && !inside.contains(&link.to)).collect();
        let must = |(start, wanted, bytes): &(usize, Vec<usize>, f64)| match inside.contains(start) {
            true if wanted.iter().any(|rank| !inside.contains(rank)) => *bytes,
            _ => 0.0,
        };
        let (bytes, capacity) = (blocks.iter().map(must).sum::<f64>(), machine.capacity(&leave));
        assert!(capacity * certificate["capacity_us_per_byte"].as_f64().unwrap() < 1.0 + CLOSE, "{bound}");
        return Some(leave.iter().map(|link| link.alpha).fold(f64::INFINITY, f64::min) + bytes / capacity);
    }
    if certificate["bytes"].is_number() {
        return proven_by_volume(machine, bound, |groups| delivered(blocks, groups));
    }
    let (of_links, of_resources) = (numbers("prices")?, numbers("resource_prices")?);
    let sum: f64 = of_links.iter().chain(&of_resources).sum();
    assert!((sum - 1.0).abs() < CLOSE && of_links.iter().chain(&of_resources).all(|&price| price >= 0.0), "{bound}");
    let cost = |id: usize, link: &Link| {
        let ports = link.resources.iter().map(|&resource| machine.resources[resource] * of_resources[resource]);
        link.beta * of_links[id] + ports.sum::<f64>()
    };
    let paid = |(start, wanted, bytes): &(usize, Vec<usize>, f64)| {
        let distances = machine.distances(*start, cost);
        bytes * wanted.iter().map(|&rank| distances[rank]).fold(0.0, f64::max)
    };
    let priced = machine.links.iter().enumerate().filter(|(id, link)| cost(*id, link) > 0.0);
    let alpha = priced.map(|(_, link)| link.alpha).fold(f64::INFINITY, f64::min);
    Some(alpha + blocks.iter().map(paid).sum::<f64>())
}

#[test]
fn bounds_follow_from_their_certificates() {
    let machines = [
        "dgx1",
        "ndv2x2",
        "dgx-a100x2",
        "switch:5,alpha=1us,bandwidth=10GBps",
        "mesh2d:3x4",
        "tests/data/unequal.yaml",
    ];
    let mut kinds = BTreeSet::new();
    for spec in machines {
        let machine = Machine::of(spec);
        for collective in ["allgather", "alltoall", "broadcast", "scatter"] {
            let size = machine.ranks as u64 * 1_000_000;
            let told = antiphon(&format!("bound --topology {spec} --collective {collective} --size {size} --json"))
                .ok()
                .json();
            let blocks = blocks(collective, machine.ranks, size as f64);
            for bound in told["bounds"].as_array().unwrap() {
                let Some(proven) = proven(&machine, &blocks, bound) else { continue };
                let value = bound["value_us"].as_f64().unwrap();
                assert!(value <= proven * (1.0 + CLOSE), "{spec} {collective}: {value} µs, proven {proven}: {bound}");
                kinds.insert(bound["name"].as_str().unwrap().to_owned());
            }
        }
    }
    let expected = ["cut", "egress", "flow", "ingress", "latency", "volume"];
    assert!(expected.iter().all(|name| kinds.contains(*name)), "{kinds:?}");
}

/// How many chunks can pass the groups of a certificate until `time`, by the rules that `synth::WholeChunks` states.
fn passed(machine: &Machine, whole: &Value, time: f64) -> f64 {
    let bytes = whole["chunk_bytes"].as_f64().unwrap();
    let uses = |alpha: f64, beta: f64, occupies: bool| {
        let merged = whole["merged"].as_bool().unwrap() || !occupies;
        let (first, each) = if merged { (alpha, beta * bytes) } else { (0.0, alpha + beta * bytes) };
        if time < first { 0.0 } else { ((time - first) / each).floor() }
    };
    let group = |group: &Value| {
        let ids = group["links"].as_array().unwrap();
        let links = || ids.iter().map(|id| &machine.links[id.as_u64().unwrap() as usize]);
        let own: f64 = links().map(|link| uses(link.alpha, link.beta, link.occupies)).sum();
        let Some(resource) = group["resource"].as_u64().map(|id| id as usize) else { return own };
        assert!(links().all(|link| link.resources.contains(&resource)), "{group}");
        let alpha = links().map(|link| link.alpha).fold(f64::INFINITY, f64::min);
        own.min(uses(alpha, machine.resources[resource], links().all(|link| link.occupies)))
    };
    whole["groups"].as_array().unwrap().iter().map(group).sum()
}

/// Checks that just before the bound, fewer chunks have passed a rank than must pass it; every block is cut into `cut`
/// chunks.
fn check_whole_chunks(machine: &Machine, blocks: &Blocks, cut: f64, bound: &Value) {
    let whole = &bound["certificate"]["whole"];
    let ranks: Vec<usize> =
        bound["certificate"]["ranks"].as_array().unwrap().iter().map(|rank| rank.as_u64().unwrap() as usize).collect();
    let sends = bound["name"] == "egress";
    let rank = if sends { ranks[0] } else { (0..machine.ranks).find(|rank| !ranks.contains(rank)).unwrap() };
    assert_eq!(ranks.len(), if sends { 1 } else { machine.ranks - 1 }, "{bound}");
    let must = blocks.iter().filter(|(start, wanted, _)| match sends {
        true => *start == rank && wanted.iter().any(|other| *other != rank),
        false => *start != rank && wanted.contains(&rank),
    });
    assert!(whole["chunks"].as_f64().unwrap() <= cut * must.count() as f64, "{bound}");
    let mut listed: Vec<u64> = Vec::new();
    for group in whole["groups"].as_array().unwrap() {
        listed.extend(group["links"].as_array().unwrap().iter().map(|id| id.as_u64().unwrap()));
    }
    listed.sort_unstable();
    let of_rank = |link: &Link| if sends { link.from == rank } else { link.to == rank };
    let all = machine.links.iter().enumerate().filter(|(_, link)| of_rank(link)).map(|(id, _)| id as u64);
    assert_eq!(listed, all.collect::<Vec<u64>>(), "every link of the rank, once: {bound}");
    let before = bound["value_us"].as_f64().unwrap() * (1.0 - CLOSE);
    assert!(passed(machine, whole, before) < whole["chunks"].as_f64().unwrap(), "{bound}");
}

/// The value that a cut and the last hop behind it prove, where all ranks want everything.
fn proven_with_tail(machine: &Machine, plain: f64, bound: &Value) -> f64 {
    let certificate = &bound["certificate"];
    let number = |value: &Value| value.as_u64().unwrap() as usize;
    let inside: BTreeSet<usize> = certificate["ranks"].as_array().unwrap().iter().map(number).collect();
    let tail = &certificate["tail"];
    let bytes = tail["chunk_bytes"].as_f64().unwrap();
    let crossing = |link: &&Link| inside.contains(&link.from) && !inside.contains(&link.to);
    let ends: BTreeSet<usize> = machine.links.iter().filter(crossing).map(|link| link.to).collect();
    let heads: Vec<(usize, usize)> =
        tail["heads"].as_array().unwrap().iter().map(|it| (number(&it[0]), number(&it[1]))).collect();
    assert_eq!(heads.iter().map(|(head, _)| *head).collect::<BTreeSet<_>>(), ends, "{bound}");
    let far = number(&tail["far"]);
    assert!(!inside.contains(&far) && heads.iter().all(|(_, rank)| !inside.contains(rank)), "{bound}");
    let from = |head: usize| machine.distances(head, |_, link| link.alpha + link.beta * bytes);
    let once = heads.iter().map(|&(head, rank)| from(head)[rank]).fold(f64::INFINITY, f64::min);
    let nearest = heads.iter().map(|&(head, _)| from(head)[far]).fold(f64::INFINITY, f64::min);
    let twice = nearest.max(bytes * certificate["capacity_us_per_byte"].as_f64().unwrap());
    plain + once.min(twice)
}

#[test]
fn bounds_in_whole_chunks_follow_from_their_certificates() {
    let mut seen = BTreeSet::new();
    for spec in ["dgx1", "ndv2x2", "dgx2x2", "switch:5,alpha=1us,bandwidth=10GBps", "mesh2d:3x4"] {
        let machine = Machine::of(spec);
        for (collective, cut) in [("allgather", 1), ("allgather", 3), ("broadcast", 4), ("alltoall", 2)] {
            let size = machine.ranks as u64 * 1_200_000;
            let command =
                format!("bound --topology {spec} --collective {collective} --size {size} --chunks {cut} --json");
            let told = antiphon(&command).ok().json();
            let blocks = blocks(collective, machine.ranks, size as f64);
            for bound in told["bounds"].as_array().unwrap() {
                let name = bound["name"].as_str().unwrap();
                if bound["certificate"]["whole"].is_object() {
                    check_whole_chunks(&machine, &blocks, f64::from(cut), bound);
                } else if bound["certificate"]["tail"].is_object() && collective != "alltoall" {
                    let plain = proven(&machine, &blocks, bound).unwrap();
                    let (value, most) = (bound["value_us"].as_f64().unwrap(), proven_with_tail(&machine, plain, bound));
                    assert!(value <= most * (1.0 + CLOSE), "{spec} {collective}: {value} µs, proven {most}: {bound}");
                } else {
                    continue;
                }
                seen.insert((name.to_owned(), bound["scope"].as_str().unwrap().to_owned()));
            }
        }
    }
    let expected = ["cut_tail", "egress", "ingress"].map(|name| (name.to_owned(), "this_chunking".to_owned()));
    assert!(expected.iter().all(|it| seen.contains(it)), "{seen:?}");
}

#[test]
fn sums_are_delivered_between_groups_as_often_as_is_claimed() {
    let size = 8_000_000.0;
    let mut with_groups = 0;
    for spec in ["ndv2x2", "dgx-a100x2", "switch:5,alpha=1us,bandwidth=10GBps", "tests/data/unequal.yaml"] {
        let machine = Machine::of(spec);
        let told =
            antiphon(&format!("bound --topology {spec} --collective allreduce --size {size} --json")).ok().json();
        let volume = told["bounds"].as_array().unwrap().iter().find(|bound| bound["name"] == "volume").unwrap();
        // k groups: k − 1 deliveries until the first has the sum, one more for each of the others.
        let proven = proven_by_volume(&machine, volume, |groups| 2.0 * (groups.len() - 1) as f64 * size).unwrap();
        let value = volume["value_us"].as_f64().unwrap();
        assert!(value <= proven * (1.0 + CLOSE), "{spec}: {value} µs, proven {proven}: {volume}");
        with_groups += u32::from(volume["certificate"]["groups"].is_array());
    }
    assert!(with_groups > 0);
}

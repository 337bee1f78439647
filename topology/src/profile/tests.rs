//! The profiler against simulated machines whose every feature is known.

use super::*;
use crate::concurrent::{Sharing, together};
use crate::fit::tests::Noise;
use crate::{Exchange, Latency, Link, Resource, ResourceId, resolve};
use std::collections::BTreeMap;

/// A machine that behaves as a topology says, with the noise of a real one: jitter, outliers, a slow drift, and a first
/// burst that passes at once where a link is shaped.
pub(super) struct Simulated {
    truth: Topology,
    noise: Noise,
    credit: u64,
    /// The bytes at the end of a message that pass as a whole.
    lump: u64,
    /// How often a message loses a segment, where several arrive at once; it then takes twice as long.
    losses: f64,
    runs: usize,
    /// Simulated microseconds.
    clock: f64,
}

impl Simulated {
    fn new(truth: &Topology) -> Self {
        Self { truth: truth.clone(), noise: Noise(11), credit: 0, lump: 1, losses: 0.0, runs: 0, clock: 0.0 }
    }
}

impl Probe for Simulated {
    fn rank_count(&self) -> usize {
        self.truth.rank_count()
    }

    fn connects(&self, from: Rank, to: Rank) -> bool {
        self.truth.between(from, to).next().is_some()
    }

    fn run(&mut self, exchanges: &[Exchange], repetitions: u32) -> Result<Vec<Vec<Micros>>, ProbeError> {
        self.runs += 1;
        let after_credit = |exchange: &Exchange| {
            let last = if exchange.messages == 1 { exchange.bytes % self.lump } else { 0 };
            let credit = self.credit / u64::from(exchange.messages) + last;
            Exchange { bytes: exchange.bytes.saturating_sub(credit).max(exchange.bytes.min(64)), ..*exchange }
        };
        let charged: Vec<Exchange> = exchanges.iter().map(after_credit).collect();
        let ideal = together(&self.truth, &charged, Sharing::Fair).expect("a link");
        let mut times = Vec::new();
        for _ in 0..repetitions {
            let drift = 1.0 + 0.01 * (self.clock / 7e6).sin();
            let mut now: Vec<Micros> =
                ideal.iter().map(|time| Micros(time.0 * drift * self.noise.wild_in(0.03))).collect();
            for to in 0..self.truth.rank_count() {
                let into: Vec<usize> = (0..exchanges.len()).filter(|&flow| exchanges[flow].to.index() == to).collect();
                if into.len() > 1 && self.noise.uniform() < self.losses {
                    into.into_iter().for_each(|flow| now[flow] = now[flow] * 2.0);
                }
            }
            self.clock += 200.0 + ideal.iter().map(|time| time.0).fold(0.0, f64::max);
            times.push(now);
        }
        Ok(times)
    }
}

pub(super) fn measure(truth: &Topology, options: &ProfileOptions) -> (Measured, Simulated) {
    let mut probe = Simulated::new(truth);
    let measured = profile(&mut probe, options, &mut |_| {}).unwrap();
    (measured, probe)
}

pub(super) fn knowing_machines(truth: &Topology) -> ProfileOptions {
    ProfileOptions { machines: Some(truth.machines().to_vec()), ..ProfileOptions::default() }
}

fn pair_of(link: &Link) -> (Rank, Rank) {
    (link.from, link.to)
}

/// The result has the true links and machines, resources with the true users and β, and nothing else.
fn assert_same(truth: &Topology, result: &Measured) {
    let measured = &result.topology;
    assert_eq!(truth.machines(), measured.machines());
    let found: BTreeMap<_, &Link> = measured.links().iter().map(|link| (pair_of(link), link)).collect();
    assert_eq!(found.len(), truth.links().len());
    let fits: BTreeMap<_, _> = measured.links().iter().map(pair_of).zip(&result.links).collect();
    for link in truth.links() {
        let (measured, fit) = (found[&pair_of(link)], fits[&pair_of(link)]);
        assert_eq!(link.latency, measured.latency, "{link:?} {measured:?} {fit:?}");
        assert!((measured.alpha / link.alpha - 1.0).abs() < 0.07, "{link:?} {measured:?} {fit:?}");
        assert!((measured.beta / link.beta - 1.0).abs() < 0.05, "{link:?} {measured:?} {fit:?}");
    }
    let users = |topology: &Topology| -> BTreeMap<Vec<(Rank, Rank)>, (String, f64)> {
        let resources = (0..topology.resources().len()).map(ResourceId::from_index);
        let of = |id| {
            let mut users: Vec<_> = topology.users(id).iter().map(|&link| pair_of(topology.link(link))).collect();
            users.sort_unstable();
            let resource = topology.resource(id);
            (users, (resource.name.clone(), resource.beta.0))
        };
        resources.map(of).collect()
    };
    let (wanted, found) = (users(truth), users(measured));
    for (users, (name, beta)) in &wanted {
        let (_, measured) = found.get(users).unwrap_or_else(|| panic!("{name} was not found in {:?}", found.values()));
        assert!((measured / beta - 1.0).abs() < 0.05, "{name}: {beta} measured as {measured}");
    }
    let invented = found.iter().filter(|(users, _)| !wanted.contains_key(*users));
    assert_eq!(invented.map(|(_, (name, _))| name).collect::<Vec<_>>(), Vec::<&String>::new());
}

/// Exchanges that were not used are predicted within a tenth.
fn assert_predicts(measured: &Measured, probe: &mut Simulated) {
    let options = ProfileOptions::default();
    let answers = check(probe, &measured.topology, &options, Sharing::Fair, 40, 3, None).unwrap();
    assert_eq!(answers.len(), 40);
    let (median, worst) = HeldOut::errors(&answers);
    let wrong: Vec<_> = answers.iter().filter(|answer| answer.error() >= 0.1).collect();
    assert!(median < 0.03 && worst < 0.1, "median {median}, worst {worst}: {wrong:?}");
}

/// Machines on a network: their sizes, and the cost of one direction of each link in µs per byte.
struct Cluster<'a> {
    sizes: &'a [usize],
    inside: f64,
    between: f64,
    /// The given ranks share a resource for flows that leave them, and one for flows that enter them, between machines.
    shared: Vec<(Vec<usize>, f64, f64)>,
}

impl Cluster<'_> {
    fn build(&self) -> Topology {
        let home: Vec<usize> =
            self.sizes.iter().enumerate().flat_map(|(machine, size)| std::iter::repeat_n(machine, *size)).collect();
        let mut resources = Vec::new();
        let mut links = Vec::new();
        for (number, (_, out, back)) in self.shared.iter().enumerate() {
            for (side, beta) in [("tx", out), ("rx", back)] {
                resources.push(Resource::new(format!("shared{number}.{side}"), MicrosPerByte(*beta)));
            }
        }
        for from in 0..home.len() {
            for to in (0..home.len()).filter(|to| *to != from) {
                let near = home[from] == home[to];
                let mut uses = Vec::new();
                for (number, (ranks, ..)) in self.shared.iter().enumerate().filter(|_| !near) {
                    // A flow inside a group does not leave it.
                    match (ranks.contains(&from), ranks.contains(&to)) {
                        (true, false) => uses.push(ResourceId::from_index(2 * number)),
                        (false, true) => uses.push(ResourceId::from_index(2 * number + 1)),
                        _ => {}
                    }
                }
                let own = if near { self.inside } else { self.between };
                let slowest = uses.iter().map(|id| resources[id.index()].beta.0).fold(own, f64::max);
                links.push(Link {
                    from: Rank::from_index(from),
                    to: Rank::from_index(to),
                    alpha: Micros(if near { 2.0 } else { 30.0 }),
                    beta: MicrosPerByte(slowest),
                    latency: Latency::Pipelines,
                    resources: uses.into(),
                });
            }
        }
        let mut first = 0;
        let machines = self.sizes.iter().map(|size| {
            first += size;
            (first - size..first).map(Rank::from_index).collect()
        });
        let machines = machines.collect();
        Topology::new(TopologyParts { name: "cluster".to_owned(), ranks: home.len(), machines, links, resources })
            .unwrap()
    }
}

/// 100 Mbit/s, in µs per byte.
const SLOW: f64 = 0.08;

#[test]
fn measures_cliques_without_inventing_contention() {
    for ranks in [1, 2, 3, 5, 9] {
        let truth = resolve(&format!("clique:{ranks},alpha=1.5us,bandwidth=12.5GBps")).unwrap();
        assert_same(&truth, &measure(&truth, &ProfileOptions::default()).0);
    }
}

#[test]
fn finds_the_ports_of_a_switch_and_prints_what_can_be_loaded() {
    let truth = resolve("switch:5,alpha=2us,bandwidth=10GBps,latency=pipelines").unwrap();
    let (measured, mut probe) = measure(&truth, &ProfileOptions::default());
    assert_same(&truth, &measured);
    assert_predicts(&measured, &mut probe);

    let yaml = measured.to_yaml("A simulated switch.\nSecond line.");
    assert!(yaml.starts_with("# A simulated switch.\n# Second line.\n# "), "{yaml}");
    let margins = yaml.lines().filter(|line| line.starts_with("- {from:") && line.contains("} # α ±"));
    assert_eq!(margins.count(), 20, "{yaml}");
    assert_eq!(yaml.lines().filter(|line| line.contains("flows together were")).count(), 10, "{yaml}");
    let document = crate::document::Document::yaml("measured.yaml", &yaml);
    assert_eq!(crate::interchange::from_document(&document), Ok(measured.topology));
}

#[test]
fn finds_a_slow_link_and_only_that() {
    let mut parts = TopologyParts { ranks: 4, ..TopologyParts::default() };
    parts.links = resolve("clique:4,alpha=1us,bandwidth=10GBps").unwrap().links().to_vec();
    parts.links[7].beta = parts.links[7].beta * 8.0;
    let truth = Topology::new(parts).unwrap();
    assert_same(&truth, &measure(&truth, &knowing_machines(&truth)).0);
}

#[test]
fn finds_unequal_machines_and_the_nic_of_each() {
    // The machines are not given.
    let cluster = Cluster {
        sizes: &[4, 3, 2],
        inside: 2e-4,
        between: 2e-3,
        shared: vec![((0..4).collect(), 2e-3, 2e-3), ((4..7).collect(), 2e-3, 2e-3), ((7..9).collect(), 4e-3, 4e-3)],
    };
    let truth = cluster.build();
    let (measured, mut probe) = measure(&truth, &ProfileOptions::default());
    assert_same(&truth, &measured);
    assert_predicts(&measured, &mut probe);
    let yaml = measured.to_yaml("");
    assert!(yaml.contains("# inside machine 1: ") && yaml.contains("# from machine 2 to machine 0: "), "{yaml}");
}

#[test]
fn finds_which_ranks_of_a_machine_share_a_nic() {
    // Two NICs for four ranks: neighbours share.
    let shared = (0..6).map(|nic| (vec![2 * nic, 2 * nic + 1], 1e-3, 1e-3)).collect();
    let truth = Cluster { sizes: &[4, 4, 4], inside: 1e-4, between: 1e-3, shared }.build();
    let (measured, mut probe) = measure(&truth, &knowing_machines(&truth));
    assert_same(&truth, &measured);
    assert_predicts(&measured, &mut probe);
}

#[test]
fn finds_ports_of_unequal_directions() {
    // Hosts of one rank that send at 50 and receive at 100 Mbit/s; one of them has half of both rates.
    let shared = (0..6)
        .map(|host| (vec![host], SLOW * if host == 4 { 4.0 } else { 2.0 }, SLOW * if host == 4 { 2.0 } else { 1.0 }));
    let truth = Cluster { sizes: &[1; 6], inside: 1e-4, between: SLOW, shared: shared.collect() }.build();
    let (measured, mut probe) = measure(&truth, &knowing_machines(&truth));
    assert_same(&truth, &measured);
    assert_predicts(&measured, &mut probe);
}

/// Hosts of one rank with a port each, on switches of `leaf` hosts. The up-links of a switch carry half of what its
/// hosts can send.
fn two_tier(hosts: usize, leaf: usize, host: f64) -> Topology {
    let ports = (0..hosts).map(|rank| (vec![rank], host, host));
    let uplink = host / leaf as f64 * 2.0;
    let leaves = (0..hosts / leaf).map(|number| ((number * leaf..(number + 1) * leaf).collect(), uplink, uplink));
    let sizes = vec![1; hosts];
    Cluster { sizes: &sizes, inside: 1e-4, between: host, shared: ports.chain(leaves).collect() }.build()
}

#[test]
fn finds_switches_with_narrow_uplinks() {
    for (hosts, leaf) in [(8, 4), (12, 4), (16, 8)] {
        let truth = two_tier(hosts, leaf, 1e-3);
        let (measured, mut probe) = measure(&truth, &knowing_machines(&truth));
        assert_same(&truth, &measured);
        assert_predicts(&measured, &mut probe);
    }
}

#[test]
fn sixty_four_slow_hosts_take_minutes() {
    let ports = (0..64).map(|rank| (vec![rank], SLOW, SLOW));
    let truth = Cluster { sizes: &[1; 64], inside: 1e-4, between: SLOW, shared: ports.collect() }.build();
    let (measured, mut probe) = measure(&truth, &knowing_machines(&truth));
    assert_same(&truth, &measured);
    let minutes = probe.clock / 60e6;
    assert!(minutes < 10.0, "{minutes} minutes on the wire, {} runs", probe.runs);
    assert_predicts(&measured, &mut probe);
}

#[test]
fn the_credit_of_shaped_links_does_not_pass_for_bandwidth() {
    let shared = (0..4).map(|host| (vec![host], SLOW, SLOW)).collect();
    let truth = Cluster { sizes: &[1; 4], inside: 1e-4, between: SLOW, shared }.build();
    let mut probe = Simulated { credit: 64 << 10, ..Simulated::new(&truth) };
    let measured = profile(&mut probe, &knowing_machines(&truth), &mut |_| {}).unwrap();
    for link in measured.topology.links() {
        assert!((link.beta.0 / SLOW - 1.0).abs() < 0.05, "{link:?}");
    }
    assert!(measured.links.iter().all(|fit| (fit.burst.0 / 65_536.0 - 1.0).abs() < 0.4), "{:?}", measured.links);
    assert_eq!(measured.topology.resources().len(), 8, "{:?}", measured.topology.resources());
}

#[test]
fn finds_nics_that_both_directions_share() {
    let (all, beta) = (|| (0..4).map(Rank::from_index), MicrosPerByte(SLOW));
    let pairs = all().flat_map(|from| all().filter(move |to| *to != from).map(move |to| (from, to)));
    let own = |rank: Rank| ResourceId::from_index(rank.index());
    let link = |(from, to)| Link {
        from,
        to,
        alpha: Micros(30.0),
        beta,
        latency: Latency::Pipelines,
        resources: vec![own(from), own(to)].into(),
    };
    let truth = Topology::new(TopologyParts {
        name: "half duplex".to_owned(),
        ranks: 4,
        machines: all().map(|rank| vec![rank]).collect(),
        links: pairs.map(link).collect(),
        resources: all().map(|rank| Resource::new(format!("nic{rank}"), beta)).collect(),
    })
    .unwrap();
    assert_same(&truth, &measure(&truth, &knowing_machines(&truth)).0);
}

/// Four hosts, one at a quarter of the others' rate.
fn with_a_slow_host() -> Topology {
    let shared = (0..4).map(|host| (vec![host], if host == 3 { 4.0 * SLOW } else { SLOW })).map(|(of, b)| (of, b, b));
    Cluster { sizes: &[1; 4], inside: 1e-4, between: SLOW, shared: shared.collect() }.build()
}

#[test]
fn a_slow_host_does_not_hide_what_the_others_share() {
    let truth = with_a_slow_host();
    let (measured, mut probe) = measure(&truth, &knowing_machines(&truth));
    assert_same(&truth, &measured);
    assert_predicts(&measured, &mut probe);
}

#[test]
fn lost_segments_do_not_pass_for_sharing() {
    let truth = with_a_slow_host();
    for losses in [0.05, 0.1, 0.2] {
        let mut probe = Simulated { losses, ..Simulated::new(&truth) };
        let measured = profile(&mut probe, &knowing_machines(&truth), &mut |_| {}).unwrap();
        assert_same(&truth, &measured);
    }
}

#[test]
fn lumps_of_shaped_links_average_out() {
    let truth = with_a_slow_host();
    let mut probe = Simulated { credit: 16 << 10, lump: 16 << 10, ..Simulated::new(&truth) };
    let measured = profile(&mut probe, &knowing_machines(&truth), &mut |_| {}).unwrap();
    for link in measured.topology.links() {
        let slow = if link.from == Rank(3) || link.to == Rank(3) { 4.0 * SLOW } else { SLOW };
        assert!((link.beta.0 / slow - 1.0).abs() < 0.04, "{link:?}");
    }
    assert_eq!(measured.topology.resources().len(), 8, "{:?}", measured.topology.resources());
}

#[test]
fn a_time_limit_is_kept_and_eight_hosts_are_still_known() {
    let shared = (0..8).map(|host| (vec![host], if host == 3 { 2.0 * SLOW } else { SLOW })).map(|(of, b)| (of, b, b));
    let truth = Cluster { sizes: &[1; 8], inside: 1e-4, between: SLOW, shared: shared.collect() }.build();
    let within = |seconds: u64| {
        let limit = Some(Duration::from_secs(seconds));
        let (measured, probe) = measure(&truth, &ProfileOptions { limit, ..knowing_machines(&truth) });
        (probe.clock / 1e6, measured)
    };
    let ((free, _), (minute, known), (short, late)) = (within(1000), within(60), within(10));
    assert_same(&truth, &known);
    assert!(free > 100.0 && minute < 66.0 && short < minute, "{free} s, {minute} s, {short} s");
    assert!(late.notes.join(" ").contains("was used up"), "{:?}", late.notes);
}

#[test]
fn rounds_grow_with_the_ranks_and_not_with_the_pairs() {
    let runs = |ranks: usize| {
        let truth = resolve(&format!("clique:{ranks},alpha=1us,bandwidth=10GBps")).unwrap();
        measure(&truth, &ProfileOptions { most_turns: 3, ..ProfileOptions::default() }).1.runs as f64
    };
    let (few, many) = (runs(8), runs(32));
    assert!(many < 6.0 * few, "{few} runs for 8 ranks, {many} for 32: there are 18 times as many pairs");
}

#[test]
fn odd_answers_are_errors() {
    struct Broken(Micros, usize);
    impl Probe for Broken {
        fn rank_count(&self) -> usize {
            2
        }
        fn run(&mut self, exchanges: &[Exchange], repetitions: u32) -> Result<Vec<Vec<Micros>>, ProbeError> {
            Ok(vec![vec![self.0; exchanges.len() - self.1]; repetitions as usize])
        }
    }
    let options = ProfileOptions::default();
    let ask = |time: f64, missing: usize, options: &ProfileOptions| {
        profile(&mut Broken(Micros(time), missing), options, &mut |_| {}).expect_err("broken").to_string()
    };
    assert_eq!(ask(1.0, 1, &options), "the probe was asked for 1 times and returned 0");
    assert!(ask(-1.0, 0, &options).contains(": a measured time is -1 µs"));
    assert!(ask(f64::NAN, 0, &options).contains(": a measured time is NaN µs"));
    let two_homes = ProfileOptions { machines: Some(vec![vec![Rank(0)], vec![Rank(0)]]), ..options };
    assert!(ask(1.0, 0, &two_homes).contains("belongs to exactly one"));
}

//! Measures a machine: which exchanges to time, and what they say together.
//!
//! The principal function is [`profile`]; its result is a [`Measured`] topology. First every ordered pair is
//! swept over message sizes and counts until its α and β are known well enough. Then the ranks that might share
//! something are made to send at the same time: if that takes clearly longer than their links would alone, what
//! they share becomes a resource, whose β is the slope of time over the bytes of all of them together.
//!
//! Pairs that share no rank can be timed at the same time, which takes O(N) rounds in place of N²; but where such
//! pairs share a NIC each then sees only a part of it. So [`Pairing::OneByOne`] is the rule for small machines.

use crate::fit::{FitError, LinkFit, Sample, fit_link, fit_resource, median};
use crate::measured::{Measured, SharedFit};
use crate::rounds::{Pair, Round, disjoint, one_by_one};
use crate::suspicion::{Suspicion, suspicions};
use crate::{Bytes, Exchange, MAX_LINKS, Micros, Probe, ProbeError, Rank, Topology, TopologyError, TopologyParts};
use std::collections::BTreeMap;

/// A size and a number of messages to sweep.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Setting {
    /// Bytes in each message.
    pub bytes: u64,
    /// Messages sent back to back.
    pub messages: u32,
}

/// Which pairs are timed at the same time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pairing {
    /// One pair at a time: N·(N−1) rounds, nothing disturbs anything.
    OneByOne,
    /// All pairs of a round without a common rank: about 2·N rounds.
    Disjoint,
}

/// How to measure.
#[derive(Clone, PartialEq, Debug)]
pub struct ProfileOptions {
    /// What each pair is swept over.
    pub settings: Vec<Setting>,
    /// Which pairs are timed together.
    pub pairing: Pairing,
    /// Repetitions of the sweep before its result is looked at.
    pub least_repetitions: u32,
    /// Repetitions after which the result stands, however wide its margins.
    pub most_repetitions: u32,
    /// Relative margin of α and β at which a pair is known well enough.
    pub precision: f64,
    /// Bytes per message of the concurrent runs that look for shared resources, the most telling (largest) last;
    /// with fewer than two there is no search.
    pub concurrent_bytes: Vec<u64>,
    /// Which ranks share a machine; empty means that all do.
    pub machines: Vec<Vec<Rank>>,
}

impl ProfileOptions {
    /// Options for so many ranks: about a second for a pair on a slow network, milliseconds on a fast one.
    pub fn for_ranks(ranks: usize) -> Self {
        let sweep = [(64, 1), (64, 16), (4 << 10, 1), (4 << 10, 8), (64 << 10, 1), (256 << 10, 4), (1 << 20, 1)];
        Self {
            settings: sweep.map(|(bytes, messages)| Setting { bytes, messages }).to_vec(),
            pairing: if ranks <= 16 { Pairing::OneByOne } else { Pairing::Disjoint },
            least_repetitions: 7,
            most_repetitions: 35,
            precision: 0.05,
            concurrent_bytes: vec![64 << 10, 256 << 10, 1 << 20],
            machines: Vec::new(),
        }
    }
}

/// How far a profile has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Progress {
    /// Rounds and concurrent runs that are done.
    pub done: usize,
    /// How many there are; grows once, when the costs of the pairs show what might be shared.
    pub total: usize,
}

/// Why a machine could not be measured.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProfileError {
    /// The probe gave up.
    #[error(transparent)]
    Probe(#[from] ProbeError),
    /// The probe did not answer what it was asked.
    #[error("the probe was asked for {asked} times and returned {returned}")]
    WrongCount {
        /// Exchanges in the run.
        asked: usize,
        /// Times that came back.
        returned: usize,
    },
    /// The times of a pair make no sense.
    #[error("rank {from} to rank {to}: {cause}")]
    Fit {
        /// The sender.
        from: Rank,
        /// The receiver.
        to: Rank,
        /// What is wrong with its times.
        cause: FitError,
    },
    /// What was measured is no valid topology, or too large a one.
    #[error(transparent)]
    Topology(#[from] TopologyError),
}

/// Concurrent sending counts as sharing from this factor over the slowest link alone.
const SHARING: f64 = 1.3;

/// Measures every pair of ranks, and what they share.
///
/// # Errors
/// [`ProfileError`] if the probe fails, or if its times cannot be explained by α and β.
pub fn profile(
    probe: &mut dyn Probe,
    options: &ProfileOptions,
    progress: &mut dyn FnMut(Progress),
) -> Result<Measured, ProfileError> {
    let ranks = probe.rank_count();
    let links = ranks as u128 * (ranks as u128).saturating_sub(1);
    if links > MAX_LINKS as u128 {
        let count = u64::try_from(links).unwrap_or(u64::MAX);
        return Err(TopologyError::TooMany { what: "links", count, limit: MAX_LINKS as u64 }.into());
    }
    // The machines alone, without links: checks that they partition the ranks before anything is timed.
    let places =
        Topology::new(TopologyParts { ranks, machines: options.machines.clone(), ..TopologyParts::default() })?;
    let rounds: Vec<Round> = match options.pairing {
        Pairing::OneByOne => one_by_one(ranks).collect(),
        Pairing::Disjoint => disjoint(ranks).collect(),
    };
    let mut fits = BTreeMap::new();
    for (index, round) in rounds.iter().enumerate() {
        sweep(probe, round, options, &mut fits)?;
        progress(Progress { done: index + 1, total: rounds.len() });
    }
    let suspicions = if options.concurrent_bytes.len() < 2 { Vec::new() } else { suspicions(&places, &fits) };
    let total = rounds.len() + suspicions.len();
    let mut shared: Vec<SharedFit> = Vec::new();
    for (index, suspicion) in suspicions.into_iter().enumerate() {
        shared.extend(contention(probe, suspicion, options, &fits, &shared)?);
        progress(Progress { done: rounds.len() + index + 1, total });
    }
    Ok(Measured::new(&places, fits, shared)?)
}

/// Sweeps the pairs of one round until all are known well enough, or the repetitions are used up.
fn sweep(
    probe: &mut dyn Probe,
    round: &Round,
    options: &ProfileOptions,
    fits: &mut BTreeMap<Pair, LinkFit>,
) -> Result<(), ProfileError> {
    // The first time around, connections are made and pages are touched.
    for setting in &options.settings {
        run(probe, round, *setting)?;
    }
    let mut samples: Vec<Vec<Sample>> = vec![Vec::new(); round.len()];
    for repetition in 1..=options.most_repetitions.max(1) {
        for setting in &options.settings {
            let times = run(probe, round, *setting)?;
            for (samples, time) in samples.iter_mut().zip(times) {
                samples.push(Sample { bytes: setting.bytes, messages: setting.messages, time });
            }
        }
        if repetition < options.least_repetitions.min(options.most_repetitions) {
            continue;
        }
        let mut precise = true;
        for (pair, samples) in round.iter().zip(&samples) {
            let fit = fit_link(samples).map_err(|cause| ProfileError::Fit { from: pair.from, to: pair.to, cause })?;
            precise &= fit.alpha_margin.0 <= options.precision * fit.alpha.0
                && fit.beta_margin.0 <= options.precision * fit.beta.0;
            fits.insert(*pair, fit);
        }
        if precise {
            break;
        }
    }
    Ok(())
}

/// What the suspected pairs share, if sending together takes clearly longer than is explained without it.
fn contention(
    probe: &mut dyn Probe,
    suspicion: Suspicion,
    options: &ProfileOptions,
    fits: &BTreeMap<Pair, LinkFit>,
    known: &[SharedFit],
) -> Result<Option<SharedFit>, ProfileError> {
    let pairs = &suspicion.tested;
    let mut samples = Vec::new();
    let mut shows = false;
    for &bytes in &options.concurrent_bytes {
        let setting = Setting { bytes, messages: 1 };
        run(probe, pairs, setting)?;
        let mut times: Vec<Vec<f64>> = vec![Vec::new(); pairs.len()];
        for _ in 0..options.least_repetitions.max(1) {
            let run = run(probe, pairs, setting)?;
            times.iter_mut().zip(run).for_each(|(times, time)| times.push(time.0));
        }
        // The pair that is last as a rule, not the last of each run: with many pairs one of them always hiccups.
        let by_median = |left: &Vec<f64>, right: &Vec<f64>| median(left.clone()).total_cmp(&median(right.clone()));
        let last = times.into_iter().max_by(by_median).unwrap_or_default();
        shows = median(last.clone()) > SHARING * explained(pairs, bytes, fits, known).0;
        let total = bytes.saturating_mul(pairs.len() as u64);
        samples.extend(last.into_iter().map(|time| Sample { bytes: total, messages: 1, time: Micros(time) }));
    }
    if !shows {
        return Ok(None);
    }
    let fit = fit_resource(&samples).map_err(|cause| {
        let Pair { from, to } = pairs[0];
        ProfileError::Fit { from, to, cause }
    })?;
    Ok(Some(SharedFit { name: suspicion.name, fit, users: suspicion.users }))
}

/// How long the pairs should take together, given their own costs and the resources found so far.
fn explained(pairs: &[Pair], bytes: u64, fits: &BTreeMap<Pair, LinkFit>, known: &[SharedFit]) -> Micros {
    let bytes = Bytes(bytes as f64);
    let own = pairs.iter().filter_map(|pair| fits.get(pair)).map(|fit| fit.alpha + fit.beta * bytes);
    let shared = known.iter().map(|shared| {
        let users = pairs.iter().filter(|pair| shared.users.binary_search(pair).is_ok()).count();
        shared.fit.beta * bytes * users as f64
    });
    own.chain(shared).fold(Micros::ZERO, Micros::max)
}

fn run(probe: &mut dyn Probe, pairs: &[Pair], setting: Setting) -> Result<Vec<Micros>, ProfileError> {
    let exchange =
        |pair: &Pair| Exchange { from: pair.from, to: pair.to, bytes: setting.bytes, messages: setting.messages };
    let exchanges: Vec<Exchange> = pairs.iter().map(exchange).collect();
    let times = probe.run(&exchanges, 1)?.pop().unwrap_or_default();
    if times.len() == exchanges.len() {
        Ok(times)
    } else {
        Err(ProfileError::WrongCount { asked: exchanges.len(), returned: times.len() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fit::tests::Noise;
    use crate::{Latency, resolve};

    /// A machine that behaves as a topology says, with the noise of a real one: messages on one link follow each
    /// other, and links that share a resource wait for each other's bytes.
    struct Emulated {
        truth: Topology,
        noise: Noise,
        runs: usize,
    }

    impl Emulated {
        fn new(truth: Topology) -> Self {
            Self { truth, noise: Noise(11), runs: 0 }
        }
    }

    impl Probe for Emulated {
        fn rank_count(&self) -> usize {
            self.truth.rank_count()
        }

        fn run(&mut self, exchanges: &[Exchange], _: u32) -> Result<Vec<Vec<Micros>>, ProbeError> {
            self.runs += 1;
            let link = |exchange: &Exchange| self.truth.between(exchange.from, exchange.to).next().expect("a link");
            let mut busy = vec![0.0; self.truth.resources().len()];
            for exchange in exchanges {
                for id in &self.truth.link(link(exchange)).resources {
                    let bytes = exchange.bytes as f64 * f64::from(exchange.messages);
                    busy[id.index()] += self.truth.resource(*id).beta.0 * bytes;
                }
            }
            let ideal: Vec<f64> = exchanges
                .iter()
                .map(|exchange| {
                    let link = self.truth.link(link(exchange));
                    let (bytes, messages) = (exchange.bytes as f64, f64::from(exchange.messages));
                    let alphas = if link.latency == Latency::Occupies { messages } else { 1.0 };
                    let wait = link.resources.iter().map(|id| busy[id.index()]).fold(0.0, f64::max);
                    alphas * link.alpha.0 + wait.max(messages * bytes * link.beta.0)
                })
                .collect();
            Ok(vec![ideal.into_iter().map(|time| Micros(time * self.noise.factor())).collect()])
        }
    }

    fn measure(truth: &Topology, options: &ProfileOptions) -> (Measured, Emulated) {
        let mut probe = Emulated::new(truth.clone());
        let measured = profile(&mut probe, options, &mut |_| {}).unwrap();
        (measured, probe)
    }

    fn assert_close(truth: &Topology, measured: &Topology) {
        assert_eq!(truth.links().len(), measured.links().len());
        for (truth, link) in truth.links().iter().zip(measured.links()) {
            assert_eq!((truth.from, truth.to, truth.latency), (link.from, link.to, link.latency));
            assert!((link.alpha / truth.alpha - 1.0).abs() < 0.06, "{truth:?} {link:?}");
            assert!((link.beta / truth.beta - 1.0).abs() < 0.06, "{truth:?} {link:?}");
        }
    }

    #[test]
    fn measures_cliques_without_inventing_contention() {
        for ranks in [1, 2, 5] {
            let truth = resolve(&format!("clique:{ranks},alpha=1.5us,bandwidth=12.5GBps")).unwrap();
            let (measured, _) = measure(&truth, &ProfileOptions::for_ranks(ranks));
            assert_close(&truth, &measured.topology);
            assert!(measured.topology.resources().is_empty(), "{:?}", measured.topology.resources());
        }
    }

    #[test]
    fn finds_the_ports_of_a_switch() {
        let truth = resolve("switch:5,alpha=2us,bandwidth=10GBps,latency=pipelines").unwrap();
        let (measured, _) = measure(&truth, &ProfileOptions::for_ranks(5));
        assert_close(&truth, &measured.topology);
        let name = |resource: &crate::Resource| resource.name.clone();
        let mut names: Vec<String> = truth.resources().iter().map(name).collect();
        let mut found: Vec<String> = measured.topology.resources().iter().map(name).collect();
        names.sort();
        found.sort();
        assert_eq!(names, found);

        let yaml = measured.to_yaml("An emulated switch.\nSecond line.");
        assert!(yaml.starts_with("# An emulated switch.\n# Second line.\nformat: antiphon-topology/1\n"), "{yaml}");
        let margins = yaml.lines().filter(|line| line.starts_with("- {from:") && line.contains("} # α ±"));
        assert_eq!(margins.count(), 20, "{yaml}");
        let document = crate::document::Document::yaml("measured.yaml", &yaml);
        assert_eq!(crate::interchange::from_document(&document), Ok(measured.topology));
    }

    #[test]
    fn finds_a_slow_link() {
        let mut parts = TopologyParts { ranks: 4, ..TopologyParts::default() };
        parts.links = resolve("clique:4,alpha=1us,bandwidth=10GBps").unwrap().links().to_vec();
        parts.links[7].beta = parts.links[7].beta * 8.0;
        let truth = Topology::new(parts).unwrap();
        let (measured, _) = measure(&truth, &ProfileOptions::for_ranks(4));
        assert_close(&truth, &measured.topology);
    }

    #[test]
    fn finds_a_shared_nic_between_machines() {
        // Two machines of four: ample links inside, one NIC each way out.
        let text = "format: antiphon-machine/1
name: pair
about: two
source: made up
ranks: 4
parts:
  mesh: {inside: all}
  nic: {between: all, ports: [[0, 1, 2, 3]]}
keys:
  costs:
    only:
      parts:
        mesh: {alpha: 1us, bandwidth: 50GBps}
        nic: {alpha: 5us, bandwidth: 5GBps}
";
        let machine = crate::machine::parse(crate::document::Document::yaml("pair", text)).unwrap();
        let spec = crate::spec::Spec::parse("pair", None).unwrap();
        let truth = Topology::new(machine.build(Some(2), &spec).unwrap()).unwrap();
        let options = ProfileOptions { machines: truth.machines().to_vec(), ..ProfileOptions::for_ranks(8) };
        let (measured, _) = measure(&truth, &options);
        assert_close(&truth, &measured.topology);
        for link in measured.topology.links() {
            let crosses = measured.topology.crosses_machines(link);
            assert_eq!(link.resources.is_empty(), !crosses, "{link:?}");
        }
        let nics = measured.topology.resources();
        assert!(nics.iter().all(|nic| (nic.beta.gbps() / 5.0 - 1.0).abs() < 0.05), "{nics:?}");
        assert_eq!(nics.iter().filter(|nic| nic.name.contains("nic")).count(), nics.len(), "{nics:?}");
    }

    #[test]
    fn disjoint_pairs_take_rounds_in_proportion_to_the_ranks() {
        let truth = resolve("clique:12,alpha=1us,bandwidth=10GBps").unwrap();
        let mut options = ProfileOptions { concurrent_bytes: Vec::new(), ..ProfileOptions::for_ranks(12) };
        options.most_repetitions = options.least_repetitions;
        let runs = |pairing| measure(&truth, &ProfileOptions { pairing, ..options.clone() }).1.runs;
        assert_eq!(runs(Pairing::OneByOne), 6 * runs(Pairing::Disjoint));
    }

    #[test]
    fn odd_answers_are_errors() {
        struct Broken(Vec<Micros>);
        impl Probe for Broken {
            fn rank_count(&self) -> usize {
                2
            }
            fn run(&mut self, _: &[Exchange], _: u32) -> Result<Vec<Vec<Micros>>, ProbeError> {
                Ok(vec![self.0.clone()])
            }
        }
        let options = ProfileOptions::for_ranks(2);
        let ask = |times: Vec<Micros>, options: &ProfileOptions| {
            profile(&mut Broken(times), options, &mut |_| {}).expect_err("broken").to_string()
        };
        assert_eq!(ask(vec![], &options), "the probe was asked for 1 times and returned 0");
        assert!(ask(vec![Micros(-1.0)], &options).starts_with("rank 0 to rank 1: a measured time is -1 µs"));
        let two_homes = ProfileOptions { machines: vec![vec![Rank(0)], vec![Rank(0)]], ..options };
        assert!(ask(vec![Micros(1.0)], &two_homes).contains("belongs to exactly one"));
    }
}

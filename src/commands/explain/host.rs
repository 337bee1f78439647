//! What messages take on the ranks of a plan beyond α + β·bytes, as a correction of the topology.
//!
//! The principal functions are [`fitted`] and [`with_host`]. Single messages wait for each other, so their times count the same
//! work many times. The time of the whole plan counts it once: α is fitted at a small size and β at the plan's own, by playing
//! the plan on corrected topologies until it takes what was measured.

use crate::failure::{Failure, Outcome};
use serde::Serialize;
use topology::{LinkId, Micros, MicrosPerByte, Topology, TopologyParts};

/// How often α is fitted for the last β, and β for the last α.
const ROUNDS: usize = 3;
/// How often an interval is cut into halves.
const HALVINGS: usize = 24;
/// How often an interval is doubled until it holds the answer.
const DOUBLINGS: usize = 40;

/// What messages take beyond α + β·bytes: for those inside machines or between them.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct HostTerm {
    pub(super) between_machines: bool,
    /// For each message, in microseconds.
    pub(super) alpha_us: f64,
    /// For each byte, in microseconds.
    pub(super) beta_us_per_byte: f64,
    /// From so many messages.
    pub(super) messages: usize,
}

/// A plan's time at one size.
#[derive(Clone, Copy, Debug)]
pub(super) struct PlanTime {
    pub(super) bytes: u64,
    pub(super) measured_us: f64,
}

/// What a plan takes on a topology at a size, in microseconds; `None` if it cannot be played there.
pub(super) type Played<'a> = &'a dyn Fn(Topology, u64) -> Option<f64>;

/// The terms with which a plan takes what was measured at a small size and at a large one. `seen` are the terms of single messages,
/// which say how the terms of transports compare.
pub(super) fn fitted(
    topology: &Topology,
    seen: &[HostTerm],
    [small, large]: [PlanTime; 2],
    played: Played<'_>,
) -> Option<Vec<HostTerm>> {
    let share = |of: fn(&HostTerm) -> f64| -> Vec<f64> {
        let most = seen.iter().map(of).fold(0.0, f64::max);
        seen.iter().map(|term| if most > 0.0 { (of(term) / most).max(0.0) } else { 1.0 }).collect()
    };
    let (alphas, betas) = (share(|term| term.alpha_us), share(|term| term.beta_us_per_byte));
    let terms = |alpha: f64, beta: f64| -> Vec<HostTerm> {
        let shares = seen.iter().zip(alphas.iter().zip(&betas));
        let term = |(term, (of_alpha, of_beta)): (&HostTerm, (&f64, &f64))| HostTerm {
            alpha_us: alpha * of_alpha,
            beta_us_per_byte: beta * of_beta,
            ..*term
        };
        shares.map(term).collect()
    };
    let time = |alpha: f64, beta: f64, bytes: u64| played(with_host(topology, &terms(alpha, beta)).ok()?, bytes);
    // Nothing is left of α or β if these are taken away.
    let most = |of: &dyn Fn(&topology::Link) -> f64| topology.links().iter().map(of).fold(1e-9, f64::max);
    let (all_alpha, all_beta) = (2.0 * most(&|link| link.alpha.0), most(&|link| link.beta.0));
    let (mut alpha, mut beta) = (0.0, 0.0);
    for _ in 0..ROUNDS {
        alpha = solved(all_alpha, small.measured_us, &|alpha| time(alpha, beta, small.bytes))?;
        beta = solved(all_beta, large.measured_us, &|beta| time(alpha, beta, large.bytes))?;
    }
    Some(terms(alpha, beta))
}

/// Where a function that never falls reaches `target`, from `-scale` on. The lower end if it is above everywhere.
fn solved(scale: f64, target: f64, of: &dyn Fn(f64) -> Option<f64>) -> Option<f64> {
    let (mut low, mut high) = (-scale, scale);
    for _ in 0..DOUBLINGS {
        if of(high)? >= target {
            break;
        }
        (low, high) = (high, 2.0 * high);
    }
    for _ in 0..HALVINGS {
        let middle = f64::midpoint(low, high);
        match of(middle)? < target {
            true => low = middle,
            false => high = middle,
        }
    }
    Some(high)
}

/// The topology with the host's terms. Where links share the cores of their machine, these take the time. Elsewhere each link does.
pub(super) fn with_host(topology: &Topology, host: &[HostTerm]) -> Outcome<Topology> {
    let mut resources = topology.resources().to_vec();
    let mut links = topology.links().to_vec();
    for term in host {
        let concerned = |id: &LinkId| topology.crosses_machines(topology.link(*id)) == term.between_machines;
        for id in topology.link_ids().filter(concerned) {
            let cores: Vec<_> = topology.link(id).resources.iter().map(|id| id.index()).collect();
            let cores = cores.into_iter().filter(|&id| topology.resources()[id].alpha > Micros::ZERO);
            let mut own = [term.alpha_us, term.beta_us_per_byte];
            for core in cores {
                let known = &topology.resources()[core];
                let [alpha, beta] = [known.alpha.0 + term.alpha_us, known.beta.0 + term.beta_us_per_byte];
                resources[core].alpha = Micros(alpha.max(0.0));
                resources[core].beta = MicrosPerByte(beta.max(0.0));
                // The link itself changes only where less than nothing would be left for the cores.
                own = [alpha.min(0.0), term.beta_us_per_byte.min(0.0)];
            }
            let link = &mut links[id.index()];
            link.alpha = Micros((link.alpha.0 + own[0]).max(0.0));
            link.beta = MicrosPerByte((link.beta.0 + own[1]).max(0.0));
        }
    }
    // A link is no faster than what it shares with others.
    for link in &mut links {
        for shared in link.resources.iter().map(|id| &resources[id.index()]) {
            (link.alpha, link.beta) = (link.alpha.max(shared.alpha), link.beta.max(shared.beta));
        }
    }
    let parts = TopologyParts {
        name: format!("{} as measured", topology.name()),
        ranks: topology.rank_count(),
        machines: topology.machines().to_vec(),
        resources,
        links,
    };
    Topology::new(parts).map_err(Failure::no)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Three ranks that share cores, and one on another machine.
    fn machine(cores: &str) -> Topology {
        let pair = |from: u32, to: u32| match from == 3 || to == 3 {
            true => format!(
                r#"{{"from": {from}, "to": {to}, "alpha_us": 30, "beta_us_per_byte": 0.001, "latency": "pipelines"}}"#
            ),
            false => format!(
                r#"{{"from": {from}, "to": {to}, "alpha_us": 4, "beta_us_per_byte": 0.0002, "latency": "pipelines", "resources": [0]}}"#
            ),
        };
        let pairs = (0..4).flat_map(|from| (0..4).filter(move |&to| to != from).map(move |to| pair(from, to)));
        let links = pairs.collect::<Vec<_>>().join(", ");
        let text = format!(
            r#"{{"format": "antiphon-topology/1", "ranks": 4, "machines": [[0, 1, 2], [3]], "links": [{links}],
                "resources": [{{"name": "machine0.cores", "beta_us_per_byte": 0.0001{cores}}}]}}"#
        );
        topology::from_json(&text, "machine").unwrap()
    }

    fn term(between_machines: bool, alpha_us: f64, beta_us_per_byte: f64) -> HostTerm {
        HostTerm { between_machines, alpha_us, beta_us_per_byte, messages: 6 }
    }

    #[test]
    fn cores_take_the_time_where_links_share_them() {
        let known = machine(r#", "alpha_us": 0.5"#);
        let more = with_host(&known, &[term(false, 0.25, 0.0004), term(true, 5.0, 0.0)]).unwrap();
        let core = &more.resources()[0];
        assert_eq!((core.alpha.0, core.beta.0), (0.75, 0.0005));
        let costs = |id: usize| (more.links()[id].alpha.0, more.links()[id].beta.0);
        assert_eq!((costs(0), costs(2)), ((4.0, 0.0005), (35.0, 0.001)));
        // What cores cannot give back, the link does; nothing costs less than nothing.
        let less = with_host(&known, &[term(false, -1.5, -0.1)]).unwrap();
        assert_eq!((less.resources()[0].alpha.0, less.links()[0].alpha.0, less.links()[0].beta.0), (0.0, 3.0, 0.0));
        // A bus is not the cores: there, each link takes the time.
        let bus = with_host(&machine(""), &[term(false, 0.25, 0.0)]).unwrap();
        assert_eq!((bus.resources()[0].alpha.0, bus.links()[0].alpha.0), (0.0, 4.25));
    }

    #[test]
    fn the_time_of_a_whole_plan_tells_what_its_messages_take() {
        let known = machine(r#", "alpha_us": 0.5"#);
        let truth = with_host(&known, &[term(false, 0.8, 0.0003), term(true, 8.0, 0.003)]).unwrap();
        // A hundred messages over the cores, and then one to the other machine.
        let played = |machine: Topology, bytes: u64| {
            let (core, bytes) = (&machine.resources()[0], bytes as f64);
            let between = machine.links()[2].alpha.0 + machine.links()[2].beta.0 * bytes;
            Some(100.0 * (core.alpha.0 + core.beta.0 * bytes) + machine.links()[0].alpha.0 + between)
        };
        let at = |bytes: u64| PlanTime { bytes, measured_us: played(truth.clone(), bytes).unwrap() };
        // Single messages waited for each other: all of their terms are far too large, but in the right proportion.
        let seen = [term(false, 80.0, 0.03), term(true, 800.0, 0.3)];
        let found = fitted(&known, &seen, [at(1 << 10), at(1 << 20)], &played).unwrap();
        let close = |found: f64, truth: f64| (found / truth - 1.0).abs() < 1e-3;
        assert!(close(found[0].alpha_us, 0.8) && close(found[0].beta_us_per_byte, 0.0003), "{found:?}");
        assert!(close(found[1].alpha_us, 8.0) && close(found[1].beta_us_per_byte, 0.003), "{found:?}");
    }
}

//! A measured topology, and the file that a person reads, edits and loads again.
//!
//! The principal type is [`Measured`]. Its YAML is `antiphon-topology/1` with a line for each link; the margins
//! stand in comments, because they say how well the numbers are known and are no part of the machine.

use crate::fit::{LinkFit, ResourceFit};
use crate::interchange::{FORMAT, json};
use crate::rounds::Pair;
use crate::{Link, Micros, MicrosPerByte, Resource, ResourceId, Topology, TopologyParts, TopologyResult};
use std::collections::BTreeMap;
use std::fmt::Write;

/// What a profile found.
#[derive(Clone, PartialEq, Debug)]
pub struct Measured {
    /// The machine.
    pub topology: Topology,
    /// How each link was measured, in the order of the links.
    pub links: Vec<LinkFit>,
    /// How each resource was measured, in the order of the resources.
    pub resources: Vec<ResourceFit>,
}

/// A resource that was found, and the links that use it, sorted.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct SharedFit {
    pub(crate) name: String,
    pub(crate) fit: ResourceFit,
    pub(crate) users: Vec<Pair>,
}

impl Measured {
    /// Puts links and resources together on the machines of `places`. A link that measured faster than what it
    /// shares is as slow as that. Where noise hides the bytes altogether, β is that of the fastest link known: no
    /// wire is infinitely fast. Numbers keep the digits that a measurement can have.
    pub(crate) fn new(
        places: &Topology,
        fits: BTreeMap<Pair, LinkFit>,
        shared: Vec<SharedFit>,
    ) -> TopologyResult<Self> {
        let mut uses: BTreeMap<Pair, Vec<ResourceId>> = BTreeMap::new();
        for (index, shared) in shared.iter().enumerate() {
            for user in &shared.users {
                uses.entry(*user).or_default().push(ResourceId::from_index(index));
            }
        }
        let known = fits.values().map(|fit| fit.beta.0).filter(|&beta| beta > 0.0);
        let fastest = MicrosPerByte(known.min_by(f64::total_cmp).unwrap_or(0.0));
        let link = |(pair, fit): (&Pair, &LinkFit)| {
            let resources = uses.remove(pair).unwrap_or_default();
            let slowest = resources.iter().map(|id| shared[id.index()].fit.beta);
            let beta = slowest.fold(fit.beta.max(fastest), MicrosPerByte::max);
            Link {
                from: pair.from,
                to: pair.to,
                alpha: Micros(rounded(fit.alpha.0)),
                beta: MicrosPerByte(rounded(beta.0)),
                latency: fit.latency,
                resources: resources.into(),
            }
        };
        let topology = Topology::new(TopologyParts {
            name: "measured".to_owned(),
            ranks: places.rank_count(),
            machines: places.machines().to_vec(),
            links: fits.iter().map(link).collect(),
            resources: shared
                .iter()
                .map(|shared| Resource { name: shared.name.clone(), beta: MicrosPerByte(rounded(shared.fit.beta.0)) })
                .collect(),
        })?;
        let resources = shared.into_iter().map(|shared| shared.fit).collect();
        Ok(Self { topology, links: fits.into_values().collect(), resources })
    }

    /// Prints the topology as YAML, with the margins of each number beside it. `about` is printed in front, line
    /// by line: how, when and where it was measured.
    pub fn to_yaml(&self, about: &str) -> String {
        let links = self.links.iter().map(|fit| {
            let bandwidth = crate::quantity::show_bandwidth(fit.beta);
            format!(
                "α ±{}, {bandwidth} ±{}, worst error {}, {} samples and {} outliers",
                percent(fit.alpha_margin / fit.alpha),
                percent(fit.beta_margin / fit.beta),
                percent(fit.worst_error),
                fit.samples,
                fit.outliers
            )
        });
        let resources = self.resources.iter().map(|fit| {
            let bandwidth = crate::quantity::show_bandwidth(fit.beta);
            format!("{bandwidth} ±{}", percent(fit.beta_margin / fit.beta))
        });
        print(&self.topology, about, links, resources)
    }
}

/// Four significant digits, more than any of these measurements is good for; monotonic, so order survives.
fn rounded(value: f64) -> f64 {
    format!("{value:.3e}").parse().unwrap_or(value)
}

/// Prints any topology as YAML that [`crate::load`] reads back exactly.
pub fn to_yaml(topology: &Topology, about: &str) -> String {
    print(topology, about, std::iter::empty(), std::iter::empty())
}

/// `links` and `resources` are what to say beside each entry; shorter lists leave the rest without.
pub(crate) fn print(
    topology: &Topology,
    about: &str,
    mut links: impl Iterator<Item = String>,
    mut resources: impl Iterator<Item = String>,
) -> String {
    let mut text = String::new();
    for line in about.lines() {
        let _ = writeln!(text, "# {line}");
    }
    let _ = writeln!(text, "format: {FORMAT}\nname: {}", json(&topology.name()));
    let _ = writeln!(text, "ranks: {}\nmachines: {}", topology.rank_count(), json(&topology.machines()));
    text.push_str(if topology.links().is_empty() { "links: []\n" } else { "links:\n" });
    for link in topology.links() {
        let _ = write!(text, "- {{from: {}, to: {}, alpha_us: {}, ", link.from, link.to, link.alpha.0);
        let _ = write!(text, "beta_us_per_byte: {}, latency: {}", link.beta.0, json(&link.latency).trim_matches('"'));
        if !link.resources.is_empty() {
            let _ = write!(text, ", resources: {}", json(&link.resources));
        }
        close(&mut text, links.next());
    }
    if !topology.resources().is_empty() {
        text.push_str("resources:\n");
    }
    for (id, resource) in topology.resources().iter().enumerate() {
        let name = json(&resource.name);
        let _ = write!(text, "- {{id: {id}, name: {name}, beta_us_per_byte: {}", resource.beta.0);
        close(&mut text, resources.next());
    }
    text
}

fn close(text: &mut String, comment: Option<String>) {
    match comment {
        Some(comment) => {
            let _ = writeln!(text, "}} # {}", comment.replace(char::is_control, " "));
        }
        None => text.push_str("}\n"),
    }
}

/// A ratio for people; what is measured as zero has no relative error.
fn percent(ratio: f64) -> String {
    if ratio.is_finite() { format!("{:.1} %", 100.0 * ratio) } else { "?".to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Latency, Rank};

    fn fit(alpha: f64, beta: f64) -> LinkFit {
        LinkFit {
            alpha: Micros(alpha),
            alpha_margin: Micros::ZERO,
            beta: MicrosPerByte(beta),
            beta_margin: MicrosPerByte::ZERO,
            latency: Latency::Occupies,
            worst_error: 0.0,
            samples: 7,
            outliers: 0,
        }
    }

    #[test]
    fn no_wire_is_infinitely_fast_and_digits_end_where_knowledge_does() {
        let places = Topology::new(TopologyParts { ranks: 2, ..TopologyParts::default() }).unwrap();
        let pair = |from, to| Pair { from: Rank(from), to: Rank(to) };
        let fits = BTreeMap::from([(pair(0, 1), fit(1.234_567_89, 0.0)), (pair(1, 0), fit(2.0, 1.234_567e-4))]);
        let measured = Measured::new(&places, fits, Vec::new()).unwrap();
        let numbers: Vec<_> = measured.topology.links().iter().map(|link| (link.alpha.0, link.beta.0)).collect();
        assert_eq!(numbers, [(1.235, 1.235e-4), (2.0, 1.235e-4)]);
    }
}

//! A measured topology, and the file that a person reads, edits and loads again.
//!
//! The principal type is [`Measured`]. Its YAML is `antiphon-topology/1` with a line for each link, machine by machine.
//! Margins are comments: they say how well a number is known, and are not part of the machine.

use crate::fit::{LinkFit, ResourceFit};
use crate::interchange::{FORMAT, json};
use crate::rounds::Pair;
use crate::{Bytes, Link, Micros, MicrosPerByte, Resource, ResourceId, Topology, TopologyParts, TopologyResult};
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
    /// What a reader should know, sentence by sentence.
    pub notes: Vec<String>,
}

/// A resource that was found, and the links that use it, sorted.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct SharedFit {
    pub(crate) name: String,
    pub(crate) fit: ResourceFit,
    pub(crate) users: Vec<Pair>,
}

impl Measured {
    /// Puts links and resources together on the machines of `places`. If a link measured faster than its resource, it
    /// gets the β of the resource. If noise hides the time of the bytes altogether, the link gets the β of the fastest
    /// known link, because no link is infinitely fast. Numbers keep only the digits that a measurement can have.
    pub(crate) fn new(
        places: &Topology,
        fits: BTreeMap<Pair, LinkFit>,
        shared: Vec<SharedFit>,
        notes: Vec<String>,
    ) -> TopologyResult<Self> {
        let mut uses: BTreeMap<Pair, Vec<ResourceId>> = BTreeMap::new();
        for (index, shared) in shared.iter().enumerate() {
            for user in &shared.users {
                uses.entry(*user).or_default().push(ResourceId::from_index(index));
            }
        }
        let known = fits.values().map(|fit| fit.beta.0).filter(|&beta| beta > 0.0);
        let fastest = MicrosPerByte(known.min_by(f64::total_cmp).unwrap_or(0.0));
        // Machine by machine, links inside a machine before links that leave it.
        let mut fits: Vec<(Pair, LinkFit)> = fits.into_iter().collect();
        let home = |rank| places.machine_of(rank);
        fits.sort_by_key(|(pair, _)| (home(pair.from), home(pair.to) != home(pair.from), home(pair.to), *pair));
        let link = |(pair, fit): &(Pair, LinkFit)| {
            let resources = uses.remove(pair).unwrap_or_default();
            let slowest = resources.iter().map(|id| shared[id.index()].fit.beta);
            let beta = slowest.fold(fit.beta.max(fastest), MicrosPerByte::max);
            let busy = resources.iter().map(|id| shared[id.index()].fit.alpha);
            Link {
                from: pair.from,
                to: pair.to,
                alpha: Micros(rounded(busy.fold(fit.alpha, Micros::max).0)),
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
                .map(|shared| Resource {
                    alpha: Micros(rounded(shared.fit.alpha.0)),
                    ..Resource::new(shared.name.clone(), MicrosPerByte(rounded(shared.fit.beta.0)))
                })
                .collect(),
        })?;
        let resources = shared.into_iter().map(|shared| shared.fit).collect();
        Ok(Self { topology, links: fits.into_iter().map(|(_, fit)| fit).collect(), resources, notes })
    }

    /// Prints the topology as YAML, with the margins beside each number. `about` is printed first, line by line: when
    /// and where it was measured. How it was measured follows.
    pub fn to_yaml(&self, about: &str) -> String {
        let mut about = about.trim_end().to_owned();
        self.notes.iter().for_each(|note| {
            let _ = write!(about, "\n{note}");
        });
        about.push_str(
            "\nMargins are half-widths of 95 % confidence intervals; `curve` is the largest error of α + β·bytes at a \
             measured size.",
        );
        let links = self.links.iter().map(|fit| {
            let burst = match fit.burst.0 >= 1.0 {
                true => format!(", the first {} pass at once", crate::quantity::show_bytes(Bytes(fit.burst.0.round()))),
                false => String::new(),
            };
            format!(
                "α ±{}, {} ±{}, curve {}{burst}, {} samples and {} outliers",
                percent(fit.alpha_margin / fit.alpha),
                crate::quantity::show_bandwidth(fit.beta),
                percent(fit.beta_margin / fit.beta),
                percent(fit.worst_error),
                fit.samples,
                fit.outliers
            )
        });
        let resources = self.resources.iter().map(|fit| {
            let bandwidth = crate::quantity::show_bandwidth(fit.beta);
            let message = match fit.alpha > Micros::ZERO {
                true => format!(", {} µs ±{} a message", rounded(fit.alpha.0), percent(fit.alpha_margin / fit.alpha)),
                false => String::new(),
            };
            format!("{bandwidth} ±{}{message}; {}", percent(fit.beta_margin / fit.beta), fit.evidence)
        });
        let beside = Beside { links: links.collect(), resources: resources.collect(), sections: self.sections() };
        print(&self.topology, &about, &beside)
    }

    /// A heading before the first link inside each machine, and before the first between each two.
    fn sections(&self) -> BTreeMap<usize, String> {
        let topology = &self.topology;
        let home = |link: &Link| (topology.machine_of(link.from), topology.machine_of(link.to));
        let mut sections = BTreeMap::new();
        let mut start = 0;
        for links in topology.links().chunk_by(|one, other| home(one) == home(other)) {
            let range = |of: &dyn Fn(&Link) -> f64| {
                let values = || links.iter().map(of);
                (values().fold(f64::INFINITY, f64::min), values().fold(0.0, f64::max))
            };
            let (quick, late) = range(&|link| link.alpha.0);
            let (fast, slow) = range(&|link| link.beta.0);
            let place = match home(&links[0]) {
                (machine, to) if machine == to => format!("inside machine {machine}"),
                (machine, to) => format!("from machine {machine} to machine {to}"),
            };
            let bandwidth = |beta| crate::quantity::show_bandwidth(MicrosPerByte(beta));
            let heading = format!("{place}: α {quick} to {late} µs, {} to {}", bandwidth(slow), bandwidth(fast));
            sections.insert(start, heading);
            start += links.len();
        }
        sections
    }
}

/// Four significant digits, more than these measurements have. The function is monotonic, so it keeps the order of
/// numbers.
fn rounded(value: f64) -> f64 {
    format!("{value:.3e}").parse().unwrap_or(value)
}

/// Prints any topology as YAML that [`crate::load`] reads back exactly.
pub fn to_yaml(topology: &Topology, about: &str) -> String {
    print(topology, about, &Beside::default())
}

/// The comments of the file.
#[derive(Default)]
pub(crate) struct Beside {
    /// Beside each link; links beyond the end of the list have none.
    pub(crate) links: Vec<String>,
    /// Beside each resource.
    pub(crate) resources: Vec<String>,
    /// Above the link with that position.
    pub(crate) sections: BTreeMap<usize, String>,
}

pub(crate) fn print(topology: &Topology, about: &str, beside: &Beside) -> String {
    let mut text = String::new();
    for line in about.lines() {
        let _ = writeln!(text, "# {line}");
    }
    let _ = writeln!(text, "format: {FORMAT}\nname: {}", json(&topology.name()));
    let _ = writeln!(text, "ranks: {}\nmachines: {}", topology.rank_count(), json(&topology.machines()));
    text.push_str(if topology.links().is_empty() { "links: []\n" } else { "links:\n" });
    for (id, link) in topology.links().iter().enumerate() {
        if let Some(section) = beside.sections.get(&id) {
            let _ = writeln!(text, "# {section}");
        }
        let _ = write!(text, "- {{from: {}, to: {}, alpha_us: {}, ", link.from, link.to, link.alpha.0);
        let _ = write!(text, "beta_us_per_byte: {}, latency: {}", link.beta.0, json(&link.latency).trim_matches('"'));
        if !link.resources.is_empty() {
            let _ = write!(text, ", resources: {}", json(&link.resources));
        }
        close(&mut text, beside.links.get(id));
    }
    if !topology.resources().is_empty() {
        text.push_str("resources:\n");
    }
    for (id, resource) in topology.resources().iter().enumerate() {
        let name = json(&resource.name);
        let _ = write!(text, "- {{id: {id}, name: {name}, beta_us_per_byte: {}", resource.beta.0);
        if resource.alpha > Micros::ZERO {
            let _ = write!(text, ", alpha_us: {}", resource.alpha.0);
        }
        close(&mut text, beside.resources.get(id));
    }
    text
}

fn close(text: &mut String, comment: Option<&String>) {
    match comment {
        Some(comment) => {
            let _ = writeln!(text, "}} # {}", comment.replace(char::is_control, " "));
        }
        None => text.push_str("}\n"),
    }
}

/// A ratio for people; a quantity that was measured as zero has no relative error.
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
            alpha_noise: Micros::ZERO,
            beta_noise: MicrosPerByte::ZERO,
            burst: Bytes(0.0),
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
        let measured = Measured::new(&places, fits, Vec::new(), Vec::new()).unwrap();
        let numbers: Vec<_> = measured.topology.links().iter().map(|link| (link.alpha.0, link.beta.0)).collect();
        assert_eq!(numbers, [(1.235, 1.235e-4), (2.0, 1.235e-4)]);
    }
}

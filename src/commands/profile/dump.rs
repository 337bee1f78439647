//! What NCCL's own dump of the machine says about the wiring between GPUs, as notes of a profile.
//!
//! The principal type is [`NcclDump`]. No number of the profile comes from it: measuring shows what links cost, and not what they are.

use crate::failure::{Failure, Outcome, read_text};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use topology::Topology;
use topology::import::{ImportOptions, import};
use topology::quantity::show_bandwidth;

/// More parts of a machine than a reader looks at.
const MOST: usize = 48;

/// A file that NCCL has written where `NCCL_TOPO_DUMP_FILE` named it.
pub(super) struct NcclDump {
    name: String,
    text: String,
    topology: Topology,
}

impl NcclDump {
    /// Reads the dump of a machine with so many GPUs.
    ///
    /// # Errors
    /// If it is none, or one of other GPUs.
    pub(super) fn read(path: &Path, ranks: usize) -> Outcome<Self> {
        let (text, name) = (read_text(path)?, topology::shorten(&path.display().to_string()));
        if !text.trim_start_matches('\u{feff}').trim_start().starts_with('<') {
            let why = format!(
                "{name} is no dump of NCCL's (hint: NCCL_TOPO_DUMP_FILE={name} of any program that uses NCCL writes one)"
            );
            return Err(Failure::bad_input(anyhow::anyhow!(why)));
        }
        let topology = import(&text, &name, &ImportOptions::default()).map_err(Failure::bad_input)?.topology;
        let count = topology.rank_count();
        if count != ranks {
            let why = format!("{name} describes {count} GPUs, and there are {ranks} ranks");
            return Err(Failure::bad_input(anyhow::anyhow!(why)));
        }
        Ok(Self { name, text: text.to_ascii_lowercase(), topology })
    }

    /// Sentences about links and what they share. `bus_ids` are where the ranks' GPUs are.
    pub(super) fn notes(&self, bus_ids: &[String]) -> Vec<String> {
        let name = &self.name;
        let mut notes = vec![format!(
            "NCCL's dump {name} says how the GPUs are wired. Its rates are nominal, and no number here is from it."
        )];
        let is_unknown = |bus: &&String| !self.text.contains(&format!("\"{}\"", bus.to_ascii_lowercase()));
        let unknown: Vec<&String> = bus_ids.iter().filter(is_unknown).collect();
        if !unknown.is_empty() {
            let unknown: Vec<&str> = unknown.into_iter().map(String::as_str).collect();
            notes.push(format!("The dump has no GPU at {}: it may be of another machine.", unknown.join(", ")));
        }
        notes.extend(listed("Links of their own, says the dump", &self.own_links()));
        notes.extend(listed("Shared, says the dump", &self.shared()));
        notes
    }

    /// Links that share nothing, by their rate.
    fn own_links(&self) -> Vec<String> {
        let mut by_rate: BTreeMap<String, BTreeSet<(u32, u32)>> = BTreeMap::new();
        for link in self.topology.links().iter().filter(|link| link.resources.is_empty()) {
            let pair = (link.from.0.min(link.to.0), link.from.0.max(link.to.0));
            by_rate.entry(show_bandwidth(link.beta)).or_default().insert(pair);
        }
        let shown = |(rate, pairs): (String, BTreeSet<(u32, u32)>)| {
            let pairs: Vec<String> = pairs.into_iter().map(|(one, other)| format!("{one}–{other}")).collect();
            format!("{rate} {}", pairs.join(" "))
        };
        by_rate.into_iter().map(shown).collect()
    }

    /// What links share: its name without the direction, its rate, and the ranks behind it.
    fn shared(&self) -> Vec<String> {
        let mut ends: Vec<[BTreeSet<u32>; 2]> = vec![Default::default(); self.topology.resources().len()];
        for link in self.topology.links() {
            for id in &link.resources {
                ends[id.index()][0].insert(link.from.0);
                ends[id.index()][1].insert(link.to.0);
            }
        }
        let mut shown = BTreeSet::new();
        let mut parts = Vec::new();
        for (resource, ends) in self.topology.resources().iter().zip(ends) {
            // What leaves a part leaves it for many.
            let Some(ranks) = ends.into_iter().min_by_key(BTreeSet::len).filter(|ranks| !ranks.is_empty()) else {
                continue;
            };
            let ranks: Vec<String> = ranks.iter().map(u32::to_string).collect();
            let name = resource.name.rsplit_once('.').map_or(resource.name.as_str(), |(name, _)| name);
            let part =
                format!("{} {} of rank {}", topology::shorten(name), show_bandwidth(resource.beta), ranks.join(", "));
            if shown.insert(part.clone()) {
                parts.push(part);
            }
        }
        parts
    }
}

/// A sentence with these parts, if there are any.
fn listed(what: &str, parts: &[String]) -> Option<String> {
    let more = if parts.len() > MOST { format!("; and {} more", parts.len() - MOST) } else { String::new() };
    (!parts.is_empty()).then(|| format!("{what}: {}{more}.", parts[..parts.len().min(MOST)].join("; ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dump(name: &str, ranks: usize) -> NcclDump {
        NcclDump::read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/import").join(name), ranks).ok().unwrap()
    }

    #[test]
    fn links_and_what_they_share_are_told() {
        let pair = dump("nccl-pair.xml", 2);
        let notes = pair.notes(&["0001:00:00.0".to_owned(), "0002:00:00.0".to_owned()]);
        assert_eq!(notes[1..], ["Links of their own, says the dump: 240 GB/s 0–1."]);
        let notes = pair.notes(&["0001:00:00.0".to_owned(), "0009:00:00.0".to_owned()]);
        assert_eq!(notes[1], "The dump has no GPU at 0009:00:00.0: it may be of another machine.");
        let switches = dump("nccl-nvswitch.xml", 8).notes(&[]);
        let shared = "Shared, says the dump: machine0.gpu0.nvlink 370.8 GB/s of rank 0; machine0.gpu1.nvlink 370.8 GB/s of rank 1;";
        assert!(switches.len() == 2 && switches[1].starts_with(shared), "{switches:?}");
    }
}

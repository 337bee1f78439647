//! `antiphon-topology/1`: the form in which topologies travel between programs.
//!
//! The principal functions are [`to_json`] and [`from_json`]; YAML spells the same fields and is read by the same
//! code. What a parser can see of a value (type, key, sign) is refused while parsing; what depends on another
//! field is checked by [`Topology::new`] and then placed in the text. A fault always has a line and a column.

use crate::document::Step::{Index, Key};
use crate::document::{Document, Step, TextError};
use crate::{Latency, Link, LinkId, Micros, MicrosPerByte, Rank, Resource, ResourceId};
use crate::{MAX_RANKS, Topology, TopologyError, TopologyParts, TopologyResult};
use serde::{Deserialize, Deserializer, Serialize};
use std::fmt::Write;

/// The value of `format`.
pub(crate) const FORMAT: &str = "antiphon-topology/1";

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TopologyFile {
    format: String,
    #[serde(default)]
    name: String,
    #[serde(default)]
    digest: Option<String>,
    ranks: u64,
    #[serde(default)]
    machines: Vec<Vec<Rank>>,
    links: Vec<LinkEntry>,
    #[serde(default)]
    resources: Vec<ResourceEntry>,
}

/// `id`, `latency` and `resources` may be left out by people; programs always write them.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct LinkEntry {
    #[serde(default)]
    id: Option<LinkId>,
    from: Rank,
    to: Rank,
    #[serde(deserialize_with = "cost")]
    alpha_us: f64,
    #[serde(deserialize_with = "cost")]
    beta_us_per_byte: f64,
    #[serde(default = "occupies")]
    latency: Latency,
    #[serde(default)]
    resources: Vec<ResourceId>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ResourceEntry {
    #[serde(default)]
    id: Option<ResourceId>,
    name: String,
    #[serde(deserialize_with = "cost")]
    beta_us_per_byte: f64,
}

fn occupies() -> Latency {
    Latency::Occupies
}

fn cost<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    let value = f64::deserialize(deserializer)?;
    if value.is_finite() && value >= 0.0 {
        return Ok(value);
    }
    Err(serde::de::Error::custom(format!("a cost must be a finite number ≥ 0, not {value}")))
}

/// Prints a topology, digest included: a header, then one line for each link and resource.
///
/// Equal topologies give equal bytes, and every number is read back exactly.
pub fn to_json(topology: &Topology) -> String {
    let mut text = String::new();
    let machines = json(&topology.machines());
    let (name, digest, ranks) = (json(&topology.name()), topology.digest(), topology.rank_count());
    let _ = writeln!(text, "{{\n \"format\": \"{FORMAT}\",\n \"name\": {name},\n \"digest\": \"{digest}\",");
    let _ = writeln!(text, " \"ranks\": {ranks},\n \"machines\": {machines},");
    let links = topology.links().iter().enumerate().map(|(index, link)| {
        json(&LinkEntry {
            id: Some(LinkId::from_index(index)),
            from: link.from,
            to: link.to,
            alpha_us: link.alpha.0,
            beta_us_per_byte: link.beta.0,
            latency: link.latency,
            resources: link.resources.to_vec(),
        })
    });
    write_list(&mut text, "links", links);
    text.push_str(",\n");
    let resources = topology.resources().iter().enumerate().map(|(index, resource)| {
        json(&ResourceEntry {
            id: Some(ResourceId::from_index(index)),
            name: resource.name.clone(),
            beta_us_per_byte: resource.beta.0,
        })
    });
    write_list(&mut text, "resources", resources);
    text.push_str("\n}\n");
    text
}

pub(crate) fn json(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("plain structs with string keys always serialize")
}

fn write_list(text: &mut String, key: &str, items: impl Iterator<Item = String>) {
    let _ = write!(text, " \"{key}\": [");
    for (index, item) in items.enumerate() {
        text.push_str(if index == 0 { "\n  " } else { ",\n  " });
        text.push_str(&item);
    }
    text.push(']');
}

/// Reads a topology from JSON; `origin` is what messages call the text.
///
/// # Errors
/// [`TopologyError::InText`] with `origin:line:column` and what is wrong there.
pub fn from_json(text: &str, origin: &str) -> TopologyResult<Topology> {
    from_document(&Document::json(origin, text))
}

/// Reads a topology from either syntax.
pub(crate) fn from_document(document: &Document<'_>) -> TopologyResult<Topology> {
    let file: TopologyFile = document.parse()?;
    if file.format != FORMAT {
        let reason = format!("`format` is `{}`, expected `{FORMAT}`", file.format);
        return Err(document.fault(&[Key("format")], reason).into());
    }
    let ids = file.links.iter().map(|link| link.id.map(LinkId::index));
    check_ids(document, "links", ids)?;
    let ids = file.resources.iter().map(|resource| resource.id.map(ResourceId::index));
    check_ids(document, "resources", ids)?;
    if file.ranks > MAX_RANKS as u64 {
        let error = TopologyError::TooMany { what: "ranks", count: file.ranks, limit: MAX_RANKS as u64 };
        return Err(place(document, &error).into());
    }
    let claimed = file.digest.clone();
    let topology = Topology::new(parts(file)).map_err(|error| place(document, &error))?;
    match claimed {
        Some(claimed) if claimed != topology.digest() => {
            let reason =
                format!("the digest of what follows is {}; remove the key if the change is meant", topology.digest());
            Err(document.fault(&[Key("digest")], reason).into())
        }
        _ => Ok(topology),
    }
}

fn check_ids(document: &Document<'_>, list: &str, ids: impl Iterator<Item = Option<usize>>) -> Result<(), TextError> {
    for (index, id) in ids.enumerate() {
        if id.is_some_and(|id| id != index) {
            let reason = format!("ids are positions in the list: this one must be {index}");
            return Err(document.fault(&[Key(list), Index(index), Key("id")], reason));
        }
    }
    Ok(())
}

fn parts(file: TopologyFile) -> TopologyParts {
    let link = |entry: LinkEntry| Link {
        from: entry.from,
        to: entry.to,
        alpha: Micros(entry.alpha_us),
        beta: MicrosPerByte(entry.beta_us_per_byte),
        latency: entry.latency,
        resources: entry.resources.into(),
    };
    let resource = |entry: ResourceEntry| Resource { name: entry.name, beta: MicrosPerByte(entry.beta_us_per_byte) };
    TopologyParts {
        name: file.name,
        // Checked against MAX_RANKS by the caller.
        ranks: file.ranks as usize,
        machines: file.machines,
        links: file.links.into_iter().map(link).collect(),
        resources: file.resources.into_iter().map(resource).collect(),
    }
}

/// Where in the document the cause of an error stands.
fn place(document: &Document<'_>, error: &TopologyError) -> TextError {
    let at = |path: &[Step<'_>]| document.fault(path, error.to_string());
    match *error {
        TopologyError::UnknownRank { link, rank, .. } => {
            // The parts are gone; only now, with an error to show, is a second reading worth its time.
            let reread: Result<TopologyFile, _> = document.parse();
            let starts_there = reread.is_ok_and(|file| file.links[link.index()].from == rank);
            at(&[Key("links"), Index(link.index()), Key(if starts_there { "from" } else { "to" })])
        }
        TopologyError::SelfLink { link, .. } => at(&[Key("links"), Index(link.index()), Key("to")]),
        TopologyError::UnknownResource { link, .. } => at(&[Key("links"), Index(link.index()), Key("resources")]),
        TopologyError::FasterThanResource { link, .. } => {
            at(&[Key("links"), Index(link.index()), Key("beta_us_per_byte")])
        }
        TopologyError::NotAPartition { .. } => at(&[Key("machines")]),
        TopologyError::TooMany { what, .. } => at(&[Key(what)]),
        _ => at(&[Key("ranks")]),
    }
}

//! `antiphon-topology/1`: the form in which topologies travel between programs.
//!
//! The principal functions are [`to_json`] and [`from_json`]; YAML has the same fields and is read by the same code.
//! Wrong values (type, key, sign) are refused while parsing. Values that contradict another field are found by
//! [`Topology::new`], and their place in the text is looked up afterwards. Every fault has a line and a column.

use crate::document::PathSegment::{Index, Key};
use crate::document::{Document, PathSegment, TextError};
use crate::quantity::show_number;
use crate::spelling::shorten;
use crate::{Latency, Link, LinkId, Micros, MicrosPerByte, Rank, Resource, ResourceId};
use crate::{MAX_LISTED_LINKS, MAX_RANKS, Topology, TopologyError, TopologyParts, TopologyResult};
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
    #[serde(default, deserialize_with = "cost", skip_serializing_if = "is_nothing")]
    alpha_us: f64,
}

fn is_nothing(cost: &f64) -> bool {
    *cost == 0.0
}

fn occupies() -> Latency {
    Latency::Occupies
}

fn cost<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    let value = f64::deserialize(deserializer)?;
    if value.is_finite() && value >= 0.0 {
        return Ok(value);
    }
    Err(serde::de::Error::custom(format!("a cost must be a finite number ≥ 0, not {}", show_number(value))))
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
            alpha_us: resource.alpha.0,
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

/// A topology inside another document, in the same form.
#[derive(Clone, PartialEq, Debug)]
pub struct Embedded(pub Topology);

impl<'de> Deserialize<'de> for Embedded {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let file = TopologyFile::deserialize(deserializer)?;
        embedded(file).map(Self).map_err(serde::de::Error::custom)
    }
}

/// What [`from_document`] checks, without places in the text.
fn embedded(file: TopologyFile) -> Result<Topology, String> {
    if file.format != FORMAT {
        return Err(format!("`format` is `{}`, expected `{FORMAT}`", shorten(&file.format)));
    }
    let links = file.links.iter().map(|link| link.id.map(LinkId::index));
    let resources = file.resources.iter().map(|resource| resource.id.map(ResourceId::index));
    let moved = |(index, id): (usize, Option<usize>)| id.is_some_and(|id| id != index);
    if links.enumerate().any(moved) || resources.enumerate().any(moved) {
        return Err("the ids of links and resources are positions in their lists, from 0".to_owned());
    }
    if file.ranks > MAX_RANKS as u64 {
        let error = TopologyError::TooMany { what: "ranks", count: file.ranks, limit: MAX_RANKS as u64 };
        return Err(error.to_string());
    }
    let claimed = file.digest.clone();
    let topology = made(file).map_err(|error| error.to_string())?;
    match claimed {
        Some(claimed) if claimed != topology.digest() => Err(format!("its digest is {}", topology.digest())),
        _ => Ok(topology),
    }
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
        let reason = format!("`format` is `{}`, expected `{FORMAT}`", shorten(&file.format));
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
    let topology = made(file).map_err(|error| place(document, &error))?;
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
            let reason = format!("the ids of {list} are positions in the list, from 0: this one must be {index}");
            return Err(document.fault(&[Key(list), Index(index), Key("id")], reason));
        }
    }
    Ok(())
}

fn made(file: TopologyFile) -> TopologyResult<Topology> {
    let count = file.links.len() as u64;
    if count > MAX_LISTED_LINKS as u64 {
        return Err(TopologyError::TooMany { what: "links", count, limit: MAX_LISTED_LINKS as u64 });
    }
    Topology::new(parts(file))
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
    let resource = |entry: ResourceEntry| Resource {
        alpha: Micros(entry.alpha_us),
        ..Resource::new(entry.name, MicrosPerByte(entry.beta_us_per_byte))
    };
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
    let at = |path: &[PathSegment<'_>]| document.fault(path, error.to_string());
    match *error {
        TopologyError::UnknownRank { link, rank, .. } => {
            // The parsed values are gone. Only with an error to show is a second reading of the text worth its time.
            let reread: Result<TopologyFile, _> = document.parse();
            let starts_there = reread.is_ok_and(|file| file.links[link.index()].from == rank);
            at(&[Key("links"), Index(link.index()), Key(if starts_there { "from" } else { "to" })])
        }
        TopologyError::SelfLink { link, .. } => at(&[Key("links"), Index(link.index()), Key("to")]),
        TopologyError::UnknownResource { link, .. } | TopologyError::RepeatedResource { link, .. } => {
            at(&[Key("links"), Index(link.index()), Key("resources")])
        }
        TopologyError::FasterThanResource { link, .. } => {
            at(&[Key("links"), Index(link.index()), Key("beta_us_per_byte")])
        }
        TopologyError::QuickerThanResource { link, .. } => at(&[Key("links"), Index(link.index()), Key("alpha_us")]),
        TopologyError::NotAPartition { .. } => at(&[Key("machines")]),
        TopologyError::TooMany { what, .. } => at(&[Key(what)]),
        _ => at(&[Key("ranks")]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{list, resolve, to_yaml};
    use proptest::prelude::*;

    const SMALL: &str = r#"{
 "format": "antiphon-topology/1",
 "name": "pair",
 "ranks": 4,
 "machines": [[0, 1], [2, 3]],
 "links": [
  {"id": 0, "from": 0, "to": 1, "alpha_us": 0.7, "beta_us_per_byte": 2e-5, "latency": "occupies", "resources": []},
  {"id": 1, "from": 0, "to": 2, "alpha_us": 2.6, "beta_us_per_byte": 8e-5, "latency": "pipelines", "resources": [0]}
 ],
 "resources": [{"id": 0, "name": "machine0.nic0.tx", "beta_us_per_byte": 8e-5}]
}"#;

    #[test]
    fn a_resource_says_what_a_message_takes_of_it_only_where_it_does() {
        let busy = SMALL.replace(r#""beta_us_per_byte": 8e-5}]"#, r#""beta_us_per_byte": 8e-5, "alpha_us": 0.25}]"#);
        let (plain, busy) = (from_json(SMALL, "plain").unwrap(), from_json(&busy, "busy").unwrap());
        assert_eq!(busy.resources()[0].alpha.0, 0.25);
        assert_ne!(plain.digest(), busy.digest());
        let written = |text: String| text.matches("alpha_us").count();
        assert_eq!([to_json(&plain), to_yaml(&plain, "")].map(written), [2, 2], "the links alone");
        assert_eq!([to_json(&busy), to_yaml(&busy, "")].map(written), [3, 3]);
        assert_eq!(from_json(&to_json(&busy), "again").unwrap(), busy);
        let yaml = to_yaml(&busy, "");
        assert_eq!(from_document(&Document::yaml("yaml", &yaml)).unwrap(), busy);
        let quick = SMALL.replace(r#""beta_us_per_byte": 8e-5}]"#, r#""beta_us_per_byte": 8e-5, "alpha_us": 2.7}]"#);
        let refused = from_json(&quick, "quick").unwrap_err().to_string();
        assert!(
            refused.contains("link 1 has α 2.6 µs, below the 2.7 µs of resource 0 (machine0.nic0.tx)"),
            "{refused}"
        );
    }

    #[test]
    fn reads_the_documented_form() {
        let topology = from_json(SMALL, "pair.json").unwrap();
        assert_eq!((topology.name(), topology.rank_count(), topology.machines().len()), ("pair", 4, 2));
        let link = &topology.links()[1];
        assert_eq!((link.alpha.0, link.beta.0, link.latency), (2.6, 8e-5, Latency::Pipelines));
        assert_eq!(topology.resource(link.resources[0]).name, "machine0.nic0.tx");
    }

    #[test]
    fn a_ring_is_printed_as_documented() {
        let topology = resolve("ring:3,alpha=1us,bandwidth=100MBps").unwrap();
        let expected = expect_test::expect![[r#"
            {
             "format": "antiphon-topology/1",
             "name": "ring:3,alpha=1us,bandwidth=100MBps",
             "digest": "DIGEST",
             "ranks": 3,
             "machines": [[0,1,2]],
             "links": [
              {"id":0,"from":0,"to":1,"alpha_us":1.0,"beta_us_per_byte":0.01,"latency":"occupies","resources":[]},
              {"id":1,"from":1,"to":2,"alpha_us":1.0,"beta_us_per_byte":0.01,"latency":"occupies","resources":[]},
              {"id":2,"from":2,"to":0,"alpha_us":1.0,"beta_us_per_byte":0.01,"latency":"occupies","resources":[]}],
             "resources": []
            }
        "#]];
        expected.assert_eq(&to_json(&topology).replace(&topology.digest(), "DIGEST"));
    }

    #[test]
    fn every_listed_topology_survives_both_syntaxes() {
        let mut specs = Vec::new();
        for listing in list().unwrap() {
            let base = listing.form.replace("AxBxC", "2x3x2").replace("AxB", "3x5").replace(":N", ":5");
            let base = base.replace(":D", ":3").replace("xN", "x3");
            specs.push(base.clone());
            for key in listing.keys {
                let (key, values) = key.split_once('=').expect("keys have values");
                specs.extend(values.split('|').map(|value| format!("{base},{key}={value}")));
            }
        }
        assert!(specs.len() > 40, "{specs:?}");
        for spec in specs {
            let topology = resolve(&spec).unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(from_json(&to_json(&topology), "x"), Ok(topology.clone()), "{spec}");
            let yaml = to_yaml(&topology, "a comment\nand another");
            assert_eq!(from_document(&Document::yaml("x", &yaml)), Ok(topology), "{spec}");
        }
    }

    #[test]
    fn faults_have_a_place() {
        for (from, to, place, fragment) in [
            ("antiphon-topology/1", "antiphon-topology/9", 2, "expected `antiphon-topology/1`"),
            ("\"ranks\": 4", "\"ranks\": 1000000000", 4, "ranks: 1000000000 is more"),
            ("\"ranks\": 4", "\"ranks\": 1000000000000000000", 4, "is more than"),
            ("\"ranks\": 4", "\"ranks\": 0", 4, "at least one rank"),
            ("\"ranks\": 4", "\"ranks\": -4", 4, "-4"),
            ("\"ranks\": 4", "\"ranks\": 4.5", 4, "4.5"),
            ("\"ranks\": 4", "\"ranks\": 4, \"ranks\": 4", 4, "duplicate field `ranks`"),
            ("\"ranks\": 4", "\"ranks\": 4, \"nodes\": 4", 4, "unknown field `nodes`, expected one of `format`"),
            ("\"ranks\": 4,", "", 11, "missing field `ranks`"),
            ("[2, 3]", "[2]", 5, "rank 3 is in 0 machines"),
            ("[2, 3]", "[2, 3, 0]", 5, "rank 0 is in 2 machines"),
            ("[2, 3]", "[2, 3, 4]", 5, "rank 4"),
            ("\"to\": 2", "\"to\": 4", 8, "names rank 4, but the ranks are 0..4"),
            ("\"from\": 0, \"to\": 2", "\"from\": 4294967295, \"to\": 2", 8, "names rank 4294967295"),
            ("\"to\": 2", "\"to\": 0", 8, "to itself"),
            ("\"id\": 1", "\"id\": 2", 8, "this one must be 1"),
            ("0.7", "-0.7", 7, "finite number ≥ 0, not -0.7"),
            ("0.7", "NaN", 7, "expected value"),
            ("0.7", "1e999", 7, "out of range"),
            ("0.7", "\"0.7\"", 7, "found the text"),
            ("2e-5", "-2e-5", 7, "finite number ≥ 0"),
            ("\"pipelines\"", "\"flies\"", 8, "unknown word `flies`"),
            ("[0]}", "[1]}", 8, "uses resource 1"),
            ("2.6, \"beta_us_per_byte\": 8e-5", "2.6, \"beta_us_per_byte\": 7e-5", 8, "below the 0.00008"),
            ("tx\", \"beta_us_per_byte\": 8e-5", "tx\", \"beta_us_per_byte\": -8e-5", 10, "finite number ≥ 0"),
            ("\"ranks\": 4", "\"ranks\": 4, \"digest\": \"00\"", 4, "remove the key"),
        ] {
            assert!(SMALL.contains(from), "{from}");
            let text = SMALL.replacen(from, to, 1);
            let error = from_json(&text, "pair.json").expect_err(to).to_string();
            assert!(error.starts_with(&format!("pair.json:{place}:")) && error.contains(fragment), "{to}: {error}");
        }
    }

    #[test]
    fn truncated_anywhere_is_an_error() {
        for end in 0..SMALL.len() {
            let error = from_json(&SMALL[..end], "cut.json").expect_err("cut");
            assert!(error.to_string().starts_with("cut.json:"), "{error}");
            // A prefix of YAML may be valid; it must only not panic.
            let _ = from_document(&Document::yaml("cut.yaml", &SMALL[..end]));
        }
        assert!(from_json(&format!("{SMALL}]"), "x").is_err());
    }

    #[test]
    fn yaml_faults_have_a_place_too() {
        let good = to_yaml(&from_json(SMALL, "x").unwrap(), "made by hand");
        for (from, to, line, fragment) in [
            ("to: 2", "to: 9", 8, "names rank 9"),
            ("alpha_us: 2.6", "alpha_us: .nan", 8, "finite number ≥ 0"),
            ("alpha_us: 2.6", "alpha_us: -2.6", 8, "finite number ≥ 0"),
            ("alpha_us: 2.6", "alfa_us: 2.6", 8, "alfa_us"),
        ] {
            assert!(good.contains(from), "{good}");
            let text = good.replacen(from, to, 1);
            let error = from_document(&Document::yaml("pair.yaml", &text)).expect_err(to).to_string();
            assert!(error.starts_with(&format!("pair.yaml:{line}:")) && error.contains(fragment), "{to}: {error}");
        }
    }

    proptest! {
        #[test]
        fn any_valid_topology_survives(
            ranks in 2u32..9,
            links in prop::collection::vec((0u32..8, 1u32..8, 0.0f64..1e6, 0.0f64..1e3, any::<bool>()), 0..20),
            name in "\\PC{0,20}",
        ) {
            let resources = vec![Resource::new(name.clone(), MicrosPerByte(1.0))];
            let link = |(from, offset, alpha, beta, occupies): (u32, u32, f64, f64, bool)| Link {
                from: Rank(from % ranks),
                to: Rank((from % ranks + 1 + (offset - 1) % (ranks - 1)) % ranks),
                alpha: Micros(alpha),
                beta: MicrosPerByte(beta),
                latency: if occupies { Latency::Occupies } else { Latency::Pipelines },
                resources: if beta >= 1.0 { [ResourceId(0)].into() } else { crate::ResourceIds::default() },
            };
            let links = links.into_iter().map(link).collect();
            let parts = TopologyParts { name, ranks: ranks as usize, machines: Vec::new(), links, resources };
            let topology = Topology::new(parts).expect("built to be valid");
            prop_assert_eq!(from_json(&to_json(&topology), "x"), Ok(topology.clone()));
            let yaml = to_yaml(&topology, "");
            prop_assert_eq!(from_document(&Document::yaml("x", &yaml)), Ok(topology));
        }
    }
}

//! From a SPEC to a topology.
//!
//! The principal functions are [`resolve`], which knows the families and the built-in machines and touches no
//! file, and [`load`], which adds paths and is the only place of this crate that reads a file. [`list`] tells
//! what there is, from the same tables.

use crate::document::Step::Key;
use crate::document::{Document, Syntax};
use crate::family::FAMILIES;
use crate::machine::{self, BUILT_IN, Machine};
use crate::spec::{Spec, shorten};
use crate::spelling::closest;
use crate::{Topology, TopologyError, TopologyResult, interchange};
use serde::{Deserialize, Serialize};
use std::io::Read;
use std::path::Path;

/// The largest file that is read: the largest clique takes about as much.
const MAX_FILE_BYTES: u64 = 1 << 30;

/// What makes a SPEC a path even without a slash.
const EXTENSIONS: [&str; 3] = [".yaml", ".yml", ".json"];

/// The topology that a SPEC names: a family or a known machine. No file is read.
///
/// # Errors
/// [`TopologyError::InSpec`] with what is wrong, where, and what would be accepted.
pub fn resolve(spec: &str) -> TopologyResult<Topology> {
    in_spec(spec, Spec::parse(spec, None).and_then(|parsed| named(&parsed)))
}

/// The topology that a SPEC names, or that the file it names describes.
///
/// A SPEC is a path if it has a `/` in its first part or ends in `.yaml`, `.yml` or `.json`; keys may follow
/// (`./box.yaml,costs=measured,machines=2`).
///
/// # Errors
/// As [`resolve`]; [`TopologyError::Unreadable`] for a file that cannot be read, and [`TopologyError::InText`]
/// with `path:line:column` for one that is wrong.
pub fn load(spec: &str) -> TopologyResult<Topology> {
    match path_end(spec) {
        Some(end) => in_spec(spec, Spec::parse(spec, Some(end)).and_then(|parsed| from_file(&parsed))),
        None => resolve(spec),
    }
}

/// One entry of [`list`].
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Listing {
    /// How a SPEC of it is written, such as `torus2d:AxB` or `ndv2xN`.
    pub form: String,
    /// One line about it.
    pub about: String,
    /// The keys it takes, each with its values; the first value is the default.
    pub keys: Vec<String>,
    /// Where its numbers come from, if it is a published machine.
    pub source: Option<String>,
}

/// Every family and every built-in machine.
///
/// # Errors
/// None in practice: the built-in files are checked by a test.
pub fn list() -> TopologyResult<Vec<Listing>> {
    let family = |family: &crate::family::Family| Listing {
        form: format!("{}:{}", family.name, family.params),
        about: family.about.to_owned(),
        keys: family.keys.iter().map(|key| (*key).to_owned()).collect(),
        source: None,
    };
    let mut listings: Vec<Listing> = FAMILIES.iter().map(family).collect();
    for machine in built_in() {
        let machine = machine?;
        listings.push(Listing {
            form: machine_form(&machine),
            about: machine.about().to_owned(),
            keys: machine.keys().map(|(key, values)| format!("{key}={}", values.join("|"))).collect(),
            source: Some(machine.source().to_owned()),
        });
    }
    Ok(listings)
}

fn in_spec(spec: &str, result: TopologyResult<Topology>) -> TopologyResult<Topology> {
    result.map_err(|cause| match cause {
        // These say themselves where they happened.
        TopologyError::InText(_) | TopologyError::Unreadable { .. } => cause,
        cause => TopologyError::InSpec { spec: shorten(spec), cause: Box::new(cause) },
    })
}

fn built_in() -> impl Iterator<Item = TopologyResult<Machine<'static>>> {
    BUILT_IN.iter().map(|(origin, text)| Ok(machine::parse(Document::yaml(origin, text))?))
}

fn machine_form(machine: &Machine<'_>) -> String {
    format!("{}{}", machine.name(), if machine.can_be_joined() { "xN" } else { "" })
}

fn named(spec: &Spec<'_>) -> TopologyResult<Topology> {
    if let Some(family) = FAMILIES.iter().find(|family| family.name == spec.name) {
        return finish(family.build(spec)?, spec);
    }
    let mut names: Vec<String> = FAMILIES.iter().map(|family| family.name.to_owned()).collect();
    for machine in built_in() {
        let machine = machine?;
        let Some(count) = spec.name.strip_prefix(machine.name()) else {
            names.push(machine_form(&machine));
            continue;
        };
        let is_count = |count: &&str| !count.is_empty() && count.bytes().all(|byte| byte.is_ascii_digit());
        match count.strip_prefix('x').filter(is_count) {
            Some(count) => return finish(machine.build(Some(spec.number(spec.name, count)?), spec)?, spec),
            None if count.is_empty() => return finish(machine.build(None, spec)?, spec),
            None => names.push(machine_form(&machine)),
        }
    }
    Err(TopologyError::UnknownName {
        name: shorten(spec.name),
        suggestion: closest(spec.name, names.iter().map(String::as_str)).map(str::to_owned),
        known: names,
    })
}

fn finish(mut parts: crate::TopologyParts, spec: &Spec<'_>) -> TopologyResult<Topology> {
    parts.name = spec.text.to_owned();
    Topology::new(parts)
}

/// Where the path ends, if the SPEC is one.
fn path_end(spec: &str) -> Option<usize> {
    let ends = || spec.match_indices(',').map(|(end, _)| end).chain([spec.len()]);
    let named = |end: &usize| EXTENSIONS.iter().any(|extension| spec[..*end].ends_with(extension));
    let is_path = spec.split([':', ',']).next().is_some_and(|name| name.contains('/'));
    ends().find(named).or_else(|| is_path.then(|| ends().next()).flatten())
}

fn from_file(spec: &Spec<'_>) -> TopologyResult<Topology> {
    let text = read(spec.name)?;
    let syntax = if spec.name.ends_with(".json") { Syntax::Json } else { Syntax::Yaml };
    let document = Document { origin: spec.name, text: &text, syntax };
    match format_of(&document)? {
        Format::Topology => {
            spec.accept_keys(&[])?;
            let topology = interchange::from_document(&document)?;
            Ok(if topology.name().is_empty() { topology.renamed(spec.text) } else { topology })
        }
        Format::Machine => finish(machine::parse(document)?.build(None, spec)?, spec),
    }
}

/// What a file can describe.
enum Format {
    Topology,
    Machine,
}

/// What the file says it is.
fn format_of(document: &Document<'_>) -> TopologyResult<Format> {
    #[derive(Deserialize)]
    struct Header {
        format: String,
    }

    let header: Header = document.parse()?;
    match header.format.as_str() {
        interchange::FORMAT => Ok(Format::Topology),
        machine::FORMAT => Ok(Format::Machine),
        other => {
            let known = [interchange::FORMAT, machine::FORMAT].join(", ");
            let reason = format!("unknown format `{}`; known are {known}", shorten(other));
            Err(document.fault(&[Key("format")], reason).into())
        }
    }
}

fn read(path: &str) -> TopologyResult<String> {
    let refuse = |reason: String| TopologyError::Unreadable { path: shorten(path), reason };
    let file = std::fs::File::open(Path::new(path)).map_err(|error| refuse(error.to_string()))?;
    let mut text = String::new();
    // A size limit in place of trust in the file's length: pipes have none, and devices never end.
    match file.take(MAX_FILE_BYTES + 1).read_to_string(&mut text) {
        Ok(length) if length as u64 <= MAX_FILE_BYTES => Ok(text),
        Ok(_) => Err(refuse(format!("it has more than {MAX_FILE_BYTES} bytes"))),
        Err(error) => Err(refuse(error.to_string())),
    }
}

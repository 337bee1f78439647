//! From a SPEC to a topology.
//!
//! The principal functions are [`resolve`], which knows the families and the built-in machines and touches no
//! file, and [`load`], which adds paths and is the only place of this crate that reads a file. [`list`] tells
//! what there is, from the same tables.

mod cluster;

use crate::document::PathSegment::Key;
use crate::document::{Document, Syntax};
use crate::family::FAMILIES;
use crate::machine::{self, BUILT_IN, MachineDescription};
use crate::spec::Spec;
use crate::spelling::{closest, shorten};
use crate::{MAX_LINKS, MAX_LISTED_LINKS, Topology, TopologyError, TopologyResult, interchange};
use serde::Serialize;
use serde::de::IgnoredAny;
use std::io::Read;
use std::os::unix::fs::FileTypeExt;

/// The largest file that is read: the largest clique takes about as much.
const MAX_FILE_BYTES: u64 = 1 << 30;

/// Some editors write it in front of a text.
const BYTE_ORDER_MARK: char = '\u{feff}';
/// Folders of files that another process opened and handed over to this one.
const OPENED: [&str; 3] = ["/dev/stdin", "/dev/fd/", "/proc/self/fd/"];

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
    load_within(spec, MAX_LINKS)
}

/// A SPEC in a file may name this many links, and more in proportion to the file: a short file takes little memory. Beyond
/// [`MAX_LISTED_LINKS`] each link needs a byte: plans for such machines are longer.
const LINKS_OF_A_SHORT_FILE: usize = 1 << 20;
/// How many links for each byte of a longer file.
const LINKS_OF_A_BYTE: usize = 64;

/// The same for a SPEC that stands in a file of so many bytes.
///
/// # Errors
/// As [`load`], and for more links than such a file may name.
pub fn load_named(spec: &str, bytes: usize) -> TopologyResult<Topology> {
    let short = bytes.saturating_mul(LINKS_OF_A_BYTE).clamp(LINKS_OF_A_SHORT_FILE, MAX_LISTED_LINKS);
    load_within(spec, bytes.max(short))
}

fn load_within(spec: &str, most_links: usize) -> TopologyResult<Topology> {
    let end = path_end(spec);
    let found = Spec::parse(spec, end).and_then(|mut parsed| {
        parsed.most_links = most_links.min(if end.is_some() { MAX_LISTED_LINKS } else { MAX_LINKS });
        if end.is_some() { from_file(&parsed) } else { named(&parsed) }
    });
    in_spec(spec, found)
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
    /// What its parameters and lists of values mean, if the form does not show it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub details: Option<String>,
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
        details: family.details.map(str::to_owned),
        source: None,
    };
    let mut listings: Vec<Listing> = FAMILIES.iter().map(family).collect();
    for machine in built_in() {
        let machine = machine?;
        listings.push(Listing {
            form: machine_form(&machine),
            about: machine.about().to_owned(),
            keys: machine.keys().map(|(key, values)| format!("{key}={}", values.join("|"))).collect(),
            details: None,
            source: Some(machine.source().to_owned()),
        });
    }
    Ok(listings)
}

fn in_spec(spec: &str, result: TopologyResult<Topology>) -> TopologyResult<Topology> {
    result.map_err(|cause| match cause {
        // These errors name their place themselves.
        TopologyError::InText(_) | TopologyError::Unreadable { .. } => cause,
        cause => TopologyError::InSpec { spec: shorten(spec), cause: Box::new(cause) },
    })
}

fn built_in() -> impl Iterator<Item = TopologyResult<MachineDescription<'static>>> {
    BUILT_IN.iter().map(|(origin, text)| Ok(machine::parse(Document::yaml(origin, text))?))
}

fn machine_form(machine: &MachineDescription<'_>) -> String {
    format!("{}{}", machine.name(), if machine.can_be_joined() { "xN" } else { "" })
}

fn named(spec: &Spec<'_>) -> TopologyResult<Topology> {
    let finish = |parts, spec| Ok(finish(parts, spec)?.named_by_spec());
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
    let text = read_text(spec.name)?;
    let syntax = if spec.name.ends_with(".json") { Syntax::Json } else { Syntax::Yaml };
    let document = Document { origin: spec.name, text: &text, syntax };
    match format_of(&document)? {
        FileFormat::Topology => {
            spec.accept_keys(&[])?;
            let topology = interchange::from_document(&document)?;
            Ok(if topology.name().is_empty() { topology.renamed(spec.text) } else { topology })
        }
        FileFormat::Machine => finish(machine::parse(document)?.build(None, spec)?, spec),
        FileFormat::Cluster => {
            spec.accept_keys(&[])?;
            cluster::read(&document)
        }
    }
}

/// Ranks without a port where other ranks have one, in words, for each part of the machine file that a SPEC names; of
/// anything else, nothing.
///
/// # Errors
/// As [`load`].
pub fn ranks_without_ports(spec: &str) -> TopologyResult<Vec<String>> {
    let Some(end) = path_end(spec) else { return Ok(Vec::new()) };
    let name = Spec::parse(spec, Some(end))?.name;
    // A pipe can be read only once.
    if !std::fs::metadata(name).is_ok_and(|about| about.is_file()) {
        return Ok(Vec::new());
    }
    let text = read_text(name)?;
    let syntax = if name.ends_with(".json") { Syntax::Json } else { Syntax::Yaml };
    let document = Document { origin: name, text: &text, syntax };
    Ok(match format_of(&document)? {
        FileFormat::Machine => machine::parse(document)?.ranks_without_ports(),
        FileFormat::Topology | FileFormat::Cluster => Vec::new(),
    })
}

/// What a file can describe.
enum FileFormat {
    Topology,
    Machine,
    Cluster,
}

/// What the file says it is.
fn format_of(document: &Document<'_>) -> TopologyResult<FileFormat> {
    let path = [Key("format")];
    match document.text_at(&path).as_deref() {
        Some(interchange::FORMAT) => Ok(FileFormat::Topology),
        Some(machine::FORMAT) => Ok(FileFormat::Machine),
        Some(cluster::FORMAT) => Ok(FileFormat::Cluster),
        found => {
            // If no format is given, the syntax may be wrong, and the parser finds a better place.
            document.parse::<IgnoredAny>()?;
            let found =
                found.map_or("there is no `format`".to_owned(), |found| format!("unknown format `{}`", shorten(found)));
            let known = [interchange::FORMAT, machine::FORMAT, cluster::FORMAT].join(", ");
            Err(document.fault(&path, format!("{found}; known are {known}")).into())
        }
    }
}

/// Opens a file that a user named: a regular file. A pipe is opened only where it is already open (`/dev/stdin`,
/// `/dev/fd/3`), because opening a pipe by its name waits for a writer, perhaps for ever.
///
/// # Errors
/// [`TopologyError::Unreadable`].
pub fn open_input(path: &str) -> TopologyResult<std::fs::File> {
    let refuse = |reason: String| TopologyError::Unreadable { path: shorten(path), reason };
    let about = std::fs::metadata(path).map_err(|error| refuse(error.to_string()))?;
    let is_open_pipe = about.file_type().is_fifo() && OPENED.iter().any(|opened| path.starts_with(opened));
    if !about.is_file() && !is_open_pipe {
        return Err(refuse("it is no regular file".to_owned()));
    }
    std::fs::File::open(path).map_err(|error| refuse(error.to_string()))
}

/// Reads a text that a user named, of bounded length, from a file that [`open_input`] opens. A byte order mark is left out.
///
/// # Errors
/// [`TopologyError::Unreadable`].
pub fn read_text(path: &str) -> TopologyResult<String> {
    read_text_up_to(path, MAX_FILE_BYTES)
}

/// The same for a text of at most so many bytes. Of a longer file nothing is read.
///
/// # Errors
/// [`TopologyError::Unreadable`].
pub fn read_text_up_to(path: &str, most: u64) -> TopologyResult<String> {
    let refuse = |reason: String| TopologyError::Unreadable { path: shorten(path), reason };
    let too_long = || refuse(format!("it has more than {most} bytes, the limit"));
    let file = open_input(path)?;
    if file.metadata().is_ok_and(|about| about.len() > most) {
        return Err(too_long());
    }
    let mut text = String::new();
    // Pipes state no length, and a file may grow.
    match file.take(most.saturating_add(1)).read_to_string(&mut text) {
        Ok(length) if length as u64 <= most => {
            if text.starts_with(BYTE_ORDER_MARK) {
                text.drain(..BYTE_ORDER_MARK.len_utf8());
            }
            Ok(text)
        }
        Ok(_) => Err(too_long()),
        Err(error) => Err(refuse(error.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{to_json, to_yaml};
    use std::path::PathBuf;

    /// A file that goes away with the test.
    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str, text: &[u8]) -> Self {
            let path = std::env::temp_dir().join(format!("antiphon-{}-{name}", std::process::id()));
            std::fs::write(&path, text).unwrap();
            Self(path)
        }

        fn spec(&self, keys: &str) -> String {
            format!("{}{keys}", self.0.display())
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = std::fs::remove_file(&self.0);
        }
    }

    #[test]
    fn only_a_spec_names_its_machine_for_certain() {
        for spec in ["ring:4", "ndv2x2,costs=taccl-1mb"] {
            let topology = resolve(spec).unwrap();
            assert!(topology.is_named_by_spec() && topology == topology.clone().renamed(spec), "{spec}");
            let others = [topology.clone().renamed(spec), topology.reversed(), topology.without_alpha()];
            assert!(others.iter().all(|other| !other.is_named_by_spec()), "{spec}");
        }
    }

    #[test]
    fn paths_are_told_from_names() {
        for (spec, path) in [
            ("ring:4", None),
            ("torus2d:4x4,bandwidth=50GBps/75GBps", None),
            ("box.yaml", Some("box.yaml")),
            ("box.yml,costs=a", Some("box.yml")),
            ("./box.yaml,costs=a,legs=b", Some("./box.yaml")),
            ("a,b.json", Some("a,b.json")),
            ("./noext", Some("./noext")),
            ("/dev/fd/3,machines=2", Some("/dev/fd/3")),
        ] {
            assert_eq!(path_end(spec).map(|end| &spec[..end]), path, "{spec}");
        }
    }

    #[test]
    fn loads_what_was_printed() {
        let topology = resolve("ndv2x2,costs=taccl-1kb").unwrap();
        for (name, text) in [("t.json", to_json(&topology)), ("t.yaml", to_yaml(&topology, "by hand"))] {
            let file = Scratch::new(name, text.as_bytes());
            assert_eq!(load(&file.spec("")), Ok(topology.clone()), "{name}");
            assert!(load(&file.spec(",costs=x")).unwrap_err().to_string().contains("unknown key `costs`"));
        }
        assert_eq!(load("ndv2x2,costs=taccl-1kb"), Ok(topology));
    }

    #[test]
    fn built_in_files_load_as_files_too() {
        for (origin, text) in BUILT_IN {
            let machine = machine::parse(Document::yaml(origin, text)).unwrap();
            assert_eq!(*origin, format!("machines/{}.yaml", machine.name()));
            let file = Scratch::new(&origin.replace('/', "-"), text.as_bytes());
            let name = machine.name().to_owned();
            assert_eq!(load(&file.spec("")).map(|topology| topology.digest()), resolve(&name).map(|t| t.digest()));
            if machine.can_be_joined() {
                let joined = load(&file.spec(",machines=3")).map(|topology| topology.digest());
                assert_eq!(joined, resolve(&format!("{name}x3")).map(|topology| topology.digest()));
            }
        }
    }

    #[test]
    fn ranks_without_a_port_are_named() {
        let text = "format: antiphon-machine/1\nname: m\nabout: m\nsource: m\nranks: 4\nparts:\n  \
                    nic: {inside: all, ports: [[0-1], [3]]}\nkeys: {costs: {a: {parts: {nic: {alpha: 1us, beta: 1us/MB}}}}}\n";
        let file = Scratch::new("ports.yaml", text.as_bytes());
        assert_eq!(ranks_without_ports(&file.spec("")).unwrap(), ["part nic: no port at rank 2"]);
        assert_eq!(ranks_without_ports("ndv2x2"), Ok(Vec::new()));
    }

    #[test]
    fn a_missing_key_is_missed_where_the_file_begins() {
        let file = Scratch::new("about.yaml", b"# why\nformat: antiphon-machine/1\nname: m\nranks: 4\n");
        let error = load(&file.spec("")).unwrap_err().to_string();
        assert!(error.contains("about.yaml:1:1: ") && error.ends_with("missing field `about`"), "{error}");
    }

    #[test]
    fn bad_files_are_refused_with_their_name() {
        for (name, text, fragment) in [
            ("a.json", &b"{\"format\": \"antiphon-topology/2\"}"[..], "a.json:1:"),
            ("b.json", b"{}", "there is no `format`"),
            ("b2.json", b"{\"x\": [1,", "b2.json:1:9: the text ends here"),
            ("c.yaml", b"format: taccl\n", "known are antiphon-topology/1, antiphon-machine/1, antiphon-cluster/1"),
            ("d.yaml", b"", "d.yaml:1:1: "),
            ("e.json", b"\xff\xfe", "UTF-8"),
            ("f.yaml", b"format: antiphon-machine/1\n", "f.yaml:"),
        ] {
            let file = Scratch::new(name, text);
            let error = load(&file.spec("")).expect_err(name).to_string();
            assert!(error.contains(name) && error.contains(fragment), "{error}");
        }
        assert!(load("./no/such/file.yaml").unwrap_err().to_string().starts_with("cannot read ./no/such/file.yaml: "));
        assert!(load("/").is_err());
    }

    #[test]
    fn a_byte_order_mark_is_no_part_of_a_text() {
        let topology = resolve("ring:3").unwrap();
        let file = Scratch::new("bom.json", format!("\u{feff}{}", to_json(&topology)).as_bytes());
        assert_eq!(load(&file.spec("")).unwrap().digest(), topology.digest());
    }

    #[test]
    fn what_is_no_file_is_refused_at_once() {
        for path in ["/dev/null", "/dev/zero", "/proc"] {
            let refused = read_text(path).unwrap_err().to_string();
            assert!(refused.contains("no regular file"), "{refused}");
        }
    }

    #[test]
    fn every_listing_resolves() {
        let listings = list().unwrap();
        assert_eq!(listings.len(), FAMILIES.len() + BUILT_IN.len());
        for listing in &listings {
            assert!(!listing.about.is_empty() && listing.about.len() < 90, "{listing:?}");
        }
        let ndv2 = listings.iter().find(|listing| listing.form == "ndv2xN").expect("it is built in");
        assert_eq!(ndv2.keys, ["costs=te-ccl|taccl-1mb|taccl-32kb|taccl-1kb", "legs=timed|instant"]);
        let error = resolve("ring4").unwrap_err().to_string();
        assert!(error.contains("known are ring, line, clique") && error.contains("ndv2xN"), "{error}");
    }
}
